# zk_lock_break: a user with the privilege removes a contender, of whichever
# client and kind; what the caller and the log are told; what its victim
# notices.  Then what can go wrong on the way, and who may do it.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Encode qw(encode);
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

my $zk = ZooKeeper->new->start;
# A loss is noticed within a quarter of this.  A statement that looks at a lost lock
# is not to be canceled: that is t/034's.
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '6s', 'zklock.cancel_on_loss' => 'off');
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (who text)');
my $other = $zk->client;

sub contenders { return $other->contenders("/zklock$_[0]"); }

# A backend with an application name and a ZooKeeper session
sub named
{
	my ($name, @opt) = @_;
	my $s = zk_session($node, @opt);
	$s->value("SELECT zk_lock('/warm/' || pg_backend_pid()), zk_unlock_all(); SET application_name = '$name'");
	return $s;
}

# The new part of the log
my $log_at = 0;

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

# --------------------------------------------------------------- SQL's holders

my %kind = (
	'exclusive, session' => [ q{zk_lock('/h')}, q{zk_unlock('/h')}, q{zk_lock('/h')} ],
	'exclusive, transaction' => [ q{zk_xact_lock('/h')}, undef, q{zk_lock('/h')} ],
	'shared, session' => [ q{zk_lock_shared('/h')}, q{zk_unlock_shared('/h')}, q{zk_lock('/h')} ],
	'shared, transaction' => [ q{zk_xact_lock_shared('/h')}, undef, q{zk_lock('/h')} ],
	'semaphore, session' => [ q{zk_semaphore_acquire('/h', 1)}, q{zk_semaphore_release('/h')}, q{zk_semaphore_acquire('/h', 1)} ],
	'semaphore, transaction' => [ q{zk_xact_semaphore_acquire('/h', 1)}, undef, q{zk_semaphore_acquire('/h', 1)} ],
	'downgraded' => [ q{zk_lock('/h'), zk_lock_shared('/h'), zk_unlock('/h')}, q{zk_unlock_shared('/h')}, q{zk_lock('/h')} ]);
foreach my $name (sort keys %kind)
{
	my ($take, $give, $next_take) = @{ $kind{$name} };
	subtest "a holder: $name" => sub {
		my ($victim, $next) = (named('the victim'), named('the next one'));
		$victim->value("BEGIN; INSERT INTO t VALUES ('victim'); SELECT $take; SELECT zk_lock('/h/another')");
		$next->send("BEGIN; INSERT INTO t VALUES ('next'); SELECT $next_take");
		zk_until(sub { contenders('/h') == 2 }, 'the next one');
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
		is($victim->query("SAVEPOINT s; SELECT $take")->{state}, '55000', 'it cannot lock it again');
		$victim->value('ROLLBACK TO s');
		zk_is_lost($victim->query('COMMIT'), '/h', 'its COMMIT');
		$next->value('COMMIT; SELECT zk_unlock_all()');
		is($admin->value(q{SELECT string_agg(who, ' ') FROM t}), 'next', 'only the next one wrote');
		is($victim->value('SELECT losses FROM zk_session'), 0, 'its ZooKeeper session goes on');
		is($victim->value("BEGIN; SELECT $take; INSERT INTO t VALUES ('again'); COMMIT; SELECT count(zk_unlock_all())")
			=~ s/\n.*//sr =~ s/\|.*//r, 't', 'and it locks it anew');
		$admin->value('TRUNCATE t');
		$_->quit for $victim, $next;
	};
}

subtest 'a name that is longer than any path of ours' => sub {
	$other->contend('/zklock/long_name', encode('UTF-8', "\x{e9}\\" x 2500) . 'lock-');
	my ($row) = queue_of($admin, '/long_name');
	my $result = break_row($admin, '/long_name', { node => encode('UTF-8', $row->{node}) });
	is($result->{out}, 't', 'what zk_lock_queue shows, zk_lock_break takes') or diag substr $result->{err}, 0, 400;
};

# A terminal that shows the notice or the log would interpret them
subtest 'what others wrote for terminals' => sub {
	my @data = ("\e[31mred \e]0;title\a \xc2\x9b31m \r\x7f", "zklock\nuser \e[31mred\nhost \xc2\x9b31m\n");
	$other->contend('/zklock/terminal', '_c_other-lock-', data => $_) for @data;
	new_log();
	foreach my $row (queue_of($admin, '/terminal'))
	{
		my $result = break_row($admin, '/terminal', $row);
		is($result->{out}, 't', 'removed');
		my $text = $result->{err} . new_log();
		like($text, qr/\\x1b\[31mred/, 'ESC is told by its number');
		like($text, qr/\\xc2\\x9b31m/, 'and what is one in eight bits');
		unlike($text, qr/[\e\a\r\x7f]|\xc2\x9b/, 'and not obeyed');
	}
};

# held before the transaction began, and written since
subtest 'a hold of the session, at a COMMIT that wrote' => sub {
	my $victim = named('the victim');
	$victim->value(q{SELECT zk_lock('/h'); BEGIN; INSERT INTO t VALUES ('victim')});
	break_row($admin, '/h', (queue_of($admin, '/h'))[0]);
	zk_wait_hold($victim, 'lost');
	zk_is_lost($victim->query('COMMIT'), '/h', 'its COMMIT');
	my $result = $victim->query(q{SELECT zk_unlock('/h')});
	is("$result->{out} @{ $result->{warnings} }", 'f the lock on "/h" had been lost', 'zk_unlock warns, and is false');
	$victim->quit;
};

# strict asks at COMMIT, and so finds what the watch has not reported yet
subtest 'before it is told' => sub {
	my $proxy = ZkProxy->new($zk);
	my $victim = named('the victim', options => '-c zklock.commit_guard=strict -c zklock.session_timeout=60s -c zklock.hosts=' . $proxy->hosts);
	$victim->value(q{BEGIN; SELECT zk_xact_lock('/h'); INSERT INTO t VALUES ('victim')});
	$proxy->hold_event(alone => 1);
	is(break_row($admin, '/h', (queue_of($admin, '/h'))[0])->{out}, 't', 'broken, and the event does not come');
	is($victim->value('SELECT state FROM zk_locks'), 'held', 'it believes that it holds it');
	zk_is_lost($victim->query('COMMIT'), '/h', 'its COMMIT, under a strict guard');
	$proxy->reset;
	$victim->quit;
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
		is($s[0]->value('SELECT state FROM zk_locks'), 'held', 'and holds it');
		is($s[0]->value('SELECT waits FROM zk_session'), 1, 'that was one wait');
		$_->quit for @s, $holder;

		# however often, it takes no longer than its timeout.  It is in the
		# queue when its time is over.
		$holder = named('the holder');
		$holder->value($name eq 'semaphore' ? q{SELECT zk_semaphore_acquire('/w', 1)} : q{SELECT zk_lock('/w')});
		my $waiter = named('the waiter');
		my $began = time;
		$waiter->send("SELECT $call('/w'$args, '5s')");
		my $broken = 0;
		while (time < $began + ($broken > 1 ? 0.6 : 3))
		{
			foreach my $row (grep { $_->{application_name} eq 'the waiter' } queue_of($admin, '/w'))
			{
				$broken++ if break_row($admin, '/w', $row)->{out} eq 't';
			}
		}
		is($waiter->wait->{out}, 'f', "broken $broken times: false");
		in_time(time - $began, 5 + $SLACK, 'in its time');
		cmp_ok($broken, '>', 1, 'which was often');
		$_->quit for $holder, $waiter;
	};
}

# Both nodes of an upgrading session: each is a separate loss.
subtest 'one who upgrades' => sub {
	my ($victim, $reader) = (named('the victim'), named('a reader'));
	$victim->value(q{SELECT zk_lock_shared('/u')});
	$reader->value(q{SELECT zk_lock_shared('/u')});
	$victim->send(q{SELECT zk_lock('/u')});
	zk_until(sub { contenders('/u') == 3 }, 'all');
	my @rows = queue_is($admin, $other, '/u', 'two readers, of whom one waits to write');
	is(join(' ', map { "$_->{mode} $_->{granted}" } @rows), 'shared 1 shared 1 exclusive 0', 'who holds');
	is(break_row($admin, '/u', $rows[2])->{out}, 't', 'its second node is broken');
	zk_until(sub { (queue_of($admin, '/u'))[2] }, 'it to queue again');
	is(break_row($admin, '/u', $rows[0])->{out}, 't', 'its first one');
	$reader->value('SELECT zk_unlock_all()');
	my $result = $victim->wait;
	like($result->{state} . $result->{out}, qr/^(?:55000|40001|t)$/, 'it ends') or diag($result->{err});
	note "it ends with $result->{state} $result->{out}";
	zk_until(sub { $victim->value(q{SELECT state FROM zk_locks WHERE mode = 'shared'}) eq 'lost' }, 'the loss');
	pass('its shared lock is lost');
	$victim->query('SELECT zk_unlock_all(), zk_unlock_all()');
	is($victim->value('SELECT count(*) FROM zk_locks'), 0, 'and given back');
	$_->quit for $victim, $reader;
};

# ------------------------------------------------------------- other clients

subtest 'kazoo and Curator' => sub {
	my %peer = map { $_ => Peer->new($_, $zk, no_wait => 1) } qw(kazoo curator);
	is($peer{$_}->wait, 'ready', "$_ is there") for sort keys %peer;
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
};

# What the queue shows can be used to break it, whatever the name is.
subtest 'names of nodes' => sub {
	my @prefix = ('lock-', "caf\xc3\xa9-lock-", encode('UTF-8', "\x{30ed}-lock-"), 'a b\'"$1\\-lock-', '\\x41\\n-lock-', '%s{}-lock-', '..lock-',
		'-lock-', 'x-144-', 'abc__rlock__', '__WRIT__', '_c_0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1-semaphore-2-');
	$node->safe_psql('postgres', q{CREATE DATABASE latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
	$node->safe_psql('latin1', 'CREATE EXTENSION zklock');
	local $ENV{PGCLIENTENCODING} = 'UTF8';
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

subtest 'what others wrote, in the log' => sub {
	foreach my $data ("two\nlines: LOG:  00000: forged\n", "\xff\0\\", 'd' x 500_000, "%s %n %m", "zklock\nhost a\\nb\npid 7\nuser \xff")
	{
		my $name = $other->contend('/zklock/log', '_c_other-lock-', data => $data) =~ s/.*\///r;
		new_log();
		is(break_row($admin, '/log', { node => $name })->{out}, 't', 'broken');
		my $log = new_log();
		unlike($log, qr/^LOG:  00000: forged/m, '- no line of its own in the log');
		cmp_ok(length $log, '<', 20_000, '- nor a flood');
		unlike($log, qr/\0/, '- nor a NUL');
	}
};

# ------------------------------------------------------------ the wrong nodes

subtest 'what is not a contender of this lock' => sub {
	my $holder = named('the holder');
	$holder->value(q{SELECT zk_lock('/wrong'), zk_lock('/wrong/below')});
	my ($name) = map { $_->{node} } queue_of($admin, '/wrong');
	my ($below) = map { $_->{node} } queue_of($admin, '/wrong/below');
	my @others = ('config', 'lock-1', 'leader', 'x-lock-00000000001', '_c_x-semaphore-2-0000000001');
	$other->create("/zklock/wrong/$_", data => 'precious') for @others;
	$other->create('/precious', data => 'precious');
	foreach my $bad (@others, 'below', "below/$below", "../wrong/$name", "/zklock/wrong/$name", '..', '.', '', '../..', '../../precious',
		"$name/", "$name\\", uc $name, "$name ")
	{
		is(break_row($admin, '/wrong', { node => $bad })->{state}, '22023', "refused: $bad");
	}
	is(break_row($admin, '/wrong', { node => $below })->{out}, 'f', 'another lock\'s: not there');
	is(join(' ', sort $other->children('/zklock/wrong')), join(' ', sort @others, 'below', $name), 'all is as it was');
	ok($other->exists('/precious'), 'elsewhere, too');
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

subtest 'lost answers' => sub {
	my $proxy = ZkProxy->new($zk);
	my $s = named('the breaker', options => '-c zklock.hosts=' . $proxy->hosts);
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
		$proxy->hold($op);
		$s->send("SELECT zk_lock_break('/lost', '$name[0]')");
		$proxy->wait_held;
		zk_wait_waiting($admin, $s);
		my $began = time;
		$admin->value('SELECT pg_cancel_backend(' . $s->pid . ')');
		is($s->wait->{state}, '57014', "canceled while it waits for $op");
		in_time(time - $began, $SLACK, '- at once');
		$proxy->release;
		$proxy->reset;
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
	foreach (1 .. 20)
	{
		my $name = $other->contend('/zklock/race') =~ s/.*\///r;
		$_->send("SELECT zk_lock_break('/race', '$name')") for @s;
		my @result = map { $_->wait } @s;
		is(join('', sort map { "$_->{out}$_->{state}" } @result), 'ffft', 'one has done it') or diag(map { $_->{err} } @result);
	}
	$_->quit for @s;
};

# ------------------------------------------------------------------ who may

subtest 'grants' => sub {
	$admin->value(<<~'SQL');
		CREATE ROLE locker LOGIN;
		CREATE ROLE looker LOGIN;
		CREATE ROLE breaker LOGIN;
		GRANT EXECUTE ON FUNCTION zk_lock, zk_unlock_all, zk_lock_token TO locker, looker, breaker;
		GRANT EXECUTE ON FUNCTION zk_lock_queue TO looker;
		GRANT EXECUTE ON FUNCTION zk_lock_queue, zk_lock_break TO breaker;
		SQL
	my %s = map { my $s = named($_); $s->value("SET SESSION AUTHORIZATION $_"); ($_ => $s) } qw(locker looker breaker);
	is($s{locker}->value(q{SELECT zk_lock('/grants')}), 't', 'the locker locks');
	my ($row) = queue_of($admin, '/grants');
	is($row->{usename}, 'locker', 'which shows');
	my %may = (locker => [qw(42501 42501)], looker => [ '', '42501' ], breaker => [ '', '' ]);
	foreach my $who (qw(locker looker breaker))
	{
		is($s{$who}->query(q{SELECT mode FROM zk_lock_queue('/grants')})->{state}, $may{$who}[0], "$who: looks: $may{$who}[0]");
		is(break_row($s{$who}, '/grants', $row)->{state}, $may{$who}[1], "$who: breaks: $may{$who}[1]");
	}
	zk_wait_hold($s{locker}, 'lost');
	pass('of which the locker learns');

	# the views show a user only his own session, whoever he is
	$s{locker}->query('SELECT zk_unlock_all()');
	is($s{$_}->value("SELECT zk_lock('/grants/$_')"), 't', "$_ locks") for sort keys %s;
	foreach my $who (sort keys %s)
	{
		is($s{$who}->value('SELECT path FROM zk_locks'), "/grants/$who", "$who sees its own lock alone");
		is($s{$who}->value(q{SELECT path FROM zk_lock_status()}), "/grants/$who", '- in the function, too');
	}
	is(join(' ', sort map { $_->value('SELECT session_id FROM zk_session') } values %s),
		join(' ', sort map { $_->{zk_session} } map { queue_of($admin, "/grants/$_") } keys %s), 'each sees its own session');
	is($admin->value('SELECT count(*) FROM zk_locks'), 0, 'a superuser sees none of theirs');
	isnt($admin->value('SELECT session_id FROM zk_session'), $s{locker}->value('SELECT session_id FROM zk_session'), 'nor their session');
	my $nobody = named('nobody');
	$nobody->value('CREATE ROLE nobody; SET SESSION AUTHORIZATION nobody');
	is($nobody->query('SELECT count(*) FROM zk_locks, zk_session')->{out}, '0', 'anybody may look at the views');
	is($nobody->query(q{SELECT zk_lock_queue('/grants')})->{state}, '42501', 'and at no queue');
	is(break_row($nobody, '/grants', $row)->{state}, '42501', 'nor break one');
	$_->quit for values %s, $nobody;
};

# ------------------------------------------------------------------- the end

$admin->quit;
$other->close;
zk_no_crash($node);
$node->stop;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
