
=pod

=head1 NAME

Child - processes that end with the one that started them

=head1 SYNOPSIS

  my ($pid, $to, $from) = Child::spawn([ $program, @arguments ], err => $file, env => { A => 1 });
                              # its standard input and output; remembered, see below

  Child::remember($pid);      # after fork; killed at our end, however that comes
  Child::forget($pid);        # it has ended
  Child::is_ours($pid);       # started by this process, not by one it was forked from

=cut

package Child;

use strict;
use warnings;
use IO::Handle;
use POSIX ();

my %started;    # pid => pid of the process that started it

sub remember { $started{ $_[0] } = $$; return; }
sub forget { delete $started{ $_[0] }; return; }
sub is_ours { my ($pid) = @_; return ($started{ $pid // 0 } // 0) == $$; }

# spawn(\@command, %opt), in a group of its own
#   err     file that its standard error is added to; default: nowhere
#   env     what it has in its environment besides ours
#   bare    1: none of our other descriptors, whatever their flags say
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
		POSIX::dup2(POSIX::open($opt{err} // '/dev/null', POSIX::O_WRONLY() | POSIX::O_CREAT() | POSIX::O_APPEND(), 0600), 2);
		POSIX::setsid();
		if ($opt{bare}) { POSIX::close($_) for 3 .. 255; }
		$SIG{$_} = 'DEFAULT' for qw(INT QUIT TERM HUP PIPE);
		%ENV = (%ENV, %{ $opt{env} // {} });
		# END does not run when a test is killed with SIGKILL; the kernel does.
		{ no warnings 'exec'; exec 'setpriv', '--pdeathsig', 'KILL', @$command; }
		POSIX::_exit(127);
	}
	close $_ for $in, $out;
	$to->autoflush(1);
	remember($pid);
	return ($pid, $to, $from);
}

END
{
	# not to change what the test says about itself
	local ($?, $!, $@);
	foreach my $pid (grep { is_ours($_) } keys %started)
	{
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
}

1;
