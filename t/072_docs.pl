# README.md and the pages of doc/ are correct: all SQL in them runs, in the order of the page, and
# prints what the page says (t/lib/Doc.pm explains the comments before it); what the text says beside
# it is true; and they name what exists and nothing else.  Pages that need other servers or programs
# have tests of their own.
#
# The ```ini block of README.md configures the server, except for the addresses.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Auth;
use Doc;
use Pgbouncer;
use Tests;

my %page = map { $_ => Doc->new($_) } Doc::pages();
my ($readme, $reference) = @page{ 'README.md', 'doc/reference.md' };

my %own_test = (
	'doc/interop.md' => '095_single.pl',
	'doc/recipes/cron.md' => '081_docs_cron.pl',
	'doc/recipes/prometheus.md' => '088_docs_prometheus.pl',
	'doc/zookeeper.md' => '087_docs_zookeeper.pl',
	'doc/troubleshooting.md' => '093_docs_troubleshooting.pl',
	map { ("doc/$_.md" => '096_docs_programs.pl') } 'recipes/java-python', map { "programs/$_" } qw(django java node python rails sqlalchemy));
foreach my $page (sort keys %own_test)
{
	like(slurp_file("$FindBin::RealBin/$own_test{$page}"), qr{'\Q$page\E'}, "$own_test{$page} runs $page");
}

my %setting = $readme->settings;
is_deeply(
	[ sort keys %setting ],
	[qw(shared_preload_libraries zklock.hosts zklock.root)],
	'the lines of postgresql.conf');
is_deeply({ $page{'doc/install.md'}->settings, 'zklock.hosts' => $setting{'zklock.hosts'} }, \%setting, '- are the same in doc/install.md, but for the servers');

my $zk = ZooKeeper->new(superuser => 1)->start;    # which has to see what is closed
my $node = zk_cluster('main', $zk, %setting, 'zklock.hosts' => $zk->hosts,
	wal_level => 'logical',    # or CREATE PUBLICATION warns
	max_wal_senders => 5,
	max_prepared_transactions => 5);
my $other = zk_cluster('other', $zk, 'zklock.root' => $setting{'zklock.root'});
my $admin = zk_session($node);

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
my %linked = map { $_ => 1 } map { $_->text =~ /\]\((?:\.\.\/)*(?:doc\/)?((?:(?:recipes|programs|dev)\/)?[\w-]+\.\w+)/g } $readme, $page{'doc/README.md'};
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
# What the text says apart from its SQL.  Each gets the page, and the database that it has for itself.
#

sub rate_limit
{
	my ($page, $dbname) = @_;
	my @callers = map { zk_session($node, dbname => $dbname) } 1 .. 12;
	$_->send('CALL geocode()') for @callers;
	is($_->wait->{state}, '', 'a caller has its turn') for @callers;
	is($callers[0]->value('SELECT count(*) FROM call'), '13', 'all have called');
	is($callers[0]->value(<<~'SQL'), 't', 'no more than five in a second');
		SELECT min(sixth - at) >= interval '1 s'
		FROM (SELECT at, lead(at, 5) OVER (ORDER BY at) AS sixth FROM call) AS c
		SQL
	return;
}

# (Who waits while an index is built: t/018, t/108)
sub migration
{
	my ($page, $dbname) = @_;
	my $s = zk_session($node, dbname => $dbname);
	my ($every) = grep { $_->{code} =~ /ADD COLUMN/ } $page->blocks('sql');
	is($s->query($every->{code})->{state}, '', 'whoever migrates later finds it done');
	is($s->value('SELECT count(*) FROM schema_version WHERE version = 42'), '1', '- and does nothing');
	return;
}

sub standby
{
	my ($page) = @_;
	my ($load_sql) = map { $_->{code} =~ s/VALUES \(1\)/VALUES (2)/r } grep { $_->{code} =~ /remote_apply/ } $page->blocks('sql');
	my %setting = ($page->settings, 'zklock.session_timeout' => '6s');
	$node->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	$admin->value($_) for map({ "ALTER SYSTEM SET $_ = '$setting{$_}'" } sort keys %setting), 'SELECT pg_reload_conf()';
	zk_until(sub { $admin->value('SELECT sync_state FROM pg_stat_replication') eq 'sync' }, 'a synchronous standby');
	my $go_on = sub { $page->run($node, zk => $zk, standby => $standby, @_) };
	$go_on->(until => 'Or the reader, once it has');

	# ... however slow the standby is
	my ($load, $report) = map { zk_session($_) } $node, $standby;
	$report->value('SELECT pg_wal_replay_pause()');
	$load->send($load_sql);
	zk_until(sub { $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $load->pid) eq 'SyncRep' },
		'COMMIT to wait for the standby');
	is($report->value(q{SELECT zk_try_lock_shared('/load')}), 'f', 'the lock is held until the standby has replayed the commit');
	$report->value('SELECT pg_wal_replay_resume()');
	is($load->wait->{state}, '', 'it does');
	is($report->value(q{SELECT zk_lock_shared('/load', '1 min'); SELECT count(*) FROM loaded; SELECT zk_unlock_shared('/load')}),
		"t\n2\nt", 'and who gets the lock there sees it');
	$_->quit for $load, $report;

	$go_on->(until => 'The primary crashes');
	$admin->value($_) for 'ALTER SYSTEM RESET ALL', 'SELECT pg_reload_conf()';
	$admin->quit;
	$node->stop('immediate');
	$go_on->();
	$page->end;
	zk_no_crash($standby);
	$standby->stop;
	$node->start;
	$admin = zk_session($node);
	return;
}

sub pgbouncer
{
	my ($page) = @_;
	# The page's own pgbouncer, with this many connections
	my $ini = $page->take('ini')->{code};
	my $pool = sub { my ($size, %more) = @_; return Pgbouncer->new($node, ini => $ini, default_pool_size => $size, %more); };

	my $one = $pool->(1);
	$page->run($one);
	$page->end;

	my ($ada, $bob) = map { zk_session($one) } 1 .. 2;
	$ada->value(q{BEGIN; SELECT zk_xact_lock('/gone')});
	$ada->kill9;
	is($bob->value(q{BEGIN; SELECT zk_xact_lock('/gone', '1min'); COMMIT}), 't',
		'a client that goes away in its transaction gives its lock back');
	$bob->quit;
	$one->kill9;

	my $two = $pool->(2);
	($ada, $bob) = map { zk_session($two) } 1 .. 2;
	is($ada->value(q{SELECT zk_lock('/hers')}), 't', 'two connections: a lock of the session');
	$bob->value('BEGIN');    # takes the connection that was used last
	my $result = $ada->query(q{SELECT zk_unlock('/hers')});
	is($result->{out}, 'f', '- is not found by its own client');
	is(scalar @{ $result->{warnings} }, 1, '- with a WARNING');
	is($bob->value('SELECT zk_unlock_all(); COMMIT'), '1', '- but is in another session');
	$_->quit for $ada, $bob;
	$two->kill9;

	my $always = $pool->(1, server_reset_query_always => 1);
	$ada = zk_session($always);
	is($ada->value(q{SELECT zk_lock('/hers')}), 't', 'server_reset_query_always: a lock of the session');
	is($ada->value(q{SELECT count(*) FROM zk_locks}), '0', '- ends with the transaction');
	$ada->quit;
	$always->kill9;
	return;
}

sub security
{
	my ($page, $dbname, $run) = @_;
	my %closed = $page->settings;
	my $write = sub {
		my ($name, $text) = @_;
		auth_file($text, dir => $node->data_dir, name => $name);
	};
	$write->($closed{'zklock.auth_file'}, $page->take('text')->{code});
	$page->take($_, 1) for qw(ini text);
	like(slurp_file("$FindBin::RealBin/073_tls.pl"), qr{'doc/security\.md'}, '073_tls.pl has its lines of TLS');
	$admin->value("ALTER DATABASE $dbname SET $_ = '$closed{$_}'") for sort keys %closed;
	$run->();
	$page->end;

	# roles with credentials of their own, and roots that no longer exist
	zk_until(sub { !grep { !$zk->reap($_) } qw(/billing /shop) }, 'the roots to go');
	$write->("$_.auth", "digest:$_:$_\n") for qw(billing shop);
	my ($billing, $shop) = map { zk_session($node, dbname => $dbname, user => $_) } qw(billing shop);
	is($_->value(q{SELECT zk_try_lock('/nightly')}), 't', 'credentials of their own') for $billing, $shop;
	# (What is closed to whom: t/078)
	is(zk_session($node, dbname => $dbname, options => '-c zklock.root=/billing')->query(q{SELECT zk_try_lock('/nightly')})->{state}, '42501',
		'- close the root to others');
	return;
}

# The GRANT and the REVOKE: a plain role can do nothing without them, and what
# is no administrator's with them.  The role is the one that doc/install.md has
# created above; the extension is installed again, as it says.
sub install
{
	my ($page) = @_;
	my ($install) = $page->text =~ /^(CREATE SCHEMA.*?)^```/ms;
	my ($role, $usage, $grant) = $page->text =~ /^CREATE ROLE (\w+) LOGIN;\n(GRANT USAGE [^;]*;\n)(.*?)^```/ms;
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
	$admin->value($_) for 'DROP DATABASE shop', "DROP ROLE $role";
	return;
}

# What becomes of each call, both sides exclude the same others at the same times; and each difference
# that the tables name is one.  (What is the same: t/101 and sql/advisory.)
sub advisory
{
	my ($page, $dbname) = @_;
	my $connect = sub { return zk_session($node, dbname => $dbname, @_) };
	my ($s, $other) = map { $connect->() } 1, 2;

	# Whether another session gets it, exclusively or shared
	my $free = sub {
		my ($kind, $what) = @_;
		my $try = $kind eq 'pg' ? 'pg_try_advisory_xact_lock' : 'zk_try_xact_lock';
		my $seen = $other->value("BEGIN; SELECT $try($what); ROLLBACK; BEGIN; SELECT ${try}_shared($what); ROLLBACK") =~ s/\n/ /r;
		# its releases are on their way then, and a try of another session would meet them
		zk_until(sub { !$other->value("SELECT count(*) FROM zk_lock_queue($what) WHERE pid = $other->{pid}") }, 'its releases') if $kind eq 'zk';
		return $seen;
	};

	# Inside a transaction, after it, and when all is given back; or, of what gives back,
	# before it and after it
	my $history = sub {
		my ($kind, $call) = @_;
		my ($what) = $kind eq 'pg' ? ($call =~ /\((.+)\)$/)[0] // '42' : ($call =~ /\(('[^']*')/)[0] // q{'/shop/42'};
		my $unlock_all = "SELECT ${kind}_" . ($kind eq 'pg' ? 'advisory_' : '') . 'unlock_all()';
		my $lock = ($kind eq 'pg' ? 'pg_advisory_lock' : 'zk_lock') . ($call =~ /shared/ ? '_shared' : '');
		my @seen;
		$s->value($call =~ /unlock/ ? "SELECT $lock($what)" : 'SELECT 1');
		push @seen, $free->($kind, $what);
		$s->value("BEGIN; SELECT $call");
		push @seen, $free->($kind, $what);
		$s->value('COMMIT');
		# a release at the end of a transaction is on its way when that returns
		zk_until(sub { $free->($kind, $what) eq 't t' }, 'a release') if $kind eq 'zk' && $call =~ /xact/;
		push @seen, $free->($kind, $what);
		$s->query($unlock_all);
		push @seen, $free->($kind, $what);
		return join ', ', @seen;
	};

	my ($calls, $others) = (0, 0);
	foreach my $row ($page->table('| PostgreSQL | zklock |'))
	{
		my ($left, $right) = map { [ /`([^`]*)`/g ] } @$row;
		if ($left->[0] !~ /^pg_\w+\(/) { $others++; next; }
		foreach my $i (0 .. $#$left)
		{
			my $expected = $history->('pg', $left->[$i]);
			is($history->('zk', $right->[$i]), $expected, "$left->[$i] becomes $right->[$i]: $expected");
			$calls++;
		}
	}
	cmp_ok($calls, '>=', 13, 'all functions are named');
	is($others, 3, 'three rows are no functions');

	# Each difference: what PostgreSQL's lock comes to, and what ours; none: it is proved elsewhere
	$node->safe_psql('postgres', 'CREATE ROLE nobody');
	my %difference = (
		q{`void`, or an error} => [ 'SELECT pg_advisory_lock(1)', '', q{SELECT zk_lock('/1')}, 't' ],
		q{a session-scope lock outlives a transaction that aborts} => [
			q{BEGIN; SELECT pg_advisory_lock(1); ROLLBACK; SELECT pg_advisory_unlock(1)}, "\nt",
			q{BEGIN; SELECT zk_lock('/1'); ROLLBACK; SELECT count(*) FROM zk_locks}, "t\n0" ],
		q{everybody may call it} => [ 'SET ROLE nobody; SELECT pg_advisory_lock(1)', '', q{SELECT zk_lock('/1')}, '42501' ],
		q{NULL gives NULL} => [ 'SELECT pg_try_advisory_lock(NULL) IS NULL', 't', 'SELECT zk_try_lock(NULL)', '22004' ],
		q{`try` passes those who only wait, in some cases} => undef,    # specs/readers
		q{a lock cannot be lost} => [
			'CREATE TABLE t (); SELECT pg_advisory_lock(1); INSERT INTO t DEFAULT VALUES', '',
			q{SET zklock.commit_guard = strict; SELECT zk_lock('/1'); SELECT zk_lock_break('/1', node) FROM zk_locks; INSERT INTO t DEFAULT VALUES}, '40001' ],
		q{never fails for want of a network} => [
			"SET zklock.connect_timeout = '100ms'; SET zklock.hosts = '127.0.0.1:1'; SELECT pg_advisory_lock(1)", '', q{SELECT zk_lock('/1')}, '58000' ],
		q{free as soon as COMMIT returns} => undef,    # t/023
		q{works with PREPARE TRANSACTION (transaction scope)} => [
			q{BEGIN; SELECT pg_advisory_xact_lock(1); PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'}, '',
			q{BEGIN; SELECT zk_xact_lock('/1'); PREPARE TRANSACTION 'p'}, '0A000' ],
		q{microseconds} => undef);    # dev/bench
	my @differences = map { $_->[0] } map { $page->table($_) } '| `pg_advisory_lock` | zklock |', '| `pg_advisory_lock` | `zk_lock` |';
	is(join("\n", sort @differences), join("\n", sort keys %difference), 'each difference is known');
	foreach my $name (sort grep { $difference{$_} } keys %difference)
	{
		my $one = $connect->();
		my ($pg, $its, $zk, $ours) = @{ $difference{$name} };
		foreach ([ $pg, $its ], [ $zk, $ours ])
		{
			my ($sql, $to) = @$_;
			my $result = $one->query($sql);
			is($result->{state} || $result->{out}, $to, "$name: $sql");
		}
	}
	return;
}

# in place of a mere run of the SQL, and after it
my %instead = ('doc/security.md' => \&security, 'doc/recipes/pgbouncer.md' => \&pgbouncer, 'doc/recipes/standby.md' => \&standby);
my %then = ('doc/install.md' => \&install, 'doc/advisory-drop-in.md' => \&advisory, 'doc/recipes/migration.md' => \&migration,
	'doc/recipes/rate-limit.md' => \&rate_limit);

# These are the first: a copy of a new cluster is small, and others make what they have made again
my @first = ('doc/recipes/standby.md', 'README.md', 'doc/guide.md', 'doc/install.md');
my %is_first = map { $_ => 1 } @first;
$admin->value("CREATE DATABASE $_") for qw(first shop);
foreach my $file (@first, grep { !$is_first{$_} && !$own_test{$_} } sort keys %page)
{
	my $page = $page{$file};
	cmp_ok(scalar $page->blocks('sql'), '>=', 3, "$file has SQL") if $is_first{$file};
SKIP:
	{
		skip 'there is no pgbouncer', 1 if $file eq 'doc/recipes/pgbouncer.md' && !Pgbouncer::program();
		if (!$page->blocks('sql'))
		{
			$page->all_was_run;
			next;
		}

		# its own tables and fences
		my $dbname = $file =~ /guide|standby/ ? 'postgres' : lc($file =~ s{^doc/}{}r =~ s/\W/_/gr);
		foreach my $cluster ($dbname eq 'postgres' ? () : ($node, $page->text =~ /\@other/ ? $other : ()))
		{
			$cluster->safe_psql('postgres', "CREATE DATABASE $dbname");
			$cluster->safe_psql($dbname, 'CREATE EXTENSION zklock');
		}
		my $run = sub { $page->run($node, zk => $zk, dbname => $dbname, other => $other) };
		($instead{$file} // $run)->($page, $dbname, $run);
		$page->all_was_run;
		$then{$file}->($page, $dbname) if $then{$file};
		zk_nothing_left($zk, "$file: nothing is left in ZooKeeper", sessions => 0);
	}
}
zk_no_crash($_) for $node, $other;

done_testing();
