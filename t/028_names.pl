# A host name in zklock.hosts stops resolving while a session lives, and comes
# back; another one changes its address meanwhile.
#
# /etc/hosts and DNS cannot be changed for one test, so nss_wrapper gives the
# server a hosts file of its own.  Names that it does not contain are still
# resolved by the system.

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Temp qw(tempdir);

use Child;
use Tests;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1.5;

my ($wrapper) = glob '/usr/lib/*/libnss_wrapper.so';
plan skip_all => 'libnss-wrapper is not installed' unless $wrapper;

my $file = tempdir(CLEANUP => 1) . '/hosts';

# A new file each time: nss_wrapper reads it again when its mtime has changed
sub names
{
	my (@lines) = @_;
	open my $handle, '>', "$file.new" or die "$file: $!";
	print $handle map { "$_\n" } @lines;
	close $handle;
	rename "$file.new", $file or die "$file: $!";
	return;
}

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
my $name = 'zookeeper-1.invalid';    # a name that never resolves elsewhere
names("127.0.0.1 $name");

my $node = do {
	local @ENV{qw(LD_PRELOAD NSS_WRAPPER_HOSTS)} = ($wrapper, $file);
	zk_cluster('main', "$name:" . $proxy->port,
		'zklock.session_timeout' => '8s', 'zklock.connect_timeout' => '2s');
};
my $admin = zk_session($node);

my $s = zk_session($node);
is($s->value("SELECT zk_lock('/name')"), 't', 'a name that resolves');
my $id = $s->value('SELECT session_id FROM zk_session');

names("127.0.0.1 another-name.invalid");
my $new = zk_session($node);
my $result = $new->query("SELECT zk_lock('/new')");
is($result->{state}, '58000', 'it does not any more: a new session is refused');
like($result->{detail}, qr/\Q$name\E/, '- the detail names it');
in_time($result->{seconds}, 2 + $SLACK, '- within connect_timeout');

# a session that lives does not need the name
$proxy->cut_off;
zk_wait_hold($s, 'suspect');
$proxy->pass;
zk_wait_hold($s, 'held');
is($s->value('SELECT session_id FROM zk_session'), $id, 'a session that lives reconnects without the name');
is($s->query("BEGIN; SELECT zk_xact_lock('/name/2'); CREATE TABLE t (); COMMIT")->{state}, '', '- and goes on');

# until it ends
# (whose statements would be stopped, too, if they ran for long enough to be hit)
$s->value("SET zklock.cancel_on_loss = off; BEGIN; SELECT zk_xact_lock('/name/3'); INSERT INTO t DEFAULT VALUES");
$proxy->cut_off;
zk_until(sub { $s->value(q{SELECT string_agg(state, ' ') FROM zk_locks}) eq 'lost lost' }, 'the loss');
zk_until(sub { !grep { $_ eq $id } $zk->sessions }, 'ZooKeeper to end the session');
is($s->value('SELECT state FROM zk_session'), 'suspended', 'it is not told that its session is over');

# the servers move: nobody could find out by asking at the old address
my ($moved) = Child::spawn([ 'socat', 'TCP-LISTEN:' . $proxy->port . ',bind=127.0.0.2,reuseaddr,fork', 'TCP:' . $zk->hosts ]);
names("127.0.0.2 $name");
zk_wait_session($s, 'none');
pass('it finds servers that have moved meanwhile');
kill 'TERM', $moved;
waitpid $moved, 0;
Child::forget($moved);
names("127.0.0.1 another-name.invalid");
$proxy->pass;
my $log_before = -s $node->logfile;
my $cpu_before = zk_cpu_seconds($s->pid);
my $began = time;
is($s->query('COMMIT')->{state}, '40001', 'its session over, a COMMIT fails');
is($s->query("SELECT zk_unlock('/name')")->{out}, 'f', '- the lock was lost');
foreach (1 .. 2)
{
	$result = $s->query("SELECT zk_lock('/name')");
	is($result->{state}, '58000', '- and locking again is refused');
	like($result->{detail}, qr/\Q$name\E/, '- the detail names it');
	in_time($result->{seconds}, 2 + $SLACK, '- within connect_timeout');
}
cmp_ok(zk_cpu_seconds($s->pid) - $cpu_before, '<', 0.1 * (time - $began) + 0.1, '- without spinning');
cmp_ok((-s $node->logfile) - $log_before, '<', 5000, '- or flooding the log');

names("127.0.0.1 $name");
is($s->value("SELECT zk_lock('/name')"), 't', 'the name is back: the same session locks');
is($new->value("SELECT zk_lock('/new')"), 't', '- and the one that never could');
isnt($s->value('SELECT session_id FROM zk_session'), $id, '- in a new ZooKeeper session');

$_->quit for $s, $new, $admin;
zk_end($zk, $node);
