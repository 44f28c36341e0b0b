
=pod

=head1 NAME

Torture::Strike - what a torture test does to a backend

=head1 SYNOPSIS

  my %impossible = Torture::Strike::build($dir);    # kind of fault => why
  Torture::Strike::strike($order, $pid, $log, sub { ... }, @event);

=head1 DESCRIPTION

The nemesis orders it, and the backend's own worker does it, which knows when it is
in the middle of something: see Torture::Worker.

  backend_kill    SIGKILL
  backend_stop, backend_pause
                  SIGSTOP: all of it, and its client, stand still
  keeper_stop     only the thread that sends the heartbeats stands still
  connection_cut  its connection to ZooKeeper is cut
  cancel          SIGINT, as from pg_cancel_backend
  descriptors     its connection is cut, and it cannot open another descriptor
  threads         it sleeps until its session is over, and then cannot start a thread
                  for the next one

Only a debugger can stop one thread, or use another process's socket; t/c/strike.c does
nothing else.  Where processes may not be debugged, there are no such faults.  What a
running process may open or start is limited by prlimit.

=cut

package Torture::Strike;

use strict;
use warnings;
use File::Basename qw(dirname);
use POSIX ();
use Time::HiRes qw(sleep);

use Child;
use Zklock;

my $tool;     # t/c/strike.c
my %limit;    # what is limited => the soft limit of all that we start

# kind => what is done.  The functions get the backend, the order { number, kind, for },
# a function that writes "begin", "end" or "skipped" into the log, and one with which
# the worker sleeps.
my %STRIKE = (
	backend_kill => sub { my ($pid, undef, $tell) = @_; return _at_once($tell, sub { kill 'KILL', $pid }); },
	map({ $_ => sub { my ($pid, $order, $tell, $sleep) = @_; return _stop($pid, $order->{for}, $tell, $sleep); } } qw(backend_stop backend_pause)),
	cancel => sub { my ($pid, undef, $tell) = @_; return _at_once($tell, sub { kill 'INT', $pid }); },
	keeper_stop => sub { my ($pid, $order, $tell) = @_; return _in_background($tell, sub { _stop_keeper($pid, $order->{for}) }); },
	connection_cut => sub { my ($pid, undef, $tell) = @_; return _in_background($tell, sub { _tool('connections', $pid) }); },
	descriptors => sub {
		my ($pid, $order, $tell) = @_;
		return _in_background($tell, sub { return _limited($pid, 'nofile', zk_free_descriptor($pid), sub { _tool('connections', $pid), sleep $order->{for} }) });
	},
	threads => sub {
		my ($pid, $order, $tell) = @_;
		return _in_background($tell, sub { return _limited($pid, 'nproc', 1, sub { _stop($pid, 0.6 * $order->{for}, $tell, sub { sleep $_[0] }, kind => 'backend_stop'); sleep 0.4 * $order->{for} }) });
	});

our @KINDS = sort keys %STRIKE;

# Compiles what is needed, in this directory.  Returns the faults that cannot be made
# here: kind => why
sub build
{
	my ($dir) = @_;
	$tool = "$dir/strike";
	my $failed = system 'gcc', '-o', $tool, dirname(__FILE__) . '/../../c/strike.c';
	my %impossible = $failed ? map { $_ => 'strike.c cannot be compiled' } qw(keeper_stop connection_cut descriptors) : ();
	$limit{$_} = zk_soft_limit($$, $_) for qw(nofile nproc);
	$impossible{$_} //= 'there is no prlimit' for grep { !$limit{nofile} } qw(descriptors threads);
	return %impossible;
}

sub strike
{
	my ($order, $pid, $log, $sleep, $object, @more) = @_;
	my $tell = sub {
		my ($phase, %why) = @_;
		# a part of it may be a fault of its own kind
		my $number = $order->{number} . ($why{kind} ? '.1' : '');
		$log->write('nemesis', $number, 'fault', $phase, $object, kind => $order->{kind}, @more, pid => $pid, %why);
	};
	return $tell->('skipped', why => 'another client holds the lock') if $order->{foreign} && $order->{kind} !~ /^backend_/;
	return $STRIKE{ $order->{kind} }->($pid, $order, $tell, $sleep);
}

sub _at_once
{
	my ($tell, $code) = @_;
	$tell->('begin');
	$code->();
	$tell->('end');
	return;
}

sub _stop
{
	my ($pid, $seconds, $tell, $sleep, @more) = @_;
	$tell->('begin', @more);
	kill 'STOP', $pid;
	$sleep->($seconds);
	kill 'CONT', $pid;
	$tell->('end', @more);
	return;
}

# Worker and backend go on meanwhile.  The function returns "done", or why it is not.
sub _in_background
{
	my ($tell, $code) = @_;
	my $pid = fork // return;
	if ($pid == 0)
	{
		POSIX::_exit(0) if fork;    # so that nobody need wait for it
		$tell->('begin');
		my $said = eval { $code->() } // $@;
		$tell->('end');
		$tell->('skipped', why => $said) if $said ne 'done';
		POSIX::_exit(0);
	}
	waitpid $pid, 0;
	return;
}

sub _tool
{
	my ($pid, undef, $from) = Child::spawn([ $tool, @_ ]);
	my $said = <$from> // 'strike does not run';
	waitpid $pid, 0;
	return $said =~ s/\n//r;
}

# Stops the thread of a process whose name begins like this.  Returns a function with which
# it goes on, or undef and why it was not stopped.
sub hold_thread
{
	my ($process, $name) = @_;
	my ($pid, $to, $from) = Child::spawn([ $tool, 'thread', $process, $name ]);
	my $said = <$from> // 'strike does not run';
	my $end = sub { close $to; waitpid $pid, 0; Child::forget($pid); };
	return $end if $said eq "stopped\n";
	$end->();
	return (undef, $said =~ s/\n//r);
}

sub _stop_keeper
{
	my ($pid, $seconds) = @_;
	my ($let_go, $why) = hold_thread($pid, '');
	return $why unless $let_go;
	sleep $seconds;
	$let_go->();
	return 'done';
}

# Does that while this process has this soft limit
sub _limited
{
	my ($pid, $what, $limit, $code) = @_;
	zk_set_soft_limit($pid, $what, $limit) or return "prlimit --$what does not limit it";
	$code->();
	zk_set_soft_limit($pid, $what, $limit{$what}) if kill 0, $pid;
	return 'done';
}

1;
