// Starts pg-boss, which creates its tables, and stops it

const PgBoss = require(process.env.NODE_MODULES + '/pg-boss')

async function main () {
  const boss = new PgBoss({ connectionString: process.env.DATABASE_URL, noScheduling: true, noSupervisor: true })
  boss.on('error', (error) => console.error(error))
  await boss.start()
  console.log('started')
  await boss.stop({ graceful: false, destroy: true })
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1) })
