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
my ($load_sql) = map { $_->{code} =~ s/VALUES \(1\)/VALUES (2)/r } grep { $_->{code} =~ /remote_apply/ } $page->blocks('sql');
my $zk = ZooKeeper->new->start;
my $main = PostgreSQL::Test::Cluster->new('main');
zk_init($main, allows_streaming => 1);
$main->append_conf('postgresql.conf', "$_\n")
  for q{session_preload_libraries = 'zklock'}, "zklock.hosts = '" . $zk->hosts . q{'}, q{zklock.session_timeout = '8s'};
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

$page->run($main, zk => $zk, standby => $standby, until => 'Or the reader, once it has');

# ... however slow the standby is
{
	my ($load, $admin, $report) = map { zk_session($_) } $main, $main, $standby;
	$report->value('SELECT pg_wal_replay_pause()');
	$load->send($load_sql);
	zk_until(sub { $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $load->pid) eq 'SyncRep' },
		'COMMIT to wait for the standby');
	is($report->value(q{SELECT zk_try_lock_shared('/load')}), 'f', 'the lock is held until the standby has replayed the commit');
	$report->value('SELECT pg_wal_replay_resume()');
	is($load->wait->{state}, '', 'it does');
	is($report->value(q{SELECT zk_lock_shared('/load', '1 min'); SELECT count(*) FROM loaded; SELECT zk_unlock_shared('/load')}),
		"t\n2\nt", 'and who gets the lock there sees it');
	$_->quit for $load, $admin, $report;
}
$page->run($main, zk => $zk, standby => $standby, until => 'The primary crashes');
$main->stop('immediate');
$page->run($main, zk => $zk, standby => $standby);
$page->all_was_run;

zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($standby);
done_testing();
