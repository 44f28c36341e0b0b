
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

sub _pg_immediate
{
	my ($self, $f) = @_;
	my $node = $self->{nodes}[ $f->{cluster} ];
	$self->_log($f, 'begin', cluster => $f->{cluster});
	$node->stop('immediate');
	return sub {
		local %ENV = (%ENV, $self->{bad_hosts}{clusters}[ $f->{cluster} ]->env);
		$node->start;
		return;
	};
}

# A setting of the cluster, which sessions notice at their next statement
sub _set
{
	my ($self, $cluster, $name, $value) = @_;
	my $node = $self->{nodes}[$cluster];
	$node->append_conf('postgresql.conf', "$name = '$value'");
	kill 'HUP', $node->{_pid} if $node->{_pid};
	return;
}

sub _timeouts
{
	my ($self, $f) = @_;
	my $setting = $f->{hard} ? 'statement_timeout' : 'lock_timeout';
	$self->_log($f, 'begin', cluster => $f->{cluster}, setting => $setting, ms => 2 * $f->{ms});
	$self->_set($f->{cluster}, $setting, 2 * $f->{ms} . 'ms');
	return sub { $self->_set($f->{cluster}, $setting, 0); };
}

# Its only synchronous standby does not answer: commits are on disk, and nobody sees them.
sub _sync_hang
{
	my ($self, $f) = @_;
	$self->_log($f, 'begin', cluster => $f->{cluster});
	$self->_set($f->{cluster}, 'synchronous_standby_names', 'nobody');
	return sub { $self->_set($f->{cluster}, 'synchronous_standby_names', ''); };
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
