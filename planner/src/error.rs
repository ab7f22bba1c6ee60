//! The one error that every door shows: SQLSTATE, Weir's own code, a sentence, and what to do next.

use std::fmt;

use datafusion::common::{DataFusionError, SchemaError};
use serde::Serialize;

/// What went wrong with a statement. The message names what was given; the hint names what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SqlError {
    /// PostgreSQL's five-letter state, for drivers.
    pub sqlstate: &'static str,
    /// Weir's own code, `WEIR-1001`, for searching the documentation.
    pub code: &'static str,
    /// One sentence, lower-case, without a full stop, naming what was given.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
    /// More about the cause.
    pub detail: Option<String>,
    /// Where, as PostgreSQL counts: characters from 1 in the text that was given to [`crate::parse`].
    pub position: Option<usize>,
}

/// Kinds of errors: a SQLSTATE and a Weir code that always go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorKind(&'static str, &'static str);

impl ErrorKind {
    /// The text is not a statement.
    pub const SYNTAX: Self = Self("42601", "WEIR-1001");
    /// A statement, clause or type that Weir does not have.
    pub const UNSUPPORTED: Self = Self("0A000", "WEIR-1002");
    /// A clause that has no meaning, or no bounded one, over a stream.
    pub const NOT_STREAMABLE: Self = Self("0A000", "WEIR-1003");
    /// No relation of that name.
    pub const UNDEFINED_RELATION: Self = Self("42P01", "WEIR-1101");
    /// A relation of that name stands already.
    pub const DUPLICATE_RELATION: Self = Self("42P07", "WEIR-1102");
    /// The relation is of another kind than the statement wants.
    pub const WRONG_KIND: Self = Self("42809", "WEIR-1103");
    /// Other relations depend on it.
    pub const DEPENDENT: Self = Self("2BP01", "WEIR-1104");
    /// No column of that name.
    pub const UNDEFINED_COLUMN: Self = Self("42703", "WEIR-1201");
    /// Two columns of one name.
    pub const DUPLICATE_COLUMN: Self = Self("42701", "WEIR-1202");
    /// A column name that means two columns.
    pub const AMBIGUOUS_COLUMN: Self = Self("42702", "WEIR-1203");
    /// No type of that name.
    pub const UNDEFINED_TYPE: Self = Self("42704", "WEIR-1204");
    /// Types that do not fit.
    pub const TYPE_MISMATCH: Self = Self("42804", "WEIR-1205");
    /// A definition that contradicts itself.
    pub const INVALID_DEFINITION: Self = Self("42P16", "WEIR-1206");
    /// No function of that name and these arguments.
    pub const UNDEFINED_FUNCTION: Self = Self("42883", "WEIR-1207");
    /// A null in a column that must not have one.
    pub const NOT_NULL: Self = Self("23502", "WEIR-1208");
    /// A column that is not grouped by.
    pub const GROUPING: Self = Self("42803", "WEIR-1209");
    /// A value that its type cannot hold.
    pub const INVALID_VALUE: Self = Self("22023", "WEIR-1301");
    /// No option of that name.
    pub const UNDEFINED_OPTION: Self = Self("42704", "WEIR-1302");
    /// Options that cannot hold together.
    pub const OPTION_CONFLICT: Self = Self("22023", "WEIR-1303");
    /// An option or value whose behaviour this version does not have.
    pub const OPTION_UNAVAILABLE: Self = Self("0A000", "WEIR-1304");
    /// No cursor of that name.
    pub const UNDEFINED_CURSOR: Self = Self("34000", "WEIR-1401");
    /// A cursor of that name is open already.
    pub const DUPLICATE_CURSOR: Self = Self("42P03", "WEIR-1402");
    /// No savepoint of that name or at that place.
    pub const UNDEFINED_SAVEPOINT: Self = Self("3B001", "WEIR-1403");
    /// The query has a savepoint of that name already, or another is at that place.
    pub const DUPLICATE_SAVEPOINT: Self = Self("42710", "WEIR-1404");
    /// The query cannot start from that checkpoint: what it holds is not what the query needs.
    pub const NOT_RESTORABLE: Self = Self("55000", "WEIR-1405");
    /// A row of that primary key stands already.
    pub const UNIQUE_VIOLATION: Self = Self("23505", "WEIR-2001");
    /// A value that cannot be computed: division by zero, overflow, a cast.
    pub const EVALUATION: Self = Self("22000", "WEIR-2002");
    /// Rows of a request that cannot be read.
    pub const BAD_DATA: Self = Self("22P04", "WEIR-2003");
    /// The store or the local disk failed.
    pub const STORAGE: Self = Self("58030", "WEIR-3001");
    /// Another process owns the store.
    pub const FENCED: Self = Self("57P01", "WEIR-3002");
    /// A query is not in the state that the statement needs.
    pub const QUERY_STATE: Self = Self("55000", "WEIR-3003");
    /// A connector failed or was declared wrongly.
    pub const CONNECTOR: Self = Self("58000", "WEIR-3004");
    /// What is asked for is not there yet.
    pub const NOT_READY: Self = Self("57P03", "WEIR-3005");
    /// A subscription can no longer go on from where it was.
    pub const SUBSCRIPTION_LOST: Self = Self("40001", "WEIR-3006");
    /// A batch query wants more memory than all of them may use.
    pub const OUT_OF_MEMORY: Self = Self("53200", "WEIR-3007");
    /// The plan could not be made for a reason that is no fault of the statement.
    pub const INTERNAL: Self = Self("XX000", "WEIR-1900");
}

impl SqlError {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { sqlstate: kind.0, code: kind.1, message: message.into(), hint: None, detail: None, position: None }
    }

    /// The text is not a statement.
    pub fn syntax(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::SYNTAX, message)
    }

    /// A thing that Weir does not have.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::UNSUPPORTED, message)
    }

    /// Adds what to write instead.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a hint if there is one.
    #[must_use]
    pub fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    /// Adds more about the cause.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds where, in characters from 1.
    #[must_use]
    pub fn at(mut self, position: usize) -> Self {
        self.position = Some(position);
        self
    }

    /// Whether the error is of this kind.
    pub fn is(&self, kind: ErrorKind) -> bool {
        self.code == kind.1
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(position) = self.position {
            write!(f, " (at character {position})")?;
        }
        if let Some(detail) = &self.detail {
            write!(f, "; {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SqlError {}

/// Result of anything that reads SQL.
pub type Result<T, E = SqlError> = std::result::Result<T, E>;

/// `did you mean x?`, the nearest of the known names, if one is near.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(&given, &name.to_lowercase()), name))
        .filter(|(likeness, _)| *likeness >= 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// DataFusion's error as one that a person can act upon.
pub fn from_datafusion(error: DataFusionError) -> SqlError {
    match error.find_root() {
        DataFusionError::External(inner) => match inner.downcast_ref::<SqlError>() {
            Some(error) => error.clone(),
            None => SqlError::new(ErrorKind::INTERNAL, inner.to_string()),
        },
        DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
            SchemaError::FieldNotFound { field, valid_fields } => {
                let near = nearest(&field.name, valid_fields.iter().map(|f| f.name.as_str()));
                let known: Vec<&str> = valid_fields.iter().map(|f| f.name.as_str()).collect();
                let hint = match near {
                    Some(near) => Some(format!("did you mean \"{near}\"?")),
                    None if known.is_empty() => None,
                    None => Some(format!("the columns are {}", known.join(", "))),
                };
                let name = field.flat_name();
                SqlError::new(ErrorKind::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist")).maybe_hint(hint)
            }
            SchemaError::AmbiguousReference { field } => {
                SqlError::new(ErrorKind::AMBIGUOUS_COLUMN, format!("column \"{}\" is ambiguous", field.name))
                    .hint(format!("write it with its relation: relation.{}", field.name))
            }
            SchemaError::DuplicateQualifiedField { name, .. } | SchemaError::DuplicateUnqualifiedField { name } => {
                SqlError::new(ErrorKind::DUPLICATE_COLUMN, format!("column \"{name}\" is there twice"))
                    .hint("give the relations different aliases, or the columns different names")
            }
        },
        DataFusionError::SQL(error, _) => SqlError::syntax(error.to_string()),
        DataFusionError::Plan(message) => from_plan_message(message),
        DataFusionError::NotImplemented(message) => SqlError::unsupported(plain(message)),
        DataFusionError::ArrowError(error, _) => SqlError::new(ErrorKind::EVALUATION, error.to_string()),
        DataFusionError::Execution(message) => SqlError::new(ErrorKind::EVALUATION, plain(message)),
        other => SqlError::new(ErrorKind::INTERNAL, plain(&other.strip_backtrace())),
    }
}

fn from_plan_message(message: &str) -> SqlError {
    let message = plain(message);
    if let Some((_, rest)) = message.split_once("must appear in the GROUP BY").and(message.split_once("column \"")) {
        let name = rest.split('"').next().unwrap_or_default();
        let name = name.rsplit('.').next().unwrap_or_default();
        let text = format!("column \"{name}\" must appear in the GROUP BY clause or be used in an aggregate function");
        return SqlError::new(ErrorKind::GROUPING, text);
    }
    if let Some((_, rest)) = message.split_once("projections require unique expression names but the expression \"") {
        let name = rest.split('"').next().unwrap_or_default();
        return SqlError::new(ErrorKind::DUPLICATE_COLUMN, format!("column \"{name}\" is in the result twice"))
            .hint("leave one of them out, or give it another name with AS");
    }
    let lower = message.to_lowercase();
    let kind = if lower.starts_with("invalid function") || lower.contains("no function matches") {
        ErrorKind::UNDEFINED_FUNCTION
    } else if lower.contains("table '") && lower.contains("not found") {
        ErrorKind::UNDEFINED_RELATION
    } else if lower.contains("coerce") || lower.contains("cannot infer common") {
        ErrorKind::TYPE_MISMATCH
    } else {
        ErrorKind::INVALID_DEFINITION
    };
    let (text, hint) = if let Some((text, near)) = message.split_once("Did you mean") {
        (text, Some(format!("did you mean{near}")))
    } else if let Some((text, candidates)) = message.split_once("You might need to add explicit type casts.") {
        let candidates = candidates.split_whitespace().collect::<Vec<_>>().join(" ");
        (text, Some(format!("cast the arguments; {}", candidates.replace("Candidate functions:", "there is"))))
    } else {
        (message.as_str(), None)
    };
    SqlError::new(kind, text.trim_end_matches(['.', ' ', '\n'])).maybe_hint(hint)
}

/// The first lines of a message, without a backtrace and without a capital letter at its start.
fn plain(message: &str) -> String {
    let message = message.split("\n\nbacktrace:").next().unwrap_or_default().trim().trim_end_matches('.');
    let mut chars = message.chars();
    match (chars.next(), message.chars().nth(1)) {
        // Not an acronym such as SQL.
        (Some(first), Some(second)) if !second.is_uppercase() => first.to_lowercase().chain(chars).collect(),
        _ => message.to_owned(),
    }
}
