
=pod

=head1 NAME

Torture::Nemesis::Ensemble - faults of ZooKeeper, and between its servers

=head1 DESCRIPTION

Methods of Torture::Nemesis.  Each begins a fault and returns a function that ends it,
or nothing.

=cut

package Torture::Nemesis::Ensemble;

use strict;
use warnings;

use ZkClient;

sub _a
{
	my ($self, $f, $mode) = @_;
	my @found = $self->{ensemble}->_in_mode($mode);
	return $found[ $f->{which} % @found ] if @found;
	return $self->_skip($f, "there is no $mode");
}

sub _kill_server
{
	my ($self, $f, $mode) = @_;
	my $server = $self->_a($f, $mode) or return;
	$self->_log($f, 'begin', server => $server->{id});
	$server->kill9;
	return sub { $server->start(no_wait => 1) unless $server->running; };
}

sub _leader_kill { my ($self, $f) = @_; return $self->_kill_server($f, 'leader'); }
sub _follower_kill { my ($self, $f) = @_; return $self->_kill_server($f, 'follower'); }

sub _stop_server
{
	my ($self, $f, $mode) = @_;
	my $server = $self->_a($f, $mode) or return;
	$self->_log($f, 'begin', server => $server->{id});
	$server->suspend;
	return sub { $server->resume; };
}

sub _leader_stop { my ($self, $f) = @_; return $self->_stop_server($f, 'leader'); }
sub _follower_stop { my ($self, $f) = @_; return $self->_stop_server($f, 'follower'); }

# Something happens between a follower and its leader, which the follower's clients
# feel.  All that is silent now is heard later, as TCP would send it again.
sub _on_link
{
	my ($self, $f, $code, %more) = @_;
	my $leader = $self->_a($f, 'leader') or return;
	my $follower = $self->_a($f, 'follower') or return;
	$self->_log($f, 'begin', server => $follower->{id}, %more);
	$code->($self->{ensemble}, $follower, $leader);
	return sub { $self->{ensemble}->mend; };
}

sub _cut { my ($self, $f) = @_; return $self->_on_link($f, sub { $_[0]->cut(@_[ 1, 2 ]) }); }
sub _link_stall { my ($self, $f) = @_; return $self->_cut($f); }

sub _link_one_way
{
	my ($self, $f) = @_;
	return $self->_on_link($f, sub { $_[0]->cut_one_way($f->{hard} ? @_[ 1, 2 ] : @_[ 2, 1 ]) }, lost => $f->{hard} ? "the follower's" : "the leader's");
}

sub _link_flap
{
	my ($self, $f) = @_;
	return $self->_on_link(
		$f,
		sub {
			my ($ensemble, @link) = @_;
			$self->_flap_with($f, sub { $ensemble->cut(@link) }, sub { $ensemble->mend });
		});
}

# Votes still pass; and it takes 5 s until they are asked for, in which the leader
# serves its clients with what it knows, but has no quorum for anything.
sub _leader_cut
{
	my ($self, $f) = @_;
	my $leader = $self->_a($f, 'leader') or return;
	$self->_log($f, 'begin', server => $leader->{id});
	$self->{ensemble}->cut($_, $leader) for grep { $_ != $leader } $self->{ensemble}->nodes;
	return sub { $self->{ensemble}->mend; };
}

sub _ensemble_restart
{
	my ($self, $f) = @_;
	$self->_log($f, 'begin', how => $f->{hard} ? 'kill -9' : 'stop');
	if ($f->{hard}) { $_->kill9 for $self->{ensemble}->nodes; }
	else { $self->{ensemble}->stop; }
	return sub { $_->start(no_wait => 1) for grep { !$_->running } $self->{ensemble}->nodes; };
}

# One after the other, the leader last, each when the one before serves again
sub _rolling_restart
{
	my ($self, $f) = @_;
	my ($leader) = $self->{ensemble}->_in_mode('leader');
	my @followers = $self->{ensemble}->_in_mode('follower');
	return $self->_skip($f, 'not all servers serve') if !$leader || @followers != 2;
	my @todo = (@followers, $leader);
	my ($server, $part);
	my $next = sub {
		if ($server)
		{
			$server->start(no_wait => 1) unless $server->running;
			return $Torture::Nemesis::AGAIN if ($server->four_letter('srvr', 0.3) // '') !~ /^Mode: (?:leader|follower)$/m;
			$self->_log($part, 'end');
		}
		$server = shift @todo // return;
		$part = { %$f, number => "$f->{number}." . (3 - @todo) };
		# those of the leader have to look for another one, and so have all
		$self->_log($part, 'begin', server => $server == $leader ? '1,2,3' : $server->{id});
		$server->stop;
		return $Torture::Nemesis::AGAIN;
	};
	$self->_end_in($f, 0, $next);
	return;
}

# With two slow disks of three every change is slow
sub _slow_sync
{
	my ($self, $f) = @_;
	my @which = map { ($f->{which} + $_) % 3 } 0 .. $f->{hard};
	my @hosts = @{ $self->{bad_hosts}{servers} }[@which];
	$self->_log($f, 'begin', server => $f->{hard} ? '1,2,3' : 1 + $f->{which}, slow => join(',', map { 1 + $_ } @which), ms => $f->{slow});
	$_->set(sync => $f->{slow}) for @hosts;
	return sub { $_->set for @hosts; };
}

# The server gives up at its next change.  Then somebody makes room, and starts it again.
sub _disk_full
{
	my ($self, $f) = @_;
	my $server = $self->_a($f, $f->{hard} ? 'leader' : 'follower') or return;
	my $host = $self->{bad_hosts}{servers}[ $server->{id} - 1 ];
	# without a leader all have to look for one
	$self->_log($f, 'begin', server => $f->{hard} ? '1,2,3' : $server->{id}, full => $server->{id});
	$host->set(full => 1);
	return sub {
		$host->set;
		$server->kill9;
		$server->start(no_wait => 1);
		return;
	};
}

# What a lock's directory allows is changed, and later what it was.  Everybody may change
# it back, so that no superuser is needed.  (Not where other clients are, who do not
# release again what they may not.)
my @WITHDRAWN = ([ 'create and delete', 1 + 2 + 16 ], [ 'delete', 1 + 2 + 4 + 16 ], [ 'all', 16 ]);

sub _acl
{
	my ($self, $f) = @_;
	my %of;
	push @{ $of{ $_->{full_path} } }, $_ for @{ $self->{objects} };
	my @paths = sort grep { !grep { $_->{peer} } @{ $of{$_} } } keys %of;
	return $self->_skip($f, 'other clients are in each queue') unless @paths;
	my $path = $paths[ $f->{ms} % @paths ];
	my ($what, $rights) = @{ $WITHDRAWN[ $f->{which} ] };
	$self->_log($f, 'begin', object => join(',', map { $_->{id} } @{ $of{$path} }), withdrawn => $what);
	$self->_set_acl($path, $rights);
	return sub { return $self->_set_acl($path, 31) ? () : $Torture::Nemesis::AGAIN; };
}

# As zk_lock_break does: the node of a holder, or of whoever is next
sub _lock_break
{
	my ($self, $f) = @_;
	my @locks = grep { !$_->{peer} } @{ $self->{objects} };
	my $path = @locks ? $locks[ $f->{ms} % @locks ]{full_path} : return $self->_skip($f, 'other clients are in each queue');
	my ($server) = grep { $_->running } $self->{ensemble}->nodes;
	my $client = eval { ZkClient->new($server->hosts, timeout => 0.5, session_timeout => 1000) } // return $self->_skip($f, 'no server answers');
	my @queue = eval { $client->queue($path) };
	my $node = $queue[ $f->{hard} ] // $queue[0];
	my ($data) = defined $node ? eval { $client->get($node) } : ();
	my ($worker) = ($data // '') =~ /^application_name torture (\d+)$/m;
	if (defined $worker)
	{
		$self->_log($f, 'begin', worker => $worker, node => $node);
		eval { $client->delete($node) };
	}
	else { $self->_skip($f, "nobody is in the queue of $path"); }
	eval { $client->close };
	return defined $worker ? sub { return } : ();
}

# Returns true if there is nothing left to do
sub _set_acl
{
	my ($self, $path, $rights) = @_;
	foreach my $server (grep { $_->running } $self->{ensemble}->nodes)
	{
		my $client = eval { ZkClient->new($server->hosts, timeout => 0.5, session_timeout => 1000) } // next;
		my $done = eval { $client->set_acl($path, [ [ $rights, 'world', 'anyone' ] ]); 1 } || $@ =~ /NONODE/;
		eval { $client->close };
		return 1 if $done;
	}
	return 0;
}

1;
