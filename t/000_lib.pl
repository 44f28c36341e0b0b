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

subtest 'ZkClient' => sub {
	my $c = $zk->client;
	is_deeply([ $zk->sessions ], [ $c->session_id ], 'its session is there');

	is($c->create('/c', mode => 'container'), '/c', 'container');
	my ($node, $stat) = $c->create('/c/x-', mode => 'ephemeral_sequential', data => "d\xc3\xa4");
	is($node, '/c/x-0000000000', 'sequential');
	is($stat->{ephemeralOwner}, $c->{session}, 'ephemeral');
	is_deeply({ $zk->ephemerals }, { $c->session_id => [$node] }, 'ephemerals');
	is_deeply([ ($c->get($node))[ 0, 1 ] ], [ "d\xc3\xa4", $stat ], 'get');
	is_deeply($c->exists($node), $stat, 'exists');
	is($c->set('/c', 'new')->{version}, 1, 'set');
	is($c->get('/c'), 'new', 'get in scalar context');
	is_deeply([ $c->get_acl('/c') ], ZkClient::OPEN_ACL, 'get_acl');

	is($c->exists('/no'), undef, 'exists: no');
	is_deeply([ $c->get('/no') ], [], 'get: no');
	is_deeply([ $c->children('/no') ], [], 'children: no');
	ok(!$c->delete('/no'), 'delete: no');
	like(error(sub { $c->create('/c') }), qr/NODEEXISTS/, 'errors are raised');
	is($c->{err}, -110, 'with their number');
	is_deeply([ sort $c->children('/') ], [qw(c zookeeper)], 'and leave a working client');

	$c->exists($node, 1);
	is($zk->watch_count, 1, 'watch_count');
	is($zk->ephemerals_count, 1, 'ephemerals_count');
	ok($zk->delete($node), 'delete by another session');
	is_deeply($c->wait_event($TIMEOUT), [ 'deleted', $node ], 'watch');
	is($c->wait_event(0.05), undef, 'no other');

	$c->create('/c/e', mode => 'ephemeral');
	$c->close;
	is($zk->sessions, 0, 'close ends the session');
	is_deeply([ $zk->children('/c') ], [], 'with its nodes');
	like(error(sub { $c->ping }), qr/not connected/, 'and the client');
	like(error(sub { ZkClient->new('127.0.0.1:' . ZooKeeper::free_port()) }),
		qr/could not connect/, 'nobody there');
};

subtest 'ZooKeeper' => sub {
	$zk->create($_) for qw(/t /t/b /t/a /t/a/x);
	is_deeply([ $zk->children('/t') ], [qw(a b)], 'children are sorted');
	is_deeply([ $zk->tree('/t') ], [qw(/t/a /t/a/x /t/b)], 'tree');
	is($zk->sessions, 0, 'looking leaves no session');
	ok($zk->mntr_value('zk_packets_received') > 0, 'mntr_value');

	$zk->suspend;
	my $took = took(sub { is($zk->four_letter('srvr', 0.3), undef, 'suspended: no answer') });
	in_time($took, 2, 'and none is waited for');
	$zk->resume;
	like($zk->four_letter('srvr'), qr/^Mode: standalone/m, 'resumed');

	my $port = $zk->port;
	$zk->kill9;
	ok(!$zk->running, 'kill9');
	is($zk->four_letter('srvr', 1), undef, 'nobody listens');
	$zk->start;
	is($zk->port, $port, 'the same port again');
	ok($zk->exists('/t/a/x'), 'and the same data');
	$zk->restart;
	ok($zk->delete_tree('/t'), 'restart, delete_tree');

	like(error(sub { $zk->wait_until(sub { 0 }, 'never', 0.1) }), qr/not within 0.1 s: never/,
		'wait_until gives up');
};

subtest 'ZkProxy: looking on' => sub {
	my $proxy = ZkProxy->new($zk);
	my $c = ZkClient->new($proxy->hosts);
	is($proxy->connections, 1, 'connections');
	like($zk->four_letter('mntr'), qr/zk_version/, 'the server itself');
	my ($connect) = grep { $_->[1] eq '<' } $proxy->log;
	is_deeply([ @$connect[ 2, 7 ] ], [ 'connect', $c->session_id ], 'the handshake is seen');

	$proxy->clear_log;
	my $node = $c->create('/p', mode => 'ephemeral', data => 'x');
	$c->exists('/', 0);
	$c->ping;
	$c->children('/p', 1);
	$zk->delete('/p');
	is_deeply($c->wait_event($TIMEOUT), [ 'deleted', '/p' ], 'events pass');
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
	$c->_send(pack('l> l> N/a* C', $_, $ZkClient::OP{exists}, "/f$_", 0)) for 101 .. 103;
	$c->_frame(time + $TIMEOUT) for 1 .. 3;
	$proxy->delay_ms(0);
	is($proxy->trips, 1, 'three requests, one trip');

	# the parts of a multi
	$proxy->clear_log;
	my $open = pack('N N N/a* N/a*', 1, 31, 'world', 'anyone');
	my $part = sub { pack('l> C l>', $ZkClient::OP{ $_[0] }, 0, -1) . pack('N/a*', $_[1]) };
	$c->_request(++$c->{xid}, 'multi', '',
		$part->('check', '/') . pack('l>', -1)
		  . $part->('create', '/m') . pack('N/a*', 'data') . $open . pack('N', 0)
		  . $part->('setData', '/m') . pack('N/a* l>', 'more', -1)
		  . $part->('create', '/m/e') . pack('l>', -1) . $open . pack('N', 1)
		  . $part->('delete', '/m/e') . pack('l>', -1)
		  . pack('l> C l>', -1, 1, -1));
	is($c->{err}, 0, 'multi');
	is_deeply([ $proxy->requests ],
		['multi [check /,create /m,setData /m,create /m/e,delete /m/e]'], 'its parts');

	my $raw = IO::Socket::INET->new(PeerAddr => $proxy->hosts);
	syswrite $raw, 'ruok';
	is(<$raw>, 'imok', 'four-letter words pass');

	$c->close;
	$proxy->_wait(sub { $proxy->connections == 0 }, undef, 'the connection to go');
	is($zk->sessions, 0, 'close passes');
	$proxy->stop;
	like(error(sub { ZkClient->new($proxy->hosts) }), qr/could not connect/, 'stop');
};

subtest 'ZkProxy: answers that do not arrive' => sub {
	my $proxy = ZkProxy->new($zk);
	my $c = ZkClient->new($proxy->hosts);

	$proxy->clear_log;
	$proxy->swallow('create2');
	$c->{timeout} = 0.5;
	like(error(sub { $c->create('/s', mode => 'ephemeral') }), qr/timeout/, 'swallow');
	ok($zk->exists('/s'), 'the server did it');
	is($proxy->swallowed, 1, 'swallowed');
	is_deeply([ map { $_->[1] } grep { $_->[2] eq 'create2' } $proxy->log ], [ '>', 'x' ],
		'and the answer was thrown away');

	# the connection stays usable: the next answer arrives
	$proxy->swallow('delete');
	$c = ZkClient->new($proxy->hosts);
	$c->_send(pack('l> l> N/a* l>', 1, $ZkClient::OP{delete}, '/s', -1));
	$c->_send(pack('l> l> N/a* C', 2, $ZkClient::OP{exists}, '/s', 0));
	is_deeply([ unpack('l> q> l>', $c->_frame(time + $TIMEOUT)) ]->[0], 2, 'the one behind it arrives');

	$c = ZkClient->new($proxy->hosts);
	$proxy->swallow_and_drop('create2');
	my $took = took(sub {
			like(error(sub { $c->create('/sd') }), qr/connection lost/, 'swallow_and_drop');
	});
	in_time($took, 1, 'at once');
	ok($zk->delete('/sd'), 'the server did it');

	$c = ZkClient->new($proxy->hosts);
	$proxy->drop_request('create2');
	like(error(sub { $c->create('/dr') }), qr/connection lost/, 'drop_request');
	ok(!$zk->exists('/dr'), 'the server never saw it');

	$c = ZkClient->new($proxy->hosts);
	ok($c->exists('/'), 'rules are used up');
	$proxy->swallow('create2', 2);
	$proxy->reset;
	ok($c->create('/r', mode => 'ephemeral'), 'reset');
	$c->close;
};

subtest 'ZkProxy: what waits' => sub {
	my $proxy = ZkProxy->new($zk);
	my $c = ZkClient->new($proxy->hosts);
	my $send = sub {
		my ($xid, $op, $path, $more) = @_;
		$c->_send(pack('l> l> N/a*', $xid, $ZkClient::OP{$op}, $path) . $more);
	};
	# the xids that arrive: this many, and more until nothing does for 50 ms
	my $arrives = sub {
		my ($n) = @_;
		my @xid;
		while (my $frame = eval { $c->_frame(time + (@xid < $n ? $TIMEOUT : 0.05)) })
		{
			push @xid, unpack 'l>', $frame;
		}
		return "@xid";
	};

	$proxy->hold('exists');
	$send->(1, 'getData', '/', "\0");
	$send->(2, 'exists', '/', "\0");
	$send->(3, 'getData', '/', "\0");
	$proxy->wait_for('getData', 2);
	$proxy->wait_held;
	is($arrives->(1), '1', 'hold: the answer and all behind it');
	$proxy->release;
	is($arrives->(2), '2 3', 'release');

	my $create = pack('N/a*', '') . pack('N N N/a* N/a*', 1, 31, 'world', 'anyone') . pack('N', 0);
	$proxy->hold_request('create');
	$send->(4, 'create', '/h', $create);
	$send->(5, 'getData', '/', "\0");
	$proxy->wait_held;
	is($arrives->(0), '', 'hold_request: nothing is answered');
	ok(!$zk->exists('/h'), 'the server does not have it');
	$proxy->release;
	is($arrives->(2), '4 5', 'release');
	ok($zk->exists('/h'), 'the server has it');

	foreach my $alone (0, 1)
	{
		$proxy->hold_event(alone => $alone);
		$send->(6, 'exists', '/h', "\1");
		is($arrives->(1), '6', 'a watch');
		$alone ? $zk->create('/h') : $zk->delete('/h');
		$proxy->wait_held;
		$send->(7, 'getData', '/', "\0");
		is($arrives->($alone ? 1 : 0), $alone ? '7' : '', 'hold_event' . ($alone ? ', alone' : ' and all behind it'));
		$proxy->release;
		is($arrives->($alone ? 1 : 2), $alone ? '-1' : '-1 7', 'release');
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

	$proxy->blackhole;
	is($proxy->connections, 1, 'blackhole: the connection stays');
	$c->_send(pack('l> l> N/a* C', 1, $ZkClient::OP{exists}, '/', 0));
	$proxy->wait_for('exists');
	like(error(sub { $c->_frame(time + 0.2) }), qr/timeout/, 'nothing comes back');
	like(error(sub { ZkClient->new($proxy->hosts, timeout => 0.2) }), qr/timeout/, 'nor for a new one');
	$proxy->pass;
	is(unpack('l>', $c->_frame(time + $TIMEOUT)), 1, 'pass: now it does');
	foreach my $way (qw(up down))
	{
		$proxy->blackhole($way);
		$proxy->clear_log;
		$c->_send(pack('l> l> N/a* N/a* N2 N/a* N/a* N', 2, $ZkClient::OP{create}, "/$way", '', 1, 31, 'world', 'anyone', 0));
		$proxy->wait_for('create');
		$zk->wait_until(sub { $zk->exists('/down') }, 'the node') if $way eq 'down';
		like(error(sub { $c->_frame(time + 0.2) }), qr/timeout/, "blackhole $way: nothing comes back");
		ok(!$zk->exists('/up'), '- and the server has not got it') if $way eq 'up';
		$proxy->pass;
		is(unpack('l>', $c->_frame(time + $TIMEOUT)), 2, '- until pass');
		$zk->delete("/$way");
	}

	$proxy->refuse;
	like(error(sub { ZkClient->new($proxy->hosts) }), qr/refused/, 'refuse');
	ok($c->exists('/'), 'a connection that is there stays');
	$proxy->drop;
	like(error(sub { $c->exists('/') }), qr/connection lost|Broken pipe/, 'drop');
	$proxy->refuse(at_accept => 1);
	like(error(sub { ZkClient->new($proxy->hosts) }), qr/connection lost|reset/, 'refuse at accept');
	$proxy->pass;
	ok(ZkClient->new($proxy->hosts)->exists('/'), 'pass');

	$zk->kill9;
	like(error(sub { ZkClient->new($proxy->hosts) }), qr/connection lost|reset/, 'the server is down');
	$zk->start;
	ok(ZkClient->new($proxy->hosts)->exists('/'), 'and back');
};

subtest 'ensemble' => sub {
	$zk->stop;
	my $all = ZooKeeper->ensemble(3, links => 1, sync_limit => 120);
	my @followers = $all->followers;
	is(@followers, 2, 'two follow');
	my $leader = $all->leader;
	$followers[0]->create('/e');
	ok($_->exists('/e'), 'each knows what one was told') for $all->nodes;
	like($all->hosts, qr/^(127\.0\.0\.1:\d+,){2}127\.0\.0\.1:\d+$/, 'hosts');
	is_deeply([ $all->tree ], ['/e'], 'anything else is asked of the leader');

	$leader->kill9;
	isnt($all->leader->port, $leader->port, 'a new leader');
	$all->start;
	$zk->wait_until(sub { $all->followers == 2 }, 'two followers again');

	# A follower that is cut from its leader keeps telling its client that all is
	# well, while the leader ends the session.
	my ($follower, $other) = $all->followers;
	$leader = $all->leader;
	my $c = $follower->client(session_timeout => 6000);
	my $watching = $leader->client;
	my $node = $c->create('/cut', mode => 'ephemeral');
	ok($other->exists('/cut'), 'others see what was made at a follower');

	$all->cut($follower, $leader);
	# like the client library: a heartbeat now and then
	$zk->wait_until(sub { $c->ping; sleep 0.1; !$watching->exists('/cut') }, 'the leader to end the session');
	$c->ping;
	ok($c->exists('/cut'), 'its own server still has the node, and the session');
	ok(!$other->exists('/cut'), 'others do not');
	like($follower->four_letter('srvr'), qr/^Mode: follower/m, 'and takes itself for a follower');

	$all->mend;
	$zk->wait_until(sub { !$follower->exists('/cut') }, 'the follower to hear of it');
	like(error(sub { $c->ping; $c->ping; sleep 0.2; $c->create('/late') }), qr/SESSIONEXPIRED|connection lost|not connected|pipe|reset/i,
		'the session is over for its client, too');
	$watching->close;

	# another follower is not affected, and a cut link can be cut again
	$all->cut(($all->followers)[0]);
	$all->mend;
	$zk->wait_until(sub { $all->followers == 2 }, 'two followers again');
	$leader = $all->leader;
	($follower) = $all->followers;
	$c = $follower->client;
	$all->cut_one_way($follower, $leader);
	$leader->create('/heard');
	ok($zk->wait_until(sub { $c->exists('/heard') }, 'the follower to hear of it'), 'a follower that cannot be heard still hears');
	$all->mend;
	$all->cut_one_way($leader, $follower);
	$leader->create('/silent');
	ok(!$c->exists('/silent'), 'one that hears nothing does not know');
	$all->mend;
	ok($zk->wait_until(sub { $c->exists('/silent') }, 'the follower to hear of it'), 'and then does');
	$all->stop;
	ok(!(grep { $_->running } $all->nodes), 'stop');
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
		$zk->wait_until(sub { !(grep { kill 0, $_ } @left) }, 'the end of both');
		is(scalar(() = glob "$dir/*"), $signal eq 'KILL' ? 1 : 0, 'files after ' . ($signal || 'exit'));
	}
};

done_testing();
