# Random programs: four sessions of two clusters acquire and release locks of
# all kinds and scopes, with savepoints, errors, cancels.  After each step their
# answers, zk_locks, the tokens and the queues in ZooKeeper are what the model
# predicts (lib/Model.pm).  Half of them are run with
# zklock_advisory, whose locks pg_locks shows as it shows PostgreSQL's, but for those who wait;
# what PostgreSQL's own answer is in t/101.  No program uses a
# single node (t/095): who is next there cannot be predicted.
#
# RANDOM_PROGRAMS: how many (default 60, six of each style and kind)
# RANDOM_SEED: of the first; the others follow.  With RANDOM_PROGRAMS=1 it
# repeats a single one.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Model;
use Queue;
use RandomProgram qw(@PATHS $SESSIONS);
use Zklock;
use ZooKeeper;

my $PROGRAMS = $ENV{RANDOM_PROGRAMS} || 60;
my $SEED = $ENV{RANDOM_SEED} || 1;
my $PATIENCE = 20;    # seconds, for what should happen at once
my @ALL = (0 .. $SESSIONS - 1);

my $zk = ZooKeeper->new(container_check => 1000)->start;
my $client;
my %setting = (
	'zklock.session_timeout' => '30s',
	deadlock_timeout => '1min',    # deadlock detection might reorder queues
	fsync => 'off');
my @node = map { zk_cluster($_, $zk, %setting) } qw(a b);
my @admin = map { zk_session($_) } @node;

# Concatenates the answers of the statements, with booleans as psql shows them.
my $functions = q{
	CREATE FUNCTION block(statements text[], raises boolean) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		answers text[] := '{}';
		statement text;
		answer text;
	BEGIN
		BEGIN
			FOREACH statement IN ARRAY statements LOOP
				EXECUTE statement INTO answer;
				answers := answers || CASE answer WHEN 'true' THEN 't' WHEN 'false' THEN 'f' ELSE answer END;
			END LOOP;
			IF raises THEN
				RAISE division_by_zero;
			END IF;
		EXCEPTION WHEN OTHERS THEN
			answers := answers || sqlstate::text;
		END;
		RETURN array_to_string(answers, ' ');
	END $$;

	CREATE PROCEDURE procedure(statements text[], INOUT answers text) LANGUAGE plpgsql AS $$
	DECLARE
		statement text;
		answer text;
	BEGIN
		FOREACH statement IN ARRAY statements LOOP
			IF statement = 'COMMIT' THEN
				COMMIT;
			ELSIF statement = 'ROLLBACK' THEN
				ROLLBACK;
			ELSE
				EXECUTE statement INTO answer;
				answers := concat_ws(' ', answers, CASE answer WHEN 'true' THEN 't' WHEN 'false' THEN 'f' ELSE answer END);
			END IF;
		END LOOP;
	END $$};
$_->safe_psql('postgres', "$functions; CREATE EXTENSION zklock_advisory") for @node;

# ----------------------------------------------------------------- two systems

# What a program runs on: sessions; the directories of the paths, the sessions' ids, what
# stands in the queues in ZooKeeper ("kind path" => the nodes in their order), and nodes
# that cannot change, by name.
my %zklock = (name => 'zklock', dirs => [ map { "/zklock$_" } @PATHS ]);
my %drop_in = (name => 'zklock_advisory', dirs => [ map { "/zklock/advisory/postgres/$_" } 0 .. $#PATHS ]);
my @systems = (\%zklock, \%drop_in);
%$_ = (%$_, session => [], id => [], stands => {}, seen => {}) for @systems;

my $style = '';

sub options_for
{
	my ($who) = @_;
	my $own = $style eq 'mixed' ? (qw(curator curator_rw kazoo))[ $who % 3 ] : $style;
	return "-c zklock.node_style=$own";
}
$zklock{options} = \&options_for;
$drop_in{options} = sub { return options_for(@_) . ' -c search_path=zklock_advisory,pg_catalog,public' };

sub connect_session
{
	my ($system, $who) = @_;
	my $s = zk_session($node[ $who % 2 ], options => $system->{options}->($who));
	$system->{session}[$who] = $s;
	$s->value(q{SELECT zk_lock('/warm'), zk_unlock('/warm')});
	$system->{id}[$who] = $s->value('SELECT session_id FROM zk_session');
	return;
}

# Disconnect all sessions, whatever they are doing, with everything they hold.
sub disconnect_all
{
	foreach my $system (@systems)
	{
		$_->kill9 for grep { $_ } @{ $system->{session} };
		$system->{session} = [];
	}
	foreach my $admin (@admin)
	{
		zk_until(
			sub {
				$admin->value(q{SELECT count(*) FROM pg_stat_activity
					WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()}) == 0;
			},
			'the sessions to end');
	}
	zk_until(sub { !grep { queues_in_zookeeper($_) ne '' } @systems }, 'the queues to be empty');
	return;
}

sub connect_all
{
	foreach my $system (@systems)
	{
		connect_session($system, $_) for grep { !$system->{session}[$_] } @ALL;
	}
	return;
}

# ------------------------------------------------------------------ comparing

# A difference between the model and reality
sub differ
{
	my ($what, $expected, $got) = @_;
	die { what => $what, expected => $expected, got => $got };
}

sub name_of { return chr(ord('A') + $_[0]); }

sub say_answers
{
	return join ', ', map { name_of($_->[0]) . ": $_->[1]" } sort { $a->[0] <=> $b->[0] } @_;
}

sub answer_of
{
	my ($result) = @_;
	my $answer = $result->{closed} ? '57P01' : $result->{state} || $result->{out};
	return join ' ', $answer, map { 'warning' } @{ $result->{warnings} };
}

# Begin a step.
sub start
{
	my ($program, $system, $step) = @_;
	my $who = $step->{who};
	my $s = $system->{session}[$who];
	my $admin = $admin[ $who % 2 ];

	if ($step->{op} eq 'cancel') { $admin->value('SELECT pg_cancel_backend(' . $s->pid . ')'); }
	elsif ($step->{op} eq 'terminate') { $admin->value('SELECT pg_terminate_backend(' . $s->pid . ')'); }
	elsif ($step->{op} eq 'quit') { $s->quit; }
	else { $s->send($program->sql($step)); }
	return;
}

# The answers of those whose statement this step ends
sub answers
{
	my ($system, $step, $expected) = @_;
	my @answers;
	foreach my $who (map { $_->[0] } @$expected)
	{
		my $result = eval { $system->{session}[$who]->wait($PATIENCE) };
		differ("$system->{name}: " . name_of($who) . ' does not answer', say_answers(@$expected), $@) unless $result;
		push @answers, [ $who, answer_of($result) ];
	}
	return @answers;
}

# These must still wait.
sub check_blocked
{
	my ($system, $model) = @_;
	foreach my $who (grep { $model->is_blocked($_) } @ALL)
	{
		my $s = $system->{session}[$who];
		differ("$system->{name}: " . name_of($who), 'waits', answer_of($s->wait)) if $s->is_done;
	}
	return;
}

# Poll until the state is as expected.
sub await_same
{
	my ($system, $model, $what, $expected, $look) = @_;
	my $deadline = time + $PATIENCE;
	my $pause = 0.0005;
	while (1)
	{
		my $got = $look->();
		check_blocked($system, $model);
		return if $got eq $expected;
		differ($what, $expected, $got) if time > $deadline;
		sleep $pause;
		$pause *= 1.5 if $pause < 0.02;
	}
}

# ---------------------------------------------------------------------- zklock

# The queues in ZooKeeper, as text
sub queues_in_zookeeper
{
	my ($system) = @_;
	my (%seen, %stands, @say);
	foreach my $path (0 .. $#PATHS)
	{
		my %queue = (lock => [], semaphore => []);
		my $dir = $system->{dirs}[$path];
		foreach my $name ($client->children($dir))
		{
			my ($kind, $mode, $permits, $number) = queue_contender($name) or next;
			my $node = $system->{seen}{$name} // do
			{
				my ($data, $stat) = $client->get("$dir/$name") or next;
				my ($who) = grep { $system->{id}[$_] eq sprintf '0x%x', $stat->{ephemeralOwner} } @ALL;
				my %fact = queue_facts($data);
				{ name => $name, number => $number, who => $who, mode => $fact{shared} ? 'shared' : $permits ? "$mode $permits" : $mode };
			};

			# a downgrade may write into this one
			$seen{$name} = $node unless $node->{mode} eq 'exclusive';
			push @{ $queue{$kind} }, $node;
		}
		foreach my $kind (sort keys %queue)
		{
			my @queue = sort { $a->{number} <=> $b->{number} } @{ $queue{$kind} };
			$stands{"$kind $path"} = \@queue;
			push @say, "$kind $dir: " . join ', ',
			  map { (defined $_->{who} ? name_of($_->{who}) : 'nobody') . " $_->{mode}" } @queue
			  if @queue;
		}
	}
	@{$system}{qw(seen stands)} = (\%seen, \%stands);
	return join '; ', @say;
}

# and those of the model
sub queues_in_model
{
	my ($system, $model) = @_;
	my @say;
	foreach my $path (0 .. $#PATHS)
	{
		foreach my $kind (qw(lock semaphore))
		{
			my @queue = $model->queue($kind, $path) or next;
			push @say, "$kind $system->{dirs}[$path]: " . join ', ',
			  map { name_of($_->{who}) . " $_->{mode}" . ($kind eq 'semaphore' ? " $_->{permits}" : '') } @queue;
		}
	}
	return join '; ', @say;
}

sub await_queues
{
	my ($system, $model) = @_;
	return await_same($system, $model, "$system->{name}: the queues in ZooKeeper", queues_in_model($system, $model),
		sub { queues_in_zookeeper($system) });
}

my %token_of;    # place => token

# A place keeps one token, and later places have greater ones.
sub check_tokens
{
	my ($model, @found) = @_;
	foreach my $found (@found)
	{
		my ($place, $token) = @$found;
		my $known = $token_of{$place} //= $token;
		differ("the token of place $place", $known, $token) if $known != $token;
	}
	foreach my $path (0 .. $#PATHS)
	{
		my @tokens = grep { defined } map { $token_of{ $_->{number} } } $model->queue('lock', $path);
		differ("tokens of $PATHS[$path] in the order of the queue", 'rising', "@tokens")
		  if grep { $tokens[ $_ - 1 ] >= $tokens[$_] } 1 .. $#tokens;
	}
	return;
}

# What idle sessions say that they hold.  Returns what may become right in a
# moment, if anything.
sub check_holds
{
	my ($model) = @_;
	my @asked = grep { !$model->is_blocked($_) && !$model->is_failed($_) } @ALL;
	my $tokens = join q{ || ' ' || }, map { "coalesce(zk_lock_token('$_')::text, '-')" } @PATHS;
	$zklock{session}[$_]->send(
		qq{SELECT path, mode, scope, count, state, token, node FROM zk_locks
			UNION ALL SELECT session_id, state, $tokens, 0, '', 0, '' FROM zk_session}) for @asked;
	my %result = map { $_ => $zklock{session}[$_]->wait($PATIENCE) } @asked;

	# the names of the nodes by the model's places
	my %node;
	foreach my $path (0 .. $#PATHS)
	{
		foreach my $kind (qw(lock semaphore))
		{
			my @places = $model->queue($kind, $path);
			$node{ $places[$_]{number} } = $zklock{stands}{"$kind $path"}[$_]{name} for 0 .. $#places;
		}
	}

	my (@found, $late);
	foreach my $who (@asked)
	{
		my $name = name_of($who);
		my $result = $result{$who};
		differ("$name: zk_locks", '', $result->{err}) if $result->{state} || $result->{closed};
		my (@rows, @session);
		foreach my $line (split /\n/, $result->{out})
		{
			my @field = split /\|/, $line, -1;
			if ($field[0] =~ m{^/})
			{
				my ($path) = grep { $PATHS[$_] eq $field[0] } 0 .. $#PATHS;
				push @rows, { row => "$path $field[1] $field[2] $field[3]", state => $field[4], token => $field[5], node => $field[6] };
			}
			else { @session = @field; }
		}
		@rows = sort { $a->{row} cmp $b->{row} } @rows;
		my @expected = sort { $a->{row} cmp $b->{row} } $model->holds($who);
		my $words = sub { return join ', ', map { my ($path, @rest) = split ' ', $_->{row}; "$PATHS[$path] @rest" } @_; };
		differ("zk_locks of $name", $words->(@expected), $words->(@rows)) if $words->(@expected) ne $words->(@rows);
		foreach my $i (0 .. $#rows)
		{
			differ("zk_locks of $name: state of $rows[$i]{row}", 'held', $rows[$i]{state}) if $rows[$i]{state} ne 'held';
			my $node = $node{ $expected[$i]{place} };
			$late = [ "zk_locks of $name: node of $rows[$i]{row}", $node, $rows[$i]{node} ] if $node ne $rows[$i]{node};
			push @found, [ $expected[$i]{place}, $rows[$i]{token} ];
		}
		differ("the session of $name", "$zklock{id}[$who] connected", "@session[0, 1]")
		  if "@session[0, 1]" ne "$zklock{id}[$who] connected";
		my @token = split ' ', $session[2];
		foreach my $path (0 .. $#PATHS)
		{
			my $place = $model->token_place($who, $path);
			differ("zk_lock_token('$PATHS[$path]') of $name", defined $place ? 'one' : 'none', $token[$path])
			  if defined $place != ($token[$path] ne '-');
			push @found, [ $place, $token[$path] ] if defined $place;
		}
	}
	check_tokens($model, @found);
	return $late;
}

sub check_zklock
{
	my ($model) = @_;

	# Read twice: data read from several paths is not a snapshot, and a session that
	# wants several locks may have had, for a moment, places after the first taken one.
	await_queues(\%zklock, $model) for 1, 2;

	# COMMIT does not wait for the answer to what it sent; so a place that has
	# become the shared lock's may keep its old name for a moment, but nothing
	# else may differ.
	my $deadline = time + $PATIENCE;
	while (my $late = check_holds($model))
	{
		differ(@$late) if time > $deadline;
		sleep 0.002;
	}
	return;
}

# ------------------------------------------------------------ zklock_advisory

# The locks that are held, as pg_locks has them
sub await_pg_locks
{
	my ($system, $model) = @_;
	my @expected;
	foreach my $who (@ALL)
	{
		my %row = map { my ($path, $mode) = split ' ', $_->{row}; ("$path $mode t" => 1) } $model->holds($who);
		push @expected, map { name_of($who) . " $_" } keys %row;
	}
	my %who = map { $system->{session}[$_] ? ($system->{session}[$_]->pid => name_of($_)) : () } @ALL;
	await_same(
		$system, $model,
		"$system->{name}: pg_locks",
		join(', ', sort @expected),
		sub {
			join ', ', sort map { s/^(\d+)/$who{$1} \/\/ 'nobody'/er } map { split /\n/, $_->value(
				q{SELECT concat_ws(' ', pid, objid, CASE mode WHEN 'ShareLock' THEN 'shared' ELSE 'exclusive' END, granted,
						CASE WHEN classid <> 0 OR objsubid <> 1 THEN 'of another key' END)
					FROM pg_locks WHERE locktype = 'advisory'}) } @admin;
		});
	return;
}

# The queues, and what idle sessions say that they hold.  Until a waiter stands in its
# queue, and what a rollback gives back is gone, the next step may come before them.
sub check_drop_in
{
	my ($model) = @_;
	await_queues(\%drop_in, $model);
	await_pg_locks(\%drop_in, $model);
	my @asked = grep { !$model->is_blocked($_) && !$model->is_failed($_) } @ALL;
	$drop_in{session}[$_]->send(q{SELECT concat_ws(' ', substr(path, length('/advisory/postgres/') + 1), mode, scope, count)
		FROM zk_locks WHERE state = 'held' ORDER BY 1}) for @asked;
	my %result = map { $_ => $drop_in{session}[$_]->wait($PATIENCE) } @asked;
	foreach my $who (@asked)
	{
		my $expected = join "\n", sort map { $_->{row} } $model->holds($who);
		differ('zk_locks of ' . name_of($who) . ' with zklock_advisory', $expected, $result{$who}{out}) if $result{$who}{out} ne $expected;
	}
	return;
}

# --------------------------------------------------------------------- running

my $cut_short = 0;

# If the step ended the session, a new one takes its place.
sub renew
{
	my ($system, $step) = @_;
	return unless $step->{op} =~ /^(?:terminate|quit)$/;
	$system->{session}[ $step->{who} ]->quit;
	connect_session($system, $step->{who});
	return;
}

# Dies if there is a difference; returns false if the program cannot continue.
sub run_step
{
	my ($program, $system, $step, $model) = @_;
	start($program, $system, $step);
	my @expected = $model->step($step);
	my @got = answers($system, $step, \@expected);

	# ZooKeeper did not answer within this call's timeout, which is an error
	return 0 if ($step->{how} // '') eq 'timed' && @got == 1 && $got[0][1] eq '58030';
	differ("$system->{name}: answers", say_answers(@expected), say_answers(@got)) if say_answers(@expected) ne say_answers(@got);
	renew($system, $step);
	if ($program->is_advisory) { check_drop_in($model); }
	else { check_zklock($model); }
	return 1;
}

sub run_program
{
	my ($program) = @_;
	my $model = $program->model;
	my $system = $program->is_advisory ? \%drop_in : \%zklock;
	my @log;

	%token_of = ();
	foreach my $step ($program->steps)
	{
		push @log, sprintf '%3d %s: %s', @log + 1, name_of($step->{who}), $program->sql($step);
		my $go_on = eval { run_step($program, $system, $step, $model) };
		if (my $why = $@)
		{
			die $why unless ref $why;
			diag(join "\n",
				"RANDOM_SEED=" . $program->seed . " RANDOM_PROGRAMS=1, style $style",
				@log, 'DIFFERENCE: ' . $why->{what}, "  expected: $why->{expected}", "  got:      $why->{got}",
				'model: ' . $model->state);
			return 0;
		}
		if (!$go_on)
		{
			$cut_short++;
			disconnect_all();
			last;
		}
	}
	return 1;
}

$client = $zk->client;
my $start = time;
my $failed = 0;
my @programs = map { RandomProgram->new(seed => $_) } $SEED .. $SEED + $PROGRAMS - 1;

foreach my $program (sort { $a->style cmp $b->style || $a->seed <=> $b->seed } @programs)
{
	if ($style ne $program->style)
	{
		disconnect_all();
		$style = $program->style;
	}
	connect_all();
	next if ok(run_program($program), 'program ' . $program->seed . ", $style");
	disconnect_all();
	last if ++$failed >= 5;
}
my $seconds = time - $start;

disconnect_all();
$client->close;
$_->quit for @admin;
zk_nothing_left($zk, 'nothing is left', sessions => 0);
zk_no_crash($_) for @node;
diag(sprintf '%d programs in %.1f s, %d cut short', scalar @programs, $seconds, $cut_short);
$_->stop for @node;

done_testing();
