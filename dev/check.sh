# Sourced by scripts that are tests: an assertion is a line of output, and is counted.
#
#   check NAME COMMAND...          the command succeeds
#   is NAME EXPECTED COMMAND...    it prints that
#
# passed and failed have the counts, and so has the file $counts, if there is one.

passed=0 failed=0

check()
{
	local name=$1 log
	shift
	log=$(mktemp)
	if "$@" >"$log" 2>&1 </dev/null; then
		((++passed))
		echo "ok - $name"
	else
		((++failed))
		echo "not ok - $name"
		tail -n 50 "$log" | sed 's/^/# /'
	fi
	rm -f "$log"
	[[ -z ${counts:-} ]] || echo "$passed $failed" >"$counts"
}

is()
{
	local name=$1 expected=$2 got
	shift 2
	got=$("$@" 2>&1 </dev/null) || true
	check "$name" test "$got" = "$expected"
	[[ $got == "$expected" ]] || sed 's/^/# /' <<<"$got"
}
