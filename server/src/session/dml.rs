//! INSERT, UPDATE, DELETE: rows made durable in a relation's log, acknowledged when they are and can be read.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{Array, Int8Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::row::{RowConverter, SortField};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast, lit};
use datafusion::scalar::ScalarValue;
use futures::TryStreamExt;
use sqlparser::ast::{self, VisitMut, VisitorMut};
use weir_planner::arrays;
use weir_planner::statement::{Delete, Insert, Query, Update};
use weir_planner::{ErrorKind, Relation, RelationKind, SqlError, SqlType};
use weir_runtime::message::Chunk;

use super::assign::{assign, has_rows};
use super::query::{parameter_types, plan, run};
use super::{Description, Outcome, Session};
use crate::error::{from_datafusion, from_runtime};
use crate::serving::statement_context;

impl Session {
    pub(super) async fn insert(&mut self, insert: &Insert, parameters: &[ScalarValue]) -> Result<Outcome, SqlError> {
        let relation = Arc::clone(self.engine.catalog().find(&insert.table)?);
        check_writable(&relation, "INSERT INTO")?;
        let targets = insert_targets(&relation, insert)?;
        let rows = self.insert_rows(&relation, insert, &targets, parameters).await?;
        check_not_null(&relation, &rows)?;
        let count = rows.num_rows();
        if count == 0 {
            return Ok(Outcome::command("INSERT 0 0"));
        }
        let notices = if relation.kind == RelationKind::Table {
            let _turn = self.engine.writer(&relation.name).lock_owned().await;
            self.check_unique(&relation, &rows).await?;
            self.engine.write(&relation, vec![Chunk::insert(rows)]).await?
        } else {
            self.engine.write(&relation, vec![Chunk::insert(rows)]).await?
        };
        Ok(Outcome::Command { tag: format!("INSERT 0 {count}"), notices })
    }

    /// The rows to insert, with all physical columns of the relation in order.
    async fn insert_rows(
        &self,
        relation: &Relation,
        insert: &Insert,
        targets: &[usize],
        parameters: &[ScalarValue],
    ) -> Result<RecordBatch, SqlError> {
        let (context, source) = match &insert.source {
            Some(source) => {
                let mut source = source.as_ref().clone();
                substitute(&mut source, parameters)?;
                let context = self.context(&source);
                let planned = plan(&context, &source).await?;
                (context, planned)
            }
            None => {
                let nothing = LogicalPlanBuilder::empty(true).build().map_err(from_datafusion)?;
                (statement_context(&self.engine), nothing)
            }
        };
        let given = source.schema().fields().len();
        if insert.source.is_some() && given != targets.len() {
            return Err(SqlError::new(
                ErrorKind::INVALID_DEFINITION,
                format!("INSERT has {given} values but {} columns are to be filled", targets.len()),
            )
            .hint(format!("name the columns: INSERT INTO {} (column, …) VALUES …", relation.name)));
        }
        let mut columns = Vec::new();
        for (i, column) in relation.columns.iter().enumerate().filter(|(_, c)| c.generated.is_none()) {
            let value = match targets.iter().position(|&t| t == i) {
                Some(position) => {
                    let (qualifier, field) = source.schema().qualified_field(position);
                    Expr::Column((qualifier, field).into())
                }
                None => match &column.default {
                    Some(default) => {
                        context.state().create_logical_expr(default, source.schema()).map_err(from_datafusion)?
                    }
                    None => lit(ScalarValue::Null),
                },
            };
            // Rows are assigned by position, which a cast does not do.
            let to = column.data_type();
            let value = if has_rows(&to) { value } else { cast(value, to) };
            columns.push(value.alias(&column.name));
        }
        let projected = LogicalPlanBuilder::from(source).project(columns).and_then(|b| b.build());
        let projected = projected.and_then(arrays::resolve);
        let projected = projected.map_err(from_datafusion)?;
        let given: SchemaRef = Arc::new(projected.schema().as_arrow().clone());
        cast_columns(&collect(&context, projected, &given).await?, &relation.physical_schema())
    }

    /// Refuses rows whose primary key stands already, in the table or twice in the statement.
    async fn check_unique(&self, relation: &Relation, rows: &RecordBatch) -> Result<(), SqlError> {
        let Some(view) = self.engine.view(&relation.name) else {
            return Err(self.engine.not_running(&relation.name));
        };
        let physical = physical_indices(relation);
        let key: Vec<usize> = relation.key.iter().filter_map(|k| physical.iter().position(|p| p == k)).collect();
        let columns: Vec<_> = key.iter().map(|&i| Arc::clone(rows.column(i))).collect();
        let converter = RowConverter::new(columns.iter().map(|c| SortField::new(c.data_type().clone())).collect())
            .map_err(|e| from_datafusion(e.into()))?;
        let encoded = converter.convert_columns(&columns).map_err(|e| from_datafusion(e.into()))?;
        let mut seen = HashSet::with_capacity(rows.num_rows());
        for i in 0..rows.num_rows() {
            if !seen.insert(encoded.row(i).data().to_vec()) {
                return Err(duplicate_key(relation, rows, &key, i, "is given twice"));
            }
        }
        let snapshot = self.engine.snapshot(&relation.name, &view).await?;
        let found = view.codec.lookup(&snapshot.parts, &columns).map_err(from_runtime)?;
        if found.num_rows() > 0 {
            let key: Vec<usize> = relation.key.clone();
            return Err(duplicate_key(relation, &found, &key, 0, "stands already"));
        }
        Ok(())
    }

    pub(super) async fn update(&mut self, update: &Update, parameters: &[ScalarValue]) -> Result<Outcome, SqlError> {
        let relation = Arc::clone(self.engine.catalog().find(&update.table)?);
        check_table(&relation, "UPDATE")?;
        let mut new_values: Vec<Option<String>> = vec![None; relation.columns.len()];
        for (name, value) in &update.assignments {
            let index = column_index(&relation, name)?;
            if relation.columns[index].generated.is_some() {
                return Err(generated_column(&relation, name));
            }
            let mut value = value.clone();
            substitute(&mut value, parameters)?;
            let text = match value {
                ast::Expr::Identifier(ref ident)
                    if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default") =>
                {
                    relation.columns[index].default.clone().unwrap_or_else(|| "NULL".to_owned())
                }
                value => value.to_string(),
            };
            new_values[index] = Some(text);
        }
        let _turn = self.engine.writer(&relation.name).lock_owned().await;
        let (old, new) = self.changed_rows(&relation, &new_values, update.selection.as_ref(), parameters).await?;
        let count = old.num_rows();
        if count == 0 {
            return Ok(Outcome::command("UPDATE 0"));
        }
        check_not_null(&relation, &new)?;
        let physical = physical_indices(&relation);
        let key_changes = relation.key.iter().any(|&k| new_values[k].is_some());
        let mut chunks = Vec::new();
        if key_changes {
            let key: Vec<usize> = relation.key.iter().filter_map(|k| physical.iter().position(|p| p == k)).collect();
            self.check_moved_keys(&relation, &old, &new, &key).await?;
            chunks.push(Chunk::new(old, Int8Array::from_value(-1, count)));
        }
        chunks.push(Chunk::insert(new));
        let notices = self.engine.write(&relation, chunks).await?;
        Ok(Outcome::Command { tag: format!("UPDATE {count}"), notices })
    }

    /// The rows that an UPDATE changes, before and after, physical columns.
    async fn changed_rows(
        &self,
        relation: &Relation,
        new_values: &[Option<String>],
        selection: Option<&ast::Expr>,
        parameters: &[ScalarValue],
    ) -> Result<(RecordBatch, RecordBatch), SqlError> {
        let physical = physical_indices(relation);
        let mut items: Vec<String> = Vec::new();
        for &i in &physical {
            items.push(format!("{} AS \"o{i}\"", quoted(&relation.columns[i].name)));
        }
        for &i in &physical {
            let column = &relation.columns[i];
            let value = match &new_values[i] {
                // An array's text is read as one.
                Some(value) if matches!(column.sql_type, SqlType::Array(_)) => {
                    format!("({value})::{}", column.pg_type())
                }
                Some(value) => format!("({value})"),
                None => quoted(&column.name),
            };
            items.push(format!("{value} AS \"n{i}\""));
        }
        let rows = self.select_rows(relation, &items, selection, parameters).await?;
        let schema = relation.physical_schema();
        let old = cast_columns(
            &rows.project(&(0..physical.len()).collect::<Vec<_>>()).map_err(|e| from_datafusion(e.into()))?,
            &schema,
        )?;
        let new = rows
            .project(&(physical.len()..2 * physical.len()).collect::<Vec<_>>())
            .map_err(|e| from_datafusion(e.into()))?;
        Ok((old, cast_columns(&new, &schema)?))
    }

    /// A key that an UPDATE moves to must be free, or be moved away by the same UPDATE.
    async fn check_moved_keys(
        &self,
        relation: &Relation,
        old: &RecordBatch,
        new: &RecordBatch,
        key: &[usize],
    ) -> Result<(), SqlError> {
        let columns = |rows: &RecordBatch| key.iter().map(|&i| Arc::clone(rows.column(i))).collect::<Vec<_>>();
        let (old_keys, new_keys) = (columns(old), columns(new));
        let converter = RowConverter::new(new_keys.iter().map(|c| SortField::new(c.data_type().clone())).collect())
            .map_err(|e| from_datafusion(e.into()))?;
        let encode = |c: &[arrow::array::ArrayRef]| converter.convert_columns(c).map_err(|e| from_datafusion(e.into()));
        let (old_rows, new_rows) = (encode(&old_keys)?, encode(&new_keys)?);
        let leaving: HashSet<Vec<u8>> = old_rows.iter().map(|r| r.data().to_vec()).collect();
        let mut seen = HashSet::new();
        for (i, row) in new_rows.iter().enumerate() {
            if !seen.insert(row.data().to_vec()) {
                return Err(duplicate_key(relation, new, key, i, "would be given twice"));
            }
        }
        let Some(view) = self.engine.view(&relation.name) else {
            return Err(self.engine.not_running(&relation.name));
        };
        let snapshot = self.engine.snapshot(&relation.name, &view).await?;
        let found = view.codec.lookup(&snapshot.parts, &new_keys).map_err(from_runtime)?;
        let found_keys: Vec<_> = relation.key.iter().map(|&k| Arc::clone(found.column(k))).collect();
        let found_rows = encode(&found_keys)?;
        for (i, row) in found_rows.iter().enumerate() {
            if !leaving.contains(row.data()) {
                return Err(duplicate_key(relation, &found, &relation.key, i, "stands already"));
            }
        }
        Ok(())
    }

    pub(super) async fn delete(&mut self, delete: &Delete, parameters: &[ScalarValue]) -> Result<Outcome, SqlError> {
        let relation = Arc::clone(self.engine.catalog().find(&delete.table)?);
        check_table(&relation, "DELETE FROM")?;
        let _turn = self.engine.writer(&relation.name).lock_owned().await;
        let items: Vec<String> =
            physical_indices(&relation).iter().map(|&i| quoted(&relation.columns[i].name)).collect();
        let rows = self.select_rows(&relation, &items, delete.selection.as_ref(), parameters).await?;
        let rows = cast_columns(&rows, &relation.physical_schema())?;
        let count = rows.num_rows();
        if count == 0 {
            return Ok(Outcome::command("DELETE 0"));
        }
        let chunk = Chunk::new(rows, Int8Array::from_value(-1, count));
        let notices = self.engine.write(&relation, vec![chunk]).await?;
        Ok(Outcome::Command { tag: format!("DELETE {count}"), notices })
    }

    async fn select_rows(
        &self,
        relation: &Relation,
        items: &[String],
        selection: Option<&ast::Expr>,
        parameters: &[ScalarValue],
    ) -> Result<RecordBatch, SqlError> {
        let mut query = select_query(relation, items, selection)?;
        substitute(&mut query, parameters)?;
        let context = self.context(&query);
        let plan = plan(&context, &query).await?;
        let schema: SchemaRef = Arc::new(plan.schema().as_arrow().clone());
        collect(&context, plan, &schema).await
    }

    /// What an INSERT's parameters are: in VALUES as the columns that they fill, in a SELECT as that tells.
    pub(super) async fn describe_insert(&self, insert: &Insert) -> Result<Description, SqlError> {
        let parameters = match &insert.source {
            Some(source) if matches!(source.body.as_ref(), ast::SetExpr::Values(_)) => {
                let relation = Arc::clone(self.engine.catalog().find(&insert.table)?);
                insert_parameter_types(&relation, insert, source)
            }
            Some(source) => parameter_types(&plan(&self.context(source.as_ref()), source).await?)?,
            None => Vec::new(),
        };
        Ok(Description { parameters, columns: None })
    }

    /// What an UPDATE's parameters are: those in the assignments as the columns, the others as the condition tells.
    pub(super) async fn describe_update(&self, update: &Update) -> Result<Description, SqlError> {
        let relation = Arc::clone(self.engine.catalog().find(&update.table)?);
        let mut types = self.condition_parameters(&relation, update.selection.as_ref()).await?;
        for (name, value) in &update.assignments {
            let ty = relation.columns[column_index(&relation, name)?].data_type();
            let alone = placeholder(value).is_some();
            for number in placeholders(value) {
                if types.len() < number {
                    types.resize(number, DataType::Null);
                }
                // Inside an expression a parameter need not have the column's type, but most often has.
                if alone || types[number - 1].is_null() {
                    types[number - 1] = ty.clone();
                }
            }
        }
        Ok(Description { parameters: types, columns: None })
    }

    pub(super) async fn describe_delete(&self, delete: &Delete) -> Result<Description, SqlError> {
        let relation = Arc::clone(self.engine.catalog().find(&delete.table)?);
        let parameters = self.condition_parameters(&relation, delete.selection.as_ref()).await?;
        Ok(Description { parameters, columns: None })
    }

    async fn condition_parameters(
        &self,
        relation: &Relation,
        selection: Option<&ast::Expr>,
    ) -> Result<Vec<DataType>, SqlError> {
        let Some(condition) = selection.filter(|condition| !placeholders(condition).is_empty()) else {
            return Ok(Vec::new());
        };
        let query = select_query(relation, &["1".to_owned()], Some(condition))?;
        parameter_types(&plan(&self.context(&query), &query).await?)
    }
}

fn select_query(relation: &Relation, items: &[String], selection: Option<&ast::Expr>) -> Result<ast::Query, SqlError> {
    let mut sql = format!("SELECT {} FROM {}", items.join(", "), quoted(&relation.name));
    if let Some(selection) = selection {
        sql.push_str(&format!(" WHERE {selection}"));
    }
    Ok(*Query::from_sql(&sql)?.ast)
}

async fn collect(
    context: &datafusion::prelude::SessionContext,
    plan: LogicalPlan,
    schema: &SchemaRef,
) -> Result<RecordBatch, SqlError> {
    let (_, rows) = run(context, plan).await?;
    let batches: Vec<RecordBatch> = rows.try_collect().await.map_err(from_datafusion)?;
    // The plan's own nullability may be stricter or looser than the relation's.
    let batches = batches
        .into_iter()
        .map(|batch| RecordBatch::try_new(relaxed(schema), batch.columns().to_vec()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| from_datafusion(e.into()))?;
    concat_batches(&relaxed(schema), &batches).map_err(|e| from_datafusion(e.into()))
}

/// The schema with every column nullable: NOT NULL is checked with a sentence of its own.
fn relaxed(schema: &SchemaRef) -> SchemaRef {
    let fields: Vec<_> = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
    Arc::new(arrow::datatypes::Schema::new(fields))
}

fn cast_columns(rows: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, SqlError> {
    let columns = rows
        .columns()
        .iter()
        .zip(schema.fields())
        .map(|(column, field)| assign(column, field.data_type()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| from_datafusion(e.into()))?;
    RecordBatch::try_new(relaxed(schema), columns).map_err(|e| from_datafusion(e.into()))
}

fn physical_indices(relation: &Relation) -> Vec<usize> {
    (0..relation.columns.len()).filter(|&i| relation.columns[i].generated.is_none()).collect()
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn check_writable(relation: &Relation, verb: &str) -> Result<(), SqlError> {
    let refuse = |why: String, hint: &str| Err(SqlError::new(ErrorKind::WRONG_KIND, why).hint(hint));
    match relation.kind {
        RelationKind::Table => Ok(()),
        RelationKind::Stream if relation.query.is_some() => refuse(
            format!("cannot {verb} stream \"{}\": its query writes it", relation.name),
            "insert into what its query reads",
        ),
        RelationKind::Stream if relation.connector_name().is_some_and(|c| c != "http") => refuse(
            format!("cannot {verb} stream \"{}\": its connector feeds it", relation.name),
            "a stream declared without a connector takes INSERT",
        ),
        RelationKind::Stream => Ok(()),
        kind => refuse(
            format!("cannot {verb} {} \"{}\"", kind.name(), relation.name),
            "INSERT goes into tables and into streams without a connector",
        ),
    }
}

fn check_table(relation: &Relation, verb: &str) -> Result<(), SqlError> {
    if relation.kind == RelationKind::Table {
        return Ok(());
    }
    Err(SqlError::new(ErrorKind::WRONG_KIND, format!("cannot {verb} {} \"{}\"", relation.kind.name(), relation.name))
        .hint("rows of a stream are facts and never change; UPDATE and DELETE go to tables"))
}

/// Indices of the columns that the statement fills, in its order.
fn insert_targets(relation: &Relation, insert: &Insert) -> Result<Vec<usize>, SqlError> {
    if insert.columns.is_empty() {
        return Ok(physical_indices(relation));
    }
    let mut targets = Vec::new();
    for name in &insert.columns {
        let index = column_index(relation, name)?;
        if relation.columns[index].generated.is_some() {
            return Err(generated_column(relation, name));
        }
        if targets.contains(&index) {
            return Err(SqlError::new(ErrorKind::DUPLICATE_COLUMN, format!("column \"{name}\" is named twice")));
        }
        targets.push(index);
    }
    Ok(targets)
}

fn column_index(relation: &Relation, name: &str) -> Result<usize, SqlError> {
    relation.column_index(name).ok_or_else(|| {
        let columns = relation.columns.iter().map(|c| c.name.as_str());
        let near = weir_planner::error::nearest(name, columns).map(|near| format!("did you mean \"{near}\"?"));
        SqlError::new(
            ErrorKind::UNDEFINED_COLUMN,
            format!("column \"{name}\" of relation \"{}\" does not exist", relation.name),
        )
        .maybe_hint(near)
    })
}

fn generated_column(relation: &Relation, name: &str) -> SqlError {
    SqlError::new(
        ErrorKind::INVALID_DEFINITION,
        format!("column \"{name}\" of \"{}\" is generated and cannot be given a value", relation.name),
    )
    .hint("leave it out; it is computed from the other columns")
}

fn check_not_null(relation: &Relation, rows: &RecordBatch) -> Result<(), SqlError> {
    for (position, &index) in physical_indices(relation).iter().enumerate() {
        let column = &relation.columns[index];
        let required = !column.nullable || relation.key.contains(&index);
        if required && rows.column(position).null_count() > 0 {
            return Err(SqlError::new(
                ErrorKind::NOT_NULL,
                format!("null value in column \"{}\" of \"{}\", which must not be null", column.name, relation.name),
            ));
        }
    }
    Ok(())
}

fn duplicate_key(relation: &Relation, rows: &RecordBatch, key: &[usize], row: usize, how: &str) -> SqlError {
    let value = key
        .iter()
        .map(|&i| arrow::util::display::array_value_to_string(rows.column(i), row).unwrap_or_else(|_| "?".to_owned()))
        .collect::<Vec<_>>()
        .join(", ");
    let names = relation.key.iter().map(|&k| relation.columns[k].name.as_str()).collect::<Vec<_>>().join(", ");
    SqlError::new(
        ErrorKind::UNIQUE_VIOLATION,
        format!("key ({names}) = ({value}) of table \"{}\" {how}", relation.name),
    )
    .hint("UPDATE the row that stands, or DELETE it first")
}

/// Types of the parameters of an INSERT: that of the column that each fills.
fn insert_parameter_types(relation: &Relation, insert: &Insert, source: &ast::Query) -> Vec<DataType> {
    let Ok(targets) = insert_targets(relation, insert) else { return Vec::new() };
    let mut types: Vec<DataType> = Vec::new();
    if let ast::SetExpr::Values(values) = source.body.as_ref() {
        for row in &values.rows {
            for (position, value) in row.iter().enumerate() {
                let Some(&target) = targets.get(position) else { continue };
                for number in placeholders(value) {
                    if types.len() < number {
                        types.resize(number, DataType::Null);
                    }
                    types[number - 1] = relation.columns[target].data_type();
                }
            }
        }
    }
    types
}

/// Numbers of the placeholders in an expression.
fn placeholders(expr: &ast::Expr) -> Vec<usize> {
    let mut numbers = Vec::new();
    let _ = ast::visit_expressions(expr, |expr| {
        numbers.extend(placeholder(expr));
        ControlFlow::<()>::Continue(())
    });
    numbers
}

/// `$n` with n from 1.
fn placeholder(expr: &ast::Expr) -> Option<usize> {
    match expr {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::Placeholder(name) => name.strip_prefix('$')?.parse().ok().filter(|n| *n > 0),
            _ => None,
        },
        _ => None,
    }
}

/// Puts the values for `$1`, `$2`, … into the statement's text tree, so that they are planned like literals.
fn substitute<T: VisitMut>(tree: &mut T, parameters: &[ScalarValue]) -> Result<(), SqlError> {
    struct Substitute<'a>(&'a [ScalarValue]);
    impl VisitorMut for Substitute<'_> {
        type Break = SqlError;

        fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<SqlError> {
            let Some(number) = placeholder(expr) else { return ControlFlow::Continue(()) };
            match self.0.get(number - 1) {
                Some(value) => {
                    *expr = literal(value);
                    ControlFlow::Continue(())
                }
                None => ControlFlow::Break(
                    SqlError::new(
                        ErrorKind::INVALID_VALUE,
                        format!("the statement uses ${number}, but {} values were given", self.0.len()),
                    )
                    .hint("bind a value to each of $1, $2, …"),
                ),
            }
        }
    }
    match tree.visit(&mut Substitute(parameters)) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

fn literal(value: &ScalarValue) -> ast::Expr {
    let plain = |value: ast::Value| ast::Expr::Value(value.into());
    if value.is_null() {
        return plain(ast::Value::Null);
    }
    match value {
        ScalarValue::Boolean(Some(value)) => plain(ast::Value::Boolean(*value)),
        number if number.data_type().is_integer() => plain(ast::Value::Number(number.to_string(), false)),
        // Text that the column's type reads: dates, timestamps, decimals and floats in full precision.
        ScalarValue::Binary(Some(bytes)) | ScalarValue::LargeBinary(Some(bytes)) => {
            plain(ast::Value::HexStringLiteral(bytes.iter().map(|b| format!("{b:02x}")).collect()))
        }
        ScalarValue::List(list) => array_literal(&list.value(0), value),
        other => {
            let text = other
                .to_array()
                .ok()
                .and_then(|array| arrow::util::display::array_value_to_string(&array, 0).ok())
                .unwrap_or_else(|| other.to_string());
            plain(ast::Value::SingleQuotedString(text))
        }
    }
}

/// `ARRAY[…]::type[]`. The cast tells what an empty array, or one of NULLs, is of.
fn array_literal(elements: &dyn Array, value: &ScalarValue) -> ast::Expr {
    let elem = (0..elements.len())
        .map(|i| {
            ScalarValue::try_from_array(elements, i).map_or(ast::Expr::Value(ast::Value::Null.into()), |v| literal(&v))
        })
        .collect();
    let array = ast::Expr::Array(ast::Array { elem, named: true });
    match SqlType::of(&value.data_type()).and_then(|ty| ty.to_ast().ok()) {
        Some(data_type) => ast::Expr::Cast {
            kind: ast::CastKind::DoubleColon,
            expr: Box::new(array),
            data_type,
            array: false,
            format: None,
        },
        None => array,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    #[test]
    fn parameters_become_literals() {
        let mut query =
            *Parser::new(&PostgreSqlDialect {}).try_with_sql("VALUES ($1, $2 + 1, $3)").unwrap().parse_query().unwrap();
        let values = [ScalarValue::from("o'Hare"), ScalarValue::from(4i64), ScalarValue::Date32(Some(15_706))];
        substitute(&mut query, &values).unwrap();
        assert_eq!(query.to_string(), "VALUES ('o''Hare', 4 + 1, '2013-01-01')");
        let mut query = *Parser::new(&PostgreSqlDialect {}).try_with_sql("VALUES ($4)").unwrap().parse_query().unwrap();
        let error = substitute(&mut query, &values).unwrap_err();
        assert!(error.message.contains("$4"), "{error}");
    }

    #[test]
    fn arrays_become_typed_literals() {
        let mut query =
            *Parser::new(&PostgreSqlDialect {}).try_with_sql("VALUES ($1, $2)").unwrap().parse_query().unwrap();
        let texts = [ScalarValue::from("a'b"), ScalarValue::Utf8(None)];
        let lists = [
            ScalarValue::List(ScalarValue::new_list_nullable(&texts, &DataType::Utf8)),
            ScalarValue::List(ScalarValue::new_list_nullable(&[], &DataType::Int64)),
        ];
        substitute(&mut query, &lists).unwrap();
        assert_eq!(query.to_string(), "VALUES (ARRAY['a''b', NULL]::TEXT[], ARRAY[]::BIGINT[])");
    }
}
