//! What bounds the state of each operator, in words, and what to warn of.

/// Of operators without keyed state.
pub(crate) const STATELESS: &str = "stateless";

/// Of an aggregate: `groups` are the names of the group columns, `window_end` the one whose watermark drops a group.
pub(crate) fn aggregate(groups: &[String], window_end: Option<&str>) -> String {
    match (groups, window_end) {
        ([], _) => "one row".to_owned(),
        (_, Some(column)) => format!("watermark of {column}"),
        _ => format!("unbounded: one row per {}", groups.join(", ")),
    }
}

/// Of a join.
pub(crate) fn join() -> String {
    "unbounded: the rows of both inputs".to_owned()
}

/// Of a result that is kept. `key` are the names of its key columns.
pub(crate) fn materialize(key: &[String], append_only: bool) -> String {
    match (key, append_only) {
        ([], true) => "unbounded: every row of the result".to_owned(),
        ([], false) => "the result: each distinct row once".to_owned(),
        _ => format!("the result: one row per {}", key.join(", ")),
    }
}

/// A sentence to warn with, if the state is unbounded in a way that grows with the input.
pub(crate) fn warning(name: &str, state_bound: &str) -> Option<String> {
    let what = state_bound.strip_prefix("unbounded: ")?;
    Some(format!("the state of \"{name}\" grows without bound: it keeps {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_say_what_bounds_them() {
        let names = ["carrier".to_owned()];
        assert_eq!(aggregate(&names, None), "unbounded: one row per carrier");
        assert_eq!(aggregate(&names, Some("window_end")), "watermark of window_end");
        assert_eq!(aggregate(&[], None), "one row");
        assert_eq!(materialize(&names, false), "the result: one row per carrier");
        let warned = warning("aggregate by carrier", &aggregate(&names, None));
        assert_eq!(
            warned.as_deref(),
            Some("the state of \"aggregate by carrier\" grows without bound: it keeps one row per carrier")
        );
        assert_eq!(warning("x", STATELESS), None);
    }
}
