//! Batch queries that let others have their turn.
//!
//! DataFusion's leaves give way to other tasks now and then, and so what is above them does. An operator that makes
//! many batches of one does not come to its leaf for as long: a cross join would hold its thread until it ends, and
//! with as many of them as threads nobody could even ask for it to be cancelled.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;

/// Operators that can make any number of batches of one.
const MULTIPLIERS: &[&str] = &[
    "CrossJoinExec",
    "NestedLoopJoinExec",
    "HashJoinExec",
    "SortMergeJoinExec",
    "PiecewiseMergeJoinExec",
    "UnnestExec",
];

/// Makes what multiplies its input give way to other tasks, as DataFusion's own rule does for leaves.
#[derive(Debug)]
pub(super) struct YieldAfterMultipliers;

impl PhysicalOptimizerRule for YieldAfterMultipliers {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let yielding = plan.transform_up(|plan| {
            Ok(if MULTIPLIERS.contains(&plan.name()) {
                Transformed::yes(Arc::new(CooperativeExec::new(plan)) as Arc<dyn ExecutionPlan>)
            } else {
                Transformed::no(plan)
            })
        })?;
        Ok(yielding.data)
    }

    fn name(&self) -> &str {
        "YieldAfterMultipliers"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};
    use futures::StreamExt;

    use super::*;

    /// One thread, which the query would keep to its end: what waits beside it comes first all the same.
    #[tokio::test(flavor = "current_thread")]
    async fn a_cross_join_gives_way() {
        let state = SessionStateBuilder::new()
            .with_config(SessionConfig::new().with_target_partitions(1))
            .with_default_features()
            .with_physical_optimizer_rule(Arc::new(YieldAfterMultipliers))
            .build();
        let context = SessionContext::new_with_state(state);
        let long = "SELECT sum(a.value * b.value) FROM generate_series(1, 3000) a, generate_series(1, 3000) b";
        let mut rows = context.sql(long).await.unwrap().execute_stream().await.unwrap();
        let beside = tokio::spawn(async { 7 });
        tokio::select! {
            row = rows.next() => panic!("{row:?}"),
            seven = beside => assert_eq!(seven.unwrap(), 7),
        }
    }
}
