# The procedures wait without a snapshot wherever that is safe, so that VACUUM and
# CREATE INDEX CONCURRENTLY pass, and the next statement sees what was committed
# meanwhile; elsewhere they wait as the functions do.  However a wait ends, the
# session, its savepoints and procedures can go on.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Tests;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, autovacuum => 'off', 'zklock.session_timeout' => '30s');
my $admin = zk_session($node);
my $holder = zk_session($node);
my $last = 0;

# What the next statement sees
my $SEES = q{INSERT INTO saw SELECT 'NAME', count(*) FROM news};

$admin->value(q{
	CREATE TABLE news (i int); CREATE TABLE saw (name text, n int); CREATE TABLE dead (i int);
	CREATE PROCEDURE inner_one(name text, path text) LANGUAGE plpgsql AS
		$$ BEGIN PERFORM count(*) FROM news; CALL zk_acquire(path); INSERT INTO saw SELECT name, count(*) FROM news; END $$;
	CREATE PROCEDURE outer_one(name text, path text) LANGUAGE plpgsql AS
		$$ BEGIN PERFORM count(*) FROM news; CALL inner_one(name, path); END $$;
	CREATE PROCEDURE commits(name text, path text) LANGUAGE plpgsql AS
		$$ DECLARE p text; BEGIN
			FOREACH p IN ARRAY ARRAY[path || '/free', path, path || '/free'] LOOP
				CALL zk_xact_acquire(p); INSERT INTO saw SELECT name, count(*) FROM news; COMMIT;
			END LOOP;
			DELETE FROM saw WHERE saw.name = commits.name AND n < (SELECT count(*) FROM news);
		END $$;
	CREATE PROCEDURE with_inout(path text, commits boolean, INOUT n int) LANGUAGE plpgsql AS
		$$ BEGIN IF commits THEN COMMIT; END IF; CALL zk_acquire(path); SELECT count(*) INTO n FROM news; END $$;
	CREATE PROCEDURE with_out(path text, OUT n int) LANGUAGE plpgsql AS
		$$ BEGIN CALL zk_acquire(path); n := 1; END $$;
	CREATE PROCEDURE sets(path text) LANGUAGE plpgsql SET work_mem = '1MB' AS 'BEGIN CALL zk_acquire(path); END';
	CREATE PROCEDURE definer(path text) LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN CALL zk_acquire(path); END';
	CREATE PROCEDURE in_sql(path text) LANGUAGE sql AS 'CALL zk_acquire(path)';
	CREATE FUNCTION calls(path text) RETURNS void LANGUAGE plpgsql AS 'BEGIN CALL zk_acquire(path); END';
	CREATE FUNCTION for_row() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN CALL zk_acquire(NEW.path); RETURN NEW; END $$;
	CREATE TABLE elsewhere (name text, path text, filler text);
	ALTER TABLE elsewhere ALTER path SET STORAGE EXTERNAL, ALTER filler SET STORAGE PLAIN;
	CREATE FUNCTION toasted(name text) RETURNS text LANGUAGE sql AS 'SELECT path FROM elsewhere WHERE elsewhere.name = toasted.name';
	CREATE TABLE fires (path text);
	CREATE TABLE fires_late (path text);
	CREATE TRIGGER at_once BEFORE INSERT ON fires FOR EACH ROW EXECUTE FUNCTION for_row();
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON fires_late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION for_row()});

# Each a statement that waits, and what comes before it
my %without = (
	'autocommit' => [ '', q{CALL zk_acquire('PATH')} ],
	'autocommit, for the transaction' => [ '', q{CALL zk_xact_acquire('PATH', '1h', true)} ],
	'BEGIN' => [ 'BEGIN', q{CALL zk_xact_acquire('PATH')} ],
	'after SELECT' => [ 'BEGIN; SELECT count(*) FROM news', q{CALL zk_acquire('PATH')} ],
	'in a savepoint' => [ 'BEGIN; SELECT count(*) FROM news; SAVEPOINT a', q{CALL zk_acquire('PATH')} ],
	'after ROLLBACK TO' => [ 'BEGIN; SAVEPOINT a; SELECT count(*) FROM news; ROLLBACK TO a', q{CALL zk_acquire('PATH')} ],
	'several statements in a message' => [ '', qq{SELECT count(*) FROM news\\; CALL zk_acquire('PATH')\\; $SEES} ],
	'DO' => [ '', "DO \$\$ BEGIN CALL zk_acquire('PATH'); $SEES; END \$\$" ],
	'DO, after a query' => [ '', "DO \$\$ BEGIN PERFORM count(*) FROM news; CALL zk_acquire('PATH'); $SEES; END \$\$" ],
	'DO, after COMMIT' => [ '', "DO \$\$ BEGIN COMMIT; CALL zk_acquire('PATH'); $SEES; END \$\$" ],
	'DO, twice' => [ '', "DO \$\$ BEGIN CALL zk_acquire('PATH/2'); CALL zk_acquire('PATH'); $SEES; END \$\$" ],
	'a procedure' => [ '', q{CALL inner_one('NAME', 'PATH')} ],
	'a procedure in a procedure' => [ '', q{CALL outer_one('NAME', 'PATH')} ],
	'a loop with COMMIT' => [ '', q{CALL commits('NAME', 'PATH')} ],
	'DO, after ROLLBACK' => [ '', "DO \$\$ BEGIN PERFORM count(*) FROM news; ROLLBACK; CALL zk_acquire('PATH'); $SEES; END \$\$" ],
	'DO, after COMMIT AND CHAIN' => [ '', "DO \$\$ BEGIN COMMIT AND CHAIN; CALL zk_acquire('PATH'); COMMIT AND CHAIN; $SEES; END \$\$" ],
	'DO in DO' => [ '', "DO \$\$ BEGIN DO \$in\$ BEGIN CALL zk_acquire('PATH'); $SEES; END \$in\$; END \$\$" ],
	'a cursor WITH HOLD' => [ 'BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT * FROM news; COMMIT; BEGIN', q{CALL zk_acquire('PATH')} ],
	'TOAST' => [ q{INSERT INTO elsewhere VALUES ('NAME', 'PATH', repeat('x', 2000))}, q{CALL zk_acquire(toasted('NAME'))} ],
	'TOAST, after COMMIT' => [
		q{INSERT INTO elsewhere VALUES ('NAME', 'PATH', repeat('x', 2000))},
		"DO \$\$ BEGIN CALL zk_acquire(toasted('NAME') || '/2'); COMMIT; CALL zk_acquire(toasted('NAME')); $SEES; END \$\$" ],
	'INOUT, after COMMIT' => [ '', q{CALL with_inout('PATH', true, 0)} ]);

# An xid of its own stops VACUUM
my %with_xid = ('after a write' => [ 'BEGIN; INSERT INTO saw SELECT NULL', q{CALL zk_acquire('PATH')} ]);

# The snapshot is needed, or may be
my %with = (
	'zk_lock' => [ '', q{SELECT zk_lock('PATH')} ],
	'an open cursor' => [ 'BEGIN; DECLARE c CURSOR FOR SELECT * FROM news', q{CALL zk_acquire('PATH')} ],
	'an exported snapshot' => [ 'BEGIN; SELECT pg_export_snapshot()', q{CALL zk_acquire('PATH')} ],
	'REPEATABLE READ' => [ 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM news', q{CALL zk_acquire('PATH')} ],
	'SERIALIZABLE' => [ 'BEGIN ISOLATION LEVEL SERIALIZABLE', q{CALL zk_acquire('PATH')} ],
	'a procedure in BEGIN' => [ 'BEGIN', q{CALL inner_one('NAME', 'PATH')} ],
	'DO in BEGIN' => [ 'BEGIN', q{DO $$ BEGIN CALL zk_acquire('PATH'); END $$} ],
	'EXCEPTION' => [ '', q{DO $$ BEGIN CALL zk_acquire('PATH'); EXCEPTION WHEN division_by_zero THEN NULL; END $$} ],
	'EXECUTE' => [ '', q{DO $$ BEGIN EXECUTE 'CALL zk_acquire(''PATH'')'; END $$} ],
	'a loop over a cursor' => [ '', q{DO $$ DECLARE i int; BEGIN FOR i IN SELECT generate_series(1, 1000) LOOP CALL zk_acquire('PATH'); END LOOP; END $$} ],
	'SET' => [ '', q{CALL sets('PATH')} ],
	'SECURITY DEFINER' => [ '', q{CALL definer('PATH')} ],
	'LANGUAGE sql' => [ '', q{CALL in_sql('PATH')} ],
	'INOUT' => [ '', q{CALL with_inout('PATH', false, 0)} ],
	'OUT' => [ '', q{CALL with_out('PATH', NULL)} ],
	'a function' => [ '', q{SELECT calls('PATH')} ],
	'a trigger' => [ '', q{INSERT INTO fires VALUES ('PATH')} ],
	'a deferred trigger' => [ q{BEGIN; INSERT INTO fires_late VALUES ('PATH')}, 'COMMIT' ]);

sub contenders { my ($path) = @_; return scalar $zk->children("/zklock$path"); }

# Long enough for TOAST
sub next_path { return '/waits/without/a/snapshot/' . ++$last; }

# Let each of these wait in a session of its own; returns name => session
sub begin_to_wait
{
	my (%position) = @_;
	my %session;
	foreach my $name (sort keys %position)
	{
		my $path = next_path();
		my ($before, $statement) = map { s/PATH/$path/gr =~ s/NAME/$name/gr } @{ $position{$name} };
		my $s = $session{$name} = zk_session($node);
		$holder->value("SELECT zk_lock('$path')");
		$s->value($before) if $before;
		$s->send($statement);
	}
	zk_wait_queued($zk, values %session);
	return %session;
}

# Of these sessions, the names of those that have a snapshot
sub with_snapshot
{
	my (%session) = @_;
	my %has = map { $_ => 1 } split /\n/, $admin->value('SELECT pid FROM pg_stat_activity WHERE backend_xmin IS NOT NULL');
	return join ', ', grep { $has{ $session{$_}->pid } } sort keys %session;
}

# One test: none of them has a snapshot, but for a moment, when it looks for a deadlock
sub have_none
{
	my ($name, %session) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(eval { zk_until(sub { with_snapshot(%session) eq '' }, 'no snapshot', $MOMENT) }, $name) or diag with_snapshot(%session);
	return;
}

# Something is committed, then each gets its lock, and goes on; returns how many there are of
# that, and name => what the next statement sees
sub go_on
{
	my (%session) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$admin->value('INSERT INTO news VALUES (1)');
	$holder->value('SELECT zk_unlock_all()');
	foreach my $name (sort keys %session)
	{
		my $result = $session{$name}->wait;
		is($result->{state}, '', "$name: has the lock") or diag $result->{err};
		$session{$name}->value($SEES =~ s/NAME/$name/r) unless $admin->value("SELECT count(*) FROM saw WHERE name = '$name'");
		$session{$name}->query('COMMIT');
	}
	$_->quit for values %session;
	my %saw = map { /^(.*)\|(\d+)$/ } split /\n/, $admin->value('SELECT DISTINCT name, n FROM saw WHERE name IS NOT NULL');
	$admin->value('TRUNCATE saw');
	return ($admin->value('SELECT count(*) FROM news'), %saw);
}

subtest 'without a snapshot' => sub {
	$admin->value('INSERT INTO dead SELECT generate_series(1, 10000)');
	my %session = begin_to_wait(%without);
	$admin->value('DELETE FROM dead');
	have_none('nobody has a snapshot', %session);    # who looks for a deadlock just then has an old one
	like($admin->query('VACUUM (VERBOSE) dead')->{err}, qr/\b10000 removed\b/, 'VACUUM removes what was deleted since');
	%session = (%session, begin_to_wait(%with_xid));
	have_none('nor who has written', %session);
	is($admin->query('CREATE INDEX CONCURRENTLY ON dead (i)')->{state}, '', 'CREATE INDEX CONCURRENTLY passes');
	is(join(', ', grep { $session{$_}->is_done } sort keys %session), '', '- while all wait');
	have_none('and still nobody has one', %session);
	my ($n, %saw) = go_on(%session);
	is_deeply(\%saw, { map { $_ => $n } keys %without, keys %with_xid }, 'the next statement sees what was committed meanwhile');
};

subtest 'with a snapshot' => sub {
	my %session = begin_to_wait(%with);
	is(with_snapshot(%session), join(', ', sort keys %with), 'all of them have one');
	my ($n, %saw) = go_on(%session);
	is($saw{'REPEATABLE READ'}, $n - 1, 'REPEATABLE READ stays what it is');
	is($saw{'SERIALIZABLE'}, $n - 1, '- and SERIALIZABLE');
};

subtest 'the extended protocol' => sub {
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my %run;
	foreach my $name ('extended', 'prepared', 'pipeline', 'canceled')
	{
		my $path = next_path();
		$holder->value("SELECT zk_lock('$path')");
		my @lines = ('SELECT count(*) FROM news;', "CALL zk_acquire('$path');", ($SEES =~ s/NAME/$name/r) . ';');
		@lines = ('\startpipeline', @lines, '\endpipeline') if $name =~ /pipeline|canceled/;
		append_to_file("$dir/$name", join "\n", @lines, '');
		my ($in, $out) = ('', '');
		$run{$name} = { path => $path, out => \$out, run => IPC::Run::start(
				[ 'pgbench', '-n', '-t', '1', '-M', $name eq 'prepared' ? $name : 'extended', '-f', "$dir/$name", $node->connstr('postgres') ],
				'<', \$in, '>&', \$out, IPC::Run::timeout($TIMEOUT)) };
	}
	zk_until(sub { !grep { contenders($_->{path}) != 2 } values %run }, 'they queue');
	zk_until(
		sub {
			$admin->value(q{SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ '^CALL zk_acquire'
				AND backend_xmin IS NULL}) == keys %run;
		},
		'none of them has a snapshot');
	pass('none of them has a snapshot');
	my $canceled = delete $run{canceled};
	$admin->value("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query ~ '^CALL zk_acquire.*$canceled->{path}'");
	ok(!$canceled->{run}->finish, 'one is canceled, in a pipeline');
	like(${ $canceled->{out} }, qr/canceling statement due to user request/, '- and fails with that');
	zk_until(sub { contenders($canceled->{path}) == 1 }, 'its node to go');
	$admin->value('INSERT INTO news VALUES (1)');
	$holder->value('SELECT zk_unlock_all()');
	ok($_->{run}->finish, 'it succeeds') for values %run;
	my $n = $admin->value('SELECT count(*) FROM news');
	is($admin->value('SELECT string_agg(concat_ws(chr(32), name, n), chr(10) ORDER BY name) FROM saw'), "extended $n\npipeline $n\nprepared $n",
		'the next statement sees what was committed meanwhile');
	$admin->value('TRUNCATE saw');
};

# However it ends, this follows: the session has no lock, and works
sub works
{
	my ($s, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($s->value("BEGIN; SELECT count(*) - count(*) FROM news; CALL zk_xact_acquire('/works'); SELECT count(*) FROM zk_locks; COMMIT"), "0\n1", "$name: the session works");
	return;
}

# What waits, the SQLSTATE with which that ends, and what the session says then.  Who is not
# told to end itself is canceled, or terminated.
my $PASSES = q{SELECT count(*) - count(*) FROM news};
my %ends = (
	'a timeout of zero' => [ q{CALL zk_acquire('PATH', '0')}, '55P03' ],
	'a timeout' => [ q{CALL zk_acquire('PATH', '2s')}, '55P03' ],
	'lock_timeout' => [ q{BEGIN; SET LOCAL lock_timeout = '2s'; CALL zk_acquire('PATH', '1h')}, '55P03', 'ROLLBACK' ],
	'statement_timeout' => [ q{BEGIN; SET LOCAL statement_timeout = '2s'; CALL zk_acquire('PATH')}, '57014', 'ROLLBACK' ],
	'a block with EXCEPTION' => [
		q{DO $$ BEGIN BEGIN CALL zk_acquire('PATH', '2s'); EXCEPTION WHEN lock_not_available THEN NULL; END; CALL zk_acquire('/free/1'); END $$}, '',
		'SELECT zk_unlock_all()' ],
	'canceled, in a savepoint' => [ qq{BEGIN; $PASSES; SAVEPOINT a; CALL zk_acquire('PATH')}, '57014', "ROLLBACK TO a; $PASSES; COMMIT" ],
	'canceled in DO' => [ q{DO $$ BEGIN CALL zk_acquire('/free/2'); CALL zk_acquire('PATH'); END $$}, '57014' ],
	'canceled in DO, after a COMMIT' => [
		q{DO $$ BEGIN INSERT INTO saw VALUES ('committed', 0); COMMIT; INSERT INTO saw VALUES ('not', 0); CALL zk_acquire('PATH'); END $$}, '57014' ],
	'terminated' => [ q{CALL zk_acquire('PATH')}, '57P01' ]);

subtest 'errors that end a wait' => sub {
	my (%s, %path);
	foreach my $name (sort keys %ends)
	{
		my $path = $path{$name} = next_path();
		$holder->value("SELECT zk_lock('$path')");
		$s{$name} = zk_session($node)->send($ends{$name}[0] =~ s/PATH/$path/gr);
	}
	foreach my $name (grep { /canceled|terminated/ } sort keys %ends)
	{
		zk_wait_queued($zk, $s{$name});
		$admin->value(sprintf 'SELECT pg_%s_backend(%d)', $name =~ /canceled/ ? 'cancel' : 'terminate', $s{$name}->pid);
	}
	foreach my $name (sort keys %ends)
	{
		my (undef, $state, $then) = @{ $ends{$name} };
		my $result = $s{$name}->wait;
		is($result->{state}, $state, "$name: $state");
		is($result->{message}, qq{could not obtain lock on "$path{$name}"}, '- with a message') if $name =~ /zero/;
		like($result->{detail}, qr/^It is held by process @{[ $holder->pid ]} on /, '- with who holds it') if $name =~ /timeout$/ && $state eq '55P03';
		next if $result->{closed};
		is($s{$name}->query($then)->{state}, '', "$name: $then") if $then;
		works($s{$name}, $name);
	}
	is($admin->value("SELECT string_agg(name, ' ') FROM saw"), 'committed', 'what was committed before stays');
	$admin->value('TRUNCATE saw');
	ok(zk_until(sub { !grep { contenders($_) > 1 } values %path }, 'those who wait no longer to leave the queues'), 'nothing of them stays in a queue');
	$holder->value('SELECT zk_unlock_all()');
};

# Who waits for the lock, in a savepoint, fails, and goes on from there
subtest 'a deadlock with a row' => sub {
	my @s = map { zk_session($node) } 0, 1;
	$admin->value('TRUNCATE news; INSERT INTO news VALUES (1)');
	$s[0]->value("BEGIN; CALL zk_xact_acquire('/cycle')");
	$s[1]->value('BEGIN; UPDATE news SET i = 2; SAVEPOINT a');
	$s[1]->send("CALL zk_xact_acquire('/cycle')");
	zk_wait_queued($zk, $s[1]);
	$s[0]->send('UPDATE news SET i = i + 10; COMMIT');
	is($s[1]->wait->{state}, '40P01', '40P01');
	$s[1]->value('ROLLBACK TO a; UPDATE news SET i = i + 100; COMMIT');
	is($s[0]->wait->{state}, '', '- and the other one goes on');
	is($admin->value('SELECT i FROM news'), 112, '- and both commit');
	works($_, 'afterwards') for @s;
};

# The memory of a snapshot that is gone is given to the next one, so that a pointer to it
# that is left in the portal mostly does no harm.
subtest 'what the backend itself has while it waits' => sub {
	my $library = zk_library('extension');
	$admin->value("CREATE FUNCTION snapshots() RETURNS void LANGUAGE c AS '$library'");
	my $s = zk_session($node);
	$holder->value(q{SELECT zk_lock('/held')});
	$s->value(q{SELECT snapshots(); SET deadlock_timeout = '10ms'; SET log_lock_waits = on});
	my $log = -s $node->logfile;
	my $wait = sub {
		my ($call) = @_;
		$s->send($call);
		my $said = zk_until(sub { (slurp_file($node->logfile, $log) =~ /HINT:  (active snapshot: .*)/)[0] }, 'the wait to be logged');
		have_none("$call: reads a catalog, and keeps no snapshot of that", wait => $s) if $said =~ /^active snapshot: no/;
		$holder->value(q{SELECT zk_unlock('/held')});
		$s->wait;
		$s->value('SELECT zk_unlock_all()');
		$holder->value(q{SELECT zk_lock('/held')});
		$log = -s $node->logfile;
		return $said;
	};
	is($wait->(q{CALL zk_acquire('/held')}), q{active snapshot: no, the portal's: no}, 'the portal points to no snapshot that is gone');
	is($wait->(q{DO $$ BEGIN CALL zk_acquire('/held'); END $$}), q{active snapshot: no, the portal's: no}, '- in DO');
	is($wait->(q{DO $$ BEGIN CALL zk_acquire('/held'); EXCEPTION WHEN division_by_zero THEN NULL; END $$}),
		q{active snapshot: yes, the portal's: yes}, 'in a block with EXCEPTION both are kept');
	like($wait->(q{SELECT zk_lock('/held')}), qr/^active snapshot: yes/, 'a function has its own');
	$holder->value('SELECT zk_unlock_all()');
	my $call = q{CALL zk_acquire('/free')};
	like($s->query($_)->{err}, qr/active snapshot: yes, the portal's: yes/, "$_: ends with one")
	  for $call, "BEGIN; $call", "COMMIT; DO \$\$ BEGIN $call; END \$\$", "DO \$\$ BEGIN COMMIT; $call; END \$\$";
	$s->value('SELECT zk_unlock_all()');
};

zk_end($zk, $node);
