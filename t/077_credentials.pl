# zklock.auth_file: what it may contain and who must own it, when it is read,
# who may set and see the setting, and that the credentials are sent again after
# each interruption.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Temp qw(tempdir);
use IO::Socket::UNIX;
use POSIX qw(mkfifo);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Auth;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

# Whatever is wrong with a file must be reported at once
my $AT_ONCE = 3;

my $zk = ZooKeeper->new(superuser => 1)->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '20s', 'zklock.acl' => 'creator');
my $admin = zk_session($node);
my $dir = tempdir(CLEANUP => 1);

# open to all, so that everybody can create a directory there
$zk->create('/zklock');

# The identity of a session for ZooKeeper, as shown by the ACL of a node that it
# creates.
my $last_number = 0;

sub known_as
{
	my ($s, $server) = @_;
	my $path = '/known-as-' . ++$last_number;
	$s->value("SELECT zk_lock('$path')");
	my @acl = ($server // $zk)->acl("/zklock$path");
	$s->value("SELECT zk_unlock('$path')");
	return [ sort { $a->[2] cmp $b->[2] } @acl ];
}

# The session accepts a file, and has these identities; none: no credentials
sub accepted
{
	my ($file, $ids, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $s = zk_session($node);
	$s->value("SET zklock.auth_file = '$file'");
	if (@$ids)
	{
		is_deeply(eval { known_as($s) } // $@, creator_acl(@$ids), $name);
	}
	else
	{
		$s->value('SET zklock.acl = world');
		is_deeply(eval { known_as($s) } // $@, world_acl(), "$name: none");
		my $result = $s->query("SET zklock.acl = creator; SELECT zk_lock('/none')");
		is($result->{state}, '55000', '- and "creator" is refused');
		like($result->{hint}, qr/zklock\.auth_file/, '- with a hint');
	}
	$s->quit;
	return;
}

# The session does not accept a file: it reports that, soon.  (The first time also: each
# time, and nothing else is affected.)  Returns the message.
my $good = auth_file("digest:good:secret\n");
my $is_first = 1;

sub refused
{
	my ($file, $message, $name, %opt) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $s = zk_session($node);
	$s->value("SET zklock.auth_file = '$file'");
	my ($result, @more);
	@more = ("zk_try_xact_lock('/refused')", "zk_semaphore_acquire('/refused', 1)") if $is_first;
	foreach my $call (@more, "zk_lock('/refused')")
	{
		$result = $s->query("SELECT $call");
		is($result->{state}, $opt{state} // 'F0000', "$name: $call is refused");
		like($result->{err}, $message, '- and says why');
		in_time($result->{seconds}, $AT_ONCE, '- at once');
	}
	if ($is_first)
	{
		$is_first = 0;
		is($s->value('SELECT count(*) FROM zk_locks'), '0', '- and zk_locks');
		is($s->value('SELECT state FROM zk_session'), 'none', '- and zk_session do without it');
		is($s->query("SELECT zk_unlock('/refused')")->{out}, 'f', '- and zk_unlock');
		is($s->value('SELECT zk_unlock_all()'), '0', '- and zk_unlock_all');
		is($s->query('BEGIN; CREATE TEMP TABLE t (); COMMIT')->{state}, '', '- and transactions');
		$s->value("SET zklock.auth_file = '$good'");
		is_deeply(eval { known_as($s) } // $@, creator_acl('good:secret'), '- and a good file is taken at the next call');
	}
	$s->quit;
	return $result;
}

# ------------------------------------------------------------ what is in a file

subtest 'contents that are taken' => sub {
	my $long = 'x' x 20_000;
	foreach (
		[ 'a line', "digest:ann:secret\n", 'ann:secret' ],
		[ 'no newline at the end', 'digest:ann:secret', 'ann:secret' ],
		[ 'several lines', "digest:ann:secret\ndigest:bob:other\n", 'ann:secret', 'bob:other' ],
		[ 'the same line twice', "digest:ann:secret\ndigest:ann:secret\n", 'ann:secret' ],
		[ 'comments and blank lines', "# who\n\n#digest:no:body\ndigest:ann:secret\n\n# end", 'ann:secret' ],
		[ 'lines that end in CRLF', "# who\r\n\r\ndigest:ann:secret\r\ndigest:bob:other\r\n", 'ann:secret', 'bob:other' ],
		[ 'a password with colons', "digest:ann:se:c:ret\n", 'ann:se:c:ret' ],
		[ 'blanks before a comment, before a line, and alone', " # who\n  digest:ann:secret\n \t\n", 'ann:secret' ],
		[ 'sixteen', join('', map { "digest:$_:secret\n" } 10 .. 25), map { "$_:secret" } 10 .. 25 ],
		[ 'a NUL byte in a comment', "#\0\ndigest:ann:secret\n", 'ann:secret' ],
		[ 'a password with # and blanks', "digest:ann:a # b\n", 'ann:a # b' ],
		[ 'a password with a quote and a backslash', "digest:ann:a'b\\c\"%s%n\n", q{ann:a'b\\c"%s%n} ],
		[ 'a password beyond ASCII', "digest:ann:pa\xc3\x9fwort\n", "ann:pa\xc3\x9fwort" ],
		[ 'an empty password', "digest:ann:\n", 'ann:' ])
	{
		my ($name, $content, @ids) = @$_;
		accepted(auth_file($content), \@ids, $name);
	}
	accepted(auth_file($_->[1]), [], $_->[0])
	  foreach [ 'an empty file', '' ], [ 'a blank line', "\n" ], [ 'only comments', "# digest:ann:secret\n#\n" ];

	# either version is fine, but not half of it
	my $s = zk_session($node);
	$s->value("SET zklock.auth_file = '" . auth_file("digest:ann:$long\n") . q{'});
	my $result = $s->query("SELECT zk_lock('/long')");
	if ($result->{state} eq '')
	{
		is_deeply([ $zk->acl('/zklock/long') ], creator_acl("ann:$long"), 'a very long password: all of it');
	}
	else
	{
		is($result->{state}, 'F0000', 'a very long line is refused');
		like($result->{err}, qr/syntax error in line 1\./, '- by its number');
		unlike($result->{err}, qr/xxxx/, '- and not shown');
	}
	$s->quit;
};

subtest 'lines that are not taken' => sub {
	foreach (
		# name, content, number of the bad line
		[ 'no colon', "digest\n", 1 ],
		[ 'no colon in the third line', "# who\ndigest:ann:secret\nbob other\n", 3 ],
		[ 'no colon in the last line, CRLF', "digest:ann:secret\r\n\r\nbob\r\n", 3 ],
		[ 'no scheme', ":ann:secret\n", 1 ],
		[ 'a NUL byte in a password', "digest:ann:sec\0ret\n", 1 ],
		[ 'a NUL byte at the start of a line', "digest:ann:secret\n\0#\n", 2 ],
		[ 'no credentials', "digest:ann:secret\n\ndigest:\n", 3 ],
		[ 'a mark of the byte order', "\xef\xbb\xbfdigest:ann:secret\n", 1 ],
		[ 'a scheme with a blank', "digest :ann:secret\n", 1 ],
		[ 'UTF-16', "\xff\xfed\0i\0g\0e\0s\0t\0:\0a\0:\0b\0\n\0", 1 ])
	{
		my ($name, $content, $line) = @$_;
		my $result = refused(auth_file($content), qr/syntax error in line $line\./, $name);
		unlike($result->{err}, qr/ann|bob|ret\b/, '- and shows nothing of it');
	}
	refused(auth_file(join '', map { "digest:$_:secret\n" } 10 .. 26), qr/has more than 16 credentials/, 'seventeen');
};

# ---------------------------------------------------------------- what file it is

subtest 'files that are not taken' => sub {
	my $result = refused("$dir/missing", qr/No such file/, 'no file');
	unlike($result->{err}, qr/missing/, '- and is named');
	like(slurp_file($node->logfile), qr/DETAIL: .*"\Q$dir\E\/missing"/, '- in the log alone');
	refused($dir, qr/regular file/, 'a directory');
	mkdir "$dir/closed", 0700;
	mkfifo("$dir/fifo", 0600) or die "fifo: $!";
	refused("$dir/fifo", qr/regular file/, 'a pipe that nobody writes to');
	refused('/dev/zero', qr/regular file/, 'a device');
	{
		my $socket = IO::Socket::UNIX->new(Local => "$dir/socket", Listen => 1) or die "socket: $!";
		chmod 0600, "$dir/socket";
		refused("$dir/socket", qr/regular file|No such device/, 'a socket');
	}
	symlink 'nowhere', "$dir/dangling";
	refused("$dir/dangling", qr/No such file/, 'a link to nowhere');
	symlink 'loop', "$dir/loop";
	refused("$dir/loop", qr/symbolic links/, 'a link to itself');

	foreach my $mode (0640, 0620, 0610, 0604, 0602, 0601, 0644, 0660, 0666, 0777)
	{
		my $name = sprintf 'mode %04o', $mode;
		my $result = refused(auth_file("digest:ann:secret\n", mode => $mode), qr/group or world access/, $name);
		unlike($result->{err}, qr/secret/, '- and is not shown');
	}
	symlink auth_file("digest:ann:secret\n", mode => 0644), "$dir/link-to-open";
	refused("$dir/link-to-open", qr/group or world access/, 'a link to a file that others may read');
	refused('/etc/passwd', qr/group or world access/, "root's, that others may read");
	refused('/etc/shadow', qr/Permission denied/, "root's, that we may not read") if $> != 0 && !-r '/etc/shadow';
	refused(auth_file("digest:ann:secret\n", mode => 0000), qr/permission denied/i, 'one that we may not read ourselves') if $> != 0;
	auth_file("digest:ann:secret\n", dir => "$dir/closed", name => 'file');
	chmod 0000, "$dir/closed";
	refused("$dir/closed/file", qr/permission denied/i, 'one that we cannot reach') if $> != 0;
	chmod 0700, "$dir/closed";

	# 2 GB without using any disk space
	my $huge = auth_file("digest:ann:secret\n");
	truncate $huge, 2 << 30 or die "huge: $!";
	refused($huge, qr/is too large/, 'a huge file');
	$huge = auth_file("# nothing\n" x 1_000_000);
	refused($huge, qr/is too large/, 'a file of ten million bytes');
	refused('x' x 5000, qr/File name too long/, 'a name that is too long');
};

subtest 'files that are taken' => sub {
	accepted(auth_file("digest:ann:secret\n", mode => $_), ['ann:secret'], sprintf 'mode %04o', $_) for 0600, 0400, 0700;
	symlink auth_file("digest:ann:secret\n"), "$dir/link";
	accepted("$dir/link", ['ann:secret'], 'a link to a good file');
	auth_file("digest:rel:secret\n", dir => $node->data_dir, name => 'zklock.auth');
	accepted('zklock.auth', ['rel:secret'], 'a name without a directory is in the data directory');
	accepted('../pgdata/zklock.auth', ['rel:secret'], '- and a relative one goes from there') if $node->data_dir =~ m{/pgdata$};
	my $name = "m\xc3\xbcller 'kennw\xc3\xb6rter'";
	auth_file("digest:umlaut:secret\n", dir => $dir, name => $name);
	accepted("$dir/$name" =~ s/'/''/gr, ['umlaut:secret'], 'a name beyond ASCII');
	{
		my $s = zk_session($node, options => '-c client_encoding=LATIN1');
		$s->value("SET zklock.auth_file = '$dir/m\xfcller ''kennw\xf6rter'''");
		is_deeply(known_as($s), creator_acl('umlaut:secret'), '- as a client of another encoding types it');
		$s->quit;
	}
};

# ---------------------------------------------- refused by ZooKeeper, and recovery

subtest 'a credential that ZooKeeper does not accept' => sub {
	foreach (
		[ 'an unknown scheme', "bogus:ann:secret\n" ],
		[ 'a good one, then one of an unknown scheme', "digest:ann:secret\nbogus:x\n" ],
		[ 'the other way round', "bogus:x\ndigest:ann:secret\n" ],
		[ 'a scheme that is none of a client\'s', "world:anyone\n" ])
	{
		my ($name, $content) = @$_;
		my $file = auth_file($content);
		my $s = zk_session($node);
		# ZooKeeper cuts the connection and keeps the session, until it expires
		$s->value("SET zklock.auth_file = '$file'; SET zklock.session_timeout = '2s'");
		my $connections = $zk->mntr_value('num_alive_connections');
		for (1 .. 3)
		{
			my $result = $s->query("SELECT zk_lock('/unknown')");
			is($result->{state}, '28000', "$name: 28000, time $_") or diag $result->{err};
			like($result->{hint}, qr/zklock\.auth_file/, '- with a hint');
			in_time($result->{seconds}, $AT_ONCE, '- at once');
			unlike($result->{err}, qr/secret|ann/, '- which shows nothing of it');
		}
		is($s->value('SELECT count(*) FROM zk_locks'), '0', '- nothing is held');
		is($s->value('SELECT zk_unlock_all()'), '0', '- nor given back');
		is($s->query('BEGIN; CREATE TEMP TABLE t (); COMMIT')->{state}, '', '- and transactions go on');
		my $cpu = zk_cpu_seconds($s->pid);
		zk_until(sub { $zk->mntr_value('num_alive_connections') <= $connections }, 'no connection more than before');
		my $began = time;
		$admin->value('SELECT pg_sleep(0.5)');
		cmp_ok(zk_cpu_seconds($s->pid) - $cpu, '<', 0.1 * (time - $began) + 0.1, '- and nothing spins');

		# the same setting with other contents of the file
		$s->value('RESET zklock.session_timeout');
		auth_file("digest:ann:mended\n", dir => $file =~ s{/[^/]*$}{}r, name => $file =~ s{.*/}{}r);
		is_deeply(known_as($s), creator_acl('ann:mended'), '- mended: the next call reads it');
		$s->quit;
	}
	is_deeply([ grep { m{/unknown} } $zk->tree('/zklock') ], [], 'none of these made anything');
};

# ------------------------------------------------------------- when it is read

subtest 'when the file is read' => sub {
	my $file = auth_file("digest:old:secret\n", dir => $dir, name => 'changing');
	my ($holder, $idle) = map { zk_session($node, options => "-c zklock.auth_file=$file") } 1 .. 2;
	is_deeply(known_as($_), creator_acl('old:secret'), 'known by what the file says') for $holder, $idle;
	$holder->value("SELECT zk_lock('/holding')");
	my $id = $holder->value('SELECT session_id FROM zk_session');

	auth_file("digest:new:secret\n", dir => $dir, name => 'changing');
	my $next = zk_session($node, options => "-c zklock.auth_file=$file");
	is_deeply(known_as($next), creator_acl('new:secret'), 'another content: a new session is known by that');
	is_deeply(known_as($holder), creator_acl('old:secret'), '- and one that is open by the old one');
	is_deeply(known_as($idle), creator_acl('old:secret'), '- even if it holds nothing');
	$next->quit;

	unlink $file;
	is_deeply(known_as($holder), creator_acl('old:secret'), 'the file removed: a session that is open goes on');
	is(zk_session($node, options => "-c zklock.auth_file=$file")->query("SELECT zk_lock('/gone')")->{state}, 'F0000',
		'- and a new one does not');

	# another setting
	$holder->value("SET zklock.auth_file = '$good'");
	is_deeply(known_as($holder), creator_acl('old:secret'), 'another setting has no effect on a session that holds a lock');
	is($holder->value('SELECT session_id FROM zk_session'), $id, '- which is the same');
	is($holder->value("SELECT zk_unlock('/holding')"), 't', '- until it holds none');
	is_deeply(known_as($holder), creator_acl('good:secret'), '- and then on the next call');
	isnt($holder->value('SELECT session_id FROM zk_session'), $id, '- in a new session');
	$holder->value("SET zklock.acl = 'world'");
	is_deeply(known_as($holder), world_acl(), 'zklock.acl is followed at once');
	$holder->value("SELECT zk_lock('/open'); SET zklock.acl = 'creator'");
	is_deeply(known_as($holder), creator_acl('good:secret'), '- also while a lock is held');
	$holder->value("SELECT zk_unlock('/open')");
	$holder->value("RESET zklock.auth_file; SET zklock.acl = 'world'; SET zklock.auth_file = ''");
	is_deeply(known_as($holder), world_acl(), 'no file, no credentials');
	is($holder->query("SET zklock.acl = 'everybody'")->{state}, '22023', 'zklock.acl knows its values');
	$_->quit for $holder, $idle;

	# for all sessions, by a reload
	$node->append_conf('postgresql.conf', "zklock.auth_file = '$good'");
	my $s = zk_session($node);
	$node->reload;
	zk_until(sub { $s->value('SHOW zklock.auth_file') eq $good }, 'the reload');
	is_deeply(known_as($s), creator_acl('good:secret'), 'a reload is enough');

	# removing a setting from the configuration does not count as a user's
	# attempt to get rid of it
	foreach my $setting ([ 'node_style', 'kazoo' ], [ 'acl', 'world' ], [ 'root', '/elsewhere' ])
	{
		my ($name, $value) = @$setting;
		my $was = $admin->value("SHOW zklock.$name");
		$admin->value("ALTER SYSTEM SET zklock.$name = '$value'");
		$node->reload;
		my $there = do { zk_until(sub { $admin->value("SHOW zklock.$name") eq $value }, 'the reload'); zk_session($node); };
		$admin->value("ALTER SYSTEM RESET zklock.$name");
		$node->reload;
		zk_until(sub { $there->value("SHOW zklock.$name") eq $was }, 'the reload');
		is($there->query("SELECT zk_lock('/taken-out-$name')")->{state}, '', "zklock.$name, set and reset for the whole server");
		$there->quit;
	}
	$s->quit;
};

# ------------------------------------------------------- credentials are resent

# What a session held before an interruption it may release after it
sub keeps_its_rights
{
	my ($s, $interrupt, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $path = '/rights-' . ++$last_number;
	$s->value("SELECT zk_lock('$path'), zk_lock_shared('$path/s'), zk_semaphore_acquire('$path/p', 2)");
	my $id = $s->value('SELECT session_id FROM zk_session');
	my $reconnections = $s->value('SELECT reconnections FROM zk_session');
	$s->value('CREATE TEMP TABLE IF NOT EXISTS t (); BEGIN');
	$s->value("SELECT zk_xact_lock('$path/x'); INSERT INTO t DEFAULT VALUES");
	$interrupt->();
	zk_until(sub { $s->value('SELECT reconnections FROM zk_session') > $reconnections }, 'the reconnection');
	my $commit = $s->query('SET LOCAL zklock.commit_guard = strict; COMMIT');
	is($commit->{state}, '', "$name: the transaction commits") or diag $commit->{err};
	is($s->value("SELECT string_agg(DISTINCT state, ' ') FROM zk_locks"), 'held', '- its locks are held');
	is($s->value('SELECT session_id FROM zk_session'), $id, '- in the same session');
	my $result = $s->query("SELECT zk_unlock('$path'), zk_unlock_shared('$path/s'), zk_semaphore_release('$path/p')");
	is($result->{out}, 't|t|t', '- and can be given back');
	is($result->{err}, '', '- without a warning');
	return;
}

subtest 'a server that is restarted' => sub {
	my $s = zk_session_with($node, session_timeout => '60s');    # in which it is back
	keeps_its_rights($s, sub { $zk->restart }, 'restart');
	keeps_its_rights($s, sub { $zk->kill9; $zk->start }, 'kill -9');
	is_deeply(known_as($s), creator_acl('good:secret'), 'what it makes then is as before');
	zk_nothing_left($zk, 'nothing is left');
	$s->quit;
};

subtest 'several credentials, and connections that are cut' => sub {
	my $file = auth_file("digest:ann:secret\ndigest:bob:other\n");
	my $proxy = ZkProxy->new($zk);
	my $s = zk_session($node, options => "-c zklock.auth_file=$file -c zklock.hosts=" . $proxy->hosts);
	for my $round (1 .. 2)
	{
		keeps_its_rights($s, sub { $proxy->drop }, "cut $round");
		is_deeply(known_as($s), creator_acl('ann:secret', 'bob:other'), '- known by both');
	}

	# an answer to a credential that never arrives, one that arrives late
	$proxy->clear_log;
	keeps_its_rights($s, sub { $proxy->swallow_and_drop('auth'); $proxy->drop }, 'cut while it says who it is');
	is_deeply(known_as($s), creator_acl('ann:secret', 'bob:other'), '- known by both');
	keeps_its_rights(
		$s,
		sub {
			$proxy->hold('auth');
			$proxy->drop;
			$proxy->wait_held;
			$proxy->release;
		},
		'answers to credentials are late');
	$s->quit;

	# on the first connection, too
	$proxy->swallow_and_drop('auth');
	$s = zk_session($node, options => "-c zklock.auth_file=$file -c zklock.hosts=" . $proxy->hosts);
	is_deeply(known_as($s), creator_acl('ann:secret', 'bob:other'), 'cut at the first connection');
	$s->quit;
	zk_nothing_left($zk, 'nothing is left');
};

# ZooKeeper writes all identities of a session into the ACL of each node, and
# the client library sends all of them on each connection.
subtest 'many credentials, and many locks' => sub {
	my @ids = map { "user$_:" . 'long secret ' x 5 } 10 .. 25;
	my $file = auth_file(join '', map { "digest:$_\n" } @ids);
	my $proxy = ZkProxy->new($zk);
	my $s = zk_session($node, options => "-c zklock.auth_file=$file -c zklock.hosts=" . $proxy->hosts);
	my $all = sub { my ($n) = @_; return "zk_lock_many(ARRAY(SELECT '/many/' || i FROM generate_series(1, $n) i))" };
	my $result = $s->query('SELECT ' . $all->(1000));
	ok($result->{state} eq '54000' || $result->{out} eq 't', 'a thousand at once: too many, or had') or diag $result->{err};
	$s->value('SELECT zk_unlock_all()');
	is($s->value('SELECT ' . $all->(100)), 't', 'a hundred at once: had');
	my ($one) = $zk->children('/zklock/many/100');
	is_deeply([ sort { $a->[2] cmp $b->[2] } $zk->acl("/zklock/many/100/$one") ], creator_acl(@ids), '- closed but for all of these');
	keeps_its_rights($s, sub { $proxy->drop }, 'cut');
	is($s->value("SELECT zk_unlock_all()"), '100', '- and all can be given back');
	$s->quit;
	zk_nothing_left($zk, 'nothing is left');
};

subtest 'a server that wants everybody to say who they are' => sub {
	my $strict = ZooKeeper->new(
		superuser => 1,
		config => { 'enforce.auth.enabled' => 'true', 'enforce.auth.schemes' => 'digest' })->start;
	$strict->create('/zklock');
	my $proxy = ZkProxy->new($strict);
	my $hosts = '-c zklock.hosts=' . $proxy->hosts;

	my $s = zk_session($node, options => "$hosts -c zklock.auth_file= -c zklock.acl=world -c zklock.session_timeout=2s");
	my $result = $s->query("SELECT zk_lock('/strict')");
	is($result->{state}, '28000', 'without credentials: 28000') or diag $result->{err};
	like($result->{hint}, qr/zklock\.auth_file/, '- with a hint');
	$s->value("SET zklock.auth_file = '$good'");
	is_deeply(known_as($s, $strict), world_acl(), 'with credentials: a lock, though open to all');
	$s->value("SET zklock.acl = 'creator'");
	is_deeply(known_as($s, $strict), creator_acl('good:secret'), '- or closed');
	$s->quit;

	$s = zk_session($node, options => "$hosts -c zklock.session_timeout=60s");
	keeps_its_rights($s, sub { $proxy->drop }, 'cut');
	keeps_its_rights($s, sub { $strict->restart }, 'restart');
	zk_nothing_left($strict, 'nothing is left');
	$s->quit;
};

# ----------------------------------------------------- who may set and see it

subtest 'who may set and see it' => sub {
	my $file = auth_file("digest:evil:secret\n");
	$admin->value('CREATE ROLE worker LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_read_all_settings; CREATE ROLE boss LOGIN SUPERUSER');
	$admin->value('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO worker; GRANT CREATE ON SCHEMA public TO worker');
	is($admin->value('SHOW zklock.auth_file'), $good, 'a superuser sees it');

	my $s = zk_session($node, user => 'worker');
	is_deeply(known_as($s), creator_acl('good:secret'), 'a user works with what the administrator set');
	foreach my $name ('zklock.auth_file', 'ZKLOCK.AUTH_FILE')
	{
		is($s->query("SHOW $name")->{state}, '42501', "- but may not SHOW $name");
		is($s->query("SELECT current_setting('$name')")->{state}, '42501', '- nor ask for it');
		is($s->query("SELECT current_setting('$name', true)")->{state}, '42501', '- in either way');
	}
	unlike($s->query('SHOW ALL')->{out}, qr/\Q$good\E/, '- nor see it among all');
	is($s->value("SELECT count(*) FROM pg_settings WHERE setting LIKE '%$good%' OR reset_val LIKE '%$good%' OR name = 'zklock.auth_file'"), '0', '- nor in pg_settings');
	unlike($s->query('SELECT * FROM pg_show_all_settings()')->{out}, qr/\Q$good\E/, '- nor behind that');
	is($s->query('SELECT * FROM pg_show_all_file_settings()')->{state}, '42501', '- nor in the file');
	is(zk_session($node, user => 'watcher')->value('SHOW zklock.auth_file'), $good, 'who may read all settings sees the name');
	is(zk_session($node, user => 'watcher')->query("SET zklock.auth_file = ''")->{state}, '42501', '- and may not change it');

	my %change = (
		'SET' => "SET zklock.auth_file = '$file'",
		'SET LOCAL' => "BEGIN; SET LOCAL zklock.auth_file = '$file'",
		'SET TO DEFAULT' => 'SET zklock.auth_file TO DEFAULT',
		'RESET' => 'RESET zklock.auth_file',
		'set_config' => "SELECT set_config('zklock.auth_file', '$file', false)",
		'UPDATE pg_settings' => "UPDATE pg_settings SET setting = '$file' WHERE name = 'zklock.auth_file'",
		'ALTER ROLE, itself' => "ALTER ROLE worker SET zklock.auth_file = '$file'",
		'ALTER DATABASE' => "ALTER DATABASE postgres SET zklock.auth_file = '$file'",
		'ALTER SYSTEM' => "ALTER SYSTEM SET zklock.auth_file = '$file'",
		'a function that sets it' => "CREATE FUNCTION sly() RETURNS text LANGUAGE sql SET zklock.auth_file = '$file' AS \$\$ SELECT zk_lock('/sly')::text \$\$",
		'zklock.acl' => 'SET zklock.acl = world');
	foreach my $way (sort keys %change)
	{
		my $result = $s->query($change{$way});
		# UPDATE of pg_settings finds no row
		ok($result->{state} eq '42501' || $result->{err} eq '' && $way =~ /^UPDATE/, "a user may not change it: $way") or diag $result->{err};
		$s->query('ROLLBACK');
		is($admin->value('SHOW zklock.auth_file'), $good, '- and has not');
	}
	is_deeply(known_as($s), creator_acl('good:secret'), '- and is known as before');
	$s->quit;
	# Options of the connection are applied before the library knows who may set
	# these settings, and they make PostgreSQL forget the administrator's
	# values.
	$admin->value("ALTER ROLE worker SET zklock.root = '/zklock/worker'");
	foreach my $setting ("auth_file=$file", 'auth_file=', 'acl=world', 'acl=nonsense', 'root=/zklock', 'root=/', 'hosts=127.0.0.1:1', 'node_style=kazoo')
	{
		my $sly = zk_session($node, user => 'worker', options => "-c zklock.$setting");
		is($sly->query("SELECT zk_lock('/sly')")->{state}, '42501', "a connection with zklock.$setting does not have its way");
		$sly->quit;
	}
	# nor when the configuration is reloaded, which knows of no role
	{
		my $sly = eval { zk_session($node, user => 'worker', options => '-c zklock.root=/x') };
		$admin->value("ALTER SYSTEM SET zklock.root = '/zklock/all'");
		$node->reload;
		zk_until(sub { $admin->value('SHOW zklock.root') eq '/zklock/all' }, 'the reload');
		my $lock = $sly && $sly->query("SELECT zk_lock('/sly')");
		ok(!$sly || $lock->{state} ne '' || $sly->value('SHOW zklock.root') eq '/zklock/worker', '- nor by waiting for a reload');
		$sly->quit if $sly;
		$admin->value('ALTER SYSTEM RESET zklock.root');
		$node->reload;
		zk_until(sub { $admin->value('SHOW zklock.root') eq '/zklock' }, 'the reload');
	}
	$admin->value('ALTER ROLE worker RESET zklock.root');

	# it runs with the rights of the session's user
	$s = zk_session($node);
	$s->value('SET ROLE worker');
	is($s->query("SET zklock.auth_file = '$file'")->{state}, '42501', 'a superuser who has become a user may not');
	is($s->query('SHOW zklock.auth_file')->{state}, '42501', '- nor see it');
	$s->value('RESET ROLE; SET SESSION AUTHORIZATION worker');
	is($s->query("SET zklock.auth_file = '$file'")->{state}, '42501', '- by any name');
	$s->value('RESET SESSION AUTHORIZATION');
	my $own = zk_session($node, user => 'worker');
	$own->value("CREATE FUNCTION mine() RETURNS text LANGUAGE sql SECURITY DEFINER AS \$\$ SELECT set_config('zklock.auth_file', '$file', false) \$\$");
	is($_->query('SELECT mine()')->{state}, '42501', 'a function of a user may not, whoever calls it') for $own, $s;
	$admin->value("CREATE FUNCTION theirs() RETURNS text LANGUAGE sql SECURITY DEFINER AS \$\$ SELECT set_config('zklock.auth_file', '$file', false) \$\$");
	$own->value('SELECT theirs()');
	is_deeply(known_as($own), creator_acl('evil:secret'), 'one of a superuser may: it is his to give');
	$_->quit for $own, $s;

	# an error names the file only to those who may see the setting
	$admin->value("ALTER ROLE worker SET zklock.auth_file = '$dir/nowhere'");
	$s = zk_session($node, user => 'worker');
	my $result = $s->query("SELECT zk_lock('/nowhere')");
	is($result->{state}, 'F0000', 'a bad file: refused');
	unlike($result->{err}, qr/nowhere'|\Q$dir\E/, '- without the name of the file') or diag $result->{err};
	$s->quit;
	$admin->value("ALTER ROLE worker SET zklock.auth_file = '" . auth_file("digest\n", mode => 0640) . q{'});
	$s = zk_session($node, user => 'worker');
	$result = $s->query("SELECT zk_lock('/nowhere')");
	unlike($result->{err}, qr/\bauth\.\w|file\d/, '- nor of one that is open') or diag $result->{err};
	$s->quit;
	$admin->value('ALTER ROLE worker RESET zklock.auth_file');
};

subtest 'a credential for each role' => sub {
	my %file = map { ($_ => auth_file("digest:$_:secret of $_\n")) } qw(ann bob);
	$admin->value("CREATE ROLE $_ LOGIN; ALTER ROLE $_ SET zklock.auth_file = '$file{$_}'; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO $_")
	  for sort keys %file;
	my %s = map { ($_ => zk_session($node, user => $_)) } keys %file;
	is_deeply(known_as($s{$_}), creator_acl("$_:secret of $_"), "$_ has a credential") for sort keys %s;

	# the login role counts: no other role's setting is inherited
	$admin->value('GRANT bob TO ann');
	$s{ann}->value('SET ROLE bob');
	is_deeply(known_as($s{ann}), creator_acl('ann:secret of ann'), 'SET ROLE brings no other one');
	is($s{ann}->value("RESET ROLE; SELECT zk_lock('/private')"), 't', 'a lock of one');
	is($s{bob}->query("SELECT zk_try_lock('/private')")->{state}, '42501', '- is closed to the other');
	$_->quit for values %s;

	$admin->value('CREATE DATABASE team');
	$node->safe_psql('team', 'CREATE EXTENSION zklock; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO PUBLIC');
	my $team = auth_file("digest:team:secret\n");
	$admin->value("ALTER DATABASE team SET zklock.auth_file = '$team'; ALTER ROLE ann IN DATABASE team SET zklock.auth_file = '$file{bob}'");
	foreach ([ ann => 'bob:secret of bob' ], [ bob => 'bob:secret of bob' ], [ worker => 'team:secret' ])
	{
		my ($role, $id) = @$_;
		my $s = zk_session($node, user => $role, dbname => 'team');
		is_deeply(known_as($s), creator_acl($id), "$role in a database with one of its own");
		$s->quit;
	}

	# where the library is only loaded by the first call, nothing has checked
	# before whether a user may set it
	$admin->value("ALTER DATABASE team SET session_preload_libraries = 'plpgsql'");
	my $evil = auth_file("digest:evil:secret\n");
	my $s = zk_session($node, user => 'worker', dbname => 'team');
	$s->query("SET zklock.auth_file = '$evil'");
	is_deeply(known_as($s), creator_acl('team:secret'), 'not preloaded: what a user has set is not taken');
	$s->quit;
	$s = zk_session($node, user => 'bob', dbname => 'team');
	is_deeply(known_as($s), creator_acl('bob:secret of bob'), '- and what the administrator has set is');
	$s->quit;
};

# -------------------------------------------------------------------------- end

$admin->quit;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($node);
$node->stop;

done_testing();
