# doc/recipes/pgbouncer.md, behind a pgbouncer in transaction mode

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Child;
use Doc;
use Zklock;
use ZooKeeper;

# dev/test unpacks it, with its libraries, if it is not installed
my $unpacked = "$ENV{ZKLOCK_TMP}/pgbouncer";
my ($program) = grep { -x } map { "$_/pgbouncer" } '/usr/sbin', "$unpacked/usr/sbin";
plan skip_all => 'there is no pgbouncer' unless $program;

my $page = Doc->new('doc/recipes/pgbouncer.md');
my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk);
my $admin = zk_session($node);

# Something to connect to like a cluster: the page's own pgbouncer, with this
# many connections
{
	package Pooled;

	my $ini = $page->take('ini')->{code};
	my $number = 0;

	sub new
	{
		my ($class, $size, %more) = @_;
		my $port = ZooKeeper::free_port();
		my $dir = PostgreSQL::Test::Utils::tempdir();
		my $host = $node->host;
		my $name = 'pool' . ++$number;
		(my $own = $ini) =~ s/host=\S+ port=\S+/"host=$host port=" . $node->port . ' user=postgres'/e or die;
		PostgreSQL::Test::Utils::append_to_file("$dir/pgbouncer.ini",
			join '', $own, map { "$_\n" }
			'listen_addr = 127.0.0.1', "listen_port = $port", 'unix_socket_dir =', 'auth_type = any',
			"default_pool_size = $size", map { "$_ = $more{$_}" } sort keys %more);
		my $pid = fork // die "could not fork: $!";
		if ($pid == 0)
		{
			POSIX::setsid();
			POSIX::dup2(POSIX::open("$dir/log", POSIX::O_WRONLY() | POSIX::O_CREAT()), $_) for 1, 2;
			$ENV{LD_LIBRARY_PATH} = join ':', glob "$unpacked/{usr/,}lib/*-linux-gnu*";
			no warnings 'exec';
			exec 'setpriv', '--pdeathsig', 'KILL', $program, "$dir/pgbouncer.ini";
			POSIX::_exit(127);
		}
		Child::remember($pid);
		my $self = bless { port => $port, name => $name, pid => $pid }, $class;
		Zklock::zk_until(
			sub { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) },
			"pgbouncer to listen; see $dir/log");
		return $self;
	}

	sub name { return $_[0]->{name}; }
	sub direct { return $node; }
	sub connstr { return "host=127.0.0.1 port=$_[0]->{port} dbname=shop user=postgres"; }
	sub stop { my ($self) = @_; kill 'KILL', $self->{pid}; waitpid $self->{pid}, 0; Child::forget($self->{pid}); return; }
}

my $one = Pooled->new(1);
$page->run($one);
$page->all_was_run;

#
# What the text says apart from its SQL
#
my ($ada, $bob) = map { zk_session($one) } 1 .. 2;
$ada->value(q{BEGIN; SELECT zk_xact_lock('/gone')});
$ada->kill9;
is($bob->value(q{BEGIN; SELECT zk_xact_lock('/gone', '10s'); COMMIT}), 't',
	'a client that goes away in its transaction gives its lock back');
$bob->quit;
$one->stop;

my $two = Pooled->new(2);
($ada, $bob) = map { zk_session($two) } 1 .. 2;
is($ada->value(q{SELECT zk_lock('/hers')}), 't', 'two connections: a lock of the session');
$bob->value('BEGIN');    # takes the connection that was used last
my $result = $ada->query(q{SELECT zk_unlock('/hers')});
is($result->{out}, 'f', '- is not found by its own client');
is(scalar @{ $result->{warnings} }, 1, '- with a WARNING');
is($bob->value('SELECT zk_unlock_all(); COMMIT'), '1', '- but is in another session');
$_->quit for $ada, $bob;
$two->stop;

my $always = Pooled->new(1, server_reset_query_always => 1);
$ada = zk_session($always);
is($ada->value(q{SELECT zk_lock('/hers')}), 't', 'server_reset_query_always: a lock of the session');
is($ada->value(q{SELECT count(*) FROM zk_locks}), '0', '- ends with the transaction');
$ada->quit;
$always->stop;

$admin->quit;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($node);
done_testing();
