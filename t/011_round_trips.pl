# Network traffic, counted by a proxy between the backend and ZooKeeper and by
# the server itself: how many requests a lock of each kind costs, how many
# successive round trips and transactions, who is woken by a release, and what they
# still request.
#
# And who holds or waits writes nothing: heartbeats do not go through the quorum.  Its word
# is asked for where something relies on it: for the one that is next in line, with each
# turn that comes after a third of the session timeout, for a view, and where doubt is
# to cancel.  What is lost meanwhile is noticed all the same.

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(sum);

use Cost;
use Tests;

# The delay of each frame, in ms: long enough to tell a request that was sent
# together with another from one that was sent after its answer.
my $DELAY = 40;
my @STYLES = qw(curator curator_rw kazoo);

my $zk = ZooKeeper->new->start;
# heartbeats, which come every quarter of this, do not disturb the counting
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '1h', shared_preload_libraries => 'zklock');
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

# A holder and five waiters, each with a proxy of its own.  At each release: how
# many events the server sends, what the new owner still requests before it has
# the lock, and how many lists the others request.  (Of several places: t/063)
foreach my $kind ('exclusive', 'semaphore')
{
	subtest "handover: $kind" => sub {
		my ($take, $give) = $kind eq 'exclusive' ? (q{zk_lock('/new/a')}, 'zk_unlock') : (q{zk_semaphore_acquire('/new/a', 1)}, 'zk_semaphore_release');
		my @queue = map { [ counted_session() ] } 0 .. 5;
		$queue[0][0]->value("SELECT $take");
		my $watched = 0;
		foreach my $i (1 .. $#queue)
		{
			my ($waiter, $its_proxy) = @{ $queue[$i] };
			# its own node and up to two before it; of a semaphore, the directory or one
			my $watches = $i == 1 || $kind eq 'semaphore' ? 2 : 3;
			$waiter->send("SELECT $take");
			zk_until(sub { $zk->watch_count == $watched + $watches }, 'the waiter watches');
			$watched += $watches;
			is(settled($its_proxy), zk_short('create2', 'getChildren', ('getData') x $watches), "waiter $i is queued") if $kind eq 'exclusive';
			is($its_proxy->trips, 2, 'after two round trips');
		}

		# one kind of request at a time, so that there is something to count
		while (@queue > 1)
		{
			my ($owner) = @{ shift @queue };
			my ($next, $next_proxy) = @{ $queue[0] };
			my @theirs = map { $_->[1] } @queue;
			my $n = @queue;

			$_->clear_log for @theirs;
			$owner->value("SELECT $give('/new/a')");
			is($next->wait->{out}, 't', "release with $n waiting: the first of them has it");
			ok(!(grep { $_->[0]->is_done } @queue[ 1 .. $#queue ]), '- and nobody else');
			if ($kind eq 'semaphore')
			{
				settled($_) for @theirs;
				cmp_ok($next_proxy->trips, '<=', 1, '- after one round trip at most');
				next;
			}
			is(asked($next_proxy), '', '- without asking again');

			# what the others do then
			my $lists = sub { scalar grep { $_->[2] eq 'getChildren' && $_->[1] eq $_[0] } map { $_->log } @theirs };
			my $events = sub { scalar grep { $_->[2] eq 'event' } map { $_->log } @theirs };
			zk_until(sub { $events->() == ($n > 1 ? 2 : 1) && $lists->('<') == ($n > 1 ? 1 : 0) }, 'the second to look at the queue');
			my @asked = map { asked($_) } @theirs[ 1 .. $#theirs ];
			is($events->(), $n > 1 ? 2 : 1, '- one is woken, the next is told');
			is(join(' ', @asked) =~ s/\s+$//r, $n > 1 ? 'getChildren' : '', '- and that one looks at the queue, off the critical path');
		}
		$queue[0][0]->value("SELECT $give('/new/a')");
		zk_nothing_left($zk, 'nothing is left');
	};
}

# A wait that fails removes everything that it created: its node, with which the
# watch on it goes, and the watches on two before it.
subtest 'a wait that ends in vain takes back all that it put there' => sub {
	my ($other, $first, $waiter) = map { [ counted_session() ] } 1 .. 3;
	$other->[0]->value(q{SELECT zk_lock('/new/a')});
	$first->[0]->send(q{SELECT zk_lock('/new/a')});
	zk_until(sub { $zk->watch_count == 2 }, 'the first to wait');
	is($waiter->[0]->value(q{SELECT zk_lock('/new/a', '1500ms')}), 'f', 'a wait that ends in vain');
	zk_until(sub { $waiter->[1]->count('removeWatches') == 2 }, 'the watches to be removed');
	is(join(' ', sort map { (split / /)[0] } $waiter->[1]->requests), 'create2 delete getChildren getData getData getData removeWatches removeWatches',
		'- takes its node and all its watches away');
	ok(zk_until(sub { $zk->watch_count == 2 }, 'those of the first'), '- and no other');
	$waiter->[0]->send(q{SELECT zk_lock('/new/a')});
	ok(zk_until(sub { $zk->watch_count == 5 }, 'the next wait'), '- and the next one sets as many');
	foreach ($other, $first, $waiter)
	{
		$_->[0]->wait if $_->[0]{mark};
		$_->[0]->value(q{SELECT zk_unlock('/new/a')});
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
		$waiter->[1]->wait_answers('getData', $watches);
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

# In a queue behind others
sub queue_behind { my ($session, $call) = @_; $session->send("SELECT $call"); return zk_wait_queued($zk, $session); }

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
	foreach my $where ('beside a reader', 'before a writer')
	{
		queue_behind($waiter, q{zk_lock('/try/a')}) if $where eq 'before a writer';
		foreach my $try (q{zk_try_lock('/try/a')}, q{zk_lock('/try/a', '0')}, q{zk_lock_many('{/try/a,/try/b}', '0')})
		{
			my $cost = cost_of($s, $proxy, "SELECT $try");
			is("$cost->{value} $cost->{trips} $cost->{transactions}", 'f 1 0', "$where: $try, over the own shared one");
		}
	}
	my $cost = cost_of($s, $proxy, q{DO $$ BEGIN PERFORM zk_lock('/try/a'); EXCEPTION WHEN deadlock_detected THEN END $$});
	cmp_ok($cost->{trips}, '<=', 2, 'zk_lock there: fails after one round trip, and takes its node away');
	is($zk->ephemerals_count, 3, '- which is not left');
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

	my ($holder) = counted_session();

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
subtest 'more than a request may say' => sub {
	my ($its, $its_proxy) = counted_session();
	my $paths = sub { my ($k, $length) = @_; "(SELECT array_agg('/m/' || lpad(i::text, $length, '0')) FROM generate_series(1, $k) i)" };
	$its_proxy->delay_ms(0);
	is($its->value('SHOW zklock.max_locks'), 1000, '1000 by default');
	$its->value('SET zklock.max_locks = 100000');
	foreach ($paths->(20_000, 90), $paths->(1000, 900), $paths->(1000, 900) . ", '0'")
	{
		my $before = $zk->zxid;
		is($its->query("SELECT zk_lock_many($_)", 120)->{state}, '54000', "$_: 54000");
		is($its->value('SELECT count(*) FROM zk_locks'), 0, '- none is held');
		is($zk->zxid, $before, '- and nothing was written');
	}
	is($its->value('SELECT state, reconnections FROM zk_session'), 'connected|0', 'the connection is the same');
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

# ---------------------------------------------------------- the end, the guard

subtest 'the end of a transaction' => sub {
	my ($its, $its_proxy) = counted_session(commit_guard => 'strict');
	my %take = (
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

subtest 'after a failover all who wait do so at once' => sub {
	my ($s, $proxy) = counted_session();
	my $client = $zk->client;
	my @before = map { $client->contend('/zklock/failover') } 1 .. 2;
	$s->send(q{SELECT zk_lock('/failover')});
	$proxy->wait_answers('getData', 3);
	$proxy->clear_log;
	$proxy->drop;
	$proxy->wait_answers('getData', 4);    # it watches again; and a heartbeat
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
	$proxy->clear_log;
	$proxy->count_frames;
	$proxy->nth('reply', 1, 'moved');
	is($s->value(q{SELECT zk_try_lock('/synced')}), 't', 'where the sync was refused');
	is(asked($proxy), 'sync getChildren sync getChildren create2 getChildren', 'it asks again, although the list was not');
	$s->value(q{SELECT zk_unlock('/synced')});
};

# ---------------------------------------------------------- nothing is written

# A session that stands still for two thirds of this asks the quorum
$admin->value($_) for q{ALTER SYSTEM SET zklock.session_timeout = '6s'}, 'SELECT pg_reload_conf()';
zk_until(sub { zk_session($node)->value('SHOW zklock.session_timeout') eq '6s' }, 'the setting to be read');
zk_counted_closed($zk);

# Sessions that have asked for this: the first has it, the others wait
sub queue
{
	my ($n, $call) = @_;
	my @queue = map { zk_session($node) } 1 .. $n;
	$queue[0]->value("SELECT $call");
	queue_behind($_, $call) for @queue[ 1 .. $#queue ];
	return @queue;
}

# The requests of each session that holds or awaits something, by its process
sub requests
{
	return split ' ', $admin->value(q{SELECT string_agg(DISTINCT pid || ' ' || requests, ' ') FROM zk_server_locks});
}

# Wait until they have sent this many heartbeats, of two requests each, and return how many
# transactions there were meanwhile.  They come four times in a session timeout, whatever
# the backend does: a read behind a sync, which a server without its leader cannot answer.
sub written_in
{
	my ($beats) = @_;
	my ($before, $began, %asked) = ($zk->zxid, time, requests());
	my ($sent, @of_each) = 0;
	zk_until(
		sub {
			my %now = requests();
			@of_each = map { ($now{$_} // 0) - $asked{$_} } keys %asked;
			$sent = sum(@of_each);
			# who asks the quorum does so by one request
			return $sent > 2 * $beats * @of_each && !grep { $_ < $beats } @of_each;
		},
		"$beats heartbeats of each");
	# the answer to one may have been counted late
	cmp_ok($sent, '<=', 2 * @of_each * (1 + (time - $began) / 1.3), 'one each quarter of the session timeout');
	return $zk->zxid - $before;
}

subtest 'holders, and those who wait' => sub {
	my @holders = map { zk_session($node) } 1 .. 6;
	$holders[$_]->value("SELECT zk_lock('/held/$_')") for 0 .. $#holders;
	my @single = map { zk_session_with($node, node_style => 'single') } 1 .. 2;
	$single[$_]->value("SELECT zk_lock('/single/$_')") for 0 .. $#single;
	my $many = zk_session($node);
	$many->value("SELECT count(zk_lock('/many/' || i)) FROM generate_series(1, 100) i");
	my @readers = map { zk_session($node) } 1 .. 7;
	$readers[0]->value(q{SELECT zk_lock('/read')});
	$_->send(q{SELECT zk_lock_shared('/read')}) for @readers[ 1 .. $#readers ];
	zk_wait_queued($zk, @readers[ 1 .. $#readers ]);
	my @places = queue(5, q{zk_semaphore_acquire('/places', 1)});

	# these have asked the quorum for a while, and have no reason any longer
	my ($first, @next) = map { zk_session($node) } 1 .. 4;
	$first->value(q{SELECT zk_lock('/next')});
	$next[0]->query(q{SELECT zk_lock('/next', '500ms')});
	$next[1]->query(q{SET lock_timeout = '500ms'; SELECT zk_lock('/next')});
	queue_behind($next[2], q{zk_lock('/next')});
	$first->value(q{SELECT zk_unlock('/next')});
	is($next[2]->wait->{out}, 't', 'who was next has it');
	my @doubt = map { zk_session_with($node, cancel_on_loss => 'doubt') } 1 .. 2;
	$doubt[0]->value(q{BEGIN; SELECT zk_xact_lock('/doubted/1'); COMMIT});
	$doubt[1]->value(q{SELECT zk_lock('/doubted/2'); SET zklock.cancel_on_loss = 'lost'});
	my @all = (@holders, @single, $many, @readers, @places, $first, @next, @doubt);

	sleep 2;    # the first heartbeats, which set watches
	$holders[0]->send(q{DO $$ BEGIN WHILE clock_timestamp() < now() + '6 s' LOOP END LOOP; END $$});
	my $written = written_in(4);
	$holders[0]->wait;
	# one that stood still for most of its timeout asks the quorum
	cmp_ok($written, '<', @all / 4, 'of the heartbeats of ' . scalar(@all) . ' sessions nothing was written');

	my @queue = queue(9, q{zk_lock('/queue')});
	sleep 2;    # the first heartbeats
	$written = written_in(4);
	cmp_ok($written, '>', 2, 'the first waiter of a queue asks the quorum');
	cmp_ok($written, '<', 7 + @all / 4, '- and no other');

	$_->value('SELECT zk_unlock_all()') for $readers[0], $places[0], $queue[0];
	is($_->wait->{out}, 't', 'each reader has it') for @readers[ 1 .. $#readers ];
	foreach my $s (@queue[ 1 .. $#queue ], @places[ 1 .. $#places ])
	{
		$s->wait;
		$s->value('SELECT zk_unlock_all()');
	}
};

# A turn that comes late
subtest 'an older proof' => sub {
	my $client = $zk->client;
	my @cases = map {
		my ($what, $lock, $n, $requests, $trips) = @$_;
		my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '12s');
		my $path = '/late/' . ($what =~ tr/a-z//cdr);
		my @before = map { $client->contend("/zklock$path") } 1 .. $n;
		queue_behind($s, "$lock('$path')");
		{ what => $what, s => $s, proxy => $proxy, before => \@before, requests => $requests, trips => $trips }
	} (
		[ 'who is next in line', 'zk_lock', 1, '', 0 ],
		[ 'a reader', 'zk_lock_shared', 1, 'multi', 1 ],
		[ 'who lists first', 'zk_lock', 2 ]);
	sleep 4.5;    # more than a third of 12 s, and a heartbeat
	foreach my $case (@cases)
	{
		my ($what, $s, $proxy, $requests, $trips) = @$case{qw(what s proxy requests trips)};
		my ($first, $second) = @{ $case->{before} };
		# after the second one, the third is not near
		my $beats = $proxy->count([ 'sync', 'multi' ]);
		zk_until(sub { $proxy->count([ 'sync', 'multi' ]) > $beats }, 'a heartbeat');
		quiet($proxy);
		$proxy->delay_ms(50);
		$proxy->clear_log;
		$client->delete($first);
		if ($second)
		{
			# it watches both, and lists when the first is gone
			zk_until(sub { grep { /^multi/ } $proxy->requests }, 'it to list, and to ask');
			quiet($proxy);
			is(join(' ', sort map { (split / /)[0] } $proxy->requests), 'getChildren multi', "$what: the check follows the list");
			is($proxy->trips, 2, '- in a flight of its own');
			$proxy->clear_log;
			$client->delete($second);
			($requests, $trips) = ('', 0);    # by the event alone
		}
		is($s->wait->{out}, 't', "$what has its turn");
		is(join(' ', map { (split / /)[0] } $proxy->requests), $requests, '- at the price of ' . ($requests || 'nothing'));
		is($proxy->trips, $trips, "- round trips: $trips");
		$proxy->delay_ms(0);
	}
	$client->close;
};

# A statement that is under way when this is set is not in doubt because of the silence
# before, in which nobody has asked.
subtest 'doubt, from now on' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '5s');
	$s->value(q{BEGIN; SELECT zk_lock('/doubt')});
	sleep 5.5;    # more than a session timeout
	is($proxy->count('multi'), 0, 'no quorum was asked meanwhile');
	my $result = $s->query(q{SET zklock.cancel_on_loss = 'doubt'; SELECT pg_sleep(5.5)});
	is($result->{state}, '', 'more than a session timeout later it still runs');
	cmp_ok($proxy->count('multi'), '>', 1, '- and the quorum was asked');
	$s->value(q{SET zklock.cancel_on_loss = 'lost'; COMMIT});
};

# (By an event: t/024)
subtest 'a node that somebody deletes' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '10s');
	$s->value(q{SELECT zk_lock('/deleted')});
	zk_until(sub { $proxy->count('sync') > 0 }, 'a heartbeat, and with it a watch');
	quiet($proxy);
	$proxy->hold_event(alone => 1);
	my $began = time;
	$zk->with_client(sub { $_[0]->delete_contenders('/zklock/deleted') });
	zk_until(sub { $admin->value('SELECT state FROM zk_server_locks WHERE pid = ' . $s->pid) eq 'lost' }, 'lost');
	in_time(time - $began, 5, 'a read tells the session, which does nothing');
	is($proxy->count('multi'), 0, '- and has asked no quorum');
	$proxy->release;
	$s->query(q{SELECT zk_unlock('/deleted')});
};

zk_end($zk, $node);
