# Called by dev/bench, which checks the options: one run, and its report.
#
#   perl dev/bench.pl DIRECTORY OPTION...

use strict;
use warnings;

# PostgreSQL's test library sends standard output to a file of its own
my $out;
BEGIN { open $out, '>&', \*STDOUT or die; }

use IO::Handle;
use Test::More;
use Time::HiRes qw(time);

use Bench;
use Bench::Crowd;
use Bench::Footprint;
use Bench::Report;
use Bench::Scenes;

my ($dir, @options) = @ARGV;
my %option = map { /^--([\w-]+)(?:=(.*))?$/s ? ($1 => $2 // 1) : () } @options;
$out->autoflush(1);
$SIG{PIPE} = 'IGNORE';    # a client that is gone is an error, but does not end the run

my $begin = time;

# Measurements beside other work mean little.  What has just been built is part of
# that work.
my $IDLE = 0.3;
my $patience = $option{idle} // ($option{quick} ? 0 : 300);
printf $out "== waiting until the load of the machine is below %.1f, for at most %d s\n", $IDLE, $patience
  if $patience > 0 && Bench::load() >= $IDLE;
Time::HiRes::sleep(1) while Bench::load() >= $IDLE && time < $begin + $patience;

my $bench = Bench->new(
	dir => "$dir/work",
	root => "$ENV{ZKLOCK_TMP}/bench",
	fsync => $option{fsync},
	quick => $option{quick},
	delay => !$option{'no-delay'},
	say => sub { printf $out "== %4d s  %s\n", time - $begin, "@_" },
	map { defined $option{$_} ? ($_ => $option{$_}) : () } qw(rounds repetitions));
$bench->{$_} = [ split /,/, $option{$_} ] for grep { $option{$_} } qw(servers subjects);

my $busy = 'The machine may have had other work when this began: trust no time by itself, and look at the ranges of the ratios.';
if ($bench->{load} >= $IDLE)
{
	$bench->note($busy);
	print $out "== $busy\n";
}

my %scene = (%Bench::Scenes::SCENES, f => \&Bench::Crowd::run, g => \&Bench::Footprint::run);

$bench->zk;    # warm before all others
foreach my $subject (sort keys %Bench::SUBJECT)
{
	my $why = $bench->missing($subject);
	next unless defined $why;
	$bench->note("Without $subject: $why");
	print $out "== without $subject: $why\n";
}

my $floor = 'floor-' . $bench->client_library;
$bench->note("The floor that goals speak of is $floor: it is on the library that zklock is linked with.");

my $status = 0;
foreach my $letter ($option{scene} ? split(/,/, $option{scene}) : sort keys %scene)
{
	my $run = $scene{$letter} or die "no such scene: $letter\n";
	# these two count processes
	$bench->end_runners if $letter =~ /[fg]/;
	next if eval { $run->($bench); 1 };
	my $why = $@;
	chomp $why;
	print $out "== scene $letter: $why\n";
	$bench->note("Scene $letter did not come to its end: " . (split /\n/, $why)[0]);
	$status = 1;
}
$bench->stop;

my $has_picture = Bench::Report::svg($bench, "$dir/bench.svg");
print $out "== no bench.svg: there is no gnuplot\n" unless $has_picture;

open my $file, '>', "$dir/bench.md" or die "$dir/bench.md: $!";
print $file Bench::Report::markdown(
	$bench,
	command => join(' ', 'dev/bench', grep { !/^--(?:out|raw|keep)/ } @options),
	seconds => time - $begin,
	svg => $has_picture && -f "$dir/bench.svg" ? 'bench.svg' : undef);
close $file or die "$dir/bench.md: $!";

open $file, '>', "$dir/raw.tsv" or die "$dir/raw.tsv: $!";
print $file "scene\twhere\tsubject\trepetition\tvalue\n", map { "$_\n" } @{ $bench->{raw} };
close $file or die "$dir/raw.tsv: $!";

foreach my $goal (@{ $bench->{goals} })
{
	printf $out "%-12s %s: %s\n", !defined $goal->{met} ? 'not measured' : $goal->{met} ? 'met' : 'NOT MET', $goal->{name}, $goal->{value} // '';
}
exit $status;
