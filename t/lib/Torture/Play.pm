
=pod

=head1 NAME

Torture::Play - a run in which everything happens in a given order

=head1 SYNOPSIS

  my $run = Torture::Play->new(play => 'leader_left');    # and options of Torture->new
  $run->execute;
  $run->violations;

=head1 DESCRIPTION

Some moments are so short, or need so much at once, that a run at random hits them once
in an hour, or never.  A play makes one of them: the same servers and clusters, two
workers who do one after the other what the play says, the faults that belong to it;
and then the same checker judges the same accounts.

In all plays worker 2 holds the lock, and worker 4 is next:

  leader_left     the holder's ZooKeeper server is the leader.  While the holder thinks,
                  the followers are cut off from it, start again, and choose another
                  one.  There the holder's session expires, the next one gets the lock,
                  writes and commits.  Then the holder does: its server still believes
                  that it leads, and in the session.
  asleep_in_line  who is next sleeps while the holder gives back, and longer than its
                  session lives.  The news that the lock is free has reached it in time;
                  what came later is lost on the way: that its own node has gone.

That the leader goes on believing takes a session that is the first to end there: at its
next transaction, such as the end of a session of which it no longer hears, it waits for
its followers, and answers not even a sync until it has them.  So nobody else has
connected before, and there is no watchman, who asks each server for a transaction.

=cut

package Torture::Play;

use strict;
use warnings;
use List::Util qw(first);
use Time::HiRes qw(sleep);

use parent 'Torture';

use Deadline;
use Torture::Ledger;
use Torture::Strike;
use Zklock;

# play => the faults that the nemesis causes.  They last until they are healed.
my %FAULTS = (
	leader_left => [ { kind => 'leader_left' } ],
	asleep_in_line => [ { kind => 'blackhole', which => 0, hard => 0 } ]);

my ($HOLDER, $NEXT) = (2, 4);    # of the first cluster, as the object

sub new
{
	my ($class, %opt) = @_;
	my $self = $class->SUPER::new(
		kinds => 'exclusive', contents => ['counter'], style => 'curator', peers => 'no', faults => 'none',
		workers => $NEXT, objects => 1, think => [ 1, 1 ], seconds => 30, %opt);
	my @faults = @{ $FAULTS{ $self->{play} } // die "no such play: $self->{play}\n" };
	$self->{faults} = join ',', map { $_->{kind} } @faults;
	$self->{schedule} = [ map { { %{ $faults[$_] }, number => $_ + 1, at => 0, for => 9**9 } } 0 .. $#faults ];
	return $self;
}

sub _play
{
	my ($self) = @_;
	$self->{nemesis} = $self->_nemesis;
	my $method = "_$self->{play}";
	my @actors = $self->$method;
	$self->{nemesis}->heal;
	$_->leave for @actors;
	return;
}

# One who reaches ZooKeeper by these of its servers only
sub _actor
{
	my ($self, $number, @servers) = @_;
	return Torture::Play::Actor->new($self->_worker($number), hosts => join ',', map { $self->{proxies}[ $_->{id} - 1 ]->hosts } @servers);
}

sub _leader_left
{
	my ($self) = @_;
	my $ensemble = $self->{ensemble};
	my $leader = $ensemble->leader;
	my $holder = $self->_actor($HOLDER, $leader);
	my $next = $self->_actor($NEXT, grep { $_ != $leader } $ensemble->nodes);
	$holder->at(
		critical => sub {
			$self->{nemesis}->step;
			until_true(sub { first { $_ != $leader } $ensemble->_in_mode('leader') }, 'another leader');
			$next->operate;
		});
	$holder->at(unlock => sub { $self->{nemesis}->heal });
	$holder->operate;
	return ($holder, $next);
}

sub _asleep_in_line
{
	my ($self) = @_;
	my ($ensemble, $object) = ($self->{ensemble}, $self->{list}[0]);
	my ($server, @others) = $ensemble->nodes;
	my $path = $self->{proxies}[0];
	my $holder = $self->_actor($HOLDER, @others);
	my $next = $self->_actor($NEXT, $server);
	$holder->at(
		unlock => sub {
			until_true(sub { grep { $_->[2] eq 'event' && $_->[7] eq 'deleted' } $path->log }, 'the news that the lock is free');
			$self->{nemesis}->step;
			until_true(sub { !$ensemble->children($object->{full_path}) }, 'the end of the session');
			sleep 3 * $Torture::Ledger::TOLERANCE;
		});
	$next->at(
		lock => sub {
			my ($session) = @_;
			zk_wait_queued($ensemble, $session);
			$path->clear_log;
			Torture::Strike::strike({ kind => 'backend_stop', number => 0 }, $session->pid, $self->{log}, sub { $holder->finish }, $object->{id},
				worker => $NEXT, cluster => $object->{cluster});
		});
	$next->at(unlock => sub { $self->{nemesis}->heal });
	$holder->begin;
	# once in the play, and once when all is well again
	$next->operate for 1, 2;
	return ($holder, $next);
}

package Torture::Play::Actor;

use parent -norequire, 'Torture::Worker';

sub new
{
	my ($class, %opt) = @_;
	return bless { %opt, parent => getppid, last_op => 0, sessions => {}, held => [], scope => 'inside', moments => {} }, $class;
}

# When it next has sent this call, or thinks ("critical"), this happens first
sub at { my ($self, $moment, $code) = @_; $self->{moments}{$moment} = $code; return; }

sub _strike
{
	my ($self, $moment, $session) = @_;
	my $code = delete $self->{moments}{$moment} // return;
	$code->($session);
	return;
}

sub _session
{
	my ($self, $cluster) = @_;
	local $ENV{PGOPTIONS} = "-c zklock.hosts=$self->{hosts}";
	return $self->SUPER::_session($cluster);
}

sub _try
{
	my ($self, $code) = @_;
	return if eval { $code->(); 1 };
	die $@ unless ref $@;
	$self->_clean_up($@);
	return;
}

# A transaction that takes the lock, reads and writes; and the end of the lock.  (Were
# the lock taken in a transaction of its own, the commit guard would judge that, too.)
sub operate
{
	my ($self) = @_;
	return $self->_try(sub { $self->_take; $self->_work });
}

# The two halves of that
sub begin { my ($self) = @_; return $self->_try(sub { $self->_take }); }
sub finish { my ($self) = @_; return $self->_try(sub { $self->_work }); }

sub _take
{
	my ($self) = @_;
	$self->_next_op;
	$self->{object} = $self->{objects}[0];
	$self->{wanted} = [ $self->{object} ];
	$self->{writes_in} = undef;
	my $session = $self->_session($self->{cluster});
	$self->_begin($session);
	$self->_lock($session, 'exclusive');
	return;
}

sub _work
{
	my ($self) = @_;
	my $session = $self->_session($self->{cluster});
	$self->_protected($session);
	$self->_finish($session, 'commit');
	$self->_unlock($session);
	return;
}

sub leave { my ($self) = @_; $_->quit for values %{ $self->{sessions} }; return; }

1;
