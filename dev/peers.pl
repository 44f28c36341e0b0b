# Draws the table of other locks in doc/torture.md as a picture, doc/peers.svg:
#
#   perl dev/peers.pl <doc/torture.md >doc/peers.svg

use strict;
use warnings;
use utf8;
use open qw(:std :encoding(UTF-8));

my (@rows, $lock);
while (<STDIN>)
{
	next unless /^\| lock \| how it is used \|/ .. /^$/;
	next unless /^\|/;
	my @cell = map { s/^\s+|\s+$|\*\*|`| ¹//gr } (split /\|/)[ 1 .. 5 ];
	next if $cell[0] =~ /^(?:lock|---)/;
	$lock = $cell[0] =~ s/ .*//r if length $cell[0];
	push @rows, [ $lock, @cell[ 1 .. 4 ] ];
}
die "no table\n" unless @rows;

my ($top, $height) = (64, 28);
my $end = $top + @rows * $height + 44;
my $esc = sub { $_[0] =~ s/&/&amp;/gr =~ s/</&lt;/gr };
print <<~"SVG";
	<svg xmlns="http://www.w3.org/2000/svg" width="760" height="$end" viewBox="0 0 760 $end" font-family="Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif" font-size="12" fill="#1f2933">
	  <title>Whose update was lost when a holder lost its lock</title>
	  <desc>For each lock and each way to use it, what became of an update in three scenes. Red: an update was lost. Green: none was.</desc>
	  <rect x="0.5" y="0.5" width="759" height="@{[ $end - 1 ]}" rx="8" fill="#fafbfc" stroke="#d9e2ec"/>
	  <g font-weight="bold" font-size="11" text-anchor="middle"><text x="464" y="48">holder stopped</text><text x="572" y="48">server cut off</text><text x="682" y="48">stopped in COMMIT</text></g>
	SVG
my $y = $top;
my $before = '';
foreach my $row (@rows)
{
	my ($name, $how, @outcome) = @$row;
	my $text = $y + 18;
	printf qq(  <text x="24" y="%d" font-weight="bold">%s</text>\n), $text, $esc->($name) if $name ne $before;
	printf qq(  <text x="96" y="%d" fill="#52606d">%s</text>\n), $text, $esc->($how);
	foreach my $i (0 .. 2)
	{
		my $lost = $outcome[$i] eq 'lost';
		my $x = 414 + $i * 109;
		printf qq(  <rect x="%d" y="%d" width="101" height="22" rx="4" fill="%s" stroke="%s"/>\n), $x, $y + 3, $lost ? ('#fbdcdc', '#c53030') : ('#d3f0dd', '#2f855a');
		printf qq(  <text x="%d" y="%d" text-anchor="middle">%s</text>\n), $x + 50, $text, $esc->($outcome[$i]);
	}
	$before = $name;
	$y += $height;
}
printf qq(  <text x="24" y="%d" fill="#52606d">Each scene eight times, with the same outcome each time. 40001: COMMIT was refused, and nothing was lost.</text>\n</svg>\n), $y + 26;
