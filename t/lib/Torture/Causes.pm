
=pod

=head1 NAME

Torture::Causes - which faults can explain what happened to a worker

=head1 SYNOPSIS

  my $causes = Torture::Causes->new(session_timeout => 2, tick => 0.5, homes => { 1 => 0, 2 => 1 });
  $causes->fault($time, $number, 'begin', { kind => 'cut', server => 1 });
  $causes->connection($worker, $server, $from, $to);
  $causes->run_ended($time);
  $causes->explain($worker, $from, $to) or ...;     # the faults

=head1 DESCRIPTION

A fault can explain something only if it hit that worker: its own process, a
cluster that it uses, the ZooKeeper server that its session was connected to, the
path to that server, or the whole ensemble.  And only if it was under way, or had
ended at most

  the session timeout + 2 ticks + a second

earlier.  ZooKeeper ends a session at the first tick after its timeout, counted from
what it last heard; clients need a moment to come back after a fault, and a busy
machine needs the second.

To which server a session was connected is known from the proxies.  A worker whose
session is not known to have been connected anywhere during a fault of a server,
because it was just looking for one, or never was seen to own a node, counts as hit.

=cut

package Torture::Causes;

use strict;
use warnings;
use List::Util qw(max min);

our $ALLOWANCE = 1;    # s, for a busy machine

# What a fault hits.  A backend that is killed takes all others of its cluster
# with it.
my %HITS = (
	(map { $_ => 'all' } qw(outage standstill leader_kill leader_stop ensemble_restart)),
	(map { $_ => 'server' } qw(follower_kill cut swallow delay blackhole drop)),
	backend_stop => 'worker',
	backend_kill => 'cluster',
	pg_immediate => 'cluster');

# homes: worker => the cluster where it locks
sub new
{
	my ($class, %opt) = @_;
	return bless { session_timeout => 2, tick => 0.5, homes => {}, %opt, faults => {}, connections => {}, end => 0 }, $class;
}

sub fault
{
	my ($self, $time, $number, $phase, $more) = @_;
	if ($phase eq 'begin') { $self->{faults}{$number} = { number => $number, begin => $more->{since} // $time, %$more }; }
	elsif ($phase eq 'end' && $self->{faults}{$number}) { $self->{faults}{$number}{end} = $time; }
	return;
}

sub faults
{
	my ($self) = @_;
	$self->{sorted} = [ sort { $a->{begin} <=> $b->{begin} } values %{ $self->{faults} } ]
	  if @{ $self->{sorted} // [] } != keys %{ $self->{faults} };
	return @{ $self->{sorted} // [] };
}

# A session of this worker was connected to this server (from 1) at that time
sub connection
{
	my ($self, $worker, @connection) = @_;
	push @{ $self->{connections}{$worker} }, \@connection;
	return;
}

sub run_ended
{
	my ($self, $end) = @_;
	$self->{end} = $end;
	$_->{end} //= $end for values %{ $self->{faults} };
	return;
}

# How long a server may take to end a session, or a client to come back
sub expiry { return $_[0]->{session_timeout} + 2 * $_[0]->{tick}; }

# A cluster that the worker uses besides its own may be given.
sub _hits
{
	my ($self, $fault, $worker, $cluster) = @_;
	my $what = $HITS{ $fault->{kind} } // '';
	return 1 if $what eq 'all' || ($fault->{worker} // '') eq $worker;
	if ($what eq 'cluster')
	{
		my $its = $fault->{cluster} // '';
		return $its eq ($self->{homes}{$worker} // 'none') || $its eq ($cluster // 'none');
	}
	return 0 if $what ne 'server';
	my %servers = map { $_->[0] => 1 } grep { $_->[1] <= $fault->{end} && $_->[2] >= $fault->{begin} } @{ $self->{connections}{$worker} // [] };
	return !%servers || grep { $servers{$_} } split /,/, $fault->{server} // '';
}

# Those that hit a worker
sub _of
{
	my ($self, $worker) = @_;
	return @{ $self->{of}{$worker} //= [ grep { $self->_hits($_, $worker) } $self->faults ] };
}

# The faults that explain what happened to this worker at some time from $from to
# $to
sub explain
{
	my ($self, $worker, $from, $to, $cluster) = @_;
	my $reach = $self->expiry + $ALLOWANCE;
	return grep { $_->{begin} <= $to && $_->{end} + $reach >= $from && $self->_hits($_, $worker, $cluster) } $self->faults;
}

# The times in which this worker cannot be expected to get what is free, or to
# give back what it holds: [ [ from, until ], ... ], sorted, disjoint
sub hindered
{
	my ($self, $worker) = @_;
	return $self->{hindered}{$worker} //= _union(map { [ $_->{begin}, $_->{end} + $self->expiry ] } $self->_of($worker));
}

# How much of a time that is
sub hindrance { my ($self, $worker, $from, $to) = @_; return within($from, $to, $self->hindered($worker)); }

# The share of the run in which nothing would have explained a refusal, or a loss,
# of these workers
sub judged
{
	my ($self, @workers) = @_;
	return 0 unless @workers && $self->{end} > 0;
	my $reach = $self->expiry + $ALLOWANCE;
	my $excused = 0;
	$excused += within(0, $self->{end}, _union(map { [ $_->{begin}, $_->{end} + $reach ] } $self->_of($_))) for @workers;
	return 1 - $excused / $self->{end} / @workers;
}

# Merges overlapping intervals
sub _union
{
	my @result;
	foreach my $i (sort { $a->[0] <=> $b->[0] } @_)
	{
		if (@result && $i->[0] <= $result[-1][1]) { $result[-1][1] = max($result[-1][1], $i->[1]); }
		else { push @result, [@$i]; }
	}
	return \@result;
}

# How much of a time lies in these intervals (which are sorted)
sub within
{
	my ($from, $to, $intervals) = @_;
	my $sum = 0;
	# find the first that ends after $from
	my ($low, $high) = (0, scalar @$intervals);
	while ($low < $high)
	{
		my $middle = int(($low + $high) / 2);
		if ($intervals->[$middle][1] <= $from) { $low = $middle + 1; }
		else { $high = $middle; }
	}
	for (my $i = $low; $i < @$intervals && $intervals->[$i][0] < $to; $i++)
	{
		$sum += min($to, $intervals->[$i][1]) - max($from, $intervals->[$i][0]);
	}
	return $sum;
}

1;
