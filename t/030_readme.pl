# README.md is true: its SQL runs, it names what exists and nothing else, and its
# GRANT is enough.
#
# Every ```sql block runs, in the order of the document.  A comment on the line
# before the block may say more, as <!-- key: value; key: value -->:
#
#   session: NAME     who runs it; "main" if nobody is named.  A name keeps its
#                     session to the end.  "install" is in a database that has
#                     no extension yet.
#   fails: SQLSTATE   there is one error, this one, and then a ROLLBACK; without
#                     it there is none.
#   prints: A B ...   all that is printed, as psql -A -t does, a row each word.
#
# The ```ini block is what the server is configured with, but for the addresses.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Zklock;
use ZooKeeper;

my $file = "$FindBin::RealBin/../README.md";
my $readme = slurp_file($file);

# Each fenced block of a language: { line, code, session, fails, prints }
sub blocks
{
	my ($language) = @_;
	my @blocks;
	while ($readme =~ /^(?:<!-- ([^\n]*) -->\n)?```\Q$language\E\n(.*?)^```$/msg)
	{
		my ($keys, $code) = ($1, $2);
		my $line = 1 + (substr($readme, 0, $-[2]) =~ tr/\n//);
		my %block = map { /^(session|fails|prints): (\S.*)$/ ? ($1 => $2) : die "$file:$line: \"$_\"?\n" }
		  split /; /, $keys // '';
		push @blocks, { session => 'main', %block, line => $line, code => $code };
	}
	return @blocks;
}

# The rows of the table with this heading, as lists of cells
sub table
{
	my ($heading) = @_;
	my ($rows) = $readme =~ /^\Q$heading\E\n\|[- |]+\|\n((?:\|.*\n)+)/m or die "no table: $heading\n";
	return map { [ split / *\| +/, s/^\| //r =~ s/ \|$//r ] } split /\n/, $rows;
}

my %setting = map { /^(\S+) = '(.*)'$/mg } map { $_->{code} } blocks('ini');
is_deeply(
	[ sort keys %setting ],
	[qw(session_preload_libraries zklock.hosts)],
	'the lines of postgresql.conf');

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, %setting, 'zklock.hosts' => $zk->hosts);
my $admin = zk_session($node);

#
# Every SQL
#
{
	$node->safe_psql('postgres', 'CREATE DATABASE install');
	my %session;
	my @blocks = blocks('sql');
	my $fences = () = $readme =~ /^\s*```\s*(?:sql|pgsql|plpgsql|postgres\w*)/mgi;
	is(@blocks, $fences, 'all SQL was found');
	cmp_ok($fences, '>', 5, 'and that is not nothing');

	foreach my $block (@blocks)
	{
		my $name = $block->{session};
		my $s = $session{$name} //=
		  zk_session($node, dbname => $name eq 'install' ? 'install' : 'postgres');
		my $result = $s->query($block->{code});
		my $what = "line $block->{line}";

		is(join(' ', $result->{err} =~ /(?:ERROR|FATAL|PANIC):  (\w{5})/g),
			$block->{fails} // '', "$what: " . ($block->{fails} ? 'fails as it says' : 'runs'))
		  or diag($result->{err});
		is(join(' ', split /\n/, $result->{out}), $block->{prints}, "$what: prints what it says")
		  if defined $block->{prints};
		is_deeply($result->{warnings}, [], "$what: no warning");
		$s->query('ROLLBACK') if $block->{fails};
		is($admin->value('SELECT state FROM pg_stat_activity WHERE pid = ' . $s->pid),
			'idle', "$what: is a whole transaction");
	}
	$_->quit for values %session;
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

# What a function that returns a set of rows returns is in the view's row.
my @functions = extension_has('pg_proc',
	q{format('`%s(%s)` %s', proname,
		CASE WHEN proargmodes IS NULL THEN regexp_replace(pg_get_function_arguments(c.oid), '::\w+', '', 'g') END,
		pg_get_function_result(c.oid))});
is_deeply([ sort map { "$_->[0] $_->[1]" } table('| function | returns | what it does |') ],
	\@functions, 'the functions, their arguments and results');

# ... what a parenthesis says of a column is not a column
my @views = extension_has('pg_class', q{format('`%s` %s', relname,
	(SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute
	 WHERE attrelid = c.oid AND attnum > 0))});
is_deeply(
	[ sort map { "$_->[0] " . join ' ', ($_->[1] =~ s/\([^()]*\)//gr) =~ /`(\w+)`/g } table('| relation | columns |') ],
	\@views, 'the views, the table, and their columns');

my @settings = sort split /\n/, $admin->value(
	q{SELECT format('`%s` %s', name, context) FROM pg_settings WHERE name LIKE 'zklock.%'});
my @in_table = table('| setting | default | who | meaning |');
is_deeply([ sort map { "$_->[0] $_->[2]" } @in_table ], \@settings, 'the settings, and who may change them');
foreach my $row (@in_table)
{
	my ($name, $default) = map { s/`//gr } @$row;
	$default = '' if $default eq '(none)';
	$admin->value("SET $name = '$default'");
	is($admin->value("SELECT setting = boot_val FROM pg_settings WHERE name = '$name'"),
		't', "$name: its default");
	$admin->value("RESET $name");
}

# ... and the rest of the text
my %exists = map { /^`([\w.]+)/ => 1 } @functions, @views, @settings;
is_deeply([ grep { !$exists{$_} } $readme =~ /\b(zk_\w+|zklock\.\w+)/g ],
	[], 'the text names nothing that does not exist');

#
# The GRANT: a plain role can do nothing without it, and everything with it.  Its
# role is the one that the README has made above.
#
{
	my ($grant) = $readme =~ /^(GRANT EXECUTE ON FUNCTION.*?;)/ms;
	my (%call, $role);
	foreach (@functions)
	{
		my ($name, $arguments) = /^`(\w+)\((.*)\)`/;
		$arguments =~ s{path text}{'/granted'};
		$arguments =~ s{paths text\[\]}{'{/granted}'};
		$arguments =~ s{permits integer}{1};
		$arguments =~ s{timeout interval.*}{'5s'};
		$arguments =~ s{token bigint.*}{1};
		$call{$name} = "SELECT * FROM $name($arguments)";
	}
	my @for_all = qw(zk_lock_status zk_session_status);
	my %is_for_all = map { $_ => 1 } @for_all;
	($role) = $grant =~ /TO (\w+);/;

	my $s = zk_session($node);
	$s->value("SET SESSION AUTHORIZATION $role");
	is($s->value('SELECT rolsuper FROM pg_roles WHERE rolname = current_user'), 'f', "$role is a plain role");
	foreach my $name (sort keys %call)
	{
		is($s->query($call{$name})->{state}, $is_for_all{$name} ? '' : '42501', "without the GRANT: $name");
	}
	is($s->query("SELECT * FROM $_")->{state}, '', "without the GRANT: $_") for qw(zk_locks zk_session);

	$admin->value($grant);
	foreach my $name (sort keys %call)
	{
		my $result = $s->query($call{$name});
		is($result->{state}, '', "with the GRANT: $name") or diag($result->{err});
	}
	is_deeply([ sort @for_all, $grant =~ /(zk_\w+)\(/g ], [ sort keys %call ],
		'the GRANT names each function that needs it');
	$s->quit;
}

zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
