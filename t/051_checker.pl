# The checker of the torture test can fail: it finds each violation in a log
# that contains it, none in a log without, be it written by hand or by a program;
# and those that a stopped holder causes when there is neither guard nor fence.
#
# CHECKER_SEED, CHECKER_HISTORIES: instead of a random seed, and 1,500

use strict;
use warnings;
use File::Temp;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Test::More;

use Torture;
use Torture::Random;
use Zklock;

# Three holds each, one after another, of object 1, which is a counter; of
# object 2, a set; of object 3, a register.  Changes to that:
#   history => sub { my ($row) = @_ }      false: drop this row
#   object => sub { my ($object) = @_ }
#   event => sub { my ($columns) = @_ }    the same
#   more => [ [ columns ], ... ]
my %KIND = (1 => 'counter', 2 => 'set', 3 => 'register');

sub violations
{
	my (%change) = @_;
	my $checker = Torture::Checker->new(session_timeout => 2, tick => 0.5, homes => { 1 => 0, 2 => 0, 3 => 1 });
	my (@events, @history, @objects);
	foreach my $object (sort keys %KIND)
	{
		foreach my $n (1 .. 3)
		{
			my $op = 1_000_000 * $n + $object;
			my $t = 10 * $object + $n;
			my $token = 100 * $object + $n;
			my @c = ($n, $op);
			my $call = sub {
				my ($from, $to, $call, %more) = @_;
				push @events, [ $t + $from, @c, $call, 'invoked', $object, {%more} ], [ $t + $to, @c, $call, 'ok', $object, {%more} ];
			};
			$call->(0, 0.1, 'lock', timeout => 5000);
			push @events, [ $t + 0.1, @c, 'hold', 'begin', $object, { asked => $t } ],
			  [ $t + 0.11, @c, 'hold', 'token', $object, { token => $token } ];
			$call->(0.2, 0.3, 'write');
			$call->(0.5, 0.6, 'commit');
			push @events, [ $t + 0.6, @c, 'hold', 'end', $object, { how => 'commit', left => $t + 0.5 } ];
			push @history,
			  {
				op => $op, object => $object, worker => $n, hold => $op, token => $token, cluster => 0,
				granted => $t + 0.15, committed => $t + 0.55, seq => $n,
				$object == 3 ? (written => $op) : (read => $n - 1, written => $n)
			  };
		}
		push @objects,
		  {
			id => $object, kind => $KIND{$object}, seq => 3,
			value => $object == 1 ? 3 : $object == 2 ? 0 : 3_000_003,
			members => $object == 2 ? [ 1_000_002, 2_000_002, 3_000_002 ] : []
		  };
	}
	push @events, @{ $change{more} // [] };
	$change{$_} //= sub { 1 } for qw(event history object);
	$checker->event(@$_) for sort { $a->[0] <=> $b->[0] } grep { $change{event}->($_) } @events;
	$checker->history($_) for grep { $change{history}->($_) } @history;
	foreach my $object (@objects) { $change{object}->($object); $checker->object($object); }
	$checker->finish;
	return $checker->violations;
}

sub kinds { my %kinds = map { $_->[0] => 1 } violations(@_); return join ', ', sort keys %kinds; }

# change the row of one op; by default the second of object 1
sub row
{
	my ($change, $op) = @_;
	$op //= 2_000_001;
	return history => sub { my ($row) = @_; return $row->{op} != $op || do { $change->($row); 1 }; };
}

sub event
{
	my ($call, $phase, $change, $op) = @_;
	$op //= 2_000_001;
	return event => sub {
		my ($e) = @_;
		return 1 if $e->[2] != $op || $e->[3] ne $call || $e->[4] ne $phase;
		return $change->($e);
	};
}

sub object { my ($id, %value) = @_; return object => sub { %{ $_[0] } = (%{ $_[0] }, %value) if $_[0]{id} == $id; }; }

sub fault
{
	my ($from, $to, $kind, %more) = @_;
	return map { [ $_->[0], 'nemesis', 1, 'fault', $_->[1], 0, { kind => $kind, %more } ] } [ $from, 'begin' ], [ $to, 'end' ];
}

is(kinds(), '', 'nothing');

subtest 'what is in the tables' => sub {
	is(kinds(row(sub { $_[0]{read} = 0; $_[0]{written} = 1 })), 'lost update', 'two read the same');
	is(kinds(object(1, value => 2)), 'final value', 'a counter that is not what the last one wrote');
	is(kinds(object(3, value => 2_000_003)), 'final value', 'a register');
	is(kinds(object(2, members => [ 1_000_002, 3_000_002 ])), 'lost element', 'an element that is gone');
	is(kinds(object(2, members => [ 1_000_002, 2_000_002, 3_000_002, 4 ])), 'lost element', 'one that nobody committed');
	is(kinds(object(2, members => [ 1_000_002, 2_000_002, 2_000_002, 3_000_002 ])), 'lost element', 'one twice');
	is(kinds(row(sub { $_[0]{token} = 101 })), 'token order', 'a token as that before');
	is(kinds(row(sub { $_[0]{token} = 99 }, 2_000_003)), 'token order', 'an older one');
	is(kinds(row(sub { $_[0]{hold} = 1_000_001 })), 'token order', 'two tokens in one hold');
	is(kinds(row(sub { @{ $_[0] }{qw(hold token)} = (1_000_001, 101) })), '', 'but the same one twice is right');
	is(kinds(row(sub { $_[0]{token} = undef })), 'no token', 'none');
	is(kinds(row(sub { $_[0]{seq} = 4 }, 3_000_003)), 'sequence', 'a write that is missing');
	is(kinds(object(3, seq => 4)), 'sequence', 'or that left no trace');
};

subtest 'work at the same time' => sub {
	is(kinds(row(sub { $_[0]{granted} = 11.4 })), 'overlap', 'begun before the other one had committed');
	is(kinds(row(sub { @{ $_[0] }{qw(granted cluster)} = (11.4, 1) })), 'overlap', 'in the other cluster');
	is(kinds(row(sub { @{ $_[0] }{qw(granted cluster seq read written)} = (11.4, 1) }),
			object(1, seq => 2, value => 3)), 'lost update, overlap, sequence', 'without a write');
	is(kinds(row(sub { $_[0]{committed} = 13.5 })), 'overlap', 'ended after the next one had begun');
	is(kinds(event('hold', 'token', sub { $_[0][6]{token} = 101; 1 })), 'same token', 'two holds with one token');
};

subtest 'what was promised' => sub {
	is(kinds(history => sub { $_[0]{op} != 3_000_001 }, object(1, seq => 2, value => 2)), 'promise', 'told: committed, and it is not');
	is(kinds(event('commit', 'ok', sub { $_[0][4] = 'failed'; 1 })), 'promise', 'told: not committed, and it is');
	is(kinds(event('commit', 'ok', sub { $_[0][4] = 'unknown'; 1 })), '', 'told: unknown, and it is');
	is(kinds(
			event('commit', 'ok', sub { $_[0][4] = 'unknown'; 1 }, 3_000_001),
			history => sub { $_[0]{op} != 3_000_001 },
			object(1, seq => 2, value => 2)), '', 'or is not');
	is(kinds(event('write', 'ok', sub { 0 })), 'no end', 'a call that nothing came of');
	is(kinds(event => sub { my ($e) = @_; $e->[2] != 2_000_001 || $e->[3] ne 'commit' }), 'promise', 'committed without asking');
};

subtest 'in time' => sub {
	# the third hold of object 3 comes at 33.1
	my @late = (event => sub {
		my ($e) = @_;
		$e->[0] += 5 if $e->[2] == 3_000_003 && !($e->[3] eq 'lock' && $e->[4] eq 'invoked');
		1;
	});
	my @later = row(sub { $_[0]{$_} += 5 for qw(granted committed) }, 3_000_003);
	is(kinds(@late, @later), 'late grant', 'a lock that is free');
	is(kinds(@late, @later, more => [ fault(33.2, 37, 'cut') ]), '', 'a fault explains it');
	is(kinds(@late, @later, more => [ fault(34, 37, 'outage', since => 33.2) ]), '', 'or an ensemble that was seen not to serve');
	is(kinds(@late, @later, more => [ fault(34, 34, 'standstill', since => 33.2) ]), '', 'or a machine that was seen to stand still');
	is(kinds(@late, @later, more => [ fault(20, 25, 'cut') ]), 'late grant', 'not one that was over');
	is(kinds(@late, @later, more => [ fault(33.2, 37, 'backend_stop', worker => 3) ]), '', 'or that it was stopped itself');
	is(kinds(@late, @later, more => [ fault(33.2, 37, 'backend_stop', worker => 1) ]), 'late grant', 'but not that somebody else was');
	is(kinds(@late, @later, more => [ fault(33.2, 37, 'pg_immediate', cluster => 1) ]), '', 'a restart of its own cluster');
	is(kinds(@late, @later, more => [ fault(33.2, 37, 'pg_immediate', cluster => 0) ]), 'late grant', 'not of the other one');
	my @stuck = (event => sub {
		my ($e) = @_;
		$e->[6]{timeout} = 1000 if $e->[3] eq 'lock';
		$e->[0] += 5 if $e->[2] == 3_000_003 && $e->[4] ne 'invoked';
		$e->[0] = 38.1 if $e->[2] == 3_000_003 && $e->[4] eq 'begin';
		1;
	});
	like(kinds(@stuck, @later), qr/late answer/, 'a call after its timeout');
};

subtest 'in order' => sub {
	# the second of object 1 asks before the first
	my $early = sub { my ($e) = @_; $e->[6]{asked} = 9.8; 1 };
	is(kinds(event('hold', 'begin', $early)), 'order', 'who asked first was second');
	is(kinds(event('hold', 'begin', $early), more => [ fault(10.5, 10.6, 'drop', server => 1) ]), '', 'which a fault explains');
	my @swapped = (event => sub {
		my ($e) = @_;
		$e->[6]{token} = { 1_000_001 => 102, 2_000_001 => 101 }->{ $e->[2] } // $e->[6]{token} if $e->[4] eq 'token';
		1;
	});
	is(kinds(@swapped), 'order', 'nor did it stand first in the queue');
};

subtest 'errors' => sub {
	my @error = event('lock', 'ok', sub { $_[0][4] = 'failed'; $_[0][6] = { state => $_[1] // '58030', message => 'x' }; 1 });
	is(kinds(@error), 'error', 'no fault');
	is(kinds(@error, more => [ fault(11, 12, 'drop', server => 1) ]), '', 'a fault');
	is(kinds(@error, more => [ fault(5, 6, 'drop', server => 1) ]), 'error', 'one that was over for long');
	my $told = sub { $_[0][4] = 'failed'; $_[0][6] = { state => '58030', message => 'x' }; 1 };
	is(kinds(event => sub { my ($e) = @_; $e->[6]{timeout} &&= 90; $e->[2] != 2_000_001 || $e->[3] ne 'lock' || $e->[4] ne 'ok' || $told->($e) }),
		'', 'none, but ZooKeeper had only 90 ms to answer');
	my @closed = event('write', 'ok', sub { $_[0][4] = 'failed'; $_[0][6] = { closed => 1, cluster => 1 }; 1 });
	my @restart = fault(5, 6, 'pg_immediate', cluster => 1);
	is(kinds(@closed, more => [@restart]), 'error', 'a connection that breaks long after a restart');
	is(kinds(@closed, more => [ @restart, map { [ 4, 2, 2_000_000, 'begin', $_, 0, { cluster => 1 } ] } 'invoked', 'ok' ]), '',
		'or was last used before it');
	my @crash = fault(5, 6, 'backend_kill', cluster => 1);
	my @back = map { [ $_->[0], 2, 2_000_009, 'connect', $_->[1], 0, { cluster => 1, $_->[1] eq 'ok' ? (pid => 77) : () } ] } [ 7, 'invoked' ], [ 10.5, 'ok' ];
	is(kinds(@closed, more => [@crash]), 'error', 'a connection that breaks long after a crash');
	is(kinds(@closed, more => [ @crash, @back ]), '', 'or soon after the cluster was back');
	my @internal = event('lock', 'ok', sub { $_[0][4] = 'failed'; $_[0][6] = { state => 'XX000', message => 'x' }; 1 });
	is(kinds(@internal, more => [ fault(11, 12, 'drop', server => 1) ]), 'error', 'one that no fault explains');
};

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

subtest 'readers, writers, places' => sub {
	my @many = (limit => 1000);
	my $reader = sub { return op(@many, mode => 'shared', @_) };
	my $writer = sub { return op(@many, weight => 1000, @_) };
	my $place = sub { return op(limit => 2, mode => 'semaphore', @_) };

	is(story([ $reader->(begin => 1), $reader->(begin => 1.5), $writer->(asked => 1.1, begin => 2.6) ]), '', 'two readers, and then a writer');
	is(story([ $reader->(begin => 1, left => 2.5), $writer->(asked => 1.1, begin => 2.6), $reader->(asked => 1.2, begin => 1.3) ]),
		'order 1, turn 1', 'a reader that does not wait for a writer who waits');
	is(story([ $reader->(begin => 1), $writer->(begin => 1.5) ]), 'turn 1, two holders 1', 'a writer beside a reader');
	is(story([ $writer->(begin => 1), $reader->(begin => 1.5) ]), 'turn 1, two holders 1', 'a reader beside a writer');
	is(story([ $writer->(begin => 1), $reader->(asked => 1.5, begin => 6), $writer->(asked => 1.6, begin => 7.2) ]), 'late grant 1', 'a reader that comes late');
	is(story([ $reader->(begin => 1), $reader->(asked => 1.5, begin => 6) ]), 'late grant 1', 'though nobody was in its way');

	is(story([ $place->(begin => 1), $place->(begin => 1.2), $place->(asked => 1.3, begin => 2.05) ]), '', 'two places, and one who waits');
	is(story([ map { $place->(begin => 1 + 0.1 * $_) } 0 .. 2 ]), 'turn 1, two holders 1', 'three have two places');
	is(story([ $place->(begin => 1, left => 9), $place->(begin => 1.2), $place->(asked => 1.3, begin => 6) ]), 'late grant 1', 'a place that was free for long');
	is(story([ $place->(begin => 1, left => 9), $place->(begin => 1.2), $place->(asked => 1.3, begin => 6), $place->(asked => 1.4, begin => 2.5) ]),
		'late grant 1, turn 1', 'and which another takes, who comes later');

	my $becomes = sub {
		my ($one, %two) = @_;
		my $op = ++$last_op;
		return ($one, { %$one, op => $op, from => $one->{op}, begin => $one->{left}, asked => $one->{asked}, left => $one->{gone} - 0.1, end => $one->{gone} + 0.1,
				committed => $one->{gone} - 0.05, mode => 'shared', weight => 1, node => 0, %two });
	};
	my @down = (commits => 1.8, committed => 1.9, commit_answered => 1.95, left => 2, end => 2.1, shared => 2.05);
	is(story([ $becomes->($writer->(begin => 1, @down, gone => 3)), $reader->(asked => 1.5, begin => 2.1), $writer->(asked => 1.6, begin => 3.2) ]),
		'', 'a writer becomes a reader');
	is(story([ $becomes->($writer->(begin => 1, @down, gone => 3)), $reader->(asked => 1.5, begin => 2.01) ]), 'turn 1', 'the next reader enters before');
	is(story([ $becomes->($writer->(begin => 1, @down, gone => 3)), $writer->(asked => 1.5, begin => 2.2) ]), 'turn 1, two holders 1', 'a writer enters');
	is(story([ $becomes->($writer->(begin => 1, @down, gone => 9, shared => undef)), $reader->(asked => 1.5, begin => 9.1) ]),
		'late release 1', 'but nobody hears of it');

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
	my $histories = $ENV{CHECKER_HISTORIES} || 1_500;
	diag("seed $seed: repeat with CHECKER_SEED=$seed");
	my @plants = Torture::Random::plants();
	my (@wrong, %convicted);
	foreach my $n (0 .. $histories - 1)
	{
		my $plant = $n % 2 ? $plants[ ($n >> 1) % @plants ] : undef;
		my @found = eval { Torture::Random::judge($seed + $n, $plant)->violations };
		push @wrong, 'seed ' . ($seed + $n) . ": $@" if $@;
		if (!defined $plant)
		{
			push @wrong, 'seed ' . ($seed + $n) . " is right, but: $found[0][0], $found[0][1]" if @found;
			next;
		}
		my ($kind) = $plant =~ /^([^:]+)/;
		if (grep { $_->[0] eq $kind } @found) { $convicted{$plant}++; }
		else { push @wrong, 'seed ' . ($seed + $n) . " has: $plant, but found is: " . join ', ', map { $_->[0] } @found; }
	}
	is(zk_few(@wrong), '', "$histories are judged right");
	is_deeply([ sort keys %convicted ], \@plants, 'each violation has been convicted by its name');
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
		seconds => 30, faults => 'backend_stop', moment => 'critical', pause => [ 0.3, 0.8 ],
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
