
=pod

=head1 NAME

Peer - the lock of kazoo or Curator, or a program of the documentation, in a process of its own

=head1 SYNOPSIS

  my $peer = Peer->new(curator => $zk, session_timeout => 2000);
  my $token = $peer->acquire('/zklock/a');       # dies if it does not get it
  $peer->ask('release /zklock/a');               # 'ok'

  $peer->send('acquire /zklock/a -1');           # returns at once
  ... until $peer->is_done ...
  $peer->wait;                                   # 'ok 4294967301'

  $peer->kill9; $peer->quit;

  my $program = Peer->program(node => [ 'node', $file ]);

=head1 DESCRIPTION

F<t/peers/locker> describes the commands.  Paths are those of ZooKeeper: for a
lock of zklock, the one below C<zklock.root>.

Every wait has a deadline and dies when it has passed.  The process ends with
the one that started it, in whatever way that ends.

=cut

package Peer;

use strict;
use warnings;
use Carp;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use Time::HiRes qw(time);

use parent 'Child';
use Deadline;

my $locker = abs_path(dirname(__FILE__) . '/../peers') . '/locker';

# Peer->new($kind, $hosts, %opt): $kind is kazoo or curator; $hosts is a list in
# the form that clients take, or an object with "hosts".
#   session_timeout    ms; default 10000
#   log                file for the library's log; default: discarded
#   root               directory with the usr/ of newer libraries
#   no_wait            return before it is connected; wait returns 'ready'
sub new
{
	my ($class, $kind, $hosts, %opt) = @_;
	$hosts = $hosts->hosts if ref $hosts;
	return $class->program(
		$kind, [ $locker, $kind, $hosts, $opt{session_timeout} // 10_000 ],
		%opt, env => { PEERS_ROOT => $opt{root} // '' });
}

# Peer->program($name, \@command, %opt): any other program that answers each line with
# a line, and says "ready" first.  Further options: env, additions to its environment
sub program
{
	my ($class, $kind, $command, %opt) = @_;
	my $self = $class->talks($command, err => $opt{log}, env => $opt{env});
	@$self{qw(kind asked)} = ($kind, 'to start');
	return $self if $opt{no_wait};
	my $answer = $self->wait($TIMEOUT);
	croak "$kind: $answer" if $answer ne 'ready';
	return $self;
}

# Whether this library is there
sub installed
{
	my ($kind) = @_;
	return -e '/usr/share/java/curator-recipes.jar' && system('command -v java >/dev/null') == 0 if $kind eq 'curator';
	return system('/usr/bin/python3', '-c', 'import importlib.util, sys; sys.exit(importlib.util.find_spec("kazoo") is None)') == 0;
}

sub kind { return $_[0]->{kind}; }
sub pid { return $_[0]->{pid}; }

# Send a command; wait returns the answer.
sub send
{
	my ($self, $line) = @_;
	croak "it has not answered yet: $self->{asked}" if defined $self->{asked};
	$self->{asked} = $line;
	$self->say($line);    # if it is gone, wait will notice
	return $self;
}

# Whether it has answered
sub is_done { my ($self) = @_; return !defined $self->{asked} || defined $self->_answer(0); }

sub _answer
{
	my ($self, $deadline) = @_;
	return $self->{answer} if defined $self->{answer};
	$self->{answer} = eval { $self->line($deadline) };
	croak "$self->{kind} has ended; asked: $self->{asked}" if $@;
	return $self->{answer};
}

sub wait
{
	my ($self, $timeout) = @_;
	$timeout //= $TIMEOUT;
	croak 'nothing was asked' unless defined $self->{asked};
	$self->_answer(time + $timeout) // croak "$self->{kind}: no answer within $timeout s: $self->{asked}";
	delete $self->{asked};
	return delete $self->{answer};
}

sub ask
{
	my ($self, $line, $timeout) = @_;
	return $self->send($line)->wait($timeout);
}

# Acquire the lock, and return its token.
sub acquire
{
	my ($self, $path, $timeout) = @_;
	$timeout //= $TIMEOUT;
	return $self->acquired($self->ask("acquire $path " . int($timeout * 1000), $timeout + $TIMEOUT));
}

# Returns the token in such an answer; dies if it is any other answer.
sub acquired
{
	my ($self, $answer) = @_;
	return ($answer =~ /^ok (\d+)$/)[0] // croak "$self->{kind} did not get the lock: $answer";
}

# A crash: its ZooKeeper session stays until it expires.
sub kill9 { my ($self) = @_; Child::kill9(delete $self->{pid}) if $self->{pid}; return; }

# Exit cleanly: its session is closed when this returns.
sub quit
{
	my ($self, $timeout) = @_;
	return unless $self->{pid};
	$self->say('quit');
	Child::ended($self->{pid}, $timeout) or croak "$self->{kind} does not end";
	delete $self->{pid};
	return;
}

1;
