# The checker of the torture test can fail: it finds each violation in a log
# that contains it (Torture::Random), none in a log without; what an earlier one let
# pass; and what a stopped holder causes when there is neither guard nor fence.
#
# CHECKER_SEED, CHECKER_HISTORIES: instead of a random seed, and 1,000

use strict;
use warnings;
use File::Temp;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Test::More;

use Torture;
use Torture::Random;
use Zklock;

# One exclusive lock.  An operation is granted at "begin" and gives back a second later,
# and all goes well, unless it says something else.
my $last_op = 0;

sub op
{
	my (%op) = @_;
	my $n = ++$last_op;
	%op = (how => 'commit', phase => 'ok', op => $n, worker => $n, object => 1, token => $n, session => "s$n", node => 1, went => 'delete', %op);
	return \%op unless defined $op{begin};
	%op = (asked => $op{begin} - 0.05, left => $op{begin} + 1, %op);
	%op = (made => $op{asked} + 0.01, committed => $op{left} + 0.01, gone => $op{left} + 0.02, end => $op{left} + 0.03, %op);
	return \%op;
}

sub story
{
	my %more = ref $_[0] eq 'HASH' ? %{ +shift } : ();
	my ($ops, @faults) = @_;
	my $number = 0;
	$_->{number} = ++$number for @faults;
	my %found;
	$found{ $_->[0] }++ for Torture::Random::tell_all({ %more, ops => $ops, faults => \@faults, workers => $last_op, end => 1100 })->violations;
	$last_op = 0;
	return join ', ', map { "$_ $found{$_}" } sort keys %found;
}

subtest 'what an earlier checker let pass' => sub {
	my $fault = sub { my ($begin, $end, $kind, %more) = @_; return { begin => $begin, end => $end, kind => $kind, %more } };

	my @undone = (phase => 'failed', row => 0);

	is(story([ op(begin => 1), op(begin => 2.1) ]), '', 'one after the other');
	is(story([ op(begin => 1, left => 11, @undone), op(begin => 2, @undone) ]), 'turn 1, two holders 1', 'two holds at the same time, for 9 s');
	is(story([ op(begin => 1, left => 11, @undone, node => 0, token => undef), op(begin => 2, @undone, node => 0, token => undef), op(begin => 20) ]),
		'no node 2, two holders 1', 'the same, though neither knows its token');
	is(story([ op(begin => 1, left => 7), op(begin => 2, left => 8) ]), 'turn 1, two holders 1', 'two that overlap by 5 s, and commit in order');
	is(story([ map { op(begin => 1 + 0.01 * $_, left => 3 + $_) } 1 .. 10 ]), 'turn 45, two holders 9', 'a lock that grants everybody, while the fence keeps the writers apart');
	is(story([ op(begin => 1, left => 11, @undone, gone => 4, went => 'expiry'), op(begin => 4.1) ], $fault->(1.5, 10, 'backend_stop', worker => 1)),
		'', 'but who sleeps has lost its lock');
	is(story([ op(begin => 1, left => 11, @undone, gone => 4, went => 'expiry'), op(begin => 4.1) ], $fault->(1.5, 10, 'backend_stop', worker => 2)),
		'loss 1', 'which needs a reason of its own');
	is(story([ op(begin => 1, left => 11, @undone, gone => 4, went => 'expiry'), op(begin => 3.9) ], $fault->(1.5, 10, 'backend_stop', worker => 1)),
		'turn 1, two holders 1', 'and is not lost before ZooKeeper says so');

	my @drop = $fault->(1, 1.1, 'drop', server => 1);
	my @refused = (server => 1, phase => 'failed', state => '40001', how => 'failed', row => 0);
	is(story([ map { op(begin => 1001 + 0.5 * $_, left => 1001.2 + 0.5 * $_, @refused) } 1 .. 100 ], @drop),
		'refusal 100', '100 refusals, 1000 s after a fault of 0.1 s');
	is(story([ op(begin => 1.2, @refused) ], @drop), '', 'one right after it');
	is(story([ op(begin => 1.2, @refused, server => 2) ], @drop), 'refusal 1', 'but not on another server');

	my @late = (op(begin => 1), op(asked => 1.1, begin => 34));
	is(story([@late], $fault->(1, 35, 'backend_stop', worker => 7)), 'late grant 1', 'a waiter that is served 32 s late, while another worker is stopped');
	$last_op = 2;
	is(story([@late], $fault->(1, 35, 'backend_stop', worker => 2)), '', 'while it is stopped itself');

	my $causes = Torture::Causes->new(session_timeout => 2, tick => 0.5);
	$causes->fault(10, 1, 'begin', { kind => 'backend_stop', worker => 1 });
	$causes->fault(16, 1, 'end', {});
	$causes->run_ended(100);
	is(sprintf('%.3f', $causes->judged(1)), '0.900', 'a worker that was stopped for 6 s is excused for 10');
	is(sprintf('%.3f', $causes->judged(1 .. 4)), '0.975', 'and the others are not');
};

subtest 'what ZooKeeper does is seen a moment later' => sub {
	my $hit = sub { my ($kind, %more) = @_; return { begin => 1.9, end => 2.5, kind => $kind, %more } };

	# a backend ends, and its client does not know yet
	my @ends = (left => 2, phase => 'failed', how => 'closed', row => 0, gone => 1.985, went => 'close');
	my $next = sub { op(begin => 1.99, asked => 1.2) };
	is(story([ op(begin => 1, @ends), $next->() ]), 'two holders 1', 'a lock that is given back before it was asked for');
	is(story([ op(begin => 1, @ends), $next->() ], $hit->('backend_kill', cluster => 1)), '', 'as the backend was killed');
	is(story([ op(begin => 1, @ends), $next->() ], $hit->('backend_kill', cluster => 0)), 'two holders 1', 'not one of the other cluster');

	# a leader gives a change its time before it is carried out
	my $refused = sub { my ($at) = @_; return op(asked => $at, answered => $at + 0.01, got => 'f', node => 0); };
	is(story([ op(begin => 1), $refused->(2.3) ]), '', 'a call that is refused since the lock is just being given back');
	is(story([ op(begin => 1), $refused->(2.6) ]), 'needless refusal 1', 'or has been for a while');
	is(story([ op(begin => 1), $refused->(2.6) ], $hit->('slow_sync', server => 1, ms => 300)), '', 'on a slow disk');
};

subtest 'a node that is forgotten' => sub {
	# 1 has a second node; 2 waits for its end until the test gives it up
	my $story = sub {
		my ($forgotten, @foreign) = @_;
		return story({ foreign => { map { $_ => 'kazoo' } @foreign } },
			[   op(begin => 1, lost => [ { czxid => 1.5, session => 's1', made => 0.97, gone => 60, how => 'delete', by => 's1', %$forgotten } ]),
				op(asked => 1.2, answered => 40, waits => 1, made => 1.21, gone => 40.1) ]);
	};
	is($story->({}, 1), '', 'of another client');
	is($story->({}), 'late release 1, no end 1', 'of ours');
	is($story->({}, 2), 'late release 1, no end 1', 'for which another client waits');
	is($story->({ gone => 30 }, 1), 'no end 1', 'but it was gone long before');
	is($story->({ czxid => 2.5, made => 1.3 }, 1), 'no end 1', 'or does not stand before the one that waits');
	is($story->({ czxid => 0.5, session => 's3', worker => 3, made => 0.5 }, 3), 'no end 1, turn 1', 'nor is it known to be forgotten');
};

subtest 'who has waited with another node before' => sub {
	my $waited = sub { op(begin => 12, asked => 1, made => 10, lost => [ { czxid => 1.5, session => 'before', made => 1.01, gone => 9 } ]) };
	is(story([ op(begin => 0.5, left => 8.9), $waited->() ]), '', 'and lost it when its turn came');
	is(story([ op(begin => 0.5), $waited->() ]), 'late grant 1', 'which had come long before');
	is(story([ op(begin => 12, asked => 1, made => 10) ]), 'late grant 1', 'but there must have been one');

	# in doubt, its session gives up its node, and queues again
	my $gave_up = sub { op(begin => 10, asked => 1, made => 9.5, lost => [ { czxid => 1.5, session => 's2', made => 1.01, gone => 9.4, how => 'delete', by => 's2', @_ } ]) };
	is(story([ op(begin => 0.5, left => 8.9), $gave_up->() ]), '', 'and gave it up');
	is(story([ op(begin => 0.5), $gave_up->() ]), 'late grant 1', 'long after its turn had come');
	is(story([ op(begin => 0.5, left => 3), op(begin => 9.7, asked => 1, made => 4, lost => [ { czxid => 1.5, session => 's2', made => 1.01, gone => 9.6, how => 'delete', by => 's2' } ]) ]),
		'late grant 1', 'or long before it was granted the lock with the new one');
};

subtest 'the last changes of a leader' => sub {
	my $zxid = 0;
	my $change = sub { my ($type, $session, $path, @more) = @_; return { type => $type, session => $session, path => $path, zxid => ++$zxid, time => $zxid, cxid => 1, data => '', @more } };
	my @made = map { $change->('create', $_, "/$_", ephemeral => 1) } qw(a b c);
	my @gone = ($change->('delete', 'a', '/a', doubtful => 1), $change->('close', 'b', undef, doubtful => 1), $change->('create', 'd', '/d', ephemeral => 1, doubtful => 1));
	my $nodes = sub { return join ' ', map { $_->{path} . (defined $_->{gone} ? " until $_->{gone}" : '') } Torture::TxnLog::nodes(Torture::TxnLog::settle(@_)) };
	is($nodes->({ '/c' => 1 }, @made, @gone), '/a until 4 /b until 5 /c', 'count, if what they deleted is gone');
	is($nodes->({ map { $_ => 1 } qw(/a /b /c) }, @made, @gone), '/a /b /c', 'but not if it is there');
};

subtest 'a standby' => sub {
	my $hit = sub { my ($begin, $end, $kind, %more) = @_; return { begin => $begin, end => $end, kind => $kind, cluster => 0, %more } };
	my $lost = sub { return op(begin => 1, row => 0, @_) };
	my @warned = (warning => $Torture::Random::WARNING);

	is(story([ $lost->() ], $hit->(3, 8, 'promote')), 'promise 1', 'a commit that the standby does not have when it is promoted');
	is(story([ $lost->(@warned) ], $hit->(3, 8, 'promote')), '', 'but did not wait for it');
	is(story([ $lost->(@warned) ]), 'promise 1', 'nor was it promoted');
	is(story([ $lost->(@warned) ], $hit->(3, 8, 'promote', cluster => 1)), 'promise 1', 'or in the other cluster');

	# the lock is lost in the meantime
	my @hangs = (commits => 2, left => 2, committed => 2.01, commit_answered => 6.5, end => 6.6, gone => 5, went => 'expiry');
	my @many = (limit => 1000);
	my @seq = (history => { seq => 1, read => 0, written => 1 });
	my $story = sub {
		my ($op, @faults) = @_;
		return story([ op(@many, weight => 1000, worker => 2, begin => 1, @hangs, @seq, %$op), op(@many, mode => 'shared', worker => 1, server => 1, asked => 1.5, begin => 5.1, looks => [ map { [ $_, 0 ] } 5.2, 5.5 ]) ], @faults);
	};
	my @silence = $hit->(2, 7, 'blackhole', server => 2);
	is($story->({ server => 2 }, @silence), 'stale read 1', 'a reader does not see what was committed');
	is($story->({ server => 2 }, @silence, $hit->(1.9, 6.5, 'sync_hang')), '', 'which waits for the standby');
	is($story->({ server => 2 }, @silence, $hit->(1.9, 6.5, 'sync_hang', cluster => 1)), 'stale read 1', 'of its own cluster');
	is($story->({ server => 2, went => 'delete' }, @silence, $hit->(1.9, 6.5, 'promote')), '', 'or while the roles change');
	is($story->({ server => 2, went => 'delete' }, $hit->(1.9, 6.5, 'promote')), 'stale read 1', 'but does not give the lock back before');
	is($story->({ gone => 6.55, went => 'close' }, $hit->(1.9, 6.5, 'sync_hang')), 'stale read 1, turn 1', 'and holds the lock until then');
};

subtest 'a commit in doubt' => sub {
	# the lock of worker 1 is in the other cluster
	my $story = sub {
		my ($kind, %writer) = @_;
		my @many = (limit => 1000);
		return story([
				op(@many, weight => 1000, worker => 1, begin => 1, phase => 'unknown', how => 'closed', history => { seq => 1, read => 0, written => 1 }, %writer),
				op(@many, mode => 'shared', worker => 3, asked => 1.5, begin => 2.2, looks => [ [ 2.3, 0 ] ]) ],
			{ begin => 1.9, end => 3, kind => $kind, cluster => 0 });
	};
	is($story->('promote'), '', 'is not seen while the server goes down');
	is($story->('pg_immediate'), '', 'or restarts');
	is($story->('timeouts'), 'stale read 1', 'but it must go down');
	is($story->('promote', phase => 'ok'), 'stale read 1', 'and there must be no answer');
	is($story->('promote', worker => 2), 'stale read 1', 'nor is the lock given back before by its own backend');
	is($story->('promote', left => 1.2, gone => 1.3, end => 1.4), 'stale read 1', 'nor is it long before');
};

subtest 'a pooler' => sub {
	my $causes = Torture::Causes->new(pooled => { 1 => 1 });
	$causes->fault(10, 1, 'begin', { kind => 'pooler_kill' });
	$causes->fault(11, 1, 'end', {});
	$causes->run_ended(100);
	my $explains = sub { my ($worker, $state, $at) = @_; return scalar(my @why = $causes->explain({ worker => $worker, state => $state }, $at, $at)); };
	is($explains->(1, '08P01', 11), 1, 'its end explains the error of a client');
	is($explains->(1, undef, 11), 1, 'and the loss of its lock');
	is($explains->(1, '42501', 11), 0, 'but not any error');
	is($explains->(1, '08P01', 20), 0, 'not for long');
	is($explains->(2, '08P01', 11), 0, 'and not that of somebody else');
};

subtest 'several at once' => sub {
	# who asks for several at once asks for the second when it has the first
	my @both = (group => 5, kind => 'several');
	is(story([ op(begin => 1, left => 6), op(object => 2, begin => 3, left => 5), op(begin => 6.1, asked => 2, @both), op(object => 2, begin => 6.1, asked => 2, made => 6.05, @both) ]),
		'', 'several at once');
	is(story([ op(begin => 1), op(object => 2, begin => 3, left => 5), op(begin => 9, asked => 1.5, @both), op(object => 2, begin => 9, asked => 1.5, made => 2.05, @both) ]),
		'late grant 1', 'which come late');
};

# Histories that a program has made: half of them are right, and each of the others has
# one violation.
subtest 'random histories' => sub {
	my $seed = $ENV{CHECKER_SEED} || 1 + int rand 1_000_000_000;
	my $histories = $ENV{CHECKER_HISTORIES} || 1_000;
	diag("seed $seed: repeat with CHECKER_SEED=$seed");
	my @plants = Torture::Random::plants();
	my (@wrong, %convicted, $losses);
	foreach my $n (0 .. $histories - 1)
	{
		my $plant = $n % 2 ? $plants[ ($n >> 1) % @plants ] : undef;
		my $checker = eval { Torture::Random::judge($seed + $n, $plant) };
		my @found = $checker ? $checker->violations : ();
		push @wrong, 'seed ' . ($seed + $n) . ": $@" if $@;
		if (!defined $plant)
		{
			push @wrong, 'seed ' . ($seed + $n) . " is right, but: $found[0][0], $found[0][1]" if @found;
			$losses //= join ' / ', $checker->losses if $checker && $checker->losses;
			next;
		}
		my ($kind) = $plant =~ /^([^:]+)/;
		if (grep { $_->[0] eq $kind } @found) { $convicted{$plant}++; }
		else { push @wrong, 'seed ' . ($seed + $n) . " has: $plant, but found is: " . join ', ', map { $_->[0] } @found; }
	}
	is(zk_few(@wrong), '', "$histories are judged right");
	is_deeply([ sort keys %convicted ], \@plants, 'each violation has been convicted by its name');
	like($losses, qr{^ZooKeeper lost what it had answered: [2-4] transactions seen \([02] of them in one log\), by holds of zklock [2-4], epoch 2, at 7\d\.\d+-\d+\.\d+ s / not judged, therefore: \d+ holds, [1-9] releases, [1-9] refusals$},
		'what ZooKeeper has lost is told');
};

subtest 'crashes' => sub {
	{
		package Server;
		sub name { return 'east' }
		sub logfile { return $_[0]->{file} }
	}
	my $crashes = sub {
		my $file = File::Temp->new;
		print $file "LOG:  ready\n", map { "$_\n" } @_;
		close $file;
		return scalar Torture->_crashes((bless { file => $file->filename }, 'Server'), { 17 => 1 });
	};
	my $died = 'LOG:  server process (PID %d) was terminated by signal %d';
	is($crashes->(), 0, 'none');
	is($crashes->(sprintf $died, 17, 9), 0, 'one that the nemesis killed');
	is($crashes->(sprintf $died, 18, 9), 1, 'one that it did not');
	is($crashes->(sprintf $died, 17, 11), 1, 'or that died of something else');
	is($crashes->('LOG:  issuing SIGKILL to recalcitrant children', sprintf $died, 18, 9), 0,
		'the postmaster kills who does not stop');
	is($crashes->('PANIC:  x', 'TRAP: y'), 2, 'PANIC, and an assertion');
};

# Where our reader of ZooKeeper's log and ZooKeeper's own differ
sub differences
{
	my ($dir) = @_;
	my (@ours, @theirs);
	foreach my $file (glob "$dir/data/version-2/log.*")
	{
		my @toolkit = (
			'java', '-Xmx64m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-XX:-UsePerfData', '-Dorg.slf4j.simpleLogger.defaultLogLevel=error',
			'-cp', $ZooKeeper::CLASSPATH, 'org.apache.zookeeper.server.persistence.TxnLogToolkit', '-d', $file);
		open my $theirs, '-|', @toolkit or die "java: $!";
		while (<$theirs>)
		{
			my ($session, $cxid, $zxid, $what) = /session (0x\w+) cxid 0x(\w+) zxid 0x(\w+) (\w+)/ or next;
			my ($path) = /(?:create\w*|delete\w*|setData) '?(\/[^,\s]+)/;
			{ no warnings 'portable'; push @theirs, join ' ', hex $zxid, $session, $path // ''; }
		}
		close $theirs;
		my %seen;
		push @ours, map { join ' ', @$_{qw(zxid session)}, $_->{multi} ? '' : $_->{path} // '' }
		  grep { !$seen{ $_->{zxid} }++ } @{ Torture::TxnLog::read_file($file) };
	}
	return 'nothing was read' unless @ours;
	return map { my ($o, $t) = ($ours[$_] // 'none', $theirs[$_] // 'none'); $o eq $t ? () : "$o, but: $t" } 0 .. (@ours > @theirs ? $#ours : $#theirs);
}

# Neither guard nor fence: who slept through its lock overwrites what the next
# one did.
subtest 'without guard and fence' => sub {
	my $run = Torture->new(
		seconds => 20, faults => 'backend_stop', moment => 'critical', pause => [ 0.3, 0.8 ],
		kinds => 'exclusive', contents => ['counter'], objects => 4, guard => 'off', fence => 0);
	diag("seed $run->{seed}");
	$run->execute;
	my %found;
	$found{ $_->[0] }++ for $run->violations;
	diag($run->figures);
	cmp_ok($found{'lost update'} // 0, '>', 0, 'updates are lost, and that is found');
	cmp_ok($found{'token order'} // 0, '>', 0, 'older tokens overwrite newer ones');
	cmp_ok($found{overlap} // 0, '>', 0, 'work of two at the same time was committed');
	my $judged = $run->{checker}{ledger}->judged;
	cmp_ok($judged->{lost} // 0, '>', 0, 'and ZooKeeper has written that locks were lost');
	cmp_ok($judged->{holds} // 0, '>=', 0.9 * $run->{checker}->holds, 'and who held them');
	is(zk_few(differences($run->{ensemble}->node(1)->dir)), '', "its log was read as ZooKeeper's own program reads it");
	is($found{$_}, undef, "nothing else: $_") for 'two holders', 'turn', 'no node', 'loss', 'hand', 'promise', 'leak', 'crash', 'no end', 'late grant', 'late release', 'error', 'refusal';
};

done_testing();
