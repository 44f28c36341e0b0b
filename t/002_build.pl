# A missing header or library stops the build with a line that names the Debian
# package to install.  The machine is not changed: the compiler is told not to
# look in the usual place.
#
# ZooKeeper's and PostgreSQL's headers do not cross the wall between them
# (src/README.md).
#
# make installcheck tests a server and an ensemble that the caller names, and
# reports what it cannot do without.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cwd qw(abs_path);
use File::Path qw(make_path);
use File::Spec;

use Tests;

my $root = abs_path("$FindBin::RealBin/..");

sub build_says
{
	my (@arguments) = @_;
	return scalar `make -C $root @arguments 2>&1`;
}

my @missing = (
	[ "the server's headers", 'postgresql-server-dev-15', 'PG_CONFIG=/nonexistent' ],
	[ "ZooKeeper's header", 'libzookeeper-st-dev', q{CC='gcc -nostdinc'} ],
	[ "ZooKeeper's library", 'libzookeeper-st-dev', q{LDFLAGS='-nostdlib -static -L/nonexistent'} ],);

for my $case (@missing)
{
	my ($what, $package, $argument) = @$case;
	like(build_says('-n', $argument), qr/\*\*\* .* not found: install Debian's \Q$package\E/, "without $what");
}

#
# The wall: no file above it compiles with ZooKeeper's header, none below with PostgreSQL's.
# What makes that so is in the command that compiles it; one of each shows that it does.
#
{
	my $tree = PostgreSQL::Test::Utils::tempdir();
	my @make = ('make', '-C', $tree, $ENV{PG_CONFIG} ? "PG_CONFIG=$ENV{PG_CONFIG}" : ());

	system_or_bail('cp', '-r', map({ "$root/$_" } qw(Makefile zklock.control src)), $tree);
	my @objects = map { s{^\Q$tree\E/(.*)c$}{$1o}r } glob "$tree/src/*.c $tree/src/*/*.c $tree/src/*/*/*.c";
	unlink map { "$tree/$_" } @objects;
	my %command = map { / -c -o (\S+\.o) / ? (File::Spec->canonpath($1) => $_) : () } split /\n/, `@make -n zklock.so`;
	is_deeply([ sort keys %command ], [ sort @objects ], 'each file is compiled');
	foreach my $object (sort @objects)
	{
		if ($object =~ m{^src/zk/}) { unlike($command{$object} // '', qr{ -I\S*postgresql|-include}, "$object: below the wall"); }
		else { like($command{$object} // '', qr{ -include \S*/zk/wall\.h }, "$object: above the wall"); }
	}
	foreach my $case ([ 'postgres.h', 'zk/turn' ], [ 'zookeeper/zookeeper.h', 'backend/path' ], [ 'zookeeper/proto.h', 'views' ])
	{
		my ($header, $file) = ($case->[0], "$tree/src/$case->[1].c");
		# after the other includes, as postgres.h has to be the first
		(my $spoiled = slurp_file($file)) =~ s/\A(.*^#include [^\n]*\n)/$1#include <$header>\n/ms or die $file;
		unlink $file;
		append_to_file($file, $spoiled);
		like(scalar `@make COPT=-Wfatal-errors src/$case->[1].o 2>&1`,
			qr/error: attempt to use poisoned|postgres\.h: No such file/, "$case->[1].o does not compile with $header");
	}
}

#
# make installcheck, in a directory of its own
#
my $dir = PostgreSQL::Test::Utils::tempdir();
my $zk = ZooKeeper->new->start;
# a server that was not prepared for it
my $node = zk_cluster('main', $zk, session_preload_libraries => '', 'zklock.hosts' => '');
my %server = (PGHOST => $node->host, PGPORT => $node->port, PGUSER => $node->safe_psql('postgres', 'SELECT user'));
$node->safe_psql('postgres', 'CREATE ROLE plain LOGIN');

# [status, output]
sub installcheck
{
	my ($env, @arguments) = @_;
	local %ENV = (%ENV, %server, %$env);
	make_path("$dir/build");
	my $says = `make -C $dir/build -f $root/Makefile VPATH=$root installcheck @arguments 2>&1 </dev/null`;
	return [ $? >> 8, $says ];
}

my $zk_hosts = 'ZK_HOSTS=' . $zk->hosts;
make_path("$dir/perl/IPC");
append_to_file("$dir/perl/IPC/Run.pm", 'die "as if it were not there";');

my @lacks = (
	[ 'no server', { PGHOST => '/nonexistent' }, [$zk_hosts], qr/: no PostgreSQL server answers$/m ],
	[ 'no superuser', { PGUSER => 'plain' }, [$zk_hosts], qr/: the tests need a superuser$/m ],
	[   'no ensemble', {}, ['ZK_HOSTS=127.0.0.1:1'],
		qr/^(?:psql:.*)?ERROR: +could not .*ZooKeeper.*: that server cannot lock in ZooKeeper at 127\.0\.0\.1:1$/ms
	],
	[   'no IPC::Run', { PERL5LIB => "$dir/perl" }, [ $zk_hosts, 'REGRESS=', 'ISOLATION=' ],
		qr/: t\/ needs Debian's libipc-run-perl$/m
	],);
foreach my $case (@lacks)
{
	my ($what, $env, $arguments, $expected) = @$case;
	my ($status, $says) = @{ installcheck($env, @$arguments) };
	isnt($status, 0, "installcheck, $what: fails");
	like($says, $expected, "installcheck, $what: says so");
	unlike($says, qr/regression\.diffs|^# Running|\.\.\. /m, "installcheck, $what: runs no test");
}

{
	my ($status, $says) =
	  @{ installcheck({}, $zk_hosts, "REGRESS='basic arguments'", 'ISOLATION=unlock', 'PROVE_TESTS=t/070_wait_events.pl') };
	is($status, 0, 'installcheck passes') or diag($says);
	like($says, qr/^(?:ok \d+ +- |test )$_\b/m, "- with $_") for qw(basic arguments setup unlock);
	like($says, qr/^\Qt\E\/070_wait_events\.pl \.+ ok$/m, '- with t/');
	ok(-e "$dir/build/results/basic.out", '- and writes to where it runs');
	zk_nothing_left($zk, 'nothing is left');
}

done_testing();
