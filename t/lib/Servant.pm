
=pod

=head1 NAME

Servant - a separate process that does what a test tells it

=head1 SYNOPSIS

  package Thing;
  our @ISA = ('Servant');
  sub new { my ($class, @args) = @_; return $class->_spawn('Thing', @args); }
  sub work { return $_[0]->_do('work'); }

  #   # in that process: each line on descriptor 0 is a command, and gets an answer
  sub Thing::Server::main { my @args = @_; ... Servant::reply($control, $text); ... }

=head1 DESCRIPTION

This is what ZkProxy and TcpLinks share.  The process ends with the one that
made it, in whatever way that ends: it then reads EOF on its control socket.

=cut

package Servant;

use strict;
use warnings;
use Carp;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IO::Select;
use POSIX ();
use Socket;
use Time::HiRes qw(time);

use Child;
use Deadline;

my $lib = abs_path(dirname(__FILE__));

# Returns an object whose process runs <module>::Server::main(@args).  That
# replies once without being asked, when it is ready: see _answer.
sub _spawn
{
	my ($class, $module, @args) = @_;
	socketpair(my $mine, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC)
	  or die "socketpair: $!";
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		# A fresh interpreter has neither the test's END blocks and open files
		# nor the handles that a test framework has tied.
		POSIX::setsid();
		POSIX::dup2(fileno $theirs, 0);
		POSIX::dup2(POSIX::open('/dev/null', POSIX::O_WRONLY()), 1);
		$SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
		{
			no warnings 'exec';
			exec $^X, '-I', $lib, '-e', "BEGIN { \$Servant::is_one = 1; } use $module; ${module}::Server::main(\@ARGV)", @args;
		}
		POSIX::_exit(127);
	}
	close $theirs;
	Child::remember($pid);
	return bless { pid => $pid, control => $mine, buffer => '' }, $class;
}

# Send a command and return its answer: a line with the length, then that many
# bytes.
sub _do
{
	my ($self, $command) = @_;
	my $sent;
	{
		local $SIG{PIPE} = 'IGNORE';
		$sent = syswrite $self->{control}, "$command\n";
	}
	return $self->_answer($command) if $sent;
	croak ref($self) . ": $command: the process is gone";
}

sub _answer
{
	my ($self, $command) = @_;
	my $who = ref $self;
	my $deadline = time + $TIMEOUT;
	my $select = IO::Select->new($self->{control});
	while (1)
	{
		if ($self->{buffer} =~ /^(\d+)\n/ && length $self->{buffer} >= length($1) + 1 + $1)
		{
			my $answer = substr $self->{buffer}, length($1) + 1, $1;
			$self->{buffer} = '';
			croak "$who: $command: $1" if $answer =~ /^ERROR (.*)/s;
			return $answer;
		}
		my $left = $deadline - time;
		croak "$who: $command: no answer" if $left <= 0;
		next unless $select->can_read($left);    # interrupted by SIGCHLD
		sysread $self->{control}, $self->{buffer}, 1 << 20, length $self->{buffer}
		  or croak "$who: $command: the process is gone";
	}
}

sub stop
{
	my ($self) = @_;
	return unless $self->{pid};
	close $self->{control};    # which ends the process
	waitpid $self->{pid}, 0;
	Child::forget(delete $self->{pid});
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);
	$self->stop if Child::is_ours($self->{pid});
	return;
}

# ----------------------------------------------- the side of that process

sub reply
{
	my ($control, $answer) = @_;
	$control->blocking(1);
	my $bytes = length($answer) . "\n$answer";
	while (length $bytes)
	{
		my $n = syswrite $control, $bytes or POSIX::_exit(0);
		substr $bytes, 0, $n, '';
	}
	return;
}

1;
