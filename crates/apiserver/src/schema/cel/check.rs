//! Expressions judged before they ever run: do the names, fields and types fit, and what could it cost at worst?
//!
//! The schema gives every field a type and a largest size: `maxLength`, `maxItems`, `maxProperties`, or what fits into the
//! largest request. A loop costs its body times the largest size of what it walks, so a rule over an unbounded list of
//! unbounded lists is refused when the CRD is written and not when it first hurts.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};

use super::library::{self, Returns};
use super::types::{REQUEST_MAX, Ty};
use super::value;
use crate::schema::node::Node;

/// A complaint with the text to point at.
#[derive(Debug)]
pub(crate) struct Complaint {
    pub(crate) message: String,
    /// The text in the source that is meant, e.g. `.size`.
    pub(crate) at: String,
    /// How far into that text the mark belongs: calls are marked at their bracket.
    pub(crate) offset: usize,
}

/// What a check found.
#[derive(Debug, Clone)]
pub(crate) struct Found<'a> {
    pub(crate) ty: Ty<'a>,
    /// The worst cost of computing it.
    pub(crate) cost: u64,
    size: u64,
    /// The largest size of an element of a list that has no schema of its own.
    element: Option<u64>,
}

/// The names an expression may use.
pub(crate) struct Names<'n, 'a> {
    outer: Option<&'n Names<'n, 'a>>,
    name: &'n str,
    found: Found<'a>,
}

impl<'n, 'a> Names<'n, 'a> {
    pub(crate) fn new(outer: Option<&'n Names<'n, 'a>>, name: &'n str, ty: Ty<'a>) -> Self {
        let size = ty.size(None);
        Self { outer, name, found: Found { ty, cost: 1, size, element: None } }
    }

    /// A name whose value has this schema, and so a known largest size.
    pub(crate) fn of_node(outer: Option<&'n Names<'n, 'a>>, name: &'n str, ty: Ty<'a>, node: &Node) -> Self {
        let size = ty.size(Some(node));
        Self { outer, name, found: Found { ty, cost: 1, size, element: None } }
    }

    fn get(&self, name: &str) -> Option<&Found<'a>> {
        if self.name == name { Some(&self.found) } else { self.outer?.get(name) }
    }
}

type Checked<'a> = Result<Found<'a>, Complaint>;

fn complain<T>(message: String, at: &str) -> Result<T, Complaint> {
    Err(Complaint { message, at: at.to_owned(), offset: 0 })
}

fn complain_of_call<T>(message: String, name: &str) -> Result<T, Complaint> {
    Err(Complaint { message, at: format!("{name}("), offset: name.len() })
}

/// The text to look for when an expression is meant.
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

fn expected<T>(wanted: &str, found: &Ty<'_>, expr: &IdedExpr) -> Result<T, Complaint> {
    complain(format!("expected type '{wanted}' but found '{}'", found.name()), &text_of(expr))
}

fn tenth(size: u64) -> u64 {
    size.div_ceil(10)
}

fn found<'a>(ty: Ty<'a>, cost: u64) -> Found<'a> {
    let size = ty.size(None);
    Found { ty, cost, size, element: None }
}

/// Judges an expression.
pub(crate) fn check<'a>(expr: &IdedExpr, names: &Names<'_, 'a>) -> Checked<'a> {
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
            Ok(Found { ty, cost: 0, size, element: None })
        }
        Expr::Ident(name) => match names.get(name) {
            Some(found) => Ok(found.clone()),
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
                Ok(found(Ty::Type, 1))
            }
            None => complain(format!("undeclared reference to '{name}' (in container '')"), name),
        },
        Expr::Select(select) => {
            let operand = check(&select.operand, names)?;
            let selected = field(&operand, &select.field);
            if let (true, Err(complaint)) = (select.test, &selected) {
                return complain_of_call(complaint.message.clone(), "has");
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
            Ok(Found {
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
            Ok(Found {
                ty: Ty::Map(Box::new(key), Box::new(value), None),
                cost,
                size: map.entries.len() as u64,
                element: None,
            })
        }
        Expr::Call(call) => check_call(call, names),
        Expr::Comprehension(comprehension) => check_loop(comprehension, names),
        Expr::Struct(object) => complain(
            format!("undeclared reference to '{}' (in container '')", object.type_name),
            &object.type_name,
        ),
        Expr::Unspecified => complain("expression is empty".to_owned(), ""),
    }
}

fn field<'a>(operand: &Found<'a>, spelled: &str) -> Checked<'a> {
    let at = format!(".{spelled}");
    let undefined = || complain(format!("undefined field '{spelled}'"), &at);
    match &operand.ty {
        Ty::Dyn => Ok(found(Ty::Dyn, 0)),
        Ty::Map(_, value, node) => {
            let child = node.and_then(|n| n.additional_schema());
            let size = value.size(child);
            Ok(Found { ty: (**value).clone(), cost: 0, size, element: None })
        }
        Ty::Metadata if matches!(spelled, "name" | "generateName") => Ok(found(Ty::Text, 0)),
        Ty::Metadata => undefined(),
        Ty::Object(node, resource) => {
            let name = value::unescape(spelled);
            match (&*name, *resource) {
                ("metadata", true) => return Ok(found(Ty::Metadata, 0)),
                ("apiVersion" | "kind", true) => return Ok(found(Ty::Text, 0)),
                _ => {}
            }
            if !value::spellable(&name) {
                return undefined();
            }
            match node.property(&name).and_then(|child| Some((Ty::of(child, false)?, child))) {
                Some((ty, child)) => {
                    let size = ty.size(Some(child));
                    Ok(Found { ty, cost: 0, size, element: None })
                }
                None => undefined(),
            }
        }
        Ty::Optional(inner) => {
            let inner =
                field(&Found { ty: (**inner).clone(), cost: 0, size: operand.size, element: None }, spelled)?;
            Ok(Found { ty: Ty::Optional(Box::new(inner.ty)), ..inner })
        }
        other => complain(format!("type '{}' does not support field selection", other.name()), &at),
    }
}

fn no_overload<T>(name: &str, target: Option<&Found<'_>>, args: &[Found<'_>]) -> Result<T, Complaint> {
    let listed: Vec<String> = args.iter().map(|a| a.ty.name()).collect();
    let shown = match target {
        Some(target) => format!("{}.({})", target.ty.name(), listed.join(", ")),
        None => format!("({})", listed.join(", ")),
    };
    let message = format!("found no matching overload for '{name}' applied to '{shown}'");
    match name {
        operators::CONDITIONAL => complain(message, "?"),
        operators::INDEX | operators::OPT_INDEX => complain(message, "["),
        name if name.starts_with(['_', '@']) || name.ends_with('_') => {
            complain(message, name.trim_matches('_').trim_start_matches('@'))
        }
        name => complain_of_call(message, name),
    }
}

fn check_call<'a>(call: &CallExpr, names: &Names<'_, 'a>) -> Checked<'a> {
    let name = call.func_name.as_str();
    if let ("optMap" | "optFlatMap", [IdedExpr { expr: Expr::Ident(variable), .. }, body], Some(target)) =
        (name, call.args.as_slice(), &call.target)
    {
        let target = check(target, names)?;
        let inner = match &target.ty {
            Ty::Optional(inner) => (**inner).clone(),
            _ => Ty::Dyn,
        };
        let scope = Names::new(Some(names), variable, inner);
        let body = check(body, &scope)?;
        let ty = if name == "optMap" { Ty::Optional(Box::new(body.ty)) } else { body.ty };
        return Ok(Found { ty, cost: target.cost.saturating_add(body.cost), size: body.size, element: None });
    }
    if let [IdedExpr { expr: Expr::Ident(first), .. }, IdedExpr { expr: Expr::Ident(second), .. }, rest @ ..] =
        call.args.as_slice()
        && let Some(target) = &call.target
        && super::eval::is_pair_macro(name, call.args.len())
    {
        return check_pairs(name, target, first, second, rest, names);
    }
    if let (operators::LOGICAL_AND | operators::LOGICAL_OR, [a, b]) = (name, call.args.as_slice()) {
        let mut cost = 0u64;
        for side in [a, b] {
            let found = check(side, names)?;
            if !found.ty.may_be(&Ty::Bool) {
                return expected("bool", &found.ty, side);
            }
            cost = cost.saturating_add(found.cost);
        }
        return Ok(found(Ty::Bool, cost));
    }
    if let (
        operators::OPT_SELECT,
        [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(field_name)), .. }],
    ) = (name, call.args.as_slice())
    {
        let operand = check(operand, names)?;
        let selected = field(&operand, field_name.inner())
            .map_err(|complaint| Complaint { at: format!(".?{}", field_name.inner()), ..complaint })?;
        let ty = match selected.ty {
            ty @ Ty::Optional(_) => ty,
            ty => Ty::Optional(Box::new(ty)),
        };
        return Ok(Found { ty, cost: operand.cost.saturating_add(1), size: selected.size, element: None });
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
    let args: Vec<Found<'a>> = call.args.iter().map(|a| check(a, names)).collect::<Result<_, _>>()?;
    let inputs: u64 = args.iter().chain(&target).fold(0u64, |sum, f| sum.saturating_add(f.cost));
    if target.is_none()
        && namespace.is_none()
        && let Some(operator) = check_operator(name, &args)?
    {
        return Ok(Found { cost: operator.cost.saturating_add(inputs), ..operator });
    }
    let full_name = namespace.map_or_else(|| name.to_owned(), |n| format!("{n}.{name}"));
    let Some(returns) = library::returns(&full_name) else {
        return complain_of_call(format!("undeclared reference to '{name}' (in container '')"), name);
    };
    check_function(&full_name, returns, target, &args, inputs)
}

fn check_operator<'a>(name: &str, args: &[Found<'a>]) -> Result<Option<Found<'a>>, Complaint> {
    let text_cost = |a: &Found<'_>, b: &Found<'_>| {
        if matches!(a.ty, Ty::Text | Ty::Bytes | Ty::List(..) | Ty::Map(..)) {
            tenth(a.size.min(b.size))
        } else {
            0
        }
    };
    Ok(Some(match (name, args) {
        (operators::LOGICAL_NOT, [a]) if a.ty.may_be(&Ty::Bool) => found(Ty::Bool, 1),
        (operators::NOT_STRICTLY_FALSE, [_]) => found(Ty::Bool, 0),
        (operators::CONDITIONAL, [test, yes, no]) => {
            if !test.ty.may_be(&Ty::Bool) || !yes.ty.may_be(&no.ty) {
                return no_overload(name, None, args);
            }
            let ty = if matches!(yes.ty, Ty::Null) { no.ty.clone() } else { yes.ty.clone() };
            Found { ty, cost: 0, size: yes.size.max(no.size), element: None }
        }
        (operators::EQUALS | operators::NOT_EQUALS, [a, b]) if a.ty.may_be(&b.ty) => {
            found(Ty::Bool, 1 + text_cost(a, b))
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
            found(Ty::Bool, 1 + text_cost(a, b))
        }
        (operators::ADD, [a, b]) => match (&a.ty, &b.ty) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => {
                found(Ty::Dyn, 1 + tenth(a.size.saturating_add(b.size).min(REQUEST_MAX)))
            }
            (Ty::Text, Ty::Text) | (Ty::Bytes, Ty::Bytes) | (Ty::List(..), Ty::List(..))
                if a.ty.may_be(&b.ty) =>
            {
                let size = a.size.saturating_add(b.size);
                Found { ty: a.ty.clone(), cost: 1 + tenth(size), size, element: None }
            }
            (Ty::Time, Ty::Duration) | (Ty::Duration, Ty::Time) => found(Ty::Time, 1),
            (Ty::Duration, Ty::Duration) => found(Ty::Duration, 1),
            (x, y) if x.is_number() && x.may_be(y) => found(a.ty.clone(), 1),
            _ => return no_overload(name, None, args),
        },
        (operators::SUBSTRACT, [a, b]) => match (&a.ty, &b.ty) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => found(Ty::Dyn, 1),
            (Ty::Time, Ty::Time) => found(Ty::Duration, 1),
            (Ty::Time, Ty::Duration) => found(Ty::Time, 1),
            (Ty::Duration, Ty::Duration) => found(Ty::Duration, 1),
            (x, y) if x.is_number() && x.may_be(y) => found(a.ty.clone(), 1),
            _ => return no_overload(name, None, args),
        },
        (operators::MULTIPLY | operators::DIVIDE | operators::MODULO, [a, b]) => match (&a.ty, &b.ty) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => found(Ty::Dyn, 1),
            (x, y) if x.is_number() && x.may_be(y) => found(a.ty.clone(), 1),
            _ => return no_overload(name, None, args),
        },
        (operators::NEGATE, [a]) if a.ty.is_number() || matches!(a.ty, Ty::Dyn) => found(a.ty.clone(), 1),
        (operators::IN, [a, b]) => match &b.ty {
            Ty::Dyn => found(Ty::Bool, b.size.saturating_add(1)),
            Ty::List(element, _) if element.may_be(&a.ty) => found(Ty::Bool, 1u64.saturating_add(b.size)),
            Ty::Map(key, ..) if key.may_be(&a.ty) => found(Ty::Bool, 1),
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
            Found { ty, cost: 1, size, element: None }
        }
        (operators::OPT_SELECT, [a, _]) => {
            found(Ty::Optional(Box::new(Ty::Dyn)), 1u64.saturating_add(a.cost.min(1)))
        }
        (operators::LOGICAL_NOT | operators::NEGATE | operators::EQUALS | operators::NOT_EQUALS, _) => {
            return no_overload(name, None, args);
        }
        _ => return Ok(None),
    }))
}

/// Can a function of the libraries work on a value of this type?
fn takes(name: &str, ty: Option<&Ty<'_>>) -> bool {
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
    returns: Returns,
    target: Option<Found<'a>>,
    args: &[Found<'a>],
    inputs: u64,
) -> Checked<'a> {
    let first = target.as_ref().or(args.first());
    let size_of = |f: Option<&Found<'a>>| f.map_or(1, |f| f.size);
    // Functions over text must be given text, the commonest mistake of all.
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
    if !takes(name, first.map(|f| &f.ty)) {
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
        Returns::Bool => (Ty::Bool, 1),
        Returns::Int => (Ty::Int, 1),
        Returns::Uint => (Ty::Uint, 1),
        Returns::Double => (Ty::Double, 1),
        Returns::Text => (Ty::Text, text_size(name, first, args)),
        Returns::Bytes => (Ty::Bytes, size_of(first)),
        Returns::Time => (Ty::Time, 1),
        Returns::Duration => (Ty::Duration, 1),
        Returns::Type => (Ty::Type, 1),
        Returns::Texts => (Ty::List(Box::new(Ty::Text), None), size_of(first)),
        Returns::Receiver => (first.map_or(Ty::Dyn, |f| f.ty.clone()), size_of(first)),
        Returns::Element => match first.map(|f| &f.ty) {
            Some(Ty::List(element, _)) => ((**element).clone(), UNKNOWN),
            _ => (Ty::Dyn, size_of(first)),
        },
        Returns::MaybeElement => match first.map(|f| &f.ty) {
            Some(Ty::List(element, _)) => (Ty::Optional(element.clone()), UNKNOWN),
            _ => (Ty::Optional(Box::new(Ty::Dyn)), size_of(first)),
        },
        Returns::Named(name) => (Ty::Named(name), 1),
        Returns::Anything => match (name, first.map(|f| &f.ty)) {
            ("value" | "orValue", Some(Ty::Optional(inner))) => ((**inner).clone(), UNKNOWN),
            ("or", Some(ty)) => (ty.clone(), size_of(first)),
            ("optional.of" | "optional.ofNonZeroValue", Some(ty)) => {
                (Ty::Optional(Box::new(ty.clone())), size_of(first))
            }
            ("optional.none", _) => (Ty::Optional(Box::new(Ty::Dyn)), 1),
            _ => (Ty::Dyn, size_of(first)),
        },
    };
    let element = (returns == Returns::Texts).then(|| size_of(first));
    Ok(Found { ty, cost, size, element })
}

/// A size that nothing bounds; whatever walks such a value is refused, as Kubernetes refuses it.
const UNKNOWN: u64 = u64::MAX;

/// The largest text that a function makes. Kubernetes knows it for a few functions only.
fn text_size(name: &str, first: Option<&Found<'_>>, args: &[Found<'_>]) -> u64 {
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

/// The largest size of the elements of a list, where it is known.
fn element_size(list: &Found<'_>) -> Option<u64> {
    match &list.ty {
        Ty::List(element, Some(node)) => Some(element.size(node.items.as_deref())),
        _ => list.element,
    }
}

/// Loops over two names: keys and values, or places and elements.
fn check_pairs<'a>(
    name: &str,
    target: &IdedExpr,
    first: &str,
    second: &str,
    rest: &[IdedExpr],
    names: &Names<'_, 'a>,
) -> Checked<'a> {
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
            return complain(message, &text_of(target));
        }
    };
    let with_key = Names::new(Some(names), first, key.clone());
    let inner = Names::new(Some(&with_key), second, value);
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
    Ok(Found { ty, cost, size: range.size, element: None })
}

fn check_loop<'a>(c: &ComprehensionExpr, names: &Names<'_, 'a>) -> Checked<'a> {
    let range = check(&c.iter_range, names)?;
    let (first, second) = match &range.ty {
        Ty::List(element, _) if c.iter_var2.is_some() => (Ty::Int, Some((**element).clone())),
        Ty::List(element, _) => ((**element).clone(), None),
        Ty::Map(key, value, _) => ((**key).clone(), Some((**value).clone())),
        Ty::Dyn => (Ty::Dyn, Some(Ty::Dyn)),
        other => {
            return complain(
                format!(
                    "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                    other.name()
                ),
                &text_of(&c.iter_range),
            );
        }
    };
    let mut with_first = Names::new(Some(names), &c.iter_var, first);
    if let (Ty::List(..), Some(size)) = (&range.ty, element_size(&range)) {
        with_first.found.size = size;
    }
    let with_second = match (&c.iter_var2, second) {
        (Some(name), Some(ty)) => Some(Names::new(Some(&with_first), name, ty)),
        _ => None,
    };
    let item_names = with_second.as_ref().unwrap_or(&with_first);
    let init = check(&c.accu_init, names)?;
    let mut accumulated = Names::new(Some(item_names), &c.accu_var, init.ty.clone());
    if matches!(init.ty, Ty::List(..)) {
        // Its elements are what the step puts in; known after the first look at it.
        accumulated.found.ty = Ty::List(Box::new(Ty::Dyn), None);
        // Growing in place costs what is added, not what is there.
        accumulated.found.size = 0;
    }
    let condition = check(&c.loop_cond, &accumulated)?;
    let step = check(&c.loop_step, &accumulated)?;
    let each = condition.cost.saturating_add(step.cost).saturating_add(1);
    let cost = range.cost.saturating_add(init.cost).saturating_add(each.saturating_mul(range.size));
    if let Ty::List(..) = init.ty {
        let element = appended_type(&c.loop_step, &accumulated).unwrap_or(Ty::Dyn);
        return Ok(Found { ty: Ty::List(Box::new(element), None), cost, size: range.size, element: None });
    }
    if !step.ty.may_be(&accumulated.found.ty) {
        return no_overload("_&&_", None, &[accumulated.found.clone(), step]);
    }
    let after = Names {
        outer: Some(names),
        name: &c.accu_var,
        found: Found { ty: init.ty, cost: 1, size: 1, element: None },
    };
    let result = check(&c.result, &after)?;
    Ok(Found { cost: cost.saturating_add(result.cost), ..result })
}

/// The type that the step of `map` or `filter` puts into its list.
fn appended_type<'a>(step: &IdedExpr, names: &Names<'_, 'a>) -> Option<Ty<'a>> {
    let Expr::Call(CallExpr { func_name, args, .. }) = &step.expr else { return None };
    match (func_name.as_str(), args.as_slice()) {
        (operators::CONDITIONAL, [_, yes, _]) => appended_type(yes, names),
        (operators::ADD, [_, IdedExpr { expr: Expr::List(list), .. }]) => {
            check(list.elements.first()?, names).ok().map(|f| f.ty)
        }
        _ => None,
    }
}
