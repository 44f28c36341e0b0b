
=pod

=head1 NAME

Queue - what zk_lock_queue shows, and what it should show

=head1 SYNOPSIS

  my @rows = queue_of($session, '/a');                 # of zk_lock_queue
  my @rows = queue_by_hand($client, '/zklock/a');      # of ZooKeeper itself
  queue_is($session, $client, '/a', 'as ZooKeeper has it');    # one test

=head1 DESCRIPTION

A row is a hash by the names of the columns; "since" is in ms since 1970, and a
column that is NULL is undef.  Texts are characters.

queue_by_hand asks with ZkClient and shares no code with zklock: it works out
names, order and turns from the README, and what zklock's nodes say from the
format of their data.

=cut

package Queue;

use strict;
use warnings;
use Encode qw(decode encode);
use Exporter qw(import);
use JSON::PP;
use Test::More;

use Zklock qw(zk_few);

our @EXPORT = qw(queue_of queue_by_hand queue_is queue_contender queue_facts);

my @COLUMNS = qw(position kind mode granted token zk_session since node host port cluster_name pid datname usename application_name data);

# Of other clients' data at least this many bytes are shown.
my $KEPT = 2000;

sub queue_of
{
	my ($session, $path) = @_;
	my @rows = map { decode_json($_) } split /\n/,
	  $session->value(qq{SELECT to_json(q) FROM (SELECT position, kind, mode, granted, token, zk_session,
		(extract(epoch FROM since) * 1000)::bigint AS since, node, host, port, cluster_name, pid, datname,
		usename, application_name, data
		FROM zk_lock_queue('$path')) q});
	$_->{granted} = $_->{granted} ? 1 : 0 for @rows;
	return @rows;
}

# The bytes that a column shows as text: a byte that cannot be shown is \xNN.
sub queue_bytes
{
	my ($text) = @_;
	utf8::encode($text);
	$text =~ s/\\x([0-9a-fA-F]{2})|\\(\\)/defined $1 ? chr hex $1 : $2/ge;
	return $text;
}

# ---------------------------------------------------------------------- by hand

# Returns (kind, mode, permits) of a contender's name, and its sequence number;
# () for any other name
sub queue_contender
{
	my ($name) = @_;
	my ($before, $number) = $name =~ /^(.*?)(-\d{9,10}|\d{10})$/s or return;
	($before, $number) = $name =~ /^(.*)(\d{10})$/s
	  if $before !~ /(?:lock-|__lock__|__rlock__|__WRIT__|__READ__|-)$/ && $name =~ /\d{10}$/;
	my $uuid = qr/_c_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/;
	return if $number > 2**31 - 1;
	return ('semaphore', 'semaphore', $1, $number)
	  if $before =~ /^$uuid-semaphore-([1-9]\d*)-$/ && $1 <= 2**31 - 1;
	return ('lock', 'shared', 0, $number) if $before =~ /(?:-shared-lock-|__rlock__|__READ__)$/;
	return ('lock', 'exclusive', 0, $number) if $before =~ /(?:lock-|__lock__|__WRIT__)$/ || $before =~ /^x--?[0-9a-fA-F]+-$/;
	return;
}

# What a node of zklock says in its data; () if another client wrote it
sub queue_facts
{
	my ($data) = @_;
	return () unless $data =~ /\Azklock\n/;
	my %fact = (ours => 1);
	foreach my $line (split /\n/, $data)
	{
		my ($key, $value) = split / /, $line, 2;
		$fact{$key} = defined $value ? decode('UTF-8', $value) =~ s/\\(.)/$1 eq 'n' ? "\n" : $1/ger : 1;
	}
	return %fact;
}

sub queue_by_hand
{
	my ($client, $dir) = @_;
	my @all;
	$client->sync($dir);
	foreach my $name ($client->children($dir))
	{
		my ($kind, $mode, $permits, $number) = queue_contender($name) or next;
		my ($data, $stat) = $client->get("$dir/$name") or next;
		my %fact = queue_facts($data // '');
		push @all, {
			kind => $kind,
			mode => $fact{shared} ? 'shared' : $mode,
			permits => $permits,
			number => $number,
			token => $fact{czxid} ? $fact{czxid} + 0 : $stat->{czxid},
			zk_session => sprintf('0x%x', $stat->{ephemeralOwner}),
			since => $stat->{ctime},
			node => decode('UTF-8', $name),
			ours => $fact{ours},
			data => $fact{ours} || !length($data // '') ? undef : $data,
			(map { $_ => $fact{$_} } qw(host cluster_name application_name)),
			datname => $fact{database},
			usename => $fact{user},
			(map { $_ => defined $fact{$_} ? $fact{$_} + 0 : undef } qw(port pid)) };
	}

	# Sequence numbers that have run out do not give the order; transaction ids
	# do.
	my $worn = grep { $_->{number} < 0 || $_->{number} > 2**31 - 1 - 2**20 } @all;
	my $by = $worn ? 'token' : 'number';
	my @rows;
	foreach my $kind (qw(lock semaphore))
	{
		my @before;
		foreach my $row (sort { $a->{$by} <=> $b->{$by} } grep { $_->{kind} eq $kind } @all)
		{
			$row->{position} = @before + 1;
			$row->{granted} = $kind eq 'semaphore'
			  ? @before < $row->{permits}
			  : !grep {
				  $row->{mode} eq 'shared' ? $_->{mode} eq 'exclusive'
					# a session of zklock that upgrades does not wait for itself
					: !($_->{mode} eq 'shared' && $_->{ours} && $row->{ours} && $_->{zk_session} eq $row->{zk_session})
			  } @before;
			$row->{granted} = $row->{granted} ? 1 : 0;
			push @before, $row;
		}
		push @rows, @before;
	}
	delete @$_{qw(permits number ours)} for @rows;
	return @rows;
}

sub _text
{
	my ($row) = @_;
	return join ' ', map { defined $row->{$_} ? "$_=" . substr $row->{$_}, 0, 200 : () } @COLUMNS;
}

# One test, for a queue that does not change: zk_lock_queue shows exactly its
# rows.  Returns them.
sub queue_is
{
	my ($session, $client, $path, $name) = @_;
	my @got = queue_of($session, $path);
	my @expected = queue_by_hand($client, "/zklock$path");
	my @wrong;
	foreach my $i (0 .. (@got > @expected ? $#got : $#expected))
	{
		my %got = %{ $got[$i] // {} };
		my %expected = %{ $expected[$i] // {} };
		$got{data} = queue_bytes($got{data}) if defined $got{data};
		# the beginning is enough
		substr($_, $KEPT) = '' for grep { length($_ // '') > $KEPT } $got{data}, $expected{data};
		push @wrong, encode('UTF-8', 'got ' . _text(\%got) . "\n    not " . _text(\%expected))
		  if grep { ($got{$_} // 'NULL') ne ($expected{$_} // 'NULL') } @COLUMNS;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(zk_few(@wrong), '', "$name: " . @expected . ' rows');
	return @got;
}

1;
