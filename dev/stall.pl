# perl dev/stall.pl TMP: stops the processes of a run, or one of them, for up to
# 0.6 s, every two seconds or so.  Sessions must outlast that.

use strict;
use warnings;
use FindBin;
use Time::HiRes qw(sleep);

require "$FindBin::RealBin/processes.pl";

my @stopped;
$SIG{TERM} = sub { exit };
END { kill 'CONT', @stopped; }

while (1)
{
	sleep 0.5 + rand 3;
	my @pids = grep { $_ != $$ } processes($ARGV[0]);
	@pids = $pids[ rand @pids ] if @pids && rand() < 0.5;

	# a process that a test has stopped must stay stopped
	@stopped = grep { content("/proc/$_/stat") =~ /.*\) [RSD]/ && kill 'STOP', $_ } @pids;
	sleep 0.1 + rand 0.5;
	kill 'CONT', @stopped;
	@stopped = ();
}
