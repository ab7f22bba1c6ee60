//! `weir checkpoint`: checkpoints in a store, without a server.

use std::collections::BTreeMap;
use std::io::Write;

use chrono::{DateTime, SecondsFormat, Utc};
use weir_storage::checkpoint::{self as stored, CheckpointInfo, Manifest};

use super::output::{Format, Printer, Value};
use super::{CheckpointCommand, Failure};

/// Credentials and endpoints of stores come from the environment here.
const NO_OPTIONS: BTreeMap<String, String> = BTreeMap::new();

pub(super) async fn run(command: CheckpointCommand) -> Result<(), Failure> {
    match command {
        CheckpointCommand::List { url, format } => list(&url, format).await,
        CheckpointCommand::Show { url } => show(&url).await,
        CheckpointCommand::Verify { url } => verify(&url).await,
    }
}

async fn list(url: &str, format: Format) -> Result<(), Failure> {
    let found = stored::list(url, &NO_OPTIONS).await?;
    if found.is_empty() && format == Format::Table {
        println!("there is no completed checkpoint below {url}");
        return Ok(());
    }
    let columns = ["job", "checkpoint", "completed", "bytes", "new bytes", "inline bytes", "objects", "url", "note"];
    let mut printer = Printer::new(format, columns.map(str::to_owned).to_vec());
    for (job, info) in found {
        printer.row(row(&job.to_string(), &info));
    }
    Ok(printer.finish(&mut std::io::stdout().lock())?)
}

fn row(job: &str, info: &CheckpointInfo) -> Vec<Value> {
    let number = |n: u64| Value::Raw(n.to_string());
    vec![
        Value::Text(job.to_owned()),
        Value::Raw(info.id.to_string()),
        Value::Text(time(info.completed_at_ms)),
        number(info.total_bytes),
        number(info.new_bytes),
        number(info.inline_bytes),
        number(info.objects as u64),
        Value::Text(info.url.clone()),
        info.note.clone().map_or(Value::Null, Value::Text),
    ]
}

fn time(millis: i64) -> String {
    DateTime::<Utc>::from_timestamp_millis(millis)
        .map_or_else(|| millis.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

async fn show(url: &str) -> Result<(), Failure> {
    let manifest = stored::show(url, &NO_OPTIONS).await?;
    let mut out = std::io::stdout().lock();
    describe(&manifest, &mut out)?;
    Ok(())
}

/// A checkpoint, for people.
fn describe(manifest: &Manifest, out: &mut impl Write) -> std::io::Result<()> {
    let info = CheckpointInfo::of(manifest, String::new());
    writeln!(out, "Checkpoint {} of {}", manifest.checkpoint, manifest.job)?;
    writeln!(out, "  triggered  {}", time(manifest.triggered_at_ms))?;
    writeln!(out, "  completed  {}", time(manifest.completed_at_ms))?;
    writeln!(
        out,
        "  took       alignment {} ms, snapshot {} ms, upload {} ms",
        manifest.durations.alignment_ms, manifest.durations.snapshot_ms, manifest.durations.upload_ms
    )?;
    writeln!(out, "  epoch      {}, written by generation {}", manifest.epoch, manifest.generation)?;
    writeln!(
        out,
        "  bytes      {} in all: {} in the manifest, {} new, {} shared with earlier checkpoints, in {} objects",
        info.total_bytes, info.inline_bytes, info.new_bytes, info.shared_bytes, info.objects
    )?;
    if let Some(note) = &info.note {
        writeln!(out, "  note       {note}")?;
    }
    if manifest.unaligned {
        writeln!(out, "  unaligned  {} bytes of rows in flight", info.in_flight_bytes)?;
    }
    if manifest.last {
        writeln!(out, "  last       the job has read all of its input")?;
    }
    writeln!(out, "  query      {}", manifest.query_sql.replace('\n', "\n             "))?;
    for operator in &manifest.operators {
        writeln!(out, "  operator   {} ({}), {} subtasks", operator.name, operator.uid, operator.parallelism)?;
        for subtask in &operator.subtasks {
            let counts = subtask.counts;
            if !counts.is_zero() {
                writeln!(
                    out,
                    "    subtask {}  {} rows in, {} out, {} late, {} bad",
                    subtask.subtask, counts.rows_in, counts.rows_out, counts.late_rows, counts.bad_rows
                )?;
            }
            if !subtask.source_splits.is_null() {
                writeln!(out, "    subtask {}  splits {}", subtask.subtask, subtask.source_splits)?;
            }
            if let Some(keyed) = &subtask.keyed {
                writeln!(out, "    subtask {}  {} files of state by key", subtask.subtask, keyed.files.len())?;
            }
            if subtask.in_flight.is_some() || subtask.alignment_ms > 0 {
                let stored = subtask.in_flight.as_ref().map_or(0, weir_storage::Segment::length);
                writeln!(
                    out,
                    "    subtask {}  alignment {} ms, {} bytes of rows overtaken, {stored} stored",
                    subtask.subtask, subtask.alignment_ms, subtask.overtaken_bytes
                )?;
            }
            if !subtask.committables.is_empty() {
                writeln!(out, "    subtask {}  {} prepared commits", subtask.subtask, subtask.committables.len())?;
            }
        }
    }
    Ok(())
}

async fn verify(url: &str) -> Result<(), Failure> {
    let report = stored::verify(url, &NO_OPTIONS).await?;
    for problem in &report.problems {
        eprintln!("error: {problem}");
    }
    println!(
        "{} checkpoints, {} objects, {} bytes read and compared: {}",
        report.checkpoints.len(),
        report.objects,
        report.bytes,
        if report.is_ok() { "all can be restored".to_owned() } else { format!("{} problems", report.problems.len()) }
    );
    if report.is_ok() { Ok(()) } else { Err(Failure::Reported) }
}
