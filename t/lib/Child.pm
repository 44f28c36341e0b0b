
=pod

=head1 NAME

Child - processes that end with the one that started them

=head1 SYNOPSIS

  Child::remember($pid);      # after fork; killed at our end, however that comes
  Child::forget($pid);        # it has ended
  Child::is_ours($pid);       # started by this process, not by one it was forked from

=cut

package Child;

use strict;
use warnings;

my %started;    # pid => pid of the process that started it

sub remember { $started{ $_[0] } = $$; return; }
sub forget { delete $started{ $_[0] }; return; }
sub is_ours { my ($pid) = @_; return ($started{ $pid // 0 } // 0) == $$; }

END
{
	# not to change what the test says about itself
	local ($?, $!, $@);
	foreach my $pid (grep { is_ours($_) } keys %started)
	{
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
}

1;
