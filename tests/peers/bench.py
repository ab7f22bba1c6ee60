"""Times whole processes of Weir, Flink and DataFusion batch over the same Nexmark files, in turn, and writes a table.

Every engine reads JSON lines from the same directory. Two sizes are run, the second four times smaller, so that start-up
and sustained speed are told apart. Figures are the median of the runs; memory is the largest of them.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
QUERIES = {"q0": "projection", "count": "10-s tumbling count per bidder", "q17": "q17 without its day column"}
OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang java.net java.io java.nio sun.nio.ch java.lang.reflect java.text java.time java.util "
        "java.util.concurrent java.util.concurrent.atomic java.util.concurrent.locks"
    ).split()
]


def timed(command, log):
    """Wall seconds, CPU seconds and peak memory (MiB) of one process."""
    with open(log, "ab") as out:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        sys.exit(f"{command[0]} ended with {code}; see {log}")
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss / 1024}


def script(parts, data, path):
    text = "\n".join((HERE / "sql" / part).read_text() for part in parts)
    path.write_text(text.replace("@DATA@", str(data)))
    return path


def main():
    parser = argparse.ArgumentParser()
    for name in ("weir", "batch", "flink-classpath", "cache", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--events", type=int, default=8_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--only", default=",".join(QUERIES))
    parser.add_argument("--engines", default="weir,flink,batch")
    args = parser.parse_args()
    cache = Path(args.cache)
    log = cache / "bench.log"
    log.unlink(missing_ok=True)
    engines = args.engines.split(",")
    results = []
    for events in (args.events, args.events // 4):
        data = cache / f"bids-{events}"
        if not (data / "done").exists():
            shutil.rmtree(data, ignore_errors=True)
            subprocess.run(
                [args.weir, "nexmark", "--out", str(data), "--events", str(events), "--parts", str(args.parallelism)],
                check=True,
            )
            (data / "bids").mkdir()
            for file in data.glob("bids-*.jsonl"):
                file.rename(data / "bids" / file.name)
            (data / "done").touch()
        files = data / "bids"
        for query in args.only.split(","):
            runs = {engine: [] for engine in engines}
            for _ in range(args.runs):
                for engine in engines:
                    work = cache / "work"
                    shutil.rmtree(work, ignore_errors=True)
                    work.mkdir()
                    sql = work / "script.sql"
                    if engine == "weir":
                        script(["weir-bid.sql", f"weir-{query}.sql"], files, sql)
                        command = [args.weir, "run", str(sql), "--data-dir", str(work / "data"),
                                   "--parallelism", str(args.parallelism)]
                    elif engine == "flink":
                        script(["flink-bid.sql", f"flink-{query}.sql"], files, sql)
                        command = ["java", *OPENS, "-Xmx4g", "-cp", args.flink_classpath, "Runner",
                                   str(args.parallelism), str(work / "checkpoints"), "5s", str(sql)]
                    else:
                        script([f"batch-{query}.sql"], files, sql)
                        command = [args.batch, str(files), str(sql)]
                    runs[engine].append(timed(command, log))
            row = {"events": events, "query": query}
            for engine, figures in runs.items():
                row[engine] = {
                    "wall": statistics.median(f["wall"] for f in figures),
                    "walls": [round(f["wall"], 2) for f in figures],
                    "cpu": statistics.median(f["cpu"] for f in figures),
                    "rss": max(f["rss"] for f in figures),
                }
            results.append(row)
            print(json.dumps(row), flush=True)
    out = Path(args.out)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = [f"Parallelism {args.parallelism}, median of {args.runs} runs, seconds of wall time of the whole process.", ""]
    lines.append("| events | query | " + " | ".join(engines) + " | flink / weir | weir / batch | weir, MiB |")
    lines.append("|" + " --- |" * (len(engines) + 5))
    for row in results:
        ratio = lambda a, b: f"{row[a]['wall'] / row[b]['wall']:.2f}" if a in row and b in row else ""
        cells = [f"{row['events']:,}", f"{row['query']}: {QUERIES[row['query']]}"]
        cells += [f"{row[engine]['wall']:.1f}" for engine in engines]
        cells += [ratio("flink", "weir"), ratio("weir", "batch"), f"{row['weir']['rss']:.0f}" if "weir" in row else ""]
        lines.append("| " + " | ".join(cells) + " |")
    (out / "results.md").write_text("\n".join(lines) + "\n")
    print((out / "results.md").read_text())


if __name__ == "__main__":
    main()
