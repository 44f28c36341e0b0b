# For dev/test: prove(1), but with a count of the assertions, "passed failed".
#
#   perl dev/prove.pl JOBS VERBOSE PERL_LIBRARY COUNTS_FILE FAILURES_FILE SKIPPED_FILE TEST...
#
# The names of the failed tests go to FAILURES_FILE; what was skipped, and why, to
# SKIPPED_FILE.

use strict;
use warnings;
use File::Basename qw(dirname);
use TAP::Harness;

my ($jobs, $verbose, $library, $counts, $failures, $skips, @tests) = @ARGV;

# The longest come first, so that none of them is left at the end.  Those that
# compute are spread among those that wait.
my @long = map { "t/$_.pl" } qw(
  018_deadlocks 034_stop 024_refused 014_ensemble 022_outage 011_round_trips 040_sanitizers 074_queue 097_claims_lost 021_lost_answers 025_commit_guard
  095_single 094_claims 087_docs_zookeeper 078_acl
  063_semaphores 072_docs 062_hostile_server 073_tls 086_bench 056_edges 051_checker 027_fence 012_stress
  002_build 050_torture 010_two_clusters 081_docs_cron 076_session_view
  023_end_of_transaction 101_drop_in 060_random_programs 089_server_locks 077_credentials 052_peers_lost 053_peers_queue
  093_docs_troubleshooting 096_docs_programs 102_drop_in_programs);
my %rank = map { $long[$_] => $_ } 0 .. $#long;
@tests = sort { ($rank{$a} // @long) <=> ($rank{$b} // @long) || $a cmp $b } @tests if $jobs > 1;

# A file that bails out has failed, but the others can go on: they share
# nothing.
{
	package Harness;
	our @ISA = ('TAP::Harness');
	sub _bailout { return; }
}

# What a test says to its maintainer, told when it has ended.  (TAP::Harness would read it
# at once, and after that wait for the next line of that test's results, while no other
# test is begun; with "merge" it reads nothing else than results.)
sub said { my ($test) = @_; return dirname($counts) . '/' . $test =~ tr{/}{_}r . '.stderr'; }

sub show_said
{
	my ($test) = @_;
	open my $file, '<', said($test) or return;
	print STDERR <$file>;
	close $file;
	unlink said($test);
	return;
}

# The parser knows nothing of subtests, whose results are indented
my %skipped;
sub note_skipped
{
	my ($test, $result) = @_;
	$skipped{"$test: $1"} = 1 if $result->raw =~ /^\s*(?:ok\b.*|1\.\.0) # skip\w* (.+)/i;
	return;
}

my $harness = Harness->new(
	{   jobs => $jobs,
		verbosity => $verbose,
		timer => 1,
		color => 0,
		merge => 1,
		exec => sub { return [ 'sh', '-c', 'exec "$@" 2>"$0"', said($_[1]), $^X, '-I', $library, '-I', 't/lib', $_[1] ]; },
		callbacks => {
			made_parser => sub { my ($parser, $test) = @_; $parser->callback(ALL => sub { note_skipped($test->[0], $_[0]); }); },
			after_test => sub { show_said($_[0][0]); }
		}
	});
my $all = $harness->runtests(@tests);

sub write_file
{
	my ($name, @lines) = @_;
	open my $file, '>', $name or die "$name: $!";
	print $file map { "$_\n" } @lines;
	close $file or die "$name: $!";
	return;
}

my ($passed, $failed, @failed_files) = (0, 0);
foreach my $test (@tests)
{
	my ($parser) = $all->parsers($test);
	my ($p, $f) = (scalar $parser->passed, scalar $parser->failed);
	# one that died, or ran fewer tests than planned, has failed too
	$f = 1 if !$f && $parser->has_problems;
	$passed += $p;
	$failed += $f;
	push @failed_files, $test if $f;
}

write_file($counts, "$passed $failed");
write_file($failures, @failed_files);
write_file($skips, sort keys %skipped);
exit($failed ? 1 : 0);
