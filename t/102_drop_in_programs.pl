# Programs that use PostgreSQL's advisory locks, unchanged, in two clusters with
# zklock_advisory: node-pg-migrate, pg-boss, django-pglocks and psycopg.  They
# exclude each other there, and did not before.  dev/test fetches them; the
# programs that call the libraries among them are in t/drop_in.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Child;
use Zklock;
use ZooKeeper;

my $fetched = ($ENV{ZKLOCK_TMP} // '') . '/drop_in';
my $modules = "$fetched/node_modules";
my $dir = PostgreSQL::Test::Utils::tempdir();

my $zk = ZooKeeper->new->start;
my @node = map { zk_cluster($_, $zk, listen_addresses => '127.0.0.1') } qw(east west);
foreach my $node (@node)
{
	$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
	$node->reload;
	$node->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE DATABASE shop OWNER app');
	$node->safe_psql('shop', <<~'END');
		CREATE EXTENSION zklock;
		CREATE EXTENSION zklock_advisory;
		GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA zklock_advisory TO app;
		CREATE TABLE gate ();
		GRANT ALL ON gate TO app;
		END
}
my @admin = map { zk_session($_, dbname => 'shop') } @node;

# The one statement that switches the programs over, and the one that goes back
sub alter { my ($what) = @_; $_->value("ALTER ROLE app IN DATABASE shop $what") for @admin; return; }
sub switch_over { return alter('SET search_path = zklock_advisory, pg_catalog, "$user", public'); }
sub go_back { return alter('RESET search_path'); }

# Who holds an advisory lock in ZooKeeper, or waits for it
sub contenders { return $admin[0]->value(q{SELECT coalesce(sum(contenders), 0) FROM zk_lock_paths('/advisory/shop')}); }
sub await_contenders { my ($n) = @_; zk_until(sub { contenders() == $n }, "$n at advisory locks"); return; }

# -- programs

sub url { return "postgres://app\@127.0.0.1:" . $node[ $_[0] ]->port . '/shop'; }

sub start
{
	my ($n, $name, @command) = @_;
	my ($pid, $to, $from) = Child::spawn(\@command,
		err => "$dir/$name.log", env => { DATABASE_URL => url($n), NODE_MODULES => $modules, PGAPPNAME => $name });
	return { pid => $pid, to => $to, from => $from, name => $name };
}

# Starts a program in Python there
sub python
{
	my ($n, $file, @arguments) = @_;
	return start($n, $file, '/usr/bin/python3', '-B', "$FindBin::RealBin/drop_in/$file", '127.0.0.1', $node[$n]->port, @arguments);
}

# The next line that it prints
sub says
{
	my ($program) = @_;
	my $line = '';
	zk_until(
		sub {
			my $bits = '';
			vec($bits, fileno $program->{from}, 1) = 1;
			return 0 if !select $bits, undef, undef, 0.05;
			my $n = sysread $program->{from}, my $character, 1;
			$line .= $character if $n;
			return !$n || $line =~ /\n\z/;
		}, "a line of $program->{name}");
	chomp $line;
	return $line;
}

sub let_go { my ($program) = @_; print { $program->{to} } "\n"; return; }

# Its exit status
sub end
{
	my ($program) = @_;
	my $status;
	zk_until(sub { waitpid($program->{pid}, POSIX::WNOHANG()) == $program->{pid} and $status = $?, 1 }, "$program->{name} to end");
	Child::forget($program->{pid});
	return $status >> 8;
}

sub log_of { my ($name) = @_; return -e "$dir/$name.log" ? slurp_file("$dir/$name.log") : ''; }

# Whether somebody in that cluster waits for one of PostgreSQL's own locks
sub await_blocked
{
	my ($n) = @_;
	zk_until(sub { $admin[$n]->value('SELECT count(*) FROM pg_locks WHERE NOT granted') > 0 }, 'somebody to wait for PostgreSQL');
	return;
}

#
# node-pg-migrate: the second one gives up
#
mkdir "$dir/migrations";
append_to_file("$dir/migrations/1732500000000_stock.sql", <<'END');
-- Up Migration
LOCK TABLE gate;
CREATE TABLE stock (id integer);
-- Down Migration
DROP TABLE stock;
END

sub migrate
{
	my ($n, $direction) = @_;
	return start($n, 'migrate', 'node', "$modules/node-pg-migrate/bin/node-pg-migrate.js", '-m', "$dir/migrations", $direction);
}

SKIP:
{
	skip 'node-pg-migrate could not be fetched', 1 if !-e "$modules/node-pg-migrate";
	foreach my $switched (0, 1)
	{
		$switched ? switch_over() : go_back();
		my $gate = zk_session($node[0], dbname => 'shop');
		$gate->value('BEGIN; LOCK TABLE gate');
		my $east = migrate(0, 'up');
		await_blocked(0);
		my $west = migrate(1, 'up');
		my $status = end($west);
		if ($switched)
		{
			isnt($status, 0, 'node-pg-migrate: with zklock_advisory the second one fails');
			like(log_of('migrate'), qr/Another migration is already running/, '- since the first one runs, in another cluster');
		}
		else { is($status, 0, 'node-pg-migrate: without it both run at once') or diag(log_of('migrate')); }
		$gate->value('COMMIT');
		$gate->quit;
		is(end($east), 0, '- and the first one is done') or diag(log_of('migrate'));
		is(end(migrate(1, 'up')), 0, '- then the second one is') or diag(log_of('migrate'));
		is($_->value(q{SELECT count(*) FROM pg_class WHERE relname = 'stock'}), 1, '- and has made its table') for @admin;
		is(end(migrate($_, 'down')), 0, '- undone') for 0, 1;
		zk_nothing_left($zk, 'nothing is left');
	}
}

#
# pg-boss: the second one waits
#
SKIP:
{
	skip 'pg-boss could not be fetched', 1 if !-e "$modules/pg-boss";
	foreach my $switched (0, 1)
	{
		$switched ? switch_over() : go_back();
		# it has its lock, and waits for the schema that somebody else is creating
		my $gate = zk_session($node[0], dbname => 'shop');
		$gate->value('BEGIN; CREATE SCHEMA pgboss');
		my @boss = start(0, 'boss', 'node', "$FindBin::RealBin/drop_in/boss.js", url(0));
		await_blocked(0);
		push @boss, start(1, 'boss', 'node', "$FindBin::RealBin/drop_in/boss.js", url(1));
		if ($switched)
		{
			await_contenders(2);
			is($admin[1]->value(q{SELECT count(*) FROM pg_namespace WHERE nspname = 'pgboss'}), 0,
				'pg-boss: with zklock_advisory the second one waits for the first, in another cluster');
		}
		else { is(says($boss[1]), 'started', 'pg-boss: without it the second one does not wait') or diag(log_of('boss')); }
		$gate->value('ROLLBACK');
		$gate->quit;
		is(end($_), 0, '- it starts and stops') or diag(log_of('boss')) for @boss;
		$_->value('DROP SCHEMA pgboss CASCADE') for @admin;
		zk_nothing_left($zk, 'nothing is left');
	}
}

#
# django-pglocks: waits, tries, shares
#
SKIP:
{
	skip 'python3-django-pglocks is not installed', 1 if !-e '/usr/lib/python3/dist-packages/django_pglocks';

	go_back();
	my @both = map { python($_, 'pglocks.py', 'report', 'wait') } 0, 1;
	is(says($_), 'locked', 'django-pglocks: without zklock_advisory both have the lock') or diag(log_of('pglocks.py')) for @both;
	let_go($_) for @both;
	is(end($_), 0, '- and end') for @both;

	switch_over();
	foreach my $key ('report', '42', '-7,42')
	{
		my $first = python(0, 'pglocks.py', $key, 'wait');
		is(says($first), 'locked', "with it, and the key $key: one has it") or diag(log_of('pglocks.py'));
		is(says(my $try = python(1, 'pglocks.py', $key, 'try')), 'refused', '- in another cluster one is refused');
		is(end($try), 0, '- and ends');
		my $second = python(1, 'pglocks.py', $key, 'wait');
		await_contenders(2);
		let_go($first);
		is(says($second), 'locked', '- or waits, and is next');
		let_go($second);
		is(end($_), 0, '- and ends') for $first, $second;
	}
	my @readers = map { python($_, 'pglocks.py', 'report', 'try', 'shared') } 0, 1;
	is(says($_), 'locked', '- two share it') for @readers;
	let_go($_) for @readers;
	is(end($_), 0, '- and end') for @readers;
	unlike(log_of('pglocks.py'), qr/own a lock/, 'each has released what it had');
	zk_nothing_left($zk, 'nothing is left');
}

#
# psycopg without autocommit: a rollback does not release
#
SKIP:
{
	skip 'python3-psycopg2 is not installed', 1 if !-e '/usr/lib/python3/dist-packages/psycopg2';
	switch_over();
	my $program = python(0, 'rollback.py', 42);
	is(says($program), 'rolled back', 'psycopg: a lock, ROLLBACK, an error, ROLLBACK') or diag(log_of('rollback.py'));
	my $s = zk_session($node[1], dbname => 'shop', user => 'app');
	is($s->value('SELECT pg_try_advisory_lock(42)'), 'f', '- it still has it');
	let_go($program);
	is(says($program), 'held', '- and releases it');
	is($s->value('SELECT pg_try_advisory_lock(42)'), 't', '- then it is free');
	is(end($program), 0, '- and it ends');
	$s->quit;
}

$_->quit for @admin;
zk_nothing_left($zk, 'nothing is left at the end', sessions => 0);
zk_no_crash($_) for @node;
done_testing();
