# zklock.node_style = single: one ephemeral node at the path itself, which other
# programs create, too.  What protects a lock elsewhere, the name of its node, does
# not here: so each test that has another node appear at that path looks whether ours
# was taken for it, or it for ours.  What this style has in common with the others is
# tested with theirs: t/021 (answers that are lost), t/025, t/053 and t/056 (a node that is
# deleted while it is held: t/025 and t/056; many who want it: t/053); one session
# alone in sql/single.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Child;
use Doc;
use Kinds qw(kinds_begin kinds_end $zk $proxy $node $admin $other edge warm_session);
use Tests;
use Turns;

kinds_begin();
$admin->value('CREATE TABLE t (who text)');

my $last_path = 0;

# A path, the node there, and sessions that are connected
sub begin
{
	my ($n, %setting) = @_;
	my $path = '/single/' . ++$last_path;
	$other->delete($other->contend('/zklock/single'));    # creates the directories
	return ($path, "/zklock$path", map { warm_session(node_style => 'single', %setting) } 1 .. $n);
}

# Another program's lock
sub stranger { return scalar $other->create($_[0], mode => 'ephemeral', data => $_[1] // 'stranger'); }

sub whose
{
	my ($at) = @_;
	my ($data, $stat) = $other->get($at);
	return !$stat ? 'nobody' : $data =~ /^zklock\n/ ? 'ours' : $data;
}

# How many sessions watch it
sub watchers
{
	my ($at) = @_;
	my ($list) = ($zk->four_letter('wchp') // '') =~ /^\Q$at\E\n((?:\t.*\n?)*)/m;
	return scalar(() = ($list // '') =~ /^\t/mg);
}

sub wait_watching { my ($at) = @_; return zk_until(sub { watchers($at) }, "$at to be watched"); }

# (Of a session's own: sql/single)
edge 'what is shown' => sub {
	my ($path, $at, $s, $t) = begin(2);
	$s->value("SELECT zk_lock('$path')");
	my $stat = $other->exists($at);
	is($stat->{ephemeralOwner} + 0, hex $s->value('SELECT session_id FROM zk_session'), 'an ephemeral node at the path');
	$t->value(q{SET log_lock_waits = on; SET deadlock_timeout = '50ms'});
	my $offset = -s $node->logfile;
	$t->send("SELECT zk_lock('$path')");
	my $host = qr/process @{[ $s->pid ]} on \S+/;
	zk_until(sub { slurp_file($node->logfile, $offset) =~ /still waiting for ExclusiveLock on lock path "\Q$path\E"(?s:.*)Held by: $host\. Wait queue: \./ }, 'the log');
	is($admin->value("SELECT position, kind, mode, granted, token, node, pid FROM zk_lock_queue('$path')"),
		"1|lock|exclusive|t|$stat->{czxid}|single-$stat->{czxid}|" . $s->pid, 'zk_lock_queue: who holds, and not who waits');
	$s->value("SELECT zk_unlock('$path')");
	is($t->wait->{out}, 't', 'given back, and the other one has it');
	like(slurp_file($node->logfile, $offset), qr/acquired ExclusiveLock on lock path "\Q$path\E"/, '- and that is logged');
	is($t->value("SELECT zk_lock_token('$path') > $stat->{czxid}"), 't', '- with a greater token');
	$t->value('DISCARD ALL');

	# other programs' locks are shown, too
	stranger($at, 'who I am');
	$stat = $other->exists($at);
	my $shown = "SELECT mode, token, node, pid, data FROM zk_lock_queue('$path')";
	is($admin->value($shown), "exclusive|$stat->{czxid}|single-$stat->{czxid}||who I am", "another program's");
	is($admin->value("SELECT path, kind, contenders, holders, pid, data FROM zk_lock_paths('/single')"), "$path|lock|1|1||who I am",
		'zk_lock_paths: the same');
	$other->set($at, "zklock\nshared\nczxid 1\nhost x\n");
	is($admin->value($shown), "exclusive|$stat->{czxid}|single-$stat->{czxid}||", 'its mode and its token are what they are, whatever it says');
	is($t->value("SELECT zk_try_lock('$path'), zk_lock('$path', '2s')"), 'f|f', 'it is not had');
	my $result;
	foreach my $ms (100, 1_000, 10_000)    # a busy machine may not know by then who has it
	{
		$result = $t->query("SET lock_timeout = $ms; SELECT zk_lock('$path')");
		last if $result->{detail};
	}
	is($result->{state}, '55P03', 'with lock_timeout: 55P03');
	like($result->{detail}, qr/^It is held by ZooKeeper session /, '- which says who has it');
	$other->delete($at);
};

# ------------------------------------------------------- what may be in the way

edge 'a directory of another style' => sub {
	my ($path, $at, $s) = begin(1);
	$s->value("SET zklock.node_style = curator; SELECT zk_lock('$path'), zk_lock('$path/below')");
	$s->value('SET zklock.node_style = single');
	my $t = warm_session(node_style => 'single');
	foreach my $call ("zk_lock('$path')", "zk_try_lock('$path')")
	{
		my $result = $t->query("SELECT $call");
		is($result->{state}, '55000', "$call where one of another style is held: 55000");
		like($result->{message}, qr/^lock path "\Q$path\E" is a directory that is in use/, '- and why');
	}
	$s->value("SELECT zk_unlock('$path')");
	is($t->query("SELECT zk_lock('$path')")->{state}, '55000', 'a lock below is in the way, too');
	$s->value("SELECT zk_unlock('$path/below')");
	$other->delete("$at/below");
	my $before = $other->exists($at)->{czxid};
	is($t->value("SELECT zk_try_lock('$path')"), 't', 'an empty one is removed: zk_try_lock');
	cmp_ok($other->exists($at)->{czxid}, '>', $before, '- and a node is in its place');
	is($t->value("SELECT zk_unlock('$path')"), 't', 'given back');
	$s->value("SET zklock.node_style = kazoo; SELECT zk_lock('$path'), zk_unlock('$path')");
	is($t->value("SELECT zk_lock('$path'), zk_unlock('$path')"), 't|t', 'an empty one is removed: zk_lock');

	# and the other way round
	$t->value("SELECT zk_lock('$path')");
	foreach my $call ("zk_lock('$path')", "zk_semaphore_acquire('$path', 2)", "zk_lock('$path/below/it')")
	{
		my $result = $s->query("SELECT $call");
		is($result->{state}, '55000', "another style at, or below, a single node: $call: 55000");
		like($result->{message}, qr/ is or lies under an ephemeral node$/, '- and why');
	}
	is($t->query("SELECT zk_lock('$path/below')")->{state}, '55000', 'and this style below it');
};

# Curator's and kazoo's, which say nothing of themselves, and others' data
edge 'a node that is no lock' => sub {
	my ($path, $at, $s) = begin(1);
	$other->create($at, data => 'mine');
	my $result = $s->query("SELECT zk_try_lock('$path')");
	is($result->{out}, 'f', 'zk_try_lock: false');
	like("@{ $result->{warnings} }", qr/^node at lock path "\Q$path\E" is not a lock$/, '- and a warning');
	my $shown = q{SELECT position, kind, mode, granted, num_nulls(token, zk_session, node), data FROM zk_lock_queue('%1$s')
		UNION ALL SELECT contenders, kind, '', holders > 0, num_nulls(zk_session), data FROM zk_lock_paths('%1$s')};
	is($s->value(sprintf $shown, $path), "1|lock|exclusive|f|3|mine\n1|lock||f|1|mine", '- is shown as what it is');
	is($admin->value(sprintf $shown, $path), '', '- and to another style it is nothing');
	$s->send("SELECT zk_lock('$path')");
	wait_watching($at);
	$other->set($at, "still mine $_") for 1 .. 3;
	zk_until(sub { watchers($at) == 1 }, 'it watches again');
	ok(!$s->is_done, 'zk_lock waits');
	$other->delete($at);
	$result = $s->wait;
	is($result->{out}, 't', '- until it is gone');
	is(() = "@{ $result->{warnings} }" =~ /is not a lock/g, 1, '- with one warning');
	$s->value("SELECT zk_unlock('$path')");
	$other->create($at, mode => 'container');
	$other->delete(scalar $other->create("$at/x", mode => 'ephemeral'));
	is($s->query("SELECT zk_lock('$path', '2s')")->{out}, 'f', "nor is a container of others' removed");
	ok($other->exists($at), '- it is there');
	is($admin->value("SELECT count(*) FROM zk_lock_queue('$path')"), 0, '- and no contender');
	my $czxid = $other->exists($at)->{czxid};
	is($admin->value("SELECT zk_lock_break('$path', 'single-$czxid')"), 'f', '- nor is it removed by zk_lock_break');
	ok($other->exists($at), '- it is still there');
	$other->delete($at);
};

# It was a directory when it was looked at; when the delete arrives it is a lock.
edge 'a directory whose place another program takes before it is removed' => sub {
	my ($path, $at, $s) = begin(1);
	$s->value("SET zklock.node_style = curator; SELECT zk_lock('$path'), zk_unlock('$path'); SET zklock.node_style = single");
	$proxy->hold_request('getData');
	$s->send("SELECT zk_lock('$path')");
	$proxy->wait_held;
	$proxy->delay_ms(200);
	$proxy->release;
	$proxy->hold_request('multi');
	$proxy->delay_ms(0);
	$proxy->wait_held;
	$other->delete($at);
	stranger($at);
	$proxy->release;
	wait_watching($at);
	is(whose($at), 'stranger', 'it is not removed');
	$other->delete($at);
	is($s->wait->{out}, 't', 'and waited for');
};

# ------------------------------------------- a node that was deleted by somebody

# Ours is deleted by hand and another program's is there at once, before we know it:
# the event of its deletion is held up.
my %replaced_by = (
	'another program' => sub { stranger($_[0]) },
	'one that has written to it' => sub { stranger($_[0]); $other->set($_[0], 'stranger') for 1 .. 40 });

sub replace
{
	my ($at, $by) = @_;
	$proxy->hold_event(alone => 1);
	$other->delete($at);
	$replaced_by{$by}->($at);
	return;
}

foreach my $by (sort keys %replaced_by)
{
	edge "deleted, and replaced by $by: COMMIT" => sub {
		# with "on", the lock is not asked about, so the loss must be known: a heartbeat finds
		# another's node, though no event told that ours is gone; and several are asked about at once
		foreach ([ 'strict', 1 ], [ 'on', 1 ], [ 'strict', 3 ])
		{
			my ($guard, $n) = @$_;
			my ($path, $at, $s) =
			  begin(1, commit_guard => $guard, cancel_on_loss => 'off', session_timeout => $guard eq 'on' ? '4s' : '60s');
			my @paths = map { "$path-$_" } 1 .. $n;
			foreach my $which (@paths)
			{
				$s->value(q{BEGIN; INSERT INTO t VALUES ('x'); SELECT } . join ', ', map { "zk_xact_lock('$_')" } @paths);
				replace("/zklock$which", $by);
				zk_wait_hold($s, 'lost', $which) if $guard eq 'on';
				zk_is_lost($s->query('COMMIT'), $which, "$guard, one of $n, $which");
				is(whose("/zklock$which"), 'stranger', "- the other one's stays");
				$other->delete("/zklock$which");
				$proxy->release;
			}
			$s->quit;
		}
		is($admin->value('SELECT count(*) FROM t'), 0, 'nothing was written');
	};
}

# Ours is replaced in a way of which its holder has not heard when it gives it back.  Each
# returns what makes it go on.
my %unheard = (
	(map { my $by = $_; ("deleted, and replaced by $by" => sub { replace($_[0], $by); return sub { } }) } keys %replaced_by),
	# the usual use of zk_lock_break
	'broken while its holder is stopped' => sub {
		my ($at, $path, $s) = @_;
		kill 'STOP', $s->pid;
		is($admin->value("SELECT zk_lock_break('$path', node) FROM zk_lock_queue('$path')"), 't', 'broken');
		stranger($at);
		return sub { kill 'CONT', $s->pid };
	},
	'replaced while it is cut off' => sub {
		my ($at, $path, $s) = @_;
		$proxy->cut_off;
		zk_wait_session($s, 'suspended');    # a delete that is sent before might have been ours
		$other->delete($at);
		stranger($at);
		$proxy->pass;
		zk_wait_session($s, 'connected');
		return sub { };
	});
foreach my $how (sort keys %unheard)
{
	edge "$how: given back" => sub {
		my ($path, $at, $s) = begin(1, session_timeout => '20s', commit_guard => 'off', cancel_on_loss => 'off');
		foreach my $way ("SELECT zk_unlock('$path')", 'SELECT zk_unlock_all()', 'ROLLBACK', 'COMMIT', 'DISCARD ALL')
		{
			$s->value($way =~ /zk_|DISCARD/ ? "SELECT zk_lock('$path')" : "BEGIN; SELECT zk_xact_lock('$path')");
			my $go_on = $unheard{$how}->($at, $path, $s);
			$s->send($way);
			$go_on->();
			my $result = $s->wait;
			is($result->{out} . @{ $result->{warnings} }, 'f1', "$way: it was lost") if $way =~ /zk_unlock\(/ && $how !~ /stopped/;
			is($s->value("SELECT zk_try_lock('$path')"), 'f', "$way: it is not ours");
			is(whose($at), 'stranger', "- the other one's stays");
			$other->delete($at);
			$proxy->release;
		}
	};
}

# What the session itself gave back a moment ago is not in its way, whatever the style.
edge 'other styles, and an answer that is lost' => sub {
	my ($path, $at, $s) = begin(1);
	foreach my $op (qw(swallow_and_drop drop_request))
	{
		foreach my $order ([qw(single curator)], [qw(kazoo single)], [qw(single single)])
		{
			$s->value("SET zklock.node_style = $order->[0]; BEGIN; SELECT zk_xact_lock('$path')");
			$proxy->$op('delete');
			is($s->value("COMMIT; SET zklock.node_style = $order->[1]; SELECT zk_lock('$path')"), 't', "$op: @$order");
			is($s->value("SELECT zk_unlock('$path')"), 't', '- given back');
		}
	}
};

# It has no name by which a list could show it.
edge 'a single node that never was stands in no queue' => sub {
	my ($path, $at, $s) = begin(1);
	$proxy->hold_request('multi');
	$s->send("SELECT zk_lock('$path')");
	$proxy->wait_held;
	is($s->cancel($admin)->{state}, '57014', 'canceled before it could be created');
	$proxy->drop;
	zk_wait_session($s, 'connected');
	my $holder = $other->contend($at);
	is($s->value("SET zklock.node_style = curator; SELECT zk_try_lock('$path')"), 'f', "another's lock, of another style, excludes us");
	is($s->value("SELECT zk_lock('$path', '2s')"), 'f', '- also when it is waited for');
	$other->delete($holder);
	is($s->value("SELECT zk_lock('$path'), zk_unlock('$path')"), 't|t', 'then it is had');
};

edge 'somebody writes to our node: it is ours all the same' => sub {
	my ($path, $at, $s) = begin(1);
	foreach ([ COMMIT => 1 ], [ COMMIT => 40 ], [ "SELECT zk_unlock('$path')" => 1 ], [ "SELECT zk_unlock('$path')" => 40 ])
	{
		my ($end, $times) = @$_;
		$s->value($end eq 'COMMIT' ? "BEGIN; SELECT zk_xact_lock('$path')" : "SELECT zk_lock('$path')");
		$other->set($at, 'scribble') for 1 .. $times;
		my $result = $s->query($end);
		is("$result->{state}$result->{out}", $end eq 'COMMIT' ? '' : 't', "$times times: $end");
		zk_until(sub { whose($at) eq 'nobody' }, 'it to be given back');
	}
};

# ---------------------------------------------------------------- zk_lock_break

# zk_lock_break writes to the node before it deletes it.  The next holder avoids the version
# by which the loser still deletes: of 120, four would have it by chance.
edge 'who has lost it, and does not know, deletes nothing of the next holder' => sub {
	my ($path, $at, $s) = begin(1);
	my $next = warm_session(node_style => 'single', hosts => $zk->hosts);
	my ($wrong, $deleted) = (0, 0);
	foreach (1 .. 120)
	{
		$s->value("SELECT zk_lock('$path')");
		my $name = $admin->value("SELECT node FROM zk_lock_queue('$path')");
		$next->send("SELECT zk_lock('$path')");
		wait_watching($at);
		$proxy->hold_event(alone => 1);
		$admin->value("SELECT zk_lock_break('$path', '$name')");
		$next->wait;
		$wrong++ if $s->value("SELECT zk_unlock('$path')") ne 'f';
		$deleted++ if whose($at) ne 'ours';
		$proxy->release;
		$next->query("SELECT zk_unlock('$path')");
	}
	is($wrong, 0, 'zk_unlock is false');
	is($deleted, 0, "- and the next holder's node stays");
};

# (Names that are none: t/c/protocol_test; one's own, and one that is gone: sql/single)
edge 'zk_lock_break removes the node that is meant' => sub {
	my ($path, $at, $t) = begin(1);
	stranger($at);
	my $name = $admin->value("SELECT node FROM zk_lock_queue('$path')");
	$proxy->swallow_and_drop('delete');
	is($admin->value("SELECT zk_lock_break('$path', '$name')"), 't', "another program's; the answer is lost");
	is(whose($at), 'nobody', '- it is gone');

	# it changes hands between the look and the delete: not this one, also where the versions do
	# not tell the two, as neither has been written to
	foreach ([ 'delete', 1 ], [ 'multi', 0 ], [ 'delete', 0 ])
	{
		my ($op, $written) = @$_;
		stranger($at);
		$other->set($at, 'stranger') if $written;
		$name = $admin->value("SELECT node FROM zk_lock_queue('$path')");
		$proxy->hold_request($op);
		$t->send("SELECT zk_lock_break('$path', '$name')");
		$proxy->wait_held;
		$other->delete($at);
		stranger($at);
		$proxy->release;
		is($t->wait->{out}, 'f', "replaced before the $op: false");
		is(whose($at), 'stranger', '- and the other one stays');
		$other->delete($at);
	}

	# whose data cannot be written back, or must not be
	foreach my $data ("a\0b", 'x' x 5000)
	{
		$other->create($at, mode => 'ephemeral', data => $data);
		is($t->value("SELECT zk_lock_break('$path', node) FROM zk_lock_queue('$path')"), 't', length($data) . ' bytes of data');
	}
	$other->create($at, mode => 'ephemeral', acl => [ [ 1, 'world', 'anyone' ] ]);
	is($t->value("SELECT zk_lock_break('$path', node) FROM zk_lock_queue('$path')"), 't', 'one that only its owner may write to');
};

# ------------------------------------------------------------- answers that are lost

# One session takes the same path again and again: its own node from before must not
# be taken for the new one, nor the new one for it.  (What is not known for long is no
# other case: t/021 has that.)
foreach my $way (grep { !/stuck|behind/ } @ZkProxy::WAYS)
{
	edge "$way: given back, had, given back" => sub {
		my ($path, $at, $s) = begin(1, session_timeout => '4s');
		$s->value("SELECT zk_lock('$path')");
		$proxy->clear_log;
		$proxy->lose($way, 'delete');
		my $before = $s->value("SELECT zk_lock_token('$path')");
		is($s->value("SELECT zk_unlock('$path')"), 't', 'given back');
		is($s->value("SELECT zk_lock('$path')"), 't', 'had again');
		cmp_ok($s->value("SELECT zk_lock_token('$path')"), '>', $before, '- by another node');
		is($s->value("SELECT zk_lock_token('$path')"), $other->exists($at)->{czxid}, '- which is there');
		$proxy->lose($way, 'delete');
		$s->value("BEGIN; SELECT zk_unlock_all()");
		is($s->value("SELECT zk_xact_lock('$path'); COMMIT"), 't', 'had by a transaction');
		$proxy->lose($way, 'delete');
		$s->value("BEGIN; SELECT zk_xact_lock('$path'); ROLLBACK");
		is($s->value("SELECT zk_lock('$path')"), 't', 'had after a ROLLBACK');
		is($s->value("SELECT zk_lock_token('$path')"), $other->exists($at)->{czxid}, '- by the node that is there');
		$proxy->reset;
		is($s->value("SELECT zk_unlock('$path')"), 't', 'given back');
		is(whose($at), 'nobody', '- nothing is left');
	};

	edge "$way: canceled, and another program has it" => sub {
		my ($path, $at, $s) = begin(1, session_timeout => '4s');
		$proxy->clear_log;
		$proxy->lose($way, 'multi');
		$proxy->refuse;    # once cut off, it must not be back before the cancel
		$s->send("SELECT zk_lock('$path')");
		$proxy->wait_lost($way);
		is($s->cancel($admin)->{state}, '57014', 'canceled');
		$proxy->pass;
		$proxy->release;
		my $theirs;
		zk_until(sub { $theirs = eval { stranger($at) } }, 'its node to be gone');
		is(whose($at), 'stranger', 'another program has it');
		is($s->value("SELECT zk_try_lock('$path')"), 'f', '- and not we');
		sleep 0.1;
		is(whose($at), 'stranger', '- and keeps it');
		$other->delete($at);
		is($s->value("SELECT zk_lock('$path'), zk_unlock('$path')"), 't|t', 'then we can');
		$proxy->reset;
	};
}

# A delete may be carried out late, after the session has the lock again, or once more.  Their
# versions are more than there are: each is doubted at its own path only.
edge 'many deletes that are stuck on their way' => sub {
	my ($path, $at, $s) = begin(1);
	my @paths = map { "$path-$_" } 1 .. 150;
	my $take = "SELECT count(*) FILTER (WHERE zk_lock(p)) FROM unnest('{" . join(',', @paths) . "}'::text[]) p";
	my $versions = sub {
		return $zk->with_client(sub { my ($client) = @_; return { map { $_ => $client->exists("/zklock$_")->{version} } @paths } });
	};
	is($s->value($take), 150, 'all are had');
	my $old = $versions->();
	$proxy->swallow('delete', 150);
	$s->send('SELECT zk_unlock_all()');
	zk_until(sub { $proxy->swallowed == 150 }, 'the deletes to be sent');
	$proxy->drop;
	is($s->wait->{out}, 150, '- given back');
	foreach my $time (1, 2)
	{
		is($s->value($take), 150, "- had again, time $time");
		my $new = $versions->();
		is(scalar(grep { $old->{$_} == $new->{$_} } @paths), 0, 'none has the version that it had');
		is(scalar(grep { $_ == 0 } values %$new), 0, '- nor that of a new node');
		is($s->value('SELECT zk_unlock_all()'), 150, '- given back');
	}
	$s->quit;
};

# --------------------------------------------------------------------- waiting

edge 'another one takes its place while the waiter is cut off' => sub {
	my ($path, $at, $s) = begin(1);
	stranger($at);
	$s->send("SELECT zk_lock('$path')");
	wait_watching($at);
	$proxy->cut_off;
	zk_until(sub { $proxy->connections == 0 }, 'it is cut off');
	$other->delete($at);
	stranger($at);
	$proxy->pass;
	wait_watching($at);
	ok(!$s->is_done, 'it waits');
	$other->delete($at);
	is($s->wait->{out}, 't', 'then it has the lock');
};

# ------------------------------------------------------------------------ at random

edge 'sessions that take turns, while connections break' => sub {
	my $seconds = $TIMING ? 30 : 6;
	my @proxy = ($proxy, ZkProxy->new($zk));
	my @paths = ('/single/turns/1', '/single/turns/2');
	turns_prepare($node);
	turns_path(@paths);
	my @s = map {
		warm_session(node_style => 'single', commit_guard => 'on', session_timeout => '20s', hosts => $proxy[ $_ % 2 ])
	} 1 .. 8;
	$_->send(turns_call("$seconds s", \@EXCLUSIVE_WAYS, \@paths)) for @s;
	my $n = turns_trouble(\@s, @proxy);
	my @messages = grep { $_ } map { $_->wait->{message} } @s;
	is(zk_few(@messages), '', 'no call failed');
	my @hold = turns_holds();
	turns_judge(@hold);
	turns_counted(@hold);
	diag("$seconds s, $n faults, " . @hold . ' holds');
	cmp_ok(scalar @hold, '>', 20, 'they had the lock');
	$_->quit for @s;
	zk_until(sub { !grep { $other->exists("/zklock$_") } @paths }, 'nothing to be left');
};

# --------------------------------------------------------------------- what may fail

edge 'access' => sub {
	my ($path, $at, $s) = begin(1);
	stranger($at);
	$other->set_acl($at, [ [ 8, 'world', 'anyone' ] ]);
	is($s->query("SELECT zk_lock('$path')")->{state}, '42501', 'a node that we may not read: 42501');
	is($s->query("SELECT zk_try_lock('$path')")->{state}, '42501', 'to zk_try_lock, too');
	# since ZooKeeper 3.8.4 and 3.9.2 nothing can be known of it (ZOOKEEPER-2590)
	my $czxid = eval { $other->exists($at)->{czxid} };
	my $seen = $admin->query("SELECT granted, token, node, data IS NULL FROM zk_lock_queue('$path')");
	is($seen->{state} || $seen->{out}, $czxid ? "t|$czxid|single-$czxid|t" : '42501', 'zk_lock_queue shows what can be known');
	is($admin->query("SELECT zk_lock_break('$path', 'single-1')")->{out}, 'f', 'zk_lock_break: another one is meant') if $czxid;
	ok($czxid || $admin->query("SELECT zk_lock_break('$path', 'single-1')")->{state} eq '42501', '- or it cannot be known');
	$other->delete($at);
	# a delete needs access to the directory
	$s->value("SELECT zk_lock('$path')");
	$other->set_acl('/zklock/single', [ [ 7, 'world', 'anyone' ], [ 16, 'world', 'anyone' ] ]);
	my $result = $s->query("SELECT zk_unlock('$path')");
	is($result->{out}, 't', 'its release is refused: true');
	like("@{ $result->{warnings} }", qr/^ZooKeeper refused the release/, '- with a warning');
	is($s->query("SELECT zk_lock('$path')")->{state}, '42501', 'and cannot be had again: 42501');
	$other->set_acl('/zklock/single', [ [ 31, 'world', 'anyone' ] ]);
	is($s->value("SELECT zk_unlock_all()"), 0, 'nothing is held');
	$s->quit;
	zk_until(sub { whose($at) eq 'nobody' }, 'it goes with its session');
};

# Each of these creates may still be carried out, so its version is not used again.
edge 'no version is left that is not in doubt' => sub {
	my ($path, $at, $s) = begin(1, operation_timeout => '2s');
	my $versions = 31;
	$proxy->clear_log;
	$proxy->deny('multi', -112, 1_000_000);
	my $result;
	for (1 .. 100)
	{
		$result = $s->query("SELECT zk_lock('$path', '200ms')");
		last if $result->{state} ne '58030' || $proxy->count('multi') >= $versions + 5 || $result->{err} =~ /still in doubt/;
	}
	is($result->{state}, '58030', 'the call fails');
	like($result->{err}, qr/ZooKeeper reported: too many requests of this session are still in doubt/, '- and says why');
	my %seen;
	$seen{ scalar(() = $_->[7] =~ /setData/g) }++ for grep { $_->[1] eq '>' && $_->[2] eq 'multi' } $proxy->log;
	is(scalar(grep { $_ > 1 } values %seen), 0, 'no version was used twice') or diag zk_short(map { "$_ x $seen{$_}" } sort keys %seen);
	is(scalar keys %seen, $versions, '- and each was used');
	$proxy->reset;
};

# ------------------------------------------------------------------ doc/interop.md

edge "the page's program" => sub {
	my $page = Doc->new('doc/interop.md');
	my $file = PostgreSQL::Test::Utils::tempdir() . '/nightly.py';
	append_to_file($file, $page->take('python')->{code});
	my $s = warm_session(node_style => 'single');
	my ($path, $at) = ('/jobs/nightly', '/zklock/jobs/nightly');
	is($s->value("SELECT zk_lock('$path')"), 't', 'SQL has the lock');
	my ($pid, $to, $from) = Child::spawn([ '/usr/bin/python3', '-B', $file, $zk->hosts ]);
	wait_watching($at);
	is(whose($at), 'ours', 'the program waits');
	is($s->value("SELECT zk_unlock('$path')"), 't', 'given back');
	is(scalar <$from>, "at work\n", 'it is at work');
	waitpid $pid, 0;
	is($?, 0, '- and ends');
	Child::forget($pid);
	is($s->value("SELECT zk_lock('$path'), zk_unlock('$path')"), 't|t', 'then SQL has the lock again');
	$page->all_was_run;
};

kinds_end();
