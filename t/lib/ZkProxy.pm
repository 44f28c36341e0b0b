
=pod

=head1 NAME

ZkProxy - a faulty network between a client and one ZooKeeper server

=head1 SYNOPSIS

  my $proxy = ZkProxy->new($zk);             # or 'host:port'
  ... 'zklock.hosts' => $proxy->hosts ...

  $proxy->swallow('create2');                # the answer never arrives
  $proxy->hold('getChildren');               # the answer waits ...
  $proxy->wait_held;                         # (it has reached the proxy)
  $proxy->release;                           # ... until now
  $proxy->blackhole; $proxy->drop; $proxy->refuse; $proxy->pass;

  $proxy->count_frames;                      # from now on:
  $proxy->nth('reply', 7, 'cut');            # half of the seventh arrives

  $proxy->clear_log;
  ...
  is($proxy->count('create2'), 1);
  is($proxy->trips, 1, 'one round trip');

=head1 DESCRIPTION

This is a separate process that understands ZooKeeper's frames, in both
directions: what is swallowed, held or counted is a whole request, answer or
watch event.  It ends with the process that made it, in whatever way that ends.

Operations have the names of ZooKeeper's protocol: create, create2, delete,
exists, getData, getChildren, getChildren2, sync, multi, createContainer, ping,
close, setWatches, auth, ... (the keys of %ZkClient::OP), and "connect" for the
handshake; '*' is any of them except pings.  In a rule some multis have no other name than
these: "break" checks nodes and deletes another, "mark" checks nodes and sets the data of
others, "settle" sets data and deletes a node.  Client libraries choose among
these: the C client's zoo_acreate is a create2 only if it asks for a Stat, and a
container's create is createContainer.  A test of "create" in the wide sense
says ['create', 'create2'].

A client may react to a missing answer: the C client drops a connection on which
an answer is missing as soon as the next one arrives.  The variants with "drop"
and "hold" exist for that reason.  Who sends nothing else waits for a heartbeat's
answer, which comes after a quarter of the session timeout: a call that is to
survive "swallow" needs a longer operation_timeout than that.

=cut

package ZkProxy;

use strict;
use warnings;
use Carp;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IO::Socket::INET;
use POSIX ();
use Socket;
use Time::HiRes qw(time);

use parent 'Child';
use Deadline;
use ZkClient;
use ZooKeeper;

my $lib = abs_path(dirname(__FILE__));

# ======================================================== the side of the test

# ZkProxy->new($target, delay_ms => n): $target is "host:port", or an object
# with "hosts".  With link => 1 what is said are no frames: it is what servers say to
# each other, of which only the whole network concerns the test.
sub new
{
	my ($class, $target, %opt) = @_;
	$target = $target->hosts if ref $target;

	# A fresh interpreter has neither the test's END blocks and open files
	# nor the handles that a test framework has tied.
	my $self = $class->talks(
		[ $^X, '-I', $lib, '-e', 'BEGIN { $ZkProxy::is_one = 1; } use ZkProxy; ZkProxy::Server::main(@ARGV)', $target, $opt{link} // 0 ],
		err => '-');
	$self->{port} = $self->_do('port');
	$self->delay_ms($opt{delay_ms}) if $opt{delay_ms};
	return $self;
}

# Send a command and return its answer, which is one line, with $SEPARATOR for ends of lines
my $SEPARATOR = "\x1e";

sub _do
{
	my ($self, $command) = @_;
	my $answer = eval { $self->say($command) ? $self->line(time + $TIMEOUT) : die 'the process is gone' };
	croak "ZkProxy: $command: ", $@ || 'no answer' unless defined $answer;
	$answer =~ s/$SEPARATOR/\n/g;
	croak "ZkProxy: $command: $1" if $answer =~ /^ERROR (.*)/s;
	return $answer;
}

sub stop
{
	my ($self) = @_;
	return unless $self->{pid};
	close $self->{to};    # which ends the process
	Child::ended(delete $self->{pid});
	return;
}

sub port { return $_[0]->{port}; }
sub hosts { return "127.0.0.1:$_[0]->{port}"; }

# Those that are sent to the process as they are
foreach my $command (qw(drop delay_ms dribble release held swallowed connections clear_log
	count_frames spoil forge_list forge_nodes forge_name))
{
	no strict 'refs';
	*$command = sub { my ($self, @args) = @_; return $self->_do(join ' ', $command, @args); };
}

# -- the whole network
#   drop          Cut the existing connections; new ones are possible.
#   delay_ms(n)   Delay each frame by that much, in each direction.
#   dribble       Data arrives at the client in pieces of a few bytes, until reset.

# Everything works again; what a black hole held back is delivered.  Rules for
# single operations stay: see release and reset.
sub pass { return $_[0]->_do('mode pass'); }

# Connections can be opened and stay open, but nothing comes out at either end.  With
# "up", only the server hears nothing; with "down", only the client.
sub blackhole { my ($self, $way) = @_; return $self->_do('mode blackhole ' . ($way // '')); }

# New connections are refused.  With at_accept they are closed as soon as they
# are open, as by a server that has too many from one address.
sub refuse
{
	my ($self, %opt) = @_;
	return $self->_do('mode ' . ($opt{at_accept} ? 'close' : 'refuse'));
}

# Cut the existing connections, and refuse new ones until pass.
sub cut_off
{
	my ($self) = @_;
	$self->refuse;
	return $self->drop;
}

# -- single operations.  Each takes an operation or a list of them, and how many
# of the next such requests it applies to (default 1).
#   swallow           The server gets it, but the answer never reaches the client.
#   swallow_and_drop  The same, and the connection is cut when the answer would arrive.
#   garble            The server gets it, but the client gets text, as from a web server.
#   drop_request      The connection is cut instead of passing on the request.
#   hold              The answer, and all that follows it from the server, waits for release.
#   hold_request      The request, and all that follows it from the client, waits for release.
my %rule = (
	swallow => 'reply swallow', swallow_and_drop => 'reply drop', garble => 'reply text', drop_request => 'request drop',
	hold => 'reply hold', hold_request => 'request hold');
foreach my $name (keys %rule)
{
	no strict 'refs';
	*$name = sub { return _rule($rule{$name}, @_); };
}

# The server never gets it, and the client gets this code, as from a server that has
# not carried it out: -127 if it throttles.
sub deny
{
	my ($self, $op, $code, $count) = @_;
	return _rule("request deny$code", $self, $op, $count);
}

# Watch events wait, and everything behind them, as the order of a connection
# requires.  With alone => 1 only the events wait, which no real network does.
sub hold_event
{
	my ($self, %opt) = @_;
	return $self->_do('rule reply ' . ($opt{alone} ? 'hold_alone' : 'hold') . ' event 1');
}

sub _rule
{
	my ($action, $self, $op, $count) = @_;
	my @op = ref $op ? @$op : $op;
	foreach (@op)
	{
		croak "no such operation: $_"
		  unless /^(?:\*|connect|break|mark|settle)$/ || exists $ZkClient::OP{$_};
	}
	return $self->_do("rule $action " . join(',', @op) . ' ' . ($count // 1));
}

# -- the nth frame.  $way is "request" or "reply"; the count includes everything
# since $proxy->count_frames on all connections: handshakes, heartbeats, watch
# events.  Only one such fault in each direction at a time; wait_held also waits
# for this "hold".
#
# For both:
#   swallow    the frame never arrives; the connection goes on
#   drop       the connection is cut instead
#   abort      the same, with a reset: what was sent before may be lost, too
#   cut        half of the frame arrives, then the connection is cut
#   stall      half of the frame arrives, and nothing after it
#   hold       it and everything behind it wait for release
# For requests:
#   throttle   as deny with -127, if a server throttles such requests
# For replies:
#   twice      it arrives twice
#   late       it and everything behind it arrive 300 ms later
#   unheard    the first event from there on never arrives
#   xid        it has the xid of another request
#   length, negative, huge, tiny, zero    its length is wrong
#   text       something else instead, as from a web server
#   slash      the first answer to a multi from there on has paths that begin without a slash
#   moved      the server says that the session has moved to another one
#   expire     the connection is cut, and the next one is told that its
#              session has expired
#   outage     all connections are cut, and new ones are refused for 300 ms
sub nth
{
	my ($self, $way, $n, $action) = @_;
	return $self->_do($action eq 'slash' ? 'rule reply slash multi 1' : "nth $way $n $action");
}

# -- a server that lies.  All of these last until reset.
#   spoil(n, seed)   Spoil this many of a thousand replies, at random: truncated, halved,
#                 padded, numbers replaced, bits flipped, bytes left out or repeated, the
#                 error or the length changed, or another reply's body.  This includes
#                 handshakes and events.
#   forge_list(n, format, bytes)   Each list of children has this many names, sprintf(format,
#                 1 ...), each preceded by this many bytes that are not UTF-8.
#   forge_nodes   Each node whose data is asked for exists, is ephemeral, and was made by
#                 zklock.
#   forge_name(name)   Each created node gets another name.

# What was spoiled: "operation kind" => count
sub spoiled { return map { split /\t/ } split /\n/, $_[0]->_do('spoiled'); }

# (requests, replies) since count_frames, which also removes the faults at nth frames
sub frames { return split / /, $_[0]->_do('frames'); }

# Back to the initial state: no rules, nothing held, no delay, pass.  (release lets go of
# what is held, and removes the "hold" rules.)
sub reset
{
	my ($self) = @_;
	$self->_do('reset');
	return;
}

# -- observing

# How many requests with that operation (or these) the client has sent since
# clear_log, whether or not they were passed on.
sub count
{
	my ($self, $op) = @_;
	return $self->_do('count ' . join(',', ref $op ? @$op : $op));
}

# Wait until that many (default: one) have been seen.
sub wait_for
{
	my ($self, $op, $count) = @_;
	return until_true(sub { $self->count($op) >= ($count // 1) }, 'a ' . (ref $op ? "@$op" : $op));
}

# Wait until that many answers to it, of one name, have arrived, or events.
sub wait_answers
{
	my ($self, $op, $count) = @_;
	return until_true(sub { ($count // 1) <= grep { $_->[1] eq '<' && $_->[2] eq $op } $self->log }, "an answer to $op");
}

# Wait until a rule has held something back: the answer (or event) is in the
# proxy and the client does not have it.  (held: how many frames wait because of a rule;
# swallowed: how many answers were.)
sub wait_held { my ($self) = @_; return until_true(sub { $self->held > 0 }, 'something to hold'); }

sub wait_swallowed { my ($self) = @_; return until_true(sub { $self->swallowed > 0 }, 'an answer to swallow'); }

# Lose the next answer to an operation (or the request) in one of these ways, and
# wait until that has happened.
my %lose = (
	'swallowed' => 'swallow',
	'swallowed with all behind it' => 'hold',
	'swallowed and the connection cut' => 'swallow_and_drop',
	'never asked for, the connection cut' => 'drop_request',
	'stuck on its way' => 'hold_request');    # until the client has given up on it

our @WAYS = sort keys %lose;
our @WAYS_OF_ANSWERS = grep { !/^stuck/ } @WAYS;

sub lose
{
	my ($self, $way, $op) = @_;
	my $method = $lose{$way} or croak "no such way: $way";
	return $self->$method($op);
}

sub wait_lost
{
	my ($self, $way) = @_;
	return $self->wait_held if $lose{$way} =~ /^hold/;
	return $self->wait_swallowed if $lose{$way} =~ /^swallow/;
	return until_true(sub { grep { $_->[1] eq '.' && $_->[2] eq 'drop' } $self->log }, 'a cut');
}

# The connections that got a session, since the proxy was started:
#   [ session id as 0x..., time of the handshake, time of the end or '' ], ...
sub sessions { return map { [ split /\t/, $_, -1 ] } split /\n/, $_[0]->_do('sessions'); }

# The traffic since clear_log:
#   [time, direction, operation, xid, path, error, connection, more]
# direction: '>' a request, when the client sent it
#            '<' an answer or an event, when the client got it
#            'x' an answer that was swallowed, or what a rule cut off
#            '.' something else: operation is open, close or drop; or closed, if
#            closed at once because of refuse(at_accept => 1)
# The operation of an event is 'event' and its "more" created, deleted, changed
# or child; "more" of a multi is "create /a,delete /b,..."; of an answer to
# connect, the session's id as 0x...
sub log
{
	my ($self) = @_;
	my @log;
	foreach my $line (split /\n/, $self->_do('log'))
	{
		my @entry = split /\t/, $line, -1;
		s/%([0-9a-f]{2})/chr hex $1/ge for @entry[ 4, 7 ];
		push @log, \@entry;
	}
	return @log;
}

# How many successive round trips the client made since clear_log, on the busiest
# connection: a request belongs to the trip after those whose answers had arrived
# when it was sent.  Late answers to an earlier trip (to lists that were sent with a
# request that failed, for example) do not begin a new one.  Pings, heartbeats
# that write nothing, the handshake, close and removeWatches do not count.
#
# Whether a request was sent together with the one before or after its answer
# can be told only if the answer takes longer than the client needs between the
# two: on a busy machine call delay_ms(20) first.
sub trips
{
	my ($self) = @_;
	my %trip;    # connection => { xid => number of its trip, answered => of the last one }
	foreach ($self->_without_heartbeats)
	{
		my (undef, $dir, $op, $xid, undef, undef, $conn) = @$_;
		next if $op =~ /^(?:connect|ping|close|auth|setWatches2?|event|removeWatches)$/;
		my $of = $trip{$conn} //= { answered => 0 };
		if ($dir eq '>') { $of->{$xid} = $of->{answered} + 1; }
		elsif ($dir eq '<' && ($of->{$xid} // 0) > $of->{answered}) { $of->{answered} = $of->{$xid}; }
	}
	my ($most) = sort { $b <=> $a } 0, map { values %$_ } values %trip;
	return $most;
}

# The requests since clear_log as "op path", without pings and heartbeats:
# useful to print when a count is wrong.
sub requests
{
	my ($self) = @_;
	return map { $_->[2] . ' ' . ($_->[7] ne '' ? "[$_->[7]]" : $_->[4]) }
	  grep { $_->[1] eq '>' && $_->[2] ne 'ping' } $self->_without_heartbeats;
}

# The log without the heartbeats that write nothing: exists on "/", and a sync on "/"
# with the read behind it
sub _without_heartbeats
{
	my ($self) = @_;
	my %heartbeat;    # connection => { xid => 1 }
	my %behind;       # connection => a sync was sent, the read not yet
	my @left;
	foreach my $entry ($self->log)
	{
		my (undef, $dir, $op, $xid, $path, undef, $conn) = @$entry;
		if ($dir eq '>')
		{
			my $begins = $op eq 'sync' && $path eq '/';
			$heartbeat{$conn}{$xid} = 1 if $begins || delete $behind{$conn} || ($op eq 'exists' && $path eq '/');
			$behind{$conn} = 1 if $begins;
		}
		push @left, $entry unless $op ne 'event' && $heartbeat{$conn}{$xid};
	}
	return @left;
}

# ======================================================= the side of the proxy

package ZkProxy::Server;

use Errno qw(EAGAIN EINTR EWOULDBLOCK);
use Time::HiRes qw(time);

my ($target, $port, $listener, $mode, $delay, $dribble);
my $link;          # it passes bytes, not frames
my @rules;         # { way, action, ops => {name => 1}, count }
my %conns;         # number => connection
my @log;
my %count;         # operation => requests seen
my $swallowed;
my %silent;        # the ways of a black hole
my $last_number = 0;
my @sessions;      # [ session, begin, end ]
my %frames = (request => 0, reply => 0);
my %nth;              # way => [number, action]
my $spoil;            # per thousand replies
my %spoiled;           # "operation kind" => count
my %body;             # operation => body of its last sound answer
my %forge;            # operation => what replaces its answer
my $expire_next;      # tell the next handshake that its session has expired
my $refuse_until;     # an outage ends by itself

# A connection has two directions, "up" to the server and "down" to the client:
#   from, to   sockets
#   in         bytes that are not a whole frame yet
#   queue      frames on their way: { due, bytes, entry, held, cut }
#   out        bytes that may be written now
#   handshake  the next frame is the first one
#   eof        the sender has closed: close when the queue is empty
# "asked" has the requests without an answer: { xid, op, path, action }, where the
# action is that for the answer; the
# queue of "aside" has the events that hold_event(alone => 1) holds.

sub main
{
	($target, $link) = @_;
	$SIG{PIPE} = 'IGNORE';
	$port = _listen(ZooKeeper::free_port());
	_forget();

	my $commands = '';
	while (1)
	{
		my $readable = _select();

		# Clients before servers: a request that has arrived was sent before an
		# answer that has arrived.  trips relies on it.
		foreach my $conn (map { $conns{$_} } sort { $a <=> $b } keys %conns)
		{
			foreach my $way (qw(up down))
			{
				last if $conn->{closed};
				_read($conn, $way) if $readable->{ fileno $conn->{$way}{from} };
			}
		}
		_accept() if $listener && $readable->{ fileno $listener };
		if ($readable->{0})
		{
			# the test is over, in whatever way it ended
			sysread STDIN, $commands, 65536, length $commands or POSIX::_exit(0);
			while ($commands =~ s/^(.*)\n//)
			{
				my $answer = eval { _command(split / /, $1) };
				_reply($@ ? "ERROR $@" : $answer // '');
			}
		}
		if ($refuse_until && time >= $refuse_until)
		{
			undef $refuse_until;
			_mode('pass') if $mode eq 'refuse';
		}
		_move($_) for values %conns;
	}
}

sub _reply
{
	my ($answer) = @_;
	my $bytes = $answer =~ s/\n/$SEPARATOR/gr . "\n";
	while (length $bytes)
	{
		my $n = syswrite STDOUT, $bytes or POSIX::_exit(0);
		substr $bytes, 0, $n, '';
	}
	return;
}

sub _select
{
	my ($r, $w) = ('', '');
	my $wake;

	vec($r, 0, 1) = 1;
	vec($r, fileno $listener, 1) = 1 if $listener && $mode ne 'refuse';
	foreach my $conn (values %conns)
	{
		foreach my $way (qw(up down))
		{
			my $d = $conn->{$way};
			vec($r, fileno $d->{from}, 1) = 1 unless $d->{eof};
			vec($w, fileno $d->{to}, 1) = 1 if length $d->{out};
			my $first = $d->{queue}[0] or next;
			next if $first->{held} || $silent{$way};
			$wake = $first->{due} if !defined $wake || $first->{due} < $wake;
		}
	}
	$wake = $refuse_until if $refuse_until && (!defined $wake || $refuse_until < $wake);
	my $left = defined $wake ? $wake - time : undef;
	$left = 0 if defined $left && $left < 0;
	my $n = select $r, $w, undef, $left;
	$r = '' if $n < 0;
	my %readable = map { $_ => 1 } grep { vec($r, $_, 1) } 0 .. 8 * length($r) - 1;
	return \%readable;
}

# -------------------------------------------------------------- connections

# While connections are refused, the port stays ours: bound, but not listening.
sub _listen
{
	my ($wanted, $refuse) = @_;
	close $listener if $listener;
	$listener = IO::Socket::INET->new(
		LocalAddr => '127.0.0.1',
		LocalPort => $wanted,
		Proto => 'tcp',
		ReuseAddr => 1,
		$refuse ? () : (Listen => 128)) or die "could not listen: $@\n";
	$listener->blocking(0);
	return $listener->sockport;
}

sub _accept
{
	while (my $client = $listener->accept)
	{
		if ($mode eq 'close')
		{
			_log({ number => ++$last_number }, '.', 'closed');
			close $client;
			next;
		}
		my $server = _connect();
		# who is refused would try again, but a server that was accepted and then cut off
		# may draw other conclusions
		for (my $n = 0; $link && !$server && $n < 50; $n++)
		{
			select undef, undef, undef, 0.02;
			$server = _connect();
		}
		unless ($server)
		{
			close $client;    # what a client sees when a server is down
			next;
		}
		foreach my $sock ($client, $server)
		{
			$sock->blocking(0);
			$sock->setsockopt(Socket::IPPROTO_TCP(), Socket::TCP_NODELAY(), 1);
		}
		my $number = ++$last_number;
		$conns{$number} = {
			number => $number,
			asked => [],
			aside => { queue => [] },
			up => { from => $client, to => $server, in => '', out => '', queue => [], handshake => 1 },
			down => { from => $server, to => $client, in => '', out => '', queue => [], handshake => 1 }
		};
		_log($conns{$number}, '.', 'open');
	}
	return;
}

sub _connect { return IO::Socket::INET->new(PeerAddr => $target, Proto => 'tcp', Timeout => 5); }

sub _close
{
	my ($conn, $why) = @_;
	return if $conn->{closed}++;
	_log($conn, '.', $why);
	$conn->{session}[2] = time if $conn->{session};
	close $conn->{up}{from};
	close $conn->{down}{from};
	delete $conns{ $conn->{number} };
	return;
}

# ------------------------------------------------------------------- frames

sub _read
{
	my ($conn, $way) = @_;
	my $d = $conn->{$way};
	my $n = sysread $d->{from}, $d->{in}, 1 << 18, length $d->{in};
	if (!$n)
	{
		return if !defined $n && ($!{EAGAIN} || $!{EWOULDBLOCK} || $!{EINTR});
		$d->{eof} = 1;    # _move closes it once everything before it is delivered
		return;
	}

	if ($link)
	{
		_queue($d, $d->{in});
		$d->{in} = '';
		return;
	}
	while (length $d->{in} >= 4)
	{
		my $len = unpack 'N', $d->{in};
		return _close($conn, 'close') if $len > 64 << 20;    # not ZooKeeper
		last if length $d->{in} < 4 + $len;
		my $frame = substr $d->{in}, 0, 4 + $len, '';
		if ($way eq 'up') { _request($conn, $frame); }
		else { _answer($conn, $frame); }
		return if $conn->{closed};
	}
	return;
}

sub _queue
{
	my ($d, $frame, %more) = @_;
	push @{ $d->{queue} }, { due => time + $delay, bytes => $frame, %more };
	return;
}

sub _request
{
	my ($conn, $frame) = @_;
	my ($xid, $op, $path, $more) = (0, 'connect', '', '');
	if (!delete $conn->{up}{handshake})
	{
		($xid, my $type) = unpack 'x4 l> l>', $frame;
		$op = $ZkClient::OP_NAME{$type} // $type;
		my $body = substr $frame, 12;
		if ($op eq 'multi') { ($path, $more) = _multi($body); }
		elsif ($type > 0 && $op !~ /^(?:ping|auth|setWatches2?|sasl|whoAmI)$/)
		{
			$path = eval { unpack 'N/a*', $body } // '';
		}
	}
	_log($conn, '>', $op, $xid, $path, '', $more);
	$count{$op}++;
	$count{'*'}++ if $op ne 'ping';

	if ($op eq 'connect' && $expire_next && unpack 'x20 Q>', $frame)
	{
		undef $expire_next;
		substr $frame, 20, 8, pack 'Q>', 1;    # no session has this id
	}
	my $nth = _nth('request');
	my ($way, $action) = $nth ? ('request', $nth) : _match($op eq 'multi' ? _kind($more) : $op);
	my $fault = $way eq 'request' ? $action : '';
	_log($conn, 'x', $op, $xid, $path, '', $nth) if $nth;
	$fault = $op =~ /^(?:connect|ping|close)$/ ? '' : 'deny-127' if $fault eq 'throttle';
	if ($fault =~ /^deny(.*)/)
	{
		# in its place, so that the answer comes in its turn
		$frame = pack 'N/a*', pack 'l> l> N/a* C', $xid, $ZkClient::OP{exists}, '/', 0;
		($way, $action) = ('reply', $fault);
	}
	elsif ($fault && $fault ne 'hold')
	{
		return if $fault eq 'swallow';
		return _close($conn, 'drop') if $fault eq 'drop';
		return _abort($conn) if $fault eq 'abort';
		die "no such fault of a request: $fault\n" unless $fault =~ /^(?:cut|stall)$/;
		_queue($conn->{up}, substr $frame, 0, length($frame) / 2);
		return _queue($conn->{up}, '', $fault eq 'cut' ? (cut => 1) : (held => 1));
	}
	push @{ $conn->{asked} }, { xid => $xid, op => $op, path => $path, action => $way eq 'reply' ? $action : '' };
	_queue($conn->{up}, $frame, held => $fault eq 'hold');
	return;
}

# Ways to damage a reply
my %damage = (
	xid => sub { substr $_[0], 4, 4, pack 'N', 0x7fff_ff00; },
	length => sub { substr $_[0], 0, 4, pack 'N', length($_[0]) - 4 + 7; },
	negative => sub { substr $_[0], 0, 4, pack 'N', 0xffff_fff0; },
	huge => sub { substr $_[0], 0, 4, pack 'N', 0x7fff_fff0; },
	tiny => sub { substr $_[0], 0, 4, pack 'N', 5; },
	zero => sub { $_[0] = "\0" x 64; },
	text => sub { $_[0] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"; },
	moved => sub { _denied($_[0], -118); },
	slash => sub { $_[0] =~ s{/zklock/}{xzklock/}g; });

# It becomes an answer that says nothing but this code
sub _denied { $_[0] = pack('N', 16) . substr($_[0], 4, 12) . pack 'l>', $_[1]; return; }

# What to do with this frame, if it is the nth.
sub _nth
{
	my ($way, $is_event) = @_;
	my $n = ++$frames{$way};
	my ($at, $action) = @{ $nth{$way} // [0] };
	my $is_it = $at && $action eq 'unheard' ? $n >= $at && $is_event : $n == $at;
	return '' unless $is_it;
	delete $nth{$way};
	return $action;
}

# With a reset instead of a normal end, as if the machine had rebooted.
sub _abort
{
	my ($conn) = @_;
	foreach my $sock ($conn->{up}{from}, $conn->{down}{from})
	{
		setsockopt $sock, Socket::SOL_SOCKET(), Socket::SO_LINGER(), pack 'ii', 1, 0;
	}
	return _close($conn, 'drop');
}

# A fault that ends what is known of a reply
sub _damage
{
	my ($conn, $nth, $frame, $xid) = @_;
	my $down = $conn->{down};

	if ($nth =~ /^(?:swallow|unheard|drop|expire|abort)$/)
	{
		$swallowed++;
		return if $nth =~ /^(?:swallow|unheard)$/;
		$expire_next = 1 if $nth eq 'expire';
		_abort($conn) if $nth eq 'abort';
		# what came before it is delivered first
		_queue($down, '', cut => 1);
	}
	elsif ($nth eq 'cut' || $nth eq 'stall')
	{
		_queue($down, substr $frame, 0, length($frame) / 2);
		_queue($down, '', $nth eq 'cut' ? (cut => 1) : (held => 1));
	}
	elsif ($nth eq 'twice') { _queue($down, $frame) for 1 .. 2; }
	elsif ($nth eq 'late')
	{
		_queue($down, $frame);
		$down->{queue}[-1]{due} += 0.3;
	}
	elsif ($nth eq 'outage')
	{
		_mode('refuse');
		$refuse_until = time + 0.3;
		_close($_, 'drop') for values %conns;
	}
	elsif ($damage{$nth})
	{
		# an event has no error, a handshake has no xid
		$nth = 'xid' if $nth eq 'moved' && $xid <= 0;
		$damage{$nth}->($frame);
		_queue($down, $frame);
	}
	else { die "no such fault of a reply: $nth\n"; }
	return;
}

# Ways to spoil an answer.  They change what follows the length, in the header
# or in the body; the length is then made to fit.
my @numbers = (-1, 0, 1, 2, 3, 4, 8, 16, 68, 255, 4096, 1 << 20, 0x7fff_ffff, -0x8000_0000, -2, -101, -110);

sub _place
{
	my ($len) = @_;
	my $body = 20;
	return $len <= $body || rand() < 0.2 ? 4 + int rand(($len < $body ? $len : $body) - 3) : $body + int rand($len - $body);
}

my %spoil = (
	bare => sub { substr($_[0], 20) = '' if length $_[0] > 20; },
	cut => sub { substr($_[0], _place(length $_[0])) = ''; },
	last => sub { substr($_[0], -1 - int rand 4) = ''; },
	half => sub { substr($_[0], 4 + (length($_[0]) - 4) / 2) = ''; },
	padded => sub { $_[0] .= join '', map { chr int rand 256 } 0 .. int rand 40; },
	longer => sub { $_[0] .= "\0" x int rand 9000; },
	number => sub {
		my $at = 4 + 4 * int((_place(length $_[0]) - 4) / 4);
		substr($_[0], $at, 4) = pack 'l>', $numbers[ rand @numbers ] if $at + 4 <= length $_[0];
	},
	count => sub { substr($_[0], 20, 4) = pack 'l>', $numbers[ rand @numbers ] if length $_[0] >= 24; },
	bits => sub { vec($_[0], 8 * _place(length $_[0]) + int rand 8, 1) ^= 1 for 0 .. rand 3; },
	gap => sub { substr($_[0], _place(length $_[0]), 1 + int rand 9) = ''; },
	again => sub { my $at = _place(length $_[0]); substr($_[0], $at, 0) = substr $_[0], $at, 1 + int rand 30; },
	error => sub { substr($_[0], 16, 4) = pack 'l>', $numbers[ rand @numbers ] if length $_[0] >= 20; },
	success => sub { substr($_[0], 16, 4) = pack 'N', 0 if length $_[0] >= 20; },
	other => sub {
		my @op = sort keys %body;
		substr($_[0], 20) = $body{ $op[ rand @op ] } if @op && length $_[0] >= 20;
	},
	length => sub { });

# Returns the frame, possibly spoiled
sub _spoil
{
	my ($op, $frame) = @_;
	my @kinds = sort keys %spoil;
	return $frame unless $spoil && rand 1000 < $spoil;
	# there are few that say no
	my $refuses = $op ne 'connect' && length $frame >= 20 && unpack('x16 N', $frame) != 0;
	my $kind = $refuses && rand() < 0.5 ? 'success' : $kinds[ rand @kinds ];
	my $was = $frame;
	$spoil{$kind}->($frame);
	my $len = $kind eq 'length' ? length($frame) - 4 + $numbers[ rand @numbers ] : length($frame) - 4;
	substr $frame, 0, 4, pack 'l>', $len;
	$spoiled{"$op $kind"}++ if $frame ne $was;
	return $frame;
}

# What a multi is called in a rule
sub _kind
{
	my ($parts) = @_;
	my %has = map { $_ => 1 } $parts =~ /(?:^|,)(\w+) /g;

	return 'break' if $has{check} && $has{delete};
	return 'mark' if $has{check} && $has{setData};
	return 'settle' if $has{setData} && $has{delete};
	return 'multi';
}

# the first path of a multi, and all of its parts
sub _multi
{
	my ($body) = @_;
	my (@part, $first);
	eval {
		while (length $body >= 9)
		{
			my ($type, $done) = unpack 'l> C', $body;
			last if $done;
			(my $path, $body) = unpack 'x9 N/a* a*', $body;
			my $op = $ZkClient::OP_NAME{$type} // $type;
			$first //= $path;
			push @part, "$op $path";
			if ($op =~ /^create/)
			{
				# data, access list, flags, and how long it may live
				$body = substr $body, 4 + _length($body);
				my $n = unpack 'N', substr $body, 0, 4, '';
				for (1 .. $n)
				{
					substr $body, 0, 4, '';
					$body = substr $body, 4 + _length($body) for 1 .. 2;
				}
				substr $body, 0, $op eq 'createTTL' ? 12 : 4, '';
			}
			else
			{
				$body = substr $body, 4 + _length($body) if $op eq 'setData';
				substr $body, 0, 4, '';    # version
			}
		}
	};
	return ($first // '', join ',', @part);
}

# length in a buffer; -1 is null
sub _length
{
	my $n = unpack 'l>', $_[0];
	return $n < 0 ? 0 : $n;
}

sub _answer
{
	my ($conn, $frame) = @_;
	my $down = $conn->{down};
	my ($xid, $err, $more) = (0, 0, '');
	if (delete $down->{handshake})
	{
		$more = sprintf '0x%x', unpack 'x12 Q>', $frame;
		push @sessions, $conn->{session} = [ $more, time, '' ] if $more ne '0x0';
	}
	else
	{
		($xid, undef, $err) = unpack 'x4 l> q> l>', $frame;
	}

	# Answers come in order, but pings and the like always have the same xid:
	# take the oldest request that matches.  There may be thousands behind it.
	my $asked = $conn->{asked};
	my $i = $xid == -1 ? @$asked : 0;
	$i++ while $i < @$asked && $asked->[$i]{xid} != $xid;
	my $nth = _nth('reply', $xid == -1);

	my @entry;
	my $request = { action => '' };
	if ($xid == -1)
	{
		my ($type, undef, $path) = unpack 'x20 l> l> N/a*', $frame;
		@entry = ('event', $xid, $path, '', $ZkClient::EVENT{$type} // $type);
		$request = { op => 'event', action => (_match('event', 1))[1] };
	}
	else
	{
		$request = splice @$asked, $i, 1 if $i < @$asked;
		$request->{op} //= "unasked $xid";
		@entry = ($request->{op}, $xid, $request->{path} // '', $err, $more);
	}

	my $fault = $nth || $request->{action};
	if ($fault && $fault !~ /^(?:hold|deny)/)
	{
		_log($conn, 'x', @entry[ 0 .. 3 ], "$entry[4] $fault");
		return _damage($conn, $fault, $frame, $xid);
	}
	_denied($frame, $entry[3] = $1) if $fault =~ /^deny(.*)/;
	my $forge = $forge{ $request->{op} };
	$frame = $forge->($frame, $err) if $forge;
	my $sound = $frame;
	$frame = _spoil($request->{op}, $frame);
	$body{ $request->{op} } = substr $sound, 20 if $spoil && $err == 0 && length $sound > 20 && $request->{op} !~ /^(?:connect|event)$/;
	_queue($fault eq 'hold_alone' ? $conn->{aside} : $down, $frame, entry => [ '<', @entry ], held => scalar($fault =~ /^hold/));
	return;
}

sub _as_frame
{
	my ($header, $body) = @_;
	return pack('N', 16 + length $body) . substr($header, 4, 12) . pack('N', 0) . $body;
}

sub _forged_list
{
	my ($count, $format, $filler) = @_;
	my $body = pack 'N', $count;
	$body .= pack 'N/a*', "\xff" x ($filler // 0) . sprintf $format, $_ for 1 .. $count;
	return sub { return _as_frame($_[0], $body); };
}

# data, then czxid, mzxid, ctime, mtime, three versions, owner, length, children, pzxid
my $forged_node = pack 'N/a* q>4 l>3 q> l>2 q>', "zklock\n", 7, 7, 0, 0, 0, 0, 0, 42, 7, 0, 7;

# Deliver what is due and can be written.
sub _move
{
	my ($conn) = @_;
	foreach my $way (qw(up down))
	{
		my $d = $conn->{$way};
		my $now = time;
		while (!$silent{$way} && @{ $d->{queue} })
		{
			my $first = $d->{queue}[0];
			last if $first->{held} || $first->{due} > $now;
			shift @{ $d->{queue} };
			_write($conn, $d);
			return _close($conn, 'drop') if $first->{cut};
			_log($conn, @{ $first->{entry} }) if $first->{entry};
			$d->{out} .= $first->{bytes};
		}
		_write($conn, $d);
		return if $conn->{closed};
	}
	# One end has closed, and everything it sent has been read.
	foreach my $way (qw(up down))
	{
		my $d = $conn->{$way};
		return _close($conn, 'close')
		  if $d->{eof} && !$silent{$way} && !@{ $d->{queue} } && $d->{out} eq '';
	}
	return;
}

sub _write
{
	my ($conn, $d) = @_;
	return if $conn->{closed} || $d->{out} eq '';
	my $n = syswrite $d->{to}, $d->{out}, $dribble && $conn->{down} == $d ? 1 + int rand 9 : length $d->{out};
	if (defined $n) { substr $d->{out}, 0, $n, ''; }
	elsif (!$!{EAGAIN} && !$!{EWOULDBLOCK} && !$!{EINTR}) { _close($conn, 'close'); }
	return;
}

# ---------------------------------------------------------- rules and commands

# The way and the action of the first rule for this operation.  This uses the rule up
# unless it is a permanent one.
sub _match
{
	my ($op, $stays) = @_;
	foreach my $rule (@rules)
	{
		next unless $rule->{ops}{$op} || ($rule->{ops}{'*'} && $op !~ /^(?:ping|event)$/);
		@rules = grep { $_ != $rule } @rules if !$stays && --$rule->{count} <= 0;
		return @$rule{qw(way action)};
	}
	return ('', '');
}

sub _release
{
	@rules = grep { $_->{action} !~ /^hold/ } @rules;
	foreach my $conn (values %conns)
	{
		$_->{action} = '' for grep { $_->{action} =~ /^hold/ } @{ $conn->{asked} };
		unshift @{ $conn->{down}{queue} }, splice @{ $conn->{aside}{queue} };
		delete $_->{held} for map { @{ $_->{queue} } } @{$conn}{qw(up down)};
	}
	return;
}

sub _forget
{
	@rules = ();
	($mode, $delay, $swallowed, $dribble, $spoil) = ('pass', 0, 0, 0, 0);
	%forge = ();
	return;
}

sub _mode
{
	my ($new, $way) = @_;
	_listen($port, $new eq 'refuse') if ($new eq 'refuse') != ($mode eq 'refuse');
	$mode = $new;
	%silent = map { $_ => 1 } $new ne 'blackhole' ? () : $way ? $way : qw(up down);
	return;
}

my %command = (
	port => sub { return $port; },
	mode => sub { _mode(@_); return; },
	drop => sub { _close($_, 'drop') for values %conns; return; },
	delay_ms => sub { $delay = $_[0] / 1000; return; },
	rule => sub {
		my ($way, $action, $ops, $count) = @_;
		push @rules, { way => $way, action => $action, ops => { map { $_ => 1 } split /,/, $ops }, count => $count };
		return;
	},
	release => \&_release,
	reset => sub { _release(); _mode('pass'); _forget(); return; },
	count => sub { my $n = 0; $n += $count{$_} // 0 for split /,/, $_[0]; return $n; },
	held => sub {
		return scalar grep { $_->{held} }
		  map { @{ $_->{queue} } } map { @{$_}{qw(up down aside)} } values %conns;
	},
	swallowed => sub { return $swallowed; },
	connections => sub { return scalar keys %conns; },
	sessions => sub { return join "\n", map { join "\t", @$_ } @sessions; },
	log => sub { return join "\n", map { join "\t", @$_ } @log; },
	dribble => sub { $dribble = 1; return; },
	spoil => sub { ($spoil) = @_; srand $_[1]; %spoiled = (); return; },
	spoiled => sub { return join "\n", map { "$_\t$spoiled{$_}" } sort keys %spoiled; },
	forge_list => sub { $forge{getChildren} = _forged_list(@_); return; },
	forge_nodes => sub { $forge{getData} = sub { _as_frame($_[0], $forged_node) }; return; },
	forge_name => sub {
		my ($name) = @_;
		$forge{create2} = sub {
			return $_[1] != 0 ? $_[0] : _as_frame($_[0], pack('N/a*', $name) . substr $_[0], -68);
		};
		return;
	},
	nth => sub {
		my ($way, $n, $action) = @_;
		$nth{$way} = [ $n, $action ];
		return;
	},
	count_frames => sub {
		%frames = (request => 0, reply => 0);
		%nth = ();
		undef $expire_next;
		return;
	},
	frames => sub { return "$frames{request} $frames{reply}"; },
	clear_log => sub { @log = (); %count = (); $swallowed = 0; return; });

sub _command
{
	my ($name, @args) = @_;
	my $code = $command{$name} or die "no such command\n";
	return $code->(@args);
}

sub _log
{
	my ($conn, $dir, $op, $xid, $path, $err, $more) = @_;
	foreach ($path, $more)
	{
		$_ //= '';
		s/([%\t\n\x1e])/sprintf '%%%02x', ord $1/ge;
	}
	push @log, [ sprintf('%.6f', time), $dir, $op, $xid // '', $path, $err // '', $conn->{number}, $more ];
	return;
}

1;
