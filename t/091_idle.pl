# zklock.idle_timeout: a ZooKeeper session that holds and awaits nothing is closed,
# with its thread and its descriptors, while its backend does nothing; and the next
# call opens another.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $POOL = $ENV{ZK_POOL} // 40;    # backends
my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, max_connections => $POOL + 60, 'zklock.session_timeout' => '10s',
	'zklock.operation_timeout' => '30s', 'zklock.connect_timeout' => '30s');
my $admin = zk_session($node);

my $STATE = 'SELECT state FROM zk_session';

# Threads and descriptors of a backend that has no session
my $bare = zk_session($node);
$bare->value("SELECT zk_lock_token('/a')");
my ($THREADS) = scalar zk_threads($bare->pid);
is($THREADS, 1, 'one thread without a session');

sub is_gone
{
	my ($s, $name) = @_;
	zk_until(sub { zk_threads($s->pid) == 1 }, 'the thread to end');
	zk_until(sub { $zk->sessions == 0 }, 'the session to end');
	pass($name);
	return;
}

sub descriptors { return scalar grep { (readlink($_) // '') =~ /socket|eventpoll|eventfd/ } glob "/proc/$_[0]/fd/*"; }

subtest 'an idle session is closed' => sub {
	my $s = zk_session_with($node, idle_timeout => '300ms');
	my $before = descriptors($s->pid);
	$s->value(q{SET zklock.idle_timeout = 0; SELECT zk_lock('/a'), zk_unlock('/a')});
	is($zk->sessions, 1, 'there is one');
	$s->value('RESET zklock.idle_timeout');
	is_gone($s, 'its thread ends, and ZooKeeper has no session');
	is(descriptors($s->pid), $before, 'no descriptor is left');
	is($s->value($STATE), 'none', 'zk_session shows none');
	is($s->value('SELECT losses, reconnections, unreleased FROM zk_session'), '0|0|0', '- which is no loss');
	cmp_ok($s->value('SELECT requests FROM zk_session'), '>', 0, '- and still counts what it asked');
	is($s->value(q{SELECT zk_lock('/a')}), 't', 'the next call opens another');
	is($s->value("$STATE"), 'connected', '- which is shown');
	$s->value(q{SELECT zk_unlock('/a')});
	is_gone($s, '- and closed in its turn');
	is($s->value(q{SELECT count(*) FROM zk_lock_queue('/a')}), 0, 'a look opens one, too');
	is_gone($s, '- which is closed');
	$s->value(q{SELECT zk_try_lock('/a'); DISCARD ALL});
	is_gone($s, 'after DISCARD ALL, which resets no option of the connection');
	$s->quit;
	is(zk_threads($bare->pid), 1, 'who has no session has no thread');
};

subtest 'one that has something is not' => sub {
	my @holder = map { zk_session_with($node, idle_timeout => '1ms') } 1 .. 4;
	$holder[0]->value(q{SELECT zk_lock('/held')});
	$holder[1]->value(q{SELECT zk_semaphore_acquire('/held', 1)});
	$holder[2]->value(q{BEGIN; SELECT zk_xact_lock('/held/too')});
	$holder[3]->send(q{SELECT zk_lock('/held')});
	zk_wait_queued($zk, $holder[3]);
	my $open = zk_session_with($node, idle_timeout => '1ms');
	$open->value(q{SELECT zk_lock('/other')});
	# nor in a transaction that may go on with it
	$open->value(q{BEGIN; SELECT zk_unlock('/other'), count(*) FROM zk_lock_queue('/held')});
	my $asked = $zk->mntr_value('packets_received');
	# each of them sends some heartbeats meanwhile
	zk_until(sub { $zk->mntr_value('packets_received') > $asked + 20 }, 'heartbeats');
	is($_->value($STATE), 'connected', 'still there') for @holder[ 0 .. 2 ], $open;
	is($holder[0]->value(q{SELECT state FROM zk_locks}), 'held', 'the lock is held');
	is($zk->sessions, 5, 'each has its session');
	$holder[0]->value(q{SELECT zk_unlock('/held')});
	is($holder[3]->wait->{out}, 't', 'who waited gets the lock');
	$holder[1]->value(q{SELECT zk_semaphore_release('/held')});
	$holder[2]->value(q{COMMIT});
	$open->value('ROLLBACK');
	zk_until(sub { $zk->sessions == 1 }, 'all but the holder to be closed');
	is($holder[3]->value('SELECT state FROM zk_locks'), 'held', 'the holder still has it');
	$_->quit for @holder, $open;
};

subtest 'the setting' => sub {
	my $s = zk_session($node);
	is($s->value(q{SELECT boot_val FROM pg_settings WHERE name = 'zklock.idle_timeout'}), 60_000, 'the default is a minute');
	$s->value(q{SELECT zk_lock('/a'), zk_unlock('/a')});
	$s->value(q{SET zklock.idle_timeout = 0});
	is($s->value($STATE), 'connected', '0: it stays');
	$s->value(q{SET zklock.idle_timeout = '100ms'});
	is_gone($s, 'changed later, by a statement that uses no lock: it counts from then on');
	$s->value(q{SET zklock.idle_timeout = 0});
	$s->value(q{SELECT zk_lock('/a'), zk_unlock('/a')});
	$s->value(q{SET zklock.idle_timeout = '7d'});
	is($s->value($STATE), 'connected', 'a week');
	$s->value(q{SET zklock.idle_timeout = '3s'; SELECT zk_lock('/a'), zk_unlock('/a')});
	# who only looks at the view does not work with the session
	my $looks = 0;
	zk_until(sub { $looks++; $s->value($STATE) eq 'none' }, 'a session that is only looked at to be closed');
	cmp_ok($looks, '>', 1, 'a look at zk_session does not keep it');
	$s->quit;
	is($admin->query(q{SET zklock.idle_timeout = '-1'})->{state}, '22023', 'a negative time is refused');
};

# COMMIT does not wait for its delete; ZooKeeper must learn of it before the session
# ends, or the lock would be free later than it could be.
subtest 'a release that is not answered yet' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, idle_timeout => '1ms', release_timeout => 0);
	zk_until(sub { $proxy->connections == 0 }, 'the first session to be closed');
	$proxy->hold('delete');
	$s->value(q{BEGIN; SELECT zk_xact_lock('/held'); COMMIT});
	$proxy->wait_held;
	zk_until(sub { ($proxy->log)[-1][2] eq 'exists' }, 'a heartbeat');
	is(zk_threads($s->pid), 2, 'the session waits for the answer');
	$proxy->release;
	zk_until(sub { zk_threads($s->pid) == 1 }, 'the thread to end');
	is(scalar(grep { /^delete / } $proxy->requests), 1, 'it was sent once');
	$proxy->reset;
	$s->quit;
};

subtest 'ZooKeeper is away' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, idle_timeout => '500ms');
	$proxy->refuse;
	$proxy->drop;
	zk_until(sub { zk_threads($s->pid) == 1 }, 'a session that is cut off and has nothing to be given up');
	is($s->value($STATE), 'none', 'none');
	is($s->query(q{SET zklock.connect_timeout = '300ms'; SELECT zk_lock('/a')})->{state}, '58000', 'the next call finds nobody');
	zk_until(sub { zk_threads($s->pid) == 1 }, 'nobody tries any longer');
	$proxy->pass;
	is($s->value(q{SET zklock.connect_timeout = '30s'; SELECT zk_lock('/a'), zk_unlock('/a')}), 't|t', '- or finds it again');
	$proxy->blackhole;
	zk_until(sub { zk_threads($s->pid) == 1 }, 'one whose server is silent, too');
	$proxy->pass;
	$s->quit;
	$proxy->reset;
};

# A call that begins at the very moment
subtest 'races' => sub {
	my @s = map { zk_session_with($node, idle_timeout => "${_}ms", session_timeout => '60s') } 1 .. 6;
	foreach my $i (0 .. $#s)
	{
		$s[$i]->value(<<~"SQL");
			CREATE PROCEDURE pg_temp.work() LANGUAGE plpgsql AS \$\$
			BEGIN
				FOR i IN 1 .. 150 LOOP
					IF NOT zk_lock('/race/$i') THEN RAISE 'no lock'; END IF;
					IF i % 3 = 0 THEN
						COMMIT;
						PERFORM pg_sleep(random() * 0.004);
					END IF;
					IF NOT zk_unlock('/race/$i') THEN RAISE 'no unlock'; END IF;
					IF i % 5 = 0 THEN PERFORM count(*) FROM zk_lock_queue('/race/$i'); END IF;
					COMMIT;
					PERFORM pg_sleep(random() * 0.012);
				END LOOP;
			END \$\$
			SQL
		$s[$i]->send('CALL pg_temp.work()');
	}
	is($_->wait->{err}, '', 'no error, and no WARNING') for @s;
	is($_->value('SELECT losses FROM zk_session'), 0, 'and no loss') for @s;
	$_->quit for @s;
};

# Memory of a backend that nobody else uses, in kB
sub private_memory
{
	my $sum = 0;
	$sum += $_ for map { slurp_file("/proc/$_[0]/smaps_rollup") =~ /^Private_(?:Clean|Dirty): +(\d+) kB$/mg } @_;
	return $sum;
}

subtest 'a pool' => sub {
	# those of before that were cut off, which could not be closed, expire
	zk_until(sub { $zk->sessions == 0 }, 'no session to be left');
	my @pool = map { zk_session_with($node, idle_timeout => 0) } 1 .. $POOL;
	$_->value('SELECT count(*) FROM zk_locks') for @pool;
	my $has = sub { my $sum = 0; $sum += $_[0]->($_->pid) for @pool; return $sum; };
	my ($files, $memory) = map { $has->($_) } \&descriptors, \&private_memory;
	$_->send(q{SELECT zk_lock('/pool'), zk_unlock('/pool')}) for @pool;
	is(join(' ', map { $_->wait->{out} } @pool), join(' ', ('t|t') x @pool), 'all have locked once');
	is($zk->sessions, $POOL, 'each has its session');
	my $more_files = $has->(\&descriptors) - $files;
	my $more_memory = $has->(\&private_memory) - $memory;
	cmp_ok($more_files, '>', 0, '- and its descriptors');

	my $began = time;
	$_->send(q{SET zklock.idle_timeout = '500ms'}) for @pool;
	$_->wait for @pool;
	zk_until(sub { $zk->sessions == 0 }, 'no session to be left');
	zk_until(sub { !grep { zk_threads($_->pid) != 1 } @pool }, 'nor a thread');
	note sprintf '%d backends with a session have %d descriptors and %d kB more; %.1f s later none has one, and %d kB', $POOL, $more_files, $more_memory,
		time - $began, $has->(\&private_memory) - $memory;
	is($has->(\&descriptors), $files, 'nor a descriptor');
	is($pool[0]->value(q{SELECT zk_lock('/pool')}), 't', 'one of them goes on');
	$_->send(q{SELECT zk_lock('/pool', '60s'), zk_unlock('/pool')}) for @pool[ 1 .. $#pool ];
	$pool[0]->value(q{SELECT zk_unlock('/pool')});
	is(join(' ', map { $_->wait->{out} } @pool[ 1 .. $#pool ]), join(' ', ('t|t') x $#pool), '- and then all the others, at once');
	$_->quit for @pool;
};

$_->quit for $bare, $admin;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($node);
done_testing();
