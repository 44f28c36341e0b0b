# zklock.acl = creator: what zklock creates is closed to clients without its
# credential, be it SQL or whatever a client can send; those who share the
# credential do exclude each other; and everything works as without it.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Auth;
use Peer;
use Tests;

my %secret = (ann => 'ann:leaves', bob => 'bob:stones');
my %file = map { ($_ => auth_file("digest:$secret{$_}\n")) } keys %secret;

my $zk = ZooKeeper->new(superuser => 1)->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '10s');
my $admin = zk_session($node);

# ann and anne have the same credential, bob another one; postgres, the superuser, has none
my %credential = (ann => 'ann', anne => 'ann', bob => 'bob');
foreach my $role (sort keys %credential)
{
	$admin->value("CREATE ROLE $role LOGIN; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO $role");
	$admin->value("ALTER ROLE $role SET zklock.$_") for "auth_file = '$file{ $credential{$role} }'", 'acl = creator', 'commit_guard = strict';
}

# A session with credentials of its own: settings without "zklock."
sub session_with
{
	my (%setting) = @_;
	%setting = (acl => 'creator', auth_file => $file{ann}, %setting);
	return zk_session_with($node, %setting);
}

# One test: this node and all below it have that ACL.
sub all_have
{
	my ($acl, $name, $top) = @_;
	my @paths = ($top, $zk->tree($top));
	my %is = $zk->with_client(sub { my ($client) = @_; return map { my $path = $_; eval { ($path => [ $client->get_acl($path) ]) } } @paths; });    # some are reaped meanwhile
	my $n = keys %is;
	my %wrong = map { ($_ => $is{$_}) } grep { !eq_array($is{$_}, $acl) } sort keys %is;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($n > 0 && !%wrong, "$name ($n nodes)") or diag explain \%wrong;
	return;
}

my $CLOSED = creator_acl($secret{ann});

# Two tests: refused, with a hint that helps.
sub is_refused
{
	my ($result, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '42501', "$name: 42501") or diag $result->{out}, $result->{err};
	like($result->{hint}, qr/zklock\.auth_file/, '- with a hint');
	return;
}

# ------------------------------------------------------ all that zklock can do

# Who does what, and what comes of it; and who waits for that, and gets it then.  After
# each, all is closed.
my @steps = (
	[ s => "zk_lock('/a/b/c')", 't' ],
	[ t => "zk_try_lock('/a/b/c'), zk_try_lock_shared('/a/b/c'), zk_lock('/a/b/c', '50ms')", 'f|f|f' ],
	[ s => "zk_unlock('/a/b/c')", 't', t => "zk_lock('/a/b/c')" ],
	[ t => "zk_unlock('/a/b/c')", 't', s => "zk_lock_shared('/a/b/c')" ],
	[ t => "zk_lock_shared('/a/b/c')", 't' ],
	[ t => "zk_unlock_shared('/a/b/c')", 't' ],
	# up, and down
	[ s => "zk_lock('/a/b/c')", 't' ],
	[ s => "zk_unlock_shared('/a/b/c'), zk_lock_shared('/a/b/c'), zk_unlock('/a/b/c')", 't|t|t' ],
	[ t => "zk_try_lock('/a/b/c'), zk_try_lock_shared('/a/b/c'), zk_unlock_shared('/a/b/c')", 'f|t|t' ],
	[ s => "zk_unlock_shared('/a/b/c')", 't', t => "zk_lock('/a/b/c')" ],
	[ s => "zk_semaphore_acquire('/places', 2)", 't' ],
	[ t => "zk_semaphore_acquire('/places', 2)", 't' ],
	[ u => "zk_semaphore_acquire('/places', 2, '50ms')", 'f' ],
	[ s => "zk_semaphore_release('/places')", 't', u => "zk_semaphore_acquire('/places', 2)" ],
	[ s => q{zk_lock_many('{/m/one,/m/two/deep,/n,/m}')}, 't' ],
	[ t => q{zk_lock_many('{/z,/n}', '0')}, 'f' ],
	[ s => 'zk_unlock_all() > 0', 't', t => q{zk_lock_many('{/n,/y,/m/one}')} ],
	[ t => 'zk_unlock_all()', '5' ],
	[ s => 'BEGIN', '' ],
	[ s => "zk_xact_lock('/x/1'); SAVEPOINT p; SELECT zk_xact_lock_shared('/x/2'), zk_xact_semaphore_acquire('/x/3', 1), zk_lock('/x/4')", "t\nt|t|t" ],
	[ t => "zk_try_lock('/x/1'), zk_try_lock('/x/2'), zk_semaphore_acquire('/x/3', 1, '0'), zk_try_lock('/x/4')", 'f|f|f|f' ],
	[ s => 'ROLLBACK TO p', '' ],
	[ s => "zk_fence('/x/1') = zk_lock_token('/x/1')", 't' ],
	[ t => "zk_lock('/x/2'), zk_semaphore_acquire('/x/3', 1), zk_lock('/x/4'), zk_unlock_all()", 't|t|t|3' ],
	[ s => 'COMMIT', '', t => "zk_lock('/x/1')" ],
	[ s => "position, granted, zk_lock_break('/x/1', node) FROM zk_lock_queue('/x/1')", '1|t|t' ],
	[ t => "zk_unlock('/x/1')", 'f' ],
	[ s => q{zk_claim('/job/daily', '2026-01-01')}, 't' ],
	[ t => q{zk_claim('/job/daily', '2026-01-01')}, 'f' ]);

# (curator's names are those of all that comes after this)
foreach my $style (qw(curator_rw kazoo))
{
	zk_leaves_nothing $zk, "every function, style $style" => sub {
		my %s = map { $_ => session_with(node_style => $style, root => "/each/$style") } qw(s t u);
		foreach my $step (@steps)
		{
			my ($who, $call, $answer, $waiter, $wish) = @$step;
			if ($waiter)
			{
				$s{$waiter}->send("SELECT $wish");
				zk_wait_queued($zk, $s{$waiter});
				all_have($CLOSED, 'nobody else sees the waiter', '/each');
			}
			is($s{$who}->value($call =~ /^[A-Z]/ ? $call : "SELECT $call"), $answer, $call);
			is($s{$waiter}->wait->{out}, 't', "- then: $wish") if $waiter;
			all_have($CLOSED, '- closed', '/each');
		}
		zk_until(sub { $s{t}->value(q{SELECT state FROM zk_last_claim('/job/daily')}) eq 'done' }, 'the claim to be settled');
		all_have($CLOSED, 'its mark is closed', '/each');
		my $stranger = zk_session_with($node, root => "/each/$style");
		is_refused($stranger->query("SELECT * FROM $_"), "$_ without the credential")
		  for q{zk_last_claim('/job/daily')}, q{zk_claim_forget('/job/daily')}, q{zk_claim('/job/daily', now())};
		$zk->delete_tree("/each/$style/__zklock_claims__");    # which would stay for ever
	};
}

subtest 'a single node' => sub {
	my ($ann, $anne, $bob) = map { session_with(node_style => 'single', root => '/each/single', auth_file => $file{$_}) } qw(ann ann bob);
	is($ann->value("SELECT zk_lock('/a/b')"), 't', 'is had');
	all_have($CLOSED, '- and closed, with its directories', '/each/single');
	$anne->send("SELECT zk_lock('/a/b')");
	zk_until(sub { $zk->watch_count > 0 }, 'it to be watched');
	is($bob->query('SELECT ' . $_)->{state}, '42501', "$_ by others: 42501") for "zk_lock('/a/b')", "zk_try_lock('/a/b')";
	is($ann->value("SELECT zk_unlock('/a/b')"), 't', 'given back');
	is($anne->wait->{out}, 't', 'who waited has it');
};

subtest 'directories that ZooKeeper removes are closed when made again' => sub {
	my $s = session_with(root => '/reaped');
	for (1, 2)
	{
		$s->value("SELECT zk_lock('/x/y/z')");
		all_have($CLOSED, 'closed with its directories', '/reaped');
		$s->value("SELECT zk_unlock('/x/y/z')");
		zk_until(sub { $zk->reap('/reaped') }, 'the directories to be removed');
	}
};

subtest 'world: open to all' => sub {
	foreach my $file ('', $file{ann})
	{
		my $s = session_with(acl => 'world', auth_file => $file, root => '/open');
		$s->value(q{SELECT zk_lock('/a/b'), zk_lock_shared('/c'), zk_semaphore_acquire('/d', 1), zk_lock_many('{/e,/f/g}'),
			zk_lock('/h'), zk_lock_shared('/h'), zk_unlock('/h')});
		all_have(world_acl(), $file ? 'also with a credential' : 'without a credential', '/open');
	}
	my $s = session_with(acl => 'world', root => '/both');
	my $t = session_with(root => '/both');
	is($t->value("SELECT zk_lock('/x')"), 't', 'a directory that is closed');
	is($s->value("SELECT zk_try_lock('/x')"), 'f', '- is open to who has the credential, whatever its own nodes are');
};

subtest 'acl and node_style are read at each call' => sub {
	my $s = session_with(acl => 'world', root => '/each/call');
	$s->value("SELECT zk_lock('/world')");
	my $id = $s->value('SELECT session_id FROM zk_session');
	is($s->value("SET zklock.acl = creator; SET zklock.node_style = kazoo; SELECT zk_lock('/closed'), zk_lock_many('{/both/a,/both/b}')"),
		't|t', 'both changed while a lock is held');
	all_have(world_acl(), '- which stays as it was made', "/each/call/world");
	all_have($CLOSED, "- while others are closed, $_", "/each/call/$_") for qw(closed both);
	like($_, qr/__lock__/, '- and have names as they shall have now') for map { $zk->children("/each/call/$_") } qw(closed both/a both/b);
	is($s->value('SELECT session_id FROM zk_session'), $id, '- in the same ZooKeeper session');
	is($s->value("SET zklock.acl = world; SET zklock.node_style = curator; SELECT zk_lock('/open'), zk_lock_shared('/closed'), zk_unlock('/closed')"),
		't|t|t', 'and back');
	all_have(world_acl(), '- they are open', '/each/call/open');
	like(($zk->children('/each/call/closed'))[0], qr/__rlock__/, '- and one that becomes a reader by another name');
	all_have($CLOSED, '- is closed as before', '/each/call/closed');
	my $user = session_with(root => '/each/call');
	is($user->value("SELECT zk_lock('/inner')"), 't', 'a session that closes');
	$admin->value(q{CREATE FUNCTION open_lock(text) RETURNS boolean LANGUAGE sql SECURITY DEFINER
		SET zklock.acl = world AS 'SELECT zk_xact_lock($1)'});
	is($user->value("BEGIN; SELECT open_lock('/of-a-function'), zk_lock('/after')"), 't|t', '- and calls a function that opens');
	all_have(world_acl(), '- whose lock is open', '/each/call/of-a-function');
	all_have($CLOSED, '- and its own are not', "/each/call/$_") for qw(inner after);
	$user->value('COMMIT');
	$_->quit for $s, $user;

	# no credentials: they are not in this ZooKeeper session
	$s = session_with(acl => 'world', auth_file => '', root => '/each/call');
	is($s->value("SELECT zk_lock('/world')"), 't', 'a session that has none');
	$s->value("SET zklock.acl = creator");
	my $r = $s->query("SELECT zk_lock('/closed')");
	is($r->{state}, '55000', '- closes nothing') or diag $r->{err};
	is($r->{detail}, '', '- as no file is set');
	$s->value("SET zklock.auth_file = '$file{ann}'");
	$r = $s->query("SELECT zk_lock('/closed')");
	is($r->{state}, '55000', '- nor when one is set, as long as it holds something');
	like($r->{detail}, qr/was opened without/, '- which it is told');
	is($s->value("SELECT zk_lock('/world'), zk_unlock('/world'), zk_unlock('/world'), zk_lock('/closed')"), 't|t|t|t', '- but then');
	all_have($CLOSED, '- it does', '/each/call/closed');
	$s->quit;

	# a credential has been added to the file
	my $file = auth_file("# none\n");
	$s = session_with(acl => 'world', auth_file => $file, root => '/each/call');
	is($s->value("SELECT zk_lock('/world'), zk_unlock('/world')"), 't|t', 'an empty file');
	append_to_file($file, "digest:$secret{ann}\n");
	is($s->value("SET zklock.acl = creator; SELECT zk_lock('/closed')"), 't', '- that is not empty any more');
	all_have($CLOSED, '- it closes', '/each/call/closed');
	$s->quit;
};

# --------------------------------------------------------- closed to strangers

# ann's: a lock that is held and waited for, a shared one, a semaphore.  Some
# are in a directory that is open to all, as an administrator would make it for
# several roles; the rest in one that is closed from the top.
zk_until(sub { $zk->reap('/zklock') }, 'the closed one to go');
$zk->create('/zklock');
my ($holder, $waiter) = (zk_session($node, user => 'ann'), zk_session($node, user => 'anne'));
$holder->value("SELECT zk_lock('/held'), zk_lock_shared('/read'), zk_semaphore_acquire('/places', 1), zk_lock('/deep/er')");
$waiter->send("SELECT zk_lock('/held')");
zk_wait_queued($zk, $waiter);
my $closed_root = session_with(root => '/closed');
$closed_root->value("SELECT zk_lock('/held')");

# One test: everything is as before, for its owners, too.
zk_until(sub { 4 == grep { $zk->reap("/$_") } qw(both open each reaped) }, 'what is empty to be removed');
my @before = $zk->tree('/');
my $ephemerals = $zk->ephemerals_count;

sub all_is_as_it_was
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	zk_until(sub { $zk->ephemerals_count == $ephemerals }, 'no node more or less');
	my %is = map { $_ => 1 } $zk->tree('/');
	my %was = map { $_ => 1 } @before;
	# an empty directory may go
	is_deeply(
		[ [ grep { !$was{$_} } sort keys %is ], [ grep { !$is{$_} } @before ] ], [ [], [] ],
		"$name: no node has come or gone");
	is($holder->value(q{SELECT string_agg(DISTINCT state, ' ') FROM zk_locks}), 'held', '- and the locks are held');
	ok(!$waiter->is_done, '- and waited for');
	return;
}

# (The directories are closed like these for whatever else a client can send: all_have.)
foreach my $who (qw(bob postgres))
{
	subtest "closed to $who, from SQL" => sub {
		my $s = zk_session($node, user => $who);
		foreach my $path ('/held', '/held/below', '/read', '/places', '/deep', '/deep/er', '/deep/new/one')
		{
			is_refused($s->query("SELECT $_"), $_)
			  for (map { "$_('$path')" } qw(zk_lock zk_lock_shared zk_xact_lock zk_xact_lock_shared zk_try_lock zk_try_lock_shared zk_try_xact_lock zk_try_xact_lock_shared)),
			  "zk_lock('$path', '1min')", "zk_lock('$path', '0')", "zk_lock_many('{$path}')", "zk_lock_many('{/aa,/zz,$path}')",
			  "zk_xact_lock_many('{$path,/zz}', '1min')", "zk_semaphore_acquire('$path', 5)", "zk_semaphore_acquire('$path', 5, '0')",
			  "zk_xact_semaphore_acquire('$path', 5)";
			like($s->query("SELECT zk_lock_many('{/zz,$path}')")->{message}, qr/"\Q$path\E"/, '- which names the path');
			next if $path =~ /below|new/;
			is_refused($s->query("SELECT * FROM zk_lock_queue('$path')"), "the queue of $path");
			my ($theirs) = map { s{.*/}{}r } grep { m{^/zklock$path/[^/]*\d{10}$} } @before;
			is_refused($s->query("SELECT zk_lock_break('$path', '$theirs')"), "to break $path") if $theirs;
		}
		is($s->value('SELECT count(*) FROM zk_locks'), 0, 'nothing is held');
		is($s->value(qq{SELECT zk_lock_many('{/aa-$who,/zz-$who}'), zk_unlock_all()}), 't|2', 'other paths may be locked') if $who ne 'postgres';

		my %setting = (root => '/closed');
		@setting{qw(auth_file acl)} = $who eq 'bob' ? ($file{bob}, 'creator') : ('', 'world');
		$s = session_with(%setting);
		is_refused($s->query("SELECT $_"), "a root that is closed: $_")
		  for "zk_lock('/held')", "zk_try_lock('/free')", "zk_lock_many('{/a,/b}')", "zk_semaphore_acquire('/free', 1)", "* FROM zk_lock_queue('/held')";
		$s->quit;
		zk_until(sub { !grep { /^(?:aa|zz)/ && !$zk->reap("/zklock/$_") } $zk->children('/zklock') }, 'what was locked beside to go');
		all_is_as_it_was('after that');
	};
}

subtest 'closed to strangers, whatever they send' => sub {
	all_have($CLOSED, 'each directory and node', $_) for '/zklock/held', '/zklock/read', '/zklock/places', '/zklock/deep', '/closed';
	my $client = ZkClient->new($zk->hosts);
	$client->add_auth('digest', $secret{bob});
	my ($node) = grep { m{^/zklock/held/} } @before;
	foreach my $path ('/zklock/held', $node)
	{
		ok(!eval { $client->get($path); 1 } && $@ =~ /NOAUTH/, "as ZooKeeper tells who reads $path");
		ok(!eval { $client->delete($path); 1 } && $@ =~ /NOAUTH|NOTEMPTY/, '- or deletes it');
	}
	$client->close;
};

subtest 'those who share the credential' => sub {
	my $peer = Peer->new(kazoo => $zk);
	$peer->ask("auth digest $secret{ann}");
	is($peer->ask('acquire /zklock/held 100'), 'timeout', 'kazoo is let in, and waits');
	$peer->send('acquire /zklock/held -1');
	zk_until(sub { $zk->children('/zklock/held') == 3 }, 'kazoo to stand in the queue');
	is($admin->query("SELECT zk_lock('/held', '0')")->{state}, '42501', '- others are not');
	$holder->value("SELECT zk_unlock('/held')");
	is($waiter->wait->{out}, 't', 'anne, who came before, gets the lock from ann');
	ok(!$peer->is_done, '- kazoo does not');
	$waiter->value("SELECT zk_unlock('/held')");
	like($peer->wait, qr/^ok [1-9]/, '- but from anne');
	all_have($CLOSED, 'all closed', '/zklock/held');
	$holder->send("SELECT zk_lock('/held')");
	zk_wait_queued($zk, $holder);
	$peer->ask('release /zklock/held');
	is($holder->wait->{out}, 't', 'and ann gets it from kazoo');
	$peer->quit;
};

$_->quit for $holder, $waiter, $closed_root;
zk_nothing_left($zk, 'nothing is left');

# It stays as open as it was: the nodes in it are closed, but ZooKeeper lets everybody who
# may write to a directory remove its children.  (What that is like: t/025)
subtest 'a directory that was open before' => sub {
	$zk->create('/zklock/open');
	my $s = zk_session($node, user => 'ann');
	$s->value("SELECT zk_lock('/open')");
	all_have($CLOSED, 'the node is closed', '/zklock/open/' . ($zk->children('/zklock/open'))[0]);
	is_deeply([ $zk->acl('/zklock/open') ], world_acl(), 'the directory stays as it was');
};

# --------------------------------------------------- an ACL that is changed meanwhile

# (That of a node, which then counts as lost: t/024)

# COMMIT does not wait for the answer that it may not delete a node.
zk_leaves_nothing $zk, 'a release that ZooKeeper refuses' => sub {
	my $client = $zk->client;
	my $s = zk_session($node, user => 'ann');
	my $nodes = sub { my @nodes = $client->children("/zklock/stuck/$_[0]"); return scalar @nodes };
	my $unreleased = sub { $s->value('SELECT unreleased FROM zk_session') };
	my $commit = sub {
		my ($name) = @_;
		$s->value("BEGIN; SELECT zk_xact_lock('/stuck/$name')");
		$client->set_acl("/zklock/stuck/$name", creator_acl($secret{bob}));
		is($s->query('COMMIT')->{state}, '', "$name: commits");
	};

	# next to a lock that is still wanted
	$s->value(q{SELECT zk_lock('/stuck/kept')});
	$commit->('beside');
	zk_until(sub { $unreleased->() == 1 }, 'zk_session to show it');
	is($nodes->('beside'), 1, 'beside: the node is there');
	my $result = $s->query(q{SELECT zk_try_lock('/stuck/free'), zk_unlock('/stuck/free')});
	is($result->{out}, 't|t', 'beside: the next call works');
	is("@{ $result->{warnings} }", 'ZooKeeper refused the release of a lock: permission denied', 'beside: and warns');
	like($result->{err}, qr{Node "/zklock/stuck/beside/_c_[^"]+" could not be deleted}, 'beside: of which node');
	is("@{ $s->query(q{SELECT zk_try_lock('/stuck/free'), zk_unlock('/stuck/free')})->{warnings} }", '', 'beside: once');
	is($s->value(q{SELECT state FROM zk_locks}), 'held', 'beside: the other lock is still held');
	is_refused($s->query("SELECT zk_lock('/stuck/beside')"), 'beside: locking it again');
	$s->value("SELECT zk_lock('/stuck/by-hand')");
	$client->set_acl('/zklock/stuck/by-hand', creator_acl($secret{bob}));
	is($s->query(q{SELECT zk_unlock('/stuck/by-hand')})->{state}, '', 'by hand: zk_unlock without the right to do it is no error');
	is($s->value('SELECT path FROM zk_locks'), '/stuck/kept', '- the hold is gone');
	$client->set_acl('/zklock/stuck/by-hand', $CLOSED);
	zk_until(sub { $unreleased->() == 1 }, 'its node to go when we may again');
	my $cpu = zk_cpu_seconds($s->pid);
	$admin->value('SELECT pg_sleep(1)');
	cmp_ok(zk_cpu_seconds($s->pid) - $cpu, '<', 0.3, 'beside: nothing spins');
	$commit->('second');
	zk_until(sub { $unreleased->() == 2 }, 'zk_session to show both');
	$client->set_acl('/zklock/stuck/second', $CLOSED);
	zk_until(sub { $unreleased->() == 1 && !$nodes->('second') }, 'the node to go when we may again');
	is($s->value("SELECT zk_lock('/stuck/second'), zk_unlock('/stuck/second')"), 't|t', 'second: cleaned up, and to be locked');
	my $id = $s->value('SELECT session_id FROM zk_session');
	is($s->value(q{SELECT zk_unlock('/stuck/kept')}), 't', 'then nothing is held');
	zk_until(sub { $nodes->('beside') == 0 }, 'it to go with the session');
	is($s->value('SELECT unreleased FROM zk_session'), 0, 'and none is left');
	is($s->value('SELECT losses FROM zk_session'), 0, 'which is no loss');

	# alone; reported by whichever call is the next, though the session is
	# another one
	$commit->('alone');
	zk_until(sub { $nodes->('alone') == 0 }, 'it to go with the session');
	$result = $s->query(q{SELECT zk_try_lock('/stuck/free'), zk_unlock('/stuck/free')});
	is("$result->{out} @{ $result->{warnings} }", 't|t ZooKeeper refused the release of a lock: permission denied', 'alone: the next call warns');
	isnt($s->value('SELECT session_id FROM zk_session'), $id, 'alone: in another session');
	$s->quit;

	# ZooKeeper does not answer the close, for which the session's thread waits for a
	# second or so.  It closes the session with its next heartbeat, which is not near.
	my $proxy = ZkProxy->new($zk);
	$s = session_with(hosts => $proxy->hosts, session_timeout => '10s');
	my $threads = zk_threads($s->pid);
	$commit->('silent');
	zk_until(sub { $unreleased->() == 1 }, 'zk_session to show it');
	$proxy->blackhole;
	my $waits;
	zk_until(
		sub {
			my $none = $s->value('SELECT state FROM zk_session') eq 'none';
			$waits ||= $none && zk_threads($s->pid) == $threads + 1;
			return $none && zk_threads($s->pid) == $threads;
		},
		'the end of the thread');
	ok($waits, 'silent: the backend does not wait for that');
	$proxy->pass;
	$s->quit;
	$client->close;
};

# The session is resumed by another handle of the client library, which has to
# send the credentials again.
zk_leaves_nothing $zk, 'an outage of twice the session timeout' => sub {
	$admin->value(q{ALTER ROLE ann SET zklock.session_timeout = '4s'});
	my $s = zk_session($node, user => 'ann');
	$admin->value('ALTER ROLE ann RESET zklock.session_timeout');
	$s->value(q{SELECT zk_lock('/outage')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	$zk->kill9;
	zk_wait_hold($s, 'lost');
	my $lost_at = time;
	sleep 1 while time <= $lost_at + 5;    # by then the names of the servers are looked up again
	$zk->start;
	zk_until(sub { !$zk->children('/zklock/outage') }, 'its node to be deleted');
	is($s->value('SELECT session_id, state FROM zk_session'), "$id|connected", 'by the same session');
	is($s->value(q{SELECT zk_lock('/outage/other'), zk_unlock('/outage/other')}), 't|t', 'which works');
	all_have($CLOSED, '- and makes closed nodes', '/zklock/outage');
	is($s->query(q{SELECT zk_unlock('/outage')})->{out}, 'f', 'the lock was lost');
};

# ----------------------------------------------------------------- lost replies

# (That the calls succeed, and leave nothing, whatever is lost: t/021)
subtest 'lost replies' => sub {
	my $proxy = ZkProxy->new($zk);
	my $s = session_with(root => '/lost', hosts => $proxy->hosts, session_timeout => '6s');
	my $last = 0;
	foreach my $op ('createContainer', 'create2', 'multi')
	{
		foreach my $way (qw(swallow_and_drop drop_request))
		{
			my $path = '/op-' . ++$last . '/x';
			$proxy->$way($op);
			$proxy->swallow_and_drop('auth') if $way eq 'drop_request';    # and then that to the credential
			is($s->value("SELECT zk_lock('$path'), zk_lock_many('{$path/a,$path/b/c}'), zk_lock_shared('$path'), zk_unlock('$path')"),
				't|t|t|t', "$op: $way: the locks are had");
			$proxy->reset;
			all_have($CLOSED, '- and closed', '/lost');
			is($s->value('SELECT zk_unlock_all()'), 3, '- and given back');
		}
	}
};

# ------------------------------------------------------------- no way out of the root

zk_leaves_nothing $zk, 'paths do not leave the root' => sub {
	my $s = session_with(root => '/team/a');
	my $t = session_with(root => '/team/b');
	$t->value("SELECT zk_lock('/job')");
	my ($theirs) = $zk->children('/team/b/job');
	my @was = $zk->tree('/');
	# (what a path, and a contender's name, may look like: sql/arguments, sql/queue)
	is($s->query("SELECT $_('/../b/job')")->{state}, '22023', "$_ by ..") for qw(zk_lock zk_unlock zk_lock_queue zk_last_claim);
	is($s->query("SELECT zk_lock_break('/job', '../../b/job/$theirs')")->{state}, '22023', 'zk_lock_break by ..');
	is($s->value("SELECT zk_lock_break('/job', '$theirs')"), 'f', 'one of another root is none of ours');
	is($t->value("SELECT zk_lock_token('/job') IS NOT NULL, state FROM zk_locks"), 't|held', 'and what is there is held');
	my %was = map { $_ => 1 } @was;
	is_deeply([ grep { !$was{$_} && !m{^/team/a(?:/|$)} } $zk->tree('/') ], [], 'nothing is made elsewhere');

	$s = session_with(root => '/');
	is($s->value("SELECT zk_lock('/bare/lock')"), 't', 'no root');
	all_have($CLOSED, '- closed', '/bare');
	is_deeply([ $zk->acl('/') ], world_acl(), '- while / stays as it was');
};

zk_end($zk, $node);
