
=pod

=head1 NAME

ZooKeeper - start, query, disturb and stop ZooKeeper servers for tests

=head1 SYNOPSIS

  my $zk = ZooKeeper->new;            # one server of its own
  $zk->start;
  ... 'zklock.hosts' => $zk->hosts ...

  is_deeply([ sort $zk->children('/zklock') ], ['a']);
  until_true(sub { $zk->sessions == 0 }, 'no session left');
  $zk->kill9; $zk->start;             # a crash; data and port stay
  $zk->suspend; $zk->resume;          # a server that hangs
  $zk->set_next_number('/zklock/a' => 2**31 - 5);    # as after that many creates

  my $all = ZooKeeper->ensemble(3);   # ready when this returns
  $all->leader->kill9;

  my $all = ZooKeeper->ensemble(3, links => 1);
  $all->cut(($all->followers)[0]);    # from the leader
  $all->mend;

=head1 DESCRIPTION

A server's files and log are in one directory, and only loopback addresses are
used.  Servers end with the process that started them, in whatever way that
ends.

The environment variable ZK_CLASSES may name a file that archive_classes has
written; then servers start faster.

The methods that look into the tree (children, tree, get, ...) open a session of
their own and close it before they return; while somebody waits (until_true), it is
kept for the next look.  It does not show up in C<sessions>.

=cut

package ZooKeeper;

use strict;
use warnings;
use Carp;
use Cwd qw(abs_path);
use Fcntl qw(:flock);
use File::Path qw(make_path);
use IO::Select;
use IO::Socket::INET;
use POSIX qw(:sys_wait_h);
use Time::HiRes qw(sleep time);

use Child;
use Deadline;
use ZkClient;

# ZooKeeper's jar names the others that it needs, except a logger.
our $CLASSPATH = '/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar';

# ZooKeeper identifies the superuser by a digest, like any user
our $SUPERUSER = 'super:user';
my $super_digest = 'super:GR9f4mKrV2reacyCyiukMpZl5qc=';

# Most servers live for seconds, in which each page that is touched first costs
my @JAVA_OPTIONS = qw(-Xms24m -Xmn8m -XX:+UseTransparentHugePages);

# ZooKeeper->new(%opts):
#   dir                    for its files; default: a temporary directory
#   tick_time              ms; default 500
#   min_session_timeout, max_session_timeout    ms; default a second and an hour
#   max_client_cnxns       per client address; default 0: no limit
#   container_check        ms between two checks for empty containers; default an hour,
#                          so that none goes in the middle of what a test counts, and
#                          kazoo, which cannot cope with that (kazoo#563), need not
#   config                 { zoo.cfg key => value }, overrides all of these
#   zoo_cfg                zoo.cfg as a whole, of which only dataDir and clientPort
#                          change, for a member of an ensemble; the JVM gets nothing
#                          but java_options then
#   java_options           [ ... ] instead of @JAVA_OPTIONS
#   env                    { additions to its environment }
#   superuser              1: there is a superuser, whom no ACL restricts, and the
#                          methods that look into the tree use it
#   detach                 the server outlives this process; see $zk->pid
sub new
{
	my ($class, %opt) = @_;
	my $self = bless {
		tick_time => 500,
		min_session_timeout => 1000,
		max_session_timeout => 3_600_000,
		max_client_cnxns => 0,
		container_check => 3_600_000,
		java_options => \@JAVA_OPTIONS,
		env => {},
		servers => '',    # lines of zoo.cfg about the ensemble
		%opt
	}, $class;

	$self->{port} //= free_port();
	if (!defined $self->{dir})
	{
		require File::Temp;    # not for each ZkProxy
		$self->{own_dir} = File::Temp->newdir('zookeeper.XXXXXX', TMPDIR => 1);
	}
	$self->{dir} //= $self->{own_dir}->dirname;
	make_path("$self->{dir}/data");
	$self->{dir} = abs_path($self->{dir});
	$self->{log} //= "$self->{dir}/zookeeper.log";
	$self->_configure;
	return $self;
}

sub _configure
{
	my ($self) = @_;
	return $self->_write(
		'zoo.cfg',
		$self->{zoo_cfg} =~ s{^(dataDir=).*}{$1$self->{dir}/data}mr =~
		  s{^clientPort=.*}{clientPort=$self->{port}\nclientPortAddress=127.0.0.1}mr)
	  if defined $self->{zoo_cfg};

	my %config = (
		dataDir => "$self->{dir}/data",
		clientPort => $self->{port},
		clientPortAddress => '127.0.0.1',
		tickTime => $self->{tick_time},
		minSessionTimeout => $self->{min_session_timeout},
		maxSessionTimeout => $self->{max_session_timeout},
		maxClientCnxns => $self->{max_client_cnxns},
		'admin.enableServer' => 'false',
		'4lw.commands.whitelist' => '*',
		forceSync => 'no',    # a slow disk would make tests slow
		%{ $self->{config} // {} });
	# an ensemble that can be reconfigured knows where its servers' clients connect
	delete @config{qw(clientPort clientPortAddress)} if $config{reconfigEnabled};

	return $self->_write('zoo.cfg', map({ "$_=$config{$_}\n" } sort keys %config), $self->{servers});
}

sub _write
{
	my ($self, $name, @text) = @_;
	open my $file, '>', "$self->{dir}/$name" or die "$self->{dir}/$name: $!";
	print $file @text;
	close $file or die "$self->{dir}/$name: $!";
	return;
}

# A TCP port that was free a moment ago and is outside the range that the system
# assigns to clients: otherwise, while a server is down, a client that tries to
# reach it could be given that very port and connect to itself.
my %given;    # port => the lock that keeps other tests of this run from it, or 1

sub free_port
{
	for (1 .. 1000)
	{
		my $port = 20_000 + int rand 12_768;
		next if $given{$port};
		$given{$port} = _reserve($port) or next;
		return $port
		  if IO::Socket::INET->new(
			LocalAddr => '127.0.0.1',
			LocalPort => $port,
			ReuseAddr => 1,
			Listen => 1);
	}
	die "could not find a free port: $@";
}

# A server listens about half a second after it was given a port.
sub _reserve
{
	my ($port) = @_;
	return 1 unless defined $ENV{ZKLOCK_TMP};
	mkdir "$ENV{ZKLOCK_TMP}/ports";
	my $file = "$ENV{ZKLOCK_TMP}/ports/$port";
	open my $lock, '>', $file or die "$file: $!";
	return flock($lock, LOCK_EX | LOCK_NB) ? $lock : undef;
}

# ------------------------------------------------------------ life and death

sub start
{
	my ($self, %opt) = @_;
	croak 'already running' if $self->running;

	# Used later to stop a detached server.
	$self->{pid} = $self->_launch;
	$self->_write('zookeeper.pid', "$self->{pid}\n");
	$self->wait_ready unless $opt{no_wait};
	return $self;
}

sub _launch
{
	my ($self) = @_;
	my @java = (
		'java',
		(defined $self->{zoo_cfg} ? () : ('-Xmx96m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1')),
		'-XX:-UsePerfData',    # otherwise a file in /tmp, which kill -9 would leave behind
		"-Djava.io.tmpdir=$self->{dir}", '-Djava.net.preferIPv4Stack=true',
		'-Dzookeeper.jmx.log4j.disable=true',
		# not in zoo.cfg, where it would become zookeeper.znode...
		(defined $self->{zoo_cfg} ? () : ("-Dznode.container.checkIntervalMs=$self->{container_check}", '-Dzookeeper.extendedTypesEnabled=true')),
		'-Dorg.slf4j.simpleLogger.defaultLogLevel=warn',
		'-Dorg.slf4j.simpleLogger.showDateTime=true',
		'-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS',
		(-e ($ENV{ZK_CLASSES} // '') ? "-XX:SharedArchiveFile=$ENV{ZK_CLASSES}" : ()),
		($self->{superuser} ? "-Dzookeeper.DigestAuthenticationProvider.superDigest=$super_digest" : ()),
		@{ $self->{java_options} },
		'-cp', $CLASSPATH,
		'org.apache.zookeeper.server.'
		  . ($self->{servers} || defined $self->{zoo_cfg} ? 'quorum.QuorumPeerMain' : 'ZooKeeperServerMain'),
		"$self->{dir}/zoo.cfg");

	my ($pid) = Child::spawn(\@java, err => $self->{log}, log => 1, map { ($_ => $self->{$_}) } qw(dir env detach));
	return $pid;
}

# Write the file that ZK_CLASSES names, with the classes that a server loads, so that
# other servers can map it, which saves a third of their start.  Java before version
# 13 writes none, and the tests do without it.
sub archive_classes
{
	my $zk = __PACKAGE__->new(
		java_options => [ '-XX:+IgnoreUnrecognizedVMOptions', "-XX:ArchiveClassesAtExit=$ENV{ZK_CLASSES}" ])->start;
	my $client = $zk->client;
	$client->contend('/zklock/a') for 1 .. 2;
	$client->children('/zklock/a', 1);
	$client->get(($client->queue('/zklock/a'))[0]);
	$client->delete($_) for $client->queue('/zklock/a');
	$client->sync('/');
	$client->close;
	$zk->four_letter($_) for qw(srvr mntr dump wchp);
	kill 'TERM', $zk->pid;
	sleep 0.02 while $zk->running;
	return;
}

# Do not ask "ruok" here: too early, it is never answered.
sub wait_ready
{
	my ($self) = @_;
	my $serves = sub { ($self->four_letter('srvr', 1) // '') =~ /^Mode: /m };
	eval { until_true(sub { $serves->() || !$self->running }, 'a ZooKeeper that serves') };
	die "ZooKeeper does not run:\n" . $self->log_tail unless $serves->();
	return;
}

sub running
{
	my ($self) = @_;
	return 0 unless $self->{pid};
	return 1 if waitpid($self->{pid}, WNOHANG) == 0;
	$self->_gone;
	return 0;
}

# Whether it may answer: neither has it ended, nor is it suspended
sub serves { my ($self) = @_; return $self->running && !Child::is_suspended($self->{pid}); }

sub _gone
{
	my ($self) = @_;
	Child::forget(delete $self->{pid});
	unlink "$self->{dir}/zookeeper.pid";
	return;
}

# Clean shutdown; a server that does not stop is killed.
sub stop
{
	my ($self) = @_;
	return unless $self->running;
	kill 'TERM', $self->{pid};
	kill 'CONT', $self->{pid};    # it may be suspended
	$self->kill9 unless eval { until_true(sub { !$self->running }, 'its end', 10) };
	return;
}

sub kill9
{
	my ($self) = @_;
	return unless $self->running;
	Child::kill9($self->{pid});
	$self->_gone;
	return;
}

sub restart { $_[0]->stop; return $_[0]->start; }

sub suspend { return Child::suspend($_[0]->{pid}); }
sub resume { kill 'CONT', $_[0]->{pid}; return; }

# Sets the number of the next sequential child of these directories, as if they
# were that old: set_next_number(path => number, ...).  The server is restarted,
# which is all that clients notice if they come back soon enough.  Not for an
# ensemble.
#
# What a server receives goes to a log; when it starts, it writes a snapshot of
# everything.  In a file snapshot.<zxid> a node is, in ZooKeeper's usual encoding:
#   path, data, access list (long), czxid mzxid ctime mtime (longs), version cversion
#   aversion (ints), ...
# and its cversion is the number of the next sequential child.  Behind the last node is
# "/", and then the Adler32 of all this (long), "/"; behind that a digest of the tree, which
# is optional, with the same trailer.
sub set_next_number
{
	my ($self, %number) = @_;
	$self->stop;
	$self->start;
	$self->stop;

	my ($newest, @old) = sort { hex($b =~ s/.*\.//r) <=> hex($a =~ s/.*\.//r) } glob "$self->{dir}/data/version-2/snapshot.*";
	open my $file, '+<:raw', $newest or die "$newest: $!";
	my $text = do { local $/; <$file> };
	$text =~ s/(\0{3}\x01\/)\0{4}.{4}\0{3}\x01\/.*/$1/s or croak "$newest: no end";
	foreach my $path (keys %number)
	{
		my $at = index $text, pack 'N/a*', $path;
		croak "no such node: $path" if $at < 0;
		$at += 4 + length $path;
		my $data = unpack 'l>', substr $text, $at, 4;
		substr $text, $at + 4 + ($data > 0 ? $data : 0) + 8 + 4 * 8 + 4, 4, pack 'l>', $number{$path};
	}
	require Compress::Raw::Zlib;
	truncate $file, 0;
	seek $file, 0, 0;
	print $file $text, pack 'Q> N/a*', Compress::Raw::Zlib::adler32($text), '/';
	close $file or die "$newest: $!";
	unlink @old, glob "$self->{dir}/data/version-2/log.*";
	$self->start;
	return;
}

# A test that dies of a signal runs no END block unless the signal is turned
# into an exit.
foreach my $signal (qw(INT TERM HUP))
{
	$SIG{$signal} = sub { exit 128 } if ($SIG{$signal} // 'DEFAULT') eq 'DEFAULT';
}

# ------------------------------------------------------------------- looking

sub port { return $_[0]->{port}; }
sub pid { return $_[0]->{pid}; }
sub dir { return $_[0]->{dir}; }
sub log { return $_[0]->{log}; }
sub hosts { return "127.0.0.1:$_[0]->{port}"; }

sub log_tail
{
	my ($self, $lines) = @_;
	open my $file, '<', $self->{log} or return "(no log: $!)\n";
	my @all = <$file>;
	splice @all, 0, -($lines // 30) if @all > ($lines // 30);
	return join '', @all;
}

# The answer to srvr, mntr, cons, dump, ...; undef if there was none in time.
sub four_letter
{
	my ($self, $word, $timeout) = @_;
	$timeout //= $TIMEOUT / 6;
	my $deadline = time + $timeout;
	my $sock = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $self->{port},
		Timeout => $timeout) or return undef;
	local $SIG{PIPE} = 'IGNORE';
	syswrite $sock, $word or return undef;
	my $select = IO::Select->new($sock);
	my $answer = '';
	while (1)
	{
		my $left = $deadline - time;
		return undef if $left <= 0;
		next unless $select->can_read($left);    # interrupted by SIGCHLD
		my $n = sysread $sock, $answer, 65536, length $answer;
		return undef unless defined $n;
		return $answer if $n == 0;
	}
}

sub _told { my ($self, $word) = @_; return $self->four_letter($word) // die $self->hosts . " did not answer $word\n"; }

# %mntr, with names without "zk_"
sub mntr { return $_[0]->_told('mntr') =~ /^zk_(\w+)\t(.*)$/mg; }
sub mntr_value { my ($self, $name) = @_; my %mntr = $self->mntr; return $mntr{$name}; }

# the id of the last transaction
sub zxid { no warnings 'portable'; return hex(($_[0]->_told('srvr') =~ /^Zxid: (\w+)$/m)[0]); }

# ids of all sessions as 0x..., or their number in scalar context; on any server
sub sessions
{
	my ($self) = @_;
	my $dump = $self->_told('dump');
	# after this line the same ids are repeated, with their ephemeral nodes
	my ($sets) = $dump =~ /(.*?)^ephemeral nodes dump/ms;
	my %seen = map { $_ => 1 } ($sets // $dump) =~ /^\t(0x[0-9a-f]+)/mg;
	delete $seen{ $_->session_id } foreach values %{ $Deadline::kept // {} };
	return keys %seen;
}

# (session id => [paths], ...)
sub ephemerals
{
	my ($self) = @_;
	my ($text) = $self->_told('dump') =~ /^Sessions with Ephemerals[^\n]*\n(.*?)(?:^Connections|\z)/ms;
	my (%found, $session);
	foreach (split /\n/, $text // '')
	{
		if (/^(0x[0-9a-f]+):/) { $session = $1; }
		elsif (/^\t(.+)/) { push @{ $found{$session} }, $1; }
	}
	return %found;
}

# The waiters: [ session id, node of somebody else that it watches, its own
# nodes next to that ], ...  The first waiter of a semaphore watches the
# directory, which ZooKeeper does not show; but every waiter watches its own
# node, too.
sub waits
{
	my ($self) = @_;
	my %nodes = $self->ephemerals;
	my %owner = map { my $session = $_; map { $_ => $session } @{ $nodes{$session} } } keys %nodes;
	my @found;
	foreach my $server (grep { $_->serves } $self->nodes)
	{
		my $watched;
		foreach (split /\n/, $server->four_letter('wchp') // '')
		{
			my ($session) = /^\t(0x[0-9a-f]+)/;
			if (!$session) { $watched = $_; }
			elsif (($owner{$watched} // $session) ne $session)
			{
				my $dir = $watched =~ s/[^\/]*$//r;
				push @found, [ $session, $watched, grep { /^\Q$dir\E[^\/]+$/ } @{ $nodes{$session} // [] } ];
			}
			elsif ($watched =~ m{^(.*/)_c_.{36}-semaphore-(\d+)-(\d{10})$})
			{
				my ($dir, $places, $number) = ($1, $2, $3);
				my $before = grep { m{^\Q$dir\E_c_.{36}-semaphore-\d+-(\d{10})$} && $1 < $number } keys %owner;
				push @found, [ $session, $dir, $watched ] if $before >= $places;
			}
		}
	}
	return @found;
}

# for symmetry with an ensemble
sub nodes { return $_[0]; }

sub watch_count { return $_[0]->mntr_value('watch_count'); }
sub ephemerals_count { return $_[0]->mntr_value('ephemerals_count'); }

# --------------------------------------------------------- looking into the tree

# A client that stays until it is closed; one more session for ZooKeeper.  It sends no
# heartbeats, so its session outlasts the test.
sub client
{
	my ($self, %opt) = @_;
	my $client = ZkClient->new($self->hosts, session_timeout => 3_600_000, %opt);
	$client->add_auth('digest', $SUPERUSER) if $self->{superuser};
	return $client;
}

# Ends a session at once, as its timeout would later: it is taken over and
# closed.  Its client learns of that when it reconnects; if that is between the two
# steps, the client has it again, and so has to lose it again.  But if it is while
# the session is being closed, the server may leave that connection open, and answer
# nothing any more, which the client notices after two thirds of the timeout.  Where
# that would be too late, the process that the client is in is stopped meanwhile.
sub end_session
{
	my ($self, $id, $pid) = @_;
	no warnings 'portable';
	my $ended = eval {
		Child::suspend($pid) if $pid;
		until_true(sub { eval { ZkClient->new($self->hosts, session => hex $id)->close }; !grep { $_ eq $id } $self->sessions }, "the end of session $id");
	};
	my $why = $@;
	kill 'CONT', $pid if $pid;
	die $why unless $ended;
	return;
}

# The same for each session that owns one of these nodes
sub end_sessions_of
{
	my ($self, @nodes) = @_;
	my %of = $self->ephemerals;
	my %wanted = map { $_ => 1 } @nodes;
	foreach my $id (sort keys %of)
	{
		$self->end_session($id) if grep { $wanted{$_} } @{ $of{$id} };
	}
	return;
}

# Run code with a client of its own; every read is as fresh as the leader.
sub with_client
{
	my ($self, $code) = @_;
	my ($kept, $name) = ($Deadline::kept, $self->hosts);
	my $client = $kept && delete $kept->{$name};
	my $lives = $client && eval { $client->sync('/'); 1 };
	$client = $self->client(session_timeout => 30_000) if !$lives;    # its server may be killed
	my $wantarray = wantarray;
	my @result;
	my $ok = eval {
		$client->sync('/') if !$lives;
		@result = $wantarray ? $code->($client) : scalar $code->($client);
		1;
	};
	my $why = $@;
	if ($ok && $kept && !$kept->{$name}) { $kept->{$name} = $client; }
	else { $client->close; }
	die $why unless $ok;
	return $wantarray ? @result : $result[0];
}

# (sorted; none when there is no such node)
sub children
{
	my ($self, $path) = @_;
	my @children = sort $self->with_client(sub { $_[0]->children($path) });
	return @children;
}

# every path below $path, sorted, without ZooKeeper's own
sub tree
{
	my ($self, $path) = @_;
	return $self->with_client(
		sub {
			my ($client) = @_;
			my ($walk, @found);
			$walk = sub {
				my ($dir) = @_;
				# an unreadable node counts as a leaf
				my @children = eval { $client->children($dir) };
				die $@ if $@ && $@ !~ /NOAUTH/;
				foreach my $child (sort @children)
				{
					my $node = $dir eq '/' ? "/$child" : "$dir/$child";
					next if $node eq '/zookeeper';
					push @found, $node;
					$walk->($node);
				}
			};
			$walk->($path // '/');
			undef $walk;
			return @found;
		});
}

# Removes what is empty there, as ZooKeeper would: true when that was all.  (What a
# container is, only ZooKeeper knows.)
sub reap
{
	my ($self, $path) = @_;
	foreach my $dir (reverse $path, $self->tree($path))
	{
		eval { $self->delete($dir) };    # it may not be empty
	}
	return !$self->exists($path);
}

# The line for this server of an ensemble that can be reconfigured
sub member { return $_[0]->{servers} =~ /^(server\.$_[0]->{id}=.*)/m ? $1 : undef; }

sub get { my ($self, @args) = @_; return $self->with_client(sub { $_[0]->get(@args) }); }
sub exists { my ($self, @args) = @_; return $self->with_client(sub { $_[0]->exists(@args) }); }
sub acl { my ($self, $path) = @_; return $self->with_client(sub { $_[0]->get_acl($path) }); }
sub delete { my ($self, @args) = @_; return $self->with_client(sub { $_[0]->delete(@args) }); }
sub delete_tree { my ($self, @args) = @_; return $self->with_client(sub { $_[0]->delete_tree(@args) }); }

# An ephemeral node would vanish with this session at once: use client() for
# these.
sub create
{
	my ($self, $path, $mode, %opt) = @_;
	return $self->with_client(sub { $_[0]->create($path, mode => $mode // 'persistent', %opt) });
}

# ------------------------------------------------------------------ ensemble

# ZooKeeper->ensemble($n, %opts) takes the options of new, where "dir" has a
# directory for each server, and:
#   sync_limit   ticks after which a follower and its leader give each other up;
#                default: 10
#   env          a function that gets the number of a server, or as above
#   links => 1   what a follower and its leader say to each other goes through
#                links that "cut" can cut
#   reconfig => 1   servers can be removed and added, by a superuser: see "member"
# Returns when all servers serve.
sub ensemble
{
	my ($class, $n, %opt) = @_;
	my $dir = delete $opt{dir};
	my $sync_limit = delete $opt{sync_limit} // 10;
	my $env = delete $opt{env} // {};
	my @peer = map { [ free_port(), free_port() ] } 0 .. $n;    # by id, from 1

	# Each server reaches each other one by an address of its own.  None
	# compares these with what the others were told.
	my %link;
	if (delete $opt{links})
	{
		require ZkProxy;
		foreach my $from (1 .. $n)
		{
			$link{$from}{$_} = ZkProxy->new("127.0.0.1:$peer[$_][0]", link => 1) for grep { $_ != $from } 1 .. $n;
		}
	}

	my @clients = map { free_port() } 0 .. $n;
	my $reconfig = delete $opt{reconfig};
	$opt{config} = { reconfigEnabled => 'true', %{ $opt{config} // {} } } if $reconfig;
	my @nodes;
	foreach my $id (1 .. $n)
	{
		my $servers = "initLimit=20\nsyncLimit=$sync_limit\n";
		foreach my $other (1 .. $n)
		{
			my ($quorum, $election) = @{ $peer[$other] };
			$quorum = $link{$id}{$other}->port if $link{$id}{$other};
			$servers .= "server.$other=127.0.0.1:$quorum:$election" . ($reconfig ? ":participant;127.0.0.1:$clients[$other]" : '') . "\n";
		}
		my $node = $class->new(
			%opt,
			port => $clients[$id],
			env => ref $env eq 'CODE' ? $env->($id) : $env,
			servers => $servers,
			defined $dir ? (dir => "$dir/$id") : ());
		$node->_write('data/myid', "$id\n");
		$node->{id} = $id;
		push @nodes, $node;
	}
	my $self = ZooKeeper::Ensemble->new(@nodes);
	$self->{link} = \%link;
	return $self->start;
}

package ZooKeeper::Ensemble;

our $AUTOLOAD;

sub new { my ($class, @nodes) = @_; return bless { nodes => \@nodes }, $class; }
sub nodes { return @{ $_[0]->{nodes} }; }
sub node { return $_[0]->{nodes}[ $_[1] - 1 ]; }    # by its id: from 1
sub hosts { return join ',', map { $_->hosts } $_[0]->nodes; }

sub start
{
	my ($self) = @_;
	my @down = grep { !$_->running } $self->nodes;
	$_->start(no_wait => 1) for @down;
	$_->wait_ready for @down;
	return $self;
}

# all at once: if they stopped one by one, the others would hold an election
sub stop
{
	my ($self) = @_;
	kill 'TERM', map { $_->pid // () } $self->nodes;
	$_->stop for $self->nodes;
	return;
}

# Each has this long to answer
sub in_mode
{
	my ($self, $mode, $timeout) = @_;
	return grep { $_->serves && ($_->four_letter('srvr', $timeout) // '') =~ /^Mode: $mode$/m } $self->nodes;
}

# For a moment after a fault there is none: wait for one.
sub leader
{
	my ($self) = @_;
	my $node;
	Deadline::until_true(sub { ($node) = $self->in_mode('leader', 1) }, 'a leader');
	return $node;
}

# One that is slow to answer is one, too.
sub followers { return $_[0]->in_mode('follower', 20); }

# Cut a follower from its leader (or from the given server).  It takes syncLimit
# to notice, and until then serves its clients with the state it had; so does
# the leader.  Votes still pass.
sub cut
{
	my ($self, $follower, $leader) = @_;
	$leader //= $self->leader;
	$_->blackhole for $self->_links($follower, $leader);
	return;
}

# What the one says does not reach the other, which can still be heard.
sub cut_one_way
{
	my ($self, $from, $to) = @_;
	my ($forth, $back) = $self->_links($from, $to);
	$forth->blackhole('up');
	$back->blackhole('down');
	return;
}

sub _links { my ($self, @two) = @_; my ($one, $other) = map { $_->{id} } @two; return ($self->{link}{$one}{$other}, $self->{link}{$other}{$one}); }

# Reconnect everything: what was under way arrives now.
sub mend { $_->pass for map { values %$_ } values %{ $_[0]{link} }; return; }

# each server knows only the watches of its own clients
sub waits { return ZooKeeper::waits($_[0]); }

# everything else goes to the leader
sub AUTOLOAD
{
	my ($self, @args) = @_;
	my $method = $AUTOLOAD =~ s/.*:://r;
	return if $method eq 'DESTROY';
	return $self->leader->$method(@args);
}

1;
