# Claims: a period is one transaction's, whatever fails between the mark and the
# commit, or gets lost, and the next in the queue gets what was not committed.
# (sql/claims.sql has what one session sees.)

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

use Claims;
use Cost;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster(
	'main', $zk,
	'zklock.session_timeout' => '30s',
	wal_level => 'replica',
	max_wal_senders => 2);
my $other = zk_cluster('other', $zk, 'zklock.session_timeout' => '30s');
my $admin = zk_session($node);
my $elsewhere = zk_session($other);
claims_are_read_by($elsewhere);
my $MARKS = '/zklock/__zklock_claims__';

$admin->value('CREATE TABLE t (who text); CREATE TABLE pair (i int PRIMARY KEY, v int); INSERT INTO pair VALUES (1, 0), (2, 0);
	CREATE TABLE remote (i int UNIQUE DEFERRABLE INITIALLY DEFERRED)');
zk_foreign_server($node, loopback => $node);
$admin->value(q{CREATE FOREIGN TABLE there (i int) SERVER loopback OPTIONS (table_name 'remote')});

# -------------------------------------------------------------------- the costs

subtest 'what a claim costs' => sub {
	foreach my $guard (qw(off on strict))
	{
		my ($s, $proxy) = zk_counted_session($node, $zk, 30, commit_guard => $guard, release_timeout => '1s');
		my %first = cost($zk, $s, $proxy, 'BEGIN; ' . claim("/cost/$guard", 1));
		like($first{requests}, qr/ getData exists create2\*\d getData exists$/, "$guard: the first one makes the mark");
		$s->value('COMMIT');
		my %cost = cost($zk, $s, $proxy, 'BEGIN; ' . claim("/cost/$guard", 2));
		is_deeply([ @cost{qw(value requests trips)} ], [ 't', 'create2 getChildren getData exists', 2 ], "$guard: the lock, and the mark");
		%cost = cost($zk, $s, $proxy, 'COMMIT');
		is_deeply([ @cost{qw(requests trips transactions)} ], [ 'multi*2', 2, 2 ], "$guard: COMMIT: the mark, and the release with it");
		is(join('|', map { $_->[7] =~ s/[^ ,]*\///gr =~ s/_c_\S+?(?=,|$)/node/gr } grep { $_->[1] eq '>' && $_->[2] eq 'multi' } $proxy->log),
			"check node,setData $guard|setData $guard,delete node", "$guard: in this order");
		%cost = cost($zk, $s, $proxy, 'BEGIN; ' . claim("/cost/$guard", 2));
		is($cost{value}, 'f', "$guard: claimed already");
		is($cost{requests}, 'create2 getChildren getData exists delete', "$guard: the lock is given back at once");
		is($s->value('SELECT count(*) FROM zk_locks'), 0, "$guard: nothing is held");
		$s->value('COMMIT');
		$s->value('BEGIN; ' . claim("/cost/$guard", 3) . "; SELECT zk_xact_lock('/cost/beside')");
		%cost = cost($zk, $s, $proxy, 'COMMIT');
		is($cost{requests} =~ s/.* (?=multi delete|delete multi)//r =~ s/delete multi/multi delete/r,
			'multi delete', "$guard: another lock is given back as ever");
		is(scalar(() = $cost{requests} =~ /multi/g) + ($cost{requests} =~ /multi\*(\d)/ ? $1 - 1 : 0),
			$guard eq 'strict' ? 3 : 2, "$guard: and asked for as ever");
		$s->quit;
	}
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, release_timeout => '1s');
	$s->value("BEGIN; SELECT bool_and(zk_claim('/cost/many/' || i, to_timestamp(0))) FROM generate_series(1, 5) i");
	my %cost = cost($zk, $s, $proxy, 'COMMIT');
	is_deeply([ @cost{qw(requests transactions)} ], [ 'multi*6', 6 ], 'five claims: one request marks them all');
	is($s->value("SELECT string_agg(state, ' ') FROM generate_series(1, 5) i, zk_last_claim('/cost/many/' || i)"),
		'done done done done done', 'all are done');
	$s->quit;
};

# -------------------------------------------------------------------- taking turns

subtest 'the next in the queue' => sub {
	my ($s, $w) = (zk_session($node), zk_session($other));
	$s->value('BEGIN; ' . claim('/turn', 1));
	$w->send(claim('/turn', 1));
	zk_wait_queued($zk, $w);
	$s->value('COMMIT');
	is($w->wait->{out}, 'f', 'does not get a period that was committed');
	$s->value('BEGIN; ' . claim('/turn', 2));
	$w->send(claim('/turn', 2));
	zk_wait_queued($zk, $w);
	$s->value('ROLLBACK');
	is($w->wait->{out}, 't', 'gets one that was rolled back');
	await_claim('/turn', '2 done', 'and it is done');
	$s->value('BEGIN; ' . claim('/turn', 3));
	is($w->value(claim('/turn', 3, '0')), 'f', 'who does not wait gets false');
	is($w->value(claim('/turn', 3, '2s')), 'f', '- and when the time is over');
	await_claim('/turn', '2 done', 'nothing is written before the commit');
	$s->value('COMMIT');
	await_claim('/turn', '3 done', 'then it is');
	$_->quit for $s, $w;
};

# ---------------------------------------------------- failing after the mark is written

# A transaction that fails so has written its mark and taken it back, both with the
# next in the queue waiting
sub fails_late
{
	my ($name, $path, $begin, $before, $state) = @_;
	subtest $name => sub {
		my ($s, $proxy) = zk_counted_session($node, $zk, 0);
		my $w = zk_session($other);
		$s->value(claim($path, 1));
		$s->value("$begin; " . claim($path, 2));
		$before->($s);
		$w->send(claim($path, 2));
		zk_wait_queued($zk, $w);
		$proxy->clear_log;
		is($s->query('COMMIT')->{state}, $state, 'COMMIT fails');
		is($w->wait->{out}, 't', 'the period is the next one\'s');
		is(join('|', map { join ',', $_->[7] =~ /(\w+) \// ? $_->[7] =~ /(\w+) \//g : () } grep { $_->[1] eq '>' && $_->[2] eq 'multi' } $proxy->log),
			'check,setData|setData,delete', 'the mark was written, and taken back with the lock');
		await_claim($path, '2 done', 'it is done');
		is($s->value(claim($path, 3)), 't', 'the session is usable');
		$_->quit for $s, $w;
	};
	return;
}

fails_late('a remote server that fails', '/late/remote', 'BEGIN', sub { $_[0]->value('INSERT INTO there VALUES (1), (1)') }, '23505');

{
	my $rival = zk_session($node);
	fails_late(
		'a serialization failure',
		'/late/serializable',
		'BEGIN ISOLATION LEVEL SERIALIZABLE',
		sub {
			my ($s) = @_;
			$rival->value('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM pair WHERE i = 2');
			$s->value('SELECT v FROM pair WHERE i = 1; UPDATE pair SET v = v + 1 WHERE i = 2');
			$rival->value('UPDATE pair SET v = v + 1 WHERE i = 1; COMMIT');
		},
		'40001');
	$rival->quit;
}

# -------------------------------------------------------------------- ends of sessions

subtest 'disconnected right after' => sub {
	foreach my $n (1 .. 10)
	{
		my $result = $node->safe_psql('postgres', claim('/gone', $n));
		# the backend may not be gone when its client is
		return fail("$n: $result") if $result ne 't' || !await_claim('/gone', "$n done", "claim $n is done");
	}
	my $s = zk_session($node);
	$s->value('BEGIN; ' . claim('/gone', 11));
	$admin->value('SELECT pg_terminate_backend(' . $s->pid . ')');
	zk_until(sub { last_claim('/gone') eq '10 done' && !zk_locks_left($zk) }, 'the terminated one to be gone');
	is($elsewhere->value(claim('/gone', 11)), 't', 'terminated before the commit: not claimed');
	$s->kill9;
};

subtest 'the node stays, and is given back before the mark is settled' => sub {
	foreach my $way (q{SELECT zk_unlock('/held')}, 'SELECT zk_unlock_all()', 'DISCARD ALL')
	{
		my ($s, $proxy) = zk_counted_session($node, $zk, 0);
		$s->value(q{SELECT zk_lock('/held'); } . claim('/held', 1) . '; BEGIN; INSERT INTO there VALUES (1), (1); ' . claim('/held', 2));
		$proxy->hold('setData');
		is($s->query('COMMIT')->{state}, '23505', 'COMMIT fails late');
		$proxy->wait_held;
		$proxy->clear_log;
		$s->send($way);
		zk_wait_waiting($admin, $s);
		is(scalar($proxy->requests), 0, "the lock is not given up before the mark is: $way");
		$proxy->release;
		is($s->wait->{state}, '', 'then it is');
		is(join(' ', map { (split / /)[0] } $proxy->requests), 'delete', 'alone');
		await_claim('/held', '1 done', 'the mark is taken back');
		is($elsewhere->value(claim('/held', 2)), 't', 'and the period to be had');
		$admin->value(q{SELECT zk_claim_forget('/held')});
		$s->quit;
	}
	zk_nothing_left($zk, 'nothing is left');
};

# A crash between the mark and the commit: nobody can tell, so it stays pending
subtest 'killed between mark and commit' => sub {
	my $crash = zk_cluster('crash', $zk, 'zklock.session_timeout' => '8s', restart_after_crash => 'on');
	my $proxy = ZkProxy->new($zk);
	my $s = zk_session_with($crash, hosts => $proxy);
	$s->value("CREATE TABLE t (i int); " . claim('/crash', 1) . '; BEGIN; INSERT INTO t VALUES (1); ' . claim('/crash', 2));
	my $xid = $s->value('SELECT pg_current_xact_id_if_assigned()');
	$proxy->hold('mark');
	$s->send('COMMIT');
	$proxy->wait_held;
	is(last_claim('/crash'), '2 pending', 'the mark is written');
	zk_kill($crash, $s->pid);
	$s->wait;
	zk_until(sub { !zk_locks_left($zk) }, 'the lock to be free');
	is(last_claim('/crash'), '2 pending', 'and stays pending');
	is($admin->value(q{SELECT string_agg(path, ' ') FROM zk_claims() WHERE state = 'pending'}), '/crash', '- and zk_claims shows it');
	my $c = zk_session($crash);
	is($c->value("SELECT transaction_id = '$xid' AND system_identifier = (SELECT system_identifier FROM pg_control_system()) FROM zk_last_claim('/crash')"),
		't', 'it says whose it was');
	is($c->value("SELECT pg_xact_status(transaction_id) FROM zk_last_claim('/crash')"), 'aborted', 'which was aborted');
	is($c->value(claim('/crash', 2)), 'f', 'nobody gets the period');
	is($c->value(claim('/crash', 3)), 't', 'but the next');
	$_->quit for $c;
	$s->kill9;
	$crash->stop;
};

# -------------------------------------------------------------------- interference

subtest 'canceled at COMMIT' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	$s->value(claim('/cancel', 1) . '; BEGIN; ' . claim('/cancel', 2));
	$proxy->hold('mark');
	$s->send('COMMIT');
	$proxy->wait_held;
	is($s->cancel($admin)->{state}, '57014', 'it can be');
	is(last_claim('/cancel'), '2 pending', 'the mark is there');
	$proxy->release;
	await_claim('/cancel', '1 done', 'and is taken back');
	is($s->value(claim('/cancel', 2)), 't', 'the next try has it');
	$s->quit;
};

subtest 'ZooKeeper refuses to take the mark back' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '12s', operation_timeout => '3s');
	my $hand = $zk->client;
	$s->value(claim('/refused', 1) . '; BEGIN; ' . claim('/refused', 2));
	$proxy->hold('mark');
	$s->send('COMMIT');
	$proxy->wait_held;
	$hand->set_acl("$MARKS/refused", [ [ 17, 'world', 'anyone' ] ]);
	$s->cancel($admin);
	$proxy->release;
	zk_until(sub { $s->value('SELECT unreleased FROM zk_session') == 1 }, 'it to be refused');
	is($s->query(claim('/refused', 2))->{state}, '58030', 'the same session does not take its own mark for another\'s');
	is($elsewhere->value(claim('/refused', 2, '0')), 'f', 'the lock is not given up');
	$hand->set_acl("$MARKS/refused", [ [ 31, 'world', 'anyone' ] ]);
	await_claim('/refused', '1 done', 'when it may, it does');
	is($s->value(claim('/refused', 2)), 't', '- and goes on');
	$s->quit;
	$hand->close;
	zk_nothing_left($zk, 'nothing is left');
};

subtest 'something else happens to the mark or to the node' => sub {
	my $s = zk_session($node);
	my $hand = $zk->client;

	$s->value(claim('/hand', 1) . '; BEGIN; ' . claim('/hand', 2));
	$hand->delete_contenders('/zklock/hand');
	is($s->query('COMMIT')->{state}, '40001', 'the node is deleted: COMMIT fails');
	await_claim('/hand', '1 done', 'and has not claimed');

	foreach my $guard (qw(off strict))
	{
		$s->value("SET zklock.commit_guard = $guard; BEGIN; " . claim('/hand', 2));
		$hand->delete("$MARKS/hand");
		is($s->query('COMMIT')->{state}, '40001', "the mark is deleted: COMMIT fails (guard $guard)");
		is(last_claim('/hand'), '', 'there is none');
		is($s->value(claim('/hand', 1)), 't', 'it can be claimed anew');
		$s->value("BEGIN; " . claim('/hand', 2));
		$hand->delete_contenders('/zklock/hand');
		is($s->query('COMMIT')->{state}, '40001', "the node is deleted: COMMIT fails (guard $guard)");
	}

	$s->value('BEGIN; ' . claim('/hand', 2));
	$hand->set("$MARKS/hand", scalar $hand->get("$MARKS/hand"));
	is($s->query('COMMIT')->{state}, '40001', 'the mark is written: COMMIT fails');
	is(last_claim('/hand'), '1 done', '- whatever that was');

	foreach my $junk ('x', "zklock\n", 'zklock claim 1' . "\n", "\0" x 3000, $hand->get("$MARKS/hand") =~ s/period /period 0/r,
		$hand->get("$MARKS/hand") =~ s/period \S+/period 9223372036854775807/r, $hand->get("$MARKS/hand") =~ s/claim 1/claim 2/r)
	{
		$hand->set("$MARKS/hand", $junk);
		my $result = $s->query(claim('/hand', 9));
		is($result->{state}, '55000', 'junk is not believed: ' . substr($junk, 0, 40) =~ s/[^\w ]/./gr);
		like($result->{hint}, qr/zk_claim_forget/, '- and the hint tells what to do');
		is($s->query("SELECT * FROM zk_last_claim('/hand')")->{state}, '55000', '- nor shown');
		is($s->value("SELECT path FROM zk_claims('/hand') AS c WHERE num_nulls(period, state, since, host, datname, system_identifier, transaction_id) = 7"),
			'/hand', '- but for its path');
		is($s->value('SELECT count(*) FROM zk_locks'), 0, '- nothing is held');
		is($s->value("SELECT zk_claim_forget('/hand')"), 't', 'forgotten');
		is($s->value(claim('/hand', 1)), 't', 'then it works');
	}
	# a mark that would go with somebody's session
	$hand->create("$MARKS/fleeting", mode => 'ephemeral');
	is($s->query(claim('/fleeting', 1))->{state}, '55000', 'no mark is made of an ephemeral node');
	$hand->delete("$MARKS/fleeting");
	is($s->value(claim('/fleeting', 1)), 't', '- but when that is gone');
	$s->quit;
	$hand->close;
};

# A mark that was not answered, and one that somebody has made anew
subtest 'another mark of the same version' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	my ($hand, $mark) = ($zk->client, "$MARKS/anew");
	$s->value(claim('/anew', 1) . '; BEGIN; ' . claim('/anew', 2));
	my $version = $hand->exists($mark)->{version};
	$proxy->drop_request('mark');
	$proxy->refuse;    # new connections
	is($s->query('COMMIT')->{state}, '40001', 'no mark, and no answer');
	$hand->delete($mark);
	$hand->create($mark);
	$hand->set($mark, 'anew') for 1 .. $version;
	$proxy->reset;
	$proxy->pass;
	zk_until(sub { !zk_locks_left($zk) }, 'the lock to be free');
	is($hand->get($mark), 'anew', 'is left alone');
	$hand->delete($mark);
	$hand->close;
	$s->quit;
};

# Who reads the mark when his node is gone may read one that is taken back
subtest 'the lock is lost before the mark is read' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	my $hand = $zk->client;
	$s->value(claim('/early', 1));
	$proxy->hold_request('getData');
	$s->send(claim('/early', 1));
	$proxy->wait_held;
	$hand->delete_contenders('/zklock/early');
	$proxy->release;
	is($s->wait->{state}, '55000', 'an error, and not false');
	$s->quit;
	$hand->close;
};

# -------------------------------------------------------------------- lost answers

{
	# a session that is over does not settle its mark
	my $quick = zk_cluster('quick', $zk, 'zklock.session_timeout' => '12s', 'zklock.operation_timeout' => '60s');
	my $proxy = ZkProxy->new($zk);

	# Only for COMMIT: what comes behind it waits for the heartbeat by whose answer the
	# session learns that another one was swallowed
	my $BRIEFLY = q{SET LOCAL zklock.operation_timeout = '3s'};

	my $s = zk_session_with($quick, hosts => $proxy);
	foreach my $way (@ZkProxy::WAYS)
	{
		# where the node stays, the mark is settled by a request of another kind, but no way of its own
		foreach my $before ('', $way =~ /^swallowed and/ ? q{SELECT zk_lock('/lost'); } : ())
		{
			subtest "the mark's answer is lost: $way" . ($before ? '; the node stays' : '') => sub {
				$s->value($before . claim('/lost', 1) . '; BEGIN; ' . claim('/lost', 2) . "; $BRIEFLY");
				$proxy->clear_log;
				$proxy->lose($way, 'mark');
				my $state = $s->query('COMMIT')->{state};
				is($state, '40001', 'in doubt COMMIT fails');
				$proxy->reset;
				await_claim('/lost', '1 done', 'and the mark is taken back');
				is($s->value(($before ? q{SELECT zk_unlock('/lost'); } : '') . claim('/lost', 2)) =~ s/.*\n//r, 't', 'the same session has it then');
				await_claim('/lost', '2 done', 'and it is done');
				$s->value(q{SELECT zk_claim_forget('/lost')});
				zk_nothing_left($zk, 'nothing is left');
			};

			foreach my $end (qw(COMMIT ROLLBACK))
			{
				subtest "the release's answer is lost, $end: $way" . ($before ? '; the node stays' : '') => sub {
					$s->value($before . claim('/lost', 1) . '; BEGIN; ' . claim('/lost', 2));
					$proxy->clear_log;
					$proxy->lose($way, $before ? 'setData' : $end eq 'COMMIT' ? 'settle' : 'delete');
					is($s->query($end)->{state}, '', "$end succeeds");
					$proxy->wait_lost($way) if $end eq 'COMMIT';
					$proxy->reset;
					await_claim('/lost', $end eq 'COMMIT' ? '2 done' : '1 done', 'the mark is settled');
					is($s->value(claim('/lost', 2)), $end eq 'COMMIT' ? 'f' : 't', 'the same session knows');
					$s->value(q{SELECT zk_unlock_all(); SELECT zk_claim_forget('/lost')});
					zk_nothing_left($zk, 'nothing is left');
				};
			}
		}
	}
	$s->quit;

	# The session expires before the mark is settled: the next one does it
	foreach my $end (qw(committed failed))
	{
		subtest "the session ends before the mark is settled: $end" => sub {
			my $s = zk_session_with($quick, hosts => $proxy);
			$s->value('CREATE TABLE IF NOT EXISTS fail (i int UNIQUE DEFERRABLE INITIALLY DEFERRED)');
			$s->value(claim('/over', 1) . '; BEGIN; ' . claim('/over', 2) . "; $BRIEFLY");
			my $id = $s->value('SELECT session_id FROM zk_session');
			if ($end eq 'committed')
			{
				$proxy->drop_request('settle');
				$proxy->refuse;    # new connections
				is($s->query('COMMIT')->{state}, '', 'COMMIT succeeds');
			}
			else
			{
				$proxy->hold('mark');
				$s->send('COMMIT');
				$proxy->wait_held;
				$proxy->cut_off;
				is($s->wait->{state}, '40001', 'COMMIT fails');
			}
			is(last_claim('/over'), '2 pending', 'the mark is pending');
			$zk->end_session($id);
			zk_until(sub { !zk_locks_left($zk) }, 'the lock to be free');
			is(last_claim('/over'), '2 pending', 'still, when the lock is free');
			$proxy->reset;
			$proxy->pass;
			is($s->value(claim('/over', 2)), $end eq 'committed' ? 'f' : 't', 'its next session settles it, before it claims');
			await_claim('/over', '2 done', 'so it is done');
			$s->value(q{SELECT zk_claim_forget('/over')});
			$s->quit;
			zk_nothing_left($zk, 'nothing is left');
		};
	}
	$quick->stop;
}

# -------------------------------------------------------------------- a commit that hangs

# After a whole session timeout without a word the lock counts as lost, and its node
# is to go; but not before it is known what becomes of the mark.
subtest 'an outage while COMMIT waits for a synchronous standby' => sub {
	my $hangs = zk_cluster(
		'hangs', $zk,
		shared_preload_libraries => 'zklock',
		'zklock.session_timeout' => '20s',    # in which it must be back after the restart
		wal_level => 'replica',
		max_wal_senders => 2);
	my $watch = zk_session($hangs);
	my $s = zk_session($hangs);
	my $of_s = sub { $watch->value("SELECT string_agg(concat_ws(' ', state, session_state), ',') FROM zk_server_locks WHERE pid = " . $s->pid) };

	$s->value('CREATE TABLE t (i int); ' . claim('/hangs', 1));
	zk_commits_hang($hangs, $watch);
	$s->value('BEGIN; INSERT INTO t VALUES (1); ' . claim('/hangs', 2));
	$s->send('COMMIT');
	zk_until(sub { $watch->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $s->pid) eq 'SyncRep' }, 'COMMIT to hang');
	is(last_claim('/hangs'), '2 pending', 'the mark is pending');
	$zk->stop;
	zk_until(sub { $of_s->() =~ /^lost/ }, 'the lock to be lost');
	$zk->start;
	zk_until(sub { $of_s->() eq 'lost connected' }, 'the session to be back');
	zk_until(sub { $elsewhere->query('SELECT zk_last_claim(\'/hangs\')')->{state} eq '' }, 'another session to be back');
	is(last_claim('/hangs'), '2 pending', 'it still is');
	is(scalar(zk_locks_left($zk)), 1, 'and the node is there');
	$watch->value('SELECT pg_cancel_backend(' . $s->pid . ')');
	is($s->wait->{state}, '', 'the commit goes on');
	await_claim('/hangs', '2 done', 'and the mark is done');
	zk_until(sub { !zk_locks_left($zk) }, 'the node to go');
	is($elsewhere->value(claim('/hangs', 2)), 'f', 'nobody else has the period');
	$_->quit for $s, $watch;
	$hangs->stop;
};

# Behind all that look at the whole tree
subtest 'very many' => sub {
	my $s = zk_session($node);
	my $many = sub { "SELECT bool_and(zk_claim('/many/' || i, to_timestamp(0))) FROM generate_series(1, $_[0]) i" };
	is($s->query('BEGIN; ' . $many->(501))->{state}, '54000', 'more than fit are refused when they are claimed');
	$s->value('ROLLBACK');
	is($s->value(q{SELECT count(*) FROM zk_claims('/many') WHERE period IS NOT NULL}), 0, '- all of them');
	is($s->value('BEGIN; ' . $many->(500) . '; COMMIT'), 't', 'those that fit commit');
	is($s->value(q{SELECT count(*) FROM zk_claims('/many') WHERE state = 'done'}), 500, 'and are done');
	$s->quit;
};

# -------------------------------------------------------------------- a standby

subtest 'on a standby' => sub {
	$node->backup('backup');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'backup', has_streaming => 1);
	$standby->start;
	my $s = zk_session($standby);
	is($s->value(claim('/standby', 1)), 't', 'a claim');
	is($s->value(claim('/standby', 1)), 'f', 'is made once');
	await_claim('/standby', '1 done', 'and done');
	is($elsewhere->value("SELECT transaction_id IS NULL FROM zk_last_claim('/standby')"), 't', 'by no transaction of that server');
	$s->quit;
	$standby->stop;
};

$_->quit for $admin, $elsewhere;

# Sessions that ended during the outage, as they had nothing to give back, expire a
# session timeout after ZooKeeper's return
zk_nothing_left($zk, 'nothing is left', sessions => 1, timeout => 60);
zk_no_crash($_) for $node, $other;
done_testing();
