# Everything a person does with the checkout. `make run` and `make test` need nothing but Debian, Rust and make:
# what else is missing, `make setup` installs.

export CARGO_TERM_PROGRESS_WHEN ?= never

# Continuous integration builds outside its checkout, so that a fresh clone need not compile DataFusion and RocksDB again.
ifeq ($(CI),true)
export CARGO_TARGET_DIR ?= $(HOME)/.cache/weir/target
endif
TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
WEIR := $(TARGET_DIR)/release/weir

.PHONY: help setup build run demo test soak bench web fmt

help: ## What can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

setup: ## Install the build packages that this machine lacks
	@scripts/setup.sh

build: setup ## Build the server (27 minutes the first time on two cores)
	cargo build --release --locked --bin weir

run: build ## Build and start the server with everything embedded, data under ./weir-data
	$(WEIR) serve

demo: build ## The flights tour on the January 2013 sample
	cd sql-examples && $(abspath $(WEIR)) run flights.sql

test: setup ## Everything that continuous integration runs
	scripts/test.sh

soak: build ## Half an hour of kills, pauses, rescales and store faults, and 300 kills around a final commit
	WEIR_SOAK_SECONDS=1800 WEIR_KILLS=300 cargo test --release --locked -p weir-tests --test it -- --nocapture soak final_commit

bench: build ## Weir beside Flink and plain DataFusion on the same files (docs/benchmarks.md)
	tests/peers/bench.sh

web: ## Build the dashboard into web/dist
	cd web && npm ci --no-audit --no-fund && npm run build

fmt: ## Format the code
	cargo fmt --all
