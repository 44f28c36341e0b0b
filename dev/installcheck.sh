# For "make installcheck": reports missing prerequisites.
#
#   installcheck.sh PSQL ZK_HOSTS SQL_TESTS TAP_TESTS

psql=$1 zk_hosts=$2 sql_tests=$3 tap_tests=$4

missing()
{
	echo "installcheck: $1" >&2
	shift
	for line; do echo "  $line" >&2; done
	exit 1
}

if [ -n "$sql_tests" ]; then
	ask() { "$psql" -X -A -t -q -v ON_ERROR_STOP=1 -d postgres "$@"; }

	superuser=$(ask -c "SELECT current_setting('is_superuser')") ||
		missing 'no PostgreSQL server answers' \
			'sql/ and specs/ run on a server of yours: set PGHOST, PGPORT, PGUSER.'
	[ "$superuser" = on ] || missing 'the tests need a superuser' 'Set PGUSER.'
	[ -n "$(ask -c "SELECT 1 FROM pg_available_extensions WHERE name = 'zklock'")" ] ||
		missing 'that server does not have zklock' \
			'Run "make install" on its machine first, with the pg_config of its version.'

	# As the tests will do it; the transaction is rolled back
	ask >/dev/null <<-'END' ||
		BEGIN;
		CREATE FUNCTION pg_temp.zk_try_lock(text) RETURNS boolean
		AS '$libdir/zklock', 'zk_lock' LANGUAGE C;
		SELECT pg_temp.zk_try_lock('/installcheck');
		ROLLBACK;
	END
		missing "that server cannot lock in ZooKeeper at $zk_hosts" \
			'Name an ensemble that it reaches: make installcheck ZK_HOSTS=host:port,...'
fi

if [ -n "$tap_tests" ]; then
	[ "$(id -u)" != 0 ] || missing 't/ starts PostgreSQL servers, which do not run as root' \
		'Be another user, or leave t/ out: make installcheck TAP_TESTS='
	packages=
	perl -MIPC::Run -e 1 2>/dev/null || packages="$packages libipc-run-perl"
	command -v java >/dev/null || packages="$packages default-jre-headless"
	[ -e /usr/share/java/zookeeper.jar ] || packages="$packages libzookeeper-java"
	[ -e /usr/share/java/slf4j-simple.jar ] || packages="$packages libslf4j-java"
	[ -z "$packages" ] || missing "t/ needs Debian's$packages" \
		'Install that, or leave t/ out: make installcheck TAP_TESTS='
fi
