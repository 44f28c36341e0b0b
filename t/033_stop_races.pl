# A lock that is lost at about the time at which its transaction ends: no
# transaction that did not rely on it is canceled, in procedures neither.  And with
# zklock.cancel_on_loss = doubt, a statement has ended before another session
# holds its lock.
#
# How often: ZK_STOP_RACES (default 200) and ZK_STOP_DOUBTS (default 8).

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $races = $ENV{ZK_STOP_RACES} // 200;
my $doubts = $ENV{ZK_STOP_DOUBTS} // 8;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '4s', synchronous_commit => 'off');
my $admin = zk_session($node);

# Transactions of which the first relies on a lock.  What follows the word
# "innocent" does not.
$admin->value(q{
	CREATE TABLE t (who text);
	CREATE FUNCTION busy(ms float8, sleeps boolean) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE until timestamptz := clock_timestamp() + ms * interval '1 ms';
	BEGIN
		IF sleeps THEN PERFORM pg_sleep(ms / 1000); END IF;
		WHILE clock_timestamp() < until LOOP END LOOP;
	END $$;
	CREATE PROCEDURE takes(path text, commits boolean, ms float8, sleeps boolean) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM zk_xact_lock(path);
		INSERT INTO t VALUES ('takes');
		PERFORM busy(ms, sleeps);
		IF commits THEN COMMIT; ELSE ROLLBACK; END IF;
		RAISE NOTICE 'innocent';
		FOR i IN 1 .. 8 LOOP
			INSERT INTO t VALUES ('innocent');
			PERFORM busy(1, sleeps);
			COMMIT;
		END LOOP;
	END $$;
	CREATE PROCEDURE holds(path text, commits boolean, ms float8, sleeps boolean) LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO t VALUES ('holds');
		PERFORM busy(ms, sleeps);
		IF commits THEN COMMIT; ELSE ROLLBACK; END IF;
		RAISE NOTICE 'innocent';
		FOR i IN 1 .. 8 LOOP
			PERFORM busy(1, sleeps);
			COMMIT;
		END LOOP;
	END $$;
	CREATE PROCEDURE tries(path text, commits boolean, ms float8, sleeps boolean) LANGUAGE plpgsql AS $$
	BEGIN
		BEGIN
			PERFORM zk_xact_lock(path);
			PERFORM busy(ms, sleeps);
			RAISE EXCEPTION 'rolled back';
		EXCEPTION WHEN raise_exception THEN NULL;
		END;
		RAISE NOTICE 'innocent';
		INSERT INTO t VALUES ('tries');
		PERFORM busy(8, sleeps);
	END $$});

my @batch = (
	sub { "CALL takes(@_)" },
	sub { "CALL tries(@_)" },
	sub { "CALL holds(@_)" },
	sub {
		my ($path, $commits, $ms, $sleeps) = split / *, */, $_[0];
		my $end = $commits eq 'true' ? 'COMMIT' : 'ROLLBACK';
		my $innocent = join '; ', map { ("INSERT INTO t VALUES ('innocent')", "SELECT busy(1, $sleeps)") } 1 .. 8;
		return "BEGIN; SELECT zk_xact_lock($path), busy($ms, $sleeps); INSERT INTO t VALUES ('takes'); $end;\n\\warn innocent\n"
		  . "BEGIN; SELECT busy(1, $sleeps); COMMIT; $innocent";
	});

subtest "$races losses at the end of a transaction" => sub {
	my $s = zk_session($node);
	my (%outcome, @wrong);
	my $took = 0;    # what the end of a session has taken lately, in seconds
	for my $n (1 .. $races)
	{
		my $path = "/race/$n";
		my $kind = int rand @batch;
		$s->value($kind == 2 ? "SELECT zk_lock('$path')" : q{SELECT zk_lock('/race/warm'), zk_unlock('/race/warm')});
		my $id = $s->value('SELECT session_id FROM zk_session');
		$s->send($batch[$kind]->(sprintf q{'%s', %s, %f, %s}, $path, (rand() < 0.7 ? 'true' : 'false'), rand(60 + 2000 * $took), (rand() < 0.5 ? 'true' : 'false')));
		sleep rand 0.03;
		my $began = time;
		$zk->end_session($id);
		$took = 0.8 * $took + 0.2 * (time - $began);
		my $result = $s->wait;
		my ($before, $after) = split /innocent/, $result->{err}, 2;
		push @wrong, $result->{err} if ($after // '') =~ /ERROR|FATAL/ || $before =~ /ERROR:  (?!40001|25P02|58|55000)/;
		$outcome{ $before =~ /could not commit/ ? 'refused' : $before =~ /canceling/ ? 'stopped' : $before =~ /ERROR/ ? 'failed' : 'passed' }++;
		$s->value('ROLLBACK') if $before =~ /ERROR/ || ($after // '') =~ /ERROR/;
		$s->query('SELECT zk_unlock_all()') if $kind == 2;
	}
	is(zk_few(@wrong), '', 'no transaction was canceled that did not rely on the lock');
	note(join ', ', map { "$outcome{$_} $_" } sort keys %outcome);
	cmp_ok($outcome{$_} // 0, '>', 0, "some were $_") for qw(stopped passed);
	$s->quit;
};

subtest "$doubts statements of sessions that are cut off" => sub {
	my ($early, $all) = (0, 0);
	while ($all < $doubts)
	{
		my (@holder, @waiter);
		for my $n (1 .. ($doubts < 10 ? $doubts : 10))
		{
			my $path = "/doubt/$all/$n";
			my ($holder, $waiter) = (zk_session_with($node, hosts => $proxy, session_timeout => '12s', cancel_on_loss => 'doubt'), zk_session($node));
			$holder->value("BEGIN; SELECT zk_xact_lock('$path')");
			$holder->send('DO $$BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN RAISE NOTICE $n$at %$n$, extract(epoch FROM clock_timestamp()); END$$');
			$waiter->send("SELECT extract(epoch FROM clock_timestamp()) FROM zk_lock('$path')");
			push @holder, $holder;
			push @waiter, $waiter;
		}
		zk_wait_queued($zk, @waiter);
		$proxy->blackhole;
		for my $n (0 .. $#holder)
		{
			my ($ended) = $holder[$n]->wait->{err} =~ /at ([\d.]+)/ or next;
			$early++ if $ended < $waiter[$n]->wait->{out};
		}
		$all += @holder;
		$proxy->pass;
		$_->quit for @holder, @waiter;
	}
	note("$early of $all ended before another session had the lock");
	$Deadline::TIMING ? cmp_ok($early, '>=', 0.95 * $all, 'in time') : in_time(0, 1, 'in time');
	cmp_ok($early, '>', 0, 'a statement ends before another session has its lock');
};

$admin->quit;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left');
$node->stop;

done_testing();
