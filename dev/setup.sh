# Sourced by dev/test and the other programs here: sets up what they need.
#
#   supervise SCRIPT ARGS...   installs what is missing, and runs the script
#                              again: on a copy of the tree, as a user that
#                              PostgreSQL runs as, with nothing left behind
#   private_postgres           a PostgreSQL installation to install zklock in
#   build_zklock               builds and installs it there
#   start_zookeeper DIR        a throwaway server
#   start_postgres DIR         a throwaway cluster
#
# In the second run everything is in the one directory $ZKLOCK_TMP.

set -euo pipefail
# PostgreSQL's test library drops LC_ALL, so LANG must say the same
export LC_ALL=C.UTF-8 LANG=C.UTF-8

# the version that this Debian has
if [[ -z ${PG_MAJOR:-} ]]; then
	case $(. /etc/os-release && echo "${VERSION_ID:-}") in
		12) PG_MAJOR=15 ;;
		13) PG_MAJOR=17 ;;
		*) PG_MAJOR=18 ;;
	esac
fi
export PG_MAJOR

say() { printf '== %s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# ------------------------------------------------------------------- packages

# Not the package "zookeeper", which depends on a whole desktop's Java for
# scripts that are not needed here.  libzookeeper-java has the server.
packages=(
	"postgresql-$PG_MAJOR" "postgresql-server-dev-$PG_MAJOR" libzookeeper-st-dev
	libzookeeper-java libslf4j-java default-jre-headless
	libipc-run-perl libnss-wrapper perl gcc libc6-dev make
	libssl-dev openssl socat)

# For t/peers: the other locks that zklock is compared with.  Java itself
# compiles the one file there.
peer_packages=(python3-kazoo libcurator-recipes-java)

# What t/ has the code checked with
tool_packages=(valgrind)

# The Debian mirror that this machine uses
debian_mirror()
{
	local mirror
	read -r mirror < <(apt-get indextargets --format '$(REPO_URI)' \
		'Identifier: Packages' 'Origin: Debian' 'Label: Debian') || true
	mirror=${mirror%/}
	echo "${mirror:-http://deb.debian.org/debian}"
}

# Also needed to run the recipes of doc/.  Not every Debian has all of them, and
# t/ reports what it leaves out.  For pgbouncer and Prometheus, whose packages would
# start servers, see unpack_missing and fetch_prometheus; for Node.js, get_node_pg.
doc_packages=("postgresql-$PG_MAJOR-cron" libpostgresql-jdbc-java libhikaricp-java libslf4j-java
	python3-psycopg python3-psycopg-pool python3-psycopg2 python3-sqlalchemy python3-django
	ruby-activerecord ruby-pg)

# apt_for DIR TYPE SUITE: sets apt to an apt-get whose only source is that one
# of Debian and whose files are in DIR.  It verifies signatures, and uses
# nothing of this machine's configuration except how to reach the network.
apt_for()
{
	local dir=$1

	mkdir -p "$dir"/{lists,archives}/partial
	echo "$2 [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian_mirror) $3 main" >"$dir/sources.list"
	apt=(apt-get -qq -o APT::Sandbox::User= -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=-
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
		-o Dir::State="$dir" -o Dir::State::Lists="$dir/lists"
		-o Dir::State::Status=/dev/null -o Dir::Cache="$dir" -o Acquire::Languages=none
		-o Acquire::http::Timeout=20 -o Acquire::Retries=2)
}

# unpack_from SUITE DIR PACKAGE...: unpacks them there, as of that Debian and from
# the machine's own mirror
unpack_from()
{
	local suite=$1 dir=$2 apt package
	shift 2

	apt_for "$dir" deb "$suite"
	(
		cd "$dir" && "${apt[@]}" update && "${apt[@]}" download "$@" || exit
		for package in *.deb; do dpkg-deb -x "$package" . || exit; done
	) >"$dir/log" 2>&1 </dev/null || { say "could not fetch newer $*:"; tail -n 5 "$dir/log"; }
	rm -rf "$dir"/lists "$dir"/archives "$dir"/*.bin "$dir"/*.deb
}

# fetch_newer_peers DIR: unpacks there, as of Debian 13, the libraries of Debian 12 with faults that would make t/peers
# fail:
#   kazoo before 2.9      a ReadLock waits for later writers, and they for it
#                         (kazoo#649)
#   Curator before 5.5    a writer that turns reader lets the next writer in
#                         (CURATOR-621)
# Without a network there are none, and t/ reports what it leaves out.
fetch_newer_peers()
{
	local dir=$1 missing=()

	! older python3-kazoo 2.9 || missing+=(python3-kazoo)
	! older libcurator-recipes-java 5.5 || missing+=(libcurator-{recipes,framework,client}-java)
	((${#missing[@]})) || return 0

	unpack_from trixie "$dir" "${missing[@]}"
}

# unpack_missing DIR PACKAGE: unpacks it there, unless it is installed, with those packages
# that it needs and that are not.  Installed, pgbouncer would start a server, and sqitch
# bring 75 others.
unpack_missing()
{
	local dir=$1 of=$2 package

	! installed "$of" || return 0
	mkdir -p "$dir/archives/partial"
	(
		apt-get -qq -o Debug::NoLocking=1 -o APT::Sandbox::User= -o Dir::Cache="$dir" -o Acquire::Retries=2 \
			install --yes --no-install-recommends --download-only "$of" || exit
		for package in "$dir"/archives/*.deb; do dpkg-deb -x "$package" "$dir" || exit; done
	) >"$dir/log" 2>&1 </dev/null || { say "could not fetch $of:"; tail -n 5 "$dir/log"; }
	rm -rf "$dir/archives" "$dir"/*.bin
}

# fetch_prometheus DIR: unpacks Prometheus and its exporter there, whose packages
# would start servers, and which need no library
fetch_prometheus()
{
	local dir=$1 package packages=()

	installed prometheus || packages+=(prometheus)
	installed prometheus-postgres-exporter || packages+=(prometheus-postgres-exporter)
	((${#packages[@]})) || return 0
	mkdir -p "$dir"
	(
		cd "$dir" && apt-get -qq -o APT::Sandbox::User= -o Acquire::Retries=2 download "${packages[@]}" || exit
		for package in *.deb; do dpkg-deb -x "$package" . || exit; done
	) >"$dir/log" 2>&1 </dev/null || { say "could not fetch ${packages[*]}:"; tail -n 5 "$dir/log"; }
	rm -f "$dir"/*.deb
}

# get_npm DIR: sets npm to the machine's, or unpacks npm's own package there, for
# Debian's Node.js.  (Debian's package of it would install 340 others.)
get_npm()
{
	local authorities=/etc/ssl/certs/ca-certificates.crt

	npm=(npm)
	! command -v npm >/dev/null || return 0
	install_if_any nodejs ca-certificates
	mkdir -p "$1"
	[[ -e $1/package ]] || {
		/usr/lib/apt/apt-helper -o Acquire::Retries=2 -o Acquire::https::Timeout=20 download-file \
			https://registry.npmjs.org/npm/-/npm-10.9.4.tgz "$1/npm.tgz" \
			SHA512:3a7506f37e85c1ba1021baad79f0cd9724748131f321fc117c4dc3ba235ec01be7327584a41d15117c01945560aa9373220628fcc1e1dddd877a5fe9b336a900 &&
			tar -C "$1" -xf "$1/npm.tgz" && rm "$1/npm.tgz"
	} >"$1/log" 2>&1 || { say 'could not fetch npm:'; tail -n 5 "$1/log"; }
	npm=(node "$1/package/bin/npm-cli.js" --cafile="$authorities")
	[[ -e $1/package ]]
}

# npm_get DIR WHAT PACKAGE@VERSION...: installs them there, with what these need as npm's
# registry had it on one day; a registry that does not answer must not hold up the tests,
# which report what they leave out
npm_get()
{
	local dir=$1 what=$2
	shift 2

	mkdir -p "$dir"
	(
		cd "$dir" && HOME=$dir timeout 120 "${npm[@]}" install --no-save --before=2026-11-01 "$@" --ignore-scripts \
			--no-audit --no-fund --cache "$dir/cache" --fetch-retries=1 --fetch-timeout=20000
	) >"$dir/log" 2>&1 </dev/null || { say "could not fetch $what from npm:"; tail -n 5 "$dir/log"; }
	rm -rf "$dir/cache"
}

# get_node_pg DIR: PostgreSQL's client for Node.js; without npm, Debian's package of it,
# which accepts only Debian's Node.js
get_node_pg()
{
	get_npm "$tmp/npm" || { install_if_any node-pg; return; }
	npm_get "$1" 'pg for Node.js' pg@8.23.1
}

# The programs that t/102 runs: of npm's registry; and of Debian, and what these need
drop_in_programs=(graphile-migrate@1.4.1 knex@3.1.0 node-pg-migrate@9.0.0 pg@8.13.1 pg-boss@9.0.3)
drop_in_packages=(python3-django-pglocks python3-psycopg2 python3-asyncpg python3-alembic
	ruby-activerecord ruby-pg "postgresql-$PG_MAJOR-partman" bzip2 xz-utils)

# fetch_drop_in DIR: puts there the programs from npm, and PostgreSQL's own
# regression test of advisory locks, which is in Debian's source.  Without a
# network there are none, and t/ reports what it leaves out.
fetch_drop_in()
{
	local dir=$1 apt suite from

	mkdir -p "$dir"
	install_if_any "${drop_in_packages[@]}"
	unpack_missing "$dir/sqitch" sqitch
	! get_npm "$tmp/npm" || npm_get "$dir" 'the programs' "${drop_in_programs[@]}"

	# a mirror may list a version that it does not have; another's test is the same
	suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	for from in "$suite/postgresql-$PG_MAJOR" bookworm/postgresql-15 testing/postgresql-18; do
		[[ ! -s $dir/advisory_lock.sql ]] || break
		rm -rf "$dir/source"
		apt_for "$dir/source" deb-src "${from%/*}"
		(
			cd "$dir/source" && "${apt[@]}" update && "${apt[@]}" source --download-only "${from#*/}" &&
				tar -xOf postgresql-*.orig.tar.[a-z]*[!c] --wildcards '*/src/test/regress/sql/advisory_lock.sql' >../advisory_lock.sql
		) >"$dir/log" 2>&1 </dev/null || {
			rm -f "$dir/advisory_lock.sql"
			say "could not fetch the source of $from:"
			tail -n 5 "$dir/log"
		}
	done
	[[ -s $dir/advisory_lock.sql ]] || rm -f "$dir/advisory_lock.sql"
	rm -rf "$dir/source"
}

# Installs the available ones of these packages, if possible
install_if_any()
{
	local package
	(
		packages=()
		for package; do
			installed "$package" || ! apt-cache show "$package" >/dev/null 2>&1 || packages+=("$package")
		done
		install_packages
	) || say "going on without some of: $*"
}

installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# false if it is not installed
older() { dpkg --compare-versions "$(dpkg-query -W -f '${Version}' "$1" 2>/dev/null)" lt-nl "$2"; }

# Shows where apt is, from what it writes to APT::Status-Fd, on one line of a terminal
show_progress()
{
	local kind percent doing
	[[ -t 1 ]] || { cat >/dev/null; return; }
	while IFS=: read -r kind _ percent doing; do
		[[ $kind != [dp][lm]status ]] || printf '\r\e[K   %3.0f %%  %.60s' "$percent" "$doing"
	done
	printf '\r\e[K'
}

install_packages()
{
	local package missing=() as_root=()

	for package in "${packages[@]}"; do
		installed "$package" && continue
		[[ $package == default-jre-headless ]] && command -v java >/dev/null && continue
		missing+=("$package")
	done
	((${#missing[@]})) || return 0

	if installed libzookeeper-mt-dev; then
		die "zklock is built with libzookeeper-st-dev, which cannot be installed beside
libzookeeper-mt-dev.  Remove that one first: apt-get remove libzookeeper-mt-dev"
	fi
	if ((EUID)); then
		command -v sudo >/dev/null || die "run this as root, or install: ${missing[*]}"
		as_root=(sudo)
	fi

	say "installing ${missing[*]}"
	(
		# On installation, Debian would create and start a cluster, which is not
		# wanted here.
		conf=/etc/postgresql-common/createcluster.d
		quiet=$conf/zklock-no-cluster.conf
		made_dir=
		[[ -d $conf ]] || made_dir=yes
		log=$(mktemp)
		trap '"${as_root[@]}" rm -f "$quiet" "$log"
			[[ -z $made_dir ]] || "${as_root[@]}" rmdir --ignore-fail-on-non-empty "$conf"' EXIT
		"${as_root[@]}" mkdir -p "$conf"
		"${as_root[@]}" tee "$quiet" >/dev/null <<<'create_main_cluster = false'

		apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
			apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
		"${apt[@]}" update
		# apt closes its APT::Status-Fd for packages' scripts, which must keep their
		# standard output; and sudo closes all but three, so it is opened after sudo
		"${as_root[@]}" bash -c 'exec 3>&1 "$@"' - "${apt[@]:${#as_root[@]}}" -o APT::Status-Fd=3 \
			install --yes --no-install-recommends "${missing[@]}" 2>&1 </dev/null |
			tee "$log" | show_progress || {
			grep -vE '^(dl|pm)status:' "$log" | tail -n 30 >&2
			exit 1
		}
	) || die "could not install: ${missing[*]}"
}

# ----------------------------------------------------------------- the first run

# our_processes [SESSION]: the processes that belong to this run
our_processes() { perl "$root/dev/processes.pl" "$tmp" "$@" 2>/dev/null; }

# The processes that remain although the script has ended.  Some need a moment.
stragglers()
{
	local left i
	for ((i = 0; i < 30; i++)); do
		left=$(our_processes)
		[[ -n $left ]] || return 0
		sleep 0.1
	done
	printf '%s\n' "$left"
}

# Fails if there are any, and lists them
nothing_runs()
{
	local left pid
	left=$(stragglers)
	[[ -n $left ]] || return 0
	say 'FAILED: these were left running:'
	for pid in $left; do
		printf '%s %s\n' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline" || true)"
	done
	return 1
}

cleanup()
{
	local status=$? left i
	trap '' INT TERM HUP
	if [[ -n ${child:-} ]] && kill -0 "$child" 2>/dev/null; then
		# everything it runs, too: a shell handles a signal only after its
		# command has ended
		kill -TERM $(our_processes "$child") 2>/dev/null || true
		for ((i = 0; i < 100; i++)); do
			kill -0 "$child" 2>/dev/null || break
			sleep 0.1
		done
	fi
	if [[ -n ${tmp:-} && -z ${keep_running:-} ]]; then
		left=$(our_processes)
		[[ -z $left ]] || kill -KILL $left 2>/dev/null || true
		[[ -n ${keep_files:-} ]] || rm -rf "$tmp"
	fi
	[[ -z ${mounted_proc:-} ]] || umount -l /proc || true
	[[ -z ${last_words:-} ]] || echo "$last_words"
	exit "$status"
}

# put_tree DIR: copies the tree there, without what was built
put_tree()
{
	mkdir -p "$1"
	tar -C "$root" --exclude=./.git --exclude='*.o' --exclude='*.so' --exclude='*.bc' \
		--exclude=./tmp_check --exclude=./results --exclude=./output_iso -cf - . |
		tar -C "$1" --no-same-owner -xf -
}

# supervise SCRIPT ARGS: returns the script's exit status.  The caller can then
# examine $tmp, and cleanup runs when it exits.
supervise()
{
	local script=$1 user=() name base=${TMPDIR:-/tmp} status=0
	shift

	# a socket's path has at most 107 bytes
	((${#base} <= 40)) || base=/tmp
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	tmp=$(mktemp -d "$base/zklock-${script##*/}.XXXXXX")

	if [[ ! -e /proc/self/exe ]]; then
		((EUID == 0)) || die '/proc is not mounted'
		mount -t proc proc /proc    # Java needs it; cleanup unmounts it
		mounted_proc=yes
	fi
	install_packages
	[[ -z ${need_newer_peers:-} ]] || fetch_newer_peers "$tmp/newer"
	[[ -z ${need_bench:-} ]] || fetch_bench "$tmp/bench"
	[[ -z ${need_docs:-} ]] || install_if_any "${doc_packages[@]}"
	[[ -z ${need_docs:-} ]] || get_node_pg "$tmp/node"
	[[ -z ${need_drop_in:-} ]] || fetch_drop_in "$tmp/drop_in"
	[[ -z ${need_docs:-}${need_pgbouncer:-} ]] || unpack_missing "$tmp/pgbouncer" pgbouncer
	[[ -z ${need_docs:-} ]] || fetch_prometheus "$tmp/prometheus"

	# A copy: nothing is built in the tree, and the other user need not be able
	# to read it.
	put_tree "$tmp/src"

	# PostgreSQL does not run as root.
	if ((EUID == 0)); then
		user=(--reuid postgres --regid postgres --init-groups)
		chown -R postgres: "$tmp"
	fi

	# Drop settings of the caller that would misdirect PostgreSQL's or Java's
	# programs, or make.
	for name in $(compgen -e); do
		case $name in
			PG_MAJOR | PG_TEST_* | LC_ALL) ;;
			PG* | LC_* | LANGUAGE | JAVA_TOOL_OPTIONS | JDK_JAVA_OPTIONS | MAKE* | MFLAGS) unset "$name" ;;
		esac
	done

	# A session of its own, so that cleanup can stop all of it at once, and the
	# signals that a shell ignores in background jobs set to their defaults.
	env ZKLOCK_TMP="$tmp" TMPDIR="$tmp" HOME="$tmp" \
		setsid env --chdir "$tmp/src" --default-signal=INT,QUIT \
		setpriv "${user[@]}" --pdeathsig TERM bash "$tmp/src/dev/${script##*/}" "$@" </dev/null &
	child=$!
	wait "$child" || status=$?
	child=
	return "$status"
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# ---------------------------------------------------------------- the second run

# The classes that each of ZooKeeper's servers loads, for those that are started
# later to map
archive_classes()
{
	export ZK_CLASSES=$ZKLOCK_TMP/zookeeper.jsa
	perl -I t/lib -MZooKeeper -e 'ZooKeeper::archive_classes()'
}

# A copy of the installed PostgreSQL, which finds its files relative to its
# programs.  Installing into it does not touch the system's.
private_postgres()
{
	local prefix=$ZKLOCK_TMP/pg of=postgresql/$PG_MAJOR
	mkdir -p "$prefix/usr/include"
	# nothing here needs just-in-time compilation
	tar -C / --exclude=bitcode --exclude='llvmjit*' --exclude=man -cf - "usr/lib/$of" "usr/share/$of" |
		tar -C "$prefix" -xf -
	ln -s /usr/include/postgresql "$prefix/usr/include/postgresql"
	export PATH=$prefix/usr/lib/$of/bin:$PATH
	export PG_CONFIG=$prefix/usr/lib/$of/bin/pg_config
	pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")/../..
	[[ $pgxs == "$prefix"/* ]] || die "pg_config does not look where it is: $pgxs"
}

# COPT, from the environment, is PostgreSQL's own way to add compiler flags.
build_zklock()
{
	make -s -j2 with_llvm=no install
}

# start_zookeeper DIR: prints the port
start_zookeeper()
{
	perl -I t/lib -MZooKeeper -e '
		print ZooKeeper->new(dir => shift, detach => 1)->start->port, "\n"' "$1"
}

stop_zookeeper()
{
	local pid
	pid=$(cat "$1/zookeeper.pid" 2>/dev/null) || return 0
	kill "$pid" 2>/dev/null || return 0
	# not kill -0: until its parent reaps it, it would still seem to exist
	while [[ -e /proc/$pid/exe ]]; do sleep 0.05; done
}

# start_postgres DIR [LINE...]: a cluster with its socket in DIR, superuser
# postgres, and these lines in its postgresql.conf
start_postgres()
{
	local dir=$1
	shift
	mkdir -p "$dir"
	initdb --pgdata="$dir/data" --username=postgres --auth=trust --encoding=UTF8 --no-locale \
		--no-sync >"$dir/initdb.log" 2>&1 || { cat "$dir/initdb.log" >&2; return 1; }
	printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$dir'" 'fsync = off' \
		"log_line_prefix = '%m [%p] %q%a '" "session_preload_libraries = 'zklock'" "$@" \
		>>"$dir/data/postgresql.conf"
	pg_ctl start --wait --timeout=60 --silent --pgdata="$dir/data" --log="$dir/postgres.log" \
		>"$dir/start.log" 2>&1 || { cat "$dir/start.log" "$dir/postgres.log" >&2; return 1; }
}

stop_postgres()
{
	[[ ! -f $1/data/postmaster.pid ]] ||
		pg_ctl stop --wait --timeout=30 --silent --mode=fast --pgdata="$1/data" ||
		pg_ctl stop --wait --silent --mode=immediate --pgdata="$1/data"
}
