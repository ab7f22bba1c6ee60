//! `information_schema`, as far as clients read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::catalog::MemTable;
use weir_planner::{Column, Relation, RelationKind, SqlType};

use super::Snapshot;
use super::names::index_name;
use super::table::Table;
use super::tables::primary_keys;
use crate::pg::DATABASE;
use crate::pg::types::pg_type;

/// All its tables.
pub(super) fn build(snapshot: &Snapshot) -> BTreeMap<&'static str, Arc<MemTable>> {
    let tables = [
        ("tables", tables(snapshot)),
        ("columns", columns(snapshot)),
        ("schemata", schemata()),
        ("views", views(snapshot)),
        ("table_constraints", constraints(snapshot)),
        ("key_column_usage", key_columns(snapshot)),
        ("referential_constraints", Table::new(0).null_text("constraint_schema").null_text("constraint_name")),
        ("constraint_column_usage", Table::new(0).null_text("table_name").null_text("constraint_name")),
        ("sequences", Table::new(0).null_text("sequence_schema").null_text("sequence_name")),
        ("routines", Table::new(0).null_text("routine_schema").null_text("routine_name").null_text("routine_type")),
        ("triggers", Table::new(0).null_text("trigger_schema").null_text("trigger_name")),
    ];
    // A table that cannot be made is one that clients do not find; the columns above always fit together.
    tables.into_iter().filter_map(|(name, table)| Some((name, table.finish().ok()?))).collect()
}

fn tables(snapshot: &Snapshot) -> Table {
    let rows = &snapshot.relations;
    let kind = |relation: &Relation| match relation.kind {
        RelationKind::Table => "BASE TABLE",
        // PostgreSQL leaves materialized views out; the tools that read this table would then not see what Weir is
        // for.
        RelationKind::View => "VIEW",
        RelationKind::Stream | RelationKind::Sink => "FOREIGN",
    };
    let insertable = |relation: &Relation| matches!(relation.kind, RelationKind::Table | RelationKind::Stream);
    Table::new(rows.len())
        .same_text("table_catalog", DATABASE)
        .same_text("table_schema", "public")
        .text("table_name", rows.iter().map(|r| r.name.clone()))
        .text("table_type", rows.iter().map(|r| kind(r)))
        .null_text("self_referencing_column_name")
        .null_text("reference_generation")
        .null_text("user_defined_type_catalog")
        .null_text("user_defined_type_schema")
        .null_text("user_defined_type_name")
        .text("is_insertable_into", rows.iter().map(|r| yes(insertable(r))))
        .same_text("is_typed", "NO")
        .null_text("commit_action")
}

fn columns(snapshot: &Snapshot) -> Table {
    let mut rows: Vec<(&Relation, usize, &Column)> = Vec::new();
    for relation in &snapshot.relations {
        rows.extend(relation.columns.iter().enumerate().map(|(i, column)| (relation.as_ref(), i + 1, column)));
    }
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    Table::new(rows.len())
        .same_text("table_catalog", DATABASE)
        .same_text("table_schema", "public")
        .text("table_name", rows.iter().map(|r| r.0.name.clone()))
        .text("column_name", rows.iter().map(|r| r.2.name.clone()))
        .int4("ordinal_position", rows.iter().map(|r| number(r.1)))
        .optional_text("column_default", rows.iter().map(|r| r.2.default.clone()))
        .text("is_nullable", rows.iter().map(|r| yes(r.2.nullable)))
        .text("data_type", rows.iter().map(|r| data_type(&r.2.sql_type)))
        .optional_int4(
            "character_maximum_length",
            rows.iter().map(|r| match r.2.sql_type {
                SqlType::Varchar(Some(n)) | SqlType::Char(n) => i32::try_from(n).ok(),
                _ => None,
            }),
        )
        .optional_int4("character_octet_length", rows.iter().map(|_| None))
        .optional_int4("numeric_precision", rows.iter().map(|r| precision(r.2).map(|p| p.0)))
        .optional_int4("numeric_precision_radix", rows.iter().map(|r| precision(r.2).map(|p| p.1)))
        .optional_int4("numeric_scale", rows.iter().map(|r| precision(r.2).and_then(|p| p.2)))
        .optional_int4(
            "datetime_precision",
            rows.iter().map(|r| match r.2.sql_type {
                SqlType::Date => Some(0),
                SqlType::Time | SqlType::Timestamp | SqlType::TimestampTz | SqlType::Interval => Some(6),
                _ => None,
            }),
        )
        .null_text("interval_type")
        .same_text("udt_catalog", DATABASE)
        .same_text("udt_schema", "pg_catalog")
        .text("udt_name", rows.iter().map(|r| pg_type(&r.2.field()).name().to_owned()))
        .same_text("is_identity", "NO")
        .null_text("identity_generation")
        .text("is_generated", rows.iter().map(|r| if r.2.generated.is_some() { "ALWAYS" } else { "NEVER" }))
        .optional_text("generation_expression", rows.iter().map(|r| r.2.generated.clone()))
        .text("is_updatable", rows.iter().map(|r| yes(r.0.kind == RelationKind::Table)))
}

/// The type without lengths; arrays by their kind, as the standard has it.
fn data_type(ty: &SqlType) -> String {
    match ty {
        SqlType::Array(_) => "ARRAY".to_owned(),
        SqlType::Struct(_) => "USER-DEFINED".to_owned(),
        other => other.to_string().split('(').next().unwrap_or_default().to_owned(),
    }
}

/// Precision, its radix, and scale.
fn precision(column: &Column) -> Option<(i32, i32, Option<i32>)> {
    match column.data_type() {
        DataType::Int16 => Some((16, 2, Some(0))),
        DataType::Int32 => Some((32, 2, Some(0))),
        DataType::Int64 => Some((64, 2, Some(0))),
        DataType::Float32 => Some((24, 2, None)),
        DataType::Float64 => Some((53, 2, None)),
        DataType::Decimal128(precision, scale) => Some((precision.into(), 10, Some(scale.into()))),
        _ => None,
    }
}

fn schemata() -> Table {
    Table::new(3)
        .same_text("catalog_name", DATABASE)
        .text("schema_name", ["information_schema", "pg_catalog", "public"])
        .same_text("schema_owner", DATABASE)
        .null_text("default_character_set_catalog")
        .null_text("default_character_set_schema")
        .null_text("default_character_set_name")
        .null_text("sql_path")
}

fn views(snapshot: &Snapshot) -> Table {
    let rows: Vec<&Arc<Relation>> = snapshot.relations.iter().filter(|r| r.kind == RelationKind::View).collect();
    Table::new(rows.len())
        .same_text("table_catalog", DATABASE)
        .same_text("table_schema", "public")
        .text("table_name", rows.iter().map(|r| r.name.clone()))
        .optional_text("view_definition", rows.iter().map(|r| r.query.clone()))
        .same_text("check_option", "NONE")
        .same_text("is_updatable", "NO")
        .same_text("is_insertable_into", "NO")
}

fn constraints(snapshot: &Snapshot) -> Table {
    let rows: Vec<_> = primary_keys(snapshot).collect();
    Table::new(rows.len())
        .same_text("constraint_catalog", DATABASE)
        .same_text("constraint_schema", "public")
        .text("constraint_name", rows.iter().map(|r| index_name(&r.table.name)))
        .same_text("table_catalog", DATABASE)
        .same_text("table_schema", "public")
        .text("table_name", rows.iter().map(|r| r.table.name.clone()))
        .same_text("constraint_type", "PRIMARY KEY")
        .same_text("is_deferrable", "NO")
        .same_text("initially_deferred", "NO")
        .same_text("enforced", "YES")
}

fn key_columns(snapshot: &Snapshot) -> Table {
    let mut rows: Vec<(&Relation, usize, &Column)> = Vec::new();
    for key in primary_keys(snapshot) {
        let columns = key.table.key.iter().filter_map(|index| key.table.columns.get(*index));
        rows.extend(columns.enumerate().map(|(i, column)| (key.table, i + 1, column)));
    }
    Table::new(rows.len())
        .same_text("constraint_catalog", DATABASE)
        .same_text("constraint_schema", "public")
        .text("constraint_name", rows.iter().map(|r| index_name(&r.0.name)))
        .same_text("table_catalog", DATABASE)
        .same_text("table_schema", "public")
        .text("table_name", rows.iter().map(|r| r.0.name.clone()))
        .text("column_name", rows.iter().map(|r| r.2.name.clone()))
        .int4("ordinal_position", rows.iter().map(|r| i32::try_from(r.1).unwrap_or(i32::MAX)))
        .optional_int4("position_in_unique_constraint", rows.iter().map(|_| None))
}

fn yes(value: bool) -> &'static str {
    if value { "YES" } else { "NO" }
}
