
=pod

=head1 NAME

TcpLinks - TCP connections that a test can cut

=head1 SYNOPSIS

  my $links = TcpLinks->new('1-2' => $port, '2-1' => $other);
  $links->port('1-2');      # connect here instead
  $links->cut('1-2');       # silent in both directions
  $links->cut_one_way(forth => '1-2');    # only from who connected; back: only to it
  $links->mend('1-2');      # what was under way arrives now

=head1 DESCRIPTION

Each link has a name and leads from a port of its own to a port on the loopback
interface.  It knows nothing about the data.  A link that is cut accepts
connections and keeps them, and neither end learns anything: neither what the
other one says nor that it has gone.  If nobody listens at the target, a
connection is kept for a second before it is closed: a client that is refused
would try again, but one that was accepted and then cut off may draw other
conclusions.

One process serves all links, and ends with the process that made it: see
Servant.

=cut

package TcpLinks;

use strict;
use warnings;
use IO::Socket::INET;
use POSIX ();
use Socket;

use Servant;
use ZooKeeper;

our @ISA = ('Servant');

sub new
{
	my ($class, %target) = @_;
	my $self = $class->_spawn('TcpLinks', %target);
	$self->{port} = { split ' ', $self->_answer('start') };
	return $self;
}

sub port { return $_[0]->{port}{ $_[1] }; }
sub cut { my ($self, @link) = @_; return $self->_do("cut @link"); }
sub cut_one_way { my ($self, $way, @link) = @_; return $self->_do("$way @link"); }
sub mend { my ($self, @link) = @_; return $self->_do("mend @link"); }

package TcpLinks::Server;

use Errno qw(EAGAIN EINTR EWOULDBLOCK);
use Time::HiRes qw(time);

my $PATIENCE = 1;    # seconds

my %link;      # name => { target, listener, cut => [ forth, back ] }
my @waiting;   # { link, client, until }: their target does not listen yet
my %conns;    # number => { link, way => [ { from, to, out, eof } x 2 ] }
my $last_number = 0;

sub main
{
	my %target = @_;
	$SIG{PIPE} = 'IGNORE';
	foreach my $name (sort keys %target)
	{
		my $listener = IO::Socket::INET->new(
			LocalAddr => '127.0.0.1',
			LocalPort => ZooKeeper::free_port(),
			Proto => 'tcp',
			ReuseAddr => 1,
			Listen => 128) or die "could not listen: $@\n";
		$listener->blocking(0);
		$link{$name} = { target => $target{$name}, listener => $listener, cut => [ 0, 0 ] };
	}
	my $control = IO::Socket->new_from_fd(0, 'r+');
	Servant::reply($control, join ' ', map { $_ => $link{$_}{listener}->sockport } sort keys %link);

	my $commands = '';
	while (1)
	{
		my $readable = _select($control);
		if ($readable->{ fileno $control })
		{
			# the test is over, in whatever way it ended
			sysread $control, $commands, 65536, length $commands or POSIX::_exit(0);
			while ($commands =~ s/^(\w+) (.*)\n//)
			{
				my ($command, @names) = ($1, split / /, $2);
				foreach my $cut (map { $link{$_}{cut} } @names)
				{
					@$cut = $command eq 'mend' ? (0, 0) : ($command eq 'back' ? $cut->[0] : 1, $command eq 'forth' ? $cut->[1] : 1);
				}
				Servant::reply($control, '');
			}
		}
		foreach my $link (values %link)
		{
			_accept($link) if $readable->{ fileno $link->{listener} };
		}
		_connect();
		_move($_, $conns{$_}, $readable) for keys %conns;
	}
}

sub _select
{
	my ($control) = @_;
	my ($r, $w) = ('', '');
	vec($r, fileno $_, 1) = 1 for $control, map { $_->{listener} } values %link;
	foreach my $way (map { _ways($_) } values %conns)
	{
		# only one piece at a time, so that the sender feels a slow receiver
		if (length $way->{out}) { vec($w, fileno $way->{to}, 1) = 1; }
		elsif (!$way->{eof}) { vec($r, fileno $way->{from}, 1) = 1; }
	}
	$r = '' if select($r, $w, undef, @waiting ? 0.02 : undef) < 0;
	return { map { $_ => 1 } grep { vec($r, $_, 1) } 0 .. 8 * length($r) - 1 };
}

sub _accept
{
	my ($link) = @_;
	while (my $client = $link->{listener}->accept)
	{
		push @waiting, { link => $link, client => $client, until => time + $PATIENCE };
	}
	return;
}

sub _connect
{
	foreach my $wait (splice @waiting)
	{
		my ($link, $client) = @$wait{qw(link client)};
		my $server = IO::Socket::INET->new(
			PeerAddr => "127.0.0.1:$link->{target}",
			Proto => 'tcp',
			Timeout => 5);
		unless ($server)
		{
			push @waiting, $wait if time < $wait->{until};
			next;
		}
		foreach my $sock ($client, $server)
		{
			$sock->blocking(0);
			$sock->setsockopt(Socket::IPPROTO_TCP(), Socket::TCP_NODELAY(), 1);
		}
		$conns{ ++$last_number } = {
			link => $link,
			way => [
				{ from => $client, to => $server, out => '' },
				{ from => $server, to => $client, out => '' }
			]
		};
	}
	return;
}

# Those that are not silent
sub _ways
{
	my ($conn) = @_;
	return map { $conn->{link}{cut}[$_] ? () : $conn->{way}[$_] } 0, 1;
}

sub _again { return $!{EAGAIN} || $!{EWOULDBLOCK} || $!{EINTR}; }

sub _move
{
	my ($number, $conn, $readable) = @_;
	my $over = 0;
	foreach my $way (_ways($conn))
	{
		if ($way->{out} eq '' && $readable->{ fileno $way->{from} })
		{
			my $n = sysread $way->{from}, $way->{out}, 1 << 16;
			$way->{eof} = 1 if defined $n ? $n == 0 : !_again();
		}
		if (length $way->{out})
		{
			my $n = syswrite $way->{to}, $way->{out};
			if (defined $n) { substr $way->{out}, 0, $n, ''; }
			elsif (!_again()) { $over = 1; }
		}
		$over = 1 if $way->{eof} && $way->{out} eq '';
	}
	delete $conns{$number} if $over;    # which closes both ends
	return;
}

1;
