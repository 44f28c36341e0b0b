# The known faults of other lock libraries, one by one, for locks of every kind: what can
# happen to one call and to its directories, to readers behind a writer, and to several
# locks at once; and who waits for whom, with nodes of all of them in the queue.  Numbers
# such as CURATOR-264 are those of bug reports.  The removal of empty directories is in
# t/012.  Faults that are missing here are tested elsewhere (t/020 to t/027, and waits that
# end by themselves in specs/limits and specs/timeouts) or cannot happen.

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(uniq);

use Cost qw(quiet);
use Kinds;
use Tests;

# A server of a country that writes other digits: it does not do so in the names of nodes.
kinds_begin(java_options => [ '-Duser.language=ar', '-Duser.country=EG', '-Duser.language.format=ar',
		'-Duser.country.format=EG', '-Djava.locale.providers=CLDR' ]);

# One after which, when its sessions have ended, nothing is left
sub fault
{
	my ($name, $code) = @_;
	return edge $name => sub { $code->(); nothing_left('nothing is left'); };
}

# --------------------------------------- create, cancel, time out, be expired

# What gets lost is in t/021, and the ends of a call are in t/020.

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

# What happens to its place while it waits for $before, and who comes meanwhile
my %lost = (
	'its own node is deleted' => sub {
		my ($first, $before, $comes) = @_;
		my $behind = $comes->();
		$other->delete($first);
		return $behind;
	},
	'its own node goes first, and then the one before, while it is not told' => sub {
		my ($first, $before, $comes) = @_;
		my $behind = $comes->();
		$proxy->hold_event;
		$other->delete($_) for $first, $before;
		$proxy->wait_held;
		$proxy->release;
		return $behind;
	},
	'its session expires' => sub {
		my ($first, $before, $comes) = @_;
		$proxy->cut_off;
		$zk->end_sessions_of($first);
		my $behind = $comes->();
		$proxy->pass;
		return $behind;
	},
	'the directory is removed and made again' => sub {
		my ($first, $before, $comes, $path) = @_;
		# its own first: with the others gone it would hold for a moment
		remove_unseen($path, $first);
		my $behind = $comes->();
		$proxy->release;
		return $behind;
	},
	'the directory is removed' => sub {
		my ($first, $before, $comes, $path) = @_;
		remove_unseen($path, $first);
		$proxy->release;
		return;
	});

foreach my $what (sort keys %lost)
{
	for_kinds(
		"while it waits, $what" => sub {
			my ($kind, $path, $s) = @_;
			my $blocker = block($kind, $path);
			$s->send(take($kind, $path));
			my ($first) = wait_for_blocker($path, $blocker);
			if (my $behind = $lost{$what}->($first, $blocker, sub { block($kind, $path) }, $path))
			{
				my ($again) = wait_for_blocker($path, $behind);
				isnt($again, $first, 'it queues again');
				is(scalar own_nodes($path), 1, 'with one node');
				$other->delete($blocker);
				ok(watched() && !$s->is_done, 'behind who came meanwhile');
				$other->delete($behind);
			}
			is($s->wait->{out}, 't', 'then it is had');
			is(scalar own_nodes($path), 1, 'with one node');
			is($s->value("SELECT node FROM zk_locks WHERE path = '$path'"), (own_nodes($path))[0] =~ s/.*\///r, 'which zk_locks names');
			is($s->value(q{SELECT bool_and(state = 'held') FROM zk_locks}), 't', 'and which is held');
			is($s->value(give($kind, $path)), 't', 'and given back');
		});
}

# The time is that of the call, however often it queues, and for however many; it
# stands in the queue when that is over
for_kinds(
	'its own node is deleted again and again' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path, '3s'));
		my $began = time;
		my $deleted = 0;
		while (time < $began + ($deleted > 3 ? 0.5 : 2.5))
		{
			$deleted++ if grep { $other->delete($_) } own_nodes($path);
			sleep 0.05;
		}
		is($s->wait->{out}, 'f', 'a time that is over is over');
		in_time(time - $began, 3 + $SLACK, "however often the node is deleted ($deleted times)");
		cmp_ok($deleted, '>', 3, 'which it was');
		nothing_left('nothing is left');
		$other->delete($blocker);
	},
	kinds => [qw(exclusive all)]);

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
	});

fault 'children of a lock' => sub {
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
		is($t->value(take($kind, $path, '0')), 'f', "$kind: but by who is")
		  unless $kind eq 'shared';
		$s->value(give($kind, $path));
	}
	is(scalar(grep { $other->exists($_) } @child), @child, 'all of it is still there');
	$other->delete($_) for @child;

	my $long = $other->create("/zklock$path/" . 'x' x 300 . 'lock-0000000000', mode => 'ephemeral');
	is($s->value(take('exclusive', $path, '0')), 'f', 'a contender with a very long name is respected');
	$s->send(take('exclusive', $path));
	wait_for_blocker($path, $long);
	$other->delete($long);
	is($s->wait->{out} . $s->value(give('exclusive', $path)), 'tt', '- and waited for');
};

foreach my $style (qw(curator curator_rw kazoo))
{
	fault "the writer before a reader turns shared, style $style" => sub {
		my ($first, $writer) = map { warm_session(node_style => $style, hosts => $zk) } 1, 2;
		my $reader = warm_session(node_style => $style);
		my $path = new_path();
		my $has_seen = sub {
			my ($node) = @_;
			zk_until(sub { grep { $_->[1] eq '<' && $_->[2] =~ /^(?:exists|getData)$/ && $_->[4] eq $node && $_->[5] == 0 } $proxy->log }, "$node to be watched");
			$proxy->clear_log;
		};

		# the reader has another connection by then
		$writer->value("SELECT zk_lock('$path'), zk_lock_shared('$path')");
		my ($before) = own_nodes($path);
		$reader->send("SELECT zk_lock_shared('$path', '10s')");
		$has_seen->($before);
		$proxy->drop;
		$has_seen->($before);
		$writer->value("SELECT zk_unlock('$path')");
		is($reader->wait->{out}, 't', 'the reader that reconnected passes');
		is(zk_holds($writer), 'shared session 1 held', 'beside the one that was a writer');
		is($first->value(take('semaphore', $path, '0')), 't', 'and the only place of a semaphore there is free');
		$_->value('SELECT zk_unlock_all()') for $first, $writer, $reader;

		# the writer was not the first in the queue when the reader came
		$first->value("SELECT zk_lock_shared('$path')");
		my ($its) = own_nodes($path);
		$writer->send("SELECT zk_lock('$path'), zk_lock_shared('$path'), zk_unlock('$path')");
		zk_until(sub { ($before) = grep { $_ ne $its } own_nodes($path) }, 'the writer');
		$reader->send("SELECT zk_lock_shared('$path', '10s')");
		$has_seen->($before);
		$first->value("SELECT zk_unlock_shared('$path')");
		is($writer->wait->{out}, 't|t|t', 'a writer that waited for another reader');
		is($reader->wait->{out}, 't', 'the reader behind it passes');
	};
}

# A call is canceled while there is no connection: ZooKeeper has its node, and the session
# does not know about it yet when the next call comes.
foreach my $case ([ 'zk_lock', 'shared' ], [ 'zk_try_lock', 'shared' ], ['zk_try_lock'], ['zk_try_lock_shared'])
{
	my ($call, $shared) = @$case;
	fault "its own leftover is not in the way of $call" . ($shared ? ', an upgrade' : '') => sub {
		my $s = warm_session();
		my $path = new_path();
		$s->value("SELECT zk_lock_shared('$path')" . ($shared ? '' : ", zk_unlock_shared('$path')"));
		my $before = own_nodes($path);
		$proxy->clear_log;
		$proxy->refuse;
		$proxy->swallow_and_drop('create2');
		$s->send("SELECT zk_lock('$path')");
		$proxy->wait_swallowed;
		is($s->cancel($admin)->{state}, '57014', 'the call before is canceled');
		is(own_nodes($path), $before + 1, 'and leaves a node');
		$proxy->delay_ms(50);    # finding and deleting it takes several round trips
		$proxy->pass;
		is($s->value("SELECT $call('$path')"), 't', 'granted');
	};
}

# ------------------------------------------------------- several locks at once

# (Those that are taken: specs/all_or_none; that ZooKeeper refuses: t/078)

# Held before, and lost while the call waits for the other one
foreach my $end ('its node is deleted', 'its session ends')
{
	fault "zk_lock_many, and one was held before: $end" => sub {
		my $s = warm_session(session_timeout => '6s');
		my $t = warm_session(hosts => $zk);
		my ($a, $b) = map { new_path() } 1, 2;
		$s->value(take('exclusive', $a));
		$t->value(take('exclusive', $b));
		$s->send("SELECT zk_lock_many('{$a,$b}')");
		zk_wait_queued($zk, $s);
		if ($end =~ /node/)
		{
			my ($held) = own_nodes($a);
			# as is every lock that has been held for some time
			zk_until(sub { grep { $_ eq $held } watched() }, 'it to be watched');
			$other->delete($held);
		}
		else
		{
			$proxy->cut_off;
			$zk->end_sessions_of(own_nodes($a));
			$proxy->pass;
			zk_until(sub { own_nodes($b) == 2 }, 'it to queue again');
		}
		$t->value(give('exclusive', $b));
		my $result = $s->wait;
		is($result->{state}, '55000', 'fails') or diag explain $result;
		like($result->{message}, qr{lock on "\Q$a\E" was lost}, 'says which');
		is($s->value('SELECT path, state FROM zk_locks'), "$a|lost", 'nothing else is taken');
		zk_until(sub { !own_nodes($b) }, 'no node of the other');
	};
}

# A backend that uses freed memory does not crash each time: so try several sizes
fault 'zk_lock_many: an answer with paths that are none' => sub {
	my $s = warm_session(session_timeout => '8s');
	my $path = new_path();
	foreach my $n (2, 8, 32)
	{
		my $call = "zk_lock_many(ARRAY(SELECT '$path/' || i FROM generate_series(1, $n) i))";
		$s->value("SELECT $call, zk_unlock_all()");    # creates the directories
		$proxy->count_frames;
		$proxy->clear_log;
		$proxy->nth('reply', 1, 'slash');
		my $result = $s->query("SELECT $call");
		ok(!$result->{closed}, "$n: the backend lives") or last;
		is("$result->{out}$result->{state}", 't', "$n: the nodes are found by their names");
		is(grep({ $_->[1] eq 'x' && $_->[7] =~ /slash$/ } $proxy->log), 1, "$n: the answer was such a one");
		is($s->query('SELECT zk_unlock_all()')->{out}, $n, "$n: they can be given back");
	}
};

fault 'zk_lock_many: far too many' => sub {
	my $s = warm_session();
	my $memory = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name LIKE 'zklock%'";
	my $before = $s->value($memory);
	is($s->query("SELECT zk_lock_many(ARRAY(SELECT '/many/' || i FROM generate_series(1, 300000) i))")->{state}, '53400', 'refused');
	is($s->value($memory), $before, 'nothing of them is kept');
};

# ------------------------------------------------------- order, predecessors

fault 'the right nodes are watched, whatever their names sort like' => sub {
	my $path = new_path();
	$proxy->clear_log;    # what was cut off before has no answer
	make_dirs($path);
	my $s = warm_session();
	# one is of a session that is over, and stays (ZOOKEEPER-2355)
	my @queue = map { foreign($path, $_, /^other__lock/ ? 'persistent_sequential' : 'ephemeral_sequential') }
	  "_c_z-other-lock-", "0other__rlock__", "other__lock__", "a-other-config-", "_c_other-__READ__", 'x-0other-';
	my $waits_for = sub {
		my ($name, @before) = @_;
		my ($own) = wait_for_blocker($path, @before);
		is_deeply([ sort(watched()) ], [ sort $own, @before ], $name) or diag(join "\n", @queue, 'watched:', watched());
		return $own;
	};
	# no contender, or one for something else
	my $sem = foreign($path, "_c_$UUID-semaphore-1-");

	$s->send(take('exclusive', $path));
	my ($own) = $waits_for->('exclusive: the two before it', @queue[ 4, 2 ]);
	$s->cancel($admin);
	nothing_left('nothing is left');

	$s->send(take('shared', $path));
	($own) = $waits_for->('shared: the two writers before it', @queue[ 2, 0 ]);
	leave($queue[2]);
	zk_until(sub { "@{[ sort(watched()) ]}" eq join ' ', sort $own, $queue[0] }, 'the other one');
	ok(!$s->is_done, 'and the other one when one has gone');
	leave($queue[0]);
	is($s->wait->{out}, 't', 'then it is had, beside other readers');
	$s->value(give('shared', $path));
	leave($sem, @queue);

	# holders 0 1, waiters 2 3, and we: the one right before us tells.  (With numbers of permits
	# that differ: t/063)
	@queue = map { foreign($path, "_c_$_" . $UUID_TAIL . '-semaphore-2-') } 'f', 'd', 'b', 'a';
	$s->send("SELECT zk_semaphore_acquire('$path', 2)");
	($own) = $waits_for->('semaphore: the waiter before it', $queue[3]);
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
};

# Curator's own: a reader with the writer's number, then the writer's node goes.
fault 'two with one number' => sub {
	my $path = new_path();
	make_dirs($path);
	my ($writer, $reader) = map { warm_session(node_style => $_) } qw(curator_rw kazoo);
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
};

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

# A reader that becomes a writer has two nodes, and waits with the second one.  (Otherwise:
# specs/upgrade)
fault 'an upgrade that waits, and one of its nodes is deleted' => sub {
	my $path = new_path();
	make_dirs($path);
	my $s = warm_session(session_timeout => '10s');    # so that it can notice a loss
	my $upgrade = take('exclusive', $path);
	my $reader = foreign($path, '_c_other-__READ__');
	$s->value(take('shared', $path));
	my ($shared) = own_nodes($path);
	$s->send($upgrade);
	zk_until(sub { grep { $_ eq $reader } watched() }, 'the upgrade waits');

	# it queues again: behind a writer by then
	my $writer = foreign($path, '_c_other-lock-');
	ok(!$s->is_done, 'a writer who comes later does not matter');
	leave(grep { $_ ne $shared } own_nodes($path));
	is($s->wait->{state}, '40P01', 'the second one: it would wait for one who waits for it');
	ok(eval { zk_until(sub { "@{[ own_nodes($path) ]}" eq $shared }, 'one node', $MOMENT) }, '- and its second node goes')
	  or diag(own_nodes($path));
	is(zk_holds($s), 'shared session 1 held', '- and it is a reader as before');
	leave($writer);

	# that lock is lost, and only that
	$s->send($upgrade);
	zk_until(sub { grep { $_ eq $reader } watched() }, 'the upgrade waits');
	leave($shared, $reader);
	my $result = $s->wait;
	zk_until(sub { $s->value(q{SELECT state FROM zk_locks WHERE mode = 'shared'}) eq 'lost' }, 'the loss');
	is($s->value(q{SELECT state FROM zk_locks WHERE mode = 'exclusive'}), $result->{out} eq 't' ? 'held' : '',
		'the first one: that is lost, not what it waited for');
	ok(zk_until(sub { own_nodes($path) == ($result->{out} eq 't' ? 1 : 0) }, 'as many nodes'), '- as its nodes say');
	$s->query('SELECT zk_unlock_all()');
	is($s->value('SELECT count(*) FROM zk_locks'), 0, 'all is given back');
};

# ------------------------------------------------------------ rules for names

# (Who waits for which names, in all styles: t/053; which these are: t/c/protocol_test)
fault 'beside a node of an unknown kind' => sub {
	my $path = new_path();
	$proxy->clear_log;
	make_dirs($path);
	my $s = warm_session();
	my $asks = sub {
		my $before = $proxy->count('*');
		my $result = $s->query(take('exclusive', $path, '0'));
		is($result->{out}, 't', 'held');
		my $n = $proxy->count('*') - $before;
		$s->value('SELECT zk_unlock_all()');
		quiet($proxy);
		return ($n, @{ $result->{warnings} });
	};
	my ($usual, @none) = $asks->();

	# locks below that look like nodes of a sequence: a directory, and a single node
	my $single = warm_session(node_style => 'single');
	make_dirs("$path/1234567890");
	$single->value(take('single', "$path/order-0000000001"));
	my ($first, @first) = $asks->();
	my ($second, @second) = $asks->();
	is("@none @first @second", '  ', 'locks below are none');
	is("$first $second", $usual + 2 . " $usual", 'which is asked once');
	$single->value('SELECT zk_unlock_all()');
	$single->quit;

	# more than are looked at
	$path = new_path();
	make_dirs($path);
	my @strangers = map { foreign($path, 'a\\tch-') } 1 .. 30;
	my ($with, @warnings) = $asks->();
	is("@warnings", qq{lock path "$path" has a node of an unknown kind}, 'one warning for 30 nodes');
	is($with, $usual + 10, 'of which ten are looked at');

	# one who waits, too, and is told of which
	my $waiter = warm_session();
	my $blocker = block('shared', $path);
	$waiter->send(take('shared', $path));
	wait_for_blocker($path, $blocker);
	leave($blocker);
	like($waiter->wait->{err}, qr/^(?:psql:\S+ )?WARNING:  01000: lock path.*\nDETAIL:  zklock does not wait for node "a\\\\tch-\d{10}", and/m,
		'with its name, and no special character');
	$waiter->value('SELECT zk_unlock_all()');
	leave(@strangers);

	# each kind of lock: it is in nobody's way, and each session warns of it once
	$path = new_path();
	make_dirs($path);
	my $lease = foreign($path, "_c_$UUID-lease-");
	foreach my $kind (@kinds)
	{
		my $one = warm_session();
		my @result = map { $one->query(take($kind, $path, '0') . '; SELECT zk_unlock_all()') } 1, 2;
		is(join(' ', map { ($_->{out} =~ s/\n.*//sr, @{ $_->{warnings} }) } @result), qq{t lock path "$path" has a node of an unknown kind t}, "$kind: has it, with one warning");
	}
	leave($lease);
};

# Rule 4: others take every child for a contender.
foreach my $style (qw(curator curator_rw kazoo))
{
	my %name = (
		curator => [ qr/^_c_[-0-9a-f]{36}-lock-\d{10}$/, qr/^_c_[-0-9a-f]{36}-shared-lock-\d{10}$/ ],
		curator_rw => [ qr/^_c_[-0-9a-f]{36}-__WRIT__\d{10}$/, qr/^_c_[-0-9a-f]{36}-__READ__\d{10}$/ ],
		kazoo => [ qr/^[0-9a-f]{32}__lock__\d{10}$/, qr/^[0-9a-f]{32}__rlock__\d{10}$/ ]);
	fault "nothing but contenders in a directory, style $style" => sub {
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
			foreach (1, 2)
			{
				push @seen, $zk->children("/zklock$path");
				$_->value('SELECT zk_unlock_all()') for $s, $t;
				$s->value(take($kind, $path));
			}
			$s->value('SELECT zk_unlock_all()');
			my @names = uniq @seen;
			is(join(' ', grep { !/$name/ } @names), '', "$kind: as the style says");
			is(scalar(uniq map { s/\d{10}$//r } @names), scalar @names, '- and no two differ in the number only');
		}
	};
}

# Rule 6: Curator asks a holder to release by its node's data.
for_kinds(
	'the data of the node before us changes' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$s->send(take($kind, $path, '1500ms'));
		my $began = time;
		my ($own) = wait_for_blocker($path, $blocker);
		my $n = 0;
		until ($s->is_done)
		{
			$other->set($blocker, $n++ % 2 ? '__REVOKE__' : 'other');
			sleep 0.02;
		}
		is($s->wait->{out}, 'f', 'it waits on, until its time is over');
		in_time(time - $began, 1.5 + $SLACK, 'which does not begin again each time');
		cmp_ok($n, '>', 10, "though it was changed $n times");
		nothing_left('nothing is left');
		$s->send(take($kind, $path));
		wait_for_blocker($path, $blocker);
		$other->set($blocker, '__REVOKE__');
		$other->delete($blocker);
		is($s->wait->{out}, 't', 'and it is had when the node goes');
		is($s->value(give($kind, $path)), 't', 'and given back');
	});

kinds_end();
