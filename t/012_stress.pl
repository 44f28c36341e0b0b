# Two clusters, twenty backends, five locks, acquired and released in every
# possible way.  No lock is ever held twice: intervals do not overlap, and a
# counter that nothing else protects loses no update.  Locks are granted in the
# order of arrival.  Nothing is left behind.  Then again, for a shorter time,
# with a network that fails all the time.
#
# ZK_STRESS_SECONDS: how long (default 5); ZK_MANY_LOCKS: in one session (default 2000, or 5000 where times are checked)

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(max sum);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $SECONDS = $ENV{ZK_STRESS_SECONDS} || 5;
my $BACKENDS = 20;
my $LOCKS = 5;

my $zk = ZooKeeper->new(container_check => 1000)->start;
my @node = map { zk_cluster($_, $zk, fsync => 'off', synchronous_commit => 'off') } qw(a b);

# The counters are in the first cluster.  Every session reaches them by a
# separate connection, which commits each statement by itself: the next one sees
# what was written, even if the transaction that holds the lock rolls back.
$node[0]->safe_psql(
	'postgres', qq{
	CREATE TABLE counter (lock int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 10);
	INSERT INTO counter SELECT i, 0 FROM generate_series(1, $LOCKS) i});
my $counters = $node[0]->connstr('postgres') =~ s/'/''/gr;

foreach my $node (@node)
{
	$node->safe_psql('postgres', 'CREATE EXTENSION dblink');
	$node->safe_psql('postgres', <<~"SQL");
		-- each time that a lock was held
		CREATE UNLOGGED TABLE hold (pid int DEFAULT pg_backend_pid(), way text, lock int, token bigint,
			asked timestamptz, since timestamptz, until timestamptz);

		-- what was got by way of a call, and how often
		CREATE UNLOGGED TABLE outcome (way text, outcome text);

		-- 1 ms to 1 s: on a fast machine and on a slow one it may be enough, or not
		CREATE FUNCTION short_while() RETURNS float8 LANGUAGE sql AS 'SELECT power(10, -3 * random())';

		-- what is done under a lock; returns the hold, for the caller to keep
		CREATE FUNCTION work(way text, lock int, asked timestamptz) RETURNS hold LANGUAGE plpgsql AS \$\$
		DECLARE
			h hold;
			v int;
		BEGIN
			h := (pg_backend_pid(), way, lock, zk_lock_token('/stress/' || lock), asked, clock_timestamp(), NULL);
			SELECT n INTO v FROM dblink('counters', 'SELECT n FROM counter WHERE lock = ' || lock) AS (n int);
			PERFORM dblink_exec('counters', format('UPDATE counter SET n = %s WHERE lock = %s', v + 1, lock));
			h.until := clock_timestamp();
			RETURN h;
		END \$\$;

		CREATE PROCEDURE stress(seconds numeric) LANGUAGE plpgsql AS \$\$
		DECLARE
			ends timestamptz := clock_timestamp() + make_interval(secs => seconds);
			ways text[] := '{unlock, unlock later, commit, commit, rollback, rollback session, try, short timeout,
				lock_timeout, exception, no exception, savepoints, twice}';
			way text;
			lock int;
			path text;
			asked timestamptz;
			got boolean;
			result text;
			h hold;
		BEGIN
			WHILE clock_timestamp() < ends LOOP
				way := ways[1 + floor(random() * array_length(ways, 1))];
				lock := 1 + floor(random() * $LOCKS);
				path := '/stress/' || lock;
				asked := clock_timestamp();
				got := true;
				result := NULL;

				-- each way holds the lock once, or not at all
				CASE way
				WHEN 'unlock' THEN
					PERFORM zk_lock(path);
					h := work(way, lock, asked);
					PERFORM zk_unlock(path);
				WHEN 'unlock later' THEN
					PERFORM zk_lock(path);
					COMMIT;
					h := work(way, lock, asked);
					ROLLBACK;
					PERFORM zk_unlock(path);
				WHEN 'commit' THEN
					PERFORM zk_xact_lock(path);
					h := work(way, lock, asked);
					COMMIT;
				WHEN 'rollback' THEN
					PERFORM zk_xact_lock(path);
					h := work(way, lock, asked);
					ROLLBACK;
				WHEN 'rollback session' THEN
					PERFORM zk_lock(path);
					h := work(way, lock, asked);
					ROLLBACK;
				WHEN 'try' THEN
					got := zk_try_xact_lock(path);
					IF got THEN h := work(way, lock, asked); END IF;
					COMMIT;
				WHEN 'short timeout' THEN
					-- one that ends before ZooKeeper has said anything is an error
					BEGIN
						got := zk_lock(path, make_interval(secs => short_while()));
						IF got THEN h := work(way, lock, asked); END IF;
					EXCEPTION WHEN io_error THEN
						got := false;
						result := sqlstate;
					END;
					IF got THEN PERFORM zk_unlock(path); END IF;
				WHEN 'lock_timeout' THEN
					BEGIN
						PERFORM set_config('lock_timeout', ceil(1000 * short_while())::text, true);
						PERFORM zk_xact_lock(path);
						h := work(way, lock, asked);
					EXCEPTION WHEN lock_not_available THEN
						got := false;
						result := sqlstate;
					END;
					ROLLBACK;
				WHEN 'exception' THEN
					BEGIN
						PERFORM zk_lock(path);
						h := work(way, lock, asked);
						RAISE division_by_zero;
					EXCEPTION WHEN division_by_zero THEN
						NULL;
					END;
				WHEN 'no exception' THEN
					BEGIN
						PERFORM zk_xact_lock(path);
						h := work(way, lock, asked);
					EXCEPTION WHEN division_by_zero THEN
						NULL;
					END;
					COMMIT;
				WHEN 'savepoints' THEN
					BEGIN
						BEGIN
							PERFORM zk_lock(path);
							RAISE division_by_zero;
						EXCEPTION WHEN division_by_zero THEN
							NULL;
						END;
						asked := clock_timestamp();
						PERFORM zk_xact_lock(path);
						h := work(way, lock, asked);
						RAISE division_by_zero;
					EXCEPTION WHEN division_by_zero THEN
						NULL;
					END;
				WHEN 'twice' THEN
					PERFORM zk_xact_lock(path), zk_lock(path);
					PERFORM zk_lock(path);
					PERFORM zk_unlock(path), zk_unlock(path);
					h := work(way, lock, asked);
					COMMIT;
				END CASE;

				IF got THEN INSERT INTO hold SELECT h.*; END IF;
				INSERT INTO outcome VALUES (way, coalesce(result, got::text));
				COMMIT;
			END LOOP;
		END \$\$;
		SQL
}

# The open descriptors of a backend except files of PostgreSQL, which come and
# go
sub zk_sockets
{
	my ($s) = @_;
	return scalar grep { (readlink($_) // '') =~ /^(?:socket|anon_inode|pipe)/ } glob '/proc/' . $s->pid . '/fd/*';
}

sub percentiles
{
	my (@sorted) = sort { $a <=> $b } @_;
	return sprintf 'median %.2f, 90%% %.2f, 99%% %.2f, longest %.2f ms', map { 1000 * $sorted[ int $_ * $#sorted ] } 0.5, 0.9, 0.99, 1;
}

# All holds, by lock and token
sub holds
{
	return sort { $a->{lock} <=> $b->{lock} || $a->{token} <=> $b->{token} } map {
		my $node = $_;
		map {
			my %h;
			@h{qw(cluster pid way lock token asked since until)} = ($node->name, split /\|/);
			\%h
		  } split /\n/,
		  $node->safe_psql('postgres',
			q{SELECT pid, way, lock, token, extract(epoch FROM asked), extract(epoch FROM since),
				extract(epoch FROM until) FROM hold})
	} @node;
}

# { way => { outcome => count } }
sub outcomes
{
	my %outcome;
	foreach my $node (@node)
	{
		$outcome{ $_->[0] }{ $_->[1] } += $_->[2]
		  foreach map { [ split /\|/ ] } split /\n/,
		  $node->safe_psql('postgres', 'SELECT way, outcome, count(*) FROM outcome GROUP BY 1, 2');
	}
	return \%outcome;
}

# One run of the given length, with $meanwhile called during it.  Each backend
# connects to one of these hosts.
sub stress
{
	my ($seconds, $hosts, $meanwhile) = @_;

	# all sessions exist, and have opened what is opened only once
	my @s = map { zk_session($node[ $_ % 2 ], options => '-c zklock.hosts=' . $hosts->[ $_ % @$hosts ]) } 1 .. $BACKENDS;
	$_->value(qq{SELECT dblink_connect('counters', '$counters'), zk_lock('/warm/' || pg_backend_pid()), zk_unlock_all()})
	  for @s;
	$_->value('CALL stress(0.2)') for @s[ 0, 1 ];
	my $used = sub { return join ', ', map { zk_threads($_->pid) . ' ' . zk_sockets($_) } @s; };
	my $before = $used->();
	$_->safe_psql('postgres', 'TRUNCATE hold, outcome') for @node;
	$node[0]->safe_psql('postgres', 'UPDATE counter SET n = 0');

	my $zxid = $zk->zxid;
	$_->send("CALL stress($seconds)") for @s;
	$meanwhile->();
	my @failed = grep { $_ ne '' } map { $_->wait($seconds + 60)->{err} } @s;
	is(zk_few(@failed), '', 'no call failed');
	$zxid = $zk->zxid - $zxid;

	# never two holders at once
	my @hold = holds();
	my (@overlap, @same, @disorder, @gap);
	foreach my $i (1 .. $#hold)
	{
		my ($earlier, $later) = @hold[ $i - 1, $i ];
		next if $earlier->{lock} != $later->{lock};
		my $what = join ' ', map { "$_->{cluster}/$_->{pid} $_->{way} $_->{token} $_->{since}..$_->{until};" } $earlier, $later;
		push @same, $what if $earlier->{token} == $later->{token};
		if ($later->{since} < $earlier->{since}) { push @disorder, $what; }
		elsif ($later->{since} < $earlier->{until}) { push @overlap, $what; }
		push @gap, $later->{since} - $earlier->{until} if $later->{asked} < $earlier->{until};
	}
	is(zk_few(@overlap), '', 'no lock was held twice at once');
	is(zk_few(@disorder), '', 'who came first had it first: holding follows the fencing token');
	is(zk_few(@same), '', 'no token came twice');
	my %held;
	$held{ $_->{lock} }++ for @hold;
	is( $node[0]->safe_psql('postgres', 'SELECT string_agg(n::text, $$ $$ ORDER BY lock) FROM counter'),
		join(' ', map { $held{$_} } sort keys %held),
		'a counter for each lock, which nothing else protects, has lost nothing');

	# a loop that does nothing would find no fault
	is(scalar(keys %held), $LOCKS, 'all locks were used');
	my %clusters;
	$clusters{ $_->{cluster} }++ for @hold;
	ok($clusters{a} > @hold / 5 && $clusters{b} > @hold / 5, 'by both clusters');
	my $outcome = outcomes();
	my %seen = map { $_ => join ' ', sort grep { $_ ne '58030' } keys %{ $outcome->{$_} } } keys %$outcome;
	my %can = (
		(map { $_ => 'true' } 'unlock', 'unlock later', 'commit', 'rollback', 'rollback session', 'exception',
			'no exception', 'savepoints', 'twice'),
		try => 'false true',
		'short timeout' => 'false true',
		lock_timeout => '55P03 true');
	# a slow machine does not get that far in a short time
	if ($seconds >= 5) { is_deeply(\%seen, \%can, 'in every way, and each that can fail did so sometimes'); }
	else
	{
		my @strange = grep { my $way = $_; grep { $can{$way} !~ /\b$_\b/ } split / /, $seen{$way} } sort keys %seen;
		is("@strange", '', 'each way ends as it can');
	}

	# nothing is left
	zk_until(sub { !grep { $_->value('SELECT state FROM zk_session') ne 'connected' } @s }, 'all to be connected');
	is($used->(), $before, 'each backend has as many threads, sockets and event descriptors as before');
	is(join(' ', map { $_->value('SELECT count(*) FROM zk_locks') } @s), join(' ', (0) x @s), 'none holds a lock');
	zk_nothing_left($zk, 'no node and no watch is left while they live', sessions => $BACKENDS);
	my @counters = map { [ split /\|/, $_->value('SELECT requests, waits, timeouts, reconnections, losses FROM zk_session') ] } @s;
	my ($requests, $waits, $timeouts, $reconnections, $losses) = map { my $n = $_; sum map { $_->[$n] } @counters } 0 .. 4;
	is($losses, 0, 'none has lost its session');
	$_->quit for @s;
	zk_nothing_left($zk, 'nor is a session when they have ended', sessions => 0);

	my $calls = sum map { values %$_ } values %$outcome;
	diag(sprintf '%d backends in 2 clusters, %d locks, %d s: %d calls, %d acquisitions (%.0f per second), %d refused',
		$BACKENDS, $LOCKS, $seconds, $calls, scalar @hold, @hold / $seconds, $calls - @hold);
	diag(sprintf 'waits for a turn: %d, run out: %d; reconnections: %d; per acquisition: %.1f requests, %.2f transactions of ZooKeeper',
		$waits, $timeouts, $reconnections, $requests / @hold, $zxid / @hold);
	diag('from asking to holding: ' . percentiles(map { $_->{since} - $_->{asked} } @hold));
	diag('from the end of one hold to the next of one who waited: ' . percentiles(@gap));
	return;
}

subtest 'all is well' => sub {
	stress($SECONDS, [ $zk->hosts ], sub { });
};

# Four networks, one of which fails about five times a second, for less time
# than sessions or calls would notice.
subtest 'a bad network' => sub {
	my @proxy = map { ZkProxy->new($zk) } 1 .. 4;
	my $seconds = $SECONDS / 2;
	my $end = time + $seconds;
	my @faults = (
		sub { $_[0]->drop; },
		sub { $_[0]->swallow_and_drop('create2'); },
		sub { $_[0]->swallow_and_drop('delete'); },
		sub { $_[0]->blackhole; sleep rand 0.3; $_[0]->pass; },
		sub { $_[0]->cut_off; sleep rand 0.5; $_[0]->pass; });
	my $faults = 0;
	stress(
		$seconds,
		[ map { $_->hosts } @proxy ],
		sub {
			while (time < $end)
			{
				$faults[ $faults++ % @faults ]->($proxy[ rand @proxy ]);
				sleep 0.1;
			}
			$_->reset for @proxy;
		});
	diag("faults of the network: $faults");
};

# The connection breaks when each node is watched, and is restored
sub breaks
{
	my ($s, $proxy, $n) = @_;
	zk_until(sub { $zk->watch_count >= $n }, 'a heartbeat, by which each node is watched');

	my $other = zk_session_with($node[0], root => '/');
	$other->value(q{SELECT zk_lock('/other')});
	$s->value(q{SET zklock.node_style = 'curator'});
	$proxy->clear_log;
	my $began = time;
	$proxy->drop;
	$s->send(q{SELECT zk_lock('/other')});
	zk_until(sub { $other->value(q{SELECT count(*) FROM zk_lock_queue('/other')}) == 2 }, 'the next call to queue');
	my $result = $s->cancel($other);
	is($result->{state}, '57014', 'a cancel is answered');
	zk_wait_hold($s, 'held', "/many/$n");

	# what is asked for the sake of a lock is as good as a heartbeat
	my @asked = ($began, (map { $_->[0] } grep { $_->[1] eq '>' } $proxy->log), time);
	my $silence = max(map { $asked[$_] - $asked[ $_ - 1 ] } 1 .. $#asked);
	diag(sprintf '%d requests in %.1f s, the longest silence was %.1f s', @asked - 2, time - $began, $silence);
	in_time($silence, 30 / 3, 'heartbeats are not late');
	is($s->value('SELECT reconnections > 0, losses FROM zk_session'), 't|0', 'over a new connection');
	$other->quit;
	return;
}

# What is done for a lock does not depend on how many others the session has, in CPU time
# of its backend, which a busy machine does not stretch much; nor does any of that make its
# heartbeats late, or deaf, when the connection breaks.
subtest 'thousands of locks in one session' => sub {
	my $proxy = ZkProxy->new($zk);
	my ($FEW, $MANY, $AT_ONCE) = (1000, $ENV{ZK_MANY_LOCKS} // ($TIMING ? 5000 : 2000), 500);

	# as many as that have room in one packet only without names of their own
	my $style = $MANY > 10_000 ? 'single' : 'curator';
	my $take = $style eq 'single' ? q{count(zk_lock('/many/' || i))} : q{zk_lock_many(array_agg('/many/' || i))};
	my %ms = ($FEW => 0, $MANY => 0);    # for each lock
	foreach my $n ($FEW, $MANY)
	{
		my $s = zk_session_with($node[0], hosts => $proxy, root => '/', max_locks => $MANY + 1,
			node_style => $style, session_timeout => '30s', operation_timeout => '1min');
		my $before = zk_cpu_seconds($s->pid);
		for (my $i = 1; $i < $n; $i += $AT_ONCE)
		{
			my $last = $i + $AT_ONCE - 1;
			$s->value("SELECT $take FROM generate_series($i, $last) i");
		}
		$ms{$n} += 1000 / $n * (zk_cpu_seconds($s->pid) - $before);
		is($s->value('SELECT count(*) FROM zk_locks'), $n, "$n locks");
		breaks($s, $proxy, $n) if $n == $MANY;
		$before = zk_cpu_seconds($s->pid);
		is($s->value('SELECT zk_unlock_all()'), $n, 'all are released');
		$ms{$n} += 1000 / $n * (zk_cpu_seconds($s->pid) - $before);
		$s->quit;
	}
	diag(sprintf 'to take and release a lock: %.3f ms of CPU each of %d, %.3f of %d', map { $ms{$_}, $_ } $FEW, $MANY);
	in_time($ms{$MANY}, ($style eq 'single' ? 2 : 1.35) * $ms{$FEW}, 'each of many takes no longer');
	$proxy->stop;
};

$_->stop for @node;

done_testing();
