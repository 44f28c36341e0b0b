
=pod

=head1 NAME

Torture::Nemesis - causes the faults of a torture test, by a schedule

=head1 SYNOPSIS

  my @schedule = Torture::Nemesis::schedule(seed => 1, seconds => 60, faults => [ 'cut', ... ], ...);
  my $nemesis = Torture::Nemesis->new(ensemble => $zk, proxies => [...], nodes => [...],
	  workers => [...], log => $log, schedule => \@schedule);
  $nemesis->step until $log->now > $seconds;
  $nemesis->heal;

=head1 DESCRIPTION

The schedule is made before the run, from the seed alone.  What a fault hits is
decided when it begins: "leader" is whichever server leads then.

Faults of the ensemble do not overlap each other, so that a majority can be told
from an outage; the same holds for those of the network and of PostgreSQL.
Faults of different kinds overlap.  In each round of 40 s there is a time in
which none begins, for properties that hold only without faults.

A backend is struck by its own worker, which knows when it is in the middle of
something: see Torture::Worker.

=cut

package Torture::Nemesis;

use strict;
use warnings;
use IO::Handle;
use List::Util qw(shuffle);
use Time::HiRes qw(sleep);

# All faults.  "for": shortest and longest duration in s; "T" stands for the
# session timeout.  "pause": the time between two faults of that track.
our %TRACK = (
	ensemble => {
		pause => [ 4, 8 ],
		faults => {
			leader_kill => [ 0.5, 3 ],
			follower_kill => [ 0.5, 3 ],
			leader_stop => [ 0.5, '2T' ],         # SIGSTOP: a leader that hangs
			cut => [ '1.2T', '1.9T' ],            # syncLimit is 5 s
			ensemble_restart => [ 0.2, '2T' ]
		}
	},
	network => {
		pause => [ 2, 5 ],
		faults => {
			swallow => [ 1, 2 ],
			delay => [ 1, 4 ],
			blackhole => [ 0.5, '1.5T' ],
			drop => [ 0.1, 0.2 ]
		}
	},
	postgres => {
		pause => [ 4, 9 ],
		faults => {
			backend_kill => [ 0, 0 ],
			pg_immediate => [ 0, 2 ]
		}
	},
	stop => {
		pause => [ 0.8, 2.4 ],
		overlap => 1,    # a fault may begin while another backend is struck
		faults => { backend_stop => [ '1.3T', '2T' ] }
	});

our @FAULTS = sort map { keys %{ $TRACK{$_}{faults} } } keys %TRACK;

my $ROUND = 40;    # s, in which
my $BUSY = 27;     # faults begin in the first 27

# The points of its operation at which a worker is struck, and how long after it
# has sent the call (ms).  A COMMIT takes a few ms.
my @PHASES = (
	[ 'critical', 0, 0 ], [ 'critical', 0, 0 ],
	[ 'commit', 0, 4 ], [ 'commit', 0, 8 ],
	[ 'write', 0, 3 ], [ 'lock', 0, 50 ]);

# schedule(seed, seconds, faults => [...], session_timeout => s, workers => n)
# returns a list of { at, kind, for, number, ... }, ordered by time.  With
# moment => 'critical', backends are struck only then.
sub schedule
{
	my (%opt) = @_;
	my %wanted = map { $_ => 1 } @{ $opt{faults} };
	my @schedule;
	srand $opt{seed};
	foreach my $name (sort keys %TRACK)
	{
		my $track = $TRACK{$name};
		my @kinds = sort grep { $wanted{$_} } keys %{ $track->{faults} };
		next unless @kinds;
		my @bag;
		my @pause = @{ $opt{pause} // $track->{pause} };
		my $at = 2 + _between(@pause) / 2;
		while (1)
		{
			# only in the busy part of a round
			my $in_round = $at - $ROUND * int($at / $ROUND);
			$at += $ROUND - $in_round + _between(1, 3) if $in_round > $BUSY;
			@bag = shuffle @kinds unless @bag;    # each kind in turn
			my $kind = shift @bag;
			my ($min, $max) = map { s/T$// ? $_ * $opt{session_timeout} : $_ } my @copy = @{ $track->{faults}{$kind} };
			my %fault = (at => $at, kind => $kind, for => _between($min, $max));
			my @phases = grep { !$opt{moment} || $_->[0] eq $opt{moment} } @PHASES;
			my ($phase, $from, $to) = @{ $phases[ rand @phases ] };
			%fault = (
				%fault,
				which => int rand 3,                      # server
				cluster => int rand 2,
				worker => 1 + int rand $opt{workers},
				phase => $phase,
				delay => _between($from, $to) / 1000,
				ms => int _between(20, 200),
				hard => int rand 2);
			# everything must have healed before the run is over
			last if $fault{at} + $fault{for} > $opt{seconds} - 1;
			push @schedule, \%fault;
			$at += ($track->{overlap} ? 0 : $fault{for}) + _between(@pause);
		}
	}
	srand;
	@schedule = sort { $a->{at} <=> $b->{at} || $a->{kind} cmp $b->{kind} } @schedule;
	$schedule[$_]{number} = $_ + 1 for 0 .. $#schedule;
	return @schedule;
}

# (rand(0) is rand(1))
sub _between { my ($from, $to) = @_; return $to > $from ? $from + rand($to - $from) : $from; }

sub describe
{
	my ($f) = @_;
	my $what =
		$f->{kind} =~ /^backend/ ? "worker $f->{worker}, phase $f->{phase}"
	  : $f->{kind} eq 'pg_immediate' ? "cluster $f->{cluster}"
	  : $f->{kind} eq 'delay' ? "$f->{ms} ms"
	  : '';
	return sprintf '%8.3f %-16s for %.3f s  %s', @$f{qw(at kind for)}, $what;
}

# ---------------------------------------------------------------- at work

sub new
{
	my ($class, %opt) = @_;
	my $self = bless { ends => [], killed => {}, %opt }, $class;
	$self->{todo} = [ @{ $opt{schedule} } ];
	return $self;
}

# Begin and end the faults that are due, or sleep a moment.
sub step
{
	my ($self) = @_;
	my $now = $self->{log}->now;
	my @due = grep { $_->{at} <= $now } @{ $self->{ends} };
	$self->{ends} = [ grep { $_->{at} > $now } @{ $self->{ends} } ];
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
	$_->{code}->() for splice @{ $self->{ends} };
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

	my $method = "_$f->{kind}";
	my $end = $self->$method($f) // return;
	push @{ $self->{ends} },
	  {
		at => $self->{log}->now + $f->{for},
		code => sub { $end->(); $self->_log($f, 'end') }
	  };
	return;
}

# Each of these begins a fault and returns a function that ends it, or nothing.

sub _a
{
	my ($self, $f, $mode) = @_;
	my @found = $self->{ensemble}->_in_mode($mode);
	return $found[ $f->{which} % @found ] if @found;
	$self->_log($f, 'skipped', why => "there is no $mode");
	return;
}

sub _kill_server
{
	my ($self, $f, $mode) = @_;
	my $server = $self->_a($f, $mode) or return;
	$self->_log($f, 'begin', server => $server->{id});
	$server->kill9;
	return sub { $server->start(no_wait => 1) unless $server->running; };
}

sub _leader_kill { my ($self, $f) = @_; return $self->_kill_server($f, 'leader'); }
sub _follower_kill { my ($self, $f) = @_; return $self->_kill_server($f, 'follower'); }

sub _leader_stop
{
	my ($self, $f) = @_;
	my $server = $self->_a($f, 'leader') or return;
	$self->_log($f, 'begin', server => $server->{id});
	$server->suspend;
	return sub { $server->resume; };
}

sub _cut
{
	my ($self, $f) = @_;
	my $leader = $self->_a($f, 'leader') or return;
	my $follower = $self->_a($f, 'follower') or return;
	$self->_log($f, 'begin', server => $follower->{id});
	$self->{ensemble}->cut($follower, $leader);
	return sub { $self->{ensemble}->mend; };
}

sub _ensemble_restart
{
	my ($self, $f) = @_;
	$self->_log($f, 'begin', how => $f->{hard} ? 'kill -9' : 'stop');
	if ($f->{hard}) { $_->kill9 for $self->{ensemble}->nodes; }
	else { $self->{ensemble}->stop; }
	return sub { $_->start(no_wait => 1) for grep { !$_->running } $self->{ensemble}->nodes; };
}

sub _proxy { my ($self, $f) = @_; return $self->{proxies}[ $f->{which} % @{ $self->{proxies} } ]; }

sub _swallow
{
	my ($self, $f) = @_;
	my $proxy = $self->_proxy($f);
	$self->_log($f, 'begin', server => 1 + $f->{which}, cut => $f->{hard});
	# a change, or else any operation
	my $op = $f->{ms} % 3 ? [qw(create create2 delete multi)] : '*';
	if ($f->{hard}) { $proxy->swallow_and_drop($op, 2); }
	else { $proxy->swallow($op, 2); }
	return sub { $proxy->reset; };
}

sub _delay
{
	my ($self, $f) = @_;
	my $proxy = $self->_proxy($f);
	$self->_log($f, 'begin', server => 1 + $f->{which}, ms => $f->{ms});
	$proxy->delay_ms($f->{ms});
	return sub { $proxy->reset; };
}

sub _blackhole
{
	my ($self, $f) = @_;
	# one of the servers, or two
	my @which = map { ($f->{which} + $_) % @{ $self->{proxies} } } 0 .. $f->{hard};
	my @proxy = @{ $self->{proxies} }[@which];
	$self->_log($f, 'begin', server => join ',', map { 1 + $_ } @which);
	$_->blackhole for @proxy;
	return sub { $_->reset for @proxy; };
}

sub _drop
{
	my ($self, $f) = @_;
	$self->_log($f, 'begin', server => 1 + $f->{which});
	my $proxy = $self->_proxy($f);
	$proxy->drop;
	return sub { };
}

sub _pg_immediate
{
	my ($self, $f) = @_;
	my $node = $self->{nodes}[ $f->{cluster} ];
	$self->_log($f, 'begin', cluster => $f->{cluster});
	$node->stop('immediate');
	return sub { $node->start; };
}

# What a worker does to its own backend; it writes the log entry itself.
sub _backend_stop { my ($self, $f) = @_; return $self->_order('stop', $f); }
sub _backend_kill { my ($self, $f) = @_; return $self->_order('kill', $f); }

sub _order
{
	my ($self, $what, $f) = @_;
	my $worker = $self->{workers}[ $f->{worker} - 1 ];
	local $SIG{PIPE} = 'IGNORE';
	syswrite $worker->{orders}, "$what $f->{number} $f->{phase} $f->{delay} $f->{for}\n";
	return;
}

1;
