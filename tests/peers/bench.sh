#!/usr/bin/env bash
# Weir beside Flink 2.3 and plain DataFusion in batch: the same files, the same machine, one run.
#
#   EVENTS=8000000 RUNS=3 tests/peers/bench.sh        writes tests/peers/results.md and results.json
#
# Flink's jars come from PyPI (apache-flink-libraries), its runner is flink/Runner.java; Java 17 is needed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
cache=${WEIR_BENCH_CACHE:-$HOME/.cache/weir/bench}
mkdir -p "$cache"

(cd "$root" && cargo build --release --locked --bin weir --bin datafusion-batch)

if [ ! -x "$cache/flink/bin/python" ]; then
    python3 -m venv "$cache/flink"
    "$cache/flink/bin/pip" -q install --no-deps apache-flink-libraries==2.3.0
fi
jars=$("$cache/flink/bin/python" -c 'import pyflink; print(list(pyflink.__path__)[0])')/lib
mkdir -p "$cache/runner"
javac -cp "$jars/*" -d "$cache/runner" "$here/flink/Runner.java"

python3 "$here/bench.py" --weir "$target/release/weir" --batch "$target/release/datafusion-batch" \
    --flink-classpath "$jars/*:$cache/runner" --cache "$cache" --events "${EVENTS:-8000000}" --runs "${RUNS:-3}" \
    --parallelism "${PARALLELISM:-2}" --out "$here" "$@"

# Reads of a view by its key while its query works off the same files.
clients=$("$root/tests/services/python.sh")
for _ in 1 2 3; do
    "$clients/python" "$here/point_reads.py" --weir "$target/release/weir" --work "$cache/work" \
        --data "$cache/bids-${EVENTS:-8000000}/bids" --parallelism "${PARALLELISM:-2}" | tee -a "$here/results.md"
done

# What checkpoints cost, and restarts and changes of parallelism of a large state.
"$clients/python" "$here/checkpoints.py" --weir "$target/release/weir" --cache "$cache" --out "$here" \
    --data "$cache/bids-${EVENTS:-8000000}/bids" --flink-classpath "$jars/*:$cache/runner" --runs "${RUNS:-3}" \
    --parallelism "${PARALLELISM:-2}"
