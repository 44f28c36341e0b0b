# Deadlocks when something interferes: both ends look at the same moment, the answer
# of the transaction that breaks the cycle is lost, somebody in the cycle ends,
# stops, or loses its session at that moment.  One fails, or nobody if the cycle has
# opened by itself.
#
# DEADLOCK_LONG=1: 500 cycles instead of 12, and longer queues
# DEADLOCK_TIMES: so many cycles
# DEADLOCK_MANY: so many in a long queue; default 10, 20 where times are checked, or 400

use FindBin;
use lib "$FindBin::RealBin/lib";

use Child;
use Cycles qw(one_fails record);
use Tests;

my $LONG = $ENV{DEADLOCK_LONG};
my $TIMES = $ENV{DEADLOCK_TIMES} // ($LONG ? 500 : 12);
my $MANY = $ENV{DEADLOCK_MANY} // ($LONG ? 400 : $TIMING ? 20 : 10);
my $SESSION_TIMEOUT = 6;

my $zk = ZooKeeper->new->start;
my %setting = (
	deadlock_timeout => '200ms', 'zklock.session_timeout' => "${SESSION_TIMEOUT}s",
	restart_after_crash => 'on',
	max_connections => 100 + $MANY);
my ($node_a, $node_b) = map { zk_cluster($_, $zk, %setting) } qw(a b);
my @admin = map { zk_session($_) } $node_a, $node_b;
$_->value('CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0); INSERT INTO t SELECT generate_series(1, 9)') for @admin;

sub about
{
	my ($name, $code) = @_;
	subtest $name => sub {
		$code->();
		zk_nothing_left($zk, 'nothing is left in ZooKeeper');
	};
	return;
}

# A proxy that nobody uses: what did has ended, or been killed
my $shared_proxy = ZkProxy->new($zk);

sub proxy
{
	$shared_proxy->reset;
	$shared_proxy->clear_log;
	return $shared_proxy;
}

# A session in a transaction that has done this; with its proxy, if there is one
sub begun
{
	my ($node, $sql, %opt) = @_;
	my $s = $opt{proxy}
	  ? zk_session_with($node, hosts => $opt{proxy}, session_timeout => $opt{session_timeout} // "${SESSION_TIMEOUT}s", operation_timeout => '60s')
	  : zk_session($node);
	$s->value("SET deadlock_timeout = '$opt{deadlock_timeout}'") if $opt{deadlock_timeout};
	$s->value("BEGIN; $sql");
	return $s;
}

# Wait until one of these is done, and return it
sub one_done
{
	my (@sessions) = @_;
	my $done;
	zk_until(sub { ($done) = grep { $_->is_done } @sessions }, 'one to be done');
	return $done;
}

# Wait until all are done, each rolled back or committed then; returns their SQLSTATEs
# in the given order
sub all_done
{
	my (@sessions) = @_;
	my %state;
	my @left = @sessions;
	while (@left)
	{
		my $s = one_done(@left);
		$state{$s} = $s->wait->{state};
		$s->query($state{$s} eq '' ? 'COMMIT' : 'ROLLBACK') unless $state{$s} eq '57P01';
		@left = grep { $_ != $s } @left;
	}
	return join ' ', map { $state{$_} || 'ok' } @sessions;
}

# ------------------------------------------------------- both at the same moment

about 'two close a cycle at the same moment' => sub {
	my @proxy = map { ZkProxy->new($zk) } 1 .. 2;
	my @s = map { zk_session_with(($node_a, $node_b)[$_], hosts => $proxy[$_]) } 0, 1;
	my @row = map { zk_session($_) } $node_a, $node_b;
	$_->value("SET deadlock_timeout = '100ms'") for @s, @row;
	foreach my $time (1 .. $TIMES)
	{
		$_->delay_ms(0) for @proxy;
		$_->value('BEGIN') for @s, @row;
		$s[0]->value(q{SELECT zk_xact_lock('/at/x')});
		$s[1]->value(q{SELECT zk_xact_lock('/at/y')});
		my $delay = int rand 40;
		$proxy[0]->delay_ms($delay);
		$proxy[1]->delay_ms(rand() < 0.5 ? $delay : int rand 40);
		my $with_rows = $time % 4 == 0;
		my @waits = @s;
		if ($with_rows)
		{
			# each of the first waits for a row of one that waits for the other's lock
			$_->value('UPDATE t SET n = 1 WHERE id = 1') for @row;
			@waits = @row;
		}
		my ($r) = one_fails("time $time",
			[ $waits[0], q{SELECT zk_xact_lock('/at/y')}, 'ROLLBACK' ], [ $waits[1], q{SELECT zk_xact_lock('/at/x')}, 'ROLLBACK' ],
			$with_rows ? map { [ $_, 'UPDATE t SET n = 2 WHERE id = 1; SELECT true', 'ROLLBACK' ] } @s : ());
		in_time($r->{seconds}, 3 * 0.1 + 1, '- in time');
		$_->value('ROLLBACK') for @row;
	}
	$_->quit for @s, @row;
};

# --------------------------------------------------------------- losses

# B has told where it waits before A begins to wait, so that A is the one who sees the
# cycle; B reads the board again after ten looks, much later.
sub has_told { my ($n) = @_; return zk_until(sub { $zk->children('/zklock/__zklock_waits__') >= ($n // 1) }, 'a record'); }

# In each of the ways, and the other one looks, too, or not; all at the same time, since most
# of that is waiting
about 'the break is lost' => sub {
	my @cycles;
	foreach my $way (@ZkProxy::WAYS)
	{
		foreach my $both (0, 1)
		{
			my $dir = '/lost/' . @cycles;
			my $proxy = ZkProxy->new($zk);
			# A connection that is silent is given up after two thirds of this; what is left
			# of it is for coming back.  By then B has not looked ten times.
			my $a = begun($node_a, "SELECT zk_xact_lock('$dir/x')", proxy => $proxy, session_timeout => $way =~ /behind|^stuck/ ? '20s' : undef);
			my $b = begun($node_b, "SELECT zk_xact_lock('$dir/y')", deadlock_timeout => $both ? '400ms' : '3s');
			push @cycles, { dir => $dir, way => $way, both => $both, proxy => $proxy, a => $a, b => $b };
		}
	}
	my ($alone, $both) = map { my $with = $_; [ grep { $_->{both} == $with } @cycles ] } 0, 1;
	foreach my $c (@$alone, @$both)
	{
		$c->{proxy}->clear_log;
		$c->{proxy}->lose($c->{way}, 'break');
		$c->{b}->send("SELECT zk_xact_lock('$c->{dir}/x')");
		next if !$c->{both};
		zk_wait_queued($zk, $c->{b});
		$c->{a}->send("SELECT zk_xact_lock('$c->{dir}/y')");
	}
	zk_until(sub { !grep { !record($zk, $_->{b}) } @$alone }, 'the records');
	$_->{a}->send("SELECT zk_xact_lock('$_->{dir}/y')") for @$alone;
	foreach my $c (@$alone)
	{
		$c->{proxy}->wait_lost($c->{way});
		my $began = time;
		next if $c->{way} ne 'never asked for, the connection cut';
		$c->{proxy}->wait_for('multi', 2);
		in_time(time - $began, 1.5, 'the next attempt comes soon');
	}
	sleep 1;
	$_->{proxy}->release for grep { $_->{way} =~ /^stuck/ } @$alone;
	foreach my $c (@cycles)
	{
		my ($a, $b) = @$c{qw(a b)};
		my $states = all_done($a, $b);
		if ($c->{both}) { like($states, qr/^(?:40P01 ok|ok 40P01)$/, "$c->{way}, and the other looks, too: one fails"); }
		else { is($states, '40P01 ok', "$c->{way}: it fails, and the other does not"); }
		$c->{proxy}->reset;
		is($a->value("SELECT zk_lock('$c->{dir}/x'), zk_unlock('$c->{dir}/x')"), 't|t', 'it goes on');
		$_->quit for $a, $b;
		$c->{proxy}->stop;
	}
};

# The same with locks on rows in the cycle: what is known of them is old by then
about 'the break with rows elsewhere, the answer lost' => sub {
	my $proxy = proxy();
	my $a = begun($node_a, q{SELECT zk_xact_lock('/lost/x')}, proxy => $proxy);
	my $b1 = begun($node_b, q{SELECT zk_xact_lock('/lost/y')});
	my $b2 = begun($node_b, q{UPDATE t SET n = 1 WHERE id = 1}, deadlock_timeout => '600ms');
	$proxy->clear_log;
	$proxy->lose('swallowed and the connection cut', 'break');
	$b1->send(q{UPDATE t SET n = 2 WHERE id = 1});
	$b2->send(q{SELECT zk_xact_lock('/lost/x')});
	$a->send(q{SELECT zk_xact_lock('/lost/y')});
	my $states = all_done($a, $b1, $b2);
	like($states, qr/^(?:40P01 ok ok|ok ok 40P01)$/, 'one fails');
	note $states;
};

# ------------------------------------------- somebody leaves just before the break

# A waits for /c/y with a proxy that holds back what breaks the cycle; B holds that
# and waits for /c/x, which A holds.  Who gives up does not wait until ZooKeeper knows of it,
# and until then the break is right.
sub held_break
{
	my (%opt) = @_;
	my $proxy = proxy();
	# its heartbeats are held back, too
	my $a = begun($node_a, q{SELECT zk_xact_lock('/c/x')}, proxy => $proxy, session_timeout => '40s');
	my $b = begun($node_b, q{SELECT zk_xact_lock('/c/y')}, deadlock_timeout => '2s');
	$proxy->hold_request('break');
	$b->send($opt{sql} // q{SELECT zk_xact_lock('/c/x')});
	has_told();
	$a->send(q{SELECT zk_xact_lock('/c/y')});
	$proxy->wait_held;
	return ($proxy, $a, $b);
}

# B is killed, with its whole server
sub kills
{
	my ($b, $expired) = @_;
	my ($node) = $zk->with_client(sub { $_[0]->queue('/zklock/c/y') });
	zk_kill($node_b, $b->pid);
	$b->wait;
	$_->kill9 for $b, $admin[1];
	$admin[1] = zk_session($node_b);
	$zk->end_sessions_of($node) if $expired;
	return;
}

# What happens to B, and how A ends; and what B does itself before that
foreach my $case (
	[ 'canceled', sub { is($_[0]->cancel($admin[1])->{state}, '57014', 'one is canceled'); $_[0]->value('ROLLBACK'); }, 'ok' ],
	[ 'canceled inside a block', sub { is($_[0]->cancel($admin[1])->{state}, '', 'one goes on, and still holds'); }, 'ok', sub { $_[0]->value('COMMIT'); } ],
	[ 'terminated', sub { $admin[1]->value('SELECT pg_terminate_backend(' . $_[0]->pid . ')'); is($_[0]->wait->{state}, '57P01', 'one is terminated'); $_[0]->quit; }, 'ok' ],
	[ 'killed, and its session lives', sub { kills($_[0], 0) }, 'ok|40P01' ],
	[ 'killed, and its session is over', sub { kills($_[0], 1) }, 'ok' ])
{
	my ($name, $ends, $state, $lets_go) = @$case;
	about "just before the break, one is $name" => sub {
		my ($proxy, $a, $b) = held_break($lets_go ? (sql => q{DO $$ BEGIN PERFORM zk_xact_lock('/c/x'); EXCEPTION WHEN query_canceled THEN NULL; END $$}) : ());
		$ends->($b);
		zk_until(sub { $zk->children('/zklock/c/x') == 1 }, 'its node is gone') if $name !~ /lives/;
		$proxy->release;
		if ($lets_go)
		{
			sleep 1;
			ok(!$a->is_done, 'the other waits on');
			$lets_go->($b);
		}
		like(my $end = all_done($a), qr/^(?:$state)$/, 'the other ends, if possible with the lock');
		note $end;
		$_->quit for $a, $b;
		zk_until(sub { $zk->ephemerals_count == 0 }, 'its session to end');
	};
}

# B waits for one of two places; A has one, and C, who gives up, the other
about 'a place of a semaphore freed just before the break' => sub {
	my $proxy = proxy();
	my $place = q{SELECT zk_xact_semaphore_acquire('/c/s', 2)};
	my $a = begun($node_a, $place, proxy => $proxy, session_timeout => '40s');
	my $c = begun($node_b, $place, deadlock_timeout => '2s');
	my $b = begun($node_b, q{SELECT zk_xact_lock('/c/y')}, deadlock_timeout => '2s');
	$b->send($place);
	zk_wait_queued($zk, $b);
	$c->send(q{SELECT zk_xact_lock('/c/y')});
	has_told(2);
	ok(!$b->is_done && !$c->is_done, 'nobody fails while one with a place runs');
	$proxy->hold_request('break');
	$a->send(q{SELECT zk_xact_lock('/c/y')});
	$proxy->wait_held;
	is($c->cancel($admin[1])->{state}, '57014', 'one with a place gives up');
	$c->value('ROLLBACK');
	is($b->wait->{state}, '', 'which is had');
	$proxy->release;
	$b->value('COMMIT');
	is(all_done($a), 'ok', 'and then the lock');
};

# ------------------------------------------------------- stopped, and expired

# B is stopped: before it can look, or when it has told where it waits
about 'members are stopped, for longer than a session lives, too' => sub {
	my @cycles;
	foreach my $case ([ 1, 0 ], [ $SESSION_TIMEOUT + 2, 0 ], [ 1, 1 ], [ $SESSION_TIMEOUT + 2, 1 ])
	{
		my ($seconds, $told) = @$case;
		my $dir = '/stop/' . @cycles;
		my $a = begun($node_a, "SELECT zk_xact_lock('$dir/x')", $told ? (deadlock_timeout => '1s') : ());
		my $b = begun($node_b, "SELECT zk_xact_lock('$dir/y')", deadlock_timeout => $told ? '100ms' : '2s');
		push @cycles, { dir => $dir, seconds => $seconds, told => $told, a => $a, b => $b };
	}
	my ($early, $told) = map { my $with = $_; [ grep { $_->{told} == $with } @cycles ] } 0, 1;
	$_->{b}->send("SELECT zk_xact_lock('$_->{dir}/x')") for @$told, @$early;
	zk_wait_queued($zk, map { $_->{b} } @$early);
	Child::suspend(map { $_->{b}->pid } @$early);
	zk_until(sub { !grep { !record($zk, $_->{b}) } @$told }, 'their records');
	Child::suspend(map { $_->{b}->pid } @$told);
	$_->{a}->send("SELECT zk_xact_lock('$_->{dir}/y')") for @cycles;
	my $began = time;
	foreach my $c (@$told)
	{
		is($c->{a}->wait->{state}, '40P01', 'who has told: the other one fails, while that one is stopped');
		in_time(time - $began, 3 + 1, '- in time');
		$c->{a}->query('ROLLBACK');
	}
	foreach my $c (sort { $a->{seconds} <=> $b->{seconds} } @cycles)
	{
		my $left = $began + $c->{seconds} - time;
		sleep $left if $left > 0;
		kill 'CONT', $c->{b}->pid;
	}
	foreach my $c (@cycles)
	{
		my $states = all_done($c->{told} ? () : $c->{a}, $c->{b});
		my ($lives, $over) =
			$c->{told} ? (qr/^ok$/, qr/^(?:ok|40001)$/)
		  : (qr/^(?:40P01 ok|ok 40P01)$/, qr/^(?:40P01|ok) (?:ok|40001)$|^ok 40P01$/);
		like($states, $c->{seconds} < $SESSION_TIMEOUT ? $lives : $over, "for $c->{seconds} s: one fails for a cycle, at most");
		note $states;
		$_->quit for $c->{a}, $c->{b};
	}
};

about 'a member whose session is over queues again, and the cycle is still found' => sub {
	my $a = begun($node_a, q{SELECT zk_xact_lock('/again/x')});
	my $b = begun($node_a, q{UPDATE t SET n = 1 WHERE id = 1}, deadlock_timeout => '2s');
	$b->send(q{SELECT zk_xact_lock('/again/x')});
	zk_wait_queued($zk, $b);
	my $node = $zk->with_client(sub { ($_[0]->queue('/zklock/again/x'))[1] });
	$a->send(q{UPDATE t SET n = 2 WHERE id = 1});
	zk_until(sub { eval { $zk->end_sessions_of($node); 1 } }, 'its session to end');
	is(all_done($b, $a), '40P01 ok', 'it fails');
};

about 'a member loses its session, and with it what the other waits for' => sub {
	foreach my $time (1 .. ($LONG ? 20 : 4))
	{
		my $a = begun($node_a, q{SELECT zk_xact_lock('/over/x')}, deadlock_timeout => '300ms');
		my $b = begun($node_b, q{SELECT zk_xact_lock('/over/y')}, deadlock_timeout => '300ms');
		my ($node) = $zk->children('/zklock/over/y');
		$b->send(q{SELECT zk_xact_lock('/over/x')});
		$a->send(q{SELECT zk_xact_lock('/over/y')});
		sleep 0.25 + 0.1 * rand;
		# its client may be faster to come back
		zk_until(sub { eval { $zk->end_sessions_of("/zklock/over/y/$node"); 1 } }, 'its session to end');
		my $states = all_done($a, $b);
		cmp_ok(scalar(() = $states =~ /40P01/g), '<=', 1, "time $time: at most one fails for a cycle ($states)");
		$_->quit for $a, $b;
	}
};

# ------------------------------------------------------------------ long queues

# CPU time of the threads that this process has now: ticks, which zk_cpu_seconds counts,
# are too coarse for what a few looks take
sub threads_cpu_seconds
{
	my ($pid) = @_;
	my $ns = 0;
	$ns += (split ' ', slurp_file($_))[0] for glob "/proc/$pid/task/*/schedstat";
	return $ns / 1e9;
}

# Let it wait for a while; one test, if times are tested
sub looks_cheaply
{
	my ($s, $sql) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$s->send($sql);
	zk_until(sub { record($zk, $s) }, 'its record');
	my ($cpu, $from) = (threads_cpu_seconds($s->pid), time);
	sleep($MANY > 20 ? 30 : $TIMING ? 3 : 0.2);    # no wait for anything: this time is what is measured
	$cpu = (threads_cpu_seconds($s->pid) - $cpu) / (time - $from);
	note sprintf '%d: %.2f %% of a processor', $MANY, 100 * $cpu;
	in_time($cpu, 0.01, 'less than 1 % of a processor');
	return;
}

about 'many who wait for a row, behind one who waits for a lock' => sub {
	my $h = begun($node_b, q{SELECT zk_xact_lock('/long/x')});
	my $w = begun($node_a, q{UPDATE t SET n = 1 WHERE id = 1}, deadlock_timeout => '1s');
	my @rows = map { begun($node_a, '', deadlock_timeout => '1h') } 1 .. $MANY;
	$_->send('UPDATE t SET n = 2 WHERE id = 1') for @rows;
	zk_until(sub { $admin[0]->value(q{SELECT count(*) FROM pg_locks WHERE NOT granted}) == $MANY }, 'the waiters');
	looks_cheaply($w, q{SELECT zk_xact_lock('/long/x')});
	$h->value('COMMIT');
	is(all_done($w, @rows) =~ s/ok ?//gr, '', 'all go on');
};

about 'many in one queue, one of whom is in a cycle' => sub {
	my $h = begun($node_b, q{SELECT zk_xact_lock('/long/q')}, deadlock_timeout => '1s');
	my $w = begun($node_a, q{SELECT zk_xact_lock('/long/h')}, deadlock_timeout => '1s');
	my @others = map { begun($_ % 2 ? $node_a : $node_b, '') } 1 .. $MANY;
	$_->send(q{SELECT zk_xact_lock('/long/q')}) for @others;
	zk_until(sub { $zk->children('/zklock/long/q') == $MANY + 1 }, 'the waiters');
	looks_cheaply($w, q{SELECT zk_xact_lock('/long/q')});
	one_fails('all others have their turn', [ $h, q{SELECT zk_xact_lock('/long/h')}, 'COMMIT' ], map { [ $_, undef, 'COMMIT' ] } $w, @others);
};

$_->quit for @admin;
zk_no_crash($node_a);
unlike(slurp_file($node_b->logfile), qr/PANIC:|TRAP:|terminated by signal (?!9)/, 'no backend has crashed but those killed');
done_testing;
