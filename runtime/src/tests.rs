//! Jobs from end to end.
