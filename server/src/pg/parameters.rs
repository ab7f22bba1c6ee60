//! Parameters of prepared statements: from the wire, text or binary, to scalars.

use std::sync::Arc;

use arrow::datatypes::{DataType, IntervalMonthDayNano};
use datafusion::scalar::ScalarValue;
use pgwire::api::Type;
use weir_planner::{ErrorKind, SqlError, arrays};

use super::types::{arrow_type, element_type};

/// Days from 1970 to 2000, where PostgreSQL's clock starts.
const EPOCH_DAYS: i32 = 10_957;
/// The same in microseconds.
const EPOCH_MICROS: i64 = 946_684_800_000_000;
/// Type OID that a client sends when it leaves the choice to the server.
const UNSPECIFIED: u32 = 0;

/// One parameter. `declared` is the OID from Parse, `wanted` what the statement needs (`Null` when nothing tells).
pub(super) fn parameter(
    index: usize,
    declared: Option<u32>,
    wanted: Option<&DataType>,
    binary: bool,
    bytes: Option<&[u8]>,
) -> Result<ScalarValue, SqlError> {
    let wanted = wanted.filter(|ty| !ty.is_null());
    let at = |error: SqlError| SqlError { message: format!("parameter ${}: {}", index + 1, error.message), ..error };
    let declared = match declared {
        None | Some(UNSPECIFIED) => None,
        Some(oid) => Some(Type::from_oid(oid).ok_or_else(|| at(unknown_type(oid)))?),
    }
    .filter(|ty| *ty != Type::UNKNOWN);
    let Some(bytes) = bytes else {
        let ty = wanted.cloned().or_else(|| declared.as_ref().and_then(arrow_type));
        return ScalarValue::try_from(&ty.unwrap_or(DataType::Utf8)).map_err(|e| at(invalid(&e.to_string())));
    };
    let value = match (&declared, wanted) {
        (Some(ty), _) => decode(ty, binary, bytes, wanted),
        // The client followed what ParameterDescription said.
        (None, Some(wanted)) => {
            let field = arrow::datatypes::Field::new("parameter", wanted.clone(), true);
            decode(&super::types::pg_type(&field), binary, bytes, Some(wanted))
        }
        (None, None) => decode(&Type::TEXT, binary, bytes, None),
    };
    let value = value.map_err(at)?;
    match (wanted, &value) {
        (Some(DataType::List(item)), ScalarValue::Utf8(Some(text))) => {
            array_from_text(&super::types::pg_type(item), text, Some(item.data_type())).map_err(at)
        }
        (Some(wanted), _) if value.data_type() != *wanted => {
            value.cast_to(wanted).map_err(|_| at(invalid(&format!("{value} does not fit type {wanted}"))))
        }
        _ => Ok(value),
    }
}

fn decode(ty: &Type, binary: bool, bytes: &[u8], wanted: Option<&DataType>) -> Result<ScalarValue, SqlError> {
    if binary { from_binary(ty, bytes, wanted) } else { from_text(ty, utf8(bytes)?, wanted) }
}

fn from_text(ty: &Type, text: &str, wanted: Option<&DataType>) -> Result<ScalarValue, SqlError> {
    if let Some(element) = element_type(ty) {
        return array_from_text(&element, text, element_of(wanted));
    }
    match *ty {
        Type::BYTEA => return Ok(ScalarValue::Binary(Some(bytea_from_text(text)?))),
        Type::NUMERIC => return numeric_from_text(text, wanted),
        Type::BOOL => {
            let value = match text.trim().to_lowercase().as_str() {
                "t" | "true" | "y" | "yes" | "on" | "1" => true,
                "f" | "false" | "n" | "no" | "off" | "0" => false,
                _ => return Err(not_a("boolean", text)),
            };
            return Ok(ScalarValue::Boolean(Some(value)));
        }
        _ => {}
    }
    let to = arrow_type(ty).ok_or_else(|| unknown_type(ty.oid()))?;
    let value = ScalarValue::Utf8(Some(text.to_owned()));
    if to == DataType::Utf8 {
        return Ok(value);
    }
    let value = ScalarValue::Utf8(Some(text.trim().to_owned()));
    match value.cast_to(&to) {
        Ok(cast) if !cast.is_null() => Ok(cast),
        _ => Err(not_a(ty.name(), text)),
    }
}

/// `\xDEADBEEF`, or the older escapes.
fn bytea_from_text(text: &str) -> Result<Vec<u8>, SqlError> {
    let broken = || not_a("bytea", text);
    if let Some(hex) = text.strip_prefix("\\x") {
        let digits: Vec<u8> = hex.bytes().filter(|c| !c.is_ascii_whitespace()).collect();
        return digits
            .chunks(2)
            .map(|pair| {
                let pair = std::str::from_utf8(pair).map_err(|_| broken())?;
                if pair.len() == 2 { u8::from_str_radix(pair, 16).map_err(|_| broken()) } else { Err(broken()) }
            })
            .collect();
    }
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'\\' {
            out.push(*first);
        } else if tail.first() == Some(&b'\\') {
            out.push(b'\\');
            rest = &tail[1..];
        } else {
            let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(broken)?;
            out.push(u8::from_str_radix(octal, 8).map_err(|_| broken())?);
            rest = &tail[3..];
        }
    }
    Ok(out)
}

/// A decimal of the wanted type, or of as many digits as the text has.
fn numeric_from_text(text: &str, wanted: Option<&DataType>) -> Result<ScalarValue, SqlError> {
    let text = text.trim();
    match wanted {
        Some(to @ DataType::Decimal128(..)) => {
            return match ScalarValue::Utf8(Some(text.to_owned())).cast_to(to) {
                Ok(value) if !value.is_null() => Ok(value),
                _ => Err(not_a(&format!("{to}"), text)),
            };
        }
        Some(DataType::Float32 | DataType::Float64) => {
            return text.parse().map(|v| ScalarValue::Float64(Some(v))).map_err(|_| not_a("numeric", text));
        }
        _ => {}
    }
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, 0), |(m, e)| (m, e.parse().unwrap_or(0)));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().map_err(|_| not_a("numeric", text))?;
    let scale = fraction.len() as i64 - exponent;
    let digits = if scale < 0 { digits.checked_mul(10_i128.pow((-scale).min(38) as u32)) } else { Some(digits) };
    match digits {
        Some(digits) if scale <= 38 && digits.unsigned_abs() < 10_u128.pow(38) => {
            Ok(ScalarValue::Decimal128(Some(digits), 38, scale.max(0) as i8))
        }
        _ => Err(not_a("numeric of at most 38 digits", text)),
    }
}

fn element_of(wanted: Option<&DataType>) -> Option<&DataType> {
    match wanted {
        Some(DataType::List(item)) => Some(item.data_type()),
        _ => None,
    }
}

/// `{1,NULL,"a b"}`. Only arrays of one dimension: Weir's arrays of arrays have no PostgreSQL type.
fn array_from_text(element: &Type, text: &str, wanted: Option<&DataType>) -> Result<ScalarValue, SqlError> {
    let elements = arrays::elements(text).ok_or_else(|| not_a(&format!("{}[]", element.name()), text))?;
    let values = elements
        .into_iter()
        .map(|item| item.map(|item| from_text(element, &item, wanted)).transpose())
        .collect::<Result<_, _>>()?;
    list(element, values, wanted)
}

/// A list of what is wanted, else of a type that holds all values.
fn list(element: &Type, values: Vec<Option<ScalarValue>>, wanted: Option<&DataType>) -> Result<ScalarValue, SqlError> {
    let ty = match (wanted, values.iter().flatten().map(ScalarValue::data_type).reduce(wider)) {
        (Some(wanted), _) => wanted.clone(),
        (None, Some(ty)) => ty,
        (None, None) => arrow_type(element).ok_or_else(|| unknown_type(element.oid()))?,
    };
    let null = ScalarValue::try_from(&ty).map_err(|e| invalid(&e.to_string()))?;
    let values: Vec<ScalarValue> = values
        .into_iter()
        .map(|value| match value {
            None => Ok(null.clone()),
            Some(value) => value.cast_to(&ty).map_err(|_| invalid(&format!("{value} does not fit type {ty}"))),
        })
        .collect::<Result<_, _>>()?;
    Ok(ScalarValue::List(ScalarValue::new_list_nullable(&values, &ty)))
}

/// Decimals come with as many digits behind the point as each has.
fn wider(a: DataType, b: DataType) -> DataType {
    match (a, b) {
        (DataType::Decimal128(p, s), DataType::Decimal128(q, t)) => DataType::Decimal128(p.max(q), s.max(t)),
        (a, _) => a,
    }
}

fn from_binary(ty: &Type, bytes: &[u8], wanted: Option<&DataType>) -> Result<ScalarValue, SqlError> {
    if let Some(element) = element_type(ty) {
        return array_from_binary(&element, bytes, element_of(wanted));
    }
    Ok(match *ty {
        Type::BOOL => ScalarValue::Boolean(Some(u8::from_be_bytes(fixed(ty, bytes)?) != 0)),
        Type::INT2 => ScalarValue::Int16(Some(i16::from_be_bytes(fixed(ty, bytes)?))),
        Type::INT4 => ScalarValue::Int32(Some(i32::from_be_bytes(fixed(ty, bytes)?))),
        Type::INT8 => ScalarValue::Int64(Some(i64::from_be_bytes(fixed(ty, bytes)?))),
        Type::OID => ScalarValue::Int64(Some(i64::from(u32::from_be_bytes(fixed(ty, bytes)?)))),
        Type::FLOAT4 => ScalarValue::Float32(Some(f32::from_be_bytes(fixed(ty, bytes)?))),
        Type::FLOAT8 => ScalarValue::Float64(Some(f64::from_be_bytes(fixed(ty, bytes)?))),
        Type::NUMERIC => numeric_from_text(&numeric_text(bytes)?, wanted)?,
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::JSON | Type::CHAR => {
            ScalarValue::Utf8(Some(utf8(bytes)?.to_owned()))
        }
        Type::JSONB => match bytes.split_first() {
            Some((1, json)) => ScalarValue::Utf8(Some(utf8(json)?.to_owned())),
            _ => return Err(invalid("jsonb of an unknown version; send it as text")),
        },
        Type::UUID => ScalarValue::Utf8(Some(uuid::Uuid::from_bytes(fixed(ty, bytes)?).to_string())),
        Type::BYTEA => ScalarValue::Binary(Some(bytes.to_vec())),
        Type::DATE => ScalarValue::Date32(Some(i32::from_be_bytes(fixed(ty, bytes)?).saturating_add(EPOCH_DAYS))),
        Type::TIME => ScalarValue::Time64Microsecond(Some(i64::from_be_bytes(fixed(ty, bytes)?))),
        Type::TIMESTAMP | Type::TIMESTAMPTZ => {
            let micros = match i64::from_be_bytes(fixed(ty, bytes)?) {
                infinity @ (i64::MAX | i64::MIN) => infinity,
                micros => micros.saturating_add(EPOCH_MICROS),
            };
            let zone = (*ty == Type::TIMESTAMPTZ).then(|| Arc::from("UTC"));
            ScalarValue::TimestampMicrosecond(Some(micros), zone)
        }
        Type::INTERVAL => {
            let raw: [u8; 16] = fixed(ty, bytes)?;
            let (micros, rest) = raw.split_at(8);
            let (days, months) = rest.split_at(4);
            let micros = i64::from_be_bytes(micros.try_into().unwrap_or_default());
            ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano {
                months: i32::from_be_bytes(months.try_into().unwrap_or_default()),
                days: i32::from_be_bytes(days.try_into().unwrap_or_default()),
                nanoseconds: micros.saturating_mul(1000),
            }))
        }
        _ => return Err(unknown_type(ty.oid())),
    })
}

fn fixed<const N: usize>(ty: &Type, bytes: &[u8]) -> Result<[u8; N], SqlError> {
    bytes.try_into().map_err(|_| invalid(&format!("{} takes {N} bytes in binary, not {}", ty.name(), bytes.len())))
}

/// Binary `numeric`, spelt out.
fn numeric_text(bytes: &[u8]) -> Result<String, SqlError> {
    let words: Vec<u16> = bytes.chunks_exact(2).map(|w| u16::from_be_bytes([w[0], w[1]])).collect();
    let [count, weight, sign, scale, groups @ ..] = words.as_slice() else {
        return Err(invalid("numeric is too short in binary"));
    };
    if groups.len() != usize::from(*count) || groups.iter().any(|group| *group > 9999) {
        return Err(invalid("numeric is malformed in binary"));
    }
    let (weight, scale) = (i32::from(weight.cast_signed()), usize::from(*scale));
    let mut text = match sign {
        0 => String::new(),
        0x4000 => "-".to_owned(),
        _ => return Err(invalid("NaN and infinity are no numeric in Weir").hint("use DOUBLE PRECISION")),
    };
    let group = |position: i32| -> u16 {
        usize::try_from(weight - position).ok().and_then(|index| groups.get(index)).copied().unwrap_or(0)
    };
    text.push_str(&group(weight.max(0)).to_string());
    for position in (0..weight.max(0)).rev() {
        text.push_str(&format!("{:04}", group(position)));
    }
    if scale > 0 {
        let mut fraction = String::new();
        let mut position = -1;
        while fraction.len() < scale {
            fraction.push_str(&format!("{:04}", group(position)));
            position -= 1;
        }
        text.push('.');
        text.push_str(&fraction[..scale]);
    }
    Ok(text)
}

fn array_from_binary(element: &Type, bytes: &[u8], wanted: Option<&DataType>) -> Result<ScalarValue, SqlError> {
    let mut rest = bytes;
    let dimensions = take_i32(&mut rest)?;
    let _has_nulls = take_i32(&mut rest)?;
    let _element_oid = take_i32(&mut rest)?;
    if dimensions == 0 {
        return list(element, Vec::new(), wanted);
    }
    if dimensions != 1 {
        return Err(invalid(&format!("an array of {dimensions} dimensions; Weir takes arrays of one")));
    }
    let count = take_i32(&mut rest)?;
    let _lower_bound = take_i32(&mut rest)?;
    let mut values = Vec::new();
    for _ in 0..count {
        let length = take_i32(&mut rest)?;
        if length < 0 {
            values.push(None);
            continue;
        }
        let (value, tail) = rest.split_at_checked(length as usize).ok_or_else(|| invalid("the array is cut short"))?;
        rest = tail;
        values.push(Some(from_binary(element, value, wanted)?));
    }
    list(element, values, wanted)
}

fn take_i32(rest: &mut &[u8]) -> Result<i32, SqlError> {
    let (word, tail) = rest.split_first_chunk::<4>().ok_or_else(|| invalid("the array is cut short"))?;
    *rest = tail;
    Ok(i32::from_be_bytes(*word))
}

fn utf8(bytes: &[u8]) -> Result<&str, SqlError> {
    std::str::from_utf8(bytes).map_err(|_| invalid("text is not UTF-8"))
}

fn invalid(message: &str) -> SqlError {
    SqlError { sqlstate: "22P02", ..SqlError::new(ErrorKind::INVALID_VALUE, message) }
}

fn not_a(ty: &str, text: &str) -> SqlError {
    invalid(&format!("\"{text}\" is not of type {ty}"))
}

fn unknown_type(oid: u32) -> SqlError {
    SqlError::new(ErrorKind::UNDEFINED_TYPE, format!("type with OID {oid} is unknown to Weir"))
        .hint("send the parameter as text, and cast it in the statement: $1::type")
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::TimeUnit;

    fn text(ty: &Type, value: &str) -> ScalarValue {
        parameter(0, Some(ty.oid()), None, false, Some(value.as_bytes())).unwrap()
    }

    #[test]
    fn text_parameters() {
        assert_eq!(text(&Type::INT4, "42"), ScalarValue::Int32(Some(42)));
        assert_eq!(text(&Type::BOOL, "t"), ScalarValue::Boolean(Some(true)));
        assert_eq!(text(&Type::FLOAT8, "1.5"), ScalarValue::Float64(Some(1.5)));
        assert_eq!(text(&Type::NUMERIC, "-12.50"), ScalarValue::Decimal128(Some(-1250), 38, 2));
        assert_eq!(text(&Type::NUMERIC, "1.2e3"), ScalarValue::Decimal128(Some(1200), 38, 0));
        assert_eq!(text(&Type::BYTEA, "\\x00ff"), ScalarValue::Binary(Some(vec![0, 255])));
        assert_eq!(text(&Type::BYTEA, "a\\\\b\\001"), ScalarValue::Binary(Some(b"a\\b\x01".to_vec())));
        assert_eq!(
            text(&Type::TIMESTAMPTZ, "2013-01-01 05:00:00+00"),
            ScalarValue::TimestampMicrosecond(Some(1_357_016_400_000_000), Some("UTC".into()))
        );
        assert_eq!(text(&Type::DATE, "2013-01-01"), ScalarValue::Date32(Some(15_706)));
        let ScalarValue::List(list) = text(&Type::TEXT_ARRAY, r#"{a,NULL,"b,\"c","null"}"#) else { unreachable!() };
        assert_eq!(ScalarValue::List(list).to_string(), r#"[a, , b,"c, null]"#);
    }

    #[test]
    fn the_statement_decides_when_the_client_does_not() {
        let wanted = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let value = parameter(0, Some(0), Some(&wanted), false, Some(b"2013-01-01T00:00:00Z")).unwrap();
        assert_eq!(value.data_type(), wanted);
        // An int4 where a bigint is wanted.
        let value = parameter(0, Some(Type::INT4.oid()), Some(&DataType::Int64), true, Some(&[0, 0, 0, 5])).unwrap();
        assert_eq!(value, ScalarValue::Int64(Some(5)));
        assert_eq!(parameter(0, None, None, false, Some(b"x")).unwrap(), ScalarValue::Utf8(Some("x".to_owned())));
        assert_eq!(parameter(0, None, Some(&DataType::Int32), false, None).unwrap(), ScalarValue::Int32(None));
    }

    #[test]
    fn binary_parameters() {
        let binary = |ty: &Type, bytes: &[u8]| parameter(0, Some(ty.oid()), None, true, Some(bytes)).unwrap();
        assert_eq!(binary(&Type::INT8, &7_i64.to_be_bytes()), ScalarValue::Int64(Some(7)));
        // 12345.678
        let numeric = [0, 3, 0, 1, 0, 0, 0, 3, 0, 1, 0x09, 0x29, 0x1a, 0x7c];
        assert_eq!(binary(&Type::NUMERIC, &numeric), ScalarValue::Decimal128(Some(12_345_678), 38, 3));
        // -0.0001
        let numeric = [0, 1, 0xff, 0xff, 0x40, 0, 0, 4, 0, 1];
        assert_eq!(binary(&Type::NUMERIC, &numeric), ScalarValue::Decimal128(Some(-1), 38, 4));
        let micros = 1_357_016_400_000_000_i64 - EPOCH_MICROS;
        assert_eq!(
            binary(&Type::TIMESTAMP, &micros.to_be_bytes()),
            ScalarValue::TimestampMicrosecond(Some(1_357_016_400_000_000), None)
        );
        let mut array = Vec::new();
        for word in [1_i32, 1, 23, 2, 1, 4, 9, -1] {
            array.extend(word.to_be_bytes());
        }
        assert_eq!(binary(&Type::INT4_ARRAY, &array).to_string(), "[9, ]");
    }

    #[test]
    fn an_array_is_what_the_statement_wants() {
        let of = |ty: DataType| DataType::List(Arc::new(arrow::datatypes::Field::new_list_field(ty, true)));
        let value = |oid: u32, wanted: &DataType, text: &str| {
            parameter(0, Some(oid), Some(wanted), false, Some(text.as_bytes())).unwrap()
        };
        for (oid, wanted, text, shown) in [
            (Type::INT2_ARRAY.oid(), of(DataType::Int64), "{1,2}", "[1, 2]"),
            (UNSPECIFIED, of(DataType::Int32), "{1,NULL}", "[1, ]"),
            (Type::TEXT.oid(), of(DataType::Utf8), "{a,\"b c\"}", "[a, b c]"),
            (Type::NUMERIC_ARRAY.oid(), of(DataType::Decimal128(10, 2)), "{1,2.5}", "[1.00, 2.50]"),
            (Type::TEXT_ARRAY.oid(), of(DataType::Int32), "{}", "[]"),
        ] {
            let value = value(oid, &wanted, text);
            assert_eq!((value.data_type(), value.to_string().as_str()), (wanted, shown));
        }
        // Nothing tells: no digit is lost.
        let value = text(&Type::NUMERIC_ARRAY, "{1,2.5,0.125}");
        assert_eq!(value.to_string(), "[1.000, 2.500, 0.125]");
    }

    #[test]
    fn refusals_name_the_parameter_and_the_value() {
        let error = parameter(1, Some(Type::INT4.oid()), None, false, Some(b"abc")).unwrap_err();
        assert_eq!((error.sqlstate, error.message.as_str()), ("22P02", "parameter $2: \"abc\" is not of type int4"));
        let error = parameter(0, Some(Type::INT4.oid()), None, true, Some(&[1])).unwrap_err();
        assert_eq!(error.message, "parameter $1: int4 takes 4 bytes in binary, not 1");
    }
}
