# Three ZooKeeper servers, two clusters, twenty backends that hold and wait: the
# leader is killed, then a follower, then a majority.  Nobody loses a lock,
# nobody is passed over, and everybody continues without help.

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
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->ensemble(3);
my @node = map { zk_cluster($_, $zk, map { ("zklock.${_}_timeout" => '60s') } qw(session operation connect)) } qw(a b);

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
$_->stop for @node;
$zk->stop;

done_testing();
