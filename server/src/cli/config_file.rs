//! The configuration file: YAML, with keys nested or dotted, Flink's spelling included.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_yaml_ng::Value;
use weir_planner::options::OPTIONS;
use weir_planner::{Options, SqlError};

use super::Failure;

/// Keys of the server itself, which are also flags.
const SERVER_KEYS: &[&str] = &["data-dir", "store", "listen-sql", "listen-http", "parallelism"];

/// Keys that go to the store as they are: `s3.endpoint`, `gs.service-account`, ….
const STORE_PREFIXES: &[&str] = &["s3.", "gs.", "az."];

/// What a configuration file says.
#[derive(Debug, Default, PartialEq)]
pub struct ConfigFile {
    /// `data-dir`, `store`, `listen-sql`, `listen-http`, `parallelism`.
    pub server: BTreeMap<String, String>,
    /// Options of queries and of the server, checked.
    pub options: Options,
    /// Options of the store.
    pub store: BTreeMap<String, String>,
}

impl ConfigFile {
    /// Reads a file; without one, everything has its default.
    pub fn read(path: Option<&PathBuf>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::Message(format!("cannot read the configuration file {}: {e}", path.display())))?;
        Self::parse(&text).map_err(|error| in_file(path, error))
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self, SqlError> {
        let document: Value = serde_yaml_ng::from_str(text)
            .map_err(|e| SqlError::syntax(format!("the configuration file is not YAML: {e}")))?;
        let mut flat = Vec::new();
        flatten("", &document, &mut flat)?;
        let mut file = Self::default();
        for (key, value) in flat {
            if SERVER_KEYS.contains(&key.as_str()) {
                file.server.insert(key, value);
            } else if STORE_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
                file.store.insert(key, value);
            } else if weir_planner::options::OptionSpec::find(&key).is_some() {
                if file.options.is_set(&key) {
                    return Err(SqlError::syntax(format!("\"{key}\" is given twice in the configuration file"))
                        .hint("an option may be nested or dotted; keep one of the two"));
                }
                file.options.set_any(&key, &value)?;
            } else {
                return Err(unknown(&key));
            }
        }
        file.options.check()?;
        Ok(file)
    }
}

fn unknown(key: &str) -> SqlError {
    let known = OPTIONS.iter().map(|option| option.name).chain(SERVER_KEYS.iter().copied());
    let error = SqlError::new(weir_planner::ErrorKind::UNDEFINED_OPTION, format!("unknown option \"{key}\""));
    match weir_planner::error::nearest(key, known) {
        Some(near) => error.hint(format!("did you mean \"{near}\"?")),
        None => error.hint("docs/configuration.md lists all options"),
    }
}

fn in_file(path: &Path, error: SqlError) -> Failure {
    SqlError { message: format!("{}: {}", path.display(), error.message), ..error }.into()
}

/// Nested keys as dotted ones, in the order of the file.
fn flatten(prefix: &str, value: &Value, into: &mut Vec<(String, String)>) -> Result<(), SqlError> {
    let scalar = match value {
        Value::Null if prefix.is_empty() => return Ok(()),
        Value::Null => String::new(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(value) => value.clone(),
        Value::Mapping(mapping) => {
            for (key, value) in mapping {
                let key = match key {
                    Value::String(key) => key.clone(),
                    Value::Number(key) => key.to_string(),
                    Value::Bool(key) => key.to_string(),
                    _ => return Err(SqlError::syntax(format!("a key below \"{prefix}\" is not a name"))),
                };
                let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(&key, value, into)?;
            }
            return Ok(());
        }
        Value::Sequence(items) => {
            let mut texts = Vec::new();
            for item in items {
                let mut one = Vec::new();
                flatten(prefix, item, &mut one)?;
                texts.extend(one.into_iter().map(|(_, text)| text));
            }
            texts.join(";")
        }
        Value::Tagged(tagged) => return flatten(prefix, &tagged.value, into),
    };
    if prefix.is_empty() {
        return Err(SqlError::syntax("the configuration file must be a list of \"option: value\" lines"));
    }
    into.push((prefix.to_owned(), scalar));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_and_dotted_keys_mean_the_same() {
        let nested = "execution:\n  checkpointing:\n    interval: 300ms\n";
        let dotted = "execution.checkpointing.interval: 300ms\n";
        let mixed = "execution:\n  checkpointing.interval: 300ms\n";
        let parsed = ConfigFile::parse(dotted).unwrap();
        let mut expected = Options::new();
        expected.set("execution.checkpointing.interval", "300ms").unwrap();
        assert_eq!(parsed.options, expected);
        assert_eq!(ConfigFile::parse(nested).unwrap(), parsed);
        assert_eq!(ConfigFile::parse(mixed).unwrap(), parsed);
    }

    /// Flink's template, its keys dotted.
    const FLINK_CONF: &str = "\
execution.checkpointing.mode: EXACTLY_ONCE
execution.checkpointing.interval: 10s
execution.checkpointing.interval-during-backlog: 1 min
execution.checkpointing.min-pause: 2s
execution.checkpointing.timeout: 2m
execution.checkpointing.tolerable-failed-checkpoints: 2
execution.checkpointing.max-concurrent-checkpoints: 1
execution.checkpointing.storage: filesystem
execution.checkpointing.dir: s3://bucket/ckpt
execution.checkpointing.num-retained: 3
execution.checkpointing.externalized-checkpoint-retention: RETAIN_ON_CANCELLATION
execution.checkpointing.checkpoints-after-tasks-finish: true
execution.checkpointing.file-merging.enabled: true
execution.checkpointing.file-merging.max-file-size: 256mb
execution.checkpointing.incremental: false
execution.checkpointing.data-inline-threshold: 20 kb
execution.checkpointing.cleaner.parallel-mode: false
execution.checkpointing.savepoint-dir: s3://bucket/savepoints
execution.state-recovery.claim-mode: CLAIM
execution.state-recovery.ignore-unclaimed-state: true
pipeline.max-parallelism: 256
";

    /// The same, nested.
    const NESTED: &str = "\
execution:
  checkpointing:
    mode: EXACTLY_ONCE
    interval: 10s
    interval-during-backlog: 1 min
    min-pause: 2s
    timeout: 2m
    tolerable-failed-checkpoints: 2
    max-concurrent-checkpoints: 1
    storage: filesystem
    dir: s3://bucket/ckpt
    num-retained: 3
    externalized-checkpoint-retention: RETAIN_ON_CANCELLATION
    checkpoints-after-tasks-finish: true
    file-merging: { enabled: true, max-file-size: 256mb }
    incremental: false
    data-inline-threshold: 20 kb
    cleaner.parallel-mode: false
    savepoint-dir: s3://bucket/savepoints
  state-recovery:
    claim-mode: CLAIM
    ignore-unclaimed-state: true
pipeline:
  max-parallelism: 256
";

    #[test]
    fn flinks_keys_are_taken_from_the_file_from_set_and_from_with() {
        let dotted = ConfigFile::parse(FLINK_CONF).unwrap();
        assert_eq!(ConfigFile::parse(NESTED).unwrap(), dotted);
        let (mut set, mut with) = (Options::new(), std::collections::BTreeMap::new());
        for (name, value) in dotted.options.changed() {
            if name != "execution.checkpointing.dir" {
                set.set(&name, &value).unwrap();
                with.insert(name, value);
            }
        }
        let (kept, connector) = Options::new().split(&with).unwrap();
        assert_eq!((kept.changed(), connector.len()), (with, 0));
        assert_eq!(set, kept);
        let error = set.set("execution.checkpointing.dir", "s3://b/x").unwrap_err();
        assert!(error.message.contains("belongs to the server"), "{}", error.message);
    }

    #[test]
    fn an_option_given_nested_and_dotted_is_refused() {
        let twice = "execution.checkpointing.interval: 1s\nexecution:\n  checkpointing:\n    interval: 2s\n";
        assert!(ConfigFile::parse(twice).unwrap_err().message.contains("given twice"));
    }

    #[test]
    fn keys_of_the_server_and_of_the_store() {
        let file =
            ConfigFile::parse("store: s3://bucket/weir\nparallelism: 2\ns3:\n  endpoint: http://localhost:9000\n")
                .unwrap();
        assert_eq!(file.server["store"], "s3://bucket/weir");
        assert_eq!(file.server["parallelism"], "2");
        assert_eq!(file.store["s3.endpoint"], "http://localhost:9000");
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest() {
        let error = ConfigFile::parse("execution.checkpointing.intervall: 1s").unwrap_err();
        assert_eq!(error.message, "unknown option \"execution.checkpointing.intervall\"");
        assert_eq!(error.hint.as_deref(), Some("did you mean \"execution.checkpointing.interval\"?"));
        assert!(ConfigFile::parse("- 1").is_err());
        assert_eq!(ConfigFile::parse("").unwrap(), ConfigFile::default());
    }
}
