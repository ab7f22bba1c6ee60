//! Options: units, nearest names, what is not available, combinations.

use std::time::Duration;

use super::said;
use crate::Options;
use crate::options::{self, Availability, OPTIONS, OptionSpec, Parameters, parse_bytes, parse_duration};

#[test]
fn units_are_flinks() {
    let millis = |text: &str| parse_duration(text).map(|d| d.as_millis()).ok();
    for (text, expected) in [
        ("10s", Some(10_000)),
        ("10 s", Some(10_000)),
        ("2m", Some(120_000)),
        ("2 min", Some(120_000)),
        ("500 ms", Some(500)),
        ("500", Some(500)),
        ("1 h", Some(3_600_000)),
        ("1 d", Some(86_400_000)),
        ("3 SECONDS", Some(3_000)),
        ("0", Some(0)),
        ("ten", None),
        ("10 parsecs", None),
        ("-1s", None),
        ("1.5s", None),
        ("", None),
        ("99999999999999999999 d", None),
    ] {
        assert_eq!(millis(text), expected, "{text}");
    }
    for (text, expected) in [
        ("256mb", Some(256 << 20)),
        ("20 kb", Some(20 << 10)),
        ("1g", Some(1 << 30)),
        ("17", Some(17)),
        ("1 kib", Some(1024)),
        ("x", None),
    ] {
        assert_eq!(parse_bytes(text).ok(), expected, "{text}");
    }
}

#[test]
fn a_retention_is_time_or_space_and_says_which() {
    use crate::options::Retention::{Age, Bytes, Forever};
    for (text, expected, usual) in [
        ("forever", Forever, "forever"),
        ("FOREVER", Forever, "forever"),
        ("7 d", Age(Duration::from_secs(7 * 86_400)), "7 d"),
        ("2m", Age(Duration::from_secs(120)), "2 min"),
        ("10gb", Bytes(10 << 30), "10 gb"),
        ("0 b", Bytes(0), "0 b"),
    ] {
        let retention = options::parse_retention(text).unwrap();
        assert_eq!((retention, retention.to_string().as_str()), (expected, usual));
    }
    for text in ["", "7", "never", "10 furlongs", "-1 d"] {
        let error = said(&options::parse_retention(text).unwrap_err());
        assert!(error.contains("is not 'forever', a duration such as '7 d' or a size such as '10 gb'"), "{error}");
    }
}

#[test]
fn every_default_is_a_value_and_available() {
    for spec in OPTIONS {
        // Unset parallelism is one subtask a core, which no number says.
        if spec.name != "parallelism.default" {
            assert_eq!(spec.check(spec.default).as_deref(), Ok(spec.default), "{}", spec.name);
        }
        assert!(spec.doc.ends_with('.'), "{}", spec.name);
    }
    assert!(Options::new().check().is_ok());
}

#[test]
fn every_key_of_flinks_template_is_known() {
    for key in [
        "mode",
        "interval",
        "min-pause",
        "timeout",
        "tolerable-failed-checkpoints",
        "max-concurrent-checkpoints",
        "storage",
        "dir",
        "num-retained",
        "externalized-checkpoint-retention",
        "unaligned.enabled",
        "aligned-checkpoint-timeout",
        "checkpoints-after-tasks-finish",
        "local-backup.enabled",
        "local-backup.dirs",
        "file-merging.enabled",
        "file-merging.max-file-size",
        "file-merging.max-space-amplification",
        "file-merging.across-checkpoint-boundary",
        "file-merging.pool-blocking",
        "incremental",
        "data-inline-threshold",
        "interval-during-backlog",
        "unaligned.forced",
        "unaligned.max-subtasks-per-channel-state-file",
        "cleaner.parallel-mode",
        "savepoint-dir",
    ] {
        assert!(OptionSpec::find(&format!("execution.checkpointing.{key}")).is_some(), "{key}");
    }
}

#[test]
fn wrong_values_say_what_is_allowed() {
    let said: Vec<String> = [
        ("execution.checkpointing.interval", "soon"),
        ("execution.checkpointing.intervl", "1s"),
        ("execution.checkpointing.mode", "EXACTLY_TWICE"),
        ("execution.checkpointing.num-retained", "0"),
        ("execution.checkpointing.local-backup.enabled", "true"),
        ("execution.checkpointing.unaligned.enabled", "maybe"),
        ("execution.checkpointing.file-merging.max-file-size", "many"),
        ("execution.checkpointing.dir", "s3://b/x"),
        ("parallelism.default", "0"),
        ("parallelism", "2"),
        ("wibble", "1"),
    ]
    .iter()
    .map(|(name, value)| format!("SET {name} = '{value}'\n{}", said(&Options::new().set(name, value).unwrap_err())))
    .collect();
    snapshot!(said.join("\n"));
}

#[test]
fn combinations_that_cannot_hold_are_refused() {
    let mut given = Options::new();
    given.set("pipeline.max-parallelism", "4").unwrap();
    given.set("parallelism.default", "8").unwrap();
    assert_eq!(
        said(&given.check().unwrap_err()),
        "22023 WEIR-1303: parallelism.default = 8 is above pipeline.max-parallelism = 4\n  \
         → raise pipeline.max-parallelism or lower parallelism.default"
    );
    given.reset("parallelism.default").unwrap();
    assert!(given.check().is_ok());
    given.set("execution.checkpointing.unaligned.enabled", "true").unwrap();
    assert!(given.check().is_ok());
    for (name, value, message) in [
        ("mode", "AT_LEAST_ONCE", "unaligned checkpoints cannot be taken in mode AT_LEAST_ONCE"),
        ("max-concurrent-checkpoints", "2", "unaligned checkpoints cannot run concurrently"),
    ] {
        let name = format!("execution.checkpointing.{name}");
        given.set(&name, value).unwrap();
        let error = given.check().unwrap_err();
        assert_eq!(error.message, message);
        assert!(error.hint.is_some_and(|hint| hint.contains(&name)));
        given.reset(&name).unwrap();
    }
    given.set("execution.checkpointing.interval", "1ms").unwrap();
    assert!(given.check().unwrap_err().message.contains("below 10 ms"));
}

#[test]
fn checkpoint_options_have_flinks_bounds() {
    let check = |given: &[(&str, &str)]| {
        let mut options = Options::new();
        for (name, value) in given {
            options.set(&format!("execution.checkpointing.{name}"), value).unwrap();
        }
        options.check().map_err(|error| error.message)
    };
    let refused = |given: &[(&str, &str)], part: &str| {
        let said = check(given).unwrap_err();
        assert!(said.contains(part), "{given:?}: {said}");
    };
    refused(&[("timeout", "0")], "timeout = 0 ms is below 10 ms");
    refused(&[("data-inline-threshold", "2mb")], "data-inline-threshold = 2 mb is above 1 mb");
    refused(&[("interval", "10s"), ("interval-during-backlog", "9s")], "interval-during-backlog = 9 s is below");
    for given in [
        &[("timeout", "10ms"), ("data-inline-threshold", "1mb")][..],
        &[("interval", "10s"), ("interval-during-backlog", "10s")],
        &[("interval", "10s"), ("interval-during-backlog", "0")],
        &[("interval", "10s"), ("interval-during-backlog", "")],
        &[("interval", "0"), ("interval-during-backlog", "1s")],
        &[("max-concurrent-checkpoints", "3"), ("min-pause", "2s"), ("mode", "AT_LEAST_ONCE")],
    ] {
        assert_eq!(check(given), Ok(()), "{given:?}");
    }
}

#[test]
fn an_empty_value_is_none_where_there_is_no_default() {
    let mut options = Options::new();
    options.set("execution.checkpointing.interval-during-backlog", "0").unwrap();
    assert!(options.is_set("execution.checkpointing.interval-during-backlog"));
    options.set("execution.checkpointing.interval-during-backlog", "").unwrap();
    assert_eq!(options, Options::new());
    assert!(options.set("execution.checkpointing.interval", "").is_err());
}

#[test]
fn differences_from_flink_are_of_options() {
    for (name, text) in options::DIFFERENCES {
        assert!(OptionSpec::find(name).is_some_and(|spec| spec.difference() == Some(text)), "{name}");
        assert!(text.ends_with('.'), "{name}");
    }
}

#[test]
fn what_was_given_is_kept_and_what_was_not_has_its_default() {
    let mut given = Options::new();
    given.set("Execution.Checkpointing.Interval", "300ms").unwrap();
    assert_eq!(given.get("execution.checkpointing.interval"), Ok("300 ms"));
    assert_eq!(given.duration("execution.checkpointing.interval"), Ok(Some(Duration::from_millis(300))));
    assert_eq!(given.duration("execution.checkpointing.min-pause"), Ok(None));
    assert_eq!(Options::from_changed(&given.changed()), Ok(given.clone()));
    assert_eq!(given.all().count(), OPTIONS.len());
    given.reset_all();
    assert_eq!(given, Options::new());
}

#[test]
fn postgresql_parameters_are_accepted() {
    let mut parameters = Parameters::new();
    for (name, value) in [
        ("client_encoding", "utf-8"),
        ("application_name", "psql"),
        ("datestyle", "ISO"),
        ("extra_float_digits", "3"),
        ("TimeZone", "Europe/Berlin"),
    ] {
        assert_eq!(parameters.set(name, Some(value)), Ok(true), "{name}");
    }
    assert_eq!(parameters.get("CLIENT_ENCODING"), Some("UTF8"));
    assert_eq!(parameters.get("datestyle"), Some("ISO"));
    assert_eq!(parameters.set("wibble", Some("1")), Ok(false));
    assert!(parameters.set("client_encoding", Some("latin1")).is_err());
    assert!(parameters.set("server_version", Some("9")).is_err());
    parameters.reset_all();
    assert_eq!(parameters.get("datestyle"), Some("ISO, MDY"));
    assert!(options::unknown("datestile").hint.is_some_and(|h| h.contains("DateStyle")));
}

#[test]
fn unavailable_options_keep_to_their_default() {
    for spec in OPTIONS {
        if let Availability::Only(values) = spec.available {
            assert!(values.contains(&spec.default), "{}", spec.name);
        }
    }
}
