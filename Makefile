# zklock: ZooKeeper locks for PostgreSQL
#
#   make, make install         build and install for the pg_config in PATH
#   make installcheck          tests the installed zklock: sql/ and specs/ on the
#                              server that PGHOST, PGPORT and PGUSER (a superuser)
#                              name, with the ensemble that it reaches as
#                              ZK_HOSTS=host:port,... (default 127.0.0.1:2181);
#                              then t/, on servers of its own, as a user that can
#                              run PostgreSQL.  TAP_TESTS= skips t/, and
#                              REGRESS= ISOLATION= skips sql/ and specs/;
#                              ISOLATION=readers runs specs/readers, after
#                              specs/setup, which all others need
#   make check-unit            tests the parts below PostgreSQL; SEED=... of their
#                              random numbers
#
# TLS is included if OpenSSL's headers are found, unless with_tls=no is given.
#
# dev/test does all of it on a throwaway server and ensemble.

# the directory of the sources: not the current one in a VPATH build
here := $(or $(VPATH),.)

MODULE_big = zklock
OBJS = $(above_wall) $(below_wall)
above_wall = src/zklock.o src/views.o src/advisory.o src/redirect.o \
	$(addprefix src/lock/transaction/, statement_hooks.o claim.o hold.o xact.o claimed.o stop.o commit_guard.o release.o hold_table.o shadow.o fence.o) \
	$(addprefix src/lock/queue/, acquire.o single_node.o place.o blockers.o) \
	$(addprefix src/lock/deadlock/, deadlock.o chase.o wait_graph.o wait_record.o local_waits.o) \
	$(addprefix src/lock/look/, lock_tree.o inspect.o wait_log.o seen_queue.o reader.o claim_record.o) \
	$(addprefix src/backend/, backend_session.o errors.o wait.o settings.o path.o encoding.o node_identity.o slots.o auth_file.o)
below_wall = $(addprefix src/zk/, session.o keeper_thread.o library_handle.o connection.o request.o operation.o multi.o watch.o codes.o frame_check.o proof.o node.o create.o unwanted.o single.o mark.o turn.o lock_protocol.o session_state.o \
	wakeup.o resolve.o tls.o wire.o hosts.o stop_signal.o)

EXTENSION = zklock zklock_advisory
DATA = zklock--1.0-dev.sql zklock_advisory--1.0-dev.sql
PGFILEDESC = "zklock - distributed locks in a ZooKeeper ensemble"

REGRESS = $(basename $(notdir $(sort $(wildcard $(here)/sql/*.sql))))
ISOLATION = $(basename $(notdir $(sort $(wildcard $(here)/specs/*.spec))))
# Whichever of them are named, this one makes what they have in common.
ifneq ($(strip $(ISOLATION)),)
override ISOLATION := setup $(filter-out setup,$(ISOLATION))
endif
TAP_TESTS = 1
REGRESS_PREP = check-servers

# the parts below PostgreSQL need more than POSIX alone declares
PG_CPPFLAGS = -I$(srcdir)/src -D_GNU_SOURCE -DZKLOCK_VERSION='"$(version)"'
version = $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" $(srcdir)/zklock.control)
SHLIB_LINK = -Wl,--version-script=$(srcdir)/src/exports.map -lzookeeper_st -lpthread

# A function that waits for a network gains nothing from being inlined, and
# bitcode would require the LLVM version that the server was built with.
override with_llvm = no

# where the regression tests find ZooKeeper
ZK_HOSTS ?= 127.0.0.1:2181
export PGOPTIONS := $(strip $(PGOPTIONS) -c zklock.hosts=$(ZK_HOSTS) -c zklock.root=/zklock_regress)

unit_tests = t/c/protocol_test t/c/graph_test t/c/lease_test t/c/frame_test
EXTRA_CLEAN = $(unit_tests)

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifeq ($(wildcard $(PGXS)),)
$(error PostgreSQL's server headers were not found: install Debian's postgresql-server-dev-15 (or that of your version), or set PG_CONFIG)
endif
# targets that only test or remove need no compiler
ifneq ($(filter-out clean distclean installcheck uninstall,$(or $(MAKECMDGOALS),all)),)
# (make versions differ in how a number sign is written in a function)
hash := \#
ifneq ($(shell printf '$(hash)include <zookeeper/zookeeper.h>\n' | $(or $(CC),cc) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo yes),yes)
$(error ZooKeeper's client header was not found: install Debian's libzookeeper-st-dev)
endif
ifneq ($(shell printf 'char zoo_async(void); int main(void) { return zoo_async(); }\n' | $(or $(CC),cc) $(LDFLAGS) -x c - -lzookeeper_st -o /dev/null >/dev/null 2>&1 && echo yes),yes)
$(error ZooKeeper's single-threaded client library was not found: install Debian's libzookeeper-st-dev, instead of libzookeeper-mt-dev)
endif
with_tls ?= $(shell printf '$(hash)include <openssl/ssl.h>\nint main(void) { return TLS_client_method() == 0 || OPENSSL_thread_stop != OPENSSL_thread_stop; }\n' | $(or $(CC),cc) $(CPPFLAGS) $(LDFLAGS) -x c - -lssl -lcrypto -o /dev/null >/dev/null 2>&1 && echo yes)
ifeq ($(with_tls),yes)
PG_CPPFLAGS += -DZKLOCK_HAVE_TLS
SHLIB_LINK += -lssl -lcrypto
endif
endif

include $(PGXS)

# the tests in t/ set PGOPTIONS themselves
PROVE := PGOPTIONS= $(PROVE)

ifdef VPATH
$(shell mkdir -p $(sort $(dir $(OBJS))) t/c)
endif

# The compiler enforces the wall: below it PostgreSQL's headers are not found,
# and above it ZooKeeper's do not compile.
$(below_wall): override CPPFLAGS := $(filter-out -I$(includedir_server) -I$(includedir_internal),$(CPPFLAGS))
# PostgreSQL's own sources get this from a header
ifneq ($(shell grep -s '^.define USE_ASSERT_CHECKING 1' $(includedir_server)/pg_config.h),)
$(below_wall): override CPPFLAGS += -DZKLOCK_ASSERTIONS
endif
$(above_wall): override CPPFLAGS += -include $(srcdir)/src/zk/wall.h

# there are few headers: rebuild everything when one changes
$(OBJS): $(wildcard $(addprefix $(srcdir)/src/,*.h */*.h */*/*.h))
zklock$(DLSUFFIX): $(srcdir)/src/exports.map

# reports what is missing before the tests fail because of it
.PHONY: check-servers
check-servers:
	@sh $(srcdir)/dev/installcheck.sh '$(bindir)/psql' '$(ZK_HOSTS)' '$(strip $(REGRESS) $(ISOLATION))' '$(TAP_TESTS)'

.PHONY: check-unit
check-unit: $(unit_tests)
	set -e; for test in $(unit_tests); do $$test $(SEED); done

t/c/protocol_test: t/c/protocol_test.c t/c/unit.h src/zk/lock_protocol.c src/zk/lock_protocol.h
	$(CC) $(CFLAGS) -I$(srcdir)/src -o $@ $(srcdir)/t/c/protocol_test.c $(srcdir)/src/zk/lock_protocol.c

t/c/graph_test: t/c/graph_test.c t/c/unit.h src/lock/deadlock/wait_graph.c src/lock/deadlock/wait_graph.h
	$(CC) $(CFLAGS) -I$(srcdir)/src -o $@ $(srcdir)/t/c/graph_test.c $(srcdir)/src/lock/deadlock/wait_graph.c

t/c/lease_test: t/c/lease_test.c t/c/unit.h src/zk/lease.h src/zk/session.h
	$(CC) $(CFLAGS) -I$(srcdir)/src -o $@ $(srcdir)/t/c/lease_test.c

t/c/frame_test: t/c/frame_test.c t/c/unit.h src/zk/frame_check.c src/zk/frame_check.h
	$(CC) $(CFLAGS) -I$(srcdir)/src -o $@ $(srcdir)/t/c/frame_test.c -lzookeeper_st
