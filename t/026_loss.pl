# Locks that are lost without their holder being told: a backend that was
# stopped, a follower cut from its leader, a leader without followers, an
# ensemble that was down.  A transaction that relied on such a lock does not
# commit, the next holder's does, and all sessions recover without help.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Child;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1;

# A leader without followers, and a follower cut from its leader, stay what they are
# for a minute.
my $zk = ZooKeeper->ensemble(3, links => 1, sync_limit => 120);
# A statement that looks at a lost lock is not to be canceled: that is t/034's
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '6s', 'zklock.cancel_on_loss' => 'off');
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (path text, who text)');

my $leader = $zk->leader;
my ($follower) = $zk->followers;

# The same with all servers, but connected to this one.  A session tries them in
# a random order.
sub connected_to
{
	my ($server, %setting) = @_;
	while (1)
	{
		my $session = zk_session_with($node, hosts => $zk, %setting);
		$session->value(q{SELECT zk_lock('/first/' || pg_backend_pid()), zk_unlock_all()});
		return $session if $session->value('SELECT server FROM zk_session') eq $server->hosts;
		$session->quit;
	}
}

sub moves_from
{
	my ($server, $session) = @_;
	my $at = q{SELECT server FROM zk_session WHERE state = 'connected'};
	return zk_until(sub { my $now = $session->value($at); $now && $now ne $server->hosts }, 'the session to move to another server');
}

sub begin
{
	my ($session, $path, $scope, $who) = @_;
	my $insert = "INSERT INTO t VALUES ('$path', '$who')";
	$session->value($scope eq 'session'
		? "SELECT zk_lock('$path'); BEGIN; $insert"
		: "BEGIN; $insert; SELECT zk_xact_lock('$path')");
	return;
}

# A session that waits for that lock, uses it when it is granted, and commits.
sub next_holder
{
	my ($servers, $path) = @_;
	my $session = zk_session_with($node, hosts => $servers, session_timeout => '20s');
	$session->send("BEGIN; SELECT zk_xact_lock('$path'); INSERT INTO t VALUES ('$path', 'next'); COMMIT");
	zk_wait_queued($zk, $session);
	return $session;
}

sub who_wrote
{
	my ($path) = @_;
	return $admin->value("SELECT string_agg(who, ', ' ORDER BY who) FROM t WHERE path = '$path'");
}

# ---------------------------------------------------------- a stopped backend

subtest 'the backend of the holder is stopped for longer than its session lives' => sub {
	my (%holder, %next);
	foreach my $guard (qw(off on strict))
	{
		foreach my $scope (qw(transaction session))
		{
			my $path = "/stopped/$guard/$scope";
			$holder{$path} = zk_session_with($node, hosts => $zk, commit_guard => $guard);
			begin($holder{$path}, $path, $scope, 'holder');
			$next{$path} = next_holder($zk, $path);
		}
	}
	my @paths = sort keys %holder;
	my @pids = map { $_->pid } values %holder;
	Child::suspend(@pids);
	$next{$_}->wait for @paths;
	is(who_wrote($_), 'next', "$_: the next holder has it, and commits") for @paths;

	# half of them commit the moment they wake up, half of them later
	$holder{$_}->send('COMMIT') for grep { /transaction/ } @paths;
	kill 'CONT', @pids;
	foreach my $path (@paths)
	{
		my $s = $holder{$path};
		my $result = $path =~ /transaction/ ? $s->wait : $s->query('COMMIT');
		if ($path =~ /off/)
		{
			# the reason for the guard
			is($result->{state}, '', "$path: without the guard its COMMIT succeeds");
			is(who_wrote($path), 'holder, next', "$path: the rows of both are there");
		}
		else
		{
			zk_is_lost($result, $path, "$path: its COMMIT");
			is(who_wrote($path), 'next', "$path: only the rows of the next holder are there");
		}
		if ($path =~ /session/)
		{
			$result = $s->query("SELECT zk_unlock('$path')");
			is("$result->{out} @{ $result->{warnings} }",
				qq{f the lock on "$path" had been lost}, "$path: zk_unlock warns, and is false");
		}
		zk_works($s, "$path: works");
		$_->quit for $s, $next{$path};
	}
};

# ------------------------------------------------- a leader without followers

subtest 'a leader without followers' => sub {
	my %alone;
	foreach my $name ('on', 'on session', 'strict', 'off', 'cancel')
	{
		my ($guard, $scope) = $name =~ /^(off|on|strict)(?: (session))?/;
		$alone{$name} = zk_session_with($node, hosts => $leader,
			session_timeout => '24s',
			operation_timeout => '1min',
			commit_guard => $guard // 'on');
		begin($alone{$name}, '/alone/' . ($name =~ tr{ }{/}r), $scope // 'transaction', 'holder');
		$alone{$name}->value(q{SET zklock.operation_timeout = '1s'}) if $name ne 'cancel';    # for its COMMIT
	}
	my @names = sort keys %alone;
	my $reader = $leader->client;
	my @followers = $zk->followers;
	$_->suspend for @followers;
	my $since = time;
	zk_until(sub { time - $since > 8.1 }, 'more than a third of 24 s without a quorum');

	$alone{$_}->send('COMMIT') for @names;

	# The trap: such a leader still answers reads.
	my $asked = time;
	$reader->sync('/');
	ok($reader->exists('/zklock/alone/strict'), 'the leader answers a sync, and a read');
	in_time(time - $asked, $SLACK, 'at once');
	foreach my $name (@names)
	{
		my $path = '/alone/' . ($name =~ tr{ }{/}r);
		if ($name eq 'cancel')
		{
			zk_wait_waiting($admin, $alone{$name});
			my $began = time;
			$admin->value('SELECT pg_cancel_backend(' . $alone{$name}->pid . ')');
			is($alone{$name}->wait->{state}, '57014', "$name: 57014");
			in_time(time - $began, $SLACK, "$name: at once");
			is(who_wrote($path), '', "$name: its rows are not there");
		}
		elsif ($name eq 'off')
		{
			is($alone{$name}->wait->{state}, '', "$name: commits");
			is(who_wrote($path), 'holder', "$name: its rows are there");
		}
		else
		{
			my $result = $alone{$name}->wait;
			zk_is_lost($result, $path, $name);
			cmp_ok($result->{seconds}, '>', 0.9, "$name: not before operation_timeout");
			in_time($result->{seconds}, 1 + $SLACK, "$name: nor later");
			is(who_wrote($path), '', "$name: its rows are not there");
		}
	}
	$_->resume for @followers;
	$reader->close;
	$_->value('SET zklock.operation_timeout = 20000') for values %alone;
	zk_works($alone{$_}, "$_: works when they are back") for @names;
	is($alone{'on session'}->value('SELECT state FROM zk_locks'), 'held', 'on session: and has its lock, which was never lost');
	$_->quit for values %alone;
};

# It answers what heartbeats ask, too.
subtest 'a leader without followers, and an event of before' => sub {
	my @followers = $zk->followers;
	my %setting = (hosts => $leader, session_timeout => '20s');
	my $proxied = sub {
		my $proxy = ZkProxy->new($leader);
		return (zk_session_with($node, %setting, hosts => $proxy, @_), $proxy);
	};
	my $holder = zk_session_with($node, %setting);
	my $idle = zk_session_with($node, %setting);
	$idle->value(q{SELECT zk_lock('/idle'); SET zklock.operation_timeout = '1s'});
	my %call = (
		'by an event' => q{SELECT zk_lock_shared('/alone/event')},
		'by a list' => q{SELECT zk_semaphore_acquire('/alone/list', 1)});
	my ($back, $way_back) = $proxied->();
	$back->value(q{BEGIN; SELECT zk_xact_lock('/back'); SET LOCAL zklock.operation_timeout = '1s'});
	my %waiter;
	$holder->value(q{SELECT zk_lock('/alone/event'), zk_semaphore_acquire('/alone/list', 1)});
	foreach my $how (sort keys %call)
	{
		# the guard would ask, too
		my ($s, $proxy) = $proxied->(commit_guard => 'off');
		$s->send($call{$how});
		zk_wait_queued($zk, $s);
		$waiter{$how} = { s => $s, proxy => $proxy };
	}
	my $since = time;
	zk_until(sub { time - $since > 7 }, 'more than a third of 20 s');
	$_->{proxy}->hold_event for values %waiter;
	$holder->value('SELECT zk_unlock_all()');
	$_->{proxy}->wait_held for values %waiter;
	my $reader = $leader->client;
	$_->suspend for @followers;
	$reader->sync('/');
	ok($reader->exists('/zklock/alone'), 'the leader answers a sync, and a read');

	# before any transaction, behind which it would answer nothing
	$way_back->clear_log;
	$way_back->drop;
	zk_until(sub { grep { $_->[1] eq '<' && $_->[2] eq 'getData' } $way_back->log }, 'a session to be back, and its watch');
	is($back->query('COMMIT')->{state}, '40001', 'nor does it let a COMMIT pass that it has taken up the session again');
	foreach my $how (sort keys %waiter)
	{
		my $proxy = $waiter{$how}{proxy};
		my $asked = $proxy->count('multi');
		$proxy->release;
		zk_until(sub { $waiter{$how}{s}->is_done || $proxy->count('multi') > $asked }, 'it to ask');
	}
	my $result = $idle->query(q{SELECT zk_lock_held('/idle')});
	is($result->{state}, '58030', 'zk_lock_held does not call held what no quorum confirms');
	cmp_ok($result->{seconds}, '>', 0.9, '- after operation_timeout');
	in_time($result->{seconds}, 2, '- and not later');
	is($idle->query(q{SET statement_timeout = '200ms'; SELECT zk_lock_held('/idle')})->{state}, '57014', '- and can be canceled');
	$idle->value('RESET statement_timeout');

	# zk_locks shows what is known, and asks nobody; heartbeats are requests, too
	in_time($idle->query('SELECT * FROM zk_locks')->{seconds}, 0.05, 'zk_locks answers at once');
	my $counts = 'SELECT requests FROM zk_session';
	zk_until(sub { $idle->value("$counts; SELECT count(*) FROM zk_locks; $counts") =~ /^(\d+)\n1\n\1$/ }, 'zk_locks to be no request');
	$since = time;
	zk_until(sub { time - $since > 1 }, 'some time after that');
	is($waiter{$_}{s}->is_done, 0, "$_: it is not granted") for sort keys %waiter;
	$_->resume for @followers;
	is($waiter{$_}{s}->wait->{out}, 't', "$_: when the followers are back, it is") for sort keys %waiter;
	is($idle->value(q{SELECT zk_lock_held('/idle')}), 't', 'and zk_lock_held says so');
	zk_wait_hold($idle, 'held');
	is($idle->value('SELECT losses FROM zk_session'), 0, '- and nothing was lost');
	$reader->close;
	$_->quit for $holder, $idle, $back, map { $_->{s} } values %waiter;
	$_->stop for $way_back, map { $_->{proxy} } values %waiter;
};

# It goes on answering reads, and takes sessions up again; but a quorum may have given
# the lock to somebody else by now.
subtest 'a leader without followers, and a running statement' => sub {
	my @followers = $zk->followers;
	my (%session, %path);
	foreach my $when (qw(lost doubt))
	{
		$session{$when} = zk_session_with($node, hosts => $leader, session_timeout => '12s', cancel_on_loss => $when);
		$path{$when} = "/alone/runs/$when";
		$session{$when}->value("BEGIN; SELECT zk_xact_lock('$path{$when}')");
		$session{$when}->send('SELECT pg_sleep(600)');
		zk_until(sub { $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $session{$when}->pid) eq 'PgSleep' }, 'it to run');
	}
	my $reader = $leader->client;
	$_->suspend for @followers;
	my $began = time;
	my $result = $session{doubt}->wait;
	in_time(time - $began, 12 + $SLACK, 'doubt: within the session timeout and a second');
	# its question to the quorum keeps all answers back, and a session without answers is over
	like($result->{message}, qr/^canceling statement due to (?:possible )?loss of lock on "\Q$path{doubt}\E"$/, 'doubt: the reason');
	ok($reader->exists("/zklock$path{doubt}"), 'the leader still answers');
	zk_until(sub { time - $began > 12 + 2.5 }, 'some time after that');    # a cancel is repeated each second
	is($session{lost}->is_done, 0, 'lost: still runs');
	$_->resume for @followers;
	zk_until(sub { $_->four_letter('srvr') =~ /^Mode/m }, 'the followers') for @followers;
	is($session{lost}->cancel($admin)->{state}, '57014', 'lost: and when they are back');
	$reader->close;
	$_->quit for values %session;
};

# ------------------------------------- a follower that is cut from its leader

# Such a follower goes on answering its clients' reads for up to syncLimit (60 s
# here), while the leader ends their sessions (6 s).  A client that can moves to
# another server before that: "moves".
subtest 'a follower is cut from its leader, with the holders connected to it' => sub {
	my (%holder, %next);
	foreach my $name ('off', 'on', 'on session', 'strict', 'strict session', 'on moves', 'strict moves')
	{
		my ($guard, $what) = split / /, $name;
		my $path = '/cut/' . ($name =~ tr{ }{/}r);
		my %setting = (commit_guard => $guard, operation_timeout => '20s', $name =~ /moves/ ? (session_timeout => '15s') : ());
		$holder{$name} = $name =~ /moves/ ? connected_to($follower, %setting) : zk_session_with($node, hosts => $follower, %setting);
		begin($holder{$name}, $path, $what // '', 'holder');
		$holder{$name}->value(q{SET zklock.operation_timeout = '1s'}) if $name !~ /moves/;    # for its COMMIT
		$next{$name} = next_holder($leader, $path);
	}
	my @names = sort grep { !/moves/ } keys %holder;
	my @moves = sort grep { /moves/ } keys %holder;

	# who waits for a single node has none by which it would notice that
	my %single = (node_style => 'single', operation_timeout => '20s');
	my $at_work = zk_session_with($node, %single, hosts => $leader, session_timeout => '20s');
	my $waiter = connected_to($follower, %single, session_timeout => '15s');
	$at_work->value(q{SELECT zk_lock('/cut/single')});
	$waiter->send(q{SELECT zk_lock('/cut/single')});
	zk_until(sub { $follower->four_letter('wchp') =~ m{^/zklock/cut/single$}m }, 'the waiter to watch the node');

	my $idle = connected_to($follower, session_timeout => '15s');
	my $session = $idle->value('SELECT session_id FROM zk_session');

	my $began = time;
	$zk->cut($follower);
	foreach my $name (@names)
	{
		my $path = '/cut/' . ($name =~ tr{ }{/}r);
		is($next{$name}->wait->{state}, '', "$name: the next holder has the lock, and commits");
		is(who_wrote($path), 'next', "$name: its row is there");
	}
	note sprintf 'all others have their locks after %.1f s', time - $began;
	foreach my $name (@names)
	{
		my $told = sub { $holder{$name}->value('SELECT state, zk_lock_token(path) FROM zk_locks') };
		isnt(($told->() =~ /^(\w+)/)[0], 'held', "$name: the holder is not told that it holds the lock");
		# its own clock may reach that moment a little after the leader's
		is(zk_until(sub { $told->() =~ /^(lost\|.*)/ && $1 }, 'lost'), 'lost|', "$name: then that it has lost it");
	}
	foreach my $name (@moves)
	{
		moves_from($follower, $holder{$name});
		ok(!$next{$name}->is_done, "$name: moved to another server, and has lost nothing");
		zk_wait_hold($holder{$name}, 'held');
		is($holder{$name}->query('COMMIT')->{state}, '', "$name: and commits");
		is($next{$name}->wait->{state}, '', "$name: then comes the next one");
	}
	$at_work->value(q{SELECT zk_unlock('/cut/single')});
	is($waiter->wait->{out}, 't', 'who waited for a single node has it');
	is($waiter->value('SELECT losses FROM zk_session'), 0, '- by the session that it had: it moved in time');
	moves_from($follower, $idle);
	is($idle->value(q{SELECT zk_try_lock('/cut/idle')}), 't', 'who has no lock gets one');
	is($idle->value('SELECT session_id FROM zk_session'), $session, '- in the session that it had: it moved in time, too');

	$holder{$_}->send('COMMIT') for @names;
	foreach my $name (@names)
	{
		my $path = '/cut/' . ($name =~ tr{ }{/}r);
		my $result = $holder{$name}->wait;
		if ($name eq 'off')
		{
			is($result->{state}, '', "$name: without the guard its COMMIT succeeds");
			next;
		}
		zk_is_lost($result, $path, $name);
		is(who_wrote($path), 'next', "$name: only the row of the next holder is there");
		in_time($result->{seconds}, 1 + $SLACK, "$name: within operation_timeout");
		note sprintf '%s: COMMIT failed after %.1f s', $name, $result->{seconds};
	}
	zk_works($holder{$_}, "$_: works, while the follower is still cut off") for @moves;
	$zk->mend($follower);
	$holder{$_}->value(
		q{SET zklock.operation_timeout = '20s'; SET zklock.connect_timeout = '20s'; SELECT count(zk_unlock_all())})
	  for @names;
	zk_works($holder{$_}, "$_: works when it is back") for @names;
	$_->quit for values %holder, values %next, $at_work, $waiter, $idle;
};

# ------------------------------------------------------- the whole ensemble

subtest 'the whole ensemble is down for longer than a session lives' => sub {
	# Servers that are back have a third of this for their first answer, or the session is
	# given up; on a busy machine they accept connections seconds before that.
	my $proxy = ZkProxy->new($leader->hosts);
	my %session = map { $_ => zk_session_with($node, hosts => $_ eq 'relock' ? $proxy : $zk, session_timeout => '20s', operation_timeout => '2min', connect_timeout => '30s') }
	  qw(relock unlock xact writer reader again patient);
	# its session outlasts that: it must be told about the connection, not about
	# a loss
	my $impatient = zk_session_with($node, hosts => $zk, operation_timeout => '2s', session_timeout => '60s');

	$session{$_}->value("SELECT zk_lock('/down/$_')") for qw(relock unlock writer reader again);
	begin($session{writer}, '/down/writer', 'session', 'holder');
	begin($session{xact}, '/down/xact', 'transaction', 'holder');
	my %id = map { $_ => $session{$_}->value('SELECT session_id FROM zk_session') } qw(relock unlock writer reader again);
	$session{patient}->send("SELECT zk_lock('/down/unlock')");
	$impatient->send("SELECT zk_lock('/down/unlock')");
	zk_wait_queued($zk, $session{patient}, $impatient);

	# a server that accepts it and is gone before it answers is not a silent one
	$proxy->hold_request([qw(setWatches setWatches2 sync getData exists getChildren create2 delete multi)], 1_000_000);
	$proxy->drop;
	zk_until(sub { $session{relock}->value('SELECT reconnections FROM zk_session') > 0 }, 'a handshake');

	my $began = time;
	$_->kill9 for $zk->nodes;
	$proxy->reset;
	my $new = zk_session_with($node, hosts => $zk, connect_timeout => '500ms');
	my $result = $new->query(q{SELECT zk_lock('/down/new')});
	is($result->{state}, '58000', 'a new session is refused');
	in_time($result->{seconds}, 0.5 + $SLACK, 'within connect_timeout');
	$result = $impatient->wait;
	is($result->{state}, '58030', 'who waits gets an error when operation_timeout is over');
	zk_wait_hold($session{unlock}, 'lost');
	my $took = time - $began;
	note sprintf 'lost after %.1f s', $took;
	in_time($took, 20 + $SLACK, 'a holder knows by its own clock that its lock is lost');
	ok(!$session{patient}->is_done, 'who has more time goes on waiting');
	zk_is_lost($session{xact}->query('COMMIT'), '/down/xact', 'a COMMIT meanwhile');

	$began = time;
	$zk->start;
	note sprintf 'started again in %.1f s', time - $began;

	# Their sessions live on: ZooKeeper has restarted their timeouts.  That they
	# did not end shows that what is gone was deleted and did not have to
	# expire.
	zk_until(sub { !$zk->children('/zklock/down/reader') }, 'what nobody gives back to be deleted');
	foreach my $name (sort keys %id)
	{
		my $now = zk_until(sub { $session{$name}->value('SELECT session_id FROM zk_session') }, "$name: connected");
		is($now, $id{$name}, "$name: the session goes on");
	}
	is($session{patient}->wait->{out}, 't', 'who waited has the lock');
	$session{patient}->value(q{SELECT zk_unlock('/down/unlock')});
	$result = $session{relock}->query(q{SELECT zk_lock('/down/relock')});
	is($result->{state}, '55000', 'the next use, if it is the same lock: 55000');
	like($result->{message}, qr{/down/relock}, 'names the path');
	like($result->{detail}, qr/^Nothing was heard from ZooKeeper/, 'says what is known');
	$result = $session{unlock}->query(q{SELECT zk_unlock('/down/unlock')});
	is("$result->{out} @{ $result->{warnings} }",
		'f the lock on "/down/unlock" had been lost', 'if it is zk_unlock: a warning, and false');
	is($session{reader}->value(q{SELECT state, token, zk_lock_token(path) FROM zk_locks}), 'lost||', 'if it is zk_locks: lost');
	zk_is_lost($session{writer}->query('COMMIT'), '/down/writer', 'if it is COMMIT');
	is($session{again}->value(q{SELECT zk_lock('/down/other'), zk_unlock('/down/other')}), 't|t', 'another path can be locked');
	is($session{again}->value(q{SELECT state FROM zk_locks}), 'lost', 'which does not bring the lost one back');
	is($session{again}->query(q{SELECT zk_unlock('/down/again')})->{out}, 'f', 'given back');
	is($session{again}->value(q{SELECT zk_lock('/down/again')}), 't', 'it can be had again');
	is($new->value(q{SET zklock.connect_timeout = 20000; SELECT zk_lock('/down/new')}), 't', 'the new session has its lock');
	$impatient->value(q{SET zklock.operation_timeout = '20s'});
	zk_works($impatient, 'who had an error works');
	zk_works($session{xact}, 'so does who could not commit');
	is(who_wrote('/down/xact') . who_wrote('/down/writer'), '', 'nothing was committed without a lock');
	$_->quit for values %session, $impatient, $new;
	$proxy->stop;
};

# ------------------------------------------------------- nobody to confirm it

# The event that says that it is our turn, and the event of our own node's
# watch, are as old as the data that this process has read: it was stopped
# meanwhile.  Not long enough to doubt its session by itself, but longer than it
# may rely on the last answer confirmed by a quorum.
subtest 'a grant that no quorum has confirmed' => sub {
	my $proxy = ZkProxy->new($leader->hosts);
	my $waiter = zk_session_with($node, hosts => $proxy, session_timeout => '18s', operation_timeout => '1min', commit_guard => 'off');
	my $client = $zk->client;
	my $before = $client->contend('/zklock/turn');
	$waiter->send(q{SELECT zk_lock('/turn')});
	zk_wait_queued($zk, $waiter);
	$proxy->clear_log;
	zk_until(sub { grep { $_->[1] eq '<' && $_->[2] eq 'multi' } $proxy->log }, 'a heartbeat');
	Child::suspend($waiter->pid);
	my $stopped = time;
	$client->delete($before);
	zk_until(sub { grep { $_->[2] eq 'event' } $proxy->log }, 'the event to be sent');

	# the period under test, not a wait for a state
	sleep 0.1 while time - $stopped < 6.5;
	$proxy->blackhole;
	kill 'CONT', $waiter->pid;
	is($admin->value('SELECT pg_sleep(1)'), '', 'it has a second (and COMMIT does not look)');
	ok(!$waiter->is_done, 'and does not take its turn for what it was told before');
	$proxy->pass;
	is($waiter->wait->{out}, 't', 'but when a quorum has answered');
	$waiter->value(q{SELECT zk_unlock('/turn')});
	$waiter->quit;
	$client->close;
	$proxy->stop;
};

$admin->quit;
$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
$zk->stop;

done_testing();
