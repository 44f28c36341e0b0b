# Requests and answers that get lost, for every kind of lock and each call.  The request
# may have been carried out: a create whose answer is lost leaves exactly one node during
# the call, and none after it; a delete whose answer is lost is repeated until the node is
# gone; a downgrade is done once, readers behind it are let in, and the writer behind
# them not before its turn.  No loss makes a call fail, hang, or return a wrong answer.
#
# There is a session behind a proxy for each kind and each way to lose something, and all
# of them do so at a time: most of it is waiting.  Their timeout is short, since silence is
# noticed within it; but a third of it, which is left then, is longer than a machine stands
# still.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Child;
use Kinds;
use Tests;

kinds_begin();
$admin->value('CREATE TABLE t (who text)');

my $CUT = 'swallowed and the connection cut';
my @CUTS = ($CUT, 'never asked for, the connection cut');

#
# Exclusive locks, single nodes and curator_rw's downgrades lose in all ways.
#
#   way           in which this one does
#   take, give    its statements, and "back" that for what is left after "give"
#   left          which is this, as zk_holds tells it
#   create, list, release    the requests of those
#   behind        [ a reader, a writer ], sessions that wait for what is to be left
#
my $number = 0;
my @plain = map {
	my $kind = $_;
	map {
		my $path = "/lost/$kind/" . ++$number;
		{
			kind => $kind, way => $_, path => $path, style => $kind eq 'single' ? 'single' : 'curator',
			take => take($kind, $path), give => give($kind, $path), left => '',
			create => create_of($kind), list => $kind eq 'single' ? 'exists' : 'getChildren', release => 'delete'
		}
	} $kind =~ /^(?:exclusive|single)$/ ? @ZkProxy::WAYS : @CUTS
} @kinds, 'single';

my %its_ways = (curator => [ 'stuck on its way', $CUT ], curator_rw => \@ZkProxy::WAYS, kazoo => [$CUT]);
my @downgrade = map {
	my $style = $_;
	map {
		my $path = "/lost/down/$style/" . ++$number;
		{
			kind => "downgrade, $style", way => $_, path => $path, style => $style,
			take => "SELECT zk_lock('$path'), zk_lock_shared('$path')", give => "SELECT zk_unlock('$path')",
			left => 'shared session 1 held', back => "SELECT zk_unlock_shared('$path')",
			release => $style eq 'curator' ? 'setData' : 'multi'
		}
	} @{ $its_ways{$style} }
} sort keys %its_ways;
my @try = map {
	my $op = $_;
	map {
		my $path = "/lost/try/" . ++$number;
		{
			kind => "zk_try_lock, $op", way => $_, path => $path, style => 'curator',
			take => "SELECT zk_try_lock('$path')", give => "SELECT zk_unlock('$path')", left => '',
			list => $op, release => 'delete'
		}
	} @ZkProxy::WAYS_OF_ANSWERS
} qw(getChildren sync);
$_->{name} = "$_->{kind}, $_->{way}" for @plain, @downgrade, @try;

# those of a kind, those that lose answers, and one of each style
sub of_kind { my ($kind, @lanes) = @_; return grep { $_->{kind} eq $kind } @lanes; }
sub answers { return grep { $_->{way} !~ /^stuck/ } @_; }
my @exclusive = of_kind('exclusive', @plain);
my ($exclusive) = @exclusive;
my @styles = map { (of_kind("downgrade, $_", @downgrade))[0] } sort keys %its_ways;

# A statement that looks at a lost lock is not to be canceled: that is t/034's
sub begin_session
{
	my ($lane, %setting) = @_;
	$lane->{s} = warm_session(hosts => $lane->{proxy}, session_timeout => '6s', node_style => $lane->{style}, cancel_on_loss => 'off', %setting);
	return $lane->{s};
}

foreach my $lane (@plain, @try, @downgrade)
{
	$lane->{proxy} = ZkProxy->new($zk);
	begin_session($lane);
	$lane->{behind} = [ map { warm_session(hosts => $zk, node_style => $lane->{style}) } 1, 2 ] if $lane->{back};
	$_->{zk_id} = $_->value('SELECT session_id FROM zk_session') for @{ $lane->{behind} // [] };
}

# All nodes at the lock, but those of others and of who is behind
sub nodes
{
	my ($lane) = @_;
	my %of = $zk->ephemerals;
	delete @of{ $other->session_id, map { $_->{zk_id} } @{ $lane->{behind} // [] } };
	return grep { m{\Q$lane->{path}\E(?:/|$)} } map { @$_ } values %of;
}

sub no_nodes { my (@lanes) = @_; zk_until(sub { !grep { nodes($_) } @lanes }, 'no node is left'); return pass('no node is left'); }

# What is lost next: the request or answer named so in each of these
sub lose
{
	my ($what, @lanes) = @_;
	foreach (@lanes)
	{
		$_->{proxy}->clear_log;
		$_->{proxy}->lose($_->{way}, $_->{$what} // $what);
	}
	return;
}

# All at a time; $sql is a statement, or the name of one
sub all_send { my ($sql, @lanes) = @_; $_->{s}->send($_->{$sql} // $sql) for @lanes; return; }
sub all_wait { return map { $_->{s}->wait } @_; }
sub all_do { my ($sql, @lanes) = @_; all_send(@_); return all_wait(@lanes); }

sub are_true
{
	my ($name, $sql, @lanes) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @results = $sql ? all_do($sql, @lanes) : all_wait(@lanes);
	like("$results[$_]{out}$results[$_]{err}", qr/\At(?:[|\n]t)*\z/, "$lanes[$_]{name}: $name: true, without a warning") for 0 .. $#lanes;
	return;
}

sub are_held
{
	my (@lanes) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $lane (@lanes)
	{
		my @own = nodes($lane);
		is(@own, $lane->{kind} eq 'all' ? 3 : 1, "$lane->{name}: no node too many");
		zk_until(sub { $lane->{s}->value("SELECT bool_and(state = 'held') FROM zk_locks") eq 't' }, 'held');
		is($lane->{s}->value(q{SELECT string_agg(DISTINCT node, ' ' ORDER BY node) FROM zk_locks}), shown($lane->{kind}, @own), '- which zk_locks names');
		next unless $lane->{kind} =~ /^(?:exclusive|single)$/ || $lane->{back};
		$lane->{token} = $zk->exists($own[0])->{czxid};
		is($lane->{s}->value("SELECT zk_lock_token('$lane->{path}')"), $lane->{token}, '- with its token');
	}
	return;
}

# A reader, and a writer behind that
sub queue_behind
{
	foreach my $lane (grep { $_->{behind} } @_)
	{
		my ($reader, $writer) = @{ $lane->{behind} };
		$reader->send("SELECT zk_lock_shared('$lane->{path}')");
		zk_wait_queued($zk, $reader);
		$writer->send("SELECT zk_lock('$lane->{path}')");
		zk_wait_queued($zk, $writer);
	}
	return;
}

sub reader_is_let_in
{
	my ($lane) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($reader, $writer) = @{ $lane->{behind} };
	is($reader->wait->{out}, 't', "$lane->{name}: the reader behind it is let in");
	return;
}

sub writer_has_its_turn
{
	my ($lane) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($reader, $writer) = @{ $lane->{behind} };
	is($writer->wait->{out}, 't', "$lane->{name}: the writer has it");
	is(nodes($lane), 0, '- and there is no node');
	$writer->value("SELECT zk_unlock('$lane->{path}')");
	return;
}

sub both_have_their_turn
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $lane (@_)
	{
		reader_is_let_in($lane);
		$lane->{behind}[0]->value($lane->{back});
		writer_has_its_turn($lane);
	}
	return;
}

# What "give" leaves is there, and is given back
sub are_given
{
	my (@lanes) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	reader_is_let_in($_) for grep { $_->{behind} } @lanes;
	foreach my $lane (@lanes)
	{
		zk_until(sub { nodes($lane) == ($lane->{back} ? 1 : 0) && zk_holds($lane->{s}) eq $lane->{left} }, "$lane->{name}: '$lane->{left}'");
		$lane->{proxy}->reset;
		next unless $lane->{back};
		my ($reader, $writer) = @{ $lane->{behind} };
		my ($node) = map { s/.*\///r } nodes($lane);
		zk_until(sub { $lane->{s}->value('SELECT node FROM zk_locks') eq $node }, "zk_locks to name $node");
		is($lane->{s}->value("SELECT zk_lock_token('$lane->{path}')"), $lane->{token}, '- whose token is the same') if $lane->{token};
		ok(!$writer->is_done, '- the writer waits');
		is($lane->{s}->query("SET zklock.commit_guard = 'strict'; INSERT INTO t VALUES ('relies')")->{state}, '', '- a COMMIT can rely on it');
		is($reader->value($lane->{back}), 't', '- the reader gives it back');
		ok(!$writer->is_done, '- the writer waits');
		is($lane->{s}->value($lane->{back}), 't', '- and so does this one');
		writer_has_its_turn($lane);
	}
	return;
}

# A test of its own, from a clean state to a clean state
sub lost
{
	my ($name, $code, @lanes) = @_;
	subtest $name => sub {
		$code->(@lanes);
		foreach my $lane (@lanes)
		{
			$lane->{proxy}->reset;
			if ($lane->{s}{psql}) { $lane->{s}->value('RESET ALL'); }
			else { begin_session($lane); }
		}
		are_true("time $_", join('; ', map { $exclusive->{$_} } qw(take give)), grep { $_ == $exclusive } @lanes) for 1, 2;
		$_->{s}->value("$_->{take}; $_->{give}" . ($_->{back} ? "; $_->{back}" : '')) for @lanes;
		nothing_left('nothing is left');
	};
	return;
}

# ------------------------------------------------------------------- a free lock

lost 'create and release' => sub {
	my (@lanes) = @_;
	lose('create', grep { $_->{create} } @lanes);
	are_true('taken', 'take', @lanes);
	$_->{proxy}->reset for @lanes;
	are_held(@lanes);
	queue_behind(@lanes);
	lose('release', @lanes);
	are_true('given back', 'give', @lanes);
	are_given(@lanes);
}, @plain, @downgrade;

lost 'list' => sub {
	my (@lanes) = @_;
	my @blockers = map { block('exclusive', $_->{path}) } @try;
	lose('list', @try);
	is($_->{out}, 'f', 'zk_try_lock: false for a lock that is taken') for all_do('take', @try);
	no_nodes(@try);
	$_->{proxy}->reset for @try;
	$other->delete($_) for @blockers;
	lose('list', @lanes);
	are_true('taken', 'take', @lanes);
	are_held(@lanes);
	are_true('given back', 'give', @lanes);
}, answers(@plain), @try;

# Directories that never had a child stay forever unless they are deleted.
lost 'the directories of a first lock arrive, the lock does not: they are removed' => sub {
	my ($s, $proxy) = @$exclusive{qw(s proxy)};
	$proxy->hold_request('create2');    # this one finds that there is no directory
	$s->send("SELECT zk_lock('/never/had')");
	$proxy->wait_held;
	$proxy->delay_ms(2000);    # until the next rule is there
	$proxy->release;
	$proxy->hold_request('create2');    # this one comes after the directories
	$proxy->delay_ms(0);
	$proxy->wait_held;
	zk_until(sub { $zk->exists('/zklock/never/had') }, 'the directories');
	$proxy->cut_off;
	is($s->cancel($admin)->{state}, '57014', 'the call is canceled');
	$proxy->pass;
	ok(eval { zk_until(sub { !$zk->exists('/zklock/never/had') }, 'removed') }, 'what was not used is removed: ZooKeeper would not');
}, $exclusive;

lost 'create, swallowed: a timeout of the call that ends meanwhile is an error' => sub {
	my ($lane) = @_;
	$lane->{proxy}->swallow('*', 1000);    # an answer to a heartbeat would give the loss away
	my $result = $lane->{s}->query("SELECT zk_lock('$lane->{path}', '200ms')");
	is($result->{state}, '58030', 'is 58030, not false');
	like($result->{message}, qr/^timeout expired before ZooKeeper answered/, 'with the reason');
}, $exclusive;

# The missing directory is not the reason of the failure, then.
my %over = (
	'the timeout of the call' => [ '', ", '1s'", qr/^timeout expired before ZooKeeper answered/ ],
	'operation_timeout' => [ "SET zklock.operation_timeout = '1s'", '', qr/^ZooKeeper did not answer within 1000 ms/ ]);
foreach my $what (sort keys %over)
{
	my ($set, $timeout, $message) = @{ $over{$what} };
	lost "create of a first lock, refused when $what is over: says so" => sub {
		my ($s, $proxy) = @$exclusive{qw(s proxy)};
		$s->value($set) if $set;
		$proxy->hold('create2');
		$s->send("SELECT zk_lock('/late/lock'$timeout)");
		$proxy->wait_held;
		Child::suspend($s->pid);
		$proxy->release;
		sleep 1.1;
		kill 'CONT', $s->pid;
		my $result = $s->wait;
		is($result->{state}, '58030', 'is 58030');
		like($result->{message}, $message, 'and why');
	}, $exclusive;
}

# ------------------------------------------------------------------- a lock that is taken

foreach my $what (qw(create getData))
{
	lost "$what while it waits" => sub {
		my (@lanes) = @_;
		foreach my $lane (@lanes)
		{
			$lane->{blockers} = [ map { block($lane->{kind}, $lane->{path}) } 1 .. ($lane->{kind} eq 'exclusive' ? 2 : 1) ];
		}
		lose($what, @lanes);
		all_send('take', @lanes);
		$_->{proxy}->wait_lost($_->{way}) for @lanes;
		if ($what eq 'create')
		{
			my $most = 0;
			my @missing = of_kind('exclusive', @lanes);
			zk_until(
				sub {
					my %watched = map { $_ => 1 } watched();
					@missing = grep {
						my @own = nodes($_);
						$most = @own if @own > $most;
						!@own || grep { !$watched{$_} } @{ $_->{blockers} }, @own
					} @missing;
					return !@missing;
				},
				'them to be in the queue');
			is($most, 1, 'never more than one node');
			wait_for_blocker($_->{path}, @{ $_->{blockers} }) for @lanes;
		}
		foreach my $lane (grep { @{ $_->{blockers} } > 1 } @lanes)
		{
			$other->delete(shift @{ $lane->{blockers} });
			wait_for_blocker($lane->{path}, @{ $lane->{blockers} });
		}
		ok(!$_->{s}->is_done, "$_->{name}: it waits, and does not get in too early") for @lanes;
		$other->delete($_) for map { @{ $_->{blockers} } } @lanes;
		are_true('has it then', undef, @lanes);
		are_held(@lanes);
		are_true('given back', 'give', @lanes);
	}, $what eq 'create' ? @plain : answers(@plain);
}

# A client that was cut off cannot come back until that is allowed, and a client whose
# answer was swallowed learns of it in no other way.  (One that is terminated: t/020)
lost 'create, and a cancel before that is known' => sub {
	my (@lanes) = @_;
	$_->{blocker} = block($_->{kind}, $_->{path}) for @lanes;
	foreach (@lanes)
	{
		$_->{proxy}->clear_log;
		$_->{proxy}->refuse if $_->{way} =~ /cut/;
		$_->{proxy}->lose($_->{way}, $_->{create});
		$_->{proxy}->swallow('*', 1000) if $_->{way} eq 'swallowed';    # heartbeats, too
	}
	all_send('take', @lanes);
	$_->{proxy}->wait_lost($_->{way}) for @lanes;
	$admin->value('SELECT ' . join ', ', map { 'pg_cancel_backend(' . $_->{s}->pid . ')' } @lanes);
	is($_->{state}, '57014', 'the call has ended') for all_wait(@lanes);
	# held frames stay held
	$_->{way} eq 'swallowed' ? $_->{proxy}->reset : $_->{proxy}->pass for @lanes;
	no_nodes(@lanes);
	$other->delete($_->{blocker}) for @lanes;
}, @plain;

# ------------------------------------------------------------------- the release

my $LATER = q{SET zklock.operation_timeout = '1ms'};
my $BY_AND_BY = qr/\A(?:ZooKeeper has not confirmed [^"]*)?\z/;

# name, before the lock is taken, in a transaction or not, before the release, the
# release, what is warned, how long it takes
foreach (
	[ 'that is not waited for', '', 0, $LATER, 'give', $BY_AND_BY ],
	[ 'by COMMIT', '', 1, '', 'COMMIT', qr/\A\z/, 0 ],
	[ 'by COMMIT with a release_timeout', q{SET zklock.release_timeout = '300ms'}, 1, '', 'COMMIT', qr/\A\z/, 0.3 ],
	[ 'by ROLLBACK TO SAVEPOINT', '', 0, '', 'ROLLBACK TO s', qr/\A\z/ ])
{
	my ($name, $first, $xact, $before, $release, $warning, $promise) = @$_;
	lost "release $name" => sub {
		my (@lanes) = @_;
		# a check by the guard would be a request of a downgrade's kind
		all_do(join('; ', grep { $_ } $first, q{SET zklock.commit_guard = off}, $xact ? 'BEGIN' : $release =~ /^ROLL/ ? 'BEGIN; SAVEPOINT s' : ()), @lanes);
		foreach (@lanes)
		{
			my $take = $_->{take};
			$take =~ s/zk_/zk_xact_/ if $xact;
			$_->{s}->value($take);
			$_->{token} = $_->{back} ? $zk->exists((nodes($_))[0])->{czxid} : undef;
		}
		queue_behind(@lanes);
		all_do($before, @lanes) if $before;
		lose('release', @lanes);
		foreach (all_do($release, @lanes))
		{
			is($_->{state}, '', 'succeeds');
			like("@{ $_->{warnings} }", $warning, 'with a warning, or confirmed');
			is($_->{out}, 't', 'and is true') if $release eq 'give';
			in_time($_->{seconds}, $promise + $SLACK, 'in time') if defined $promise;
		}
		all_do(q{RESET ALL; SET zklock.commit_guard = off}, @lanes);
		all_do('COMMIT', @lanes) if $release =~ /^ROLL/;
		are_given(@lanes);
	}, @plain, $release =~ /^ROLL/ ? () : @downgrade;
}

# ------------------------------------------------------------------- a downgrade in doubt

# They downgrade, which is not waited for, and nobody knows yet
sub downgrade_in_doubt
{
	my (@lanes) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	all_do($LATER, @lanes);
	lose('release', @lanes);
	is($_->{out}, 't', 'zk_unlock is true') for all_do('give', @lanes);
	return;
}

lost 'downgraded, and given back before that is known' => sub {
	my (@lanes) = @_;
	all_do('take', @lanes);
	queue_behind(@lanes);
	downgrade_in_doubt(@lanes);
	is($_->{out}, 't', 'zk_unlock_shared, too') for all_do('back', @lanes);
	is(zk_holds($_->{s}), '', 'nothing is held') for @lanes;
	both_have_their_turn(@lanes);
}, @downgrade;

lost 'downgraded, and taken again before that is known' => sub {
	my (@lanes) = @_;
	all_do('take', @lanes);
	are_held(@lanes);
	$_->{behind}[0]->send("SELECT zk_lock_shared('$_->{path}')") for @lanes;
	zk_wait_queued($zk, map { $_->{behind}[0] } @lanes);
	downgrade_in_doubt(@lanes);
	all_do('RESET zklock.operation_timeout', @lanes);
	$_->{s}->send("SELECT zk_lock('$_->{path}')") for @lanes;
	foreach my $lane (@lanes)
	{
		reader_is_let_in($lane);
		zk_wait_queued($zk, $lane->{s});
		is($lane->{behind}[0]->value($lane->{back}), 't', 'and gives it back');
		is($lane->{s}->wait->{out}, 't', 'then it is an upgrade');
		cmp_ok($lane->{s}->value("SELECT zk_lock_token('$lane->{path}')"), '>', $lane->{token}, 'with a new token');
		is(zk_holds($lane->{s}), 'exclusive session 1 held, shared session 1 held', 'both are held');
		is(nodes($lane), 2, 'by two nodes');
		is($lane->{s}->value("$lane->{give}; $lane->{back}"), "t\nt", 'given back');
	}
}, @downgrade;

# The guard checks a node whose name is in doubt.
lost 'downgraded, and a COMMIT that relies on the reader before that is known' => sub {
	my (@lanes) = @_;
	all_do('take', @lanes);
	downgrade_in_doubt(@lanes);
	all_do(q{RESET zklock.operation_timeout; SET zklock.commit_guard = 'strict'}, @lanes);
	is($_->{state}, '', 'commits') for all_do(q{INSERT INTO t VALUES ('relies')}, @lanes);
	foreach my $lane (@lanes)
	{
		zk_until(sub { zk_holds($lane->{s}) eq $lane->{left} }, $lane->{left});
		is($lane->{s}->value($lane->{back}), 't', "$lane->{name}: and holds it as a reader");
	}
}, @downgrade;

lost 'downgraded, and terminated before that is known' => sub {
	my (@lanes) = @_;
	all_do('take', @lanes);
	queue_behind(@lanes);
	foreach (@lanes) { $_->{proxy}->refuse if $_->{way} =~ /cut/; }
	lose('release', @lanes);
	all_send('give', @lanes);
	$_->{proxy}->wait_lost($_->{way}) for @lanes;
	$admin->value('SELECT ' . join ', ', map { 'pg_terminate_backend(' . $_->{s}->pid . ')' } @lanes);
	foreach (@lanes)
	{
		ok($_->{s}->wait->{closed}, "$_->{name}: the session is closed");
		$_->{s}->quit;
	}
	both_have_their_turn(@lanes);
}, @downgrade;

# The session is over, and the name of the node no longer matters.
foreach (
	[ 'a call that needs it', $CUT, sub { is($_[0]->query("SELECT $_('$_[1]')")->{state}, '55000', "$_: 55000") for qw(zk_lock zk_lock_shared) } ],
	[ 'zk_unlock_shared', $CUTS[1], sub { } ],
	[ 'COMMIT', $CUT, sub { zk_is_lost($_[0]->query('COMMIT'), $_[1], 'COMMIT') } ],
	[ 'the end', $CUTS[1], undef ])
{
	my ($then, $way, $code) = @$_;
	lost "downgraded, and its session lost, $way, then $then" => sub {
		my (@lanes) = @_;
		foreach my $lane (@lanes)
		{
			$lane->{s}->quit;
			my $s = begin_session($lane, session_timeout => '20s');
			$s->value($lane->{take});
			$lane->{id} = $s->value('SELECT session_id FROM zk_session');
			$s->value(q{BEGIN; INSERT INTO t VALUES ('lost')}) if $then eq 'COMMIT';
			queue_behind($lane);
			$s->value(q{SET zklock.operation_timeout = '100ms'});
			$lane->{proxy}->refuse;
			$lane->{proxy}->lose($way, $lane->{release});
		}
		is($_->{out}, 't', 'zk_unlock is true') for all_do('give', @lanes);
		foreach my $lane (@lanes)
		{
			my ($s, $path) = @$lane{qw(s path)};
			my ($reader, $writer) = @{ $lane->{behind} };
			$zk->end_session($lane->{id}) if $way =~ /^never/;
			reader_is_let_in($lane);
			$zk->end_session($lane->{id}) unless $way =~ /^never/;
			is(nodes($lane), 0, 'the session is over');
			$reader->value($lane->{back});
			writer_has_its_turn($lane);
			$lane->{proxy}->pass;
			$s->value('RESET zklock.operation_timeout');
			zk_until(sub { zk_holds($s) eq 'shared session 1 lost' }, 'lost');
			if ($code)
			{
				$code->($s, $path);
				my $result = $s->query($lane->{back});
				is($result->{out} . @{ $result->{warnings} }, 'f1', 'zk_unlock_shared warns, and is false');
				is(zk_holds($s), '', 'nothing is held');
				is($s->value("SELECT zk_lock_shared('$path'), zk_unlock_shared('$path')"), 't|t', 'it can be had again');
				isnt($s->value('SELECT session_id FROM zk_session'), $lane->{id}, 'in another ZooKeeper session');
			}
			$s->quit;
		}
	}, $then =~ /^a call/ ? @styles : $styles[1];
}

# The node is deleted by hand: there is nothing to downgrade.
lost 'the node that is to be downgraded is deleted a moment before' => sub {
	foreach my $lane (@_)
	{
		my $s = $lane->{s};
		my ($reader, $writer) = @{ $lane->{behind} };
		$s->value($lane->{take});
		$writer->send("SELECT zk_lock('$lane->{path}')");
		zk_wait_queued($zk, $writer);
		$other->delete($_) for nodes($lane);
		writer_has_its_turn($lane);
		my $result = $s->query($lane->{give});
		is($result->{out}, 'f', 'zk_unlock is false');
		like("@{ $result->{warnings} }", qr/"\Q$lane->{path}\E" had been lost/, 'and warns');
		is(zk_holds($s), 'shared session 1 lost', 'the shared hold is lost');
		is(nodes($lane), 0, 'no node was made in its place');
		$result = $s->query($lane->{back});
		is($result->{out} . @{ $result->{warnings} }, 'f1', 'zk_unlock_shared warns, and is false');
	}
}, @styles;

# The check is sent before ZooKeeper has refused the new name, and asks for that.
lost 'downgraded, which is refused, and a COMMIT that relies on the reader before that is known' => sub {
	foreach my $lane (@_)
	{
		my ($s, $proxy, $path) = @$lane{qw(s proxy path)};
		$s->value(q{SET zklock.commit_guard = off; BEGIN; } . $lane->{take} =~ s/zk_/zk_xact_/r);
		my @acl = $zk->acl("/zklock$path");
		$other->set_acl("/zklock$path", [ [ 31 & ~4, 'world', 'anyone' ] ]);    # no create
		$proxy->clear_log;
		$proxy->hold('multi');
		$s->value('COMMIT; SET zklock.commit_guard = strict');
		$proxy->wait_held;
		$s->send("BEGIN; SELECT zk_try_xact_lock_shared('$path'); COMMIT");
		$proxy->wait_for('multi', 2);
		$proxy->release;
		my $commit = $s->wait;
		is("$commit->{out}$commit->{state}", 't', "$lane->{name}: COMMIT passes");
		is(zk_holds($s), 'shared session 1 held', '- and it is held');
		$other->set_acl("/zklock$path", \@acl);
		$s->value($lane->{back});
	}
}, @styles[ 1, 2 ];

# It may have been carried out, is refused when it is sent again, and nobody wants
# the node any longer: it is deleted under whichever of the two names it has.
lost 'given back while in doubt, refused, and cut off again' => sub {
	my ($lane) = @_;
	my ($s, $proxy, $dir) = (@$lane{qw(s proxy)}, "/zklock$lane->{path}");
	my $writer = $lane->{behind}[1];
	$s->value("$lane->{take}; SELECT zk_lock('/elsewhere')");    # so that its session goes on
	$writer->send("SELECT zk_lock('$lane->{path}')");
	zk_wait_queued($zk, $writer);
	$s->value($LATER);
	$proxy->clear_log;
	$proxy->swallow_and_drop('multi');
	$proxy->refuse;
	is($s->query($lane->{$_})->{out}, 't', "true: $_") for qw(give back);
	zk_until(sub { grep { $_->[2] eq 'drop' } $proxy->log }, 'the answer to be swallowed');
	my @acl = $zk->acl($dir);
	$other->set_acl($dir, [ [ 31 & ~4, 'world', 'anyone' ] ]);    # no create
	$proxy->drop_request('delete');
	$proxy->pass;
	writer_has_its_turn($lane);
	$other->set_acl($dir, \@acl);
	$s->value(q{RESET zklock.operation_timeout; SELECT zk_unlock('/elsewhere')});
}, $styles[1];

# ------------------------------------------------------------------- events

# (Those that are lost with the connection: t/022)
lost 'an event that comes too late for a canceled call' => sub {
	my ($lane) = @_;
	my $before = block('exclusive', $lane->{path});
	all_send('take', $lane);
	wait_for_blocker($lane->{path}, $before);
	$lane->{proxy}->hold_event;
	$other->delete($before);
	$lane->{proxy}->wait_held;
	is($lane->{s}->cancel($admin)->{state}, '57014', 'canceled');
	$lane->{proxy}->release;
}, $exclusive;

# Missed events arrive in no particular order: the event that it is our turn may
# come before the one that our own node is gone.
lost 'cut off, its own node and the one before deleted meanwhile: nobody gets in too early' => sub {
	my ($lane) = @_;
	my $before = block('exclusive', $lane->{path});
	foreach my $time (1 .. 6)
	{
		all_send('take', $lane);
		my @mine = wait_for_blocker($lane->{path}, $before);
		$lane->{proxy}->cut_off;
		zk_until(sub { $lane->{proxy}->connections == 0 }, 'it is cut off');
		my $next = foreign($lane->{path}, $kind{exclusive}{node});
		$other->delete($_) for $before, @mine;
		$before = $next;
		$lane->{proxy}->pass;
		zk_until(sub { $lane->{s}->is_done || (nodes($lane) == 1 && $zk->watch_count == 2) }, 'it waits again');
		ok(!$lane->{s}->is_done, "it does not, time $time");
		is($lane->{s}->cancel($admin)->{state}, '57014', 'canceled');
		nothing_left('it is out of the queue');
	}
	$other->delete($before);
}, $exclusive;

is($admin->value(q{SELECT string_agg(DISTINCT who, ', ') FROM t}), 'relies', 'what was committed') if $WHOLE;
$_->quit for map { ($_->{s}, @{ $_->{behind} // [] }) } @plain, @try, @downgrade;
kinds_end();
