# The parts without PostgreSQL (session, requests, nodes, frames) under the
# address, undefined-behavior and thread sanitizers, with a server that is
# killed, stopped, cut off, and loses replies meanwhile: no error, no leak, no
# race, and no node left.  Without and with TLS.  Also processes that exit or
# fork at a bad moment.

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

use Tls;
use ZkProxy;
use ZooKeeper;

my $src = abs_path("$FindBin::RealBin/../src");
my $dir = tempdir(CLEANUP => 1);
my $seconds = $ENV{ZK_SANITIZE_SECONDS} // 8;
my @sources = glob "$src/zk/*.c";

my $zk = ZooKeeper->new(container_check => 1000)->start;
my $proxy = ZkProxy->new($zk);
my $tls = Tls->new;
$tls->authority('ca');
$tls->certificate('server', 'ca', 'DNS:localhost');
my $door = $tls->door($proxy, 'server');

# Each fault ends before the next begins; at the end everything works again.
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

# The sources are compiled once for all programs with these options
my %objects;

sub compile
{
	my ($name, $program, @options) = @_;
	my @compile = ('gcc', '-D_GNU_SOURCE', '-DZKLOCK_ASSERTIONS', '-DZKLOCK_HAVE_TLS', '-g', '-O1', @options, "-I$src");
	my $objects = $objects{"@options"} //= "$dir/objects." . keys %objects;
	if (!-d $objects)
	{
		mkdir $objects or die "$objects: $!";
		system('env', '--chdir', $objects, @compile, '-c', @sources) == 0 or return 1;
	}
	return system(@compile, '-o', $program, "$FindBin::RealBin/c/$name.c", glob("$objects/*.o"), map { "-l$_" } qw(zookeeper_st pthread ssl crypto));
}

for my $sanitizer ('address,undefined', 'thread')
{
	my $program = "$dir/session_test_" . ($sanitizer =~ s/,.*//r);

	is(compile('session_test', $program, "-fsanitize=$sanitizer", '-fno-sanitize-recover=all'), 0, "$sanitizer: compiles");

	# Both meet the same faults.  The thread sanitizer cannot cope with every
	# address space layout.
	my (%run, %out);
	foreach my $name ('in clear', 'with TLS')
	{
		local $ENV{ZK_TLS_CA_FILE} = $tls->file('ca.pem') if $name eq 'with TLS';
		$out{$name} = '';
		$run{$name} = start([ 'setarch', '-R', $program, ($name eq 'with TLS' ? $door : $proxy)->hosts, $seconds, $$ ],
			'>', \$out{$name}, '2>&1');
	}
	my $n = hurt_until(time + $seconds);
	foreach my $name (sort keys %run)
	{
		$run{$name}->finish;
		is($run{$name}->full_result(0), 0, "$sanitizer, $name: nothing reported, no node left, after $n faults")
		  or diag $out{$name};
		diag "$sanitizer, $name: $out{$name}";
	}
}

# exit() shuts OpenSSL down while threads may still use it
is(compile('exit_test', "$dir/exit_test"), 0, 'exit_test compiles');
my $said = `$dir/exit_test @{[ $door->hosts ]} @{[ $tls->file('ca.pem') ]} 300`;
is($said, "0 of 300 ended badly\n", 'processes that exit while TLS is at work');
is(`$dir/exit_test 20`, "0 of 20 ended badly\n", '- or from within a signal handler');

# A child that has inherited the socket keeps it in the kernel's epoll sets
# after we have closed it
is(compile('fork_test', "$dir/fork_test"), 0, 'fork_test compiles');
my $out = '';
my $run = start([ "$dir/fork_test", $proxy->hosts ], '<', \my $in, '>', \$out);
$run->pump until $out =~ /forked/ || !$run->pumpable;
$proxy->drop;
$in = "go on\n";
$run->finish;
like($out, qr/^\d+ ms/m, 'the connection is lost while a child has it, and comes again');
cmp_ok(($out =~ /(\d+) ms/)[0] // 1000, '<', 300, '- and the keeper sleeps then');

# Where its server is given by an address, the owner greets it before the thread exists;
# mostly, since on a busy machine even loopback takes a moment.  Where there can be no
# thread, it does so once.
is(compile('ahead_test', "$dir/ahead_test", '-fsanitize=address,undefined', '-fno-sanitize-recover=all'), 0, 'ahead_test compiles');
my %ahead = `$dir/ahead_test` =~ /^(.+): (\d+ opened, \d+ greeted)$/mg;
like($ahead{address}, qr/^20 opened, [1-9]/, 'an address is greeted before the thread exists');
is($ahead{name}, '20 opened, 0 greeted', '- a name is not');
like($ahead{'no thread'}, qr/^0 opened, [01] greeted$/, '- at most once where there can be no thread');
like($ahead{'threads again'}, qr/^20 opened, [1-9]/, '- until there can be one');

$zk->wait_until(sub { !$zk->ephemerals_count && !$zk->watch_count && !$zk->sessions },
	'nothing left at the server');
pass('no node, watch or session is left at the server');

done_testing();
