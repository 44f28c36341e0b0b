# Three ZooKeeper servers, two clusters, twenty backends that hold and wait: the
# leader is killed, then a follower, then a majority.  Nobody loses a lock,
# nobody is passed over, and everybody continues without help.
#
# And a session that has as many nodes as it may have: what is sent at once when it
# reconnects or ends, and from server to server, is as large as it gets.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->ensemble(3);
my @node = map { zk_cluster($_, $zk, restart_after_crash => 'on', map { ("zklock.${_}_timeout" => '60s') } qw(session operation connect)) } qw(a b);

# How much longer than the failover holders may take until they are certain of
# their locks, on a busy machine
my $SLACK = 8;

# The paths of the sessions: a queue of ten, and five pairs.  The odd ones are
# in cluster b.
my @path = (('/queue') x 10, map { ("/pair/$_") x 2 } qw(a b c d e));
my @s = map { zk_session($node[ $_ % 2 ]) } 0 .. $#path;
my $owner = 0;    # the holder of /queue
my %waits;        # the waiters: number => 1

my %seen;
foreach my $n (0 .. $#path)
{
	$s[$n]->value(q{SELECT zk_lock('/warm/' || pg_backend_pid()), zk_unlock_all()});
	$s[$n]->send("SELECT zk_lock('$path[$n]')");
	if ($seen{ $path[$n] }++)
	{
		zk_wait_queued($zk, $s[$n]);
		$waits{$n} = 1;
	}
	else
	{
		$s[$n]->wait;
	}
}

sub holders { return grep { !$waits{$_} && ($_ >= $owner) } 0 .. $#path; }

# What holders know of their locks and their sessions
sub holds
{
	return map { $s[$_]->value(
			q{SELECT path, token, session_id, losses FROM zk_locks, zk_session}) } holders();
}

my @had = holds();
my @token = ((split /\|/, $had[0])[1]);    # of the owners of /queue, in order
is(scalar(grep { /^\/\w+(?:\/\w)?\|\d+\|0x[0-9a-f]+\|0$/ } @had), 6, 'six hold a lock each');
is(join(' ', sort { $a <=> $b } keys %waits), '1 2 3 4 5 6 7 8 9 11 13 15 17 19', 'and fourteen wait');
note 'they are connected to ' . join ', ', uniq map { $s[$_]->value('SELECT server FROM zk_session') } holders();

# Wait until no holder is in doubt about its lock
sub until_connected
{
	foreach my $s (@s[ holders() ])
	{
		zk_wait_hold($s, 'held');
	}
	return;
}

sub nothing_has_changed
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	until_connected();
	is_deeply([ holds() ], \@had, "$what: each holder still has its lock, by the same session");
	is(join(' ', grep { $s[$_]->is_done } sort keys %waits), '', "$what: each waiter still waits");
	return;
}

# The owner of /queue hands it over to the next one.
sub hand_over
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $start = time;
	my $r = $s[ $owner++ ]->query(q{SELECT zk_unlock('/queue')});
	is("$r->{out} $r->{err}", 't ', "$what: zk_unlock");
	is($s[$owner]->wait->{out}, 't', "$what: the next in the queue has it");
	note sprintf '%s: handed over after %.0f ms', $what, 1000 * (time - $start);
	delete $waits{$owner};
	is(join(' ', grep { $s[$_]->is_done } sort keys %waits), '', "$what: and nobody else");
	@had = holds();
	push @token, $s[$owner]->value(q{SELECT zk_lock_token('/queue')});
	return;
}

# The same in a pair
sub hand_over_pair
{
	my ($n, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$s[$n]->value("SELECT zk_unlock('$path[$n]')");
	is($s[ $n + 1 ]->wait->{out}, 't', "$what: $path[$n] is handed over");
	# the other one is now at the end
	@s[ $n, $n + 1 ] = @s[ $n + 1, $n ];
	$s[ $n + 1 ]->send("SELECT zk_lock('$path[$n]')");
	zk_wait_queued($zk, $s[ $n + 1 ]);
	@had = holds();
	return;
}

hand_over('all servers up');

subtest 'the leader' => sub {
	my $leader = $zk->leader;
	my $start = time;
	$leader->kill9;
	$zk->leader;
	my $elected = time;
	until_connected();
	my $connected = time;
	note sprintf 'leader killed: the next one after %.1f s, all holders connected %.1f s later',
	  $elected - $start, $connected - $elected;
	in_time($connected - $elected, $SLACK, 'leader killed: all are certain of their locks when there is another one');

	my $new = zk_session($node[0]);
	is($new->value(q{SELECT zk_lock('/new'), zk_unlock('/new')}), 't|t', 'a new session locks, once there is a leader again');
	note sprintf 'leader killed: a new session has a lock after %.1f s', time - $start;
	$new->quit;
	nothing_has_changed('leader killed');
	hand_over('leader killed');
	hand_over_pair(10, 'leader killed');
	hand_over_pair(12, 'leader killed');

	$zk->start;
	hand_over('third server back');
};

subtest 'a follower' => sub {
	my ($follower) = $zk->followers;
	my $start = time;
	$follower->kill9;
	until_connected();
	nothing_has_changed('follower killed');
	hand_over('follower killed');
	$zk->start;
};

subtest 'the leader, and at once a release' => sub {
	$zk->leader->kill9;
	hand_over('released while there is no leader');
	until_connected();
	nothing_has_changed('after the election');
	$zk->start;
};

subtest 'a majority, and then a COMMIT that releases' => sub {
	# the guard is not under test here
	my $s = zk_session($node[0], options => '-c zklock.commit_guard=off');
	my $waiter = zk_session($node[1]);
	$s->value(q{BEGIN; SELECT zk_xact_lock('/majority')});
	$waiter->send(q{SELECT zk_lock('/majority')});
	zk_wait_queued($zk, $waiter);

	my @down = ($zk->leader, ($zk->followers)[0]);
	$_->kill9 for @down;
	my $r = $s->query('COMMIT');
	is($r->{state}, '', 'without a majority: a COMMIT that releases a lock succeeds');
	in_time($r->{seconds}, 1, '- and does not wait');
	my $new = zk_session($node[0], options => '-c zklock.connect_timeout=500ms');
	is($new->query(q{SELECT zk_lock('/nobody')})->{state}, '58000', '- a new session is refused');
	ok(!$waiter->is_done, '- nobody gets a lock');

	my $start = time;
	$zk->start;
	is($waiter->wait->{out}, 't', '- and the waiter does when there is a majority again');
	note sprintf 'majority back: the waiter has the lock after %.1f s', time - $start;
	until_connected();
	nothing_has_changed('majority back');
	$new->value('SET zklock.connect_timeout = 60000');
	is($new->value(q{SELECT zk_lock('/nobody')}), 't', '- and the session that was refused locks');
	$_->quit for $s, $waiter, $new;
};

# Everybody who still waits gets a turn
hand_over('at last') while $owner < 9;
foreach my $n (grep { $_ % 2 == 0 } 10 .. $#path)
{
	$s[$n]->value("SELECT zk_unlock('$path[$n]')");
	is($s[ $n + 1 ]->wait->{out}, 't', "$path[$n] is handed over");
}
is(join(' ', map { $_->value('SELECT losses FROM zk_session') } @s), join(' ', (0) x @s), 'nobody has ever lost a session');
note 'reconnections: ' . join ' ', map { $_->value('SELECT reconnections FROM zk_session') } @s;

is(join(' ', @token), join(' ', sort { $a <=> $b } uniq @token), 'and the owners of the queue had rising tokens');

$_->value('SELECT zk_unlock_all()') for @s;
zk_nothing_left($zk, 'no node is left');
# each server knows only its own, and none while it is not serving
foreach my $server ($zk->nodes)
{
	$server->wait_until(sub { ($server->watch_count // 'unknown') eq '0' }, 'no watch');
	pass('nor a watch at server ' . $server->{id});
}
$_->quit for @s;
zk_nothing_left($zk, 'nor a session', sessions => 0);

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

sub refused_at_once
{
	my ($s, $call, $bytes) = @_;
	my $before = $zk->zxid;
	my $r = $s->query("SELECT $call");
	is($r->{state}, '53400', "$call: 53400" =~ s/(.)\1{9,}/$1.../r);
	like($r->{err}, qr/would have $bytes bytes; the maximum is $MOST\./, '- which says how many bytes');
	is($zk->zxid, $before, '- and nothing was written');
	return;
}

my $new = sub { my ($of, $hosts) = @_; return zk_session_with($of, hosts => $hosts, root => $ROOT); };
subtest 'as many nodes as there may be' => sub {
	my $admin = zk_session($node[0]);
	my $proxy = ZkProxy->new(($zk->nodes)[0]);
	my ($s, $other) = ($new->($node[0], $proxy), $new->($node[1], $zk));
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
	refused_at_once($s, "zk_lock('@{[ last_path(1) ]}')", $MOST + 1);
	refused_at_once($s, "zk_try_lock('@{[ last_path(1) ]}')", $MOST + 1);
	refused_at_once($s, "zk_lock_many(ARRAY['/1', '@{[ last_path() ]}'])", $MOST + 2 + $MORE);

	# a wait has its own node, and watches others
	$s->send("SET deadlock_timeout = '10ms'; SELECT zk_lock('@{[ last_path() ]}')");
	zk_until(sub { eval { $zk->children("$ROOT/__zklock_waits__") == 1 } }, 'it waits, and has published that');
	zk_until(sub { ($zk->nodes)[0]->watch_count > $FULL }, 'all is watched');
	$proxy->clear_log;
	$proxy->drop;
	$proxy->wait_for('setWatches');
	cmp_ok(($proxy->bytes)[0], '>', $MOST, 'cut off, it connects again with all watches');
	$other->quit;
	is($s->wait->{out}, 't', 'the wait goes on');
	zk_until(sub { $s->value(q{SELECT count(*) FILTER (WHERE state = 'held') FROM zk_locks}) == $FULL }, 'all are held');
	is($s->value('SELECT reconnections, losses FROM zk_session'), '1|0', 'with the same session');
	my %nodes = $zk->ephemerals;
	my $bytes = 0;
	$bytes += 4 + length for @{ $nodes{ $s->value('SELECT session_id FROM zk_session') } };
	is($bytes, $MOST, 'not a byte is left');
	is($s->value("SELECT zk_lock('@{[ last_path() ]}'), zk_unlock('@{[ last_path() ]}')"), 't|t', 'to take one again needs none');
	is($s->query("SELECT $_")->{state}, '53400', "$_: 53400")
	  foreach q{zk_xact_lock_shared('/1')}, q{zk_semaphore_acquire('/1', 2)}, q{set_config('zklock.node_style', 'single', false), zk_lock('/1')};
	is($s->value('RESET zklock.node_style; SELECT zk_unlock_all()'), $FULL, 'all are given back');
	zk_until(sub { $zk->ephemerals_count == 0 }, '- and gone');

	$s->value('BEGIN');
	nearly_fill($s, 'xact_');
	$s->value('COMMIT');
	nearly_fill($s, '');    # what is being deleted takes no room
	$s->quit;
	zk_until(sub { $zk->ephemerals_count == 0 }, 'it to be closed');

	$s = $new->($node[0], $zk);
	nearly_fill($s, '');
	my $id = $s->value('SELECT session_id FROM zk_session');
	$admin->quit;
	zk_kill($node[0], $s->pid);
	$zk->end_session($id);
	zk_until(sub { $zk->ephemerals_count == 0 }, 'it to be over');

	# a server that starts reads its record of how sessions ended
	my ($server) = $zk->nodes;
	$server->kill9;
	$server->start->wait_ready;
	is(scalar(() = $server->sessions), 0, 'after a close and a kill -9 a server starts again');
};

$_->stop for @node;
$zk->stop;

done_testing();
