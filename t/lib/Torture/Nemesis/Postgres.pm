
=pod

=head1 NAME

Torture::Nemesis::Postgres - faults of a cluster

=head1 DESCRIPTION

Methods of Torture::Nemesis.  Each begins a fault and returns a function that ends it,
or nothing.

=cut

package Torture::Nemesis::Postgres;

use strict;
use warnings;

# The one that is meant, or none while its servers change roles
sub _cluster
{
	my ($self, $f) = @_;
	my $cluster = $self->{clusters}[ $f->{cluster} ];
	return $cluster unless $cluster->standby && !$cluster->is_whole;
	$self->_skip($f, 'the standby of the cluster is not there');
	return;
}

sub _pg_immediate
{
	my ($self, $f) = @_;
	my $cluster = $self->_cluster($f) // return;
	$self->_log($f, 'begin', cluster => $f->{cluster});
	$cluster->stop('immediate');
	return sub { $cluster->start; return; };
}

# The primary stops at once, or its machine does.  Somebody notices after a while, and
# promotes the standby.
sub _promote
{
	my ($self, $f) = @_;
	my $cluster = $self->_cluster($f) // return;
	$self->_log($f, 'begin', cluster => $f->{cluster}, kill => $f->{hard});
	if ($f->{hard}) { $cluster->kill9; }
	else { $cluster->stop('immediate'); }
	my $change = sub { $cluster->change_roles unless $f->{changes}++; };
	$self->_after($f, 10 * $f->{ms} / 1000, $change);
	return sub { $change->(); return $cluster->is_whole ? () : $Torture::Nemesis::AGAIN; };
}

sub _timeouts
{
	my ($self, $f) = @_;
	my $cluster = $self->_cluster($f) // return;
	my $setting = $f->{hard} ? 'statement_timeout' : 'lock_timeout';
	$self->_log($f, 'begin', cluster => $f->{cluster}, setting => $setting, ms => 2 * $f->{ms});
	$cluster->set($setting, 2 * $f->{ms} . 'ms');
	return sub { $cluster->set($setting, 0); };
}

# Its only synchronous standby does not answer: commits are on disk, and nobody sees them.
# Where there is none, it is a name.
sub _sync_hang
{
	my ($self, $f) = @_;
	my $cluster = $self->_cluster($f) // return;
	my $receiver;
	if (my $standby = $cluster->standby)
	{
		$receiver = Torture::Cluster::ask($standby, 'SELECT pid FROM pg_stat_wal_receiver')
		  || return $self->_skip($f, 'the standby receives nothing');
	}
	$self->_log($f, 'begin', cluster => $f->{cluster}, receiver => $receiver);
	if ($receiver) { kill 'STOP', $receiver; }
	else { $cluster->set('synchronous_standby_names', 'nobody'); }
	return sub {
		if ($receiver) { kill 'CONT', $receiver; }
		else { $cluster->set('synchronous_standby_names', ''); }
		return;
	};
}

# The pooler crashes
sub _pooler_kill
{
	my ($self, $f) = @_;
	$self->_log($f, 'begin');
	$self->{pool}->kill9;
	return sub { $self->{pool}->start; return; };
}

# Its connections to PostgreSQL are closed there
sub _pooler_drop
{
	my ($self, $f) = @_;
	$self->_log($f, 'begin');
	Torture::Cluster::ask($self->{pool}->direct, sprintf q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN (%s)},
		join ', ', map { "'torture $_'" } sort keys %{ $self->{pooled} });
	return sub { };
}

# The clock of the day, by one to three days.  The monotonic one goes on.
sub _clock
{
	my ($self, $f) = @_;
	my $days = ($f->{hard} ? 1 : -1) * (1 + $f->{which});
	my $host = $self->{bad_hosts}{clusters}[ $f->{cluster} ];
	$self->_log($f, 'begin', cluster => $f->{cluster}, days => $days);
	$host->set(clock => 86400 * $days);
	return sub { $host->set; };
}

1;
