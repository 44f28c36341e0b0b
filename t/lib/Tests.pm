
=pod

=head1 NAME

Tests - what the files of t/ begin with

=head1 SYNOPSIS

  use FindBin;
  use lib "$FindBin::RealBin/lib";
  use Tests;    # strict, warnings, and what the modules below export

=head1 DESCRIPTION

Test::More, PostgreSQL's library for tests, and of t/lib what nearly all files use: Deadline,
ZkProxy, Zklock and ZooKeeper.  time and sleep count fractions of a second.

=cut

package Tests;

use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes;

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

sub import
{
	my $file = caller;
	strict->import;
	warnings->import;
	# an import goes to the package that calls it
	eval "package $file; \$_->import for qw(Test::More PostgreSQL::Test::Utils Deadline Zklock); Time::HiRes->import(qw(sleep time)); 1" or die $@;
	return;
}

1;
