# The checker of the torture test can fail: it finds each violation in a log
# that contains it, none in a log without, and those that a stopped holder
# causes when there is neither guard nor fence.

use strict;
use warnings;
use File::Temp;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Test::More;

use Torture;

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
	my $checker = Torture::Checker->new(session_timeout => 2, tick => 0.5);
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
			push @events, [ $t + 0.6, @c, 'hold', 'end', $object, { how => 'commit' } ];
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
	is(kinds(@late, @later, more => [ fault(20, 25, 'cut') ]), 'late grant', 'not one that was over');
	is(kinds(@late, @later, more => [ fault(32.9, 32.9, 'backend_kill', worker => 2) ]), '', 'nor is a session that must expire late');
	is(kinds(@late, @later, more => [ fault(31, 31, 'backend_kill', worker => 2) ]), 'late grant', 'which it had');
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
	is(kinds(event('hold', 'begin', $early), more => [ fault(10.5, 10.6, 'drop') ]), '', 'which a fault explains');
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
	is(kinds(@error, more => [ fault(5, 6, 'drop') ]), '', 'a fault');
	my @internal = event('lock', 'ok', sub { $_[0][4] = 'failed'; $_[0][6] = { state => 'XX000', message => 'x' }; 1 });
	is(kinds(@internal, more => [ fault(5, 6, 'drop') ]), 'error', 'one that no fault explains');
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

# Neither guard nor fence: who slept through its lock overwrites what the next
# one did.
subtest 'without guard and fence' => sub {
	my $run = Torture->new(
		seconds => 15, faults => 'backend_stop', moment => 'critical', pause => [ 0.3, 0.8 ],
		kinds => ['counter'], objects => 4, guard => 'off', fence => 0);
	diag("seed $run->{seed}");
	$run->execute;
	my %found;
	$found{ $_->[0] }++ for $run->violations;
	diag($run->figures);
	cmp_ok($found{'lost update'} // 0, '>', 0, 'updates are lost, and that is found');
	cmp_ok($found{'token order'} // 0, '>', 0, 'older tokens overwrite newer ones');
	cmp_ok($found{overlap} // 0, '>', 0, 'work of two at the same time was committed');
	is($found{$_}, undef, "nothing else: $_") for 'promise', 'leak', 'crash', 'no end', 'late grant', 'error';
};

done_testing();
