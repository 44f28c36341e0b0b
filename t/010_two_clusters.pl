# Two clusters, one lock: it excludes every session of both.  (What the end of a
# transaction does to locks, and that the next owner sees what the last one committed, as
# another session sees it: specs/transaction_end, specs/blocks; between clusters: t/012.)
#
# And where locks work: a hot standby and its promotion, background workers, together
# with postgres_fdw and dblink, and after a crash.  (In read-only transactions and parallel
# queries: sql/places.)  Also, that loops and row triggers stay fast when ZooKeeper is
# down.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Tests;

my $zk = ZooKeeper->new->start;
my $main = zk_cluster(
	'main', $zk,
	wal_level => 'logical',
	max_wal_senders => 10,
	max_replication_slots => 10,
	hot_standby => 'on',
	max_worker_processes => 8,
	restart_after_crash => 'on');
my $other = zk_cluster('other', $zk);

#
# Every session excludes every other, whatever its cluster and database.
#
{
	my @all;
	foreach my $cluster ($main, $other)
	{
		$cluster->safe_psql('postgres', 'CREATE DATABASE other');
		$cluster->safe_psql('other', 'CREATE EXTENSION zklock');
		push @all, map { zk_session($cluster, dbname => $_) } qw(postgres other);
	}
	foreach my $owner (@all)
	{
		$owner->value(q{SELECT zk_lock('/everywhere')});
		my @others = grep { $_ != $owner } @all;
		is(join('', map { $_->value(q{SELECT zk_try_lock('/everywhere')}) } @others), 'fff', 'a lock that is held excludes all others');
		is($others[0]->value(q{SELECT zk_try_lock('/elsewhere'), zk_unlock('/elsewhere')}), 't|t', 'and from no other path');
		$owner->value(q{SELECT zk_unlock('/everywhere')});
	}
	$_->quit for @all;
	zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
}

# ------------------------------------------------------------ where locks work

my $admin = zk_session($main);
my $other_admin = zk_session($other);

sub contenders { return scalar $zk->children("/zklock$_[0]"); }

subtest 'triggers and loops, with a ZooKeeper that comes and goes' => sub {
	my $proxy = ZkProxy->new($zk);
	my $s = zk_session_with($main, hosts => $proxy, session_timeout => '60s');

	# operation_timeout while ZooKeeper does not answer, and a few times that; 10,000
	# times would be four hours
	my $short = q{SET LOCAL zklock.operation_timeout = '1500ms'};
	my $SOON = 5;

	# It answers again, and nothing is stuck any longer.
	my $again = sub {
		$proxy->pass;
		zk_wait_session($s, 'connected');
		zk_until(sub { $s->value(q{SELECT count(*) FROM zk_locks WHERE state <> 'held'}) == 0 }, 'its locks to be certain');
	};
	my $kill = sub { $proxy->cut_off; zk_wait_session($s, 'suspended'); };
	my $soon = sub {
		my ($sql, $states, $name) = @_;
		my $r = $s->query($sql);
		like($r->{state}, $states, $name);
		in_time($r->{seconds}, $SOON, "$name: soon");
	};

	$s->value(
		q{CREATE TABLE rows (i int);
		CREATE FUNCTION lock_row() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN PERFORM zk_xact_lock('/rows'); RETURN NEW; END $$;
		CREATE TRIGGER lock_row BEFORE INSERT ON rows FOR EACH ROW EXECUTE FUNCTION lock_row()});
	my $insert = 'INSERT INTO rows SELECT generate_series(1, 10000)';

	# the trigger, which does not wait for each row
	$s->value(qq{BEGIN; SELECT zk_xact_lock('/rows'); $short});
	$proxy->blackhole;
	$soon->($insert, qr/^(58030)?$/, 'a row trigger on 10,000 rows while ZooKeeper hangs');
	$soon->('ROLLBACK', qr/^$/, '- and the end of the transaction');
	$again->();
	zk_nothing_left($zk, '- which is made good later');

	$s->value(qq{BEGIN; SELECT zk_xact_lock('/rows'); SAVEPOINT s; $short});
	$kill->();
	$soon->($insert, qr/^58030$/, 'the same with ZooKeeper dead: an error, once');
	$s->value('ROLLBACK TO s');
	is($s->value(q{SELECT state FROM zk_locks}), 'suspect', '- the lock is in doubt');
	$again->();
	is($s->value(q{SELECT state FROM zk_locks}), 'held', '- and held when ZooKeeper is back in time');
	is($s->query("$insert; COMMIT")->{state}, '', '- so that the transaction can go on');
	zk_nothing_left($zk, '- to its end');

	# the loop (while ZooKeeper is up: sql/places)
	my $loop = sub {
		my ($body) = @_;
		return qq{DO \$\$ DECLARE n int := 0; BEGIN FOR i IN 1 .. 10000 LOOP BEGIN $body RAISE division_by_zero;
			EXCEPTION WHEN division_by_zero THEN n := n + 1; END; END LOOP; ASSERT n = 10000; END \$\$};
	};
	my $memory = q{SELECT sum(used_bytes) FROM pg_backend_memory_contexts WHERE name LIKE 'zklock%'};
	my $before = $s->value($memory);

	# For a while after a long outage, each new hold sends a request.
	$s->value(q{SELECT zk_lock('/loop')});
	my $requests = q{SELECT requests FROM zk_session};
	zk_until(
		sub {
			my $so_far = $s->value($requests);
			$s->value(q{SELECT zk_lock('/loop') AND zk_unlock('/loop')});
			return $s->value($requests) == $so_far;
		},
		'the session is known to live');
	$s->value(q{SELECT zk_unlock('/loop'); BEGIN; SELECT zk_lock('/loop')});
	$proxy->blackhole;
	$soon->($loop->(q{PERFORM zk_lock('/loop'), zk_xact_lock('/loop');}), qr/^$/, '10,000 EXCEPTION blocks while ZooKeeper hangs');
	is($s->value(q{SELECT count FROM zk_locks}), 1, '- and the count is right');
	$proxy->pass;

	$s->value(q{SELECT zk_lock('/loop')});
	$kill->();
	my $r = $s->query(
		qq{SAVEPOINT s; $short; } . q{SET LOCAL statement_timeout = '1s'; DO $$ BEGIN FOR i IN 1 .. 10000 LOOP
			BEGIN PERFORM zk_lock('/loop'); EXCEPTION WHEN io_error THEN NULL; END; END LOOP; END $$});
	is($r->{state}, '57014', 'a loop that catches each 58030 can be ended');
	in_time($r->{seconds}, 2, '- at once');
	$s->value('ROLLBACK TO s');
	$again->();
	is($s->query('COMMIT')->{state}, '', '- and the transaction goes on');
	is($s->value(q{SELECT count, state FROM zk_locks}), '2|held', '- with its lock');
	$s->value('SELECT zk_unlock_all()');
	zk_nothing_left($zk, '- and leaves nothing');
	is($s->value($memory), $before, '- nor any memory');
	$s->quit;
	zk_nothing_left($zk, 'and the session goes with its backend', sessions => 0);
};

# the apply worker of a subscription, which runs triggers without a portal
subtest 'a background worker' => sub {
	$_->value('CREATE TABLE replicated (i int)') for $admin, $other_admin;
	$other_admin->value(
		q{CREATE FUNCTION lock_apply() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN CALL public.zk_acquire('/apply'); PERFORM public.zk_lock('/apply'); RETURN NEW; END $$;
		CREATE TRIGGER lock_apply BEFORE INSERT ON replicated FOR EACH ROW EXECUTE FUNCTION lock_apply();
		ALTER TABLE replicated ENABLE ALWAYS TRIGGER lock_apply});
	$admin->value('CREATE PUBLICATION p FOR TABLE replicated');
	$other_admin->value(sprintf q{CREATE SUBSCRIPTION s CONNECTION '%s' PUBLICATION p WITH (copy_data = off)},
		$main->connstr('postgres') =~ s/'/''/gr);

	my $holder = zk_session($main);
	$holder->value(q{SELECT zk_lock('/apply')});
	$admin->value('INSERT INTO replicated VALUES (1)');
	# (its type has the word "apply" since version 17)
	my $waiting = q{SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'logical replication %worker'
		AND wait_event_type = 'Extension'};
	my $worker = zk_until(sub { my $pid = $other_admin->value($waiting); contenders('/apply') == 2 && $pid }, 'the worker to wait');
	my @before = $zk->children('/zklock/apply');

	my $start = time;
	$other_admin->value("SELECT pg_terminate_backend($worker)");
	zk_until(sub { !kill 0, $worker }, 'the worker to end');
	# longer than a moment only if the close of its session is not answered
	in_time(time - $start, 4, 'a background worker that waits is terminated at once');
	# the next one may have come already
	ok(zk_until(sub { my %now = map { $_ => 1 } $zk->children('/zklock/apply'); 1 == grep { $now{$_} } @before }, 'its node to go'),
		'a background worker that waits is terminated, and leaves no node');

	zk_until(sub { contenders('/apply') == 2 && $other_admin->value($waiting) }, 'the next worker to wait');
	isnt($other_admin->value($waiting), $worker, '- another one waits again');
	$holder->value(q{SELECT zk_unlock('/apply')});
	zk_until(sub { $other_admin->value('SELECT count(*) FROM replicated') == 1 }, 'the row');
	is(contenders('/apply'), 1, '- and goes on when it has the lock');
	$other_admin->value('DROP SUBSCRIPTION s');
	ok(zk_until(sub { contenders('/apply') == 0 }, 'its lock to go'), '- which ends with it');
};

subtest 'other servers in the same transaction' => sub {
	$other_admin->value('CREATE TABLE remote (i int)');
	zk_foreign_server($main, other => $other);
	$admin->value(q{CREATE EXTENSION dblink; CREATE FOREIGN TABLE remote (i int) SERVER other});
	my $s = zk_session($main);
	my $waiter = zk_session($other);

	$s->value(q{BEGIN; SELECT zk_xact_lock('/fdw'); INSERT INTO remote VALUES (1)});
	$waiter->send(q{SELECT zk_lock('/fdw'); SELECT count(*) FROM remote});
	zk_wait_queued($zk, $waiter);
	$s->value('COMMIT');
	is($waiter->wait->{out}, "t\n1", 'postgres_fdw: what it wrote is committed when the lock is released');
	$waiter->value(q{SELECT zk_unlock('/fdw')});

	$s->value(q{BEGIN; SELECT zk_xact_lock('/fdw'); INSERT INTO remote VALUES (2)});
	is($s->query('SELECT 1/0; ROLLBACK')->{state}, '22012', '- and rolled back with it');
	is($other_admin->value('SELECT count(*) FROM remote'), 1, '- in both clusters');
	is($waiter->value(q{SELECT zk_lock('/fdw', '1min') AND zk_unlock('/fdw')}), 't', '- when the lock is released');

	# dblink uses another backend: it does not hold what this one holds
	my $self = $main->connstr('postgres') =~ s/'/''/gr;
	$s->value(q{BEGIN; SELECT zk_xact_lock('/link')});
	is($s->value(qq{SELECT * FROM dblink('$self', 'SELECT zk_try_lock(''/link'')') AS (got boolean)}),
		'f', 'dblink to the same cluster is another session');
	$s->value('COMMIT');
	is($s->value(qq{SELECT dblink_connect('l', '$self'), got FROM dblink('$self', 'SELECT zk_lock(''/link'', ''1min'')') AS (got boolean)}),
		'OK|t', '- which may take the lock when it is free');
};

subtest 'a hot standby, and its promotion' => sub {
	$main->safe_psql('postgres', 'CREATE DATABASE doomed');
	$main->safe_psql('doomed', 'CREATE EXTENSION zklock');
	$main->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($main, 'base', has_streaming => 1);
	$standby->start;

	my ($p, $s, $waiter) = (zk_session($main), zk_session($standby), zk_session($standby, dbname => 'doomed'));
	is($s->value(q{SELECT pg_is_in_recovery(), zk_lock('/standby')}), 't|t', 'a lock on a hot standby');
	is($p->value(q{SELECT zk_try_lock('/standby')}), 'f', '- excludes the primary');
	is($s->value(q{BEGIN; SELECT zk_xact_lock('/standby/xact')}), 't', '- in both scopes');
	is($p->value(q{SELECT zk_try_lock('/standby/xact')}), 'f', '- which exclude');
	$s->value('ROLLBACK');
	is($p->value(q{SELECT zk_lock('/standby/xact')}), 't', '- until the end of the transaction');
	is($s->value(q{SELECT zk_try_lock('/standby/xact')}), 'f', 'a lock of the primary excludes the standby');

	$waiter->send(q{CALL zk_acquire('/standby')});
	zk_wait_queued($zk, $waiter);
	$p->value('DROP DATABASE doomed');
	my $r = $waiter->wait;
	ok($r->{closed}, 'a conflict with recovery ends a wait on the standby');
	ok(zk_until(sub { contenders('/standby') == 2 }, 'its node to go'), '- and leaves no node');    # the other one is the directory xact

	is($s->value(q{SELECT zk_claim('/claimed', 'epoch')}), 't', 'a claim on a hot standby');
	is($p->value(q{SELECT zk_claim('/claimed', 'epoch')}), 'f', '- is made once');
	zk_until(sub { $p->value(q{SELECT state FROM zk_last_claim('/claimed')}) eq 'done' }, 'the claim to be done');
	is($p->value(q{SELECT transaction_id IS NULL FROM zk_last_claim('/claimed')}), 't', '- by no transaction of that server');

	my $token = $s->value(q{SELECT zk_lock_token('/standby')});
	$standby->promote;
	is($s->value(q{SELECT pg_is_in_recovery(), zk_lock_token('/standby'), state FROM zk_locks}), "f|$token|held",
		'promotion keeps the lock');
	is($p->value(q{SELECT zk_try_lock('/standby')}), 'f', '- against the old primary');
	is($s->query(q{BEGIN; CREATE TABLE promoted (); COMMIT})->{state}, '', '- and the new one writes under it');
	$p->send(q{SELECT zk_lock('/standby')});
	zk_wait_queued($zk, $p);
	$s->value(q{SELECT zk_unlock('/standby')});
	is($p->wait->{out}, 't', '- and hands it over');
	$_->quit for $p, $s, $waiter;
	$standby->stop;
};

#
# A crash: one backend is killed, and with it all others of its cluster
#
foreach my $crash ('kill -9 of a backend', 'immediate stop')
{
	my @s = map { zk_session($main, options => '-c zklock.session_timeout=6s') } 1 .. 3;
	my $next = zk_session($other);
	$s[0]->value(q{SELECT zk_lock('/crash')});
	$s[1]->value(q{BEGIN; SELECT zk_xact_lock('/crash/xact')});
	$s[2]->send(q{CALL zk_acquire('/crash')});
	zk_wait_queued($zk, $s[2]);

	my $start = time;
	if ($crash eq 'immediate stop') { $main->stop('immediate'); $main->start; }
	else { zk_kill($main, $s[2]->pid); }
	$s[2]->wait;
	my $new = zk_session($main);
	is($new->value(q{SELECT zk_lock('/crash/new')}), 't', "$crash: new sessions lock at once");
	is($next->value(q{SELECT zk_lock('/crash'), zk_lock('/crash/xact')}), 't|t',
		"$crash: what was held or waited for is free when its session has timed out");
	my $took = time - $start;
	cmp_ok($took, '>', 3, '- not at once');
	in_time($took, 14, '- but soon after');
	$admin->quit;
	$admin = zk_session($main);
}

$main->stop;    # one of its backends was killed
zk_end($zk, $other);
