//! One value's text to a typed value: the hand-written parsers that every text format shares.
//!
//! Each takes bytes and answers `None` when they do not spell a value of the type.

/// A whole number: an optional sign and digits.
#[inline]
pub(crate) fn integer(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, bytes),
    };
    if digits.is_empty() {
        return None;
    }
    if digits.len() <= 18 {
        let mut value = 0i64;
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            value = value * 10 + i64::from(digit);
        }
        return Some(if negative { -value } else { value });
    }
    // Rare: may overflow. Digits only, so that Rust's parser sees no sign of its own.
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// The value of a number whose fraction is zero (`1.0`, `12e2`), as JSON writers without an integer type produce it.
pub(crate) fn integral(bytes: &[u8]) -> Option<i64> {
    let value = float(bytes)?;
    // Above 2^53 a float no longer tells neighbouring integers apart.
    (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0).then_some(value as i64)
}

/// Whether the bytes are a number by JSON's grammar (RFC 8259, section 6).
pub(crate) fn is_json_number(bytes: &[u8]) -> bool {
    let mut rest = bytes.strip_prefix(b"-").unwrap_or(bytes);
    let digits = |rest: &[u8]| rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest[0] == b'0') {
        return false;
    }
    rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = match exponent {
            [b'+' | b'-', tail @ ..] => tail,
            _ => exponent,
        };
        let count = digits(exponent);
        if count == 0 {
            return false;
        }
        rest = &exponent[count..];
    }
    rest.is_empty()
}

const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// A floating-point number. Plain decimals of up to 15 digits take an exact short cut (Clinger 1990: both the digits
/// and the power of ten are exact floats, so that one division rounds correctly).
#[inline]
pub(crate) fn float(bytes: &[u8]) -> Option<f64> {
    let (negative, body) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, bytes),
    };
    let (mut digits, mut value, mut point) = (0usize, 0u64, None);
    for (at, byte) in body.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                digits += 1;
                value = value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
            }
            b'.' if point.is_none() => point = Some(at),
            _ => return std::str::from_utf8(bytes).ok()?.parse().ok(),
        }
    }
    if digits == 0 || digits > 15 {
        return std::str::from_utf8(bytes).ok()?.parse().ok();
    }
    let scale = point.map_or(0, |at| body.len() - at - 1);
    let value = value as f64 / POWERS[scale];
    Some(if negative { -value } else { value })
}

/// A boolean as PostgreSQL spells it, in any case.
pub(crate) fn boolean(bytes: &[u8]) -> Option<bool> {
    const TRUE: [&[u8]; 6] = [b"true", b"t", b"yes", b"y", b"on", b"1"];
    const FALSE: [&[u8]; 6] = [b"false", b"f", b"no", b"n", b"off", b"0"];
    if TRUE.iter().any(|word| word.eq_ignore_ascii_case(bytes)) {
        Some(true)
    } else if FALSE.iter().any(|word| word.eq_ignore_ascii_case(bytes)) {
        Some(false)
    } else {
        None
    }
}

/// The last date seen and its day number: consecutive rows mostly share their date.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct DateCache {
    text: [u8; 10],
    days: i32,
}

/// Days since 1970-01-01 of a valid date of the Gregorian calendar (Howard Hinnant, "chrono-compatible low-level date
/// algorithms").
fn days_from_civil(year: i32, month: u32, day: u32) -> i32 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted = (month as i32 + 9) % 12;
    let day_of_year = (153 * shifted + 2) / 5 + day as i32 - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn days_in_month(year: i32, month: u32) -> u32 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[inline]
fn two(bytes: &[u8]) -> Option<u32> {
    match bytes {
        [a @ b'0'..=b'9', b @ b'0'..=b'9'] => Some(u32::from(a - b'0') * 10 + u32::from(b - b'0')),
        _ => None,
    }
}

/// `YYYY-MM-DD` as days since 1970-01-01.
#[inline]
pub(crate) fn date(bytes: &[u8], cache: &mut DateCache) -> Option<i32> {
    let text: [u8; 10] = bytes.try_into().ok()?;
    if text == cache.text {
        return Some(cache.days);
    }
    if text[4] != b'-' || text[7] != b'-' {
        return None;
    }
    let year = (two(&text[0..2])? * 100 + two(&text[2..4])?) as i32;
    let (month, day) = (two(&text[5..7])?, two(&text[8..10])?);
    if !(1..=12).contains(&month) || day == 0 || day > days_in_month(year, month) {
        return None;
    }
    let days = days_from_civil(year, month, day);
    *cache = DateCache { text, days };
    Some(days)
}

/// `HH:MM[:SS[.fraction]]` as microseconds, and what follows it. Digits below a microsecond are cut off.
fn time_of_day(bytes: &[u8]) -> Option<(i64, &[u8])> {
    if bytes.len() < 5 || bytes[2] != b':' {
        return None;
    }
    let (hour, minute) = (two(&bytes[0..2])?, two(&bytes[3..5])?);
    let mut rest = &bytes[5..];
    let mut second = 0;
    let mut micros = 0i64;
    if rest.len() >= 3 && rest[0] == b':' {
        second = two(&rest[1..3])?;
        rest = &rest[3..];
        if let [b'.', fraction @ ..] = rest {
            let count = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if count == 0 || count > 9 {
                return None;
            }
            for at in 0..6 {
                let digit = fraction[..count].get(at).map_or(0, |digit| digit - b'0');
                micros = micros * 10 + i64::from(digit);
            }
            rest = &fraction[count..];
        }
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    Some((i64::from(hour * 3600 + minute * 60 + second) * 1_000_000 + micros, rest))
}

/// `HH:MM[:SS[.fraction]]` as microseconds since midnight.
pub(crate) fn time(bytes: &[u8]) -> Option<i64> {
    time_of_day(bytes).and_then(|(micros, rest)| rest.is_empty().then_some(micros))
}

/// `YYYY-MM-DD[( |T)HH:MM[:SS[.fraction]]][zone]` as microseconds since the Unix epoch; without a zone it is UTC.
#[inline]
pub(crate) fn timestamp(bytes: &[u8], cache: &mut DateCache) -> Option<i64> {
    const DAY: i64 = 86_400_000_000;
    let days = i64::from(date(bytes.get(..10)?, cache)?);
    let rest = &bytes[10..];
    if rest.is_empty() {
        return Some(days * DAY);
    }
    if !matches!(rest[0], b' ' | b'T' | b't') {
        return None;
    }
    let (micros, zone) = time_of_day(&rest[1..])?;
    Some(days * DAY + micros - zone_offset(zone)?)
}

/// Microseconds east of Greenwich.
#[inline]
fn zone_offset(zone: &[u8]) -> Option<i64> {
    let zone = zone.strip_prefix(b" ").unwrap_or(zone);
    let (sign, digits) = match zone {
        [] | [b'Z' | b'z'] | b"UTC" => return Some(0),
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits.len() {
        2 => (two(digits)?, 0),
        4 => (two(&digits[..2])?, two(&digits[2..])?),
        5 if digits[2] == b':' => (two(&digits[..2])?, two(&digits[3..])?),
        _ => return None,
    };
    (hours <= 23 && minutes <= 59).then_some(sign * i64::from(hours * 3600 + minutes * 60) * 1_000_000)
}

/// Bytes as hexadecimal digits, with or without PostgreSQL's `\x` in front.
pub(crate) fn hex(bytes: &[u8]) -> Option<Vec<u8>> {
    let digits = bytes.strip_prefix(b"\\x").unwrap_or(bytes);
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let nibble = |byte: u8| (byte as char).to_digit(16).map(|value| value as u8);
    digits.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers() {
        assert_eq!(integer(b"-42"), Some(-42));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"9223372036854775808"), None);
        for bad in ["", "-", "1x", "--1", "+-1", "1.0", "123456789012345678x", "-+1234567890123456789"] {
            assert_eq!(integer(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn json_numbers() {
        for good in ["0", "-0", "1", "12.5", "1e9", "1E+9", "-0.5e-3"] {
            assert!(is_json_number(good.as_bytes()), "{good}");
        }
        for bad in ["", "-", "01", "1.", ".5", "+1", "1e", "1e+", "0x1", "NaN", "1 "] {
            assert!(!is_json_number(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn timestamps() {
        let mut cache = DateCache::default();
        let mut parse = |text: &str| timestamp(text.as_bytes(), &mut cache);
        assert_eq!(parse("1970-01-01 00:00:00"), Some(0));
        assert_eq!(parse("2013-01-01T10:00:00Z"), Some(1_357_034_400_000_000));
        assert_eq!(parse("2013-01-01 10:00"), Some(1_357_034_400_000_000));
        assert_eq!(parse("2013-01-01T12:00:00.123456789+02:00"), Some(1_357_034_400_123_456));
        assert_eq!(parse("2013-01-01T04:30:00.5-0530"), Some(1_357_034_400_500_000));
        assert_eq!(parse("1969-12-31 23:59:59.999"), Some(-1000));
        assert_eq!(parse("2000-02-29"), Some(951_782_400_000_000));
        for bad in [
            "2013-02-29",
            "2013-13-01",
            "2013-01-01 24:00:00",
            "2013-01-01 10",
            "2013-1-1",
            "2013-01-01 10:00:00.",
            "2013-01-01T10:00:00X",
            "",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn floats_are_what_rust_reads(text in "-?[0-9]{1,18}(\\.[0-9]{1,17})?(e-?[0-9]{1,2})?") {
            prop_assert_eq!(float(text.as_bytes()).map(f64::to_bits), text.parse::<f64>().ok().map(f64::to_bits));
        }

        #[test]
        fn dates_are_what_chrono_reads(days in -700_000i32..2_900_000) {
            let text = (chrono::DateTime::UNIX_EPOCH.date_naive() + chrono::Duration::days(i64::from(days))).format("%Y-%m-%d").to_string();
            prop_assert_eq!(date(text.as_bytes(), &mut DateCache::default()), Some(days));
        }
    }
}
