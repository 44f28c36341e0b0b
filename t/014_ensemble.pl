# Three ZooKeeper servers, two clusters, twenty backends that hold and wait: the
# leader is killed, then a follower, then a majority.  Nobody loses a lock,
# nobody is passed over, everybody continues without help, and as who he was.
#
# And, with three servers and with one, a session that has as many nodes as it may have:
# what is sent at once when it reconnects or ends, and from server to server, is as large
# as it gets.
#
# And locks that are lost without their holder being told: a follower cut from its leader, a
# leader without followers, an ensemble that was down.  (A backend that was stopped: t/052)
# A transaction that relied on such a lock does not commit, the next holder's does, and
# all sessions recover without help.

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(uniq);

use Child;
use Doc;
use Tests;

# A leader without followers, and a follower cut from its leader, stay what they are
# for a minute.
my $zk = ZooKeeper->ensemble(3, superuser => 1, links => 1, sync_limit => 120);
my @node = map { zk_cluster($_, $zk, map { ("zklock.${_}_timeout" => '60s') } qw(session operation connect)) } qw(a b);

# How much longer than promised, and than the failover until holders are certain of
# their locks, a busy machine may take, in seconds
my $SLACK = 1;
my $FAILOVER_SLACK = 8;

# Who asks for a lock: the first has it, the others wait, in both clusters
sub asks
{
	my ($n, $path) = @_;
	my $s = zk_warm_session($node[ $n % 2 ]);
	$s->send("SELECT zk_lock('$path')");
	if ($n == 0) { $s->wait; }
	else { zk_wait_queued($zk, $s); }
	return $s;
}

my @queue = map { asks($_, '/queue') } 0 .. 9;
my @pairs = map { my $path = "/pair/$_"; [ map { asks($_, $path) } 0, 1 ] } 1 .. 5;
my @gone;    # from the queue

sub holders { return ($queue[0], map { $_->[0] } @pairs); }
sub nobody_else { is(scalar(grep { $_->is_done } @queue[ 1 .. $#queue ], map { $_->[1] } @pairs), 0, $_[0]); return; }

# What holders know of their locks and their sessions
sub holds { return map { $_->value(q{SELECT path, token, session_id, losses FROM zk_locks, zk_session}) } holders(); }

my @had = holds();
my @token = ((split /\|/, $had[0])[1]);    # of the owners of /queue, in order
is(scalar(grep { /^\/\w+(?:\/\w)?\|\d+\|0x[0-9a-f]+\|0$/ } @had), 6, 'six hold a lock each');
nobody_else('and fourteen wait');

# Wait until no holder is in doubt about its lock
sub until_connected { zk_wait_hold($_, 'held') foreach holders(); return; }

sub nothing_has_changed
{
	my ($what) = @_;
	until_connected();
	is_deeply([ holds() ], \@had, "$what: each holder still has its lock, by the same session");
	nobody_else("$what: each waiter still waits");
	return;
}

# The owner of /queue hands it over to the next one.
sub hand_over
{
	my ($what) = @_;
	push @gone, shift @queue;
	my $r = $gone[-1]->query(q{SELECT zk_unlock('/queue')});
	is("$r->{out} $r->{err}", 't ', "$what: zk_unlock");
	is($queue[0]->wait->{out}, 't', "$what: the next in the queue has it");
	nobody_else("$what: and nobody else");
	@had = holds();
	push @token, $queue[0]->value(q{SELECT zk_lock_token('/queue')});
	return;
}

hand_over('all servers up');

foreach my $killed ('leader', 'follower', 'leader, and at once a release')
{
	subtest "killed: the $killed" => sub {
		($killed =~ /^leader/ ? $zk->leader : ($zk->followers)[0])->kill9;
		hand_over('while there is no leader') if $killed =~ /release/;
		$zk->leader;
		my $elected = time;
		until_connected();
		in_time(time - $elected, $FAILOVER_SLACK, 'all are certain of their locks when there is a leader');
		my $new = zk_session($node[0]);
		is($new->value(q{SELECT zk_lock('/new'), zk_unlock('/new')}), 't|t', 'a new session locks');
		nothing_has_changed('with two servers');
		hand_over('with two servers');
		$zk->start;
		hand_over('third server back');
	};
}

subtest 'a majority, and then a COMMIT that releases' => sub {
	# the guard is not under test here
	my $s = zk_session($node[0], options => '-c zklock.commit_guard=off');
	my $waiter = zk_session($node[1]);
	$s->value(q{BEGIN; SELECT zk_xact_lock('/majority')});
	$waiter->send(q{SELECT zk_lock('/majority')});
	zk_wait_queued($zk, $waiter);

	my ($follower, $left) = $zk->followers;
	my $told = zk_session_with($node[0], hosts => $left, operation_timeout => '2s');
	$told->value(q{SELECT zk_lock('/told')});
	$_->kill9 for $zk->leader, $follower;
	my $r = $s->query('COMMIT');
	is($r->{state}, '', 'without a majority: a COMMIT that releases a lock succeeds');
	in_time($r->{seconds}, 1, '- and does not wait');
	my $new = zk_session_with($node[0], hosts => $left, connect_timeout => '4s');
	$r = $new->query(q{SELECT zk_lock('/nobody')});
	like("$r->{state} $r->{hint}", qr/^58000 .*no quorum/, '- a new session is refused, with the reason');
	zk_until(sub { $r = $told->query(q{SELECT zk_lock('/told/b')}); $r->{hint} =~ /no quorum/ }, 'the same of one that was connected');
	like("$r->{state} $r->{hint}", qr/^58030 .*\. Locks of this session are suspect until the connection is restored; see zk_locks\.$/, '- and what it means');
	ok(!$waiter->is_done, '- nobody gets a lock');

	$zk->start;
	is($waiter->wait->{out}, 't', '- and the waiter does when there is a majority again');
	until_connected();
	nothing_has_changed('majority back');
	$new->value('SET zklock.connect_timeout = 60000');
	is($new->value(q{SELECT zk_lock('/nobody')}), 't', '- and the session that was refused locks');
	zk_wait_hold($told, 'held', '/told');
	$_->quit for $s, $waiter, $new, $told;
};

# Everybody who still waits gets a turn
hand_over('at last') while @queue > 1;
foreach (@pairs)
{
	$_->[0]->value('SELECT zk_unlock_all()');
	is($_->[1]->wait->{out}, 't', 'the second of a pair has its lock');
}
my @s = (@gone, @queue, map { @$_ } @pairs);
is(join(' ', map { $_->value('SELECT losses FROM zk_session') } @s), join(' ', (0) x @s), 'nobody has ever lost a session');

is(join(' ', @token), join(' ', sort { $a <=> $b } uniq @token), 'and the owners of the queue had rising tokens');

$_->value('SELECT zk_unlock_all()') for @s;
zk_nothing_left($zk, 'no node is left');
# each server knows only its own, and none while it is not serving
foreach my $server ($zk->nodes)
{
	until_true(sub { ($server->watch_count // 'unknown') eq '0' }, 'no watch');
	pass('nor a watch at server ' . $server->{id});
}
$_->quit for @s;
# one whose handshake was cut off by a restart has no client, and expires
zk_nothing_left($zk, 'nor a session', sessions => 0, timeout => 120);

# ------------------------------------------------ as many nodes as there may be

# ZKN_PATHS_MAX, and what a node takes of it besides its path below the root, which is
# long, so that fewer of them are enough
my $MOST = 0xfffff - 64 * 1024;
my $ROOT = '/' . 'r' x 990;
my $MORE = 4 + length "$ROOT/_c_00000000-0000-4000-8000-000000000000-lock-0000000000";
my $FULL = 9 * 54 + 1;

# Takes all but one of the locks, with paths of 968 bytes.
sub nearly_fill
{
	my ($s, $scope) = @_;
	my $sql = join ', ', map {
		sprintf q{zk_%slock_many((SELECT array_agg('/f/' || lpad(i::text, 965, '0')) FROM generate_series(%d, %d) i))}, $scope, 54 * $_ - 53, 54 * $_
	} 1 .. 9;
	is($s->value("SELECT $sql"), join('|', ('t') x 9), "${scope}lock: all but one");
	return;
}

# The path that fills it up to the last byte, or with so many too many
sub last_path { my ($more) = @_; return '/l/' . 'l' x ($MOST - ($FULL - 1) * (968 + $MORE) - $MORE - 3 + ($more // 0)); }

sub bytes_of
{
	my ($servers, $s) = @_;
	my %nodes = $servers->ephemerals;
	my $bytes = 0;
	$bytes += 4 + length for @{ $nodes{ $s->value('SELECT session_id FROM zk_session') } };
	return $bytes;
}

my $new = sub { my ($of, $hosts) = @_; return zk_session_with($of, hosts => $hosts, root => $ROOT); };
foreach my $servers ($zk, ZooKeeper->new->start)
{
	my $n = () = $servers->nodes;
	subtest "as many nodes as there may be, servers: $n" => sub {
		my $admin = zk_session($node[0]);
		my $proxy = ZkProxy->new(($servers->nodes)[0]);
		my ($s, $other) = ($new->($node[0], $proxy), $new->($node[1], $servers));
		nearly_fill($s, '');

		# what a call that was canceled has left there is waited for
		$proxy->hold('create2');
		$s->send("SELECT zk_lock('@{[ last_path() ]}')");
		$proxy->wait_held;
		is($s->cancel($admin)->{state}, '57014', 'canceled');
		$s->send("SELECT zk_lock('@{[ last_path() ]}'), zk_unlock('@{[ last_path() ]}')");
		zk_until(sub { $s->is_done || zk_waits($admin, $s->pid) }, 'the next call to wait');
		$proxy->release;
		is($s->wait->{out}, 't|t', 'the next call has room');

		$other->value("SELECT zk_lock('@{[ last_path() ]}')");
		foreach (
			[ "zk_lock('@{[ last_path(1) ]}')", $MOST + 1 ],
			[ "zk_lock_many(ARRAY['/1', '@{[ last_path() ]}'])", $MOST + 2 + $MORE ])
		{
			my ($call, $bytes) = @$_;
			my $before = $servers->zxid;
			my $r = $s->query("SELECT $call");
			is($r->{state}, '53400', "$call: 53400" =~ s/(.)\1{9,}/$1.../r);
			like($r->{err}, qr/would have $bytes bytes; the maximum is $MOST\./, '- which says how many bytes');
			is($servers->zxid, $before, '- and nothing was written');
		}

		# a wait has its own node, and watches others
		$s->send("SET deadlock_timeout = '10ms'; SELECT zk_lock('@{[ last_path() ]}')");
		zk_until(sub { eval { $servers->children("$ROOT/__zklock_waits__") == 1 } }, 'it waits, and has published that');
		zk_until(sub { ($servers->nodes)[0]->watch_count > $FULL }, 'all is watched');
		$proxy->cut_off;
		zk_until(sub { ($servers->nodes)[0]->watch_count < $FULL }, 'it to be cut off');
		$proxy->pass;
		ok(zk_until(sub { ($servers->nodes)[0]->watch_count > $FULL }, 'its watches'), 'cut off, it connects again with all watches');
		$other->quit;
		is($s->wait->{out}, 't', 'the wait goes on');
		zk_until(sub { $s->value(q{SELECT count(*) FILTER (WHERE state = 'held') FROM zk_locks}) == $FULL }, 'all are held');
		is($s->value('SELECT reconnections, losses FROM zk_session'), '1|0', 'with the same session');
		is(bytes_of($servers, $s), $MOST, 'not a byte is left');
		is($s->value("SELECT zk_lock('@{[ last_path() ]}'), zk_unlock('@{[ last_path() ]}')"), 't|t', 'to take one again needs none');
		is($s->query("SELECT $_")->{state}, '53400', "$_: 53400")
		  foreach q{zk_xact_lock_shared('/1')}, q{zk_semaphore_acquire('/1', 2)}, q{set_config('zklock.node_style', 'single', false), zk_lock('/1')};
		is($s->value('RESET zklock.node_style; SELECT zk_unlock_all()'), $FULL, 'all are given back');
		zk_until(sub { $servers->ephemerals_count == 0 }, '- and gone');

		$s->value('BEGIN');
		nearly_fill($s, 'xact_');
		$s->value("SELECT zk_xact_lock('@{[ last_path() ]}')");
		is(bytes_of($servers, $s), $MOST, 'a transaction with as many');
		is($s->query('COMMIT')->{state}, '', '- commits');

		# what is being deleted takes no room
		nearly_fill($s, '');
		$s->value("SELECT zk_lock('@{[ last_path() ]}')");
		is(bytes_of($servers, $s), $MOST, 'a session with as many');
		$_->quit for $s, $admin;

		# a server that starts reads its record of how sessions ended
		zk_until(sub { $servers->ephemerals_count == 0 }, 'it to be over');
		$_->kill9 for $servers->nodes;
		$servers->start;
		is(scalar(() = map { $_->sessions } $servers->nodes), 0, 'all servers start again');
	};

	# What the limit is for, by a program that has none; and what doc/zookeeper.md says
	# against it.
	subtest "more than that, by another program, servers: $n" => sub {
		my ($option) = Doc->new('doc/zookeeper.md')->text =~ /^ {4}JAVA_OPTS="\$JAVA_OPTS (\S+)"$/m or die 'no option';
		my $program = $servers->client;
		$program->create("/big$_") for q{}, $ROOT;
		$program->create_all('ephemeral', map { [ "/big$ROOT/$_" ] } 1 .. 2_120);
		$program->close;
		$_->kill9 for $servers->nodes;
		$_->start(no_wait => 1) for $servers->nodes;
		# those that have it: not each follower had been sent it
		ok(zk_until(sub { grep { $_->log_tail(200) =~ /Unreasonable length/ } $servers->nodes }, 'a server to say why it does not start'),
			'a server that has the record says why it does not start');
		foreach my $server ($servers->nodes)
		{
			$server->kill9;
			$server->{java_options} = [ @{ $server->{java_options} }, $option ];
		}
		$servers->start;
		pass("with $option all servers start again");
		$servers->end_session($program->session_id) if $servers->ephemerals_count;    # the record was not passed on
		is($servers->ephemerals_count, 0, '- and the session is over');
		$servers->with_client(sub { $_[0]->delete_tree('/big') });
		my $s = zk_session_with($node[0], hosts => $servers);
		is($s->value(q{SELECT zk_lock('/again')}), 't', '- and there are locks');
		$s->quit;
	};
}

# ------------------------------------------------- lost without being told

my $admin = zk_session($node[1]);
$admin->value('CREATE TABLE t (path text, who text)');

zk_until(sub { $zk->followers == 2 }, 'two followers');
my $leader = $zk->leader;
my ($follower) = $zk->followers;

# A statement that looks at a lost lock is not to be canceled: that is t/034's
sub losing { return zk_session_with($node[1], session_timeout => '6s', operation_timeout => '30s', connect_timeout => '30s', cancel_on_loss => 'off', @_); }

# The same with all servers, but connected to this one.  A session tries them in
# a random order.
sub connected_to
{
	my ($server, %setting) = @_;
	while (1)
	{
		my $session = losing(hosts => $zk, %setting);
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

# A session that relies on a lock, of a guard and a scope: "on session"
sub relying
{
	my ($dir, $name, %setting) = @_;
	my ($guard, $what) = split / /, $name;
	my $path = "$dir/" . ($name =~ tr{ }{/}r);
	my %all = (commit_guard => $guard, %setting);
	my $session = ($what // '') eq 'moves' ? connected_to(delete $all{hosts}, %all) : losing(%all);
	my $insert = "INSERT INTO t VALUES ('$path', 'holder')";
	$session->value(($what // '') eq 'session'
		? "SELECT zk_lock('$path'); BEGIN; $insert"
		: "BEGIN; $insert; SELECT zk_xact_lock('$path')");
	return { name => $name, s => $session, path => $path };
}

# What becomes of their COMMITs, whoever has written meanwhile: refused, except where nothing
# guards
sub are_refused
{
	my ($others, $limit, @all) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $one (@all)
	{
		my ($name, $path) = @$one{qw(name path)};
		my $result = $one->{s}->wait;
		if ($name =~ /^off/)
		{
			is($result->{state}, '', "$name: without the guard its COMMIT succeeds");
			is(who_wrote($path), join(', ', 'holder', $others || ()), "$name: its rows are there");
			next;
		}
		zk_is_lost($result, $path, $name);
		is(who_wrote($path), $others, "$name: its rows are not there");
		in_time($result->{seconds}, $limit + $SLACK, "$name: within operation_timeout");
	}
	return;
}

sub who_wrote
{
	my ($path) = @_;
	return $admin->value("SELECT string_agg(who, ', ' ORDER BY who) FROM t WHERE path = '$path'");
}

# ------------------------------------------------- a leader without followers

# It goes on answering reads, and takes sessions up again; but a quorum may have given
# the lock to somebody else by now.
subtest 'a leader without followers' => sub {
	my %setting = (hosts => $leader, session_timeout => '24s', operation_timeout => '1min');
	my @alone = map { relying('/alone', $_, %setting) } 'off', 'on', 'on session', 'strict';
	$_->{s}->value(q{SET zklock.operation_timeout = '1s'}) for @alone;    # for its COMMIT
	my $canceled = relying('/alone', 'on canceled', %setting);
	my (%runs, %path);
	foreach my $when (qw(lost doubt))
	{
		$runs{$when} = losing(hosts => $leader, session_timeout => '12s', cancel_on_loss => $when);
		$path{$when} = "/alone/runs/$when";
		$runs{$when}->value("BEGIN; SELECT zk_xact_lock('$path{$when}')");
		$runs{$when}->send('SELECT pg_sleep(600)');
		zk_until(sub { $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $runs{$when}->pid) eq 'PgSleep' }, 'it to run');
	}
	my $reader = $leader->client;
	my @followers = $zk->followers;
	$_->suspend for @followers;
	my $since = time;
	sleep 8.1;    # more than a third of 24 s without a quorum
	$_->{s}->send('COMMIT') for @alone, $canceled;

	# The trap: such a leader still answers reads.
	$reader->sync('/');
	ok($reader->exists("/zklock$_->{path}"), 'the leader answers a sync, and a read') for @alone;
	zk_wait_waiting($admin, $canceled->{s});
	my $began = time;
	is($canceled->{s}->cancel($admin)->{state}, '57014', 'a COMMIT is canceled');
	in_time(time - $began, $SLACK, 'at once');
	is(who_wrote($canceled->{path}), '', 'its rows are not there');
	are_refused('', 1, @alone);

	my $result = $runs{doubt}->wait;
	in_time(time - $since, 12 + $SLACK, 'doubt: within the session timeout and a second');
	# its question to the quorum keeps all answers back, and a session without answers is over
	like($result->{message}, qr/^canceling statement due to (?:possible )?loss of lock on "\Q$path{doubt}\E"$/, 'doubt: the reason');
	ok($reader->exists("/zklock$path{doubt}"), 'the leader still answers');
	zk_until(sub { time - $since > 12 + 2.5 }, 'some time after that');    # a cancel is repeated each second
	is($runs{lost}->is_done, 0, 'lost: still runs');
	$_->resume for @followers;
	$reader->close;
	zk_until(sub { $_->four_letter('srvr') =~ /^Mode/m }, 'the followers') for @followers;
	is($runs{lost}->cancel($admin)->{state}, '57014', 'lost: and when they are back');
	$_->{s}->value('SET zklock.operation_timeout = 20000') for @alone, $canceled;
	zk_works($_->{s}, "$_->{name}: works when they are back") for @alone, $canceled;
	is($alone[2]{s}->value('SELECT state FROM zk_locks'), 'held', 'on session: and has its lock, which was never lost');
	$_->quit for map({ $_->{s} } @alone, $canceled), values %runs;
};

# It answers what heartbeats ask, too.
subtest 'a leader without followers, and an event of before' => sub {
	my @followers = $zk->followers;
	my %setting = (hosts => $leader, session_timeout => '20s');
	my $proxied = sub {
		my $proxy = ZkProxy->new($leader);
		return (losing(%setting, hosts => $proxy, @_), $proxy);
	};
	my $holder = losing(%setting);
	my $idle = losing(%setting);
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
	sleep 7;    # more than a third of 20 s
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
	$way_back->wait_answers('getData');    # a session is back, and its watch
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

	sleep 1;
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

# ------------------------------------- a follower that is cut from its leader

# Such a follower goes on answering its clients' reads for up to syncLimit (60 s
# here), while the leader ends their sessions (6 s).  A client that can moves to
# another server before that: "moves".
subtest 'a follower is cut from its leader, with the holders connected to it' => sub {
	my %setting = (hosts => $follower, operation_timeout => '20s');
	my @holder = map { relying('/cut', $_, %setting) } 'off', 'on', 'on session', 'strict', 'strict session';
	my @moves = map { relying('/cut', $_, %setting, session_timeout => '15s') } 'on moves', 'strict moves';
	$_->{s}->value(q{SET zklock.operation_timeout = '1s'}) for @holder;    # for its COMMIT
	foreach my $one (@holder, @moves)
	{
		# it waits for that lock, uses it when it is granted, and commits
		$one->{next} = losing(hosts => $leader, session_timeout => '20s');
		$one->{next}->send("BEGIN; SELECT zk_xact_lock('$one->{path}'); INSERT INTO t VALUES ('$one->{path}', 'next'); COMMIT");
		zk_wait_queued($zk, $one->{next});
	}

	# who waits for a single node has none by which it would notice that
	my %single = (node_style => 'single', operation_timeout => '20s');
	my $at_work = losing(%single, hosts => $leader, session_timeout => '20s');
	my $waiter = connected_to($follower, %single, session_timeout => '15s');
	$at_work->value(q{SELECT zk_lock('/cut/single')});
	$waiter->send(q{SELECT zk_lock('/cut/single')});
	zk_until(sub { $follower->four_letter('wchp') =~ m{^/zklock/cut/single$}m }, 'the waiter to watch the node');

	my $idle = connected_to($follower, session_timeout => '15s');
	my $session = $idle->value('SELECT session_id FROM zk_session');

	$zk->cut($follower);
	foreach my $one (@holder)
	{
		is($one->{next}->wait->{state}, '', "$one->{name}: the next holder has the lock, and commits");
		is(who_wrote($one->{path}), 'next', "$one->{name}: its row is there");
		my $told = sub { $one->{s}->value('SELECT state, zk_lock_token(path) FROM zk_locks') };
		isnt(($told->() =~ /^(\w+)/)[0], 'held', "$one->{name}: the holder is not told that it holds the lock");
		# its own clock may reach that moment a little after the leader's
		is(zk_until(sub { $told->() =~ /^(lost\|.*)/ && $1 }, 'lost'), 'lost|', "$one->{name}: then that it has lost it");
	}
	foreach my $one (@moves)
	{
		moves_from($follower, $one->{s});
		ok(!$one->{next}->is_done, "$one->{name}: moved to another server, and has lost nothing");
		zk_wait_hold($one->{s}, 'held');
		is($one->{s}->query('COMMIT')->{state}, '', "$one->{name}: and commits");
		is($one->{next}->wait->{state}, '', "$one->{name}: then comes the next one");
	}
	$at_work->value(q{SELECT zk_unlock('/cut/single')});
	is($waiter->wait->{out}, 't', 'who waited for a single node has it');
	is($waiter->value('SELECT losses FROM zk_session'), 0, '- by the session that it had: it moved in time');
	moves_from($follower, $idle);
	is($idle->value(q{SELECT zk_try_lock('/cut/idle')}), 't', 'who has no lock gets one');
	is($idle->value('SELECT session_id FROM zk_session'), $session, '- in the session that it had: it moved in time, too');

	$_->{s}->send('COMMIT') for @holder;
	are_refused('next', 1, @holder);
	zk_works($_->{s}, "$_->{name}: works, while the follower is still cut off") for @moves;
	$zk->mend;
	$_->{s}->value(q{SET zklock.operation_timeout = '20s'; SET zklock.connect_timeout = '20s'; SELECT count(zk_unlock_all())}) for @holder;
	zk_works($_->{s}, "$_->{name}: works when it is back") for @holder;
	$_->quit for map({ ($_->{s}, $_->{next}) } @holder, @moves), $at_work, $waiter, $idle;
};

# ------------------------------------------------------- the whole ensemble

subtest 'the whole ensemble is down for longer than a session lives' => sub {
	# Servers that are back have a third of this for their first answer, or the session is
	# given up; on a busy machine they accept connections seconds before that.
	my $proxy = ZkProxy->new($leader->hosts);
	my %setting = (session_timeout => '20s', operation_timeout => '2min', connect_timeout => '30s');
	my %session = map { $_ => losing(%setting, hosts => $_ eq 'relock' ? $proxy : $zk) } qw(relock unlock patient);
	$session{$_}->value("SELECT zk_lock('/down/$_')") for qw(relock unlock);
	my %id = map { $_ => $session{$_}->value('SELECT session_id FROM zk_session') } qw(relock unlock);
	$session{patient}->send("SELECT zk_lock('/down/unlock')");
	zk_wait_queued($zk, $session{patient});

	# a server that accepts it and is gone before it answers is not a silent one
	$proxy->hold_request([qw(setWatches setWatches2 sync getData exists getChildren create2 delete multi)], 1_000_000);
	$proxy->drop;
	zk_until(sub { $session{relock}->value('SELECT reconnections FROM zk_session') > 0 }, 'a handshake');

	my $began = time;
	$_->kill9 for $zk->nodes;
	$proxy->reset;
	zk_wait_hold($session{unlock}, 'lost');
	in_time(time - $began, 20 + $SLACK, 'a holder knows by its own clock that its lock is lost');
	ok(!$session{patient}->is_done, 'who has more time goes on waiting');

	$zk->start;

	# Their sessions live on: ZooKeeper has restarted their timeouts.  That they
	# did not end shows that what is gone was deleted and did not have to
	# expire.
	zk_until(sub { !$zk->children('/zklock/down/relock') }, 'what nobody gives back to be deleted');
	foreach my $name (sort keys %id)
	{
		my $now = zk_until(sub { $session{$name}->value('SELECT session_id FROM zk_session') }, "$name: connected");
		is($now, $id{$name}, "$name: the session goes on");
	}
	is($session{patient}->wait->{out}, 't', 'who waited has the lock');
	# (What else is answered to those who have lost theirs: t/025)
	like($session{relock}->query(q{SELECT zk_lock('/down/relock')})->{detail}, qr/^Nothing was heard from ZooKeeper/, 'the next use says what is known');
	$session{$_}->query('SELECT zk_unlock_all()') for sort keys %session;
	zk_works($session{$_}, "$_: works") for sort keys %session;
	$_->quit for values %session;
	$proxy->stop;
};

# ------------------------------------------------------- nobody to confirm it

# The event that says that it is our turn, and the event of our own node's
# watch, are as old as the data that this process has read: it was stopped
# meanwhile.  Not long enough to doubt its session by itself, but longer than it
# may rely on the last answer confirmed by a quorum.
subtest 'a grant that no quorum has confirmed' => sub {
	my $proxy = ZkProxy->new($leader->hosts);
	my $waiter = losing(hosts => $proxy, session_timeout => '18s', operation_timeout => '1min', commit_guard => 'off');
	my $client = $zk->client;
	my $before = $client->contend('/zklock/turn');
	$waiter->send(q{SELECT zk_lock('/turn')});
	zk_wait_queued($zk, $waiter);
	$proxy->clear_log;
	$proxy->wait_answers('multi');    # a heartbeat
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
zk_end($zk, @node);
