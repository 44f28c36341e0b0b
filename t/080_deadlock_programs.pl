# Deadlocks at random: sessions of several clusters take zk locks, rows and advisory
# locks in random order (lib/DeadlockPrograms.pm).  No cycle stands longer than three
# times deadlock_timeout, nobody fails without a cycle, and a cycle has one victim.
#
# DEADLOCK_SECONDS: how long, for each number of clusters (default 8)
# DEADLOCK_SEED: what they do (default: at random)
# DEADLOCK_RUNS: which of these, by number; default: "2 3"
#     2, 3   so many clusters, deadlock_timeout 300 ms
#     1+5    two, whose deadlock_timeout is 1 s and 5 s; so few cycles close there
#            that DEADLOCK_SECONDS should be 60 or more
#     1+20   the same with 1 s and 20 s; after 60 s it takes a minute or two to end
# DEADLOCK_SESSIONS: how many sessions (default 10)

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use DeadlockPrograms;
use Deadline;
use Zklock;
use ZooKeeper;

my $SECONDS = $ENV{DEADLOCK_SECONDS} || 8;
my $SEED = $ENV{DEADLOCK_SEED} || 1 + int rand 1_000_000;
my $SESSIONS = $ENV{DEADLOCK_SESSIONS} || 10;
my @RUNS = split ' ', $ENV{DEADLOCK_RUNS} // '2 3';
my $SLACK = 1;    # s, for what is no wait: the machine is busy, and we look now and then

my $zk = ZooKeeper->new(container_check => 1000)->start;
my @nodes;

sub node
{
	my ($number) = @_;
	if (!$nodes[$number])
	{
		$nodes[$number] = zk_cluster("n$number", $zk, deadlock_timeout => '300ms');
		DeadlockPrograms::prepare($nodes[$number]);
	}
	return $nodes[$number];
}

# Clusters with these deadlock_timeouts, in seconds
sub clusters
{
	my (@timeouts) = @_;
	my @clusters;
	foreach my $number (0 .. $#timeouts)
	{
		my $node = node($number);
		$node->append_conf('postgresql.conf', "deadlock_timeout = '" . 1000 * $timeouts[$number] . "ms'");
		$node->reload;
		push @clusters, { node => $node, deadlock_timeout => $timeouts[$number] };
	}
	return \@clusters;
}

foreach my $run (@RUNS)
{
	my @timeouts = $run =~ /\+/ ? split(/\+/, $run) : (0.3) x $run;
	subtest "random transactions, deadlock_timeout @timeouts s" => sub {
		my $programs = DeadlockPrograms->new(zk => $zk, seed => $SEED, sessions => $SESSIONS, clusters => clusters(@timeouts));
		$programs->go($SECONDS);
		is(zk_few($programs->complaints), '', "no complaint, seed $SEED");
		my $count = $programs->count;
		my $longest = $programs->longest;
		diag("$SECONDS s, seed $SEED: " . join ', ', map { "$_: $count->{$_}" } sort keys %$count);
		diag(sprintf "longest cycle %.2f s; nearest to its limit of %.1f s: %s; oldest wait %.3f s",
			@$longest{qw(seconds limit what)}, $programs->{oldest} // 0);
		in_time($longest->{over}, $SLACK, 'no cycle stands longer than three times deadlock_timeout, and a moment');
		cmp_ok($count->{$_} // 0, '>', 0, "it happened: $_") for 'commits', 'victims: zklock';
		zk_nothing_left($zk, 'nothing is left in ZooKeeper');
	};
}

zk_no_crash($_) for grep { defined } @nodes;
done_testing;
