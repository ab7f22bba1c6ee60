//! Functions about the server and its catalogs.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use weir_planner::options::{Parameters, SERVER_VERSION};
use weir_planner::types::quote_ident;
use weir_planner::{ErrorKind, Relation, RelationKind, SqlError};

use super::Snapshot;
use super::names::{INFORMATION_SCHEMA, PG_CATALOG, PUBLIC, index_name};
use super::tables::SYSTEM_RELATIONS;

/// Functions that make a query without a relation one about the server.
pub(super) const NAMES: &[&str] = &[
    "version",
    "current_schema",
    "current_schemas",
    "current_database",
    "current_catalog",
    "current_user",
    "current_role",
    "session_user",
    "current_setting",
    "set_config",
    "pg_backend_pid",
    "pg_is_in_recovery",
    "pg_postmaster_start_time",
    "pg_my_temp_schema",
    "pg_is_other_temp_schema",
    "txid_current",
    "obj_description",
    "col_description",
    "shobj_description",
    "format_type",
    "to_regclass",
    "to_regtype",
    "pg_get_viewdef",
    "pg_get_indexdef",
    "pg_get_constraintdef",
    "pg_get_expr",
    "pg_get_userbyid",
    "pg_get_serial_sequence",
    "pg_table_is_visible",
    "pg_type_is_visible",
    "pg_function_is_visible",
    "pg_encoding_to_char",
    "pg_char_to_encoding",
    "getdatabaseencoding",
    "has_table_privilege",
    "has_schema_privilege",
    "has_database_privilege",
    "has_any_column_privilege",
    "has_column_privilege",
    "has_function_privilege",
    "has_sequence_privilege",
    "pg_has_role",
    "pg_relation_size",
    "pg_total_relation_size",
    "pg_table_size",
    "pg_indexes_size",
    "pg_database_size",
    "pg_size_pretty",
    "pg_get_keywords",
    "pg_conf_load_time",
    "inet_server_addr",
    "inet_server_port",
    "pg_advisory_lock",
    "pg_advisory_unlock",
    "pg_advisory_unlock_all",
    "pg_try_advisory_lock",
    "pg_tablespace_location",
];

type Run = dyn Fn(&[ArrayRef], usize) -> Result<ArrayRef> + Send + Sync;

/// A function of any arguments.
struct CatalogFunction {
    name: &'static str,
    returns: DataType,
    signature: Signature,
    run: Box<Run>,
}

impl fmt::Debug for CatalogFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for CatalogFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for CatalogFunction {}

impl Hash for CatalogFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for CatalogFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = arguments.number_rows;
        let arrays = arguments.args.iter().map(|value| value.to_array(rows)).collect::<Result<Vec<_>>>()?;
        Ok(ColumnarValue::Array((self.run)(&arrays, rows)?))
    }
}

/// The functions over one snapshot.
pub(super) struct CatalogFunctions {
    snapshot: Arc<Snapshot>,
    functions: Vec<ScalarUDF>,
}

impl CatalogFunctions {
    pub(super) fn new(snapshot: &Arc<Snapshot>) -> Self {
        let mut functions = Self { snapshot: Arc::clone(snapshot), functions: Vec::new() };
        functions.about_the_server();
        functions.about_relations();
        functions.always_the_same();
        functions
    }

    pub(super) fn all(self) -> Vec<ScalarUDF> {
        self.functions
    }

    fn add(
        &mut self,
        name: &'static str,
        returns: DataType,
        run: impl Fn(&[ArrayRef], usize) -> Result<ArrayRef> + Send + Sync + 'static,
    ) {
        let any = Signature::one_of(vec![TypeSignature::Nullary, TypeSignature::VariadicAny], Volatility::Stable);
        let function = CatalogFunction { name, returns, signature: any, run: Box::new(run) };
        self.functions.push(ScalarUDF::new_from_impl(function));
    }

    /// A function of a text.
    fn text(&mut self, name: &'static str, value: String) {
        self.add(name, DataType::Utf8, move |_, rows| {
            Ok(Arc::new(StringArray::from_iter_values(std::iter::repeat_n(&value, rows))))
        });
    }

    /// A text about an object, by its number.
    fn describing(
        &mut self,
        name: &'static str,
        describe: impl Fn(&Snapshot, i32) -> Option<String> + Send + Sync + 'static,
    ) {
        let snapshot = Arc::clone(&self.snapshot);
        self.add(name, DataType::Utf8, move |arguments, rows| {
            let Some(first) = arguments.first() else { return Ok(nulls(rows)) };
            let oids = numbers(first)?;
            Ok(Arc::new(oids.iter().map(|oid| describe(&snapshot, oid?)).collect::<StringArray>()))
        });
    }

    fn about_the_server(&mut self) {
        let user = self.snapshot.user.clone();
        let version = format!("PostgreSQL {} on {}-{}", SERVER_VERSION, std::env::consts::ARCH, std::env::consts::OS);
        self.text("version", version);
        self.text("current_schema", "public".to_owned());
        self.text("current_database", crate::pg::DATABASE.to_owned());
        for name in ["session_user", "current_user", "current_role"] {
            self.text(name, user.clone());
        }
        self.text("getdatabaseencoding", "UTF8".to_owned());
        self.add("current_setting", DataType::Utf8, |arguments, rows| {
            let Some(first) = arguments.first() else { return Ok(nulls(rows)) };
            let names = cast(first, &DataType::Utf8)?;
            Ok(Arc::new(names.as_string::<i32>().iter().map(|name| setting(name?)).collect::<StringArray>()))
        });
        // Settings of the session are set with SET; clients call this for search_path and read back what they gave.
        self.add("set_config", DataType::Utf8, |arguments, rows| match arguments.get(1) {
            Some(value) => Ok(cast(value, &DataType::Utf8)?),
            None => Ok(nulls(rows)),
        });
        self.add("pg_backend_pid", DataType::Int32, |_, rows| {
            Ok(Arc::new(Int32Array::from(vec![std::process::id().cast_signed(); rows])))
        });
        self.add("pg_encoding_to_char", DataType::Utf8, |arguments, rows| {
            let Some(first) = arguments.first() else { return Ok(nulls(rows)) };
            let name = |code: i32| if code == 6 { "UTF8" } else { "" };
            Ok(Arc::new(numbers(first)?.iter().map(|code| code.map(name)).collect::<StringArray>()))
        });
    }

    fn about_relations(&mut self) {
        self.describing("pg_get_viewdef", |snapshot, oid| {
            snapshot.relation(oid).and_then(|r| r.query.clone()).map(|query| format!(" {query};"))
        });
        self.describing("pg_get_constraintdef", |snapshot, oid| {
            let table = keyed(snapshot, oid)?;
            Some(format!("PRIMARY KEY ({})", key_columns(table).join(", ")))
        });
        self.describing("pg_get_userbyid", |_, _| Some(crate::pg::DATABASE.to_owned()));
        self.describing("weir_regclass_name", |snapshot, oid| {
            let system = SYSTEM_RELATIONS.iter().find(|(_, number)| *number == oid).map(|(name, _)| (*name).to_owned());
            let relation = snapshot.relation(oid).map(|r| quote_ident(&r.name));
            let index = keyed(snapshot, oid).map(|r| quote_ident(&index_name(&r.name)));
            Some(relation.or(index).or(system).unwrap_or_else(|| oid.to_string()))
        });
        self.describing("weir_namespace_name", |_, oid| {
            Some(match oid {
                PG_CATALOG => "pg_catalog".to_owned(),
                PUBLIC => "public".to_owned(),
                INFORMATION_SCHEMA => "information_schema".to_owned(),
                other => other.to_string(),
            })
        });
        self.index_definition();
        self.column_default();
        self.name_lookup("to_regclass", false);
        self.name_lookup("weir_regclass", true);
        self.add("to_regtype", DataType::Int32, |arguments, rows| {
            let Some(first) = arguments.first() else { return Ok(Arc::new(Int32Array::new_null(rows))) };
            let names = cast(first, &DataType::Utf8)?;
            Ok(Arc::new(names.as_string::<i32>().iter().map(|name| type_oid(name?)).collect::<Int32Array>()))
        });
        // What a default or a generation expression is stored as is its text.
        self.add("pg_get_expr", DataType::Utf8, |arguments, rows| match arguments.first() {
            Some(text) => Ok(cast(text, &DataType::Utf8)?),
            None => Ok(nulls(rows)),
        });
    }

    /// `pg_get_indexdef(index [, column, pretty])`.
    fn index_definition(&mut self) {
        let snapshot = Arc::clone(&self.snapshot);
        self.add("pg_get_indexdef", DataType::Utf8, move |arguments, rows| {
            let Some(first) = arguments.first() else { return Ok(nulls(rows)) };
            let columns = arguments.get(1).map(numbers).transpose()?;
            let define = |(row, oid): (usize, Option<i32>)| {
                let table = keyed(&snapshot, oid?)?;
                let columns_of_key = key_columns(table);
                match columns.as_ref().map_or(0, |c| c.value(row)) {
                    0 => Some(format!(
                        "CREATE UNIQUE INDEX {} ON public.{} USING btree ({})",
                        quote_ident(&index_name(&table.name)),
                        quote_ident(&table.name),
                        columns_of_key.join(", ")
                    )),
                    column => columns_of_key.get(usize::try_from(column - 1).ok()?).cloned(),
                }
            };
            Ok(Arc::new(numbers(first)?.iter().enumerate().map(define).collect::<StringArray>()))
        });
    }

    /// The default or generation expression of a column, by relation and column number.
    fn column_default(&mut self) {
        let snapshot = Arc::clone(&self.snapshot);
        self.add("weir_column_default", DataType::Utf8, move |arguments, rows| {
            let [relations, columns] = arguments else { return Ok(nulls(rows)) };
            let (relations, columns) = (numbers(relations)?, numbers(columns)?);
            let expression = |(oid, number): (Option<i32>, Option<i32>)| {
                let relation = snapshot.relation(oid?)?;
                let column = relation.columns.get(usize::try_from(number? - 1).ok()?)?;
                column.generated.clone().or_else(|| column.default.clone())
            };
            Ok(Arc::new(relations.iter().zip(columns.iter()).map(expression).collect::<StringArray>()))
        });
    }

    /// The number of the relation that a name means.
    fn name_lookup(&mut self, name: &'static str, must_exist: bool) {
        let snapshot = Arc::clone(&self.snapshot);
        self.add(name, DataType::Int32, move |arguments, rows| {
            let Some(first) = arguments.first() else { return Ok(Arc::new(Int32Array::new_null(rows))) };
            let names = cast(first, &DataType::Utf8)?;
            let found = names
                .as_string::<i32>()
                .iter()
                .map(|name| {
                    let Some(name) = name else { return Ok(None) };
                    match relation_oid(&snapshot, name) {
                        None if must_exist => {
                            let error = SqlError::new(
                                ErrorKind::UNDEFINED_RELATION,
                                format!("relation \"{name}\" does not exist"),
                            );
                            Err(DataFusionError::External(Box::new(error)))
                        }
                        found => Ok(found),
                    }
                })
                .collect::<Result<Int32Array>>()?;
            Ok(Arc::new(found))
        });
    }

    fn always_the_same(&mut self) {
        for (name, value) in [
            ("pg_is_in_recovery", false),
            ("pg_is_other_temp_schema", false),
            ("pg_table_is_visible", true),
            ("pg_type_is_visible", true),
            ("pg_function_is_visible", true),
            ("pg_operator_is_visible", true),
            ("pg_collation_is_visible", true),
            ("pg_opclass_is_visible", true),
            ("pg_relation_is_publishable", false),
            ("has_table_privilege", true),
            ("has_schema_privilege", true),
            ("has_database_privilege", true),
            ("has_any_column_privilege", true),
            ("has_column_privilege", true),
            ("has_function_privilege", true),
            ("has_sequence_privilege", true),
            ("pg_has_role", true),
            ("pg_advisory_unlock", true),
            ("pg_try_advisory_lock", true),
        ] {
            self.add(name, DataType::Boolean, move |_, rows| Ok(Arc::new(BooleanArray::from(vec![value; rows]))));
        }
        for name in [
            "obj_description",
            "col_description",
            "shobj_description",
            "pg_get_serial_sequence",
            "pg_get_triggerdef",
            "pg_get_ruledef",
            "pg_get_functiondef",
            "pg_get_function_result",
            "pg_get_function_arguments",
            "pg_get_function_identity_arguments",
            "pg_get_function_sqlbody",
            "pg_get_partkeydef",
            "pg_get_statisticsobjdef_columns",
            "pg_tablespace_location",
            "inet_server_addr",
            "pg_advisory_lock",
            "pg_advisory_unlock_all",
        ] {
            self.add(name, DataType::Utf8, |_, rows| Ok(nulls(rows)));
        }
        for name in [
            "pg_relation_size",
            "pg_total_relation_size",
            "pg_table_size",
            "pg_indexes_size",
            "pg_database_size",
            "pg_stat_get_numscans",
            "txid_current",
        ] {
            self.add(name, DataType::Int64, |_, rows| Ok(Arc::new(Int64Array::from(vec![0; rows]))));
        }
        self.text("pg_size_pretty", "0 bytes".to_owned());
        for name in ["pg_my_temp_schema", "inet_server_port"] {
            self.add(name, DataType::Int32, |_, rows| Ok(Arc::new(Int32Array::from(vec![0; rows]))));
        }
        self.add("pg_char_to_encoding", DataType::Int32, |_, rows| Ok(Arc::new(Int32Array::from(vec![6; rows]))));
    }
}

fn nulls(rows: usize) -> ArrayRef {
    Arc::new(StringArray::new_null(rows))
}

/// Object numbers, however they were given: psql writes them as strings.
fn numbers(array: &ArrayRef) -> Result<Int32Array> {
    // An oid above 2^31 does not occur, but as 64 bits the cast from any integer or text is checked.
    let wide = cast(array, &DataType::Int64)?;
    Ok(cast(&wide, &DataType::Int32)?.as_primitive::<Int32Type>().clone())
}

/// A table with a primary key whose index has this number.
fn keyed(snapshot: &Snapshot, oid: i32) -> Option<&Arc<Relation>> {
    snapshot
        .relations
        .iter()
        .find(|r| r.kind == RelationKind::Table && !r.key.is_empty() && snapshot.oids.index(&r.name) == oid)
}

fn key_columns(relation: &Relation) -> Vec<String> {
    relation.key.iter().filter_map(|index| relation.columns.get(*index)).map(|c| quote_ident(&c.name)).collect()
}

/// `name`, `public.name`, `"Name"`, `pg_catalog.pg_class` or a number.
fn relation_oid(snapshot: &Snapshot, text: &str) -> Option<i32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let parts: Vec<String> = split_identifier(text);
    let (schema, name) = match parts.as_slice() {
        [name] => (None, name.as_str()),
        [schema, name] => (Some(schema.as_str()), name.as_str()),
        _ => return None,
    };
    let user = match schema {
        None | Some("public") => [snapshot.oids.relation(name), 0].into_iter().find(|oid| *oid != 0),
        _ => None,
    };
    let index = || match schema {
        None | Some("public") => {
            snapshot.relations.iter().find(|r| index_name(&r.name) == name).map(|r| snapshot.oids.index(&r.name))
        }
        _ => None,
    };
    let system = || match schema {
        None | Some("pg_catalog") => SYSTEM_RELATIONS.iter().find(|(n, _)| *n == name).map(|(_, oid)| *oid),
        _ => None,
    };
    user.or_else(index).or_else(system)
}

fn split_identifier(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = text.trim().chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                part.push('"');
            }
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(std::mem::take(&mut part)),
            c if quoted => part.push(c),
            c => part.extend(c.to_lowercase()),
        }
    }
    parts.push(part);
    parts
}

/// The number of a type by name.
fn type_oid(name: &str) -> Option<i32> {
    let name = name.trim().trim_start_matches("pg_catalog.");
    let sql_type = weir_planner::SqlType::parse(name).ok()?;
    let column = weir_planner::Column::new("c", sql_type, true);
    Some(crate::pg::types::pg_type(&column.field()).oid().cast_signed())
}

/// What `current_setting` and `pg_settings` say where PostgreSQL has a parameter.
fn setting(name: &str) -> Option<String> {
    Parameters::find(name).map(|parameter| parameter.default.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_read_as_in_sql() {
        assert_eq!(split_identifier("Public.Flights"), ["public", "flights"]);
        assert_eq!(split_identifier(r#""A.b"."c""d""#), ["A.b", "c\"d"]);
    }

    #[test]
    fn types_have_postgres_numbers() {
        assert_eq!(type_oid("int4"), Some(23));
        assert_eq!(type_oid("timestamp with time zone"), Some(1184));
        assert_eq!(type_oid("nonsense"), None);
    }
}
