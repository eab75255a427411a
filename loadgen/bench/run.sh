#!/bin/sh
# Load tools against one prepared server, interleaved, each pinned to the same core and the server to another one.
# `make bench-load` calls it. Tools that are not installed are left out. Usage: run.sh BIN_DIR [ROUNDS]
set -eu
bin=$1
rounds=${2:-3}
here=$(dirname "$0")
work=$(mktemp -d)
server_pid=
end() {
    [ -z "$server_pid" ] || kill "$server_pid" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT INT TERM

# Starts the server of a kind; its address is in $url.
serve() {
    [ -z "$server_pid" ] || { kill "$server_pid"; wait "$server_pid" 2>/dev/null || true; }
    rm -f "$work/url"
    taskset -c 1 "$bin/examples/bench_server" "$1" "${2:-64}" 900 > "$work/url" &
    server_pid=$!
    while [ ! -s "$work/url" ]; do sleep 0.1; done
    url=$(cat "$work/url")
}
have() { command -v "$1" > /dev/null 2>&1; }
row() { printf '%-9s %-34s %s\n' "$1" "$2" "$3"; }

# Runs a profile; prints chosen figures of its summary.
ours() {
    out="$work/out"
    rm -rf "$out"
    taskset -c 0 "$bin/loadgen" run "$here/$1" --target "$url" --output "$out" > "$work/text" 2>&1 || true
    row loadgen "$2" "$(sed -n '/^stage\|^lateness/p' "$work/text" | tr '\n' ' ' | tr -s ' ')"
}

body=$(sed -n "s/^wrk.body = '\(.*\)'$/\1/p" "$here/post.lua")
serve json
for round in $(seq "$rounds"); do
    ours json64.json "json, 64 connections"
    if have wrk; then
        row wrk "json, 64 connections" "$(taskset -c 0 wrk -t1 -c64 -d6s -s "$here/post.lua" "$url/v1/chat/completions" | grep Requests/sec)"
    fi
    if have oha; then
        row oha "json, 64 connections" "$(taskset -c 0 oha --no-tui -z 6s -c 64 -m POST -T application/json -d "$body" "$url/v1/chat/completions" | grep Requests/sec)"
    fi
    if have vegeta; then
        printf '%s' "$body" > "$work/body"
        attack="POST $url/v1/chat/completions"
        row vegeta "json, 64 connections" "$(echo "$attack" | taskset -c 0 vegeta attack -body "$work/body" -header 'Content-Type: application/json' -rate 0 -max-workers 64 -connections 64 -duration 6s | vegeta report | grep -E '^Requests' | tr -s ' ')"
        row vegeta "json, 5000/s, mean and percentiles" "$(echo "$attack" | taskset -c 0 vegeta attack -body "$work/body" -header 'Content-Type: application/json' -rate 5000/1s -duration 6s | vegeta report | grep -E '^Latencies' | tr -s ' ')"
    fi
    if have k6; then
        row k6 "json, 64 users" "$(URL="$url/v1/chat/completions" BODY="$body" taskset -c 0 k6 run --quiet --vus 64 --duration 6s "$here/k6.js" 2>&1 | grep http_reqs | tr -s ' ')"
    fi
    ours open5k.json "json, 5000/s"
done
serve sse 64
for round in $(seq "$rounds"); do
    ours sse64.json "sse, 64 streams of 66 events"
done
