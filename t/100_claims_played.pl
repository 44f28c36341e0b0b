# An hour of jobs that claim their minutes, in three clusters whose clocks differ by
# ten minutes: each minute is done once.  pg_cron starts them, at one full minute; each
# run plays an hour of minutes that are made up.  Some of the runs' transactions fail, and
# are tried again.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use Test::More;

use Deadline;
use Zklock;
use ZooKeeper;

my $prefix = `pg_config --pkglibdir`;
chomp $prefix;
plan skip_all => 'pg_cron is not installed for this PostgreSQL' unless -e "$prefix/pg_cron.so";

my $HOUR = 60;
my $zk = ZooKeeper->new->start;
my %clock = (early => 10, right => 0, late => -10);    # minutes
my $first = PostgreSQL::Test::Cluster->new('socket');    # all have the same directory for their sockets
my @nodes = map { zk_cluster($_, $zk, shared_preload_libraries => 'pg_cron', 'cron.database_name' => 'postgres', cluster_name => $_, 'cron.host' => $first->host) } sort keys %clock;

# /own is claimed for the minute that the cluster's own clock shows, /common for the
# same one in all
$_->safe_psql('postgres', <<~'SQL') for @nodes;
	CREATE EXTENSION pg_cron;
	CREATE TABLE clock (minute int, ahead int);
	CREATE TABLE played (path text, minute int);
	CREATE PROCEDURE play(last int) LANGUAGE plpgsql AS $$
	DECLARE
		now int;
		own int;
	BEGIN
		LOOP
			UPDATE clock SET minute = minute + 1 WHERE minute < last RETURNING minute, minute + ahead INTO now, own;
			EXIT WHEN now IS NULL;
			INSERT INTO played SELECT '/common', now WHERE zk_claim('/common', '2001-01-01 UTC'::timestamptz + now * interval '1 minute');
			IF random() < 0.1 THEN
				ROLLBACK;
				CONTINUE;
			END IF;
			INSERT INTO played SELECT '/own', own WHERE zk_claim('/own', '2001-01-01 UTC'::timestamptz + own * interval '1 minute');
			IF random() < 0.1 THEN
				ROLLBACK;
			ELSE
				COMMIT;
			END IF;
			PERFORM pg_sleep(random() * 0.1);
		END LOOP;
	END $$;
	SQL
$_->safe_psql('postgres', sprintf q{INSERT INTO clock VALUES (0, %d);
	SELECT cron.schedule('play', '* * * * *', 'CALL play(%d)')}, $clock{ $_->name }, $HOUR) for @nodes;

my @asks = map { zk_session($_) } @nodes;
zk_until(sub { !grep { $_->value('SELECT minute FROM clock') < $HOUR } @asks }, 'an hour to be over in all', 240);
$_->value(q{SELECT cron.unschedule('play')}) for @asks;
zk_until(sub { !grep { $_->value(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_cron'}) } @asks }, 'the last runs to end', 90);
is(join('', map { $_->value(q{SELECT string_agg(return_message, ' ') FROM cron.job_run_details WHERE status = 'failed'}) } @asks), '', 'no run has failed');

# Who has played which minute of a path
sub played
{
	my ($path) = @_;
	my %by;
	foreach my $i (0 .. $#asks)
	{
		push @{ $by{$_} }, $nodes[$i]->name for split /\n/, $asks[$i]->value("SELECT minute FROM played WHERE path = '$path'");
	}
	return %by;
}

my %common = played('/common');
is_deeply([ grep { @{ $common{$_} } > 1 } sort keys %common ], [], 'no minute that is the same for all is done twice');
is_deeply([ grep { !$common{$_} } 1 .. $HOUR ], [], 'and none is missing');
my %own = played('/own');
is_deeply([ grep { @{ $own{$_} } > 1 } sort keys %own ], [], 'no minute of a clock is done twice');
is_deeply([ grep { !$own{$_} } 1 + $clock{early} .. $HOUR + $clock{early} ], [], 'and none is missing of the clock that is ahead');
is($asks[0]->value(q{SELECT state || ' ' || period FROM zk_last_claim('/common')}), $asks[0]->value("SELECT 'done ' || '2001-01-01 UTC'::timestamptz + $HOUR * interval '1 minute'"),
	'the last claim is done');

$_->quit for @asks;
zk_nothing_left($zk, 'nothing is left', sessions => 0);
zk_no_crash($_) for @nodes;
done_testing();
