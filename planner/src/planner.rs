//! The planner: definitions to relations, queries to graphs.

use datafusion::common::TableReference;
use weir_runtime::graph::{Emit, Graph};

use crate::catalog::{Catalog, Relation, RelationKind};
use crate::context::Context;
use crate::define;
use crate::error::{ErrorKind, Result, SqlError};
use crate::graph::Builder;
use crate::options::Options;
use crate::plan::{Parallelism, Planned, Target};
use crate::refuse;
use crate::statement::{CreateQuery, CreateRelation, Query};

/// Plans statements. Holds the functions; the catalog comes with each call.
#[derive(Debug)]
pub struct Planner {
    context: Context,
}

impl Default for Planner {
    fn default() -> Self {
        Self::new()
    }
}

impl Planner {
    /// A planner with all of DataFusion's functions.
    pub fn new() -> Self {
        Self { context: Context::new() }
    }

    /// `CREATE STREAM` and `CREATE TABLE` with columns: the relation, its expressions checked. `sql` is the statement.
    pub fn define(
        &self,
        kind: RelationKind,
        create: &CreateRelation,
        options: &Options,
        sql: &str,
    ) -> Result<Relation> {
        define::define(&self.context, kind, create, options, sql)
    }

    /// A continuous query.
    pub fn plan_query(
        &self,
        catalog: &Catalog,
        query: &Query,
        target: &Target,
        parallelism: Parallelism,
    ) -> Result<Planned> {
        let emit = query.emit.unwrap_or(Emit::Changes);
        refuse::repeated_names(&query.ast)?;
        let analysed = self.context.plan(catalog, &query.ast)?;
        refuse::check(&analysed)?;
        let plan = self.context.optimize(analysed)?;
        let mut builder = Builder::new(&self.context, parallelism, emit);
        let built = builder.build(&plan)?;
        if emit == Emit::OnWindowClose && !builder.closes_windows() {
            return Err(refuse::no_window("the query has no GROUP BY"));
        }
        let (result, columns) = builder.result(built, &plan)?;
        builder.target(&result, target)?;
        let (warnings, reads) = (std::mem::take(&mut builder.warnings), std::mem::take(&mut builder.reads));
        Ok(Planned {
            graph: builder.finish(),
            columns,
            key: result.props.key.clone().unwrap_or_default(),
            append_only: !result.props.changelog,
            warnings,
            reads: reads.into_iter().collect(),
            watermark: None,
            event_time: result.props.event_time(),
        })
    }

    /// A continuous query from its text, with its EMIT clause: what [`Relation::query`] holds.
    pub fn plan_sql(&self, catalog: &Catalog, sql: &str, target: &Target, parallelism: Parallelism) -> Result<Planned> {
        self.plan_query(catalog, &Query::from_sql(sql)?, target, parallelism)
    }

    /// The query of a `CREATE … AS`, with the watermark that it may declare for its result. Positions of errors count
    /// from the start of the text that the statement was parsed from.
    pub fn plan_create(
        &self,
        catalog: &Catalog,
        create: &CreateQuery,
        target: &Target,
        parallelism: Parallelism,
    ) -> Result<Planned> {
        let mut planned = self.plan_query(catalog, &create.query, target, parallelism)?;
        if let Some(clause) = &create.watermark {
            let (_, mut with) = Options::new().split(&create.options)?;
            let idle = with.remove("idle_timeout").map(|text| crate::options::parse_duration(&text)).transpose()?;
            let relation = Relation {
                name: create.name.clone(),
                kind: RelationKind::Stream,
                columns: planned.columns.clone(),
                key: Vec::new(),
                watermark: None,
                event_time: None,
                connector: Default::default(),
                query: None,
                reads: Vec::new(),
                append_only: true,
                options: Default::default(),
                definition_sql: String::new(),
            };
            planned.watermark = Some(define::watermark(&self.context, &relation, clause, idle)?);
        }
        Ok(planned)
    }

    /// The upkeep of a table: its log of upserts and deletes, materialised by primary key. `forward`: its changes also
    /// go to the log that other queries read.
    pub fn plan_table(&self, relation: &Relation, forward: bool, parallelism: Parallelism) -> Result<Graph> {
        if relation.kind != RelationKind::Table {
            let message = format!("\"{}\" is a {}, not a table", relation.name, relation.kind.name());
            return Err(SqlError::new(ErrorKind::WRONG_KIND, message));
        }
        let mut builder = Builder::new(&self.context, parallelism, Emit::Changes);
        let wanted = (0..relation.columns.len()).collect();
        let rows = builder.read(relation, &TableReference::bare(relation.name.as_str()), wanted, true)?;
        let table = builder.materialize(&rows, &relation.name, relation.key.clone(), true, forward);
        if forward {
            builder.sink(&table, &relation.name, true, Builder::forward(&table));
        }
        Ok(builder.finish())
    }
}
