# A user of asyncpg's pool, of one connection, sets a search_path, takes a lock and has it
# until it reads a line.  Then the pool gets its connection back, which stays open until it
# reads another: pool.py KEY wait|try

import asyncio
import sys

import asyncpg


async def main(key, how):
    pool = await asyncpg.create_pool(min_size=1, max_size=1)
    async with pool.acquire() as connection:
        await connection.execute('SET search_path = public')
        if how == 'wait':
            await connection.execute(f'SELECT pg_advisory_lock({key})')
        elif not await connection.fetchval('SELECT pg_try_advisory_lock($1)', int(key)):
            print('refused', flush=True)
            return
        print('locked', flush=True)
        sys.stdin.readline()
    print('released', flush=True)
    sys.stdin.readline()
    await pool.close()

asyncio.run(main(*sys.argv[1:]))
