
=pod

=head1 NAME

Torture::Random - random histories for the checker, right ones and wrong ones

=head1 SYNOPSIS

  my $checker = Torture::Random::judge($seed);             # finds nothing
  my $checker = Torture::Random::judge($seed, 'turn');     # finds that
  Torture::Random::plants();                               # all that can be planted

=head1 DESCRIPTION

A history is made by a program that keeps the rules: an exclusive lock, whose holders
write a counter or a set; in some a semaphore of three places, for which others wait;
in some readers and writers of a counter, one of whom becomes a reader; in some ZooKeeper
loses what it has answered for a while, long after all that.  Some holders are stopped until their session expires, or are cut off by
a fault of their server; some requests give up.  All others are hit by no fault, though
some are under way all the time.

Then one violation is planted, if it is asked for.  It is always at somebody whom no
fault hit.

=cut

package Torture::Random;

use strict;
use warnings;
use List::Util qw(max min shuffle);

use Torture::Checker;

my $PLACES = 3;
my $MANY = 1000;    # more readers than there are
our $WARNING = 'canceling wait for synchronous replication due to user request';
my @MINOR = qw(cancel timeouts acl connection_cut sync_hang clock);    # of which no lock is lost

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
			_fault($h, $stop, $op->{left} - 0.01, kind => (qw(backend_stop backend_pause keeper_stop))[ rand 3 ], worker => $op->{worker});
			%$op = (%$op, gone => $stop + _between(2, 2.9), went => 'expiry', how => 'failed', phase => 'failed', state => '40001', hit => 1, row => 0);
		}
		elsif ($way < 0.4)
		{
			# cut off for a while, and told that it does not know
			$op->{server} = 3;
			_hold($op, $begin, _between(0.1, 0.3));
			_fault($h, $begin, $op->{left} + 0.5, kind => (qw(blackhole one_way flap link_one_way))[ rand 4 ], server => 3);
			%$op = (%$op, gone => $op->{left} + 1, end => $op->{left} + 1.1, how => 'failed', phase => 'failed', state => '58030', hit => 1, row => 0);
		}
		elsif ($way < 0.45)
		{
			# one of these explains its error
			my ($kind, $state) = @{ ([ cancel => '57014' ], [ timeouts => '55P03' ], [ acl => '42501' ], [ threads => '53000' ], [ descriptors => '58030' ])[ rand 5 ] };
			_hold($op, $begin, _between(0.05, 0.5));
			_fault($h, $op->{left} - 0.01, $op->{left}, kind => $kind, worker => $op->{worker}, object => $object, cluster => $op->{worker} % 2);
			%$op = (%$op, how => 'failed', phase => 'failed', state => $state, hit => 1, row => 0);
		}
		elsif ($way < 0.6)
		{
			# gave up; whoever comes next need not wait for it
			%$op = (%$op, timeout => 100, answered => $op->{asked} + 0.11, gone => $op->{asked} + 0.1, got => $free > $op->{made} ? 'f' : undef, hit => 1, row => 0);
			$free = $op->{gone} if $op->{gone} > $free;
			next;
		}
		else
		{
			_hold($op, $begin, _between(0.05, 0.5));
			# some also write in the other cluster, which commits first, or notify
			my $aside = int rand 3;
			if ($aside == 1) { $op->{abroad} = $op->{committed} - 0.002; }
			elsif ($aside == 2) { $op->{notifies} = $op->{heard} = 1; }
		}
		$free = $op->{gone};
	}
	return;
}

# One after the other comes, and some must wait
sub _semaphore
{
	my ($h, $object) = @_;
	my $asked = _between(1, 1.1);
	my @gone;
	foreach my $n (1 .. $PLACES + 1 + int rand 4)
	{
		$asked += _between(0.015, 0.05);
		my $op = _operation($h, $object, asked => $asked, limit => $PLACES, mode => 'semaphore');
		@gone = sort { $b <=> $a } @gone;
		_hold($op, max($op->{made}, $gone[ $PLACES - 1 ] // 0) + _between(0.001, 0.1), _between(0.4, 0.8));
		push @gone, $op->{gone};
	}
	return;
}

# Readers and writers; the second writer becomes a reader
sub _readers
{
	my ($h, $object) = @_;
	my $asked = _between(1, 1.1);
	my ($written, $free, $free_for_readers) = (0, 0, 0);
	my @readers;
	foreach my $what (map { $_ eq 'reader' ? ($_) x (1 + int rand 3) : $_ } qw(reader writer reader downgrade reader writer reader))
	{
		$asked += _between(0.015, 0.05);
		my $reads = $what eq 'reader';
		my $op = _operation($h, $object, asked => $asked, limit => $MANY, weight => $reads ? 1 : $MANY, mode => $reads ? 'shared' : 'exclusive', part => $what);
		_hold($op, max($op->{made}, $reads ? $free_for_readers : $free) + _between(0.001, 0.1), _between(0.2, 0.5));
		if ($reads)
		{
			_looks($op, $written);
			push @readers, $op;
		}
		else
		{
			# a reader that also asks for the exclusive lock now is refused
			$_->{refused} = $op->{made} + 0.001 for grep { rand() < 0.3 && $op->{made} + 0.05 < $_->{left} && $op->{made} > $_->{begin} } splice @readers;
			$op->{history} = { seq => ++$written, read => $written - 1, written => $written };
			$free_for_readers = $op->{gone};
		}
		if ($what eq 'downgrade')
		{
			my $reader = _downgraded($h, $op);
			_looks($reader, $written);
			$free_for_readers = $op->{shared};
		}
		$free = max($free, $op->{gone});
	}
	$h->{counters}{$object} = $written;
	return;
}

sub _looks { my ($op, $seq) = @_; $op->{looks} = [ map { [ $op->{begin} + $_ * ($op->{left} - $op->{begin}), $seq ] } 0.2, 0.8 ]; return; }

# Its node stays, and is that of a reader
sub _downgraded
{
	my ($h, $writer) = @_;
	my $left = $writer->{left};
	@$writer{qw(commits committed commit_answered end shared)} = ($left - 0.05, $left - 0.04, $left - 0.03, $left + 0.02, $left + 0.01);
	my %reader = (%$writer, weight => 1, mode => 'shared', part => 'downgraded', from => $writer->{op}, op => $writer->{op} + 1, node => 0);
	delete @reader{qw(commits commit_answered history)};
	my $reader = _hold(\%reader, $left + 0.0005, _between(0.2, 0.5));
	push @{ $h->{ops} }, $reader;
	$writer->{gone} = $reader->{gone};
	return $reader;
}

# ZooKeeper loses all that a leader has answered, its epoch being 2: some holds, and a
# release, whose node is there again when the next leader comes.  Others wait meanwhile,
# or hold what they hold.
sub _loses
{
	my ($h) = @_;
	my ($from, $to) = (_between(70, 71), _between(75, 80));
	my $zxid = 3 << 32;
	my $after = sub { my ($object, %op) = @_; return _operation($h, $object, token => ++$zxid, %op); };
	my $through = _hold(_operation($h, 6, asked => $from - 1), $from - 0.5, $to + 3 - $from);
	%$through = (%$through, gone => $to + 1, went => 'expiry', how => 'failed', phase => 'failed', state => '40001', row => 0);
	my $back = _hold(_operation($h, 4, asked => $from - 0.01, made => $from), $from + 0.05, 0.2);
	$back->{gone} = $to + _between(20, 30);

	my ($free, $alone) = ($back->{end} + 0.1, rand() < 0.5);
	my @lost;
	foreach my $n (1 .. 2 + int rand 3)
	{
		my $op = _operation($h, 4, asked => $free, token => (2 << 32) + 10 * $n, node => 0, alone => $alone && $n < 3);
		push @lost, _hold($op, $op->{made} + _between(0.001, 0.1), _between(0.1, 0.3));
		$free = $op->{end} + 0.02;
	}
	$lost[0]{refused} = $lost[0]{begin} + 0.02;    # for somebody whose node is lost, too
	my $refused = $to + _between(-3, 1.9);
	_operation($h, 5, asked => $refused, answered => $refused + 0.01, got => 'f', node => 0);
	_hold($after->(4, asked => $free, made => $to), $to + _between(0.1, 5), 0.2);
	_hold($after->(8, asked => $free, made => $to + 0.1), $to + _between(4, 5), 0.2);

	# before what came back is gone; and who waits for that
	my $asked = $to + 10;
	my @beside = map { $asked += 0.6; _hold($after->(4, asked => $asked), $asked + 0.05, _between(0.2, 0.5)) } 1, 2;
	_hold($after->(4, asked => $asked + 0.6), $back->{gone} + 0.05, 0.2);
	$h->{loss} = { from => $from, to => $to, lost => \@lost, beside => \@beside, after => $after };
	return;
}

# Some have only the first part, unless one of the others is needed
sub _history
{
	my ($needs) = @_;
	my $h = { ops => [], faults => [], workers => 0, zxid => 4_294_967_296 + int rand 1000, kind => $needs =~ /value/ || $needs !~ /element/ && rand() < 0.5 ? 'counter' : 'set' };
	my @parts = sub { _exclusive($h, 1) };
	push @parts, sub { _semaphore($h, 2) } if rand() < 0.3 || $needs =~ /place/;
	push @parts, sub { _readers($h, 3) } if rand() < 0.3 || $needs =~ /read/;
	push @parts, sub { _loses($h) } if rand() < 0.3 || $needs =~ /ZooKeeper/;
	$_->() for shuffle @parts;
	# These hit everybody, but are over for long, or have not begun yet; those hit
	# others.
	_fault($h, -20, -19, kind => 'leader_kill', server => 1);
	_fault($h, 300, 301, kind => 'outage');
	_fault($h, 0, 200, kind => 'delay', server => 3, ms => 500);
	_fault($h, 0, 200, kind => 'backend_stop', worker => 99);
	_fault($h, 0, 200, kind => 'pg_immediate', cluster => 7);

	my ($value, @members) = (0);
	foreach my $op (sort { $a->{token} <=> $b->{token} } grep { $_->{object} == 1 && ($_->{row} // 1) } @{ $h->{ops} })
	{
		push @members, $op->{op};
		$op->{history} = { seq => ++$value, read => $value - 1, written => $value };
	}
	$h->{final}{3} = { id => 3, kind => 'counter', seq => $h->{counters}{3}, value => $h->{counters}{3}, members => [] } if $h->{counters};
	$h->{final}{1} = { id => 1, kind => $h->{kind}, seq => $value, value => $h->{kind} eq 'counter' ? $value : 0,
		members => $h->{kind} eq 'set' ? \@members : [] };
	return $h;
}

# Neighbors in the queue that no fault hit: both were granted and committed
sub _neighbors
{
	my ($h) = @_;
	my @op = sort { $a->{token} <=> $b->{token} } grep { $_->{object} == 1 } @{ $h->{ops} };
	my @first = grep { !$op[$_]{hit} && !$op[ $_ + 1 ]{hit} } 0 .. $#op - 1;
	my $first = $first[ rand @first ];
	return @op[ $first, $first + 1 ];
}

sub _later { my ($op, $by) = @_; exists $op->{$_} and $op->{$_} += $by for qw(begin left committed gone end); return; }

# What is planted has the name of the violation, and a word if there are several ways.
# The functions get the history, and two neighbors.
my %PLANT = (
	# the rows are still one after the other, as with a fence
	'two holders' => sub {
		my (undef, $one, $two) = @_;
		$two->{begin} = $one->{begin} + ($one->{left} - $one->{begin}) * rand 0.9;
		@$two{qw(asked made)} = @$one{qw(asked made)} if $two->{made} > $two->{begin};
	},
	'two holders: a place too many' => sub {
		my ($h) = @_;
		my $begin = max(map { $_->{begin} } (_of($h, 2))[ 0 .. $PLACES - 1 ]);
		_hold(_operation($h, 2, asked => $begin, limit => $PLACES, mode => 'semaphore'), $begin + 0.05, 0.1);
	},
	'two holders: a writer beside a reader' => sub {
		my ($h) = @_;
		my ($reader) = shuffle _of($h, 3, 'reader');
		_hold(_operation($h, 3, asked => $reader->{begin}, limit => $MANY, weight => $MANY), $reader->{begin} + 0.05, 0.1);
	},
	'two holders: a reader beside a writer' => sub {
		my ($writer, $reader) = _writer_and_reader(@_);
		$reader->{begin} = $writer->{begin} + 0.01;
	},
	'two holders: a writer while another becomes a reader' => sub {
		my ($h) = @_;
		my ($reader) = _of($h, 3, 'downgraded');
		_hold(_operation($h, 3, asked => $reader->{begin}, limit => $MANY, weight => $MANY), $reader->{begin} + 0.05, 0.05);
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
	'turn: a reader, while the writer is there' => sub {
		my ($writer, $reader) = _writer_and_reader(@_);
		$writer->{left} = $writer->{begin} + 0.001;
		$reader->{begin} = $writer->{gone} - _between(0.03, 0.05);
	},
	'turn: a reader, before the writer has become one' => sub {
		my ($writer, $reader) = _before($_[0], 'downgrade', 'reader');
		$reader->{begin} = $writer->{shared} - _between(0.03, 0.05);
	},
	'turn: a writer, while a reader is there' => sub {
		my ($h) = @_;
		my ($reader, $writer) = _before($h, 'reader', 'writer');
		$reader->{left} = $reader->{begin} + 0.001;
		$writer->{begin} = $reader->{gone} - _between(0.03, 0.05);
	},
	'turn: a place that is not free' => sub {
		my ($h) = @_;
		my @ops = _of($h, 2);
		my $free = min(map { $_->{gone} } @ops[ 0 .. $PLACES - 1 ]);
		$_->{left} = $_->{begin} + 0.001 for @ops;
		$ops[$PLACES]{begin} = $free - _between(0.03, 0.05);
	},
	'stale grant' => sub {
		my (undef, $one) = @_;
		$one->{went} = 'expiry';
		$one->{gone} = $one->{begin} - _between(0.6, 2);
		$one->{asked} = $one->{made} = $one->{gone} - 1;
	},
	# it slept when it came to be the first, and longer than its session lived
	'stale grant: asleep' => sub {
		my ($h, $one, $two) = @_;
		@$two{qw(asked made)} = @$one{qw(asked made)};
		_fault($h, $one->{gone} - _between(0.03, 0.1), $one->{gone} + 3, kind => 'backend_stop', worker => $two->{worker}, cluster => $two->{worker} % 2);
		$two->{gone} = $one->{gone} + _between(2, 2.9);
		$two->{begin} = $one->{gone} + _between(3, 3.4);
		@$two{qw(went left end row)} = ('expiry', $two->{begin} + 0.1, $two->{begin} + 0.2, 0);
	},
	'order' => sub {
		my ($h, $one, $two) = @_;
		$two->{asked} = $one->{asked} - _between(1.2, 3);
		_no_acl($h);    # the list of the lock was not changed while it waited
	},
	'order: their tokens' => sub { my (undef, $one, $two) = @_; $one->{token_told} = $two->{token}; $two->{token_told} = $one->{token}; },
	'order: a reader' => sub { my ($writer, $reader) = _writer_and_reader(@_); $reader->{asked} = $writer->{asked} - _between(1.2, 3); },
	'no node: a place' => sub { my ($h) = @_; (shuffle _of($h, 2))[0]{node} = 0; },
	'no node' => sub { my (undef, $one) = @_; $one->{node} = 0; },
	'loss' => sub { my (undef, $one) = @_; $one->{gone} = $one->{left} - 0.03; $one->{went} = 'expiry'; },
	'loss: a reader' => sub { my ($h) = @_; my ($reader) = shuffle _of($h, 3, 'reader'); $reader->{gone} = $reader->{left} - 0.03; $reader->{went} = 'expiry'; },
	'loss: after a moment of silence' => sub { my ($h, $one) = @_; _moment($h, $one); $one->{gone} = $one->{left} - 0.03; $one->{went} = 'expiry'; },
	'refusal: after a moment of silence' => sub { my ($h, $one) = @_; _moment($h, $one); _fails($h, $one, '40001'); },
	'error: after a moment of silence' => sub { my ($h, $one) = @_; _moment($h, $one); _fails($h, $one, '58030'); },
	# what explains only certain errors, and only at whom or where it hit
	# (one that notifies may have waited for a COMMIT whose standby hangs)
	'refusal: beside a cancel' => sub { my ($h, $one) = @_; _minor($h, $one, grep { $_ ne 'sync_hang' } @MINOR); _fails($h, $one, '40001'); },
	'loss: beside a cancel' => sub { my ($h, $one) = @_; _minor($h, $one, @MINOR); $one->{gone} = $one->{left} - 0.03; $one->{went} = 'expiry'; },
	'error: a cancel of somebody else' => sub { my ($h, $one, $two) = @_; _minor($h, $two, 'cancel'); _fails($h, $one, '57014'); },
	'error: a cancel long ago' => sub { my ($h, $one) = @_; _minor($h, { %$one, left => $one->{left} - 1.2 }, 'cancel'); _fails($h, $one, '57014'); },
	'error: the list of another object' => sub { my ($h, $one) = @_; _no_acl($h); _minor($h, { %$one, object => 2 }, 'acl'); _fails($h, $one, '42501'); },
	'error: a pooler of somebody else' => sub {
		my ($h, $one, $two) = @_;
		$h->{pooled} = { $two->{worker} => 1 };
		_minor($h, $one, qw(pooler_kill pooler_drop));
		_fails($h, $one, '08P01');
	},
	'error: a limit of somebody else' => sub { my ($h, $one, $two) = @_; _minor($h, $two, qw(descriptors threads)); _fails($h, $one, '53000'); },
	'late grant: beside a cancel' => sub { my ($h, undef, $two) = @_; _later($two, _between(3.6, 30)); _fault($h, 0, 200, kind => (qw(cancel connection_cut sync_hang clock timeouts))[ rand 5 ], worker => $two->{worker}, cluster => $two->{worker} % 2); },
	'hand' => sub { my (undef, $one) = @_; $one->{gone} = $one->{left} - 0.03; $one->{by} = '0xabc'; },
	'needless refusal' => sub { my ($h) = @_; my $at = _between(100, 200); _operation($h, 1, asked => $at, answered => $at + 0.01, got => 'f', node => 0); },
	'needless refusal: beside readers' => sub {
		my ($h) = @_;
		my $op = (_of($h, 3, 'reader'))[-1];
		# the writer before has been gone for long enough
		$_ += 20 for grep { defined } @$op{qw(commits left committed commit_answered gone end)};
		_operation($h, 3, asked => $op->{begin} + 15, answered => $op->{begin} + 15.01, got => 'f', function => 'zk_try_lock_shared', node => 0);
	},
	'hand: not the node that was to be deleted' => sub {
		my ($h, $one) = @_;
		$one->{gone} = $one->{left} - 0.03;
		$one->{by} = '0xabc';
		_fault($h, $one->{gone} - 0.01, $one->{gone}, kind => 'lock_break', worker => $one->{worker}, node => '/of somebody else');
	},
	'late grant' => sub { my (undef, undef, $two) = @_; _later($two, _between(3.6, 30)); },
	'late grant: a reader' => sub { my (undef, $reader) = _writer_and_reader(@_); _later($reader, _between(3.6, 30)); },
	'late grant: a place' => sub { my ($h) = @_; _later((_of($h, 2))[-1], _between(3.6, 30)); },
	'late release: a writer that becomes a reader' => sub {
		my ($h) = @_;
		my ($writer, $reader) = map { _of($h, 3, $_) } qw(downgrade downgraded);
		$writer->{shared} = $writer->{end} + _between(3.1, 30);
		_later($reader, $writer->{shared} - $writer->{end});
		$writer->{gone} = $reader->{gone};
	},
	'late release' => sub { my (undef, undef, $two) = @_; $two->{gone} = $two->{end} + _between(3.1, 30); },
	'leak' => sub { my (undef, undef, $two) = @_; delete $two->{gone}; },
	'late commit' => sub { my (undef, $one) = @_; $one->{committed} = $one->{gone} + _between(0.6, 2); $one->{end} = $one->{committed} + 0.01; },
	'late commit: a reader' => sub {
		my ($h) = @_;
		my ($reader) = shuffle _of($h, 3, 'reader');
		$reader->{committed} = $reader->{gone} + _between(0.6, 2);
		$reader->{end} = $reader->{committed} + 0.01;
	},
	'changed under a reader: at a standby' => sub { my ($h) = @_; my ($reader) = _before($h, 'reader', 'writer'); $reader->{looks}[1][1]++; $h->{at_standby}{ $reader->{worker} } = 1; },
	'stale read: at a standby' => sub { my ($h, $reader) = ($_[0], (_writer_and_reader(@_))[1]); $_->[1]-- for @{ $reader->{looks} }; $h->{at_standby}{ $reader->{worker} } = 1; },
	'changed under a reader' => sub { my ($h) = @_; my ($reader) = _before($h, 'reader', 'writer'); $reader->{looks}[1][1]++; },
	'stale read' => sub { my (undef, $reader) = _writer_and_reader(@_); $_->[1]-- for @{ $reader->{looks} }; },
	'error: a reader that is refused, though no writer waits' => sub { my ($h) = @_; my $last = (_of($h, 3, 'reader'))[-1]; $last->{refused} = $last->{begin} + 0.05; },
	'refusal' => sub { my ($h, $one) = @_; _fails($h, $one, '40001'); },
	'error' => sub { my ($h, $one) = @_; _fails($h, $one, '58030'); },
	'error: one that no fault explains' => sub { my ($h, $one) = @_; _fault($h, $one->{left} - 0.1, $one->{left}, kind => 'drop', server => 1 + $one->{worker} % 2); _fails($h, $one, 'XX000'); },
	'error: a connection that breaks long after a restart' => sub { my ($h, $one) = @_; _fault($h, -20, -19, kind => 'pg_immediate', cluster => 0); _fails($h, $one, '57P01'); },
	'error: a foreign server that nothing has hit' => sub { my ($h, $one) = @_; $one->{abroad} = 0; _fails($h, $one, '08006'); },
	'promise' => sub { my (undef, $one) = @_; $one->{phase} = 'failed'; },
	'promise: not in the other cluster' => sub { my (undef, $one) = @_; $one->{abroad} = 0; },
	'promise: only in the other cluster' => sub { my ($h, $one) = @_; $one->{abroad} = $one->{committed}; _fails($h, $one, '40001'); },
	'promise: never asked to be in the other cluster' => sub { my (undef, $one) = @_; delete $one->{abroad}; $one->{stray} = $one->{committed}; },
	'late commit: in the other cluster' => sub { my (undef, $one) = @_; $one->{abroad} = $one->{gone} + _between(0.6, 2); },
	'promise: a notification that is not heard' => sub { my (undef, $one) = @_; $one->{notifies} = 1; $one->{heard} = 0; },
	'promise: one of what is not committed' => sub { my ($h, $one) = @_; _fails($h, $one, '40001'); @$one{qw(notifies heard)} = (1, 1); },
	'promise: never asked for' => sub { my (undef, $one) = @_; $one->{never_commits} = 1; },
	'promise: told that it is' => sub { my (undef, $one) = @_; _vanishes($one); },
	# a standby that is promoted has what was acknowledged
	'promise: before a promotion' => sub { my ($h, $one) = @_; _vanishes($one); _fault($h, $one->{end} + 0.01, 200, kind => 'promote', cluster => 0); },
	'promise: only on this server, which nobody takes the place of' => sub { my (undef, $one) = @_; _vanishes($one); $one->{warning} = $WARNING; },
	'promise: only on this server, where a standby was promoted before' => sub {
		my ($h, $one) = @_;
		_vanishes($one);
		$one->{warning} = $WARNING;
		_fault($h, $one->{left} - 5, $one->{left} - 0.01, kind => 'promote', cluster => 0);
	},
	'no end' => sub { my (undef, $one) = @_; $one->{hangs} = 1; },
	'late answer' => sub { my (undef, $one) = @_; $one->{timeout} = 1; $one->{asked} = $one->{made} = $one->{begin} - 3.2; },
	'token order' => sub { my (undef, $one, $two) = @_; $one->{row_token} = $two->{token}; $two->{row_token} = $one->{token}; },
	'token order: the one before again' => sub { my (undef, $one, $two) = @_; $two->{row_token} = $one->{token}; },
	'token order: two in one hold' => sub { my (undef, $one, $two) = @_; $two->{history}{hold} = $one->{op}; },
	'no token' => sub { my (undef, $one) = @_; $one->{row_token} = 'none'; },
	'lost update' => sub { my (undef, undef, $two) = @_; $_-- for @{ $two->{history} }{qw(read written)}; },
	'lost element' => sub { my ($h) = @_; shift @{ $h->{final}{1}{members} }; },
	'lost element: one that nobody committed' => sub { my ($h) = @_; push @{ $h->{final}{1}{members} }, 4; },
	'lost element: one twice' => sub { my ($h) = @_; push @{ $h->{final}{1}{members} }, $h->{final}{1}{members}[0]; },
	'final value' => sub { my ($h) = @_; $h->{final}{1}{value}--; },
	'sequence' => sub { my ($h) = @_; $h->{final}{1}{seq}++; },
	'sequence: a number is missing' => sub { my (undef, undef, $two) = @_; $two->{history}{seq} += 0.5; },
	'overlap' => sub { my (undef, $one, $two) = @_; $two->{granted} = $one->{committed} - 0.01; },
	'overlap: a reader' => sub { my ($writer, $reader) = _writer_and_reader(@_); $reader->{granted} = $writer->{committed} - 0.01; },
	'overlap: a place' => sub { my ($h) = @_; my @ops = _of($h, 2); $ops[$PLACES]{granted} = min(map { $_->{committed} } @ops[ 0 .. $PLACES - 1 ]) - 0.02; },
	'same token: two places' => sub { my ($h) = @_; my ($one, $two) = shuffle _of($h, 2); $two->{token_told} = $one->{token}; },
	'same token' => sub { my (undef, $one, $two) = @_; $two->{token_told} = $one->{token}; });

# What ZooKeeper has lost excuses neither what is as in these, but for one thing, nor what
# happened at another time, nor what was written.
my %LOST = (
	'no node: one that ZooKeeper has not lost, as its epoch went on' => sub { my ($h, $loss) = @_; push @{ $h->{logged} }, [ $loss->{lost}[0]{token} + 1, $loss->{from} ]; },
	'no node: ZooKeeper has lost those of one worker' => sub { my (undef, $loss) = @_; $_->{worker} = $loss->{lost}[0]{worker} for @{ $loss->{lost} }; },
	'no node: ZooKeeper has lost those of sessions that are shared' => sub { my ($h, $loss) = @_; $h->{pooled} = { map { $_->{worker} => 1 } @{ $loss->{lost} } }; },
	'no node: before ZooKeeper lost any' => sub { my ($h, $loss) = @_; _of_lost_epoch($h, $loss->{from} - 2); },
	'no node: after ZooKeeper lost any' => sub { my ($h, $loss) = @_; _of_lost_epoch($h, $loss->{to} + 2); },
	'no node: ZooKeeper has not gone on since' => sub { my ($h) = @_; @{ $h->{ops} } = grep { $_->{token} >> 32 != 3 } @{ $h->{ops} }; },
	'no node: not told, while ZooKeeper lost others' => sub { my (undef, $loss) = @_; $loss->{lost}[0]{token_told} = ''; },
	'loss: soon after ZooKeeper has lost something' => sub { my (undef, $loss) = @_; my $op = _remakes($loss); @$op{qw(gone went)} = ($op->{left} - 0.1, 'expiry'); },
	'late grant: after ZooKeeper has lost something' => sub { my (undef, $loss) = @_; _hold($loss->{after}->(7, asked => $loss->{to} + 0.1), $loss->{to} + 4, 0.2); },
	'late release: soon after ZooKeeper has lost something' => sub { my (undef, $loss) = @_; my $op = _remakes($loss); $op->{gone} = $op->{end} + 4; },
	'needless refusal: after ZooKeeper has lost something' => sub {
		my ($h, $loss) = @_;
		my $at = $loss->{to} + _between(2.1, 10);
		_operation($h, 5, asked => $at, answered => $at + 0.01, got => 'f', node => 0);
	});
$PLANT{$_} = do { my $plant = $LOST{$_}; sub { my ($h) = @_; $plant->($h, $h->{loss}); } }
  for keys %LOST;
foreach my $kind ('turn', 'stale grant', 'loss', 'hand', 'late release')
{
	$PLANT{"$kind: beside what ZooKeeper has lost"} = sub { my ($h) = @_; $PLANT{$kind}->($h, @{ $h->{loss}{beside} }); };
}
foreach my $kind ('two holders', 'overlap', 'same token', 'promise')
{
	$PLANT{"$kind: of what ZooKeeper has lost"} = sub { my ($h) = @_; $PLANT{$kind}->($h, @{ $h->{loss}{lost} }); };
}

# Its node is made, perhaps once more, when something has been lost
sub _remakes { my ($loss) = @_; my $to = $loss->{to}; return _hold($loss->{after}->(7, asked => $to - 0.5, made => $to + 0.1), $to + 0.2, 0.3); }

# It has a token as if it had been granted when others were that ZooKeeper has lost
sub _of_lost_epoch { my ($h, $at) = @_; return _hold(_operation($h, 7, asked => $at, token => (2 << 32) + 99, node => 0), $at + 0.1, 0.2); }

# It is hit by something that cannot end its session: a third of the 2 s may have
# passed before, and one is for a busy machine.
sub _moment
{
	my ($h, $op) = @_;
	my $from = $op->{begin} - 0.1;
	my @hit = rand() < 0.5 ? (worker => $op->{worker}) : (server => $op->{server} // 1 + $op->{worker} % 2);
	return _fault($h, 0, 200, kind => (qw(delay slow_sync))[ rand 2 ], ms => int _between(20, 166), @hit) if $hit[0] eq 'server' && rand() < 0.3;
	my @kinds = $hit[0] eq 'worker' ? qw(backend_stop backend_pause keeper_stop) : qw(follower_stop leader_stop cut link_one_way blackhole one_way);
	return _fault($h, $from, $from + _between(0.05, 0.33), kind => $kinds[ rand @kinds ], @hit);
}

# What explains certain errors only
sub _minor
{
	my ($h, $op, @kinds) = @_;
	return _fault($h, $op->{left} - 0.1, $op->{left}, kind => $kinds[ rand @kinds ],
		worker => $op->{worker}, object => $op->{object}, cluster => $op->{worker} % 2);
}

# None of the faults that the history has anyway is of this kind
sub _no_acl { my ($h) = @_; @{ $h->{faults} } = grep { $_->{kind} ne 'acl' } @{ $h->{faults} }; return; }

# Those of an object, in the order of their requests
sub _of { my ($h, $object, $part) = @_; return grep { $_->{object} == $object && (!defined $part || $_->{part} eq $part) } @{ $h->{ops} }; }

# Two of them, the one right before the other
sub _before
{
	my ($h, @parts) = @_;
	my @ops = grep { $_->{part} ne 'downgraded' } _of($h, 3);
	my @first = grep { $ops[$_]{part} eq $parts[0] && $ops[ $_ + 1 ]{part} eq $parts[1] } 0 .. $#ops - 1;
	my $first = $first[ rand @first ];
	return @ops[ $first, $first + 1 ];
}

sub _writer_and_reader { my ($h) = @_; return _before($h, 'writer', 'reader'); }

sub _fails
{
	my ($h, $op, $state) = @_;
	@$op{qw(phase state how)} = ('failed', $state, 'failed');
	$op->{row} = 0;
	return;
}

# It is not there, although it was told that it is
sub _vanishes { my ($op) = @_; delete $op->{history}; $op->{row} = 0; return; }

sub plants { return sort keys %PLANT; }

# The checker after it has judged the history of this seed, with what is planted in it
sub judge
{
	my ($seed, $plant) = @_;
	srand $seed;
	my $h = _history($plant // '');
	if (defined $plant) { $PLANT{$plant}->($h, _neighbors($h)); }
	srand;
	return tell_all($h);
}

# The checker after it has judged a history { ops, faults, workers, final, end, at_standby, pooled }
sub tell_all
{
	my ($h) = @_;
	my $checker = Torture::Checker->new(session_timeout => 2, tick => 0.5, homes => { map { $_ => $_ % 2 } 1 .. $h->{workers} }, map { $_ => $h->{$_} // {} } qw(at_standby pooled foreign));
	my @events = ([ $h->{end} // 310, 'torture', 0, 'clock', 'last', 0, { epoch => $h->{end} // 310 } ]);
	push @events, [ 305, 'listener0', 0, 'listen', 'end', 0, { cluster => 0, since => 0, until => 305 } ];
	foreach my $fault (@{ $h->{faults} })
	{
		push @events, map { [ $fault->{$_}, 'nemesis', $fault->{number}, 'fault', $_, 0, $fault ] } qw(begin end);
	}
	foreach my $op (@{ $h->{ops} })
	{
		my ($object, $begin, $left) = @$op{qw(object begin left)};
		my $tell = sub { my ($time, @event) = @_; push @events, [ $time, $op->{worker}, $op->{op}, @event[ 0, 1 ], $object, $event[2] // {} ]; };
		my %hold = map { $_ => $op->{$_} } qw(asked weight limit mode from group kind);
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
			$tell->($begin, 'hold', 'begin', \%hold);
			$tell->($begin + 0.0001, 'hold', 'token', { token => $op->{token_told} // $op->{token} });
			$tell->($op->{commits} // $left, 'commit', 'invoked') unless $op->{never_commits};
			my %aside = (cluster => 0, map({ $_ => $op->{$_} } qw(notifies warning)), defined $op->{abroad} ? (abroad => 0) : ());
			$tell->($op->{end} - 0.00005, 'heard', 'ok') for 1 .. $op->{heard} // 0;
			$tell->($op->{commit_answered} // $op->{end} - 0.0001, 'commit', $op->{hangs} ? 'hangs' : $op->{phase}, { state => $op->{state}, message => '', %aside })
			  unless $op->{never_commits};
			$tell->($op->{end}, 'hold', 'end', { how => $op->{how}, left => $left });
		}
		if ($op->{row} // defined $begin)
		{
			my $token = $op->{row_token} // $op->{token};
			$checker->history({
				op => $op->{op}, object => $object, worker => $op->{worker}, hold => $op->{op}, cluster => $op->{worker} % 2,
				token => $token eq 'none' ? undef : $token, granted => $op->{granted} // ($object == 1 ? $op->{committed} - 0.005 : $begin + 0.001),
				committed => $op->{committed}, %{ $op->{history} // {} } });
		}
		$checker->abroad({ op => $op->{op}, object => $object, worker => $op->{worker}, hold => $op->{op}, committed => $_, cluster => 0 })
		  for grep { $_ } @$op{qw(abroad stray)};
		$checker->logged($op->{token}, $op->{made}, $op->{alone}) if $op->{node} || $op->{alone};
		$checker->node({
			object => $object, czxid => $op->{token}, session => $op->{session}, mode => $op->{mode}, made => $op->{made}, shared => $op->{shared}, gone => $op->{gone},
			how => $op->{went}, by => $op->{by} // $op->{session}, $op->{waits} ? (worker => $op->{worker}) : () }) if $op->{node};
		$checker->node({ object => $object, mode => $op->{mode}, worker => $op->{worker}, by => '', how => 'expiry', %$_ }) for @{ $op->{lost} // [] };
		$checker->connection($op->{session}, $op->{server} // 1 + $op->{worker} % 2, 0, $h->{end} // 310);
	}
	$checker->logged(@$_) for @{ $h->{logged} // [] };
	$checker->event(@$_) for sort { $a->[0] <=> $b->[0] } @events;
	$checker->object($_) for values %{ $h->{final} // {} };
	$checker->finish;
	return $checker;
}

1;
