# Deadlocks: what looking for them costs, what is logged of a wait and told at its
# end, and what others leave on the board where waits are published.
#
# DEADLOCK_MANY: how many wait that hold nothing (default 12)

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Cost;
use Cycles;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $MANY = $ENV{DEADLOCK_MANY} // 12;

# Sessions may have no heartbeat for as long as a test takes.
my $zk = ZooKeeper->new->start;
my %setting = (
	deadlock_timeout => '100ms', 'zklock.session_timeout' => '60s', autovacuum => 'off', max_connections => 100 + $MANY);
my $node_a = zk_cluster('a', $zk, %setting);
my $node_b = zk_cluster('b', $zk, %setting);
$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0); INSERT INTO t SELECT generate_series(1, 9)') for $node_a, $node_b;
my $admin = zk_session($node_a);
# No heartbeat either: that of a session that is next in line is a transaction
my %no_heartbeat = (session_timeout => '1h');
my $holder = zk_session_with($node_a, hosts => $zk, %no_heartbeat);
my $client = $zk->client;

my $lock = sub { "SELECT zk_xact_lock('$_[0]')" };

sub put { return "$_[0]-0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1-" . sprintf '%010d', $_[1]; }

# ------------------------------------------------------------------------ cost

subtest 'waiters that hold nothing' => sub {
	$holder->value(q{SELECT zk_lock('/idle/x'), zk_lock('/idle/y')});
	my $proxy = ZkProxy->new($zk);
	my @waiters = map { zk_session_with($node_a, hosts => $proxy, %no_heartbeat) } 1 .. $MANY;
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
	$s->send($lock->('/cost/x'));
	zk_wait_queued($zk, $s);
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
	$s->quit;
};

subtest 'a waiter for which others wait' => sub {
	my ($s, $proxy) = zk_counted_session($node_a, $zk, 0);
	my $t = zk_session($node_a);
	$holder->value(q{SELECT zk_lock('/cost/x')});
	$s->value(q{BEGIN; UPDATE t SET n = 1 WHERE id = 1; SET deadlock_timeout = '100ms'});
	$t->value(q{SET deadlock_timeout = '1h'});
	$t->send('UPDATE t SET n = 2 WHERE id = 1');
	zk_until(sub { $admin->value('SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart IS NOT NULL') }, 'the wait for the row');
	$s->send($lock->('/cost/x'));
	zk_until(sub { $proxy->count('setData') >= 12 }, 'some looks');
	my @asked = map { (split / /)[0] } $proxy->requests;
	my ($writes, $reads) = map { my $op = $_; scalar grep { $_ eq $op } @asked } qw(setData getChildren);
	cmp_ok($reads, '<', $writes / 2, 'it writes its record at each look, and reads the board now and then');
	my ($name) = grep { /^[0-9a-f]{16}\+-/ } board($zk);
	ok($name, 'the name of its record says that it names others');
	my ($data) = $client->get("$BOARD/$name");
	like($data, qr{\Azklock\ntag [0-9a-f]{16}\n.*^pid @{[ $s->pid ]}\n.*^node /zklock/cost/x/\S+\nwaiter [0-9a-f]{16} \d+ @{[ $t->pid ]} -1 ShareLock on transaction \d+\n\z}ms, 'and whom');
	$t->cancel($admin);
	zk_until(sub { !board($zk) }, 'the record to go, since nobody waits any more, and it holds no zk lock');
	$holder->value(q{SELECT zk_unlock('/cost/x')});
	is($s->wait->{out}, 't', 'the lock is had');
	$_->quit for $s, $t;
	is(scalar board($zk), 0, 'the board is empty');
};

subtest 'looks leave nothing in memory' => sub {
	my ($s) = zk_session($node_a);
	$holder->value(q{SELECT zk_lock('/cost/x')});
	$s->value(q{BEGIN; SELECT zk_xact_lock('/cost/y'); SET deadlock_timeout = '1ms'});
	my $t = zk_session($node_a);
	$s->value('UPDATE t SET n = 1 WHERE id = 1');
	$t->value(q{SET deadlock_timeout = '1h'});
	$t->send('UPDATE t SET n = 2 WHERE id = 1');
	$s->send($lock->('/cost/x'));
	my $log = -s $node_a->logfile;
	my @total;
	foreach my $looks (50, 150)
	{
		my $name;
		zk_until(
			sub {
				($name) = grep { /\+/ } board($zk);
				return $name && ($client->exists("$BOARD/$name") // { version => 0 })->{version} >= $looks;
			},
			"$looks looks");
		$admin->value('SELECT pg_log_backend_memory_contexts(' . $s->pid . ')');
		push @total, zk_until(sub { (substr(slurp_file($node_a->logfile), $log) =~ /Grand total: .*; (\d+) used/g)[$#total + 1] }, 'its memory');
	}
	cmp_ok($total[1] - $total[0], '<', 20_000, 'after a hundred more') or diag "@total";
	$holder->value(q{SELECT zk_unlock('/cost/x')});
	$_->quit for $s, $t;
};

# ------------------------------------------------------------- what is told

subtest 'log_lock_waits' => sub {
	my ($s, $by_s) = looker($node_a, $zk);
	my $t = zk_session($node_b);
	my ($host) = map { s/\n//r } `hostname`;
	my %who = map { $_->[0] => 'process ' . $_->[1]->pid . " on $host:" . $_->[2]->port } [ h => $holder, $node_a ], [ s => $s, $node_a ], [ t => $t, $node_b ];
	my $log = -s $node_a->logfile;
	my $said = sub { substr slurp_file($node_a->logfile), $log };
	$holder->value(q{SELECT zk_lock('/log/x')});
	$s->value('SET log_lock_waits = on');
	my @is = ('process ' . $s->pid, 'ExclusiveLock on lock path "/log/x"');

	# quick ones are not mentioned
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
	$s->value('SELECT zk_unlock_all()');
	$log = -s $node_a->logfile;
	$_->value('SELECT zk_unlock_all()') for $t, $holder;
	$holder->value(q{SELECT zk_lock('/log/x')});
	my ($l, $by_l) = looker($node_a, $zk);
	$l->value($lock->('/log/y'));
	$l->send($lock->('/log/x'));
	have_looked(2, [$by_l]);
	unlike($said->(), qr/waiting|acquire/, 'off: nothing is logged');
	$l->cancel($admin);
	$holder->value('SELECT zk_unlock_all()');
	$_->quit for $s, $t, $l;
};

subtest 'errors that end a wait' => sub {
	my ($s, $t) = (zk_session($node_a), zk_session($node_b));
	my ($host) = map { s/\n//r } `hostname`;
	my $who = 'process ' . $holder->pid . " on $host:" . $node_a->port;
	my $context = qr{^CONTEXT:  while waiting for lock path "/ends/x"$}m;
	my $id = $client->session_id;
	$holder->value(q{SELECT zk_lock('/ends/x')});
	my $r = $s->query(q{SET lock_timeout = '3s'; } . $lock->('/ends/x'));
	is($r->{state}, '55P03', 'lock_timeout');
	is($r->{detail}, "It is held by $who.", 'DETAIL: who holds the lock');
	like($r->{err}, $context, 'CONTEXT');

	foreach my $case ([ '', '_c_other-lock-' ], [ '192.168.0.1', '_c_other-lock-' ], [ "zklock\nnonsense", 'other__lock__' ])
	{
		my ($data, $name) = @$case;
		my $node = $client->contend('/zklock/ends/y', $name, data => $data);
		$r = $s->query($lock->('/ends/y'));
		is($r->{detail}, "It is held by ZooKeeper session $id.", "DETAIL for another client's node: $data");
		$client->delete($node);
	}

	# who is only watched, since it is before us, need not be a holder
	$t->send($lock->('/ends/x'));
	zk_wait_queued($zk, $t);
	$r = $s->query($lock->('/ends/x'));
	is($r->{state}, '55P03', 'third in the queue');
	unlike($r->{detail}, qr/held by process @{[ $t->pid ]}/, 'DETAIL does not call a waiter the holder');
	$s->value('SET lock_timeout = 0');
	$r = $s->query(q{SET statement_timeout = '3s'; } . $lock->('/ends/x'));
	is($r->{state}, '57014', 'statement_timeout');
	like($r->{err}, $context, 'CONTEXT');
	$s->value('SET statement_timeout = 0');
	$s->send("SELECT zk_lock_many('{/ends/a,/ends/x}')");
	zk_wait_queued($zk, $s);
	$r = $s->cancel($admin);
	is($r->{state}, '57014', 'canceled');
	like($r->{err}, $context, 'CONTEXT: of several, the one that is waited for');
	is($s->query(q{SELECT zk_lock('/ends/x', '3s')})->{err}, '', 'who waits for a while is told nothing');
	unlike($s->query('SELECT 1/0')->{err}, qr/CONTEXT/, 'after the wait there is none');
	$s->send($lock->('/ends/x'));
	zk_wait_queued($zk, $s);
	$admin->value('SELECT pg_terminate_backend(' . $s->pid . ')');
	$r = $s->wait;
	is($r->{state}, '57P01', 'terminated');
	like($r->{err}, $context, 'CONTEXT');
	$holder->value('SELECT zk_unlock_all()');
	$t->wait;
	$_->quit for $s, $t;
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
	zk_until(sub { record($zk, $w) }, 'the board');
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
	zk_until(sub { record($zk, $w) }, 'the board');
	$client->create_all(ephemeral => [ $record, $say->(1) ]);
	nobody_fails('said once', [$by_w], $w);
	foreach my $since (2 .. 6)
	{
		$client->set($record, $say->($since));
		nobody_fails("another wait, $since", [$by_w], $w);
	}
	$client->set($record, $say->(6));
	nobody_fails('said twice', [$by_w], $w);
	$client->set($record, $say->(6));
	is($w->wait->{state}, '40P01', 'said three times: found');
	$client->delete($_) for $record, $node;
	$_->quit for $w, $h;
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
	zk_until(sub { record($zk, $s{w}) && record($zk, $s{p}) }, 'the board');

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
	zk_until(sub { record($zk, $w) }, 'the board');
	my @junk = junk($w, $h);
	my $crowd = $zk->client;
	my $n = 1_000_000;
	my @sessions = map { zk_session($_) } $node_a, $node_b, $node_b, $node_a, $node_b;
	my $cycle = sub {
		my ($name) = @_;
		$_->value(q{BEGIN; SET deadlock_timeout = '100ms'}) for @sessions;
		$sessions[0]->value($lock->('/junk/1'));
		$sessions[1]->value($lock->('/junk/2'));
		$sessions[2]->value('UPDATE t SET n = 1 WHERE id = 2');
		$sessions[3]->value($lock->('/junk/3'));
		$sessions[4]->value($lock->('/junk/4'));
		my %failed = one_of_each_fails(
			"$name: a row" => [ [ $sessions[0], $lock->('/junk/2') ], [ $sessions[1], 'UPDATE t SET n = 1 WHERE id = 2; SELECT true' ], [ $sessions[2], $lock->('/junk/1') ] ],
			"$name: zk locks" => [ [ $sessions[3], $lock->('/junk/4') ], [ $sessions[4], $lock->('/junk/3') ] ]);
		note sprintf '%s: found after %.3f s', $_, $failed{$_}[0]{seconds} for sort keys %failed;
		return map { $failed{$_}[0]{seconds} } sort keys %failed;
	};
	my @before = $cycle->('before');
	$crowd->create_all(ephemeral => map { [ "$BOARD/$_->[0]", $_->[1] ] } @junk,
		map { my $tag = sprintf '%016x', $_ * 1e14; [ put($_ % 2 ? "$tag+" : $tag, $n++), "zklock\ntag $tag\nnode /zklock/junk/1/_c_other-lock-0000000000\nwaiter $tag 1 1 -1 x\n" ] } 1 .. 10_000);
	my @then = $cycle->('beside 10,000');
	in_time($then[$_], $before[$_] + 2, 'nearly as soon as without them') for 0, 1;
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
	zk_until(sub { record($zk, $w) }, 'the board');
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
	zk_until(sub { record($zk, $v) }, 'its record');
	$delete->([ create => $BOARD, mode => 'persistent', acl => [ [ 16, 'world', 'anyone' ] ] ]);
	my ($u, $by_u) = looker($node_b, $zk);
	$u->value($lock->('/junk/u'));
	$by_u->clear_log;
	$u->send($lock->('/junk/h'));
	zk_until(sub { $by_u->count('create2') > 5 }, 'attempts to publish, which are refused');
	ok(!(grep { $_->is_done } $w, $v, $u), 'closed: nobody fails');
	$client->set_acl($BOARD, [ [ 31, 'world', 'anyone' ] ]);
	zk_until(sub { !grep { !record($zk, $_) } $w, $v, $u }, 'they publish when they may');
	$h->value(q{SELECT zk_unlock('/junk/h')});
	foreach my $s ($w, $v, $u)
	{
		is($s->wait->{out}, 't', 'the lock is had');
		$s->value('ROLLBACK');
	}
	$_->quit for $w, $v, $u, $h;
};

$client->close;
$_->quit for $holder, $admin;
zk_nothing_left($zk, 'nothing is left in ZooKeeper');
zk_no_crash($_) for $node_a, $node_b;
done_testing;
