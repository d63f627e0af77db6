//! Type checker and cost estimator for CEL expressions.
//!
//! The schema gives every field a type and a maximum size: `maxLength`, `maxItems`, `maxProperties`, or the
//! maximum that fits into a request. The cost of a loop is the cost of its body times the maximum size of its
//! range. So a rule over an unbounded list of unbounded lists is rejected when the CRD is written, not when
//! it first runs too long.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};

use super::library::{self, ReturnType};
use super::types::{REQUEST_MAX, Ty};
use super::value;
use crate::schema::node::Node;

/// A type error and the source text it refers to.
#[derive(Debug)]
pub(crate) struct Diagnostic {
    pub(crate) message: String,
    /// The source text, e.g. `.size`.
    pub(crate) at: String,
    /// Offset of the caret within that text: calls are marked at their bracket.
    pub(crate) offset: usize,
}

/// The type, cost and size of a checked expression.
#[derive(Debug, Clone)]
pub(crate) struct CheckedExpr<'a> {
    pub(crate) ty: Ty<'a>,
    /// The maximum cost of the evaluation.
    pub(crate) cost: u64,
    size: u64,
    /// The maximum element size of a list without a schema.
    element: Option<u64>,
}

/// The declared variables of an expression and their types.
pub(crate) struct TypeEnv<'n, 'a> {
    outer: Option<&'n TypeEnv<'n, 'a>>,
    name: &'n str,
    checked: CheckedExpr<'a>,
}

impl<'n, 'a> TypeEnv<'n, 'a> {
    pub(crate) fn new(outer: Option<&'n TypeEnv<'n, 'a>>, name: &'n str, ty: Ty<'a>) -> Self {
        let size = ty.size(None);
        Self { outer, name, checked: CheckedExpr { ty, cost: 1, size, element: None } }
    }

    /// A variable with a schema, and so with a known maximum size.
    pub(crate) fn of_node(
        outer: Option<&'n TypeEnv<'n, 'a>>,
        name: &'n str,
        ty: Ty<'a>,
        node: &Node,
    ) -> Self {
        let size = ty.size(Some(node));
        Self { outer, name, checked: CheckedExpr { ty, cost: 1, size, element: None } }
    }

    fn get(&self, name: &str) -> Option<&CheckedExpr<'a>> {
        if self.name == name { Some(&self.checked) } else { self.outer?.get(name) }
    }
}

type CheckResult<'a> = Result<CheckedExpr<'a>, Diagnostic>;

fn fail<T>(message: String, at: &str) -> Result<T, Diagnostic> {
    Err(Diagnostic { message, at: at.to_owned(), offset: 0 })
}

fn fail_at_call<T>(message: String, name: &str) -> Result<T, Diagnostic> {
    Err(Diagnostic { message, at: format!("{name}("), offset: name.len() })
}

/// The source text that locates an expression in an error.
fn text_of(expr: &IdedExpr) -> String {
    match &expr.expr {
        Expr::Ident(name) => name.clone(),
        Expr::Select(select) => format!(".{}", select.field),
        Expr::Literal(LiteralValue::String(s)) => format!("'{}'", s.inner()),
        Expr::Literal(LiteralValue::Int(i)) => i.inner().to_string(),
        Expr::Literal(LiteralValue::Boolean(b)) => b.inner().to_string(),
        Expr::Call(call) => {
            call.func_name.trim_matches('_').trim_start_matches('@').trim_end_matches('_').to_owned()
        }
        _ => String::new(),
    }
}

fn expected<T>(wanted: &str, checked: &Ty<'_>, expr: &IdedExpr) -> Result<T, Diagnostic> {
    fail(format!("expected type '{wanted}' but found '{}'", checked.name()), &text_of(expr))
}

fn tenth(size: u64) -> u64 {
    size.div_ceil(10)
}

fn checked<'a>(ty: Ty<'a>, cost: u64) -> CheckedExpr<'a> {
    let size = ty.size(None);
    CheckedExpr { ty, cost, size, element: None }
}

/// Type-checks an expression and estimates its cost.
pub(crate) fn check<'a>(expr: &IdedExpr, names: &TypeEnv<'_, 'a>) -> CheckResult<'a> {
    match &expr.expr {
        Expr::Literal(literal) => {
            let (ty, size) = match literal {
                LiteralValue::Boolean(_) => (Ty::Bool, 1),
                LiteralValue::Bytes(b) => (Ty::Bytes, b.inner().len() as u64),
                LiteralValue::Double(_) => (Ty::Double, 1),
                LiteralValue::Int(_) => (Ty::Int, 1),
                LiteralValue::Null => (Ty::Null, 1),
                LiteralValue::String(s) => (Ty::Text, s.inner().len() as u64),
                LiteralValue::UInt(_) => (Ty::Uint, 1),
            };
            Ok(CheckedExpr { ty, cost: 0, size, element: None })
        }
        Expr::Ident(name) => match names.get(name) {
            Some(checked) => Ok(checked.clone()),
            None if matches!(
                name.as_str(),
                "int"
                    | "uint"
                    | "double"
                    | "bool"
                    | "string"
                    | "bytes"
                    | "list"
                    | "map"
                    | "null_type"
                    | "type"
            ) =>
            {
                Ok(checked(Ty::Type, 1))
            }
            None => fail(format!("undeclared reference to '{name}' (in container '')"), name),
        },
        Expr::Select(select) => {
            let operand = check(&select.operand, names)?;
            let selected = field(&operand, &select.field);
            if let (true, Err(diagnostic)) = (select.test, &selected) {
                return fail_at_call(diagnostic.message.clone(), "has");
            }
            let mut selected = selected?;
            selected.cost = operand.cost.saturating_add(1);
            if select.test {
                selected.ty = Ty::Bool;
                selected.size = 1;
            }
            Ok(selected)
        }
        Expr::List(list) => {
            let mut cost = 10u64;
            let mut element: Option<Ty<'a>> = None;
            for (i, expr) in list.elements.iter().enumerate() {
                let mut item = check(expr, names)?;
                if let (Ty::Optional(inner), true) = (&item.ty, list.optional_indices.contains(&i)) {
                    item.ty = (**inner).clone();
                }
                cost = cost.saturating_add(item.cost);
                match &element {
                    Some(before) if !before.may_be(&item.ty) => {
                        return expected(&before.name(), &item.ty, expr);
                    }
                    Some(_) => {}
                    None => element = Some(item.ty),
                }
            }
            Ok(CheckedExpr {
                ty: Ty::List(Box::new(element.unwrap_or(Ty::Dyn)), None),
                cost,
                size: list.elements.len() as u64,
                element: None,
            })
        }
        Expr::Map(map) => {
            let mut cost = 30u64;
            let mut types: Option<(Ty<'a>, Ty<'a>)> = None;
            for entry in &map.entries {
                let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
                let (key, value) = (check(&entry.key, names)?, check(&entry.value, names)?);
                cost = cost.saturating_add(key.cost).saturating_add(value.cost);
                match &types {
                    Some((before, _)) if !before.may_be(&key.ty) => {
                        return expected(&before.name(), &key.ty, &entry.key);
                    }
                    Some((_, before)) if !entry.optional && !before.may_be(&value.ty) => {
                        return expected(&before.name(), &value.ty, &entry.value);
                    }
                    Some(_) => {}
                    None => types = Some((key.ty, if entry.optional { Ty::Dyn } else { value.ty })),
                }
            }
            let (key, value) = types.unwrap_or((Ty::Dyn, Ty::Dyn));
            Ok(CheckedExpr {
                ty: Ty::Map(Box::new(key), Box::new(value), None),
                cost,
                size: map.entries.len() as u64,
                element: None,
            })
        }
        Expr::Call(call) => check_call(call, names),
        Expr::Comprehension(comprehension) => check_loop(comprehension, names),
        Expr::Struct(object) => fail(
            format!("undeclared reference to '{}' (in container '')", object.type_name),
            &object.type_name,
        ),
        Expr::Unspecified => fail("expression is empty".to_owned(), ""),
    }
}

fn field<'a>(operand: &CheckedExpr<'a>, escaped: &str) -> CheckResult<'a> {
    let at = format!(".{escaped}");
    let undefined = || fail(format!("undefined field '{escaped}'"), &at);
    match &operand.ty {
        Ty::Dyn => Ok(checked(Ty::Dyn, 0)),
        Ty::Map(_, value, node) => {
            let child = node.and_then(|n| n.additional_schema());
            let size = value.size(child);
            Ok(CheckedExpr { ty: (**value).clone(), cost: 0, size, element: None })
        }
        Ty::Metadata if matches!(escaped, "name" | "generateName") => Ok(checked(Ty::Text, 0)),
        Ty::Metadata => undefined(),
        Ty::Object(node, resource) => {
            let name = value::unescape(escaped);
            match (&*name, *resource) {
                ("metadata", true) => return Ok(checked(Ty::Metadata, 0)),
                ("apiVersion" | "kind", true) => return Ok(checked(Ty::Text, 0)),
                _ => {}
            }
            if !value::can_escape(&name) {
                return undefined();
            }
            match node.property(&name).and_then(|child| Some((Ty::of(child, false)?, child))) {
                Some((ty, child)) => {
                    let size = ty.size(Some(child));
                    Ok(CheckedExpr { ty, cost: 0, size, element: None })
                }
                None => undefined(),
            }
        }
        Ty::Optional(inner) => {
            let inner = field(
                &CheckedExpr { ty: (**inner).clone(), cost: 0, size: operand.size, element: None },
                escaped,
            )?;
            Ok(CheckedExpr { ty: Ty::Optional(Box::new(inner.ty)), ..inner })
        }
        other => fail(format!("type '{}' does not support field selection", other.name()), &at),
    }
}

fn no_overload<T>(
    name: &str,
    target: Option<&CheckedExpr<'_>>,
    args: &[CheckedExpr<'_>],
) -> Result<T, Diagnostic> {
    let listed: Vec<String> = args.iter().map(|a| a.ty.name()).collect();
    let shown = match target {
        Some(target) => format!("{}.({})", target.ty.name(), listed.join(", ")),
        None => format!("({})", listed.join(", ")),
    };
    let message = format!("found no matching overload for '{name}' applied to '{shown}'");
    match name {
        operators::CONDITIONAL => fail(message, "?"),
        operators::INDEX | operators::OPT_INDEX => fail(message, "["),
        name if name.starts_with(['_', '@']) || name.ends_with('_') => {
            fail(message, name.trim_matches('_').trim_start_matches('@'))
        }
        name => fail_at_call(message, name),
    }
}

fn check_call<'a>(call: &CallExpr, names: &TypeEnv<'_, 'a>) -> CheckResult<'a> {
    let name = call.func_name.as_str();
    if let ("optMap" | "optFlatMap", [IdedExpr { expr: Expr::Ident(variable), .. }, body], Some(target)) =
        (name, call.args.as_slice(), &call.target)
    {
        let target = check(target, names)?;
        let inner = match &target.ty {
            Ty::Optional(inner) => (**inner).clone(),
            _ => Ty::Dyn,
        };
        let scope = TypeEnv::new(Some(names), variable, inner);
        let body = check(body, &scope)?;
        let ty = if name == "optMap" { Ty::Optional(Box::new(body.ty)) } else { body.ty };
        return Ok(CheckedExpr {
            ty,
            cost: target.cost.saturating_add(body.cost),
            size: body.size,
            element: None,
        });
    }
    if let [IdedExpr { expr: Expr::Ident(first), .. }, IdedExpr { expr: Expr::Ident(second), .. }, rest @ ..] =
        call.args.as_slice()
        && let Some(target) = &call.target
        && super::eval::is_two_variable_macro(name, call.args.len())
    {
        return check_two_variable_macro(name, target, first, second, rest, names);
    }
    if let (operators::LOGICAL_AND | operators::LOGICAL_OR, [a, b]) = (name, call.args.as_slice()) {
        let mut cost = 0u64;
        for side in [a, b] {
            let checked = check(side, names)?;
            if !checked.ty.may_be(&Ty::Bool) {
                return expected("bool", &checked.ty, side);
            }
            cost = cost.saturating_add(checked.cost);
        }
        return Ok(checked(Ty::Bool, cost));
    }
    if let (
        operators::OPT_SELECT,
        [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(field_name)), .. }],
    ) = (name, call.args.as_slice())
    {
        let operand = check(operand, names)?;
        let selected = field(&operand, field_name.inner())
            .map_err(|diagnostic| Diagnostic { at: format!(".?{}", field_name.inner()), ..diagnostic })?;
        let ty = match selected.ty {
            ty @ Ty::Optional(_) => ty,
            ty => Ty::Optional(Box::new(ty)),
        };
        return Ok(CheckedExpr {
            ty,
            cost: operand.cost.saturating_add(1),
            size: selected.size,
            element: None,
        });
    }
    let namespace = match call.target.as_deref() {
        Some(IdedExpr { expr: Expr::Ident(prefix), .. })
            if library::is_namespace(prefix) && names.get(prefix).is_none() =>
        {
            Some(prefix.as_str())
        }
        _ => None,
    };
    let target = match (&call.target, namespace) {
        (Some(target), None) => Some(check(target, names)?),
        _ => None,
    };
    let args: Vec<CheckedExpr<'a>> = call.args.iter().map(|a| check(a, names)).collect::<Result<_, _>>()?;
    let inputs: u64 = args.iter().chain(&target).fold(0u64, |sum, f| sum.saturating_add(f.cost));
    if target.is_none()
        && namespace.is_none()
        && let Some(operator) = check_operator(name, &args)?
    {
        return Ok(CheckedExpr { cost: operator.cost.saturating_add(inputs), ..operator });
    }
    let full_name = namespace.map_or_else(|| name.to_owned(), |n| format!("{n}.{name}"));
    let Some(returns) = library::return_type(&full_name) else {
        return fail_at_call(format!("undeclared reference to '{name}' (in container '')"), name);
    };
    check_function(&full_name, returns, target, &args, inputs)
}

fn check_operator<'a>(name: &str, args: &[CheckedExpr<'a>]) -> Result<Option<CheckedExpr<'a>>, Diagnostic> {
    let text_cost = |a: &CheckedExpr<'_>, b: &CheckedExpr<'_>| {
        if matches!(a.ty, Ty::Text | Ty::Bytes | Ty::List(..) | Ty::Map(..)) {
            tenth(a.size.min(b.size))
        } else {
            0
        }
    };
    Ok(Some(match (name, args) {
        (operators::LOGICAL_NOT, [a]) if a.ty.may_be(&Ty::Bool) => checked(Ty::Bool, 1),
        (operators::NOT_STRICTLY_FALSE, [_]) => checked(Ty::Bool, 0),
        (operators::CONDITIONAL, [test, yes, no]) => {
            if !test.ty.may_be(&Ty::Bool) || !yes.ty.may_be(&no.ty) {
                return no_overload(name, None, args);
            }
            let ty = if matches!(yes.ty, Ty::Null) { no.ty.clone() } else { yes.ty.clone() };
            CheckedExpr { ty, cost: 0, size: yes.size.max(no.size), element: None }
        }
        (operators::EQUALS | operators::NOT_EQUALS, [a, b]) if a.ty.may_be(&b.ty) => {
            checked(Ty::Bool, 1 + text_cost(a, b))
        }
        (
            operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
            [a, b],
        ) => {
            let ordered = |t: &Ty<'_>| {
                !matches!(
                    t,
                    Ty::List(..)
                        | Ty::Map(..)
                        | Ty::Object(..)
                        | Ty::Null
                        | Ty::Type
                        | Ty::Optional(_)
                        | Ty::Metadata
                )
            };
            let comparable = a.ty.may_be(&b.ty) || (a.ty.is_number() && b.ty.is_number());
            if !comparable || !ordered(&a.ty) || !ordered(&b.ty) {
                return no_overload(name, None, args);
            }
            checked(Ty::Bool, 1 + text_cost(a, b))
        }
        (operators::ADD, [a, b]) => match (&a.ty, &b.ty) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => {
                checked(Ty::Dyn, 1 + tenth(a.size.saturating_add(b.size).min(REQUEST_MAX)))
            }
            (Ty::Text, Ty::Text) | (Ty::Bytes, Ty::Bytes) | (Ty::List(..), Ty::List(..))
                if a.ty.may_be(&b.ty) =>
            {
                let size = a.size.saturating_add(b.size);
                CheckedExpr { ty: a.ty.clone(), cost: 1 + tenth(size), size, element: None }
            }
            (Ty::Time, Ty::Duration) | (Ty::Duration, Ty::Time) => checked(Ty::Time, 1),
            (Ty::Duration, Ty::Duration) => checked(Ty::Duration, 1),
            (x, y) if x.is_number() && x.may_be(y) => checked(a.ty.clone(), 1),
            _ => return no_overload(name, None, args),
        },
        (operators::SUBSTRACT, [a, b]) => match (&a.ty, &b.ty) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => checked(Ty::Dyn, 1),
            (Ty::Time, Ty::Time) => checked(Ty::Duration, 1),
            (Ty::Time, Ty::Duration) => checked(Ty::Time, 1),
            (Ty::Duration, Ty::Duration) => checked(Ty::Duration, 1),
            (x, y) if x.is_number() && x.may_be(y) => checked(a.ty.clone(), 1),
            _ => return no_overload(name, None, args),
        },
        (operators::MULTIPLY | operators::DIVIDE | operators::MODULO, [a, b]) => match (&a.ty, &b.ty) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => checked(Ty::Dyn, 1),
            (x, y) if x.is_number() && x.may_be(y) => checked(a.ty.clone(), 1),
            _ => return no_overload(name, None, args),
        },
        (operators::NEGATE, [a]) if a.ty.is_number() || matches!(a.ty, Ty::Dyn) => checked(a.ty.clone(), 1),
        (operators::IN, [a, b]) => match &b.ty {
            Ty::Dyn => checked(Ty::Bool, b.size.saturating_add(1)),
            Ty::List(element, _) if element.may_be(&a.ty) => checked(Ty::Bool, 1u64.saturating_add(b.size)),
            Ty::Map(key, ..) if key.may_be(&a.ty) => checked(Ty::Bool, 1),
            _ => return no_overload(name, None, args),
        },
        (operators::INDEX | operators::OPT_INDEX, [a, b]) => {
            let (element, node) = match &a.ty {
                Ty::Dyn => (Ty::Dyn, None),
                Ty::List(element, node) if matches!(b.ty, Ty::Int | Ty::Uint | Ty::Dyn) => {
                    ((**element).clone(), node.and_then(|n| n.items.as_deref()))
                }
                Ty::Map(key, value, node) if key.may_be(&b.ty) => {
                    ((**value).clone(), node.and_then(|n| n.additional_schema()))
                }
                Ty::Optional(_) => (Ty::Dyn, None),
                _ => return no_overload(name, None, args),
            };
            let size = element_size(a).unwrap_or_else(|| element.size(node));
            let ty = if name == operators::INDEX { element } else { Ty::Optional(Box::new(element)) };
            CheckedExpr { ty, cost: 1, size, element: None }
        }
        (operators::OPT_SELECT, [a, _]) => {
            checked(Ty::Optional(Box::new(Ty::Dyn)), 1u64.saturating_add(a.cost.min(1)))
        }
        (operators::LOGICAL_NOT | operators::NEGATE | operators::EQUALS | operators::NOT_EQUALS, _) => {
            return no_overload(name, None, args);
        }
        _ => return Ok(None),
    }))
}

/// Whether a library function accepts a receiver (or first argument) of this type.
fn accepts_receiver(name: &str, ty: Option<&Ty<'_>>) -> bool {
    let Some(ty) = ty else { return true };
    let list_of = |fits: fn(&Ty<'_>) -> bool| match ty {
        Ty::Dyn => true,
        Ty::List(element, _) => fits(element),
        _ => false,
    };
    match name {
        "getFullYear" | "getMonth" | "getDayOfYear" | "getDayOfMonth" | "getDate" | "getDayOfWeek" => {
            ty.may_be(&Ty::Time)
        }
        "getHours" | "getMinutes" | "getSeconds" | "getMilliseconds" => {
            ty.may_be(&Ty::Time) || ty.may_be(&Ty::Duration)
        }
        "sum" => list_of(|e| e.is_number() || matches!(e, Ty::Duration | Ty::Dyn)),
        "min" | "max" | "isSorted" | "sort" => {
            list_of(|e| !matches!(e, Ty::List(..) | Ty::Map(..) | Ty::Object(..) | Ty::Metadata | Ty::Null))
        }
        "flatten" => list_of(|e| matches!(e, Ty::List(..) | Ty::Dyn)),
        "distinct" | "reverse" | "slice" | "first" | "last" => list_of(|_| true),
        "join" => list_of(|e| matches!(e, Ty::Text | Ty::Dyn)),
        _ => true,
    }
}

fn check_function<'a>(
    name: &str,
    returns: ReturnType,
    target: Option<CheckedExpr<'a>>,
    args: &[CheckedExpr<'a>],
    inputs: u64,
) -> CheckResult<'a> {
    let first = target.as_ref().or(args.first());
    let size_of = |f: Option<&CheckedExpr<'a>>| f.map_or(1, |f| f.size);
    // String functions called on other types are the most frequent mistake.
    if let Some(receiver) = &target {
        let text_only = matches!(
            name,
            "contains"
                | "startsWith"
                | "endsWith"
                | "matches"
                | "lowerAscii"
                | "upperAscii"
                | "trim"
                | "split"
                | "replace"
                | "substring"
                | "find"
                | "findAll"
                | "charAt"
        );
        if text_only
            && (!receiver.ty.may_be(&Ty::Text)
                || (name != "substring"
                    && name != "charAt"
                    && args.first().is_some_and(|a| !a.ty.may_be(&Ty::Text))))
        {
            return no_overload(name, target.as_ref(), args);
        }
    }
    if !accepts_receiver(name, first.map(|f| &f.ty)) {
        return no_overload(name, target.as_ref(), args);
    }
    if name == "size"
        && first.is_some_and(|f| {
            matches!(
                f.ty,
                Ty::Int | Ty::Uint | Ty::Double | Ty::Bool | Ty::Object(..) | Ty::Time | Ty::Duration
            )
        })
    {
        return no_overload(name, target.as_ref(), args);
    }
    let own = match name {
        "size" | "hasValue" | "type" | "dyn" => 1,
        "contains" => tenth(size_of(target.as_ref()))
            .saturating_mul(tenth(size_of(args.first())).max(1))
            .saturating_add(1),
        "startsWith" | "endsWith" => 1 + tenth(size_of(args.first())),
        "matches" => {
            let (text, regex) = if target.is_some() {
                (size_of(target.as_ref()), size_of(args.first()))
            } else {
                (size_of(args.first()), size_of(args.get(1)))
            };
            tenth(text.saturating_add(1)).saturating_mul(regex.div_ceil(4).max(1)).saturating_add(1)
        }
        _ => {
            1 + tenth(
                size_of(first).min(REQUEST_MAX) + args.iter().fold(0, |s, a| s.max(a.size.min(REQUEST_MAX))),
            )
        }
    };
    let cost = inputs.saturating_add(own);
    let (ty, size) = match returns {
        ReturnType::Bool => (Ty::Bool, 1),
        ReturnType::Int => (Ty::Int, 1),
        ReturnType::Uint => (Ty::Uint, 1),
        ReturnType::Double => (Ty::Double, 1),
        ReturnType::Text => (Ty::Text, text_size(name, first, args)),
        ReturnType::Bytes => (Ty::Bytes, size_of(first)),
        ReturnType::Time => (Ty::Time, 1),
        ReturnType::Duration => (Ty::Duration, 1),
        ReturnType::Type => (Ty::Type, 1),
        ReturnType::Texts => (Ty::List(Box::new(Ty::Text), None), size_of(first)),
        ReturnType::Receiver => (first.map_or(Ty::Dyn, |f| f.ty.clone()), size_of(first)),
        ReturnType::Element => match first.map(|f| &f.ty) {
            Some(Ty::List(element, _)) => ((**element).clone(), UNKNOWN),
            _ => (Ty::Dyn, size_of(first)),
        },
        ReturnType::MaybeElement => match first.map(|f| &f.ty) {
            Some(Ty::List(element, _)) => (Ty::Optional(element.clone()), UNKNOWN),
            _ => (Ty::Optional(Box::new(Ty::Dyn)), size_of(first)),
        },
        ReturnType::Named(name) => (Ty::Named(name), 1),
        ReturnType::Anything => match (name, first.map(|f| &f.ty)) {
            ("value" | "orValue", Some(Ty::Optional(inner))) => ((**inner).clone(), UNKNOWN),
            ("or", Some(ty)) => (ty.clone(), size_of(first)),
            ("optional.of" | "optional.ofNonZeroValue", Some(ty)) => {
                (Ty::Optional(Box::new(ty.clone())), size_of(first))
            }
            ("optional.none", _) => (Ty::Optional(Box::new(Ty::Dyn)), 1),
            _ => (Ty::Dyn, size_of(first)),
        },
    };
    let element = (returns == ReturnType::Texts).then(|| size_of(first));
    Ok(CheckedExpr { ty, cost, size, element })
}

/// The size of an unbounded value. As in Kubernetes, a loop over such a value exceeds every cost limit.
const UNKNOWN: u64 = u64::MAX;

/// The maximum size of the string that a function returns. Kubernetes bounds it for a few functions only.
fn text_size(name: &str, first: Option<&CheckedExpr<'_>>, args: &[CheckedExpr<'_>]) -> u64 {
    let of_first = first.map_or(1, |f| f.size);
    match name {
        "lowerAscii" | "upperAscii" | "substring" | "trim" | "find" => of_first,
        "replace" => of_first.saturating_mul(args.get(1).map_or(1, |a| a.size).max(1)),
        "join" => match first.and_then(element_size) {
            Some(element) => {
                of_first.saturating_mul(element.saturating_add(args.first().map_or(0, |a| a.size)))
            }
            None => UNKNOWN,
        },
        _ => UNKNOWN,
    }
}

/// The maximum size of the elements of a list, if known.
fn element_size(list: &CheckedExpr<'_>) -> Option<u64> {
    match &list.ty {
        Ty::List(element, Some(node)) => Some(element.size(node.items.as_deref())),
        _ => list.element,
    }
}

/// Checks a two-variable macro: over keys and values of a map, or indexes and elements of a list.
fn check_two_variable_macro<'a>(
    name: &str,
    target: &IdedExpr,
    first: &str,
    second: &str,
    rest: &[IdedExpr],
    names: &TypeEnv<'_, 'a>,
) -> CheckResult<'a> {
    let range = check(target, names)?;
    let (key, value) = match &range.ty {
        Ty::List(element, _) => (Ty::Int, (**element).clone()),
        Ty::Map(key, value, _) => ((**key).clone(), (**value).clone()),
        Ty::Dyn => (Ty::Dyn, Ty::Dyn),
        other => {
            let message = format!(
                "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                other.name()
            );
            return fail(message, &text_of(target));
        }
    };
    let with_key = TypeEnv::new(Some(names), first, key.clone());
    let inner = TypeEnv::new(Some(&with_key), second, value);
    let mut each = 3u64;
    let mut last = None;
    for (i, expr) in rest.iter().enumerate() {
        let body = check(expr, &inner)?;
        each = each.saturating_add(body.cost);
        let is_test = !name.starts_with("transform") || i + 1 < rest.len();
        if is_test && !body.ty.may_be(&Ty::Bool) {
            return expected("bool", &body.ty, expr);
        }
        last = Some(body.ty);
    }
    let cost = range.cost.saturating_add(each.saturating_mul(range.size));
    let made = last.unwrap_or(Ty::Dyn);
    let ty = match name {
        "transformList" => Ty::List(Box::new(made), None),
        "transformMap" => Ty::Map(Box::new(key), Box::new(made), None),
        "transformMapEntry" => Ty::Map(Box::new(Ty::Dyn), Box::new(Ty::Dyn), None),
        _ => Ty::Bool,
    };
    Ok(CheckedExpr { ty, cost, size: range.size, element: None })
}

fn check_loop<'a>(c: &ComprehensionExpr, names: &TypeEnv<'_, 'a>) -> CheckResult<'a> {
    let range = check(&c.iter_range, names)?;
    let (first, second) = match &range.ty {
        Ty::List(element, _) if c.iter_var2.is_some() => (Ty::Int, Some((**element).clone())),
        Ty::List(element, _) => ((**element).clone(), None),
        Ty::Map(key, value, _) => ((**key).clone(), Some((**value).clone())),
        Ty::Dyn => (Ty::Dyn, Some(Ty::Dyn)),
        other => {
            return fail(
                format!(
                    "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                    other.name()
                ),
                &text_of(&c.iter_range),
            );
        }
    };
    let mut with_first = TypeEnv::new(Some(names), &c.iter_var, first);
    if let (Ty::List(..), Some(size)) = (&range.ty, element_size(&range)) {
        with_first.checked.size = size;
    }
    let with_second = match (&c.iter_var2, second) {
        (Some(name), Some(ty)) => Some(TypeEnv::new(Some(&with_first), name, ty)),
        _ => None,
    };
    let item_names = with_second.as_ref().unwrap_or(&with_first);
    let init = check(&c.accu_init, names)?;
    let mut accumulated = TypeEnv::new(Some(item_names), &c.accu_var, init.ty.clone());
    if matches!(init.ty, Ty::List(..)) {
        // The element type is known only after the loop step is checked.
        accumulated.checked.ty = Ty::List(Box::new(Ty::Dyn), None);
        // Appending in place costs the size of the appended element, not of the list.
        accumulated.checked.size = 0;
    }
    let condition = check(&c.loop_cond, &accumulated)?;
    let step = check(&c.loop_step, &accumulated)?;
    let each = condition.cost.saturating_add(step.cost).saturating_add(1);
    let cost = range.cost.saturating_add(init.cost).saturating_add(each.saturating_mul(range.size));
    if let Ty::List(..) = init.ty {
        let element = appended_type(&c.loop_step, &accumulated).unwrap_or(Ty::Dyn);
        return Ok(CheckedExpr {
            ty: Ty::List(Box::new(element), None),
            cost,
            size: range.size,
            element: None,
        });
    }
    if !step.ty.may_be(&accumulated.checked.ty) {
        return no_overload("_&&_", None, &[accumulated.checked.clone(), step]);
    }
    let after = TypeEnv {
        outer: Some(names),
        name: &c.accu_var,
        checked: CheckedExpr { ty: init.ty, cost: 1, size: 1, element: None },
    };
    let result = check(&c.result, &after)?;
    Ok(CheckedExpr { cost: cost.saturating_add(result.cost), ..result })
}

/// The element type that the loop step of `map` or `filter` appends.
fn appended_type<'a>(step: &IdedExpr, names: &TypeEnv<'_, 'a>) -> Option<Ty<'a>> {
    let Expr::Call(CallExpr { func_name, args, .. }) = &step.expr else { return None };
    match (func_name.as_str(), args.as_slice()) {
        (operators::CONDITIONAL, [_, yes, _]) => appended_type(yes, names),
        (operators::ADD, [_, IdedExpr { expr: Expr::List(list), .. }]) => {
            check(list.elements.first()?, names).ok().map(|f| f.ty)
        }
        _ => None,
    }
}
