# A session that takes the same lock again and again needs no list of its queue:
# the number of its node tells that nobody came in between.  How many requests
# that saves, what it costs when somebody did come, and that whoever came, in
# whatever way, is not passed over; nor if the directory was removed, made again,
# and had as many nodes.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cost;
use Tests;

# so long that no heartbeat, which looks at what is held, comes between what is counted
my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '1h', 'zklock.operation_timeout' => '60s');
my $admin = zk_session($node);
my $client = $zk->client;

my $NO_LIST = 'create2';
my $LIST = 'create2 getChildren';
my $MISS = "$LIST in 2 trips";    # the list waits for the answer

# Take the lock and give it back: what taking asks for
sub turn
{
	my ($s, $proxy, $path) = @_;
	my %cost = cost($zk, $s, $proxy, "SELECT zk_lock('$path', '60s')");
	is($cost{value}, 't', "$path is held") unless $cost{value} eq 't';
	$s->value("SELECT zk_unlock('$path')");
	return $cost{trips} == 1 ? $cost{requests} : "$cost{requests} in $cost{trips} trips";
}

# Until it makes do without a list; after so many misses that takes longer
sub until_no_list
{
	my ($s, $proxy, $path) = @_;
	my $turns = 0;
	$turns++ until turn($s, $proxy, $path) eq $NO_LIST || $turns > 100;
	return $turns;
}

# Somebody is before us: we are not granted before he goes
sub has_to_wait
{
	my ($s, $proxy, $path, $theirs, $what) = @_;
	$proxy->clear_log;
	$s->send("SELECT zk_lock('$path', '60s')");
	zk_until(sub { $s->is_done || $proxy->count('getData') }, 'a wait, or its end');
	if (ok(!$s->is_done, "$what: it waits")) { zk_wait_queued($zk, $s); }
	like(asked($proxy), qr/^create2 .*getChildren/, '- since it has listed the queue');
	$theirs->();
	is($s->wait->{out}, 't', '- and has its turn then');
	return $s->value("SELECT zk_unlock('$path')");
}

my ($s, $proxy) = zk_counted_session($node, $zk, 0);

subtest 'two requests instead of three' => sub {
	foreach my $style (qw(curator curator_rw kazoo))
	{
		my $path = "/$style";
		$s->value("SET zklock.node_style = $style");
		$s->value("SELECT zk_lock('$path'), zk_unlock('$path')");
		is(turn($s, $proxy, $path), $LIST, "$style: the second time shows whether it is alone");
		is(turn($s, $proxy, $path), $NO_LIST, "- the $_. time needs no list") for 3 .. 6;
	}
	$s->value('RESET zklock.node_style');
	is(turn($s, $proxy, '/kazoo'), $NO_LIST, 'nor with names of another style: the numbers are the same');

	# the directories of the other styles were more transactions than it has had nodes
	until_no_list($s, $proxy, '/curator');
	$proxy->clear_log;
	$s->value(q{DO $$ BEGIN FOR i IN 1 .. 20 LOOP PERFORM zk_xact_lock('/curator'); COMMIT; END LOOP; END $$});
	is(settled($proxy), join(' ', ('create2 delete') x 20), 'transactions, whose deletes are not waited for');

	$s->value(q{BEGIN; SAVEPOINT a; SELECT zk_xact_lock('/curator')});
	$proxy->clear_log;
	is($s->value(q{ROLLBACK TO a; SELECT zk_xact_lock('/curator'); COMMIT}), 't', 'again after a savepoint');
	is(settled($proxy), 'delete create2 delete', '- the same');

	is({ cost($zk, $s, $proxy, q{SELECT zk_try_lock('/curator')}) }->{requests}, 'sync getChildren create2 getChildren',
		'but a try looks first, and would need a third round trip if it lost its bet');
	$s->value(q{SELECT zk_unlock('/curator')});
};

subtest 'two sessions that alternate' => sub {
	my @both = ([ $s, $proxy ], [ zk_counted_session($node, $zk, 0) ]);
	turn(@$_, '/both') for @both;
	foreach my $round (1 .. 5)
	{
		foreach (@both)
		{
			my %cost = cost($zk, @$_, q{SELECT zk_lock('/both')});
			is("$cost{requests}, $cost{trips}", "$LIST, 1", "round $round: as many as ever");
			$_->[0]->value(q{SELECT zk_unlock('/both')});
		}
	}

	# the worst: each time just when it was thought to be alone
	my @misses;
	for (1 .. 4)
	{
		push @misses, until_no_list($s, $proxy, '/both');
		turn(@{ $both[1] }, '/both');
		is(turn($s, $proxy, '/both'), $MISS, 'a miss costs one round trip');
	}
	is("@misses", '2 2 4 8', '- and is the more seldom, the more there were');
	$both[1][0]->quit;
};

# Whoever comes in between
my %comer = (
	'a mutex of Curator' => sub { $client->contend($_[0], '_c_0-lock-') },
	'a lock of kazoo' => sub { $client->contend($_[0], 'f47ac10b58cc4372a5670e02b2c3d479__lock__') },
	'a reader' => sub { $client->contend($_[0], '_c_0-shared-lock-') },
	'a name of its own making' => sub { scalar $client->create("$_[0]/_c_0-lock-0000000000", mode => 'ephemeral') },
	'several nodes of one transaction' => sub {
		my ($stays, @more) = $client->multi(map { [ create => "$_[0]/_c_0-lock-", mode => 'ephemeral_sequential' ] } 1 .. 3);
		$client->multi(map { [ delete => $_ ] } @more);
		return $stays;
	},
	'one whose transactions fail, too' => sub {
		my @create = map { [ create => "$_[0]/_c_0-lock-", mode => 'ephemeral_sequential' ] } 1 .. 3;
		my $fails = sub { eval { $client->multi(@create, [ check => '/none' ]); 1 } and die 'it does not fail'; };
		$fails->();
		my ($stays) = $client->multi($create[0]);
		$fails->();
		return $stays;
	},
);
subtest 'whoever comes in between' => sub {
	my $last = 0;
	foreach my $what (sort keys %comer)
	{
		# each has a path of its own, since misses there make the next one rare; and more nodes
		# in it than there are transactions meanwhile
		my $path = '/comer/' . ++$last;
		turns($s, $path, 30);
		foreach my $still (0, 1)
		{
			until_no_list($s, $proxy, $path);
			my $theirs = $comer{$what}->("/zklock$path");
			if ($still) { has_to_wait($s, $proxy, $path, sub { $client->delete($theirs) }, "$what stands there"); }
			else
			{
				$client->delete($theirs);
				is(turn($s, $proxy, $path), $MISS, "$what has gone: that is not known without a list");
			}
		}
	}
};

subtest 'a session of ours' => sub {
	my $other = zk_session($node);
	foreach my $lock ("zk_lock('/ours')", "zk_lock_shared('/ours')")
	{
		until_no_list($s, $proxy, '/ours');
		$other->value("SELECT $lock");
		has_to_wait($s, $proxy, '/ours', sub { $other->value('SELECT zk_unlock_all()') }, $lock);
	}
	until_no_list($s, $proxy, '/ours');
	$s->value(q{SELECT zk_lock('/ours')});
	$other->send(q{SELECT zk_lock('/ours')});
	zk_wait_queued($zk, $other);
	$s->value(q{SELECT zk_unlock('/ours')});
	is($other->wait->{out}, 't', 'one that waited meanwhile');
	has_to_wait($s, $proxy, '/ours', sub { $other->value('SELECT zk_unlock_all()') }, '- is before the next');
};

# Held with s, though somebody else stands there, with a greater number: so often that
# whoever took himself to be alone would make do without a list when he gets there
subtest 'one with a number from the future' => sub {
	until_no_list($s, $proxy, '/future');
	$s->value(q{SELECT zk_lock('/future')});
	my ($number) = ($client->queue('/zklock/future'))[0] =~ /(\d{10})$/;
	my $theirs = $client->create(sprintf('/zklock/future/_c_0-lock-%010d', $number + 12), mode => 'ephemeral');
	$s->value(q{SELECT zk_unlock('/future')});
	turn($s, $proxy, '/future') for 2 .. 11;
	has_to_wait($s, $proxy, '/future', sub { $client->delete($theirs) }, 'when we get there');
};

subtest 'what ends it' => sub {
	until_no_list($s, $proxy, '/end');
	$s->value(q{SELECT zk_lock('/end'), zk_lock_shared('/end'), zk_unlock('/end')});
	$s->value(q{SELECT zk_unlock_shared('/end')});
	is(turn($s, $proxy, '/end'), $LIST, 'a downgrade');

	# a heartbeat tells, so that the next one is not near
	my ($loser, $its_proxy) = zk_counted_session($node, $zk, 0, session_timeout => '20s');
	until_no_list($loser, $its_proxy, '/lost');
	$loser->value(q{SELECT zk_lock('/lost')});
	$client->delete_contenders('/zklock/lost');
	zk_wait_hold($loser, 'lost');
	$loser->query(q{SELECT zk_unlock('/lost')});
	is(turn($loser, $its_proxy, '/lost'), $MISS, 'a lock that was lost');
	$loser->quit;

	until_no_list($s, $proxy, '/end');
	$proxy->drop;
	zk_until(sub { $proxy->connections == 1 && $s->value('SELECT state FROM zk_session') eq 'connected' }, 'a new connection');
	is(turn($s, $proxy, '/end'), $LIST, 'a new connection');
};

# The directory is removed and made again, and somebody stands in the new one, whose
# next number is the one after our last
sub turns
{
	my ($s, $path, $n) = @_;
	$s->value(qq{DO \$\$ BEGIN FOR i IN 1 .. $n LOOP PERFORM zk_lock('$path'), zk_unlock('$path'); END LOOP; END \$\$});
	return;
}

sub contender { return [ create => "$_[0]/_c_0-lock-", mode => 'ephemeral_sequential' ]; }

sub by_hand
{
	my ($dir) = @_;
	$client->delete($dir);
	return scalar $client->create($dir, mode => 'container');
}

sub made_again
{
	my ($path, $n, $make) = @_;
	turns($s, $path, $n);
	my @theirs = $make->("/zklock$path");
	push @theirs, $client->multi(contender("/zklock$path")) while @theirs < $n;
	has_to_wait($s, $proxy, $path, sub { $client->delete($_) for @theirs }, "$path: number $n again");
	return;
}
subtest 'a directory that is made again' => sub {
	made_again("/again/$_", $_, sub { by_hand(@_); return () }) for 1 .. 4, 150;

	# no fewer transactions can do it
	made_again("/at_once/$_", $_, sub { ($client->multi([ delete => $_[0] ], [ create => $_[0], mode => 'container' ], contender($_[0])))[1] }) for 1 .. 4;
};

# What is left open: doc/interop.md
subtest 'a directory that is made again, with several nodes of one transaction' => sub {
	turns($s, '/several', 5);
	by_hand('/zklock/several');
	my ($theirs, @more) = $client->multi((contender('/zklock/several')) x 5);
	$client->multi(map { [ delete => $_ ] } @more);
	is(turn($s, $proxy, '/several'), $NO_LIST, 'the one that stays is not seen');
	ok($client->exists($theirs), '- though it stands there');
	$client->delete($client->contend('/zklock/several'));
	has_to_wait($s, $proxy, '/several', sub { $client->delete($theirs) }, 'once somebody else has come');
};

subtest 'many paths' => sub {
	my @many = map { "/many/$_" } 1 .. 33;
	$s->query(join ' ', map { "SELECT zk_lock('$_'), zk_unlock('$_');" } @many);
	# more nodes in each than there are transactions between two turns
	foreach my $path (@many)
	{
		my @made = $client->multi((contender("/zklock$path")) x 200);
		$client->multi(map { [ delete => $_ ] } @made);
	}
	my @some = @many[ 0 .. 31 ];
	$s->query(join ' ', map { "SELECT zk_lock('$_'), zk_unlock('$_');" } @some, @some);
	is(join(' ', map { turn($s, $proxy, $_) } @some), join(' ', ($NO_LIST) x @some), '32 are remembered');
	turn($s, $proxy, $many[32]);
	is(turn($s, $proxy, $many[0]), $LIST, '- and the oldest is forgotten');
};

# The real reaper
$s->quit;
$client->close;
$zk->{container_check} = 1000;
$zk->restart;
$client = $zk->client;
($s, $proxy) = zk_counted_session($node, $zk, 0);
subtest 'a directory that is reaped' => sub {
	made_again("/reaped/$_", $_, sub { my ($dir) = @_; zk_until(sub { !$client->exists($dir) }, 'the reaper'); by_hand($dir); return () }) for 3, 150;
};

$_->quit for $s, $admin;
$client->close;
zk_end($zk, $node);
