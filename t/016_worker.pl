# A background worker takes locks as a backend does, and one that is terminated
# while it waits or holds leaves nothing behind and disturbs nobody: with die()
# at any moment, and with the handler that exits from within the signal while it
# waits. (The latter at any moment would be a test of PostgreSQL: even without
# zklock it ends in "corrupted size vs. prev_size" once in some hundred times.)

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;

use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk);
my $dir = PostgreSQL::Test::Utils::tempdir_short;
my $library = zk_library('worker');
$node->safe_psql('postgres',
	"CREATE FUNCTION worker_launch(text, text, boolean) RETURNS integer AS '$library' LANGUAGE C");

my $holder = zk_session($node);
my $admin = zk_session($node);
$holder->value("SELECT zk_lock('/worker')");
my $session = $holder->value('SELECT session_id FROM zk_session');
$holder->value("SELECT zk_unlock('/worker')");

sub launch
{
	my ($query, $at_once) = @_;
	$at_once = $at_once ? 'true' : 'false';
	return $admin->value("SELECT worker_launch('$library', '$query', $at_once)");
}

sub gone { return $admin->value("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $_[0]") eq 't' }

# Sessions that watch a node there, except the holder's, which may watch its own
sub watched_by_another { return grep { $_ ne $session } $zk->four_letter('wchc') =~ /^(0x\w+)$/mg }

# Each kind of wait, and what it waits for
my @wait = (
	[ q{zk_lock('/worker')}, q{zk_lock('/worker')} ],
	[ q{zk_lock_shared('/worker')}, q{zk_lock('/worker')} ],
	[ q{zk_semaphore_acquire('/worker', 1)}, q{zk_semaphore_acquire('/worker', 1)} ],
	[ q{zk_xact_lock_many('{/worker,/others}')}, q{zk_lock_shared('/worker')} ]);

# Send the signal at various moments.  By the time a watch is set everything
# else is done, and pg_stat_activity is checked after that.
for my $i (0 .. 31)
{
	my ($wait, $for) = @{ $wait[ $i / 2 % 4 ] };
	$holder->value("SELECT $for");
	my $at_once = $i % 2;
	my $pid = launch('SELECT ' . $wait =~ s/'/''/gr, $at_once);

	zk_until(sub { !gone($pid) }, 'the worker is there to be terminated');
	zk_until(sub { watched_by_another() && zk_waits($admin, $pid) }, 'the worker waits') if $at_once;
	$admin->value("SELECT pg_terminate_backend($pid)");
	zk_until(sub { gone($pid) }, "the worker has ended, $i");
	zk_until(sub { $zk->children('/zklock/worker') == 1 }, "its node is gone, $i");
	zk_until(sub { !$zk->children('/zklock/others') }, "nor is another, $i") if $wait =~ /others/;
	is($holder->value('SELECT zk_unlock_all()'), 1, "$wait, $i");
}
pass('a worker that is terminated while it waits leaves nothing');

my $pid = launch(q{SELECT zk_lock(''/worker''), pg_sleep(60)}, 1);
zk_until(sub { $zk->children('/zklock/worker') == 1 }, 'the worker holds');
$holder->send("SELECT zk_lock('/worker')");
zk_wait_queued($zk, $holder);
$admin->value("SELECT pg_terminate_backend($pid)");
is($holder->wait->{out}, 't', 'one that is terminated while it holds gives the lock to the next');
$holder->value("SELECT zk_unlock('/worker')");

launch(q{SELECT zk_lock(''/worker''), zk_unlock(''/worker'')});
zk_until(sub { $admin->value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'zklock test worker'") == 0 },
	'the worker has ended by itself');
is($admin->value('SELECT 1'), 1, 'no session was disturbed');
$_->quit for $holder, $admin;
unlike(slurp_file($node->logfile), qr/PANIC|terminated by signal|TRAP/, 'no process crashed');
zk_nothing_left($zk, 'nothing is left', sessions => 0);
$node->stop;

done_testing();
