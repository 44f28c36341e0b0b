# Upgrading: a user who installed the first version and applied each step since then has the
# same as a new user, and keeps what zk_fences has seen.  zklock_advisory works
# meanwhile, and is upgraded last.  The comparison itself
# is tested with a version that does not exist, and with steps to it that forget
# something.
#
# A server finds extensions relative to its programs, so made-up extension files
# require a copy of the programs.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use Cwd qw(abs_path);
use File::Copy qw(copy);
use File::Path qw(make_path);
use JSON::PP ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Zklock;
use ZooKeeper;

my $tree = abs_path("$FindBin::RealBin/..");
my $default = (slurp_file("$tree/zklock.control") =~ /^default_version = '(.*)'$/m)[0];
my $first = (slurp_file("$tree/CHANGELOG.md") =~ /^## (\S+) /mg)[-1];

#
# One version, wherever it is written
#
{
	my $meta = JSON::PP::decode_json(slurp_file("$tree/META.json"));
	my ($changes, $when) = slurp_file("$tree/CHANGELOG.md") =~ /^## (\S+) \((.*)\)$/m;
	my ($package, $for) = slurp_file("$tree/debian/changelog") =~ /\Azklock \(([^)-]+)-\S+\) (\w+);/;
	my ($data) = slurp_file("$tree/Makefile") =~ /^DATA = (.*)$/m;

	is($changes, $default, 'CHANGELOG.md begins with the version of zklock.control');
	# what sorts before the release there
	is($package =~ tr/~/-/r, $default, 'so does debian/changelog');
	# PGXN's version numbers have three parts
	my $in_meta = $default =~ s/^\d+\.\d+\K/.0/r;
	is($meta->{version}, $in_meta, 'META.json has it');
	is((slurp_file("$tree/zklock_advisory.control") =~ /^default_version = '(.*)'$/m)[0], $default, 'zklock_advisory.control has the same');
	# ... and the state of the release
	like($when, qr/^(?:unreleased|\d{4}-\d\d-\d\d)$/, 'CHANGELOG.md says when it was released');
	my $released = $when ne 'unreleased' || 0;
	is($default !~ /-dev$/ || 0, $released, '- and whoever installs something else does not have a version of that name');
	is($for ne 'UNRELEASED' || 0, $released, '- and debian/changelog whether it was');
	is($meta->{release_status} eq 'stable' || 0, $released, '- and META.json');
	is_deeply([ grep { !$meta->{$_} } qw(name version abstract maintainer license provides meta-spec) ],
		[], 'META.json has all that PGXN asks for');
	is_deeply([ sort keys %{ $meta->{provides} } ], [ sort map { m{([^/]*)\.control$} } glob "$tree/*.control" ], '- and tells of each extension');
	foreach my $extension (map { $meta->{provides}{$_} } sort keys %{ $meta->{provides} })
	{
		is($extension->{version}, $in_meta, '- its version');
		ok(-e "$tree/$extension->{file}", '- a script that exists');
		ok(-e "$tree/$extension->{docfile}", '- and a document');
	}
	is_deeply([ sort split / /, $data ], [ sort map { s{.*/}{}r } glob "$tree/zklock*--*.sql" ],
		'make install installs every script that there is');

	my ($license) = slurp_file("$tree/LICENSE") =~ /^(Permission .*)\z/ms;
	my ($in_package) = slurp_file("$tree/debian/copyright") =~ /^ (Permission .*)\z/ms;
	is($in_package =~ s/^ \.?//mgr, $license, 'LICENSE and debian/copyright say the same');
}

#
# A server with an extension directory of its own
#
my $installation = PostgreSQL::Test::Utils::tempdir() . '/installation';

sub pg_config
{
	my $answer = `@{[ $ENV{PG_CONFIG} // 'pg_config' ]} --$_[0]`;
	chomp $answer;
	return $answer || die "no pg_config --$_[0]";
}

# Link everything in this directory into $installation, except some files
sub link_all
{
	my ($dir, $but) = @_;
	make_path("$installation$dir");
	opendir my $handle, $dir or die "$dir: $!";
	foreach my $entry (grep { !/^\.\.?$/ && !/$but/ } readdir $handle)
	{
		symlink "$dir/$entry", "$installation$dir/$entry" or die "$dir/$entry: $!";
	}
	return;
}

my ($bin, $share, $lib) = map { pg_config($_) } qw(bindir sharedir pkglibdir);
my $extensions = "$installation$share/extension";

# these locate files by their real path
my @programs = qw(postgres initdb pg_ctl);
link_all($bin, '^(?:' . join('|', @programs) . ')$');
foreach my $program (@programs)
{
	copy("$bin/$program", "$installation$bin/$program") or die "$bin/$program: $!";
	chmod 0755, "$installation$bin/$program";
}
link_all($lib, '^$') if !-e "$installation$lib";
link_all($share, '^extension$');
link_all("$share/extension", '^zklock[.-]');

# The extension files installed there from now on
sub install
{
	my (%content) = @_;
	unlink glob "$extensions/zklock[.-]*";
	foreach my $name (keys %content)
	{
		open my $file, '>', "$extensions/$name" or die "$name: $!";
		print $file $content{$name};
		close $file or die "$name: $!";
	}
	return;
}

my %real = map { s{.*/}{}r => scalar slurp_file($_) } "$tree/zklock.control", glob "$tree/zklock--*.sql";
install(%real);

my $zk = ZooKeeper->new->start;
my $node = PostgreSQL::Test::Cluster->new('main', install_path => $installation . $bin =~ s{/bin$}{}r);
zk_init($node);
$node->append_conf('postgresql.conf', "zklock.hosts = '" . $zk->hosts . "'");
$node->start;
is($node->safe_psql('postgres', "SELECT setting LIKE '$installation%' FROM pg_config WHERE name = 'SHAREDIR'"),
	't', 'the server finds our extension directory');

# the library tells its version, too, where PostgreSQL (18) shows it
if ($node->safe_psql('postgres', q{SELECT to_regproc('pg_get_loaded_modules') IS NOT NULL}) eq 't')
{
	is( $node->safe_psql('postgres', q{
			LOAD 'zklock'; SELECT module_name, version FROM pg_get_loaded_modules() WHERE file_name ~ '\yzklock\.'}),
		"zklock|$default", 'pg_get_loaded_modules() shows the version of zklock.control');
}

# Everything that makes up the extension in a database: { 'Type name' => SQL }.
# Only pg_upgrade's kind of dump shows the contents of an extension; numbers
# that differ from one database to another are removed from it.
sub dump_of
{
	my ($db) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . "/$db.dump";
	$node->run_log([ 'pg_dump', '--binary-upgrade', '--schema-only', '-f', $file, '-d', $node->connstr($db) ])
	  or die 'pg_dump';
	my (undef, @entries) = split /^--\n-- (?=Name: )/m, slurp_file($file);
	my %dump;
	foreach my $entry (@entries)
	{
		my ($name, $type, $sql) = $entry =~ /\AName: (.*?); Type: (.*?); Schema: [^\n]*\n--\n(.*)\z/s or die $entry;
		$sql =~ s/^SELECT pg_catalog\.binary_upgrade_set_next.*\n//mg;
		$sql =~ s/^UPDATE pg_catalog\.pg_class\nSET relfrozenxid.*\nWHERE oid = .*\n//mg;
		$sql =~ s/ARRAY\['[\d']+(?:,\s*'\d+')*\]/ARRAY[N]/g;
		$sql =~ s/'\{[\d,]+\}'/'{N}'/g;
		$sql =~ s/^\\(?:un)?restrict .*\n//mg;
		$sql =~ s/\n\n+/\n/g;
		$dump{"$type $name"} .= $sql;
	}
	$dump{'tables to dump'} = $node->safe_psql($db, q{
		SELECT string_agg(c.config::regclass || ': ' || c.condition, E'\n' ORDER BY c.config::regclass::text)
		  FROM pg_extension, unnest(extconfig, extcondition) AS c(config, condition) WHERE extname = 'zklock'});
	return \%dump;
}

# Install the first version, upgrade step by step, and compare with a database
# where the last one was installed directly: { 'Type name' => [ upgraded, new ]
# } of what differs.  Includes tests.  loses => 1: the contents of zk_fences
# must be found to be gone.
my $count = 0;

sub upgrade
{
	my ($to, $what, %opt) = @_;
	my ($old, $new) = map { $_ . $count } qw(upgraded new);
	$count++;
	$node->safe_psql('postgres', "CREATE DATABASE $_") for $old, $new;
	$node->safe_psql($new, "CREATE EXTENSION zklock VERSION '$to'; CREATE EXTENSION zklock_advisory");
	$node->safe_psql($old, qq{
		CREATE EXTENSION zklock VERSION '$first';
		CREATE EXTENSION zklock_advisory VERSION '$first';
		SELECT zk_fence('/a', 5), zk_fence('/b', 7);
		CREATE ROLE app$count; GRANT EXECUTE ON FUNCTION zk_lock TO app$count});
	my $seen = q{SELECT path, token, recorded_at FROM zk_fences ORDER BY path COLLATE "C"};
	my $rows = $node->safe_psql($old, $seen);
	like($rows, qr{\A/zklock/a\|5\|.*\n/zklock/b\|7\|.*\z}, "$what: zk_fences has two rows in $first");

	my $path = $node->safe_psql($old,
		"SELECT path FROM pg_extension_update_paths('zklock') WHERE source = '$first' AND target = '$to'");
	my (undef, @steps) = split /--/, $path;
	ok($to eq $first || (@steps && $steps[-1] eq $to), "$what: there is a way from $first to $to");
	foreach my $step (@steps)
	{
		$node->safe_psql($old, "ALTER EXTENSION zklock UPDATE TO '$step'");
		my $now = $node->safe_psql($old, $seen);
		$opt{loses} ? isnt($now, $rows, "$what: found") : is($now, $rows, "$what: zk_fences is the same in $step");
		is($node->safe_psql($old, q{SELECT zk_lock('/upgrade'), zk_unlock('/upgrade')}), 't|t', "$what: $step locks");
		is($node->safe_psql($old, q{SET search_path = zklock_advisory, pg_catalog;
			SELECT pg_advisory_lock(1); SELECT pg_advisory_unlock(1)}), "\nt", "$what: - with zklock_advisory, too");
	}
	$node->safe_psql($old, 'ALTER EXTENSION zklock_advisory UPDATE');
	is($node->safe_psql($old, "SELECT has_function_privilege('app$count', 'zk_lock(text, interval)', 'EXECUTE')"),
		't', "$what: what was granted stays");
	$node->safe_psql($old, "REVOKE ALL ON FUNCTION zk_lock FROM app$count; DROP ROLE app$count");

	my ($upgraded, $fresh) = (dump_of($old), dump_of($new));
	my %differs;
	foreach my $entry (keys %{ { %$upgraded, %$fresh } })
	{
		my ($a, $b) = map { $_->{$entry} // '' } $upgraded, $fresh;
		$differs{$entry} = [ $a, $b ] if $a ne $b;
	}
	return \%differs;
}

# One test: upgraded and new are the same.
sub no_difference
{
	my ($differs, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(!%$differs, $name)
	  or diag(map { "$_\nupgraded:\n$differs->{$_}[0]\nnew:\n$differs->{$_}[1]\n" } sort keys %$differs);
	return;
}

# ------------------------------------------------------------- what there is

no_difference(upgrade($default, "$first to $default"), "upgraded to $default: the same as a new one");

my $dump = dump_of('new0');
my %kinds;
$kinds{ (split / /)[0] }++ for keys %$dump;
foreach my $kind ($default eq $first ? qw(FUNCTION VIEW TABLE) : ())
{
	my $scripts = $real{"zklock--$first.sql"} . slurp_file("$tree/zklock_advisory--$first.sql");
	is($kinds{$kind}, scalar(() = $scripts =~ /^CREATE $kind /mg), "the comparison sees each $kind");
}

# ------------------------------------------------------- what there could be

# What a later version might contain, with each part broken in some way: what it
# is, the right and the wrong version, and where that must show up
my $function = q{RETURNS bigint AS 'MODULE_PATHNAME', 'zk_lock_token' LANGUAGE C VOLATILE PARALLEL RESTRICTED};
my @parts = (
	[ 'a function too few', "CREATE FUNCTION zk_n1(path text) $function;", '', 'FUNCTION zk_n1(text)' ],
	[ 'another signature', "CREATE FUNCTION zk_n2(path text) $function;", "CREATE FUNCTION zk_n2(lock text) $function;",
		'FUNCTION zk_n2(text)' ],
	[ 'another default', "CREATE FUNCTION zk_n3(path text, n int DEFAULT 1) $function;",
		"CREATE FUNCTION zk_n3(path text, n int DEFAULT 2) $function;", 'FUNCTION zk_n3(text, integer)' ],
	[ 'another volatility', "CREATE FUNCTION zk_n4(path text) $function;",
		"CREATE FUNCTION zk_n4(path text) $function STABLE;" =~ s/VOLATILE//r, 'FUNCTION zk_n4(text)' ],
	[ 'parallel safe', "CREATE FUNCTION zk_n5(path text) $function;",
		"CREATE FUNCTION zk_n5(path text) $function;" =~ s/RESTRICTED/SAFE/r, 'FUNCTION zk_n5(text)' ],
	[ 'another C function', "CREATE FUNCTION zk_n6(path text) $function;",
		"CREATE FUNCTION zk_n6(path text) $function;" =~ s/zk_lock_token/zk_fence/r, 'FUNCTION zk_n6(text)' ],
	[ 'strict', "CREATE FUNCTION zk_n7(path text) $function;", "CREATE FUNCTION zk_n7(path text) $function STRICT;",
		'FUNCTION zk_n7(text)' ],
	[ 'open to PUBLIC', 'REVOKE ALL ON FUNCTION zk_n8(text) FROM PUBLIC;', '', 'ACL FUNCTION zk_n8(path text)',
		"CREATE FUNCTION zk_n8(path text) $function;" ],
	[ 'no comment', q{COMMENT ON FUNCTION zk_n9(text) IS 'nine';}, '', 'COMMENT FUNCTION zk_n9(path text)',
		"CREATE FUNCTION zk_n9(path text) $function;" ],
	[ 'another comment on what there was', q{COMMENT ON FUNCTION zk_lock(text, interval) IS 'new';}, '',
		'COMMENT FUNCTION zk_lock(path text, timeout interval)' ],
	[ 'a right taken away from what there was', 'REVOKE ALL ON zk_locks FROM PUBLIC;', '', 'ACL TABLE zk_locks' ],
	[ 'not SECURITY DEFINER', '', 'ALTER FUNCTION zk_fence(text, bigint) SECURITY INVOKER;', 'FUNCTION zk_fence(text, bigint)' ],
	[ 'another search_path', 'ALTER FUNCTION zk_lock_token(text) SET search_path = pg_catalog;',
		'ALTER FUNCTION zk_lock_token(text) SET search_path = public;', 'FUNCTION zk_lock_token(text)' ],
	[ 'another view', 'CREATE VIEW zk_v1 AS SELECT path FROM zk_lock_status();',
		'CREATE VIEW zk_v1 AS SELECT scope AS path FROM zk_lock_status();', 'VIEW zk_v1' ],
	[ 'a view that is the extension\'s no more', '', 'ALTER EXTENSION zklock DROP VIEW zk_v2;', 'VIEW zk_v2',
		'CREATE VIEW zk_v2 AS SELECT path FROM zk_lock_status();' ],
	[ 'another column', 'ALTER TABLE zk_fences ADD COLUMN who text COLLATE "C" DEFAULT session_user;',
		'ALTER TABLE zk_fences ADD COLUMN who text DEFAULT session_user;', 'TABLE zk_fences' ],
	[ 'no comment on a column', q{COMMENT ON COLUMN zk_fences.token IS 'highest';}, '', 'COMMENT COLUMN zk_fences.token' ],
	[ 'no key', '', 'ALTER TABLE zk_fences DROP CONSTRAINT zk_fences_pkey;', 'CONSTRAINT zk_fences zk_fences_pkey' ],
	[ 'a table that pg_dump forgets', q{SELECT pg_catalog.pg_extension_config_dump('zk_notes', '');}, '', 'tables to dump',
		'CREATE TABLE zk_notes (note text);' ],);
my $newest = "$default.made_up";
my ($good, $bad) = ('', '');
foreach my $part (@parts)
{
	my (undef, $right, $wrong, undef, $both) = map { $_ // '' } @$part;
	$good .= "$both\n$right\n";
	$bad .= "$both\n$wrong\n";
}

# The installed extension, with this step from the newest real version
sub install_made_up
{
	my ($step) = @_;
	install(
		%real,
		'zklock.control' => $real{'zklock.control'} =~ s/^default_version = .*$/default_version = '$newest'/mr,
		"zklock--$newest.sql" => $real{"zklock--$default.sql"} . $good,
		"zklock--$default--$newest.sql" => $step);
	return;
}

install_made_up($good);
no_difference(upgrade($newest, 'a good step'), 'a good step: no difference');

install_made_up($bad);
my $differs = upgrade($newest, 'a bad step');
ok(exists $differs->{ $_->[3] }, "a bad step: $_->[0] is found") for @parts;
my %expected = map { $_->[3] => 1 } @parts;
# the entry of the extension itself contains the OIDs of its tables
is_deeply([ grep { !$expected{$_} && !/^EXTENSION/ } sort keys %$differs ], [], 'a bad step: nothing else is');

install_made_up("$good DELETE FROM zk_fences WHERE path = '/zklock/a';");
upgrade($newest, 'a step that loses what was seen', loses => 1);

done_testing();
