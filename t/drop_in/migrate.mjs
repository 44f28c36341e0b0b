// What node-pg-migrate's command does, which accepts only Node.js 20 and later:
// migrate.mjs fail|wait

import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const modules = createRequire(process.env.NODE_MODULES + '/')
const { runner } = await import(pathToFileURL(modules.resolve('node-pg-migrate')))

try {
  await runner({
    databaseUrl: process.env.DATABASE_URL,
    dir: 'migrations',
    direction: 'up',
    migrationsTable: 'pgmigrations',
    advisoryLockMode: process.argv[2]
  })
} catch (error) {
  console.error(error)
  process.exit(1)
}
