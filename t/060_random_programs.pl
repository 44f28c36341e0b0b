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

use FindBin;
use lib "$FindBin::RealBin/lib";

use Queue;
use RandomProgram qw(@PATHS $SESSIONS);
use Tests;

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

# What a program runs on: the paths, the sessions, their ids, what stands in the queues in
# ZooKeeper ("kind path" => the nodes in their order), and nodes that cannot change, by name.
my %zklock = (name => 'zklock', paths => \@PATHS);
my %drop_in = (name => 'zklock_advisory', paths => [ map { "/advisory/postgres/$_" } 0 .. $#PATHS ], options => ' -c search_path=zklock_advisory,pg_catalog,public');
my @systems = (\%zklock, \%drop_in);
%$_ = (options => '', %$_, session => [], id => [], stands => {}, seen => {}) for @systems;

my $style = '';

sub connect_session
{
	my ($system, $who) = @_;
	my $own = $style eq 'mixed' ? (qw(curator curator_rw kazoo))[ $who % 3 ] : $style;
	my $s = zk_session($node[ $who % 2 ], options => "-c zklock.node_style=$own" . $system->{options});
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

# Poll until the state is as expected.  Who waits must still wait.
sub await_same
{
	my ($system, $model, $what, $expected, $look) = @_;
	my $deadline = time + $PATIENCE;
	my $pause = 0.0005;
	while (1)
	{
		my $got = $look->();
		foreach my $who (grep { $model->is_blocked($_) } @ALL)
		{
			my $s = $system->{session}[$who];
			differ("$system->{name}: " . name_of($who), 'waits', answer_of($s->wait)) if $s->is_done;
		}
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
		my $dir = "/zklock$system->{paths}[$path]";
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
			push @say, "$kind /zklock$system->{paths}[$path]: " . join ', ',
			  map { name_of($_->{who}) . " $_->{mode}" . ($kind eq 'semaphore' ? " $_->{permits}" : '') } @queue;
		}
	}
	return join '; ', @say;
}

my %token_of;    # place => token

# What idle sessions say that they hold, and the tokens.  A place keeps one token, and later
# places have greater ones.
sub check_holds
{
	my ($system, $model) = @_;
	my @asked = grep { !$model->is_blocked($_) && !$model->is_failed($_) } @ALL;
	my @paths = @{ $system->{paths} };

	# the names of the nodes by the model's places
	my (%node, %place);
	foreach my $kind (qw(lock semaphore))
	{
		foreach my $path (0 .. $#PATHS)
		{
			my @places = $model->queue($kind, $path);
			$node{ $places[$_]{number} } = $system->{stands}{"$kind $path"}[$_]{name} for 0 .. $#places;
		}
	}
	foreach my $who (@asked)
	{
		$place{ name_of($who) . " $system->{id}[$who] connected" } = undef;
		foreach my $hold ($model->holds($who))
		{
			my ($path, @row) = split ' ', $hold->{row};
			$place{ join ' ', name_of($who), $paths[$path], @row, 'held', $node{ $hold->{place} } } = $hold->{place};
		}
		my @token_place = map { $model->token_place($who, $_) } 0 .. $#PATHS;
		$place{ name_of($who) . " token of $paths[$_]" } = $token_place[$_] for grep { defined $token_place[$_] } 0 .. $#PATHS;
	}

	# COMMIT does not wait for the answer to what it sent; so a place that has
	# become the shared lock's may keep its old name for a moment, but nothing
	# else may differ.
	my $expected = join ', ', sort keys %place;
	my $nameless = sub { return join ', ', sort map { s/ held \K.*//r } split /, /, $_[0] };
	my $query = "SELECT concat_ws(' ', path, mode, scope, count, state, node), token FROM zk_locks
		UNION ALL SELECT session_id || ' ' || state, NULL FROM zk_session
		UNION ALL SELECT 'token of ' || p, zk_lock_token(p) FROM unnest('{" . join(',', @paths) . "}'::text[]) p WHERE zk_lock_token(p) IS NOT NULL";
	my %token;
	await_same(
		$system, $model,
		"$system->{name}: zk_locks, zk_session and tokens",
		$expected,
		sub {
			$system->{session}[$_]->send($query) for @asked;
			my %result = map { $_ => $system->{session}[$_]->wait($PATIENCE) } @asked;
			%token = map { my $who = $_; map { /^(.*)\|(\d*)$/ ? (name_of($who) . " $1" => $2) : () } split /\n/, $result{$who}{out} } @asked;
			my $got = join ', ', sort keys %token;
			differ("$system->{name}: zk_locks, zk_session and tokens", $expected, join '', $got, map { $_->{err} } values %result) if $nameless->($got) ne $nameless->($expected);
			return $got;
		});
	foreach my $what (grep { defined $place{$_} } sort keys %place)
	{
		my $known = $token_of{ $place{$what} } //= $token{$what};
		differ("the token of $what", $known, $token{$what}) if $known != $token{$what};
	}
	foreach my $path (0 .. $#PATHS)
	{
		my @tokens = grep { defined } map { $token_of{ $_->{number} } } $model->queue('lock', $path);
		differ("tokens of $paths[$path] in the order of the queue", 'rising', "@tokens")
		  if grep { $tokens[ $_ - 1 ] >= $tokens[$_] } 1 .. $#tokens;
	}
	return;
}

# The locks of zklock_advisory that are held, as pg_locks has them
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
	return await_same(
		$system, $model,
		"$system->{name}: pg_locks",
		join(', ', sort @expected),
		sub {
			join ', ', sort map { s/^(\d+)/$who{$1} \/\/ 'nobody'/er } map { split /\n/, $_->value(
				q{SELECT concat_ws(' ', pid, objid, CASE mode WHEN 'ShareLock' THEN 'shared' ELSE 'exclusive' END, granted,
						CASE WHEN classid <> 0 OR objsubid <> 1 THEN 'of another key' END)
					FROM pg_locks WHERE locktype = 'advisory'}) } @admin;
		});
}

# --------------------------------------------------------------------- running

my $cut_short = 0;

# Dies if there is a difference; returns false if the program cannot continue.
sub run_step
{
	my ($program, $system, $step) = @_;
	my $model = $step->{model};
	my $who = $step->{who};
	my $s = $system->{session}[$who];
	if ($step->{op} =~ /^(?:cancel|terminate)$/) { $admin[ $who % 2 ]->value("SELECT pg_$step->{op}_backend(" . $s->pid . ')'); }
	elsif ($step->{op} eq 'quit') { $s->quit; }
	else { $s->send($program->sql($step)); }

	# the answers of those whose statement this step ends
	my @expected = @{ $step->{answers} };
	my @got;
	foreach my $whose (map { $_->[0] } @expected)
	{
		my $result = eval { $system->{session}[$whose]->wait($PATIENCE) };
		differ("$system->{name}: " . name_of($whose) . ' does not answer', say_answers(@expected), $@) unless $result;
		push @got, [ $whose, answer_of($result) ];
	}

	# ZooKeeper did not answer within this call's timeout, which is an error
	return 0 if ($step->{how} // '') eq 'timed' && @got == 1 && $got[0][1] eq '58030';
	differ("$system->{name}: answers", say_answers(@expected), say_answers(@got)) if say_answers(@expected) ne say_answers(@got);
	if ($step->{op} =~ /^(?:terminate|quit)$/)
	{
		$s->quit;
		connect_session($system, $who);
	}

	# Read twice: data read from several paths is not a snapshot, and a session that
	# wants several locks may have had, for a moment, places after the first taken one.
	await_same($system, $model, "$system->{name}: the queues in ZooKeeper", queues_in_model($system, $model), sub { queues_in_zookeeper($system) }) for 1, 2;
	await_pg_locks($system, $model) if $program->{advisory};
	check_holds($system, $model);
	return 1;
}

sub run_program
{
	my ($program) = @_;
	my $system = $program->{advisory} ? \%drop_in : \%zklock;
	my @log;

	%token_of = ();
	foreach my $step (@{ $program->{steps} })
	{
		push @log, sprintf '%3d %s: %s', @log + 1, name_of($step->{who}), $program->sql($step);
		my $go_on = eval { run_step($program, $system, $step) };
		if (my $why = $@)
		{
			die $why unless ref $why;
			diag(join "\n",
				"RANDOM_SEED=$program->{seed} RANDOM_PROGRAMS=1, style $style",
				@log, 'DIFFERENCE: ' . $why->{what}, "  expected: $why->{expected}", "  got:      $why->{got}",
				'model: ' . queues_in_model($system, $step->{model}));
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

foreach my $program (sort { $a->{style} cmp $b->{style} || $a->{seed} <=> $b->{seed} } @programs)
{
	if ($style ne $program->{style})
	{
		disconnect_all();
		$style = $program->{style};
	}
	foreach my $system (@systems)
	{
		connect_session($system, $_) for grep { !$system->{session}[$_] } @ALL;
	}
	next if ok(run_program($program), "program $program->{seed}, $style");
	disconnect_all();
	last if ++$failed >= 5;
}
my $seconds = time - $start;

disconnect_all();
$client->close;
$_->quit for @admin;
diag(sprintf '%d programs in %.1f s, %d cut short', scalar @programs, $seconds, $cut_short);
zk_end($zk, @node);
