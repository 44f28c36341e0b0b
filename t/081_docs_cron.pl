# doc/recipes/cron.md, with pg_cron in two clusters; and a job whose lock is lost, also
# where pg_cron runs jobs in background workers.  It starts jobs only at full minutes,
# so this takes one or two minutes.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Doc;
use ZkClient;
use Zklock;
use ZooKeeper;

my $prefix = `pg_config --pkglibdir`;
chomp $prefix;
plan skip_all => 'pg_cron is not installed for this PostgreSQL' unless -e "$prefix/pg_cron.so";

my $page = Doc->new('doc/recipes/cron.md');
my $zk = ZooKeeper->new->start;
my %setting = $page->settings;
# the hub, which also has jobs in background workers
my $hub = zk_cluster('hub', $zk, %setting, 'zklock.hosts' => $zk->hosts, cluster_name => 'hub',
	'cron.use_background_workers' => 'on', max_worker_processes => 20, log_line_prefix => '%p %e ');
is($setting{shared_preload_libraries}, 'pg_cron, zklock', 'the page tells what pg_cron needs');
my @both = map {
	zk_cluster($_, $zk, %setting,
		'zklock.hosts' => $zk->hosts, cluster_name => $_, 'cron.host' => $hub->host)
} qw(east west);

# In both, as printed, except what a reader has to fill in
foreach my $block ($page->blocks('sql'))
{
	my %where = (both => \@both, east => [ $both[0] ], 'hub@hub' => [$hub]);
	my @nodes = @{ $where{ $block->{session} } // die $block->{session} };
	$block->{code} =~ s/CREATE EXTENSION zklock;/DROP EXTENSION zklock; $&/;
	$block->{code} =~ s/'hub\.example\.com', port '5432'/sprintf "'%s', port '%s'", $hub->host, $hub->port/e;
	foreach my $node (@nodes)
	{
		my $s = zk_session($node);
		$page->run_one($block, $s, zk_session($node));
		$s->quit;
	}
}
$page->all_was_run;

# Who asks, again and again: a psql for each question would cost more than all else
my @asks = map { zk_session($_) } @both;

sub in_both { my ($sql) = @_; return map { split /\n/, $_->value($sql) } @asks; }

# The outcomes of a job in both: "east succeeded" and so on
sub runs
{
	my ($job) = @_;
	return in_both(<<~SQL);
		SELECT current_setting('cluster_name') || ' ' || status || ' ' || coalesce(return_message, '')
		FROM cron.job_run_details WHERE command LIKE 'CALL $job(%' AND status IN ('succeeded', 'failed')
		SQL
}

# A job that has a lock and sleeps, until one of its runs has failed
my %cron = (east => $asks[0], hub => zk_session($hub));
$cron{hub}->value('CREATE EXTENSION pg_cron');
foreach my $name (sort keys %cron)
{
	$cron{$name}->value(<<~SQL);
		SELECT cron.schedule('sleep', '* * * * *', \$\$SELECT pg_sleep(600) FROM zk_xact_lock('/jobs/sleep/$name')
			WHERE NOT EXISTS (SELECT FROM cron.job_run_details WHERE command LIKE '%sleep%' AND status = 'failed')\$\$)
		SQL
}

my @jobs = qw(tidy report mail);
zk_until(
	sub {
		@jobs == grep {
			my %seen = map { /^(\w+)/ => 1 } runs($_);
			$seen{east} && $seen{west};
		} @jobs;
	},
	'each job to have run in both', 150);

# The sleeping ones lose their locks
sub holders_of
{
	my ($name) = @_;
	my %of = $zk->ephemerals;
	return grep { grep { m{^/zklock/jobs/sleep/$name/} } @{ $of{$_} } } sort keys %of;
}

foreach my $name (sort keys %cron)
{
	zk_until(sub { $cron{$name}->value(q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%sleep(600)%'}) },
		"the job in $name sleeps", 90);
	$zk->end_session($_) for holders_of($name);
	my $run;
	zk_until(sub { $run = $cron{$name}->value(q{SELECT status, return_message FROM cron.job_run_details WHERE command LIKE '%sleep%' AND status = 'failed'}) },
		"the job in $name ends");
	like($run, qr{^failed\|.*canceling statement due to loss of lock on "/jobs/sleep/$name"}, "$name: a job whose lock is lost is stopped");
}
like(slurp_file($hub->logfile), qr{^\d+ 40001 ERROR:  canceling statement due to loss of lock on "/jobs/sleep/hub"}m, 'hub: with 40001');
$cron{hub}->value('SELECT cron.unschedule(jobname) FROM cron.job');
in_both('SELECT cron.unschedule(jobname) FROM cron.job');
zk_until(sub { !grep { $_ } in_both(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_cron'}) },
	'the last runs to end', 60);
foreach my $job (@jobs)
{
	is_deeply([ grep { !/^\w+ succeeded/ } runs($job) ], [], "$job: no run failed");
}

# never two at a time: those of east and west, by the same clock
my @tidied = sort { $a->[0] <=> $b->[0] } map { [ split /\|/ ] } in_both('SELECT extract(epoch FROM began), extract(epoch FROM ended) FROM tidied');
cmp_ok(scalar @tidied, '>', 0, 'tidy: has run');
is_deeply([ grep { $tidied[$_][0] < $tidied[ $_ - 1 ][1] } 1 .. $#tidied ], [], 'tidy: never two at a time');

# once for each minute
is($hub->safe_psql('postgres', q{SELECT count(*), count(DISTINCT period) FROM run}) =~ s/^(\d+)\|\1$//r, '', 'report: once for each minute');
is_deeply([ once(in_both('SELECT period FROM mailed')) ], [], 'mail: once for each minute');

# values that occur more than once
sub once { my %n; $n{$_}++ for @_; return grep { $n{$_} > 1 } sort keys %n; }

#
# Events while the report is being made
#
my ($east, $west) = map { zk_session($_) } @both;
my ($in_hub, $hub_admin, $east_admin, $west_admin) = map { zk_session($_) } $hub, $hub, @both;

# east in the middle of this period's report
sub in_the_middle
{
	my ($period) = @_;
	$in_hub->value('BEGIN; LOCK TABLE run IN SHARE MODE');
	$east->send("CALL report('$period')");
	zk_until(sub { $hub_admin->value(q{SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'run'::regclass}) },
		'east to write its row');
	return;
}

# ... and west waiting for its turn
sub west_waits
{
	my ($period) = @_;
	$west->send("CALL report('$period')");
	zk_wait_queued($zk, $west);
	return;
}

sub made_by { my ($period) = @_; return $hub_admin->value("SELECT made_by FROM run WHERE period = '$period'"); }

in_the_middle('2001-01-01');
west_waits('2001-01-01');
$in_hub->value('ROLLBACK');
is($_->wait->{state}, '', 'a report in both') for $east, $west;
is(made_by('2001-01-01'), 'east', '- is made by the first');

in_the_middle('2002-01-01');
west_waits('2002-01-01');
is($east_admin->value('SELECT pg_terminate_backend(' . $east->pid . ')'), 't', 'the one at work dies');
$in_hub->value('ROLLBACK');
is($west->wait->{state}, '', '- and the other goes on');
is(made_by('2002-01-01'), 'west', '- in the same minute');
$east->wait;
$east = zk_session($both[0]);

$east->value('SET zklock.commit_guard = strict');    # so that it is noticed at once
in_the_middle('2003-01-01');
my $look = ZkClient->new($zk->hosts);
ok($look->delete("/zklock/jobs/report/$_"), 'the one at work loses its lock') for $look->children('/zklock/jobs/report');
$look->close;
$in_hub->value('ROLLBACK');
zk_is_lost($east->wait, '/jobs/report', '- and does not commit');
is(made_by('2003-01-01'), '', '- nor in hub');
is($west->query(q{CALL report('2003-01-01')})->{state}, '', '- but then the other');
is(made_by('2003-01-01'), 'west', '- has made it');

# Claims: east at work, west waiting for its turn
my $period = $east_admin->value('SELECT now()');
sub mailed { return join ' ', in_both("SELECT made_by FROM mailed WHERE period = '$period'"); }

foreach my $end (qw(COMMIT ROLLBACK))
{
	$east->value("BEGIN; CALL mail('$period')");
	$west->send("CALL mail('$period')");
	zk_wait_queued($zk, $west);
	$east->value($end);
	is($west->wait->{state}, '', "mail: $end of the first");
	is(mailed(), $end eq 'COMMIT' ? 'east' : 'west', '- and one of them has mailed');
	# (that comes after the commit, and may come after what another session asks)
	zk_until(sub { $east->value(q{SELECT period, state FROM zk_last_claim('/jobs/mail')}) eq "$period|done" }, 'the claim to say so');
	$period = $east_admin->value("SELECT timestamptz '$period' + interval '1 minute'");
}
is($west->query("CALL mail('$period'::timestamptz - interval '10 minutes')")->{state}, '', 'a cluster whose clock is late');
is(join(' ', in_both("SELECT made_by FROM mailed WHERE period = '$period'::timestamptz - interval '10 minutes'")), '', '- mails no earlier period');

$_->quit for @asks, $cron{hub}, $east, $west, $in_hub, $hub_admin, $east_admin, $west_admin;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($_) for @both, $hub;
done_testing();
