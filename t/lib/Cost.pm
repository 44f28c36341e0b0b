
=pod

=head1 NAME

Cost - what a call costs: requests, round trips, transactions

=head1 SYNOPSIS

  my ($s, $proxy) = zk_counted_session($node, $zk, 50);
  my %cost = cost($zk, $s, $proxy, q{SELECT zk_lock('/a')});
  is_deeply({ %cost{qw(requests trips)} }, { requests => 'create2 getChildren', trips => 1 });

=head1 DESCRIPTION

Counted by a ZkProxy that one session uses alone, and by the server.

=cut

package Cost;

use strict;
use warnings;
use Exporter qw(import);

use Zklock;

our @EXPORT = qw(cost asked settled quiet);

# Do it, which is no error, and tell its value, the requests, the round trips, and how
# many transactions the server made.
sub cost
{
	my ($zk, $session, $proxy, $sql) = @_;
	my $before = $zk->zxid;
	$proxy->clear_log;
	my $value = $session->value($sql);
	# the requests are with the server when their answers are here
	my $requests = settled($proxy);
	return (
		value => $value,
		requests => $requests,
		trips => $proxy->trips,
		transactions => $zk->zxid - $before);
}

# The names of the requests since clear_log, without heartbeats: "create2 getData*3"
sub asked
{
	my ($proxy) = @_;
	return zk_short(map { (split / /)[0] } $proxy->requests);
}

# Has each request its answer?
sub _is_answered
{
	my @log = grep { $_->[2] !~ /^(?:ping|event)$/ } @_;
	return (grep { $_->[1] eq '<' } @log) >= (grep { $_->[1] eq '>' } @log);
}

# Wait until nothing is under way, and return what was asked.
sub settled
{
	my ($proxy) = @_;
	zk_until(sub { _is_answered($proxy->log) }, 'the answers');
	return asked($proxy);
}

# Wait until nothing is asked for and nothing comes any more.
sub quiet
{
	my (@proxy) = @_;
	my @seen = (-1);
	zk_until(
		sub {
			my @log = map { $_->log } @proxy;
			push @seen, scalar @log;
			return _is_answered(@log) && @seen > 10 && $seen[-10] == $seen[-1];
		},
		'quiet');
	return;
}

1;
