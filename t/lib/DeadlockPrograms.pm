
=pod

=head1 NAME

DeadlockPrograms - random transactions that run into deadlocks, and a judge

=head1 SYNOPSIS

  my $run = DeadlockPrograms->new(zk => $zk, seed => 1, sessions => 10,
      clusters => [ { node => $node, deadlock_timeout => 0.3 }, ... ]);
  $run->go(15);                       # seconds
  is("@{[ $run->complaints ]}", '');
  $run->longest;                      # of the cycles: { seconds, limit, what }
  $run->count;                        # what happened: { commits => 90, ... }

=head1 DESCRIPTION

Each session takes zk locks, rows of its own cluster and advisory locks, in random
order, and commits; after an error it gives everything back and tries again.  The
seed determines what each does, but not who is faster.

Two sources tell who waited for whom, none of them the code that is tested: the test
itself, which knows when each statement was sent and when it ended; and ZooKeeper's own
log (L<Torture::TxnLog>): in which state of the queues a waiter was removed as a victim.

A victim is convicted if one of the waits that its DETAIL names was not there: in
ZooKeeper exactly then, in PostgreSQL at that time or at most one deadlock_timeout
before.  A cycle stood since the last of its statements was sent, unless some statement
waits for one lock after the other, or for a semaphore, whose places others may have, too.
One that is never found stands until nothing gets done any more, which is a complaint.

=cut

package DeadlockPrograms;

use strict;
use warnings;
use Carp;
use IO::Select;
use List::Util qw(max min shuffle);
use Time::HiRes qw(sleep time);

use Deadline;
use Torture::TxnLog;
use Zklock;

our @PATHS = map { "/dl/$_" } qw(a b c d);
our $SEMAPHORE = '/dl/s';
our $PLACES = 2;
our $ROWS = 3;
my $ROOT = '/zklock';

# How much later than a wait's end somebody may fail for it, on a machine that stands
# still now and then
our $SLACK = 1;

# In each cluster, once
sub prepare
{
	my (@nodes) = @_;
	$_->safe_psql('postgres', "CREATE TABLE r (id int PRIMARY KEY, n int DEFAULT 0); INSERT INTO r SELECT generate_series(1, $ROWS)")
	  for @nodes;
	return;
}

sub new
{
	my ($class, %opt) = @_;
	my $self = bless {
		%opt,
		count => {},
		complaints => [],
		longest => { seconds => 0, limit => 0, over => -1e9, what => 'none' },
		by_key => {},
		victims => []
	}, $class;
	srand($opt{seed});
	foreach my $cluster (@{ $self->{clusters} })
	{
		$cluster->{port} = $cluster->{node}->port;
		$cluster->{admin} = zk_session($cluster->{node});
	}
	push @{ $self->{all} }, $self->_session($_) for 0 .. $opt{sessions} - 1;
	return $self;
}

sub _session
{
	my ($self, $number) = @_;
	my $cluster = $self->{clusters}[ $number % @{ $self->{clusters} } ];
	my $session = zk_session($cluster->{node});
	my $one = {
		number => $number,
		session => $session,
		cluster => $cluster,
		key => "$cluster->{port}:" . $session->pid,
		statements => [],
		xact => 0,
		held => {},
		todo => [],
		idle_until => 0
	};
	return $self->{by_key}{ $one->{key} } = $one;
}

sub count { return $_[0]->{count}; }
sub longest { return $_[0]->{longest}; }
sub complaints { return @{ $_[0]->{complaints} }; }

sub _complain
{
	my ($self, $text) = @_;
	push @{ $self->{complaints} }, $text if @{ $self->{complaints} } < 20;
	return;
}

# ------------------------------------------------------------------ programs

sub _one_of { return $_[ rand @_ ]; }

sub _quote { return q{'} . $_[0] . q{'}; }

# Statements that wait: { sql, zk => [ paths ], local => [ targets ] }, sometimes in a
# block that catches the error
sub _op
{
	my ($self, $one) = @_;
	my $dice = rand;
	my $op;
	if ($dice < 0.52)
	{
		my $path = _one_of(@PATHS);
		my $mode = $one->{held}{$path} // (rand() < 0.3 ? 'shared' : 'exclusive');
		my $scope = rand() < 0.3 ? '' : 'xact_';
		$mode = 'exclusive' if $mode eq 'shared' && $one->{held}{$path} && rand() < 0.1;
		$one->{held}{$path} //= $mode;
		$op = { zk => [$path], sql => "zk_${scope}lock" . ($mode eq 'shared' ? '_shared' : '') . "('$path')" };
	}
	elsif ($dice < 0.60)
	{
		my @paths = (shuffle @PATHS)[ 0, 1 ];
		@paths = grep { !$one->{held}{$_} } @paths;
		return $self->_op($one) if !@paths;
		$one->{held}{$_} = 'exclusive' for @paths;
		$op = { zk => \@paths, sql => 'zk_xact_lock_many(ARRAY[' . join(', ', map { _quote($_) } @paths) . '])' };
	}
	elsif ($dice < 0.66)
	{
		my $scope = rand() < 0.3 ? '' : 'xact_';
		$op = { zk => [$SEMAPHORE], sql => "zk_${scope}semaphore_acquire('$SEMAPHORE', $PLACES)" };
	}
	elsif ($dice < 0.73)
	{
		my $key = 1 + int rand 2;
		$op = { local => ["advisory $key"], sql => "pg_advisory_xact_lock($key)" };
	}
	else
	{
		my $row = 1 + int rand $ROWS;
		return { local => ["row $row"], sql => "UPDATE r SET n = n + 1 WHERE id = $row", plain => 1 } if rand() < 0.6;
		$op = { local => ["row $row"], sql => "n FROM r WHERE id = $row FOR UPDATE" };
	}
	return $op;
}

sub _sql
{
	my ($op) = @_;
	my $caught = rand() < 0.12;
	return ($op->{plain} ? '' : 'SELECT ') . $op->{sql} unless $caught;
	my $sql = ($op->{plain} ? '' : 'PERFORM ') . $op->{sql};
	return "DO \$\$ DECLARE d text; h text; BEGIN $sql; EXCEPTION WHEN deadlock_detected OR lock_not_available THEN "
	  . "GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT; RAISE WARNING E'caught % %\n%\nHINT: %', SQLSTATE, SQLERRM, d, h; END \$\$";
}

sub _program
{
	my ($self, $one) = @_;
	my @program = ({ sql => 'BEGIN', begin => 1 });
	push @program, { sql => 'SET LOCAL lock_timeout = ' . (100 + int rand 2000) } if rand() < 0.1;
	foreach (1 .. 2 + int rand 4)
	{
		push @program, { pause => 0.03 * rand } if rand() < 0.3;
		my $op = $self->_op($one);
		push @program, { %$op, sql => _sql($op) };
	}
	push @program, { sql => rand() < 0.85 ? 'COMMIT' : 'ROLLBACK', end => 1 };
	push @program, { sql => 'SELECT zk_unlock_all()', unlock => 1 } if rand() < 0.7;
	return \@program;
}

# ---------------------------------------------------------------- the sessions

# For so many seconds, and until all that was begun is done
sub go
{
	my ($self, $seconds) = @_;
	my $until = time + $seconds;
	$self->{deadline} = time + $TIMEOUT;
	my %handle;
	foreach my $one (@{ $self->{all} })
	{
		$handle{ fileno $_ } = $one for $one->{session}->handles;
	}
	my $select = IO::Select->new(map { $_->{session}->handles } @{ $self->{all} });
	while (1)
	{
		my $now = time;
		my $next = $now + 1;
		$self->{ending} = 1 if $now >= $until;    # with so many in each other's way that could last
		foreach my $one (grep { !$_->{waits} } @{ $self->{all} })
		{
			$self->_next($one, $now < $until) if $one->{idle_until} <= $now && !$one->{over};
			$next = min($next, $one->{idle_until}) if !$one->{waits} && !$one->{over};
		}
		last if !grep { !$_->{over} } @{ $self->{all} };
		my %ready = map { $handle{ fileno $_ }{key} => 1 } $select->can_read(max(0.001, $next - time));
		foreach my $one (grep { $_->{waits} && $ready{ $_->{key} } } @{ $self->{all} })
		{
			$self->_done($one) if $one->{session}->is_done;
		}
		if ($now > $self->{deadline} || $self->{for_ever})
		{
			$self->_complain($self->{for_ever} // "nothing that was begun was done for $TIMEOUT s");
			$self->_complain($self->_state);
			sleep $ENV{DEADLOCK_PAUSE} if $ENV{DEADLOCK_PAUSE};
			foreach my $one (grep { !$_->{over} } @{ $self->{all} })
			{
				$one->{cluster}{admin}->value('SELECT pg_terminate_backend(' . $one->{session}->pid . ')');
			}
			last;
		}
	}
	$_->{session}->quit for @{ $self->{all} };
	$_->{admin}->quit for @{ $self->{clusters} };
	return $self->_judge;
}

# Who does what, and what ZooKeeper has
sub _state
{
	my ($self) = @_;
	my @text = map { _history($_, time) } @{ $self->{all} };
	$self->{zk}->with_client(
		sub {
			my ($client) = @_;
			foreach my $dir ("$ROOT/__zklock_waits__", map { "$ROOT$_" } @PATHS, $SEMAPHORE)
			{
				push @text, map { "$dir/$_:\n" . ($client->get("$dir/$_") // '') } $client->children($dir);
			}
		});
	return join "\n", @text;
}

sub _next
{
	my ($self, $one, $begin) = @_;
	if (!@{ $one->{todo} })
	{
		if (!$begin)
		{
			return $self->_send($one, { sql => 'SELECT zk_unlock_all()', unlock => 1, last => 1 }) unless $one->{gave_back};
			$one->{over} = 1;
			$self->{deadline} = time + $TIMEOUT;
			return;
		}
		# some program is done
		$self->{deadline} = time + $TIMEOUT;
		$one->{failures} = 0;
		$one->{program} = $self->_program($one);
		$one->{todo} = [ @{ $one->{program} } ];
	}
	my $op = shift @{ $one->{todo} };
	return $op->{pause} ? $one->{idle_until} = time + $op->{pause} : $self->_send($one, $op);
}

sub _send
{
	my ($self, $one, $op) = @_;
	$one->{xact}++ if $op->{begin};
	my $statement = { %$op, number => scalar @{ $one->{statements} }, sent => time, xact => $one->{xact} };
	push @{ $one->{statements} }, $statement;
	$one->{session}->send($op->{sql});
	$one->{waits} = $statement;
	return;
}

sub _done
{
	my ($self, $one) = @_;
	my $result = $one->{session}->wait;
	my $statement = delete $one->{waits};
	my $count = $self->{count};
	$statement->{done} = time;
	$statement->{state} = $result->{state};
	$one->{held} = {} if $statement->{unlock};
	$one->{gave_back} = 1 if $statement->{last};
	if ($result->{state} eq '')
	{
		$count->{ $statement->{sql} =~ /^COMMIT/ ? 'commits' : 'rollbacks' }++ if $statement->{end};
		if ($result->{err} =~ /WARNING:  \w{5}: caught 40P01 (.*?)\n(.*?)\n(HINT: .*)/s)
		{
			$self->_victim($one, $statement, $1, $2, $3, 'caught');
		}
		elsif ($result->{err} =~ /caught 55P03/) { $count->{'caught 55P03'}++; }
		return;
	}
	$count->{ $result->{state} }++;
	if ($result->{state} eq '40P01')
	{
		my ($detail, $hint) = $result->{err} =~ /^DETAIL:  (.*?)^(?=[A-Z]+:  )(.*)/ms;
		$self->_victim($one, $statement, $result->{message}, $detail // '', $hint // '', 'failed');
	}
	elsif ($result->{state} ne '55P03')
	{
		$self->_complain("$one->{key}: $statement->{sql}: $result->{err}");
		$self->{for_ever} = 'the connection is lost' if $result->{closed};
	}
	# Give all back, and do it again; later and later, or those programs would be left that
	# hardly ever succeed among so many, and nobody would get anywhere.
	my $again = $one->{program};
	my $pause = min(3, 0.02 * 2**$one->{failures}++);
	$one->{todo} = [ { sql => 'ROLLBACK', end => 1 }, { sql => 'SELECT zk_unlock_all()', unlock => 1 }, { pause => rand() * max($pause, $self->{ending} ? 4 * $one->{cluster}{deadlock_timeout} : 0) }, @$again ];
	return;
}

sub _victim
{
	my ($self, $one, $statement, $message, $detail, $hint, $how) = @_;
	my $kind = $message ne 'deadlock detected' ? 'upgrade' : $hint =~ /Release the session-scope locks/ ? 'zklock' : 'postgres';
	$self->{count}{"victims: $kind"}++;
	$self->{count}{'of these caught'}++ if $kind eq 'zklock' && $how eq 'caught';
	push @{ $self->{victims} }, { one => $one, statement => $statement, detail => $detail } if $kind eq 'zklock';
	$self->_complain("40P01 of a statement without zk locks: $statement->{sql}\n$detail") if $kind ne 'postgres' && !$statement->{zk};
	return;
}

# -------------------------------------------------------------------- queues

# What the name of a contender's node says: its mode and a semaphore's places
sub kind
{
	my ($name) = @_;
	return ('semaphore', $1) if $name =~ /-semaphore-(\d+)-\d{10}$/;
	return ('shared', 0) if $name =~ /-shared-lock-\d{10}$/;
	return ('exclusive', 0) if $name =~ /-lock-\d{10}$/;
	return;
}

# What its data says: the port and the pid of whose it is
sub owner
{
	my ($data) = @_;
	my ($port) = $data =~ /^port (\d+)$/m;
	my ($pid) = $data =~ /^pid (\d+)$/m;
	return join ':', $port // '?', $pid // '?';
}

# Whom this one of a queue waits for: all of them, or, with places, some
sub _blockers
{
	my ($at, @queue) = @_;
	my ($key, $mode, $places) = @{ $queue[$at] };
	my @before = grep { $_->[0] ne $key && ($_->[1] eq 'semaphore') == ($mode eq 'semaphore') } @queue[ 0 .. $at - 1 ];
	if ($mode eq 'semaphore')
	{
		return @before >= $places ? map { $_->[0] } @before : ();
	}
	return map { $_->[0] } grep { $mode eq 'exclusive' || $_->[1] eq 'exclusive' } @before;
}

# ------------------------------------------------------------------- the judge

# Each victim, and the transaction of ZooKeeper that removed it, belong together.
sub _judge
{
	my ($self) = @_;
	my %queue;    # dir => { name => { key, mode, places, session } }
	my %of;       # session => { path => 1 }
	my %expected;
	push @{ $expected{ $_->{one}{key} } }, $_ for @{ $self->{victims} };
	my $remove = sub {
		my ($path) = @_;
		my ($dir, $name) = $path =~ m{^(.*)/([^/]+)$} or return;
		my $node = delete $queue{$dir}{$name} or return;
		delete $of{ $node->{session} }{$path};
	};
	Torture::TxnLog::each_transaction(
		$self->{zk}->dir,
		sub {
			my (@ops) = @_;
			my ($delete) = grep { $_->{type} eq 'delete' } @ops;
			my @checks = grep { $_->{type} eq 'check' } @ops;
			if ($delete && @checks)
			{
				my ($dir, $name) = $delete->{path} =~ m{^(.*)/([^/]+)$};
				my $node = $queue{$dir}{$name};
				my $victim = $node && $self->{by_key}{ $node->{key} } ? shift @{ $expected{ $node->{key} } } : undef;
				if ($victim) { $self->_judge_victim($victim, $delete->{time}, \%queue, $dir, $name); }
				elsif ($node && $self->{by_key}{ $node->{key} }) { $self->_complain("removed, but not told so: $node->{key} at $delete->{path}"); }
			}
			foreach my $op (@ops)
			{
				if ($op->{type} eq 'close') { $remove->($_) for keys %{ $of{ $op->{session} } // {} }; }
				elsif ($op->{type} eq 'delete') { $remove->($op->{path}); }
				elsif ($op->{type} eq 'create')
				{
					my ($dir, $name) = $op->{path} =~ m{^(.*)/([^/]+)$};
					my ($mode, $places) = kind($name) or next;
					$queue{$dir}{$name} = { key => owner($op->{data}), mode => $mode, places => $places, session => $op->{session} };
					$of{ $op->{session} }{ $op->{path} } = 1;
				}
			}
		});
	foreach my $key (sort keys %expected)
	{
		$self->_complain("40P01, but ZooKeeper has removed nobody: $key: $_->{detail}") for @{ $expected{$key} };
	}
	return;
}

sub _judge_victim
{
	my ($self, $victim, $at, $queues, $dir, $name) = @_;
	my @lines = split /\n/, $victim->{detail};
	my @cycle;
	my $wrong = sub {
		my ($why) = @_;
		$self->_complain(sprintf "wrong victim %s at %.3f: %s\n%s", $victim->{one}{key}, $at, $why, $victim->{detail});
		return;
	};
	foreach my $line (@lines)
	{
		$line =~ /^process (\d+) on [^:\s]+:(\d+) waits for (.*); blocked by process (\d+) on [^:\s]+:(\d+)\.\s*$/i
		  or return $wrong->("unknown line: $line");
		push @cycle, { waiter => "$2:$1", what => $3, blocker => "$5:$4", local => $2 == $5 };
	}
	return $wrong->('no lines') if !@cycle;
	foreach my $i (0 .. $#cycle)
	{
		return $wrong->('no cycle') if $cycle[$i]{blocker} ne $cycle[ ($i + 1) % @cycle ]{waiter};
	}
	return $wrong->('somebody else is the first') if $cycle[0]{waiter} ne $victim->{one}{key};

	my (@members, @statements);
	my $limit = 0;
	foreach my $wait (@cycle)
	{
		my ($waiter, $blocker) = map { $self->{by_key}{ $wait->{$_} } } qw(waiter blocker);
		return $wrong->("a stranger: $wait->{waiter}, $wait->{blocker}") if !$waiter || !$blocker;
		my ($kind, $path) = $wait->{what} =~ /^(\w+ on lock path|a place of semaphore) "(.*)"$/;
		my $why = $kind ? _zk_wait($wait, $queues->{"$ROOT$path"}) : $self->_local_wait($victim, $wait, $at);
		return $wrong->("$why: $wait->{waiter} $wait->{what}\n" . join '', map { _history($_, $at) } $waiter, $blocker) if $why;
		my $statement = _statement_at($waiter, $at);
		push @members, "$wait->{waiter}#" . ($statement ? $statement->{number} : '?');
		push @statements, $statement if $statement && @{ $statement->{zk} // [] } < 2 && $wait->{what} !~ /semaphore/;
		$limit = max($limit, 3 * $waiter->{cluster}{deadlock_timeout}) if $kind;
		$self->{count}{$kind ? 'zk waits in cycles' : $waiter->{cluster} == $victim->{one}{cluster} ? 'local waits in cycles' : 'local waits elsewhere'}++;
	}
	$self->{count}{'in two or more clusters'}++ if keys %{ { map { (split /:/, $_->{waiter})[0] => 1 } @cycle } } > 1;
	$self->{count}{'longest cycle'} = max($self->{count}{'longest cycle'} // 0, scalar @cycle);
	if (@statements == @cycle)
	{
		my $seconds = $at - max(map { $_->{sent} } @statements);
		my $longest = $self->{longest};
		$longest->{seconds} = max($longest->{seconds}, $seconds);
		@$longest{qw(over limit what)} = ($seconds - $limit, $limit, join ', ', map { $_->{sql} } @statements) if $seconds - $limit > $longest->{over};
	}
	my $members = join ' ', sort @members;
	$wrong->("the second of one cycle: $members") if $self->{broken}{$members}++;
	return;
}

# What this session did until then, and after
sub _history
{
	my ($one, $at) = @_;
	my $last = _statement_at($one, $at) or return '';
	my @some = grep { $_ } @{ $one->{statements} }[ max(0, $last->{number} - 8) .. $last->{number} + 1 ];
	return join '', "$one->{key}:\n",
	  map { sprintf "  %.3f to %.3f, %s%s\n", $_->{sent} - $at, ($_->{done} // $at) - $at, $_->{sql} =~ s/\n/ /gr, $_->{state} ? ": $_->{state}" : '' } @some;
}

# The last statement that was sent by then
sub _statement_at
{
	my ($one, $at) = @_;
	my $all = $one->{statements};
	my ($low, $high) = (0, scalar @$all);
	while ($low < $high)
	{
		my $middle = int(($low + $high) / 2);
		if ($all->[$middle]{sent} <= $at) { $low = $middle + 1; }
		else { $high = $middle; }
	}
	return $low > 0 ? $all->[ $low - 1 ] : undef;
}

# Whether one waits for another in this queue, directly or through others that wait
sub _zk_wait
{
	my ($wait, $queue) = @_;
	my @queue = map { [ @{ $queue->{$_} }{qw(key mode places)}, $_ ] }
	  sort { substr($a, -10) cmp substr($b, -10) } keys %{ $queue // {} };
	my @at = grep { $queue[$_][0] eq $wait->{waiter} } 0 .. $#queue;
	return 'is not in the queue' if !@at;
	my ($semaphore) = $wait->{what} =~ /semaphore/;
	my %seen = ($wait->{waiter} => 1);
	my @todo = map { _blockers($_, @queue) } @at;
	return 'does not wait' if !@todo;
	while (defined(my $key = shift @todo))
	{
		return if $key eq $wait->{blocker};
		next if $seen{$key}++;
		push @todo, map { _blockers($_, @queue) } grep { $queue[$_][0] eq $key } 0 .. $#queue;
	}
	return 'does not wait for that one';
}

# Whether one waits for a lock of PostgreSQL's that another has, or is before it in line
sub _local_wait
{
	my ($self, $victim, $wait, $at) = @_;
	my ($waiter, $blocker) = map { $self->{by_key}{ $wait->{$_} } } qw(waiter blocker);
	my $other_server = $waiter->{cluster} != $victim->{one}{cluster};
	my $old = $SLACK + ($other_server ? max(map { $_->{deadlock_timeout} } @{ $self->{clusters} }) : 0);
	my $statement = _statement_at($waiter, $at);
	return 'has not begun' if !$statement;
	if (!$statement->{local})
	{
		# it may be over since
		$statement = (grep { $_->{local} } @{ $waiter->{statements} }[ max(0, $statement->{number} - 4) .. $statement->{number} ])[-1];
		return 'was not about a lock of PostgreSQL' if !$statement;
	}
	my $over = defined $statement->{done} ? $at - $statement->{done} : 0;
	if ($over > 0)
	{
		$self->{count}{'waits over when they counted'}++;
		$self->{oldest} = max($self->{oldest} // 0, $over);
		return sprintf 'was over %.2f s before', $over if $over > $old;
	}
	return 'the waiter holds it itself' if $waiter == $blocker;
	my %target = map { $_ => 1 } @{ $statement->{local} };
	my $last = _statement_at($blocker, $at) or return 'the other one has not begun';
	my $xact = $last->{xact};
	foreach my $other (reverse @{ $blocker->{statements} }[ max(0, $last->{number} - 30) .. $last->{number} ])
	{
		return if $other->{local} && grep { $target{$_} } @{ $other->{local} };
		last if $other->{xact} < $xact - 1 || (defined $other->{done} && $at - $other->{done} > $old && $other->{xact} < $xact);
	}
	return 'the other one has not asked for it';
}

1;
