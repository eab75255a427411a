# The few commands that people and CI share. `make demo` needs a Rust toolchain and a C compiler, nothing else.
CARGO   ?= cargo
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
COMMIT  := $(shell git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
# One build identity for all programs of a build: the runner refuses to mix builds.
export PROOFLOAD_BUILD ?= $(VERSION)+$(COMMIT)

BIN     := target/demo
# Features of the build that the self-test of the assertions runs.
DEFECTS := runner/planted-defects,refshard/planted-defects,mocks/planted-defects,loadgen/planted-defects
PROGRAMS := runner loadgen mock-openai mock-dapi mock-chain ref-gateway ref-host ref-router

.PHONY: build demo test test-real check bench bench-load defects prove clean \
  prove-tests prove-selftest prove-aa prove-pressure prove-kill prove-mutants prove-canary
build:
	$(CARGO) build --locked --profile demo -p runner -p loadgen -p mocks -p refshard --bins

## Build, run the main job, say where the results are.
demo: build
	$(BIN)/runner run scenarios/ml-5xx.yaml

## Every scenario one after another on the embedded stack; stops at the first that does not pass.
scenarios: build
	for scenario in scenarios/*.yaml; do $(BIN)/runner run $$scenario --quiet || exit 1; done

# Programs beside a test: libraries then have the features that tests ask for, and none is compiled a second time.
TESTED := build --locked --workspace --bins --test tidy

## The programs twice: with planted defects in target/defects, and as they are in target/debug.
defects:
	# The same profile with the feature, kept apart: only four crates are compiled twice.
	$(CARGO) $(TESTED) --features $(DEFECTS)
	mkdir -p target/defects
	for program in $(PROGRAMS); do cp target/debug/$$program target/defects/; done
	$(CARGO) $(TESTED)

## What CI runs after `make check`.
test: defects
	$(CARGO) test --locked --workspace --no-fail-fast

## The scenarios of tests/real/ against real builds: DEVSHARD_BIN=DIR with devshardctl and devshardd.
test-real:
ifeq ($(strip $(DEVSHARD_BIN)),)
	@echo "test-real was skipped: DEVSHARD_BIN names no folder with devshardctl and devshardd"
else
	$(CARGO) $(TESTED)
	DEVSHARD_BIN="$(abspath $(DEVSHARD_BIN))" $(CARGO) test --locked --workspace --test end_to_end -- --nocapture real_builds
endif

## Format, clippy with warnings as errors, tidy rules, docs.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked --workspace --all-targets \
	  --features $(DEFECTS) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps
	$(CARGO) test --locked --workspace --test tidy

## Figures for docs/performance.md, as ratios where another program can be run beside.
bench: build
	$(CARGO) run --locked --profile demo -p sse --example sse_throughput
	$(CARGO) run --locked --profile demo -p stats --example histogram_throughput
	$(CARGO) run --locked --profile demo -p verdict --example evaluate
	$(CARGO) run --locked --profile demo -p runner --example start_times -- $(BIN)/runner
	$(CARGO) run --locked --profile demo -p runner --example join_memory -- 200000

## loadgen beside wrk, oha, vegeta and k6 (those that are installed), pinned and interleaved.
bench-load:
	$(CARGO) build --locked --profile demo -p loadgen --bin loadgen --example bench_server
	loadgen/bench/run.sh $(BIN)

## The long proofs (hours); CI does not run them. Each part can be called alone; docs/proof.md tells what was run.
RUNS ?=
prove: prove-tests prove-selftest prove-aa prove-pressure prove-kill prove-mutants
	tests/prove.sh page

prove-tests: defects
	$(CARGO) test --locked --workspace -- --include-ignored

prove-selftest: defects
	tests/prove.sh selftest target/defects

prove-aa: build
	tests/prove.sh aa $(or $(RUNS),200) $(BIN)

prove-pressure: build
	tests/prove.sh pressure $(or $(RUNS),50) $(BIN)

prove-kill: defects
	tests/prove.sh kill

prove-mutants:
	tests/prove.sh mutants

## Red unless the planted defect of the day is found, for the nightly job; FLAGS are those of `runner run`.
prove-canary: defects
	tests/prove.sh canary target/defects $(FLAGS)

clean:
	$(CARGO) clean
