//! GROUP BY and DISTINCT.

use std::sync::Arc;

use datafusion::common::DFSchemaRef;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Aggregate, Expr};
use datafusion::physical_expr::aggregate::LoweredAggregateBuilder;
use weir_runtime::graph::{AggregateCall, AggregateSpec, Emit, OperatorSpec};

use super::names::{list, meanings};
use super::project::passed_column;
use super::{Builder, Built, NewNode, Props, arrow_schema, sentence};
use crate::bounds;
use crate::error::Result;
use crate::from_datafusion;
use crate::refuse;
use crate::time::Times;

impl Builder<'_> {
    pub(super) fn aggregate(&mut self, aggregate: &Aggregate) -> Result<Built> {
        let input = self.build(&aggregate.input)?;
        let used: Vec<Expr> = aggregate.aggr_expr.iter().map(|e| e.clone().unalias_nested().data).collect();
        let (input, group) = self.with_columns(input, &aggregate.group_expr, Some(&used))?;
        let calls = aggregate.aggr_expr.iter().map(|e| self.call(e, &input.schema)).collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = aggregate.group_expr.iter().map(group_name).collect();
        let bounded = !input.props.changelog && input.props.time.watermark;
        let window_end = group.iter().position(|column| bounded && input.props.time.window_end.contains(column));
        if self.emit == Emit::OnWindowClose {
            self.check_window_close(&input, &names, window_end)?;
            self.closing += 1;
        }
        let changelog = self.emit == Emit::Changes;
        let parallelism = if group.is_empty() { 1 } else { self.parallelism.default };
        let texts: Vec<String> = aggregate.aggr_expr.iter().map(sentence).collect();
        let name = match (names.is_empty(), texts.is_empty()) {
            (true, _) => format!("aggregate {}", list(&texts)),
            (_, true) => format!("distinct {}", list(&names)),
            _ => format!("aggregate by {}: {}", list(&names), list(&texts)),
        };
        let end_name = window_end.and_then(|i| names.get(i)).map(String::as_str);
        let state_bound = bounds::aggregate(&names, end_name);
        self.warnings.extend(bounds::warning(&name, &state_bound));
        let edge = self.keyed(&input, &group, parallelism);
        let node = self.add(NewNode {
            name,
            meaning: format!(
                "{} : {} : {:?}",
                meanings(&aggregate.group_expr),
                meanings(&aggregate.aggr_expr),
                self.emit
            ),
            spec: OperatorSpec::Aggregate(AggregateSpec {
                group: group.clone(),
                calls,
                input_changelog: input.props.changelog,
                window_end,
                emit: self.emit,
            }),
            inputs: vec![edge],
            schema: arrow_schema(&aggregate.schema),
            changelog,
            parallelism,
            state_bound,
        });
        let columns: Vec<usize> = (0..group.len()).collect();
        // Results that are emitted when their window closes are on time for the watermark that closed it.
        let mut time = input.props.time.project(|column| group.iter().position(|g| *g == column));
        if changelog {
            time = Times { bounds: time.bounds, ..Times::default() };
        } else {
            time.event_time = window_end;
        }
        let props = Props {
            changelog,
            key: Some(columns.clone()),
            partition: Some(columns),
            parallelism,
            time,
            single_row: group.is_empty(),
        };
        Ok(Built { node, schema: Arc::clone(&aggregate.schema), props })
    }

    fn check_window_close(&self, input: &Built, names: &[String], window_end: Option<usize>) -> Result<()> {
        if window_end.is_some() {
            return Ok(());
        }
        let grouped = list(names);
        Err(refuse::no_window(&if input.props.changelog {
            "the rows that are aggregated are themselves taken back and changed".to_owned()
        } else if !input.props.time.watermark {
            "the rows carry no watermark".to_owned()
        } else if !input.props.time.windowed {
            "there is no window over the event-time column".to_owned()
        } else if names.is_empty() {
            "nothing is grouped by".to_owned()
        } else {
            format!("GROUP BY {grouped} does not name window_end")
        }))
    }

    fn call(&self, expr: &Expr, schema: &DFSchemaRef) -> Result<AggregateCall> {
        let (arrow, context) = (arrow_schema(schema), PhysicalPlanningContext::default());
        let lowered = LoweredAggregateBuilder::new(expr, schema, &arrow, self.context.props(), &context)
            .build()
            .map_err(from_datafusion)?;
        Ok(AggregateCall { function: lowered.aggregate, filter: lowered.filter })
    }
}

fn group_name(expr: &Expr) -> String {
    passed_column(expr).map_or_else(|| sentence(expr), |c| c.name.clone())
}
