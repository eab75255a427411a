# A Postgres server from the binaries of this machine, laid by the runner: root/ holds programs, libraries and shared files
# at the paths where they were, data/ is where it may write. Behaves as the official image does, as far as
# compose/postgres.yml needs it.
FROM scratch
ARG BIN
COPY root/ /
COPY --chown=70:70 data/ /var/lib/postgresql/data/
COPY --chown=70:70 data/ /var/run/postgresql/
COPY --chown=70:70 data/ /tmp/
COPY postgres-start.sh /postgres-start.sh
USER 70:70
ENV PATH=$BIN:/bin LC_ALL=C
ENTRYPOINT ["/bin/sh", "/postgres-start.sh"]
