
=pod

=head1 NAME

Torture::Operation - what a worker of a torture test does, from a lock to its release

=head1 DESCRIPTION

A lock is taken in one of these ways, for the session or for a transaction, with and
without a timeout:

  exclusive   the protected object is read and written
  shared      it is read twice; some readers then ask for the exclusive lock, too
  semaphore   one of a few places
  several     the exclusive locks of several objects, in one call
  downgrade   after an exclusive hold: the shared lock, and only then away with the
              exclusive one

The protected objects are:

  counter   reads a number, writes that plus one
  register  writes a number, without reading
  places    has nothing that could be written

Whoever holds anything inserts a row that says so; only who holds the exclusive lock
writes the object.  Only the lock keeps two workers apart: they read without a row lock
and write the result, so that a second holder loses an update.

An object lives in one cluster.  A worker of that cluster does everything in one
session.  A worker of the other cluster holds the lock in its own session and
writes through a second one, passing the token to zk_fence, like a program
outside PostgreSQL.  Without the fence nothing stops such a write once the lock
is lost; so in runs without it ("remote" is false) the worker only records in
its own cluster that it held the lock.  That is also where it takes its places of
semaphores.

Some of the transactions in the session that has the lock also notify, or insert a row
in the other cluster, through postgres_fdw.  (Not both: a COMMIT that waits for another
notifier for too long is refused after its row is committed there.)

With the fence, counters are fenced before they are read: an older
holder that has not committed by then no longer can.  Registers are fenced just
before they are written.  Readers cannot be fenced.

One worker may be at a standby: it takes shared locks there, reads, and writes nothing.
Two may be behind a pooler, where only locks of transactions are safe.

Each hold is an event of the log, with its kind (as above, upgrade, or the name of another
client), its mode
(exclusive, shared, semaphore), and its weight and limit for Torture::Sweep.  The holds
of one call have the number of its operation as their group.  What becomes of a hold
under the same node, a reader of a writer, is "from" that.

=cut

package Torture::Operation;

use strict;
use warnings;
use List::Util qw(min shuffle);

use Zklock;

# How many of 22 operations take a lock in this way
my %SHARE = (exclusive => 10, shared => 6, semaphore => 4, several => 2);
our @KINDS = sort keys %SHARE;

# more readers than there can be
our $MANY = 1000;

# In SQL, after zk_, zk_xact_ or zk_try_; and what gives it back
my %TAKE = (exclusive => 'lock', shared => 'lock_shared', semaphore => 'semaphore_acquire', several => 'lock_many');
my %GIVE = (exclusive => 'zk_unlock', shared => 'zk_unlock_shared', semaphore => 'zk_semaphore_release');

my %MODE = (several => 'exclusive', upgrade => 'exclusive', downgrade => 'shared');

sub _operation
{
	my ($self) = @_;
	my $kind = $self->_choose;
	my $home = $self->{cluster};
	my $data = $self->{remote} && $kind ne 'semaphore' ? $self->{object}{cluster} : $home;
	$self->{held} = [];
	$self->{scope} = '';
	$self->{writes_in} = undef;

	my $s = $self->_session($home);
	my $d = $self->_session($data);
	$self->_set_style($s) unless $self->{pooled};

	# 4 of 10 wait in a transaction for as long as it takes, one for less than a second,
	# half a one does not wait
	my $way = rand;
	my $patience = $way < 0.4 || $way >= 0.55 ? undef : $way < 0.5 ? 100 + int rand 900 : 0;
	my $scope = $way < 0.55 || $self->{pooled} ? 'xact' : $way < 0.85 ? 'session' : 'inside';
	$self->{scope} = $scope;
	$self->_begin($s) if $scope ne 'session';
	$self->_call($s, 'style', "SET LOCAL zklock.node_style = '$self->{object}{style}'") if $self->{pooled};
	return $self->_finish($s, 'rollback') unless $self->_lock($s, $kind, $patience);

	# a few change their minds
	my $end = rand() < 0.05 ? 'rollback' : 'commit';
	$self->_transaction($s, $d, $end);
	if ($scope eq 'session' && $end eq 'commit')
	{
		# and some go on, under the same hold or with another
		if ($way < 0.65 && $d == $s) { $self->_again($s, $d); }
		elsif ($way >= 0.65 && $way < 0.75 && $self->{kinds}{shared} && $self->{object}{readers})
		{
			if ($kind eq 'exclusive') { $self->_downgrade($s, $d); }
			elsif ($kind eq 'shared' && $self->{kinds}{exclusive}) { $self->_upgrade($s, $d); }
		}
	}
	$self->_unlock($s);
	return;
}

# Which kind of lock, and of what
sub _choose
{
	my ($self) = @_;
	my @places = grep { $_->{kind} eq 'places' } @{ $self->{objects} };
	my @locks = grep { $_->{kind} ne 'places' } @{ $self->{objects} };
	my @kinds = map { ($_) x $SHARE{$_} } grep { $self->{kinds}{$_} } @KINDS;
	my $kind = $kinds[ rand @kinds ];

	@locks = @places if $kind eq 'semaphore';
	@locks = grep { $_->{readers} } @locks if $kind eq 'shared';
	my $object = $self->{object} = $locks[ rand @locks ];
	$self->{wanted} = [$object];
	if ($kind eq 'several')
	{
		my @others = shuffle grep { $_ != $object && $_->{style} eq $object->{style} } @locks;
		push @{ $self->{wanted} }, @others[ 0 .. min($#others, int rand 3) ];
	}
	return $kind;
}

# Who share a lock must have nodes of one style
sub _set_style
{
	my ($self, $s) = @_;
	my $style = $self->{object}{style};
	return if ($s->{style} // 'curator') eq $style;
	$self->_call($s, 'style', "SET zklock.node_style = '$style'");
	$s->{style} = $style;
	return;
}

sub _next_op { my ($self) = @_; return $self->{op} = $self->_number; }
sub _number { my ($self) = @_; return $self->{number} * 1_000_000 + ++$self->{last_op}; }

sub _begin
{
	my ($self, $s) = @_;
	return $self->_call($s, 'begin', 'BEGIN') unless $self->{pooled} && $s->{cluster} == $self->{cluster};
	# a pooler has another backend each time
	my $pid = $self->_call($s, 'begin', 'BEGIN; SELECT pg_backend_pid()');
	$self->_log('backend', 'ok', 0, pid => $pid);
	return;
}

# A transaction under what is held; one of the session that holds it may have begun
sub _transaction
{
	my ($self, $s, $d, $end) = @_;
	$self->_begin($s) if $self->{scope} eq 'session';
	$self->_begin($d) if $d != $s;
	$self->_protected($d);
	if ($d == $s) { $self->_aside($s); }
	else { $self->_finish($d, $end); }
	$self->_finish($s, $end);
	return;
}

sub _aside
{
	my ($self, $s) = @_;
	my $way = rand;
	my $hold = $self->{held}[0];
	return if $self->{only_reads};
	if ($way < 0.15) { $self->{aside} = { notifies => 1 }; $self->_call($s, 'notify', "NOTIFY torture, '$self->{op}'"); }
	elsif ($way < 0.3)
	{
		$self->{aside} = { abroad => 1 - $s->{cluster} };
		$self->_call($s, 'abroad', "INSERT INTO abroad VALUES ($self->{op}, $hold->{object}{id}, $self->{number}, $hold->{id})", %{ $self->{aside} });
	}
	return;
}

sub _again
{
	my ($self, $s, $d) = @_;
	$self->_next_op;
	$self->_transaction($s, $d, 'commit');
	return;
}

# ----------------------------------------------------------------- taking it

sub _paths { my ($self) = @_; return map { "'$_->{path}'" } @{ $self->{wanted} }; }

# Returns false if it did not get the lock in time
sub _lock
{
	my ($self, $s, $kind, $ms) = @_;
	my ($path) = $self->_paths;
	my $mode = $MODE{$kind} // $kind;
	my $try = defined $ms && !$ms && $kind !~ /^(?:semaphore|several)$/ ? 'try_' : '';
	my $function = "zk_$try" . ($self->{scope} eq 'xact' ? 'xact_' : '') . ($TAKE{$kind} // $TAKE{$mode});
	my $what = $kind eq 'several' ? 'ARRAY[' . join(', ', $self->_paths) . ']' : $path;
	$what .= ", $self->{object}{limit}" if $kind eq 'semaphore';
	$what .= ", '$ms ms'" if defined $ms && !$try;

	my $asked = $self->{log}->now;
	my $got = $self->_call($s, 'lock', "SELECT $function($what)", function => $function, timeout => $ms || undef, objects => join ',', map { $_->{id} } @{ $self->{wanted} });
	if ($got ne 't')
	{
		return 0 if $got eq 'f' && defined $ms;
		$self->_log('lock', 'failed', $self->{object}{id}, state => 'none', message => "$function returned '$got'");
		die {};
	}
	# (what it has held so far ends, in the account, when it holds more)
	$self->_ended($_, 'upgrade', $self->{log}->now) for splice @{ $self->{held} };
	$self->_holds($_, $kind, asked => $asked) for @{ $self->{wanted} };
	$self->_tokens($s);
	return 1;
}

sub _tokens
{
	my ($self, $s) = @_;
	my @held = @{ $self->{held} };
	my $sql =
	  $held[0]{mode} eq 'semaphore'
	  ? "SELECT token FROM zk_locks WHERE mode = 'semaphore'"
	  : 'SELECT ' . join ', ', map { "zk_lock_token('$_->{object}{path}')" } @held;
	my @tokens = split /\|/, $self->_call($s, 'token', $sql), -1;
	foreach my $hold (@held)
	{
		my $token = shift @tokens // '';
		$hold->{token} = $token =~ /^\d+$/ ? $token : 'NULL';
		$self->{log}->write($self->{number}, $hold->{id}, 'hold', 'token', $hold->{object}{id}, token => $hold->{token});
	}
	return;
}

# From now on it holds this.  The first hold of an operation has its number.
sub _holds
{
	my ($self, $object, $kind, %more) = @_;
	my $mode = $more{mode} // $MODE{$kind} // $kind;
	my $limit = $object->{limit} // $MANY;
	my $hold = {
		id => @{ $self->{held} } ? $self->_number : $self->{op},
		object => $object, mode => $mode, token => 'NULL', asked => $more{asked}
	};
	$self->{log}->write($self->{number}, $hold->{id}, 'hold', 'begin', $object->{id},
		kind => $kind, mode => $mode, group => $self->{op}, weight => $mode eq 'exclusive' ? $limit : 1, limit => $limit,
		%more, asked => sprintf('%.6f', $more{asked}));
	push @{ $self->{held} }, $hold;
	return $hold;
}

# ----------------------------------------------------------------- giving it back

# The holds were certain until the invocation of the call that gave them back, by what
# it did or because it failed.
sub _released
{
	my ($self, $how, $invoked) = @_;
	$self->_ended($_, $how, $invoked // $self->{invoked}) for splice @{ $self->{held} // [] };
	return;
}

sub _ended
{
	my ($self, $hold, $how, $left) = @_;
	$self->{log}->write($self->{number}, $hold->{id}, 'hold', 'end', $hold->{object}{id}, how => $how, left => sprintf('%.6f', $left));
	return;
}

# Commits or rolls back.  Both release a lock of transaction scope, and a
# rollback any lock that was taken in the transaction.
sub _finish
{
	my ($self, $s, $call) = @_;
	# the commit of what it wrote, or that of a transaction that only held the
	# lock
	my $only_lock = ($self->{writes_in} // -1) != $s->{cluster};
	my %aside = $s->{cluster} == $self->{cluster} ? %{ delete $self->{aside} // {} } : ();
	$self->_call($s, $call, uc $call, only_lock => $only_lock || undef, %aside);
	$self->_released($call)
	  if $s->{cluster} == $self->{cluster}
	  && ($self->{scope} eq 'xact' || $self->{scope} eq 'inside' && $call eq 'rollback');
	return;
}

sub _unlock
{
	my ($self, $s) = @_;
	my @held = @{ $self->{held} } or return;
	$self->_call($s, 'unlock', 'SELECT ' . join ', ', map { "$GIVE{ $_->{mode} }('$_->{object}{path}')" } @held);
	$self->_released('unlock');
	return;
}

# ----------------------------------------------------------------- up and down

# What is held becomes something else under the same node: from now on that is certain
sub _becomes
{
	my ($self, $kind, $from) = @_;
	$self->_ended($_, 'downgrade', $self->{log}->now) for splice @{ $self->{held} };
	$self->_next_op;
	my $hold = $self->_holds($from->{object}, $kind, asked => $from->{asked}, token => $from->{token}, from => $from->{id});
	$hold->{token} = $from->{token};
	return;
}

# The exclusive lock becomes a shared one, of the session or of a transaction
sub _downgrade
{
	my ($self, $s, $d) = @_;
	my ($writer) = @{ $self->{held} };
	my ($path) = $self->_paths;
	my $scope = rand() < 0.3 ? 'xact' : 'session';
	$self->_next_op;
	$self->_begin($s) if $scope eq 'xact';
	my $function = $scope eq 'xact' ? 'zk_xact_lock_shared' : 'zk_lock_shared';
	$self->_call($s, 'lock', "SELECT $function($path)", function => $function) eq 't' or die {};
	$self->_becomes('downgrade', $writer);
	$self->{scope} = $scope;
	$self->_call($s, 'unlock', "SELECT zk_unlock($path)");
	$self->_transaction($s, $d, 'commit');
	return;
}

# A reader becomes a writer, and a reader again.  Where a writer waits for it, it is
# refused, and stays a reader.
sub _upgrade
{
	my ($self, $s, $d) = @_;
	my ($reader) = @{ $self->{held} };
	my ($path) = $self->_paths;
	$self->_next_op;
	my $got = eval { $self->_lock($s, 'upgrade', (undef, 0, 500)[ rand 3 ]) };
	die $@ if !defined $got && !(ref $@ && ($@->{state} // '') eq '40P01');
	if ($got)
	{
		$self->_transaction($s, $d, 'commit');
		$self->_becomes('shared', $reader);
		$self->_call($s, 'unlock', "SELECT zk_unlock($path)");
	}
	$self->_again($s, $d);
	return;
}

# ----------------------------------------------------------------- under the lock

# The protected work.  "granted" is the time, by the server's clock, from which
# the previous holder can no longer have written.
sub _protected
{
	my ($self, $d) = @_;
	my @held = @{ $self->{held} };
	foreach my $hold (@held)
	{
		my $there = $hold->{object}{cluster} == $d->{cluster};
		my ($shortest, $longest) = @{ $self->{think} };
		my $think = ($shortest + ($longest - $shortest) * rand) / @held;
		if ($hold->{mode} eq 'semaphore' || !$there)
		{
			# (of several, those that are elsewhere are only held)
			# (a place is kept for longer, so that somebody has to wait for one)
			$think *= 8 if $hold->{mode} eq 'semaphore';
			$self->_record($d, $hold, $think) if $hold->{mode} eq 'semaphore' || !$self->{remote};
		}
		elsif ($hold->{mode} eq 'shared') { $self->_read($d, $hold, $think); }
		else { $self->_write($d, $hold, $think); }
	}
	return;
}

sub _row
{
	my ($self, $d, $hold) = @_;
	$self->{writes_in} = $d->{cluster};
	return "$self->{op}, $hold->{object}{id}, $self->{number}, $hold->{id}, $hold->{token}";
}

sub _record
{
	my ($self, $d, $hold, $think) = @_;
	my $row = $self->_row($d, $hold);
	my $granted = $self->_call($d, 'read', 'SELECT clock_timestamp()');
	$self->_think($think);
	$self->_call($d, 'write',
		"INSERT INTO history (op, object, worker, hold, token, granted)
		VALUES ($row, '$granted')");
	return;
}

# Twice; the checker compares
sub _read
{
	my ($self, $d, $hold, $think) = @_;
	my $row = $self->{only_reads} ? undef : $self->_row($d, $hold);
	my $granted;
	foreach my $n (1, 2)
	{
		my $answer = $self->_call($d, 'look', "SELECT seq, clock_timestamp() FROM object WHERE id = $hold->{object}{id}", hold => $hold->{id});
		$granted //= (split /\|/, $answer, 2)[1];
		$self->_think($think) if $n == 1;
	}
	return unless $row;
	$self->_call($d, 'write',
		"INSERT INTO history (op, object, worker, hold, token, granted)
		VALUES ($row, '$granted')");
	return;
}

sub _write
{
	my ($self, $d, $hold, $think) = @_;
	my ($id, $kind) = @{ $hold->{object} }{qw(id kind)};
	my $row = $self->_row($d, $hold);

	if ($kind eq 'register') { $self->_think($think); }
	$self->_fence($d, $hold);
	my $answer = $self->_call($d, 'read',
		"SELECT value, clock_timestamp() FROM object WHERE id = $id");
	my ($value, $granted) = split /\|/, $answer, 2;
	$self->_think($think) if $kind ne 'register';

	my ($read, $written) = $kind eq 'counter' ? ($value, $value + 1) : ('NULL', $self->{op});
	$self->_call($d, 'write',
		"WITH written AS (UPDATE object SET value = $written, seq = seq + 1 WHERE id = $id RETURNING seq)
		INSERT INTO history (op, object, worker, hold, token, granted, seq, read, written)
		SELECT $row, '$granted', seq, $read, $written FROM written");
	return;
}

sub _fence
{
	my ($self, $d, $hold) = @_;
	return unless $self->{fence};
	# the session that holds the lock need not pass the token
	my $own = $d->{cluster} == $self->{cluster} && !$self->{peer} && $self->{op} % 2;
	$self->_call($d, 'fence', "SELECT zk_fence('$hold->{object}{path}'" . ($own ? ')' : ", $hold->{token})"));
	return;
}

sub _think
{
	my ($self, $seconds) = @_;
	$self->_strike('critical');
	$self->_sleep($seconds);
	return;
}

1;
