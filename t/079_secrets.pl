# A credential shows up nowhere: not in a log at any level, a message, a
# setting, a catalog, a statistics view, a dump, a file of the data directory,
# the title or the environment of a process, nor in the names and data of the
# nodes.  This holds when all goes well, and when the file is wrong, ZooKeeper
# refuses, connections break, sessions expire, and backends crash.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Find ();
use MIME::Base64 qw(encode_base64);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Auth;
use ZkProxy;
use Zklock;
use ZooKeeper;

# Each word of it is unmistakable, so that even half of it is found.
my @WORDS = qw(Nachtschatten Kupferdistel);
my $PASSWORD = join '-4711:', @WORDS;
my $CREDENTIALS = "wurzel:$PASSWORD";
my $DIGEST = digest_id($CREDENTIALS) =~ s/.*://r;

my @needles = (@WORDS, $DIGEST, encode_base64($CREDENTIALS, ''), encode_base64($PASSWORD, ''), map { unpack 'H*', $_ } @WORDS);
$_ = lc for @needles;

# Returns the context of each occurrence.  It uses index(), since there is much
# to search.
sub secrets_in
{
	my $text = lc $_[0];
	my @found;
	foreach my $needle (@needles)
	{
		for (my $at = -1; ($at = index $text, $needle, $at + 1) >= 0;)
		{
			push @found, substr $_[0], $at > 60 ? $at - 60 : 0, 120;
		}
	}
	return @found;
}

# One test
sub no_secret
{
	my ($text, $name) = @_;
	my @found = secrets_in($text);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(!@found, $name) || diag join "\n", 'found:', @found[ 0 .. ($#found < 5 ? $#found : 5) ];
}

# the search itself works
is(scalar secrets_in("DETAIL: line \"digest:$CREDENTIALS\"\n" . uc($WORDS[1]) . "\n$DIGEST"), 4, 'a secret is found where there is one');

my $zk = ZooKeeper->new(superuser => 1)->start;
my $proxy = ZkProxy->new($zk);
my $good = auth_file("digest:$CREDENTIALS\n");
my $node = zk_cluster(
	'main', $proxy,
	'zklock.session_timeout' => '4s',
	'zklock.connect_timeout' => '4s',
	'zklock.operation_timeout' => '4s',
	log_min_messages => 'debug5',
	log_min_error_statement => 'debug5',
	log_error_verbosity => 'verbose',
	log_statement => 'all',
	log_duration => 'on',
	log_connections => 'on',
	log_disconnections => 'on',
	update_process_title => 'on',
	restart_after_crash => 'on');
my $admin = zk_session($node);
$admin->value('CREATE ROLE worker LOGIN; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO worker; CREATE TABLE t (i int); GRANT ALL ON t TO worker');
$admin->value("ALTER ROLE worker SET zklock.auth_file = '$good'; ALTER ROLE worker SET zklock.acl = creator; ALTER ROLE worker SET zklock.commit_guard = strict");
$zk->create('/zklock');

sub session_of
{
	my ($user, %opt) = @_;
	my $s = zk_session($node, %opt, user => $user);
	$s->value('SET client_min_messages = debug5');
	return $s;
}

# Everything that a client was told
my $said = '';

sub ask
{
	my ($s, $sql) = @_;
	my $result = $s->query($sql);
	$said .= "$result->{out}\n$result->{err}\n";
	return $result;
}

# ----------------------------------------------------------------- all that runs

my $holder = session_of('worker');
is(ask($holder, "SELECT zk_lock('/held'), zk_lock_shared('/read'), zk_semaphore_acquire('/places', 1), zk_lock_many('{/m/1,/m/2}')")->{out},
	't|t|t|t', 'locks are held');
is_deeply([ $zk->acl('/zklock/held') ], creator_acl($CREDENTIALS), '- with that credential');

subtest 'all goes well' => sub {
	my $s = session_of('worker');
	$s->send("SELECT zk_lock('/held')");
	zk_wait_queued($zk, $s);
	ask($holder, "SELECT zk_unlock('/held')");
	is($s->wait->{out}, 't', 'a lock that is waited for');
	ask($s, "SELECT zk_unlock('/held')");
	ask($holder, "SELECT zk_lock('/held')");
	is(ask($s, "SELECT zk_try_lock('/held')")->{out}, 'f', 'one that is not had');
	is(ask($s, "SELECT zk_lock('/read/no', '-1s')")->{state}, '22023', 'a mistake');
	is(ask($s, "BEGIN; SELECT zk_xact_lock('/x'); INSERT INTO t VALUES (1); SELECT zk_fence('/x') > 0; COMMIT")->{state},
		'', 'a transaction, with guard and fence');
	ask($s, $_) for 'SELECT * FROM zk_locks', 'SELECT * FROM zk_session', "SELECT * FROM zk_lock_queue('/held')", 'SHOW ALL', 'SELECT * FROM pg_settings',
	  'SHOW zklock.auth_file', "SELECT zk_lock_break('/held', 'x')", 'DISCARD ALL';
	$s->quit;
};

subtest 'ZooKeeper refuses' => sub {
	my $other = session_of('postgres');
	is(ask($other, "SELECT zk_lock('/held')")->{state}, '42501', 'no credential');
	ask($other, "SELECT * FROM zk_lock_queue('/held')");
	ask($other, "SET zklock.auth_file = '" . auth_file("digest:other:one\n") . q{'});
	is(ask($other, "SELECT zk_lock('/held')")->{state}, '42501', 'another one');
	ask($other, "SET zklock.acl = creator; SET zklock.auth_file = ''");
	is(ask($other, "SELECT zk_lock('/other')")->{state}, '55000', 'none at all');
	$other->quit;
};

subtest 'wrong files' => sub {
	my %content = (
		'a blank for a colon' => "digest $CREDENTIALS\n",
		'the password alone' => "$WORDS[0]\n",
		'the password and a colon' => "$WORDS[0]:\n",
		'a colon and the password' => ":$PASSWORD\n",
		'no scheme' => "$CREDENTIALS\n",
		'the password for a scheme' => "$PASSWORD:wurzel\n",
		'another scheme' => "bogus:$CREDENTIALS\n",
		'a good line, and one of another scheme' => "digest:$CREDENTIALS\nbogus:$CREDENTIALS\n",
		'a good line, and a bad one' => "digest:$CREDENTIALS\n$WORDS[1]\n",
		'a NUL byte' => "digest:$CREDENTIALS\0\n",
		'a long line' => "digest:$CREDENTIALS" . $PASSWORD x 10_000 . "\n",
		'a very long line' => 'digest:' . "$PASSWORD" x 100_000,
		'UTF-16' => join('', map { "$_\0" } split //, "digest:$CREDENTIALS\n"),
		'a file for a password' => $CREDENTIALS,
		'quotes' => "'digest:$CREDENTIALS'\n",
		'a line of psql' => "\\set x '$CREDENTIALS'\n",
		'formats' => "%s%n%m$CREDENTIALS\n",
		'only a comment' => "# digest:$CREDENTIALS\n",
		'others may read it' => "digest:$CREDENTIALS\n");
	foreach my $name (sort keys %content)
	{
		my $file = auth_file($content{$name}, mode => $name eq 'others may read it' ? 0644 : 0600);
		my $super = session_of('postgres');
		ask($super, "SET zklock.acl = creator; SET zklock.auth_file = '$file'");
		$admin->value("ALTER ROLE worker SET zklock.auth_file = '$file'");
		my $user = session_of('worker');
		foreach my $s ($super, $user)
		{
			foreach my $call ("zk_lock('/wrong')", "zk_try_lock('/wrong')")
			{
				my $result = ask($s, "SELECT $call");
				isnt($result->{state}, '', "$name: refused") if $name ne 'a long line';
				no_secret($result->{err}, '- and nothing told');
			}
			$s->quit;
		}
	}
	$admin->value("ALTER ROLE worker SET zklock.auth_file = '$good'");
};

subtest 'bad luck' => sub {
	my $s = session_of('worker');
	foreach my $round (1 .. 3)
	{
		ask($s, "SELECT zk_lock('/luck')");
		$proxy->swallow_and_drop('auth') if $round == 2;
		$proxy->drop;
		my $result = ask($s, "SELECT zk_lock('/luck'), zk_unlock('/luck'), zk_unlock('/luck')");
		# 40001: the answer to a delete was cut off, so it is unknown whether
		# the lock was held until then
		like($result->{state} . $result->{out}, qr/^(?:t\|t\|t|40001)$/, 'the connection cut');
	}
	foreach my $number (1 .. 4)
	{
		$proxy->count_frames;
		$proxy->nth('reply', $number, 'cut');
		$proxy->drop;
		my $result = ask($s, "SELECT zk_lock('/luck'), zk_unlock('/luck')");
		like($result->{state} . $result->{out}, qr/^(?:t\|t|40001)$/, 'half an answer');
		$proxy->reset;
	}

	ask($s, "SELECT zk_lock('/luck')");
	$zk->restart;
	zk_until(sub { $s->value('SELECT state FROM zk_session') =~ /connected|none/ }, 'the server to be back');
	ask($s, "SELECT zk_unlock_all(); SET zklock.connect_timeout = '20s'");
	is(ask($s, "SELECT zk_lock('/luck')")->{out}, 't', 'a server that has been restarted');
	ask($s, 'BEGIN; INSERT INTO t VALUES (2)');
	$proxy->cut_off;
	zk_wait_hold($s, 'lost', '/luck');
	is(ask($s, 'COMMIT')->{state}, '40001', 'a session that has expired');
	is(ask($s, "SELECT zk_unlock('/luck')")->{out}, 'f', '- its lock was lost');
	ask($s, "SET zklock.connect_timeout = '1s'");
	is(ask($s, "SELECT zk_lock('/luck')")->{state}, '58000', 'nobody to be reached');
	$proxy->blackhole;
	is(ask($s, "SELECT zk_lock('/luck')")->{state}, '58000', 'nobody who answers');
	$proxy->pass;
	ask($_, "SET zklock.connect_timeout = '20s'") for $s, $holder;
	is(ask($s, "SELECT zk_lock('/luck')")->{out}, 't', 'and again somebody');
	$admin->value('SELECT pg_cancel_backend(' . $s->pid . ')');
	$admin->value('SELECT pg_log_backend_memory_contexts(' . $s->pid . ')');
	ask($s, 'SELECT 1');
	$admin->value('SELECT pg_terminate_backend(' . $s->pid . ')');
	zk_until(sub { !$admin->value('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $s->pid) }, 'the backend to end');
	$s->kill9;
	ask($holder, 'SELECT zk_unlock_all()');
	ask($holder, "SELECT zk_lock('/held'), zk_lock('/deep/er'), zk_lock_shared('/read'), zk_semaphore_acquire('/places', 1)");
	is($holder->value("SELECT count(*), min(state), max(state) FROM zk_locks"), '4|held|held', 'the first one has its locks again');
};

# ------------------------------------------------------------------ and is nowhere

no_secret($said, 'no message told it');

# From here on queries contain the words in two pieces, so that the search does
# not find itself.
subtest 'settings, catalogs, statistics' => sub {
	$holder->quit;
	$holder = session_of('worker');
	$holder->value("SELECT zk_lock('/held')");
	# (no regular expression: since version 16 a backend caches those that it
	# knows, and would show them)
	my $list = join ', ', map { my $needle = $_; substr($needle, length($needle) / 2, 0) = q{' || '}; "'$needle'" } @needles;
	foreach my $user ('postgres', 'worker')
	{
		my $s = do { local $ENV{PGUSER} = $user; zk_session($node); };
		my @relations = split /\n/, $s->value(
			q{SELECT c.oid::regclass FROM pg_class c WHERE relkind IN ('r', 'v', 'm', 'p') AND relnamespace::regnamespace::text !~ '^pg_(toast|temp)'
				AND has_table_privilege(c.oid, 'SELECT') ORDER BY 1});
		my ($n, @found) = (0);
		foreach my $relation (@relations)
		{
			my $result = $s->query("SELECT row::text FROM $relation row
				WHERE EXISTS (SELECT FROM unnest(ARRAY[$list]) needle WHERE strpos(lower(row::text), needle) > 0)");
			next if $result->{state};    # a view on what this user may not see
			$n++;
			push @found, "$relation: $result->{out}" if $result->{out} ne '';
		}
		cmp_ok($n, '>', 150, "$user: relations");
		is_deeply(\@found, [], '- and none has it');
		no_secret($s->query('SHOW ALL')->{out}, '- nor SHOW ALL');
		$s->quit;
	}
	my ($dump) = run_command([ 'pg_dumpall', '-d', $node->connstr('postgres') ]);
	like($dump, qr/zklock\.auth_file/, 'a dump has the setting');
	no_secret($dump, '- and not the secret');
};

subtest 'processes' => sub {
	my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
	my @pids = ($postmaster, split /\n/, $admin->value('SELECT pid FROM pg_stat_activity'));
	cmp_ok(@pids, '>', 3, 'processes');
	foreach my $pid (@pids)
	{
		no_secret(join("\n", map { eval { slurp_file("/proc/$pid/$_") } // '' } qw(cmdline environ comm status stack syscall)), "process $pid: title and environment");
		my @open = grep { defined && m{/auth\.\w+/} } map { readlink } glob "/proc/$pid/fd/*";
		is_deeply(\@open, [], '- and has no such file open');
	}
	# what ps shows of all processes; a bare Debian has no ps
	no_secret(join("\n", map { eval { slurp_file($_) } // '' } glob '/proc/[0-9]*/cmdline'), 'all processes');
};

subtest 'nodes' => sub {
	my $n = 0;
	my $client = $zk->client;
	foreach my $path (map { ($_, $zk->tree($_)) } '/zklock')
	{
		my $data = eval { $client->get($path) } // '';
		no_secret("$path\n$data", "$path: name and data");
		# ZooKeeper keeps the digest there; only those who may change it can see
		# it
		my $acl = join ' ', map { @$_ } eval { $client->get_acl($path) };
		unlike($acl, qr/$WORDS[0]|$WORDS[1]/i, '- and the list of rights');
		$n++;
	}
	$client->close;
	cmp_ok($n, '>', 2, 'nodes');
	no_secret(join("\n", map { $zk->four_letter($_) // '' } qw(cons dump conf envi srvr stat mntr wchs wchc wchp crst)), "what ZooKeeper's commands tell");
};

subtest 'a backend that crashes' => sub {
	my $s = session_of('worker');
	$s->value("SELECT zk_lock('/crash')");
	zk_kill($node, $s->pid, 'ABRT');
	$said = join "\n", map { $_->{err}{text} } $s, $holder;
	no_secret($said, 'nor told by its end');
	$_->kill9 for $s, $holder;
	like(slurp_file($node->logfile), qr/terminated by signal 6/, 'it has crashed');
};
$admin->kill9;
$node->stop;

subtest 'files' => sub {
	my ($n, $bytes, @found) = (0, 0);
	File::Find::find(
		{
			no_chdir => 1,
			wanted => sub {
				return if !-f $_ || m{/core[^/]*$};
				my $text = eval { slurp_file($_) } // return;
				$n++;
				$bytes += length $text;
				push @found, map { "$File::Find::name: $_" } secrets_in($text);
			}
		},
		$node->basedir);
	cmp_ok($n, '>', 500, 'files of the server');
	cmp_ok($bytes, '>', 10_000_000, '- with some bytes');
	is_deeply(\@found, [], '- and none has it');

	my $log = slurp_file($node->logfile);
	like($log, qr/DEBUG:/, 'the log is one of all levels');
	like($log, qr/zk_lock\('\/wrong'\)/, '- and statements');
	no_secret($log, '- and does not have it');
};

# Not ours, but good to know: what ZooKeeper itself writes down.  The digest is
# in its ACLs; for an unknown scheme, it logs the name.
{
	my %count;
	my $look = sub {
		return unless -f $_;
		my $text = slurp_file($_);
		$text =~ s/^.*(?:AuthenticationProvider|cheme).*$//mg if m{/zookeeper\.log$};
		note map { "$_\n" } secrets_in($text) if m{/zookeeper\.log$};
		foreach my $needle (@needles)
		{
			my $times = () = $text =~ /\Q$needle\E/gi;
			$count{"$needle in " . s{.*/}{}r} += $times if $times;
		}
	};
	File::Find::find({ no_chdir => 1, wanted => $look }, $zk->dir);
	note "ZooKeeper's own files: ", %count ? join ', ', map { "$_: $count{$_}" } sort keys %count : 'nothing';
	is(scalar(grep { !/^\Q$DIGEST\E in (?:log|snapshot)\./i } keys %count), 0, 'what ZooKeeper itself writes down is the digest, in its data');
}

zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
