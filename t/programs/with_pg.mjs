// Does with doc/programs/node.md's code, which precedes, what t/096_docs_programs.pl says.

import { createInterface } from 'node:readline'

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const read = async () => (await lines.next()).value
const held = async db => (await db.query('SELECT count(*) FROM zk_locks')).rows[0].count
let attempts

async function stateOf(call) {
  try {
    return String(await call())
  } catch (error) {
    if (!error.code) throw error
    return error.code
  }
}

async function work(db) {
  attempts++
  console.log('working')
  const path = (await read()).split(' ')[1]
  await db.query('UPDATE account SET n = n + 1')
  if (!path) return
  console.log('written')
  await read()
  await db.query('SELECT zk_xact_lock($1)', [path])
}

async function dirty() {
  const pool = new pg.Pool({ database: 'shop', max: 1 })
  let db = await pool.connect()
  await db.query("SELECT zk_lock('/pool')")
  db.release()
  db = await pool.connect()
  console.log('next user:', await held(db))
  await read()
  db.release()
  await pool.end()
  return 'closed'
}

async function clean() {
  await withClient(db => db.query("SELECT zk_lock('/pool')"))
  await stateOf(() => withClient(db => db.query("BEGIN; SELECT zk_xact_lock('/pool'); SELECT 1 / 0")))
  // an open transaction
  await stateOf(() => withClient(db => db.query("BEGIN; SELECT zk_xact_lock('/pool')")))
  return withClient(async db => 'next user: ' + await held(db))
}

// What it says of numbers and objects, and of those who wait no longer
async function timeouts() {
  const means = value => stateOf(async () => (await pool.query('SELECT $1::interval::text AS value', [value])).rows[0].value)
  return [await stateOf(() => makeReport('0s')), await stateOf(() => makeReport(0)),
    await means(5000), await means({ milliseconds: 100 })].join(' ')
}

async function queryTimeout() {
  const db = new pg.Client({ database: 'shop', query_timeout: 100 })
  await db.connect()
  const message = await db.query("SELECT zk_lock('/jobs/report')").catch(error => error.message)
  console.log(message)
  await read()
  await db.end()
  return 'closed'
}

// Between two queries its connection is terminated
async function terminated() {
  const again = await withClient(async db => {
    const ended = new Promise(resolve => db.once('end', resolve))
    await db.query("SELECT zk_lock('/pool')")
    await pool.query('SELECT pg_terminate_backend($1)', [db.processID])
    await ended
    return db.query('SELECT 1')
  }).catch(() => 'failed')
  return `${again}, next user: ` + await withClient(held)
}

async function canceled() {
  return withClient(async db => {
    const state = stateOf(() => db.query("SELECT zk_lock('/jobs/report')"))
    console.log('waits')
    await read()
    await pool.query('SELECT pg_cancel_backend($1)', [db.processID])    // as doc/programs.md says
    return state
  })
}

async function tried(loop, path) {
  attempts = 0
  await loop(path, work)
  return `done ${attempts}`
}

const commands = {
  dirty, clean, timeouts, cancel: canceled, query_timeout: queryTimeout, terminated,
  in_lock: path => tried(inLock, path), in_session_lock: path => tried(inSessionLock, path)
}
console.log('ready')
for (let line = await read(); line !== 'quit'; line = await read()) {
  const [name, ...args] = line.split(' ')
  console.log(await stateOf(() => commands[name](...args)))
}
await pool.end()
process.exit()
