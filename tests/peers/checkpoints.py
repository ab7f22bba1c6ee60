"""What checkpoints cost: throughput by interval, beside Flink, and their duration behind a slow consumer.

Prints one JSON line a figure and writes them to checkpoints.json. All of it is one run on one machine; ratios are within it.
"""

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path

from bench import OPENS, script, timed
from server import Server

HERE = Path(__file__).resolve().parent
INTERVALS = ["off", "10s", "1s", "200ms"]


def fresh(cache):
    work = cache / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    return work


def several(files, times, to):
    """The same files several times over, by links: more rows for the same keys."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for file in files.iterdir():
        for n in range(times):
            (to / f"{n}-{file.name}").hardlink_to(file)
    return to


def throughput(args, cache, files):
    """Seconds of q17 by interval. Weir reads the input several times over, so that a run has many checkpoints."""
    long = several(files, args.times, cache / "several")
    log = cache / "checkpoints.log"
    runs = {(engine, interval): [] for engine in args.engines.split(",") for interval in INTERVALS}
    for _ in range(args.runs):
        for (engine, interval), figures in runs.items():
            work = fresh(cache)
            sql = work / "script.sql"
            if engine == "weir":
                script(["weir-bid.sql", "weir-q17.sql"], long, sql)
                text = sql.read_text()
                setting = "SET 'execution.checkpointing.interval' = '5s';"
                assert setting in text
                # An interval that never comes: the last checkpoint, at the end of the input, is taken all the same.
                sql.write_text(text.replace(setting, setting.replace("5s", "24h" if interval == "off" else interval)))
                command = [args.weir, "run", str(sql), "--data-dir", str(work / "data"),
                           "--parallelism", str(args.parallelism)]
            else:
                script(["flink-bid.sql", "flink-q17.sql"], files, sql)
                command = ["java", *OPENS, "-Xmx4g", "-cp", args.flink_classpath, "Runner",
                           str(args.parallelism), str(work / "checkpoints"), interval, str(sql)]
            figures.append(timed(command, log)["wall"])
    for (engine, interval), figures in runs.items():
        seconds, off = statistics.median(figures), statistics.median(runs[engine, "off"])
        yield {"figure": "throughput", "engine": engine, "interval": interval, "seconds": round(seconds, 2),
               "runs": [round(figure, 2) for figure in figures], "over_off": round(seconds / off, 3)}


def back_pressure(args, cache, files):
    """Durations of checkpoints, trigger to completion, while a sink takes 1 ms a row and all before it is full."""
    for unaligned in (False, True):
        with Server(args.weir, fresh(cache) / "data", args.parallelism) as server:
            server.connection.execute((HERE / "sql/weir-bid.sql").read_text().replace("@DATA@", str(files)))
            server.connection.execute(
                f"""SET 'execution.checkpointing.interval' = '500ms';
                    SET 'execution.checkpointing.unaligned.enabled' = '{str(unaligned).lower()}';
                    CREATE SINK slow AS
                      SELECT auction, window_start, count(*) AS n
                      FROM TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '1 second')
                      GROUP BY auction, window_start, window_end EMIT ON WINDOW CLOSE
                      WITH (connector = 'blackhole', 'row.delay' = '1ms')""")
            time.sleep(args.seconds)
            server.connection.execute("ALTER QUERY slow PAUSE")
            rows = server.connection.execute(
                """SELECT extract(epoch FROM completed_at - triggered_at) * 1000 FROM weir.checkpoints
                   WHERE query = 'slow' AND state = 'COMPLETED'""").fetchall()
        durations = sorted(float(row[0]) for row in rows)
        at = lambda q: round(durations[min(len(durations) - 1, int(q * len(durations)))], 1) if durations else None
        yield {"figure": "back-pressure", "unaligned": unaligned, "checkpoints": len(durations),
               "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}


ROWS_IN = "SELECT rows_in FROM weir.queries WHERE name = 'big'"
NEWEST = "SELECT max(checkpoint) FROM weir.checkpoints WHERE query = 'big' AND state = 'COMPLETED'"


def at_size(args, cache, files):
    """A state of --keys keys of which one in a hundred changes between two checkpoints: what is uploaded, with every
    file an object of its own and with files merged; how long a restart from the store takes, and with twice the parallelism."""
    rate = max(1, args.keys // 100 // 10)
    for merging in ("false", "true"):
        work = fresh(cache)
        with Server(args.weir, work / "data", 2) as server:
            fields = "'fields.pad.length' = '110'"
            server.connection.execute(
                f"""SET 'execution.checkpointing.interval' = '10s';
                    SET 'execution.checkpointing.file-merging.enabled' = '{merging}';
                    CREATE STREAM seed (id BIGINT, pad TEXT) WITH (connector = 'datagen',
                      number_of_rows = '{args.keys}', 'fields.id.kind' = 'sequence', {fields});
                    CREATE STREAM change (id BIGINT, pad TEXT) WITH (connector = 'datagen', seed = '1',
                      rows_per_second = '{rate}', 'fields.id.max' = '{args.keys - 1}', {fields});
                    CREATE MATERIALIZED VIEW big AS SELECT id, count(*) AS n, max(pad) AS pad
                      FROM (SELECT * FROM seed UNION ALL SELECT * FROM change) GROUP BY id""")
            server.until(ROWS_IN, lambda rows: rows and rows >= args.keys)
            # Those that still have rows of the beginning do not count.
            first = server.until(NEWEST, lambda newest: newest) + 3
            server.until(NEWEST, lambda newest: newest >= first + args.checkpoints)
            rows = server.connection.execute(
                f"""SELECT new_bytes, total_bytes, objects FROM weir.checkpoints
                    WHERE query = 'big' AND state = 'COMPLETED' AND checkpoint > {first} ORDER BY checkpoint""").fetchall()
            changed = rate * 10 * 2 * 140
            uploaded = statistics.mean(row[0] for row in rows)
            yield {"figure": "upload", "merging": merging, "checkpoints": len(rows), "state_bytes": rows[-1][1],
                   "objects": max(row[2] for row in rows), "changed_bytes_each": changed,
                   "uploaded_bytes_each": round(uploaded), "uploaded_over_changed": round(uploaded / changed, 2)}
    for what, parallelism in (("restart", 2), ("2 to 4", 4)):
        started = time.monotonic()
        with Server(args.weir, work / "data", parallelism) as server:
            server.until("SELECT state FROM weir.queries WHERE name = 'big'", lambda state: state == "RUNNING")
            before, newest = server.one(ROWS_IN)[0], server.one(NEWEST)[0] or 0
            server.until(ROWS_IN, lambda rows: rows > before)
            first_row = time.monotonic() - started
            after = server.until(NEWEST, lambda now: now and now > newest)
            new, total = server.one(
                f"SELECT new_bytes, total_bytes FROM weir.checkpoints WHERE query = 'big' AND checkpoint = {after}")
            yield {"figure": what, "first_row_seconds": round(first_row, 2),
                   "first_checkpoint_bytes": new, "state_bytes": total}


def main():
    parser = argparse.ArgumentParser()
    for name in ("weir", "cache", "out", "data"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--flink-classpath", default="")
    parser.add_argument("--engines", default="weir,flink")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--times", type=int, default=4, help="how often Weir reads the input")
    parser.add_argument("--seconds", type=int, default=60, help="how long back-pressure is watched")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--keys", type=int, default=7_000_000, help="of the large state, two copies of 140 bytes each")
    parser.add_argument("--checkpoints", type=int, default=8, help="how many are watched at that size")
    parser.add_argument("--only", default="throughput,back_pressure,at_size")
    args = parser.parse_args()
    cache, figures = Path(args.cache), []
    for name in args.only.split(","):
        for figure in globals()[name](args, cache, Path(args.data)):
            figures.append(figure)
            print(json.dumps(figure), flush=True)
    (Path(args.out) / "checkpoints.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
