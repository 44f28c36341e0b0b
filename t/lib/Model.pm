
=pod

=head1 NAME

Model - the specified behavior of the locks, to compare answers with

=head1 SYNOPSIS

  my $model = Model->new(sessions => 4, paths => 3);
  my @answers = $model->step({ who => 0, op => 'lock', path => 1, mode => 'shared', scope => 'session', how => 'try' });
  # ([0, 't'])

  $model->holds(0);          # its entries: { who, mode, granted, place } ...
  $model->queue('lock', 1);  # who stands there: { who, mode, granted, place } ...

  my $copy = $model->copy;   # to see what a step would do

  Model->new(sessions => 4, paths => 3, drop_in => 1);    # like the locks of zklock_advisory

=head1 DESCRIPTION

Sessions, paths and savepoints are numbers.  A hold is one successful call: who,
path, mode, scope, and the subtransaction that took it.  A place is an entry in
a path's queue, that is, a node in ZooKeeper.

=head2 What is specified

=over

=item *

First come, first served: a writer holds when it is the first in the queue, a
reader when no writer is ahead of it; so a batch of readers is granted at once.

=item *

A try is C<false> when it would have to wait, even if only for a waiter.

=item *

A semaphore is granted when fewer contenders than its own permits are ahead of
it.

=item *

Holds are counted by path, mode and scope.  A rollback gives back what its
(sub)transaction took.  An unlock gives back the latest session-scope hold of
its kind, and no rollback restores it.

=item *

A shared hold that is taken under one's own exclusive lock needs no place; when
the exclusive one is given up, its place becomes that of the shared hold.  In
the other direction, an exclusive lock over one's own shared one takes a second
place, at the end of the queue.  It fails with 40P01 when another writer is in
the queue (that one would wait for our shared hold, and we for it), and
otherwise waits for the other readers.  A try is false instead.

=item *

Several paths at once: they are taken in byte order, which is the order of the
numbers.  The call stands in the queue of the first path that it does not hold
and in none after it, and keeps what it holds before.

=back

=head2 What the model adds where nothing is specified

=over

=item *

An error inside a savepoint gives back at once what that innermost
subtransaction took; the other holds of the transaction are kept until ROLLBACK
or ROLLBACK TO.

=item *

PREPARE TRANSACTION is refused even if an unlock has given back what the
transaction took, but not if a rollback to a savepoint did.

=item *

Re-entry into a semaphore ignores the number of permits that it asks for.

=item *

A call for several paths is an upgrade if one of them is held shared, by the
same rule; this is decided when that path's turn comes.

=item *

An error in the statement that took a lock gives it back, also outside a
transaction block, where the statement is the transaction.

=back

=head2 How zklock_advisory differs

A session-scope hold outlives the (sub)transaction that took it, even if that is
rolled back.

=cut

package Model;

use strict;
use warnings;
use Carp;
use Storable qw(dclone);

# Model->new(sessions => N, paths => N, drop_in => 0 or 1)
sub new
{
	my ($class, %opt) = @_;
	my $self = bless {
		paths => $opt{paths},
		drop_in => $opt{drop_in},
		session => [ map { _new_session($_) } 0 .. $opt{sessions} - 1 ],
		queue => { lock => [ map { [] } 1 .. $opt{paths} ], semaphore => [ map { [] } 1 .. $opt{paths} ] },
		last_place => 0,
		last_subtransaction => 0,
	}, $class;
	return $self;
}

sub _new_session
{
	my ($who) = @_;
	return {
		who => $who,
		holds => [],    # in the order in which they were taken
		subs => [],     # those of the transaction, itself the first; each { id, name, took }
		block => 0,     # whether BEGIN started it
		failed => 0,    # whether only ROLLBACK can end it
		call => undef,    # the call that waits
	};
}

sub copy { return dclone($_[0]); }

# ------------------------------------------------------------------ looking

sub is_blocked { return !!$_[0]->{session}[ $_[1] ]{call}; }
sub is_failed { return $_[0]->{session}[ $_[1] ]{failed}; }
sub in_block { return $_[0]->{session}[ $_[1] ]{block}; }

# the names of the current savepoints
sub savepoints
{
	my ($self, $who) = @_;
	return grep { defined } map { $_->{name} } @{ $self->{session}[$who]{subs} };
}

# The rows of zk_locks, each with the number of the place that holds it
sub holds
{
	my ($self, $who) = @_;
	my %row;
	foreach my $hold (@{ $self->{session}[$who]{holds} })
	{
		my $row = $row{"$hold->{path} $hold->{mode} $hold->{scope}"} //= { count => 0 };
		$row->{count}++;
		my $place = $self->_own($who, $hold->{path}, $hold->{mode});
		$place //= $self->_own($who, $hold->{path}, 'exclusive') if $hold->{mode} eq 'shared';
		$row->{place} = $place->{number};
	}
	return map { { row => "$_ $row{$_}{count}", place => $row{$_}{place} } } sort keys %row;
}

# The number of the place whose token is that path's
sub token_place
{
	my ($self, $who, $path) = @_;
	my ($place) = grep { defined } map { $self->_own($who, $path, $_) } qw(exclusive shared);
	return $place ? $place->{number} : undef;
}

# kind: lock or semaphore
sub queue
{
	my ($self, $kind, $path) = @_;
	return @{ $self->{queue}{$kind}[$path] };
}

# Whether sessions wait for each other
sub _is_deadlocked
{
	my ($self) = @_;
	my %waits_for;
	foreach my $kind (qw(lock semaphore))
	{
		foreach my $queue (@{ $self->{queue}{$kind} })
		{
			$waits_for{ $_->{who} } = [ map { $_->{who} } _before($queue, $_) ] for grep { !$_->{granted} } @$queue;
		}
	}
	# remove those that wait only for sessions that do not wait
	while (my @free = grep { my $who = $_; !grep { $waits_for{$_} } @{ $waits_for{$who} } } keys %waits_for)
	{
		delete @waits_for{@free};
	}
	return scalar %waits_for;
}

# Whether the last step must not be made: it depended on which of two sessions was faster,
# left a session waiting inside PL/pgSQL, or all that wait for each other.  A call that is
# to time out must have had to wait: otherwise its outcome would depend on speed.
sub is_refused
{
	my ($self, $step) = @_;
	return 1 if $self->{is_race} || $self->_is_deadlocked;
	return ($step->{how} // '') =~ /^(?:timed|lock_timeout)$/ && !$self->{has_run_out};
}

# ------------------------------------------------------------------- a step

# Returns a list of [who, answer] for each statement that has finished.  An
# answer is what psql prints, or the SQLSTATE, and "warning" for each warning.
sub step
{
	my ($self, $step) = @_;
	my $session = $self->{session}[ $step->{who} ];
	@$self{qw(answers is_race has_run_out)} = ([], 0, 0);

	if ($step->{op} eq 'cancel')
	{
		$self->_abandon_call($session);
		$self->_finish($session, { error => '57014' });
	}
	elsif ($step->{op} =~ /^(?:terminate|quit)$/)
	{
		$self->_answer($session, { error => '57P01' }) if $session->{call};
		$self->_abandon_call($session);
		$self->_keep($session, sub { 0 });
		$self->{session}[ $step->{who} ] = _new_session($step->{who});
	}
	else
	{
		croak 'a blocked session can do nothing' if $session->{call};
		$self->_statement($session, $step);
	}
	$self->_wake;
	return @{ $self->{answers} };
}

sub _answer
{
	my ($self, $session, $outcome) = @_;
	my $answer = $outcome->{error} // $outcome->{value};
	$answer .= ' warning' for 1 .. $outcome->{warnings} // 0;
	push @{ $self->{answers} }, [ $session->{who}, $answer ];
	return;
}

# ------------------------------------------------------------- transactions

# A hold refers to its subtransaction by id; 0: it no longer belongs to one.

# Of its holds keep only these.
sub _keep
{
	my ($self, $session, $which) = @_;
	$session->{holds} = [ grep { $which->() } @{ $session->{holds} } ];
	return $self->_settle($session);
}

sub _push_sub
{
	my ($self, $session, $name) = @_;
	push @{ $session->{subs} }, { name => $name, id => ++$self->{last_subtransaction}, took => 0 };
	return;
}

# Roll back the innermost subtransaction, or the transaction
sub _abort_sub
{
	my ($self, $session) = @_;
	my $id = $session->{subs}[-1]{id};
	foreach my $hold (grep { $self->{drop_in} && $_->{sub} == $id && $_->{scope} eq 'session' } @{ $session->{holds} })
	{
		$hold->{sub} = 0;
	}
	return $self->_keep($session, sub { $_->{sub} != $id });
}

sub _pop_aborted
{
	my ($self, $session) = @_;
	$self->_abort_sub($session);
	pop @{ $session->{subs} };
	return;
}

# The innermost subtransaction becomes part of its parent
sub _pop_committed
{
	my ($self, $session) = @_;
	my $sub = pop @{ $session->{subs} };
	my $parent = $session->{subs}[-1];
	$parent->{took} ||= $sub->{took};
	$_->{sub} = $parent->{id} for grep { $_->{sub} == $sub->{id} } @{ $session->{holds} };
	return;
}

sub _commit
{
	my ($self, $session) = @_;
	$self->_pop_committed($session) while @{ $session->{subs} } > 1;
	$session->{subs} = [];
	$_->{sub} = 0 for @{ $session->{holds} };
	return $self->_keep($session, sub { $_->{scope} eq 'session' });
}

sub _rollback
{
	my ($self, $session) = @_;
	$self->_pop_aborted($session) while @{ $session->{subs} };
	return;
}

# ---------------------------------------------------------------- statements

my %control = map { $_ => 1 } qw(begin commit rollback savepoint rollback_to release prepare discard_all);

sub _statement
{
	my ($self, $session, $step) = @_;
	my $op = $step->{op};
	my $outcome = { value => '' };

	if ($session->{failed} && $op !~ /^(?:commit|rollback|rollback_to)$/)
	{
		$self->_answer($session, { error => '25P02' });
		return;
	}
	if (!$control{$op})
	{
		$self->_push_sub($session) unless $session->{block};
		$outcome = $self->_perform($session, $step);
		$self->_finish($session, $outcome) if $outcome;
		return;
	}

	if ($op eq 'begin')
	{
		$session->{block} = 1;
		$self->_push_sub($session);
	}
	elsif ($op eq 'commit' || $op eq 'rollback')
	{
		if ($op eq 'commit' && !$session->{failed}) { $self->_commit($session); }
		else { $self->_rollback($session); }
		$session->{block} = $session->{failed} = 0;
	}
	elsif ($op eq 'prepare')
	{
		# Were it allowed, it would still fail, since max_prepared_transactions
		# is 0.  Either way the transaction is over.
		my $took = grep { $_->{took} } @{ $session->{subs} };
		$outcome = { error => $took ? '0A000' : '55000' };
		$self->_rollback($session);
		$session->{block} = 0;
	}
	elsif ($op eq 'savepoint')
	{
		$self->_push_sub($session, $step->{name});
	}
	elsif ($op eq 'rollback_to' || $op eq 'release')
	{
		# the later one of two with the same name
		my $pop = $op eq 'release' ? \&_pop_committed : \&_pop_aborted;
		my $name;
		do
		{
			$name = $session->{subs}[-1]{name} // 0;
			$self->$pop($session);
		} until ($name == $step->{name});
		if ($op eq 'rollback_to')
		{
			$self->_push_sub($session, $name);
			$session->{failed} = 0;
		}
	}
	elsif ($op eq 'discard_all')
	{
		if ($session->{block})
		{
			$self->_finish($session, { error => '25001' });
			return;
		}
		$self->_keep($session, sub { 0 });
	}
	$self->_answer($session, $outcome);
	return;
}

# The end of a statement that is no transaction command
sub _finish
{
	my ($self, $session, $outcome) = @_;
	$self->_answer($session, $outcome);
	if ($session->{block})
	{
		if ($outcome->{error})
		{
			$self->_abort_sub($session);
			$session->{failed} = 1;
		}
	}
	elsif ($outcome->{error}) { $self->_rollback($session); }
	else { $self->_commit($session); }
	return;
}

# Returns { value, warnings } or { error }, or nothing when it waits
sub _perform
{
	my ($self, $session, $step) = @_;
	my $op = $step->{op};

	return { error => '22012' } if $op eq 'error';
	return $self->_statements($session, $step) if $step->{steps};
	return $self->_unlock($session, $step->{path}, $step->{mode}) if $op eq 'unlock';
	return $self->_unlock_all($session) if $op eq 'unlock_all';

	# lock, lock_many, semaphore
	my %path = map { $_ => 1 } $step->{paths} ? @{ $step->{paths} } : $step->{path};
	$session->{call} = {
		step => $step,
		mode => $op eq 'semaphore' ? 'semaphore' : $op eq 'lock_many' ? 'exclusive' : $step->{mode},
		all => [ sort { $a <=> $b } keys %path ],
		todo => [ sort { $a <=> $b } keys %path ],
		made => []
	};
	return $self->_go_on($session);
}

# A procedure with COMMIT and ROLLBACK among its statements, or a PL/pgSQL block with an
# EXCEPTION clause that catches everything; its answer consists of those of its statements.
sub _statements
{
	my ($self, $session, $step) = @_;
	my $is_block = $step->{op} eq 'block';
	my (@answers, $error);
	my $warnings = 0;

	$self->_push_sub($session) if $is_block;
	foreach my $inner (@{ $step->{steps} })
	{
		if ($inner->{op} =~ /^(?:commit|rollback)$/)
		{
			if ($inner->{op} eq 'commit') { $self->_commit($session); }
			else { $self->_rollback($session); }
			$self->_push_sub($session);
			next;
		}
		$self->_notice_brief;
		my $outcome = $self->_perform($session, $inner);
		if (!$outcome)
		{
			$self->{is_race} = 1;    # it cannot wait here
			$self->_abandon_call($session);
			return { value => '' };
		}
		$error = $outcome->{error};
		last if $error;
		push @answers, $outcome->{value};
		$warnings += $outcome->{warnings} // 0;
	}
	return { error => $error } if $error && !$is_block;
	if ($error //= $step->{raises} ? '22012' : undef)
	{
		push @answers, $error;
		$self->_pop_aborted($session);
	}
	elsif ($is_block) { $self->_pop_committed($session); }
	return { value => join(' ', @answers), warnings => $warnings };
}

# A waiter that is granted the lock now may have released it, or joined another
# queue, by the time the block's next statement asks for the lock.
sub _notice_brief
{
	my ($self) = @_;
	foreach my $place ($self->_turns)
	{
		my $session = $self->{session}[ $place->{who} ];
		my $call = $session->{call};
		$self->{is_race} = 1
		  if @{ $call->{todo} } > 1 || $call->{step}{fails} || ($call->{step}{scope} eq 'transaction' && !$session->{block});
	}
	return;
}

sub _unlock
{
	my ($self, $session, $path, $mode) = @_;
	my $holds = $session->{holds};
	foreach my $i (reverse 0 .. $#$holds)
	{
		my $hold = $holds->[$i];
		next unless $hold->{path} == $path && $hold->{mode} eq $mode && $hold->{scope} eq 'session';
		splice @$holds, $i, 1;
		$self->_settle($session);
		return { value => 't' };
	}
	return { value => 'f', warnings => 1 };
}

sub _unlock_all
{
	my ($self, $session) = @_;
	my $dropped = grep { $_->{scope} eq 'session' } @{ $session->{holds} };
	$self->_keep($session, sub { $_->{scope} ne 'session' });
	return { value => $self->{drop_in} ? '' : $dropped };    # pg_advisory_unlock_all returns void
}

# ---------------------------------------------------------------------- calls

# Takes one path after the other until it must wait; then it returns nothing
sub _go_on
{
	my ($self, $session) = @_;
	my $call = $session->{call};
	my $how = $call->{step}{how};
	my $patient = $how eq 'wait' || $how eq 'timed' || $how eq 'lock_timeout';
	my $outcome = { value => 't' };

	while (@{ $call->{todo} })
	{
		my $got = $self->_ask($session, $call->{todo}[0], $patient);
		if ($got eq 'waits')
		{
			return if $how eq 'wait';
			$self->{has_run_out} = 1;
			$outcome = $how eq 'timed' ? { value => 'f' } : { error => '55P03' };
		}
		$outcome = { value => 'f' } if $got eq 'refused';
		$outcome = { error => '40P01' } if $got eq 'deadlock';
		if ($got ne 'held')
		{
			$self->_abandon_call($session);
			last;
		}
		shift @{ $call->{todo} };
	}
	if ($session->{call})
	{
		push @{ $session->{holds} },
		  { path => $_, mode => $call->{mode}, scope => $call->{step}{scope}, sub => $session->{subs}[-1]{id} }
		  for @{ $call->{all} };
		$session->{subs}[-1]{took} ||= @{ $call->{all} } > 0;
		$session->{call} = undef;
	}
	if ($call->{step}{fails} && !$outcome->{error})
	{
		$outcome = $outcome->{value} eq 't' ? { error => '22012' } : { value => '-1' };
	}
	return $outcome;
}

# Give up the call's entries in all queues
sub _abandon_call
{
	my ($self, $session) = @_;
	my $call = $session->{call} or return;
	$self->_remove($_) for @{ $call->{made} };
	$session->{call} = undef;
	return;
}

# --------------------------------------------------------------------- queues

sub _queue_of
{
	my ($self, $path, $mode) = @_;
	return $self->{queue}{ $mode eq 'semaphore' ? 'semaphore' : 'lock' }[$path];
}

# this session's place for that mode
sub _own
{
	my ($self, $who, $path, $mode) = @_;
	my ($place) = grep { $_->{who} == $who && $_->{mode} eq $mode } @{ $self->_queue_of($path, $mode) };
	return $place;
}

# those that this one must wait for, whether or not it has joined the queue
sub _before
{
	my ($queue, $place) = @_;
	my @before;
	foreach my $other (@$queue)
	{
		last if $other == $place;
		next if $other->{who} == $place->{who};
		push @before, $other unless $place->{mode} eq 'shared' && $other->{mode} eq 'shared';
	}
	return @before if $place->{mode} ne 'semaphore';
	return @before < $place->{permits} ? () : @before;
}

# A call wants one path.  Returns held, waits, refused, or deadlock
sub _ask
{
	my ($self, $session, $path, $patient) = @_;
	my $who = $session->{who};
	my $call = $session->{call};
	my $mode = $call->{mode};
	my $queue = $self->_queue_of($path, $mode);
	my $place = { who => $who, path => $path, mode => $mode, permits => $call->{step}{permits} };
	my @before = _before($queue, $place);

	return 'held' if grep { $_->{path} == $path && $_->{mode} eq $mode } @{ $session->{holds} };
	return 'held' if $mode eq 'shared' && $self->_own($who, $path, 'exclusive');
	my $upgrade = $mode eq 'exclusive' && $self->_own($who, $path, 'shared');
	return 'deadlock' if $upgrade && $patient && grep { $_->{mode} eq 'exclusive' } @before;
	return 'refused' if @before && !$patient;
	@$place{qw(number granted)} = (++$self->{last_place}, !@before);
	push @$_, $place for $queue, $call->{made};
	return @before ? 'waits' : 'held';
}

sub _remove
{
	my ($self, $place) = @_;
	my $queue = $self->_queue_of($place->{path}, $place->{mode});
	@$queue = grep { $_ != $place } @$queue;
	return;
}

# Remove the places whose holds have gone
sub _settle
{
	my ($self, $session) = @_;
	my $who = $session->{who};

	foreach my $path (0 .. $self->{paths} - 1)
	{
		my %held;
		$held{ $_->{mode} }++ for grep { $_->{path} == $path } @{ $session->{holds} };
		my %own = map { $_ => $self->_own($who, $path, $_) } qw(exclusive shared semaphore);

		if ($own{exclusive} && !$held{exclusive} && $held{shared} && !$own{shared})
		{
			$own{exclusive}{mode} = 'shared';
			delete $own{exclusive};
		}
		foreach my $mode (grep { $own{$_} && !$held{$_} } sort keys %own)
		{
			$self->_remove($own{$mode});
		}
	}
	return;
}

# Grant the calls whose turn has come
sub _wake
{
	my ($self) = @_;
	my $went_on = 0;
	while (my ($place) = $self->_turns)
	{
		my $session = $self->{session}[ $place->{who} ];
		$place->{granted} = 1;
		shift @{ $session->{call}{todo} };
		$self->{is_race} = 1 if @{ $session->{call}{todo} } && $went_on++;
		my $outcome = $self->_go_on($session);
		$self->_finish($session, $outcome) if $outcome;
	}
	return;
}

# The places that nothing is ahead of any more
sub _turns
{
	my ($self) = @_;
	my @turns;
	foreach my $queue (map { @{ $self->{queue}{$_} } } qw(lock semaphore))
	{
		push @turns, grep { !$_->{granted} && !_before($queue, $_) } @$queue;
	}
	return @turns;
}

1;
