
=pod

=head1 NAME

Deadline - how long tests wait, and what they say about time

=head1 SYNOPSIS

  croak 'no answer' if time > $began + $TIMEOUT;

  in_time($result->{seconds}, 0.5, 'within connect_timeout');
  until_true(sub { -e $file }, 'the file');

=head1 DESCRIPTION

A test waits for a state, until C<$TIMEOUT> seconds are over: 180, or what
C<PG_TEST_TIMEOUT_DEFAULT> says.  That is there to notice what hangs, on however
slow a machine.

C<$MOMENT> is a part of that, where
more would hide a fault: a node that goes only because its session has expired.

That something happens B<soon> can be asserted only where nothing else runs.  So
C<in_time> does nothing, unless the list of words in C<PG_TEST_EXTRA> has
C<timing> in it.

F<dev/test> runs all tests without that, many at a time.  Each C<in_time> that did
nothing leaves word in the directory C<ZK_TIMED_DIR>.  Then, if C<timing> was asked
for, F<dev/test> runs those files again, one at a time, and only the subtests that
have such an assertion (C<ZK_TIMED_ONLY>).  What a file says at its end of all of
its subtests was judged before: it asks for C<$WHOLE>, and C<zk_nothing_left> does.

=cut

package Deadline;

use strict;
use warnings;
use Carp;
use Exporter qw(import);
use FindBin;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($TIMEOUT $MOMENT $TIMING $WHOLE in_time until_true);

our @CARP_NOT = qw(Zklock ZooKeeper ZkProxy);    # an error is their caller's

our $TIMEOUT = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;    # as PostgreSQL's own tests
our $MOMENT = $TIMEOUT / 12;    # less than what a test must not wait for, as the end of a session
our $TIMING = ($ENV{PG_TEST_EXTRA} // '') =~ /\btiming\b/;
our $WHOLE = !$ENV{ZK_TIMED_ONLY};    # else some subtests are left out

# a file for each test, with a line for each assertion: the subtest that it is in
my $list = defined $ENV{ZK_TIMED_DIR} ? "$ENV{ZK_TIMED_DIR}/$FindBin::Script" : undef;
our $top = '';    # the outermost subtest that runs

# One test: something took less than that, in seconds.
sub in_time
{
	my ($seconds, $limit, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return cmp_ok($seconds, '<', $limit, $name) if $TIMING;
	return 1 unless defined $list;
	open my $file, '>>', $list or die "$list: $!";
	print $file "$top\n";
	close $file or die "$list: $!";
	return 1;
}

# Wait until $code returns something true, and return that.  Dies when the time
# is over, so that nobody goes on with what did not happen.  Who has to wait long
# is asked less often: the question costs the machine more than the wait.
sub until_true
{
	my ($code, $what, $timeout) = @_;
	$timeout //= $TIMEOUT;
	my $began = time;
	while (1)
	{
		my $result = $code->();
		return $result if $result;
		my $waited = time - $began;
		croak "not within $timeout s: $what" if $waited > $timeout;
		sleep($waited < 0.05 ? 0.005 : $waited > 0.5 ? 0.05 : $waited / 10);
	}
}

my %only;
if (!$WHOLE && open my $file, '<', $list)    # none for a helper's process
{
	chomp(my @names = <$file>);
	%only = map { $_ => 1 } @names;
}

my $subtest = \&Test::Builder::subtest;
{
	no warnings 'redefine';
	*Test::Builder::subtest = sub {
		my ($self, $name) = @_;
		goto &$subtest if $top ne '';
		return 1 if !$WHOLE && !$only{$name};
		local $top = $name;
		local $Test::Builder::Level = $Test::Builder::Level + 1;
		return $subtest->(@_);
	};
}

1;
