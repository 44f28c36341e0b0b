# For dev/test: prove(1), but with a count of the assertions, "passed failed".
#
#   perl dev/prove.pl JOBS VERBOSE PERL_LIBRARY COUNTS_FILE TEST...
#
# The failed files are listed in tmp_check/failed.

use strict;
use warnings;
use TAP::Harness;

my ($jobs, $verbose, $library, $counts, @tests) = @ARGV;

# A file that bails out has failed, and is no reason to leave out the others:
# they share nothing.
{
	package Harness;
	our @ISA = ('TAP::Harness');
	sub _bailout { return; }
}

my $harness = Harness->new(
	{   jobs => $jobs,
		verbosity => $verbose,
		timer => 1,
		color => 0,
		lib => [ $library, 't/lib' ]
	});
my $all = $harness->runtests(@tests);

my ($passed, $failed, @failed_files) = (0, 0);
foreach my $parser ($all->parsers(@tests))
{
	my $n = $parser->failed;
	# one that died, or did fewer than it planned, has failed too
	$n = 1 if !$n && $parser->has_problems;
	$passed += $parser->passed;
	$failed += $n;
}
foreach my $test (@tests)
{
	push @failed_files, $test if ($all->parsers($test))[0]->has_problems;
}

open my $file, '>', $counts or die "$counts: $!";
print $file "$passed $failed\n";
close $file or die "$counts: $!";
open $file, '>', 'tmp_check/failed' or die "tmp_check/failed: $!";
print $file map { "$_\n" } @failed_files;
close $file;
exit($failed ? 1 : 0);
