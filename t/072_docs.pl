# The pages of doc/ are true: all SQL in them runs, in the order of the page, and
# prints what it says; see t/lib/Doc.pm.  A page that needs other programs has a
# test of its own.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Doc;
use Zklock;
use ZooKeeper;

my %own_test = (
	'README.md' => '030_readme.pl',
	'doc/recipes/cron.md' => '081_docs_cron.pl',
	'doc/recipes/java-python.md' => '082_docs_clients.pl',
	'doc/recipes/pgbouncer.md' => '083_docs_pgbouncer.pl',
	'doc/recipes/standby.md' => '084_docs_standby.pl',
	'doc/security.md' => '085_docs_security.pl');

foreach my $page (sort keys %own_test)
{
	like(slurp_file("$FindBin::RealBin/$own_test{$page}"), qr{'\Q$page\E'}, "$own_test{$page} runs $page");
}

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk);
my $other = zk_cluster('other', $zk);

foreach my $file (grep { !$own_test{$_} } Doc::pages())
{
	my $page = Doc->new($file);

	# its own tables and fences
	my $dbname = $file =~ s{^doc/}{}r =~ s/\W/_/gr;
	foreach my $cluster ($node, $other)
	{
		$cluster->safe_psql('postgres', "CREATE DATABASE $dbname");
		$cluster->safe_psql($dbname, 'CREATE EXTENSION zklock');
	}
	$page->run($node, dbname => $dbname, other => $other);
	$page->all_was_run;
	zk_nothing_left($zk, "$file: nothing is left in ZooKeeper", sessions => 0);
}
zk_no_crash($_) for $node, $other;

done_testing();
