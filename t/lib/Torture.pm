
=pod

=head1 NAME

Torture - protected transactions on three ZooKeeper servers and two PostgreSQL
clusters, all of which fail

=head1 SYNOPSIS

  my $run = Torture->new(seconds => 60, seed => 1, faults => 'all', guard => 'on', fence => 1);
  $run->execute;
  print $run->figures;
  $run->violations;          # [ kind, text ], ...
  $run->picture($file);

=head1 DESCRIPTION

All clients reach a ZooKeeper server through its ZkProxy, and the servers reach
each other by links that can be cut.  Torture::Worker is what the clients do,
Torture::Schedule when what is done to them, which Torture::Nemesis and
Torture::Strike do; Torture::Checker judges, and has ZooKeeper's own log for a second
witness: Torture::TxnLog.

The clusters flush each commit, after waiting a moment for others
(commit_delay).  So a commit takes as long as on a real disk, and between the
commit guard and the moment at which others see the commit there is time to stop
a backend.

=cut

package Torture;

use strict;
use warnings;
use Carp;
use List::Util qw(max);
use POSIX qw(:sys_wait_h);
use Time::HiRes qw(time);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(slurp_file);

use BadHost;
use Deadline;
use Peer;
use Pgbouncer;
use Tls;
use Torture::Checker;
use Torture::Cluster;
use Torture::Log;
use Torture::Nemesis;
use Torture::Picture;
use Torture::Schedule;
use Torture::Strike;
use Torture::TxnLog;
use Torture::Witness;
use Torture::Worker;
use ZkProxy;
use Zklock;
use ZooKeeper;

my @CLUSTERS = qw(east west);

# Torture->new(%opts):
#   seed       of the schedule; default: a new one
#   faults     'all', 'none' or 'cut,delay,...'
#   moment     'critical', 'commit', ...: when backends are struck; default: at any time
#   pause      [ shortest, longest ] time between two faults of a track
#   kinds      of locks: 'all', or some of exclusive,shared,semaphore,several
#   contents   of objects; default [ 'counter', 'counter', 'register' ]
#   think      [ shortest, longest ] time between reading and writing
#   rest       the longest time between two operations of a worker
#   guard      zklock.commit_guard
#   fence      whether to use zk_fence
#   peers      clients that Peer.pm knows, each for one worker, with commas; default: all that
#              are installed, if there is a fence
#   style      of all nodes; default: one object has this, another that one.  With single,
#              kinds must be exclusive, and there can be no peers.
#   tls        whether the clusters reach ZooKeeper by TLS
#   workers, objects    how many; half of them in each cluster.  A few
#              semaphores are added.
#   commit_delay    PostgreSQL's setting
#   hang       seconds after which a call is considered hung
#   installation    of PostgreSQL, with the zklock that is tortured; default: that in
#              the PATH
#   name       what the clusters' names end with, if one test has several runs
#   dir        for ZooKeeper's files and the log
sub new
{
	my ($class, %opt) = @_;
	my $self = bless {
		seconds => 60,
		faults => 'all',
		guard => 'on',
		fence => 1,
		workers => 16,
		objects => 6,
		session_timeout => 2,
		tick => 0.5,
		think => [ 0.02, 0.12 ],
		rest => 0.3,
		commit_delay => 2000,
		hang => $Torture::Worker::HANG,
		name => '',
		kinds => 'all',
		contents => [qw(counter counter register)],
		%opt
	}, $class;
	my @kinds = $self->{kinds} =~ /\ball\b/ ? @Torture::Operation::KINDS : split /,/, $self->{kinds};
	$self->{takes} = { map { $_ => 1 } @kinds };
	my %is_kind = map { $_ => 1 } @Torture::Operation::KINDS;
	$is_kind{$_} or croak "no such kind of lock: $_ (there are: @Torture::Operation::KINDS)\n" for @kinds;
	$self->{seed} //= 1 + int rand 1_000_000;
	$self->{peers} //= $self->{fence} && $self->{takes}{exclusive} ? join ',', grep { Peer::installed($_) } qw(curator kazoo) : '';
	$self->{peers} = '' if $self->{peers} eq 'no';
	my @peers = split /,/, $self->{peers};
	$self->{foreign} = { map { $self->{workers} - $_ => $peers[$_] } 0 .. $#peers };
	$self->{schedule} = [
		Torture::Schedule::make(
			seed => $self->{seed},
			seconds => $self->{seconds},
			session_timeout => $self->{session_timeout},
			workers => $self->{workers},
			moment => $self->{moment},
			pause => $self->{pause},
			faults => [ Torture::Schedule::wanted($self->{faults}) ])
	];
	$self->{dir} //= PostgreSQL::Test::Utils::tempdir();
	$self->{log} = Torture::Log->new("$self->{dir}/log");
	return $self;
}

sub log_file { return $_[0]->{log}->file; }
sub schedule { return @{ $_[0]->{schedule} }; }
sub violations { return $_[0]->{checker}->violations; }

# --------------------------------------------------------------------- the run

sub execute
{
	my ($self) = @_;
	$self->_set_up;
	$self->_torture;
	$self->_judge;
	$_->stop_all for @{ $self->{clusters} };
	$self->{ensemble}->stop;
	$_->close for @{ $self->{doors} // [] };
	$_->stop for @{ $self->{proxies} };
	return $self;
}

sub _set_up
{
	my ($self) = @_;
	my $dir = $self->{dir};
	my %impossible = Torture::Strike::build($dir);
	BadHost::build($dir)
	  or $impossible{$_} = 'bad_host.c cannot be compiled' for qw(slow_sync disk_full clock);
	# two workers of the second cluster, if there are enough others
	my $pooled = grep({ $_->{kind} =~ /^pooler_/ } $self->schedule) && $self->{workers} >= 8;
	my $without = !$pooled ? 'there are too few workers' : Pgbouncer::program() ? undef : 'there is no pgbouncer';
	$self->{pooled} = { map { $_ => 1 } $without ? () : (3, 5) };
	$without and $impossible{$_} = $without for qw(pooler_kill pooler_drop);
	$self->{impossible} = \%impossible;
	# (servers sync, but a real disk would only be slow)
	my @hosts = map { BadHost->new("$dir/host$_", $_ <= 3 ? (sync => -1) : ()) } 1 .. 3 + @CLUSTERS;
	$self->{bad_hosts} = { servers => [ @hosts[ 0 .. 2 ] ], clusters => [ @hosts[ 3 .. $#hosts ] ] };
	$self->{ensemble} = ZooKeeper->ensemble(
		3, links => 1, container_check => 1000, tick_time => 1000 * $self->{tick},
		dir => "$dir/zookeeper",
		config => { forceSync => $impossible{slow_sync} ? 'no' : 'yes' },
		env => sub { return { $hosts[ $_[0] - 1 ]->env } },
		max_client_cnxns => $self->{workers} + 24);    # (all clients, and those that only ask how it is)
	$self->{proxies} = [ map { ZkProxy->new($_) } $self->{ensemble}->nodes ];
	$self->{hosts} = join ',', map { $_->hosts } @{ $self->{proxies} };
	local $Zklock::INSTALLATION = $self->{installation};
	my %tls = $self->{tls} ? $self->_doors : ();
	# the first has a standby, if a fault of this run needs one
	my $standby = grep { $_->{kind} eq 'promote' || $_->{kind} eq 'sync_hang' && $_->{cluster} == 0 } $self->schedule;
	$self->{clusters} = [
		map {
			Torture::Cluster->new(
				$CLUSTERS[$_] . $self->{name}, $self->{hosts},
				bad_host => $self->{bad_hosts}{clusters}[$_],
				standby => $_ == 0 && $standby,
				settings => {
					'zklock.session_timeout' => "$self->{session_timeout}s",
					'zklock.operation_timeout' => '5s',
					'zklock.commit_guard' => $self->{guard},
					%tls,
					client_connection_check_interval => '1s',    # a pooler that dies while they wait for a lock
					max_connections => 10 + 3 * $self->{workers},
					restart_after_crash => 'on',
					track_commit_timestamp => 'on',
					log_line_prefix => '%n [%p] ',
					fsync => 'on',
					wal_level => 'replica',
					max_wal_senders => 4,
					commit_delay => $self->{commit_delay},
					commit_siblings => 0
				})
		} 0 .. $#CLUSTERS
	];
	$self->{list} = [ $self->_objects ];
	$self->_make_tables($_) for 0, 1;
	$_->add_standby for grep { $_->standby } @{ $self->{clusters} };
	$self->{pool} = Pgbouncer->new($self->{clusters}[1]->primary, default_pool_size => 2, server_login_retry => 1) if %{ $self->{pooled} };
	# the second worker locks in that cluster
	$self->{reader_at_standby} = $standby && $self->{takes}{shared} && $self->{workers} > 3 ? 2 : 0;
	return;
}

sub _make_tables
{
	my ($self, $cluster) = @_;
	my ($here, $there) = @{ $self->{clusters} }[ $cluster, 1 - $cluster ];
	my %other = (dbname => 'postgres', $there->options);
	$here->primary->safe_psql('postgres', sprintf q{
			CREATE TABLE object (id int, seq bigint NOT NULL DEFAULT 0, value bigint NOT NULL DEFAULT 0) WITH (fillfactor = 20);
			CREATE TABLE history (op bigint, object int, worker int, hold bigint, token bigint,
				granted timestamptz, seq bigint, read bigint, written bigint);
			CREATE TABLE visitor (op bigint, object int, worker int, hold bigint);
			CREATE EXTENSION postgres_fdw;
			CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw OPTIONS (%s);
			CREATE USER MAPPING FOR CURRENT_USER SERVER other;
			CREATE FOREIGN TABLE abroad (op bigint, object int, worker int, hold bigint)
				SERVER other OPTIONS (table_name 'visitor');
			INSERT INTO object (id) SELECT unnest('{%s}'::int[])},
		join(', ', map { "$_ '$other{$_}'" } sort keys %other),
		join(',', map { $_->{id} } grep { $_->{cluster} == $cluster } @{ $self->{list} }));
	return;
}

# The clusters reach the proxies by TLS: what that changes in their settings
sub _doors
{
	my ($self) = @_;
	my $tls = $self->{certificates} = Tls->new;
	$tls->authority('ca');
	$tls->certificate('server', 'ca', 'DNS:localhost,IP:127.0.0.1');
	$self->{doors} = [ map { $tls->door($_, 'server') } @{ $self->{proxies} } ];
	return ('zklock.hosts' => join(',', map { $_->hosts } @{ $self->{doors} }), 'zklock.tls_ca_file' => $tls->file('ca.pem'));
}

# The locks, and a few semaphores, which have a lock's path, as they do not see each
# other.  In each cluster, two of three neighbors have nodes of one style, so that they
# can be taken together.
sub _objects
{
	my ($self) = @_;
	my @contents = @{ $self->{contents} };
	# the style, and which client joins.  (kazoo's plain lock does not see readers, and
	# those of its classes that see Curator's nodes are not seen by Curator.)
	my @styles = ([qw(curator curator)], [qw(curator kazoo)], [qw(curator_rw curator)], [qw(kazoo kazoo)], [ 'kazoo', '' ], [qw(curator_rw curator)]);
	my %peer = map { $_ => 1 } values %{ $self->{foreign} };
	my $object = sub {
		my ($id, $number, $kind, %more) = @_;
		my ($style, $peer) = @{ $styles[ $number % @styles ] };
		$peer = '' unless $peer{$peer};
		$style = $self->{style} // $style;
		return {
			id => $id,
			kind => $kind,
			cluster => int($number / 3) % 2,
			path => "/torture/$number",
			full_path => "/zklock/torture/$number",
			style => $style,
			peer => $kind eq 'places' ? '' : $peer,
			readers => $style ne 'kazoo' || $peer ne 'kazoo',
			%more
		};
	};
	my $locks = $self->{objects};
	my $places = $self->{takes}{semaphore} ? 1 + int($locks / 6) : 0;
	return (
		map({ $object->($_, $_, $contents[ $_ % @contents ]) } 0 .. $locks - 1),
		map({ $object->($locks + $_, $_ % $locks, 'places', limit => 2) } 0 .. $places - 1));
}

sub _torture
{
	my ($self) = @_;
	my $log = $self->{log};
	$log->{zero} += $log->now;    # the run begins now
	$log->write('torture', 0, 'clock', 'epoch', 0, epoch => sprintf '%.6f', time);
	my @workers = map { Torture::Worker->start($self->_worker($_)) } 1 .. $self->{workers};
	my @witnesses = (Torture::Witness->watchman($log, $self->{ensemble}), map { Torture::Witness->listener($log, $self->{clusters}[$_], $_) } 0, 1);
	my $nemesis = Torture::Nemesis->new(workers => \@workers, objects => $self->{list},
		map { $_ => $self->{$_} } qw(ensemble proxies clusters log impossible bad_hosts pool pooled schedule));
	$nemesis->step while $log->now < $self->{seconds};
	$nemesis->heal;

	my $end = $log->now + $self->{hang} + 30;
	foreach my $worker (@workers)
	{
		eval { until_true(sub { waitpid($worker->{pid}, WNOHANG) != 0 }, 'its end', max(0, $end - $log->now)); 1 }
		  or kill('KILL', $worker->{pid}) && waitpid $worker->{pid}, 0;
		push @{ $self->{failed_workers} }, $worker->{number} if $?;
	}
	$_->stop for @witnesses;
	$self->{pool}->kill9 if $self->{pool};    # whose sessions go on for longer than its clients
	return;
}

# The options of this worker
sub _worker
{
	my ($self, $number) = @_;
	return (
		number => $number,
		cluster => $number % 2,
		objects => $self->{list},
		kinds => $self->{takes},
		remote => $self->{fence} || $self->{guard} eq 'off',
		peer => $self->{foreign}{$number},
		map({ $_ => $self->{$_} } qw(seed clusters log seconds think rest hang fence hosts session_timeout)),
		$self->{pooled}{$number} ? (pooled => 1, clusters => [ $self->{clusters}[0], $self->{pool} ]) : (),
		$number == $self->{reader_at_standby} ? $self->_only_reads_at_standby : ());
}

# What is different for a worker of the first cluster that reads, and locks, at its standby
sub _only_reads_at_standby
{
	my ($self) = @_;
	return (
		only_reads => 1,
		kinds => { shared => 1 },
		clusters => [ map { $_->at_standby } @{ $self->{clusters} } ],
		objects => [ grep { $_->{cluster} == 0 && $_->{kind} ne 'places' } @{ $self->{list} } ]);
}

sub _judge
{
	my ($self) = @_;
	my $checker = $self->{checker} =
	  Torture::Checker->new(
		session_timeout => $self->{session_timeout}, tick => $self->{tick}, guard => $self->{guard},
		foreign => $self->{foreign},
		at_standby => { $self->{reader_at_standby} => 1 },
		pooled => $self->{pooled},
		unfair => ($self->{style} // '') eq 'single',    # who waits has no queue
		homes => { map { $_ => $_ % 2 } grep { !$self->{foreign}{$_} } 1 .. $self->{workers} });

	my %killed;
	Torture::Log::each_event(
		$self->log_file,
		sub {
			$checker->event(@_);
			my ($call, $phase, $more) = @_[ 3, 4, 6 ];
			return if $call ne 'fault';
			$killed{ $more->{pid} } = 1 if $more->{kind} eq 'backend_kill' && $more->{pid};
			$self->{skipped}{"$more->{kind}: $more->{why}"}++ if $phase eq 'skipped';
		});
	# (what belongs to calls that hang does not go, however long one waits)
	my @left = $self->_left(grep({ $_->{hangs} } values %{ $checker->{calls} }) ? 5 : 60);
	$checker->found('leak', $_) for @left;
	$self->{left} = { map { /^node (.*)/ ? ($1 => 1) : () } @left };
	$checker->found('worker', "worker $_ did not end well") for @{ $self->{failed_workers} };

	foreach my $cluster (0, 1)
	{
		foreach my $server ($self->{clusters}[$cluster]->servers)
		{
			my $text = slurp_file($server->logfile);
			$checker->found('crash', $server->name . ": $_") for _crashes($text, \%killed);
			$checker->{causes}->restarted($cluster, map { _without_days($_ - $checker->{epoch}) } @$_) for _restarts($text);
		}
		my $s = zk_session($self->{clusters}[$cluster]);
		# { column => value, ... } for each row; a clock that is wrong is wrong by whole days
		my $rows = sub {
			my ($table, @columns) = @_;
			my %sql = (granted => 'extract(epoch FROM granted)', committed => 'extract(epoch FROM pg_xact_commit_timestamp(xmin))');
			my @rows;
			foreach my $line (split /\n/, $s->value('SELECT ' . join(', ', map { $sql{$_} // $_ } @columns) . " FROM $table", 120))
			{
				my %row = (cluster => $cluster);
				@row{@columns} = map { $_ eq '' ? undef : $_ } split /\|/, $line, -1;
				$_ = _without_days($_ - $checker->{epoch}) for grep { defined } @row{ grep { $sql{$_} } @columns };
				push @rows, \%row;
			}
			return @rows;
		};
		$checker->history($_) for $rows->('history', qw(op object worker hold token granted committed seq read written));
		$checker->abroad($_) for $rows->('visitor', qw(op object worker hold committed));
		$checker->object({ %$_, kind => $self->{list}[ $_->{id} ]{kind} }) for $rows->('object', qw(id seq value));
		$s->quit;
	}
	$self->_second_witness;
	$checker->finish;
	return;
}

sub _without_days { my ($t) = @_; return $t - 86400 * sprintf '%.0f', $t / 86400; }

# What ZooKeeper has written down, and who was connected to which server, with times
# as in our log
sub _second_witness
{
	my ($self) = @_;
	my $checker = $self->{checker};
	my $epoch = $checker->{epoch};
	my $set = time - $self->{log}->now - $epoch;
	$checker->found('clock', sprintf 'the clock was set by %.3f s during the run, so that times cannot be compared', $set) if abs($set) > 0.01;
	my %object = map { "$_->{full_path} " . ($_->{limit} ? 'semaphore' : 'lock') => $_->{id} } @{ $self->{list} };
	my @changes = Torture::TxnLog::read_servers(map { $_->dir } $self->{ensemble}->nodes);
	$checker->{ledger}->logged($_->{zxid}, $_->{time} - $epoch, $_->{doubtful}) for @changes;
	foreach my $node (Torture::TxnLog::nodes(Torture::TxnLog::settle($self->{left}, @changes)))
	{
		my ($directory, $name) = $node->{path} =~ m{^(.*)/(.*)};
		my $mode = $name =~ /-semaphore-/ ? 'semaphore' : $name =~ /-shared-lock-|__READ__|__rlock__/ && !$node->{shared} ? 'shared' : 'exclusive';
		my $object = $object{ "$directory " . ($mode eq 'semaphore' ? $mode : 'lock') } // $object{"$node->{path} lock"} // next;
		my ($pid) = $node->{data} =~ /^pid (\d+)$/m;
		defined $node->{$_} and $node->{$_} -= $epoch for qw(made shared gone);
		$checker->{ledger}->node({ %$node, object => $object, mode => $mode, pid => $pid });
	}
	my $server = 0;
	foreach my $proxy (@{ $self->{proxies} })
	{
		$server++;
		$checker->connection($_->[0], $server, $_->[1] - $epoch, $_->[2] ne '' ? $_->[2] - $epoch : $checker->{end}) for $proxy->sessions;
	}
	return;
}

# What is still in ZooKeeper although all clients are gone, after so many seconds at most
sub _left
{
	my ($self, $seconds) = @_;
	my $zk = $self->{ensemble};
	$zk->start;
	my @left;
	eval {
		until_true(
			sub {
				@left = eval {
					# everything but the directories of the locks
					my %known = map { $_ => 1 } '/zklock', '/zklock/torture', map { $_->{full_path} } @{ $self->{list} };
					my @locks = grep { !$known{$_} } $zk->tree('/');
					my @sessions = $zk->sessions;
					my %watches = map { $_->{id} => $_->watch_count // 'an unknown number of' } $zk->nodes;
					(   map({ "node $_" } @locks), map({ "session $_" } @sessions),
						map({ "server $_: $watches{$_} watches" } grep { $watches{$_} ne '0' } sort keys %watches));
				};
				@left = "could not look: $@" if $@;
				return !@left;
			},
			'nothing to be left',
			$seconds);
	};
	return @left;
}

# The processes that died according to a server's log, except those that we
# killed
sub _crashes
{
	my ($log, $killed) = @_;
	# a stopped process does not see the request to shut down: it is killed
	# after 5 s
	my $stubborn = $log =~ /issuing SIGKILL to recalcitrant/;
	return grep {
		/terminated by signal|PANIC:|TRAP:|stack smashing|double free/ && !(/\(PID (\d+)\) was terminated by signal 9/ && ($stubborn || $killed->{$1}))
	} split /\n/, $log;
}

# From when until when a server was away since a process of its had been killed, by its log.
# (Not where it was told to stop.)
sub _restarts
{
	my ($log) = @_;
	my ($since, $by_itself, @restarts);
	foreach my $line (split /\n/, $log)
	{
		my ($at) = $line =~ /^(\d+\.\d+) / or next;
		if ($line =~ /was terminated by signal 9/) { $since //= $at; }
		elsif ($line =~ /reinitializing/) { $by_itself = 1; }
		elsif ($line =~ /ready to accept/)
		{
			push @restarts, [ $since, $at ] if defined $since && $by_itself;
			undef $_ for $since, $by_itself;
		}
	}
	return @restarts;
}

# ------------------------------------------------------------------ what to say

sub figures
{
	my ($self) = @_;
	my $c = $self->{checker};
	my @out;
	my $say = sub { push @out, sprintf shift() . "\n", @_; };

	$say->('seed %d, %d s, %d workers in 2 clusters, %d objects%s, kinds %s, commit_guard %s, %s fence,%s faults: %s',
		@$self{qw(seed seconds workers objects)}, $self->{peers} ? " beside $self->{peers}" : '', join('+', sort keys %{ $self->{takes} }), $self->{guard}, $self->{fence} ? 'with' : 'without', $self->{tls} ? ' TLS,' : '', $self->{faults});
	$say->('');
	$say->('%-10s %8s %8s %8s %8s  %s', qw(call invoked ok failed unknown), 'SQLSTATE of the failed');
	foreach my $call (qw(connect style begin lock token fence look read write notify abroad commit rollback unlock))
	{
		my $n = $c->{calls}{$call} or next;
		my $states = $c->{states}{$call} // {};
		$say->('%-10s %8d %8d %8d %8d  %s', $call, map({ $n->{$_} // 0 } qw(invoked ok failed unknown)),
			join ' ', map { "$_: $states->{$_}" } sort keys %$states);
	}
	$say->('');
	my $history = @{ $c->{history} };
	my $writes = grep { defined $_->{seq} } @{ $c->{history} };
	$say->('protected commits: %d (%.1f per second), %d of them writes', $history, $history / $self->{seconds}, $writes);
	my $outcome = $c->{outcome} // {};
	$say->('COMMIT, told and true: %s', join ', ', map { "$_ $outcome->{$_}" } sort keys %$outcome);
	$say->('holds: %d; in the order of the requests, no fault near: %d', scalar($c->holds), $c->{ordered} // 0);
	$say->('judged:');
	$say->('  %s: %s', @$_) for $c->judged;

	my %faults;
	$faults{ $_->{kind} }++ for $c->faults;
	$say->('faults: %d%s', scalar($c->faults), join '', map { "\n  $_ $faults{$_}" } sort keys %faults);

	my $skipped = $self->{skipped} // {};
	$say->('skipped: %s%s', $_, $skipped->{$_} > 1 ? ", $skipped->{$_} times" : '') for sort keys %$skipped;

	my %violations;
	push @{ $violations{ $_->[0] } }, $_->[1] for $c->violations;
	$say->('violations: %d', scalar $c->violations);
	foreach my $kind (sort keys %violations)
	{
		my @examples = @{ $violations{$kind} };
		$say->('  %s: %d', $kind, scalar @examples);
		$say->('    %s', $_) for @examples > 5 ? @examples[ 0 .. 4 ] : @examples;
	}
	$say->('!!! %s', $_) for $c->losses;
	my $server = 0;
	foreach my $node ($self->{ensemble}->nodes)
	{
		$server++;
		my ($first) = my @times = slurp_file($node->log) =~ /^(\S+) .*Digests are not matching/mg;
		$say->('!!! server %d says that its data are not the same as the leader\'s: from %s on, %d times', $server, $first, scalar @times) if @times;
	}
	return join '', @out;
}

sub picture
{
	my ($self, $file, $from, $to) = @_;
	$from //= 0;
	$to //= $from + 120;
	$to = $self->{seconds} if $to > $self->{seconds};
	open my $handle, '>', $file or die "$file: $!";
	print $handle Torture::Picture::draw(
		holds => [ $self->{checker}->holds ],
		faults => [ $self->{checker}->faults ],
		objects => $self->{list},
		from => $from,
		to => $to,
		title => sprintf('who held what: seed %d, commit_guard %s, %s fence; %d violations in %d s',
			@$self{qw(seed guard)}, $self->{fence} ? 'with' : 'without',
			scalar($self->violations), $self->{seconds}));
	close $handle or die "$file: $!";
	return;
}

1;
