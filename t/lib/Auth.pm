
=pod

=head1 NAME

Auth - credentials for ZooKeeper

=head1 SYNOPSIS

  my $file = auth_file("digest:ann:secret\n");         # 0600, in a directory of the test
  my $file = auth_file("...", mode => 0644, name => 'x');
  $s->value("SET zklock.auth_file = '$file'");

  is_deeply([ $zk->acl('/zklock/a') ], creator_acl('ann:secret'));

=cut

package Auth;

use strict;
use warnings;
use Digest::SHA qw(sha1_base64);
use Exporter qw(import);
use File::Temp qw(tempdir);

our @EXPORT = qw(auth_file digest_id creator_acl world_acl);

my $dir;
my $last_number = 0;

# Writes an auth file and returns its name.  Options: name, mode, dir
sub auth_file
{
	my ($content, %opt) = @_;
	$dir //= tempdir('auth.XXXXXX', TMPDIR => 1, CLEANUP => 1);
	my $name = ($opt{dir} // $dir) . '/' . ($opt{name} // 'file' . ++$last_number);
	unlink $name;    # a new file, so that nobody reads half of one
	open my $file, '>:raw', $name or die "$name: $!";
	chmod $opt{mode} // 0600, $name or die "$name: $!";
	print $file $content;
	close $file or die "$name: $!";
	return $name;
}

# The id under which ZooKeeper knows this "user:password"
sub digest_id
{
	my ($credentials) = @_;
	return ($credentials =~ /^([^:]*)/)[0] . ':' . sha1_base64($credentials) . '=';    # as long as a multiple of four
}

# The ACL that "creator" gives a node of a client with these credentials
sub creator_acl { return [ map { [ 31, 'digest', digest_id($_) ] } sort @_ ]; }
sub world_acl { return [ [ 31, 'world', 'anyone' ] ]; }

1;
