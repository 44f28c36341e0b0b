
=pod

=head1 NAME

Zklock - what zklock's tests with real servers have in common

=head1 SYNOPSIS

  my $zk = ZooKeeper->new->start;
  my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '2s');
  my $admin = zk_session($node);

  my $s = zk_session($node);
  $s->query("SELECT zk_lock('/a')")->{out};      # 't'
  $s->value("SELECT zk_lock('/a')");             # the same, but dies on an error

  $s->send("SELECT zk_lock('/b')");              # returns at once
  zk_wait_queued($zk, $s);
  $admin->value('SELECT pg_cancel_backend(' . $s->pid . ')');
  is($s->wait->{state}, '57014');

  zk_nothing_left($zk, 'nothing is left');

=head1 DESCRIPTION

A session is a psql that gets its commands through a pipe, so that a query can
be under way while the test does something else.  It ends with the scope that it
is in, and quit is for those that must end before.  Every wait has a deadline and
dies when it has passed.

=cut

package Zklock;

use strict;
use warnings;
use Carp;
use Exporter qw(import);
use POSIX ();
use Scalar::Util qw(weaken);
use Test::More;
use Time::HiRes qw(sleep time);

use Deadline;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(slurp_file);

our @EXPORT = qw(zk_cluster zk_init zk_foreign_server zk_session zk_session_with zk_warm_session zk_counted_session zk_counted_closed zk_library zk_holds zk_until zk_waits zk_wait_waiting zk_wait_queued zk_wait_session zk_wait_hold
  zk_locks_left zk_nothing_left zk_leaves_nothing zk_kill zk_commits_hang zk_no_crash zk_end zk_few zk_short zk_is_lost zk_works zk_locks_again zk_cpu_seconds zk_descriptors zk_threads zk_free_descriptor zk_soft_limit zk_set_soft_limit);

# As on most servers, and in the pages of doc/.  initdb, psql and the clients that servers
# have, such as postgres_fdw, would take the system's user, who may have any name.
my $SUPERUSER = $ENV{PGUSER} = 'postgres';

# Where PostgreSQL is installed of which new clusters are; undefined: in the PATH
our $INSTALLATION = $ENV{ZK_INSTALLATION};

# A running server with the extension.  $hosts is a ZooKeeper, a ZkProxy, or a
# list for zklock.hosts; the rest goes to postgresql.conf.
sub zk_cluster
{
	my ($name, $hosts, %setting) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name, defined $INSTALLATION ? (install_path => $INSTALLATION) : ());

	$hosts = $hosts->hosts if ref $hosts;
	zk_init($node);
	%setting = (
		session_preload_libraries => 'zklock',
		log_statement => 'none',    # tests poll, and check the size of the log
		log_checkpoints => 'off',    # (on since PostgreSQL 15)
		log_lock_waits => 'off',    # for its DETAIL ZooKeeper is asked; on since PostgreSQL 19
		'zklock.hosts' => $hosts,
		'zklock.idle_timeout' => 0,    # sessions are counted, and a slow machine takes minutes
		'zklock.connect_timeout' => '30s',    # on a slow machine a session takes more than five to begin
		%setting);
	$node->append_conf('postgresql.conf', "$_ = '$setting{$_}'") for sort keys %setting;
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION zklock');
	return $node;
}

# $node->init, with that superuser, and with a copy of the cluster that dev/test has made
# for all tests, which takes a fifth of the time of initdb.  PostgreSQL's own library does
# this since version 17.
sub zk_init
{
	my ($node, %opt) = @_;
	my $run = \&PostgreSQL::Test::Utils::system_or_bail;
	no warnings 'redefine';
	local *PostgreSQL::Test::Utils::system_or_bail = sub {
		return $run->(@_) if $_[0] ne 'initdb' || !defined $ENV{INITDB_TEMPLATE};
		return $run->('cp', '-RPp', $ENV{INITDB_TEMPLATE}, $node->data_dir);
	};
	$node->init(%opt, extra => [ '-U', $SUPERUSER ]);
	return;
}

# A foreign server for $node's foreign tables, behind which is $there: the same cluster,
# reached through another backend, or another one
sub zk_foreign_server
{
	my ($node, $name, $there) = @_;
	$node->safe_psql(
		'postgres',
		sprintf q{CREATE EXTENSION postgres_fdw;
		CREATE SERVER %1$s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%2$s', port '%3$s', dbname 'postgres');
		CREATE USER MAPPING FOR CURRENT_USER SERVER %1$s},
		$name, $there->host, $there->port);
	return;
}

sub zk_session { return Zklock::Session->new(@_); }

# A session with these settings, which are named without "zklock."; hosts may be a
# ZooKeeper or a ZkProxy
sub zk_session_with
{
	my ($node, %setting) = @_;
	$setting{hosts} = $setting{hosts}->hosts if ref $setting{hosts};
	return zk_session($node, options => join ' ', map { "-c zklock.$_=$setting{$_}" } sort keys %setting);
}

# The same, connected to ZooKeeper, so that only what is meant is disturbed, or counted
sub zk_warm_session
{
	my $s = zk_session_with(@_);
	$s->value(q{SELECT zk_lock('/warm/' || pg_backend_pid()), zk_unlock_all()});
	return $s;
}

# What a session holds, on any path or on this one, as "exclusive session 1
# held, ..."
sub zk_holds
{
	my ($session, $path) = @_;
	my $where = defined $path ? "WHERE path = '$path'" : '';
	return $session->value(
		qq{SELECT string_agg(concat_ws(' ', mode, scope, count, state), ', ' ORDER BY path COLLATE "C", mode, scope) FROM zk_locks $where});
}

# A session with a proxy of its own, connected to ZooKeeper, and that proxy,
# with counters at zero; each frame is delayed by this many ms.  The settings
# are named without "zklock.".
my @counted;    # [ proxy, ZooKeeper, session ]; kept until the end, so that sessions can close properly

sub _counted_ended { my ($zk) = @_; return grep { $_->[1] == $zk && !($_->[2] && $_->[2]{psql}) } @counted; }

# Wait until those that have ended are closed, which is a transaction of the server's, too.
sub zk_counted_closed
{
	my ($zk) = @_;
	foreach my $counted (_counted_ended($zk))
	{
		zk_until(sub { $counted->[0]->connections == 0 }, 'a session that has ended to be closed');
	}
	return;
}

sub zk_counted_session
{
	my ($node, $zk, $delay, %setting) = @_;
	require ZkProxy;
	# The proxy of a session that has ended, if there is one: starting another costs more.
	my ($counted) = grep { $_->[0]->connections == 0 } _counted_ended($zk);
	push @counted, $counted = [ ZkProxy->new($zk), $zk ] unless $counted;
	my $proxy = $counted->[0];
	$proxy->reset;
	$proxy->count_frames;    # which also removes a fault at one of them
	my $s = zk_session_with($node, %setting, hosts => $proxy);
	weaken($counted->[2] = $s);
	$s->value(q{SELECT zk_lock('/warm'), zk_unlock('/warm')});
	$proxy->delay_ms($delay);
	$proxy->clear_log;
	return ($s, $proxy);
}

# Compile t/c/$name.c, another extension, or a part of ours: its file without ".so"
sub zk_library
{
	my ($name, @options) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir_short() . "/$name";
	chomp(my $include = `pg_config --includedir-server`);
	PostgreSQL::Test::Utils::system_or_bail('gcc', '-shared', '-fPIC', "-I$include", "-I$FindBin::RealBin/../src", '-o', "$library.so", "$FindBin::RealBin/c/$name.c", @options);
	return $library;
}

*zk_until = \&until_true;

# Whether that process waits for ZooKeeper, be it to connect, for an answer, or
# for its turn.  Only PostgreSQL 17 and later show which.
sub zk_waits
{
	my ($admin, $pid) = @_;
	return $admin->value("SELECT wait_event FROM pg_stat_activity WHERE pid = $pid
		AND wait_event_type = 'Extension'") =~ /^(?:Extension|Zklock\w+)$/;
}

# Wait until a session does.
sub zk_wait_waiting
{
	my ($admin, $session) = @_;
	my $pid = $session->pid;
	return zk_until(sub { zk_waits($admin, $pid) }, "backend $pid waits for ZooKeeper");
}

# Wait until each of these sessions waits for its turn: its node is in a queue
# and it has set a watch on its predecessor.
sub zk_wait_queued
{
	my ($zk, @sessions) = @_;
	my %missing = map { $_->pid => 1 } @sessions;
	return zk_until(
		sub {
			my %own = map { $_ => 1 } map { @$_[ 2 .. $#$_ ] } $zk->waits;
			$zk->with_client(
				sub {
					my ($client) = @_;
					foreach my $node (keys %own)
					{
						my ($data) = $client->get($node);
						delete $missing{$1} if ($data // '') =~ /\Azklock\n.*^pid (\d+)$/ms;
					}
				}) if %own;
			return !%missing;
		},
		'in a queue: backends ' . join ', ', map { $_->pid } @sessions);
}

# Wait until zk_session shows this state: "suspended" while the session is cut off.
sub zk_wait_session
{
	my ($session, $state) = @_;
	return zk_until(sub { $session->value('SELECT state FROM zk_session') eq $state }, "the session to be $state");
}

# Wait until zk_locks shows this state of the session's only hold, or of the one on
# a path.
sub zk_wait_hold
{
	my ($session, $state, $path) = @_;
	my ($where, $what) = defined $path ? (" WHERE path = '$path'", $path) : ('', 'the lock');
	return zk_until(sub { $session->value("SELECT state FROM zk_locks$where") eq $state }, "$what to be $state");
}

# Every node in the ensemble that is in some lock's queue
sub zk_locks_left
{
	my ($zk) = @_;
	return _locks($zk->tree('/')) if $zk->nodes > 1;    # one of several may lag
	my %of = $zk->ephemerals;
	return _locks(map { @$_ } values %of);
}

sub _locks { my @locks = sort grep { /-lock-\d{10}$/ } @_; return @locks; }

# One test: no lock node, no ephemeral node and no watch is left in ZooKeeper,
# or they will be gone within $MOMENT, which is sooner than a session expires
# that was not closed.  Options: sessions => how many there may be (default: not
# checked), tree => 1: no directory either when ZooKeeper, which is restarted for that,
# has removed those that are empty.
sub zk_nothing_left
{
	my ($zk, $name, %opt) = @_;
	my @left;

	# subtests that were skipped would have cleaned up
	return pass($name) if !$WHOLE && $Deadline::top eq '';
	# what costs least comes first
	my $look = sub {
		my %of = $zk->ephemerals;
		@left = map { @$_ } values %of;
		push @left, $zk->sessions . ' sessions' if defined $opt{sessions} && $zk->sessions > $opt{sessions};
		@left = map { "$_ watches" } grep { $_ != 0 } $zk->watch_count unless @left;
		# a lock that is no ephemeral node stays until the last look
		@left = _locks($zk->tree('/')) unless @left || $Deadline::top ne '';
		return !@left;
	};
	my $clean = eval { zk_until($look, 'nothing', $opt{timeout} // $MOMENT) };
	push @left, $@ unless $clean || @left;
	if ($opt{tree} && !@left)
	{
		$zk->{container_check} = 20;
		$zk->restart;
		$clean = eval { zk_until(sub { !(@left = $zk->tree('/')) }, 'the directories to go', $MOMENT) };
		push @left, $@ unless $clean || @left;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return 1 if ok(!@left, $name);
	diag(join "\n", 'left behind:', @left, $zk->four_letter('dump') // '');
	return 0;
}

# A subtest after which, when its sessions have ended, nothing is left
sub zk_leaves_nothing
{
	my ($zk, $name, $code) = @_;
	subtest $name => $code;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return zk_nothing_left($zk, "$name: nothing is left");
}

# Kill this process of a server with restart_after_crash, and wait until the server has
# recovered.  Only its log tells: before the postmaster knows of the crash, it accepts
# clients that it ends a moment later.  The process may just have ended.
sub zk_kill
{
	my ($node, $pid, $signal) = @_;
	my $said = sub { my ($what) = @_; return scalar(() = slurp_file($node->logfile) =~ /$what/g) };
	my ($ready, $crash) = ('database system is ready to accept connections', 'terminated by signal|terminating any other active');
	my %before = map { $_ => $said->($_) } $ready, $crash;
	kill $signal // 'KILL', $pid or return;
	my $gone;
	zk_until(
		sub {
			$gone //= time unless -e "/proc/$pid";
			return $said->($ready) > $before{$ready}
			  || ($gone && time - $gone > 5 && $said->($crash) == $before{$crash});
		},
		'the server to recover');
	return;
}

# Let each commit of this server wait for a synchronous standby that does not exist.
# Who waits is decided by its checkpointer, which has to read that, too.
sub zk_commits_hang
{
	my ($node, $admin) = @_;
	$admin->value($_) for q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'}, 'SELECT pg_reload_conf()';
	my $s = zk_session($node);
	zk_until(
		sub {
			$s->wait if $s->{mark} && $s->is_done;
			$s->send(q{SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'zklock', 'hangs')}) if !$s->{mark};
			return $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $s->pid) eq 'SyncRep';
		},
		'commits to hang');
	$s->cancel($admin);
	$s->quit;
	return;
}

# One test: no backend of this server has crashed so far.
sub zk_no_crash
{
	my ($node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return unlike(slurp_file($node->logfile), qr/terminated by signal|PANIC:|TRAP:/, 'no backend has crashed');
}

# The end of a file: nothing is left when its servers have ended, and with them all
# sessions.
sub zk_end
{
	my ($zk, @nodes) = @_;
	$_->stop for @nodes;
	zk_no_crash($_) for @nodes;
	zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
	return done_testing();
}

# A few of many lines, enough to see what is wrong
sub zk_few
{
	my (@all) = @_;
	return join "\n", @all[ 0 .. ($#all < 4 ? $#all : 4) ], @all > 5 ? 'and ' . (@all - 5) . ' more' : ();
}

# Words, with repetitions in a row counted: "create getData*3"
sub zk_short { return join(' ', @_) =~ s/\b(\w+)((?: \1)+)\b/"$1*" . (1 + ($2 =~ tr{ }{}))/ger; }

# One test: the session locks, writes a given text into a table t, and commits.
sub zk_works
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($session->value("BEGIN; SELECT zk_xact_lock('/works/' || pg_backend_pid()); INSERT INTO t VALUES ('works'); COMMIT"),
		't', $name);
	return;
}

# One test: the session locks and unlocks.
sub zk_locks_again
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($session->value("SELECT zk_lock('/works'), zk_unlock('/works')"), 't|t', $name);
	return;
}

# Two tests: this COMMIT (or other statement) failed because the lock is lost,
# and names it.
sub zk_is_lost
{
	my ($result, $path, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, '40001', "$name: 40001");
	like($result->{message}, qr/"\Q$path\E"/, "$name: names the path");
	return;
}

# -- resource usage of a process (Linux)

# CPU time that it has used so far
sub zk_cpu_seconds
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/stat" or die "process $pid: $!";
	my ($user, $system) = (split ' ', <$file> =~ s/.*\) //r)[ 11, 12 ];
	return ($user + $system) / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

sub zk_descriptors { return scalar(() = glob "/proc/$_[0]/fd/*"); }
sub zk_threads { return scalar(() = glob "/proc/$_[0]/task/*"); }

# The lowest number that no descriptor of this process has: with this limit it can open
# nothing
sub zk_free_descriptor
{
	my ($pid) = @_;
	my $number = 0;
	$number++ while -l "/proc/$pid/fd/$number";
	return $number;
}

# The soft limit of this process, or undef
sub zk_soft_limit { my ($pid, $what) = @_; return (`prlimit --pid $pid --$what --noheadings --raw --output SOFT` =~ /(\S+)/)[0]; }

# Whether it has been set
sub zk_set_soft_limit { my ($pid, $what, $limit) = @_; return system('prlimit', '--pid', $pid, "--$what=$limit:") == 0; }

# ===================================================================== session

package Zklock::Session;

use Carp;
use IO::Select;
use Time::HiRes qw(sleep time);

use Child;
use Deadline;

my $last_number = 0;

# zk_session($node, dbname => 'postgres', user => 'postgres', options => '-c name=value ...')
sub new
{
	my ($class, $node, %opt) = @_;
	my $connstr = $node->connstr($opt{dbname} // 'postgres');
	my %env;
	$env{PGOPTIONS} = $opt{options} if defined $opt{options};
	$env{PGUSER} = $opt{user} if defined $opt{user};
	pipe(my $err, my $complains) or die "pipe: $!";
	my ($psql, $in, $out) = Child::spawn([ qw(psql -X -q -A -t -v VERBOSITY=verbose -d), $connstr ], err => '/dev/fd/' . fileno $complains, env => \%env);
	close $complains;
	my $self = bless {
		psql => $psql,
		in => $in,
		out => { handle => $out, text => '' },
		err => { handle => $err, text => '' }
	}, $class;
	# a pooler's backend outlives its client
	$self->{pooled} = 1 if $node->can('direct');
	($self->{pid}) = $self->value('SELECT pg_backend_pid()') =~ /^(\d+)$/
	  or die 'psql did not connect';
	return $self;
}

# of the backend
sub pid { return $_[0]->{pid}; }

# Begin to execute this; wait returns the result.
sub send
{
	my ($self, $sql) = @_;
	croak 'a query is under way' if $self->{mark};
	$sql =~ s/;?\s*$//;
	$self->{mark} = '-- ready ' . ++$last_number;
	$self->{sent} = time;
	local $SIG{PIPE} = 'IGNORE';
	my $text = "$sql;\n\\echo $self->{mark}\n\\warn $self->{mark}\n";
	while (length $text)
	{
		my $n = syswrite($self->{in}, $text) // ($!{EINTR} ? next : last);    # if it is gone, wait will notice
		substr $text, 0, $n, '';
	}
	return $self;
}

# What becomes readable when a statement tells something
sub handles { return map { $_->{handle} } grep { !$_->{eof} } $_[0]->_streams; }

# Whether no statement is under way (any longer)
sub is_done
{
	my ($self) = @_;
	return 1 unless $self->{mark};
	$self->_read(0);
	return $self->_complete;
}

# Wait until it is done.  Returns
#   out       what psql printed
#   state     the SQLSTATE of the last error, or ''
#   message, detail, hint    of that error
#   warnings  [ messages ]
#   seconds   from send until its end
#   closed    true: the connection is gone
sub wait
{
	my ($self, $timeout) = @_;
	$timeout //= $TIMEOUT;
	croak 'no query is under way' unless $self->{mark};
	my $deadline = time + $timeout;
	until ($self->_complete)
	{
		my $left = $deadline - time;
		croak "no end of the query within $timeout s; so far: $self->{out}{text} $self->{err}{text}"
		  if $left <= 0;
		$self->_read($left);
	}
	return $self->_result;
}

# Wait until its first error has been reported.  A session that is terminated
# takes a moment longer to exit.
sub wait_error
{
	my ($self, $timeout) = @_;
	my $deadline = time + ($timeout // $TIMEOUT);
	until ($self->{err}{text} =~ /^\S*\s?(?:ERROR|FATAL|PANIC):/m || $self->_complete)
	{
		my $left = $deadline - time;
		croak 'no error in time' if $left <= 0;
		$self->_read($left);
	}
	return;
}

sub query
{
	my ($self, $sql, $timeout) = @_;
	return $self->send($sql)->wait($timeout);
}

# What it prints; dies on an error.
sub value
{
	my ($self, $sql, $timeout) = @_;
	my $result = $self->query($sql, $timeout);
	croak "$sql: $result->{err}" if $result->{state} || $result->{closed};
	return $result->{out};
}

# Let another session cancel the query that is running; returns its result
sub cancel
{
	my ($self, $admin) = @_;
	$admin->value("SELECT pg_cancel_backend($self->{pid})");
	return $self->wait;
}

# Exit cleanly, and wait until the backend is gone.  By then it has closed its
# ZooKeeper session, which removes its nodes.
sub quit
{
	my ($self, $timeout) = @_;
	return unless $self->{psql};
	local $SIG{PIPE} = 'IGNORE';
	syswrite $self->{in}, "\\q\n";    # a forked child may keep the pipe open
	close $self->{in};
	my $deadline = time + ($timeout // $TIMEOUT);
	Child::ended(delete $self->{psql}, $timeout) or croak 'psql does not end';
	while (!$self->{pooled} && _lives($self->{pid}))
	{
		croak "backend $self->{pid} does not end" if time > $deadline;
		sleep 0.002;
	}
	return;
}

# A zombie does not count: its parent may be stopped.
sub _lives
{
	my ($pid) = @_;
	open my $file, '<', "/proc/$pid/stat" or return 0;
	my ($state) = (<$file> // return 0) =~ /.*\) (\S)/;
	return $state !~ /[ZX]/;
}

# Kill the client, as in a crash.
sub kill9
{
	my ($self) = @_;
	Child::kill9(delete $self->{psql}) if $self->{psql};
	return;
}

sub _streams { return @{ $_[0] }{qw(out err)}; }

sub _read
{
	my ($self, $timeout) = @_;
	my %stream = map { fileno($_->{handle}) => $_ } grep { !$_->{eof} } $self->_streams;
	my $select = IO::Select->new(map { $_->{handle} } values %stream);
	foreach my $handle ($select->can_read($timeout))
	{
		my $stream = $stream{ fileno $handle };
		my $n = sysread $handle, $stream->{text}, 65536, length $stream->{text};
		$stream->{eof} = 1 unless $n;
	}
	return;
}

sub _complete
{
	my ($self) = @_;
	foreach my $stream ($self->_streams)
	{
		return 0 unless $stream->{eof} || $stream->{text} =~ /^\Q$self->{mark}\E\n/m;
	}
	return 1;
}

sub _result
{
	my ($self) = @_;
	my %result = (seconds => time - $self->{sent});
	foreach my $name (qw(out err))
	{
		my $stream = $self->{$name};
		if ($stream->{text} =~ s/\A(.*?)^\Q$self->{mark}\E\n//ms) { $result{$name} = $1; }
		else
		{
			$result{$name} = $stream->{text};
			$stream->{text} = '';
			$result{closed} = 1;
		}
	}
	delete $self->{mark};
	$result{out} =~ s/\s+\z//;
	$result{warnings} = [ $result{err} =~ /^(?:psql:\S+ )?WARNING:  \w{5}: (.*)$/mg ];
	$result{state} = $result{message} = $result{detail} = $result{hint} = '';
	# an error and its further lines
	foreach my $part (split /^(?=(?:psql:\S+ )?[A-Z]+:  \w{5}: )/m, $result{err})
	{
		next unless $part =~ /^(?:psql:\S+ )?(?:ERROR|FATAL|PANIC):/;
		@result{qw(state message)} = $part =~ /:  (\w{5}): (.*)$/m;
		($result{detail}) = $part =~ /^DETAIL:  (.*)$/m;
		($result{hint}) = $part =~ /^HINT:  (.*)$/m;
	}
	$result{$_} //= '' for qw(state message detail hint);
	return \%result;
}

# A session ends with the scope that it is in, as if it had said so.  One whose query is
# under way cannot; nor is there a server to wait for when the test itself ends.
sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);
	return unless Child::is_ours($self->{psql});
	my $psql = $self->{psql};
	if ($self->{mark} || ${^GLOBAL_PHASE} eq 'DESTRUCT') { $self->kill9; }
	elsif (!eval { $self->quit(10); 1 }) { kill 'KILL', $psql; }
	return;
}

1;
