# A running statement is canceled when a lock that its transaction relies on is
# lost (zklock.cancel_on_loss): whatever it does, and only then, also when that
# happens at about the time at which its transaction ends.  With
# zklock.cancel_on_loss = doubt, a statement has ended before another session
# holds its lock; with zklock.cancel_on_loss = terminate, the backend ends when a
# session-scope lock is lost, or may be, whatever it does, and only then.
#
# How often: ZK_STOP_RACES (default 100) and ZK_STOP_DOUBTS (default 8).

use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::UNIX;
use POSIX qw(mkfifo);

use Tests;

# The cancel is repeated each second, so a statement that goes on for this long is
# not canceled
my $PATIENCE = 1.5;

# A third of it, in which a lock is in doubt, is longer than a machine stands still
my $TIMEOUT_OF_SESSION = 12;

my $races = $ENV{ZK_STOP_RACES} // 100;
my $doubts = $ENV{ZK_STOP_DOUBTS} // 8;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
my $node = zk_cluster(
	'main', $zk,
	'zklock.session_timeout' => "${TIMEOUT_OF_SESSION}s",
	wal_level => 'replica',
	max_wal_senders => 1,    # without one there is no synchronous replication
	max_prepared_transactions => 2,
	synchronous_commit => 'local');
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (who text); CREATE TABLE locked (); CREATE TABLE r (id int); INSERT INTO r VALUES (1); CREATE EXTENSION zklock_advisory');
my $last = 0;

sub new_path { return '/stop/' . ++$last; }

# A session that has executed this, where PATH stands for a path of its own, and KEY for that as
# an advisory lock; and the path
sub with_path
{
	my ($sql, $s) = @_;
	my $path = new_path();
	$s //= zk_session($node);
	$s->value($sql =~ s/PATH/$path/gr =~ s/KEY/$last/gr);
	return ($s, $path);
}

# Those that hold the lock, or wait for it
sub sessions_of
{
	my ($path) = @_;
	my %of = $zk->ephemerals;
	return grep { grep { m{^/zklock$path/} } @{ $of{$_} } } sort keys %of;
}

# End the ZooKeeper session that has it, in a way that this session notices at once
sub lose { my ($s, $path) = @_; $zk->end_session($_, $s->pid) for sessions_of($path); return; }

sub activity { my ($pid, $what) = @_; return $admin->value("SELECT $what FROM pg_stat_activity WHERE pid = $pid"); }
sub patience { my ($s) = (@_, $PATIENCE); my $began = time; zk_until(sub { time - $began > $s }, 'some time'); return; }

# Begin this statement; returns when it runs, or waits for that, or is stopped already
sub run
{
	my ($s, $statement, $event) = @_;
	$s->send($statement);
	zk_until(sub { $s->is_done || activity($s->pid, $event ? 'wait_event' : 'state') eq ($event // 'active') }, "$statement: runs");
	return;
}

# What becomes of it when the lock is lost meanwhile
sub lost_in
{
	my ($s, $path, $statement) = @_;
	run($s, $statement);
	lose($s, $path);
	return $s->wait;
}

sub is_stopped
{
	my ($result, $path, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '40001', "$name: 40001");
	is($result->{message}, qq{canceling statement due to loss of lock on "$path"}, "$name: the reason");
	return;
}

# ----------------------------------------------------------- whatever it does

my $cancel = zk_library('extension');
$admin->value(qq{
	CREATE FUNCTION cancels(text) RETURNS boolean AS '$cancel' LANGUAGE C;
	CREATE FUNCTION execute_canceled(text, boolean) RETURNS void AS '$cancel' LANGUAGE C;
	CREATE FUNCTION seems_to_compute() RETURNS void AS '$cancel' LANGUAGE C;
	CREATE FUNCTION forget_text() RETURNS void AS '$cancel' LANGUAGE C});
$admin->value(q{
	CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$
	BEGIN LOOP INSERT INTO t VALUES ('procedure'); PERFORM pg_sleep(0.3); COMMIT; END LOOP; END $$;
	CREATE PROCEDURE last_one() LANGUAGE plpgsql AS $$
	BEGIN COMMIT; INSERT INTO t VALUES ('procedure'); PERFORM pg_sleep(600); END $$;
	CREATE TABLE late (id int);
	CREATE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN NULL; END';
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sleeps()});
my $holder = zk_session($node);
$holder->value(q{SELECT zk_lock('/stop/other'); BEGIN; LOCK locked; SELECT * FROM r FOR UPDATE});

my $xact = q{BEGIN; SELECT zk_xact_lock('PATH')};
my $held = q{SELECT zk_lock('PATH')};
my $sleep = 'SELECT pg_sleep(600)';

# What runs; behind what precedes, unless that is an exclusive lock of the transaction
my %statement = (
	'pg_sleep' => $sleep,
	'a session-scope lock' => [ "BEGIN; $held", $sleep ],
	'a shared lock' => [ q{BEGIN; SELECT zk_xact_lock_shared('PATH')}, $sleep ],
	'several' => [ q{BEGIN; SELECT zk_xact_lock_many('{PATH,PATH/2}')}, $sleep ],
	'a semaphore' => [ q{BEGIN; SELECT zk_xact_semaphore_acquire('PATH', 2)}, $sleep ],
	'deleted by somebody' => $sleep,
	'a procedure that commits' => [ $held, 'CALL commits()' ],
	'a procedure that has committed' => [ $held, 'CALL last_one()' ],
	'what stands behind COMMIT' => [ $held, q{COMMIT\; INSERT INTO t VALUES ('behind')\; SELECT pg_sleep(600)} ],
	# PostgreSQL rolls the transaction back before such an error gets out
	'a deferred trigger' => [ "$xact; INSERT INTO late VALUES (1)", 'COMMIT' ],
	'a deferred trigger of a COMMIT in DO' => [ $held, 'DO $$BEGIN INSERT INTO late VALUES (1); COMMIT; END$$' ],
	'a cursor that is held' => [ "$xact; DECLARE c CURSOR WITH HOLD FOR $sleep", 'COMMIT' ],
	'a loop' => 'DO $$BEGIN LOOP END LOOP; END$$',
	'a query' => 'SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b WHERE a.a + b.b < 0',
	'COPY of a query' => q{COPY (SELECT pg_sleep(0.01) FROM generate_series(1, 100000)) TO '/dev/null'},
	'a wait for a row' => 'SELECT * FROM r FOR UPDATE',
	'PREPARE' => 'PREPARE p AS SELECT * FROM locked',
	'a wait for a zk lock' => q{SELECT zk_lock('/stop/other')},
	# which waits without a snapshot, as COMMIT has none (t/108)
	'a procedure' => q{CALL zk_acquire('/stop/other')},
	'a procedure in DO' => [ $held, q{DO $$BEGIN INSERT INTO t VALUES ('in DO'); CALL zk_acquire('/stop/other'); END$$} ],
	'the same, and somebody has removed the text' =>
	  [ $held, q{DO $$BEGIN INSERT INTO t VALUES ('in DO'); PERFORM forget_text(); CALL zk_acquire('/stop/other'); END$$} ],
	'WHEN OTHERS' => 'DO $$BEGIN LOOP BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END$$',
	'a lock within EXCEPTION' =>
	  q{DO $$BEGIN PERFORM zk_xact_lock('PATH/inner'); PERFORM pg_sleep(600); EXCEPTION WHEN OTHERS THEN NULL; END$$},
	'an error of its own about that' =>    # as PL/Perl and PL/Python make
	  q{DO $$BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN RAISE EXCEPTION 'at line 1: %', SQLERRM; END$$},
	'WHEN query_canceled' =>
	  'DO $$BEGIN BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN NULL; END; PERFORM pg_sleep(600); END$$');

sub delete_by_hand { my ($s, $path) = @_; return $zk->with_client(sub { $_[0]->delete_contenders("/zklock$path") }); }

subtest 'statements' => sub {
	my (%path, %session);
	# those that compute begin last, and end first
	my @name = sort { ($b =~ /^a (?:loop|query)$/) <=> ($a =~ /^a (?:loop|query)$/) || $a cmp $b } keys %statement;
	foreach my $name (reverse @name)
	{
		my ($begin, $sql) = ref $statement{$name} ? @{ $statement{$name} } : ($xact, $statement{$name});
		($session{$name}, $path{$name}) = with_path($begin);
		run($session{$name}, $sql =~ s/PATH/$path{$name}/r);
	}
	foreach my $name (@name)
	{
		my $s = $session{$name};
		is($s->is_done, 0, "$name: is running");
		my $by_hand = $name =~ /^deleted/;
		$by_hand ? delete_by_hand($s, $path{$name}) : lose($s, $path{$name});
		my $began = time;
		my $result = $s->wait;
		is($result->{state}, '40001', "$name: 40001");
		like($result->{message}, qr{^canceling statement due to loss of lock on "\Q$path{$name}\E(?:/2|/inner)?"$}, "$name: the reason");
		my $cause = $by_hand ? qr/Its node in ZooKeeper was deleted/ : qr/ZooKeeper ended the session that held it|Its node in ZooKeeper was deleted/;
		like($result->{detail}, qr/^(?:$cause)\.$/, "$name: its cause");
		in_time(time - $began, $name eq 'WHEN query_canceled' ? 2.5 : 1.5, "$name: soon");
		$s->query('ROLLBACK; SELECT zk_unlock_all()');
		zk_works($s, "$name: works again");
	}
	like(slurp_file($node->logfile), qr/ERROR:  canceling statement due to loss of lock on "\Q$path{pg_sleep}\E"/, 'the log tells it, too');
};

subtest 'session-scope locks' => sub {
	my ($s, $path) = with_path($held);
	lose($s, $path);
	my $stopped = sub {
		my ($name, $sql) = @_;
		run($s, "$sql; SELECT pg_sleep(600)");
		is_stopped($s->wait, $path, $name);
		$s->value('ROLLBACK');
	};
	is($s->query("SELECT pg_sleep($PATIENCE)")->{state}, '', 'a transaction that writes nothing is not canceled');
	$stopped->('one that has written', q{BEGIN; SELECT 1; INSERT INTO t VALUES ('session')});
	$stopped->('one that notifies', 'BEGIN; NOTIFY stop');
	is($s->query(q{INSERT INTO t VALUES ('refused')})->{message}, qq{could not commit: the lock on "$path" was lost}, 'COMMIT has noticed it');
	$stopped->('one that has written after that', q{BEGIN; INSERT INTO t VALUES ('session')});
	is($s->query("SELECT pg_sleep($PATIENCE)")->{state}, '', 'one that writes nothing after that is not');
	is($s->value("BEGIN; SELECT zk_xact_lock('$path/2')"), 't', 'other locks are taken');
	$stopped->('in another ZooKeeper session', q{SAVEPOINT a; INSERT INTO t VALUES ('session')});
	$s->query("SELECT zk_unlock('$path')");
	is($s->query("BEGIN; INSERT INTO t VALUES ('after'); SELECT pg_sleep($PATIENCE); COMMIT")->{state}, '', 'not after zk_unlock');

};

subtest 'a cancel in an idle transaction is no end' => sub {
	my ($s, $path) = with_path($xact);
	lose($s, $path);
	is_stopped($s->query('SELECT pg_sleep(600)'), $path, 'the next statement');
};

# Clients may take even a COMMIT that failed for the end of the transaction.  The comment
# keeps the parser busy while the lock is lost.
subtest 'COMMIT and ROLLBACK are not canceled before they begin' => sub {
	my $comment = '/*' . 'x' x 20_000_000 . '*/';
	my $file = PostgreSQL::Test::Utils::tempdir . '/statement';
	foreach my $sql ('COMMIT COMMENT;', 'ROLLBACK COMMENT;')
	{
		# with what has failed the log would have 100 MB
		my ($s, $path) = with_path($xact, zk_session($node, options => '-c log_min_error_statement=panic'));
		unlink $file;
		append_to_file($file, $sql =~ s/COMMENT/$comment/r . "\nSELECT 'ended'");
		my $result = lost_in($s, $path, "\\i $file");
		# committed or refused
		is($result->{err} =~ /(canceling)/ ? $1 : '', '', "$sql is not canceled");
		is($result->{out}, 'ended', "$sql ends the transaction");
	}

};

# The server has no text by which it could tell that this is not COMMIT: a call by the fast path, a
# trigger that is deferred until the Sync message, and the description of a statement, which waits
# for its table
subtest 'what has no text' => sub {
	$admin->value(q{CREATE FUNCTION sleeps_long() RETURNS int LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN 1; END'});
	my $function = $admin->value(q{SELECT 'sleeps_long'::regproc::oid});
	my $locker = zk_session($node);
	my %how = (
		call => [ 'BEGIN; SELECT zk_xact_lock', F => pack 'N n3', $function, 0, 0, 0 ],
		describe => [ 'BEGIN; SELECT zk_xact_lock', D => "Ss\0", S => '' ],
		sync => [ 'SELECT zk_lock', P => "\0INSERT INTO late VALUES (1)\0\0\0", B => "\0" x 8, E => "\0" x 5, S => '' ]);
	foreach my $how (sort keys %how)
	{
		my ($take, @messages) = @{ $how{$how} };
		my $path = new_path();
		my $socket = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port) or die "socket: $!";
		$socket->blocking(0);
		my $heard = '';
		my $hears = sub { my ($what) = @_; zk_until(sub { sysread $socket, $heard, 4096, length $heard; $heard =~ $what }, "$how: an answer"); };
		my $says = sub { while (my ($type, $body) = splice @_, 0, 2) { syswrite $socket, $type . pack 'N a*', 4 + length $body, $body; } };
		foreach ([ '' => pack 'N a*', 196608, "user\0postgres\0\0" ], [ P => "s\0SELECT * FROM late\0\0\0", S => '' ], [ Q => "$take('$path')\0" ])
		{
			$heard = '';
			$says->(@$_);
			$hears->(qr/Z\0\0\0\x05[IT]\z/);
		}
		$locker->value('BEGIN; LOCK late') if $how eq 'describe';
		$says->(@messages);
		my $pid = zk_until(sub { $admin->value(q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' OR wait_event_type = 'Lock'}) }, "$how: it waits");
		$zk->end_session($_, $pid) for sessions_of($path);
		$hears->(qr/\0C\w{5}\0/);
		is(($heard =~ /\0C(\w{5})\0/)[0], '40001', "$how: is canceled");
		$locker->value('ROLLBACK');
	}
};

# ------------------------------------------------------------------- only then

# What was pending, or on its way, when the savepoint was rolled back
subtest 'a lost lock within a savepoint' => sub {
	my ($s, $path) = with_path(q{BEGIN; SAVEPOINT a; SELECT zk_xact_lock('PATH')});
	is_stopped(lost_in($s, $path, 'SELECT pg_sleep(600)'), $path, 'within it');
	is($s->query("ROLLBACK TO a; SELECT pg_sleep($PATIENCE); COMMIT")->{state}, '', 'not after it');
};

# Given back after the cancel was sent, but before it had an effect
subtest 'a lost lock that is given back' => sub {
	my ($s, $path) = with_path($held);
	run($s, "BEGIN; INSERT INTO t VALUES ('given back'); SELECT execute_canceled('SELECT zk_unlock(''$path'')', false), pg_sleep($PATIENCE)", 'PgSleep');
	lose($s, $path);
	is($s->wait->{state}, '', 'it is not canceled');
	is($s->query('COMMIT')->{state}, '', 'and commits');
};

# zk_unlock tells of the loss, and COMMIT will refuse all the same
subtest 'one that this transaction took, and gave back when it was lost' => sub {
	my %lose = ('its session is over' => \&lose, 'its node is deleted' => \&delete_by_hand);
	foreach my $how (sort keys %lose)
	{
		my $s = zk_session($node);
		# what precedes it, what runs then, whether that is canceled, and what the end is
		foreach (
			[ 'the next statement', '', 'SELECT pg_sleep(600)', 1, 'ROLLBACK' ],
			[ 'blocks that take other locks and are rolled back', '',
				q{DO $$BEGIN LOOP BEGIN PERFORM zk_xact_lock('/stop/try'), pg_sleep(0.1), 1 / 0;
				EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END$$}, 1, 'ROLLBACK' ],
			[ 'in a savepoint, and after ROLLBACK TO', 'SAVEPOINT a', 'SELECT pg_sleep(600)', 1, "ROLLBACK TO a; SELECT pg_sleep($PATIENCE); COMMIT" ],
			[ 'with the guard off', '', "SET LOCAL zklock.commit_guard = off; SELECT pg_sleep($PATIENCE)", 0, 'COMMIT' ],
			[ 'the next transaction', '', "ROLLBACK; BEGIN; SELECT pg_sleep($PATIENCE)", 0, 'COMMIT' ])
		{
			my ($what, $before, $sql, $canceled, $end) = @$_;
			my $path = new_path();
			# canceled only when it is given back
			$s->value("SET zklock.cancel_on_loss = off; BEGIN; $before; SELECT zk_lock('$path')");
			$lose{$how}->($s, $path);
			zk_wait_hold($s, 'lost', $path);
			# in one statement: the next one may be canceled at once, and so may zk_unlock with that setting
			my $result = $s->query("SELECT zk_unlock('$path'), set_config('zklock.cancel_on_loss', 'lost', false)");
			is("$result->{state} $result->{out}", ' f|lost', "$how: zk_unlock tells it, and is no error");
			$result = $s->query($sql);
			if ($canceled) { is_stopped($result, $path, "$how: $what"); }
			else { is($result->{state}, '', "$how: not $what"); }
			in_time($result->{seconds}, 1.5, "$how: soon") if $what =~ /statement/;
			is($s->query($end)->{state}, '', "$how, $what: $end");
		}
	}
};

subtest 'what the settings say' => sub {
	my ($s, $path) = with_path(q{SET zklock.cancel_on_loss = off; BEGIN; SELECT zk_xact_lock('PATH')});
	is_stopped(lost_in($s, $path, "DO 'BEGIN PERFORM pg_sleep($PATIENCE); SET zklock.cancel_on_loss = lost; PERFORM pg_sleep(600); END'"),
		$path, 'once it is on again');
	$s->quit;

	($s, $path) = with_path($xact, zk_session($node, options => '-c log_min_messages=fatal'));
	is(lost_in($s, $path, 'SELECT pg_sleep(600)')->{state}, '57014', 'with log_min_messages above ERROR: 57014');
};

# ----------------------------------------------------------------------- races

# Transactions of which the first relies on a lock.  What follows the word
# "innocent" does not.
$admin->value(q{
	CREATE FUNCTION busy(ms float8, sleeps boolean) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE until timestamptz := clock_timestamp() + ms * interval '1 ms';
	BEGIN
		IF sleeps THEN PERFORM pg_sleep(ms / 1000); END IF;
		WHILE clock_timestamp() < until LOOP END LOOP;
	END $$;
	CREATE PROCEDURE takes(path text, commits boolean, ms float8, sleeps boolean, holds boolean DEFAULT false) LANGUAGE plpgsql AS $$
	BEGIN
		IF NOT holds THEN PERFORM zk_xact_lock(path); END IF;
		INSERT INTO t VALUES ('takes');
		PERFORM busy(ms, sleeps);
		IF commits THEN COMMIT; ELSE ROLLBACK; END IF;
		RAISE NOTICE 'innocent';
		FOR i IN 1 .. 8 LOOP
			IF NOT holds THEN INSERT INTO t VALUES ('innocent'); END IF;
			PERFORM busy(1, sleeps);
			COMMIT;
		END LOOP;
	END $$});

# What takes the lock at this path, commits or not, and is busy meanwhile
my @batch = (
	sub { return sprintf q{CALL takes('%s', %s, %f, %s)}, @_; },
	sub { return sprintf q{CALL takes('%s', %s, %f, %s, true)}, @_; },
	sub {
		my ($path, undef, $ms, $sleeps) = @_;
		return "DO \$\$BEGIN
			BEGIN PERFORM zk_xact_lock('$path'), busy($ms, $sleeps); RAISE EXCEPTION 'rolled back'; EXCEPTION WHEN raise_exception THEN NULL; END;
			RAISE NOTICE 'innocent'; INSERT INTO t VALUES ('tries'); PERFORM busy(8, $sleeps);
		END\$\$";
	},
	sub {
		my ($path, $commits, $ms, $sleeps) = @_;
		my $end = $commits eq 'true' ? 'COMMIT' : 'ROLLBACK';
		my $innocent = join '; ', map { ("INSERT INTO t VALUES ('innocent')", "SELECT busy(1, $sleeps)") } 1 .. 8;
		return "BEGIN; SELECT zk_xact_lock('$path'), busy($ms, $sleeps); INSERT INTO t VALUES ('takes'); $end;\n\\warn innocent\n"
		  . "BEGIN; SELECT busy(1, $sleeps); COMMIT; $innocent";
	});

subtest "$races losses at the end of a transaction" => sub {
	my @session = map { zk_session($node) } 1 .. 4;
	my (%outcome, @wrong);
	my $took = 0;    # what the end of a session has taken lately, in seconds
	for my $n (1 .. $races / @session)
	{
		my @race;
		foreach my $s (@session)
		{
			my ($path, $kind) = ("/race/$n/" . $s->pid, int rand @batch);
			$s->value($kind == 1 ? "SELECT zk_lock('$path')" : q{SELECT zk_lock('/race/warm'), zk_unlock('/race/warm')});
			push @race, { s => $s, path => $path, kind => $kind, id => $s->value('SELECT session_id FROM zk_session') };
		}
		$_->{s}->send($batch[ $_->{kind} ]->($_->{path}, (rand() < 0.7 ? 'true' : 'false'), rand(60 + 2000 * @race * $took), (rand() < 0.5 ? 'true' : 'false')))
		  for @race;
		sleep rand 0.03;
		foreach (@race)
		{
			my $began = time;
			$zk->end_session($_->{id});
			$took = 0.8 * $took + 0.2 * (time - $began);
		}
		foreach (@race)
		{
			my $s = $_->{s};
			my $result = $s->wait;
			my ($before, $after) = split /innocent/, $result->{err}, 2;
			push @wrong, $result->{err} if ($after // '') =~ /ERROR|FATAL/ || $before =~ /ERROR:  (?!40001|25P02|58|55000)/;
			$outcome{ $before =~ /could not commit/ ? 'refused' : $before =~ /canceling/ ? 'stopped' : $before =~ /ERROR/ ? 'failed' : 'passed' }++;
			$s->value('ROLLBACK') if $before =~ /ERROR/ || ($after // '') =~ /ERROR/;
			$s->query('SELECT zk_unlock_all()') if $_->{kind} == 1;
		}
	}
	is(zk_few(@wrong), '', 'no transaction was canceled that did not rely on the lock');
	note(join ', ', map { "$outcome{$_} $_" } sort keys %outcome);
	cmp_ok($outcome{$_} // 0, '>', 0, "some were $_") for qw(stopped passed);
};

# ---------------------------------------------------------- who runs the statement

subtest 'a cancel of the client' => sub {
	my ($s, $path) = with_path($xact);
	my $is_its_own = sub { my ($result, $reason, $name) = @_; return is("$result->{state} $result->{message}", "57014 canceling statement due to $reason", $name); };
	run($s, 'SELECT pg_sleep(600)');
	$is_its_own->($s->cancel($admin), 'user request', 'is what it was');
	$s->value('ROLLBACK');

	# the block in which the lock was lost has caught that
	run($s, qq{DO \$\$BEGIN
		BEGIN PERFORM zk_xact_lock('$path'), pg_sleep(600); EXCEPTION WHEN query_canceled THEN PERFORM set_config('application_name', 'caught', false); END;
		PERFORM pg_sleep(600);
	END\$\$}, 'PgSleep');
	lose($s, $path);
	zk_until(sub { activity($s->pid, 'application_name') eq 'caught' }, 'it has caught the cancel');
	patience(2.5);    # for two seconds one of ours might still be on its way
	$is_its_own->($s->cancel($admin), 'user request', 'is what it was when the lock no longer counts');
	$is_its_own->($s->query(qq{BEGIN; SET LOCAL statement_timeout = '100ms'; SELECT zk_xact_lock('$path'), pg_sleep(600)}),
		'statement timeout', 'and so is that of a timeout');
};

subtest 'a cancel of the client at the same moment' => sub {
	# ours is c, the client's i; ours is withdrawn with w
	my %kept = (c => 't', cw => 'f', i => 't', iw => 't', ciw => 't', icw => 't', ccww => 'f', cwi => 't', w => 'f');
	is($admin->value("SELECT cancels('$_')"), $kept{$_}, "$_: what is left") for sort keys %kept;
};

# ----------------------------------------------- zklock.cancel_on_loss = terminate

# It is asked for each second, so a backend that lives for this long is not ended
my $LONGER = 2.5;

sub leader { return zk_session_with($node, cancel_on_loss => 'terminate', @_); }

sub id { return $_[0]->value('SELECT session_id FROM zk_session'); }

sub lives { my ($pid) = @_; return activity($pid, 'count(*)'); }

# Its client is told only what it is told by pg_terminate_backend, and the log why.
# Returns what the statement printed that was running.
sub is_ended
{
	my ($s, $path, $what, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	zk_until(sub { !lives($s->pid) }, "$name: its end");
	my @results = $s->{mark} ? $s->wait : ();
	push @results, $s->query('SELECT 1') unless @results && $results[0]{closed};    # who is idle hears of it then
	my @told = map { $_->{err} =~ /^(?:psql:\S+ )?([A-Z]+:  \w{5}: .*)$/mg } @results;
	is("@told", 'FATAL:  57P01: terminating connection due to administrator command', "$name: ended as by an administrator");
	ok($results[-1]{closed}, "$name: the connection is closed");
	is_told($path, $what, $name);
	$s->quit;
	return $results[0]{out};
}

sub is_told
{
	my ($path, $what, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @told = slurp_file($node->logfile) =~ /LOG:  terminating connection due to (.*) of lock on "\Q$path\E"\n.*DETAIL:  ./g;
	is("@told", $what, "$name: the log says why");
	return;
}

subtest 'the lock is known to be lost' => sub {
	my $advisory = 'SELECT zklock_advisory.pg_advisory_lock(KEY)';
	my %take = (
		'a lock' => $held,
		'a shared lock' => q{SELECT zk_lock_shared('PATH')},
		'a shared lock beside the exclusive one' => q{SELECT zk_xact_lock('PATH'), zk_lock_shared('PATH')},
		'a semaphore' => q{SELECT zk_semaphore_acquire('PATH', 2)},
		'an advisory lock' => $advisory);
	my %then = (
		'idle' => sub { },
		'idle in a transaction' => sub { $_[0]->value('BEGIN; SELECT 1') },
		'idle in a transaction that a COMMIT PREPARED in a savepoint has failed' => sub { $_[0]->query(q{BEGIN; SAVEPOINT a; COMMIT PREPARED 'none'}) },
		'a statement' => sub { run($_[0], 'BEGIN; SELECT pg_sleep(600)', 'PgSleep') },
		'a block that catches all' =>
		  sub { run($_[0], 'DO $$BEGIN LOOP BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END$$', 'PgSleep') });
	my @case = ((map { [ $_, 'idle' ] } sort keys %take), (map { [ 'a lock', $_ ] } grep { $_ ne 'idle' } sort keys %then));
	foreach my $case (@case)
	{
		my ($take, $then) = @$case;
		my ($s, $path) = with_path($take{$take}, leader());
		my $id = id($s);
		$then{$then}->($s);
		$zk->end_session($id, $s->pid);
		is_ended($s, $take =~ /advisory/ ? $path =~ s/stop/advisory\/postgres/r : $path, 'loss', "$take, $then");
	}

	my ($s, $path) = with_path($held, leader());
	is($admin->value("SELECT zk_lock_break('$path', node) FROM zk_lock_queue('$path')"), 't', 'somebody breaks it');
	is_ended($s, $path, 'loss', 'broken');

	# only this backend knows of it then: its ZooKeeper session is closed
	($s, $path) = with_path($held, leader(cancel_on_loss => 'off'));
	lose($s, $path);
	zk_wait_hold($s, 'lost');
	is($s->value("SELECT zk_try_lock('$path/2')"), 't', 'it has another session');
	$s->send('SET zklock.cancel_on_loss = terminate');
	is_ended($s, $path, 'loss', 'as soon as that is set');

	# and so it is with the second one of a transaction that had none in between
	$s = leader(cancel_on_loss => 'off');
	foreach my $sql ("BEGIN; SAVEPOINT a; $held", "ROLLBACK TO a; $advisory")
	{
		(undef, $path) = with_path($sql, $s);
		$zk->end_session(id($s), $s->pid);
		zk_wait_hold($s, 'lost');
	}
	$s->value('ROLLBACK');
	$s->send('SET zklock.cancel_on_loss = terminate');
	is_ended($s, $path =~ s/stop/advisory\/postgres/r, 'loss', 'the second session of a transaction');
};

# The setting, what precedes the statement that runs, and how that ends: with "terminate" and
# a hold that remains, it is canceled.  (With the setting off: below)
subtest 'not because of what was given back, or goes with the transaction' => sub {
	my @case = (
		[ lost => q{BEGIN; SAVEPOINT a; SELECT zk_xact_lock('PATH'); ROLLBACK TO a} ],
		[ lost => q{SELECT zk_lock('PATH'); BEGIN; SAVEPOINT a; SELECT zk_lock('PATH'); ROLLBACK TO a} ],
		[ lost => q{BEGIN; SELECT zk_lock('PATH'); INSERT INTO t VALUES ('given back'); SELECT zk_unlock('PATH')} ],
		[ lost => q{SELECT zk_lock('PATH'); BEGIN; SELECT zk_lock('PATH'); SELECT zk_unlock('PATH')} ],
		[ lost => q{BEGIN; SELECT zk_lock('PATH'); COMMIT; BEGIN} ],
		[ lost => q{BEGIN; SELECT zk_lock('PATH'); ROLLBACK; BEGIN} ],
		[ lost => q{SELECT zk_lock('PATH')} ],
		[ lost => q{SET zklock.commit_guard = off; BEGIN; SELECT zk_xact_lock('PATH')} ],
		[ terminate => q{SELECT zk_lock('PATH'); SELECT zk_unlock('PATH')} ],
		[ terminate => q{BEGIN; SELECT zk_lock('PATH'); ROLLBACK} ],
		[ terminate => q{BEGIN; SAVEPOINT a; SELECT zk_lock('PATH'); ROLLBACK TO a} ],
		[ terminate => q{BEGIN; SELECT zk_xact_lock('PATH')}, '40001' ],
		[ terminate => q{SELECT zk_lock('PATH'); BEGIN; SELECT zk_xact_lock('PATH'); SELECT zk_unlock('PATH')}, '40001' ],
		[ terminate => q{BEGIN; SELECT zk_xact_lock('PATH'); SAVEPOINT a; SELECT zk_lock('PATH'); ROLLBACK TO a}, '40001' ],
		# it has become a reader
		[ terminate => q{SELECT zk_lock('PATH'); BEGIN; SELECT zk_xact_lock_shared('PATH'); SELECT zk_unlock('PATH')}, '40001' ],
		[ terminate => q{SET zklock.commit_guard = off; SELECT zk_lock('PATH')} ]);
	my @session;
	foreach (@case)
	{
		my ($when, $sql, $state) = @$_;
		my ($s) = with_path($sql, zk_session_with($node, cancel_on_loss => $when));
		my $id = id($s);    # it may hold nothing any more
		run($s, 'SELECT pg_sleep(' . ($state ? 600 : $LONGER) . ')', 'PgSleep');
		$zk->end_session($id, $s->pid);
		push @session, $s;
	}
	foreach my $i (0 .. $#case)
	{
		my ($when, $sql, $state) = @{ $case[$i] };
		is($session[$i]->wait->{state}, $state // '', "$when, $sql: " . ($state ? 'the statement is canceled' : 'nothing'));
		is($session[$i]->query('COMMIT')->{state}, '', '- and COMMIT is no error');
	}
	patience($LONGER);
	is($session[$_]->value('SELECT 1'), 1, "$case[$_][0], $case[$_][1]: lives on") for 0 .. $#case;
};

# The loss was noticed before, but the signal comes after that.  (An abort lets it in first.)
subtest 'not because of what is given back when it is known to be lost' => sub {
	foreach my $give (q{zk_unlock(''PATH'')}, 'zk_unlock_all()')
	{
		my ($s, $path) = with_path($held, leader());
		run($s, "SELECT execute_canceled('SELECT " . $give =~ s/PATH/$path/r . "', true)", 'PgSleep');
		lose($s, $path);
		is($s->wait->{state}, '', "$give: no error");
		is($s->value('SELECT 1'), 1, "$give: it lives");
	}
};

# Statements that run, backends that do nothing, sessions for whose locks others wait, and COMMITs:
# of those nothing is canceled any more, and so the guard itself must see what is lost; nor of
# those that wait for their standby
subtest 'cut off' => sub {
	$admin->value('CREATE TABLE ends (who text)');
	my $fifo = PostgreSQL::Test::Utils::tempdir_short . '/silent';
	mkfifo($fifo, 0600) or die "$fifo: $!";
	open my $silent, '+<', $fifo or die "$fifo: $!";
	my $prepared = zk_session($node);
	$prepared->value(q{BEGIN; INSERT INTO ends VALUES ('prepared'); PREPARE TRANSACTION 'prepared'});
	$prepared->quit;
	zk_commits_hang($node, $admin);

	my ($syncs, $tells) = ('SET synchronous_commit = on', ";\n\\echo :SQLSTATE");
	my %runs = (sleep => $sleep, computation => 'SELECT seems_to_compute()');
	# zklock.cancel_on_loss, what precedes, and what runs then; what becomes of it; and for what it
	# waits, if the test waits for that
	my %case = (
		map({
				(   "off, $_" => [ off => $xact, $runs{$_}, 'runs on' ],
					"lost, $_" => [ lost => $xact, $runs{$_}, 'canceled when it is back' ],
					"doubt, $_" => [ doubt => $xact, $runs{$_}, 'canceled' ])
		} keys %runs),
		'a lock of the transaction' => [ terminate => $xact, $runs{sleep}, 'canceled' ],
		map({ ("COMMIT, $_" => [ $_ => $xact, '', 'refused' ]) } qw(off lost doubt)),
		'idle' => [ terminate => $held, '', 'ended' ],
		'idle in a transaction' => [ terminate => "$held; BEGIN; SELECT 1", '', 'ended' ],
		'a statement' => [ terminate => $held, q{BEGIN; INSERT INTO ends VALUES ('cut off'); SELECT pg_sleep(600)}, 'ended', 'PgSleep' ],
		'COPY from a silent client' => [ terminate => $held, "\\copy ends FROM '$fifo'", 'ended', 'ClientRead' ],
		'COMMIT' => [ terminate => "$held; $syncs", "BEGIN; INSERT INTO ends VALUES ('committed'); COMMIT$tells", 'ended when it is over', 'SyncRep' ],
		'PREPARE TRANSACTION' =>
		  [ terminate => "$held; $syncs", "BEGIN; INSERT INTO ends VALUES ('too'); PREPARE TRANSACTION 'too'$tells", 'ended when it is over', 'SyncRep' ],
		'COMMIT PREPARED' => [ terminate => "$held; $syncs", "COMMIT PREPARED 'prepared'$tells", 'ended when it is over', 'SyncRep' ],
		'COMMIT, session scope' => [ lost => "$syncs; $held; BEGIN; INSERT INTO t VALUES ('synchronous')", 'COMMIT', 'committed', 'SyncRep' ],
		'COMMIT, transaction scope' => [ lost => "$syncs; $xact; INSERT INTO t VALUES ('synchronous')", 'COMMIT', 'committed', 'SyncRep' ],
		'a session-scope lock is being given back' => [ terminate => $held, '', 'alive' ],
		'doubt, and a session-scope lock' => [ doubt => $held, '', 'alive' ]);
	my $those = sub { my ($what) = @_; return grep { $case{$_}[3] eq $what } sort keys %case };
	my %proxy = map { $_ => ZkProxy->new($zk) } $those->('canceled when it is back');    # its log tells of the reconnection
	my (%session, %path, @holder, @waiter);
	foreach my $name (sort keys %case)
	{
		my ($when, $before, $sql, $becomes, $event) = @{ $case{$name} };
		($session{$name}, $path{$name}) = with_path(
			$before,
			zk_session_with($node, hosts => $proxy{$name} // $proxy, cancel_on_loss => $when, $becomes eq 'refused' ? (operation_timeout => '1h') : ()));
		run($session{$name}, $sql, $event) if $sql;
	}
	for my $n (1 .. $doubts)
	{
		my ($holder, $path) = with_path($xact, zk_session_with($node, hosts => $proxy, cancel_on_loss => 'doubt'));
		$holder->send('DO $$BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN RAISE NOTICE $n$at %$n$, extract(epoch FROM clock_timestamp()); END$$');
		push @holder, $holder;
		push @waiter, zk_session($node)->send("SELECT extract(epoch FROM clock_timestamp()) FROM zk_lock('$path')");
	}
	zk_wait_queued($zk, @waiter);

	$_->blackhole for $proxy, values %proxy;
	my $began = time;
	my $in_time = sub { my ($name) = @_; in_time(time - $began, $TIMEOUT_OF_SESSION + 1.5, "$name: within the session timeout and a second") };
	my $back = 'a session-scope lock is being given back';
	$session{$back}->send("SELECT zk_unlock('$path{$back}')");
	zk_wait_hold($session{$_}, 'suspect') for $those->('refused');
	$session{$_}->send('COMMIT') for $those->('refused');
	foreach my $name ($those->('canceled'))
	{
		my $result = $session{$name}->wait;
		$in_time->($name);
		is("$result->{state} $result->{message}", qq{40001 canceling statement due to possible loss of lock on "$path{$name}"}, "$name: canceled");
	}
	zk_until(sub { !grep { lives($session{$_}->pid) } $those->('ended') }, 'their end');
	$in_time->('all backends');
	foreach my $name ($those->('refused'))
	{
		my $result = $session{$name}->wait;
		$in_time->($name);
		is($result->{message}, qq{could not commit: the lock on "$path{$name}" was lost}, "$name: refused");
		like($result->{detail}, qr/^Nothing was heard from ZooKeeper for the whole session timeout/, "$name: its cause");
	}
	close $silent;
	is_ended($session{$_}, $path{$_}, 'possible loss', $_) for $those->('ended');
	my $early = 0;
	foreach my $n (0 .. $#holder)
	{
		my ($ended) = $holder[$n]->wait->{err} =~ /at ([\d.]+)/;
		my $taken = $waiter[$n]->wait->{out};
		$early++ if defined $ended && $ended < $taken;
	}
	note("$early of $doubts statements ended before another session had the lock");
	$Deadline::TIMING ? cmp_ok($early, '>=', 0.95 * $doubts, 'in time') : in_time(0, 1, 'in time');
	cmp_ok($early, '>', 0, 'a statement ends before another session has its lock');

	zk_until(sub { time - $began > $TIMEOUT_OF_SESSION + 4 }, 'the sessions have expired');
	is($session{$_}->is_done, 0, "$_: still runs while it is cut off") for $those->('runs on'), $those->('canceled when it is back');
	is(activity($session{$_}->pid, 'wait_event'), 'SyncRep', "$_: still waits for its synchronous standby") for $those->('ended when it is over'), $those->('committed');
	$admin->value($_) for 'ALTER SYSTEM RESET synchronous_standby_names', 'SELECT pg_reload_conf()';
	like(is_ended($session{$_}, $path{$_}, 'possible loss', "$_: as soon as it is over"), qr/^00000/, "$_: has succeeded") for $those->('ended when it is over');
	is($admin->value(q{SELECT string_agg(who, ', ' ORDER BY who) FROM ends}), 'committed, prepared', 'what they committed is there');
	$admin->value(q{ROLLBACK PREPARED 'too'});
	foreach my $name ($those->('committed'))
	{
		my $result = $session{$name}->wait;
		is("$result->{state} @{ $result->{warnings} }", ' ', "$name: has committed, without a warning");
	}

	$_->pass for $proxy, values %proxy;
	foreach my $name ($those->('canceled when it is back'))
	{
		my $result = $session{$name}->wait;
		my $ended = time;
		is_stopped($result, $path{$name}, $name);
		my ($reconnected) = map { $_->[0] } grep { "$_->[1] $_->[2]" eq '< connect' && $_->[0] > $began } $proxy{$name}->log;
		in_time($ended - $reconnected, 1, "$name: within a second of the reconnection");
	}
	patience();
	foreach my $name ($those->('runs on'))
	{
		is($session{$name}->is_done, 0, "$name: still runs");
		is($session{$name}->cancel($admin)->{state}, '57014', "$name: a client's cancel is PostgreSQL's own");
	}
	$session{$back}->wait;
	is($session{$_}->value("ROLLBACK; SELECT 'lives'"), 'lives', "$_: it lives") for 'a lock of the transaction', $those->('alive'), $those->('committed');
	$_->quit for values %session, @holder, @waiter;
	$_->stop for values %proxy;
};

# It is canceled, or ended, whichever is set
subtest 'a background worker' => sub {
	$admin->value("CREATE FUNCTION worker_launch(text, text, boolean) RETURNS integer AS '$cancel' LANGUAGE C");
	foreach ([ lost => 'zk_xact_lock', 'true' ], [ lost => 'zk_xact_lock', 'false' ], [ terminate => 'zk_lock', 'true' ], [ terminate => 'zk_lock', 'false' ])
	{
		my ($when, $take, $at_once) = @$_;
		my $path = new_path();
		my $pid = $admin->value(
			"SELECT worker_launch('$cancel', 'SELECT set_config(''zklock.cancel_on_loss'', ''$when'', false), $take(''$path''), pg_sleep(600)', $at_once)");
		zk_until(sub { activity($pid, 'wait_event') eq 'PgSleep' }, 'the worker sleeps');
		$zk->end_session($_, $pid) for sessions_of($path);
		zk_until(sub { !lives($pid) }, 'the worker has ended');
		if ($when eq 'lost') { like(slurp_file($node->logfile), qr/canceling statement due to loss of lock on "$path"/, 'a worker is canceled'); }
		else { is_told($path, 'loss', 'a worker'); }
	}
};

# Its standby may have the commit by then, and shows it when it is promoted.  This is not
# about the setting, but here are commits that hang.
subtest 'the postmaster is killed while COMMIT waits for its synchronous standby' => sub {
	my %before = ('a lock of the transaction' => $xact, 'a session-scope lock' => "$held; BEGIN", 'idle' => $held, 'idle in a transaction' => $xact);
	my (%session, %path);
	zk_commits_hang($node, $admin);
	foreach my $name (sort keys %before)
	{
		($session{$name}, $path{$name}) = with_path("SET synchronous_commit = on; $before{$name}");
		run($session{$name}, q{INSERT INTO t VALUES ('killed'); COMMIT}, 'SyncRep') unless $name =~ /^idle/;
	}
	my $left = sub { my ($name) = @_; return scalar grep { index($_, "$path{$name}/") >= 0 } zk_locks_left($zk); };
	$session{waiter} = zk_session($node)->send("SELECT zk_lock('$path{idle}')");
	zk_wait_queued($zk, $session{waiter});
	is($left->($_), $_ eq 'idle' ? 2 : 1, "$_: is there") for sort keys %path;
	$node->kill9;
	foreach my $s ($admin, values %session)
	{
		zk_until(sub { !-e '/proc/' . $s->pid }, 'the backends to end');
		$s->quit;
	}
	zk_until(sub { !grep { $left->($_) } grep { /^idle/ } keys %path }, 'what nobody commits to be given back');
	is($left->($_), 1, "$_: stays") for grep { !/^idle/ } sort keys %path;
	zk_until(sub { !zk_locks_left($zk) }, 'the sessions to expire');
};

zk_end($zk, $node);
