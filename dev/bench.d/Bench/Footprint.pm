
=pod

=head1 NAME

Bench::Footprint - scene (g): what zklock costs beside the locks

=head1 SYNOPSIS

  my $tables = Bench::Footprint::run($bench);

=head1 DESCRIPTION

It measures memory, descriptors and threads of backends that have used a lock;
the CPU time of idle sessions; what the library costs backends that load it and
do not use it, in instructions; and the very first call.

Memory is PSS: each page is divided among the processes that map it.  So the
number of processes with the library matters, and it is measured for a backend
that is the only one and for one of many.

CPU time is what the kernel's scheduler has measured
(F</proc/PID/task/*/schedstat>, in ns).  The ticks of F</proc/PID/stat> are too
coarse for a few milliseconds in half a minute.

=cut

package Bench::Footprint;

use strict;
use warnings;
use List::Util qw(sum);
use PostgreSQL::Test::Utils qw(slurp_file);
use Time::HiRes qw(sleep time);

use Bench;
use Zklock;

our $PATIENCE = 300;    # seconds, for any wait

sub run
{
	my ($bench) = @_;
	return [ _presence($bench), _idle($bench), _unused($bench), _first($bench) ];
}

# A file of /proc, '' if the process is gone
sub _proc
{
	my ($file) = @_;
	open my $handle, '<', "/proc/$file" or return '';
	local $/;
	return <$handle> // '';
}

# ----------------------------------------- memory, descriptors and threads

# how the library gets into a backend => its line in postgresql.conf
my @LOADED = (
	[ 'session_preload_libraries', session_preload_libraries => 'zklock' ],
	[ 'shared_preload_libraries', session_preload_libraries => '', shared_preload_libraries => 'zklock' ],
	[ 'the first call', session_preload_libraries => '' ]);

# What a backend does apart from locks: catalogs, expressions, also those of the
# call itself, another library
my $WARM = q{DO $$ BEGIN PERFORM count(*) FROM pg_class; END $$; BEGIN; SELECT now(), pg_advisory_xact_lock(1); COMMIT;
	SELECT length('/footprint/' || pg_backend_pid())};
my $CALL = q{SELECT zk_lock('/footprint/' || pg_backend_pid()), zk_unlock('/footprint/' || pg_backend_pid())};

# PSS by what a mapping is of, kB
my @MAPPED = (
	[ 'zklock' => qr{/zklock\.so} ],
	[ "ZooKeeper's client library" => qr{/libzookeeper} ],
	[ 'other libraries' => qr{\.so} ],
	[ "PostgreSQL's program" => qr{/postgres$} ],
	[ 'shared memory' => qr{^/dev|^/SYSV|\(deleted\)} ],
	[ 'memory of its own' => qr{} ]);

sub _mapped
{
	my ($pid) = @_;
	my (%kb, $of);
	foreach (split /\n/, _proc("$pid/smaps"))
	{
		if (/^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)/)
		{
			my $file = $1;
			($of) = map { $_->[0] } grep { $file =~ $_->[1] } @MAPPED;
		}
		elsif (/^Pss: +(\d+) kB/) { $kb{$of} += $1; }
	}
	return \%kb;
}

# { pss, private: kB; handles; threads }, averaged over these sessions
sub _have
{
	my (@sessions) = @_;
	my %sum;
	foreach my $pid (map { $_->pid } @sessions)
	{
		my $memory = _proc("$pid/smaps_rollup");
		$sum{pss} += ($memory =~ /^Pss:\s+(\d+) kB/m)[0];
		$sum{private} += ($memory =~ /^Private_Dirty:\s+(\d+) kB/m)[0];
		# a backend opens and closes the files of its tables on its own
		$sum{handles} += grep { (readlink // '') =~ /^(?:socket|anon_inode|pipe):/ } glob "/proc/$pid/fd/*";
		$sum{threads} += () = glob "/proc/$pid/task/*";
	}
	return { map { $_ => $sum{$_} / @sessions } keys %sum };
}

sub _presence
{
	my ($bench) = @_;
	my $many = $bench->quick ? 20 : 50;
	my (@rows, %unused, %most, @goals, @where);

	foreach my $way (@LOADED)
	{
		my ($name, %conf) = @$way;
		$bench->say("(g) memory, the library loaded by $name");
		my $node = $bench->cluster('footprint_' . ($name =~ /^(\w+?)_/)[0] // 'call', %conf);
		foreach my $n (1, $many)
		{
			my @sessions = map { zk_session($node) } 1 .. $n;
			$_->value($WARM) for @sessions;
			my $before = _have(@sessions);
			my $mapped = _mapped($sessions[0]->pid);
			$_->value($CALL) for @sessions;
			my $after = _have(@sessions);
			my $now = _mapped($sessions[0]->pid);
			push @where, [ $name, map { ($now->{$_} // 0) - ($mapped->{$_} // 0) } map { $_->[0] } @MAPPED ] if $n == 1;
			$sessions[0]->value($CALL) for 1 .. 300;
			my $later = _have($sessions[0])->{private};
			$_->value($CALL) for @sessions;
			$sessions[0]->value($CALL) for 1 .. 300;
			my $growth = _have($sessions[0])->{private} - $later;
			my %more = map { $_ => $after->{$_} - $before->{$_} } keys %$after;

			push @rows,
			  [
				$name, $n == 1 ? 'the only one' : "one of $n",
				map({ sprintf '%.0f', $_ } $before->{pss}, $more{pss}, $more{private}, $growth),
				map({ sprintf '%.3g', $_ } $more{handles}, $more{threads})
			  ];
			$unused{$name} = $before->{pss} if $n > 1;
			push @goals, [ "(g) PSS, kB, $rows[-1][1], library by $name", $more{pss}, 600 ];
			foreach my $what (qw(handles threads))
			{
				$most{$what} = $more{$what} if $more{$what} > ($most{$what} // 0);
			}
			$_->quit for @sessions;
		}
		$node->stop;
	}
	$bench->goal($_->[0], sprintf('%.0f', $_->[1]), $_->[2]) for @goals;
	$bench->goal('(g) descriptors of a backend', $most{handles}, 4);
	$bench->goal('(g) threads of a backend', $most{threads}, 1);

	$bench->table('(g) Where the memory of the only backend is that it has more', [ 'PSS more, kB; library by', map { $_->[0] } @MAPPED ],
		\@where);
	my $loaded = $unused{ $LOADED[0][0] } - $unused{ $LOADED[2][0] };
	return $bench->table(
		'(g) What a backend has in addition once it has used a lock',
		[ 'library loaded by', 'backend', 'PSS before, kB', 'PSS more, kB', 'of it private and written, kB', 'after 300 locks more, kB', 'descriptors', 'threads' ],
		\@rows,
		notes => [
			sprintf("A backend that has the library by session_preload_libraries and has not used it has %.0f kB more than one without (one of $many).", $loaded),
			'Before, the backend has read a catalog, called PL/pgSQL and used an advisory lock. The only one of its cluster pays alone for all pages that its first call touches, of the program, of libc and of libcrypto too, which backends share otherwise.',
			'Without TLS. That has a thread and descriptors of its own.'
		]);
}

# ----------------------------------------------------------------- idle ones

# CPU time of these processes with all their threads, in ns
sub _cpu
{
	my (@pids) = @_;
	return sum(map { (split ' ', _proc($_ =~ s{^/proc/}{}r))[0] // 0 } map { glob "/proc/$_/task/*/schedstat" } @pids);
}

# a process and all its descendants
sub _family
{
	my ($pid) = @_;
	my @children = map { split ' ', _proc($_ =~ s{^/proc/}{}r) } glob "/proc/$pid/task/*/children";
	return ($pid, map { _family($_) } @children);
}

sub _idle
{
	my ($bench) = @_;
	my $n = $bench->quick ? 50 : 200;
	my $seconds = $bench->quick ? 5 : 10;
	my $repetitions = $bench->quick ? 1 : 3;
	my (@rows, %us);

	my $measure = sub {
		my ($what, $count, @pids) = @_;
		sleep 2;    # let earlier work finish
		my @us;
		foreach (1 .. $repetitions)
		{
			my ($before, $since) = (_cpu(@pids), time);
			sleep $seconds;
			push @us, (_cpu(@pids) - $before) / 1000 / $count / (time - $since);
		}
		$us{$what} = median(@us);
		@us = sort { $a <=> $b } @us;
		push @rows, [ $what, $count, map { sprintf '%.1f', $_ } $us{$what}, @us[ 0, -1 ] ];
		return;
	};

	$bench->say("(g) $n idle sessions");
	my $node = $bench->cluster('idle', max_connections => $n + 20);
	my @sessions = map { zk_session($node) } 1 .. $n;
	my @pids = map { $_->pid } @sessions;
	$_->value($WARM) for @sessions;
	$measure->('zklock, no call yet', $n, @pids);
	$_->value($CALL) for @sessions;
	$measure->('zklock, no lock held', $n, @pids);
	$_->value(q{SELECT zk_lock('/footprint/' || pg_backend_pid())}) for @sessions;
	$measure->('zklock, a lock held', $n, @pids);
	$_->quit for @sessions;
	$node->stop;

	foreach my $peer (grep { $bench->has($_) } qw(curator kazoo))
	{
		my $name = $peer eq 'curator' ? 'Curator' : $peer;
		eval {
			my $runner = $bench->runner($peer);
			$runner->ask("clients $n", $PATIENCE);
			sleep 5;    # by then a JVM has compiled
			$measure->("$name, no lock held", $n, _family($runner->pid));
			$runner->quit;
			1;
		} or push @rows, [ "$name: could not be had: " . ($@ =~ /^(.{1,100})/)[0], ('') x 4 ];
	}

	$bench->goal("(g) processor per idle session and second, µs, $_", sprintf('%.1f', $us{"zklock, $_"}), 50)
	  for 'no lock held', 'a lock held';
	return $bench->table(
		'(g) Sessions that do nothing: time of the processor',
		[ 'clients', 'how many', 'µs per session and second', 'least', 'most' ],
		\@rows,
		notes => [
			"All threads, what the kernel does for them included; $repetitions times $seconds s each. Session timeout 10 s, as everywhere: a heartbeat each 2.5 s (zklock) or 3.3 s.",
			'Between two heartbeats of a session the caches have forgotten all about it, so that most of this is waking up. The server\'s part is not in it.'
		]);
}

# ---------------------------------------------------------- there and unused

# Instructions of a backend for this many statements of pgbench -S
sub _instructions
{
	my ($bench, $node, $preload, $n) = @_;
	my $input = $bench->dir . '/select.sql';
	my $log = $bench->dir . '/callgrind.log';
	open my $file, '>', $input or die "$input: $!";
	my $aid = 1;
	foreach (1 .. $n)
	{
		$aid = ($aid * 48271) % 2147483647;    # the same ones each time
		printf $file "SELECT abalance FROM pgbench_accounts WHERE aid = %d;\n", 1 + $aid % 100_000;
	}
	close $file or die "$input: $!";
	my @settings = map { ('-c', $_) } "shared_preload_libraries=$preload", 'session_preload_libraries=';
	# (the shell sets up its descriptors: a test framework has tied ours)
	my $command = join ' ', map { "'$_'" } 'env', 'LD_PRELOAD=' . $bench->dir . '/bin/still.so', 'valgrind', '--tool=callgrind', '--callgrind-out-file=/dev/null',
	  "--log-file=$log", 'postgres', '--single', '-D', $node->data_dir, @settings, 'postgres';
	system("$command <'$input' >'$log.out' 2>&1") == 0 or die "valgrind: " . slurp_file("$log.out");
	return (slurp_file($log) =~ /Collected : (\d+)/)[0] // die 'valgrind: ' . slurp_file($log);
}

sub _unused
{
	my ($bench) = @_;
	my $name = '(g) instructions of a pgbench -S transaction that the unused library adds, %';
	my $title = '(g) A library that is loaded and not used: instructions of pgbench -S';
	if (system('valgrind --version >/dev/null 2>&1') != 0)
	{
		$bench->goal($name, undef, 0.1, note => 'no valgrind here');
		return $bench->table($title, [''], [ ['not measured: there is no valgrind'] ]);
	}
	$bench->say('(g) instructions, by callgrind');
	my $source = $INC{'Bench/Footprint.pm'} =~ s{Bench/Footprint\.pm$}{still.c}r;
	system('gcc', '-O2', '-Wall', '-shared', '-fPIC', '-o', $bench->dir . '/bin/still.so', $source) == 0
	  or die "could not compile $source\n";
	my $node = $bench->cluster('instructions', session_preload_libraries => '');
	system('pgbench', '-h', $node->host, '-p', $node->port, '-i', '-q', 'postgres') == 0 or die "pgbench -i failed\n";
	$node->safe_psql('postgres', 'VACUUM (FREEZE, ANALYZE); CHECKPOINT');
	$node->stop;

	my ($few, $many) = $bench->quick ? (200, 700) : (500, 2500);
	my %each;
	foreach my $case ([ not => '' ], [ unused => 'zklock' ])
	{
		my ($what, $preload) = @$case;
		my ($less, $more) = map { _instructions($bench, $node, $preload, $_) } $few, $many;
		$each{$what} = ($more - $less) / ($many - $few);
	}
	my $percent = sub { return sprintf '%.3f', 100 * ($each{ $_[0] } / $each{not} - 1); };
	$bench->goal($name, $percent->('unused'), 0.1);
	return $bench->table(
		$title,
		[ 'library', 'instructions per transaction', 'more', '%' ],
		[
			map {
				[ $_->[0], sprintf('%.0f', $each{ $_->[1] }), sprintf('%.0f', $each{ $_->[1] } - $each{not}), $percent->($_->[1]) ]
			} [ 'not loaded', 'not' ],
			[ 'shared_preload_libraries, unused', 'unused' ]
		],
		notes => [
			"In user mode, counted by valgrind's callgrind in a postgres --single: ($many statements less $few) / " . ($many - $few) . '. Nothing of a network or of a client is in it, which makes the share larger than it is in use. The time of day stands still, so that what PostgreSQL does once a second is not in it. Two runs differ by some 0.03 %.'
		]);
}

# ------------------------------------------------------------ the first call

sub _first
{
	my ($bench) = @_;
	my @subjects = grep { $bench->has($_) } qw(zklock curator kazoo), grep { /^floor/ } sort keys %Bench::SUBJECT;
	my %runner = map { $_ => $bench->runner($_) } @subjects;
	my $rounds = $bench->rounds(20);
	$bench->say('(g) the first call');
	my $ns = $bench->interleave(
		\@subjects,
		$bench->repetitions,
		sub {
			my ($subject) = @_;
			return numbers($runner{$subject}->ask("first /zklock/bench/first-$subject $rounds", $PATIENCE));
		});
	$_->quit for values %runner;
	my @rows;
	foreach my $subject (@subjects)
	{
		my @all = map { @$_ } @{ $ns->{$subject} };
		my $ratio = ratio($ns->{zklock}, $ns->{$subject});
		push @rows,
		  [
			$subject, map({ microseconds(percentile($_, @all)) } 50, 95, 99),
			sprintf '%.2f (%.2f–%.2f)', @{$ratio}{qw(median min max)}
		  ];
		$bench->raw("(g) first, $subject, ns", $ns->{$subject});
	}
	my $floor = 'floor-' . $bench->client_library;
	my $ratio = ratio($ns->{zklock}, $ns->{$floor});
	$bench->goal("(g) the first call against that of $floor", $ratio && $ratio->{median}, 1.6);
	return $bench->table(
		'(g) The first call of a backend or program: connection, session, and a free lock',
		[ 'subject', 'median µs', '95 %', '99 %', 'zklock in this' ],
		\@rows,
		notes => ['Of zklock it is the first call of a backend that is connected and has the library by session_preload_libraries; the process and its connection to PostgreSQL are there, as the JVM and Python are.']);
}

1;
