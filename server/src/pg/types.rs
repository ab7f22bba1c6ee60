//! Which PostgreSQL type a column is announced as, and which Arrow type a parameter becomes.

use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, TimeUnit};
use arrow_pg::datatypes::field_into_pg_type;
use pgwire::api::Type;
use pgwire::api::results::{FieldFormat, FieldInfo};
use std::sync::Arc;
use weir_planner::types::TYPE_KEY;

/// The PostgreSQL type of a column. What PostgreSQL has no type for (maps, unions, arrays of arrays) goes as text.
pub fn pg_type(field: &Field) -> Type {
    let text = matches!(field.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    match field.metadata().get(TYPE_KEY).map(String::as_str) {
        Some("json") if text => return Type::JSON,
        Some("jsonb") if text => return Type::JSONB,
        Some("uuid") if text => return Type::UUID,
        _ => {}
    }
    match field.data_type() {
        DataType::Null => Type::TEXT,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal256(..) => Type::NUMERIC,
        DataType::Date64 => Type::TIMESTAMP,
        DataType::Dictionary(_, value) => {
            pg_type(&Field::new(field.name(), value.as_ref().clone(), true).with_metadata(field.metadata().clone()))
        }
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => array_type(item),
        _ => field_into_pg_type(&Arc::new(field.clone())).unwrap_or(Type::TEXT),
    }
}

/// The array type over elements of a field; text when there is none.
fn array_type(item: &Field) -> Type {
    match pg_type(item) {
        Type::BOOL => Type::BOOL_ARRAY,
        Type::INT2 => Type::INT2_ARRAY,
        Type::INT4 => Type::INT4_ARRAY,
        Type::INT8 => Type::INT8_ARRAY,
        Type::OID => Type::OID_ARRAY,
        Type::FLOAT4 => Type::FLOAT4_ARRAY,
        Type::FLOAT8 => Type::FLOAT8_ARRAY,
        Type::NUMERIC => Type::NUMERIC_ARRAY,
        Type::TEXT if !matches!(item.data_type(), DataType::List(_) | DataType::LargeList(_)) => Type::TEXT_ARRAY,
        Type::CHAR => Type::CHAR_ARRAY,
        Type::JSON => Type::JSON_ARRAY,
        Type::JSONB => Type::JSONB_ARRAY,
        Type::UUID => Type::UUID_ARRAY,
        Type::BYTEA => Type::BYTEA_ARRAY,
        Type::DATE => Type::DATE_ARRAY,
        Type::TIME => Type::TIME_ARRAY,
        Type::TIMESTAMP => Type::TIMESTAMP_ARRAY,
        Type::TIMESTAMPTZ => Type::TIMESTAMPTZ_ARRAY,
        Type::INTERVAL => Type::INTERVAL_ARRAY,
        _ => Type::TEXT,
    }
}

/// `pg_type.typlen`: bytes of a value, or -1.
pub fn type_size(ty: &Type) -> i16 {
    match *ty {
        Type::BOOL | Type::CHAR => 1,
        Type::INT2 => 2,
        Type::INT4 | Type::FLOAT4 | Type::DATE | Type::OID => 4,
        Type::INT8 | Type::FLOAT8 | Type::TIME | Type::TIMESTAMP | Type::TIMESTAMPTZ => 8,
        Type::INTERVAL | Type::UUID => 16,
        _ => -1,
    }
}

/// `pg_attribute.atttypmod`: precision and scale of a numeric, or -1.
pub fn type_modifier(data_type: &DataType) -> i32 {
    match data_type {
        DataType::Decimal128(precision, scale) | DataType::Decimal64(precision, scale) if *scale >= 0 => {
            ((i32::from(*precision) << 16) | i32::from(*scale)) + 4
        }
        _ => -1,
    }
}

/// Columns as RowDescription tells them. `formats` as in Bind: none means text, one is for all columns.
pub fn field_infos(schema: &Schema, formats: &[i16]) -> Vec<FieldInfo> {
    let format = |index: usize| match formats {
        [] => FieldFormat::Text,
        [one] => FieldFormat::from(*one),
        each => FieldFormat::from(each.get(index).copied().unwrap_or(0)),
    };
    schema
        .fields()
        .iter()
        .enumerate()
        .map(|(index, field)| {
            let ty = pg_type(field);
            let size = type_size(&ty);
            FieldInfo::new(field.name().clone(), None, None, ty, format(index))
                .with_type_size(size)
                .with_type_modifier(type_modifier(field.data_type()))
        })
        .collect()
}

/// The Arrow type that a value of a PostgreSQL type becomes when nothing else tells; `None` for types that Weir does
/// not have.
pub fn arrow_type(ty: &Type) -> Option<DataType> {
    Some(match *ty {
        Type::BOOL => DataType::Boolean,
        Type::INT2 => DataType::Int16,
        Type::INT4 => DataType::Int32,
        Type::INT8 | Type::OID => DataType::Int64,
        Type::FLOAT4 => DataType::Float32,
        Type::FLOAT8 => DataType::Float64,
        Type::NUMERIC => DataType::Decimal128(38, 10),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::CHAR => DataType::Utf8,
        Type::JSON | Type::JSONB | Type::UUID => DataType::Utf8,
        Type::BYTEA => DataType::Binary,
        Type::DATE => DataType::Date32,
        Type::TIME => DataType::Time64(TimeUnit::Microsecond),
        Type::TIMESTAMP => DataType::Timestamp(TimeUnit::Microsecond, None),
        Type::TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        Type::INTERVAL => DataType::Interval(IntervalUnit::MonthDayNano),
        _ => {
            let element = element_type(ty)?;
            DataType::List(Arc::new(Field::new("item", arrow_type(&element)?, true)))
        }
    })
}

/// The element type of an array type.
pub fn element_type(ty: &Type) -> Option<Type> {
    match ty.kind() {
        tokio_postgres::types::Kind::Array(element) => Some(element.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weir_type_has_its_postgres_type() {
        let cases = [
            ("boolean", Type::BOOL),
            ("smallint", Type::INT2),
            ("integer", Type::INT4),
            ("bigint", Type::INT8),
            ("real", Type::FLOAT4),
            ("double precision", Type::FLOAT8),
            ("numeric(10,2)", Type::NUMERIC),
            ("text", Type::TEXT),
            ("json", Type::JSON),
            ("jsonb", Type::JSONB),
            ("uuid", Type::UUID),
            ("bytea", Type::BYTEA),
            ("date", Type::DATE),
            ("time", Type::TIME),
            ("timestamp", Type::TIMESTAMP),
            ("timestamptz", Type::TIMESTAMPTZ),
            ("interval", Type::INTERVAL),
            ("int[]", Type::INT4_ARRAY),
            ("text[]", Type::TEXT_ARRAY),
            ("timestamptz[]", Type::TIMESTAMPTZ_ARRAY),
        ];
        for (name, expected) in cases {
            let column = weir_planner::Column::new("c", weir_planner::SqlType::parse(name).unwrap(), true);
            assert_eq!(pg_type(&column.field()), expected, "{name}");
        }
    }

    #[test]
    fn numeric_modifier_is_postgres_packing() {
        assert_eq!(type_modifier(&DataType::Decimal128(10, 2)), ((10 << 16) | 2) + 4);
        assert_eq!(type_modifier(&DataType::Utf8), -1);
    }

    #[test]
    fn a_map_and_a_nested_array_go_as_text() {
        let inner = Field::new("item", DataType::List(Arc::new(Field::new("item", DataType::Int32, true))), true);
        assert_eq!(pg_type(&Field::new("c", DataType::List(Arc::new(inner)), true)), Type::TEXT);
    }

    #[test]
    fn one_format_is_for_all_columns() {
        let schema = Schema::new(vec![Field::new("a", DataType::Int32, true), Field::new("b", DataType::Utf8, true)]);
        let infos = field_infos(&schema, &[1]);
        assert!(infos.iter().all(|info| info.format() == FieldFormat::Binary));
        assert_eq!((infos[0].type_size(), infos[1].type_size()), (4, -1));
        assert_eq!(field_infos(&schema, &[0, 1])[1].format(), FieldFormat::Binary);
    }
}
