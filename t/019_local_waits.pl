# Who on this server waits for PostgreSQL's own locks of a backend
# (src/lock/deadlock/local_waits.c), directly and through others.  No SQL function of
# zklock shows that, so the file is built into a module of its own (c/local_waits.c),
# and neither zklock nor ZooKeeper is needed.
#
# DEADLOCK_MANY: how many wait for a row in the end (default 40)

use FindBin;
use lib "$FindBin::RealBin/lib";

use Tests;

my $many = $ENV{DEADLOCK_MANY} // 40;

# PostgreSQL must neither end a wait nor reorder a queue.
my $node = PostgreSQL::Test::Cluster->new('main');
zk_init($node, allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', qq{
	deadlock_timeout = '1h'
	autovacuum = off
	max_connections = @{[ 100 + $many ]}
	max_files_per_process = @{[ 1000 + 4 * $many ]}    # one session connects to all of them
	max_prepared_transactions = 5
	log_statement = none
});
$node->start;

my $src = "$FindBin::RealBin/../src";
my $library = zk_library('local_waits', '-O2', '-DLWLockAcquire=counted_acquire', '-D_GNU_SOURCE',
	"$src/lock/deadlock/local_waits.c", map { "$src/backend/$_.c" } qw(node_identity encoding));
$node->safe_psql('postgres', <<"END" . <<'END');
CREATE FUNCTION local_waits(most integer, OUT pid integer, OUT tag text, OUT since timestamptz, OUT blocker integer,
	OUT blocker_pid integer, OUT what text) RETURNS SETOF record AS '$library' LANGUAGE C STRICT PARALLEL SAFE;
CREATE FUNCTION blocks_somebody() RETURNS boolean AS '$library' LANGUAGE C PARALLEL SAFE;
CREATE FUNCTION own_tag() RETURNS text AS '$library' LANGUAGE C;
CREATE FUNCTION in_worker() RETURNS boolean AS '$library' LANGUAGE C PARALLEL SAFE;
CREATE FUNCTION locked() RETURNS integer AS '$library' LANGUAGE C;
END
CREATE TABLE t (id integer PRIMARY KEY, n integer DEFAULT 0);
CREATE TABLE u (id integer);
INSERT INTO t SELECT generate_series(1, 20);
CREATE FUNCTION advisory(n integer, shared boolean) RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS $$
BEGIN
	IF shared THEN
		PERFORM pg_advisory_xact_lock_shared(n);
	ELSE
		PERFORM pg_advisory_xact_lock(n);
	END IF;
	RETURN true;
END$$;
END

my $admin = zk_session($node);
my (%session, %name, %tag);
my $to = $node;    # where sessions are

# The session of this name; in a transaction
sub session
{
	my ($name) = @_;
	return $session{$name} if $session{$name};
	my $s = $session{$name} = zk_session($to);
	$name{ $s->pid } = $name;
	$tag{$name} = $s->value('SELECT own_tag()');
	$s->value('BEGIN');
	return $s;
}

# Whether this process waits, and has noted since when; CREATE INDEX
# CONCURRENTLY waits for the snapshot of the one who looks, too
sub waits
{
	my ($pid) = @_;
	return $admin->value(
		"SELECT count(*) FROM pg_locks WHERE pid = $pid AND NOT granted AND waitstart IS NOT NULL
			AND pg_backend_pid() <> ALL (pg_blocking_pids(pid))") > 0;
}

# Sessions, in this order, each of which comes to wait
sub let_wait
{
	while (my ($name, $sql) = splice @_, 0, 2)
	{
		my $s = session($name);
		$s->send($sql);
		zk_until(sub { waits($s->pid) }, "$name waits");
	}
	return;
}

# "a>b ShareLock on ..." for each wait that we see, whose blocker is b
sub seen
{
	my ($most) = @_;
	$most //= 1000;
	my @rows = map { [ split /\|/ ] } split /\n/, session('we')->value("SELECT pid, blocker, blocker_pid, what FROM local_waits($most)");
	my @found;
	foreach my $i (0 .. $#rows)
	{
		my ($pid, $blocker, $blocker_pid, $what) = @{ $rows[$i] };
		my $other = $blocker == -1 ? 'we' : $name{ $rows[$blocker][0] };
		$other .= '?' if $blocker >= $i || $name{$blocker_pid} ne $other;
		$what =~ s/\b(relation|transaction) [\d\/]+(?: of database \d+)?|\[\d+,0,/$1 ? "$1 N" : '['/e;
		push @found, "$name{$pid}>$other $what";
	}
	return join "\n", @found;
}

# One test: these are the waits that we see, and whether a look is worth it
sub sees
{
	my ($name, @expected) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $expected = join "\n", @expected;
	is(session('we')->value('SELECT blocks_somebody()'), 't', "$name: somebody may wait") if @expected;
	is(seen(), $expected, $name);
	return;
}

# All roll back, and none waits any longer
sub all_end
{
	$admin->value("SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted");
	foreach my $s (values %session)
	{
		$s->wait if $s->{mark};
		$s->value('ROLLBACK; BEGIN');
	}
	return;
}

#
# Nobody
#
session('we')->value('UPDATE t SET n = 1 WHERE id = 1; SELECT advisory(1, false)');
is(session('we')->value('SELECT blocks_somebody()'), 'f', 'nobody waits');
# Of the 16 partitions of the lock table only those are locked in which we have a lock
like(session('we')->value('SELECT locked()'), qr/^[1-7]$/, '- for which a look locks a few partitions');
sees('nobody is seen');

session('h')->value('SELECT advisory(2, false)');
let_wait(a => 'SELECT advisory(2, false)');
is(session('we')->value('SELECT blocks_somebody()'), 'f', 'who waits for another is none of our business');
sees('nor is it seen');
all_end();

#
# Rows: the first waits for our transaction, and the others for the tuple
#
session('we')->value('UPDATE t SET n = 1 WHERE id = 1');
let_wait(map { ($_ => 'UPDATE t SET n = 2 WHERE id = 1') } qw(a b c));
sees(
	'rows',
	'a>we ShareLock on transaction N',
	map { "$_>a ExclusiveLock on tuple (0,1) of relation N" } qw(b c));
cmp_ok(session('we')->value('SELECT locked()'), '>', 16, 'which locks all partitions, to see one instant');
foreach my $name (qw(a b c))
{
	my $pid = session($name)->pid;
	is(session('we')->value("SELECT tag FROM local_waits(9) WHERE pid = $pid"), $tag{$name}, "the tag is its own, $name");
	is(session('we')->value("SELECT since = waitstart FROM local_waits(9) JOIN pg_locks USING (pid) WHERE pid = $pid AND NOT granted"),
		't', "since when, $name");
}
is(seen(2) =~ tr/\n//, 1, 'no more than we ask for');
like(seen(1), qr/^a>we .*$/, 'the nearest one');
my $since = session('we')->value('SELECT array_agg(since ORDER BY pid) FROM local_waits(9)');
is(session('we')->value('SELECT array_agg(since ORDER BY pid) FROM local_waits(9)'), $since, 'another look sees the same waits');
all_end();

#
# Tables, where who wants to share waits behind one that does not, and who is before another
# need not be in its way; advisory locks
#
foreach (
	[ 'a table', 'SELECT FROM u', [ a => 'LOCK u', b => 'SELECT FROM u', c => 'LOCK u IN SHARE MODE' ],
		'a>we AccessExclusiveLock on relation N', 'b>a AccessShareLock on relation N', 'c>a ShareLock on relation N' ],
	[ 'another order of modes', 'LOCK u IN ROW EXCLUSIVE MODE',
		[ a => 'LOCK u IN SHARE MODE', b => 'LOCK u IN EXCLUSIVE MODE', c => 'LOCK u IN ROW SHARE MODE' ],
		'a>we ShareLock on relation N', 'b>we ExclusiveLock on relation N', 'c>b RowShareLock on relation N' ],
	[ 'advisory locks', 'SELECT advisory(1, true)', [ a => 'SELECT advisory(1, false)', b => 'SELECT advisory(1, true)' ],
		'a>we ExclusiveLock on advisory lock [1,1]', 'b>a ShareLock on advisory lock [1,1]' ])
{
	my ($name, $has, $waits, @seen) = @$_;
	session('we')->value($has);
	let_wait(@$waits);
	sees($name, @seen);
	all_end();
}

# Not all in the queue of our lock wait for us
session('we')->value('LOCK u IN ACCESS SHARE MODE');
session('h')->value('LOCK u IN SHARE ROW EXCLUSIVE MODE');
let_wait(a => 'LOCK u IN ROW EXCLUSIVE MODE', b => 'LOCK u IN SHARE MODE');
is(session('we')->value('SELECT blocks_somebody()'), 't', 'a queue: somebody may wait for us');
sees('but they do so for another');
let_wait(c => 'LOCK u', d => 'LOCK u IN ROW SHARE MODE');
sees('until one does', 'c>we AccessExclusiveLock on relation N', 'd>c RowShareLock on relation N');
all_end();

#
# Ways through others
#
# f waits for d, which is far, and for us
session($_->[0])->value("SELECT advisory($_->[1], false)") for [ we => 1 ], [ a => 2 ], [ b => 3 ], [ c => 4 ];
session('d')->value('SELECT advisory(5, true)');
session('we')->value('SELECT advisory(5, true)');
let_wait(
	d => 'SELECT advisory(4, false)',
	c => 'SELECT advisory(3, false)',
	b => 'SELECT advisory(2, false)',
	e => 'SELECT advisory(2, false)',
	f => 'SELECT advisory(5, false)');
sees('only who waits for us', 'f>we ExclusiveLock on advisory lock [5,1]');
let_wait(a => 'SELECT advisory(1, false)');
my @ways = map { s/ .*//r } split /\n/, seen();
is(join(' ', (sort @ways[ 0, 1 ]), (sort @ways[ 2, 3 ]), @ways[ 4 .. $#ways ]),
	'a>we f>we b>a e>a c>b d>c', 'through others, the nearest first');
all_end();

# Two who wait for each other and for us: for us is nearer
session('a')->value('SELECT advisory(1, true)');
session('b')->value('SELECT advisory(2, true)');
session('we')->value('SELECT advisory(1, true), advisory(2, true)');
let_wait(a => 'SELECT advisory(2, false)', b => 'SELECT advisory(1, false)');
is(join(' ', sort map { s/ .*//r } split /\n/, seen()), 'a>we b>we', 'a cycle beside us');
all_end();

#
# What waits for a snapshot
#
session('we')->value('ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM t LIMIT 1');
session('a')->value('ROLLBACK');
let_wait(a => 'CREATE INDEX CONCURRENTLY ON u (id)');
sees('CREATE INDEX CONCURRENTLY', 'a>we ShareLock on virtual transaction N');
all_end();

#
# A prepared transaction waits for nobody
#
session('p')->value(q{UPDATE t SET n = 1 WHERE id = 2; SELECT advisory(1, true); PREPARE TRANSACTION 'p'});
session('we')->value(q{UPDATE t SET n = 1 WHERE id = 4; PREPARE TRANSACTION 'ours'; BEGIN; SELECT advisory(1, true)});
let_wait(a => 'UPDATE t SET n = 1 WHERE id = 2', b => 'SELECT advisory(1, false)', c => 'UPDATE t SET n = 1 WHERE id = 2', d => 'UPDATE t SET n = 1 WHERE id = 4');
sees('beside a prepared transaction, or one that we have prepared', 'b>we ExclusiveLock on advisory lock [1,1]');
all_end();
$admin->value("ROLLBACK PREPARED '$_'") for 'p', 'ours';

#
# A parallel worker counts as its leader
#
my ($parallel) = grep { $admin->query("SHOW $_")->{state} eq '' } qw(debug_parallel_query force_parallel_mode);
session('we')->value('SELECT advisory(1, false)');
session('a')->value("SELECT advisory(3, false); SET LOCAL $parallel = on");
session('a')->send('SELECT advisory(1, true)');
zk_until(sub { $admin->value('SELECT count(*) FROM pg_locks WHERE waitstart IS NOT NULL') }, 'a worker waits');
is($admin->value('SELECT pid = ' . session('a')->pid . ' FROM pg_locks WHERE NOT granted'), 'f', 'and not its leader');
let_wait(b => 'SELECT advisory(3, false)');
sees(
	'a parallel worker',
	'a>we ShareLock on advisory lock [1,1]',
	'b>a ExclusiveLock on advisory lock [3,1]');
is(session('we')->value('SELECT tag FROM local_waits(1)'), $tag{a}, 'the tag is its leader\'s');
all_end();

# One of ours has lock 5, which b waits for, and waits for 6, which b has.  The leader
# looks, and says by lock 7 that it has.
$admin->value(<<'END');
CREATE TABLE big WITH (fillfactor = 10) AS SELECT i, repeat('x', 500) FROM generate_series(1, 500) i;
ANALYZE big;
CREATE FUNCTION look() RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$
DECLARE
	seen text;
BEGIN
	IF in_worker() THEN
		PERFORM pg_advisory_xact_lock(5), pg_advisory_xact_lock(6);
		RETURN NULL;
	ELSIF EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7) THEN
		RETURN NULL;
	END IF;
	WHILE (SELECT count(*) FROM pg_locks WHERE waitstart IS NOT NULL) < 2 LOOP
	END LOOP;
	SELECT blocks_somebody() || string_agg(format(' %s %s %s', pid, blocker, what), ';') INTO seen FROM local_waits(9);
	PERFORM pg_advisory_xact_lock(7);
	RETURN seen;
END$$;
END
session('b')->value('SELECT advisory(6, false)');
session('we')->value('SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0;
	SET LOCAL max_parallel_workers_per_gather = 1');
session('we')->send('SELECT max(look()) FROM big');
zk_until(sub { $admin->value('SELECT count(*) FROM pg_locks WHERE waitstart IS NOT NULL') == 1 }, 'our worker waits');
let_wait(b => 'SELECT advisory(5, false)');
zk_until(sub { $admin->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7}) == 1 }, 'the leader has looked');
session('b')->cancel($admin);
session('b')->value('ROLLBACK');
my $database = $admin->value('SELECT oid FROM pg_database WHERE datname = current_database()');
is( session('we')->wait->{out},
	'true ' . session('b')->pid . " -1 ExclusiveLock on advisory lock [$database,0,5,1]",
	'who waits for our worker waits for us, and we are not seen ourselves');
all_end();

#
# Many, with more locks than processes; and what the transaction saw remains
#
$admin->value('CREATE EXTENSION dblink');
session('we')->value('UPDATE t SET n = 1 WHERE id = 3');
my $seen_before = session('we')->value('SELECT count(*) FROM pg_stat_activity');
my $connstr = $node->connstr('postgres') =~ s/'/''/gr;
$admin->value("SELECT count(dblink_connect('c' || i, '$connstr')), count(dblink_send_query('c' || i,
	'SELECT pg_advisory_lock_shared(i) FROM generate_series(1, 3) i; UPDATE t SET n = 2 WHERE id = 3')) FROM generate_series(1, $many) i");
zk_until(sub { $admin->value('SELECT count(*) FROM pg_locks WHERE waitstart IS NOT NULL') == $many }, 'many wait');
is(session('we')->value('SELECT count(*), count(DISTINCT pid), count(DISTINCT tag), array_agg(DISTINCT blocker) FROM local_waits(1000)'),
	"$many|$many|$many|{-1,0}", "$many waiters");
is(session('we')->value('SELECT count(*) FROM pg_stat_activity'), $seen_before, 'pg_stat_activity does not change within a transaction');
let_wait(map { ("x$_" => "SELECT advisory($_, false)") } 1 .. 3);
is(session('we')->value('SELECT count(*) FROM local_waits(1000)'), $many + 3, 'and who waits for them');
$admin->value("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted AND locktype <> 'advisory'");
$_->wait for map { session("x$_") } 1 .. 3;
session('we')->value('ROLLBACK; BEGIN; UPDATE t SET n = 1 WHERE id = 3; SELECT count(*) FROM t');
zk_until(sub { session('we')->value('SELECT count(*) FROM local_waits(1000)') == 0 }, 'they have ended');
sees('and then none');
like(session('we')->value('SELECT locked()'), qr/^[1-7]$/, 'who had parallel workers once, alone again: a look locks a few partitions');

#
# A standby: what replays the log waits for our lock, and others wait for it
#
$_->quit for values %session, $admin;
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'max_standby_streaming_delay = -1');
$standby->start;
$node->wait_for_catchup($standby, 'replay');
$admin = zk_session($standby);
%session = ();
$to = $standby;

session('we')->value('SELECT FROM u');
$node->safe_psql('postgres', 'ALTER TABLE u ADD x integer');
my $startup;
zk_until(sub { $startup = $admin->value('SELECT pid FROM pg_locks WHERE waitstart IS NOT NULL') }, 'the startup process waits');
$name{$startup} = 'startup';
let_wait(a => 'SELECT FROM u');
sees('a standby', 'startup>we AccessExclusiveLock on relation N', 'a>startup AccessShareLock on relation N');
all_end();

$_->quit for values %session, $admin;
zk_no_crash($_) for $node, $standby;
$standby->stop;
$node->stop;

done_testing();
