# PostgreSQL with zklock.  The last stage is the official image of PostgreSQL with it;
# compose.yaml starts two of these, and a ZooKeeper.
#
#   docker build --build-arg BASE=postgres:17 .
#
# On a Debian, --target debian has Debian's own PostgreSQL, and --target zookeeper its
# ZooKeeper; dev/container builds both on a base without a registry:
#
#   docker build --build-arg BASE=debian:bookworm-slim --target debian .
ARG BASE=postgres:17

# What is needed to build stays here: with the compilers of PostgreSQL's -dev package it
# is larger than all the rest.
FROM ${BASE} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends \
	gcc libc6-dev libssl-dev libzookeeper-st-dev make postgresql-server-dev-${PG_MAJOR:-all}
COPY . /zklock
RUN cd /zklock && for pg_config in /usr/lib/postgresql/*/bin/pg_config; do \
	make PG_CONFIG=$pg_config clean && make PG_CONFIG=$pg_config with_llvm=no DESTDIR=/installed install || exit; done

FROM ${BASE} AS zookeeper
RUN apt-get update && apt-get install --yes --no-install-recommends zookeeper && rm -rf /var/lib/apt/lists/*
USER zookeeper
EXPOSE 2181
CMD ["/usr/share/zookeeper/bin/zkServer.sh", "start-foreground"]

# Its entry point takes the same arguments as that of the official image: the first start
# makes a cluster, which here lets everybody in.
FROM ${BASE} AS debian
RUN mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf && \
	apt-get update && apt-get install --yes --no-install-recommends postgresql '^libzookeeper-st2(t64)?$' && \
	rm -rf /var/lib/apt/lists/*
COPY --from=build /installed /
ENV LANG=C.UTF-8 PGDATA=/var/lib/postgresql/data
RUN install -d -o postgres -g postgres -m 700 $PGDATA && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ && \
	printf '%s\n' '#!/bin/sh' 'set -e' 'if [ ! -s "$PGDATA/PG_VERSION" ]; then' '	initdb --auth=trust --encoding=UTF8' \
	'	echo "host all all all trust" >>"$PGDATA/pg_hba.conf"' 'fi' 'exec "$@"' >/usr/local/bin/zklock-entrypoint && \
	chmod 755 /usr/local/bin/zklock-entrypoint
USER postgres
VOLUME /var/lib/postgresql/data
EXPOSE 5432
ENTRYPOINT ["zklock-entrypoint"]
CMD ["postgres", "-c", "listen_addresses=*"]

FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends '^libzookeeper-st2(t64)?$' && rm -rf /var/lib/apt/lists/*
COPY --from=build /installed /
