
=pod

=head1 NAME

Bench::Scenes - what dev/bench measures of single locks: scenes a to e, h and i

=head1 SYNOPSIS

  $Bench::Scenes::SCENES{a}->($bench);

=head1 DESCRIPTION

Each scene is a sub that takes a Bench and adds tables, goals and panels of the
plot to it.  See L<Bench> for how repetitions are interleaved.

=cut

package Bench::Scenes;

use strict;
use warnings;
use List::Util qw(max min sum);
use Time::HiRes qw(time);

use Bench;

our %SCENES = (a => \&free, b => \&handover, c => \&try, d => \&several, e => \&throughput, h => \&guard, i => \&elsewhere);

my @ZKLOCK = qw(zklock zklock-plpgsql zklock-xact);
my @OTHERS = qw(curator kazoo recipe floor-st floor-corked floor-mt);
my $BARE = 'floor-bare';    # in scene (a)

sub _title
{
	my ($where) = @_;
	my ($which, $delayed) = split / /, $where;
	return $Bench::PLACE{$which} . ($delayed ? ", $Bench::DELAY ms each way" : '');
}

# those that are available
sub _there
{
	my ($bench, @subjects) = @_;
	return grep { $bench->has($_) } @subjects;
}

# Runners of these subjects by their names, which stay for the next scene.  The
# delay is set only later, so that they warm up fast.
sub _start
{
	my ($bench, $where, @subjects) = @_;
	$bench->delay($where, 0);
	return { map { $_ => $bench->{runners}{$where}{$_} //= $bench->runner($_, hosts => $bench->hosts($where)) } _there($bench, @subjects) };
}

# The scene is over: close its clients, except the one that the next scene
# needs.
sub _end
{
	my ($bench, $where, $runner) = @_;
	$bench->delay($where, 0);
	$_->ask('clients 0') for values %$runner;
	return;
}

# Those that support this scene: each is sent "$scene $path/SUBJECT $arguments",
# and one that refuses is left out.  WARM in the arguments becomes the number of
# rounds for warming up.
sub _able
{
	my ($bench, $runner, $scene, $path, $arguments) = @_;
	my @able;
	foreach my $subject (sort keys %$runner)
	{
		my $line = "$scene $path/$subject " . $arguments =~ s/WARM/$bench->warm/er;
		if (eval { $runner->{$subject}->ask($line); 1 }) { push @able, $subject; }
		elsif ($@ !~ /no such scene/) { die $@; }
	}
	my %able = map { $_ => 1 } @able;
	return grep { $able{$_} } @ZKLOCK, @OTHERS, $BARE, 'advisory';
}

# more repetitions of short scenes, and fewer of long ones
sub _repetitions { my ($bench, $times) = @_; return max(min(3, $bench->repetitions), int($times * $bench->repetitions + 0.5)); }

sub _flat { return map { @$_ } @{ $_[0] }; }

sub _percentiles { my @values = @_; return map { microseconds(percentile($_, @values)) } 50, 95, 99; }

sub _ratio
{
	my ($ratio) = @_;
	return $ratio ? sprintf('%.2f (%.2f–%.2f)', @$ratio{qw(median low high)}) : '';
}

sub _against { my ($ns, $mine, $other) = @_; return _ratio(ratio($ns->{$mine}, $ns->{$other})); }

# A row for each variant of zklock, a column for each other subject
sub _ratios
{
	my ($bench, $title, $ns) = @_;
	my @mine = grep { $ns->{$_} } @ZKLOCK;
	my @others = grep { $ns->{$_} } @OTHERS, $BARE;
	return unless @mine && @others;
	$bench->table("$title: ratios", [ 'against', @others ],
		[ map { my $mine = $_; [ $mine, map { _ratio(ratio($ns->{$mine}, $ns->{$_})) } @others ] } @mine ],
		notes => ['The median of the ratios of the repetitions, and in brackets the range of the middle half of them.']);
	return;
}

sub _value { my ($ratio) = @_; return $ratio ? $ratio->{median} : undef; }

# the floor on the library that zklock is linked with
sub _floor { return 'floor-' . $_[0]->client_library; }

# ------------------------------------------------------- (a) acquire and release

sub free
{
	my ($bench) = @_;
	my @bars;
	foreach my $where ($bench->places)
	{
		my $delayed = $where =~ /delayed/;
		my $rounds = $bench->rounds($delayed ? 7 : 200);
		my $repetitions = _repetitions($bench, $delayed ? 1.3 : 2);
		my $title = '(a) a free lock, ' . _title($where);
		$bench->say($title);

		my $runner = _start($bench, $where, @ZKLOCK, @OTHERS, $BARE, $delayed ? () : 'advisory');
		my $path = '/zklock/bench/a';
		my @subjects = _able($bench, $runner, 'free', $path, 'WARM');
		$bench->delay($where, $Bench::DELAY);
		my $trip = $bench->round_trip($where);

		my %part;
		my $both = $bench->interleave(
			\@subjects,
			$repetitions,
			sub {
				my ($subject, $repetition) = @_;
				my @pairs = pairs($runner->{$subject}->ask("free $path/$subject $rounds"));
				$bench->settle($where);
				foreach my $i (0, 1)
				{
					push @{ $part{$i}{$subject} }, [ map { $_->[$i] } @pairs ] if $repetition;
				}
				return map { $_->[0] + $_->[1] } @pairs;
			});
		_end($bench, $where, $runner);

		$bench->raw("a\t$where\t$_", $both->{$_}) for @subjects;
		$bench->table(
			$title,
			[ 'µs', map { my $what = $_; map { "$what $_ %" } 50, 95, 99 } qw(acquire release both) ],
			[
				map {
					my $subject = $_;
					[ $subject, map { _percentiles(_flat($_->{$subject})) } $part{0}, $part{1}, $both ]
				} @subjects
			],
			notes => [
				sprintf('%d repetitions of %d rounds. One round trip, measured by a read: %s µs.', $repetitions, $rounds, microseconds($trip))
			]);
		_ratios($bench, $title, $both);
		push @bars, [ $where, [ map { [ $_, _bar(_flat($both->{$_})) ] } @subjects ] ];

		my $there = _title($where);
		if (!$delayed)
		{
			foreach my $mine (qw(zklock zklock-plpgsql))
			{
				my $inside = $mine eq 'zklock-plpgsql';
				foreach ([ 'curator', $inside ? 0.75 : 0.85 ], [ 'kazoo', $inside ? 0.40 : 0.43 ], [ _floor($bench), $inside ? 0.90 : 1.10 ])
				{
					my ($other, $limit) = @$_;
					$bench->goal("(a) $there: $mine against $other", _value(ratio($both->{$mine}, $both->{$other})), $limit);
				}
			}
			next;
		}
		foreach ([ 'zklock', 'curator', 0.68 ], [ 'zklock', 'kazoo', 0.51 ], [ 'zklock-xact', 'curator', 0.36 ])
		{
			my ($mine, $other, $limit) = @$_;
			$bench->goal("(a) $there: $mine against $other", _value(ratio($both->{$mine}, $both->{$other})), $limit);
		}
	}
	_alternating($bench) if $bench->has('zklock') && !$bench->{elsewhere};
	foreach (@bars)
	{
		my ($where, $bars) = @$_;
		my $unit = $where =~ /delayed/ ? 'ms' : 'µs';
		$bench->plot(
			kind => 'bars',
			title => '(a) acquire and release a free lock, ' . _title($where),
			y_label => $unit,
			bars => [ map { my ($label, @v) = @$_; [ $label, map { $_ / ($unit eq 'ms' ? 1e6 : 1e3) } @v ] } @$bars ]);
	}
	return;
}

# Two sessions that take and release one lock in turn, beside one alone: where the
# other one's node is in between, the queue must be listed, and that shall not cost a
# round trip more than if it were listed always: two, with the release's.
sub _alternating
{
	my ($bench) = @_;
	my $title = "(a) two sessions that alternate, $Bench::DELAY ms each way";
	my $rounds = max(4, $bench->rounds(20));
	my @proxy = map { $bench->proxy(undef, delay_ms => $Bench::DELAY) } 1 .. 2;
	my @runner = map { $bench->runner('zklock', hosts => $_->hosts) } @proxy;
	my %trips;
	my @rows;
	$bench->say($title);
	foreach my $who ('alone', 'alternating')
	{
		my $path = "/zklock/bench/a/$who";
		my @turn = $who eq 'alone' ? (0) : (0, 1);
		my (@acquire, @trips, %asked);
		$runner[$_]->ask("free $path 3") for @turn;
		foreach my $round (1 .. $rounds)
		{
			foreach my $i (@turn)
			{
				$proxy[$i]->clear_log;
				push @acquire, map { $_->[0] } pairs($runner[$i]->ask("free $path 1"));
				push @trips, $proxy[$i]->trips;
				$asked{ _short(map { s/ .*//r } $proxy[$i]->requests) }++;
			}
		}
		$trips{$who} = max(@trips[ @turn .. $#trips ]);    # the first may have been alone
		push @rows, [ $who, microseconds(median(@acquire)), $trips{$who}, join(', ', map { "$asked{$_} × $_" } sort keys %asked) ];
	}
	$_->quit for @runner;
	$_->stop for @proxy;
	$bench->table($title, [ '', 'acquire 50 %, µs', 'round trips', 'requests' ], \@rows,
		notes => ['The round trips of acquire and release, one after another, counted; the most in any round but the first.']);
	$bench->goal('(a) two sessions that alternate: round trips, counted', $trips{alternating}, 2);
	return;
}

# median, and 95th percentile
sub _bar { my @values = @_; return (percentile(50, @values), percentile(5, @values), percentile(95, @values)); }

# ---------------------------------------------------------------- (b) handover

# The times from the call of release to the return of the next acquire, from
# entries ASKED:GOT:RELEASE:RELEASED.  The queue has N contenders only in the
# middle: it builds up at the beginning, and clients leave it at the end when
# they have finished.
sub handovers
{
	my ($n, @entries) = @_;
	my @holds = sort { $a->[1] <=> $b->[1] } map { [ split /:/ ] } @entries;
	my @between;
	foreach my $i (1 .. $#holds)
	{
		push @between, $holds[$i][1] - $holds[ $i - 1 ][2];
		die "two held it at once\n" if $between[-1] < 0;
	}
	my $edge = @between > 4 * $n ? $n : int(@between / 4);
	return @between[ $edge .. $#between - $edge ];
}

sub handover
{
	my ($bench) = @_;
	my %line;
	foreach my $where ($bench->places)
	{
		my $delayed = $where =~ /delayed/;
		my $there = _title($where);
		my $runner;
		my @rows;
		# behind the delay only the size with a goal, since it is slow
		foreach my $n ($delayed || $bench->{elsewhere} ? 16 : (2, 16, 64))
		{
			my $rounds = max($n == 2 ? 10 : $n == 16 ? 4 : 3, int($bench->rounds(160) / $n + 0.5));
			$bench->say("(b) handover among $n, $there");
			$runner //= _start($bench, $where, @ZKLOCK, @OTHERS, $delayed ? () : 'advisory');
			my $path = '/zklock/bench/b';
			my @subjects = _able($bench, $runner, 'hand', $path, $n == 2 || $delayed ? "$n " . max(2, int($bench->warm / $n)) : "$n 4");
			$bench->delay($where, $Bench::DELAY);
			my $ns = $bench->interleave(
				\@subjects,
				_repetitions($bench, $delayed ? 0.3 : $n == 16 ? 1.5 : 1),
				sub {
					my ($subject) = @_;
					my @entries = $runner->{$subject}->ask("hand $path/$subject $n $rounds");
					$bench->settle($where);
					return handovers($n, @entries);
				});
			$bench->raw("b\t$where $n\t$_", $ns->{$_}) for @subjects;
			foreach my $subject (@subjects)
			{
				push @rows, [ $n, $subject, _percentiles(_flat($ns->{$subject})), map { _ratio(ratio($ns->{$_}, $ns->{$subject})) } @ZKLOCK ];
				push @{ $line{$where}{$subject} }, [ $n, median(_flat($ns->{$subject})) / 1000 ];
			}
			next unless $n == 16;
			foreach my $mine (qw(zklock zklock-plpgsql))
			{
				$bench->goal("(b) $there, 16 contenders: $mine against curator", _value(ratio($ns->{$mine}, $ns->{curator})),
					$delayed ? 0.55 : $mine eq 'zklock-plpgsql' ? 0.80 : 0.95);
				$bench->goal("(b) $there, 16 contenders: $mine against kazoo", _value(ratio($ns->{$mine}, $ns->{kazoo})), 0.50);
			}
		}
		_end($bench, $where, $runner);
		$bench->table("(b) handover, $there", [ 'contenders', 'µs', '50 %', '95 %', '99 %', map { "$_ against it" } @ZKLOCK ],
			\@rows, notes => ['From the call of a release to the return of the next acquire, in another session.']);
	}
	foreach my $where (grep { !/delayed/ } sort keys %line)
	{
		$bench->plot(
			kind => 'lines',
			title => '(b) handover, median, ' . _title($where),
			x_label => 'contenders', y_label => 'µs', log_x => 1, log => 1,
			lines => [ map { [ $_, @{ $line{$where}{$_} } ] } sort keys %{ $line{$where} } ]);
	}
	return;
}

# --------------------------------------------------------------- (c) try in vain

sub try
{
	my ($bench) = @_;
	foreach my $where ($bench->places)
	{
		my $delayed = $where =~ /delayed/;
		my ($which) = split / /, $where;
		my $rounds = $bench->rounds($delayed ? 7 : 200);
		my $repetitions = _repetitions($bench, $delayed ? 1 : 2);
		my $there = _title($where);
		my $title = "(c) a try that finds the lock taken, $there";
		$bench->say($title);

		my $runner = _start($bench, $where, 'zklock', 'zklock-xact', @OTHERS, $delayed ? () : 'advisory');
		my $path = '/zklock/bench/c';
		my %holder = map { $_ => $bench->taken($_, "$path/$_", $which) } grep { $_ ne 'advisory' } keys %$runner;
		my $node = $bench->cluster('bench');
		my $local = Zklock::zk_session($node);
		$local->value("SELECT pg_advisory_lock(hashtextextended('/bench/c/advisory', 0))");

		my @subjects = _able($bench, $runner, 'try', $path, 'WARM');
		$bench->delay($where, $Bench::DELAY);
		my $writes = 0;
		my $ns = $bench->interleave(
			\@subjects,
			$repetitions,
			sub {
				my ($subject) = @_;
				$_->ping for values %holder;
				my $before = $bench->zxid($which);
				my @ns = numbers($runner->{$subject}->ask("try $path/$subject $rounds"));
				$writes += $bench->zxid($which) - $before if $subject =~ /^zklock/;
				$bench->settle($where);
				return @ns;
			});
		_end($bench, $where, $runner);
		$_->close for values %holder;
		$local->quit;

		$bench->raw("c\t$where\t$_", $ns->{$_}) for @subjects;
		$bench->table($title, [ 'µs', '50 %', '95 %', '99 %', 'zklock against it' ],
			[ map { [ $_, _percentiles(_flat($ns->{$_})), _against($ns, 'zklock', $_) ] } @subjects ],
			notes => [ sprintf '%d repetitions of %d tries. Transactions that the server made for those of zklock: %d.', $repetitions, $rounds, $writes ]);
		$bench->goal("(c) $there: zklock against curator", _value(ratio($ns->{zklock}, $ns->{curator})), 0.35);
		$bench->goal("(c) $there: transactions at the server", $writes, 0);
		$bench->plot(
			kind => 'bars', title => $title, y_label => 'µs',
			bars => [ map { my $s = $_; [ $s, map { $_ / 1000 } _bar(_flat($ns->{$s})) ] } @subjects ]) unless $delayed;
	}
	return;
}

# -------------------------------------------------- (d) several in a transaction

sub several
{
	my ($bench) = @_;
	foreach my $where ($bench->places)
	{
		my $delayed = $where =~ /delayed/;
		my $there = _title($where);
		my $path = '/zklock/bench/d';
		my (@rows, %line);
		my $runner = _start($bench, $where, 'zklock', @OTHERS, $delayed ? () : 'advisory');
		my @subjects = _able($bench, $runner, 'many', $path, '16 ' . max(2, int($bench->warm / 10)));
		$bench->delay($where, $Bench::DELAY);
		my $trip = $bench->round_trip($where);
		foreach my $k (1, 4, 16)
		{
			my $rounds = $delayed ? 2 : $bench->rounds($k == 16 ? 10 : 20);
			$bench->say("(d) $k locks in a transaction, $there");
			my $ns = $bench->interleave(
				\@subjects,
				_repetitions($bench, $delayed ? 0.3 : 2),
				sub {
					my ($subject) = @_;
					my @ns = numbers($runner->{$subject}->ask("many $path/$subject $k $rounds"));
					$bench->settle($where);
					return @ns;
				});
			$bench->raw("d\t$where $k\t$_", $ns->{$_}) for @subjects;
			foreach my $subject (@subjects)
			{
				my $median = median(_flat($ns->{$subject}));
				push @rows, [ $k, $subject, _percentiles(_flat($ns->{$subject})),
					sprintf('%.2f', $median / $trip), _against($ns, 'zklock', $subject) ];
				push @{ $line{$subject} }, [ $k, $median / 1000 ];
			}
			next unless $delayed && $k == 16;
			$bench->goal("(d) $there: 16 locks, round trips by the clock", $ns->{zklock} && median(_flat($ns->{zklock})) / $trip, 3);
			$bench->goal("(d) $there: 16 locks, zklock against curator", _value(ratio($ns->{zklock}, $ns->{curator})), 0.08);
		}
		_end($bench, $where, $runner);
		$bench->table("(d) several locks, $there", [ 'locks', 'µs', '50 %', '95 %', '99 %', 'round trips', 'zklock against it' ],
			\@rows,
			notes => [ 'From BEGIN, or the acquire, to the end of COMMIT, or the release. Round trips: the median in units of one, '
				  . microseconds($trip) . ' µs.' ]);
		$bench->plot(
			kind => 'lines', title => "(d) locks in one transaction, median, $there",
			x_label => 'locks', y_label => 'µs', log_x => 1, log => 1,
			lines => [ map { [ $_, @{ $line{$_} } ] } @subjects ]) if $delayed;
	}

	# and counted: with a delay that shows which requests wait for an answer
	my $proxy = $bench->proxy(undef, delay_ms => 20);
	my $runner = $bench->runner('zklock', hosts => $proxy->hosts);
	$runner->ask('many /zklock/bench/d/flights 16 1');
	Time::HiRes::sleep(0.5);
	$proxy->clear_log;
	$runner->ask('many /zklock/bench/d/flights 16 1');
	$bench->goal('(d) 16 locks, round trips one after another, counted', $proxy->trips, 3);
	$bench->table('(d) 16 locks: what is sent', ['requests'], [ [ _short(map { s/ .*//r } $proxy->requests) ] ]);
	$runner->quit;
	$proxy->stop;
	return;
}

# Words, with repetitions in a row counted, for readability
sub _short { return join(' ', @_) =~ s/\b(\w+)((?: \1\b)+)/"$1*" . (1 + ($2 =~ tr{ }{}))/ger; }

# ---------------------------------------------------------------- (e) throughput

sub throughput
{
	my ($bench) = @_;
	my $seconds = $bench->quick ? 0.3 : 0.7;
	foreach my $where (grep { !/delayed/ } $bench->places)
	{
		my $there = _title($where);
		my (@rows, %line);
		my $path = '/zklock/bench/e';
		my $runner = _start($bench, $where, @ZKLOCK, @OTHERS);
		my @subjects = _able($bench, $runner, 'own', $path, '1 0.2');
		# three servers and their clients on one machine: only the size of the
		# goal
		my @n = $where ne 'one' ? (32) : $bench->quick ? (1, 32) : (1, 4, 16, 32, 64);
		foreach my $n (@n)
		{
			$bench->say("(e) throughput of $n, $there");
			$runner->{$_}->ask("clients $n") for @subjects;
			my $rate = $bench->interleave(
				\@subjects,
				$bench->quick ? 1 : $n == 32 ? 5 : 2,
				sub {
					my ($subject, $repetition) = @_;
					return unless $repetition;    # it warms up itself
					my ($count, $ns) = split /:/, ($runner->{$subject}->ask("own $path/$subject $n $seconds"))[0];
					return $count / $ns * 1e9;
				});
			$bench->raw("e\t$where $n\t$_", $rate->{$_}) for @subjects;
			foreach my $subject (@subjects)
			{
				my @rates = _flat($rate->{$subject});
				push @rows, [ $n, $subject, (map { sprintf '%.0f', $_ } median(@rates), min(@rates), max(@rates)),
					map { $rate->{$_} ? _ratio(ratio($rate->{$_}, $rate->{$subject})) : '' } @ZKLOCK ];
				push @{ $line{$subject} }, [ $n, median(@rates) ];
			}
			next unless $n == 32;
			my $floor = _floor($bench);
			$bench->goal("(e) $there: 32 x $_ against 32 x $floor", _value(ratio($rate->{$_}, $rate->{$floor})), 1.0, at_least => 1)
			  for qw(zklock zklock-plpgsql);
		}
		_end($bench, $where, $runner);
		$bench->table("(e) throughput, each with a lock of its own, $there",
			[ 'clients', 'rounds per second', 'median', 'least', 'most', map { "$_ against it" } @ZKLOCK ],
			\@rows, notes => ['All share the processors with the servers, which is what bounds them here.']);
		$bench->plot(
			kind => 'lines', title => "(e) throughput, $there", x_label => 'clients', y_label => 'rounds per second', log_x => 1,
			lines => [ map { [ $_, @{ $line{$_} } ] } @subjects ]) if @n > 1;
	}
	return;
}

# -------------------------------------------------------------- (h) commit guard

sub guard
{
	my ($bench) = @_;
	my @guards = qw(off on strict);
	my $path = '/zklock/bench/h';
	my %requests;

	# the requests to ZooKeeper, counted by a proxy, without heartbeats
	foreach my $guard (@guards)
	{
		my $proxy = $bench->proxy;
		my $runner = $bench->runner('zklock-xact', hosts => $proxy->hosts, settings => { 'zklock.commit_guard' => $guard });

		# by then the queue is not listed: the smallest numbers prove less beside strict's checks
		$runner->ask("free $path/$guard 10");
		Time::HiRes::sleep(0.3);
		$proxy->clear_log;
		my $rounds = 50;
		$runner->ask("free $path/$guard $rounds");
		Time::HiRes::sleep(0.3);
		$requests{$guard} = scalar($proxy->requests) / $rounds;
		$runner->quit;
		$proxy->stop;
	}
	$bench->goal('(h) requests of a transaction more with on than with off', $requests{on} - $requests{off}, 0);
	$bench->goal('(h) requests of a transaction more with strict than with off', $requests{strict} - $requests{off}, 1);

	my @rows;
	foreach my $where ($bench->places)
	{
		my $delayed = $where =~ /delayed/;
		my $rounds = $bench->rounds($delayed ? 7 : 200);
		$bench->say('(h) commit guard, ' . _title($where));
		$bench->delay($where, 0);
		my %runner = map {
			$_ => $bench->runner('zklock-xact', hosts => $bench->hosts($where), settings => { 'zklock.commit_guard' => $_ })
		} @guards;
		$bench->delay($where, $Bench::DELAY);
		my $ns = $bench->interleave(
			\@guards,
			_repetitions($bench, $delayed ? 1.3 : 2),
			sub {
				my ($guard) = @_;
				my @ns = map { $_->[0] + $_->[1] } pairs($runner{$guard}->ask("free $path/$guard $rounds"));
				$bench->settle($where);
				return @ns;
			});
		$_->quit for values %runner;
		$bench->raw("h\t$where\t$_", $ns->{$_}) for @guards;
		push @rows, map {
			[ _title($where), $_, sprintf('%.2f', $requests{$_}), _percentiles(_flat($ns->{$_})), _ratio(ratio($ns->{$_}, $ns->{off})) ]
		} @guards;
	}
	$bench->table('(h) BEGIN, zk_xact_lock, COMMIT by zklock.commit_guard',
		[ '', 'guard', 'requests', '50 %, µs', '95 %', '99 %', 'against off' ], \@rows,
		notes => ['Requests of a transaction, counted by a proxy; heartbeats are left out.']);
	return;
}

# ------------------------------------------- (i) other servers, the same scenes

sub elsewhere
{
	my ($bench) = @_;
	my $again = sub { $_->($bench) for \&free, \&handover, \&try; };
	$bench->elsewhere('disk', $again) unless $bench->{fsync};
	my $newest = $bench->newest;
	if (keys %$newest < 2)
	{
		$bench->note('Not with newer packages of ZooKeeper and Curator: they could not be fetched.');
		return;
	}
	$bench->note("The newest packages are Debian testing's: ZooKeeper $newest->{zookeeper} (the server, and Curator's library), Curator $newest->{'curator-recipes'}.");
	$bench->elsewhere('newest', $again);
	return;
}

1;
