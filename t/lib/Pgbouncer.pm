
=pod

=head1 NAME

Pgbouncer - a pooler before a cluster, to which sessions connect as to that

=head1 SYNOPSIS

  Pgbouncer::program() or skip;
  my $pool = Pgbouncer->new($node, default_pool_size => 2);   # or other settings
  my $s = zk_session($pool);
  $pool->kill9;
  $pool->start;                                               # the same again

=head1 DESCRIPTION

It pools transactions, unless its configuration is another one ("ini").

=cut

package Pgbouncer;

use strict;
use warnings;
use IO::Socket::INET;

use PostgreSQL::Test::Utils;

use Child;
use Deadline;
use ZooKeeper;

my $INI = <<'END';
[databases]
shop = host=127.0.0.1 port=5432 dbname=postgres

[pgbouncer]
pool_mode = transaction
server_reset_query = DISCARD ALL
END

my $number = 0;

# dev/test and dev/torture unpack it, with its libraries, if it is not installed
sub _unpacked { return ($ENV{ZKLOCK_TMP} // '') . '/pgbouncer'; }
sub program { return (grep { -x } map { "$_/pgbouncer" } '/usr/sbin', _unpacked() . '/usr/sbin')[0]; }

sub new
{
	my ($class, $node, %more) = @_;
	my $port = ZooKeeper::free_port();
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $own = delete $more{ini} // $INI;
	my $to = 'host=' . $node->host . ' port=' . $node->port . ' user=postgres';
	$own =~ s/host=\S+ port=\S+/$to/ or die;
	PostgreSQL::Test::Utils::append_to_file("$dir/pgbouncer.ini",
		join '', $own, map { "$_\n" }
		'listen_addr = 127.0.0.1', "listen_port = $port", 'unix_socket_dir =', 'auth_type = any',
		map { "$_ = $more{$_}" } sort keys %more);
	my $self = bless { port => $port, name => 'pool' . ++$number, dir => $dir, node => $node }, $class;
	return $self->start;
}

sub start
{
	my ($self) = @_;
	my ($port, $dir) = @$self{qw(port dir)};
	($self->{pid}) = Child::spawn([ program(), "$dir/pgbouncer.ini" ], err => "$dir/log",
		env => { LD_LIBRARY_PATH => join ':', glob _unpacked() . '/{usr/,}lib/*-linux-gnu*' });
	until_true(sub { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) }, "pgbouncer to listen; see $dir/log");
	return $self;
}

sub name { return $_[0]->{name}; }
sub direct { return $_[0]->{node}; }
sub connstr { return "host=127.0.0.1 port=$_[0]->{port} dbname=shop user=postgres"; }

# Its clients, and PostgreSQL, see their connections break.
sub kill9 { my ($self) = @_; Child::kill9(delete $self->{pid}) if $self->{pid}; return; }

1;
