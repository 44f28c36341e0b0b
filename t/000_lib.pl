# The test library itself: ZooKeeper.pm, ZkClient.pm and ZkProxy.pm against a
# real server.  All other tests rely on what these report.

use strict;
use warnings;
use File::Temp;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Test::More;
use Time::HiRes qw(sleep time);

use Deadline;
use ZkClient;
use ZkProxy;
use ZooKeeper;

my $zk = ZooKeeper->new->start;

# how long code took, in seconds
sub took
{
	my ($code) = @_;
	my $start = time;
	$code->();
	return time - $start;
}

# the message of the error that code dies with
sub error
{
	my ($code) = @_;
	return eval { $code->(); 1 } ? '' : $@;
}

# ask by hand, without waiting for the answer
sub exists_of
{
	my ($c, $xid, $path, $watch) = @_;
	$c->_send(pack('l> l> N/a* C', $xid, $ZkClient::OP{exists}, $path // '/', $watch // 0));
	return;
}

# the xids that arrive: this many, and more until nothing does for 50 ms
sub arrives
{
	my ($c, $n) = @_;
	my @xid;
	while (my $frame = eval { $c->_frame(time + (@xid < $n ? $TIMEOUT : 0.05)) })
	{
		push @xid, unpack 'l>', $frame;
	}
	return "@xid";
}

subtest 'ZkClient and ZooKeeper' => sub {
	my $c = $zk->client;
	is_deeply([ $zk->sessions ], [ $c->session_id ], 'its session is there');

	is($c->create('/c', mode => 'container'), '/c', 'container');
	my ($node, $stat) = $c->create('/c/x-', mode => 'ephemeral_sequential', data => "d\xc3\xa4");
	is($node, '/c/x-0000000000', 'sequential');
	is($stat->{ephemeralOwner}, $c->{session}, 'ephemeral');
	is_deeply({ $zk->ephemerals }, { $c->session_id => [$node] }, 'ephemerals');
	is_deeply([ ($c->get($node))[ 0, 1 ], $c->exists($node) ], [ "d\xc3\xa4", $stat, $stat ], 'get, exists');
	is($c->set('/c', 'new')->{version}, 1, 'set');
	is_deeply([ $c->get_acl('/c') ], ZkClient::OPEN_ACL, 'get_acl');

	is_deeply([ $c->exists('/no'), $c->get('/no'), $c->children('/no') ], [undef], 'what is not there');
	ok(!$c->delete('/no'), '- and not deleted');
	like(error(sub { $c->create('/c') }), qr/NODEEXISTS/, 'errors are raised');
	is($c->{err}, -110, 'with their number');

	$c->exists($node, 1);
	is($zk->watch_count . $zk->ephemerals_count, '11', 'watch_count, ephemerals_count');
	ok($zk->delete($node), 'delete by another session');
	is(arrives($c, 1), '-1', 'watch');

	$c->create($_) for qw(/t /t/b /t/a /t/a/x);
	$c->create('/c/e', mode => 'ephemeral');
	is_deeply([ $zk->tree('/') ], [qw(/c /c/e /t /t/a /t/a/x /t/b)], 'tree');
	$c->close;
	is($zk->sessions, 0, 'close ends the session, and looking leaves none');
	is_deeply([ $zk->children('/c'), $zk->children('/t') ], [qw(a b)], 'its node is gone');
	like(error(sub { $c->ping }), qr/not connected/, 'and the client');

	$zk->suspend;
	my $took = took(sub { is($zk->four_letter('srvr', 0.3), undef, 'suspended: no answer') });
	in_time($took, 2, 'and none is waited for');
	$zk->resume;
	like($zk->four_letter('srvr'), qr/^Mode: standalone/m, 'resumed');

	$zk->kill9;
	ok(!$zk->running, 'kill9');
	like(error(sub { $zk->client }), qr/could not connect/, 'nobody listens');
	$zk->start;
	ok($zk->delete_tree('/t'), 'started again, with the same data');

	like(error(sub { until_true(sub { 0 }, 'never', 0.1) }), qr/not within 0.1 s: never/, 'until_true gives up');
};

subtest 'ZkProxy: looking on' => sub {
	my $proxy = ZkProxy->new($zk);
	my $c = ZkClient->new($proxy->hosts);
	is($proxy->connections, 1, 'connections');
	my ($connect) = grep { $_->[1] eq '<' } $proxy->log;
	is_deeply([ @$connect[ 2, 7 ] ], [ 'connect', $c->session_id ], 'the handshake is seen');

	$proxy->clear_log;
	my $node = $c->create('/p', mode => 'ephemeral', data => 'x');
	$c->exists('/', 0);
	$c->ping;
	$c->children('/p', 1);
	$zk->delete('/p');
	is(arrives($c, 1), '-1', 'events pass');
	$c->exists('/no');
	is_deeply(
		[ map { [ @$_[ 1, 2, 4, 5, 7 ] ] } grep { $_->[2] ne 'ping' } $proxy->log ],
		[   [ '>', 'create2', '/p', '', '' ],
			[ '<', 'create2', '/p', 0, '' ],
			[ '>', 'exists', '/', '', '' ],
			[ '<', 'exists', '/', 0, '' ],
			[ '>', 'getChildren2', '/p', '', '' ],
			[ '<', 'getChildren2', '/p', 0, '' ],
			[ '<', 'event', '/p', '', 'deleted' ],
			[ '>', 'exists', '/no', '', '' ],
			[ '<', 'exists', '/no', -101, '' ] ],
		'log');
	is($proxy->trips, 3, 'trips: neither ping nor heartbeat');
	is($proxy->count('exists'), 2, 'count');
	is($proxy->count([qw(exists create2)]), 3, 'count of several');
	is($proxy->count('*'), 4, 'count of all');
	is_deeply([ $proxy->requests ], [ 'create2 /p', 'getChildren2 /p', 'exists /no' ], 'requests');

	# three at once, by hand: this client would wait for each answer
	$proxy->clear_log;
	$proxy->delay_ms(500);
	exists_of($c, $_, "/f$_") for 101 .. 103;
	is(arrives($c, 3), '101 102 103', 'their answers');
	$proxy->delay_ms(0);
	is($proxy->trips, 1, 'three requests, one trip');

	$c->close;
	until_true(sub { $proxy->connections == 0 }, 'the connection to go');
	is($zk->sessions, 0, 'close passes');
	$proxy->stop;
	like(error(sub { ZkClient->new($proxy->hosts) }), qr/could not connect/, 'stop');
};

# (What is lost in these ways: what the call says, and whether the server has done it)
subtest 'ZkProxy: answers that do not arrive' => sub {
	my $proxy = ZkProxy->new($zk);
	foreach (
		[ swallow => qr/timeout/, 1 ],
		[ swallow_and_drop => qr/connection lost/, 1 ],
		[ drop_request => qr/connection lost/, '' ])
	{
		my ($way, $says, $done) = @$_;
		my $c = ZkClient->new($proxy->hosts, timeout => 0.5);
		$proxy->clear_log;
		$proxy->$way('create2');
		like(error(sub { $c->create("/$way") }), $says, $way);
		is($zk->delete("/$way"), $done, '- what the server did');
		is($proxy->swallowed, $done ? 1 : 0, '- swallowed');
		is(join('', map { $_->[1] } grep { $_->[2] eq 'create2' } $proxy->log), $done ? '>x' : '>', '- and logged');
		ok(ZkClient->new($proxy->hosts)->exists('/'), '- once');
	}

	# the connection stays usable: the next answer arrives
	my $c = ZkClient->new($proxy->hosts);
	$proxy->swallow('exists');
	exists_of($c, 1);
	exists_of($c, 2);
	is(arrives($c, 1), '2', 'the one behind it arrives');
	$proxy->swallow('create2', 2);
	$proxy->reset;
	ok($c->create('/r', mode => 'ephemeral'), 'reset');
	$c->close;
};

subtest 'ZkProxy: what waits' => sub {
	my $proxy = ZkProxy->new($zk);
	my $c = ZkClient->new($proxy->hosts);

	foreach my $way (qw(hold hold_request))
	{
		$proxy->clear_log;
		$proxy->$way('create');
		exists_of($c, 1);
		$c->_send(pack('l> l> N/a* N/a* N2 N/a* N/a* N', 2, $ZkClient::OP{create}, '/h', '', 1, 31, 'world', 'anyone', 0));
		exists_of($c, 3);
		$proxy->wait_for('exists', 2);
		$proxy->wait_held;
		is(arrives($c, 1), '1', "$way: the answer and all behind it");
		is(!!$zk->exists('/h'), $way eq 'hold', '- whether the server has it');
		$proxy->release;
		is(arrives($c, 2), '2 3', 'release');
		ok($zk->delete('/h'), '- the server has it');
	}

	foreach my $alone (0, 1)
	{
		$zk->create('/h') if !$alone;
		$proxy->hold_event(alone => $alone);
		exists_of($c, 6, '/h', 1);
		is(arrives($c, 1), '6', 'a watch');
		$alone ? $zk->create('/h') : $zk->delete('/h');
		$proxy->wait_held;
		exists_of($c, 7);
		is(arrives($c, $alone ? 1 : 0), $alone ? '7' : '', 'hold_event' . ($alone ? ', alone' : ' and all behind it'));
		$proxy->release;
		is(arrives($c, $alone ? 1 : 2), $alone ? '-1' : '-1 7', 'release');
	}
	$zk->delete('/h');

	$proxy->delay_ms(30);
	my $took = took(sub { $c->exists('/') });
	cmp_ok($took, '>', 0.06, 'delay_ms: each way');
	in_time($took, 0.5, '- and no more');
	$c->close;
};

subtest 'ZkProxy: the whole network' => sub {
	my $proxy = ZkProxy->new($zk);
	my $c = ZkClient->new($proxy->hosts);

	foreach my $way ('', 'up', 'down')
	{
		$proxy->blackhole($way);
		$proxy->clear_log;
		$c->_send(pack('l> l> N/a* N/a* N2 N/a* N/a* N', 2, $ZkClient::OP{create}, "/b$way", '', 1, 31, 'world', 'anyone', 0));
		$proxy->wait_for('create');
		until_true(sub { $zk->exists("/b$way") }, 'the node') if $way eq 'down';
		is(arrives($c, 0), '', "blackhole $way: nothing comes back");
		ok(!$zk->exists("/b$way"), '- and the server has not got it') if $way ne 'down';
		like(error(sub { ZkClient->new($proxy->hosts, timeout => 0.2) }), qr/timeout/, '- nor for a new one');
		$proxy->pass;
		is(arrives($c, 1), '2', '- until pass');
		$zk->delete("/b$way");
	}

	$proxy->refuse;
	like(error(sub { ZkClient->new($proxy->hosts) }), qr/refused/, 'refuse');
	ok($c->exists('/'), 'a connection that is there stays');
	$proxy->drop;
	like(error(sub { $c->exists('/') }), qr/connection lost|Broken pipe/, 'drop');
	$proxy->refuse(at_accept => 1);
	like(error(sub { ZkClient->new($proxy->hosts) }), qr/connection lost|reset/, 'refuse at accept');
	$proxy->pass;
	$zk->kill9;
	like(error(sub { ZkClient->new($proxy->hosts) }), qr/connection lost|reset/, 'the server is down');
	$zk->start;
	ok(ZkClient->new($proxy->hosts)->exists('/'), 'and back');
};

# However a test ends, its servers end too.
subtest 'nobody is left behind' => sub {
	# nor are files, except after SIGKILL
	my $dir = File::Temp->newdir(TMPDIR => 1);
	local $ENV{TMPDIR} = $dir->dirname;
	foreach my $signal (0, 'TERM', 'KILL')
	{
		my $pid = open my $out, '-|', $^X, '-I', "$FindBin::RealBin/lib", '-MZooKeeper', '-MZkProxy', '-e', '
			$| = 1;
			my $zk = ZooKeeper->new->start;
			my $proxy = ZkProxy->new($zk);
			print "$zk->{pid} $proxy->{pid}\n";
			sleep 60 if shift;
			exit 3', $signal;
		my @left = split ' ', <$out> // '';
		is(@left, 2, 'a server and a proxy');
		kill $signal, $pid if $signal;
		close $out;
		is($? >> 8, 3, 'the exit status is that of the test') unless $signal;
		until_true(sub { !(grep { kill 0, $_ } @left) }, 'the end of both');
		is(scalar(() = glob "$dir/*"), $signal eq 'KILL' ? 1 : 0, 'files after ' . ($signal || 'exit'));
	}
};

done_testing();
