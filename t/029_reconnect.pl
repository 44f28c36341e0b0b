# Which server is tried when, for how long, and how soon again: a living one
# among several is found at once, a silent one leaves time for the others, and
# while none answers, tries are never closer together than is useful.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::INET;
use List::Util qw(max min sum0);
use Test::More;
use Time::HiRes qw(sleep time);

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1.5;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '6s');

# Accepts connections, but never sends anything
my @silent;

sub silent
{
	push @silent, IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 100) // die "could not listen: $@";
	return '127.0.0.1:' . $silent[-1]->sockport;
}

sub nobody { return '127.0.0.1:' . ZooKeeper::free_port(); }

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

subtest 'the living one of several is found at once' => sub {
	foreach my $dead ([ map { nobody() } 1 .. 4 ], [ '255.255.255.255:2181', nobody() ])
	{
		my @s = map { zk_session_with($node, hosts => join ',', @$dead, $zk->hosts) } 1 .. 3;
		foreach my $s (@s)
		{
			my $result = $s->query(q{SELECT zk_lock('/first/' || pg_backend_pid())});
			is($result->{out}, 't', @$dead . ' of ' . (@$dead + 1) . ' are down');
			in_time($result->{seconds}, $SLACK, '- at once');
		}
	}
};

# However long the session timeout, zklock.connect_timeout is 5 seconds.
subtest 'the living one behind silent ones' => sub {
	my $hosts = join ',', silent(), silent(), $zk->hosts;
	my @s = map { zk_session_with($node, hosts => $hosts, session_timeout => '60s', connect_timeout => '30s') } 1 .. 6;
	$_->send(q{SELECT zk_lock('/behind/' || pg_backend_pid())}) for @s;
	foreach (map { $_->wait } @s)
	{
		is($_->{out}, 't', 'is found');
		in_time($_->{seconds}, 3 + $SLACK, '- in time');
	}
};

# The machine of the leader is gone, and the others close each connection until they have
# elected another.  Whoever tries the silent one last, does so while they still do; it is
# the last for a part of the sessions.
subtest 'one is silent, and the others hold an election' => sub {
	my @proxies = map { ZkProxy->new($zk) } 1 .. 2;
	my $hosts = join ',', silent(), map { $_->hosts } @proxies;
	my @s = map { zk_session_with($node, hosts => $hosts, session_timeout => '60s') } 1 .. 12;
	$_->send(q{SELECT zk_lock('/election/' || pg_backend_pid())}) for @s;
	$_->wait for @s;
	my @tries;    # of the silent one
	my $new = sub {
		$silent[-1]->blocking(0);
		my $n = 0;
		while (my $try = $silent[-1]->accept) { push @tries, $try; $n++; }
		return $n;
	};
	$new->();
	turn_away(@proxies);
	my $n = 0;
	zk_until(sub { ($n += $new->()) >= @s }, 'each to try the silent one');
	$_->pass for @proxies;
	my $began = time;
	zk_until(sub { !grep { $_->value('SELECT state FROM zk_locks') ne 'held' } @s }, 'all to be with the others', 2 * $MOMENT);
	note sprintf '%.1f s', time - $began;
	is($_->value('SELECT losses FROM zk_session'), 0, 'is back long before the library gives up the silent one') for @s;
	$_->value('SELECT zk_unlock_all()'), $_->quit for @s;
};

# The backend itself reads the answer that says so, and its thread must know of it
# before the transaction ends.
subtest 'a server that grants less than was asked for' => sub {
	my $strict = ZooKeeper->new(max_session_timeout => 5000)->start;
	my $s = zk_session_with($node, hosts => $strict->hosts, session_timeout => '1h');
	$s->query('BEGIN');
	is($s->value(q{SELECT zk_lock('/less')}), 't', 'is locked in');
	$s->value('SELECT pg_sleep(10)');    # as long as two timeouts
	zk_wait_hold($s, 'held');    # in doubt, if the machine has stood still just now
	is($s->value('SELECT losses FROM zk_session'), 0, 'heartbeats keep what it grants');
	$s->query('COMMIT');
	$s->quit;
	$strict->stop;
};

# It creates a session for each attempt, whose answer is never read.
subtest 'a single server that is slow' => sub {
	my $proxy = ZkProxy->new($zk);
	my $before = () = $zk->sessions;
	my $s = zk_session_with($node, hosts => $proxy->hosts, session_timeout => '18s', connect_timeout => '1min');
	$proxy->hold('connect', 20);
	$s->send(q{SELECT zk_lock('/slow')});
	$proxy->wait_held;
	sleep 6.5;    # longer than a third of the session timeout
	my $tried = () = tries($proxy);
	my $sessions = () = $zk->sessions;
	$proxy->release;
	is($s->wait->{out}, 't', 'it is waited for');
	is($tried, 1, 'one attempt in more than a third of the session timeout');
	is($sessions - $before, 1, '- and one session at the server');

	$proxy->clear_log;
	$proxy->hold('connect', 20);
	$proxy->drop;
	$proxy->wait_held;
	sleep 6.5;
	$tried = () = tries($proxy);
	$proxy->release;
	zk_until(sub { $s->value('SELECT state FROM zk_locks') ne 'suspect' }, 'it is back');
	is($tried, 1, 'nor more than one to take the session up again');
	is($s->value('SELECT state FROM zk_locks'), 'held', '- which comes in time');
	is($s->value('SELECT losses FROM zk_session'), 0, '- with the same session');
	$s->value(q{SELECT zk_unlock('/slow')});
};

subtest 'three servers that are slow' => sub {
	my @proxies = map { ZkProxy->new($zk) } 1 .. 3;
	my $s = zk_session_with($node, hosts => (join ',', map { $_->hosts } @proxies), session_timeout => '18s');
	is($s->value(q{SELECT zk_lock('/three')}), 't', 'a lock');
	$_->clear_log, $_->hold('connect', 20) for @proxies;
	$_->drop for grep { $_->connections } @proxies;    # no try: to end at once is not to be slow
	zk_until(sub { tries(@proxies) == 3 }, 'all of them are tried');
	sleep 1.5;
	my @tries = tries(@proxies);
	$_->release for @proxies;
	is(scalar @tries, 3, 'each once');
	is(scalar(grep { tries($_) == 1 } @proxies), 3, '- and none twice');
	in_time($_, 1 + $SLACK, 'no longer than a second') for pauses(@tries);
	zk_until(sub { $s->value('SELECT state FROM zk_locks') ne 'suspect' }, 'the last one answers');
	is($s->value('SELECT state FROM zk_locks'), 'held', 'and the last one has the time that is left');
	$s->value(q{SELECT zk_unlock('/three')});
	$s->quit;
};

# ------------------------------------------------------------- and how soon again

# With one server, and with three: in each round every server is tried once.
subtest 'nobody takes us' => sub {
	foreach my $n (1, 3)
	{
		my @proxies = map { ZkProxy->new($zk) } 1 .. $n;
		my @s = map { zk_session_with($node, hosts => (join ',', map { $_->hosts } @proxies), session_timeout => '30s') } 1 .. 3;
		$_->value(q{SELECT zk_lock('/away/' || pg_backend_pid())}) for @s;
		my $ids = join ' ', map { $_->value('SELECT session_id FROM zk_session') } @s;
		turn_away(@proxies);
		my $began = time;
		sleep 4;    # the sessions live
		my @tries = map { scalar tries($_) } @proxies;
		my $seconds = time - $began;
		note "of $n: @tries in $seconds s";

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
		is(join(' ', map { $_->value('SELECT session_id FROM zk_session') } @s), $ids, '- with the same sessions');

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

# A call whose timeout was too short leaves a session behind that is still
# connecting.
subtest 'nobody waits for it' => sub {
	my $proxy = ZkProxy->new($zk);
	my $s = zk_session_with($node, hosts => $proxy->hosts, connect_timeout => '60s');
	turn_away($proxy);
	is($s->query(q{SELECT zk_lock('/idle', '200ms')})->{state}, '58000', 'nobody takes us');
	sleep 5;
	my @tries = tries($proxy);
	note join ' ', map { sprintf '%.2f', $_ } pauses(@tries);
	cmp_ok(@tries, '<=', 12, 'fewer and fewer tries');
	cmp_ok(max(pauses(@tries)), '>', 0.75, '- with ever longer pauses');
	$proxy->pass;
	my $result = $s->query(q{SELECT zk_lock('/idle')});
	is($result->{out}, 't', 'a call that waits');
	in_time($result->{seconds}, 1 + $SLACK, '- does not wait for such a pause');
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
	note sprintf '%d in %.1f s', scalar @tries, $seconds;
	cmp_ok(@tries, '<=', 14 * $seconds / 3, 'is tried again, but not all the time');
	$proxy->reset;
	is($s->wait->{out}, 't', 'and used when it is better');
};

subtest 'an address that cannot even be tried' => sub {
	my $s = zk_session_with($node, hosts => '255.255.255.255:2181', connect_timeout => '60s');
	$s->send(q{SELECT zk_lock('/nowhere')});
	my $keeper = zk_until(sub { (grep { $_ != $s->pid } map { m{/(\d+)$} } glob '/proc/' . $s->pid . '/task/*')[0] }, 'a keeper');
	my $woken = sub {
		open my $file, '<', '/proc/' . $s->pid . "/task/$keeper/status" or die "status: $!";
		return sum0 map { /^(?:non)?voluntary_ctxt_switches:\s*(\d+)/ ? $1 : () } <$file>;
	};
	sleep 1;
	my $before = $woken->();
	sleep 3;
	my $n = $woken->() - $before;
	note "$n times";
	cmp_ok($n, '<', 30, 'does not keep the keeper awake');
	kill 'INT', $s->pid;
	is($s->wait->{state}, '57014', 'canceled');
};

zk_no_crash($node);
$node->stop;
zk_nothing_left($zk, 'nothing is left');

done_testing();
