
=pod

=head1 NAME

Torture::Sweep - whether holds exclude each other

=head1 SYNOPSIS

  foreach (Torture::Sweep::conflicts(@holds)) { my ($later, @others) = @$_; ... }

=head1 DESCRIPTION

A hold is certain from the answer to the call that took the lock ("begin") to the
invocation of the one that gave it back, or to its loss ("until").  It has a
weight, and an object has a limit.  Of an exclusive lock both are 1; a place of a
semaphore weighs 1 and the limit is the number of places; a reader weighs 1, and
a writer as much as the limit, which no number of readers reaches.

Claim: the history of an object is linearizable if and only if at no time the
weights of its certain holds exceed the limit.

If they never do: let each lock take effect at its answer and each release at its
invocation, which are moments within these calls.  In the order of these moments,
of two at the same time the release first, the calls are a history of one process
that a lock would have allowed.

If a history is linearizable: a lock takes effect at its answer or before, a
release at its invocation or later.  So at every moment of a certain hold the
object counts it among its holders, whose weights never exceed the limit.

A hold that was lost is released by the service, at the moment of the loss.  The
claim says nothing about a lock that is refused without need, which is right and
useless, nor about fairness.

=cut

package Torture::Sweep;

use strict;
use warnings;

# Whether one of two holds of an object keeps the other out
sub exclude { my ($one, $two) = @_; return ($one->{weight} // 1) + ($two->{weight} // 1) > ($one->{limit} // 1); }

# Takes holds { object, begin, until, weight, limit }, all weights and limits 1 by
# default.  Returns [ hold, those which it was granted beside ], ...
sub conflicts
{
	my (%active, @conflicts);
	foreach my $hold (sort { $a->{begin} <=> $b->{begin} } @_)
	{
		# (one that was lost before its answer arrived is never certain)
		next if $hold->{until} <= $hold->{begin};
		my $active = $active{ $hold->{object} } //= [];
		@$active = grep { $_->{until} > $hold->{begin} } @$active;
		my $sum = $hold->{weight} // 1;
		$sum += $_->{weight} // 1 for @$active;
		push @conflicts, [ $hold, @$active ] if $sum > ($hold->{limit} // 1);
		push @$active, $hold;
	}
	return @conflicts;
}

1;
