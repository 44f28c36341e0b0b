
=pod

=head1 NAME

Torture::Listener - notes in a torture test's log which notifications arrive

=head1 DESCRIPTION

A process that listens in one cluster, and connects again when that has failed.  The
log has from when until when it certainly listened ("listen"), and each payload that it
was told ("heard"), which is the number of the operation that notified.

=cut

package Torture::Listener;

use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(sleep);

use Zklock;

my $NAP = 0.1;    # s

# Torture::Listener->start($log, $node, $cluster)
sub start
{
	my ($class, $log, $node, $cluster) = @_;
	my $parent = $$;
	my $pid = fork // die "could not fork: $!";
	return bless { pid => $pid, owner => $$ }, $class if $pid;

	my $going = 1;
	$SIG{TERM} = sub { $going = 0 };
	$SIG{$_} = sub { POSIX::_exit(1) } for qw(INT HUP);
	local $ENV{PGAPPNAME} = "listener $cluster";
	my ($session, $since, $until);
	my $write = sub { $log->write("listener$cluster", $_[0], @_[ 1, 2 ], 0, cluster => $cluster, @_[ 3 .. $#_ ]) };
	my $over = sub { $write->(0, 'listen', 'end', since => $since, until => $until) if defined $until; undef $until; };
	while ($going && getppid() == $parent)
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
		sleep $NAP;
	}
	$over->();
	$session->kill9 if $session;
	POSIX::_exit(0);
}

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	kill 'TERM', $pid;
	waitpid $pid, 0;
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);
	$self->stop if $self->{owner} == $$;
	return;
}

1;
