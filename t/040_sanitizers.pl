# The parts without PostgreSQL (session, requests, nodes, frames) under the
# address, undefined-behaviour and thread sanitizers, with a server that is
# killed, stopped, cut off, and robbed of its replies meanwhile: no error, no
# leak, no race, and no node left.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Temp qw(tempdir);
use IPC::Run qw(start);
use List::Util qw(shuffle);
use Test::More;
use Time::HiRes qw(sleep time);

use ZkProxy;
use ZooKeeper;

my $src = abs_path("$FindBin::RealBin/../src");
my $dir = tempdir(CLEANUP => 1);
my $seconds = $ENV{ZK_SANITIZE_SECONDS} // 8;
my @sources = map { "$src/$_.c" } qw(protocol session request node frame resolve tls);

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);

# Each fault ends before the next begins; at the end all is well again.
my @faults = (
	sub { $zk->kill9; sleep 0.3; $zk->start },
	sub { $zk->suspend; sleep 1.5; $zk->resume },
	sub { $proxy->drop },
	sub { $proxy->swallow('create2') },
	sub { $proxy->swallow('delete') },
	sub { $proxy->swallow_and_drop('create2') },
	sub { $proxy->swallow('multi', 2) },
	sub { $proxy->swallow_and_drop('multi') },
	sub { $proxy->swallow_and_drop([qw(setData delete)]) },
	sub { $proxy->swallow('getChildren') },
	sub { $proxy->blackhole; sleep 1; $proxy->pass; $proxy->drop },
	sub { $proxy->hold('*'); sleep 0.3; $proxy->release },);

sub hurt_until
{
	my ($end) = @_;
	my $n = 0;
	my @order;

	while (time < $end)
	{
		@order = shuffle 0 .. $#faults if !@order;
		$faults[ shift @order ]->();
		$n++;
		sleep 0.1;
	}
	$proxy->reset;
	$proxy->drop;
	return $n;
}

for my $sanitizer ('address,undefined', 'thread')
{
	my $program = "$dir/session_test_" . ($sanitizer =~ s/,.*//r);
	my @compile = (
		'gcc', '-D_GNU_SOURCE', '-g', '-O1', "-fsanitize=$sanitizer",
		'-fno-sanitize-recover=all', "-I$src", '-o', $program,
		"$FindBin::RealBin/c/session_test.c", @sources, '-lzookeeper_st', '-lpthread');

	is(system(@compile), 0, "$sanitizer: compiles");

	# the thread sanitizer cannot bear every layout of the address space
	my $out = '';
	my $run = start([ 'setarch', '-R', $program, $proxy->hosts, $seconds, $$ ],
		'>', \$out, '2>&1');
	my $n = hurt_until(time + $seconds);

	$run->finish;
	is($run->full_result(0), 0, "$sanitizer: nothing reported, no node left, after $n faults")
	  or diag $out;
	diag "$sanitizer: $out";
}

$zk->wait_until(sub { !$zk->ephemerals_count && !$zk->watch_count && !$zk->sessions },
	'nothing left at the server');
pass('no node, watch or session is left at the server');

done_testing();
