# zk_claim when something goes wrong between the claim and the release: each
# request and each answer is lost in turn, calls are canceled, backends
# terminated and killed, transactions fail after their mark was written, sessions
# of ZooKeeper expire; at last all of this at random.  Never do two transactions
# commit for a period.  One that fails leaves the period to the next in the queue; it
# stays pending only where process, machine or session were gone, and then
# zk_last_claim and pg_xact_status tell what happened.
#
# CLAIM_SECONDS=... (environment) how long at random, default 15; CLAIM_SEED=... its
# random numbers

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(pairs);

use Tests;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);

# The claimers are in one cluster, and who comes next is in another, since some of
# the claimers take their server with them.  The two have identifiers of their own, by
# which zk_last_claim tells them apart: two copies of the tests' cluster would not.
my ($node, $other) = map {
	delete local $ENV{INITDB_TEMPLATE} if $_ eq 'next';
	zk_cluster($_, $zk,
		restart_after_crash => 'on',
		wal_level => 'replica',
		max_wal_senders => 2,
		synchronous_standby_names => 'nobody',
		synchronous_commit => 'local')
} qw(claims next);
$_->safe_psql('postgres', 'CREATE TABLE played (period timestamptz, who text)') for $node, $other;

# A foreign table whose server refuses 'refused' at its COMMIT, and waits there
# for whoever has the advisory lock 1 with 'slow'
zk_foreign_server($node, loopback => $node);
$node->safe_psql(
	'postgres',
	q{CREATE TABLE remote (what text);
	CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF new.what = 'refused' THEN RAISE 'refused' USING ERRCODE = '23000'; END IF;
		IF new.what = 'slow' THEN PERFORM pg_advisory_xact_lock(1); END IF;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON remote DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
	CREATE FOREIGN TABLE there (what text) SERVER loopback OPTIONS (table_name 'remote');
	CREATE TABLE pair (i int PRIMARY KEY, v int);
	INSERT INTO pair VALUES (1, 0), (2, 0)});

my $last_period = 0;
my ($PERIOD, $DAY);
my $PATH = '/p';

# Sessions that only look, by the names of their servers: what follows asks hundreds of
# times, and each psql would take longer than all else
my %look = map { $_->name => zk_session($_) } $node, $other;

sub ask { my ($server, $sql) = @_; return $look{ $server->name }->value($sql); }

# Kill a backend of the claimers' server, and with it all others there
sub crash
{
	my ($pid) = @_;
	zk_kill($node, $pid);
	$look{ $node->name }->kill9;
	$look{ $node->name } = zk_session($node);
	return;
}

my %server = map { ask($_, 'SELECT system_identifier FROM pg_control_system()') => $_ } $node, $other;

# The next day, which nobody has claimed
sub new_period
{
	$DAY = $last_period++;
	$PERIOD = "timestamptz '2001-01-01 00:00 UTC' + $DAY * interval '1 day'";
	return;
}

# A statement that claims the period for a path and writes that down
sub claim
{
	my ($who, $timeout) = @_;
	return "INSERT INTO played SELECT $PERIOD, '$who' WHERE zk_claim('$PATH', $PERIOD" . ($timeout ? ", '$timeout'" : '') . ')';
}

# Who has committed for this period
sub played { return join ' ', sort map { split /\n/, ask($_, "SELECT who FROM played WHERE period = $PERIOD") } $node, $other; }

# What zk_last_claim tells, as "day state status", and the status asked on its server
sub last_claim
{
	my ($session) = @_;
	my ($day, $state, $host, $system, $xid) = split /\|/,
	  $session->value(
		qq{SELECT extract(day FROM period - '2001-01-01 00:00 UTC'), state, host, system_identifier, transaction_id FROM zk_last_claim('$PATH')});
	return "$day $state" if ($xid // '') eq '';
	return "$day $state " . ask($server{$system}, "SELECT pg_xact_status('$xid')");
}

# ... when what is under way has been carried out
sub settled
{
	my ($session, $expected, $name) = @_;
	my $seen;
	eval { until_true(sub { ($seen = last_claim($session)) eq $expected }, 'the mark', $MOMENT) };
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($seen, $expected, $name);
}

# A claimer behind the proxy, connected to ZooKeeper
sub claimer
{
	my (%setting) = @_;
	my $session = zk_session_with($node, hosts => $proxy, session_timeout => '4s', %setting);
	$session->value(q{SELECT zk_lock('/warm'), zk_unlock('/warm')});
	return $session;
}

# A transaction of this one claims the period, and the next one waits for it
sub claim_before
{
	my ($claimer, $next, $begin, $more) = @_;
	$claimer->value(($begin // 'BEGIN') . '; ' . claim('claimer') . ($more // ''));
	$next->send(claim('next'));
	return zk_wait_queued($zk, $next);
}

# From a clean state to a clean state.  $code takes the claimer, and who is next, which is
# the same session each time.
my $next_one = zk_session($other);

sub with_claimer
{
	my ($name, $code, %setting) = @_;
	subtest $name => sub {
		my ($claimer, $next) = (claimer(%setting), $next_one);
		new_period();
		$code->($claimer, $next);
		$proxy->reset;
		$proxy->count_frames;
		$claimer->quit;
		zk_nothing_left($zk, 'no lock is left', sessions => 2);    # who is next, and a guest
	};
	return;
}

#
# Each request and each answer is lost in turn
#

# How a claimer commits, or fails when its mark has been written: what precedes
# the claim, what follows it in the transaction, and what follows that.  The first claim of
# a path makes its mark.
my %program = (
	'it commits' => [ '', '', '' ],
	'it commits, the first of its path' => [ '', '', '' ],
	'it commits, and keeps the lock' => [ q{SELECT zk_lock('/p')}, '', q{SELECT zk_unlock('/p')} ],
	'it fails after its mark' => [ '', q{INSERT INTO there VALUES ('refused')}, '' ],
	'it fails after its mark, and keeps the lock' =>
	  [ q{SELECT zk_lock('/p')}, q{INSERT INTO there VALUES ('refused')}, q{SELECT zk_unlock('/p')} ]);

# Runs a program, with whoever is next in the queue as soon as the claim is made
sub play
{
	my ($claimer, $next, $name) = @_;
	my ($before, $within, $after) = @{ $program{$name} };
	$PATH = $name =~ /first/ ? "/first/$DAY/claim" : '/p';
	$claimer->query($before) if $before;
	my @results = ($claimer->query('BEGIN; ' . claim('claimer', '20s')));
	$next->send(claim('next', '20s'));
	push @results, $claimer->query($within) if $within;
	push @results, $claimer->query('COMMIT');
	$claimer->query($after) if $after;
	my $result = $next->wait;
	is($result->{state}, '', 'the next one has its turn');
	return @results;
}

foreach my $name (sort keys %program)
{
	my @frames;
	with_claimer "$name: nothing is lost" => sub {
		my ($claimer, $next) = @_;
		$proxy->count_frames;
		play($claimer, $next, $name);
		settled($next, "$DAY done committed", 'zk_last_claim says so');
		is(played(), $name =~ /fails/ ? 'next' : 'claimer', 'one commits');
		@frames = $proxy->frames;
	}, session_timeout => '20s';    # so that nothing is
	foreach my $way ('request drop', 'reply drop', 'request swallow', 'reply swallow')
	{
		my ($direction, $action) = split / /, $way;
		# silence is noticed late, by the same requests as without that lock, or with a mark
		next if $action eq 'swallow' && $name =~ /keeps|first/;
		my $n = $frames[ $direction eq 'reply' ] + 1;
		with_claimer "$name, each of $n: $way" => sub {
			my ($claimer, $next) = @_;
			foreach my $frame (1 .. $n)
			{
				$proxy->count_frames;
				$proxy->nth($direction, $frame, $action);
				my @results = play($claimer, $next, $name);
				settled($next, "$DAY done committed", "$frame: the mark is final");
				like(played(), $name =~ /fails/ ? qr/^next$/ : qr/^(?:claimer|next)$/, "$frame: one commits")
				  or diag(explain([ map { $_->{err} } @results ], [ map { "@$_" } $proxy->log ]));
				new_period();
				$proxy->clear_log;
			}
		};
	}
}

$PATH = '/p';

#
# One that fails
#

# At COMMIT, which is held up in the proxy by this rule
sub commit_until
{
	my ($claimer, $rule, $op) = @_;
	$proxy->$rule($op);
	$claimer->send('COMMIT');
	$proxy->wait_held;
	return;
}

my %failure = (
	'an error' => sub { $_[0]->query('SELECT 1/0; COMMIT') },
	'ROLLBACK' => sub { $_[0]->query('ROLLBACK') },
	'a remote server that fails' => sub { $_[0]->query(q{INSERT INTO there VALUES ('refused'); COMMIT}) },
	'a serialization failure' => sub {
		my ($claimer) = @_;
		my $rival = zk_session($node);
		$rival->value('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT v FROM pair WHERE i = 2');
		$claimer->value('SELECT v FROM pair WHERE i = 1; UPDATE pair SET v = v + 1 WHERE i = 2');
		$rival->value('UPDATE pair SET v = v + 1 WHERE i = 1; COMMIT');
		$rival->quit;
		is($claimer->query('COMMIT')->{state}, '40001', 'COMMIT fails');
	},
	'pg_terminate_backend' => sub { ask($node, 'SELECT pg_terminate_backend(' . $_[0]->pid . ')'); $_[0]->quit },
	'a client that is gone' => sub { $_[0]->kill9 },
	'a canceled COMMIT, before its mark is written' => sub { cancel_commit($_[0], 'hold_request') },
	'a canceled COMMIT, after its mark was written' => sub { cancel_commit($_[0], 'hold') });

sub cancel_commit
{
	my ($claimer, $hold) = @_;
	commit_until($claimer, $hold, 'mark');
	ask($node, 'SELECT pg_cancel_backend(' . $claimer->pid . ')');
	is($claimer->wait->{state}, '57014', 'the call ends');
	$proxy->release;
	return;
}

foreach my $name (sort keys %failure)
{
	with_claimer "$name leaves the period to the next" => sub {
		my ($claimer, $next) = @_;
		claim_before($claimer, $next, $name =~ /serial/ ? 'BEGIN ISOLATION LEVEL SERIALIZABLE' : 'BEGIN');
		$proxy->clear_log;
		my $began = time;
		$failure{$name}->($claimer);
		is($next->wait->{state}, '', 'it has its turn');
		in_time(time - $began, 1, 'at once');
		is(played(), 'next', 'and it commits');
		settled($next, "$DAY done committed", 'zk_last_claim says so');
		is(join('|', map { join ',', $_->[7] =~ m{(\w+) /}g } grep { $_->[1] eq '>' && $_->[2] eq 'multi' } $proxy->log),
			'check,setData|setData,delete', 'its mark was written, and taken back with the lock') if $name =~ /remote|serial/;
	}, session_timeout => '20s';    # outlasts a cancel on a slow machine
}

#
# The answer to the mark, or to what makes it final
#

# Where the lock stays, that is a request of another kind, but is lost in no way of its own
foreach my $way (@ZkProxy::WAYS)
{
	foreach my $stays ('', $way =~ /^swallowed and/ ? ', and the lock stays' : ())
	{
		foreach my $op ('mark', $stays ? 'setData' : 'settle')
		{
			with_claimer "$op, $way$stays" => sub {
				my ($claimer, $next) = @_;
				my $before = last_claim($next);
				$claimer->value(q{SELECT zk_lock('/p')}) if $stays;
				# only for COMMIT: what comes behind it waits for the heartbeat by whose answer the
				# session learns that another one was swallowed
				$claimer->value('BEGIN; ' . claim('claimer') . q{; SET LOCAL zklock.operation_timeout = '3s'});
				$proxy->clear_log;
				$proxy->lose($way, $op);
				is($claimer->query('COMMIT')->{state}, $op eq 'mark' ? '40001' : '', $op eq 'mark' ? 'in doubt COMMIT fails' : 'COMMIT succeeds');
				$proxy->wait_lost($way) if $op ne 'mark';
				$proxy->reset;
				settled($next, $op eq 'mark' ? $before : "$DAY done committed", 'the mark is settled');
				$claimer->value(claim('again') . '; SELECT zk_unlock_all()');
				is(played(), $op eq 'mark' ? 'again' : 'claimer', 'which the same session knows');
				settled($next, "$DAY done committed", 'and it is done');
			}, session_timeout => '12s', operation_timeout => '60s';
		}
	}
}

#
# Process, machine or session gone between the mark and the release
#

# Who keeps the remote server from its COMMIT
my $gate;

sub close_gate
{
	my (@claimers) = @_;
	$gate = zk_session($node);
	$gate->value('SELECT pg_advisory_lock(1)');
	foreach my $claimer (@claimers)
	{
		$claimer->value(q{INSERT INTO there VALUES ('slow')});
		$claimer->send('COMMIT');
	}
	zk_until(sub { $gate->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}) == @claimers }, 'the remote COMMIT');
	return;
}

# The COMMIT that is there comes to this end; or several: claimer, end, ...
sub finish
{
	my @ends = pairs @_;
	my @canceled = map { $_->[0] } grep { $_->[1] ne 'commits' } @ends;
	ask($node, 'SELECT pg_cancel_backend(' . $_->pid . ')') for @canceled;
	my %result = map { $_ => $_->wait } @canceled;
	$gate->value('SELECT pg_advisory_unlock(1)');
	$gate->quit;
	foreach (@ends)
	{
		my ($claimer, $end) = @$_;
		my $result = $result{$claimer} // $claimer->wait;
		is($result->{state}, $end eq 'fails' ? '57014' : '', "it $end");
	}
	return;
}

sub await_standby
{
	my ($claimer) = @_;
	$claimer->value('SET LOCAL synchronous_commit = on');
	$claimer->send('COMMIT');
	zk_until(sub { ask($node, 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $claimer->pid) eq 'SyncRep' }, 'it to wait for a standby');
	return;
}

# Where the claimer is in its COMMIT when it is killed, whether the next one gets the
# period, and what is told of it
my %killed = (
	'before its mark is written' => [ sub { commit_until($_[0], 'hold_request', 'mark') }, 'next', 'done committed' ],
	'before it knows of its mark' => [ sub { commit_until($_[0], 'hold', 'mark') }, '', 'pending aborted' ],
	'after its mark' => [ \&close_gate, '', 'pending aborted' ],
	'after its commit record' => [ \&await_standby, 'claimer', 'pending committed' ],
	'by pg_terminate_backend, and no answer comes' =>
	  [ sub { commit_until($_[0], 'hold', 'mark'); ask($node, 'SELECT pg_terminate_backend(' . $_[0]->pid . ')'); $_[0]->wait; $_[0]->quit },
		'', 'pending aborted' ],
	'before its release' => [ sub { commit_until($_[0], 'hold_request', 'settle') }, 'claimer', 'pending committed' ],
	'before it knows of its release' => [ sub { commit_until($_[0], 'hold', 'settle') }, 'claimer', 'done committed' ]);

foreach my $place (sort keys %killed)
{
	my ($code, $winner, $told) = @{ $killed{$place} };
	with_claimer "killed $place" => sub {
		my ($claimer, $next) = @_;
		my $id = $claimer->value('SELECT session_id FROM zk_session');
		claim_before($claimer, $next);
		$code->($claimer);
		crash($claimer->pid) if $claimer->{psql};
		$proxy->cut_off;
		$claimer->kill9;
		$zk->end_session($id);    # sooner than by its timeout
		is($next->wait->{state}, '', 'the next one has its turn');
		$gate->kill9 if $gate;
		is(played(), $winner, 'who has committed: ' . ($winner || 'nobody'));
		is(last_claim($next), "$DAY $told", 'zk_last_claim and pg_xact_status tell it');
		is($next->value("SELECT state FROM zk_claims('$PATH')"), $told =~ s/ .*//r, '- and zk_claims');
		new_period();
		$next->value(claim('next'));
		is(played(), 'next', 'the next period is not affected');
	};
}

# A session that expires while its claimer commits: the next one must take the period for
# claimed.  The claimer says what became of it as soon as it has another session.
foreach my $end ('commits', 'fails', 'is not told of its mark')
{
	with_claimer "its session expires, and it $end" => sub {
		my ($claimer, $next) = @_;
		my $id = $claimer->value('SELECT session_id FROM zk_session');
		my $unsure = $end =~ /told/;
		claim_before($claimer, $next, 'BEGIN', $unsure ? q{; SET LOCAL zklock.operation_timeout = '3s'} : '');
		if ($unsure) { commit_until($claimer, 'hold', 'mark'); }
		else { close_gate($claimer); }
		$proxy->cut_off;
		$zk->end_session($id);
		is($next->wait->{state}, '', 'the next one has its turn');
		is(played(), '', 'and does not do it');
		if ($unsure) { is($claimer->wait->{state}, '40001', 'COMMIT fails'); }
		else
		{
			is(last_claim($next), "$DAY pending in progress", 'since it is pending');
			finish($claimer, $end);
		}
		is(last_claim($next), "$DAY pending " . ($end eq 'commits' ? 'committed' : 'aborted'), 'pg_xact_status tells it');
		$proxy->pass;
		$claimer->value(claim('again'));
		is(played(), $end eq 'commits' ? 'claimer' : 'again', 'its next session settles the mark, before it claims');
		settled($next, "$DAY done committed", 'and then the mark tells it, too');
	};
}

# ZooKeeper is away for longer than the session timeout, and begins all sessions anew:
# the claimers have given up their locks, but nobody gets them before they have ended.
# They have as long again to come back, in which ZooKeeper has to start; who is next has
# longer.  One has written its commit record, and waits for a standby.
subtest 'ZooKeeper is away for longer than a session lives' => sub {
	my $timeout = 15;
	my %of;
	my $now_of = sub { my ($end) = @_; ($PATH, $PERIOD, $DAY) = @{ $of{$end} }{qw(path period day)}; return $of{$end}; };
	my @ends = ('commits', 'fails', 'hangs');
	foreach my $end (@ends)
	{
		new_period();
		$of{$end} = {
			path => "/away/$end", period => $PERIOD, day => $DAY,
			claimer => claimer(session_timeout => "${timeout}s"),
			next => zk_session_with($other, map { ("${_}_timeout" => '60s') } qw(session operation connect)) };
		claim_before(@{ $now_of->($end) }{qw(claimer next)});
	}
	await_standby($of{hangs}{claimer});
	close_gate(map { $of{$_}{claimer} } 'commits', 'fails');
	$zk->stop;
	my $stopped = time;
	sleep 0.1 while time - $stopped < $timeout + 0.5;    # the timeout that is to pass
	$zk->start;
	zk_until(sub { $proxy->connections == @ends }, 'them to be back');
	zk_wait_queued($zk, map { $of{$_}{next} } @ends);
	foreach my $end (@ends)
	{
		my $case = $now_of->($end);
		is(last_claim($gate), "$DAY pending in progress", "who $end: it is pending");
		ok(!$case->{next}->is_done, '- and the next one waits');
	}
	finish(map { ($of{$_}{claimer}, $_) } @ends);
	foreach my $end (@ends)
	{
		my $case = $now_of->($end);
		is($case->{next}->wait->{state}, '', "who $end: the next one has its turn");
		is(played(), $end eq 'fails' ? 'next' : 'claimer', '- one commits');
		settled($case->{next}, "$DAY done committed", '- zk_last_claim says so');
		$_->quit for @$case{qw(claimer next)};
	}
	$PATH = '/p';
	zk_nothing_left($zk, 'no lock is left', sessions => 2);    # who is next, and a guest
};

# Its node is deleted by somebody while it commits
with_claimer 'its node is removed, and it fails' => sub {
	my ($claimer, $next) = @_;
	my $before = last_claim($next);
	claim_before($claimer, $next);
	close_gate($claimer);
	is($gate->value(q{SELECT zk_lock_break('/p', node) FROM zk_lock_queue('/p') WHERE granted}), 't', 'removed');
	is($next->wait->{state}, '', 'the next one has its turn');
	is(played(), '', 'and does not do it');
	finish($claimer, 'fails');
	settled($next, $before, 'the mark is undone');
	$next->value(claim('next'));
	is(played(), 'next', 'and the period is to be had');
};

$next_one->quit;
zk_nothing_left($zk, 'nothing is left', sessions => 0);

#
# At random
#

# Nine sessions in both clusters claim the same periods, one after the other.  A period for
# which nobody commits is pending, or was left by somebody who was killed or expelled just
# then, or nobody was told that it had been claimed.
my $SECONDS = $ENV{CLAIM_SECONDS} || 15;
my $SEED = $ENV{CLAIM_SEED} // int rand 1e6;

sub one_of { return $_[ rand @_ ]; }

# What happens to somebody, and whether that can leave a claim pending
my @proxies = ($proxy, map { ZkProxy->new($zk) } 1, 2);
my $lose = sub { my ($op) = @_; return one_of(@proxies)->lose(one_of('swallowed and the connection cut', 'never asked for, the connection cut', 'swallowed'), $op); };
my %event = (
	'' => [ sub { }, 0 ],
	cancel => [ sub { kill 'INT', one_of(@_)->{session}->pid }, 0 ],
	terminate => [ sub { kill 'TERM', one_of(@_)->{session}->pid }, 0 ],
	'cancel all' => [ sub { kill 'INT', map { $_->{session}->pid } @_ }, 0 ],
	'client gone' => [ sub { one_of(@_)->{session}->kill9 }, 0 ],
	drop => [ sub { one_of(@proxies)->drop }, 0 ],
	'lost mark' => [ sub { $lose->('mark') }, 0 ],
	'lost settle' => [ sub { $lose->('settle') }, 0 ],
	'terminate, cut off' => [ sub { my $c = one_of(@_); $c->{proxy}->cut_off; kill 'TERM', $c->{session}->pid }, 1 ],
	expire => [ sub { my @ids = map { @$_[0] } grep { $_->[2] eq '' } map { $_->sessions } @proxies; $zk->end_session(one_of(@ids)) if @ids }, 1 ],
	'kill -9' => [ sub { crash($_->{session}->pid) for one_of(grep { $_->{node} == $node } @_) // () }, 1 ]);

subtest 'at random' => sub {
	srand $SEED;
	note "CLAIM_SEED=$SEED";
	$zk->{container_check} = 1000;
	$zk->restart;
	$PATH = '/random';
	my @claimers = map { { number => $_, node => ($node, $other)[ $_ % 2 ], proxy => $proxies[ $_ % 3 ] } } 0 .. 8;
	my (%did, @twice, @skipped);
	my ($claims, $unclaimed) = (0, 0);
	my $until = time + $SECONDS;
	while (time < $until || keys %did < 5)
	{
		new_period();
		$_->reset for @proxies;
		foreach my $claimer (@claimers)
		{
			# one that had its answer before it was ended does not know of it yet
			delete $claimer->{session} if $claimer->{session} && $claimer->{session}->query('SELECT 1')->{closed};
			$claimer->{session} //= eval { zk_session_with($claimer->{node}, hosts => $claimer->{proxy}, session_timeout => '4s', operation_timeout => '3s') };
		}
		my @here = grep { $_->{session} } @claimers;
		foreach (@here)
		{
			my $refused = $_->{node} == $node ? q{INSERT INTO there VALUES ('refused'); COMMIT} : 'ROLLBACK';
			$_->{session}->send('BEGIN; ' . claim($_->{number}, '20s') . q{ RETURNING 'mine'; } . one_of(('COMMIT') x 4, 'ROLLBACK', $refused));
		}
		sleep rand 0.2;
		my $name = one_of(sort keys %event);
		my ($code, $gone) = @{ $event{$name} };
		$code->(@here);
		sleep rand 0.3;
		$_->reset for @proxies;

		my $told = 0;
		foreach my $claimer (@here)
		{
			my $session = $claimer->{session};
			my $result = $session->{psql} ? $session->wait : { closed => 1 };
			$told++ if !$result->{closed} && $result->{state} eq '' && $result->{out} !~ /mine/;
			next unless $result->{closed};
			$session->quit;
			delete $claimer->{session};
		}
		# who was terminated, or lost its client, may be about to end
		zk_until(sub { !zk_locks_left($zk) }, 'all to be over');
		my $who = played();
		$did{$name}++;
		push @twice, "$DAY ($name): $who" if $who =~ / /;
		$claims++ if $who ne '';
		next if $who ne '';
		$unclaimed++;
		my $last = last_claim($look{next});
		push @skipped, "$DAY ($name): $told were told so, the last claim is $last" if $told && !$gone && $last !~ /^$DAY pending/;
	}
	note "$claims claimed, $unclaimed not; ", join ', ', map { "$did{$_} x '$_'" } sort keys %did;
	is_deeply(\@twice, [], 'no period is claimed twice');
	is_deeply(\@skipped, [], 'and none is skipped');
	cmp_ok($claims, '>', 0, 'some are claimed');
	$_->{session} && $_->{session}->quit for @claimers;
};

$_->quit for values %look;
zk_nothing_left($zk, 'nothing is left of that either', sessions => 0);
unlike(slurp_file($node->logfile), qr/PANIC:|TRAP:|signal 11|signal 6/, 'no backend has crashed by itself');
zk_no_crash($other);
done_testing();
