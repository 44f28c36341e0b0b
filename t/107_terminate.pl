# zklock.cancel_on_loss = terminate: the backend ends when a session-scope lock is lost,
# or may be, whatever it does, and only then.

use FindBin;
use lib "$FindBin::RealBin/lib";

use POSIX qw(mkfifo);

use Tests;

# It is asked for each second, so a backend that lives for this long is not ended
my $PATIENCE = 2.5;

# A third of it, in which a lock is in doubt, is longer than a machine stands still
my $TIMEOUT_OF_SESSION = 9;

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
$admin->value('CREATE TABLE t (who text); CREATE EXTENSION zklock_advisory');
my $last = 0;

sub new_path { return '/terminate/' . ++$last; }

sub leader { return zk_session_with($node, cancel_on_loss => 'terminate', @_); }

sub id { return $_[0]->value('SELECT session_id FROM zk_session'); }

# End its ZooKeeper session, in a way that it notices at once
sub lose { my ($s, $id) = @_; return $zk->end_session($id, $s->pid); }

sub lives { my ($pid) = @_; return $admin->value("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid") }

sub wait_event { my ($s) = @_; return $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $s->pid); }

# Let it run this, until it waits for that, or no longer does
sub run
{
	my ($s, $statement, $event) = @_;
	$s->send($statement);
	zk_until(sub { $s->is_done || wait_event($s) eq $event }, "$statement: waits");
	return;
}

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
	my %take = (
		'a lock' => "zk_lock('PATH')",
		'a shared lock' => "zk_lock_shared('PATH')",
		'a shared lock beside the exclusive one' => "zk_xact_lock('PATH'), zk_lock_shared('PATH')",
		'a semaphore' => "zk_semaphore_acquire('PATH', 2)",
		'an advisory lock' => 'zklock_advisory.pg_advisory_lock(KEY)');
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
		my $s = leader();
		my $path = new_path();
		my $key = $last;
		$s->value("SELECT $take{$take}" =~ s/PATH/$path/gr =~ s/KEY/$key/r);
		my $id = id($s);
		$then{$then}->($s);
		lose($s, $id);
		is_ended($s, $take =~ /advisory/ ? "/advisory/postgres/$key" : $path, 'loss', "$take, $then");
	}

	my $s = leader();
	my $path = new_path();
	$s->value("SELECT zk_lock('$path')");
	is($admin->value("SELECT zk_lock_break('$path', node) FROM zk_lock_queue('$path')"), 't', 'somebody breaks it');
	is_ended($s, $path, 'loss', 'broken');

	# only this backend knows of it then: its ZooKeeper session is closed
	$s = leader(cancel_on_loss => 'off');
	$path = new_path();
	$s->value("SELECT zk_lock('$path')");
	lose($s, id($s));
	zk_wait_hold($s, 'lost');
	is($s->value("SELECT zk_try_lock('$path/2')"), 't', 'it has another session');
	$s->send('SET zklock.cancel_on_loss = terminate');
	is_ended($s, $path, 'loss', 'as soon as that is set');
};

subtest 'not because of what was given back, or goes with the transaction' => sub {
	# with a hold that remains, the running statement is canceled
	my %how = (
		'given back' => [ q{SELECT zk_lock('PATH'); SELECT zk_unlock('PATH')}, '' ],
		'rolled back' => [ q{BEGIN; SELECT zk_lock('PATH'); ROLLBACK}, '' ],
		'taken in a savepoint that was rolled back' => [ q{BEGIN; SAVEPOINT a; SELECT zk_lock('PATH'); ROLLBACK TO a}, '' ],
		'of the transaction' => [ q{BEGIN; SELECT zk_xact_lock('PATH')}, '40001' ],
		'only the transaction still has it' => [ q{SELECT zk_lock('PATH'); BEGIN; SELECT zk_xact_lock('PATH'); SELECT zk_unlock('PATH')}, '40001' ],
		'the same after a rollback' => [ q{BEGIN; SELECT zk_xact_lock('PATH'); SAVEPOINT a; SELECT zk_lock('PATH'); ROLLBACK TO a}, '40001' ],
		'the transaction has become a reader' =>
		  [ q{SELECT zk_lock('PATH'); BEGIN; SELECT zk_xact_lock_shared('PATH'); SELECT zk_unlock('PATH')}, '40001' ],
		'the setting is lost' => [ q{SET zklock.cancel_on_loss = lost; SELECT zk_lock('PATH')}, '' ],
		'the guard is off' => [ q{SET zklock.commit_guard = off; SELECT zk_lock('PATH')}, '' ]);
	my (%session, %path);
	foreach my $name (sort keys %how)
	{
		my $s = $session{$name} = leader();
		my ($sql, $state) = @{ $how{$name} };
		$path{$name} = new_path();
		$s->value($sql =~ s/PATH/$path{$name}/gr);
		my $id = id($s);
		run($s, 'SELECT pg_sleep(' . ($state eq '' ? $PATIENCE : 600) . ')', 'PgSleep');
		lose($s, $id);
	}
	foreach my $name (sort keys %how)
	{
		my $s = $session{$name};
		is($s->wait->{state}, $how{$name}[1], "$name: " . ($how{$name}[1] eq '' ? 'nothing' : 'the statement is canceled'));
		is($s->query('ROLLBACK')->{state}, '', "$name: it lives");
	}
	my $began = time;
	zk_until(sub { time - $began > $PATIENCE }, 'some time');
	is($session{$_}->value('SELECT 1'), 1, "$_: and lives on") for sort keys %how;
};

# The loss was noticed before, but the signal comes after that.  (An abort lets it in first.)
subtest 'not because of what is given back when it is known to be lost' => sub {
	my $library = zk_library('cancel', "-I$FindBin::RealBin/../src");
	$admin->value("CREATE FUNCTION $_() RETURNS void AS '$library' LANGUAGE C") for qw(await_signal take_signal);
	my %how = (
		'zk_unlock' => q{PERFORM zk_lock('PATH'); COMMIT; PERFORM await_signal(); PERFORM zk_unlock('PATH')},
		'zk_unlock_all' => q{PERFORM zk_lock('PATH'); COMMIT; PERFORM await_signal(); PERFORM zk_unlock_all()});
	foreach my $name (sort keys %how)
	{
		my $s = leader();
		my $path = new_path();
		$s->value("SELECT zk_lock('$path/before'), zk_unlock('$path/before')");
		my $id = id($s);
		run($s, 'DO $$BEGIN ' . $how{$name} =~ s/PATH/$path/gr . '; PERFORM take_signal(); END$$', 'PgSleep');
		lose($s, $id);
		is($s->wait->{state}, '', "$name: no error");
		is($s->value('SELECT 1'), 1, "$name: it lives");
	}
};

subtest 'cut off' => sub {
	my $fifo = PostgreSQL::Test::Utils::tempdir_short . '/silent';
	mkfifo($fifo, 0600) or die "$fifo: $!";
	open my $silent, '+<', $fifo or die "$fifo: $!";
	my $prepared = zk_session($node);
	$prepared->value(q{BEGIN; INSERT INTO t VALUES ('prepared'); PREPARE TRANSACTION 'prepared'});
	$prepared->quit;
	zk_commits_hang($node, $admin);

	my %ends = (
		'idle' => [],
		'idle in a transaction' => ['BEGIN; SELECT 1'],
		'a statement' => [ q{BEGIN; INSERT INTO t VALUES ('cut off'); SELECT pg_sleep(600)}, 'PgSleep' ],
		'COPY from a silent client' => [ "\\copy t FROM '$fifo'", 'ClientRead' ]);
	my %waits = (
		'COMMIT' => q{BEGIN; INSERT INTO t VALUES ('committed'); COMMIT},
		'PREPARE TRANSACTION' => q{BEGIN; INSERT INTO t VALUES ('prepared, too'); PREPARE TRANSACTION 'too'},
		'COMMIT PREPARED' => q{COMMIT PREPARED 'prepared'});
	my %lives = (
		'a lock of the transaction' => [ q{BEGIN; SELECT zk_xact_lock('PATH')}, 'SELECT pg_sleep(600)' ],
		'a session-scope lock is being given back' => [ q{SELECT zk_lock('PATH')}, undef, q{SELECT zk_unlock('PATH')} ],
		'the setting is doubt' => [ q{SET zklock.cancel_on_loss = doubt; SELECT zk_lock('PATH')} ]);
	my (%session, %path);
	foreach my $name (keys %ends, keys %waits, keys %lives)
	{
		$session{$name} = leader(hosts => $proxy);
		$path{$name} = new_path();
		$session{$name}->value(($lives{$name} ? $lives{$name}[0] : q{SELECT zk_lock('PATH')}) =~ s/PATH/$path{$name}/r);
	}
	run($session{$_}, "SET synchronous_commit = on; $waits{$_};\n\\echo :SQLSTATE", 'SyncRep') for keys %waits;
	foreach my $name (keys %ends)
	{
		my ($statement, $event) = @{ $ends{$name} };
		if (defined $event) { run($session{$name}, $statement, $event) }
		elsif (defined $statement) { $session{$name}->value($statement) }
	}
	$session{$_}->send($lives{$_}[1]) for grep { $lives{$_}[1] } keys %lives;

	$proxy->blackhole;
	my $began = time;
	$session{$_}->send($lives{$_}[2] =~ s/PATH/$path{$_}/r) for grep { $lives{$_}[2] } keys %lives;
	my %running = %ends;
	while (%running)
	{
		my @gone = zk_until(sub { grep { !lives($session{$_}->pid) } keys %running }, 'the end of ' . join ', ', sort keys %running);
		@gone = grep { !lives($session{$_}->pid) } keys %running;
		in_time(time - $began, $TIMEOUT_OF_SESSION + 1, "$_: within the session timeout and a second") for @gone;
		delete @running{@gone};
	}
	close $silent;
	is_ended($session{$_}, $path{$_}, 'possible loss', $_) for sort keys %ends;
	zk_until(sub { time - $began > $TIMEOUT_OF_SESSION + $PATIENCE }, 'some time after that');
	is(wait_event($session{$_}), 'SyncRep', "$_: still waits for its synchronous standby") for sort keys %waits;

	$admin->value($_) for 'ALTER SYSTEM RESET synchronous_standby_names', 'SELECT pg_reload_conf()';
	foreach my $name (sort keys %waits)
	{
		like(is_ended($session{$name}, $path{$name}, 'possible loss', "$name: as soon as it is over"), qr/^00000/, "$name: has succeeded");
	}
	is($admin->value(q{SELECT string_agg(who, ', ' ORDER BY who) FROM t}), 'committed, prepared', 'what they committed is there');
	$admin->value(q{ROLLBACK PREPARED 'too'});

	my $result = $session{'a lock of the transaction'}->wait;
	is("$result->{state} $result->{message}", qq{40001 canceling statement due to possible loss of lock on "$path{'a lock of the transaction'}"},
		'a lock of the transaction: the statement is canceled');
	$session{'a session-scope lock is being given back'}->wait;
	foreach my $name (sort keys %lives)
	{
		is($session{$name}->value("ROLLBACK; SELECT 'lives'"), 'lives', "$name: it lives");
		$session{$name}->quit;
	}
	$proxy->pass;
};

subtest 'a background worker' => sub {
	my $library = zk_library('worker');
	$admin->value("CREATE FUNCTION worker_launch(text, text, boolean) RETURNS integer AS '$library' LANGUAGE C");
	foreach my $at_once (qw(false true))
	{
		my $path = new_path();
		my $pid = $admin->value(
			"SELECT worker_launch('$library', 'SELECT set_config(''zklock.cancel_on_loss'', ''terminate'', false), zk_lock(''$path''), pg_sleep(600)', $at_once)");
		zk_until(sub { $admin->value("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'PgSleep'") == 1 },
			'the worker sleeps');
		is($admin->value("SELECT zk_lock_break('$path', node) FROM zk_lock_queue('$path')"), 't', 'its lock is broken');
		zk_until(sub { !lives($pid) }, 'the worker has ended');
		is_told($path, 'loss', 'a worker');
	}
};

# Its standby may have the commit by then, and shows it when it is promoted.  This is not
# about the setting, but here are commits that hang.
subtest 'the postmaster is killed while COMMIT waits for its synchronous standby' => sub {
	my %take = (
		'a lock of the transaction' => [ 'BEGIN', q{SELECT zk_xact_lock('PATH')}, q{INSERT INTO t VALUES ('killed'); COMMIT} ],
		'a session-scope lock' => [ q{SELECT zk_lock('PATH')}, 'BEGIN', q{INSERT INTO t VALUES ('killed'); COMMIT} ],
		'idle' => [ q{SELECT zk_lock('PATH')} ]);
	my (%session, %path);
	zk_commits_hang($node, $admin);
	foreach my $name (sort keys %take)
	{
		my @take = map { s/PATH/$path{$name} = new_path()/er } @{ $take{$name} };
		my $last = $name eq 'idle' ? undef : pop @take;
		$session{$name} = zk_session($node);
		$session{$name}->value($_) for @take;
		run($session{$name}, "SET synchronous_commit = on; $last", 'SyncRep') if defined $last;
	}
	my $left = sub { my ($name) = @_; return scalar grep { index($_, "$path{$name}/") >= 0 } zk_locks_left($zk); };
	is($left->($_), 1, "$_: is there") for sort keys %path;
	$node->kill9;
	foreach my $s ($admin, values %session)
	{
		zk_until(sub { !-e '/proc/' . $s->pid }, 'the backends to end');
		$s->quit;
	}
	zk_until(sub { !$left->('idle') }, 'idle: it has been given back');
	is($left->($_), 1, "$_: stays") for grep { $_ ne 'idle' } sort keys %path;
	zk_until(sub { !zk_locks_left($zk) }, 'the sessions to expire');
};

zk_end($zk, $node);
