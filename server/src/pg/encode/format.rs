//! Numbers and times spelt as PostgreSQL spells them (DateStyle ISO, IntervalStyle postgres, extra_float_digits 1).

use std::fmt::Write;

use bytes::{BufMut, BytesMut};
use chrono::{Datelike, Days, NaiveDate};

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// A float in the fewest digits that read back the same. `digits` is where PostgreSQL turns to an exponent: 15 for
/// `double precision`, 6 for `real`.
pub(super) fn put_float(shortest: &str, digits: i32, out: &mut BytesMut) {
    let (negative, rest) = shortest.strip_prefix('-').map_or((false, shortest), |rest| (true, rest));
    let Some((mantissa, exponent)) = rest.split_once('e') else {
        out.put_slice(shortest.as_bytes());
        return;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if negative {
        out.put_u8(b'-');
    }
    let figures: String = mantissa.chars().filter(|c| *c != '.').collect();
    if exponent < -4 || exponent >= digits {
        out.put_slice(mantissa.as_bytes());
        out.put_u8(b'e');
        out.put_u8(if exponent < 0 { b'-' } else { b'+' });
        let magnitude = exponent.unsigned_abs();
        if magnitude < 10 {
            out.put_u8(b'0');
        }
        put(out, format_args!("{magnitude}"));
    } else if exponent < 0 {
        out.put_slice(b"0.");
        for _ in 0..(-exponent - 1) {
            out.put_u8(b'0');
        }
        out.put_slice(figures.as_bytes());
    } else {
        let whole = exponent as usize + 1;
        if figures.len() <= whole {
            out.put_slice(figures.as_bytes());
            for _ in figures.len()..whole {
                out.put_u8(b'0');
            }
        } else {
            out.put_slice(&figures.as_bytes()[..whole]);
            out.put_u8(b'.');
            out.put_slice(&figures.as_bytes()[whole..]);
        }
    }
}

/// `double precision`.
pub(super) fn put_f64(value: f64, out: &mut BytesMut) {
    if put_special(value.is_nan(), value.is_infinite(), value < 0.0, out) {
        put_float(&format!("{value:e}"), 15, out);
    }
}

/// `real`.
pub(super) fn put_f32(value: f32, out: &mut BytesMut) {
    if put_special(value.is_nan(), value.is_infinite(), value < 0.0, out) {
        put_float(&format!("{value:e}"), 6, out);
    }
}

/// Writes what is no number; says whether a number is still to be written.
fn put_special(nan: bool, infinite: bool, negative: bool, out: &mut BytesMut) -> bool {
    if nan {
        out.put_slice(b"NaN");
    } else if infinite {
        out.put_slice(if negative { b"-Infinity".as_slice() } else { b"Infinity" });
    }
    !nan && !infinite
}

/// A decimal from its unscaled digits (with a sign) and its scale.
pub(super) fn put_decimal(unscaled: &str, scale: i8, out: &mut BytesMut) {
    let (negative, digits) = unscaled.strip_prefix('-').map_or((false, unscaled), |rest| (true, rest));
    if negative {
        out.put_u8(b'-');
    }
    if scale <= 0 {
        out.put_slice(digits.as_bytes());
        if digits != "0" {
            for _ in 0..scale.unsigned_abs() {
                out.put_u8(b'0');
            }
        }
        return;
    }
    let scale = scale as usize;
    if digits.len() > scale {
        out.put_slice(&digits.as_bytes()[..digits.len() - scale]);
        out.put_u8(b'.');
        out.put_slice(&digits.as_bytes()[digits.len() - scale..]);
    } else {
        out.put_slice(b"0.");
        for _ in digits.len()..scale {
            out.put_u8(b'0');
        }
        out.put_slice(digits.as_bytes());
    }
}

/// Days since 1970 as a date; says whether it is before Christ, which PostgreSQL writes behind the time.
fn put_day(days: i64, out: &mut BytesMut) -> bool {
    let epoch = NaiveDate::from_ymd_opt(1970, 1, 1).unwrap_or_default();
    let date = if days >= 0 {
        epoch.checked_add_days(Days::new(days.unsigned_abs()))
    } else {
        epoch.checked_sub_days(Days::new(days.unsigned_abs()))
    };
    match date {
        Some(date) => {
            let bc = date.year() <= 0;
            let year = if bc { 1 - date.year() } else { date.year() };
            put(out, format_args!("{year:04}-{:02}-{:02}", date.month(), date.day()));
            bc
        }
        // Beyond what a calendar holds: PostgreSQL's way to say so.
        None => {
            out.put_slice(if days > 0 { b"infinity".as_slice() } else { b"-infinity" });
            false
        }
    }
}

/// `date`.
pub(super) fn put_date(days: i32, out: &mut BytesMut) {
    if put_day(i64::from(days), out) {
        out.put_slice(b" BC");
    }
}

/// `time`, from microseconds since midnight.
pub(super) fn put_time(micros: i64, out: &mut BytesMut) {
    let seconds = micros.div_euclid(1_000_000);
    put(out, format_args!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60));
    put_fraction(micros.rem_euclid(1_000_000), out);
}

/// `timestamp` or, with a zone, `timestamp with time zone` in UTC.
pub(super) fn put_timestamp(micros: i64, zone: bool, out: &mut BytesMut) {
    match micros {
        i64::MAX => return out.put_slice(b"infinity"),
        i64::MIN => return out.put_slice(b"-infinity"),
        _ => {}
    }
    let before_christ = put_day(micros.div_euclid(MICROS_PER_DAY), out);
    out.put_u8(b' ');
    put_time(micros.rem_euclid(MICROS_PER_DAY), out);
    if zone {
        out.put_slice(b"+00");
    }
    if before_christ {
        out.put_slice(b" BC");
    }
}

/// `interval`.
pub(super) fn put_interval(months: i32, days: i32, nanos: i64, out: &mut BytesMut) {
    let start = out.len();
    let (years, months) = (months / 12, months % 12);
    let mut negative_before = false;
    for (amount, one, many) in [(years, "year", "years"), (months, "mon", "mons"), (days, "day", "days")] {
        if amount != 0 {
            let space = if out.len() > start { " " } else { "" };
            // After a negative part PostgreSQL marks a positive one.
            let sign = if negative_before && amount > 0 { "+" } else { "" };
            put(out, format_args!("{space}{sign}{amount} {}", if amount == 1 { one } else { many }));
            negative_before = amount < 0;
        }
    }
    let micros = nanos / 1000;
    if micros != 0 || out.len() == start {
        if out.len() > start {
            out.put_u8(b' ');
        }
        if micros < 0 {
            out.put_u8(b'-');
        } else if negative_before {
            out.put_u8(b'+');
        }
        let micros = micros.unsigned_abs() as i64;
        let seconds = micros / 1_000_000;
        put(out, format_args!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60));
        put_fraction(micros % 1_000_000, out);
    }
}

/// Microseconds behind a full second, without trailing zeros.
fn put_fraction(micros: i64, out: &mut BytesMut) {
    if micros != 0 {
        let text = format!(".{micros:06}");
        out.put_slice(text.trim_end_matches('0').as_bytes());
    }
}

/// Writes formatted text. A `BytesMut` grows, so this cannot fail.
pub(super) fn put(out: &mut BytesMut, arguments: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(arguments);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn floats_as_psql_shows_them() {
        let cases: [(f64, &str); 14] = [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456789012345.0, "123456789012345"),
            (1e15, "1e+15"),
            (1.5e300, "1.5e+300"),
            (12.63888888888889, "12.63888888888889"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
            (100.0, "100"),
        ];
        for (value, expected) in cases {
            assert_eq!(written(|out| put_f64(value, out)), expected);
        }
        assert_eq!(written(|out| put_f32(1_000_000.0, out)), "1e+06");
        assert_eq!(written(|out| put_f32(0.1, out)), "0.1");
    }

    #[test]
    fn decimals_keep_their_scale() {
        for (digits, scale, expected) in
            [("12345", 2, "123.45"), ("-5", 3, "-0.005"), ("0", 2, "0.00"), ("7", 0, "7"), ("7", -2, "700")]
        {
            assert_eq!(written(|out| put_decimal(digits, scale, out)), expected);
        }
    }

    #[test]
    fn times_as_psql_shows_them() {
        assert_eq!(written(|out| put_timestamp(1_357_016_400_000_000, true, out)), "2013-01-01 05:00:00+00");
        assert_eq!(written(|out| put_timestamp(-1, false, out)), "1969-12-31 23:59:59.999999");
        assert_eq!(written(|out| put_timestamp(1_500_000, false, out)), "1970-01-01 00:00:01.5");
        assert_eq!(written(|out| put_timestamp(i64::MAX, true, out)), "infinity");
        assert_eq!(written(|out| put_date(-719_529, out)), "0002-12-31 BC");
        assert_eq!(written(|out| put_date(15_706, out)), "2013-01-01");
        assert_eq!(written(|out| put_date(2_932_897, out)), "10000-01-01");
        assert_eq!(written(|out| put_time(3_723_000_000, out)), "01:02:03");
    }

    #[test]
    fn intervals_as_psql_shows_them() {
        for (months, days, nanos, expected) in [
            (0, 0, 0, "00:00:00"),
            (14, 3, 14_706_700_000_000, "1 year 2 mons 3 days 04:05:06.7"),
            (0, 1, 0, "1 day"),
            (-1, 2, 0, "-1 mons +2 days"),
            (0, 0, -1_000_000_000, "-00:00:01"),
            (0, -1, 3_600_000_000_000, "-1 days +01:00:00"),
        ] {
            assert_eq!(written(|out| put_interval(months, days, nanos, out)), expected);
        }
    }
}
