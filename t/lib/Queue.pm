
=pod

=head1 NAME

Queue - what the name of a contender's node says, and what a node of zklock says in its data

=head1 DESCRIPTION

It shares no code with zklock: it works names out from the README, and what zklock's
nodes say from the format of their data.

=cut

package Queue;

use strict;
use warnings;
use Encode qw(decode);
use Exporter qw(import);

our @EXPORT = qw(queue_contender queue_facts);

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

1;
