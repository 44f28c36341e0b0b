# doc/security.md, on a cluster whose nodes are closed, with the credentials
# that the page prints, and what the page says about two roles.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Doc;
use Tls;
use Zklock;
use ZooKeeper;

my $page = Doc->new('doc/security.md');
my %setting = $page->settings;
my $zk = ZooKeeper->new(container_check => 1000)->start;
my $node = zk_cluster('main', $zk);

sub write_credentials
{
	my ($name, $text, $of) = @_;
	my $file = ($of // $node)->data_dir . "/$name";
	append_to_file($file, $text);
	chmod 0600, $file or die "$file: $!";
	return;
}

write_credentials($setting{'zklock.auth_file'}, $page->take('text')->{code});
$node->append_conf('postgresql.conf', "$_ = '$setting{$_}'") for sort keys %setting;
$node->reload;
my $other = zk_cluster('other', $zk, 'zklock.root' => '/billing');    # without the credentials
zk_until(sub { $node->safe_psql('postgres', 'SHOW zklock.acl') eq 'creator' }, 'the settings');

$page->run($node, until => '## What a node says');
my $stranger = zk_session($other);
my $denied = $stranger->query(q{SELECT zk_try_lock('/nightly')});
is($denied->{state}, '42501', 'who has not the credentials cannot take such a lock');
like($denied->{hint}, qr/zklock\.auth_file/, '- and is told of the setting');
my $s = zk_session($node, options => '-c zklock.root=/billing');
my $billings = $s->value(q{SELECT node FROM zk_lock_queue('/nightly')});
$s->quit;
is($stranger->query("SELECT zk_lock_break('/nightly', '$billings')")->{state}, '42501', '- nor break it');

$page->run($node);

# TLS, with the lines of the page, except the names of files and hosts
{
	my %tls = $page->settings(1);
	my %config = $page->take('text', 1)->{code} =~ /^(\S+?)=(\S+)$/mg;
	my $certificates = Tls->new;
	$certificates->authority('ca');
	$certificates->certificate('server', 'ca', 'DNS:localhost,IP:127.0.0.1');
	$certificates->certificate('client', 'ca', 'DNS:client');
	my $port = $config{secureClientPort} = ZooKeeper::free_port();
	$config{'ssl.keyStore.location'} = $certificates->file('server.pem');
	$config{'ssl.trustStore.location'} = $certificates->file('ca.pem');

	# Netty, which the server's jar names only in part
	local $ZooKeeper::CLASSPATH = join ':', $ZooKeeper::CLASSPATH, map { "/usr/share/java/netty-$_.jar" } qw(codec resolver);
	my $secure_zk = ZooKeeper->new(config => { secureClientPortAddress => '127.0.0.1', %config })->start;
	my $secure = zk_cluster('secure', $zk, %tls, 'zklock.hosts' => "localhost:$port");
	my %file = (ca => 'ca.pem', cert => 'client.crt', key => 'client.key');
	write_credentials($tls{"zklock.tls_${_}_file"}, $certificates->read($file{$_}), $secure) for sort keys %file;

	my $s = zk_session($secure);
	my $r = $s->query(q{SELECT zk_lock('/secure'), server FROM zk_session});
	SKIP:
	{
		is($r->{state}, '0A000', 'TLS is not there'), skip 'TLS is not supported by this build', 2 if $r->{state} eq '0A000';
		is($r->{out}, 't|', 'a lock over TLS') or diag($r->{err});
		is($s->value(q{SELECT zk_unlock('/secure'), server FROM zk_session}), "t|127.0.0.1:$port", '- and not another way');
		my $closed = zk_session($secure, options => '-c zklock.acl=creator');
		is($closed->value(q{SELECT zk_lock('/secure/closed')}), 't', 'the certificate is a credential');
		$closed->quit;
	}
	$s->quit;
	zk_no_crash($secure);
	$secure->stop;
	$secure_zk->stop;
}
$page->all_was_run;

# roles with credentials of their own, and roots that no longer exist
zk_until(sub { !grep { m{^/(?:billing|shop)} } $zk->tree('/') }, 'the roots to go');
write_credentials("$_.auth", "digest:$_:$_\n") for qw(billing shop);
my ($billing, $shop) = map { zk_session(Doc::Role->new($node, $_)) } qw(billing shop);
is($_->value(q{SELECT zk_try_lock('/nightly')}), 't', 'credentials of their own') for $billing, $shop;
$s = zk_session($node, options => '-c zklock.root=/billing');
is($s->query(q{SELECT zk_try_lock('/nightly')})->{state}, '42501', '- close the root to others');
is($s->query(q{SELECT * FROM zk_lock_queue('/nightly')})->{state}, '42501', '- also to look at');
$_->quit for $billing, $shop, $s, $stranger;

zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
zk_no_crash($_) for $node, $other;
done_testing();
