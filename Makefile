# `make help` lists the targets. All builds use the versions in the lock files, and write only to this tree: target/
# (Rust), .venv/ (Python), out/ (runs and reports).

PYTHON ?= python3
VENV := .venv
JOBS := $(shell nproc)
# Every build of the Python module uses the same interpreter, so that cargo does not rebuild the module.
export PYO3_PYTHON := $(CURDIR)/$(VENV)/bin/python
export CARGO_BUILD_JOBS ?= $(JOBS)

# The directory tree that `make run` measures: files that exist on every Debian machine.
SOURCE ?= $(firstword $(wildcard /usr/share/doc $(HOME)/.rustup/toolchains/*/share/doc) /usr/share)
RUN ?= out/compare.run

# NO_MKDOCS_2_WARNING stops the theme from advertising its successor. The option --quiet is not used
# instead, because with --quiet the build would not be strict.
BUILD_SITE := NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

.DEFAULT_GOAL := help
.PHONY: help setup build run dist docs libs3 capi mpi test lint bench soak clean

help: ## show this help
	@echo "usage: make TARGET [PYTHON=python3.11] [SOURCE=DIR]"; echo
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-10s %s\n", $$1, $$2 }'

setup: ## install what is missing: Debian packages, the Rust toolchain, the Python environment
	@PYTHON=$(PYTHON) tools/setup-system
	@$(MAKE) --no-print-directory $(VENV)/.installed

$(VENV)/.installed: bind/python/requirements.txt
	tools/setup-venv $(VENV) $(PYTHON) $<
	@touch $@

build: setup ## build the release binary, and the Python package into .venv
	cargo build --release --locked
	$(VENV)/bin/maturin develop --release --locked --manifest-path bind/python/Cargo.toml

run: build ## the main job: compare the lanes on a real tree, and write the report
	@mkdir -p $(dir $(RUN))
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" target/release/fordway compare "$(SOURCE)" --out "$(RUN)" --force
	@echo "report: $(abspath $(RUN:.run=.html))"

dist: ## build what people install: packages, archive, wheel and image, reproducibly, into out/dist
	PYTHON=$(PYTHON) tools/dist

docs: $(VENV)/.installed ## build the documentation as a site into out/site; a broken link is an error
	$(BUILD_SITE)
	@echo "docs: $(CURDIR)/out/site/index.html; with search: $(VENV)/bin/python -m http.server --directory out/site 8000"

libs3: ## build the drop-in libraries for programs that use libs3, into out/lib and out/include
	tools/build-libs3 out

capi: ## build the C API (fordway.h, libfordway), into out/lib and out/include
	tools/build-capi out

# A program linked to one MPI does not run under another MPI, so each MPI has its own build
# directory.
MPICC ?= mpicc
MPIRUN ?= mpirun
MPI_TARGET := target$(if $(filter-out mpicc,$(MPICC)),/$(MPICC))

mpi: export FORDWAY_MPI := 1
mpi: export MPICC := $(MPICC)
mpi: export MPIRUN := $(MPIRUN)
mpi: setup ## build fordway-mpi for the MPI of MPICC and MPIRUN (Debian's Open MPI if there is none), and test it
	cargo build --release --locked -p fordway-mpi --target-dir $(MPI_TARGET)
	$(MPICC) -O2 -Wall -Wextra -fPIC -shared bind/mpi/pmpi/report.c -o $(MPI_TARGET)/release/libfordway-pmpi.so
	cargo test --locked -p fordway-mpi --target-dir $(MPI_TARGET)

test: setup ## build and run all tests, in Rust and Python; the last lines name what was skipped, and the sum
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" FORDWAY_BIN="$(CURDIR)/target/debug/fordway" \
		FORDWAY_CAPI="$(CURDIR)/target/test-libraries" cargo xtask test $(VENV)/bin/python

lint: setup ## check formats, lints and the arrows between crates
	cargo fmt --all --check
	cargo clippy --workspace --exclude fordway-mpi --all-targets --locked -- -D warnings
	cargo xtask arrows
	cargo xtask dependencies
	cargo xtask header --check
	@set -e; for patch in tools/soak-fuzz.d/bugs/*.patch; do git apply --check "$$patch"; done
	$(VENV)/bin/ruff check bind/python
	$(VENV)/bin/ruff format --check bind/python
	$(VENV)/bin/ruff check tools bench dev $$(grep -rlE '^#!.*python' tools bench dev)
	tools/reference-pages --check
	$(BUILD_SITE)

bench: build ## run the benchmarks in bench/
	@set -e; for script in bench/*; do test -d "$$script" -o ! -x "$$script" || PATH="$(CURDIR)/$(VENV)/bin:$$PATH" "$$script"; done

soak: export FORDWAY_SOAK := 1
soak: build ## run the long tests: many random operations on every lane
	PROPTEST_CASES=20000 cargo test --release --locked -p fordway-testkit -p fordway-posix -p fordway-store -p fordway-wire
	TMPDIR=/dev/shm cargo test --release --locked -p fordway-testkit --test index
	FORDWAY_BIN="$(CURDIR)/target/release/fordway" $(VENV)/bin/python -m pytest -q -s bind/python/tests/test_commits.py
	tools/soak-fuse
	tools/soak-fuzz 5
	tools/soak-defects
	$(VENV)/bin/python tools/soak-faults
	$(VENV)/bin/python tools/soak-powercut
	tools/soak-srun
	tools/soak-speedup
	tools/soak-setups
	$(VENV)/bin/python tools/soak-kubernetes
	tools/soak-davix
	tools/soak-policy
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" tools/soak-root
	tools/soak-libraries

clean: ## remove everything that was built or measured
	rm -rf target out $(VENV) bind/python/fordway._fordway.data bind/python/fordway/*.so bind/python/dist
