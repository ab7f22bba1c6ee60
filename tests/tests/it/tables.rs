//! Tables, views on views, subscriptions, prepared statements: what a person does in an afternoon with psql.

use futures::StreamExt;
use weir_tests::{Weir, assert_same_rows, cells};

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_table_are_read_back_changed_and_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(&directory.path().join("data"));
    weir.sql("CREATE TABLE accounts (id INT PRIMARY KEY, owner TEXT NOT NULL, balance NUMERIC(12,2) DEFAULT 0)").await;
    weir.sql("INSERT INTO accounts VALUES (1, 'Ada', 10.50), (2, 'Bob', 20)").await;
    weir.sql("INSERT INTO accounts (owner, id) VALUES ('Cyd', 3)").await;
    let all = "SELECT * FROM accounts";
    assert_same_rows(
        "inserted",
        weir.sql(all).await,
        cells(&[&["1", "Ada", "10.50"], &["2", "Bob", "20.00"], &["3", "Cyd", "0.00"]]),
    );
    weir.sql("UPDATE accounts SET balance = balance + 5 WHERE id <= 2").await;
    weir.sql("DELETE FROM accounts WHERE owner = 'Cyd'").await;
    weir.sql("UPDATE accounts SET id = 7 WHERE id = 2").await;
    let expected = cells(&[&["1", "Ada", "15.50"], &["7", "Bob", "25.00"]]);
    assert_same_rows("changed", weir.sql(all).await, expected.clone());
    assert_same_rows("by key", weir.sql("SELECT owner FROM accounts WHERE id = 7").await, cells(&[&["Bob"]]));

    weir.kill();
    weir.run();
    assert_same_rows("after SIGKILL", weir.sql(all).await, expected);

    let (state, message) = weir.sql_error("INSERT INTO accounts VALUES (1, 'Eve', 0)").await;
    assert_eq!(state, "23505", "{message}");
    let (state, message) = weir.sql_error("INSERT INTO accounts VALUES (8, NULL, 0)").await;
    assert_eq!(state, "23502", "{message}");
    let (state, message) = weir.sql_error("INSERT INTO accounts (id, ownr) VALUES (9, 'x')").await;
    assert_eq!(state, "42703", "{message}");
    assert!(message.contains("did you mean \"owner\""), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn views_on_tables_and_on_views_follow_every_change() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(&directory.path().join("data"));
    weir.sql(
        "SET 'execution.checkpointing.interval' = '50ms';
         CREATE TABLE item (id INT PRIMARY KEY, kind TEXT, price INT);
         INSERT INTO item VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 30);
         CREATE MATERIALIZED VIEW by_kind AS SELECT kind, count(*) AS n, sum(price) AS total FROM item GROUP BY kind;
         CREATE MATERIALIZED VIEW by_n AS SELECT n, count(*) AS kinds FROM by_kind GROUP BY n;",
    )
    .await;
    weir.settled_rows("SELECT * FROM by_kind", cells(&[&["a", "2", "30"], &["b", "1", "30"]])).await;
    weir.settled_rows("SELECT * FROM by_n", cells(&[&["2", "1"], &["1", "1"]])).await;
    weir.sql("UPDATE item SET kind = 'b' WHERE id = 1; DELETE FROM item WHERE id = 2").await;
    weir.settled_rows("SELECT * FROM by_kind", cells(&[&["b", "2", "40"]])).await;
    weir.settled_rows("SELECT * FROM by_n", cells(&[&["2", "1"]])).await;
    weir.kill();
    weir.run();
    weir.sql("INSERT INTO item VALUES (4, 'c', 1)").await;
    weir.settled_rows("SELECT * FROM by_kind", cells(&[&["b", "2", "40"], &["c", "1", "1"]])).await;
    weir.settled_rows("SELECT * FROM by_n", cells(&[&["2", "1"], &["1", "1"]])).await;

    let (state, message) = weir.sql_error("DROP TABLE item").await;
    assert_eq!(state, "2BP01", "{message}");
    assert!(message.contains("by_kind") && message.contains("CASCADE"), "{message}");
    weir.sql("DROP TABLE item CASCADE").await;
    assert_eq!(weir.sql("SHOW QUERIES").await, Vec::<weir_tests::Row>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_pushes_the_snapshot_and_then_changes() {
    let directory = tempfile::tempdir().unwrap();
    let weir = Weir::start(&directory.path().join("data"));
    weir.sql(
        "CREATE TABLE item (id INT PRIMARY KEY, price INT);
         INSERT INTO item VALUES (1, 10);
         CREATE MATERIALIZED VIEW total AS SELECT sum(price) AS total FROM item;",
    )
    .await;
    let client = weir.connect().await.unwrap();
    let rows = client.copy_out("COPY (SUBSCRIBE TO item) TO STDOUT").await.unwrap();
    futures::pin_mut!(rows);
    let first = rows.next().await.unwrap().unwrap();
    let first = String::from_utf8(first.to_vec()).unwrap();
    assert!(first.ends_with("\t1\t1\t10\n"), "{first:?}");
    weir.sql("UPDATE item SET price = 11").await;
    let mut changes = Vec::new();
    while changes.len() < 2 {
        let text = rows.next().await.unwrap().unwrap();
        changes.extend(String::from_utf8(text.to_vec()).unwrap().lines().map(str::to_owned).collect::<Vec<_>>());
    }
    let without_epoch: Vec<&str> = changes.iter().map(|line| line.split_once('\t').unwrap().1).collect();
    assert_eq!(without_epoch, vec!["-1\t1\t10", "1\t1\t11"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_statements_bind_parameters() {
    let directory = tempfile::tempdir().unwrap();
    let weir = Weir::start(&directory.path().join("data"));
    weir.sql("CREATE TABLE item (id BIGINT PRIMARY KEY, name TEXT, weight DOUBLE PRECISION)").await;
    let client = weir.connect().await.unwrap();
    let insert = client.prepare("INSERT INTO item VALUES ($1, $2, $3)").await.unwrap();
    for (id, name, weight) in [(1i64, "one", 1.5f64), (2, "two's", -2.25)] {
        client.execute(&insert, &[&id, &name, &weight]).await.unwrap();
    }
    let select = client.prepare("SELECT name, weight FROM item WHERE id = $1").await.unwrap();
    let row = client.query_one(&select, &[&2i64]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, f64>(1)), ("two's", -2.25));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_posted_over_http_are_durable_and_counted_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut weir = Weir::start(&directory.path().join("data"));
    weir.sql(
        "SET 'execution.checkpointing.interval' = '50ms';
         CREATE STREAM clicks (who TEXT, n INT) WITH (connector = 'http');
         CREATE MATERIALIZED VIEW by_who AS SELECT who, sum(n) AS n FROM clicks GROUP BY who;",
    )
    .await;
    let url = format!("http://127.0.0.1:{}/v1/streams/clicks", weir.http_port);
    let http = reqwest::Client::new();
    let post = async |key: &str, body: &'static str| {
        let answer = http.post(&url).header("Idempotency-Key", key).body(body).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        answer.json::<serde_json::Value>().await.unwrap()
    };
    let receipt =
        post("first", "{\"who\":\"ada\",\"n\":1}\n{\"who\":\"bob\",\"n\":\"many\"}\n{\"who\":\"ada\",\"n\":2}\n").await;
    assert_eq!((receipt["rows"].as_u64(), receipt["bad_rows"].as_u64()), (Some(2), Some(1)), "{receipt}");
    weir.kill();
    weir.run();
    let receipt = post("first", "{\"who\":\"ada\",\"n\":1}\n").await;
    assert_eq!(receipt["duplicate"].as_bool(), Some(true), "{receipt}");
    post("second", "{\"who\":\"ada\",\"n\":4}\n").await;
    weir.settled_rows("SELECT * FROM by_who", cells(&[&["ada", "7"]])).await;
}
