
=pod

=head1 NAME

Auth - credentials for ZooKeeper, and its own shell as another client

=head1 SYNOPSIS

  my $file = auth_file("digest:ann:secret\n");         # 0600, in a directory of the test
  my $file = auth_file("...", mode => 0644, name => 'x');
  $s->value("SET zklock.auth_file = '$file'");

  is_deeply([ $zk->acl('/zklock/a') ], creator_acl('ann:secret'));

  #   # ZooKeeper's own shell: one answer for each line
  my @said = zk_shell($zk, 'addauth digest bob:secret', 'ls /zklock/a');

=cut

package Auth;

use strict;
use warnings;
use Digest::SHA qw(sha1_base64);
use Exporter qw(import);
use File::Temp qw(tempdir);
use POSIX ();

our @EXPORT = qw(auth_file digest_id creator_acl world_acl zk_shell);

our $SHELL_TIMEOUT = 120;    # seconds, for all lines together

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
	my ($user) = $credentials =~ /^([^:]*)/;
	return "$user:" . _sha1($credentials);
}

sub _sha1
{
	my $text = sha1_base64($_[0]);
	return $text . '=' x (-length($text) % 4);
}

# The ACL that "creator" gives a node of a client with these credentials
sub creator_acl { return [ map { [ 31, 'digest', digest_id($_) ] } sort @_ ]; }
sub world_acl { return [ [ 31, 'world', 'anyone' ] ]; }

# What ZooKeeper's shell answers to each of these lines.  After each line it is
# asked for a node that does not exist, which marks the end of the answer.
sub zk_shell
{
	my ($zk, @lines) = @_;
	my $hosts = ref $zk ? $zk->hosts : $zk;
	my $work = tempdir('shell.XXXXXX', TMPDIR => 1, CLEANUP => 1);
	open my $in, '>', "$work/in" or die "$work: $!";
	print $in "$lines[$_]\nls /end-of-answer-$_\n" for 0 .. $#lines;
	print $in "quit\n";    # at end of input it would exit without closing its session
	close $in or die "$work: $!";

	my @java = (
		'java', '-Xmx96m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', '-XX:-UsePerfData',
		"-Djava.io.tmpdir=$work", '-Djava.net.preferIPv4Stack=true',
		'-Dorg.slf4j.simpleLogger.defaultLogLevel=off',
		'-cp', $ZooKeeper::CLASSPATH, 'org.apache.zookeeper.ZooKeeperMain', '-server', $hosts);
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		# By descriptor: the test framework has tied these handles.
		POSIX::dup2(POSIX::open("$work/in", POSIX::O_RDONLY()), 0);
		POSIX::dup2(POSIX::open("$work/out", POSIX::O_WRONLY() | POSIX::O_CREAT(), 0600), 1);
		POSIX::dup2(1, 2);
		{ no warnings 'exec'; exec 'timeout', '--kill-after=5', $SHELL_TIMEOUT, @java; }
		POSIX::_exit(127);
	}
	waitpid $pid, 0;
	open my $out, '<', "$work/out" or die "$work: $!";
	my $text = do { local $/; <$out> };

	my @said;
	foreach my $i (0 .. $#lines)
	{
		$text =~ s/\A(.*?)^Node does not exist: \/end-of-answer-$i$//ms
		  or die "ZooKeeper's shell did not answer \"$lines[$i]\": $text";
		my $answer = $1;
		$answer =~ s/^\s*WATCHER::\s+WatchedEvent [^\n]*$//mg;
		push @said, $answer =~ s/\A\s+|\s+\z//gr;
	}
	$said[0] =~ s/\A(?:Connecting to [^\n]*\s*|Welcome to ZooKeeper!\s*|JLine support is \w+\s*)+//;
	return @said;
}

1;
