
=pod

=head1 NAME

Doc - run what a page of the documentation tells its reader to type

=head1 SYNOPSIS

  my $page = Doc->new('doc/recipes/leader.md');
  $page->run(main => $node);              # all SQL, in the order of the page
  $page->all_was_run;                     # one test: nothing was left out

  my $config = $page->take('ini');        # a block that the test itself runs
  $page->take('java', 1)->{code};         # the second one in Java
  $page->run_one($page->take('sql', 0), $session);

=head1 DESCRIPTION

A page is Markdown.  Whatever can be run is a fenced block with a language, and
each such block must be run by a test: C<run> runs the SQL, and what a test
takes with C<take> it runs itself.  C<Doc::pages> lists the pages.

A comment on the line before an SQL block may say more, as
C<< <!-- key: value; key: value --> >>:

  session: NAME     the session that runs it; default: "main".  A name denotes the
                    same session up to the end of the page.  NAME@CLUSTER is in
                    another cluster than the first one, NAME/DATABASE in another
                    database.
  role: ROLE        the role it connects as; default: the superuser
  fails: SQLSTATE   it fails with exactly this error, and ROLLBACK follows;
                    otherwise it must not fail.
  warns: yes        it raises a warning; otherwise it must not.
  prints: A B ...   its whole output, as of psql -A -t, one word for each row;
                    "-" for no output.
  soon: yes         it is repeated until it prints that
  waits: yes        it is left waiting for ZooKeeper, and must finish when the
                    next block of its session comes or the page ends
  leaves: open      it ends inside a transaction

Indented lines after it that begin with ERROR, WARNING, DETAIL or HINT are all that
it says of these kinds, except for the numbers of processes and the addresses of
clusters.

=cut

package Doc;

use strict;
use warnings;
use Carp;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Find ();
use Test::More;

use Zklock;

my $root = abs_path(dirname(__FILE__) . '/../..');
my %known = (
	session => qr/[\w@\/]+/, role => qr/\w+/, fails => qr/\w{5}/, warns => qr/yes/, prints => qr/\S.*/, soon => qr/yes/,
	waits => qr/yes/, leaves => qr/open/);

# All pages, as paths from the root of the tree
sub pages
{
	my @pages = ('README.md');
	File::Find::find({ wanted => sub { push @pages, $_ if /\.md$/ }, no_chdir => 1 }, "$root/doc", "$root/dev");
	return sort map { s{^\Q$root\E/}{}r } @pages;
}

sub new
{
	my ($class, $file) = @_;
	open my $handle, '<', "$root/$file" or die "$file: $!";
	my $text = do { local $/; <$handle> };
	my $self = bless { file => $file, text => $text, blocks => [] }, $class;
	$self->_find_blocks;
	return $self;
}

sub file { return $_[0]->{file}; }
sub text { return $_[0]->{text}; }

# It works line by line, so that it notices an unclosed fence and SQL that is
# only indented.
sub _find_blocks
{
	my ($self) = @_;
	my ($block, $closed, $before, $number) = (undef, undef, '', 0);
	foreach my $line (split /^/, $self->{text})
	{
		$number++;
		my $where = "$self->{file}:$number";
		if ($block)
		{
			if ($line eq "```\n")
			{
				push @{ $self->{blocks} }, $block;
				$closed = $block;
				undef $block;
			}
			else { $block->{code} .= $line; }
		}
		elsif ($line =~ /^\s*(?:```|~~~)/)
		{
			my ($language) = $line =~ /^```([a-z]+)$/ or die "$where: a fence that no test understands: $line";
			my ($keys) = $before =~ /^<!-- (.*) -->$/;
			$block = { session => 'main', $self->_keys($where, $keys // ''), file => $self->{file},
				line => $number + 1, language => $language, code => '' };
		}
		elsif ($line =~ /^(?: {4}|\t)\s*(?:SELECT|BEGIN|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|SET|DO|CALL|GRANT|WITH)\b/)
		{
			die "$where: SQL that no test runs: $line";
		}
		elsif ($closed && $line =~ /^ {4}((?:ERROR|WARNING|DETAIL|HINT):  .*\n)/) { $closed->{says} .= $1; }
		elsif ($line ne "\n") { undef $closed; }
		$before = $line;
	}
	die "$self->{file}: a fence is not closed\n" if $block;
	return;
}

sub _keys
{
	my ($self, $where, $keys) = @_;
	my %keys;
	foreach (split /; /, $keys)
	{
		my ($key, $value) = /^(\w+): (.*)$/ or die "$where: \"$_\"?\n";
		die "$where: \"$_\"?\n" unless $known{$key} && $value =~ /^$known{$key}$/;
		$keys{$key} = $value;
	}
	return %keys;
}

sub blocks
{
	my ($self, $language) = @_;
	return grep { $_->{language} eq $language } @{ $self->{blocks} };
}

# Returns a block of a language, by its number from 0; the caller will run it
sub take
{
	my ($self, $language, $number) = @_;
	my $block = ($self->blocks($language))[ $number // 0 ]
	  or croak "$self->{file}: no " . ($number // 0) . "th block of $language";
	$block->{was_run} = 1;
	return $block;
}

# Returns the NAME = 'VALUE' pairs of the page's ini blocks, as a list
sub settings
{
	my ($self, $number) = @_;
	return map { s/^'(.*)'$/$1/r } $self->take('ini', $number)->{code} =~ /^([\w.]+) = (.*)$/mg;
}

# Run all SQL that has not been run: in the first cluster where none is named,
# in the others by their names.  Each of those is a cluster, or [ a cluster, settings of
# the sessions, without "zklock." ].  Further options:
#   dbname    the database where none is named; default: postgres
#   zk        the ZooKeeper in whose queues sessions wait
#   until     only up to the line that begins with this text
# Something that leads to a cluster without being one has that cluster as its
# "direct".
sub run
{
	my ($self, $default, %cluster) = @_;
	my $until = delete $cluster{until};
	$self->{zk} = delete $cluster{zk};
	my $home = delete $cluster{dbname} // 'postgres';
	my $end = 1 + (defined $until ? $self->{text} =~ /\A(.*?)^\Q$until\E/ms ? ($1 =~ tr/\n//) : croak "no \"$until\"" : 1e9);

	foreach my $block (grep { !$_->{was_run} && $_->{line} < $end } $self->blocks('sql'))
	{
		my ($name, $on, $dbname) = $block->{session} =~ m{^(\w+)(?:@(\w+))?(?:/(\w+))?$}
		  or die "$self->{file}:$block->{line}: session \"$block->{session}\"?\n";
		my $there = defined $on ? $cluster{$on} // die "$self->{file}:$block->{line}: no cluster $on\n" : $default;
		my ($node, %setting) = ref $there eq 'ARRAY' ? @$there : $there;
		my $key = join '/', $on // $node->name, $name, $dbname // '';
		$self->{session}{$key} //= zk_session($node, dbname => $dbname // $home, user => $block->{role},
			options => join ' ', map { "-c zklock.$_=$setting{$_}" } sort keys %setting);
		$self->{admin}{ $node->name } //= zk_session($node->can('direct') ? $node->direct : $node);
		$self->run_one($block, $self->{session}{$key}, $self->{admin}{ $node->name });
	}
	return;
}

# Run one block in this session.  $admin observes from another session.
sub run_one
{
	my ($self, $block, $s, $admin) = @_;
	my $what = "$self->{file}:$block->{line}";
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$block->{was_run} = 1;
	$self->_goes_on($s);
	if ($block->{waits})
	{
		$s->send($block->{code});
		ok(eval { zk_wait_queued($self->{zk}, $s); 1 }, "$what: waits") or diag($@);
		$self->{waiting}{$s} = [ $block, $s, $admin ];
		return;
	}
	my $result;
	zk_until(
		sub {
			$result = $s->query($block->{code});
			return _printed($result) eq $block->{prints} || $result->{state};
		},
		"$what: prints $block->{prints}") if $block->{soon};
	$self->_check($block, $result // $s->query($block->{code}), $s, $admin);
	return;
}

# What the session waited for has happened, or must happen now
sub _goes_on
{
	my ($self, $s) = @_;
	my $waiting = delete $self->{waiting}{$s} or return;
	my ($block, undef, $admin) = @$waiting;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$self->_check($block, $s->wait, $s, $admin);
	return;
}

# What it told the user, of the kinds of lines that the page shows
sub _said
{
	my ($result, $says) = @_;
	my $kinds = join '|', $says =~ /^(\w+):/mg;
	return _without_numbers(join '', map { s/^(\w+):  \w{5}: /$1:  /r } $result->{err} =~ /^((?:$kinds):  .*\n)/mg);
}

sub _without_numbers { return $_[0] =~ s/\b([Pp]rocess) \d+ on [\w.-]+:\d+/$1 N/gr; }

sub _printed { my $text = join ' ', split /\n/, $_[0]{out}; return length $text ? $text : '-'; }

sub _check
{
	my ($self, $block, $result, $s, $admin) = @_;
	my $what = "$self->{file}:$block->{line}";
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(join(' ', $result->{err} =~ /(?:ERROR|FATAL|PANIC):  (\w{5})/g),
		$block->{fails} // '', "$what: " . ($block->{fails} ? 'fails as it says' : 'runs'))
	  or diag($result->{err});
	is(_printed($result), $block->{prints}, "$what: prints what it says") if defined $block->{prints};
	is(_said($result, $block->{says}), _without_numbers($block->{says}), "$what: its messages are those of the page") if defined $block->{says};
	if ($block->{warns}) { isnt(scalar @{ $result->{warnings} }, 0, "$what: warns") }
	else { is_deeply($result->{warnings}, [], "$what: no warning") }
	$s->query('ROLLBACK') if $block->{fails};
	like($admin->value('SELECT state FROM pg_stat_activity WHERE pid = ' . $s->pid),
		$block->{leaves} ? qr/^idle in transaction/ : qr/^idle$/,
		"$what: " . ($block->{leaves} ? 'leaves a transaction open' : 'is a whole transaction'))
	  if $admin;
	return;
}

# End the page's sessions, those that wait first
sub end
{
	my ($self) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$self->_goes_on($_->[1]) for values %{ $self->{waiting} };
	$_->quit for map { values %{ delete $self->{$_} // {} } } qw(session admin);
	return;
}

# The end of the page, and one test: all of its blocks were run
sub all_was_run
{
	my ($self) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$self->end;
	is_deeply([ map { "$_->{language} in line $_->{line}" } grep { !$_->{was_run} } @{ $self->{blocks} } ],
		[], "$self->{file}: every block was run");
	return;
}

# -- tables

# The rows of the table with this heading, as lists of cells
sub table
{
	my ($self, $heading) = @_;
	my ($rows) = $self->{text} =~ /^\Q$heading\E\n\|[- |]+\|\n((?:\|.*\n)+)/m
	  or die "$self->{file}: no table: $heading\n";
	return map { [ split / *\| +/, s/^\| //r =~ s/ \|$//r ] } split /\n/, $rows;
}

1;
