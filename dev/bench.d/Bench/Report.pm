
=pod

=head1 NAME

Bench::Report - the results of a run of dev/bench, as Markdown and as SVG

=head1 SYNOPSIS

  print $file Bench::Report::markdown($bench, command => 'dev/bench --quick');
  Bench::Report::svg($bench, $file) or say 'there is no gnuplot';

=cut

package Bench::Report;

use strict;
use warnings;
use List::Util qw(max);

sub _number
{
	my ($n) = @_;
	return 'not measured' unless defined $n;
	return sprintf($n == int $n ? '%d' : abs($n) < 10 ? '%.2f' : '%.0f', $n);
}

# A table, with vertical bars in cells escaped
sub _table
{
	my ($columns, @rows) = @_;
	my $line = sub { return '| ' . join(' | ', map { ($_ // '') =~ s/\|/\\|/gr } @_) . " |\n"; };
	return $line->(@$columns), $line->(map { '---' } @$columns), map { $line->(@$_) } @rows;
}

# --------------------------------------------------------------- the machine

sub _lines
{
	my ($file) = @_;
	open my $handle, '<', $file or return;
	return <$handle>;
}

sub _package { my ($name) = @_; my $v = `dpkg-query -W -f '\${Version}' $name 2>/dev/null`; return $v; }

# [ property, value ], ...
sub machine
{
	my ($bench) = @_;
	my ($cpu) = map { /^model name\s*:\s*(.*)/ ? $1 : () } _lines('/proc/cpuinfo');
	my $cpus = grep { /^processor\s*:/ } _lines('/proc/cpuinfo');
	my ($memory) = map { /^MemTotal:\s*(\d+)/ ? $1 : () } _lines('/proc/meminfo');
	my ($system) = map { /^PRETTY_NAME="?(.*?)"?$/ ? $1 : () } _lines('/etc/os-release');
	chomp(my $kernel = `uname -sr`);
	my ($java) = `java -version 2>&1` =~ /^(?:\S+ version )?(.*)/;
	chomp(my $postgres = `pg_config --version`);
	my @peers = grep { $_->[1] ne '' }
	  map { [ $_, _package($_) ] } qw(libzookeeper-java libzookeeper-st2 libzookeeper-mt2 libcurator-recipes-java python3-kazoo);
	return (
		[ 'processors', "$cpus x " . ($cpu // 'unknown') ],
		[ 'memory', sprintf '%.1f GB', ($memory // 0) / 1e6 ],
		[ 'system', ($system // '') . ", $kernel" ],
		[ 'PostgreSQL', $postgres =~ s/^PostgreSQL //r ],
		[ 'Java', $java =~ s/"//gr ],
		@peers,
		[ 'ZooKeeper', $bench->{fsync} ? 'flushes each transaction to the disk' : 'forceSync=no: does not wait for the disk' ],
		[ 'load of the machine when it began', $bench->{load} ]);
}

# ---------------------------------------------------------------- the Markdown

sub _goals
{
	my ($bench) = @_;
	my @rows;
	foreach my $goal (@{ $bench->{goals} })
	{
		my ($value, $limit) = @$goal{qw(value limit)};
		my $by = '';
		$by = sprintf ', by %.0f %%', 100 * abs($value / $limit - 1) if defined $value && $limit;
		push @rows, [
			$goal->{name}, _number($value) . ($goal->{unit} ? " $goal->{unit}" : ''),
			($goal->{at_least} ? '≥ ' : '≤ ') . _number($limit),
			!defined $goal->{met} ? 'not measured' : $goal->{met} ? 'met' : "**not met**$by",
			$goal->{note} // ''
		];
	}
	my @columns = ('goal', 'value', 'limit', '', '');
	# leave out a column that is empty
	if (!grep { $_->[4] ne '' } @rows) { pop @$_ for \@columns, @rows; }
	return _table(\@columns, @rows);
}

sub markdown
{
	my ($bench, %opt) = @_;
	my @out = ("# zklock and others: what locks cost\n\n");
	push @out, "Made by `$opt{command}`" . ($opt{seconds} ? sprintf(' in %d min', int($opt{seconds} / 60 + 0.5)) : '') . ".\n\n" if $opt{command};
	push @out, _table([ 'machine', '' ], machine($bench)), "\n";
	push @out, _text(), "\n";
	push @out, map { "- $_\n" } @{ $bench->{notes} };
	push @out, "\n" if @{ $bench->{notes} };
	push @out, "## Goals\n\n", _goals($bench), "\n" if @{ $bench->{goals} };
	push @out, "![the same as a plot]($opt{svg})\n\n" if $opt{svg};
	foreach my $table (@{ $bench->{tables} })
	{
		push @out, "## $table->{title}\n\n", _table($table->{columns}, @{ $table->{rows} }), "\n";
		push @out, map { "$_\n\n" } @{ $table->{notes} };
	}
	return join '', @out;
}

sub _text
{
	return <<'END';
| subject | what it is |
| --- | --- |
| zklock | `zk_lock` and `zk_unlock`, prepared, a statement each, from a client through libpq and a socket of this machine |
| zklock-plpgsql | the same two in a loop of one PL/pgSQL function: without PostgreSQL's client and protocol |
| zklock-xact | `BEGIN`, `zk_xact_lock`, `COMMIT`, a statement each; by default the end of a transaction sends the release and does not wait for the answer |
| curator | Curator's `InterProcessMutex`, and its `InterProcessMultiLock` where several locks are taken; Java, warm |
| kazoo | kazoo's `Lock`; several clients are several processes |
| recipe | the lock of ZooKeeper's own recipes in C |
| floor-st, floor-mt | no lock but its least: create and list sent together, then delete, in C on ZooKeeper's client library, without and with its threads |
| floor-corked | floor-st whose requests the kernel sends in one piece, which the library sends in two |
| floor-bare | floor-corked without the list, in scene (a): the two writes that zklock is left with where it leaves the list out |
| advisory | `pg_advisory_lock` and `pg_advisory_unlock`, which know of this one server only |

Ratios are made of the medians of the same repetition, in which all subjects run
one after another, and the median of these ratios is the one that counts. 50 %,
95 % and 99 % are percentiles of all repetitions together.

What this does not show: a network (all is on one machine, and where it says "each
way" a proxy lets frames wait), servers with other work, a busy machine, a disk.
Servers, clients and proxies share the processors, most of all where there are many
clients or three servers.
END
}

# ----------------------------------------------------------------- the picture

my $WIDTH = 560;
my $HEIGHT = 340;

sub _quoted { my ($text) = @_; return q{'} . $text =~ s/'/''/gr . q{'}; }

# Returns false if there is no gnuplot
sub svg
{
	my ($bench, $file) = @_;
	my @plots = @{ $bench->{plots} } or return 1;
	return 0 if system('command -v gnuplot >/dev/null') != 0;

	my $rows = int((@plots + 1) / 2);
	my @script = (
		sprintf('set terminal svg size %d,%d dynamic background "#ffffff" font "sans,11"', 2 * $WIDTH, $rows * $HEIGHT),
		'set output ' . _quoted($file), 'set encoding utf8', "set multiplot layout $rows,2", 'set grid ytics', 'set tics nomirror');
	foreach my $i (0 .. $#plots)
	{
		my $plot = $plots[$i];
		push @script, 'reset', 'set grid ytics lc rgb "#dddddd"', 'set tics nomirror',
		  'set title ' . _quoted($plot->{title}) . ' noenhanced',
		  'set ylabel ' . _quoted($plot->{y_label} // '') . ' noenhanced';
		push @script, 'set logscale y' if $plot->{log};
		push @script, $plot->{kind} eq 'bars' ? _bars($plot, $i) : _lines_of($plot, $i);
	}
	push @script, 'unset multiplot', '';
	open my $gnuplot, '|-', 'gnuplot' or return 0;
	print $gnuplot join "\n", @script;
	return close $gnuplot;
}

sub _bars
{
	my ($plot, $i) = @_;
	my @data = map { my ($label, @v) = @$_; join ' ', qq{"$label"}, map { sprintf $_ < 100 ? '%.3g' : '%.0f', $_ } map { $_ // $v[0] } @v[ 0 .. 2 ] } @{ $plot->{bars} };
	return (
		"\$d$i << EOD", @data, 'EOD',
		'set style fill solid 0.6', 'set boxwidth 0.7', 'set xtics rotate by -25 noenhanced', 'unset key',
		$plot->{log} ? () : 'set yrange [0:*]',
		"plot \$d$i using 0:2:xtic(1) with boxes lc rgb '#4477aa', \$d$i using 0:3:(0):(\$4-\$3) with vectors nohead lw 1.5 lc rgb '#333333', \$d$i using 0:2:2 with labels offset 0,0.6 font ',9' noenhanced");
}

sub _lines_of
{
	my ($plot, $i) = @_;
	my (@data, @what, %tic);
	my $n = 0;
	foreach my $line (@{ $plot->{lines} })
	{
		my ($label, @points) = @$line;
		my $name = "\$d${i}_" . ++$n;
		$tic{ $_->[0] } = 1 for @points;
		push @data, "$name << EOD", map({ "$_->[0] $_->[1]" } @points), 'EOD';
		push @what, "$name using 1:2 with linespoints lw 1.5 pt $n title " . _quoted($label) . ' noenhanced';
	}
	return (
		@data,
		'set xlabel ' . _quoted($plot->{x_label} // '') . ' noenhanced',
		$plot->{log_x} ? 'set logscale x' : (), $plot->{log} ? () : 'set yrange [0:*]',
		'set xtics (' . join(', ', map { $_ } sort { $a <=> $b } keys %tic) . ')',
		'set key outside right', 'plot ' . join ', ', @what);
}

1;
