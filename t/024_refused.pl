# What ZooKeeper itself refuses: a path that its ACL closes, a path under an
# ephemeral node, a node that may not be read.  Each is a clear error, leaves
# nothing behind, and the session goes on.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;

use Zklock;
use ZooKeeper;

use constant { READ => 1, WRITE => 2, CREATE => 4, DELETE => 8, ADMIN => 16, ALL => 31 };

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk);
my $session = zk_session($node);
my $client = $zk->client(session_timeout => 60_000);

sub open_to_world { return [ [ $_[0], 'world', 'anyone' ] ] }

$client->create('/zklock', mode => 'persistent');
$client->create('/zklock/closed', mode => 'persistent', acl => open_to_world(READ));
$client->create('/zklock/unlisted', mode => 'persistent', acl => open_to_world(CREATE | DELETE));
$client->create('/zklock/ephemeral', mode => 'ephemeral');
$client->create('/zklock/shy', mode => 'persistent');
my $shy = $client->create('/zklock/shy/_c_other-lock-', mode => 'ephemeral_sequential',
	acl => open_to_world(DELETE));

my @cases = (
	[ "zk_lock('/closed')", '42501', qr/permission denied by ZooKeeper for lock path "\/closed"/ ],
	[ "zk_lock('/closed/below/it')", '42501', qr/permission denied/ ],
	[ "zk_lock('/unlisted')", '42501', qr/permission denied/ ],
	[ "zk_try_lock('/unlisted')", '42501', qr/permission denied/ ],
	[ "zk_lock('/shy')", '42501', qr/permission denied/ ],
	[ "zk_lock('/ephemeral')", '55000', qr/ephemeral node/ ],
	[ "zk_lock('/ephemeral/below')", '55000', qr/ephemeral node/ ],);

for my $case (@cases)
{
	my ($call, $state, $message) = @$case;
	my $result = $session->query("SELECT $call");

	is($result->{state}, $state, "$call: $state");
	like($result->{err}, $message, "$call: says so");
	is($session->value("SELECT zk_lock('/fine'), zk_unlock('/fine')"), 't|t', "$call: the session goes on");
}

is_deeply(
	[ sort grep { !/fine/ } $zk->tree('/zklock') ],
	[ sort qw(/zklock/closed /zklock/ephemeral /zklock/shy /zklock/unlisted), $shy ],
	'no node and no directory is left of the refused calls');

$client->delete($shy);
is($session->value("SELECT zk_lock('/shy'), zk_unlock('/shy')"), 't|t', 'what was in the way is gone');

$client->close;
zk_nothing_left($zk, 'nothing is left');
$node->stop;

done_testing();
