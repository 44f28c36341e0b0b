# Directories that are empty for a moment are reaped, and created again with new
# numbers.  Sessions of all styles share one queue.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

use Turns;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new(container_check => 10)->start;
my $node = zk_cluster('main', $zk);
my @path = map { "/reaped/$_" } 'a', 'a/b', 'c', 'd/e', 'd/f', 'g';
turns_prepare($node);
turns_path(@path);

sub reaper
{
	my ($meanwhile, @hosts) = @_;
	my @style = qw(curator curator_rw kazoo);
	my @way = (@EXCLUSIVE_WAYS, @SHARED_WAYS, @SEMAPHORE_WAYS, 'all');
	my @s;
	foreach my $i (0 .. 8)
	{
		# who holds a lock for a third of this, and loses the answer to its release, does not commit
		my %setting = (hosts => $hosts[ $i % @hosts ], node_style => $style[ $i / 3 ], session_timeout => '20s', commit_guard => 'on');
		push @s, turns_session($node, options => join ' ', map { "-c zklock.$_=$setting{$_}" } sort keys %setting);
	}
	turns_forget();
	$s[$_]->send(turns_call('5 s', \@way, [ @path[ 2 * ($_ % 3), 2 * ($_ % 3) + 1 ] ])) for 0 .. $#s;
	$meanwhile->(@s);
	is(zk_few(grep { $_ } map { $_->wait->{message} } @s), '', 'no call failed');
	my @hold = turns_holds();
	turns_judge(@hold);
	turns_counted(@hold);
	my %how;
	$how{ $_->{way} }++ for @hold;
	is(join(', ', sort grep { $_ ne 'upgraded' } keys %how), join(', ', sort @way), 'in all ways');
	note scalar(@hold) . ' holds';
	$_->quit for @s;
	# a session whose close is lost lives on for its timeout
	zk_nothing_left($zk, 'nothing is left', sessions => 0, timeout => 60);
	zk_until(sub { !grep { $_ ne '/zklock' } $zk->tree('/') }, 'the directories to go');
	return;
}

subtest 'a reaper every 10 ms does no harm' => sub {
	my %incarnation;
	reaper(
		sub {
			my $client = $zk->client;
			while (grep { !$_->is_done } @_)
			{
				foreach my $path (@path)
				{
					my $stat = $client->exists("/zklock$path") or next;
					$incarnation{$path}{ $stat->{czxid} } = 1;
				}
				sleep 0.002;
			}
			$client->close;
		},
		$zk->hosts);
	# a directory that contains another one is seldom empty
	cmp_ok(scalar keys %{ $incarnation{$_} // {} }, '>', 3, "$_ was removed and made again") for grep { !m{/a$} } @path;
	note 'directories seen: ' . join ', ', map { "$_ " . keys %{ $incarnation{$_} // {} } } @path;
};

subtest 'a reaper and a bad network' => sub {
	my @proxies = map { ZkProxy->new($zk) } 1 .. 3;
	reaper(sub { note 'faults of the network: ' . turns_trouble(\@_, @proxies) }, map { $_->hosts } @proxies);
};
# Some of so many directories are always gone when they are needed.  That is tried again,
# and what one of them costs must not add up for all.
subtest 'several hundred at once, while they are removed' => sub {
	my $s = zk_session($node);
	my $all = q{(SELECT array_agg('/reaped/all/' || n) FROM generate_series(1, 300) n)};
	for (1 .. 8)
	{
		is($s->value("SELECT zk_lock_many($all)", 60), 't', 'all of them');
		$s->value('SELECT zk_unlock_all()');
		sleep 0.01 * int rand 20;
	}
	$s->quit;
	zk_nothing_left($zk, 'nothing is left', sessions => 0);
};
$node->stop;
zk_no_crash($node);

done_testing();
