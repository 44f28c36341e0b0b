# doc/advisory-drop-in.md, whose SQL t/072 runs, says what becomes of each call: both
# sides exclude the same others at the same times.  And each difference that its tables
# name is one.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Doc;
use Zklock;
use ZooKeeper;

my $page = Doc->new('doc/advisory-drop-in.md');
my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, max_prepared_transactions => 5);

my ($s, $other, $third) = map { zk_session($node) } 1 .. 3;

#
# What becomes of what
#

# Whether another session gets it, exclusively or shared
sub free
{
	my ($kind, $what) = @_;
	my $try = $kind eq 'pg' ? 'pg_try_advisory_xact_lock' : 'zk_try_xact_lock';
	my $seen = $other->value("BEGIN; SELECT $try($what); ROLLBACK; BEGIN; SELECT ${try}_shared($what); ROLLBACK") =~ s/\n/ /r;
	# its releases are on their way then, and a try of another session would meet them
	zk_until(sub { !$other->value("SELECT count(*) FROM zk_lock_queue($what) WHERE pid = $other->{pid}") }, 'its releases') if $kind eq 'zk';
	return $seen;
}

# Inside a transaction, after it, and when all is given back; or, of what gives back,
# before it and after it
sub history
{
	my ($kind, $call) = @_;
	my ($what) = $kind eq 'pg' ? ($call =~ /\((.+)\)$/)[0] // '42' : ($call =~ /\(('[^']*')/)[0] // q{'/shop/42'};
	my $unlock_all = "SELECT ${kind}_" . ($kind eq 'pg' ? 'advisory_' : '') . 'unlock_all()';
	my $lock = ($kind eq 'pg' ? 'pg_advisory_lock' : 'zk_lock') . ($call =~ /shared/ ? '_shared' : '');
	my @seen;
	$s->value($call =~ /unlock/ ? "SELECT $lock($what)" : 'SELECT 1');
	push @seen, free($kind, $what);
	$s->value("BEGIN; SELECT $call");
	push @seen, free($kind, $what);
	$s->value('COMMIT');
	# a release at the end of a transaction is on its way when that returns
	zk_until(sub { free($kind, $what) eq 't t' }, 'a release') if $kind eq 'zk' && $call =~ /xact/;
	push @seen, free($kind, $what);
	$s->query($unlock_all);
	push @seen, free($kind, $what);
	return join ', ', @seen;
}

my ($calls, $others) = (0, 0);
foreach my $row ($page->table('| PostgreSQL | zklock |'))
{
	my ($left, $right) = map { [ /`([^`]*)`/g ] } @$row;
	if ($left->[0] !~ /^pg_\w+\(/) { $others++; next; }
	foreach my $i (0 .. $#$left)
	{
		my $history = history('pg', $left->[$i]);
		is(history('zk', $right->[$i]), $history, "$left->[$i] becomes $right->[$i]: $history");
		$calls++;
	}
}
cmp_ok($calls, '>=', 13, 'all functions are named');
is($others, 3, 'three rows are no functions');

is($s->value(q{SELECT zk_lock('/shop/1'), zk_lock('/shop/2'), zk_unlock_all()}), 't|t|2', 'zk_unlock_all returns how many');
$s->value(q{SELECT zk_lock('/shop/42')});
is($other->query(q{SET lock_timeout = '50ms'; SELECT zk_lock('/shop/42')})->{state}, '55P03', 'lock_timeout counts');
is($other->value(q{RESET lock_timeout; SELECT zk_lock('/shop/42', '2s')}), 'f', 'a timeout returns false');
is($s->value('SELECT path FROM zk_locks') . $other->value(q{SELECT count(*) FROM zk_lock_queue('/shop/42')}), '/shop/421', 'zk_locks and zk_lock_queue show it');
is($s->value('SELECT zk_unlock_all()'), 1, 'it is given back');

# What is the same
foreach my $kind ([qw(pg pg_advisory_lock(7) pg_advisory_unlock(7))], [ 'zk', q{zk_lock('/7')}, q{zk_unlock('/7')} ])
{
	my ($name, $lock, $unlock) = @$kind;
	$s->value("SELECT $lock, $lock");
	$s->value("SELECT $unlock");
	isnt(free($name, $name eq 'pg' ? 7 : q{'/7'}), 't t', "$name: held twice, given back once");
	$s->value("SELECT $unlock");
	my $result = $s->query("SELECT $unlock");
	is($result->{out}, 'f', "$name: an unlock without a lock is false");
	is(scalar @{ $result->{warnings} }, 1, '- with a WARNING');
	$s->value("SELECT $lock");
	$s->value('DISCARD ALL');
	zk_until(sub { free($name, $name eq 'pg' ? 7 : q{'/7'}) eq 't t' }, 'a release') and pass("$name: DISCARD ALL releases");
	$third->value("SELECT $lock");
	$third->quit;
	zk_until(sub { free($name, $name eq 'pg' ? 7 : q{'/7'}) eq 't t' }, 'the end of the session to release');
	$third = zk_session($node);
}
$s->value(q{SET deadlock_timeout = '100ms'; BEGIN; SELECT zk_xact_lock('/cycle')});
$other->value(q{SET deadlock_timeout = '100ms'; BEGIN; SELECT pg_advisory_xact_lock(8)});
$s->send('SELECT pg_advisory_xact_lock(8)');
is($other->query(q{SELECT zk_xact_lock('/cycle')})->{state}, '40P01', 'a deadlock between the two kinds is found');
$other->query('ROLLBACK');
$s->wait;
$s->value('COMMIT; RESET deadlock_timeout');
$other->value('RESET deadlock_timeout');

#
# What is not
#
my %difference = (
	q{`void`, or an error} => sub {
		is($s->value('SELECT pg_advisory_lock(1)'), '', 'void');
		is($s->value(q{SELECT zk_lock('/1')}), 't', 'true');
		is($other->query(q{DO $$BEGIN PERFORM zk_lock('/1', '2s'); END$$})->{state}, '', 'PERFORM ignores false');
		$s->value('SELECT pg_advisory_unlock_all(), zk_unlock_all()');
	},
	q{a session-scope lock outlives a transaction that aborts} => sub {
		$s->query(q{BEGIN; SELECT pg_advisory_lock(1), zk_lock('/1'); ROLLBACK});
		zk_until(sub { free('zk', q{'/1'}) eq 't t' }, 'a release');
		is(free('pg', 1), 'f f', 'the one stays, the other goes');
		$s->value('SELECT pg_advisory_unlock_all()');
	},
	q{everybody may call it} => sub {
		$node->safe_psql('postgres', 'CREATE ROLE nobody LOGIN');
		my $nobody = zk_session($node, user => 'nobody');
		is($nobody->query('SELECT pg_advisory_lock(1)')->{state} . $nobody->query(q{SELECT zk_lock('/1')})->{state}, '42501', 'only the one');
		$nobody->quit;
	},
	q{NULL gives NULL} => sub {
		is($s->value('SELECT pg_try_advisory_lock(NULL) IS NULL'), 't', 'NULL');
		is($s->query('SELECT zk_try_lock(NULL)')->{state}, '22004', 'an error');
	},
	q{`try` passes those who only wait, in some cases} => sub {
		$s->value(q{SELECT zk_lock_shared('/1')});
		$other->send(q{SELECT zk_lock('/1')});
		zk_wait_queued($zk, $other);
		is($third->value(q{SELECT zk_try_lock_shared('/1')}), 'f', 'try returns false when somebody waits');
		$s->value('SELECT zk_unlock_all()');
		$other->wait;
		$other->value('SELECT zk_unlock_all()');
	},
	q{a lock cannot be lost} => sub {
		$s->value(q{CREATE TABLE t (); SELECT zk_lock('/1')});
		$zk->with_client(sub { $_[0]->delete_contenders('/zklock/1') });
		zk_wait_hold($s, 'lost');
		is($s->query('INSERT INTO t DEFAULT VALUES')->{state}, '40001', 'it does not commit');
		$s->query('SELECT zk_unlock_all()');
	},
	q{never fails for want of a network} => sub {
		my $cut_off = zk_session_with($node, hosts => '127.0.0.1:' . ZooKeeper::free_port(), connect_timeout => '100ms');
		is($cut_off->query('SELECT pg_advisory_lock(1)')->{state} . $cut_off->query(q{SELECT zk_lock('/1')})->{state}, '58000', 'only the one');
		$cut_off->quit;
	},
	q{free as soon as COMMIT returns} => sub {
		my $result = $s->query(q{SET zklock.release_timeout = '1s'; BEGIN; SELECT zk_xact_lock('/1'); COMMIT; RESET zklock.release_timeout});
		is($result->{state}, '', 'with release_timeout');
		zk_until(sub { free('zk', q{'/1'}) eq 't t' }, 'a release') if $result->{seconds} > 0.9;    # which may have been over
		is(free('zk', q{'/1'}), 't t', 'it is, too');
	},
	q{works with PREPARE TRANSACTION (transaction scope)} => sub {
		is($s->query(q{BEGIN; SELECT pg_advisory_xact_lock(1); PREPARE TRANSACTION 'p'})->{state}, '', 'it does');
		is(free('pg', 1), 'f f', '- and keeps the lock');
		$s->value(q{ROLLBACK PREPARED 'p'});
		is($s->query(q{BEGIN; SELECT zk_xact_lock('/1'); PREPARE TRANSACTION 'p'})->{state}, '0A000', 'refused');
		$s->query('ROLLBACK');
	},
	q{microseconds} => undef);    # dev/bench

my @differences = map { $_->[0] } map { $page->table($_) } '| `pg_advisory_lock` | zklock |', '| `pg_advisory_lock` | `zk_lock` |';
is(join("\n", sort @differences), join("\n", sort keys %difference), 'each difference has a test');
foreach my $name (grep { $difference{$_} } @differences) { subtest $name => $difference{$name}; }

$_->quit for $s, $other, $third;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($node);
done_testing();
