# A missing header or library stops the build with a line that names the Debian
# package to install.  Nothing is taken away from the machine: the compiler is
# told not to look where it is.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use Test::More;

my $root = abs_path("$FindBin::RealBin/..");

sub build_says
{
	my (@arguments) = @_;
	return scalar `make -C $root @arguments 2>&1`;
}

my @missing = (
	[ "the server's headers", 'postgresql-server-dev-15', 'PG_CONFIG=/nonexistent' ],
	[ "ZooKeeper's header", 'libzookeeper-st-dev', q{CC='gcc -nostdinc'} ],
	[ "ZooKeeper's library", 'libzookeeper-st-dev', q{LDFLAGS='-nostdlib -static -L/nonexistent'} ],);

for my $case (@missing)
{
	my ($what, $package, $argument) = @$case;
	like(build_says('-n', $argument), qr/\*\*\* .* not found: install Debian's \Q$package\E/, "without $what");
}

unlike(build_says('-n', $ENV{PG_CONFIG} ? "PG_CONFIG=$ENV{PG_CONFIG}" : ()), qr/\*\*\*/, 'with all of them');

done_testing();
