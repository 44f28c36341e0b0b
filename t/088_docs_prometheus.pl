# doc/recipes/prometheus.md: its SQL runs; each query that it has copied runs as the role
# that it makes, and has the columns that it names; the real exporter shows the
# same; and by Prometheus' own promtool each alert is raised where it should, and
# nowhere else.

use FindBin;
use lib "$FindBin::RealBin/lib";

use HTTP::Tiny;

use Child;
use Doc;
use Tests;

my $page = Doc->new('doc/recipes/prometheus.md');
my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, shared_preload_libraries => 'zklock');
my ($queries, $alerts) = map { slurp_file("$FindBin::RealBin/../doc/recipes/$_.yaml") } qw(zklock-queries zklock-alerts);
my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/zklock.yaml", $queries);
append_to_file("$dir/alerts.yaml", $alerts);

$page->run($node, zk => $zk);
$page->all_was_run;

# { name => { query, columns => [ name, usage ], ... } }
my %metric;
foreach my $part (grep { !/\A#/ } split /^(?=\w+:$)/m, $queries)
{
	my ($name, $query, $rest) = $part =~ /\A(\w+):\n  query: \|\n((?: {4}.*\n)+)  metrics:\n(.*)\z/s or die "not a query: $part";
	my @columns = $rest =~ /^    - (\w+: \{ usage: (?:LABEL|GAUGE), description: '[^']+' \})$/mg;
	is(scalar @columns, scalar(() = $rest =~ /^    - /mg), "$name: each column has its usage and a description");
	$metric{$name} = { query => $query, columns => [ map { [/^(\w+): \{ usage: (\w+)/] } @columns ] };
}
cmp_ok(scalar keys %metric, '>=', 5, 'there are metrics');

# Each metric as Prometheus has it: { 'name{label="value"}' => number }
my $exporter = zk_session($node, user => 'prometheus');

sub scrape
{
	my %found;
	foreach my $name (sort keys %metric)
	{
		my @columns = @{ $metric{$name}{columns} };
		my $result = $exporter->query('SELECT ' . join(', ', map { $_->[0] } @columns) . " FROM ($metric{$name}{query}) AS q");
		is($result->{state}, '', "$name: the query runs, and has its columns") or diag $result->{err};
		foreach my $row (split /\n/, $result->{out})
		{
			my @row = split /\|/, $row;
			my %value = map { $columns[$_][0] => $row[$_] } 0 .. $#row;
			my $labels = join ',', map { qq{$_->[0]="$value{ $_->[0] }"} } grep { $_->[1] eq 'LABEL' } @columns;
			$found{"${name}_$_->[0]" . (length $labels ? "{$labels}" : '')} = $value{ $_->[0] } foreach grep { $_->[1] ne 'LABEL' } @columns;
		}
	}
	return %found;
}

#
# The real ones.  dev/test unpacks them, if there is a network.
#
sub program { return (grep { -x } map { "$_/usr/bin/$_[0]" } '', ($ENV{ZKLOCK_TMP} // '') . '/prometheus')[0]; }
my $missing = join ' and ', grep { !defined program($_) } qw(prometheus-postgres-exporter promtool);
my $port;

sub get
{
	my $answer = HTTP::Tiny->new(timeout => 10)->get("http://127.0.0.1:$port/metrics");
	return $answer->{success} ? $answer->{content} : undef;
}

# The same as scrape(), from the exporter
sub exported
{
	return map { s/server="[^"]*",?//r =~ s/,?\}/}/r =~ s/\{\}//r =~ /^(zklock_\S+) (\S+)$/ ? ($1, 0 + $2) : () } split /\n/, get();
}

sub is_exported
{
	my ($name, %expected) = @_;
SKIP:
	{
		skip "no $missing", 1 if $missing;
		my %got = exported();
		# clocks go on
		my @same = grep { !/_seconds/ && !/_requests$/ } sort keys %expected;
		is(join("\n", map { "$_ " . ($got{$_} // '?') } @same), join("\n", map { "$_ $expected{$_}" } @same), "$name: the exporter shows the same");
		is(join(' ', sort keys %got), join(' ', sort keys %expected), '- and nothing else');
	}
	return;
}

sub promtool { return scalar `@{[ program('promtool') ]} @_ 2>&1`; }

if (!$missing)
{
	$port = ZooKeeper::free_port();
	my ($argument) = $page->text =~ /^ {4}ARGS='(--\S+=)\S+'$/m or die 'no ARGS';
	Child::spawn([ program('prometheus-postgres-exporter'), "${argument}$dir/zklock.yaml", "--web.listen-address=127.0.0.1:$port" ], err => "$dir/exporter.log",
		env => { DATA_SOURCE_NAME => 'user=prometheus sslmode=disable dbname=postgres host=' . $node->host . ' port=' . $node->port });
	zk_until(sub { get() }, "the exporter to answer; see $dir/exporter.log");
}

my %idle = scrape();
is($idle{$_}, 0, "$_: 0 on a server that uses no lock")
  foreach 'zklock_locks_count{state="lost"}', 'zklock_sessions_count{state="suspended"}', 'zklock_longest_wait_seconds', 'zklock_backends_unreleased',
  'zklock_backends_count';
is_exported('idle', %idle);

my $proxy = ZkProxy->new($zk);
my ($holder, $waiter) = (zk_session_with($node, hosts => $proxy, session_timeout => '10s'), zk_session($node));
$holder->value(q{SELECT zk_lock('/m/a'), zk_lock('/m/b')});
$waiter->send(q{SELECT zk_lock('/m/a')});
zk_wait_queued($zk, $waiter);
my %busy = scrape();
is($busy{'zklock_locks_count{state="held"}'}, 2, 'two locks are held');
is($busy{'zklock_locks_count{state="waiting"}'}, 1, '- one is awaited');
is($busy{'zklock_sessions_count{state="connected"}'}, 2, '- by two sessions');
is($busy{zklock_backends_count}, 2, '- which count once, whatever they hold');
cmp_ok($busy{'zklock_longest_wait_seconds'}, '>', 0, '- since a while');
cmp_ok($busy{'zklock_longest_idle_hold_seconds{datname="postgres"}'}, '>', 0, '- by one that is silent');
is_exported('busy', %busy);
$proxy->blackhole;
zk_until(sub { $exporter->value(q{SELECT string_agg(state, ' ' ORDER BY state) FROM zk_server_locks}) eq 'held lost lost' }, 'a loss, and the next holder');
my %lost = scrape();
is($lost{'zklock_locks_count{state="lost"}'}, 2, 'lost');
is($lost{'zklock_sessions_count{state="suspended"}'}, 1, '- suspended');
is($lost{zklock_backends_losses}, 1, '- one loss');
is_exported('lost', %lost);

# Alerts
my @rules = split /^      - (?=alert:)/m, $alerts;
shift @rules;
cmp_ok(scalar @rules, '>=', 5, 'there are alerts');
my $tests = '';
foreach my $rule (@rules)
{
	my ($name) = $rule =~ /^alert: (\w+)$/m;
	my ($absent, $metric, $limit) = $rule =~ /^        expr: (absent\()?(\w+(?:\{[^}]*\})?)\)?(?: > (\d+))?$/m;
	my ($for) = $rule =~ /^        for: (\d+)m$/m;
	my ($summary) = $rule =~ /^          summary: '([^']+)'$/m;
	ok(defined $metric && (grep { $_ eq $metric || /^\Q$metric\E\{/ } keys %lost, keys %busy), "$name: its metric is there") or diag $rule;
	ok(defined $summary, '- and says what is wrong');

	# above its limit from the third minute on, and gone from the 20th
	my ($low, $high) = ($limit // 0, ($limit // 0) + 1);
	my ($from, $to) = $absent ? (20, 40) : (2, 20);
	my @raised = ($from + ($for // 0), $to - 1);
	my ($labels) = $metric =~ /\{(.*)\}/;
	my $with = $absent ? '' : join ', ', map { s/=/: /r } split /,/, $labels // '';
	$tests .= "  - interval: 1m\n    input_series: [ { series: '$metric', values: '$low $low ${high}x17 stale' } ]\n    alert_rule_test:\n";
	foreach my $minute (1, $raised[0] - 1, @raised, $to == 40 ? () : $to + 1)
	{
		my $is = $minute >= $raised[0] && $minute <= $raised[1];
		$tests .= "      - { eval_time: ${minute}m, alertname: $name, exp_alerts: [ "
		  . ($is ? "{ exp_labels: { $with }, exp_annotations: { summary: '$summary' } } " : '') . "] }\n";
	}
}
SKIP:
{
	skip "no $missing", 3 if $missing;
	like(promtool('check', 'rules', "$dir/alerts.yaml"), qr/SUCCESS: @{[ scalar @rules ]} rules found/, 'promtool accepts the rules');
	append_to_file("$dir/test.yaml", "rule_files: [ alerts.yaml ]\nevaluation_interval: 1m\ntests:\n$tests");
	like(promtool('test', 'rules', "$dir/test.yaml"), qr/SUCCESS/, '- and they raise what they should, when they should');

	like(get(), qr/^pg_exporter_user_queries_load_error\{.*\} 0$/m, 'the exporter has no complaint');
}

$proxy->pass;
is($waiter->wait->{out}, 't', 'the next has it');
zk_end($zk, $node);
