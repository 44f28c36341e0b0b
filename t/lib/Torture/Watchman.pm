
=pod

=head1 NAME

Torture::Watchman - notes in a torture test's log when the ensemble does not
serve, or nothing runs

=head1 DESCRIPTION

How long an election or the start of three servers takes is up to ZooKeeper and
the machine, and no waiter can get its lock during that time.  So a separate
process keeps asking for the cheapest operation that takes a quorum.  While no
server performs it, the log has a fault of the kind "outage".

A machine that stands still for a moment stops everybody, the watchman, too: one
that overslept by half a second or more is a fault of the kind "standstill".

=cut

package Torture::Watchman;

use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(sleep);

use ZkClient;

my ($NAP, $OVERSLEPT) = (0.3, 0.5);    # s

# Torture::Watchman->start($log, $ensemble)
sub start
{
	my ($class, $log, $ensemble) = @_;
	my $parent = $$;
	my $pid = fork // die "could not fork: $!";
	return bless { pid => $pid, owner => $$ }, $class if $pid;

	my $going = 1;
	$SIG{TERM} = sub { $going = 0 };
	$SIG{$_} = sub { POSIX::_exit(1) } for qw(INT HUP);
	my @hosts = map { $_->hosts } $ensemble->nodes;
	my ($number, $outage, $still) = (0, 0, 0);
	my $served = $log->now;
	my $tell = sub { $log->write('watchman', "outage$number", 'fault', $_[0], 0, kind => 'outage') };
	while ($going && getppid() == $parent)
	{
		my $at = $log->now;
		my $serves = _writes($hosts[0]);
		for (1 .. $#hosts)
		{
			last if $serves;
			push @hosts, shift @hosts;    # and stay with a server that does
			$serves = _writes($hosts[0]);
		}
		if ($serves)
		{
			$tell->('end') if $outage;
			($served, $outage) = ($at, 0);
		}
		elsif (!$outage)
		{
			($outage, $number) = (1, $number + 1);
			# the log is in order of time, except for this line
			$log->write('watchman', "outage$number", 'fault', 'begin', 0, kind => 'outage', since => sprintf '%.6f', $served);
		}
		my $asleep = $log->now;
		sleep $NAP;
		next if $log->now - $asleep < $NAP + $OVERSLEPT;
		$still++;
		$log->write('watchman', "standstill$still", 'fault', 'begin', 0, kind => 'standstill', since => sprintf '%.6f', $asleep);
		$log->write('watchman', "standstill$still", 'fault', 'end', 0, kind => 'standstill');
	}
	$tell->('end') if $outage;
	POSIX::_exit(0);
}

sub _writes
{
	my ($host) = @_;
	return eval {
		my $client = ZkClient->new($host, timeout => 0.5, session_timeout => 1000);
		# it changes nothing, and still goes through the quorum
		$client->delete('/no such node');
		$client->close;
		1;
	};
}

sub stop
{
	my ($self) = @_;
	return unless $self->{pid} && $self->{owner} == $$;
	kill 'TERM', $self->{pid};
	waitpid delete $self->{pid}, 0;
	return;
}

1;
