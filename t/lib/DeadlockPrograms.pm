
=pod

=head1 NAME

DeadlockPrograms - random transactions that run into deadlocks, and a judge

=head1 SYNOPSIS

  my $run = DeadlockPrograms->run(zk => $zk, seed => 1, sessions => 10, seconds => 15,
      clusters => [ { node => $node, deadlock_timeout => 0.3 }, ... ], networks => [ $zk, $proxy ]);
  is("@{ $run->{complaints} }", '');
  $run->{longest};     # of the cycles: { seconds, limit, over, what }
  $run->{count};       # what happened: { commits => 90, ... }

=head1 DESCRIPTION

Each session takes zk locks, rows of its own cluster and advisory locks, in random
order, over one of these networks, and commits; after an error it gives everything back and tries again.  The
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
use IO::Select;
use List::Util qw(max min shuffle);
use Time::HiRes qw(time);

use Deadline;
use Queue;
use Torture::TxnLog;
use Zklock;

my @PATHS = map { "/dl/$_" } qw(a b c d);
my $ROWS = 3;

# How much later than a wait's end somebody may fail for it, on a machine that stands
# still now and then
my $SLACK = 1;

# ------------------------------------------------------------------ programs

sub _one_of { return $_[ rand @_ ]; }

# A statement that waits: { sql, zk => [ paths ], local => target }, sometimes in a
# block that catches the error
sub _op
{
	my ($one) = @_;
	my $xact = rand() < 0.3 ? '' : 'xact_';
	my $path = _one_of(@PATHS);
	my ($row, $key) = (1 + int rand $ROWS, 1 + int rand 2);
	my $dice = rand;
	my $op;
	if ($dice < 0.52)
	{
		# mostly in the mode in which it has it
		my $mode = $one->{held}{$path} //= rand() < 0.3 ? '_shared' : '';
		$mode = '' if rand() < 0.05;
		$op = { zk => [$path], sql => "SELECT zk_${xact}lock$mode('$path')" };
	}
	elsif ($dice < 0.60 && (my @free = (shuffle grep { !defined $one->{held}{$_} } @PATHS)[ 0, 1 ])[1])
	{
		$one->{held}{$_} = '' for @free;
		$op = { zk => \@free, sql => "SELECT zk_xact_lock_many('{" . join(',', @free) . "}')" };
	}
	elsif ($dice < 0.66) { $op = { zk => ['/dl/s'], sql => "SELECT zk_${xact}semaphore_acquire('/dl/s', 2)" }; }
	elsif ($dice < 0.73) { $op = { local => "advisory $key", sql => "SELECT pg_advisory_xact_lock($key)" }; }
	elsif ($dice < 0.89) { $op = { local => "row $row", sql => "UPDATE r SET n = n + 1 WHERE id = $row" }; }
	else { $op = { local => "row $row", sql => "SELECT n FROM r WHERE id = $row FOR UPDATE" }; }
	$op->{sql} = 'DO $$ DECLARE d text; h text; BEGIN ' . ($op->{sql} =~ s/^SELECT/PERFORM/r) . '; EXCEPTION WHEN deadlock_detected OR lock_not_available THEN '
	  . q{GET STACKED DIAGNOSTICS d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT; RAISE WARNING E'caught % %\n%\n%', SQLSTATE, SQLERRM, d, h; END $$}
	  if rand() < 0.12;
	return $op;
}

sub _program
{
	my ($one) = @_;
	return [
		{ sql => 'BEGIN' },
		({ sql => 'SET LOCAL lock_timeout = ' . (100 + int rand 2000) }) x (rand() < 0.1),
		(map { (({ pause => 0.03 * rand }) x (rand() < 0.3), _op($one)) } 1 .. 2 + int rand 4),
		{ sql => rand() < 0.85 ? 'COMMIT' : 'ROLLBACK' },
		({ sql => 'SELECT zk_unlock_all()' }) x (rand() < 0.7) ];
}

# ---------------------------------------------------------------- the sessions

# Runs them for so many seconds, and until all that was begun is done
sub run
{
	my ($class, %opt) = @_;
	my $self = bless { %opt, count => {}, complaints => [], victims => [], longest => { seconds => 0, limit => 0, over => -1e9, what => 'none' } }, $class;
	srand($opt{seed});
	$_->{node}->safe_psql('postgres', "CREATE TABLE r (id int PRIMARY KEY, n int DEFAULT 0); INSERT INTO r SELECT generate_series(1, $ROWS)")
	  for @{ $opt{clusters} };
	my @all = map {
		my $cluster = $opt{clusters}[ $_ % @{ $opt{clusters} } ];
		my $s = zk_session_with($cluster->{node}, hosts => $opt{networks}[ $_ / 3 % @{ $opt{networks} } ]);
		{ session => $s, cluster => $cluster, key => $cluster->{node}->port . ':' . $s->pid, statements => [], xact => 0, held => {}, todo => [], idle_until => 0 }
	} 1 .. $opt{sessions};
	$self->{by_key} = { map { $_->{key} => $_ } @all };
	my $until = time + $opt{seconds};
	$self->{deadline} = time + $TIMEOUT;
	my $select = IO::Select->new(map { $_->{session}->handles } @all);
	while (my @on = grep { !$_->{over} } @all)
	{
		$self->{ending} = time >= $until;
		foreach my $one (@on)
		{
			if ($one->{waits}) { $self->_done($one) if $one->{session}->is_done; }
			elsif ($one->{idle_until} <= time) { $self->_next($one); }
		}
		if ($self->{lost} || time > $self->{deadline})
		{
			$self->_complain($self->{lost} // "nothing that was begun was done for $TIMEOUT s", map { _history($_, time) } @all);
			$_->{session}->kill9 for @all;
			last;
		}
		$select->can_read(min(1, map { max(0.001, $_->{idle_until} - time) } grep { !$_->{waits} && !$_->{over} } @all));
	}
	$_->{session}->quit for @all;
	$self->_judge;
	return $self;
}

sub _complain { my ($self, @text) = @_; push @{ $self->{complaints} }, join "\n", @text; return; }

sub _next
{
	my ($self, $one) = @_;
	if (!@{ $one->{todo} })
	{
		$self->{deadline} = time + $TIMEOUT;    # some program is done
		return $one->{over} = 1 if $one->{ended};
		$one->{ended} = $self->{ending};
		$one->{failures} = 0;
		$one->{program} = $one->{ended} ? [ { sql => 'SELECT zk_unlock_all()' } ] : _program($one);
		$one->{todo} = [ @{ $one->{program} } ];
	}
	my $op = shift @{ $one->{todo} };
	return $one->{idle_until} = time + $op->{pause} if $op->{pause};
	$one->{xact}++ if $op->{sql} eq 'BEGIN';
	$one->{waits} = { %$op, sent => time, xact => $one->{xact} };
	push @{ $one->{statements} }, $one->{waits};
	return $one->{session}->send($op->{sql});
}

sub _done
{
	my ($self, $one) = @_;
	my $result = $one->{session}->wait;
	my $statement = delete $one->{waits};
	my ($count, $err) = ($self->{count}, $result->{err});
	@$statement{qw(done state)} = (time, $result->{state});
	$one->{held} = {} if $statement->{sql} =~ /unlock_all/;
	$count->{ lc $statement->{sql} . 's' }++ if $result->{state} eq '' && $statement->{sql} =~ /^(?:COMMIT|ROLLBACK)$/;
	$statement->{failed} = $1 if $err =~ /(?:caught |ERROR:  )(\w{5})/;
	$count->{ $statement->{failed} }++ if $statement->{failed};
	if (($statement->{failed} // '') eq '40P01')
	{
		my $kind = $err !~ /deadlock detected/ ? 'upgrade' : $err =~ /Release the session-scope locks/ ? 'zklock' : 'postgres';
		$count->{"victims: $kind"}++;
		push @{ $self->{victims} }, { one => $one, err => $err } if $kind eq 'zklock';
		$self->_complain("40P01 of a statement without zk locks: $statement->{sql}: $err") if $kind ne 'postgres' && !$statement->{zk};
	}
	return if $result->{state} eq '' && !$result->{closed};
	if ($result->{state} !~ /^(?:40P01|55P03)$/)
	{
		$self->_complain("$one->{key}: $statement->{sql}: $err");
		$self->{lost} = 'the connection is lost' if $result->{closed};
	}
	# Give all back, and do it again; later and later, or those programs would be left that
	# hardly ever succeed among so many, and nobody would get anywhere.
	my $pause = min(3, 0.02 * 2**$one->{failures}++);
	$pause = max($pause, 4 * $one->{cluster}{deadlock_timeout}) if $self->{ending};    # with so many in each other's way that could last
	$one->{todo} = [ { sql => 'ROLLBACK' }, { sql => 'SELECT zk_unlock_all()' }, { pause => rand() * $pause }, @{ $one->{program} } ];
	return;
}

# ------------------------------------------------------------------- the judge

# Each victim, and the transaction of ZooKeeper that removed it, belong together.
sub _judge
{
	my ($self) = @_;
	my %queue;    # dir => { name => { key, mode, permits, number, session, time } }
	my %expected;
	push @{ $expected{ $_->{one}{key} } }, $_ for @{ $self->{victims} };
	my $split = sub { return $_[0]{path} =~ m{^(.*)/([^/]+)$} };
	Torture::TxnLog::each_transaction(
		$self->{zk}->dir,
		sub {
			my %of = map { $_->{type} => $_ } reverse @_;    # the first of each
			if ($of{delete} && $of{check})
			{
				my ($dir, $name) = $split->($of{delete});
				my $node = $queue{$dir}{$name} // {};
				my $key = $node->{key} // '';
				# of one whose time was over before its removal was answered, it is told that
				my $waited = $self->{by_key}{$key}
				  && (grep {
					my $one = $_;
					grep { "/zklock$_" eq $dir } @{ $one->{zk} // [] }
				  } _by($self->{by_key}{$key}, $node->{time} + 0.001))[-1];
				if ($waited && ($waited->{failed} // '') eq '55P03') { $self->{count}{'removed when their time was over'}++; }
				elsif (my $victim = shift @{ $expected{$key} // [] }) { $self->_judge_victim($victim, $of{delete}{time}, \%queue); }
				elsif ($self->{by_key}{$key}) { $self->_complain("removed, but not told so: $key at $of{delete}{path}"); }
			}
			foreach my $op (@_)
			{
				if ($op->{type} eq 'close')
				{
					foreach my $nodes (values %queue) { delete $nodes->{$_} for grep { $nodes->{$_}{session} eq $op->{session} } keys %$nodes; }
				}
				next if $op->{type} !~ /^(?:create|delete)$/;
				my ($dir, $name) = $split->($op);
				delete $queue{$dir}{$name};
				next if $op->{type} eq 'delete';
				my ($kind, $mode, $permits, $number) = queue_contender($name) or next;
				my %fact = queue_facts($op->{data});
				$queue{$dir}{$name} = { key => join(':', map { $_ // '?' } @fact{qw(port pid)}), mode => $mode, permits => $permits, number => $number, session => $op->{session}, time => $op->{time} };
			}
		});
	$self->_complain("40P01, but ZooKeeper has removed nobody: $_->{one}{key}: $_->{err}") for map { @$_ } values %expected;
	return;
}

sub _judge_victim
{
	my ($self, $victim, $at, $queues) = @_;
	my $wrong = sub { return $self->_complain(sprintf("wrong victim %s at %.3f: %s", $victim->{one}{key}, $at, shift), @_, $victim->{err}); };
	my $process = qr/process (\d+) on [^:\s]+:(\d+)/i;
	my @cycle;
	push @cycle, { waiter => "$2:$1", what => $3, blocker => "$5:$4" } while $victim->{err} =~ /^(?:DETAIL:  )?$process waits for (.*); blocked by $process\.$/mg;
	return $wrong->('no cycle') if !@cycle || grep { $cycle[$_ - 1]{blocker} ne $cycle[$_]{waiter} } 0 .. $#cycle;
	return $wrong->('somebody else is the first') if $cycle[0]{waiter} ne $victim->{one}{key};

	my (@members, @statements);
	my ($limit, $count, $longest) = (0, @$self{qw(count longest)});
	foreach my $wait (@cycle)
	{
		my ($waiter, $blocker) = map { $self->{by_key}{ $wait->{$_} } // return $wrong->("a stranger: $wait->{$_}") } qw(waiter blocker);
		my ($path) = $wait->{what} =~ /^(?:\w+ on lock path|a place of semaphore) "(.*)"$/;
		my $why = $path ? _zk_wait($wait, $queues->{"/zklock$path"}) : $self->_local_wait($victim, $waiter, $blocker, $at);
		return $wrong->("$why: $wait->{waiter} $wait->{what}", map { _history($_, $at) } $waiter, $blocker) if $why;
		my $statement = (_by($waiter, $at))[-1];
		push @members, "$wait->{waiter} $statement->{sent}";
		push @statements, $statement if @{ $statement->{zk} // [] } < 2 && $wait->{what} !~ /semaphore/;
		$limit = max($limit, 3 * $waiter->{cluster}{deadlock_timeout}) if $path;
		$count->{$path ? 'zk waits in cycles' : $waiter->{cluster} == $victim->{one}{cluster} ? 'local waits in cycles' : 'local waits elsewhere'}++;
	}
	$count->{'longest cycle'} = max($count->{'longest cycle'} // 0, scalar @cycle);
	if (@statements == @cycle)
	{
		my $seconds = $at - max(map { $_->{sent} } @statements);
		$longest->{seconds} = max($longest->{seconds}, $seconds);
		@$longest{qw(over limit what)} = ($seconds - $limit, $limit, join ', ', map { $_->{sql} } @statements) if $seconds - $limit > $longest->{over};
	}
	my $members = join ' ', sort @members;
	$wrong->("the second of one cycle: $members") if $self->{broken}{$members}++;
	return;
}

# What this session had sent by then
sub _by
{
	my ($one, $at) = @_;
	return grep { $_->{sent} <= $at } @{ $one->{statements} };
}

# The last of that
sub _history
{
	my ($one, $at) = @_;
	my @some = _by($one, $at);
	return join "\n  ", "$one->{key}:",
	  map { sprintf '%.3f to %.3f, %s %s', $_->{sent} - $at, ($_->{done} // $at) - $at, $_->{sql} =~ s/\n/ /gr, $_->{state} // '' } @some[ max(0, $#some - 8) .. $#some ];
}

# The sessions that this place of a queue waits for: all of them, or, with permits, some
sub _blockers
{
	my ($place, @queue) = @_;
	my $of_semaphore = $place->{mode} eq 'semaphore';
	my @before = grep { $_->{number} < $place->{number} && $_->{key} ne $place->{key} && ($_->{mode} eq 'semaphore') == $of_semaphore } @queue;
	@before = grep { $place->{mode} ne 'shared' || $_->{mode} ne 'shared' } @before;
	return $of_semaphore && @before < $place->{permits} ? () : map { $_->{key} } @before;
}

# Why one does not wait for another in this queue, neither directly nor through others that wait
sub _zk_wait
{
	my ($wait, $queue) = @_;
	my @queue = values %{ $queue // {} };
	my %seen;
	my @todo = $wait->{waiter};
	while (defined(my $key = shift @todo))
	{
		push @todo, my @blockers = $seen{$key}++ ? () : map { _blockers($_, @queue) } grep { $_->{key} eq $key } @queue;
		return if grep { $_ eq $wait->{blocker} } @blockers;
	}
	return 'does not wait for that one';
}

# Why one does not wait for a lock of PostgreSQL's that another has, or is before it in line
sub _local_wait
{
	my ($self, $victim, $waiter, $blocker, $at) = @_;
	my $old = $SLACK + ($waiter->{cluster} == $victim->{one}{cluster} ? 0 : max(map { $_->{deadlock_timeout} } @{ $self->{clusters} }));
	# it may be over since
	my @last = _by($waiter, $at);
	my $statement = (grep { $_->{local} } @last[ max(0, $#last - 4) .. $#last ])[-1] // return 'was not about a lock of PostgreSQL';
	my $over = defined $statement->{done} ? $at - $statement->{done} : 0;
	if ($over > 0)
	{
		$self->{count}{'waits over when they counted'}++;
		$self->{oldest} = max($self->{oldest} // 0, $over);
		return sprintf 'was over %.2f s before', $over if $over > $old;
	}
	return 'the waiter holds it itself' if $waiter == $blocker;
	my @other = _by($blocker, $at);
	my @asked = grep {
		($_->{local} // '') eq $statement->{local}
		  && ($_->{xact} == $other[-1]{xact} || $_->{xact} == $other[-1]{xact} - 1 && !(defined $_->{done} && $at - $_->{done} > $old))
	} @other;
	return @asked ? undef : 'the other one has not asked for it';
}

1;
