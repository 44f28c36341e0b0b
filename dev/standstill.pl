# perl dev/standstill.pl FILE: writes into it when this machine stood still, for
# longer than a test has to bear, and for how long (both in seconds).
#
# One process for each processor, since one of them may stand still alone.  Each
# sleeps for a moment, writes a byte to the disk's cache, and looks at the clock.

use strict;
use warnings;
use Time::HiRes qw(sleep time);

my $BEAR = 0.6;     # what dev/test -s stops for
my $NAP = 0.05;

my ($list) = @ARGV;
open my $out, '>>', $list or die "$list: $!";
open my $status, '<', '/proc/self/status' or die "/proc/self/status: $!";
my ($cpus) = map { /^Cpus_allowed_list:\s*(\S+)/ } <$status>;
my @cpus = map { /(\d+)-(\d+)/ ? $1 .. $2 : $_ } split /,/, $cpus;

my $parent = $$;
my @children;
$SIG{TERM} = sub { kill 'TERM', @children; };

foreach my $cpu (@cpus)
{
	my $pid = fork // die "could not fork: $!";
	if ($pid)
	{
		push @children, $pid;
		next;
	}
	$SIG{TERM} = 'DEFAULT';
	system "taskset -cp $cpu $$ >/dev/null 2>&1";
	open my $byte, '>', "$list.$cpu" or die "$list.$cpu: $!";
	while (getppid == $parent)
	{
		my $before = time;
		sleep $NAP;
		sysseek $byte, 0, 0;
		syswrite $byte, '.';
		my $still = time - $before - $NAP;
		syswrite $out, sprintf "%.1f %.1f\n", $before, $still if $still > $BEAR;
	}
	exit;
}
1 while wait >= 0 || $!{EINTR};
