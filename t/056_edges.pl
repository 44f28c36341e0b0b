# The known faults of other lock libraries, one by one, for locks of every kind:
# what can happen to one call and to its directories.  Numbers such as CURATOR-264
# are those of bug reports.  Who waits for whom is in t/064, the removal of empty
# directories in t/012.  Faults that are missing here are tested elsewhere (t/020 to
# t/027) or cannot happen.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(uniq);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Deadline;
use Kinds;
use Zklock;
use ZooKeeper;

use constant { READ => 1, DELETE => 8, ADMIN => 16, ALL => 31 };

kinds_begin();

# --------------------------------------- create, cancel, time out, be expired

# What gets lost is in t/021, and the ends of a call for exclusive locks are in t/020.
my @others = grep { $_ ne 'exclusive' } @kinds;

for_kinds(
	'who looks for its node asks the leader first (CURATOR-264)' => sub {
		my ($kind, $path, $s) = @_;
		$proxy->clear_log;
		$proxy->swallow_and_drop(create_of($kind));
		is($s->value(take($kind, $path)), 't', 'it is held');
		my ($cut, @after) = (0);
		foreach my $entry ($proxy->log)
		{
			$cut = 1 if $entry->[1] eq '.' && $entry->[2] eq 'drop';
			push @after, $entry->[2] if $cut && $entry->[1] eq '>' && $entry->[2] =~ /^(?:sync|getChildren2?|exists)$/;
		}
		is($after[0], 'sync', 'a sync comes before the first list') or diag "@after";
		is($s->value(give($kind, $path)), 't', 'given back');
	},
	kinds => [ @kinds, 'single' ]);

# One node that could be mistaken for its own.
for_kinds(
	'a node of that name is not of this session (CURATOR-498)' => sub {
		my ($kind, $path, $s) = @_;
		$proxy->swallow_and_drop(create_of($kind));
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

# The points at which a call can be canceled: what the proxy does before, and
# how to tell that it is there
my @steps = (
	[ 'create sent', sub { $proxy->hold(create_of($_[0])) }, sub { $proxy->wait_held } ],
	[ 'create on its way', sub { $proxy->hold_request(create_of($_[0])) }, sub { $proxy->wait_held } ],
	[ 'list sent', sub { $proxy->hold('getChildren') }, sub { $proxy->wait_held } ],
	[ 'watch sent', sub { $proxy->hold('getData') }, sub { $proxy->wait_held } ],
	[ 'waiting', sub { }, sub { wait_for_blocker($_[0], $_[1]) } ]);

foreach my $step (@steps)
{
	my ($where, $before, $reached) = @$step;
	for_kinds(
		"canceled, $where" => sub {
			my ($kind, $path, $s) = @_;
			my $blocker = block($kind, $path);
			$before->($kind);
			$s->send(take($kind, $path));
			$reached->($path, $blocker);
			my $result = $s->cancel($admin);
			is($result->{state}, '57014', 'canceled');
			in_time($result->{seconds}, 30, 'and not by a timeout');
			$proxy->release;
			nothing_left('nothing is left while the other stands there');
			is($s->value(take($kind, $path, '0')), 'f', 'who still excludes us');
			$other->delete($blocker);
		},
		kinds => [ @others, $where eq 'list sent' ? () : 'single' ]);
}

# CURATOR-205: the second interrupt hits the cleanup of the first.
for_kinds(
	'canceled twice' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path));
		wait_for_blocker($path, $blocker);
		$proxy->hold_request('*', 1);
		is($s->cancel($admin)->{state}, '57014', 'canceled');
		$proxy->wait_held;
		isnt(scalar own_nodes(), 0, 'its node is there: the delete is on its way');
		$s->send(take($kind, $path));
		zk_wait_waiting($admin, $s);
		is($s->cancel($admin)->{state}, '57014', 'canceled again');
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
	},
	kinds => [ @others, 'single' ]);

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
	},
	kinds => [ @kinds, 'single' ]);

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
		$s->send(take($kind, $path, '6s'));
		my $began = time;
		my $deleted = 0;
		while (time < $began + ($deleted > 3 ? 1 : 4))
		{
			$deleted++ if grep { $other->delete($_) } own_nodes($path);
			sleep 0.05;
		}
		is($s->wait->{out}, 'f', 'a time that is over is over');
		in_time(time - $began, 6 + $SLACK, "however often the node is deleted ($deleted times)");
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
	},
	kinds => [ @kinds, 'single' ]);

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
			DO \$\$ BEGIN FOR i IN 1 .. 20 LOOP
				PERFORM zk_xact_lock_many('$paths');
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
		my $how = $i % 2 ? "zk_xact_lock_many('$order[1]')" : "zk_xact_lock('$first'), zk_xact_lock('$second')";
		$s[$i]->send("DO \$\$ BEGIN FOR i IN 1 .. 20 LOOP PERFORM $how; COMMIT; END LOOP; END \$\$");
	}
	is(join(' ', map { $_->wait->{err} } @s), ' ' x $#s, 'beside those who take them one by one');

	is($s[0]->value("SELECT zk_lock_many('{$a,$b,$a,$a}')"), 't', 'doubles');
	is($s[0]->value('SELECT sum(count) FROM zk_locks'), 2, 'count once');
	is($s[0]->value("SELECT zk_lock_many('{}')"), 't', 'nothing is had at once');
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
		is($s->value("SELECT zk_lock_many('$all', '1s')"), 'f', "number $i is taken: false");
		zk_until(sub { join(' ', own_nodes()) eq $mine }, 'none is left');
		is($s->value("SELECT zk_lock_many('$all', '0')"), 'f', 'as without waiting');
		is($s->query("SET lock_timeout = '100ms'; SELECT zk_lock_many('$all')")->{state}, '55P03', 'lock_timeout: an error');
		zk_until(sub { join(' ', own_nodes()) eq $mine }, 'none is left');
		is($s->value('RESET lock_timeout; SELECT count(*) FROM zk_locks'), 0, 'nor a hold');

		# the waiter keeps what comes before, and blocks nobody from what comes
		# after
		$s->send("SELECT zk_lock_many('$all')");
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
		my $result = $s->query("SELECT zk_lock_many('$all')");
		is($result->{state}, '42501', "number $i is closed to us: 42501");
		like($result->{message}, qr/"\Q$path[$i]\E"/, 'which is named');
		nothing_left('none is left');
		$other->set_acl("/zklock$path[$i]", [ [ ALL, 'world', 'anyone' ] ]);
		is($s->value("SELECT zk_lock_many('$all')"), 't', 'open again, all are had');
		is($s->value('SELECT zk_unlock_all()'), 4, 'and given back');
	}
	# what it held before stays
	$s->value(take('exclusive', $path[1]));
	$t->value(take('exclusive', $path[2]));
	is($s->value("SELECT zk_lock_many('$all', '1s')"), 'f', 'one was held before, another one is taken: false');
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

kinds_end();

done_testing();
