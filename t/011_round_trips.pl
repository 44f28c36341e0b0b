# Network traffic, counted by a proxy between the backend and ZooKeeper and by
# the server itself: how many requests a lock of each kind costs, how many
# successive round trips and transactions, who is woken by a release, and what they
# still request.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cost;
use Tests;

# The delay of each frame, in ms: long enough to tell a request that was sent
# together with another from one that was sent after its answer.
my $DELAY = 40;
my @STYLES = qw(curator curator_rw kazoo);

my $zk = ZooKeeper->new->start;
# heartbeats, which come every quarter of this, do not disturb the counting
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '1h');
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (who text)');

# The transactions of another are counted only when those that have ended are closed.
sub counted_session
{
	zk_counted_closed($zk);
	return zk_counted_session($node, $zk, $DELAY, @_);
}

sub cost_of
{
	my %cost = cost($zk, @_);
	return { %cost{qw(value requests trips transactions)} };
}

my ($s, $proxy) = counted_session();

$s->value(q{SELECT zk_lock('/new/a'), zk_unlock('/new/a')});    # creates the directories

subtest 'one round trip, in which all are confirmed, if that is asked for' => sub {
	$s->value(q{SET zklock.release_timeout = '1s'});
	$s->value(q{BEGIN; SELECT count(zk_xact_lock('/k/' || i)) FROM generate_series(1, 16) i});
	$proxy->delay_ms(100);
	$proxy->clear_log;
	my $took = $s->query('COMMIT')->{seconds};
	settled($proxy);
	is(join('', map { $_->[1] } grep { $_->[2] eq 'delete' } $proxy->log), '>' x 16 . '<' x 16,
		'release_timeout: COMMIT with 16 locks sends all deletes before the first answer');
	cmp_ok($took, '>=', 0.2, '- and waits for a round trip of 200 ms');
	$proxy->delay_ms($DELAY);
	$s->value('RESET zklock.release_timeout');
};

# A holder and five waiters, each with a proxy of its own.  At each release: how
# many events the server sends, what the new owner still requests before it has
# the lock, and how many lists the others request.
subtest 'handover' => sub {
	my @queue = ([$s, $proxy]);
	$s->value(q{SELECT zk_lock('/new/a')});
	foreach (1 .. 5)
	{
		my ($waiter, $its_proxy) = counted_session();
		$waiter->send(q{SELECT zk_lock('/new/a')});
		# its own node and up to two before it
		my $watches = @queue == 1 ? 2 : 3;
		zk_until(
			sub { (grep { $_->[1] eq '<' && $_->[2] eq 'getData' } $its_proxy->log) == $watches },
			'the waiter watches');
		is(asked($its_proxy), zk_short('create2', 'getChildren', ('getData') x $watches),
			"waiter $_ is queued");
		is($its_proxy->trips, 2, 'after two round trips');
		push @queue, [ $waiter, $its_proxy ];
	}

	# one kind of request at a time, so that there is something to count
	while (@queue > 1)
	{
		my ($owner, $owner_proxy) = @{ shift @queue };
		my ($next, $next_proxy) = @{ $queue[0] };
		my @theirs = map { $_->[1] } @queue;
		my $n = @queue;

		$_->clear_log for @theirs;
		$owner->value(q{SELECT zk_unlock('/new/a')});
		is($next->wait->{out}, 't', "release with $n waiting: the first of them has it");
		is(asked($next_proxy), '', '- without asking again');

		# what the others do then
		my $lists = sub { scalar grep { $_->[2] eq 'getChildren' && $_->[1] eq $_[0] } map { $_->log } @theirs };
		my $events = sub { scalar grep { $_->[2] eq 'event' } map { $_->log } @theirs };
		zk_until(sub { $events->() == ($n > 1 ? 2 : 1) && $lists->('<') == ($n > 1 ? 1 : 0) },
			'the second to look at the queue');
		my %asked = map { $_ => asked($queue[$_][1]) } 1 .. $#queue;
		is($events->(), $n > 1 ? 2 : 1, '- one is woken, the next is told');
		is(join(' ', map { $asked{$_} } sort keys %asked) =~ s/\s+$//r, $n > 1 ? 'getChildren' : '',
			'- and that one looks at the queue, off the critical path');
		$owner->quit unless $owner == $s;
	}
	my ($last) = @{ $queue[0] };
	$last->value(q{SELECT zk_unlock('/new/a')});
};

# A wait that fails removes everything that it created: its node, with which the
# watch on it goes, and the watches on one or two before it.
subtest 'a wait that ends in vain takes back all that it put there' => sub {
	my @keep;
	my ($other) = counted_session();
	$other->value(q{SELECT zk_lock('/new/a')});
	foreach my $watches (2, 3)
	{
		my ($waiter, $its_proxy) = counted_session();
		zk_until(sub { $zk->watch_count == ($watches == 2 ? 0 : 2) }, 'those of the waiter before');
		is($waiter->value(q{SELECT zk_lock('/new/a', '1500ms')}), 'f', 'a wait that ends in vain');
		my $others = $watches - 1;
		zk_until(sub { $its_proxy->count('removeWatches') == $others }, 'the watches to be removed');
		is(join(' ', sort map { (split / /)[0] } $its_proxy->requests),
			join(' ', 'create2', 'delete', 'getChildren', ('getData') x $watches, ('removeWatches') x $others),
			"- takes its node and all its $watches watches away");
		$waiter->send(q{SELECT zk_lock('/new/a')});
		ok(zk_until(sub { $zk->watch_count == $watches + ($watches == 3 ? 2 : 0) }, 'the next wait'), '- and the next one sets as many');
		push @keep, $waiter;
	}
	$other->value(q{SELECT zk_unlock('/new/a')});
	foreach my $waiter (@keep)
	{
		$waiter->wait;
		$waiter->value(q{SELECT zk_unlock('/new/a')});
	}
	zk_nothing_left($zk, 'and nothing is left when all have had their turn');
};

# A waiter reads the queue again because a node further ahead has gone, and
# meanwhile its predecessor goes as well: the event comes right after the list
# that still shows that node, and is sufficient.
subtest 'two before it go at once' => sub {
	my ($first, $second, $third) = map { [ counted_session() ] } 1 .. 3;
	my $proxy = $third->[1];
	my $lock = q{SELECT zk_lock('/new/a')};
	$first->[0]->value($lock);
	foreach ([ $second, 2 ], [ $third, 3 ])
	{
		my ($waiter, $watches) = @$_;
		$waiter->[0]->send($lock);
		zk_until(sub { (grep { $_->[1] eq '<' && $_->[2] eq 'getData' } $waiter->[1]->log) == $watches },
			'the waiter watches');
	}
	$proxy->clear_log;
	$proxy->hold('getChildren');
	$first->[0]->value(q{SELECT zk_unlock('/new/a')});
	is($second->[0]->wait->{out}, 't', 'the second of three has it');
	$proxy->wait_held;
	$second->[0]->value(q{SELECT zk_unlock('/new/a')});
	zk_until(sub { $zk->watch_count == 1 }, 'the event to be on its way');
	$proxy->release;
	is($third->[0]->wait->{out}, 't', '- and then the third');
	is(asked($proxy), 'getChildren', '- whose list came with the event that made it old');
	$third->[0]->value(q{SELECT zk_unlock('/new/a')});
	$_->[0]->quit for $first, $second, $third;
};

# The event is all that a waiter needs: the answer to any request would never
# arrive.
subtest 'the event is all that a waiter needs' => sub {
	my ($waiter, $its_proxy) = counted_session();
	$s->value(q{BEGIN; SELECT zk_xact_lock('/new/a')});
	$waiter->send(q{SELECT zk_lock('/new/a')});
	zk_until(sub { (grep { $_->[1] eq '<' && $_->[2] eq 'getData' } $its_proxy->log) == 2 },
		'the waiter watches');
	$its_proxy->hold_request('*', 100);
	my $start = time;
	$s->value('COMMIT');
	my $got = $waiter->wait->{out};
	my $took = time - $start;
	is($got, 't', 'a waiter has the lock while none of its requests comes through');
	$its_proxy->reset;
};
# Wait until it stands in a queue.
sub queue_behind
{
	my ($session, $call) = @_;
	my $before = $zk->watch_count;
	$session->send("SELECT $call");
	# its own node and one before it
	zk_until(sub { $zk->watch_count >= $before + 2 }, 'it waits');
	return;
}

# the parts of a multi that was sent
sub multis { return map { $_->[7] } grep { $_->[1] eq '>' && $_->[2] eq 'multi' } $_[0]->log; }

# ---------------------------------------------------------------------- one lock

# Each statement, its value, its requests, round trips and transactions
sub costs
{
	my ($session, $its_proxy, $name, @rows) = @_;
	foreach (@rows)
	{
		my ($sql, @expected) = @$_;
		my $what = pop @expected;
		is_deeply([ @{ cost_of($session, $its_proxy, $sql) }{qw(value requests trips transactions)} ], \@expected, "$name: $what");
	}
	return;
}

subtest 'a free one: one round trip' => sub {
	foreach (
		[ 'zk_lock', '', 'zk_unlock' ],
		[ 'zk_lock_shared', '', 'zk_unlock_shared' ],
		[ 'zk_semaphore_acquire', ', 3', 'zk_semaphore_release' ])
	{
		my ($take, $more, $give) = @$_;
		foreach my $style ($take eq 'zk_lock' ? 'curator' : @STYLES)
		{
			my $path = "/free/$style/$take";
			my ($its, $its_proxy) = counted_session(node_style => $style);
			my $call = "$take('$path'$more)";
			my $xact = $call =~ s/zk_/zk_xact_/r;
			my @taken = ("SELECT $call", 't', 'create2 getChildren', 1, 1);
			my @given = ("SELECT $give('$path')", 't', 'delete', 1, 1);
			costs(
				$its, $its_proxy, "$style: $take",
				# creating what exists is a transaction, too
				[ "SELECT $call", 't', 'create2 getChildren createContainer*4 create2 getChildren', 2, 6, 'without parents: two' ],
				[ @given, 'given back: one' ],
				[ @taken, 'one' ],
				[ qq{BEGIN; SELECT $call, $xact; SAVEPOINT s; SELECT bool_and($call AND $xact) FROM generate_series(1, 1000); ROLLBACK TO s; SELECT $give('$path'); COMMIT},
					"t|t\nt\nt", '', 0, 0, 'again: nothing' ],
				$take eq 'zk_lock'
				? [ qq{BEGIN; SELECT zk_try_lock('$path'), zk_xact_lock('$path', '1s'), zk_try_xact_lock('$path'), zk_lock_token('$path') IS NOT NULL; COMMIT; SELECT zk_unlock('$path')},
					"t|t|t|t\nt", '', 0, 0, 'nor does a try, or to tell its token' ]
				: ());

			# next to others: a reader, and one of three places
			next if $take eq 'zk_lock';
			costs(counted_session(node_style => $style), "$style: $take beside another", [ @taken, 'one' ], [ @given, 'given back: one' ]);
			is(scalar(grep { $_->[2] eq 'event' } $its_proxy->log), 0, '- and the other is not told');
		}
	}
};

subtest 'shared and exclusive, one over the other' => sub {
	foreach my $style (@STYLES)
	{
		my ($its, $its_proxy) = counted_session(node_style => $style);
		my $path = "/over/$style";
		my $downgrade = $style eq 'curator' ? 'setData' : 'multi';
		$its->value("SELECT zk_lock('$path')");
		costs(
			$its, $its_proxy, $style,
			[ qq{SELECT zk_lock_shared('$path'), zk_try_lock_shared('$path'), zk_lock('$path'), zk_lock_shared('$path', '0'), zk_unlock('$path')},
				't|t|t|t|t', '', 0, 0, 'shared over exclusive: nothing' ],
			[ "SELECT zk_unlock('$path')", 't', $downgrade, 1, 1, 'a downgrade: one request' ],
			[ "SELECT zk_lock('$path')", 't', 'create2 getChildren', 1, 1, 'an upgrade, with nobody else: one round trip' ],
			[ "SELECT zk_unlock('$path')", 't', 'delete', 1, 1, 'giving that one back: one request' ],
			[ "SELECT zk_unlock_shared('$path'), zk_unlock_shared('$path'), zk_unlock_shared('$path')", 't|t|t', 'delete', 1, 1, 'and so the shared ones' ]);

		# at the end of a transaction, for several, all sent at once
		$its->value(
			qq{BEGIN; SELECT bool_and(zk_xact_lock('/k/' || i) AND zk_lock_shared('/k/' || i)) FROM generate_series(1, 8) i});
		$its_proxy->clear_log;
		$its_proxy->hold($downgrade, 8);
		$its->value('COMMIT');
		$its_proxy->wait_for($downgrade, 8);
		is(asked($its_proxy), "$downgrade*8", "$style: COMMIT with 8 downgrades: all go out before any answer");
		$its_proxy->release;
		zk_until(sub { (grep { $_->[1] eq '<' } $its_proxy->log) >= 8 }, 'the answers');
		is($its->value('SELECT zk_unlock_all()'), 8, "$style: eight readers are left");
	}
};

# -------------------------------------------------------------------------- try

subtest 'a try in vain: one round trip, no write' => sub {
	my ($holder) = counted_session();
	my ($waiter) = counted_session();
	my %taken = (
		'an exclusive lock' => [
			q{zk_lock('/try/a')}, '',
			q{zk_try_lock('/try/a')}, q{zk_try_xact_lock('/try/a')}, q{zk_lock('/try/a', '0')},
			q{zk_try_lock_shared('/try/a')}, q{zk_try_xact_lock_shared('/try/a')},
			q{zk_lock_shared('/try/a', '0')}, q{zk_xact_lock_shared('/try/a', '0')}
		],
		'a shared lock' => [
			q{zk_lock_shared('/try/a')}, '',
			q{zk_try_lock('/try/a')}, q{zk_try_xact_lock('/try/a')}, q{zk_lock('/try/a', '0')}
		],
		'a shared lock, and a writer that waits' => [
			q{zk_lock_shared('/try/a')}, q{zk_lock('/try/a')},
			q{zk_try_lock_shared('/try/a')}, q{zk_try_xact_lock_shared('/try/a')}, q{zk_lock_shared('/try/a', '0')}
		],
		'one of several' => [
			q{zk_lock('/try/b')}, '',
			q{zk_lock_many('{/try/a,/try/b,/try/c}', '0')}, q{zk_xact_lock_many('{/try/c,/try/b}', '0')},
			q{zk_lock_many('{/try/b}', '0')}
		],
		'a semaphore that is full' => [
			q{zk_semaphore_acquire('/try/a', 1)}, '',
			q{zk_semaphore_acquire('/try/a', 1, '0')}, q{zk_xact_semaphore_acquire('/try/a', 1, '0')}
		],
		'a semaphore with a waiter' => [
			q{zk_semaphore_acquire('/try/a', 1)}, q{zk_semaphore_acquire('/try/a', 1)},
			q{zk_semaphore_acquire('/try/a', 2, '0')}
		]);
	foreach my $what (sort keys %taken)
	{
		my ($hold, $wait, @tries) = @{ $taken{$what} };
		$s->value(q{SELECT zk_lock_many('{/try/a,/try/b,/try/c}'), zk_unlock_all()});    # creates the parents
		$holder->value("SELECT $hold");
		queue_behind($waiter, $wait) if $wait;
		foreach my $try (@tries)
		{
			my $cost = cost_of($s, $proxy, "SELECT $try");
			my $k = () = $try =~ m{/try/}g;
			# the first node's name does not tell whether it was downgraded
			my $look = $what eq 'an exclusive lock' && $try =~ /shared/;
			is_deeply($cost,
				{
					value => 'f',
					requests => zk_short('sync', ('getChildren') x $k, $look ? 'getData' : ()),
					trips => $look ? 2 : 1,
					transactions => 0
				},
				"$what: $try");
		}
		$holder->value('SELECT zk_unlock_all()');
		if ($wait)
		{
			$waiter->wait;
			$waiter->value('SELECT zk_unlock_all()');
		}
		foreach my $try (@tries)
		{
			my $cost = cost_of($s, $proxy, "SELECT $try");
			is($cost->{value}, 't', "$what, given back: $try");
			my $back = $try =~ /xact/ ? 1 : 0;    # at the end of the statement
			cmp_ok($cost->{trips}, '<=', ($try =~ /many/ ? 3 : 2) + $back, '- looks first');
			$s->value('SELECT zk_unlock_all()');
		}
	}

	# an upgrade that is impossible
	$s->value(q{SELECT zk_lock_shared('/try/a')});
	$holder->value(q{SELECT zk_lock_shared('/try/a')});
	foreach my $try (q{zk_try_lock('/try/a')}, q{zk_lock('/try/a', '0')}, q{zk_lock_many('{/try/a,/try/b}', '0')})
	{
		my $cost = cost_of($s, $proxy, "SELECT $try");
		is("$cost->{value} $cost->{trips} $cost->{transactions}", 'f 1 0', "beside a reader: $try, over the own shared one");
	}
	queue_behind($waiter, q{zk_lock('/try/a')});
	foreach my $try (q{zk_try_lock('/try/a')}, q{zk_lock('/try/a', '0')})
	{
		my $cost = cost_of($s, $proxy, "SELECT $try");
		is("$cost->{value} $cost->{trips} $cost->{transactions}", 'f 1 0', "before a writer: $try, over the own shared one");
	}
	my $cost = cost_of($s, $proxy, q{DO $$ BEGIN PERFORM zk_lock('/try/a'); EXCEPTION WHEN deadlock_detected THEN END $$});
	cmp_ok($cost->{trips}, '<=', 2, 'zk_lock there: fails after one round trip, and takes its node away');
	is($zk->ephemerals_count, 3, '- which is not left');
	foreach my $call (q{zk_lock('/try/a')}, q{zk_xact_lock('/try/a', '1min')}, q{zk_lock_many('{/try/0,/try/a,/try/b}')})
	{
		my $result = $s->query("SELECT $call");
		is($result->{state}, '40P01', "$call: 40P01");
		like($result->{message}, qr{"/try/a"}, '- with the path');
		is($s->value(q{SELECT string_agg(path || ' ' || mode || ' ' || count, ', ') FROM zk_locks}), '/try/a shared 1', '- and the shared hold stays');
		zk_until(sub { $zk->ephemerals_count == 3 }, 'no other node is left');
	}
	$_->value('SELECT zk_unlock_all()') for $s, $holder;
	$waiter->wait;
};

# ------------------------------------------------------------- several at once

subtest 'several at once' => sub {
	foreach my $k (1, 2, 10, 100)
	{
		my $all = "zk_lock_many((SELECT array_agg('/several/$k/' || i) FROM generate_series(1, $k) i))";
		# this many requests take a while to be sent
		$proxy->delay_ms($k > 10 ? 200 : $DELAY);
		my $new = cost_of($s, $proxy, "SELECT $all");
		is($new->{value}, 't', "$k without parents");
		cmp_ok($new->{trips}, '<=', 3, '- in three round trips');
		is($s->value(q{SELECT count(DISTINCT node) FROM zk_locks WHERE state = 'held'}), $k, '- all are held');
		is($s->value(q{SELECT count(*) FROM zk_locks WHERE token = zk_lock_token(path)}), $k, '- with tokens');
		$s->value('SELECT zk_unlock_all()');

		my $cost = cost_of($s, $proxy, "SELECT $all");
		$proxy->delay_ms($DELAY);
		is($cost->{value}, 't', "$k that are free");
		cmp_ok($cost->{trips}, '<=', 2, '- in two round trips at most');
		is($cost->{transactions}, 1, '- and one transaction');
		if ($k > 1)
		{
			my @multi = multis($proxy);
			is(scalar @multi, 1, '- which is one request');
			is(() = ($multi[0] // '') =~ /create2? /g, $k, "- with $k creates");
		}
		is($s->value(q{SELECT count(*) FROM zk_locks WHERE state = 'held'}), $k, '- all are held');
		is_deeply(
			cost_of($s, $proxy, "SELECT $all"),
			{ value => 't', requests => '', trips => 0, transactions => 0 },
			'- again: nothing');
		$s->value('SELECT zk_unlock_all()');
	}

	# one of them is taken: the first, one in the middle, the last
	my ($holder) = counted_session();
	foreach my $taken (1, 50, 100)
	{
		# byte order
		my $path = '/several/100/' . (sort 1 .. 100)[ $taken - 1 ];
		$holder->value("SELECT zk_lock('$path')");
		foreach my $timeout (0, $taken == 50 ? '3s' : ())
		{
			my $cost = cost_of($s, $proxy,
				"SELECT zk_lock_many((SELECT array_agg('/several/100/' || i) FROM generate_series(1, 100) i), '$timeout')");
			is($cost->{value}, 'f', "number $taken of 100 is taken, timeout $timeout");
			is($s->value('SELECT count(*) FROM zk_locks'), 0, '- none is held');
			ok(zk_until(sub { $zk->ephemerals_count == 1 }, 'all but one to be gone'), '- nor is there a node');
			is($cost->{transactions}, 0, '- nor was there one') if !$timeout;
		}
		$holder->value('SELECT zk_unlock_all()');
	}

	# waiting costs the same as for one lock, and then two round trips more
	$holder->value(q{SELECT zk_lock('/several/10/3')});
	$proxy->clear_log;
	$s->send(q{SELECT zk_lock_many((SELECT array_agg('/several/10/' || i) FROM generate_series(1, 10) i))});
	zk_until(sub { $zk->watch_count >= 2 }, 'it waits');
	settled($proxy);
	$proxy->clear_log;
	$holder->value('SELECT zk_unlock_all()');
	is($s->wait->{out}, 't', 'the one in the middle is given back');
	cmp_ok($proxy->trips, '<=', 2, '- two round trips more');
	is($s->value('SELECT zk_unlock_all()'), 10, '- all are held');
};

# The limit of nodes in one request.  (What zklock.max_locks counts: sql/several)
subtest 'as many as there may be' => sub {
	my ($its, $its_proxy) = counted_session();
	my $other = zk_session($node);
	my $paths = sub { my ($k, $length) = @_; "(SELECT array_agg('/m/' || lpad(i::text, $length, '0')) FROM generate_series(1, $k) i)" };
	$its_proxy->delay_ms(0);
	is($its->value('SHOW zklock.max_locks'), 1000, 'the default');

	# each of 40 bytes, with the root
	my $path = sub { '/m/' . '0' x (30 - length $_[0]) . $_[0] };

	is($its->value("SELECT zk_lock_many(@{[ $paths->(1000, 30) ]})", 60), 't', '1000 by default');
	is($its->value(q{SELECT count(DISTINCT node) FROM zk_locks WHERE state = 'held'}), 1000, 'all are held');
	is($other->value(qq{SELECT zk_try_lock('@{[ $path->(1) ]}') OR zk_try_lock('@{[ $path->(500) ]}') OR zk_try_lock('@{[ $path->(1000) ]}')}),
		'f', 'and nobody else has one');
	is($its->query(q{SELECT zk_lock('/m/more')})->{state}, '53400', 'one more: 53400');
	is($its->value('SELECT zk_unlock_all()'), 1000, 'given back');
	zk_until(sub { $zk->ephemerals_count == 0 }, 'all nodes to be gone');

	my $nothing = sub {
		my ($name, $state, $sql) = @_;
		my $before = $zk->zxid;
		$its_proxy->clear_log;
		is($its->query($sql, 120)->{state}, $state, "$name: $state");
		is($its->value('SELECT count(*) FROM zk_locks'), 0, '- none is held');
		is($zk->zxid, $before, '- and nothing was written');
	};
	$its->value('SET zklock.max_locks = 100000');
	$nothing->('more than a request may say', '54000', "SELECT zk_lock_many(@{[ $paths->(20_000, 90) ]})");
	$nothing->('the same with long paths', '54000', "SELECT zk_lock_many(@{[ $paths->(1000, 900) ]})");
	$nothing->('the same without waiting', '54000', "SELECT zk_lock_many(@{[ $paths->(1000, 900) ]}, '0')");
	is($its->value(q{SELECT state FROM zk_session}), 'connected', 'the connection is as it was');
	is($its->value(q{SELECT reconnections FROM zk_session}), 0, 'and the same');
	is($its->value(qq{SELECT zk_lock_many('{@{[ $path->(1) ]},@{[ $path->(2) ]}}'), zk_unlock_all()}), 't|2', 'and the session works');
};

# ------------------------------------------------------------------- handover

# All readers behind a writer are let in by one release, or by one downgrade.  What each
# has requested between the event and its lock, and how many events it got.
foreach my $style (@STYLES)
{
	foreach my $end ('a release', 'a downgrade')
	{
		subtest "$style: $end lets a batch of readers in" => sub {
			my $path = "/batch/$style";
			my ($writer) = counted_session(node_style => $style);
			$writer->value("SELECT zk_lock('$path')" . ($end eq 'a release' ? '' : ", zk_lock_shared('$path')"));
			my @readers;
			foreach my $i (1 .. 4)
			{
				my ($reader, $its_proxy) = counted_session(node_style => $style);
				$reader->send("SELECT zk_lock_shared('$path')");
				# its own node and the writer's
				zk_until(sub { $zk->watch_count == 2 * $i }, 'the reader watches');
				is(settled($its_proxy), 'create2 getChildren getData*2', "reader $i is queued");
				is($its_proxy->trips, 2, '- after two round trips');
				push @readers, [ $reader, $its_proxy ];
			}
			my ($last, $last_proxy) = counted_session(node_style => $style);
			$last->send("SELECT zk_lock('$path')");
			zk_until(sub { $zk->watch_count == 2 * @readers + 3 }, 'a writer behind them watches');
			settled($last_proxy);
			$_->clear_log for $last_proxy, map { $_->[1] } @readers;

			$writer->value("SELECT zk_unlock('$path')");
			is($_->[0]->wait->{out}, 't', 'let in') for @readers;
			foreach (@readers)
			{
				# though a writer of these styles may have become a reader of the same number; its
				# data tells in the other
				my $asks = $end eq 'a downgrade' && $style eq 'curator' ? 'getData' : '';
				my $asked = settled($_->[1]);
				$asked =~ s/ removeWatches$// if $asks;
				is($asked, $asks, '- asking ' . ($asks ? 'once' : 'nothing') . ' more');
				is(scalar(grep { $_->[2] eq 'event' } $_->[1]->log), 1, '- and one event') if $end eq 'a release';
			}
			is(scalar(grep { $_->[2] eq 'event' } $last_proxy->log), 0, 'the writer behind them is not told') if $end eq 'a release';
			is(asked($last_proxy), '', 'the writer behind them asks nothing');

			# nor is it told before at most two are left
			my @holders = ((map { $_->[0] } @readers), $end eq 'a release' ? () : $writer);
			foreach my $i (0 .. $#holders)
			{
				ok(!$last->is_done, 'the writer waits for ' . (@holders - $i));
				$holders[$i]->value("SELECT zk_unlock_shared('$path')");
			}
			is($last->wait->{out}, 't', 'then the writer has it');
			$last->value("SELECT zk_unlock('$path')");
		};
	}
}

# A freed place lets one waiter in.  (Of several places: t/063)
subtest 'a semaphore with a queue' => sub {
	my ($holder) = counted_session();
	$holder->value(q{SELECT zk_semaphore_acquire('/semaphore', 1)});
	my @queue;
	foreach my $i (1 .. 5)
	{
		my ($waiter, $its_proxy) = counted_session();
		$waiter->send(q{SELECT zk_semaphore_acquire('/semaphore', 1)});
		zk_until(sub { $zk->watch_count == 2 * $i }, 'the waiter watches');
		settled($its_proxy);
		is($its_proxy->trips, 2, "waiter $i is queued after two round trips");
		push @queue, [ $waiter, $its_proxy ];
	}
	while (@queue)
	{
		my ($next, $next_proxy) = @{ shift @queue };
		$_->clear_log for $next_proxy, map { $_->[1] } @queue;
		$holder->value(q{SELECT zk_semaphore_release('/semaphore')});
		is($next->wait->{out}, 't', 'the first of ' . (1 + @queue) . ' is let in');
		settled($_) for $next_proxy, map { $_->[1] } @queue;
		# and tells the next, without waiting for the answer
		cmp_ok($next_proxy->trips, '<=', 1, '- after one round trip at most');
		ok(!(grep { $_->[0]->is_done } @queue), '- and nobody else');
		$holder = $next;
	}
	$holder->value(q{SELECT zk_semaphore_release('/semaphore')});
	zk_nothing_left($zk, 'nothing is left');
};

# ---------------------------------------------------------- the end, the guard

subtest 'the end of a transaction' => sub {
	my ($its, $its_proxy) = counted_session(commit_guard => 'strict');
	my %take = (
		'a lock' => [ 1, 1, q{zk_xact_lock('/k/' || i)} ],
		'100 locks' => [ 100, 100, q{zk_xact_lock('/k/' || i)} ],
		'8 shared locks and 8 semaphores' => [ 8, 16, q{zk_xact_lock_shared('/k/' || i) AND zk_xact_semaphore_acquire('/k/' || i, 1)} ]);
	$its_proxy->delay_ms(0);
	foreach my $what (sort keys %take)
	{
		my ($k, $nodes, $take) = @{ $take{$what} };
		foreach my $end ('COMMIT', 'ROLLBACK', 'ROLLBACK TO s', 'DISCARD ALL')
		{
			my $discard = $end eq 'DISCARD ALL';
			$its->value(q{BEGIN; INSERT INTO t VALUES ('end'); SAVEPOINT s}) unless $discard;
			$its->value('SELECT bool_and(' . ($discard ? $take =~ s/xact_//gr : $take) . ") FROM generate_series(1, $k) i");

			# answers that do not arrive: what is sent does not depend on them
			$its_proxy->clear_log;
			$its_proxy->hold('delete', $nodes);
			if ($discard) { $its->send($end); }
			else { $its->value($end); }
			$its_proxy->wait_for('delete', $nodes);
			$its_proxy->wait_held;
			is(asked($its_proxy), ($end eq 'COMMIT' ? 'multi ' : '') . zk_short(('delete') x $nodes),
				"$end with $what: all releases go out before any answer" . ($discard ? '' : ', and nobody waits for one'));
			if ($end eq 'COMMIT')
			{
				my ($multi) = multis($its_proxy);
				is(() = $multi =~ /check /g, $nodes, "- the guard is one request, for $nodes nodes");
			}
			$its_proxy->release;
			$its->wait if $discard;
			$its->value('ROLLBACK') if $end eq 'ROLLBACK TO s';
			zk_nothing_left($zk, "$end with $what: they are free");
		}
	}

	# a shared hold without a node of its own costs nothing
	$its->value(q{BEGIN; INSERT INTO t VALUES ('end'); SELECT zk_xact_lock('/k/1'), zk_xact_lock_shared('/k/1')});
	$its_proxy->clear_log;
	$its->value('COMMIT');
	is(settled($its_proxy), 'multi delete', 'exclusive and shared on one node');
	is(() = (multis($its_proxy))[0] =~ /check /g, 1, '- is checked once');
};

$s->quit;

subtest 'loaded and not used' => sub {
	my $unused = ZkProxy->new($zk);
	my $idle = zk_session($node, options => '-c zklock.hosts=' . $unused->hosts);
	my $sockets = sub { scalar grep { (readlink($_) // '') =~ /^socket:|eventfd/ } glob '/proc/' . $idle->pid . '/fd/*' };
	my $before = $sockets->();
	$idle->value(
		q{BEGIN; SAVEPOINT s; CREATE TEMP TABLE t AS SELECT 1 AS i; ROLLBACK TO s; COMMIT;
		SELECT * FROM zk_locks; SELECT * FROM zk_session; SELECT zk_lock_token('/a'), zk_unlock_all(), zk_unlock('/a');
		DISCARD ALL});
	is_deeply([ $unused->log ], [], 'no connection to ZooKeeper before a lock is asked for');
	is(zk_threads($idle->pid), 1, 'nor a thread');
	is($sockets->(), $before, 'nor a socket or an event descriptor');
	$idle->quit;
	$unused->stop;
};

# A read behind a sync, which a server without its leader cannot answer.  Who asks the
# quorum with them: t/103.
subtest 'heartbeats: four times in a session timeout, whatever the backend does and holds' => sub {
	my (%s, %proxy);
	foreach my $what (qw(empty idle busy))
	{
		$proxy{$what} = ZkProxy->new($zk);
		# longer than a machine stands still
		$s{$what} = zk_session_with($node, session_timeout => '8s', hosts => $proxy{$what});
		$s{$what}->value("SELECT zk_lock('/heart/$what')");
	}
	$s{empty}->value('SELECT zk_unlock_all()');
	my $written = $zk->zxid;
	$_->clear_log for values %proxy;
	$s{busy}->send(q{DO $$ BEGIN WHILE clock_timestamp() < now() + '6 s' LOOP END LOOP; END $$});
	foreach my $what (sort keys %s)
	{
		my @beat;
		zk_until(sub { @beat = map { $_->[0] } grep { $_->[1] eq '>' && $_->[2] eq 'sync' } $proxy{$what}->log; @beat >= 3 }, "$what: three of them");
		# the proxy may have seen one of them late
		cmp_ok(($beat[-1] - $beat[0]) / $#beat, '>', 1.3, "$what: one each quarter of the session timeout");
	}
	is($zk->zxid, $written, 'they are no transactions');
	$s{busy}->wait;
	zk_wait_hold($s{$_}, 'held') for qw(idle busy);
	$_->quit for values %s;
	$_->stop for values %proxy;
};

subtest 'after a failover all who wait do so at once' => sub {
	my ($s, $proxy) = counted_session();
	my $client = $zk->client;
	my @before = map { $client->contend('/zklock/failover') } 1 .. 2;
	$s->send(q{SELECT zk_lock('/failover')});
	my $reads = sub {
		my ($n, $what) = @_;
		zk_until(sub { (grep { $_->[1] eq '<' && $_->[2] eq 'getData' } $proxy->log) == $n }, $what);
	};
	$reads->(3, 'it to watch');
	$proxy->clear_log;
	$proxy->drop;
	$reads->(4, 'it to watch again, and a heartbeat');
	is(join(' ', sort grep { !/^(?:connect|setWatches)$/ } map { (split / /)[0] } $proxy->requests),
		'getChildren getData getData getData sync',
		'who waits asks what is before it, and sets three watches anew');
	$client->delete($_) for @before;
	is($s->wait->{out}, 't', '- and has its turn');
	$s->value(q{SELECT zk_unlock('/failover')});
	$s->quit;
	$client->close;
};

subtest 'a list behind a sync that failed' => sub {
	my ($s, $proxy) = counted_session();
	$s->value(q{SELECT zk_try_lock('/synced'), zk_unlock('/synced')});
	is_deeply(cost_of($s, $proxy, q{SELECT zk_try_lock('/synced')})->{requests},
		'sync getChildren create2 getChildren', 'a try asks the leader');
	$s->value(q{SELECT zk_unlock('/synced')});
	$proxy->clear_log;
	$proxy->count_frames;
	$proxy->nth('reply', 1, 'moved');
	is($s->value(q{SELECT zk_try_lock('/synced')}), 't', 'where the sync was refused');
	is(asked($proxy), 'sync getChildren sync getChildren create2 getChildren', 'it asks again, although the list was not');
	$s->value(q{SELECT zk_unlock('/synced')});
};

zk_end($zk, $node);
