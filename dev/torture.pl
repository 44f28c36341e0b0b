# Called by dev/torture, which checks the options: one run, its figures and
# picture.
#
#   perl dev/torture.pl DIRECTORY OPTION...

use strict;
use warnings;

# PostgreSQL's test library sends standard output to a file of its own
my $out;
BEGIN { open $out, '>&', \*STDOUT or die; }

use IO::Handle;
use Test::More;

use Torture;

my ($dir, @options) = @ARGV;
my %option = map { /^--(\w+)(?:=(.*))?$/s ? ($1 => $2 // 1) : () } @options;
$out->autoflush(1);

my $run = Torture->new(
	dir => $dir,
	fence => ($option{fence} // 'yes') eq 'yes',
	$option{pause} ? (pause => [ split /-/, $option{pause} ]) : (),
	map { defined $option{$_} ? ($_ => $option{$_}) : () } qw(seconds seed faults guard kinds peers tls workers objects));

if ($option{schedule})
{
	print $out map { Torture::Schedule::describe($_) . "\n" } $run->schedule;
	exit 0;
}

print $out "== seed $run->{seed}, $run->{seconds} s\n";
$run->execute;
$run->picture("$dir/picture.svg", split /-/, $option{window} // '0-120');
print $out $run->figures;
exit($run->violations ? 1 : 0);
