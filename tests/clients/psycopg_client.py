"""psycopg 3 against a server: parameters, prepared statements, types, cursors, errors, COPY, a subscription."""

import datetime
import decimal
import sys
import threading
import time

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Json, Jsonb

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
        # Lists, as they are and as an array of no rows, of one type and of another.
        for binary in (False, True):
            mark = "%b" if binary else "%t"
            by = lambda sql, *values: [row[0] for row in cursor.execute(sql.replace("%s", mark), values).fetchall()]
            check("by list", by("SELECT id FROM item WHERE id = ANY(%s) ORDER BY id", [1, 2]), [1, 2])
            check("by long list", by("SELECT id FROM item WHERE id = ANY(%s) ORDER BY id", [2, 2**40]), [2])
            check("by list of texts", by("SELECT id FROM item WHERE name = ANY(%s)", ["one", "o,ne", None]), [1])
            check("by empty list", by("SELECT id FROM item WHERE id = ANY(%s)", []), [])
            check("by none of", by("SELECT id FROM item WHERE id <> ALL(%s) ORDER BY id", [1, 3]), [2])
            check("by list of numerics", by("SELECT id FROM item WHERE price = ANY(%s)",
                                            [decimal.Decimal("10.25"), decimal.Decimal("1.5")]), [1])
            check("by list of dates", by("SELECT id FROM item WHERE made = ANY(%s)", [datetime.date(2024, 2, 29)]), [1])
            check("deleted by list", cursor.execute(
                f"DELETE FROM item WHERE id = ANY({mark})", ([101, 102],)).rowcount, 0)
        check("by literal", cursor.execute(
            "SELECT id FROM item WHERE id = ANY(ARRAY[1,3]) AND id = ANY('{2,3}') AND id = ANY('{3}'::int[])").fetchall(), [(3,)])
        check("in an array that is a column", cursor.execute(
            "SELECT %s = ANY(tags) FROM (SELECT ARRAY['a','b'] AS tags) t", ("b",)).fetchone(), (True,))
        check("an array as it is", cursor.execute("SELECT %s::text[], %s::int[]", (["a", None, 'b "c"'], [])).fetchone(),
              (["a", None, 'b "c"'], []))
        columns = cursor.execute("SELECT id, name, price FROM item LIMIT 0").description
        check("names", [c.name for c in columns], ["id", "name", "price"])
        check("type codes", [c.type_code for c in columns], [20, 25, 1700])
        columns = cursor.execute(
            "SELECT count(*), sum(id), max(name)::varchar, 1, 1, id::text, CASE WHEN id > 1 THEN 2 END, coalesce(name, '')"
            " FROM item GROUP BY id, name LIMIT 0").description
        check("names of what has none", [c.name for c in columns],
              ["count", "sum", "max", "?column?", "?column?", "id", "case", "coalesce"])
        check("twice the same", cursor.execute("SELECT count(*), count(*) FROM item ORDER BY count").fetchone(), (3, 3))
        check("of two relations", cursor.execute(
            "SELECT a.id, b.id FROM item a JOIN item b ON a.id = b.id ORDER BY a.id LIMIT 1").fetchone(), (1, 1))
        check("functions about the server", cursor.execute(
            "SELECT current_user, pg_catalog.current_schema(), id FROM item WHERE id = 1").fetchone(), ("weir", "public", 1))
        check("version", cursor.execute("SHOW server_version").fetchone()[0], db.info.parameter_status("server_version"))

    # Arrays, JSON and their NULLs there and back.
    db.execute("CREATE TABLE box (id INT PRIMARY KEY, numbers BIGINT[], words TEXT[], amounts NUMERIC(10,2)[],"
               " moments TIMESTAMPTZ[], yes BOOLEAN[], plain JSON, keyed JSONB, at TIMESTAMPTZ)")
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, utc)
    boxes = [
        (1, [1, None, 2**40], ["a", None, 'b "c", {d}', ""], [decimal.Decimal("1.50"), decimal.Decimal("-2.25")],
         [moment, None], [True, False, None], {"a": [1, None]}, {"b": "ü"}, moment),
        (2, [], [], [], [], [], [], 1, None),
        (3, None, None, None, None, None, None, None, None),
    ]
    for number, mark in ((0, "%t"), (10, "%b"), (20, "%s")):
        with db.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO box VALUES ({', '.join([mark] * 9)})",
                [(box[0] + number, *box[1:6], None if box[6] is None else Json(box[6]),
                  None if box[7] is None else Jsonb(box[7]), box[8]) for box in boxes])
            check("rows by executemany", cursor.rowcount, 3)
        for binary in (False, True):
            got = db.cursor(binary=binary).execute(
                "SELECT * FROM box WHERE id BETWEEN %s AND %s ORDER BY id", (number, number + 9)).fetchall()
            check(f"boxes by {mark}, binary={binary}", got, [(box[0] + number, *box[1:]) for box in boxes])
    check("changed array", db.execute("UPDATE box SET words = %s, numbers = '{7,8}' WHERE id = %s", (["x"], 2)).rowcount, 1)
    check("as changed", db.execute("SELECT words, numbers FROM box WHERE id = 2").fetchone(), (["x"], [7, 8]))
    check("array by text", db.execute("INSERT INTO box (id, words) VALUES (40, '{p,\"q r\"}')").rowcount, 1)
    check("as inserted", db.execute("SELECT words FROM box WHERE 'q r' = ANY(words)").fetchall(), [(["p", "q r"],)])
    check("a moment", db.execute("SELECT '2024-05-06 07:08:09.123456'::timestamptz, timestamptz '2024-05-06 00:00:00+02',"
                                 " pg_typeof(1) IS NULL" if False else
                                 "SELECT '2024-05-06 07:08:09.123456'::timestamptz, timestamptz '2024-05-06 00:00:00+02'"
                                 ).fetchone(), (moment, datetime.datetime(2024, 5, 5, 22, 0, 0, 0, utc)))
    check("rows by name", db.cursor(row_factory=dict_row).execute("SELECT id, cardinality(words) FROM box WHERE id = 40")
          .fetchone(), {"id": 40, "cardinality": 2})

    # An error has its SQLSTATE, and the connection goes on.
    for sql, state in [("SELECT * FROM nowhere", "42P01"), ("SELECT nothing FROM item", "42703"), ("SELEC 1", "42601"),
                       ("INSERT INTO item (id) VALUES (1)", "23505"), ("INSERT INTO item (name) VALUES ('x')", "23502")]:
        try:
            db.execute(sql)
            raise AssertionError(f"{sql} was not refused")
        except psycopg.Error as error:
            check(sql, error.sqlstate, state)
    check("goes on", db.execute("SELECT 1").fetchone(), (1,))
    try:
        db.execute("SELECT wight FROM item")
        raise AssertionError("an unknown column was not refused")
    except psycopg.errors.UndefinedColumn as error:
        check("severity", error.diag.severity, "ERROR")
        check("diagnosis", (error.diag.sqlstate, error.diag.message_hint), ("42703", 'did you mean "weight"?'))
        assert "wight" in error.diag.message_primary, error.diag.message_primary

    # A pipeline: many statements on their way at once; one that fails ends its part only.
    with db.pipeline():
        first = [db.execute("SELECT %s::int", (i,)) for i in range(5)]
        check("in a pipeline", [cursor.fetchone() for cursor in first], [(i,) for i in range(5)])
    try:
        with db.pipeline() as pipeline:
            good = db.execute("SELECT 1")
            pipeline.sync()
            bad = db.execute("SELECT nothing FROM item")
            after = db.execute("SELECT 2")
            pipeline.sync()
        raise AssertionError("an error in a pipeline was not told")
    except psycopg.errors.UndefinedColumn:
        check("before the error", good.fetchone(), (1,))
    check("after the pipeline", db.execute("SELECT 3").fetchone(), (3,))

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

# Transaction blocks: after an error nothing runs until their end; Weir's statements are each a transaction of its own.
with psycopg.connect(dsn, autocommit=True) as db:
    with db.transaction():
        check("in a block", db.info.transaction_status.name, "INTRANS")
        check("count", db.execute("SELECT count(*) FROM item").fetchone(), (3,))
    check("out of it", db.info.transaction_status.name, "IDLE")
    try:
        with db.transaction():
            db.execute("SELECT nothing FROM item")
    except psycopg.errors.UndefinedColumn:
        pass
    check("goes on", db.execute("SELECT 1").fetchone(), (1,))
    try:
        with db.transaction():
            try:
                db.execute("SELECT nothing FROM item")
            except psycopg.errors.UndefinedColumn:
                pass
            db.execute("SELECT 1")
    except psycopg.errors.InFailedSqlTransaction:
        check("out of the failed one", db.info.transaction_status.name, "IDLE")

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

    # The same by psycopg's own server-side cursor.
    with db.cursor(name="stream") as stream:
        stream.execute("SUBSCRIBE TO short")
        rows_now, until = [], time.monotonic() + 60
        while len(rows_now) < 2 and time.monotonic() < until:
            rows_now += [row[1:] for row in stream.fetchmany(10)]
        check("by a named cursor", sorted(rows_now, key=repr), sorted([(1, 1, "uno"), (1, 3, None)], key=repr))
        check("its columns", [c.name for c in stream.description][2:], ["id", "name"])
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

# So is one that computes without end.
with psycopg.connect(dsn, autocommit=True) as db:
    threading.Timer(0.5, db.cancel).start()
    try:
        db.execute("SELECT a.value FROM generate_series(1, 1000000) a JOIN generate_series(1, 1000000) b"
                   " ON a.value % 3 = b.value % 3 ORDER BY a.value + b.value LIMIT 5")
        raise AssertionError("a query without end has ended")
    except psycopg.errors.QueryCanceled as error:
        check("sqlstate", error.sqlstate, "57014")
    check("goes on", db.execute("SELECT count(*) FROM item").fetchone(), (2,))

print("psycopg: all as it should be")
