# Two clusters, twenty-one backends, which take locks of all kinds and in all styles, and
# give them back in many ways.  None is ever held twice, they are granted in the
# order of arrival, and nothing is left behind, though directories that are empty for a
# moment are removed all the time, and created again with new numbers; then with a network
# that fails, too.
#
# ZK_STRESS_SECONDS: how long (default 5); ZK_MANY_LOCKS: in one session (default 13000)

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(max sum uniq);

use Tests;
use Turns;

my $SECONDS = $ENV{ZK_STRESS_SECONDS} || 5;

my $zk = ZooKeeper->new(container_check => 10)->start;
my @node = map { zk_cluster($_, $zk, fsync => 'off', synchronous_commit => 'off') } qw(a b);
turns_prepare(@node);

# Nine backends share the first three pairs, whose directories are seldom needed for long;
# the others crowd around the last one.
my @pair = map { [ map { "/reaped/$_" } split ' ' ] } 'a a/b', 'c d/e', 'd/f g', 'crowd/1 crowd/2';
turns_path(map { @$_ } @pair);
my @path = map { @$_ } @pair[ 0 .. 2 ];

# The open descriptors of a backend except files of PostgreSQL, which come and
# go
sub zk_sockets
{
	my ($s) = @_;
	return scalar grep { (readlink($_) // '') =~ /^(?:socket|anon_inode|pipe)/ } glob '/proc/' . $s->pid . '/fd/*';
}

# One run, with $meanwhile called during it.  Each backend connects to one of these hosts.
sub stress
{
	my ($meanwhile, @hosts) = @_;
	my @style = qw(curator curator_rw kazoo);
	my @way = (@EXCLUSIVE_WAYS, @SHARED_WAYS, @SEMAPHORE_WAYS, @ENDS, 'all');
	my @s;
	foreach my $i (0 .. 20)
	{
		# who holds a lock for a third of this, and loses the answer to its release, does not commit
		my %setting = (hosts => $hosts[ $i % @hosts ], node_style => $style[ $i / 3 % 3 ], session_timeout => '20s', commit_guard => 'on');
		push @s, turns_session($node[ $i % 2 ], options => join ' ', map { "-c zklock.$_=$setting{$_}" } sort keys %setting);
	}
	my $used = sub { return join ', ', map { zk_threads($_->pid) . ' ' . zk_sockets($_) } @s; };
	my $before = $used->();
	turns_forget();
	$s[$_]->send(turns_call("$SECONDS s", \@way, $pair[ $_ < 9 ? $_ % 3 : 3 ])) for 0 .. $#s;
	$meanwhile->(@s);
	is(zk_few(grep { $_ } map { $_->wait($SECONDS + 60)->{message} } @s), '', 'no call failed');
	my @hold = turns_holds();
	turns_judge(@hold);
	turns_counted(@hold);

	# a loop that does nothing would find no fault
	is(join(', ', sort grep { $_ ne 'upgraded' } uniq map { $_->{way} } @hold), join(', ', sort @way), 'in all ways');
	my $of_a = grep { $_->{cluster} eq 'a' } @hold;
	ok($of_a > @hold / 5 && $of_a < @hold * 4 / 5, 'by both clusters');

	zk_until(sub { !grep { $_->value('SELECT state FROM zk_session') ne 'connected' } @s }, 'all to be connected');
	is($used->(), $before, 'each backend has as many threads, sockets and event descriptors as before');
	is(join(' ', uniq map { $_->value('SELECT count(*) FROM zk_locks') } @s), 0, 'none holds a lock');
	zk_nothing_left($zk, 'no node and no watch is left while they live', sessions => scalar @s);
	my @counters = map { [ split /\|/, $_->value('SELECT requests, waits, timeouts, reconnections, losses FROM zk_session') ] } @s;
	my ($requests, $waits, $timeouts, $reconnections, $losses) = map { my $n = $_; sum map { $_->[$n] } @counters } 0 .. 4;
	is($losses, 0, 'none has lost its session');
	$_->quit for @s;
	# a session whose close is lost lives on for its timeout
	zk_nothing_left($zk, 'nor is a session when they have ended', sessions => 0, timeout => 60);
	zk_until(sub { !grep { $_ ne '/zklock' } $zk->tree('/') }, 'the directories to go');
	diag(sprintf '%d backends in 2 clusters, %d s: %d holds, %.1f requests each; waits for a turn: %d, run out: %d; reconnections: %d',
		scalar @s, $SECONDS, scalar @hold, $requests / @hold, $waits, $timeouts, $reconnections);
	return;
}

subtest 'a reaper every 10 ms does no harm' => sub {
	my %incarnation;
	stress(
		sub {
			my $client = $zk->client;
			while (grep { !$_->is_done } @_)
			{
				foreach my $path (@path)
				{
					my $stat = $client->exists("/zklock$path") or next;
					$incarnation{$path}{ $stat->{czxid} } = 1;
				}
				sleep 0.002;
			}
			$client->close;
		},
		$zk->hosts);
	# a directory that contains another one is seldom empty
	cmp_ok(scalar keys %{ $incarnation{$_} // {} }, '>', 3, "$_ was removed and made again") for grep { !m{/a$} } @path;
	note 'directories seen: ' . join ', ', map { "$_ " . keys %{ $incarnation{$_} // {} } } @path;
};

subtest 'a reaper and a bad network' => sub {
	my @proxies = map { ZkProxy->new($zk) } 1 .. 3;
	stress(sub { note 'faults of the network: ' . turns_trouble(\@_, @proxies) }, map { $_->hosts } @proxies);
	$_->stop for @proxies;
};

# Some of so many directories are always gone when they are needed.  That is tried again,
# and what one of them costs must not add up for all.
subtest 'several hundred at once, while they are removed' => sub {
	my $s = zk_session($node[0]);
	my $all = q{(SELECT array_agg('/reaped/all/' || n) FROM generate_series(1, 300) n)};
	for (1 .. 4)
	{
		is($s->value("SELECT zk_lock_many($all)", 60), 't', 'all of them');
		$s->value('SELECT zk_unlock_all()');
		sleep 0.01 * int rand 20;
	}
	$s->quit;
	zk_nothing_left($zk, 'nothing is left', sessions => 0);
};

# What is done for a lock does not depend on how many others the session has, in CPU time
# of its backend, which a busy machine does not stretch much; nor does any of that make its
# heartbeats late, or deaf, when the connection breaks.
subtest 'thousands of locks in one session' => sub {
	my $proxy = ZkProxy->new($zk);
	my ($FEW, $MANY, $AT_ONCE) = (1000, $ENV{ZK_MANY_LOCKS} // 13_000, 500);

	# more have room in one packet only without names of their own
	my $style = $MANY > 13_000 ? 'single' : 'curator';
	my $take = $style eq 'single' ? q{count(zk_lock('/many/' || i))} : q{zk_lock_many(array_agg('/many/' || i))};
	my %ms = ($FEW => 0, $MANY => 0);    # for each lock
	foreach my $n (($FEW) x !!$TIMING, $MANY)
	{
		my $s = zk_session_with($node[0], hosts => $proxy, root => '/', max_locks => $MANY + 2000,
			node_style => $style, session_timeout => '30s', operation_timeout => '1min');
		my $before = zk_cpu_seconds($s->pid);
		for (my $i = 1; $i < $n; $i += $AT_ONCE)
		{
			my $last = $i + $AT_ONCE - 1;
			$s->value("SELECT $take FROM generate_series($i, $last) i");
		}
		$ms{$n} += 1000 / $n * (zk_cpu_seconds($s->pid) - $before);
		is($s->value('SELECT count(*) FROM zk_locks'), $n, "$n locks");
		my $more = q{SELECT zk_lock_many(array_agg('/and/more/than/that/' || i)) FROM generate_series(1, 1000) i};
		like($s->query($more)->{err}, qr/53400: .* would have \d+ bytes/s, '- and a thousand more are too many for one packet') if $n == 13_000;
		if ($n == $MANY)
		{
			# the connection breaks, and is restored
			zk_until(sub { $zk->watch_count >= $n }, 'a heartbeat, by which each node is watched');
			my $other = zk_session_with($node[0], root => '/');
			$other->value(q{SELECT zk_lock('/other')});
			$s->value(q{SET zklock.node_style = 'curator'});
			$proxy->clear_log;
			my $began = time;
			$proxy->drop;
			$s->send(q{SELECT zk_lock('/other')});
			zk_until(sub { $other->value(q{SELECT count(*) FROM zk_lock_queue('/other')}) == 2 }, 'the next call to queue');
			is($s->cancel($other)->{state}, '57014', 'a cancel is answered');
			zk_wait_hold($s, 'held', "/many/$n");

			# what is asked for the sake of a lock is as good as a heartbeat
			my @asked = ($began, (map { $_->[0] } grep { $_->[1] eq '>' } $proxy->log), time);
			my $silence = max(map { $asked[$_] - $asked[ $_ - 1 ] } 1 .. $#asked);
			in_time($silence, 30 / 3, 'heartbeats are not late');
			is($s->value('SELECT reconnections > 0, losses FROM zk_session'), 't|0', 'over a new connection');
			$other->quit;
		}
		$before = zk_cpu_seconds($s->pid);
		is($s->value('SELECT zk_unlock_all()'), $n, 'all are released');
		$ms{$n} += 1000 / $n * (zk_cpu_seconds($s->pid) - $before);
		$s->quit;
	}
	diag(sprintf 'to take and release a lock: %.3f ms of CPU each of %d, %.3f of %d', map { $ms{$_}, $_ } $FEW, $MANY) if $TIMING;
	in_time($ms{$MANY}, 2 * $ms{$FEW}, 'each of many takes no longer');
	$proxy->stop;
};

zk_end($zk, @node);
