# A downgrade whose answer gets lost, in each style of node names: it is done in
# the end, or the session is over; the remaining reader has one node, never two
# and never none; readers behind it are let in, and the writer behind them not
# before its turn.
#
# The session timeout is short, since silence is noticed within it.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Test::More;

use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $SESSION_TIMEOUT = 5;
my %downgrade = (curator => 'setData', curator_rw => 'multi', kazoo => 'multi');

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
# A statement that looks at a lost lock is not to be canceled: that is t/034's
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '30s', 'zklock.cancel_on_loss' => 'off');
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (who text)');
my $DIR = '/zklock/l';

# curator_rw is tested with all of them; kazoo does the same with other names,
# and data can be written twice.
my %ways = (
	curator => [ 'stuck on its way', 'swallowed and the connection cut' ],
	curator_rw => \@ZkProxy::WAYS,
	kazoo => ['swallowed and the connection cut']);

# A session with a short timeout behind the proxy, which holds the lock twice
sub holder
{
	my ($style, %setting) = @_;
	%setting = (
		hosts => $proxy->hosts,
		session_timeout => "${SESSION_TIMEOUT}s",
		node_style => $style,
		%setting);
	my $session = zk_session_with($node, %setting);
	$session->value("SELECT zk_lock('/warm'), zk_unlock('/warm')");
	return $session;
}

# How many nodes there are at the lock, or of one ZooKeeper session
sub nodes_of
{
	my (@id) = @_;
	my %of = $zk->ephemerals;
	@id = keys %of unless @id;
	return scalar grep { index($_, "$DIR/") == 0 } map { @{ $of{$_} // [] } } @id;
}

# Another session, which is at the end of the queue when this returns
my @idle;

sub waits
{
	my ($call) = @_;
	my $session = shift @idle // zk_session($node);
	my $before = nodes_of();
	$session->send("SELECT $call");
	zk_until(sub { nodes_of() > $before }, 'it stands in the queue');
	return $session;
}

# They hold nothing any longer: the next one need not start another
sub put_back { push @idle, @_; return; }

# From a clean state to a clean state.  $code takes what is held.
sub lost
{
	my ($name, $style, $code, %setting) = @_;
	subtest "$style: $name" => sub {
		my $session = holder($style, %setting);
		$proxy->clear_log;
		$code->($session);
		$proxy->reset;
		if ($session->{psql})
		{
			is($session->value(q{SELECT zk_lock('/l', '20s'), zk_lock_shared('/l'), zk_unlock('/l'), zk_unlock_shared('/l')}),
				't|t|t|t', "then takes, downgrades and gives back, time $_") for 1 .. 2;
		}
		$session->quit;
		# what is no longer held
		zk_nothing_left($zk, 'nothing is left', sessions => 1 + @idle);    # a guest
	};
	return;
}

my $HELD = q{SELECT zk_lock('/l'), zk_lock_shared('/l')};
my $UNLOCK = q{SELECT zk_unlock('/l')};

foreach my $style (sort keys %downgrade)
{
	my $op = $downgrade{$style};
	foreach my $way (@{ $ways{$style} })
	{
		lost "zk_unlock, $way", $style, sub {
			my ($session) = @_;
			$session->value($HELD);
			my $token = $session->value(q{SELECT zk_lock_token('/l')});
			my $id = $session->value('SELECT session_id FROM zk_session');
			my $reader = waits(q{zk_lock_shared('/l')});
			my $writer = waits(q{zk_lock('/l')});
			my $late = waits(q{zk_lock_shared('/l')});
			$proxy->lose($way, $op);
			my $result = $session->query($UNLOCK);
			is("$result->{out}$result->{state}", 't', 'is true');
			is_deeply($result->{warnings}, [], 'and confirmed');
			ok(zk_until(sub { zk_holds($session) eq 'shared session 1 held' }, 'held'), 'a shared hold is left');
			is($session->value(q{SELECT zk_lock_token('/l')}), $token, 'with the same token');
			is($reader->wait->{out}, 't', 'the reader behind it is let in');
			is(nodes_of($id), 1, 'one node');
			my $name = $session->value('SELECT node FROM zk_locks');
			is($zk->exists("$DIR/$name") ? 1 : 0, 1, 'which zk_locks names');
			$proxy->reset;
			ok(!$writer->is_done && !$late->is_done, 'the writer waits, and who is behind it');
			is($reader->value(q{SELECT zk_unlock_shared('/l')}), 't', 'that reader gives it back');
			is(nodes_of($id), 1, 'one node');
			ok(!$writer->is_done, 'the writer waits');
			is($session->value(q{SELECT zk_unlock_shared('/l')}), 't', 'so does this one');
			is($writer->wait->{out}, 't', 'the writer has it');
			is(nodes_of($id), 0, 'no node');
			is($writer->value($UNLOCK), 't', 'and gives it back');
			is($late->wait->{out}, 't', 'and so on');
			$late->value(q{SELECT zk_unlock_shared('/l')});
			put_back($reader, $writer, $late);
		};

		# It returns true at once; the request is carried out later.
		lost "zk_unlock that does not wait so long, $way", $style, sub {
			my ($session) = @_;
			$session->value($HELD);
			my $id = $session->value('SELECT session_id FROM zk_session');
			my $reader = waits(q{zk_lock_shared('/l')});
			$session->value("SET zklock.operation_timeout = '1ms'");
			$proxy->lose($way, $op);
			my $result = $session->query($UNLOCK);
			is($result->{out}, 't', 'is true');
			like("@{ $result->{warnings} }", qr/^(?:ZooKeeper has not confirmed .*)?$/, 'with a warning, or confirmed');
			$session->value('RESET zklock.operation_timeout');
			like(zk_holds($session), qr/^shared session 1 (?:held|suspect)$/, 'a shared hold is left');
			is($reader->wait->{out}, 't', 'the reader behind it is let in');
			zk_until(sub { nodes_of($id) == 1 }, 'one node');
			ok(zk_until(sub { zk_holds($session) eq 'shared session 1 held' }, 'held'), '- held');
			$_->value(q{SELECT zk_unlock_shared('/l')}) for $session, $reader;
			put_back($reader);
		};

		# The shared hold is released while it is unknown whether there was a
		# downgrade.
		lost "zk_unlock, then zk_unlock_shared, $way", $style, sub {
			my ($session) = @_;
			$session->value($HELD);
			my $id = $session->value('SELECT session_id FROM zk_session');
			my $writer = waits(q{zk_lock('/l')});
			$session->value("SET zklock.operation_timeout = '1ms'");
			$proxy->lose($way, $op);
			is($session->query($UNLOCK)->{out}, 't', 'zk_unlock is true');
			is($session->query(q{SELECT zk_unlock_shared('/l')})->{out}, 't', 'so is zk_unlock_shared');
			is(zk_holds($session), '', 'nothing is held');
			$session->value('RESET zklock.operation_timeout');
			is($writer->wait->{out}, 't', 'the writer behind it has it');
			is(nodes_of($id), 0, 'no node');
			$writer->value($UNLOCK);
			put_back($writer);
		};

		# Taken again, which is an upgrade
		lost "zk_unlock, then zk_lock, $way", $style, sub {
			my ($session) = @_;
			$session->value($HELD);
			my $token = $session->value(q{SELECT zk_lock_token('/l')});
			my $id = $session->value('SELECT session_id FROM zk_session');
			my $reader = waits(q{zk_lock_shared('/l')});
			$session->value("SET zklock.operation_timeout = '1ms'");
			$proxy->lose($way, $op);
			is($session->query($UNLOCK)->{out}, 't', 'zk_unlock is true');
			$session->value('RESET zklock.operation_timeout');
			$session->send(q{SELECT zk_lock('/l')});
			is($reader->wait->{out}, 't', 'the reader has been let in');
			zk_wait_queued($zk, $session);
			is($reader->value(q{SELECT zk_unlock_shared('/l')}), 't', 'and gives it back');
			is($session->wait->{out}, 't', 'then it is an upgrade');
			cmp_ok($session->value(q{SELECT zk_lock_token('/l')}), '>', $token, 'with a new token');
			is(zk_holds($session), 'exclusive session 1 held, shared session 1 held', 'both are held');
			is(nodes_of($id), 2, 'by two nodes');
			is($session->value(q{SELECT zk_unlock('/l'), zk_unlock_shared('/l')}), 't|t', 'given back');
			put_back($reader);
		};

		foreach my $release_timeout (0, 300)
		{
			lost "COMMIT, release_timeout $release_timeout, $way", $style, sub {
				my ($session) = @_;
				my $id = $session->value('SELECT session_id FROM zk_session');
				$session->value("SET zklock.release_timeout = $release_timeout");
				$session->value(q{BEGIN; INSERT INTO t VALUES ('commit'); SELECT zk_xact_lock('/l'), zk_lock_shared('/l')});
				my $reader = waits(q{zk_lock_shared('/l')});
				my $writer = waits(q{zk_lock('/l')});
				$proxy->lose($way, $op);
				my $result = $session->query('COMMIT');
				is($result->{state}, '', 'commits');
				is_deeply($result->{warnings}, [], 'without a warning');
				in_time($result->{seconds}, $release_timeout / 1000 + $SLACK, 'in time');
				is($reader->wait->{out}, 't', 'the reader behind it is let in');
				zk_until(sub { nodes_of($id) == 1 }, 'one node');
				zk_until(sub { zk_holds($session) eq 'shared session 1 held' }, 'held');
				$proxy->reset;
				ok(!$writer->is_done, 'the writer waits');
				# a write now relies on it
				is($session->query(q{SET zklock.commit_guard = 'strict'; INSERT INTO t VALUES ('next')})->{state}, '', 'strict: the next COMMIT relies on it');
				$_->value(q{SELECT zk_unlock_shared('/l')}) for $session, $reader;
				is($writer->wait->{out}, 't', 'then it has it');
				$writer->value($UNLOCK);
				put_back($reader, $writer);
				# the guard would make a request of the same kind when its proof is too old
			}, commit_guard => 'off';
		}

		# The guard checks a node whose name is in doubt.
		lost "zk_unlock, then a COMMIT that relies on the reader, $way", $style, sub {
			my ($session) = @_;
			$session->value($HELD);
			$session->value("SET zklock.operation_timeout = '1ms'");
			$proxy->lose($way, $op);
			is($session->query($UNLOCK)->{out}, 't', 'zk_unlock is true');
			$session->value('RESET zklock.operation_timeout');
			my $result = $session->query(q{INSERT INTO t VALUES ('relies')});
			is($result->{state}, '', 'commits');
			ok(zk_until(sub { zk_holds($session) eq 'shared session 1 held' }, 'held'), 'with a shared hold');
			is($session->value(q{SELECT zk_unlock_shared('/l')}), 't', 'given back');
		}, commit_guard => 'strict';

		lost "terminated, $way", $style, sub {
			my ($session) = @_;
			$session->value($HELD);
			my $id = $session->value('SELECT session_id FROM zk_session');
			my $reader = waits(q{zk_lock_shared('/l')});
			my $writer = waits(q{zk_lock('/l')});
			$proxy->refuse if $way =~ /cut/;
			$proxy->lose($way, $op);
			$session->send($UNLOCK);
			$proxy->wait_lost($way);
			$admin->value('SELECT pg_terminate_backend(' . $session->pid . ')');
			ok($session->wait->{closed}, 'the session is closed');
			$session->quit;
			is($reader->wait->{out}, 't', 'the reader behind it is let in');
			$reader->value(q{SELECT zk_unlock_shared('/l')});
			is($writer->wait->{out}, 't', 'and then the writer');
			$writer->value($UNLOCK);
			is(nodes_of($id), 0, 'no node');
			put_back($reader, $writer);
		};
	}

	# ------------------------------------------------ the session is over

	# The name of the node no longer matters: all of it in one style, and what
	# differs most in the others.
	foreach my $way ('swallowed and the connection cut', $style eq 'curator_rw' ? 'never asked for, the connection cut' : ())
	{
		foreach my $end ($style eq 'curator_rw' ? ('zk_unlock_shared', 'COMMIT') : (), 'zk_lock', 'nothing')
		{
			lost "session lost, $way, then $end", $style, sub {
				my ($session) = @_;
				$session->value($HELD);
				my $id = $session->value('SELECT session_id FROM zk_session');
				my $reader = waits(q{zk_lock_shared('/l')});
				my $writer = waits(q{zk_lock('/l')});
				$session->value(q{BEGIN; INSERT INTO t VALUES ('lost')}) if $end eq 'COMMIT';
				$session->value("SET zklock.operation_timeout = '100ms'");
				$proxy->refuse;
				$proxy->lose($way, $op);
				my $result = $session->query($UNLOCK);
				is($result->{out}, 't', 'zk_unlock is true');
				$session->value('RESET zklock.operation_timeout');
				$zk->end_session($id) if $way =~ /^never/;
				is($reader->wait->{out}, 't', 'the reader behind it is let in');
				$zk->end_session($id) unless $way =~ /^never/;
				is(nodes_of($id), 0, 'the session is over');
				$reader->value(q{SELECT zk_unlock_shared('/l')});
				is($writer->wait->{out}, 't', 'and then the writer');
				$proxy->pass;
				zk_until(sub { zk_holds($session) eq 'shared session 1 lost' }, 'lost');
				pass('the shared hold is lost');
				if ($end eq 'COMMIT')
				{
					zk_is_lost($session->query('COMMIT'), '/l', 'COMMIT');
				}
				if ($end eq 'zk_lock')
				{
					is($session->query(q{SELECT zk_lock('/l')})->{state}, '55000', 'zk_lock: 55000');
					is($session->query(q{SELECT zk_lock_shared('/l')})->{state}, '55000', 'zk_lock_shared: 55000');
				}
				if ($end ne 'nothing')
				{
					$result = $session->query(q{SELECT zk_unlock_shared('/l')});
					is($result->{out} . @{ $result->{warnings} }, 'f1', 'zk_unlock_shared warns, and is false');
					is(zk_holds($session), '', 'nothing is held');
					$session->send(q{SELECT zk_lock_shared('/l')});
					zk_wait_queued($zk, $session);
					$writer->value($UNLOCK);
					is($session->wait->{out}, 't', 'it can be had again');
					isnt($session->value('SELECT session_id FROM zk_session'), $id, 'in another ZooKeeper session');
					is($session->value(q{SELECT zk_unlock_shared('/l')}), 't', 'and is given back');
				}
				else
				{
					$session->quit;
					$writer->value($UNLOCK);
				}
				is(nodes_of($id), 0, 'no node');
				put_back($reader, $writer);
			}, session_timeout => '20s';
		}
	}

	# Cut off and back in time: the request is repeated, and never carried out
	# twice.
	lost 'cut off again and again', $style, sub {
		my ($session) = @_;
		foreach my $time (1 .. 10)
		{
			$session->value($HELD);
			my $id = $session->value('SELECT session_id FROM zk_session');
			my $reader = waits(q{zk_lock_shared('/l')});
			$proxy->clear_log;
			$proxy->$_($op, 1) for $time % 2 ? ('swallow_and_drop', 'drop_request') : ('drop_request', 'swallow_and_drop');
			is($session->value($UNLOCK), 't', "downgraded, time $time");
			is($reader->wait->{out}, 't', '- the reader is let in');
			is(nodes_of($id), 1, '- one node');
			ok(zk_until(sub { zk_holds($session) eq 'shared session 1 held' }, 'held'), '- held');
			$_->value(q{SELECT zk_unlock_shared('/l')}) for $session, $reader;
			put_back($reader);
			$proxy->reset;
		}
	};

	# The node is deleted by hand: there is nothing to downgrade.
	lost 'the node deleted by hand a moment before', $style, sub {
		my ($session) = @_;
		$session->value($HELD);
		my $writer = waits(q{zk_lock('/l')});
		my $id = $session->value('SELECT session_id FROM zk_session');
		my %of = $zk->ephemerals;
		my ($mine) = grep { index($_, "$DIR/") == 0 } @{ $of{$id} };
		$zk->delete($mine);
		is($writer->wait->{out}, 't', 'the writer behind it has it');
		my $result = $session->query($UNLOCK);
		is($result->{out}, 'f', 'zk_unlock is false');
		like("@{ $result->{warnings} }", qr/"\/l" had been lost/, 'and warns');
		is(zk_holds($session), 'shared session 1 lost', 'the shared hold is lost');
		is(scalar $zk->children($DIR), 1, 'no node was made in its place');
		$result = $session->query(q{SELECT zk_unlock_shared('/l')});
		is($result->{out} . @{ $result->{warnings} }, 'f1', 'zk_unlock_shared warns, and is false');
		$writer->value($UNLOCK);
		put_back($writer);
	};
}

# It may have been carried out, is refused when it is sent again, and nobody wants
# the node any longer: it is deleted under whichever of the two names it has.
lost 'given back while in doubt, refused, and cut off again', 'curator_rw', sub {
	my ($session) = @_;
	$session->value("$HELD, zk_lock('/elsewhere')");    # so that its session goes on
	my $id = $session->value('SELECT session_id FROM zk_session');
	my $writer = waits(q{zk_lock('/l')});
	$session->value("SET zklock.operation_timeout = '1ms'");
	$proxy->swallow_and_drop('multi');
	$proxy->refuse;
	is($session->query($UNLOCK)->{out}, 't', 'zk_unlock is true');
	is($session->query(q{SELECT zk_unlock_shared('/l')})->{out}, 't', 'so is zk_unlock_shared');
	zk_until(sub { grep { $_->[2] eq 'drop' } $proxy->log }, 'the answer to be swallowed');
	my @acl = $zk->acl($DIR);
	$zk->with_client(sub { $_[0]->set_acl($DIR, [ [ 31 & ~4, 'world', 'anyone' ] ]) });    # no create
	$proxy->drop_request('delete');
	$proxy->pass;
	is($writer->wait->{out}, 't', 'the writer behind it has it');
	is(nodes_of($id), 0, 'no node');
	$zk->with_client(sub { $_[0]->set_acl($DIR, \@acl) });
	$session->value(q{RESET zklock.operation_timeout; SELECT zk_unlock('/elsewhere')});
	$writer->value($UNLOCK);
	put_back($writer);
};

is($admin->value(q{SELECT string_agg(DISTINCT who, ', ' ORDER BY who) FROM t}), 'commit, next, relies', 'what was committed')
  if $WHOLE;
$_->quit for @idle, $admin;
$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left, no session either', sessions => 0, tree => 1);

done_testing();
