# Network traffic, counted by a proxy between the backend and ZooKeeper and by
# the server itself: how many requests a lock costs, how many successive round
# trips, and who is woken by a release.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use Cost;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

# The delay of each frame, in ms: long enough to tell a request that was sent
# together with another from one that was sent after its answer.
my $DELAY = 50;

my $zk = ZooKeeper->new->start;
# heartbeats, which come every quarter of this, do not disturb the counting
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '1h');
my $admin = zk_session($node);

sub counted_session { return zk_counted_session($node, $zk, $DELAY, @_); }

my @proxies;    # kept until the end, so that sessions can close properly

sub cost_of
{
	my %cost = cost($zk, @_);
	return { %cost{qw(value requests trips packets)} };
}

my ($s, $proxy) = counted_session();

#
# Acquire
#
is_deeply(cost_of($s, $proxy, q{SELECT zk_lock('/new/a')}),
	{
		value => 't',
		requests => 'create2 getChildren createContainer*3 create2 getChildren',
		trips => 2,
		packets => 7
	},
	'a free lock without parents: two round trips');
is_deeply(cost_of($s, $proxy, q{SELECT zk_unlock('/new/a')}),
	{ value => 't', requests => 'delete', trips => 1, packets => 1 },
	'zk_unlock: one');
is_deeply(cost_of($s, $proxy, q{SELECT zk_lock('/new/a')}),
	{ value => 't', requests => 'create2 getChildren', trips => 1, packets => 2 },
	'a free lock: one round trip');
is_deeply(cost_of($s, $proxy, q{SELECT zk_lock('/new/b')}),
	{
		value => 't',
		requests => 'create2 getChildren createContainer*3 create2 getChildren',
		trips => 2,
		packets => 7
	},
	'the first lock of a name: one more, once');

#
# Re-entry
#
is_deeply(
	cost_of($s, $proxy, q{
		BEGIN;
		SELECT zk_lock('/new/a'), zk_try_lock('/new/a'), zk_xact_lock('/new/a', '1s'), zk_try_xact_lock('/new/a');
		SAVEPOINT s;
		SELECT bool_and(zk_lock('/new/a') AND zk_xact_lock('/new/a')) FROM generate_series(1, 1000);
		ROLLBACK TO s;
		SELECT zk_unlock('/new/a'), zk_lock_token('/new/a') IS NOT NULL;
		COMMIT;
		SELECT count FROM zk_locks WHERE path = '/new/a'}),
	{ value => "t|t|t|t\nt\nt|t\n2", requests => '', trips => 0, packets => 0 },
	're-entry and what goes with it: nothing is sent');
$s->value('SELECT zk_unlock_all()');

subtest 'zk_try_lock' => sub {
	my ($other) = counted_session();
	$other->value(q{SELECT zk_lock('/new/a')});

	foreach my $call (q{zk_try_lock('/new/a')}, q{zk_try_xact_lock('/new/a')}, q{zk_lock('/new/a', '0')})
	{
		my ($zxid) = $zk->four_letter('srvr') =~ /^Zxid: (\w+)$/m;
		is_deeply(cost_of($s, $proxy, "SELECT $call"),
			{ value => 'f', requests => 'sync getChildren', trips => 1, packets => 2 },
			"$call of a taken lock: one round trip, no write");
		my ($then) = $zk->four_letter('srvr') =~ /^Zxid: (\w+)$/m;
		is($then, $zxid, "$call: nor did the server see one");
	}
	$other->value(q{SELECT zk_unlock('/new/a')});
	is_deeply(cost_of($s, $proxy, q{SELECT zk_try_lock('/new/a')}),
		{
			value => 't',
			requests => 'sync getChildren create2 getChildren',
			trips => 2,
			packets => 4
		},
		'a try of a free lock looks first');
	$s->value(q{SELECT zk_unlock('/new/a')});
	$other->quit;
};

#
# Release at the end of a transaction
#
foreach my $k (1, 16, 100)
{
	foreach my $end ('COMMIT', 'ROLLBACK', 'ROLLBACK TO s', 'DISCARD ALL')
	{
		my $scope = $end eq 'DISCARD ALL' ? 'zk_lock' : 'zk_xact_lock';
		$proxy->delay_ms(0);
		$s->value($end eq 'DISCARD ALL' ? 'SELECT 1' : 'BEGIN; SAVEPOINT s');
		$s->value("SELECT bool_and($scope('/k/' || i)) FROM generate_series(1, $k) i");

		# answers that do not arrive: what is sent does not depend on them
		$proxy->clear_log;
		$proxy->hold('delete', $k);
		if ($end eq 'DISCARD ALL') { $s->send($end); }
		else
		{
			my $took = $s->query($end)->{seconds};
			note sprintf '%s with %d locks, no answer: %.1f ms', $end, $k, 1000 * $took;
		}
		$proxy->wait_for('delete', $k);
		$proxy->wait_held;
		is(asked($proxy), zk_short(('delete') x $k),
			"$end with $k locks: all releases go out before any answer"
			  . ($end eq 'DISCARD ALL' ? '' : ', and nobody waits for one'));
		$proxy->release;
		$s->wait if $end eq 'DISCARD ALL';
		$s->value('ROLLBACK') if $end eq 'ROLLBACK TO s';
		zk_nothing_left($zk, "$end with $k locks: they are free");
	}
}

# One round trip, in which all are confirmed, if that is asked for
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
	note sprintf 'it took %.0f ms', 1000 * $took;
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
	$last->quit;
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
		is($waiter->value(q{SELECT zk_lock('/new/a', '3s')}), 'f', 'a wait that ends in vain');
		my $others = $watches - 1;
		zk_until(sub { $its_proxy->count('removeWatches') == $others }, 'the watches to be removed');
		is(join(' ', sort map { (split / /)[0] } $its_proxy->requests),
			join(' ', 'create2', 'delete', 'getChildren', ('getData') x $watches, ('removeWatches') x $others),
			"- takes its node and all its $watches watches away");
		$waiter->send(q{SELECT zk_lock('/new/a')});
		zk_until(sub { $zk->watch_count == $watches + ($watches == 3 ? 2 : 0) }, 'the next wait');
		pass('- and the next one sets as many');
		push @keep, $waiter;
	}
	$other->value(q{SELECT zk_unlock('/new/a')});
	foreach my $waiter (@keep)
	{
		$waiter->wait;
		$waiter->value(q{SELECT zk_unlock('/new/a')});
	}
	zk_nothing_left($zk, 'and nothing is left when all have had their turn');
	$_->quit for @keep, $other;
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
	note sprintf 'handover took %.1f ms, of which %d are the way of the event and of the delete',
	  1000 * $took, 2 * $DELAY;
	$its_proxy->reset;
	$waiter->quit;
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

#
# Heartbeats: four times in a session timeout, whatever the backend does and holds.
# A read behind a sync, which a server without its leader cannot answer.  Only where somebody is to be told at once does it
# ask for what a leader without a quorum cannot answer either: for the next in line,
# if that can be only one, and for whom doubt cancels.
#
# All of one kind at a time, and those that write apart from the others
my @beating = (
	[ 'empty', 'sync', nothing => 1 ],
	[ 'idle', 'sync' ],
	[ 'busy', 'sync', work => q{DO $$ BEGIN WHILE clock_timestamp() < now() + '8 s' LOOP END LOOP; END $$} ],
	[ 'the one after that', 'sync', queue => 'exclusive exclusive' ],
	[ 'reader, next', 'sync', queue => 'exclusive', lock => 'zk_lock_shared' ],
	[ 'place, next', 'sync', queue => 'semaphore', lock => 'zk_semaphore_acquire' ],
	[ 'idle, doubt', 'multi', setting => 'cancel_on_loss=doubt' ],
	[ 'next', 'multi', queue => 'exclusive' ]);
foreach my $writes (0, 1)
{
	my @all;
	foreach (grep { ($_->[1] eq 'multi') == $writes } @beating)
	{
		my ($what, $heartbeat, %how) = @$_;
		my $path = '/heart/' . ($what =~ tr/a-z//cdr);
		my $its_proxy = ZkProxy->new($zk);
		# longer than a machine stands still
		my $its = zk_session_with($node, session_timeout => '8s', hosts => $its_proxy,
			map { split /=/ } $how{setting} // ());
		my $lock = $how{lock} // 'zk_lock';
		my @before = map { zk_session($node) } split / /, $how{queue} // '';
		foreach (0 .. $#before)
		{
			$before[$_]->send($how{queue} =~ /semaphore/ ? "SELECT zk_semaphore_acquire('$path', 1)" : "SELECT zk_lock('$path')");
			$_ == 0 ? $before[0]->wait : zk_wait_queued($zk, $before[$_]);
		}
		my $take = "SELECT $lock('$path'" . ($lock =~ /semaphore/ ? ', 1)' : ')');
		if (@before)
		{
			$its->value(q{SELECT zk_lock('/heart'), zk_unlock('/heart')});
			$its->send($take);
			zk_wait_queued($zk, $its);
		}
		else { $its->value($take); }
		$its->value("SELECT zk_unlock('$path')") if $how{nothing};
		push @all, { what => $what, heartbeat => $heartbeat, how => \%how, its => $its, proxy => $its_proxy, before => \@before };
	}
	my $written = $zk->zxid;
	foreach my $one (@all)
	{
		$one->{proxy}->clear_log;
		$one->{its}->send($one->{how}{work}) if $one->{how}{work};
	}
	foreach my $one (@all)
	{
		zk_until(
			sub {
				$one->{beat} = [ map { $_->[0] } grep { $_->[1] eq '>' && $_->[2] eq $one->{heartbeat} } $one->{proxy}->log ];
				return @{ $one->{beat} } >= 4;
			},
			"$one->{what}: four heartbeats");
	}
	cmp_ok($zk->zxid - $written, $writes ? '>=' : '<', 4 * $writes || 1, 'these heartbeats are ' . ($writes ? 'transactions' : 'none'));
	foreach my $one (@all)
	{
		my ($what, $its) = @$one{qw(what its)};
		my @beat = @{ $one->{beat} };
		note "$what: heartbeats after " . join ', ', map { sprintf '%.0f ms', 1000 * ($beat[$_] - $beat[ $_ - 1 ]) } 1 .. $#beat;
		# the proxy may have seen one of them late
		cmp_ok(($beat[-1] - $beat[0]) / $#beat, '>', 1.3, "$what: a heartbeat each quarter of the session timeout");
		# a watch, unless it waits, and has it already
		unlike(join(' ', map { (split / /)[0] } $one->{proxy}->requests), $writes ? qr/sync/ : qr/multi/, '- and no other heartbeats');
	}
	foreach my $one (@all)
	{
		my ($what, $its, @before) = (@$one{qw(what its)}, @{ $one->{before} });
		if ($one->{how}{work}) { $its->wait; }
		if (@before)
		{
			$before[0]->value(q{SELECT zk_unlock_all()});
			if (@before > 1) { $before[1]->wait; $before[1]->value('SELECT zk_unlock_all()'); }
			is($its->wait->{out}, 't', "$what: it has its turn");
		}
		my $state = $one->{how}{nothing} ? '' : 'held';
		ok(zk_until(sub { $its->value(q{SELECT state FROM zk_locks}) eq $state }, $state), "$what: it goes on holding");
		$_->quit for @before, $its;
		push @proxies, $one->{proxy};
	}
}

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
	$s->quit;
};

$admin->quit;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
$node->stop;

done_testing();
