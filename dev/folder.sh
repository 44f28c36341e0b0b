# Sourced by scripts that need another Debian than this machine's: a folder with
# a bare one, made by debootstrap (root only).
#
#   make_folder SUITE DIR      a bare Debian (minbase), with what its apt needs to
#                              reach the mirror that this machine's apt uses
#   in_folder DIR COMMAND...   runs the command there as root, and returns its
#                              status
#   stop_in_folder             ends what in_folder runs: for a trap, in the shell
#                              that called in_folder
#   remove_folder DIR          removes it; fails if a process or mount is left in it
#
# A command runs in a process and a mount namespace of its own: when it ends, or
# its caller is killed, everything that it left running or mounted is gone.  The
# network is this machine's, so servers in two folders need two ports; the host's
# name is not, and nothing resolves it.

# in_namespace SCRIPT ARGUMENTS...: runs the script with bash; its processes and
# mounts end with it.  It runs in the background, since a shell runs no trap
# while it waits for a command in the foreground.
in_namespace()
{
	local status=0 stdin
	exec {stdin}<&0
	env --default-signal=INT,QUIT setpriv --pdeathsig KILL \
		unshare --mount --uts --pid --fork --kill-child=KILL --mount-proc \
		bash -euc "$@" <&"$stdin" &
	folder_child=$!
	exec {stdin}<&-
	wait "$folder_child" || status=$?
	folder_child=
	return "$status"
}

stop_in_folder()
{
	[[ -z ${folder_child:-} ]] || ! kill -KILL "$folder_child" 2>/dev/null ||
		wait "$folder_child" 2>/dev/null || true
	folder_child=
}

make_folder()
{
	local suite=$1 dir=$2 mirror script=() log
	((EUID == 0)) || { echo 'only root can make a folder' >&2; return 1; }
	[[ ! -e $dir ]] || { echo "$dir is there already" >&2; return 1; }
	command -v debootstrap >/dev/null || { echo 'debootstrap is missing' >&2; return 1; }
	mirror=$(debian_mirror)
	# a suite that this machine's debootstrap does not know yet
	[[ -e /usr/share/debootstrap/scripts/$suite ]] || script=(sid)
	mkdir -p "$dir"
	log=$dir.log
	in_namespace 'exec debootstrap "$@"' debootstrap --variant=minbase \
		"$suite" "$dir" "$mirror" "${script[@]}" >"$log" 2>&1 </dev/null || {
		tail -n 20 "$log" "$dir/debootstrap/debootstrap.log" >&2
		return 1
	}
	rm -f "$log"
	echo "deb $mirror $suite main" >"$dir/etc/apt/sources.list"
	# a proxy, if this machine's apt has one
	apt-config dump | grep -E '^Acquire::(https?|ftp)::Proxy' >"$dir/etc/apt/apt.conf.d/90folder" || true
	cat >>"$dir/etc/apt/apt.conf.d/90folder" <<-'END'
		APT::Install-Recommends "false";
		Acquire::Languages "none";
		Acquire::Retries "3";
		Dpkg::Use-Pty "false";
	END
	# the folder need not survive a crash
	echo force-unsafe-io >"$dir/etc/dpkg/dpkg.cfg.d/90folder"
	# as Debian's installer writes it: two addresses for one name
	printf '%s\n' '127.0.0.1 localhost' '::1 localhost ip6-localhost ip6-loopback' >"$dir/etc/hosts"
	cp /etc/resolv.conf "$dir/etc/resolv.conf"
	# who this machine's own authorities vouch for, such as a mirror of its network
	mkdir -p "$dir/usr/local/share/ca-certificates"
	find /usr/local/share/ca-certificates -name '*.crt' -exec cp -t "$dir/usr/local/share/ca-certificates" {} + 2>/dev/null || true
	# do not start services on installation: ports are shared with the machine
	printf '#!/bin/sh\nexit 101\n' >"$dir/usr/sbin/policy-rc.d"
	chmod 755 "$dir/usr/sbin/policy-rc.d"
}

in_folder()
{
	local dir=$1
	shift
	# The first bash stays, as process 1: it reaps orphans.  Not chroot, within which no
	# user may have a namespace of its own.
	in_namespace '
		dir=$0
		hostname bare.invalid
		mount --bind "$dir" "$dir"
		cd "$dir"
		mount -t proc proc proc
		mkdir -p dev/shm dev/pts
		mount -t tmpfs -o mode=1777 tmpfs dev/shm
		# the tests write and remove many small files: in memory, where there is plenty
		(($(awk "/^MemAvailable/ { print \$2 }" /proc/meminfo) < 12000000)) ||
			mount -t tmpfs -o mode=1777,size=50% tmpfs tmp
		mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts 2>/dev/null || true
		pivot_root . .
		hash -r
		umount --lazy .
		cd /
		status=0
		env -i HOME=/root TERM="${TERM:-dumb}" \
			PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
			DEBIAN_FRONTEND=noninteractive ${http_proxy:+http_proxy="$http_proxy"} \
			${https_proxy:+https_proxy="$https_proxy"} ${no_proxy:+no_proxy="$no_proxy"} \
			"$@" || status=$?
		exit "$status"' "$dir" "$@"
}

# folder_users DIR: the processes and mounts in it
folder_users()
{
	local dir proc link
	dir=$(realpath "$1")
	for proc in /proc/[0-9]*; do
		for link in root cwd exe; do
			[[ $(readlink "$proc/$link" 2>/dev/null) != "$dir"?(/*) ]] || {
				echo "process ${proc#/proc/}: $(tr '\0' ' ' <"$proc/cmdline")"
				break
			}
		done
	done 2>/dev/null
	awk -v dir="$dir/" 'index($5, dir) == 1 { print "mount " $5 }' /proc/self/mountinfo
}

remove_folder()
{
	local dir=$1 users
	[[ -d $dir ]] || return 0
	users=$(folder_users "$dir")
	if [[ -n $users ]]; then
		printf '%s is in use:\n%s\n' "$dir" "$users" >&2
		# do not remove anything that is mounted there
		grep -E '^mount ' <<<"$users" | cut -c 7- | sort -r | while read -r dir; do umount -l "$dir" || true; done
		rm -rf --one-file-system "$1"
		return 1
	fi
	rm -rf --one-file-system "$dir" "$dir.log"
}
