
# Answers of ZooKeeper that get lost.  The request may have been carried out: a
# create whose answer is lost leaves exactly one node during the call, and none
# after it; a delete whose answer is lost is repeated until the node is gone; no
# loss makes a call fail, hang, or return a wrong answer.
#
# The session timeout is short: silence is noticed within it; but a third of it, which is
# left then, is longer than a machine stands still.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Test::More;
use Time::HiRes qw(sleep);

use Child;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $SESSION_TIMEOUT = 8;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
my $node = zk_cluster('main', $proxy, 'zklock.session_timeout' => "${SESSION_TIMEOUT}s");
my $admin = zk_session($node);
my $DIR = '/zklock/l';
my $LOCK = "SELECT zk_lock('/l')";
my $UNLOCK = "SELECT zk_unlock('/l')";

my $other = $zk->client;

sub other_locks { return $other->contend($DIR); }

sub own_nodes { return grep { !/other/ } $zk->children($DIR); }

# A session that is connected, so that only the intended requests are disturbed
sub warm_session
{
	my $session = zk_session($node);
	$session->value("SELECT zk_lock('/warm'), zk_unlock('/warm')");
	return $session;
}

sub works_as_before
{
	my ($session) = @_;
	is($session->value("$LOCK; $UNLOCK"), "t\nt", "then locks and unlocks, time $_") for 1 .. 2;
	return;
}

# a test of its own, from a clean state to a clean state
sub lost
{
	my ($name, $code) = @_;
	subtest $name => sub {
		my $session = warm_session();
		$code->($session);
		$proxy->reset;
		works_as_before($session) if $session->{psql};
		$session->quit;
		zk_nothing_left($zk, 'nothing is left', sessions => 2);    # $other, and a guest
	};
	return;
}

# ------------------------------------------------------------------- create

foreach my $way (@ZkProxy::WAYS)
{
	lost "create, $way: a free lock is had, with one node" => sub {
		my ($session) = @_;
		$proxy->clear_log;
		$proxy->lose($way, 'create2');
		my $result = $session->query($LOCK);
		is($result->{out}, 't', 'the lock is had');
		is($result->{state}, '', 'without an error');
		is(own_nodes(), 1, 'one node');
		ok(zk_until(sub { $session->value("SELECT count(*) FROM zk_locks WHERE state = 'held'") == 1 }, 'held'), 'held');
		is($session->value('SELECT node FROM zk_locks'), (own_nodes())[0], 'zk_locks names it');
		is($session->value("SELECT zk_lock_token('/l')"), $zk->exists("$DIR/" . (own_nodes())[0])->{czxid},
			'with the token of that node');
		is($session->value($UNLOCK), 't', 'unlocked');
	};

	lost "create, $way: one node while the call waits" => sub {
		my ($session) = @_;
		my $before = other_locks();
		$proxy->clear_log;
		$proxy->lose($way, 'create2');
		$session->send($LOCK);
		$proxy->wait_lost($way);

		# until the client has noticed and is in the queue again
		my $most = 0;
		zk_until(
			sub {
				my $n = own_nodes();
				$most = $n if $n > $most;
				return $n == 1 && $zk->watch_count == 2;
			},
			'the waiter in the queue');
		is($most, 1, 'never more than one');
		ok(!$session->is_done, 'the call goes on');
		$other->delete($before);
		is($session->wait->{out}, 't', 'and gets the lock');
		is($session->value($UNLOCK), 't', 'unlocked');
	};

	# A client that was cut off cannot come back until that is allowed, and a
	# client whose answer was swallowed learns of it in no other way.
	my $lose = sub {
		my ($session) = @_;
		$proxy->clear_log;
		$proxy->refuse if $way =~ /cut/;
		$proxy->lose($way, 'create2');
		$proxy->swallow('*', 1000) if $way eq 'swallowed';    # heartbeats, too
		$session->send($LOCK);
		$proxy->wait_lost($way);
		return;
	};

	lost "create, $way: canceled before that is known" => sub {
		my ($session) = @_;
		$lose->($session);
		$admin->value('SELECT pg_cancel_backend(' . $session->pid . ')');
		is($session->wait->{state}, '57014', 'the call has ended');
		$way eq 'swallowed' ? $proxy->reset : $proxy->pass;    # held frames stay held
		zk_until(sub { own_nodes() == 0 }, 'no node is left');
		pass('no node is left');
	};

	lost "create, $way: terminated before that is known" => sub {
		my ($session) = @_;
		$lose->($session);
		$admin->value('SELECT pg_terminate_backend(' . $session->pid . ')');
		ok($session->wait->{closed}, 'the session is closed');
		$session->quit;
	};
}

lost 'create, swallowed: a timeout of the call that ends meanwhile is an error' => sub {
	my ($session) = @_;
	$proxy->swallow('*', 1000);    # an answer to a heartbeat would give the loss away
	my $result = $session->query("SELECT zk_lock('/l', '200ms')");
	is($result->{state}, '58030', 'is 58030, not false');
	like($result->{message}, qr/^timeout expired before ZooKeeper answered/, 'with the reason');
};

# The missing directory is not the reason of the failure, then.
my %over = (
	'the timeout of the call' => [ '', ", '1s'", qr/^timeout expired before ZooKeeper answered/ ],
	'operation_timeout' => [ "SET zklock.operation_timeout = '1s'", '', qr/^ZooKeeper did not answer within 1000 ms/ ]);
foreach my $what (sort keys %over)
{
	my ($set, $timeout, $message) = @{ $over{$what} };
	lost "create of a first lock, refused when $what is over: says so" => sub {
		my ($session) = @_;
		$session->value($set) if $set;
		$proxy->hold('create2');
		$session->send("SELECT zk_lock('/late/lock'$timeout)");
		$proxy->wait_held;
		Child::suspend($session->pid);
		$proxy->release;
		sleep 1.1;
		kill 'CONT', $session->pid;
		my $result = $session->wait;
		is($result->{state}, '58030', 'is 58030');
		like($result->{message}, $message, 'and why');
		$session->value('RESET zklock.operation_timeout');
	};
}

# Directories that never had a child stay forever unless they are deleted.
lost 'the directories of a first lock arrive, the lock does not: they are removed' => sub {
	my ($session) = @_;
	$proxy->hold_request('create2');    # this one finds that there is no directory
	$session->send("SELECT zk_lock('/never/had')");
	$proxy->wait_held;
	$proxy->delay_ms(2000);    # until the next rule is there
	$proxy->release;
	$proxy->hold_request('create2');    # this one comes after the directories
	$proxy->delay_ms(0);
	$proxy->wait_held;
	zk_until(sub { $zk->exists('/zklock/never/had') }, 'the directories');
	$proxy->cut_off;
	$admin->value('SELECT pg_cancel_backend(' . $session->pid . ')');
	is($session->wait->{state}, '57014', 'the call is canceled');
	$proxy->pass;
	ok(eval { zk_until(sub { !$zk->exists('/zklock/never/had') }, 'removed') }, 'what was not used is removed: ZooKeeper would not');
};

lost 'answers to the parents of a first lock, swallowed: the lock is had' => sub {
	my ($session) = @_;
	$proxy->swallow('createContainer', 2);
	is($session->value("SELECT zk_lock('/first/lock')"), 't', 'the lock is had');
	is(scalar $zk->children('/zklock/first/lock'), 1, 'one node');
	is($session->value("SELECT zk_unlock('/first/lock')"), 't', 'unlocked');
};

# ------------------------------------------------------------------- delete

foreach my $way (@ZkProxy::WAYS)
{
	lost "delete, $way: zk_unlock" => sub {
		my ($session) = @_;
		$session->value($LOCK);
		$proxy->clear_log;
		$proxy->lose($way, 'delete');
		my $result = $session->query($UNLOCK);
		is($result->{out}, 't', 'is true');
		is_deeply($result->{warnings}, [], 'and confirmed');
		is(own_nodes(), 0, 'no node');
	};

	lost "delete, $way: zk_unlock that does not wait so long" => sub {
		my ($session) = @_;
		$session->value($LOCK);
		$session->value("SET zklock.operation_timeout = '1ms'");
		$proxy->clear_log;
		$proxy->lose($way, 'delete');
		my $result = $session->query($UNLOCK);
		is($result->{out}, 't', 'is true');
		like("@{ $result->{warnings} }", qr/^(?:ZooKeeper has not confirmed the release of a lock)?$/,
			'with a warning, or confirmed');
		is($session->value('SELECT count(*) FROM zk_locks'), 0, 'the hold is gone');
		zk_until(sub { own_nodes() == 0 }, 'no node is left');
		$session->value('RESET zklock.operation_timeout');
	};

	lost "delete, $way: COMMIT of a transaction-scope lock" => sub {
		my ($session) = @_;
		$session->value("BEGIN; SELECT zk_xact_lock('/l')");
		$proxy->clear_log;
		$proxy->lose($way, 'delete');
		my $result = $session->query('COMMIT');
		is($result->{state}, '', 'commits');
		is_deeply($result->{warnings}, [], 'without a warning');
		in_time($result->{seconds}, 1, 'at once');
		zk_until(sub { own_nodes() == 0 }, 'no node is left');
	};

	lost "delete, $way: COMMIT with a release_timeout" => sub {
		my ($session) = @_;
		$session->value("SET zklock.release_timeout = '300ms'");
		$session->value("BEGIN; SELECT zk_xact_lock('/l')");
		$proxy->clear_log;
		$proxy->lose($way, 'delete');
		my $result = $session->query('COMMIT');
		is($result->{state}, '', 'commits');
		in_time($result->{seconds}, 0.3 + 1, 'in time');
		$session->value('RESET zklock.release_timeout');
		zk_until(sub { own_nodes() == 0 }, 'no node is left');
	};

	lost "delete, $way: ROLLBACK TO SAVEPOINT" => sub {
		my ($session) = @_;
		$session->value("BEGIN; SAVEPOINT s; SELECT zk_lock('/l')");
		$proxy->clear_log;
		$proxy->lose($way, 'delete');
		$session->value('ROLLBACK TO SAVEPOINT s');
		zk_until(sub { own_nodes() == 0 }, 'no node is left');
		is($session->value('COMMIT; SELECT count(*) FROM zk_locks'), 0, 'no hold');
	};
}

# -------------------------------------------------------------------- reads

foreach my $way (@ZkProxy::WAYS_OF_ANSWERS)
{
	lost "list, $way: a free lock is had" => sub {
		my ($session) = @_;
		$proxy->lose($way, 'getChildren');
		is($session->value($LOCK), 't', 'the lock is had');
		is(own_nodes(), 1, 'one node');
		is($session->value($UNLOCK), 't', 'unlocked');
	};

	lost "list, $way: zk_try_lock is right" => sub {
		my ($session) = @_;
		my $before = other_locks();
		$proxy->lose($way, 'getChildren');
		is($session->value("SELECT zk_try_lock('/l')"), 'f', 'false for a lock that is taken');
		is(own_nodes(), 0, 'no node');
		$proxy->reset;
		$other->delete($before);
		$proxy->lose($way, 'getChildren');
		is($session->value("SELECT zk_try_lock('/l')"), 't', 'true for one that is free');
		is(own_nodes(), 1, 'one node');
		$session->value($UNLOCK);
	};

	lost "sync, $way: zk_try_lock is right" => sub {
		my ($session) = @_;
		$proxy->lose($way, 'sync');
		is($session->value("SELECT zk_try_lock('/l')"), 't', 'true');
		$session->value($UNLOCK);
	};

	lost "setting of a watch, $way: the waiter is woken" => sub {
		my ($session) = @_;
		my $before = other_locks();
		$proxy->clear_log;
		$proxy->lose($way, 'getData');
		$session->send($LOCK);
		$proxy->wait_lost($way);
		$other->delete($before);
		my $result = $session->wait;
		is($result->{out}, 't', 'gets the lock');
		is(own_nodes(), 1, 'one node');
		$session->value($UNLOCK);
	};

	lost "setting of a watch, $way: nobody gets in too early" => sub {
		my ($session) = @_;
		my @before = (other_locks(), other_locks());
		$proxy->clear_log;
		$proxy->lose($way, 'getData');
		$session->send($LOCK);
		$proxy->wait_lost($way);
		$other->delete(shift @before);
		zk_until(sub { $zk->watch_count >= 2 }, 'it waits again');
		ok(!$session->is_done, 'not while another is before it');
		$other->delete(shift @before);
		is($session->wait->{out}, 't', 'then it has the lock');
		$session->value($UNLOCK);
	};
}

# ------------------------------------------------------------------- events

lost 'a lost event, the connection cut: the waiter is woken' => sub {
	my ($session) = @_;
	my $before = other_locks();
	$session->send($LOCK);
	zk_until(sub { $zk->watch_count == 2 }, 'it waits');
	$proxy->hold_event;
	$other->delete($before);
	$proxy->wait_held;
	ok(!$session->is_done, 'it does not know');
	$proxy->cut_off;
	$proxy->release;
	$proxy->pass;
	is($session->wait->{out}, 't', 'it has the lock');
	$session->value($UNLOCK);
};

lost 'an event that comes too late for a canceled call' => sub {
	my ($session) = @_;
	my $before = other_locks();
	$session->send($LOCK);
	zk_until(sub { $zk->watch_count == 2 }, 'it waits');
	$proxy->hold_event;
	$other->delete($before);
	$proxy->wait_held;
	$admin->value('SELECT pg_cancel_backend(' . $session->pid . ')');
	is($session->wait->{state}, '57014', 'canceled');
	$proxy->release;
};

lost 'the connection cut again and again: the waiter keeps its place' => sub {
	my ($session) = @_;
	my $before = other_locks();
	$session->send($LOCK);
	zk_until(sub { $zk->watch_count == 2 }, 'it waits');
	my ($mine) = own_nodes();
	my $behind = other_locks();
	foreach my $time (1 .. 5)
	{
		$proxy->drop;
		zk_until(sub { $zk->watch_count == 2 && $proxy->connections == 1 }, 'it is back');
	}
	is("@{[ own_nodes() ]}", $mine, 'the same node');
	$other->delete($before);
	is($session->wait->{out}, 't', 'it has the lock, before one who came later');
	$session->value($UNLOCK);
	$other->delete($behind);
};

# Missed events arrive in no particular order: the event that it is our turn may
# come before the one that our own node is gone.
lost 'cut off, its own node and the one before deleted meanwhile: nobody gets in too early' => sub {
	my ($session) = @_;
	my $before = other_locks();
	foreach my $time (1 .. 6)
	{
		$session->send($LOCK);
		zk_until(sub { $zk->watch_count == 2 }, 'it waits');
		my ($mine) = own_nodes();
		$proxy->cut_off;
		zk_until(sub { $proxy->connections == 0 }, 'it is cut off');
		my $next = other_locks();
		$other->delete($_) for $before, "$DIR/$mine";
		$before = $next;
		$proxy->pass;
		zk_until(sub { $session->is_done || (own_nodes() == 1 && $zk->watch_count == 2) }, 'it waits again');
		ok(!$session->is_done, "it does not, time $time");
		$admin->value('SELECT pg_cancel_backend(' . $session->pid . ')');
		is($session->wait->{state}, '57014', 'canceled');
		zk_until(sub { $zk->watch_count == 0 }, 'it is out of the queue');
	}
	$other->delete($before);
};

$other->close;
undef $admin;
$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left, no session either', sessions => 0, tree => 1);

done_testing();
