# TLS to ZooKeeper, with the lines of doc/security.md on both sides: which connections are
# accepted and which are not, and that everything works as without it.

use FindBin;
use lib "$FindBin::RealBin/lib";

use Fcntl qw(F_WRLCK);
use File::Copy ();
use IO::Socket::INET;

use Doc;
use Tests;
use Tls;

my $page = Doc->new('doc/security.md');
my %lines = $page->settings(1);
my %zoo_cfg = $page->take('text', 1)->{code} =~ /^(\S+?)=(\S+)$/mg;

my $certificates = Tls->new;
my $dir = $certificates->dir;
my $log = "$dir/make.log";

$certificates->authority($_) for qw(ca other_ca);
$certificates->certificate(@$_)
  for [ 'server', 'ca', 'DNS:localhost,IP:127.0.0.1' ],
  [ 'client', 'ca', 'DNS:client' ],
  [ 'stranger', 'other_ca', 'DNS:client' ],
  [ 'elsewhere', 'other_ca', 'DNS:elsewhere.example,IP:127.0.0.2' ];

# ---------------------------------------------------------------------- servers

# A server with a TLS port in addition to its plain one, as on the page, but for names
sub secure_server
{
	my ($name, $authority, %config) = @_;
	my $port = ZooKeeper::free_port();
	my $zk = ZooKeeper->new(
		config => {
			%zoo_cfg,
			secureClientPort => $port,
			secureClientPortAddress => '127.0.0.1',
			'ssl.keyStore.location' => "$dir/$name.pem",
			'ssl.trustStore.location' => "$dir/$authority.pem",
			%config
		})->start;
	return ($zk, $port);
}

# Netty, which the server's jar names only in part
local $ZooKeeper::CLASSPATH = join ':', $ZooKeeper::CLASSPATH, map { "/usr/share/java/netty-$_.jar" } qw(codec resolver);

my ($zk, $port) = secure_server('server', 'ca');
$zk->create('/zklock');    # else that of a session with acl = creator may be the only one
my ($other, $other_port) = secure_server('elsewhere', 'other_ca', 'ssl.clientAuth' => 'none');

# Accepts connections, but sends nothing
my $silent = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 100) or die "socket: $!";
my $silent_port = $silent->sockport;

my %file = (ca => "$dir/ca.pem", cert => "$dir/client.crt", key => "$dir/client.key");
my %tls = (%lines, 'zklock.hosts' => "localhost:$port", map { ("zklock.tls_${_}_file" => $file{$_}) } keys %file);
# Debian's localhost, wherever this runs; the servers listen on one of its addresses
my ($wrapper) = glob '/usr/lib/*/libnss_wrapper.so';
$certificates->write('hosts', "127.0.0.1 localhost\n", "::1 localhost\n");
my $node = do {
	local @ENV{ $wrapper ? qw(LD_PRELOAD NSS_WRAPPER_HOSTS) : () } = ($wrapper, "$dir/hosts") if $wrapper;
	zk_cluster('main', '', %tls, 'zklock.connect_timeout' => '20s');
};
my $admin = zk_session($node);

my ($probe) = $admin->query(q{SELECT zk_try_lock('/probe') AND zk_unlock('/probe')});
if ($probe->{state} eq '0A000')
{
	plan skip_all => 'TLS is not supported by this build';
}
is($probe->{out}, 't', 'a lock over TLS');
is_deeply([ sort keys %lines ], [ sort keys %tls ], 'the lines of the page name these files');

# A new session with other settings (named without "zklock.") that takes a lock
sub with
{
	my (%setting) = @_;
	my $s = zk_session_with($node, %setting);
	return ($s, $s->query(q{SELECT zk_lock('/with'), zk_unlock('/with')}));
}

# One test: that lock is had
sub accepted
{
	my ($name, %setting) = @_;
	my (undef, $result) = with(%setting);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($result->{out}, 't|t', $name) || diag($result->{err});
}

# Three tests: it is refused, and says why.  Tries for no longer than a slow machine
# takes to say that; returns the session and the result.
sub refused
{
	my ($name, $state, $detail, %setting) = @_;
	my ($s, $result);
	foreach my $seconds (1, 5, 20)
	{
		($s, $result) = with(connect_timeout => "${seconds}s", %setting);
		# of localhost's addresses, the one where nobody listens is the first to answer
		last if $setting{connect_timeout} || $result->{detail} !~ /in time|timed out|failed: Connection refused\.$/;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_refused($result, $state, $detail, $name);
	return ($s, $result);
}

sub is_refused
{
	my ($result, $state, $detail, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($result->{state}, $state, "$name: $state");
	like($result->{detail}, $detail, '- says why');
	unlike($result->{err}, qr/\Q$dir\E/, '- names no file');
	return;
}

# ------------------------------------------------------------------ as without

subtest 'locks' => sub {
	my ($a, $b) = map { zk_session($node) } 1, 2;
	is($a->value(q{SELECT zk_lock('/a')}), 't', 'taken');
	is($b->value(q{SELECT zk_try_lock('/a')}), 'f', 'seen by another');
	$b->send(q{SELECT zk_lock('/a')});
	zk_wait_queued($zk, $b);
	$a->value(q{SELECT zk_unlock('/a')});
	is($b->wait->{out}, 't', 'handed over');
	is($b->value('SELECT server, state FROM zk_session'), "127.0.0.1:$port|connected", 'zk_session names the server');
	my $id = $b->value('SELECT session_id FROM zk_session');
	$b->quit;
	my $begin = time;
	zk_until(sub { !grep { $_ eq $id } $zk->sessions }, 'the session ends');
	in_time(time - $begin, 8, 'with a goodbye, before ZooKeeper misses it');
};

# OpenSSL shuts itself down before PostgreSQL's own handler runs.
subtest 'a backend that calls exit()' => sub {
	my $library = zk_library('extension');
	$admin->value("CREATE FUNCTION leave(boolean) RETURNS void LANGUAGE c AS '$library'");
	my $s = zk_session($node);
	$s->value('SELECT leave(false)');    # it tells the status that remains when we are through
	$s->value(q{SET zklock.cancel_on_loss = terminate; SELECT zk_lock('/leave')});
	my $begin = time;
	$s->send('SELECT leave(true)');
	zk_until(sub { !grep { m{/leave/} } zk_locks_left($zk) }, 'its lock to be free');
	in_time(time - $begin, 8, 'with a goodbye, before ZooKeeper misses it');
	zk_until(sub { slurp_file($node->logfile) =~ /it exits with status (\d+)/ }, 'it to be gone');
	is((slurp_file($node->logfile) =~ /it exits with status (\d+)/)[0], 0, 'exit() is called once');
	unlike(slurp_file($node->logfile), qr/terminating connection due to .*loss of lock/, 'no loss is told');
	zk_no_crash($node);
};

accepted('named by an address that the certificate has', hosts => "127.0.0.1:$port");
accepted('behind a server that is silent', hosts => "127.0.0.1:$silent_port,localhost:$port");

# The certificate is our identity: ZooKeeper calls that scheme x509
subtest 'nodes of our own' => sub {
	my ($s) = with(acl => 'creator');
	is($s->query(q{SELECT zk_lock('/mine')})->{out}, 't', 'zklock.acl = creator without zklock.auth_file');
	ok(!eval { $zk->children('/zklock/mine'); 1 }, 'others cannot look');
	like($@, qr/NOAUTH/, '- as ZooKeeper says');
	my ($other) = with();
	is($other->query(q{SELECT zk_try_lock('/mine')})->{out}, 'f', 'who has the same certificate can');
	my ($anonymous, $result) =
	  with(acl => 'creator', hosts => "localhost:$other_port", tls_ca_file => "$dir/other_ca.pem",
		tls_verify_host => 'off', tls_cert_file => '', tls_key_file => '');
	is($result->{state}, '55000', 'without certificate and file there are no credentials');
	$s->value('SELECT zk_unlock_all()');
};

# A session that does nothing meanwhile: see "time passes"
my $idle = zk_session($node, options => '-c zklock.session_timeout=9s');
$idle->value(q{SELECT zk_lock('/idle')});
my ($idle_since, $idle_cpu) = (time, zk_cpu_seconds($idle->pid));

# Much data at once: answers of more than one TLS record, and several answers in
# one record, of which poll() no longer sees the rest
subtest 'much data' => sub {
	my $s = zk_session($node);
	$s->value(q{SELECT zk_lock('/long'), zk_unlock('/long')});
	$zk->with_client(
		sub {
			my ($client) = @_;
			$client->create('/zklock/long', mode => 'persistent') unless $client->exists('/zklock/long');
			$client->create('/zklock/long/' . 'x' x 150 . $_, mode => 'persistent') for 1 .. 1000;
		});
	is($s->value(q{SELECT zk_try_lock('/long')}), 't', 'a directory of 1000 children');
	my $begin = time;
	is($s->value(q{SELECT count(zk_unlock('/long')) + count(zk_lock('/long')) FROM generate_series(1, 20)}),
		40, '- twenty times');
	in_time(time - $begin, 20, '- without stalls');
	is( $s->value(q{SELECT zk_lock_many(array_agg('/many/' || n)) FROM generate_series(1, 400) n}),
		't', '400 locks in one request');
	is($s->value('SELECT zk_unlock_all()'), 401, '- and given back');

};

# ---------------------------------------------------------------- what is refused

subtest 'servers that are not trusted' => sub {
	my %anonymous = (tls_cert_file => '', tls_key_file => '');
	my $hosts = "localhost:$other_port";

	my %theirs = (hosts => $hosts, tls_ca_file => "$dir/other_ca.pem", %anonymous);
	my $not = 'certificate was not accepted';

	# what each of several says, the most telling first; it takes all of its time
	my $nobody = '127.0.0.1:' . ZooKeeper::free_port();
	my $three = zk_session_with($node, hosts => "$nobody,127.0.0.1:$other_port,127.0.0.1:$silent_port", connect_timeout => '10s');
	$three->send(q{SELECT zk_lock('/with')});

	refused('another authority', '58000', qr/$not: .*(?:issuer|self.signed|verify)/, hosts => $hosts);
	refused('another name', '58000', qr/$not: hostname mismatch/i, %theirs);
	refused('another address', '58000', qr/$not: IP address mismatch/i, %theirs, hosts => "127.0.0.1:$other_port");
	accepted('but if the name does not matter', %theirs, tls_verify_host => 'off');
	refused('the authority always does', '58000', qr/$not/, hosts => $hosts, tls_verify_host => 'off', %anonymous);

	my $result = $three->wait;
	is_refused($result, '58000',
		qr/^The last attempts failed: 127\.0\.0\.1:$other_port: the server's $not: [^;]+; 127\.0\.0\.1:$silent_port: connection attempt timed out; \Q$nobody\E: Connection refused\.$/,
		'three servers');
	like($result->{hint}, qr/zklock\.tls_\*/, '- the hint is about the first');
};

subtest 'we are not trusted' => sub {
	my $why = qr/TLS|server closed the connection|reset/;
	refused('no certificate', '58000', $why, tls_cert_file => '', tls_key_file => '');
	refused('one of another authority', '58000', $why, tls_cert_file => "$dir/stranger.crt", tls_key_file => "$dir/stranger.key");
};

subtest 'time passes' => sub {
	zk_until(sub { time > $idle_since + 12 }, 'some heartbeats');
	cmp_ok((zk_cpu_seconds($idle->pid) - $idle_cpu) / (time - $idle_since), '<', 0.03, 'no spin');
	zk_wait_hold($idle, 'held');    # in doubt, if the machine has stood still just now
	is($idle->value('SELECT losses FROM zk_session'), 0, 'heartbeats keep the lock');
	is($idle->value('SELECT reconnections FROM zk_session'), 0, '- on one connection');
	$idle->quit;
};

# Each certificate of the chain needs a list, and must not be on it.
subtest 'revoked certificates' => sub {
	$certificates->certificate('between', 'ca', 'DNS:between', 'basicConstraints=critical,CA:TRUE');
	$certificates->certificate('deep', 'between', 'DNS:localhost,IP:127.0.0.1');
	$certificates->write('deep.pem', map { $certificates->read($_) } 'deep.pem', 'between.crt');
	my $door = $certificates->door($zk, 'deep');
	$certificates->revocations('good.crl', 'ca', 'client');
	$certificates->revocations('server.crl', 'ca', 'server');
	$certificates->revocations('between.crl', 'ca', 'between');
	$certificates->revocations('good_deep.crl', 'between');
	$certificates->revocations('other.crl', 'other_ca');
	$certificates->revocations('old.crl', 'ca',
		[qw(-crl_lastupdate 20250101000000Z -crl_nextupdate 20250102000000Z)]);
	my $lists = sub {
		my $name = join '+', @_;
		$certificates->write($name, map { $certificates->read($_) } @_);
		return (tls_crl_file => "$dir/$name");
	};
	my ($no_list, $revoked) = (qr/certificate was not accepted: unable to get certificate CRL/, qr/certificate was not accepted: certificate revoked/);
	accepted('a list without the server', $lists->('good.crl'));
	accepted('- among others', $lists->('other.crl', 'good.crl'));
	refused('a list with the server', '58000', $revoked, $lists->('server.crl'));
	refused('no list of its authority', '58000', $no_list, $lists->('other.crl'));
	refused('a list that is too old', '58000', qr/certificate was not accepted: CRL has expired/, $lists->('old.crl'));

	my %deep = (hosts => $door->hosts);
	accepted('lists of both authorities of a chain', %deep, $lists->('good.crl', 'good_deep.crl'));
	refused('- of one only', '58000', $no_list, %deep, $lists->('good.crl'));
	refused('an authority in between is revoked', '58000', $revoked, %deep, $lists->('between.crl', 'good_deep.crl'));
	$door->close;
};

subtest 'ports' => sub {
	my ($s, $result) = refused('TLS to a plain port', '58000', qr/TLS handshake/, hosts => $zk->hosts);
	like($result->{hint}, qr/zklock\.tls_\*.* ports/, '- with a hint');
	($s, $result) = refused('no TLS to a port that wants it', '58000', qr/./, map { ("tls_${_}_file" => '') } qw(ca cert key));
	like($result->{hint}, qr/TLS port|firewall/, '- with a hint');
	refused('nobody', '58000', qr/Connection refused/, hosts => 'localhost:' . ZooKeeper::free_port(), connect_timeout => '1s');

	($s, $result) = refused('a silent server', '58000', qr/timed out|in time/, hosts => "localhost:$silent_port", connect_timeout => '3s');
	in_time($result->{seconds}, 15, '- in time');
	cmp_ok(zk_cpu_seconds($s->pid), '<', 0.5, '- costs nothing');

	$s = zk_session($node, options => "-c zklock.hosts=localhost:$silent_port -c zklock.connect_timeout=1min");
	$s->send(q{SELECT zk_lock('/never')});
	zk_wait_waiting($admin, $s);
	$admin->value('SELECT pg_cancel_backend(' . $s->pid . ')');
	is($s->wait->{state}, '57014', '- can be canceled');
};

# ---------------------------------------------------------------------- the files

subtest 'files' => sub {
	my $reason = sub { my ($detail, $name, @setting) = @_; return refused($name, 'F0000', $detail, @setting); };
	$certificates->copy('client.key', 'open.key');
	chmod 0644, "$dir/open.key";
	$certificates->openssl('rsa -aes256 -passout pass:secret -in client.key -out locked.key');
	chmod 0600, "$dir/locked.key";
	$certificates->write('nothing.pem', "nothing\n");

	$reason->(qr/tls_key_file has group or world access/, 'a key that others can read', tls_key_file => "$dir/open.key");
	$reason->(qr/tls_key_file is protected by a passphrase/, 'a key with a passphrase', tls_key_file => "$dir/locked.key");
	$reason->(qr/tls_key_file holds no key of that certificate/, "another one's key", tls_key_file => "$dir/stranger.key");
	$reason->(qr/tls_key_file could not be read: No such file/, 'no key', tls_key_file => "$dir/none");
	$reason->(qr/tls_key_file is not a regular file/, 'a directory', tls_key_file => $dir);
	$reason->(qr/tls_cert_file could not be read: No such file/, 'no certificate', tls_cert_file => "$dir/none");
	$reason->(qr/tls_cert_file holds no certificate/, 'a file without one', tls_cert_file => "$dir/nothing.pem");
	$reason->(qr/tls_ca_file could not be read: No such file/, 'no authority', tls_ca_file => "$dir/none");
	$reason->(qr/tls_ca_file holds no certificates/, 'a file without one', tls_ca_file => "$dir/nothing.pem");
	$reason->(qr/tls_crl_file could not be read: No such file/, 'no revocations', tls_crl_file => "$dir/none");
	$reason->(qr/tls_crl_file holds no revocation lists/, 'a file without a list', tls_crl_file => "$dir/nothing.pem");
	$reason->(qr/tls_crl_file holds no revocation lists/, 'a file of certificates', tls_crl_file => "$dir/ca.pem");
	$reason->(qr/cannot be verified/, 'a certificate but no authority', tls_ca_file => '');
	$reason->(qr/cannot be verified/, 'revocations but no authority',
		tls_crl_file => "$dir/good.crl", map { ("tls_${_}_file" => '') } qw(ca cert key));
	$reason->(qr/^/, 'a certificate without a key', tls_key_file => '');

	File::Copy::copy("$dir/ca.pem", $node->data_dir . '/ca.pem');
	accepted("a path below the server's data directory", tls_ca_file => 'ca.pem');
};

subtest 'no descriptor is left for the files' => sub {
	my $s = zk_session($node);
	$s->query(q{SET zklock.tls_verify_host = on; SELECT zk_unlock('/descriptors')});    # what it reads of the catalogs
	my $before = zk_soft_limit($s->pid, 'nofile');
	ok(zk_set_soft_limit($s->pid, 'nofile', zk_free_descriptor($s->pid)), 'a limit');
	is_refused($s->query(q{SELECT zk_try_lock('/descriptors')}), '53000', qr/could not be read: Too many open files/, 'too many open files');
	ok(zk_set_soft_limit($s->pid, 'nofile', $before), 'no longer');
	is($s->value(q{SELECT zk_try_lock('/descriptors')}), 't', 'the next call works');
};

subtest 'a change of settings' => sub {
	my $s = zk_session($node);
	my $id = $s->value(q{SELECT zk_lock('/change'); SELECT session_id FROM zk_session});
	my $again = q{SELECT zk_lock('/change'); SELECT session_id FROM zk_session};
	is($s->value("SET zklock.tls_verify_host = off; $again"), $id, 'has no effect while a lock is held');
	isnt($s->value("SELECT zk_unlock_all(); $again") =~ s/.*?\n//r, $id, '- only after that');
};

# ------------------------------------------------------------- the server goes away

# Certificates expire before sessions do, and are revoked meanwhile: the files' contents at
# the time of the connection count.
subtest 'reconnection' => sub {
	my $install = sub {
		my ($name, $revocations) = @_;
		$certificates->copy("$name.$_", "mine.$_") for qw(crt key);
		$certificates->copy($revocations, 'mine.crl');
	};
	$install->('client', 'good.crl');
	my ($s, $distrusts) = map { zk_session_with($node, session_timeout => '40s', operation_timeout => '3s', %$_) }
	  { tls_cert_file => "$dir/mine.crt", tls_key_file => "$dir/mine.key" }, { tls_crl_file => "$dir/mine.crl" };
	$s->value(q{SELECT zk_lock('/stays')});
	$distrusts->value(q{SELECT zk_lock('/revoked')});
	my $pid = $s->pid;
	my $id = $s->value('SELECT session_id FROM zk_session');
	my ($descriptors, $threads) = (zk_descriptors($pid), zk_threads($pid));

	$install->('stranger', 'server.crl');
	is($distrusts->value(q{SELECT zk_lock('/revoked')}), 't', 'a connection that is there stays');
	$zk->kill9;
	zk_wait_hold($_, 'suspect') for $s, $distrusts;
	my $cpu = zk_cpu_seconds($pid);
	my $begin = time;
	$zk->start;
	is($s->query(q{SELECT zk_lock('/another')})->{state}, '58030', 'refused with a certificate that is not good any more');
	cmp_ok(zk_cpu_seconds($pid) - $cpu, '<', 0.3 * (time - $begin), '- without a spin');
	my $result;
	zk_until(
		sub {
			$result = $distrusts->query(q{SELECT zk_lock('/others')});
			return $result->{detail} =~ /certificate/;
		},
		'an attempt after the start');
	is($result->{state}, '58030', 'a server that is revoked is not connected to');
	like($result->{detail}, qr/certificate revoked/, '- and it says why');
	$install->('client', 'good.crl');
	zk_wait_hold($_, 'held') for $s, $distrusts;
	is($s->value('SELECT session_id FROM zk_session'), $id, 'the same session, with the renewed one');
	is($s->value(q{SELECT zk_try_lock('/another')}), 't', 'and it works');
	zk_until(sub { zk_descriptors($pid) == $descriptors }, 'no descriptor to be left of the connections between');
	zk_until(sub { zk_threads($pid) == $threads }, 'no thread to be left of them');
};

# As on a file server that does not answer: whoever opens a file waits until nobody has a
# lease on it (fcntl(2)), which this process has.
subtest 'a file that cannot be read in time' => sub {
	my $file = "$dir/slow.pem";
	$certificates->copy('ca.pem', 'slow.pem');
	# one that does not answer, too, so that no attempt takes long
	my $s = zk_session_with($node, hosts => "localhost:$port,127.0.0.1:$silent_port", tls_ca_file => $file,
		session_timeout => '30s', operation_timeout => '20s');
	is($s->value(q{SELECT zk_lock('/slow')}), 't', 'a lock');
	my ($descriptors, $threads) = (zk_descriptors($s->pid), zk_threads($s->pid));
	my $id = $s->value('SELECT session_id FROM zk_session');

	my $asked = 0;
	local $SIG{IO} = sub { $asked = 1 };
	open my $lease, '+>>', $file or die "$file: $!";
	print $lease "\n";    # it is to be read again
	$lease->flush;
	fcntl $lease, 1024, F_WRLCK or die "F_SETLEASE: $!";
	$zk->restart;
	zk_until(sub { $asked }, 'the file to be opened');
	$zk->suspend;    # or the session may be back before the cancel
	is($s->value('SELECT state FROM zk_session'), 'suspended', 'a look takes no longer than ever');
	$s->send(q{SELECT zk_lock('/slow/too')});
	zk_wait_waiting($admin, $s);
	is($s->cancel($admin)->{state}, '57014', 'nor does a cancel');
	$zk->resume;
	zk_wait_hold($s, 'held', '/slow');
	is($s->value('SELECT session_id FROM zk_session'), $id, 'the session is back, with what the file held before');

	cmp_ok(zk_threads($s->pid), '>', $threads, 'one thread still reads');
	close $lease;
	zk_until(sub { zk_threads($s->pid) == $threads }, 'it to end');
	zk_until(sub { zk_descriptors($s->pid) == $descriptors }, 'its descriptors to be closed');
	$s->quit;
};

subtest 'the end of a backend whose server is silent' => sub {
	my @s = map { zk_session($node) } 1 .. 3;
	$_->value(q{SELECT zk_lock('/end/' || pg_backend_pid())}) for @s;
	$zk->suspend;
	my $begin = time;
	$_->quit for @s[ 0, 1 ];
	$admin->value('SELECT pg_terminate_backend(' . $s[2]->pid . ')');
	ok(zk_until(sub { !kill 0, $s[2]->pid }, 'it ends'), 'it ends');
	in_time(time - $begin, 20, '- within its bound');
	$zk->resume;
};

# ------------------------------------------------------------------ built without

subtest 'a zklock without TLS' => sub {
	my $source = "$dir/without";
	mkdir $source;
	# what knows nothing of TLS is there already
	system("cp -rp $FindBin::RealBin/../Makefile $FindBin::RealBin/../src $FindBin::RealBin/../zklock.control $FindBin::RealBin/../zklock--*.sql $source"
		  . " && cd $source && rm -f \$(grep -lrE 'HAVE_TLS|tls(_settings)?\\.h|zks_(wire|tls)_' src --include='*.c' | sed 's/c\$/o/')"
		  . " && make -s with_llvm=no with_tls=no COPT=-O0 zklock.so >>'$log' 2>&1") == 0
	  or die slurp_file($log);
	my $connect = sub {
		my (%tls) = (ca => '', cert => '', key => '', @_);
		return zk_session($node, options => join ' ', '-c session_preload_libraries=', '-c zklock.hosts=' . $zk->hosts,
			map { "-c zklock.tls_${_}_file=$tls{$_}" } sort keys %tls);
	};
	my $s = $connect->();
	$s->value("CREATE FUNCTION try(text) RETURNS boolean AS '$source/zklock', 'zk_lock' LANGUAGE C");
	is($s->value(q{SELECT try('/plain')}), 't', 'works in clear');
	foreach my $what (qw(ca cert key crl))
	{
		my $r = $connect->($what => "$dir/ca.pem")->query(q{SELECT try('/plain')});
		is($r->{state}, '0A000', "with zklock.tls_${what}_file not at all");
		like($r->{message}, qr/TLS is not supported by this build/, '- and says why');
	}
};

$zk->delete_tree('/zklock/long');
unlike(slurp_file($node->logfile), qr/PRIVATE KEY|\Q$dir\E\/client\.key.*denied/, 'no secret in the log');
zk_end($zk, $node);
