# doc/programs/, and doc/recipes/java-python.md: the code of each page, as printed, does what the page
# says.  A program of programs/ has the page's code and answers to these lines, for each
# language in the same way:
#
#   (start)            runs the page's first example, then says "ready"
#   dirty              a session-scope lock is taken in a connection of a pool that
#                      nobody told to clean; says how many locks its next user finds,
#                      and waits for a line
#   clean              the same with the page's pool
#   timeouts           each way to bind a timeout, good and bad, of zero since the machine may be slow,
#                      on a lock that is taken:
#                      results and SQLSTATEs
#   cancel             says "waits"; at the next line, cancels it: the SQLSTATE
#   in_lock PATH       work in the page's loop: each attempt says "working", writes at the
#   in_session_lock PATH    next line, and says how many attempts there were; at "lock PATH"
#                      it says "written", and locks that, too, at one more line

use FindBin;
use lib "$FindBin::RealBin/lib";

use Child;
use Doc;
use Peer;
use Tests;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
my $node = zk_cluster(
	'main', $proxy,
	listen_addresses => '127.0.0.1',
	deadlock_timeout => '100ms',
	'zklock.session_timeout' => '20s',
	'zklock.commit_guard' => 'strict');
$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
$node->reload;

# The programs are not superusers, and have what doc/install.md says
my $installing = Doc->new('doc/install.md')->text;
my ($path) = $installing =~ /^(ALTER DATABASE shop SET search_path.*?;)/m or die 'no search_path in doc/install.md';
my ($grant) = $installing =~ /^(GRANT USAGE ON SCHEMA zk .*?^REVOKE .*?;)/ms or die 'no GRANT in doc/install.md';
$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
$node->safe_psql('postgres', 'CREATE DATABASE shop OWNER app');
$node->safe_psql('shop', "CREATE SCHEMA zk; CREATE EXTENSION zklock SCHEMA zk; $path $grant
	SET ROLE app; CREATE TABLE report (made_at timestamptz); CREATE TABLE account AS SELECT 0 AS n");
my $admin = zk_session($node, dbname => 'shop', options => '-c zklock.hosts=' . $zk->hosts);
my $other = zk_session($node, dbname => 'shop', options => '-c zklock.hosts=' . $zk->hosts);

my $modules = '/usr/lib/python3/dist-packages';
my $gems = '/usr/share/rubygems-integration/*/specifications';
my $jars = '/usr/share/java';
my ($rails) = map { /-(\d+\.\d+)/ } glob("$gems/activerecord-*.gemspec"), '-0.0';
# where dev/test puts it, or Debian
my ($node_modules) = grep { -d "$_/pg" } ($ENV{ZKLOCK_TMP} // '') . '/node/node_modules', '/usr/share/nodejs';
my @java = qw(java -Xmx96m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -cp);    # which compiles a single file by itself

# For each language: how a program is run; and the file from which that imports the page's
# code, or nothing where both are put in one
my %language = (
	python => { command => [ '/usr/bin/python3', '-B' ], file => 'page.py' },
	ruby => { command => ['ruby'], file => 'page.rb' },
	java => { command => [ @java, join ':', map { "$jars/$_.jar" } qw(HikariCP postgresql slf4j-api slf4j-simple) ] },
	javascript => { command => ['node'] });

# Where a package is
my %package = (
	map({ ("python3-$_" => "$modules/" . tr/-/_/r) } qw(psycopg psycopg-pool psycopg2 sqlalchemy django)),
	map({ ("ruby-$_" => "$gems/$_-*.gemspec") } qw(activerecord pg)),
	'libhikaricp-java' => "$jars/HikariCP.jar",
	'libpostgresql-jdbc-java' => "$jars/postgresql.jar",
	'node-pg' => ($node_modules // '') . '/pg');

# For each page: the language of its code, the program, what "timeouts" must answer, and what
# is needed: the packages of which it names the versions, and others
sub needs
{
	my ($language, $program, $timeouts, $named, @others) = @_;
	return { language => $language, %{ $language{$language} }, program => $program, timeouts => $timeouts, named => $named, needs => [ @$named, @others ] };
}
my %page = (
	'doc/programs/python.md' => needs('python', 'with_psycopg.py', 'False False 42883', [qw(python3-psycopg python3-psycopg2)], 'python3-psycopg-pool'),
	'doc/programs/sqlalchemy.md' => needs('python', 'with_sqlalchemy.py', 'False False 42883', ['python3-sqlalchemy'], 'python3-psycopg2'),
	'doc/programs/django.md' => needs('python', 'with_django.py', 'False False 42883', ['python3-django'], 'python3-psycopg2'),
	'doc/programs/rails.md' => needs('ruby', 'with_rails.rb', 'false false 42883 ' . ($rails < 7.1 ? '42883' : 'TypeError'), ['ruby-activerecord'], 'ruby-pg'),
	'doc/programs/java.md' => needs('java', 'WithJdbc.java', 'false false 42883 42883 07006', [qw(libhikaricp-java libpostgresql-jdbc-java)]),
	'doc/programs/node.md' => needs('javascript', 'with_pg.mjs', 'false false 01:23:20 ' . ($node->pg_version >= 17 ? '22007' : '00:01:40'), ['node-pg']));
$page{'doc/programs/java.md'}{arguments} = [ 'jdbc:postgresql://127.0.0.1:' . $node->port . '/shop?user=app' ];

my $dir = PostgreSQL::Test::Utils::tempdir();

# The packages that are not there
sub missing { my ($p) = @_; return grep { !grep { -e } glob $package{$_} } @{ $p->{needs} }; }

# The page says which versions it was run with, without the last part: so this one
sub names_version
{
	my ($name, $p, $doc) = @_;
	my ($run_with) = $doc->text =~ /; run with (.*?)\. Read/s or die "$name: run with what?";
	foreach my $package (@{ $p->{named} })
	{
		my ($at) = glob $package{$package};
		my ($version) =
		  $package eq 'node-pg' ? slurp_file("$at/package.json") =~ /"version": "(\d+\.\d+)/ :
		  `dpkg-query --show --showformat='\${Version}' $package` =~ /^(?:\d+:)?(\d+\.\d+)/;
		like($run_with, qr/(?<![\d.])\Q$version\E(?!\.?\d)/, "$name: names $package $version");
	}
	return;
}

# Lays out a page's code in a directory of its own, and returns the program
sub lay_out
{
	my ($here, $p, $doc) = @_;
	my $program = "$FindBin::RealBin/programs/$p->{program}";
	my $code = join "\n", map { $doc->take($p->{language}, $_)->{code} } 0 .. $doc->blocks($p->{language}) - 1;
	mkdir $here;
	if ($p->{file})
	{
		append_to_file("$here/$p->{file}", $code);
		return $program;
	}
	# Java runs the first class, and wants its imports before that; JavaScript runs all, in order
	my @parts = (slurp_file($program), $code);
	my $all = join "\n", $p->{language} eq 'java' ? @parts : reverse @parts;
	append_to_file("$here/$p->{program}", join '', $all =~ /^(import .*\n)/mg, $all =~ s/^import .*\n//mgr);
	symlink $node_modules, "$here/node_modules" if $node_modules;
	return "$here/$p->{program}";
}

# Starts it, without waiting for it
sub start
{
	my ($name, $p, $doc) = @_;
	my $here = "$dir/$name";
	my $program = lay_out($here, $p, $doc);
	$p->{log} = "$here/log";
	return Peer->program($name, [ @{ $p->{command} }, $program, @{ $p->{arguments} // [] } ],
		no_wait => 1, log => $p->{log},
		env => { PYTHONPATH => $here, RUBYLIB => $here,
			PGHOST => '127.0.0.1', PGPORT => $node->port, PGUSER => 'app', PGDATABASE => 'nowhere' });
}

sub contenders { return $admin->value("SELECT count(*) FROM zk_lock_queue('$_[0]')"); }
sub wait_contenders { my ($path, $n) = @_; return zk_until(sub { contenders($path) == $n }, "$path to have $n contenders"); }
sub written { return $admin->value('SELECT n FROM account'); }

# While SQL has the lock, it waits
sub runs_first_example
{
	my ($name, $p, $doc) = @_;
	$admin->value(q{TRUNCATE report; SELECT zk_lock('/jobs/nightly')});
	my $program = start($name, $p, $doc);
	wait_contenders('/jobs/nightly', 2);
	is($admin->value('SELECT count(*) FROM report'), '0', "$name: waits");
	$admin->value(q{SELECT zk_unlock('/jobs/nightly')});
	is($program->wait, 'ready', "$name: the first example, and what else the page runs at once");
	is($admin->value('SELECT count(*) FROM report'), '1', "$name: has written");
	wait_contenders('/jobs/nightly', 0);
	return $program;
}

sub cleans_pool
{
	my ($name, $program) = @_;
	is($program->ask('dirty'), 'next user: 1', "$name: without cleaning, the next user of a connection has a lock");
	is($admin->value(q{SELECT zk_try_lock('/pool')}), 'f', "$name: - that nobody else gets");
	is($program->ask('close'), 'closed', "$name: - until the pool is closed");
	wait_contenders('/pool', 0);
	is($program->ask('clean'), 'next user: 0', "$name: the page's pool is clean");
	wait_contenders('/pool', 0);    # psycopg_pool cleans in another thread, and the next user has another connection
	is($admin->value(q{SELECT zk_try_lock('/pool'), zk_unlock('/pool')}), 't|t', "$name: - and the lock is free");
	return;
}

sub bounds_waits
{
	my ($name, $program, $p) = @_;
	$admin->value(q{SELECT zk_lock('/jobs/report')});
	is($program->ask('timeouts'), $p->{timeouts}, "$name: timeouts");
	is($program->ask('cancel'), 'waits', "$name: waits without limit");
	wait_contenders('/jobs/report', 2);
	is($program->ask('cancel'), '57014', "$name: - and is canceled");
	$admin->value(q{SELECT zk_unlock('/jobs/report')});
	return;
}

# What is lost while an attempt works, and so makes it begin again: the command; what happens then, which
# returns the line at which the program finds that out, and what is to be done afterwards
my @losses = (
	# 40001 at COMMIT: somebody has removed the lock's node
	[ 'in_lock /jobs/a', sub { is($admin->value(q{SELECT zk_lock_break('/jobs/a', node) FROM zk_lock_queue('/jobs/a')}), 't', '- which is broken'); return 'write'; } ],

	# 40P01: it waits for a lock whose holder waits for its row.  PostgreSQL's own waiter is
	# never the victim.
	[   'in_lock /jobs/a',
		sub {
			my ($program) = @_;
			$other->value(q{BEGIN; SELECT zk_xact_lock('/jobs/b')});
			is($program->ask('lock /jobs/b'), 'written', '- has a row');
			$other->send('UPDATE account SET n = n');
			zk_until(sub { $admin->value("SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $other->pid) eq 'Lock' }, 'a row lock');
			return ('lock', sub { $other->wait; $other->value('COMMIT'); });
		}
	],

	# 40001, since ZooKeeper has ended the session
	[   'in_session_lock /jobs/c',
		sub {
			my $id = $admin->value(q{SELECT zk_session FROM zk_lock_queue('/jobs/c')});
			$proxy->cut_off;
			$zk->end_session($id);
			wait_contenders('/jobs/c', 0);
			$proxy->pass;
			return 'write';
		}
	]);

sub survives
{
	my ($name, $program, $command, $happens) = @_;
	my ($path) = $command =~ / (.*)/;
	my $before = written();
	is($program->ask($command), 'working', "$name: $command");
	my ($line, $then) = $happens->($program);
	is($program->ask($line), 'working', '- is tried again');
	$then->() if $then;
	is(contenders($path), '1', '- with the lock');
	is($program->ask('write'), 'done 2', '- with success');
	is(written(), $before + 1, '- and written once');
	wait_contenders($path, 0);
	return;
}

# What only this page says
my %and_then = (
	'doc/programs/python.md' => sub {
		my ($name, $program) = @_;
		is($program->ask('transactions'), 'next user: 0, True', "$name: a pool without autocommit, too, which keeps its connection");
		is($program->ask('psycopg2'), '1 0', "$name: psycopg2 leaves a lock, except after reset()");
	},
	'doc/programs/rails.md' => sub {
		my ($name, $program) = @_;
		is($program->ask('cached'), 'true true 1 2', "$name: the cache answers, but not if told");
		is($program->ask('elsewhere'), '1', "$name: a connection to a database without zklock stays");
	},
	'doc/programs/node.md' => sub {
		my ($name, $program) = @_;
		$admin->value(q{SELECT zk_lock('/jobs/report')});
		is($program->ask('query_timeout'), 'Query read timeout', "$name: query_timeout");
		$admin->value(q{SELECT zk_unlock('/jobs/report')});
		zk_until(sub { $admin->value(q{SELECT granted FROM zk_lock_queue('/jobs/report')}) eq 't' }, 'the server to take the lock');
		is($program->ask('close'), 'closed', "$name: - the server waits on, and takes the lock");
		is($program->ask('terminated'), 'failed, next user: 0', "$name: outlives a connection that breaks while nothing runs in it");
		wait_contenders('/jobs/report', 0);
	});

foreach my $file (sort keys %page)
{
	my $p = $page{$file};
	my ($name) = $file =~ m{(\w+)\.md$};
	SKIP:
	{
		if (my @missing = missing($p))
		{
			diag("$file is not run: there is no @missing");    # shown without -v, too
			skip "there is no @missing", 1;
		}
		my $doc = Doc->new($file);
		my $ok = eval {
			names_version($name, $p, $doc);
			my $program = runs_first_example($name, $p, $doc);
			cleans_pool($name, $program);
			bounds_waits($name, $program, $p);
			survives($name, $program, @$_) for @losses;
			$and_then{$file}->($name, $program) if $and_then{$file};
			$program->quit;
			1;
		};
		ok($ok, "$name: runs to its end") or diag($@, slurp_file($p->{log}));
		$doc->all_was_run;
	}
}

#
# Two programs that use ZooKeeper themselves, on a lock and a table that SQL also uses
#
{
	my $page = Doc->new('doc/recipes/java-python.md');
	my $path = join ':', map { "$jars/$_.jar" }
	  qw(curator-recipes curator-framework curator-client zookeeper guava slf4j-api slf4j-simple postgresql);
	my $port = $node->port;
	my %program = (
		java => { file => 'Withdraw.java', command => [ @java, $path ], needs => ['libpostgresql-jdbc-java'],
			url => "jdbc:postgresql://127.0.0.1:$port/postgres?user=postgres" },
		python => { file => 'withdraw.py', command => $language{python}{command}, needs => ['python3-psycopg2'],
			url => "host=127.0.0.1 port=$port dbname=postgres user=postgres" });
	my $s = zk_session($node);
	my $balance = sub { return $s->value('SELECT balance FROM account') };
	my $ends = sub { Child::ended($_[0]) or die 'the program does not end'; return $?; };
	$page->run($node, until => '## Java');
	is($balance->(), 90, 'SQL has taken 10');
	foreach my $language (sort keys %program)
	{
		my $p = $program{$language};
		append_to_file("$dir/$p->{file}", $page->take($language)->{code});
		SKIP:
		{
			if (my @missing = missing($p))
			{
				$s->value('UPDATE account SET balance = balance - 10 WHERE id = 7');    # what the page shows afterwards
				skip "there is no @missing", 1;
			}
			my $start = sub { return (Child::spawn([ @{ $p->{command} }, "$dir/$p->{file}", $zk->hosts, $p->{url} ], err => "$dir/$language.log"))[0] };
			my $before = $balance->();
			my $token = $s->value(q{SELECT zk_lock('/accounts/7'); SELECT zk_lock_token('/accounts/7')}) =~ s/^t\n//r;
			my $pid = $start->();
			wait_contenders('/accounts/7', 2);
			is($balance->(), $before, "$language: waits while SQL has the lock");
			$s->value(q{SELECT zk_unlock('/accounts/7')});
			is($ends->($pid), 0, "$language: runs") or diag(slurp_file("$dir/$language.log"));
			is($balance->(), $before - 10, "$language: takes 10");
			is($s->query("BEGIN; SELECT zk_fence('/accounts/7', $token)")->{state}, '40001', "$language: nobody with an older token comes after it");
			$s->value('ROLLBACK');

			# its own token is too small, too
			$s->value(q{SELECT zk_fence('/accounts/7', 9000000000000000000)});
			isnt($ends->($start->()), 0, "$language: fails at the fence");
			like(slurp_file("$dir/$language.log"), qr/token/, "$language: - and says so");
			is($balance->(), $before - 10, "$language: - and has written nothing");
			$s->value('DELETE FROM zk_fences');
			is(contenders('/accounts/7'), '0', "$language: - and has given the lock back");
		}
	}
	$page->run($node);
	$page->all_was_run;
}

zk_end($zk, $node);
