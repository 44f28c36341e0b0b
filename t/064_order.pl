# Who waits for whom, for locks of every kind: the known faults of other lock
# libraries, with nodes of all of them in the queue.  Numbers such as CURATOR-264 are
# those of bug reports.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(uniq);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Cost qw(quiet);
use Deadline;
use Kinds;
use Zklock;

kinds_begin();

# ------------------------------------------------------- order, predecessors

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

	# others have another number of permits: the one of the waiters with ours tells
	@queue = map { foreign($path, "_c_$_" . $UUID_TAIL . '-semaphore-' . (/[fa]/ ? 3 : 2) . '-') } 'f', 'd', 'b', 'a';
	$s->send("SELECT zk_semaphore_acquire('$path', 2)");
	($own) = wait_for_blocker($path, $queue[2]);
	is_deeply([ sort(watched()) ], [ sort $own, $queue[2] ], 'semaphore: the waiter before it that has as many places')
	  or diag(join "\n", @queue, 'watched:', watched());
	leave($queue[0]);
	$other->set($queue[2], "zklock\ngranted\n");
	zk_until(sub { "@{[ watched() ]}" eq $own }, 'nobody to be watched, but the directory');
	leave($queue[1]);
	quiet($proxy);
	ok(!$s->is_done, 'a place that another has is not ours');
	leave($queue[3]);
	is($s->wait->{out}, 't', 'the next one is');
	$s->value(give('semaphore', $path));
	leave($queue[2]);
	$s->quit;
	nothing_left('nothing is left');
};

# In each naming style.  (A downgrade, with writers and readers in the queue: t/054; what is
# told to whom by a release: t/011.)
edge 'a reader does not wait for a later writer (kazoo#649)' => sub {
	my $path = new_path();
	my ($holder, $reader, $late) = map { warm_session() } 1 .. 3;
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
	$_->quit for $holder, $reader, $late;
	nothing_left('nothing is left');
};

# Curator's own: a reader with the writer's number, then the writer's node goes.
edge 'two with one number' => sub {
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
	$_->quit for $writer, $reader;
	nothing_left('nothing is left');
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

# A reader that becomes a writer has two nodes, and waits with the second one.
edge 'an upgrade that waits' => sub {
	my $path = new_path();
	make_dirs($path);
	my $s = warm_session(session_timeout => '10s');    # so that it can notice a loss
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
	is($s->cancel($admin)->{state}, '57014', 'canceled');
	$is_reader->('canceled');
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

# What another's node is, our own style does not matter for: they take turns.
edge "everybody's nodes" => sub {
	my @style = qw(curator curator_rw kazoo);
	my %s = map { my $style = $_; map { ("$style $_" => warm_session(node_style => $style)) } @kinds } @style;
	my $theirs = $zk->client;    # whose names say nothing
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
		my (%expected, %got, %warned);
		push @style, my $style = shift @style;
		foreach my $kind (@kinds)
		{
			my $s = $s{"$style $kind"};
			my $blocked = $excluded_by{$kind}{ $marker{$prefix} } // 0;
			my @results;
			foreach (1, 2)
			{
				push @results, $s->query(take($kind, $path, '0'));
				$s->value('SELECT zk_unlock_all()');
			}
			$got{$kind} = $results[0]{out};
			$expected{$kind} = $blocked ? 'f' : 't';
			push @{ $warned{ join ' | ', map { @{ $_->{warnings} } } @results } }, $kind;
		}
		is_deeply(\%got, \%expected, "$prefix is " . ($marker{$prefix} || 'nothing') . ", style $style")
		  or diag explain \%got;
		is_deeply(\%warned, { $marker{$prefix} ? '' : qq{lock path "$path" has a node of an unknown kind} => \@kinds },
			$marker{$prefix} ? '- which warns of nothing' : '- with one warning a session')
		  or diag explain \%warned;

		# joining the queue is another way to test it
		foreach my $kind (grep { $expected{$_} eq 'f' } @kinds)
		{
			my $s = $s{"$style $kind"};
			$s->send(take($kind, $path));
			zk_until(sub { grep { $_ eq $foreign } watched() }, "$kind waits for it");
			ok(!$s->is_done, "$kind waits for it");
			$theirs->delete($foreign);
			is($s->wait->{out}, 't', 'and has it when that is gone');
			# contenders behind us do not matter
			my $behind = $theirs->create("/zklock$path/$prefix", mode => 'ephemeral_sequential');
			is($s->value(q{SELECT bool_and(state = 'held') FROM zk_locks}), 't', 'held');
			$s->value('SELECT zk_unlock_all()');
			zk_until(sub { !$all_own->() }, 'given back');
			$foreign = $behind;
		}
		$theirs->delete($foreign);
	}
	$theirs->close;
	$_->quit for values %s;
	nothing_left('nothing is left');
};

edge 'beside a node of an unknown kind' => sub {
	my $path = new_path();
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
	$_->quit for $s, $waiter;
	nothing_left('nothing is left');
};

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

done_testing();
