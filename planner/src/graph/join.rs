//! Joins: equal keys become columns, the rest a filter.

use std::sync::Arc;

use datafusion::common::{DFSchema, NullEquality};
use datafusion::logical_expr::{Expr, ExprSchemable, Join, JoinType, build_join_schema, cast};
use weir_runtime::graph::{JoinKind, JoinSpec, OperatorSpec};

use super::{Builder, Built, NewNode, Props, arrow_schema};
use crate::bounds;
use crate::changelog::{join_key, join_kind, join_retracts};
use crate::error::Result;
use crate::from_datafusion;
use crate::refuse;
use crate::time::Times;

impl Builder<'_> {
    pub(super) fn join(&mut self, join: &Join) -> Result<Built> {
        // A semi or anti join of the right side is one of the left side, the other way round.
        let swapped = match join.join_type {
            JoinType::RightSemi => Some(JoinType::LeftSemi),
            JoinType::RightAnti => Some(JoinType::LeftAnti),
            _ => None,
        };
        let (left, right) = (self.build(&join.left)?, self.build(&join.right)?);
        let on = join.on.iter().cloned();
        match swapped {
            Some(join_type) => self.join_of(join, join_type, right, left, on.map(|(l, r)| (r, l)).collect()),
            None => self.join_of(join, join.join_type, left, right, on.collect()),
        }
    }

    fn join_of(
        &mut self,
        join: &Join,
        join_type: JoinType,
        left: Built,
        right: Built,
        on: Vec<(Expr, Expr)>,
    ) -> Result<Built> {
        let Some(kind) = join_kind(join_type) else { return Err(refuse::subquery_under_or()) };
        if on.is_empty() && !(left.props.single_row || right.props.single_row) {
            return Err(refuse::no_equal_keys());
        }
        if join.null_aware && self.may_be_null(&on, &left, &right)? {
            return Err(refuse::not_in());
        }
        let on_text: Vec<String> =
            on.iter().map(|(l, r)| format!("{} = {}", l.human_display(), r.human_display())).collect();
        let (left_keys, right_keys) = Self::common_types(on, &left, &right)?;
        let (left, left_keys) = self.with_columns(left, &left_keys, None)?;
        let (right, right_keys) = self.with_columns(right, &right_keys, None)?;
        let on: Vec<(usize, usize)> = left_keys.iter().copied().zip(right_keys.iter().copied()).collect();

        let schema = build_join_schema(&left.schema, &right.schema, &join_type).map_err(from_datafusion)?;
        let filter = match &join.filter {
            Some(filter) => {
                let both = left.schema.join(&right.schema).map_err(from_datafusion)?;
                Some(self.compile(filter, &both)?)
            }
            None => None,
        };
        let mut text = format!("join {} on {}", kind_name(kind), on_text.join(" AND "));
        if on_text.is_empty() {
            text = format!("join {} with one row", kind_name(kind));
        }
        if let Some(filter) = &join.filter {
            text.push_str(&format!(" if {}", filter.human_display()));
        }
        let parallelism = if on.is_empty() { 1 } else { self.parallelism.default };
        let changelog = join_retracts(kind, left.props.changelog, right.props.changelog);
        let state_bound = bounds::join();
        self.warnings.extend(bounds::warning(&text, &state_bound));
        let width = left.schema.fields().len();
        let inputs = vec![self.keyed(&left, &left_keys, parallelism), self.keyed(&right, &right_keys, parallelism)];
        let node = self.add(NewNode {
            meaning: text.clone(),
            name: text,
            spec: OperatorSpec::Join(JoinSpec {
                kind,
                on: on.clone(),
                filter,
                null_equals_null: join.null_equality == NullEquality::NullEqualsNull,
            }),
            inputs,
            schema: arrow_schema(&schema),
            changelog,
            parallelism,
            state_bound,
        });
        let partition = match kind {
            JoinKind::Inner | JoinKind::Left | JoinKind::LeftSemi | JoinKind::LeftAnti => Some(left_keys),
            JoinKind::Right => Some(right_keys.iter().map(|k| k + width).collect()),
            // A padded row stands with its own side's key.
            JoinKind::Full => None,
        };
        let props = Props {
            changelog,
            key: join_key(kind, &left.props.key, &right.props.key, &on, width),
            partition,
            parallelism,
            // The rows of a join may be as old as its state.
            time: Times::default(),
            single_row: left.props.single_row && right.props.single_row && kind == JoinKind::Inner,
        };
        Ok(Built { node, schema: Arc::new(schema), props })
    }

    /// Key expressions of the same type on both sides.
    fn common_types(on: Vec<(Expr, Expr)>, left: &Built, right: &Built) -> Result<(Vec<Expr>, Vec<Expr>)> {
        let mut keys = (Vec::new(), Vec::new());
        for (l, r) in on {
            let wanted = l.get_type(&left.schema).map_err(from_datafusion)?;
            let given = r.get_type(&right.schema).map_err(from_datafusion)?;
            keys.1.push(if given == wanted { r } else { cast(r, wanted) });
            keys.0.push(l);
        }
        Ok(keys)
    }

    fn may_be_null(&self, on: &[(Expr, Expr)], left: &Built, right: &Built) -> Result<bool> {
        let nullable = |e: &Expr, schema: &DFSchema| e.nullable(schema).map_err(from_datafusion);
        for (l, r) in on {
            if nullable(l, &left.schema)? || nullable(r, &right.schema)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn kind_name(kind: JoinKind) -> &'static str {
    match kind {
        JoinKind::Inner => "inner",
        JoinKind::Left => "left",
        JoinKind::Right => "right",
        JoinKind::Full => "full",
        JoinKind::LeftSemi => "semi",
        JoinKind::LeftAnti => "anti",
    }
}
