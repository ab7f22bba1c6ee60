//! Projections, and UNION ALL.

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, DFSchemaRef, TableReference};
use datafusion::logical_expr::{Expr, Union};
use weir_runtime::graph::OperatorSpec;

use super::names::list;
use super::{Builder, Built, NewNode, Props, arrow_schema, sentence};
use crate::bounds;
use crate::error::Result;
use crate::from_datafusion;

/// The column that an expression passes on unchanged.
pub(crate) fn passed_column(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(column) => Some(column),
        Expr::Alias(alias) => passed_column(&alias.expr),
        _ => None,
    }
}

impl Builder<'_> {
    pub(super) fn projection(&mut self, input: Built, exprs: &[Expr], schema: &DFSchemaRef) -> Result<Built> {
        let passed: Vec<Option<usize>> =
            exprs.iter().map(|e| passed_column(e).and_then(|c| input.schema.maybe_index_of_column(c))).collect();
        // Only names change: no operator is needed.
        let same = passed.len() == input.schema.fields().len() && passed.iter().enumerate().all(|(i, p)| *p == Some(i));
        if same {
            return Ok(Built { schema: Arc::clone(schema), ..input });
        }
        let compiled = exprs.iter().map(|e| self.compile(e, &input.schema)).collect::<Result<Vec<_>>>()?;
        let places = |i: usize| passed.iter().position(|p| *p == Some(i));
        let props = input.props.project(places);
        let texts: Vec<String> = exprs.iter().map(sentence).collect();
        let node = self.add(NewNode {
            name: format!("project {}", list(&texts)),
            meaning: texts.join(", "),
            spec: OperatorSpec::Project { exprs: compiled },
            inputs: Self::forward(&input),
            schema: arrow_schema(schema),
            changelog: props.changelog,
            parallelism: props.parallelism,
            state_bound: bounds::STATELESS.to_owned(),
        });
        Ok(Built { node, schema: Arc::clone(schema), props })
    }

    /// Appends computed columns behind all of the input's; returns where each expression is found.
    pub(super) fn with_columns(&mut self, input: Built, exprs: &[Expr]) -> Result<(Built, Vec<usize>)> {
        let width = input.schema.fields().len();
        let mut all: Vec<Expr> = input.schema.columns().into_iter().map(Expr::Column).collect();
        let mut fields: Vec<(Option<TableReference>, _)> =
            input.schema.iter().map(|(q, f)| (q.cloned(), Arc::clone(f))).collect();
        let mut indices = Vec::new();
        for expr in exprs {
            let known = passed_column(expr).and_then(|c| input.schema.maybe_index_of_column(c));
            if let Some(index) = known {
                indices.push(index);
                continue;
            }
            let (_, field) =
                datafusion::logical_expr::ExprSchemable::to_field(expr, &input.schema).map_err(from_datafusion)?;
            self.extra += 1;
            let name = format!("__key_{}", self.extra);
            indices.push(all.len());
            all.push(expr.clone().alias(&name));
            fields.push((None, Arc::new(field.as_ref().clone().with_name(name))));
        }
        if all.len() == width {
            return Ok((input, indices));
        }
        let schema = DFSchema::new_with_metadata(fields, Default::default()).map_err(from_datafusion)?;
        Ok((self.projection(input, &all, &Arc::new(schema))?, indices))
    }

    pub(super) fn union(&mut self, union: &Union) -> Result<Built> {
        let mut inputs = Vec::new();
        for plan in &union.inputs {
            let input = self.build(plan)?;
            // The columns of the plan and no others, in its order.
            let exprs: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::Column).collect();
            inputs.push(self.projection(input, &exprs, plan.schema())?);
        }
        let parallelism = inputs.iter().map(|i| i.props.parallelism).max().unwrap_or(1);
        let mut times = inputs.first().map(|i| i.props.time.clone()).unwrap_or_default();
        for input in &inputs {
            times = times.union(&input.props.time);
        }
        let changelog = inputs.iter().any(|i| i.props.changelog);
        let node = self.add(NewNode {
            name: "union all".to_owned(),
            meaning: String::new(),
            spec: OperatorSpec::Union,
            inputs: inputs.iter().map(|input| Self::unkeyed(input, parallelism)).collect(),
            schema: arrow_schema(&union.schema),
            changelog,
            parallelism,
            state_bound: bounds::STATELESS.to_owned(),
        });
        let props = Props { changelog, parallelism, time: times, ..Props::default() };
        Ok(Built { node, schema: Arc::clone(&union.schema), props })
    }
}
