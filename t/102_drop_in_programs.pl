# Programs that use PostgreSQL's advisory locks, unchanged, as their packages have them:
# in two clusters where "zklock.advisory = redirect" is set for their role, and nothing
# else, each behaves beside another of its kind as on one cluster where nothing is set,
# where one alone shows what pg_locks has to show.  dev/test fetches them; t/drop_in has
# what calls those that are libraries.

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Basename qw(dirname);
use File::Path qw(make_path);

use Child;
use Peer;
use Tests;

my $fetched = ($ENV{ZKLOCK_TMP} // '') . '/drop_in';
my $modules = "$fetched/node_modules";
my $debian = '/usr/lib/python3/dist-packages';
my $dir = PostgreSQL::Test::Utils::tempdir();
symlink $modules, "$dir/node_modules";    # where Node.js looks

my $zk = ZooKeeper->new->start;
my ($east, $west) = map { zk_cluster($_, $zk, listen_addresses => '127.0.0.1', shared_preload_libraries => 'zklock') } qw(east west);

my %admin;    # a superuser's session, by cluster
foreach my $node ($east, $west)
{
	$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
	$node->reload;
	$node->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE DATABASE shop OWNER app');
	my $s = $admin{ $node->name } = zk_session($node, dbname => 'shop');
	$s->value('CREATE SCHEMA ops; CREATE TABLE ops.gate (); GRANT USAGE ON SCHEMA ops TO app; GRANT ALL ON ops.gate TO app');
	$s->value('CREATE EXTENSION zklock SCHEMA ops; CREATE EXTENSION zklock_advisory; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA zklock_advisory TO app');
}
sub on { my ($node, $query) = @_; return $admin{ $node->name }->value($query); }

# How a program comes to its lock: where the first one runs, and the second; and what is
# set for the role.  Where nothing is, the calls are PostgreSQL's own.
my %ways = (
	plain => { name => 'PostgreSQL', nodes => [ $east, $east ] },
	redirect => { name => 'redirect', nodes => [ $east, $west ], set => 'zklock.advisory = redirect' });

# -- what is held, and who waits

# Advisory locks in ZooKeeper: those who hold or await one
sub contenders { return on($east, q{SELECT coalesce(sum(contenders), 0) FROM ops.zk_lock_paths('/advisory')}); }

# Those that pg_locks shows in that cluster
sub rows
{
	my ($node) = @_;
	return on($node, q{SELECT string_agg(concat_ws(' ', classid, objid, objsubid, mode), ', ' ORDER BY classid, objid, objsubid, mode)
		FROM pg_locks WHERE locktype = 'advisory' AND granted});
}

# PostgreSQL's own locks that somebody there waits for
sub blocked { my ($node) = @_; return on($node, q{SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype <> 'advisory'}); }

# The one that has the lock has it where it should.  What pg_locks shows of it where
# nothing is set it shows everywhere.
my %shown;

sub is_held
{
	my ($name, $way) = @_;
	my $rows = rows($way->{nodes}[0]);
	if ($way == $ways{plain}) { isnt($shown{$name} = $rows, '', "$name, $way->{name}: one has its lock"); }
	else
	{
		cmp_ok(contenders(), '==', 1, "$name, $way->{name}: one has its lock, in ZooKeeper");
		is($rows, $shown{$name}, '- and in pg_locks');
	}
	return;
}

# The second one waits, instead of ending or going on
sub is_waiting
{
	my ($second) = @_;
	my $waits = 0;
	zk_until(sub { $waits = contenders() == 2; return $waits || ended($second); }, "$second->{kind} to wait");
	ok($waits, '- the second one waits') or diag(log_of($second));
	return;
}

sub is_over
{
	my ($way) = @_;
	is(rows($_), '', '- none is left in pg_locks') for $way->{nodes}[0];
	zk_nothing_left($zk, '- nor in ZooKeeper') if $way != $ways{plain};
	return;
}

# -- programs

my $started = 0;

sub start
{
	my ($node, $name, @command) = @_;
	my $log = "$dir/" . ++$started . ".$name.log";
	make_path("$dir/$name");
	my %env = (
		DATABASE_URL => 'postgres://app@127.0.0.1:' . $node->port . '/shop',
		PGHOST => '127.0.0.1',
		PGPORT => $node->port,
		PGUSER => 'app',
		PGDATABASE => 'shop',
		PGAPPNAME => $name,
		NODE_MODULES => $modules);
	my $program = Peer->program($name, [ 'env', '--chdir', "$dir/$name", @command ], no_wait => 1, log => $log, env => \%env);
	$program->{log} = $log;
	return $program;
}

sub ended
{
	my ($program) = @_;
	return 1 if defined $program->{status};
	return 0 unless Child::ended($program->{pid}, 0);
	$program->{status} = $? >> 8;
	return 1;
}

sub ends_well
{
	my ($program, $name) = @_;
	zk_until(sub { ended($program) }, "$program->{kind} to end");
	is($program->{status}, 0, $name) or diag(log_of($program));
	return;
}

# What it has written to its standard error, and, when it has ended, to its output
sub log_of
{
	my ($program) = @_;
	my $out = '';
	if (defined $program->{status}) { local $/; $out = readline($program->{from}) // ''; }
	return $out . (-e $program->{log} ? slurp_file($program->{log}) : '');
}

# Runs the code for a program in each of these ways; a program leaves what it has made in
# the schema public or in one of its name
sub in_each_way
{
	my ($program, $code, @ways) = @_;
	my $name = $program->{name};
  SKIP:
	{
		skip "$name, or what it needs, could not be had", 1 if !-e $program->{has};
		foreach my $way (@ways{@ways})
		{
			my @nodes = $way == $ways{plain} ? $east : @{ $way->{nodes} };
			on($_, 'ALTER ROLE app RESET ALL' . ($way->{set} ? "; ALTER ROLE app SET $way->{set}" : '')) for @nodes;
			$code->($program, $way);
			on($_, <<~'END') for @nodes;
				SET client_min_messages = error;
				DROP SCHEMA public CASCADE;
				DROP SCHEMA IF EXISTS sqitch, graphile_migrate, pgboss CASCADE;
				CREATE SCHEMA public AUTHORIZATION pg_database_owner;
				GRANT USAGE ON SCHEMA public TO PUBLIC;
				END
		}
	}
	return;
}

# -- programs that migrate a schema

# Each makes a table, for which it has to wait while somebody else has a lock on ops.gate.
#   has      without this file it is left out
#   files    its migration, and its configuration
#   command  of the first one, and the second
#   gate     what it waits for instead
#   makes    this instead of public.stock
#   second   waits, or fails with this message
my $sql = "LOCK TABLE ops.gate;\nCREATE TABLE stock (id integer);\n";
my ($node_version) = (`node --version 2>&1` // '') =~ /^v(\d+)/ ? $1 : 0;
my @migrations = (
	{
		name => 'sqitch',    # sets search_path to its own schema
		has => (-e '/usr/bin/sqitch' ? '' : "$fetched/sqitch") . '/usr/bin/sqitch',
		files => {
			'sqitch.conf' => "[core]\n\tengine = pg\n",
			'sqitch.plan' => "%syntax-version=1.0.0\n%project=shop\n\nstock 2026-09-01T00:00:00Z app <app\@shop.invalid> # stock\n",
			'deploy/stock.sql' => "BEGIN;\n${sql}COMMIT;\n" },
		command => sub {
			my ($node) = @_;
			my $perl = join ':', "$fetched/sqitch/usr/share/perl5", glob "$fetched/sqitch/usr/lib/*/perl5/5.*";
			return (
				'env', "PERL5LIB=$perl", 'TZ=UTC', 'SQITCH_FULLNAME=app', 'SQITCH_EMAIL=app@shop.invalid',
				$_[2]{has}, 'deploy', '--lock-timeout', 3600, 'db:pg://app@127.0.0.1:' . $node->port . '/shop');
		},
		second => 'waits'
	},
	{
		name => 'graphile-migrate',    # sets search_path to what it is told to
		has => "$modules/graphile-migrate/dist/cli.js",
		files => {
			'.gmrc' => '{ "pgSettings": { "search_path": "public" } }',
			'migrations/committed/000001.sql' => "--! Previous: -\n--! Hash: sha1:0\n--! AllowInvalidHash\n\n$sql" },
		command => sub { return ('node', $_[2]{has}, 'migrate') },
		second => qr/Failed to get exclusive lock/
	},
	(
		map {
			my ($mode, $second) = @$_;
			{
				name => "node-pg-migrate-$mode",    # sets search_path to the schema of its tables
				has => $node_version >= 20 ? "$modules/node-pg-migrate/bin/node-pg-migrate.js" : '',    # (needs toSorted)
				files => { 'migrations/1732500000000_stock.sql' => "-- Up Migration\n$sql-- Down Migration\n" },
				command => sub { return ('node', $_[2]{has}, '--advisory-lock-mode', $mode, 'up') },
				second => $second
			}
		} [ fail => qr/Another migration is already running/ ], [ wait => 'waits' ]),
	{
		name => 'knex',    # looks for its tables in current_schema(); the migration itself takes the lock
		has => "$modules/knex/bin/cli.js",
		files => {
			'knexfile.js' => "module.exports = { client: 'pg', connection: process.env.DATABASE_URL }\n",
			'migrations/1_stock.js' => <<~'END' },
				exports.up = async (knex) => {
				  await knex.raw('SELECT pg_advisory_xact_lock(7)')
				  await knex.raw('LOCK TABLE ops.gate')
				  if (!await knex.schema.hasTable('stock')) await knex.schema.createTable('stock', (table) => table.integer('id'))
				}
				exports.down = async () => {}
				END
		# of two programs, since it has a lock of its own in its tables
		command => sub { return ('node', $_[2]{has}, 'migrate:latest', '--migrations-table-name', "of_the_$_[1]") },
		second => 'waits'
	},
	{
		name => 'pg-boss',
		has => "$modules/pg-boss",
		gate => 'CREATE SCHEMA pgboss',
		makes => 'pgboss.version',
		command => sub { return ('node', "$FindBin::RealBin/drop_in/boss.js") },
		second => 'waits'
	},
	{
		name => 'alembic',    # looks for its tables in current_schema(); the application's env.py takes the lock
		has => "$debian/alembic/config.py",
		files => {
			'alembic.ini' => "[alembic]\nscript_location = .\n",
			'env.py' => <<~'END',
				from alembic import context
				from sqlalchemy import create_engine, text
				with create_engine('postgresql+psycopg2://').connect() as connection:
				    context.configure(connection=connection)
				    with context.begin_transaction():
				        connection.execute(text('SELECT pg_advisory_xact_lock(7)'))
				        context.run_migrations()
				END
			'versions/1_stock.py' => <<~'END' },
				from alembic import op
				import sqlalchemy as sa
				revision = '1'
				down_revision = None
				def upgrade():
				    op.execute('LOCK TABLE ops.gate')
				    op.create_table('stock', sa.Column('id', sa.Integer))
				END
		command => sub { return ('/usr/bin/python3', '-B', '-m', 'alembic.config', 'upgrade', 'head') },
		second => 'waits'
	},
	{
		name => 'rails',
		has => '/usr/share/doc/ruby-activerecord',
		files => { 'migrations/1_stock.rb' => <<~'END' },
			class Stock < ActiveRecord::Migration[6.1]
			  def up
			    execute 'LOCK TABLE ops.gate'
			    create_table :stock
			  end
			end
			END
		command => sub { return ('/usr/bin/ruby', "$FindBin::RealBin/drop_in/rails.rb", 'migrations') },
		second => qr/ConcurrentMigrationError/
	});

sub migrate
{
	my ($program, $way) = @_;
	my $name = $program->{name};
	my ($here, $there) = @{ $way->{nodes} };
	my $run = sub { my ($node, $which) = @_; return start($node, $name, $program->{command}->($node, $which, $program)); };

	my $gate = zk_session($here, dbname => 'shop');
	$gate->value('BEGIN; ' . ($program->{gate} // 'LOCK TABLE ops.gate'));
	my $first = $run->($here, 'first');
	zk_until(sub { ended($first) || blocked($here) }, "$name to wait at the gate");
	is_held($name, $way);
	my $second = $way == $ways{plain} ? undef : $run->($there, 'second');
	is_waiting($second) if $second && !ref $program->{second};
	if ($second && ref $program->{second})
	{
		zk_until(sub { ended($second) }, 'the second one to end');
		isnt($second->{status}, 0, '- the second one fails');
		like(log_of($second), $program->{second}, '- since the first one runs');
	}
	$gate->value('ROLLBACK');
	$gate->quit;
	ends_well($first, '- the first one is done');
	unlike(log_of($first), qr/release/, '- and has released its lock');    # node-pg-migrate says when not
	my @done = $here;
	if ($second && !ref $program->{second})
	{
		ends_well($second, '- and then the second');
		@done = ($here, $there);
	}
	is(on($_, "SELECT to_regclass('" . ($program->{makes} // 'public.stock') . "') IS NOT NULL"), 't', '- and has made its table in ' . $_->name) for @done;
	is_over($way);
	return;
}

foreach my $program (@migrations)
{
	my $files = $program->{files} // {};
	foreach my $file (keys %$files)
	{
		my $path = "$dir/$program->{name}/$file";
		make_path(dirname($path));
		append_to_file($path, $files->{$file});
	}
	in_each_way($program, \&migrate, 'plain', 'redirect');
}

# -- programs that have a lock until they are told to give it back

# Those stay connected after it.  asyncpg's pool resets its connection; psycopg rolls back,
# and has it still; django-pglocks makes its key of a text.
my @holders = (
	{ name => 'django-pglocks', has => "$debian/django_pglocks", file => 'pglocks.py', key => 'report' },
	{ name => 'psycopg', has => "$debian/psycopg2", file => 'rollback.py', key => 42 },
	{ name => 'asyncpg', has => "$debian/asyncpg", file => 'pool.py', key => 42 });

sub hold
{
	my ($program, $way) = @_;
	my ($here, $there) = @{ $way->{nodes} };
	my $run = sub {
		my ($node, @arguments) = @_;
		return start($node, $program->{name}, '/usr/bin/python3', '-B', "$FindBin::RealBin/drop_in/$program->{file}", $program->{key}, @arguments);
	};

	my $first = $run->($here, 'wait');
	my $says = sub {
		my ($who, $what, $name) = @_;
		is(eval { $who->wait } // $@, $what, $name) or diag(log_of($who));
	};
	$says->($first, 'locked', "$program->{name}: one has the lock");
	is_held($program->{name}, $way);
	my $second;
	if ($way != $ways{plain})
	{
		my $try = $run->($there, 'try');
		$says->($try, 'refused', '- another one is refused');
		ends_well($try, '- and ends');
		$second = $run->($there, 'wait');
		is_waiting($second);
	}
	$says->($first->send(''), 'released', '- it is given back');
	if ($second)
	{
		$says->($second, 'locked', '- and the second one is next');
		$says->($second->send(''), 'released', '- and gives it back, too');
		$second->send('');
	}
	$first->send('');
	ends_well($_, '- and ends') for $first, $second // ();
	is_over($way);
	return;
}

in_each_way($_, \&hold, 'plain', 'redirect') for @holders;

# (Calls in sessions, also through postgres_fdw: t/106; with any search_path: there, and in t/101)

# -- pg_partman: a key that protects what one server has

# With the same key everywhere one of two clusters skips its maintenance.  The databases need
# different names for their keys.
sub partitions { my ($node) = @_; return on($node, q{SELECT count(*) FROM pg_inherits WHERE inhparent = 'public.events'::regclass}); }

sub maintain
{
	my ($program, $way) = @_;
	my @nodes = @{ $way->{nodes} };
	foreach my $node (@nodes)
	{
		on($node, <<~'END');
			CREATE SCHEMA partman AUTHORIZATION app;
			CREATE EXTENSION pg_partman SCHEMA partman;
			GRANT ALL ON ALL TABLES IN SCHEMA partman TO app;
			SET ROLE app;
			CREATE TABLE public.events (at timestamptz NOT NULL) PARTITION BY RANGE (at);
			END
		my $new = on($node, q{SELECT extversion >= '5' FROM pg_extension WHERE extname = 'pg_partman'}) eq 't';
		on($node, sprintf q{SELECT partman.create_parent('public.events', 'at', %s, p_premake := 2)}, $new ? q{'1 day'} : q{'native', 'daily'});
		on($node, 'UPDATE partman.part_config SET premake = 4, infinite_time_partitions = true; RESET ROLE');
	}
	my $before = partitions($nodes[0]);
	foreach my $own (0, 1)
	{
		if ($own) { on($_, 'ALTER DATABASE shop SET zklock.advisory_space = ' . $_->name) for @nodes; }
		my @sessions = map { zk_session($_, dbname => 'shop', user => 'app') } @nodes;
		# at the same time
		$_->value(q{BEGIN; SELECT partman.run_maintenance()}) for @sessions;
		cmp_ok(contenders(), '==', $own ? 2 : 1, $own ? '- with names of their own: two have their locks' : 'pg_partman, redirect: one has the lock');
		$_->value('COMMIT') for @sessions;
		if ($own) { cmp_ok(partitions($_), '>', $before, '- and ' . $_->name . ' has more partitions') for @nodes; }
		else { is(partitions($nodes[1]), $before, '- and the other one skips its maintenance'); }
	}
	is_over($way);
	on($_, 'ALTER DATABASE shop RESET zklock.advisory_space') for @nodes;
	return;
}

chomp(my $share = `pg_config --sharedir`);
in_each_way({ name => 'pg_partman', has => "$share/extension/pg_partman.control" }, \&maintain, 'redirect');

zk_end($zk, $east, $west);
