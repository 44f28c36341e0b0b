
=pod

=head1 NAME

Tls - certificates, and a TLS proxy before a server without TLS, for tests

=head1 SYNOPSIS

  my $tls = Tls->new;                     # in a directory of its own
  $tls->authority('ca');                  # ca.pem, ca.key
  $tls->certificate('server', 'ca', 'DNS:localhost,IP:127.0.0.1');
  $tls->file('server.crt')                # and .key; server.pem contains both
  $tls->certificate('between', 'ca', 'DNS:between', 'basicConstraints=critical,CA:TRUE');
  $tls->revocations('ca.crl', 'ca', 'server', ...);    # the CRL of an authority

  my $door = $tls->door($proxy, 'server');
  ... 'zklock.hosts' => $door->hosts ...

=head1 DESCRIPTION

Certificates are valid for two days.  A door is a process that accepts TLS
connections and forwards what they carry; it asks for no client certificate.

=cut

package Tls;

use strict;
use warnings;
use File::Temp;
use PostgreSQL::Test::Utils qw(slurp_file);

sub new
{
	my ($class) = @_;
	return bless { dir => File::Temp->newdir('tls.XXXXXX', TMPDIR => 1) }, $class;
}

sub dir { return $_[0]->{dir}->dirname; }
sub file { return $_[0]->dir . "/$_[1]"; }

sub openssl
{
	my ($self, $command) = @_;
	my $said = `cd @{[ $self->dir ]} && openssl $command 2>&1`;
	die "openssl $command: $said" if $?;
	return;
}

sub write
{
	my ($self, $name, @text) = @_;
	open my $file, '>', $self->file($name) or die "$name: $!";
	print $file @text;
	close $file or die "$name: $!";
	chmod 0600, $self->file($name);
	return;
}

sub read { my ($self, $name) = @_; return slurp_file($self->file($name)); }
sub copy { my ($self, $from, $to) = @_; return $self->write($to, $self->read($from)); }

sub authority
{
	my ($self, $name) = @_;
	$self->openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=$name -keyout $name.key -out $name.pem");
	return;
}

sub certificate
{
	my ($self, $name, $authority, $names, @more) = @_;
	$self->write("$name.ext", map { "$_\n" } "subjectAltName=$names", @more);
	$self->openssl("req -newkey rsa:2048 -nodes -subj /CN=$name -keyout $name.key -out $name.csr");
	$self->openssl("x509 -req -in $name.csr -CA $authority.pem -CAkey $authority.key -CAcreateserial"
		  . " -days 2 -extfile $name.ext -out $name.crt");
	$self->write("$name.pem", map { $self->read("$name.$_") } qw(key crt));
	chmod 0600, $self->file("$name.key");
	return;
}

# A reference to a list can have "-crl_nextupdate" and similar options in front
sub revocations
{
	my ($self, $file, $authority, @revoked) = @_;
	my @options = ref $revoked[0] ? @{ shift @revoked } : qw(-crldays 2);
	$self->write('index.txt',
		map { "R\t400101000000Z\t260101000000Z\t" . $self->_serial($_) . "\tunknown\t/CN=$_\n" } @revoked);
	$self->write('ca.cnf', "[ca]\ndefault_ca=a\n[a]\ndatabase=index.txt\ndefault_md=sha256\n");
	$self->openssl("ca -gencrl -config ca.cnf -cert $authority.pem -keyfile $authority.key -out $file @options");
	return;
}

sub _serial
{
	my ($self, $name) = @_;
	my ($serial) = `openssl x509 -noout -serial -in @{[ $self->file("$name.crt") ]}` =~ /=(\w+)/;
	return $serial // die "no serial number of $name";
}

sub door
{
	my ($self, $server, $name) = @_;
	return Tls::Door->new($server, $self->file("$name.pem"));
}

package Tls::Door;

use IO::Socket::INET;

use Child;
use Deadline;
use ZooKeeper;

sub new
{
	my ($class, $server, $pem) = @_;
	my ($to) = $server->hosts =~ /:(\d+)$/;
	my $port = ZooKeeper::free_port();
	my ($pid) = Child::spawn([ 'socat',
		"OPENSSL-LISTEN:$port,bind=127.0.0.1,reuseaddr,fork,backlog=100,cert=$pem,verify=0,nodelay", "TCP:127.0.0.1:$to,nodelay" ]);
	until_true(sub { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) }, 'socat to listen');
	return bless { pid => $pid, port => $port }, $class;
}

sub hosts { return "localhost:$_[0]->{port}"; }

# It has a process for each connection: the whole group is killed
sub close
{
	my ($self) = @_;
	kill 'KILL', -$self->{pid};
	waitpid $self->{pid}, 0;
	Child::forget($self->{pid});
	return;
}

1;
