# What the server log tells of sessions and locks that were lost, of outages and of
# refused sessions: one line each, with the cause; and the hints of a connection
# that failed.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use IO::Socket::INET;
use POSIX ();
use Test::More;
use Time::HiRes qw(time);

use ZkProxy;
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '4s', log_error_verbosity => 'default');
my $proxy = ZkProxy->new($zk);
my $bare = zk_session($node);

# The lines of that backend since a place of the log, and their details
sub told
{
	my ($s, $from) = @_;
	my $pid = $s->pid;
	return grep { !/STATEMENT/ } slurp_file($node->logfile, $from) =~ /\[$pid\][^\n]*? (?:LOG|DETAIL):  ([^\n]*)/g;
}

sub told_only
{
	my ($s, $from, $name, @expected) = @_;
	# nothing is said again, whatever the backend does
	$s->query('SELECT state FROM zk_session') for 1 .. 3;
	$s->query(q{SELECT 1});
	my @lines = told($s, $from);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar @lines, scalar @expected, "$name: said once") or diag join "\n", @lines;
	like($lines[$_] // '', $expected[$_], "$name: $expected[$_]") for 0 .. $#expected;
	return;
}

sub log_end { return -s $node->logfile; }

subtest 'a lock whose node is deleted' => sub {
	my $s = zk_session($node);
	$s->value(q{SELECT zk_lock('/deleted')});
	my $from = log_end();
	$zk->with_client(sub { $_[0]->delete_contenders('/zklock/deleted') });
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	told_only($s, $from, 'a lock', qr{^the lock on "/deleted" was lost$}, qr/^Its node in ZooKeeper was deleted\.$/);
	$s->quit;
};

subtest 'a session that ZooKeeper ends' => sub {
	my $s = zk_session($node);
	$s->value(q{SELECT zk_lock('/ended')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	my $from = log_end();
	$zk->end_session($id, $s->pid);
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	told_only($s, $from, 'a session', qr/^ZooKeeper session $id was lost$/, qr/^ZooKeeper ended it/,
		qr{^the lock on "/ended" was lost$}, qr/^ZooKeeper ended the session that held it\.$/);
	$s->quit;
};

# The loss is a reason to cancel what tells it
subtest 'a session that ends while the backend looks at it' => sub {
	my $s = zk_session($node);
	foreach my $n (1 .. 10)
	{
		$s->value("BEGIN; SELECT zk_xact_lock('/looked/$n')");
		my $id = $s->value('SELECT session_id FROM zk_session');
		my $from = log_end();
		$s->send('DO $$BEGIN LOOP PERFORM FROM zk_locks; PERFORM FROM zk_session; END LOOP; END$$');
		$zk->end_session($id, $s->pid);
		is($s->wait->{state}, '40001', 'it is cancelled');
		$s->query('ROLLBACK');
		$s->query('SELECT state FROM zk_session');
		my @lines = told($s, $from);
		is(scalar(grep { $_ eq "ZooKeeper session $id was lost" } @lines), 1, 'the loss of the session is told once') or diag join "\n", @lines;
		cmp_ok(scalar(grep { /^the lock on/ } @lines), '<=', 1, 'and that of the lock at most once');
	}
	$s->quit;
};

subtest 'outages' => sub {
	my $s = zk_session_with($node, hosts => $proxy);
	$s->value(q{SELECT zk_lock('/outage')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	my $from = log_end();
	$proxy->drop;
	zk_until(sub { $s->value('SELECT reconnections FROM zk_session') >= 1 }, 'the session to be back');
	told_only($s, $from, 'a short one');

	$from = log_end();
	my $began = time;
	$proxy->cut_off;
	zk_until(sub { time - $began > 1.8 }, 'a third of the timeout');
	$proxy->pass;
	zk_until(sub { $s->value('SELECT state FROM zk_session') eq 'connected' }, 'the session to be back');
	told_only($s, $from, 'a longer one', qr/^connection of ZooKeeper session $id was lost for \d{4} ms, and is restored$/, qr/^The last fault of the connection was: .+\. After 4000 ms its locks would have been lost\.$/);
	is($s->value('SELECT state FROM zk_locks'), 'held', '- and the lock is held');

	$from = log_end();
	$proxy->cut_off;
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	$proxy->pass;
	zk_until(sub { $s->value('SELECT state FROM zk_session') =~ /none|^connected/ }, 'the session to be over, or back');
	told_only($s, $from, 'one that is too long', qr{^the lock on "/outage" was lost$}, qr/^Nothing was heard/,
		qr/^ZooKeeper session $id was lost$/, qr/^Nothing was heard from ZooKeeper for the whole session timeout of 4000 ms\.$/);
	$s->quit;
};

subtest 'a session that is no longer accepted' => sub {
	my $s = zk_session($node);
	$s->value(q{SELECT zk_lock('/withdrawn')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	my $from = log_end();
	$zk->stop;
	$zk->{config} = { 'enforce.auth.enabled' => 'true', 'enforce.auth.schemes' => 'digest' };
	$zk->_configure;
	$zk->start;
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	my @lines = grep { !/^connection of/ && !/would have been lost/ } told($s, $from);
	like($lines[0], qr/^ZooKeeper no longer accepts session $id$/, 'said');
	is(scalar(grep { /no longer accepts session/ } told($s, $from)), 1, '- once');
	$s->quit;
	$zk->stop;
	delete $zk->{config};
	$zk->_configure;
	$zk->start;
};

# What answers there greets its clients, as SSH does
sub other_program
{
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 5) or die $!;
	my $pid = fork // die "fork: $!";
	return ($listener->sockport, $pid) if $pid;
	while (my $client = $listener->accept)
	{
		$client->syswrite("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
		sysread $client, my $ignored, 1000;
	}
	POSIX::_exit(0);
}

subtest 'why there is no connection' => sub {
	my $hint = sub { return zk_session_with($node, hosts => $_[0], connect_timeout => '2s')->query(q{SELECT zk_lock('/a')})->{hint}; };
	like($hint->('no.such.host.invalid:2181'), qr/host names in zklock\.hosts/, 'a name that does not resolve');
	like($hint->('127.0.0.1:1'), qr/ZooKeeper is running/, 'a port where nobody listens');
	$proxy->blackhole;
	like($hint->($proxy->hosts), qr/firewall/, 'no answer');
	$proxy->pass;
	my ($port, $other) = other_program();
	like($hint->("127.0.0.1:$port"), qr/another program answers there/, 'something else');
	kill 'KILL', $other;    # PostgreSQL's library would stop the cluster at TERM
	waitpid $other, 0;
};

is_deeply([ told($bare, 0) ], [], 'a backend without a session says nothing');
$bare->quit;
$proxy->stop;
zk_no_crash($node);
done_testing();
