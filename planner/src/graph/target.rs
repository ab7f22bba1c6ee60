//! The end of a graph: the result's columns as the catalog has them, then a view or a sink.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, LogicalPlan, cast};
use weir_runtime::graph::{Edge, MaterializeSpec, OperatorSpec, SinkSpec};

use super::{Builder, Built, NewNode, arrow_schema};
use crate::bounds;
use crate::catalog::Column;
use crate::error::{ErrorKind, Result, SqlError};
use crate::from_datafusion;
use crate::output::{UNNAMED, shown_name};
use crate::plan::Target;
use crate::refuse;
use crate::types::SqlType;

impl Builder<'_> {
    /// The plan's columns with names and types that Weir has, and no others.
    pub(crate) fn result(&mut self, input: Built, plan: &LogicalPlan) -> Result<(Built, Vec<Column>)> {
        let (mut columns, mut exprs, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (i, (column, field)) in plan.schema().columns().into_iter().zip(plan.schema().fields()).enumerate() {
            let name = result_name(field.name(), i);
            if !names.insert(name.clone()) {
                return Err(SqlError::new(
                    ErrorKind::DUPLICATE_COLUMN,
                    format!("column \"{name}\" is in the result twice"),
                )
                .hint(format!("name one of them differently: … AS {name}_2")));
            }
            let Some(sql_type) = SqlType::of_field(field) else {
                return Err(SqlError::unsupported(format!(
                    "column \"{name}\" has a type that Weir cannot keep: {}",
                    field.data_type()
                ))
                .hint("cast it to one of PostgreSQL's types"));
            };
            let index = input.schema.index_of_column(&column).map_err(from_datafusion)?;
            let given = input.schema.field(index);
            let expr = Expr::Column(column);
            let expr = if *given.data_type() == sql_type.data_type() { expr } else { cast(expr, sql_type.data_type()) };
            exprs.push(expr.alias(&name));
            columns.push(Column::new(name, sql_type, given.is_nullable()));
        }
        let fields: Vec<Field> = columns.iter().map(Column::field).collect();
        let schema = Arc::new(DFSchema::try_from(Schema::new(fields)).map_err(from_datafusion)?);
        let mut result = self.projection(input, &exprs, &schema)?;
        // The last node may have kept its names when the projection did nothing but rename; batches carry names.
        if let Some(node) = self.nodes.get_mut(result.node)
            && node.schema.as_ref() != schema.as_arrow()
        {
            if matches!(node.spec, OperatorSpec::Project { .. }) {
                node.schema = arrow_schema(&schema);
            } else {
                result = self.rename(result, &schema)?;
            }
        }
        Ok((result, columns))
    }

    fn rename(&mut self, input: Built, schema: &Arc<DFSchema>) -> Result<Built> {
        let exprs: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
        let compiled = exprs.iter().map(|e| self.compile(e, &input.schema)).collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
        let node = self.add(NewNode {
            name: format!("project {}", super::names::list(&names)),
            // Names do not count: the same rows under other names are the same operator.
            meaning: "names".to_owned(),
            spec: OperatorSpec::Project { exprs: compiled },
            inputs: Self::forward(&input),
            schema: arrow_schema(schema),
            changelog: input.props.changelog,
            parallelism: input.props.parallelism,
            state_bound: bounds::STATELESS.to_owned(),
        });
        Ok(Built { node, ..input })
    }

    /// Adds the target behind the result.
    pub(crate) fn target(&mut self, result: &Built, target: &Target) -> Result<()> {
        match target {
            Target::View { name, forward } => {
                let key = result.props.key.clone().unwrap_or_default();
                let view = self.materialize(result, name, key, false, *forward);
                if *forward {
                    self.sink(&view, name, true, Self::forward(&view));
                }
            }
            Target::Stream { name } => {
                if result.props.changelog {
                    return Err(refuse::retractions(
                        &format!("stream \"{name}\""),
                        "write CREATE MATERIALIZED VIEW, or EMIT ON WINDOW CLOSE so that each result is given out once",
                    ));
                }
                self.sink(result, name, true, Self::forward(result));
            }
            Target::Sink { name, retractions } => {
                if result.props.changelog && !retractions {
                    return Err(refuse::retractions(
                        &format!("the connector of sink \"{name}\""),
                        "write EMIT ON WINDOW CLOSE so that each result is given out once, or keep the result in a materialized view",
                    ));
                }
                let edges = self.ordered(result);
                self.sink(result, name, false, edges);
            }
            Target::Reader { name } => {
                let edges = self.ordered(result);
                self.sink(result, name, false, edges);
            }
        }
        Ok(())
    }

    /// The edge to a writer: changes of one row must arrive in order, so they go to one subtask.
    fn ordered(&self, result: &Built) -> Vec<Edge> {
        if !result.props.changelog {
            return Self::forward(result);
        }
        let all = || (0..result.schema.fields().len()).collect();
        let key = result.props.key.clone().unwrap_or_else(all);
        vec![self.keyed(result, &key, result.props.parallelism)]
    }

    pub(crate) fn materialize(
        &mut self,
        input: &Built,
        relation: &str,
        key: Vec<usize>,
        upsert: bool,
        forward: bool,
    ) -> Built {
        let names: Vec<String> =
            key.iter().filter_map(|i| input.schema.fields().get(*i)).map(|f| f.name().clone()).collect();
        let changelog = input.props.changelog || upsert;
        let name = format!("materialize {relation}");
        let state_bound = bounds::materialize(&names, !changelog);
        self.warnings.extend(bounds::warning(&name, &state_bound));
        let all: Vec<usize> = (0..input.schema.fields().len()).collect();
        let spread = if key.is_empty() && !input.props.single_row { &all } else { &key };
        let edge = self.keyed(input, spread, input.props.parallelism);
        let former = format!("{relation} {key:?} {upsert}");
        let node = NewNode {
            name,
            // Not the name: a query that starts from the savepoint of another has the same rows under its own.
            meaning: format!("{key:?} {upsert}"),
            spec: OperatorSpec::Materialize(MaterializeSpec { relation: relation.to_owned(), key, upsert, forward }),
            inputs: vec![edge],
            schema: arrow_schema(&input.schema),
            changelog,
            parallelism: input.props.parallelism,
            state_bound,
        };
        let node = self.add_formerly(node, &former);
        let mut built = Built { node, ..input.clone() };
        built.props.changelog = changelog;
        built
    }

    pub(crate) fn sink(&mut self, input: &Built, relation: &str, log: bool, inputs: Vec<Edge>) {
        let node = NewNode {
            name: if log { format!("log {relation}") } else { format!("sink {relation}") },
            meaning: format!("{log}"),
            spec: OperatorSpec::Sink(SinkSpec {
                relation: relation.to_owned(),
                schema: arrow_schema(&input.schema),
                changelog: input.props.changelog,
                log,
                event_time: log && input.props.event_time().is_some(),
            }),
            inputs,
            schema: arrow_schema(&input.schema),
            changelog: input.props.changelog,
            parallelism: input.props.parallelism,
            state_bound: bounds::STATELESS.to_owned(),
        };
        self.add_formerly(node, &format!("{relation} {log}"));
    }
}

/// The name of a column, for one that PostgreSQL leaves without a name `column2`: it can be written without quotes.
fn result_name(name: &str, index: usize) -> String {
    match shown_name(name) {
        UNNAMED => format!("column{}", index + 1),
        name => name.to_owned(),
    }
}
