# zk_lock_queue: all contenders for a lock, of whichever client, in order, with
# the holders; in two round trips however many there are; never an error
# whatever others have written; while they come and go; and what happens when
# ZooKeeper does not answer.
#
# zk_lock_break: a user with the privilege removes a contender, of whichever
# client and kind; what the caller and the log are told; what its victim
# notices.  Then what can go wrong on the way, and who may do it.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Encode qw(decode encode);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Sys::Hostname;
use Test::More;
use Time::HiRes qw(time);

use Deadline;
use Peer;
use Queue;
use ZkProxy;
use Zklock;
use ZooKeeper;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1;

my $UUID = '0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1';
my $UUID_TAIL = substr $UUID, 1;

# What zklock's nodes say of their session
my @IDENTITY = qw(host port cluster_name pid datname usename application_name);

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk,
	# on a busy machine a server takes a while to restart
	'zklock.operation_timeout' => '30s',
	max_connections => 200,
	wal_level => 'replica',
	max_wal_senders => 5,
	hot_standby => 'on',
	fsync => 'off',
	'zklock.session_timeout' => '30s');
foreach my $encoding (qw(LATIN1 SQL_ASCII))
{
	$node->safe_psql('postgres', "CREATE DATABASE \L$encoding\E ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
	$node->safe_psql(lc $encoding, 'CREATE EXTENSION zklock');
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

sub in_style
{
	my ($style) = @_;
	my $s = zk_session($node, options => "-c zklock.node_style=$style");
	$s->value("SET application_name = 'in style $style'");
	return $s;
}

# A backend with an application name and a ZooKeeper session, which notices a loss within a
# quarter of its timeout.  A statement that looks at a lost lock is not to be canceled: that
# is t/034's.
sub named
{
	my ($name, %setting) = @_;
	my $s = zk_session_with($node, session_timeout => '6s', cancel_on_loss => 'off', %setting);
	$s->value("SELECT zk_lock('/warm/' || pg_backend_pid()), zk_unlock_all(); SET application_name = '$name'");
	return $s;
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
	unlike($result->{err}, qr/secret/, '- and nothing that is not to be said');
	ok(!$other->exists("/zklock$path/" . encode('UTF-8', $row->{node})), '- it is gone');
	note $result->{err};
	is(break_row($admin, $path, $row)->{out}, 'f', '- again: false');
	unlike(new_log(), qr/LOG:.*\Q$row->{node}\E/, '- about which the log says nothing');
	return;
}

# ------------------------------------------------------------- whoever it is

subtest 'every known marker, by hand' => sub {
	my @prefix = (
		'_c_other-lock-', 'lock-', "_c_$UUID-lock-", 'x-144-', 'x-0f5dd2a68e26-', 'x--144-', 'abc__lock__',
		"_c_$UUID-shared-lock-", 'abc__rlock__', "_c_$UUID-__READ__", '-shared-lock-',
		"_c_$UUID-__WRIT__", '__READ__', "_c_$UUID-semaphore-2-", "_c_$UUID-semaphore-1-", "_c_$UUID-semaphore-2147483647-");
	my @mode = (('exclusive') x 7, ('shared') x 4, 'exclusive', 'shared', ('semaphore') x 3);
	my @client = map { $zk->client } 1 .. 3;
	my $i = 0;
	foreach my $prefix (@prefix)
	{
		$client[ $i % 3 ]->contend('/zklock/marker', $prefix, data => "number $i");
		$i++;
	}

	# nodes that are no contenders
	foreach my $name ('config', 'locks', 'lock-1', 'lock-000000001', 'x-lock-00000000001', '_c_x-semaphore-2-0000000001',
		"_c_$UUID-semaphore-0-0000000001", "_c_$UUID-semaphore-02-0000000001", "_c_$UUID-semaphore-2147483648-0000000001",
		'xlock-0000000001x', '__lock__', '0000000001', 'x-yz-0000000001', 'lock-9999999999')
	{
		$other->create("/zklock/marker/$name");
	}
	my @rows = queue_is($admin, $other, '/marker', 'every known marker');
	is(join(' ', map { $_->{mode} } @rows), join(' ', @mode), 'modes, in the order of the nodes');
	is(join(' ', map { "$_->{kind} $_->{position}" } @rows), join(' ', (map { "lock $_" } 1 .. 13), (map { "semaphore $_" } 1 .. 3)),
		'a position in each kind, from 1');
	is(join(' ', map { $_->{data} } @rows), join(' ', map { "number $_" } 0 .. $#prefix), 'what each wrote');
	is(join(' ', map { $_->{granted} } @rows), join(' ', 1, (0) x 12, 1, 0, 1), 'the first has the lock, and two have places');
	is(join(' ', map { $_->{zk_session} } @rows), join(' ', map { $client[ $_ % 3 ]->session_id } 0 .. $#prefix), 'whose session');
	is(join(' ', map { join '', map { $_ // '' } @$_{@IDENTITY} } @rows), ' ' x $#rows, 'and no more is known of them');

	# they leave one after another
	foreach my $n (1 .. @rows)
	{
		my $gone = $n % 2 ? shift @rows : pop @rows;
		$other->delete("/zklock/marker/$gone->{node}");
		queue_is($admin, $other, '/marker', "without $gone->{node}");
	}
	$_->close for @client;
	$other->delete_tree('/zklock/marker');
};

# They hold what they say they hold.
subtest "Curator's mutex, kazoo's lock and SQL" => sub {
	is($_->wait, 'ready', $_->kind . ' is there') for values %peer;
	my $identifier = "kazoo \x{20ac} \\ {\"a\": [1]} 'x'";
	is($peer{kazoo}->ask(encode('UTF-8', "identify $identifier")), 'ok', 'with a name of its own');
	my %sql = map { $_ => in_style('curator') } qw(writer reader another_reader last);

	my %take = (
		curator => 'acquire /zklock/mixed 60000 mutex',
		kazoo => 'acquire /zklock/mixed 60000 pattern',
		writer => q{SELECT zk_lock('/mixed')},
		reader => q{SELECT zk_lock_shared('/mixed')},
		another_reader => q{SELECT zk_lock_shared('/mixed')},
		last => q{SELECT zk_lock('/mixed')});
	my @order = qw(curator writer reader another_reader last kazoo);
	my $n = 0;
	foreach my $who (@order)
	{
		joins('/mixed', ++$n, sub { ($peer{$who} // $sql{$who})->send($take{$who}) });
	}

	my @rows = queue_is($admin, $other, '/mixed', 'all of them');
	is(join(' ', map { $_->{mode} } @rows), 'exclusive exclusive shared shared exclusive exclusive', 'modes');
	foreach my $who (keys %sql)
	{
		my ($row) = @rows[ grep { $order[$_] eq $who } 0 .. $#order ];
		is(join(' ', map { $_ // 'NULL' } @$row{ @IDENTITY, 'data' }),
			join(' ', hostname(), $node->port, $node->name, $sql{$who}->pid, 'postgres', $admin->value('SELECT session_user'), 'in style curator', 'NULL'),
			"$who: whose it is");
	}
	is($rows[5]{data}, $identifier =~ s/\\/\\\\/gr, "kazoo's identifier");

	# The holders are those that say so.
	my %holds;
	while (@order)
	{
		my @granted = grep { $rows[$_]{granted} } 0 .. $#rows;
		foreach my $i (@granted)
		{
			my $who = $order[$i];
			next if $holds{$who};
			my $token = $peer{$who}
			  ? $peer{$who}->acquired($peer{$who}->wait)
			  : $sql{$who}->wait->{out} eq 't' && $sql{$who}->value('SELECT token FROM zk_locks');
			is($token, $rows[$i]{token}, "$who holds it, with that token");
			$holds{$who} = 1;
		}
		is(join(' ', grep { !$holds{$_} && ($peer{$_} // $sql{$_})->is_done } @order), '', 'and nobody else');
		my $gone = shift @order;
		if ($peer{$gone})
		{
			is($peer{$gone}->ask('release /zklock/mixed ' . ($gone eq 'kazoo' ? 'pattern' : 'mutex')), 'ok', "$gone goes");
		}
		else { is($sql{$gone}->value('SELECT zk_unlock_all()'), 1, "$gone goes"); }
		zk_until(sub { contenders('/mixed') == @order }, "$gone to be gone");
		@rows = queue_is($admin, $other, '/mixed', "without $gone");
	}
	$_->quit for values %sql;
};

subtest 'zk_lock_break of kazoo and Curator' => sub {
	my %class = (kazoo => 'pattern', curator => 'mutex');
	foreach my $kind (sort keys %peer)
	{
		my $peer = $peer{$kind};
		my $path = "/peer/$kind";
		my $s = named('SQL');
		$peer->acquire("/zklock$path");
		$s->send("SELECT zk_lock('$path')");
		zk_until(sub { contenders($path) == 2 }, 'SQL');
		my @rows = queue_is($admin, $other, $path, "$kind before SQL");
		breaks("$kind holds", $path, $rows[0], $rows[0]{zk_session});
		is($s->wait->{out}, 't', 'SQL has it');
		$peer->ask("release /zklock$path $class{$kind}");    # it may or may not have noticed

		# it queues again in its own way: at the end
		$peer->send("acquire /zklock$path 60000 $class{$kind}");
		zk_until(sub { contenders($path) == 2 }, "$kind waits");
		@rows = queue_is($admin, $other, $path, "$kind behind SQL");
		is($rows[1]{granted}, 0, 'and waits');
		breaks("SQL, before $kind", $path, $rows[0], $s->pid);
		$peer->acquired($peer->wait);
		pass("$kind has it");
		zk_wait_hold($s, 'lost');
		$s->query('SELECT zk_unlock_all()');
		is($peer->ask("release /zklock$path $class{$kind}"), 'ok', 'and gives it back');
		$s->quit;
	}
	$_->quit for values %peer;
	%peer = ();
};

# ---------------------------------------------------------------- what they say

# Whatever it is, it is shown as a row, and the bytes can be recovered from it.
subtest 'what others wrote' => sub {
	my @data = (
		'', 'x', ' ', "two\nlines\r\n", "tab\t", 'back\\slash', '\\x41', '\\\\n', '\\N', "quote ' \" \$1 %s {}", "NUL \0 inside", "\0",
		"\x00\x01\x02\x7f", "\x7f\0\1\1", "\xff\xfe", "half \xc3", "\xc3\xa9", "\xe9", encode('UTF-8', "\x{20ac} \x{1f512}"),
		"\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe3\x83", "\xef\xbf\xbf", "\xc2\x80", join('', map { chr } 0 .. 255),
		pack('w/a*', 'x' x 300), 'z' x 100_000, "\xff" x 20_000, 'e' x 1_040_000,
		# almost ours
		'shared', "shared\nczxid 1", 'zklock', "zklock\n", "zklock \n", "zklockx\npid 1", "Zklock\npid 1", "\nzklock\npid 1", "zklock\0pid 1");
	$other->contend('/zklock/data', '_c_other-lock-', data => $_) for @data;
	foreach my $database (qw(postgres latin1 sql_ascii))
	{
		my $s = zk_session($node, dbname => $database);
		my @rows = queue_is($s, $other, '/data', "in $database");
		is(scalar(grep { defined $_->{data} && $_->{data} eq '' } @rows), 0, 'what is empty is NULL');
		is($s->value('SELECT 1'), 1, 'and it goes on');
		$s->quit;
	}
	# a terminal would interpret them: ESC, and the 8-bit control characters
	is(scalar(grep { ($_->{data} // '') =~ /[\0-\x1f\x7f-\x9f]/ } queue_of($admin, '/data')), 0, 'no control character');
	is((queue_of($admin, '/data'))[18]{data}, "\x{20ac} \x{1f512}", 'what can be shown is');
	$other->delete_tree('/zklock/data');
};

# Lines that zklock never writes, after its own first one: they are read as far
# as they make sense, and are never an error.
subtest 'what others wrote in our form' => sub {
	my @data = map { "zklock\n$_" } (
		'pid', 'pid ', 'pid x', 'pid -1', 'pid 1.5', 'pid 99999999999999999999', 'pid 2147483648', "pid 7\npid 8",
		'host', "host \xff", "host a\0b", 'host ' . 'h' x 100_000, "user \xe3\x83", 'user \\', 'user \\x41 \\q \\', "database \xed\xa0\x80",
		"host a\n\nuser b", "nonsense\nuser b", 'czxid', 'czxid x', 'czxid -1', 'czxid 99999999999999999999999', "\xff", "\0",
		"host a\r\nuser b", (map { "port$_" } '', ' ', ' x', ' 5432x', ' 54.32', ' 0x1538', ' 2147483648', ' 99999999999999999999'),
		"port x\nport 5431", "port\nport 5432", "port 5433\nport 5430", 'port -2147483648', "cluster_name \xff", 'tag', 'tag x', "tag 0123456789abcdef\nport 5434",
		'application_name', 'PID 7', "user \e[31mred\nhost \e]0;x\a\ndatabase \xc2\x9b31m");
	$other->contend('/zklock/form', "_c_$UUID-lock-", data => $_) for @data;
	foreach my $database (qw(postgres latin1 sql_ascii))
	{
		my $s = zk_session($node, dbname => $database);
		my @rows = queue_of($s, '/form');
		is(scalar @rows, scalar @data, "in $database: a row each");
		is(scalar(grep { join('', grep { defined } values %$_) =~ /[\0-\x1f\x7f-\x9f]/ } @rows), 0, 'no control character');
		is(join(' ', map { $_->{position} } @rows), join(' ', 1 .. @data), 'in order');
		is(join(' ', map { $_->{port} // () } @rows), '5432 5433 -2147483648 5434', 'a port is a number, in the first such line');
		$s->quit;
	}
	$other->delete_tree('/zklock/form');
};

# Names of the backend in other encodings: the lock is taken, and everybody can
# look.
subtest 'names in other encodings' => sub {
	# a line feed begins no new field; since PostgreSQL 19 no name has one
	my $odd = $admin->value(q{SELECT current_setting('server_version_num')}) < 190000 ? "\n" : "\x01";
	my %name = (latin1 => "caf\xe9 \\ ${odd}pid 1", sql_ascii => "\xe9\xff");
	my $i = 0;
	foreach my $database (sort keys %name)
	{
		my $made = zk_session($node, dbname => $database);
		local $ENV{PGCLIENTENCODING} = uc $database;
		my $as_bytes = zk_session($node, dbname => $database);
		$as_bytes->value(qq{CREATE ROLE "$name{$database}" SUPERUSER});
		$as_bytes->value(qq{SET SESSION AUTHORIZATION "$name{$database}"; SET application_name = 'in $database'});
		is($as_bytes->value(qq{SELECT zk_lock('/names')}), 't', "$database: such a user takes a lock") if $i++ == 0;
		$as_bytes->send(qq{SELECT zk_lock('/names')}) if $i > 1;
		zk_until(sub { contenders('/names') == $i }, 'its node');
		$name{$database} = { session => $as_bytes, pid => $as_bytes->pid };
		$made->quit;
	}
	foreach my $database (qw(postgres latin1 sql_ascii))
	{
		my $s = zk_session($node, dbname => $database);
		my @rows = queue_of($s, '/names');
		is(join(' ', map { "$_->{pid} $_->{datname} $_->{application_name}" } @rows),
			join(' ', map { "$name{$_}{pid} $_ in $_" } qw(latin1 sql_ascii)), "$database shows both");
		note join ' ', map { encode('UTF-8', $_->{usename} // 'NULL') } @rows;
		$s->quit;
	}
	my ($latin1) = queue_of($admin, '/names');
	is($latin1->{usename}, sprintf("caf\x{e9} \\ \\x%02xpid 1", ord $odd), 'a name in LATIN1, but for its control character');
	$name{latin1}{session}->value('SELECT zk_unlock_all()');
	is($name{sql_ascii}{session}->wait->{out}, 't', 'they exclude each other');
	$_->{session}->quit for values %name;
};

subtest 'a switch for the identity' => sub {
	my $quiet = zk_session($node, options => '-c zklock.publish_identity=off');
	$quiet->value("SET application_name = 'secret name'");
	foreach my $take (
		q{zk_lock('/quiet')}, q{zk_xact_lock('/quiet')}, q{zk_lock_shared('/quiet')}, q{zk_semaphore_acquire('/quiet', 1)},
		q{zk_lock_many('{/quiet,/quiet/b}')}, q{zk_lock('/quiet'), zk_lock_shared('/quiet'), zk_unlock('/quiet')})
	{
		foreach my $style (qw(curator curator_rw kazoo))
		{
			$quiet->value("SET zklock.node_style = $style");
			$quiet->value("BEGIN; SELECT $take");
			my ($name) = map { split /\n/ } $quiet->value(q{SELECT node FROM zk_locks WHERE path = '/quiet'});
			my ($data) = $other->get("/zklock/quiet/$name");
			my $reader = $take =~ /zk_unlock/ ? qr/shared\n(?:czxid \d+\n)?/ : qr//;
			like($data, qr/\Azklock\n${reader}tag [0-9a-f]{16}\n\z/, "$style, $take: its node says nothing of it");
			$quiet->value('COMMIT; SELECT zk_unlock_all()');
		}
	}
	$quiet->quit;

	# and what is shown with the setting on
	my $s = zk_session($node);
	$s->value("SET application_name = 'one two'; SELECT zk_lock('/said')");
	my ($data) = map { scalar $other->get("/zklock/said/$_") } $other->children('/zklock/said');
	my ($tag) = $data =~ /^tag (.*)$/m;
	like($tag, qr/^[0-9a-f]{16}$/, 'what a node says: a tag');
	is($data =~ s/\n\z//r, join("\n", 'zklock', "tag $tag", 'host ' . hostname(), 'port ' . $node->port, 'cluster_name ' . $node->name,
			'pid ' . $s->pid, 'database postgres', 'user ' . $s->value('SELECT session_user'), 'application_name one two'), '- and the rest');

	# the tag is the backend's, whatever its settings, and no other's
	$s->value(q{SET zklock.publish_identity = off; SELECT zk_unlock_all(); SELECT zk_lock('/said')});
	my $next = zk_session($node);
	$next->value(q{SELECT zk_lock('/said/next')});
	my ($quiet_data, $next_data) = map { my $dir = $_; map { scalar $other->get("$dir/$_") } grep { /lock/ } $other->children($dir) }
	  '/zklock/said', '/zklock/said/next';
	is($quiet_data, "zklock\ntag $tag\n", 'its tag stays');
	like($next_data, qr/^tag (?!$tag)[0-9a-f]{16}$/m, 'another has another');
	$_->quit for $s, $next;
};

# Process numbers, databases and roles may be the same.
subtest 'two clusters on one host' => sub {
	my $beside = zk_cluster('beside', $zk);
	my ($holder, $waiter) = (zk_session($node), zk_session($beside));
	$holder->value(q{SELECT zk_lock('/beside')});
	joins('/beside', 2, sub { $waiter->send(q{SELECT zk_lock('/beside')}) });
	my @rows = queue_is($admin, $other, '/beside', 'one of each');
	is(join(' ', map { $_->{host} } @rows), join(' ', (hostname()) x 2), 'the host is the same');
	is(join(', ', map { "$_->{port} $_->{cluster_name} $_->{pid}" } @rows),
		join(', ', $node->port . ' main ' . $holder->pid, $beside->port . ' beside ' . $waiter->pid), 'but not the port, nor the name');
	$holder->value('SELECT zk_unlock_all()');
	is($waiter->wait->{out}, 't', 'the waiter has it');
	$waiter->quit;

	# Cluster.pm starts a cluster with its own name for it
	$beside->stop;
	{
		local $beside->{_name} = '';
		$beside->start;
	}
	$waiter = zk_session($beside);
	is($waiter->value('SHOW cluster_name'), '', 'a cluster without a name');
	$waiter->value(q{SELECT zk_lock('/beside')});
	joins('/beside', 2, sub { $holder->send(q{SELECT zk_lock('/beside')}) });
	@rows = queue_is($admin, $other, '/beside', 'one of each again');
	is(join(', ', map { "$_->{port} " . ($_->{cluster_name} // 'NULL') } @rows), $beside->port . ' NULL, ' . $node->port . ' main', 'has a port');
	my ($first) = $other->get("/zklock/beside/$rows[0]{node}");
	unlike($first, qr/cluster_name/, '- and its node has no line for the name');
	$waiter->quit;
	is($holder->wait->{out}, 't', 'the other has it');
	$holder->quit;
	zk_no_crash($beside);
	$beside->stop;
};

# --------------------------------------------------------------- what it costs

subtest 'two round trips' => sub {
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
	foreach my $n (1, 2, 50, 300)
	{
		$other->contend("/zklock/cost/$n") for 1 .. $n;
		$other->create("/zklock/cost/$n/config", data => 'not read');
		is_deeply($cost->("/cost/$n"), { rows => $n, trips => 2, reads => $n, syncs => 1, writes => 0 }, "$n contenders: two");
	}
	my ($zxid) = $zk->four_letter('srvr') =~ /^Zxid: (\w+)$/m;
	$s->value(q{SELECT count(*) FROM zk_lock_queue('/cost/50')});
	is(($zk->four_letter('srvr') =~ /^Zxid: (\w+)$/m)[0], $zxid, 'and no write, nor anything that looks like one');
	is($zk->watch_count, 0, 'nor a watch');
	$s->quit;
	$other->delete_tree('/zklock/cost');
};

# A contender that leaves between the list and the read
subtest 'gone in between' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0);
	my @name = map { $other->contend('/zklock/between', '_c_other-lock-', data => "number $_") } 0 .. 4;
	foreach my $leaves ([0], [ 2, 4 ], [ 1, 3 ])
	{
		$proxy->clear_log;
		$proxy->hold_request('getData');
		$s->send(q{SELECT string_agg(position || ' ' || granted || ' ' || data, ', ' ORDER BY position) FROM zk_lock_queue('/between')});
		$proxy->wait_held;
		$other->delete($name[$_]) for @$leaves;
		$proxy->release;
		my $result = $s->wait;
		my %there = map { $_ => 1 } $other->children('/zklock/between');
		is($result->{state}, '', 'no error');
		my $left = join ' ', grep { $there{ $name[$_] =~ s/.*\///r } } 0 .. 4;
		is(join(' ', $result->{out} =~ /number (\d)/g), $left, 'those who are left');
		is(join(' ', $result->{out} =~ /(\d) (?:true|false)/g), join(' ', 1 .. keys %there), 'have places without a gap');
		is(join(' ', $result->{out} =~ /(true|false)/g), join(' ', %there ? 'true' : (), ('false') x (keys(%there) - 1)), 'and one holds')
		  if %there;
		$proxy->reset;
	}
	$s->quit;
};

# In these styles the reader that a writer becomes has a node with another name,
# which the list does not show.  A contender that waits for it must not be shown
# as a holder.
foreach my $style (qw(curator curator_rw kazoo))
{
	subtest "a downgrade in between, style $style" => sub {
		my ($s, $proxy) = zk_counted_session($node, $zk, 0);
		my ($holder, $writer) = map { in_style($style) } 1 .. 2;
		my $path = "/between/$style";
		is($holder->value("SELECT zk_lock('$path'), zk_lock_shared('$path')"), 't|t', 'held in both ways');
		joins($path, 2, sub { $writer->send("SELECT zk_lock('$path')") });
		$proxy->hold_request('getData');
		my $token = $holder->value("SELECT zk_lock_token('$path')");
		$s->send("SELECT mode, granted, pid, token = $token FROM zk_lock_queue('$path')");
		$proxy->wait_held;
		is($holder->value("SELECT zk_unlock('$path')"), 't', 'downgraded between the list and the look');
		$proxy->release;
		is($s->wait->{out}, join("\n", 'shared|t|' . $holder->pid . '|t', 'exclusive|f|' . $writer->pid . '|f'), 'the reader holds, with the token that it had, and the writer waits');
		$holder->value('SELECT zk_unlock_all()');
		$writer->wait;
		$_->quit for $holder, $writer, $s;
	};
}

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

subtest 'ZooKeeper does not answer' => sub {
	my $down = ZkProxy->new($zk);
	$down->refuse;
	my $s = zk_session($node, options => '-c zklock.connect_timeout=500ms -c zklock.hosts=' . $down->hosts);
	my $result = $s->query(q{SELECT * FROM zk_lock_queue('/down')});
	is($result->{state}, '58000', 'out of reach from the beginning: 58000');
	in_time($result->{seconds}, 0.5 + $SLACK, '- within connect_timeout');
	$down->pass;
	is($s->value(q{SET zklock.connect_timeout = '30s'; SELECT count(*) FROM zk_lock_queue('/down')}), 0, '- and works when it is there');
	$s->quit;
	$down->stop;

	# Only the timeout under test is short.
	my $SHORT = q{SET zklock.operation_timeout = '700ms'; SET zklock.connect_timeout = '700ms'};
	my $LONG = q{RESET zklock.operation_timeout; RESET zklock.connect_timeout};
	($s, my $proxy) = zk_counted_session($node, $zk, 0);
	$other->contend('/zklock/down') for 1 .. 3;
	my $ask = q{SELECT count(*) FROM zk_lock_queue('/down')};
	foreach my $op ('sync', 'getChildren', 'getData')
	{
		$s->value($SHORT);
		$proxy->swallow([ $op eq 'getChildren' ? ('getChildren', 'getChildren2') : $op ], 100);
		$result = $s->query($ask);
		$s->value($LONG);
		like($result->{state} . $result->{out}, qr/^(?:58030|3)$/, "no answer to $op: 58030, or it was not asked");
		in_time($result->{seconds}, 4 * 0.7 + $SLACK, '- soon');
		$proxy->reset;
		zk_until(sub { $s->query($ask)->{out} eq '3' }, 'it to work again');
	}
	foreach my $op ('getChildren', 'getData')
	{
		$proxy->swallow_and_drop([ $op eq 'getChildren' ? ('getChildren', 'getChildren2') : $op ]);
		is($s->value($ask), 3, "the connection breaks at the answer to $op: it is asked again");
		$proxy->drop_request([ $op eq 'getChildren' ? ('getChildren', 'getChildren2') : $op ]);
		is($s->value($ask), 3, '- or before it');
		$proxy->reset;
	}
	$s->value($SHORT);
	$proxy->cut_off;
	$result = $s->query($ask);
	$s->value($LONG);
	like($result->{state}, qr/^580[03]0$/, 'cut off: 58030, or 58000 where it must open another session');
	in_time($result->{seconds}, 2 * 0.7 + $SLACK, '- within operation_timeout');
	$proxy->reset;
	zk_until(sub { $s->query($ask)->{out} eq '3' }, 'it to work again');
	$s->quit;

	# a waiting call can be canceled
	($s, $proxy) = zk_counted_session($node, $zk, 0, operation_timeout => '1min');
	foreach my $op ('getChildren', 'getData')
	{
		my @op = $op eq 'getChildren' ? ('getChildren', 'getChildren2') : $op;
		canceled_at($s, $proxy, \@op, $ask);
		is($s->value($ask), 3, '- and asks again');
		$proxy->hold(\@op);
		is($s->query("BEGIN; SET LOCAL statement_timeout = '100ms'; $ask")->{state}, '57014', '- statement_timeout');
		$proxy->release;
		$proxy->reset;
		$s->value('ROLLBACK');
	}
	$proxy->delay_ms(50);
	is($s->value("SET lock_timeout = '1ms'; $ask"), 3, 'lock_timeout is for locks');
	$proxy->delay_ms(0);

	# its own holds do not matter
	$s->value(q{RESET lock_timeout; SELECT zk_lock('/down/held')});
	$s->value("BEGIN; $ask");
	canceled_at($s, $proxy, 'getData', $ask);
	$s->value('ROLLBACK');
	is($s->value('SELECT state FROM zk_locks'), 'held', 'what was held before it still is');
	my $pid = $s->pid;
	$proxy->hold('getData');
	$s->send($ask);
	$proxy->wait_held;
	$admin->value("SELECT pg_terminate_backend($pid)");
	$s->wait_error;
	zk_until(sub { $admin->value("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid") eq '0' }, 'its end');
	$proxy->reset;
	zk_until(sub { contenders('/down/held') == 0 }, 'its node to go');
	pass('terminated: its locks are free');
	$other->delete_tree('/zklock/down');
};

# ---------------------------------------------------------- where numbers end

subtest 'numbers that tell no order' => sub {
	my $START = 2**31 - 3;
	$other->contend('/zklock/worn');
	$other->delete('/zklock/worn/' . ($other->children('/zklock/worn'))[0]);
	$other->close;
	$zk->set_next_number('/zklock/worn' => $START);
	$other = $zk->client;
	# names whose order differs from that of their creation
	my @all = map { $other->contend('/zklock/worn', '_c_' . (50 - $_) . ($_ % 3 ? '-lock-' : '-shared-lock-'), data => "number $_") } 0 .. 15;
	my @semaphore = map { $other->contend('/zklock/worn', "_c_$_$UUID_TAIL-semaphore-2-", data => "place $_") } 1, 0;
	my @rows = queue_is($admin, $other, '/worn', 'worn');
	is(join(' ', map { $_->{data} =~ s/number //r } grep { $_->{kind} eq 'lock' } @rows), join(' ', 0 .. 15),
		'in the order in which they came');
	$other->delete($_) for @all[ 0 .. 5 ];
	@rows = queue_is($admin, $other, '/worn', 'without the first');
	is($rows[0]{data}, 'number 6', 'the next one holds');
	my $s = zk_session($node);
	$s->send(q{SELECT zk_lock('/worn')});
	zk_until(sub { (queue_of($admin, '/worn'))[10]{host} }, 'one of ours');
	queue_is($admin, $other, '/worn', 'and one of ours');
	$other->delete($_) for @all[ 6 .. 15 ];
	is($s->wait->{out}, 't', 'has its turn');
	@rows = queue_is($admin, $other, '/worn', 'ours');
	is(join(' ', map { "$_->{kind} $_->{granted}" } @rows), 'lock 1 semaphore 1 semaphore 1', 'who holds');
	$s->quit;
	$other->delete($_) for @semaphore;
};

# ------------------------------------------------------------------- elsewhere

subtest 'in a read-only transaction and on a hot standby' => sub {
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	my ($p, $s) = (zk_session($node), zk_session($standby));
	$p->value(q{SELECT zk_lock('/standby')});
	$s->send(q{SELECT zk_lock('/standby')});
	zk_until(sub { contenders('/standby') == 2 }, 'both');
	my $look = zk_session($standby);
	my @rows = queue_is($look, $other, '/standby', 'on a hot standby');
	is(join(' ', map { $_->{pid} } @rows), $p->pid . ' ' . $s->pid, 'one of each server');
	is($look->value(q{SELECT zk_lock_break('/standby', node) FROM zk_lock_queue('/standby') WHERE granted}), 't', 'which can break, too');
	is($s->wait->{out}, 't', 'for its own');
	is($p->query(q{SELECT zk_unlock('/standby')})->{out}, 'f', 'who has lost it');
	$_->quit for $p, $s, $look;
	$standby->stop;
};

# ---------------------------------------------------- zk_lock_break: SQL's holders

# (What the loss of a node means for a transaction: t/025 and t/056.)

# Name, how it is taken, and how the next one takes it
foreach my $case (
	[ 'exclusive, session', q{zk_lock('/h')}, q{zk_lock('/h')} ],
	[ 'exclusive, transaction', q{zk_xact_lock('/h')}, q{zk_lock('/h')} ],
	[ 'shared, session', q{zk_lock_shared('/h')}, q{zk_lock('/h')} ],
	[ 'shared, transaction', q{zk_xact_lock_shared('/h')}, q{zk_lock('/h')} ],
	[ 'semaphore, session', q{zk_semaphore_acquire('/h', 1)}, q{zk_semaphore_acquire('/h', 1)} ],
	[ 'semaphore, transaction', q{zk_xact_semaphore_acquire('/h', 1)}, q{zk_semaphore_acquire('/h', 1)} ],
	[ 'downgraded', q{zk_lock('/h'), zk_lock_shared('/h'), zk_unlock('/h')}, q{zk_lock('/h')} ])
{
	my ($name, $take, $next_take) = @$case;
	subtest "a holder: $name" => sub {
		my ($victim, $next) = (named('the victim'), named('the next one'));
		$victim->value("BEGIN; SELECT $take; SELECT zk_lock('/h/another')");
		joins('/h', 2, sub { $next->send("SELECT $next_take") });
		my ($row) = queue_of($admin, '/h');
		is("$row->{pid} $row->{granted}", $victim->pid . ' 1', 'the holder');
		# and no tag in between
		breaks($name, '/h', $row, "The node belongs to ZooKeeper session $row->{zk_session}, host \"" . hostname() . '"',
			'host "' . hostname() . '", port "' . $node->port . '", cluster_name "main", pid "' . $victim->pid . '"',
			'postgres', 'the victim');
		is($next->wait->{out}, 't', 'the next one has it at once');
		zk_wait_hold($victim, 'lost', '/h');
		pass('the victim notices');
		is($victim->value(q{SELECT zk_lock_token('/h') IS NULL, state FROM zk_locks WHERE path = '/h/another'}), 't|held',
			'and has lost nothing else');
		is($victim->value('SELECT losses FROM zk_session'), 0, 'its ZooKeeper session goes on');
		$_->quit for $victim, $next;
	};
}

subtest 'a name that is longer than any path of ours' => sub {
	$other->contend('/zklock/long_name', encode('UTF-8', "\x{e9}\\" x 2500) . 'lock-');
	my ($row) = queue_of($admin, '/long_name');
	my $result = break_row($admin, '/long_name', { node => encode('UTF-8', $row->{node}) });
	is($result->{out}, 't', 'what zk_lock_queue shows, zk_lock_break takes') or diag substr $result->{err}, 0, 400;
};

# ---------------------------------------------------------------- SQL's waiters

foreach my $name ('exclusive', 'shared', 'semaphore')
{
	subtest "a waiter: $name" => sub {
		my ($call, $args) = $name eq 'exclusive' ? ('zk_lock', '') : $name eq 'shared' ? ('zk_lock_shared', '') : ('zk_semaphore_acquire', ', 1');
		my $holder = named('the holder');
		$holder->value($name eq 'semaphore' ? q{SELECT zk_semaphore_acquire('/w', 1)} : q{SELECT zk_lock('/w')});
		my @s = map { named("waiter $_") } 1 .. 2;
		foreach my $i (0 .. 1)
		{
			$s[$i]->send("SELECT $call('/w'$args)");
			zk_until(sub { contenders('/w') == $i + 2 }, 'a waiter');
		}
		my @before = queue_of($admin, '/w');
		is($before[1]{application_name}, 'waiter 1', 'who is second');
		breaks($name, '/w', $before[1], hostname(), $s[0]->pid, 'waiter 1');
		zk_until(sub { (grep { $_->{application_name} eq 'waiter 1' } queue_of($admin, '/w')) }, 'it to queue again');
		my @rows = queue_is($admin, $other, '/w', 'it waits at the end');
		is(join(', ', map { $_->{application_name} } @rows), 'the holder, waiter 2, waiter 1', 'in that order');
		$holder->value('SELECT zk_unlock_all()');
		is($s[1]->wait->{out}, 't', 'the other has its turn first') unless $name eq 'shared';
		$s[1]->wait if $name eq 'shared';
		$s[1]->value('SELECT zk_unlock_all()');
		is($s[0]->wait->{out}, 't', 'and then the one whose node was broken');
		$_->quit for @s, $holder;
	};
}

# What the queue shows can be used to break it, whatever the name is.
subtest 'names of nodes' => sub {
	my @prefix = ('lock-', "caf\xc3\xa9-lock-", encode('UTF-8', "\x{30ed}-lock-"), 'a b\'"$1\\-lock-', '\\x41\\n-lock-', '%s{}-lock-', '..lock-',
		'-lock-', 'x-144-', 'abc__rlock__', '__WRIT__', '_c_0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1-semaphore-2-');
	foreach my $database (qw(postgres latin1))
	{
		my @name = map { $other->contend('/zklock/names', $_) } @prefix;
		my $s = zk_session($node, dbname => $database);
		$s->value(q{SET client_min_messages = warning});
		is($s->value(q{SELECT count(*) FROM zk_lock_queue('/names')}), scalar @prefix, "$database: all are there");
		foreach my $row (reverse queue_of($s, '/names'))
		{
			my $result = break_row($s, '/names', { node => encode('UTF-8', $row->{node}) });
			is("$result->{out}$result->{state}", 't', encode('UTF-8', "- $row->{node}")) or diag($result->{err});
		}
		is(contenders('/names'), 0, '- and none is left');
		$other->delete($_) for @name;
		$s->quit;
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

# ------------------------------------------------------------ the wrong nodes

subtest 'what is not a contender of this lock' => sub {
	my $holder = named('the holder');
	$holder->value(q{SELECT zk_lock('/wrong'), zk_lock('/wrong/below')});
	my ($name) = map { $_->{node} } queue_of($admin, '/wrong');
	my ($below) = map { $_->{node} } queue_of($admin, '/wrong/below');
	# (names that no contender can have: sql/queue)
	my @others = ('config', 'lock-1', 'leader', 'x-lock-00000000001', '_c_x-semaphore-2-0000000001');
	$other->create("/zklock/wrong/$_", data => 'precious') for @others;
	foreach my $bad (@others, 'below', "below/$below", "../wrong/$name", "/zklock/wrong/$name")
	{
		is(break_row($admin, '/wrong', { node => $bad })->{state}, '22023', "refused: $bad");
	}
	is(break_row($admin, '/wrong', { node => $below })->{out}, 'f', 'another lock\'s: not there');
	is(join(' ', sort $other->children('/zklock/wrong')), join(' ', sort @others, 'below', $name), 'all is as it was');
	is($holder->value(q{SELECT string_agg(state, ' ') FROM zk_locks}), 'held held', 'and its holder holds it');

	# a contender with children is no lock: the nodes of recipes are ephemeral
	$other->create('/zklock/wrong/lock-0000000099/child') if $other->create('/zklock/wrong/lock-0000000099');
	my $result = break_row($admin, '/wrong', { node => 'lock-0000000099' });
	isnt($result->{state}, '', 'a node that has children: an error') or diag($result->{err});
	note "$result->{state} $result->{message}";
	ok($other->exists('/zklock/wrong/lock-0000000099/child'), 'and it is there');
	$other->delete_tree("/zklock/wrong/$_") for 'lock-0000000099', @others;

	# a persistent one without children is something left behind
	$other->create('/zklock/wrong/lock-0000000077', data => 'left behind');
	breaks('a node that lasts', '/wrong', (grep { $_->{node} =~ /77/ } queue_of($admin, '/wrong'))[0]);
	$holder->quit;
};

# ------------------------------------------------------- on a network like that

subtest 'zk_lock_break: lost answers' => sub {
	my $proxy = ZkProxy->new($zk);
	my $s = named('the breaker', hosts => $proxy);
	foreach my $fault (qw(swallow_and_drop drop_request))
	{
		foreach my $op ('delete', 'getData')
		{
			my @name = map { $other->contend('/zklock/lost') =~ s/.*\///r } 1 .. 3;
			$proxy->$fault($op);
			my $result = break_row($s, '/lost', { node => $name[1] });
			is($result->{state}, '', "$fault $op: no error");
			# if the answer was lost, it cannot know who did it
			like($result->{out}, $fault eq 'swallow_and_drop' && $op eq 'delete' ? qr/^[tf]$/ : qr/^t$/, '- removed');
			is(join(' ', sort $other->children('/zklock/lost')), join(' ', @name[ 0, 2 ]), '- that one and no other');
			$proxy->reset;
			$other->delete("/zklock/lost/$_") for @name;
			zk_wait_session($s, 'connected');
		}
	}

	# no answer at all: nobody may conclude that it did not happen
	my $name = $other->contend('/zklock/lost') =~ s/.*\///r;
	$proxy->hold('delete');
	$s->value(q{SET zklock.operation_timeout = '2s'});
	my $result = break_row($s, '/lost', { node => $name });
	$s->value(q{RESET zklock.operation_timeout});
	is($result->{state}, '58030', 'no answer: 58030');
	in_time($result->{seconds}, 2 + $SLACK, '- within operation_timeout');
	$proxy->wait_held;
	ok(!$other->exists("/zklock/lost/$name"), '- though it is gone');
	$proxy->reset;
	zk_until(sub { break_row($s, '/lost', { node => $name })->{out} eq 'f' }, 'to be told so the next time');

	# canceled on the way, and what is broken then
	$s->value(q{SET zklock.operation_timeout = '1min'});
	foreach my $op ('delete', 'getData')
	{
		my @name = map { $other->contend('/zklock/lost') =~ s/.*\///r } 1 .. 2;
		canceled_at($s, $proxy, $op, "SELECT zk_lock_break('/lost', '$name[0]')");
		is($s->value("SELECT zk_lock_break('/lost', '$name[1]')"), 't', '- and goes on');
		is(!!$other->exists("/zklock/lost/$name[0]"), $op eq 'getData' ? 1 : '', '- having done what it had asked for');
		$other->delete("/zklock/lost/$_") for @name;
	}

	# ZooKeeper is not there
	$s->value(q{SET zklock.operation_timeout = '500ms'; SET zklock.connect_timeout = '500ms'});
	$proxy->cut_off;
	$result = break_row($s, '/lost', { node => $name });
	like($result->{state}, qr/^580[03]0$/, 'out of reach: 58000 or 58030');
	in_time($result->{seconds}, 2 * 0.5 + $SLACK, '- soon');
	$proxy->reset;
	$s->quit;
};

# Only one of two callers is told that it removed the node.
subtest 'two who break the same' => sub {
	my @s = map { named("breaker $_") } 1 .. 4;
	foreach (1 .. 8)
	{
		my $name = $other->contend('/zklock/race') =~ s/.*\///r;
		$_->send("SELECT zk_lock_break('/race', '$name')") for @s;
		my @result = map { $_->wait } @s;
		is(join('', sort map { "$_->{out}$_->{state}" } @result), 'ffft', 'one has done it') or diag(map { $_->{err} } @result);
	}
	$_->quit for @s;
};

# ------------------------------------------------------------- hundreds of them

my $fast = zk_session($node);
my $kazoo = Peer->new('kazoo', $zk, session_timeout => 60_000);
# A thousand, where times are tested: each of kazoo's reads all names, which costs it much
# more than us.
subtest 'hundreds of contenders' => sub {
	my ($SQL, $KAZOO) = $TIMING ? (40, 960) : (16, 100);
	my %take = (
		lock => q{zk_lock('/hundreds')},
		xact => q{zk_xact_lock('/hundreds')},
		shared => q{zk_lock_shared('/hundreds')},
		semaphore => q{zk_semaphore_acquire('/hundreds', 3)});
	my @s;
	my $joins = sub {
		foreach my $how (@_)
		{
			my $s = zk_session($node);
			push @s, $s;
			$s->value("SET application_name = 'number ${\ scalar @s}'");
			$s->send("SELECT $take{$how}");
		}
	};

	# two readers that share the lock, and all others behind them
	$joins->('shared', 'shared');
	zk_until(sub { contenders('/hundreds') == 2 }, 'the first two');
	$joins->('lock', map { (qw(lock xact shared semaphore))[ $_ % 4 ] } 4 .. $SQL / 2);
	zk_until(sub { contenders('/hundreds') == $SQL / 2 }, 'half of SQL');
	is($kazoo->ask('clients 29'), 'ok', 'kazoo, 30 sessions');
	$kazoo->ask('identify kazoo');
	is($kazoo->ask("stand /zklock/hundreds $KAZOO"), 'ok', "- $KAZOO locks");
	zk_until(sub { contenders('/hundreds') == $SQL / 2 + $KAZOO }, 'all of kazoo');
	$joins->(map { (qw(lock xact shared semaphore))[ $_ % 4 ] } 1 .. $SQL / 2);
	zk_until(sub { contenders('/hundreds') == $SQL + $KAZOO }, 'the other half of SQL');

	my @rows = queue_is($fast, $other, '/hundreds', 'right to the row');
	is(scalar @rows, $SQL + $KAZOO, 'a row for each');

	# their identities according to PostgreSQL
	my %activity = map { (split /\|/)[0] => $_ } split /\n/, $admin->value(
		q{SELECT pid, application_name, datname, usename FROM pg_stat_activity WHERE application_name LIKE 'number %'});
	my %number = map { ($s[$_]->pid => $_ + 1) } 0 .. $#s;
	my @ours = grep { defined $_->{pid} } @rows;
	is(zk_few(grep { $_ } map { my $r = $_;
			my $shown = join '|', @$r{qw(pid application_name datname usename)};
			$shown eq ($activity{ $r->{pid} } // '') ? () : $shown } @ours), '', 'SQL: as in pg_stat_activity');
	is(join(' ', sort { $a <=> $b } map { $number{ $_->{pid} } } @ours), join(' ', 1 .. $SQL), 'each of them once');
	is(join(' ', sort { $a <=> $b } map { /^kazoo (\d+)$/ } map { $_->{data} // '' } @rows), join(' ', 0 .. $KAZOO - 1), 'kazoo: each once');
	is(scalar(grep { $_->{granted} } @rows), 2 + 3, 'two readers hold, and three have places');
	my %sessions = map { $_->{zk_session} => 1 } grep { !defined $_->{pid} } @rows;
	is(keys %sessions, 30, 'of 30 sessions of kazoo');

	my @seconds = sort { $a <=> $b } map { $fast->query(q{SELECT count(*) FROM zk_lock_queue('/hundreds')})->{seconds} } 1 .. ($TIMING ? 15 : 1);
	diag(sprintf 'zk_lock_queue of %d: median %.1f ms', scalar @rows, 1000 * $seconds[ @seconds / 2 ]);
	in_time($seconds[ @seconds / 2 ], 0.1, 'in less than 100 ms');

	# not even the heartbeats of the looking session are late
	is($fast->value('SELECT reconnections, losses FROM zk_session'), '0|0', 'and its session is at ease');
	$admin->value(q{SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'number %' AND state = 'active'});
	$_->wait for @s;
	$_->quit for @s;
	$kazoo->quit(60);
	zk_until(sub { contenders('/hundreds') == 0 }, 'all to go');
};

# ----------------------------------------------------------- while they come and go

subtest 'read 100 times while they come and go' => sub {
	my $READS = 100;
	$admin->value(<<~'SQL');
		CREATE PROCEDURE come_and_go(path text) LANGUAGE plpgsql AS $$
		BEGIN
			WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'enough') LOOP
				BEGIN
					CASE (random() * 3)::int
						WHEN 0 THEN
							PERFORM zk_lock(path, '50 ms');
						WHEN 1 THEN
							PERFORM zk_xact_lock_shared(path);
						WHEN 2 THEN
							PERFORM zk_xact_semaphore_acquire(path, 2, '50 ms');
						ELSE
							PERFORM zk_lock(path), zk_lock_shared(path), zk_unlock(path);
					END CASE;
				EXCEPTION WHEN io_error THEN    -- not even asked within 50 ms
					NULL;
				END;
				COMMIT;
				PERFORM zk_unlock_all();
			END LOOP;
		END $$;

		-- What is wrong with what a queue shows, if anything
		CREATE FUNCTION look_at(path text, OUT rows int, OUT wrong text) LANGUAGE plpgsql AS $$
		DECLARE
			r record;
			last_kind text;
			last_position int;
			last_token bigint;
			writers int := 0;
			seen text[] := '{}';
		BEGIN
			rows := 0;
			FOR r IN SELECT * FROM zk_lock_queue(path) LOOP
				rows := rows + 1;
				IF r.node = ANY (seen) THEN
					wrong := concat_ws('; ', wrong, r.node || ' twice');
				END IF;
				seen := seen || r.node;
				IF last_kind IS DISTINCT FROM r.kind THEN
					IF r.position <> 1 OR NOT r.granted OR (last_kind IS NOT NULL AND r.kind = 'lock') THEN
						wrong := concat_ws('; ', wrong, format('begins with %s', r));
					END IF;
				ELSIF r.position <> last_position + 1 THEN
					wrong := concat_ws('; ', wrong, format('%s comes after %s', r, last_position));
				ELSIF r.token <= last_token THEN
					wrong := concat_ws('; ', wrong, format('%s comes after token %s', r, last_token));
				END IF;
				IF r.kind = 'lock' THEN
					IF r.granted <> (writers = 0 AND (r.mode = 'shared' OR r.position = 1)) THEN
						wrong := concat_ws('; ', wrong, format('granted of %s', r));
					END IF;
					writers := writers + (r.mode = 'exclusive')::int;
				END IF;
				-- each says of itself only what is true: ours know their session's id
				IF r.pid IS NULL THEN
					IF r.data !~ '^kazoo' OR r.host IS NOT NULL OR r.application_name IS NOT NULL OR r.node !~ '__lock__' THEN
						wrong := concat_ws('; ', wrong, format('of kazoo: %s', r));
					END IF;
				ELSIF NOT EXISTS (SELECT FROM who WHERE pid = r.pid AND session = r.zk_session AND name = r.application_name)
					OR r.data IS NOT NULL OR r.node ~ '__lock__' THEN
					wrong := concat_ws('; ', wrong, format('of SQL: %s', r));
				END IF;
				last_kind := r.kind;
				last_position := r.position;
				last_token := r.token;
			END LOOP;
		END $$;
		CREATE TABLE who (pid int, session text, name text);
		SQL
	my @s;
	foreach my $i (1 .. 4)
	{
		my $s = zk_session($node);
		$s->value("SET application_name = 'comes and goes $i'; SELECT zk_lock('/warm'), zk_unlock('/warm')");
		$s->value(q{INSERT INTO who SELECT pg_backend_pid(), session_id, current_setting('application_name') FROM zk_session});
		push @s, $s;
	}
	my $peer = Peer->new('kazoo', $zk);
	is($peer->ask('clients 3'), 'ok', 'kazoo is there');
	$peer->ask('identify kazoo');
	my $dir = PostgreSQL::Test::Utils::tempdir();
	append_to_file("$dir/counter", "0\n");
	$_->send(q{CALL come_and_go('/busy')}) for @s;

	# until it has been read this often, and kazoo has had its time
	my ($reads, $rows, %sizes, @wrong) = (0, 0);
	$peer->send("run /zklock/busy 1 pattern 0 $dir/counter $dir/log");
	my $deadline = time + $TIMEOUT;
	while (($reads < $READS || !$peer->is_done) && time < $deadline)
	{
		foreach (split /\n/, $fast->value(q{SELECT l.* FROM generate_series(1, 10) i, LATERAL (SELECT i) x, look_at('/busy') l}))
		{
			my ($n, $wrong) = split /\|/, $_, 2;
			$reads++;
			$sizes{$n}++;
			push @wrong, $wrong if $wrong ne '';
		}
	}
	cmp_ok($reads, '>=', $READS, 'read often');
	is(zk_few(@wrong), '', 'and nothing was wrong');
	like($peer->wait, qr/^ok \d+$/, 'kazoo had its turns');
	my $enough = zk_session($node);
	$enough->value(q{SET application_name = 'enough'});
	is(join(' ', map { $_->wait->{err} } @s), ' ' x $#s, 'and so had SQL');
	diag('rows: reads ' . join ', ', map { "$_: $sizes{$_}" } sort { $a <=> $b } keys %sizes);
	cmp_ok(scalar(keys %sizes), '>', 2, 'the queue was never the same');
	$_->quit for @s, $enough, $peer;
};

# ---------------------------------------------------------------------- the end

$_->quit for $fast, $admin;
$other->close;
zk_no_crash($node);
$node->stop;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
