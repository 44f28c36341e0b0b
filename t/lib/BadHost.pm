
=pod

=head1 NAME

BadHost - a server whose disk is slow or full, or whose clock is wrong

=head1 SYNOPSIS

  BadHost::build($dir) or skip;          # compiles t/c/bad_host.c
  my $host = BadHost->new("$dir/host");
  local %ENV = (%ENV, $host->env);
  ...                                    # start the server
  $host->set(sync => 500);               # its fsync takes 500 ms
  $host->set(full => 1);                 # ZooKeeper: no space left on the device
  $host->set(clock => -86400);           # it is yesterday there
  $host->set;                            # all is well

=head1 DESCRIPTION

No privilege is needed, and other processes notice nothing: a library, preloaded into
the server, says so.  The kernel's own disk and clock are as before.

=cut

package BadHost;

use strict;
use warnings;
use File::Basename qw(dirname);

my $library;

sub build
{
	my ($dir) = @_;
	my $file = "$dir/bad_host.so";
	return 0 if system('gcc', '-O1', '-shared', '-fPIC', '-o', $file, dirname(__FILE__) . '/../c/bad_host.c') != 0;
	$library = $file;
	return 1;
}

# (file, what it is when all is well)
sub new
{
	my ($class, $file, %well) = @_;
	open my $handle, '>', $file or die "$file: $!";
	my $self = bless { file => $file, handle => $handle, well => \%well }, $class;
	$self->set;
	return $self;
}

sub env
{
	my ($self) = @_;
	return $library ? (LD_PRELOAD => $library, BAD_HOST => $self->{file}) : ();
}

sub set
{
	my ($self, %is) = @_;
	%is = (sync => 0, full => 0, clock => 0, %{ $self->{well} }, %is);
	sysseek $self->{handle}, 0, 0;
	syswrite $self->{handle}, pack 'q3', @is{qw(sync full clock)};
	return;
}

1;
