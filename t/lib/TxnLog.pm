
=pod

=head1 NAME

TxnLog - what a ZooKeeper server has done, in order

=head1 SYNOPSIS

  TxnLog::replay($zk->dir, sub {
      my ($txn) = @_;
      # { zxid, time (ms), session, ops => [ { op, path, data, version, permanent }, ... ] }
  });

=head1 DESCRIPTION

This reads the server's transaction log: what nobody can have missed, in the one
order that counts.  Operations that failed are left out.  The directory must be
that of a server that was started once; a record that is only half written ends
the reading.

  op: create, delete, set, check, multi's parts one by one, close (the session and
  all its ephemeral nodes are gone)

=cut

package TxnLog;

use strict;
use warnings;

my %op_of = (
	1 => 'create', 2 => 'delete', 5 => 'set', 13 => 'check', 14 => 'multi', 15 => 'create', 19 => 'container',
	20 => 'delete', 21 => 'container', -11 => 'close');

sub replay
{
	my ($dir, $code) = @_;
	foreach my $name (sort { hex($a =~ s/.*\.//r) <=> hex($b =~ s/.*\.//r) } glob "$dir/data/version-2/log.*")
	{
		open my $file, '<:raw', $name or die "$name: $!";
		my $header;
		next unless (read($file, $header, 16) // 0) == 16 && $header =~ /^ZKLG/;
		while ((read($file, $header, 12) // 0) == 12)
		{
			my (undef, $length) = unpack 'q> l>', $header;
			my $bytes;
			last if $length <= 0 || (read($file, $bytes, $length + 1) // 0) != $length + 1;
			my ($session, undef, $zxid, $time, $type) = unpack 'q> l> q> q> l>', $bytes;
			my @ops = _ops($type, substr $bytes, 32);
			$code->({ zxid => $zxid, time => $time, session => $session, ops => \@ops }) if @ops;
		}
		close $file;
	}
	return;
}

sub _ops
{
	my ($type, $body) = @_;
	my $op = $op_of{$type} // return;
	return { op => $op } if $op eq 'close';
	if ($op eq 'multi')
	{
		my $n = unpack 'l>', $body;
		my $at = 4;
		my @ops;
		foreach (1 .. $n)
		{
			my ($part, $length) = unpack "x$at l> l>", $body;
			return if !defined $part || $part == -1;    # refused as a whole
			push @ops, _ops($part, substr $body, $at + 8, $length);
			$at += 8 + $length;
		}
		return @ops;
	}
	my ($path, $rest) = unpack 'N/a* a*', $body;
	return { op => $op, path => $path } if $op eq 'delete' || $op eq 'container';
	return { op => $op, path => $path, version => unpack 'l>', $rest } if $op eq 'check';
	my $length = unpack 'l>', $rest;
	return { op => $op, path => $path, data => $length > 0 ? substr($rest, 4, $length) : '' };
}

1;
