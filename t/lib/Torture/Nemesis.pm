
=pod

=head1 NAME

Torture::Nemesis - causes the faults of a torture test

=head1 SYNOPSIS

  my $nemesis = Torture::Nemesis->new(ensemble => $zk, proxies => [...], clusters => [...],
	  workers => [...], log => $log, schedule => [ Torture::Schedule::make(...) ]);
  $nemesis->step until $log->now > $seconds;
  $nemesis->heal;

=head1 DESCRIPTION

The log gets "begin" of each fault, with what is hit (server, cluster, worker), and "end";
or "skipped", and why: what there is none of at the moment, or what cannot be done on this
machine.

A backend is struck by its own worker, which knows when it is in the middle of
something: see Torture::Strike.

=cut

package Torture::Nemesis;

use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;
use Time::HiRes qw(sleep);

use ZkClient;

# What a function that ends a fault returns if that will take a moment longer: it is
# called again.
my $AGAIN = \'again';

# What the rights of a lock's directory become
my @WITHDRAWN = ([ 'create and delete', 1 + 2 + 16 ], [ 'delete', 1 + 2 + 4 + 16 ], [ 'all', 16 ]);

# kind => a function of the nemesis and the fault.  It returns what is hit, for the log, and
# functions that begin the fault and end it; or dies with a reference to the reason why it
# cannot be.
my %FAULT = (

	# ---------------------------------------------- ZooKeeper, and between its servers

	map({
			my $mode = $_;
			"${mode}_kill" => sub {
				my $server = _in_mode(@_, $mode);
				return ({ server => $server->{id} }, sub { $server->kill9 }, sub { _serve($server) });
			},
			"${mode}_stop" => sub {
				my $server = _in_mode(@_, $mode);
				return ({ server => $server->{id} }, sub { $server->suspend }, sub { $server->resume });
			}
		} qw(leader follower)),
	cut => \&_cut,
	link_stall => \&_cut,
	link_one_way => sub {
		my ($self, $f) = @_;
		my ($hit, @link) = $self->_link($f);
		return ({ %$hit, lost => $f->{hard} ? "the follower's" : "the leader's" },
			sub { $self->{ensemble}->cut_one_way($f->{hard} ? @link : reverse @link) }, sub { $self->{ensemble}->mend });
	},
	link_flap => sub {
		my ($self, $f) = @_;
		my ($hit, @link) = $self->_link($f);
		my $mend = sub { $self->{ensemble}->mend };
		return ($hit, sub { $self->_flap_with($f, sub { $self->{ensemble}->cut(@link) }, $mend) }, $mend);
	},
	# Votes still pass; and it takes 5 s until they are asked for, in which the leader
	# serves its clients with what it knows, but has no quorum for anything.
	leader_cut => sub {
		my ($self, $f) = @_;
		my $leader = $self->_in_mode($f, 'leader');
		return ({ server => $leader->{id} },
			sub { $self->{ensemble}->cut($_, $leader) for grep { $_ != $leader } $self->{ensemble}->nodes },
			sub { $self->{ensemble}->mend });
	},
	ensemble_restart => sub {
		my ($self, $f) = @_;
		my @servers = $self->{ensemble}->nodes;
		return ({ how => $f->{hard} ? 'kill -9' : 'stop' },
			sub { $f->{hard} ? map { $_->kill9 } @servers : $self->{ensemble}->stop }, sub { _serve(@servers) });
	},
	# One after the other, the leader last, each when the one before serves again: faults of
	# their own
	rolling_restart => sub {
		my ($self, $f) = @_;
		my ($leader) = $self->{ensemble}->in_mode('leader');
		my @todo = $self->{ensemble}->in_mode('follower');
		die \'not all servers serve' if !$leader || @todo != 2;
		push @todo, $leader;
		my ($server, $part);
		my $next = sub {
			if ($server)
			{
				_serve($server);
				return $AGAIN if ($server->four_letter('srvr', 0.3) // '') !~ /^Mode: (?:leader|follower)$/m;
				$self->_log($part, 'end');
			}
			$server = shift @todo // return;
			$part = { %$f, number => "$f->{number}." . (3 - @todo) };
			# those of the leader have to look for another one, and so have all
			$self->_log($part, 'begin', server => $server == $leader ? '1,2,3' : $server->{id});
			$server->stop;
			return $AGAIN;
		};
		return (undef, $next, $next);
	},
	# With two slow disks of three every change is slow
	slow_sync => sub {
		my ($self, $f) = @_;
		my @which = map { ($f->{which} + $_) % 3 } 0 .. $f->{hard};
		my @hosts = @{ $self->{bad_hosts}{servers} }[@which];
		return ({ server => $f->{hard} ? '1,2,3' : 1 + $f->{which}, slow => join(',', map { 1 + $_ } @which), ms => $f->{slow} },
			sub { $_->set(sync => $f->{slow}) for @hosts }, sub { $_->set for @hosts });
	},
	# The server gives up at its next change.  Then somebody makes room, and starts it again.
	disk_full => sub {
		my ($self, $f) = @_;
		my $server = $self->_in_mode($f, $f->{hard} ? 'leader' : 'follower');
		my $host = $self->{bad_hosts}{servers}[ $server->{id} - 1 ];
		# without a leader all have to look for one
		return ({ server => $f->{hard} ? '1,2,3' : $server->{id}, full => $server->{id} },
			sub { $host->set(full => 1) }, sub { $host->set; $server->kill9; _serve($server) });
	},
	# What a lock's directory allows is changed, and later what it was.  Everybody may change
	# it back, so that no superuser is needed.  (Not where other clients are, who do not
	# release again what they may not.)
	acl => sub {
		my ($self, $f) = @_;
		my %of;
		push @{ $of{ $_->{full_path} } }, $_ for @{ $self->{objects} };
		my @paths = sort grep { !grep { $_->{peer} } @{ $of{$_} } } keys %of;
		die \'other clients are in each queue' unless @paths;
		my $path = $paths[ $f->{ms} % @paths ];
		my ($what, $rights) = @{ $WITHDRAWN[ $f->{which} ] };
		my $set = sub {
			my ($allowed) = @_;
			return $self->_ask(sub { return eval { $_[0]->set_acl($path, [ [ $allowed, 'world', 'anyone' ] ]); 1 } || $@ =~ /NONODE/ });
		};
		return ({ object => join(',', map { $_->{id} } @{ $of{$path} }), withdrawn => $what },
			sub { $set->($rights) }, sub { return $set->(31) ? () : $AGAIN });
	},
	# As zk_lock_break does: the node of a holder, or of whoever is next
	lock_break => sub {
		my ($self, $f) = @_;
		my @locks = grep { !$_->{peer} } @{ $self->{objects} } or die \'other clients are in each queue';
		my $path = $locks[ $f->{ms} % @locks ]{full_path};
		my ($node, $data);
		$self->_ask(sub {
			my ($client) = @_;
			my @queue = $client->queue($path);
			$node = $queue[ $f->{hard} ] // $queue[0] // return 1;
			($data) = $client->get($node);
			return 1;
		});
		my ($worker) = ($data // '') =~ /^application_name torture (\d+)$/m or die \"nobody is in the queue of $path";
		return ({ worker => $worker, node => $node }, sub { $self->_ask(sub { $_[0]->delete($node); return 1 }) }, sub { });
	},

	# ------------------------------------------------- between clients and ZooKeeper

	swallow => sub {
		my ($self, $f) = @_;
		# a change, or else any operation
		my $op = $f->{ms} % 3 ? [qw(create create2 delete multi)] : '*';
		my $how = $f->{hard} ? 'swallow_and_drop' : 'swallow';
		return $self->_at_proxy($f, { cut => $f->{hard} }, sub { $_[0]->$how($op, 2) });
	},
	delay => sub { my ($self, $f) = @_; return $self->_at_proxy($f, { ms => $f->{slow} }, sub { $_[0]->delay_ms($f->{slow}) }); },
	drop => sub { my ($self, $f) = @_; return $self->_at_proxy($f, {}, sub { $_[0]->drop }); },
	# Silent in turns, or refusing connections
	flap => sub {
		my ($self, $f) = @_;
		my $ill = $f->{hard} ? 'cut_off' : 'blackhole';
		return $self->_at_proxy($f, { refuse => $f->{hard} },
			sub { my ($proxy) = @_; $self->_flap_with($f, sub { $proxy->$ill }, sub { $proxy->pass }) });
	},
	blackhole => sub { return _silence(@_); },
	one_way => sub { return _silence(@_, $_[1]{ms} % 2 ? 'up' : 'down'); },
	# Connections that nobody uses, up to the number that a server accepts from one address;
	# then those of its clients are cut, and cannot come back.
	connections => sub {
		my ($self, $f) = @_;
		my $server = $self->{ensemble}->node(1 + $f->{which});
		my (@idle, $refill);
		$refill = sub {
			# the server closes those that are too many, and some of its clients make room
			@idle = grep { !IO::Select->new($_)->can_read(0) } @idle;
			foreach (@idle .. $server->{max_client_cnxns})
			{
				push @idle, IO::Socket::INET->new(PeerAddr => $server->hosts, Timeout => 0.2) // last;
			}
			$self->_after($f, 0.1, $refill);
		};
		return ({ server => 1 + $f->{which}, limit => $server->{max_client_cnxns} },
			sub { $refill->(); $self->_after($f, 0.2, sub { $self->{proxies}[ $f->{which} ]->drop }) },
			sub { undef $refill; @idle = (); return; });
	},

	# -------------------------------------------------------------------- a cluster

	pg_immediate => sub {
		my ($self, $f) = @_;
		my $cluster = $self->_cluster($f);
		return ({ cluster => $f->{cluster} }, sub { $cluster->stop('immediate') }, sub { $cluster->start; return; });
	},
	# The primary stops at once, or its machine does.  Somebody notices after a while, and
	# promotes the standby.
	promote => sub {
		my ($self, $f) = @_;
		my $cluster = $self->_cluster($f);
		my $change = sub { $cluster->change_roles unless $f->{changes}++; };
		return ({ cluster => $f->{cluster}, kill => $f->{hard} },
			sub { $f->{hard} ? $cluster->kill9 : $cluster->stop('immediate'); $self->_after($f, 10 * $f->{ms} / 1000, $change) },
			sub { $change->(); return $cluster->is_whole ? () : $AGAIN; });
	},
	timeouts => sub {
		my ($self, $f) = @_;
		my $cluster = $self->_cluster($f);
		my $setting = $f->{hard} ? 'statement_timeout' : 'lock_timeout';
		my $ms = 2 * $f->{ms};
		return ({ cluster => $f->{cluster}, setting => $setting, ms => $ms }, sub { $cluster->set($setting, "${ms}ms") }, sub { $cluster->set($setting, 0) });
	},
	# Its only synchronous standby does not answer: commits are on disk, and nobody sees them.
	# Where there is none, it is a name.
	sync_hang => sub {
		my ($self, $f) = @_;
		my $cluster = $self->_cluster($f);
		my $standby = $cluster->standby;
		my $receiver = $standby && (Torture::Cluster::ask($standby, 'SELECT pid FROM pg_stat_wal_receiver') || die \'the standby receives nothing');
		my $hang = sub { my ($signal, $name) = @_; $receiver ? kill $signal, $receiver : $cluster->set('synchronous_standby_names', $name); return; };
		return ({ cluster => $f->{cluster}, receiver => $receiver }, sub { $hang->('STOP', 'nobody') }, sub { $hang->('CONT', '') });
	},
	# The pooler crashes
	pooler_kill => sub { my ($self) = @_; return ({}, sub { $self->{pool}->kill9 }, sub { $self->{pool}->start; return; }); },
	# Its connections to PostgreSQL are closed there
	pooler_drop => sub {
		my ($self) = @_;
		my $sql = sprintf q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN (%s)},
		  join ', ', map { "'torture $_'" } sort keys %{ $self->{pooled} };
		return ({}, sub { Torture::Cluster::ask($self->{pool}->direct, $sql) }, sub { });
	},
	# The clock of the day, by one to three days.  The monotonic one goes on.
	clock => sub {
		my ($self, $f) = @_;
		my $days = ($f->{hard} ? 1 : -1) * (1 + $f->{which});
		my $host = $self->{bad_hosts}{clusters}[ $f->{cluster} ];
		return ({ cluster => $f->{cluster}, days => $days }, sub { $host->set(clock => 86400 * $days) }, sub { $host->set });
	});

sub _in_mode
{
	my ($self, $f, $mode) = @_;
	my @found = $self->{ensemble}->in_mode($mode) or die \"there is no $mode";
	return $found[ $f->{which} % @found ];
}

sub _serve { $_->start(no_wait => 1) for grep { !$_->running } @_; return; }

# A follower and its leader: something happens between them, which the follower's clients
# feel.  All that is silent now is heard later, as TCP would send it again.
sub _link
{
	my ($self, $f) = @_;
	my ($leader, $follower) = map { $self->_in_mode($f, $_) } qw(leader follower);
	return ({ server => $follower->{id} }, $follower, $leader);
}

sub _cut
{
	my ($self, $f) = @_;
	my ($hit, @link) = $self->_link($f);
	return ($hit, sub { $self->{ensemble}->cut(@link) }, sub { $self->{ensemble}->mend });
}

# The result of this function of a client, at the first server with which it has one
sub _ask
{
	my ($self, $code) = @_;
	foreach my $server (grep { $_->running } $self->{ensemble}->nodes)
	{
		my $client = eval { ZkClient->new($server->hosts, timeout => 0.5, session_timeout => 1000) } // next;
		my $result = eval { $code->($client) };
		eval { $client->close };
		return $result if $result;
	}
	return;
}

sub _at_proxy
{
	my ($self, $f, $hit, $code) = @_;
	my $proxy = $self->{proxies}[ $f->{which} ];
	return ({ server => 1 + $f->{which}, %$hit }, sub { $code->($proxy) }, sub { $proxy->reset });
}

# One of the servers, or two, cannot be heard, or not hear, or both
sub _silence
{
	my ($self, $f, @way) = @_;
	my @which = map { ($f->{which} + $_) % 3 } 0 .. $f->{hard};
	my @proxy = @{ $self->{proxies} }[@which];
	return ({ server => join(',', map { 1 + $_ } @which), way => $way[0] }, sub { $_->blackhole(@way) for @proxy }, sub { $_->reset for @proxy });
}

# The one that is meant, but not while its servers change roles
sub _cluster
{
	my ($self, $f) = @_;
	my $cluster = $self->{clusters}[ $f->{cluster} ];
	die \'the standby of the cluster is not there' if $cluster->standby && !$cluster->is_whole;
	return $cluster;
}

# (the options above, and) impossible => { kind => why }
sub new
{
	my ($class, %opt) = @_;
	my $self = bless { ends => [], steps => [], impossible => {}, %opt }, $class;
	$self->{todo} = [ @{ $opt{schedule} } ];
	return $self;
}

# Begin and end the faults that are due, or sleep a moment.
sub step
{
	my ($self) = @_;
	my $now = $self->{log}->now;
	my @due;
	foreach my $list (@{$self}{qw(ends steps)})
	{
		push @due, grep { $_->{at} <= $now } @$list;
		@$list = grep { $_->{at} > $now } @$list;
	}
	$_->{code}->() for sort { $a->{at} <=> $b->{at} } @due;
	if (@{ $self->{todo} } && $self->{todo}[0]{at} <= $now) { $self->_begin(shift @{ $self->{todo} }); }
	elsif (!@due) { sleep 0.02; }
	return;
}

# End all faults that are under way.
sub heal
{
	my ($self) = @_;
	my $deadline = $self->{log}->now + 60;
	while ((my @ends = splice @{ $self->{ends} }) && $self->{log}->now < $deadline)
	{
		$_->{code}->() for @ends;
		sleep 0.05;
	}
	return;
}

# While the fault is under way, do that after so many seconds
sub _after
{
	my ($self, $f, $seconds, $code) = @_;
	push @{ $self->{steps} }, { at => $self->{log}->now + $seconds, code => sub { $code->() unless $f->{over} } };
	return;
}

sub _log
{
	my ($self, $f, $phase, %more) = @_;
	$self->{log}->write('nemesis', $f->{number}, 'fault', $phase, 0, kind => $f->{kind}, %more);
	return;
}

sub _begin
{
	my ($self, $f) = @_;
	# (they record each frame, which would fill the memory)
	$_->clear_log for @{ $self->{proxies} };

	my ($why, $fault) = ($self->{impossible}{ $f->{kind} }, $FAULT{ $f->{kind} });
	return $self->_order($f) if !$why && !$fault;
	my ($hit, $begin, $end);
	if (!$why && !eval { ($hit, $begin, $end) = $fault->($self, $f); 1 })
	{
		die $@ unless ref $@;
		$why = ${$@};
	}
	return $self->_log($f, 'skipped', why => $why) if $why;
	$self->_log($f, 'begin', %$hit) if $hit;
	$begin->();
	$self->_end_in($f, $hit ? $f->{for} : 0, $end);
	return;
}

sub _end_in
{
	my ($self, $f, $seconds, $end) = @_;
	my $code = sub {
		$f->{over} = 1;
		return $self->_end_in($f, 0.1, $end) if ($end->() // '') eq $AGAIN;
		$self->_log($f, 'end');
	};
	push @{ $self->{ends} }, { at => $self->{log}->now + $seconds, code => $code };
	return;
}

# Well and ill in turn: ill for up to 0.8 s, and then well for what is missing to 0.9 s
sub _flap_with
{
	my ($self, $f, $ill, $well) = @_;
	my $for = 4 * $f->{ms} / 1000;
	$ill->();
	$self->_after($f, $for, sub {
		$well->();
		$self->_after($f, 0.9 - $for, sub { $self->_flap_with($f, $ill, $well) });
	});
	return;
}

# What a worker does to its own backend; it writes the log entries itself.
sub _order
{
	my ($self, $f) = @_;
	my $worker = $self->{workers}[ $f->{worker} - 1 ];
	local $SIG{PIPE} = 'IGNORE';
	syswrite $worker->{orders}, "$f->{kind} $f->{number} $f->{phase} $f->{delay} $f->{for}\n";
	return;
}

1;
