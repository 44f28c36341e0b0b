# Deadlocks: circles of zk locks, of PostgreSQL's locks, and of both, on one server
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

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new->start;
my %setting = (deadlock_timeout => '300ms', log_lock_waits => 'off');
my $node_a = zk_cluster('a', $zk, %setting);
my $node_b = zk_cluster('b', $zk, %setting, cluster_name => 'second');
$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0); INSERT INTO t SELECT generate_series(1, 9)')
  for $node_a, $node_b;

# Sessions in a transaction, one for each of these clusters
sub in_transactions
{
	my @sessions = map { zk_session($_) } @_;
	$_->value('BEGIN') for @sessions;
	return @sessions;
}

# These wait: [ session, statement ].  Exactly one of them fails, with 40P01; the others
# proceed, each once those before it have ended.  Returns the failed one's result and
# its session.
sub one_fails
{
	my ($name, @waits) = @_;
	my (@failed, @bad);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$_->[0]->send($_->[1]) for @waits;
	while (@waits)
	{
		zk_until(sub { grep { $_->[0]->is_done } @waits }, "$name: an end of one of the waits");
		my ($done) = grep { $_->[0]->is_done } @waits;
		my $result = $done->[0]->wait;
		push @failed, [ $result, $done->[0] ] if $result->{state} eq '40P01';
		push @bad, $result->{err} if $result->{state} !~ /^(?:40P01)?$/;
		$done->[0]->query('ROLLBACK');
		@waits = grep { $_ != $done } @waits;
	}
	is(scalar @failed, 1, "$name: one fails");
	is("@bad", '', "$name: there is no other error");
	return @{ $failed[0] // [ {}, 'none' ] };
}

subtest 'zk locks on two servers' => sub {
	my ($a, $b) = in_transactions($node_a, $node_b);
	$a->value(q{SELECT zk_xact_lock('/x')});
	$b->value(q{SELECT zk_xact_lock('/y')});
	my ($r) = one_fails('two', [ $a, q{SELECT zk_xact_lock('/y')} ], [ $b, q{SELECT zk_xact_lock('/x')} ]);
	note $r->{err};
	my ($c, $d, $e) = in_transactions($node_a, $node_b, $node_b);
	$c->value(q{SELECT zk_xact_lock('/x')});
	$d->value(q{SELECT zk_xact_lock('/y')});
	$e->value(q{SELECT zk_xact_lock('/z')});
	($r) = one_fails('three', [ $c, q{SELECT zk_xact_lock('/y')} ], [ $d, q{SELECT zk_xact_lock('/z')} ], [ $e, q{SELECT zk_xact_lock('/x')} ]);
	note $r->{err};
};

subtest 'a row and a zk lock on one server' => sub {
	my ($a, $b) = in_transactions($node_a, $node_a);
	$a->value(q{SELECT zk_xact_lock('/x')});
	$b->value(q{UPDATE t SET n = 1 WHERE id = 1});
	my ($r, $victim) = one_fails('row', [ $a, q{UPDATE t SET n = 2 WHERE id = 1} ], [ $b, q{SELECT zk_xact_lock('/x')} ]);
	is($victim, $b, 'who waits for the zk lock fails');
	note $r->{err};
};

subtest 'rows on two servers' => sub {
	my ($a1, $a2, $b1, $b2) = in_transactions($node_a, $node_a, $node_b, $node_b);
	$a1->value(q{SELECT zk_xact_lock('/x')});
	$a2->value(q{UPDATE t SET n = 1 WHERE id = 1});
	$b1->value(q{SELECT zk_xact_lock('/y')});
	$b2->value(q{UPDATE t SET n = 1 WHERE id = 1});
	my ($r) = one_fails('rows',
		[ $a1, q{UPDATE t SET n = 2 WHERE id = 1} ], [ $a2, q{SELECT zk_xact_lock('/y')} ],
		[ $b1, q{UPDATE t SET n = 2 WHERE id = 1} ], [ $b2, q{SELECT zk_xact_lock('/x')} ]);
	note $r->{err};
};

# A session with a network of its own
sub through_proxy
{
	my ($node, %setting) = @_;
	my $proxy = ZkProxy->new($zk);
	return (zk_session_with($node, %setting, hosts => $proxy), $proxy);
}

# The first wait of a lost circle is in the way no longer
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
	my ($a) = in_transactions($node_a);
	my $b = zk_session_with($node_a, operation_timeout => '200ms');
	$a->value(q{SELECT zk_xact_lock('/x')});
	$b->value('BEGIN');
	$b->value('UPDATE t SET n = 1 WHERE id = 1');
	$b->send(q{SELECT zk_xact_lock('/x')});
	zk_wait_queued($zk, $b);
	sleep 0.7;
	$a->send('UPDATE t SET n = 2 WHERE id = 1');
	my $found = eval { zk_until(sub { $b->is_done }, 'the circle to be found', 10) };
	ok($found && $b->wait->{state} eq '40P01', 'the circle is found');
	give_up($b, $a);
};

subtest 'an attempt that is lost' => sub {
	my ($a) = in_transactions($node_a);
	my ($b, $proxy) = through_proxy($node_a);
	$b->value('BEGIN');
	$a->value(q{SELECT zk_xact_lock('/x')});
	$b->value(q{SELECT zk_xact_lock('/y')});
	$a->value('SAVEPOINT s');
	$a->send(q{SELECT zk_xact_lock('/y')});
	sleep 0.5;    # its record is there
	$b->send(q{SELECT zk_xact_lock('/x')});
	zk_wait_queued($zk, $b);
	$proxy->clear_log;
	$proxy->drop_request('multi');
	$proxy->wait_lost('never asked for, the connection cut');
	$proxy->clear_log;
	my $began = time;
	$proxy->wait_for('multi');
	in_time(time - $began, 1.5, 'the next attempt comes soon');
	is($b->wait->{state}, '40P01', 'and breaks the circle');
	give_up($b, $a);
};

subtest 'a record whose create is not answered' => sub {
	my ($a) = in_transactions($node_a);
	my ($b, $proxy) = through_proxy($node_a);
	$b->value('BEGIN');
	$a->value(q{SELECT zk_xact_lock('/x')});
	$b->value(q{SELECT zk_xact_lock('/y')});
	my $c = zk_session($node_a);
	$c->value('BEGIN');
	$c->value(q{SELECT zk_xact_lock('/z')});
	$c->send(q{SELECT zk_xact_lock('/y')});    # its record keeps the board
	sleep 0.5;
	$b->send(q{SELECT zk_xact_lock('/x')});
	zk_wait_queued($zk, $b);
	$proxy->swallow_and_drop('create2');
	$proxy->wait_swallowed;
	sleep 1;
	$a->value('COMMIT');
	is($b->wait->{state}, '', 'it gets the lock');
	zk_until(sub { (grep { m{/__zklock_waits__/} } $zk->tree('/')) == 1 }, 'the record to be gone');
	give_up($b, $c);
};

subtest 'a doubt does not outlive its circle' => sub {
	my ($a, $admin) = in_transactions($node_a, $node_a);
	my ($b, $proxy) = through_proxy($node_a);
	$b->value('BEGIN');
	$a->value(q{SELECT zk_xact_lock('/x')});
	$b->value(q{SELECT zk_xact_lock('/y')});
	$a->value('SAVEPOINT s');
	$a->send(q{SELECT zk_xact_lock('/y')});
	sleep 0.5;
	$b->send(q{SELECT zk_xact_lock('/x')});
	zk_wait_queued($zk, $b);
	$proxy->clear_log;
	$proxy->drop_request('multi');
	$proxy->wait_lost('never asked for, the connection cut');
	kill 'INT', $a->pid;
	$a->wait;
	$a->value('ROLLBACK TO s');
	$proxy->clear_log;
	$proxy->wait_for('getChildren', 3);    # it has looked again
	sleep 0.3;
	my $node = $admin->value(q{SELECT node FROM zk_lock_queue('/x') WHERE NOT granted});
	is($admin->value("SELECT zk_lock_break('/x', '$node')"), 't', 'its node is broken');
	$a->value('COMMIT');
	is($b->wait->{state}, '', 'it queues again');
	$_->query('ROLLBACK') for $admin, $b;
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
		$a->value('COMMIT');
		sleep 0.2;                                      # the event waits behind the answer
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
	my ($a, $v) = in_transactions($node_a, $node_a);
	$a->value(q{SELECT zk_xact_lock('/x')});
	$v->value(q{SELECT zk_xact_lock('/v')});
	$v->send(q{SELECT zk_xact_lock('/x')});
	zk_wait_queued($zk, $v);
	$zk->with_client(
		sub {
			my ($client) = @_;
			my ($held) = $client->queue('/zklock/v');
			my ($tag) = ($client->get($held))[0] =~ /^tag (\w+)$/m;
			my ($other, $uuid, $board) = ('0' x 16, '00000000-0000-0000-0000-000000000000', '/zklock/__zklock_waits__');
			my $own = $client->contend('/zklock/v', "_c_$uuid-lock-", data => "zklock\ntag $other\n");
			my $lines = "zklock\ntag $other\nnode $own\nwaiter $tag 1 0 -1 \n";
			my $record = $client->contend($board, "$other+-$uuid-", data => $lines);
			foreach (1 .. 12)
			{
				$client->set($record, $lines);
				sleep 0.3;
			}
			$client->delete($_) for $record, $own;
		});
	ok(!$v->is_done, 'nobody fails');
	$a->value('COMMIT');
	is($v->wait->{state}, '', 'it gets the lock');
	$v->query('ROLLBACK');
};

zk_nothing_left($zk, 'nothing is left in ZooKeeper');
zk_no_crash($_) for $node_a, $node_b;
done_testing;
