# doc/recipes/pgbouncer.md, behind a pgbouncer in transaction mode

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Doc;
use Pgbouncer;
use Zklock;
use ZooKeeper;

plan skip_all => 'there is no pgbouncer' unless Pgbouncer::program();

my $page = Doc->new('doc/recipes/pgbouncer.md');
my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk);
my $admin = zk_session($node);

# The page's own pgbouncer, with this many connections
my $ini = $page->take('ini')->{code};
sub pool { my ($size, %more) = @_; return Pgbouncer->new($node, ini => $ini, default_pool_size => $size, %more); }

my $one = pool(1);
$page->run($one);
$page->all_was_run;

#
# What the text says apart from its SQL
#
my ($ada, $bob) = map { zk_session($one) } 1 .. 2;
$ada->value(q{BEGIN; SELECT zk_xact_lock('/gone')});
$ada->kill9;
is($bob->value(q{BEGIN; SELECT zk_xact_lock('/gone', '1min'); COMMIT}), 't',
	'a client that goes away in its transaction gives its lock back');
$bob->quit;
$one->kill9;

my $two = pool(2);
($ada, $bob) = map { zk_session($two) } 1 .. 2;
is($ada->value(q{SELECT zk_lock('/hers')}), 't', 'two connections: a lock of the session');
$bob->value('BEGIN');    # takes the connection that was used last
my $result = $ada->query(q{SELECT zk_unlock('/hers')});
is($result->{out}, 'f', '- is not found by its own client');
is(scalar @{ $result->{warnings} }, 1, '- with a WARNING');
is($bob->value('SELECT zk_unlock_all(); COMMIT'), '1', '- but is in another session');
$_->quit for $ada, $bob;
$two->kill9;

my $always = pool(1, server_reset_query_always => 1);
$ada = zk_session($always);
is($ada->value(q{SELECT zk_lock('/hers')}), 't', 'server_reset_query_always: a lock of the session');
is($ada->value(q{SELECT count(*) FROM zk_locks}), '0', '- ends with the transaction');
$ada->quit;
$always->kill9;

$admin->quit;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($node);
done_testing();
