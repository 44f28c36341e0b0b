
=pod

=head1 NAME

Torture::Worker - one client of a torture test

=head1 DESCRIPTION

A process that takes a lock, reads what it protects, thinks, writes and commits,
again and again, and logs each call.  The protected objects are:

  counter   reads a number, writes that plus one
  set       reads a list, writes it with an element of its own added
  register  writes a number, without reading

Only the lock keeps two workers apart: they read without a row lock and write
the result, so that a second holder loses an update.

An object lives in one cluster.  A worker of that cluster does everything in one
session.  A worker of the other cluster holds the lock in its own session and
writes through a second one, passing the token to zk_fence, like a program
outside PostgreSQL.  Without the fence nothing stops such a write once the lock
is lost; so in runs without it ("remote" is false) the worker only records in
its own cluster that it held the lock.

With the fence, counters and sets are fenced before they are read: an older
holder that has not committed by then no longer can.  Registers are fenced just
before they are written.

Backends are struck from here: the nemesis sends an order, and the worker kills
or stops its own backend at the right moment.

=cut

package Torture::Worker;

use strict;
use warnings;
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use POSIX ();
use Socket;
use Time::HiRes qw(sleep);

use Zklock;

our $HANG = 60;    # seconds after which a call is considered hung

# Torture::Worker->start(%opts): returns a process.
#   number, seed       from 1; both determine what it does
#   nodes, cluster     the clusters, and the one (0, 1) in which it locks
#   objects            [ { id, kind, cluster, path, full_path } ]
#   log, seconds       it works until the log reaches this time
#   fence              whether to use zk_fence
#   remote             whether to write in the cluster where the lock is not held
#   peer               take the lock with that client (see Peer), which needs:
#   hosts, session_timeout
sub start
{
	my ($class, %opt) = @_;
	socketpair(my $mine, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC)
	  or die "socketpair: $!";
	my $parent = $$;
	my $pid = fork // die "could not fork: $!";
	if ($pid)
	{
		return bless { pid => $pid, orders => $mine, number => $opt{number} }, $class;
	}

	# do not run the END blocks of the test
	$SIG{$_} = sub { POSIX::_exit(1) } for qw(INT TERM HUP);
	my $self = bless { parent => $parent, last_op => 0, sessions => {}, %opt }, $class;
	fcntl $theirs, F_SETFL, O_NONBLOCK | fcntl $theirs, F_GETFL, 0;
	$self->{order_from} = $theirs;
	srand $opt{seed} * 1000 + $opt{number};
	local $ENV{PGAPPNAME} = "torture $opt{number}";
	my $ok = eval { $self->_work; 1 };
	print STDERR "worker $opt{number}: $@" unless $ok;
	POSIX::_exit($ok ? 0 : 1);
}

sub _log { my ($self, @event) = @_; $self->{log}->write($self->{number}, $self->{op}, @event); return; }

sub _work
{
	my ($self) = @_;
	$self->{op} = 0;
	while ($self->{log}->now < $self->{seconds})
	{
		$self->{op} = $self->{number} * 1_000_000 + ++$self->{last_op};
		unless (eval { $self->_operation; 1 })
		{
			die $@ unless ref $@;    # a bug in the worker itself
			$self->_clean_up($@);
		}
		$self->_strike('');
		$self->_sleep(0.3 * rand);
	}
	$_->quit for values %{ $self->{sessions} };
	$self->{locker}->quit if $self->{locker};
	return;
}

sub _sleep
{
	my ($self, $seconds) = @_;
	sleep $seconds if $seconds > 0;
	POSIX::_exit(1) if getppid() != $self->{parent};
	return;
}

# -------------------------------------------------------------------- calls

# The session in cluster 0 or 1, connected if necessary
sub _session
{
	my ($self, $cluster) = @_;
	return $self->{sessions}{$cluster} if $self->{sessions}{$cluster};
	$self->_log('connect', 'invoked', 0, cluster => $cluster);
	my $session = eval { zk_session($self->{nodes}[$cluster]) };
	$self->_log('connect', $session ? 'ok' : 'failed', 0,
		cluster => $cluster, pid => $session ? $session->pid : undef);
	die { connect => 1 } unless $session;
	$session->{cluster} = $cluster;
	return $self->{sessions}{$cluster} = $session;
}

# A call of this operation: returns its result, or dies with a hash
sub _call
{
	my ($self, $session, $call, $sql, %more) = @_;
	my $object = $self->{object}{id};
	$more{cluster} = $session->{cluster};
	$self->{invoked} = $self->{log}->now;
	$self->_log($call, 'invoked', $object, %more);
	$session->send($sql);
	$self->_strike($call, $session);

	my $result;
	my $deadline = $self->{log}->now + $HANG;
	until ($result = eval { $session->wait(1) })
	{
		POSIX::_exit(1) if getppid() != $self->{parent};
		if ($self->{log}->now > $deadline)
		{
			# the invocation stays without an end, which the checker finds
			$self->_log($call, 'hangs', $object, %more);
			$session->kill9;
			die { closed => 1, session => $session, invoked => $self->{invoked} };
		}
	}

	# psql does not always notice at once that the server is gone
	$result->{closed} ||= $result->{err} =~ /server closed the connection|connection to server was lost|terminating connection/;

	# a COMMIT without an answer may have happened, anything else has not
	my $phase =
		$result->{closed} ? ($call eq 'commit' ? 'unknown' : 'failed')
	  : $result->{state} ? 'failed'
	  : 'ok';
	$self->_log($call, $phase, $object, %more,
		state => $result->{state} || undef,
		message => $result->{state} ? substr($result->{message}, 0, 200) : undef,
		closed => $result->{closed} || undef,
		warning => $result->{warnings}[0],
		got => $call =~ /^(?:lock|token|fence|unlock)$/ && $phase eq 'ok' ? $result->{out} : undef);
	die { %$result, session => $session, invoked => $self->{invoked} } if $phase ne 'ok';
	return $result->{out};
}

# ----------------------------------------------------------------- operations

sub _operation
{
	my ($self) = @_;
	my $object = $self->{object} = $self->{objects}[ rand @{ $self->{objects} } ];
	my $path = $object->{path};
	my $home = $self->{cluster};
	my $peer = $self->{peer};
	$self->{hold} = undef;
	$self->{scope} = '';

	my $data = $self->{remote} ? $object->{cluster} : $home;
	my $s = $peer ? undef : $self->_session($home);
	my $d = $self->_session($data);
	$self->{writes} = $data == $object->{cluster};
	$self->{writes_in} = $data;

	my $way = rand;
	if ($peer) { $self->_peer_lock; }
	elsif ($way < 0.4)
	{
		$self->_begin($s, 'xact');
		$self->_lock($s, 'zk_xact_lock');
	}
	elsif ($way < 0.5)
	{
		$self->_begin($s, 'xact');
		return $self->_finish($s, 'rollback') unless $self->_lock($s, 'zk_xact_lock', 100 + int rand 900);
	}
	elsif ($way < 0.55)
	{
		$self->_begin($s, 'xact');
		return $self->_finish($s, 'rollback') unless $self->_lock($s, 'zk_try_xact_lock');
	}
	elsif ($way < 0.85)
	{
		$self->{scope} = 'session';
		$self->_lock($s, 'zk_lock');
		$self->_begin($s, 'session');
	}
	else
	{
		$self->_begin($s, 'inside');
		$self->_lock($s, 'zk_lock');
	}
	$self->_call($d, 'begin', 'BEGIN') if !$s || $d != $s;

	$self->_protected($d);

	# a few change their minds
	my $end = rand() < 0.05 ? 'rollback' : 'commit';
	$self->_finish($d, $end) if !$s || $d != $s;
	$self->_finish($s, $end) if $s;

	# and some do it again under the same hold
	if ($s && $d == $s && $self->{scope} eq 'session' && $way < 0.65 && $end eq 'commit')
	{
		$self->{op} = $self->{number} * 1_000_000 + ++$self->{last_op};
		$self->_begin($s, 'session');
		$self->_protected($s);
		$self->_finish($s, 'commit');
	}
	$self->_unlock($s);
	return;
}

sub _begin
{
	my ($self, $s, $scope) = @_;
	$self->{scope} = $scope;
	$self->_call($s, 'begin', 'BEGIN');
	return;
}

# Returns false if it did not get the lock in time
sub _lock
{
	my ($self, $s, $function, $ms) = @_;
	my $path = $self->{object}{path};
	my $sql = "SELECT $function('$path'" . ($ms ? ", '$ms ms')" : ')');
	my $asked = $self->{log}->now;
	my $got = $self->_call($s, 'lock', $sql, function => $function, timeout => $ms);
	if ($got ne 't')
	{
		return 0 if $got eq 'f' && ($ms || $function =~ /try/);
		$self->_log('lock', 'failed', $self->{object}{id}, state => 'none', message => "$function returned '$got'");
		die {};
	}
	$self->_holds($asked, undef);
	my $token = $self->_call($s, 'token', "SELECT zk_lock_token('$path')");
	$self->{token} = $token =~ /^\d+$/ ? $token : 'NULL';
	$self->{log}->write($self->{number}, $self->{hold}, 'hold', 'token', $self->{object}{id}, token => $self->{token});
	return 1;
}

# The same with the lock of another client
sub _peer_lock
{
	my ($self) = @_;
	# (Java compiles it first; a peer that does not start fails when it is
	# asked)
	eval {
		require Peer;
		$self->{locker} //= Peer->new($self->{peer}, $self->{hosts}, session_timeout => 1000 * $self->{session_timeout});
	};
	my $asked = $self->{log}->now;
	$self->{scope} = 'peer';
	my $answer = $self->_ask_peer('lock', "acquire $self->{object}{full_path} " . 1000 * $HANG / 2);
	$answer =~ /^ok (\d+)$/ or die { peer => 1 };
	$self->_holds($asked, $1);
	$self->{token} = $1 || 'NULL';
	return;
}

sub _ask_peer
{
	my ($self, $call, $line) = @_;
	my $object = $self->{object}{id};
	$self->{invoked} = $self->{log}->now;
	$self->_log($call, 'invoked', $object, function => 'peer');
	my $answer = eval { $self->{locker}->ask($line, $HANG) };
	my $why = $@;
	# one that is gone is started again
	delete $self->{locker} unless defined $answer;
	$answer //= "error $why";
	my $ok = $answer =~ /^ok/;
	$self->_log($call, $ok ? 'ok' : 'failed', $object, function => 'peer', message => $ok ? undef : $answer);
	return $answer;
}

sub _holds
{
	my ($self, $asked, $token) = @_;
	$self->{hold} = $self->{op};
	$self->_log('hold', 'begin', $self->{object}{id}, asked => sprintf('%.6f', $asked), token => $token);
	return;
}

# The hold was certain until the invocation of the call that gave it back, by what it
# did or because it failed.
sub _released
{
	my ($self, $how, $invoked) = @_;
	my $hold = delete $self->{hold} // return;
	$self->{log}->write($self->{number}, $hold, 'hold', 'end', $self->{object}{id},
		how => $how, left => sprintf('%.6f', $invoked // $self->{invoked}));
	return;
}

# Commits or rolls back.  Both release a lock of transaction scope, and a
# rollback any lock that was taken in the transaction.
sub _finish
{
	my ($self, $s, $call) = @_;
	# the commit of what it wrote, or that of a transaction that only held the
	# lock
	my $only_lock = $self->{writes_in} != $s->{cluster};
	$self->_call($s, $call, uc $call, only_lock => $only_lock || undef);
	$self->_released($call)
	  if $s->{cluster} == $self->{cluster}
	  && ($self->{scope} eq 'xact' || $self->{scope} eq 'inside' && $call eq 'rollback');
	return;
}

sub _unlock
{
	my ($self, $s) = @_;
	return unless defined $self->{hold};
	if ($self->{scope} eq 'peer')
	{
		$self->_ask_peer('unlock', "release $self->{object}{full_path}");
	}
	else
	{
		$self->_call($s, 'unlock', "SELECT zk_unlock('$self->{object}{path}')");
	}
	$self->_released('unlock');
	return;
}

# The protected work.  "granted" is the time, by the server's clock, from which
# the previous holder can no longer have written.
sub _protected
{
	my ($self, $d) = @_;
	my $object = $self->{object};
	my ($id, $kind) = @$object{qw(id kind)};
	my $think = 0.02 + 0.1 * rand;
	my $row = "$self->{op}, $id, $self->{number}, $self->{hold}, $self->{token}";

	if (!$self->{writes})
	{
		my $granted = $self->_call($d, 'read', 'SELECT clock_timestamp()');
		$self->_think($think);
		$self->_call($d, 'write',
			"INSERT INTO history (op, object, worker, hold, token, granted)
			VALUES ($row, '$granted')");
		return;
	}

	if ($kind eq 'register') { $self->_think($think); }
	$self->_fence($d);
	my $answer = $self->_call($d, 'read',
		"SELECT value, members, clock_timestamp() FROM object WHERE id = $id");
	my ($value, $members, $granted) = split /\|/, $answer, 3;
	$self->_think($think) if $kind ne 'register';

	my ($set, $read, $written);
	if ($kind eq 'counter')
	{
		($read, $written) = ($value, $value + 1);
		$set = "value = $written";
	}
	elsif ($kind eq 'set')
	{
		my @members = $members =~ /\d+/g;
		push @members, $self->{op};
		($read, $written) = (@members - 1, scalar @members);
		$set = "members = '{" . join(',', @members) . "}'";
	}
	else
	{
		($read, $written) = ('NULL', $self->{op});
		$set = "value = $written";
	}
	$self->_call($d, 'write',
		"WITH written AS (UPDATE object SET $set, seq = seq + 1 WHERE id = $id RETURNING seq)
		INSERT INTO history (op, object, worker, hold, token, granted, seq, read, written)
		SELECT $row, '$granted', seq, $read, $written FROM written");
	return;
}

sub _fence
{
	my ($self, $d) = @_;
	return unless $self->{fence};
	# the session that holds the lock need not pass the token
	my $own = $d->{cluster} == $self->{cluster} && $self->{scope} ne 'peer' && $self->{op} % 2;
	$self->_call($d, 'fence', "SELECT zk_fence('$self->{object}{path}'" . ($own ? ')' : ", $self->{token})"));
	return;
}

sub _think
{
	my ($self, $seconds) = @_;
	$self->_strike('critical');
	$self->_sleep($seconds);
	return;
}

# After an error: remove all traces of the operation.
sub _clean_up
{
	my ($self, $failure) = @_;
	my $peer = $self->{scope} eq 'peer';
	my $invoked = $failure->{invoked} // $self->{log}->now;
	if ($failure->{connect} || $failure->{peer})
	{
		$self->_sleep(0.1 + 0.2 * rand);
	}
	foreach my $cluster (sort keys %{ $self->{sessions} })
	{
		my $session = $self->{sessions}{$cluster};
		my $ok = !($failure->{closed} && $failure->{session} == $session) && eval {
			$self->_call($session, 'rollback', 'ROLLBACK');
			$self->_call($session, 'unlock', 'SELECT zk_unlock_all()') if $cluster == $self->{cluster};
			1;
		};
		next if $ok;
		die $@ unless ref $@ || !$@;
		$session->kill9;
		delete $self->{sessions}{$cluster};
	}
	$self->_unlock if $peer;
	# (a client that is not PostgreSQL's keeps its lock when a statement fails)
	$self->_released($failure->{closed} ? 'closed' : 'failed', $peer ? undef : $invoked);
	return;
}

# -------------------------------------------------------------------- orders

# A call has been sent, or a point like "critical" is reached: execute the
# pending order of the nemesis, if any.  A worker that cannot reach the ordered
# point is struck where it is.  The target is the holder of the lock: the
# backend, or the process that holds it for us, in which case its client stands
# still as well.
sub _strike
{
	my ($self, $moment, $session) = @_;
	my $order = $self->{order};
	if (!$order)
	{
		sysread $self->{order_from}, my $text, 4096 or return;
		my ($what, $number, $phase, $delay, $for) = split / /, (split /\n/, $text)[-1];
		$self->{order} = $order = {
			what => $what, number => $number, phase => $phase, delay => $delay, for => $for,
			until => $self->{log}->now + 2
		};
	}
	return if $moment ne $order->{phase} && $self->{log}->now < $order->{until};

	$session = $self->{sessions}{ $self->{cluster} } if $moment eq 'critical' || !$session;
	my $pid = $self->{locker} ? $self->{locker}->pid : $session ? $self->_backend($session) : undef;
	return unless $pid;
	delete $self->{order};
	sleep $order->{delay} if $moment eq $order->{phase};

	my @more = ($self->{object}{id}, kind => "backend_$order->{what}", worker => $self->{number},
		moment => $moment, pid => $pid, cluster => $session ? $session->{cluster} : undef);
	my $log = $self->{log};
	$log->write('nemesis', $order->{number}, 'fault', 'begin', @more);
	if ($order->{what} eq 'kill')
	{
		kill 'KILL', $pid;
	}
	else
	{
		kill 'STOP', $pid;
		my $end = $log->now + $order->{for};
		$self->_sleep(0.1) while $log->now < $end;
		kill 'CONT', $pid;
	}
	$log->write('nemesis', $order->{number}, 'fault', 'end', @more);
	return;
}

# Its process, if it is still a backend of that cluster
sub _backend
{
	my ($self, $session) = @_;
	my $pid = $session->pid;
	my $node = $self->{nodes}[ $session->{cluster} ];
	open my $file, '<', $node->data_dir . '/postmaster.pid' or return;
	chomp(my $postmaster = <$file> // return);
	open my $stat, '<', "/proc/$pid/stat" or return;
	my (undef, $parent) = split ' ', (<$stat> // return) =~ s/.*\) //r;
	return $parent == $postmaster ? $pid : undef;
}

1;
