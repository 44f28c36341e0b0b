
=pod

=head1 NAME

Kinds - subtests for each kind of lock, with another client that blocks it

=head1 SYNOPSIS

  kinds_begin();                 # sets $zk, $proxy, $node, $admin, $other
  for_kinds(
      'canceled while it waits' => sub {
          my ($kind, $path, $s) = @_;
          my $blocker = block($kind, $path);
          $s->send(take($kind, $path));
          wait_for_blocker($path, $blocker);
          is($s->cancel($admin)->{state}, '57014', 'canceled');
          $other->delete($blocker);
      });
  kinds_end();

=head1 DESCRIPTION

The kinds are exclusive, shared, semaphore and all (several at once); those are
@kinds.  There is also single (zklock.node_style), which has no queue, and so no node
while it waits.  The blocker is a client in Perl ($other), which can choose the names
of its nodes and bypasses the proxy that the sessions use.

=cut

package Kinds;

use strict;
use warnings;
use Exporter qw(import);
use Test::More;

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

our @EXPORT = qw(kinds_begin kinds_end $zk $proxy $node $admin $other %kind @kinds $UUID $UUID_TAIL $HEX $SLACK
  take give block create_of shown own_nodes watched wait_for_blocker nothing_left warm_session new_path edge for_kinds foreign make_dirs leave);

# How much longer than promised a busy machine may take, in seconds
our $SLACK = 1;

our ($zk, $proxy, $node, $admin, $other);

# with options of ZooKeeper->new
sub kinds_begin
{
	$zk = ZooKeeper->new(@_)->start;
	$proxy = ZkProxy->new($zk);
	# heartbeats, which come every quarter of this, do not disturb
	$node = zk_cluster('main', $proxy, 'zklock.session_timeout' => '60s', 'zklock.commit_guard' => 'strict');
	$admin = zk_session($node);
	$other = $zk->client;
	return;
}

# The end of a file, with options of zk_nothing_left
sub kinds_end
{
	$other->close;
	$admin->quit;
	$node->stop;
	zk_no_crash($node);
	zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0, @_);
	return done_testing();
}

# Names of other clients' nodes say so, or contain this.
our $UUID = '0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1';
our $UUID_TAIL = substr $UUID, 1;
our $HEX = $UUID =~ s/-//gr;

# Each kind of call that waits: how it is written, how its lock is released, and
# the name of a node that blocks it.  "all" waits for the second of three.
my $queues = {};    # the setting of all others
our %kind = (
	single => { call => 'zk_lock', setting => { node_style => 'single' } },
	exclusive => { call => 'zk_lock', setting => $queues, node => '_c_other-lock-' },
	shared => { call => 'zk_lock_shared', setting => $queues, node => '_c_other-lock-', unlock => 'zk_unlock_shared' },
	semaphore => { call => 'zk_semaphore_acquire', setting => $queues, args => ', 1', node => "_c_$UUID-semaphore-1-", unlock => 'zk_semaphore_release' },
	all => { call => 'zk_lock_many', setting => $queues, node => '_c_other-lock-', paths => [ '/0', '', '/z' ] });
our @kinds = qw(exclusive shared semaphore all);

sub take
{
	my ($kind, $path, $timeout) = @_;
	my $k = $kind{$kind};
	my $what = $k->{paths} ? '{' . join(',', map { "$_$path" } reverse @{ $k->{paths} }) . '}' : $path;
	return "SELECT $k->{call}('$what'" . ($k->{args} // '') . (defined $timeout ? ", '$timeout')" : ')');
}

sub give
{
	my ($kind, $path) = @_;
	my $k = $kind{$kind};
	my $unlock = $k->{unlock} // 'zk_unlock';
	return 'SELECT ' . join ' AND ', map { "$unlock('$_$path')" } @{ $k->{paths} // [''] };
}

# The request that creates its nodes
sub create_of { return $_[0] =~ /^(?:all|single)$/ ? 'multi' : 'create2'; }

# Create a node that this kind has to wait for.
sub block
{
	my ($kind, $path) = @_;
	return scalar $other->create("/zklock$path", mode => 'ephemeral', data => 'other') if $kind eq 'single';
	$other->delete($other->contend("/zklock$path"));    # creates the directories
	return scalar $other->create("/zklock$path/$kind{$kind}{node}", mode => 'ephemeral_sequential');
}

# Every node that backends have in ZooKeeper, or those for one path
sub own_nodes
{
	my ($path) = @_;
	my %session = $zk->ephemerals;
	delete $session{ $other->session_id };
	my @own = grep { !/other|$UUID_TAIL|$HEX/ } map { @$_ } values %session;
	return defined $path ? grep { m{^/zklock\Q$path\E(?:/[^/]+)?$} } @own : @own;
}

# What zk_locks calls these nodes
sub shown
{
	my ($kind, @own) = @_;
	return join ' ', sort map { $kind eq 'single' ? 'single-' . $zk->exists($_)->{czxid} : s/.*\///r } @own;
}

# Every node that somebody watches
sub watched { return ($zk->four_letter('wchp') // '') =~ m{^(/.*)$}mg; }

# Wait until a session waits for that node, and watches its own, if it has one
sub wait_for_blocker
{
	my ($path, @blocker) = @_;
	my $single = grep { $_ eq "/zklock$path" } @blocker;
	my @own;
	zk_until(
		sub {
			my %watched = map { $_ => 1 } watched();
			@own = own_nodes($path);
			return ($single || @own) && !grep { !$watched{$_} } @blocker, @own;
		},
		"a node that waits for @blocker");
	return @own;
}

# Nothing is left of what backends did, though other clients may still be there.
sub nothing_left
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(eval { zk_until(sub { !own_nodes() && $zk->watch_count == 0 }, 'nothing', $MOMENT) }, $name)
	  or diag(join "\n", own_nodes(), map { "watched: $_" } watched());
	return;
}

sub warm_session { return zk_warm_session($node, @_); }

my $last_path = 0;
sub new_path { return '/edge/' . ++$last_path; }

# A subtest; if it dies, the others still run.
sub edge
{
	my ($name, $code) = @_;
	subtest $name => sub {
		return if eval { $code->(); 1 };
		fail("goes on to its end: $@");
		# a waiting backend does not notice that its client has gone
		die "no server any more\n" unless eval { $admin->value(
				q{SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'}); 1 };
		$proxy->reset;
		my %session = $zk->ephemerals;
		$other->delete($_) for @{ $session{ $other->session_id } // [] };
	};
	return;
}

# A subtest for each kind, with a path, whose directories are there, and a connected
# session: that of the kind before, if it still lives
sub for_kinds
{
	my ($name, $code, %opt) = @_;
	my ($idle, $its_setting);
	foreach my $kind (@{ $opt{kinds} // \@kinds })
	{
		edge "$name: $kind" => sub {
			my $setting = $kind{$kind}{setting};
			$idle->quit if $idle && $its_setting != $setting;
			my $s = $idle && $idle->{psql} ? $idle : warm_session(%$setting);
			($idle, $its_setting) = (undef, $setting);
			my $path = new_path();
			$s->value(take($kind, $path) . '; ' . give($kind, $path));
			nothing_left('clean');
			$code->($kind, $path, $s);
			$proxy->reset;
			if ($s->{psql})
			{
				is($s->value('SELECT count(*) FROM zk_locks'), 0, 'no hold is left');
				is($s->value(take($kind, $path) . '; ' . give($kind, $path)), "t\nt", 'then it is had and given back');
				$s->value('RESET ALL');
				$idle = $s;
			}
			nothing_left('nothing is left');
		};
	}
	$idle->quit if $idle;
	return;
}

# A node of another client, by the prefix of its name
sub foreign
{
	my ($path, $prefix, $mode) = @_;
	return scalar $other->create("/zklock$path/$prefix", mode => $mode // 'ephemeral_sequential');
}

# Directories for other clients' nodes
sub make_dirs { $other->delete($other->contend("/zklock$_[0]")); return; }

sub leave { $other->delete($_) for @_; return; }

1;
