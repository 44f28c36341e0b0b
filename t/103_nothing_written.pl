# Who holds or waits writes nothing: heartbeats do not go through the quorum.  Its word
# is asked for where something relies on it: for the one that is next in line, with each
# turn that comes after a third of the session timeout, for a view, and where doubt is
# to cancel.  What is lost meanwhile is noticed all the same.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cost;
use Tests;

my $zk = ZooKeeper->new->start;
# A session that stands still for two thirds of this asks the quorum
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '6s', shared_preload_libraries => 'zklock');
my $admin = zk_session($node);
my @proxies;    # kept until the end, so that sessions can close properly

sub proxied
{
	my (%setting) = @_;
	push @proxies, my $proxy = ZkProxy->new($zk);
	return (zk_session_with($node, hosts => $proxy, %setting), $proxy);
}

sub pass_time
{
	my ($seconds, $what) = @_;
	my $began = time;
	zk_until(sub { time - $began > $seconds }, $what);
	return;
}

# Sessions that have asked for this: the first has it, the others wait
sub queue
{
	my ($n, $sql) = @_;
	my @queue = map { zk_session($node) } 1 .. $n;
	$queue[0]->value($sql);
	foreach my $s (@queue[ 1 .. $#queue ])
	{
		$s->send($sql);
		zk_wait_queued($zk, $s);
	}
	return @queue;
}

sub requests_of_all
{
	return $admin->value('SELECT sum(requests) FROM (SELECT DISTINCT pid, requests FROM zk_server_locks) s');
}

# Wait until these have sent so many heartbeats, of two requests each, and return how many
# transactions there were meanwhile.
sub written_in
{
	my ($beats, @sessions) = @_;
	my ($before, $asked) = ($zk->zxid, requests_of_all());
	zk_until(sub { requests_of_all() - $asked > 2 * $beats * @sessions }, "$beats heartbeats of each");
	return $zk->zxid - $before;
}

#
# Sessions with nothing to do
#
subtest 'holders, and those who wait' => sub {
	my @holders = map { zk_session($node) } 1 .. 6;
	$holders[$_]->value("SELECT zk_lock('/held/$_')") for 0 .. $#holders;
	my @single = map { zk_session_with($node, node_style => 'single') } 1 .. 2;
	$single[$_]->value("SELECT zk_lock('/single/$_')") for 0 .. $#single;
	my $many = zk_session($node);
	$many->value("SELECT count(zk_lock('/many/' || i)) FROM generate_series(1, 100) i");
	my @readers = map { zk_session($node) } 1 .. 7;
	$readers[0]->value(q{SELECT zk_lock('/read')});
	$_->send(q{SELECT zk_lock_shared('/read')}) for @readers[ 1 .. $#readers ];
	zk_wait_queued($zk, @readers[ 1 .. $#readers ]);
	my @places = queue(5, q{SELECT zk_semaphore_acquire('/places', 1)});

	# these have asked the quorum for a while, and have no reason any longer
	my ($first, @next) = map { zk_session($node) } 1 .. 4;
	$first->value(q{SELECT zk_lock('/next')});
	$next[0]->query(q{SELECT zk_lock('/next', '500ms')});
	$next[1]->query(q{SET lock_timeout = '500ms'; SELECT zk_lock('/next')});
	$next[2]->send(q{SELECT zk_lock('/next')});
	zk_wait_queued($zk, $next[2]);
	$first->value(q{SELECT zk_unlock('/next')});
	is($next[2]->wait->{out}, 't', 'who was next has it');
	my @doubt = map { zk_session_with($node, cancel_on_loss => 'doubt') } 1 .. 2;
	$doubt[0]->value(q{BEGIN; SELECT zk_xact_lock('/doubted/1'); COMMIT});
	$doubt[1]->value(q{SELECT zk_lock('/doubted/2'); SET zklock.cancel_on_loss = 'lost'});
	my @all = (@holders, @single, $many, @readers, @places, $first, @next, @doubt);

	pass_time(2, 'the first heartbeats, which set watches');
	my $written = written_in(4, @all);
	# one that stood still for most of its timeout asks the quorum
	cmp_ok($written, '<', @all / 4, 'of the heartbeats of ' . scalar(@all) . ' sessions nothing was written');

	my @queue = queue(9, q{SELECT zk_lock('/queue')});
	pass_time(2, 'the first heartbeats');
	$written = written_in(4, @all, @queue);
	cmp_ok($written, '>', 2, 'the first waiter of a queue asks the quorum');
	cmp_ok($written, '<', 7 + @all / 4, '- and no other');

	$_->value('SELECT zk_unlock_all()') for $readers[0], $places[0], $queue[0];
	is($_->wait->{out}, 't', 'each reader has it') for @readers[ 1 .. $#readers ];
	foreach my $s (@queue[ 1 .. $#queue ], @places[ 1 .. $#places ])
	{
		$s->wait;
		$s->value('SELECT zk_unlock_all()');
	}
};

#
# A turn that comes late
#
subtest 'an older proof' => sub {
	my $client = $zk->client;
	my @cases = map {
		my ($what, $lock, $n, $requests, $trips) = @$_;
		my ($s, $proxy) = proxied(session_timeout => '12s');
		my $path = '/late/' . ($what =~ tr/a-z//cdr);
		my @before = map { $client->contend("/zklock$path") } 1 .. $n;
		$s->send("SELECT $lock('$path')");
		zk_wait_queued($zk, $s);
		{ what => $what, s => $s, proxy => $proxy, before => \@before, requests => $requests, trips => $trips }
	} (
		[ 'who is next in line', 'zk_lock', 1, '', 0 ],
		[ 'a reader', 'zk_lock_shared', 1, 'multi', 1 ],
		[ 'who lists first', 'zk_lock', 2 ]);
	pass_time(4.5, 'more than a third of 12 s, and a heartbeat');
	foreach my $case (@cases)
	{
		my ($what, $s, $proxy, $requests, $trips) = @$case{qw(what s proxy requests trips)};
		my ($first, $second) = @{ $case->{before} };
		# after the second one, the third is not near
		my $beats = $proxy->count([ 'sync', 'multi' ]);
		zk_until(sub { $proxy->count([ 'sync', 'multi' ]) > $beats }, 'a heartbeat');
		quiet($proxy);
		$proxy->delay_ms(50);
		$proxy->clear_log;
		$client->delete($first);
		if ($second)
		{
			# it watches both, and lists when the first is gone
			zk_until(sub { grep { /^multi/ } $proxy->requests }, 'it to list, and to ask');
			quiet($proxy);
			is(join(' ', sort map { (split / /)[0] } $proxy->requests), 'getChildren multi', "$what: the check follows the list");
			is($proxy->trips, 2, '- in a flight of its own');
			$proxy->clear_log;
			$client->delete($second);
			($requests, $trips) = ('', 0);    # by the event alone
		}
		is($s->wait->{out}, 't', "$what has its turn");
		is(join(' ', map { (split / /)[0] } $proxy->requests), $requests, '- at the price of ' . ($requests || 'nothing'));
		is($proxy->trips, $trips, "- round trips: $trips");
		$proxy->delay_ms(0);
	}
	$client->close;
};

# A statement that is under way when this is set is not in doubt because of the silence
# before, in which nobody has asked.
subtest 'doubt, from now on' => sub {
	my ($s, $proxy) = proxied(session_timeout => '5s');
	$s->value(q{BEGIN; SELECT zk_lock('/doubt')});
	pass_time(5.5, 'more than a session timeout');
	is($proxy->count('multi'), 0, 'no quorum was asked meanwhile');
	my $result = $s->query(q{SET zklock.cancel_on_loss = 'doubt'; SELECT pg_sleep(5.5)});
	is($result->{state}, '', 'more than a session timeout later it still runs');
	cmp_ok($proxy->count('multi'), '>', 1, '- and the quorum was asked');
	$s->value(q{SET zklock.cancel_on_loss = 'lost'; COMMIT});
};

subtest 'a node that somebody deletes' => sub {
	my $hand = $zk->client;
	my $delete = sub { $hand->delete("/zklock$_[0]/$_") for $hand->children("/zklock$_[0]") };
	my $state = sub {
		$admin->value('SELECT state FROM zk_server_locks WHERE pid = ' . $_[0]->pid);
	};
	foreach my $way ('an event', 'a read')
	{
		my ($s, $proxy) = proxied(session_timeout => '10s');
		my $path = '/deleted/' . ($way =~ tr/ /_/r);
		$s->value("SELECT zk_lock('$path')");
		zk_until(sub { $proxy->count('sync') > 0 }, 'a heartbeat, and with it a watch');
		quiet($proxy);
		$proxy->hold_event(alone => 1) if $way eq 'a read';
		my $began = time;
		$delete->($path);
		zk_until(sub { $state->($s) eq 'lost' }, 'lost');
		in_time(time - $began, $way eq 'an event' ? 0.9 : 5, "$way tells the session, which does nothing");
		is($proxy->count('multi'), 0, '- and has asked no quorum');
		$proxy->release;
		$s->query("SELECT zk_unlock('$path')");
	}
	$hand->close;
};

zk_end($zk, $node);
