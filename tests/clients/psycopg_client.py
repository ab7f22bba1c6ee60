"""psycopg 3 against a server: parameters, prepared statements, types, cursors, errors, COPY, a subscription."""

import datetime
import decimal
import sys
import threading
import time

import psycopg

dsn = f"host=127.0.0.1 port={sys.argv[1]} user=weir dbname=weir"


def check(what, actual, expected):
    assert actual == expected, f"{what}: {actual!r}, expected {expected!r}"


with psycopg.connect(dsn, autocommit=True) as db:
    db.execute(
        "CREATE TABLE item (id BIGINT PRIMARY KEY, name TEXT, weight DOUBLE PRECISION, price NUMERIC(10,2), made DATE,"
        " seen TIMESTAMPTZ, noted TIMESTAMP, good BOOLEAN, raw BYTEA, small SMALLINT, number INT, one REAL)"
    )
    utc = datetime.timezone.utc
    rows = [
        (1, "one", 1.5, decimal.Decimal("10.25"), datetime.date(2024, 2, 29),
         datetime.datetime(2024, 1, 1, 12, 30, 0, 250000, utc), datetime.datetime(2024, 1, 1, 12, 30), True, b"\x00\xff",
         -1, 7, 0.5),
        (2, "o'ne ü \\ \"", -2.25, decimal.Decimal("-0.01"), None, None, None, False, b"", None, None, None),
        (3, None, None, None, None, None, None, None, None, 32767, -2147483648, -1.25),
    ]
    marks = ", ".join(["%s"] * 12)
    with db.cursor() as cursor:
        for row in rows:
            cursor.execute(f"INSERT INTO item VALUES ({marks})", row)
            check("rows inserted", cursor.rowcount, 1)

    # Every type there and back, as text and as binary.
    for binary in (False, True):
        with db.cursor(binary=binary) as cursor:
            got = cursor.execute("SELECT * FROM item ORDER BY id").fetchall()
            check(f"all rows, binary={binary}", got, rows)

    # One prepared statement, many values.
    with db.cursor() as cursor:
        for _ in range(3):
            for row in rows:
                got = cursor.execute("SELECT name, weight FROM item WHERE id = %s", (row[0],), prepare=True).fetchone()
                check("by key", got, (row[1], row[2]))
        check("with two parameters", cursor.execute(
            "SELECT count(*) FROM item WHERE weight > %s AND name <> %s", (-10.0, "nobody")).fetchone(), (2,))
        check("by date", cursor.execute("SELECT id FROM item WHERE made = %s", (datetime.date(2024, 2, 29),)).fetchone(), (1,))
        check("by moment", cursor.execute("SELECT id FROM item WHERE seen >= %s", (rows[0][5],)).fetchone(), (1,))
        check("many at once", cursor.executemany(
            "INSERT INTO item (id, name) VALUES (%s, %s)", [(10 + i, f"n{i}") for i in range(20)]), None)
        check("counted", cursor.execute("SELECT count(*) FROM item").fetchone(), (23,))
        check("changed", cursor.execute("UPDATE item SET weight = %s WHERE id >= %s", (3.5, 20)).rowcount, 10)
        check("gone", cursor.execute("DELETE FROM item WHERE id >= %s", (10,)).rowcount, 20)
        columns = cursor.execute("SELECT id, name, price FROM item LIMIT 0").description
        check("names", [c.name for c in columns], ["id", "name", "price"])
        check("type codes", [c.type_code for c in columns], [20, 25, 1700])

    # An error has its SQLSTATE, and the connection goes on.
    for sql, state in [("SELECT * FROM nowhere", "42P01"), ("SELECT nothing FROM item", "42703"), ("SELEC 1", "42601"),
                       ("INSERT INTO item (id) VALUES (1)", "23505"), ("INSERT INTO item (name) VALUES ('x')", "23502")]:
        try:
            db.execute(sql)
            raise AssertionError(f"{sql} was not refused")
        except psycopg.Error as error:
            check(sql, error.sqlstate, state)
    check("goes on", db.execute("SELECT 1").fetchone(), (1,))

    # COPY out.
    with db.cursor() as cursor, cursor.copy("COPY (SELECT id, name FROM item ORDER BY id) TO STDOUT") as copy:
        check("copy", b"".join(copy), b"1\tone\n2\to'ne \xc3\xbc \\\\ \"\n3\t\\N\n")

# A server-side cursor in a transaction.
with psycopg.connect(dsn) as db:
    with db.cursor(name="some") as cursor:
        cursor.execute("SELECT id FROM item ORDER BY id")
        check("two", cursor.fetchmany(2), [(1,), (2,)])
        check("the rest", cursor.fetchmany(5), [(3,)])
        check("no more", cursor.fetchmany(5), [])
    db.commit()

# FETCH over a subscription: the rows that stand, then each change.
with psycopg.connect(dsn, autocommit=True) as writer, psycopg.connect(dsn) as db:
    writer.execute("CREATE MATERIALIZED VIEW short AS SELECT id, name FROM item")
    until = time.monotonic() + 60
    while writer.execute("SELECT count(*) FROM short").fetchone() != (3,) and time.monotonic() < until:
        time.sleep(0.01)
    db.execute("DECLARE changes CURSOR FOR SUBSCRIBE TO short")

    def changes(count):
        got, until = [], time.monotonic() + 60
        while len(got) < count and time.monotonic() < until:
            # Epoch and sign come first.
            got += [row[1:] for row in db.execute("FETCH 100 FROM changes").fetchall()]
        return sorted(got, key=repr)

    check("the rows that stand", changes(3), sorted([(1, 1, "one"), (1, 2, rows[1][1]), (1, 3, None)], key=repr))
    check("nothing yet", db.execute("FETCH 100 FROM changes").fetchall(), [])
    writer.execute("UPDATE item SET name = 'uno' WHERE id = 1")
    check("an update", changes(2), sorted([(-1, 1, "one"), (1, 1, "uno")], key=repr))
    writer.execute("DELETE FROM item WHERE id = 2")
    check("a deletion", changes(1), [(-1, 2, rows[1][1])])
    db.execute("CLOSE changes")
    db.commit()

# A running statement is cancelled from another thread, and the connection goes on.
with psycopg.connect(dsn, autocommit=True) as db:
    threading.Timer(0.5, db.cancel).start()
    try:
        with db.cursor() as cursor:
            for _ in cursor.stream("SUBSCRIBE TO item"):
                pass
        raise AssertionError("a subscription ended by itself")
    except psycopg.errors.QueryCanceled:
        pass
    check("goes on", db.execute("SELECT count(*) FROM item").fetchone(), (2,))

print("psycopg: all as it should be")
