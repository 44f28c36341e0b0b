# A session that loads the library and takes no lock pays next to nothing per
# transaction: counted by callgrind, not timed.  (A callback of ours must be the
# last of all before the commit, so it is registered at load, and only checks a
# flag.  The hooks of zklock.advisory, which is off, are a branch each.  Together these are
# some ninety instructions of 100,000.)  And it sends nothing to ZooKeeper.
#
# The test compares what a backend executes inside our library and the client
# library after 100 and after 1,100 transactions.  (The total number of
# instructions varies by half a percent with the layout of the heap, whichever
# library is loaded.)

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use IPC::Run qw(start);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Deadline;
use Zklock;
use ZooKeeper;

plan skip_all => 'valgrind is not installed'
  if system('command -v valgrind >/dev/null && command -v callgrind_annotate >/dev/null') != 0;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, autovacuum => 'off');
my $dir = PostgreSQL::Test::Utils::tempdir;

$node->command_ok([ 'pgbench', '-i', '-q', '-s', '1', $node->connstr('postgres') ], 'pgbench -i');
$node->safe_psql('postgres', 'VACUUM FREEZE');
$node->stop;

my $server;
END { $server->kill_kill(grace => 1) if $server && $server->pumpable }

# Instructions of the backend that did the work: [ours, total]
sub instructions
{
	my (@files) = @_;
	my @most = (0, 0);

	for my $file (@files)
	{
		my ($ours, $all) = (0, 0);

		for my $line (split /\n/, `callgrind_annotate --threshold=100 --auto=no $file 2>/dev/null`)
		{
			next if $line !~ /^\s*([\d,]+) .*\[(.*)\]\s*$/ || $line =~ /=>/;
			my ($n, $object) = ($1 =~ tr/,//dr, $2);
			$all += $n;
			$ours += $n if $object =~ m{/zklock\.so$|/libzookeeper_};
		}
		@most = ($ours, $all) if $all > $most[1];
	}
	return @most;
}

sub run_transactions
{
	my ($n) = @_;
	my $log = "$dir/valgrind.$n.log";
	$server = start([ 'valgrind', '--tool=callgrind', "--callgrind-out-file=$dir/$n.%p",
			'postgres', '-D', $node->data_dir ], '>', $log, '2>&1');

	zk_until(sub { system('pg_isready', '-q', '-h', $node->host, '-p', $node->port) == 0 },
		'the server answers', 3 * $TIMEOUT);    # with valgrind, on a busy machine
	unlink glob "$dir/$n.*[0-9]";
	system_or_bail('pgbench', '-S', '-n', '-c', '1', '-t', $n, '--random-seed=7', $node->connstr('postgres'));
	zk_until(sub { grep { -s $_ } glob "$dir/$n.*[0-9]" }, 'the backend has reported');
	$server->signal('INT');
	$server->finish;
	undef $server;
	return instructions(glob "$dir/$n.*[0-9]");
}

my $received = $zk->mntr_value('packets_received');
my ($ours_few, $all_few) = run_transactions(100);
my ($ours_many, $all_many) = run_transactions(1100);

cmp_ok($ours_few, '>', 0, 'the library was loaded');
cmp_ok($all_many - $all_few, '>', 1000 * 10_000, 'the transactions were counted');
cmp_ok($ours_many - $ours_few, '<=', 1000 * 150, '1,000 transactions more execute next to nothing of ours');
diag sprintf('instructions per transaction: %d in all, %d ours; at load: %d ours',
	($all_many - $all_few) / 1000, ($ours_many - $ours_few) / 1000, $ours_few);
is($zk->sessions, 0, 'there is no ZooKeeper session');
cmp_ok($zk->mntr_value('packets_received') - $received, '<=', 10, 'and was no request but this test\'s own');

done_testing();
