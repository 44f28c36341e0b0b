# zk_session: each state, and each counter, at the moment when it should change and at
# no other.  The counters are compared with what a proxy has seen.  (What zk_locks shows of
# each kind: sql/queue, and t/074.)
#
# And zklock.idle_timeout: a ZooKeeper session that holds and awaits nothing is closed,
# with its thread and its descriptors, while its backend does nothing; and the next
# call opens another.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Tests;

my $zk = ZooKeeper->new->start;
# heartbeats, which come every quarter of this, do not disturb the counting, nor do looks
# for deadlocks (t/018 has those)
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '60s', deadlock_timeout => '1h');
my $admin = zk_session($node);

# ----------------------------------------------------------- zklock.idle_timeout

my $STATE = 'SELECT state FROM zk_session';

sub idle_session { return zk_session_with($node, session_timeout => '10s', @_); }

# Threads and descriptors of a backend that has no session
my $bare = zk_session($node);
$bare->value("SELECT zk_lock_token('/a')");
is(zk_threads($bare->pid), 1, 'one thread without a session');

sub is_gone
{
	my ($s, $name) = @_;
	zk_until(sub { zk_threads($s->pid) == 1 }, 'the thread to end');
	zk_until(sub { $zk->sessions == 0 }, 'the session to end');
	pass($name);
	return;
}

sub descriptors { return scalar grep { (readlink($_) // '') =~ /socket|eventpoll|eventfd/ } glob "/proc/$_[0]/fd/*"; }

subtest 'an idle session is closed' => sub {
	my $s = idle_session(idle_timeout => '300ms');
	my $before = descriptors($s->pid);
	$s->value(q{SET zklock.idle_timeout = 0; SELECT zk_lock('/a'), zk_unlock('/a')});
	is($zk->sessions, 1, 'there is one');
	$s->value('RESET zklock.idle_timeout');
	is_gone($s, 'its thread ends, and ZooKeeper has no session');
	is(descriptors($s->pid), $before, 'no descriptor is left');
	is($s->value($STATE), 'none', 'zk_session shows none');
	is($s->value('SELECT losses, reconnections, unreleased FROM zk_session'), '0|0|0', '- which is no loss');
	cmp_ok($s->value('SELECT requests FROM zk_session'), '>', 0, '- and still counts what it asked');
	is($s->value(q{SELECT zk_lock('/a')}), 't', 'the next call opens another');
	is($s->value("$STATE"), 'connected', '- which is shown');
	$s->value(q{SELECT zk_unlock('/a')});
	is_gone($s, '- and closed in its turn');
	is($s->value(q{SELECT count(*) FROM zk_lock_queue('/a')}), 0, 'a look opens one, too');
	is_gone($s, '- which is closed');
	$s->value(q{SELECT zk_try_lock('/a'); DISCARD ALL});
	is_gone($s, 'after DISCARD ALL, which resets no option of the connection');
	$s->quit;
	is(zk_threads($bare->pid), 1, 'who has no session has no thread');
};

subtest 'one that has something is not' => sub {
	my @holder = map { idle_session(idle_timeout => '1ms') } 1 .. 4;
	$holder[0]->value(q{SELECT zk_lock('/held')});
	$holder[1]->value(q{SELECT zk_semaphore_acquire('/held', 1)});
	$holder[2]->value(q{BEGIN; SELECT zk_xact_lock('/held/too')});
	$holder[3]->send(q{SELECT zk_lock('/held')});
	zk_wait_queued($zk, $holder[3]);
	my $open = idle_session(idle_timeout => '1ms');
	$open->value(q{SELECT zk_lock('/other')});
	# nor in a transaction that may go on with it
	$open->value(q{BEGIN; SELECT zk_unlock('/other'), count(*) FROM zk_lock_queue('/held')});
	my $asked = $zk->mntr_value('packets_received');
	# each of them sends some heartbeats meanwhile
	zk_until(sub { $zk->mntr_value('packets_received') > $asked + 20 }, 'heartbeats');
	is($_->value($STATE), 'connected', 'still there') for @holder[ 0 .. 2 ], $open;
	is($holder[0]->value(q{SELECT state FROM zk_locks}), 'held', 'the lock is held');
	is($zk->sessions, 5, 'each has its session');
	$holder[0]->value(q{SELECT zk_unlock('/held')});
	is($holder[3]->wait->{out}, 't', 'who waited gets the lock');
	$holder[1]->value(q{SELECT zk_semaphore_release('/held')});
	$holder[2]->value(q{COMMIT});
	$open->value('ROLLBACK');
	zk_until(sub { $zk->sessions == 1 }, 'all but the holder to be closed');
	is($holder[3]->value('SELECT state FROM zk_locks'), 'held', 'the holder still has it');
};

subtest 'the setting' => sub {
	my $s = idle_session(idle_timeout => 0);
	is($s->value(q{SELECT boot_val FROM pg_settings WHERE name = 'zklock.idle_timeout'}), 60_000, 'the default is a minute');
	$s->value(q{SELECT zk_lock('/a'), zk_unlock('/a')});
	$s->value(q{SET zklock.idle_timeout = 0});
	is($s->value($STATE), 'connected', '0: it stays');
	$s->value(q{SET zklock.idle_timeout = '100ms'});
	is_gone($s, 'changed later, by a statement that uses no lock: it counts from then on');
	$s->value(q{SET zklock.idle_timeout = 0});
	$s->value(q{SELECT zk_lock('/a'), zk_unlock('/a')});
	$s->value(q{SET zklock.idle_timeout = '7d'});
	is($s->value($STATE), 'connected', 'a week');
	$s->value(q{SET zklock.idle_timeout = '3s'; SELECT zk_lock('/a'), zk_unlock('/a')});
	# who only looks at the view does not work with the session
	my $looks = 0;
	zk_until(sub { $looks++; $s->value($STATE) eq 'none' }, 'a session that is only looked at to be closed');
	cmp_ok($looks, '>', 1, 'a look at zk_session does not keep it');
	$s->quit;
	is($admin->query(q{SET zklock.idle_timeout = '-1'})->{state}, '22023', 'a negative time is refused');
};

# COMMIT does not wait for its delete; ZooKeeper must learn of it before the session
# ends, or the lock would be free later than it could be.
subtest 'a release that is not answered yet' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '10s', idle_timeout => '1ms', release_timeout => 0);
	zk_until(sub { $proxy->connections == 0 }, 'the first session to be closed');
	$proxy->hold('delete');
	$s->value(q{BEGIN; SELECT zk_xact_lock('/held'); COMMIT});
	$proxy->wait_held;
	zk_until(sub { ($proxy->log)[-1][2] eq 'exists' }, 'a heartbeat');
	is(zk_threads($s->pid), 2, 'the session waits for the answer');
	$proxy->release;
	zk_until(sub { zk_threads($s->pid) == 1 }, 'the thread to end');
	is(scalar(grep { /^delete / } $proxy->requests), 1, 'it was sent once');
	$proxy->reset;
};

subtest 'ZooKeeper is away' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '10s', idle_timeout => '500ms');
	$proxy->refuse;
	$proxy->drop;
	zk_until(sub { zk_threads($s->pid) == 1 }, 'a session that is cut off and has nothing to be given up');
	is($s->value($STATE), 'none', 'none');
	is($s->query(q{SET zklock.connect_timeout = '300ms'; SELECT zk_lock('/a')})->{state}, '58000', 'the next call finds nobody');
	zk_until(sub { zk_threads($s->pid) == 1 }, 'nobody tries any longer');
	$proxy->pass;
	is($s->value(q{SET zklock.connect_timeout = '30s'; SELECT zk_lock('/a'), zk_unlock('/a')}), 't|t', '- or finds it again');
	$proxy->blackhole;
	zk_until(sub { zk_threads($s->pid) == 1 }, 'one whose server is silent, too');
	$proxy->pass;
	$s->quit;
	$proxy->reset;
};

# A call that begins at the very moment
subtest 'races' => sub {
	my @s = map { idle_session(idle_timeout => "${_}ms", session_timeout => '60s') } 1 .. 6;
	foreach my $i (0 .. $#s)
	{
		$s[$i]->value(<<~"SQL");
			CREATE PROCEDURE pg_temp.work() LANGUAGE plpgsql AS \$\$
			BEGIN
				FOR i IN 1 .. 150 LOOP
					IF NOT zk_lock('/race/$i') THEN RAISE 'no lock'; END IF;
					IF i % 3 = 0 THEN
						COMMIT;
						PERFORM pg_sleep(random() * 0.004);
					END IF;
					IF NOT zk_unlock('/race/$i') THEN RAISE 'no unlock'; END IF;
					IF i % 5 = 0 THEN PERFORM count(*) FROM zk_lock_queue('/race/$i'); END IF;
					COMMIT;
					PERFORM pg_sleep(random() * 0.012);
				END LOOP;
			END \$\$
			SQL
		$s[$i]->send('CALL pg_temp.work()');
	}
	is($_->wait->{err}, '', 'no error, and no WARNING') for @s;
	is($_->value('SELECT losses FROM zk_session'), 0, 'and no loss') for @s;
};

$bare->quit;

# ----------------------------------------------------------------- what is shown

my $other = $zk->client;

sub contenders { return $other->contenders("/zklock$_[0]"); }

my @COUNTERS = qw(waits timeouts deadlock_checks deadlocks reconnections losses);

sub counters
{
	my ($s) = @_;
	my %value;
	@value{ 'requests', @COUNTERS } = split /\|/, $s->value('SELECT requests, ' . join(', ', @COUNTERS) . ' FROM zk_session');
	return %value;
}

# The changes since then, as "waits 1, timeouts 1"
sub moved
{
	my ($s, %before) = @_;
	my %now = counters($s);
	return join ', ', map { "$_ " . ($now{$_} - $before{$_}) } grep { $now{$_} != $before{$_} } @COUNTERS;
}

# One test: these counters change and no others, and there are as many requests
# as the proxy has seen.
sub moves
{
	my ($s, $proxy, $code, $expected, $name) = @_;
	my %before = counters($s);
	$proxy->clear_log;
	$code->();
	my $seen_by = sub { return scalar grep { $_->[1] eq '>' && $_->[2] !~ /^(?:connect|close|ping|auth)$/ } $proxy->log };
	my $seen = $seen_by->();
	my %now = counters($s);
	my $again = $seen_by->();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(moved($s, %before), $expected, $name);
	my $requests = $now{requests} - $before{requests};
	ok($seen <= $requests && $requests <= $again, "- requests: $requests, as the proxy has seen ($seen to $again)");
	return $requests;
}

subtest 'requests, waits, timeouts' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	my $holder = zk_session($node);
	my $does = sub { my ($sql, $expected, $name) = @_; return moves($s, $proxy, sub { $s->query($sql) }, $expected, $name); };
	my $does_waiting = sub {
		my ($sql, $then, $expected, $name) = @_;
		return moves($s, $proxy, sub {
				$s->send($sql);
				zk_wait_queued($zk, $s);
				$then->();
				$s->wait;
			}, $expected, $name);
	};

	is($does->('SELECT * FROM zk_locks; SELECT * FROM zk_session', '', 'looking at the views: nothing'), 0, '- not even a request');
	is($does->(q{SELECT zk_lock_token('/c'), zk_unlock('/c'), zk_unlock_all()}, '', 'nor what needs no answer'), 0, '- none');
	is($does->(q{SELECT zk_lock('/warm'), zk_lock('/warm'), zk_try_lock('/warm'), zk_lock_held('/warm'), zk_lock_held('/none')}, '', 'a free lock, and more of it: nothing'),
		2, '- two requests, as the first alone');
	$does->(q{SELECT zk_unlock_all(), zk_lock_many('{/c,/d,/e}'), zk_unlock_all()}, '', 'giving back, and several at once: nothing');
	is($does->(q{SELECT zk_lock(NULL)}, '', 'an error: nothing'), 0, '- none');

	$holder->value(q{SELECT zk_lock('/c'), zk_semaphore_acquire('/c', 1), zk_lock('/d')});
	foreach my $call (q{zk_try_lock('/c')}, q{zk_try_xact_lock_shared('/c')}, q{zk_lock('/c', '0')}, q{zk_semaphore_acquire('/c', 1, '0')},
		q{zk_lock_many('{/c,/e}', '0')})
	{
		$does->("SELECT $call", '', "$call of a taken one does not wait: nothing");
	}
	$does->(q{SELECT * FROM zk_lock_queue('/c')}, '', 'zk_lock_queue: nothing');

	# long enough to be in the queue by then
	foreach my $call (q{zk_lock('/c', '1500ms')}, q{zk_xact_lock('/c', '1500ms')}, q{zk_lock_shared('/c', '1500ms')},
		q{zk_semaphore_acquire('/c', 1, '1500ms')}, q{zk_lock_many('{/b,/c}', '1500ms')})
	{
		$does->("SELECT $call", 'waits 1, timeouts 1', "$call in vain: waits and timeouts");
	}
	$does->(q{SET lock_timeout = '1500ms'; SELECT zk_lock('/c'); RESET lock_timeout}, 'waits 1, timeouts 1', 'lock_timeout: waits and timeouts');
	$does->(q{CALL zk_acquire('/c', '1500ms')}, 'waits 1, timeouts 1', 'the timeout of a procedure: the same');
	$does->(q{RESET lock_timeout; SET statement_timeout = '1500ms'; SELECT zk_lock('/c')}, 'waits 1', 'statement_timeout: waits');
	$s->value('RESET statement_timeout');
	$does_waiting->(q{SELECT zk_lock('/c')}, sub { $admin->value('SELECT pg_cancel_backend(' . $s->pid . ')') }, 'waits 1',
		'canceled: waits');
	$does_waiting->(q{SELECT zk_semaphore_acquire('/c', 1)}, sub { $holder->value(q{SELECT zk_semaphore_release('/c')}) }, 'waits 1',
		'granted after a wait: waits');
	$does_waiting->(q{SELECT zk_lock('/c', '1min')}, sub { $holder->value(q{SELECT zk_unlock('/c')}) }, 'waits 1', '- with a timeout, too');
	$s->value('SELECT zk_unlock_all()');

	# a call that waits twice counts as one wait
	$holder->value(q{SELECT zk_lock('/c')});
	$does_waiting->(q{SELECT zk_lock_many('{/c,/d}')},
		sub {
			$holder->value(q{SELECT zk_unlock('/c')});
			zk_until(sub { contenders('/d') == 2 }, 'the second wait');
			$holder->value(q{SELECT zk_unlock('/d')});
		}, 'waits 1', 'several at once that are taken: one wait');
	$s->value('SELECT zk_unlock_all()');

	# ... however often its node is broken
	$holder->value(q{SELECT zk_lock('/c')});
	$does_waiting->(q{SELECT zk_lock('/c', '1min')},
		sub {
			my $broken = $admin->value(q{SELECT node FROM zk_lock_queue('/c') WHERE position = 2});
			$admin->query("SELECT zk_lock_break('/c', '$broken')");
			zk_until(sub { $admin->value(q{SELECT node FROM zk_lock_queue('/c') WHERE position = 2}) !~ /^(?:\Q$broken\E)?$/ }, 'another node');
			$holder->value(q{SELECT zk_unlock('/c')});
		}, 'waits 1', 'broken while it waits: one wait');
	is($s->value('SELECT state FROM zk_locks'), 'held', '- and held');

	# a broken lock is not a lost session
	moves($s, $proxy, sub {
			$admin->query(q{SELECT zk_lock_break('/c', node) FROM zk_lock_queue('/c')});
			zk_wait_hold($s, 'lost');
			is($s->value(q{SELECT zk_lock_held('/c')}), 'f', 'lost: not held');
		}, '', 'a holder is broken: no counter');
	$does->(q{SELECT zk_unlock('/c')}, '', '- nor when it is given back');
	my ($rows) = $holder->value(q{SELECT waits, timeouts FROM zk_session});
	is($rows, '0|0', 'those who did not wait have not');
	$_->quit for $s, $holder;
};

# (What is suspect, and lost, meanwhile: t/089)
subtest 'states' => sub {
	my $proxy = ZkProxy->new($zk);
	# a third of this is between the silence and the loss
	my $s = zk_session_with($node, session_timeout => '12s', hosts => $proxy);
	is($s->value('SELECT * FROM zk_session'), 'none|||||' . '|0' x 8, 'none, before the first lock');

	$proxy->blackhole;
	is($s->query(q{SET zklock.connect_timeout = '500ms'; SELECT zk_lock('/s')})->{state}, '58000', 'no server answers');
	$s->value('RESET zklock.connect_timeout');
	like($s->value('SELECT state, session_id, session_timeout, last_heard, waits, timeouts, reconnections, losses FROM zk_session'),
		qr/^(?:connecting|none)\|{4}0\|0\|0\|0$/, 'connecting, or none if that was given up, with no session, and nothing counted');

	$proxy->pass;
	is($s->value(q{SELECT zk_lock('/s')}), 't', 'it answers');
	my ($id, $shown) = split /\|/, $s->value('SELECT session_id, state, server, session_timeout FROM zk_session'), 2;
	is($shown, 'connected|' . $proxy->hosts . '|00:00:12', 'connected: to whom, with what timeout');
	my %session = $zk->ephemerals;
	ok($session{$id}, 'and the id is that of its nodes in ZooKeeper');

	# last_heard follows the heartbeats, whatever the backend does
	my $heard = sub { return $s->value('SELECT extract(epoch FROM last_heard) FROM zk_session'); };
	my $before = $heard->();
	my %counters = counters($s);
	zk_until(sub { $heard->() > $before }, 'a heartbeat');
	cmp_ok($heard->(), '<=', $admin->value('SELECT extract(epoch FROM clock_timestamp())'), 'last_heard rises by itself');
	in_time($admin->value('SELECT extract(epoch FROM clock_timestamp())') - $heard->(), 6, 'and is not long ago');
	my %after;
	zk_until(sub { %after = counters($s); $after{requests} > $counters{requests} }, 'its request');
	is(moved($s, %counters), '', 'heartbeats are requests, and count nowhere else');

	# cut off, and back
	foreach my $time (1 .. 2)
	{
		$proxy->cut_off;
		zk_wait_session($s, 'suspended');
		is($s->query(q{SET zklock.operation_timeout = '200ms'; SELECT zk_lock_held('/s')})->{state}, '58030', 'suspended: nobody can tell');
		$s->value('RESET zklock.operation_timeout');
		is(moved($s, %counters), $time > 1 ? 'reconnections ' . ($time - 1) : '', '- nothing has been counted yet');
		$before = $heard->();
		$proxy->pass;
		zk_wait_session($s, 'connected');
		is(moved($s, %counters), "reconnections $time", "connected again: reconnections $time");
		cmp_ok($heard->(), '>', $before, '- and heard of');
		is($s->value(q{SELECT session_id, zk_lock_held('/s') FROM zk_session}), "$id|t", '- the same session, and the lock is held');
	}

	# nothing is counted for sessions that have lost nothing: what they do while
	# cut off.  (One that was answered nothing since it is back is over with its locks.)
	is($s->value(q{SELECT count(*) FROM zk_lock_queue('/s')}), 1, 'it is answered');
	$proxy->blackhole;
	zk_wait_session($s, 'suspended');
	is(moved($s, %counters), 'reconnections 2', 'a silence that is too long counts nothing');
	my %last = counters($s);
	zk_wait_hold($s, 'lost');
	is($s->value(q{SELECT zk_lock_held('/s')}), 'f', 'lost: not held');
	is($s->value($STATE), 'suspended', 'the lock is lost, and nobody knows whether the session lives');
	zk_until(sub { !grep { $_ eq $id } $zk->sessions }, 'ZooKeeper to end it');
	is(moved($s, %counters), 'reconnections 2, losses 1', '- losses 1, however often one looks') for 1, 2;
	$proxy->pass;
	is($s->query(q{SELECT zk_lock('/s')})->{state}, '55000', 'it cannot be locked again');
	is($s->value(q{SELECT zk_lock('/s/another')}), 't', 'another can');
	isnt($s->value('SELECT session_id FROM zk_session'), $id, '- in another session');
	is($s->value($STATE), 'connected', '- that is connected');
	is(moved($s, %counters), 'reconnections 2, losses 1', '- which counts nothing');
	%after = counters($s);
	cmp_ok($after{requests}, '>', $last{requests}, 'requests go on from one session to the next');
	is($s->value(q{SELECT path, state FROM zk_locks ORDER BY path}), "/s|lost\n/s/another|held", 'both are shown');

	# changed settings: an end of our own making
	$s->query('SELECT zk_unlock_all(), zk_unlock_all()');
	$s->value(q{SET zklock.session_timeout = '7s'; SELECT zk_lock('/s/third'); SELECT zk_unlock('/s/third')});
	is($s->value('SELECT session_timeout FROM zk_session'), '00:00:07', 'another setting, another session');
	is(moved($s, %counters), 'reconnections 2, losses 1', 'which nobody has lost');
	$s->quit;
	$proxy->stop;
};

# Lost while idle, and while a call waits
subtest 'losses' => sub {
	my $proxy = ZkProxy->new($zk);
	my $s = zk_session_with($node, session_timeout => '20s', hosts => $proxy);
	my $lose = sub {
		my ($id) = @_;
		$proxy->cut_off;
		$zk->end_session($id);
		$proxy->pass;
	};
	# (With a lock: above.)
	$s->value(q{SELECT zk_lock('/l'), zk_unlock('/l')});
	$lose->($s->value('SELECT session_id FROM zk_session'));
	zk_until(sub { $s->value('SELECT losses FROM zk_session') eq '1' }, 'a session that holds nothing can be lost, too');

	# that of a waiter
	my $foreign = $other->contend('/zklock/l');
	my %before = counters($s);
	$s->send(q{SELECT zk_lock('/l', '1min')});
	zk_wait_queued($zk, $s);
	my %of = $zk->ephemerals;
	$lose->(grep { $_ ne $other->session_id && grep { m{^/zklock/l/} } @{ $of{$_} } } keys %of);
	zk_until(sub { contenders('/l') == 2 }, 'it to queue again');
	$other->delete($foreign);
	is($s->wait->{out}, 't', 'a call that lost its session while it waited goes on');
	is(moved($s, %before), 'waits 1, losses 1', '- a wait and a loss');
	$s->quit;
};

$admin->quit;
$other->close;
zk_end($zk, $node);
