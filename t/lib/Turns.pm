
=pod

=head1 NAME

Turns - sessions that take and give back locks of every kind, and a check of
what they held

=head1 SYNOPSIS

  turns_prepare(@node);                 # once
  turns_path('/a');                     # each path that is used
  my @s = map { zk_warm_session($node[ $_ % 2 ]) } 1 .. 20;
  $_->send(turns_call(25, [ 'lock', 'shared' ], ['/a'])) for @s;
  $_->wait for @s;
  turns_judge(turns_holds());

=head1 DESCRIPTION

Each session records what it held, and from when until when: an interval
slightly shorter than the hold itself, by the machine's clock, which all
sessions share.  Neither zklock nor ZooKeeper is asked for any of this.  What is
held exclusively is also counted, in a file that nothing else protects, and in which other
programs may count, too.

=cut

package Turns;

use strict;
use warnings;
use Exporter qw(import);
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;
use Time::HiRes qw(sleep);

use Zklock;

our @EXPORT = qw(turns_prepare turns_path turns_counter turns_call turns_holds turns_forget
  turns_trouble turns_judge turns_counted turns_number @EXCLUSIVE_WAYS @SHARED_WAYS @SEMAPHORE_WAYS @ENDS);

# The permits of a semaphore; for how long a reader reads, at most, in seconds
our $PERMITS = 3;
our $READING = 0.003;

# The ways to hold something; there is also "all": zk_xact_lock_many
our @EXCLUSIVE_WAYS = ('lock', 'xact', 'try', 'lock_timeout', 'short timeout');
our @SHARED_WAYS = ('shared', 'xact shared', 'try shared', 'downgrade', 'upgrade');
our @SEMAPHORE_WAYS = ('semaphore', 'xact semaphore');

# Exclusive ones, too: what ends them, or does not
our @ENDS = ('rollback', 'savepoints', 'twice');

my (@node, @path);
my $dir;    # of the counters

# Prepare these clusters
sub turns_prepare
{
	@node = @_;
	$dir = PostgreSQL::Test::Utils::tempdir();
	$_->safe_psql('postgres', _functions() =~ s/PERMITS/$PERMITS/gr =~ s/READING/$READING/r =~ s/COUNTERS/$dir/r) for @node;
	return;
}

# The file with the counter of a path
sub turns_counter { my ($path) = @_; return $dir . '/' . $path =~ tr{/}{.}r; }

sub turns_path
{
	push @path, @_;
	_count_from_zero(@_);
	return;
}

sub _count_from_zero
{
	foreach my $path (@_)
	{
		open my $file, '>', turns_counter($path) or die "$path: $!";
		print $file "0\n";
		close $file or die "$path: $!";
	}
	return;
}

# SQL that takes and gives back locks n times (or for "10 s"), each time in one
# of these ways on one of these paths
sub turns_call
{
	my ($n, $ways, $paths) = @_;
	my $array = sub { return "'{" . join(',', map { qq("$_") } @_) . "}'"; };
	my ($turns, $time) = $n =~ / / ? (1e9, $n) : ($n, '1 day');
	return "CALL turns($turns, '$time', " . $array->(@$ways) . ', ' . $array->(@$paths) . ')';
}

# Until all of these sessions are done, interrupt one or the other of these
# networks about eight times a second, for less time than sessions or calls
# would notice.  Returns how often.
sub turns_trouble
{
	my ($sessions, @proxy) = @_;
	my @faults = (
		sub { $_[0]->drop; },
		sub { $_[0]->swallow_and_drop([ 'create2', 'multi' ]); },
		sub { $_[0]->swallow_and_drop('delete'); },
		sub { $_[0]->drop_request('getData'); },
		sub { $_[0]->swallow_and_drop('getChildren'); },
		sub { $_[0]->blackhole; sleep rand 0.3; $_[0]->pass; },
		sub { $_[0]->refuse; $_[0]->drop; sleep rand 0.3; $_[0]->pass; });
	my $n = 0;
	while (grep { !$_->is_done } @$sessions)
	{
		$faults[ $n++ % @faults ]->($proxy[ rand @proxy ]);
		sleep 0.1;
	}
	$_->reset for @proxy;
	return $n;
}

# The sequence number in a node's name; all markers end with "-" or "__"
sub turns_number { return ($_[0] =~ /(?:-|__)(-?\d{9,10})$/)[0]; }

# All holds since turns_forget, by path and token
sub turns_holds
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

sub turns_forget
{
	$_->safe_psql('postgres', 'TRUNCATE hold') for @node;
	_count_from_zero(@path);
	return;
}

# Whether these two must not be held together
sub _exclude
{
	my ($one, $other) = @_;
	return 0 if grep { $_->{mode} eq 'semaphore' } $one, $other;
	return 0 if $one->{pid} == $other->{pid} && $one->{cluster} eq $other->{cluster};
	return $one->{mode} eq 'exclusive' || $other->{mode} eq 'exclusive';
}

# Tests: conflicting holds did not overlap and followed the order of the tokens,
# and of those that share a semaphore each had fewer than $PERMITS before it.
# The tokens are the order of arrival, so nobody was passed over.
sub turns_judge
{
	my (@hold) = @_;
	my (@wrong, @crowd, %path, %token, @same);
	my $show = sub { my $h = shift; join ' ', @{$h}{qw(cluster pid way mode path token name since until)} };
	push @{ $path{ $_->{path} } }, $_ for @hold;
	foreach my $hold (values %path)
	{
		foreach my $j (0 .. $#$hold)
		{
			my $later = $hold->[$j];
			my @overlap = grep { $later->{since} < $_->{until} } @{$hold}[ 0 .. $j - 1 ];
			push @wrong, map { $show->($_) . "\n  and " . $show->($later) } grep { _exclude($_, $later) } @overlap;
			my @still = grep { $_->{mode} eq 'semaphore' } @overlap;
			push @crowd, join "\n  and ", map { $show->($_) } $later, @still
			  if $later->{mode} eq 'semaphore' && @still >= $PERMITS;
			my $owner = $token{"$later->{path} $later->{token}"} //= $later;
			push @same, $show->($owner) . "\n  and " . $show->($later)
			  if "$owner->{cluster} $owner->{pid}" ne "$later->{cluster} $later->{pid}";
		}
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(zk_few(@wrong), '', 'nobody held what another one held, and none before its turn');
	is(zk_few(@crowd), '', "nor more than $PERMITS of a semaphore");
	is(zk_few(@same), '', 'and no two had the same token');
	return;
}

# One test: the counters, which nothing else protects, have lost no update.
sub turns_counted
{
	my (@hold) = @_;
	my %written;
	$written{ $_->{path} }++ for grep { $_->{mode} eq 'exclusive' } @hold;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %counted = map { my $n = slurp_file(turns_counter($_)) + 0; $n ? ($_ => $n) : () } @path;
	is_deeply(\%counted, \%written, 'the counters, which nothing else protects, have lost nothing');
	return;
}

sub _functions
{
	return <<~'SQL';
		-- each time that something was held
		CREATE UNLOGGED TABLE hold (pid int DEFAULT pg_backend_pid(), way text, mode text, path text,
			token bigint, name text, since timestamptz, until timestamptz);

		-- A while with what is held on a path.  A writer counts where nothing but
		-- the lock protects the counter.
		CREATE FUNCTION work(way text, held_mode text, at text) RETURNS hold LANGUAGE plpgsql AS $$
		DECLARE
			h hold;
			counter text := 'COUNTERS/' || replace(at, '/', '.');
			n text;
		BEGIN
			SELECT pg_backend_pid(), way, mode, path, token, node, clock_timestamp() INTO STRICT h
				FROM zk_locks WHERE path = at AND mode = held_mode;
			IF held_mode = 'exclusive' THEN
				-- empty: somebody is writing it, who should not
				n := coalesce(nullif(rtrim(pg_read_file(counter), E'\n'), ''), '-1');
				PERFORM pg_sleep(random() * 0.001);
				EXECUTE format('COPY (SELECT %s + 1) TO %L', n, counter);
			ELSE
				PERFORM pg_sleep(random() * READING);
			END IF;
			h.until := clock_timestamp();
			RETURN h;
		END $$;

		-- n turns, begun within that time, with what one of these ways takes, on one of these paths
		CREATE PROCEDURE turns(n int, within interval, ways text[], paths text[]) LANGUAGE plpgsql AS $$
		DECLARE
			way text;
			path text;
			h hold[];
			s text;
			ends timestamptz := clock_timestamp() + within;
			first int := floor(random() * array_length(ways, 1));
		BEGIN
			FOR i IN 1 .. n LOOP
				EXIT WHEN clock_timestamp() > ends;
				-- each has its turn
				way := ways[1 + (first + i) % array_length(ways, 1)];
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
				WHEN 'short timeout' THEN
					-- one that ends before ZooKeeper has said anything is an error
					BEGIN
						IF NOT zk_lock(path, make_interval(secs => random() * 0.02)) THEN PERFORM zk_lock(path); END IF;
					EXCEPTION WHEN io_error THEN
						PERFORM zk_lock(path);
					END;
					h := h || work(way, 'exclusive', path);
					PERFORM zk_unlock(path);
				WHEN 'rollback' THEN
					PERFORM zk_xact_lock(path);
					h := h || work(way, 'exclusive', path);
					ROLLBACK;
				WHEN 'savepoints' THEN
					BEGIN
						BEGIN
							PERFORM zk_lock(path);
							RAISE division_by_zero;
						EXCEPTION WHEN division_by_zero THEN
							NULL;
						END;
						PERFORM zk_xact_lock(path);
						h := h || work(way, 'exclusive', path);
						RAISE division_by_zero;
					EXCEPTION WHEN division_by_zero THEN
						NULL;
					END;
				WHEN 'twice' THEN
					PERFORM zk_xact_lock(path), zk_lock(path);
					PERFORM zk_lock(path);
					PERFORM zk_unlock(path), zk_unlock(path);
					h := h || work(way, 'exclusive', path);
					COMMIT;
				WHEN 'try shared' THEN
					IF NOT zk_try_lock_shared(path) THEN PERFORM zk_lock_shared(path); END IF;
					h := h || work(way, 'shared', path);
					PERFORM zk_unlock_shared(path);
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
					PERFORM zk_xact_lock_many(paths);
					FOREACH s IN ARRAY paths LOOP
						h := h || work(way, 'exclusive', s);
					END LOOP;
					-- all are held until the last is given back
					SELECT array_agg((x.pid, x.way, x.mode, x.path, x.token, x.name, x.since, clock_timestamp())::hold)
						INTO h FROM unnest(h) x;
					COMMIT;
				WHEN 'semaphore' THEN
					PERFORM zk_semaphore_acquire(path, PERMITS);
					h := h || work(way, 'semaphore', path);
					PERFORM zk_semaphore_release(path);
				WHEN 'xact semaphore' THEN
					PERFORM zk_xact_semaphore_acquire(path, PERMITS);
					h := h || work(way, 'semaphore', path);
					COMMIT;
				END CASE;
				INSERT INTO hold SELECT * FROM unnest(h);
				COMMIT;
			END LOOP;
		END $$;
		SQL
}

1;
