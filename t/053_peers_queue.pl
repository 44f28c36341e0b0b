# Sharing one queue: eight clients of a library and eight SQL sessions on one
# path, each acquiring and releasing the lock as often as it can.  Five scenes,
# each on a path of its own, all at the same time:
#
#   curator_mutex    Curator's InterProcessMutex; node_style curator
#   curator_rw       Curator's InterProcessReadWriteLock; curator_rw
#   kazoo_pattern    kazoo's Lock with extra_lock_patterns=["-lock-"]; curator
#   kazoo_rw         kazoo's ReadLock and WriteLock; kazoo
#   kazoo_single     one ephemeral node and a watch, with kazoo's client; single
#
# The last one has no queue: who comes first is not served first, but a node is
# made only when the one before is gone, so all else that is checked holds.
#
# Neither kind of client is asked whether all went well.  The lock protects a
# number in a file, which nothing else protects: an exclusive holder reads it
# and writes that plus 1; a shared holder reads it twice.  So each hold has read
# how many exclusive ones were before it, and the tokens (the czxids of the
# nodes) tell how many there should have been.  Each also records from when
# until when it held the lock, to see that readers share it.
#
# PEERS_SECONDS: how long; default 6.  PEERS_SCENES: only these, separated by
# commas.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(max min sum);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Deadline;
use Peer;
use Zklock;
use ZooKeeper;

my $SECONDS = $ENV{PEERS_SECONDS} // 6;
my $CLIENTS = 8;    # on each side

# sql_share, peer_share: how many of a hundred holds of that side are shared.
# Where the library has only an exclusive lock, but one that excludes our shared
# ones, the SQL sessions take those too.
my @scenes = (
	{ name => 'curator_mutex', peer => 'curator', class => 'mutex', style => 'curator', peer_share => 0, sql_share => 40 },
	{ name => 'curator_rw', peer => 'curator', class => 'write', style => 'curator_rw', peer_share => 70, sql_share => 70 },
	{ name => 'kazoo_pattern', peer => 'kazoo', class => 'pattern', style => 'curator', peer_share => 0, sql_share => 40 },
	{ name => 'kazoo_rw', peer => 'kazoo', class => 'write', style => 'kazoo', peer_share => 70, sql_share => 70,
		root => "$ENV{ZKLOCK_TMP}/newer" },
	{ name => 'kazoo_single', peer => 'kazoo', class => 'single', style => 'single', peer_share => 0, sql_share => 0, unfair => 1 });
if ($ENV{PEERS_SCENES})
{
	my %wanted = map { $_ => 1 } split /,/, $ENV{PEERS_SCENES};
	@scenes = grep { $wanted{ $_->{name} } } @scenes;
}

my $zk = ZooKeeper->new->start;
# all clients begin at once, and on a slow machine the server has much to do
my $node = zk_cluster('main', $zk, fsync => 'off', synchronous_commit => 'off',
	'zklock.connect_timeout' => '60s', 'zklock.operation_timeout' => '60s');
$node->safe_psql('postgres', <<~'SQL');
	-- each time that a lock was held: what the libraries' clients write into a file
	CREATE UNLOGGED TABLE hold (path text, client int, mode text, asked timestamptz, since timestamptz,
		until timestamptz, token bigint, first bigint, second bigint);

	-- and what became of each call
	CREATE UNLOGGED TABLE outcome (path text, outcome text);

	-- empty: somebody is writing it, who should not
	CREATE FUNCTION read_counter(file text) RETURNS bigint LANGUAGE sql VOLATILE AS $$
		SELECT coalesce(nullif(rtrim(pg_read_file(file), E'\n'), '')::bigint, -1)
	$$;

	-- what is done under the lock; see t/peers/locker, which does the same.  Readers that are
	-- let in together meet, also where one of them goes on later than the other.
	CREATE FUNCTION use_lock(INOUT h hold, counter text) LANGUAGE plpgsql AS $$
	BEGIN
		h.since := clock_timestamp();
		h.first := read_counter(counter);
		PERFORM pg_sleep(CASE h.mode WHEN 'shared' THEN 0.02 ELSE 0.001 END);
		IF h.mode = 'shared' THEN
			h.second := read_counter(counter);
		ELSE
			EXECUTE format('COPY (SELECT %s) TO %L', h.first + 1, counter);
			h.second := h.first;
		END IF;
		h.token := zk_lock_token(h.path);
		h.until := clock_timestamp();
	END $$;

	CREATE PROCEDURE hold_often(path text, client int, seconds numeric, share int, counter text) LANGUAGE plpgsql AS $$
	DECLARE
		ends timestamptz := clock_timestamp() + make_interval(secs => seconds);
		xact text;
		shared text;
		patience interval;
		got boolean;
		h hold;
		down hold;
		turns int := 0;
	BEGIN
		h.path := path;
		h.client := client;
		WHILE clock_timestamp() < ends LOOP
			-- the first one is exclusive, and goes on as a reader
			xact := CASE WHEN turns > 0 AND random() < 0.5 THEN 'xact_' END;
			shared := CASE WHEN turns > 0 AND random() * 100 < share THEN '_shared' END;
			patience := CASE WHEN random() < 0.1 THEN make_interval(secs => random() / 4) END;
			h.mode := CASE WHEN shared IS NULL THEN 'exclusive' ELSE 'shared' END;
			h.asked := clock_timestamp();
			down := NULL;

			-- some leave the queue before it is their turn; where not even
			-- ZooKeeper has answered by then, that is an error
			BEGIN
				EXECUTE format('SELECT zk_%slock%s($1, $2)', xact, shared) INTO got USING path, patience;
			EXCEPTION WHEN io_error THEN
				got := NULL;
			END;
			IF got THEN
				h := use_lock(h, counter);
				IF xact IS NOT NULL THEN
					COMMIT;
				ELSIF shared IS NULL AND share > 0 AND (turns = 0 OR random() < 0.3) THEN
					-- those who write go on as those who read
					PERFORM zk_lock_shared(path);
					PERFORM zk_unlock(path);
					down := h;
					down.mode := 'shared';
					down.asked := clock_timestamp();
					down := use_lock(down, counter);
					PERFORM zk_unlock_shared(path);
					INSERT INTO hold SELECT down.*;
				ELSE
					EXECUTE format('SELECT zk_unlock%s($1)', shared) USING path;
				END IF;
				INSERT INTO hold SELECT h.*;
				turns := turns + 1;
			ELSIF patience IS NULL THEN
				RAISE 'got %', got;
			END IF;
			INSERT INTO outcome VALUES (path, CASE WHEN down IS NOT NULL THEN 'down' ELSE coalesce(got::text, 'error') END);
			COMMIT;
		END LOOP;
	END $$;
	SQL

sub describe
{
	return join ' ',
	  map { "$_->{who} $_->{mode} $_->{token} read $_->{first} $_->{second} $_->{since}..$_->{until};" } @_;
}

# In the records of both sides, each row is one hold.
sub holds
{
	my ($scene) = @_;
	my @columns = qw(client mode asked since until token first second);
	my $us = sub { "(extract(epoch FROM $_[0]) * 1000000)::bigint" };
	my %rows = (
		$scene->{peer} => [ split /\n/, -e $scene->{log} ? slurp_file($scene->{log}) : '' ],
		sql => [
			split /\n/, $node->safe_psql('postgres',
				qq{SELECT format('%s %s %s %s %s %s %s %s', client, mode, @{[ join ', ', map { $us->($_) } qw(asked since until) ]},
					token, first, second) FROM hold WHERE path = '/$scene->{name}'}) ]);
	my @holds;
	foreach my $side (keys %rows)
	{
		foreach my $row (@{ $rows{$side} })
		{
			my %h;
			@h{@columns} = split / /, $row;
			push @holds, { %h, side => $side, who => "$side $h{client}" };
		}
	}
	# A writer that downgrades keeps its token.
	return sort { $a->{token} <=> $b->{token} || $a->{mode} cmp $b->{mode} } @holds;
}

sub judge
{
	my ($scene) = @_;
	my $name = $scene->{name};
	my @holds = holds($scene);
	my @alone = grep { $_->{mode} eq 'exclusive' } @holds;
	my @together = grep { $_->{mode} eq 'shared' } @holds;

	# Never two holders of an exclusive lock, by the number in the file
	my @read = sort { $a->{first} <=> $b->{first} } @alone;
	is(zk_few(map { describe(@read[ $_ - 1, $_ ]) } grep { $read[$_]{first} == $read[ $_ - 1 ]{first} } 1 .. $#read),
		'', "$name: nobody who was to be alone read the number that another one did");
	is(slurp_file($scene->{counter}) + 0, scalar @alone, '- nor overwrote what another one wrote');
	is(zk_few(map { describe($_) } grep { $_->{first} != $_->{second} } @together), '', '- nor wrote while others read');

	# First come, first served: each has read how many were there before.
	my ($before, @disorder, @same) = (0);
	foreach my $i (0 .. $#holds)
	{
		my $h = $holds[$i];
		push @disorder, "should have read $before: " . describe($h) if $h->{first} != $before;
		my $last = $i ? $holds[ $i - 1 ] : { token => 0, who => '' };
		push @same, describe($last, $h)
		  if $last->{token} == $h->{token} && !($last->{who} eq $h->{who} && $last->{mode} lt $h->{mode});
		$before++ if $h->{mode} eq 'exclusive';
	}
	is(zk_few(@disorder), '', "$name: who came first had it first: what each read follows the order of the nodes");
	is(zk_few(@same), '', '- and each had a node of its own');

	# No client starved.
	my (%count, %alone);
	$count{ $_->{who} }++ for @holds;
	$alone{ $_->{who} }++ for @alone;
	foreach my $side ($scene->{peer}, 'sql')
	{
		my @counts = map { $count{"$side $_"} // 0 } 0 .. $CLIENTS - 1;
		cmp_ok(min(@counts), '>=', $scene->{unfair} ? 1 : max(1, sum(@counts) / $CLIENTS / 3),
			"$name: each of $side had it, and often: @counts");
		my @alone_counts = map { $alone{"$side $_"} // 0 } 0 .. $CLIENTS - 1;
		cmp_ok(min(@alone_counts), '>', 0, "- and alone: @alone_counts");
	}
	my $longest = max map { $_->{since} - $_->{asked} } @holds;
	cmp_ok($longest, '<', ($scene->{unfair} ? $SECONDS + $MOMENT : $MOMENT) * 1e6, sprintf '- and nobody waited for long: at most %.2f s', $longest / 1e6);

	# Those that may share the lock did so, on the same side and across.
	my %pairs;
	my @current;
	foreach my $h (sort { $a->{since} <=> $b->{since} } @together)
	{
		@current = grep { $_->{until} > $h->{since} } @current;
		$pairs{ join ' ', sort $_->{side}, $h->{side} }++ for @current;
		push @current, $h;
	}
	my @sharing = (('sql') x !!$scene->{sql_share}, ($scene->{peer}) x !!$scene->{peer_share});
	foreach my $pair (map { my $side = $_; map { [ $side, $_ ] } @sharing } @sharing)
	{
		next if $pair->[0] gt $pair->[1];
		cmp_ok($pairs{"@$pair"} // 0, '>', 0, "$name: readers together: @$pair");
	}

	# What SQL sessions report otherwise; a few that could not connect are due
	# to the load.
	my %outcome = map { split /\|/ } split /\n/,
	  $node->safe_psql('postgres', "SELECT outcome, count(*) FROM outcome WHERE path = '/$name' GROUP BY 1");
	cmp_ok($outcome{false} // 0, '>', 0, "$name: some left the queue early");
	cmp_ok($outcome{down} // 0, '>', 0, '- and some went on as readers') if $scene->{sql_share};
	note "$name: outcomes of SQL calls: " . join ', ', map { "$_ $outcome{$_}" } sort keys %outcome;

	my @each = map { my $side = $_; [ map { $count{"$side $_"} // 0 } 0 .. $CLIENTS - 1 ] } $scene->{peer}, 'sql';
	diag(sprintf '%s: %d holds, %d of them shared, %.0f a second; each of %s %d to %d, of SQL %d to %d; longest wait %.2f s',
		$name, scalar @holds, scalar @together, @holds / $SECONDS,
		$scene->{peer}, (map { min(@$_), max(@$_) } @each), $longest / 1e6);
	return;
}

# ------------------------------------------------------------------- the scenes

my $dir = PostgreSQL::Test::Utils::tempdir();
foreach my $scene (@scenes)
{
	my $log = "$PostgreSQL::Test::Utils::log_path/053_peers_queue_$scene->{name}";
	$scene->{locker} = Peer->new($scene->{peer}, $zk, no_wait => 1, log => "$log.log", root => $scene->{root});
	$scene->{log} = "$dir/$scene->{name}.log";
	$scene->{counter} = "$dir/$scene->{name}.counter";
	append_to_file($scene->{counter}, "0\n");
	$scene->{sql} = [ map { zk_session($node, options => "-c zklock.node_style=$scene->{style}") } 1 .. $CLIENTS ];
	# each has its ZooKeeper session before it begins
	$_->send('BEGIN; SELECT zk_xact_lock($$/warm/$$ || pg_backend_pid()); COMMIT') for @{ $scene->{sql} };
}
foreach my $scene (@scenes)
{
	my $peer = $scene->{locker};
	is($peer->wait, 'ready', "$scene->{name}: $scene->{peer} is there");
	$peer->send("clients $CLIENTS");
}
foreach my $scene (@scenes)
{
	is($scene->{locker}->wait, 'ok', "$scene->{name}: with $CLIENTS clients, each with a session");
	$scene->{version} = $scene->{locker}->ask('version');
	diag("$scene->{name}: $scene->{peer} $scene->{version}");
	is(join(' ', map { $_->wait->{state} } @{ $scene->{sql} }), ' ' x ($CLIENTS - 1), '- and the SQL sessions are');

	# In these versions a reader also waits for later writers (kazoo#649), and
	# they for the reader.
	next unless "$scene->{peer} $scene->{version}" =~ /^kazoo 2\.[0-8]\./ && $scene->{peer_share};
  SKIP:
	{
		$scene->{peer_share} = 0;
		skip "$scene->{name}: kazoo $scene->{version}'s ReadLock deadlocks by itself (kazoo#649); the readers are SQL only", 1;
	}
}

foreach my $scene (@scenes)
{
	my $path = "/$scene->{name}";
	$scene->{locker}->send("run /zklock$path $SECONDS $scene->{class} $scene->{peer_share} $scene->{counter} $scene->{log}");
	$scene->{sql}[$_]->send("CALL hold_often('$path', $_, $SECONDS, $scene->{sql_share}, '$scene->{counter}')")
	  for 0 .. $CLIENTS - 1;
}
foreach my $scene (@scenes)
{
	my $name = $scene->{name};
	# A client that waits forever says nothing.
	my $said = eval { $scene->{locker}->wait($SECONDS + 60) } // $@;
	my @errors = grep { $_ ne '' } map { eval { $_->wait->{err} } // $@ } $said =~ /^ok / ? @{ $scene->{sql} } : ();
	like($said, qr/^ok /, "$name: all clients of $scene->{peer} came to their end");
	is(zk_few(@errors), '', '- and all of SQL');
	next if $said =~ /^ok / && !@errors;
	diag(join "\n", "$name:", $zk->children("/zklock/$name"), $zk->four_letter('wchp'), $zk->four_letter('dump'));
	BAIL_OUT("$name: it does not go on");
}
judge($_) for @scenes;

# -------------------------------------------------------------------- the end

zk_nothing_left($zk, 'no node and no watch is left while all sessions are there');
$_->quit for map { @{ $_->{sql} }, $_->{locker} } @scenes;
zk_nothing_left($zk, 'and no session when they have gone', sessions => 0);
zk_no_crash($node);
$node->stop;
$zk->stop;

done_testing();
