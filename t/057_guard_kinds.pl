# Losses of each kind of hold: shared locks, semaphores, a shared hold on the
# exclusive lock's node, one that was downgraded, one under an upgrade, a single node.  COMMIT
# notices each, each is given back by its own function, and the others are
# unaffected.  Also, which token zk_lock_token and zk_fence use.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;

use ZkProxy;
use Zklock;
use ZooKeeper;

my @STYLES = qw(curator curator_rw kazoo);

my $zk = ZooKeeper->new->start;
# A statement that looks at a lost lock is not to be canceled: that is t/034's
my $node = zk_cluster(
	'main', $zk,
	'zklock.session_timeout' => '60s',
	'zklock.cancel_on_loss' => 'off',
	max_prepared_transactions => 5);
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (who text)');

my @proxies;    # kept until the end, so that sessions can close properly

sub rows
{
	my ($who) = @_;
	return $admin->value(qq{SELECT count(*) FROM t WHERE who = '$who'});
}

# Delete nodes as an administrator may do by hand: those with these names
# (default: all) in the directory of a lock.
my $hand = $zk->client;

sub delete_by_hand
{
	my ($path, @like) = @_;
	my $there = $hand->exists("/zklock$path");
	return $hand->delete("/zklock$path") if $there && $there->{ephemeralOwner};    # a single one
	return $hand->delete_contenders("/zklock$path", @like);
}

# the state in zk_locks of all holds, or of those of a path
sub wait_lost
{
	my ($session, $count) = @_;
	zk_until(sub { $session->value(q{SELECT count(*) FROM zk_locks WHERE state = 'lost'}) == $count }, 'lost');
	return;
}

# what a statement returned, and its warnings
sub said
{
	my ($result) = @_;
	return join ' ', $result->{out}, @{ $result->{warnings} };
}

# Two tests: false, with one warning that names the path
sub is_given_back_lost
{
	my ($session, $call, $path) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $result = $session->query("SELECT $call('$path')");
	is($result->{out}, 'f', "$call: false");
	is(() = "@{ $result->{warnings} }" =~ /"\Q$path\E" had been lost/g, 1, "$call: one warning");
	return;
}

# The ways to hold something at a path: the call, the style, what to delete
# (default: all), and the modes that are lost then.
my @kind = (
	{ name => 'shared', take => q{zk_lock_shared('%s')}, lost => 'shared' },
	{ name => 'single', style => 'single', take => q{zk_lock('%s')}, lost => 'exclusive' },
	{ name => 'semaphore', take => q{zk_semaphore_acquire('%s', 2)}, lost => 'semaphore' },
	{ name => 'one of several', take => q{zk_lock_many('{%s,%s/2,%s/1}')}, lost => 'exclusive' },
	{
		name => "shared on the exclusive's node",
		take => q{zk_lock('%s'), zk_lock_shared('%s')},
		lost => 'exclusive, shared'
	},
	(
		map {
			{
				name => "downgraded, $_",
				style => $_,
				take => q{zk_lock('%s'), zk_lock_shared('%s'), zk_unlock('%s')},
				lost => 'shared'
			}
		} @STYLES),
	{
		name => 'under an upgrade: the shared one',
		take => q{zk_lock_shared('%s'), zk_lock('%s')},
		delete => qr/-shared-lock-/,
		lost => 'shared'
	},
	{
		name => 'under an upgrade: the exclusive one',
		take => q{zk_lock_shared('%s'), zk_lock('%s')},
		delete => qr/(?<!-shared)-lock-/,
		lost => 'exclusive'
	});

my %scope = (
	session => sub { $_[0] },
	transaction => sub { $_[0] =~ s/zk_(?!unlock)/zk_xact_/gr });

sub take
{
	my ($kind, $path, $scope) = @_;
	my $sql = $scope{ $scope // 'session' }->($kind->{take});
	# what is given back by a call has session scope
	$sql =~ s/zk_xact_lock\(/zk_lock(/ if $sql =~ /zk_unlock/;
	return 'SELECT ' . ($sql =~ s/%s/$path/gr);
}

# -------------------------------------------------------------- at COMMIT

subtest 'strict: a node deleted a moment before COMMIT' => sub {
	foreach my $kind (@kind)
	{
		my $session = zk_session_with($node, commit_guard => 'strict', node_style => $kind->{style} // 'curator');
		foreach my $scope (qw(transaction session))
		{
			my $name = "$kind->{name}, $scope scope";
			my $path = '/strict/' . ($name =~ tr/a-z/_/cr);
			$session->value("BEGIN; INSERT INTO t VALUES ('strict'); " . take($kind, $path, $scope));
			delete_by_hand($path, $kind->{delete});
			zk_is_lost($session->query('COMMIT'), $path, $name);
			is(zk_holds($session), '', "$name: what the transaction took is gone");
		}

		my $path = '/strict/before/' . ($kind->{name} =~ tr/a-z/_/cr);
		$session->value(take($kind, $path));
		my $before = zk_holds($session);
		delete_by_hand($path, $kind->{delete});
		zk_is_lost($session->query(q{INSERT INTO t VALUES ('strict')}), $path, "$kind->{name}, taken before, and a write");
		is($session->query('SELECT count(*) FROM t')->{state}, '', "$kind->{name}: who writes nothing commits");
		$session->value(q{BEGIN; INSERT INTO t VALUES ('strict')});
		zk_is_lost($session->query(q{PREPARE TRANSACTION 'lost'}), $path, "$kind->{name}, PREPARE TRANSACTION");
		$session->query('SELECT zk_unlock_all()');
		is(zk_holds($session), '', "$kind->{name}: given back");
		is($session->query(q{INSERT INTO t VALUES ('free')})->{state}, '', "$kind->{name}: then a write commits");
		# the same once more
		$session->value(q{BEGIN; INSERT INTO t VALUES ('held'); } . take($kind, $path));
		is(zk_holds($session), $before, "$kind->{name}: taken again");
		is($session->query('COMMIT')->{state}, '', "$kind->{name}: and commits");
		$session->value('SELECT zk_unlock_all()');
		$session->quit;
	}
	is(rows('strict'), 0, 'nothing that relied on one of these was committed');
	is(rows('free'), @kind, 'what did not was');
	is(rows('held'), @kind, 'and what relied on one that is held');
	is($admin->value('SELECT count(*) FROM pg_prepared_xacts'), 0, 'nothing is prepared');
};

# One session with a shorter timeout for each: a hold that is older than a
# heartbeat has a watch on its node, so that a deletion by hand is noticed.
subtest 'on, off: a hold that is known to be lost' => sub {
	my @of;
	foreach my $guard (qw(on off))
	{
		# what is off judges no kind
		foreach my $kind ($guard eq 'on' ? @kind : $kind[0])
		{
			my $path = "/$guard/" . ($kind->{name} =~ tr/a-z/_/cr);
			my $session = zk_session_with(
				$node,
				session_timeout => '10s',
				commit_guard => $guard,
				node_style => $kind->{style} // 'curator');
			$session->value("BEGIN; INSERT INTO t VALUES ('$path'); " . take($kind, $path));
			push @of, [ $session, $guard, $kind, $path ];
		}
	}
	foreach (@of)
	{
		my ($session, $guard, $kind, $path) = @$_;
		my $name = "$guard, $kind->{name}";
		delete_by_hand($path, $kind->{delete});
		my @lost = split /, /, $kind->{lost};
		wait_lost($session, scalar @lost);
		is($session->value(q{SELECT string_agg(DISTINCT mode, ', ' ORDER BY mode) FROM zk_locks WHERE state = 'lost'}),
			$kind->{lost}, "$name: zk_locks tells what is lost");
		my $result = $session->query('COMMIT');
		if ($guard eq 'on')
		{
			zk_is_lost($result, $path, $name);
			is(rows($path), 0, "$name: nothing is committed");
			is(zk_holds($session), '', "$name: nor held");
		}
		else
		{
			is($result->{state}, '', "$name: commits");
			is(rows($path), 1, "$name: the row is there");
			is($session->value(q{SELECT count(*) FROM zk_locks WHERE state = 'lost'}), scalar @lost, "$name: it is lost all the same");
		}
		$session->query('SELECT zk_unlock_all()');
		is($session->query('BEGIN; ' . take($kind, $path) . qq{; INSERT INTO t VALUES ('again $path'); COMMIT})->{state},
			'', "$name: the next one commits");
		is(rows("again $path"), 1, "$name: it is there");
		$session->quit;
	}
};

subtest 'what was rolled back to a savepoint, or given back in time, does not count' => sub {
	my $session = zk_session_with($node, commit_guard => 'strict');
	foreach my $take (
		q{zk_lock_shared('/savepoint')}, q{zk_xact_lock_shared('/savepoint')},
		q{zk_semaphore_acquire('/savepoint', 1)}, q{zk_xact_semaphore_acquire('/savepoint', 1)},
		q{zk_xact_lock_many('{/savepoint,/savepoint/b}')})
	{
		$session->value("BEGIN; INSERT INTO t VALUES ('savepoint'); SAVEPOINT s; SELECT $take");
		delete_by_hand('/savepoint');
		is($session->query('ROLLBACK TO s; COMMIT')->{state}, '', "$take: rolled back, lost");
	}
	is(rows('savepoint'), 5, 'all are committed');

	foreach (
		[ 'zk_lock_shared', 'zk_unlock_shared', '' ],
		[ 'zk_semaphore_acquire', 'zk_semaphore_release', ', 1' ])
	{
		my ($take, $give, $permits) = @$_;
		$session->value(qq{BEGIN; INSERT INTO t VALUES ('back'); SELECT $take('/back'$permits)});
		delete_by_hand('/back');
		is_given_back_lost($session, $give, '/back');
		zk_is_lost($session->query('COMMIT'), '/back', "$give: deleted a moment before it");
		is($session->query(qq{BEGIN; INSERT INTO t VALUES ('in time'); SELECT $take('/back'$permits), $give('/back'); COMMIT})->{state},
			'', "$give: held until it was given back");
	}
	is(rows('back') . rows('in time'), '02', 'the one was not committed, the other was');
	$session->quit;
};

# ------------------------------------------------------------ given back

# Each function drops the lost holds of its own mode.
subtest 'zk_unlock, zk_unlock_shared and zk_semaphore_release of what is lost' => sub {
	my $session = zk_session_with($node, commit_guard => 'on', session_timeout => '10s');
	$session->value(
		q{SELECT zk_lock('/lost'), zk_lock('/lost'), zk_lock_shared('/lost'), zk_lock_shared('/lost'), zk_lock_shared('/lost'),
		zk_semaphore_acquire('/lost', 2), zk_semaphore_acquire('/lost', 2)});
	my $all = 'exclusive session 2 %s, semaphore session 2 %s, shared session 3 %s';
	is(zk_holds($session), sprintf($all, ('held') x 3), 'three kinds at one path');

	delete_by_hand('/lost', qr/-lock-/);
	wait_lost($session, 2);
	is(zk_holds($session), sprintf($all, qw(lost held lost)), "the lock's node deleted: the semaphore is held");
	is($session->value(q{SELECT zk_lock_token('/lost') IS NULL}), 't', 'no token');
	is($session->query("SELECT $_")->{state}, '55000', "$_: 55000")
	  for q{zk_lock('/lost')}, q{zk_try_lock('/lost')}, q{zk_lock_shared('/lost')}, q{zk_try_xact_lock_shared('/lost')},
	  q{zk_lock_many('{/lost,/other}')}, q{zk_xact_lock_many('{/other,/lost}', '0')};
	is($session->value(q{SELECT count(*) FROM zk_locks WHERE path = '/other'}), 0, 'nothing of the several is held');
	is($session->value(q{SELECT zk_semaphore_acquire('/lost', 2), zk_semaphore_release('/lost')}), 't|t', 'the semaphore works');

	is_given_back_lost($session, 'zk_unlock', '/lost');
	is(zk_holds($session), 'semaphore session 2 held, shared session 3 lost', 'all exclusive ones are gone, no shared one');
	is($session->query(q{SELECT zk_lock('/lost')})->{state}, '55000', 'zk_lock: still 55000');
	my $result = $session->query(q{SELECT zk_unlock('/lost')});
	is($result->{out} . @{ $result->{warnings} }, 'f1', 'zk_unlock once more: warns, and is false');
	is(zk_holds($session), 'semaphore session 2 held, shared session 3 lost', '- and does nothing');
	is_given_back_lost($session, 'zk_unlock_shared', '/lost');
	is(zk_holds($session), 'semaphore session 2 held', 'all shared ones are gone');
	is($session->value(q{SELECT zk_lock('/lost'), zk_unlock('/lost'), zk_lock_shared('/lost')}), 't|t|t', 'both can be had again');

	delete_by_hand('/lost', qr/-semaphore-/);
	wait_lost($session, 1);
	is(zk_holds($session), 'semaphore session 2 lost, shared session 1 held', "the semaphore's node deleted: the lock is held");
	is($session->query(q{SELECT zk_semaphore_acquire('/lost', 2)})->{state}, '55000', 'zk_semaphore_acquire: 55000');
	is($session->value(q{SELECT zk_try_lock('/lost'), zk_unlock('/lost')}), 't|t', 'the lock works');
	is_given_back_lost($session, 'zk_semaphore_release', '/lost');
	is(zk_holds($session), 'shared session 1 held', 'all places are gone');
	is($session->value(q{SELECT zk_semaphore_acquire('/lost', 2)}), 't', 'one can be had again');
	is($session->value('SELECT zk_unlock_all()'), 2, 'zk_unlock_all');

	# the exclusive one on top of a shared one
	$session->value(q{SELECT zk_lock_shared('/upgraded'), zk_lock('/upgraded')});
	delete_by_hand('/upgraded', qr/(?<!-shared)-lock-/);
	wait_lost($session, 1);
	is(zk_holds($session), 'exclusive session 1 lost, shared session 1 held', 'an upgrade is lost, the shared hold is not');
	is_given_back_lost($session, 'zk_unlock', '/upgraded');
	is(zk_holds($session), 'shared session 1 held', '- and it stays');
	is($session->query(q{INSERT INTO t VALUES ('upgraded')})->{state}, '', '- and one that relies on it commits');
	is($session->value(q{SELECT zk_lock('/upgraded'), zk_unlock('/upgraded'), zk_unlock_shared('/upgraded')}), 't|t|t', '- and goes on');

	# zk_unlock_all counts those that are held, and warns of the others
	$session->value(
		q{SELECT zk_lock('/a'), zk_lock_shared('/a'), zk_lock_shared('/b'), zk_lock_shared('/b'), zk_semaphore_acquire('/a', 1),
		zk_semaphore_acquire('/c', 1), zk_lock_many('{/d,/e}')});
	delete_by_hand('/b');
	delete_by_hand('/c');
	delete_by_hand('/d');
	wait_lost($session, 3);
	$result = $session->query('SELECT zk_unlock_all()');
	is($result->{out}, 4, 'zk_unlock_all: two at /a, its semaphore, and /e');
	is(scalar @{ $result->{warnings} }, 3, 'a warning for each that was lost');
	like("@{ $result->{warnings} }", qr{^(?=.*"/b")(?=.*"/c")(?=.*"/d")}, 'naming them');
	is(zk_holds($session), '', 'nothing is held');

	$session->value(q{SELECT zk_lock_shared('/b'), zk_semaphore_acquire('/c', 1)});
	delete_by_hand('/b');
	delete_by_hand('/c');
	is($session->query('DISCARD ALL')->{state}, '', 'DISCARD ALL');
	is(zk_holds($session), '', 'gives up what is lost');
	is($session->value(q{SELECT zk_lock('/b'), zk_semaphore_acquire('/c', 1), zk_unlock_all()}), 't|t|2', 'and works');
	$session->quit;
};

# ------------------------------------------------------------ a lost session

subtest 'a ZooKeeper session that is over takes all kinds along' => sub {
	foreach my $style (@STYLES)
	{
		my $proxy = ZkProxy->new($zk);
		push @proxies, $proxy;
		my $session = zk_session_with($node, hosts => $proxy->hosts, session_timeout => '20s', node_style => $style);
		$session->value(
			qq{SELECT zk_lock('/expired/down'), zk_lock_shared('/expired/down'), zk_unlock('/expired/down'), zk_lock_shared('/expired/shared'),
			zk_semaphore_acquire('/expired/semaphore', 1), zk_lock_shared('/expired/up'), zk_lock('/expired/up'), zk_lock('/expired/both'),
			zk_lock_shared('/expired/both'), zk_lock_many('{/expired/1,/expired/2}')});
		$session->value(q{BEGIN; INSERT INTO t VALUES ('expired')});
		my $id = $session->value('SELECT session_id FROM zk_session');

		my @next = map { zk_session_with($node) } 1 .. 6;
		my @wants = (
			q{zk_lock('/expired/down')}, q{zk_lock('/expired/shared')}, q{zk_semaphore_acquire('/expired/semaphore', 1)},
			q{zk_lock_shared('/expired/up')}, q{zk_lock_shared('/expired/both')}, q{zk_lock_many('{/expired/2,/expired/1}')});
		foreach my $i (0 .. $#next)
		{
			$next[$i]->send("SELECT $wants[$i]");
			zk_wait_queued($zk, $next[$i]);
		}
		$proxy->cut_off;
		$zk->end_session($id);
		is($next[$_]->wait->{out}, 't', "$style: the next has $wants[$_]") for 0 .. $#next;
		$proxy->pass;
		wait_lost($session, 9);
		my $result = $session->query('COMMIT');
		is($result->{state}, '40001', "$style: who held all of these does not commit");
		is(zk_holds($session, '/expired/up'), 'exclusive session 1 lost, shared session 1 lost', "$style: the upgraded one is lost");
		is(zk_holds($session, '/expired/down'), 'shared session 1 lost', "$style: the downgraded one");
		$result = $session->query('SELECT zk_unlock_all()');
		is($result->{out}, 0, "$style: zk_unlock_all counts none");
		is(scalar(@{ $result->{warnings} }) >= 7, 1, "$style: and warns of each");
		is($next[$_]->value('SELECT zk_unlock_all()') >= 1, 1, "$style: $wants[$_] is given back") for 0 .. $#next;
		is($session->value(
				q{SELECT zk_lock('/expired/down', '10s'), zk_lock_shared('/expired/shared', '10s'), zk_semaphore_acquire('/expired/semaphore', 1, '10s'),
				zk_lock_many('{/expired/both,/expired/up,/expired/1}', '10s'), zk_unlock_all()}),
			't|t|t|t|6', "$style: and all can be had again");
		is($session->value('SELECT losses FROM zk_session'), 1, "$style: in a new ZooKeeper session");
		$_->quit for $session, @next;
	}
	is(rows('expired'), 0, 'nothing of it was committed');
};

# ------------------------------------------------------------ the token

subtest 'zk_lock_token and zk_fence' => sub {
	foreach my $style (@STYLES)
	{
		my $session = zk_session_with($node, node_style => $style);
		my $path = "/token/$style";
		my $token = sub { $session->value("SELECT zk_lock_token('$path')") };
		my $fence = sub { $session->query("BEGIN; SELECT zk_fence('$path'); COMMIT") };
		my $czxid = sub {
			my ($like) = @_;
			my ($its) = grep { $_ =~ $like } $zk->children("/zklock$path");
			return $zk->exists("/zklock$path/$its")->{czxid};
		};

		is($token->(), '', "$style: none is held");
		$session->value("SELECT zk_semaphore_acquire('$path', 1)");
		is($token->(), '', "$style: a semaphore has none");
		is($fence->()->{state}, '55000', "$style: a semaphore cannot be fenced");
		$session->query('ROLLBACK');

		$session->value("SELECT zk_lock_shared('$path')");
		my $shared = $token->();
		is($shared, $czxid->(qr/-shared-lock-|__READ__|__rlock__/), "$style: a shared lock: that of its node");
		my $result = $fence->();
		is($result->{state}, '55000', "$style: a shared lock cannot be fenced");
		$session->query('ROLLBACK');

		$session->value("SELECT zk_lock('$path')");
		my $upgraded = $token->();
		cmp_ok($upgraded, '>', $shared, "$style: an upgrade has a new one");
		is($upgraded, $czxid->(qr/(?<!-shared)-lock-|__WRIT__|__lock__/), "$style: that of the node of the exclusive lock");
		is($session->value("SELECT string_agg(mode || ' ' || (token = zk_lock_token('$path')), ', ' ORDER BY mode) FROM zk_locks WHERE mode <> 'semaphore'"),
			'exclusive true, shared false', "$style: the shared hold has its own");
		is($session->value("SELECT zk_fence('$path')"), $upgraded, "$style: zk_fence takes that of the exclusive lock");
		$session->value("SELECT zk_unlock_shared('$path')");
		is($token->(), $upgraded, "$style: it stays when the shared hold goes");

		# now the shared one has no node of its own
		$session->value("SELECT zk_lock_shared('$path')");
		is($token->(), $upgraded, "$style: nor does a new shared hold change it");
		is($session->value("SELECT string_agg(DISTINCT token::text, ', ') FROM zk_locks WHERE mode <> 'semaphore'"),
			$upgraded, "$style: it has the same one");
		$session->value("SELECT zk_unlock('$path')");
		is($token->(), $upgraded, "$style: unchanged by a downgrade");
		is($session->value("SELECT token FROM zk_locks WHERE mode = 'shared'"), $upgraded, "$style: in zk_locks, too");
		is($fence->()->{state}, '55000', "$style: the downgraded lock cannot be fenced");
		$session->query('ROLLBACK');
		is($session->value("SELECT zk_fence('$path', zk_lock_token('$path'))"), $upgraded, "$style: unless its token is named");

		# upgraded again
		$session->value("SELECT zk_lock('$path')");
		my $again = $token->();
		cmp_ok($again, '>', $upgraded, "$style: an upgrade of the downgraded one has a new one");
		is($session->value("SELECT zk_fence('$path')"), $again, "$style: which is fenced");
		$session->value("SELECT zk_unlock_shared('$path'), zk_unlock('$path')");
		is($token->(), '', "$style: given back: none");

		# the next writer's is greater than all of these
		my $next = zk_session_with($node);
		$next->value("SELECT zk_lock('$path')");
		cmp_ok($next->value("SELECT zk_lock_token('$path')"), '>', $again, "$style: the next writer has a greater one");
		is($next->value("SELECT zk_fence('$path') = zk_lock_token('$path')"), 't', "$style: and passes the fence");
		is($session->query("SELECT zk_fence('$path', $again)")->{state}, '40001', "$style: which those before do not");
		$next->quit;

		# lost
		$session->value("SELECT zk_lock('$path', '10s'), zk_lock_shared('$path')");
		delete_by_hand($path, qr/-lock-|__WRIT__|__lock__/);
		$session->query(q{SET zklock.commit_guard = 'strict'});
		$session->query(q{INSERT INTO t VALUES ('token')});
		is($session->query("SELECT zk_fence('$path')")->{state}, '40001', "$style: a lost exclusive lock: 40001");
		is($token->(), '', "$style: no token");
		$session->query('SELECT zk_unlock_all()');
		$session->value("SELECT zk_lock_shared('$path')");
		delete_by_hand($path, qr/\d$/);
		$session->query(q{INSERT INTO t VALUES ('token')});
		is($session->query("SELECT zk_fence('$path')")->{state}, '55000', "$style: a lost shared one was never good for it: 55000");
		is($token->(), '', "$style: no token");
		$session->query('SELECT zk_unlock_all()');
		$session->quit;
	}
	is(rows('token'), 0, 'nothing of it was committed');
};

$hand->close;
$admin->quit;
$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
