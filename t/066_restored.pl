# ZooKeeper is restored to an earlier state, which breaks its own promises: locks that
# were granted since are forgotten, and tokens begin lower.  For a moment two hold a lock;
# the one that was forgotten does not commit, and the fence refuses what comes after,
# until its owner says otherwise.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;

use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '5s', 'zklock.connect_timeout' => '30s');
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (who text)');

# Takes the lock, fences and commits; returns the token
sub protected
{
	my ($session) = @_;
	my $token = $session->value(q{BEGIN; SELECT zk_xact_lock('/r'); SELECT zk_fence('/r'); COMMIT}) =~ s/.*\n//sr;
	return $token;
}

my $early = zk_session($node);
my $before = protected($early);
$early->quit;    # a session that is in the copy would be there again, with what it had
$zk->stop;
my $data = $zk->dir . '/data/version-2';
system_or_bail('cp', '-RPp', $data, "$data.saved");
$zk->start;

my $holder = zk_session($node);
protected($holder) for 1 .. 10;
my $after = protected($holder);
cmp_ok($after, '>', $before, 'a token from after the copy is greater');
is($holder->value(q{SELECT zk_lock('/r')}), 't', 'one holds the lock');
$holder->value(q{BEGIN; INSERT INTO t VALUES ('forgotten')});

$zk->stop;
system_or_bail('rm', '-rf', $data);
system_or_bail('mv', "$data.saved", $data);
$zk->start;

my $next = zk_session($node);
is($next->value(q{SELECT zk_lock('/r')}), 't', 'ZooKeeper, restored, gives it to another');
zk_wait_hold($holder, 'lost');
zk_is_lost($holder->query('COMMIT'), '/r', 'but it does not commit');
is($admin->value('SELECT count(*) FROM t'), 0, '- and nothing of it is there');

my $token = $next->value(q{SELECT zk_lock_token('/r')});
cmp_ok($token, '<', $after, 'the new token is smaller than that from before');
my $result = $next->query(q{SELECT zk_fence('/r')});
is($result->{state}, '40001', '- and the fence refuses it');
$admin->value('DELETE FROM zk_fences');
is($next->value(q{SELECT zk_fence('/r')}), $token, '- until its owner empties its table');
is($next->value(q{SELECT zk_unlock('/r')}), 't', 'and all goes on');
is($holder->value(q{SELECT zk_unlock_all()}), '0', 'the forgotten hold is gone');
zk_locks_again($holder, 'and its session locks again');

$_->quit for $holder, $next, $admin;
$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
done_testing();
