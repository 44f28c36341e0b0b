# doc/recipes/cron.md, with pg_cron in two clusters.  It starts jobs only at full minutes, so
# this takes one or two minutes.  (A job, or a background worker, whose lock is lost: t/034.)

use FindBin;
use lib "$FindBin::RealBin/lib";

use Doc;
use Tests;

my $prefix = `pg_config --pkglibdir`;
chomp $prefix;
plan skip_all => 'pg_cron is not installed for this PostgreSQL' unless -e "$prefix/pg_cron.so";

my $page = Doc->new('doc/recipes/cron.md');
my $zk = ZooKeeper->new->start;
my %setting = $page->settings;
is($setting{shared_preload_libraries}, 'pg_cron, zklock', 'the page tells what pg_cron needs');
my $host = PostgreSQL::Test::Cluster->new('nobody')->host;
my @both = map { zk_cluster($_, $zk, %setting, 'zklock.hosts' => $zk->hosts, cluster_name => $_, 'cron.host' => $host) } qw(east west);

# In both, as printed, except what a reader has to fill in
foreach my $block ($page->blocks('sql'))
{
	my %where = (both => \@both, east => [ $both[0] ]);
	my @nodes = @{ $where{ $block->{session} } // die $block->{session} };
	$block->{code} =~ s/CREATE EXTENSION zklock;/DROP EXTENSION zklock; $&/;
	foreach my $node (@nodes)
	{
		$page->run_one($block, zk_session($node), zk_session($node));
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

my @jobs = qw(tidy mail);
zk_until(
	sub {
		@jobs == grep {
			my %seen = map { /^(\w+)/ => 1 } runs($_);
			$seen{east} && $seen{west};
		} @jobs;
	},
	'each job to have run in both', 150);

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
is_deeply([ once(in_both('SELECT period FROM mailed')) ], [], 'mail: once for each minute');

# values that occur more than once
sub once { my %n; $n{$_}++ for @_; return grep { $n{$_} > 1 } sort keys %n; }

# (Who mails when a claim fails, and what is claimed late: t/097, sql/claims)
zk_end($zk, @both);
