# doc/recipes/prometheus.md: its SQL runs, each query of the collector runs as the
# role that the page makes and returns the values and labels that it names, and the
# alerts ask for metrics that there are.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Doc;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $page = Doc->new('doc/recipes/prometheus.md');
my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, shared_preload_libraries => 'zklock');
my $collector = $page->take('yaml', 0)->{code};
my $alerts = $page->take('yaml', 1)->{code};

$page->run($node, zk => $zk);
$page->all_was_run;

sub words { return split /, */, $_[0] // ''; }

my %metric;
foreach my $part (split /^  - (?=metric_name:)/m, $collector)
{
	my ($name) = $part =~ /^metric_name: (\w+)$/m or next;
	my ($values) = $part =~ /^    values: \[(.*)\]$/m;
	my ($labels) = $part =~ /^    key_labels: \[(.*)\]$/m;
	my ($label) = $part =~ /^    value_label: (\w+)$/m;
	my ($query) = $part =~ /^    query: \|\n((?: {6}.*\n)+)/m;
	$metric{$name} = { values => [ words($values) ], labels => [ words($labels) ], value_label => $label, query => $query };
	like($part, qr/^    type: gauge\n    help: '[^']+'$/m, "$name: its type and a help");
}
cmp_ok(scalar keys %metric, '>=', 5, 'there are metrics');

# Each metric as Prometheus would have it: { 'name{label="value"}' => number }
my $exporter = zk_session($node, user => 'exporter');

sub scrape
{
	my %found;
	foreach my $name (sort keys %metric)
	{
		my $m = $metric{$name};
		my $columns = join ', ', @{ $m->{labels} }, @{ $m->{values} };
		my $result = $exporter->query("SELECT $columns FROM ($m->{query}) AS q");
		is($result->{state}, '', "$name: the query runs, and has its columns") or diag $result->{err};
		foreach my $row (split /\n/, $result->{out})
		{
			my @row = split /\|/, $row;
			my @labels = map { qq{$_="} . shift(@row) . '"' } @{ $m->{labels} };
			foreach my $value (@{ $m->{values} })
			{
				my $labels = join ',', @labels, $m->{value_label} ? qq{$m->{value_label}="$value"} : ();
				$found{ $name . (length $labels ? "{$labels}" : '') } = shift @row;
			}
		}
	}
	return %found;
}

my %idle = scrape();
is($idle{$_}, 0, "$_: 0 on a server that uses no lock")
  foreach 'zklock_locks{state="lost"}', 'zklock_sessions{state="suspended"}', 'zklock_longest_wait_seconds', 'zklock_backends{total="unreleased"}',
  'zklock_backends{total="backends"}';

my $proxy = ZkProxy->new($zk);
my ($holder, $waiter) = (zk_session_with($node, hosts => $proxy, session_timeout => '4s'), zk_session($node));
$holder->value(q{SELECT zk_lock('/m/a'), zk_lock('/m/b')});
$waiter->send(q{SELECT zk_lock('/m/a')});
zk_wait_queued($zk, $waiter);
my %busy = scrape();
is($busy{'zklock_locks{state="held"}'}, 2, 'two locks are held');
is($busy{'zklock_locks{state="waiting"}'}, 1, '- one is awaited');
is($busy{'zklock_sessions{state="connected"}'}, 2, '- by two sessions');
is($busy{'zklock_backends{total="backends"}'}, 2, '- which count once, whatever they hold');
cmp_ok($busy{'zklock_longest_wait_seconds'}, '>', 0, '- since a while');
cmp_ok($busy{'zklock_longest_idle_hold_seconds{database="postgres"}'}, '>', 0, '- by one that is silent');
$proxy->blackhole;
my %lost;
zk_until(sub { $exporter->value(q{SELECT count(*) FROM zk_server_locks WHERE state = 'lost'}) eq '2' }, 'a loss');
%lost = scrape();
is($lost{'zklock_locks{state="lost"}'}, 2, 'lost');
is($lost{'zklock_sessions{state="suspended"}'}, 1, '- suspended');
is($lost{'zklock_backends{total="losses"}'}, 1, '- one loss');

# Alerts
my @rules = split /^      - (?=alert:)/m, $alerts;
shift @rules;
cmp_ok(scalar @rules, '>=', 5, 'there are alerts');
foreach my $rule (@rules)
{
	my ($name) = $rule =~ /^alert: (\w+)$/m;
	my ($metric) = $rule =~ /^        expr: (?:absent\()?(\w+(?:\{[^}]*\})?)\)?(?: > \d+)?$/m;
	ok(defined $metric && (grep { $_ eq $metric || /^\Q$metric\E\{/ } keys %lost, keys %busy), "$name: its metric is there") or diag $rule;
	like($rule, qr/^          summary: '[^']+'$/m, '- and says what is wrong');
}

$proxy->pass;
$_->quit for $holder;
is($waiter->wait->{out}, 't', 'the next has it');
$_->quit for $waiter, $exporter;
$proxy->stop;
zk_no_crash($node);
$node->stop;
zk_nothing_left($zk, 'nothing is left in ZooKeeper');

done_testing();
