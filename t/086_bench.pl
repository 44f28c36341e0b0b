# A small run of dev/bench: each program that it measures does what it is asked,
# the scenes are completed, and the report is well-formed.  Times are not
# checked.

use FindBin;
use lib "$FindBin::RealBin/lib", "$FindBin::RealBin/../dev/bench.d";

use Bench;
use Bench::Report;
use Bench::Scenes;
use Tests;

$ENV{JAVA_TOOL_OPTIONS} = '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC';    # a cold start is most of what Java does here
my $bench = Bench->new(rounds => 1, repetitions => 1, warm => 0, servers => ['one'], dir => PostgreSQL::Test::Utils::tempdir());
my $zk = $bench->zk;

# The commands, and the form of the answers' words
my %form = (
	free => qr/^[1-9]\d*:[1-9]\d*$/,
	try => qr/^[1-9]\d*$/,
	many => qr/^[1-9]\d*$/,
	hand => qr/^\d+:\d+:\d+:\d+$/,
	own => qr/^[1-9]\d*:[1-9]\d*$/,
	hold => qr/./,
	first => qr/^[1-9]\d*$/);
my %scenes = (
	(map { $_ => 'free try many hand own hold first' } qw(zklock zklock-xact advisory)),
	'zklock-plpgsql' => 'free hand own hold first',
	(map { $_ => 'free try many hand own first' } qw(curator kazoo)),
	(map { $_ => 'free own first' } qw(floor-st floor-corked floor-bare)));

foreach my $subject (sort keys %scenes)
{
	SKIP:
	{
		my $runner = eval { $bench->runner($subject) };
		$bench->{missing}{$subject} = $runner ? undef : $@;    # which need not be tried again
		skip $@, 1 if !$runner;
		subtest $subject => sub {
			my $path = "/zklock/bench/t/$subject";
			my %knows = map { $_ => 1 } split / /, $scenes{$subject};
			my $holder;
			foreach (
				[ free => "$path/a 3", 3 ], [ many => "$path/m 2 3", 3 ], [ hand => "$path/h 2 3", 6 ],
				[ own => "$path/o 2 0.2", 1 ], [ hold => "$path/k 2", 0 ], [ first => "$path/f 2", 2 ], [ try => "$path/taken 3", 3 ])
			{
				my ($scene, $arguments, $n) = @$_;
				if ($scene eq 'try' && $knows{try})
				{
					$holder = $subject eq 'advisory' ? zk_session($bench->cluster('bench')) : $bench->taken($subject, "$path/taken");
					$holder->value("SELECT pg_advisory_lock(hashtextextended('/bench/t/advisory/taken', 0))")
					  if $subject eq 'advisory';
				}
				$runner->ask('clients 2') if $scene eq 'hand';
				my @words = eval { $runner->ask("$scene $arguments") };
				if (!$knows{$scene})
				{
					like($@, qr/error no such scene/, "$scene: there is none");
					next;
				}
				is($@, '', "$scene: no error");
				is(scalar(grep { /$form{$scene}/ } @words), $n, "$scene: as many words as it should be, of the right form")
				  or diag("@words");
				is(scalar(@words), $n, "$scene: no others");
				is(scalar(grep { $_ < 0 } Bench::Scenes::handovers(2, @words)), 0, 'one holds it at a time') if $scene eq 'hand';
			}
			isnt(join(' ', $runner->ask('version')), '', 'it says its version');
			ok(!eval { $runner->ask('nonsense'); 1 }, 'what it does not know is an error');
			$runner->quit;
			ref $holder && $holder->can('close') ? $holder->close : $holder->quit if $holder;
		};
	}
}
zk_nothing_left($zk, 'nothing is left in ZooKeeper');

subtest 'a slow network' => sub {
	$bench->delay('one delayed', 40);
	cmp_ok($bench->round_trip('one delayed'), '>=', 80e6, 'each way takes as long as was said');
	$bench->delay('one delayed', 0);
	until_true(sub { $bench->round_trip('one delayed') < 80e6 }, 'a round trip without that delay');
	pass('and no longer so');
};

$bench->{subjects} = [qw(zklock kazoo)];
foreach my $scene (qw(a d h i))    # i has b and c
{
	ok(eval { $Bench::Scenes::SCENES{$scene}->($bench); 1 }, "scene $scene comes to its end") or diag($@);
}

subtest 'statistics' => sub {
	is(median(3, 1, 2), 2, 'an odd number of values');
	is(median(4, 1, 2, 3), 2.5, 'an even one');
	is(percentile(95, 0 .. 100), 95, 'a percentile');
	is_deeply(
		ratio([ [1], [ 2, 2, 9 ], [3] ], [ [2], [2], [2] ]),
		{ median => 1, low => 0.75, high => 1.25, min => 0.5, max => 1.5, all => [ 0.5, 1, 1.5 ] },
		'ratios pair by pair');
	is(ratio([ [1] ], undef), undef, 'of nothing');
	ok(!eval { Bench::Scenes::handovers(2, '1:5:9:10', '1:8:12:13'); 1 }, 'two at once are not a handover');
};

subtest 'the report' => sub {
	$bench->goal('it is so', 1, 2);
	$bench->goal('it is not', 3, 2);
	$bench->goal('more is better', 1, 2, at_least => 1);
	$bench->goal('nobody knows', undef, 2);
	my $text = Bench::Report::markdown($bench, command => 'dev/bench', seconds => 60);
	like($text, qr/^\| it is so \| 1 \| ≤ 2 \| met /m, 'a goal that is met');
	like($text, qr/^\| it is not \| 3 \| ≤ 2 \| \*\*not met\*\*, by 50 % /m, 'one that is not');
	like($text, qr/^\| more is better \| 1 \| ≥ 2 \| \*\*not met\*\*, by 50 % /m, 'one that is not, the other way round');
	like($text, qr/^\| nobody knows \| not measured \| ≤ 2 \| not measured /m, 'one that was not measured');

	my ($columns, @odd);
	foreach (split /\n/, $text)
	{
		undef $columns if !/^\|/;
		next unless /^\|/;
		my $n = () = /(?<!\\)\|/g;
		$columns //= $n;
		push @odd, $_ if $n != $columns;
	}
	is_deeply(\@odd, [], 'each row of a table has all columns');
	like($text, qr/^\| zklock \| [\d.]+ \| /m, 'there are figures');

	SKIP:
	{
		skip 'there is no gnuplot', 1 if system('command -v gnuplot >/dev/null') != 0;
		my $file = $bench->dir . '/bench.svg';
		ok(Bench::Report::svg($bench, $file), 'a plot') or return;
		my $svg = PostgreSQL::Test::Utils::slurp_file($file);
		like($svg, qr{<svg.*</svg>\s*\z}s, 'which is SVG');
	}
};

$bench->stop;
done_testing();
