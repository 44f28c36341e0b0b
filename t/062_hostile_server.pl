# A server on ZooKeeper's port can send anything: endless lists, nodes that
# never appear, names that nobody asked for; and answers of every kind,
# handshakes and events, spoiled at random, while backends use every function. No
# backend crashes, and every statement ends within its timeouts.
#
# ZK_HOSTILE_ANSWERS=20000 continues until this many are spoiled; ZK_HOSTILE_SEED is the
# seed.

use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(sum0);

use Tests;

my $WANTED = $ENV{ZK_HOSTILE_ANSWERS} // 1000;
# at most, unless not enough has happened by then; for the times alone, less will do
my $SECONDS = $ENV{ZK_HOSTILE_ANSWERS} ? 3600 : $WHOLE ? 25 : 10;
my ($LEAST, $WAYS) = $WHOLE ? (300, 15) : (1, 1);    # the least number of answers, and of ways to spoil one
my $SEED = $ENV{ZK_HOSTILE_SEED} // time ^ $$;
my $SLACK = 3;    # for a busy machine

# Tests with large amounts give the relay, which has to produce them, time
my @PATIENT = (options => '-c zklock.operation_timeout=20s -c zklock.session_timeout=20s');

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
my $node = zk_cluster('main', $proxy,
	'zklock.session_timeout' => '4s',
	'zklock.operation_timeout' => '2s',
	'zklock.connect_timeout' => '2s');
my $admin = zk_session($node, options => '-c zklock.hosts=' . $zk->hosts);
$admin->value('CREATE TABLE t (who text)');

# A connected session that holds a lock elsewhere
sub holder
{
	my (@opt) = @_;
	my $s = zk_session($node, @opt);
	$s->value(q{SELECT zk_lock('/elsewhere/' || pg_backend_pid())});
	return $s;
}

sub rss_kb
{
	my ($pid) = @_;
	return slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+)/m ? $1 : die;
}

# The lock that it held is still held, or will be once it has reconnected
sub still_holds
{
	my ($s, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$proxy->reset;
	zk_wait_session($s, 'connected');
	is($s->value(q{SELECT state FROM zk_locks WHERE path LIKE '/elsewhere%'}), 'held', "$name: what it held it holds");
	is($s->value('SELECT losses FROM zk_session'), 0, "$name: by the same ZooKeeper session");
	$s->quit;
	return;
}

# ------------------------------------------------------------------------ lists

subtest 'a list of 64 MB' => sub {
	my $s = holder(@PATIENT);
	$admin->value(q{SELECT zk_lock('/huge')});
	$zk->create('/zklock/huge/stays');    # so that the directory stays, too
	$admin->value(q{SELECT zk_unlock('/huge')});
	my $before = rss_kb($s->pid);
	foreach (
		[ 60 * 1024, q{zk_lock_queue('/huge')} ],
		[ 9 * 1024, q{zk_lock_queue('/huge')} ],
		[ 9 * 1024, q{zk_try_lock('/huge')} ],
		[ 9 * 1024, q{zk_lock('/huge')} ])
	{
		my ($n, $call) = @$_;
		$proxy->forge_list($n, '%01000dlock-0000000001');
		$proxy->clear_log;
		my $result = $s->query("SELECT $call");
		$proxy->reset;
		is($result->{state}, '54000', "$call: 54000") or diag $result->{err};
		like($result->{message}, qr{about lock path "/huge" is larger than 8 MB}, '- says so');
		in_time($result->{seconds}, 10, '- soon');
		cmp_ok($proxy->count('getChildren'), '<=', 3, '- and did not ask again and again');
	}
	cmp_ok(rss_kb($s->pid) - $before, '<', 50_000, 'memory was not filled with it');
	still_holds($s, 'lists of 64 MB');
	$zk->delete('/zklock/huge/stays');
};

# What zk_lock_queue makes of a list: its names, how many bytes without form each begins
# with, whether the nodes exist, and what comes of it
foreach (
	[   'a list of 8 MB that has nothing to do with locks', [ 180_000, '%040d-' ], 0, 'SELECT count(*)',
		sub {
			my ($result, $more_kb) = @_;
			is($result->{out}, 0, 'nobody is there') or diag $result->{err};
			cmp_ok($more_kb, '<', 60_000, 'and what it takes is not much more than what the library does');
		}
	],
	[   'many nodes of one number', [ 240_000, '%06dlock-0000000007' ], 1,
		q{SET statement_timeout = '3s'; SET client_min_messages = warning; SELECT count(*)},
		sub {
			my ($result) = @_;
			is($result->{state}, '57014', 'statement_timeout ends it') or diag $result->{err};
			in_time($result->{seconds}, 3 + $SLACK, '- in time');
		}
	],
	map {
		my $bytes = $_;
		[   "a name with $bytes bytes without form", [ 1, '%dlock-0000000007', $bytes ], 1, 'SELECT length(node)',
			sub {
				my ($result) = @_;
				cmp_ok($result->{out} || 0, '>', 4 * $bytes, 'it is shown') or diag $result->{err};
				in_time($result->{seconds}, 10, '- at once, compared with 39 s');
			}
		]
	} 1000, 400_000, 900_000)
{
	my ($name, $list, $exist, $what, $check) = @$_;
	subtest $name => sub {
		my $s = holder(@PATIENT);
		$proxy->forge_list(@$list);
		$proxy->forge_nodes if $exist;
		my $before = rss_kb($s->pid);
		my $result = $s->query("$what FROM zk_lock_queue('/other')", 60);
		note sprintf '%.1f s, %d kB', $result->{seconds}, rss_kb($s->pid) - $before;
		$check->($result, rss_kb($s->pid) - $before);
		still_holds($s, $name);
	};
}

# ------------------------------------------------------------------- never there

# All at the same time, since each waits
subtest 'our node is never in the list' => sub {
	my %ends = (
		map({ $_ => '58030' } q{zk_try_lock('/unlisted')}, q{zk_lock('/unlisted', '0')}, q{zk_try_xact_lock_shared('/unlisted')},
			q{zk_lock_many('{/unlisted,/unlisted2}', '0')}, q{zk_semaphore_acquire('/unlisted', 2, '0')}),
		map({ $_ => '57014' } q{zk_lock('/unlisted')}, q{zk_lock('/unlisted', '1h')}, q{zk_lock_many('{/unlisted,/unlisted2}')}));
	my $requests = sub { return $_[0]->value('SELECT requests FROM zk_session'); };
	my (%s, %before);
	foreach my $call (keys %ends)
	{
		$s{$call} = holder();
		$s{$call}->value(q{SET statement_timeout = } . ($ends{$call} eq '57014' ? q{'3s'} : q{'20s'}));
		$before{$call} = $requests->($s{$call});
	}
	$proxy->forge_list(0, 'x');
	my $n = 0;    # none is in the way of another
	$s{$_}->send("SELECT $_" =~ s{/unlisted}{'/unlisted/' . ++$n}ger) for keys %ends;
	foreach my $call (sort keys %ends)
	{
		my $result = $s{$call}->wait;
		is($result->{state}, $ends{$call}, "$call: $ends{$call}") or diag $result->{err};
		if ($ends{$call} eq '58030')
		{
			like($result->{message}, qr/gave no usable answer within 2000 ms/, '- says so');
			cmp_ok($result->{seconds}, '>', 1.5, '- it gives ZooKeeper the time');
			in_time($result->{seconds}, 2 + $SLACK, '- and no more');
		}
		else { in_time($result->{seconds}, 3 + $SLACK, '- it waits until it is canceled'); }
		cmp_ok($requests->($s{$call}) - $before{$call}, '<', 200, '- and asks now and then');
	}
	$proxy->reset;
	is($s{q{zk_lock('/unlisted')}}->value(q{SELECT zk_try_lock('/unlisted'), zk_unlock('/unlisted')}), 't|t', 'where the list is true, it is granted');
	still_holds($_, 'no node of ours') for values %s;
};

# The server's answer is not trusted; the node is searched for, and found
subtest 'another name than the one asked for' => sub {
	my $s = holder();
	foreach my $name ('/zklock/named/x', '/zklock/named/_c_other-lock-0000000000', '/', "\e[31m", '/zklock/named/')
	{
		my $shown = $name =~ s/\e/ESC/r;
		$proxy->forge_name($name);
		my $result = $s->query("SELECT zk_try_lock('/named')");
		is($result->{out}, 't', "a create that says $shown: granted all the same") or diag $result->{err};
		in_time($result->{seconds}, 4 + $SLACK, '- in time');
		$proxy->reset;
		is('/zklock/named/' . $s->value(q{SELECT node FROM zk_locks WHERE path = '/named'}),
			join(' ', grep { m{/named/} } $zk->tree('/zklock')), '- by its own name');
		is($s->value(q{SELECT zk_unlock('/named')}), 't', '- and given back');
	}
	still_holds($s, 'another name');
	zk_until(sub { !grep { m{/named/} } $zk->tree('/zklock') }, 'no node is left of them');
	pass('no node is left of them');
};

# ------------------------------------------------------------------- at random

# directories with long lists, and a node with much data, whose answers do not
# fit into a short frame
my $client = $zk->client(session_timeout => 120_000);
$client->contend('/zklock/data', '_c_other-lock-', data => 'x' x 6000);
$client->contend('/zklock/long', '_c_other-shared-lock-');
$client->create(sprintf('/zklock/long/%050d', $_), mode => 'persistent') for 1 .. 100;

my @program = (
	map({ my $p = $_; (
		"SELECT zk_lock('$p', '300ms'), zk_unlock('$p')",
		"SELECT zk_lock_shared('$p', '300ms'), zk_unlock_shared('$p')",
		"SELECT zk_try_lock('$p'), zk_lock_token('$p'), zk_fence('$p')",
		"BEGIN; SELECT zk_xact_lock('$p', '300ms'); INSERT INTO t VALUES ('x'); COMMIT",
		"BEGIN; SELECT zk_try_xact_lock_shared('$p'), zk_try_xact_lock('$p'); SAVEPOINT s; SELECT zk_xact_lock('$p/s', '0'); ROLLBACK TO s; INSERT INTO t VALUES ('x'); COMMIT",
		"SELECT zk_try_lock_shared('$p'), zk_xact_lock_shared('$p', '100ms')",
		"SELECT zk_semaphore_acquire('$p', 2, '300ms')", "SELECT zk_xact_semaphore_acquire('$p', 1, '0')",
		"SELECT zk_semaphore_release('$p')",
		("SELECT zk_lock('$p', '300ms'), zk_lock_shared('$p', '300ms'), zk_unlock('$p'), zk_unlock_shared('$p')") x 2,
		"SELECT * FROM zk_lock_queue('$p')",
		("BEGIN; SELECT zk_claim('$p', clock_timestamp(), '300ms'), zk_claim('$p/s', clock_timestamp(), '0'); INSERT INTO t VALUES ('x'); COMMIT") x 2,
		"SELECT zk_lock('$p', '300ms'), zk_claim('$p', clock_timestamp(), '300ms'), zk_claim('$p', '2000-01-01', '300ms')",
		"SELECT * FROM zk_last_claim('$p')", "SELECT * FROM zk_claims('$p')", "SELECT zk_lock_held('$p')", "SELECT zk_claim_forget('$p')",
		"SELECT zk_lock_break('$p', node) FROM zk_lock_queue('$p') WHERE random() < 0.1 AND host IS NOT NULL",
		"SELECT zk_unlock('$p'), zk_unlock_shared('$p')") } qw(/a /b /c/d)),
	q{SELECT zk_lock_many('{/a,/b,/e,/f}', '300ms')}, q{SELECT zk_xact_lock_many('{/a,/c/d,/g}', '0')},
	(q{SELECT * FROM zk_lock_queue('/long')}) x 3, q{SELECT zk_try_lock('/long')}, q{SELECT zk_lock('/long', '200ms')},
	(q{SELECT * FROM zk_lock_queue('/data')}) x 3, q{SELECT zk_lock_shared('/data', '200ms')},
	q{SELECT * FROM zk_locks}, q{SELECT * FROM zk_session}, 'SELECT zk_unlock_all()', 'DISCARD ALL',
	(map { "SELECT zk_unlock_all(); SET zklock.node_style = $_" } qw(curator curator_rw kazoo single)),
	q{SELECT zk_unlock_all(); SET zklock.commit_guard = strict}, q{SELECT zk_unlock_all(); SET zklock.release_timeout = '200ms'},
	q{SELECT zk_lock('/fresh/' || random(), '300ms'), zk_unlock_all()},);

# Backends run it until this many answers are spoiled.
subtest 'answers spoiled at random' => sub {
	note "ZK_HOSTILE_SEED=$SEED";
	srand $SEED;
	$proxy->spoil($ENV{ZK_HOSTILE_ANSWERS} ? 120 : 40, $SEED);
	my $until = time + $SECONDS;
	my ($longest, $slow, $n, $looked, $all) = (0, '', 0, 0, 0);
	my (%state, %op, %kind, %sql);
	my @sessions = map { zk_session($node, options => '-c statement_timeout=8s') } 1 .. ($ENV{ZK_HOSTILE_ANSWERS} ? 16 : 8);
	while ($all < $WANTED && (time < $until || (($all < $LEAST || keys %kind < $WAYS) && time < $until + $TIMEOUT)))
	{
		foreach my $s (@sessions)
		{
			next unless $s->is_done;
			if (my $sql = $sql{$s})
			{
				my $result = $s->wait;
				$n++;
				($longest, $slow) = ($result->{seconds}, $sql) if $result->{seconds} > $longest;
				$state{ $result->{state} }++;
				die "the connection is gone at: $sql\n$result->{err}" if $result->{closed};
			}
			$s->send($sql{$s} = $program[ rand @program ]);
		}
		sleep 0.002;
		next if time < $looked + 0.5;
		$looked = time;
		my %spoiled = $proxy->spoiled;
		$all = sum0(values %spoiled);
		%op = %kind = ();
		foreach (keys %spoiled)
		{
			my ($op, $kind) = split / /;
			$op{$op} += $spoiled{$_};
			$kind{$kind} += $spoiled{$_};
		}
	}
	$_->wait for @sessions;
	note sprintf 'the longest of %d took %.1f s: %s', $n, $longest, $slow;
	foreach my $count (\%state, \%op, \%kind) { note join ', ', map { ($_ || 'success') . " $count->{$_}" } sort keys %$count; }

	$proxy->reset;
	cmp_ok($all, '>=', $ENV{ZK_HOSTILE_ANSWERS} ? $WANTED : $LEAST, 'answers were spoiled');
	my @operations = qw(connect create2 createContainer delete event exists getChildren getData multi removeWatches setData sync);
	is(join(' ', grep { !$op{$_} } @operations), '', '- of every kind') if $all > 5000;
	cmp_ok(keys %kind, '>=', $WAYS, '- in every way');
	in_time($longest, 8 + $SLACK, 'every statement was over within its timeouts');
	foreach my $s (@sessions)
	{
		zk_until(sub { $s->query(q{RESET ALL; SELECT zk_unlock_all(), zk_lock('/well'), zk_unlock('/well')})->{out} =~ /t\|t$/ },
			'a backend is well again');
		$s->quit;
	}
	pass('where answers are true again, all goes on');
};

eval { $client->close };    # it may have been idle for too long
$zk->delete_tree("/zklock/$_") for qw(data long);
$admin->quit;
zk_end($zk, $node);
