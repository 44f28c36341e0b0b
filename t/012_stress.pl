# Two clusters, with backends that take locks of all kinds and in all styles, and give them
# back in many ways.  None is ever held twice, they are granted in the order of arrival,
# and nothing is left behind.
#
# First with locks whose directory has seen 2^31 nodes.  ZooKeeper counts them with an int:
# from there on nodes have the same number, 2147483647, and those that are
# created while others are being written to disk have negative ones.  A client
# that relies on the numbers ends up with two holders, or waits forever; kazoo
# and Curator do.  Twelve sessions pass that point on a bad network.  Then the warning that
# comes long before, and that following its advice helps.
#
# Then twenty-one backends, though directories that are empty for a moment are removed all
# the time, and created again with new numbers; then with a network that fails, too.  And
# thousands of locks in one session.
#
# ZK_STRESS_SECONDS: how long (default 5); ZK_MANY_LOCKS: in one session (default 13000)

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(max min sum uniq);

use Cost;
use Tests;
use Turns;

my $LAST = 2**31 - 1;
my $START = 2**31 - 5;
my $WARN_ABOVE = 2_000_000_000;
my $SECONDS = $ENV{ZK_STRESS_SECONDS} || 5;
my $BACKENDS = 12;
my $TURNS = 20;    # of each: 240 in all

my $zk = ZooKeeper->new->start;
# The server is restarted again and again, which takes a while on a busy machine.  And
# who holds a lock for more than a third of the session timeout, and loses the answer to
# its release, does not commit.
my @node = map {
	zk_cluster(
		$_, $zk,
		'zklock.session_timeout' => '60s',
		'zklock.operation_timeout' => '30s',
		'zklock.connect_timeout' => '30s',
		fsync => 'off',
		synchronous_commit => 'off')
} qw(a b);

turns_prepare(@node);
my @admin = map { zk_session($_) } @node;
my $admin = $admin[0];

# Directories in which this many nodes have been created: all that are needed, since the
# server is restarted for them
my @styles = qw(curator curator_rw kazoo);
my @path = ('/wrap/1', '/wrap/2');
my %number = (
	(map { $_ => $START } @path),
	(map { ("/down/$_" => $LAST, "/between/$_" => $LAST) } @styles),
	(map { ("/near/$_" => $WARN_ABOVE - 1) } qw(zk_lock zk_try_xact_lock zk_lock_shared zk_lock_many zk_semaphore_acquire)),
	'/near/few' => 2**31 - 2**20 - 5,
	'/near/deleted' => $START,
	'/near/reaped' => $START);
$admin->value("SELECT zk_lock('$_'), zk_unlock('$_')") for keys %number;
turns_path(keys %number);
$zk->set_next_number(map { ("/zklock$_" => $number{$_}) } keys %number);

# A lock that is taken again and again needs no list (t/104) while its number is the next
# one; from some million before the end on, what there is has to be read.
subtest 'numbers that are about to wrap are not relied on' => sub {
	my ($s, $proxy) = zk_counted_session($node[0], $zk, 0, session_timeout => '1h');
	my @asked;
	foreach (1 .. 9)
	{
		my %cost = cost($zk, $s, $proxy, q{SELECT zk_lock('/near/few')});
		push @asked, "$cost{requests} $cost{trips}";
		$s->value(q{SELECT zk_unlock('/near/few')});
	}
	my ($list, $no_list) = ('create2 getChildren', 'create2');
	is(join(', ', @asked), join(', ', ("$list 1") x 2, ("$no_list 1") x 3, "$list getData 3", ("$list getData 2") x 3), 'nine times');
	$s->quit;
};

# All sessions begin at once: nodes are created while others are being written to disk.
subtest 'everything, on a bad network' => sub {
	my @way = (@EXCLUSIVE_WAYS, @SHARED_WAYS, @SEMAPHORE_WAYS, 'all');
	my @proxy = map { ZkProxy->new($zk) } 1 .. 4;
	my @s = map { zk_warm_session($node[ $_ % 2 ], hosts => $proxy[ $_ % @proxy ], node_style => $styles[ $_ % @styles ]) } 1 .. $BACKENDS;

	my (@hold, @number);
	my $turns = sub {
		my ($n) = @_;
		$zk->suspend;
		$_->send(turns_call($n, \@way, \@path)) for @s;
		foreach my $watcher (@admin)
		{
			zk_until(
				sub {
					$watcher->value(q{SELECT count(*) FROM pg_stat_activity
						WHERE wait_event_type = 'Extension' AND query LIKE 'CALL%'}) == $BACKENDS / 2;
				},
				'all to wait');
		}
		$zk->resume;
		diag('faults of the network: ' . turns_trouble(\@s, @proxy));
		is(zk_few(grep { $_ } map { $_->wait->{message} } @s), '', "no call failed, and all had $n turns");
		@hold = turns_holds();
		@number = map { turns_number($_->{name}) } @hold;
	};
	$s[0]->value(turns_call(1, [ $way[0] ], \@path));    # one of the last good numbers
	$turns->($TURNS);

	# repeated, since one overtakes another only by chance
	for (1 .. 20)
	{
		last if grep { $_ < 0 } @number;
		$turns->(1);
	}
	cmp_ok((grep { $_ == $LAST } @number), '>', 1, "number $LAST was held more than once");
	cmp_ok((grep { $_ < 0 } @number), '>', 0, 'and so were negative ones');
	cmp_ok((grep { $_ >= $START && $_ < $LAST } @number), '>', 0, 'after the last good ones');
	cmp_ok(scalar @hold, '>=', $BACKENDS * $TURNS, 'all in all often enough');
	is(join(' ', sort(uniq(map { $_->{path} } @hold))), "@path", 'on both paths');
	my %how;
	$how{ $_->{way} }++ for @hold;
	is(join(', ', sort grep { $_ ne 'upgraded' } keys %how), join(', ', sort @way), 'in all ways');

	turns_judge(@hold);
	turns_counted(@hold);
	zk_nothing_left($zk, 'nothing is left while they live', sessions => $BACKENDS + 1);
	$_->quit for @s;
	diag(sprintf '%d holds; numbers: %d stuck, %d negative (lowest %d); %s', scalar @hold,
		scalar(grep { $_ == $LAST } @number), scalar(grep { $_ < 0 } @number), min(@number),
		join ', ', map { "$_ $how{$_}" } sort keys %how);
};

# In these styles the reader that a writer becomes has a node of its own, which
# is newer than the waiting writer's.  Ordering by transaction takes a list and then a
# read of each node in it: the writer in that list may have become a reader with
# another name by the time it is read.
foreach my $style (@styles)
{
	subtest "downgrade, style $style" => sub {
		my $path = "/down/$style";
		my ($s, $reader, $judge) = map { zk_session_with($_, node_style => $style) } $node[0], @node;
		my ($writer, $proxy) = zk_counted_session($node[1], $zk, 0, node_style => $style);
		is($s->value("SELECT zk_lock('$path'), zk_lock_shared('$path')"), 't|t', 'held in both ways');
		my $token = $s->value("SELECT zk_lock_token('$path')");
		$writer->send("SELECT zk_lock('$path')");
		zk_wait_queued($zk, $writer);
		is($s->value("SELECT zk_unlock('$path')"), 't', 'downgraded');
		is($s->value("SELECT zk_lock_token('$path')"), $token, 'with the same token');
		is($reader->value("SELECT zk_try_lock_shared('$path')"), 'f', 'a new reader does not pass the writer');
		$judge->value(q{SELECT zk_lock('/warm'), zk_unlock('/warm')});
		is($judge->value("SELECT zk_lock('$path', '2s')"), 'f', 'nor does a writer pass');
		ok(!$writer->is_done, 'the writer still waits');
		is($s->value("SELECT zk_unlock_shared('$path')"), 't', 'the reader goes');
		is($writer->wait->{out}, 't', 'now the writer has it');
		cmp_ok($writer->value("SELECT zk_lock_token('$path')"), '>', $token, 'with a greater token');
		$writer->value("SELECT zk_unlock('$path')");

		$path = "/between/$style";
		is($s->value("SELECT zk_lock('$path'), zk_lock_shared('$path')"), 't|t', 'held in both ways again');
		$proxy->hold_request([ 'getData', 'exists' ]);
		$writer->send("SELECT zk_lock('$path')");
		$proxy->wait_held;
		is($s->value("SELECT zk_unlock('$path')"), 't', 'downgraded between the list and the look');
		my $its = $s->value(q{SELECT node FROM zk_locks});
		$proxy->release;
		zk_until(sub { $writer->is_done || $zk->four_letter('wchp') =~ m{^\Q/zklock$path/$its\E$}m }, 'the writer to look');
		ok(!$writer->is_done, 'the writer waits for the reader that it had not seen');
		$s->value("SELECT zk_unlock_shared('$path')");
		is($writer->wait->{out}, 't', 'until that has gone');
		$_->quit for $s, $writer, $reader, $judge;
		zk_nothing_left($zk, 'nothing is left');
	};
}

# ------------------------------------------------------------------- the advice

# The sequence number of this session's node on a path
sub number_of
{
	my ($s, $path) = @_;
	my ($name) = split /\n/, $s->value("SELECT node FROM zk_locks WHERE path = '$path'");
	return turns_number($name);
}

subtest 'a warning comes in time' => sub {
	my %take = (
		zk_lock => sub { "SELECT zk_lock('$_[0]')" },
		zk_try_xact_lock => sub { "SELECT zk_try_xact_lock('$_[0]')" },
		zk_lock_shared => sub { "SELECT zk_lock_shared('$_[0]')" },
		zk_lock_many => sub { "SELECT zk_lock_many('{/warm/x,$_[0]}')" },
		zk_semaphore_acquire => sub { "SELECT zk_semaphore_acquire('$_[0]', 1)" });
	my $s = zk_session($node[0]);
	foreach my $how (sort keys %take)
	{
		my $path = "/near/$how";
		my @result;
		foreach (1 .. 4)
		{
			$s->value('BEGIN');
			push @result, $s->query($take{$how}->($path));
			$s->value('ROLLBACK');
		}
		is(join(' ', map { $_->{out} } @result), 't t t t', "$how: granted");
		is(join(' ', map { scalar @{ $_->{warnings} } } @result), '0 0 1 0', "- a warning above $WARN_ABOVE, once");
		like($result[2]{warnings}[0] // '', qr/\Q$path\E/, '- which names the path');
		like($result[2]{err}, qr/^HINT:.*(?:delete|remove|reap)/im, '- and says what to do');
		diag($result[2]{err}) if $how eq 'zk_lock';
	}
	my $another = zk_session($node[1]);
	is(scalar @{ $another->query($take{zk_lock}->('/near/zk_lock'))->{warnings} }, 1, 'another backend is warned, too');
	is(scalar @{ $another->query("SELECT zk_unlock('/near/zk_lock')")->{warnings} }, 0, 'and only of what it takes');
	$_->quit for $s, $another;
};

# The directory is removed, by hand or by itself
subtest 'its advice helps' => sub {
	my $s = zk_session($node[0]);
	my %token;
	foreach my $path ('/near/deleted', '/near/reaped')
	{
		my $result = $s->query("SELECT zk_lock('$path')");
		is(scalar @{ $result->{warnings} }, 1, "$path: a warning");
		is(number_of($s, $path), $START, 'at the last numbers');
		$token{$path} = $s->value("SELECT zk_fence('$path')");
		$s->value("SELECT zk_unlock('$path')");
	}
	$zk->delete('/zklock/near/deleted');
	$zk->stop;
	$zk->{container_check} = 10;    # from now on
	$zk->start;
	zk_until(sub { !$zk->exists('/zklock/near/reaped') }, 'the reaper');

	my $other = zk_session($node[1]);
	foreach my $path ('/near/deleted', '/near/reaped')
	{
		my $result = $s->query("SELECT zk_lock('$path')");
		is("$result->{out} @{ $result->{warnings} }", 't ', "$path: taken again, without a warning");
		is(number_of($s, $path) + 0, 0, 'numbers begin anew');
		my $token = $s->value("SELECT zk_fence('$path')");
		cmp_ok($token, '>', $token{$path}, 'tokens go on');
		is($other->value("SELECT zk_try_lock('$path')"), 'f', 'and it excludes others');
		$s->value("SELECT zk_unlock('$path')");
	}
	$_->quit for $s, $other;
};

$_->quit for @admin;
# (A handshake whose answer was lost when the server was restarted leaves a session without
# a client, which expires.)
zk_nothing_left($zk, 'nothing is left of that', sessions => 0, timeout => 90);

# ------------------------------------------------------------------------- stress

# Nine backends share the first three pairs, whose directories are seldom needed for long;
# the others crowd around the last one.
my @pair = map { [ map { "/reaped/$_" } split ' ' ] } 'a a/b', 'c d/e', 'd/f g', 'crowd/1 crowd/2';
turns_path(map { @$_ } @pair);
my @seldom = map { @$_ } @pair[ 0 .. 2 ];

# The open descriptors of a backend except files of PostgreSQL, which come and
# go
sub zk_sockets
{
	my ($s) = @_;
	return scalar grep { (readlink($_) // '') =~ /^(?:socket|anon_inode|pipe)/ } glob '/proc/' . $s->pid . '/fd/*';
}

# One run.  Each backend connects to one of these, if any
sub stress
{
	my (@proxies) = @_;
	my @hosts = @proxies ? @proxies : $zk;
	my @way = (@EXCLUSIVE_WAYS, @SHARED_WAYS, @SEMAPHORE_WAYS, @ENDS, 'all');
	my @s;
	foreach my $i (0 .. 20)
	{
		# who holds a lock for a third of this, and loses the answer to its release, does not commit
		push @s, zk_warm_session($node[ $i % 2 ], hosts => $hosts[ $i % @hosts ], node_style => $styles[ $i / 3 % 3 ], session_timeout => '20s', commit_guard => 'on');
	}
	my $used = sub { return join ', ', map { zk_threads($_->pid) . ' ' . zk_sockets($_) } @s; };
	my $before = $used->();
	turns_forget();
	$s[$_]->send(turns_call("$SECONDS s", \@way, $pair[ $_ < 9 ? $_ % 3 : 3 ])) for 0 .. $#s;
	note 'faults of the network: ' . turns_trouble(\@s, @proxies) if @proxies;
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
	return @hold;
}

subtest 'a reaper every 10 ms does no harm' => sub {
	my (%last, %removed);
	foreach (stress())
	{
		my ($path, $number) = ($_->{path}, turns_number($_->{name}));
		$removed{$path}++ if $number < ($last{$path} // 0);
		$last{$path} = $number;
	}
	# a directory that contains another one is seldom empty
	cmp_ok($removed{$_} // 0, '>', 2, "$_ was removed and made again") for grep { !m{/a$} } @seldom;
	note 'directories made again: ' . join ', ', map { "$_ " . ($removed{$_} // 0) } @seldom;
};

subtest 'a reaper and a bad network' => sub { stress(map { ZkProxy->new($zk) } 1 .. 3) };

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
