#!/usr/bin/env bash
# All checks, cheapest first; the tests last, so that the output ends with their count.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

step "format"
cargo fmt --all --check

step "words that do not belong into the project"
if git grep -nE 'todo!\(|unimplemented!\(|\bdbg!\(' -- '*.rs' ':!tests'; then
    echo "left for later in the code" >&2
    exit 1
fi

step "clippy"
cargo clippy --release --locked --workspace --all-targets -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --workspace --no-deps --quiet

step "dashboard"
scripts/check-web.sh

step "build"
cargo build --release --locked --workspace --all-targets

step "tests"
cargo test --release --locked --workspace --no-fail-fast 2>&1 | tee "$log"

step "summary"
awk '/^test result:/ { passed += $4; failed += $6; skipped += $8 }
     END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 }' "$log"
