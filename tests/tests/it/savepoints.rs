//! Savepoints: a query goes back to one, another starts from it, it survives a move, and a crash leaves no half of one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use weir_tests::process::binary;
use weir_tests::{Row, Weir, assert_same_rows, oracle, root, sample};

const ROWS: usize = 3000;
const BY_CARRIER: &str = "SELECT carrier, count(*) AS n, sum(distance) AS miles FROM flights GROUP BY carrier";

/// Flights that come in two halves, to a server that watches their directory.
struct Scene {
    directory: tempfile::TempDir,
    weir: Weir,
}

impl Scene {
    async fn begin() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("in")).unwrap();
        let mut weir = Weir::new(&directory.path().join("data")).args(&["--parallelism", "2"]);
        weir.run();
        let scene = Self { directory, weir };
        scene.add("first", 0);
        scene.weir.sql(&scene.stream()).await;
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Adds half of the flights.
    fn add(&self, name: &str, half: usize) {
        let text = std::fs::read_to_string(sample("flights-2013-01.csv")).unwrap();
        let (header, rows) = text.split_once('\n').unwrap();
        let rows: Vec<&str> = rows.lines().skip(half * ROWS).take(ROWS).collect();
        // Complete before it is seen.
        let hidden = self.path(name);
        std::fs::write(&hidden, format!("{header}\n{}\n", rows.join("\n"))).unwrap();
        std::fs::rename(hidden, self.path("in").join(format!("{name}.csv"))).unwrap();
    }

    fn stream(&self) -> String {
        let text = super::flights::streams(&self.path("in/*.csv"), &root(), &root());
        let stream = text.split_inclusive(';').next().unwrap();
        stream.replace("format = 'csv'", "format = 'csv', mode = 'watch', watch.interval = '20ms'")
    }

    /// The batch answer over what has come so far.
    async fn expected(&self, sql: &str) -> Vec<Row> {
        let mut files: Vec<_> = std::fs::read_dir(self.path("in")).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        let texts: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        let rows = texts.iter().flat_map(|text| text.lines().skip(1));
        let all: Vec<&str> = texts[0].lines().take(1).chain(rows).collect();
        let path = self.path("all.csv");
        std::fs::write(&path, all.join("\n")).unwrap();
        let (weather, planes) = (sample("weather-2013-01.csv"), sample("planes.csv"));
        let context = oracle::flights(&path, &weather, &planes, &sample("airlines.csv")).await;
        oracle::answer(&context, sql).await
    }

    async fn counted(&self, view: &str, rows: usize) {
        self.weir.settled(&format!("SELECT sum(n) FROM {view}"), &rows.to_string()).await;
    }

    async fn url_of(&self, query: &str) -> String {
        let sql = format!("SELECT url FROM weir.savepoints WHERE query = '{query}'");
        self.weir.sql(&sql).await[0][0].clone().unwrap()
    }

    /// Rows that a file sink has committed.
    fn written(&self, sink: &str) -> usize {
        let files = std::fs::read_dir(self.path(sink)).into_iter().flatten().map(|entry| entry.unwrap().path());
        let visible = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
        visible.map(|file| std::fs::read_to_string(file).unwrap().lines().count()).sum()
    }
}

/// `weir checkpoint …`: whether it succeeded, and what it printed.
fn checkpoint(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(binary()).arg("checkpoint").args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn local(url: &str) -> PathBuf {
    PathBuf::from(url.strip_prefix("file://").unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_goes_back_and_another_starts_from_the_same_state() {
    let scene = Scene::begin().await;
    let (weir, sink, fork) = (&scene.weir, scene.path("sink"), scene.path("fork"));
    let write = |name: &str, path: &Path, more: &str| {
        let path = path.display();
        format!(
            "CREATE SINK {name} AS SELECT carrier, flight FROM flights
             WITH (connector = 'file', path = '{path}', format = 'json'{more})"
        )
    };
    weir.sql(&format!(
        "SET 'execution.checkpointing.interval' = '50ms';
         SET 'execution.checkpointing.data-inline-threshold' = '0';
         CREATE MATERIALIZED VIEW by_carrier AS {BY_CARRIER};
         {}",
        write("s", &sink, "")
    ))
    .await;
    scene.counted("by_carrier", ROWS).await;
    scene.weir.settled("SELECT rows_out FROM weir.queries WHERE name = 's'", &ROWS.to_string()).await;
    let half = scene.expected(BY_CARRIER).await;
    weir.sql("CREATE SAVEPOINT half FOR QUERY by_carrier; CREATE SAVEPOINT FOR QUERY s").await;
    assert_eq!(scene.written("sink"), ROWS, "what a savepoint holds is committed");
    let (of_view, of_sink) = (scene.url_of("by_carrier").await, scene.url_of("s").await);
    assert_eq!(local(&of_view), weir.data.join("store/savepoints/by_carrier-half"));
    for url in [&of_view, &of_sink] {
        let (ok, text) = checkpoint(&["verify", url]);
        assert!(ok && text.contains("1 checkpoints"), "{text}");
        assert!(checkpoint(&["show", url]).1.contains("query      CREATE"));
    }
    assert!(checkpoint(&["list", &of_view]).1.contains("by_carrier-half/_metadata"));

    // It goes elsewhere, and is no longer where it was.
    scene.add("second", 1);
    scene.counted("by_carrier", 2 * ROWS).await;
    let moved = scene.path("elsewhere/half");
    copy(&local(&of_view), &moved);
    weir.sql("DROP SAVEPOINT half FOR QUERY by_carrier").await;
    assert!(!local(&of_view).join("_metadata").exists());
    assert_eq!(weir.sql("SELECT count(*) FROM weir.savepoints").await, [[Some("1".to_owned())]]);

    let restore = format!("RESTORE QUERY by_carrier FROM '{}'", moved.display());
    weir.sql(&format!("ALTER QUERY by_carrier PAUSE; {restore}")).await;
    assert_same_rows("restored", weir.sql("SELECT * FROM by_carrier").await, half);
    weir.sql("ALTER QUERY by_carrier RESUME").await;
    scene.counted("by_carrier", 2 * ROWS).await;
    let all = scene.expected(BY_CARRIER).await;
    assert_same_rows("gone on", weir.sql("SELECT * FROM by_carrier").await, all.clone());

    // New queries, under other names: the sink writes only what came later.
    let path = format!("'execution.state-recovery.path' = '{}'", moved.display());
    weir.sql(&format!("CREATE MATERIALIZED VIEW fork AS {BY_CARRIER} WITH ({path})")).await;
    scene.counted("fork", 2 * ROWS).await;
    assert_same_rows("forked", weir.sql("SELECT * FROM fork").await, all.clone());
    let from =
        format!(", 'execution.state-recovery.path' = '{of_sink}', 'execution.state-recovery.claim-mode' = 'CLAIM'");
    weir.sql(&write("forked", &fork, &from)).await;
    scene.weir.settled("SELECT rows_out FROM weir.queries WHERE name = 'forked'", &(2 * ROWS).to_string()).await;
    weir.sql("CHECKPOINT forked").await;
    assert_eq!(scene.written("fork"), ROWS);
    assert!(!local(&of_sink).join("_metadata").exists(), "it was claimed");
    assert!(weir.sql("SELECT * FROM weir.savepoints").await.is_empty());

    // The fork depends on nothing but its own directory.
    std::fs::remove_dir_all(&moved).unwrap();
    let mut scene = scene;
    scene.weir.kill();
    scene.weir.run();
    for view in ["by_carrier", "fork"] {
        scene.counted(view, 2 * ROWS).await;
        assert_same_rows(view, scene.weir.sql(&format!("SELECT * FROM {view}")).await, all.clone());
    }
    assert!(scene.weir.terminate().success(), "{}", scene.weir.log());
    let (ok, text) = checkpoint(&["verify", &format!("file://{}", scene.weir.data.join("store").display())]);
    assert!(ok, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_stops_with_a_savepoint_and_drains_into_one() {
    let scene = Scene::begin().await;
    let (weir, sink) = (&scene.weir, scene.path("sink"));
    weir.sql(&format!(
        "CREATE SINK s AS SELECT carrier, flight FROM flights
           WITH (connector = 'file', path = '{}', format = 'json');
         CREATE MATERIALIZED VIEW days AS SELECT origin, window_start, count(*) AS n
           FROM TUMBLE(TABLE flights, DESCRIPTOR(time_hour), INTERVAL '1 day')
           GROUP BY origin, window_start, window_end EMIT ON WINDOW CLOSE",
        sink.display()
    ))
    .await;
    for query in ["s", "days"] {
        scene
            .weir
            .settled(&format!("SELECT rows_in FROM weir.queries WHERE name = '{query}'"), &ROWS.to_string())
            .await;
    }
    weir.sql("ALTER QUERY s STOP WITH SAVEPOINT one").await;
    scene.weir.settled("SELECT state FROM weir.queries WHERE name = 's'", "PAUSED").await;
    assert_eq!(scene.written("sink"), ROWS, "all up to the savepoint is committed");

    let batch = "SELECT origin, date_bin(INTERVAL '1 day', time_hour), count(*) FROM flights GROUP BY 1, 2";
    let drained = scene.path("drained");
    weir.sql(&format!("ALTER QUERY days STOP WITH SAVEPOINT TO '{}' DRAIN", drained.display())).await;
    scene.weir.settled("SELECT state FROM weir.queries WHERE name = 'days'", "FINISHED").await;
    assert_same_rows("drained", weir.sql("SELECT * FROM days").await, scene.expected(batch).await);
    assert!(checkpoint(&["verify", &drained.display().to_string()]).0);

    scene.add("second", 1);
    weir.sql("ALTER QUERY s RESUME").await;
    scene.weir.settled("SELECT rows_in FROM weir.queries WHERE name = 's'", &(2 * ROWS).to_string()).await;
    weir.sql("CHECKPOINT s").await;
    assert_eq!(scene.written("sink"), 2 * ROWS, "nothing lost, nothing twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_with_what_to_do() {
    let scene = Scene::begin().await;
    let weir = &scene.weir;
    weir.sql(&format!(
        "CREATE MATERIALIZED VIEW by_carrier AS {BY_CARRIER};
         CREATE MATERIALIZED VIEW many AS SELECT n FROM by_carrier WHERE n > 10;
         CREATE TABLE t (id INT PRIMARY KEY)"
    ))
    .await;
    scene.counted("by_carrier", ROWS).await;
    weir.sql("CREATE SAVEPOINT one FOR QUERY by_carrier").await;
    let url = scene.url_of("by_carrier").await;
    let newest = "SELECT manifest FROM weir.checkpoints WHERE query = 'by_carrier' AND state = 'COMPLETED' LIMIT 1";
    let checkpoint = weir.sql(newest).await[0][0].clone().unwrap();
    let other = "SELECT dest, count(*) AS n FROM flights GROUP BY dest";
    for (sql, state, text) in [
        ("CREATE SAVEPOINT one FOR QUERY by_carrier".to_owned(), "42710", "has a savepoint called \"one\" already"),
        (format!("CREATE SAVEPOINT FOR QUERY by_carrier TO '{url}'"), "42710", "there is a savepoint at"),
        ("CREATE SAVEPOINT FOR QUERY by_carrier TO 'here'".to_owned(), "22023", "relative"),
        ("CREATE SAVEPOINT FOR QUERY t".to_owned(), "42809", "is a table"),
        ("DROP SAVEPOINT on FOR QUERY by_carrier".to_owned(), "3B001", "did you mean \"one\"?"),
        ("DROP SAVEPOINT '/nowhere'".to_owned(), "3B001", "there is no savepoint at /nowhere"),
        (format!("DROP SAVEPOINT '{checkpoint}'"), "42809", "which only its query removes"),
        ("RESTORE QUERY many FROM '/nowhere'".to_owned(), "3B001", "SHOW SAVEPOINTS"),
        (format!("RESTORE QUERY by_carrier FROM '{url}'"), "2BP01", "many read what it has written since"),
        (format!("RESTORE QUERY many FROM '{url}'"), "55000", "materialize by_carrier"),
        (
            format!("CREATE MATERIALIZED VIEW v AS {other} WITH ('execution.state-recovery.path' = '{url}')"),
            "55000",
            "sum(distance)",
        ),
    ] {
        let (code, message) = weir.sql_error(&sql).await;
        assert!(code == state && message.contains(text), "{sql}: {message}");
    }
    assert!(weir.try_sql("SELECT * FROM v").await.is_err(), "what was refused does not exist");
    weir.sql(&format!(
        "DROP SAVEPOINT IF EXISTS two FOR QUERY by_carrier;
         CREATE MATERIALIZED VIEW v AS {other} WITH ('execution.state-recovery.path' = '{url}',
           'execution.state-recovery.ignore-unclaimed-state' = 'true')"
    ))
    .await;
    scene.weir.settled("SELECT state FROM weir.queries WHERE name = 'v'", "RUNNING").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_leaves_no_half_savepoint_that_is_taken_for_one() {
    let mut scene = Scene::begin().await;
    scene
        .weir
        .sql(&format!(
            "SET 'execution.checkpointing.data-inline-threshold' = '0';
             CREATE MATERIALIZED VIEW by_carrier AS {BY_CARRIER}"
        ))
        .await;
    scene.counted("by_carrier", ROWS).await;
    for (i, fail_point) in ["before-savepoint", "after-savepoint", "", "", "", "", ""].into_iter().enumerate() {
        scene.weir.kill();
        scene.weir.env("WEIR_FAIL_POINT", fail_point);
        scene.weir.run();
        scene.counted("by_carrier", ROWS).await;
        let (name, client) = (format!("s{i}"), scene.weir.connect().await.unwrap());
        let sql = format!("CREATE SAVEPOINT {name} FOR QUERY by_carrier");
        let asked = tokio::spawn(async move { client.simple_query(&sql).await.is_ok() });
        if fail_point.is_empty() {
            // Somewhere on the way; where does not decide the outcome.
            tokio::time::sleep(Duration::from_millis(5 * i as u64)).await;
            scene.weir.kill();
        }
        let answered = asked.await.unwrap();
        assert!(fail_point.is_empty() || !answered);
        scene.weir.kill();
        scene.weir.env("WEIR_FAIL_POINT", "");
        scene.weir.run();
        scene.counted("by_carrier", ROWS).await;
        let directory = scene.weir.data.join("store/savepoints").join(format!("by_carrier-{name}"));
        let complete = directory.join("_metadata").exists();
        assert!(complete || !answered, "what was answered is durable");
        if directory.exists() {
            let (accepted, text) = checkpoint(&["verify", &directory.display().to_string()]);
            assert_eq!(accepted, complete, "{text}");
        }
        let listed = scene.weir.sql(&format!("SELECT url FROM weir.savepoints WHERE name = '{name}'")).await;
        assert!(complete || listed.is_empty());
        assert!(!answered || !listed.is_empty());
        match complete {
            // Whether it is listed or was not yet, it can be gone on from, and dropped.
            true => {
                let url = directory.display();
                scene.weir.sql(&format!("RESTORE QUERY by_carrier FROM '{url}'; DROP SAVEPOINT '{url}'")).await;
            }
            false => drop(scene.weir.sql(&format!("CREATE SAVEPOINT {name} FOR QUERY by_carrier")).await),
        }
        scene.counted("by_carrier", ROWS).await;
    }
}
