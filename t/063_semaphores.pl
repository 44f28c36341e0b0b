# The queue of a semaphore: a freed place wakes one waiter and costs a handful
# of requests, however many places and waiters there are; and no waiter is
# forgotten, whoever leaves, is cut off or stalls, at whatever moment.

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(uniq);

use Child;
use Cost qw(quiet);
use Tests;

# Heartbeats do not disturb the counting.
my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '1h', max_connections => 200);
my $admin = zk_session($node);
my $client = $zk->client;

# Many connected sessions are behind one proxy, which is kept until the end, since a backend
# may still be closing its session.
my $shared = ZkProxy->new($zk);

sub one_of_many { return zk_warm_session($node, hosts => $shared); }

# A session with a proxy of its own; an idle one can be reused
my %idle;

sub session
{
	my $setting = "@_";
	my $idle = shift @{ $idle{$setting} // [] };
	return $idle if $idle;
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, @_);
	return { s => $s, proxy => $proxy, setting => $setting };
}

sub put_back
{
	foreach my $session (grep { !$_->{gone} } @_)
	{
		$session->{proxy}->reset;
		push @{ $idle{ $session->{setting} } }, $session;
	}
	return;
}

# The nodes of this lock, in order
sub queue { return $client->queue("/zklock$_[0]"); }

# Make it wait in that queue, behind all who are there.
sub stands
{
	my ($s, $path, $places) = @_;
	$s->send("SELECT zk_semaphore_acquire('$path', $places)");
	zk_wait_queued($zk, $s);
	return $s;
}

# What the shared proxy has seen by then: requests, their names, how many clients sent
# some, and how many were told of a change of the directory.
sub cost
{
	my ($code) = @_;
	$shared->clear_log;
	$code->();
	quiet($shared);
	my @log = $shared->log;
	my @asked = grep { $_->[1] eq '>' } @log;
	return {
		requests => scalar @asked,
		names => join(' ', map { $_->[2] } @asked),
		clients => scalar(uniq map { $_->[6] } @asked),
		told => scalar(grep { $_->[2] eq 'event' && $_->[7] eq 'child' } @log)
	};
}

sub give { $_->value('SELECT zk_unlock_all()') for @_; return; }

# One test: exactly these have their place.
sub have
{
	my ($name, $has, $waits) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @got = map { $_->wait } grep { $_->{mark} } @$has;
	ok(!(grep { $_->{out} ne 't' } @got) && !(grep { $_->is_done } @$waits), $name) or diag map { "$_->{out}$_->{err}\n" } @got;
	return;
}

# ------------------------------------------------------------------------ cost

zk_leaves_nothing $zk, 'a dozen places' => sub {
	my $PLACES = 12;
	my $path = '/dozen';
	my $call = "SELECT zk_semaphore_acquire('$path', $PLACES)";
	my @holds = map { one_of_many() } 1 .. $PLACES;
	$holds[0]->value(qq{$call, zk_unlock_all()});    # creates the directory
	my $cost = cost(sub { $_->value($call) for @holds });
	is($cost->{names}, join(' ', ('create2 getChildren') x $PLACES), 'as many as there are places: two requests each');

	my @waits;
	my $release = sub {
		my ($n, @who) = @_;
		my @next = splice @waits, 0, $n;
		my $cost = cost(
			sub {
				$_->send('SELECT zk_unlock_all()') for @who;
				is($_->wait->{out}, 1, 'given back') for @who;
				is($_->wait->{out}, 't', 'admitted') for @next;
			});
		ok(!(grep { $_->is_done } @waits), "$n freed: nobody else is admitted");
		my %gone = map { $_ => 1 } @who;
		@holds = ((grep { !$gone{$_} } @holds), @next);
		return $cost;
	};
	# Three are left of the first ten, so that none of the few whose coming is looked at
	# comes right after four have gone, of which some may only just hear.
	foreach my $waiters (10, 18)
	{
		while (@waits < $waiters)
		{
			my $s = one_of_many();
			my $cost = cost(sub { stands($s, $path, $PLACES) });
			push @waits, $s;
			# the first one looks, since it cannot know who comes and who leaves
			my $most = @waits == 1 ? 4 : 5;
			cmp_ok($cost->{requests}, '<=', $most, 'waiter ' . @waits . " comes: $cost->{names}") if @waits < 4 || @waits > 15;
			cmp_ok($cost->{told}, '<=', 2, '- of which one waiter is told, and who came in last') if @waits < 4 || @waits > 15;
		}

		# the oldest holder, one in the middle, the youngest
		foreach my $who (0, 6, -1)
		{
			my $cost = $release->(1, $holds[$who]);
			note "$waiters waiters, holder $who: $cost->{names}";
			# delete; look and tell; the next one looks
			cmp_ok($cost->{requests}, '<=', 4, "$waiters waiters, holder $who goes: four requests");
			# whoever came in last has left its watch there
			cmp_ok($cost->{told}, '<=', 2, '- and one waiter is woken by it');
			cmp_ok($cost->{clients}, '<=', 3, '- who goes, who comes in, and who is next then');
		}
		my $cost = $release->(4, @holds[ 0, 3, 8, 11 ]);
		note "four at once: $cost->{names}";
		cmp_ok($cost->{requests}, '<=', 4 * 4, 'four at once cost no more than one after the other');
	}

	# other contenders on the same path: the first waiter looks at each change
	my $other = session()->{s};
	$cost = cost(sub { $other->value("SELECT bool_and(zk_lock('$path') AND zk_unlock('$path')) FROM generate_series(1, 20)") });
	note "20 locks of the same path: $cost->{names}";
	cmp_ok($cost->{requests}, '<=', 40, '20 locks of the same path: no more than a list for each change');
	is($cost->{clients}, 1, '- by one waiter');

	$cost = cost(sub { is($other->value("SELECT zk_semaphore_acquire('$path', $PLACES, '0')"), 'f', 'one try') });
	is($cost->{requests}, 0, 'nobody hears of a try');

	# While a number is being changed, it differs.  These come in when the others are through.
	push @waits, map { stands(one_of_many(), $path, 8) } 1 .. 9;
	foreach (1 .. 3)
	{
		$cost = $release->(1, $holds[0]);
		cmp_ok($cost->{requests}, '<=', 5, "another number waits: a list of each number, $cost->{names}");
	}

	# who has it, and it alone, gives it back, until all have had their turn
	foreach my $who (@holds, @waits)
	{
		is($who->wait->{out}, 't', 'admitted') if $who->{mark};
		give($who);
	}
	$_->quit for $other, @holds, @waits;
	zk_until(sub { $zk->watch_count == 0 }, 'no watch to be left');
};

# --------------------------------------------------- somebody goes, of any rank

# Three places; which of the holders and waiters is removed, and how
my $PLACES = 3;
my $last_path = 0;

# Creates the directory and sessions: three holders, and the given number of
# waiters.  The timeout is short enough for the library to make no long pause
# between two connections, and so long that a forgotten waiter does not look by
# itself within the patience of a test (30 s).
sub crowd
{
	my ($waiters, %opt) = @_;
	my $path = '/crowd/' . ++$last_path;
	my @all = map { session(%{ $opt{settings}[$_] // { session_timeout => '120s' } }) } 0 .. $PLACES + $waiters - 1;
	$all[0]{s}->value("SELECT zk_semaphore_acquire('$path', $PLACES), zk_unlock_all()");
	$_->{s}->value("SELECT zk_semaphore_acquire('$path', $PLACES)") for @all[ 0 .. $PLACES - 1 ];
	stands($_->{s}, $path, $PLACES) for @all[ $PLACES .. $#all ];
	return ($path, @all);
}

# The waiters get their places in order, one for each holder that leaves.
sub goes_on
{
	my ($name, $holds, $waits) = @_;
	my @holds = @$holds;
	my @waits = @$waits;
	while (@waits)
	{
		my $next = shift @waits;
		give(shift @holds);
		have("$name: the next, and no other", [$next], \@waits);
		push @holds, $next;
	}
	give(@holds);
	return;
}

sub terminate { my ($one) = @_; $one->{gone} = 1; $admin->value('SELECT pg_terminate_backend(' . $one->{s}->pid . ', 30000)'); return; }

# Whatever happens at the same time, to whomever, those in front have their places, and
# nobody else, once that has settled.  Half of them ask for the same number.
zk_leaves_nothing $zk, 'numbers that differ, and all that can happen' => sub {
	my $path = '/any';
	my @idle = map { session(session_timeout => '120s') } 1 .. 10;
	$idle[0]{s}->value("SELECT zk_semaphore_acquire('$path', 2), zk_unlock_all()");
	my (@queue, %did);
	# Each with one of the queue; true if that is not to be done.  Those that go are collected.
	my $gone;
	my $goes = sub { push @$gone, @_; return; };
	my %do;
	%do = (
		release => sub { my ($one) = @_; $one->{holds} or return 1; $one->{s}->query('SELECT zk_unlock_all()'); return $goes->($one); },
		cancel => sub {
			my ($one) = @_;
			return 1 if $one->{holds};
			my $got = $one->{s}->cancel($admin);
			$one->{s}->query('SELECT zk_unlock_all()') if $got->{out} eq 't';    # it was too late for it
			return $goes->($one);
		},
		terminate => sub { my ($one) = @_; terminate($one); return $goes->($one); },
		drop => sub { my ($one) = @_; $one->{proxy}->drop; return; },
		# by hand: what it has is lost, or it queues again behind all others
		delete => sub {
			my ($one) = @_;
			my $node = sub { return $admin->value("SELECT node FROM zk_lock_queue('$path') WHERE pid = " . $one->{s}->pid) };
			my $before = $node->();
			$client->delete("/zklock$path/$before");
			zk_until(sub { $one->{s}->is_done || $node->() !~ /^(?:\Q$before\E)?$/ }, 'it to queue again');
			if ($one->{s}->is_done)
			{
				$one->{s}->wait if $one->{s}{mark};    # it has had its turn just before
				$one->{s}->query('SELECT zk_unlock_all()');
				return $goes->($one);
			}
			@queue = ((grep { $_ != $one } @queue), $one);
			return;
		});
	my $began = time;
	my $all_happened = sub { return !grep { !$did{$_} } keys %do };
	my $enough = sub { return time - $began > 6 && ($all_happened->() || time - $began > $TIMEOUT) };
	while (!$enough->() || @queue)
	{
		$gone = [];
		foreach (0 .. int rand 3)
		{
			my $what = $enough->() ? 'release' : ('enter', 'enter', 'enter', 'release', sort keys %do)[ rand 9 ];
			if ($what eq 'enter')
			{
				my $one = shift @idle or next;
				@$one{qw(places holds)} = (rand() < 0.5 ? 3 : 1 + int rand 4, 0);
				my $pid = $one->{s}->pid;
				$one->{s}->send("SELECT zk_semaphore_acquire('$path', $one->{places})");
				zk_until(sub { grep { $_ == $pid } $admin->value("SELECT pid FROM zk_lock_queue('$path') WHERE kind = 'semaphore'") =~ /\d+/g }, 'its node');
				push @queue, $one;
				next;
			}
			my $one = $queue[ rand @queue ];
			next if !$one || grep { $_ == $one } @$gone;
			$do{$what}->($one) or $did{$what}++;
		}
		foreach my $one (@$gone)
		{
			@queue = grep { $_ != $one } @queue;
			if ($one->{gone}) { $one->{s}->wait if $one->{s}{mark}; $one->{s}->quit; push @idle, session(session_timeout => '120s'); }
			else { push @idle, $one; }
		}
		my (@in, @out);
		foreach my $i (0 .. $#queue)
		{
			push @{ $queue[$i]{holds} || $i < $queue[$i]{places} ? \@in : \@out }, $queue[$i];
		}
		# before those who were forgotten look by themselves
		my @late = grep { $_->{s}{mark} && $_->{s}->wait(25)->{out} ne 't' } @in;
		$_->{holds} = 1 for @in;
		ok(!@late && !(grep { $_->{s}->is_done } @out), 'those in front, and no other') if @late || grep { $_->{s}->is_done } @out;
	}
	note join ', ', map { "$_ $did{$_}" } sort keys %did;
	ok($all_happened->(), 'all of it has happened');
	put_back(@idle);
	zk_until(sub { $zk->watch_count == 0 }, 'no watch to be left');
};

# --------------------------------------------------- the turn, on its way

# What the first waiter sends when a place is freed for it, and what it is sent
zk_leaves_nothing $zk, 'at each moment of a turn' => sub {
	foreach my $op (qw(getChildren setData))
	{
		foreach my $fault (qw(drop_request swallow_and_drop hold_request hold))
		{
			foreach my $then ('goes on', ('is terminated') x ($fault =~ /hold/))
			{
				my $name = "$op, $fault, $then";
				my ($path, @all) = crowd(4);
				my @s = map { $_->{s} } @all;
				my $proxy = $all[3]{proxy};
				my $waits = $op eq 'getChildren' && $fault =~ /hold/;    # it does not know of its place
				$proxy->clear_log;
				$proxy->$fault($op);
				give(@s[ 0, 1 ]);
				$proxy->wait_for($op);
				if ($fault =~ /hold/)
				{
					zk_until(sub { $proxy->held }, 'it to be held');
					is($s[3]->wait->{out}, 't', "$name: it has its place") if !$waits;
					ok(!$s[$_]->is_done, 'whoever comes after the next waits') for 5, 6;
					if ($then eq 'goes on') { $proxy->release; }
					else
					{
						terminate($all[3]);
						$proxy->release;
						zk_until(sub { queue($path) == 4 }, 'its node is gone');
					}
				}
				if ($then eq 'goes on')
				{
					have("$name: both have their places", [ @s[ 3, 4 ] ], [ @s[ 5, 6 ] ]);
					goes_on($name, [ @s[ 2, 3, 4 ] ], [ @s[ 5, 6 ] ]);
				}
				else
				{
					$s[3]->wait if $waits;
					have("$name: the two behind it come in", [ @s[ 4, 5 ] ], [ $s[6] ]);
					goes_on($name, [ @s[ 2, 4, 5 ] ], [ $s[6] ]);
				}
				put_back(@all);
			}
		}
	}
};

# A waiter is cut off while its turn comes, or that of the one ahead of it.
zk_leaves_nothing $zk, 'cut off meanwhile' => sub {
	foreach my $cut ([3], [4], [ 3, 4 ], [ 3 .. 7 ])
	{
		my ($path, @all) = crowd(5);
		my @s = map { $_->{s} } @all;
		$all[$_]{proxy}->refuse for @$cut;
		$all[$_]{proxy}->drop for @$cut;
		give(@s[ 0, 2 ]);
		my %is_cut = map { $_ => 1 } @$cut;
		# the first waiter, if not cut off, is not delayed
		have("@$cut cut off: the first is in", [ $s[3] ], [ @s[ 5 .. 7 ] ]) if !$is_cut{3};
		$all[$_]{proxy}->pass for @$cut;
		have("@$cut cut off: both are in", [ @s[ 3, 4 ] ], [ @s[ 5 .. 7 ] ]);
		goes_on("@$cut cut off", [ @s[ 1, 3, 4 ] ], [ @s[ 5 .. 7 ] ]);
		put_back(@all);
	}
};

# A machine that stalls keeps its own place empty, but delays no other for long.
zk_leaves_nothing $zk, 'the first of the waiters stands still' => sub {
	my $T = 12;    # its session must live until the next one has looked
	my ($path, @all) = crowd(4, settings => [ (undef) x $PLACES, map { { session_timeout => "${T}s" } } 1 .. 4 ]);
	my @s = map { $_->{s} } @all;
	my ($node) = (queue($path))[3];
	Child::suspend($s[3]->pid);
	my $began = time;
	give(@s[ 0, 1 ]);
	is($s[4]->wait->{out}, 't', 'the next one has its place');
	my $after = time - $began;
	note "after $after s";
	ok($client->exists($node), '- while it stands there still');
	in_time($after, $T / 2, '- soon');
	ok(!$s[$_]->is_done, '- and nobody has that of the one that stands still') for 5, 6;
	kill 'CONT', $s[3]->pid;
	is($s[3]->wait->{out}, 't', 'which is there when it goes on');
	goes_on('after that', [ @s[ 2 .. 4 ] ], [ @s[ 5, 6 ] ]);
	put_back(@all);
};

# ZooKeeper tells nobody of a change in a directory that he may not read at that
# moment, neither then nor later.
zk_leaves_nothing $zk, 'the directory cannot be read while a place becomes free' => sub {
	my $T = 6;
	my ($path, @all) = crowd(2, settings => [ (undef) x $PLACES, map { { session_timeout => "${T}s" } } 1, 2 ]);
	my @s = map { $_->{s} } @all;
	my ($node) = queue($path);
	my @acl = $client->get_acl("/zklock$path");
	Child::suspend(map { $_->pid } @s[ 3, 4 ]);    # who looks now and then must not look now
	$client->set_acl("/zklock$path", [ [ 31 & ~1, 'world', 'anyone' ] ]);    # all but READ
	$client->delete($node);
	$client->set_acl("/zklock$path", \@acl);
	kill 'CONT', map { $_->pid } @s[ 3, 4 ];
	my $began = time;
	have('the first waiter finds it', [ $s[3] ], [ $s[4] ]);
	in_time(time - $began, $T + 1, '- soon');
	$s[0]->query('SELECT zk_unlock_all()');
	goes_on('after that', [ @s[ 1 .. 3 ] ], [ $s[4] ]);
	put_back(@all);
};

# Who waits first watches the directory, and need not be told of it once it has its place.
# But all that a session watches is sent by one packet when it reconnects.
subtest 'directories that are watched no longer' => sub {
	my @path = map { sprintf '/%0900d', $_ } 1 .. 16;
	my ($s, @holders) = map { zk_session_with($node, root => '/' . 'r' x 990) } 1 .. 3;
	my $all = 'SELECT ' . join ', ', map { "zk_semaphore_acquire('$_', 2)" } @path;
	my $on_nodes = sub { return scalar(() = ($zk->four_letter('wchp') // '') =~ m{^/.*(semaphore-2-\d+)$}mg); };
	$_->value($all) for @holders;
	$s->send($all);
	foreach my $n (1 .. @path)
	{
		zk_until(sub { $on_nodes->() == $n }, 'it to wait');
		$holders[0]->value("SELECT zk_semaphore_release('$path[ $n - 1 ]')");
	}
	is($s->wait->{out}, join('|', ('t') x @path), 'one after the other is had');
	zk_until(sub { $zk->watch_count - $on_nodes->() <= 10 }, 'most of the directories to be watched no longer');
	pass('most of the directories are watched no longer');
	is($s->value('SELECT zk_unlock_all()'), scalar @path, 'given back');
};

# ------------------------------------------------------------------- timeouts

# Others come and go all the time, so that the first waiter is usually about to
# look when its time is up.
zk_leaves_nothing $zk, 'a timeout in a busy directory' => sub {
	my ($path, @all) = crowd(0);
	my @s = map { $_->{s} } @all;
	my $busy = session();
	my $waiter = session();
	$busy->{s}->send("DO \$\$ BEGIN FOR i IN 1 .. 100000 LOOP PERFORM zk_lock('$path'), zk_unlock('$path'); END LOOP; END \$\$");
	$waiter->{proxy}->delay_ms(20);
	foreach my $ms (1000, 1030, 1050, 1070)
	{
		my $result = $waiter->{s}->query("SELECT zk_semaphore_acquire('$path', $PLACES, '$ms ms')");
		is($result->{out} . $result->{state}, 'f', "$ms ms: false, and no error");
	}
	$busy->{s}->cancel($admin);
	give(@s);
	put_back(@all, $busy, $waiter);
};

$_->quit for $admin, map { $_->{s} } map { @$_ } values %idle;
$client->close;
zk_end($zk, $node);
