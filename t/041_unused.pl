# A session that loads the library and takes no lock pays next to nothing per
# transaction: counted by callgrind, not timed.  (A callback of ours must be the
# last of all before the commit, so it is registered at load, and only checks a
# flag.  The hooks of zklock.advisory, which is off, are a branch each.  Together these are
# some hundred and twenty instructions of 100,000.)  And it sends nothing to ZooKeeper.
#
# The test compares what a backend executes inside our library and the client
# library after 50 and after 550 transactions.  (The total number of
# instructions varies by half a percent with the layout of the heap, whichever
# library is loaded.)

use FindBin;
use lib "$FindBin::RealBin/lib";

use IPC::Run qw(run);

use Tests;

plan skip_all => 'valgrind is not installed'
  if system('command -v valgrind >/dev/null && command -v callgrind_annotate >/dev/null') != 0;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, autovacuum => 'off');
my $dir = PostgreSQL::Test::Utils::tempdir;

$node->safe_psql('postgres', 'CREATE TABLE account AS SELECT n AS id, n AS balance FROM generate_series(1, 1000) n');
$node->safe_psql('postgres', 'CREATE UNIQUE INDEX ON account (id)');
$node->safe_psql('postgres', 'VACUUM FREEZE');
my $asserts = $node->safe_psql('postgres', 'SHOW debug_assertions') eq 'on';
$node->stop;

# A backend without a server, since callgrind takes fifty times as long: what it executes
# for so many transactions, [ours, total]
sub run_transactions
{
	my ($n) = @_;
	my $file = "$dir/$n";
	my $in = join '', map { 'SELECT balance FROM account WHERE id = ' . (1 + $_ % 1000) . "\n" } 1 .. $n;
	my $out;
	run([ 'valgrind', '--tool=callgrind', "--callgrind-out-file=$file",
			'postgres', '--single', '-D', $node->data_dir, 'postgres' ], '<', \$in, '>', \$out, '2>', "$dir/log") or die slurp_file("$dir/log");
	my $answers = () = $out =~ /balance = "/g;
	is($answers, $n, "$n transactions");

	my ($ours, $all) = (0, 0);
	for my $line (split /\n/, `callgrind_annotate --threshold=100 --auto=no $file 2>/dev/null`)
	{
		next if $line !~ /^\s*([\d,]+) .*\[(.*)\]\s*$/ || $line =~ /=>/;
		my ($count, $object) = ($1 =~ tr/,//dr, $2);
		$all += $count;
		$ours += $count if $object =~ m{/zklock\.so$|/libzookeeper_};
	}
	return ($ours, $all);
}

my $received = $zk->mntr_value('packets_received');
my $more = 500;
my ($ours_few, $all_few) = run_transactions(50);
my ($ours_many, $all_many) = run_transactions(50 + $more);

cmp_ok($ours_few, '>', 0, 'the library was loaded');
cmp_ok($all_many - $all_few, '>', $more * 10_000, 'the transactions were counted');
SKIP:
{
	skip 'a PostgreSQL for debugging has more', 1 if $asserts;
	cmp_ok($ours_many - $ours_few, '<=', $more * 150, "$more transactions more execute next to nothing of ours");
}
diag sprintf('instructions per transaction: %d in all, %d ours; at load: %d ours',
	($all_many - $all_few) / $more, ($ours_many - $ours_few) / $more, $ours_few);
is($zk->sessions, 0, 'there is no ZooKeeper session');
cmp_ok($zk->mntr_value('packets_received') - $received, '<=', 10, 'and was no request but this test\'s own');

done_testing();
