
=pod

=head1 NAME

Torture::Cluster - a PostgreSQL cluster of a torture test, some with a standby

=head1 SYNOPSIS

  my $cluster = Torture::Cluster->new('east', $hosts, bad_host => $bad_host, settings => {...}, standby => 1);
  $cluster->primary->safe_psql(...);
  $cluster->add_standby;                          # when all tables are there
  my $s = zk_session($cluster);                   # at the primary, whichever server that is
  my $s = zk_session($cluster->at_standby);       # at the standby, if there is one

  $cluster->stop('immediate');                    # the primary
  $cluster->start;

  $cluster->kill9;                                # the primary, for good
  $cluster->change_roles;
  sleep 0.1 until $cluster->is_whole;             # it has a standby again

=head1 DESCRIPTION

The standby is synchronous, and a COMMIT waits until it shows what was committed.  There
is no time at which the primary goes without: when the standby has been promoted, its
commits wait until there is a new one, a copy of it in the place of the old primary.  So
nothing that was acknowledged depends on one server.

Clients know both servers and let libpq choose.

=cut

package Torture::Cluster;

use strict;
use warnings;
use File::Path qw(remove_tree);
use POSIX qw(:sys_wait_h);
use Time::HiRes qw(sleep);

use Deadline;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils ();
use Zklock;

# Only what the standby says counts: no time passes because a clock is wrong, and no
# reader there is in the way.
my %WITH_STANDBY = (
	synchronous_standby_names => '*',
	synchronous_commit => 'remote_apply',
	hot_standby_feedback => 'on',
	max_standby_streaming_delay => -1,
	wal_sender_timeout => 0,
	wal_receiver_timeout => 0);

# bad_host: a BadHost, which both servers have; settings: of the cluster; standby:
# whether it will have one
sub new
{
	my ($class, $name, $hosts, %opt) = @_;
	my $self = bless { name => $name, bad_host => $opt{bad_host}, servers => [] }, $class;
	local %ENV = (%ENV, $self->{bad_host}->env);
	push @{ $self->{servers} }, zk_cluster($name, $hosts, %{ $opt{settings} });
	push @{ $self->{servers} }, PostgreSQL::Test::Cluster->new("${name}_standby", defined $Zklock::INSTALLATION ? (install_path => $Zklock::INSTALLATION) : ())
	  if $opt{standby};
	return $self;
}

sub name { return $_[0]->{name}; }
sub servers { return @{ $_[0]->{servers} }; }
sub primary { return $_[0]->{servers}[0]; }
sub standby { return $_[0]->{servers}[1]; }

# How libpq finds its primary: "name=value ..."
sub options
{
	my ($self) = @_;
	my @servers = $self->servers;
	my %option = (host => join(',', map { $_->host } @servers), port => join(',', map { $_->port } @servers));
	$option{target_session_attrs} = $self->{wants} // 'primary' if @servers > 1;
	return %option;
}

sub connstr
{
	my ($self, $database) = @_;
	my %option = (dbname => $database, $self->options);
	return join ' ', map { "$_='$option{$_}'" } sort keys %option;
}

sub at_standby { my ($self) = @_; return bless { %$self, wants => 'prefer-standby' }, ref $self; }

sub _start
{
	my ($self, $server) = @_;
	local %ENV = (%ENV, $self->{bad_host}->env);
	$server->start;
	return;
}

sub start { my ($self) = @_; return $self->_start($self->primary); }
sub stop { my ($self, @mode) = @_; $self->primary->stop(@mode); return; }
sub stop_all { my ($self) = @_; $_->stop for $self->servers; return; }

# Its sessions notice at their next statement
sub set
{
	my ($self, $name, $value) = @_;
	$self->primary->append_conf('postgresql.conf', "$name = '$value'");
	kill 'HUP', $self->primary->{_pid} if $self->primary->{_pid};
	return;
}

# Whether this process is a backend of one of its servers
sub has_backend
{
	my ($self, $pid) = @_;
	my $parent = _parent($pid) // return 0;
	return !!grep { $_ == $parent } map { _postmaster($_) } $self->servers;
}

sub _postmaster
{
	my ($server) = @_;
	open my $file, '<', $server->data_dir . '/postmaster.pid' or return;
	return (<$file> // return) =~ /^(\d+)$/;
}

sub _parent
{
	my ($pid) = @_;
	open my $stat, '<', "/proc/$pid/stat" or return;
	return (split ' ', (<$stat> // return) =~ s/.*\) //r)[1];
}

# The answer of that server, if it has one
sub ask
{
	my ($server, $sql) = @_;
	return eval {
		my $session = zk_session($server);
		my $answer = $session->value($sql);
		$session->quit;
		$answer;
	};
}

# ---------------------------------------------------------------- the standby

sub add_standby
{
	my ($self) = @_;
	my ($primary, $standby) = $self->servers;
	$primary->append_conf('postgresql.conf', "$_ = '$WITH_STANDBY{$_}'") for sort keys %WITH_STANDBY;
	$primary->stop;
	$self->start;
	_copy($primary, $standby) or die "could not make a standby\n";
	$self->_start($standby);
	until_true(sub { $self->is_whole }, 'a synchronous standby');
	return;
}

# The directory stays what it is: by that, the next server finds what the one before has
# left in shared memory.
sub _copy
{
	my ($from, $to) = @_;
	remove_tree($to->data_dir, { keep_root => 1 });
	return 0 if PostgreSQL::Test::Utils::system_log($from->installed_command('pg_basebackup'),
		'-D', $to->data_dir, '-d', $from->connstr, qw(-R --checkpoint=fast --no-sync)) != 0;
	$to->append_conf('postgresql.conf', 'port = ' . $to->port);
	return 1;
}

# As if the machine of the primary lost its power
sub kill9
{
	my ($self) = @_;
	my $postmaster = $self->primary->{_pid} // return;
	kill 'STOP', $postmaster;
	my @children = grep { (_parent($_) // 0) == $postmaster } map { m{(\d+)$} } glob '/proc/[0-9]*';
	$self->primary->kill9;
	kill 'KILL', @children;
	return;
}

# The standby becomes the primary, and a copy of it, in the place of the old one, its
# standby.  Begins that, and returns.
sub change_roles
{
	my ($self) = @_;
	my ($old, $new) = $self->servers;
	my $parent = $$;
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		# (something else may befall the server meanwhile)
		my $done = eval {
			until_true(sub { _promote($new) || getppid() != $parent }, 'the standby to be promoted');
			until_true(sub { _copy($new, $old) || getppid() != $parent }, 'a copy of the new primary');
			1;
		};
		print STDERR $@ unless $done;
		POSIX::_exit($done ? 0 : 1);
	}
	$self->{change} = $pid;
	$self->{servers} = [ $new, $old ];
	return;
}

sub _promote
{
	my ($server) = @_;
	PostgreSQL::Test::Utils::system_log($server->installed_command('pg_ctl'), '-D', $server->data_dir, '-t', 10, 'promote');
	return (ask($server, 'SELECT pg_is_in_recovery()') // '') eq 'f';
}

# Whether its commits need not wait for a standby to come
sub is_whole
{
	my ($self) = @_;
	if (my $pid = $self->{change})
	{
		return 0 if waitpid($pid, WNOHANG) == 0;
		die "could not change the roles in $self->{name}\n" if $?;
		delete $self->{change};
		$self->_start($self->standby);
	}
	return (ask($self->primary, q{SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'}) // 0) == 1;
}

1;
