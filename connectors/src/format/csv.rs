//! CSV: only the wanted fields are noted, the others are counted.
//!
//! A line without quotes, the usual one, is cut at its delimiters and nothing else is looked at. Where quotes occur
//! a careful scanner takes over: doubled or escaped quotes, and newlines inside a quoted field when
//! `csv.multiline` allows them.
//!
//! A record that turns out malformed after it ran over several lines (a quote that is never closed, text behind a
//! closing quote, a wrong number of fields) costs its *first line* only: reading goes on at the next line, so that
//! one stray quote does not swallow the rows after it.

use std::collections::HashMap;

use arrow::datatypes::SchemaRef;
use memchr::{memchr, memchr_iter, memchr2};

use super::column::{Conversion, Fields, Kind, Place, RowPlace};
use super::given::Epoch;
use super::rows::{BrokenRow, Scanned, Scanner};

/// How a CSV file is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvOptions {
    /// Whether the first line names the columns.
    pub header: bool,
    /// The unquoted text that stands for null.
    pub null: String,
    /// Between fields.
    pub delimiter: u8,
    /// Around fields; `None`: quotes are ordinary characters.
    pub quote: Option<u8>,
    /// In front of a quote inside a quoted field, besides doubling it.
    pub escape: Option<u8>,
    /// Lines that begin with it are passed over.
    pub comment: Option<u8>,
    /// Whether a quoted field may hold newlines.
    pub multiline: bool,
    /// How numbers stand for timestamps.
    pub epoch: Epoch,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self {
            header: false,
            null: String::new(),
            delimiter: b',',
            quote: Some(b'"'),
            escape: None,
            comment: None,
            multiline: true,
            epoch: Epoch::Text,
        }
    }
}

/// Decodes blocks of CSV.
#[derive(Debug)]
pub(crate) struct CsvDecoder {
    schema: SchemaRef,
    options: CsvOptions,
    /// For each field of the file, the column that it fills.
    targets: Vec<Option<u32>>,
    fields: Fields,
}

/// What a scan of one record found.
enum Record {
    /// A row; `end` is one past its last byte without line end.
    Row { end: usize, next: usize, lines: u64 },
    /// Nothing: a blank line or a comment.
    Skip { next: usize },
    /// Broken: only its first line is given up.
    Broken { reason: String },
    /// Its end is not in the block.
    Incomplete,
}

impl CsvDecoder {
    /// Positional: the file's fields are `declared`, of which `projection` are wanted.
    pub(crate) fn positional(
        declared: &SchemaRef,
        projection: &[usize],
        schema: SchemaRef,
        options: CsvOptions,
    ) -> Self {
        let mut targets = vec![None; declared.fields().len()];
        for (column, index) in projection.iter().enumerate() {
            targets[*index] = Some(column as u32);
        }
        Self { schema, options, targets, fields: Fields::default() }
    }

    /// By name: `header` holds the file's first line. `Err`: a sentence on what the header lacks.
    pub(crate) fn named(header: &[u8], schema: SchemaRef, options: CsvOptions) -> Result<Self, String> {
        let names = header_names(header, &options);
        let mut index_of: HashMap<&str, usize> = HashMap::new();
        for (index, name) in names.iter().enumerate() {
            if index_of.insert(name, index).is_some() && schema.index_of(name).is_ok() {
                return Err(format!("its header names the column \"{name}\" twice"));
            }
        }
        let mut targets = vec![None; names.len()];
        for (column, field) in schema.fields().iter().enumerate() {
            match index_of.get(field.name().as_str()) {
                Some(index) => targets[*index] = Some(column as u32),
                None => {
                    let near = crate::options::nearest(field.name(), names.iter().map(String::as_str))
                        .map(|name| format!(" Did you mean \"{name}\"?"))
                        .unwrap_or_default();
                    return Err(format!(
                        "its header has no column \"{}\"; it has: {}.{near}",
                        field.name(),
                        names.join(", ")
                    ));
                }
            }
        }
        Ok(Self { schema, options, targets, fields: Fields::default() })
    }

    fn record(&mut self, block: &[u8], start: usize, last: bool, base: usize) -> Record {
        let (end, next) = match memchr(b'\n', &block[start..]) {
            Some(length) => (start + length, start + length + 1),
            None if last => (block.len(), block.len()),
            None => return Record::Incomplete,
        };
        let end = if block[start..end].last() == Some(&b'\r') { end - 1 } else { end };
        let line = &block[start..end];
        if line.is_empty() || (self.options.comment.is_some() && line.first().copied() == self.options.comment) {
            return Record::Skip { next };
        }
        if let Some(quote) = self.options.quote
            && memchr(quote, line).is_some()
        {
            return self.quoted_record(block, start, last, base, quote);
        }
        let mut from = 0;
        let mut count = 0;
        for at in memchr_iter(self.options.delimiter, line) {
            self.plain_field(line, start, from, at, count, base);
            count += 1;
            from = at + 1;
        }
        self.plain_field(line, start, from, line.len(), count, base);
        match self.count_fault(count + 1) {
            Some(reason) => Record::Broken { reason },
            None => Record::Row { end, next, lines: 1 },
        }
    }

    #[inline]
    fn plain_field(&mut self, line: &[u8], start: usize, from: usize, to: usize, index: usize, base: usize) {
        if let Some(Some(column)) = self.targets.get(index)
            && line[from..to] != *self.options.null.as_bytes()
        {
            self.fields.places[base + *column as usize] = Place::new(Kind::Plain, start + from, start + to);
        }
    }

    #[inline]
    fn count_fault(&self, count: usize) -> Option<String> {
        let wanted = self.targets.len();
        (count != wanted).then(|| {
            let fault = if count < wanted { "too few" } else { "too many" };
            let source = if self.options.header { "the header" } else { "the stream's declaration" };
            format!("{fault} fields: {count} where {source} has {wanted}")
        })
    }

    /// A record that has a quote somewhere in its first line.
    fn quoted_record(&mut self, block: &[u8], start: usize, last: bool, base: usize, quote: u8) -> Record {
        let delimiter = self.options.delimiter;
        let mut at = start;
        let mut count = 0;
        let mut newlines = 0;
        loop {
            if block.get(at) == Some(&quote) {
                let (from, mut scratch_from) = (at + 1, None);
                at += 1;
                let mut copied = at;
                // Find the closing quote, undoing escapes into the scratch text as they come.
                loop {
                    let hay = &block[at..];
                    let found = match self.options.escape.filter(|escape| *escape != quote) {
                        Some(escape) => memchr2(quote, escape, hay),
                        None => memchr(quote, hay),
                    };
                    let Some(length) = found else {
                        let rest_has_newline = memchr(b'\n', hay).is_some();
                        return if !self.options.multiline && rest_has_newline {
                            Record::Broken { reason: "a quoted field is not closed in its line".to_owned() }
                        } else if last {
                            Record::Broken { reason: "a quoted field is not closed".to_owned() }
                        } else {
                            Record::Incomplete
                        };
                    };
                    newlines += memchr_iter(b'\n', &hay[..length]).count() as u64;
                    if newlines > 0 && !self.options.multiline {
                        return Record::Broken { reason: "a quoted field is not closed in its line".to_owned() };
                    }
                    at += length;
                    let doubled = block[at] == quote && block.get(at + 1) == Some(&quote);
                    if block[at] == quote && !doubled {
                        if at + 1 == block.len() && !last {
                            // The next block may double it.
                            return Record::Incomplete;
                        }
                        break;
                    }
                    if at + 1 >= block.len() {
                        return if last {
                            Record::Broken { reason: "a quoted field is not closed".to_owned() }
                        } else {
                            Record::Incomplete
                        };
                    }
                    scratch_from.get_or_insert(self.fields.scratch.len());
                    self.fields.scratch.extend_from_slice(&block[copied..at]);
                    self.fields.scratch.push(block[at + 1]);
                    at += 2;
                    copied = at;
                }
                if let Some(Some(column)) = self.targets.get(count) {
                    self.fields.places[base + *column as usize] = match scratch_from {
                        None => Place::new(Kind::Plain, from, at),
                        Some(scratch_from) => {
                            self.fields.scratch.extend_from_slice(&block[copied..at]);
                            Place::new(Kind::Scratch, scratch_from, self.fields.scratch.len())
                        }
                    };
                }
                at += 1;
            } else {
                let from = at;
                let rest = &block[at..];
                match memchr2(delimiter, b'\n', rest) {
                    Some(length) => at += length,
                    None if last => at = block.len(),
                    None => return Record::Incomplete,
                }
                let to = if block.get(at) != Some(&delimiter) && block[from..at].last() == Some(&b'\r') {
                    at - 1
                } else {
                    at
                };
                if memchr(quote, &block[from..to]).is_some() {
                    return Record::Broken { reason: format!("a quote inside the unquoted field {}", count + 1) };
                }
                self.plain_field(&block[from..to], from, 0, to - from, count, base);
            }
            count += 1;
            // Behind the field.
            match block.get(at) {
                Some(byte) if *byte == delimiter => at += 1,
                Some(b'\n') => return self.quoted_end(at, at + 1, count, newlines),
                Some(b'\r') if block.get(at + 1) == Some(&b'\n') => {
                    return self.quoted_end(at, at + 2, count, newlines);
                }
                Some(b'\r') if at + 1 == block.len() && !last => return Record::Incomplete,
                Some(b'\r') if at + 1 == block.len() => return self.quoted_end(at, at + 1, count, newlines),
                None if last => return self.quoted_end(at, at, count, newlines),
                None => return Record::Incomplete,
                Some(_) => return Record::Broken { reason: format!("text behind the closing quote of field {count}") },
            }
        }
    }

    fn quoted_end(&self, end: usize, next: usize, count: usize, newlines: u64) -> Record {
        match self.count_fault(count) {
            Some(reason) => Record::Broken { reason },
            None => Record::Row { end, next, lines: newlines + 1 },
        }
    }
}

impl Scanner for CsvDecoder {
    const JSON: bool = false;

    fn fields(&self) -> &Fields {
        &self.fields
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn conversion(&self) -> Conversion {
        Conversion { epoch: self.options.epoch }
    }

    fn scan(&mut self, block: &[u8], last: bool, max_rows: usize) -> Scanned {
        self.fields.clear();
        let width = self.schema.fields().len();
        let mut scanned = Scanned::default();
        let mut position = 0;
        while position < block.len() && self.fields.rows.len() + scanned.broken.len() < max_rows {
            let base = self.fields.places.len();
            self.fields.places.resize(base + width, Place::NULL);
            match self.record(block, position, last, base) {
                Record::Row { end, next, lines } => {
                    self.fields.rows.push(RowPlace { start: position, end, line: scanned.lines });
                    scanned.lines += lines;
                    position = next;
                }
                Record::Skip { next } => {
                    self.fields.places.truncate(base);
                    scanned.lines += 1;
                    position = next;
                }
                Record::Broken { reason } => {
                    self.fields.places.truncate(base);
                    let end = memchr(b'\n', &block[position..]).map_or(block.len(), |length| position + length);
                    scanned.broken.push(BrokenRow { start: position, end, line: scanned.lines, reason });
                    scanned.lines += 1;
                    position = (end + 1).min(block.len());
                }
                Record::Incomplete => {
                    self.fields.places.truncate(base);
                    break;
                }
            }
        }
        scanned.consumed = position;
        scanned
    }
}

/// The names in a header line, quotes undone.
pub(crate) fn header_names(line: &[u8], options: &CsvOptions) -> Vec<String> {
    let line = String::from_utf8_lossy(line);
    let line = line.trim_end_matches(['\n', '\r']);
    let mut names = vec![String::new()];
    let mut inside = false;
    let mut characters = line.chars().peekable();
    let quote = options.quote.map(char::from);
    while let Some(character) = characters.next() {
        let last = names.len() - 1;
        if Some(character) == quote {
            if inside && characters.peek() == Some(&character) {
                names[last].push(character);
                characters.next();
            } else {
                inside = !inside;
            }
        } else if character == char::from(options.delimiter) && !inside {
            names.push(String::new());
        } else {
            names[last].push(character);
        }
    }
    names.iter_mut().for_each(|name| *name = name.trim().to_owned());
    names
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
    use proptest::prelude::*;

    use super::*;
    use crate::format::rows::{Decoded, decode};

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int32, true),
            Field::new("b", DataType::Utf8, true),
            Field::new("c", DataType::Float64, true),
            Field::new("d", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        ]))
    }

    fn read(text: &[u8], options: CsvOptions) -> Decoded {
        let mut decoder = CsvDecoder::positional(&schema(), &[0, 1, 2, 3], schema(), options);
        decode(&mut decoder, text, true, 1000).unwrap()
    }

    fn shown(decoded: &Decoded) -> String {
        let mut out = Vec::new();
        let mut writer = arrow::csv::WriterBuilder::new().with_header(false).with_null("∅".to_owned()).build(&mut out);
        writer.write(&decoded.batch).unwrap();
        drop(writer);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn values_nulls_and_quotes() {
        let text = b"1,x,2.5,2013-01-01T10:00:00Z\r\n,\"\",,\n-3,\"say \"\"hi\"\", you\",1e3,2013-01-01 10:00:00\n\n4,\"two\nlines\",0,";
        let decoded = read(text, CsvOptions::default());
        assert_eq!(decoded.bad, []);
        assert_eq!(
            shown(&decoded),
            "1,x,2.5,2013-01-01T10:00:00Z\n∅,,∅,∅\n-3,\"say \"\"hi\"\", you\",1000.0,2013-01-01T10:00:00Z\n4,\"two\nlines\",0.0,∅\n"
        );
        assert_eq!(decoded.consumed, text.len());
        assert_eq!(decoded.lines, 6);
    }

    #[test]
    fn each_kind_of_bad_row_is_told_and_harms_no_other() {
        let text = b"1,good,1,\nx,text for a number,1,\n2,too few\n3,too,1,,many\n4,good,2,\n5,\"open,1,\n6,good,3,\n7,\"a\"b,1,\n8,\xff,1,\n99999999999,big,1,\n9,good,4,2013-02-30\n10,good,5,\n";
        let decoded = read(text, CsvOptions::default());
        assert_eq!(shown(&decoded), "1,good,1.0,∅\n4,good,2.0,∅\n6,good,3.0,∅\n10,good,5.0,∅\n");
        let told: Vec<(u64, &str)> = decoded.bad.iter().map(|bad| (bad.line + 1, bad.reason.as_str())).collect();
        assert_eq!(
            told,
            [
                (2, "column \"a\" (INT): \"x\" is not a whole number"),
                (3, "too few fields: 2 where the stream's declaration has 4"),
                (4, "too many fields: 5 where the stream's declaration has 4"),
                (6, "text behind the closing quote of field 2"),
                (8, "text behind the closing quote of field 2"),
                (9, "not UTF-8: byte 0xFF at position 3 of the row"),
                (10, "column \"a\" (INT): \"99999999999\" is out of range"),
                (
                    11,
                    "column \"d\" (TIMESTAMPTZ): \"2013-02-30\" is not a timestamp (2026-01-31 12:34:56.789, or RFC 3339)"
                ),
            ]
        );
        assert_eq!(decoded.bad[5].raw, "8,\\xFF,1,");
    }

    #[test]
    fn null_marker_escape_comment_and_delimiter() {
        let options = CsvOptions {
            null: "NA".to_owned(),
            delimiter: b';',
            quote: Some(b'\''),
            escape: Some(b'\\'),
            comment: Some(b'#'),
            ..CsvOptions::default()
        };
        let decoded = read(b"# comment; with 'quote\n1;'NA';NA;NA\nNA;'it\\'s';1;NA\n3;;1;NA\n", options);
        assert_eq!(decoded.bad, []);
        assert_eq!(shown(&decoded), "1,NA,∅,∅\n∅,it's,1.0,∅\n3,,1.0,∅\n");
    }

    #[test]
    fn columns_are_found_by_name() {
        let schema = Arc::new(schema().project(&[1, 0]).unwrap());
        let header = b"x,\"a\", b ,y\r\n";
        let mut decoder = CsvDecoder::named(header, Arc::clone(&schema), CsvOptions::default()).unwrap();
        let decoded = decode(&mut decoder, b"0,1,two,3\n", true, 10).unwrap();
        assert_eq!(shown(&decoded), "two,1\n");
        let error = CsvDecoder::named(b"x,B,y", schema, CsvOptions::default()).unwrap_err();
        assert_eq!(error, "its header has no column \"b\"; it has: x, B, y. Did you mean \"B\"?");
    }

    proptest! {
        /// Whatever a proper CSV writer writes is read back, from any cut of the text into blocks.
        #[test]
        fn reads_what_the_csv_crate_writes(rows in prop::collection::vec((any::<Option<i32>>(), "[a-z,\"\n\r é]{0,8}"), 0..20), cut in 1usize..40) {
            let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
            for (a, b) in &rows {
                writer.write_record([a.map(|a| a.to_string()).unwrap_or_default().as_str(), b, "", ""]).unwrap();
            }
            let text = writer.into_inner().unwrap();
            let mut decoder = CsvDecoder::positional(&schema(), &[0, 1], Arc::new(schema().project(&[0, 1]).unwrap()), CsvOptions::default());
            let mut got = Vec::new();
            let (mut from, mut to) = (0, 0);
            while from < text.len() {
                to = (to + cut).min(text.len());
                let decoded = decode(&mut decoder, &text[from..to], to == text.len(), 3).unwrap();
                prop_assert_eq!(&decoded.bad, &vec![]);
                from += decoded.consumed;
                use arrow::array::{cast::AsArray, Array};
                let (a, b) = (decoded.batch.column(0).as_primitive::<arrow::datatypes::Int32Type>().clone(), decoded.batch.column(1).as_string::<i32>().clone());
                for row in 0..a.len() {
                    got.push((a.is_valid(row).then(|| a.value(row)), if b.is_valid(row) { b.value(row).to_owned() } else { String::new() }));
                }
            }
            prop_assert_eq!(got, rows);
        }
    }
}
