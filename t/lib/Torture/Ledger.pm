
=pod

=head1 NAME

Torture::Ledger - compares what clients say with what ZooKeeper wrote down

=head1 SYNOPSIS

  my $ledger = Torture::Ledger->new(causes => $causes, found => sub { my ($kind, $text, $worker) = @_; ... });
  $ledger->node(\%node);                 # see Torture::TxnLog; with an object, times of the log
  $ledger->link(\@holds, \@attempts, sub { my ($pid, $time) = @_; ... });
  $ledger->judge_holds(@holds);
  $ledger->judge_releases;
  $ledger->judge_refusals;

=head1 DESCRIPTION

Every hold has a node, whose czxid is its token.  From the log:

  no node        a hold for which no node of its object was made, or another than its token says
  loss           a node was gone before its hold was given back, and no fault
                 explains why
  hand           it was deleted by somebody else's session, and that is no fault
  turn           a lock was granted while an earlier node that it has to wait for was there
  stale grant    a lock was granted although its own node had gone
  late grant     a lock was not granted in time when all of these were gone
  late release   a node was there for too long after its hold, or its request, was over;
                 or went on to exclude readers when its holder had become one
  needless refusal
                 a call returned false, and nobody was there who could have been in its way

A writer waits for all earlier nodes; a reader for earlier writers, until they are gone
or have become readers; for a place of a semaphore, fewer of the earlier ones than
there are places must be left.  Nobody waits for nodes of its own session.  Several
locks that are taken at once are due when the last of them is.

A hold that says "from" has the node of that one: a writer that has become a reader, or
a reader again.

A grant and the end of its node can cross each other: a grant is stale if the node had
gone before it can have been decided on.  That is when the lock was free, or the end of
the stop in which it became free; or $ANSWER seconds before the answer came, unless a
fault slowed the worker down in between.  A node that is deleted by hand may have gone another
third of the session timeout earlier, for which a proof that it is there is good.

A waiter may take $SLACK seconds, as may a release, not counting the time in which a
fault hindered that very worker: see Torture::Causes.

ZooKeeper can lose what it has answered.  That is believed of an epoch (of a leader) if
holds of two workers or more have tokens of it that the log does not have, and all of
these are greater than whatever it has of that epoch.  It began after the last change
before them that is in the log, and was over with the first one of a later epoch; in this
time each of these holds must have been asked for, or granted.  It is also believed of an
epoch if its log has a node whose number in its directory was given once more by a later
leader, while by the log that node was still there: the servers have logged it, and do not
know of it.  Then these are not judged:

  no node        of these holds
  turn, stale grant, late grant
                 of who waited at some time in between
  turn, stale grant, late release
                 for nodes that the log has before, or that are forgotten, and has
                 after: they may have been deleted in between, and have come back, for
                 some servers or all; or none may know of them.  So nobody need wait for
                 them, but may
  loss, hand     of such nodes
  leak           of forgotten ones; nor, since then, calls without end
  needless refusal
                 in between, and until a session timeout later

=cut

package Torture::Ledger;

use strict;
use warnings;
use List::Util qw(max min);

# How long an unhindered waiter may take on a busy machine, in seconds
our $SLACK = 3;

# ZooKeeper's clock has milliseconds
our $TOLERANCE = 0.02;

# The leader gives a change its time before the quorum has logged it, which takes up to so
# long, in seconds; until then it is not to be seen
our $LOGGED = 0.5;

# How long the answer of a call may take to the client that waits for it, in seconds
our $ANSWER = 0.5;

sub new
{
	my ($class, %opt) = @_;
	return bless { %opt, nodes => [], by_token => {}, judged => {} }, $class;
}

# { object, czxid, session, mode, made, shared, gone, how, by, pid }; mode: exclusive
# (default), shared or semaphore
sub node { my ($self, $node) = @_; push @{ $self->{nodes} }, $node; return; }

# A change in ZooKeeper's log, or one that so few servers have logged that it does not count
sub logged
{
	my ($self, $zxid, $time, $doubtful) = @_;
	if ($doubtful) { $self->{doubtful}{$zxid} = 1; return; }
	my $epoch = $self->{epochs}{ $zxid >> 32 } //= { zxid => $zxid, first => $time, last => $time };
	@$epoch{qw(zxid first last)} = (max($epoch->{zxid}, $zxid), min($epoch->{first}, $time), max($epoch->{last}, $time));
	return;
}

sub judged { return $_[0]->{judged}; }

# What ZooKeeper has lost: { epoch, from, to, holds => [ ... ], doubtful => how many of
# their tokens a single server has logged }, or { epoch, from, to, again => how many numbers
# were given once more }, ...
sub losses { return @{ $_[0]->{losses} // [] }; }

# The worker of each session
sub sessions { return %{ $_[0]->{worker} // {} }; }

# Finds the node of each hold, and the worker of each node.  Attempts are calls that
# wanted a lock: { worker, object, invoked, answered, got, function }; one for each of
# several objects, those but the first "of" that one.  The function tells which
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
		_has($hold, $node);
		$node->{worker} //= $hold->{worker};
	}
	$self->{worker}{ $_->{session} } //= $_->{worker} for grep { defined $_->{worker} } @{ $self->{nodes} };
	$_->{worker} //= $self->{worker}{ $_->{session} } for @{ $self->{nodes} };

	# One that could not ask for its token, since it had lost the lock by then, has the
	# last node that was made for it.
	foreach my $hold (grep { !$_->{node} && !defined $_->{from} && ($_->{token} // '') !~ /^[1-9]/ } @$holds)
	{
		my ($node) = grep {
			     ($_->{worker} // '') eq $hold->{worker}
			  && !$_->{holds}
			  && _mode($_) eq _mode($hold)
			  && $_->{made} >= $hold->{asked} - $TOLERANCE
			  && $_->{made} <= $hold->{begin} + $TOLERANCE
		} reverse @{ $queue{ $hold->{object} } // [] };
		_has($hold, $node) if $node;
	}
	my %hold = map { $_->{hold} => $_ } @$holds;
	foreach my $hold (grep { !$_->{node} && defined $_->{from} } @$holds)
	{
		my $before = $hold{ $hold->{from} } // next;
		_has($hold, $before->{node}) if $before->{node};
	}

	$self->_find_forgotten;
	$self->_find_losses(grep { !$_->{node} && ($_->{token} // '') =~ /^[1-9]\d*$/ } @$holds);

	push @{ $attempts{"$_->{worker} $_->{object}"} }, $_ for sort { $a->{invoked} <=> $b->{invoked} } @$attempts;
	$self->{attempts} = \%attempts;
	return;
}

sub _has { my ($hold, $node) = @_; $hold->{node} = $node; push @{ $node->{holds} }, $hold; return; }
sub _mode { return $_[0]->{mode} // 'exclusive'; }

# These holds have tokens of which the log has no node
sub _find_losses
{
	my ($self, @holds) = @_;
	my $epochs = $self->{epochs} // {};
	my %without;
	push @{ $without{ $_->{token} >> 32 } }, $_ for @holds;
	foreach my $epoch (sort { $a <=> $b } keys %without)
	{
		my @lost = @{ $without{$epoch} };
		my $from = max(map { $epochs->{$_}{last} } grep { $_ <= $epoch } keys %$epochs) // next;
		my $to = min(map { $epochs->{$_}{first} } grep { $_ > $epoch } keys %$epochs) // next;
		my $logged = $epochs->{$epoch} ? $epochs->{$epoch}{zxid} : 0;
		# (who is behind the pooler shares its sessions)
		my %witness = map { $self->{causes}{pooled}{ $_->{worker} } ? 'pooler' : $_->{worker} => 1 } @lost;
		next if keys %witness < 2 || grep { $_->{token} <= $logged || $_->{begin} < $from - $TOLERANCE || $_->{asked} > $to + $TOLERANCE } @lost;
		$_->{unsure} = $_->{token_lost} = 1 for @lost;
		my %doubtful = map { $_->{token} => 1 } grep { $self->{doubtful}{ $_->{token} } } @lost;
		push @{ $self->{losses} }, { epoch => $epoch, from => $from, to => $to, holds => \@lost, doubtful => scalar keys %doubtful };
	}
	return;
}

# These nodes are logged, and forgotten: a later one has the number of one that is still
# there, so that its directory was not made anew in between.
sub _find_forgotten
{
	my ($self) = @_;
	my $epochs = $self->{epochs} // {};
	my %loss;
	foreach my $queue (values %{ $self->{queue} })
	{
		my @there;
		foreach my $node (@$queue)
		{
			my ($number) = ($node->{path} // '') =~ /(\d{10})$/ or next;
			@there = grep { ($_->[1]{gone} // 9**9) > $node->{made} } @there;
			foreach my $forgotten (map { $_->[1] } grep { $_->[0] >= $number } @there)
			{
				my $epoch = $forgotten->{czxid} >> 32;
				my $to = min(map { $epochs->{$_}{first} } grep { $_ > $epoch } keys %$epochs);
				next if !defined $to || $to > $node->{made};
				my $loss = $loss{$epoch} //= { epoch => $epoch, from => $forgotten->{made}, to => $to, holds => [] };
				$loss->{from} = min($loss->{from}, $forgotten->{made});
				$loss->{again}++;
			}
			push @there, [ $number, $node ];
		}
	}
	push @{ $self->{losses} }, map { $loss{$_} } sort { $a <=> $b } keys %loss;
	return;
}

# Whether some time lies, in part, within what ZooKeeper has lost, or so long after it
sub _is_lost_time
{
	my ($self, $from, $to, $after) = @_;
	return !!grep { $to >= $_->{from} && $from <= $_->{to} + ($after // 0) } $self->losses;
}

# Whether this node was logged in a time of which something is forgotten
sub _is_forgotten
{
	my ($self, $node) = @_;
	return !!grep { $_->{again} && $node->{made} >= $_->{from} && $node->{made} <= $_->{to} } $self->losses;
}

# Whether something had been forgotten by then: from then on servers may have different data,
# for good, and who waits at one of them waits for what the others do not have
sub has_forgotten
{
	my ($self, $time) = @_;
	return !!grep { $_->{again} && $_->{from} <= $time } $self->losses;
}

# Whether the log has this node before something was lost, or forgotten, and after
sub _may_have_come_back
{
	my ($self, $node) = @_;
	return !!grep { $node->{made} <= ($_->{again} ? $_->{to} : $_->{from}) && ($node->{gone} // 9**9) >= $_->{to} } $self->losses;
}

# Whether a call may have been refused because of something that is lost
sub lost_refusal
{
	my ($self, $from, $to) = @_;
	my $lost = $self->_is_lost_time($from, $to, $self->{causes}{session_timeout});
	$self->{judged}{'lost refusals'}++ if $lost;
	return $lost;
}

sub judge_holds
{
	my ($self, @holds) = @_;
	my %due;    # call => when all that it wanted was free
	foreach my $hold (@holds)
	{
		my $node = $hold->{node};
		$self->{found}->('no node', sprintf('%s with token %s, granted at %.3f', _what($hold), $hold->{token} // 'unknown', $hold->{begin}), $hold->{worker})
		  if !$hold->{token_lost} && (!$node || $node->{made} > $hold->{begin} + $TOLERANCE || $node->{holds}[0] != $hold && !defined $hold->{from});
	}
	foreach my $object (sort { $a <=> $b } keys %{ $self->{queue} })
	{
		my (@ahead, %lost);
		foreach my $node (@{ $self->{queue}{$object} })
		{
			@ahead = grep { ($_->{gone} // 9**9) > $node->{made} } @ahead;
			push @{ $lost{ $node->{worker} // '' } }, [ $node, @ahead ] if !$node->{holds} && defined $node->{gone};
			foreach my $hold (@{ $node->{holds} // [] })
			{
				$self->{judged}{holds}++;
				$self->_judge_loss($hold, $node);
				next if defined $hold->{from};
				my $call = $hold->{group} // $hold->{hold};
				if ($self->_is_lost_time($hold->{asked}, $hold->{begin}))
				{
					$hold->{unsure} = 1;
					$due{$call} = 9**9;
					next;
				}
				my @there = grep { !$self->_may_have_come_back($_) } @ahead;
				$hold->{unsure} = 1 if @there < @ahead;
				$self->_judge_news($hold, $node, $self->_judge_turn($hold, $node, @there));
				my ($free) = $self->_free($hold, $node, @ahead);

				# it has waited with other nodes before, which it has lost, or given up in doubt
				my $several = ($hold->{kind} // '') eq 'several';
				foreach my $before (grep { $_->[0]{made} >= $hold->{asked} - $TOLERANCE } @{ $lost{ $hold->{worker} } // [] })
				{
					my ($earlier, @ahead_then) = @$before;
					my $given_up = !_is_lost($earlier);
					# (of several at once, those after the first that is taken are given up meanwhile)
					next if $several && $given_up;
					my $until = $given_up ? min($earlier->{gone}, $node->{made}) : $earlier->{gone};
					my ($since) = $self->_free($hold, $earlier, @ahead_then);
					$self->late('late grant', $hold, $since, $until, _what($hold) . ' asked at %.3f, with a node that it lost', $hold->{asked}) unless $several;
					$free = max($free, $until);
				}
				$due{$call} = max($due{$call} // 0, $free);
			}
			push @ahead, $node;
		}
	}
	my %judged;
	foreach my $hold (grep { $_->{node} && !defined $_->{from} } @holds)
	{
		my $call = $hold->{group} // $hold->{hold};
		next if $judged{$call}++;
		$self->late('late grant', $hold, $due{$call}, $hold->{begin}, _what($hold) . ' asked at %.3f', $hold->{asked});
	}
	return;
}

sub _what { return "object $_[0]->{object}: hold $_[0]->{hold} of worker $_[0]->{worker}" . (_mode($_[0]) eq 'exclusive' ? '' : " ($_[0]->{mode})"); }

# When such a hold need no longer wait for this node
sub _out_of_the_way
{
	my ($hold, $ahead) = @_;
	my $gone = $ahead->{gone} // 9**9;
	return $gone if _mode($hold) ne 'shared';
	return 0 if _mode($ahead) eq 'shared';
	return min($gone, $ahead->{shared} // $gone);
}

# Neither its owner nor the end of its session took it away in good order
sub _is_lost { my ($node) = @_; return defined $node->{gone} && ($node->{how} eq 'expiry' || $node->{how} eq 'delete' && $node->{by} ne $node->{session}); }

# The others are the nodes that were there before its own, and still were when that
# was made.  Returns the time at which it was free, and [ time, node ] for each of them.
sub _free
{
	my ($self, $hold, $node, @ahead) = @_;
	my @until = sort { $b->[0] <=> $a->[0] } map { [ _out_of_the_way($hold, $_), $_ ] } grep { $_->{session} ne $node->{session} } @ahead;

	# beside it, others may have a place
	splice @until, 0, ($hold->{limit} // 1) - 1 if _mode($hold) eq 'semaphore';
	return (max($hold->{asked}, map { $_->[0] } @until), @until);
}

sub _judge_turn
{
	my ($self, $hold, $node, @ahead) = @_;
	my ($free, @until) = $self->_free($hold, $node, @ahead);
	foreach my $ahead (grep { $_->[0] > $hold->{begin} + $TOLERANCE } @until)
	{
		$hold->{before_its_turn} = 1;
		$self->{found}->('turn', sprintf('%s was granted at %.3f; the node %d of worker %s, before its own, was in its way until %.3f',
			_what($hold), $hold->{begin}, $ahead->[1]{czxid}, $ahead->[1]{worker} // '?', $ahead->[0]), $hold->{worker});
	}
	my $kind = $hold->{kind} // _mode($hold);
	$self->{judged}{turns}{$kind}++;
	$self->{judged}{waits}{$kind}++ if $free > $hold->{asked};
	return $free;
}

# For how long a proof that this node is there is good, although it is gone by then.  (A
# session lives on for longer than that.)
sub good_for
{
	my ($self, $node) = @_;
	my $by_hand = $node->{how} eq 'delete' && $node->{by} ne $node->{session};
	return $by_hand ? $ANSWER + $self->{causes}{session_timeout} / 3 : 0;
}

# What a grant says was true when it was decided on
sub _judge_news
{
	my ($self, $hold, $node, $free) = @_;
	my $causes = $self->{causes};
	my $gone = $node->{gone} // return;
	$gone += $self->good_for($node);
	return if $gone >= $hold->{begin};
	my $decided = $free > $hold->{begin} ? $hold->{asked} : $free;
	foreach my $stop ($causes->stops($hold->{worker}))
	{
		$decided = max($decided, $stop->{end} - $TOLERANCE) if $stop->{begin} + $TOLERANCE <= $decided;
	}
	my $answered = $hold->{begin} - $ANSWER;
	$decided = max($decided, $answered) unless $causes->slowed($hold->{worker}, $answered, $hold->{begin});
	$self->{found}->('stale grant', sprintf('%s was granted at %.3f, and that cannot have been decided before %.3f; its node went at %.3f (%s)',
		_what($hold), $hold->{begin}, $decided, $node->{gone}, $node->{how}), $hold->{worker})
	  if $gone < $decided;
	return;
}

# A hold ends before it is given back only with its node, and that for a reason
sub _judge_loss
{
	my ($self, $hold, $node) = @_;
	my $gone = $node->{gone} // return;
	if ($gone >= $hold->{until} - $TOLERANCE)
	{
		# a pooler has died, say, and the backend has ended before its client knew
		$hold->{until} = $gone if $gone < $hold->{until} && $self->{causes}->explain($hold, $gone, $gone);
		return;
	}
	$self->{judged}{lost}++;
	my $how = sprintf '%s: its node went at %.3f (%s), and it was given back at %.3f', _what($hold), $gone, $node->{how}, $hold->{until};
	my $stranger = $node->{how} eq 'delete' && ($self->{worker}{ $node->{by} } // '') ne $hold->{worker} && $node->{by} ne $node->{session};
	@$hold{qw(until lost)} = ($gone, 1);
	return $hold->{unsure} = 1 if $self->_may_have_come_back($node);
	return if $stranger && $self->{causes}->breaks($node);
	return $self->{found}->('hand', $how) if $stranger;
	my @why = $self->{causes}->explain($hold, $gone, $gone);
	$self->{found}->('loss', $how, $hold->{worker}) unless @why;
	return;
}

# Whether a reader could not have become a writer at that time: a writer who had asked
# before waited for it
sub is_stuck
{
	my ($self, $reader, $from, $to) = @_;
	my $own = $reader->{node} // return 0;
	return !!grep {
		     _mode($_) eq 'exclusive'
		  && $_->{czxid} > $own->{czxid}
		  && $_->{session} ne $own->{session}
		  && $_->{made} <= $to + $TOLERANCE
		  && ($_->{gone} // 9**9) >= $from - $TOLERANCE
	} @{ $self->{queue}{ $own->{object} } };
}

# What should have come to $what (a hold, a node: it has a worker) at $since came at $at
sub late
{
	my ($self, $kind, $what, $since, $at, $text, @args) = @_;
	return if $at <= $since;
	my $hindered = $self->{causes}->hindrance($what, $since, $at);
	my $late = $at - $since - $hindered;
	$self->{judged}{"$kind seconds"} += $late;
	$self->{judged}{"$kind excused"} += $hindered;
	$self->{judged}{"$kind longest"} = max($late, $self->{judged}{"$kind longest"} // 0);
	$self->{found}->($kind, sprintf("$text: due at %.3f, came at %.3f; hindered for %.3f s of that", @args, $since, $at, $hindered), $what->{worker})
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
			# of one that is forgotten there is no end; what is left, others look at
			next if $self->_is_forgotten($node);
			$self->{found}->('leak', "$what is there at the end of ZooKeeper's log");
			next;
		}
		my @holds = @{ $node->{holds} // [] };
		my $over = $self->_over($node) // next;
		if ($self->_may_have_come_back($node))
		{
			$self->{judged}{'lost releases'}++;
			next;
		}
		$self->{judged}{releases}++;
		$self->late('late release', $node, $over, $node->{gone}, $what);

		# the first of its holds was a writer's, the next one is a reader's
		next unless @holds > 1 && _mode($node) eq 'exclusive';
		$self->{judged}{downgrades}++;
		$self->late('late release', $node, $holds[0]{end}, min($node->{gone}, $node->{shared} // $node->{gone}), "$what, which was to be a reader's");
	}
	return;
}

# Who is told that somebody else has the lock must have met somebody
sub judge_refusals
{
	my ($self) = @_;
	my (%objects, %refused);
	foreach my $attempt (map { @$_ } values %{ $self->{attempts} })
	{
		my $call = $attempt->{of} // $attempt;
		next if ($call->{got} // '') ne 'f';
		$refused{$call} = $call;
		push @{ $objects{$call} }, $attempt->{object};
	}
	foreach my $call (sort { $refused{$a}{invoked} <=> $refused{$b}{invoked} } keys %refused)
	{
		my ($from, $to, $function) = @{ $refused{$call} }{qw(invoked answered function)};
		my %wants = (mode => $function =~ /shared/ ? 'shared' : 'exclusive');
		$self->{judged}{refusals}++;
		my $in_the_way = sub {
			my $until = _out_of_the_way(\%wants, $_[0]);
			return $until >= $from || $from - $until <= $LOGGED + min($SLACK, $self->{causes}->hindrance($refused{$call}, $until, $from));
		};
		next if grep { $_->{made} <= $to + $TOLERANCE && $in_the_way->($_) } map { @{ $self->{queue}{$_} // [] } } @{ $objects{$call} };
		next if $self->lost_refusal($from, $to);
		$self->{found}->('needless refusal', sprintf('object %s: %s of worker %s returned false at %.3f',
				join(', ', @{ $objects{$call} }), $function, $refused{$call}{worker}, $to), $refused{$call}{worker});
	}
	return;
}

# The node that has no purpose any more, and for which this call, a { worker, object,
# objects, invoked }, waited in vain until $at: its own node stood behind that one.  (A
# client can forget a node of its own, and go on with its session.)
sub left_behind
{
	my ($self, $call, $at) = @_;
	foreach my $object (split /,/, $call->{objects} // $call->{object})
	{
		my @there = grep { $_->{made} <= $at && ($_->{gone} // 9**9) >= $at - $SLACK } @{ $self->{queue}{$object} // [] };
		my ($own) = grep { ($_->{worker} // '') eq $call->{worker} && $_->{made} >= $call->{invoked} - $TOLERANCE } @there;
		my ($left) = grep { $own && $_->{czxid} < $own->{czxid} && ($self->_over($_) // $at) + $SLACK < $at } @there;
		return $left if $left;
	}
	return;
}

# When the hold was over, or the request, that a node was made for, if that is known
sub _over
{
	my ($self, $node) = @_;
	my @holds = @{ $node->{holds} // [] };
	return @holds ? max(map { $_->{end} } @holds) : $self->_gave_up($node);
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
