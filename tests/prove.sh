#!/usr/bin/env bash
# The parts of `make prove` that are counted runs, each callable alone, and the page that they make.
#   tests/prove.sh aa RUNS BIN         healthy runs over all scenarios, every one with another seed: no A-fail
#   tests/prove.sh pressure RUNS BIN   the same beside busy loops and a disk writer: pass, invalid or unknown, no fail
#   tests/prove.sh selftest BIN        every planted defect and every sabotage; writes selftest/matrix.json
#   tests/prove.sh kill                the whole kill matrix
#   tests/prove.sh mutants             cargo-mutants over crates/verdict, where it is installed: no survivor but those that
#                                      tests/mutants-accepted.txt explains
#   tests/prove.sh canary BIN [FLAG…]  one planted defect, chosen by the day: a run that does not fail is a failure
#   tests/prove.sh page                the rows of docs/proof.md that the parts left in target/proof; all others stay
set -euo pipefail
cd "$(dirname "$0")/.."
out=target/proof
mkdir -p "$out"

commit() { git describe --always --dirty --abbrev=12; }

# Leaves one row of the page.
row() { # part, what was run, result
  printf '| %s | %s | %s | `%s` | %s |\n' "$1" "$2" "$3" "$(commit)" "$(date -u +%Y-%m-%d)" >"$out/$1.row"
  printf '%s: %s: %s\n' "$1" "$2" "$3"
}

# Healthy runs one after another; counts how they ended and keeps the directories of those that failed.
runs() { # part, count, folder of the programs
  local part=$1 count=$2 bin=$3 results ended list total=0
  results=$(mktemp -d)
  declare -A ended=()
  local files=(scenarios/*.yaml)
  for ((number = 0; number < count; number++)); do
    local file=${files[number % ${#files[@]}]} seed=$((1000 + number * 7919)) code=0
    # Ids that a file lists are those of its own seed.
    if grep -q 'ids: \[' "$file"; then seed=$(sed -n 's/^seed: *//p' "$file"); fi
    "$bin/runner" run "$file" --seed "$seed" --quiet --results "$results" >"$out/$part.last" 2>&1 || code=$?
    ended[$code]=$((${ended[$code]:-0} + 1))
    total=$((total + 1))
    if [ "$code" = 1 ] || [ "$code" = 70 ]; then
      echo "$part: $file --seed $seed ended with $code" | tee -a "$out/$part.failed"
      mkdir -p "$out/failed" && cp -r "$results"/* "$out/failed/"
    elif [ "$code" != 0 ]; then
      echo "$part: $file --seed $seed ended with $code: $(grep -m1 -E 'unknown|invalid|found' "$out/$part.last" || true)"
    fi
    rm -rf "${results:?}"/*
  done
  rm -rf "$results"
  list="pass ${ended[0]:-0}, fail ${ended[1]:-0}, invalid ${ended[3]:-0}, unknown ${ended[4]:-0}"
  list+=", environment ${ended[5]:-0}, internal ${ended[70]:-0}, refused ${ended[2]:-0}"
  row "$part" "$total runs over $((total < ${#files[@]} ? total : ${#files[@]})) of ${#files[@]} scenarios" "$list"
  [ "${ended[1]:-0}" = 0 ] && [ "${ended[70]:-0}" = 0 ]
}

# No mutant survived but those that somebody looked at: a line of the list is the name of one, `#` begins a comment.
# A name that no mutant has any more is an error too, or the list would only grow.
explained() { # folder that cargo-mutants left
  local missed=$1/missed.txt accepted=tests/mutants-accepted.txt code=0
  [ -s "$1/caught.txt" ] || { echo "mutants: nothing was caught, so nothing was tried" >&2; return 1; }
  # Places move with every change above them; the name after them stays.
  names() { sed -e 's/ *#.*//' -e 's/^\([^:]*\):[0-9]*:[0-9]*:/\1:/' -e '/^$/d' "$1" | sort -u; }
  comm -23 <(names "$missed") <(names "$accepted") | sed 's/^/mutants: survives unexplained: /' | grep . >&2 && code=1
  comm -13 <(names "$missed") <(names "$accepted") | sed 's/^/mutants: explained, but no survivor: /' | grep . >&2 && code=1
  return "$code"
}

case "${1:-}" in
aa) runs aa "$2" "$3" ;;
pressure)
  neighbours=()
  trap 'kill "${neighbours[@]}" 2>/dev/null || true; rm -f "$out/disk"' EXIT
  for _ in $(seq $(($(nproc) * 2))); do
    sh -c 'while :; do :; done' &
    neighbours+=($!)
  done
  (while :; do dd if=/dev/zero of="$out/disk" bs=1M count=256 conv=fsync status=none; done) &
  neighbours+=($!)
  runs pressure "$2" "$3"
  ;;
selftest)
  code=0
  "$2/runner" selftest --layer M,B --matrix selftest/matrix.json --results target/proof/selftest | tee "$out/selftest.log" ||
    code=$?
  row selftest "every planted defect and sabotage" "$(tail -n 1 "$out/selftest.log")"
  exit "$code"
  ;;
kill)
  ${CARGO:-cargo} test --locked --workspace --test end_to_end lifecycle:: -- --include-ignored 2>&1 | tee "$out/kill.log"
  row kill "the kill matrix (tests/tests/end_to_end/lifecycle.rs)" "$(grep -m1 '^test result' "$out/kill.log")"
  ;;
mutants)
  if ${CARGO:-cargo} mutants --version >/dev/null 2>&1; then
    ${CARGO:-cargo} mutants --package verdict --output "$out" 2>&1 | tee "$out/mutants.log" || true
    row mutants "cargo-mutants over crates/verdict" "$(tail -n 1 "$out/mutants.log")"
    explained "$out/mutants.out"
  else
    row mutants "cargo-mutants over crates/verdict" "NOT RUN: cargo-mutants is not installed"
  fi
  ;;
canary)
  # Every day another one, all of them in turn: a job that has gone blind is found within one turn.
  bin=$2
  shift 2
  mapfile -t names < <(sed -n '/"sabotage"/q; s/^ *"name": "\(.*\)",/\1/p' selftest/defects.json)
  mapfile -t files < <(sed -n '/"sabotage"/q; s/^ *"scenario": "\(.*\)",/\1/p' selftest/defects.json)
  [ "${#names[@]}" -gt 30 ] && [ "${#names[@]}" = "${#files[@]}" ] || { echo "canary: the catalogue can't be read" >&2; exit 2; }
  day=$(($(date -u +%s) / 86400))
  for ((step = 0; step < ${#names[@]}; step++)); do
    at=$(((day + step) % ${#names[@]}))
    # What the scenario itself plants has no flag.
    "$bin/runner" run --help | tr -s ' \n' ' ' | grep -qE "[[ ,]${names[at]}[], ]" && break
  done
  code=0
  "$bin/runner" run "${files[at]}" --defect "${names[at]}" --quiet "$@" >"$out/canary.log" 2>&1 || code=$?
  case "$code" in
  1 | 3 | 4) result="${names[at]} was found (exit $code)" ;;
  0) result="${names[at]} PASSED: this job finds nothing" ;;
  *) result="${names[at]} COULD NOT BE TRIED (exit $code)" ;;
  esac
  row canary "the planted defect of the day $*" "$result"
  case "$code" in 1 | 3 | 4) exit 0 ;; *) exit 1 ;; esac
  ;;
page)
  # A row that no part left behind stays as it is: it was run another day, or written by hand.
  kept=$(mktemp)
  for row in "$out"/*.row; do cut -d '|' -f 2 "$row"; done >"$kept.names"
  awk -F '|' 'NR == FNR { new[$1] = 1; next } /^\| / && $2 != " Part " && !($2 in new)' "$kept.names" docs/proof.md >"$kept"
  words=$(awk '/^Parts, each callable alone/ { on = 1 } on' docs/proof.md)
  {
    echo "# Proof"
    echo
    echo "Written by \`make prove\` (\`tests/prove.sh page\`) from what each part left behind. Each row has its own commit: a part"
    echo "that was not run again keeps the row of its last run, and so does what was written by hand. What is no row was not"
    echo "run."
    echo
    echo "Machine of the last run: $(nproc) cores, $(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1048576)) GB, $(uname -sr)."
    echo
    echo "| Part | What was run | Result | Commit | Day |"
    echo "|---|---|---|---|---|"
    cat "$out"/*.row "$kept"
    echo
    echo "$words"
  } >"$kept.page"
  mv "$kept.page" docs/proof.md
  rm -f "$kept" "$kept.names"
  ;;
*)
  sed -n '2,10p' "$0" >&2
  exit 2
  ;;
esac
