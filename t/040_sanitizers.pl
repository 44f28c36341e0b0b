# The parts without PostgreSQL (src/zk), first while a server is killed, stopped, cut off,
# and loses replies, under the address, undefined-behavior and thread sanitizers, without
# and with TLS: no error, no leak, no race, and no node left.  Also processes that exit or
# fork at a bad moment.
#
# Then with a fault at every possible place: the walk of t/c/memory_test.c, again and
# again, with the first, the second, ... request or answer lost, cut, held, damaged, and
# so on, until a walk has fewer than that; and with the first, the second, ...
# allocation, send or call of the client library failing.  Under the same and the leak
# sanitizer, and valgrind.
#
# After each walk: no report, no memory, thread or descriptor left, no node of
# the session while it lived, and at the end no session, watch or directory.
#
# ZK_MEMORY_FULL=1 tries every place with every fault in both ways, patient and
# hasty; with ZK_MEMORY_ONLY="^address re" that took half an hour on two busy
# processors.  Otherwise each 256th or 400th, at random, seeded by ZK_MEMORY_SEED.
# ZK_MEMORY_WORKERS walks run at once (default 8).  ZK_MEMORY_ONLY is a pattern
# for the jobs, such as "thread reply cut".

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Temp qw(tempdir);
use IPC::Run qw(start);
use List::Util qw(shuffle sum0);
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

use Child;
use Deadline;
use Tls;
use ZkClient;
use ZkProxy;
use ZooKeeper;

my $root = abs_path("$FindBin::RealBin/..");
my $dir = tempdir(CLEANUP => 1);
my $full = $ENV{ZK_MEMORY_FULL};
my $nworkers = $ENV{ZK_MEMORY_WORKERS} // 8;
my $only = $ENV{ZK_MEMORY_ONLY} // '.';
my $seed = $ENV{ZK_MEMORY_SEED} // time ^ $$;
srand $seed;

my $have_valgrind = system('command -v valgrind >/dev/null') == 0;
my $started = time;

# --------------------------------------------------------------- the programs

my %program = (
	address => {
		# the walk itself checks for leaks, to tell which walk caused them
		env => { ASAN_OPTIONS => 'detect_stack_use_after_return=1' },
		timeout => 1000,
	},
	# the thread sanitizer cannot cope with every address space layout
	thread => {
		env => { TSAN_OPTIONS => 'halt_on_error=1:second_deadlock_stack=1' },
		run => [qw(setarch -R)],
		timeout => 1000,
	},
	# these also see what the client library does
	memcheck => {
		run => [qw(valgrind -q --leak-check=full --error-exitcode=9 --fair-sched=yes)],
		binary => 'plain',
		timeout => 8000,
	},
	helgrind => {
		run => [qw(valgrind -q --tool=helgrind --error-exitcode=9 --fair-sched=yes)],
		binary => 'plain',
		timeout => 8000,
	},
	# half of the socket buffer size that most machines allow
	meagre => {
		binary => 'address',
		timeout => 8000,
		more => [ 0, 106_496 ],
	},
	# the numbers of requests pass 2^31 in the middle of the first walk
	wrap => {
		binary => 'plain',
		timeout => 4000,
		more => [ 2**31 - 30 ],
	},);
my %cflags = (
	address => [ '-fsanitize=address,undefined', '-fno-sanitize-recover=all' ],
	thread => ['-fsanitize=thread'],
	plain => []);
my %linked = (address => ['memory_test'], thread => ['memory_test'], plain => [qw(memory_test process_test)]);

# All programs with one of these have the same objects
sub compile
{
	my @pids;
	foreach my $name (sort keys %cflags)
	{
		my $pid = fork // die "could not fork: $!";
		if ($pid == 0)
		{
			my @compile = ('gcc', '-D_GNU_SOURCE', '-DZKLOCK_ASSERTIONS', '-DZKLOCK_HAVE_TLS', '-g', '-O1', '-Wall', '-Wextra', '-Werror', '-Wno-unused-parameter',
				@{ $cflags{$name} }, "-I$root/src");
			# each by itself, as compiler caches want it
			mkdir "$dir/objects.$name" or POSIX::_exit(126);
			foreach my $source (glob("$root/src/zk/*.c"))
			{
				my ($object) = $source =~ m{([^/]+)\.c$};
				system(@compile, '-include', "$root/t/c/faults.h", '-c', '-o', "$dir/objects.$name/$object.o", $source) == 0 or POSIX::_exit(1);
			}
			foreach my $program (@{ $linked{$name} })
			{
				system(@compile, '-o', "$dir/$program.$name", "$root/t/c/$program.c", glob("$dir/objects.$name/*.o"),
					map { "-l$_" } qw(zookeeper_st pthread ssl crypto)) == 0
				  or POSIX::_exit(1);
			}
			POSIX::_exit(0);
		}
		push @pids, [ $name, $pid ];
	}
	foreach (@pids)
	{
		my ($name, $pid) = @$_;
		waitpid $pid, 0;
		is($?, 0, "$name: compiles") or die 'nothing to run';
	}
	return;
}

# ------------------------------------------------------ while a server is hurt

# there are more empty containers than the 10,000 a minute that it removes by
# default
my $zk = ZooKeeper->new(container_check => 300, java_options => ['-Dznode.container.maxPerMinute=100000'])->start;

# Each fault ends before the next begins; at the end everything works again.
sub hurt_until
{
	my ($proxy, $end) = @_;
	my @faults = (
		sub { $zk->kill9; sleep 0.3; $zk->start },
		sub { $zk->suspend; sleep 1.5; $zk->resume },
		sub { $proxy->drop },
		(map { my $op = $_; sub { $proxy->swallow($op) } } qw(create2 delete multi getChildren)),
		(map { my $op = $_; sub { $proxy->swallow_and_drop($op) } } 'create2', 'multi', [qw(setData delete)]),
		sub { $proxy->blackhole; sleep 1; $proxy->pass; $proxy->drop },
		sub { $proxy->hold('*'); sleep 0.3; $proxy->release },);
	my ($n, @order) = (0);

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

sub hurt
{
	my $seconds = $ENV{ZK_SANITIZE_SECONDS} // 10;
	my $proxy = ZkProxy->new($zk);
	my $tls = Tls->new;
	$tls->authority('ca');
	$tls->certificate('server', 'ca', 'DNS:localhost');
	my $door = $tls->door($proxy, 'server');

	# All meet the same faults.
	my (%run, %out);
	foreach my $sanitizer (qw(address thread))
	{
		foreach my $way ('in clear', 'with TLS')
		{
			my $name = "$sanitizer, $way";
			local $ENV{ZK_TLS_CA_FILE} = $tls->file('ca.pem') if $way eq 'with TLS';
			$out{$name} = '';
			$run{$name} = start([ @{ $program{thread}{run} }, "$dir/memory_test.$sanitizer",
					($way eq 'with TLS' ? $door : $proxy)->hosts, 2000, 'random', $seconds, $$ ], '>', \$out{$name}, '2>&1');
		}
	}
	my $n = hurt_until($proxy, time + $seconds);
	foreach my $name (sort keys %run)
	{
		$run{$name}->finish;
		is(join("\n", $run{$name}->full_result(0), $out{$name} =~ /^bad.*/mg), '0', "$name: nothing reported, after $n faults");
		diag "$name: $out{$name}";
	}

	# exit() shuts OpenSSL down while threads may still use it
	my $process = "$dir/process_test.plain";
	my $said = `$process exit @{[ $door->hosts ]} @{[ $tls->file('ca.pem') ]} 300`;
	is($said, "0 of 300 ended badly\n", 'processes that exit while TLS is at work');
	is(`$process signal 20`, "0 of 20 ended badly\n", '- or from within a signal handler');

	# A child that has inherited the socket keeps it in the kernel's epoll sets
	# after we have closed it
	my $out = '';
	my $run = start([ $process, 'fork', $proxy->hosts ], '<', \my $in, '>', \$out);
	$run->pump until $out =~ /forked/ || !$run->pumpable;
	$proxy->drop;
	$in = "go on\n";
	$run->finish;
	like($out, qr/^\d+ ms/m, 'the connection is lost while a child has it, and comes again');
	cmp_ok(($out =~ /(\d+) ms/)[0] // 1000, '<', 300, '- and the keeper sleeps then');

	# Where its server is given by an address, the owner greets it before the thread exists;
	# mostly, since on a busy machine even loopback takes a moment.  Where there can be no
	# thread, it does so once.
	my %ahead = `$process ahead` =~ /^(.+): (\d+ opened, \d+ greeted)$/mg;
	like($ahead{address}, qr/^20 opened, [1-9]/, 'an address is greeted before the thread exists');
	is($ahead{name}, '20 opened, 0 greeted', '- a name is not');
	like($ahead{'no thread'}, qr/^0 opened, [01] greeted$/, '- at most once where there can be no thread');
	like($ahead{'threads again'}, qr/^20 opened, [1-9]/, '- until there can be one');

	until_true(sub { !$zk->ephemerals_count && !$zk->watch_count && !$zk->sessions }, 'nothing left at the server');
	pass('no node, watch or session is left at the server');
	return;
}

# ------------------------------------------------------------------- the jobs

my @reply_faults = qw(swallow unheard drop abort cut stall hold twice late expire outage);
my @damages = qw(xid length negative huge tiny zero text moved);
# (all that an answer can be that holds several results, frame_test has)
my @request_faults = qw(swallow drop abort cut stall hold);
my @calls = qw(memory library send);    # see t/c/faults.h

# How long the owner waits for anything, in what state it leaves, and how long
# it waits for the end
my @patient = ([ 3000, 'tidy', 3000 ]);
my @hasty = ([ 150, 'hasty', 0 ], [ 150, 'rude', 0 ], [ 150, 'tidy', 0 ], [ 150, 'rude', 50 ], [ 150, 'hasty', 3000 ]);

# A job is one fault at some places: either at every stepth from the first one
# on, as far as a walk gets, or at those listed.
my @jobs;

sub add_job
{
	my ($program, $way, $fault, %opt) = @_;
	push @jobs, { program => $program, way => $way, fault => $fault, manners => \@patient, %opt };
	return;
}

sub some { my ($n, $of) = @_; return [ map { 1 + int rand $of } 1 .. $n ]; }

# One fault at all places, or at those that are this far from each other
sub add_steps
{
	my ($program, $way, $fault, $manners) = @_;
	my $parts = $full ? 12 : 1;
	my $step = $full ? 1 : ($manners == \@patient ? 256 : 400) * ($way eq 'memory' ? 2 : 1);
	my $first = 1 + int rand $step;
	add_job(
		$program, $way, $fault,
		first => $first + $step * $_,
		step => $step * $parts,
		manners => $manners) for 0 .. $parts - 1;
	return;
}

sub jobs
{
	# the long ones come first
	add_job('meagre', @$_, places => [0], crowd => 2, manners => [ [ 20_000, 'tidy', 3000 ] ], steps => 16)
	  for [qw(reply dribble)], [ 'none', '' ];
	if ($have_valgrind)
	{
		my @cut = shuffle([qw(reply drop)], [qw(reply cut)], [qw(reply expire)], [qw(send fails)]);
		foreach my $program (qw(memcheck helgrind))
		{
			add_job($program, 'none', '', places => [0], crowd => $full ? 2 : 1);
			add_job($program, @$_, places => some($full ? 30 : 1, 200)) for $full ? @cut : pop @cut;
			next if $program eq 'helgrind';
			add_job($program, @$_, places => some($full ? 60 : 2, 150)) for [qw(memory fails)], [qw(library fails)];
		}
	}
	# What damages an answer ends in the same way on the keeper's thread, whatever it is: where
	# not all is tried, races are looked for with one of each kind.
	my @alone = shuffle(@damages);
	foreach my $program (qw(address thread))
	{
		my $all = $full || $program eq 'address';
		my @faults = (
			map({ [ 'reply', $_ ] } @reply_faults, $all ? @damages : $alone[0]),
			map({ [ 'request', $_ ] } @request_faults),
			map({ [ $_, 'fails' ] } @calls));

		# opening a session, always
		add_job($program, 'memory', 'fails', places => [ 1 .. 16 ]);
		add_job($program, 'none', '', places => [0], manners => [ [ 3000, 'held', 3000 ] ]);
		# (with the address sanitizer that is what the meagre one does)
		add_job($program, 'reply', 'dribble', places => [0], crowd => 2) if $full || $program eq 'thread';
		add_job($program, 'reply', 'unheard', places => some($full ? 40 : 4, 320), crowd => 1);

		# Where not all is tried, the crowd is there in one of the two manners, and in the other
		# one each place is as likely.
		foreach (@faults)
		{
			my ($way, $fault) = @$_;
			my $n = $way eq 'memory' ? 5000 : $way =~ /^re/ ? 350 : 200;
			my ($some, $rest) = rand(2) < 1 ? (\@patient, \@hasty) : (\@hasty, \@patient);
			add_job($program, $way, $fault, places => some($full ? 40 : 1, $n), crowd => 1, manners => $_)
			  for $full ? ($some, $rest) : $some;
			add_steps($program, $way, $fault, $_) for $full ? ($some, $rest) : $rest;
		}
		add_steps($program, 'memory', 'fails for long', $_) for $full ? \@patient : (), \@hasty;
	}
	@jobs = grep { "$_->{program} $_->{way} $_->{fault}" =~ /$only/ } @jobs;
	return;
}

sub title { my ($job) = @_; return join ' ', grep { $_ ne '' } @{$job}{qw(program way fault)}; }

# ------------------------------------------------------------------ the worker

# One program; the server is shared, and the proxy with the programs of one process, which
# walk in turn.
package Walker;

use Time::HiRes qw(time);

my $count = 0;

sub new
{
	my ($class, %self) = @_;
	return bless { sessions => {}, %self }, $class;
}

sub _start
{
	my ($self) = @_;
	my $p = $program{ $self->{name} };
	$self->{err} = "$dir/stderr." . ++$count . ".$$";

	$self->{child} = Child->talks(
		[
			@{ $p->{run} // [] }, "$dir/memory_test." . ($p->{binary} // $self->{name}),
			$self->{proxy}->hosts, $self->{timeout} // $p->{timeout}, @{ $p->{more} // [] }
		],
		err => $self->{err}, env => $p->{env}, bare => 1);    # so that the walk's descriptors are its own
	return;
}

# Clean exit; further output belongs to the last walk.
sub stop
{
	my ($self, $signal) = @_;
	my $child = delete $self->{child} or return;
	kill $signal, $child->{pid} if $signal;
	close $child->{to};
	Child::ended($child->{pid}, 60) or Child::kill9($child->{pid});
	my $status = $?;
	my $said = do { local (@ARGV, $/) = $self->{err}; <> } // '';
	my @bad;
	push @bad, sprintf 'ended with status 0x%x', $status if $status && !$signal;
	push @bad, split /\n/, $said;
	return @bad;
}

# The same, and remove everything that belonged to it
sub end
{
	my ($self) = @_;
	my @bad = $self->stop;
	$self->{client}->close if $self->{client};
	return @bad;
}

# What another client does.  It may be too late for that.
sub _somebody
{
	my ($self, $what, $path) = @_;
	my $client = $self->{client} //= $self->{zk}->client;
	my $proxy = $self->{proxy};
	my $permit = sub { $client->set_acl($path, [ [ $_[0], 'world', 'anyone' ] ]) };
	$proxy->hold_request($path) if $what eq 'hold';
	# unless a fault comes before it
	eval { $proxy->wait_held($what eq 'steal' ? 0.3 : 3) } if $what =~ /^(?:steal|wait)$/;
	eval { $client->create($path =~ s{(?<=.)/.*}{}r, mode => 'container') } if $what eq 'create';
	eval {
		if ($what eq 'create') { $client->create($path); }
		elsif ($what eq 'set') { $client->set($path, 'x'); }
		elsif ($what eq 'delete') { $client->delete($path); }
		elsif ($what eq 'steal') { $client->delete("$path/$_") for $client->children($path); }
		elsif ($what eq 'forbid') { $permit->(31 & ~(4 | 8)); }    # neither create nor delete
		elsif ($what eq 'allow') { $permit->(31); }
	};
	$proxy->release if $what eq 'steal';
	return;
}

# One walk.  { steps, calls, frames => [requests, replies], bad => [...] }
sub walk
{
	my ($self, %opt) = @_;
	my ($way, $fault, $k) = @opt{qw(way fault k)};
	my ($patience, $ending, $bound) = @{ $opt{manners} };
	my $proxy = $self->{proxy};
	my @bad;
	my $lines = '';

	$self->_start unless $self->{child};
	$proxy->reset;
	$proxy->clear_log;
	$proxy->count_frames;
	if ($fault eq 'dribble') { $proxy->dribble; }
	elsif ($way =~ /^re/) { $proxy->nth($way, $k, $fault); }
	my @call = $way =~ /^re|^none/ ? ('none', 0, 0) : ($way, $k, $fault eq 'fails for long' ? 25 : 1);
	my $crowd = $opt{crowd} // 0;

	my $path = "/memory-$$-" . ++$count;
	my $child = $self->{child};
	$child->say("run $path /big $patience $ending $bound @call $crowd");
	$self->{dirs}{$path} = "$way $fault $k, @{ $opt{manners} }";
	my $deadline = time + 240;    # each of its waits lasts three seconds where the session is over
	my %walk = (steps => 0, calls => 0);
	while (1)
	{
		my $line = eval { $child->line($deadline) };
		if (!defined $line)
		{
			push @bad, time > $deadline ? 'does not end' : 'has ended';
			push @bad, $self->stop(time > $deadline ? 'ABRT' : ());
			last;
		}
		$lines .= "$line\n";
		if ($line =~ /^do (\w+) (.*)/) { $self->_somebody($1, $2); }
		elsif ($line =~ /^quiet (\w+)/)
		{
			my %left = $self->{zk}->ephemerals;
			push @bad, "left: @{ $left{$1} }" if $left{$1};
			# a watch whose removal was lost may stay as long as its session
			if ($way eq 'none')
			{
				my ($watches) = $self->{zk}->four_letter('wchc') =~ /^$1\n((?:\t.*\n)+)/m;
				push @bad, "watched: $watches" if $watches;
			}
			# its owner waited until everything was removed
			$self->{dirs}{$path} = "tidy $self->{dirs}{$path}";
		}
		elsif ($line =~ /^session (\w+)/) { $self->{sessions}{$1} = "$way $fault $k"; next; }
		elsif ($line =~ /^done (\d+) (\d+)/)
		{
			@walk{qw(steps calls)} = ($1, $2);
			last;
		}
		else { push @bad, $line; next; }
		$child->say('ok');
	}
	$walk{frames} = [ $proxy->frames ];
	if ($self->{child} && (-s $self->{err} || grep { /^bad leak/ } @bad))
	{
		push @bad, $self->stop('KILL');
	}
	if (@bad)
	{
		push @bad, '-- the walk said', split(/\n/, $lines), '-- the proxy saw',
		  map { join ' ', map { $_ // '' } @$_ } $proxy->log;
	}
	$walk{bad} = \@bad;
	return \%walk;
}

# (walks, bad...)
sub job
{
	my ($self, $job) = @_;
	my ($way, $fault, $places) = @{$job}{qw(way fault places)};
	my ($n, @bad) = (0);

	for (my $i = 0; !$places || $i < @$places; $i++)
	{
		my $k = $places ? $places->[$i] : $job->{first} + $i * $job->{step};
		my $how = $job->{manners}[ $k % @{ $job->{manners} } ];
		my $walk = $self->walk(%$job, k => $k, manners => $how);
		$n++;
		push @{ $walk->{bad} }, "only $walk->{steps} steps" if $walk->{steps} < ($job->{steps} // 0);
		push @bad, "$way $k, $fault, @$how:", map { "    $_" } @{ $walk->{bad} } if @{ $walk->{bad} };
		my $reached =
		    $way eq 'request' ? $walk->{frames}[0]
		  : $way eq 'reply' ? $walk->{frames}[1]
		  : $walk->{calls};
		# where only some are tried, no walk for a place that most likely is not there
		last if (!$places && $reached < ($full ? $k : $k + $job->{step})) || @bad > 400;
		push @bad, "no end: $reached" if $k > 3000 && !$places;
	}
	return ($n, @bad);
}

package main;

# A directory with a long list, and many directories
sub big
{
	my ($server) = @_;
	$server->with_client(
		sub {
			my ($client) = @_;
			$client->create('/big');
			$client->create(sprintf '/big/%024d-lock-%010d', $_, $_) for 1 .. 150;
			$client->create('/many');
			$client->create(sprintf '/many/%016d', $_) for 0 .. 999;
		});
	return;
}

# Take jobs from the pipe until there are none.  The results are lines of a kind, a name and
# a text.
sub work
{
	my ($queue, $out) = @_;
	my %walker;
	my $proxy = ZkProxy->new($zk);
	my $tell = sub { my ($kind, $name, @text) = @_; print $out map { "$kind\t$name\t$_\n" } @text; };

	while (sysread $queue, my $next, 4)
	{
		my $job = $jobs[ unpack 'N', $next ];
		my $name = $job->{program};
		my ($n, @bad) = eval { ($walker{$name} //= Walker->new(name => $name, zk => $zk, proxy => $proxy))->job($job) };
		push @bad, "the test itself: $@" if $@;
		$tell->(walks => title($job), $n // 0);
		$tell->(bad => title($job), @bad);
	}
	foreach my $name (sort keys %walker)
	{
		my $walker = $walker{$name};
		$tell->(bad => "$name at its end", $walker->end);
		foreach my $kind (qw(dirs sessions)) { $tell->($kind => $_, $walker->{$kind}{$_}) for sort keys %{ $walker->{$kind} }; }
	}
	$tell->(finished => $$, 1);
	return;
}

# ----------------------------------------------------------------- here we go

compile();
jobs();
hurt() if $only eq '.';
diag "seed $seed, " . scalar(@jobs) . ' jobs';
big($zk);

# With no fault everything must happen, or the rest would prove nothing.
{
	my $proxy = ZkProxy->new($zk);
	foreach my $name (qw(address thread wrap))
	{
		# On a very busy machine a session of a second may expire, and the crowd takes more
		# than the three seconds of @patient.
		my $walker = Walker->new(name => $name, zk => $zk, proxy => $proxy, timeout => 6000);
		my $walk = $walker->walk(way => 'none', fault => '', k => 0, crowd => 2, manners => [ 20_000, 'tidy', 3000 ]);
		is($walk->{steps}, 16, "$name: no fault: every step is taken");
		is_deeply($walk->{bad}, [], "$name: no fault: nothing is bad");
		diag "$name: @{ $walk->{frames} } frames";
		is_deeply([ $walker->end ], [], "$name: no fault: ends well");
	}
}

pipe(my $queue, my $fill) or die "pipe: $!";
syswrite $fill, pack 'N*', 0 .. $#jobs;
close $fill;
my @results;
foreach (1 .. $nworkers)
{
	open my $result, '+>', undef or die "no file: $!";
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		eval { work($queue, $result); close $result; 1 } or warn $@;
		POSIX::_exit(0);    # the END blocks belong to the test
	}
	push @results, [ $pid, $result ];
}

my %told;    # kind => { name => [text...] }
foreach (@results)
{
	my ($pid, $result) = @$_;
	waitpid $pid, 0;
	seek $result, 0, 0;
	while (<$result>) { push @{ $told{$1}{$2} }, $3 if /^(.*?)\t(.*?)\t(.*)/; }
}
is(keys %{ $told{finished} }, $nworkers, 'all workers came to their end');
foreach my $key (sort keys %{ { %{ $told{walks} }, %{ $told{bad} // {} } } })
{
	my @bad = @{ $told{bad}{$key} // [] };
	ok(!@bad, sprintf '%s: %d walks', $key, sum0(@{ $told{walks}{$key} // [] })) or diag join "\n", splice @bad, 0, 200;
}
my %sessions = map { $_ => $told{sessions}{$_}[0] } keys %{ $told{sessions} };
my %dirs = map { $_ => $told{dirs}{$_}[0] } keys %{ $told{dirs} };
$dirs{$_} = 'at random' for qw(/random /random_single);
diag sprintf 'walked after %.1f s', time - $started;

my $gone = eval { until_true(sub { !grep { $sessions{$_} } $zk->sessions }, 'no session', $MOMENT) };
ok($gone, 'all ' . keys(%sessions) . ' sessions are gone')
  or diag map { "$_: $sessions{$_}\n" } grep { $sessions{$_} } $zk->sessions;
is($zk->watch_count, 0, 'no watch is left');
is($zk->ephemerals_count, 0, 'no ephemeral node is left');

# A directory that was created for a node that then could not be created is
# removed by its session, if there is one that can: when the session is closed
# in haste or has expired, an unused container stays, and nothing else.
my (@left, @wrong);
eval {
	until_true(
		sub {
			@left = grep { !m{^/(?:big|many)} } $zk->tree('/');
			@wrong = grep { ($dirs{ s{^(/[^/]+).*}{$1}r } // 'tidy') =~ /^tidy/ || ($zk->get($_) // 'zklock') ne 'zklock' } @left;
			return !@wrong;
		},
		'the tree', 20);
};
is_deeply(\@wrong, [], 'no directory is left by who waited for that')
  or diag map { "$_: $dirs{$_}\n" } grep { $dirs{$_} } @left;
diag map { "unused: $_: $dirs{$_}\n" } grep { $dirs{$_} } @left;
diag sprintf 'after %.1f s', time - $started;

done_testing();
