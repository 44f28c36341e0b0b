
# A create that a server could not pass on, since its link to the leader was silent,
# is carried out after the quorum has denied the node, and after later requests of the
# same session, which was with another server meanwhile, and is back.  The node is
# deleted again.  The mark of a claim that comes so is refused.

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Temp;

use Torture::Strike;
use Tests;

# The links are silent for longer than servers bear it by default.
my $zk = ZooKeeper->ensemble(3, links => 1, sync_limit => 100);
my $leader = $zk->leader;
my ($first, $second) = map { { server => $_, proxy => ZkProxy->new($_) } } $zk->followers;

# The leader's thread that takes requests in, one after the other
my $tools = File::Temp->newdir;
my %impossible = Torture::Strike::build($tools->dirname);
sub hold_requests { return Torture::Strike::hold_thread($leader->pid, 'ProcessThread'); }
my ($let_go, $why) = $impossible{keeper_stop} ? (undef, $impossible{keeper_stop}) : hold_requests();
plan skip_all => "no thread of ZooKeeper's can be stopped: $why" unless $let_go;
$let_go->();

my $node = zk_cluster('main', $zk,
	'zklock.hosts' => join(',', map { $_->{proxy}->hosts } $first, $second),
	'zklock.session_timeout' => '15s');    # in which it must move, on a slow machine
my $admin = zk_session($node);

my $FOUND = q{SELECT extract(day FROM period), state FROM zk_last_claim};

# The session leaves the one server for the other; it is asked for this between the two, and then
# for that.
sub move
{
	my ($from, $to, $between, $then) = @_;
	$to->{proxy}->clear_log;
	$from->{proxy}->cut_off;
	$between->() if $between;
	$to->{proxy}->pass;
	$then->() if $then;
	zk_until(sub { passed($to, '>', 'connect') }, 'the session to come');
	return;
}

sub passed
{
	my ($at, $way, $op) = @_;
	return scalar grep { $_->[1] eq $way && $_->[2] eq $op } $at->{proxy}->log;
}

sub nodes { return grep { m{^/zklock/l/.*-lock-\d+$} } $leader->tree('/zklock'); }

# A session at the first server
sub at_first
{
	my (%setting) = @_;
	$second->{proxy}->cut_off;
	$first->{proxy}->pass;
	return zk_session_with($node, %setting);
}

# It asks for what the first server cannot pass on, gives up, and moves to the second one.
sub give_up
{
	my ($session, $sql, $op, @asked) = @_;
	$first->{proxy}->clear_log;
	$zk->cut($first->{server}, $leader);
	$session->send($sql);
	zk_until(sub { passed($first, '>', $op) }, "the $op");
	is($session->cancel($admin)->{state}, '57014', "$sql: given up");
	return move($first, $second, @asked);
}

# The leader hears of the request and of the session's return before it looks whether
# the request comes from where the session is.
sub come_back
{
	my $let_go = hold_requests();
	move($second, $first);
	$zk->mend;
	zk_until(sub { passed($first, '<', 'connect') }, 'the session to be back');
	return $let_go->();
}

subtest 'the node of a lock, or of several' => sub {
	foreach ([ q{SELECT zk_lock('/l/1')}, 'create2' ], [ q{SELECT zk_lock_many('{/l/2,/l/3}')}, 'multi' ])
	{
		my ($sql, $op) = @$_;
		my $session = at_first();
		$session->value(q{SELECT zk_lock_many('{/l/1,/l/2,/l/3}'), zk_unlock_all()});    # makes the directories
		give_up($session, $sql, $op);
		zk_until(sub { passed($second, '<', 'getChildren') >= 2 }, 'it to look twice');
		is_deeply([nodes()], [], '- the quorum denies it');
		come_back();
		my $late = zk_until(sub { nodes() }, 'the node');
		ok(zk_until(sub { !nodes() }, 'the node to be deleted', 20), '- created late, it is deleted');
		zk_locks_again($session, '- and the session goes on');
	}
};

# The mark of a claim comes as late, under a lock that stays: it was taken back before
# anybody knew of it; or it comes after it was read, and before that is taken back.
sub mark_comes_late
{
	my ($path, $behind) = @_;
	my $session = at_first();
	my $claim = "SELECT zk_claim('$path', '2001-01-02')";
	is($session->value(qq{SELECT zk_claim('$path', '2001-01-01'), zk_lock('$path'); BEGIN; $claim}), "t|t\nt", 'a claim, and its lock');
	$second->{proxy}->hold_request('setData') if $behind;
	give_up($session, 'COMMIT', 'multi');
	if ($behind) { $second->{proxy}->wait_held; }
	else { zk_until(sub { passed($second, '<', 'setData') }, 'it to take the mark back'); }
	come_back();

	# which the leader gets behind the mark
	zk_locks_again($session, '- and the session goes on');
	ok(zk_until(sub { $session->value("$FOUND('$path')") eq '1|done' }, 'the mark to be taken back', 20), '- the mark has come, and is taken back') if $behind;
	is($session->value("$FOUND('$path')"), '1|done', '- the mark does not come any more');
	is($session->value($claim), 't', '- and the period is to be had');
	return;
}

subtest 'the mark of a claim' => sub { mark_comes_late('/l/1', 0) };
subtest 'the mark of a claim, behind a look at it' => sub { mark_comes_late('/l/4', 1) };

# A setting has changed meanwhile, so that the next call of the backend begins another
# session.  For ZooKeeper the old one lives on, with the node of the lock, where it knows no other
# server than the first.
my $both = join ',', map { $_->{proxy}->hosts } $first, $second;
foreach (
	[ 'other servers', { hosts => $first->{proxy} }, 'RESET zklock.hosts', "SET zklock.hosts = '$both'" ],
	[ 'another session timeout', {}, 'RESET zklock.session_timeout', q{SET zklock.session_timeout = '16s'} ],
	[ 'DISCARD ALL', {}, q{SET zklock.session_timeout = '16s'}, 'DISCARD ALL' ])
{
	my ($why, $setting, $before, $change) = @$_;
	my $can_be_closed = !%$setting;    # by the other server
	subtest "the mark of a claim, from a session that was replaced: $why" => sub {
		my $session = at_first(%$setting);
		my $path = '/l/' . $why =~ s/ .*//r;
		my $claim = qq{SELECT zk_claim('$path', '2001-01-02')};
		is($session->value(qq{$before; SELECT zk_claim('$path', '2001-01-01'); BEGIN; $claim}), "t\nt", 'a claim');
		my $id = $session->value('SELECT session_id FROM zk_session');
		give_up(
			$session, 'COMMIT', 'multi',
			sub { is($session->query("$change; SET zklock.connect_timeout = '100ms'; SELECT zk_lock('/works')")->{state}, '58000', '- the session is replaced, without a connection'); },
			sub { is($session->value(q{RESET zklock.connect_timeout; SELECT zk_lock('/works'), zk_unlock('/works')}), 't|t', '- and then with one'); });
		isnt($session->value('SELECT session_id FROM zk_session'), $id, '- and in another session');
		zk_until(sub { passed($second, '<', 'getData') }, 'which looks for the mark');
		zk_locks_again($session, '- and goes on');
		my $lives = sub {
			return grep { $_ eq $id } $leader->sessions;
		};
		if ($can_be_closed) { ok(zk_until(sub { !$lives->() }, 'the end of the old one'), '- and the old one is closed'); }
		else { ok($lives->(), '- while the old one lives'); }

		# what comes by this server now, comes behind the mark
		$zk->mend;
		$first->{server}->with_client(sub { $_[0]->sync('/') });
		is($session->value("$FOUND('$path')"), '1|done', '- the mark does not come any more');
		$leader->end_session($id) if !$can_be_closed;
		is($session->value($claim), 't', '- and the period is to be had');
	};
}
zk_end($zk, $node);
