# The pages of doc/ are correct: all SQL in them runs, in the order of the page,
# and prints what the page says; see t/lib/Doc.pm.  Pages that need other
# programs have tests of their own.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Doc;
use Zklock;
use ZooKeeper;

my %own_test = (
	(map { ($_ => '030_readme.pl') } qw(README.md doc/guide.md doc/install.md)),
	'doc/interop.md' => '095_single.pl',
	'doc/recipes/cron.md' => '081_docs_cron.pl',
	'doc/recipes/java-python.md' => '082_docs_clients.pl',
	'doc/recipes/prometheus.md' => '088_docs_prometheus.pl',
	'doc/recipes/pgbouncer.md' => '083_docs_pgbouncer.pl',
	'doc/recipes/standby.md' => '084_docs_standby.pl',
	'doc/security.md' => '085_docs_security.pl',
	'doc/zookeeper.md' => '087_docs_zookeeper.pl',
	'doc/troubleshooting.md' => '093_docs_troubleshooting.pl',
	map { ("doc/programs/$_.md" => '096_docs_programs.pl') } qw(django java node python rails sqlalchemy));

foreach my $page (sort keys %own_test)
{
	like(slurp_file("$FindBin::RealBin/$own_test{$page}"), qr{'\Q$page\E'}, "$own_test{$page} runs $page");
}

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, shared_preload_libraries => 'zklock',    # zk_server_locks before PostgreSQL 17
	wal_level => 'logical');    # or CREATE PUBLICATION warns
my $other = zk_cluster('other', $zk);

# Each of these sessions gets the lock for which it waits, in whatever order, and then says
# this; returns them
sub in_turn
{
	my ($then, @waiting) = @_;
	my @left = @waiting;
	while (@left)
	{
		my ($next) = zk_until(sub { (grep { $_->is_done } @left)[0] }, 'the next one to have its turn');
		is($next->wait->{state}, '', 'the next one has the lock');
		$next->value($then);
		@left = grep { $_ != $next } @left;
	}
	return @waiting;
}

# What the text says apart from its SQL, in the database that the page has
# created
my %and_then = (
	'doc/recipes/rate-limit.md' => sub {
		my ($dbname) = @_;
		my @callers = map { zk_session($node, dbname => $dbname) } 1 .. 12;
		$_->send('CALL geocode()') for @callers;
		is($_->wait->{state}, '', 'a caller has its turn') for @callers;
		is($callers[0]->value('SELECT count(*) FROM call'), '13', 'all have called');
		is($callers[0]->value(<<~'SQL'), 't', 'no more than five in a second');
			SELECT min(sixth - at) >= interval '1 s'
			FROM (SELECT at, lead(at, 5) OVER (ORDER BY at) AS sixth FROM call) AS c
			SQL
		$_->quit for @callers;
	},
	'doc/recipes/migration.md' => sub {
		my ($dbname) = @_;
		my ($first, $query, @others) = map { zk_session($node, dbname => $dbname) } 1 .. 7;
		my ($every) = grep { $_->{code} =~ /ADD COLUMN/ } Doc->new('doc/recipes/migration.md')->blocks('sql');
		is($query->query($every->{code})->{state}, '', 'whoever migrates later finds it done');
		is($query->value('SELECT count(*) FROM schema_version WHERE version = 42'), '1', '- and does nothing');
		$first->value(q{CALL zk_acquire('/migrations/shop')});
		$query->send(q{SELECT zk_lock('/migrations/shop')});
		$_->send(q{CALL zk_acquire('/migrations/shop')}) for @others;
		zk_wait_queued($zk, $query, @others);
		$first->send('CREATE INDEX CONCURRENTLY too_late ON customer (name)');
		is($query->wait->{state}, '40P01', 'a query that waits for the lock fails, since an index build waits for it');
		is($first->wait->{state}, '', 'the index build goes on');
		is(scalar(grep { $_->is_done } @others), 0, '- and so do those who wait by CALL');
		$first->value(q{SELECT zk_unlock('/migrations/shop')});
		$_->quit for in_turn(q{SELECT zk_unlock('/migrations/shop')}, @others), $query;

		# the same in transactions
		@others = map { zk_session($node, dbname => $dbname) } 1 .. 5;
		my $second = zk_session($node, dbname => $dbname);
		$first->value(q{BEGIN; CALL zk_xact_acquire('/migrations/shop')});
		$_->send(q{BEGIN; CALL zk_xact_acquire('/migrations/shop')}) for @others;
		zk_wait_queued($zk, @others);
		is($second->query('CREATE INDEX CONCURRENTLY meanwhile ON customer (name)')->{state}, '', 'an index is built while one has the lock');
		$first->value('COMMIT');
		is($first->query('CREATE INDEX CONCURRENTLY afterwards ON customer (name)')->{state}, '', '- and by it, after that');
		$_->quit for in_turn('COMMIT', @others), $first, $second;
	});

foreach my $file (grep { !$own_test{$_} } Doc::pages())
{
	my $page = Doc->new($file);
	unless ($page->blocks('sql'))
	{
		$page->all_was_run;
		next;
	}

	# its own tables and fences
	my $dbname = lc($file =~ s{^doc/}{}r =~ s/\W/_/gr);
	foreach my $cluster ($node, $other)
	{
		$cluster->safe_psql('postgres', "CREATE DATABASE $dbname");
		$cluster->safe_psql($dbname, 'CREATE EXTENSION zklock');
	}
	$page->run($node, zk => $zk, dbname => $dbname, other => $other);
	$page->all_was_run;
	$and_then{$file}->($dbname) if $and_then{$file};
	zk_nothing_left($zk, "$file: nothing is left in ZooKeeper", sessions => 0);
}
zk_no_crash($_) for $node, $other;

done_testing();
