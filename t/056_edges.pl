# The known faults of other lock libraries, one by one, for locks of every kind:
# exclusive, shared, several at once, semaphores.  Numbers such as CURATOR-264
# are those of bug reports.  Faults that are missing here are tested elsewhere
# (t/020 to t/027) or cannot happen.
#
# The blocker is a client in Perl, which can choose the names of its nodes and
# bypasses the proxy.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Cost qw(quiet);
use Deadline;
use Turns;
use ZkProxy;
use Zklock;
use ZooKeeper;

use constant { READ => 1, DELETE => 8, ADMIN => 16, ALL => 31 };

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1;

# empty directories stay until a test removes them
my $zk = ZooKeeper->new(container_check => 3_600_000, max_session_timeout => 3_600_000)->start;
my $proxy = ZkProxy->new($zk);
# heartbeats, which come every quarter of this, do not disturb
my $node = zk_cluster('main', $proxy, 'zklock.session_timeout' => '60s', 'zklock.commit_guard' => 'strict');
my $admin = zk_session($node);
my $other = $zk->client(session_timeout => 3_600_000);    # it sends no heartbeats


# Names of other clients' nodes say so, or contain this.
my $UUID = '0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1';
my $UUID_TAIL = substr $UUID, 1;
my $HEX = $UUID =~ s/-//gr;

# Each kind of call that waits: how it is written, how its lock is released, and
# the name of a node that blocks it.  "all" waits for the second of three.
my %kind = (
	exclusive => { call => 'zk_lock', node => '_c_other-lock-' },
	shared => { call => 'zk_lock_shared', node => '_c_other-lock-', unlock => 'zk_unlock_shared' },
	semaphore => { call => 'zk_semaphore_acquire', args => ', 1', node => "_c_$UUID-semaphore-1-", unlock => 'zk_semaphore_release' },
	all => { call => 'zk_lock_all', node => '_c_other-lock-', paths => [ '/0', '', '/z' ] });
my @kinds = qw(exclusive shared semaphore all);

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

# Create a node that this kind has to wait for.
sub block
{
	my ($kind, $path) = @_;
	$other->delete($other->contend("/zklock$path"));    # creates the directories
	return scalar $other->create("/zklock$path/$kind{$kind}{node}", mode => 'ephemeral_sequential');
}

# Every node that backends have in ZooKeeper, or those for one path
sub own_nodes
{
	my ($path) = @_;
	my %session = $zk->ephemerals;
	my @own = grep { !/other|$UUID_TAIL|$HEX/ } map { @$_ } values %session;
	return defined $path ? grep { m{^/zklock\Q$path\E/[^/]+$} } @own : @own;
}

# Every node that somebody watches
sub watched { return ($zk->four_letter('wchp') // '') =~ m{^(/.*)$}mg; }

# Wait until a session waits for that node, and watches its own
sub wait_for_blocker
{
	my ($path, @blocker) = @_;
	my @own;
	zk_until(
		sub {
			my %watched = map { $_ => 1 } watched();
			@own = own_nodes($path);
			return @own && !grep { !$watched{$_} } @blocker, @own;
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

# A session that is connected, so that only what is meant is disturbed
sub warm_session
{
	my $s = zk_session_with($node, @_);
	$s->value(q{SELECT zk_lock('/warm/' || pg_backend_pid()), zk_unlock_all()});
	return $s;
}

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

# A subtest for each kind, with a path, whose directories are there, and a
# connected session of its own
sub for_kinds
{
	my ($name, $code, %opt) = @_;
	foreach my $kind (@{ $opt{kinds} // \@kinds })
	{
		edge "$name: $kind" => sub {
			my $s = warm_session();
			my $path = new_path();
			$s->value(take($kind, $path) . '; ' . give($kind, $path));
			nothing_left('clean');
			$code->($kind, $path, $s);
			$proxy->reset;
			if ($s->{psql})
			{
				is($s->value('SELECT count(*) FROM zk_locks'), 0, 'no hold is left');
				is($s->value(take($kind, $path) . '; ' . give($kind, $path)), "t\nt", 'then it is had and given back');
			}
			$s->quit;
			nothing_left('nothing is left');
		};
	}
	return;
}

# --------------------------------------- create, cancel, time out, be expired

my @lost = (
	[ 'the answer', sub { $proxy->swallow_and_drop($_[0]) } ],
	[ 'the request', sub { $proxy->drop_request($_[0]) } ]);
foreach (@lost)
{
	my ($what, $lose) = @$_;
	for_kinds(
		"$what of a create is lost" => sub {
			my ($kind, $path, $s) = @_;
			my $create = $kind eq 'all' ? 'multi' : 'create2';
			$lose->($create);
			my $result = $s->query(take($kind, $path));
			is("$result->{out}$result->{err}", 't', 'it is held');
			my @own = own_nodes();
			is(@own, $kind eq 'all' ? 3 : 1, 'with no node too many');
			is($s->value(q{SELECT string_agg(node, ' ' ORDER BY node) FROM zk_locks}),
				join(' ', sort map { s/.*\///r } @own), 'which are those of zk_locks');
			is($s->value(give($kind, $path)), 't', 'given back');
		});
	for_kinds(
		"$what of a create is lost, then cancelled" => sub {
			my ($kind, $path, $s) = @_;
			my $blocker = block($kind, $path);
			$lose->($kind eq 'all' ? 'multi' : 'create2');
			$s->send(take($kind, $path));
			wait_for_blocker($path, $blocker);
			is($s->cancel($admin)->{state}, '57014', 'cancelled');
			nothing_left('nothing is left while the other stands there');
			$other->delete($blocker);
		});
}

for_kinds(
	'who looks for its node asks the leader first (CURATOR-264)' => sub {
		my ($kind, $path, $s) = @_;
		$proxy->clear_log;
		$proxy->swallow_and_drop($kind eq 'all' ? 'multi' : 'create2');
		is($s->value(take($kind, $path)), 't', 'it is held');
		my ($cut, @after) = (0);
		foreach my $entry ($proxy->log)
		{
			$cut = 1 if $entry->[1] eq '.' && $entry->[2] eq 'drop';
			push @after, $entry->[2] if $cut && $entry->[1] eq '>' && $entry->[2] =~ /^(?:sync|getChildren2?)$/;
		}
		is($after[0], 'sync', 'a sync comes before the first list') or diag "@after";
		is($s->value(give($kind, $path)), 't', 'given back');
	});

# One node that could be mistaken for its own.
for_kinds(
	'a node of that name is not of this session (CURATOR-498)' => sub {
		my ($kind, $path, $s) = @_;
		$proxy->swallow_and_drop($kind eq 'all' ? 'multi' : 'create2');
		# it must not reconnect before all is prepared
		$proxy->hold_request('sync', 10);
		$s->send(take($kind, $path));
		$proxy->wait_swallowed;
		$proxy->wait_held;
		my @own = own_nodes();
		is(@own, 1, 'it was made');
		my $theirs = $other->create($own[0] =~ s/\d{10}$//r, mode => 'ephemeral_sequential');
		$other->delete($own[0]);
		my $asked = $proxy->count('create2');
		$proxy->release;
		# either it takes that for its own, or it creates another one
		zk_until(sub { $s->is_done || $proxy->count('create2') > $asked }, 'what it makes of that');
		$other->delete($theirs);
		is($s->wait->{out}, 't', 'it is held');
		my $id = $s->value('SELECT session_id FROM zk_session');
		my %session = $zk->ephemerals;
		is_deeply([ sort map { s/.*\///r } @{ $session{$id} } ],
			[ split / /, $s->value(q{SELECT string_agg(node, ' ' ORDER BY node COLLATE "C") FROM zk_locks}) ],
			'with nodes of its own');
		is($s->value(give($kind, $path)), 't', 'given back');
	},
	kinds => [ grep { $_ ne 'all' } @kinds ]);

# The points at which a call can be cancelled: what the proxy does before, and
# how to tell that it is there
my @steps = (
	[ 'create sent', sub { $proxy->hold($_[0] eq 'all' ? 'multi' : 'create2') }, sub { $proxy->wait_held } ],
	[ 'create on its way', sub { $proxy->hold_request($_[0] eq 'all' ? 'multi' : 'create2') }, sub { $proxy->wait_held } ],
	[ 'list sent', sub { $proxy->hold('getChildren') }, sub { $proxy->wait_held } ],
	[ 'watch sent', sub { $proxy->hold('getData') }, sub { $proxy->wait_held } ],
	[ 'waiting', sub { }, sub { wait_for_blocker($_[0], $_[1]) } ]);

foreach my $step (@steps)
{
	my ($where, $before, $reached) = @$step;
	for_kinds(
		"cancelled, $where" => sub {
			my ($kind, $path, $s) = @_;
			my $blocker = block($kind, $path);
			$before->($kind);
			$s->send(take($kind, $path));
			$reached->($path, $blocker);
			my $result = $s->cancel($admin);
			is($result->{state}, '57014', 'cancelled');
			in_time($result->{seconds}, 30, 'and not by a timeout');
			$proxy->release;
			nothing_left('nothing is left while the other stands there');
			is($s->value(take($kind, $path, '0')), 'f', 'who still excludes us');
			$other->delete($blocker);
		});
}

# CURATOR-205: the second interrupt hits the cleanup of the first.
for_kinds(
	'cancelled twice' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path));
		wait_for_blocker($path, $blocker);
		$proxy->hold_request('*', 1);
		is($s->cancel($admin)->{state}, '57014', 'cancelled');
		$proxy->wait_held;
		isnt(scalar own_nodes(), 0, 'its node is there: the delete is on its way');
		$s->send(take($kind, $path));
		zk_wait_waiting($admin, $s);
		is($s->cancel($admin)->{state}, '57014', 'cancelled again');
		$proxy->release;
		nothing_left('nothing is left of both');
		$other->delete($blocker);
	});

for_kinds(
	'terminated while it waits' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path));
		wait_for_blocker($path, $blocker);
		$admin->value('SELECT pg_terminate_backend(' . $s->pid . ')');
		is($s->wait->{state}, '57P01', 'terminated');
		$s->kill9;    # psql is still there
		nothing_left('nothing is left while the other stands there');
		$other->delete($blocker);
	});

for_kinds(
	'the answer to the release is lost' => sub {
		my ($kind, $path, $s) = @_;
		$s->value(take($kind, $path));
		$proxy->swallow_and_drop('delete');
		is($s->value(give($kind, $path)), 't', 'given back');
		nothing_left('nothing is left');
		$s->value(take($kind, $path));
		$proxy->drop_request('delete');
		is($s->value(give($kind, $path)), 't', 'given back');
		nothing_left('nothing is left if the request is, too');
	});

for_kinds(
	'an error or the end of the time while it waits' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		my $result = $s->query(take($kind, $path, '1s'));
		is("$result->{out}$result->{err}", 'f', 'timeout: false');
		cmp_ok($result->{seconds}, '>=', 1, '- not too early');
		in_time($result->{seconds}, 1 + $SLACK, '- nor too late');
		nothing_left('- nothing is left');
		$result = $s->query(q{SET lock_timeout = '200ms'; } . take($kind, $path));
		is($result->{state}, '55P03', 'lock_timeout: 55P03');
		nothing_left('- nothing is left');
		$result = $s->query(q{RESET lock_timeout; SET statement_timeout = '200ms'; } . take($kind, $path));
		is($result->{state}, '57014', 'statement_timeout: 57014');
		nothing_left('- nothing is left');
		$s->value('RESET statement_timeout');
		$other->set_acl($blocker, [ [ DELETE, 'world', 'anyone' ] ]);
		$result = $s->query(take($kind, $path));
		is($result->{state}, '42501', 'a node that we may not read: 42501');
		nothing_left('- nothing is left');
		$other->delete($blocker);
	});

edge 'the session expires while it waits' => sub {
	my %w;
	foreach my $kind (@kinds)
	{
		my $path = new_path();
		my $s = warm_session();
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path));
		my ($first) = wait_for_blocker($path, $blocker);
		$w{$kind} = { path => $path, s => $s, blocker => $blocker, first => $first };
	}
	$proxy->cut_off;
	$zk->end_sessions_of(own_nodes());
	is(scalar own_nodes(), 0, 'all have expired');
	$w{$_}{behind} = block($_, $w{$_}{path}) for @kinds;
	$proxy->pass;
	foreach my $kind (@kinds)
	{
		my $w = $w{$kind};
		my ($again) = wait_for_blocker($w->{path}, $w->{behind});
		isnt($again, $w->{first}, "$kind: it queues again");
		$other->delete($w->{blocker});
		is(join(' ', watched() ? 'watches' : ''), 'watches', "$kind: and goes on waiting");
		ok(!$w->{s}->is_done, "$kind: since who came meanwhile is before it");
		$other->delete($w->{behind});
		is($w->{s}->wait->{out}, 't', "$kind: then it is had");
		is($w->{s}->value(give($kind, $w->{path})), 't', "$kind: and given back");
		$w->{s}->quit;
	}
	nothing_left('nothing is left');
};

for_kinds(
	'its own node is deleted while it waits' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path));
		my ($first) = wait_for_blocker($path, $blocker);
		my $behind = block($kind, $path);
		$other->delete($first);
		my ($again) = wait_for_blocker($path, $behind);
		isnt($again, $first, 'it queues again');
		is(scalar own_nodes($path), 1, 'with one node');
		$other->delete($blocker);
		ok(!$s->is_done, 'behind who came meanwhile');
		$other->delete($behind);
		is($s->wait->{out}, 't', 'then it is had');
		is($s->value(q{SELECT bool_and(state = 'held') FROM zk_locks}), 't', 'and held');
		is($s->value(give($kind, $path)), 't', 'and given back');

		# the time is that of the call, however often it queues; it stands in the
		# queue when that is over
		$blocker = block($kind, $path);
		$s->send(take($kind, $path, '3s'));
		my $began = time;
		my $deleted = 0;
		while (time < $began + ($deleted > 3 ? 1 : 2))
		{
			$deleted++ if grep { $other->delete($_) } own_nodes($path);
			sleep 0.05;
		}
		is($s->wait->{out}, 'f', 'a time that is over is over');
		in_time(time - $began, 3 + $SLACK, "however often the node is deleted ($deleted times)");
		cmp_ok($deleted, '>', 3, 'which it was');
		nothing_left('nothing is left');
		$other->delete($blocker);
	});

for_kinds(
	'the node of a holder is deleted' => sub {
		my ($kind, $path, $s) = @_;
		$s->value('CREATE TABLE IF NOT EXISTS t (i int)');
		$s->value('BEGIN; INSERT INTO t VALUES (1)');
		$s->value(take($kind, $path));
		$other->delete($_) for own_nodes($path);
		my $result = $s->query('COMMIT');
		is($result->{state}, '40001', 'COMMIT fails');
		like($result->{message}, qr/"\Q$path\E"/, 'and names the path');
		is($s->value(q{SELECT count(*) FROM t}), 0, 'nothing is written');
		is($s->value('SELECT count(*) FROM zk_locks'), 0, 'and what it took in the transaction is given back');

		$s->value(take($kind, $path));
		$other->delete($_) for own_nodes($path);
		$s->query('BEGIN; INSERT INTO t VALUES (1); COMMIT');
		is($s->value("SELECT state FROM zk_locks WHERE path = '$path'"), 'lost', 'one from before is lost');
		is($s->query(take($kind, $path))->{state}, '55000', 'and not to be had again');
		my $unlock = $kind{$kind}{unlock} // 'zk_unlock';
		$s->query("SELECT $unlock('$_$path')") for @{ $kind{$kind}{paths} // [''] };
		is($s->value('SELECT count(*) FROM zk_locks'), 0, 'until it is given back');
	});

# Our own node goes first and then the one before, while we are not told.
for_kinds(
	'woken without a node' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path));
		my ($first) = wait_for_blocker($path, $blocker);
		my $behind = block($kind, $path);
		$proxy->hold_event;
		$other->delete($first);
		$other->delete($blocker);
		$proxy->wait_held;
		$proxy->release;
		my ($again) = wait_for_blocker($path, $behind);
		ok(!$s->is_done, 'it does not hold without a node of its own');
		isnt($again, $first, 'but queues again');
		$other->delete($behind);
		is($s->wait->{out}, 't', 'then it is had');
		is($s->value("SELECT node FROM zk_locks WHERE path = '$path'"), (own_nodes($path))[0] =~ s/.*\///r,
			'with the node that is there');
		is($s->value(give($kind, $path)), 't', 'and given back');
	});

for_kinds(
	'who is before us goes between the list and the watch' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$proxy->hold_request('getData');
		$s->send(take($kind, $path));
		$proxy->wait_held;
		my ($first) = own_nodes($path);
		my $behind = block($kind, $path);
		$other->delete($blocker);
		$proxy->release;
		is($s->wait->{out}, 't', 'it is had');
		is((own_nodes($path))[0], $first, 'with the place that it had');
		is($s->value(give($kind, $path)), 't', 'and given back');
		nothing_left('no watch on a node that will never be');
		$other->delete($behind);
	});

# ------------------------------------------------------- order, predecessors

# A node of another client, by the prefix of its name
sub foreign
{
	my ($path, $prefix, $mode) = @_;
	return scalar $other->create("/zklock$path/$prefix", mode => $mode // 'ephemeral_sequential');
}

# Directories for other clients' nodes
sub make_dirs { $other->delete($other->contend("/zklock$_[0]")); return; }

sub leave { $other->delete($_) for @_; return; }

edge 'the right nodes are watched, whatever their names sort like' => sub {
	my $path = new_path();
	make_dirs($path);
	my $s = warm_session();
	my @queue = map { foreign($path, $_) } "_c_z-other-lock-", "0other__rlock__", "other__lock__", "a-other-config-",
	  "_c_other-__READ__", 'x-0other-';
	# no contender, or one for something else
	my $sem = foreign($path, "_c_$UUID-semaphore-1-");

	$s->send(take('exclusive', $path));
	my ($own) = wait_for_blocker($path, @queue[ 4, 2 ]);
	is_deeply([ sort(watched()) ], [ sort $own, @queue[ 4, 2 ] ], 'exclusive: the two before it')
	  or diag(join "\n", @queue, 'watched:', watched());
	$s->cancel($admin);
	nothing_left('nothing is left');

	$s->send(take('shared', $path));
	($own) = wait_for_blocker($path, $queue[2]);
	is_deeply([ sort(watched()) ], [ sort $own, @queue[ 2, 0 ] ], 'shared: the two writers before it')
	  or diag(join "\n", @queue, 'watched:', watched());
	leave($queue[2]);
	zk_until(sub { "@{[ sort(watched()) ]}" eq join ' ', sort $own, $queue[0] }, 'the other one');
	ok(!$s->is_done, 'and the other one when one has gone');
	leave($queue[0]);
	is($s->wait->{out}, 't', 'then it is had, beside other readers');
	$s->value(give('shared', $path));
	leave($sem, @queue);

	# holders 0 1, waiters 2 3, and we: the one right before us tells
	@queue = map { foreign($path, "_c_$_" . $UUID_TAIL . '-semaphore-2-') } 'f', 'd', 'b', 'a';
	$s->send("SELECT zk_semaphore_acquire('$path', 2)");
	($own) = wait_for_blocker($path, $queue[3]);
	is_deeply([ sort(watched()) ], [ sort $own, $queue[3] ], 'semaphore: the waiter before it')
	  or diag(join "\n", @queue, 'watched:', watched());
	leave(@queue[ 0, 2 ]);
	$other->set($queue[3], "zklock\ngranted\n");
	zk_until(sub { !grep { $_ eq $queue[3] } watched() }, 'nobody to be watched');
	ok(!$s->is_done, 'a place that a waiter takes is not ours');
	leave($queue[1]);
	is($s->wait->{out}, 't', 'the next one is');
	$s->value(give('semaphore', $path));
	leave($queue[3]);

	# it claims a place that does not exist: we do not believe it, nor ask all
	# the time
	@queue = map { foreign($path, "_c_$_" . $UUID_TAIL . '-semaphore-2-') } 'f', 'd', 'b', 'a';
	$other->set($queue[3], "zklock\ngranted\n");
	$s->send("SELECT zk_semaphore_acquire('$path', 2)");
	zk_until(sub { own_nodes($path) }, 'its node');
	zk_wait_queued($zk, $s);
	($own) = own_nodes($path);
	zk_until(sub { "@{[ watched() ]}" eq $own }, 'it watches its own node, and the directory');
	my $asked = $proxy->count('*');
	sleep 0.3;
	cmp_ok($proxy->count('*'), '<=', $asked + 2, 'a lie does not make it ask again and again');
	leave(@queue[ 2, 1 ]);
	ok(!$s->is_done, 'nor hold');
	leave($queue[3]);
	is($s->wait->{out}, 't', 'it holds when it may');
	$s->value(give('semaphore', $path));
	leave($queue[0]);

	# one of them has another number of permits: the waiters come first
	@queue = map { foreign($path, "_c_$_" . $UUID_TAIL . '-semaphore-' . ($_ eq 'f' ? 3 : 2) . '-') } 'f', 'd', 'b', 'a';
	$s->send("SELECT zk_semaphore_acquire('$path', 2)");
	($own) = wait_for_blocker($path, @queue[ 2, 3 ]);
	is_deeply([ sort(watched()) ], [ sort $own, @queue[ 2, 3 ] ], 'semaphore: as many as it has places, waiters first')
	  or diag(join "\n", @queue, 'watched:', watched());
	leave($queue[2]);
	wait_for_blocker($path, $queue[3]);
	leave($queue[0]);
	zk_until(sub { grep { $_ eq $queue[1] } watched() }, 'a holder');
	ok(!$s->is_done, 'a place that a waiter takes is not ours');
	leave($queue[1]);
	is($s->wait->{out}, 't', 'the next one is');
	$s->value(give('semaphore', $path));
	leave(@queue);
	$s->quit;
	nothing_left('nothing is left');
};

edge 'a reader does not wait for a later writer (kazoo#649)' => sub {
	my $path = new_path();
	my ($holder, $reader, $writer, $late) = map { warm_session() } 1 .. 4;
	$holder->value(take('exclusive', $path));
	$reader->send(take('shared', $path));
	zk_until(sub { own_nodes($path) == 2 }, 'the reader');
	$writer->send(take('exclusive', $path));
	zk_until(sub { own_nodes($path) == 3 }, 'the writer');
	$late->send(take('shared', $path));
	zk_until(sub { own_nodes($path) == 4 }, 'the late reader');
	$holder->value(give('exclusive', $path));
	is($reader->wait->{out}, 't', 'the reader before the writer has it');
	ok(!$writer->is_done && !$late->is_done, 'the writer waits, and the reader behind it');
	$reader->value(give('shared', $path));
	is($writer->wait->{out}, 't', 'the writer has it');
	ok(!$late->is_done, 'the reader behind it waits');
	$writer->value(give('exclusive', $path));
	is($late->wait->{out}, 't', 'and has it last');
	$late->value(give('shared', $path));

	# the same with another client's writer, in each naming style
	foreach my $prefix ("_c_other$UUID-lock-", "other${HEX}__lock__", "_c_other$UUID-__WRIT__", 'other-lock-')
	{
		$holder->value(take('exclusive', $path));
		$reader->send(take('shared', $path));
		zk_until(sub { own_nodes($path) == 2 }, 'the reader');
		my $foreign = foreign($path, $prefix);
		$holder->value(give('exclusive', $path));
		is($reader->wait->{out}, 't', "a reader does not wait for $prefix");
		is($late->value(take('shared', $path, '0')), 'f', 'nor does it let others in');
		$reader->value(give('shared', $path));
		leave($foreign);
	}
	$_->quit for $holder, $reader, $writer, $late;
	nothing_left('nothing is left');
};

foreach my $style (qw(curator curator_rw kazoo))
{
	edge "a downgrade lets no writer in (CURATOR-276), style $style" => sub {
		my $path = new_path();
		my %s = map { $_ => warm_session(node_style => $style) } qw(holder early writer late judge);
		$s{holder}->value(take('exclusive', $path));
		$s{holder}->value(take('shared', $path));
		my $token = $s{holder}->value("SELECT zk_lock_token('$path')");
		my $n = 1;
		foreach my $who (qw(early writer late))
		{
			$s{$who}->send(take($who eq 'writer' ? 'exclusive' : 'shared', $path));
			$n++;
			zk_until(sub { own_nodes($path) == $n }, $who);
		}
		ok(!$s{early}->is_done, 'a reader waits for the writer');
		is($s{holder}->value(give('exclusive', $path)), 't', 'which becomes a reader');
		is($s{early}->wait->{out}, 't', 'the reader passes');
		is($s{judge}->value(take('exclusive', $path, '1s')), 'f', 'no writer does');
		is($s{judge}->value(take('shared', $path, '1s')), 'f', 'nor a reader behind a writer');
		ok(!$s{writer}->is_done && !$s{late}->is_done, 'those who were there wait, too');
		is($s{holder}->value("SELECT zk_lock_token('$path')"), $token, 'the token is the same');
		is($s{holder}->value("SELECT string_agg(mode || ' ' || state, ',') FROM zk_locks"), 'shared held', 'held, shared');
		$s{early}->value(give('shared', $path));
		is($s{judge}->value(take('exclusive', $path, '1s')), 'f', 'the last reader keeps writers out');
		ok(!$s{writer}->is_done, 'all of them');
		$s{holder}->value(give('shared', $path));
		is($s{writer}->wait->{out}, 't', 'then the writer has it');
		ok(!$s{late}->is_done, 'and the reader behind it waits');
		$s{writer}->value(give('exclusive', $path));
		is($s{late}->wait->{out}, 't', 'to the end');
		$s{late}->value(give('shared', $path));
		$_->quit for values %s;
		nothing_left('nothing is left');
	};
}

# Curator's own: a reader with the writer's number, then the writer's node goes.
foreach my $style (qw(curator curator_rw kazoo))
{
	edge "two with one number, style $style" => sub {
		my $path = new_path();
		make_dirs($path);
		my ($writer, $reader, $semaphore) = map { warm_session(node_style => $style) } 1 .. 3;
		my $theirs = foreign($path, "_c_other$UUID-__WRIT__");
		$reader->send(take('shared', $path));
		zk_until(sub { own_nodes($path) == 1 }, 'the reader');
		$writer->send(take('exclusive', $path));
		wait_for_blocker($path, (own_nodes($path))[0]);
		my $as_reader = $theirs =~ s/__WRIT__/__READ__/r;
		$other->create($as_reader, mode => 'ephemeral');
		ok(!$reader->is_done && !$writer->is_done, 'both wait');
		leave($theirs);
		is($reader->wait->{out}, 't', 'the reader passes');
		$reader->value(give('shared', $path));
		zk_until(sub { grep { $_ eq $as_reader } watched() }, 'the writer');
		ok(!$writer->is_done, 'the writer does not');
		leave($as_reader);
		is($writer->wait->{out}, 't', 'until that one goes');
		is($reader->value(take('shared', $path, '0')), 'f', 'and then it excludes others');
		$writer->value(give('exclusive', $path));
		$_->quit for $writer, $reader, $semaphore;
		nothing_left('nothing is left');
	};
}

# The list dates from a time when our node had gone already.
for_kinds(
	'a list without ourselves (CURATOR-211)' => sub {
		my ($kind, $path, $s) = @_;
		$proxy->hold_request('getChildren');
		$s->send(take($kind, $path));
		$proxy->wait_held;
		my ($first) = zk_until(sub { (own_nodes($path))[0] }, 'the node');
		$other->delete($first);
		my $blocker = block($kind, $path);
		$proxy->release;
		my ($again) = wait_for_blocker($path, $blocker);
		isnt($again, $first, 'it queues again');
		ok(!$s->is_done, 'behind who is there now');
		leave($blocker);
		is($s->wait->{out}, 't', 'and has it then');
		is($s->value(give($kind, $path)), 't', 'and gives it back');
	});

# A reader that becomes a writer has two nodes, and waits with the second one.
edge 'an upgrade that waits' => sub {
	my $path = new_path();
	make_dirs($path);
	my $s = warm_session(session_timeout => '4s');    # so that it can notice a loss
	my $late = warm_session();
	my $upgrade = take('exclusive', $path);
	$s->value(take('shared', $path));
	my ($shared) = own_nodes($path);
	my $is_reader = sub {
		my ($what) = @_;
		ok(eval { zk_until(sub { "@{[ own_nodes($path) ]}" eq $shared }, 'one node', $MOMENT) }, "$what: its second node goes")
		  or diag(own_nodes($path));
		is($s->value(q{SELECT string_agg(mode || ' ' || state || ' ' || count, ',') FROM zk_locks}), 'shared held 1',
			"$what: it is a reader as before");
	};
	my $reader = foreign($path, '_c_other-__READ__');
	$s->send($upgrade);
	zk_until(sub { grep { $_ eq $reader } watched() }, 'the upgrade waits');
	is($s->cancel($admin)->{state}, '57014', 'cancelled');
	$is_reader->('cancelled');
	is($s->value(take('exclusive', $path, '1s')), 'f', 'timeout: false');
	$is_reader->('timeout');
	is($s->value(take('exclusive', $path, '0')), 'f', 'no time: false');
	$is_reader->('no time');

	# its second node is deleted, and it queues again: behind a writer by then
	$s->send($upgrade);
	zk_until(sub { grep { $_ eq $reader } watched() }, 'the upgrade waits');
	my $writer = foreign($path, '_c_other-lock-');
	ok(!$s->is_done, 'a writer who comes later does not matter');
	leave(grep { $_ ne $shared } own_nodes($path));
	is($s->wait->{state}, '40P01', 'its node deleted: it would wait for one who waits for it');
	$is_reader->('40P01');
	my $result = $s->query($upgrade);
	is($result->{state}, '40P01', 'where a writer waits already: 40P01');
	in_time($result->{seconds}, $SLACK, 'at once');
	is($s->value("SELECT zk_try_lock('$path')"), 'f', 'a try: false');
	is($s->value(take('exclusive', $path, '0')), 'f', 'as without time');
	$is_reader->('a writer waits');
	leave($writer);
	leave(grep { $_ ne $shared } own_nodes($path));

	$s->send($upgrade);
	zk_until(sub { grep { $_ eq $reader } watched() }, 'the upgrade waits');
	$late->send($upgrade);
	zk_until(sub { own_nodes($path) == 3 }, 'a late writer');
	leave($reader);
	is($s->wait->{out}, 't', 'the other reader gone, it is had');
	ok(!$late->is_done, 'before one who came later');
	is($s->value(give('exclusive', $path)), 't', 'given back');
	ok(!$late->is_done, 'who still waits for the reader');
	is($s->value(give('shared', $path)), 't', 'given back');
	is($late->wait->{out}, 't', 'and then has it');
	$late->value(give('exclusive', $path));

	# the first node is deleted: its lock is lost, and only that
	$s->value(take('shared', $path));
	($shared) = own_nodes($path);
	$reader = foreign($path, '_c_other-__READ__');
	$s->send($upgrade);
	zk_until(sub { grep { $_ eq $reader } watched() }, 'the upgrade waits');
	leave($shared);
	leave($reader);
	$result = $s->wait;
	zk_until(sub { $s->value(q{SELECT state FROM zk_locks WHERE mode = 'shared'}) eq 'lost' }, 'the loss');
	is($s->value(q{SELECT state FROM zk_locks WHERE mode = 'exclusive'}), $result->{out} eq 't' ? 'held' : '',
		"its reader's node deleted: that is lost, not what it waited for");
	ok(zk_until(sub { own_nodes($path) == ($result->{out} eq 't' ? 1 : 0) }, 'as many nodes'), 'as its nodes say');
	$s->query('SELECT zk_unlock_all()');
	is($s->value('SELECT count(*) FROM zk_locks'), 0, 'all is given back');
	$_->quit for $s, $late;
	nothing_left('nothing is left');
};

# ----------------------------------------------------------------------- herd

# What happens until all is quiet again: requests, events
sub cost_of
{
	my ($code, $until) = @_;
	$proxy->clear_log;
	$code->();
	$until->();
	quiet($proxy);
	my @log = $proxy->log;
	return (scalar(grep { $_->[1] eq '>' } @log), scalar(grep { $_->[2] eq 'event' } @log), \@log);
}

edge 'no herd' => sub {
	my $N = 20;
	my $path = new_path();
	# its COMMIT does not ask, and no heartbeat comes in between
	my $session = sub { return warm_session(commit_guard => 'on', session_timeout => '1h'); };
	my $holder = $session->();
	my @s = map { $session->() } 1 .. $N;
	my $settled = sub {
		my ($n) = @_;
		zk_until(sub { own_nodes($path) == $n }, "$n nodes");
		zk_wait_queued($zk, grep { !$_->is_done } @s);
		my $before = -1;
		zk_until(sub { my $now = $proxy->count('*'); my $same = $now == $before; $before = $now; $same }, 'quiet');
	};

	$holder->value(take('exclusive', $path));
	foreach my $i (0 .. $#s)
	{
		$s[$i]->send(take('exclusive', $path));
		zk_until(sub { own_nodes($path) == $i + 2 }, 'the queue');
	}
	$settled->($N + 1);
	my ($requests, $events) = cost_of(sub { $holder->value(give('exclusive', $path)) }, sub { $s[0]->wait });
	note "$N writers behind one: a release costs $requests requests, $events events";
	cmp_ok($requests, '<=', 4, "$N writers behind one: a release is a delete and a look");
	cmp_ok($events, '<=', 3, 'and wakes two');
	($requests, $events) = cost_of(sub { $s[$_]->cancel($admin) for 5 .. 9; }, sub { });
	note "five of them give up: $requests requests, $events events";
	cmp_ok($requests, '<=', 5 * 10, 'who gives up costs no more');
	foreach my $i (0 .. 4, 10 .. $#s)
	{
		$s[$i]->wait if $i;
		$s[$i]->value(give('exclusive', $path));
	}

	$holder->value(take('exclusive', $path));
	$_->send(take('shared', $path)) for @s;
	$settled->($N + 1);
	($requests, $events) = cost_of(sub { $holder->value(give('exclusive', $path)) }, sub { $_->wait for @s });
	note "$N readers behind a writer: a release costs $requests requests, $events events";
	cmp_ok($requests, '<=', 3, "$N readers behind a writer: none has to ask");
	cmp_ok($events, '<=', $N + 1, 'and each is woken once');
	my $writer = $session->();
	$writer->send(take('exclusive', $path));
	$settled->($N + 1);
	($requests, $events) = cost_of(sub { $_->value(give('shared', $path)) for @s }, sub { $writer->wait });
	note "a writer behind $N readers: all their releases cost $requests requests, $events events";
	cmp_ok($requests, '<=', $N + 4 * $N, "a writer behind $N readers is not told of each many times");
	$writer->value(give('exclusive', $path));

	foreach my $permits (1, 3, 10)
	{
		my $call = "SELECT zk_semaphore_acquire('$path', $permits)";
		my @holder = map { $session->() } 1 .. $permits;
		$_->value($call) for @holder;
		foreach my $i (0 .. $#s)
		{
			$s[$i]->send($call);
			zk_until(sub { own_nodes($path) == $i + 1 + $permits }, 'the queue');
		}
		$settled->($N + $permits);
		foreach my $i (0 .. 2)
		{
			my $who = $permits > 1 ? $holder[ -1 - ($i % 2 ? 0 : $i) ] : $i ? $s[ $i - 1 ] : $holder[0];
			next if $permits > 1 && $i == 1;
			($requests, $events) = cost_of(sub { $who->value(give('semaphore', $path)) }, sub { $s[ $permits > 1 && $i == 2 ? 1 : $i ]->wait });
			note "$N waiters for $permits places: a release costs $requests requests, $events events";
			cmp_ok($requests, '<=', 1 + 4 * $permits + 4, "semaphore of $permits: the cost does not depend on who waits");
			cmp_ok($events, '<=', $permits + 2, 'no more than its places are woken');
		}
		my $done = grep { $_->is_done } @s;
		is($done, $permits > 1 ? 2 : 3, 'each freed place was given to one');
		# the holders release until all had their turn
		my @left = @s;
		$_->value('SELECT zk_unlock_all()') for @holder;
		while (@left)
		{
			my $next = shift @left;
			$next->wait unless $next->is_done && !$next->{mark};
			$next->value('SELECT zk_unlock_all()');
		}
		$_->quit for @holder;
		nothing_left("semaphore of $permits: nothing is left");
	}
	$_->quit for $holder, $writer, @s;
	nothing_left('nothing is left');
};

# -------------------------------------------------------------------- parents

# Remove all below this, at one moment as far as clients can see: the events of
# a later deletion would make them come back before the directory goes.
sub remove_unseen
{
	my ($path, @first) = @_;
	$proxy->hold_event;
	$other->delete($_) for @first;
	$other->delete_tree("/zklock$path");
	return;
}

for_kinds(
	'the directory is removed while it waits' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path));
		my ($first) = wait_for_blocker($path, $blocker);
		# its own first: with the others gone it would hold for a moment
		remove_unseen($path, $first);
		$proxy->release;
		is($s->wait->{out}, 't', 'it begins anew, and has it');
		is(scalar own_nodes($path), 1, 'with one node');
		is($s->value(q{SELECT bool_and(state = 'held') FROM zk_locks}), 't', 'held');
		is($s->value(give($kind, $path)), 't', 'and given back');
	});

for_kinds(
	'the directory is removed and made again while it waits' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path));
		my ($first) = wait_for_blocker($path, $blocker);
		remove_unseen($path, $first);
		my $new = block($kind, $path);
		$proxy->release;
		my ($again) = wait_for_blocker($path, $new);
		isnt($again, $first, 'it queues again');
		ok(!$s->is_done, 'behind who is there now');
		$other->delete($new);
		is($s->wait->{out}, 't', 'and has it then');
		is($s->value(give($kind, $path)), 't', 'and gives it back');
	});

# zk-ruby#34: the new directory gives the same numbers again.
for_kinds(
	'giving back after the directory was made again takes nothing from others' => sub {
		my ($kind, $path, $s) = @_;
		my $new = warm_session();
		$other->delete_tree("/zklock$_$path") for @{ $kind{$kind}{paths} // [''] };
		$s->value(take($kind, $path));
		my $old_token = $s->value("SELECT token FROM zk_locks WHERE path = '$path'");
		my ($old) = own_nodes($path);
		$other->delete_tree("/zklock$_$path") for @{ $kind{$kind}{paths} // [''] };
		is($new->value(take($kind, $path)), 't', 'another one has it');
		my $unlock = $kind{$kind}{unlock} // 'zk_unlock';
		foreach (@{ $kind{$kind}{paths} // [''] })
		{
			my $result = $s->query("SELECT $unlock('$_$path')");
			is($result->{state}, '', 'giving back what is gone is no error');
		}
		my @now = own_nodes($path);
		is(@now, 1, 'the new one keeps its node');
		is((sort map { s/.*(\d{10})$/$1/r } @now)[0], $old =~ s/.*(\d{10})$/$1/r, 'which has the number of the old one');
		cmp_ok($new->value("SELECT token FROM zk_locks WHERE path = '$path'"), '>', $old_token, 'and a greater token');
		is($new->value(q{SELECT bool_and(state = 'held') FROM zk_locks}), 't', 'and its hold');
		is($new->value(give($kind, $path)), 't', 'which it gives back');
		$new->quit;
	});

for_kinds(
	'no two attempts have the same name' => sub {
		my ($kind, $path, $s) = @_;
		my @name;
		foreach (1 .. 5)
		{
			$s->value(take($kind, $path));
			push @name, map { s/\d{10}$//r } own_nodes();
			$s->value(give($kind, $path));
			nothing_left('gone');
		}
		is(scalar(uniq @name), scalar @name, 'all names differ in more than the number');
	});

edge 'children of a lock' => sub {
	my $s = warm_session();
	my $t = warm_session();
	my $path = new_path();
	make_dirs($path);
	# CURATOR-43: "0" sorted before all
	my @child = map { "/zklock$path/$_" } '0', '0000000000', 'config', 'lock', 'lock-', 'lock-5', "_c_$UUID", 'b';
	$other->create($_, mode => 'persistent', data => 'mine') for @child;
	push @child, foreign($path, 'other-');
	push @child, foreign($path, "_c_$UUID-other-lease-");
	push @child, foreign($path, 'latch-other-');
	foreach my $kind (@kinds)
	{
		is($s->value(take($kind, $path, '0')), 't', "$kind: is not blocked by what is no contender");
		is($t->value(take($kind, $path, '1s')), 'f', "$kind: but by who is")
		  unless $kind eq 'shared';
		$s->value(give($kind, $path));
	}
	is(scalar(grep { $other->exists($_) } @child), @child, 'all of it is still there');
	$other->delete($_) for @child;

	foreach my $kind (@kinds)
	{
		is($s->value(take($kind, $path) . '; ' . take($kind, "$path/b") . '; ' . take($kind, "$path/b/c")), "t\nt\nt",
			"$kind: a lock, one below it and one below that");
		is($t->value(take('exclusive', "$path/x", '0')), 't', 'and a sister');
		is($t->value(take('exclusive', $path =~ s{/[^/]+$}{}r, '0')), 't', 'and their parent');
		$_->value('SELECT zk_unlock_all()') for $s, $t;
	}
	$_->quit for $s, $t;
	nothing_left('nothing is left');
};

foreach my $style (qw(curator curator_rw kazoo))
{
	edge "a semaphore and a lock on one path do not see each other, style $style" => sub {
		my ($s, $t, $u) = map { warm_session(node_style => $style) } 1 .. 3;
		my $path = new_path();
		foreach my $kind ('exclusive', 'shared')
		{
			is($s->value(take($kind, $path, '0')), 't', "$kind: held");
			is($t->value(take('semaphore', $path, '0')), 't', 'the only place of a semaphore as well');
			is($s->value(take('semaphore', $path, '0')), 'f', 'which is taken then');
			is($u->value(take('exclusive', $path, '0')), 'f', 'as is the lock');
			$u->send(take('exclusive', $path));
			zk_wait_queued($zk, $u);
			$t->value(give('semaphore', $path));
			is($s->value(take('semaphore', $path, '0')), 't', 'one session has both');
			ok(!$u->is_done, 'a release of the one wakes nobody who waits for the other');
			is($s->value(give($kind, $path)), 't', 'the lock is given back');
			is($u->wait->{out}, 't', 'and had by who waits');
			is($u->value(take('semaphore', $path, '0')), 'f', 'the semaphore not');
			$_->value('SELECT zk_unlock_all()') for $s, $u;
		}
		$_->quit for $s, $t, $u;
		nothing_left('nothing is left');
	};
}

# ------------------------------------------------------- several locks at once

edge '(a, b) against (b, a)' => sub {
	my ($a, $b) = (new_path(), new_path());
	my @s = map { warm_session() } 1 .. 6;
	my @order = ("{$a,$b}", "{$b,$a}", "{$a,$b,$a}");
	foreach my $i (0 .. $#s)
	{
		my $paths = $order[ $i % 3 ];
		$s[$i]->send(<<~"SQL");
			DO \$\$ BEGIN FOR i IN 1 .. 50 LOOP
				PERFORM zk_xact_lock_all('$paths');
				IF (SELECT string_agg(count || ' ' || state, ',') FROM zk_locks) <> '1 held,1 held' THEN RAISE 'not both'; END IF;
				COMMIT;
			END LOOP; END \$\$
			SQL
	}
	is(join(' ', map { $_->wait->{err} } @s), ' ' x $#s, 'all come through');

	# and with sessions that take the same ones one by one, in byte order
	my ($first, $second) = sort $a, $b;
	foreach my $i (0 .. $#s)
	{
		my $how = $i % 2 ? "zk_xact_lock_all('$order[1]')" : "zk_xact_lock('$first'), zk_xact_lock('$second')";
		$s[$i]->send("DO \$\$ BEGIN FOR i IN 1 .. 50 LOOP PERFORM $how; COMMIT; END LOOP; END \$\$");
	}
	is(join(' ', map { $_->wait->{err} } @s), ' ' x $#s, 'beside those who take them one by one');

	is($s[0]->value("SELECT zk_lock_all('{$a,$b,$a,$a}')"), 't', 'doubles');
	is($s[0]->value('SELECT sum(count) FROM zk_locks'), 2, 'count once');
	is($s[0]->value("SELECT zk_lock_all('{}')"), 't', 'nothing is had at once');
	is($s[0]->value('SELECT zk_unlock_all()'), 2, 'and given back');
	$_->quit for @s;
	nothing_left('nothing is left');
};

edge 'all or none' => sub {
	my ($s, $t) = map { warm_session() } 1, 2;
	my @path = map { new_path() } 1 .. 4;
	@path = sort @path;
	my $all = '{' . join(',', reverse @path) . '}';
	foreach my $i (0 .. $#path)
	{
		$t->value(take('exclusive', $path[$i]));
		my $mine = join ' ', own_nodes();
		is($s->value("SELECT zk_lock_all('$all', '1s')"), 'f', "number $i is taken: false");
		zk_until(sub { join(' ', own_nodes()) eq $mine }, 'none is left');
		is($s->value("SELECT zk_lock_all('$all', '0')"), 'f', 'as without waiting');
		is($s->query("SET lock_timeout = '100ms'; SELECT zk_lock_all('$all')")->{state}, '55P03', 'lock_timeout: an error');
		zk_until(sub { join(' ', own_nodes()) eq $mine }, 'none is left');
		is($s->value('RESET lock_timeout; SELECT count(*) FROM zk_locks'), 0, 'nor a hold');

		# the waiter keeps what comes before, and blocks nobody from what comes
		# after
		$s->send("SELECT zk_lock_all('$all')");
		wait_for_blocker($path[$i], $mine);
		my $judge = warm_session();
		is(join('', map { $judge->value(take('exclusive', $_, '0')) } @path), 'f' x ($i + 1) . 't' x ($#path - $i),
			'while it waits, nobody is kept from what comes later');
		$judge->value('SELECT zk_unlock_all()');
		$judge->quit;
		$t->value(give('exclusive', $path[$i]));
		is($s->wait->{out}, 't', 'then it has all');
		is($s->value('SELECT zk_unlock_all()'), 4, 'and gives them back');
	}
	nothing_left('nothing is left');

	# an error for one of them
	foreach my $i (0 .. $#path)
	{
		make_dirs($_) for @path;
		$other->set_acl("/zklock$path[$i]", [ [ READ | ADMIN, 'world', 'anyone' ] ]);
		my $result = $s->query("SELECT zk_lock_all('$all')");
		is($result->{state}, '42501', "number $i is closed to us: 42501");
		like($result->{message}, qr/"\Q$path[$i]\E"/, 'which is named');
		nothing_left('none is left');
		$other->set_acl("/zklock$path[$i]", [ [ ALL, 'world', 'anyone' ] ]);
		is($s->value("SELECT zk_lock_all('$all')"), 't', 'open again, all are had');
		is($s->value('SELECT zk_unlock_all()'), 4, 'and given back');
	}
	# what it held before stays
	$s->value(take('exclusive', $path[1]));
	$t->value(take('exclusive', $path[2]));
	is($s->value("SELECT zk_lock_all('$all', '1s')"), 'f', 'one was held before, another one is taken: false');
	is($s->value('SELECT path || count FROM zk_locks'), "$path[1]1", 'the one from before is held as before');
	$_->quit for $s, $t;
	nothing_left('nothing is left');
};

edge 'a closed parent' => sub {
	my $s = warm_session();
	make_dirs('/edge');
	$other->create('/zklock/edge/closed', mode => 'persistent', acl => [ [ READ, 'world', 'anyone' ] ]);
	foreach my $kind (@kinds)
	{
		my $k = $kind{$kind};
		foreach my $path ('/edge/closed', '/edge/closed/a', '/edge/closed/a/b')
		{
			my $result = $s->query(take($kind, $path));
			is($result->{state}, '42501', "$kind: $path: 42501");
			in_time($result->{seconds}, 5, 'at once, and not again and again');
			nothing_left('nothing is left');
		}
	}
	is(join(' ', $zk->tree('/zklock/edge/closed')), '', 'no directory was made');
	$other->delete('/zklock/edge/closed');
	$s->quit;
};

edge 'a root instead of a chroot' => sub {
	foreach my $root ('/', '/edge root/a')
	{
		my $s = zk_session($node, options => "-c zklock.root=" . $root =~ s/ /\\ /r);
		foreach my $kind (@kinds)
		{
			my $path = "/rooted/$kind";
			is($s->value(take($kind, $path)), 't', "root $root, $kind: had");
			my @own = own_nodes();
			is((grep { !m{^\Q$root\E} } @own), 0, 'below the root');
			is($s->value(give($kind, $path)), 't', 'and given back');
			nothing_left('nothing is left');
		}
		$s->quit;
	}
};

edge 'a server that writes other digits' => sub {
	my $arabic = ZooKeeper->new(java_options => [ '-Duser.language=ar', '-Duser.country=EG', '-Duser.language.format=ar',
			'-Duser.country.format=EG', '-Djava.locale.providers=CLDR' ])->start;
	my ($s, $t) = map { warm_session(hosts => $arabic->hosts) } 1, 2;
	foreach my $kind (@kinds)
	{
		is($s->value(take($kind, '/digits')), 't', "$kind: had");
		is($t->value(take($kind, '/digits', '1s')), 'f', 'and excludes others') unless $kind eq 'shared';
		like($s->value('SELECT node FROM zk_locks LIMIT 1'), qr/\d{10}$/a, 'a node as everywhere');
		is($s->value(give($kind, '/digits')), 't', 'and given back');
	}
	$_->quit for $s, $t;
	$arabic->stop;
};

# ZOOKEEPER-2355: the node of a session that is over stays.
for_kinds(
	'a node of nobody' => sub {
		my ($kind, $path, $s) = @_;
		make_dirs($path);
		my $dangling = foreign($path, $kind{$kind}{node}, 'persistent_sequential');
		is($s->value(take($kind, $path, '1s')), 'f', 'it blocks');
		$s->send(take($kind, $path));
		wait_for_blocker($path, $dangling);
		$other->delete($dangling);
		is($s->wait->{out}, 't', 'until it is deleted');
		is($s->value(give($kind, $path)), 't', 'and given back');
	});

# ------------------------------------------------------------ rules for names

# Prefix => what it is: exclusive, shared, semaphore, or nothing
my %marker = (
	"_c_$UUID-lock-" => 'exclusive',                # Curator's mutex, zklock
	"_c_$HEX-lock-" => 'exclusive',                 # go-zk
	'lock-' => 'exclusive',                         # Menagerie, madelson
	'x-00000234abcdef01-' => 'exclusive',           # ZooKeeper's recipe in C
	'x-72057645343932416-' => 'exclusive',          # and in Java
	'x--72057645343932416-' => 'exclusive',
	"${HEX}__lock__" => 'exclusive',                # kazoo's Lock and WriteLock
	"${HEX}__rlock__" => 'shared',                  # kazoo's ReadLock
	"_c_$UUID-__WRIT__" => 'exclusive',             # Curator's read-write lock
	"_c_$UUID-__READ__" => 'shared',
	"_c_$UUID-shared-lock-" => 'shared',            # zklock
	"_c_$UUID-semaphore-1-" => 'semaphore',
	"_c_$UUID-lease-" => '',                        # Curator's semaphore
	"_c_$UUID-latch-" => '',                        # and leader latch
	'ex' => '',                                     # zk-ruby, elsewhere
	'read-' => '',
	'other-' => '');

my %excluded_by = (
	exclusive => { exclusive => 1, shared => 1 },
	shared => { exclusive => 1 },
	semaphore => { semaphore => 1 },
	all => { exclusive => 1, shared => 1 });

foreach my $style (qw(curator curator_rw kazoo))
{
	edge "everybody's nodes, style $style" => sub {
		my %s = map { $_ => warm_session(node_style => $style) } @kinds;
		my $after = warm_session(node_style => $style);
		my $theirs = $zk->client(session_timeout => 60_000);    # whose names say nothing
		my $all_own = sub {
			my %session = $zk->ephemerals;
			delete $session{ $theirs->session_id };
			return map { @$_ } values %session;
		};
		foreach my $prefix (sort keys %marker)
		{
			my $path = new_path();
			make_dirs($path);
			my $foreign = $theirs->create("/zklock$path/$prefix", mode => 'ephemeral_sequential');
			my (%expected, %got, %waits);
			foreach my $kind (@kinds)
			{
				my $blocked = $excluded_by{$kind}{ $marker{$prefix} } // 0;
				$got{$kind} = $s{$kind}->value(take($kind, $path, '0'));
				$expected{$kind} = $blocked ? 'f' : 't';
				$s{$kind}->value('SELECT zk_unlock_all()');
			}
			is_deeply(\%got, \%expected, "$prefix is " . ($marker{$prefix} || 'nothing'))
			  or diag explain \%got;

			# joining the queue is another way to test it
			foreach my $kind (grep { $expected{$_} eq 'f' } @kinds)
			{
				$s{$kind}->send(take($kind, $path));
				zk_until(sub { grep { $_ eq $foreign } watched() }, "$kind waits for it");
				ok(!$s{$kind}->is_done, "$kind waits for it");
				$theirs->delete($foreign);
				is($s{$kind}->wait->{out}, 't', 'and has it when that is gone');
				# contenders behind us do not matter
				my $behind = $theirs->create("/zklock$path/$prefix", mode => 'ephemeral_sequential');
				is($s{$kind}->value(q{SELECT bool_and(state = 'held') FROM zk_locks}), 't', 'held');
				$s{$kind}->value('SELECT zk_unlock_all()');
				zk_until(sub { !$all_own->() }, 'given back');
				$foreign = $behind;
			}
			$theirs->delete($foreign);
		}
		$theirs->close;
		$_->quit for values %s, $after;
		nothing_left('nothing is left');
	};
}

# Rule 4: others take every child for a contender.
foreach my $style (qw(curator curator_rw kazoo))
{
	my %name = (
		curator => [ qr/^_c_[-0-9a-f]{36}-lock-\d{10}$/, qr/^_c_[-0-9a-f]{36}-shared-lock-\d{10}$/ ],
		curator_rw => [ qr/^_c_[-0-9a-f]{36}-__WRIT__\d{10}$/, qr/^_c_[-0-9a-f]{36}-__READ__\d{10}$/ ],
		kazoo => [ qr/^[0-9a-f]{32}__lock__\d{10}$/, qr/^[0-9a-f]{32}__rlock__\d{10}$/ ]);
	edge "nothing but contenders in a directory, style $style" => sub {
		my ($s, $t) = map { warm_session(node_style => $style) } 1, 2;
		foreach my $kind (@kinds)
		{
			my $path = new_path();
			my $name = $kind eq 'semaphore' ? qr/^_c_[-0-9a-f]{36}-semaphore-1-\d{10}$/ : $name{$style}[ $kind eq 'shared' ];
			$s->value(take($kind, $path));
			$t->send(take($kind, $path, '200ms'));
			my @seen;
			push @seen, $zk->children("/zklock$path") until $t->is_done;
			$t->wait;
			push @seen, $zk->children("/zklock$path");
			is(join(' ', grep { !/$name/ } uniq @seen), '', "$kind: as the style says");
			$_->value('SELECT zk_unlock_all()') for $s, $t;
		}
		$_->quit for $s, $t;
		nothing_left('nothing is left');
	};
}

# Rule 6: Curator asks a holder to release by its node's data.
for_kinds(
	'the data of the node before us changes' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path, '3s'));
		my $began = time;
		my ($own) = wait_for_blocker($path, $blocker);
		my $n = 0;
		until ($s->is_done)
		{
			$other->set($blocker, $n++ % 2 ? '__REVOKE__' : 'other');
			sleep 0.02;
		}
		is($s->wait->{out}, 'f', 'it waits on, until its time is over');
		in_time(time - $began, 3 + $SLACK, 'which does not begin again each time');
		cmp_ok($n, '>', 10, "though it was changed $n times");
		nothing_left('nothing is left');
		$s->send(take($kind, $path));
		wait_for_blocker($path, $blocker);
		$other->set($blocker, '__REVOKE__');
		$other->delete($blocker);
		is($s->wait->{out}, 't', 'and it is had when the node goes');
		is($s->value(give($kind, $path)), 't', 'and given back');
	});

# ------------------------------------------------------------------- the reaper

# Directories that are empty for a moment are reaped, and created again with new
# numbers.  Sessions of all styles share one queue.
my $reaped = ZooKeeper->new(container_check => 10)->start;
my @reaped_path = map { "/reaped/$_" } 'a', 'a/b', 'c', 'd/e', 'd/f', 'g';
turns_prepare($node);
turns_path(@reaped_path);

sub reaper
{
	my ($meanwhile, @hosts) = @_;
	my @style = qw(curator curator_rw kazoo);
	my @way = (@EXCLUSIVE_WAYS, @SHARED_WAYS, @SEMAPHORE_WAYS, 'all');
	my @s;
	foreach my $i (0 .. 8)
	{
		# a session whose close is lost lives on for its timeout
		my %setting = (hosts => $hosts[ $i % @hosts ], node_style => $style[ $i / 3 ], session_timeout => '8s', commit_guard => 'on');
		push @s, turns_session($node, options => join ' ', map { "-c zklock.$_=$setting{$_}" } sort keys %setting);
	}
	turns_forget();
	$s[$_]->send(turns_call('5 s', \@way, [ @reaped_path[ 2 * ($_ % 3), 2 * ($_ % 3) + 1 ] ])) for 0 .. $#s;
	$meanwhile->(@s);
	is(zk_few(grep { $_ } map { $_->wait->{message} } @s), '', 'no call failed');
	my @hold = turns_holds();
	turns_judge(@hold);
	turns_counted(@hold);
	my %how;
	$how{ $_->{way} }++ for @hold;
	is(join(', ', sort grep { $_ ne 'upgraded' } keys %how), join(', ', sort @way), 'in all ways');
	note scalar(@hold) . ' holds';
	$_->quit for @s;
	zk_nothing_left($reaped, 'nothing is left', sessions => 0);
	zk_until(sub { !grep { $_ ne '/zklock' } $reaped->tree('/') }, 'the directories to go');
	return;
}

edge 'a reaper every 10 ms does no harm' => sub {
	my %incarnation;
	reaper(
		sub {
			my $client = $reaped->client;
			while (grep { !$_->is_done } @_)
			{
				foreach my $path (@reaped_path)
				{
					my $stat = $client->exists("/zklock$path") or next;
					$incarnation{$path}{ $stat->{czxid} } = 1;
				}
				sleep 0.002;
			}
			$client->close;
		},
		$reaped->hosts);
	# a directory that contains another one is seldom empty
	cmp_ok(scalar keys %{ $incarnation{$_} // {} }, '>', 3, "$_ was removed and made again") for grep { !m{/a$} } @reaped_path;
	note 'directories seen: ' . join ', ', map { "$_ " . keys %{ $incarnation{$_} // {} } } @reaped_path;
};

edge 'a reaper and a bad network' => sub {
	my @proxies = map { ZkProxy->new($reaped) } 1 .. 3;
	reaper(sub { note 'faults of the network: ' . turns_trouble(\@_, @proxies) }, map { $_->hosts } @proxies);
};
$reaped->stop;

$other->close;
$admin->quit;
$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
