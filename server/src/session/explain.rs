//! EXPLAIN: the dataflow that a statement would run as, or the batch plan of a SELECT; with ANALYZE, its numbers.

use datafusion::physical_plan::displayable;
use futures::TryStreamExt;
use weir_planner::statement::{CreateQuery, Query};
use weir_planner::{Parsed, RelationKind, SqlError, Statement};
use weir_runtime::graph::Emit;

use super::query::plan;
use super::show::{batch, strings};
use super::{Outcome, Session};
use crate::error::from_datafusion;
use crate::serving::compute;

impl Session {
    pub(super) async fn explain(&mut self, analyze: bool, parsed: &Parsed) -> Result<Outcome, SqlError> {
        let lines = match &parsed.statement {
            Statement::CreateMaterializedView(create) => self.explain_create(create, RelationKind::View, analyze)?,
            Statement::CreateSink(create) => self.explain_create(create, RelationKind::Sink, analyze)?,
            Statement::CreateStreamAs(create) => self.explain_create(create, RelationKind::Stream, analyze)?,
            Statement::Query(query) if query.emit == Some(Emit::Changes) => {
                let planned = self.engine.plan_reader(&query.sql, &self.options)?;
                explained(&planned)
            }
            Statement::Query(query) => self.explain_select(query, analyze).await?,
            other => {
                return Err(SqlError::unsupported(format!("EXPLAIN {} has no plan to show", other.tag()))
                    .hint("EXPLAIN takes SELECT, CREATE MATERIALIZED VIEW, CREATE STREAM … AS and CREATE SINK"));
            }
        };
        let table = batch(vec![("QUERY PLAN", strings(lines.into_iter()))])?;
        Ok(Outcome::table("EXPLAIN", table))
    }

    fn explain_create(&self, create: &CreateQuery, kind: RelationKind, analyze: bool) -> Result<Vec<String>, SqlError> {
        if analyze {
            return self.explain_running(&create.name);
        }
        let target = self.target(create, kind)?;
        let (options, _) = self.options.split(&create.options)?;
        let parallelism = self.engine.parallelism(&options)?;
        let planned = self.engine.planner().plan_create(&self.engine.catalog(), create, &target, parallelism)?;
        Ok(explained(&planned))
    }

    /// The dataflow of a running query with its counters.
    fn explain_running(&self, name: &str) -> Result<Vec<String>, SqlError> {
        let operators = self.engine.operators(name).ok_or_else(|| self.engine.not_running(name))?;
        Ok(operators
            .iter()
            .enumerate()
            .flat_map(|(i, operator)| {
                let inputs: Vec<String> =
                    operator.inputs.iter().map(|input| format!("{} of #{}", input.exchange, input.from)).collect();
                let head = format!(
                    "#{i} {} ← {}",
                    operator.name,
                    if inputs.is_empty() { "outside".into() } else { inputs.join(", ") }
                );
                let subtasks = operator.subtasks.iter().map(|s| {
                    format!(
                        "     subtask {}: rows in {}, out {}, late {}, bad {}; busy {} ms, idle {} ms, blocked {} ms",
                        s.subtask,
                        s.rows_in,
                        s.rows_out,
                        s.late_rows,
                        s.bad_rows,
                        s.busy_ns / 1_000_000,
                        s.idle_ns / 1_000_000,
                        s.blocked_ns / 1_000_000,
                    )
                });
                std::iter::once(head).chain(subtasks).collect::<Vec<_>>()
            })
            .collect())
    }

    async fn explain_select(&self, query: &Query, analyze: bool) -> Result<Vec<String>, SqlError> {
        let context = self.context(&query.ast);
        let logical = plan(&context, &query.ast).await?;
        let physical = context.state().create_physical_plan(&logical).await.map_err(from_datafusion)?;
        let text = if analyze {
            let rows = compute(physical.clone(), context.task_ctx()).map_err(from_datafusion)?;
            rows.try_for_each(|_| async { Ok(()) }).await.map_err(from_datafusion)?;
            datafusion::physical_plan::display::DisplayableExecutionPlan::with_metrics(physical.as_ref())
                .indent(false)
                .to_string()
        } else {
            displayable(physical.as_ref()).indent(false).to_string()
        };
        Ok(text.lines().map(str::to_owned).collect())
    }
}

fn explained(planned: &weir_planner::Planned) -> Vec<String> {
    let plan = weir_planner::explain(&planned.graph);
    plan.lines().map(str::to_owned).chain(planned.warnings.iter().map(|w| format!("warning: {w}"))).collect()
}
