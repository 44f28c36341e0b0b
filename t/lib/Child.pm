
=pod

=head1 NAME

Child - processes that end with the one that started them

=head1 SYNOPSIS

  my ($pid, $to, $from) = Child::spawn([ $program, @arguments ], err => $file, env => { A => 1 });
                              # its standard input and output; remembered, see below

  Child::remember($pid);      # after fork; killed when we end, in whatever way
  Child::forget($pid);        # it has exited
  Child::is_ours($pid);       # started by this process, not by the one that forked it

  Child::ended($pid, 10) or Child::kill9($pid);    # and forgotten

  my $child = Child->talks([ $program ]);          # line by line; it ends with the object
  $child->say('hello');                            # false: it is gone
  $child->line(time + 10);                         # undef: not in time

  my ($address, $pid) = Child::serve(sub { ... });    # a server that ends with us

  Child::suspend(@pids);      # any processes, also of others: returns when all their threads are stopped
  Child::is_suspended($pid)

=cut

package Child;

use strict;
use warnings;
use Carp;
use IO::Handle;
use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(sleep time);

use Deadline;

my %started;    # pid => pid of the process that started it

sub remember { $started{ $_[0] } = $$; return; }
sub forget { delete $started{ $_[0] }; return; }
sub is_ours { my ($pid) = @_; return ($started{ $pid // 0 } // 0) == $$; }

# Whether it has ended within that time
sub ended
{
	my ($pid, $timeout) = @_;
	my $deadline = time + ($timeout // $TIMEOUT);
	while (waitpid($pid, POSIX::WNOHANG()) == 0)
	{
		return 0 if time > $deadline;
		sleep 0.002;
	}
	forget($pid);
	return 1;
}

sub kill9
{
	my ($pid) = @_;
	kill 'KILL', $pid;
	waitpid $pid, 0;
	forget($pid);
	return;
}

# A busy machine takes its time: a thread that sleeps goes on until another one of its
# process has run.
sub suspend
{
	my (@pids) = @_;
	kill 'STOP', @pids;
	until_true(sub { !grep { !is_suspended($_) } @pids }, 'all threads to stop');
	return;
}

sub is_suspended
{
	my ($pid) = @_;
	foreach my $name (glob "/proc/$pid/task/*/stat")
	{
		open my $file, '<', $name or next;
		return 0 unless (<$file> // '') =~ /.*\) T /;
	}
	return 1;
}

# spawn(\@command, %opt), in a group of its own
#   err     file to which its standard error is appended, or '-': it is ours; default:
#           discarded
#   log     1: there goes its standard output, too
#   dir     where it works
#   detach  1: it outlives us
#   env     additions to its environment
#   bare    1: it inherits no other descriptor of ours, whatever its flags
sub spawn
{
	my ($command, %opt) = @_;
	pipe(my $in, my $to) or die "pipe: $!";
	pipe(my $from, my $out) or die "pipe: $!";
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		# By descriptor: a test framework may have tied these handles.
		POSIX::dup2(fileno $in, 0);
		POSIX::dup2(fileno $out, 1);
		POSIX::dup2(POSIX::open($opt{err} // '/dev/null', POSIX::O_WRONLY() | POSIX::O_CREAT() | POSIX::O_APPEND(), 0600), 2) if ($opt{err} // '') ne '-';
		POSIX::dup2(2, 1) if $opt{log};
		POSIX::setsid();
		chdir $opt{dir} if defined $opt{dir};
		if ($opt{bare}) { POSIX::close($_) for 3 .. 255; }
		$SIG{$_} = 'DEFAULT' for qw(INT QUIT TERM HUP PIPE);
		%ENV = (%ENV, %{ $opt{env} // {} });
		# END does not run when a test is killed with SIGKILL, so leave it to
		# the kernel.
		{ no warnings 'exec'; exec(($opt{detach} ? () : qw(setpriv --pdeathsig KILL)), @$command); }
		my $why = "could not run $command->[0]: $!\n";
		POSIX::write(2, $why, length $why);
		POSIX::_exit(127);
	}
	close $_ for $in, $out;
	$to->autoflush(1);
	remember($pid) unless $opt{detach};
	return ($pid, $to, $from);
}

sub talks
{
	my ($class, $command, %opt) = @_;
	my $self = bless { text => '' }, $class;
	@$self{qw(pid to from)} = spawn($command, %opt);
	return $self;
}

sub say { my ($self, $line) = @_; local $SIG{PIPE} = 'IGNORE'; return syswrite $self->{to}, "$line\n"; }

# The next line that it says, or undef if that is not there by then
sub line
{
	my ($self, $deadline) = @_;
	my ($end, $seen) = (-1, 0);
	while (($end = index $self->{text}, "\n", $seen) < 0)
	{
		$seen = length $self->{text};
		my $left = $deadline - time;
		if (IO::Select->new($self->{from})->can_read($left > 0 ? $left : 0))
		{
			sysread $self->{from}, $self->{text}, 1 << 20, $seen or croak 'the process has ended';
		}
		elsif ($left <= 0) { return undef; }    # not interrupted by SIGCHLD
	}
	my $line = substr $self->{text}, 0, $end + 1, '';
	chomp $line;
	return $line;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);
	kill9($self->{pid}) if is_ours($self->{pid});
	return;
}

# A server that is not ZooKeeper: a process that passes each connection to $code, and keeps
# it open if that returns true
sub serve
{
	my ($code) = @_;
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 20) or die "could not listen: $@";
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		my @open;
		$SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
		$SIG{PIPE} = 'IGNORE';
		# a proxy ends when nobody has the other end of its pipe
		POSIX::close($_) for grep { $_ != fileno $listener } 3 .. 255;
		while (my $sock = $listener->accept)
		{
			$sock->autoflush(1);
			push @open, $sock if $code->($sock);
		}
		POSIX::_exit(0);
	}
	remember($pid);
	return ('127.0.0.1:' . $listener->sockport, $pid);
}

END
{
	# do not change the exit status of the test
	local ($?, $!, $@);
	kill9($_) for grep { is_ours($_) } keys %started;
}

1;
