# ZooKeeper cannot be reached, or is something else, or comes and goes: at the
# first call, while a lock is held, while one waits.  Also what it takes away: sessions
# that expire.  (Nodes that somebody deletes: t/025, t/074, and
# t/056 with their directories.)
#
# A lock that may be lost is never shown as held, and the backend continues with a new
# ZooKeeper session.
#
# Also, which server is tried when, for how long, and how soon again: a living one
# among several is found at once, a silent one leaves time for the others, and
# while none answers, tries are never closer together than is useful.

use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::INET;
use List::Util qw(max);

use Child;
use Tests;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1.5;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
# A statement that looks at a lost lock is not to be canceled: that is t/034's
my $node = zk_cluster(
	'main', $proxy,
	'zklock.cancel_on_loss' => 'off',
	'zklock.session_timeout' => '6s');
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (i int)');

# Other contenders in the queues, which bypass the proxy, and send no heartbeats
my $other = $zk->client;

sub own_nodes { return grep { !/other/ } $zk->children("/zklock$_[0]"); }

# An address where no server listens
sub closed_port { return '127.0.0.1:' . ZooKeeper::free_port(); }

# An address that does not even answer to a SYN, since its listener's queue is
# full.
my @full;

sub black_hole
{
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1)
	  or die "could not listen: $@";
	push @full, $listener;
	while (@full < 50)
	{
		my $address = '127.0.0.1:' . $listener->sockport;
		my $client = IO::Socket::INET->new(PeerAddr => $address, Timeout => 0.2)
		  or return $address;
		push @full, $client;
	}
	die 'the queue of the listener does not get full';
}

# --------------------------------------------------------- at the first call

# (What such a call says, and its hints: t/024; one that waits: below)

# Answers to a client that connects.  A good handshake: the session's timeout,
# id and password, and not read-only.
sub handshake
{
	my ($timeout, $id) = @_;
	return pack('N/a*', pack('N N q> N/a* C', 0, $timeout, $id, 'x' x 16, 0));
}

my $nonsense = join '', map { chr rand 256 } 1 .. 5000;
my $session = handshake(4000, 1);
my $http = "HTTP/1.1 400 Bad Request\r\nContent-Length: 15\r\n\r\n400 Bad Request";
my $CLOSES = 1;

# What it says at once, what when it has heard something, and whether it closes then
my %not_zookeeper = (
	'speaks HTTP' => [ '', $http, $CLOSES ],
	'speaks HTTP, and waits' => [ '', $http ],
	'greets like SSH' => ["SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"],
	'greets like SMTP, and closes' => [ "220 localhost ESMTP\r\n", undef, $CLOSES ],
	'says one byte' => ['x'],
	'talks nonsense' => [$nonsense],
	'talks zeros' => [ "\0" x 5000 ],
	'talks of a negative length' => [ '', "\xff" x 100 ],
	'says nothing' => [''],
	'closes at once' => [ '', undef, $CLOSES ],
	'closes when it has heard' => [ '', '', $CLOSES ],
	'gives a session for days' => [ '', handshake(540_291_120, 1) ],
	'gives a session for no time' => [ '', handshake(0, 0) ],
	# from here on it looks like ZooKeeper for a moment
	'gives a session, and closes' => [ '', $session, $CLOSES ],
	'gives a session, then nothing' => [ '', $session ],
	'gives a session, then nonsense' => [ '', $session . $nonsense ],
	'gives a session, then a negative length' => [ '', $session . "\xff" x 100 ],
	'gives a session, then an answer to nothing' => [ '', $session . pack('N/a*', pack('N q> N', 4711, 1, 0) . 'x' x 50) ],
	'gives a session, then an event' => [ '', $session . pack('N/a*', pack('l> q> N N N N/a*', -1, -1, 0, 2, 3, '/x')) ],
	'gives a session, then an event that is too short' => [ '', $session . pack('N/a*', pack('l> q> N', -1, -1, 0)) ],
	'gives a session, then an answer to an auth' => [ '', $session . pack('N/a*', pack('l> q> l>', -4, 1, -115)) ]);

sub stranger
{
	my ($greeting, $answer, $closes) = @_;
	return sub {
		my ($sock) = @_;
		print $sock $greeting;
		sysread $sock, my $request, 4096 if defined $answer;
		print $sock $answer // '';
		return !$closes;
	};
}

# All of them at the same time, which is faster.
subtest 'a server that is not ZooKeeper' => sub {
	my $seconds = 3;
	my %session;
	my $log_before = -s $node->logfile;
	my %address = ('refuses' => closed_port(), 'is a black hole' => black_hole(), 'cannot even be tried' => '255.255.255.255:2181');
	foreach my $what (sort keys %address, keys %not_zookeeper)
	{
		my $hosts = $address{$what} // (Child::serve(stranger(@{ $not_zookeeper{$what} })))[0];
		$session{$what} = zk_session_with(
			$node,
			hosts => $hosts,
			session_timeout => '4s',
			connect_timeout => "${seconds}s",
			operation_timeout => "${seconds}s");
	}
	my %cpu = map { $_ => zk_cpu_seconds($session{$_}->pid) } keys %session;
	$_->send("SELECT zk_lock('/a')") for values %session;
	my %result;
	zk_until(
		sub {
			$result{$_} = $session{$_}->wait
			  for grep { !$result{$_} && $session{$_}->is_done } keys %session;
			return keys %result == keys %session;
		},
		'the end of all calls');
	foreach my $what (sort keys %session)
	{
		my $session = $session{$what};
		my $result = $result{$what};
		# a session that was established is lost
		my $limit = $what =~ /^gives a session, / ? 2 * $seconds : $seconds;
		like($result->{state}, $limit > $seconds ? qr/^(?:58000|58030)$/ : qr/^58000$/, "$what: 58000");
		isnt($result->{hint}, '', "$what: with a hint");
		in_time($result->{seconds}, $limit + $SLACK, "$what: in time");
		cmp_ok(zk_cpu_seconds($session->pid) - $cpu{$what}, '<', 0.2 * $result->{seconds} + 0.05,
			"$what: does not spin");
	}
	cmp_ok((-s $node->logfile) - $log_before, '<', 1000 * keys %session, 'does not flood the log');

	foreach my $what (sort keys %session)
	{
		my $session = $session{$what};
		$session->value("SET zklock.hosts = '" . $zk->hosts . "'");
		zk_locks_again($session, "$what: works with ZooKeeper afterwards");
	}
};

# -------------------------------------------------------------- while holding

subtest 'down while a lock is held, and back within the session timeout' => sub {
	my $session = zk_session_with($node, session_timeout => '60s');
	$session->value("SELECT zk_lock('/h')");
	my ($mine) = own_nodes('/h');
	my $token = $session->value("SELECT zk_lock_token('/h')");

	$proxy->cut_off;
	ok(zk_wait_hold($session, 'suspect'), 'suspect while it is down');
	is($session->value('SELECT state FROM zk_session'), 'suspended', 'as is the session');
	is($session->value("SELECT zk_lock_token('/h')"), $token, 'with its token');
	my $commit = $session->query('INSERT INTO t VALUES (1)');
	is("$commit->{state} @{ $commit->{warnings} }", ' ', 'and a COMMIT may rely on what was proven a moment ago');
	in_time($commit->{seconds}, 0.95, 'at once');

	$session->value("SET zklock.operation_timeout = '300ms'");
	my $result = $session->query("SELECT zk_lock('/h')");
	is($result->{state}, '58030', 're-entry is refused after operation_timeout');
	is($result->{message}, 'lost connection to ZooKeeper', 'says why');
	isnt($result->{hint}, '', 'with a hint');
	cmp_ok($result->{seconds}, '>', 0.25, 'not before');
	in_time($result->{seconds}, 0.3 + $SLACK, 'nor later');
	$result = $session->query("SELECT zk_lock('/h', '100ms')");
	is($result->{state}, '58030', 'nor is it false when its time is over');
	$session->value('RESET zklock.operation_timeout');

	$session->send("SELECT zk_lock('/h')");
	zk_wait_waiting($admin, $session);
	is($session->cancel($admin)->{state}, '57014', 're-entry can be canceled');
	is($session->value("SELECT count FROM zk_locks"), 1, 'and does not count then');
	$session->send("SELECT zk_lock('/h')");
	zk_wait_waiting($admin, $session);
	$proxy->pass;
	is($session->wait->{out}, 't', 're-entry is granted when ZooKeeper is back');
	is($session->value('SELECT state, count FROM zk_locks'), 'held|2', 'held, twice');
	is("@{[ own_nodes('/h') ]}", $mine, 'by the same node');
	is($session->value("SELECT zk_lock_token('/h')"), $token, 'with the same token');
	is($session->value("SELECT zk_unlock('/h'), zk_unlock('/h')"), 't|t', 'unlocked');
};

subtest 'down while a lock is waited for' => sub {
	my $before = $other->contend('/zklock/w');
	my $patient = zk_session_with($node, session_timeout => '60s', operation_timeout => '60s');
	my $impatient = zk_session_with($node, session_timeout => '60s', operation_timeout => '2s');
	$_->send("SELECT zk_lock('/w')") for $patient, $impatient;
	zk_wait_queued($zk, $patient, $impatient);
	my $single = zk_session_with($node, session_timeout => '60s', operation_timeout => '60s', node_style => 'single');
	my $one = $other->create('/zklock/single', mode => 'ephemeral');
	$single->send("SELECT zk_lock('/single')");
	zk_until(sub { $zk->four_letter('wchp') =~ m{^$one$}m }, 'it to watch');
	$proxy->cut_off;
	my $result = $impatient->wait;
	is($result->{state}, '58030', 'is 58030 after operation_timeout');
	in_time($result->{seconds}, 10, 'in time');
	ok(!$patient->is_done, 'who has more time goes on waiting');
	$other->delete($_) for $before, $one;
	sleep 0.1;
	ok(!$_->is_done, 'and does not have it before it knows') for $patient, $single;
	$proxy->pass;
	is($_->wait->{out}, 't', 'and has it when ZooKeeper is back') for $patient, $single;
	$_->value('SELECT zk_unlock_all()') for $patient, $single;
	zk_until(sub { own_nodes('/w') == 0 }, 'no node is left');
	zk_locks_again($impatient, 'the other one goes on, too');
};

# --------------------------------------------------------------------- expiry

# (What becomes of locks of each kind when their session has expired, and of a COMMIT that
# relied on them: t/025, and if the backend was stopped: t/014; of those who wait: t/056.)

# Each handshake makes ZooKeeper begin the session timeout anew, so the client must stop
# making them: two servers accept connections, and requests get no further.
subtest 'servers that accept connections, and answer no request' => sub {
	my @deaf = map { ZkProxy->new($zk) } 1 .. 2;
	my %server = (hosts => join(',', map { $_->hosts } @deaf), session_timeout => '9s');    # a third is for connecting again
	my $holder = zk_session_with($node, %server);
	my $idle = zk_session_with($node, %server);
	my $waiter = zk_session_with($node, hosts => $zk->hosts);
	$holder->value("BEGIN; INSERT INTO t VALUES (4); SELECT zk_xact_lock('/deaf')");
	$idle->value("SELECT zk_lock('/deaf/idle'), zk_unlock('/deaf/idle')");
	my ($id) = $idle->value('SELECT session_id FROM zk_session');
	$waiter->send("SELECT zk_lock('/deaf')");
	zk_wait_queued($zk, $waiter);

	$_->hold_request([qw(setWatches setWatches2 sync getData exists getChildren create2 delete multi)], 1_000_000) for @deaf;
	my $began = time;
	my %seen;
	zk_until(sub { my $state = $holder->value('SELECT state FROM zk_locks'); $seen{$state} = 1; $state eq 'lost' }, 'lost');
	ok($seen{suspect}, 'suspect before that');
	ok(!$waiter->is_done, 'and nobody else has the lock by then');
	in_time(time - $began, 9 + $SLACK, 'lost after a session timeout without an answered request');
	cmp_ok($holder->value('SELECT reconnections FROM zk_session'), '>', 0, 'though a server has accepted it again');
	is($holder->value('SELECT losses FROM zk_session'), 1, 'once');
	is($waiter->wait->{out}, 't', 'who waits gets the lock');
	in_time(time - $began, 18 + 2 * $SLACK, 'after another, when ZooKeeper has ended the session');
	is($holder->query('COMMIT')->{state}, '40001', 'COMMIT fails');
	zk_until(sub { $idle->value('SELECT state FROM zk_session') eq 'none' }, 'a session that holds nothing to be given up, too');

	$_->reset for @deaf;
	zk_locks_again($_, 'works with a new session') for $holder, $idle;
	isnt($idle->value('SELECT session_id FROM zk_session'), $id, '- which is another one');
	$_->quit for $holder, $idle, $waiter;
	$_->stop for @deaf;
};

# ------------------------------------------------------------------ resources

subtest 'an outage costs nothing' => sub {
	my %outage = (
		refused => sub { $_[0]->cut_off },
		'closed at once' => sub { $_[0]->refuse(at_accept => 1); $_[0]->drop; },
		silent => sub { $_[0]->blackhole });
	my %proxy = map { $_ => ZkProxy->new($zk) } keys %outage;
	my $before = $other->contend('/zklock/r');
	my %s;
	foreach my $name (sort keys %outage)
	{
		my ($holder, $waiter) = map { $s{"$name: $_"} = zk_session_with($node, hosts => $proxy{$name}, session_timeout => '60s') } qw(idle waiting);
		$holder->value(q{SELECT zk_lock('/r/' || pg_backend_pid())});
		$waiter->send("SELECT zk_lock('/r')");
		zk_wait_queued($zk, $waiter);
	}
	$outage{$_}->($proxy{$_}) for keys %outage;
	my $log_before = -s $node->logfile;
	my %cpu = map { $_ => zk_cpu_seconds($s{$_}->pid) } keys %s;
	sleep 2;    # the interval that is measured
	cmp_ok(zk_cpu_seconds($s{$_}->pid) - $cpu{$_}, '<', 0.2, "$_: does not spin") for sort keys %s;
	is(-s $node->logfile, $log_before, 'nothing in the log');
	$_->cancel($admin) for grep { $_->{mark} } values %s;
	$_->pass for values %proxy;
	$other->delete($before);
	$_->quit for values %s;
};

# (Threads and descriptors: t/076, t/040; and of many backends: t/012)

# A server that is slow at first, and then silent: what a quorum has confirmed
# is then too old, and asking again is part of the same try.
subtest 'a try is over in time, whatever it is that ZooKeeper does not answer' => sub {
	my $slow = ZkProxy->new($zk);
	my $session = zk_session_with($node, hosts => $slow->hosts);
	$session->value(q{SELECT zk_lock('/slow'), zk_unlock('/slow'); SET zklock.operation_timeout = '2500ms'});
	$slow->hold('create2');
	$session->send(q{SELECT zk_try_lock('/slow')});
	$slow->wait_held;

	sleep 2.2;    # a third of the session timeout since it was asked
	Child::suspend($session->pid);
	$slow->release;
	$slow->hold('multi');
	kill 'CONT', $session->pid;
	my $result = $session->wait;
	is($result->{state}, '58030', 'an error') or diag $result->{out};
	in_time($result->{seconds}, 2.5 + $SLACK, 'when operation_timeout is over');
	$slow->reset;
	$session->value('RESET zklock.operation_timeout');
	zk_locks_again($session, 'it works');
	$session->quit;
	$slow->stop;
};

# ------------------------------------------------- which server is tried, and when

$other->close;
undef $admin;
zk_nothing_left($zk, 'nothing is left so far', sessions => 0);

# When these were tried since their logs were cleared
sub tries
{
	my @times = map { $_->[0] } grep { $_->[1] eq '.' && $_->[2] =~ /^(?:open|closed)$/ } map { $_->log } @_;
	@times = sort { $a <=> $b } @times;
	return @times;
}

sub pauses { return map { $_[$_] - $_[ $_ - 1 ] } 1 .. $#_; }

# From now on they close each connection at once, like a server during an
# election.
sub turn_away
{
	$_->refuse(at_accept => 1), $_->clear_log, $_->drop for @_;
	return;
}

# -------------------------------------------------------------- which, and when

# Each session tries them in a random order, and waits a second at most for those that are
# silent, however long its timeouts.
subtest 'the living one of several' => sub {
	foreach (
		[ 'that refuse' => 0, map { closed_port() } 1 .. 4 ],
		[ 'that cannot even be tried' => 0, '255.255.255.255:2181', closed_port() ],
		[ 'whose name does not resolve' => 3, 'no-such-host.invalid:2181', closed_port() ],
		[ 'that do not answer to a SYN' => 3, black_hole(), black_hole() ],
		[ 'that say nothing' => 3, map { (Child::serve(sub { 1 }))[0] } 1, 2 ])
	{
		my ($what, $seconds, @dead) = @$_;
		my $hosts = join ',', @dead, $zk->hosts;
		my @s = map { zk_session_with($node, hosts => $hosts, session_timeout => '60s', connect_timeout => '30s') } 1 .. 4;
		$_->send(q{SELECT zk_lock('/living/' || pg_backend_pid())}) for @s;
		foreach (map { $_->wait } @s)
		{
			is($_->{out}, 't', "is found beside those $what");
			in_time($_->{seconds}, $seconds + $SLACK, '- in time');
		}
	}
};

# The machine of the leader is gone, and the others close each connection until they have
# elected another.  Whoever tries the silent one last, does so while they still do; it is
# the last for a part of the sessions.
subtest 'one is silent, and the others hold an election' => sub {
	my ($silent, @proxies) = map { ZkProxy->new($zk) } 1 .. 3;
	$silent->blackhole;
	my $hosts = join ',', map { $_->hosts } $silent, @proxies;
	my @s = map { zk_session_with($node, hosts => $hosts, session_timeout => '60s') } 1 .. 12;
	$_->send(q{SELECT zk_lock('/election/' || pg_backend_pid())}) for @s;
	$_->wait for @s;
	$silent->clear_log;
	turn_away(@proxies);
	zk_until(sub { tries($silent) >= @s }, 'each to try the silent one');
	$_->pass for @proxies;
	zk_until(sub { !grep { $_->value('SELECT state FROM zk_locks') ne 'held' } @s }, 'all to be with the others', 2 * $MOMENT);
	is($_->value('SELECT losses FROM zk_session'), 0, 'is back long before the library gives up the silent one') for @s;
	$_->value('SELECT zk_unlock_all()'), $_->quit for @s;
};

# The backend itself reads the answer that says so, and its thread must know of it
# before the transaction ends.
subtest 'a server that grants less than was asked for' => sub {
	my $strict = ZooKeeper->new(max_session_timeout => 3000)->start;
	my $s = zk_session_with($node, hosts => $strict->hosts, session_timeout => '1h');
	$s->query('BEGIN');
	is($s->value(q{SELECT zk_lock('/less')}), 't', 'is locked in');
	$s->value('SELECT pg_sleep(6)');    # as long as two timeouts
	zk_wait_hold($s, 'held');    # in doubt, if the machine has stood still just now
	is($s->value('SELECT losses FROM zk_session'), 0, 'heartbeats keep what it grants');
	$s->query('COMMIT');
	$s->quit;
	$strict->stop;
};

# Each attempt creates a session, whose answer is never read.  One server is waited for; of
# three, each for a second, and the last one has the time that is left.
foreach (
	[ 1, '10s', 3.7 ],    # longer than a third of the session timeout
	[ 3, '18s', 1.5 ])
{
	my ($n, $timeout, $pause) = @$_;
	subtest "servers that are slow: $n" => sub {
		my @proxies = map { ZkProxy->new($zk) } 1 .. $n;
		my $before = () = $zk->sessions;
		my $s = zk_session_with($node, hosts => join(',', map { $_->hosts } @proxies), session_timeout => $timeout, connect_timeout => '1min');
		foreach my $time ('the first time', 'to take the session up again')
		{
			$_->clear_log, $_->hold('connect', 20) for @proxies;
			if ($time =~ /^the/) { $s->send(q{SELECT zk_lock('/slow')}); }
			else { $_->drop for grep { $_->connections } @proxies; }    # no try: to end at once is not to be slow
			zk_until(sub { tries(@proxies) == $n }, 'all of them are tried');
			sleep $pause;
			my @tries = tries(@proxies);
			is(scalar @tries, $n, "$time: one attempt at each");
			is(scalar(grep { tries($_) == 1 } @proxies), $n, '- and none twice');
			is(scalar(() = $zk->sessions), $before + 1, '- and one session at the server') if $n == 1;
			in_time($_, 1 + $SLACK, '- no longer than a second') for pauses(@tries);
			$_->release for @proxies;
			is($s->wait->{out}, 't', 'it is waited for') if $s->{mark};
			zk_until(sub { $s->value('SELECT state FROM zk_locks') ne 'suspect' }, 'it is back');
			is($s->value('SELECT zk_locks.state, losses FROM zk_locks, zk_session'), 'held|0', '- which comes in time');
		}
		$s->value(q{SELECT zk_unlock('/slow')});
	};
}

# ------------------------------------------------------------- and how soon again

# With one server, and with three: in each round every server is tried once.
subtest 'nobody takes us' => sub {
	my @all = map { { n => $_, proxies => [ map { ZkProxy->new($zk) } 1 .. $_ ] } } 1, 3;
	foreach (@all)
	{
		my $hosts = join ',', map { $_->hosts } @{ $_->{proxies} };
		$_->{s} = [ map { zk_session_with($node, hosts => $hosts, session_timeout => '30s') } 1 .. 3 ];
		$_->value(q{SELECT zk_lock('/away/' || pg_backend_pid())}) for @{ $_->{s} };
		$_->{ids} = join ' ', map { $_->value('SELECT session_id FROM zk_session') } @{ $_->{s} };
	}
	turn_away(map { @{ $_->{proxies} } } @all);
	my $began = time;

	# a call whose timeout was too short leaves a session behind that is still connecting
	my $alone = ZkProxy->new($zk);
	my $connecting = zk_session_with($node, hosts => $alone, connect_timeout => '60s');
	turn_away($alone);
	is($connecting->query(q{SELECT zk_lock('/idle', '200ms')})->{state}, '58000', 'nobody takes us');
	sleep 4;    # the sessions live
	my @its = tries($alone);
	cmp_ok(@its, '<=', 12, 'nobody waits for it: fewer and fewer tries');
	cmp_ok(max(pauses(@its)), '>', 0.75, '- with ever longer pauses');
	$alone->pass;
	my $result = $connecting->query(q{SELECT zk_lock('/idle'), zk_unlock('/idle')});
	is($result->{out}, 't|t', 'a call that waits');
	in_time($result->{seconds}, 1 + $SLACK, '- does not wait for such a pause');

	foreach my $one (@all)
	{
		my @proxies = @{ $one->{proxies} };
		my @s = @{ $one->{s} };
		my @tries = map { scalar tries($_) } @proxies;
		my $seconds = time - $began;

		# half of 50, 100, 200 and 400 ms, and then at most one in half a second
		cmp_ok($_, '<=', 3 * (6 + 2 * $seconds), 'a few tries of each server') for @tries;
		cmp_ok($_, '>=', 3 * 4, '- in several rounds') for @tries;

		# by now they are half a second to a second apart
		my @late = grep { $_ > $began + 1.5 } tries(@proxies);
		my %ms = map { int(($_ - $began) * 50) => 1 } @late;
		cmp_ok(keys %ms, '>', @late / 2, 'they do not come together') or note "@late";

		$_->pass for @proxies;
		my $back = time;
		zk_until(sub { 3 == grep { $_->value('SELECT state FROM zk_locks') eq 'held' } @s }, 'all are back');
		in_time(time - $back, 1 + $SLACK, 'in time');
		is(join(' ', map { $_->value('SELECT session_id FROM zk_session') } @s), $one->{ids}, '- with the same sessions');

		# the delays start again from zero
		turn_away(@proxies);
		my $again = time;
		zk_until(sub { !grep { tries($_) < 3 * 3 } @proxies }, 'three more tries of each');
		in_time(time - $again, 3, 'soon, since pauses are short again');
		$_->pass for @proxies;
		zk_until(sub { 3 == grep { $_->value('SELECT state FROM zk_locks') eq 'held' } @s }, 'all are back');
		$_->value('SELECT zk_unlock_all()'), $_->quit for @s;
	}
};

# It establishes a session and answers, but always says something that no
# ZooKeeper would.
subtest 'a server that is only good to begin with' => sub {
	my $proxy = ZkProxy->new($zk);
	my $s = zk_session_with($node, hosts => $proxy->hosts);
	is($s->value(q{SELECT zk_lock('/begin')}), 't', 'a lock');
	my @ops = qw(getChildren getChildren2 create create2 createContainer multi);
	$proxy->clear_log;
	$proxy->garble(\@ops, 10_000);
	$s->send(q{SELECT zk_lock('/begin/2')});
	my $began = time;
	sleep 3;
	my @tries;
	zk_until(sub { @tries = tries($proxy); @tries >= 2 }, 'it to be tried again');
	my $seconds = time - $began;
	cmp_ok(@tries, '<=', 14 * $seconds / 3, 'is tried again, but not all the time');
	$proxy->reset;
	is($s->wait->{out}, 't', 'and used when it is better');
};

$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left, no session either', sessions => 0, tree => 1);

done_testing();
