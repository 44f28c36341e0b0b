# The commit guard: the requests of a COMMIT to ZooKeeper, counted, and what it
# does when a hold of any kind is gone, or when ZooKeeper cannot be asked.  Each kind
# is given back by its own function, and the others are unaffected.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Child;
use Cost;
use Tests;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1.5;

my $zk = ZooKeeper->new->start;
# A statement that looks at a lost lock is not to be canceled: that is t/034's
my $node = zk_cluster(
	'main', $zk,
	'zklock.cancel_on_loss' => 'off',
	# heartbeats, which come every quarter of this, do not disturb the counting
	'zklock.session_timeout' => '60s',
	wal_level => 'replica',
	max_wal_senders => 1,    # without one there is no synchronous replication
	synchronous_commit => 'local',
	max_prepared_transactions => 5);
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (who text); CREATE TABLE remote (who text)');

zk_foreign_server($node, loopback => $node);
$admin->value(q{CREATE FOREIGN TABLE there (who text) SERVER loopback OPTIONS (table_name 'remote')});

# Delete nodes as an administrator may do by hand: those with these names
# (default: all) in the directory of a lock.  One client does it all, so that the
# deletes are the only transactions.
my $hand = $zk->client;

sub delete_by_hand
{
	my ($path, @like) = @_;
	my $there = $hand->exists("/zklock$path");
	return $hand->delete("/zklock$path") if $there && $there->{ephemeralOwner};    # a single one
	return $hand->delete_contenders("/zklock$path", @like);
}

sub counted { return zk_counted_session($node, $zk, 0, @_); }

# Two tests: a statement fails, since somebody has deleted that after these were executed
sub is_lost_meanwhile
{
	my ($session, $before, $path, $statement, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session->value($before);
	delete_by_hand($path);
	return zk_is_lost($session->query($statement), $path, $name);
}

sub rows
{
	my ($who, $table) = @_;
	return $admin->value(sprintf q{SELECT count(*) FROM %s WHERE who LIKE '%s'}, $table // 't', $who);
}

# -------------------------------------------------------------------- the costs

sub cost_of
{
	my %cost = cost($zk, @_);
	return { %cost{qw(requests transactions)} };
}

subtest 'what a COMMIT costs' => sub {
	foreach my $guard (qw(off on strict))
	{
		# releases are confirmed when COMMIT returns, so that they are counted
		my ($session, $proxy) = counted(commit_guard => $guard, release_timeout => '1s', session_timeout => '1h');
		my $asks = $guard eq 'strict' ? 1 : 0;

		# (How many do not matter: t/011)
		$session->value(q{BEGIN; INSERT INTO t VALUES ('cost'); SELECT bool_and(zk_xact_lock('/k/' || i)) FROM generate_series(1, 5) i});
		is_deeply(
			cost_of($session, $proxy, 'COMMIT'),
			{ requests => ($asks ? 'multi ' : '') . 'delete*5', transactions => 5 + $asks },
			"$guard: 5 locks of the transaction");
		if ($asks)
		{
			my ($multi) = grep { $_->[2] eq 'multi' && $_->[1] eq '>' } $proxy->log;
			is(() = ($multi ? $multi->[7] : '') =~ /check \/zklock\/k\//g, 5, "$guard: the one request checks all");
			is(join(' ', map { "$_->[1]$_->[2]" } (grep { $_->[1] =~ /[<>]/ && $_->[2] =~ /multi|delete/ } $proxy->log)[ 0 .. 2 ]),
				'>multi <multi >delete', "$guard: and nothing is given back before its answer");
		}

		foreach (
			[ '', q{BEGIN; INSERT INTO t VALUES ('cost'); COMMIT}, 0, 'no locks, no holds' ],
			[ q{SELECT zk_lock('/session/1'), zk_lock('/session/2')}, q{INSERT INTO t VALUES ('cost')}, $asks, 'who writes while the session holds two locks' ],
			[ '', 'BEGIN; SELECT count(*) FROM t; COMMIT', 0, 'who only reads meanwhile' ],
			[ '', q{BEGIN; INSERT INTO t VALUES ('cost'); ROLLBACK}, 0, 'a ROLLBACK' ],
			[ q{BEGIN; INSERT INTO t VALUES ('cost')}, qq{PREPARE TRANSACTION 'cost_$guard'}, $asks, 'PREPARE TRANSACTION as COMMIT' ],
			[ '', qq{COMMIT PREPARED 'cost_$guard'}, 0, 'COMMIT PREPARED relies on nothing' ],
			[ 'SELECT zk_unlock_all()', q{INSERT INTO t VALUES ('cost')}, 0, 'after zk_unlock_all' ],
			# nothing relies on what was rolled back to a savepoint
			[ q{BEGIN; INSERT INTO t VALUES ('cost'); SAVEPOINT s; SELECT zk_lock('/savepoint'); ROLLBACK TO s}, 'COMMIT', 0, 'what was rolled back to a savepoint' ])
		{
			my ($before, $sql, $n, $what) = @$_;
			$session->value($before) if $before;
			$proxy->wait_answers('delete') if $before =~ /savepoint/;
			is_deeply(cost_of($session, $proxy, $sql), { requests => $n ? 'multi' : '', transactions => $n }, "$guard: $what: $n");
		}
		$session->quit;
		zk_until(sub { $proxy->connections == 0 }, 'its session to be closed, which is a transaction, too');
	}
};

# An older lock
my ($aging, $aging_proxy) = counted(session_timeout => '20s');
$aging->value(q{BEGIN; INSERT INTO t VALUES ('aging'); SELECT zk_lock('/aging')});
my ($doubting, $doubting_proxy) = counted(session_timeout => '20s', cancel_on_loss => 'doubt');
$doubting->value(q{BEGIN; INSERT INTO t VALUES ('doubting'); SELECT zk_lock('/doubting')});
my $aging_since = time;

# And a network that becomes slower, until each answer comes after more than two thirds
my ($slow, $slow_proxy) = counted(session_timeout => '12s', operation_timeout => '10s');
$slow->value(q{BEGIN; INSERT INTO t VALUES ('slow'); SELECT zk_lock('/slow')});
$slow_proxy->delay_ms(2100);
$slow_proxy->clear_log;

# And a process that is stopped until its session nearly ends, while the answer to a
# heartbeat is on its way, and all its threads wait: otherwise the library would take
# the time for a silence of the server, and connect anew
my ($asleep, $asleep_proxy) = counted(session_timeout => '15s');
$asleep->value(q{BEGIN; INSERT INTO t VALUES ('asleep'); SELECT zk_lock('/asleep')});
quiet($asleep_proxy);
$asleep_proxy->clear_log;
$asleep_proxy->hold('sync');
$asleep_proxy->wait_for('sync');
zk_until(sub { !grep { slurp_file($_) !~ /\) S / } glob '/proc/' . $asleep->pid . '/task/*/stat' }, 'all threads to sleep');
Child::suspend($asleep->pid);
my $asleep_since = time;
$asleep_proxy->release;

$slow_proxy->wait_answers('sync');
$slow_proxy->delay_ms(4200);
$slow->send('COMMIT');
my $slow_since = time;

# The leader may learn only with its follower's next report that the session is active
# again, and must not end it before that.
subtest 'on: a process that was stopped for most of the session timeout' => sub {
	zk_until(sub { time - $asleep_since > 10.1 }, 'more than two thirds of 15 s');
	my $awake_since = time;
	kill 'CONT', $asleep->pid;
	$asleep->value('COMMIT');
	cmp_ok(time - $awake_since, '>', 5, 'COMMIT asks again, a third of the timeout after the first answer');
	is(rows('asleep'), 1, 'and is done');
	my $next_since = time;
	$asleep->value(q{BEGIN; INSERT INTO t VALUES ('asleep 2'); COMMIT});
	in_time(time - $next_since, 2, 'the next one need not wait');
	is(rows('asleep 2'), 1, 'and is done, too');
	is($asleep->value('SELECT reconnections FROM zk_session'), 0, '(all on the same connection)');
	$asleep->quit;
};

# Heartbeats do not go through the quorum, except where a cancel waits for its word.  (The
# transactions of the server are also those of the slow one, which goes on asking.)
subtest 'on: a lock that is older than a third of the session timeout' => sub {
	my $age = sub { time - $aging_since };
	is(rows('aging'), 0, 'not yet committed');
	zk_until(sub { $age->() > 6.8 }, 'a third of 20 s');
	# right after the heartbeats, so that the next are not counted
	$_->clear_log for $aging_proxy, $doubting_proxy;
	$aging_proxy->wait_answers('sync');
	$doubting_proxy->wait_answers('multi');
	is(cost_of($aging, $aging_proxy, 'COMMIT')->{requests}, 'multi',
		'one round trip, since no quorum was asked meanwhile');
	is(rows('aging'), 1, 'committed');
	is(cost_of($aging, $aging_proxy, q{INSERT INTO t VALUES ('aging')})->{requests}, '',
		'the next one need not ask');

	is(cost_of($doubting, $doubting_proxy, 'COMMIT')->{requests}, '',
		'cancel_on_loss = doubt: nothing, since a heartbeat has asked the quorum');
	is(rows('doubting'), 1, '- committed');
	$_->quit for $aging, $doubting;
};

# Where these are left out, nobody is to wait for a process that is stopped.
kill 'CONT', $asleep->pid unless $WHOLE;

# ---------------------------------------------------------- deleted by hand

sub wait_lost
{
	my ($session, $count) = @_;
	zk_until(sub { $session->value(q{SELECT count(*) FROM zk_locks WHERE state = 'lost'}) == $count }, 'lost');
	return;
}

# Two tests: false, with one warning that names the path
sub is_given_back_lost
{
	my ($session, $call, $path) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $result = $session->query("SELECT $call('$path')");
	is($result->{out}, 'f', "$call: false");
	is(() = "@{ $result->{warnings} }" =~ /"\Q$path\E" had been lost/g, 1, "$call: one warning");
	return;
}

# The ways to hold something at a path: the call, the modes that are lost then, what to delete
# (default: all), and the style
my @kind = map { { name => $_->[0], take => $_->[1], lost => $_->[2], delete => $_->[3], style => $_->[4] // 'curator' } } (
	[ 'exclusive', q{zk_lock('%s')}, 'exclusive' ],
	[ 'shared', q{zk_lock_shared('%s')}, 'shared' ],
	[ 'single', q{zk_lock('%s')}, 'exclusive', undef, 'single' ],
	[ 'semaphore', q{zk_semaphore_acquire('%s', 2)}, 'semaphore' ],
	[ 'one of several', q{zk_lock_many('{%s,%s/2,%s/1}')}, 'exclusive' ],
	[ "shared on the exclusive's node", q{zk_lock('%s'), zk_lock_shared('%s')}, 'exclusive, shared' ],
	map({ [ "downgraded, $_", q{zk_lock('%s'), zk_lock_shared('%s'), zk_unlock('%s')}, 'shared', undef, $_ ] } qw(curator curator_rw kazoo)),
	[ 'under an upgrade: the shared one', q{zk_lock_shared('%s'), zk_lock('%s')}, 'shared', qr/-shared-lock-/ ],
	[ 'under an upgrade: the exclusive one', q{zk_lock_shared('%s'), zk_lock('%s')}, 'exclusive', qr/(?<!-shared)-lock-/ ]);

sub take
{
	my ($kind, $path, $scope) = @_;
	my $sql = $kind->{take};
	$sql =~ s/zk_(?!unlock)/zk_xact_/g if ($scope // '') eq 'transaction';
	# what is given back by a call has session scope
	$sql =~ s/zk_xact_lock\(/zk_lock(/ if $sql =~ /zk_unlock/;
	return 'SELECT ' . ($sql =~ s/%s/$path/gr);
}

# -------------------------------------------------------------- at COMMIT

# With strict it is asked for, and otherwise noticed: with a shorter timeout, as a hold that
# is older than a heartbeat has a watch on its node.  A ZooKeeper session that is over takes
# all kinds along.
subtest 'a node deleted before COMMIT' => sub {
	my @of;
	foreach my $guard (qw(strict on over off))
	{
		# what is off judges no kind
		foreach my $kind ($guard eq 'off' ? $kind[0] : @kind)
		{
			foreach my $scope ($guard eq 'strict' ? 'transaction' : (), 'session')
			{
				my $name = "$guard, $kind->{name}, $scope scope";
				my $path = '/' . ($name =~ tr/a-z/_/cr);
				my $session = zk_session_with(
					$node, commit_guard => $guard eq 'over' ? 'on' : $guard, node_style => $kind->{style}, $guard eq 'strict' ? () : (session_timeout => '10s'));
				$session->value("BEGIN; INSERT INTO t VALUES ('$path'); " . take($kind, $path, $scope));
				push @of, { session => $session, guard => $guard, kind => $kind, path => $path, name => $name };
			}
		}
	}
	foreach (@of)
	{
		my ($session, $guard, $kind, $path, $name) = @$_{qw(session guard kind path name)};
		my $lost = split /, /, $kind->{lost};
		if ($guard eq 'over')
		{
			$zk->end_session($session->value('SELECT session_id FROM zk_session'), $session->pid);
			zk_until(sub { zk_holds($session) !~ /held|suspect/ }, 'all to be lost');
		}
		else { delete_by_hand($path, $kind->{delete}); }
		if ($guard =~ /^o(?:n|ff)$/)
		{
			wait_lost($session, $lost);
			is($session->value(q{SELECT string_agg(DISTINCT mode, ', ' ORDER BY mode) FROM zk_locks WHERE state = 'lost'}),
				$kind->{lost}, "$name: zk_locks tells what is lost");
		}
		my $result = $session->query('COMMIT');
		if ($guard eq 'off')
		{
			is($result->{state}, '', "$name: commits");
			is($session->value(q{SELECT count(*) FROM zk_locks WHERE state = 'lost'}), $lost, "$name: it is lost all the same");
		}
		else
		{
			is($result->{state}, '40001', "$name: 40001");
			like($result->{message}, qr{"\Q$path\E(?:/[12])?"}, "$name: names the path");
			is(zk_holds($session), '', "$name: what the transaction took is gone");
		}
		is(rows($path), $guard eq 'off' ? 1 : 0, "$name: what is committed");
		$session->query('SELECT zk_unlock_all()');
		is($session->query('BEGIN; ' . take($kind, $path) . qq{; INSERT INTO t VALUES ('again $path'); COMMIT})->{state},
			'', "$name: the next one commits");
		is(rows("again $path"), 1, "$name: it is there");
		next if $name !~ /^strict.*session/;

		# who has taken it before, and writes
		delete_by_hand($path, $kind->{delete});
		zk_is_lost($session->query(q{INSERT INTO t VALUES ('strict')}), $path, "$name, taken before, and a write");
		is($session->query('SELECT count(*) FROM t')->{state}, '', "$name: who writes nothing commits");
		is($session->query(take($kind, $path))->{state}, '55000', "$name: nor is it to be had again");
		$session->value(q{BEGIN; INSERT INTO t VALUES ('strict')});
		zk_is_lost($session->query(q{PREPARE TRANSACTION 'lost'}), $path, "$name, PREPARE TRANSACTION");
		$session->query('SELECT zk_unlock_all()');
		is(zk_holds($session), '', "$name: given back");
		is($session->query(q{INSERT INTO t VALUES ('free')})->{state}, '', "$name: then a write commits");
	}
	my $session = zk_session_with($node, commit_guard => 'strict');
	is_lost_meanwhile($session, q{BEGIN; SELECT zk_xact_lock('/strict/reads')}, '/strict/reads', 'COMMIT', 'who writes nothing, and took it itself');
	is(rows('strict'), 0, 'nothing that relied on one of these was committed');
	is(rows('free'), @kind, 'what did not was');
	is($admin->value('SELECT count(*) FROM pg_prepared_xacts'), 0, 'nothing is prepared');
};

subtest 'what was rolled back to a savepoint, or given back in time, does not count' => sub {
	my $session = zk_session_with($node, commit_guard => 'strict');
	foreach my $take (
		q{zk_lock_shared('/savepoint')}, q{zk_xact_lock_shared('/savepoint')},
		q{zk_semaphore_acquire('/savepoint', 1)}, q{zk_xact_semaphore_acquire('/savepoint', 1)},
		q{zk_xact_lock_many('{/savepoint,/savepoint/b}')})
	{
		$session->value("BEGIN; INSERT INTO t VALUES ('savepoint'); SAVEPOINT s; SELECT $take");
		delete_by_hand('/savepoint');
		is($session->query('ROLLBACK TO s; COMMIT')->{state}, '', "$take: rolled back, lost");
	}
	is(rows('savepoint'), 5, 'all are committed');

	# given back, which learns of the loss from its own delete
	foreach my $guard (qw(on strict))
	{
		$session->value("SET zklock.commit_guard = $guard");
		foreach (
			[ 'zk_lock', 'zk_unlock', '' ],
			[ 'zk_lock_shared', 'zk_unlock_shared', '' ],
			[ 'zk_semaphore_acquire', 'zk_semaphore_release', ', 1' ])
		{
			my ($take, $give, $permits) = @$_;
			foreach my $again ('', "SAVEPOINT s; SELECT $take('/back'$permits); RELEASE s;")
			{
				$session->value(qq{BEGIN; INSERT INTO t VALUES ('back'); SELECT $take('/back'$permits)});
				delete_by_hand('/back');
				is_given_back_lost($session, $give, '/back');
				zk_is_lost($session->query("$again COMMIT"), '/back', "$guard, $give: deleted a moment before it. $again");
			}
			is($session->query(qq{BEGIN; INSERT INTO t VALUES ('in time'); SELECT $take('/back'$permits), $give('/back'); COMMIT})->{state},
				'', "$guard, $give: held until it was given back");
		}
	}
	is(rows('back') . rows('in time'), '06', 'the one was not committed, the other was');

	# as a reader under a writer's node, which alone learns of the loss
	$session->value(q{SELECT zk_lock('/back')});
	$session->value(q{BEGIN; INSERT INTO t VALUES ('back'); SELECT zk_lock_shared('/back'), zk_unlock_shared('/back')});
	delete_by_hand('/back');
	is_given_back_lost($session, 'zk_unlock', '/back');
	zk_is_lost($session->query('COMMIT'), '/back', 'a reader that was given back before the writer');
	$session->quit;

	# One of two holds is released while the lock is certainly held.  What
	# happens to the other one does not concern this transaction.
	$session = zk_session_with($node, session_timeout => '10s');
	$session->value(q{SELECT zk_lock('/back')});
	$session->value(q{BEGIN; SELECT zk_lock('/back'), zk_unlock('/back')});
	delete_by_hand('/back');
	zk_wait_hold($session, 'lost');
	is($session->query(q{SELECT pg_notify($$back$$, $$$$); COMMIT})->{state}, '', 'on: a hold that was given back in time');
	is($session->query(q{INSERT INTO t VALUES ('back')})->{state}, '40001', 'on: but who writes relies on the other');
	is(rows('back'), 0, 'nothing of this was committed');
};

# The leader would have to be told after each of them
subtest 'on: answers that all come after a silence' => sub {
	my $result = $slow->wait;
	isnt($result->{state}, '', 'COMMIT fails');
	in_time(time - $slow_since, 2 * 10 + 4 + $SLACK, 'after twice operation_timeout, and a third of the session timeout');
	is(rows('slow'), 0, 'the row is not there');
	$slow_proxy->delay_ms(0);
	$slow->quit;
};

# ------------------------------------------------------------ given back

# Each function drops the lost holds of its own mode.  (Tokens when a lock is upgraded and
# downgraded: sql/shared; stale ones: t/027)
subtest 'zk_unlock, zk_unlock_shared and zk_semaphore_release of what is lost' => sub {
	my $session = zk_session_with($node, commit_guard => 'on', session_timeout => '10s');
	my $warns = sub { return "f, WARNING: the lock on \"$_[0]\" had been lost"; };
	my $places = 'semaphore session 2 held';
	my $had = 'exclusive session 1 held, shared session 1 held';

	# a call, or what is deleted by hand; what comes of it, or how many holds are lost then;
	# and what is held then
	foreach (
		[ q{zk_lock('/lost'), zk_lock('/lost'), zk_lock_shared('/lost'), zk_lock_shared('/lost'), zk_lock_shared('/lost'),
			zk_semaphore_acquire('/lost', 2), zk_semaphore_acquire('/lost', 2)}, 't|t|t|t|t|t|t', "exclusive session 2 held, $places, shared session 3 held" ],
		[ [ '/lost', qr/-lock-/ ], 2, "exclusive session 2 lost, $places, shared session 3 lost" ],
		[ q{zk_lock_token('/lost') IS NULL, bool_and(token IS NULL) FROM zk_locks WHERE state = 'lost'}, 't|t' ],
		[ q{zk_fence('/lost')}, qr/^40001$/ ],
		map({ [ $_, '55000' ] } q{zk_lock('/lost')}, q{zk_try_lock('/lost')}, q{zk_lock_shared('/lost')}, q{zk_try_xact_lock_shared('/lost')},
			q{zk_lock_many('{/lost,/other}')}, q{zk_xact_lock_many('{/other,/lost}', '0')}),
		[ q{count(*) FROM zk_locks WHERE path = '/other'}, 0 ],
		[ q{zk_semaphore_acquire('/lost', 2), zk_semaphore_release('/lost')}, 't|t' ],
		[ q{zk_unlock('/lost')}, $warns->('/lost'), "$places, shared session 3 lost" ],
		# a shared lock was never good for it
		[ q{zk_fence('/lost')}, qr/^55000$/ ],
		[ q{zk_lock('/lost')}, '55000' ],
		[ q{zk_unlock('/lost')}, qr/^f, WARNING: you don't own/, "$places, shared session 3 lost" ],
		[ q{zk_unlock_shared('/lost')}, $warns->('/lost'), $places ],
		[ q{zk_lock('/lost'), zk_unlock('/lost'), zk_lock_shared('/lost')}, 't|t|t' ],
		[ [ '/lost', qr/-semaphore-/ ], 1, 'semaphore session 2 lost, shared session 1 held' ],
		[ q{zk_semaphore_acquire('/lost', 2)}, '55000' ],
		[ q{zk_try_lock('/lost'), zk_unlock('/lost')}, 't|t' ],
		[ q{zk_semaphore_release('/lost')}, $warns->('/lost'), 'shared session 1 held' ],
		[ q{zk_semaphore_acquire('/lost', 2)}, 't' ],
		[ 'zk_unlock_all()', 2 ],

		# the exclusive one on top of a shared one
		[ q{zk_lock_shared('/upgraded'), zk_lock('/upgraded')}, 't|t' ],
		[ [ '/upgraded', qr/(?<!-shared)-lock-/ ], 1, 'exclusive session 1 lost, shared session 1 held' ],
		[ q{zk_unlock('/upgraded')}, $warns->('/upgraded'), 'shared session 1 held' ],
		[ q{zk_lock('/upgraded')}, 't', $had ],
		[ 'zk_unlock_all()', 2 ],

		# zk_unlock_all counts those that are held, and warns of the others
		[ q{zk_lock('/a'), zk_lock_shared('/a'), zk_lock_shared('/b'), zk_lock_shared('/b'), zk_semaphore_acquire('/a', 1),
			zk_semaphore_acquire('/c', 1), zk_lock_many('{/d,/e}')}, 't|t|t|t|t|t|t' ],
		[ ['/b'], 1 ],
		[ ['/c'], 2 ],
		[ ['/d'], 3 ],
		[ 'zk_unlock_all()', qr{^4(?=.*"/b")(?=.*"/c")(?=.*"/d")(?:, WARNING: [^,]*){3}$}, '' ],
		[ q{zk_lock_shared('/b'), zk_semaphore_acquire('/c', 1)}, 't|t' ],
		[ ['/b'], 1 ],
		[ '1; DISCARD ALL', $warns->('/b') =~ s/^f/1/r, '' ],
		[ q{zk_lock('/b'), zk_semaphore_acquire('/c', 1), zk_unlock_all()}, 't|t|2' ])
	{
		my ($call, $expected, $held) = @$_;
		my $name = ref $call ? "deleted: @$call" : $call;
		if (ref $call)
		{
			delete_by_hand(@$call);
			wait_lost($session, $expected);
		}
		else
		{
			my $result = $session->query("SELECT $call");
			like($result->{state} || join(', WARNING: ', $result->{out}, @{ $result->{warnings} }), ref $expected ? $expected : qr/^\Q$expected\E$/, $name);
			like($result->{hint}, qr/zk_unlock|zk_semaphore_release/, '- what to do is told') if $expected eq '55000';
		}
		is(zk_holds($session), $held, "$name: what is held") if defined $held;
	}
};

subtest 'several locks, one of them deleted by hand' => sub {
	my ($session, $proxy) = counted(session_timeout => '16s');
	# with so many others, before and after these, that the session makes room for more watches
	my $others = sub { $session->value("SELECT zk_lock_many(ARRAY(SELECT '/several/$_[0]/' || i FROM generate_series(1, 40) i))") };
	$others->('before');
	$session->value(q{SELECT zk_lock('/several/1')});
	$session->value(q{SELECT zk_lock('/several/2'), zk_lock_shared('/several/3'), zk_semaphore_acquire('/several/4', 2)});
	$others->('after');
	$proxy->clear_log;
	$proxy->wait_answers('sync');
	zk_until(sub { $proxy->requests == 84 }, 'a watch on each, with the first heartbeat');
	is($proxy->count('sync'), 1, 'one heartbeat has set all watches');
	foreach my $n (1 .. 3)
	{
		$session->value(q{BEGIN; INSERT INTO t VALUES ('several')});
		$hand->delete("/zklock/several/$n/$_") for $hand->children("/zklock/several/$n");
		zk_wait_hold($session, 'lost', "/several/$n");
		is($proxy->count('sync'), 1, "lock $n: before the next heartbeat") if $n == 1;
		my $result = $session->query('COMMIT');
		zk_is_lost($result, "/several/$n", "lock $n");
		is($result->{detail}, 'Its node in ZooKeeper was deleted.', '- and says how');
		$session->query($n == 3 ? "SELECT zk_unlock_shared('/several/3')" : "SELECT zk_unlock('/several/$n')");
	}
	is(rows('several'), 0, 'nothing was committed');
};

# Nor does another node's answer prove that this one exists.
subtest 'several locks, and no watch can tell' => sub {
	# with this, heartbeats ask the quorum
	my ($session, $proxy) = counted(session_timeout => '12s', cancel_on_loss => 'doubt');
	$session->value(q{SELECT zk_lock('/unseen/1'), zk_lock('/unseen/2')});
	zk_until(sub { $proxy->count('multi') >= 2 }, 'their creates to be too old to count');

	# on the next connection the session is proven alive at once, by one of the
	# nodes, while the watches are not armed yet
	$proxy->hold('getData');
	$proxy->drop;
	$proxy->wait_held;
	delete_by_hand('/unseen/1');
	my $asked = $proxy->count('multi');
	$session->send(q{INSERT INTO t VALUES ('unseen')});
	zk_until(sub { $session->is_done || $proxy->count('multi') > $asked }, 'COMMIT to ask');
	ok(!$session->is_done, 'COMMIT asks');
	$proxy->release;
	zk_is_lost($session->wait, '/unseen/1', 'and is told');
	is(rows('unseen'), 0, 'nothing was committed');
};

# PostgreSQL is then in the middle of its list of callbacks at COMMIT.
subtest 'another extension that writes elsewhere, or locks, while COMMIT is under way' => sub {
	my $library = zk_library('extension');
	$admin->value("CREATE FUNCTION late(text) RETURNS void LANGUAGE c AS '$library'");

	my $session = zk_session_with($node, commit_guard => 'strict');
	$session->value(q{INSERT INTO there VALUES ('first')});
	$session->value(q{SELECT zk_lock('/late')});
	foreach my $time (1 .. 3)
	{
		$session->value(q{BEGIN; INSERT INTO t VALUES ('nested'); SELECT late($$INSERT INTO there VALUES ('nested')$$)});
		is($session->query('COMMIT')->{state}, '', "commits ($time)");
	}
	is(rows('nested'), 3, 'each is there');
	is_lost_meanwhile($session, q{BEGIN; INSERT INTO t VALUES ('too late'); SELECT late($$INSERT INTO there VALUES ('too late')$$)}, '/late', 'COMMIT', 'with a lost lock');
	is(rows('too late') + rows('too late', 'remote'), 0, 'nothing was written');
	$session->value(q{SELECT zk_unlock_all()});
	my $result = $session->query(q{BEGIN; INSERT INTO t VALUES ('locks'); SELECT late($$SELECT zk_xact_lock('/late/own'); NOTIFY late$$); COMMIT});
	is($result->{state}, '', 'a lock that is taken then') or diag $result->{err};
	is($session->value('SELECT count(*) FROM zk_locks'), 0, '- goes with the transaction');
};

# These have removed or copied files before they commit; or they have asked the publisher
# of a subscription for a slot, here one that nobody reaches.  Nor are they refused when that
# is done.
subtest 'what cannot be undone is not begun' => sub {
	my $session = zk_session_with($node, commit_guard => 'strict');
	my $publisher = q{CONNECTION 'host=/nowhere' PUBLICATION p};
	$session->value($_)
	  for 'CREATE DATABASE doomed', "CREATE SUBSCRIPTION s $publisher WITH (connect = false)", 'SET allow_in_place_tablespaces = on',
	  q{CREATE TABLESPACE doomed LOCATION ''}, q{SELECT zk_lock('/undone')};
	delete_by_hand('/undone');
	zk_is_lost($session->query($_), '/undone', $_)
	  for 'DROP DATABASE doomed', 'CREATE DATABASE other', 'ALTER DATABASE doomed SET TABLESPACE doomed', 'DROP TABLESPACE doomed',
	  q{CREATE TABLESPACE other LOCATION ''}, "CREATE SUBSCRIPTION other $publisher", 'ALTER SUBSCRIPTION s ENABLE', 'DROP SUBSCRIPTION s';
	my $left = q{SELECT concat_ws(', ', (SELECT string_agg(datname || datconnlimit, ' ') FROM pg_database WHERE datname IN ('doomed', 'other')),
		(SELECT string_agg(spcname, ' ') FROM pg_tablespace WHERE spcname IN ('doomed', 'other')),
		(SELECT string_agg(subname || subenabled, ' ') FROM pg_subscription))};
	is($admin->value($left), 'doomed-1, doomed, sfalse', 'database, tablespace and subscription are as they were');
	$session->value('SELECT zk_unlock_all()');
	is($session->query('DROP SUBSCRIPTION s')->{state}, '08006', 'DROP SUBSCRIPTION is begun then');
	is($session->query($_)->{state}, '', "then: $_")
	  for 'ALTER SUBSCRIPTION s SET (slot_name = NONE)', 'DROP SUBSCRIPTION s', 'ALTER DATABASE doomed SET TABLESPACE doomed';

	$session->value(q{SELECT zk_lock('/undone')});
	my $inside = zk_session($node, dbname => 'doomed');
	$session->send('DROP DATABASE doomed');
	zk_until(sub { $admin->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND mode = 'AccessExclusiveLock' AND granted}) },
		'it waits for those who are in there');
	delete_by_hand('/undone');
	$inside->quit;
	is($session->wait->{state}, '', 'DROP DATABASE, which loses its lock meanwhile, commits');
	zk_is_lost($session->query(q{INSERT INTO t VALUES ('doomed')}), '/undone', 'the next transaction does not');
	$session->value('SELECT zk_unlock_all()');
	is($session->query('DROP TABLESPACE doomed')->{state}, '', 'the tablespace is empty');
	is($admin->value($left), '', 'and all is gone');
};

# Lost locks are checked for at the COMMIT inside the procedure, not at the end of the CALL.
subtest 'COMMIT in a procedure' => sub {
	my $session = zk_session_with($node, commit_guard => 'strict');
	zk_is_lost($session->query(
			q{DO $$ BEGIN
			INSERT INTO t VALUES ('part 1');
			COMMIT;
			PERFORM zk_xact_lock('/procedure');
			INSERT INTO t VALUES ('part 2');
			PERFORM zk_lock_break('/procedure', node) FROM zk_lock_queue('/procedure');
			COMMIT;
			INSERT INTO t VALUES ('part 3');
		END $$}), '/procedure', 'the COMMIT after the loss');
	is($admin->value(q{SELECT string_agg(who, ', ') FROM t WHERE who LIKE 'part%'}), 'part 1', 'the one before it stands, the rest is not there');
};

# ------------------------------------------------- without an xid, or elsewhere

subtest 'a transaction that only writes through postgres_fdw' => sub {
	my $session = zk_session_with($node, commit_guard => 'strict');
	$admin->value(
		q{CREATE FUNCTION write_there() RETURNS integer LANGUAGE sql AS $$ INSERT INTO public.remote VALUES ($s$reader$s$) RETURNING 1 $$;
		CREATE VIEW writer AS SELECT write_there() AS n;
		CREATE FOREIGN TABLE writer_there (n integer) SERVER loopback OPTIONS (table_name 'writer')});
	my $lock = q{SELECT zk_xact_lock('/fdw')};
	my $many = q{DO $$ BEGIN FOR i IN 1..12 LOOP
		BEGIN PERFORM zk_xact_lock('/again/' || i); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN END; END LOOP; END $$};
	foreach (
		[ 'used before the lock', 'before', 0, "INSERT INTO there VALUES ('before'); $lock" ],
		# Its callback was registered later, and would run first
		[ 'first used after the lock', 'after', 0, "$lock; INSERT INTO t VALUES ('after'); INSERT INTO there VALUES ('after')" ],
		# So it is after any number of reasons to be first
		[ 'first used after many locks', 'after many', 0, "$many; $lock; INSERT INTO there VALUES ('after many')" ],
		# The README warns of this one: its writing cannot be seen from here.
		[ 'first used after the lock, to read', 'reader', 1, "$lock; SELECT n FROM writer_there" ])
	{
		my ($what, $who, $written, $sql) = @$_;
		$session = zk_session_with($node, commit_guard => 'strict');
		is_lost_meanwhile($session, "BEGIN; $sql", '/fdw', 'COMMIT', "postgres_fdw, $what");
		is(rows($who) . rows($who, 'remote'), "0$written", '- committed there: ' . $written);
		is_lost_meanwhile($session, "BEGIN; $lock; INSERT INTO there VALUES ('late')", '/fdw', 'COMMIT', '- and used by an earlier transaction');
		$session->value("BEGIN; $lock; INSERT INTO there VALUES ('held'); COMMIT");
	}
	is(rows('late', 'remote') . rows('held', 'remote'), '04', 'postgres_fdw: committed with a lock that is held');

	# these reasons take no memory
	$session->value(
		q{CREATE FUNCTION say() RETURNS void LANGUAGE plpgsql AS $$ BEGIN NOTIFY said; END $$;
		BEGIN; SELECT zk_xact_lock('/fdw'), say()});
	my $used = sub { $session->value(q{SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext'}) };
	my $before = $used->();
	$session->value('SELECT count(say()) FROM generate_series(1, 20000)');
	cmp_ok($used->() - $before, '<', 300_000, '20,000 reasons in a statement leave next to nothing');
	$session->value('COMMIT');
};

# The lock was held until then, but its node may have been gone before: a delete that is
# sent again does not tell
subtest 'the answer to a release is lost' => sub {
	foreach my $guard (qw(on strict))
	{
		my ($session, $proxy) = counted(commit_guard => $guard);
		$session->value(qq{BEGIN; SELECT zk_lock('/answer'); INSERT INTO t VALUES ('answer $guard')});
		$proxy->swallow_and_drop('delete');
		is($session->value(q{SELECT zk_unlock('/answer')}), 't', "$guard: it is released");
		my $result = $session->query('COMMIT');
		is($result->{state}, $guard eq 'on' ? '' : '40001', $guard eq 'on' ? '- and was proven a moment ago' : '- and strict asks of each moment');
		like($result->{err}, qr/DETAIL:  ZooKeeper could not confirm that the lock was still held when it was released\.\nHINT:  Retry the transaction\./, '- which is said')
		  if $guard eq 'strict';
		is(rows("answer $guard"), $guard eq 'on' ? 1 : 0, '- the row');
	}
};

# A transaction that took no lock relies on the session's locks if it has
# written.
subtest 'what counts as writing' => sub {
	$admin->value(
		q{CREATE TABLE parts (n integer, who text) PARTITION BY LIST (n);
		CREATE TABLE part_here PARTITION OF parts FOR VALUES IN (1);
		CREATE TABLE remote_part (n integer, who text);
		CREATE FOREIGN TABLE part_there PARTITION OF parts FOR VALUES IN (2) SERVER loopback OPTIONS (table_name 'remote_part');
		CREATE TABLE remote_more (who text);
		INSERT INTO remote_more VALUES ('stays');
		CREATE FOREIGN TABLE more (who text) SERVER loopback OPTIONS (table_name 'remote_more');
		CREATE VIEW view_there AS SELECT * FROM more;
		CREATE RULE tell AS ON UPDATE TO view_there DO ALSO NOTIFY told;
		CREATE FUNCTION write_more() RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO more VALUES ('function'); END $$});
	my $listener = zk_session($node);
	$listener->value('LISTEN news');
	foreach my $statement (
		q{INSERT INTO more VALUES ('insert')},
		q{UPDATE more SET who = 'update'},
		q{UPDATE view_there SET who = 'view'},
		q{DELETE FROM more WHERE who > random()::text},
		q{WITH w AS (INSERT INTO more VALUES ('with') RETURNING who) SELECT who FROM w},
		q{EXPLAIN ANALYZE INSERT INTO more VALUES ('analyze')},
		q{SELECT write_more()},
		q{PREPARE p AS INSERT INTO more VALUES ('prepared'); EXECUTE p},
		q{TRUNCATE more},
		q{COPY more FROM PROGRAM 'echo copied'},
		q{INSERT INTO parts VALUES (2, 'routed')},
		q{COPY parts FROM PROGRAM 'echo 2,copied' (FORMAT csv)},
		q{NOTIFY news, 'lost'},
		q{DO $$ BEGIN NOTIFY news, 'lost'; END $$})
	{
		# a new one, which has not used the server before
		my $session = zk_session_with($node, commit_guard => 'strict');
		is_lost_meanwhile($session, q{SELECT zk_lock('/writes')}, '/writes', $statement, $statement);
		$session->value('SELECT zk_unlock_all()');
		is($session->query($statement =~ s/^PREPARE.*?; //r)->{state}, '', '- and without the lock it commits')
		  if $statement =~ /PREPARE|^NOTIFY/;
	}
	is($admin->value(q{SELECT string_agg(who, ' ' ORDER BY who) FROM remote_more}), 'prepared stays', 'nothing was written there');
	is($admin->value('SELECT count(*) FROM parts'), 0, 'nor through a partition');

	my $session = zk_session_with($node, commit_guard => 'strict');
	$session->value(q{SELECT zk_lock('/reads')});
	delete_by_hand('/reads');
	foreach my $statement (
		'SELECT count(*) FROM more',
		'SELECT who FROM more FOR UPDATE',
		q{EXPLAIN INSERT INTO more VALUES ('explained')},
		q{INSERT INTO parts SELECT 1, 'none' WHERE false},
		q{UPDATE part_here SET who = 'none'},
		q{COPY (SELECT who FROM more) TO PROGRAM 'cat >/dev/null'},
		q{BEGIN; SELECT pg_notify('news', 'not a write'); COMMIT})
	{
		is($session->query($statement)->{state}, '', "it reads only: $statement");
	}

	# what one transaction did does not matter for the next
	is($session->query(q{BEGIN; NOTIFY news, 'rolled back'; ROLLBACK; SELECT 1})->{state}, '', 'a transaction after one that notified');
	zk_is_lost($session->query(q{BEGIN; SAVEPOINT s; INSERT INTO more VALUES ('savepoint'); ROLLBACK TO s; COMMIT}),
		'/reads', 'what was taken back to a savepoint counts, as an xid would');
	$session->value('SELECT zk_unlock_all()');
	my $heard = '';
	zk_until(sub { $heard .= $listener->value('SELECT 1'); $heard =~ /not a write/ }, 'a notification');
	is(() = $heard =~ /"lost"/g, 1, 'only that which had no lock is heard');
};

# PreCommit_Notify comes after the guard, and waits for other notifiers.
subtest 'COMMIT does not wait for NOTIFY until its lock may be gone' => sub {
	my $timeout = 6;
	my %setting = (session_timeout => "${timeout}s");
	my $hanging = zk_session($node);
	zk_commits_hang($node, $admin);
	$hanging->value('SET synchronous_commit = on');
	my $event = sub { return $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $_[0]->pid) };
	$hanging->send(q{BEGIN; INSERT INTO t VALUES ('hangs'); NOTIFY hangs; COMMIT});
	zk_until(sub { $event->($hanging) eq 'SyncRep' }, 'a notifier that waits for its standby');

	my $began = time;
	my @waits = map {
		my $guard = $_;
		map { { name => "$guard, $_", s => zk_session_with($node, %setting, commit_guard => $guard), notify => $_ } } q{NOTIFY news}, q{SELECT pg_notify('news', 'x')}
	} qw(on strict);
	foreach (@waits)
	{
		$_->{s}->value("SET lock_timeout = '1h'; BEGIN; SELECT zk_xact_lock('/queued/' || pg_backend_pid()); INSERT INTO t VALUES ('queued'); $_->{notify}");
		$_->{s}->send('COMMIT');
	}
	foreach (@waits)
	{
		my ($name, $s) = @$_{qw(name s)};
		my $result = $s->wait;
		cmp_ok(time - $began, '>', $timeout / 4, "$name: not at once");
		zk_is_lost($result, '/queued/' . $s->pid, $name);
		like($result->{message}, qr/^could not commit: .* may have been lost/, '- as a loss');
		in_time($result->{seconds}, $timeout, '- before another can have the lock');
		is($s->value('SHOW lock_timeout'), '1h', 'lock_timeout is what it was');
	}

	# these are not to wait as long as that
	my $session = zk_session($node);
	$session->value(q{BEGIN; SELECT zk_xact_lock('/queued'); SET LOCAL lock_timeout = '100ms'; NOTIFY news});
	is($session->query('COMMIT')->{state}, '55P03', 'lock_timeout ends it sooner');
	$session->value(q{BEGIN; SELECT zk_xact_lock('/queued'); NOTIFY news});
	$session->send('COMMIT');
	zk_until(sub { $event->($session) eq 'object' }, 'it waits');
	is($session->cancel($admin)->{state}, '57014', 'so does a cancel');
	$session->value(q{BEGIN; SELECT zk_xact_lock('/queued'); INSERT INTO t VALUES ('not queued'); COMMIT});
	is(rows('not queued'), 1, 'who does not notify commits');

	# The time that a server of postgres_fdw takes to commit counts.
	$admin->value(
		q{CREATE TABLE remote_slow (who text);
		CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3.5); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER be_slow AFTER INSERT ON remote_slow DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION be_slow();
		CREATE FOREIGN TABLE slow_there (who text) SERVER loopback OPTIONS (table_name 'remote_slow')});
	my $slow = zk_session_with($node, %setting);
	$slow->value(q{BEGIN; SELECT zk_xact_lock('/queued'); INSERT INTO slow_there VALUES ('slow'); NOTIFY news});
	my $result = $slow->query('COMMIT');
	zk_is_lost($result, '/queued', 'after a server that was slow to commit');
	in_time($result->{seconds}, $timeout, '- before another can have the lock');
	cmp_ok($result->{seconds}, '>', 3.4, '- and that server was waited for');
	$slow->quit;
	is($event->($hanging), 'SyncRep', 'the notifier still waits');
	is(rows('queued'), 0, 'nothing was committed late');

	$session->value(q{BEGIN; SELECT zk_xact_lock('/queued'); INSERT INTO t VALUES ('at last'); NOTIFY news});
	$session->send('COMMIT');
	zk_until(sub { $event->($session) eq 'object' }, 'it waits');
	$admin->value('ALTER SYSTEM RESET synchronous_standby_names');
	$admin->value('SELECT pg_reload_conf()');
	is($hanging->wait->{state}, '', 'the notifier comes to its end');
	is($session->wait->{state}, '', 'who waited for it commits');
	is(rows('at last'), 1, 'the row is there');
	is($session->value('SHOW lock_timeout'), '0', 'lock_timeout is what it was');
};

# ---------------------------------------------------------- nobody to be asked

# All at the same time, since each waits.  Each session has a hold, and writes; nothing has been
# heard from ZooKeeper for more than a third of the session timeout.  (For all of it: t/034.
# Without a guard, and longer than operation_timeout: t/014)
subtest 'cut off at COMMIT' => sub {
	my $proxy = ZkProxy->new($zk);
	my %session = map {
		$_ => zk_session_with(
			$node, hosts => $proxy, operation_timeout => '1min', session_timeout => { on => '15s', terminated => '30s' }->{$_} // '60s',
			commit_guard => $_ eq 'on' ? 'on' : 'strict')
	} qw(on strict session terminated);
	foreach my $what (sort keys %session)
	{
		my $write = "INSERT INTO t VALUES ('cut $what')";
		$session{$what}->value($what eq 'session' ? "SELECT zk_lock('/cut/$what'); BEGIN; $write" : "BEGIN; $write; SELECT zk_xact_lock('/cut/$what')");
	}
	$proxy->cut_off;
	zk_wait_session($_, 'suspended') for values %session;
	sleep 5.1;    # more than a third of 15 s without an answer

	$_->send('COMMIT') for values %session;
	# still within the session timeouts
	ok(!$session{$_}->is_done, "$_: waits") for sort keys %session;
	my $terminated = delete $session{terminated};
	my $began = time;
	$admin->value('SELECT pg_terminate_backend(' . $terminated->pid . ')');
	$terminated->wait_error;
	in_time(time - $began, $SLACK, 'terminated: at once');
	my $result = $terminated->wait;
	is("$result->{state} $result->{closed}", '57P01 1', 'terminated: 57P01, and the end');
	is(rows('cut terminated'), 0, 'its row is not there');

	$proxy->pass;
	foreach my $what (sort keys %session)
	{
		my $s = $session{$what};
		is($s->wait->{state}, '', "$what: commits when it is back");
		is(rows("cut $what"), 1, "$what: the row is there");
		is($s->value('SELECT losses FROM zk_session'), 0, "$what: in the same ZooKeeper session");
		zk_works($s, "$what: works");
	}
	# that of the one that was terminated would be there for half a minute
	my %of = $zk->ephemerals;
	$zk->end_sessions_of(grep { m{^/zklock/cut/terminated/} } map { @$_ } values %of);
	$_->quit for values %session;
};

subtest 'the answer to the guard is lost' => sub {
	my ($session, $proxy) = counted(commit_guard => 'strict');
	my $begin = sub {
		$session->value("BEGIN; INSERT INTO t VALUES ('$_[0]'); SELECT zk_xact_lock('/answer')");
		$proxy->clear_log;
	};

	# (One that is only swallowed is as silence: t/034, t/014)
	foreach my $how (qw(swallow_and_drop drop_request))
	{
		$begin->($how);
		$proxy->$how('multi');
		is($session->query('COMMIT')->{state}, '', "$how: reconnects, asks again, and commits");
		cmp_ok($proxy->count('multi'), '>=', 2, "$how: asked twice");
		is(rows($how), 1, "$how: the row is there");
	}

	# What is true no longer when the answer is read: the node is deleted before it asks again, or
	# when it was answered, which the next packet tells, since each is watched before its own
	# create is too old to count; or the next one has the lock.
	my $awake = sub { my ($what) = @_; Child::suspend($session->pid); $proxy->release; $what->(); kill 'CONT', $session->pid; };
	my $next = zk_session($node);
	foreach (
		[ 'deleted', '60s', 'hold_request', sub { }, sub { delete_by_hand('/answer'); $proxy->cut_off; $proxy->release; $proxy->pass; } ],
		[ 'overtaken', '12s', 'hold', sub { $proxy->wait_answers('getData') }, sub { delete_by_hand('/answer'); $awake->(sub { $proxy->wait_answers('event') }) } ],
		[ 'late', '6s', 'hold',
			sub { $next->send(q{SELECT zk_lock('/answer')}); zk_wait_queued($zk, $next); },
			sub { $awake->(sub { is($next->wait->{out}, 't', 'late: the next one has the lock') }) } ])
	{
		my ($what, $timeout, $hold, $before, $meanwhile) = @$_;
		$session = zk_session_with($node, hosts => $proxy, commit_guard => 'strict', session_timeout => $timeout);
		$begin->($what);
		$before->();
		$proxy->clear_log;
		$proxy->$hold('multi');
		$session->send('COMMIT');
		$proxy->wait_held;
		$meanwhile->();
		zk_is_lost($session->wait, '/answer', $what);
		is(rows($what), 0, "$what: the row is not there");
		zk_works($session, "$what: works");
		$session->quit;
	}
};

$hand->close;
zk_end($zk, $node);
