# perl dev/processes.pl TMP [SESSION]: prints the processes of the run with the
# directory TMP, or those of one of its sessions.  A backend overwrites its
# environment, and a client is installed elsewhere, so any of three traits is
# enough.

use strict;
use warnings;

sub content { open my $file, '<', shift or return ''; local $/; return <$file> // ''; }

sub processes
{
	my ($tmp, $session) = @_;
	die unless $tmp =~ m{^/.*/zklock-};    # what is listed here gets killed
	my @found;
	foreach my $proc (glob '/proc/[0-9]*')
	{
		my ($pid) = $proc =~ /(\d+)/;
		my $environ = "\0" . content("$proc/environ");
		next unless $environ =~ /\0ZKLOCK_TMP=\Q$tmp\E\0/
		  || grep { index(readlink("$proc/$_") // '', "$tmp/") == 0 } qw(exe cwd);
		next if $session && content("$proc/stat") !~ /.*\) \S+ \d+ \d+ $session /;
		push @found, $pid;
	}
	return @found;
}

print map { "$_\n" } processes(@ARGV) unless caller;

1;
