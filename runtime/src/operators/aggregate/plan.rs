//! Which kind of state an aggregate call gets.
//!
//! | rows are …             | `count` `sum` `avg` | `min` `max`  | any other aggregate | `DISTINCT`, `ORDER BY` in the call |
//! |------------------------|---------------------|--------------|---------------------|------------------------------------|
//! | never retracted        | linear              | extreme      | partial             | multiset                           |
//! | inserted and retracted | linear              | multiset     | multiset            | multiset                           |

use std::sync::Arc;

use arrow::array::types::{
    Date32Type, Date64Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow::compute::SortOptions;
use arrow::datatypes::{BinaryType, DataType, Schema, TimeUnit, Utf8Type};
use arrow::row::SortField;
use datafusion::physical_plan::expressions::Literal;
use weir_storage::StateTable;

use super::call::{CallState, cells};
use super::extreme::{BoolExtreme, BytesExtreme, End, Extreme};
use super::linear::{Count, DecimalAverage, FloatAverage, Sum};
use super::multiset::{CountDistinct, First, Recompute, Values};
use super::partial::Partial;
use crate::error::Result;
use crate::graph::{AggregateCall, Expr};

/// A call ready to run.
pub(super) struct Call {
    pub(super) state: Box<dyn CallState>,
    /// What [`CallState::update`] is given, over the input.
    pub(super) args: Vec<Expr>,
    pub(super) filter: Option<Expr>,
    /// Whether the state wants to know each row's place among the touched groups.
    pub(super) wants_positions: bool,
}

/// The state for `call`. `table` gives it a table of its own if it needs one.
pub(super) fn call(
    call: &AggregateCall,
    input: &Schema,
    input_changelog: bool,
    table: &mut dyn FnMut() -> Result<StateTable>,
) -> Result<Call> {
    let function = &call.function;
    let name = function.fun().name();
    let mut args = function.expressions();
    let types = args.iter().map(|arg| Ok(arg.data_type(input)?)).collect::<Result<Vec<DataType>>>()?;
    let result = function.field().data_type().clone();
    let end = match name {
        "min" => Some(End::Min),
        "max" => Some(End::Max),
        _ => None,
    };
    // Neither DISTINCT nor ORDER BY makes a difference to these.
    let plain = end.is_some() || (!function.is_distinct() && function.order_bys().is_empty());
    let done = |state: Box<dyn CallState>, args: Vec<Expr>, wants_positions: bool| Call {
        state,
        args,
        filter: call.filter.clone(),
        wants_positions,
    };

    if plain {
        if name == "count" && args.iter().all(is_constant) {
            return Ok(done(cells(Count), Vec::new(), false));
        }
        if let Some(state) = linear(name, &types, &result)? {
            return Ok(done(state, args, false));
        }
        if let (Some(end), [data_type]) = (end, types.as_slice()) {
            if input_changelog {
                let values = Values::new(table()?, vec![First::order(end, data_type)])?;
                return Ok(done(cells(First::new(values, result)), args, false));
            }
            if let Some(state) = extreme(end, data_type) {
                return Ok(done(state, args, false));
            }
        }
        if !input_changelog {
            return Ok(done(cells(Partial::new(Arc::clone(function))?), args, true));
        }
    }

    if name == "count" && function.is_distinct() && args.len() == 1 {
        let values = Values::new(table()?, ascending(&types))?;
        return Ok(done(cells(CountDistinct::new(values)), args, false));
    }
    args.extend(function.order_bys().iter().map(|order| Arc::clone(&order.expr)));
    let types = args.iter().map(|arg| Ok(arg.data_type(input)?)).collect::<Result<Vec<DataType>>>()?;
    let values = Values::new(table()?, ascending(&types))?;
    Ok(done(cells(Recompute::new(Arc::clone(function), values)?), args, false))
}

fn ascending(types: &[DataType]) -> Vec<SortField> {
    types.iter().map(|data_type| SortField::new_with_options(data_type.clone(), SortOptions::default())).collect()
}

/// Whether the expression is a constant other than null, as the argument of `count(*)` is.
fn is_constant(expr: &Expr) -> bool {
    expr.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null())
}

fn linear(name: &str, types: &[DataType], result: &DataType) -> Result<Option<Box<dyn CallState>>> {
    let [argument] = types else { return Ok(None) };
    Ok(match (name, argument, result) {
        ("count", _, _) => Some(cells(Count)),
        ("sum", DataType::Int64, DataType::Int64) => Some(cells(Sum::<Int64Type>::new(result.clone()))),
        ("sum", DataType::UInt64, DataType::UInt64) => Some(cells(Sum::<UInt64Type>::new(result.clone()))),
        ("sum", DataType::Float64, DataType::Float64) => Some(cells(Sum::<Float64Type>::new(result.clone()))),
        ("sum", DataType::Decimal128(..), DataType::Decimal128(..)) => {
            Some(cells(Sum::<Decimal128Type>::new(result.clone())))
        }
        ("avg", DataType::Float64, DataType::Float64) => Some(cells(FloatAverage)),
        ("avg", DataType::Decimal128(_, scale), DataType::Decimal128(..)) => {
            Some(cells(DecimalAverage::new(*scale, result.clone())?))
        }
        _ => None,
    })
}

fn extreme(end: End, data_type: &DataType) -> Option<Box<dyn CallState>> {
    macro_rules! fixed_width {
        ($($type:ident: $pattern:pat),* $(,)?) => {
            match data_type {
                $($pattern => Some(cells(Extreme::<$type>::new(end, data_type.clone()))),)*
                DataType::Utf8 => Some(cells(BytesExtreme::<Utf8Type>::new(end))),
                DataType::Binary => Some(cells(BytesExtreme::<BinaryType>::new(end))),
                DataType::Boolean => Some(cells(BoolExtreme::new(end))),
                _ => None,
            }
        };
    }
    fixed_width! {
        Int8Type: DataType::Int8,
        Int16Type: DataType::Int16,
        Int32Type: DataType::Int32,
        Int64Type: DataType::Int64,
        UInt8Type: DataType::UInt8,
        UInt16Type: DataType::UInt16,
        UInt32Type: DataType::UInt32,
        UInt64Type: DataType::UInt64,
        Float32Type: DataType::Float32,
        Float64Type: DataType::Float64,
        Decimal128Type: DataType::Decimal128(..),
        Date32Type: DataType::Date32,
        Date64Type: DataType::Date64,
        Time32SecondType: DataType::Time32(TimeUnit::Second),
        Time32MillisecondType: DataType::Time32(TimeUnit::Millisecond),
        Time64MicrosecondType: DataType::Time64(TimeUnit::Microsecond),
        Time64NanosecondType: DataType::Time64(TimeUnit::Nanosecond),
        TimestampSecondType: DataType::Timestamp(TimeUnit::Second, _),
        TimestampMillisecondType: DataType::Timestamp(TimeUnit::Millisecond, _),
        TimestampMicrosecondType: DataType::Timestamp(TimeUnit::Microsecond, _),
        TimestampNanosecondType: DataType::Timestamp(TimeUnit::Nanosecond, _),
    }
}
