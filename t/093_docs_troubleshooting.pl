# doc/troubleshooting.md: each of its misconfigurations is made here, and says
# what the page says that it does.

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

my $page = Doc->new('doc/troubleshooting.md');
my $zk = ZooKeeper->new->start;
my $small = ZooKeeper->new(max_client_cnxns => 1)->start;
my $three = ZooKeeper->ensemble(3);
$three->node($_)->stop for 2, 3;
zk_until(sub { $three->node(1)->four_letter('srvr') =~ /not currently serving/ }, 'the first to notice');
my $nobody = '127.0.0.1:' . ZooKeeper::free_port();
my $node = zk_cluster('main', $zk);
my %cluster = (
	unset => zk_cluster('unset', ''),
	down => zk_cluster('down', $nobody, 'zklock.connect_timeout' => '1s'),
	full => zk_cluster('full', $small, 'zklock.connect_timeout' => '1s'),
	lonely => zk_cluster('lonely', $three->node(1), 'zklock.connect_timeout' => '2s'),
	elsewhere => zk_cluster('elsewhere', $zk, 'zklock.root' => '/elsewhere'));
$node->safe_psql('postgres', 'CREATE ROLE worker LOGIN');
my $only_one = $small->client;

$page->run($node, zk => $zk, %cluster, until => '### What follows');
my ($session) = $node->safe_psql('postgres', q{SELECT zk_session FROM zk_lock_queue('/jobs/report')});
my $pooled = $page->{session}{'main/pooled/'};
$zk->end_session($session, $pooled->pid);
zk_until(sub { $pooled->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
$page->run($node, zk => $zk, %cluster);
$page->all_was_run;

my ($says) = map { s/\s+/ /gr } $page->text =~ /`(This ZooKeeper\s+instance [^`]*)`/;
like($three->node(1)->four_letter('srvr'), qr/^\Q$says\E$/, 'what a server without a quorum says');

#
# Nobody can log in: the library is not where PostgreSQL looks for it
#
{
	my ($message) = $page->text =~ /^ {4}(FATAL:  .*)$/m;
	my ($options, $one, $two) = $page->text =~ /^ {4}PGOPTIONS='(.*)' psql -c "(.*)" -c "(.*)"$/m or die 'no command';
	my $gone = $cluster{unset};
	$gone->safe_psql('postgres', q{ALTER SYSTEM SET session_preload_libraries = 'zklock'});
	$gone->append_conf('postgresql.conf', "session_preload_libraries = ''\ndynamic_library_path = '/nonexistent'");
	$gone->restart;

	my ($status, $out, $err) = $gone->psql('postgres', 'SELECT 1');
	is($status, 2, 'without the library nobody can log in');
	like($err, qr/: \Q$message\E$/m, '- and is told what the page says');
	{
		local $ENV{PGOPTIONS} = $options;
		$gone->safe_psql('postgres', $one);
		$gone->safe_psql('postgres', $two);
	}
	zk_until(sub { ($gone->psql('postgres', 'SELECT 1'))[0] == 0 }, 'everybody to be able to log in');
	pass('what the page says lets everybody in again');
}

$only_one->close;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($_) for $node, values %cluster;
done_testing();
