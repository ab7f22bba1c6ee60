"""Latency of point reads of a view by its key while the view's query reads the benchmark's files at full speed.

One client, one prepared statement, one read after the other until the query has finished. Prints JSON.
"""

import argparse
import json
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psycopg

HERE = Path(__file__).resolve().parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def connect(port, server):
    while True:
        try:
            return psycopg.connect(host="127.0.0.1", port=port, user="weir", dbname="weir", autocommit=True)
        except psycopg.OperationalError:
            if server.poll() is not None:
                raise SystemExit("the server has ended") from None
            time.sleep(0.05)


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
    sql, http = free_port(), free_port()
    with open(work / "server.log", "wb") as log:
        server = subprocess.Popen(
            [args.weir, "serve", "--data-dir", str(work / "data"), "--parallelism", str(args.parallelism),
             "--listen-sql", f"127.0.0.1:{sql}", "--listen-http", f"127.0.0.1:{http}"], stdout=log, stderr=log)
    try:
        with connect(sql, server) as connection:
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
    finally:
        server.terminate()
        server.wait()
    latencies.sort()
    at = lambda q: round(latencies[min(len(latencies) - 1, int(q * len(latencies)))], 2)
    print(json.dumps({"reads": len(latencies), "found": found, "seconds": round(finished - started, 1),
                      "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": round(latencies[-1], 2)}))


if __name__ == "__main__":
    main()
