# zk_server_locks: what each backend of this server holds and awaits, as the
# others see it.  Each row is true, whatever the backends do; none is torn, and none is of a
# backend that has ended; who may see which; and a server that cannot have the view still
# has the locks.
#
# ZK_BACKENDS in the environment: how many backends there are in the crowd

use FindBin;
use lib "$FindBin::RealBin/lib";

use Child;
use Tests;

my $BACKENDS = $ENV{ZK_BACKENDS} // 16;
my $zk = ZooKeeper->new->start;
my %preload = (shared_preload_libraries => 'zklock');
my $node = zk_cluster('main', $zk, %preload, max_connections => $BACKENDS + 30, 'zklock.session_timeout' => '20s', deadlock_timeout => '1h');
my $admin = zk_session($node);
my $named = $node->pg_version >= 17;

my $ROW = q{concat_ws(' ', path, mode, scope, count, CASE WHEN granted THEN 'granted' WHEN NOT granted THEN 'awaited' END, state)};

# The rows of a backend, as "/a exclusive session 1 granted held, ..."
sub rows
{
	my ($s, $by) = @_;
	return ($by // $admin)->value(
		"SELECT string_agg($ROW, ', ' ORDER BY granted DESC, acquired_at, path COLLATE \"C\", mode, scope) FROM zk_server_locks
		 WHERE pid = " . $s->pid);
}

# The processor time of a backend
sub nanoseconds { my ($pid) = @_; return (split ' ', slurp_file("/proc/$pid/schedstat"))[0]; }

sub column { my ($s, $column) = @_; return $admin->value("SELECT DISTINCT $column FROM zk_server_locks WHERE pid = " . $s->pid); }

subtest 'rows' => sub {
	my $s = zk_session($node);
	is(rows($s), '', 'a backend that has used no lock has no row');
	$s->value(q{SELECT zk_lock('/r/a'), zk_lock('/r/a')});
	is(rows($s), '/r/a exclusive session 2 granted held', 'a hold');
	is($admin->value('SELECT datname, usename = current_user, root, more, session_state FROM zk_server_locks WHERE pid = ' . $s->pid),
		'postgres|t|/zklock|0|connected', '- whose');
	is(column($s, 'token'), $s->value('SELECT token FROM zk_locks'), '- its token');
	is(column($s, 'acquired_at'), $s->value('SELECT acquired_at FROM zk_locks'), '- since when');
	is(column($s, 'zk_session'), $s->value('SELECT session_id FROM zk_session'), '- its session');
	is(rows($s, $s), rows($s), 'it sees the same');

	$s->value(q{BEGIN; SELECT zk_xact_lock('/r/a'), zk_xact_lock_shared('/r/a'), zk_xact_semaphore_acquire('/r/p', 3)});
	is(rows($s), '/r/a exclusive session 2 granted held, /r/a exclusive transaction 1 granted held, '
		  . '/r/a shared transaction 1 granted held, /r/p semaphore transaction 1 granted held', 'a row for each lock, mode and scope');
	$s->value(q{SAVEPOINT s; SELECT zk_xact_lock('/r/s')});
	like(rows($s), qr{/r/s}, 'in a savepoint');
	$s->value('ROLLBACK TO s');
	unlike(rows($s), qr{/r/s}, '- and rolled back');
	$s->value('COMMIT');
	is(rows($s), '/r/a exclusive session 2 granted held', 'COMMIT: those of the transaction are gone');
	$s->value(q{SELECT zk_lock_shared('/r/a'), zk_unlock('/r/a'), zk_unlock('/r/a')});
	is(rows($s), '/r/a shared session 1 granted held', 'downgraded');
	$s->value('SELECT zk_unlock_all()');
	is(rows($s), '', 'nothing held: a row without a lock');
	is($admin->value('SELECT count(*), count(path), min(session_state) FROM zk_server_locks WHERE pid = ' . $s->pid), '1|0|connected', '- which shows the session');

	# more than have room: the oldest first
	$s->value(q{SELECT zk_lock('/r/' || i) FROM generate_series(1, 7) AS i});
	is(rows($s), join(', ', map { "/r/$_ exclusive session 1 granted held" } 1 .. 4), 'seven locks: the oldest four');
	is(column($s, 'more'), 3, '- and three more');
	$s->value(q{SELECT zk_unlock('/r/2')});
	is(rows($s), join(', ', map { "/r/$_ exclusive session 1 granted held" } 1, 3, 4, 5), 'another takes the place of one that is released');
	is(column($s, 'more'), 2, '- and two more');
	$s->value(q{SELECT zk_lock_break('/r/3', node) FROM zk_locks WHERE path = '/r/3'});
	$s->value('SELECT zk_unlock_all()');

	# long paths: 256 bytes, not within a character
	foreach ([ '/l' . 'x' x 254, '/l' . 'x' x 254 ], [ '/l' . 'x' x 255, '/l' . 'x' x 251 . '...' ],
		[ '/l' . "\xc3\xa4" x 200, '/l' . "\xc3\xa4" x 125 . '...' ], [ '/lx' . "\xc3\xa4" x 200, '/lx' . "\xc3\xa4" x 125 . '...' ])
	{
		my ($path, $shown) = @$_;
		$s->value("SELECT zk_lock('$path')");
		is(column($s, 'path'), $shown, length($path) . ' bytes of a path: ' . length($shown));
		$s->value("SELECT zk_unlock('$path')");
	}
	$s->value(q{SET zklock.root = '/elsewhere'; SELECT zk_lock('/r/a')});
	is(column($s, 'root || path'), '/elsewhere/r/a', 'another root');
	$s->value(q{SET zklock.root = '/'; SELECT zk_unlock_all(), zk_lock('/r/a')});
	is(column($s, q{root || ' ' || path}), '/ /r/a', 'none');
	$s->quit;
	is($admin->value('SELECT count(*) FROM zk_server_locks WHERE pid = ' . $s->pid), 0, 'a backend that has ended has no row, not even an empty one');
};

subtest 'waits' => sub {
	my ($holder, $waiter) = map { zk_session($node) } 1 .. 2;
	my $began = time;
	$holder->value(q{SELECT zk_lock('/w/a'), zk_semaphore_acquire('/w/p', 1), zk_lock('/w/c')});
	foreach ([ q{zk_lock('/w/a', '1 min')}, '/w/a exclusive session' ], [ q{zk_xact_lock_shared('/w/a')}, '/w/a shared transaction' ],
		[ q{zk_semaphore_acquire('/w/p', 1)}, '/w/p semaphore session' ], [ q{zk_xact_lock_many('{/w/b,/w/c}')}, '/w/c exclusive transaction' ])
	{
		my ($call, $shown) = @$_;
		$waiter->send("SELECT $call");
		zk_wait_queued($zk, $waiter);
		is(rows($waiter), "$shown awaited waiting", "$call: waits");
		is($admin->value("SELECT waiting_since > to_timestamp($began) - interval '1 s' AND waiting_since <= now(), token IS NULL, acquired_at IS NULL, waits > 0
			FROM zk_server_locks WHERE pid = " . $waiter->pid), 't|t|t|t', '- since when');
		is($waiter->cancel($admin)->{state}, '57014', '- canceled');
		is(rows($waiter), '', '- and no longer');
	}
	is($waiter->value(q{SELECT zk_try_lock('/w/a'), zk_lock('/w/a', '0'), zk_lock('/w/a', '2 s')}), 'f|f|f', 'not taken');
	is(rows($waiter), '', '- not awaited');
	is(column($waiter, 'timeouts'), 1, '- timeouts are counted');
	$waiter->send(q{SELECT zk_lock('/w/a')});
	zk_wait_queued($zk, $waiter);
	my $since = column($waiter, 'waiting_since');
	$holder->value(q{SELECT zk_lock_break('/w/a', node) FROM zk_lock_queue('/w/a') WHERE NOT granted});
	zk_wait_queued($zk, $waiter);
	is(substr(column($waiter, 'waiting_since'), 0, 19), substr($since, 0, 19), 'one whose node is broken still waits since then');
	$holder->quit;
	$waiter->wait;
	is(rows($waiter), '/w/a exclusive session 1 granted held', 'granted');
	is(column($waiter, 'waits || \' \' || deadlocks'), $waiter->value(q{SELECT waits || ' ' || deadlocks FROM zk_session}), 'the totals are those of zk_session');
};

# What happens to a session while its backend does nothing
subtest 'states' => sub {
	my $proxy = ZkProxy->new($zk);
	my $s = zk_session_with($node, hosts => $proxy, session_timeout => '6s');
	$s->value(q{SELECT zk_lock('/s/a'), zk_lock('/s/b')});
	my $state = sub { return $admin->value(q{SELECT string_agg(state, ' ' ORDER BY path) FROM zk_server_locks WHERE pid = } . $s->pid) };
	is($state->(), 'held held', 'held');
	$proxy->cut_off;
	zk_until(sub { $state->() eq 'suspect suspect' }, 'cut off');
	is(column($s, 'session_state'), 'suspended', 'cut off: suspended');
	$proxy->pass;
	ok(zk_until(sub { $state->() eq 'held held' }, 'held again'), 'back: held');
	ok(zk_until(sub { column($s, 'reconnections') eq '1' }, 'counted'), '- a reconnection');

	# a node is deleted: the watch on it tells the thread
	my $requests = column($s, 'requests');
	ok(zk_until(sub { column($s, 'requests') > $requests + 1 }, 'heartbeats'), 'heartbeats are counted');
	$admin->value(q{SELECT zk_lock_break('/s/a', node) FROM zk_lock_queue('/s/a')});
	ok(zk_until(sub { $state->() eq 'lost held' }, 'one lost'), 'a node is deleted: lost, though its backend idles');
	is($admin->value(q{SELECT count(token) FROM zk_server_locks WHERE pid = } . $s->pid), 1, '- without a token');
	$s->value(q{SET client_min_messages = error; SELECT zk_unlock('/s/a')});
	is(rows($s), '/s/b exclusive session 1 granted held', 'given back');

	# it moves up, and its loss is still noticed
	$s->value(q{SELECT zk_lock('/s/c')});
	$requests = column($s, 'requests');
	zk_until(sub { column($s, 'requests') > $requests + 1 }, 'heartbeats');
	$admin->value(q{SELECT zk_lock_break('/s/c', node) FROM zk_lock_queue('/s/c')});
	ok(zk_until(sub { $state->() eq 'held lost' }, 'the other lost'), 'and another');

	# expired while the backend idles
	$proxy->blackhole;
	ok(zk_until(sub { $state->() eq 'lost lost' }, 'expired'), 'nothing heard for the session timeout: lost');
	$proxy->pass;
	$s->value(q{SELECT zk_lock('/s/d')});
	is(rows($s), '/s/b exclusive session 1 granted lost, /s/c exclusive session 1 granted lost, /s/d exclusive session 1 granted held',
		'what is lost stays that, with the session resumed or another one');
	cmp_ok(column($s, 'losses'), '==', $s->value('SELECT losses FROM zk_session'), '- losses are counted');
	$s->value('SELECT zk_unlock_all()');

	# a process that is stopped tells nothing, but the clock goes on
	$s->value(q{SELECT zk_lock('/s/e')});
	is($state->(), 'held', 'held');
	Child::suspend($s->pid);
	ok(zk_until(sub { $state->() eq 'lost' }, 'the clock'), 'a backend that is stopped: lost after the session timeout');
	kill 'CONT', $s->pid;
	$s->value('SELECT zk_unlock_all()');
	$s->quit;
	$proxy->stop;
};

subtest 'rights' => sub {
	$admin->value(q{CREATE ROLE team; CREATE ROLE owner LOGIN IN ROLE team; CREATE ROLE colleague LOGIN IN ROLE owner; CREATE ROLE stranger LOGIN;
		CREATE ROLE watcher LOGIN IN ROLE pg_read_all_stats; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO owner});
	my $s = zk_session($node, user => 'owner');
	$s->value(q{SELECT zk_lock('/secret/a'), zk_lock('/secret/b')});
	my $seen = sub {
		my ($user) = @_;
		my $by = zk_session($node, user => $user);
		my $rows = $by->value("SELECT string_agg(concat_ws(' ', path, session_state IS NOT NULL, usename), ', ' ORDER BY path) FROM zk_server_locks WHERE pid = " . $s->pid);
		my $theirs = $by->value("SELECT string_agg(concat_ws(' ', r), ', ') FROM zk_server_locks AS r WHERE pid = " . $s->pid);
		$by->quit;
		return ($rows, $theirs);
	};
	my $all = '/secret/a t owner, /secret/b t owner';
	is(($seen->($_))[0], $all, "$_ sees the rows") foreach qw(owner colleague watcher);
	my ($rows, $whole) = $seen->('stranger');
	is($rows, 'f owner', 'a stranger sees that there is a backend, and whose');
	is($whole, '(' . $s->pid . ',postgres,owner' . ',' x 21 . ')', '- and nothing else');

	# as in pg_stat_activity, it is the role that logged in
	$admin->value(q{GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO stranger});
	my $su = zk_session($node);
	$su->value(q{SET ROLE stranger; SELECT zk_lock('/secret/c')});
	is(column($su, 'usename'), $admin->value('SELECT usename FROM pg_stat_activity WHERE pid = ' . $su->pid), 'SET ROLE does not change whose it is');
	$su->quit;
	$admin->value('ALTER ROLE owner RENAME TO proprietor');
	is(column($s, 'usename'), 'proprietor', 'a role that is renamed');
	$s->quit;
	$admin->value('DROP OWNED BY proprietor, stranger; DROP ROLE team, proprietor, colleague, stranger, watcher');
};

# Backends that lock, wait, end and come back; somebody looks on all the time.
# A path that is torn would have different letters, or another's number.
subtest 'crowd' => sub {
	my $looks = 0;
	my $onlooker = zk_session($node);
	my $look = q{SELECT l FROM zk_server_locks AS l WHERE path ~ '^/t/' AND path !~ ('^/t/' || pid || '/' || left(mode, 1) || '/(\w)\1*$')
		OR state = 'lost' OR count < 1 OR count > 10 OR more NOT BETWEEN 0 AND 10 OR root <> '/zklock'};
	my @sessions = map { zk_session($node) } 1 .. $BACKENDS;
	my @ended;
	my @torn;
	srand(my $seed = $ENV{ZK_SEED} // time);
	note "ZK_SEED=$seed";
	my $does = sub {
		my ($pid) = @_;
		my $letter = chr(97 + int rand 26);
		my $own = sub { return "'/t/$pid/$_[0]/" . $letter x (1 + int rand 200) . "'"; };
		my $shared = "'/crowd/" . int(rand($BACKENDS / 4)) . "'";
		my @do = (
			'SELECT zk_lock(' . $own->('e') . ')',
			'SELECT zk_lock_shared(' . $own->('s') . ')',
			'BEGIN; SELECT zk_xact_lock(' . $own->('e') . '), zk_xact_semaphore_acquire(' . $own->('s') . ', 2); COMMIT',
			'BEGIN; SELECT zk_xact_lock(' . $own->('e') . '); SAVEPOINT s; SELECT zk_xact_lock(' . $own->('e') . '); ROLLBACK TO s; ROLLBACK',
			"SELECT zk_lock($shared, '100 ms')", "BEGIN; SELECT zk_xact_lock($shared, '100 ms'); COMMIT", 'SELECT zk_unlock_all()');
		return $do[ rand @do ];
	};
	foreach my $round (1 .. ($ENV{ZK_ROUNDS} // 2))
	{
		foreach (1 .. 3)
		{
			foreach my $s (@sessions)
			{
				my $pid = $s->pid;
				$s->send("SELECT zk_unlock_all() WHERE (SELECT count(*) FROM zk_locks) > 4; " . $does->($pid) . '; ' . $does->($pid));
			}
			until (!grep { !$_->is_done } @sessions)
			{
				push @torn, split /\n/, $onlooker->value($look);
				$looks++;
			}
			$_->wait for @sessions;
		}

		# some wait, and some end in the midst of that
		$sessions[0]->query(q{SELECT zk_unlock_all(); SELECT zk_lock('/crowd/gate')});
		my @waiters = @sessions[ 1 .. $#sessions / 2 ];
		$_->send(q{SELECT zk_lock('/crowd/gate')}) for @waiters;
		zk_wait_queued($zk, @waiters);
		foreach my $s (@sessions[ grep { $_ % 5 == 1 } 1 .. $#sessions ])
		{
			$admin->value('SELECT pg_terminate_backend(' . $s->pid . ')');
			$s->wait if $s->{mark};
			push @ended, $s->pid;
			$s->quit;
			$s = undef;
		}
		$_ //= zk_session($node) for @sessions;

		# a quiet moment: of each what it has, or how many more; and what it awaits
		my (%shown, %more, @wrong);
		foreach (split /\n/, $admin->value(q{SELECT pid, concat_ws(' ', mode, scope, path), granted, more FROM zk_server_locks WHERE path IS NOT NULL}))
		{
			my ($pid, $what, $granted, $more) = split /\|/;
			push @{ $shown{$pid}{$granted} }, $what;
			$more{$pid} = $more;
		}
		my @waiting = grep { $_->{mark} } @sessions;
		foreach my $s (@sessions)
		{
			my ($held, $awaited) = map { $shown{ $s->pid }{$_} // [] } 't', 'f';
			my $awaits = $s->{mark} ? 'exclusive session /crowd/gate' : '';
			push @wrong, $s->pid . " awaits '@$awaited'" if "@$awaited" ne $awaits;
			next if $s->{mark};
			my %own = map { $_ => 1 } split /\n/, $s->value(q{SELECT concat_ws(' ', mode, scope, path) FROM zk_locks});
			push @wrong, $s->pid . " holds '@$held' and " . ($more{ $s->pid } // 0) . ', of ' . join ', ', sort keys %own
			  if @$held + ($more{ $s->pid } // 0) != keys %own || grep { !$own{$_} } @$held;
		}
		is(zk_few(@wrong), '', "round $round: what is shown, or counted, is there, and all of it");
		my ($here, $gone) = map { join ',', @$_ } [ map { $_->pid } @sessions ], \@ended;
		is($admin->value("SELECT count(*) FROM zk_server_locks WHERE pid IN ($gone) AND pid NOT IN ($here)"), 0, '- nothing of a backend that has ended');
		$sessions[0]->value('SELECT zk_unlock_all()');
		while (@waiting)
		{
			my $next;
			zk_until(sub { ($next) = grep { $_->is_done } @waiting; $next }, 'the next');
			$next->wait;
			$next->value('SELECT zk_unlock_all()');
			@waiting = grep { $_ != $next } @waiting;
		}
	}
	is(zk_few(@torn), '', "no row was torn, in $looks looks");
	cmp_ok($looks, '>', 5, '- somebody looked');
	$_->quit for @sessions, $onlooker;
};

# A row that changes as fast as a backend can: a shared lock under an exclusive one
# is taken without ZooKeeper; when the one on the first path goes, the second moves up
subtest 'torn' => sub {
	my ($writer, $reader) = map { zk_session($node) } 1 .. 2;
	my ($a, $b) = map { '/fast/' . $_ x 200 } qw(a b);
	$writer->value("SELECT zk_lock('$a'), zk_lock('$b')");
	my %token = map { split /\|/ } split /\n/, $writer->value('SELECT path, token FROM zk_locks');
	$writer->send("DO \$\$ BEGIN LOOP
		PERFORM zk_lock_shared('$a'); PERFORM zk_lock_shared('$b');
		PERFORM zk_unlock_shared('$a'); PERFORM zk_unlock_shared('$b');
	END LOOP; END \$\$");
	zk_until(sub { $admin->value(q{SELECT count(*) FROM zk_server_locks WHERE mode = 'shared' AND pid = } . $writer->pid) }, 'the writer');
	my $wrong = $reader->query("DO \$\$ DECLARE r record; BEGIN
		FOR i IN 1 .. 10000 LOOP
			SELECT path, token, count INTO r FROM zk_server_locks WHERE pid = @{[ $writer->pid ]} AND path IS NOT NULL
				AND ((path, token) NOT IN (('$a', $token{$a}), ('$b', $token{$b})) OR count <> 1 OR state <> 'held');
			IF FOUND THEN RAISE 'torn: %', r; END IF;
		END LOOP; END \$\$");
	is($wrong->{message}, '', 'no row is torn, in 10000 looks');
	is($writer->cancel($admin)->{state}, '57014', 'while it changed all the time');
};

# In processor time of the writer, since a reader takes no lock that it could wait for
subtest 'what reading costs the writers' => sub {
	my ($writer, $reader) = map { zk_session($node) } 1 .. 2;
	plan skip_all => 'it takes two processors'
	  if system 'sh', '-c', "taskset -pc 0 @{[ $writer->pid ]} && taskset -pc 1 @{[ $reader->pid ]}";
	$writer->value(q{SELECT zk_lock('/fast/c')});
	my @took = (0, 0);
	foreach my $reads ((0, 1) x ($TIMING ? 9 : 1))
	{
		if ($reads)
		{
			$reader->send('DO $$ BEGIN LOOP PERFORM count(*) FROM zk_server_locks; END LOOP; END $$');
			zk_until(sub { $admin->value("SELECT state = 'active' FROM pg_stat_activity WHERE pid = " . $reader->pid) eq 't' }, 'the reader');
		}
		my $before = nanoseconds($writer->pid);
		$writer->value(q{DO $$ BEGIN FOR i IN 1 .. 2000 LOOP
			PERFORM zk_lock_shared('/fast/c'); PERFORM zk_unlock_shared('/fast/c');
		END LOOP; END $$});
		$took[$reads] += nanoseconds($writer->pid) - $before;
		$reader->cancel($admin) if $reads;
	}
	cmp_ok($took[1], '<', 3 * $took[0], 'a writer can go on');
	in_time($took[1] / $took[0], 1.5, 'and it costs next to nothing');
};

# The whole server is restarted, and with it the memory
subtest 'crash' => sub {
	my $s = zk_session($node);
	$s->value(q{SELECT zk_lock('/crash/a')});
	my $pid = $s->pid;
	my $session = $s->value('SELECT session_id FROM zk_session');
	$node->append_conf('postgresql.conf', 'restart_after_crash = on');
	$node->reload;
	zk_kill($node, $pid);
	$s->kill9;
	$admin->kill9;
	$admin = zk_session($node);
	is($admin->value('SELECT count(*) FROM zk_server_locks'), 0, 'a backend that crashed leaves no row');
	my $t = zk_session($node);
	$t->value(q{SELECT zk_lock('/crash/b')});
	is(rows($t), '/crash/b exclusive session 1 granted held', 'and others have theirs');
	$t->quit;
	$zk->end_session($session);
};

SKIP:
{
	skip 'this version has named shared memory', 1 if $named;
	subtest 'without shared_preload_libraries' => sub {
		my $plain = zk_cluster('plain', $zk);
		my $s = zk_session($plain);
		is($s->value(q{SELECT zk_lock('/plain')}), 't', 'locks work');
		my $result = $s->query('SELECT * FROM zk_server_locks');
		is($result->{state}, '0A000', 'the view does not');
		like($result->{hint}, qr/shared_preload_libraries/, '- and the HINT says why');
		$s->quit;
		$plain->stop;
	};
}

SKIP:
{
	skip 'before PostgreSQL 17 the memory is there from the start', 2 if !$named;

	# What each finds when the memory cannot be made
	my $does_without = sub {
		my ($full) = @_;
		my ($s, $t) = map { zk_session($full) } 1 .. 2;
		is($s->value(q{SELECT zk_lock('/full/a')}), 't', 'locks work');
		is($s->value(q{BEGIN; SELECT zk_xact_lock('/full/b'), zk_lock('/full/a'); COMMIT}), 't|t', '- and go on');
		is($t->value(q{BEGIN; SAVEPOINT s; SELECT zk_xact_lock('/full/c'); RELEASE s; COMMIT}), 't', 'in a savepoint');
		like(slurp_file($full->logfile), qr/LOG:\s+zk_server_locks cannot show this session: /, 'the log says what is missing');
		isnt($s->query('SELECT * FROM zk_server_locks')->{state}, '', 'the view says so, too');
		is($s->value('SELECT count(*) FROM zk_locks'), 1, 'nothing else is affected');
		return ($s, $t);
	};

	subtest 'no memory' => sub {
		my $full = zk_cluster('full', $zk, dynamic_shared_memory_type => 'mmap');
		my $shm = $full->data_dir . '/pg_dynshmem';
		chmod 0500, $shm or die "$shm: $!";
		my @sessions = $does_without->($full);
		chmod 0700, $shm;
		$_->quit for @sessions;
		zk_no_crash($full);
		$full->stop;
	};

	# A small /dev/shm of its own, with so much room left: none, or enough for PostgreSQL's
	# list of what has a name (a megabyte), but not for what we name
	subtest 'a full /dev/shm' => sub {
		my @private = qw(unshare --user --map-current-user --keep-caps --mount);
		plan skip_all => 'no private /dev/shm is to be had here' if system(@private, qw(mount -t tmpfs tmpfs /dev/shm));
		foreach my $left (0, 1200)
		{
			# whose slots are six megabytes; PostgreSQL wants up to three for itself
			my $full = zk_cluster("shm$left", $zk, dynamic_shared_memory_type => 'posix', max_connections => 2000);
			$full->stop;
			system_or_bail(@private, 'sh', '-c', 'mount -t tmpfs -o size=12m tmpfs /dev/shm && exec "$@"', 'sh',
				'pg_ctl', '--wait', '--silent', '--pgdata', $full->data_dir, '--log', $full->logfile, 'start');
			$full->_update_pid(1);
			my $shell = zk_session($full);
			my $run = sub { $shell->value("COPY (SELECT 1) TO PROGRAM '$_[0]'") };
			$run->("cat /dev/zero >/dev/shm/full; truncate --size=-${left}K /dev/shm/full");
			my @sessions = $does_without->($full);
			$_->quit for @sessions;
			$run->('rm /dev/shm/full');
			my $s = zk_session($full);
			is($s->value(q{SELECT zk_lock('/full/a')}), 't', "$left kB were left: with room again, locks work");
			is($s->value('SELECT path FROM zk_server_locks'), '/full/a', '- and the view shows who came since');
			note slurp_file($full->logfile) =~ /(zk_server_locks cannot show.*)/;
			$_->quit for $s, $shell;
			zk_no_crash($full);
			$full->stop;
		}
	};

	# A library that was replaced without a new number for its layout
	subtest 'another layout' => sub {
		my $tree = PostgreSQL::Test::Utils::tempdir();
		system_or_bail('cp', '-r', map({ "$FindBin::RealBin/../$_" } qw(Makefile zklock.control src)), $tree);
		system("find $tree -name '*.o' -delete");
		my $says = `make -C $tree with_llvm=no COPT='-O0 -DZKB_SLOT_TEXT=128' zklock.so 2>&1`;
		ok(-e "$tree/zklock.so", 'another library') or return diag $says;
		my $old = zk_cluster('old', $zk, session_preload_libraries => '');
		$old->safe_psql('postgres', q{CREATE DATABASE replaced});
		$old->safe_psql('replaced', qq{CREATE FUNCTION zk_lock(path text, timeout interval DEFAULT NULL) RETURNS boolean AS '$tree/zklock.so', 'zk_lock' LANGUAGE C});
		my $first = zk_session($old);
		$first->value(q{SELECT zk_lock('/layout/a')});
		is($first->value('SELECT count(*) FROM zk_server_locks'), 1, 'one has its row');
		my $second = zk_session($old, dbname => 'replaced');
		is($second->value(q{SELECT zk_lock('/layout/b')}), 't', 'the other has its lock');
		is($first->value('SELECT count(*) FROM zk_server_locks'), 1, '- and no row');
		like(slurp_file($old->logfile), qr/LOG:\s+zk_server_locks cannot show this session: /, '- as the log says');
		$_->quit for $first, $second;
		zk_no_crash($old);
		$old->stop;
	};
}

$admin->quit;
$node->stop;
zk_nothing_left($zk, 'nothing is left in ZooKeeper');

done_testing();
