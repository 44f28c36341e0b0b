# doc/recipes/java-python.md: both programs, as printed, on a lock and a table
# that SQL also uses

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Child;
use Doc;
use Zklock;
use ZooKeeper;

my $page = Doc->new('doc/recipes/java-python.md');

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, listen_addresses => '127.0.0.1');
$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
$node->reload;
my $port = $node->port;
my $admin = zk_session($node);
my $dir = PostgreSQL::Test::Utils::tempdir();

# Java compiles a single file by itself
my $java_path = join ':', map { "/usr/share/java/$_.jar" }
  qw(curator-recipes curator-framework curator-client zookeeper guava slf4j-api slf4j-simple postgresql);
my %program = (
	java => {
		needs => '/usr/share/java/postgresql.jar',
		package => 'libpostgresql-jdbc-java',
		file => 'Withdraw.java',
		command => [ 'java', '-Xmx96m', '-XX:+UseSerialGC', '-XX:-UsePerfData', '-cp', $java_path ],
		url => "jdbc:postgresql://127.0.0.1:$port/postgres?user=postgres"
	},
	python => {
		needs => '/usr/lib/python3/dist-packages/psycopg2',
		package => 'python3-psycopg2',
		file => 'withdraw.py',
		command => [ '/usr/bin/python3', '-B' ],
		url => "host=127.0.0.1 port=$port dbname=postgres user=postgres"
	});

# Starts it, and returns its pid
sub start
{
	my ($language) = @_;
	my $p = $program{$language};
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		POSIX::dup2(POSIX::open("$dir/$language.log", POSIX::O_WRONLY() | POSIX::O_CREAT() | POSIX::O_APPEND()), $_) for 1, 2;
		no warnings 'exec';
		exec 'setpriv', '--pdeathsig', 'KILL', @{ $p->{command} }, "$dir/$p->{file}", $zk->hosts, $p->{url};
		POSIX::_exit(127);
	}
	Child::remember($pid);
	return $pid;
}

# Its exit status
sub end
{
	my ($pid) = @_;
	my $status;
	zk_until(sub { waitpid($pid, POSIX::WNOHANG()) == $pid and $status = $?, 1 }, 'the program to end');
	Child::forget($pid);
	return $status;
}

# Whether another session watches the node of SQL's lock
sub somebody_waits
{
	my ($own, $lock_node) = split /\|/, $admin->value('SELECT session_id, node FROM zk_session, zk_locks');
	my ($watchers) = $zk->four_letter('wchp') =~ m{^\S*\Q$lock_node\E\n((?:\t.*\n)+)}m or return 0;
	return scalar grep { $_ ne $own } $watchers =~ /(0x\w+)/g;
}

sub balance { return $admin->value('SELECT balance FROM account'); }

$page->run($node, until => '## Java');
is(balance(), 90, 'SQL has taken 10');

foreach my $language (sort keys %program)
{
	my $p = $program{$language};
	append_to_file("$dir/$p->{file}", $page->take($language)->{code});
	SKIP:
	{
		my $missing = -e $p->{needs} ? undef : $p->{package};
		if ($missing)
		{
			# what the page shows afterwards
			$admin->value('UPDATE account SET balance = balance - 10 WHERE id = 7');
			skip "$missing is not installed", 1;
		}

		my $before = balance();
		my $token = $admin->value(q{SELECT zk_lock('/accounts/7'); SELECT zk_lock_token('/accounts/7')}) =~ s/^t\n//r;
		my $pid = start($language);
		zk_until(sub { somebody_waits() }, "$language to watch SQL's node");
		is(balance(), $before, "$language: waits while SQL has the lock");
		$admin->value(q{SELECT zk_unlock('/accounts/7')});
		is(end($pid), 0, "$language: runs") or diag(slurp_file("$dir/$language.log"));
		is(balance(), $before - 10, "$language: takes 10");
		my $late = $admin->query("BEGIN; SELECT zk_fence('/accounts/7', $token)");
		is($late->{state}, '40001', "$language: nobody with an older token comes after it");
		$admin->value('ROLLBACK');

		# its own token is too small, too
		$admin->value(q{BEGIN; SELECT zk_fence('/accounts/7', 9000000000000000000); SAVEPOINT s});
		$admin->value('COMMIT');
		$before = balance();
		isnt(end(start($language)), 0, "$language: fails at the fence");
		like(slurp_file("$dir/$language.log"), qr/token/, "$language: - and says so");
		is(balance(), $before, "$language: - and has written nothing");
		$admin->value('DELETE FROM zk_fences');
		is_deeply([ $zk->children('/zklock/accounts/7') ], [], "$language: - and has given the lock back");
	}
}
$page->run($node);
$page->all_was_run;

$admin->quit;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($node);
done_testing();
