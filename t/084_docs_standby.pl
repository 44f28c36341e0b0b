# doc/recipes/standby.md, on a primary and a streaming standby that is promoted

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

my $page = Doc->new('doc/recipes/standby.md');
my $zk = ZooKeeper->new->start;
my $main = PostgreSQL::Test::Cluster->new('main');
$main->init(allows_streaming => 1);
$main->append_conf('postgresql.conf', "$_\n")
  for q{session_preload_libraries = 'zklock'}, "zklock.hosts = '" . $zk->hosts . q{'}, q{zklock.session_timeout = '2s'};
$main->start;
$main->safe_psql('postgres', 'CREATE EXTENSION zklock');
$main->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($main, 'base', has_streaming => 1);
$standby->start;
my %setting = $page->settings;
$main->append_conf('postgresql.conf', "$_ = '$setting{$_}'") for sort keys %setting;
$main->restart;
$main->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}) or die 'no synchronous standby';

$page->run($main, standby => $standby, until => 'The primary crashes');
$main->stop('immediate');
$page->run($main, standby => $standby);
$page->all_was_run;

zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($standby);
done_testing();
