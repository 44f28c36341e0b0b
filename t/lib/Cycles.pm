
=pod

=head1 NAME

Cycles - sessions that wait for each other

=head1 SYNOPSIS

  my ($a, $b) = in_transactions($node_a, $node_b);
  $a->value(q{SELECT zk_xact_lock('/x')});
  $b->value(q{SELECT zk_xact_lock('/y')});
  my ($result, $victim) = one_fails('two',
      [ $a, q{SELECT zk_xact_lock('/y')} ], [ $b, q{SELECT zk_xact_lock('/x')} ]);

  my ($s, $proxy) = looker($node_a, $zk);
  ...
  nobody_fails('while it waits', [$proxy], $s);

=head1 DESCRIPTION

That nobody fails shows only when everybody has looked: a C<looker> looks every few
milliseconds, through a proxy that counts how often it has read the board.  It reads
that at first, and then at every tenth look.

=cut

package Cycles;

use strict;
use warnings;
use Carp;
use Exporter qw(import);
use Test::More;

use Deadline;
use ZkProxy;
use Zklock;

our @EXPORT = qw($BOARD in_transactions one_fails one_of_each_fails looker looks have_looked nobody_fails board record);

# Where the records are
our $BOARD = '/zklock/__zklock_waits__';

my %idle;    # name of a cluster => [ sessions ]

# Sessions in a transaction, one for each of these clusters
sub in_transactions
{
	my @sessions = map {
		my $idle = $idle{ $_->name } //= [];
		@$idle = grep { $_->{psql} } @$idle;    # a test may have ended some
		shift @$idle // zk_session($_);
	} @_;
	foreach my $i (0 .. $#_)
	{
		$sessions[$i]{home} = $_[$i]->name;
		$sessions[$i]->value('BEGIN');
	}
	return @sessions;
}

# Cycles by name, each a list of waits: [ session, statement, what is done when it
# has ended ]; without a statement, if it waits already.  Exactly one of each fails,
# with 40P01; the others proceed, each once those before it have ended.  Returns the failed ones by name: [ result, session ].
sub one_of_each_fails
{
	my (%cycle) = @_;
	my (%failed, @bad);
	my @waits = map { my $name = $_; map { [ $name, @$_ ] } @{ $cycle{$name} } } sort keys %cycle;
	$_->[1]->send($_->[2]) for grep { defined $_->[2] } @waits;
	while (@waits)
	{
		my $what = 'an end of one of these waits: ' . join '; ', map { "$_->[0]: " . ($_->[2] // '') } @waits;
		my $done = zk_until(sub { (grep { $_->[1]->is_done } @waits)[0] }, $what);
		my ($name, $session, undef, $end) = @$done;
		my $result = $session->wait;
		push @{ $failed{$name} }, [ $result, $session ] if $result->{state} eq '40P01';
		push @bad, "$name: $result->{err}" if $result->{state} !~ /^(?:40P01)?$/ || $result->{closed};
		push @bad, "$name: $result->{out}" if $result->{state} eq '' && $result->{out} !~ /^t\z/m;
		$session->query($end // 'ROLLBACK; SELECT zk_unlock_all(); RESET ALL');
		push @{ $idle{ $session->{home} } }, $session if $session->{home};
		@waits = grep { $_ != $done } @waits;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar @{ $failed{$_} // [] }, 1, "$_: one fails") for sort keys %cycle;
	is("@bad", '', 'there is no other error');
	return map { $_ => $failed{$_}[0] // [ {}, 'none' ] } keys %cycle;
}

sub one_fails
{
	my ($name, @waits) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %failed = one_of_each_fails($name => \@waits);
	return @{ $failed{$name} };
}

# A connected session that looks often, in a transaction, and its proxy
sub looker
{
	my ($node, $zk, %setting) = @_;
	my $timeout = delete $setting{deadlock_timeout} // '20ms';
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, %setting);
	$s->value("SET deadlock_timeout = '$timeout'; BEGIN");
	return ($s, $proxy);
}

# How often the board was read since clear_log
sub looks
{
	my ($proxy) = @_;
	return scalar grep { $_->[1] eq '<' && $_->[2] =~ /^getChildren/ && $_->[4] eq $BOARD } $proxy->log;
}

# Wait until the board has been read so often from now on, by each, or until one of
# these sessions waits no more.
sub have_looked
{
	my ($n, $proxies, @sessions) = @_;
	my @before = map { looks($_) } @$proxies;
	zk_until(
		sub {
			return 1 if grep { $_->is_done } @sessions;
			return !grep { looks($proxies->[$_]) < $before[$_] + $n } 0 .. $#$proxies;
		},
		"$n looks at the board by each");
	return;
}

# One test: these still wait when all that look have looked.
sub nobody_fails
{
	my ($name, $proxies, @sessions) = @_;
	have_looked(3, $proxies, @sessions);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @done = grep { $_->is_done } @sessions;
	ok(!@done, "$name: nobody fails");
	diag($_->wait->{err}) for grep { $_->{mark} } @done;
	return;
}

# What is on the board, as names
sub board
{
	my ($zk) = @_;
	return $zk->children($BOARD);
}

# The path of the record of a session, by its process; or false
sub record
{
	my ($zk, $session) = @_;
	my $pid = $session->pid;
	return $zk->with_client(
		sub {
			my ($client) = @_;
			my ($path) = grep { (scalar $client->get($_) // '') =~ /\Azklock\n.*^pid $pid$/ms } map { "$BOARD/$_" } $client->children($BOARD);
			return $path // '';
		});
}

1;
