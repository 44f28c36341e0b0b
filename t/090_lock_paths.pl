# zk_lock_paths: every lock below a path, of whichever client, with its first
# contender; whatever else stands there; while locks come and go, and connections
# break; in a bounded number of round trips.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Sys::Hostname;
use Test::More;
use Time::HiRes qw(time);

use Auth;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $UUID = '0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1';

# ZK_LOCK_PATHS=10000 dev/test -v t/090_lock_paths.pl: more of them
my $MANY = $ENV{ZK_LOCK_PATHS} // 200;

my $zk = ZooKeeper->new(superuser => 1)->start;
my $node = zk_cluster('main', $zk, 'zklock.operation_timeout' => '30s', 'zklock.session_timeout' => '30s');
$node->safe_psql('postgres', "CREATE DATABASE latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
$node->safe_psql('latin1', 'CREATE EXTENSION zklock');
$ENV{PGCLIENTENCODING} = 'UTF8';
my $admin = zk_session($node);
my $other = $zk->client;

# The rows, in the order of the paths: "path kind contenders holders whose"
sub paths_of
{
	my ($s, $prefix) = @_;
	my $argument = defined $prefix ? "'$prefix'" : '';
	return split /\n/, $s->value(<<~"SQL");
		SELECT concat_ws(' ', path, coalesce(kind, '-'), coalesce(contenders::text, '-'), coalesce(holders::text, '-'), coalesce(data, application_name, '-'))
		FROM zk_lock_paths($argument) ORDER BY path COLLATE "C", kind
		SQL
}

sub session_named
{
	my ($name, %setting) = @_;
	my $s = zk_session_with($node, %setting);
	$s->value("SET application_name = '$name'");
	return $s;
}

# ---------------------------------------------------------------- what is shown

subtest 'locks of several sessions, and of other clients' => sub {
	is_deeply([ paths_of($admin) ], [], 'nothing at all');
	my $one = session_named('one');
	my $two = session_named('two');
	my $three = session_named('three');
	my $before = time;
	$one->value(q{SELECT zk_lock('/jobs/nightly'), zk_lock_shared('/jobs'), zk_semaphore_acquire('/jobs/nightly', 2)});
	$two->value(q{SELECT zk_lock_shared('/jobs'), zk_semaphore_acquire('/jobs/nightly', 2), zk_lock_many('{/x/1,/x/2}')});
	$three->send(q{SELECT zk_lock('/jobs/nightly')});
	zk_wait_queued($zk, $three);
	$other->contend('/zklock/jobs2/a b', '_c_other-lock-', data => "by\thand");
	$other->contend('/zklock/jobs2/a b', 'x-12-');
	$other->create('/zklock/jobs2/no-lock', data => 'nothing');
	my @all = (
		'/jobs lock 2 2 one', '/jobs/nightly lock 2 1 one', '/jobs/nightly semaphore 2 2 one',
		'/jobs2/a b lock 2 1 by\x09hand', '/x/1 lock 1 1 two', '/x/2 lock 1 1 two');
	is_deeply([ paths_of($admin) ], \@all, 'all of them');
	is_deeply([ paths_of($admin, '/') ], \@all, '- which is what "/" means, too');
	is_deeply([ paths_of($admin, '/jobs') ], [ @all[ 0 .. 2 ] ], 'at a path and below it, not beside it');
	is_deeply([ paths_of($admin, '/x/2') ], [ $all[-1] ], 'at a path');
	is_deeply([ paths_of($admin, $_) ], [], "nothing at $_") for '/x/3', '/no/such', '/jobs2/no-lock';
	is($admin->value(<<~'SQL'), 't|t|t|t', 'the first contender is described as in zk_lock_queue');
		SELECT (p.zk_session, p.host, p.port, p.pid, p.datname, p.usename, p.application_name) IS NOT DISTINCT FROM
			(q.zk_session, q.host, q.port, q.pid, q.datname, q.usename, q.application_name),
			p.oldest_since = q.since, p.cluster_name IS NOT DISTINCT FROM q.cluster_name, p.data IS NULL
		FROM zk_lock_paths('/jobs') p, zk_lock_queue('/jobs') q WHERE p.path = '/jobs' AND q.position = 1
		SQL
	is($admin->value(q{SELECT host, pid, datname, usename IS NOT NULL FROM zk_lock_paths('/x/1')}),
		join('|', hostname(), $two->pid, 'postgres', 't'), '- and names the server and the process');
	is($admin->value("SELECT min(oldest_since) >= to_timestamp($before - 1) FROM zk_lock_paths()"), 't', 'since when');
	$one->quit;
	$three->wait;
	zk_until(sub { (paths_of($admin))[0] eq '/jobs lock 1 1 two' }, 'one to be gone');
	is_deeply([ paths_of($admin, '/jobs') ], [ '/jobs lock 1 1 two', '/jobs/nightly lock 1 1 three', '/jobs/nightly semaphore 1 1 two' ], 'the next has it');
	$_->quit for $two, $three;
	zk_until(sub { paths_of($admin) == 1 }, 'theirs to go');
	$other->delete_tree('/zklock/jobs2');
};

subtest 'single nodes' => sub {
	my $s = session_named('single', node_style => 'single');
	my @paths = map { "/single/$_" } qw(a b c/d);
	$s->value('SELECT ' . join ', ', map { "zk_lock('$_')" } @paths);
	is($admin->value(q{SELECT string_agg(concat_ws(' ', path, kind, contenders, holders, application_name), ', ' ORDER BY path COLLATE "C") FROM zk_lock_paths('/single')}),
		join(', ', map { "$_ lock 1 1 single" } @paths), 'are locks');
	is($admin->value(qq{SELECT path FROM zk_lock_paths('$paths[0]')}), $paths[0], 'also if the prefix is one');
	is($admin->value(qq{SELECT count(*) FROM zk_lock_paths('$paths[0]/x')}), 0, 'with nothing below');
	$s->value('SELECT zk_unlock_all()');
	is($_->value(q{SELECT count(*) FROM zk_lock_paths('/single')}), 0, 'and an empty directory is none') for $admin, session_named('single too', node_style => 'single');
	$s->quit;
};

# As many hold as zk_lock_queue says, in every style.
subtest 'who holds' => sub {
	my $agrees = sub {
		my ($path, $what) = @_;
		is($admin->value("SELECT kind, contenders, holders FROM zk_lock_paths('$path') ORDER BY kind"),
			$admin->value("SELECT kind, count(*), count(*) FILTER (WHERE granted) FROM zk_lock_queue('$path') GROUP BY kind ORDER BY kind"),
			"$what: as in zk_lock_queue");
	};
	foreach my $style (qw(curator curator_rw kazoo))
	{
		my ($s, @others) = map { session_named($_, node_style => $style) } 1 .. 4;
		my $path = "/styles/$style";
		$s->value("SELECT zk_lock_shared('$path'), zk_lock('$path')");
		$agrees->($path, "$style, upgraded");
		$others[0]->send("SELECT zk_lock_shared('$path')");
		zk_wait_queued($zk, $others[0]);
		$agrees->($path, "$style, a reader behind");
		$s->value("SELECT zk_unlock('$path')");
		$others[0]->wait;
		$agrees->($path, "$style, no longer");
		$others[1]->send("SELECT zk_lock('$path')");
		zk_wait_queued($zk, $others[1]);
		$s->value('SELECT zk_unlock_all()');
		$others[0]->value('SELECT zk_unlock_all()');
		$others[1]->wait;
		$others[2]->send("SELECT zk_lock_shared('$path')");
		zk_wait_queued($zk, $others[2]);
		$others[1]->value("SELECT zk_lock_shared('$path'), zk_unlock('$path')");
		$others[2]->wait;
		$agrees->($path, "$style, downgraded");
		$others[0]->send("SELECT zk_lock('$path')");
		zk_wait_queued($zk, $others[0]);
		$agrees->($path, "$style, downgraded, and a writer waits");
		$_->quit for $others[1], $others[2];
		$others[0]->wait;
		$_->quit for $s, $others[0];
	}

	# three places, of which the fourth has one less
	my @s = map { session_named($_) } 1 .. 4;
	$s[$_]->value("SELECT zk_semaphore_acquire('/places', 3)") for 0 .. 2;
	$s[3]->send(q{SELECT zk_semaphore_acquire('/places', 3)});
	zk_wait_queued($zk, $s[3]);
	$agrees->('/places', 'a semaphore');
	$_->quit for @s[ 0 .. 2 ];
	$s[3]->wait;
	$s[3]->quit;

	# sequence numbers that tell no order: the transactions do
	my ($second, $first) = (2147483600, 2147483640);
	$other->create('/zklock/worn');
	$other->create("/zklock/worn/_c_other-lock-$first", mode => 'ephemeral', data => 'first');
	$other->create("/zklock/worn/_c_other-lock-$second", mode => 'ephemeral', data => 'second');
	$agrees->('/worn', 'beyond the numbers');
	is_deeply([ paths_of($admin, '/worn') ], ['/worn lock 2 1 first'], '- whose it is');
	$other->delete_tree('/zklock/worn');
};

subtest 'junk' => sub {
	# what no path leads to, or is no lock
	$other->create("/zklock$_") for '/junk', '/junk/dir', '/junk/dir/deep', '/junk/..x', '/junk/lock-0000000001x', "/junk/\x7e";
	$other->contend('/zklock/__zklock_waits__', 'lock-');
	$other->contend('/zklock/junk/__zklock_other__', 'lock-');
	$other->contend('/zklock/junk/_c_' . $UUID . '-lock-x', 'lock-');
	$other->create('/zklock/junk/dir/lock-0000000007', data => "\xff\xfe\0");
	$other->contend('/zklock/junk/dir/lock-0000000007', 'lock-');
	my $deep = '/zklock/junk' . '/d' x 40;
	$other->contend($deep, 'lock-');
	$other->contend('/zklock/junk/' . ('n' x 250) . ('/' . 'n' x 250) x 3, 'lock-');
	$other->contend('/zklock', 'lock-');
	my @rows = paths_of($admin);
	is_deeply(\@rows, ['/junk/dir lock 1 1 \xff\xfe\x00'], 'only what is a lock, whatever its node says') or diag explain \@rows;
	$other->delete_tree('/zklock/junk');
	$other->delete_tree('/zklock/__zklock_waits__');
	$other->delete_contenders('/zklock');

	# more than one level of ZooKeeper's own
	my $s = session_named('top', root => '/');
	$s->value(q{SELECT zk_lock('/top')});
	is_deeply([ grep { !m{^/zklock/} } paths_of($s) ], ['/top lock 1 1 top'], q{without a root, ZooKeeper's own nodes are left out});
	is($s->query(q{SELECT zk_lock_paths('/zookeeper')})->{state}, '22023', '- and refused');
	$s->quit;
	is_deeply([ paths_of($admin) ], [], 'another root is not seen');

	# characters that a database does not have
	my $wide = session_named('wide');
	$wide->value(qq{SELECT zk_lock(E'/\\u20ac/1'), zk_lock(E'/\\u00e9\\\\')});
	my $latin = zk_session($node, dbname => 'latin1');
	is_deeply([ paths_of($latin) ], [ '/\xe2\x82\xac/1 lock 1 1 wide', "/\xc3\xa9\\ lock 1 1 wide" ], 'a path that cannot be converted is escaped');
	$_->quit for $wide, $latin;
	zk_until(sub { paths_of($admin) == 0 }, 'all to go');
};

subtest 'what is closed' => sub {
	my $file = auth_file("digest:ann:leaves\n");
	my $acl = creator_acl('ann:leaves');
	my $ann = session_named('ann', auth_file => $file, acl => 'creator');
	$other->create('/zklock/mixed');
	$ann->value(q{SELECT zk_lock('/closed/a')});
	my $node_of_ann = $other->contend('/zklock/mixed', 'lock-', acl => $acl, data => 'secret');
	my ($closed) = map { (split / /)[0] } grep { / - - - -$/ } paths_of($admin);
	like($closed, qr{^/closed}, 'a directory that is closed to us is shown, and nothing of it');
	is_deeply([ grep { /mixed/ } paths_of($admin) ], ['/mixed lock 1 1 -'], 'of a node that is closed, not what it says');
	# since ZooKeeper 3.8.4 and 3.9.2 not even that (ZOOKEEPER-2590)
	like($admin->value(q{SELECT zk_session IS NOT NULL, oldest_since IS NOT NULL, host IS NULL FROM zk_lock_paths('/mixed')}),
		qr/^([tf])\|\g1\|t$/, '- but whose it is, and since when, where that can be known');
	is($admin->query("SELECT * FROM zk_lock_paths('$closed')")->{state}, '42501', 'asked for what is closed: 42501');
	is_deeply([ grep { /closed/ } paths_of($ann) ], ['/closed/a lock 1 1 ann'], 'who may look sees it');
	$other->delete($node_of_ann);
	$ann->quit;
	zk_until(sub { !$zk->ephemerals_count }, 'the lock to go');
	$other->delete_tree('/zklock/mixed');
	my $owner = $zk->client;
	$owner->add_auth('digest', 'ann:leaves');
	$owner->delete_tree('/zklock/closed');
	$owner->close;
};

subtest 'arguments and privileges' => sub {
	is($admin->query('SELECT zk_lock_paths(NULL)')->{state}, '22004', 'NULL');
	is($admin->query("SELECT zk_lock_paths('$_')")->{state}, '22023', "'$_'") for '', 'a', '/a/', '//', '/a//b', '/__zklock_waits__';
	$admin->value('CREATE ROLE looker LOGIN');
	my $looker = zk_session($node, user => 'looker');
	is($looker->query('SELECT zk_lock_paths()')->{state}, '42501', 'who has no EXECUTE');
	$admin->value('GRANT EXECUTE ON FUNCTION zk_lock_paths TO looker');
	is($looker->query('SELECT zk_lock_paths()')->{state}, '', 'who has');
	$looker->quit;
	is($admin->value(q{BEGIN READ ONLY; SELECT count(*) FROM zk_lock_paths(); COMMIT}), '0', 'in a read-only transaction');
};

# ------------------------------------------------------------ while it changes

subtest 'gone in between' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	my $while_held = sub {
		my ($ops, $code) = @_;
		$proxy->hold_request($ops);
		$s->send(q{SELECT path, contenders, holders, data FROM zk_lock_paths('/between') ORDER BY path});
		$proxy->wait_held;
		$code->();
		$proxy->release;
		$proxy->reset;
		return $s->wait->{out};
	};
	my @lists = ('getChildren', 'getChildren2');
	my @name = map { $other->contend('/zklock/between/a', '_c_other-lock-', data => "number $_") } 1 .. 3;
	is($while_held->('getData', sub { $other->delete($name[0]) }), '/between/a|2|1|number 2', 'the first leaves: the next is shown');
	is($while_held->('getData', sub { $other->delete($_) for @name[ 1, 2 ] }), '', 'all leave: no row');
	@name = map { $other->contend('/zklock/between/a', '_c_other-lock-', data => "number $_") } 1 .. 2;
	is($while_held->('getData', sub { $other->delete_tree('/zklock/between/a') }), '', 'the directory vanishes');
	is($while_held->(\@lists, sub { $other->delete_tree('/zklock/between') }), '', '- before it is listed');

	# a writer becomes a reader, with a node of another name
	my $holder = session_named('holder', node_style => 'kazoo');
	$holder->value(q{SELECT zk_lock('/between/b'), zk_lock_shared('/between/b')});
	is($while_held->('getData', sub { $holder->value(q{SELECT zk_unlock('/between/b')}) }), '/between/b|1|1|', 'a downgrade');
	$holder->quit;

	# one that comes back again and again, each time as somebody else
	$other->contend('/zklock/between/c');
	my $taken = 0;
	$proxy->hold_request('getData');
	$s->send(q{SELECT path, contenders, holders, data FROM zk_lock_paths('/between')});
	while (!$s->is_done && $taken++ < 20)
	{
		zk_until(sub { $s->is_done || $proxy->held }, 'a read');
		last if $s->is_done;
		my ($first) = $other->queue('/zklock/between/c');
		$other->contend('/zklock/between/c');
		$other->delete($first);
		$proxy->release;
		$proxy->hold_request('getData');
	}
	$proxy->reset;
	is($s->wait->{out}, '/between/c|1|1|', 'a queue whose first is always gone: a row without one');
	cmp_ok($taken, '<', 10, '- after a few tries');
	$s->quit;
	$other->delete_tree('/zklock/between');
};

# ---------------------------------------------------------------- many of them

my @many = map { sprintf '/zklock/many/%02d/%04d', $_ % 20, $_ } 1 .. $MANY;
my $client = $zk->client(session_timeout => 600_000, timeout => 60);
my $tree = sub {
	my %dir;
	$client->create('/zklock') unless $client->exists('/zklock');
	$client->create('/zklock/many');
	$client->create_all('persistent', map { ["/zklock/many/$_"] } map { sprintf '%02d', $_ } 0 .. 19);
	$client->create_all('persistent', map { [$_] } @many);
	$client->create_all('ephemeral', map { [ "$_/_c_other-lock-0000000000", 'by hand' ] } @many);
};
$tree->();

subtest 'round trips, requests and memory' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 5);
	my $count = q{SELECT count(*), count(DISTINCT path), min(data), max(holders) FROM zk_lock_paths('/many')};
	$proxy->clear_log;
	is($s->value($count), "$MANY|$MANY|by hand|1", 'each once');
	my %n;
	$n{ (split / /)[0] }++ for $proxy->requests;
	my $lists = ($n{getChildren} // 0) + ($n{getChildren2} // 0);
	is($lists, $MANY + 21, 'a list for each directory');
	is($n{getData}, $MANY, '- and a read for each lock');
	is($n{sync}, 1, '- and one sync');
	cmp_ok($proxy->trips, '<=', 10 + 2 * $MANY / 100, 'many at a time: ' . $proxy->trips . ' round trips');
	is($zk->watch_count, 0, 'no watch');
	my $memory = sub { (slurp_file('/proc/' . $s->pid . '/status') =~ /^VmHWM:\s+(\d+)/m)[0] };
	my $first = $memory->();
	my $begun = time;
	$s->value($count);
	diag sprintf '%d locks: %.2f s, %d requests, %d round trips, VmHWM %d kB', $MANY, time - $begun, $lists + $n{getData} + 1, $proxy->trips, $memory->();
	$s->value($count) for 1 .. 3;
	cmp_ok($memory->(), '<=', $first + 2048, 'nothing of it is kept');
	$s->quit;
};

subtest 'the connection breaks' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	foreach my $op ('getChildren', 'getData')
	{
		$proxy->swallow_and_drop([ $op eq 'getChildren' ? ('getChildren', 'getChildren2') : $op ]);
		is($s->value(q{SELECT count(*), count(DISTINCT path) FROM zk_lock_paths('/many')}), "$MANY|$MANY", "at $op: it goes on, and each lock comes once");
		$proxy->reset;
	}
	foreach my $frame (50, 300)
	{
		$proxy->count_frames;
		$proxy->nth('reply', $frame, 'cut');
		is($s->value(q{SELECT count(*), count(DISTINCT path) FROM zk_lock_paths('/many')}), "$MANY|$MANY", "in the middle of answer $frame: the same");
	}
	$proxy->count_frames;
	$s->value(q{SET zklock.operation_timeout = '700ms'; SET zklock.connect_timeout = '700ms'});
	$proxy->swallow([ 'getChildren', 'getChildren2' ], 10_000);
	my $result = $s->query('SELECT count(*) FROM zk_lock_paths()');
	is($result->{state}, '58030', 'no answer: 58030');
	in_time($result->{seconds}, 0.7 + 2, '- soon');
	$s->quit;
	$proxy->reset;
};

subtest 'a cancel' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	foreach my $op ('sync', 'getChildren', 'getData')
	{
		$proxy->hold([ $op eq 'getChildren' ? ('getChildren', 'getChildren2') : $op ]);
		$s->send('SELECT count(*) FROM zk_lock_paths()');
		$proxy->wait_held;
		my $result = $s->cancel($admin);
		is($result->{state}, '57014', "at $op");
		$proxy->release;
		$proxy->reset;
	}
	is($s->value(q{SELECT count(*) FROM zk_lock_paths('/many')}), $MANY, 'it works again');
	$s->quit;
};

# Who locks meanwhile is not disturbed, and is shown with what he has.
subtest 'locks that come and go' => sub {
	my @busy = map { session_named("busy $_") } 1 .. 3;
	foreach my $i (0 .. $#busy)
	{
		$busy[$i]->send("DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP PERFORM zk_lock('/busy/' || (i % 7)); PERFORM zk_unlock('/busy/' || (i % 7)); END LOOP; END \$\$");
	}
	my @wrong;
	until (!grep { !$_->is_done } @busy)
	{
		push @wrong, grep { !m{^/busy/\d lock [123] [01] (?:busy \d|-)$} } paths_of($admin, '/busy');
	}
	is_deeply(\@wrong, [], 'each row is possible');
	is($_->wait->{state}, '', 'who locks does so') for @busy;
	$_->quit for @busy;
};

$client->delete_tree('/zklock/many');
$_->close for $client, $other;
$admin->quit;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($node);
done_testing();
