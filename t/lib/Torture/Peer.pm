
=pod

=head1 NAME

Torture::Peer - a lock of another client, held by a process beside the worker

=head1 SYNOPSIS

  my $peer = Torture::Peer->new('t/peers/locker', 'kazoo', $hosts, 2000);
  my ($token, $why) = $peer->acquire('/zklock/a', 5000);
  my $why = $peer->release('/zklock/a');    # undef: done
  $peer->quit;

=head1 DESCRIPTION

The process says "ready", and then answers lines with lines:

  acquire PATH TIMEOUT_MS    ok TOKEN | timeout | error TEXT
  release PATH               ok | error TEXT
  quit

One that does not answer, or has gone, is started anew at the next acquire.

=cut

package Torture::Peer;

use strict;
use warnings;
use IO::Select;
use POSIX ();
use Time::HiRes qw(time);

our $TIMEOUT = 60;

sub new
{
	my ($class, @command) = @_;
	return bless { command => \@command }, $class;
}

sub pid { return $_[0]->{pid}; }

sub _start
{
	my ($self) = @_;
	pipe(my $their_in, my $in) or die "pipe: $!";
	pipe(my $out, my $their_out) or die "pipe: $!";
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		POSIX::dup2(fileno $their_in, 0);
		POSIX::dup2(fileno $their_out, 1);
		$SIG{$_} = 'DEFAULT' for qw(INT TERM HUP PIPE);
		# it must not outlive the worker, nor be found by its name alone
		{ no warnings 'exec'; exec 'setpriv', '--pdeathsig', 'KILL', @{ $self->{command} }; }
		POSIX::_exit(127);
	}
	@$self{qw(pid in out text)} = ($pid, $in, $out, '');
	my $first = $self->_line;
	return 1 if $first eq 'ready';
	$self->_gone;
	return 0;
}

# '' when there is none in time, or will never be
sub _line
{
	my ($self) = @_;
	my $deadline = time + $TIMEOUT;
	until ($self->{text} =~ s/^(.*)\n//)
	{
		my $left = $deadline - time;
		return '' if $left <= 0 || !IO::Select->new($self->{out})->can_read($left);
		sysread $self->{out}, $self->{text}, 65536, length $self->{text} or return '';
	}
	return $1;
}

sub _ask
{
	my ($self, $line) = @_;
	return 'error it does not start' unless $self->{pid} || $self->_start;
	local $SIG{PIPE} = 'IGNORE';
	my $answer = syswrite($self->{in}, "$line\n") ? $self->_line : '';
	return $answer if $answer ne '';
	$self->_gone;
	return 'error it has gone';
}

sub _gone
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

# (token), or (undef, why not)
sub acquire
{
	my ($self, $path, $ms) = @_;
	my $answer = $self->_ask("acquire $path $ms");
	return $answer =~ /^ok(?: (\d+))?$/ ? ($1 // 0) : (undef, $answer);
}

sub release
{
	my ($self, $path) = @_;
	return 'it has gone' unless $self->{pid};
	my $answer = $self->_ask("release $path");
	return $answer eq 'ok' ? undef : $answer;
}

sub quit
{
	my ($self) = @_;
	return unless $self->{pid};
	local $SIG{PIPE} = 'IGNORE';
	syswrite $self->{in}, "quit\n";
	# it closes its end when it is done
	my $deadline = time + 10;
	while (time < $deadline)
	{
		IO::Select->new($self->{out})->can_read($deadline - time) or last;
		sysread $self->{out}, $self->{text}, 65536 or last;
	}
	$self->_gone;
	return;
}

1;
