//! PostgreSQL's types and the Arrow types that carry them.
//!
//! | SQL | Arrow |
//! | --- | --- |
//! | SMALLINT, INTEGER, BIGINT | Int16, Int32, Int64 |
//! | REAL, DOUBLE PRECISION | Float32, Float64 |
//! | NUMERIC(p,s); NUMERIC = NUMERIC(38,10) | Decimal128(p,s) |
//! | TEXT, VARCHAR(n), CHAR(n), UUID | Utf8 |
//! | JSON, JSONB | Utf8 with field metadata `weir.type` |
//! | BOOLEAN, DATE, BYTEA | Boolean, Date32, Binary |
//! | TIME, TIMESTAMP, TIMESTAMPTZ | Time64(µs), Timestamp(µs), Timestamp(µs, UTC) |
//! | INTERVAL | Interval(MonthDayNano) |
//! | `T[]`, `ARRAY<T>` | List |
//! | `STRUCT<a T, …>`, `STRUCT(a T, …)` | Struct |

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, IntervalUnit, TimeUnit};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sqlparser::ast::{self, ArrayElemTypeDef, ExactNumberInfo, TimezoneInfo};
use sqlparser::dialect::{Dialect, DuckDbDialect, GenericDialect};
use sqlparser::parser::{Parser, ParserError};

use crate::error::{ErrorKind, Result, SqlError, nearest};

/// Field metadata key that tells types of the same Arrow type apart.
pub const TYPE_KEY: &str = "weir.type";

/// A type as a person writes it. Serialised by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SqlType {
    /// `boolean`
    Boolean,
    /// `smallint`
    SmallInt,
    /// `integer`
    Integer,
    /// `bigint`
    BigInt,
    /// `real`
    Real,
    /// `double precision`
    Double,
    /// `numeric(p,s)`
    Numeric(u8, i8),
    /// `text`
    Text,
    /// `character varying(n)`
    Varchar(Option<u64>),
    /// `character(n)`
    Char(u64),
    /// `uuid`, kept as text
    Uuid,
    /// `json`
    Json,
    /// `jsonb`, kept as text
    Jsonb,
    /// `bytea`
    Bytea,
    /// `date`
    Date,
    /// `time without time zone`
    Time,
    /// `timestamp without time zone`
    Timestamp,
    /// `timestamp with time zone`
    TimestampTz,
    /// `interval`
    Interval,
    /// `t[]`
    Array(Box<SqlType>),
    /// `struct<a t, …>`
    Struct(Vec<(String, SqlType)>),
}

/// Names that people write, for "did you mean".
const NAMES: &[&str] = &[
    "boolean",
    "bool",
    "smallint",
    "int",
    "integer",
    "bigint",
    "int2",
    "int4",
    "int8",
    "real",
    "double precision",
    "float4",
    "float8",
    "float",
    "numeric",
    "decimal",
    "text",
    "varchar",
    "char",
    "uuid",
    "json",
    "jsonb",
    "bytea",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "interval",
    "string",
    "struct",
    "array",
];

impl SqlType {
    /// Reads a type's name: `numeric(10, 2)`, `timestamp with time zone`, `int[]`, `struct<a int, b text>`,
    /// `struct(a int, b text)`.
    pub fn parse(text: &str) -> Result<Self> {
        let in_dialect = |dialect: &dyn Dialect| {
            let mut parser = Parser::new(dialect).try_with_sql(text)?;
            let data_type = parser.parse_data_type()?;
            parser.expect_token(&sqlparser::tokenizer::Token::EOF)?;
            Ok::<_, ParserError>(data_type)
        };
        // DuckDB's dialect has `struct(a int, b text)` with parentheses, which many know it by.
        let parsed = in_dialect(&GenericDialect {}).or_else(|e| in_dialect(&DuckDbDialect {}).map_err(|_| e));
        Self::from_ast(&parsed.map_err(|e| {
            SqlError::new(ErrorKind::UNDEFINED_TYPE, format!("\"{text}\" is not a type")).detail(e.to_string())
        })?)
    }

    /// As sqlparser's type.
    pub fn to_ast(&self) -> Result<ast::DataType> {
        let name = self.to_string();
        Parser::new(&GenericDialect {})
            .try_with_sql(&name)
            .and_then(|mut parser| parser.parse_data_type())
            .map_err(|error| Self::unknown(&name).detail(error.to_string()))
    }

    /// From sqlparser's type.
    pub fn from_ast(data_type: &ast::DataType) -> Result<Self> {
        use ast::DataType as T;
        Ok(match data_type {
            T::Boolean | T::Bool => Self::Boolean,
            T::SmallInt(_) | T::Int2(_) | T::TinyInt(_) | T::Int16 => Self::SmallInt,
            T::Int(_) | T::Integer(_) | T::Int4(_) | T::MediumInt(_) | T::Int32 => Self::Integer,
            T::BigInt(_) | T::Int8(_) | T::Int64 => Self::BigInt,
            T::Real | T::Float4 | T::Float32 => Self::Real,
            T::Double(_) | T::DoublePrecision | T::Float8 | T::Float64 => Self::Double,
            // PostgreSQL: up to 24 bits of mantissa are a real.
            T::Float(ExactNumberInfo::Precision(bits)) if *bits <= 24 => Self::Real,
            T::Float(_) => Self::Double,
            T::Numeric(info) | T::Decimal(info) | T::Dec(info) => Self::numeric(info)?,
            T::Text | T::String(_) => Self::Text,
            T::Varchar(length) | T::CharacterVarying(length) | T::CharVarying(length) | T::Nvarchar(length) => {
                Self::Varchar(character_length(length.as_ref()))
            }
            T::Char(length) | T::Character(length) => Self::Char(character_length(length.as_ref()).unwrap_or(1)),
            T::Uuid => Self::Uuid,
            T::JSON => Self::Json,
            T::JSONB => Self::Jsonb,
            T::Bytea | T::Binary(_) | T::Varbinary(_) | T::Blob(_) | T::Bytes(_) => Self::Bytea,
            T::Date | T::Date32 => Self::Date,
            T::Time(_, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => Self::Time,
            T::Timestamp(_, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) | T::Datetime(_) => Self::Timestamp,
            T::Timestamp(..) | T::TimestampNtz(_) if matches!(data_type, T::TimestampNtz(_)) => Self::Timestamp,
            T::Timestamp(..) => Self::TimestampTz,
            T::Interval { .. } => Self::Interval,
            T::Array(
                ArrayElemTypeDef::AngleBracket(inner)
                | ArrayElemTypeDef::SquareBracket(inner, _)
                | ArrayElemTypeDef::Parenthesis(inner),
            ) => Self::Array(Box::new(Self::from_ast(inner)?)),
            T::Struct(fields, _) => {
                let named = |(i, field): (usize, &ast::StructField)| {
                    let name = field.field_name.as_ref().map_or_else(|| format!("c{i}"), fold);
                    Ok((name, Self::from_ast(&field.field_type)?))
                };
                Self::Struct(fields.iter().enumerate().map(named).collect::<Result<_>>()?)
            }
            T::Custom(name, modifiers) => Self::named(&name.to_string(), modifiers)?,
            other => return Err(Self::unknown(&other.to_string())),
        })
    }

    fn named(name: &str, _modifiers: &[String]) -> Result<Self> {
        Ok(match name.to_lowercase().as_str() {
            "timestamptz" => Self::TimestampTz,
            "name" | "string" => Self::Text,
            "serial" | "bigserial" => {
                return Err(SqlError::unsupported(format!("type {name} needs a sequence, which Weir does not have"))
                    .hint("write BIGINT, and give the value when inserting"));
            }
            other => return Err(Self::unknown(other)),
        })
    }

    fn numeric(info: &ExactNumberInfo) -> Result<Self> {
        let (precision, scale) = match info {
            ExactNumberInfo::None => (38, 10),
            ExactNumberInfo::Precision(p) => (*p, 0),
            ExactNumberInfo::PrecisionAndScale(p, s) => (*p, *s),
        };
        if !(1..=38).contains(&precision) || scale < 0 || scale > i64::try_from(precision).unwrap_or(38) {
            return Err(SqlError::new(
                ErrorKind::INVALID_DEFINITION,
                format!("numeric({precision},{scale}) is out of range"),
            )
            .hint("the precision is 1 to 38 and the scale 0 to the precision"));
        }
        Ok(Self::Numeric(precision as u8, scale as i8))
    }

    fn unknown(name: &str) -> SqlError {
        let error =
            SqlError::new(ErrorKind::UNDEFINED_TYPE, format!("type \"{}\" does not exist", name.to_lowercase()));
        let near = nearest(name, NAMES.iter().copied()).map(|near| format!("did you mean {near}?"));
        error
            .hint("types are PostgreSQL's: INT, BIGINT, DOUBLE PRECISION, NUMERIC(p,s), TEXT, TIMESTAMPTZ, …")
            .maybe_hint(near)
    }

    /// The Arrow type that carries it.
    pub fn data_type(&self) -> DataType {
        match self {
            Self::Boolean => DataType::Boolean,
            Self::SmallInt => DataType::Int16,
            Self::Integer => DataType::Int32,
            Self::BigInt => DataType::Int64,
            Self::Real => DataType::Float32,
            Self::Double => DataType::Float64,
            Self::Numeric(p, s) => DataType::Decimal128(*p, *s),
            Self::Text | Self::Varchar(_) | Self::Char(_) | Self::Uuid | Self::Json | Self::Jsonb => DataType::Utf8,
            Self::Bytea => DataType::Binary,
            Self::Date => DataType::Date32,
            Self::Time => DataType::Time64(TimeUnit::Microsecond),
            Self::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            Self::TimestampTz => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
            Self::Array(inner) => DataType::List(Arc::new(inner.item_field("item"))),
            Self::Struct(fields) => {
                DataType::Struct(fields.iter().map(|(name, t)| t.item_field(name)).collect::<Fields>())
            }
        }
    }

    fn item_field(&self, name: &str) -> Field {
        Field::new(name, self.data_type(), true).with_metadata(self.metadata())
    }

    /// Field metadata that tells the type from others carried alike.
    pub fn metadata(&self) -> HashMap<String, String> {
        let name = match self {
            Self::Json => "json",
            Self::Jsonb => "jsonb",
            Self::Uuid => "uuid",
            _ => return HashMap::new(),
        };
        HashMap::from([(TYPE_KEY.to_owned(), name.to_owned())])
    }

    /// The type whose Arrow type can hold every value of `data_type`; `None` when Weir has none.
    pub fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Boolean => Self::Boolean,
            DataType::Int8 | DataType::Int16 | DataType::UInt8 => Self::SmallInt,
            DataType::Int32 | DataType::UInt16 => Self::Integer,
            DataType::Int64 | DataType::UInt32 => Self::BigInt,
            DataType::UInt64 => Self::Numeric(20, 0),
            DataType::Float16 | DataType::Float32 => Self::Real,
            DataType::Float64 => Self::Double,
            DataType::Decimal32(p, s) | DataType::Decimal64(p, s) | DataType::Decimal128(p, s) if *s >= 0 => {
                Self::Numeric(*p, *s)
            }
            DataType::Decimal256(_, s) if *s >= 0 => Self::Numeric(38, (*s).min(38)),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => Self::Text,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
                Self::Bytea
            }
            DataType::Date32 => Self::Date,
            DataType::Date64 => Self::Timestamp,
            DataType::Time32(_) | DataType::Time64(_) => Self::Time,
            DataType::Timestamp(_, None) => Self::Timestamp,
            DataType::Timestamp(_, Some(_)) => Self::TimestampTz,
            DataType::Interval(_) | DataType::Duration(_) => Self::Interval,
            DataType::List(f) | DataType::LargeList(f) | DataType::ListView(f) | DataType::FixedSizeList(f, _) => {
                Self::Array(Box::new(Self::of_field(f)?))
            }
            DataType::Struct(fields) => {
                let named = |f: &Arc<Field>| Some((f.name().clone(), Self::of_field(f)?));
                Self::Struct(fields.iter().map(named).collect::<Option<_>>()?)
            }
            DataType::Dictionary(_, value) => Self::of(value)?,
            _ => return None,
        })
    }

    /// As [`SqlType::of`], minding the field's metadata.
    pub fn of_field(field: &Field) -> Option<Self> {
        match field.metadata().get(TYPE_KEY).map(String::as_str) {
            Some("json") => Some(Self::Json),
            Some("jsonb") => Some(Self::Jsonb),
            Some("uuid") => Some(Self::Uuid),
            _ => Self::of(field.data_type()),
        }
    }

    /// The name in `pg_type`, by which PostgreSQL calls the column of a cast; that of its elements for an array.
    pub fn catalog_name(&self) -> &'static str {
        match self {
            Self::Boolean => "bool",
            Self::SmallInt => "int2",
            Self::Integer => "int4",
            Self::BigInt => "int8",
            Self::Real => "float4",
            Self::Double => "float8",
            Self::Numeric(..) => "numeric",
            Self::Text => "text",
            Self::Varchar(_) => "varchar",
            Self::Char(_) => "bpchar",
            Self::Uuid => "uuid",
            Self::Json => "json",
            Self::Jsonb => "jsonb",
            Self::Bytea => "bytea",
            Self::Date => "date",
            Self::Time => "time",
            Self::Timestamp => "timestamp",
            Self::TimestampTz => "timestamptz",
            Self::Interval => "interval",
            Self::Array(inner) => inner.catalog_name(),
            Self::Struct(_) => "struct",
        }
    }

    /// Whether it can be event time.
    pub fn is_event_time(&self) -> bool {
        matches!(self, Self::Timestamp | Self::TimestampTz)
    }
}

fn character_length(length: Option<&ast::CharacterLength>) -> Option<u64> {
    match length {
        Some(ast::CharacterLength::IntegerLength { length, .. }) => Some(*length),
        _ => None,
    }
}

/// An identifier as PostgreSQL folds it: lower case unless quoted.
pub(crate) fn fold(ident: &ast::Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

/// An identifier as it must be written to be read back the same.
pub fn quote_ident(name: &str) -> String {
    let plain = name.chars().next().is_some_and(|c| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

impl fmt::Display for SqlType {
    /// PostgreSQL's name, as `format_type` gives it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("boolean"),
            Self::SmallInt => f.write_str("smallint"),
            Self::Integer => f.write_str("integer"),
            Self::BigInt => f.write_str("bigint"),
            Self::Real => f.write_str("real"),
            Self::Double => f.write_str("double precision"),
            Self::Numeric(p, s) => write!(f, "numeric({p},{s})"),
            Self::Text => f.write_str("text"),
            Self::Varchar(None) => f.write_str("character varying"),
            Self::Varchar(Some(n)) => write!(f, "character varying({n})"),
            Self::Char(n) => write!(f, "character({n})"),
            Self::Uuid => f.write_str("uuid"),
            Self::Json => f.write_str("json"),
            Self::Jsonb => f.write_str("jsonb"),
            Self::Bytea => f.write_str("bytea"),
            Self::Date => f.write_str("date"),
            Self::Time => f.write_str("time without time zone"),
            Self::Timestamp => f.write_str("timestamp without time zone"),
            Self::TimestampTz => f.write_str("timestamp with time zone"),
            Self::Interval => f.write_str("interval"),
            Self::Array(inner) => write!(f, "{inner}[]"),
            Self::Struct(fields) => {
                f.write_str("struct<")?;
                for (i, (name, t)) in fields.iter().enumerate() {
                    write!(f, "{}{} {t}", if i > 0 { ", " } else { "" }, quote_ident(name))?;
                }
                f.write_str(">")
            }
        }
    }
}

impl Serialize for SqlType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SqlType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}
