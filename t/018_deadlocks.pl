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

zk_nothing_left($zk, 'nothing is left in ZooKeeper');
zk_no_crash($_) for $node_a, $node_b;
done_testing;
