
=pod

=head1 NAME

Torture::TxnLog - the life of each node, from ZooKeeper's own transaction log

=head1 SYNOPSIS

  my @changes = Torture::TxnLog::read_servers(@dirs);
  my @nodes = Torture::TxnLog::nodes(Torture::TxnLog::settle(\%left, @changes));
  Torture::TxnLog::each_transaction($dir, sub { my (@changes) = @_; ... });

=head1 DESCRIPTION

ZooKeeper writes each change to a file log.<zxid> before it answers, with the time
by its leader's clock and the session that asked for it.  What clients say they
did can be compared with that.  A file is, in ZooKeeper's usual encoding:

  "ZKLG", version (int), dbid (long); then, until a length of zero or the end:
  checksum (long); length (int) and as many bytes: session (long), cxid (int),
  zxid (long), time in ms (long), type (int), what the type needs; "B"

What a server has logged may never have been committed, so a change counts if two
of three servers have it: two were needed for the commit, and nobody's log is ever
deleted here.  A change without a majority at first, which a new leader makes its
own, reaches the others' logs when they join it, unless they are sent a snapshot.
So one that a single server has counts, too, if the same log has a later one of the
same leader that counts: each server logs what a leader says in order.  The last
ones of a leader remain in doubt: of these a deletion counts, or the end of a session,
if a node would otherwise be left that is not there in the end.

=cut

package Torture::TxnLog;

use strict;
use warnings;

my %TYPE = (
	1 => 'create', 2 => 'delete', 5 => 'set', 13 => 'check', 14 => 'multi', 15 => 'create', 19 => 'create', 20 => 'delete', 21 => 'create',
	-1 => 'error', -10 => 'open', -11 => 'close');

# The changes in one file: [ { at (where it stands), zxid, time (s since 1970), session,
# cxid, type, path, data, ephemeral, multi }, ... ], each part of a multi separately
sub read_file
{
	my ($name) = @_;
	open my $file, '<:raw', $name or die "$name: $!";
	my ($head, $record, @changes);
	read $file, $head, 16;
	# A server enlarges the file by zeros in advance; and if it was killed, the last
	# record may be incomplete.
	while ((read $file, $head, 12) == 12 && (my $length = unpack 'x8 l>', $head) > 0)
	{
		last if (read $file, $record, $length + 1) != $length + 1;
		my ($session, $cxid, $zxid, $time, $type, $body) = unpack 'Q> l> q> q> l> a*', $record;
		my $at = "$name " . tell $file;
		push @changes, map { { at => $at, session => sprintf('0x%x', $session), cxid => $cxid, zxid => $zxid, time => $time / 1000, %$_ } } _parts($type, $body);
	}
	close $file;
	return \@changes;
}

sub _parts
{
	my ($number, $body) = @_;
	my $type = $TYPE{$number} // 'other';
	if ($type eq 'create')
	{
		my ($path, $data, $lists, $rest) = unpack 'N/a* N/a* N a*', $body;
		# an entry of the access list: rights (int), scheme, id
		(undef, undef, undef, $rest) = unpack 'N N/a* N/a* a*', $rest for 1 .. $lists;
		return { type => $type, path => $path, data => $data, ephemeral => $number == 1 || $number == 15 ? unpack('C', $rest) : 0 };
	}
	return { type => $type, path => unpack 'N/a*', $body } if $type eq 'delete' || $type eq 'check';
	if ($type eq 'set')
	{
		my ($path, $data) = unpack 'N/a* N/a*', $body;
		return { type => $type, path => $path, data => $data };
	}
	return { type => $type } if $type ne 'multi';
	my ($count, $rest) = unpack 'N a*', $body;
	my @parts;
	for (1 .. $count)
	{
		my ($part_type, $part);
		($part_type, $part, $rest) = unpack 'l> N/a* a*', $rest;
		push @parts, _parts($part_type, $part);
	}
	# (those before the one that failed are there, too, and had no effect)
	return { type => 'error', multi => 1 } if grep { $_->{type} eq 'error' } @parts;
	return @parts ? map({ { %$_, multi => 1 } } @parts) : { type => 'other' };
}

# Calls back with the changes of each transaction of a server that was the only one, in
# order
sub each_transaction
{
	my ($dir, $code) = @_;
	my @changes;
	foreach my $change (
		(map { @{ read_file($_) } } sort { hex($a =~ s/.*\.//r) <=> hex($b =~ s/.*\.//r) } glob "$dir/data/version-2/log.*"), undef)
	{
		if (@changes && (!$change || $change->{zxid} != $changes[0]{zxid}))
		{
			$code->(@changes);
			@changes = ();
		}
		push @changes, $change if $change;
	}
	return;
}

# What these servers, given by their directories, have logged, in order: a list of
# changes as above, where "doubtful" marks what may not have been committed
sub read_servers
{
	my (@dirs) = @_;
	my (%change, %seen, @logs);
	foreach my $dir (@dirs)
	{
		my %here;
		# (a follower that comes back may log once more what it has logged)
		foreach my $change (map { @{ read_file($_) } } glob "$dir/data/version-2/log.*")
		{
			my $same = $here{ $change->{zxid} } //= [];
			push @$same, $change if !@$same || $same->[0]{at} eq $change->{at};
		}
		$seen{$_}++ for keys %here;
		push @logs, \%here;
		%change = (%here, %change);
	}
	my %committed = map { $_ => 1 } grep { 2 * $seen{$_} > @dirs } keys %change;
	foreach my $here (@logs)
	{
		my $last = -1;    # epoch
		foreach my $zxid (sort { $b <=> $a } keys %$here)
		{
			$last = $zxid >> 32 if $committed{$zxid};
			$committed{$zxid} = 1 if $zxid >> 32 == $last;
		}
	}
	foreach my $zxid (grep { !$committed{$_} } keys %change) { $_->{doubtful} = 1 for @{ $change{$zxid} }; }
	return map { @{ $change{$_} } } sort { $a <=> $b } keys %change;
}

# Without those changes that have not been committed.  The first argument has as keys
# the nodes that are left in the end.
sub settle
{
	my ($left, @changes) = @_;
	my @sure = grep { !$_->{doubtful} } @changes;
	my (%gone, %over);
	foreach my $node (grep { !defined $_->{gone} && !$left->{ $_->{path} } } nodes(@sure))
	{
		$gone{ $node->{path} } = 1;
		$over{ $node->{session} } = 1;
	}
	return grep {
		    !$_->{doubtful}
		  || $_->{type} eq 'delete' && $gone{ $_->{path} }
		  || $_->{type} eq 'close' && $over{ $_->{session} }
	} @changes;
}

# From these changes, the ephemeral nodes: { path, czxid, session, made, data,
# shared, gone, how, by }.  "shared" is when the holder of an exclusive lock became a
# reader; "how" it went: delete (and the session that asked for it is "by"), close
# (its session was closed by its client), expiry (by ZooKeeper).
sub nodes
{
	my (@nodes, %at, %of, %by_czxid);
	foreach my $c (@_)
	{
		if ($c->{type} eq 'create' && $c->{ephemeral})
		{
			# one that takes the place of another is that one, under a reader's name
			my ($replaced) = $c->{multi} && $c->{data} =~ /\Azklock\nshared\nczxid (\d+)$/m ? $by_czxid{"$c->{session} $1"} : undef;
			if ($replaced)
			{
				delete $_->{ $replaced->{path} } for \%at, $of{ $c->{session} };
				@$replaced{qw(path shared)} = @$c{qw(path time)};
			}
			else
			{
				$replaced = { path => $c->{path}, czxid => $c->{zxid}, session => $c->{session}, made => $c->{time}, data => $c->{data} };
				push @nodes, $by_czxid{"$c->{session} $c->{zxid}"} = $replaced;
			}
			$at{ $c->{path} } = $of{ $c->{session} }{ $c->{path} } = $replaced;
		}
		elsif ($c->{type} eq 'set')
		{
			my $node = $at{ $c->{path} } // next;
			$node->{data} = $c->{data} if $node->{data} eq '';    # a single node's: it is created without
			$node->{shared} //= $c->{time} if $c->{data} =~ /\Azklock\nshared\n/;
		}
		elsif ($c->{type} eq 'delete' && (my $node = delete $at{ $c->{path} }))
		{
			delete $of{ $node->{session} }{ $c->{path} };
			@$node{qw(gone how by)} = ($c->{time}, 'delete', $c->{session});
		}
		elsif ($c->{type} eq 'close')
		{
			foreach my $node (values %{ delete $of{ $c->{session} } // {} })
			{
				delete $at{ $node->{path} };
				# the server closes a session with no number of a request
				@$node{qw(gone how by)} = ($c->{time}, $c->{cxid} ? 'close' : 'expiry', $c->{session});
			}
		}
	}
	return @nodes;
}

1;
