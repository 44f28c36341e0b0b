# Deadlocks: cycles of zk locks, of PostgreSQL's locks, and of both, on one server
# and on several, with each kind of lock.  Exactly one of those that wait for a zk
# lock fails, and nobody else ever does.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Auth;
use Child;
use Cycles;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $PERIOD = 0.3;
my $zk = ZooKeeper->new->start;
my %setting = (deadlock_timeout => '300ms', max_prepared_transactions => 2, autovacuum => 'off');
my $node_a = zk_cluster('a', $zk, %setting);
my $node_b = zk_cluster('b', $zk, %setting, cluster_name => 'second');
$_->safe_psql('postgres', <<'END') for $node_a, $node_b;
CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0);
INSERT INTO t SELECT generate_series(1, 9);
CREATE TABLE u (id int);
CREATE FUNCTION try(path text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM zk_xact_lock(path);
	RETURN 'locked';
EXCEPTION WHEN deadlock_detected THEN
	RETURN 'deadlock';
END $$;
CREATE FUNCTION give_up(id int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	UPDATE t SET n = n + 1 WHERE t.id = give_up.id;
	RETURN 'updated';
EXCEPTION WHEN query_canceled THEN
	RETURN 'gave up';
END $$;
END
my $admin = zk_session($node_a);

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
	subtest "two sessions and each kind of lock: $style" => sub {
		my %cycle;
		# a semaphore's nodes have the same names in each style
		foreach my $pair (grep { $style eq 'curator' || "@$_" !~ /semaphore|while/ } @pairs)
		{
			my ($first, $then) = @$pair;
			my $dir = "/$style/" . (1 + keys %cycle);
			my ($a, $b) = have($style, [ $node_a, $first, "$dir/x" ], [ $node_b, $first, "$dir/y" ]);
			$cycle{"$first, $then"} = [ [ $a, call($then, "$dir/y") ], [ $b, call($then, "$dir/x") ] ];
		}
		my %failed = one_of_each_fails(%cycle);
		in_time($failed{$_}[0]{seconds}, 3 * $PERIOD, "$_: within three times deadlock_timeout") for sort keys %failed;
	};
	subtest "others beside: $style" => sub {
		my %cycle;
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
	$_->quit for $p, $q, $r;
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

subtest 'going on after a savepoint' => sub {
	my ($a, $b) = have('curator', [ $node_a, exclusive => '/x' ], [ $node_b, exclusive => '/y' ]);
	$_->value('SAVEPOINT s') for $a, $b;
	my ($r, $victim) = one_fails('savepoint',
		map { [ @$_, 'ROLLBACK TO s; COMMIT' ] } [ $a, call(exclusive => '/y') ], [ $b, call(exclusive => '/x') ]);
	is($_->value("SELECT 'idle', count(*) FROM zk_locks"), 'idle|0', 'committed') for $a, $b;

	$a->value('BEGIN; ' . call(exclusive => '/x'));
	$b->value('BEGIN; ' . call(exclusive => '/y'));
	$_->value('SAVEPOINT s') for $a, $b;
	$a->send(call(exclusive => '/y'));
	$b->send(call(exclusive => '/x'));
	($victim) = zk_until(sub { (grep { $_->is_done } $a, $b)[0] }, 'an end');
	my ($other, $wants) = $victim == $a ? ($b, '/y') : ($a, '/x');
	is($victim->wait->{state}, '40P01', 'one fails');
	$victim->value('ROLLBACK TO s');
	is(zk_holds($victim), 'exclusive transaction 1 held', 'what it took before stays');
	$victim->send(call(exclusive => $wants));
	zk_until(sub { $a->is_done || $b->is_done }, 'an end again');
	my ($again, $last) = $a->is_done ? ($a, $b) : ($b, $a);
	is($again->wait->{state}, '40P01', 'and closes the cycle again');
	$again->value('ROLLBACK');
	is($last->wait->{out}, 't', 'ROLLBACK helps');
	$last->value('ROLLBACK');
	$_->quit for $a, $b;
};

subtest 'going on in an exception block' => sub {
	my ($a, $b) = have('curator', [ $node_a, exclusive => '/x' ], [ $node_b, exclusive => '/y' ]);
	$a->send(q{SELECT try('/y')});
	$b->send(q{SELECT try('/x')});
	my $victim = zk_until(sub { (grep { $_->is_done } $a, $b)[0] }, 'an end');
	my $other = $victim == $a ? $b : $a;
	is($victim->wait->{out}, 'deadlock', 'deadlock_detected is caught');
	is(zk_holds($victim), 'exclusive transaction 1 held', 'what was taken before stays');
	ok(!$other->is_done, 'the other waits');
	is($victim->value('INSERT INTO u VALUES (1) RETURNING id'), 1, 'the transaction goes on');
	$victim->value('COMMIT');
	is($other->wait->{out}, 'locked', 'the other proceeds');
	$other->value('COMMIT');
	$_->quit for $a, $b;
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
	zk_until(sub { $admin->value('SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL') }, 'the wait for the row');
	stands($c, call(exclusive => '/told/x'));
	zk_until(sub { record($zk, $c) }, 'its record');
	my $query = call(semaphore => '/told/s');
	$c->{home} = '';
	my $r = $b->query($query);
	is($r->{state}, '40P01', 'SQLSTATE');
	is($r->{message}, 'deadlock detected', 'message');
	my ($host) = map { s/\n//r } `hostname`;
	my %who = map { $_->[0] => "rocess ${\$_->[1]->pid} on $host:" . $_->[2]->port } [ a => $a, $node_a ], [ b => $b, $node_a ], [ c => $c, $node_b ];
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
	$_->quit for $a, $b, $c;
};

subtest "PostgreSQL's locks on one server" => sub {
	my %cycle;
	my $admin_waits = sub { zk_until(sub { $admin->value('SELECT count(*) FROM pg_locks WHERE NOT granted') >= $_[0] }, "$_[0] waits") };
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
	my %failed = one_of_each_fails(map { my $n = $_; ($n => $cycle{$n}) } keys %cycle);
	is($failed{$_}[1], $last{$_}, "$_: who waits for the zk lock fails") for sort keys %cycle;
	in_time($failed{$_}[0]{seconds}, 3 * $PERIOD, "$_: within three times deadlock_timeout") for sort keys %failed;
};

subtest 'CREATE INDEX CONCURRENTLY under a migration lock' => sub {
	my ($first, $second) = map { zk_session($node_a) } 1 .. 2;
	my $migration = zk_session($node_a);
	$migration->value(q{SELECT zk_lock('/migration')});
	$_->value('BEGIN; SELECT count(*) FROM u') for $first, $second;
	$_->send(call(exclusive => '/migration')) for $first, $second;
	zk_wait_queued($zk, $first, $second);
	$migration->send('CREATE INDEX CONCURRENTLY ON u (id)');
	foreach my $waiter ($first, $second)
	{
		my $r = $waiter->wait;
		is($r->{state}, '40P01', 'who waits for the lock in a transaction fails');
		like($r->{err}, qr/Process @{[ $migration->pid ]} on \S+ waits for ShareLock on virtual transaction/, 'and is told why');
		in_time($r->{seconds}, 6 * $PERIOD, 'in time');
		$waiter->value('ROLLBACK');
	}
	is($migration->wait->{state}, '', 'the index is created');
	is($migration->value(q{SELECT indisvalid FROM pg_index WHERE indexrelid = 'u_id_idx'::regclass}), 't', 'and valid');
	$_->quit for $first, $second, $migration;
};

subtest 'rows on two servers' => sub {
	my ($a1, $a2, $b1, $b2) = in_transactions($node_a, $node_a, $node_b, $node_b);
	$a1->value(q{SELECT zk_xact_lock('/x')});
	$a2->value(q{UPDATE t SET n = 1 WHERE id = 1});
	$b1->value(q{SELECT zk_xact_lock('/y')});
	$b2->value(q{UPDATE t SET n = 1 WHERE id = 1});
	my ($r, $victim) = one_fails('rows',
		[ $a1, q{UPDATE t SET n = 2 WHERE id = 1; SELECT true} ], [ $a2, q{SELECT zk_xact_lock('/y')} ],
		[ $b1, q{UPDATE t SET n = 2 WHERE id = 1; SELECT true} ], [ $b2, q{SELECT zk_xact_lock('/x')} ]);
	ok($victim == $a2 || $victim == $b2, 'one that waits for a zk lock');
	in_time($r->{seconds}, 3 * $PERIOD, 'within three times deadlock_timeout');
};

subtest 'a chain of waits on each of two servers' => sub {
	my ($a1, $a2, $a3, $b1, $b2) = in_transactions(($node_a) x 3, ($node_b) x 2);
	$a1->value(q{SELECT zk_xact_lock('/x')});
	$a2->value(q{SELECT pg_advisory_xact_lock(2)});
	$a3->value(q{LOCK TABLE u IN ACCESS EXCLUSIVE MODE});
	$b1->value(q{SELECT zk_xact_lock('/y')});
	$b2->value(q{UPDATE t SET n = 1 WHERE id = 4});
	my ($r) = one_fails('chains',
		[ $a1, q{SELECT count(pg_advisory_xact_lock(2)) = 1} ], [ $a2, q{SELECT count(*) >= 0 FROM u} ], [ $a3, q{SELECT zk_xact_lock('/y')} ],
		[ $b1, q{UPDATE t SET n = 2 WHERE id = 4; SELECT true} ], [ $b2, q{SELECT zk_xact_lock('/x')} ]);
	is(scalar(() = $r->{err} =~ /waits for/g), 5, 'DETAIL has all five waits');
};

subtest 'two servers, one of which looks ten times as often' => sub {
	my %cycle;
	my ($a, $b) = in_transactions($node_a, $node_b);
	my ($a1, $b1, $b2) = in_transactions($node_a, $node_b, $node_b);
	$_->value(q{SET deadlock_timeout = '3s'}) for $b, $b1, $b2;
	$a->value(call(exclusive => '/slow/1'));
	$b->value(call(exclusive => '/slow/2'));
	$cycle{'zk locks'} = [ [ $b, call(exclusive => '/slow/1') ], [ $a, call(exclusive => '/slow/2') ] ];
	$a1->value(call(exclusive => '/slow/3'));
	$b1->value(call(exclusive => '/slow/4'));
	$b2->value('UPDATE t SET n = 1 WHERE id = 7');
	$cycle{'a row'} =
	  [ [ $b1, 'UPDATE t SET n = 1 WHERE id = 7; SELECT true' ], [ $b2, call(exclusive => '/slow/3') ], [ $a1, call(exclusive => '/slow/4') ] ];
	my %failed = one_of_each_fails(%cycle);
	in_time($failed{$_}[0]{seconds}, 9, "$_: within three times the longer deadlock_timeout") for sort keys %failed;
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
	$_->quit for $w, $x, $y;
};

subtest 'a prepared transaction is nobody' => sub {
	my ($s, $by_s) = looker($node_a, $zk);
	my ($w) = looker($node_a, $zk);
	$s->value(q{UPDATE t SET n = 1 WHERE id = 5; PREPARE TRANSACTION 'p'});
	$w->value(q{SELECT zk_xact_lock('/x')});
	$w->send('UPDATE t SET n = 2 WHERE id = 5; SELECT true');
	zk_until(sub { $admin->value('SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL') }, 'the wait for the row');
	$s->value(q{BEGIN; SELECT zk_xact_lock('/y')});
	$s->send(q{SELECT zk_xact_lock('/x')});
	nobody_fails('while it waits for one that holds', [$by_s], $s, $w);
	$admin->value(q{COMMIT PREPARED 'p'});
	is($w->wait->{out}, 't', 'the row is had');
	$w->value('ROLLBACK');
	is($s->wait->{out}, 't', 'and the lock');
	$_->quit for $s, $w;
};

# The two examples of which a detector that believes what it has read fails somebody

# The first reader of a queue waits for what the second has, which stands behind a
# writer.  One of the readers has found the cycle, and its attempt to break it is on
# its way; the other published once, so that it could be found.
sub held_break
{
	my ($who) = @_;
	my @dirs = ("/$who/q", "/$who/m");
	my %setting = (session_timeout => '40s');
	my ($s, $by_s) = looker($node_a, $zk, %setting, deadlock_timeout => $who eq 'holder' ? '20ms' : '1h');
	my ($w, $by_w) = looker($node_b, $zk, %setting, deadlock_timeout => $who eq 'reader' ? '20ms' : '1h');
	my ($x) = looker($node_a, $zk, deadlock_timeout => '1h');
	$s->value(call(shared => $dirs[0]));
	$w->value(call(exclusive => $dirs[1]));
	my @waits = ([ $w, call(shared => $dirs[0]) ], [ $s, call(exclusive => $dirs[1]) ]);
	my ($breaker, $first, $last) = $who eq 'holder' ? ($by_s, @waits) : ($by_w, reverse @waits);
	stands($x, call(exclusive => $dirs[0]));
	# the first reads the board again after ten looks, and must not before the end
	$first->[0]->value(q{SET deadlock_timeout = '2s'});
	$first->[0]->send($first->[1]);
	zk_until(sub { record($zk, $first->[0]) }, 'its record');
	$breaker->hold_request('break');
	$last->[0]->send($last->[1]);
	$breaker->wait_held;
	ok(!$x->is_done, "the $who breaks it, while the writer waits");
	return { breaker => $breaker, s => $s, w => $w, x => $x, queue => $dirs[0] };
}

subtest 'a writer gives up between two readers, one of whom breaks the cycle' => sub {
	foreach my $who (qw(holder reader))
	{
		my ($breaker, $s, $w, $x, $queue) = @{ held_break($who) }{qw(breaker s w x queue)};
		is($x->cancel($admin)->{state}, '57014', "the $who has tried to break it: the writer gives up");
		zk_until(sub { $zk->children("/zklock$queue") == 2 }, 'its node to go');
		$x->value('ROLLBACK');
		$breaker->release;
		is($w->wait->{out}, 't', 'the reader behind it is granted');
		$w->value('COMMIT');
		is($s->wait->{out}, 't', 'and then the other');
		$s->value('COMMIT');
		$_->quit for $s, $w, $x;
	}
};

subtest 'who waits for a row gives up, and runs on' => sub {
	my ($w, $by_w) = looker($node_a, $zk, deadlock_timeout => '20ms', session_timeout => '40s');
	my ($x) = looker($node_b, $zk, deadlock_timeout => '1h');
	my ($y) = looker($node_b, $zk, deadlock_timeout => '1500ms');
	my ($z, $b) = (zk_session($node_b), zk_session($node_b));
	$x->value(call(exclusive => '/k'));
	$y->value('UPDATE t SET n = 1 WHERE id = 6; SELECT pg_advisory_xact_lock(9)');
	$w->value(call(exclusive => '/m'));
	$x->send('SELECT give_up(6)');
	$z->send('SELECT pg_advisory_lock(9)');    # so that there is a record in any case
	zk_until(sub { $b->value('SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL') == 2 }, 'the waits');
	$y->send(call(exclusive => '/m'));
	my $record = zk_until(sub { record($zk, $y) }, "its record");
	like($record, qr/\+/, 'which names whom it blocks');

	# Y reads the board again after ten looks; until then only W sees the cycle
	$by_w->hold_request('break');
	$w->send(call(exclusive => '/k'));
	$by_w->wait_held;
	ok(!$y->is_done, 'it is not broken by the other');
	is($x->cancel($b)->{out}, 'gave up', 'who waited for the row gives up');
	my $pid = $x->pid;
	zk_until(sub { $zk->get($record) !~ / $pid -1 / }, 'the record to say so');
	$by_w->release;
	nobody_fails('then', [$by_w], $w, $y);
	$x->value('COMMIT');
	is($w->wait->{out}, 't', 'the first lock is had');
	$w->value('COMMIT');
	is($y->wait->{out}, 't', 'and the second');
	$y->quit;
	$z->wait;
	$_->quit for $w, $x, $z, $b;
};

# The same, but the one whose record tells of that wait is asleep: what has changed is
# the lock of who gave up, which is only shared from then on.
subtest 'who waits for a row gives up, and downgrades' => sub {
	my ($w, $by_w) = looker($node_a, $zk, deadlock_timeout => '20ms', session_timeout => '40s');
	my ($x) = looker($node_b, $zk, deadlock_timeout => '1h');
	my ($y) = looker($node_b, $zk, deadlock_timeout => '1s', session_timeout => '40s');
	my $b = zk_session($node_b);
	$x->value(q{SELECT zk_lock('/k'), zk_lock_shared('/k')});
	$y->value('UPDATE t SET n = 1 WHERE id = 6');
	$w->value(call(exclusive => '/m'));
	$x->send('SELECT give_up(6)');
	zk_until(sub { $b->value('SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL') == 1 }, 'the wait');
	$y->send(call(exclusive => '/m'));
	zk_until(sub { record($zk, $y) }, 'its record');
	$by_w->hold_request('break');
	$w->send(call(shared => '/k'));
	$by_w->wait_held;
	Child::suspend($y->pid);
	is($x->cancel($b)->{out}, 'gave up', 'who waited for the row gives up');
	is($x->value(q{SELECT zk_unlock('/k')}), 't', 'and downgrades');
	$by_w->release;
	my $result = $w->wait;
	kill 'CONT', $y->pid;
	is("$result->{state}$result->{out}", 't', 'the lock is shared then, and nobody fails');
	$w->value('COMMIT');
	is($y->wait->{out}, 't', 'and the other one is had');
	$_->quit for $w, $x, $y, $b;
};

subtest 'who waits for our row gives up while we look' => sub {
	my ($s, $proxy) = looker($node_a, $zk, deadlock_timeout => '3s');
	my $h = zk_session($node_a);
	$s->value('UPDATE t SET n = 1 WHERE id = 6');
	$h->value('BEGIN; ' . call(exclusive => '/k'));
	$h->send('SELECT give_up(6)');
	zk_until(sub { $admin->value('SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL') }, 'the wait for the row');
	stands($s, call(exclusive => '/k'));
	$proxy->hold('getChildren');
	$proxy->wait_held;
	is($h->cancel($admin)->{out}, 'gave up', 'who waited for the row gives up');
	$proxy->release;
	zk_until(sub { board($zk) == 0 }, 'it to see that nobody waits for it');
	ok(!$s->is_done, 'nobody fails');
	$h->value('COMMIT');
	is($s->wait->{out}, 't', 'the lock is had');
	$_->quit for $s, $h;
};

subtest 'an upgrade that waits for a reader who runs' => sub {
	my ($u, $by_u) = looker($node_a, $zk);
	my $r = zk_session($node_b);
	$_->value(call('shared for the session', '/u')) for $u, $r;
	$u->send(call(exclusive => '/u'));
	nobody_fails('upgrade', [$by_u], $u);
	$r->value(q{SELECT zk_unlock_shared('/u')});
	is($u->wait->{out}, 't', 'it is done');
	$_->quit for $u, $r;
};

# A session with a network of its own
sub through_proxy
{
	my ($node, %setting) = @_;
	my $proxy = ZkProxy->new($zk);
	return (zk_session_with($node, %setting, hosts => $proxy), $proxy);
}

# One that has /x, and one with a network of its own that has /y, each in a transaction;
# and the latter's proxy
sub two_with_proxy
{
	my ($node, %setting) = @_;
	my ($a) = have('curator', [ $node_a, exclusive => '/x' ]);
	my ($b, $proxy) = through_proxy($node, %setting);
	$b->value('BEGIN; ' . call(exclusive => '/y'));
	return ($a, $b, $proxy);
}

# The same, when the former waits for /y and has published that
sub two_and_first_waits
{
	my ($a, $b, $proxy) = two_with_proxy(@_);
	# it sees the cycle only when it reads the board again, after ten looks
	$a->value(q{SAVEPOINT s; SET deadlock_timeout = '1s'});
	$a->send(call(exclusive => '/y'));
	zk_until(sub { record($zk, $a) }, 'its record');
	return ($a, $b, $proxy);
}

# The first wait of a lost cycle is in the way no longer
sub give_up
{
	foreach my $session (@_)
	{
		kill 'INT', $session->pid unless $session->is_done;
		$session->wait if $session->{mark};
		$session->query('ROLLBACK');
	}
	return;
}

subtest 'after more than operation_timeout in which nothing was asked' => sub {
	my ($a) = have('curator', [ $node_a, exclusive => '/x' ]);
	my ($b, $proxy) = through_proxy($node_a, operation_timeout => '2s', session_timeout => '40s');
	$b->value('BEGIN; UPDATE t SET n = 1 WHERE id = 1');
	stands($b, call(exclusive => '/x'));
	zk_until(sub { ($proxy->log)[-1][0] < time - 2.5 }, 'silence');
	$a->send('UPDATE t SET n = 2 WHERE id = 1');
	my $found = eval { zk_until(sub { $b->is_done }, 'the cycle to be found', 2 * $MOMENT) };
	ok($found && $b->wait->{state} eq '40P01', 'the cycle is found');
	give_up($b, $a);
};

subtest 'an attempt that is lost' => sub {
	my ($a, $b, $proxy) = two_and_first_waits($node_a);
	$proxy->clear_log;
	$proxy->drop_request('break');
	$b->send(call(exclusive => '/x'));
	$proxy->wait_lost('never asked for, the connection cut');
	my $began = time;
	$proxy->wait_for('multi', 2);
	in_time(time - $began, 1.5, 'the next attempt comes soon');
	is($b->wait->{state}, '40P01', 'and breaks the cycle');
	give_up($b, $a);
};

subtest 'a record whose create is not answered' => sub {
	my ($a, $b, $proxy) = two_with_proxy($node_a);
	my ($c) = have('curator', [ $node_a, exclusive => '/z' ]);
	$c->send(call(exclusive => '/y'));    # its record keeps the board
	zk_until(sub { record($zk, $c) }, 'its record');
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
	give_up($b, $c);
};

subtest 'a create that is lost on its way' => sub {
	my ($a, $b, $proxy) = two_with_proxy($node_b);
	$b->value('SAVEPOINT s');
	$proxy->drop_request([ 'create2', 'create' ]);
	# whatever becomes of it, ZooKeeper may get it within a minute, and is asked so long
	$b->query(call(exclusive => '/z'));
	$b->value('ROLLBACK TO s');
	one_fails('does not keep others from being seen', [ $a, call(exclusive => '/y') ], [ $b, call(exclusive => '/x') ]);
	$b->quit;
};

subtest 'the board is for all, whoever made it' => sub {
	my @file = map { auth_file("digest:team$_:secret\n") } 1, 2;
	my $client = $zk->client;
	$client->create("/zklock/$_", mode => 'persistent') for grep { !$client->exists("/zklock/$_") } 'team1', 'team2';
	$client->close;
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
	foreach my $i (1 .. 4)
	{
		my ($a, $c) = in_transactions($node_a, $node_a);
		my ($b, $proxy) = through_proxy($node_a, session_timeout => '40s');
		$b->value(q{SET deadlock_timeout = '4s'});
		$b->value('BEGIN');
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
		$c->query('ROLLBACK');
	}
};

subtest 'a forged record about the session itself' => sub {
	my ($a) = have('curator', [ $node_a, exclusive => '/x' ]);
	my ($v, $by_v) = looker($node_a, $zk);
	$v->value(call(exclusive => '/v'));
	stands($v, call(exclusive => '/x'));
	$zk->with_client(
		sub {
			my ($client) = @_;
			my ($held) = $client->queue('/zklock/v');
			my ($tag) = ($client->get($held))[0] =~ /^tag (\w+)$/m;
			my ($other, $uuid) = ('0' x 16, '00000000-0000-0000-0000-000000000000');
			my $own = $client->contend('/zklock/v', "_c_$uuid-lock-", data => "zklock\ntag $other\n");
			my $lines = "zklock\ntag $other\nnode $own\nwaiter $tag 1 0 -1 \n";
			my $record = $client->contend($BOARD, "$other+-$uuid-", data => $lines);
			foreach my $time (1 .. 4)
			{
				$client->set($record, $lines);
				nobody_fails("said $time times", [$by_v], $v);
			}
			$client->delete($_) for $record, $own;
		});
	$a->value('COMMIT');
	is($v->wait->{state}, '', 'it gets the lock');
	$v->quit;
};

zk_nothing_left($zk, 'nothing is left in ZooKeeper');
zk_no_crash($_) for $node_a, $node_b;
done_testing;
