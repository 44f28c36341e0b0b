# What ZooKeeper itself refuses: a path closed by its ACL, a path under an
# ephemeral node, a node that may not be read, a session without authentication.
# Each is a clear error, leaves nothing behind, and the session remains usable.
#
# And what the server log tells of sessions and locks that were lost, of outages and of
# rights that were withdrawn: one line each, with the cause; and the hints of a
# connection that failed (of one that finds no quorum: t/014).

use FindBin;
use lib "$FindBin::RealBin/lib";

use Auth;
use Child;
use Tests;

use constant { READ => 1, CREATE => 4, DELETE => 8 };
use constant { EXPIRED => -112, THROTTLED => -127 };

my $zk = ZooKeeper->new(config => { enforceQuota => 'true' }, max_session_timeout => 60_000)->start;    # less than some ask for
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '20s', log_error_verbosity => 'default', shared_preload_libraries => 'zklock');
my $session = zk_session($node);
my $client = $zk->client;

sub open_to_world { return [ [ $_[0], 'world', 'anyone' ] ] }

$client->create('/zklock', mode => 'persistent');
$client->create('/zklock/closed', mode => 'persistent', acl => open_to_world(READ));
$client->create('/zklock/unlisted', mode => 'persistent', acl => open_to_world(CREATE | DELETE));
$client->create('/zklock/ephemeral', mode => 'ephemeral');
$client->create('/zklock/shy', mode => 'persistent');
my $shy = $client->create('/zklock/shy/_c_other-lock-', mode => 'ephemeral_sequential',
	acl => open_to_world(DELETE));

my @cases = (
	[ "zk_lock('/closed')", '42501', qr/permission denied by ZooKeeper for lock path "\/closed"/ ],
	[ "zk_lock('/closed/below/it')", '42501', qr/permission denied/ ],
	[ "zk_lock('/unlisted')", '42501', qr/permission denied/ ],
	[ "zk_try_lock('/unlisted')", '42501', qr/permission denied/ ],
	[ "zk_lock('/shy')", '42501', qr/permission denied/ ],
	[ "zk_lock('/ephemeral')", '55000', qr/ephemeral node/ ],
	[ "zk_lock('/ephemeral/below')", '55000', qr/ephemeral node/ ],);

for my $case (@cases)
{
	my ($call, $state, $message) = @$case;
	my $result = $session->query("SELECT $call");

	is($result->{state}, $state, "$call: $state");
	like($result->{err}, $message, "$call: says so");
	is($session->value("SELECT zk_lock('/fine'), zk_unlock('/fine')"), 't|t', "$call: the session goes on");
}

is_deeply(
	[ sort grep { !/fine/ } $zk->tree('/zklock') ],
	[ sort qw(/zklock/closed /zklock/ephemeral /zklock/shy /zklock/unlisted), $shy ],
	'no node and no directory is left of the refused calls');

$client->delete($shy);
is($session->value("SELECT zk_lock('/shy'), zk_unlock('/shy')"), 't|t', 'what was in the way is gone');

# A quota, as set by setquota -N, limits the nodes below the root, including
# directories.  ZooKeeper does not count the node that it is about to create, so
# there is no room left at all.
{
	my $s = zk_session_with($node, root => '/bounded');
	$zk->create($_) for qw(/bounded /zookeeper/quota/bounded);
	$zk->create("/zookeeper/quota/bounded/$_->[0]", 'persistent', data => $_->[1])
	  for [ zookeeper_limits => 'count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=5' ],
	  [ zookeeper_stats => 'count=1,bytes=0' ];
	is($s->value("SELECT zk_lock('/1'), zk_lock('/2')"), 't|t', 'as much as a quota allows');
	my $result = $s->query("SELECT zk_lock('/1/2/3/4')");
	is($result->{state}, '53400', 'beyond a quota: 53400') or diag $result->{err};
	like($result->{message}, qr{"/1/2/3/4" would exceed a ZooKeeper quota}, '- with the path');
	is($s->value("SELECT zk_unlock('/1'), zk_unlock('/2'), zk_lock('/1')"), 't|t|t', '- and the session goes on');
	$s->quit;
	ok(zk_until(sub { !grep { m{^/bounded/} } zk_locks_left($zk) }, 'nothing to be left'), '- and leaves nothing there');
}

# ------------------------------------------- authentication that is withdrawn

$client->close;

# From now on the ensemble requires authentication: it closes every session
# without it, and so its locks are released.
{
	my $s = zk_session_with($node, session_timeout => '12s');
	$s->value('CREATE TABLE written (i int)');
	is($s->value("SELECT zk_lock('/withdrawn')"), 't', 'before authentication is demanded: held');
	my $id = $s->value('SELECT session_id FROM zk_session');
	# it looks at them when they are lost
	$s->value('BEGIN; SET LOCAL zklock.cancel_on_loss = off');
	is($s->value("SELECT zk_xact_lock('/withdrawn/x')"), 't', 'and another in a transaction');
	$s->value('INSERT INTO written VALUES (1)');

	$zk->stop;
	$zk->{config} = { 'enforce.auth.enabled' => 'true', 'enforce.auth.schemes' => 'digest' };
	$zk->_configure;
	$zk->start;
	zk_until(sub { $s->value("SELECT string_agg(DISTINCT state, ' ') FROM zk_locks") eq 'lost' },
		'both locks are lost');
	my $commit = $s->query('COMMIT');
	is($commit->{state}, '40001', 'a session that may not authenticate has lost its locks: COMMIT fails');
	like($commit->{message}, qr{lock on "/withdrawn(?:/x)?" was lost}, '- and says so');
	is($s->value('SELECT count(*) FROM written'), '0', '- and wrote nothing');
	is($s->value("SELECT zk_unlock('/withdrawn')"), 'f', '- zk_unlock says so, too');
	my $new = $s->query("SELECT zk_lock('/withdrawn')");
	is($new->{state}, '28000', 'a new call is refused: 28000') or diag $new->{err};
	is(() = slurp_file($node->logfile) =~ /ZooKeeper no longer accepts session $id$/mg, 1, 'the log tells of it once');

	$zk->stop;
	delete $zk->{config};
	$zk->_configure;
	$zk->start;
	# whose node is there until the session ends that was not accepted
	is($s->value("SELECT zk_lock('/withdrawn'), zk_unlock('/withdrawn')"), 't|t',
		'and is granted when nobody asks for authentication any more');
}

zk_nothing_left($zk, 'nothing is left');

# ------------------------------------------------------------------ "not now"

# Whichever request is refused so, it is sent again, and nobody notices.
my %throttled = (
	'a lock' => [ [ 'SELECT zk_lock(:p)', 't' ], [ 'SELECT zk_lock(:p), zk_unlock(:p), zk_unlock(:p)', 't|t|t' ] ],
	'one that is free' => [ [ 'SELECT zk_try_lock(:p), zk_unlock(:p)', 't|t' ] ],
	'a writer becomes a reader' =>
	  [ [ 'SELECT zk_lock(:p), zk_lock_shared(:p), zk_unlock(:p), zk_unlock_shared(:p)', 't|t|t|t' ] ],
	'the same by name' => [ [ 'SELECT zk_lock(:p), zk_lock_shared(:p), zk_unlock(:p), zk_unlock_shared(:p)', 't|t|t|t' ], 'curator_rw' ],
	'several' => [ [ q{SELECT zk_lock_many(ARRAY[:p, :p || '/b']), zk_unlock(:p), zk_unlock(:p || '/b')}, 't|t|t' ] ],
	'a semaphore' => [ [ 'SELECT zk_semaphore_acquire(:p, 2), zk_semaphore_release(:p)', 't|t' ] ],
	'a single node' => [ [ 'SELECT zk_lock(:p), zk_unlock(:p)', 't|t' ], 'single' ],
	'a transaction' => [ [ 'BEGIN; SELECT zk_xact_lock(:p); COMMIT', 't' ], [ 'SELECT zk_try_lock(:p), zk_unlock(:p)', 't|t' ] ],
	'a claim' => [ [ 'SELECT zk_claim(:p, to_timestamp(60))', 't' ], [ 'SELECT state FROM zk_last_claim(:p)', 'done' ] ],
	'a claim that is forgotten' => [ [ 'SELECT zk_claim(:p, to_timestamp(60))', 't' ], [ 'SELECT zk_claim_forget(:p)', 't' ] ],
	'the views' => [
		[ 'SELECT zk_lock(:p)', 't' ],
		[ 'SELECT count(*) FROM zk_lock_queue(:p)', '1' ],
		[ 'SELECT count(*) FROM zk_lock_paths(:p)', '1' ],
		[ 'SELECT zk_unlock(:p)', 't' ] ],
	'a break' => [ [ 'SELECT zk_lock(:p)', 't' ], [ 'SELECT zk_lock_break(:p, node) FROM zk_locks', 't' ], [ 'SELECT zk_unlock(:p)', 'f' ] ],
);

foreach my $what (sort keys %throttled)
{
	subtest "throttled: $what" => sub {
		my @steps = @{ $throttled{$what} };
		my $style = ref $steps[-1] ? 'curator' : pop @steps;
		my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '60s', operation_timeout => '20s',
			node_style => $style, commit_guard => 'strict');
		my $n = 0;
		for (my $hit = 1; $hit; )
		{
			my $path = sprintf q{'/%s/%d'}, $what =~ tr/ /_/r, ++$n;
			my @wrong;
			$proxy->clear_log;
			$proxy->count_frames;
			$proxy->nth('request', $n, 'throttle');
			foreach my $step (@steps)
			{
				my ($call, $expected) = @$step;
				my $result = $s->query($call =~ s/:p/$path/gr);
				push @wrong, $call, $result->{err}, $result->{out}
				  if $result->{state} ne '' || $result->{out} ne $expected || (@{ $result->{warnings} } && $expected ne 'f');
			}
			zk_until(sub { !zk_locks_left($zk) }, 'what was taken to be gone', $MOMENT);
			$hit = grep { $_->[1] eq 'x' } $proxy->log;
			ok(!@wrong, "request $n: as if nothing had been") or diag join "\n", @wrong, zk_short($proxy->requests);
		}
		cmp_ok($n, '>', @steps, 'each request was throttled');
		$s->value('SELECT zk_unlock_all()');
	};
}

# A waiter, and those behind it
subtest 'throttled: waits' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '60s', operation_timeout => '3s');
	foreach my $op (qw(create2 getChildren getData multi sync))
	{
		$session->value(q{SELECT zk_lock('/throttled/wait')});
		$proxy->deny($op, THROTTLED, 5);
		$s->send(q{SELECT zk_lock('/throttled/wait', '1min')});
		zk_wait_queued($zk, $s);
		$session->value(q{SELECT zk_unlock('/throttled/wait')});
		is($s->wait->{out}, 't', "$op: it gets the lock");
		is($s->value(q{SELECT zk_unlock('/throttled/wait')}), 't', '- and gives it back');
		$proxy->reset;
	}

	$proxy->deny('create2', THROTTLED, 1_000_000);
	my $result = $s->query(q{SELECT zk_lock('/throttled', '1s')});
	is($result->{state}, '58030', 'until the time is over: 58030');
	like($result->{err}, qr/timeout expired.*\n.*ZooKeeper reported: request throttled\./, '- with what ZooKeeper said');
	$result = $s->query(q{SELECT zk_try_lock('/throttled')});
	is($result->{state}, '58030', 'a call that may not wait ends, too');
	like($result->{err}, qr/no usable answer within 3000 ms.*\n.*request throttled/, '- with the same');
	$s->send(q{SELECT zk_lock('/throttled')});
	$proxy->clear_log;
	$proxy->wait_for('create2', 10);
	is($s->cancel($session)->{state}, '57014', 'one without a limit can be canceled');
	$proxy->reset;
	is($s->value(q{SELECT zk_lock('/throttled'), zk_unlock('/throttled')}), 't|t', 'and the session goes on');
};

# As ZooKeeper does it, which somebody else keeps busy: what arrives while that is worked
# on has to wait, and is refused if it took a millisecond.  The server is left time for
# others, and remembers no more than it has memory for: 500 transactions.
subtest 'a server that throttles' => sub {
	my $busy = ZooKeeper->new(
		java_options => [ map { "-Dzookeeper.$_" } qw(throttled_op_wait_time=1 request_throttle_max_requests=1 request_throttle_stall_time=5) ])
	  ->start;
	my $load = q{my ($client) = ZkClient->new($ARGV[0]); while (1) { eval { $client->multi(map { [ check => '/' ] } 1 .. 100) }; sleep 0.005 }};
	my ($pid) = Child::spawn([ $^X, "-I$FindBin::RealBin/lib", qw(-MTime::HiRes=sleep -MZkClient -e), $load, $busy->hosts ]);
	my ($s, $proxy) = zk_counted_session($node, $busy, 0, session_timeout => '60s', operation_timeout => '150s', connect_timeout => '60s');
	my ($rounds, @bad) = (0);
	zk_until(
		sub {
			my $result = $s->query(q{BEGIN; SELECT zk_lock('/busy'), zk_xact_lock_shared('/busy/b'); COMMIT; SELECT zk_unlock('/busy')});
			push @bad, $result->{err} if $result->{state} ne '' || $result->{out} ne "t|t\nt";
			$rounds++;
			return @bad || ($rounds >= 5 && 3 <= grep { $_->[1] eq '<' && $_->[5] eq THROTTLED } $proxy->log);
		},
		'it to be throttled');
	ok(!@bad, 'each lock is taken and given back, however often that is refused') or diag @bad;
	Child::kill9($pid);
	$s->quit;
	zk_until(sub { !$busy->ephemerals }, 'nothing to be left there');
	$busy->stop;
};

# ------------------------------------------------- answers that leave all open

sub is_open
{
	my ($s, $call, $says) = @_;
	my $result = $s->query("SELECT $call");
	is($result->{state}, '58030', "$call: 58030");
	like($result->{err}, $says, '- with what ZooKeeper said') or diag $result->{err};
	like($result->{err}, qr/localSessionsUpgradingEnabled/, '- and what is missing');
	return;
}

subtest 'doubt without end' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '60s');
	my %calls = (create2 => 'zk_lock(%s)', getChildren => 'zk_lock(%s)', multi => q{zk_lock_many(ARRAY[%s, '/doubt/z'])});
	foreach my $op (sort keys %calls)
	{
		my $call = sprintf $calls{$op}, "'/doubt/$op'";
		$proxy->deny($op, EXPIRED, 1_000_000);
		$s->value(q{SET zklock.operation_timeout = '1s'});
		is_open($s, $call, qr/no usable answer within 1000 ms.*\n.*ZooKeeper reported: session expired\./);
		$proxy->reset;
		$s->value('RESET zklock.operation_timeout');
		is($s->query("SELECT $call, zk_unlock_all() > 0")->{out}, 't|t', 'and the session goes on');
	}
};

# To a multi a follower gives the leader's answer, which is another one.
subtest 'local sessions' => sub {
	my $ensemble = ZooKeeper->ensemble(2, config => { localSessionsEnabled => 'true' });
	my ($local) = $ensemble->followers;
	my $s = zk_session_with($node, hosts => $local, session_timeout => '20s');
	$s->value(q{SET zklock.operation_timeout = '2s'});
	$local->create('/zklock');
	$local->create("/zklock/$_") for qw(a b);
	my %says = (
		q{zk_lock('/a')} => qr/local/,
		q{zk_try_lock('/a')} => qr/local/,
		q{zk_semaphore_acquire('/a', 2)} => qr/local/,
		q{zk_lock_many(ARRAY['/a', '/b'])} => qr/ZooKeeper reported: session expired/);
	is_open($s, $_, $says{$_}) for sort keys %says;
	$ensemble->stop;
	foreach ($ensemble->nodes) { $_->{config}{localSessionsUpgradingEnabled} = 'true'; $_->_configure; }
	$ensemble->start;
	$s->value('RESET zklock.operation_timeout');
	is($s->query("SELECT $_, zk_unlock_all() > 0")->{out}, 't|t', "with upgrading, $_") for sort keys %says;
	$s->quit;
	$ensemble->stop;
};
$session->quit;

# ------------------------------------------------------- what the server log tells

my $proxy = ZkProxy->new($zk);
my $bare = zk_session($node);

# The lines of that backend since a place of the log, with their details and hints;
# not its errors
sub told
{
	my ($s, $from) = @_;
	my $pid = $s->pid;
	my ($log, $is_error) = (slurp_file($node->logfile, $from), 0);
	my @lines;
	while ($log =~ /\[$pid\][^\n]*? (LOG|WARNING|ERROR|FATAL|DETAIL|HINT):  ([^\n]*)/g)
	{
		$is_error = $1 eq 'ERROR' || $1 eq 'FATAL' if $1 ne 'DETAIL' && $1 ne 'HINT';
		push @lines, $2 unless $is_error;
	}
	return @lines;
}

sub told_only
{
	my ($s, $from, $name, @expected) = @_;
	# nothing is said again, whatever the backend does
	foreach (1 .. 3)
	{
		$s->query($_) foreach 'SELECT 1', 'SELECT state FROM zk_session', 'SELECT count(*) FROM zk_locks', "SELECT zk_lock_token('/none')", 'BEGIN; ROLLBACK';
	}
	my @lines = told($s, $from);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar @lines, scalar @expected, "$name: said once") or diag join "\n", @lines;
	# which of two comes first depends on who has noticed it
	foreach my $line (@expected)
	{
		my ($i) = grep { $lines[$_] =~ $line } 0 .. $#lines;
		ok(defined $i, "$name: $line") or diag join "\n", @lines;
		splice @lines, $i, 1 if defined $i;
	}
	return;
}

sub log_end { return -s $node->logfile; }

# Its backend learns of it by itself, and tells it at its next statement, whatever that is
subtest 'locks that are lost while nothing is done with them' => sub {
	my $s = zk_session($node);
	$s->value(q{SELECT zk_lock('/idle/a'), zk_lock('/idle/b'), zk_lock_shared('/idle/b'), zk_lock('/idle/c')});
	my $lost = sub { return $bare->value(qq{SELECT count(*) FROM zk_server_locks WHERE state = 'lost' AND pid = } . $s->pid); };
	my $from = log_end();
	$zk->with_client(sub { $_[0]->delete_contenders('/zklock/idle/b') });
	zk_until(sub { $lost->() == 2 }, 'the loss to be known');
	is(scalar told($s, $from), 0, 'nothing is told while the backend does nothing');
	$s->value('SELECT 1');
	my @told = (qr{^the lock on "/idle/b" was lost$}, qr/^Its node in ZooKeeper was deleted\.$/);
	is(scalar told($s, $from), 2, 'at the next statement it is');
	told_only($s, $from, 'one of three', @told);

	$from = log_end();
	my $id = $s->value('SELECT session_id FROM zk_session');
	$zk->end_session($id, $s->pid);
	zk_until(sub { $lost->() == 4 }, 'the loss to be known');
	$s->value('SELECT 1');
	my @ended = (qr/^ZooKeeper ended the session that held it\.$/);
	told_only($s, $from, 'the session', qr/^ZooKeeper session $id was lost$/, qr/^ZooKeeper ended the session, or/,
		qr{^the lock on "/idle/a" was lost$}, @ended, qr{^the lock on "/idle/c" was lost$}, @ended);
};

# The loss is a reason to cancel what tells it
subtest 'a session that ends while the backend looks at it' => sub {
	my $s = zk_session($node);
	foreach my $n (1 .. 10)
	{
		$s->value("BEGIN; SELECT zk_xact_lock('/looked/$n')");
		my $id = $s->value('SELECT session_id FROM zk_session');
		my $from = log_end();
		$s->send('DO $$BEGIN LOOP PERFORM FROM zk_locks; PERFORM FROM zk_session; END LOOP; END$$');
		$zk->end_session($id, $s->pid);
		is($s->wait->{state}, '40001', 'it is canceled');
		$s->query('ROLLBACK');
		$s->query('SELECT state FROM zk_session');
		my @lines = told($s, $from);
		is(scalar(grep { $_ eq "ZooKeeper session $id was lost" } @lines), 1, 'the loss of the session is told once') or diag join "\n", @lines;
		cmp_ok(scalar(grep { /^the lock on/ } @lines), '<=', 1, 'and that of the lock at most once');
	}
};

# An outage is told of if it lasted for a third of the timeout
subtest 'outages' => sub {
	my $s = zk_session_with($node, hosts => $proxy, session_timeout => '12s');
	$s->value(q{SELECT zk_lock('/outage')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	my $from = log_end();
	$proxy->drop;
	zk_until(sub { $s->value('SELECT reconnections FROM zk_session') >= 1 }, 'the session to be back');
	told_only($s, $from, 'a short one');

	$from = log_end();
	$proxy->cut_off;
	sleep 4.2;    # a third of the timeout
	$proxy->pass;
	zk_until(sub { $s->value('SELECT state FROM zk_session') eq 'connected' }, 'the session to be back');
	told_only($s, $from, 'a longer one', qr/^ZooKeeper session $id reconnected after \d{4,5} ms$/, qr/^The last connection error was: .+\. The session's locks would have been lost after 12000 ms\.$/,
		qr/^Check that ZooKeeper is running/);
	is($s->value('SELECT state FROM zk_locks'), 'held', '- and the lock is held');

	$from = log_end();
	$proxy->cut_off;
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	my $refused = $s->query(q{SET zklock.operation_timeout = '300ms'; SET zklock.connect_timeout = '300ms'; SELECT zk_lock('/other')});
	is($refused->{state}, '58000', 'a call fails');
	$proxy->pass;
	zk_until(sub { $s->value('SELECT state FROM zk_session') =~ /none|^connected/ }, 'the session to be over, or back');
	told_only($s, $from, 'one that is too long', qr{^the lock on "/outage" was lost$}, qr/^Nothing was heard/,
		qr/^ZooKeeper session $id was lost$/, qr/^Nothing was heard from ZooKeeper for the whole session timeout of 12000 ms\. The last connection error was: Connection refused\.$/,
		qr/^Check that ZooKeeper is running/);
};

# Each value once, however often the session connects, or another one begins
subtest 'a timeout that is not granted' => sub {
	my $s = zk_session_with($node, hosts => $proxy, session_timeout => '90s');
	my $from = log_end();
	my $hint = qr/^The server's minSessionTimeout and maxSessionTimeout/;
	$s->value(q{SELECT zk_lock('/granted')});
	foreach my $n (1, 2)
	{
		$proxy->drop;
		zk_until(sub { $s->value('SELECT reconnections FROM zk_session') == $n }, 'the session to be back');
	}
	$s->value(q{SELECT zk_unlock('/granted'); SET zklock.session_timeout = '80s'; SELECT zk_lock('/granted'), zk_unlock('/granted')});
	is($s->value('SELECT session_timeout FROM zk_session'), '00:01:00', 'a second session, with as much');
	told_only($s, $from, 'less', qr/^ZooKeeper granted a session timeout of 60000 ms, but zklock\.session_timeout is 90000 ms$/, $hint);
	$from = log_end();
	$s->value(q{SET zklock.session_timeout = '30s'; SELECT zk_lock('/granted')});
	told_only($s, $from, 'what was asked');
};

# What they are otherwise: t/078
subtest 'rights that are withdrawn' => sub {
	my $s = zk_session($node);
	my $other = $zk->client;
	$other->add_auth('digest', 'somebody:else');
	my $acl = creator_acl('somebody:else');
	$s->value(q{SELECT zk_lock('/acl/kept')});

	# of the node
	$s->value(q{CREATE TEMP TABLE t (); BEGIN; SELECT zk_xact_lock('/acl/node'); INSERT INTO t DEFAULT VALUES; SET LOCAL zklock.commit_guard = strict});
	my ($name) = grep { /-lock-/ } $other->children('/zklock/acl/node');
	$other->set_acl("/zklock/acl/node/$name", $acl);
	my $from = log_end();
	is($s->query('COMMIT')->{state}, '40001', 'a transaction that relied on it does not commit');
	told_only($s, $from, 'the node', qr{^the lock on "/acl/node" was lost$}, qr/^ZooKeeper no longer lets this session see the lock's node\.$/);

	# of the directory
	$s->value(q{BEGIN; SELECT zk_xact_lock('/acl/dir')});
	$other->set_acl('/zklock/acl/dir', $acl);
	$from = log_end();
	$s->value('COMMIT');
	zk_until(sub { $s->value('SELECT unreleased FROM zk_session') == 1 }, 'the refusal');
	$s->value(q{SELECT zk_try_lock('/acl/free'), zk_unlock('/acl/free')}) for 1 .. 3;
	told_only($s, $from, 'the directory', qr/^ZooKeeper refused the release of a lock: permission denied$/, qr{^Node "/zklock/acl/dir/_c_[^"]+" could not be deleted}, qr/./);
	$other->set_acl('/zklock/acl/dir', world_acl());
	$s->quit;
	$other->close;
};

# As a server that has too many connections from one host (a real one: t/093)
my $full = ZkProxy->new($zk);
$full->refuse(at_accept => 1);

subtest 'why there is no connection' => sub {
	my ($greets) = Child::serve(sub { print { $_[0] } "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"; return sysread $_[0], my $ignored, 1000; });
	$proxy->blackhole;
	my @case = (
		[ 'a name that does not resolve', 'no.such.host.invalid:2181', qr/host names in zklock\.hosts/ ],
		[ 'a port where nobody listens', '127.0.0.1:1', qr/ZooKeeper is running/ ],
		[ '- beside a name that does not resolve', '127.0.0.1:1,no.such.host.invalid:2181', qr/host names in zklock\.hosts/ ],
		[ 'no answer', $proxy->hosts, qr/firewall/ ],
		[ 'something else', $greets, qr/another program answers there/ ],
		[ '- beside two that refuse', "127.0.0.1:1,$greets,127.0.0.2:1", qr/another program answers there/ ],
		[ 'too many connections', $full->hosts, qr/does this when one host opens more connections than its maxClientCnxns\..* zklock\.idle_timeout: / ],
		[ '- beside one that refuses', '127.0.0.1:1,' . $full->hosts, qr/more connections than its maxClientCnxns/ ],
		[ '- beside one that is silent', $proxy->hosts . ',' . $full->hosts, qr/maxClientCnxns/ ],
		[ 'forty', join(',', map { "127.0.0.$_:1" } 1 .. 40), qr/ZooKeeper is running/ ]);
	# at the same time, since each waits
	my @s = map { zk_session_with($node, hosts => $_->[1], connect_timeout => '4s')->send(q{SELECT zk_lock('/a')}) } @case;
	my $result;
	foreach my $n (0 .. $#case)
	{
		$result = $s[$n]->wait;
		is("$result->{state} $result->{message}", '58000 could not connect to ZooKeeper', "$case[$n][0]: 58000");
		like($result->{hint}, $case[$n][2], '- with the hint');
	}
	like($result->{detail}, qr/^The last attempts failed: (?:127\.0\.0\.\d+:1: Connection refused; ){3}/, 'forty: each');
	cmp_ok(length $result->{detail}, '<', 450, '- as far as there is room');
	$proxy->pass;
};

# The same for a session that is cut off
subtest 'why there is none any longer' => sub {
	my $s = zk_session_with($node, hosts => $proxy, session_timeout => '24s');
	my $fails = sub {
		my ($hint, $name) = @_;
		my $result;
		zk_until(sub { $result = $s->query(q{SELECT zk_lock('/b')}); $result->{hint} =~ $hint }, $name);
		is($result->{state}, '58030', "$name: 58030");
		like($result->{hint}, qr/\. Locks of this session are suspect until the connection is restored; see zk_locks\.$/, '- and what it means');
		$proxy->pass;
		zk_until(sub { $s->value('SELECT state FROM zk_session') eq 'connected' }, 'the session to be back');
		return;
	};
	$s->value(q{SELECT zk_lock('/a'); SET zklock.operation_timeout = '500ms'});
	$proxy->refuse;
	$proxy->drop;
	$fails->(qr/^Check that ZooKeeper is running/, 'nobody listens');
	$proxy->blackhole;
	$fails->(qr/^Check the network, and whether /, 'silence');
	$proxy->refuse(at_accept => 1);
	$proxy->drop;
	$fails->(qr/maxClientCnxns\..* zklock\.idle_timeout: .* Locks/, 'too many connections');
};

is_deeply([ told($bare, 0) ], [], 'a backend without a session says nothing');
zk_end($zk, $node);
