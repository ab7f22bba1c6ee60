"""Latency of point reads of a view by its key while the view's query reads the benchmark's files at full speed.

One client, one prepared statement, one read after the other until the query has finished. Prints JSON.
"""

import argparse
import json
import random
import shutil
import time
from pathlib import Path

from server import Server

HERE = Path(__file__).resolve().parent


def statements(file, data):
    return (HERE / "sql" / file).read_text().replace("@DATA@", str(data))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--data", required=True, help="directory of the bids")
    parser.add_argument("--work", required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    args = parser.parse_args()
    work = Path(args.work)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with Server(args.weir, work / "data", args.parallelism) as server:
        connection = server.connection
        connection.execute(statements("weir-bid.sql", args.data))
        query = statements("weir-q17.sql", args.data)
        # The same query as a view, which can be read.
        query = query.replace("CREATE SINK result", "CREATE MATERIALIZED VIEW result").replace("WITH (connector = 'blackhole')", "")
        started = time.monotonic()
        connection.execute(query)
        latencies, found, keys = [], 0, [1000]
        finished = None
        while finished is None:
            if len(latencies) % 100 == 0:
                state = connection.execute("SELECT state FROM weir.queries WHERE name = 'result'").fetchone()[0]
                if state.upper() == "FINISHED":
                    finished = time.monotonic()
                    break
                if len(keys) == 1 or len(latencies) % 1000 == 0:
                    rows = connection.execute("SELECT auction FROM result LIMIT 5000").fetchall()
                    keys = [row[0] for row in rows] or keys
            key = random.choice(keys)
            before = time.perf_counter()
            row = connection.execute("SELECT * FROM result WHERE auction = %s", (key,), prepare=True).fetchone()
            latencies.append((time.perf_counter() - before) * 1000)
            found += row is not None
    latencies.sort()
    at = lambda q: round(latencies[min(len(latencies) - 1, int(q * len(latencies)))], 2)
    print(json.dumps({"reads": len(latencies), "found": found, "seconds": round(finished - started, 1),
                      "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": round(latencies[-1], 2)}))


if __name__ == "__main__":
    main()
