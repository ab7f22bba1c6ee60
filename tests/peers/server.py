"""A server of the benchmarks' own."""

import socket
import subprocess
import time

import psycopg


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`weir serve` on a data directory, and a connection to it. Killed at the end."""

    def __init__(self, weir, data, parallelism):
        self.sql = free_port()
        self.command = [weir, "serve", "--data-dir", str(data), "--parallelism", str(parallelism),
                        "--listen-sql", f"127.0.0.1:{self.sql}", "--listen-http", f"127.0.0.1:{free_port()}"]
        self.log = data.parent / "server.log"

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        try:
            self.connection = self.connect()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_):
        self.connection.close()
        self.kill()

    def connect(self):
        while True:
            try:
                return psycopg.connect(host="127.0.0.1", port=self.sql, user="weir", dbname="weir", autocommit=True)
            except psycopg.OperationalError:
                if self.process.poll() is not None:
                    raise SystemExit(f"the server has ended; see {self.log}") from None
                time.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def one(self, sql):
        return self.connection.execute(sql).fetchone()

    def until(self, sql, holds, patience=1800):
        """Asks until the first value of the answer is as it shall be, and answers it."""
        end = time.monotonic() + patience
        while True:
            row = self.one(sql)
            if row is not None and holds(row[0]):
                return row[0]
            if time.monotonic() > end:
                raise SystemExit(f"{sql}: {row}")
            time.sleep(0.1)
