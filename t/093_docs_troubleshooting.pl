# doc/troubleshooting.md: each of its misconfigurations is made here, and says
# what the page says that it does; and each row of its tables is true.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Doc;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $page = Doc->new('doc/troubleshooting.md');
my $zk = ZooKeeper->new->start;
my $small = ZooKeeper->new(max_client_cnxns => 1)->start;
# one of two, of which the other never starts
my $lonely = ZooKeeper->new(servers => join '', "initLimit=20\nsyncLimit=10\n",
	map { "server.$_=127.0.0.1:" . ZooKeeper::free_port() . ':' . ZooKeeper::free_port() . "\n" } 1, 2);
append_to_file($lonely->dir . '/data/myid', "1\n");
$lonely->start(no_wait => 1);
zk_until(sub { ($lonely->four_letter('srvr', 1) // '') =~ /not currently serving/ }, 'the only one of two to be alone');
my $node = zk_cluster('main', $zk);
my %hosts = (down => '127.0.0.1:' . ZooKeeper::free_port(), full => $small->hosts, lonely => $lonely->hosts);
my %cluster = map { $_ => [ $node, hosts => $hosts{$_}, connect_timeout => '4s' ] } keys %hosts;
$node->safe_psql('postgres', 'CREATE ROLE worker LOGIN');
my $only_one = $small->client;

$page->run($node, zk => $zk, %cluster, until => '### What follows');
my ($session) = $node->safe_psql('postgres', q{SELECT zk_session FROM zk_lock_queue('/jobs/report')});
my $pooled = $page->{session}{'main/pooled/'};
$zk->end_session($session, $pooled->pid);
zk_until(sub { $pooled->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
$page->run($node, zk => $zk, %cluster);
$page->all_was_run;
$only_one->close;

#
# A login event trigger that locks
#
SKIP:
{
	skip 'no login event triggers before PostgreSQL 17', 1 if $node->pg_version < 17;
	my $login = sub {
		my (%option) = @_;
		local $ENV{PGOPTIONS} = join ' ', map { "-c $_=$option{$_}" } sort keys %option;
		my ($rc, $out, $err) = $node->psql('postgres', 'SELECT 1');
		return $rc == 0 ? $out : $err;
	};
	my %down = ('zklock.hosts' => $hosts{down}, 'zklock.connect_timeout' => '4s');
	my $holder = zk_session($node);
	$holder->value(q{
		CREATE FUNCTION greet() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM zk_xact_lock('/greet'); END $$;
		CREATE EVENT TRIGGER greet ON login EXECUTE FUNCTION greet();});
	is($login->(), '1', 'a login event trigger that locks');
	like($login->(%down), qr/FATAL:.*could not (?:lock|connect)/s, '- nobody gets in while ZooKeeper is down');
	is($login->(%down, event_triggers => 'off'), '1', '- but a superuser without event triggers');
	$holder->value(q{SELECT zk_lock('/greet')});
	like($login->(statement_timeout => '10ms', lock_timeout => '300ms'), qr/due to lock timeout/,
		'- statement_timeout does not end it, lock_timeout does');
	like($login->(statement_timeout => '10ms', transaction_timeout => '300ms'), qr/due to transaction timeout/,
		'- and transaction_timeout');
	$holder->value('DROP EVENT TRIGGER greet');
	$holder->quit;
}

#
# The rows of its tables
#
my ($one, $two) = map { zk_session($node) } 1 .. 2;
my $both = sub {
	my ($s, $t, $name) = @_;
	is(join(' ', map { $_->value('SELECT state FROM zk_locks') } $s, $t), 'held held', $name);
	my %shown = map { $_ => [ split /\|/, $_->value('SELECT l.path, l.root, l.mode, s.hosts, l.state FROM zk_locks AS l, zk_session AS s') ] } $s, $t;
	my @name = qw(path root mode hosts state);
	return join ' ', map { $shown{$s}[$_] eq $shown{$t}[$_] ? () : $name[$_] } 0 .. $#name;
};
my %differ = (
	'`root`' => sub {
		my $c = zk_session_with($node, root => '/elsewhere');
		$_->value(q{SELECT zk_lock('/both')}) for $one, $c;
		is($both->($one, $c, 'two roots'), 'root', '- root differs');
		$c->quit;
	},
	'`hosts`' => sub {
		my $c = zk_session_with($node, hosts => $small);
		$_->value(q{SELECT zk_lock('/both')}) for $one, $c;
		is($both->($one, $c, 'two ensembles'), 'hosts', '- hosts differs');
		$c->quit;
	},
	'`path`' => sub {
		foreach my $path ('/Both', '/both/a')
		{
			$one->value(q{SELECT zk_lock('/both')});
			$two->value("SELECT zk_lock('$path')");
			is($both->($one, $two, $path), 'path', '- path differs');
			$_->value('SELECT zk_unlock_all()') for $one, $two;
		}
	},
	'`mode`' => sub {
		$_->value(q{SELECT zk_lock_shared('/both')}) for $one, $two;
		is($both->($one, $two, 'two readers'), '', '- both are shared');
		$_->value('SELECT zk_unlock_all()') for $one, $two;
		$one->value(q{SELECT zk_lock('/both')});
		$two->value(q{SELECT zk_semaphore_acquire('/both', 1)});
		is($both->($one, $two, 'a semaphore and a lock'), 'mode', '- mode differs');
	},
	'nothing, and `pg_backend_pid()` is the same' => sub {
		is($one->value(q{SELECT zk_lock('/both'), zk_lock('/both')}), 't|t', 'one session holds it twice');
	},
	'nothing, and `state` is `lost` in one' => sub {
		$one->value(q{SELECT zk_lock('/both')});
		$zk->with_client(sub { $_[0]->delete_contenders('/zklock/both') });
		$two->value(q{SELECT zk_lock('/both')});
		zk_wait_hold($one, 'lost');
		is($two->value('SELECT state FROM zk_locks'), 'held', 'one has lost it');
	});
is(join("\n", sort map { $_->[0] } $page->table('| what differs | why |')), join("\n", sort keys %differ), 'each row of the first table has a test');
foreach my $row (sort keys %differ)
{
	$differ{$row}->();
	$_->query('SELECT zk_unlock_all()') for $one, $two;
}

my $waits = sub {
	my ($name, $free) = @_;
	$one->send(q{SELECT zk_lock('/held'), zk_unlock('/held')});
	zk_wait_queued($zk, $one);
	$free->();
	is($one->wait->{out}, 't|t', $name);
	return;
};
my $in_activity = sub {
	return $two->value(q{SELECT a.state FROM zk_lock_queue('/held') AS q LEFT JOIN pg_stat_activity AS a USING (pid) WHERE q.granted});
};
my %holder = (
	'is `idle` in `pg_stat_activity`' => sub {
		my $c = zk_session($node);
		$c->value(q{SELECT zk_lock('/held')});
		is($in_activity->(), 'idle', 'idle');
		$waits->('pg_terminate_backend releases it', sub { $two->value('SELECT pg_terminate_backend(' . $c->pid . ')'); });
		$c->kill9;
	},
	'is `idle in transaction`' => sub {
		my $c = zk_session($node);
		$c->value(q{BEGIN; SELECT zk_xact_lock('/held')});
		is($in_activity->(), 'idle in transaction', 'idle in transaction');
		$waits->('idle_in_transaction_session_timeout bounds it', sub { $c->value(q{SET idle_in_transaction_session_timeout = '1s'}) });
		$c->kill9;
	},
	'is not in `pg_stat_activity`' => sub {
		# what its server sends no longer arrives
		my $proxy = ZkProxy->new($zk);
		my $c = zk_session_with($node, hosts => $proxy, session_timeout => '4s');
		$c->value(q{SELECT zk_lock('/held')});
		$proxy->blackhole;
		$c->quit;
		is($in_activity->(), '', 'gone');
		$waits->('free after zklock.session_timeout', sub { });
		$proxy->stop;
	},
	'has no `pid`' => sub {
		my $client = $zk->client;
		$client->contend('/zklock/held', undef, data => 'somebody');
		is($two->value(q{SELECT pid IS NULL, data FROM zk_lock_queue('/held')}), 't|somebody', 'another program, and its data');
		$waits->('its owner ends it', sub { $client->close; });
	},
	'works' => sub {
		$two->value(q{SELECT zk_lock('/held')});
		is($one->query(q{SET lock_timeout = '50ms'; SELECT zk_lock('/held')})->{state}, '55P03', 'lock_timeout bounds the wait');
		is($one->value(q{RESET lock_timeout; SELECT zk_lock('/held', '50ms')}), 'f', '- and so does a timeout');
		$two->value('SELECT zk_unlock_all()');
	});
is(join("\n", sort map { $_->[0] } $page->table('| the holder | what to do |')), join("\n", sort keys %holder), 'each row of the second table has a test');
$holder{$_}->() foreach sort keys %holder;
$_->quit for $one, $two;

my ($says) = map { s/\s+/ /gr } $page->text =~ /`(This ZooKeeper\s+instance [^`]*)`/;
like($lonely->four_letter('srvr'), qr/^\Q$says\E$/, 'what a server without a quorum says');

#
# Nobody can log in: the library is not where PostgreSQL looks for it
#
{
	my ($message) = $page->text =~ /^ {4}(FATAL:  .*)$/m;
	my ($options, $one, $two) = $page->text =~ /^ {4}PGOPTIONS='(.*)' psql -c "(.*)" -c "(.*)"$/m or die 'no command';
	$node->safe_psql('postgres', q{ALTER SYSTEM SET session_preload_libraries = 'zklock'});
	$node->append_conf('postgresql.conf', "session_preload_libraries = ''\ndynamic_library_path = '/nonexistent'");
	$node->restart;

	my ($status, $out, $err) = $node->psql('postgres', 'SELECT 1');
	is($status, 2, 'without the library nobody can log in');
	like($err, qr/: \Q$message\E$/m, '- and is told what the page says');
	{
		local $ENV{PGOPTIONS} = $options;
		$node->safe_psql('postgres', $one);
		$node->safe_psql('postgres', $two);
	}
	zk_until(sub { ($node->psql('postgres', 'SELECT 1'))[0] == 0 }, 'everybody to be able to log in');
	pass('what the page says lets everybody in again');
}

zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($node);
done_testing();
