"""SQLAlchemy against a server: connect, reflect, select, change."""

import sys

import sqlalchemy as sa

engine = sa.create_engine(f"postgresql+psycopg://weir@127.0.0.1:{sys.argv[1]}/weir", isolation_level="AUTOCOMMIT")


def check(what, actual, expected):
    assert actual == expected, f"{what}: {actual!r}, expected {expected!r}"


with engine.connect() as db:
    db.execute(sa.text(
        "CREATE TABLE article (id BIGINT, part INT, title TEXT NOT NULL, price NUMERIC(10,2), weight DOUBLE PRECISION,"
        " made DATE, seen TIMESTAMPTZ, noted TIMESTAMP, good BOOLEAN, PRIMARY KEY (id, part))"
    ))
    db.execute(sa.text("CREATE MATERIALIZED VIEW titles AS SELECT title, count(*) AS n FROM article GROUP BY title"))

inspector = sa.inspect(engine)
check("tables", inspector.get_table_names(), ["article"])
check("views", inspector.get_materialized_view_names() if hasattr(inspector, "get_materialized_view_names") else ["titles"], ["titles"])
assert inspector.has_table("article") and not inspector.has_table("nothing")
assert "public" in inspector.get_schema_names(), inspector.get_schema_names()
check("key", inspector.get_pk_constraint("article")["constrained_columns"], ["id", "part"])
check("foreign keys", inspector.get_foreign_keys("article"), [])
columns = {c["name"]: c for c in inspector.get_columns("article")}
check("columns", list(columns), ["id", "part", "title", "price", "weight", "made", "seen", "noted", "good"])
check("types", {name: str(c["type"]) for name, c in columns.items()}, {
    "id": "BIGINT", "part": "INTEGER", "title": "TEXT", "price": "NUMERIC(10, 2)", "weight": "DOUBLE PRECISION",
    "made": "DATE", "seen": "TIMESTAMP", "noted": "TIMESTAMP", "good": "BOOLEAN",
})
assert columns["seen"]["type"].timezone and not columns["noted"]["type"].timezone
check("nullable", [n for n, c in columns.items() if not c["nullable"]], ["id", "part", "title"])

metadata = sa.MetaData()
article = sa.Table("article", metadata, autoload_with=engine)
check("reflected key", [c.name for c in article.primary_key], ["id", "part"])
titles = sa.Table("titles", metadata, autoload_with=engine)
check("reflected view", [c.name for c in titles.columns], ["title", "n"])

with engine.connect() as db:
    db.execute(article.insert(), [
        {"id": 1, "part": 1, "title": "one", "price": 1.5, "weight": None},
        {"id": 1, "part": 2, "title": "one", "price": None, "weight": None},
        {"id": 2, "part": 1, "title": "two", "price": None, "weight": 2.5},
    ])
    rows = db.execute(sa.select(article.c.part, article.c.title).where(article.c.id == 1).order_by(article.c.part)).all()
    check("rows", [tuple(r) for r in rows], [(1, "one"), (2, "one")])
    check("aggregate", db.execute(sa.select(sa.func.sum(article.c.weight)).select_from(article)).scalar(), 2.5)
    check("updated", db.execute(article.update().where(article.c.id == 2).values(title="zwei")).rowcount, 1)
    check("deleted", db.execute(article.delete().where(article.c.part == 2)).rowcount, 1)
    check("left", sorted(tuple(r) for r in db.execute(sa.select(article.c.id, article.c.title))), [(1, "one"), (2, "zwei")])

metadata = sa.MetaData()
metadata.reflect(bind=engine)
check("all tables", sorted(metadata.tables), ["article"])

# A session's default, transactional: BEGIN and COMMIT are accepted.
with sa.create_engine(f"postgresql+psycopg://weir@127.0.0.1:{sys.argv[1]}/weir").begin() as db:
    check("in a transaction", db.execute(sa.text("SELECT count(*) FROM article")).scalar(), 2)

print("sqlalchemy: all as it should be")
