
=pod

=head1 NAME

Torture::Random - random histories for the checker, right ones and wrong ones

=head1 SYNOPSIS

  my $checker = Torture::Random::judge($seed);             # finds nothing
  my $checker = Torture::Random::judge($seed, 'turn');     # finds that
  Torture::Random::plants();                               # all that can be planted

=head1 DESCRIPTION

A history is made by a program that keeps the rules: an exclusive lock, whose holders
write a counter or a set; in some a semaphore of three places, which is full at times;
in some readers and a writer.  Some holders are stopped until their session expires, or are cut off by
a fault of their server; some requests give up.  All others are hit by no fault, though
some are under way all the time.

Then one violation is planted, if it is asked for.  It is always at somebody whom no
fault hit.

=cut

package Torture::Random;

use strict;
use warnings;
use List::Util qw(shuffle);

use Torture::Checker;

my $PLACES = 3;
my $MANY = 1000;    # more readers than there are

sub _between { my ($from, $to) = @_; return $from + rand($to - $from); }

# An operation has its worker, whose server is one of three, in turn; only the third
# fails.  The times of an operation: asked, made (its node), begin, left, committed,
# gone, end.
sub _operation
{
	my ($h, $object, %op) = @_;
	my $worker = ++$h->{workers};
	$h->{zxid} += 1 + int rand 3;
	$op{op} = 1_000_000 * $worker + 1;
	%op = (how => 'commit', phase => 'ok', token => $h->{zxid}, session => sprintf('0x%x', 4096 + $worker),
		weight => 1, limit => 1, node => 1, went => 'delete', object => $object, worker => $worker, %op);
	$op{made} //= $op{asked} + _between(0.001, 0.01);
	push @{ $h->{ops} }, \%op;
	return \%op;
}

# What a hold does from its grant on
sub _hold
{
	my ($op, $begin, $for) = @_;
	$op->{begin} = $begin;
	$op->{left} = $begin + $for;
	$op->{committed} = $op->{left} + 0.01;
	$op->{gone} = $op->{committed} + _between(0, 0.01);
	$op->{end} = $op->{gone} + _between(0.001, 0.02);
	return $op;
}

sub _fault { my ($h, $from, $to, %fault) = @_; push @{ $h->{faults} }, { number => 1 + @{ $h->{faults} }, begin => $from, end => $to, %fault }; return; }

# One after the other; each asks while some before it are waiting
sub _exclusive
{
	my ($h, $object) = @_;
	my $free = _between(1, 2);
	foreach my $n (1 .. 6 + int rand 4)
	{
		my $asked = $free - _between(-0.3, 0.5);
		my $op = _operation($h, $object, asked => $asked > ($h->{asked} // 0) ? $asked : $h->{asked} + 0.02);
		$h->{asked} = $op->{asked};
		my $begin = ($free > $op->{made} ? $free : $op->{made}) + _between(0.001, 0.2);
		my $way = $n > 5 ? rand : 1;    # enough of them are left alone
		if ($way < 0.2)
		{
			# asleep for longer than its session lives
			_hold($op, $begin, _between(3.2, 4));
			my $stop = $begin + _between(0, 0.1);
			_fault($h, $stop, $op->{left} - 0.01, kind => 'backend_stop', worker => $op->{worker});
			%$op = (%$op, gone => $stop + _between(2, 2.9), went => 'expiry', how => 'failed', phase => 'failed', state => '40001', hit => 1, row => 0);
		}
		elsif ($way < 0.4)
		{
			# cut off for a while, and told that it does not know
			$op->{server} = 3;
			_hold($op, $begin, _between(0.1, 0.3));
			_fault($h, $begin, $op->{left} + 0.5, kind => 'blackhole', server => 3);
			%$op = (%$op, gone => $op->{left} + 1, end => $op->{left} + 1.1, how => 'failed', phase => 'failed', state => '58030', hit => 1, row => 0);
		}
		elsif ($way < 0.55)
		{
			# gave up; whoever comes next need not wait for it
			%$op = (%$op, timeout => 100, answered => $op->{asked} + 0.11, gone => $op->{asked} + 0.1, hit => 1, row => 0);
			$free = $op->{gone} if $op->{gone} > $free;
			next;
		}
		else { _hold($op, $begin, _between(0.05, 0.5)); }
		$free = $op->{gone};
	}
	return;
}

# Three chains of holds
sub _semaphore
{
	my ($h, $object) = @_;
	foreach my $place (1 .. $PLACES)
	{
		my $free = _between(1, 1.1);
		foreach (1 .. 1 + int rand 3)
		{
			my $op = _operation($h, $object, asked => $free, limit => $PLACES);
			_hold($op, $op->{made} + _between(0.001, 0.02), _between(0.4, 0.8));
			$free = $op->{gone};
		}
	}
	return;
}

# Readers, a writer, readers
sub _readers
{
	my ($h, $object) = @_;
	my $free = _between(1, 1.1);
	foreach my $writers (0, 1, 0)
	{
		my $last = $free;
		foreach (1 .. $writers || 1 + int rand 3)
		{
			my $op = _operation($h, $object, asked => $free, limit => $MANY, weight => $writers ? $MANY : 1);
			_hold($op, $op->{made} + _between(0.001, 0.1), _between(0.2, 0.5));
			$last = $op->{gone} if $op->{gone} > $last;
		}
		$free = $last;
	}
	return;
}

# Some have only the first part, unless one of the others is needed
sub _history
{
	my ($needs) = @_;
	my $h = { ops => [], faults => [], workers => 0, zxid => 4_294_967_296 + int rand 1000, kind => rand() < 0.5 ? 'counter' : 'set' };
	my @parts = sub { _exclusive($h, 1) };
	push @parts, sub { _semaphore($h, 2) } if rand() < 0.3 || $needs =~ /place/;
	push @parts, sub { _readers($h, 3) } if rand() < 0.3 || $needs =~ /reader/;
	$_->() for shuffle @parts;
	# These hit everybody, but are over for long, or have not begun yet; those hit
	# others.
	_fault($h, -20, -19, kind => 'leader_kill', server => 1);
	_fault($h, 300, 301, kind => 'outage');
	_fault($h, 0, 200, kind => 'delay', server => 3);
	_fault($h, 0, 200, kind => 'backend_stop', worker => 99);
	_fault($h, 0, 200, kind => 'pg_immediate', cluster => 7);

	my ($value, @members) = (0);
	foreach my $op (sort { $a->{token} <=> $b->{token} } grep { $_->{object} == 1 && ($_->{row} // 1) } @{ $h->{ops} })
	{
		push @members, $op->{op};
		$op->{history} = { seq => ++$value, read => $value - 1, written => $value };
	}
	$h->{final} = { id => 1, kind => $h->{kind}, seq => $value, value => $h->{kind} eq 'counter' ? $value : 0,
		members => $h->{kind} eq 'set' ? \@members : [] };
	return $h;
}

# Neighbours in the queue that no fault hit: both were granted and committed
sub _neighbours
{
	my ($h) = @_;
	my @op = sort { $a->{token} <=> $b->{token} } grep { $_->{object} == 1 } @{ $h->{ops} };
	my @first = grep { !$op[$_]{hit} && !$op[ $_ + 1 ]{hit} } 0 .. $#op - 1;
	my $first = $first[ rand @first ];
	return @op[ $first, $first + 1 ];
}

sub _later { my ($op, $by) = @_; exists $op->{$_} and $op->{$_} += $by for qw(begin left committed gone end); return; }

# What is planted has the name of the violation, and a word if there are several ways.
# The functions get the history, and two neighbours.
my %PLANT = (
	# the rows are still one after the other, as with a fence
	'two holders' => sub {
		my (undef, $one, $two) = @_;
		$two->{begin} = $one->{begin} + ($one->{left} - $one->{begin}) * rand 0.9;
		@$two{qw(asked made)} = @$one{qw(asked made)} if $two->{made} > $two->{begin};
	},
	'two holders: a place too many' => sub {
		my ($h) = @_;
		my ($begin) = sort { $b <=> $a } map { $_->{begin} } grep { $_->{object} == 2 } @{ $h->{ops} }[ _firsts($h, 2) ];
		_hold(_operation($h, 2, asked => $begin, limit => $PLACES), $begin + 0.05, 0.1);
	},
	'two holders: a writer beside a reader' => sub {
		my ($h) = @_;
		my ($reader) = grep { $_->{object} == 3 } shuffle @{ $h->{ops} };
		_hold(_operation($h, 3, asked => $reader->{begin}, limit => $MANY, weight => $MANY), $reader->{begin} + 0.05, 0.1);
	},
	'turn' => sub {
		my (undef, $one, $two) = @_;
		@$two{qw(asked made)} = @$one{qw(asked made)};
		$one->{left} = $one->{begin} + 0.001;
		$two->{begin} = $one->{gone} - _between(0.03, 0.05);
	},
	'turn: changed places' => sub {
		my (undef, $one, $two) = @_;
		my @times = qw(begin left committed gone end);
		(@$one{@times}, @$two{@times}) = (@$two{@times}, @$one{@times});
		@$two{qw(asked made)} = @$one{qw(asked made)};
	},
	'order' => sub { my (undef, $one, $two) = @_; $two->{asked} = $one->{asked} - _between(1.2, 3); },
	'no node' => sub { my (undef, $one) = @_; $one->{node} = 0; },
	'loss' => sub { my (undef, $one) = @_; $one->{gone} = $one->{left} - 0.03; $one->{went} = 'expiry'; },
	'hand' => sub { my (undef, $one) = @_; $one->{gone} = $one->{left} - 0.03; $one->{by} = '0xabc'; },
	'late grant' => sub { my (undef, undef, $two) = @_; _later($two, _between(3.6, 30)); },
	'late release' => sub { my (undef, undef, $two) = @_; $two->{gone} = $two->{end} + _between(3.1, 30); },
	'leak' => sub { my (undef, undef, $two) = @_; delete $two->{gone}; },
	'late commit' => sub { my (undef, $one) = @_; $one->{committed} = $one->{gone} + _between(0.6, 2); $one->{end} = $one->{committed} + 0.01; },
	'refusal' => sub { my ($h, $one) = @_; _fails($h, $one, '40001'); },
	'error' => sub { my ($h, $one) = @_; _fails($h, $one, '58030'); },
	'promise' => sub { my (undef, $one) = @_; $one->{phase} = 'failed'; },
	'promise: told that it is' => sub { my (undef, $one) = @_; delete $one->{history}; $one->{row} = 0; },
	'no end' => sub { my (undef, $one) = @_; $one->{hangs} = 1; },
	'late answer' => sub { my (undef, $one) = @_; $one->{timeout} = 1; $one->{asked} = $one->{made} = $one->{begin} - 3.2; },
	'token order' => sub { my (undef, $one, $two) = @_; $one->{row_token} = $two->{token}; $two->{row_token} = $one->{token}; },
	'no token' => sub { my (undef, $one) = @_; $one->{row_token} = 'none'; },
	'lost update' => sub { my (undef, undef, $two) = @_; $_-- for @{ $two->{history} }{qw(read written)}; },
	'sequence' => sub { my ($h) = @_; $h->{final}{seq}++; },
	'overlap' => sub { my (undef, $one, $two) = @_; $two->{granted} = $one->{committed} - 0.01; },
	'same token' => sub { my (undef, $one, $two) = @_; $two->{token_told} = $one->{token}; });

# the first of each chain of the semaphore
sub _firsts
{
	my ($h, $object) = @_;
	my @of = grep { $h->{ops}[$_]{object} == $object } 0 .. $#{ $h->{ops} };
	return grep { $h->{ops}[$_]{asked} < 1.1 } @of;
}

sub _fails
{
	my ($h, $op, $state) = @_;
	@$op{qw(phase state how)} = ('failed', $state, 'failed');
	$op->{row} = 0;
	return;
}

sub plants { return sort keys %PLANT; }

# The checker after it has judged the history of this seed, with what is planted in it
sub judge
{
	my ($seed, $plant) = @_;
	srand $seed;
	my $h = _history($plant // '');
	if (defined $plant) { $PLANT{$plant}->($h, _neighbours($h)); }
	srand;
	return tell_all($h);
}

# The checker after it has judged a history { ops, faults, workers, final, end }
sub tell_all
{
	my ($h) = @_;
	my $checker = Torture::Checker->new(session_timeout => 2, tick => 0.5, homes => { map { $_ => $_ % 2 } 1 .. $h->{workers} });
	my @events = ([ $h->{end} // 310, 'torture', 0, 'clock', 'last', 0, { epoch => $h->{end} // 310 } ]);
	foreach my $fault (@{ $h->{faults} })
	{
		push @events, map { [ $fault->{$_}, 'nemesis', $fault->{number}, 'fault', $_, 0, $fault ] } qw(begin end);
	}
	foreach my $op (@{ $h->{ops} })
	{
		my ($object, $begin, $left) = @$op{qw(object begin left)};
		my $tell = sub { my ($time, @event) = @_; push @events, [ $time, $op->{worker}, $op->{op}, @event[ 0, 1 ], $object, $event[2] // {} ]; };
		$tell->($op->{asked}, 'lock', 'invoked', { timeout => $op->{timeout} });
		$tell->($op->{answered} // $begin, 'lock', 'ok');
		if (defined $begin)
		{
			$tell->($begin, 'hold', 'begin', { asked => $op->{asked}, weight => $op->{weight}, limit => $op->{limit} });
			$tell->($begin + 0.0001, 'hold', 'token', { token => $op->{token_told} // $op->{token} });
			$tell->($left, 'commit', 'invoked');
			$tell->($op->{end} - 0.0001, 'commit', $op->{hangs} ? 'hangs' : $op->{phase}, { state => $op->{state}, message => '' });
			$tell->($op->{end}, 'hold', 'end', { how => $op->{how}, left => $left });
		}
		if ($op->{row} // defined $begin)
		{
			my $token = $op->{row_token} // $op->{token};
			$checker->history({
				op => $op->{op}, object => $object, worker => $op->{worker}, hold => $op->{op}, cluster => $op->{worker} % 2,
				token => $token eq 'none' ? undef : $token, granted => $op->{granted} // ($object == 1 ? $op->{committed} - 0.005 : $op->{committed}),
				committed => $op->{committed}, %{ $op->{history} // {} } });
		}
		$checker->node({
			object => $object, czxid => $op->{token}, session => $op->{session}, made => $op->{made}, gone => $op->{gone},
			how => $op->{went}, by => $op->{by} // $op->{session} }) if $op->{node};
		$checker->connection($op->{session}, $op->{server} // 1 + $op->{worker} % 2, 0, $h->{end} // 310);
	}
	$checker->event(@$_) for sort { $a->[0] <=> $b->[0] } @events;
	$checker->object($h->{final}) if $h->{final};
	$checker->finish;
	return $checker;
}

1;
