# Sourced by dev/bench after dev/setup.sh: gets what dev/bench.d/runner needs
# and cannot be installed from a package.
#
#   fetch_bench DIR    unpacks it in DIR, which is then PEERS_ROOT; and in
#                      DIR/newest the newest ZooKeeper and Curator that Debian has
#
# libzookeeper-mt2 is not installed: its -dev package conflicts with the one
# that zklock is built with, and the machine should stay as it is.  ZooKeeper's
# lock for C is in no package: its two files come from the source of Debian's
# packages, which apt downloads and verifies.  What cannot be had is left out,
# with a message.

bench_recipe=zookeeper-recipes/zookeeper-recipes-lock/src/main/c

fetch_bench()
{
	local dir=$1
	mkdir -p "$dir/fetch"
	fetch_library "$dir" >"$dir/fetch/log" 2>&1 </dev/null ||
		{ say 'could not fetch libzookeeper-mt2:'; tail -n 5 "$dir/fetch/log"; }
	fetch_recipe "$dir" >"$dir/fetch/log" 2>&1 </dev/null ||
		{ say "could not fetch the source of ZooKeeper's lock for C:"; tail -n 5 "$dir/fetch/log"; }
	rm -rf "$dir/fetch"
	# what they need beside each other is as old as the machine's
	unpack_from testing "$dir/newest" libzookeeper-java libcurator-{recipes,framework,client}-java
}

# in the same version as the other library
fetch_library()
{
	local dir=$1 version
	compgen -G '/usr/lib/*/libzookeeper_mt.so.2' >/dev/null && return
	version=$(dpkg-query -W -f '${Version}' libzookeeper-st2) || return
	(
		cd "$dir/fetch" || exit
		apt-get -qq -o APT::Sandbox::User= -o Acquire::http::Timeout=20 -o Acquire::Retries=2 \
			download "libzookeeper-mt2=$version" || exit
		dpkg-deb -x libzookeeper-mt2_*.deb "$dir"
	)
}

fetch_recipe()
{
	local dir=$1 apt suite
	suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	mkdir -p "$dir/usr/src/zookeeper-recipe"
	apt_for "$dir/fetch" deb-src "$suite"
	(
		cd "$dir/fetch" || exit
		"${apt[@]}" update && "${apt[@]}" source --download-only zookeeper || exit
		# no Debian patch touches these two files
		tar -xzf zookeeper_*.orig.tar.gz --strip-components=1 --wildcards \
			"*/$bench_recipe/src/zoo_lock.c" "*/$bench_recipe/include/zoo_lock.h" || exit
		mv $bench_recipe/*/zoo_lock.[ch] "$dir/usr/src/zookeeper-recipe/"
	)
}
