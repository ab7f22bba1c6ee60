//! Projections, and UNION ALL.

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, DFSchemaRef, TableReference};
use datafusion::logical_expr::{Expr, Union};
use weir_runtime::graph::OperatorSpec;

use super::names::{label, list, meanings};
use super::{Builder, Built, NewNode, Props, arrow_schema};
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
        let labels: Vec<String> = exprs.iter().map(label).collect();
        let node = self.add(NewNode {
            name: format!("project {}", list(&labels)),
            meaning: meanings(exprs),
            spec: OperatorSpec::Project { exprs: compiled },
            inputs: Self::forward(&input),
            schema: arrow_schema(schema),
            changelog: props.changelog,
            parallelism: props.parallelism,
            state_bound: bounds::STATELESS.to_owned(),
        });
        Ok(Built { node, schema: Arc::clone(schema), props })
    }

    /// Appends computed columns behind the input's; returns where each expression is found. `used`: only the columns
    /// that these expressions use, or that `exprs` pass on, are kept if anything has to be computed at all.
    pub(super) fn with_columns(
        &mut self,
        input: Built,
        exprs: &[Expr],
        used: Option<&[Expr]>,
    ) -> Result<(Built, Vec<usize>)> {
        let known: Vec<Option<usize>> =
            exprs.iter().map(|e| passed_column(e).and_then(|c| input.schema.maybe_index_of_column(c))).collect();
        if let Some(indices) = known.iter().copied().collect::<Option<Vec<usize>>>() {
            return Ok((input, indices));
        }
        let mut kept: Vec<usize> = (0..input.schema.fields().len()).collect();
        if let Some(used) = used {
            let columns = used.iter().flat_map(|e| e.column_refs());
            let used: Vec<usize> = columns.filter_map(|c| input.schema.maybe_index_of_column(c)).collect();
            kept.retain(|i| used.contains(i) || known.contains(&Some(*i)));
        }
        let (mut all, mut fields): (Vec<Expr>, Vec<(Option<TableReference>, _)>) = kept
            .iter()
            .map(|i| {
                let (qualifier, field) = input.schema.qualified_field(*i);
                let column = Expr::Column(Column::from((qualifier, field)));
                (column, (qualifier.cloned(), Arc::clone(field)))
            })
            .unzip();
        let mut indices = Vec::new();
        for (expr, known) in exprs.iter().zip(known) {
            if let Some(place) = known.and_then(|known| kept.iter().position(|k| *k == known)) {
                indices.push(place);
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
