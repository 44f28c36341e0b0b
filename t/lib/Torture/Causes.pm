
=pod

=head1 NAME

Torture::Causes - which faults can explain what happened to a worker

=head1 SYNOPSIS

  my $causes = Torture::Causes->new(session_timeout => 2, tick => 0.5, homes => { 1 => 0, 2 => 1 });
  $causes->fault($time, $number, 'begin', { kind => 'cut', server => 1 });
  $causes->restarted($cluster, $from, $to);
  $causes->connection($worker, $server, $from, $to);
  $causes->run_ended($time);
  $causes->explain({ worker => $n, ... }, $from, $to) or ...;     # the faults

=head1 DESCRIPTION

A fault can explain something only if it hit that worker: its own process, a
cluster or a pooler that it uses, the ZooKeeper server that its session was connected to, the
path to that server, or the whole ensemble.  And only if it was under way, or had
ended at most

  the session timeout + 2 ticks + a second

earlier.  ZooKeeper ends a session at the first tick after its timeout, counted from
what it last heard; clients need a moment to come back after a fault, and a busy
machine needs the second.

A fault that only makes silence, such as a stop, explains nothing at all if a session
cannot end of it, since it, and the third of a session timeout before it in which
ZooKeeper may have heard nothing, and the second of the busy machine, are shorter than
the session timeout.  Some faults explain certain errors only, and that for a second;
some nothing, like a connection that is cut where another can be made at once.

=cut

package Torture::Causes;

use strict;
use warnings;
use List::Util qw(max min);

our $ALLOWANCE = 1;    # s, for a busy machine

# What a fault hits; whether it explains every loss, only such as come of a silence that
# is long enough, or none; and further SQLSTATEs.
# (A backend that is killed takes all others of its cluster with it.)
my %KIND = (
	(map { $_ => [ 'all', 'every' ] } qw(outage standstill leader_kill leader_cut ensemble_restart)),
	leader_stop => [ 'all', 'silence' ],
	(map { $_ => [ 'server', 'every' ] } qw(follower_kill rolling_restart link_stall link_flap disk_full swallow flap drop connections)),
	(map { $_ => [ 'server', 'silence' ] } qw(follower_stop cut link_one_way slow_sync delay blackhole one_way)),
	(map { $_ => [ 'worker', 'silence' ] } qw(backend_stop backend_pause keeper_stop)),
	(map { $_ => [ 'worker', 'every', qw(53000 53200 EMFILE) ] } qw(descriptors threads)),
	connection_cut => [ 'worker', 'none' ],
	cancel => [ 'worker', 'none', '57014' ],
	(map { $_ => [ 'cluster', 'every' ] } qw(backend_kill pg_immediate promote)),
	(map { $_ => [ 'pool', 'every' ] } qw(pooler_kill pooler_drop)),
	(map { $_ => [ 'cluster', 'none' ] } qw(sync_hang clock)),
	timeouts => [ 'cluster', 'none', qw(55P03 57014) ],
	acl => [ 'object', 'none', '42501' ],
	lock_break => [ 'worker', 'none', qw(40001 55000) ]);

# SQLSTATEs that come of the loss of a session or of a connection; "closed": without any;
# 08P01: pgbouncer's
my %OF_LOSS = map { $_ => 1 } qw(08001 08006 08P01 40001 55000 57P01 57P02 57P03 58000 58030 closed);

# homes: worker => the cluster where it locks; pooled: worker => whether it does that
# behind the pooler
sub new
{
	my ($class, %opt) = @_;
	return bless { session_timeout => 2, tick => 0.5, homes => {}, pooled => {}, %opt, faults => {}, connections => {}, end => 0 }, $class;
}

sub fault
{
	my ($self, $time, $number, $phase, $more) = @_;
	if ($phase eq 'begin') { $self->{faults}{$number} = { number => $number, begin => $more->{since} // $time, %$more }; }
	elsif ($phase eq 'end' && $self->{faults}{$number}) { $self->{faults}{$number}{end} = $time; }
	return;
}

# A server of this cluster said then that one of its processes was killed, and later that
# it is ready again.  Whoever kills a backend takes all others with it, and they all have
# to go before: also those that are stopped.
sub restarted
{
	my ($self, $cluster, $from, $to) = @_;
	my ($fault) = grep { $_->{kind} eq 'backend_kill' && ($_->{cluster} // '') eq $cluster && $_->{begin} <= $from } reverse $self->faults;
	$fault->{end} = max($fault->{end} // 0, $to) if $fault;
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
	delete $self->{hit_server}{$worker};
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

sub _hits
{
	my ($self, $fault, $what) = @_;
	my $kind = $KIND{ $fault->{kind} }[0];
	return 1 if $kind eq 'all';
	my $worker = $what->{worker} // '';
	return ($fault->{worker} // '') eq $worker if $kind eq 'worker';
	return !!$self->{pooled}{$worker} if $kind eq 'pool';
	if ($kind eq 'object')
	{
		my %hit = map { $_ => 1 } split /,/, $fault->{object} // '';
		return !!grep { $hit{$_} } split /,/, $what->{object} // '';
	}
	if ($kind eq 'cluster')
	{
		my $its = $fault->{cluster} // '';
		return $its eq ($self->{homes}{$worker} // 'none') || $its eq ($what->{cluster} // 'none');
	}
	# (a worker has thousands of connections in half an hour)
	return $self->{hit_server}{$worker}{ $fault->{number} } //= $self->_hits_server($fault, $worker);
}

sub _hits_server
{
	my ($self, $fault, $worker) = @_;
	my %servers = map { $_->[0] => 1 } grep { $_->[1] <= $fault->{end} && $_->[2] >= $fault->{begin} } @{ $self->{connections}{$worker} // [] };
	return !%servers || !!grep { $servers{$_} } split /,/, $fault->{server} // '';
}

# Whether it can be the reason for a loss, or for this SQLSTATE
sub _explains
{
	my ($self, $fault, $state) = @_;
	my (undef, $losses, @states) = @{ $KIND{ $fault->{kind} } };
	return 1 if defined $state && grep { $_ eq $state } @states;
	return 0 if $losses eq 'none' || defined $state && !$OF_LOSS{$state};
	return 1 if $losses eq 'every';
	# a delay comes twice: there and back; in the sync before, and one's own
	my $silence = $fault->{kind} =~ /^(?:delay|slow_sync)$/ ? 2 * ($fault->{ms} // 0) / 1000 : $fault->{end} - $fault->{begin};
	return $silence + $self->{session_timeout} / 3 + $ALLOWANCE > $self->{session_timeout};
}

# From when until when
sub _reach
{
	my ($self, $fault) = @_;
	my $expiry = $KIND{ $fault->{kind} }[1] eq 'none' ? 0 : $self->expiry;
	return ($fault->{begin}, $fault->{end} + $expiry + $ALLOWANCE);
}

# The faults that explain what happened at some time from $from to $to: { worker,
# object (or several, with commas), cluster (another one that it used then), state (a SQLSTATE; without one, a
# loss) }
sub explain
{
	my ($self, $what, $from, $to) = @_;
	return grep {
		my ($begin, $end) = $self->_reach($_);
		$begin <= $to && $end >= $from && $self->_hits($_, $what) && $self->_explains($_, $what->{state})
	} $self->faults;
}

# The times in which this { worker, object } cannot be expected to get what is free, or
# to give back what it holds: [ [ from, until ], ... ], sorted, disjoint.  After a fault
# that cannot end a session nobody has to come back.
sub hindered
{
	my ($self, $what) = @_;
	my ($worker, $object) = map { $_ // '' } @$what{qw(worker object)};
	return $self->{hindered}{"$worker $object"} //= _union(
		map { [ $_->{begin}, $_->{end} + ($self->_explains($_) ? $self->expiry : 0) ] }
		grep { $KIND{ $_->{kind} }[1] ne 'none' || $KIND{ $_->{kind} }[0] eq 'object' }
		grep { $self->_hits($_, { worker => $worker, object => $object }) } $self->faults);
}

# Whether somebody was told to delete this node
sub breaks { my ($self, $node) = @_; return !!grep { $_->{kind} eq 'lock_break' && $_->{node} eq ($node->{path} // '') } $self->faults; }

# When the process that holds this worker's locks stood still for certain: the faults
sub stops
{
	my ($self, $worker) = @_;
	my $home = $self->{homes}{$worker} // '';
	return @{ $self->{stops}{$worker} //= [ grep { $_->{kind} =~ /^backend_(?:stop|pause)$/ && $_->{worker} eq $worker && ($_->{cluster} // '') eq $home } $self->faults ] };
}

# Whether this worker's processes may have been slow then, although ZooKeeper was not
sub slowed
{
	my ($self, $worker, $from, $to) = @_;
	return !!grep { $_->{begin} <= $to && $_->{end} >= $from && ($_->{kind} eq 'standstill' || ($_->{worker} // '') eq $worker) } $self->faults;
}

# How much of a time that is
sub hindrance { my ($self, $what, $from, $to) = @_; return within($from, $to, $self->hindered($what)); }

# The share of the run in which nothing would have explained a refusal, or a loss,
# of these workers
sub judged
{
	my ($self, @workers) = @_;
	return 0 unless @workers && $self->{end} > 0;
	my $excused = 0;
	foreach my $worker (@workers)
	{
		my @loss = grep { $self->_explains($_) && $self->_hits($_, { worker => $worker }) } $self->faults;
		$excused += within(0, $self->{end}, _union(map { [ $self->_reach($_) ] } @loss));
	}
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
