
=pod

=head1 NAME

Torture::Checker - finds violations in a torture test

=head1 SYNOPSIS

  my $checker = Torture::Checker->new(session_timeout => 2, tick => 0.5);
  $checker->event(@columns) ...              # as Torture::Log reads them
  $checker->history(\%row) ...               # what was committed
  $checker->object(\%final) ...              # the final state
  $checker->found('leak', 'a node ...');     # what others have found
  $checker->finish;
  $checker->violations;                      # [ kind, text ], ...

=head1 DESCRIPTION

The tables tell what was committed, even where a client never learned of it; the
log tells what was promised to whom, and when.

  lost update       a writer read another value than the previous one wrote
  lost element      a committed element of a set is missing, or an element is
                    there that was never committed, or twice
  sequence          the numbers of an object's writes are not 1, 2, 3, ...
  final value       an object does not have the value that was written last
  token order       a commit whose token is not greater than the previous one
  no token          committed, though the lock was known to be lost
  overlap           committed work of two holds at the same time, in any cluster
  same token        two holds of an object with one token
  promise           COMMIT reported the opposite of what happened
  late grant        a waiter did not get in time what had been released
  late answer       a call with a timeout did not return in time
  order             a later request was served first, without any fault
  no end            a call that never returned
  error             an SQLSTATE that no fault explains

and, reported by others: leak, crash.

A hold is "late" relative to what a waiter may expect: the end of the previous
hold, or the session timeout after its holder was struck.  Time in which
ZooKeeper or its network was disturbed or did not serve (see Torture::Watchman),
or in which its sessions had to recover, does not count.

=cut

package Torture::Checker;

use strict;
use warnings;
use List::Util qw(max min);

# How long an unhindered waiter may take on a busy machine, in seconds
our $SLACK = 3;

# How much earlier one must have asked to be certainly ahead in the queue, in
# seconds
our $HASTE = 1;

# SQLSTATEs with which calls may fail when there are faults
my %EXPLAINED = map { $_ => 1 } qw(40001 55000 57P01 57P02 57P03 58000 58030);

sub new
{
	my ($class, %opt) = @_;
	return bless {
		session_timeout => 2,
		tick => 0.5,
		%opt,
		violations => [],
		holds => {},       # hold => { object, worker, asked, begin, end, how, token }
		faults => {},      # number and worker => { kind, begin, end, ... }
		open => {},        # op and call => the invocation
		commits => {},     # op => phase
		calls => {},       # call => phase => count
		states => {},      # call => SQLSTATE => count
		history => [],
		objects => {},
		end => 0
	}, $class;
}

sub found { my ($self, $kind, $text) = @_; push @{ $self->{violations} }, [ $kind, $text ]; return; }
sub violations { return @{ $_[0]->{violations} }; }
sub holds { return _by_begin($_[0]->{holds}); }
sub faults { return _by_begin($_[0]->{faults}); }

sub _by_begin
{
	my ($hash) = @_;
	my @list = sort { $a->{begin} <=> $b->{begin} } values %$hash;
	return @list;
}

# ------------------------------------------------------------------- the log

sub event
{
	my ($self, $time, $who, $op, $call, $phase, $object, $more) = @_;
	$self->{end} = $time if $time > $self->{end};
	return $self->_fault($time, $op, $phase, $more) if $call eq 'fault';
	return $self->_hold($time, $who, $op, $phase, $object, $more) if $call eq 'hold';

	$self->{calls}{$call}{$phase}++;
	my $key = "$op $call";
	if ($phase eq 'invoked')
	{
		$self->{open}{$key} = { time => $time, worker => $who, object => $object, %$more };
		return;
	}
	# a call that hangs stays open
	return if $phase eq 'hangs';

	my $invoked = delete $self->{open}{$key};
	$self->{commits}{$op} = $phase if $call eq 'commit' && !$more->{only_lock};
	if (my $state = $more->{state})
	{
		$self->{states}{$call}{$state}++;
		push @{ $self->{errors} }, [ $time, "op $op, $call, object $object: $state $more->{message}", $state ];
	}
	if ($invoked && $invoked->{timeout})
	{
		push @{ $self->{limited} },
		  { begin => $invoked->{time} + $invoked->{timeout} / 1000, end => $time, op => $op, object => $object };
	}
	return;
}

sub _hold
{
	my ($self, $time, $worker, $op, $phase, $object, $more) = @_;
	if ($phase eq 'begin')
	{
		$self->{holds}{$op} = {
			hold => $op, object => $object, worker => $worker,
			begin => $time, asked => $more->{asked} // $time, token => $more->{token}
		};
	}
	elsif ($phase eq 'token') { $self->{holds}{$op}{token} = $more->{token}; }
	else { @{ $self->{holds}{$op} }{qw(end how)} = ($time, $more->{how}); }
	return;
}

sub _fault
{
	my ($self, $time, $number, $phase, $more) = @_;
	if ($phase eq 'begin') { $self->{faults}{$number} = { number => $number, begin => $more->{since} // $time, %$more }; }
	elsif ($phase eq 'end') { $self->{faults}{$number}{end} = $time; }
	return;
}

# ----------------------------------------------------------------- the tables

# Takes { op, object, worker, hold, token, granted, committed, cluster } and, if
# it has written, { seq, read, written }.  Times are in seconds, by the servers'
# clock.
sub history { my ($self, $row) = @_; push @{ $self->{history} }, $row; return; }

# { id, kind, value, seq, members => [ ... ] }
sub object { my ($self, $object) = @_; $self->{objects}{ $object->{id} } = $object; return; }

# ------------------------------------------------------------------ the verdict

sub finish
{
	my ($self) = @_;
	my @faults = $self->faults;
	$_->{end} //= $self->{end} for @faults;
	$_->{end} //= $self->{end} for values %{ $self->{holds} };
	$self->{hindered} = $self->_hindered(@faults);
	$self->{disturbed} = _union(map { [ $_->[0] - 0.1, $_->[1] ] } @{ $self->{hindered} });

	$self->_check_chain($_) for sort { $a->{id} <=> $b->{id} } values %{ $self->{objects} };
	$self->_check_overlap;
	$self->_check_promises;
	$self->_check_grants;
	$self->_check_errors;
	return $self->violations;
}

# The writes of an object, in the order in which they became visible
sub _check_chain
{
	my ($self, $object) = @_;
	my ($id, $kind) = @$object{qw(id kind)};
	my @writes = sort { $a->{seq} <=> $b->{seq} }
	  grep { $_->{object} == $id && defined $_->{seq} } @{ $self->{history} };
	my ($expected_seq, $value, $before) = (1, 0, undef);
	foreach my $w (@writes)
	{
		my $what = "object $id ($kind), write $w->{seq}, op $w->{op}";
		$self->found('sequence', "$what: expected $expected_seq") if $w->{seq} != $expected_seq;
		$expected_seq = $w->{seq} + 1;
		$self->found('lost update', "$what read $w->{read}, but op " . ($before ? $before->{op} : 'none') . " had written $value")
		  if defined $w->{read} && $w->{read} != $value;
		$value = $w->{written};
		if (!defined $w->{token}) { $self->found('no token', $what); }
		elsif ($before && defined $before->{token})
		{
			my $same = $before->{hold} == $w->{hold};
			$self->found('token order', "$what: token $w->{token} after $before->{token} of op $before->{op}")
			  if $same ? $w->{token} != $before->{token} : $w->{token} <= $before->{token};
		}
		$before = $w;
	}
	$self->found('sequence', "object $id: its counter is $object->{seq} after " . @writes . ' writes')
	  if $object->{seq} != @writes;

	if ($kind eq 'set')
	{
		my %there;
		$there{$_}++ for @{ $object->{members} };
		my %committed = map { $_->{op} => 1 } @writes;
		$self->found('lost element', "object $id: $_ was committed and is not there")
		  for grep { !$there{$_} } sort { $a <=> $b } keys %committed;
		$self->found('lost element', "object $id: $_ is there and was never committed")
		  for grep { !$committed{$_} } sort { $a <=> $b } keys %there;
		$self->found('lost element', "object $id: $_ is there $there{$_} times")
		  for grep { $there{$_} > 1 } sort { $a <=> $b } keys %there;
	}
	elsif ($object->{value} != $value)
	{
		$self->found('final value', "object $id is $object->{value}, the last write made it $value");
	}
	return;
}

# Committed work excluded other work: between the time from which it could rely
# on the lock and its commit, nobody else did the same.
sub _check_overlap
{
	my ($self) = @_;
	my (%last, %token);
	foreach my $row (sort { $a->{granted} <=> $b->{granted} || $a->{op} <=> $b->{op} } @{ $self->{history} })
	{
		my $last = $last{ $row->{object} };
		$self->found('overlap', sprintf 'object %d: op %d from %.6f, when op %d committed at %.6f',
			$row->{object}, $row->{op}, $row->{granted}, $last->{op}, $last->{committed})
		  if $last && $last->{hold} != $row->{hold} && $row->{granted} < $last->{committed};
		$last{ $row->{object} } = $row if !$last || $row->{committed} > $last->{committed};
	}

	# the tokens of all holds, including those that wrote nothing
	foreach my $hold ($self->holds)
	{
		next unless _has_token($hold);
		my $other = $token{"$hold->{object} $hold->{token}"};
		$self->found('same token', "object $hold->{object}: holds $other->{hold} and $hold->{hold} have $hold->{token}")
		  if $other;
		$token{"$hold->{object} $hold->{token}"} = $hold;
	}
	return;
}

sub _check_promises
{
	my ($self) = @_;
	my %committed = map { $_->{op} => $_ } @{ $self->{history} };
	my $commits = $self->{commits};
	foreach my $op (sort { $a <=> $b } keys %$commits)
	{
		my $phase = $commits->{$op};
		$self->found('promise', "op $op was told that it is committed, and is not")
		  if $phase eq 'ok' && !$committed{$op};
		$self->found('promise', "op $op was told that it is not committed, and is")
		  if $phase eq 'failed' && $committed{$op};
		$self->{outcome}{ $phase eq 'unknown' ? ($committed{$op} ? 'unknown, committed' : 'unknown, not committed') : $phase }++;
	}
	$self->found('promise', "op $_ is committed and never asked for it")
	  for grep { !$commits->{$_} } sort { $a <=> $b } keys %committed;

	foreach my $key (sort keys %{ $self->{open} })
	{
		my $call = $self->{open}{$key};
		$self->found('no end', sprintf 'op %s of worker %s, invoked at %.3f', $key, $call->{worker}, $call->{time});
	}
	return;
}

# Times in which a waiter cannot expect to get a free lock: [ [ from, until ],
# ... ]
sub _hindered
{
	my ($self, @faults) = @_;
	my $expiry = $self->{session_timeout} + 2 * $self->{tick};
	return _union(
		map {
			my $f = $_;
			# A client that is struck is gone, or has lost its locks, one
			# session timeout later
			$f->{kind} eq 'backend_kill' ? [ $f->{begin}, $f->{begin} + $expiry ]
			  : $f->{kind} eq 'backend_stop' ? [ $f->{begin}, min($f->{end}, $f->{begin} + $expiry) ]
			  : $f->{kind} eq 'pg_immediate' ? [ $f->{begin}, $f->{begin} + $expiry ]
			  # a server is elected, and clients find it or open new sessions
			  : [ $f->{begin}, $f->{end} + $expiry ]
		} @faults);
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
sub _within
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

sub _check_grants
{
	my ($self) = @_;
	my %by_object;
	push @{ $by_object{ $_->{object} } }, $_ for $self->holds;
	foreach my $object (sort { $a <=> $b } keys %by_object)
	{
		my $free = 0;    # time since when it was free
		my (@not_over, @calm);
		foreach my $hold (@{ $by_object{$object} })
		{
			my $begin = $hold->{begin};
			foreach my $before (splice @not_over)
			{
				$free = max($free, $before->{end} <= $begin ? $before->{end} : $self->_struck($before, $begin));
			}
			$self->_check_late($hold, $free);
			push @not_over, $hold;

			next if _within($hold->{asked}, $begin + 0.000001, $self->{disturbed});
			@calm = grep { !_within($_->{begin}, $begin, $self->{disturbed}) } @calm[ max(0, @calm - 10) .. $#calm ];
			$self->_check_order($hold, @calm);
			push @calm, $hold;
		}
	}
	foreach my $call (@{ $self->{limited} // [] })
	{
		my $late = $self->_late($call->{begin}, $call->{end});
		$self->found('late answer', sprintf 'op %d, object %d: %.3f s after its timeout', $call->{op}, $call->{object}, $late)
		  if $late > $SLACK;
	}
	return;
}

# A hold that its holder believed to have when another one got the lock was
# lost: when the holder was struck, or else at an unknown time.
sub _struck
{
	my ($self, $hold, $until) = @_;
	$self->{strikes} //= do {
		my %strikes;
		push @{ $strikes{ $_->{worker} } }, $_->{begin} for grep { $_->{worker} } $self->faults;
		\%strikes;
	};
	my @begin = grep { $_ >= $hold->{begin} && $_ <= $until } @{ $self->{strikes}{ $hold->{worker} } // [] };
	return @begin ? $begin[0] : $until;
}

sub _late
{
	my ($self, $since, $until) = @_;
	return $until - $since if $until <= $since;
	return $until - $since - _within($since, $until, $self->{hindered});
}

sub _check_late
{
	my ($self, $hold, $free) = @_;
	my $late = $self->_late(max($free, $hold->{asked}), $hold->{begin});
	$self->{waits}++ if $hold->{asked} < $free;
	$self->{longest} = $late if $late > ($self->{longest} // 0);
	$self->found('late grant', sprintf 'object %d: hold %d asked at %.3f, the one before was over at %.3f, and it was granted at %.3f',
		@$hold{qw(object hold asked)}, $free, $hold->{begin})
	  if $late > $SLACK;
	return;
}

# Holds follow the order of their tokens, which is that of the queue; and the
# order of the requests, where these are further apart than a busy machine
# explains.
sub _check_order
{
	my ($self, $hold, @earlier) = @_;
	$self->{ordered}++;
	foreach my $earlier (grep { _has_token($_) } @earlier)
	{
		next unless _has_token($hold);
		my $why =
			$earlier->{token} > $hold->{token} ? 'their tokens say the contrary'
		  : $earlier->{asked} > $hold->{asked} + $HASTE ? sprintf('it asked %.3f s later', $earlier->{asked} - $hold->{asked})
		  : next;
		$self->found('order', "object $hold->{object}: hold $earlier->{hold} had it before $hold->{hold}, $why");
	}
	return;
}

sub _has_token { return ($_[0]->{token} // '') =~ /^[1-9]/; }

sub _check_errors
{
	my ($self) = @_;
	foreach my $error (@{ $self->{errors} // [] })
	{
		my ($time, $text, $state) = @$error;
		next if $EXPLAINED{$state} && $self->faults;
		$self->found('error', sprintf 'at %.3f, %s', $time, $text);
	}
	return;
}

1;
