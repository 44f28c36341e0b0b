
=pod

=head1 NAME

Torture::Log - the events of a run, one per line

=head1 DESCRIPTION

A line has these columns, separated by tabs:

  time     seconds since the run began, by one monotonic clock for all
  who      the worker's number, or "nemesis", "watchman", "listener0" ...
  op       number of the operation, or of the fault
  call     connect, backend (whose it is for a transaction), style, begin, lock, token, fence, read, look (as a reader), write,
           commit, rollback, unlock;
           hold: from the grant to the release or loss;
           fault: what the nemesis does;
           listen, heard: notifications;
           clock: what the machine's clock shows, by which servers stamp
  phase    invoked, ok, failed, unknown, hangs; begin, token, end; epoch
  object   number, 0 for none
  more     name=value ..., with special characters in a value written as %xx

All processes of a run write to one file, one line at a time.

=cut

package Torture::Log;

use strict;
use warnings;
use Fcntl qw(O_APPEND O_CREAT O_RDONLY O_WRONLY);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

sub new
{
	my ($class, $file) = @_;
	sysopen my $handle, $file, O_WRONLY | O_APPEND | O_CREAT or die "$file: $!";
	return bless { file => $file, handle => $handle, zero => clock_gettime(CLOCK_MONOTONIC) }, $class;
}

sub file { return $_[0]->{file}; }

# the current time of the log
sub now { return clock_gettime(CLOCK_MONOTONIC) - $_[0]->{zero}; }

sub write
{
	my ($self, $who, $op, $call, $phase, $object, %more) = @_;
	my @more;
	foreach my $name (sort keys %more)
	{
		my $value = $more{$name} // next;
		$value =~ s/([%\s])/sprintf '%%%02x', ord $1/ge;
		push @more, "$name=$value";
	}
	my $line = sprintf "%.6f\t%s\t%s\t%s\t%s\t%s\t%s\n", $self->now, $who, $op, $call, $phase, $object // 0, "@more";
	syswrite($self->{handle}, $line) == length $line or die "$self->{file}: $!";
	return;
}

# Torture::Log::each_event($file, sub { my ($time, $who, $op, $call, $phase, $object, $more) = @_; ... })
sub each_event
{
	my ($file, $code) = @_;
	open my $handle, '<', $file or die "$file: $!";
	while (my $line = <$handle>)
	{
		chomp $line;
		my ($time, $who, $op, $call, $phase, $object, $more) = split /\t/, $line, 7;
		my %more = map { split /=/, $_, 2 } split / /, $more // '';
		s/%([0-9a-f]{2})/chr hex $1/ge for values %more;
		$code->($time, $who, $op, $call, $phase, $object, \%more);
	}
	close $handle;
	return;
}

1;
