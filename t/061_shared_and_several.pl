# Shared locks and several at once, when something interferes: a connection that
# breaks while a reader waits, a lock that is lost while the others are waited
# for, nodes that others created or deleted, answers that are wrong or late.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

use constant { WRITE => 2, CREATE => 4, ALL => 31 };

my @STYLES = qw(curator curator_rw kazoo);
my $UUID = '11111111-2222-3333-4444-555555555555';    # of another client

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '8s');
my $admin = zk_session($node);
my $client = $zk->client;

sub session
{
	my (%setting) = @_;
	return zk_session($node, options => join ' ', map { "-c $_=$setting{$_}" } sort keys %setting);
}

# A session, and the proxy between it and ZooKeeper: kept until the end, since a
# backend may still be closing its session after its psql has gone.
my @proxies;

sub session_by_proxy
{
	push @proxies, my $proxy = ZkProxy->new($zk);
	return (session('zklock.hosts' => $proxy->hosts, @_), $proxy);
}

# The nodes of this lock, in order
sub queue { return $client->queue("/zklock$_[0]"); }

sub wait_queue
{
	my ($path, $n) = @_;
	return zk_until(sub { queue($path) == $n }, "$n in the queue of $path");
}

# Wait until the client behind this proxy has read a node, and so watches it.
sub wait_seen
{
	my ($proxy, $path) = @_;
	return zk_until(
		sub {
			grep { $_->[1] eq '<' && $_->[2] =~ /^(?:exists|getData)$/ && $_->[4] eq $path && $_->[5] == 0 } $proxy->log;
		},
		"$path is watched");
}

sub others_node { return $client->create("/zklock$_[0]", mode => 'ephemeral', @_[ 1 .. $#_ ]); }

# ------------------------------------------------------------ nodes of others

subtest 'a contender with a very long name' => sub {
	my $s = session();
	$s->value("SELECT zk_lock('/long'), zk_unlock('/long')");
	my $long = others_node('/long/' . 'x' x 300 . 'lock-0000000000');
	is($s->query("SELECT zk_lock('/long', '1s')")->{out}, 'f', 'is respected');
	$s->send("SELECT zk_lock('/long')");
	wait_queue('/long', 2);
	$client->delete($long);
	is($s->wait->{out}, 't', 'and waited for');
	$s->quit;
};

subtest 'a contender that may not be read' => sub {
	my $s = session();
	$s->value("SELECT zk_lock('/shy'), zk_unlock('/shy')");
	my $shy = others_node("/shy/_c_$UUID-lock-0000000000", acl => [ [ WRITE, 'world', 'anyone' ] ]);
	is($s->query("SELECT zk_try_lock_shared('/shy')")->{out}, 'f', 'has the lock: shared');
	is($s->query("SELECT zk_try_lock('/shy')")->{out}, 'f', 'has the lock: exclusive');
	$client->delete($shy);
	is($s->value("SELECT zk_try_lock_shared('/shy')"), 't', 'until it goes');
	$s->quit;
};

# ------------------------------------------- who turns from writer into reader

foreach my $style (@STYLES)
{
	subtest "$style: the writer before a reader turns shared" => sub {
		my $path = "/turns/$style";
		my $first = session('zklock.node_style' => $style);
		my $writer = session('zklock.node_style' => $style);
		my ($reader, $proxy) = session_by_proxy('zklock.node_style' => $style);

		# the reader has another connection by then
		$writer->value("SELECT zk_lock('$path'), zk_lock_shared('$path')");
		my ($before) = queue($path);
		$reader->send("SELECT zk_lock_shared('$path', '10s')");
		wait_seen($proxy, $before);
		$proxy->clear_log;
		$proxy->drop;
		wait_seen($proxy, $before);
		$writer->value("SELECT zk_unlock('$path')");
		is($reader->wait->{out}, 't', 'the reader that reconnected passes');
		is($writer->value('SELECT mode, state FROM zk_locks'), 'shared|held', 'beside the one that was a writer');
		$_->value('SELECT zk_unlock_all()') for $writer, $reader;

		# the writer was not the first in the queue when the reader came
		$proxy->clear_log;
		$first->value("SELECT zk_lock_shared('$path')");
		$writer->send("SELECT zk_lock('$path'), zk_lock_shared('$path'), zk_unlock('$path')");
		wait_queue($path, 2);
		$before = (queue($path))[1];
		$reader->send("SELECT zk_lock_shared('$path', '10s')");
		wait_seen($proxy, $before);
		$first->value("SELECT zk_unlock_shared('$path')");
		is($writer->wait->{out}, 't|t|t', 'a writer that waited for another reader');
		is($reader->wait->{out}, 't', 'the reader behind it passes');
		$_->quit for $first, $writer, $reader;
	};
}

subtest 'the node that is to become shared was deleted' => sub {
	my $s = session('zklock.release_timeout' => '1s');
	$s->value("BEGIN; SELECT zk_xact_lock('/deleted'), zk_lock_shared('/deleted')");
	$client->delete(queue('/deleted'));
	my $commit = $s->query('COMMIT');
	is($commit->{state}, '', 'COMMIT');
	in_time($commit->{seconds}, 1, 'does not wait release_timeout');
	zk_wait_hold($s, 'lost');
	is($s->value('SELECT mode, state FROM zk_locks'), 'shared|lost', 'the shared lock is lost');
	$s->quit;
};

# The check is sent before ZooKeeper has refused the new name, and asks for
# that.
foreach my $style (qw(curator_rw kazoo))
{
	subtest "$style: a check beside a new name that is refused" => sub {
		my $path = "/refused/$style";
		my ($s, $proxy) = session_by_proxy('zklock.node_style' => $style, 'zklock.commit_guard' => 'off');
		$s->value("BEGIN; SELECT zk_xact_lock('$path'), zk_lock_shared('$path')");
		$client->set_acl("/zklock$path", [ [ ALL & ~CREATE, 'world', 'anyone' ] ]);
		$proxy->clear_log;
		$proxy->hold('multi');
		$s->value('COMMIT; SET zklock.commit_guard = strict');
		$proxy->wait_held;
		$s->send("BEGIN; SELECT zk_try_xact_lock_shared('$path'); COMMIT");
		$proxy->wait_for('multi', 2);
		$proxy->release;
		my $commit = $s->wait;
		is("$commit->{out}$commit->{state}", 't', 'COMMIT passes');
		is($s->value('SELECT mode, state FROM zk_locks'), 'shared|held', 'the lock is held');
		$client->set_acl("/zklock$path", [ [ ALL, 'world', 'anyone' ] ]);
		$s->quit;
	};
}

# ------------------------------------------- what a session itself left over

# A call is canceled while there is no connection: ZooKeeper has its node, and
# the session does not know about it yet.
sub leave_node
{
	my ($s, $proxy) = @_;
	my $before = queue('/leftover');
	$proxy->refuse;
	$proxy->swallow_and_drop('create2');
	$s->send("SELECT zk_lock('/leftover')");
	$proxy->wait_swallowed;
	$admin->value('SELECT pg_cancel_backend(' . $s->pid . ')');
	is($s->wait->{state}, '57014', 'the call before is canceled');
	is(queue('/leftover'), $before + 1, 'and leaves a node');
	return;
}

# The next call comes before the session has dealt with it.
foreach my $case (
	[ 'zk_lock, an upgrade', "zk_lock('/leftover', '20s')", 'shared' ],
	[ 'zk_try_lock, an upgrade', "zk_try_lock('/leftover')", 'shared' ],
	[ 'zk_try_lock', "zk_try_lock('/leftover')" ],
	[ 'zk_try_lock_shared', "zk_try_lock_shared('/leftover')" ])
{
	my ($name, $call, $shared) = @$case;
	subtest "its own leftover is not in the way of $name" => sub {
		my ($s, $proxy) = session_by_proxy();
		$s->value("SELECT zk_lock_shared('/leftover')" . ($shared ? '' : ", zk_unlock_shared('/leftover')"));
		leave_node($s, $proxy);
		$proxy->delay_ms(50);    # finding and deleting it takes several round trips
		$proxy->pass;
		my $result = $s->query("SELECT $call");
		is("$result->{out}$result->{state}", 't', 'granted');
		$s->quit;
		wait_queue('/leftover', 0);
	};
}

# ------------------------------------------------------------ several at once

# Held before, and lost while the call waits for the other one
subtest 'zk_lock_many: the lock that was held before is deleted' => sub {
	my ($s, $proxy) = session_by_proxy('zklock.session_timeout' => '6s');
	my $other = session();
	$s->value("SELECT zk_lock('/all/a')");
	$other->value("SELECT zk_lock('/all/b')");
	$s->send("SELECT zk_lock_many('{/all/a,/all/b}')");
	wait_queue('/all/b', 2);
	my ($held) = queue('/all/a');
	wait_seen($proxy, $held);    # as is every lock that has been held for some time
	$client->delete($held);
	$other->value("SELECT zk_unlock('/all/b')");
	my $result = $s->wait;
	is($result->{state}, '55000', 'fails') or diag explain $result;
	like($result->{message}, qr{lock on "/all/a" was lost}, 'says which');
	is($s->value('SELECT path, state FROM zk_locks'), '/all/a|lost', 'nothing else is taken');
	wait_queue('/all/b', 0);
	$_->quit for $s, $other;
};

subtest 'zk_lock_many: the session of the lock that was held before ends' => sub {
	my ($s, $proxy) = session_by_proxy('zklock.session_timeout' => '6s');
	my $other = session();
	$s->value("SELECT zk_lock('/all/a')");
	$other->value("SELECT zk_lock('/all/b')");
	$s->send("SELECT zk_lock_many('{/all/a,/all/b}')");
	wait_queue('/all/b', 2);
	$proxy->cut_off;
	wait_queue('/all/b', 1);
	$proxy->pass;
	wait_queue('/all/b', 2);
	$other->value("SELECT zk_unlock('/all/b')");
	my $result = $s->wait;
	is($result->{state}, '55000', 'fails') or diag explain $result;
	like($result->{message}, qr{lock on "/all/a" was lost}, 'says which');
	is($s->value('SELECT path, state FROM zk_locks'), '/all/a|lost', 'nothing else is taken');
	wait_queue('/all/b', 0);
	$_->quit for $s, $other;
};

# A backend that uses freed memory does not crash each time: so try several
# sizes
subtest 'zk_lock_many: an answer with paths that are none' => sub {
	my ($s, $proxy) = session_by_proxy('zklock.session_timeout' => '60s');
	foreach my $n (2, 4, 8, 16, 32, 64, 100)
	{
		my $call = "zk_lock_many(ARRAY(SELECT '/several/' || i FROM generate_series(1, $n) i))";
		$s->value("SELECT $call, zk_unlock_all()");    # creates the directories
		$proxy->count_frames;
		$proxy->clear_log;
		$proxy->nth('reply', 1, 'slash');
		my $result = $s->query("SELECT $call");
		ok(!$result->{closed}, "$n: the backend lives") or last;
		is("$result->{out}$result->{state}", 't', "$n: the nodes are found by their names");
		is(grep({ $_->[1] eq 'x' && $_->[7] =~ /slash$/ } $proxy->log), 1, "$n: the answer was such a one");
		is($s->query('SELECT zk_unlock_all()')->{out}, $n, "$n: they can be given back");
	}
	$s->quit;
};

subtest 'zk_lock_many: far too many' => sub {
	my $s = session();
	my $memory = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name LIKE 'zklock%'";
	$s->value("SELECT zk_lock('/many')");
	my $before = $s->value($memory);
	is($s->query("SELECT zk_lock_many(ARRAY(SELECT '/many/' || i FROM generate_series(1, 300000) i))")->{state},
		'53400', 'refused');
	is($s->value($memory), $before, 'nothing of them is kept');
	$s->quit;
};

$client->close;
$admin->quit;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($node);
$node->stop;
$zk->stop;

done_testing();
