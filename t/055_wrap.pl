# Locks whose directory has seen 2^31 nodes.  ZooKeeper counts them with an int:
# from there on nodes have the same number, 2147483647, and those that are made
# while others are on their way to the disk have negative ones.  Whoever goes by
# the numbers has two holders or waits for ever; kazoo and Curator do.
#
# Twenty sessions of two clusters go through that place with every kind of lock,
# and what they write down is judged here: who held together, who was passed
# over.  Then the warning that comes long before, and that its advice helps.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use List::Util qw(max sum0 uniq);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Zklock;
use ZooKeeper;

my $LAST = 2**31 - 1;
my $START = 2**31 - 5;
my $WARN_ABOVE = 2_000_000_000;
my $BACKENDS = 20;
my $TURNS = 25;    # of each: 500 in all
my $PERMITS = 3;

# empty directories stay, and so do their counters
my $zk = ZooKeeper->new(container_check => 3_600_000)->start;
my @node = map { zk_cluster($_, $zk, fsync => 'off', synchronous_commit => 'off') } qw(a b);

foreach my $node (@node)
{
	$node->safe_psql('postgres', 'CREATE EXTENSION dblink');
	$node->safe_psql('postgres', <<~"SQL");
		-- each time that something was held
		CREATE UNLOGGED TABLE hold (pid int DEFAULT pg_backend_pid(), way text, mode text, path text,
			token bigint, name text, since timestamptz, until timestamptz);

		-- A while with what is held on a path.  A writer counts where nothing but
		-- the lock protects the counter; see t/012_stress.pl.
		CREATE FUNCTION work(way text, held_mode text, at text) RETURNS hold LANGUAGE plpgsql AS \$\$
		DECLARE
			h hold;
			v int;
		BEGIN
			SELECT pg_backend_pid(), way, mode, path, token, node, clock_timestamp() INTO STRICT h
				FROM zk_locks WHERE path = at AND mode = held_mode;
			IF held_mode = 'exclusive' THEN
				SELECT n INTO v FROM dblink('counters', format('SELECT n FROM counter WHERE path = %L', at)) AS (n int);
				PERFORM dblink_exec('counters', format('UPDATE counter SET n = %s WHERE path = %L', v + 1, at));
			ELSE
				PERFORM pg_sleep(random() * 0.003);
			END IF;
			h.until := clock_timestamp();
			RETURN h;
		END \$\$;

		-- n turns with what one of these ways takes, on one of these paths
		CREATE PROCEDURE turns(n int, ways text[], paths text[]) LANGUAGE plpgsql AS \$\$
		DECLARE
			way text;
			path text;
			h hold[];
			s text;
		BEGIN
			FOR i IN 1 .. n LOOP
				way := ways[1 + floor(random() * array_length(ways, 1))];
				path := paths[1 + floor(random() * array_length(paths, 1))];
				h := '{}';
				CASE way
				WHEN 'lock' THEN
					PERFORM zk_lock(path);
					h := h || work(way, 'exclusive', path);
					PERFORM zk_unlock(path);
				WHEN 'xact' THEN
					PERFORM zk_xact_lock(path);
					h := h || work(way, 'exclusive', path);
					COMMIT;
				WHEN 'try' THEN
					-- the node of one that looked free too soon goes again
					FOR j IN 1 .. 10 LOOP
						EXIT WHEN zk_try_lock(path);
						IF j = 10 THEN PERFORM zk_lock(path); END IF;
					END LOOP;
					h := h || work(way, 'exclusive', path);
					PERFORM zk_unlock(path);
				WHEN 'lock_timeout' THEN
					-- who leaves the queue, and comes back at its end
					BEGIN
						PERFORM set_config('lock_timeout', ceil(random() * 20)::text, true);
						PERFORM zk_xact_lock(path);
					EXCEPTION WHEN lock_not_available THEN
						PERFORM set_config('lock_timeout', '0', true);
						PERFORM zk_xact_lock(path);
					END;
					h := h || work(way, 'exclusive', path);
					COMMIT;
				WHEN 'shared' THEN
					PERFORM zk_lock_shared(path);
					h := h || work(way, 'shared', path);
					PERFORM zk_unlock_shared(path);
				WHEN 'xact shared' THEN
					PERFORM zk_xact_lock_shared(path);
					h := h || work(way, 'shared', path);
					COMMIT;
				WHEN 'downgrade' THEN
					PERFORM zk_lock(path);
					PERFORM zk_lock_shared(path);
					h := h || work(way, 'exclusive', path);
					PERFORM zk_unlock(path);
					h := h || work(way, 'shared', path);
					PERFORM zk_unlock_shared(path);
				WHEN 'upgrade' THEN
					-- where somebody waits already it cannot be
					PERFORM zk_lock_shared(path);
					h := h || work(way, 'shared', path);
					BEGIN
						PERFORM zk_lock(path);
						h := h || work('upgraded', 'exclusive', path);
						PERFORM zk_unlock(path);
					EXCEPTION WHEN deadlock_detected THEN
						NULL;
					END;
					PERFORM zk_unlock_shared(path);
				WHEN 'all' THEN
					PERFORM zk_xact_lock_all(paths);
					FOREACH s IN ARRAY paths LOOP
						h := h || work(way, 'exclusive', s);
					END LOOP;
					-- all are held until the last is given back
					SELECT array_agg((x.pid, x.way, x.mode, x.path, x.token, x.name, x.since, clock_timestamp())::hold)
						INTO h FROM unnest(h) x;
					COMMIT;
				WHEN 'semaphore' THEN
					PERFORM zk_semaphore_acquire(path, $PERMITS);
					h := h || work(way, 'semaphore', path);
					PERFORM zk_semaphore_release(path);
				WHEN 'xact semaphore' THEN
					PERFORM zk_xact_semaphore_acquire(path, $PERMITS);
					h := h || work(way, 'semaphore', path);
					COMMIT;
				END CASE;
				INSERT INTO hold SELECT * FROM unnest(h);
				COMMIT;
			END LOOP;
		END \$\$;
		SQL
}
$node[0]->safe_psql('postgres', 'CREATE TABLE counter (path text PRIMARY KEY, n int NOT NULL DEFAULT 0)');
my $counters = $node[0]->connstr('postgres') =~ s/'/''/gr;
my $admin = zk_session($node[0]);

# Directories in which so many nodes have been made
sub worn
{
	my (%number) = @_;
	foreach my $path (keys %number)
	{
		$admin->value("SELECT zk_lock('$path'), zk_unlock('$path')");
		$admin->value("INSERT INTO counter VALUES ('$path')");
	}
	$zk->set_next_number(map { ("/zklock$_" => $number{$_}) } keys %number);
	return;
}

sub array { return "'{" . join(',', map { qq("$_") } @_) . "}'"; }

sub numbers { return map { (/(-?\d{9,10})$/)[0] } @_; }

# enough to see what is wrong
sub few
{
	my (@all) = @_;
	return join "\n", @all[ 0 .. ($#all < 4 ? $#all : 4) ], @all > 5 ? 'and ' . (@all - 5) . ' more' : ();
}

# All holds, by path and then by token
sub holds
{
	return sort { $a->{path} cmp $b->{path} || $a->{token} <=> $b->{token} } map {
		my $node = $_;
		map {
			my %h;
			@h{qw(cluster pid way mode path token name since until)} = ($node->name, split /\|/);
			\%h
		  } split /\n/,
		  $node->safe_psql('postgres',
			q{SELECT pid, way, mode, path, token, name, extract(epoch FROM since), extract(epoch FROM until) FROM hold})
	} @node;
}

# What two must not hold together
sub exclude
{
	my ($one, $other) = @_;
	return 0 if grep { $_->{mode} eq 'semaphore' } $one, $other;
	return 0 if $one->{pid} == $other->{pid} && $one->{cluster} eq $other->{cluster};
	return $one->{mode} eq 'exclusive' || $other->{mode} eq 'exclusive';
}

# Tests: the order of the tokens is that in which what excludes each other was
# held, and of those who share a semaphore a later one had fewer than $PERMITS
# before it.  This leaves no room for two holders, whatever the numbers were.
sub judge
{
	my (@hold) = @_;
	my (@wrong, @crowd);
	my $show = sub { my $h = shift; join ' ', @{$h}{qw(cluster pid way mode path token name since until)} };
	foreach my $j (0 .. $#hold)
	{
		my $later = $hold[$j];
		my @before = grep { $_->{path} eq $later->{path} } @hold[ 0 .. $j - 1 ];
		push @wrong, map { $show->($_) . "\n  and " . $show->($later) }
		  grep { exclude($_, $later) && $later->{since} < $_->{until} } @before;
		next unless $later->{mode} eq 'semaphore';
		my @still = grep { $_->{mode} eq 'semaphore' && $later->{since} < $_->{until} } @before;
		push @crowd, join "\n  and ", map { $show->($_) } $later, @still if @still >= $PERMITS;
	}
	is(few(@wrong), '', 'nobody held what another one held, and none before its turn');
	is(few(@crowd), '', "nor more than $PERMITS of a semaphore");
	return;
}

my $lap = 0;

# All sessions take so many turns, beginning all at once, so that nodes are made
# while others are on their way to the disk.
sub run
{
	my ($name, $ways, $n_paths, %opt) = @_;
	my @path = map { '/wrap/' . ($lap + $_) } 1 .. $n_paths;
	$lap += $n_paths;
	worn(map { $_ => $START } @path);
	$_->safe_psql('postgres', 'TRUNCATE hold') for @node;

	my $style = $opt{style} ? "-c zklock.node_style=$opt{style}" : '';
	my @s = map { zk_session($node[ $_ % 2 ], options => $style) } 1 .. $BACKENDS;
	$_->value(qq{SELECT dblink_connect('counters', '$counters'), zk_lock('/warm/' || pg_backend_pid()), zk_unlock_all()}) for @s;

	my $all = sub {
		my ($n) = @_;
		$zk->suspend;
		$_->send("CALL turns($n, " . array(@$ways) . ', ' . array(@path) . ')') for @s;
		zk_until(
			sub {
				sum0(map { $_->safe_psql('postgres',
					q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension'}) } @node) == $BACKENDS;
			},
			'all to wait');
		$zk->resume;
		my @failed = grep { $_ ne '' } map { $_->wait(120)->{err} =~ s/^.*WARNING:.*\n(?:(?:DETAIL|HINT|CONTEXT|LOCATION|PL|SQL).*\n)*//mgr } @s;
		is(few(@failed), '', 'no call failed, and all had their turns') if $n > 1 || @failed;
	};
	$all->($TURNS);
	my @hold;
	my $seen = sub { return numbers(map { $_->{name} } @hold = holds()); };
	zk_until(sub { (grep { $_ < 0 } $seen->()) || !$all->(1) && 0 }, 'negative numbers', 60);

	my @number = $seen->();
	my $stuck = grep { $_ == $LAST } @number;
	cmp_ok($stuck, '>', 1, "number $LAST was held more than once");
	cmp_ok((grep { $_ < 0 } @number), '>', 0, 'and so were negative ones');
	cmp_ok((grep { $_ >= $START && $_ < $LAST } @number), '>', 0, 'after the last good ones');
	cmp_ok(scalar @hold, '>=', $BACKENDS * $TURNS, 'all in all often enough');
	is(join(' ', sort(uniq(map { $_->{path} } @hold))), join(' ', sort @path), 'on all paths');
	my %how;
	$how{ $_->{way} }++ for @hold;
	is(join(', ', sort grep { $_ ne 'upgraded' } keys %how), join(', ', sort @$ways), 'in all ways');

	judge(@hold);
	my %written;
	$written{ $_->{path} }++ for grep { $_->{mode} eq 'exclusive' } @hold;
	foreach my $path (@path)
	{
		is($admin->value("SELECT n FROM counter WHERE path = '$path'"), $written{$path} // 0,
			'the counter, which nothing else protects, has lost nothing');
	}
	my %tokens;
	$tokens{ $_->{path} . ' ' . $_->{token} }{"$_->{cluster} $_->{pid}"}++ for @hold;
	is((grep { keys %{ $tokens{$_} } > 1 } keys %tokens), 0, 'no two had the same token');

	zk_nothing_left($zk, 'nothing is left while they live', sessions => $BACKENDS + 1);
	$_->quit for @s;
	diag(sprintf '%s: %d holds; numbers: %d stuck, %d negative (lowest %d); %s', $name, scalar @hold, $stuck,
		scalar(grep { $_ < 0 } @number), (sort { $a <=> $b } @number)[0],
		join ', ', map { "$_ $how{$_}" } sort keys %how);
	return;
}

# What is tested with is tested first
subtest 'a worn directory' => sub {
	worn('/number' => $START);
	my $client = $zk->client;
	my @name = map { scalar $client->create("/zklock/number/x$_-", mode => 'ephemeral_sequential') } 1 .. 7;
	is(join(' ', numbers(@name)), join(' ', $START .. $LAST, $LAST, $LAST), "numbers go up to $LAST and stay there");
	is($client->get('/zklock/number'), 'zklock', 'all else is as before');
	$client->close;
};

my @EXCLUSIVE = ('lock', 'xact', 'try', 'lock_timeout');
my @SHARED = (@EXCLUSIVE, 'shared', 'xact shared', 'downgrade', 'upgrade');

subtest 'exclusive' => sub { run('exclusive', \@EXCLUSIVE, 1); };
subtest 'shared' => sub { run('shared', \@SHARED, 1); };
subtest "shared, style $_" => sub { run("shared, style $_", \@SHARED, 1, style => $_); } for qw(curator_rw kazoo);
subtest 'semaphore' => sub { run('semaphore', [ 'semaphore', 'xact semaphore' ], 1); };
subtest 'zk_lock_all' => sub { run('all', ['all'], 2); };
subtest 'everything' => sub { run('everything', [ @SHARED, 'semaphore', 'xact semaphore', 'all' ], 2); };

# In these styles the reader that a writer becomes has a node of its own, which
# is newer than the writer who waits.
foreach my $style (qw(curator curator_rw kazoo))
{
	subtest "downgrade before a writer who waits, style $style" => sub {
		my $path = "/down/$style";
		worn($path => $LAST);
		my ($s, $writer, $reader) = map { zk_session($_, options => "-c zklock.node_style=$style") } @node, $node[0];
		is($s->value("SELECT zk_lock('$path'), zk_lock_shared('$path')"), 't|t', 'held in both ways');
		my $token = $s->value("SELECT zk_lock_token('$path')");
		$writer->send("SELECT zk_lock('$path')");
		zk_until(sub { $zk->children("/zklock$path") == 2 }, 'the writer');
		is($s->value("SELECT zk_unlock('$path')"), 't', 'downgraded');
		is($s->value("SELECT zk_lock_token('$path')"), $token, 'with the same token');
		is($reader->value("SELECT zk_try_lock_shared('$path')"), 'f', 'a new reader does not pass the writer');
		my $judge = zk_session($node[1], options => "-c zklock.node_style=$style");
		is($judge->value("SELECT zk_lock('$path', '300ms')"), 'f', 'nor does a writer pass');
		ok(!$writer->is_done, 'the writer still waits');
		is($s->value("SELECT zk_unlock_shared('$path')"), 't', 'the reader goes');
		is($writer->wait->{out}, 't', 'now the writer has it');
		cmp_ok($writer->value("SELECT zk_lock_token('$path')"), '>', $token, 'with a greater token');
		$_->quit for $s, $writer, $reader, $judge;
		zk_nothing_left($zk, 'nothing is left');
	};
}

# ------------------------------------------------------------------- the advice

# The names of all nodes that this session has on a path
sub number_of
{
	my ($s, $path) = @_;
	my ($name) = split /\n/, $s->value("SELECT node FROM zk_locks WHERE path = '$path'");
	return (numbers($name))[0];
}

subtest 'a warning comes in time' => sub {
	my %take = (
		zk_lock => sub { "SELECT zk_lock('$_[0]')" },
		zk_try_xact_lock => sub { "SELECT zk_try_xact_lock('$_[0]')" },
		zk_lock_shared => sub { "SELECT zk_lock_shared('$_[0]')" },
		zk_lock_all => sub { "SELECT zk_lock_all('{/warm/x,$_[0]}')" },
		zk_semaphore_acquire => sub { "SELECT zk_semaphore_acquire('$_[0]', 1)" });
	worn(map { ("/near/$_" => $WARN_ABOVE - 1) } sort keys %take);
	my $s = zk_session($node[0]);
	foreach my $how (sort keys %take)
	{
		my $path = "/near/$how";
		my @result;
		foreach (1 .. 4)
		{
			$s->value('BEGIN');
			push @result, $s->query($take{$how}->($path));
			$s->value('ROLLBACK');
		}
		is(join(' ', map { $_->{out} } @result), 't t t t', "$how: granted");
		is(join(' ', map { scalar @{ $_->{warnings} } } @result), '0 0 1 0', "- a warning above $WARN_ABOVE, once");
		like($result[2]{warnings}[0] // '', qr/\Q$path\E/, '- which names the path');
		like($result[2]{err}, qr/^HINT:.*(?:delete|remove|reap)/im, '- and says what to do');
		diag($result[2]{err}) if $how eq 'zk_lock';
	}
	my $another = zk_session($node[1]);
	is(scalar @{ $another->query($take{zk_lock}->('/near/zk_lock'))->{warnings} }, 1, 'another backend is warned, too');
	is(scalar @{ $another->query("SELECT zk_unlock('/near/zk_lock')")->{warnings} }, 0, 'and only of what it takes');
	$_->quit for $s, $another;
};

# The directory goes, by hand or by itself
subtest 'its advice helps' => sub {
	worn('/near/deleted' => $START, '/near/reaped' => $START);
	my $s = zk_session($node[0]);
	my %token;
	foreach my $path ('/near/deleted', '/near/reaped')
	{
		my $result = $s->query("SELECT zk_lock('$path')");
		is(scalar @{ $result->{warnings} }, 1, "$path: a warning");
		is(number_of($s, $path), $START, 'at the last numbers');
		$token{$path} = $s->value("SELECT zk_fence('$path')");
		$s->value("SELECT zk_unlock('$path')");
	}
	$zk->delete('/zklock/near/deleted');
	$zk->stop;
	$zk->{container_check} = 20;
	$zk->start;
	zk_until(sub { !$zk->exists('/zklock/near/reaped') }, 'the reaper');

	my $other = zk_session($node[1]);
	foreach my $path ('/near/deleted', '/near/reaped')
	{
		my $result = $s->query("SELECT zk_lock('$path')");
		is("$result->{out} @{ $result->{warnings} }", 't ', "$path: taken again, without a warning");
		is(number_of($s, $path) + 0, 0, 'numbers begin anew');
		my $token = $s->value("SELECT zk_fence('$path')");
		cmp_ok($token, '>', $token{$path}, 'tokens go on');
		is($other->value("SELECT zk_try_lock('$path')"), 'f', 'and it excludes others');
		$s->value("SELECT zk_unlock('$path')");
	}
	$_->quit for $s, $other;
};

# From here on the reaper takes each directory soon after it was used.
subtest 'tokens rise though the directory is made again and again' => sub {
	my @s = map { zk_session($_) } @node;
	my @token;
	foreach my $i (1 .. 20)
	{
		my $s = $s[ $i % 2 ];
		my $how = $i % 3 == 0 ? 'shared' : $i % 3 == 1 ? 'exclusive' : 'semaphore';
		$s->value($how eq 'shared' ? "SELECT zk_lock_shared('/again')"
			: $how eq 'exclusive' ? "SELECT zk_lock('/again')" : "SELECT zk_semaphore_acquire('/again', 2)");
		is(number_of($s, '/again') + 0, 0, "$i: $how, in a new directory");
		push @token, $s->value(q{SELECT token FROM zk_locks WHERE path = '/again'});
		$s->value('SELECT zk_unlock_all()');
		if ($i % 2) { $zk->delete('/zklock/again'); }
		else { zk_until(sub { !$zk->exists('/zklock/again') }, 'the reaper'); }
	}
	is(join(' ', @token), join(' ', sort { $a <=> $b } uniq @token), 'all tokens rose');
	$_->quit for @s;
};

$admin->quit;
$_->stop for @node;
zk_no_crash($_) for @node;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
