
=pod

=head1 NAME

Torture::Trial - runs a mutant, or the real thing, in the scene that shows the mutant

=head1 SYNOPSIS

  my $run = Torture::Trial::of(Torture::Mutants::named('grants_always'));
  my @found = Torture::Trial::convicted($run, $mutant);   # of these kinds of violations

  my $run = Torture::Trial::of_real_thing('crowd');       # in that scene

  my $failed = Torture::Trial::failed($mutant);           # what of its test has; or ''
  my $failed = Torture::Trial::failed($mutant, real => 1);    # the same of the real thing

=head1 DESCRIPTION

The real thing is what is installed.  A mutant is built from a copy of the sources,
with the objects that are there, so that only the file that has changed is compiled,
and installed in a copy of PostgreSQL: that one finds its files relative to its
programs, and consists of links where the file system allows them.

=cut

package Torture::Trial;

use strict;
use warnings;
use Cwd qw(abs_path);
use FindBin;
use File::Path qw(make_path);

use PostgreSQL::Test::Utils;

use Deadline;
use Torture;
use Torture::Mutants;

my $root = abs_path("$FindBin::RealBin/..");
my $runs = 0;

sub _pg_config
{
	my ($what) = @_;
	chomp(my $value = `${\($ENV{PG_CONFIG} || 'pg_config')} --$what`);
	$? == 0 && $value ne '' or die "pg_config --$what failed\n";
	return $value;
}

sub _must { my (@command) = @_; system(@command) == 0 or die "could not run: @command\n"; return; }

# Where PostgreSQL with this mutant is installed
sub _install
{
	my ($mutant) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	_must('cp', '-a', map({ "$root/$_" } qw(Makefile zklock.control src)), $dir);
	Torture::Mutants::mutate($mutant, $dir);
	my $said = `make -s -C $dir PG_CONFIG=${\($ENV{PG_CONFIG} || 'pg_config')} COPT='${\($ENV{COPT} // '')} -Wno-error' zklock.so 2>&1`;
	$? == 0 or die "mutant $mutant->{name} does not compile:\n$said\n";

	my $pg = "$dir/pg";
	my ($bin, $lib) = map { _pg_config($_) } qw(bindir pkglibdir);
	foreach my $from ($bin, $lib, _pg_config('sharedir'))
	{
		make_path($pg . ($from =~ s{/[^/]+$}{}r));
		next if system("cp -al $from $pg$from 2>/dev/null") == 0;
		_must('rm', '-rf', "$pg$from");
		_must('cp', '-a', $from, "$pg$from");
	}
	unlink "$pg$lib/zklock.so";
	_must('cp', "$dir/zklock.so", "$pg$lib/zklock.so");
	return $pg . ($bin =~ s{/bin$}{}r);
}

sub _run { return Torture->new(@_, name => ++$runs)->execute; }

sub of { my ($mutant, %opt) = @_; return _run(Torture::Mutants::options($mutant->{scene}), installation => _install($mutant), %opt); }
sub of_real_thing { my ($scene, %opt) = @_; return _run(Torture::Mutants::options($scene), %opt); }

# Runs the subtests that are to convict this mutant, in a process of their own, with the
# files of the servers in a place of their own.  Returns the first line that says what
# has failed, or '' if nothing has.
sub failed
{
	my ($mutant, %opt) = @_;
	my ($test, @subtests) = @{ $mutant->{test} };
	my $dir = PostgreSQL::Test::Utils::tempdir();
	local @ENV{qw(TESTDIR TESTDATADIR TESTLOGDIR ZK_TIMED_DIR)} = ($dir, "$dir/tmp_check", "$dir/tmp_check/log", "$dir/only");
	local @ENV{qw(ZK_TIMED_ONLY PG_TEST_EXTRA)} = ('yes', '');
	local $ENV{PG_TEST_TIMEOUT_DEFAULT} = $opt{real} ? $TIMEOUT : $TIMEOUT / 6;    # nobody should wait long for what is broken
	local $ENV{ZK_INSTALLATION} = $opt{real} ? undef : _install($mutant);
	make_path(@ENV{qw(TESTLOGDIR ZK_TIMED_DIR)});
	open my $only, '>', "$ENV{ZK_TIMED_DIR}/$test.pl" or die "$ENV{ZK_TIMED_DIR}: $!";
	print $only map { "$_\n" } @subtests;
	close $only or die "$ENV{ZK_TIMED_DIR}: $!";
	open my $from, '-|', 'sh', '-c', 'exec "$@" 2>&1', 'sh', $^X, (map { ('-I', $_) } @INC), "$root/t/$test.pl" or die "$test: $!";
	my @said = <$from>;
	my $done = close $from;
	my $ran = grep { my $name = $_; grep { /^# Subtest: \Q$name\E$/ } @said } @subtests;
	die "t/$test.pl did not run:\n", @said if $ran < @subtests;
	my ($line) = grep { /^\s*not ok|^not within/ } @said;
	chomp($line //= 'it died') if !$done;
	return $done ? '' : $line =~ s/^\s+//r;
}

# The violations of this run that convict the mutant: kind => how many
sub convicted
{
	my ($run, $mutant) = @_;
	my %found;
	$found{ $_->[0] }++ for $run->violations;
	return map { $found{$_} ? ($_ => $found{$_}) : () } @{ $mutant->{convicted} };
}

1;
