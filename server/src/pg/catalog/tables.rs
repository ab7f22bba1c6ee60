//! The tables of `pg_catalog` that depend on what relations there are.

use std::sync::Arc;

use datafusion::catalog::MemTable;
use datafusion::error::Result;
use weir_planner::types::quote_ident;
use weir_planner::{Column, Relation, RelationKind, SqlType};

use super::Snapshot;
use super::names::{DATABASE_OID, HEAP, INFORMATION_SCHEMA, OWNER, PG_CATALOG, PUBLIC, SERVER, index_name, relkind};
use super::table::Table;
use crate::pg::DATABASE;
use crate::pg::types::{pg_type, type_modifier, type_size};

/// PostgreSQL's own relations that clients name in casts to `regclass`.
pub(super) const SYSTEM_RELATIONS: &[(&str, i32)] = &[
    ("pg_class", 1259),
    ("pg_type", 1247),
    ("pg_attribute", 1249),
    ("pg_proc", 1255),
    ("pg_database", 1262),
    ("pg_authid", 1260),
    ("pg_namespace", 2615),
    ("pg_constraint", 2606),
    ("pg_index", 2610),
    ("pg_attrdef", 2604),
    ("pg_description", 2609),
    ("pg_extension", 3079),
    ("pg_trigger", 2620),
    ("pg_language", 2612),
    ("pg_tablespace", 1213),
    ("pg_statistic_ext", 3381),
    ("pg_publication", 6104),
    ("pg_foreign_server", 1417),
    ("pg_foreign_data_wrapper", 2328),
];

/// The table of that name, if it depends on relations.
pub(super) fn build(snapshot: &Snapshot, name: &str) -> Result<Option<Arc<MemTable>>> {
    let table = match name {
        "pg_class" => class(snapshot),
        "pg_attribute" => attribute(snapshot),
        "pg_attrdef" => attrdef(snapshot),
        "pg_index" => index(snapshot),
        "pg_constraint" => constraint(snapshot),
        "pg_namespace" => namespace(),
        "pg_database" => database(),
        "pg_roles" | "pg_authid" => roles(),
        "pg_user" => user(),
        "pg_foreign_table" => foreign_table(snapshot),
        "pg_foreign_server" => foreign_server(),
        "pg_foreign_data_wrapper" => foreign_data_wrapper(),
        "pg_tables" => pg_tables(snapshot),
        "pg_matviews" => matviews(snapshot),
        "pg_indexes" => indexes(snapshot),
        "pg_cursors" => cursors(),
        "pg_prepared_statements" => prepared_statements(),
        "pg_stat_activity" => activity(snapshot),
        "pg_sequences" => Table::new(0).null_text("schemaname").null_text("sequencename").null_text("sequenceowner"),
        "pg_locks" => Table::new(0).null_text("locktype").oid("relation", []).int4("pid", []).null_text("mode"),
        "pg_available_extensions" => Table::new(0)
            .null_text("name")
            .null_text("default_version")
            .null_text("installed_version")
            .null_text("comment"),
        "pg_timezone_names" => Table::new(1)
            .same_text("name", "UTC")
            .same_text("abbrev", "UTC")
            .same_text("utc_offset", "00:00:00")
            .same_bool("is_dst", false),
        "pg_stat_database" => Table::new(1).same_oid("datid", DATABASE_OID).same_text("datname", DATABASE),
        _ => return Ok(None),
    };
    table.finish().map(Some)
}

/// The primary key of a table, as an index and a constraint.
pub(super) struct PrimaryKey<'a> {
    pub(super) oid: i32,
    pub(super) table_oid: i32,
    pub(super) table: &'a Relation,
}

/// All primary keys. A view's key is inferred, not declared, and no constraint.
pub(super) fn primary_keys(snapshot: &Snapshot) -> impl Iterator<Item = PrimaryKey<'_>> {
    snapshot.relations.iter().filter(|r| has_key(r)).map(|table| PrimaryKey {
        oid: snapshot.oids.index(&table.name),
        table_oid: snapshot.oids.relation(&table.name),
        table,
    })
}

/// A row of `pg_class`.
struct Class<'a> {
    oid: i32,
    name: String,
    kind: &'static str,
    columns: usize,
    relation: Option<&'a Relation>,
    namespace: i32,
}

fn classes(snapshot: &Snapshot) -> Vec<Class<'_>> {
    let mut classes: Vec<Class<'_>> = snapshot
        .relations
        .iter()
        .map(|relation| Class {
            oid: snapshot.oids.relation(&relation.name),
            name: relation.name.clone(),
            kind: relkind(relation.kind),
            columns: relation.columns.len(),
            relation: Some(relation),
            namespace: PUBLIC,
        })
        .collect();
    classes.extend(primary_keys(snapshot).map(|key| Class {
        oid: key.oid,
        name: index_name(&key.table.name),
        kind: "i",
        columns: key.table.key.len(),
        relation: None,
        namespace: PUBLIC,
    }));
    classes.extend(SYSTEM_RELATIONS.iter().map(|(name, oid)| Class {
        oid: *oid,
        name: (*name).to_owned(),
        kind: "r",
        columns: 0,
        relation: None,
        namespace: PG_CATALOG,
    }));
    classes
}

fn has_key(relation: &Relation) -> bool {
    relation.kind == RelationKind::Table && !relation.key.is_empty()
}

fn class(snapshot: &Snapshot) -> Table {
    let rows = classes(snapshot);
    Table::new(rows.len())
        .oid("oid", rows.iter().map(|r| r.oid))
        .text("relname", rows.iter().map(|r| r.name.clone()))
        .oid("relnamespace", rows.iter().map(|r| r.namespace))
        .same_oid("reltype", 0)
        .same_oid("reloftype", 0)
        .same_oid("relowner", OWNER)
        .oid(
            "relam",
            rows.iter().map(|r| match r.kind {
                "i" => 403,
                "f" => 0,
                _ => HEAP,
            }),
        )
        .oid("relfilenode", rows.iter().map(|r| r.oid))
        .same_oid("reltablespace", 0)
        .same_int4("relpages", 0)
        .same_float4("reltuples", -1.0)
        .same_int4("relallvisible", 0)
        .same_oid("reltoastrelid", 0)
        .bool("relhasindex", rows.iter().map(|r| r.relation.is_some_and(has_key)))
        .same_bool("relisshared", false)
        .same_text("relpersistence", "p")
        .text("relkind", rows.iter().map(|r| r.kind))
        .int2("relnatts", rows.iter().map(|r| i16::try_from(r.columns).unwrap_or(i16::MAX)))
        .same_int2("relchecks", 0)
        .same_bool("relhasrules", false)
        .same_bool("relhastriggers", false)
        .same_bool("relhassubclass", false)
        .same_bool("relrowsecurity", false)
        .same_bool("relforcerowsecurity", false)
        .same_bool("relispopulated", true)
        .text("relreplident", rows.iter().map(|r| if r.relation.is_some_and(has_key) { "d" } else { "n" }))
        .same_bool("relispartition", false)
        .same_oid("relrewrite", 0)
        .same_int4("relfrozenxid", 0)
        .same_int4("relminmxid", 0)
        .null_texts("relacl")
        .null_texts("reloptions")
        .null_text("relpartbound")
}

/// PostgreSQL's length modifier of a column: what `format_type` shows in parentheses.
fn column_modifier(column: &Column) -> i32 {
    match &column.sql_type {
        SqlType::Varchar(Some(length)) | SqlType::Char(length) => i32::try_from(*length).map_or(-1, |n| n + 4),
        _ => type_modifier(&column.data_type()),
    }
}

/// The type number of a column; lengths live in the modifier.
pub(super) fn column_type(column: &Column) -> i32 {
    let ty = match &column.sql_type {
        SqlType::Varchar(_) => pgwire::api::Type::VARCHAR,
        SqlType::Char(_) => pgwire::api::Type::BPCHAR,
        _ => pg_type(&column.field()),
    };
    ty.oid().cast_signed()
}

fn attribute(snapshot: &Snapshot) -> Table {
    let mut rows: Vec<(i32, usize, &Column)> = Vec::new();
    for relation in &snapshot.relations {
        let oid = snapshot.oids.relation(&relation.name);
        rows.extend(relation.columns.iter().enumerate().map(|(index, column)| (oid, index + 1, column)));
    }
    for key in primary_keys(snapshot) {
        let columns = key.table.key.iter().filter_map(|index| key.table.columns.get(*index));
        rows.extend(columns.enumerate().map(|(index, column)| (key.oid, index + 1, column)));
    }
    Table::new(rows.len())
        .oid("attrelid", rows.iter().map(|r| r.0))
        .text("attname", rows.iter().map(|r| r.2.name.clone()))
        .oid("atttypid", rows.iter().map(|r| column_type(r.2)))
        .same_int4("attstattarget", -1)
        .int2("attlen", rows.iter().map(|r| type_size(&pg_type(&r.2.field()))))
        .int2("attnum", rows.iter().map(|r| i16::try_from(r.1).unwrap_or(i16::MAX)))
        .int4("attndims", rows.iter().map(|r| i32::from(matches!(r.2.sql_type, SqlType::Array(_)))))
        .same_int4("attcacheoff", -1)
        .int4("atttypmod", rows.iter().map(|r| column_modifier(r.2)))
        .bool("attbyval", rows.iter().map(|r| type_size(&pg_type(&r.2.field())) > 0))
        .same_text("attalign", "i")
        .text("attstorage", rows.iter().map(|r| if type_size(&pg_type(&r.2.field())) > 0 { "p" } else { "x" }))
        .same_text("attcompression", "")
        .bool("attnotnull", rows.iter().map(|r| !r.2.nullable))
        .bool("atthasdef", rows.iter().map(|r| r.2.default.is_some() || r.2.generated.is_some()))
        .same_bool("atthasmissing", false)
        .same_text("attidentity", "")
        .text("attgenerated", rows.iter().map(|r| if r.2.generated.is_some() { "s" } else { "" }))
        .same_bool("attisdropped", false)
        .same_bool("attislocal", true)
        .same_int4("attinhcount", 0)
        .same_oid("attcollation", 0)
        .null_texts("attacl")
        .null_texts("attoptions")
        .null_texts("attfdwoptions")
        .null_text("attmissingval")
}

fn attrdef(snapshot: &Snapshot) -> Table {
    let mut rows: Vec<(i32, i16, String)> = Vec::new();
    for relation in &snapshot.relations {
        let oid = snapshot.oids.relation(&relation.name);
        for (index, column) in relation.columns.iter().enumerate() {
            if let Some(text) = column.generated.as_ref().or(column.default.as_ref()) {
                rows.push((oid, i16::try_from(index + 1).unwrap_or(i16::MAX), text.clone()));
            }
        }
    }
    Table::new(rows.len())
        .oid("oid", rows.iter().map(|r| r.0))
        .oid("adrelid", rows.iter().map(|r| r.0))
        .int2("adnum", rows.iter().map(|r| r.1))
        .text("adbin", rows.iter().map(|r| r.2.clone()))
}

fn key_numbers(table: &Relation) -> Vec<i16> {
    table.key.iter().map(|index| i16::try_from(index + 1).unwrap_or(i16::MAX)).collect()
}

fn index(snapshot: &Snapshot) -> Table {
    let rows: Vec<_> = primary_keys(snapshot).collect();
    let count = |table: &Relation| i16::try_from(table.key.len()).unwrap_or(i16::MAX);
    Table::new(rows.len())
        .oid("indexrelid", rows.iter().map(|r| r.oid))
        .oid("indrelid", rows.iter().map(|r| r.table_oid))
        .int2("indnatts", rows.iter().map(|r| count(r.table)))
        .int2("indnkeyatts", rows.iter().map(|r| count(r.table)))
        .same_bool("indisunique", true)
        .same_bool("indnullsnotdistinct", false)
        .same_bool("indisprimary", true)
        .same_bool("indisexclusion", false)
        .same_bool("indimmediate", true)
        .same_bool("indisclustered", false)
        .same_bool("indisvalid", true)
        .same_bool("indcheckxmin", false)
        .same_bool("indisready", true)
        .same_bool("indislive", true)
        .same_bool("indisreplident", false)
        .int2s("indkey", rows.iter().map(|r| Some(key_numbers(r.table))))
        .int2s("indoption", rows.iter().map(|r| Some(vec![0; r.table.key.len()])))
        .int2s("indclass", rows.iter().map(|r| Some(vec![0; r.table.key.len()])))
        .int2s("indcollation", rows.iter().map(|r| Some(vec![0; r.table.key.len()])))
        .null_text("indexprs")
        .null_text("indpred")
}

fn constraint(snapshot: &Snapshot) -> Table {
    let rows: Vec<_> = primary_keys(snapshot).collect();
    Table::new(rows.len())
        .oid("oid", rows.iter().map(|r| r.oid))
        .text("conname", rows.iter().map(|r| index_name(&r.table.name)))
        .same_oid("connamespace", PUBLIC)
        .same_text("contype", "p")
        .same_bool("condeferrable", false)
        .same_bool("condeferred", false)
        .same_bool("convalidated", true)
        .oid("conrelid", rows.iter().map(|r| r.table_oid))
        .same_oid("contypid", 0)
        .oid("conindid", rows.iter().map(|r| r.oid))
        .same_oid("conparentid", 0)
        .same_oid("confrelid", 0)
        .same_text("confupdtype", " ")
        .same_text("confdeltype", " ")
        .same_text("confmatchtype", " ")
        .same_bool("conislocal", true)
        .same_int4("coninhcount", 0)
        .same_bool("connoinherit", true)
        .int2s("conkey", rows.iter().map(|r| Some(key_numbers(r.table))))
        .int2s("confkey", rows.iter().map(|_| None))
        .null_text("conbin")
}

fn namespace() -> Table {
    Table::new(3)
        .oid("oid", [PG_CATALOG, PUBLIC, INFORMATION_SCHEMA])
        .text("nspname", ["pg_catalog", "public", "information_schema"])
        .same_oid("nspowner", OWNER)
        .null_texts("nspacl")
}

fn database() -> Table {
    Table::new(1)
        .same_oid("oid", DATABASE_OID)
        .same_text("datname", DATABASE)
        .same_oid("datdba", OWNER)
        .same_int4("encoding", 6)
        .same_text("datlocprovider", "c")
        .same_bool("datistemplate", false)
        .same_bool("datallowconn", true)
        .same_int4("datconnlimit", -1)
        .same_int4("datfrozenxid", 0)
        .same_int4("datminmxid", 0)
        .same_oid("dattablespace", 1663)
        .same_text("datcollate", "C.UTF-8")
        .same_text("datctype", "C.UTF-8")
        .null_text("daticulocale")
        .null_text("daticurules")
        .null_text("datlocale")
        .null_text("datcollversion")
        .null_texts("datacl")
}

fn roles() -> Table {
    Table::new(1)
        .same_oid("oid", OWNER)
        .same_text("rolname", DATABASE)
        .same_bool("rolsuper", true)
        .same_bool("rolinherit", true)
        .same_bool("rolcreaterole", false)
        .same_bool("rolcreatedb", false)
        .same_bool("rolcanlogin", true)
        .same_bool("rolreplication", false)
        .same_int4("rolconnlimit", -1)
        .null_text("rolpassword")
        .null_text("rolvaliduntil")
        .same_bool("rolbypassrls", true)
        .null_texts("rolconfig")
}

fn user() -> Table {
    Table::new(1)
        .same_text("usename", DATABASE)
        .same_oid("usesysid", OWNER)
        .same_bool("usecreatedb", false)
        .same_bool("usesuper", true)
        .same_bool("userepl", false)
        .same_bool("usebypassrls", true)
        .null_text("passwd")
        .null_text("valuntil")
        .null_texts("useconfig")
}

fn foreign_table(snapshot: &Snapshot) -> Table {
    let rows: Vec<&Arc<Relation>> = snapshot.relations.iter().filter(|r| relkind(r.kind) == "f").collect();
    // As psql prints them: the option's name and its value in quotes. A store's secrets are not shown.
    let options = |relation: &Relation| {
        let shown = |(name, value): (&String, &String)| {
            let secret = ["secret", "password", "token", "key"].iter().any(|word| name.contains(word));
            let value = if secret { "…" } else { value.as_str() };
            format!("{} '{}'", quote_ident(name), value.replace('\'', "''"))
        };
        let mut options: Vec<String> = relation.connector.iter().map(shown).collect();
        if options.is_empty() {
            options.push("connector 'log'".to_owned());
        }
        Some(options)
    };
    Table::new(rows.len())
        .oid("ftrelid", rows.iter().map(|r| snapshot.oids.relation(&r.name)))
        .same_oid("ftserver", SERVER)
        .texts("ftoptions", rows.iter().map(|r| options(r)))
}

fn foreign_server() -> Table {
    Table::new(1)
        .same_oid("oid", SERVER)
        .same_text("srvname", DATABASE)
        .same_oid("srvowner", OWNER)
        .same_oid("srvfdw", SERVER + 1)
        .null_text("srvtype")
        .null_text("srvversion")
        .null_texts("srvacl")
        .null_texts("srvoptions")
}

fn foreign_data_wrapper() -> Table {
    Table::new(1)
        .same_oid("oid", SERVER + 1)
        .same_text("fdwname", DATABASE)
        .same_oid("fdwowner", OWNER)
        .same_oid("fdwhandler", 0)
        .same_oid("fdwvalidator", 0)
        .null_texts("fdwacl")
        .null_texts("fdwoptions")
}

fn pg_tables(snapshot: &Snapshot) -> Table {
    let rows: Vec<&Arc<Relation>> = snapshot.relations.iter().filter(|r| r.kind == RelationKind::Table).collect();
    Table::new(rows.len())
        .same_text("schemaname", "public")
        .text("tablename", rows.iter().map(|r| r.name.clone()))
        .same_text("tableowner", DATABASE)
        .null_text("tablespace")
        .bool("hasindexes", rows.iter().map(|r| has_key(r)))
        .same_bool("hasrules", false)
        .same_bool("hastriggers", false)
        .same_bool("rowsecurity", false)
}

fn matviews(snapshot: &Snapshot) -> Table {
    let rows: Vec<&Arc<Relation>> = snapshot.relations.iter().filter(|r| r.kind == RelationKind::View).collect();
    Table::new(rows.len())
        .same_text("schemaname", "public")
        .text("matviewname", rows.iter().map(|r| r.name.clone()))
        .same_text("matviewowner", DATABASE)
        .null_text("tablespace")
        .same_bool("hasindexes", false)
        .same_bool("ispopulated", true)
        .text("definition", rows.iter().map(|r| format!(" {};", r.query.as_deref().unwrap_or_default())))
}

fn indexes(snapshot: &Snapshot) -> Table {
    let rows: Vec<_> = primary_keys(snapshot).collect();
    let define = |table: &Relation| {
        let columns: Vec<String> =
            table.key.iter().filter_map(|i| table.columns.get(*i)).map(|c| quote_ident(&c.name)).collect();
        let (index, name) = (quote_ident(&index_name(&table.name)), quote_ident(&table.name));
        format!("CREATE UNIQUE INDEX {index} ON public.{name} USING btree ({})", columns.join(", "))
    };
    Table::new(rows.len())
        .same_text("schemaname", "public")
        .text("tablename", rows.iter().map(|r| r.table.name.clone()))
        .text("indexname", rows.iter().map(|r| index_name(&r.table.name)))
        .null_text("tablespace")
        .text("indexdef", rows.iter().map(|r| define(r.table)))
}

/// Cursors are the session's own business; no client needs to read them from here to use them.
fn cursors() -> Table {
    Table::new(0)
        .null_text("name")
        .null_text("statement")
        .same_bool("is_holdable", false)
        .same_bool("is_binary", false)
        .same_bool("is_scrollable", false)
        .null_text("creation_time")
}

fn prepared_statements() -> Table {
    Table::new(0).null_text("name").null_text("statement").null_text("prepare_time").same_bool("from_sql", false)
}

fn activity(snapshot: &Snapshot) -> Table {
    Table::new(1)
        .same_oid("datid", DATABASE_OID)
        .same_text("datname", DATABASE)
        .same_int4("pid", std::process::id().cast_signed())
        .same_oid("usesysid", OWNER)
        .text("usename", [snapshot.user.clone()])
        .same_text("application_name", "")
        .null_text("client_addr")
        .null_text("backend_start")
        .null_text("query_start")
        .null_text("state_change")
        .null_text("wait_event_type")
        .null_text("wait_event")
        .same_text("state", "active")
        .null_text("query")
        .same_text("backend_type", "client backend")
}
