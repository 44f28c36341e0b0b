# Deadlocks beside Curator's own mutex.  What waits inside another client cannot be seen:
# nobody fails because of a cycle through one, and a timeout or a cancel opens it.  And a
# client of Curator that stands in the queue of a cycle is neither its victim nor in its
# way.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Cycles;
use Peer;
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new->start;
my ($node_a, $node_b) = map { zk_cluster($_, $zk, deadlock_timeout => '100ms') } qw(a b);
my $admin = zk_session($node_a);
my $curator = Peer->new(curator => $zk);

sub lock_sql { return "SELECT zk_xact_lock('$_[0]')"; }

# Curator stands in the queue of a path, which is so long then
sub curator_waits
{
	my ($path, $length) = @_;
	$curator->send("acquire /zklock$path -1");
	zk_until(sub { $zk->children("/zklock$path") == $length }, 'Curator to stand in the queue');
	return;
}

# Curator gets the lock for which it waits, and gives these back
sub curator_gets_it
{
	my ($name, @paths) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($curator->acquired($curator->wait), $name);
	is(join(' ', map { $curator->ask("release /zklock$_") } @paths), join(' ', map { 'ok' } @paths), 'and gives back what it has');
	return;
}

foreach my $end ('a cancel', 'lock_timeout')
{
	subtest "a cycle through Curator, which $end opens" => sub {
		$curator->acquire('/zklock/curator/x');
		my ($s, $by_s) = looker($node_a, $zk);
		$s->value(lock_sql('/curator/y'));
		curator_waits('/curator/y', 2);
		my $result;
		if ($end eq 'a cancel')
		{
			$s->send(lock_sql('/curator/x'));
			nobody_fails('who waits for Curator', [$by_s], $s);
			ok(!$curator->is_done, 'and Curator waits');
			$result = $s->cancel($admin);
			is($result->{state}, '57014', 'canceled');
		}
		else
		{
			$result = $s->query(q{SET LOCAL lock_timeout = '4s'; } . lock_sql('/curator/x'));
			is($result->{state}, '55P03', 'lock_timeout, and not 40P01');
			like($result->{detail}, qr/^It is held by ZooKeeper session 0x[0-9a-f]+\.$/, 'DETAIL: Curator holds the lock');
			cmp_ok($s->value('ROLLBACK; SELECT deadlock_checks FROM zk_session'), '>', 10, 'it has looked');
		}
		like($result->{err}, qr{^CONTEXT:  while waiting for lock path "/curator/x"$}m, 'CONTEXT');
		$s->value('ROLLBACK');
		curator_gets_it('Curator gets its lock', '/curator/y', '/curator/x');
		is($s->value('BEGIN; ' . lock_sql('/curator/x') . '; ' . lock_sql('/curator/y') . '; COMMIT'), "t\nt", 'and then the session both');
		zk_nothing_left($zk, 'no node is left on the board or in a queue');
		$s->quit;
	};
}

foreach my $place ('behind', 'between')
{
	subtest "a cycle of two, and Curator $place them in a queue" => sub {
		my ($a, $b) = in_transactions($node_a, $node_b);
		$a->value(lock_sql('/both/x'));
		$b->value(lock_sql('/both/y'));
		curator_waits('/both/x', 2) if $place eq 'between';
		$b->send(lock_sql('/both/x'));
		zk_wait_queued($zk, $b);
		curator_waits('/both/x', 3) if $place eq 'behind';
		$a->send(lock_sql('/both/y'));
		my %result;
		my $victim = zk_until(
			sub {
				$result{$_} = $_->wait for grep { !$result{$_} && $_->is_done } $a, $b;
				return (grep { $result{$_} && $result{$_}{state} eq '40P01' } $a, $b)[0];
			},
			'one to fail');
		my $other = $victim == $a ? $b : $a;
		$victim->value('ROLLBACK');

		# Curator's turn comes before that of the second of the two, or after both
		my $first = $place eq 'between' && $other == $b;
		curator_gets_it('Curator has its turn', '/both/x') if $first;
		$result{$other} //= $other->wait;
		is($result{$other}{out}, 't', 'one fails, and the other one gets its lock');
		ok(!$curator->is_done, 'Curator waits on') if !$first;
		$other->value('COMMIT');
		curator_gets_it('Curator has its turn', '/both/x') if !$first;
		is($_->value('SELECT deadlocks FROM zk_session'), $_ == $victim ? 1 : 0, 'zk_session: ' . ($_ == $victim ? 'one deadlock' : 'none')) for $a, $b;
		zk_nothing_left($zk, 'no node is left on the board or in a queue');
		$_->quit for $a, $b;
	};
}

is($curator->ask('events'), 'CONNECTED', 'nothing has happened to Curator meanwhile');
$curator->quit;
$admin->quit;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($_) for $node_a, $node_b;
done_testing;
