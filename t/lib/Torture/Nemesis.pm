
=pod

=head1 NAME

Torture::Nemesis - causes the faults of a torture test

=head1 SYNOPSIS

  my $nemesis = Torture::Nemesis->new(ensemble => $zk, proxies => [...], clusters => [...],
	  workers => [...], log => $log, schedule => [ Torture::Schedule::make(...) ]);
  $nemesis->step until $log->now > $seconds;
  $nemesis->heal;

=head1 DESCRIPTION

Each fault is a method, which begins it and returns a function that ends it.  The log
gets "begin", with what is hit (server, cluster, worker), and "end"; or "skipped", and
why: what there is none of at the moment, or what cannot be done on this machine.

A backend is struck by its own worker, which knows when it is in the middle of
something: see Torture::Strike.  The other faults are in files of their own:
Torture::Nemesis::Ensemble, Torture::Nemesis::Network, Torture::Nemesis::Postgres.

=cut

package Torture::Nemesis;

use strict;
use warnings;
use IO::Handle;
use Time::HiRes qw(sleep);

use Torture::Nemesis::Ensemble;
use Torture::Nemesis::Network;
use Torture::Nemesis::Postgres;
use Torture::Strike;

our @ISA = map { "Torture::Nemesis::$_" } qw(Ensemble Network Postgres);

# What a function that ends a fault returns if that will take a moment longer: it is
# called again.
our $AGAIN = \'again';

# (the options above, and) impossible => { kind => why }
sub new
{
	my ($class, %opt) = @_;
	my $self = bless { ends => [], steps => [], impossible => {}, %opt }, $class;
	$self->{todo} = [ @{ $opt{schedule} } ];
	return $self;
}

# Begin and end the faults that are due, or sleep a moment.
sub step
{
	my ($self) = @_;
	my $now = $self->{log}->now;
	my @due;
	foreach my $list (@{$self}{qw(ends steps)})
	{
		push @due, grep { $_->{at} <= $now } @$list;
		@$list = grep { $_->{at} > $now } @$list;
	}
	$_->{code}->() for sort { $a->{at} <=> $b->{at} } @due;
	if (@{ $self->{todo} } && $self->{todo}[0]{at} <= $now)
	{
		$self->_begin(shift @{ $self->{todo} });
		return;
	}
	sleep 0.02 unless @due;
	return;
}

# End all faults that are under way.
sub heal
{
	my ($self) = @_;
	my $deadline = $self->{log}->now + 60;
	while ((my @ends = splice @{ $self->{ends} }) && $self->{log}->now < $deadline)
	{
		$_->{code}->() for @ends;
		sleep 0.05;
	}
	return;
}

# While the fault is under way, do that after so many seconds
sub _after
{
	my ($self, $f, $seconds, $code) = @_;
	push @{ $self->{steps} }, { at => $self->{log}->now + $seconds, code => sub { $code->() unless $f->{over} } };
	return;
}

sub _log
{
	my ($self, $f, $phase, %more) = @_;
	$self->{log}->write('nemesis', $f->{number}, 'fault', $phase, 0, kind => $f->{kind}, %more);
	return;
}

sub _begin
{
	my ($self, $f) = @_;
	# (they record each frame, which would fill the memory)
	$_->clear_log for @{ $self->{proxies} };

	my $why = $self->{impossible}{ $f->{kind} };
	return $self->_skip($f, $why) if $why;
	my $method = "_$f->{kind}";
	my $end = $self->$method($f) // return;
	$self->_end_in($f, $f->{for}, $end);
	return;
}

sub _end_in
{
	my ($self, $f, $seconds, $end) = @_;
	my $code = sub {
		$f->{over} = 1;
		return $self->_end_in($f, 0.1, $end) if ($end->() // '') eq $AGAIN;
		$self->_log($f, 'end');
	};
	push @{ $self->{ends} }, { at => $self->{log}->now + $seconds, code => $code };
	return;
}

# Well and ill in turn: ill for up to 0.8 s, and then well for what is missing to 0.9 s
sub _flap_with
{
	my ($self, $f, $ill, $well) = @_;
	my $for = 4 * $f->{ms} / 1000;
	$ill->();
	$self->_after($f, $for, sub {
		$well->();
		$self->_after($f, 0.9 - $for, sub { $self->_flap_with($f, $ill, $well) });
	});
	return;
}

sub _skip { my ($self, $f, $why) = @_; $self->_log($f, 'skipped', why => $why); return; }

# What a worker does to its own backend; it writes the log entries itself.
sub _order
{
	my ($self, $f) = @_;
	my $worker = $self->{workers}[ $f->{worker} - 1 ];
	local $SIG{PIPE} = 'IGNORE';
	syswrite $worker->{orders}, "$f->{kind} $f->{number} $f->{phase} $f->{delay} $f->{for}\n";
	return;
}

{
	no strict 'refs';
	*{"_$_"} = \&_order for @Torture::Strike::KINDS;
}

1;
