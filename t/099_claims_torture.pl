# Claims at random: nine sessions in two clusters claim the same periods, one after the
# other, while they are canceled, terminated and killed, fail before their COMMIT and in
# it, and are cut off from ZooKeeper or lose its session.  For no period do two commit.
# One for which nobody does is pending, or was left by somebody who was killed or
# expelled just then, or nobody was told that it had been claimed.
#
# CLAIM_SECONDS=... (environment) how long, default 20; CLAIM_SEED=... its random numbers

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Test::More;
use Time::HiRes qw(sleep time);

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $SECONDS = $ENV{CLAIM_SECONDS} || 20;
my $SEED = $ENV{CLAIM_SEED} // int rand 1e6;
srand $SEED;
note "CLAIM_SEED=$SEED";

my $zk = ZooKeeper->new(container_check => 1000)->start;
my @proxies = map { ZkProxy->new($zk) } 1 .. 3;
my @nodes = map { zk_cluster($_, $zk, 'zklock.operation_timeout' => '3s', restart_after_crash => 'on') } qw(one two);
my $calm = zk_cluster('calm', $zk);
foreach my $node (@nodes)
{
	zk_foreign_server($node, loopback => $node);
	$node->safe_psql(
		'postgres',
		q{CREATE TABLE remote (i int UNIQUE DEFERRABLE INITIALLY DEFERRED);
		CREATE FOREIGN TABLE there (i int) SERVER loopback OPTIONS (table_name 'remote');
		CREATE TABLE played (period int, who int)});
}

# The sessions: each with its cluster and its way to ZooKeeper
my @claimers = map { { number => $_, node => $nodes[ $_ % 2 ], proxy => $proxies[ $_ % 3 ] } } 0 .. 8;
my $look = zk_session($calm);
my %did;

sub one_of { return $_[ rand @_ ]; }

sub session
{
	my ($claimer) = @_;
	# one that had its answer before it was ended does not know of it yet
	delete $claimer->{session} if $claimer->{session} && $claimer->{session}->query('SELECT 1')->{closed};
	$claimer->{session} //= eval { zk_session_with($claimer->{node}, hosts => $claimer->{proxy}, session_timeout => '4s') };
	return $claimer->{session};
}

# Claims this period, and fails at random afterwards
sub start
{
	my ($claimer, $period) = @_;
	$claimer->{end} = one_of('COMMIT', 'COMMIT', 'COMMIT', 'COMMIT', 'ROLLBACK', 'INSERT INTO there VALUES (1), (1); COMMIT');
	$claimer->{session}->send(
		"BEGIN; INSERT INTO played SELECT $period, $claimer->{number} WHERE zk_claim('/t', to_timestamp($period), '20s') RETURNING 'mine'; $claimer->{end}");
	return;
}

# What happens to somebody, and whether that can leave a claim pending
my %event = (
	'' => [ sub { }, 0 ],
	cancel => [ sub { kill 'INT', one_of(@_)->{session}->pid }, 0 ],
	terminate => [ sub { kill 'TERM', one_of(@_)->{session}->pid }, 0 ],
	'cancel all' => [ sub { kill 'INT', map { $_->{session}->pid } @_ }, 0 ],
	'client gone' => [ sub { one_of(@_)->{session}->kill9 }, 0 ],
	drop => [ sub { one_of(@proxies)->drop }, 0 ],
	'lost mark' => [ sub { my $p = one_of(@proxies); $p->lose(one_of('swallowed and the connection cut', 'never asked for, the connection cut', 'swallowed'), 'mark') }, 0 ],
	'lost settle' => [ sub { my $p = one_of(@proxies); $p->lose(one_of('swallowed and the connection cut', 'never asked for, the connection cut', 'swallowed'), 'settle') }, 0 ],
	'terminate, cut off' => [ sub { my $c = one_of(@_); $c->{proxy}->cut_off; kill 'TERM', $c->{session}->pid }, 1 ],
	expire => [ sub { my @ids = map { @$_[0] } grep { $_->[2] eq '' } map { $_->sessions } @proxies; $zk->end_session(one_of(@ids)) if @ids }, 1 ],
	'kill -9' => [ sub { my $c = one_of(@_); zk_kill($c->{node}, $c->{session}->pid) }, 1 ]);

my (@twice, @skipped);
my ($period, $claims, $unclaimed, $gone_before) = (0, 0, 0, 0);
my $until = time + $SECONDS;
while (time < $until || $period < 10)
{
	$period++;
	$_->reset for @proxies;
	my @here = grep { session($_) } @claimers;
	start($_, $period) for @here;
	sleep rand 0.2;
	my $name = one_of(sort keys %event);
	my ($code, $gone) = @{ $event{$name} };
	$code->(@here);
	sleep rand 0.3;
	$_->reset for @proxies;

	my $told = 0;
	foreach my $claimer (@here)
	{
		my $session = $claimer->{session};
		my $result = $session->{psql} ? $session->wait : { closed => 1 };
		$told++ if !$result->{closed} && $result->{state} eq '' && $result->{out} !~ /mine/;
		next unless $result->{closed};
		$session->quit;
		delete $claimer->{session};
	}
	# who was terminated, or lost its client, may be about to end
	zk_until(sub { !zk_locks_left($zk) }, 'all to be over');
	my @who = map { split /\n/, $_->safe_psql('postgres', "SELECT who FROM played WHERE period = $period") } @nodes;
	my ($last, $state) = split /\|/, $look->value(q{SELECT extract(epoch FROM period)::int, state FROM zk_last_claim('/t')});
	$claims += @who;
	$did{$name}++;
	push @twice, "$period ($name): @who" if @who > 1;
	next if @who;
	$unclaimed++;
	push @skipped, "$period ($name): $told were told so, the last claim is $last $state"
	  if $told && !$gone && !($last == $period && $state eq 'pending');
}

note "$period periods, $claims claimed, $unclaimed not; ", join ', ', map { "$did{$_} x '$_'" } sort keys %did;
is_deeply(\@twice, [], 'no period is claimed twice');
is_deeply(\@skipped, [], 'and none is skipped');
cmp_ok($claims, '>', 0, 'some are claimed');

$_->reset for @proxies;
$_->{session} && $_->{session}->quit for @claimers;
$look->quit;
zk_nothing_left($zk, 'nothing is left', sessions => 0);
unlike(slurp_log($_), qr/PANIC:|TRAP:|signal 11|signal 6/, 'no backend has crashed by itself') for @nodes;
zk_no_crash($calm);
done_testing();

sub slurp_log { my ($node) = @_; return PostgreSQL::Test::Utils::slurp_file($node->logfile); }
