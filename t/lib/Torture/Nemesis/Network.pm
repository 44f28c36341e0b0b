
=pod

=head1 NAME

Torture::Nemesis::Network - faults between clients and ZooKeeper

=head1 DESCRIPTION

Methods of Torture::Nemesis.  Each begins a fault and returns a function that ends it,
or nothing.

=cut

package Torture::Nemesis::Network;

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;

sub _proxy { my ($self, $f) = @_; return $self->{proxies}[ $f->{which} % @{ $self->{proxies} } ]; }

sub _swallow
{
	my ($self, $f) = @_;
	my $proxy = $self->_proxy($f);
	$self->_log($f, 'begin', server => 1 + $f->{which}, cut => $f->{hard});
	# a change, or else any operation
	my $op = $f->{ms} % 3 ? [qw(create create2 delete multi)] : '*';
	if ($f->{hard}) { $proxy->swallow_and_drop($op, 2); }
	else { $proxy->swallow($op, 2); }
	return sub { $proxy->reset; };
}

sub _delay
{
	my ($self, $f) = @_;
	my $proxy = $self->_proxy($f);
	$self->_log($f, 'begin', server => 1 + $f->{which}, ms => $f->{slow});
	$proxy->delay_ms($f->{slow});
	return sub { $proxy->reset; };
}

# One of the servers, or two, cannot be heard, or not hear, or both
sub _silence
{
	my ($self, $f, @way) = @_;
	my @which = map { ($f->{which} + $_) % @{ $self->{proxies} } } 0 .. $f->{hard};
	my @proxy = @{ $self->{proxies} }[@which];
	$self->_log($f, 'begin', server => join(',', map { 1 + $_ } @which), way => $way[0]);
	$_->blackhole(@way) for @proxy;
	return sub { $_->reset for @proxy; };
}

sub _blackhole { my ($self, $f) = @_; return $self->_silence($f); }
sub _one_way { my ($self, $f) = @_; return $self->_silence($f, $f->{ms} % 2 ? 'up' : 'down'); }

# Silent in turns, or refusing connections
sub _flap
{
	my ($self, $f) = @_;
	my $proxy = $self->_proxy($f);
	$self->_log($f, 'begin', server => 1 + $f->{which}, refuse => $f->{hard});
	$self->_flap_with($f, $f->{hard} ? sub { $proxy->cut_off } : sub { $proxy->blackhole }, sub { $proxy->pass });
	return sub { $proxy->reset; };
}

sub _drop
{
	my ($self, $f) = @_;
	$self->_log($f, 'begin', server => 1 + $f->{which});
	my $proxy = $self->_proxy($f);
	$proxy->drop;
	return sub { };
}

# Connections that nobody uses, up to the number that a server accepts from one address;
# then those of its clients are cut, and cannot come back.
sub _connections
{
	my ($self, $f) = @_;
	my $server = $self->{ensemble}->node(1 + $f->{which});
	$self->_log($f, 'begin', server => 1 + $f->{which}, limit => $server->{max_client_cnxns});
	my @idle;
	my $fill = sub {
		# the server closes those that are too many, and some of its clients make room
		@idle = grep { !IO::Select->new($_)->can_read(0) } @idle;
		foreach (@idle .. $server->{max_client_cnxns})
		{
			push @idle, IO::Socket::INET->new(PeerAddr => $server->hosts, Timeout => 0.2) // last;
		}
	};
	my $refill;
	$refill = sub { $fill->(); $self->_after($f, 0.1, $refill) };
	$refill->();
	$self->_after($f, 0.2, sub { $self->_proxy($f)->drop });
	return sub { undef $refill; @idle = (); return; };
}

1;
