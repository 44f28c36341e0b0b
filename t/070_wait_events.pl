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

my @waits = (
	{
		event => 'ZklockConnect',
		where => 'the first call, while ZooKeeper does not answer',
		before => sub { $proxy->blackhole },
		query => q{SELECT zk_lock('/a')},
		after => sub { $proxy->pass }
	},
	{
		event => 'ZklockRelease',
		where => 'zk_unlock',
		before => sub { $proxy->hold('delete') },
		query => q{SELECT zk_unlock('/a')},
		after => sub { $proxy->release }
	},
	{
		event => 'ZklockAcquire',
		where => 'a lock that somebody has',
		before => sub { $theirs = $holder->contend('/zklock/a') },
		query => q{SELECT zk_lock('/a')},
		after => sub { $holder->delete($theirs) }
	},
	{
		event => 'ZklockAcquire',
		where => 'a lock for which ZooKeeper does not answer',
		before => sub { $proxy->hold([ 'create', 'create2' ]) },
		query => q{SELECT zk_lock('/b')},
		after => sub { $proxy->release }
	},
	{
		event => 'ZklockLook',
		where => 'zk_lock_queue',
		before => sub { $proxy->hold('*') },
		query => q{SELECT zk_lock_queue('/a')},
		after => sub { $proxy->release }
	},
	{
		event => 'ZklockCheck',
		where => 'a COMMIT that asks whether its locks are held',
		before => sub {
			$s->value(q{SET zklock.commit_guard = strict; BEGIN; SELECT zk_xact_lock('/c')});
			$proxy->hold('*');
		},
		query => 'COMMIT',
		after => sub { $proxy->release }
	},
	{
		event => 'ZklockRelease',
		where => 'a COMMIT that waits for its release',
		before => sub {
			$s->value(q{RESET zklock.commit_guard; BEGIN; SELECT zk_xact_lock('/c')});
			$proxy->hold([ 'delete', 'multi' ]);
		},
		query => 'COMMIT',
		after => sub { $proxy->release }
	},);

foreach my $wait (@waits)
{
	my $shown = 'Extension|' . ($named ? $wait->{event} : 'Extension');
	$wait->{before}->();
	$s->send($wait->{query});
	ok(eval { zk_until(sub { event() eq $shown }, $shown) }, "$wait->{where}: $shown")
	  or diag('it shows ' . event());
	$wait->{after}->();
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
