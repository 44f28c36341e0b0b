
=pod

=head1 NAME

Torture::Ledger - compares what clients say with what ZooKeeper wrote down

=head1 SYNOPSIS

  my $ledger = Torture::Ledger->new(causes => $causes, found => sub { my ($kind, $text) = @_; ... });
  $ledger->node(\%node);                 # see Torture::TxnLog; with an object, times of the log
  $ledger->link(\@holds, \@attempts, sub { my ($pid, $time) = @_; ... });
  $ledger->judge_holds(@holds);
  $ledger->judge_releases;

=head1 DESCRIPTION

Every hold has a node, whose czxid is its token.  From the log:

  no node        a hold for which no node of its object was made, or another than its token says
  loss           a node was gone before its hold was given back, and no fault
                 explains why
  hand           it was deleted by somebody else's session
  turn           a lock was granted while an earlier node of its queue was there
  late grant     a lock was not granted in time when all earlier nodes were gone
  late release   a node was there for too long after its hold, or its request, was over

A waiter may take $SLACK seconds, as may a release, not counting the time in which a
fault hindered that very worker: see Torture::Causes.

=cut

package Torture::Ledger;

use strict;
use warnings;
use List::Util qw(max);

# How long an unhindered waiter may take on a busy machine, in seconds
our $SLACK = 3;

# ZooKeeper's clock has milliseconds
our $TOLERANCE = 0.02;

sub new
{
	my ($class, %opt) = @_;
	return bless { %opt, nodes => [], by_token => {}, judged => {} }, $class;
}

# { object, czxid, session, made, gone, how, by, pid }
sub node { my ($self, $node) = @_; push @{ $self->{nodes} }, $node; return; }

# Whether there is anything to compare with
sub exists { return !!@{ $_[0]->{nodes} }; }
sub judged { return $_[0]->{judged}; }

# The worker of each session
sub sessions { return %{ $_[0]->{worker} // {} }; }

# Finds the node of each hold, and the worker of each node.  Attempts are calls that
# wanted a lock: { worker, object, invoked, answered }.  The function tells which
# worker had the backend with this process id at that time.
sub link
{
	my ($self, $holds, $attempts, $worker_of) = @_;
	my (%queue, %attempts);
	foreach my $node (sort { $a->{czxid} <=> $b->{czxid} } @{ $self->{nodes} })
	{
		push @{ $queue{ $node->{object} } }, $node;
		$self->{by_token}{"$node->{object} $node->{czxid}"} = $node;
		$node->{worker} = $worker_of->($node->{pid}, $node->{made}) if defined $node->{pid};
	}
	$self->{queue} = \%queue;
	foreach my $hold (grep { ($_->{token} // '') =~ /^\d+$/ } @$holds)
	{
		my $node = $self->{by_token}{"$hold->{object} $hold->{token}"} // next;
		$hold->{node} = $node;
		$node->{hold} //= $hold;
		$node->{worker} //= $hold->{worker};
	}
	$self->{worker}{ $_->{session} } //= $_->{worker} for grep { defined $_->{worker} } @{ $self->{nodes} };
	$_->{worker} //= $self->{worker}{ $_->{session} } for @{ $self->{nodes} };

	# One that could not ask for its token, since it had lost the lock by then, has the
	# last node that was made for it.
	foreach my $hold (grep { !$_->{node} && ($_->{token} // '') !~ /^[1-9]/ } @$holds)
	{
		my ($node) = grep {
			     ($_->{worker} // '') eq $hold->{worker}
			  && !$_->{hold}
			  && $_->{made} >= $hold->{asked} - $TOLERANCE
			  && $_->{made} <= $hold->{begin} + $TOLERANCE
		} reverse @{ $queue{ $hold->{object} } // [] };
		next unless $node;
		$hold->{node} = $node;
		$node->{hold} = $hold;
	}

	push @{ $attempts{"$_->{worker} $_->{object}"} }, $_ for sort { $a->{invoked} <=> $b->{invoked} } @$attempts;
	$self->{attempts} = \%attempts;
	return;
}

sub judge_holds
{
	my ($self, @holds) = @_;
	foreach my $hold (@holds)
	{
		my $node = $hold->{node};
		$self->{found}->('no node', sprintf '%s with token %s, granted at %.3f', _what($hold), $hold->{token} // 'unknown', $hold->{begin})
		  if !$node || $node->{hold} != $hold || $node->{made} > $hold->{begin} + $TOLERANCE;
	}
	foreach my $object (sort { $a <=> $b } keys %{ $self->{queue} })
	{
		my @ahead;
		foreach my $node (@{ $self->{queue}{$object} })
		{
			@ahead = grep { ($_->{gone} // 9**9) > $node->{made} } @ahead;
			$self->_judge_hold($node->{hold}, $node, @ahead) if $node->{hold};
			push @ahead, $node;
		}
	}
	return;
}

sub _what { return "object $_[0]->{object}: hold $_[0]->{hold} of worker $_[0]->{worker}"; }

# The others are the nodes that were there before its own, and still were when that
# was made
sub _judge_hold
{
	my ($self, $hold, $node, @ahead) = @_;
	my $what = _what($hold);
	$self->{judged}{holds}++;
	$self->_judge_loss($hold, $node, $what);
	# (beside those of semaphores, and readers, others may stand)
	return if ($hold->{limit} // 1) != 1;

	my $free = $hold->{asked};
	foreach my $ahead (grep { $_->{session} ne $node->{session} } @ahead)
	{
		my $gone = $ahead->{gone} // 9**9;
		$free = max($free, $gone);
		$self->{found}->('turn', sprintf '%s was granted at %.3f; the node %d of worker %s, before its own, was there until %.3f',
			$what, $hold->{begin}, $ahead->{czxid}, $ahead->{worker} // '?', $gone)
		  if $gone > $hold->{begin} + $TOLERANCE;
	}
	$self->{judged}{turns}++;
	$self->{judged}{waits}++ if $free > $hold->{asked};
	$self->late('late grant', $hold->{worker}, $free, $hold->{begin}, "$what asked at %.3f", $hold->{asked});
	return;
}

# A hold ends before it is given back only with its node, and that for a reason
sub _judge_loss
{
	my ($self, $hold, $node, $what) = @_;
	my $gone = $node->{gone} // return;
	return if $gone >= $hold->{until} - $TOLERANCE;
	$self->{judged}{lost}++;
	my $how = sprintf '%s: its node went at %.3f (%s), and it was given back at %.3f', $what, $gone, $node->{how}, $hold->{until};
	my $stranger = $node->{how} eq 'delete' && ($self->{worker}{ $node->{by} } // '') ne $hold->{worker} && $node->{by} ne $node->{session};
	@$hold{qw(until lost)} = ($gone, 1);
	return $self->{found}->('hand', $how) if $stranger;
	my @why = $self->{causes}->explain($hold->{worker}, $gone, $gone);
	$self->{found}->('loss', $how) unless @why;
	return;
}

# What should have come at $since came at $at
sub late
{
	my ($self, $kind, $worker, $since, $at, $text, @args) = @_;
	return if $at <= $since;
	my $hindered = $self->{causes}->hindrance($worker, $since, $at);
	my $late = $at - $since - $hindered;
	$self->{judged}{"$kind seconds"} += $late;
	$self->{judged}{"$kind excused"} += $hindered;
	$self->{judged}{"$kind longest"} = max($late, $self->{judged}{"$kind longest"} // 0);
	$self->{found}->($kind, sprintf "$text: due at %.3f, came at %.3f; hindered for %.3f s of that", @args, $since, $at, $hindered)
	  if $late > $SLACK;
	return;
}

# A node goes soon after the hold, or the request, that it was made for
sub judge_releases
{
	my ($self) = @_;
	foreach my $node (@{ $self->{nodes} })
	{
		my $what = "object $node->{object}: the node $node->{czxid} of worker " . ($node->{worker} // '?');
		if (!defined $node->{gone})
		{
			$self->{found}->('leak', "$what is there at the end of ZooKeeper's log");
			next;
		}
		my $over = $node->{hold} ? $node->{hold}{end} : $self->_gave_up($node);
		next unless defined $over;
		$self->{judged}{releases}++;
		$self->late('late release', $node->{worker}, $over, $node->{gone}, $what);
	}
	return;
}

# When the call was over for which a node was made that was never granted.  (An answer
# can be lost, and a request arrive after its call.)
sub _gave_up
{
	my ($self, $node) = @_;
	return unless defined $node->{worker};
	my ($attempt) = grep { $_->{invoked} <= $node->{made} + $TOLERANCE }
	  reverse @{ $self->{attempts}{"$node->{worker} $node->{object}"} // [] };
	return unless $attempt && defined $attempt->{answered};
	return max($node->{made}, $attempt->{answered});
}

1;
