# The checker of the torture test can fail: it finds each violation in a story that
# contains it, and nothing in one without; what an earlier one let pass; and what a stopped
# holder causes when there is neither guard nor fence.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Test::More;

use Torture;

# An exclusive lock.  An operation is granted at "begin" and gives back a second later,
# and all goes well, unless it says something else.  Its worker has its number; those with an
# even one are at home in the cluster 0, and their server is the first, unless they say
# which.
my ($last_op, %convicted) = (0);

sub op
{
	my (%op) = @_;
	my $n = ++$last_op;
	%op = (how => 'commit', phase => 'ok', op => $n, worker => $n, object => 1, token => $n, session => "s$n", node => 1, went => 'delete', %op);
	return \%op unless defined $op{begin};
	%op = (asked => $op{begin} - 0.05, left => $op{begin} + 1, %op);
	return { made => $op{asked} + 0.01, committed => $op{left} + 0.01, gone => $op{left} + 0.02, end => $op{left} + 0.03, %op };
}

sub reader { return op(mode => 'shared', limit => 1000, @_); }
sub writer { return op(weight => 1000, limit => 1000, @_); }
sub place { return op(mode => 'semaphore', limit => 2, @_); }

# The same writer as a reader, under the same node, which is gone with that one
sub downgraded
{
	my ($writer, %op) = @_;
	return op(%$writer, mode => 'shared', weight => 1, from => $writer->{op}, op => $writer->{op} + 100, node => 0, asked => $writer->{asked}, begin => $writer->{left},
		left => $writer->{gone} - 0.02, committed => $writer->{gone} - 0.01, end => $writer->{gone} + 0.01, history => undef, %op);
}

# What did not commit, with this SQLSTATE
sub failed { my ($state, @op) = @_; return (phase => 'failed', state => $state, how => 'failed', row => 0, @op); }

sub fault { my ($begin, $end, $kind, %more) = @_; return { begin => $begin, end => $end, kind => $kind, %more }; }

# The checker after it has judged a history { ops, faults, final, end, at_standby, pooled, foreign, logged }
sub judged
{
	my ($h) = @_;
	my $end = $h->{end} // 310;
	my $checker = Torture::Checker->new(session_timeout => 2, tick => 0.5, homes => { map { $_ => $_ % 2 } 1 .. $last_op }, map { $_ => $h->{$_} // {} } qw(at_standby pooled foreign));
	my @events = ([ $end, 'torture', 0, 'clock', 'last', 0, { epoch => $end } ], [ $end - 5, 'listener0', 0, 'listen', 'end', 0, { cluster => 0, since => 0, until => $end - 5 } ]);
	my $number = 0;
	foreach my $fault (@{ $h->{faults} })
	{
		$number++;
		push @events, map { [ $fault->{$_}, 'nemesis', $number, 'fault', $_, 0, $fault ] } qw(begin end);
	}
	foreach my $op (@{ $h->{ops} })
	{
		my ($object, $begin, $left) = @$op{qw(object begin left)};
		my %row = map { $_ => $op->{$_} } qw(op object worker);
		my $tell = sub { my ($time, @event) = @_; push @events, [ $time, $op->{worker}, $op->{op}, @event[ 0, 1 ], $object, $event[2] // {} ]; };
		if (!defined $op->{from})
		{
			$tell->($op->{asked}, 'lock', 'invoked', { timeout => $op->{timeout}, function => $op->{function} // 'zk_lock' });
			$tell->($op->{answered} // $begin, 'lock', $op->{waits} ? 'hangs' : 'ok', { got => $op->{got} });
		}
		if ($op->{refused})
		{
			$tell->($op->{refused}, 'lock', 'invoked');
			$tell->($op->{refused} + 0.01, 'lock', 'failed', { state => '40P01', message => '' });
		}
		foreach my $look (@{ $op->{looks} // [] })
		{
			my ($at, $seq) = @$look;
			$tell->($at, 'look', 'invoked');
			$tell->($at + 0.0001, 'look', 'ok', { hold => $op->{op}, got => $seq });
		}
		if (defined $begin)
		{
			$tell->($begin, 'hold', 'begin', { map { $_ => $op->{$_} } qw(asked weight limit mode from group kind) });
			$tell->($begin + 0.0001, 'hold', 'token', { token => $op->{token_told} // $op->{token} });
			if (!$op->{never_commits})
			{
				$tell->($op->{commits} // $left, 'commit', 'invoked');
				$tell->($op->{commit_answered} // $op->{end} - 0.0001, 'commit', $op->{hangs} ? 'hangs' : $op->{phase},
					{ state => $op->{state}, message => '', cluster => $op->{cluster} // 0, map({ $_ => $op->{$_} } qw(notifies warning)), defined $op->{abroad} ? (abroad => 0) : () });
			}
			$tell->($op->{end} - 0.00005, 'heard', 'ok') for 1 .. $op->{heard} // 0;
			$tell->($op->{end}, 'hold', 'end', { how => $op->{how}, left => $left });
		}
		if ($op->{row} // defined $begin)
		{
			my $token = $op->{row_token} // $op->{token};
			$checker->history({
				%row, hold => $op->{op}, cluster => $op->{worker} % 2, token => $token eq 'none' ? undef : $token, committed => $op->{committed},
				granted => $op->{granted} // ($object == 1 ? $op->{committed} - 0.005 : $begin + 0.001), %{ $op->{history} // {} } });
		}
		$checker->abroad({ %row, hold => $op->{op}, committed => $_, cluster => 0 }) for grep { $_ } @$op{qw(abroad stray)};
		$checker->{ledger}->logged($op->{token}, $op->{made}, $op->{alone}) if $op->{node} || $op->{alone};
		$checker->{ledger}->node({
			object => $object, czxid => $op->{token}, session => $op->{session}, mode => $op->{mode}, path => $op->{path}, made => $op->{made}, shared => $op->{shared}, gone => $op->{gone},
			how => $op->{went}, by => $op->{by} // $op->{session}, $op->{waits} ? (worker => $op->{worker}) : () }) if $op->{node};
		$checker->{ledger}->node({ object => $object, mode => $op->{mode}, worker => $op->{worker}, by => '', how => 'expiry', %$_ }) for @{ $op->{lost} // [] };
		$checker->connection($op->{session}, $op->{server} // 1 + $op->{worker} % 2, 0, $end);
	}
	$checker->{ledger}->logged(@$_) for @{ $h->{logged} // [] };
	$checker->event(@$_) for sort { $a->[0] <=> $b->[0] } @events;
	$checker->{causes}->restarted(@$_) for @{ $h->{restarts} // [] };
	$checker->object($_) for @{ $h->{final} // [] };
	$checker->finish;
	$last_op = 0;
	return $checker;
}

# What is found in a history of these operations and faults: "kind times, ..."
sub story
{
	my %more = ref $_[0] eq 'HASH' ? %{ +shift } : ();
	my ($ops, @faults) = @_;
	my %found;
	$found{ $_->[0] }++ for judged({ %more, ops => $ops, faults => \@faults, end => 1100 })->violations;
	$convicted{$_} = 1 for keys %found;
	return join ', ', map { "$_ $found{$_}" } sort keys %found;
}

subtest 'who holds at the same time' => sub {
	my $becomes = sub { my $w = writer(begin => 1, shared => 2.01, gone => 3, @_); return ($w, downgraded($w)); };
	is(story([ map { place(begin => $_) } 1, 1.1, 2.03 ]), '', 'a place that is free again');
	is(story([ map { place(begin => $_) } 1, 1.1, 1.2 ]), 'turn 1, two holders 1', 'a place too many');
	is(story([ map { reader(begin => $_) } 1, 1.1, 1.2 ]), '', 'readers');
	is(story([ reader(begin => 1), writer(begin => 1.5) ]), 'turn 1, two holders 1', 'a writer beside a reader');
	is(story([ writer(begin => 1), reader(begin => 1.5) ]), 'turn 1, two holders 1', 'a reader beside a writer');
	is(story([ $becomes->(), reader(begin => 2.05), writer(begin => 3.05) ]), '', 'a writer that becomes a reader');
	is(story([ $becomes->(), writer(begin => 2.5) ]), 'turn 1, two holders 1', 'and a writer meanwhile');

	# the lock is not certain any longer
	my @early = (left => 1.001, gone => 2.02, end => 2.03);
	is(story([ $becomes->(left => 1.5, shared => 1.99), reader(begin => 1.9) ]), 'turn 1', 'a reader, before the writer has become one');
	is(story([ op(begin => 2.1, asked => 1), op(begin => 1.05, asked => 1.02) ]), 'order 1, turn 1', 'two that have changed places');
	is(story([ op(begin => 2, asked => 1.9), op(begin => 3.1, asked => 0.5, made => 1.95) ]), 'order 1', 'who asked long before comes later');
	is(story([ reader(begin => 2, asked => 1.9), reader(begin => 3.1, asked => 0.5, made => 1.95) ]), '', 'but readers may');
	is(story([ map { op(@$_, worker => 1) } [ begin => 2, asked => 1.9 ], [ begin => 3.1, asked => 0.5, made => 1.95 ] ]), '', 'and who comes again');
	is(story([ op(begin => 1, token_told => 2), op(begin => 2.1, token_told => 1) ]), 'late commit 1, loss 1, no node 1, order 1, stale grant 1', 'their tokens say the contrary');
	is(story([ op(begin => 1), op(begin => 2.1, token_told => 1) ]), 'late commit 1, loss 1, no node 1, same token 1, stale grant 1', 'two with one token');
};

subtest 'nodes' => sub {
	my @gone = (gone => 1.9, went => 'expiry');
	is(story([ op(begin => 1, node => 0) ]), 'no node 1', 'none');
	is(story([ op(begin => 1, made => 1.01) ]), '', 'one that is made as it is granted');
	is(story([ op(begin => 1, @gone) ]), 'loss 1', 'it is lost');
	is(story([ op(begin => 1, gone => 1.97, by => '0xabc', path => '/a') ], fault(1.96, 1.97, 'lock_break', worker => 1, node => '/b')), 'hand 1', 'somebody deletes it who was to delete another one');
	is(story([ op(begin => 1, gone => 1.97, by => '0xabc', path => '/a') ], fault(1.96, 1.97, 'lock_break', worker => 1, node => '/a')), '', 'or this one');
	is(story([ op(begin => 1, gone => undef) ]), 'leak 1', 'it is left');
	my $writer = sub { writer(begin => 1, shared => $_[0], gone => 9) };
	is(story([ map { ($_, downgraded($_)) } $writer->(4.9) ]), '', 'it is that of a reader in time');
	is(story([ map { ($_, downgraded($_)) } $writer->(6) ]), 'late release 1', 'or too late');
	is(story([ op(begin => 3, asked => 1, gone => 2, went => 'expiry', failed('40001')) ]), 'loss 1, stale grant 1', 'the lock is granted when it has gone');
	my @asleep = (op(begin => 1), op(begin => 5.3, asked => 1, gone => 4.3, went => 'expiry', failed('40001')));
	is(story([ map { {%$_} } @asleep ], fault(1.95, 5.2, 'backend_stop', worker => 2, cluster => 0)), 'stale grant 1', 'to who has slept since before it was free');
	$last_op = 2;
	is(story([ map { {%$_} } @asleep ], fault(2.2, 5.2, 'backend_stop', worker => 2, cluster => 0)), '', 'or fell asleep then');
	my $slow = sub { $last_op = 2; return story([ map { {%$_} } @asleep ], fault(0, 5, 'leader_kill'), @_); };
	is($slow->(), 'stale grant 1', 'or to who was lost for another reason');
	is($slow->(fault(2.2, 5.2, 'standstill')), '', 'while nothing moved');
	is($slow->(fault(2.1, 2.2, 'standstill')), 'stale grant 1', 'for long enough');
	is($slow->(fault(2.2, 5.2, 'backend_stop', worker => 1, cluster => 1)), 'stale grant 1', 'and not somebody else');
	my @hindered = map { fault(@$_, 'descriptors', worker => 2) } [ -20, -19 ], [ -10, -9 ], [ 2, 6 ], [ 4, 8 ];
	is(story([ op(begin => 1), op(begin => $_, asked => 1.2) ], @hindered), $_ < 14 ? '' : 'late grant 1', "hindered until 11, it came at $_") for 13.9, 14.1;
	is(story([ writer(begin => 1), reader(begin => 7, asked => 1.2) ]), 'late grant 1', 'a reader that is late');
	is(story([ place(begin => 1), place(begin => 1.1), place(begin => 7, asked => 1.2) ]), 'late grant 1', 'for a place');
	my $refused = sub { return op(asked => 15, answered => 15.01, got => 'f', function => $_[0], node => 0); };
	is(story([ reader(begin => 1, left => 30), $refused->('zk_try_lock') ]), '', 'a reader has it, and a writer is refused');
	is(story([ reader(begin => 1, left => 30), $refused->('zk_try_lock_shared') ]), 'needless refusal 1', 'or another reader');
};

subtest 'causes' => sub {
	my @lost = (gone => 1.97, went => 'expiry');
	foreach my $fault (
		fault(0.9, 1.2, 'backend_stop', worker => 1), fault(0.9, 1.2, 'backend_pause', worker => 1), fault(0.9, 1.2, 'keeper_stop', worker => 1), fault(0, 200, 'delay', server => 2, ms => 160),
		fault(0, 200, 'slow_sync', server => 2, ms => 160), map { fault(0.9, 1.2, $_, server => 2) } qw(follower_stop leader_stop cut link_one_way blackhole one_way))
	{
		is(story([ op(begin => 1, @lost) ], $fault), 'loss 1', "a moment explains no loss: $fault->{kind}");
		is(story([ op(begin => 1, failed('58030')) ], $fault), 'error 1', 'no error');
		my $longer = { %$fault, end => $fault->{end} + 0.1, ms => 200 };
		is(story([ op(begin => 1, @lost) ], $longer), '', 'but more than that does');
		is(story([ op(begin => 1, failed('XX000')) ], $longer), 'error 1', 'but not any');
		is(story([ op(begin => 1, @lost) ], { %$longer, $fault->{worker} ? (worker => 2) : (server => 3) }), $fault->{kind} eq 'leader_stop' ? '' : 'loss 1', 'nor elsewhere');
	}

	# what explains certain errors only
	my %explains = (cancel => ['57014'], timeouts => [ '55P03', '57014' ], acl => ['42501'], connection_cut => [], sync_hang => [], clock => []);
	foreach my $kind (sort keys %explains)
	{
		my %hit = (worker => 1, object => 1, cluster => 1);
		my $near = fault(1.9, 2, $kind, %hit);
		is(story([ op(begin => 1, @lost) ], $near), 'loss 1', "$kind explains no loss");
		is(story([ op(begin => 1, failed('40001')) ], $near), 'refusal 1', 'no refusal');
		is(story([ op(begin => 1), op(begin => 7, asked => 1.2) ], fault(0, 20, $kind, worker => 2, object => 2, cluster => 0)), 'late grant 1', 'nor that it is late');
		foreach my $state (@{ $explains{$kind} })
		{
			is(story([ op(begin => 1, failed($state)) ], $near), '', "but $state");
			is(story([ op(begin => 1, cluster => 1, failed($state)) ], fault(1.9, 2, $kind, worker => 2, object => 2, cluster => 0)), 'error 1', 'not of somebody else');
			is(story([ op(begin => 1, failed($state)) ], fault(0.7, 0.9, $kind, %hit)), 'error 1', 'not for long');
		}
	}
	foreach my $kind (qw(descriptors threads))
	{
		is(story([ op(begin => 1, failed('53000')) ], fault(1.9, 2, $kind, worker => 1)), '', "$kind explains that there are none");
		is(story([ op(begin => 1, failed('53000')) ], fault(1.9, 2, $kind, worker => 2)), 'error 1', 'for its own');
	}
	my @restart = fault(1.9, 2, 'pg_immediate', cluster => 1);
	is(story([ op(begin => 1, failed('57P01')) ], @restart), '', 'a restart explains that a connection breaks');
	is(story([ op(begin => 100, failed('57P01')) ], @restart), 'error 1', 'not long after');
	is(story([ op(begin => 1, failed('58030')) ], fault(1.9, 2, 'drop', server => 2)), '', 'what breaks connections explains errors');

	# through postgres_fdw
	is(story([ op(begin => 1, abroad => 0, failed('08006')) ]), 'error 1', 'a foreign server that nothing has hit');
	is(story([ op(begin => 1, abroad => 0, failed('08006')) ], fault(1.9, 2, 'pg_immediate', cluster => 0)), '', 'or that was restarted');
	my $killed = sub { return story({ restarts => [@_] }, [ op(begin => 9, left => 10, abroad => 0, failed('08001')) ], fault(1, 1.001, 'backend_kill', cluster => 0)); };
	is($killed->(), 'error 1', 'or in which a backend was killed long before');
	is($killed->([ 0, 1.1, 6.7 ]), '', 'though it may take its time to start again');
	is($killed->([ 1, 1.1, 6.7 ]), 'error 1', 'though not that of the other one');
	is($killed->([ 0, 0.5, 6.7 ]), 'error 1', 'nor for another reason');
};

subtest 'what is committed' => sub {
	is(story([ op(begin => 1, committed => 3, end => 3.01) ]), 'late commit 1', 'too late');
	is(story([ op(begin => 1, abroad => 3) ]), 'late commit 1', 'in the other cluster');
	is(story([ op(begin => 1, committed => 3, end => 3.01) ], fault(2.001, 3, 'backend_pause', worker => 1)), '', 'by who was stopped at COMMIT');
	is(story([ op(begin => 1, committed => 3, end => 3.01) ], fault(2.001, 3, 'backend_pause', worker => 2), fault(2.001, 3, 'cancel', worker => 1)), 'late commit 1', 'and nobody else');
	my $far = sub { return story([ op(begin => 1, abroad => 3, committed => 3, end => 3.01) ], fault(2.001, 3, 'backend_stop', worker => 2, cluster => $_[0])); };
	is($far->(0), '', 'but, in the other cluster, by who waited for somebody that was stopped there');
	is($far->(1), 'late commit 2', 'and not here');
	is(story([ op(begin => 1), op(begin => 2.1, granted => 2) ]), 'overlap 1', 'what overlaps');
	is(story([ writer(begin => 1), reader(begin => 2.1, granted => 2) ]), 'overlap 1', 'with a reader');
	is(story([ place(begin => 1), place(begin => 1), place(begin => 2.1, granted => 1.99) ]), 'overlap 1', 'with a place');

	is(story([ op(begin => 1, phase => 'failed') ]), 'promise 1', 'though it was told that it is not');
	is(story([ op(begin => 1, row => 0) ]), 'promise 1', 'not, though it was told that it is');
	is(story([ op(begin => 1, never_commits => 1) ]), 'promise 1', 'though nobody asked for it');
	is(story([ op(begin => 1, abroad => 0) ]), 'promise 1', 'not in the other cluster');
	is(story([ op(begin => 1, abroad => 2.005, failed('40001')) ]), 'promise 1, refusal 1', 'only there');
	is(story([ op(begin => 1, stray => 2.005) ]), 'promise 1', 'there, though nobody asked for it');
	is(story([ op(begin => 1, notifies => 1, heard => $_) ]), $_ == 1 ? '' : 'promise 1', "a notification that is heard $_ times") for 0 .. 2;
	is(story([ op(begin => 1, heard => 1) ]), 'promise 1', 'though it was none');
	is(story([ op(begin => 1, notifies => 1, heard => 1, failed('40001')) ]), 'promise 1, refusal 1', 'or of what is not committed');
	my $notifies = sub { return story([ op(begin => 1, notifies => 1, failed('40001')) ], fault(@_)); };
	is($notifies->(1.9, 2.5, 'sync_hang', cluster => 0), '', 'who notifies may have waited for one whose standby hangs');
	is($notifies->(1.9, 2.5, 'sync_hang', cluster => 1), 'refusal 1', 'in the same cluster');
	is($notifies->(@$_, 'sync_hang', cluster => 0), 'refusal 1', 'and then') for [ 0.5, 1.5 ], [ 3, 4 ];
	is(story([ op(begin => 1, hangs => 1, row => 0) ]), 'no end 1', 'no answer');
	is(story([ op(begin => 4.3, asked => 1, timeout => 1) ]), 'late answer 1, late grant 1', 'a late one');

	# each write has its number, and makes of the number before it the next one
	my $written = sub {
		my ($final, @ops) = @_;
		foreach my $n (1 .. @ops) { $ops[ $n - 1 ]{history} = { seq => $n, read => $n - 1, written => $n, %{ $ops[ $n - 1 ]{history} // {} } }; }
		return story({ final => [ { id => 1, kind => 'counter', seq => scalar @ops, value => scalar @ops, %$final } ] }, \@ops);
	};
	my $three = sub { my (%second) = @_; return (op(begin => 1), op(begin => 2.1, %second), op(begin => 3.2)); };
	is($written->({}, $three->(history => { read => 0 })), 'lost update 1', 'an update is lost');
	is($written->({ value => 2 }, $three->()), 'final value 1', 'the last one');
	is($written->({ seq => 4 }, $three->()), 'sequence 1', 'one that nobody made');
	is($written->({}, $three->(history => { seq => 2.5 })), 'sequence 2', 'a number is missing');
	my @first = (history => { seq => 1, read => 0, written => 1 });
	is(story({ final => [ { id => 1, kind => 'counter', seq => 1, value => 1 } ] }, [ op(begin => 1, @first), op(begin => 2.1), op(object => 2, begin => 1, @first) ]), '', 'those of one object');
	is($written->({}, $three->(row_token => 'none')), 'no token 1', 'no token');
	is($written->({}, $three->(row_token => 0)), 'token order 1', 'an older one');
	is($written->({}, $three->(row_token => 1)), 'token order 1', 'the one before again');
	is($written->({}, $three->(history => { hold => 1 })), 'late commit 1, token order 1', 'two in one hold');
};

subtest 'what is read' => sub {
	my @seq = (history => { seq => 1, read => 0, written => 1 });
	my $after = sub { my ($more, @seen) = @_; return story($more, [ writer(begin => 1, @seq), reader(begin => 2.05, looks => [ map { [ 2.2 + $_ / 5, $seen[$_] ] } 0 .. $#seen ]) ]); };
	my $before = sub { my ($more, @seen) = @_; return story($more, [ reader(begin => 1, looks => [ map { [ 1.2 + $_ / 5, $seen[$_] ] } 0 .. $#seen ]), writer(begin => 2.05, @seq) ]); };
	is($after->({}, 1, 1), '', 'what was written before');
	is($after->({}, 0, 0), 'stale read 1', 'what was written before is not seen');
	is($after->({ at_standby => { 2 => 1 } }, 0, 0), 'stale read 1', 'at a standby');
	is($before->({}, 0, 0), '', 'nothing that is written later');
	is($before->({}, 0, 1), 'changed under a reader 1', 'or that');
	is($before->({ at_standby => { 1 => 1 } }, 0, 1), 'changed under a reader 1', 'at a standby');
	is(story([ reader(begin => 1, refused => 1.5), writer(begin => 2.05) ]), 'error 1', 'a reader that cannot become a writer, though none waits');
	is(story([ reader(begin => 1, refused => 1.5), writer(begin => 2.05, asked => 1.505) ]), '', 'as one waits, as far as clocks can tell');
};

# All that a leader has answered whose epoch is 2: two holds, and the end of the one before
# them, whose node is there again.  Others wait meanwhile, or hold what they hold.
subtest 'what ZooKeeper itself has lost' => sub {
	my $ops = sub {
		my (%change) = @_;
		my $op = sub { my ($name, $epoch, $n, @op) = @_; return op(object => 4, token => ($epoch << 32) + $n, @op, %{ $change{$name} // {} }); };
		return (
			$op->(through => 1, 1, object => 6, begin => 69.5, left => 80, gone => 76, went => 'expiry', failed('40001')),
			$op->(back => 1, 2, begin => 70.05, made => 70, left => 70.25, gone => 100),
			$op->(first => 2, 10, begin => 70.5, left => 70.7, node => 0, refused => 70.52),
			$op->(second => 2, 20, begin => 71, left => 71.2, node => 0),
			$op->(third => 2, 25, begin => 71.5, left => 71.7, node => 0),
			$op->(refused => 2, 30, object => 5, asked => 76.5, answered => 76.51, got => 'f', node => 0),
			$op->(waited => 3, 1, begin => 76, asked => 71.5, made => 75),
			$op->(elsewhere => 3, 2, begin => 79, asked => 71.5, made => 75.1, object => 8),
			$op->(beside => 3, 3, begin => 85),
			$op->(beside_too => 3, 4, begin => 86.1),
			$op->(behind => 3, 5, begin => 100.05, asked => 87));
	};
	my $more = sub { return op(object => 7, token => (3 << 32) + 9, @_); };
	is(story([ $ops->() ]), '', 'is not judged');
	my @told = judged({ ops => [ $ops->(second => { alone => 1 }) ], end => 1100 })->losses;
	is(join(' / ', @told), 'ZooKeeper lost what it had answered: 3 transactions seen (1 of them in one log), by holds of zklock 3, epoch 2, at 70.000-75.000 s'
		  . ' / not judged, therefore: 10 holds, 2 releases, 2 refusals', 'but told');
	my $judged = 'error 1, late grant 1, late release 1, loss 1, needless refusal 1, no node 3, turn 3';
	is(story({ logged => [ [ (2 << 32) + 11, 70 ] ] }, [ $ops->() ]), $judged, 'not that of a leader who went on');
	is(story([ $ops->(map { $_ => { worker => 3 } } qw(second third)) ]), $judged, 'nor if one worker alone says so');
	is(story({ pooled => { map { $_ => 1 } 3 .. 5 } }, [ $ops->() ]), $judged, 'or some that share their sessions');
	is(story([ $ops->(), $more->(begin => 68, token => (2 << 32) + 99, node => 0) ]), $judged =~ s/node 3/node 4/r, 'or it was before');
	is(story([ $ops->(), $more->(begin => 77, token => (2 << 32) + 99, node => 0) ]), $judged =~ s/node 3/node 4/r, 'or after');
	is(story([ grep { $_->{token} >> 32 < 3 } $ops->() ]), 'error 1, late release 1, loss 1, needless refusal 1, no node 3', 'or there is no leader since');
	is(story([ $ops->(first => { token_told => '' }) ]), 'no node 1', 'or who has no token');
	is(story([ $ops->(), $more->(begin => 75.2, asked => 74.5, made => 75.1, gone => 75.9, went => 'expiry') ]), 'loss 1', 'soon afterwards: a loss');
	is(story([ $ops->(), $more->(begin => 79, asked => 75.1) ]), 'late grant 1', 'a grant');
	is(story([ $ops->(), $more->(begin => 75.2, asked => 74.5, made => 75.1, gone => 80) ]), 'late release 1', 'a release');
	is(story([ $ops->(), $more->(object => 5, asked => 78, answered => 78.01, got => 'f', node => 0) ]), 'needless refusal 1', 'a refusal');
	is(story([ $ops->(beside_too => { begin => 85.98 }, beside => { left => 85.5, gone => 86.02 }) ]), 'turn 1', 'beside what came back: a turn');
	is(story([ $ops->(beside => { asked => 83, gone => 84, went => 'expiry', failed('40001') }) ]), 'loss 1, stale grant 1', 'a stale grant, and a loss');
	is(story([ $ops->(beside => { gone => 85.9, by => '0xabc' }) ]), 'hand 1', 'by hand');
	is(story([ $ops->(beside_too => { gone => 95 }) ]), 'late release 1', 'a release');
	is(story([ $ops->(second => { begin => 70.6 }) ]), 'overlap 1, two holders 1', 'of what is lost: two holders');
};

# A node of a leader whose epoch is 1, with the number 7, which the next one gives again
subtest 'what ZooKeeper has forgotten' => sub {
	my $node = sub { return (path => "/torture/1/x-lock-000000000$_[0]", @_[ 1 .. $#_ ]) };
	my $ops = sub {
		my (%change) = @_;
		return (
			op(token => (1 << 32) + 5, begin => 8, left => 9, $node->(6)),
			op(token => (2 << 32) + 1, begin => 20, made => 19.5, left => 21, $node->(7), %{ $change{then} // {} },
				lost => [ { czxid => (1 << 32) + 9, session => 's1', made => 9.5, gone => 60, how => 'close', by => 's1', $node->(7), %{ $change{forgotten} // {} } } ]));
	};
	is(story([ $ops->() ]), '', 'nobody waits for it');
	my @told = judged({ ops => [ $ops->() ], end => 1100 })->losses;
	is($told[0], 'ZooKeeper lost what it had logged: 1 numbers were given once more after epoch 1, at 9.500-19.500 s', 'which is told');
	is(story([ $ops->(forgotten => { gone => undef }) ]), '', 'nor is it left, without an end in the log');
	is(story([ $ops->(forgotten => { gone => undef }, then => { $node->(8) }) ]), 'leak 1, turn 1', '- unlike others');
	is(story([ $ops->(then => { $node->(8) }) ]), 'turn 1', 'unless the next one has another number');
	is(story([ $ops->(forgotten => { czxid => (2 << 32) + 0 }) ]), 'turn 1', 'or it is of the same leader');
	is(story([ $ops->(forgotten => { gone => 19.4 }, then => { begin => 20 }) ]), '', 'or it is gone, and the directory may be another one');
	is(story([ $ops->(), op(token => (2 << 32) + 3, begin => 30, left => 50, $node->(8)), op(token => (2 << 32) + 4, begin => 40, left => 41, $node->(9)) ]),
		'turn 1, two holders 1', 'all else is judged');
};

subtest 'what an earlier checker let pass' => sub {
	my @undone = (phase => 'failed', row => 0);

	is(story([ op(begin => 1, left => 11, @undone, node => 0, token => undef), op(begin => 2, @undone, node => 0, token => undef), op(begin => 20) ]),
		'no node 2, two holders 1', 'two holds at the same time, though neither knows its token');
	is(story([ op(begin => 1, left => 11, @undone, gone => 4, went => 'expiry'), op(begin => 4.1) ], fault(1.5, 10, 'backend_stop', worker => 1)),
		'', 'but who sleeps has lost its lock');
	is(story([ op(begin => 1, left => 11, @undone, gone => 4, went => 'expiry'), op(begin => 3.9) ], fault(1.5, 10, 'backend_stop', worker => 1)),
		'turn 1, two holders 1', 'and is not lost before ZooKeeper says so');
	my $causes = Torture::Causes->new(session_timeout => 2, tick => 0.5);
	$causes->fault(10, 1, 'begin', { kind => 'backend_stop', worker => 1 });
	$causes->fault(16, 1, 'end', {});
	$causes->run_ended(100);
	is(sprintf('%.3f', $causes->judged(1 .. 4)), '0.975', 'of four workers one was stopped for 6 s, which excuses it for 10');
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

	# in doubt, its session gives up its node, and queues again
	my $gave_up = sub { op(begin => 10, asked => 1, made => 9.5, lost => [ { czxid => 1.5, session => 's2', made => 1.01, gone => 9.4, how => 'delete', by => 's2', @_ } ]) };
	is(story([ op(begin => 0.5, left => 8.9), $gave_up->() ]), '', 'and gave it up');
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
	my @warned = (warning => 'canceling wait for synchronous replication due to user request');

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

subtest 'a backend that ends while its client commits in the other cluster' => sub {
	my $story = sub {
		my ($worker, @fault) = @_;
		return story({ pooled => { $worker => 1 } }, [
				writer(worker => $worker, begin => 1, left => 2.2, gone => 2.185, end => 2.25, commits => 1.97, commit_answered => 2.2, committed => 2.18,
					history => { seq => 1, read => 0, written => 1, cluster => 0 }),
				reader(worker => 4, asked => 1.5, begin => 2.19, looks => [ [ 2.195, 0 ], [ 2.3, 1 ] ]) ], @fault);
	};
	my $drop = fault(2.1, 2.1, 'pooler_drop');
	is($story->(1, $drop), '', 'has lost its lock by then');
	is($story->(1), 'changed under a reader 1, two holders 1', 'for a reason');
	is($story->(2, $drop), 'changed under a reader 1', 'and would have been refused in its own');
};

subtest 'a pooler' => sub {
	my $causes = Torture::Causes->new(pooled => { 1 => 1 });
	$causes->fault(10, 1, 'begin', { kind => 'pooler_kill' });
	$causes->fault(11, 1, 'end', {});
	$causes->run_ended(100);
	my $explains = sub { my ($worker, $state, $at) = @_; return scalar(my @why = $causes->explain({ worker => $worker, state => $state }, $at, $at)); };
	is($explains->(1, '08P01', 11), 1, 'its end explains the error of a client');
	is($explains->(1, undef, 11), 1, 'and the loss of its lock');
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

# Nothing is left that nobody has seen it find.
is_deeply([ sort keys %convicted ], [ sort @Torture::Checker::KINDS ], 'each violation has been convicted by its name');

subtest 'crashes' => sub {
	is_deeply([ Torture::_restarts(<<~'LOG') ], [ [ '17.500', '22.750' ] ], 'when a server was away because of one');
		16.000 [1] LOG:  database system is ready to accept connections
		17.500 [1] LOG:  server process (PID 2) was terminated by signal 9: Killed
		17.600 [1] LOG:  terminating any other active server processes
		22.600 [1] LOG:  issuing SIGKILL to recalcitrant children
		22.700 [1] LOG:  server process (PID 3) was terminated by signal 9: Killed
		22.710 [1] LOG:  all server processes terminated; reinitializing
		22.750 [1] LOG:  database system is ready to accept connections
		32.600 [1] LOG:  received immediate shutdown request
		37.700 [1] LOG:  server process (PID 4) was terminated by signal 9: Killed
		39.750 [5] LOG:  database system is ready to accept connections
		LOG

	my $crashes = sub { return scalar Torture::_crashes(join("\n", 'LOG:  ready', @_), { 17 => 1 }); };
	my $died = 'LOG:  server process (PID %d) was terminated by signal %d';
	is($crashes->(sprintf $died, 17, 9), 0, 'one that the nemesis killed');
	is($crashes->(sprintf $died, 18, 9), 1, 'one that it did not');
	is($crashes->(sprintf $died, 17, 11), 1, 'or that died of something else');
	is($crashes->('LOG:  issuing SIGKILL to recalcitrant children', sprintf $died, 18, 9), 0,
		'the postmaster kills who does not stop');
	is($crashes->('PANIC:  x', 'TRAP: y'), 2, 'PANIC, and an assertion');
};

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
	is(scalar keys %{ $run->{checker}{causes}{connections} }, $run->{workers}, 'and through which server each worker was connected');
	is($found{$_}, undef, "nothing else: $_") for 'two holders', 'turn', 'no node', 'loss', 'hand', 'promise', 'leak', 'crash', 'no end', 'late grant', 'late release', 'error', 'refusal';
};

done_testing();
