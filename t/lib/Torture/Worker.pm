
=pod

=head1 NAME

Torture::Worker - one client of a torture test

=head1 DESCRIPTION

A process that works under locks, again and again (see Torture::Operation), and logs
each call.

Backends are struck from here: the nemesis sends an order, and the worker carries it
out at the right moment.  See Torture::Strike.

=cut

package Torture::Worker;

use strict;
use warnings;
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use POSIX ();
use Socket;
use Time::HiRes qw(sleep);

use parent 'Torture::Operation';

use Torture::Strike;
use Zklock;

our $HANG = 60;    # seconds after which a call is considered hung, unless the run says otherwise

# Torture::Worker->start(%opts): returns a process.
#   number, seed       from 1; both determine what it does
#   clusters, cluster  the clusters, and the one (0, 1) in which it locks
#   objects            [ { id, kind, cluster, path, full_path, style, peer, readers, limit } ]
#   kinds              { exclusive => 1, ... }: the locks that it takes
#   log, seconds       it works until the log reaches this time
#   think, rest, hang  see Torture->new
#   fence              whether to use zk_fence
#   remote             whether to write in the cluster where the lock is not held
#   only_reads         whether its server may be a standby
#   pooled             whether it locks behind a pooler, in sessions that others have, too
#   peer               take the locks that are meant for that client (see Peer) with it,
#                      which needs:
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
	my $self = bless { parent => $parent, last_op => 0, sessions => {}, held => [], scope => '', %opt }, $class;
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
		$self->_next_op;
		unless (eval { $self->{peer} ? $self->_peer_operation : $self->_operation; 1 })
		{
			die $@ unless ref $@;    # a bug in the worker itself
			$self->_clean_up($@);
		}
		$self->_strike('');
		$self->_sleep($self->{rest} * rand);
	}
	$_->quit for values %{ $self->{sessions} };
	$self->_end_peer;
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
	my $session = eval { zk_session($self->{clusters}[$cluster]) };
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
	my $deadline = $self->{log}->now + $self->{hang};
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
		message => $result->{state} ? substr(join('; ', grep { $_ ne '' } @$result{qw(message detail)}), 0, 300) : undef,
		closed => $result->{closed} || undef,
		warning => join('; ', @{ $result->{warnings} }) || undef,
		got => $phase ne 'ok' ? undef : $call =~ /^(?:lock|token|fence|unlock)$/ ? $result->{out} : $call eq 'look' ? $result->{out} =~ s/\|.*//sr : undef);
	die { %$result, session => $session, invoked => $self->{invoked} } if $phase ne 'ok';
	return $result->{out};
}

# ------------------------------------------------------ the lock of another client

# The name of the client's class for a lock, by the style of its nodes: the two of these
# that are exclusive have no readers, and do not see those of others (kazoo), or do
my %CLASS = (
	curator => { curator => ['mutex'], curator_rw => [ 'write', 'read' ] },
	kazoo => { curator => ['pattern'], kazoo => ['lock'] });

# What Torture::Operation does, with a process that holds the lock for us
sub _peer_operation
{
	my ($self) = @_;
	my $peer = $self->{peer};
	my @locks = grep { $_->{peer} eq $peer } @{ $self->{objects} };
	my $object = $self->{object} = $locks[ rand @locks ];
	my ($class, $reads) = @{ $CLASS{$peer}{ $object->{style} } };
	my $mode = $reads && $self->{kinds}{shared} && rand() < 0.4 ? 'shared' : 'exclusive';
	$class = $reads if $mode eq 'shared';
	$self->{wanted} = [$object];
	$self->{held} = [];
	$self->{scope} = 'peer';
	$self->{writes_in} = undef;
	my $d = $self->_session($object->{cluster});
	# (Java compiles it first; a peer that does not start fails when it is
	# asked)
	eval {
		require Peer;
		$self->{locker} //= Peer->new($peer, $self->{hosts}, session_timeout => 1000 * $self->{session_timeout});
	};
	my $asked = $self->{log}->now;
	my $answer = $self->_ask_peer('lock', "acquire $object->{full_path} " . 1000 * $self->{hang} / 2 . " $class");
	# one that has its lock no longer, or does not know what it has, begins anew
	my ($token) = $answer =~ /^ok ([1-9]\d*)$/ or die { peer => 1 };
	$self->{gives} = "release $object->{full_path} $class";
	my $hold = $self->_holds($object, $peer, mode => $mode, asked => $asked, token => $token);
	$hold->{token} = $token;
	$self->_begin($d);
	$self->_protected($d);
	$self->_finish($d, rand() < 0.05 ? 'rollback' : 'commit');
	$self->_release_peer;
	return;
}

sub _release_peer
{
	my ($self) = @_;
	return unless @{ $self->{held} };
	my $answer = $self->_ask_peer('unlock', $self->{gives});
	$self->_released('unlock');
	$self->_end_peer if $answer ne 'ok';
	return;
}

# So that nothing of it stays but what its session has
sub _end_peer
{
	my ($self) = @_;
	my $locker = delete $self->{locker} // return;
	eval { $locker->quit(5); 1 } or $locker->kill9;
	return;
}

sub _ask_peer
{
	my ($self, $call, $line) = @_;
	my $object = $self->{object}{id};
	$self->{invoked} = $self->{log}->now;
	$self->_log($call, 'invoked', $object, function => 'peer');
	my $answer = eval { $self->{locker}->ask($line, $self->{hang}) };
	my $why = $@;
	# one that is gone is started again
	delete $self->{locker} unless defined $answer;
	$answer //= "error $why";
	my $ok = $answer =~ /^ok/;
	$self->_log($call, $ok ? 'ok' : 'failed', $object, function => 'peer', message => $ok ? undef : $answer);
	return $answer;
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
	$self->_release_peer if $peer;
	$self->_end_peer if $failure->{peer};
	# (a client that is not PostgreSQL's keeps its lock when a statement fails)
	delete $self->{aside};
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
		my %order;
		@order{qw(kind number phase delay for)} = split / /, (split /\n/, $text)[-1];
		$self->{order} = $order = { %order, until => $self->{log}->now + 2 };
	}
	return if $moment ne $order->{phase} && $self->{log}->now < $order->{until};

	if ($self->{pooled})
	{
		delete $self->{order};
		$self->{log}->write('nemesis', $order->{number}, 'fault', 'skipped', 0, kind => $order->{kind}, why => 'its backend is also that of others');
		return;
	}
	$session = $self->{sessions}{ $self->{cluster} } if $moment eq 'critical' || !$session || $order->{kind} =~ /^(?:keeper_stop|connection_cut|descriptors|threads)$/;
	my $pid = $self->{locker} ? $self->{locker}->pid : $session ? $self->_backend($session) : undef;
	return unless $pid;
	delete $self->{order};
	$order->{foreign} = $self->{locker};
	sleep $order->{delay} if $moment eq $order->{phase};

	Torture::Strike::strike($order, $pid, $self->{log}, sub { $self->_rest(@_) }, $self->{object}{id},
		worker => $self->{number}, moment => $moment, cluster => $session ? $session->{cluster} : undef);
	return;
}

sub _rest
{
	my ($self, $seconds) = @_;
	my $end = $self->{log}->now + $seconds;
	while ((my $left = $end - $self->{log}->now) > 0) { $self->_sleep($left < 0.1 ? $left : 0.1); }
	return;
}

# Its process, if it is still a backend of that cluster
sub _backend
{
	my ($self, $session) = @_;
	my $pid = $session->pid;
	return $self->{clusters}[ $session->{cluster} ]->has_backend($pid) ? $pid : undef;
}

1;
