# What a session that waits for ZooKeeper shows in pg_stat_activity: wait events
# of its own on PostgreSQL 17 and later, "Extension" before; and none when the
# wait is over.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Tests;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
my $node = zk_cluster(
	'main', $proxy,
	'zklock.session_timeout' => '30s',
	'zklock.connect_timeout' => '60s',
	'zklock.operation_timeout' => '60s',
	'zklock.release_timeout' => '1s');
my $admin = zk_session($node);
my $named = $admin->value(q{SELECT current_setting('server_version_num')}) >= 170000;

# These wait in turn for the same session:
my $s = zk_session($node);
my $holder = $zk->client;
my $theirs;

sub event
{
	return $admin->value('SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = ' . $s->pid);
}

# Where it waits, for which event, what is done before, and by which statement; what lets it
# go on, if that is not the proxy
foreach (
	[ 'the first call, while ZooKeeper does not answer', 'Connect', sub { $proxy->blackhole }, q{SELECT zk_lock('/a')}, sub { $proxy->pass } ],
	[ 'zk_unlock', 'Release', sub { $proxy->hold('delete') }, q{SELECT zk_unlock('/a')} ],
	[ 'a lock that somebody has', 'Acquire', sub { $theirs = $holder->contend('/zklock/a') }, q{SELECT zk_lock('/a')}, sub { $holder->delete($theirs) } ],
	[ 'a lock for which ZooKeeper does not answer', 'Acquire', sub { $proxy->hold([ 'create', 'create2' ]) }, q{SELECT zk_lock('/b')} ],
	[ 'zk_lock_queue', 'Look', sub { $proxy->hold('*') }, q{SELECT zk_lock_queue('/a')} ],
	[ 'a COMMIT that asks whether its locks are held', 'Check', sub {
			$s->value(q{SET zklock.commit_guard = strict; BEGIN; SELECT zk_xact_lock('/c')});
			$proxy->hold('*');
		}, 'COMMIT' ],
	[ 'a COMMIT that waits for its release', 'Release', sub {
			$s->value(q{RESET zklock.commit_guard; BEGIN; SELECT zk_xact_lock('/c')});
			$proxy->hold([ 'delete', 'multi' ]);
		}, 'COMMIT' ])
{
	my ($where, $event, $before, $query, $after) = @$_;
	my $shown = 'Extension|' . ($named ? "Zklock$event" : 'Extension');
	$before->();
	$s->send($query);
	ok(eval { zk_until(sub { event() eq $shown }, $shown) }, "$where: $shown")
	  or diag('it shows ' . event());
	$after ? $after->() : $proxy->release;
	is($s->wait->{state}, '', '- and goes on');
	ok(eval { zk_until(sub { event() eq 'Client|ClientRead' }, 'idle') }, '- and shows that no more');
}

SKIP:
{
	skip 'PostgreSQL has no such view before version 17', 1 unless $named;
	is($admin->value(q{SELECT string_agg(name, ' ' ORDER BY name) FROM pg_wait_events WHERE name ~ '^Zk'}),
		'ZklockAcquire ZklockCheck ZklockConnect ZklockLook ZklockRelease', 'pg_wait_events knows them, each once');
}

$_->quit for $s, $admin;
$holder->close;
zk_end($zk, $node);
