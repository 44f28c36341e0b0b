# The known faults of other lock libraries, one by one, for locks of every kind:
# what can happen to one call and to its directories, to readers behind a writer, and to
# several locks at once.  Numbers such as CURATOR-264 are those of bug reports.  Who waits
# for whom is in t/064, the removal of empty directories in t/012.  Faults that are missing
# here are tested elsewhere (t/020 to t/027, and waits that end by themselves in
# specs/limits and specs/timeouts) or cannot happen.

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(uniq);

use Kinds;
use Tests;

use constant { READ => 1, DELETE => 8, ADMIN => 16, ALL => 31 };

# A server of a country that writes other digits: it does not do so in the names of nodes.
kinds_begin(java_options => [ '-Duser.language=ar', '-Duser.country=EG', '-Duser.language.format=ar',
		'-Duser.country.format=EG', '-Djava.locale.providers=CLDR' ]);

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

for_kinds(
	'a node that we may not read' => sub {
		my ($kind, $path, $s) = @_;
		my $blocker = block($kind, $path);
		$other->set_acl($blocker, [ [ DELETE, 'world', 'anyone' ] ]);
		is($s->query(take($kind, $path))->{state}, '42501', 'is refused');
		nothing_left('- nothing is left');
		is($s->value(take($kind, $path, '0')), 'f', '- it has the lock, for who does not wait') unless $kind eq 'single';
		$other->delete($blocker);
	},
	kinds => [ @kinds, 'single' ]);

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

for_kinds(
	'no two attempts have the same name' => sub {
		my ($kind, $path, $s) = @_;
		my @name;
		foreach (1 .. 3)
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
	edge "the writer before a reader turns shared, style $style" => sub {
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
		$_->quit for $first, $writer, $reader;
		nothing_left('nothing is left');
	};
}

# A call is canceled while there is no connection: ZooKeeper has its node, and the session
# does not know about it yet when the next call comes.
foreach my $case ([ 'zk_lock', 'shared' ], [ 'zk_try_lock', 'shared' ], ['zk_try_lock'], ['zk_try_lock_shared'])
{
	my ($call, $shared) = @$case;
	edge "its own leftover is not in the way of $call" . ($shared ? ', an upgrade' : '') => sub {
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
		$s->quit;
		nothing_left('nothing is left');
	};
}

# ------------------------------------------------------- several locks at once

# (specs/all_or_none has those that are taken)
edge 'several at once, one of which is refused' => sub {
	my $s = warm_session();
	my @path = sort map { new_path() } 1 .. 4;
	my $all = '{' . join(',', reverse @path) . '}';
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
};

# Held before, and lost while the call waits for the other one
foreach my $end ('its node is deleted', 'its session ends')
{
	edge "zk_lock_many, and one was held before: $end" => sub {
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
edge 'zk_lock_many: an answer with paths that are none' => sub {
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

edge 'zk_lock_many: far too many' => sub {
	my $s = warm_session();
	my $memory = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name LIKE 'zklock%'";
	my $before = $s->value($memory);
	is($s->query("SELECT zk_lock_many(ARRAY(SELECT '/many/' || i FROM generate_series(1, 300000) i))")->{state}, '53400', 'refused');
	is($s->value($memory), $before, 'nothing of them is kept');
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
};

# ZOOKEEPER-2355: the node of a session that is over stays.
for_kinds(
	'a node of nobody' => sub {
		my ($kind, $path, $s) = @_;
		make_dirs($path);
		my $dangling = foreign($path, $kind{$kind}{node}, 'persistent_sequential');
		is($s->value(take($kind, $path, '0')), 'f', 'it blocks');
		$s->send(take($kind, $path));
		wait_for_blocker($path, $dangling);
		$other->delete($dangling);
		is($s->wait->{out}, 't', 'until it is deleted');
		is($s->value(give($kind, $path)), 't', 'and given back');
	});

kinds_end();

done_testing();
