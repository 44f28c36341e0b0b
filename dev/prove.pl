# For dev/test: prove(1), but with a count of the assertions, "passed failed".
#
#   perl dev/prove.pl JOBS VERBOSE PERL_LIBRARY COUNTS_FILE FAILURES_FILE TEST...
#
# The names of those that failed are listed in FAILURES_FILE.

use strict;
use warnings;
use TAP::Harness;

my ($jobs, $verbose, $library, $counts, $failures, @tests) = @ARGV;

# The longest first, so that none of them is left in the end.  The others are as
# short as need be.
my @long = map { "t/$_.pl" } qw();
my %rank = map { $long[$_] => $_ } 0 .. $#long;
@tests = sort { ($rank{$a} // @long) <=> ($rank{$b} // @long) || $a cmp $b } @tests if $jobs > 1;

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
foreach my $test (@tests)
{
	my ($parser) = $all->parsers($test);
	my ($p, $f) = (scalar $parser->passed, scalar $parser->failed);
	# one that died, or did fewer than it planned, has failed too
	$f = 1 if !$f && $parser->has_problems;
	$passed += $p;
	$failed += $f;
	push @failed_files, $test if $f;
}

open my $file, '>', $counts or die "$counts: $!";
print $file "$passed $failed\n";
close $file or die "$counts: $!";
open $file, '>', $failures or die "$failures: $!";
print $file map { "$_\n" } @failed_files;
close $file;
exit($failed ? 1 : 0);
