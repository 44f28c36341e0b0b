# Each mutant of zklock (lib/Torture/Mutants.pm) is convicted by a torture test, by the
# name of the violation, and the real thing is not in the same run; or by subtests of
# another file, which fail.
#
# That the table fits the sources is tested always, and one of its mutants, which the
# seed chooses among those that are convicted soon and without fail.  All of them take
# some minutes: PG_TEST_EXTRA=mutants, or dev/mutants.
#
# ZK_MUTANTS: the names of some, instead of all; MUTANT_SEED: of the choice

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(uniq);

use Tests;
use Torture::Mutants;
use Torture::Trial;

is(join("\n", Torture::Mutants::complaints("$FindBin::RealBin/..", @Torture::Checker::KINDS)), '', 'all mutants fit the sources');

my @mutants = @Torture::Mutants::MUTANTS;
my $all = ($ENV{PG_TEST_EXTRA} // '') =~ /\bmutants\b/;
if ($ENV{ZK_MUTANTS}) { @mutants = map { Torture::Mutants::named($_) } split ' ', $ENV{ZK_MUTANTS}; }
elsif (!$all)
{
	my $seed = $ENV{MUTANT_SEED} || 1 + int rand 1_000_000;
	my @sure = grep { $_->{test} || $Torture::Mutants::SURE{ $_->{scene} } } @mutants;
	srand $seed;
	@mutants = $sure[ rand @sure ];
	srand;
	diag("MUTANT_SEED=$seed chooses $mutants[0]{name}; for all of them: dev/mutants");
}

# What a run has said is of interest if the test fails
sub figures { my ($run) = @_; return diag($run->figures . 'the log: ' . $run->log_file); }

foreach my $mutant (@mutants)
{
	my $began = time;
	if ($mutant->{test})
	{
		my $failed = Torture::Trial::failed($mutant);
		isnt($failed, '', "$mutant->{name} is convicted by t/$mutant->{test}[0].pl");
		diag(sprintf '%s: %s, in %.0f s', $mutant->{name}, $failed, time - $began);
		is(Torture::Trial::failed($mutant, real => 1), '', 'the real thing is not') if $all;
		next;
	}
	my $run = Torture::Trial::of($mutant);
	my %found = Torture::Trial::convicted($run, $mutant);
	my $found = join ', ', map { "$_ $found{$_}" } sort keys %found;
	isnt($found, '', "$mutant->{name} is convicted") or figures($run);
	diag(sprintf '%s: %s, in %.0f s, seed %d', $mutant->{name}, $found, time - $began, $run->{seed});
}

foreach my $scene ($all ? uniq(map { $_->{scene} // () } @mutants) : ())
{
	my $began = time;
	my $run = Torture::Trial::of_real_thing($scene);
	is(zk_few(map { "@$_" } $run->violations), '', "the real thing is not, in the scene $scene") or figures($run);
	cmp_ok(scalar(my @holds = $run->{checker}->holds), '>=', 5, 'which has enough holds');
	diag(sprintf 'the real thing in the scene %s: %d holds, in %.0f s, seed %d', $scene, scalar @holds, time - $began, $run->{seed});
}

done_testing();
