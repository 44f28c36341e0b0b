# Servers are removed from the ensemble and added to it, the leader first, while locks are
# held and waited for.  Nobody loses a lock of it.

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Path qw(rmtree);

use Tests;

my $all = ZooKeeper->ensemble(3, reconfig => 1, superuser => 1);
# A server that hears of its election late waits for its followers for 10 s in vain, and so
# the others for a leader; that can happen twice.
my $node = zk_cluster('main', $all, 'zklock.session_timeout' => '60s', 'zklock.operation_timeout' => '60s');
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (n int)');

# some are connected to each server: the order in which they try them is their own
my @holders = map { zk_session($node) } 1 .. 8;
$holders[$_]->value("SELECT zk_lock('/held/$_')") for 0 .. $#holders;
my @sessions = map { $_->value('SELECT session_id FROM zk_session') } @holders;
my $waiter = zk_session($node);
$waiter->send(q{SELECT zk_lock('/held/0')});
zk_wait_queued($all, $waiter);

# All still hold what they held, and the guard lets them commit
sub all_hold
{
	my ($when) = @_;
	my @result = map { $_->query('INSERT INTO t VALUES (1)')->{state} } @holders;
	is("@result[0 .. $#result]", ' ' x $#result, "$when: all commit");
	zk_wait_hold($_, 'held') for @holders;
	is(join(' ', map { $_->value('SELECT session_id FROM zk_session') } @holders), "@sessions", '- and have the sessions that they had');
	ok(!$waiter->is_done, '- and who waits, waits');
	return;
}

# A server's way out may take the connection with it by which it was asked for, so this
# is repeated until the configuration says so.
sub reconfigure
{
	my ($at, $server, $there) = @_;
	return zk_until(
		sub {
			my $done = 0;
			eval {
				my $client = $at->client(timeout => 2, session_timeout => 2000);
				my $config = $client->get('/zookeeper/config');
				$done = ($config =~ /^server\.$server->{id}=/m) == $there;
				$client->reconfig($there ? (joining => $server->member) : (leaving => $server->{id})) unless $done;
				$client->close;
			};
			return $done;
		},
		'the new configuration');
}

all_hold('before');
foreach my $mode (qw(leader follower))
{
	my ($server) = $all->in_mode($mode);
	my ($other) = grep { $_ != $server } $all->nodes;
	reconfigure($other, $server, 0);
	$server->stop;
	zk_until(sub { $all->in_mode('leader') }, 'a leader of the others');
	all_hold("the $mode has been removed");

	# It was told that it is none of them; with its first configuration it finds them.  Its
	# data go, as they would of a new machine: it may have been stopped when it had the
	# transactions of a new epoch, and had not noted that yet, and would not start with them.
	rmtree($server->dir . '/data/version-2');
	$server->_configure;
	$server->start;
	reconfigure($other, $server, 1);
	zk_until(sub { $all->in_mode('leader') && $all->in_mode('follower') == 2 }, 'two followers');
	all_hold('and is back');
}

is($holders[0]->value(q{SELECT zk_unlock('/held/0')}), 't', 'released');
is($waiter->wait->{out}, 't', 'the waiter gets it');
$_->quit for @holders, $waiter, $admin;
zk_end($all, $node);
