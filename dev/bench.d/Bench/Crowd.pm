
=pod

=head1 NAME

Bench::Crowd - scene (f): one lock with a thousand waiters

=head1 SYNOPSIS

  my $tables = Bench::Crowd::run($bench);

=head1 DESCRIPTION

One client holds the lock. N clients, each with a session of its own, begin to
wait for it, and nothing else happens until all of them are in the queue. Then
the lock is released, and each of them in turn acquires it, releases it at once
and does not come back. A handover is the time from one client's call of release
to the return of the next one's wait.

Messages and bytes are counted by a relay (F<dev/bench.d/count.c>) between
clients and server; times are taken without it, with other clients. Of a queue
of a thousand only the first handovers count as "1,000 waiting": the later ones
have fewer waiters.

While all of them wait and nothing happens, the server's transactions are counted,
and once more while each of zklock's clients has a lock of its own.

Only one subject at a time is counted or timed, since a thousand clients of each
of three kinds would overload the machine. Its queues of 10, 100 and 1,000 take
turns, and all its clients stay connected.

=cut

package Bench::Crowd;

use strict;
use warnings;
use List::Util qw(max min sum);
use Time::HiRes qw(clock_gettime sleep time CLOCK_MONOTONIC);

use Bench;

our $PATIENCE = 300;    # seconds, for any wait

# clients of one runner: zklock's are threads, which do not disturb each other;
# another JVM would take a while to warm up
our %PER_PROGRAM = (zklock => 250, curator => 1000, kazoo => 1000);

my @SUBJECTS = qw(zklock curator kazoo);
my %NAME = (zklock => 'zklock', curator => 'Curator', kazoo => 'kazoo');

sub run
{
	my ($bench) = @_;
	my @sizes = $bench->quick ? (10, 50, 250) : (10, 100, 1000);
	my (%counted, %timed, @idle, @notes);

	foreach my $subject (@SUBJECTS)
	{
		if (!$bench->has($subject))
		{
			push @notes, "$NAME{$subject} is left out: " . $bench->missing($subject);
			next;
		}
		# as many as the subject and the machine can cope with
		my @possible = @sizes;
		while (@possible)
		{
			$bench->say("(f) $subject, up to $possible[-1] waiting");
			last if eval {
				$counted{$subject} = _count_all($bench, $subject, @possible);
				($timed{$subject}, my @rows) = _time_all($bench, $subject, @possible);
				push @idle, @rows;
				1;
			};
			die $@ if $subject eq 'zklock';
			my ($why) = $@ =~ /^(.{1,200})/;
			push @notes, "$NAME{$subject} could not be had with $possible[-1] waiting: $why";
			pop @possible;
		}
	}

	my @tables = (_count_table($bench, \%counted, \@notes), _time_table($bench, \%timed, @sizes), _idle_table($bench, @idle));
	_goals($bench, $counted{zklock}, $timed{zklock}, @sizes);
	push @tables, _semaphore($bench);
	return \@tables;
}

# ------------------------------------------------------------------- a crowd

# This many clients, connected
sub _crowd
{
	my ($bench, $subject, $n, $hosts) = @_;
	my $crowd = { bench => $bench, subject => $subject, hosts => $hosts, parts => [] };
	_grow($crowd, $n);
	return $crowd;
}

# Have this many clients, at least as many as before
sub _grow
{
	my ($crowd, $n) = @_;
	my ($bench, $subject, $parts) = @{$crowd}{qw(bench subject parts)};
	my %opt = (hosts => $crowd->{hosts});
	$opt{cluster} = $bench->cluster('crowd', max_connections => 1200, shared_buffers => '16MB')
	  if $subject eq 'zklock';
	my $most = $PER_PROGRAM{$subject};
	for (my ($i, $left) = (0, $n); $left > 0; ++$i, $left -= $most)
	{
		$parts->[$i] //= { runner => $bench->runner($subject, %opt) };
		$parts->[$i]{n} = min($left, $most);
	}
	$_->{runner}->send("clients $_->{n}") for @$parts;
	$_->{runner}->answer($PATIENCE) for @$parts;
	$crowd->{n} = $n;
	return;
}

sub _disperse
{
	my ($crowd) = @_;
	$_->{runner}->quit for @{ $crowd->{parts} };
	return;
}

sub _now { return clock_gettime(CLOCK_MONOTONIC) * 1e9; }

# One queue that forms and is drained.  Returns
#   formed      ns until all of them were in the queue
#   handovers   [ns, ...], the first with all but one waiting
#   drain       ns from the first release to the return of the last
# at_ease is called once all are in the queue, before the first release.
my $last_path = 0;

sub _drain
{
	my ($crowd, $at_ease) = @_;
	my ($bench, $n) = @{$crowd}{qw(bench n)};
	my $path = "/zklock/bench/crowd/$crowd->{subject}-" . ++$last_path;
	my $holder = $bench->taken($crowd->{subject}, $path);

	my $since = _now();
	$_->{runner}->send("hand $path $_->{n} 1") for @{ $crowd->{parts} };
	my $deadline = time + $PATIENCE;
	until ((my @nodes = $holder->children($path)) == $n + 1)
	{
		die "not all of $n stand at the lock\n" if time > $deadline;
		sleep 0.02;
	}
	my $formed = _now() - $since;
	_until_quiet($bench);
	$at_ease->() if $at_ease;

	my $release = _now();
	$holder->close;
	my @holds = sort { $a->[1] <=> $b->[1] }
	  map { pairs($_->{runner}->answer($PATIENCE)) } @{ $crowd->{parts} };
	die scalar(@holds) . " of $n had the lock\n" if @holds != $n;
	my @handovers;
	foreach my $i (1 .. $#holds)
	{
		my $ns = $holds[$i][1] - $holds[ $i - 1 ][2];
		die "two had the lock at once\n" if $ns < 0;
		push @handovers, $ns;
	}
	return { formed => $formed, handovers => \@handovers, drain => $holds[-1][1] - $release };
}

# They are in the queue and watch: only heartbeats are sent.
sub _until_quiet
{
	my ($bench) = @_;
	my $deadline = time + $PATIENCE;
	my ($watches, $same) = (-1, 0);
	while ($same < 3)
	{
		die "no end of new watches\n" if time > $deadline;
		sleep 0.1;
		my $now = $bench->zk->watch_count;
		$same = $now == $watches ? $same + 1 : 0;
		$watches = $now;
	}
	return;
}

# Transactions of the server in a second, while nobody does anything
sub _writes
{
	my ($bench) = @_;
	my $seconds = $bench->quick ? 5 : 20;
	my ($before, $since) = ($bench->zxid, time);
	sleep $seconds;
	return ($bench->zxid - $before) / (time - $since);
}

# Each client of the crowd has a lock of its own, until it is dispersed.
sub _all_hold
{
	my ($crowd) = @_;
	my $i = 0;
	$_->{runner}->send('hold /zklock/bench/crowd/held-' . ++$i . " $_->{n}") for @{ $crowd->{parts} };
	$_->{runner}->answer($PATIENCE) for @{ $crowd->{parts} };
	return;
}

# ------------------------------------------------------------------ counting

sub _count_all
{
	my ($bench, $subject, @sizes) = @_;
	my $program = $bench->dir . '/bin/count';
	my $source = $INC{'Bench/Crowd.pm'} =~ s{Bench/Crowd\.pm$}{count.c}r;
	system('gcc', '-O2', '-Wall', '-o', $program, $source) == 0 or die "could not compile $source\n";
	my $relay = Bench::Runner->new('count', $bench->dir . '/count.log', {}, $program, $bench->zk->hosts);
	my ($port) = $relay->ask('port');

	my %result;
	my $crowd = _crowd($bench, $subject, 1, "127.0.0.1:$port");
	foreach my $n (@sizes)
	{
		_grow($crowd, $n);
		_drain($crowd);    # what they do only once is done
		my $forming;
		$relay->ask('clear');
		_drain(
			$crowd,
			sub {
				$forming = _counts($relay);
				$relay->ask('clear');
			});
		sleep 0.5;         # deletes that nobody waits for
		$result{$n} = { forming => $forming, draining => _counts($relay) };
	}
	_disperse($crowd);
	$relay->quit;
	return \%result;
}

# { kind => [ sent, bytes, answers, bytes ] }
sub _counts
{
	my ($relay) = @_;
	return { map { my ($kind, @numbers) = split /:/; ($kind => \@numbers) } $relay->ask('counts') };
}

# bytes of everything that concerns the lock
sub _bytes
{
	my ($counts) = @_;
	return sum(map { $_->[1] + $_->[3] } map { $counts->{$_} } grep { !/^(?:heartbeat|session)$/ } keys %$counts);
}

sub _count_table
{
	my ($bench, $counted, $notes) = @_;
	my @rows;
	foreach my $subject (grep { $counted->{$_} } @SUBJECTS)
	{
		foreach my $n (sort { $a <=> $b } keys %{ $counted->{$subject} })
		{
			my ($forming, $c) = @{ $counted->{$subject}{$n} }{qw(forming draining)};
			my $others = sum(map { $c->{$_}[0] } qw(create exists getData multi sync other));
			push @rows,
			  [
				$NAME{$subject}, $n,
				map({ sprintf '%.2f', $_ / $n } $c->{event}[2], $c->{own}[2], $c->{list}[0], $c->{delete}[0], $c->{unwatch}[0], $others),
				_kilobytes(_bytes($c) / $n), _kilobytes($c->{list}[3] / $n),
				_kilobytes(_bytes($forming) / $n),
				sprintf('%.1f MB', (_bytes($c) + _bytes($forming)) / 1e6)
			  ];
		}
	}
	return $bench->table(
		'(f) One lock with many waiters: what goes over the wire for each handover',
		[ 'subject', 'waiting', 'notifications', 'of own deletes', 'lists', 'deletes', 'watches taken back', 'other requests', 'bytes', 'of them lists', 'bytes to come and wait', 'all, to form and drain' ],
		\@rows,
		notes => [
			'Means over a whole queue, from all waiting to nobody. Bytes are both ways, of ZooKeeper\'s frames, without heartbeats.',
			'Notifications of own deletes come right before the answer to the delete, and wake nobody.',
			'A list has a name of some 50 bytes for everybody who waits. Each one who comes and each handover needs one, so that the bytes of a queue that forms and drains grow with the square of its length. ZooKeeper has no request for one\'s neighbor alone.',
			@$notes
		]);
}

sub _kilobytes { return sprintf $_[0] < 10_000 ? '%.1f kB' : '%.0f kB', $_[0] / 1000; }

# -------------------------------------------------------------------- timing

# Returns { size => { early => [ [ns], ... ], drain => [ [ns], ... ], formed =>
# ... } }, with an entry for each repetition; and rows of _idle_table
sub _time_all
{
	my ($bench, $subject, @sizes) = @_;
	my $repetitions = $bench->quick ? 2 : min($bench->repetitions, 3);
	my %crowd = map { $_ => _crowd($bench, $subject, $_, $bench->hosts) } @sizes;
	my (%result, @idle);
	foreach my $repetition (0 .. $repetitions)
	{
		my @turn = @sizes;
		push @turn, splice @turn, 0, $repetition % @turn;
		foreach my $n (@turn)
		{
			# short queues many times, so that each size has some hundred
			# handovers
			my (@early, @drain, @formed);
			foreach (1 .. max(1, min(10, int 100 / $n)))
			{
				my $last = !$repetition && $n == $sizes[-1] && !@idle;
				my $queue = _drain($crowd{$n}, $last ? sub { push @idle, [ $subject, $n, 'wait for one lock', _writes($bench) ]; } : undef);
				my @handovers = @{ $queue->{handovers} };
				push @early, @handovers[ 0 .. max(5, int $n / 10) - 1 ];
				push @drain, $queue->{drain};
				push @formed, $queue->{formed};
			}
			next unless $repetition;    # for warming up
			push @{ $result{$n}{early} }, \@early;
			push @{ $result{$n}{drain} }, \@drain;
			push @{ $result{$n}{formed} }, \@formed;
		}
	}
	if ($subject eq 'zklock')
	{
		_all_hold($crowd{ $sizes[-1] });
		push @idle, [ $subject, $sizes[-1], 'hold a lock each', _writes($bench) ];
	}
	_disperse($_) for values %crowd;
	$bench->raw("(f) $subject $_ waiting, ns per handover", $result{$_}{early}) for @sizes;
	return (\%result, @idle);
}

sub _idle_table
{
	my ($bench, @idle) = @_;
	my @rows;
	foreach (@idle)
	{
		my ($subject, $n, $what, $writes) = @$_;
		push @rows, [ $NAME{$subject}, $n, $what, sprintf '%.2f', $writes ];
		$bench->goal("(f) transactions a second of $n that $what", sprintf('%.2f', $writes), 2) if $subject eq 'zklock';
	}
	return $bench->table(
		'(f) Many sessions that do nothing: what they write',
		[ 'subject', 'sessions', 'they', 'transactions a second' ],
		\@rows,
		notes => ["Of the server, by its zxid; session timeout $Bench::SESSION_TIMEOUT ms. Heartbeats of Curator and kazoo are ZooKeeper's pings, which write nothing whatever the session has."]);
}

sub _time_table
{
	my ($bench, $timed, @sizes) = @_;
	my (@rows, @lines);
	foreach my $subject (grep { $timed->{$_} } @SUBJECTS)
	{
		my @line;
		foreach my $n (sort { $a <=> $b } keys %{ $timed->{$subject} })
		{
			my $t = $timed->{$subject}{$n};
			my @early = map { @$_ } @{ $t->{early} };
			my $ratio = ratio($t->{early}, $timed->{$subject}{ $sizes[0] }{early});
			my $drain = median(map { @$_ } @{ $t->{drain} });
			push @rows,
			  [
				$NAME{$subject}, $n,
				map({ microseconds(percentile($_, @early)) } 50, 95, 99),
				sprintf('%.2f (%.2f–%.2f)', @{$ratio}{qw(median min max)}),
				sprintf('%.3f s', $drain / 1e9),
				microseconds($drain / $n),
				sprintf('%.3f s', median(map { @$_ } @{ $t->{formed} }) / 1e9)
			  ];
			push @line, [ $n, median(@early) / 1000 ];
		}
		push @lines, [ $NAME{$subject}, @line ];
	}
	$bench->plot(
		title => '(f) handover with so many waiting',
		kind => 'lines', log_x => 1, log => 1,
		x_label => 'waiting', y_label => 'µs',
		lines => \@lines) if @lines;
	return $bench->table(
		'(f) One lock with many waiters: time per handover',
		[ 'subject', 'waiting', 'median µs', '95 %', '99 %', "times that of $sizes[0]", 'whole queue', 'of it, µs for each', 'all are there after' ],
		\@rows,
		notes => [
			'From one client\'s call of the release to the return of the next one\'s wait; the first tenth of the handovers of each queue, the first five of ten. All clients stay connected: their heartbeats are in it.',
			"Clients are threads (zklock: each with a backend of its own, $PER_PROGRAM{zklock} threads to a program; Curator: of one JVM) or processes (kazoo). One subject at a time; its queues of different length in turn.",
		]);
}

# ----------------------------------------------------------------- a semaphore

# One of 30 holders gives its place back, with 60 waiting: what all of them request
# until the next has its place and nothing more happens
sub _semaphore
{
	my ($bench) = @_;
	my ($places, $waiting, $releases) = (30, 60, 10);
	my $path = '/bench/crowd/semaphore';
	my $proxy = $bench->proxy;
	my $client = $bench->zk->client;
	my $node = $bench->cluster('crowd', max_connections => 1200, shared_buffers => '16MB');
	my @queue = map { Zklock::zk_session($node, options => '-c zklock.session_timeout=1h -c zklock.hosts=' . $proxy->hosts) } 1 .. $places + $waiting;

	$bench->say("(f) a semaphore of $places with $waiting waiting");
	foreach my $at (0 .. $#queue)
	{
		$queue[$at]->send("SELECT zk_semaphore_acquire('$path', $places)");
		$queue[$at]->wait if $at < $places;
		sleep 0.01 until (my @nodes = $client->children("/zklock$path")) > $at;    # in this order
	}
	$client->close;
	_until_quiet($bench);
	$proxy->clear_log;
	my @gone;
	foreach (1 .. $releases)
	{
		push @gone, shift @queue;
		$gone[-1]->value('SELECT zk_unlock_all()');
		$queue[ $places - 1 ]->wait;
		_until_quiet($bench);
	}
	my @requests = map { s/ .*//r } $proxy->requests;
	foreach my $session (@queue)
	{
		$session->wait if $session->{mark};
		$session->value('SELECT zk_unlock_all()');
	}
	$_->quit for @gone, @queue;
	$proxy->stop;

	my %n;
	$n{$_}++ for @requests;
	$bench->goal("(f) requests for a release of a semaphore of $places with $waiting waiting", sprintf('%.2f', @requests / $releases), 4);
	return $bench->table(
		"(f) A semaphore of $places places with $waiting waiting: what a release costs",
		[ 'request', 'for each release' ],
		[ map { [ $_, sprintf '%.2f', $n{$_} / $releases ] } sort keys %n ],
		notes => ["Means of $releases releases, of all clients together, counted by a proxy; heartbeats are left out."]);
}

sub _goals
{
	my ($bench, $counted, $timed, @sizes) = @_;
	my $most = sub {
		my ($get) = @_;
		return max(map { sprintf '%.2f', $get->($counted->{$_}{draining}) / $_ } keys %$counted);
	};
	$bench->goal('(f) notifications per handover', $most->(sub { $_[0]{event}[2] }), 2);
	$bench->goal('(f) lists per handover', $most->(sub { $_[0]{list}[0] }), 1);
	my $ratio = ratio($timed->{ $sizes[-1] }{early}, $timed->{ $sizes[0] }{early});
	$bench->goal("(f) time per handover with $sizes[-1] waiting, in that with $sizes[0]", $ratio && $ratio->{median}, 3);
	return;
}

1;
