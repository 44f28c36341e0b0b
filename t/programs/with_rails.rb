# Does with doc/programs/rails.md's code what t/096_docs_programs.pl says.

require 'active_record'
require 'active_support/core_ext/numeric/time'

ActiveRecord::Base.establish_connection(adapter: 'postgresql', database: 'shop', pool: 1)
require 'page'
$stdout.sync = true

def request
  yield ActiveRecord::Base.connection
ensure
  ActiveRecord::Base.connection_pool.release_connection
end

def clean
  request { |db| db.execute("SELECT zk_lock('/pool')") }
  "next user: #{request { |db| db.select_value('SELECT count(*) FROM zk_locks') }}"
end

def state_of
  yield.to_s
rescue TypeError => e    # of ActiveRecord, before it asks
  e.class.name
rescue ActiveRecord::StatementInvalid => e
  e.cause.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
end

# without the page's callback
def dirty
  adapters = [ActiveRecord::ConnectionAdapters::AbstractAdapter, ActiveRecord::ConnectionAdapters::PostgreSQLAdapter]
  kept = adapters.map { |adapter| adapter.__callbacks.dup }
  adapters.first.reset_callbacks(:checkin)
  puts clean
  gets
  ActiveRecord::Base.connection_pool.disconnect!
  adapters.zip(kept) { |adapter, callbacks| adapter.__callbacks = callbacks }
  'closed'
end

def timeouts
  ['0s', 0.seconds.iso8601, 5, 5.seconds].map { |timeout| state_of { make_report(timeout) } }.join(' ')
end

# What the cache answers is not locked
def cached
  ActiveRecord::Base.cache do
    db = ActiveRecord::Base.connection
    found = 2.times.map { db.select_value("SELECT zk_try_lock('/twice')") }
    count = -> { db.execute('SELECT zk_unlock_all()').getvalue(0, 0) }
    found << count.call
    2.times { db.uncached { db.select_value("SELECT zk_try_lock('/twice')") } }
    (found << count.call).join(' ')
  end
end

# The page's callback leaves the connections to another database alone; returns how many were made
class Elsewhere < ActiveRecord::Base
  self.abstract_class = true
end

def elsewhere
  ActiveRecord::Base.configurations = { 'default_env' => { 'elsewhere' => { adapter: 'postgresql', database: 'postgres' } } }
  Elsewhere.establish_connection(:elsewhere)
  pids = Array.new(2) do
    pid = Elsewhere.connection.select_value('SELECT pg_backend_pid()')
    Elsewhere.connection_pool.release_connection
    pid
  end
  pids.uniq.size
end

def cancel
  request do |db|
    other = Thread.new do
      gets
      db.raw_connection.cancel
    end
    puts 'waits'
    state = state_of { db.execute("SELECT zk_lock('/jobs/report')") }
    other.join
    state
  end
end

def work
  $attempts += 1
  puts 'working'
  path = gets.split[1]
  db = ActiveRecord::Base.connection
  db.execute('UPDATE account SET n = n + 1')
  return unless path

  puts 'written'
  gets
  db.execute("SELECT zk_xact_lock('#{path}')")
  nil
end

# The commands are functions; those with a path are the page's
def answer(name, path = nil)
  return send(name) unless path

  $attempts = 0
  send(name, path) { work } || "done #{$attempts}"
end

Report.nightly
puts 'ready'
while (line = gets.chomp) != 'quit'
  puts(state_of { answer(*line.split) })
end
Elsewhere.connection_pool.disconnect!
ActiveRecord::Base.connection_pool.disconnect!
