
=pod

=head1 NAME

Torture::Witness - processes that note in a torture test's log what happens to everybody

=head1 SYNOPSIS

  my @witnesses = (Torture::Witness->watchman($log, $ensemble), map { Torture::Witness->listener($log, $node[$_], $_) } 0, 1);
  $_->stop for @witnesses;

=head1 DESCRIPTION

The watchman notes when the ensemble does not serve, or nothing runs.  How long an
election or the start of three servers takes is up to ZooKeeper and the machine, and no
waiter can get its lock during that time.  So it keeps asking for the cheapest operation
that takes a quorum.  While no server performs it, the log has a fault of the kind
"outage".  A machine that stands still for a moment stops everybody, the watchman, too:
one that overslept by half a second or more is a fault of the kind "standstill".

A listener listens in one cluster, and connects again when that has failed.  The log has
from when until when it certainly listened ("listen"), and each payload that it was told
("heard"), which is the number of the operation that notified.

=cut

package Torture::Witness;

use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(sleep);

use Child;
use ZkClient;
use Zklock;

my ($NAP, $OVERSLEPT) = (0.3, 0.5);    # s

# A process in which $code runs until the function that it gets returns false
sub _start
{
	my ($class, $code) = @_;
	my $parent = $$;
	my $pid = fork // die "could not fork: $!";
	if ($pid)
	{
		Child::remember($pid);
		return bless { pid => $pid }, $class;
	}

	my $going = 1;
	$SIG{TERM} = sub { $going = 0 };
	$SIG{$_} = sub { POSIX::_exit(1) } for qw(INT HUP);
	$code->(sub { return $going && getppid() == $parent; });
	POSIX::_exit(0);
}

sub stop
{
	my ($self) = @_;
	kill 'TERM', $self->{pid};
	waitpid $self->{pid}, 0;
	Child::forget($self->{pid});
	return;
}

sub watchman
{
	my ($class, $log, $ensemble) = @_;
	my @hosts = map { $_->hosts } $ensemble->nodes;
	my ($number, $outage, $still) = (0, 0, 0);
	my $served = $log->now;
	my $fault = sub { my ($name, $phase, @since) = @_; $log->write('watchman', $name, 'fault', $phase, 0, kind => $name =~ s/\d+//r, @since); };
	return $class->_start(
		sub {
			my ($going) = @_;
			while ($going->())
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
					$fault->("outage$number", 'end') if $outage;
					($served, $outage) = ($at, 0);
				}
				elsif (!$outage)
				{
					($outage, $number) = (1, $number + 1);
					# the log is in order of time, except for this line
					$fault->("outage$number", 'begin', since => sprintf '%.6f', $served);
				}
				my $asleep = $log->now;
				sleep $NAP;
				next if $log->now - $asleep < $NAP + $OVERSLEPT;
				$still++;
				$fault->("standstill$still", 'begin', since => sprintf '%.6f', $asleep);
				$fault->("standstill$still", 'end');
			}
			$fault->("outage$number", 'end') if $outage;
		});
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

sub listener
{
	my ($class, $log, $node, $cluster) = @_;
	local $ENV{PGAPPNAME} = "listener $cluster";
	my ($session, $since, $until);
	my $write = sub { $log->write("listener$cluster", $_[0], @_[ 1, 2 ], 0, cluster => $cluster, @_[ 3 .. $#_ ]) };
	my $over = sub { $write->(0, 'listen', 'end', since => $since, until => $until) if defined $until; undef $until; };
	return $class->_start(
		sub {
			my ($going) = @_;
			while ($going->())
			{
				$session //= eval {
					my $new = zk_session($node);
					$new->value('LISTEN torture');
					$since = $log->now;
					$new;
				};
				my $asked = $log->now;
				my $result = $session && eval { $session->query('SELECT 1', 30) };
				if ($result && !$result->{closed} && !$result->{state})
				{
					$until = $asked;
					$write->($_, 'heard', 'ok') for $result->{out} =~ /^Asynchronous notification "torture" with payload "(\d+)"/mg;
				}
				elsif ($session)
				{
					$session->kill9;
					undef $session;
					$over->();
				}
				sleep 0.1;
			}
			$over->();
			$session->kill9 if $session;
		});
}

1;
