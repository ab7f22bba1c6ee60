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
        connector: Default::default(),
        query: (kind == RelationKind::View).then(|| "SELECT 1".to_owned()),
        reads: Vec::new(),
        append_only: false,
        options: Default::default(),
        definition_sql: String::new(),
    })
}

fn snapshot() -> Arc<Snapshot> {
    let mut flights = relation(
        "flights",
        RelationKind::Stream,
        vec![column("origin", "text", true), column("time_hour", "timestamptz", true)],
        vec![],
    );
    Arc::make_mut(&mut flights).connector.insert("path".to_owned(), "/data/flights.csv".to_owned());
    let mut total = column("total", "numeric(10,2)", true);
    total.generated = Some("price * 2".to_owned());
    let orders = relation(
        "orders",
        RelationKind::Table,
        vec![column("id", "bigint", false), column("tag", "varchar(20)", true), total, column("ids", "int[]", true)],
        vec![0],
    );
    let view = relation("departures", RelationKind::View, vec![column("n", "bigint", true)], vec![0]);
    Snapshot::new(vec![flights, orders, view], "ada")
}

async fn answer(sql: &str) -> String {
    assert!(is_catalog_query(sql), "not taken for a query over the catalogs: {sql}");
    let (_, rows) = run(snapshot(), sql, &[]).await.unwrap_or_else(|e| panic!("{e}\n{sql}"));
    let batches: Vec<_> = rows.try_collect().await.unwrap_or_else(|e| panic!("{e}\n{sql}"));
    pretty_format_batches(&batches).unwrap().to_string()
}

#[tokio::test]
async fn the_server_says_what_it_is() {
    assert!(answer("SELECT version()").await.contains("PostgreSQL 16.0 (Weir"));
    let text = answer("SELECT current_schema(), current_database(), current_user, session_user").await;
    assert!(text.contains("current_schema") && text.contains("| public") && text.contains("| ada"), "{text}");
    assert!(answer("select pg_catalog.set_config('search_path', '', false)").await.contains("set_config"));
}
