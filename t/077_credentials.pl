# zklock.auth_file: what it may contain and who must own it, when it is read,
# who may set and see the setting, and that the credentials are sent again after
# each interruption.
#
# And a credential shows up nowhere: not in a log at any level, a message, a
# setting, a catalog, a statistics view, a dump, a file of the data directory,
# the title or the environment of a process, nor in the names and data of the
# nodes.  This holds for all that happens here, and so when the file is wrong, ZooKeeper
# refuses, connections break, sessions expire, and backends crash.

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Find ();
use IO::Socket::UNIX;
use MIME::Base64 qw(encode_base64);
use POSIX qw(mkfifo);

use Auth;
use Tests;

# Whatever is wrong with a file must be reported at once
my $AT_ONCE = 3;

# All passwords are of these words, which are unmistakable, so that even half of one is found.
my ($SECRET, $OTHER) = qw(Nachtschatten Kupferdistel);
my $GOOD = "good:$SECRET-4711:$OTHER";
my @needles = map { lc } $SECRET, $OTHER, digest_id($GOOD) =~ s/.*://r, encode_base64($GOOD, ''), map { unpack 'H*', $_ } $SECRET, $OTHER;

# Where these texts have some, with what is around it.  (index() is fast, and there is much to search.)
sub secrets_in
{
	my @found;
	foreach my $text (@_)
	{
		my $lc = lc $text;
		push @found, map { my $at = index $lc, $_; $at < 0 ? () : substr $text, $at > 60 ? $at - 60 : 0, 120 } @needles;
	}
	return @found;
}
is(scalar secrets_in("DETAIL: line \"digest:$GOOD\"\n", uc $OTHER, digest_id($GOOD)), 4, 'a secret is found where there is one');

# One test: none of these has any.
sub no_secret
{
	my ($name, @texts) = @_;
	my @found = secrets_in(@texts);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(!@found, $name) || diag zk_few(@found);
}

# Everything that a client was told
my @said;
{
	no warnings 'redefine';
	my $result_of = \&Zklock::Session::_result;
	*Zklock::Session::_result = sub { my $result = $result_of->(@_); push @said, @$result{qw(out err)}; return $result; };
}

my $zk = ZooKeeper->new(superuser => 1)->start;
my $node = zk_cluster(
	'main', $zk,
	'zklock.session_timeout' => '20s',
	'zklock.acl' => 'creator',
	log_min_messages => 'debug5',
	log_min_error_statement => 'debug5',
	log_error_verbosity => 'verbose',
	log_statement => 'all',
	log_connections => 'on',
	update_process_title => 'on',
	restart_after_crash => 'on');
my $admin = zk_session($node);
my $dir = PostgreSQL::Test::Utils::tempdir();

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

sub session_with_file { my ($file, %opt) = @_; return zk_session($node, options => "-c client_min_messages=debug5 -c zklock.auth_file=$file", %opt); }

# The session accepts a file, and has these identities; none: no credentials
sub accepted
{
	my ($file, $ids, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $s = zk_session($node);
	$s->value("SET zklock.auth_file = '$file'");
	return is_deeply(eval { known_as($s) } // $@, creator_acl(@$ids), $name) if @$ids;
	$s->value('SET zklock.acl = world');
	is_deeply(eval { known_as($s) } // $@, world_acl(), "$name: none");
	my $result = $s->query("SET zklock.acl = creator; SELECT zk_lock('/none')");
	is($result->{state}, '55000', '- and "creator" is refused');
	like($result->{hint}, qr/zklock\.auth_file/, '- with a hint');
	return;
}

# The session does not accept a file: it reports that, soon.  (The first time also: each
# time, and nothing else is affected.)  Returns the message.
my $good = auth_file("digest:$GOOD\n");
my $is_first = 1;

sub refused
{
	my ($file, $message, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $s = zk_session($node);
	$s->value("SET client_min_messages = debug5; SET zklock.auth_file = '$file'");
	my ($result, @more);
	@more = ("zk_try_xact_lock('/refused')", "zk_semaphore_acquire('/refused', 1)") if $is_first;
	foreach my $call (@more, "zk_lock('/refused')")
	{
		$result = $s->query("SELECT $call");
		is($result->{state}, 'F0000', "$name: $call is refused");
		like($result->{err}, $message, '- and says why');
		in_time($result->{seconds}, $AT_ONCE, '- at once');
	}
	if ($is_first)
	{
		$is_first = 0;
		goes_on($s, $name);
		$s->value("SET zklock.auth_file = '$good'");
		is_deeply(eval { known_as($s) } // $@, creator_acl($GOOD), '- and a good file is taken at the next call');
	}
	return $result;
}

# Whatever needs no ZooKeeper works
sub goes_on
{
	my ($s, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($s->value('SELECT (SELECT count(*) FROM zk_locks), zk_unlock_all()'), '0|0', "$name: nothing is held, nor given back");
	is($s->query("SELECT zk_unlock('/refused')")->{out}, 'f', '- nor is one');
	is($s->query('BEGIN; CREATE TEMP TABLE works (); COMMIT')->{state}, '', '- and transactions go on');
	return;
}

# ------------------------------------------------------------ what is in a file

subtest 'contents that are taken' => sub {
	foreach (
		[ 'a line', "digest:ann:$SECRET\n", "ann:$SECRET" ],
		[ 'no newline at the end', "digest:ann:$SECRET", "ann:$SECRET" ],
		[ 'several lines, one of them twice', "digest:ann:$SECRET\ndigest:bob:$OTHER\ndigest:ann:$SECRET\n", "ann:$SECRET", "bob:$OTHER" ],
		[ 'comments and blank lines', "# who\n\n#digest:no:body\ndigest:ann:$SECRET\n\n# end", "ann:$SECRET" ],
		[ 'lines that end in CRLF', "# who\r\n\r\ndigest:ann:$SECRET\r\ndigest:bob:$OTHER\r\n", "ann:$SECRET", "bob:$OTHER" ],
		[ 'a password with colons', "digest:ann:se:c:$SECRET\n", "ann:se:c:$SECRET" ],
		[ 'blanks before a comment, before a line, and alone', " # who\n  digest:ann:$SECRET\n \t\n", "ann:$SECRET" ],
		[ 'sixteen', join('', map { "digest:$_:$SECRET\n" } 10 .. 25), map { "$_:$SECRET" } 10 .. 25 ],
		[ 'a NUL byte in a comment', "#\0\ndigest:ann:$SECRET\n", "ann:$SECRET" ],
		[ 'a password with # and blanks', "digest:ann:$SECRET # $OTHER\n", "ann:$SECRET # $OTHER" ],
		[ 'a password with a quote and a backslash', "digest:ann:${SECRET}'b\\c\"%s%n\n", qq{ann:${SECRET}'b\\c"%s%n} ],
		[ 'a password beyond ASCII', "digest:ann:$SECRET\xc3\x9f\n", "ann:$SECRET\xc3\x9f" ],
		[ 'an empty password', "digest:ann:\n", 'ann:' ],
		[ 'a very long password: all of it', 'digest:ann:' . $SECRET x 1500, 'ann:' . $SECRET x 1500 ],
		[ 'an empty file', '' ], [ 'a blank line', "\n" ], [ 'only comments', "# digest:ann:$SECRET\n#\n" ])
	{
		my ($name, $content, @ids) = @$_;
		accepted(auth_file($content), \@ids, $name);
	}
};

subtest 'lines that are not taken' => sub {
	foreach (
		# name, content, number of the bad line
		[ 'no colon', "digest\n", 1 ],
		[ 'a blank for a colon', "digest ann:$SECRET\n", 1 ],
		[ 'no colon in the third line', "# who\ndigest:ann:$SECRET\nbob $OTHER\n", 3 ],
		[ 'no colon in the last line, CRLF', "digest:ann:$SECRET\r\n\r\n$OTHER\r\n", 3 ],
		[ 'no scheme', ":ann:$SECRET\n", 1 ],
		[ 'the password and a colon', "$SECRET:\n", 1 ],
		[ 'a NUL byte in a password', "digest:ann:$SECRET\0$OTHER\n", 1 ],
		[ 'a NUL byte at the start of a line', "digest:ann:$SECRET\n\0#\n", 2 ],
		[ 'no credentials', "digest:ann:$SECRET\n\ndigest:\n", 3 ],
		[ 'a mark of the byte order', "\xef\xbb\xbfdigest:ann:$SECRET\n", 1 ],
		[ 'a scheme with a blank', "digest :ann:$SECRET\n", 1 ],
		[ 'quotes', "'digest:ann:$SECRET'\n", 1 ],
		[ 'a line of psql', "\\set x '$SECRET'\n", 1 ],
		[ 'UTF-16', join('', "\xff\xfe", map { "$_\0" } split //, "digest:ann:$SECRET\n"), 1 ])
	{
		my ($name, $content, $line) = @$_;
		refused(auth_file($content), qr/syntax error in line $line\./, $name);
	}
	refused(auth_file(join '', map { "digest:$_:$SECRET\n" } 10 .. 26), qr/has more than 16 credentials/, 'seventeen');
	refused(auth_file('digest:' . $SECRET x 100_000), qr/is too large/, 'a very long line');
};

# ---------------------------------------------------------------- what file it is

subtest 'files that are not taken' => sub {
	my $result = refused("$dir/missing", qr/No such file/, 'no file');
	unlike($result->{message} . $result->{detail}, qr/missing/, '- and is named');
	like(slurp_file($node->logfile), qr/DETAIL: .*"\Q$dir\E\/missing"/, '- in the log alone');
	refused($dir, qr/regular file/, 'a directory');
	mkfifo("$dir/fifo", 0600) or die "fifo: $!";
	refused("$dir/fifo", qr/regular file/, 'a pipe that nobody writes to');
	refused('/dev/zero', qr/regular file/, 'a device');
	{
		my $socket = IO::Socket::UNIX->new(Local => "$dir/socket", Listen => 1) or die "socket: $!";
		chmod 0600, "$dir/socket";
		refused("$dir/socket", qr/regular file|No such device/, 'a socket');
	}
	symlink 'loop', "$dir/loop";
	refused("$dir/loop", qr/symbolic links/, 'a link to itself');

	refused(auth_file("digest:ann:$SECRET\n", mode => $_), qr/group or world access/, sprintf 'mode %04o', $_)
	  for 0640, 0620, 0610, 0604, 0602, 0601, 0777;
	symlink auth_file("digest:ann:$SECRET\n", mode => 0644), "$dir/link-to-open";
	refused("$dir/link-to-open", qr/group or world access/, 'a link to a file that others may read');
	refused('/etc/passwd', qr/group or world access/, "root's, that others may read");
	refused('/etc/shadow', qr/Permission denied/, "root's, that we may not read") if $> != 0 && !-r '/etc/shadow';
	refused(auth_file("digest:ann:$SECRET\n", mode => 0000), qr/permission denied/i, 'one that we may not read ourselves') if $> != 0;

	# 2 GB without using any disk space
	my $huge = auth_file("digest:ann:$SECRET\n");
	truncate $huge, 2 << 30 or die "huge: $!";
	refused($huge, qr/is too large/, 'a huge file');
	refused('x' x 5000, qr/File name too long/, 'a name that is too long');
};

subtest 'files that are taken' => sub {
	accepted(auth_file("digest:ann:$SECRET\n", mode => $_), ["ann:$SECRET"], sprintf 'mode %04o', $_) for 0600, 0400, 0700;
	symlink auth_file("digest:ann:$SECRET\n"), "$dir/link";
	accepted("$dir/link", ["ann:$SECRET"], 'a link to a good file');
	# (not in that directory, in which no secret is to be found)
	auth_file("digest:rel:$SECRET\n", dir => $dir, name => 'relative');
	symlink "$dir/relative", $node->data_dir . '/zklock.auth';
	accepted('zklock.auth', ["rel:$SECRET"], 'a name without a directory is in the data directory');
	my $name = "m\xc3\xbcller 'kennw\xc3\xb6rter'";
	auth_file("digest:umlaut:$SECRET\n", dir => $dir, name => $name);
	accepted("$dir/$name" =~ s/'/''/gr, ["umlaut:$SECRET"], 'a name beyond ASCII');
	my $s = zk_session($node, options => '-c client_encoding=LATIN1');
	$s->value("SET zklock.auth_file = '$dir/m\xfcller ''kennw\xf6rter'''");
	is_deeply(known_as($s), creator_acl("umlaut:$SECRET"), '- as a client of another encoding types it');
};

# ---------------------------------------------- refused by ZooKeeper, and recovery

subtest 'a credential that ZooKeeper does not accept' => sub {
	foreach (
		[ 'an unknown scheme', "bogus:ann:$SECRET\n" ],
		[ 'a good one, then one of an unknown scheme', "digest:ann:$SECRET\nbogus:$OTHER\n" ],
		[ 'the other way round', "bogus:$OTHER\ndigest:ann:$SECRET\n" ],
		[ 'a scheme that is none of a client\'s', "world:$OTHER\n" ])
	{
		my ($name, $content) = @$_;
		my $file = auth_file($content);
		# ZooKeeper cuts the connection and keeps the session, until it expires
		my $connections = $zk->mntr_value('num_alive_connections');
		my $s = session_with_file($file);
		$s->value(q{SET zklock.session_timeout = '2s'});
		for (1 .. 3)
		{
			my $result = $s->query("SELECT zk_lock('/unknown')");
			is($result->{state}, '28000', "$name: 28000, time $_") or diag $result->{err};
			like($result->{hint}, qr/zklock\.auth_file/, '- with a hint');
			in_time($result->{seconds}, $AT_ONCE, '- at once');
		}
		goes_on($s, $name);
		my $cpu = zk_cpu_seconds($s->pid);
		zk_until(sub { $zk->mntr_value('num_alive_connections') <= $connections }, 'no connection more than before');
		my $began = time;
		$admin->value('SELECT pg_sleep(0.5)');
		cmp_ok(zk_cpu_seconds($s->pid) - $cpu, '<', 0.1 * (time - $began) + 0.1, '- and nothing spins');

		# the same setting with other contents of the file
		$s->value('RESET zklock.session_timeout');
		auth_file("digest:ann:$OTHER\n", dir => $file =~ s{/[^/]*$}{}r, name => $file =~ s{.*/}{}r);
		is_deeply(known_as($s), creator_acl("ann:$OTHER"), '- mended: the next call reads it');
	}
	is_deeply([ grep { m{/unknown} } $zk->tree('/zklock') ], [], 'none of these made anything');
};

# ------------------------------------------------------------- when it is read

subtest 'when the file is read' => sub {
	my $file = auth_file("digest:old:$SECRET\n", dir => $dir, name => 'changing');
	my ($holder, $idle) = map { session_with_file($file) } 1 .. 2;
	is_deeply(known_as($_), creator_acl("old:$SECRET"), 'known by what the file says') for $holder, $idle;
	$holder->value("SELECT zk_lock('/holding')");
	my $id = $holder->value('SELECT session_id FROM zk_session');

	auth_file("digest:new:$SECRET\n", dir => $dir, name => 'changing');
	is_deeply(known_as(session_with_file($file)), creator_acl("new:$SECRET"), 'another content: a new session is known by that');
	is_deeply(known_as($holder), creator_acl("old:$SECRET"), '- and one that is open by the old one');
	is_deeply(known_as($idle), creator_acl("old:$SECRET"), '- even if it holds nothing');

	unlink $file;
	is_deeply(known_as($holder), creator_acl("old:$SECRET"), 'the file removed: a session that is open goes on');
	is(session_with_file($file)->query("SELECT zk_lock('/gone')")->{state}, 'F0000', '- and a new one does not');

	# another setting
	$holder->value("SET zklock.auth_file = '$good'");
	is_deeply(known_as($holder), creator_acl("old:$SECRET"), 'another setting has no effect on a session that holds a lock');
	is($holder->value('SELECT session_id FROM zk_session'), $id, '- which is the same');
	is($holder->value("SELECT zk_unlock('/holding')"), 't', '- until it holds none');
	is_deeply(known_as($holder), creator_acl($GOOD), '- and then on the next call');
	isnt($holder->value('SELECT session_id FROM zk_session'), $id, '- in a new session');
	$holder->value("RESET zklock.auth_file; SET zklock.acl = 'world'; SET zklock.auth_file = ''");
	is_deeply(known_as($holder), world_acl(), 'no file, no credentials');

	# for all sessions, by a reload
	$node->append_conf('postgresql.conf', "zklock.auth_file = '$good'");
	my $s = zk_session($node);
	$node->reload;
	zk_until(sub { $s->value('SHOW zklock.auth_file') eq $good }, 'the reload');
	is_deeply(known_as($s), creator_acl($GOOD), 'a reload is enough');
};

sub alter_system
{
	my ($name, $value) = @_;
	$admin->value('ALTER SYSTEM ' . (defined $value ? "SET zklock.$name = '$value'" : "RESET zklock.$name"));
	my $was = $admin->value("SHOW zklock.$name");
	$node->reload;
	zk_until(sub { my $is = $admin->value("SHOW zklock.$name"); defined $value ? $is eq $value : $is ne $was }, 'the reload');
	return;
}

# This does not count as a user's attempt to get rid of it
subtest 'a setting is removed from the configuration' => sub {
	my %value = (node_style => 'kazoo', acl => 'world', root => '/elsewhere');
	foreach my $name (sort keys %value)
	{
		alter_system($name, $value{$name});
		my $s = zk_session($node);
		alter_system($name);
		zk_until(sub { $s->value("SHOW zklock.$name") ne $value{$name} }, 'the reload');
		is($s->query("SELECT zk_lock('/taken-out-$name')")->{state}, '', "zklock.$name, set and reset for the whole server");
	}
};

# ------------------------------------------------------- credentials are resent

# What a session held before an interruption it may release after it
sub keeps_its_rights
{
	my ($s, $interrupt, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $path = '/rights-' . ++$last_number;
	$s->value("SELECT zk_lock('$path'), zk_lock_shared('$path/s'), zk_semaphore_acquire('$path/p', 2)");
	my ($id, $reconnections) = split /\|/, $s->value('SELECT session_id, reconnections FROM zk_session');
	$s->value('CREATE TEMP TABLE IF NOT EXISTS t (); BEGIN');
	$s->value("SELECT zk_xact_lock('$path/x'); INSERT INTO t DEFAULT VALUES");
	$interrupt->();
	zk_until(sub { $s->value('SELECT reconnections FROM zk_session') > $reconnections }, 'the reconnection');
	my $commit = $s->query('SET LOCAL zklock.commit_guard = strict; COMMIT');
	is($commit->{state}, '', "$name: the transaction commits") or diag $commit->{err};
	is($s->value("SELECT string_agg(DISTINCT state, ' ') FROM zk_locks"), 'held', '- its locks are held');
	is($s->value('SELECT session_id FROM zk_session'), $id, '- in the same session');
	my $result = $s->query("SELECT zk_unlock('$path'), zk_unlock_shared('$path/s'), zk_semaphore_release('$path/p')");
	is("$result->{out} @{ $result->{warnings} }", 't|t|t ', '- and can be given back, without a warning');
	return;
}

my $proxy = ZkProxy->new($zk);

subtest 'several credentials, and connections that are cut' => sub {
	my $file = auth_file("digest:ann:$SECRET\ndigest:bob:$OTHER\n");
	my $s = zk_session_with($node, auth_file => $file, hosts => $proxy);
	my %cut = (
		'cut' => sub { $proxy->drop },
		# an answer to a credential that never arrives, one that arrives late
		'cut while it says who it is' => sub { $proxy->swallow_and_drop('auth'); $proxy->drop },
		'answers to credentials are late' => sub {
			$proxy->hold('auth');
			$proxy->drop;
			$proxy->wait_held;
			$proxy->release;
		});
	foreach my $name (sort keys %cut)
	{
		keeps_its_rights($s, $cut{$name}, $name);
		is_deeply(known_as($s), creator_acl("ann:$SECRET", "bob:$OTHER"), '- known by both');
	}

	# on the first connection, too
	$proxy->swallow_and_drop('auth');
	is_deeply(known_as(zk_session_with($node, auth_file => $file, hosts => $proxy)), creator_acl("ann:$SECRET", "bob:$OTHER"), 'cut at the first connection');
};

# ZooKeeper writes all identities of a session into the ACL of each node, and
# the client library sends all of them on each connection.
subtest 'many credentials, and many locks' => sub {
	my @ids = map { "user$_:" . "long $SECRET " x 5 } 10 .. 25;
	my $s = zk_session_with($node, auth_file => auth_file(join '', map { "digest:$_\n" } @ids), hosts => $proxy);
	my $all = sub { my ($n) = @_; return "zk_lock_many(ARRAY(SELECT '/many/' || i FROM generate_series(1, $n) i))" };
	my $result = $s->query('SELECT ' . $all->(1000));
	ok($result->{state} eq '54000' || $result->{out} eq 't', 'a thousand at once: too many, or had') or diag $result->{err};
	$s->value('SELECT zk_unlock_all()');
	is($s->value('SELECT ' . $all->(100)), 't', 'a hundred at once: had');
	my ($one) = $zk->children('/zklock/many/100');
	is_deeply([ sort { $a->[2] cmp $b->[2] } $zk->acl("/zklock/many/100/$one") ], creator_acl(@ids), '- closed but for all of these');
	keeps_its_rights($s, sub { $proxy->drop }, 'cut');
	is($s->value('SELECT zk_unlock_all()'), '100', '- and all can be given back');
};

subtest 'a server that wants everybody to say who they are' => sub {
	my $strict = ZooKeeper->new(
		superuser => 1,
		config => { 'enforce.auth.enabled' => 'true', 'enforce.auth.schemes' => 'digest' })->start;
	$strict->create('/zklock');
	my $door = ZkProxy->new($strict);

	# (without any: t/024)
	my $s = zk_session_with($node, hosts => $door, acl => 'world');
	is_deeply(known_as($s, $strict), world_acl(), 'with credentials: a lock, though open to all');

	$s = zk_session_with($node, hosts => $door, session_timeout => '60s');
	keeps_its_rights($s, sub { $door->drop }, 'cut');
	keeps_its_rights($s, sub { $strict->restart }, 'restart');
	keeps_its_rights($s, sub { $strict->kill9; $strict->start }, 'kill -9');
	is_deeply(known_as($s, $strict), creator_acl($GOOD), 'what it makes then is as before');
	$s->quit;
	zk_nothing_left($strict, 'nothing is left');
};
zk_nothing_left($zk, 'nothing is left');

# ----------------------------------------------------- who may set and see it

$admin->value('CREATE ROLE worker LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_read_all_settings');
$admin->value('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO worker, watcher');

# (The ways to set what is a superuser's: sql/arguments)
subtest 'who may set and see it' => sub {
	my $file = auth_file("digest:evil:$SECRET\n");
	is($admin->value('SHOW zklock.auth_file'), $good, 'a superuser sees it');
	my $s = zk_session($node, user => 'worker');
	is_deeply(known_as($s), creator_acl($GOOD), 'a user works with what the administrator set');
	is($s->query($_)->{state}, '42501', "- but not: $_")
	  for 'SHOW zklock.auth_file', q{SELECT current_setting('zklock.auth_file', true)}, 'SET zklock.auth_file TO DEFAULT', 'SET zklock.acl = world';
	unlike($s->query("$_")->{out}, qr/\Q$good\E/, "- nor by $_") for 'SHOW ALL', 'SELECT * FROM pg_settings';
	my $watcher = zk_session($node, user => 'watcher');
	is($watcher->value('SHOW zklock.auth_file'), $good, 'who may read all settings sees the name');
	is($watcher->query(q{SET zklock.auth_file = ''})->{state}, '42501', '- and may not change it');

	# Options of the connection are applied before the library knows who may set
	# these settings, and they make PostgreSQL forget the administrator's
	# values.
	$admin->value("ALTER ROLE worker SET zklock.root = '/zklock/worker'");
	foreach my $setting ("auth_file=$file", 'auth_file=', 'acl=world', 'acl=nonsense', 'root=/zklock', 'root=/', 'hosts=127.0.0.1:1', 'node_style=kazoo')
	{
		is(zk_session($node, user => 'worker', options => "-c zklock.$setting")->query("SELECT zk_lock('/sly')")->{state}, '42501',
			"a connection with zklock.$setting does not have its way");
	}
	# nor when the configuration is reloaded, which knows of no role
	my $sly = eval { zk_session($node, user => 'worker', options => '-c zklock.root=/x') };
	alter_system(root => '/zklock/all');
	my $lock = $sly && $sly->query("SELECT zk_lock('/sly')");
	ok(!$sly || $lock->{state} ne '' || $sly->value('SHOW zklock.root') eq '/zklock/worker', '- nor by waiting for a reload');
	alter_system('root');
	$admin->value('ALTER ROLE worker RESET zklock.root');

	# an error names the file only to those who may see the setting
	foreach my $bad ("$dir/nowhere", auth_file("digest\n", mode => 0640))
	{
		$admin->value("ALTER ROLE worker SET zklock.auth_file = '$bad'");
		my $result = zk_session($node, user => 'worker')->query("SELECT zk_lock('/x')");
		is($result->{state}, 'F0000', 'a bad file: refused');
		unlike($result->{err}, qr/nowhere|\Q$dir\E|\bauth\.\w|file\d/, '- without the name of the file') or diag $result->{err};
	}
	$admin->value('ALTER ROLE worker RESET zklock.auth_file');
};

subtest 'a credential for each role' => sub {
	my $bob = auth_file("digest:bob:$SECRET\n");
	$admin->value("CREATE ROLE bob LOGIN; GRANT bob TO worker; ALTER ROLE bob SET zklock.auth_file = '$bob'; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO bob");
	is_deeply(known_as(zk_session($node, user => 'bob')), creator_acl("bob:$SECRET"), 'one has a credential');
	my $s = zk_session($node, user => 'worker');
	$s->value('SET ROLE bob');
	is_deeply(known_as($s), creator_acl($GOOD), 'the login role counts: SET ROLE brings no other one');

	# where the library is only loaded by the first call, nothing has checked
	# before whether a user may set it
	$admin->value('CREATE DATABASE team');
	$node->safe_psql('team', 'CREATE EXTENSION zklock; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO PUBLIC');
	$admin->value("ALTER DATABASE team SET session_preload_libraries = 'plpgsql'");
	$s = zk_session($node, user => 'worker', dbname => 'team');
	$s->query("SET zklock.auth_file = '" . auth_file("digest:evil:$SECRET\n") . q{'});
	is_deeply(known_as($s), creator_acl($GOOD), 'not preloaded: what a user has set is not taken');
	is_deeply(known_as(zk_session($node, user => 'bob', dbname => 'team')), creator_acl("bob:$SECRET"), '- and what the administrator has set is');
};

# ------------------------------------------------------------ it is nowhere

$admin->value(q{ALTER ROLE worker SET zklock.session_timeout = '4s'});    # one of its sessions will crash
my $holder = zk_session($node, user => 'worker', options => '-c client_min_messages=debug5');
$holder->value("SELECT zk_lock('/held'), zk_lock_shared('/read'), zk_semaphore_acquire('/places', 1), zk_lock_many('{/m/1,/m/2}')");
is_deeply([ $zk->acl('/zklock/held') ], creator_acl($GOOD), 'locks are held with that credential');

# (What goes wrong before that is above.)
subtest 'bad luck' => sub {
	my $s = zk_session_with($node, hosts => $proxy, session_timeout => '4s', connect_timeout => '1s');
	$s->value("CREATE TABLE t (); SET client_min_messages = debug5; SET zklock.connect_timeout = '20s'; SELECT zk_lock('/luck')");
	$s->value('BEGIN; INSERT INTO t DEFAULT VALUES');
	$proxy->cut_off;
	zk_wait_hold($s, 'lost', '/luck');
	is($s->query('COMMIT')->{state}, '40001', 'a session that has expired');
	is($s->query("SELECT zk_unlock('/luck')")->{out}, 'f', '- its lock was lost');
	is($s->query("RESET zklock.connect_timeout; SELECT zk_lock('/luck')")->{state}, '58000', 'nobody to be reached');
	$proxy->blackhole;
	is($s->query("SELECT zk_lock('/luck')")->{state}, '58000', 'nobody who answers');
	$proxy->pass;
	is($s->query("SET zklock.connect_timeout = '20s'; SELECT zk_lock('/luck')")->{out}, 't', 'and again somebody');
	$s->query($_) for 'SELECT pg_log_backend_memory_contexts(pg_backend_pid())', 'SELECT * FROM zk_session', 'SHOW zklock.auth_file', 'DISCARD ALL';
	is(zk_session_with($node, auth_file => auth_file("digest:ann:$OTHER\n"))->query("SELECT zk_lock('/held')")->{state}, '42501', 'another credential');
};

# Queries contain the words in two pieces, so that the search does not find itself.
subtest 'settings, catalogs, statistics' => sub {
	# (no regular expression: since version 16 a backend caches those that it
	# knows, and would show them)
	my $list = join ', ', map { my $needle = $_; substr($needle, length($needle) / 2, 0) = q{' || '}; "'$needle'" } @needles;
	foreach my $user ('postgres', 'worker')
	{
		my $s = zk_session($node, user => $user);
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
		no_secret('- nor SHOW ALL', $s->query('SHOW ALL')->{out});
	}
	my ($dump) = run_command([ 'pg_dumpall', '-d', $node->connstr('postgres') ]);
	like($dump, qr/zklock\.auth_file/, 'a dump has the setting');
	no_secret('- and not the secret', $dump);
};

subtest 'processes' => sub {
	my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
	my @pids = ($postmaster, split /\n/, $admin->value('SELECT pid FROM pg_stat_activity'));
	cmp_ok(@pids, '>', 3, 'processes');
	no_secret('- their titles and environments', map { eval { slurp_file($_) } // () } map { glob "/proc/$_/{cmdline,environ,comm,status,stack,syscall}" } @pids);
	is_deeply([ grep { defined && m{/auth\.\w+/} } map { readlink } map { glob "/proc/$_/fd/*" } @pids ], [], '- and none has such a file open');
	# what ps shows of all processes; a bare Debian has no ps
	no_secret('all processes', map { eval { slurp_file($_) } // () } glob '/proc/[0-9]*/cmdline');
};

subtest 'nodes' => sub {
	my $client = $zk->client;
	my @paths = $zk->tree('/zklock');
	cmp_ok(scalar @paths, '>', 2, 'nodes');
	no_secret('- their names and data', @paths, map { eval { $client->get($_) } // () } @paths);
	$client->close;
};

subtest 'a backend that crashes' => sub {
	my $s = zk_session($node, user => 'worker');
	$s->value("SELECT zk_lock('/crash')");
	zk_kill($node, $s->pid, 'ABRT');
	$_->query('SELECT 1') for $s, $holder, $admin;
	$_->kill9 for $s, $holder, $admin;
	like(slurp_file($node->logfile), qr/terminated by signal 6/, 'it has crashed');
};
$node->stop;
no_secret('no message told it', @said);
cmp_ok(length join('', @said), '>', 100_000, '- of many');

subtest 'files' => sub {
	my (@texts, $bytes);
	File::Find::find({ no_chdir => 1, wanted => sub { push @texts, eval { slurp_file($_) } // () if -f && !-l && !m{/core[^/]*$} } }, $node->basedir);
	$bytes += length for @texts;
	cmp_ok(@texts, '>', 500, 'files of the server');
	cmp_ok($bytes, '>', 10_000_000, '- with some bytes');
	no_secret('- and none has it', @texts);
	my $log = slurp_file($node->logfile);
	like($log, qr/DEBUG:/, 'the log is one of all levels');
	like($log, qr/zk_lock\('\/refused'\)/, '- and statements');
	no_secret('- and does not have it', $log);
};

zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
