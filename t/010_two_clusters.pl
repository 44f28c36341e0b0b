# Two clusters, one lock: it excludes every session of both.  (What the end of a
# transaction does to locks, and that the next owner sees what the last one committed, as
# another session sees it: specs/transaction_end, specs/blocks; between clusters: t/012.)
#
# And where locks work: a hot standby and its promotion, background workers, and after a
# crash.  (In read-only transactions and parallel queries: sql/places; while a foreign
# server commits: t/097.)  Also, that loops and row triggers stay fast when ZooKeeper is
# down.
#
# When settings take effect, what zklock.root confines, and paths in databases with
# other encodings.  (Which of them are paths, who may set what, and session_timeout:
# sql/encodings, sql/arguments.  The extension in a schema of its own: sql/basic, and dumped:
# t/101.)

use FindBin;
use lib "$FindBin::RealBin/lib";

use Tests;

my ($zk, $zk2) = map { ZooKeeper->new->start } 1, 2;
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

# --------------------------------------------------------------------- settings

my $admin = zk_session($main);

# The nodes that are new; those that ZooKeeper has reaped meanwhile do not
# matter
sub new_since
{
	my ($before, @now) = @_;
	my %before = map { $_ => 1 } @$before;
	return grep { !$before{$_} && !m{^/zookeeper} } @now;
}

# One test each: every call that uses ZooKeeper, or data from there, is refused
# like this, except the ones given
my $calls_with_path = $main->safe_psql('postgres', q{
	SELECT string_agg(format('%s %s(%s)', CASE prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, proname, concat_ws(', ', CASE proargnames[1] WHEN 'paths' THEN '''{/nightly}''' ELSE '''/nightly''' END,
		CASE WHEN proname ~ 'semaphore_acquire' THEN '1' WHEN proname = 'zk_fence' THEN '9223372036854775807'
			WHEN proname = 'zk_claim' THEN 'now()'
			WHEN proname = 'zk_lock_break' THEN '''_c_8b2f9f8e-0000-4000-8000-000000000000-lock-0000000001''' END)), ' ' ORDER BY proname)
	FROM pg_proc JOIN pg_depend ON objid = pg_proc.oid AND deptype = 'e' JOIN pg_extension e ON e.oid = refobjid
	WHERE extname = 'zklock' AND pronargs > 0 AND proargnames[1] IN ('path', 'paths', 'prefix')});

sub refuses_all
{
	my ($s, $state, $name, $but) = @_;
	foreach my $call (grep { !$but || !/^\w+ $but/ } split /(?<=\)) /, $calls_with_path)
	{
		is($s->query($call)->{state}, $state, "$name: $call");
	}
	return;
}

cmp_ok(scalar(() = $calls_with_path =~ /zk_/g), '>=', 22, 'all functions with a path');

# The same for another list of the same ensemble; another ensemble is refused while anything is held
zk_leaves_nothing $zk, 'hosts' => sub {
	my ($s, $other) = (zk_session($main), zk_session($main));
	my ($hosts, $hosts2, $port) = ($zk->hosts, $zk2->hosts, $zk->port);
	my $session = sub { return $s->value('SELECT session_id, hosts FROM zk_session') };
	is($s->value('SELECT hosts IS NULL FROM zk_session'), 't', 'no session: no hosts in force');
	is($s->value(q{SELECT zk_lock('/now')}), 't', 'a lock:');
	my $first = $session->();
	like($first, qr/^0x\w+\|\Q$hosts\E$/, '- zk_session has hosts');

	# more servers, in another spelling
	my $list = "$hosts2,$hosts";
	$s->value("SET zklock.hosts = '\t$hosts2 , 127.0.0.1:$port'");
	is($s->value(q{SELECT zk_lock('/now'), zk_try_xact_lock('/too'), count(*) FROM zk_lock_queue('/now')}), 't|t|1', '- other hosts, with one of these: goes on');
	is($session->(), $first, '- in the same session');
	is($s->value('SELECT zk_unlock_all()'), '2', '- until nothing is held');
	is($session->(), $first, '- and longer');
	$s->value(q{SELECT zk_try_lock('/then')});
	isnt((my $second = $session->()), $first, '- but the next call begins another');
	like($second, qr/\|\Q$list\E$/, '- with what is set');
	$s->value("SET zklock.hosts = '$list'; SELECT zk_unlock('/then'), zk_try_lock('/then')");
	is($session->(), $second, '- and another spelling of that is the same');
	$s->value('SELECT zk_unlock_all(); RESET zklock.hosts');

	# another ensemble
	$s->value(q{SELECT zk_lock('/now'), zk_lock_shared('/nightly'), zk_semaphore_acquire('/places', 2)});
	$first = $session->();
	$_->value("SET zklock.hosts = '$hosts2'") for $s, $other;
	is($other->value(q{SELECT zk_lock('/now')}), 't', 'two sessions that SHOW the same hosts');
	my @before = $zk2->tree('/');
	my $free = qr/zk_(?:unlock|semaphore_release|lock_token)/;
	refuses_all($s, '55000', '- do not both hold the same lock', $free);
	my $refused = $s->query(q{SELECT zk_lock('/now')});
	like($refused->{detail}, qr/\Q$hosts\E.*\Q$hosts2\E/, '- of which the other is told where');
	like($refused->{hint}, qr/zk_locks/, '- and what to do');
	is($s->query('SELECT zk_fence($$/now$$)')->{state}, '55000', '- nor fences it');
	is($s->value('SELECT count(*) FROM zk_fences'), '0', '- with any token');
	is_deeply([ new_since(\@before, $zk2->tree('/')) ], [], '- and makes nothing in the other ensemble');
	is($s->value(q{SELECT zk_lock_token('/now') > 0, string_agg(path || state, ' ' ORDER BY path) FROM zk_locks}), 't|/nightlyheld /nowheld /placesheld',
		'- but sees what it has');
	is($session->(), $first, '- and where');
	is($s->value(q{SELECT zk_unlock('/now'), zk_unlock_shared('/nightly'), zk_semaphore_release('/places')}), 't|t|t', '- and gives it back');
	is($s->value(q{SELECT zk_try_lock('/now'), zk_try_lock('/nightly')}), 'f|t', '- and then is where it shows');
	$s->value('RESET zklock.hosts');
	is($s->query(q{SELECT zk_lock('/now')})->{state}, '55000', 'and back: not while a lock is held');
	is($s->value('SELECT zk_unlock_all()'), '1', '- but then');
	is($s->value(q{SELECT zk_lock('/now')}), 't', '- in the first one');

	# a transaction-scope lock, and a function that sets another ensemble
	$admin->value("CREATE FUNCTION there(text) RETURNS boolean LANGUAGE sql SET zklock.hosts = '$hosts2' AS 'SELECT zk_xact_lock(\$1)'");
	is($s->query(q{SELECT there('/f')})->{state}, '55000', 'a function with other hosts: not while a lock is held');
	$s->value('SELECT zk_unlock_all()');
	is($s->value(q{BEGIN; SELECT there('/f')}), 't', '- but then');
	is($s->query(q{SELECT zk_lock('/g')})->{state}, '55000', '- and its caller has to wait for the end of the transaction');
	$s->value('ROLLBACK');
	is($s->value(q{SELECT zk_lock('/g')}), 't', '- and no longer');
	$_->quit for $s, $other;

	# what became of a claim is told to the ensemble that has its mark
	my $proxy = ZkProxy->new($zk);
	$s = zk_session_with($main, hosts => $proxy, session_timeout => '4s');
	$s->value(q{BEGIN; SELECT zk_claim('/c', '2001-01-01')});
	$proxy->hold('mark');
	$s->send('COMMIT');
	$proxy->wait_held;
	$proxy->cut_off;
	is($s->wait->{state}, '40001', 'a claim whose mark is not answered');
	@before = $zk2->tree('/');
	$refused = $s->query(q{SELECT there('/f')});
	is($refused->{state}, '55000', '- before that is told there is no other ensemble');
	like($refused->{detail}, qr/__zklock_claims__\/c.*\Q$hosts2\E/, '- which it says');
	is_deeply([ new_since(\@before, $zk2->tree('/')) ], [], '- and makes nothing there');
	$proxy->reset;
	$proxy->pass;
	is($s->value(q{SELECT zk_claim('/c', '2001-01-01')}), 't', '- but in its own one it claims again');
	is($s->value(q{SELECT there('/f')}), 't', '- and then there is another');
	$s->quit;

	# a lost lock counts as held until it is given back, even if there is no
	# session any longer
	$proxy = ZkProxy->new($zk2);
	$s = zk_session_with($main, session_timeout => '2s', hosts => $proxy);
	$s->value(q{SELECT zk_lock('/lost')});
	$proxy->cut_off;
	zk_wait_hold($s, 'lost');
	$s->value("SET zklock.hosts = '$hosts'");
	is($s->query(q{SELECT zk_lock('/now')})->{state}, '55000', 'a lost lock counts as held');
	is($s->query(q{SELECT zk_unlock('/lost')})->{out}, 'f', '- until it is given back');
	is($s->value(q{SELECT zk_lock('/now')}), 't', '- but not longer');
};
zk_nothing_left($zk2, 'nothing is left there', sessions => 0);

zk_leaves_nothing $zk, 'what zklock.hosts may be' => sub {
	my $s = zk_session($main);
	my $port = $zk->port;
	foreach (
		[ 'zk1:2181/chroot', qr/use zklock\.root/ ], [ 'zk1:2181,zk2:2181/a/b', qr/use zklock\.root/ ], [ 'zk1/', qr/use zklock\.root/ ],
		[ 'zk1:0', qr/1 to 65535/ ], [ 'zk1:65536', qr/1 to 65535/ ], [ 'zk1:99999999999', qr/1 to 65535/ ], [ 'zk1:', qr/1 to 65535/ ],
		[ 'zk1:port', qr/1 to 65535/ ], [ 'zk1:+1', qr/1 to 65535/ ], [ 'zk1: 1', qr/comma/ ], [ 'zk1:2181 zk2:2181', qr/comma/ ],
		[ ',', qr/empty/ ], [ 'zk1,', qr/empty/ ], [ 'zk1,,zk2', qr/empty/ ], [ ':2181', qr/host name is empty/ ],
		[ '::1', qr/brackets/ ], [ 'fe80::1:2181', qr/brackets/ ], [ 'zk1:1:2', qr/brackets/ ],
		[ '[::1', qr/not closed/ ], [ '[::1]2181', qr/colon/ ], [ '[]:1', qr/not an IPv6/ ], [ '[zk1]:1', qr/not an IPv6/ ], [ '[127.0.0.1]:1', qr/not an IPv6/ ],
		[ "zk1\x{1}", qr/character/ ], [ 'zk"1', qr/character/ ], [ "z\xc3\xbcrich:2181", qr/character/ ], [ 'x' x 256, qr/longer/ ])
	{
		my ($hosts, $detail) = @$_;
		my $r = $s->query("SET zklock.hosts = '$hosts'");
		is($r->{state}, '22023', "hosts cannot be '" . ($hosts =~ s/[^ -~]/?/gr) . q{'});
		like($r->{detail}, $detail, '- for a reason');
	}
	is($admin->query(q{ALTER SYSTEM SET zklock.hosts = 'zk1/x'})->{state}, '22023', '- nor for all');

	# what is not a name is not looked up
	$s->value("SET zklock.hosts = ' LocalHost:$port,[0:0::1], no-such.invalid ,[::FFFF:127.0.0.1]:$port,[fe80::1%lo]:1'");
	is($s->value(q{SELECT zk_lock('/a'); SELECT hosts FROM zk_session}),
		"t\nlocalhost:$port,[::1]:2181,no-such.invalid:2181,[::ffff:127.0.0.1]:$port,[fe80::1%lo]:1", 'what they are from then on');
	is($s->value(q{SELECT zk_unlock('/a'); SET zklock.hosts = ' '; SELECT count(*) FROM zk_locks}), "t\n0", 'they may be none');
	is($s->query(q{SELECT zk_lock('/a')})->{state}, '55000', '- which is said at the call');
	$s->quit;

	# a value that was set before the library was loaded
	$s = zk_session($main, options => '-c zklock.hosts=zk1:2181/chroot');
	is($s->query(q{SELECT zk_lock('/a')})->{state}, '42501', 'a configured value that is no list is in nobody\'s way');
	is($s->value("SET zklock.hosts = '" . $zk->hosts . "'; SELECT zk_lock('/a')"), 't', '- any more when it is mended');
};

# (Who may set which: sql/arguments)
zk_leaves_nothing $zk, 'by database and by role' => sub {
	$admin->value('CREATE ROLE worker LOGIN; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO worker');
	$admin->value('CREATE DATABASE team');
	$main->safe_psql('team', 'CREATE EXTENSION zklock; GRANT EXECUTE ON FUNCTION zk_lock TO worker');
	$admin->value(q{ALTER DATABASE team SET zklock.root = '/teams/team'; ALTER ROLE worker IN DATABASE postgres SET zklock.root = '/billing'});

	# The library is loaded at the start of a session, or at the first call
	foreach my $preload ('zklock', 'plpgsql')
	{
		$admin->value("ALTER ROLE worker SET session_preload_libraries = '$preload'");
		my $s = zk_session($main, user => 'worker', dbname => 'team');
		is($s->value(q{SELECT zk_lock('/job')}), 't', "a root of the database, $preload preloaded");
		is(scalar $zk->children('/teams/team/job'), 1, '- is where its locks are');

		# If a user sets an administrator's setting as an option of the connection,
		# this replaces the administrator's value. Then no function that uses the
		# root works, whether it needs ZooKeeper or not
		$s = zk_session($main, user => 'worker', options => '-c zklock.root=/x');
		refuses_all($s, '42501', "a connection with a root of its own, $preload preloaded");
		is($s->value(q{SELECT count(*) || ' ' || (SELECT state FROM zk_session) || ' ' || zk_unlock_all() FROM zk_locks}), '0 none 0', '- the views show that nothing is there');
		is($admin->value('SELECT count(*) FROM zk_fences'), '0', '- and nothing is stopped');
	}
	$admin->value('ALTER ROLE worker RESET ALL; ALTER ROLE worker IN DATABASE postgres RESET ALL');
};

zk_leaves_nothing $zk, 'the root is read at each call, whatever is held' => sub {
	my ($s, $other) = (zk_session($main), zk_session($main));
	my $roots = sub { return $s->value(q{SELECT string_agg(concat_ws(' ', root, path, count), ', ' ORDER BY root, path) FROM zk_locks}) };
	$s->value(q{SELECT zk_lock('/job')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	$_->value(q{SET zklock.root = '/elsewhere'}) for $s, $other;

	is($other->value(q{SELECT zk_lock('/job')}), 't', 'two sessions that SHOW the same root');
	is($s->value(q{SELECT zk_try_lock('/job'), zk_lock_token('/job') IS NULL, count(*) FROM zk_lock_queue('/job')}), 'f|t|1',
		'- do not both hold the same lock, whatever else one of them holds');
	is($s->query(q{SELECT zk_unlock('/job')})->{out}, 'f', '- nor is given back what is held under another root');
	is($other->value(q{SELECT zk_unlock('/job')}), 't', '- which the other gives back');
	is($s->value(q{SELECT zk_lock('/job'), zk_lock('/job'), zk_lock('/too')}), 't|t|t', 'the same path under two roots: two locks');
	is($roots->(), '/elsewhere /job 2, /elsewhere /too 1, /zklock /job 1', '- which zk_locks tells apart');
	is(scalar $zk->children($_), 1, "- $_ is in ZooKeeper") for '/elsewhere/job', '/elsewhere/too', '/zklock/job';
	is($s->value('SELECT session_id FROM zk_session'), $id, '- in the same ZooKeeper session');
	my $token = $s->value(q{SELECT zk_lock_token('/job')});
	is($s->value("RESET zklock.root; SELECT zk_lock_token('/job') <> $token, zk_fence('/job') = zk_lock_token('/job')"), 't|t', '- each with its token');
	is($s->value(q{SELECT string_agg(path, ' ') FROM zk_fences}), '/zklock/job', '- and fenced for itself, by the whole path');
	$s->value('DELETE FROM zk_fences');
	is($s->value(q{SELECT zk_unlock('/job')}), 't', '- given back');
	is($roots->(), '/elsewhere /job 2, /elsewhere /too 1', '- where it is set now');
	is($s->value('SELECT zk_unlock_all()'), '3', '- and all, wherever');

	# one lock by two names
	$s->value(q{SET zklock.root = '/team'; SELECT zk_lock('/a/job'); SET zklock.root = '/team/a'});
	is($s->value(q{SELECT zk_lock('/job'), zk_lock_shared('/job')}), 't|t', 'one lock under two roots: held already');
	is(scalar $zk->children('/team/a/job'), 1, '- with one node');
	is($roots->(), '/team /a/job 2, /team/a /job 1', '- shown by the name by which it was taken first');
	is($s->value(q{SET zklock.root = '/'; SELECT zk_unlock('/team/a/job'), zk_unlock('/team/a/job'), zk_unlock_shared('/team/a/job')}),
		't|t|t', '- and given back by any');
	is($s->value(q{SELECT zk_lock('/bare')}), 't', 'no root');
	is(scalar(grep { m{^/bare/_c_} } $zk->tree('/')), 1, '- right below /');
	is($s->value(q{SELECT zk_unlock('/bare'); SET zklock.root = '/zookeepers'; SELECT zk_try_lock('/zookeeper'), zk_unlock('/zookeeper')}), "t\nt|t",
		"under a root /zookeeper is a name like others, and a root may begin like that");

	# a function that sets a root
	$admin->value(q{CREATE FUNCTION admin_lock(text) RETURNS boolean LANGUAGE sql SECURITY DEFINER
		SET zklock.root = '/admin' AS 'SELECT zk_xact_lock($1)'});
	my $user = zk_session($main, user => 'worker');
	foreach my $holds ('', '/own')
	{
		$user->value('BEGIN' . ($holds && "; SELECT zk_lock('$holds')"));
		is($user->value(q{SELECT admin_lock('/f'), zk_try_lock('/mine')}), 't|t', "a function with a root of its own locks there, held: $holds");
		is($user->value(q{SELECT string_agg(root || path, ' ' ORDER BY path) FROM zk_locks}), '/admin/f /zklock/mine' . ($holds && " /zklock$holds"),
			'- and its caller in its own, as before');
		is(scalar $zk->children($_), 1, "- $_ is in ZooKeeper") for '/admin/f', '/zklock/mine';
		$user->value('COMMIT');
		zk_until(sub { !$zk->children('/admin/f') }, 'the release');
		pass('- until the transaction ends');
		$user->value(q{SELECT zk_unlock('/mine')});
	}

	# how a lock is reported when its root is no longer set
	$s->value(q{SET zklock.root = '/admin'; SET zklock.commit_guard = strict});
	$s->value(q{BEGIN; SELECT zk_lock('/kept'), zk_xact_lock('/lost'); RESET zklock.root; SELECT zk_xact_lock('/lost')});
	$zk->delete('/admin/lost/' . ($zk->children('/admin/lost'))[0]);
	my $error = $s->query('COMMIT');
	is($error->{state}, '40001', 'COMMIT without a lock of another root');
	like($error->{err}, qr{the lock on "/lost" \(under "/admin"\) was lost}, '- says which');
	$s->value(q{RESET zklock.root; BEGIN; SELECT zk_xact_lock('/lost')});
	$zk->delete('/zklock/lost/' . ($zk->children('/zklock/lost'))[0]);
	like($s->query('COMMIT')->{err}, qr{the lock on "/lost" was lost}, '- and of the root that is set says no more than the path');
};

zk_leaves_nothing $zk, 'a path is identified by its UTF-8 form' => sub {
	my %db = (latin1 => 'LATIN1', ascii => 'SQL_ASCII', win => 'WIN1252');
	my %s = (utf8 => zk_session($main));
	foreach my $db (sort keys %db)
	{
		$admin->value("CREATE DATABASE $db TEMPLATE template0 ENCODING '$db{$db}' LC_COLLATE 'C' LC_CTYPE 'C'");
		$main->safe_psql($db, 'CREATE EXTENSION zklock');
		$s{$db} = zk_session($main, dbname => $db);
	}
	is($s{utf8}->value('SHOW server_encoding'), 'UTF8', 'the database of UTF-8');

	# u umlaut, in each database's encoding
	my %path = map { $_ => "E'/m" . (/utf8|ascii/ ? '\xc3\xbc' : '\xfc') . "ller'" } keys %s;
	foreach my $owner (sort keys %s)
	{
		$s{$owner}->value("SELECT zk_lock($path{$owner})");
		is_deeply([ grep { /ller$/ } $zk->children('/zklock') ], ["m\xc3\xbcller"], "$owner: a path beyond ASCII is UTF-8 in ZooKeeper");
		is(join('', map { $s{$_}->value("SELECT zk_try_lock($path{$_})") } grep { $_ ne $owner } keys %s), 'fff', '- and excludes the others');
		$s{$owner}->value('SELECT zk_unlock_all()');
	}
};

# ------------------------------------------------------------ where locks work

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
	$again->();
	is($s->query("$insert; COMMIT")->{state}, '', '- so that the transaction can go on');
	zk_nothing_left($zk, '- to its end');

	# the loop (while ZooKeeper is up: sql/places), in a session without an outage: for a while
	# after a long one, each new hold sends a request
	$s->quit;
	$s = zk_session_with($main, hosts => $proxy, session_timeout => '60s');
	$s->value(q{SELECT zk_lock('/loop'), zk_unlock('/loop')});
	my $loop = sub {
		my ($body) = @_;
		return qq{DO \$\$ DECLARE n int := 0; BEGIN FOR i IN 1 .. 10000 LOOP BEGIN $body RAISE division_by_zero;
			EXCEPTION WHEN division_by_zero THEN n := n + 1; END; END LOOP; ASSERT n = 10000; END \$\$};
	};
	my $memory = q{SELECT sum(used_bytes) FROM pg_backend_memory_contexts WHERE name LIKE 'zklock%'};
	my $before = $s->value($memory);

	$s->value(q{BEGIN; SELECT zk_lock('/loop')});
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

# The apply worker of a subscription, which runs triggers without a portal.  (One that is
# terminated: t/020)
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
	zk_until(sub { contenders('/apply') == 2 && $other_admin->value($waiting) }, 'the worker to wait');
	$holder->value(q{SELECT zk_unlock('/apply')});
	zk_until(sub { $other_admin->value('SELECT count(*) FROM replicated') == 1 }, 'the row');
	is(contenders('/apply'), 1, 'it goes on when it has the lock');
	$other_admin->value('DROP SUBSCRIPTION s');
	ok(zk_until(sub { contenders('/apply') == 0 }, 'its lock to go'), '- which ends with it');
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

# One backend is killed, and with it all others of its cluster
subtest 'a crash' => sub {
	my @s = map { zk_session_with($main, session_timeout => '6s') } 1 .. 3;
	my $next = zk_session($other);
	$s[0]->value(q{SELECT zk_lock('/crash')});
	$s[1]->value(q{BEGIN; SELECT zk_xact_lock('/crash/xact')});
	$s[2]->send(q{CALL zk_acquire('/crash')});
	zk_wait_queued($zk, $s[2]);

	my $start = time;
	zk_kill($main, $s[2]->pid);
	$s[2]->wait;
	is(zk_session($main)->value(q{SELECT zk_lock('/crash/new')}), 't', 'new sessions lock at once');
	is($next->value(q{SELECT zk_lock('/crash'), zk_lock('/crash/xact')}), 't|t', 'what was held or waited for is free when its session has timed out');
	my $took = time - $start;
	cmp_ok($took, '>', 3, '- not at once');
	in_time($took, 14, '- but soon after');
};

$main->stop;    # one of its backends was killed
zk_end($zk, $other);
