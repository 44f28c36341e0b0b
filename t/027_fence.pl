# zk_fence: tokens of holds and of other clients, dumps, standbys, logical replication, and a
# ZooKeeper that is restored to an earlier state.  (Two transactions at once: specs/fences)

use FindBin;
use lib "$FindBin::RealBin/lib";

use Child;
use Tests;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '8s', wal_level => 'logical', max_wal_senders => 10);
my $admin = zk_session($node);

# The table's row for a path
sub fence { my ($path) = @_; return $admin->value("SELECT token FROM zk_fences WHERE path = '/zklock$path'"); }

# Two tests: refused with 40001, with both tokens.
sub is_stale
{
	my ($result, $token, $seen, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '40001', "$name: 40001");
	like($result->{detail}, qr/\b$token\b.*\b$seen\b|\b$seen\b.*\b$token\b/, "$name: the detail has both tokens");
	return;
}

# ------------------------------------------------------------- tokens of holds

# (What one session sees: sql/fence)
subtest 'with the token of the hold' => sub {
	my $sleeper = zk_session($node, options => '-c zklock.commit_guard=off');
	my $next = zk_session($node);
	my $token = $sleeper->value("SELECT zk_lock('/hold'), zk_fence('/hold')") =~ s/^t\|//r;

	# stopped beyond the loss of its lock, while another one takes it
	Child::suspend($sleeper->pid);
	my $newer = $next->value("SELECT zk_lock('/hold'), zk_lock_token('/hold')") =~ s/^t\|//r;
	cmp_ok($newer, '>', $token, 'the next holder has a bigger one');
	is($next->value("SELECT zk_fence('/hold')"), $newer, 'which passes');
	kill 'CONT', $sleeper->pid;
	is_stale($sleeper->query("SELECT zk_fence('/hold', $token)"), $token, $newer, 'the token of who slept');
	zk_wait_hold($sleeper, 'lost');
	is($sleeper->query("SELECT zk_fence('/hold')")->{state}, '40001', 'who knows that its lock is lost: 40001, too');
	is($sleeper->query("SELECT zk_unlock('/hold')")->{out}, 'f', 'and goes on');
	$next->value("SELECT zk_unlock('/hold')");

	# a token from another client: the zxid that created its node
	my $client = $zk->client;
	my $outside = $client->exists($client->contend('/zklock/hold'))->{czxid};
	is($sleeper->value("SELECT zk_fence('/hold', $outside)"), $outside, 'of an outside client: passes');
	is_stale($sleeper->query("SELECT zk_fence('/hold', $newer)"), $newer, $outside, 'after it, what was before it');
	$client->close;
	is($sleeper->value("SELECT zk_lock('/hold'), zk_fence('/hold') > $outside"), 't|t', 'and a later hold passes');
};

# ------------------------------------------------------------ roles and schemas

# (Who may what, and what the caller puts before it: sql/fence)

# The owner of the schema may rename it, and put another in its place.  A
# backend that takes no lock does not notice until it looks up the table.
subtest 'a schema that is swapped while zk_fence runs' => sub {
	$node->safe_psql('postgres', 'CREATE ROLE swapper LOGIN');
	$node->safe_psql('postgres', 'CREATE DATABASE swapped');
	$node->safe_psql('swapped',
		'GRANT CREATE ON DATABASE swapped TO swapper;
		CREATE SCHEMA app AUTHORIZATION swapper; CREATE EXTENSION zklock SCHEMA app;
		GRANT EXECUTE ON FUNCTION app.zk_fence TO swapper');
	my ($s, $other) = map { my $session = zk_session($node, dbname => 'swapped'); $session->value('SET SESSION AUTHORIZATION swapper'); $session } 1 .. 2;
	# it waits for the transaction that swaps
	my $fence = sub { "SELECT app.zk_fence('/swapped' || waited, $_[0]) FROM (SELECT pg_advisory_xact_lock(2)::text AS waited OFFSET 0) AS w" };
	$s->value($fence->($_)) for 1, 2;    # what it needs is now cached
	$other->value(
		q{BEGIN;
		SELECT pg_advisory_xact_lock(2);
		ALTER SCHEMA app RENAME TO away;
		CREATE SCHEMA app;
		CREATE FUNCTION app.trap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE swapper SUPERUSER'; RETURN NEW; END $$;
		CREATE FUNCTION app.trap_default() RETURNS timestamptz IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE swapper SUPERUSER'; RETURN now(); END $$;
		CREATE TABLE app.zk_fences (path text PRIMARY KEY, token bigint, recorded_at timestamptz DEFAULT app.trap_default());
		CREATE TRIGGER trap BEFORE INSERT ON app.zk_fences FOR EACH ROW EXECUTE FUNCTION app.trap()});
	$s->send($fence->(3));
	zk_until(sub { $s->is_done || $admin->value('SELECT cardinality(pg_blocking_pids(' . $s->pid . '))') > 0 }, 'it to wait');
	$other->value('COMMIT');
	my $result = $s->wait;
	is($result->{state}, '42501', 'a table of somebody else is not used');
	like($result->{message}, qr/^table app\.zk_fences is not owned by the owner of function zk_fence/, '- and named');
	is($admin->value(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'swapper'}), 'f', 'nor are its triggers or defaults');
	is($s->value(q{SELECT away.zk_fence('/swapped', 4)}), 4, 'then it finds its own');
	is($s->value(q{SELECT count(*) FROM app.zk_fences}), 0, '- and not the other');
};

# ----------------------------------------------- read-only, standby, dump

my $standby = PostgreSQL::Test::Cluster->new('standby');

subtest 'a hot standby' => sub {
	$node->backup('base');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	my $there = zk_session($standby);
	is($there->query("SELECT zk_fence('/hold', 9223372036854775807)")->{state}, '25006', 'a hot standby: 25006');
	is($there->query("SELECT zk_lock('/standby'); SELECT zk_fence('/standby')")->{state}, '25006', 'with a hold, too');
	is($there->value(q{SELECT pid = pg_backend_pid(), zk_lock_break('/standby', node) FROM zk_lock_queue('/standby')}), 't|t', '- which is shown there, and can be broken');
	is($there->value("SELECT count(*) FROM zk_fences WHERE path = '/zklock/hold'"), 1, 'which has the table');
	my $seen = fence('/hold');
	$there->value('SELECT zk_unlock_all()');
	$standby->promote;
	is_stale($there->query("SELECT zk_fence('/hold', 1)"), 1, $seen, 'promoted, it refuses what the primary did');
};

# Two clusters that use one ensemble, and publish FOR ALL TABLES: B is the promoted standby
subtest 'logical replication' => sub {
	my ($a, $b) = map { zk_session($_) } $node, $standby;
	my %of = (a => $a, b => $b);
	my $fences = sub { my ($who, %token) = @_; $of{$who}->value('SELECT ' . join ', ', map { "zk_fence('/$_', $token{$_})" } sort keys %token) };
	my $seen = sub { my ($who, @paths) = @_; return join ' ', map { $of{$who}->value("SELECT token FROM zk_fences WHERE path = '/zklock/$_'") } @paths };
	my $all = sub { my ($who, $what) = @_; return $of{$who}->value('SELECT array_agg(' . ($what // 'f') . ' ORDER BY path) FROM zk_fences f') };
	my $marker = 0;
	my $arrives = sub {
		$a->value('INSERT INTO other VALUES (' . ++$marker . ')');
		zk_until(sub { $b->value("SELECT count(*) FROM other WHERE n = $marker") }, "the rest arrives: $marker");
	};
	my $subscribe = sub {
		my ($there, $name, $from) = @_;
		$there->value(sprintf q{CREATE SUBSCRIPTION %s CONNECTION '%s' PUBLICATION %s}, $name, $from->connstr('postgres') =~ s/'/''/gr, $name);
		zk_until(sub { $there->value(q{SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel}) eq 't' }, "$name: the copy");
	};

	$_->value('CREATE TABLE other (n int)') for $a, $b;
	$fences->('a', both => 18, only_a => 5);
	$fences->('b', both => 22, only_b => 7);
	$a->value('CREATE PUBLICATION a_to_b FOR ALL TABLES');
	$subscribe->($b, 'a_to_b', $node);
	is($seen->('b', qw(both only_a only_b)), '22 5 7', 'copied: the greater token stays, and what only one of them had is there');

	$fences->('a', both => 19);
	$arrives->();
	is_stale($b->query(q{SELECT zk_fence('/both', 21)}), 21, 22, 'a token does not fall');
	$fences->('b', twice => 9);
	$fences->('a', both => 30, twice => 8);
	$arrives->();
	is($seen->('b', qw(both twice)), '30 9', 'it rises; of a path that both have the greater one stays');

	$b->value('BEGIN');
	$fences->('b', race => 50);
	$fences->('a', race => 40);
	zk_until(sub { $standby->safe_psql('postgres', 'SELECT count(*) FROM pg_stat_subscription WHERE cardinality(pg_blocking_pids(pid)) > 0') },
		'what arrives to wait for a zk_fence');
	$b->value('COMMIT');
	$arrives->();
	is($seen->('b', 'race'), 50, 'at once: the greater one');

	my $before = $all->('b');
	$a->value(q{UPDATE zk_fences SET path = '/zklock/moved', token = 1 WHERE path = '/zklock/both'});
	$a->value(q{DELETE FROM zk_fences WHERE path <> '/zklock/moved'});
	$arrives->();
	is($seen->('b', 'moved'), 1, 'a row whose path is changed is another one');
	is($b->value(q{SELECT array_agg(f ORDER BY path) FROM zk_fences f WHERE path <> '/zklock/moved'}), $before, 'nothing is deleted');
	$before = $all->('b');
	foreach my $how ('TRUNCATE zk_fences', q{SELECT zk_fence('/moved', 1)}, 'TRUNCATE zk_fences, other')
	{
		$a->value($how);
		$arrives->();
		is($all->('b'), $before, "$how: all is as before");
	}

	# what others have recorded since the transaction's snapshot, as its default may have it
	my $later = zk_session($standby);
	$b->value('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM zk_fences');
	$later->value(q{SELECT zk_fence('/race', 60)});
	$b->value('SET LOCAL session_replication_role = replica; TRUNCATE zk_fences; COMMIT');
	is($seen->('b', 'race'), 60, 'a TRUNCATE with an old snapshot loses nothing');
	$later->quit;

	foreach my $how ('DELETE FROM zk_fences', 'TRUNCATE zk_fences')
	{
		is($b->value("BEGIN; $how; SELECT count(*) FROM zk_fences; ROLLBACK"), 0, "the owner's own $how empties it");
	}
	$b->value('ALTER TABLE zk_fences ENABLE TRIGGER ALL');
	is($b->value('BEGIN; DELETE FROM zk_fences; SELECT count(*) FROM zk_fences; ROLLBACK'), 0, '- also after ENABLE TRIGGER ALL');
	$b->value("ALTER TABLE zk_fences ENABLE REPLICA TRIGGER $_") for qw(merge_row before_truncate after_truncate);
	is($b->query('SELECT zk_fences_merge()')->{state}, '39P01', 'the function is a trigger');
	is($b->query('CREATE TRIGGER t BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION zk_fences_merge();
		INSERT INTO other VALUES (0)')->{state}, '39P01', '- of that table only');
	$b->value('DROP TRIGGER t ON other');

	# and back: what comes around is not sent again for ever
	$b->value('CREATE PUBLICATION b_to_a FOR TABLE zk_fences');
	$subscribe->($a, 'b_to_a', $standby);
	is($all->('a', '(path, token)'), $all->('b', '(path, token)'), 'an empty one gets all');
	foreach ([ b => 31, 'a' ], [ a => 40, 'b' ], [ b => 41, 'a' ])
	{
		my ($from, $token, $to) = @$_;
		$fences->($from, both => $token);
		zk_until(sub { $seen->($to, 'both') == $token }, "$token to arrive in $to");
		is_stale($of{$to}->query("SELECT zk_fence('/both', $token - 1)"), $token - 1, $token, "in both directions: $token");
	}
	is($_->value('SELECT sum(apply_error_count + sync_error_count) FROM pg_stat_subscription_stats'), 0, 'no subscription has failed')
	  for $a, $b;
	$a->value('DROP SUBSCRIPTION b_to_a');
	$b->value('DROP SUBSCRIPTION a_to_b');
	$a->value($_) for q{DELETE FROM zk_fences WHERE path ~ '/(both|only_.|twice|race|moved)$'}, 'DROP PUBLICATION a_to_b';
	$_->quit for $a, $b;
	$standby->stop;
};

# (With rights, and in a schema of its own: t/101)
subtest 'pg_dump keeps the table' => sub {
	my $seen = fence('/hold');
	$admin->value(q{SELECT zk_fence('/kept/' || i, i) FROM generate_series(1, 20) i});
	my $all = $admin->value('SELECT count(*) FROM zk_fences');
	my $file = $node->basedir . '/plain.dump';
	$node->safe_psql('postgres', 'CREATE DATABASE restored');
	$node->command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $file ], 'pg_dump');
	$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $file ], 'restored');
	is($node->safe_psql('restored', 'SELECT count(*) FROM zk_fences'), $all, 'all rows are there');
	my $s = zk_session($node, dbname => 'restored');
	is_stale($s->query("SELECT zk_fence('/hold', 1)"), 1, $seen, 'what was refused is');
	is($s->value("SELECT zk_fence('/hold', $seen + 1)"), $seen + 1, 'and a newer one passes');
};

# It breaks its own promises: locks that were granted since are forgotten, and tokens begin
# lower.  For a moment two hold a lock; the one that was forgotten does not commit, and the
# fence refuses what comes after, until its owner says otherwise.
subtest 'ZooKeeper is restored to an earlier state' => sub {
	$admin->value('CREATE TABLE restored (who text)');
	# takes the lock, fences and commits; returns the token
	my $protected = sub { return $_[0]->value(q{BEGIN; SELECT zk_xact_lock('/r'); SELECT zk_fence('/r'); COMMIT}) =~ s/.*\n//sr };

	my $early = zk_session($node);
	my $before = $protected->($early);
	$early->quit;    # a session that is in the copy would be there again, with what it had
	$zk->stop;
	my $data = $zk->dir . '/data/version-2';
	system_or_bail('cp', '-RPp', $data, "$data.saved");
	$zk->start;

	# its server refuses it, which has seen less than it, so it waits for the end of its session
	my $holder = zk_session_with($node, session_timeout => '3s');
	$protected->($holder) for 1 .. 10;
	my $after = $protected->($holder);
	cmp_ok($after, '>', $before, 'a token from after the copy is greater');
	is($holder->value(q{SELECT zk_lock('/r')}), 't', 'one holds the lock');
	$holder->value(q{BEGIN; INSERT INTO restored VALUES ('forgotten')});

	$zk->stop;
	system_or_bail('rm', '-rf', $data);
	system_or_bail('mv', "$data.saved", $data);
	$zk->start;

	my $next = zk_session($node);
	is($next->value(q{SELECT zk_lock('/r')}), 't', 'ZooKeeper, restored, gives it to another');
	zk_wait_hold($holder, 'lost');
	zk_is_lost($holder->query('COMMIT'), '/r', 'but it does not commit');
	is($admin->value('SELECT count(*) FROM restored'), 0, '- and nothing of it is there');

	my $token = $next->value(q{SELECT zk_lock_token('/r')});
	cmp_ok($token, '<', $after, 'the new token is smaller than that from before');
	is_stale($next->query(q{SELECT zk_fence('/r')}), $token, $after, '- and the fence refuses it');
	$admin->value('DELETE FROM zk_fences');
	is($next->value(q{SELECT zk_fence('/r')}), $token, '- until its owner empties its table');
	is($next->value(q{SELECT zk_unlock('/r')}), 't', 'and all goes on');
	is($holder->value(q{SELECT zk_unlock_all()}), '0', 'the forgotten hold is gone');
	zk_locks_again($holder, 'and its session locks again');
};

zk_end($zk, $node);
