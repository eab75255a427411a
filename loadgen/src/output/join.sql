-- Client records of a load run beside the rows of your gateway. The generator needs no database; this is a template.
--
-- 1. Load the client records, one JSON object a line, as text.
--      SQLite (3.38 or newer), in the sqlite3 shell:
--        CREATE TABLE client_line (line TEXT);
--        .mode ascii
--        .separator "\037" "\n"
--        .import {records} client_line
--      DuckDB:
--        CREATE TABLE client_line AS SELECT line FROM read_csv('{records}',
--          columns = {'line': 'VARCHAR'}, delim = '\x1f', quote = '', escape = '', header = false);
--
-- 2. Give your gateway's rows the name and the columns of server_row, for example as a view of your request log:
--        CREATE VIEW server_row AS
--        SELECT request_id, status, duration_us, prompt_tokens, completion_tokens FROM your_request_log;
--    request_id is what the gateway answered in X-Request-Id. Where it logs what the client sent in that header
--    instead, join on client.conversation: it is the same for all turns of a conversation, so that server_row then
--    needs the ordinal of the turn too.
--
-- 3. Read this file. Every client record and every server row appears exactly once; `found` says on which side.
--    Times are microseconds. `outside_us` is what the server does not see: network, and waiting on the client's side.

WITH client AS (
  SELECT
    line ->> '$.response_request_id' AS request_id,
    line ->> '$.conversation' AS conversation,
    CAST(line ->> '$.turn' AS BIGINT) AS turn,
    line ->> '$.scenario' AS scenario,
    CAST(line ->> '$.stage' AS BIGINT) AS stage,
    line ->> '$.class' AS class,
    CAST(line ->> '$.status' AS BIGINT) AS status,
    CAST(line ->> '$.start_us' AS BIGINT) AS start_us,
    CAST(line ->> '$.latency_us' AS BIGINT) AS latency_us,
    CAST(line ->> '$.service_us' AS BIGINT) AS service_us,
    CAST(line ->> '$.ttft_us' AS BIGINT) AS ttft_us,
    CAST(line ->> '$.prompt_tokens' AS BIGINT) AS prompt_tokens,
    CAST(line ->> '$.completion_tokens' AS BIGINT) AS completion_tokens
  FROM client_line
)
SELECT
  CASE WHEN server.request_id IS NULL THEN 'client only' ELSE 'both' END AS found,
  client.request_id AS request_id,
  client.conversation AS conversation,
  client.turn AS turn,
  client.scenario AS scenario,
  client.stage AS stage,
  client.class AS class,
  client.status AS client_status,
  server.status AS server_status,
  client.latency_us AS latency_us,
  client.ttft_us AS ttft_us,
  server.duration_us AS server_us,
  client.service_us - server.duration_us AS outside_us,
  client.completion_tokens AS client_tokens,
  server.completion_tokens AS server_tokens
FROM client
LEFT JOIN server_row AS server ON server.request_id = client.request_id
UNION ALL
SELECT
  'server only', server.request_id, NULL, NULL, NULL, NULL, NULL, NULL, server.status, NULL, NULL,
  server.duration_us, NULL, NULL, server.completion_tokens
FROM server_row AS server
WHERE NOT EXISTS (SELECT 1 FROM client WHERE client.request_id = server.request_id)
ORDER BY 1, 2;
