
=pod

=head1 NAME

Torture::Picture - who held what when, as SVG

=head1 SYNOPSIS

  print $file Torture::Picture::draw(holds => \@holds, faults => \@faults,
	  objects => [ { id, kind } ], from => 0, to => 120, title => '...');

=head1 DESCRIPTION

Time runs to the right, eight seconds in each row: as wide as a page.  Each row has a
lane for each object, with a bar for each hold in the color of its cluster, or client, and
the faults above them.  Readers, and who has a place of a semaphore, have narrow bars,
beside each other; the others have their worker's number.  A bar's tooltip has the details.

=cut

package Torture::Picture;

use strict;
use warnings;
use List::Util qw(max min);

use Torture::Schedule;

my $SECONDS = 8;      # per row
my $SCALE = 98;       # px per second
my $LEFT = 90;
my $LANE = 24;
my $NARROW = 3;       # bars beside each other in a lane
my $TOP = 60;         # y of the first row
my $FAULT_LANE = 15;

# whose hold it is => color
my @WHOSE = ([ 'first cluster', '#4477aa' ], [ 'second cluster', '#228833' ], [ curator => '#aa3377' ], [ kazoo => '#b8860b' ]);

# track of the fault => color; all others are black
my %COLOR = (ensemble => '#c62828', network => '#1565c0', directory => '#00838f', process => '#6a1b9a', postgres => '#2e7d32', pooler => '#2e7d32');

sub _escape { return $_[0] =~ s/([&<>"])/sprintf '&#%d;', ord $1/ger; }

sub draw
{
	my (%opt) = @_;
	my ($from, $to) = @opt{qw(from to)};
	my @objects = @{ $opt{objects} };
	my $rows = max(1, int(($to - $from) / $SECONDS + 0.999));
	my @faults = _in_lanes($from, grep { $_->{begin} < $to && $_->{end} >= $from } @{ $opt{faults} });
	my $fault_lanes = max(1, map { $_->{lane} + 1 } @faults);
	my $head = $fault_lanes * $FAULT_LANE + 6;
	my $row_height = $head + @objects * $LANE + 34;
	my $width = $LEFT + $SECONDS * $SCALE + 20;
	my $height = $TOP + $rows * $row_height;
	my (@svg, @label);

	# the parts of an interval in its rows: [ [ row, x, width ], ... ]
	my $pieces = sub {
		my ($begin, $end) = map { max($from, min($to, $_)) - $from } @_;
		my @pieces;
		foreach my $row (int($begin / $SECONDS) .. min($rows - 1, int($end / $SECONDS)))
		{
			my ($b, $e) = (max($begin, $row * $SECONDS), min($end, ($row + 1) * $SECONDS));
			push @pieces, [ $row, $LEFT + ($b - $row * $SECONDS) * $SCALE, max(0.5, ($e - $b) * $SCALE) ];
		}
		return @pieces;
	};
	my $y = sub { return $TOP + $_[0] * $row_height; };

	my ($text, $small) = map { qq{font-family="sans-serif" font-size="$_"} } 14, 12;
	push @svg,
	  qq{<svg xmlns="http://www.w3.org/2000/svg" width="$width" height="$height" viewBox="0 0 $width $height">},
	  qq{<rect width="$width" height="$height" fill="#ffffff"/>},
	  qq{<text x="10" y="20" $text font-weight="bold">} . _escape($opt{title}) . '</text>';

	# the legend
	my $x = 10;
	foreach (@WHOSE)
	{
		my ($name, $color) = @$_;
		push @svg, sprintf '<rect x="%d" y="32" width="12" height="12" fill="%s"/><text x="%d" y="43" %s>%s</text>', $x, $color, $x + 16, $small, $name;
		$x += 32 + 7 * length $name;
	}
	push @svg, qq{<text x="$x" y="43" $small>pale: rolled back; framed red: refused or cut off; above: faults</text>};

	foreach my $row (0 .. $rows - 1)
	{
		my $top = $y->($row) + $head;
		my $bottom = $top + @objects * $LANE;
		foreach my $i (0 .. $#objects)
		{
			my $lane = $top + $i * $LANE;
			push @svg,
			  sprintf('<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>', $LEFT, $lane, $SECONDS * $SCALE, $LANE, $i % 2 ? '#ffffff' : '#f4f4f4'),
			  sprintf('<text x="8" y="%d" %s>%d %s</text>', $lane + 16, $small, $objects[$i]{id}, $objects[$i]{kind});
		}
		foreach my $second (0 .. $SECONDS)
		{
			my $at = $LEFT + $second * $SCALE;
			push @svg, sprintf '<path d="M%d %dV%d" stroke="#cccccc" stroke-width="%s"/>', $at, $top, $bottom + 4, $second ? 0.4 : 1;
			push @svg, sprintf '<text x="%d" y="%d" %s text-anchor="middle">%d s</text>', $at, $bottom + 17, $small, $from + $row * $SECONDS + $second;
		}
	}

	foreach my $fault (@faults)
	{
		my $color = $COLOR{ $Torture::Schedule::TRACK_OF{ $fault->{kind} } // '' } // '#000000';
		my $label = $fault->{kind} . ($fault->{worker} ? " $fault->{worker}" : '');
		my $tip = _escape(sprintf '%s, %.3f to %.3f s %s', $label, @$fault{qw(begin end)},
			join ' ', map { "$_=$fault->{$_}" } grep { !/^(?:begin|end|kind|lane|number)$/ } sort keys %$fault);
		my $first = 1;
		foreach my $piece ($pieces->(@$fault{qw(begin end)}))
		{
			my ($row, $left, $wide) = @$piece;
			my $lane = $y->($row) + $fault->{lane} * $FAULT_LANE;
			my $top = $y->($row) + $head;
			push @svg,
			  sprintf('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" fill-opacity="0.07"/>', $left, $top, $wide, @objects * $LANE, $color),
			  sprintf('<path d="M%.1f %dV%d" stroke="%s" stroke-width="0.8" stroke-dasharray="3 2"/>', $left, $lane, $top + @objects * $LANE, $color),
			  sprintf('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" fill-opacity="0.35"><title>%s</title></rect>',
				$left, $lane, max(2, $wide), $FAULT_LANE - 1, $color, $tip);
			push @label, sprintf '<text x="%.1f" y="%d" %s fill="%s">%s</text>',
			  min($left + 2, $width - 8 * length $label), $lane + 11, $small, $color, _escape($label)
			  if $first;
			$first = 0;
		}
	}

	my %lane = map { $objects[$_]{id} => $_ } 0 .. $#objects;
	my %until;    # object => narrow lane => until when it is taken
	foreach my $hold (sort { $a->{begin} <=> $b->{begin} } grep { $_->{begin} < $to && $_->{end} >= $from } @{ $opt{holds} })
	{
		my ($down, $height) = (0, $LANE - 6);
		if (($hold->{mode} // 'exclusive') ne 'exclusive')
		{
			my $until = $until{ $hold->{object} } //= [ (0) x $NARROW ];
			my ($free) = sort { $until->[$a] <=> $until->[$b] } 0 .. $NARROW - 1;
			$until->[$free] = $hold->{end};
			$height /= $NARROW;
			$down = $free * $height;
		}
		my $how = $hold->{how} // '';
		my $good = $how =~ /^(?:commit|unlock|downgrade|upgrade)$/;
		my $bad = $how =~ /^(?:failed|closed)$/;
		my $tip = _escape(sprintf 'worker %d, hold %d (%s), token %s, %.3f to %.3f s: %s',
			@$hold{qw(worker hold)}, $hold->{kind} // 'exclusive', $hold->{token} // '?', @$hold{qw(begin end)}, $how);
		foreach my $piece ($pieces->(@$hold{qw(begin end)}))
		{
			my ($row, $left, $wide) = @$piece;
			push @svg, sprintf '<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" fill-opacity="%s"%s><title>%s</title></rect>',
			  $left, $y->($row) + $head + $lane{ $hold->{object} } * $LANE + 3 + $down, max(0.8, $wide), $height,
			  _color($hold), $good ? '0.9' : '0.35', $bad ? ' stroke="#d50000" stroke-width="1.5"' : '', $tip;
			push @label, sprintf '<text x="%.1f" y="%d" %s text-anchor="middle" fill="%s">%d</text>',
			  $left + $wide / 2, $y->($row) + $head + ($lane{ $hold->{object} } + 0.68) * $LANE, $small, $good ? '#ffffff' : '#000000', $hold->{worker}
			  if $wide > 16 && $height == $LANE - 6;
		}
	}
	return join "\n", @svg, @label, "</svg>\n";
}

# Each goes into the first lane with room for it and for its name
sub _in_lanes
{
	my ($from, @faults) = @_;
	my (@until, @result);
	foreach my $fault (sort { $a->{begin} <=> $b->{begin} } @faults)
	{
		my $lane = 0;
		$lane++ while ($until[$lane] // 0) > $fault->{begin};
		$until[$lane] = max($fault->{end}, max($from, $fault->{begin}) + 1.3);    # s, for the longest name
		push @result, { %$fault, lane => $lane };
	}
	return @result;
}

sub _color
{
	my ($hold) = @_;
	my ($client) = grep { $_->[0] eq ($hold->{kind} // '') } @WHOSE;
	return ($client // $WHOSE[ $hold->{worker} % 2 ])->[1];
}

1;
