# README.md, doc/guide.md and doc/install.md are correct: their SQL runs, they name what
# exists and nothing else, and the GRANT and REVOKE are right.  The same holds for the
# reference of functions, views and settings.  t/lib/Doc.pm explains the comments before its SQL.  The pages
# of doc/ are run by t/072, t/081 to t/085, t/087, t/088, t/093 and t/096; that they name only what
# exists is checked here.
#
# The ```ini block configures the server, except for the addresses.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Doc;
use Zklock;
use ZooKeeper;

my %page = map { $_ => Doc->new($_) } Doc::pages();
my $readme = $page{'README.md'};
my $guide = $page{'doc/guide.md'};
my $installing = $page{'doc/install.md'};
my $index = $page{'doc/README.md'};
my $reference = $page{'doc/reference.md'};

my %setting = $readme->settings;
is_deeply(
	[ sort keys %setting ],
	[qw(shared_preload_libraries zklock.hosts zklock.root)],
	'the lines of postgresql.conf');
is_deeply({ $installing->settings }, \%setting, '- are the same in doc/install.md');

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, %setting, 'zklock.hosts' => $zk->hosts);
my $admin = zk_session($node);

$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(first shop);
foreach my $page ($readme, $guide, $installing)
{
	cmp_ok(scalar $page->blocks('sql'), '>=', 3, 'there is SQL');
	$page->run($node, zk => $zk);
	$page->all_was_run;
	$admin->value('DROP TABLE IF EXISTS report');
}

#
# What exists
#
sub extension_has
{
	my ($catalog, $columns) = @_;
	return sort split /\n/, $admin->value(
		"SELECT $columns FROM pg_depend d JOIN $catalog c ON c.oid = d.objid
		 WHERE d.classid = '$catalog'::regclass AND d.deptype = 'e' AND d.refobjid =
			(SELECT oid FROM pg_extension WHERE extname = 'zklock')");
}

# A row of the reference may be about several of one type
sub each_named { return map { my $type = $_->[1]; map { "$_ $type" } $_->[0] =~ /`[^`]+`/g } @_; }

# The result type of a function that returns a set of rows is in a table of its
# columns.
my @functions = extension_has('pg_proc',
	q{format('`%s(%s)` %s', proname,
		regexp_replace(regexp_replace(pg_get_function_arguments(c.oid), '(, )?OUT .*', ''), '::\w+|\yIN ', '', 'g'),
		pg_get_function_result(c.oid))});
is_deeply([ sort +(each_named($reference->table('| function | returns | what it does |'))),
		(map { "$_->[0] " } $reference->table('| procedure | what it does |')) ],
	\@functions, 'the functions and procedures, their arguments and results');

# A function with arguments that returns rows has no view before it
my @views = grep { length } (
	extension_has('pg_class', q{format('`%s` %s', relname,
		(SELECT string_agg(format('`%s` %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum) FROM pg_attribute
		 WHERE attrelid = c.oid AND attnum > 0))}),
	extension_has('pg_proc', q{CASE WHEN proretset AND 'i' = ANY (proargmodes) THEN format('`%s` %s', proname,
		(SELECT string_agg(format('`%s` %s', name, format_type(type, NULL)), ', ' ORDER BY n)
		 FROM unnest(proargnames, proargmodes, proallargtypes) WITH ORDINALITY AS a(name, mode, type, n)
		 WHERE mode <> 'i')) END}));
is_deeply(
	[ sort map {
		"$_ " . join ', ', each_named($reference->table("| column of $_ | type | meaning |"))
	} $reference->text =~ /^\| column of (`\w+`) \| type \| meaning \|$/mg ],
	[ sort @views ], 'the views, the table, what returns rows, and their columns');
is($admin->value(q{SELECT string_agg(format('`%s` %s', name, format_type(type, NULL)), ', ' ORDER BY n)
	FROM pg_proc, unnest(proargnames, proargmodes, proallargtypes) WITH ORDINALITY AS a(name, mode, type, n)
	WHERE proname = 'zk_last_claim' AND mode <> 'i'}),
	join(', ', grep { !/^`path`/ } each_named($reference->table('| column of `zk_claims` | type | meaning |'))),
	'zk_last_claim has the columns of zk_claims but the path');

my @settings = sort split /\n/, $admin->value(
	q{SELECT format('`%s` %s', name, context) FROM pg_settings WHERE name LIKE 'zklock.%'});
my @in_table = $reference->table('| setting | default | range | who | meaning |');
is_deeply([ sort map { "$_->[0] $_->[3]" } @in_table ], \@settings, 'the settings, and who may change them');
foreach my $row (@in_table)
{
	my ($name, $default, $range) = map { s/`//gr } @$row;
	$default = '' if $default eq '(none)';
	$admin->value("SET $name = '$default'");
	is($admin->value("SELECT setting = boot_val FROM pg_settings WHERE name = '$name'"),
		't', "$name: its default");
	if (my ($min, $max) = $range =~ /^(\w+) to (\w+)$/)
	{
		foreach ([ min_val => $min ], [ max_val => $max ])
		{
			my ($limit, $value) = @$_;
			$admin->value("SET $name = '$value'");
			is($admin->value("SELECT setting = $limit FROM pg_settings WHERE name = '$name'"), 't', "$name: its $limit");
		}
	}
	else
	{
		my $values = $admin->value("SELECT array_to_string(enumvals, ', ') FROM pg_settings WHERE name = '$name'");
		is($range, $values, "$name: its values") if length $values;
	}
	$admin->value("RESET $name");
}

# ... and the rest of the text
my %exists = map { /^`([\w.]+)/ => 1 } @functions, @views, @settings;
$exists{'zklock.hots'} = 1;    # the page on troubles shows what becomes of a misspelled name
foreach my $page (map { $page{$_} } sort keys %page)
{
	is_deeply([ grep { !$exists{$_} } $page->text =~ /\b(zk_\w+|zklock\.\w+)/g ],
		[], $page->file . ' names nothing that does not exist');
	is_deeply([ grep { !leads_somewhere($page, $_) } $page->text =~ /\]\(([^)\s]+)\)/g ],
		[], $page->file . ': its links lead somewhere');
}
my %linked = map { $_ => 1 } map { $_->text =~ /\]\((?:\.\.\/)*(?:doc\/)?((?:(?:recipes|programs|dev)\/)?[\w-]+\.\w+)/g } $readme, $index;
is_deeply([ grep { $_ ne 'README.md' && !$linked{ s{^doc/}{}r } } sort keys %page ],
	[], 'README.md and doc/README.md lead to each page');
cmp_ok(scalar(() = $readme->text =~ /\S+/g), '<=', 900, 'README.md is short');

my $drawn = qx{perl "$FindBin::RealBin/../dev/peers.pl" <"$FindBin::RealBin/../doc/torture.md"};
ok($drawn eq slurp_file("$FindBin::RealBin/../doc/peers.svg"), 'doc/peers.svg shows the table of doc/torture.md');

# A period is the same everywhere, whatever hour it is
my @zones = ('America/New_York', 'Asia/Tokyo', 'Asia/Kolkata');
my %period = map { $_ => 1 } map { $_->text =~ /date_trunc\([^()]*now\(\)[^()]*\)/g } values %page;
cmp_ok(scalar keys %period, '>', 1, 'the pages name periods');
foreach my $period (sort keys %period)
{
	my $each_hour = q{SELECT array_agg(extract(epoch FROM } . $period =~ s/now\(\)/h/r . q{)) FROM generate_series(
		timestamptz '2026-03-07 00:10+00', '2026-03-09 00:00+00', '1 hour') h};
	my %claimed = map { $admin->value("SET TimeZone = '$_'; $each_hour; RESET TimeZone") => 1 } @zones;
	is(scalar keys %claimed, 1, "$period: @zones agree");
}

# A link to a file of the tree, and to a heading of it by GitHub's naming
sub leads_somewhere
{
	my ($page, $link) = @_;
	return 1 if $link =~ /^https?:/;
	my ($file, $heading) = $link =~ /^([^#]*)(?:#(.*))?$/;
	my $dir = $page->file =~ s{[^/]*$}{}r;
	my $path = length $file ? "$dir$file" : $page->file;
	1 while $path =~ s{[^/]+/\.\./}{};
	return 0 unless -e "$FindBin::RealBin/../$path";
	return 1 unless defined $heading;
	return grep { $heading eq (lc($_) =~ s/[^\w\- ]//gr =~ tr/ /-/r) }
	  slurp_file("$FindBin::RealBin/../$path") =~ /^#+ (.*)$/mg;
}

#
# The GRANT and the REVOKE: a plain role can do nothing without them, and what
# is no administrator's with them.  The role is the one that doc/install.md has
# created above; the extension is installed again, as it says.
#
{
	my ($install) = $installing->text =~ /^(CREATE SCHEMA.*?)^```/ms;
	my ($role, $usage, $grant) = $installing->text =~ /^CREATE ROLE (\w+) LOGIN;\n(GRANT USAGE [^;]*;\n)(.*?)^```/ms;
	my ($schema) = $install =~ /^CREATE EXTENSION zklock SCHEMA (\w+);/m;
	my %call;
	foreach (grep { !/ trigger$/ } @functions)    # which nobody calls
	{
		my ($name, $arguments) = /^`(\w+)\((.*)\)`/;
		$arguments =~ s{path text}{'/granted'};
		$arguments =~ s{prefix text.*}{'/'};
		$arguments =~ s{node text}{'x-lock-0000000000'};
		$arguments =~ s{paths text\[\]}{'{/granted}'};
		$arguments =~ s{permits integer}{1};
		$arguments =~ s{period timestamp with time zone}{now()};
		$arguments =~ s{timeout interval.*}{'5s'};
		$arguments =~ s{token bigint.*}{1};
		$call{$name} = (/ $/ ? 'CALL' : 'SELECT * FROM') . " $schema.$name($arguments)";
	}
	my %is_for_all = map { $_ => 1 } qw(zk_lock_status zk_session_status zk_server_lock_status);
	my @for_administrators = qw(zk_claim_forget zk_fence zk_lock_break);
	my %is_for_administrators = map { $_ => 1 } @for_administrators;
	is_deeply([ sort map { /(zk_\w+)/g } $grant =~ /^REVOKE .*? FROM $role;/msg ], \@for_administrators, 'the REVOKE names what is for administrators');

	$node->safe_psql('shop', "DROP SCHEMA $schema");
	$node->safe_psql('shop', $install);
	my $owner = zk_session($node, dbname => 'shop');
	my $s = zk_session($node, user => $role, dbname => 'shop');
	is($s->value('SELECT rolsuper FROM pg_roles WHERE rolname = current_user'), 'f', "$role is a plain role");
	my $may = sub {
		my ($when, $allowed) = @_;
		foreach my $name (sort keys %call)
		{
			my $result = $s->query($call{$name});
			is($result->{state}, $allowed->($name) ? '' : '42501', "$when: $name") or diag($result->{err});
		}
	};
	$may->('without the GRANT', sub { 0 });
	is($s->query(q{SELECT zk_lock('/granted')})->{state}, '42883', '- where search_path passes over the schema');
	my @dump = ('pg_dump', '-d', $node->connstr('shop') . " user=$role");
	$node->command_fails(\@dump, '- nor is the database dumped');
	$owner->value($usage);
	$node->command_ok(\@dump, 'with USAGE the database is dumped');
	$may->('with USAGE', sub { $is_for_all{ $_[0] } });
	is($s->query("SELECT * FROM $_")->{state}, '', "with USAGE: $_") for qw(zk_locks zk_session zk_server_locks);
	$owner->value($grant);
	$may->('with the GRANT', sub { !$is_for_administrators{ $_[0] } });
	like($s->value(q{SELECT zk_unlock_all(), zk_lock('/granted'), (SELECT count(*) FROM zk_locks)}), qr/^\d+\|t\|1$/,
		'the functions and views are in the search_path');
	$_->quit for $s, $owner;
}

zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
