# Upgrading: a user who installed the first version and applied each step since then has the
# same as a new user, and keeps what zk_fences has seen.  zklock_advisory works
# meanwhile, and is upgraded last.  The comparison itself
# is tested with a version that does not exist, and with steps to it that forget
# something.  Two clusters that share an ensemble get such a version, with another
# library, one after the other, and are taken back, while they hold locks and claim.
#
# A server finds extensions relative to its programs, so made-up extension files
# require a copy of the programs.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cwd qw(abs_path);
use Digest::SHA qw(sha256_hex);
use File::Copy qw(copy);
use File::Path qw(make_path);
use JSON::PP ();

use Tests;

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
# What was released stays as it is
#

# The SHA-256 of each script of a release, and of each step to one
my %released = ();

# What is not so among these scripts, { name => SQL }, and what to do about it
sub complaints
{
	my ($sums, %script) = @_;
	my @complaints;
	foreach my $name (sort keys %{ { %$sums, %script } })
	{
		my ($extension, $version) = $name =~ /^(\w+)--(?:.*--)?(.*)\.sql$/;
		next if $version =~ /-dev$/;
		my $sum = exists $script{$name} ? sha256_hex($script{$name}) : 'gone';
		if (!exists $sums->{$name})
		{
			push @complaints, "$name is released with this version, and must not change any more: let %released in t/071_upgrade.pl have\n"
			  . "\t'$name' => '$sum',";
		}
		elsif ($sum ne $sums->{$name})
		{
			push @complaints, "$name was released, and is not the same any more: a database that has $version would never get the change.\n"
			  . "Put it back: git checkout v$version -- $name\n"
			  . "What shall change comes with the next version NEXT: write $extension--$version--NEXT.sql with the statements that lead there,\n"
			  . "and $extension--NEXT.sql with all of it, for new installations, as CONTRIBUTING.md says under \"Releases\".";
		}
	}
	return @complaints;
}

{
	my %script = map { s{.*/}{}r => scalar slurp_file($_) } glob "$tree/zklock*--*.sql";
	my @complaints = complaints(\%released, %script);
	ok(!@complaints, 'the released scripts are as they were released') or diag(join "\n", @complaints);
	is_deeply([ grep { $script{$_} !~ m{\A/\* \Q$_\E \*/\n} } sort keys %script ], [], 'each script begins with its name');

	my %made_up = ('zklock--1.0.sql' => 'a', 'zklock--1.0--1.1.sql' => 'b', 'zklock--1.1--1.2-dev.sql' => 'c', 'zklock--1.2-dev.sql' => 'd');
	my %sums = map { $_ => sha256_hex($made_up{$_}) } grep { !/-dev/ } keys %made_up;
	is_deeply([ complaints(\%sums, %made_up) ], [], 'what is not released may change');
	foreach my $name (sort keys %sums)
	{
		my %changed = (%made_up, $name => 'e');
		like(join("\n", complaints(\%sums, %changed)), qr/\A\Q$name\E was released, .* write zklock--1\.[01]--NEXT\.sql/s, "$name may not");
		delete $changed{$name};
		like(join("\n", complaints(\%sums, %changed)), qr/\A\Q$name\E was released, /, '- nor go');
		my %others = map { $_ => $sums{$_} } grep { $_ ne $name } keys %sums;
		like(join("\n", complaints(\%others, %made_up)), qr/\A\Q$name\E is released .*\t'\Q$name\E' => '$sums{$name}',\z/s, '- nor have no sum');
	}
}

#
# Servers with an extension directory, and a library, of their own
#

sub pg_config
{
	my $answer = `@{[ $ENV{PG_CONFIG} // 'pg_config' ]} --$_[0]`;
	chomp $answer;
	return $answer || die "no pg_config --$_[0]";
}

my ($bin, $share, $lib) = map { pg_config($_) } qw(bindir sharedir pkglibdir);

# An installation that has nothing of zklock
sub installation
{
	my ($name) = @_;
	my $installation = PostgreSQL::Test::Utils::tempdir() . "/$name";
	foreach my $dir ($bin, $lib, $share)
	{
		make_path("$installation$dir");
		system_or_bail('cp', '-Rs', "$dir/.", "$installation$dir");    # links
	}
	unlink "$installation$lib/zklock.so", glob "$installation$share/extension/zklock*";
	# these locate files by their real path
	system_or_bail('cp', '--remove-destination', map({ "$bin/$_" } qw(postgres initdb pg_ctl)), "$installation$bin");
	return $installation;
}

# The extension files that it has from now on, and the library.  As with make install and
# dpkg, those who have loaded another one keep that.
sub install
{
	my ($installation, $library, %content) = @_;
	unlink glob "$installation$share/extension/zklock*";
	foreach my $name (keys %content)
	{
		open my $file, '>', "$installation$share/extension/$name" or die "$name: $!";
		print $file $content{$name};
		close $file or die "$name: $!";
	}
	my $to = "$installation$lib/zklock.so";
	copy($library, "$to.new") && rename "$to.new", $to or die "$to: $!";
	return;
}

my %real = map { s{.*/}{}r => scalar slurp_file($_) } glob "$tree/zklock*.control $tree/zklock*--*.sql";
my $installation = installation('installation');
my @real = ("$lib/zklock.so", %real);
install($installation, @real);

my $zk = ZooKeeper->new->start;

sub cluster_of
{
	my ($where, $name, %setting) = @_;
	local $Zklock::INSTALLATION = $where . $bin =~ s{/bin$}{}r;
	return zk_cluster($name, $zk, 'zklock.session_timeout' => '30s', %setting);
}
my $node = cluster_of($installation, 'main', session_preload_libraries => '', shared_preload_libraries => 'zklock');
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
		$opt{loses} && $step eq $to ? isnt($now, $rows, "$what: found") : is($now, $rows, "$what: zk_fences is the same in $step");
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
	my $scripts = $real{"zklock--$first.sql"} . $real{"zklock_advisory--$first.sql"};
	is($kinds{$kind}, scalar(() = $scripts =~ /^CREATE $kind /mg), "the comparison sees each $kind");
}

# ------------------------------------------------------- what there could be

# What a later version might contain, with each part broken in some way: what it
# is, the right and the wrong version, and where that must show up.  (All of a function
# is in one entry of the dump, and here is one of each kind of entry.)
my $function = q{RETURNS bigint AS 'MODULE_PATHNAME', 'zk_lock_token' LANGUAGE C VOLATILE PARALLEL RESTRICTED};
my @parts = (
	[ 'a function too few', "CREATE FUNCTION zk_n1(path text) $function;", '', 'FUNCTION zk_n1(text)' ],
	[ 'another default', "CREATE FUNCTION zk_n3(path text, n int DEFAULT 1) $function;",
		"CREATE FUNCTION zk_n3(path text, n int DEFAULT 2) $function;", 'FUNCTION zk_n3(text, integer)' ],
	[ 'open to PUBLIC', 'REVOKE ALL ON FUNCTION zk_n4(text) FROM PUBLIC;', '', 'ACL FUNCTION zk_n4(path text)',
		"CREATE FUNCTION zk_n4(path text) $function;" ],
	[ 'no comment', q{COMMENT ON FUNCTION zk_n5(text) IS 'nine';}, '', 'COMMENT FUNCTION zk_n5(path text)',
		"CREATE FUNCTION zk_n5(path text) $function;" ],
	[ 'a right taken away from what there was', 'REVOKE ALL ON zk_locks FROM PUBLIC;', '', 'ACL TABLE zk_locks' ],
	[ 'not SECURITY DEFINER', '', 'ALTER FUNCTION zk_fence(text, bigint) SECURITY INVOKER;', 'FUNCTION zk_fence(text, bigint)' ],
	[ 'another view', 'CREATE VIEW zk_v1 AS SELECT path FROM zk_lock_status();',
		'CREATE VIEW zk_v1 AS SELECT scope AS path FROM zk_lock_status();', 'VIEW zk_v1' ],
	[ 'a view that is the extension\'s no more', '', 'ALTER EXTENSION zklock DROP VIEW zk_v2;', 'VIEW zk_v2',
		'CREATE VIEW zk_v2 AS SELECT path FROM zk_lock_status();' ],
	[ 'another column', 'ALTER TABLE zk_fences ADD COLUMN who text COLLATE "C" DEFAULT session_user;',
		'ALTER TABLE zk_fences ADD COLUMN who text DEFAULT session_user;', 'TABLE zk_fences' ],
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
		$installation,
		@real,
		'zklock.control' => $real{'zklock.control'} =~ s/^default_version = .*$/default_version = '$newest'/mr,
		"zklock--$newest.sql" => $real{"zklock--$default.sql"} . $good,
		"zklock--$default--$newest.sql" => $step);
	return;
}

install_made_up($good);
no_difference(upgrade($newest, 'a good step'), 'a good step: no difference');

install_made_up("$bad DELETE FROM zk_fences WHERE path = '/zklock/a';");
my $differs = upgrade($newest, 'a bad step', loses => 1);
ok(exists $differs->{ $_->[3] }, "a bad step: $_->[0] is found") for @parts;
my %expected = map { $_->[3] => 1 } @parts;
# the entry of the extension itself contains the OIDs of its tables
is_deeply([ grep { !$expected{$_} && !/^EXTENSION/ } sort keys %$differs ], [], 'a bad step: nothing else is');

# ------------------------------------------- two clusters, one after the other

# Another library, with one function more: false if src/ is not built here
sub next_library
{
	my ($built) = grep { -e "$_/src/zklock.o" } $ENV{TESTDIR} // (), $tree;
	return defined $built && zk_library('made_up', glob("$built/src/*.o $built/src/*/*.o $built/src/*/*/*.o"),
		"-Wl,--version-script=$tree/src/exports.map", '-lzookeeper_st', '-lpthread',
		`ldd $lib/zklock.so` =~ /libssl/ ? qw(-lssl -lcrypto) : ()) . '.so';
}

# Which of the two a session has
sub library_of
{
	my ($session) = @_;
	my $state = $session->query(q{CREATE FUNCTION pg_temp.made_up() RETURNS int AS '$libdir/zklock', 'zk_made_up' LANGUAGE C})->{state};
	return { '' => 'the next', '42883' => 'the last' }->{$state} // $state;
}

sub library { return library_of(zk_session($_[0])); }

my $day = 0;
sub next_period { return "timestamptz '2026-01-01 00:00+00' + interval '1 day' * " . ++$day; }

# Tests: whatever one of these clusters has, the other one cannot get, and waits for.
sub exclude_each_other
{
	my ($what, @clusters) = @_;
	foreach my $turn ([ 0, 1 ], [ 1, 0 ])
	{
		my ($holder, $other) = map { zk_session($clusters[$_]) } @$turn;
		my $name = "$what, " . join ' before ', map { $clusters[$_]->name } @$turn;
		my $period = next_period();
		# what the last session had may be on its way
		is($holder->value("SELECT zk_lock('/rolling/a'), zk_lock_shared('/rolling/b'), zk_semaphore_acquire('/rolling/c', 1),
			zk_claim('/rolling/d', $period), zklock_advisory.pg_advisory_lock(7)"), 't|t|t|t|', "$name: takes it");
		is($other->value("SELECT zk_try_lock('/rolling/a'), zk_try_lock('/rolling/b'), zk_lock_shared('/rolling/b', '0'),
			zk_semaphore_acquire('/rolling/c', 1, '0'), zk_claim('/rolling/d', $period), zklock_advisory.pg_try_advisory_lock(7)"),
			'f|f|t|f|f|f', '- which the other one does not get');
		$other->send(q{SELECT zk_lock('/rolling/a')});
		zk_wait_queued($zk, $other);
		is($holder->value(q{SELECT zk_unlock('/rolling/a')}), 't', '- while it waits for it');
		is($other->wait->{out}, 't', '- and then has it');
	}
	return;
}

# Tests: ALTER EXTENSION in a cluster where somebody holds, and somebody claims
sub alter_while_in_use
{
	my ($cluster, $other_one, $version, $name) = @_;
	my ($holder, $claimer, $other) = map { zk_session($_) } $cluster, $cluster, $other_one;
	my $period = next_period();
	$holder->value(q{SELECT zk_lock('/rolling/kept'), zklock_advisory.pg_advisory_lock(1)});
	$claimer->value("BEGIN; SELECT zk_claim('/rolling/open', $period)");
	$cluster->safe_psql('postgres', "ALTER EXTENSION $_ UPDATE TO '$version'") for qw(zklock zklock_advisory);
	is($other->value(q{SELECT zk_try_lock('/rolling/kept'), zk_try_lock('/rolling/open'), zklock_advisory.pg_try_advisory_lock(1)}),
		'f|f|f', "$name: what is held stays so");
	is($holder->value(q{SELECT zk_lock_held('/rolling/kept'), zk_unlock('/rolling/kept'), zklock_advisory.pg_advisory_unlock(1)}),
		't|t|t', '- and is given back');
	is($claimer->query('COMMIT')->{state}, '', '- and a claim commits');
	is($other->value("SELECT zk_claim('/rolling/open', $period)"), 'f', '- after which the period is taken');
	return;
}

# Tests: a cluster restarts while somebody holds there, for whom the other one waits.
sub restart_while_in_use
{
	my ($cluster, $other_one, $name) = @_;
	my ($holder, $waiter) = map { zk_session($_) } $cluster, $other_one;
	$holder->value(q{SELECT zk_lock('/rolling/kept')});
	$waiter->send(q{SELECT zk_lock('/rolling/kept')});
	zk_wait_queued($zk, $waiter);
	$cluster->restart;
	is($waiter->wait->{out}, 't', "$name: whoever waits for it goes on");
	return;
}

SKIP:
{
	my $next_library = next_library() or skip 'src/ is not built here, of which another library could be made', 1;

	# A function that needs the new library; one that is made anew while it is used; a
	# table that changes.
	my ($unlock) = $real{"zklock--$default.sql"} =~ /^(CREATE FUNCTION zk_unlock\(.*?;)$/ms;
	my @next = (
		$next_library,
		%real,
		"zklock--$default--$newest.sql" => q{
			CREATE FUNCTION zk_made_up() RETURNS int AS 'MODULE_PATHNAME' LANGUAGE C;
			DROP FUNCTION zk_unlock(text);
			} . $unlock =~ s/path text\K/, made_up int DEFAULT 0/r . q{
			ALTER TABLE zk_fences ADD COLUMN made_up int},
		"zklock--$newest--$default.sql" => qq{
			DROP FUNCTION zk_made_up();
			DROP FUNCTION zk_unlock(text, int);
			$unlock
			ALTER TABLE zk_fences DROP COLUMN made_up},
		"zklock_advisory--$default--$newest.sql" => 'ALTER FUNCTION zklock_advisory.pg_advisory_unlock(bigint) COST 20000',
		"zklock_advisory--$newest--$default.sql" => 'ALTER FUNCTION zklock_advisory.pg_advisory_unlock(bigint) COST 10000');

	# one is loaded with the server, the other with each session
	my $other_installation = installation('other_installation');
	install($_, @real) for $installation, $other_installation;
	my ($main, $other) = ($node, cluster_of($other_installation, 'other'));
	$_->safe_psql('postgres', q{CREATE EXTENSION zklock_advisory; SELECT zk_fence('/rolling/fenced', 5)}) for $main, $other;

	my $running = zk_session($main);
	$running->value(q{SELECT zk_lock('/rolling/running')});
	install($installation, @next);
	is($running->value(q{SELECT zk_lock_held('/rolling/running')}), 't', 'a new file does not touch who runs');
	is(library($main), 'the last', '- and a server that has loaded the library keeps it');
	restart_while_in_use($main, $other, 'the server restarts');
	is(library($main), 'the next', '- and has the new library');
	exclude_each_other('a new library', $main, $other);
	alter_while_in_use($main, $other, $newest, 'ALTER EXTENSION');
	is($main->safe_psql('postgres', 'SELECT zk_made_up()'), '2', '- which brings what is new');
	exclude_each_other('one is new, one old', $main, $other);

	$running = zk_session($other);
	$running->value(q{SELECT zk_lock('/rolling/running')});
	install($other_installation, @next);
	is(library($other), 'the next', 'a new session has the new library');
	alter_while_in_use($other, $main, $newest, 'ALTER EXTENSION beside a session with the old one');
	is($running->query('SELECT zk_made_up()')->{state}, '42883', '- which has nothing that is new');
	is($running->value(q{SELECT zk_lock_held('/rolling/running'), zk_unlock('/rolling/running')}), 't|t', '- and what it had');
	is(library_of($running), 'the last', '- since it keeps its library');
	my ($pattern) = map { s/\\//r } slurp_file("$tree/doc/install.md") =~ /^ {4}grep -l '(.*)' \/proc/m;
	my @old = map { slurp_file('/proc/' . $_->pid . '/maps') =~ /\Q$pattern\E/ ? 'old' : 'new' } $running, zk_session($other);
	is("@old", 'old new', '- as doc/install.md finds it');
	$running->quit;
	exclude_each_other('both are new', $main, $other);

	alter_while_in_use($main, $other, $default, 'the way back');
	install($installation, @real);
	restart_while_in_use($main, $other, 'with the old library');
	is(library($main), 'the last', '- it is that');
	exclude_each_other('one was taken back', $main, $other);
	alter_while_in_use($other, $main, $default, 'the other one, too');
	install($other_installation, @real);

	foreach my $cluster ($main, $other)
	{
		is($cluster->safe_psql('postgres', q{SELECT path, token FROM zk_fences}), '/zklock/rolling/fenced|5',
			$cluster->name . ': zk_fences is the same');
	}
	is($main->safe_psql('postgres', q{SELECT string_agg(path || ' ' || state, ', ' ORDER BY path) FROM zk_claims('/rolling')}),
		'/rolling/d done, /rolling/open done', 'every claim is done');
	$other->stop;
	zk_no_crash($other);
}
zk_end($zk, $node);
