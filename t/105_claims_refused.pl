# Claims in a place where they are rarely made, and marks that ZooKeeper refuses:
# what is told, and that the lock does not stay.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Claims;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new(config => { enforceQuota => 'true' })->start;
my $node = zk_cluster('main', $zk, session_preload_libraries => '');
my $elsewhere = zk_session($node);
claims_are_read_by($elsewhere);

# ---------------------------------------------------- in another extension's callback

# PostgreSQL is then in the middle of its list of callbacks at COMMIT, the latest of
# which comes first.
my $late = zk_library('late');
subtest 'claims while COMMIT is under way' => sub {
	$elsewhere->value("CREATE FUNCTION late(text) RETURNS void LANGUAGE c AS '$late'; CREATE TABLE t (i int)");

	foreach my $other ('', q{SELECT zk_lock('/late/other'); })
	{
		my $path = '/late/' . ($other ? 'judged' : 'claimed');
		my $s = zk_session($node);
		$s->value(q{LOAD 'zklock'; SELECT late('')});
		foreach my $n (1, 2)
		{
			my $result = $s->query("BEGIN; ${other}INSERT INTO t VALUES (1); SELECT late(\$\$" . claim($path, $n) . '$$); COMMIT');
			is($result->{state}, '', "it commits, $path $n") or diag $result->{err};
			await_claim($path, "$n done", 'and the claim has its mark');
			is($elsewhere->value(claim($path, $n)), 'f', '- so nobody else gets it');
		}
		$s->value('SELECT zk_unlock_all()');
		$s->quit;
	}

	# behind us, nothing would write the mark
	my $s = zk_session($node);
	$s->value(q{SELECT late(''); LOAD 'zklock'});
	foreach my $n (1, 2)
	{
		my $result = $s->query('BEGIN; INSERT INTO t VALUES (2); SELECT late($$' . claim('/late/after', $n) . '$$); COMMIT');
		is($result->{state}, '55000', "behind the last of our callbacks it is refused: $n");
		$s->value(q{SELECT late('')});
		is($s->value(claim('/late/after', $n)), 't', 'the period is not claimed, and the session is usable');
	}
	$s->quit;
	is($elsewhere->value('SELECT count(*) FROM t WHERE i = 2'), 0, 'nothing was committed');
	zk_nothing_left($zk, 'nothing is left', sessions => 1);
};

# The callback notifies, which makes the guard judge once more.
subtest 'COMMIT is judged twice, and drops the extension' => sub {
	my $database = 'dropped';
	$elsewhere->value("CREATE DATABASE $database");
	my $s = zk_session($node, dbname => $database);
	$s->value("CREATE EXTENSION zklock; CREATE FUNCTION late(text) RETURNS void LANGUAGE c AS '$late'");
	$s->value(q{LOAD 'zklock'; SELECT count(zk_lock('/dropped/' || i)) FROM generate_series(1, 50) i});
	$s->value(q{SELECT late('')});    # between two callbacks of ours
	my $result = $s->query(q{BEGIN; SELECT zk_xact_lock('/dropped'); SELECT late('NOTIFY a'); DROP EXTENSION zklock; COMMIT});
	is($result->{state}, '', 'it commits') or diag $result->{err};
	is(scalar(() = $result->{err} =~ /releasing all ZooKeeper locks/g), 1, '- and says once what it releases');
	zk_until(sub { !zk_locks_left($zk) }, 'the locks to be free');
	is($s->value('SELECT 1'), 1, 'the session goes on');
	$s->quit;
	$elsewhere->value("DROP DATABASE $database");
	zk_no_crash($node);
};

# A loss is logged in the middle of a call that has got the rest.
subtest 'an error while a call that has got a lock tells of the loss of another' => sub {
	$elsewhere->value(qq{LOAD 'zklock'; CREATE FUNCTION fail_at(text) RETURNS void LANGUAGE c AS '$late'; SELECT zk_lock('/logged/b')});
	my $s = zk_session_with($node, cancel_on_loss => 'off', session_timeout => '60s');
	$s->value(q{LOAD 'zklock'; SELECT zk_lock('/logged/a'), fail_at('the lock on "/logged/a" was lost')});
	$s->send(q{SELECT zk_lock_many(ARRAY['/logged/a', '/logged/b'])});
	zk_wait_queued($zk, $s);
	zk_until(sub { $zk->four_letter('wchp') =~ m{^/zklock/logged/a/}m }, 'the other to be watched');
	$zk->with_client(sub { $_[0]->delete_contenders('/zklock/logged/a') });
	$elsewhere->value(q{SELECT zk_unlock('/logged/b')});
	my $result = $s->wait;
	is($result->{message}, 'could not log this', 'the call fails') or diag $result->{err};
	is($elsewhere->value(q{SELECT zk_lock('/logged/b', '20s')}), 't', 'and the lock that it had got is free');
	$elsewhere->value('SELECT zk_unlock_all()');
	$s->query('SELECT zk_unlock_all()');
	$s->quit;
};

# ------------------------------------------------------------------ ZooKeeper's quota

$elsewhere->value(q{LOAD 'zklock'});
my $hand = $zk->client;

# A quota of the mark alone, which is exceeded already, or not
sub limit
{
	my ($path, $exceeded) = @_;
	my $quota = "/zookeeper/quota/zklock/__zklock_claims__$path";
	my $limits = sprintf 'count=-1,bytes=-1=;byteHardLimit=%d;countHardLimit=-1', $exceeded ? 1 : -1;
	return $hand->set("$quota/zookeeper_limits", $limits) if grep { $_ eq 'zookeeper_limits' } eval { $hand->children($quota) };
	my $made = '/zookeeper/quota';
	foreach my $part (split m{/}, "zklock/__zklock_claims__$path")
	{
		$made .= "/$part";
		eval { $hand->create($made) };
	}
	$hand->create("$quota/zookeeper_stats", data => 'count=1,bytes=1000');
	$hand->create("$quota/zookeeper_limits", data => $limits);
	return;
}

# A session that has claimed 1 and, in a transaction, 2.  It tries again at each heartbeat.
sub claimer
{
	my ($path) = @_;
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '20s', operation_timeout => '60s');
	$s->value(claim($path, 1));
	$s->value('BEGIN; INSERT INTO t VALUES (3); ' . claim($path, 2));
	return ($s, $proxy);
}

subtest 'a quota is exceeded: the mark cannot be written' => sub {
	my ($s) = claimer('/quota/write');
	limit('/quota/write', 1);
	my $result = $s->query('COMMIT');
	is($result->{state}, '53400', 'COMMIT fails') or diag $result->{err};
	like($result->{message}, qr{"/quota/write" would exceed a ZooKeeper quota}, '- and says why');
	zk_until(sub { !zk_locks_left($zk) }, 'the lock to be free');
	is(last_claim('/quota/write'), '1 done', 'nothing is claimed');
	limit('/quota/write', 0);
	is($s->value(claim('/quota/write', 2)), 't', 'it can be when there is room');
	$s->quit;
};

# The lock goes with its mark or, if that must stay pending, with the session.
foreach my $end (qw(undone done))
{
	my $path = "/quota/$end";
	my $settled = $end eq 'done' ? '2 done' : '1 done';

	subtest "a quota is exceeded: the mark cannot be made $end" => sub {
		foreach my $remedy ('there is room again', 'the backend ends')
		{
			my ($s, $proxy) = claimer($path);
			$proxy->hold('mark');
			$s->send('COMMIT');
			$proxy->wait_held;
			limit($path, 1);
			is($s->cancel($elsewhere)->{state}, '57014', 'COMMIT is canceled') if $end eq 'undone';
			$proxy->release;
			is($s->wait->{state}, '', 'COMMIT succeeds') if $end eq 'done';
			zk_until(sub { $s->value('SELECT unreleased FROM zk_session') == 1 }, 'it to be refused');
			is($elsewhere->value(claim($path, 2, '0')), 'f', 'nobody gets the lock');
			is(join('|', @{ $s->query(q{SELECT zk_lock('/quota/next'), zk_unlock('/quota/next')})->{warnings} }),
				'ZooKeeper refused the release of a lock: quota exceeded', 'the next call warns of it');
			is(last_claim($path), '2 pending', 'the mark is pending');
			if ($remedy eq 'the backend ends')
			{
				$s->quit;
				zk_until(sub { !zk_locks_left($zk) }, 'the lock to be free');
				is(last_claim($path), '2 pending', "$remedy: and stays so");
			}
			limit($path, 0);
			next if $remedy eq 'the backend ends';
			await_claim($path, $settled, "$remedy: then it is settled");
			zk_until(sub { !zk_locks_left($zk) }, 'the lock to be free');
			$s->quit;
			$elsewhere->value("SELECT zk_claim_forget('$path')");
		}
	};
}

# The mark is written, no answer comes, and the session is ended
sub leave_pending
{
	my ($s, $proxy) = @_;
	my $id = $s->value('SELECT session_id FROM zk_session');
	$s->value(q{SET LOCAL zklock.operation_timeout = '3s'});    # for COMMIT
	$proxy->hold('mark');
	$s->send('COMMIT');
	$proxy->wait_held;
	$proxy->cut_off;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($s->wait->{state}, '40001', 'COMMIT fails');
	$zk->end_session($id);
	return;
}

# The next session settles what the one before it left, and no lock waits for it
subtest 'a quota is exceeded, and the session is over' => sub {
	my $path = '/quota/over';
	my ($s, $proxy) = claimer($path);
	my $end_of_log = -s $node->logfile;
	leave_pending($s, $proxy);
	zk_until(sub { !zk_locks_left($zk) }, 'the lock to be free');
	limit($path, 1);
	$proxy->reset;
	$proxy->pass;
	my $told;
	zk_until(sub {
		$s->query(q{SELECT zk_lock('/quota/next'), zk_unlock('/quota/next')});
		($told) = substr(slurp_file($node->logfile), $end_of_log) =~ /LOG:  could not record the outcome (.*\n.*)/;
	}, 'it to be told');
	like($told, qr{of a claim: quota exceeded\n.* Node "/zklock/__zklock_claims__$path" still shows the claim as pending}, 'it is told in the log');
	is(last_claim($path), '2 pending', 'as it is');
	limit($path, 0);
	is($s->value("SELECT zk_claim_forget('$path'); " . claim($path, 2)) =~ s/\n//r, 'tt', 'the session is usable');
	$s->quit;
};

# As doc/reference.md says
subtest 'a later claim was there, and is undone' => sub {
	my $path = '/later';
	my ($s, $proxy) = claimer($path);
	my ($later, $its_proxy) = zk_counted_session($node, $zk, 0, session_timeout => '60s', operation_timeout => '60s');
	leave_pending($s, $proxy);
	$later->value('BEGIN; ' . claim($path, 3));
	$its_proxy->hold('mark');
	$later->send('COMMIT');
	$its_proxy->wait_held;
	is(last_claim($path), '3 pending', 'the later one is under way');
	$proxy->reset;
	$proxy->pass;
	is($s->value(q{SELECT zk_lock('/next'), zk_unlock('/next')}), 't|t', 'the first one has another session');
	is($s->query(claim($path, 2, '0'))->{out}, 'f', 'and finds it');
	is($later->cancel($elsewhere)->{state}, '57014', 'the later one is canceled');
	$its_proxy->release;
	await_claim($path, '2 pending', 'the first one is pending again');
	is($s->value(claim($path, 2)), 'f', 'and stays so');
	is(last_claim($path), '2 pending', '- after another call of its backend');
	$_->quit for $s, $later;
};

$elsewhere->quit;
zk_nothing_left($zk, 'nothing is left');
zk_no_crash($node);
done_testing();
