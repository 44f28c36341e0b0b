# Deadlocks: cycles of zk locks, of PostgreSQL's locks, and of both, on one server
# and on several, with each kind of lock.  Exactly one of those that wait for a zk
# lock fails, and nobody else ever does; or nobody, if the cycle has opened by itself.  What looking
# for them costs, what is logged of a wait and told at its end, and what others leave on the board
# where waits are published.  When something interferes: the answer of the transaction that breaks
# the cycle is lost, somebody in the cycle ends, stops, or loses its session at that moment.  Then
# cycles at random, also over slow networks, so that both ends look at the same moment
# (lib/DeadlockPrograms.pm): none stands longer than three times deadlock_timeout.
#
# DEADLOCK_SECONDS: how long at random (default 10)
# DEADLOCK_SEED: what they do (default: at random)
# DEADLOCK_TIMEOUTS: deadlock_timeout of each server, in seconds; default: three of
#     them, "0.3 0.3 0.3".  With "1 5" so few cycles close that it should take a minute; with "1 20" it then takes a
#     minute or two to end.
# DEADLOCK_SESSIONS: how many sessions (default 10)
# DEADLOCK_MANY: how many wait that hold nothing (default 12), and in long queues (default 10, 20 where
#     times are checked)

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(min sum);
use Sys::Hostname;

use Auth;
use Child;
use Cost;
use Cycles;
use DeadlockPrograms;
use Tests;

my $PERIOD = 0.3;
my $MANY = $ENV{DEADLOCK_MANY} // 12;
my $LONG = $ENV{DEADLOCK_MANY} // ($TIMING ? 20 : 10);
my $zk = ZooKeeper->new->start;
my %setting = (deadlock_timeout => '300ms', max_prepared_transactions => 2, autovacuum => 'off', restart_after_crash => 'on', max_connections => 100 + $LONG);
my $node_a = zk_cluster('a', $zk, %setting);
my $node_b = zk_cluster('b', $zk, %setting, cluster_name => 'second');
$_->safe_psql('postgres', <<'END') for $node_a, $node_b;
CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0);
INSERT INTO t SELECT generate_series(1, 9);
CREATE TABLE u (id int);
CREATE FUNCTION give_up(id int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	UPDATE t SET n = n + 1 WHERE t.id = give_up.id;
	RETURN 'updated';
EXCEPTION WHEN query_canceled THEN
	RETURN 'gave up';
END $$;
END
my @nodes = ($node_a, $node_b);
my $admin = zk_session($node_a);

# Wait until so many wait for locks of PostgreSQL, as seen by this session.
sub wait_local
{
	my ($by, $n) = @_;
	return zk_until(sub { $by->value('SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL') == $n }, 'the waits for locks of PostgreSQL');
}

# Wait until each of these has published where it waits.
sub wait_records { my @sessions = @_; return zk_until(sub { !grep { !record($zk, $_) } @sessions }, 'the records'); }

# How a lock on a path is asked for
my %call = (
	exclusive => sub { "zk_xact_lock('$_[0]')" },
	shared => sub { "zk_xact_lock_shared('$_[0]')" },
	semaphore => sub { "zk_xact_semaphore_acquire('$_[0]', 1)" },
	all => sub { "zk_xact_lock_many('{$_[0]/1,$_[0],/free$_[0]}')" },
	'for a while' => sub { "zk_xact_lock('$_[0]', '10min')" },
	'shared for a while' => sub { "zk_xact_lock_shared('$_[0]', '10min')" },
	'for the session' => sub { "zk_lock('$_[0]')" },
	'shared for the session' => sub { "zk_lock_shared('$_[0]')" },
	'semaphore for the session' => sub { "zk_semaphore_acquire('$_[0]', 1, '10min')" },
	'all for the session' => sub { "zk_lock_many('{/free$_[0],$_[0]}', '10min')" });

sub call { my ($kind, $path) = @_; return 'SELECT ' . $call{$kind}->($path); }

# Which cycles of two there are: what each has, and what it then waits for
my @pairs = (
	[ qw(exclusive exclusive) ], [ qw(shared exclusive) ], [ qw(exclusive shared) ], [ qw(all all) ], [ qw(exclusive all) ],
	[ qw(semaphore semaphore) ], [ 'exclusive', 'for a while' ], [ 'exclusive', 'shared for a while' ],
	[ 'for the session', 'for the session' ], [ 'shared for the session', 'for the session' ],
	[ 'for the session', 'shared for the session' ], [ 'semaphore for the session', 'semaphore for the session' ],
	[ 'all for the session', 'all for the session' ]);

# Sessions that have these locks: each a cluster and a list of kinds and paths
sub have
{
	my ($style, @have) = @_;
	my @sessions = in_transactions(map { $_->[0] } @have);
	foreach my $i (0 .. $#have)
	{
		my (undef, @locks) = @{ $have[$i] };
		$sessions[$i]->value("SET zklock.node_style = $style; SET lock_timeout = '10min'");
		$sessions[$i]->value(call(splice @locks, 0, 2)) while @locks;
	}
	return @sessions;
}

# The same on one server, which has done something else, too
sub begun
{
	my ($node, $sql, $deadlock_timeout) = @_;
	my ($s) = have('curator', [$node]);
	$s->value("SET deadlock_timeout = '$deadlock_timeout'") if $deadlock_timeout;
	$s->value($sql) if $sql;
	return $s;
}

# These come to wait, one after the other; the last of them sees the cycle, and what breaks it
# is held back by its proxy.
sub held_break
{
	my ($proxy, @waits) = @_;
	my $last = pop @waits;
	foreach (@waits)
	{
		$_->[0]->send($_->[1]);
		wait_records($_->[0]);
	}
	$proxy->hold_request('break');
	$last->[0]->send($last->[1]);
	$proxy->wait_held;
	return;
}

# Each has what it waits for, once those before it have ended.
sub go_on
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach (@_)
	{
		is($_->wait->{out}, 't', 'the lock is had');
		$_->value('COMMIT');
	}
	return;
}

# A wait that does not matter here: it is in the queue when this returns
sub stands
{
	my ($session, $sql) = @_;
	$session->send($sql);
	zk_wait_queued($zk, $session);
	return;
}

foreach my $style (qw(curator curator_rw kazoo))
{
	subtest "two sessions and each kind of lock, and others beside: $style" => sub {
		my %cycle;
		# a semaphore's nodes have the same names in each style
		foreach my $pair (grep { $style eq 'curator' || "@$_" !~ /semaphore|while/ } @pairs)
		{
			my ($first, $then) = @$pair;
			my $dir = "/$style/" . (1 + keys %cycle);
			my ($a, $b) = have($style, [ $node_a, $first, "$dir/x" ], [ $node_b, $first, "$dir/y" ]);
			$cycle{"$first, $then"} = [ [ $a, call($then, "$dir/y") ], [ $b, call($then, "$dir/x") ] ];
		}
		my @two = sort keys %cycle;
		my $dir = "/beside/$style";

		# who holds nothing is in no cycle's way, and fails for none
		my ($r, $s, $w) = have($style, [ $node_a, shared => "$dir/q" ], [ $node_b, exclusive => "$dir/m" ], [$node_b]);
		stands($w, call(exclusive => "$dir/q"));
		$cycle{'a reader behind a writer that waits'} = 
		  [ [$w], [ $s, call(shared => "$dir/q") ], [ $r, call(exclusive => "$dir/m") ] ];

		my ($u, $v) = have($style, [ $node_a, shared => "$dir/u", exclusive => "$dir/v" ], [ $node_b, shared => "$dir/u" ]);
		$cycle{'an upgrade beside another reader'} = [ [ $u, call(exclusive => "$dir/u") ], [ $v, call(exclusive => "$dir/v") ] ];

		my ($bystander, @five) = have($style, map { [ ($node_a, $node_b)[ $_ % 2 ], exclusive => "$dir/$_" ] } 0 .. 5);
		stands($bystander, call(exclusive => "$dir/1"));
		$cycle{'five'} = [ [$bystander], map { [ $five[$_], call(exclusive => "$dir/" . ($_ == 4 ? 1 : $_ + 2)) ] } 0 .. 4 ];

		my %failed = one_of_each_fails(%cycle);
		in_time($failed{$_}[0]{seconds}, 3 * $PERIOD, "$_: within three times deadlock_timeout") for @two;
		my @innocent = grep { $_->[1] == $w || $_->[1] == $bystander } values %failed;
		is(scalar @innocent, 0, 'and not one that only waits for others');
	};
}

subtest 'semaphores' => sub {
	my $two = q{SELECT zk_xact_semaphore_acquire('/s', 2)};
	my ($x, $y, $z) = have('curator', [$node_a], [$node_b], [ $node_b, exclusive => '/z' ]);
	$_->value($two) for $x, $y;
	one_fails('all places are held by those that are stuck', [ $z, $two ], map { [ $_, call(exclusive => '/z') ] } $x, $y);

	my ($p, $by_p) = looker($node_a, $zk);
	my ($q) = looker($node_b, $zk);
	my ($r, $by_r) = looker($node_b, $zk);
	$_->value($two) for $p, $q;
	$r->value(call(exclusive => '/z'));
	$p->send(call(exclusive => '/z'));
	$r->send($two);
	nobody_fails('one place will be given back', [ $by_p, $by_r ], $p, $r);
	$q->value('ROLLBACK');
	is($r->wait->{out}, 't', 'it is, and had');
	$r->value('ROLLBACK');
	is($p->wait->{out}, 't', 'and then the other lock');
};

subtest 'what a victim still holds closes the cycle again' => sub {
	my %session = (a => zk_session($node_a), b => zk_session($node_b));
	my %has = (a => '/x', b => '/y');
	$session{$_}->value(call('for the session', $has{$_})) for qw(a b);
	$session{a}->send(call('for the session', '/y'));
	$session{b}->send(call('for the session', '/x'));
	my $failed;
	foreach my $time (1 .. 3)
	{
		$failed = zk_until(sub { (grep { $session{$_}->is_done } qw(a b))[0] }, 'an end');
		my $r = $session{$failed}->wait;
		is($r->{state}, '40P01', "failed, time $time");
		like($r->{hint}, qr/^Release the session-scope locks that this session still holds, then retry the transaction\./, 'HINT');
		is(zk_holds($session{$failed}), 'exclusive session 1 held', 'it holds what it held');
		$session{$failed}->send(call('for the session', $has{ $failed eq 'a' ? 'b' : 'a' })) if $time < 3;
	}
	my ($other) = grep { $_ ne $failed } qw(a b);
	ok(!$session{$other}->is_done, 'the other waits');
	is($session{$failed}->value("SELECT zk_unlock('$has{$failed}')"), 't', 'zk_unlock');
	is($session{$other}->wait->{out}, 't', 'helps');
	$_->quit for values %session;
};

subtest 'what is told' => sub {
	# a database of its own, since others' deadlocks may be counted late
	$admin->value('CREATE DATABASE told');
	$node_a->safe_psql('told', 'CREATE EXTENSION zklock; CREATE TABLE t AS SELECT 1 AS id, 0 AS n');
	my ($a, $b) = map { zk_session($node_a, dbname => 'told') } 1 .. 2;
	my ($c) = have('curator', [ $node_b, semaphore => '/told/s' ]);
	$a->value('BEGIN; ' . call(shared => '/told/x'));
	$b->value('BEGIN');
	my $deadlocks = q{SELECT deadlocks FROM pg_stat_database WHERE datname = 'told'};
	my $log = slurp_file($node_a->logfile);
	$b->value('UPDATE t SET n = 1 WHERE id = 1');
	my $had = $c->value('SELECT deadlocks FROM zk_session');

	# who comes last finds it: the other one reads the board again after ten looks
	$a->value(q{SET deadlock_timeout = '1min'});
	$c->value(q{SET deadlock_timeout = '1s'});
	$b->value(q{SET deadlock_timeout = '100ms'});
	$a->send(q{UPDATE t SET n = 2 WHERE id = 1});
	wait_local($admin, 1);
	stands($c, call(exclusive => '/told/x'));
	wait_records($c);
	my $query = call(semaphore => '/told/s');
	$c->{home} = '';
	my $r = $b->query($query);
	is($r->{state}, '40P01', 'SQLSTATE');
	is($r->{message}, 'deadlock detected', 'message');
	my %who = map { $_->[0] => "rocess ${\$_->[1]->pid} on @{[ hostname() ]}:" . $_->[2]->port } [ a => $a, $node_a ], [ b => $b, $node_a ], [ c => $c, $node_b ];
	my ($xid) = $r->{err} =~ /ShareLock on transaction (\d+)/;
	my @detail = (
		qq{P$who{b} waits for a place of semaphore "/told/s"; blocked by p$who{c}.},
		qq{P$who{c} waits for ExclusiveLock on lock path "/told/x"; blocked by p$who{a}.},
		qq{P$who{a} waits for ShareLock on transaction $xid; blocked by p$who{b}.});
	my ($detail) = $r->{err} =~ /^DETAIL:  (.*?)\nHINT:/ms;
	is($detail, join("\n", @detail), 'DETAIL: each wait');
	is($r->{hint}, 'Release the session-scope locks that this session still holds, then retry the transaction. See server log for query details.', 'HINT');
	like($r->{err}, qr{^CONTEXT:  while waiting for a place of semaphore "/told/s"$}m, 'CONTEXT');
	unlike($r->{err}, qr/UPDATE/, 'the client does not see queries of others');
	my $said = substr slurp_file($node_a->logfile), length $log;
	my $queries = join "\n\t", @detail, 'Process ' . $b->pid . ": $query;", 'Process ' . $a->pid . ': UPDATE t SET n = 2 WHERE id = 1;';
	like($said, qr/DETAIL:  \Q$queries\E\n/, "the server's log has the queries, too");
	is($b->value("ROLLBACK; SELECT deadlocks, deadlock_checks > 0 FROM zk_session"), '1|t', 'zk_session');
	zk_until(sub { $admin->value($deadlocks) == 1 }, 'pg_stat_database');
	is($a->wait->{state}, '', 'the row is had');
	$a->value('ROLLBACK');
	is($c->wait->{out}, 't', 'and the lock');
	cmp_ok($c->value('ROLLBACK; SELECT deadlock_checks FROM zk_session'), '>', 0, 'who waited has looked');
	is($c->value("SELECT deadlocks - $had FROM zk_session"), 0, 'and not failed');
	is($admin->value($deadlocks), 1, 'one deadlock in all');
};

# All at once, since most of that is waiting
subtest "PostgreSQL's locks, on one server and on two, one of which looks ten times as often" => sub {
	my (%cycle, %limit);
	my %lock = (
		'a row' => 'UPDATE t SET n = n + 1 WHERE id = 2',
		'a row, shared' => 'UPDATE t SET n = n + 1 WHERE id = 3',
		'a table' => 'LOCK TABLE u IN SHARE ROW EXCLUSIVE MODE',
		'an advisory lock' => 'SELECT pg_advisory_xact_lock(1)',
		'a key' => 'INSERT INTO t VALUES (100)');
	my %first = (%lock, 'a row, shared' => 'SELECT 1 FROM t WHERE id = 3 FOR SHARE', 'an advisory lock' => 'SELECT pg_advisory_lock_shared(1)');
	foreach my $name (sort keys %lock)
	{
		my ($a, $b) = have('curator', [ $node_a, exclusive => "/local/$name" ], [$node_a]);
		$b->value($first{$name});
		$cycle{$name} = [ [ $a, "$lock{$name}; SELECT true" ], [ $b, call(exclusive => "/local/$name"), 'ROLLBACK; SELECT pg_advisory_unlock_all(); RESET ALL' ] ];
	}
	my %last = map { $_ => $cycle{$_}[1][0] } keys %cycle;

	my ($a1, $a2, $a3, $b1, $b2) = have('curator', [ $node_a, exclusive => '/x' ], [$node_a], [$node_a], [ $node_b, exclusive => '/y' ], [$node_b]);
	$a2->value(q{SELECT pg_advisory_xact_lock(2)});
	$a3->value(q{SELECT pg_advisory_xact_lock(3)});
	$b2->value(q{UPDATE t SET n = 1 WHERE id = 4});
	$cycle{'chains of waits'} = [
		[ $a1, q{SELECT count(pg_advisory_xact_lock(2)) = 1} ], [ $a2, q{SELECT count(pg_advisory_xact_lock(3)) = 1} ], [ $a3, call(exclusive => '/y') ],
		[ $b1, q{UPDATE t SET n = 2 WHERE id = 4; SELECT true} ], [ $b2, call(exclusive => '/x') ] ];

	my ($slow, $fast) = have('curator', [ $node_b, exclusive => '/slow/2' ], [ $node_a, exclusive => '/slow/1' ]);
	$slow->value(q{SET deadlock_timeout = '3s'});
	$cycle{slow} = [ [ $slow, call(exclusive => '/slow/1') ], [ $fast, call(exclusive => '/slow/2') ] ];
	my ($slow1, $slow2, $fast1) = have('curator', [ $node_b, exclusive => '/slow/4' ], [$node_b], [ $node_a, exclusive => '/slow/3' ]);
	$_->value(q{SET deadlock_timeout = '3s'}) for $slow1, $slow2;
	$slow2->value('UPDATE t SET n = 1 WHERE id = 7');
	$cycle{'slow, a row'} =
	  [ [ $slow1, 'UPDATE t SET n = 1 WHERE id = 7; SELECT true' ], [ $slow2, call(exclusive => '/slow/3') ], [ $fast1, call(exclusive => '/slow/4') ] ];

	my %failed = one_of_each_fails(%cycle);
	is($failed{$_}[1], $last{$_}, "$_: who waits for the zk lock fails") for sort keys %last;
	my ($r, $victim) = @{ $failed{'chains of waits'} };
	is(scalar(() = $r->{err} =~ /waits for/g), 5, 'DETAIL has all five waits of the chains');
	ok($victim == $a3 || $victim == $b2, 'one fails that waits for a zk lock');
	in_time($failed{$_}[0]{seconds}, /slow/ ? 9 : 3 * $PERIOD, "$_: within three times the longer deadlock_timeout") for sort keys %failed;
};

subtest 'publish_identity = off' => sub {
	my ($w, $x, $y) = map { (looker($_, $zk, deadlock_timeout => '1s', publish_identity => 'off'))[0] } $node_a, $node_b, $node_b;
	$x->value(call(exclusive => '/off/k'));
	$y->value('UPDATE t SET n = 1 WHERE id = 8');
	$w->value(call(exclusive => '/off/m'));
	$x->send('UPDATE t SET n = 1 WHERE id = 8; SELECT true');
	$y->send(call(exclusive => '/off/m'));
	zk_until(sub { grep { /\+/ } board($zk) }, 'a record that names another');
	my @said = $zk->with_client(
		sub {
			my ($client) = @_;
			return map { scalar $client->get($_) } map { my $dir = $_; map { "$dir/$_" } $client->children($dir) } $BOARD, '/zklock/off/k', '/zklock/off/m';
		});
	my $tag = qr/[0-9a-f]{16}/;
	is(scalar(grep { !/\Azklock\ntag $tag\n(?:node \S+\n)?(?:waiter $tag \d+ 0 -1 \n)?\z/ } @said), 0, 'no node says more than tags')
	  or diag(@said);
	is(scalar(grep { /^waiter/m } @said), 1, 'one tells of the wait for the row');
	my ($r, $victim) = one_fails('a cycle', [ $w, call(exclusive => '/off/k') ], [$x], [$y]);
	my @names = $r->{err} =~ /^(?:DETAIL:  )?(.*?) waits for .*; blocked by (.*)\.$/mg;
	is(scalar @names, 6, 'DETAIL has the three waits');
	my $own = 'process ' . $victim->pid;
	is(scalar(grep { !/^(?:ZooKeeper session 0x[0-9a-f]+|\Q$own\E)$/i } @names), 0, 'and names the others by their sessions of ZooKeeper alone');
	is(scalar(grep { /^\Q$own\E$/i } @names), 2, 'and its own process');
};

# The two examples of which a detector that believes what it has read fails somebody

# The first reader of a queue waits for what the second has, which stands behind a
# writer.  One of the readers has found the cycle, and its attempt to break it is on
# its way; the other published once, so that it could be found.
subtest 'a writer gives up between two readers, one of whom breaks the cycle' => sub {
	foreach my $who (qw(holder reader))
	{
		my ($queue, $held) = ("/$who/q", "/$who/m");
		my ($s, $by_s) = looker($node_a, $zk, session_timeout => '40s', deadlock_timeout => $who eq 'holder' ? '20ms' : '1h');
		my ($w, $by_w) = looker($node_b, $zk, session_timeout => '40s', deadlock_timeout => $who eq 'reader' ? '20ms' : '1h');
		my ($x) = looker($node_a, $zk, deadlock_timeout => '1h');
		$s->value(call(shared => $queue));
		$w->value(call(exclusive => $held));
		stands($x, call(exclusive => $queue));
		my @waits = ([ $w, call(shared => $queue) ], [ $s, call(exclusive => $held) ]);
		my ($breaker, $first, $last) = $who eq 'holder' ? ($by_s, @waits) : ($by_w, reverse @waits);
		# the first reads the board again after ten looks, and must not before the end
		$first->[0]->value(q{SET deadlock_timeout = '2s'});
		held_break($breaker, $first, $last);
		ok(!$x->is_done, "the $who breaks it, while the writer waits");
		is($x->cancel($admin)->{state}, '57014', 'the writer gives up');
		zk_until(sub { $zk->children("/zklock$queue") == 2 }, 'its node to go');
		$x->value('ROLLBACK');
		$breaker->release;
		go_on($w, $s);
	}
};

# X waits for a row of Y, whose record says so, and gives up.  The record no longer does then;
# or Y is asleep, and what has changed is the lock of X, which is only shared from then on.
sub gives_up_for_row
{
	my ($runs_on) = @_;
	my ($w, $by_w) = looker($node_a, $zk, deadlock_timeout => '20ms', session_timeout => '40s');
	my ($x) = looker($node_b, $zk, deadlock_timeout => '1h');
	my ($y) = looker($node_b, $zk, deadlock_timeout => '1500ms', session_timeout => '40s');
	my ($z, $b) = (zk_session($node_b), zk_session($node_b));
	$x->value($runs_on ? call(exclusive => '/k') : q{SELECT zk_lock('/k'), zk_lock_shared('/k')});
	$y->value('UPDATE t SET n = 1 WHERE id = 6; SELECT pg_advisory_xact_lock(9)');
	$w->value(call(exclusive => '/m'));
	$x->send('SELECT give_up(6)');
	$z->send('SELECT pg_advisory_lock(9)');    # so that there is a record in any case
	wait_local($b, 2);
	# Y reads the board again after ten looks; until then only W sees the cycle
	held_break($by_w, [ $y, call(exclusive => '/m') ], [ $w, call($runs_on ? 'exclusive' : 'shared', '/k') ]);
	my $record = record($zk, $y);
	like($record, qr/\+/, 'its record names whom it blocks');
	ok(!$y->is_done, 'it is not broken by the other');
	Child::suspend($y->pid) if !$runs_on;
	is($x->cancel($b)->{out}, 'gave up', 'who waited for the row gives up');
	my $pid = $x->pid;
	if ($runs_on) { zk_until(sub { $zk->get($record) !~ / $pid -1 / }, 'the record to say so'); }
	else { is($x->value(q{SELECT zk_unlock('/k')}), 't', 'and downgrades'); }
	$by_w->release;
	if ($runs_on)
	{
		nobody_fails('then', [$by_w], $w, $y);
		$x->value('COMMIT');
	}
	go_on($w);
	kill 'CONT', $y->pid;
	go_on($y);
	$z->wait;
	return;
}
subtest 'who waits for a row gives up, and runs on' => sub { gives_up_for_row(1) };
subtest 'who waits for a row gives up, and downgrades' => sub { gives_up_for_row(0) };

subtest 'who waits for our row gives up while we look' => sub {
	my ($s, $proxy) = looker($node_a, $zk, deadlock_timeout => '3s');
	my $h = zk_session($node_a);
	$s->value('UPDATE t SET n = 1 WHERE id = 6');
	$h->value('BEGIN; ' . call(exclusive => '/k'));
	$h->send('SELECT give_up(6)');
	wait_local($admin, 1);
	stands($s, call(exclusive => '/k'));
	$proxy->hold('getChildren');
	$proxy->wait_held;
	is($h->cancel($admin)->{out}, 'gave up', 'who waited for the row gives up');
	$proxy->release;
	zk_until(sub { board($zk) == 0 }, 'it to see that nobody waits for it');
	ok(!$s->is_done, 'nobody fails');
	$h->value('COMMIT');
	is($s->wait->{out}, 't', 'the lock is had');
};

subtest 'an upgrade that waits for a reader who runs' => sub {
	my ($u, $by_u) = looker($node_a, $zk);
	my $r = zk_session($node_b);
	$_->value(call('shared for the session', '/u')) for $u, $r;
	$u->send(call(exclusive => '/u'));
	nobody_fails('upgrade', [$by_u], $u);
	$r->value(q{SELECT zk_unlock_shared('/u')});
	is($u->wait->{out}, 't', 'it is done');
};

subtest 'after more than operation_timeout in which nothing was asked' => sub {
	my ($a) = have('curator', [ $node_a, exclusive => '/x' ]);
	my ($b, $proxy) = looker($node_a, $zk, deadlock_timeout => '300ms', operation_timeout => '2s', session_timeout => '40s');
	$b->value('UPDATE t SET n = 1 WHERE id = 1');
	stands($b, call(exclusive => '/x'));
	zk_until(sub { ($proxy->log)[-1][0] < time - 2.5 }, 'silence');
	one_fails('the cycle is found', [ $a, 'UPDATE t SET n = 2 WHERE id = 1; SELECT true' ], [$b]);
};

subtest 'a record whose create is not answered' => sub {
	my ($a, $c) = have('curator', map { [ $node_a, exclusive => $_ ] } '/x', '/z');
	my ($b, $proxy) = looker($node_a, $zk, deadlock_timeout => '300ms');
	$b->value(call(exclusive => '/y'));
	$c->send(call(exclusive => '/y'));    # its record keeps the board
	wait_records($c);
	# that of its node is let through, and the next one is that of its record
	$proxy->hold_request('create2');
	$b->send(call(exclusive => '/x'));
	$proxy->wait_held;
	$proxy->swallow_and_drop('create2');
	$proxy->release;
	$proxy->wait_swallowed;
	zk_until(sub { looks($proxy) }, 'it to know of a record, and look');
	$a->value('COMMIT');
	is($b->wait->{state}, '', 'it gets the lock');
	zk_until(sub { board($zk) == 1 }, 'the record to be gone');
	$b->value('ROLLBACK');
	is($c->wait->{state}, '', 'and so does the other');
};

subtest 'a create that is lost on its way' => sub {
	my ($a) = have('curator', [ $node_a, exclusive => '/x' ]);
	my ($b, $proxy) = looker($node_b, $zk, deadlock_timeout => '300ms');
	$b->value(call(exclusive => '/y') . '; SAVEPOINT s');
	$proxy->drop_request([ 'create2', 'create' ]);
	# whatever becomes of it, ZooKeeper may get it within a minute, and is asked so long
	$b->query(call(exclusive => '/z'));
	$b->value('ROLLBACK TO s');
	one_fails('does not keep others from being seen', [ $a, call(exclusive => '/y') ], [ $b, call(exclusive => '/x') ]);
};

subtest 'the board is for all, whoever made it' => sub {
	my @file = map { auth_file("digest:team$_:secret\n") } 1, 2;
	$zk->create("/zklock/team$_") for 1, 2;
	my $of = sub {
		my ($n, $acl) = @_;
		my @two = map { zk_session_with($_, $acl eq 'creator' ? (auth_file => $file[ $n - 1 ]) : (), acl => $acl) } $node_a, $node_b;
		$_->value('BEGIN') for @two;
		$two[0]->value(call(exclusive => "/team$n/x"));
		$two[1]->value(call(exclusive => "/team$n/y"));
		return @two;
	};
	zk_until(sub { $zk->reap($BOARD) }, 'no board');
	my @first = $of->(1, 'creator');
	$first[0]->send(call(exclusive => '/team1/y'));
	zk_until(sub { board($zk) }, 'a record');
	my @second = $of->(2, 'world');
	one_fails('of another team', [ $second[0], call(exclusive => '/team2/y') ], [ $second[1], call(exclusive => '/team2/x') ]);
	$first[1]->value('ROLLBACK');
	is($first[0]->wait->{out}, 't', 'the first goes on');
	$_->quit for @first, @second;
};

subtest 'a look does not delay a grant' => sub {
	foreach (1 .. ($TIMING ? 4 : 1))
	{
		my ($a, $c) = in_transactions($node_a, $node_a);
		my ($b, $proxy) = looker($node_a, $zk, deadlock_timeout => '2s', session_timeout => '40s');
		$a->value(q{SELECT zk_xact_lock('/x')});
		$b->value('UPDATE t SET n = 1 WHERE id = 1');
		$c->send('UPDATE t SET n = 2 WHERE id = 1');    # so each look writes to the record
		$proxy->clear_log;
		$b->send(q{SELECT zk_xact_lock('/x')});
		$proxy->hold('setData');
		$proxy->wait_held;
		$proxy->hold_event;
		$a->value('COMMIT');
		zk_until(sub { $proxy->held == 2 }, 'the event to wait behind the answer');
		$proxy->release;
		my $began = time;
		is($b->wait->{state}, '', 'granted');
		in_time(time - $began, 0.5, 'at once');
		$b->value('ROLLBACK');
		$c->wait;
		$c->value('ROLLBACK');
	}
};

# -------------------------------------------------------------------- what they cost

# Who has no heartbeat for as long as a test takes: that of a session that is next in line is
# a transaction
my %no_heartbeat = (session_timeout => '1h');
my $holder = zk_session_with($node_a, hosts => $zk, %no_heartbeat);
my $client = $zk->client;

my $lock = sub { "SELECT zk_xact_lock('$_[0]')" };

sub put { return "$_[0]-0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1-" . sprintf '%010d', $_[1]; }

subtest 'waiters that hold nothing' => sub {
	$holder->value(q{SELECT zk_lock('/idle/x'), zk_lock('/idle/y')});
	my $proxy = ZkProxy->new($zk);
	my @waiters = map { zk_session_with($node_a, hosts => $proxy, %no_heartbeat) } 1 .. $MANY;
	$_->value(q{SET deadlock_timeout = '100ms'}) for @waiters;
	$_->send($lock->('/idle/x')) for @waiters;
	zk_wait_queued($zk, @waiters);
	quiet($proxy);
	$proxy->clear_log;

	# another one, for comparison, has looked 21 times when it has read the board three times
	my ($s, $by_s) = looker($node_a, $zk, deadlock_timeout => '100ms');
	$s->value($lock->('/idle/z'));
	$s->send($lock->('/idle/y'));
	have_looked(3, [$by_s]);
	is(asked($proxy), '', 'ask for nothing, though they look');
	is(scalar board($zk), 1, 'and publish nothing');
	$holder->value('SELECT zk_unlock_all()');
	my @result = map { $_->wait } @waiters;
	is(scalar(grep { $_->{out} eq 't' } @result), $MANY, 'each has its turn');
	is(scalar(grep { $_->value('SELECT deadlock_checks FROM zk_session') < 7 } @waiters), 0, 'each has looked');
	is($s->wait->{out}, 't', 'the other one has its lock');
	$_->quit for @waiters, $s;
	is(scalar board($zk), 0, 'the board is empty');
};

subtest 'a waiter that holds one lock' => sub {
	my ($s, $proxy) = zk_counted_session($node_a, $zk, 0, %no_heartbeat);
	$holder->value(q{SELECT zk_lock('/cost/x')});
	$s->value(q{BEGIN; SELECT zk_xact_lock('/cost/y'); SET deadlock_timeout = '1h'});
	$proxy->clear_log;
	stands($s, $lock->('/cost/x'));
	my $wait = settled($proxy);
	$s->cancel($admin);
	$s->value('ROLLBACK');
	quiet($proxy);

	$s->value(q{BEGIN; SELECT zk_xact_lock('/cost/y'); SET deadlock_timeout = '20ms'});
	$proxy->clear_log;
	my $zxid = $zk->zxid;
	$s->send($lock->('/cost/x'));
	zk_until(sub { $proxy->count('exists') >= 3 }, 'three looks');
	is($zk->zxid - $zxid, 2, 'one transaction more than the wait itself');
	$holder->value(q{SELECT zk_unlock('/cost/x')});
	is($s->wait->{out}, 't', 'the lock is had');
	# it goes on looking until then
	my ($look, $begun) = ('getChildren\*2 getData exists', 'getChildren(?:\*2)?(?: getData)?');
	like(settled($proxy), qr/^\Q$wait\E create2(?: $look){3,}(?: $begun)? delete$/,
		'its record, in one of ten looks the board, the queue, who holds, itself, and then the record goes');
	my $read = looks($proxy);
	my $checks = $s->value('SELECT deadlock_checks FROM zk_session');
	cmp_ok($checks, '>', 10 * ($read - 1), 'zk_session counts the looks');
	cmp_ok($checks, '<=', 10 * $read, 'all of them');
};

subtest 'a waiter for which others wait' => sub {
	my ($s, $proxy) = zk_counted_session($node_a, $zk, 0);
	my $t = zk_session($node_a);
	$holder->value(q{SELECT zk_lock('/cost/x')});
	$s->value(q{BEGIN; UPDATE t SET n = 1 WHERE id = 1; SET deadlock_timeout = '2ms'});
	$t->value(q{SET deadlock_timeout = '1h'});
	$t->send('UPDATE t SET n = 2 WHERE id = 1');
	wait_local($admin, 1);
	$s->send($lock->('/cost/x'));
	zk_until(sub { $proxy->count('setData') >= 12 }, 'some looks');
	my @asked = map { (split / /)[0] } $proxy->requests;
	my ($writes, $reads) = map { my $op = $_; scalar grep { $_ eq $op } @asked } qw(setData getChildren);
	cmp_ok($reads, '<', $writes / 2, 'it writes its record at each look, and reads the board now and then');
	my ($name) = grep { /^[0-9a-f]{16}\+-/ } board($zk);
	ok($name, 'the name of its record says that it names others');
	my ($data) = $client->get("$BOARD/$name");
	like($data, qr{\Azklock\ntag [0-9a-f]{16}\n.*^pid @{[ $s->pid ]}\n.*^node /zklock/cost/x/\S+\nwaiter [0-9a-f]{16} \d+ @{[ $t->pid ]} -1 ShareLock on transaction \d+\n\z}ms, 'and whom');

	# looks leave nothing in memory; in the midst of one it has more
	my $log = -s $node_a->logfile;
	my (@seen, @total);
	foreach my $looks (50, 150)
	{
		zk_until(sub { $proxy->count('setData') >= $looks }, "$looks looks");
		foreach (1 .. 3)
		{
			$admin->value('SELECT pg_log_backend_memory_contexts(' . $s->pid . ')');
			push @seen, zk_until(sub { (substr(slurp_file($node_a->logfile), $log) =~ /Grand total: .*; (\d+) used/g)[ $#seen + 1 ] }, 'its memory');
		}
		push @total, min(@seen[ -3 .. -1 ]);
	}
	cmp_ok($total[1] - $total[0], '<', 20_000, 'a hundred more looks leave nothing in memory') or diag "@total";
	$t->cancel($admin);
	zk_until(sub { !board($zk) }, 'the record to go, since nobody waits any more, and it holds no zk lock');
	$holder->value(q{SELECT zk_unlock('/cost/x')});
	is($s->wait->{out}, 't', 'the lock is had');
	$_->quit for $s, $t;
	is(scalar board($zk), 0, 'the board is empty');
};

# ------------------------------------------------------------- what is told

subtest 'log_lock_waits' => sub {
	my ($s, $by_s) = looker($node_a, $zk);
	my $t = zk_session($node_b);
	my %who = map { $_->[0] => 'process ' . $_->[1]->pid . " on @{[ hostname() ]}:" . $_->[2]->port } [ h => $holder, $node_a ], [ s => $s, $node_a ], [ t => $t, $node_b ];
	my $log = -s $node_a->logfile;
	my $said = sub { substr slurp_file($node_a->logfile), $log };
	$holder->value(q{SELECT zk_lock('/log/x')});
	my @is = ('process ' . $s->pid, 'ExclusiveLock on lock path "/log/x"');
	$s->value($lock->('/log/free'));
	$s->send($lock->('/log/x'));
	have_looked(2, [$by_s]);
	unlike($said->(), qr/waiting|acquire/, 'off: nothing is logged');
	$s->cancel($admin);
	$s->value('ROLLBACK; SET log_lock_waits = on; BEGIN');

	# quick ones are not mentioned
	$log = -s $node_a->logfile;
	$s->value($lock->('/log/free'));
	unlike($said->(), qr/ waiting| acquire/, 'no wait, no line');

	$s->send($lock->('/log/x'));
	zk_until(sub { $said->() =~ /still waiting/ }, 'a line');
	zk_until(sub { $said->() =~ /Wait queue/ }, 'its DETAIL');
	like($said->(), qr/LOG:  $is[0] still waiting for $is[1] after \d+\.\d{3} ms\n/, 'still waiting');
	like($said->(), qr/DETAIL:  Held by: \Q$who{h}\E\. Wait queue: \Q$who{s}\E\.\n/, 'DETAIL: holders and queue');
	have_looked(2, [$by_s]);
	is(scalar(() = $said->() =~ /LOG:  $is[0] /g), 1, 'that is all, however often it looks');
	$holder->value(q{SELECT zk_unlock('/log/x')});
	$s->wait;
	like($said->(), qr/LOG:  $is[0] acquired $is[1] after \d+\.\d{3} ms\n/, 'acquired');
	$s->value('COMMIT');

	$holder->value(q{SELECT zk_lock_shared('/log/x')});
	$t->value(q{SELECT zk_lock_shared('/log/x')});
	$s->send($lock->('/log/x'));
	zk_until(sub { (() = $said->() =~ /Held by/g) == 2 }, 'another line');
	like($said->(), qr/Held by: \Q$who{h}\E, \Q$who{t}\E\. Wait queue: \Q$who{s}\E\.\n/, 'several holders');
	$s->cancel($admin);
	zk_until(sub { $said->() =~ /LOG:  $is[0] failed to acquire $is[1] after \d+\.\d{3} ms\n/ }, 'failed to acquire');

	my $node = $client->contend('/zklock/log/z', undef, data => '192.168.0.1');
	$s->send(q{SELECT zk_lock_shared('/log/z')});
	zk_until(sub { (() = $said->() =~ /Held by/g) == 3 }, 'another line');
	my $id = $client->session_id;
	like($said->(), qr/still waiting for ShareLock on lock path "\/log\/z" .*\n.*Held by: ZooKeeper session $id\. Wait queue: \Q$who{s}\E\.\n/, "another client's node");
	$client->delete($node);
	$s->wait;
	$holder->value('SELECT zk_unlock_all()');
};

# (All that can end one: t/020, t/108, specs/limits)
subtest 'errors that end a wait' => sub {
	my $who = 'process ' . $holder->pid . " on @{[ hostname() ]}:" . $node_a->port;
	my $context = qr{^CONTEXT:  while waiting for lock path "/ends/x"$}m;
	my $id = $client->session_id;
	$holder->value(q{SELECT zk_lock('/ends/x')});

	# whose times run out, all at once; the third is watched only, since it is before us, and
	# need not be a holder
	my @foreign = ([ '', '_c_other-lock-' ], [ '192.168.0.1', '_c_other-lock-' ], [ "zklock\nnonsense", 'other__lock__' ]);
	$client->contend("/zklock/ends/y$_", $foreign[$_][1], data => $foreign[$_][0]) for 0 .. $#foreign;
	my $wait = sub { my ($sql) = @_; my $s = zk_session($node_a); $s->value(q{SET lock_timeout = '3s'}); $s->send($sql); return $s; };
	my $first = $wait->($lock->('/ends/x'));
	zk_wait_queued($zk, $first);
	my $t = zk_session($node_b);
	stands($t, $lock->('/ends/x'));
	my $third = $wait->($lock->('/ends/x'));
	my @behind = map { $wait->($lock->("/ends/y$_")) } 0 .. $#foreign;
	my $r = $first->wait;
	is("$r->{state} $r->{detail}", "55P03 It is held by $who.", 'lock_timeout: DETAIL: who holds the lock');
	like($r->{err}, $context, 'CONTEXT');
	is($behind[$_]->wait->{detail}, "It is held by ZooKeeper session $id.", "DETAIL for another client's node: $foreign[$_][0]") for 0 .. $#foreign;
	$r = $third->wait;
	is($r->{state}, '55P03', 'third in the queue');
	unlike($r->{detail}, qr/held by process @{[ $t->pid ]}/, 'DETAIL does not call a waiter the holder');
	$client->delete_contenders("/zklock/ends/y$_", qr/other/) for 0 .. $#foreign;
	$_->quit for $third, @behind;

	my $s = $first;
	$s->value('RESET lock_timeout');
	stands($s, "SELECT zk_lock_many('{/ends/a,/ends/x}')");
	$r = $s->cancel($admin);
	is($r->{state}, '57014', 'canceled');
	like($r->{err}, $context, 'CONTEXT: of several, the one that is waited for');
	unlike($s->query('SELECT 1/0')->{err}, qr/CONTEXT/, 'after the wait there is none');
	$holder->value('SELECT zk_unlock_all()');
	$t->wait;
};

# --------------------------------------------------- what others leave there

# One that waits, and one that holds what it waits for and does not wait
sub waiting_pair
{
	my ($w, $by_w) = looker($node_a, $zk);
	my $h = zk_session($node_b);
	$h->value(q{SELECT zk_lock('/junk/h')});
	$w->value($lock->('/junk/w'));
	$w->send($lock->('/junk/h'));
	return ($w, $by_w, $h);
}

sub tag_of
{
	my ($path) = @_;
	my ($node) = $client->queue($path);
	return ($client->get($node))[0] =~ /^tag ([0-9a-f]{16})$/m;
}

# Records and what looks like some, [ name, data ], that concern these two
sub junk
{
	my ($w, $h) = @_;
	my ($of_w, $of_h) = map { tag_of("/zklock/junk/$_") } qw(w h);
	my ($node_w) = grep { $client->get($_) =~ /^tag $of_w$/m } $client->queue('/zklock/junk/h');
	my ($node_h) = $client->queue('/zklock/junk/h');
	my $behind_w = $client->contend('/zklock/junk/w', undef, data => "zklock\ntag $of_h\n");
	my $other = 'f' x 16;
	my $line = sub { "zklock\ntag $_[0]\nhost elsewhere\nport 1\npid 1\n" . ($_[1] // '') };
	my $waits = sub { join '', map { "waiter $_[0] 1 1 " . ($_[2] ? int rand 100 : -1) . " what\n" } 1 .. $_[1] };
	my $n = 1;
	my @junk;
	foreach my $data (
		$line->($of_h, "node $behind_w\n"), '', 'x', "zklock\n", "zklock\n\0\n", $line->($of_h), $line->($of_h, "node\n"), $line->($of_h, "node \n"),
		$line->($of_h, "node /\n"), $line->($of_h, "node //\n"), $line->($of_h, "node $node_w"),
		(map { $line->($of_h, "node $_\n") } $behind_w, $node_w, $node_h, '/elsewhere/_c_other-lock-0000000000',
			'/zklock/_c_other-lock-0000000000', '/_c_other-lock-0000000000', '/zklockx/y/_c_other-lock-0000000000',
			'/zklock/none/_c_other-lock-0000000000', '/zklock/../zookeeper/_c_other-lock-0000000000', "/zklock/\xff\xfe\x01/_c_other-lock-0000000000",
			'/zklock/' . 'x' x 5000 . '/_c_other-lock-0000000000', "/zklock//junk//w/_c_other-lock-0000000000", $BOARD . '/_c_other-lock-0000000000'),
		$line->($of_h, "node $behind_w\n" . 'x' x 65536), $line->($of_h, $waits->($of_w, 2000) . "node $behind_w\n"),
		$line->($of_h, "node $behind_w\n" . $waits->($of_w, 1000)), $line->($of_h, "node $behind_w\n" . $waits->($of_w, 1000, 1)),
		$line->($of_h, "node $behind_w\nwaiter $of_w 1 1 0 a\nwaiter $of_w 1 1 1 b\nwaiter $of_h 1 1 99999999999 c\nwaiter $of_h 99999999999999999999 1 -1\nwaiter $of_h\nwaiter \n"),
		$line->($of_h, "node $node_w\nwaiter $of_h 1 -7 -9 \xff\xfe\n"))
	{
		push @junk, map { [ put($_, $n++), $data ] } $of_h, "$of_h+", "$of_w+", $of_w, "$other+";
	}
	push @junk, map { [ $_, $line->($of_h, "node $behind_w\n") ] } $of_h, "$of_h+", "$of_h-", "$of_h+-", "$of_h-0f5dd2a6-0000000000", "x$of_h", "\xc3\xa9",
	  "$of_h-0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1-", uc put($of_h, 1) . 'x';
	return @junk;
}

subtest 'junk on the board' => sub {
	my ($w, $by_w, $h) = waiting_pair();
	wait_records($w);
	my @junk = map { [ "$BOARD/$_->[0]", $_->[1] ] } junk($w, $h);

	# alone: with others beside, these may be the first that are judged
	foreach my $case ([ 'one that could be believed', 'ephemeral', $junk[0] ], map { [ $_, $_, @junk ] } qw(ephemeral persistent))
	{
		my ($name, $mode, @some) = @$case;
		$client->create_all($mode, @some);
		nobody_fails($name, [$by_w], $w);
		$client->delete($_->[0]) for @some;
	}
	$h->value(q{SELECT zk_unlock('/junk/h')});
	$client->delete_contenders('/zklock/junk/w', qr/other/);
	is($w->wait->{out}, 't', 'the lock is had');
	$_->quit for $w, $h;
	is(scalar board($zk), 0, 'the board is empty');
};

subtest 'what another server says counts when it has said it three times' => sub {
	my ($w, $by_w, $h) = waiting_pair();
	my ($of_h) = tag_of('/zklock/junk/h');
	my $tag = 'e' x 16;
	my $node = $client->contend('/zklock/junk/w', undef, data => "zklock\ntag $tag\n");
	my $say = sub { "zklock\ntag $tag\nnode $node\nwaiter $of_h $_[0] 17 0 a lock\n" };    # and is behind itself
	my $record = "$BOARD/" . put("$tag+", 1);
	wait_records($w);
	$client->create_all(ephemeral => [ $record, $say->(1) ]);
	nobody_fails('said once', [$by_w], $w);
	foreach my $since (2 .. 4)
	{
		$client->set($record, $say->($since));
		nobody_fails("another wait, $since", [$by_w], $w);
	}
	$client->set($record, $say->(4));
	nobody_fails('said twice', [$by_w], $w);
	$client->set($record, $say->(4));
	is($w->wait->{state}, '40P01', 'said three times: found');

	# what is said of itself it knows better
	$client->delete($node);
	$w->value('ROLLBACK; BEGIN; ' . $lock->('/junk/w'));
	$node = $client->contend('/zklock/junk/w', undef, data => "zklock\ntag $tag\n");
	$w->send($lock->('/junk/h'));
	my $of_w = tag_of('/zklock/junk/w');
	foreach my $time (1 .. 4)
	{
		$client->set($record, "zklock\ntag $tag\nnode $node\nwaiter $of_w 1 0 -1 \n");
		nobody_fails("said $time times of itself", [$by_w], $w);
	}
	$client->delete($_) for $record, $node;
	$h->value(q{SELECT zk_unlock('/junk/h')});
	is($w->wait->{state}, '', 'it gets the lock');
};

subtest 'a cycle that rests on what nobody says again hides no other' => sub {
	my @names = qw(w q p h);
	my %s;
	@s{@names} = in_transactions($node_a, $node_a, $node_b, $node_b);
	$s{$_}->value($lock->("/hide/$_")) for @names;
	$s{w}->value('UPDATE t SET n = 1 WHERE id = 5');
	$s{p}->value('UPDATE t SET n = 1 WHERE id = 6');
	my %tag = map { $_ => tag_of("/zklock/hide/$_") } @names;
	$s{w}->send($lock->('/hide/h'));
	$s{p}->send($lock->('/hide/q'));
	wait_records(@s{qw(w p)});

	# each is said to be waited for, over one that is behind it, by the one it waits for
	my $n = 1;
	my @forged = map {
		my ($behind, $waiter) = @$_;
		my $tag = 'e' x 15 . $n;
		my $node = $client->contend("/zklock/hide/$behind", undef, data => "zklock\ntag $tag\n");
		[ "$BOARD/" . put("$tag+", $n++), "zklock\ntag $tag\nnode $node\nwaiter $tag{$waiter} 1 17 -1 a lock\n", $node ];
	} [ w => 'h' ], [ p => 'q' ];
	$client->create_all(ephemeral => @forged);
	my ($r) = one_fails('beside them', [ $s{w} ], [ $s{p} ], [ $s{h}, 'UPDATE t SET n = 2 WHERE id = 6; SELECT true' ],
		[ $s{q}, 'UPDATE t SET n = 2 WHERE id = 5; SELECT true' ]);
	note sprintf 'found after %.3f s', $r->{seconds};
	$client->delete($_) for map { $_->[0], $_->[2] } @forged;
};

subtest 'thousands of records' => sub {
	my ($w, $by_w, $h) = waiting_pair();
	wait_records($w);
	my @junk = junk($w, $h);
	my $crowd = $zk->client;
	my $n = 1_000_000;
	my @sessions = map { zk_session($_) } $node_a, $node_b, $node_b, $node_a, $node_b;
	$_->value(q{BEGIN; SET deadlock_timeout = '100ms'}) for @sessions;
	$sessions[$_]->value($lock->("/junk/$_")) for 0, 1, 3, 4;
	$sessions[2]->value('UPDATE t SET n = 1 WHERE id = 2');
	$crowd->create_all(ephemeral => map { [ "$BOARD/$_->[0]", $_->[1] ] } @junk,
		map { my $tag = sprintf '%016x', $_ * 4e14; [ put($_ % 2 ? "$tag+" : $tag, $n++), "zklock\ntag $tag\nnode /zklock/junk/1/_c_other-lock-0000000000\nwaiter $tag 1 1 -1 x\n" ] } 1 .. 4_000);
	my %failed = one_of_each_fails(
		'a row' => [ [ $sessions[0], $lock->('/junk/1') ], [ $sessions[1], 'UPDATE t SET n = 1 WHERE id = 2; SELECT true' ], [ $sessions[2], $lock->('/junk/0') ] ],
		'zk locks' => [ [ $sessions[3], $lock->('/junk/4') ], [ $sessions[4], $lock->('/junk/3') ] ]);
	in_time($failed{$_}[0]{seconds}, 3 * 0.1 + 2, "$_: nearly as soon as without them") for sort keys %failed;
	have_looked(1, [$by_w]);
	ok(!$w->is_done, 'nobody else fails');
	$crowd->close;

	# more than is read
	$crowd = $zk->client;
	my $large = "zklock\ntag ${\('0' x 16)}\nnode /zklock/junk/1/_c_other-lock-0000000000\n" . "waiter ${\('0' x 16)} 1 1 -1 x\n" x 1500;
	$crowd->create_all(ephemeral => map { [ "$BOARD/" . put('0' x 16 . '+', $n++), $large ] } 1 .. 200);
	$sessions[3]->value(q{BEGIN; SET deadlock_timeout = '100ms'; } . $lock->('/junk/3'));
	$sessions[4]->value(q{BEGIN; SET deadlock_timeout = '100ms'; } . $lock->('/junk/4'));
	my ($r) = one_fails('beside large ones', [ $sessions[3], $lock->('/junk/4') ], [ $sessions[4], $lock->('/junk/3') ]);
	note sprintf 'found after %.3f s', $r->{seconds};
	$crowd->close;
	ok(!$w->is_done, 'nobody else fails');
	$client->delete_contenders('/zklock/junk/w', qr/other/);
	$h->value(q{SELECT zk_unlock('/junk/h')});
	is($w->wait->{out}, 't', 'the lock is had');
	$_->quit for $w, $h, @sessions;
};

subtest 'the board is deleted, or closed to us' => sub {
	my ($w, $by_w, $h) = waiting_pair();
	my ($v, $by_v) = looker($node_b, $zk);
	wait_records($w);
	# those that look may make a record again at any moment
	my $delete = sub {
		my (@then) = @_;
		zk_until(sub { eval { $client->multi((map { [ delete => "$BOARD/$_" ] } $client->children($BOARD)), [ delete => $BOARD ], @then); 1 } }, 'it to be deleted');
	};
	$delete->();
	nobody_fails('deleted', [$by_w], $w);
	ok(record($zk, $w), 'the record is made again');
	$v->value($lock->('/junk/v'));
	$v->send($lock->('/junk/h'));
	wait_records($v);
	$delete->([ create => $BOARD, mode => 'persistent', acl => [ [ 16, 'world', 'anyone' ] ] ]);
	my ($u, $by_u) = looker($node_b, $zk);
	$u->value($lock->('/junk/u'));
	$by_u->clear_log;
	$u->send($lock->('/junk/h'));
	zk_until(sub { $by_u->count('create2') > 5 }, 'attempts to publish, which are refused');
	ok(!(grep { $_->is_done } $w, $v, $u), 'closed: nobody fails');
	$client->set_acl($BOARD, [ [ 31, 'world', 'anyone' ] ]);
	wait_records($w, $v, $u);
	$h->value(q{SELECT zk_unlock('/junk/h')});
	foreach my $s ($w, $v, $u)
	{
		is($s->wait->{out}, 't', 'the lock is had');
		$s->value('ROLLBACK');
	}
	$_->quit for $w, $v, $u, $h;
};

$client->close;
$holder->quit;

# ------------------------------------------------------------ when something interferes

# In each of the ways, and the other one looks, too, or not; all at the same time, since most
# of that is waiting.  B has told where it waits before A begins to wait, so that A is the one
# who sees the cycle; B reads the board again after ten looks, much later.
zk_leaves_nothing $zk, 'the break is lost' => sub {
	my (%cycle, %proxy, %a);
	foreach my $way (@ZkProxy::WAYS, 'swallowed and the connection cut, with rows elsewhere')
	{
		foreach my $both ($way =~ /rows/ ? 1 : (0, 1))
		{
			my $name = $way . ($both ? ', and the other looks, too' : '');
			my $dir = '/lost/' . keys %cycle;
			# A connection that is silent is given up after two thirds of this; what is left
			# of it is for coming back.  By then B has not looked ten times.
			my ($a, $proxy) = looker($node_a, $zk, deadlock_timeout => '200ms', operation_timeout => '60s', session_timeout => $way =~ /behind|^stuck/ ? '20s' : '6s');
			$a->value(call(exclusive => "$dir/x"));
			my $b = begun($node_b, call(exclusive => "$dir/y"), $both ? '400ms' : '3s');
			my @waits = ([ $a, call(exclusive => "$dir/y") ], [ $b, call(exclusive => "$dir/x") ]);
			if ($way =~ /rows/)
			{
				# what is known of them is old by then
				my $row = 'UPDATE t SET n = n + 1 WHERE id = 1; SELECT true';
				@waits = ($waits[0], [ $b, $row ], [ begun($node_b, $row, '600ms'), $waits[1][1] ]);
			}
			$proxy->lose($way =~ s/, with .*//r, 'break');
			($cycle{$name}, $proxy{$name}) = (\@waits, $proxy);
			$a{$name} = $a if !$both;
		}
	}
	my @alone = sort keys %a;
	foreach my $at (1, 0)
	{
		my @waits = map { $cycle{$_}[$at] } @alone;
		$_->[0]->send(pop @$_) for @waits;
		wait_records(map { $_->[0] } @waits) if $at == 1;
	}
	foreach my $name (@alone)
	{
		$proxy{$name}->wait_lost($name);
		my $began = time;
		next if $name ne 'never asked for, the connection cut';
		$proxy{$name}->wait_for('multi', 2);
		in_time(time - $began, 1.5, 'the next attempt comes soon');
	}
	sleep 1;
	$proxy{$_}->release for grep { /^stuck/ } @alone;
	my %failed = one_of_each_fails(%cycle);
	is($failed{$_}[1], $a{$_}, "$_: it fails, and the other does not") for @alone;
	foreach my $name (sort keys %cycle)
	{
		$proxy{$name}->reset;
		my $a = $cycle{$name}[0][0];
		is($a->value(q{SELECT zk_lock('/lost/x'), zk_unlock('/lost/x')}), 't|t', "$name: it goes on");
		$a->quit;
	}
};

# B waits for one of two places; A has one, and C, who gives up, the other
zk_leaves_nothing $zk, 'a place of a semaphore freed just before the break' => sub {
	my $place = call(semaphore => '/c/s') =~ s/1\)/2)/r;
	my ($a, $proxy) = looker($node_a, $zk, session_timeout => '40s', deadlock_timeout => '200ms');
	$a->value($place);
	my $c = begun($node_b, $place, '2s');
	my $b = begun($node_b, call(exclusive => '/c/y'), '2s');
	stands($b, $place);
	held_break($proxy, [ $c, call(exclusive => '/c/y') ], [ $a, call(exclusive => '/c/y') ]);
	ok(!$b->is_done && !$c->is_done, 'nobody fails while one with a place runs');
	my $admin_b = zk_session($node_b);
	is($c->cancel($admin_b)->{state}, '57014', 'one with a place gives up');
	$c->value('ROLLBACK');
	is($b->wait->{state}, '', 'which is had');
	$proxy->release;
	$b->value('COMMIT');
	go_on($a);
};

# B is stopped, for less or more than its session lives: before it can look, or when it has told
# where it waits
zk_leaves_nothing $zk, 'members are stopped' => sub {
	my @cycles = map {
		my ($seconds, $told) = @$_;
		my $dir = "/stop/$seconds/$told";
		my $a = begun($node_a, call(exclusive => "$dir/x"), '1s');
		my $b = zk_session_with($node_b, session_timeout => '6s');
		$b->value('SET deadlock_timeout = ' . ($told ? 100 : 2000) . '; BEGIN; ' . call(exclusive => "$dir/y"));
		{ dir => $dir, seconds => $seconds, told => $told, a => $a, b => $b };
	} [ 1, 0 ], [ 1, 1 ], [ 8, 0 ], [ 8, 1 ];
	my ($early, $told) = map { my $with = $_; [ grep { $_->{told} == $with } @cycles ] } 0, 1;
	$_->{b}->send(call(exclusive => "$_->{dir}/x")) for @$told, @$early;
	zk_wait_queued($zk, map { $_->{b} } @$early);
	Child::suspend(map { $_->{b}->pid } @$early);
	wait_records(map { $_->{b} } @$told);
	Child::suspend(map { $_->{b}->pid } @$told);
	$_->{a}->send(call(exclusive => "$_->{dir}/y")) for @cycles;
	my $began = time;
	foreach my $c (@$told)
	{
		is($c->{a}->wait->{state}, '40P01', 'who has told: the other one fails, while that one is stopped');
		in_time(time - $began, 3 + 1, '- in time');
		$c->{a}->query('ROLLBACK');
	}
	foreach my $c (@cycles)
	{
		my $left = $began + $c->{seconds} - time;
		sleep $left if $left > 0;
		kill 'CONT', $c->{b}->pid;
	}
	foreach my $c (@cycles)
	{
		my $states = all_done($c->{told} ? () : $c->{a}, $c->{b});
		my ($lives, $over) =
			$c->{told} ? (qr/^ok$/, qr/^(?:ok|40001)$/)
		  : (qr/^(?:40P01 ok|ok 40P01)$/, qr/^(?:40P01|ok) (?:ok|40001)$|^ok 40P01$/);
		like($states, $c->{seconds} < 6 ? $lives : $over, "for $c->{seconds} s: one fails for a cycle, at most");
		$_->quit for $c->{a}, $c->{b};
	}
};

# Wait until all are done, each rolled back or committed then; returns their SQLSTATEs
# in the given order
sub all_done
{
	my (@sessions) = @_;
	my %state;
	while (my @left = grep { !exists $state{$_} } @sessions)
	{
		my $s = zk_until(sub { (grep { $_->is_done } @left)[0] }, 'one to be done');
		$state{$s} = $s->wait->{state};
		$s->query($state{$s} eq '' ? 'COMMIT' : 'ROLLBACK');
	}
	return join ' ', map { $state{$_} || 'ok' } @sessions;
}

zk_leaves_nothing $zk, 'members lose their sessions' => sub {
	my $over = sub { my ($node) = @_; zk_until(sub { eval { $zk->end_sessions_of($node); 1 } }, 'its session to end'); };
	my $a = begun($node_a, call(exclusive => '/again/x'));
	my $b = begun($node_a, 'UPDATE t SET n = 1 WHERE id = 1', '2s');
	stands($b, call(exclusive => '/again/x'));
	my $node = $zk->with_client(sub { ($_[0]->queue('/zklock/again/x'))[1] });
	$a->send(q{UPDATE t SET n = 2 WHERE id = 1});
	$over->($node);
	is(all_done($b, $a), '40P01 ok', 'one queues again, and the cycle is still found');
	$_->quit for $a, $b;

	# and with it what the other waits for
	foreach my $time (1 .. 4)
	{
		($a, $b) = map { begun($_->[0], call(exclusive => $_->[1]), '300ms') } [ $node_a, '/over/x' ], [ $node_b, '/over/y' ];
		($node) = $zk->children('/zklock/over/y');
		$b->send(call(exclusive => '/over/x'));
		$a->send(call(exclusive => '/over/y'));
		sleep 0.25 + 0.1 * rand;
		$over->("/zklock/over/y/$node");    # its client may be faster to come back
		my $states = all_done($a, $b);
		cmp_ok(scalar(() = $states =~ /40P01/g), '<=', 1, "time $time: at most one fails for a cycle ($states)");
		$_->quit for $a, $b;
	}
};

# Let it wait for a while; one test, if times are tested.  The CPU time is that of the threads
# that the process has now: ticks, which zk_cpu_seconds counts, are too coarse for a few looks.
sub looks_cheaply
{
	my ($s, $sql) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$s->send($sql);
	wait_records($s);
	my $used = sub { return sum map { (split ' ', slurp_file($_))[0] / 1e9 } glob '/proc/' . $s->pid . '/task/*/schedstat'; };
	my ($cpu, $from) = ($used->(), time);
	sleep($LONG > 20 ? 30 : $TIMING ? 3 : 0.2);    # no wait for anything: this time is what is measured
	$cpu = ($used->() - $cpu) / (time - $from);
	note sprintf '%d: %.2f %% of a processor', $LONG, 100 * $cpu;
	in_time($cpu, 0.01, 'less than 1 % of a processor');
	return;
}

zk_leaves_nothing $zk, 'many who wait for a row, behind one who waits for a lock; and in one queue with one in a cycle' => sub {
	my $h = begun($node_b, call(exclusive => '/long/x'));
	my $w = begun($node_a, 'UPDATE t SET n = 1 WHERE id = 1', '1s');
	my @rows = map { begun($node_a, '', '1h') } 1 .. $LONG;
	$_->send('UPDATE t SET n = 2 WHERE id = 1') for @rows;
	wait_local($admin, $LONG);
	looks_cheaply($w, call(exclusive => '/long/x'));
	$h->value('COMMIT');
	is(all_done($w, @rows) =~ s/ok ?//gr, '', 'all go on');

	$_->value('BEGIN; ' . call(exclusive => '/long/' . ($_ == $h ? 'q' : 'h'))) for $h, $w;
	my @others = (@rows, map { begun($node_b, '') } 1 .. $LONG / 2);
	$_->send(call(exclusive => '/long/q')) for @others;
	zk_until(sub { $zk->children('/zklock/long/q') == @others + 1 }, 'the waiters');
	looks_cheaply($w, call(exclusive => '/long/q'));
	one_fails('all others have their turn', [ $h, call(exclusive => '/long/h'), 'COMMIT' ], map { [ $_, undef, 'COMMIT' ] } $w, @others);
	$_->quit for $h, $w, @others;
};

# B is killed, with its whole server
sub kills
{
	my ($b) = @_;
	zk_kill($node_b, $b->pid);
	$b->wait;
	return $b->kill9;
}

# What happens to B, and how A ends; and what B does itself before that.  Who gives up does not
# wait until ZooKeeper knows of it, and until then the break is right.
foreach my $case (
	[ 'canceled', sub { is($_[0]->cancel($_[1])->{state}, '57014', 'one is canceled'); $_[0]->value('ROLLBACK'); }, 'ok' ],
	[ 'canceled inside a block', sub { is($_[0]->cancel($_[1])->{state}, '', 'one goes on, and still holds'); }, 'ok', sub { $_[0]->value('COMMIT'); } ],
	[ 'terminated', sub { $_[1]->value('SELECT pg_terminate_backend(' . $_[0]->pid . ')'); is($_[0]->wait->{state}, '57P01', 'one is terminated'); }, 'ok' ],
	[ 'killed, and its session lives', \&kills, 'ok|40P01' ],
	[ 'killed, and its session is over', sub { my ($its) = $zk->with_client(sub { $_[0]->queue('/zklock/c/y') }); kills(@_); $zk->end_sessions_of($its); }, 'ok' ])
{
	my ($name, $ends, $state, $lets_go) = @$case;
	zk_leaves_nothing $zk, "just before the break, one is $name" => sub {
		my ($a, $proxy) = looker($node_a, $zk, session_timeout => '40s', deadlock_timeout => '200ms');    # its heartbeats are held back, too
		$a->value(call(exclusive => '/c/x'));
		my $b = zk_session_with($node_b, session_timeout => '6s');
		$b->value(q{SET deadlock_timeout = '2s'; BEGIN; } . call(exclusive => '/c/y'));
		held_break($proxy,
			[ $b, $lets_go ? q{DO $$ BEGIN PERFORM zk_xact_lock('/c/x'); EXCEPTION WHEN query_canceled THEN NULL; END $$} : call(exclusive => '/c/x') ],
			[ $a, call(exclusive => '/c/y') ]);
		$ends->($b, zk_session($node_b));
		zk_until(sub { $zk->children('/zklock/c/x') == 1 }, 'its node is gone') if $name !~ /lives/;
		$proxy->release;
		if ($lets_go)
		{
			sleep 1;
			ok(!$a->is_done, 'the other waits on');
			$lets_go->($b);
		}
		like(my $end = all_done($a), qr/^(?:$state)$/, 'the other ends, if possible with the lock');
		note $end;
		$_->quit for $a, $b;
		zk_until(sub { $zk->ephemerals_count == 0 }, 'its session to end');
	};
}

subtest 'at random' => sub {
	# which also removes the board and the locks' directories, whenever they are empty
	$zk->{container_check} = 1000;
	$zk->restart;
	my $seconds = $ENV{DEADLOCK_SECONDS} || 10;
	my $seed = $ENV{DEADLOCK_SEED} || 1 + int rand 1_000_000;
	my @timeouts = split ' ', $ENV{DEADLOCK_TIMEOUTS} // '0.3 0.3 0.3';
	push @nodes, zk_cluster('n' . @nodes, $zk, %setting) while @nodes < @timeouts;
	foreach my $i (0 .. $#timeouts)
	{
		$nodes[$i]->append_conf('postgresql.conf', "deadlock_timeout = '" . 1000 * $timeouts[$i] . "ms'");
		$nodes[$i]->reload;
	}
	my @slow = map { ZkProxy->new($zk) } 1, 2;
	$_->delay_ms(1 + int rand 15) for @slow;
	my $programs = DeadlockPrograms->run(
		zk => $zk, networks => [ $zk, @slow ], seed => $seed, seconds => $seconds, sessions => $ENV{DEADLOCK_SESSIONS} || 10,
		clusters => [ map { { node => $nodes[$_], deadlock_timeout => $timeouts[$_] } } 0 .. $#timeouts ]);
	is(zk_few(@{ $programs->{complaints} }), '', "no complaint, seed $seed");
	my ($count, $longest) = @$programs{qw(count longest)};
	diag("$seconds s, seed $seed: " . join ', ', map { "$_: $count->{$_}" } sort keys %$count);
	diag(sprintf "longest cycle %.2f s; nearest to its limit of %.1f s: %s; oldest wait %.3f s",
		@$longest{qw(seconds limit what)}, $programs->{oldest} // 0);
	# what is no wait: the machine is busy
	in_time($longest->{over}, 1, 'no cycle stands longer than three times deadlock_timeout, and a moment');
	cmp_ok($count->{$_} // 0, '>', 0, "it happened: $_") for 'commits', 'victims: zklock';
};

$admin->quit;
$_->stop for @nodes;
unlike(slurp_file($_->logfile), qr/PANIC:|TRAP:|terminated by signal (?!9)/, 'no backend has crashed but those killed') for @nodes;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
done_testing();
