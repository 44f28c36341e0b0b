# A lock that was lost, and a write that comes after it: the same scenes with
# kazoo's lock, Curator's mutex and zklock around the same SQL.
#
# Two holders each add 1 to a counter: read it under the lock, think, write that
# plus 1, commit.  While the first one thinks, it loses the lock without
# knowing; the second gets the lock and adds its 1.  Then the first continues.
# An update is lost when both committed and the counter is 1.
#
#   stopped      the first holder's process is stopped (SIGSTOP) until its
#                session has timed out
#   cut off      its server, a follower, is cut off from the leader: the server
#                goes on saying that all is well
#   at COMMIT    it is stopped after it has checked its lock, or zklock has, and
#                only the commit is left
#
# The order of the steps is forced, so that the outcome is not a matter of luck,
# except for a client that checks its connection right after it was stopped:
# that one is counted without an assertion.
#
# What comes of that is the table of doc/torture.md.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use Child;
use Peer;
use Zklock;
use ZooKeeper;

my $SESSION_MS = 6000;

# A follower takes a minute to notice that it is alone: by then its clients'
# sessions ended long ago.
my $zk = ZooKeeper->ensemble(3, links => 1, tick_time => 1000, sync_limit => 60);
my ($follower) = $zk->followers;
my $others = join ',', map { $_->hosts } grep { $_ != $follower } $zk->nodes;

# There is no synchronous standby: with synchronous_commit = on, a COMMIT waits
# while it still has its locks.
my $node = zk_cluster(
	'main', $others,
	'zklock.session_timeout' => "${SESSION_MS}ms",
	'zklock.operation_timeout' => '4s',
	wal_level => 'replica',
	max_wal_senders => 1,
	synchronous_standby_names => 'nobody',
	synchronous_commit => 'local',
	default_transaction_isolation => 'read committed');
my $admin = zk_session($node);
$admin->value('CREATE TABLE counter (path text PRIMARY KEY, n int); CREATE TABLE nothing ()');

# One process of each kind for the first holder, and one for the second.
my %peer;
foreach my $kind (qw(kazoo curator))
{
	my @opt = (session_timeout => $SESSION_MS, no_wait => 1);
	my $log = "$PostgreSQL::Test::Utils::log_path/052_peers_lost_$kind";
	$peer{$kind} = [
		Peer->new($kind, $follower, @opt, log => "${log}_1.log"),
		Peer->new($kind, $others, @opt, log => "${log}_2.log") ];
}
foreach my $peer (map { @$_ } values %peer)
{
	is($peer->wait, 'ready', $peer->kind . ' is connected');
}

# ------------------------------------------------------------------- the cast

# Each plays on a path and a counter of its own, so that all can play at once.
#   lock      kazoo, curator, or zklock with this commit_guard
#   how       in words
#   check     asked before COMMIT: "held", the library's opinion of the lock;
#             "events", whether the connection has been lost since
#   fence     zk_fence, before it reads
my @cast = (
	(   map { (
				{ lock => $_, how => 'acquire, transaction, release' },
				{ lock => $_, how => 'asks the lock before COMMIT', check => 'held' },
				{ lock => $_, how => 'asks a connection listener before COMMIT', check => 'events' },
				{ lock => $_, how => 'zk_fence(path, token) before it reads', fence => 1 })
		} qw(kazoo curator)),
	{ lock => 'off', how => 'commit_guard = off' },
	{ lock => 'on', how => 'commit_guard = on' },
	{ lock => 'strict', how => 'commit_guard = strict' },
	{ lock => 'on', how => 'on, zk_fence(path) before it reads', fence => 1 },
	{ lock => 'strict', how => 'strict, zk_fence(path) before it reads', fence => 1 });

foreach my $n (0 .. $#cast)
{
	my $role = $cast[$n];
	$role->{path} = "/peers/$n";    # for zklock, which adds its root
	$role->{peer} = $peer{ $role->{lock} };
	$role->{name} = ($role->{peer} ? '' : 'zklock ') . "$role->{lock}: $role->{how}";
	foreach my $i (0, 1)
	{
		my $hosts = $i ? $others : $follower->hosts;
		my $options = $role->{peer} ? '' : "-c zklock.hosts=$hosts -c zklock.commit_guard=$role->{lock}";
		$role->{holder}[$i] = {
			role => $role,
			number => $i + 1,
			path => "/zklock$role->{path}",
			options => $options,
			peer => $role->{peer} && $role->{peer}[$i] };
	}
	$admin->value("INSERT INTO counter VALUES ('$role->{path}', 0)");
}

# --------------------------------------------------------------- what they do

# The steps, each with its SQL.  A peer's lock is not taken by SQL.
sub steps
{
	my ($holder) = @_;
	my ($role, $peer) = @{$holder}{qw(role peer)};
	my $path = $role->{path};
	my $read = [ read => "SELECT n FROM counter WHERE path = '$path'" ];
	my $write = sub { "UPDATE counter SET n = $holder->{read} + 1 WHERE path = '$path'" };
	my @write =
		$holder->{at_once}
	  ? ([ commit => sub { $write->() . ' \\; COMMIT' } ])
	  : ([ write => $write ], $holder->{notify} ? [ notify => 'NOTIFY peers' ] : (), [ commit => 'COMMIT' ]);

	return (
		$peer
		? ([ lock => undef ], [ begin => 'BEGIN' ])
		: ([ begin => 'BEGIN' ], [ lock => "SELECT zk_xact_lock('$path'), zk_lock_token('$path')" ]),
		$role->{fence} ? [ fence => $peer ? sub { "SELECT zk_fence('$path', $holder->{token})" } : "SELECT zk_fence('$path')" ] : (),
		$read,
		'think',
		@write);
}

# Whether its backend waits for another backend
sub is_blocked
{
	my ($session) = @_;
	my $pid = $session->pid;
	return $admin->value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid") eq 'Lock';
}

# Continue to the end, or to one of these:
#   until => 'think'      when it is about to think
#   until => 'commit'     only the commit is left; with zklock, PostgreSQL is
#                         executing it, and the guard has passed
#   until => 'answer'     COMMIT has been sent
#   until => 'blocked'    it waits for the other holder's transaction
sub play
{
	my ($holder, %opt) = @_;
	my ($role, $peer, $session, $steps) = @{$holder}{qw(role peer session steps)};
	my $until = $opt{until} // '';
	my $what = "$role->{name}, holder $holder->{number}";

	while (@$steps)
	{
		if (!ref $steps->[0])
		{
			return if $until eq 'think';
			shift @$steps;
			next;
		}
		my ($step, $sql) = @{ $steps->[0] };
		if (!$holder->{under_way})
		{
			if ($step eq 'commit' && !$holder->{sure} && !($holder->{sure} = is_sure($holder)))
			{
				$session->value('ROLLBACK');
				$holder->{result} = 'rolled back';
				@$steps = ();
				return;
			}
			return if $until eq 'commit' && $step eq 'commit' && $peer;
			if (!defined $sql)
			{
				$holder->{token} = $peer->acquire($holder->{path});
				shift @$steps;
				next;
			}
			$session->send(ref $sql ? $sql->() : $sql);
			$holder->{under_way} = 1;
		}
		return if $until eq 'answer' && $step eq 'commit';
		my $may_block = $until eq 'blocked' || ($until eq 'commit' && $step eq 'commit');
		zk_until(sub { $session->is_done || ($may_block && is_blocked($session)) }, "$step of $what");
		return unless $session->is_done;

		delete $holder->{under_way};
		shift @$steps;
		my $result = $session->wait;
		if ($result->{state})
		{
			@{$holder}{qw(result error)} = ("$step: $result->{state}", "$result->{message} $result->{detail}");
			@$steps = ();
			$session->query('ROLLBACK');
		}
		elsif ($step eq 'lock') { $holder->{token} = (split /\|/, $result->{out})[1]; }
		elsif ($step eq 'read') { $holder->{read} = $result->{out}; }
		elsif ($step eq 'commit') { $holder->{result} = 'committed'; }
	}
	return;
}

sub finished { return !@{ $_[0]{steps} }; }

# What the library answers before COMMIT.
sub is_sure
{
	my ($holder) = @_;
	my $check = $holder->{role}{check} // return 1;
	return $check eq 'held' ? $holder->{peer}->ask("held $holder->{path}") eq 'yes' : !news($holder->{peer});
}

# The changes of a peer's connection since this was last reset
my %heard;    # pid => number of changes

sub news
{
	my ($peer) = @_;
	my @events = split ' ', $peer->ask('events');
	return @events[ $heard{ $peer->pid } .. $#events ];
}

sub forget_news
{
	my ($peer) = @_;
	my @events = split ' ', $peer->ask('events');
	$heard{ $peer->pid } = @events;
	return;
}

# Release the lock, and remember the result.
sub release
{
	my ($holder, %opt) = @_;
	if (my $peer = $holder->{peer})
	{
		my $path = $holder->{path};
		$holder->{told} = 'held: ' . $peer->ask("held $path");
		# a re-entrant call of a holder
		if ($opt{again})
		{
			$holder->{told} .= ', acquire: ' . $peer->ask("acquire $path 0");
			$peer->ask("release $path");
		}
		$holder->{told} .= ', release: ' . $peer->ask("release $path");
	}
	else
	{
		my $result = $holder->{session}->query('SELECT zk_unlock_all()');
		$holder->{told} = join '; ', "zk_unlock_all: $result->{out}", @{ $result->{warnings} }, $result->{message} || ();
	}
	return;
}

# ------------------------------------------------------------------ processes

sub pids
{
	my %pid = map { ($_->{peer} // $_->{session})->pid => 1 } @_;
	return sort { $a <=> $b } keys %pid;
}

# A COMMIT with a NOTIFY waits as its last step for all others with one; and one
# that waits for replication blocks them.
sub block_notify
{
	my $session = zk_session($node, options => '-c synchronous_commit=on');
	# a transaction that wrote nothing has nothing to replicate
	$session->send('BEGIN; INSERT INTO nothing DEFAULT VALUES; NOTIFY peers; COMMIT');
	my $pid = $session->pid;
	zk_until(sub { $admin->value("SELECT wait_event FROM pg_stat_activity WHERE pid = $pid") eq 'SyncRep' },
		'a commit that waits for a standby');
	return $session;
}

sub unblock_notify
{
	my ($session) = @_;
	$admin->value('SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->wait;
	$session->quit;
	return;
}

# ----------------------------------------------------------------- the scenes

# The required outcome for the first holder; undef: it is a matter of luck
sub expected
{
	my ($scene, $role) = @_;

	# at COMMIT, too: it waits there for the lock that NOTIFY takes, but not
	# longer than its last confirmation is valid
	return 'commit: 40001' if $role->{lock} =~ /^(?:on|strict)$/;
	return 'in order' if $role->{fence};
	return undef if $scene eq 'stopped' && ($role->{check} // '') eq 'events';
	return 'lost';
}

# What the libraries say when they know that their session has expired.  The
# lock that Curator's mutex hands out again has no node.
my %well = (kazoo => 'held: yes, release: ok', curator => 'held: yes, acquire: ok 0, release: ok');

sub scene
{
	my ($scene) = @_;
	my @first = map { $_->{holder}[0] } @cast;
	my @second = map { $_->{holder}[1] } @cast;
	my @first_peers = map { $_->[0] } values %peer;
	my $blocker;

	foreach my $holder (@first, @second)
	{
		delete @{$holder}{qw(token read result error told sure)};
		$holder->{session} //= zk_session($node, options => $holder->{options});
		my $backend_is_hurt = !$holder->{peer} && $holder->{number} == 1;
		$holder->{notify} = $backend_is_hurt && $scene eq 'at COMMIT';
		$holder->{at_once} = $backend_is_hurt && $scene eq 'stopped';
		$holder->{steps} = [ steps($holder) ];
	}
	forget_news($_) for map { @$_ } values %peer;
	$admin->value('UPDATE counter SET n = 0');

	play($_, until => 'think') for @first;
	if ($scene eq 'at COMMIT')
	{
		$blocker = block_notify();
		play($_, until => 'commit') for @first;
		is(scalar(grep { finished($_) } @first), 0, 'at COMMIT: nobody has committed yet');
	}

	if ($scene eq 'cut off') { $zk->cut($follower); }
	else { Child::suspend(pids(@first)); }
	my $began = time;
	play($_, until => 'blocked') for @second;
	note sprintf '%s: the second holders have got their locks after %.1f s', $scene, time - $began;
	release($_) for grep { finished($_) } @second;

	if ($scene ne 'cut off')
	{
		unblock_notify($blocker) if $blocker;
		# the first thing that these do is their write and COMMIT
		play($_, until => 'answer') for grep { $_->{at_once} } @first;
		kill 'CONT', pids(@first);
	}
	play($_, until => 'answer') for @first;
	if ($scene eq 'cut off')
	{
		play($_) for grep { $_->{peer} } @first;
		is(join(' ', map { news($_) } @first_peers), '', 'cut off: the peers have heard nothing');
		like($follower->four_letter('srvr'), qr/^Mode: follower/m, 'and their server serves');
	}
	play($_) for @first;
	$zk->mend if $scene eq 'cut off';
	foreach my $holder (grep { !finished($_) } @second)
	{
		play($holder);
		release($holder);
	}

	# What the first holders say when their libraries know everything
	foreach my $peer (@first_peers)
	{
		zk_until(sub { join(' ', news($peer)) =~ /LOST.*CONNECTED$/ }, $peer->kind . ' to have a session again');
	}
	foreach my $role (@cast)
	{
		my ($first, $second) = @{ $role->{holder} };
		release($first, again => $role->{lock} eq 'curator');
		my $n = $admin->value("SELECT n FROM counter WHERE path = '$role->{path}'");
		my $end =
			$first->{result} ne 'committed' ? $first->{result} =~ s/_/ /r
		  : $n == 2 ? 'in order'
		  : 'lost';

		my $name = "$scene: $role->{name}";
		my $expected = expected($scene, $role);
		note "$name: $first->{told}" . ($first->{error} ? "; $first->{error}" : '');
		is($second->{result}, 'committed', "$name: the second holder committed");
		cmp_ok($second->{token}, '>', $first->{token}, '- with a higher token');
		if (defined $expected) { is($end, $expected, "- the first one: $expected"); }
		else { note "$name: the first one: $end"; }
		is($n, $end eq 'in order' ? 2 : 1, '- the counter');
		like($first->{error}, qr/$role->{path}\b/, '- the error names the path') if $end =~ /40001/;
		is($first->{told}, $well{ $role->{lock} }, '- and the library says that all is well') if $role->{peer};
	}
	return;
}

scene($_) for 'stopped', 'cut off', 'at COMMIT';

# -------------------------------------------------------------------- the end

$_->{session}->quit for map { @{ $_->{holder} } } @cast;
$_->quit for map { @$_ } values %peer;
$admin->quit;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left', sessions => 0);
$node->stop;
$zk->stop;

done_testing();
