//! TUMBLE and HOP: arguments, in streams and in batch.

use std::sync::Arc;

use arrow::array::{RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::util::pretty::pretty_format_batches;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as DfStatement;
use sqlparser::ast;

use super::Fixture;
use crate::statement::{Statement, parse};

#[test]
fn windows_in_all_their_forms() {
    let fixture = Fixture::new();
    let plans: Vec<String> = [
        "SELECT window_start, window_end, count(*) AS n FROM HOP(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '5 minutes', INTERVAL '1 hour') GROUP BY window_start, window_end",
        "SELECT w.window_end, count(*) AS n FROM tumble(flights, time_hour, INTERVAL '90' MINUTE) AS w GROUP BY w.window_end",
        "SELECT window_end, count(*) AS n FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day', INTERVAL '6 hours') GROUP BY window_end",
        "SELECT window_end, count(*) AS n FROM TUMBLE(DATA => flights, TIMECOL => DESCRIPTOR(time_hour), SIZE => INTERVAL '1 day') GROUP BY window_end",
        "SELECT window_start, max(d) AS d FROM TUMBLE(TABLE (SELECT time_hour AS t, dep_delay AS d FROM flights WHERE carrier = 'UA'), DESCRIPTOR(t), INTERVAL '1 hour') GROUP BY window_start, window_end EMIT ON WINDOW CLOSE",
        "WITH w AS (SELECT * FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 hour')) SELECT max(n) AS n, window_end FROM (SELECT carrier, window_start, window_end, count(*) AS n FROM w WHERE carrier <> 'AA' GROUP BY 1, 2, 3) GROUP BY window_end EMIT ON WINDOW CLOSE",
        "SELECT id, window_start FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '10 s')",
        "SELECT a.window_end, a.n, b.n AS m FROM (SELECT window_start, window_end, count(*) AS n FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 hour') GROUP BY 1, 2) a JOIN (SELECT window_start, window_end, count(dep_delay) AS n FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 hour') GROUP BY 1, 2) b ON a.window_end = b.window_end",
    ]
    .iter()
    .map(|q| format!("{q}\n{}\n", fixture.view(q)))
    .collect();
    snapshot!(plans.join("\n"));
}

#[test]
fn wrong_calls_say_how_it_is_written() {
    let fixture = Fixture::new();
    let refusals: Vec<String> = [
        "TUMBLE(TABLE flights)",
        "TUMBLE(TABLE flights, DESCRIPTOR(time_hour))",
        "TUMBLE(TABLE flights, DESCRIPTOR(time_our), INTERVAL '1 day')",
        "TUMBLE(TABLE flights, DESCRIPTOR(carrier), INTERVAL '1 day')",
        "TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 month')",
        "TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '0 s')",
        "TUMBLE(TABLE flights, DESCRIPTOR(time_hour), '1 day')",
        "TUMBLE(TABLE flighs, DESCRIPTOR(time_hour), INTERVAL '1 day')",
        "HOP(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day')",
        "HOP(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '2 days', INTERVAL '1 day')",
        "HOP(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 h', INTERVAL '1 day', INTERVAL '0', 1)",
        "SESSION(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day')",
        "generate_series(1, 10)",
    ]
    .iter()
    .map(|call| format!("{call}\n{}\n", fixture.refused(&format!("SELECT count(*) FROM {call}"))))
    .collect();
    snapshot!(refusals.join("\n"));
}

/// Windows in a SELECT are made with `date_bin`; they must be the windows of a stream.
#[tokio::test]
async fn batch_queries_have_the_same_windows() {
    let state = crate::register_functions(SessionStateBuilder::new().with_default_features()).build();
    let context = SessionContext::new_with_state(state);
    let field = Field::new("ts", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true);
    let minutes = [Some(0), Some(7), Some(10), Some(-1), None];
    let times = TimestampMicrosecondArray::from_iter(minutes.map(|m| m.map(|m: i64| m * 60_000_000)));
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(times.with_timezone("UTC"))]).unwrap();
    context.register_batch("t", batch).unwrap();
    let rows = |sql: &'static str| {
        let context = &context;
        async move {
            let Statement::Query(query) = parse(sql).unwrap().remove(0).statement else { panic!("{sql}") };
            let statement = ast::Statement::Query(query.ast);
            let plan = context.state().statement_to_plan(DfStatement::Statement(Box::new(statement))).await.unwrap();
            let batches = context.execute_logical_plan(plan).await.unwrap().collect().await.unwrap();
            pretty_format_batches(&batches).unwrap().to_string()
        }
    };
    let tumble = rows("SELECT * FROM tumble(TABLE t, ts, INTERVAL '10 minutes') ORDER BY ts").await;
    let hop =
        "SELECT * FROM hop(TABLE t, DESCRIPTOR(ts), INTERVAL '5 minutes', INTERVAL '10 minutes', INTERVAL '1 minute')
               ORDER BY ts, window_start";
    let hop = rows(hop).await;
    snapshot!(format!("{tumble}\n{hop}"));
}
