
=pod

=head1 NAME

Deadline - how long tests wait, and what they assert about time

=head1 SYNOPSIS

  croak 'no answer' if time > $began + $TIMEOUT;

  in_time($result->{seconds}, 0.5, 'within connect_timeout');
  until_true(sub { -e $file }, 'the file');

=head1 DESCRIPTION

A test waits for a state for at most C<$TIMEOUT> seconds: 180, or the value of
C<PG_TEST_TIMEOUT_DEFAULT>.  The limit only catches what hangs, so it is
generous enough for a slow machine.

C<$MOMENT> is a fraction of that, for waits where more would hide a fault: for
example, a node that goes only because its session has expired.

That something happens B<soon> can be asserted only on an idle machine.  So
C<in_time> does nothing unless C<PG_TEST_EXTRA>, a list of words, contains
C<timing>.

F<dev/test> runs all tests without it, several at a time.  Each C<in_time> that
did nothing is recorded in the directory C<ZK_TIMED_DIR>.  Then, if C<timing>
was asked for, F<dev/test> runs those files again, one at a time, and only the
subtests with such an assertion (C<ZK_TIMED_ONLY>).  What a file asserts at its
end about all of its subtests was tested before: it checks C<$WHOLE>, as
C<zk_nothing_left> does.

=cut

package Deadline;

use strict;
use warnings;
use Carp;
use Exporter qw(import);
use FindBin;
use Time::HiRes qw(sleep time);

# A proxy tests nothing, and half of its start would be this.
BEGIN
{
	if (!$ZkProxy::is_one) { require Test::More; Test::More->import; }
}

our @EXPORT = qw($TIMEOUT $MOMENT $TIMING $WHOLE in_time until_true);

our @CARP_NOT = qw(Zklock ZooKeeper ZkProxy);    # report errors from the caller's perspective

our $TIMEOUT = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;    # as in PostgreSQL's own tests
our $MOMENT = $TIMEOUT / 12;    # shorter than the end of a session, which a test must not wait for
our $TIMING = ($ENV{PG_TEST_EXTRA} // '') =~ /\btiming\b/;
our $WHOLE = !$ENV{ZK_TIMED_ONLY};    # otherwise some subtests are skipped

# one file for each test, with one line for each assertion: its subtest
my $list = defined $ENV{ZK_TIMED_DIR} ? "$ENV{ZK_TIMED_DIR}/$FindBin::Script" : undef;
our $top = '';    # the outermost subtest that is running

# While somebody waits: name => what was opened for a look, and is kept for the next
our $kept;

# One test: something took less than $limit seconds.
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

# Wait until $code returns something true, and return that.  Dies at the
# deadline, so that nobody goes on from what did not happen.  The longer the
# wait, the rarer the calls: the question costs the machine more than the wait.
sub until_true
{
	my ($code, $what, $timeout) = @_;
	$timeout //= $TIMEOUT;
	my $began = time;
	local $kept = $kept // bless {}, 'Deadline::Kept';
	while (1)
	{
		my $result = $code->();
		return $result if $result;
		my $waited = time - $began;
		croak "not within $timeout s: $what" if $waited > $timeout;
		sleep($waited < 0.02 ? 0.005 : $waited < 0.2 ? $waited / 4 : $waited < 0.4 ? 0.05 : $waited < 1.6 ? $waited / 8 : 0.2);
	}
}

# When the wait is over, however it ended
sub Deadline::Kept::DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);
	eval { $_->close } foreach values %$self;
	return;
}

my %only;
if (!$WHOLE && open my $file, '<', $list)    # a helper process has none
{
	chomp(my @names = <$file>);
	%only = map { $_ => 1 } @names;
}

my $subtest = \&Test::Builder::subtest;
if (!$ZkProxy::is_one)
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
