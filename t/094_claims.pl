# Claims: what they cost; marks that ZooKeeper refuses, or that somebody else has
# written; and claims in places where they are rarely made.  (sql/claims.sql has what
# one session sees, t/010 those on a standby, and t/097 who gets a period when something
# fails or gets lost.)

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cost;
use Tests;

my $zk = ZooKeeper->new(config => { enforceQuota => 'true' })->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '30s');
my $elsewhere = zk_session($node);
my $hand = $zk->client;
my $MARKS = '/zklock/__zklock_claims__';

$elsewhere->value('CREATE TABLE t (i int); CREATE TABLE remote (i int UNIQUE DEFERRABLE INITIALLY DEFERRED)');
zk_foreign_server($node, loopback => $node);
$elsewhere->value(q{CREATE FOREIGN TABLE there (i int) SERVER loopback OPTIONS (table_name 'remote')});

# The period with this number
sub claim
{
	my ($path, $n, $timeout) = @_;
	return sprintf q{SELECT zk_claim('%s', to_timestamp(%d)%s)}, $path, 60 * $n, defined $timeout ? ", '$timeout'" : '';
}

# What the mark says: "7 done"
sub last_claim { return $elsewhere->value("SELECT extract(epoch FROM period)::int / 60 || ' ' || state FROM zk_last_claim('$_[0]')"); }

# ... when what is under way has been carried out
sub await_claim
{
	my ($path, $expected, $name) = @_;
	my $seen;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	eval { zk_until(sub { ($seen = last_claim($path)) eq $expected }, $path, $TIMEOUT / 3) };
	return is($seen, $expected, $name);
}

sub lock_is_free { return zk_until(sub { !zk_locks_left($zk) }, 'the lock to be free'); }

# -------------------------------------------------------------------- the costs

subtest 'what a claim costs' => sub {
	foreach my $guard (qw(off on strict))
	{
		my ($s, $proxy) = zk_counted_session($node, $zk, 20, commit_guard => $guard, release_timeout => '1s');
		my %cost;
		my $costs = sub { %cost = cost($zk, $s, $proxy, $_[0]); return join ', ', $cost{value}, @cost{qw(requests trips)} };
		like($costs->('BEGIN; ' . claim("/cost/$guard", 1)), qr/ getData exists create2\*\d getData exists, /, "$guard: the first one makes the mark");
		$s->value('COMMIT');
		is($costs->('BEGIN; ' . claim("/cost/$guard", 2)), 't, create2 getChildren getData exists, 2', "$guard: the lock, and the mark");
		is($costs->('COMMIT') . ", $cost{transactions}", ', multi*2, 2, 2', "$guard: COMMIT: the mark, and the release with it");
		is(join('|', map { $_->[7] =~ s/[^ ,]*\///gr =~ s/_c_\S+?(?=,|$)/node/gr } grep { $_->[1] eq '>' && $_->[2] eq 'multi' } $proxy->log),
			"check node,setData $guard|setData $guard,delete node", "$guard: in this order");
		like($costs->('BEGIN; ' . claim("/cost/$guard", 2)), qr/^f, create2 getChildren getData exists delete, /, "$guard: claimed already: the lock is given back at once");
		is($s->value('SELECT count(*) FROM zk_locks; COMMIT'), 0, "$guard: nothing is held");
		$s->value('BEGIN; ' . claim("/cost/$guard", 3) . "; SELECT zk_xact_lock('/cost/beside')");
		$costs->('COMMIT');
		is($cost{requests} =~ s/.* (?=multi delete|delete multi)//r =~ s/delete multi/multi delete/r,
			'multi delete', "$guard: another lock is given back as ever");
		is(scalar(() = $cost{requests} =~ /multi/g) + ($cost{requests} =~ /multi\*(\d)/ ? $1 - 1 : 0),
			$guard eq 'strict' ? 3 : 2, "$guard: and asked for as ever");
	}
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, release_timeout => '1s');
	$s->value("BEGIN; SELECT bool_and(zk_claim('/cost/many/' || i, to_timestamp(0))) FROM generate_series(1, 5) i");
	my %cost = cost($zk, $s, $proxy, 'COMMIT');
	is_deeply([ @cost{qw(requests transactions)} ], [ 'multi*6', 6 ], 'five claims: one request marks them all');
	is($s->value("SELECT string_agg(state, ' ') FROM generate_series(1, 5) i, zk_last_claim('/cost/many/' || i)"),
		'done done done done done', 'all are done');
};

# -------------------------------------------------------------------- ends of sessions

subtest 'disconnected right after' => sub {
	foreach my $n (1 .. 5)
	{
		my $result = $node->safe_psql('postgres', claim('/gone', $n));
		# the backend may not be gone when its client is
		return fail("$n: $result") if $result ne 't' || !await_claim('/gone', "$n done", "claim $n is done");
	}
	my $s = zk_session($node);
	$s->value('BEGIN; ' . claim('/gone', 6));
	is($elsewhere->value(claim('/gone', 6, $_)), 'f', "who does not wait longer than $_ gets false") for '0', '2s';
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
		zk_wait_waiting($elsewhere, $s);
		is(scalar($proxy->requests), 0, "the lock is not given up before the mark is: $way");
		$proxy->release;
		is($s->wait->{state}, '', 'then it is');
		is(join(' ', map { (split / /)[0] } $proxy->requests), 'delete', 'alone');
		await_claim('/held', '1 done', 'the mark is taken back');
		is($elsewhere->value(claim('/held', 2)), 't', 'and the period to be had');
		$elsewhere->value(q{SELECT zk_claim_forget('/held')});
	}
	zk_nothing_left($zk, 'nothing is left');
};

# -------------------------------------------------------------------- interference

subtest 'something else happens to the mark or to the node' => sub {
	my $s = zk_session($node);

	foreach (
		[ on => 'the node is deleted', sub { $hand->delete_contenders('/zklock/hand') }, '1 done' ],
		map({
				(   [ $_ => 'the mark is deleted', sub { $hand->delete("$MARKS/hand") }, '' ],
					[ $_ => 'the node is deleted', sub { $hand->delete_contenders('/zklock/hand') }, '1 done' ])
		} qw(off strict)),
		[ strict => 'the mark is written, whatever that was', sub { $hand->set("$MARKS/hand", scalar $hand->get("$MARKS/hand")) }, '1 done' ])
	{
		my ($guard, $what, $happens, $left) = @$_;
		$s->query(claim('/hand', 1));
		$s->value("SET zklock.commit_guard = $guard; BEGIN; " . claim('/hand', 2));
		$happens->();
		is($s->query('COMMIT')->{state}, '40001', "$what: COMMIT fails (guard $guard)");
		await_claim('/hand', $left, '- and has not claimed');
	}

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
};

# A session whose mark, its second one, was not answered, and that cannot come back before
# something has happened to it
sub unanswered
{
	my ($path, $happens) = @_;
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	$s->value(claim($path, 1) . '; BEGIN; ' . claim($path, 2));
	my $version = $hand->exists("$MARKS$path")->{version};
	$proxy->drop_request('mark');
	$proxy->refuse;    # new connections
	is($s->query('COMMIT')->{state}, '40001', 'no mark, and no answer');
	$happens->("$MARKS$path", $version);
	$proxy->reset;
	$proxy->pass;
	return $s;
}

subtest 'another mark of the same version' => sub {
	my $s = unanswered(
		'/anew',
		sub {
			my ($mark, $version) = @_;
			$hand->delete($mark);
			$hand->create($mark);
			$hand->set($mark, 'anew') for 1 .. $version;
		});
	lock_is_free();
	is($hand->get("$MARKS/anew"), 'anew', 'is left alone');
	$hand->delete("$MARKS/anew");
};

# The lock stays, and is not forgotten
subtest 'a mark that cannot be read any longer' => sub {
	my $s = unanswered('/unread', sub { $hand->set_acl($_[0], [ [ 31 & ~1, 'world', 'anyone' ] ]) });
	zk_until(sub { $s->value('SELECT unreleased FROM zk_session') eq '1' }, 'it to be told');
	is(zk_locks_left($zk), 1, 'the lock is not released before the mark is settled');
	like($s->query(q{SELECT zk_unlock('/unread')})->{err}, qr/WARNING: .*refuse.*NOAUTH|WARNING: .*release/s, '- which a warning tells');
	$hand->set_acl("$MARKS/unread", [ [ 31, 'world', 'anyone' ] ]);
	lock_is_free();
	is($s->value('SELECT unreleased FROM zk_session'), 0, 'nothing is left');
	await_claim('/unread', '1 done', 'and nothing was claimed');
};

# Who reads the mark when his node is gone may read one that is taken back
subtest 'the lock is lost before the mark is read' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	$s->value(claim('/early', 1));
	$proxy->hold_request('getData');
	$s->send(claim('/early', 1));
	$proxy->wait_held;
	$hand->delete_contenders('/zklock/early');
	$proxy->release;
	is($s->wait->{state}, '55000', 'an error, and not false');
};

# ---------------------------------------------------- in another extension's callback

# PostgreSQL is then in the middle of its list of callbacks at COMMIT, the latest of
# which comes first.
my $late = zk_library('extension');
my @NOT_LOADED = (options => '-c session_preload_libraries=');
subtest 'claims while COMMIT is under way' => sub {
	$elsewhere->value("CREATE FUNCTION late(text) RETURNS void LANGUAGE c AS '$late'");

	# behind the last of our callbacks nothing would write the mark
	foreach ([ claimed => '' ], [ judged => q{SELECT zk_lock('/late/other'); } ], [ behind => '' ])
	{
		my ($what, $other) = @$_;
		my ($path, $refused) = ("/late/$what", $what eq 'behind');
		my $s = zk_session($node, @NOT_LOADED);
		$s->value($refused ? q{SELECT late(''); LOAD 'zklock'} : q{LOAD 'zklock'; SELECT late('')});
		foreach my $n (1, 2)
		{
			my $result = $s->query("BEGIN; ${other}INSERT INTO t VALUES (" . ($refused ? 2 : 1) . '); SELECT late($$' . claim($path, $n) . '$$); COMMIT');
			is($result->{state}, $refused ? '55000' : '', "COMMIT, $path $n") or diag $result->{err};
			$refused ? $s->value(q{SELECT late('')}) : await_claim($path, "$n done", 'the claim has its mark');
			is($s->value(claim($path, $n)), $refused ? 't' : 'f', 'nobody gets it twice, and the session is usable');
		}
		$s->query('SELECT zk_unlock_all()');
	}
	is($elsewhere->value('SELECT count(*) FROM t WHERE i = 2'), 0, 'nothing was committed');
	zk_nothing_left($zk, 'nothing is left');
};

# The callback notifies, which makes the guard judge once more.
subtest 'COMMIT is judged twice, and drops the extension' => sub {
	my $database = 'dropped';
	$elsewhere->value("CREATE DATABASE $database");
	my $s = zk_session($node, @NOT_LOADED, dbname => $database);
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
};

# A loss is logged in the middle of a call that has got the rest.
subtest 'an error while a call that has got a lock tells of the loss of another' => sub {
	$elsewhere->value(qq{CREATE FUNCTION fail_at(text) RETURNS void LANGUAGE c AS '$late'; SELECT zk_lock('/logged/b')});
	my $s = zk_session_with($node, cancel_on_loss => 'off', session_timeout => '12s');
	$s->value(q{SELECT zk_lock('/logged/a'), fail_at('the lock on "/logged/a" was lost')});
	$s->send(q{SELECT zk_lock_many(ARRAY['/logged/a', '/logged/b'])});
	zk_wait_queued($zk, $s);
	zk_until(sub { $zk->four_letter('wchp') =~ m{^/zklock/logged/a/}m }, 'the other to be watched');
	$hand->delete_contenders('/zklock/logged/a');
	$elsewhere->value(q{SELECT zk_unlock('/logged/b')});
	my $result = $s->wait;
	is($result->{message}, 'could not log this', 'the call fails') or diag $result->{err};
	is($elsewhere->value(q{SELECT zk_lock('/logged/b', '20s')}), 't', 'and the lock that it had got is free');
	$elsewhere->value('SELECT zk_unlock_all()');
	$s->query('SELECT zk_unlock_all()');
};

# ---------------------------------------------------- marks that ZooKeeper refuses

# A quota of the mark alone, which is exceeded already, or not
sub limit
{
	my ($path, $exceeded) = @_;
	my $limits = sprintf 'count=-1,bytes=-1=;byteHardLimit=%d;countHardLimit=-1', $exceeded ? 1 : -1;
	my $made = '/zookeeper/quota';
	foreach my $part (split m{/}, "zklock/__zklock_claims__$path")
	{
		$made .= "/$part";
		eval { $hand->create($made) };
	}
	eval { $hand->create("$made/zookeeper_$_->[0]", data => $_->[1]) } for [ stats => 'count=1,bytes=1000' ], [ limits => $limits ];
	$hand->set("$made/zookeeper_limits", $limits);
	return;
}

# A session that has claimed 1 and, in a transaction, 2.  It tries again at each heartbeat.
sub claimer
{
	my ($path) = @_;
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '12s', operation_timeout => '60s');
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
	lock_is_free();
	limit('/quota/write', 0);
	is($s->value(claim('/quota/write', 2)), 't', 'nothing is claimed, and can be when there is room');
};

# The lock goes with its mark or, if that must stay pending, with the session.
my %refuse = (
	'quota exceeded' => \&limit,
	'permission denied' => sub { my ($path, $refused) = @_; return $hand->set_acl("$MARKS$path", [ [ $refused ? 17 : 31, 'world', 'anyone' ] ]); });
foreach ([ 'quota exceeded', 'undone' ], [ 'quota exceeded', 'done' ], [ 'permission denied', 'undone' ])
{
	my ($why, $end) = @$_;
	my $path = '/refused/' . "${end}_$why" =~ tr/ /_/r;
	my $settled = $end eq 'done' ? '2 done' : '1 done';

	subtest "$why: the mark cannot be made $end" => sub {
		foreach my $remedy ('it can be again', 'the backend ends')
		{
			my ($s, $proxy) = claimer($path);
			$proxy->hold('mark');
			$s->send('COMMIT');
			$proxy->wait_held;
			$refuse{$why}->($path, 1);
			is($s->cancel($elsewhere)->{state}, '57014', 'COMMIT is canceled') if $end eq 'undone';
			$proxy->release;
			is($s->wait->{state}, '', 'COMMIT succeeds') if $end eq 'done';
			zk_until(sub { $s->value('SELECT unreleased FROM zk_session') == 1 }, 'it to be refused');
			is($elsewhere->value(claim($path, 2, '0')), 'f', 'nobody gets the lock');
			is(join('|', @{ $s->query(q{SELECT zk_lock('/next'), zk_unlock('/next')})->{warnings} }),
				"ZooKeeper refused the release of a lock: $why", 'the next call warns of it');
			is($s->query(qq{SET zklock.operation_timeout = '1s'; } . claim($path, 2))->{state}, '58030', 'the same session does not take its own mark for another\'s');
			is(last_claim($path), '2 pending', 'the mark is pending');
			if ($remedy eq 'the backend ends')
			{
				$s->quit;
				lock_is_free();
				is(last_claim($path), '2 pending', "$remedy: and stays so");
			}
			$refuse{$why}->($path, 0);
			next if $remedy eq 'the backend ends';
			await_claim($path, $settled, "$remedy: then it is settled");
			lock_is_free();
			is($s->value(claim($path, 2)), $end eq 'done' ? 'f' : 't', '- and the session goes on');
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
	lock_is_free();
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
};

$hand->close;
zk_end($zk, $node);
