# doc/troubleshooting.md: each of its misconfigurations is made here, and says
# what the page says that it does; and each row of its tables is true.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Doc;
use Tests;

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
}

#
# The rows of its tables
#
my ($one, $two) = map { zk_session($node) } 1 .. 2;

# Two calls that both get a lock, and the settings of the second one's session
my $same = q{zk_lock('/both')};
my %differ = (
	'`root`' => [ [ $same, $same, root => '/elsewhere' ] ],
	'`hosts`' => [ [ $same, $same, hosts => $small ] ],
	'`path`' => [ map { [ $same, "zk_lock('$_')" ] } '/Both', '/both/a' ],
	'`mode`' => [ [ $same, q{zk_semaphore_acquire('/both', 1)} ] ],
	'nothing, and `pg_backend_pid()` is the same' => [],
	'nothing, and `state` is `lost` in one' => []);
is(join("\n", sort map { $_->[0] } $page->table('| what differs | why |')), join("\n", sort keys %differ), 'each row of the first table has a test');
foreach my $row (sort keys %differ)
{
	foreach (@{ $differ{$row} })
	{
		my ($first, $second, %setting) = @$_;
		my @s = ($one, zk_session_with($node, %setting));
		is($s[0]->value("SELECT $first") . $s[1]->value("SELECT $second"), 'tt', "$row: $first and $second");
		my ($shown, $other) = map { [ split /\|/, $_->value('SELECT l.path, l.root, l.mode, s.hosts, l.state FROM zk_locks AS l, zk_session AS s') ] } @s;
		my @name = qw(`path` `root` `mode` `hosts` `state`);
		is(join(' ', map { $shown->[$_] eq $other->[$_] ? () : $name[$_] } 0 .. $#name), $row, '- which differ in that');
		$one->value('SELECT zk_unlock_all()');
	}
}
is($one->value("SELECT $same, $same"), 't|t', 'one session holds it twice');
$zk->with_client(sub { $_[0]->delete_contenders('/zklock/both') });
is($two->value("SELECT $same"), 't', 'one has lost it');
zk_wait_hold($one, 'lost');
is($two->value('SELECT state FROM zk_locks'), 'held', '- and the other one holds it');
$_->query('SELECT zk_unlock_all()') for $one, $two;

# What ends a holder, where that is proved
my %holder = (
	'is `idle` in `pg_stat_activity`' => 't/023',
	'is `idle in transaction`' => 't/023',
	'is not in `pg_stat_activity`' => 't/023',
	'has no `pid`' => 't/074',
	'works' => 'specs/timeouts');
is(join("\n", sort map { $_->[0] } $page->table('| the holder | what to do |')), join("\n", sort keys %holder), 'each row of the second table is proved');

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

zk_end($zk, $node);
