//! Queries as psql, drivers and SQLAlchemy send them.

use arrow::util::pretty::pretty_format_batches;
use futures::TryStreamExt;
use weir_planner::{Column, RelationKind, SqlType};

use super::*;

fn column(name: &str, ty: &str, nullable: bool) -> Column {
    Column::new(name, SqlType::parse(ty).unwrap(), nullable)
}

fn relation(name: &str, kind: RelationKind, columns: Vec<Column>, key: Vec<usize>) -> Arc<Relation> {
    Arc::new(Relation {
        name: name.to_owned(),
        kind,
        columns,
        key,
        watermark: None,
        event_time: None,
        connector: Default::default(),
        query: (kind == RelationKind::View).then(|| "SELECT count(*) AS n FROM flights".to_owned()),
        reads: Vec::new(),
        append_only: false,
        options: Default::default(),
        definition_sql: String::new(),
    })
}

fn snapshot() -> Arc<Snapshot> {
    let columns = vec![column("origin", "text", true), column("time_hour", "timestamptz", true)];
    let mut flights = relation("flights", RelationKind::Stream, columns, vec![]);
    if let Some(flights) = Arc::get_mut(&mut flights) {
        flights.connector.insert("path".to_owned(), "/data/flights.csv".to_owned());
    }
    let mut total = column("total", "numeric(10,2)", true);
    total.generated = Some("price * 2".to_owned());
    let columns =
        vec![column("id", "bigint", false), column("tag", "varchar(20)", true), total, column("ids", "int[]", true)];
    let orders = relation("orders", RelationKind::Table, columns, vec![0]);
    let view = relation("departures", RelationKind::View, vec![column("n", "bigint", true)], vec![0]);
    Snapshot::new(vec![flights, orders, view], "ada")
}

async fn try_answer(sql: &str) -> Result<String, String> {
    if !is_catalog_query(sql) {
        return Err(format!("not taken for a query over the catalogs: {sql}"));
    }
    let failed =
        |e: String| format!("{e}\n{sql}\n{}", rewrite::rewrite(sql).map(|s| s.to_string()).unwrap_or_default());
    let (_, rows) = run(snapshot(), sql, &[]).await.map_err(|e| failed(e.to_string()))?;
    let batches: Vec<_> = rows.try_collect().await.map_err(|e| failed(e.to_string()))?;
    Ok(pretty_format_batches(&batches).map_err(|e| e.to_string())?.to_string())
}

async fn answer(sql: &str) -> String {
    try_answer(sql).await.unwrap()
}

/// The statements of a file, for one relation.
fn statements(file: &str, name: &str) -> Vec<String> {
    let oid = snapshot().oids.relation(name).to_string();
    let text: String = file.lines().filter(|line| !line.starts_with("--")).map(|line| format!("{line}\n")).collect();
    text.split(";\n")
        .map(str::trim)
        .filter(|statement| !statement.is_empty())
        .map(|statement| statement.replace("{oid}", &oid).replace("{name}", name))
        .collect()
}

#[tokio::test]
async fn all_that_psql_and_sqlalchemy_ask_is_answered() {
    let mut failures = Vec::new();
    for name in ["flights", "orders", "departures"] {
        for file in [include_str!("testdata/psql.sql"), include_str!("testdata/sqlalchemy.sql")] {
            for statement in statements(file, name) {
                failures.extend(try_answer(&statement).await.err());
            }
        }
    }
    failures.sort();
    failures.dedup();
    assert!(failures.is_empty(), "{} failures:\n\n{}", failures.len(), failures.join("\n\n"));
}

fn psql(name: &str, part: &str) -> String {
    let found = statements(include_str!("testdata/psql.sql"), name).into_iter().find(|s| s.contains(part));
    found.unwrap_or_else(|| panic!("no statement with {part}"))
}

#[tokio::test]
async fn psql_lists_relations_by_kind() {
    let list = answer(&psql("orders", "c.relkind IN ('r','p','v','m','S','f','')")).await;
    for row in [
        "| departures | materialized view |",
        "| flights    | foreign table     |",
        "| orders     | table             |",
    ] {
        assert!(list.contains(row), "{list}");
    }
    assert!(!list.contains("orders_pkey") && !list.contains("pg_class"), "{list}");
}

#[tokio::test]
async fn psql_describes_columns() {
    let columns = answer(&psql("orders", "format_type(a.atttypid, a.atttypmod)")).await;
    for part in ["bigint", "character varying(20)", "numeric(10,2)", "integer[]", "price * 2"] {
        assert!(columns.contains(part), "{columns}");
    }
    let index = answer(&psql("orders", "pg_get_indexdef(i.indexrelid, 0, true)")).await;
    assert!(index.contains("orders_pkey") && index.contains("PRIMARY KEY (id)"), "{index}");
    let server = answer(&psql("flights", "pg_foreign_table f,")).await;
    assert!(server.contains("path '/data/flights.csv'"), "{server}");
}

#[tokio::test]
async fn sqlalchemy_finds_the_primary_key() {
    let found = statements(include_str!("testdata/sqlalchemy.sql"), "orders");
    let key = found.iter().find(|s| s.contains("generate_subscripts") && s.contains("AS cols")).unwrap();
    let key = answer(key).await;
    assert!(key.contains("[id]") && key.contains("orders_pkey"), "{key}");
}

#[tokio::test]
async fn the_server_says_what_it_is() {
    assert!(answer("SELECT version()").await.contains("PostgreSQL 16.6 (Weir"));
    let text = answer("SELECT current_schema(), current_database(), current_user, session_user").await;
    assert!(text.contains("current_schema") && text.contains("| public") && text.contains("| ada"), "{text}");
    assert!(answer("select pg_catalog.set_config('search_path', '', false)").await.contains("set_config"));
    assert!(answer("SELECT 'orders'::regclass::oid").await.contains(&snapshot().oids.relation("orders").to_string()));
    let missing = try_answer("SELECT 'nothing'::regclass").await.unwrap_err();
    assert!(missing.contains("relation \"nothing\" does not exist"), "{missing}");
}

#[tokio::test]
async fn information_schema_speaks_sql() {
    let columns = answer(
        "SELECT column_name, data_type, is_nullable, ordinal_position FROM information_schema.columns \
         WHERE table_name = 'orders' ORDER BY ordinal_position",
    )
    .await;
    assert!(columns.contains("| id          | bigint            | NO          | 1 "), "{columns}");
    assert!(columns.contains("ARRAY"), "{columns}");
    let tables =
        answer("SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public'").await;
    assert!(tables.contains("BASE TABLE") && tables.contains("VIEW") && tables.contains("FOREIGN"), "{tables}");
}

#[tokio::test]
async fn parameters_of_drivers() {
    let sql = "SELECT typname AS name, oid, typarray AS array_oid, oid::regtype::text AS regtype, typdelim AS delimiter \
               FROM pg_type t WHERE t.oid = to_regtype($1) ORDER BY t.oid";
    assert!(is_catalog_query(sql));
    let (state, plan) = plan(&snapshot(), sql).await.unwrap();
    let _ = state;
    assert_eq!(parameter_types(&plan).unwrap().len(), 1);
    let (_, rows) = run(snapshot(), sql, &[ScalarValue::Utf8(Some("int4".to_owned()))]).await.unwrap();
    let batches: Vec<_> = rows.try_collect().await.unwrap();
    let text = pretty_format_batches(&batches).unwrap().to_string();
    assert!(text.contains("integer") && text.contains("1007"), "{text}");
}
