
=pod

=head1 NAME

Torture::Schedule - when which fault of a torture test begins, and for how long

=head1 SYNOPSIS

  my @schedule = Torture::Schedule::make(seed => 1, seconds => 60, session_timeout => 2,
	  workers => 16, faults => [ Torture::Schedule::wanted('cut,delay') ]);
  print map { Torture::Schedule::describe($_) . "\n" } @schedule;

=head1 DESCRIPTION

The schedule is made before the run, from the seed alone.  What a fault hits is
decided when it begins: "leader" is whichever server leads then.

Faults of the ensemble do not overlap each other, so that a majority can be told
from an outage; the same holds for those of the network and of PostgreSQL.
Faults of different tracks overlap.  In each round of 40 s there is a time in
which none begins, for properties that hold only without faults.

=cut

package Torture::Schedule;

use strict;
use warnings;
use Carp;
use List::Util qw(shuffle);

# All faults, in tracks.  "pause": the time between two of a track.  Of a fault
#   for       shortest and longest duration in s; "T" stands for the session timeout.
#             'near': from 0.1 T to 2 T, and mostly near T/3, T/2, 2T/3 or T, where the
#             heartbeats, the guard, the connection and the session come to an end
#   weight    how many times as often it comes as others of its track; default 1
#   named     only where it is named: "all" does not mean it
#   cluster   the one that it hits
our %TRACK = (
	ensemble => {
		pause => [ 4, 8 ],
		faults => {
			leader_kill => { for => [ 0.5, 3 ] },
			follower_kill => { for => [ 0.5, 3 ] },
			leader_stop => { for => 'near' },         # SIGSTOP: a server that hangs
			follower_stop => { for => 'near' },
			# (a follower and its leader give each other up after 5 s)
			cut => { for => 'near' },                 # a follower from its leader
			link_stall => { for => [ '2.6T', '3.5T' ] },    # the same, until they do
			link_one_way => { for => 'near' },        # what one of the two says is lost
			link_flap => { for => [ '0.5T', '2T' ] },
			leader_cut => { for => [ '0.5T', '3.5T' ] },    # from both followers
			ensemble_restart => { for => [ 0.2, '2T' ] },
			slow_sync => { for => [ 1, 4 ] },         # one disk, or two, need up to 2 s for a sync
			disk_full => { for => [ 1, 3 ] },
			rolling_restart => { for => [ 5, 8 ] }    # (it ends when the last one serves)
		}
	},
	network => {    # between clients and servers
		pause => [ 2, 5 ],
		faults => {
			swallow => { for => [ 1, 2 ] },
			delay => { for => [ 1, 4 ] },
			blackhole => { for => 'near' },
			one_way => { for => 'near' },
			flap => { for => [ '0.5T', '2T' ] },
			drop => { for => [ 0.1, 0.2 ] },
			connections => { for => [ '0.5T', '2T' ] }    # as many as the server accepts
		}
	},
	directory => {
		pause => [ 6, 12 ],
		faults => {
			acl => { for => [ 0.5, 3 ] },
			lock_break => { for => [ 0, 0 ], named => 1 }    # somebody deletes a node
		}
	},
	postgres => {
		pause => [ 4, 9 ],
		faults => {
			backend_kill => { for => [ 0, 0 ] },
			pg_immediate => { for => [ 0, 2 ] },
			timeouts => { for => [ 1, 3 ] },          # short ones, for all that PostgreSQL runs
			sync_hang => { for => [ '0.5T', '2T' ] },
			promote => { for => [ 4, 6 ], cluster => 0 },    # (it ends when there is a new standby)
			clock => { for => [ 0.5, 4 ] }
		}
	},
	pooler => {
		pause => [ 5, 10 ],
		faults => {
			pooler_kill => { for => [ 0, 1 ] },
			pooler_drop => { for => [ 0, 0 ] }        # its connections to PostgreSQL
		}
	},
	process => {    # of one worker: see Torture::Strike
		pause => [ 0.8, 2.4 ],
		overlap => 1,    # a fault may begin while another backend is struck
		faults => {
			backend_stop => { for => [ '1.3T', '2T' ], weight => 3 },    # longer than its session lives
			backend_pause => { for => 'near', weight => 2 },
			keeper_stop => { for => 'near', weight => 2 },    # its thread for heartbeats, alone
			connection_cut => { for => [ 0, 0 ] },
			cancel => { for => [ 0, 0 ], weight => 2 },
			descriptors => { for => [ '0.5T', '2T' ] },
			threads => { for => [ '2T', '3T' ] }
		}
	});

our %TRACK_OF = map { my $track = $_; map { $_ => $track } keys %{ $TRACK{$track}{faults} } } keys %TRACK;
our @FAULTS = sort keys %TRACK_OF;

my $ROUND = 40;    # s, in which
my $BUSY = 27;     # faults begin in the first 27

# The points of its operation at which a worker is struck, and how long after it
# has sent the call (ms).  A COMMIT takes a few ms.
my @PHASES = (
	[ 'critical', 0, 0 ], [ 'critical', 0, 0 ],
	[ 'commit', 0, 4 ], [ 'commit', 0, 8 ],
	[ 'write', 0, 3 ], [ 'lock', 0, 50 ]);
# one that has nothing to do cannot be canceled
my @BUSY_PHASES = ([ 'lock', 0, 10 ], [ 'lock', 0, 500 ], [ 'commit', 0, 8 ], [ 'unlock', 0, 3 ], [ 'fence', 0, 3 ]);

# The faults that --faults=LIST means
sub wanted
{
	my ($list) = @_;
	return grep { !$TRACK{ $TRACK_OF{$_} }{faults}{$_}{named} } @FAULTS if $list eq 'all';
	return () if $list eq 'none';
	my %known = map { $_ => 1 } @FAULTS;
	my @wanted = split /,/, $list;
	$known{$_} or croak "no such fault: $_ (there are: @FAULTS)\n" for @wanted;
	return @wanted;
}

# make(seed, seconds, faults => [...], session_timeout => s, workers => n)
# returns a list of { at, kind, for, number, ... }, ordered by time.  With
# moment => 'critical', backends are struck only then.
sub make
{
	my (%opt) = @_;
	my %wanted = map { $_ => 1 } @{ $opt{faults} };
	my @schedule;
	srand $opt{seed};
	foreach my $name (sort keys %TRACK)
	{
		my $track = $TRACK{$name};
		my @kinds = map { ($_) x ($track->{faults}{$_}{weight} // 1) } sort grep { $wanted{$_} } keys %{ $track->{faults} };
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
			my %fault = (at => $at, kind => $kind, for => _duration($track->{faults}{$kind}{for}, $opt{session_timeout}));
			my @phases = grep { !$opt{moment} || $_->[0] eq $opt{moment} } $kind eq 'cancel' ? @BUSY_PHASES : @PHASES;
			my ($phase, $from, $to) = @{ $phases[ rand @phases ] };
			%fault = (
				%fault,
				which => int rand 3,                      # server
				cluster => $track->{faults}{$kind}{cluster} // int rand 2,
				worker => 1 + int rand $opt{workers},
				phase => $phase,
				delay => _between($from, $to) / 1000,
				ms => int _between(20, 200),
				slow => int exp _between(log 20, log 2000),    # ms
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

sub _duration
{
	my ($for, $T) = @_;
	if (ref $for)
	{
		my ($min, $max) = map { s/T$// ? $_ * $T : $_ } my @copy = @$for;
		return _between($min, $max);
	}
	my @near = (1 / 3, 1 / 2, 2 / 3, 1);
	return $T * (rand() < 0.7 ? $near[ rand @near ] * _between(0.9, 1.1) : _between(0.1, 2));
}

sub describe
{
	my ($f) = @_;
	my $what =
		$TRACK_OF{ $f->{kind} } eq 'process' || $f->{kind} eq 'backend_kill' ? "worker $f->{worker}, phase $f->{phase}"
	  : $TRACK_OF{ $f->{kind} } eq 'postgres' ? "cluster $f->{cluster}"
	  : $f->{kind} =~ /^(?:delay|slow_sync)$/ ? "$f->{slow} ms"
	  : '';
	return sprintf '%8.3f %-16s for %.3f s  %s', @$f{qw(at kind for)}, $what;
}

1;
