//! Rows as text, compared without regard to order, numbers by value.

/// A row: one cell a column, `None` for null.
pub type Row = Vec<Option<String>>;

/// A row of the given cells; `NULL` is null.
pub fn row(cells: &[&str]) -> Row {
    cells.iter().map(|cell| (*cell != "NULL").then(|| (*cell).to_owned())).collect()
}

/// Rows of the given cells.
pub fn cells(rows: &[&[&str]]) -> Vec<Row> {
    rows.iter().map(|cells| row(cells)).collect()
}

/// The rows in a fixed order.
pub fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort();
    rows
}

/// Fails, showing the first differences, unless both sides have the same rows, in any order. Numbers are equal when they
/// differ by less than one part in 10⁹ (sums of floats depend on the order of adding), timestamps when they name the same
/// moment.
pub fn assert_same_rows(what: &str, actual: Vec<Row>, expected: Vec<Row>) {
    if let Some(difference) = difference(actual, expected) {
        panic!("{what}: {difference}");
    }
}

/// The first differences between two sets of rows, told; `None` when there are none.
pub fn difference(actual: Vec<Row>, expected: Vec<Row>) -> Option<String> {
    let normal = |rows: Vec<Row>| {
        let mut rows: Vec<Row> =
            rows.into_iter().map(|row| row.into_iter().map(|cell| cell.map(|c| normal_cell(&c))).collect()).collect();
        rows.sort();
        rows
    };
    let (actual, expected) = (normal(actual), normal(expected));
    if actual.len() == expected.len() && actual.iter().zip(&expected).all(|(a, e)| same_row(a, e)) {
        return None;
    }
    let missing: Vec<&Row> = expected.iter().filter(|e| !actual.iter().any(|a| same_row(a, e))).take(5).collect();
    let extra: Vec<&Row> = actual.iter().filter(|a| !expected.iter().any(|e| same_row(a, e))).take(5).collect();
    Some(format!(
        "{} rows, {} expected\nmissing, among others: {missing:#?}\nnot expected, among others: {extra:#?}",
        actual.len(),
        expected.len()
    ))
}

fn same_row(a: &Row, b: &Row) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|pair| match pair {
            (Some(a), Some(b)) => same_cell(a, b),
            (None, None) => true,
            _ => false,
        })
}

fn same_cell(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
        _ => false,
    }
}

/// Booleans and timestamps in one spelling; floats without a trailing `.0`, so that sorting puts equal rows side by side.
fn normal_cell(cell: &str) -> String {
    match cell {
        "t" => return "true".to_owned(),
        "f" => return "false".to_owned(),
        _ => {}
    }
    for format in ["%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S%.f%#z"] {
        if let Ok(time) = chrono::DateTime::parse_from_str(cell, format) {
            return time.naive_utc().format("%Y-%m-%d %H:%M:%S%.6f").to_string();
        }
    }
    for format in ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.fZ"] {
        if let Ok(time) = chrono::NaiveDateTime::parse_from_str(cell, format) {
            return time.format("%Y-%m-%d %H:%M:%S%.6f").to_string();
        }
    }
    if cell.contains(['.', 'e', 'E'])
        && let Ok(number) = cell.parse::<f64>()
    {
        if number != 0.0 && number.abs() < 1e-6 {
            return format!("{number:.9e}");
        }
        return format!("{number:.9}").trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    cell.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_in_other_spellings_and_order_are_equal() {
        assert_same_rows(
            "spelling",
            vec![row(&["2013-01-01 10:00:00+00", "1.50"]), row(&["t", "3"])],
            vec![row(&["true", "3"]), row(&["2013-01-01T10:00:00Z", "1.5"])],
        );
    }

    #[test]
    #[should_panic(expected = "missing")]
    fn tiny_numbers_are_told_apart() {
        assert_same_rows("tiny", vec![row(&["1e-300"])], vec![row(&["0.0"])]);
    }

    #[test]
    #[should_panic(expected = "1 rows, 2 expected")]
    fn a_missing_row_is_noticed() {
        assert_same_rows("rows", vec![row(&["a"])], vec![row(&["a"]), row(&["b"])]);
    }

    #[test]
    #[should_panic(expected = "missing")]
    fn a_row_too_often_is_noticed() {
        assert_same_rows("rows", vec![row(&["a"]), row(&["a"])], vec![row(&["a"]), row(&["b"])]);
    }
}
