# A background worker takes locks as a backend does, and one that is terminated
# while it waits or holds, by the handler that leaves from within the signal,
# leaves nothing behind and hurts nobody.

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
my $library = "$dir/worker";
chomp(my $include = `pg_config --includedir-server`);

system_or_bail('gcc', '-shared', '-fPIC', "-I$include", '-o', "$library.so",
	"$FindBin::RealBin/c/worker.c");
$node->safe_psql('postgres',
	"CREATE FUNCTION worker_launch(text, text) RETURNS integer AS '$library' LANGUAGE C");

my $holder = zk_session($node);
my $admin = zk_session($node);

sub launch
{
	my ($query) = @_;
	return $admin->value("SELECT worker_launch('$library', '$query')");
}

sub gone { return $admin->value("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $_[0]") eq 't' }

sub waits
{
	return $admin->value("SELECT count(*) FROM pg_stat_activity
		WHERE pid = $_[0] AND wait_event_type = 'Extension'") == 1;
}

# 20 times: the signal shall come at different moments
for my $i (1 .. 20)
{
	$holder->value("SELECT zk_lock('/worker')");
	my $pid = launch(q{SELECT zk_lock(''/worker'')});

	zk_until(sub { !gone($pid) }, 'the worker is there to be terminated');
	zk_until(sub { waits($pid) && $zk->children('/zklock/worker') == 2 }, 'the worker waits') if $i % 2;
	$admin->value("SELECT pg_terminate_backend($pid)");
	zk_until(sub { gone($pid) }, "the worker has ended, $i");
	zk_until(sub { $zk->children('/zklock/worker') == 1 }, "its node is gone, $i");
	$holder->value("SELECT zk_unlock('/worker')");
}
pass('a worker that is terminated while it waits leaves nothing');

my $pid = launch(q{SELECT zk_lock(''/worker''), pg_sleep(60)});
zk_until(sub { $zk->children('/zklock/worker') == 1 }, 'the worker holds');
$holder->send("SELECT zk_lock('/worker')");
zk_wait_waiting($admin, $holder);
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
