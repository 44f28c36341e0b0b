# A call can be ended at each step of its conversation with ZooKeeper, at once,
# by everything that ends a statement.  Nothing is left in ZooKeeper, and the
# session can lock and unlock as before.  And a background worker at any moment.
#
# A proxy stops the conversation at the step; the tests are all combinations of
# a table of steps and a table of what ends a call, but that statement_timeout, for us the
# same as pg_cancel_backend, is tried at three steps, and locks of other kinds than
# exclusive ones where their conversation is another one.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Kinds;
use Tests;

# The promised time in seconds; that of Kinds is how much more a single one of many may
# take on a machine that stalls
my $PROMISE = 0.1;

# How long a backend may take to exit when ZooKeeper does not answer the close
my $EXIT_BOUND = 2 + 1.5;

# Settings that end a call do so after this time, in ms.  The step must have
# been reached before; otherwise it is repeated with twice the time.
my $TIMEOUT_MS = 1000;

kinds_begin();

# Each waits until the call has reached its step, or has ended before it.
sub reached
{
	my ($session, $code, $what) = @_;
	zk_until(sub { $session->is_done || $code->() }, $what);
	return;
}

sub waits { my ($c) = @_; return reached($c->{s}, sub { zk_waits($admin, $c->{s}->pid) }, 'it waits'); }
sub is_held { my ($c) = @_; return reached($c->{s}, sub { $proxy->held }, 'something to be held'); }
sub runs { my ($c) = @_; return reached($c->{s}, sub { $admin->value(q{SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid = } . $c->{s}->pid) }, 'it to begin'); }
sub waits_behind { my ($c) = @_; return reached($c->{s}, sub { my %watched = map { $_ => 1 } watched(); !grep { !$watched{$_} } @{ $c->{blockers} }, own_nodes($c->{path}) }, 'it to queue'); }

# Its name, what is said of it, what is done before the call, and until when that has got
# there; what is called, if no lock is taken.
#   cold      not preceded by a first lock and unlock
#   new       nor are there directories
#   stays     the proxy stays as it is until the session, if it has one, is closed
#   blocked   by another contender, which bypasses the proxy; or by two
#   kinds     tried with those, too: canceled
#   gives     after the lock was taken
my @steps = (
	[ 'connecting', 'cold stays', sub { $proxy->blackhole }, \&waits ],
	[ 'reconnecting', '', sub { $proxy->refuse; $proxy->drop }, \&waits ],
	# another session takes its place, and nobody answers its goodbye
	[ 'replacing', 'stays', sub { $proxy->blackhole; $_[0]{s}->value(q{SET zklock.session_timeout = '59s'}) }, \&runs ],
	[ 'create on its way', 'blocked kinds', sub { $proxy->hold_request(create_of($_[0]{kind})) }, \&is_held ],
	[ 'create sent', 'blocked kinds stays', sub { $proxy->hold(create_of($_[0]{kind})) }, \&is_held ],
	[ 'parents sent', 'new', sub { $proxy->hold('createContainer') }, \&is_held ],
	[ 'list sent', 'blocked kinds', sub { $proxy->hold('getChildren') }, \&is_held ],
	[ 'watching', 'blocked kinds', sub { $proxy->hold('getData') }, \&is_held ],
	[ 'waiting', 'blocked kinds', sub { }, \&waits_behind ],
	# the farther of two leaves: the queue is read again
	[ 'woken', 'blocked by two', sub { }, sub {
		my ($c) = @_;
		waits_behind($c);
		$proxy->hold('getChildren');
		$other->delete(shift @{ $c->{blockers} });
		is_held($c);
	} ],
	[ 'trying', 'no limit', sub { $proxy->hold('sync') }, \&is_held, sub { "SELECT zk_try_lock('$_[0]{path}')" } ],
	[ 'deleting by zk_unlock', 'gives stays no limit', sub { $proxy->hold('delete') }, \&is_held, sub { give(@{ $_[0] }{qw(kind path)}) } ],
	[ 'delete of zk_unlock on its way', 'gives no limit', sub { $proxy->hold_request('delete') }, \&is_held, sub { give(@{ $_[0] }{qw(kind path)}) } ],
	[ 'deleting by zk_unlock_all', 'gives no limit', sub { $proxy->hold('delete') }, \&is_held, sub { 'SELECT zk_unlock_all()' } ]);

# What ends it, with which SQLSTATE; by a function of another session, or by a setting
my @enders = (
	[ 'pg_cancel_backend', '57014' ],
	[ 'statement_timeout', '57014', 1 ],
	[ 'lock_timeout', '55P03', 1 ],
	[ 'pg_terminate_backend', '57P01' ],
	[ 'its argument', '', 1 ]);

my %after;    # seconds from what ended a call until the client knew, by that

# Let a call reach the step, and end it; returns what became of it, with "after", "ended",
# "too_late", and the session
sub try_step
{
	my ($kind, $step, $ender, $timeout_ms) = @_;
	my (undef, $said, $prepare, $reached, $call) = @$step;
	my ($by, $state, $limit) = @$ender;
	# Who is terminated leaves what ZooKeeper has to end.  For all others no
	# timeout of ours is over soon enough to be taken for the end of the call.
	my %timeout = $state eq '57P01' ? (session_timeout => '2s') : map { ("${_}_timeout" => '1min') } qw(session operation connect);
	my $s = zk_session_with($node, %timeout, %{ $kind{$kind}{setting} });
	my $path = new_path();
	my $c = { s => $s, kind => $kind, path => $path, blockers => [] };

	# a connected session, unless connecting is the step, and directories
	$s->value(take($kind, $said =~ /new/ ? '/warm' : $path) . '; ' . give($kind, $said =~ /new/ ? '/warm' : $path)) unless $said =~ /cold/;
	$s->value(take($kind, $path)) if $said =~ /gives/;
	push @{ $c->{blockers} }, block($kind, $path) for 1 .. ($said =~ /two/ ? 2 : $said =~ /blocked/ ? 1 : 0);
	$prepare->($c);

	my $began = $limit ? time + $timeout_ms / 1000 : undef;
	$s->value("SET $by = $timeout_ms") if $by =~ /_timeout/;
	$s->send($call ? $call->($c) : take($kind, $path, $by eq 'its argument' ? "${timeout_ms}ms" : undef));
	$reached->($c);
	my $too_late = $s->is_done;
	if (!$limit)
	{
		$began = time;
		$admin->value("SELECT $by(" . $s->pid . ')');
	}
	$s->wait_error;
	my $after = time - $began;
	my $heal = sub { $proxy->release; $proxy->pass; };
	$heal->() unless $said =~ /stays/;
	my $result = $s->wait;
	$result->{ended} = time - $began;
	$heal->();
	@$result{qw(after too_late)} = ($after, $too_late);
	$s->value("RESET $by") if $by =~ /_timeout/ && !$result->{closed};
	return ($result, $c);
}

sub test_step
{
	my ($kind, $step, $ender) = @_;
	my ($by, $state) = @$ender;
	my ($result, $c);

	for (my $timeout_ms = $TIMEOUT_MS; $timeout_ms <= 8 * $TIMEOUT_MS; $timeout_ms *= 2)
	{
		leave(@{ $c->{blockers} }) if $c;
		($result, $c) = try_step($kind, $step, $ender, $timeout_ms);
		last if !$result->{too_late} || $result->{state} ne $state;
	}
	my ($s, $path) = @$c{qw(s path)};
	is($result->{state}, $state, "ends with '$state'");
	is($result->{out}, 'f', 'and is false') if $state eq '';
	ok(!$result->{too_late}, 'at this step');
	cmp_ok($result->{after}, '>', -0.01, 'not before its time');
	cmp_ok($result->{after}, '<', $MOMENT, 'long before any other timeout');
	in_time($result->{after}, $PROMISE + $SLACK, 'at once');
	push @{ $after{$by} }, $result->{after};

	# while the other contenders still exist, so that nothing is cleaned up
	# because they leave
	nothing_left('no node and no watch is left');
	is($s->value(take($kind, $path, '0')), 'f', 'the other contender still excludes us') if @{ $c->{blockers} } && !$result->{closed};
	leave(@{ $c->{blockers} });

	if ($state eq '57P01')
	{
		ok($result->{closed}, 'the session is closed');
		in_time($result->{ended}, $EXIT_BOUND, 'and does not take long to');
		return;
	}
	is($s->value(take($kind, $path) . '; ' . give($kind, $path)), "t\nt", "locks and unlocks, time $_") for 1 .. 2;
	return;
}

# Whether it is tried: statement_timeout takes a second, for what PostgreSQL makes the same
# cancel of.  What ends the waits of other kinds but single ones is in specs/limits.
sub is_tried
{
	my ($kind, $step, $by) = @_;
	my ($name, $said) = @$step;
	return 0 if $said =~ /no limit/ && $by eq 'lock_timeout';
	return $by eq 'statement_timeout' ? $name =~ /^(?:connecting|waiting|deleting by zk_unlock)$/ : $by ne 'its argument' if $kind eq 'exclusive';
	return 0 if $said !~ /kinds/ || ($kind eq 'single' && $name eq 'list sent');
	return $kind eq 'single' || $by eq 'pg_terminate_backend' if $name eq 'waiting';
	return $by eq 'pg_cancel_backend';
}

foreach my $step (@steps)
{
	foreach my $ender (@enders)
	{
		foreach my $kind (grep { is_tried($_, $step, $ender->[0]) } @kinds, 'single')
		{
			edge "$step->[0]: $ender->[0]" . ($kind eq 'exclusive' ? '' : ", $kind") => sub { test_step($kind, $step, $ender) };
		}
	}
}

foreach my $name (sort keys %after)
{
	my @after = sort { $a <=> $b } @{ $after{$name} };
	in_time($after[ @after / 2 ], $PROMISE, "$name: as soon as was promised");
}

# ------------------------------------------------------------- background workers

# One takes locks as a backend does, and one that is terminated while it waits or holds
# leaves nothing behind and disturbs nobody: with die() at any moment, and with the
# handler that exits from within the signal while it waits.  (The latter at any moment
# would be a test of PostgreSQL: even without zklock it ends in "corrupted size vs.
# prev_size" once in some hundred times.)
my $library = zk_library('extension');
$admin->value("CREATE FUNCTION worker_launch(text, text, boolean) RETURNS integer AS '$library' LANGUAGE C");
$admin->value(q{ALTER DATABASE postgres SET zklock.session_timeout = '10s'});    # one that exits within the signal does not close its session
my $holder = zk_session($node);
my $session = $holder->value(q{SELECT zk_lock('/worker'), zk_unlock('/worker'); SELECT session_id FROM zk_session}) =~ s/.*\n//r;

sub launch
{
	my ($query, $at_once) = @_;
	return $admin->value(sprintf q{SELECT worker_launch('%s', 'SELECT %s', %s)}, $library, $query =~ s/'/''/gr, $at_once ? 'true' : 'false');
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
	my $pid = launch($wait, $at_once);

	zk_until(sub { !gone($pid) }, 'the worker is there to be terminated');
	zk_until(sub { watched_by_another() && zk_waits($admin, $pid) }, 'the worker waits') if $at_once;
	$admin->value("SELECT pg_terminate_backend($pid)");
	zk_until(sub { gone($pid) }, "the worker has ended, $i");
	zk_until(sub { $zk->children('/zklock/worker') == 1 }, "its node is gone, $i");
	zk_until(sub { !$zk->children('/zklock/others') }, "nor is another, $i") if $wait =~ /others/;
	is($holder->value('SELECT zk_unlock_all()'), 1, "a worker that is terminated while it waits leaves nothing: $wait, $i");
}

my $pid = launch(q{zk_lock('/worker'), pg_sleep(60)}, 1);
zk_until(sub { $zk->children('/zklock/worker') == 1 }, 'the worker holds');
$holder->send("SELECT zk_lock('/worker')");
zk_wait_queued($zk, $holder);
$admin->value("SELECT pg_terminate_backend($pid)");
is($holder->wait->{out}, 't', 'one that is terminated while it holds gives the lock to the next');
$holder->value("SELECT zk_unlock('/worker')");

$pid = launch(q{zk_lock('/worker'), zk_unlock('/worker')});
zk_until(sub { gone($pid) }, 'the worker has ended by itself');
$holder->quit;

kinds_end(tree => 1);
