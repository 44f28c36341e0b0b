# What "rake db:migrate" does in an application of Rails: rails.rb DIRECTORY

require 'active_record'

ActiveRecord::Base.establish_connection(ENV['DATABASE_URL'])
ActiveRecord::Migrator.migrations_paths = ARGV
ActiveRecord::Tasks::DatabaseTasks.db_dir = ARGV[0]
ActiveRecord::Tasks::DatabaseTasks.migrate
