
=pod

=head1 NAME

Bench - what the scenes of dev/bench have in common: servers, runners, tables,
goals

=head1 SYNOPSIS

  my $bench = Bench->new(dir => $dir, quick => 1);

  $bench->zk->hosts;                           # one server
  $bench->zk('ensemble')->hosts;               # three
  $bench->hosts('ensemble delayed');           # the same, behind proxies
  $bench->delay('ensemble delayed', 5);
  my $node = $bench->cluster('main', max_connections => 300);

  my $runner = $bench->runner('curator', hosts => $bench->zk->hosts);
  my @words = $runner->ask('free /zklock/bench/a 100');
  $runner->quit;

  my $ns = $bench->interleave([qw(zklock curator)], 7, sub {
	  my ($subject, $repetition) = @_;
	  return numbers($runner{$subject}->ask("try /zklock/bench/$subject 100"));
  });                                          # { zklock => [ [ ns, ... ], ... ], ... }
  my $ratio = ratio($ns->{zklock}, $ns->{curator});    # { median, min, max }

  $bench->table('(c) ...', [ 'subject', 'µs' ], [ [ 'zklock', '80.1' ] ], notes => ['...']);
  $bench->goal('(c) against Curator', $ratio->{median}, 0.35);
  $bench->plot(title => '(c) ...', kind => 'bars', y_label => 'µs', bars => [ [ 'zklock', 80.1 ] ]);

=head1 DESCRIPTION

Servers and clusters start when they are first asked for, and end with the
process.  A runner is one of the programs in F<dev/bench.d>;
F<dev/bench.d/runner> describes their commands.  Paths are those of ZooKeeper,
below F</zklock>.

Measurements are interleaved: one repetition of all subjects, then the next,
each time beginning with another subject.  A ratio is that of the medians of two
subjects in the same repetition, and the median of these ratios counts: what
disturbs the machine for a while then disturbs both.

=cut

package Bench;

use strict;
use warnings;
use Carp;
use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use File::Path qw(make_path);
use List::Util qw(max min sum);
use POSIX ();
use Scalar::Util qw(refaddr);
use Time::HiRes qw(sleep time);

use ZkClient;
use ZkProxy;
use Zklock;
use ZooKeeper;

our @EXPORT = qw(median percentile ratio numbers pairs microseconds);

our $SESSION_TIMEOUT = 10_000;    # ms, zklock's default
our $DELAY = 5;                   # ms in each direction
our $WARMING = 90;                # seconds at most, until servers are warm
our $WARM = 0.03;                 # share of one processor that their JIT compilers use when they are warm

my $programs = abs_path(dirname(__FILE__));

# What each subject is: by PostgreSQL, or the arguments of dev/bench.d/runner
our %SUBJECT = (
	(map { $_ => { sql => 1 } } qw(zklock zklock-xact zklock-plpgsql advisory)),
	(map { $_ => {} } qw(curator kazoo recipe floor-st floor-corked floor-bare floor-mt)));

# Bench->new(%opts):
#   dir                    for ZooKeeper's files and what is compiled
#   rounds                 of a repetition of scene (a), default 200; the other
#                          scenes in proportion
#   repetitions            default 9; more of what is short, fewer of what is long
#   warm                   rounds before the measurement, default 200; 0 also leaves
#                          the JVMs of clients and servers cold
#   quick                  a third of the rounds, 2 repetitions
#   fsync                  ZooKeeper's servers flush each transaction to the disk, all
#                          of them: those of the place "disk" do in any case
#   servers                [ 'one', 'ensemble' ]: only with these
#   delay                  0: nothing behind proxies
#   subjects               [ ... ]: only these, if available
#   say                    a function for progress messages
#   root                   directory with the usr/ of newer libraries
sub new
{
	my ($class, %opt) = @_;
	my $self = bless {
		servers => [qw(one ensemble)],
		tables => [], goals => [], plots => [], notes => [], raw => [],
		say => sub { },
		%opt
	}, $class;
	$self->{repetitions} //= $opt{quick} ? 2 : 9;
	$self->{warm} //= 200;
	$self->{scale} = ($opt{rounds} // 200) / 200 * ($opt{quick} ? 0.3 : 1);
	$self->{dir} //= PostgreSQL::Test::Utils::tempdir();
	make_path("$self->{dir}/bin");
	$self->{load} = load();
	return $self;
}

# of the machine, in the last minute
sub load
{
	open my $file, '<', '/proc/loadavg' or die "/proc/loadavg: $!";
	return (split ' ', <$file>)[0];
}

sub dir { return $_[0]->{dir}; }
sub repetitions { return $_[0]->{repetitions}; }
sub quick { return $_[0]->{quick}; }
sub warm { return $_[0]->{warm} || 5; }
sub servers { return @{ $_[0]->{servers} }; }

# n, scaled by --rounds and --quick
sub rounds
{
	my ($self, $n) = @_;
	return max(1, int($n * $self->{scale} + 0.5));
}

sub say { my ($self, @text) = @_; $self->{say}->(@text); return; }

# -------------------------------------------------------------------- servers

# What their places are called
our %PLACE = (
	one => 'one server',
	ensemble => 'three servers',
	disk => 'one server that waits for the disk',
	newest => 'one server, newest packages');

# 'one' (default) or 'ensemble'; or, see elsewhere, 'disk' or 'newest'
sub zk
{
	my ($self, $which) = @_;
	$which //= 'one';
	return $self->{zk}{$which} if $self->{zk}{$which};

	# with both JIT compilers, as a server is meant to run, unless nobody warms it up
	my @opt = (
		config => { forceSync => $self->{fsync} || $which eq 'disk' ? 'yes' : 'no', tickTime => 2000 },
		max_session_timeout => 3_600_000,
		# keep empty directories, so that nobody has to create one again
		container_check => 3_600_000,
		java_options => [ '-Xmx400m', $self->{warm} ? ('-XX:-UseSerialGC', '-XX:TieredStopAtLevel=4') : () ]);
	croak "no such servers: $which" unless $PLACE{$which};
	# each jar before those that name it: what they name is the machine's
	local $ZooKeeper::CLASSPATH = join ':', map({ "$self->{root}/newest/usr/share/java/$_.jar" } qw(zookeeper-jute zookeeper)), $ZooKeeper::CLASSPATH
	  if $which eq 'newest';
	my $zk = $self->{zk}{$which} = $which eq 'ensemble' ? ZooKeeper->ensemble(3, @opt, dir => "$self->{dir}/ensemble")
	  : ZooKeeper->new(@opt, dir => "$self->{dir}/$which")->start;
	$self->_warm_up($which) if $self->{warm};
	return $zk;
}

# A server that has run for a week is compiled; one that has just started spends
# a third of two processors on that for a minute, which would distort the
# measurement.  So keep it busy until its compilers have nothing to do.
sub _warm_up
{
	my ($self, $which) = @_;
	my @pids = map { $_->pid } $which eq 'ensemble' ? $self->zk($which)->nodes : $self->zk($which);
	my $end = time + $WARMING * ($self->quick ? 0.2 : 1);
	my $calm = 0;
	$self->say("warming up ZooKeeper, $PLACE{$which}");
	my $runner = $self->runner('zklock', hosts => $self->zk($which)->hosts);
	my $holder = $self->taken('zklock', '/zklock/bench/warm/try', $which);
	my $share;
	while ($calm < 3 && time < $end)
	{
		my ($since, $before) = (time, _compilers_seconds(@pids));
		$runner->ask('free /zklock/bench/warm/free 500');
		$runner->ask('try /zklock/bench/warm/try 500');
		$runner->ask('hand /zklock/bench/warm/hand 16 40');
		$share = (_compilers_seconds(@pids) - $before) / (time - $since);
		$holder->ping;
		$calm = $share < $WARM ? $calm + 1 : 0;
	}
	$holder->close;
	$runner->quit;
	$self->note(sprintf 'The compilers of ZooKeeper (%s) still used %.0f %% of a processor when it began.', $which, 100 * $share)
	  if $calm < 3;
	return;
}

# CPU time of the JIT compiler threads in these processes, except threads that
# have ended
sub _compilers_seconds
{
	my (@pids) = @_;
	my $ticks = 0;
	foreach my $file (map { glob "/proc/$_/task/*/stat" } @pids)
	{
		open my $stat, '<', $file or next;
		my ($name, @field) = (<$stat> // '') =~ /^\d+ \((.*)\) (.*)/s ? ($1, split ' ', $2) : next;
		$ticks += $field[11] + $field[12] if $name =~ /^C[12] Compiler/;
	}
	return $ticks / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

# The list of hosts of a place: 'one' or 'ensemble', or of proxies before them
# that can delay each frame: 'one delayed', 'ensemble delayed'
sub hosts
{
	my ($self, $where) = @_;
	my ($which, $delayed) = split / /, $where // 'one';
	my $zk = $self->zk($which);
	return $zk->hosts unless $delayed;
	$self->{slow}{$which} //= Bench::Runner->new('delay', "$self->{dir}/delay.log", {}, $self->_compiled('delay'), $zk->hosts);
	return join ',', map { "127.0.0.1:$_" } $self->{slow}{$which}->ask('ports');
}

# All places that the options select
sub places
{
	my ($self) = @_;
	my @servers = $self->servers;
	return (@servers, map { "$_ delayed" } $self->{delay} // 1 ? @servers : ());
}

# The newest packages that were fetched: { 'curator-recipes' => '5.7.1', ... }
sub newest
{
	my ($self) = @_;
	my @jars = glob(($self->{root} // '') . '/newest/usr/share/java/*-[0-9]*.jar');
	return { map { m{/(zookeeper|curator-recipes)-(\d[^/]*)\.jar$} ? ($1 => $2) : () } @jars };
}

# Runs $code where the only place is another one, with some subjects and few
# repetitions.  Its tables are kept, but not its goals and plots.
sub elsewhere
{
	my ($self, $place, $code) = @_;
	my @subjects = grep { $self->has($_) } qw(zklock zklock-plpgsql zklock-xact curator kazoo), 'floor-' . $self->client_library;
	local @{$self}{qw(servers delay repetitions subjects goals plots elsewhere)} =
	  ([$place], 0, min(3, $self->{repetitions}), \@subjects, [], [], $place);
	local $WARMING = $WARMING / 2;
	$code->();
	$_->quit for values %{ delete $self->{runners}{$place} // {} };
	(delete $self->{zk}{$place})->stop;
	return;
}

# The delay in each direction from now on, in ms; without proxies nothing
# happens
sub delay
{
	my ($self, $where, $ms) = @_;
	return unless $where =~ /delayed/;
	$self->hosts($where);
	$self->{slow}{ (split / /, $where)[0] }->ask("delay $ms");
	return;
}

# Between two subjects: wait until requests that the first did not wait for are
# done.
sub settle
{
	my ($self, $where) = @_;
	sleep($where =~ /delayed/ ? 3 * $DELAY / 1000 : 0.005);
	return;
}

# How many ns one round trip takes there: the median of some reads
sub round_trip
{
	my ($self, $where) = @_;
	my ($host) = split /,/, $self->hosts($where);
	my $client = ZkClient->new($host);
	my @ns;
	foreach (1 .. 30)
	{
		my $start = time;
		$client->exists('/');
		push @ns, (time - $start) * 1e9;
	}
	$client->close;
	return median(@ns);
}

# A new ZkProxy before these servers, which counts; stop it at the end
sub proxy
{
	my ($self, $zk, %opt) = @_;
	return ZkProxy->new($zk // $self->zk, %opt);
}

# The number of the server's last transaction
sub zxid
{
	my ($self, $which) = @_;
	return hex(($self->zk($which)->four_letter('srvr') =~ /^Zxid: 0x(\w+)$/m)[0]);
}

# A cluster with the extension, using the single server; it is created when this
# name is first used.  %conf goes to postgresql.conf; hosts => other servers
sub cluster
{
	my ($self, $name, %conf) = @_;
	my $hosts = delete $conf{hosts} // $self->zk;
	return $self->{cluster}{$name} //= zk_cluster(
		$name, $hosts,
		max_connections => 400,
		shared_buffers => '32MB',
		log_connections => 'off',
		log_disconnections => 'off',
		autovacuum => 'off',
		'zklock.session_timeout' => "${SESSION_TIMEOUT}ms",
		%conf);
}

# -------------------------------------------------------------------- runners

# Whether the subject is available; missing() says why not.
sub has
{
	my ($self, $subject) = @_;
	return !defined $self->missing($subject);
}

sub missing
{
	my ($self, $subject) = @_;
	my $what = $SUBJECT{$subject} or croak "no such subject: $subject";
	return 'not asked for' if $self->{subjects} && !grep { $_ eq $subject } @{ $self->{subjects} };
	return undef if $what->{sql};
	return $self->{missing}{$subject} if exists $self->{missing}{$subject};
	# its runner says why
	my $why;
	if (!-x "$programs/runner") { $why = 'there is no dev/bench.d/runner'; }
	elsif (!eval { $self->runner($subject, cold => 1)->quit; 1 }) { ($why) = $@ =~ /^(.*?)(?: at \S+ line \d+\.)?$/m; }
	return $self->{missing}{$subject} = $why;
}

# runner($subject, %opts):
#   hosts              a list, or an object with "hosts"; default: the one server
#   session_timeout    ms
#   cold               1: Java does not warm up
# for subjects that use PostgreSQL:
#   settings           { 'zklock.commit_guard' => 'strict', ... }
#   cluster            default: the one with the name "bench"
sub runner
{
	my ($self, $subject, %opt) = @_;
	my $what = $SUBJECT{$subject} or croak "no such subject: $subject";
	my $hosts = $opt{hosts} // $self->hosts('one');
	$hosts = $hosts->hosts if ref $hosts;
	my $timeout = $opt{session_timeout} // $SESSION_TIMEOUT;

	my %env = (PEERS_ROOT => $self->{root} // '', BENCH_BIN => "$self->{dir}/bin", TMPDIR => $self->{dir});
	if ($subject eq 'curator' && ($self->{elsewhere} // '') eq 'newest')
	{
		$env{$_} .= '/newest' for qw(PEERS_ROOT BENCH_BIN);
		make_path($env{BENCH_BIN});
	}
	$env{BENCH_WARM_HOSTS} = $self->hosts('one') unless $opt{cold} || !$self->{warm};
	return Bench::Runner->new($subject, "$self->{dir}/$subject.log", \%env, "$programs/runner", $subject, $hosts, $timeout)
	  unless $what->{sql};

	my $node = $opt{cluster} // $self->cluster('bench');
	my %setting = (
		'zklock.hosts' => $hosts,
		'zklock.session_timeout' => "${timeout}ms",
		%{ $opt{settings} // {} });
	my $options = join ' ', map { "-c $_=$setting{$_}" } sort keys %setting;
	return Bench::Runner->new($subject, "$self->{dir}/$subject.log", \%env,
		$self->_pg, $node->connstr('postgres') . " gssencmode=disable options='$options'", $subject);
}

# A program of one file in dev/bench.d
sub _compiled
{
	my ($self, $name, @flags) = @_;
	my $program = "$self->{dir}/bin/$name";
	return $program if -x $program;
	system('gcc', '-O2', '-Wall', '-o', $program, "$programs/$name.c", @flags) == 0
	  or die "could not compile dev/bench.d/$name.c\n";
	return $program;
}

sub _pg
{
	my ($self) = @_;
	chomp(my $include = `pg_config --includedir`);
	return $self->_compiled('pg', "-I$include", '-lpq', '-lpthread');
}

# The library that zklock itself is linked with, 'st' or 'mt': the floor uses
# the same one
sub client_library
{
	my ($self) = @_;
	return $self->{client_library} //= do {
		chomp(my $dir = `pg_config --pkglibdir`);
		`readelf -d $dir/zklock.so` =~ /libzookeeper_(\w+)\.so/ ? $1 : 'st';
	};
}

# Another client's node in the queue of a lock, in the form that the clients of
# this subject know, until the client that this returns is closed.
sub taken
{
	my ($self, $subject, $path, $which) = @_;
	my $client = $self->zk($which)->client(session_timeout => 3_600_000);
	my $name = { kazoo => '0' x 32 . '__lock__', recipe => 'x-1-' }->{$subject}
	  // '_c_00000000-0000-0000-0000-000000000000-lock-';
	my $parent = '';
	foreach my $part (grep { $_ ne '' } split m{/}, $path)
	{
		$parent .= "/$part";
		eval { $client->create($parent, mode => 'container'); 1 } or $@ =~ /NODEEXISTS/ or die $@;
	}
	$client->create("$path/$name", mode => 'ephemeral_sequential');
	return $client;
}

# ----------------------------------------------------------------- measuring

# interleave(\@subjects, $repetitions, $code): returns what $code->($subject,
# $repetition) returned for each, as { subject => [ [ values ], ... ] }.
# Repetition 0 is for warming up and does not count.
sub interleave
{
	my ($self, $subjects, $repetitions, $code) = @_;
	my %result;
	foreach my $repetition (0 .. $repetitions)
	{
		my @turn = @$subjects;
		push @turn, splice @turn, 0, $repetition % @turn;
		foreach my $subject (@turn)
		{
			my @values = $code->($subject, $repetition);
			push @{ $result{$subject} }, \@values if $repetition;
		}
	}
	return \%result;
}

# Keep each value for --raw: its description, and a list of its repetitions
sub raw
{
	my ($self, $what, $repetitions) = @_;
	my $n = 0;
	foreach my $values (@$repetitions)
	{
		++$n;
		push @{ $self->{raw} }, map { "$what\t$n\t$_" } @$values;
	}
	return;
}

# numbers('12', '13') are 12, 13; pairs('1:2', '3:4') are [1, 2], [3, 4]
sub numbers { return map { $_ + 0 } @_; }
sub pairs { return map { [ split /:/ ] } @_; }

sub microseconds { return sprintf $_[0] < 100_000 ? '%.1f' : '%.0f', $_[0] / 1000; }

sub percentile
{
	my ($p, @values) = @_;
	return undef unless @values;
	@values = sort { $a <=> $b } @values;
	my $at = $p / 100 * $#values;
	my $below = int $at;
	return $values[$below] if $below == $#values;
	return $values[$below] + ($at - $below) * ($values[ $below + 1 ] - $values[$below]);
}

sub median { return percentile(50, @_); }

# ratio($mine, $other), each [ [ values of repetition 1 ], ... ]: the median of
# the ratios of medians, repetition by repetition, with their range and their
# middle half; undef if there is no other
sub ratio
{
	my ($mine, $other) = @_;
	return undef unless $mine && $other;
	my @ratio = map { median(@{ $mine->[$_] }) / median(@{ $other->[$_] }) } 0 .. min($#$mine, $#$other);
	return { median => median(@ratio), low => percentile(25, @ratio), high => percentile(75, @ratio), min => min(@ratio), max => max(@ratio), all => \@ratio };
}

# --------------------------------------------------------------- what to tell

# What the options of a run left out, or what else the reader must know
sub note { my ($self, $text) = @_; push @{ $self->{notes} }, $text; return; }

# A table for the report, with notes on what it does not show; rows are lists of
# text
sub table
{
	my ($self, $title, $columns, $rows, %opt) = @_;
	my $table = { title => $title, columns => $columns, rows => $rows, notes => $opt{notes} // [] };
	return $self->add_table($table);
}

# the same table only once
sub add_table
{
	my ($self, $table) = @_;
	push @{ $self->{tables} }, $table
	  unless grep { refaddr($_) == refaddr($table) } @{ $self->{tables} };
	return $table;
}

# goal($name, $value, $limit, %opts): at_least => 1 if more is better, unit =>
# 'kB', note => text; a value of undef was not measured
sub goal
{
	my ($self, $name, $value, $limit, %opt) = @_;
	my $met = !defined $value ? undef : $opt{at_least} ? $value >= $limit : $value <= $limit;
	push @{ $self->{goals} }, { name => $name, value => $value, limit => $limit, met => $met, %opt };
	return $met;
}

# plot(title => ..., y_label => ..., log => 1 if the y axis is, and)
#   kind => 'bars', bars => [ [ label, value (, low, high) ], ... ]
#   kind => 'lines', x_label => ..., log_x => 1, lines => [ [ label, [ x, y ], ... ], ... ]
sub plot
{
	my ($self, %plot) = @_;
	push @{ $self->{plots} }, \%plot;
	return;
}

# End the runners that scenes have kept for others
sub end_runners
{
	my ($self) = @_;
	$_->quit for map { values %$_ } values %{ delete $self->{runners} // {} };
	return;
}

sub stop
{
	my ($self) = @_;
	$self->end_runners;
	$_->stop for values %{ delete $self->{cluster} // {} };
	$_->quit for values %{ delete $self->{slow} // {} };
	$_->stop for values %{ delete $self->{zk} // {} };
	return;
}

# ===================================================================== runner

package Bench::Runner;

use strict;
use warnings;
use Carp;
use IO::Select;
use POSIX qw(:sys_wait_h);
use Time::HiRes qw(sleep time);

use Child;

our $START_TIMEOUT = 120;    # seconds: some have to be compiled first

sub new
{
	my ($class, $subject, $log, $env, @command) = @_;
	my ($pid, $to, $from) = Child::spawn(\@command, err => $log, env => $env);
	my $self = bless { subject => $subject, pid => $pid, to => $to, from => $from, text => '', log => $log }, $class;
	my $answer = $self->_line($START_TIMEOUT, 'to start');
	croak "$subject: $answer" if $answer ne 'ready';
	return $self;
}

sub pid { return $_[0]->{pid}; }
sub subject { return $_[0]->{subject}; }

# Returns the words after "ok"; dies on anything else.
sub ask
{
	my ($self, $line, $timeout) = @_;
	$self->send($line);
	return $self->answer($timeout);
}

# ask in two halves, so that something can be done in between
sub send
{
	my ($self, $line) = @_;
	local $SIG{PIPE} = 'IGNORE';
	syswrite $self->{to}, "$line\n";    # if it is gone, reading the answer will notice
	$self->{asked} = $line;
	return $self;
}

sub answer
{
	my ($self, $timeout) = @_;
	my $asked = delete $self->{asked} // croak 'nothing was asked';
	my $answer = $self->_line($timeout // 300, $asked);
	croak "$self->{subject}: $asked: $answer" unless $answer =~ s/^ok ?//;
	return split / /, $answer;
}

sub _line
{
	my ($self, $timeout, $asked) = @_;
	my $deadline = time + $timeout;
	my $select = IO::Select->new($self->{from});
	# a long answer arrives in many pieces
	until ($self->{text} =~ /\n\z/)
	{
		my $left = $deadline - time;
		croak "$self->{subject}: no answer within $timeout s: $asked" if $left <= 0;
		next unless $select->can_read($left);
		sysread $self->{from}, $self->{text}, 1 << 20, length $self->{text}
		  or croak "$self->{subject} has ended; asked: $asked; " . $self->_log_tail;
	}
	my $line = $self->{text};
	$self->{text} = '';
	chomp $line;
	return $line;
}

sub _log_tail
{
	my ($self) = @_;
	open my $file, '<', $self->{log} or return '';
	my @lines = <$file>;
	splice @lines, 0, -5 if @lines > 5;
	return join ' ', map { s/\s+$//r } @lines;
}

sub quit
{
	my ($self) = @_;
	return unless $self->{pid};
	close $self->{to};
	my $deadline = time + 30;
	until (waitpid($self->{pid}, WNOHANG) != 0)
	{
		return $self->kill9 if time > $deadline;
		sleep 0.005;
	}
	Child::forget(delete $self->{pid});
	return;
}

sub kill9
{
	my ($self) = @_;
	my $pid = delete $self->{pid} or return;
	# with all its children
	kill 'KILL', -$pid, $pid;
	waitpid $pid, 0;
	Child::forget($pid);
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);
	$self->kill9 if Child::is_ours($self->{pid});
	return;
}

1;
