
=pod

=head1 NAME

ZkClient - a small ZooKeeper client in pure Perl

=head1 SYNOPSIS

  my $zk = ZkClient->new('127.0.0.1:2181', timeout => 5);
  $zk->create('/a', mode => 'container');
  my $node = $zk->create('/a/lock-', mode => 'ephemeral_sequential', data => 'x');
  print "$_\n" for sort $zk->children('/a');
  my $stat = $zk->exists($node) or die;      # undef: no such node
  my ($data, $stat) = $zk->get($node);
  $zk->delete($node);                        # false: no such node
  $zk->close;

=head1 DESCRIPTION

The tests use it to look into the ensemble, so that a fault of the C client
under test cannot hide itself, and so that looking does not require starting a
JVM.

It sends one request at a time.  Every call ends within C<timeout> seconds.  An
error of ZooKeeper is raised as "create /a: NODEEXISTS (-110)"; C<< $zk->{err}
>> has the number.  A lost connection is an error too: there is no reconnecting.

It sends no heartbeats between two calls, so a client that must outlive a longer
pause has to call C<ping>, or to ask for as long a session as C<client> of ZooKeeper does.

=cut

package ZkClient;

use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

# The names of what both ends of the wire send; ZkProxy uses these tables too.
our %OP = (
	create => 1, delete => 2, exists => 3, getData => 4, setData => 5,
	getACL => 6, setACL => 7, getChildren => 8, sync => 9, ping => 11,
	getChildren2 => 12, check => 13, multi => 14, create2 => 15,
	reconfig => 16, checkWatches => 17, removeWatches => 18,
	createContainer => 19, deleteContainer => 20, createTTL => 21,
	multiRead => 22, auth => 100, setWatches => 101, sasl => 102,
	getEphemerals => 103, getAllChildrenNumber => 104, setWatches2 => 105,
	addWatch => 106, whoAmI => 107, close => -11);
our %OP_NAME = reverse %OP;

our %ERR = (
	0 => 'OK', -1 => 'SYSTEMERROR', -2 => 'RUNTIMEINCONSISTENCY',
	-4 => 'CONNECTIONLOSS', -5 => 'MARSHALLINGERROR', -6 => 'UNIMPLEMENTED',
	-7 => 'OPERATIONTIMEOUT', -8 => 'BADARGUMENTS', -101 => 'NONODE',
	-102 => 'NOAUTH', -103 => 'BADVERSION',
	-108 => 'NOCHILDRENFOREPHEMERALS', -110 => 'NODEEXISTS',
	-111 => 'NOTEMPTY', -112 => 'SESSIONEXPIRED', -113 => 'INVALIDCALLBACK',
	-114 => 'INVALIDACL', -115 => 'AUTHFAILED', -118 => 'SESSIONMOVED');

our %EVENT = (
	-1 => 'session', 1 => 'created', 2 => 'deleted', 3 => 'changed',
	4 => 'child');

# ZooKeeper's CreateMode.  Containers are created by a separate operation.
our %MODE = (
	persistent => 0, ephemeral => 1, persistent_sequential => 2,
	ephemeral_sequential => 3, container => 4);

use constant NONODE => -101;
use constant OPEN_ACL => [ [ 31, 'world', 'anyone' ] ];

# ZkClient->new('host:port[,host:port...]', timeout => s, session_timeout => ms)
# tries the servers in this order.  With session => id it takes over that
# session instead of beginning one.
sub new
{
	my ($class, $hosts, %opt) = @_;
	my $self = bless {
		timeout => $opt{timeout} // 10,
		session_timeout => $opt{session_timeout} // 30_000,
		session => $opt{session} // 0,
		password => $opt{session} ? _password($opt{session}) : "\0" x 16,
		hosts => $hosts,
		xid => 0,
		buffer => '',
		err => 0
	}, $class;

	my $why = 'no servers given';
	foreach my $host (split /,/, $hosts)
	{
		return $self if eval { $self->_connect($host); 1 };
		$why = $@;
	}
	chomp $why;
	die "ZkClient: could not connect to $hosts: $why\n";
}

sub _connect
{
	my ($self, $host) = @_;

	$self->{buffer} = '';
	$self->{sock} = IO::Socket::INET->new(
		PeerAddr => $host,
		Proto => 'tcp',
		Timeout => $self->{timeout}) or die "$host: $@\n";
	$self->{sock}->blocking(0);
	$self->{sock}->setsockopt(IPPROTO_TCP, TCP_NODELAY, 1);

	# protocol version, last zxid seen, timeout, session id, password, read-only
	$self->_send(pack('N q> N q> N/a* C',
			0, 0, $self->{session_timeout}, @{$self}{qw(session password)}, 0));
	my $answer = $self->_frame($self->_deadline);
	(undef, $self->{negotiated}, $self->{session}, $self->{password}) =
	  unpack('N N q> N/a*', $answer);
	die "$host: session refused\n" if $self->{negotiated} == 0;
	return;
}

# The password of a session: ZooKeeper computes it from the id, with a
# java.util.Random whose seed is the id combined with a constant.
sub _password
{
	use integer;
	no warnings 'portable';
	my $seed = ($_[0] ^ 0xB3415C00 ^ 0x5DEECE66D) & 0xFFFF_FFFF_FFFF;
	my @int = map { ($seed = ($seed * 0x5DEECE66D + 0xB) & 0xFFFF_FFFF_FFFF) >> 16 } 1 .. 4;
	return pack 'V4', map { $_ & 0xFFFF_FFFF } @int;
}

# the session's id as ZooKeeper's own tools write it
sub session_id { return sprintf('0x%x', $_[0]->{session}); }

# ---------------------------------------------------------------- operations

# create($path, mode => 'ephemeral_sequential', data => '', acl => [[perms, scheme, id]])
# returns the path of the new node, and in list context its Stat too
sub create
{
	my ($self, $path, %opt) = @_;
	my $answer = $self->_call(_create_op(%opt), $path, _create_args(%opt));
	my ($created, $stat) = unpack('N/a* a*', $answer);
	return wantarray ? ($created, _stat($stat)) : $created;
}

sub _mode { my (%opt) = @_; return $MODE{ $opt{mode} // 'persistent' } // die "bad mode: $opt{mode}"; }
sub _create_op { return _mode(@_) == $MODE{container} ? 'createContainer' : 'create2'; }

sub _create_args
{
	my (%opt) = @_;
	my $acl = $opt{acl} // OPEN_ACL;
	return pack('N/a* N', $opt{data} // '', scalar @$acl) . join('', map { pack('N N/a* N/a*', @$_) } @$acl) . pack('N', _mode(%opt));
}

# All of these in one transaction, or none: multi([ create => $path, mode => ... ],
# [ delete => $path ], [ check => $path ]).  Returns the paths of what it has created.
sub multi
{
	my ($self, @ops) = @_;
	my $body = '';
	foreach (@ops)
	{
		my ($op, $path, %opt) = @$_;
		$body .= pack('N C l> N/a*', $OP{ $op eq 'create' ? _create_op(%opt) =~ s/2//r : $op }, 0, -1, $path)
		  . ($op eq 'create' ? _create_args(%opt) : pack('N', 0xffffffff));
	}
	my $answer = $self->_request(++$self->{xid}, 'multi', '', $body . pack('l> C l>', -1, 1, -1));
	my @created;
	while (1)
	{
		(my ($type, $done, $err), $answer) = unpack('l> C l> a*', $answer);
		last if $done;
		die "ZkClient: multi: $ERR{$err} ($err)\n" if $type == -1 && $err != 0 && $err != -2;
		if ($type == -1) { substr($answer, 0, 4) = ''; }    # the code again: of one that was not to blame
		elsif ($type == $OP{create}) { (my $path, $answer) = unpack('N/a* a*', $answer); push @created, $path; }
		elsif ($type == $OP{create2}) { (my $path, $answer) = unpack('N/a* x68 a*', $answer); push @created, $path; }
	}
	return @created;
}

# Creates many nodes, [ path, data ], and asks for more before it has the answers
sub create_all
{
	my ($self, $mode, @nodes) = @_;
	while (my @some = splice @nodes, 0, 500)
	{
		$self->_send(pack('l> l> N/a*', ++$self->{xid}, $OP{create2}, $_->[0]) . _create_args(mode => $mode, data => $_->[1])) for @some;
		foreach my $node (@some)
		{
			my (undef, undef, $err) = unpack('l> q> l>', $self->_frame($self->_deadline));
			die "ZkClient: create $node->[0]: $ERR{$err}\n" if $err;
		}
	}
	return;
}

# How many contenders are in the queue of a lock, whichever client they use
sub contenders
{
	my ($self, $dir) = @_;
	return scalar grep { /\d{9}$/ } $self->children($dir);
}

# The paths of its nodes, in order
sub queue
{
	my ($self, $dir) = @_;
	return map { "$dir/$_" } sort { substr($a, -10) cmp substr($b, -10) } $self->children($dir);
}

# Delete these nodes, as an administrator might by hand: those whose names match
# (default: all).  Dies if there is none.
sub delete_contenders
{
	my ($self, $dir, $like) = @_;
	$like //= qr/\d{10}$/;
	my @nodes = grep { $_ =~ $like } $self->children($dir);
	die "no such node in $dir" unless @nodes;
	$self->delete("$dir/$_") for @nodes;
	return;
}

# Join the queue of a lock, as another client would, and return the node:
# contend($dir, $prefix, data => '', ...).  Directories are containers, which
# ZooKeeper may remove before the node exists.
sub contend
{
	my ($self, $dir, $prefix, %opt) = @_;
	$prefix //= '_c_other-lock-';
	for (1 .. 100)
	{
		my $node = eval {
			my $path = '';
			foreach my $part (grep { $_ ne '' } split m{/}, $dir)
			{
				$path .= "/$part";
				$self->create($path, mode => 'container') unless $self->exists($path);
			}
			scalar $self->create("$dir/$prefix", mode => 'ephemeral_sequential', %opt);
		};
		return $node if $node;
		die $@ unless $@ =~ /NONODE|NODEEXISTS/;
	}
	die "$dir: is removed again and again\n";
}

# returns false if there was nothing to delete
sub delete
{
	my ($self, $path, $version) = @_;
	return defined $self->_call('delete', $path, pack('N', $version // 0xffffffff), NONODE);
}

# delete a node with everything below it
sub delete_tree
{
	my ($self, $path) = @_;
	$self->delete_tree($path eq '/' ? "/$_" : "$path/$_") for $self->children($path);
	return $self->delete($path);
}

# the Stat, or undef when there is no such node
sub exists
{
	my ($self, $path, $watch) = @_;
	my $answer = $self->_call('exists', $path, pack('C', $watch ? 1 : 0), NONODE);
	return defined $answer ? _stat($answer) : undef;
}

# (data, Stat), or () when there is no such node
sub get
{
	my ($self, $path, $watch) = @_;
	my $answer = $self->_call('getData', $path, pack('C', $watch ? 1 : 0), NONODE);
	return wantarray ? () : undef unless defined $answer;
	my $len = unpack('l>', $answer);    # -1: null
	my $data = $len < 0 ? undef : substr($answer, 4, $len);
	return $data unless wantarray;
	return ($data, _stat(substr($answer, 4 + ($len < 0 ? 0 : $len))));
}

sub set
{
	my ($self, $path, $data, $version) = @_;
	return _stat($self->_call('setData', $path,
			pack('N/a* N', $data, $version // 0xffffffff)));
}

# names, in no particular order; none when there is no such node
sub children
{
	my ($self, $path, $watch) = @_;
	my $answer = $self->_call('getChildren2', $path, pack('C', $watch ? 1 : 0), NONODE);
	return defined $answer ? unpack('N/(N/a*)', $answer) : ();
}

# $acl: [ [perms, scheme, id], ... ]
sub set_acl
{
	my ($self, $path, $acl) = @_;
	$self->_call('setACL', $path,
		pack('N', scalar @$acl) . join('', map { pack('N N/a* N/a*', @$_) } @$acl) . pack('N', 0xffffffff));
	return;
}

# ([perms, scheme, id], ...)
sub get_acl
{
	my ($self, $path) = @_;
	my $answer = $self->_call('getACL', $path, '');
	my ($n, @acl) = unpack('N', $answer);
	my @field = unpack("x4 (N N/a* N/a*)$n", $answer);
	push @acl, [ splice @field, 0, 3 ] while @field;
	return @acl;
}

# Another ensemble, by a superuser: reconfig(leaving => '3') or reconfig(joining =>
# 'server.3=...')
sub reconfig
{
	my ($self, %change) = @_;
	my $body = pack '(a*)3 q>', map({ defined ? pack('N/a*', $_) : pack('l>', -1) } @change{qw(joining leaving)}, undef), -1;
	$self->_request(++$self->{xid}, 'reconfig', '', $body);
	return;
}

# Make our server catch up with the leader, so that the next read is at least as
# new as this call.
sub sync
{
	my ($self, $path) = @_;
	$self->_call('sync', $path // '/', '');
	return;
}

# Add an identity to the session.  ZooKeeper closes the connection if it refuses
# one.
sub add_auth
{
	my ($self, $scheme, $credentials) = @_;
	$self->_request(-4, 'auth', '', pack('N N/a* N/a*', 0, $scheme, $credentials));
	return;
}

sub ping
{
	my ($self) = @_;
	$self->_request(-2, 'ping', '', '');
	return;
}

# End the session: its ephemeral nodes are gone when this returns.
sub close
{
	my ($self) = @_;
	return unless $self->{sock};
	eval { $self->_request(++$self->{xid}, 'close', '', ''); };
	$self->abandon;
	return;
}

# Cut the connection only: the session lives until ZooKeeper expires it.
sub abandon
{
	my ($self) = @_;
	CORE::close(delete $self->{sock}) if $self->{sock};
	return;
}

# ------------------------------------------------------------------ the wire

sub _deadline { return time + $_[0]->{timeout}; }

# Send a request for a path.
sub _call
{
	my ($self, $op, $path, $args, $expected) = @_;
	return $self->_request(++$self->{xid}, $op, $path, pack('N/a*', $path) . $args, $expected);
}

# Send one request and return the body of its answer, or undef for the one error that
# the caller expects; the code is in {err}.
sub _request
{
	my ($self, $xid, $op, $path, $body, $expected) = @_;
	my $deadline = $self->_deadline;

	die "ZkClient: $op $path: not connected\n" unless $self->{sock};
	my $ok = eval {
		$self->_send(pack('l> l>', $xid, $OP{$op}) . $body);
		while (1)
		{
			my $frame = $self->_frame($deadline);
			my ($answers, undef, $err) = unpack('l> q> l>', $frame);
			if ($answers == $xid)
			{
				$self->{err} = $err;
				$body = substr($frame, 16);
				return 1;
			}
			die "answer to $answers instead of $xid\n" if $answers != -1;    # which is an event
		}
	};
	if ($ok)
	{
		return $body if $self->{err} == 0;
		return undef if $self->{err} == ($expected // 0);
		die sprintf("ZkClient: %s %s: %s (%d)\n", $op, $path, $ERR{ $self->{err} } // 'error', $self->{err});
	}
	my $why = $@;
	$self->abandon;    # whatever is left on the wire is no answer to a later request
	chomp $why;
	die "ZkClient: $op $path: $why\n";
}

# Most requests fit into the socket's buffer.
sub _send
{
	my ($self, $body) = @_;
	my $frame = pack('N/a*', $body);
	my $deadline = $self->_deadline;
	local $SIG{PIPE} = 'IGNORE';
	while (length $frame)
	{
		IO::Select->new($self->{sock})->can_write($deadline - time) or die "could not send: timeout\n";
		my $sent = syswrite($self->{sock}, $frame) // die "could not send: $!\n";
		substr $frame, 0, $sent, '';
	}
	return;
}

sub _frame
{
	my ($self, $deadline) = @_;
	my $select = IO::Select->new($self->{sock});
	while (1)
	{
		if (length $self->{buffer} >= 4)
		{
			my $len = unpack('N', $self->{buffer});
			die "not ZooKeeper: a frame of $len bytes\n" if $len > 64 << 20;
			return substr(substr($self->{buffer}, 0, 4 + $len, ''), 4)
			  if length $self->{buffer} >= 4 + $len;
		}
		my $left = $deadline - time;
		die "timeout\n" if $left <= 0;
		next unless $select->can_read($left);    # interrupted by SIGCHLD
		my $n = sysread($self->{sock}, $self->{buffer}, 65536, length $self->{buffer});
		die "connection lost" . (defined $n ? '' : ": $!") . "\n" unless $n;
	}
}

sub _stat
{
	my ($bytes) = @_;
	my %stat;
	@stat{qw(czxid mzxid ctime mtime version cversion aversion ephemeralOwner
		dataLength numChildren pzxid)} = unpack('q>4 l>3 q> l>2 q>', $bytes);
	return \%stat;
}

1;
