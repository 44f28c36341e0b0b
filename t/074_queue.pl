# What looks at everybody's locks: zk_lock_queue (all contenders for a lock, of whichever
# client, in order, with the holders) and zk_lock_paths (every lock below a path, with its
# first contender): in a few round trips however many there are; never an error whatever
# others have written; while they come and go; and when ZooKeeper does not answer.
#
# zk_lock_break: a user with the privilege removes a contender, of whichever client; what
# the caller and the log are told, and what can go wrong on the way.  (Who is next then:
# specs/queues; what one session sees: sql/queue.)

use FindBin;
use lib "$FindBin::RealBin/lib";

use Encode qw(encode);
use JSON::PP;
use Sys::Hostname;

use Auth;
use Peer;
use Tests;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1;

my $UUID = '0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1';

# What zklock's nodes say of their session
my @IDENTITY = qw(host port cluster_name pid datname usename application_name);

# Of other clients' data at least this many bytes are shown.
my $KEPT = 2000;

# ZK_LOCK_PATHS=10000 dev/test -v t/074_queue.pl: more of them
my $MANY = $ENV{ZK_LOCK_PATHS} // 200;

my $zk = ZooKeeper->new(superuser => 1)->start;
# on a busy machine a server takes a while to restart
my $node = zk_cluster('main', $zk, 'zklock.operation_timeout' => '30s', 'zklock.session_timeout' => '30s');
my @databases = qw(postgres latin1 sql_ascii);
foreach my $database (@databases[ 1, 2 ])
{
	$node->safe_psql('postgres', "CREATE DATABASE $database ENCODING '\U$database\E' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
	$node->safe_psql($database, 'CREATE EXTENSION zklock');
}
$ENV{PGCLIENTENCODING} = 'UTF8';

my $admin = zk_session($node);
my $other = $zk->client;

# Other clients, which are slow to start
my %peer = map { $_ => Peer->new($_, $zk, no_wait => 1) } qw(kazoo curator);

sub contenders { return $other->contenders("/zklock$_[0]"); }

# Start that, and wait until there are this many contenders
sub joins
{
	my ($path, $n, $code) = @_;
	$code->();
	zk_until(sub { contenders($path) == $n }, "$n contenders on $path");
	return;
}

sub session_named
{
	my ($name, %setting) = @_;
	my $s = zk_session_with($node, %setting);
	$s->value("SET application_name = '$name'");
	return $s;
}

# The rows of zk_lock_queue, each a hash by the names of the columns; "since" is in ms since
# 1970, and a column that is NULL is undef.  Texts are characters.
sub queue_of
{
	my ($s, $path) = @_;
	my @rows = map { decode_json($_) } split /\n/,
	  $s->value(qq{SELECT to_json(q) FROM (SELECT position, kind, mode, granted, token, zk_session, node, data,
		(extract(epoch FROM since) * 1000)::bigint AS since, @{[ join ', ', @IDENTITY ]} FROM zk_lock_queue('$path')) q});
	$_->{granted} = $_->{granted} ? 1 : 0 for @rows;
	return @rows;
}

# One test, for a queue that does not change: its rows are these, each as "shared holds" or
# "exclusive waits", numbered in each kind, and ZooKeeper says the same of each node.
# Returns them.
sub queue_is
{
	my ($s, $path, $name, @expected) = @_;
	my @rows = queue_of($s, $path);
	my (@shown, %position);
	foreach my $row (@rows)
	{
		my $stat = $other->exists("/zklock$path/" . encode('UTF-8', $row->{node})) // {};
		my %true = (
			position => ++$position{ $row->{kind} },
			token => $stat->{czxid} // 0,
			zk_session => sprintf('0x%x', $stat->{ephemeralOwner} // 0),
			since => $stat->{ctime} // 0);
		my @wrong = map { "$_ $row->{$_} for $true{$_}" } grep { $row->{$_} ne $true{$_} } sort keys %true;
		push @shown, "$row->{mode} " . ($row->{granted} ? 'holds' : 'waits') . "@wrong";
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join(', ', @shown), join(', ', @expected), $name);
	return @rows;
}

# The rows of zk_lock_paths, in the order of the paths: "path kind contenders holders whose"
sub paths_of
{
	my ($s, $prefix) = @_;
	my $argument = defined $prefix ? "'$prefix'" : '';
	return split /\n/, $s->value(<<~"SQL");
		SELECT concat_ws(' ', path, coalesce(kind, '-'), coalesce(contenders::text, '-'), coalesce(holders::text, '-'), coalesce(data, application_name, '-'))
		FROM zk_lock_paths($argument) ORDER BY path COLLATE "C", kind
		SQL
}

# The new part of the log
my $log_at = -s $node->logfile;

sub new_log
{
	my $log = slurp_file($node->logfile, $log_at);
	$log_at = -s $node->logfile;
	return $log;
}

# Break that row: the result, with its notices
sub break_row
{
	my ($s, $path, $row) = @_;
	my $name = $row->{node} =~ s/'/''/gr;
	my $result = $s->query("SELECT zk_lock_break('$path', '$name')");
	$result->{notices} = [ $result->{err} =~ /^(?:psql:\S+ )?NOTICE:  \w{5}: (.*)$/mg ];
	return $result;
}

# Tests: it is broken, and the caller and the log are told whose it was, in
# these words and with the node's name.
sub breaks
{
	my ($name, $path, $row, @words) = @_;
	new_log();
	my $result = break_row($admin, $path, $row);
	is($result->{out}, 't', "$name: removed");
	is(scalar @{ $result->{notices} }, 1, '- one NOTICE');
	my @line = grep { /LOG:/ && /\Q$row->{node}\E/ } split /\n/, my $log = new_log();
	is(scalar @line, 1, '- one LOG line with the name of the node') or diag($log);
	foreach my $word ($path, @words)
	{
		like($result->{err}, qr/\Q$word\E/, "- the notice has: $word");
		like($log, qr/\Q$word\E/, '- and the log');
	}
	ok(!$other->exists("/zklock$path/" . encode('UTF-8', $row->{node})), '- it is gone');
	is(break_row($admin, $path, $row)->{out}, 'f', '- again: false');
	unlike(new_log(), qr/LOG:.*\Q$row->{node}\E/, '- about which the log says nothing');
	return;
}

# ------------------------------------------------------------- whoever it is

# They hold when it says so; and each is broken in turn.  (Which names are a contender's, and
# who holds: t/c/protocol_test.)
subtest "Curator's mutex, kazoo's lock and SQL" => sub {
	is($_->wait, 'ready', $_->kind . ' is there') for values %peer;
	my $identifier = "kazoo \x{20ac} \\ {\"a\": [1]} 'x'";
	is($peer{kazoo}->ask(encode('UTF-8', "identify $identifier")), 'ok', 'with a name of its own');
	# one that notices a loss soon; a statement that looks at a lost lock is not to be canceled: that is t/034's
	my $s = session_named('SQL', session_timeout => '6s', cancel_on_loss => 'off');
	my @queue = (
		[ $peer{curator}, 'acquire /zklock/mixed 60000 mutex' ],
		[ $s, q{SELECT zk_lock('/mixed')} ],
		[ $peer{kazoo}, 'acquire /zklock/mixed 60000 pattern' ]);
	foreach my $n (1 .. @queue)
	{
		my ($who, $takes) = @{ $queue[ $n - 1 ] };
		joins('/mixed', $n, sub { $who->send($takes) });
	}
	my @rows = queue_is($admin, '/mixed', 'all of them', 'exclusive holds', 'exclusive waits', 'exclusive waits');
	is(join(' ', map { $_ // 'NULL' } @{ $rows[1] }{ @IDENTITY, 'data' }),
		join(' ', hostname(), $node->port, $node->name, $s->pid, 'postgres', $admin->value('SELECT session_user'), 'SQL', 'NULL'), "whose SQL's is");
	is($rows[2]{data}, $identifier =~ s/\\/\\\\/gr, "kazoo's identifier");
	foreach my $i (0 .. $#queue)
	{
		my $who = $queue[$i][0];
		my $token = $who == $s ? $s->wait->{out} eq 't' && $s->value('SELECT token FROM zk_locks') : $who->acquired($who->wait);
		is($token, $rows[$i]{token}, "number $i holds it, with that token");
		is(scalar(grep { $queue[$_][0]->is_done } $i + 1 .. $#queue), 0, 'and nobody else');
		# and no tag in between
		breaks("number $i", '/mixed', $rows[$i], "The node belongs to ZooKeeper session $rows[$i]{zk_session}"
			  . ($who == $s ? ', host "' . hostname() . '", port "' . $node->port . '", cluster_name "main", pid "' . $s->pid . '"' : ''),
			$who == $s ? qw(postgres SQL) : ());
	}
	zk_wait_hold($s, 'lost');
	$s->query('SELECT zk_unlock_all()');
	# they may or may not have noticed
	$peer{curator}->ask('release /zklock/mixed mutex');
	$peer{kazoo}->ask('release /zklock/mixed pattern');
	$_->quit for $s, values %peer;
	%peer = ();
};

# ---------------------------------------------------------------- what they say

# The bytes that a column shows as text: a byte that cannot be shown is \xNN.
sub bytes_of
{
	my ($text) = @_;
	utf8::encode($text);
	$text =~ s/\\x([0-9a-fA-F]{2})|\\(\\)/defined $1 ? chr hex $1 : $2/ge;
	return substr $text, 0, $KEPT;
}

# Whatever it is, it is shown as a row, and the bytes can be recovered from it.
subtest 'what others wrote' => sub {
	my @data = (
		'', 'x', ' ', "two\nlines\r\n", "tab\t", 'back\\slash', '\\x41', '\\\\n', '\\N', "quote ' \" \$1 %s {}", "NUL \0 inside", "\0",
		"\x00\x01\x02\x7f", "\x7f\0\1\1", "\xff\xfe", "half \xc3", "\xc3\xa9", "\xe9", encode('UTF-8', "\x{20ac} \x{1f512}"),
		"\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe3\x83", "\xef\xbf\xbf", "\xc2\x80", join('', map { chr } 0 .. 255),
		pack('w/a*', 'x' x 300), 'z' x 100_000, "\xff" x 20_000, 'e' x 1_040_000,
		# almost ours
		'shared', "shared\nczxid 1", 'zklock', "zklock \n", "zklockx\npid 1", "Zklock\npid 1", "\nzklock\npid 1", "zklock\0pid 1");
	$other->contend('/zklock/data', '_c_other-lock-', data => $_) for @data;
	foreach my $database (@databases)
	{
		my $s = zk_session($node, dbname => $database);
		my @rows = queue_is($s, '/data', "in $database", 'exclusive holds', ('exclusive waits') x $#data);
		is(join(' ', grep { bytes_of($rows[$_]{data} // '') ne substr $data[$_], 0, $KEPT } 0 .. $#data), '', 'as it was written');
		is(scalar(grep { ($_->{data} // 'NULL') eq '' } @rows), 0, 'what is empty is NULL');
		is(join('', map { $_ // '' } map { @$_{@IDENTITY} } @rows[ 0 .. 20 ]), '', 'and no more is known of them');
		# a terminal would interpret them: ESC, and the 8-bit control characters
		is(scalar(grep { ($_->{data} // '') =~ /[\0-\x1f\x7f-\x9f]/ } @rows), 0, 'no control character');
		is($rows[18]{data}, "\x{20ac} \x{1f512}", 'what can be shown is') if $database eq 'postgres';
		is($s->value('SELECT 1'), 1, 'and it goes on');
	}
	$other->delete_tree('/zklock/data');
};

# Lines that zklock never writes, after its own first one: they are read as far
# as they make sense, and are never an error.
subtest 'what others wrote in our form' => sub {
	my @data = map { "zklock\n$_" } (
		'', 'pid', 'pid ', 'pid x', 'pid -1', 'pid 1.5', 'pid 99999999999999999999', 'pid 2147483648', "pid 7\npid 8",
		'host', "host \xff", "host a\0b", 'host ' . 'h' x 100_000, "user \xe3\x83", 'user \\', 'user \\x41 \\q \\', "database \xed\xa0\x80",
		"host a\n\nuser b", "nonsense\nuser b", 'czxid', 'czxid x', 'czxid -1', 'czxid 99999999999999999999999', "\xff", "\0",
		"host a\r\nuser b", (map { "port$_" } '', ' ', ' x', ' 5432x', ' 54.32', ' 0x1538', ' 2147483648', ' 99999999999999999999'),
		"port x\nport 5431", "port\nport 5432", "port 5433\nport 5430", 'port -2147483648', "cluster_name \xff", 'tag', 'tag x', "tag 0123456789abcdef\nport 5434",
		'application_name', 'PID 7', "user \e[31mred\nhost \e]0;x\a\ndatabase \xc2\x9b31m");
	$other->contend('/zklock/form', "_c_$UUID-lock-", data => $_) for @data;
	foreach my $database (@databases)
	{
		my @rows = queue_of(zk_session($node, dbname => $database), '/form');
		is(scalar(grep { join('', grep { defined } values %$_) =~ /[\0-\x1f\x7f-\x9f]/ } @rows), 0, "in $database: no control character");
		is(join(' ', map { $_->{position} } @rows), join(' ', 1 .. @data), 'a row each, in order');
		is(join(' ', map { $_->{port} // () } @rows), '5432 5433 -2147483648 5434', 'a port is a number, in the first such line');
	}
	$other->delete_tree('/zklock/form');
};

# Names of the backend in other encodings: the lock is taken, and everybody can look.
subtest 'names in other encodings' => sub {
	# a line feed begins no new field; since PostgreSQL 19 no name has one
	my $odd = $admin->value(q{SELECT current_setting('server_version_num')}) < 190000 ? "\n" : "\x01";
	my @name = ([ latin1 => "caf\xe9 \\ ${odd}pid 1" ], [ sql_ascii => "\xe9\xff" ]);
	my @s;
	foreach (@name)
	{
		my ($database, $name) = @$_;
		local $ENV{PGCLIENTENCODING} = uc $database;
		push @s, my $s = zk_session($node, dbname => $database);
		$s->value(qq{CREATE ROLE "$name" SUPERUSER; SET SESSION AUTHORIZATION "$name"; SET application_name = 'in $database'});
		joins('/names', scalar @s, sub { $s->send(q{SELECT zk_lock('/names')}) });
	}
	is($s[0]->wait->{out}, 't', 'such a user takes a lock');
	foreach my $database (@databases)
	{
		is(join(' ', map { "$_->{pid} $_->{datname} $_->{application_name}" } queue_of(zk_session($node, dbname => $database), '/names')),
			join(' ', map { $s[$_]->pid . " $name[$_][0] in $name[$_][0]" } 0, 1), "$database shows both");
	}
	is((queue_of($admin, '/names'))[0]{usename}, sprintf("caf\x{e9} \\ \\x%02xpid 1", ord $odd), 'a name in LATIN1, but for its control character');
	$s[0]->value('SELECT zk_unlock_all()');
	is($s[1]->wait->{out}, 't', 'they exclude each other');
};

# (What zk_lock_queue shows of nodes of each kind, without their identity too: sql/queue)
subtest 'what a node says' => sub {
	my $s = session_named('one two');
	my $said = sub {
		my ($s, $more) = (@_, '');
		$s->value(qq{SELECT zk_lock('/said')$more});
		my ($data) = map { scalar $other->get($_) } $other->queue('/zklock/said');
		$s->value('SELECT zk_unlock_all()');
		return $data;
	};
	my $data = $said->($s);
	my ($tag) = $data =~ /^tag ([0-9a-f]{16})$/m;
	is($data, join("\n", 'zklock', "tag $tag", 'host ' . hostname(), 'port ' . $node->port, 'cluster_name ' . $node->name,
			'pid ' . $s->pid, 'database postgres', 'user ' . $s->value('SELECT session_user'), "application_name one two\n"), 'on: a tag, and the rest');

	# the tag is the backend's, whatever its settings, and no other's
	$s->value('SET zklock.publish_identity = off');
	is($said->($s), "zklock\ntag $tag\n", 'its tag stays');
	like($said->($s, q{, zk_lock_shared('/said'), zk_unlock('/said')}), qr/\Azklock\nshared\n(?:czxid \d+\n)?tag $tag\n\z/, '- of a reader that was a writer, too');
	my $quiet = session_named('secret name', publish_identity => 'off');
	like($said->($quiet), qr/^tag (?!$tag)[0-9a-f]{16}$/m, 'another has another');
	$_->quit for $quiet, $s;
};

# Sequence numbers that have run out do not give the order; transaction ids do.
subtest 'numbers that tell no order' => sub {
	$other->delete($other->contend('/zklock/worn'));
	$other->close;
	$zk->set_next_number('/zklock/worn' => 2**31 - 3);
	$other = $zk->client;
	# names whose order differs from that of their creation
	my @all = map { $other->contend('/zklock/worn', '_c_' . (50 - $_) . ($_ % 3 ? '-lock-' : '-shared-lock-'), data => "number $_") } 0 .. 7;
	push @all, map { $other->contend('/zklock/worn', "_c_$_" . substr($UUID, 1) . '-semaphore-2-', data => "number $_") } 9, 8;
	my @rows = queue_is($admin, '/worn', 'worn', 'shared holds',
		(map { ($_ % 3 ? 'exclusive' : 'shared') . ' waits' } 1 .. 7), ('semaphore holds') x 2);
	is(join(' ', map { $_->{data} =~ s/number //r } @rows), join(' ', 0 .. 7, 9, 8), 'in the order in which they came');
	is_deeply([ paths_of($admin, '/worn') ], [ '/worn lock 8 1 number 0', '/worn semaphore 2 2 number 9' ], 'zk_lock_paths agrees');
	my $s = zk_session($node);
	$s->send(q{SELECT zk_lock('/worn')});
	zk_until(sub { (queue_of($admin, '/worn'))[8]{host} }, 'one of ours');
	$other->delete($_) for @all[ 0 .. 7 ];
	is($s->wait->{out}, 't', 'one of ours has its turn');
	queue_is($admin, '/worn', 'and is shown', 'exclusive holds', ('semaphore holds') x 2);
	$s->quit;
	$other->delete($_) for @all[ 8, 9 ];
};

# ------------------------------------------------------------- zk_lock_paths

subtest 'zk_lock_paths: locks of several sessions, and of other clients' => sub {
	is_deeply([ paths_of($admin) ], [], 'nothing at all');
	my ($one, $two, $three) = map { session_named($_) } qw(one two three);
	my $before = time;
	$one->value(q{SELECT zk_lock('/jobs/nightly'), zk_lock_shared('/jobs'), zk_semaphore_acquire('/jobs/nightly', 2)});
	$two->value(q{SELECT zk_lock_shared('/jobs'), zk_semaphore_acquire('/jobs/nightly', 2), zk_lock_many('{/x/1,/x/2}')});
	$three->send(q{SELECT zk_lock('/jobs/nightly')});
	zk_wait_queued($zk, $three);
	$other->contend('/zklock/jobs2/a b', '_c_other-lock-', data => "by\thand");
	$other->contend('/zklock/jobs2/a b', 'x-12-');
	$other->create('/zklock/jobs2/no-lock', data => 'nothing');
	my @all = (
		'/jobs lock 2 2 one', '/jobs/nightly lock 2 1 one', '/jobs/nightly semaphore 2 2 one',
		'/jobs2/a b lock 2 1 by\x09hand', '/x/1 lock 1 1 two', '/x/2 lock 1 1 two');
	is_deeply([ paths_of($admin) ], \@all, 'all of them');
	is_deeply([ paths_of($admin, '/') ], \@all, '- which is what "/" means, too');
	is_deeply([ paths_of($admin, '/jobs') ], [ @all[ 0 .. 2 ] ], 'at a path and below it, not beside it');
	is_deeply([ paths_of($admin, '/x/2') ], [ $all[-1] ], 'at a path');
	is_deeply([ paths_of($admin, $_) ], [], "nothing at $_") for '/x/3', '/no/such', '/jobs2/no-lock';
	is($admin->value(<<~'SQL'), 't|t|t|t', 'the first contender is described as in zk_lock_queue');
		SELECT (p.zk_session, p.host, p.port, p.pid, p.datname, p.usename, p.application_name) IS NOT DISTINCT FROM
			(q.zk_session, q.host, q.port, q.pid, q.datname, q.usename, q.application_name),
			p.oldest_since = q.since, p.cluster_name IS NOT DISTINCT FROM q.cluster_name, p.data IS NULL
		FROM zk_lock_paths('/jobs') p, zk_lock_queue('/jobs') q WHERE p.path = '/jobs' AND q.position = 1
		SQL
	is($admin->value(q{SELECT host, pid, datname, usename IS NOT NULL FROM zk_lock_paths('/x/1')}),
		join('|', hostname(), $two->pid, 'postgres', 't'), '- and names the server and the process');
	is($admin->value("SELECT min(oldest_since) >= to_timestamp($before - 1) FROM zk_lock_paths()"), 't', 'since when');
	$one->quit;
	$three->wait;
	is_deeply([ paths_of($admin, '/jobs') ], [ '/jobs lock 1 1 two', '/jobs/nightly lock 1 1 three', '/jobs/nightly semaphore 1 1 two' ], 'the next has it');
	$_->quit for $two, $three;
	$other->delete_tree('/zklock/jobs2');

	my $s = session_named('single', node_style => 'single');
	my @single = map { "/single/$_" } qw(a b c/d);
	$s->value('SELECT ' . join ', ', map { "zk_lock('$_')" } @single);
	is_deeply([ paths_of($admin, '/single') ], [ map { "$_ lock 1 1 single" } @single ], 'single nodes');
	is_deeply([ paths_of($admin, $single[0]) ], ["$single[0] lock 1 1 single"], '- also if the prefix is one');
	is_deeply([ paths_of($admin, "$single[0]/x") ], [], '- with nothing below');
	$s->value('SELECT zk_unlock_all()');
	is_deeply([ paths_of($_, '/single') ], [], 'and an empty directory is none') for $admin, $s;
};

subtest 'zk_lock_paths: junk' => sub {
	# what no path leads to, or is no lock
	$other->create("/zklock$_") for '/junk', '/junk/dir', '/junk/dir/deep', '/junk/..x', '/junk/lock-0000000001x', "/junk/\x7e";
	$other->contend('/zklock/__zklock_waits__', 'lock-');
	$other->contend('/zklock/junk/__zklock_other__', 'lock-');
	$other->contend('/zklock/junk/_c_' . $UUID . '-lock-x', 'lock-');
	$other->create('/zklock/junk/dir/lock-0000000007', data => "\xff\xfe\0");
	$other->contend('/zklock/junk/dir/lock-0000000007', 'lock-');
	my $deep = '/zklock/junk' . '/d' x 40;
	$other->contend($deep, 'lock-');
	$other->contend('/zklock/junk/' . ('n' x 250) . ('/' . 'n' x 250) x 3, 'lock-');
	$other->contend('/zklock', 'lock-');
	my @rows = paths_of($admin);
	is_deeply(\@rows, ['/junk/dir lock 1 1 \xff\xfe\x00'], 'only what is a lock, whatever its node says') or diag explain \@rows;
	$other->delete_tree('/zklock/junk');
	$other->delete_tree('/zklock/__zklock_waits__');
	$other->delete_contenders('/zklock');

	# more than one level of ZooKeeper's own
	my $s = session_named('top', root => '/');
	$s->value(q{SELECT zk_lock('/top')});
	is_deeply([ grep { !m{^/zklock/} } paths_of($s) ], ['/top lock 1 1 top'], q{without a root, ZooKeeper's own nodes are left out});
	is($s->query(q{SELECT zk_lock_paths('/zookeeper')})->{state}, '22023', '- and refused');
	$s->quit;
	is_deeply([ paths_of($admin) ], [], 'another root is not seen');

	# characters that a database does not have
	my $wide = session_named('wide');
	$wide->value(qq{SELECT zk_lock(E'/\\u20ac/1'), zk_lock(E'/\\u00e9\\\\')});
	is_deeply([ paths_of(zk_session($node, dbname => 'latin1')) ], [ '/\xe2\x82\xac/1 lock 1 1 wide', "/\xc3\xa9\\ lock 1 1 wide" ],
		'a path that cannot be converted is escaped');
};

subtest 'zk_lock_paths: what is closed, and arguments' => sub {
	my $file = auth_file("digest:ann:leaves\n");
	my $ann = session_named('ann', auth_file => $file, acl => 'creator');
	$other->create('/zklock/mixed') unless $other->exists('/zklock/mixed');
	$ann->value(q{SELECT zk_lock('/closed/a')});
	my $node_of_ann = $other->contend('/zklock/mixed', 'lock-', acl => creator_acl('ann:leaves'), data => 'secret');
	my ($closed) = map { (split / /)[0] } grep { / - - - -$/ } paths_of($admin);
	like($closed, qr{^/closed}, 'a directory that is closed to us is shown, and nothing of it');
	is_deeply([ grep { /mixed/ } paths_of($admin) ], ['/mixed lock 1 1 -'], 'of a node that is closed, not what it says');
	# since ZooKeeper 3.8.4 and 3.9.2 not even that (ZOOKEEPER-2590)
	like($admin->value(q{SELECT zk_session IS NOT NULL, oldest_since IS NOT NULL, host IS NULL FROM zk_lock_paths('/mixed')}),
		qr/^([tf])\|\g1\|t$/, '- but whose it is, and since when, where that can be known');
	is($admin->query("SELECT * FROM zk_lock_paths('$closed')")->{state}, '42501', 'asked for what is closed: 42501');
	is_deeply([ grep { /closed/ } paths_of($ann) ], ['/closed/a lock 1 1 ann'], 'who may look sees it');
	$other->delete($node_of_ann);
	$ann->quit;
	my $owner = $zk->client;
	$owner->add_auth('digest', 'ann:leaves');
	$owner->delete_tree('/zklock/closed');
	$owner->close;

	is($admin->query('SELECT zk_lock_paths(NULL)')->{state}, '22004', 'NULL');
	is($admin->query("SELECT zk_lock_paths('$_')")->{state}, '22023', "'$_'") for '', 'a', '/a/', '//', '/a//b', '/__zklock_waits__';
	is($admin->value(q{BEGIN READ ONLY; SELECT count(*) FROM zk_lock_paths(); COMMIT}), '0', 'in a read-only transaction');
};

# ------------------------------------------------------------ while it changes

my @LISTS = ('getChildren', 'getChildren2');

subtest 'gone in between' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	my $queue = q{SELECT position, granted, data FROM zk_lock_queue('/between/a')};
	my $paths = q{SELECT path, contenders, holders, data FROM zk_lock_paths('/between') ORDER BY path};
	my $while_held = sub {
		my ($sql, $ops, $code) = @_;
		$proxy->hold_request($ops);
		$s->send($sql);
		$proxy->wait_held;
		$code->();
		$proxy->release;
		$proxy->reset;
		return $s->wait->{out};
	};
	my @name = map { $other->contend('/zklock/between/a', '_c_other-lock-', data => "number $_") } 0 .. 4;
	my $leave = sub { my @leaves = @name[@_]; return sub { $other->delete($_) for @leaves } };
	is($while_held->($queue, 'getData', $leave->(0)), "1|t|number 1\n2|f|number 2\n3|f|number 3\n4|f|number 4", 'the first leaves');
	is($while_held->($queue, 'getData', $leave->(2, 4)), "1|t|number 1\n2|f|number 3", 'two leave: those who are left have places without a gap');
	is($while_held->($paths, 'getData', $leave->(1)), '/between/a|1|1|number 3', 'zk_lock_paths, the first leaves: the next is shown');
	is($while_held->($queue, 'getData', $leave->(3)), '', 'all leave: no row');
	@name = map { $other->contend('/zklock/between/a', '_c_other-lock-', data => "number $_") } 0 .. 1;
	is($while_held->($paths, 'getData', $leave->(0, 1)), '', '- nor of zk_lock_paths');
	$other->contend('/zklock/between/a') for 1, 2;
	is($while_held->($paths, 'getData', sub { $other->delete_tree('/zklock/between/a') }), '', 'the directory vanishes');
	is($while_held->($paths, \@LISTS, sub { $other->delete_tree('/zklock/between') }), '', '- before it is listed');

	# A writer becomes a reader, with a node of another name, which the list does not show: who
	# waits for it must not be shown as a holder.
	foreach my $style (qw(curator curator_rw kazoo))
	{
		my ($holder, $writer) = map { session_named($_, node_style => $style) } qw(holder writer);
		my $path = "/between/$style";
		$holder->value("SELECT zk_lock('$path'), zk_lock_shared('$path')");
		my $token = $holder->value("SELECT zk_lock_token('$path')");
		is($while_held->($paths, 'getData', sub { $holder->value("SELECT zk_unlock('$path')") }), "$path|1|1|", "$style: a downgrade");
		$holder->value("SELECT zk_unlock_all(); SELECT zk_lock('$path'), zk_lock_shared('$path')");
		$token = $holder->value("SELECT zk_lock_token('$path')");
		joins($path, 2, sub { $writer->send("SELECT zk_lock('$path')") });
		is($while_held->("SELECT mode, granted, pid, token = $token FROM zk_lock_queue('$path')", 'getData', sub { $holder->value("SELECT zk_unlock('$path')") }),
			'shared|t|' . $holder->pid . "|t\nexclusive|f|" . $writer->pid . '|f', '- the reader holds, with the token that it had, and the writer waits');
		is_deeply([ paths_of($admin, $path) ], ["$path lock 2 1 holder"], '- as zk_lock_paths says');
		$holder->value('SELECT zk_unlock_all()');
		$writer->wait;
		$writer->value("SELECT zk_unlock_all(); SELECT zk_lock_shared('$path'), zk_lock('$path')");
		joins($path, 3, sub { $holder->send("SELECT zk_lock_shared('$path')") });
		is_deeply([ paths_of($admin, $path) ], ["$path lock 3 2 writer"], '- who upgrades holds twice, and a reader behind it does not');
		$writer->quit;
		$holder->wait;
		$holder->quit;
	}

	# one that comes back again and again, each time as somebody else
	$other->contend('/zklock/between/c');
	my $taken = 0;
	$proxy->hold_request('getData');
	$s->send(q{SELECT path, contenders, holders, data FROM zk_lock_paths('/between/c')});
	while (!$s->is_done && $taken++ < 20)
	{
		zk_until(sub { $s->is_done || $proxy->held }, 'a read');
		last if $s->is_done;
		my ($first) = $other->queue('/zklock/between/c');
		$other->contend('/zklock/between/c');
		$other->delete($first);
		$proxy->release;
		$proxy->hold_request('getData');
	}
	$proxy->reset;
	is($s->wait->{out}, '/between/c|1|1|', 'a queue whose first is always gone: a row without one');
	cmp_ok($taken, '<', 10, '- after a few tries');
	$s->quit;
	$other->delete_tree('/zklock/between');
};

# Those who look do so as often as they can; whoever locks is not disturbed.
subtest 'while they come and go' => sub {
	my @busy = map { session_named("busy $_") } 1 .. 4;
	$admin->value('CREATE TABLE seen ()');
	$_->send(<<~'SQL') for @busy;
		DO $$ BEGIN
			WHILE NOT EXISTS (SELECT FROM seen) LOOP
				CASE (random() * 3)::int
					WHEN 0 THEN PERFORM zk_lock('/busy/lock');
					WHEN 1 THEN PERFORM zk_lock_shared('/busy/lock');
					WHEN 2 THEN PERFORM zk_semaphore_acquire('/busy/lock', 2);
					ELSE PERFORM zk_lock('/busy/lock'), zk_lock_shared('/busy/lock'), zk_unlock('/busy/lock');
				END CASE;
				PERFORM zk_unlock_all(), zk_lock('/busy/' || (random() * 6)::int), zk_unlock_all();
			END LOOP;
		END $$
		SQL
	my ($looks, %sizes, @wrong) = (0);
	zk_until(
		sub {
			my ($rows, $wrong) = split /\|/, $admin->value(<<~'SQL');
				SELECT count(*), string_agg(q::text, ' ') FILTER (WHERE position <> n OR token <= before OR kind < kind_before
					OR granted <> CASE kind WHEN 'lock' THEN writers = 0 AND (mode = 'shared' OR n = 1) ELSE n <= 2 END
					OR NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = q.pid AND a.application_name = q.application_name AND q.application_name ~ '^busy'))
				FROM (SELECT *, row_number() OVER each AS n, lag(token) OVER each AS before, lag(kind) OVER (ORDER BY place) AS kind_before,
						count(*) FILTER (WHERE mode = 'exclusive') OVER (each ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS writers
					FROM zk_lock_queue('/busy/lock') WITH ORDINALITY AS l (position, kind, mode, granted, token, zk_session, since, node, host, port, cluster_name, pid,
						datname, usename, application_name, data, place)
					WINDOW each AS (PARTITION BY kind ORDER BY place)) q
				SQL
			$sizes{$rows}++;
			push @wrong, $wrong if $wrong;
			push @wrong, grep { !m{^/busy/(?:\d|lock) (?:lock|semaphore) [1-4] [0-4] (?:busy \d|-)$} } paths_of($admin, '/busy');
			return (++$looks > 100 && keys %sizes > 2) || grep { $_->is_done } @busy;
		},
		'the queue to be seen in three lengths');
	$admin->value('INSERT INTO seen DEFAULT VALUES');
	is(zk_few(@wrong), '', 'each row is possible');
	is(join(' ', map { $_->wait->{err} } @busy), ' ' x $#busy, 'who locks does so');
	note 'rows: reads ' . join ', ', map { "$_: $sizes{$_}" } sort { $a <=> $b } keys %sizes;
};

# --------------------------------------------------------------- what it costs

subtest 'zk_lock_queue: two round trips' => sub {
	# all of 300 requests are sent before the first answer, also where the machine stands still meanwhile
	my ($s, $proxy) = zk_counted_session($node, $zk, 250);
	my $cost = sub {
		my ($path) = @_;
		$proxy->clear_log;
		my $n = $s->value("SELECT count(*) FROM zk_lock_queue('$path')");
		my %count;
		$count{ (split / /)[0] }++ for $proxy->requests;
		# a list is only as new as the leader after a sync
		return { rows => $n, trips => $proxy->trips, reads => $count{getData} // 0, syncs => $count{sync} // 0,
			writes => scalar grep { !/^(?:sync|getChildren2?|getData)$/ } keys %count };
	};
	is_deeply($cost->('/nobody'), { rows => 0, trips => 1, reads => 0, syncs => 1, writes => 0 }, 'no such path: one round trip');
	my $zxid;
	foreach my $n (1, 2, 300)
	{
		$other->contend("/zklock/cost/$n") for 1 .. $n;
		$other->create("/zklock/cost/$n/config", data => 'not read');
		$zxid = $zk->zxid;
		is_deeply($cost->("/cost/$n"), { rows => $n, trips => 2, reads => $n, syncs => 1, writes => 0 }, "$n contenders: two");
	}
	is($zk->zxid, $zxid, 'and no write, nor anything that looks like one');
	is($zk->watch_count, 0, 'nor a watch');
	$s->quit;
	$other->delete_tree('/zklock/cost');
};

my $client = $zk->client(session_timeout => 600_000, timeout => 60);
my @many = map { sprintf '/zklock/many/%02d/%04d', $_ % 20, $_ } 1 .. $MANY;

subtest 'zk_lock_paths: round trips, requests and memory' => sub {
	$client->create('/zklock/many');
	$client->create_all('persistent', map { [ sprintf '/zklock/many/%02d', $_ ] } 0 .. 19);
	$client->create_all('persistent', map { [$_] } @many);
	$client->create_all('ephemeral', map { [ "$_/_c_other-lock-0000000000", 'by hand' ] } @many);
	my ($s, $proxy) = zk_counted_session($node, $zk, 5);
	my $count = q{SELECT count(*), count(DISTINCT path), min(data), max(holders) FROM zk_lock_paths('/many')};
	my $all = "$MANY|$MANY|by hand|1";
	is($s->value($count), $all, 'each once');
	my %n;
	$n{ (split / /)[0] }++ for $proxy->requests;
	is(($n{getChildren} // 0) + ($n{getChildren2} // 0), $MANY + 21, 'a list for each directory');
	is("$n{getData} $n{sync}", "$MANY 1", '- and a read for each lock, and one sync');
	cmp_ok($proxy->trips, '<=', 10 + 2 * $MANY / 100, 'many at a time: ' . $proxy->trips . ' round trips');
	is($zk->watch_count, 0, 'no watch');
	my $memory = sub { (slurp_file('/proc/' . $s->pid . '/status') =~ /^VmHWM:\s+(\d+)/m)[0] };
	my $first = $memory->();
	$s->value($count) for 1 .. 4;
	cmp_ok($memory->(), '<=', $first + 2048, 'nothing of it is kept');
	$proxy->delay_ms(0);
	foreach my $frame (50, 300)
	{
		$proxy->count_frames;
		$proxy->nth('reply', $frame, 'cut');
		is($s->value($count), $all, "the connection breaks in the middle of answer $frame: each comes once");
	}
	$s->quit;
	$proxy->reset;
};

# ------------------------------------------------------------ when it goes wrong

# Tests: it is canceled while it waits for the answer to this
sub canceled_at
{
	my ($s, $proxy, $op, $sql) = @_;
	$proxy->hold($op);
	$s->send($sql);
	$proxy->wait_held;
	zk_wait_waiting($admin, $s);
	my $began = time;
	is($s->cancel($admin)->{state}, '57014', 'canceled while it waits for ' . (ref $op ? $op->[0] : $op));
	in_time(time - $began, $SLACK, '- at once');
	$proxy->release;
	$proxy->reset;
	return;
}

foreach my $ask ([ q{SELECT count(*) FROM zk_lock_queue('/down')}, 3 ], [ q{SELECT count(*) FROM zk_lock_paths('/many')}, $MANY ])
{
	my ($sql, $all) = @$ask;
	subtest "ZooKeeper does not answer: $sql" => sub {
		$other->contend('/zklock/down') for 1 .. 3;
		my ($s, $proxy) = zk_counted_session($node, $zk, 0);
		# only the timeout under test is short
		my $without_answer = sub {
			my ($expected, $times, $name) = @_;
			$s->value(q{SET zklock.operation_timeout = '700ms'; SET zklock.connect_timeout = '700ms'});
			my $result = $s->query($sql);
			$s->value('RESET zklock.operation_timeout; RESET zklock.connect_timeout');
			like($result->{state} . $result->{out}, $expected, $name);
			in_time($result->{seconds}, $times * 0.7 + $SLACK, '- soon');
			$proxy->reset;
			zk_until(sub { $s->query($sql)->{out} eq $all }, 'it to work again');
		};
		foreach my $op ('sync', \@LISTS, 'getData')
		{
			my $name = ref $op ? $op->[0] : $op;
			$proxy->swallow($op, 10_000);
			$without_answer->(qr/^(?:58030|$all)$/, 4, "no answer to $name: 58030, or it was not asked");
			canceled_at($s, $proxy, $op, $sql);
			is($s->value($sql), $all, '- and asks again');
			next if $name eq 'sync';
			$proxy->swallow_and_drop($op);
			is($s->value($sql), $all, "the connection breaks at the answer to $name: it is asked again");
			$proxy->drop_request($op);
			is($s->value($sql), $all, '- or before it');
			$proxy->reset;
		}
		$proxy->cut_off;
		$without_answer->(qr/^580[03]0$/, 2, 'cut off: 58030, or 58000 where it must open another session');
		$proxy->delay_ms(50);
		is($s->value("SET lock_timeout = '1ms'; $sql"), $all, 'lock_timeout is for locks');
		$proxy->delay_ms(0);

		# its own holds do not matter
		$s->value(qq{RESET lock_timeout; SELECT zk_lock('/held'); BEGIN; $sql});
		canceled_at($s, $proxy, 'getData', $sql);
		$s->value('ROLLBACK');
		is($s->value('SELECT state FROM zk_locks'), 'held', 'what was held before it still is');
		$proxy->hold('getData');
		$s->send($sql);
		$proxy->wait_held;
		$admin->value('SELECT pg_terminate_backend(' . $s->pid . ', 60000)');
		$proxy->reset;
		zk_until(sub { contenders('/held') == 0 }, 'its node to go');
		pass('terminated: its locks are free');
		$s->kill9;
		$other->delete_tree('/zklock/down');
	};
}
$client->delete_tree('/zklock/many');
$client->close;

# ------------------------------------------------------------- zk_lock_break

# (What the loss of a node means for a transaction: t/025 and t/056; a waiter, and one of two
# locks, that are broken: t/076 and t/089.)

# What the queue shows can be used to break it, whatever the name is; also one that is
# longer than any path of ours
subtest 'names of nodes' => sub {
	my @prefix = ('lock-', "caf\xc3\xa9-lock-", encode('UTF-8', "\x{30ed}-lock-"), 'a b\'"$1\\-lock-', '\\x41\\n-lock-', '%s{}-lock-', '..lock-',
		'-lock-', 'x-144-', 'abc__rlock__', '__WRIT__', "_c_$UUID-semaphore-2-", encode('UTF-8', "\x{e9}\\" x 2500) . 'lock-');
	foreach my $database (qw(postgres latin1))
	{
		$other->contend('/zklock/names', $_) for @prefix;
		my $s = zk_session($node, dbname => $database);
		$s->value(q{SET client_min_messages = warning});
		my @rows = queue_of($s, '/names');
		is(scalar @rows, scalar @prefix, "$database: all are there");
		foreach my $row (reverse @rows)
		{
			my $result = break_row($s, '/names', { node => encode('UTF-8', $row->{node}) });
			is("$result->{out}$result->{state}", 't', '- ' . substr encode('UTF-8', $row->{node}), 0, 40) or diag(substr $result->{err}, 0, 400);
		}
		is(contenders('/names'), 0, '- and none is left');
	}
};

# A terminal that shows the notice or the log would interpret control characters.
subtest 'what others wrote, in the notice and in the log' => sub {
	my @told = (qr/\\x1b\[31mred/, qr/\\xc2\\x9b31m/);    # ESC, and what is one in eight bits, by their numbers
	foreach my $case (
		[ "\e[31mred \e]0;title\a \xc2\x9b31m \r\x7f", @told ], [ "zklock\nuser \e[31mred\nhost \xc2\x9b31m\n", @told ],
		["two\nlines: LOG:  00000: forged\n"], ["\xff\0\\"], [ 'd' x 500_000 ], ["%s %n %m"], ["zklock\nhost a\\nb\npid 7\nuser \xff"])
	{
		my ($data, @says) = @$case;
		my $name = $other->contend('/zklock/log', '_c_other-lock-', data => $data) =~ s/.*\///r;
		new_log();
		my $result = break_row($admin, '/log', { node => $name });
		is($result->{out}, 't', 'broken');
		my $log = new_log();
		unlike($log, qr/^LOG:  00000: forged/m, '- no line of its own in the log');
		cmp_ok(length $log, '<', 20_000, '- nor a flood');
		my $text = $result->{err} . $log;
		unlike($text, qr/[\0\e\a\r\x7f]|\xc2\x9b/, '- nor a control character');
		like($text, $_, '- which is told') for @says;
	}
};

# (Names that no contender can have: sql/queue)
subtest 'what is not a contender of this lock' => sub {
	my @others = ('config', 'leader', 'x-lock-00000000001');
	$other->create($_) for grep { !$other->exists($_) } '/zklock', '/zklock/wrong';
	$other->create("/zklock/wrong/$_", data => 'precious') for @others;
	is(break_row($admin, '/wrong', { node => $_ })->{state}, '22023', "refused: $_") for @others;

	# a contender with children is no lock: the nodes of recipes are ephemeral
	$other->create('/zklock/wrong/lock-0000000099');
	$other->create('/zklock/wrong/lock-0000000099/child');
	my $result = break_row($admin, '/wrong', { node => 'lock-0000000099' });
	isnt($result->{state}, '', 'a node that has children: an error') or diag($result->{err});
	is(join(' ', sort $other->children('/zklock/wrong')), join(' ', sort @others, 'lock-0000000099'), 'all is as it was');
	$other->delete_tree('/zklock/wrong');

	# a persistent one without children is something left behind
	$other->create($_) for '/zklock/wrong', '/zklock/wrong/lock-0000000077';
	breaks('a node that lasts', '/wrong', (queue_of($admin, '/wrong'))[0]);
};

subtest 'zk_lock_break: lost answers' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '6s');    # it may not be able to close it
	my $contenders = sub { return map { $other->contend('/zklock/lost') =~ s/.*\///r } 1 .. 2 };
	my $break = sub { return $s->query("SELECT zk_lock_break('/lost', '$_[0]')") };
	# (Out of reach, it is as who looks)
	foreach my $op ('delete', 'getData')
	{
		foreach my $fault (qw(swallow_and_drop drop_request))
		{
			my @name = $contenders->();
			$proxy->$fault($op);
			my $result = $break->($name[0]);
			# if the answer was lost, it cannot know who did it
			like($result->{out} . $result->{state}, $fault eq 'swallow_and_drop' && $op eq 'delete' ? qr/^[tf]$/ : qr/^t$/, "$fault $op: removed");
			is(join(' ', $other->children('/zklock/lost')), $name[1], '- that one and no other');
			$proxy->reset;
			$other->delete("/zklock/lost/$name[1]");
			zk_wait_session($s, 'connected');
		}

		# canceled on the way, and what is broken then
		my @name = $contenders->();
		canceled_at($s, $proxy, $op, "SELECT zk_lock_break('/lost', '$name[0]')");
		is($break->($name[1])->{out}, 't', '- and goes on');
		is(!!$other->exists("/zklock/lost/$name[0]"), $op eq 'getData' ? 1 : '', '- having done what it had asked for');
		$other->delete("/zklock/lost/$_") for @name;
	}

	# no answer at all: nobody may conclude that it did not happen
	my ($name) = $contenders->();
	$proxy->hold('delete');
	$s->value(q{SET zklock.operation_timeout = '2s'});
	my $result = $break->($name);
	is($result->{state}, '58030', 'no answer: 58030');
	in_time($result->{seconds}, 2 + $SLACK, '- within operation_timeout');
	$proxy->wait_held;
	ok(!$other->exists("/zklock/lost/$name"), '- though it is gone');
	$proxy->reset;
	zk_until(sub { $break->($name)->{out} eq 'f' }, 'to be told so the next time');
};

# Only one of several callers is told that it removed the node.
subtest 'two who break the same' => sub {
	my @s = map { session_named("breaker $_") } 1 .. 4;
	foreach (1 .. 8)
	{
		my $name = $other->contend('/zklock/race') =~ s/.*\///r;
		$_->send("SELECT zk_lock_break('/race', '$name')") for @s;
		my @result = map { $_->wait } @s;
		is(join('', sort map { "$_->{out}$_->{state}" } @result), 'ffft', 'one has done it') or diag(map { $_->{err} } @result);
	}
};

$admin->quit;
$other->close;
zk_end($zk, $node);
