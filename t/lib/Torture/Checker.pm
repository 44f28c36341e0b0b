
=pod

=head1 NAME

Torture::Checker - finds violations in a torture test

=head1 SYNOPSIS

  my $checker = Torture::Checker->new(session_timeout => 2, tick => 0.5);
  $checker->event(@columns) ...              # as Torture::Log reads them
  $checker->history(\%row) ...               # what was committed
  $checker->object(\%final) ...              # the final state
  $checker->{ledger}->node(\%node) ...       # ZooKeeper's account
  $checker->{causes}->restarted(@restart) ...
  $checker->found('leak', 'a node ...');     # what others have found
  $checker->finish;
  $checker->violations;                      # [ kind, text ], ...

=head1 DESCRIPTION

There are three accounts of a run: the log of all calls, what was promised to whom,
and when; the tables, what was committed, even where a client never learned of it;
and ZooKeeper's own log, which node was there when.

From the tables:

  lost update       a writer read another value than the previous one wrote
  sequence          the numbers of an object's writes are not 1, 2, 3, ...
  final value       an object does not have the value that was written last
  token order       a commit whose token is not greater than the previous one
  no token          committed, though the lock was known to be lost
  overlap           committed work of holds that exclude each other at the same time, in
                    any cluster; of readers and semaphores, whom no fence protects, only
                    if neither had lost its lock

From the log of calls:

  two holders       certain holds that exclude each other: see Torture::Sweep
  same token        two holds of an object with one token
  promise           COMMIT reported the opposite of what happened, or did not do the same
                    in a foreign server, or for who listens to notifications
  late answer       a call with a timeout did not return in time
  order             a later request was served first, without any fault
  no end            a call that never returned
  refusal           40001, and no fault explains it
  error             another SQLSTATE that no fault explains; 40P01, and no writer was
                    waiting for the reader that wanted to become one

From both:

  changed under a reader
                    what a reader saw within its hold was written anew, though neither
                    it nor the writer had lost the lock
  stale read        a reader did not see what had been committed under an earlier hold

With ZooKeeper's log (see Torture::Ledger): no node, loss, hand, turn, stale
grant, late grant, late release, needless refusal; and

  late commit       a commit came after its node had been deleted, and its backend had
                    not been stopped during COMMIT, nor waited there for the standby of
                    the other cluster; only where the guard is on, and in the cluster
                    where the lock was held

And, reported by others: leak, crash, worker, clock.

Where clients of other libraries share the locks, what these do to themselves does not
count, but is told: a lock that they take before its turn, or lose without a fault,
or get or give back late, or a node that they forget, and for which somebody waits without
end.  What they hold rightly, everybody has to respect.

A fault explains only what it hit, and not for long: see Torture::Causes.  Whatever is
not explained is a violation.  How much could have been one, "judged" says.  What
ZooKeeper itself has lost, "losses" says: see Torture::Ledger.

=cut

package Torture::Checker;

use strict;
use warnings;
use List::Util qw(max min);

use Torture::Causes;
use Torture::Ledger;
use Torture::Sweep;

# All that it, or others, can find
our @KINDS = (
	'lost update', 'sequence', 'final value', 'token order', 'no token', 'overlap', 'two holders', 'same token', 'promise',
	'late answer', 'order', 'no end', 'refusal', 'error', 'changed under a reader', 'stale read', 'no node', 'loss', 'hand', 'turn',
	'stale grant', 'late grant', 'late release', 'needless refusal', 'late commit', 'leak');

# How much earlier one must have asked to be certainly ahead in the queue, in
# seconds
our $HASTE = 1;

# How much later than its node's deletion a commit may come, in seconds: the guard
# has left a third of the session timeout
our $COMMIT_SLACK = 0.5;

# homes: worker => the cluster in which it locks; foreign: worker => the other client
# that takes its locks; at_standby: worker => whether it reads at the standby of its
# cluster; pooled: worker => whether it shares its sessions, behind a pooler, with other
# such workers; guard: zklock.commit_guard
sub new
{
	my ($class, %opt) = @_;
	my $self = bless {
		session_timeout => 2,
		tick => 0.5,
		homes => {},
		foreign => {},
		at_standby => {},
		pooled => {},
		guard => 'on',
		%opt,
		violations => [],
		foreign_faults => [],
		holds => {},       # hold => { object, worker, asked, begin, left, end, how, token, ... }
		current => {},     # worker => hold => what it holds now
		looks => {},       # hold => [ { seq, invoked, answered }, ... ]
		attempts => [],    # { worker, object, invoked, answered }
		backends => {},    # pid => [ [ time, worker ], ... ]
		open => {},        # op and call => the invocation
		commits => {},     # op => { phase, invoked, answered }
		calls => {},       # call => phase => count
		states => {},      # call => SQLSTATE => count
		connections => [],
		history => [],
		abroad => [],
		objects => {},
		epoch => 0,        # what the clock showed when the log began
		used => {},        # worker and cluster => when the connection last worked
		end => 0
	}, $class;
	$self->{causes} = Torture::Causes->new(map { $_ => $self->{$_} } qw(session_timeout tick homes pooled));
	$self->{ledger} = Torture::Ledger->new(causes => $self->{causes}, found => sub { $self->found(@_) });
	return $self;
}

# What another client did to itself is told apart, if the worker is given
sub found
{
	my ($self, $kind, $text, $worker) = @_;
	return if $self->{unfair} && $kind =~ /^(?:order|late grant)$/;
	push @{ $self->{ defined $worker && $self->{foreign}{$worker} ? 'foreign_faults' : 'violations' } }, [ $kind, $text ];
	return;
}

sub violations { return @{ $_[0]->{violations} }; }
sub faults { return $_[0]->{causes}->faults; }

sub holds
{
	my ($self) = @_;
	my @list = sort { $a->{begin} <=> $b->{begin} } values %{ $self->{holds} };
	return @list;
}

# ------------------------------------------------------------------- the log

sub event
{
	my ($self, $time, $who, $op, $call, $phase, $object, $more) = @_;
	$self->{end} = $time if $time > $self->{end};
	return $self->{causes}->fault($time, $op, $phase, $more) if $call eq 'fault';
	return $self->_hold($time, $who, $op, $phase, $object, $more) if $call eq 'hold';
	if ($call eq 'heard') { $self->{heard}{$op}++; return; }
	if ($call eq 'listen') { push @{ $self->{listened}{ $more->{cluster} } }, [ @$more{qw(since until)} ]; return; }
	if ($call eq 'clock')
	{
		$self->{epoch} ||= $more->{epoch} - $time;
		return;
	}

	$self->{calls}{$call}{$phase}++;
	my $key = "$op $call";
	if ($phase eq 'invoked')
	{
		my $invoked = $self->{open}{$key} = { time => $time, invoked => $time, worker => $who, object => $object, %$more };
		push @{ $self->{attempts} }, map { $_ == $object ? $invoked : { %$invoked, of => $invoked, object => $_ } } split /,/, $more->{objects} // $object
		  if $call eq 'lock';
		return;
	}
	# a call that hangs stays open
	if ($phase eq 'hangs') { $self->{open}{$key}{hangs} = $time; return; }

	my $invoked = delete $self->{open}{$key};
	@$invoked{qw(answered got)} = ($time, $more->{got}) if $invoked;
	my $since = $invoked ? $invoked->{time} : $time;
	push @{ $self->{backends}{ $more->{pid} } }, [ $time, $who ] if $call =~ /^(?:connect|backend)$/ && $more->{pid};
	push @{ $self->{looks}{ $more->{hold} } }, { seq => $more->{got}, invoked => $since, answered => $time } if $call eq 'look' && $phase eq 'ok';
	$self->{commits}{$op} = { phase => $phase, invoked => $since, answered => $time, state => $more->{state}, worker => $who, map { $_ => $more->{$_} } qw(cluster abroad notifies warning) }
	  if $call eq 'commit' && !$more->{only_lock};
	my $used = \$self->{used}{"$who " . ($more->{cluster} // '')};
	$$used = $time if $phase eq 'ok';
	my $state = $more->{state} || ($more->{closed} ? 'closed' : undef);
	# what PostgreSQL says when it cannot make the descriptor that it waits with
	$state = 'EMFILE' if ($state // '') eq 'XX000' && $more->{message} =~ /: Too many open files/;
	if ($state)
	{
		# a connection that has broken since it was last used says so at its next use
		$since = $$used // $since if $state =~ /^57P0|^closed$|^08P01$/;
		$self->{states}{$call}{$state}++ if $more->{state};
		push @{ $self->{errors} },
		  {
			since => $since, time => $time, worker => $who, cluster => $more->{abroad} // $more->{cluster}, state => $state,
			abroad => $more->{abroad}, notifies => $more->{notifies},
			object => $invoked && $invoked->{objects} || $object, holds => [ values %{ $self->{current}{$who} // {} } ], timeout => $invoked ? $invoked->{timeout} : undef, text => "op $op, $call, object $object: $state " . ($more->{message} // '')
		  };
	}
	if ($invoked && $invoked->{timeout})
	{
		push @{ $self->{limited} },
		  { due => $since + $invoked->{timeout} / 1000, end => $time, op => $op, object => $object, worker => $who };
	}
	return;
}

sub _hold
{
	my ($self, $time, $worker, $op, $phase, $object, $more) = @_;
	if ($phase eq 'begin')
	{
		$self->{current}{$worker}{$op} = $self->{holds}{$op} = {
			%$more,    # mode, kind, weight, limit, group, from
			hold => $op, object => $object, worker => $worker,
			begin => $time, asked => $more->{asked} // $time, token => $more->{token}
		};
	}
	elsif ($phase eq 'token') { $self->{holds}{$op}{token} = $more->{token}; }
	else
	{
		@{ $self->{holds}{$op} }{qw(end how left)} = ($time, $more->{how}, $more->{left} // $time);
		delete $self->{current}{$worker}{$op};
	}
	return;
}

# ----------------------------------------------------------------- the tables

# Takes { op, object, worker, hold, token, granted, committed, cluster } and, if
# it has written, { seq, read, written }.  Times are in seconds, by the servers'
# clock, counted as the log's.
sub history { my ($self, $row) = @_; push @{ $self->{history} }, $row; return; }

# A row that was written through postgres_fdw: { op, object, worker, hold, committed,
# cluster }
sub abroad { my ($self, $row) = @_; push @{ $self->{abroad} }, $row; return; }

# { id, kind, value, seq }
sub object { my ($self, $object) = @_; $self->{objects}{ $object->{id} } = $object; return; }

# ------------------------------------------------------------ ZooKeeper's account

# This session was connected to this server at that time
sub connection { my ($self, $session, @connection) = @_; push @{ $self->{connections} }, [ $session, @connection ]; return; }

# ------------------------------------------------------------------ the verdict

sub finish
{
	my ($self) = @_;
	my ($causes, $ledger) = @{$self}{qw(causes ledger)};
	$causes->run_ended($self->{end});
	my @holds = $self->holds;
	foreach my $hold (@holds)
	{
		$hold->{end} //= $self->{end};
		$hold->{until} = $hold->{left} // $hold->{end};
	}
	defined $_->{of} and $_->{answered} = $_->{of}{answered} for @{ $self->{attempts} };
	$ledger->link(\@holds, $self->{attempts}, sub { $self->_worker_of(@_) });
	my %worker = $ledger->sessions;
	foreach my $connection (@{ $self->{connections} })
	{
		my ($session, @rest) = @$connection;
		my $worker = $worker{$session} // next;
		$causes->connection($_, @rest) for $self->{pooled}{$worker} ? keys %{ $self->{pooled} } : $worker;
	}

	$self->_check_chain($_) for sort { $a->{id} <=> $b->{id} } values %{ $self->{objects} };
	$self->_check_promises;
	$ledger->judge_holds(@holds);
	$ledger->judge_releases;
	$ledger->judge_refusals;
	$self->_check_late_commits if $self->{guard} ne 'off';
	# another client that takes a lock before its turn has nothing
	@holds = grep { !($self->{foreign}{ $_->{worker} } && ($_->{before_its_turn} || !$_->{node})) } @holds;
	$self->_check_exclusion(@holds);
	$self->_check_overlap;
	$self->_check_readers(@holds);
	$ledger->late('late answer', $_, $_->{due}, $_->{end}, "op $_->{op}, object $_->{object}, its timeout") for @{ $self->{limited} // [] };
	$self->_check_order(@holds);
	$self->_check_errors;
	return $self->violations;
}

sub _worker_of
{
	my ($self, $pid, $time) = @_;
	my ($backend) = grep { $_->[0] <= $time + $Torture::Ledger::TOLERANCE } reverse @{ $self->{backends}{$pid} // [] };
	return $backend ? $backend->[1] : undef;
}

# How much of the run was judged: [ what, how much ], ...  (Of what is due, in seconds: how
# long it took when nothing hindered it, how long something did, and the longest time.)
sub judged
{
	my ($self) = @_;
	my $by_kind = sub { my ($of) = @_; return join(', ', map { "$_ $of->{$_}" } sort keys %$of) || 'nothing'; };
	my %judged = (%{ $self->{ledger}->judged }, map({ $_ => $self->{$_} // 0 } qw(conflicts guarded notified ordered readers read_twice readers_at_standby compared)));
	my (%kinds, %faults, %workers);
	foreach my $hold ($self->holds)
	{
		$kinds{ $hold->{kind} // 'exclusive' }++;
		$workers{ $hold->{worker} } = 1;
	}
	$faults{ $_->[0] }++ for @{ $self->{foreign_faults} };
	@judged{ 'kinds of holds', 'what other clients did to themselves', 'errors', 'share of the time of all workers in which no fault would have explained one' } =
	  (\%kinds, \%faults, scalar @{ $self->{errors} // [] }, sprintf '%.1f %%', 100 * $self->{causes}->judged(keys %workers));
	my @promoted = grep { $_->{kind} eq 'promote' } $self->faults;
	$judged{'acknowledged before a promotion'} = grep {
		my $commit = $_;
		$commit->{phase} eq 'ok' && grep { $_->{cluster} eq $commit->{cluster} && $_->{begin} >= $commit->{answered} } @promoted;
	} values %{ $self->{commits} };
	$judged{'- of these, canceled while they waited for the standby, and lost'} = $self->{went_with_primary} // 0;
	return map { [ $_, ref $judged{$_} ? $by_kind->($judged{$_}) : $judged{$_} =~ s/(\.\d\d)\d+$/$1/r ] } sort keys %judged;
}

# What ZooKeeper itself has lost, and what was not judged for that reason: lines of text
sub losses
{
	my ($self) = @_;
	my @losses = $self->{ledger}->losses or return;
	my @lines;
	foreach my $loss (@losses)
	{
		if ($loss->{again})
		{
			push @lines, sprintf 'ZooKeeper lost what it had logged: %d numbers were given once more after epoch %d, at %.3f-%.3f s', @$loss{qw(again epoch from to)};
			next;
		}
		my (%seen, %by);
		foreach my $hold (@{ $loss->{holds} })
		{
			$seen{ $hold->{token} } = 1;
			$by{ $self->{foreign}{ $hold->{worker} } // 'zklock' }++;
		}
		push @lines, sprintf 'ZooKeeper lost what it had answered: %d transactions seen (%d of them in one log), by holds of %s, epoch %d, at %.3f-%.3f s',
			scalar keys %seen, $loss->{doubtful}, join(', ', map { "$_ $by{$_}" } sort keys %by), @$loss{qw(epoch from to)};
	}
	my $j = $self->{ledger}->judged;
	return (@lines, sprintf 'not judged, therefore: %d holds, %d releases, %d refusals',
		scalar(grep { $_->{unsure} } $self->holds), map { $j->{"lost $_"} // 0 } qw(releases refusals));
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

	$self->found('final value', "object $id is $object->{value}, the last write made it $value") if $object->{value} != $value;
	return;
}

# Committed work excluded other work: between the time from which it could rely
# on the lock and its commit, nobody did what that excludes.  Who comes after a writer
# has fenced that off.  Nothing fences off readers and semaphores, or writers before
# readers: what these do after they have lost the lock is judged as a late commit.
sub _check_overlap
{
	my ($self) = @_;
	my (%token, @writers, @all);
	foreach my $row (@{ $self->{history} })
	{
		my $hold = $self->{holds}{ $row->{hold} } // {};
		my %work = (row => $row, object => $row->{object}, begin => $row->{granted}, until => $row->{committed}, map { $_ => $hold->{$_} } qw(weight limit));
		push @writers, {%work} if Torture::Sweep::exclude(\%work, \%work);
		next if $hold->{before_its_turn} && $self->{foreign}{ $hold->{worker} };
		$work{until} = min($work{until}, $self->_lost_at($row) // $work{until});
		push @all, \%work;
	}
	# (of all, writers have been compared)
	foreach my $conflict (Torture::Sweep::conflicts(@writers), grep { grep { !Torture::Sweep::exclude($_, $_) } @$_ } Torture::Sweep::conflicts(@all))
	{
		my ($work, @others) = @$conflict;
		@others = grep { $_->{row}{hold} != $work->{row}{hold} } @others;
		next unless Torture::Sweep::conflicts($work, @others);
		my ($one, $two) = map { $_->{row} } $work, $others[0];
		$self->found('overlap', sprintf 'object %d: op %d from %.6f, when op %d committed at %.6f', @$one{qw(object op granted)}, @$two{qw(op committed)});
	}

	# the tokens of all holds, including those that wrote nothing
	foreach my $hold ($self->holds)
	{
		next if !_has_token($hold) || defined $hold->{from};
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
		my $phase = $commits->{$op}{phase};
		$self->found('promise', "op $op was told that it is committed, and is not")
		  if $phase eq 'ok' && !$committed{$op} && !$self->_went_with_primary($commits->{$op});
		$self->found('promise', "op $op was told that it is not committed, and is")
		  if $phase eq 'failed' && $committed{$op};
		$self->{outcome}{ $phase eq 'unknown' ? ($committed{$op} ? 'unknown, committed' : 'unknown, not committed') : $phase }++;
	}
	$self->found('promise', "op $_ is committed and never asked for it")
	  for grep { !$commits->{$_} } sort { $a <=> $b } keys %committed;

	# A foreign server commits after the guard, and before its client does.
	my %abroad = map { $_->{op} => 1 } @{ $self->{abroad} };
	foreach my $op (sort { $a <=> $b } grep { defined $commits->{$_}{abroad} } keys %$commits)
	{
		my $commit = $commits->{$op};
		my $there = delete $abroad{$op};
		$self->found('promise', "op $op is committed, but not what it wrote in the other cluster") if !$there && ($commit->{phase} eq 'ok' || $committed{$op});
		$self->found('promise', "op $op was refused, but what it wrote in the other cluster is committed") if $there && ($commit->{state} // '') eq '40001';
	}
	$self->found('promise', "op $_ is committed in the other cluster and never asked for it") for sort { $a <=> $b } keys %abroad;

	$self->_check_notifications;

	foreach my $key (sort keys %{ $self->{open} })
	{
		my $call = $self->{open}{$key};
		# it may have waited, as it must, for a node that another client has forgotten
		my $end = $call->{hangs} // $self->{end};
		my $left = $self->{ledger}->left_behind($call, $end);
		next if $self->{ledger}->has_forgotten($end);
		$self->found('no end', sprintf('op %s of worker %s, invoked at %.3f', $key, $call->{worker}, $call->{time}), $left && $left->{worker});
	}
	return;
}

# A COMMIT that is canceled while it waits for the standby says so, and is committed, but
# on this server only
sub _only_here { return ($_[0]->{warning} // '') =~ /canceling wait for synchronous replication/; }

sub _went_with_primary
{
	my ($self, $commit) = @_;
	return 0 unless _only_here($commit);
	my $went = grep { $_->{kind} eq 'promote' && $_->{cluster} eq $commit->{cluster} && $_->{begin} >= $commit->{invoked} } $self->faults;
	$self->{went_with_primary}++ if $went;
	return $went;
}

# Who listens hears what is committed, and nothing else
sub _check_notifications
{
	my ($self) = @_;
	my %heard = %{ $self->{heard} // {} };
	foreach my $op (sort { $a <=> $b } grep { $self->{commits}{$_}{notifies} } keys %{ $self->{commits} })
	{
		my $commit = $self->{commits}{$op};
		my $times = delete $heard{$op} // 0;
		$self->found('promise', "op $op was told that it is not committed, and its notification was heard") if $times && $commit->{phase} eq 'failed';
		$self->found('promise', "the notification of op $op was heard $times times") if $times > 1;
		next unless $commit->{phase} eq 'ok';
		next unless grep { $_->[0] < $commit->{invoked} && $_->[1] > $commit->{answered} + 1 } @{ $self->{listened}{ $commit->{cluster} } // [] };
		$self->{notified}++;
		$self->found('promise', "op $op is committed, and its notification was not heard") if !$times;
	}
	$self->found('promise', "a notification of op $_ was heard, which never asked for a commit") for sort { $a <=> $b } keys %heard;
	return;
}

# Holds exclude each other while they are certain
sub _check_exclusion
{
	my ($self, @holds) = @_;
	foreach my $conflict (Torture::Sweep::conflicts(@holds))
	{
		my ($hold, @others) = @$conflict;
		$self->{conflicts}++;
		$self->found('two holders', sprintf 'object %d: hold %d of worker %d from %.3f to %.3f, beside %s', @$hold{qw(object hold worker begin until)},
			join ', ', map { sprintf '%d of worker %d from %.3f to %.3f', @$_{qw(hold worker begin until)} } @others);
	}
	return;
}

# What a reader saw stays as it is until its hold is over, and has all that was written
# under earlier holds.  Who lost its lock before its commit could be seen is judged by
# the time of that commit: see late commit.  A standby has, for certain, what was
# acknowledged.
sub _check_readers
{
	my ($self, @holds) = @_;
	my %writes;
	push @{ $writes{ $_->{object} } }, $_ for grep { defined $_->{seq} } @{ $self->{history} };
	foreach my $hold (grep { $self->{looks}{ $_->{hold} } } @holds)
	{
		# one that was answered after the hold was lost says nothing
		my @looks = grep { $_->{answered} <= $hold->{until} } @{ $self->{looks}{ $hold->{hold} } };
		next unless @looks;
		$self->{readers}++;
		$self->{read_twice}++ if @looks > 1;
		my $at_standby = $self->{at_standby}{ $hold->{worker} };
		$self->{readers_at_standby}++ if $at_standby;
		my ($first, $last) = ($looks[0]{seq}, max(map { $_->{seq} } @looks));
		foreach my $write (grep { $_->{seq} > $first } @{ $writes{ $hold->{object} } // [] })
		{
			my $writer = $self->{holds}{ $write->{hold} } // {};
			my $commit = $self->{commits}{ $write->{op} } // {};
			next if $at_standby && (($commit->{phase} // '') ne 'ok' || _only_here($commit));
			$self->{compared}++;
			# (mostly it was written later; only then the rest, which takes time)
			next unless $write->{seq} <= $last || ($writer->{begin} // 9**9) < $hold->{begin};
			next if defined $self->_lost_at($write) || $writer->{before_its_turn} && $self->{foreign}{ $writer->{worker} };
			next if $self->_in_doubt($write, $looks[0]{answered});
			my $kind = $write->{seq} <= $last ? 'changed under a reader' : 'stale read';
			$self->found($kind, sprintf 'object %d: %s read %d at %.3f, then %d, and op %d wrote %d: %s, its COMMIT from %.3f to %.3f',
				$hold->{object}, _life($hold), $first, $looks[0]{answered}, $last, @$write{qw(op seq)}, _life($writer), map { $_ // 'NaN' } @$commit{qw(invoked answered)});
		}
	}
	return;
}

# From when to when, as it was held and as ZooKeeper saw it
sub _life
{
	my ($hold) = @_;
	my $node = $hold->{node} // {};
	return sprintf 'hold %d of worker %d from %.3f to %.3f, its node from %.3f to %.3f (%s)',
	  map({ $_ // 'NaN' } @$hold{qw(hold worker begin until)}, @$node{qw(made gone)}), $node->{how} // 'not deleted';
}

# Whether its backend was stopped during COMMIT, or waited there for the other cluster,
# which the guard cannot see
sub _slept_at_commit
{
	my ($self, $row) = @_;
	my $commit = $self->{commits}{ $row->{op} } // return 0;
	return 1 if $self->_waited_for_standby($commit, 'abroad');
	# any backend that is stopped while it commits may keep others of its cluster from that
	return !!grep { $_->{kind} =~ /^backend_(?:stop|pause)$/ && ($_->{worker} == $row->{worker} || ($_->{cluster} // '') eq ($commit->{abroad} // 'none')) }
	  $self->_during($commit);
}

# Whether nobody could see, for a while, what was committed
sub _waited_for_standby
{
	my ($self, $commit, $where) = @_;
	return !!grep { $_->{kind} =~ /^(?:sync_hang|promote)$/ && $_->{cluster} eq ($commit->{$where} // 'none') } $self->_during($commit);
}

sub _during { my ($self, $commit) = @_; return grep { $_->{begin} <= $commit->{answered} && $_->{end} >= $commit->{invoked} } $self->faults; }

# When the lock was lost under which this was done: within its hold, or while its
# backend slept, or waited for the standby, at COMMIT
sub _lost_at
{
	my ($self, $row) = @_;
	my $hold = $self->{holds}{ $row->{hold} } // return;
	return $hold->{until} if $hold->{lost};
	my $node = $hold->{node} // return;
	return unless defined $node->{gone};
	# its backend has ended, and its client, which is busy in the other cluster, learns it next
	return $hold->{until} if $hold->{until} < ($hold->{left} // 0) && $row->{cluster} != ($self->{homes}{ $hold->{worker} } // $row->{cluster});
	return $node->{gone} if $node->{how} ne 'delete' && $self->_slept_at_commit($row);
	my $commit = $self->{commits}{ $row->{op} } // return;
	return $node->{gone} if $node->{gone} <= $commit->{answered} && $self->_waited_for_standby($commit, 'cluster') && $self->_may_be_lost($hold, $node->{gone});
	return;
}

# Whose COMMIT in the other cluster was not answered gives its lock back without knowing
# whether it will have happened, and that server may still show what was before while it
# goes down.
sub _in_doubt
{
	my ($self, $write, $at) = @_;
	my $commit = $self->{commits}{ $write->{op} } // return 0;
	return 0 if $commit->{phase} ne 'unknown' || $commit->{cluster} eq ($self->{homes}{ $write->{worker} } // 'none');
	return !!grep { _ends_server($_) && $_->{cluster} eq $commit->{cluster} && $at <= $_->{end} } $self->_during($commit);
}

# Whether this fault ends all backends of its cluster
sub _ends_server { return $_[0]->{kind} =~ /^(?:backend_kill|pg_immediate|promote)$/; }

# Who waits for a standby while the roles change does not lose its lock because of that
sub _may_be_lost { my ($self, $hold, $time) = @_; return !!grep { $_->{kind} ne 'promote' } $self->{causes}->explain($hold, $time, $time); }

sub _check_late_commits
{
	my ($self) = @_;
	foreach my $row (grep({ $_->{cluster} == ($self->{homes}{ $_->{worker} } // -1) } @{ $self->{history} }), @{ $self->{abroad} })
	{
		my $hold = $self->{holds}{ $row->{hold} } // next;
		my $node = $hold->{node} // next;
		$self->{guarded}++;
		next if !defined $node->{gone} || $row->{committed} <= $node->{gone} + max($COMMIT_SLACK, $self->{ledger}->good_for($node));
		next if !$self->{commits}{ $row->{op} } || $self->_slept_at_commit($row);
		$self->found('late commit', sprintf 'object %d: op %d committed at %.3f, its node went at %.3f (%s)',
			@$row{qw(object op committed)}, @$node{qw(gone how)});
	}
	return;
}

# Holds follow the order of their tokens, which is that of the queue; and the
# order of the requests, where these are further apart than a busy machine
# explains.  Only those count whose workers nothing hindered.
sub _check_order
{
	my ($self, @holds) = @_;
	my %calm;
	# (where several are taken at once, one asks for the later ones only when it has
	# those before them)
	my $asked = sub { my ($hold) = @_; return ($hold->{kind} // '') eq 'several' && $hold->{node} ? $hold->{node}{made} : $hold->{asked}; };
	foreach my $hold (grep { _has_token($_) && ($_->{mode} // '') ne 'semaphore' && !$self->{foreign}{ $_->{worker} } } @holds)
	{
		next if $self->{causes}->hindrance($hold, $hold->{asked} - 0.1, $hold->{begin} + 0.000001);
		$self->{ordered}++;
		my $earlier = $calm{ $hold->{object} } //= [];
		foreach my $other (grep { Torture::Sweep::exclude($_, $hold) && $_->{worker} ne $hold->{worker} } @$earlier)
		{
			my $why =
				$other->{token} > $hold->{token} ? 'their tokens say the contrary'
			  : $asked->($other) > $asked->($hold) + $HASTE ? sprintf('it asked %.3f s later', $asked->($other) - $asked->($hold))
			  : next;
			$self->found('order', "object $hold->{object}: hold $other->{hold} had it before $hold->{hold}, $why");
		}
		push @$earlier, $hold;
		shift @$earlier if @$earlier > 20;
	}
	return;
}

sub _has_token { return ($_[0]->{token} // '') =~ /^[1-9]/; }

# A refusal is right if the lock was lost; why that was, is asked elsewhere.  (That the
# node has gone is not enough: who is refused gives the lock back.)
sub _check_errors
{
	my ($self) = @_;
	foreach my $error (@{ $self->{errors} // [] })
	{
		my $since = $error->{since};
		my $refused = $error->{state} eq '40001';
		# ZooKeeper may take $SLACK to answer, on a busy machine: a call whose own
		# timeout is shorter, and has passed, may say that there was no answer, or no
		# connection
		next if $error->{state} =~ /^580[03]0$/ && $error->{timeout}
		  && $error->{timeout} / 1000 <= min($Torture::Ledger::SLACK, $error->{time} - $since);
		my @holds = @{ $error->{holds} };
		if ($refused && @holds)
		{
			my @nodes = grep { defined } map { $_->{node} } @holds;
			next if grep({ $_->{lost} } @holds) || grep { ($_->{how} // '') eq 'expiry' && $_->{gone} <= $error->{time} } @nodes;
			$since = min(map { $_->{begin} } @holds) if @nodes < @holds;
		}
		# a COMMIT that notifies waits for others that do; these may be stopped, or wait for
		# their standby, or for one that sleeps at COMMIT and keeps its cluster from
		# flushing
		next if $refused && $error->{notifies} && grep {
			     $_->{kind} =~ /^(?:backend_(?:stop|pause)|sync_hang|promote)$/
			  && ($_->{cluster} // '') eq ($error->{cluster} // 'none')
			  && $_->{begin} <= $error->{time}
			  && $_->{end} >= $since
		} $self->faults;
		next if $error->{state} eq '40P01' && grep { $_->{object} eq $error->{object} && $self->{ledger}->is_stuck($_, $since, $error->{time}) } @holds;
		next if $error->{state} eq '40P01' && $self->{ledger}->lost_refusal($since, $error->{time});
		my @why = $self->{causes}->explain($error, $since, $error->{time});
		# postgres_fdw says this of its server, or if it has no descriptor for it
		@why = grep {
			_ends_server($_) ? $_->{cluster} eq ($error->{abroad} // 'none') : $_->{kind} eq 'descriptors'
		} @why if $error->{state} =~ /^080/;
		next if @why;
		$self->found($refused ? 'refusal' : 'error', sprintf 'at %.3f, worker %s, %s', @$error{qw(time worker text)});
	}
	return;
}

1;
