# Makes the data folder at the first start, runs the init folder's statements (one a line), then becomes the server.
# Only what the shell has built in: the image holds nothing else.
set -e
if [ ! -f "$PGDATA/PG_VERSION" ]; then
  # shellcheck disable=SC2086 # several words on purpose
  initdb $POSTGRES_INITDB_ARGS --auth="$POSTGRES_HOST_AUTH_METHOD" --username="$POSTGRES_USER" --pgdata="$PGDATA"
  echo "host all all all $POSTGRES_HOST_AUTH_METHOD" >> "$PGDATA/pg_hba.conf"
  echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
  for file in /docker-entrypoint-initdb.d/*.sql; do
    [ ! -f "$file" ] || postgres --single -D "$PGDATA" postgres < "$file"
  done
fi
exec "$@"
