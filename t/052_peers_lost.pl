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

use FindBin;
use lib "$FindBin::RealBin/lib";

use Child;
use Peer;
use Tests;

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
	my $log = "$PostgreSQL::Test::Utils::log_path/052_peers_lost_$kind";
	$peer{$kind} = [ map { Peer->new($kind, $_ == 1 ? $follower : $others, session_timeout => $SESSION_MS, no_wait => 1, log => "${log}_$_.log") } 1, 2 ];
}
is($_->wait, 'ready', $_->kind . ' is connected') for map { @$_ } values %peer;

# ------------------------------------------------------------------- the cast

# Each plays on a path and a counter of its own, so that all can play at once.
#   lock      kazoo, curator, or zklock with this commit_guard
#   how       in words
#   check     asked before COMMIT: "held", the library's opinion of the lock;
#             "events", whether the connection has been lost since
#   fence     zk_fence, before it reads
#   looks     when it goes on, at its lock, which is one of its session
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
	(map { { lock => $_, how => "$_, a lock of the session, at which it looks", looks => 1 } } qw(off on strict)),
	{ lock => 'on', how => 'on, zk_fence(path) before it reads', fence => 1 },
	{ lock => 'strict', how => 'strict, zk_fence(path) before it reads', fence => 1 });

foreach my $n (0 .. $#cast)
{
	my $role = $cast[$n];
	my $path = "/peers/$n";    # for zklock, which adds its root
	my $peers = $peer{ $role->{lock} };
	$role->{name} = ($peers ? '' : 'zklock ') . "$role->{lock}: $role->{how}";
	$admin->value("INSERT INTO counter VALUES ('$path', 0)");
	foreach my $i (0, 1)
	{
		my $session = $peers ? zk_session($node) : zk_session_with($node, hosts => $i ? $others : $follower, commit_guard => $role->{lock}, $role->{looks} ? (cancel_on_loss => 'off') : ());
		$role->{holder}[$i] = { %$role, path => $path, s => $session, peer => $peers && $peers->[$i] };
	}
}
my @first = map { $_->{holder}[0] } @cast;
my @second = map { $_->{holder}[1] } @cast;
my @peers = grep { $_->{peer} } @first;
my @ours = grep { !$_->{peer} } @first;

# --------------------------------------------------------------- what they do

# Its SQL until it thinks, under the lock, which a peer has taken before
sub before_it_thinks
{
	my ($holder) = @_;
	my ($path, $peer) = @$holder{qw(path peer)};
	$holder->{token} = $peer->acquire("/zklock$path") if $peer;
	return join '; ',
	  $peer ? 'BEGIN' : $holder->{looks} ? "SELECT zk_lock('$path'); BEGIN" : "BEGIN; SELECT zk_xact_lock('$path')",
	  $holder->{fence} ? 'SELECT zk_fence(' . ($peer ? "'$path', $holder->{token}" : "'$path'") . ')' : (),
	  "SELECT n AS read FROM counter WHERE path = '$path' \\gset\nSELECT 'token ' || " . ($holder->{token} // "zk_lock_token('$path')");
}

sub writing { my ($holder) = @_; return "UPDATE counter SET n = :read + 1 WHERE path = '$holder->{path}'"; }

# What has become of what it sent
sub ends
{
	my ($holder) = @_;
	my $result = $holder->{s}->wait;
	$holder->{token} = $1 if $result->{out} =~ /token (\d+)/;
	$holder->{sees} = $1 if $result->{out} =~ /state (\w+)/;
	@$holder{qw(state error)} = $result->{err} =~ /ERROR:  (\w{5}): (.*(?:\nDETAIL:.*)?)/;
	return;
}

# A peer writes, and asks its library whether to commit
sub peer_writes
{
	my ($holder) = @_;
	my ($s, $peer, $check) = @$holder{qw(s peer check)};
	$s->value(writing($holder));
	$holder->{sure} = !$check || ($check eq 'held' ? $peer->ask("held /zklock$holder->{path}") eq 'yes' : !news($peer));
	return;
}

sub peer_commits { my ($holder) = @_; $holder->{s}->value($holder->{sure} ? 'COMMIT' : 'ROLLBACK'); return; }

# Wait until it has come to its end, or waits for another backend
sub ended_or_blocked
{
	my ($holder) = @_;
	my ($s, $name) = @$holder{qw(s name)};
	zk_until(sub { $s->is_done || $admin->value('SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $s->pid) eq 'Lock' }, $name);
	return $s->is_done;
}

# The changes of a peer's connection since this scene began
my %heard;    # pid => number of changes
sub events { my ($peer) = @_; return split ' ', $peer->ask('events'); }
sub news { my ($peer) = @_; return splice @{ [ events($peer) ] }, $heard{ $peer->pid }; }

# Release the lock, and remember the result.  "again" is a re-entrant call of a holder
sub release
{
	my ($holder, $again) = @_;
	my ($peer, $path) = ($holder->{peer}, "/zklock$holder->{path}");
	my $result = $peer ? undef : $holder->{s}->query('SELECT zk_unlock_all()');
	$holder->{told} =
	  $result
	  ? join '; ', "zk_unlock_all: $result->{out}", @{ $result->{warnings} }, $result->{message} || ()
	  : join ', ', map { (split)[0] . ': ' . $peer->ask($_) } "held $path", $again ? "acquire $path 0" : (), "release $path";
	$peer->ask("release $path") if $again;
	return;
}

# ----------------------------------------------------------------- the scenes

# The required outcome for the first holder; undef: it is a matter of luck
sub expected
{
	my ($scene, $role) = @_;

	# at COMMIT, too: it waits there for the lock that NOTIFY takes, but not
	# longer than its last confirmation is valid
	return '40001' if $role->{lock} =~ /^(?:on|strict)$/;
	return 'in order' if $role->{fence};
	return undef if $scene eq 'stopped' && ($role->{check} // '') eq 'events';
	return 'lost';
}

# What the libraries say when they know that their session has expired.  The
# lock that Curator's mutex hands out again has no node.
my %well = (kazoo => 'held: yes, release: ok', curator => 'held: yes, acquire: ok 0, release: ok');

foreach my $scene ('stopped', 'cut off', 'at COMMIT')
{
	delete @$_{qw(token state error sure sees)} for @first, @second;
	$heard{ $_->pid } = events($_) for map { @$_ } values %peer;
	$admin->value('UPDATE counter SET n = 0');
	$_->{s}->send(before_it_thinks($_)), ends($_) for @first;

	# A COMMIT with a NOTIFY waits as its last step for all others with one; and one
	# that waits for replication blocks them.  (Who wrote nothing has nothing to replicate.)
	my $blocker = zk_session($node, options => '-c synchronous_commit=on');
	if ($scene eq 'at COMMIT')
	{
		$blocker->send('BEGIN; INSERT INTO nothing DEFAULT VALUES; NOTIFY peers; COMMIT');
		zk_until(sub { $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $blocker->pid) eq 'SyncRep' }, 'a commit that waits for a standby');
		$_->{s}->send(writing($_) . '; NOTIFY peers; COMMIT') for @ours;
		peer_writes($_) for @peers;
		is(scalar(grep { ended_or_blocked($_) } @ours), 0, 'at COMMIT: nobody has committed yet');
	}

	my %hurt = map { ($_->{peer} // $_->{s})->pid => 1 } @first;
	if ($scene eq 'cut off') { $zk->cut($follower); }
	else { Child::suspend(keys %hurt); }
	my $began = time;
	$_->{s}->send(before_it_thinks($_) . '; ' . writing($_) . '; COMMIT') for @second;
	my @blocked = grep { !ended_or_blocked($_) } @second;
	note sprintf '%s: the second holders have got their locks after %.1f s', $scene, time - $began;
	foreach my $holder (@second) { ends($holder), release($holder) if !grep { $_ == $holder } @blocked; }

	if ($scene eq 'cut off') { $_->{s}->send(writing($_) . '; COMMIT') for @ours; }
	else
	{
		$blocker->cancel($admin) if $blocker->{mark};
		# the first thing that these do is their write and COMMIT
		if ($scene eq 'stopped') { $_->{s}->send(($_->{looks} ? q{SELECT 'state ' || state FROM zk_locks; } : '') . writing($_) . ' \\; COMMIT') for @ours; }
		kill 'CONT', keys %hurt;
	}
	if ($scene ne 'at COMMIT') { peer_writes($_) for @peers; }
	peer_commits($_) for @peers;
	if ($scene eq 'cut off')
	{
		is(join(' ', map { news($_->[0]) } values %peer), '', 'cut off: the peers have heard nothing');
		like($follower->four_letter('srvr'), qr/^Mode: follower/m, 'and their server serves');
	}
	ends($_) for @ours;
	$zk->mend if $scene eq 'cut off';
	$_->{s}->query('ROLLBACK') for @ours;
	ends($_), release($_) for @blocked;

	# What the first holders say when their libraries know everything
	foreach my $peer (map { $_->[0] } values %peer)
	{
		zk_until(sub { join(' ', news($peer)) =~ /LOST.*CONNECTED$/ }, $peer->kind . ' to have a session again');
	}
	foreach my $role (@cast)
	{
		my ($first, $second) = @{ $role->{holder} };
		release($first, $role->{lock} eq 'curator');
		my $n = $admin->value("SELECT n FROM counter WHERE path = '$first->{path}'");
		my $end = $first->{state} // ($first->{peer} && !$first->{sure} ? 'rolled back' : $n == 2 ? 'in order' : 'lost');

		my $name = "$scene: $role->{name}";
		my $expected = expected($scene, $role);
		note "$name: $first->{told}" . ($first->{error} ? "; $first->{error}" : '');
		is($second->{state}, undef, "$name: the second holder committed");
		cmp_ok($second->{token}, '>', $first->{token}, '- with a higher token');
		if (defined $expected) { is($end, $expected, "- the first one: $expected"); }
		else { note "$name: the first one: $end"; }
		is($n, $end eq 'in order' ? 2 : 1, '- the counter');
		like($first->{sees}, qr/^(?:lost|suspect)$/, '- the first look does not show it as held') if $first->{looks} && $scene eq 'stopped';
		like($first->{error}, qr/$first->{path}\b/, '- the error names the path') if $end eq '40001';
		is($first->{told}, $well{ $role->{lock} }, '- and the library says that all is well') if $first->{peer};
	}
}

# -------------------------------------------------------------------- the end

$_->{s}->quit for @first, @second;
$_->quit for map { @$_ } values %peer;
$admin->quit;
zk_end($zk, $node);
