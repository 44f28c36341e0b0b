# doc/zookeeper.md: three servers with the zoo.cfg that it prints, except for
# directories and addresses; what it promises of them; and the sizes that it
# gives, which are measured here.  (That nobody loses a lock when one server after the
# other is restarted: t/014.)

use FindBin;
use lib "$FindBin::RealBin/lib";

use Doc;
use Tests;

my $page = Doc->new('doc/zookeeper.md');
my $SESSIONS = 60;
my $WAITERS = 20;

# A heap of which one knows what is in use: it is collected every three seconds
my @java_options = (
	qw(-XX:TieredStopAtLevel=1 -XX:+UseG1GC -XX:G1PeriodicGCInterval=3000 -XX:-G1PeriodicGCInvokesConcurrent -Xlog:gc+heap=debug:file=gc.log));

#
# The ensemble
#
my $zoo_cfg = $page->take('properties')->{code};
foreach my $key (1 .. 3)
{
	my ($quorum, $election) = map { ZooKeeper::free_port() } 1 .. 2;
	$zoo_cfg =~ s/^server\.$key=zk$key:2888:3888$/server.$key=127.0.0.1:$quorum:$election/m or die "no server $key";
}
my @servers = map { ZooKeeper->new(zoo_cfg => $zoo_cfg, java_options => \@java_options) } 1 .. 3;
append_to_file($servers[ $_ - 1 ]->dir . '/data/myid', "$_\n") for 1 .. 3;
my $zk = ZooKeeper::Ensemble->new(@servers)->start;
my %setting = Doc->new('doc/install.md')->settings;
is($setting{'zklock.hosts'}, join(',', map { "zk$_:2181" } 1 .. 3), 'zklock.hosts names the servers');
my $node = zk_cluster('main', $zk, %setting, 'zklock.hosts' => $zk->hosts,
	max_connections => $SESSIONS + $WAITERS + 20);
my $admin = zk_session($node);

$page->run($node, zk => $zk);
is(scalar(() = join('', map { $_->four_letter('srvr') } @servers) =~ /^Mode: follower$/mg), 2, 'a leader and two followers');
my %mntr = $zk->mntr;
my @rows = $page->table('| name | raise an alert |');
cmp_ok(scalar @rows, '>', 5, 'the page says what to watch');
foreach my $name (map { $_->[0] =~ s/`//gr } @rows, ['`max_file_descriptor_count`'])
{
	ok(defined $mntr{$name}, "mntr has zk_$name");
}

# The table names what the file has
is(join(' ', sort map { $_->[0] =~ /`([^`]*)`/g } $page->table('| line | why |')),
	join(' ', sort grep { !/^(?:server\.|clientPort)/ } map { s/^autopurge.*/autopurge/r } keys %{ { map { s/^autopurge.*/autopurge/r => 1 } $zoo_cfg =~ /^([^=]+)=/mg } }),
	'each line is explained');

#
# Sizes
#
my %measured;

# What is written of the leader's log, which is extended ahead, with zeros
sub log_size
{
	my $sum = 0;
	$sum += length(slurp_file($_) =~ s/\0+\z//r) for glob $zk->leader->dir . '/data/version-2/log.*';
	return $sum;
}

# kB in use on all servers, after collections that began after now
sub heap
{
	my %begin = map { my $file = $_->dir . '/gc.log'; $file => -s $file } @servers;
	my $sum = 0;
	foreach my $file (sort keys %begin)
	{
		my @used;
		zk_until(sub { (@used = substr(slurp_file($file), $begin{$file}) =~ /Heap after GC.*?used (\d+)K/gs) >= 2 }, 'two collections');
		$sum += $used[-1];
	}
	return $sum;
}

# kB that belong to this process alone
sub private { my ($pid) = @_; my $sum = 0; $sum += $_ for slurp_file("/proc/$pid/smaps_rollup") =~ /^Private_\w+: +(\d+)/mg; return $sum; }

my @sessions = map { zk_session($node) } 1 .. $SESSIONS;
$_->value('SELECT 1') for @sessions;
my ($heap, $private) = (heap(), 0);
$private -= private($_->pid) for @sessions;
$sessions[$_]->value("SELECT zk_lock('/size/$_')") for 0 .. $#sessions;
$private += private($_->pid) for @sessions;
$measured{'memory, on all three servers together, for a session with a lock'} = (heap() - $heap) / $SESSIONS;
$measured{'memory of its PostgreSQL backend that it shares with no other process'} = $private / $SESSIONS;

# in MB a day
sub logged
{
	my ($n) = @_;
	my ($size, $began) = (log_size(), time);
	$admin->value('SELECT pg_sleep(7)');
	return (log_size() - $size) / (time - $began) / $n * 86400 / 1e6;
}

my $holds = 'log, on each server, for a session that holds a lock, in a day';
$measured{$holds} = logged($SESSIONS);
my @waiters = map { zk_session($node) } 1 .. $WAITERS;
$waiters[$_]->send("SELECT zk_lock('/size/$_')") for 0 .. $#waiters;
zk_until(sub { $zk->mntr_value('ephemerals_count') == $SESSIONS + $WAITERS }, 'them to wait');
$measured{'log, on each server, for the first waiter for an exclusive lock, in a day'} = logged($WAITERS);
$_->quit for @sessions, @waiters;
zk_until(sub { $zk->mntr_value('ephemerals_count') == 0 }, 'their locks to go');
{
	my $size = log_size();
	$admin->value(q{DO $$ BEGIN FOR i IN 1 .. 300 LOOP PERFORM zk_lock('/size/of'); PERFORM zk_unlock('/size/of'); END LOOP; END $$});
	$measured{'log, on each server, for a lock that is taken and released'} = (log_size() - $size) / 300;
}
# In the units of the page
my %unit = map { $_->[0] => $_->[1] } $page->table('| what | measured |');
is($unit{$holds}, 'nothing', 'who holds writes nothing');
cmp_ok($measured{$holds}, '<', 0.5, '- or nearly nothing, if one of the processes stands still');
delete $_->{$holds} for \%unit, \%measured;
foreach my $what (sort keys %measured)
{
	my ($said, $unit) = $unit{$what} =~ /^(\d+) (\w+)$/ or die $what;
	note(sprintf '%s: %.1f %s', $what, $measured{$what}, $unit);
	# what a process takes depends on its compiler, and its Java
	my $about = $what =~ /^memory/ ? 2 : 1.3;
	cmp_ok($measured{$what}, '<', $said * $about, "$what: no more than about $unit{$what}");
	cmp_ok($measured{$what}, '>', $said / $about / 1.5, '- and not much less');
}
is_deeply([ sort keys %measured ], [ sort keys %unit ], 'all sizes of the page were measured');
$page->all_was_run;
zk_end($zk, $node);
