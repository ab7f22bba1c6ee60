//! Arrays as PostgreSQL writes them: `x = ANY(array)`, `'{1,2}'::int[]`, parameters that are arrays.
//!
//! DataFusion plans `ANY` at once and refuses what has no type yet (a parameter, a text in quotes). Therefore the text
//! tree is given functions of Weir's own in its place ([`rewrite`]); once the plan stands, and with it the types of
//! what is compared, [`resolve`] puts DataFusion's functions there.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringArray, new_null_array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, DataFusionError, Result as DfResult};
use datafusion::functions_nested::expr_fn::array_has;
use datafusion::logical_expr::expr::{Placeholder, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use sqlparser::ast::{self, BinaryOperator, VisitMut, VisitorMut};

use crate::error::{ErrorKind, SqlError};

/// `ANY` with `=`, until the types are known.
const EQUALS_ANY: &str = "weir_equals_any";
/// `ALL` with `<>`, until the types are known.
const DIFFERS_FROM_ALL: &str = "weir_differs_from_all";

/// The functions that a session must have for [`rewrite`].
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    [EQUALS_ANY, DIFFERS_FROM_ALL].map(|name| Arc::new(ScalarUDF::new_from_impl(Comparison::new(name)))).into()
}

/// Puts functions in the place of `x = ANY(array)` and `x <> ALL(array)`.
pub fn rewrite<T: VisitMut>(tree: &mut T) {
    struct Comparisons;
    impl VisitorMut for Comparisons {
        type Break = ();

        fn post_visit_expr(&mut self, expr: &mut ast::Expr) -> ControlFlow<()> {
            if let Some(call) = comparison(expr) {
                *expr = call;
            }
            ControlFlow::Continue(())
        }
    }
    let _ = tree.visit(&mut Comparisons);
}

fn comparison(expr: &ast::Expr) -> Option<ast::Expr> {
    let (name, left, right) = match expr {
        ast::Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => (EQUALS_ANY, left, right),
        ast::Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => (DIFFERS_FROM_ALL, left, right),
        _ => return None,
    };
    if matches!(right.as_ref(), ast::Expr::Subquery(_)) {
        return None;
    }
    let argument = |expr: &ast::Expr| ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr.clone()));
    Some(ast::Expr::Function(ast::Function {
        name: ast::ObjectName(vec![ast::ObjectNamePart::Identifier(ast::Ident::new(name))]),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![argument(left), argument(right)],
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }))
}

/// Gives a plan its arrays: the functions that [`rewrite`] put there, casts of text to arrays, and the types of
/// parameters that a cast or a comparison with an array tells.
pub fn resolve(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    if !concerns(&plan)? {
        return Ok(plan);
    }
    let resolved = plan.transform_up_with_subqueries(|plan| {
        let schema = merge_schema(&plan.inputs());
        let names = NamePreserver::new(&plan);
        let changed = plan.map_expressions(|expr| {
            let name = names.save(&expr);
            let changed = expr.transform_up(|expr| resolve_expr(expr, &schema))?;
            Ok(changed.update_data(|expr| name.restore(expr)))
        })?;
        if changed.transformed { changed.map_data(LogicalPlan::recompute_schema) } else { Ok(changed) }
    });
    Ok(resolved?.data)
}

/// Whether there is anything to do: most plans need no second one built.
fn concerns(plan: &LogicalPlan) -> DfResult<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|plan| {
        plan.apply_expressions(|expr| {
            expr.apply(|expr| {
                found |= match expr {
                    Expr::Cast(cast) => is_list(cast.field.data_type()) || is_untyped(&cast.expr),
                    Expr::ScalarFunction(call) => [EQUALS_ANY, DIFFERS_FROM_ALL].contains(&call.name()),
                    _ => false,
                };
                Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
            })
        })
    })?;
    Ok(found)
}

/// The same for one expression over columns.
pub(crate) fn resolve_in(expr: Expr, schema: &DFSchema) -> DfResult<Expr> {
    Ok(expr.transform_up(|expr| resolve_expr(expr, schema))?.data)
}

fn resolve_expr(expr: Expr, schema: &DFSchema) -> DfResult<Transformed<Expr>> {
    match expr {
        Expr::Cast(Cast { expr: inner, field }) if is_untyped(&inner) => {
            let inner = Box::new(typed(*inner, field.data_type()));
            Ok(Transformed::yes(Expr::Cast(Cast { expr: inner, field })))
        }
        Expr::Cast(Cast { expr: inner, field }) if is_list(field.data_type()) => match inner.get_type(schema)? {
            ty if is_text(&ty) => Ok(Transformed::yes(from_text(*inner, field.data_type()))),
            _ => Ok(Transformed::no(Expr::Cast(Cast { expr: inner, field }))),
        },
        Expr::ScalarFunction(ScalarFunction { func, args }) => {
            let negated = match func.name() {
                EQUALS_ANY => false,
                DIFFERS_FROM_ALL => true,
                _ => return Ok(Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args }))),
            };
            let [value, array] = <[Expr; 2]>::try_from(args)
                .map_err(|_| DataFusionError::Internal("a comparison with an array has two sides".into()))?;
            let has = compare(value, array, schema)?;
            Ok(Transformed::yes(if negated { Expr::Not(Box::new(has)) } else { has }))
        }
        other => Ok(Transformed::no(other)),
    }
}

fn compare(value: Expr, array: Expr, schema: &DFSchema) -> DfResult<Expr> {
    let list_of = |ty: DataType| DataType::List(Arc::new(Field::new_list_field(ty, true)));
    if is_untyped(&array) {
        let ty = if is_untyped(&value) { DataType::Utf8 } else { value.get_type(schema)? };
        return Ok(array_has(typed(array, &list_of(ty.clone())), typed(value, &ty)));
    }
    match array.get_type(schema)? {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            let value = if is_untyped(&value) { typed(value, item.data_type()) } else { value };
            Ok(array_has(array, value))
        }
        DataType::Null => Ok(array_has(array, value)),
        // A text in quotes has no type of its own in PostgreSQL: it is read as what it is compared with.
        ty if is_text(&ty) && matches!(array, Expr::Literal(..)) => {
            let list = list_of(value.get_type(schema)?);
            Ok(array_has(from_text(array, &list), value))
        }
        ty => {
            let error = SqlError::new(ErrorKind::TYPE_MISMATCH, format!("ANY and ALL need an array, not {ty}"))
                .hint("write x = ANY(ARRAY[…]), or x IN (…)");
            Err(DataFusionError::External(Box::new(error)))
        }
    }
}

fn is_untyped(expr: &Expr) -> bool {
    matches!(expr, Expr::Placeholder(Placeholder { field: None, .. }))
}

/// A parameter with its type; anything else as it is.
fn typed(expr: Expr, ty: &DataType) -> Expr {
    match expr {
        Expr::Placeholder(Placeholder { id, field: None }) => {
            let field = Arc::new(Field::new("", ty.clone(), true));
            Expr::Placeholder(Placeholder::new_with_field(id, Some(field)))
        }
        other => other,
    }
}

fn is_list(ty: &DataType) -> bool {
    matches!(ty, DataType::List(_))
}

fn is_text(ty: &DataType) -> bool {
    matches!(ty, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn from_text(text: Expr, to: &DataType) -> Expr {
    let read = ArrayIn { returns: to.clone(), signature: Signature::any(1, Volatility::Immutable) };
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::new_from_impl(read)), vec![text]))
}

/// What stands for a comparison until its types are known.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Comparison {
    name: &'static str,
    signature: Signature,
}

impl Comparison {
    fn new(name: &'static str) -> Self {
        Self { name, signature: Signature::any(2, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Comparison {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        Err(DataFusionError::Internal(format!("{} was not resolved", self.name)))
    }
}

/// PostgreSQL's `array_in`: an array from its text.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ArrayIn {
    returns: DataType,
    signature: Signature,
}

impl ScalarUDFImpl for ArrayIn {
    fn name(&self) -> &str {
        "array_in"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(self.returns.clone())
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let rows = arguments.number_rows;
        let [text] = <[ColumnarValue; 1]>::try_from(arguments.args)
            .map_err(|_| DataFusionError::Internal("array_in takes one text".into()))?;
        let scalar = matches!(text, ColumnarValue::Scalar(_));
        let lists = read(&text.into_array(if scalar { 1 } else { rows })?, &self.returns)?;
        if scalar {
            return Ok(ColumnarValue::Scalar(datafusion::common::ScalarValue::try_from_array(&lists, 0)?));
        }
        Ok(ColumnarValue::Array(lists))
    }
}

/// Arrays from their texts.
fn read(texts: &ArrayRef, to: &DataType) -> DfResult<ArrayRef> {
    let DataType::List(item) = to else {
        let options = CastOptions { safe: false, ..CastOptions::default() };
        return Ok(cast_with_options(texts, to, &options)?);
    };
    let texts = cast(texts, &DataType::Utf8)?;
    let (mut items, mut lengths) = (Vec::new(), Vec::with_capacity(texts.len()));
    for text in texts.as_string::<i32>() {
        let before = items.len();
        if let Some(text) = text {
            items.extend(elements(text).ok_or_else(|| malformed(text))?);
        }
        lengths.push(items.len() - before);
    }
    let values = if items.is_empty() {
        new_null_array(item.data_type(), 0)
    } else {
        read(&(Arc::new(StringArray::from(items)) as ArrayRef), item.data_type())?
    };
    let nulls = texts.nulls().map(|nulls| NullBuffer::from_iter(nulls.iter()));
    Ok(Arc::new(ListArray::try_new(Arc::clone(item), OffsetBuffer::from_lengths(lengths), values, nulls)?))
}

fn malformed(text: &str) -> DataFusionError {
    let error = SqlError {
        sqlstate: "22P02",
        ..SqlError::new(ErrorKind::INVALID_VALUE, format!("malformed array literal: \"{text}\""))
    }
    .hint("an array is written {1,2,NULL}, with double quotes around elements that have commas, braces or spaces");
    DataFusionError::External(Box::new(error))
}

/// The elements of `{1,NULL,"a b"}`, `None` for NULL; an array inside the array stays text. `None` when it is malformed.
pub fn elements(text: &str) -> Option<Vec<Option<String>>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    let (mut item, mut quoted, mut inside, mut depth) = (String::new(), false, false, 0_usize);
    let mut finish = |item: &mut String, quoted: &mut bool| {
        let text = std::mem::take(item);
        match (std::mem::take(quoted), text.trim()) {
            (false, "") => return false,
            (false, bare) if bare.eq_ignore_ascii_case("null") => elements.push(None),
            (false, bare) => elements.push(Some(bare.to_owned())),
            (true, _) => elements.push(Some(text)),
        }
        true
    };
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let escaped = chars.next()?;
                if depth > 0 {
                    item.push(c);
                } else {
                    quoted = true;
                }
                item.push(escaped);
            }
            '"' => {
                if depth > 0 {
                    item.push(c);
                } else {
                    // Space around the quotes does not count.
                    if !inside {
                        item.clear();
                    }
                    quoted = true;
                }
                inside = !inside;
            }
            c if inside => item.push(c),
            '{' => {
                depth += 1;
                item.push(c);
            }
            '}' => {
                depth = depth.checked_sub(1)?;
                item.push(c);
            }
            ',' if depth == 0 => {
                if !finish(&mut item, &mut quoted) {
                    return None;
                }
            }
            c if quoted && depth == 0 && c.is_whitespace() => {}
            c => item.push(c),
        }
    }
    if inside || depth > 0 {
        return None;
    }
    if inner.trim().is_empty() || finish(&mut item, &mut quoted) { Some(elements) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(items: &[&str]) -> Option<Vec<Option<String>>> {
        Some(items.iter().map(|item| (*item != "∅").then(|| (*item).to_owned())).collect())
    }

    #[test]
    fn elements_are_split_as_postgres_does() {
        assert_eq!(elements("{1,2, 3}"), some(&["1", "2", "3"]));
        assert_eq!(elements(" {} "), some(&[]));
        assert_eq!(elements(r#"{a b,NULL,"NULL","",null, "c,d" }"#), some(&["a b", "∅", "NULL", "", "∅", "c,d"]));
        assert_eq!(elements(r#"{"say \"x\"","back\\slash","{}"}"#), some(&["say \"x\"", "back\\slash", "{}"]));
        assert_eq!(elements(r#"{{1,2},{"a,}",3}}"#), some(&["{1,2}", r#"{"a,}",3}"#]));
        for broken in ["", "1,2", "{1,2", "{1,,2}", "{,}", "{1,}", "{\"a}", "{{1}", "{1}}"] {
            assert_eq!(elements(broken), None, "{broken}");
        }
    }

    #[test]
    fn texts_become_arrays() {
        let list = |ty: DataType| DataType::List(Arc::new(Field::new_list_field(ty, true)));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("{1,NULL}"), None, Some("{}")]));
        let lists = read(&texts, &list(DataType::Int32)).unwrap();
        let shown = |i| arrow::util::display::array_value_to_string(&lists, i).unwrap();
        assert_eq!((shown(0).as_str(), lists.is_null(1), shown(2).as_str()), ("[1, ]", true, "[]"));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["{{1,2},{3}}"]));
        let lists = read(&texts, &list(list(DataType::Int64))).unwrap();
        assert_eq!(arrow::util::display::array_value_to_string(&lists, 0).unwrap(), "[[1, 2], [3]]");
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["{x}"]));
        assert!(read(&texts, &list(DataType::Int64)).is_err());
    }
}
