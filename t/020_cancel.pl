
# A call can be ended at each step of its conversation with ZooKeeper, at once,
# by everything that ends a statement.  Nothing is left in ZooKeeper, and the
# session can lock and unlock as before.  And a background worker at any moment.
#
# A proxy stops the conversation at the step; the tests are all combinations of
# a table of steps and a table of what ends a call, but that statement_timeout, for us the
# same as pg_cancel_backend, is tried at three steps.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Time::HiRes qw(time);
use Test::More;

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

# The promised time in seconds, and how much more a single one of many may take
# on a machine that stalls
my $PROMISE = 0.1;
my $SLACK = 1;

# How long a backend may take to exit when ZooKeeper does not answer the close
my $EXIT_BOUND = 2 + 1.5;

# Settings that end a call do so after this time, in ms.  The step must have
# been reached before; otherwise it is repeated with twice the time.
my $TIMEOUT_MS = 1000;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
my $node = zk_cluster('main', $proxy, 'zklock.session_timeout' => '2s');
my $admin = zk_session($node);

my $LOCK = "SELECT zk_lock('/l')";
my $DIR = '/zklock/l';

# Other contenders in the queue, which bypass the proxy
my $other = $zk->client;
my @others;

sub other_locks
{
	my ($n) = @_;
	push @others, $other->contend($DIR) for 1 .. $n;
	return;
}

sub others_leave
{
	$other->delete($_) for splice @others;
	return;
}

# Each waits until the call has reached its step, or has ended before it.
sub reached
{
	my ($session, $code, $what) = @_;
	zk_until(sub { $session->is_done || $code->() }, $what);
	return;
}

sub waits
{
	my ($session) = @_;
	reached($session, sub { zk_waits($admin, $session->pid) }, 'it waits');
	return;
}

sub runs
{
	my ($session) = @_;
	my $active = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid = " . $session->pid;
	reached($session, sub { $admin->value($active) }, 'it to begin');
	return;
}

sub waits_in_queue
{
	my ($session) = @_;
	# its own node and up to two before it
	my $watches = 1 + (@others < 2 ? @others : 2);
	reached($session, sub { $zk->watch_count == $watches }, "$watches watches");
	return;
}

sub waits_for_what_is_held
{
	my ($session) = @_;
	reached($session, sub { $proxy->held }, 'something to be held');
	return;
}

# stays: the proxy stays as it is until the session, if it has one, is closed
# cold:  not preceded by a first lock and unlock
my @steps = (
	{
		name => 'connecting',
		stays => 1,
		cold => 1,
		prepare => sub { $proxy->blackhole },
		reached => \&waits
	},
	{
		name => 'reconnecting',
		prepare => sub { $proxy->refuse; $proxy->drop },
		reached => \&waits
	},
	{
		# another session takes its place, and nobody answers its goodbye
		name => 'replacing',
		stays => 1,
		prepare => sub { $proxy->blackhole; $_[0]->value(q{SET zklock.session_timeout = '59s'}) },
		reached => \&runs
	},
	{
		name => 'create on its way',
		prepare => sub { $proxy->hold_request('create2') },
		reached => \&waits_for_what_is_held
	},
	{
		name => 'create sent',
		stays => 1,
		prepare => sub { $proxy->hold('create2') },
		reached => \&waits_for_what_is_held
	},
	{
		name => 'parents sent',
		new_path => 1,
		prepare => sub { $proxy->hold('createContainer') },
		reached => \&waits_for_what_is_held
	},
	{
		name => 'list sent',
		prepare => sub { $proxy->hold('getChildren') },
		reached => \&waits_for_what_is_held
	},
	{
		name => 'watching',
		prepare => sub { other_locks(1); $proxy->hold('getData') },
		reached => \&waits_for_what_is_held
	},
	{
		name => 'waiting',
		prepare => sub { other_locks(1) },
		reached => \&waits_in_queue
	},
	{
		# the farther of two leaves: the queue is read again
		name => 'woken',
		prepare => sub { other_locks(2) },
		reached => sub {
			waits_in_queue($_[0]);
			$proxy->hold('getChildren');
			$other->delete(shift @others);
			waits_for_what_is_held($_[0]);
		}
	},
	{
		name => 'trying',
		sql => "SELECT zk_try_lock('/l')",
		no_lock_timeout => 1,
		prepare => sub { $proxy->hold('sync') },
		reached => \&waits_for_what_is_held
	},
	{
		name => 'deleting by zk_unlock',
		stays => 1,
		sql => "SELECT zk_unlock('/l')",
		no_lock_timeout => 1,
		prepare => sub { $_[0]->value($LOCK); $proxy->hold('delete') },
		reached => \&waits_for_what_is_held
	},
	{
		name => 'delete of zk_unlock on its way',
		sql => "SELECT zk_unlock('/l')",
		no_lock_timeout => 1,
		prepare => sub { $_[0]->value($LOCK); $proxy->hold_request('delete') },
		reached => \&waits_for_what_is_held
	},
	{
		name => 'deleting by zk_unlock_all',
		sql => "SELECT zk_unlock_all()",
		no_lock_timeout => 1,
		prepare => sub { $_[0]->value($LOCK); $proxy->hold('delete') },
		reached => \&waits_for_what_is_held
	});

my @enders = (
	{
		name => 'pg_cancel_backend',
		state => '57014',
		act => sub { $admin->value("SELECT pg_cancel_backend($_[0])") }
	},
	{
		name => 'statement_timeout',
		state => '57014',
		setting => 'statement_timeout'
	},
	{
		name => 'lock_timeout',
		state => '55P03',
		setting => 'lock_timeout'
	},
	{
		name => 'pg_terminate_backend',
		state => '57P01',
		act => sub { $admin->value("SELECT pg_terminate_backend($_[0])") }
	});

my $timeout_ms = $TIMEOUT_MS;

# Let a call reach the step, end it, and return how it ended, with "after":
# seconds from the event that ended it until the client knew.
sub end_call
{
	my ($session, $sql, $reached, $ender, $on_error) = @_;
	my $setting = $ender->{setting};
	my $began;

	if ($setting)
	{
		$session->value("SET $setting = $timeout_ms");
		$began = time + $timeout_ms / 1000;
	}
	$session->send($sql);
	$reached->($session);
	my $too_late = $session->is_done;
	if (!$setting)
	{
		$began = time;
		$ender->{act}->($session->pid);
	}
	$session->wait_error;
	my $after = time - $began;
	$on_error->() if $on_error;
	my $result = $session->wait;
	$result->{ended} = time - $began;
	$result->{too_late} = $too_late;
	$result->{after} = $after;
	$session->value("RESET $setting") if $setting && !$result->{closed};
	return $result;
}

# How long this machine takes for any statement
sub plain
{
	my ($ender) = @_;
	my $session = zk_session($node);
	my $sleeps = sub {
		reached($session, sub { $admin->value('SELECT count(*) FROM pg_stat_activity WHERE pid = '
					  . $session->pid . " AND wait_event = 'PgSleep'") }, 'pg_sleep');
	};
	return end_call($session, 'SELECT pg_sleep(60)', $sleeps, $ender)->{after};
}

my %after;    # seconds, by what ended the call
my $paths = 0;

sub try_step
{
	my ($step, $ender) = @_;
	# Who is terminated leaves what ZooKeeper has to end.  For all others no
	# timeout of ours is over soon enough to be taken for the end of the call.
	my $session = zk_session($node, $ender->{state} eq '57P01' ? ()
		: (options => join ' ', map { "-c zklock.${_}_timeout=1min" } qw(session operation connect)));
	my $sql = $step->{sql} // $LOCK;

	# a connected session, unless connecting is the step
	$session->value("SELECT zk_lock('/warm'), zk_unlock('/warm')") unless $step->{cold};
	$sql =~ s{/l'}{'/new' . ++$paths . "/l'"}e if $step->{new_path};
	$step->{prepare}->($session);

	my $heal = sub { $proxy->release; $proxy->pass; };
	my $result = end_call($session, $sql, $step->{reached}, $ender, $step->{stays} ? undef : $heal);
	$heal->();
	return ($result, $session);
}

sub test_step
{
	my ($step, $ender) = @_;
	my ($result, $session);

	for ($timeout_ms = $TIMEOUT_MS; $timeout_ms <= 8 * $TIMEOUT_MS; $timeout_ms *= 2)
	{
		($result, $session) = try_step($step, $ender);
		last if !$result->{too_late} || $result->{state} ne $ender->{state};
		others_leave();
	}
	is($result->{state}, $ender->{state}, "ends with $ender->{state}");
	ok(!$result->{too_late}, 'at this step');
	cmp_ok($result->{after}, '<', $MOMENT, 'long before any other timeout');
	in_time($result->{after}, $PROMISE + $SLACK, 'at once');
	push @{ $after{ $ender->{name} } }, $result->{after};

	# while the other contenders still exist, so that nothing is cleaned up
	# because they leave
	zk_until(sub { !grep { !/other/ } zk_locks_left($zk) }, 'no node of ours is left');
	pass('no node is left');
	my $watches = zk_until(sub { $zk->watch_count == 0 }, 'no watch is left');
	ok($watches, 'no watch is left');
	others_leave();

	if ($ender->{state} eq '57P01')
	{
		ok($result->{closed}, 'the session is closed');
		in_time($result->{ended}, $EXIT_BOUND, 'and does not take long to');
	}
	else
	{
		is($session->value("$LOCK; SELECT zk_unlock('/l')"), "t\nt", "locks and unlocks, time $_")
		  for 1 .. 2;
	}
	return;
}

foreach my $ender ($TIMING ? @enders : ())
{
	next if $ender->{name} eq 'lock_timeout';    # it does not end pg_sleep
	my ($best) = sort { $a <=> $b } map { plain($ender) } 1 .. 3;
	note(sprintf 'pg_sleep, %s: %.1f ms', $ender->{name}, 1000 * $best);
}

foreach my $step (@steps)
{
	foreach my $ender (@enders)
	{
		next if $step->{no_lock_timeout} && $ender->{name} eq 'lock_timeout';
		# a second's wait each, for what PostgreSQL makes the same cancel of
		next if $ender->{name} eq 'statement_timeout' && $step->{name} !~ /^(?:connecting|waiting|deleting by zk_unlock)$/;
		subtest "$step->{name}: $ender->{name}" => sub { test_step($step, $ender) };
	}
}

foreach my $name (sort keys %after)
{
	my @after = sort { $a <=> $b } @{ $after{$name} };
	diag(sprintf '%s: median %.1f ms, slowest %.1f ms', $name, 1000 * $after[ @after / 2 ], 1000 * $after[-1]);
	in_time($after[ @after / 2 ], $PROMISE, "$name: as soon as was promised");
}

# ------------------------------------------------------------- background workers

# One takes locks as a backend does, and one that is terminated while it waits or holds
# leaves nothing behind and disturbs nobody: with die() at any moment, and with the
# handler that exits from within the signal while it waits.  (The latter at any moment
# would be a test of PostgreSQL: even without zklock it ends in "corrupted size vs.
# prev_size" once in some hundred times.)
my $library = zk_library('worker');
$admin->value("CREATE FUNCTION worker_launch(text, text, boolean) RETURNS integer AS '$library' LANGUAGE C");
$admin->value(q{ALTER DATABASE postgres SET zklock.session_timeout = '10s'});    # one that exits within the signal does not close its session
my $holder = zk_session($node);
my $session = $holder->value(q{SELECT zk_lock('/worker'), zk_unlock('/worker'); SELECT session_id FROM zk_session}) =~ s/.*\n//r;

sub launch
{
	my ($query, $at_once) = @_;
	$at_once = $at_once ? 'true' : 'false';
	return $admin->value("SELECT worker_launch('$library', '$query', $at_once)");
}

sub gone { return $admin->value("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $_[0]") eq 't' }

# Sessions that watch a node there, except the holder's, which may watch its own
sub watched_by_another { return grep { $_ ne $session } $zk->four_letter('wchc') =~ /^(0x\w+)$/mg }

# Each kind of wait, and what it waits for
my @wait = (
	[ q{zk_lock('/worker')}, q{zk_lock('/worker')} ],
	[ q{zk_lock_shared('/worker')}, q{zk_lock('/worker')} ],
	[ q{zk_semaphore_acquire('/worker', 1)}, q{zk_semaphore_acquire('/worker', 1)} ],
	[ q{zk_xact_lock_many('{/worker,/others}')}, q{zk_lock_shared('/worker')} ]);

# Send the signal at various moments.  By the time a watch is set everything
# else is done, and pg_stat_activity is checked after that.
for my $i (0 .. 31)
{
	my ($wait, $for) = @{ $wait[ $i / 2 % 4 ] };
	$holder->value("SELECT $for");
	my $at_once = $i % 2;
	my $pid = launch('SELECT ' . $wait =~ s/'/''/gr, $at_once);

	zk_until(sub { !gone($pid) }, 'the worker is there to be terminated');
	zk_until(sub { watched_by_another() && zk_waits($admin, $pid) }, 'the worker waits') if $at_once;
	$admin->value("SELECT pg_terminate_backend($pid)");
	zk_until(sub { gone($pid) }, "the worker has ended, $i");
	zk_until(sub { $zk->children('/zklock/worker') == 1 }, "its node is gone, $i");
	zk_until(sub { !$zk->children('/zklock/others') }, "nor is another, $i") if $wait =~ /others/;
	is($holder->value('SELECT zk_unlock_all()'), 1, "$wait, $i");
}
pass('a worker that is terminated while it waits leaves nothing');

my $pid = launch(q{SELECT zk_lock(''/worker''), pg_sleep(60)}, 1);
zk_until(sub { $zk->children('/zklock/worker') == 1 }, 'the worker holds');
$holder->send("SELECT zk_lock('/worker')");
zk_wait_queued($zk, $holder);
$admin->value("SELECT pg_terminate_backend($pid)");
is($holder->wait->{out}, 't', 'one that is terminated while it holds gives the lock to the next');
$holder->value("SELECT zk_unlock('/worker')");

launch(q{SELECT zk_lock(''/worker''), zk_unlock(''/worker'')});
zk_until(sub { $admin->value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'zklock test worker'") == 0 },
	'the worker has ended by itself');
$holder->quit;

$other->close;
undef $admin;
$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left, no session either', sessions => 0, tree => 1);

done_testing();
