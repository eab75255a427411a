#!/usr/bin/env bash
# Load tools against one prepared server, interleaved, each pinned to the same core and the server to another one.
# `make bench-load` calls it. Tools that are not installed are left out. Usage: run.sh BIN_DIR [ROUNDS] [SECONDS]
#
# Each row has requests a second (wall time) and CPU time a request (user and system, of the whole process with its start
# and reports, for loadgen about 60 ms): on a shared machine the second one is the figure to read. The table at the end takes the best round of each tool.
# Lateness is measured by the server, in the same way for every tool: see loadgen/examples/bench_server.rs.
set -euo pipefail
bin=$1
rounds=${2:-3}
seconds=${3:-6}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server_pid=
end() {
    [ -z "$server_pid" ] || kill "$server_pid" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT INT TERM
TIMEFORMAT='%U %S'
body=$(sed -n "s/^wrk.body = '\(.*\)'$/\1/p" "$here/post.lua")
printf '%s' "$body" > "$work/body"
: > "$work/rows"

# Starts the server of a kind; its address is in $url, what it says further in $work/server.
serve() {
    [ -z "$server_pid" ] || { kill "$server_pid"; wait "$server_pid" 2>/dev/null || true; }
    rm -f "$work/server"
    taskset -c 1 "$bin/examples/bench_server" "$1" "$2" 3600 >> "$work/server" &
    server_pid=$!
    while [ ! -s "$work/server" ]; do sleep 0.1; done
    url=$(head -n 1 "$work/server")
    call=$url/v1/chat/completions
}
have() { command -v "$1" > /dev/null 2>&1; }

# Runs a command on core 0; its output is in $work/out and $work/err, its CPU time in $work/cpu. A tool that fails is
# told by its missing figures.
timed() { { time taskset -c 0 "$@" > "$work/out" 2> "$work/err"; } 2> "$work/cpu" || true; }

# Notes and prints a row: case, tool, requests, seconds that they took, what one unit is (requests or events).
row() {
    awk -v case="$1" -v tool="$2" -v count="${3:-0}" -v span="${4:-0}" -v per="${5:-1}" '
        { cpu_us = ($1 + $2) * 1e6 }
        END {
            count *= per
            if (count == 0 || span == 0) { printf "%-34s %-9s no figures\n", case, tool; exit }
            printf "%-34s %-9s %9.0f /s %8.2f us CPU each\n", case, tool, count / span, cpu_us / count
            printf "%s|%s|%f|%f\n", case, tool, count / span, cpu_us / count >> rows
        }' rows="$work/rows" "$work/cpu"
}

# One profile and further flags; requests are all that were sent, those of the warm-up included, since the CPU time is
# that of all.
ours() {
    rm -rf "$work/results"
    timed "$bin/loadgen" run "$here/$1" --target "$url" --output "$work/results" --duration "${seconds}s" --quiet \
        "${@:2}"
    lines=$(cat "$work"/results/results-*.jsonl | wc -l)
}
closed() {
    ours json64.json; row "$1" loadgen "$lines" "$seconds"
    if have wrk; then
        timed wrk -t1 -c64 "-d${seconds}s" -s "$here/post.lua" "$call"
        row "$1" wrk "$(sed -n 's/^ *\([0-9]*\) requests in.*/\1/p' "$work/out")" "$seconds"
    fi
    if have oha; then
        timed oha --no-tui -z "${seconds}s" -c 64 -m POST -T application/json -D "$work/body" "$call"
        row "$1" oha "$(awk -v s="$seconds" '/Requests\/sec/ { print $2 * s }' "$work/out")" "$seconds"
    fi
    if have vegeta; then
        timed vegeta attack -targets <(echo "POST $call") -body "$work/body" -header 'Content-Type: application/json' \
            -rate 0 -max-workers 64 -connections 64 -duration "${seconds}s"
        row "$1" vegeta "$(vegeta report -type=json < "$work/out" | sed -n 's/.*"requests":\([0-9]*\).*/\1/p')" "$seconds"
    fi
    if have k6; then
        URL=$call BODY=$body timed k6 run --quiet --vus 64 --duration "${seconds}s" "$here/k6.js"
        row "$1" k6 "$(sed -n 's/^ *http_reqs[. ]*: *\([0-9]*\) .*/\1/p' "$work/out")" "$seconds"
    fi
}

# One connection with 64 streams; wrk speaks no HTTP/2, k6 only with TLS.
shared() {
    ours json64.json --http 2; row "$1" loadgen "$lines" "$seconds"
    if have oha; then
        timed oha --no-tui --http2 -z "${seconds}s" -c 1 -p 64 -m POST -T application/json -D "$work/body" "$call"
        row "$1" oha "$(awk -v s="$seconds" '/Requests\/sec/ { print $2 * s }' "$work/out")" "$seconds"
    fi
    if have vegeta; then
        timed vegeta attack -h2c -targets <(echo "POST $call") -body "$work/body" \
            -header 'Content-Type: application/json' -rate 0 -max-workers 64 -connections 64 -duration "${seconds}s"
        row "$1" vegeta "$(vegeta report -type=json < "$work/out" | sed -n 's/.*"requests":\([0-9]*\).*/\1/p')" "$seconds"
    fi
}

# What the server says about the client that has just gone.
late() {
    sleep 0.3
    printf '%-34s %-9s %s (%s)\n' "5000 requests/s" "$1" "$(grep -a lateness "$work/server" | tail -n 1 || true)" "$2"
    : > "$work/server"
}
# The generator's own figure, which the server's confirms.
own() { grep -E '^ +lateness' "$work/out" | head -n 1 | tr -s ' ' || true; }
open() {
    ours open5k.json; late loadgen "own:$(own)"
    ours open5k-spin.json; late loadgen "spinning, own:$(own)"
    if have vegeta; then
        timed vegeta attack -targets <(echo "POST $call") -body "$work/body" -header 'Content-Type: application/json' \
            -rate 5000/1s -duration "${seconds}s"
        late vegeta "does not show it"
    fi
    if have oha; then
        timed oha --no-tui -z "${seconds}s" -c 64 -q 5000 --latency-correction -m POST -T application/json \
            -D "$work/body" "$call"
        late oha "does not show it"
    fi
    if have k6; then
        URL=$call BODY=$body RATE=5000 SPAN=${seconds}s timed k6 run --quiet "$here/k6-rate.js"
        late k6 "does not show it"
    fi
}

echo "load average $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) cores, $seconds s each, $rounds rounds"
for kind in json-small json; do
    serve "$kind" 1
    for _ in $(seq "$rounds"); do closed "$kind, 64 connections"; done
done
serve h2 1
for _ in $(seq "$rounds"); do shared "json-small, HTTP/2, 64 streams"; done
serve late 5000
for _ in $(seq "$rounds"); do open; done
serve sse 64
for _ in $(seq "$rounds"); do
    ours sse64.json
    row "sse events, 64 streams" loadgen "$lines" "$seconds" 66
done
echo
echo "best of $rounds rounds; loadgen over the others: requests/s, and CPU a request the other way round"
awk -F'|' '
    { key = $1 "|" $2 }
    !(key in rate) { order[++n] = key; rate[key] = $3; cpu[key] = $4 }
    $3 > rate[key] { rate[key] = $3 }
    $4 < cpu[key] { cpu[key] = $4 }
    END {
        for (i = 1; i <= n; i++) {
            split(order[i], part, "|"); ours = part[1] "|loadgen"
            printf "%-34s %-9s %9.0f /s %8.2f us CPU each   x %.2f   CPU x %.2f\n", part[1], part[2], rate[order[i]],
                cpu[order[i]], rate[ours] / rate[order[i]], cpu[order[i]] / cpu[ours]
        }
    }' "$work/rows"
