# Two commands on a fresh machine with cargo: `make run` and `make test`.

CARGO ?= cargo
# The demo's port: make run PORT=9000
PORT ?= 8080
# One fuzz target, or all of them, and how long each runs: make fuzz TARGET=conf_lexer SECONDS=60
FUZZ_TARGETS = $(patsubst fuzz/fuzz_targets/%.rs,%,$(wildcard fuzz/fuzz_targets/*.rs))
TARGET ?= $(FUZZ_TARGETS)
SECONDS ?= 300

.PHONY: help setup setup-build setup-peers build dist run test lint perf fuzz

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile

setup: setup-build setup-peers ## installs what is missing (apt-get; sudo where needed)

setup-build:
	@.ci/setup build

# Tests and measurements leave out a peer that is not there, so a machine without the network can still run them.
setup-peers:
	@.ci/setup peers || echo "setup: going on without nginx, haproxy or wrk: what compares with them is left out" >&2
	@[ -d tests/browser/node_modules ] || npm ci --silent --no-audit --no-fund --prefix tests/browser \
		|| echo "setup: going on without playwright-core: the dashboard is not looked at" >&2
	@[ -x tests/.venv/bin/schemathesis ] || { python3 -m venv tests/.venv && tests/.venv/bin/pip install --quiet -r tests/requirements.txt; } \
		|| echo "setup: going on without schemathesis: the API is not held against its document" >&2

build: setup-build ## the release binary
	@$(CARGO) build --release --locked -p ironweir

dist: setup ## the binary as packages ship it: laid out by a profile of its cases (5 minutes; rustup and wrk)
	@$(CARGO) build --release --locked -p floor
	@perf/optimize.py

run: setup-build ## builds (quickly: not the binary for packages) and starts `ironweir demo`
	@$(CARGO) build --profile quick --locked -p ironweir
	@exec $$($(CARGO) metadata --format-version 1 --no-deps --locked | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/quick/ironweir demo --port $(PORT)

# One profile (dev, with its assertions) for unit tests and whole-binary tests; all results are shown, not only the first
# failure's.
test: setup ## all tests
	@$(CARGO) test --workspace --locked --no-fail-fast

lint: setup-build ## formatting, clippy without warnings, licences and advisories (cargo-deny, if it is installed)
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@if command -v cargo-deny >/dev/null 2>&1; then $(CARGO) deny --locked check licenses bans sources; \
	else echo "lint: cargo-deny is not installed, deny.toml is not checked" >&2; fi

perf: setup ## what a request costs nginx, HAProxy, the floor and Ironweir (20 minutes; root)
	@$(CARGO) build --release --locked -p floor
	@ironweir=$$(perf/optimize.py) && perf/side_by_side.py --ironweir "$$ironweir"

fuzz: setup-build ## every fuzz target for five minutes (nightly and cargo-fuzz)
	@for target in $(TARGET); do \
		echo "== $$target"; $(CARGO) +nightly fuzz run "$$target" -- -max_total_time=$(SECONDS) || exit 1; done
