# Thirty seconds of dev/torture with all kinds of locks and all faults: the promises of
# the locks, the guard and the fence hold, whatever fails.
#
# TORTURE_SECONDS, TORTURE_SEED: instead of thirty, and a random seed

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Test::More;

use Deadline;
use Torture;

my $seconds = $ENV{TORTURE_SECONDS} || 30;
my $run = Torture->new(seconds => $seconds, $ENV{TORTURE_SEED} ? (seed => $ENV{TORTURE_SEED}) : ());
diag("seed $run->{seed}: repeat its faults with TORTURE_SEED=$run->{seed}, or dev/torture --seed=$run->{seed}");

# The faults depend only on the seed.
is_deeply(
	[ Torture->new(seconds => $seconds, seed => $run->{seed})->schedule ],
	[ $run->schedule ],
	'the same seed makes the same schedule');
isnt(
	join("\n", map { Torture::Schedule::describe($_) } Torture->new(seconds => $seconds, seed => $run->{seed} + 1)->schedule),
	join("\n", map { Torture::Schedule::describe($_) } $run->schedule),
	'another one makes another');

$run->execute;
# Sessions end after two seconds without a sign: on a machine that others use, too, one may
# be lost, or an answer late, where no fault is to blame.
my @of_time = grep { $_->[0] =~ /^(?:loss|refusal|late (?:answer|grant|release))$/ || ($_->[0] eq 'error' && $_->[1] =~ /: (?:55000|58000|58030) /) }
  $run->violations;
my %of_time = map { $_ => 1 } @of_time;
is_deeply([ grep { !$of_time{$_} } $run->violations ], [], 'no violation');
if ($TIMING) { is_deeply(\@of_time, [], 'nor is anything late, or lost, that no fault explains'); }
else { in_time(0, 1, 'in time'); }

my $checker = $run->{checker};
# (a busy machine does a third of what others do)
cmp_ok(scalar(@{ $checker->{history} }), '>=', $seconds / 4, 'and enough was committed');
my %made = map { $_->{kind} => 1 } $checker->faults;
my $kinds_made = keys %made;
cmp_ok($kinds_made, '>=', 5, 'under faults of many kinds');
cmp_ok($checker->{ordered}, '>', 0, 'and there were times without');
my $judged = $checker->{ledger}->judged;
my @holds = $checker->holds;
is($judged->{holds} + grep({ $_->{token_lost} } @holds), scalar @holds, "each hold has its node in ZooKeeper's log, or that has lost it");
# (two or three of each in a run: one of them alone may well be missing)
ok($judged->{lost} || grep({ $checker->{states}{$_}{40001} } qw(commit fence)) || $kinds_made < 10, 'and some were lost with it, or refused');
my %kinds;
$kinds{ $_->{kind} }++ for $checker->holds;
cmp_ok($kinds{$_} // 0, '>', 0, "holds of the kind $_") for qw(exclusive shared semaphore several downgrade);
# (a busy machine makes so few of some that none of them needs to)
ok($judged->{waits}{$_} || $kinds{$_} < 30, "some had to wait: $_") for qw(exclusive shared semaphore several);
cmp_ok($checker->{read_twice}, '>', 0, 'and readers saw the same twice');
diag($run->figures);
diag('the log: ' . $run->log_file) if $run->violations;

done_testing();
