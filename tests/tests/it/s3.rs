//! The store in S3: a real server over HTTP on loopback.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ObjectStore, ObjectStoreExt, PutMode};
use weir_tests::process::{PATIENCE, binary, free_port};
use weir_tests::{Weir, assert_same_rows, root, sample};

use super::flights::{check, expected, queries, streams};

pub const STORE: &str = "s3://weir-test/some/prefix";

/// A server of `tests/services/s3.sh` with an empty bucket. Ended when dropped.
pub struct S3 {
    server: Child,
    /// Where it listens.
    pub endpoint: String,
}

impl S3 {
    pub async fn start() -> Self {
        let port = free_port();
        let server = Command::new(root().join("tests/services/s3.sh"))
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let endpoint = format!("http://127.0.0.1:{port}");
        let mut s3 = Self { server, endpoint };
        let http = reqwest::Client::new();
        let until = Instant::now() + PATIENCE;
        while !http
            .put(format!("{}/weir-test", s3.endpoint))
            .send()
            .await
            .is_ok_and(|answer| answer.status().is_success())
        {
            assert!(
                s3.server.try_wait().unwrap().is_none(),
                "the S3 server ended: run tests/services/s3.sh {port} to see why"
            );
            assert!(Instant::now() < until, "the S3 server does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        s3
    }

    pub fn environment(&self) -> [(&'static str, &str); 5] {
        [
            ("AWS_ENDPOINT_URL", &self.endpoint),
            ("AWS_ACCESS_KEY_ID", "weir"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
        ]
    }

    /// The bucket, through a client of its own.
    pub fn objects(&self) -> AmazonS3 {
        let builder = AmazonS3Builder::new().with_bucket_name("weir-test").with_endpoint(&self.endpoint);
        let builder = builder.with_access_key_id("weir").with_secret_access_key("secret").with_region("us-east-1");
        builder.with_allow_http(true).build().unwrap()
    }

    pub fn weir(&self, data: &Path) -> Weir {
        let mut weir = Weir::new(data).args(&["--store", STORE, "--parallelism", "2"]);
        for (name, value) in self.environment() {
            weir.env(name, value);
        }
        weir
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The commits of checkpoints and logs rest on it.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_creates_an_object_once() {
    let s3 = S3::start().await;
    let objects = s3.objects();
    let create = async |body: &'static str| objects.put_opts(&"once".into(), body.into(), PutMode::Create.into()).await;
    create("first").await.unwrap();
    let second = create("second").await;
    assert!(matches!(second, Err(object_store::Error::AlreadyExists { .. })), "{second:?}");
    assert_eq!(objects.get(&"once".into()).await.unwrap().bytes().await.unwrap(), "first");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flights_tour_survives_a_kill_and_the_loss_of_the_disk() {
    let s3 = S3::start().await;
    let directory = tempfile::tempdir().unwrap();
    let (flights, weather, planes) =
        (sample("flights-2013-01.csv"), sample("weather-2013-01.csv"), sample("planes.csv"));
    let late = directory.path().join("late");
    let mut weir = s3.weir(&directory.path().join("data"));
    weir.run();
    weir.sql(&streams(&flights, &weather, &planes)).await;
    weir.sql(&queries(&late, "100ms")).await;
    // In the middle: one checkpoint at least stands, and the input has not ended.
    let until = Instant::now() + PATIENCE;
    loop {
        let rows = weir.sql("SELECT count(*) FROM weir.checkpoints").await;
        if rows[0][0].as_deref() != Some("0") {
            break;
        }
        assert!(Instant::now() < until, "no checkpoint\n{}", weir.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    weir.kill();
    weir.run();
    weir.wait_finished().await;
    let expected = expected(&flights, &weather, &planes, "true").await;
    check(&weir, &late, &expected).await;
    let urls = weir.sql("SELECT DISTINCT manifest FROM weir.checkpoints WHERE manifest IS NOT NULL").await;
    assert!(!urls.is_empty());
    assert!(
        urls.iter().all(|row| row[0].as_deref().is_some_and(|url| url.starts_with(&format!("{STORE}/jobs/")))),
        "{urls:?}"
    );
    assert!(weir.terminate().success(), "{}", weir.log());

    let verified =
        Command::new(binary()).args(["checkpoint", "verify", STORE]).envs(s3.environment()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&verified.stdout), String::from_utf8_lossy(&verified.stderr));
    assert!(verified.status.success(), "{text}");

    // The disk is a cache: another machine, with an empty one, answers the same.
    drop(weir);
    let mut weir = s3.weir(&directory.path().join("other"));
    weir.run();
    weir.wait_finished().await;
    check(&weir, &late, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_goes_to_s3_and_is_gone_back_to() {
    let s3 = S3::start().await;
    let directory = tempfile::tempdir().unwrap();
    let mut weir = s3.weir(&directory.path().join("data"));
    weir.run();
    let url = "s3://weir-test/saved/one";
    weir.sql(
        "CREATE STREAM s (id BIGINT); INSERT INTO s VALUES (1), (2);
         SET 'execution.checkpointing.data-inline-threshold' = '0';
         CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM s",
    )
    .await;
    weir.settled("SELECT n FROM v", "2").await;
    weir.sql(&format!("CREATE SAVEPOINT FOR QUERY v TO '{url}'; INSERT INTO s VALUES (3)")).await;
    weir.settled("SELECT n FROM v", "3").await;
    weir.sql(&format!("ALTER QUERY v PAUSE; RESTORE QUERY v FROM '{url}'")).await;
    weir.settled("SELECT n FROM v", "2").await;
    weir.sql("ALTER QUERY v RESUME").await;
    weir.settled("SELECT n FROM v", "3").await;
    weir.sql(&format!("DROP SAVEPOINT '{url}'")).await;
    let left: Vec<_> = s3.objects().list(Some(&"saved".into())).try_collect().await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_told() {
    let s3 = S3::start().await;
    let directory = tempfile::tempdir().unwrap();
    let mut weir = s3.weir(&directory.path().join("data"));
    weir.run();
    weir.sql("CREATE TABLE t (id INT PRIMARY KEY, name TEXT); INSERT INTO t VALUES (1, 'one'); CHECKPOINT t").await;
    assert_same_rows("t", weir.sql("SELECT name FROM t").await, vec![vec![Some("one".to_owned())]]);
    assert!(weir.terminate().success(), "{}", weir.log());
    let verify =
        || Command::new(binary()).args(["checkpoint", "verify", STORE]).envs(s3.environment()).output().unwrap();
    assert!(verify().status.success());
    let objects = s3.objects();
    let listed: Vec<_> = objects.list(None).try_collect().await.unwrap();
    let manifests = listed.iter().map(|object| &object.location).filter(|path| path.as_ref().ends_with("/_metadata"));
    let manifest = manifests.max().unwrap_or_else(|| panic!("no manifest among {listed:?}"));
    let body = objects.get(manifest).await.unwrap().bytes().await.unwrap();
    let mut damaged = body.to_vec();
    // One bit in the middle.
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    objects.put(manifest, damaged.into()).await.unwrap();
    let verified = verify();
    let text = format!("{}{}", String::from_utf8_lossy(&verified.stdout), String::from_utf8_lossy(&verified.stderr));
    assert!(!verified.status.success(), "{text}");
    assert!(text.contains(manifest.as_ref()), "{text}");
}
