
=pod

=head1 NAME

RandomProgram - random sequences of lock calls in several sessions

=head1 SYNOPSIS

  my $program = RandomProgram->new(seed => 7);

  $program->{style};       # 'curator', 'curator_rw', 'kazoo' or 'mixed'
  $program->{advisory};    # whether it is for zklock_advisory, and uses only what that has
  foreach my $step (@{ $program->{steps} })
  {
      $step->{who};                     # the number of a session
      $program->sql($step);
      $step->{answers}, $step->{model};    # that it must give, and what is then
  }

=head1 DESCRIPTION

A program depends only on its seed.  Before a step becomes part of it, the model
(L<Model>) is asked what the step would do, so that no session gets a statement
while it waits, sessions never wait for each other in a cycle, which nothing
would break, and no answer depends on which of two processes is faster.  At the
end of a program everything is given back.

=cut

package RandomProgram;

use strict;
use warnings;
use Exporter qw(import);
use List::Util qw(shuffle sum uniq);

use Model;

our @EXPORT_OK = qw(@PATHS $SESSIONS);

our $SESSIONS = 4;

# In byte order.  The directory of a lock may contain another lock.
our @PATHS = ('/m', '/m-o', '/m/n');

my @styles = qw(curator curator_rw curator kazoo mixed);
my $timeout = 250;    # ms, of calls that are meant to time out

sub new
{
	my ($class, %opt) = @_;
	my $self = bless {
		seed => $opt{seed},
		style => $styles[ $opt{seed} % @styles ],
		advisory => int($opt{seed} / @styles) % 2,
		steps => []
	}, $class;

	srand($opt{seed});
	my $length = 15 + int rand 20;

	# for zklock only: a mixture, or mostly one kind
	$self->{weight} = { lock => 1, semaphore => 1, lock_many => 1 };
	$self->{weight}{ _one_of(qw(lock semaphore semaphore lock_many)) } = 4;
	delete @{ $self->{weight} }{qw(semaphore lock_many)} if $self->{advisory};
	$self->{used_paths} = _one_of(1, 1, 2, 2, 3);
	$self->{model} = Model->new(sessions => $SESSIONS, paths => scalar @PATHS, drop_in => $self->{advisory});
	for (1 .. 10 * $length)
	{
		last if @{ $self->{steps} } >= $length;
		$self->_try_step($self->_some_step);
	}
	$self->_end;
	delete $self->{model};
	return $self;
}

# ----------------------------------------------------------------- generating

# Returns true if the step became part of the program.
sub _try_step
{
	my ($self, $step) = @_;
	my $model = $self->{model}->copy;
	my @answers = $model->step($step);
	return 0 if $model->is_refused($step);
	$self->{model} = $model;
	push @{ $self->{steps} }, { %$step, answers => \@answers, model => $model };
	return 1;
}

sub _blocked { my ($self) = @_; return grep { $self->{model}->is_blocked($_) } 0 .. $SESSIONS - 1; }
sub _free { my ($self) = @_; return grep { !$self->{model}->is_blocked($_) } 0 .. $SESSIONS - 1; }

sub _one_of { return $_[ rand @_ ]; }

# weighted: (thing => weight, ...)
sub _weighted
{
	my (@pairs) = @_;
	my $sum = 0;
	$sum += $pairs[ 2 * $_ + 1 ] for 0 .. $#pairs / 2;
	my $at = rand $sum;
	while (my ($thing, $weight) = splice @pairs, 0, 2)
	{
		return $thing if ($at -= $weight) < 0;
	}
	die 'not reached';
}

sub _some_step
{
	my ($self) = @_;
	my @blocked = $self->_blocked;
	my @free = $self->_free;

	if (@blocked && (!@free || rand() < 0.06))
	{
		return { who => _one_of(@blocked), op => _weighted(cancel => 8, terminate => 1) };
	}
	my $who = @free ? _one_of(@free) : int rand $SESSIONS;
	return { who => $who, op => 'terminate' } unless @free;
	my $in_block = $self->{model}->in_block($who);
	my @savepoints = $in_block ? sort { $a <=> $b } uniq($self->{model}->savepoints($who)) : ();
	my $op;

	if ($self->{model}->is_failed($who))
	{
		$op = _weighted(rollback => 5, rollback_to => @savepoints ? 5 : 0, commit => 1, lock => 1, release => @savepoints ? 0.3 : 0);
	}
	elsif ($in_block)
	{
		$op = _weighted(
			$self->_calls(45),
			unlock => 14,
			unlock_all => 1,
			savepoint => 9,
			rollback_to => @savepoints ? 18 : 0,
			release => @savepoints ? 9 : 0,
			commit => 5,
			rollback => 4,
			error => 1.5,
			block => 8,
			discard_all => 0.5,
			prepare => $self->{advisory} ? 0 : 1,
			terminate => 0.3,
			quit => 0.3);
	}
	else
	{
		$op = _weighted(
			begin => 25,
			$self->_calls(35),
			unlock => 14,
			unlock_all => 2,
			error => 1,
			block => 5,
			procedure => 5,
			discard_all => 1,
			terminate => 0.3,
			quit => 0.3);
	}

	my $step = { who => $who, op => $op, in_block => $in_block };
	return { %$step, name => _one_of(1 .. 3) } if $op eq 'savepoint';
	return { %$step, name => _one_of(@savepoints) } if $op eq 'rollback_to' || $op eq 'release';
	if ($op eq 'block' || $op eq 'procedure')
	{
		my @inner = map { $self->_inner($who) } 1 .. 1 + int rand 3;
		if ($op eq 'procedure')
		{
			@inner = map { ($_, { op => _one_of(qw(commit rollback)) }) } @inner;
			push @inner, $self->_inner($who) if rand() < 0.3;
		}
		return { %$step, steps => \@inner, raises => $op eq 'block' && rand() < 0.5 };
	}
	return { %$step, $self->_call($who, $op, 0) };
}

# (op => weight, ...) of the calls that take locks, with this sum
sub _calls
{
	my ($self, $sum) = @_;
	my %weight = %{ $self->{weight} };
	return map { $_ => $weight{$_} * $sum / sum(values %weight) } sort keys %weight;
}

# A statement inside PL/pgSQL
sub _inner
{
	my ($self, $who) = @_;
	my $op = _weighted($self->_calls(9), unlock => 3);
	return { who => $who, op => $op, $self->_call($who, $op, 1) };
}

sub _path { my ($self) = @_; return int rand $self->{used_paths}; }

# The arguments for that op
sub _call
{
	my ($self, $who, $op, $inner) = @_;
	my $zk = !$self->{advisory};
	my %scope = (scope => _one_of(qw(session transaction)));
	my %fails = (fails => !$inner && rand() < 0.04);
	my @holds = map { [ split ' ', $_->{row} ] } $self->{model}->holds($who);    # path, mode, scope, count

	if ($op eq 'lock')
	{
		my $how = _weighted(wait => 9, try => 8, zero => 3 * $zk, timed => $inner ? 0 : 0.25 * $zk, lock_timeout => $inner ? 0 : 0.25);
		my ($path, $mode) = ($self->_path, _one_of(qw(exclusive shared)));

		# the other mode of something that it holds: an upgrade or a downgrade
		my @held = grep { $_->[1] ne 'semaphore' } @holds;
		if (@held && rand() < 0.4)
		{
			($path, $mode) = @{ _one_of(@held) };
			$mode = $mode eq 'shared' ? 'exclusive' : 'shared';
		}
		return (path => $path, mode => $mode, how => $how, %scope, %fails);
	}
	my $how = _weighted(wait => 5, zero => 3, timed => $inner ? 0 : 0.2, lock_timeout => $inner ? 0 : 0.2);
	if ($op eq 'semaphore')
	{
		my $permits = $self->{seed} % 2 ? 1 + $self->{seed} % 3 : _one_of(1 .. 3);
		return (path => $self->_path, permits => $permits, how => $how, %scope, %fails);
	}
	if ($op eq 'lock_many')
	{
		my @paths = shuffle(grep { rand() < 0.6 } 0 .. $#PATHS);
		push @paths, $paths[0] if @paths && rand() < 0.1;
		return (paths => \@paths, how => $how, %scope, %fails);
	}
	if ($op eq 'unlock')
	{
		# mostly something that it holds
		my @held = grep { $_->[2] eq 'session' } @holds;

		# or the exclusive lock of a path that is held in both modes
		my %shared = map { $_->[0] => 1 } grep { $_->[1] eq 'shared' } @holds;
		my @both = grep { $_->[1] eq 'exclusive' && $shared{ $_->[0] } } @held;
		@held = @both if @both && rand() < 0.5;
		if (@held && rand() < 0.85)
		{
			my ($path, $mode) = @{ _one_of(@held) };
			return (path => $path, mode => $mode);
		}
		return (path => $self->_path, mode => _one_of(qw(exclusive shared), $zk ? 'semaphore' : ()));
	}
	return;
}

# Give everything back.
sub _end
{
	my ($self) = @_;
	for (1 .. 100)
	{
		my @left = grep
		{
			my $who = $_;
			$self->{model}->is_blocked($who) || $self->{model}->in_block($who) || $self->{model}->holds($who);
		} 0 .. $SESSIONS - 1;
		return if !@left;

		my %free = map { $_ => 1 } $self->_free;
		my @next;
		foreach my $who (shuffle(grep { $free{$_} } @left))
		{
			my @op = $self->{model}->in_block($who) ? qw(commit rollback) : qw(unlock_all discard_all);
			push @next, { who => $who, op => $_, in_block => 0 } for rand() < 0.7 ? @op : reverse @op;
		}
		push @next, map { { who => $_, op => 'cancel' } } shuffle($self->_blocked);
		push @next, map { { who => $_, op => 'terminate' } } shuffle(@left);
		for (@next) { last if $self->_try_step($_); }
	}
	die "program $self->{seed} does not end";
}

# ------------------------------------------------------------------------ SQL

my %control = (
	begin => 'BEGIN',
	commit => 'COMMIT',
	rollback => 'ROLLBACK',
	savepoint => 'SAVEPOINT s',
	rollback_to => 'ROLLBACK TO s',
	release => 'RELEASE s',
	discard_all => 'DISCARD ALL',
	prepare => q{PREPARE TRANSACTION 'p'},
	error => 'SELECT 1/0');

sub sql
{
	my ($self, $step) = @_;
	my $op = $step->{op};

	return "-- $op" if $op =~ /^(?:cancel|terminate|quit)$/;
	return $control{$op} . ($step->{name} // '') if $control{$op};
	if ($step->{steps})
	{
		my $array = 'ARRAY[' . join(', ', map { '$$' . $self->sql($_) . '$$' } @{ $step->{steps} }) . ']';
		return $op eq 'procedure' ? "CALL procedure($array, NULL)" : "SELECT block($array, " . ($step->{raises} ? 'true' : 'false') . ')';
	}
	my $value = $self->{advisory} ? _advisory_expression($step) : _zk_expression($step);
	my $sql = 'SELECT ' . ($step->{fails} ? "1 / ($value\::int - 1)" : $value);
	return $sql if ($step->{how} // '') ne 'lock_timeout';
	return "SET LOCAL lock_timeout = $timeout; $sql" if $step->{in_block};
	return "SET lock_timeout = $timeout; $sql; RESET lock_timeout";
}

sub _zk_expression
{
	my ($step) = @_;
	my ($op, $mode, $how) = map { $_ // '' } @$step{qw(op mode how)};
	my $path = defined $step->{path} ? "'$PATHS[ $step->{path} ]'" : '';
	my $time = $how eq 'zero' ? ", '0'" : $how eq 'timed' ? ", '$timeout ms'" : '';

	return 'zk_unlock_all()' if $op eq 'unlock_all';
	return { exclusive => 'zk_unlock', shared => 'zk_unlock_shared', semaphore => 'zk_semaphore_release' }->{$mode} . "($path)"
	  if $op eq 'unlock';

	my $xact = $step->{scope} eq 'transaction' ? 'xact_' : '';
	return "zk_${xact}semaphore_acquire($path, $step->{permits}$time)" if $op eq 'semaphore';
	return "zk_${xact}lock_many(ARRAY[" . join(', ', map { "'$PATHS[$_]'" } @{ $step->{paths} }) . "]::text[]$time)"
	  if $op eq 'lock_many';
	return 'zk_' . ($how eq 'try' ? 'try_' : '') . "${xact}lock" . ($mode eq 'shared' ? '_shared' : '') . "($path$time)";
}

sub _advisory_expression
{
	my ($step) = @_;
	my ($op, $mode, $how) = map { $_ // '' } @$step{qw(op mode how)};

	return 'pg_advisory_unlock_all()' if $op eq 'unlock_all';
	my $shared = $mode eq 'shared' ? '_shared' : '';
	return "pg_advisory_unlock$shared($step->{path})" if $op eq 'unlock';
	my $xact = $step->{scope} eq 'transaction' ? 'xact_' : '';
	return "pg_try_advisory_${xact}lock$shared($step->{path})" if $how eq 'try';
	return "(pg_advisory_${xact}lock$shared($step->{path})::text = '')";    # it returns void
}

1;
