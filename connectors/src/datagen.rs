//! The `datagen` source: made-up rows, the same for the same seed.
//!
//! Each column has a generator, `fields.<column>.kind`:
//!
//! * `sequence`: `start`, `start + 1`, …
//! * `random`: numbers between `min` and `max`, text of `length` letters, true or false
//! * `choice`: one of `values`, separated by commas
//! * `time`: `start` plus `step` for each row; the default of timestamp and date columns

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, SchemaRef};
use weir_runtime::graph::ConnectorOptions;
use weir_runtime::source::{Source, SourceRequest};
use weir_runtime::{Result, RuntimeError};

use crate::counted::{CountedSource, Generate, Random};
use crate::format::{BATCH_ROWS, parse_timestamp, sql_type};
use crate::options::{OptionSpec, Reader, bad_option, option};

/// The connector's name.
pub(crate) const NAME: &str = "datagen";

/// Options of the source; those of columns follow [`FIELD_OPTIONS`].
pub(crate) const OPTIONS: &[OptionSpec] = &[
    option("rows_per_second", "", "rows made in a second; without it as fast as they are read"),
    option("number_of_rows", "", "how many rows there are; without it there is no end"),
    option("seed", "0", "another seed makes other rows"),
];

/// Options of a column, written `fields.<column>.<option>`.
pub(crate) const FIELD_OPTIONS: &[OptionSpec] = &[
    option("kind", "random", "sequence, random, choice or time"),
    option("start", "0", "sequence: the first number; time: the first timestamp (2026-01-01 00:00:00)"),
    option("min", "0", "random: the smallest number"),
    option("max", "1000000", "random: the largest number"),
    option("length", "10", "random: number of letters of a text"),
    option("values", "", "choice: the values, separated by commas"),
    option("step", "", "time: from one row to the next; by default as rows_per_second has it, or 1ms"),
];

/// How one column's values are made.
#[derive(Debug, Clone)]
enum Maker {
    Sequence { start: i64 },
    Whole { min: i64, max: i64 },
    Real { min: f64, max: f64 },
    Letters { length: usize },
    Boolean,
    Choice(Vec<String>),
    Time { start: i64, step: i64 },
}

/// Open the source.
pub(crate) fn open(options: &ConnectorOptions, request: &SourceRequest) -> Result<Arc<dyn Source>> {
    let schema = request.projected()?;
    let all = Datagen::parse(options, &request.declared)?;
    let makers = request.projection.iter().map(|index| (*index as u64, all.makers[*index].1.clone())).collect();
    Ok(Arc::new(CountedSource(Arc::new(Datagen { schema, makers, ..all }))))
}

/// Check options and columns.
pub(crate) fn validate(options: &ConnectorOptions, declared: &SchemaRef) -> Result<()> {
    Datagen::parse(options, declared).map(|_| ())
}

struct Datagen {
    schema: SchemaRef,
    /// For each column, its number among the declared ones and how it is made.
    makers: Vec<(u64, Maker)>,
    seed: u64,
    rows: Option<u64>,
    rows_per_second: Option<f64>,
}

impl Datagen {
    fn parse(options: &ConnectorOptions, declared: &SchemaRef) -> Result<Self> {
        let reader = Reader::new(NAME, options);
        let rows_per_second = reader.number("rows_per_second")?;
        if let Some(rate) = rows_per_second.filter(|rate| *rate <= 0.0) {
            return Err(bad_option("rows_per_second", &rate.to_string(), "give a number above zero"));
        }
        let makers = declared
            .fields()
            .iter()
            .enumerate()
            .map(|(index, field)| Ok((index as u64, maker(&reader, field, rows_per_second)?)))
            .collect::<Result<Vec<_>>>()?;
        let datagen = Self {
            schema: Arc::clone(declared),
            makers,
            seed: reader.count("seed")?.unwrap_or(0),
            rows: reader.count("number_of_rows")?,
            rows_per_second,
        };
        // What does not fit a column's type shows in the first rows.
        datagen.batch(0, 1, 2)?;
        Ok(datagen)
    }
}

fn maker(reader: &Reader<'_>, field: &Field, rows_per_second: Option<f64>) -> Result<Maker> {
    let name = |option: &str| format!("fields.{}.{option}", field.name());
    let given = |option: &str| reader.text(&name(option));
    let temporal = matches!(field.data_type(), DataType::Timestamp(_, _) | DataType::Date32);
    let kind = match given("kind") {
        Some(kind) => kind.to_ascii_lowercase(),
        None if given("values").is_some() => "choice".to_owned(),
        None if temporal => "time".to_owned(),
        None => "random".to_owned(),
    };
    let whole = |option: &str, default: i64| match given(option) {
        None => Ok(default),
        Some(text) => text.trim().parse().map_err(|_| bad_option(&name(option), text, "give a whole number")),
    };
    let unfit =
        || bad_option(&name("kind"), &kind, format!("a column of type {} cannot be made this way", sql_type(field)));
    match kind.as_str() {
        "sequence" => Ok(Maker::Sequence { start: whole("start", 0)? }),
        "choice" => {
            let values = given("values").unwrap_or_default();
            if values.is_empty() {
                return Err(bad_option(&name("values"), values, "give the values, separated by commas"));
            }
            Ok(Maker::Choice(values.split(',').map(|value| value.trim().to_owned()).collect()))
        }
        "time" if temporal => {
            let start = given("start").unwrap_or("2026-01-01 00:00:00");
            let start = parse_timestamp(start)
                .ok_or_else(|| bad_option(&name("start"), start, "give a timestamp such as '2026-01-01 00:00:00'"))?;
            let default = rows_per_second.map_or(Duration::from_millis(1), |rate| Duration::from_secs_f64(1.0 / rate));
            let step = reader.duration(&name("step"))?.unwrap_or(default);
            Ok(Maker::Time { start, step: step.as_micros() as i64 })
        }
        "random" => match field.data_type() {
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => {
                let largest = match field.data_type() {
                    DataType::Int8 => i64::from(i8::MAX),
                    DataType::Int16 => i64::from(i16::MAX),
                    _ => 1_000_000,
                };
                let (min, max) = (whole("min", 0)?, whole("max", largest)?);
                if min > max {
                    return Err(bad_option(
                        &name("max"),
                        &max.to_string(),
                        format!("give at least min, which is {min}"),
                    ));
                }
                Ok(Maker::Whole { min, max })
            }
            DataType::Float32 | DataType::Float64 | DataType::Decimal128(_, _) => {
                let real = |option: &str, default: f64| {
                    Ok::<_, RuntimeError>(reader.number(&name(option))?.unwrap_or(default))
                };
                let (min, max) = (real("min", 0.0)?, real("max", 1.0)?);
                if min > max {
                    return Err(bad_option(
                        &name("max"),
                        &max.to_string(),
                        format!("give at least min, which is {min}"),
                    ));
                }
                Ok(Maker::Real { min, max })
            }
            DataType::Utf8 => Ok(Maker::Letters { length: whole("length", 10)?.clamp(0, 1 << 16) as usize }),
            DataType::Boolean => Ok(Maker::Boolean),
            _ => Err(unfit()),
        },
        "time" => Err(unfit()),
        _ => Err(bad_option(&name("kind"), &kind, "give 'sequence', 'random', 'choice' or 'time'")),
    }
}

impl Maker {
    fn column(&self, seed: u64, series: u64, rows: &[u64]) -> ArrayRef {
        let random = |row: &u64| Random::new(seed, series + 1, *row);
        match self {
            Self::Sequence { start } => {
                Arc::new(rows.iter().map(|row| start.wrapping_add(*row as i64)).collect::<Int64Array>())
            }
            Self::Whole { min, max } => {
                // Over the whole range of i64 the number of values does not fit 64 bits.
                let span = u64::try_from(i128::from(*max) - i128::from(*min) + 1).unwrap_or(u64::MAX);
                Arc::new(
                    rows.iter().map(|row| min.wrapping_add(random(row).below(span) as i64)).collect::<Int64Array>(),
                )
            }
            Self::Real { min, max } => {
                Arc::new(rows.iter().map(|row| min + (max - min) * random(row).unit()).collect::<Float64Array>())
            }
            Self::Letters { length } => {
                let text = |row: &u64| {
                    let mut out = Vec::with_capacity(*length);
                    random(row).letters(*length, &mut out);
                    Some(String::from_utf8(out).unwrap_or_default())
                };
                Arc::new(rows.iter().map(text).collect::<StringArray>())
            }
            Self::Boolean => Arc::new(rows.iter().map(|row| Some(random(row).below(2) == 1)).collect::<BooleanArray>()),
            Self::Choice(values) => {
                let pick = |row: &u64| Some(values[random(row).below(values.len() as u64) as usize].as_str());
                Arc::new(rows.iter().map(pick).collect::<StringArray>())
            }
            Self::Time { start, step } => {
                let time = |row: &u64| start.wrapping_add(step.wrapping_mul(*row as i64));
                Arc::new(TimestampMicrosecondArray::from_iter_values(rows.iter().map(time)))
            }
        }
    }
}

impl Generate for Datagen {
    fn name(&self) -> &str {
        NAME
    }

    fn total(&self) -> Option<u64> {
        self.rows
    }

    fn per_second(&self) -> Option<f64> {
        self.rows_per_second
    }

    fn per_batch(&self) -> u64 {
        BATCH_ROWS as u64
    }

    fn batch(&self, first: u64, stride: u64, count: u64) -> Result<RecordBatch> {
        let rows: Vec<u64> = (0..count).map(|index| first + index * stride).collect();
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        let columns = self
            .makers
            .iter()
            .zip(self.schema.fields())
            .map(|((series, maker), field)| {
                let column = maker.column(self.seed, *series, &rows);
                cast_with_options(&column, field.data_type(), &strict).map_err(|error| RuntimeError::Connector {
                    connector: NAME.to_owned(),
                    subject: format!("column \"{}\" ({})", field.name(), sql_type(field)),
                    reason: format!("a made value does not fit: {error}; see its fields.{}.* options", field.name()),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        crate::format::batch(&self.schema, columns, rows.len())
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Schema, TimeUnit};
    use weir_runtime::source::SourceEvent;

    use super::*;
    use crate::format::encode::json_lines;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("id", DataType::Int32, true),
            Field::new("v", DataType::Float64, true),
            Field::new("carrier", DataType::Utf8, true),
            Field::new("m", DataType::Decimal128(10, 2), true),
            Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        ]))
    }

    fn options(pairs: &[(&str, &str)]) -> ConnectorOptions {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[tokio::test]
    async fn rows_are_made_as_described_and_end() {
        let options = options(&[
            ("number_of_rows", "3"),
            ("fields.id.kind", "sequence"),
            ("fields.id.start", "7"),
            ("fields.v.min", "2"),
            ("fields.v.max", "2"),
            ("fields.carrier.values", "UA"),
            ("fields.m.min", "1.5"),
            ("fields.m.max", "1.5"),
            ("fields.at.start", "2026-01-01 00:00:00"),
            ("fields.at.step", "500ms"),
        ]);
        let request = SourceRequest { relation: "g".to_owned(), declared: schema(), projection: vec![0, 2, 1, 3, 4] };
        let source = open(&options, &request).unwrap();
        let mut reader = source.reader(source.discover(&[], 1).await.unwrap()).await.unwrap();
        let SourceEvent::Rows { batch, .. } = reader.next().await.unwrap() else { panic!("rows expected") };
        let mut text = Vec::new();
        json_lines(&batch, &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "{\"id\":7,\"carrier\":\"UA\",\"v\":2.0,\"m\":1.50,\"at\":\"2026-01-01T00:00:00\"}\n\
             {\"id\":8,\"carrier\":\"UA\",\"v\":2.0,\"m\":1.50,\"at\":\"2026-01-01T00:00:00.500\"}\n\
             {\"id\":9,\"carrier\":\"UA\",\"v\":2.0,\"m\":1.50,\"at\":\"2026-01-01T00:00:01\"}\n"
        );
        assert!(matches!(reader.next().await.unwrap(), SourceEvent::SplitFinished { .. }));
        assert!(matches!(reader.next().await.unwrap(), SourceEvent::End));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let error = |pairs| validate(&options(pairs), &schema()).unwrap_err().to_string();
        let kind = error(&[("fields.id.kind", "rnd")]);
        assert_eq!(kind, "option \"fields.id.kind\" = 'rnd': give 'sequence', 'random', 'choice' or 'time'");
        let unfit = error(&[("fields.id.kind", "time")]);
        assert_eq!(unfit, "option \"fields.id.kind\" = 'time': a column of type INT cannot be made this way");
        let value = error(&[("fields.id.values", "x")]);
        assert!(value.contains("column \"id\" (INT): a made value does not fit"), "{value}");
    }
}
