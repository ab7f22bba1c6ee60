//! JSON lines: one object a line, only the wanted columns decoded.
//!
//! ```text
//!   {"auction":1007,"bidder":1001,"price":43254,"channel":"Google", …}
//!    └ key as in the line before? one comparison ┘ └ not wanted: its end is found, nothing is decoded
//! ```
//!
//! A line is walked once. Lines of one file mostly have the same keys in the same order with the same spacing, so the
//! bytes from one value to the next are compared with those of the line before; only when they differ is the key
//! read. Of a duplicate key the last value holds. A missing key is null.
//!
//! Limit: the values of keys that are *not* wanted are passed over by structure (matching quotes and brackets), not
//! validated: `{"wanted": 1, "other": 12x}` is read. Every line must still be one complete object.

use std::borrow::Cow;
use std::collections::HashMap;

use arrow::datatypes::SchemaRef;
use memchr::{memchr, memchr2};

use super::column::{Conversion, Fields, Kind, Place, RowPlace};
use super::given::Epoch;
use super::rows::{BrokenRow, Scanned, Scanner};
use crate::bad_rows::quoted;

/// Why a line is not an object, and where.
struct Broken {
    at: usize,
    expected: &'static str,
}

/// The bytes between two values as they were in the line before, and whose value follows.
#[derive(Debug)]
struct Expected {
    text: Vec<u8>,
    column: Option<u32>,
}

/// Decodes blocks of JSON lines.
#[derive(Debug)]
pub(crate) struct JsonDecoder {
    schema: SchemaRef,
    conversion: Conversion,
    names: HashMap<String, u32>,
    expected: Vec<Expected>,
    fields: Fields,
}

impl JsonDecoder {
    /// For the columns of `schema`.
    pub(crate) fn new(schema: SchemaRef, epoch: Epoch) -> Self {
        let names =
            schema.fields().iter().enumerate().map(|(index, field)| (field.name().clone(), index as u32)).collect();
        Self { schema, conversion: Conversion { epoch }, names, expected: Vec::new(), fields: Fields::default() }
    }
}

impl Scanner for JsonDecoder {
    const JSON: bool = true;

    fn fields(&self) -> &Fields {
        &self.fields
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn conversion(&self) -> Conversion {
        self.conversion
    }

    fn scan(&mut self, block: &[u8], last: bool, max_rows: usize) -> Scanned {
        self.fields.clear();
        let width = self.schema.fields().len();
        let mut scanned = Scanned::default();
        let mut position = 0;
        while position < block.len() && self.fields.rows.len() + scanned.broken.len() < max_rows {
            let (end, next) = match memchr(b'\n', &block[position..]) {
                Some(length) => (position + length, position + length + 1),
                None if last => (block.len(), block.len()),
                None => break,
            };
            let base = self.fields.places.len();
            self.fields.places.resize(base + width, Place::NULL);
            match self.line(block, position, end, base) {
                Ok(true) => self.fields.rows.push(RowPlace { start: position, end, line: scanned.lines }),
                Ok(false) => self.fields.places.truncate(base),
                Err(Broken { at, expected }) => {
                    self.fields.places.truncate(base);
                    let line = block[position..end].trim_ascii_end();
                    let reason = if at >= position + line.len() {
                        format!("not a JSON object: the line ends where {expected} should follow")
                    } else {
                        let found = quoted(&block[at..(at + 16).min(position + line.len())]);
                        format!(
                            "not a JSON object: {expected} expected at character {}, found {found}",
                            at - position + 1
                        )
                    };
                    scanned.broken.push(BrokenRow { start: position, end, line: scanned.lines, reason });
                }
            }
            scanned.lines += 1;
            position = next;
        }
        scanned.consumed = position;
        scanned
    }
}

impl JsonDecoder {
    /// Note the places of one line's fields; `false` for a blank line.
    fn line(&mut self, block: &[u8], start: usize, end: usize, base: usize) -> Result<bool, Broken> {
        let line = &block[..end];
        let mut at = skip_space(line, start);
        if at == end {
            return Ok(false);
        }
        if line[at] != b'{' {
            return Err(Broken { at, expected: "{" });
        }
        at += 1;
        let mut index = 0;
        loop {
            let column = match self.expected.get(index) {
                Some(expected) if line[at..].starts_with(&expected.text) => {
                    at += expected.text.len();
                    expected.column
                }
                _ => {
                    let from = at;
                    let Some(column) = self.key(line, &mut at, index == 0)? else {
                        // An object without fields.
                        break;
                    };
                    let expected = Expected { text: line[from..at].to_vec(), column };
                    match self.expected.get_mut(index) {
                        Some(slot) => *slot = expected,
                        // Lines with ever new keys shall not grow the memory.
                        None if index < 1024 => self.expected.push(expected),
                        None => {}
                    }
                    column
                }
            };
            let (kind, from, to, next) = value(line, at)?;
            if let Some(column) = column {
                let slot = &mut self.fields.places[base + column as usize];
                if !slot.is_null() {
                    check_overwritten(line, *slot)?;
                }
                *slot = if kind == Kind::Null { Place::NULL } else { Place::new(kind, from, to) };
            }
            at = next;
            index += 1;
            // `value` stops at the byte behind the value.
            match line.get(at) {
                Some(b',') => at += 1,
                Some(b'}') => {
                    at += 1;
                    break;
                }
                _ => {
                    at = skip_space(line, at);
                    match line.get(at) {
                        Some(b',') => at += 1,
                        Some(b'}') => {
                            at += 1;
                            break;
                        }
                        _ => return Err(Broken { at, expected: ", or }" }),
                    }
                }
            }
        }
        at = skip_space(line, at);
        if at < end { Err(Broken { at, expected: "the line's end" }) } else { Ok(true) }
    }

    /// Read a key and its colon; `None` when the object ends instead, which only an empty one may.
    fn key(&self, line: &[u8], at: &mut usize, first: bool) -> Result<Option<Option<u32>>, Broken> {
        let start = skip_space(line, *at);
        match line.get(start) {
            Some(b'"') => {}
            Some(b'}') if first => {
                *at = start + 1;
                return Ok(None);
            }
            _ => return Err(Broken { at: start, expected: "a key in quotes" }),
        }
        let (end, escaped) = string_end(line, start + 1)?;
        let key = &line[start + 1..end];
        let name: Cow<'_, str> = if escaped || key.iter().any(|byte| *byte < 0x20) {
            let name = serde_json::from_slice::<String>(&line[start..=end]);
            Cow::Owned(name.map_err(|_| Broken { at: start, expected: "a key with valid escapes" })?)
        } else {
            // A key that is not UTF-8 makes the row bad later; it names no column.
            Cow::Borrowed(std::str::from_utf8(key).unwrap_or_default())
        };
        let colon = skip_space(line, end + 1);
        if line.get(colon) != Some(&b':') {
            return Err(Broken { at: colon, expected: ":" });
        }
        *at = skip_space(line, colon + 1);
        Ok(Some(self.names.get(name.as_ref()).copied()))
    }
}

/// A wanted value that a duplicate of its key replaces must still be JSON.
#[cold]
fn check_overwritten(line: &[u8], place: Place) -> Result<(), Broken> {
    let mut range = place.range();
    if matches!(place.kind(), Kind::String | Kind::Escaped) {
        range = range.start - 1..range.end + 1;
    }
    match serde_json::from_slice::<serde_json::Value>(&line[range.clone()]) {
        Ok(_) => Ok(()),
        Err(_) => Err(Broken { at: range.start, expected: "a valid value" }),
    }
}

#[inline]
fn skip_space(line: &[u8], mut at: usize) -> usize {
    while matches!(line.get(at), Some(b' ' | b'\t' | b'\r')) {
        at += 1;
    }
    at
}

/// Where the string that begins at `from` (behind its quote) has its closing quote, and whether it has escapes.
#[inline]
fn string_end(line: &[u8], from: usize) -> Result<(usize, bool), Broken> {
    let mut at = from;
    let mut escaped = false;
    loop {
        match memchr2(b'"', b'\\', line.get(at..).unwrap_or_default()) {
            Some(length) if line[at + length] == b'"' => return Ok((at + length, escaped)),
            Some(length) => {
                escaped = true;
                at += length + 2;
            }
            None => return Err(Broken { at: line.len(), expected: "a closing quote" }),
        }
    }
}

/// The value at `at`: what it is, where it lies (a string without its quotes), and the position behind it.
#[inline]
fn value(line: &[u8], at: usize) -> Result<(Kind, usize, usize, usize), Broken> {
    match line.get(at) {
        Some(b'"') => {
            let (end, escaped) = string_end(line, at + 1)?;
            Ok((if escaped { Kind::Escaped } else { Kind::String }, at + 1, end, end + 1))
        }
        Some(b'-' | b'0'..=b'9') => {
            let length = line[at..].iter().position(|byte| matches!(byte, b',' | b'}' | b' ' | b'\t' | b'\r'));
            let end = length.map_or(line.len(), |length| at + length);
            Ok((Kind::Number, at, end, end))
        }
        Some(b'n') if line[at..].starts_with(b"null") => Ok((Kind::Null, at, at + 4, at + 4)),
        Some(b't') if line[at..].starts_with(b"true") => Ok((Kind::True, at, at + 4, at + 4)),
        Some(b'f') if line[at..].starts_with(b"false") => Ok((Kind::False, at, at + 5, at + 5)),
        Some(b'{' | b'[') => {
            let end = nested_end(line, at)?;
            Ok((Kind::Nested, at, end, end))
        }
        // More space than in the line before.
        Some(b' ' | b'\t' | b'\r') => value(line, skip_space(line, at)),
        _ => Err(Broken { at, expected: "a value" }),
    }
}

/// One past the bracket that closes the one at `at`.
fn nested_end(line: &[u8], at: usize) -> Result<usize, Broken> {
    let mut open = Vec::new();
    let mut at = at;
    while let Some(byte) = line.get(at) {
        at += 1;
        match byte {
            b'"' => at = string_end(line, at)?.0 + 1,
            b'{' => open.push(b'}'),
            b'[' => open.push(b']'),
            b'}' | b']' => {
                if open.pop() != Some(*byte) {
                    return Err(Broken { at: at - 1, expected: "a matching bracket" });
                }
                if open.is_empty() {
                    return Ok(at);
                }
            }
            _ => {}
        }
    }
    Err(Broken { at: line.len(), expected: "a closing bracket" })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::cast::AsArray;
    use arrow::array::{Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema, TimeUnit};
    use proptest::prelude::*;

    use super::*;
    use crate::format::encode::json_lines;
    use crate::format::rows::{Decoded, decode};

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int64, true),
            Field::new("b", DataType::Utf8, true),
            Field::new("c", DataType::Float64, true),
            Field::new("d", DataType::Boolean, true),
        ]))
    }

    fn read(schema: &SchemaRef, text: &[u8]) -> Decoded {
        decode(&mut JsonDecoder::new(Arc::clone(schema), Epoch::Text), text, true, 10_000).unwrap()
    }

    fn shown(batch: &RecordBatch) -> String {
        let mut out = Vec::new();
        json_lines(batch, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn reads_any_order_spacing_and_escapes() {
        let text = r#"{"a":1,"b":"x","c":1.5,"d":true}
{"a":2,"b":"y","c":-2e3,"d":false}
  { "b" : "q\"\u00fc\n" , "z" : [1, {"a":"]"}, 2] ,"a":   3 }
{}

{"a":1,"a":4,"b":null,"\u0063":5,"d":null}
{"b":"ü","a":6.0}
"#;
        let decoded = read(&schema(), text.as_bytes());
        assert_eq!(decoded.bad, []);
        assert_eq!(
            shown(&decoded.batch),
            r#"{"a":1,"b":"x","c":1.5,"d":true}
{"a":2,"b":"y","c":-2000.0,"d":false}
{"a":3,"b":"q\"ü\n","c":null,"d":null}
{"a":null,"b":null,"c":null,"d":null}
{"a":4,"b":null,"c":5.0,"d":null}
{"a":6,"b":"ü","c":null,"d":null}
"#
        );
        assert_eq!(decoded.lines, 7);
        assert_eq!(decoded.consumed, text.len());
    }

    #[test]
    fn each_kind_of_bad_row_is_told_and_harms_no_other() {
        let mut text = br#"{"a":0}
[1]
{"a":1
{"a":1,}
{"a":"1"}
{"a":1.5}
{"a":1e30}
{"b":1}
{"c":"x"}
{"d":1}
{"a":01}
{"b":"\q"}
{"a":1} x
{"a":{"b":1}}
{"a":1}
{"b":"#
            .to_vec();
        text.extend_from_slice(b"\"\xff\"}\n{\"b\":\"a\tb\"}\n{\"a\":2}\n");
        let decoded = read(&schema(), &text);
        let rows: Vec<Option<i64>> = decoded.batch.column(0).as_primitive::<Int64Type>().iter().collect();
        assert_eq!(rows, [Some(0), Some(1), Some(2)]);
        let told: Vec<String> = decoded.bad.iter().map(|bad| format!("{} {}", bad.line + 1, bad.reason)).collect();
        assert_eq!(
            told,
            [
                r#"2 not a JSON object: { expected at character 1, found "[1]""#,
                "3 not a JSON object: the line ends where , or } should follow",
                r#"4 not a JSON object: a key in quotes expected at character 8, found "}""#,
                r#"5 column "a" (BIGINT): the string "1" is not a whole number"#,
                r#"6 column "a" (BIGINT): the value "1.5" is not a whole number"#,
                r#"7 column "a" (BIGINT): the value "1e30" is out of range"#,
                r#"8 column "b" (TEXT): the value "1" is not a string"#,
                r#"9 column "c" (DOUBLE PRECISION): the string "x" is not a number"#,
                r#"10 column "d" (BOOLEAN): the value "1" is not a boolean (true or false)"#,
                r#"11 column "a" (BIGINT): the value "01" is not a whole number"#,
                r#"12 column "b" (TEXT): the string "\q" has an escape or control character that JSON does not allow"#,
                r#"13 not a JSON object: the line's end expected at character 9, found "x""#,
                r#"14 column "a" (BIGINT): the object "{"b":1}" is not a whole number"#,
                "16 not UTF-8: byte 0xFF at position 7 of the row",
                "17 column \"b\" (TEXT): the string \"a\tb\" has an escape or control character that JSON does not allow",
            ]
        );
        assert_eq!(decoded.bad[13].raw, r#"{"b":"\xFF"}"#);
    }

    #[test]
    fn nested_json_and_typed_columns() {
        let json = std::collections::HashMap::from([("weir.type".to_owned(), "json".to_owned())]);
        let schema = Arc::new(Schema::new(vec![
            Field::new("tags", DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))), true),
            Field::new(
                "at",
                DataType::Struct(
                    vec![Field::new("x", DataType::Int32, true), Field::new("y", DataType::Float64, true)].into(),
                ),
                true,
            ),
            Field::new("raw", DataType::Utf8, true).with_metadata(json),
            Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, None), true),
            Field::new("m", DataType::Decimal128(10, 2), true),
            Field::new("day", DataType::Date32, true),
            Field::new("bytes", DataType::Binary, true),
            Field::new("n", DataType::Int32, false),
        ]));
        let text = br#"{"tags":["a","b"],"at":{"x":1,"y":2.5},"raw":{"k":[1, 2]},"t":"2026-01-02 03:04:05.678","m":12.5,"day":"2026-01-02","bytes":"01ff","n":1}
{"tags":null,"at":null,"raw":"text","t":"2026-01-02T03:04:05+01:00","m":"-0.25","n":2}
{"tags":[1],"n":3}
{"at":{"x":"no"},"n":4}
{"n":null}
{"raw":[1,,2],"n":6}
{"tags":[],"n":7}
"#;
        let decoded = read(&schema, text);
        let told: Vec<u64> = decoded.bad.iter().map(|bad| bad.line + 1).collect();
        assert_eq!(told, [3, 4, 5, 6], "{:?}", decoded.bad);
        assert_eq!(
            shown(&decoded.batch),
            concat!(
                r#"{"tags":["a","b"],"at":{"x":1,"y":2.5},"raw":{"k":[1, 2]},"t":"2026-01-02T03:04:05.678","m":12.50,"day":"2026-01-02","bytes":"01ff","n":1}"#,
                "\n",
                r#"{"tags":null,"at":null,"raw":"text","t":"2026-01-02T02:04:05","m":-0.25,"day":null,"bytes":null,"n":2}"#,
                "\n",
                r#"{"tags":[],"at":null,"raw":null,"t":null,"m":null,"day":null,"bytes":null,"n":7}"#,
                "\n"
            )
        );
    }

    #[test]
    fn no_columns_still_count_rows() {
        let decoded = read(&Arc::new(Schema::empty()), b"{\"a\":1}\n{\"b\":2}\nx\n");
        assert_eq!((decoded.batch.num_rows(), decoded.bad.len()), (2, 1));
    }

    type Row = (Option<i64>, Option<String>, Option<f64>, Option<bool>);

    /// What a line means, by serde_json: the four columns, or why it is bad. (Its floats are not always the nearest
    /// ones, so that numbers are parsed from their text.)
    fn meaning(line: &[u8]) -> Option<Row> {
        let value: serde_json::Value = serde_json::from_slice(line).ok()?;
        let texts: std::collections::HashMap<String, Box<serde_json::value::RawValue>> =
            serde_json::from_slice(line).ok()?;
        let get = |name: &str| value.get(name).filter(|value| !value.is_null());
        let float = |name: &str| texts.get(name).and_then(|text| text.get().parse::<f64>().ok());
        let a = match get("a") {
            None => None,
            Some(value) if value.is_i64() => value.as_i64(),
            Some(_) => {
                let number = float("a")?;
                Some((number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0).then_some(number as i64)?)
            }
        };
        let b = match get("b") {
            None => None,
            Some(value) => Some(value.as_str()?.to_owned()),
        };
        let c = match get("c") {
            None => None,
            Some(_) => Some(float("c")?),
        };
        let d = match get("d") {
            None => None,
            Some(value) => Some(value.as_bool()?),
        };
        Some((a, b, c, d))
    }

    fn value_text() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<i64>().prop_map(|number| number.to_string()),
            any::<f64>()
                .prop_filter("finite", |number| number.is_finite())
                .prop_map(|number| serde_json::to_string(&number).unwrap()),
            "-?[0-9]{1,3}(\\.[0-9]{1,3})?".prop_map(|text| text),
            "[ -~é]{0,6}".prop_map(|text| serde_json::to_string(&text).unwrap()),
            "\\PC{0,4}".prop_map(|text| serde_json::to_string(&text).unwrap()),
            Just("\"\\u00e9\\ud83d\\ude00\\\\\"".to_owned()),
            prop_oneof![Just("true"), Just("false"), Just("null")].prop_map(str::to_owned),
        ]
    }

    fn line() -> impl Strategy<Value = String> {
        let space = prop_oneof![5 => Just(""), 1 => Just(" "), 1 => Just("\t ")];
        let pair = ("[abcd]", value_text(), space.clone(), space);
        prop::collection::vec(pair, 0..6).prop_map(|pairs| {
            let pairs: Vec<String> =
                pairs.into_iter().map(|(key, value, s, t)| format!("{s}\"{key}\"{t}:{s}{value}{t}")).collect();
            format!("{{{}}}", pairs.join(","))
        })
    }

    fn check(lines: &[Vec<u8>]) -> Result<(), TestCaseError> {
        let text: Vec<u8> = lines.iter().flat_map(|line| line.iter().copied().chain([b'\n'])).collect();
        let decoded = read(&schema(), &text);
        let batch = &decoded.batch;
        let (a, b) = (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_string::<i32>());
        let (c, d) = (batch.column(2).as_primitive::<Float64Type>(), batch.column(3).as_boolean());
        let got: Vec<_> = (0..batch.num_rows())
            .map(|row| {
                (
                    a.is_valid(row).then(|| a.value(row)),
                    b.is_valid(row).then(|| b.value(row).to_owned()),
                    c.is_valid(row).then(|| c.value(row)),
                    d.is_valid(row).then(|| d.value(row)),
                )
            })
            .collect();
        let lines = lines.iter().filter(|line| !line.trim_ascii().is_empty());
        let wanted: Vec<_> = lines.filter_map(|line| meaning(line)).collect();
        prop_assert_eq!(got, wanted, "{}\n{:?}", String::from_utf8_lossy(&text), decoded.bad);
        Ok(())
    }

    proptest! {
        #[test]
        fn reads_what_serde_json_reads(lines in prop::collection::vec(line(), 1..8)) {
            check(&lines.into_iter().map(String::into_bytes).collect::<Vec<_>>())?;
        }

        /// Damage anywhere: the row is bad exactly when serde_json says so, and no other row changes. (Every key is a
        /// wanted column, because only wanted values are validated.)
        #[test]
        fn damage_is_noticed(
            lines in prop::collection::vec(line(), 1..4),
            at in any::<prop::sample::Index>(),
            byte in prop_oneof![Just(b'"'), Just(b'\\'), Just(b','), Just(b'}'), Just(b'{'), Just(b'1'), Just(b':'), Just(0xFFu8), Just(b' '), Just(1u8)],
            insert in any::<bool>(),
        ) {
            let mut lines: Vec<Vec<u8>> = lines.into_iter().map(String::into_bytes).collect();
            let damaged = &mut lines[0];
            let at = at.index(damaged.len());
            if insert { damaged.insert(at, byte) } else { damaged[at] = byte }
            let wanted_only = serde_json::from_slice::<serde_json::Value>(damaged)
                .ok()
                .and_then(|value| value.as_object().map(|object| object.keys().all(|key| key.len() == 1)))
                .unwrap_or(true);
            // A damaged key is not wanted any more, and its value is not validated.
            let keys_intact = damaged.split(|byte| *byte == b',').all(|pair| {
                let pair = pair.iter().filter(|byte| !b" \t{".contains(byte)).copied().collect::<Vec<u8>>();
                pair.len() < 4 || (pair[0] == b'"' && b"abcd".contains(&pair[1]) && pair[2] == b'"')
            });
            prop_assume!(wanted_only && keys_intact);
            check(&lines)?;
        }
    }
}
