
=pod

=head1 NAME

Claims - numbered periods: claimed, and what their marks say

=head1 SYNOPSIS

  claims_are_read_by($elsewhere);             # a session that does nothing else
  $s->value('BEGIN; ' . claim('/a', 7));      # SELECT zk_claim('/a', ...)
  is(last_claim('/a'), '7 pending');
  await_claim('/a', '7 done', 'it is done');  # a test, which waits

=cut

package Claims;

use strict;
use warnings;
use Exporter qw(import);
use Test::More;

use Deadline;
use Zklock;

our @EXPORT = qw(claims_are_read_by claim last_claim await_claim);

our $PATIENCE = $TIMEOUT / 3;    # seconds

my $reader;

sub claims_are_read_by { ($reader) = @_; return; }

# The period with this number
sub claim
{
	my ($path, $n, $timeout) = @_;
	return sprintf q{SELECT zk_claim('%s', to_timestamp(%d)%s)}, $path, 60 * $n, defined $timeout ? ", '$timeout'" : '';
}

# What the mark says: "7 done"
sub last_claim
{
	my ($path) = @_;
	return $reader->value("SELECT extract(epoch FROM period)::int / 60 || ' ' || state FROM zk_last_claim('$path')");
}

sub await_claim
{
	my ($path, $expected, $name) = @_;
	my $seen;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	eval { zk_until(sub { ($seen = last_claim($path)) eq $expected }, "$path: $expected", $PATIENCE); };
	return is($seen, $expected, $name);
}

1;
