# Compares what src/README.md says about which file calls which, and in what
# direction, with the code.  No file calls one of a higher folder, and there are
# no cycles; a name begins with the prefix of its folder; no header goes through the
# wall but those named; what a comment points to exists.  doc/errors.md has the
# code's messages, no others; descriptions are short.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Cwd qw(abs_path);
use PostgreSQL::Test::Utils;
use Test::More;

my $src = abs_path("$FindBin::RealBin/../src");
my @folders = ('zk', 'backend', map({ "lock/$_" } qw(look deadlock queue transaction)), '.');    # the lowest first
my %level = map { $folders[$_] => $_ } 0 .. $#folders;

sub folder_of
{
	return $_[0] =~ s{/[^/]+$}{}r;
}

# file => its code, without comments and strings
my %code;
my %includes;    # file or header => folders that it names
foreach my $path (glob "$src/*.[ch] $src/*/*.[ch] $src/*/*/*.[ch]")
{
	my $text = slurp_file($path);
	my ($file) = $path =~ m{^\Q$src\E/(.*)};
	$file = "./$file" if $file !~ m{/};
	$includes{$file} = [ $text =~ m{^#include "([\w/]+)/\w+\.h"$}mg ];
	next if $file !~ s/\.c$//;
	$text =~ s{/\*.*?\*/|"(?:\\.|[^"\\])*"}{ }gs;
	$code{$file} = $text;
}
is(join(' ', grep { !defined $level{ folder_of($_) } } sort keys %code), '', 'all files are in one of the folders');

# the functions and variables that other files can use => where they are defined
my %home;
while (my ($file, $text) = each %code)
{
	while ($text =~ /^(.*)\n(zk\w+)\(/mg)
	{
		$home{$2} = $file unless $1 =~ /\bstatic\b/;
	}
	$home{$1} //= $file while $text =~ /^(?!static|extern|typedef)[A-Za-z_][\w ]*?[\s*]+(zk\w+)(?:\[\w*\])?\s*(?:=|;)/mg;
}
cmp_ok(scalar keys %home, '>', 150, 'functions and variables are found');

# file => { file that it calls => a name used there }
my %calls;
while (my ($file, $text) = each %code)
{
	$calls{$file} = {};
	foreach my $name ($text =~ /\b(zk\w+)/g)
	{
		$calls{$file}{ $home{$name} } = $name if $home{$name} && $home{$name} ne $file;
	}
}

#
# Names
#
my %prefix = ('.' => qr/^_PG|^zk_/, lock => qr/^zkl_/, backend => qr/^zk(?:b|lock)_/, zk => qr/^zk[snrp]_/);
my @misnamed = grep { $_ !~ $prefix{ (split m{/}, $home{$_})[0] } } sort keys %home;
is("@misnamed", '', 'what others may call has the prefix of its folder');

#
# Directions
#
my @up;
foreach my $file (sort keys %calls)
{
	foreach my $other (sort keys %{ $calls{$file} })
	{
		my ($from, $to) = map { $level{ folder_of($_) } } $file, $other;
		push @up, "$file calls $other: $calls{$file}{$other}" if $to > $from;
	}
}
is("@up", '', 'no file calls one of a folder above it');

foreach my $file (sort keys %includes)
{
	push @up, map { "$file includes one of $_" } grep { !($level{$_} < $level{ folder_of($file) }) } @{ $includes{$file} };
}
is("@up", '', 'nor includes its header');

my %seen;

# Returns the cycle that is reached from this file, or nothing
sub cycle
{
	my ($file, @way) = @_;
	my ($begin) = grep { $way[$_] eq $file } 0 .. $#way;

	return (@way[ $begin .. $#way ], $file) if defined $begin;
	return () if $seen{$file}++;
	foreach my $other (sort keys %{ $calls{$file} })
	{
		my @found = cycle($other, @way, $file);
		return @found if @found;
	}
	return ();
}
is(join(' > ', map { cycle($_) } sort keys %calls), '', 'no files call each other in a cycle');

#
# The wall
#
my ($offered) = slurp_file("$src/README.md") =~ /^All that the folders above may use is in (.*?)\. The other headers/ms;
my %offered = map { $_ => 1 } $offered =~ /`(\w+\.h)`/g;
my @through;
foreach my $path (glob("$src/*.[ch] $src/lock/*/*.[ch] $src/backend/*.[ch]"), map { "$src/zk/$_" } sort keys %offered)
{
	my $folder = $path =~ m{/zk/} ? '' : 'zk/';
	push @through, map { $offered{$_} ? () : "$path: $_" } slurp_file($path) =~ m{^#include "$folder(.*?)"}mg;
}
is("@through", '', 'what is above the wall includes what src/README.md names');

#
# Pointers in comments: "(file.c, function)"
#
my @astray;
foreach my $path (glob "$src/*.[ch] $src/*/*.[ch] $src/*/*/*.[ch]")
{
	my ($comments) = join ' ', slurp_file($path) =~ m{/\*.*?\*/}gs;
	$comments =~ s{\n[ \t]*\*}{}g;
	while ($comments =~ m{\b(\w+)\.([ch])\b(?:, (\w+)\))?}g)
	{
		my ($name, $function) = ("$1.$2", $3);
		next if $name =~ /^(?:proto|zookeeper|postgres)\.h$/;    # the library's, and PostgreSQL's
		my ($file) = grep { -e } glob("$src/$name $src/*/$name $src/*/*/$name $src/../t/c/$name");
		push @astray, "$path: $name" if !$file;
		push @astray, "$path: $name, $function" if $file && defined $function && slurp_file($file) !~ /\b$function\b/;
	}
}
is(join("\n", @astray), '', 'what comments refer to is there');

#
# The tables
#
my %told;
my $folder;
foreach (split /\n/, slurp_file("$src/README.md"))
{
	$folder = $1 if m{^##+ ([\w/]+)/$};
	undef $folder if /^## [A-Z]/;
	next if !defined $folder || !/^\| `(\w+)\.c` \| .* \| ?(.*?) ?\|$/;
	$told{"$folder/$1"} = $2;
}
is_deeply([ sort keys %told ], [ sort grep { !m{^\./} } keys %code ], 'the tables have all files');

foreach my $file (sort keys %told)
{
	my $own = folder_of($file);
	my @others = sort keys %{ $calls{$file} };
	my @here = map { m{^\Q$own\E/(.*)} ? $1 : () } @others;
	my %rooms = map { $_ ne $own ? ($_ => 1) : () } map { folder_of($_) } @others;
	is($told{$file}, join('; ', grep { length } join(', ', @here), join(', ', sort keys %rooms)), "$file: what it calls");
}

#
# Messages
#

# "…" is what a message inserts, and what the page leaves out
my %message;    # whether the page has it
foreach my $path (glob "$src/*.c $src/*/*.c $src/*/*/*.c")
{
	my $text = slurp_file($path) =~ s/" U?INT64_FORMAT "/%d/gr;
	while ($text =~ /(?:\berrmsg(?:_plural)?\(|(?<!pstrdup\()\b_\(|\bERRCODE_\w+,)\s*"((?:\\.|[^"\\])*)"/g)
	{
		$message{ $1 =~ s/\\"%s\\"|%[\d.]*(?:ll|z)?\w/…/gr =~ s/\\"/"/gr } = 0;
	}
}
cmp_ok(scalar keys %message, '>', 100, 'messages are found');

# those of PostgreSQL itself
my @others = ('epoll_create1 failed', 'function zk_lock(…) does not exist', 'invalid value for parameter …',
	'… is outside the valid range', 'out of shared memory', 'permission denied for function …', 'permission denied for schema …');
my @strange;
foreach (grep { /^\| / } split /\n/, slurp_file("$src/../doc/errors.md"))
{
	my ($cell) = /^\|(?: \w{5} \|)? (.*?) \|/;
	while ($cell =~ /\G(?:^|, |, or |, and )`([^`]+ [^`]+)`/g)
	{
		my ($told, $pattern) = ($1, join '.*', map { quotemeta } split /…/, $1, -1);
		my @same = grep { /^$pattern$/ } keys %message;
		$message{$_} = 1 for @same;
		push @strange, $told if !@same && !grep { $_ eq $told } @others;
	}
}
is(join("\n", grep { !$message{$_} } sort keys %message), '', 'doc/errors.md has each message');
is(join("\n", @strange), '', '- and no others');

#
# Descriptions of functions, views and settings: a line of psql's \df+, \dv+ and \dconfig+
#
my @described = map { slurp_file($_) =~ /^COMMENT ON [^;]*? IS\s+'((?:''|[^'])*)'/mg } glob "$src/../zklock*--*.sql";
push @described, map { s/\\"/"/gr } slurp_file("$src/backend/settings.c") =~ /"zklock\.\w+",\s*(?:gettext_noop\()?"((?:\\.|[^"\\])*)"/g;
cmp_ok(scalar @described, '>', 70, 'descriptions are found');
is(join("\n", grep { /\n/ || (my @words = split) > 10 } @described), '', 'they are short');

done_testing();
