//! CEL evaluator with a cost limit.
//!
//! Costs are those of Kubernetes: 1 for a variable, a field or a call, and a tenth of the size for strings
//! and lists. Evaluation stops at the limit, so a rule cannot block the server. The parser bounds the nesting
//! of an expression, and with it the recursion here.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::rc::Rc;

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};

use super::library;
use super::value::{Key, Val};
use crate::schema::pattern;

/// An evaluation error, with the messages of cel-go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EvalError {
    NoSuchKey(String),
    NoOverload,
    TooCostly,
    Other(String),
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchKey(key) => write!(f, "no such key: {key}"),
            Self::NoOverload => f.write_str("no such overload"),
            Self::TooCostly => f.write_str("operation cancelled: actual cost limit exceeded"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

pub(crate) type EvalResult<'a> = Result<Val<'a>, EvalError>;

/// The variables of an expression and their values.
pub(crate) struct Activation<'s, 'a> {
    outer: Option<&'s Activation<'s, 'a>>,
    name: &'s str,
    value: Val<'a>,
}

impl<'s, 'a> Activation<'s, 'a> {
    /// Adds a variable to the outer variables.
    pub(crate) fn new(outer: Option<&'s Activation<'s, 'a>>, name: &'s str, value: Val<'a>) -> Self {
        Self { outer, name, value }
    }

    fn get(&self, name: &str) -> Option<&Val<'a>> {
        if self.name == name { Some(&self.value) } else { self.outer?.get(name) }
    }
}

/// Variables that are evaluated on first use: `variables.x` of an admission policy.
pub(crate) trait LazyVariables<'a> {
    /// The value of a variable and the cost of its evaluation; `None` if there is no such variable.
    fn get(&self, name: &str, limit: u64) -> Option<(EvalResult<'a>, u64)>;
}

/// One evaluation, with its cost so far and its cost limit.
pub(crate) struct Evaluation<'v, 'a> {
    cost: Cell<u64>,
    limit: u64,
    variables: Option<&'v dyn LazyVariables<'a>>,
}

const TEXT_FACTOR: f64 = 0.1;

fn tenth(size: usize) -> u64 {
    (size as f64 * TEXT_FACTOR).ceil() as u64
}

impl<'v, 'a> Evaluation<'v, 'a> {
    /// An evaluation with the cost limit `limit`.
    pub(crate) fn new(limit: u64) -> Self {
        Self { cost: Cell::new(0), limit, variables: None }
    }

    /// The same, where `variables.x` is looked up in `variables`.
    pub(crate) fn with_variables(limit: u64, variables: &'v dyn LazyVariables<'a>) -> Self {
        Self { cost: Cell::new(0), limit, variables: Some(variables) }
    }

    /// The cost so far.
    pub(crate) fn cost(&self) -> u64 {
        self.cost.get()
    }

    fn charge(&self, cost: u64) -> Result<(), EvalError> {
        let total = self.cost.get().saturating_add(cost);
        self.cost.set(total);
        if total > self.limit { Err(EvalError::TooCostly) } else { Ok(()) }
    }

    /// Evaluates an expression.
    pub(crate) fn eval(&self, expr: &'a IdedExpr, scope: &Activation<'_, 'a>) -> EvalResult<'a> {
        match &expr.expr {
            Expr::Literal(literal) => Ok(literal_value(literal)),
            Expr::Ident(name) => {
                self.charge(1)?;
                match scope.get(name) {
                    Some(value) => Ok(value.clone()),
                    None => type_named(name)
                        .ok_or_else(|| EvalError::Other(format!("no such attribute(s): {name}"))),
                }
            }
            Expr::Select(select) => {
                if let (Some(variables), Expr::Ident(name)) = (self.variables, &select.operand.expr)
                    && name == "variables"
                    && let Some((outcome, cost)) =
                        variables.get(&select.field, self.limit.saturating_sub(self.cost.get()))
                {
                    self.charge(cost.saturating_add(2))?;
                    return if select.test { outcome.map(|_| Val::Bool(true)) } else { outcome };
                }
                let operand = self.eval(&select.operand, scope)?;
                self.charge(1)?;
                let (operand, optional) = match operand {
                    Val::Optional(Some(inner)) => ((*inner).clone(), true),
                    Val::Optional(None) if select.test => return Ok(Val::Bool(false)),
                    Val::Optional(None) => return Ok(Val::Optional(None)),
                    other => (other, false),
                };
                let found = operand.field(&select.field);
                match (select.test, found) {
                    (true, found) => Ok(Val::Bool(found.is_some())),
                    (false, found) if optional => Ok(Val::Optional(found.map(Rc::new))),
                    (false, Some(value)) => Ok(value),
                    (false, None) if operand.keys().is_some() => {
                        Err(EvalError::NoSuchKey(select.field.clone()))
                    }
                    (false, None) => Err(EvalError::NoOverload),
                }
            }
            Expr::List(list) => {
                self.charge(10)?;
                let mut items = Vec::with_capacity(list.elements.len());
                for (i, element) in list.elements.iter().enumerate() {
                    let value = self.eval(element, scope)?;
                    match value {
                        Val::Optional(inner) if list.optional_indices.contains(&i) => {
                            items.extend(inner.map(|v| (*v).clone()))
                        }
                        value => items.push(value),
                    }
                }
                Ok(Val::list(items))
            }
            Expr::Map(map) => {
                self.charge(30)?;
                let mut entries = BTreeMap::new();
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { return Err(EvalError::NoOverload) };
                    let key = self.eval(&entry.key, scope)?.as_key().ok_or(EvalError::NoOverload)?;
                    match (self.eval(&entry.value, scope)?, entry.optional) {
                        (Val::Optional(None), true) => {}
                        (Val::Optional(Some(value)), true) => drop(entries.insert(key, (*value).clone())),
                        (value, _) => drop(entries.insert(key, value)),
                    }
                }
                Ok(Val::Map(Rc::new(entries)))
            }
            Expr::Call(call) => self.call(call, scope),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, scope),
            Expr::Struct(_) | Expr::Unspecified => Err(EvalError::NoOverload),
        }
    }

    fn eval_bool(&self, expr: &'a IdedExpr, scope: &Activation<'_, 'a>) -> Result<bool, EvalError> {
        match self.eval(expr, scope)? {
            Val::Bool(b) => Ok(b),
            _ => Err(EvalError::NoOverload),
        }
    }

    fn call(&self, call: &'a CallExpr, scope: &Activation<'_, 'a>) -> EvalResult<'a> {
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::LOGICAL_AND, [a, b]) => return self.logic(a, b, scope, false),
            (operators::LOGICAL_OR, [a, b]) => return self.logic(a, b, scope, true),
            (operators::CONDITIONAL, [test, yes, no]) => {
                return if self.eval_bool(test, scope)? {
                    self.eval(yes, scope)
                } else {
                    self.eval(no, scope)
                };
            }
            (operators::NOT_STRICTLY_FALSE, [a]) => {
                return match self.eval_bool(a, scope) {
                    Err(EvalError::TooCostly) => Err(EvalError::TooCostly),
                    result => Ok(Val::Bool(result != Ok(false))),
                };
            }
            ("optMap" | "optFlatMap", [name, body]) => {
                if let (Some(target), Expr::Ident(name)) = (&call.target, &name.expr) {
                    return self.opt_map(target, name, body, call.func_name == "optFlatMap", scope);
                }
            }
            (
                macro_name,
                [
                    IdedExpr { expr: Expr::Ident(first), .. },
                    IdedExpr { expr: Expr::Ident(second), .. },
                    rest @ ..,
                ],
            ) if is_two_variable_macro(macro_name, call.args.len()) && call.target.is_some() => {
                let Some(target) = &call.target else { return Err(EvalError::NoOverload) };
                return self.two_variable_macro(macro_name, target, first, second, rest, scope);
            }
            ("or" | "orValue", [other]) if call.target.is_some() => {
                let Some(target) = &call.target else { return Err(EvalError::NoOverload) };
                return match self.eval(target, scope)? {
                    Val::Optional(Some(value)) if call.func_name == "orValue" => Ok((*value).clone()),
                    value @ Val::Optional(Some(_)) => Ok(value),
                    Val::Optional(None) => self.eval(other, scope),
                    _ => Err(EvalError::NoOverload),
                };
            }
            _ => {}
        }
        let namespace = match &call.target {
            Some(target) => match &target.expr {
                Expr::Ident(name) if library::is_namespace(name) && scope.get(name).is_none() => {
                    Some(name.as_str())
                }
                _ => None,
            },
            None => None,
        };
        let target = match &call.target {
            Some(target) if namespace.is_none() => Some(self.eval(target, scope)?),
            _ => None,
        };
        let mut args = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            args.push(self.eval(arg, scope)?);
        }
        self.charge(1)?;
        match namespace {
            Some(namespace) => self.library(&format!("{namespace}.{}", call.func_name), None, &args),
            None => self.operate(&call.func_name, target, args),
        }
    }

    /// `&&` and `||`: an error of one operand is ignored if the other operand determines the result.
    fn logic(
        &self,
        a: &'a IdedExpr,
        b: &'a IdedExpr,
        scope: &Activation<'_, 'a>,
        decides: bool,
    ) -> EvalResult<'a> {
        let left = self.eval_bool(a, scope);
        if matches!(left, Err(EvalError::TooCostly)) {
            return left.map(Val::Bool);
        }
        if left == Ok(decides) {
            return Ok(Val::Bool(decides));
        }
        match (left, self.eval_bool(b, scope)) {
            (_, Ok(right)) if right == decides => Ok(Val::Bool(decides)),
            (_, Err(EvalError::TooCostly)) => Err(EvalError::TooCostly),
            (Err(error), _) | (_, Err(error)) => Err(error),
            _ => Ok(Val::Bool(!decides)),
        }
    }

    fn opt_map(
        &self,
        target: &'a IdedExpr,
        name: &'a str,
        body: &'a IdedExpr,
        flat: bool,
        scope: &Activation<'_, 'a>,
    ) -> EvalResult<'a> {
        match self.eval(target, scope)? {
            Val::Optional(None) => Ok(Val::Optional(None)),
            Val::Optional(Some(value)) => {
                let inner = Activation::new(Some(scope), name, (*value).clone());
                let result = self.eval(body, &inner)?;
                Ok(if flat { result } else { Val::Optional(Some(Rc::new(result))) })
            }
            _ => Err(EvalError::NoOverload),
        }
    }

    fn comprehension(&self, c: &'a ComprehensionExpr, scope: &Activation<'_, 'a>) -> EvalResult<'a> {
        let range = self.eval(&c.iter_range, scope)?;
        let iterations: Vec<(Val<'a>, Option<Val<'a>>)> = match (range.is_list(), c.iter_var2.is_some()) {
            (true, false) => {
                range.items().ok_or(EvalError::NoOverload)?.into_iter().map(|v| (v, None)).collect()
            }
            (true, true) => range
                .items()
                .ok_or(EvalError::NoOverload)?
                .into_iter()
                .enumerate()
                .map(|(i, v)| (Val::Int(i as i64), Some(v)))
                .collect(),
            (false, two) => {
                let keys = range.keys().ok_or(EvalError::NoOverload)?;
                keys.into_iter()
                    .map(|k| (k.clone(), if two { k.as_key().and_then(|k| range.at_key(&k)) } else { None }))
                    .collect()
            }
        };
        let mut accumulated = self.eval(&c.accu_init, scope)?;
        for (first, second) in iterations {
            self.charge(1)?;
            let with_first = Activation::new(Some(scope), &c.iter_var, first);
            let with_second = match (&c.iter_var2, second) {
                (Some(name), Some(value)) => Some(Activation::new(Some(&with_first), name, value)),
                _ => None,
            };
            let item_scope = with_second.as_ref().unwrap_or(&with_first);
            // Append in place: copying the list at every iteration would make `map` quadratic.
            if let Some(appended_list) = self.append_in_place(c, &mut accumulated, item_scope)? {
                accumulated = appended_list;
                continue;
            }
            let inner = Activation::new(Some(item_scope), &c.accu_var, accumulated);
            if !self.eval_bool(&c.loop_cond, &inner)? {
                accumulated = inner.value;
                break;
            }
            accumulated = self.eval(&c.loop_step, &inner)?;
        }
        let done = Activation::new(Some(scope), &c.accu_var, accumulated);
        self.eval(&c.result, &done)
    }

    /// Executes the loop step of `map` and `filter`: `accu + [x]`, optionally under a condition. `None` for
    /// any other loop step.
    fn append_in_place(
        &self,
        c: &'a ComprehensionExpr,
        accumulated: &mut Val<'a>,
        scope: &Activation<'_, 'a>,
    ) -> Result<Option<Val<'a>>, EvalError> {
        fn appended<'e>(expr: &'e IdedExpr, accu: &str) -> Option<&'e IdedExpr> {
            let Expr::Call(CallExpr { func_name, args, .. }) = &expr.expr else { return None };
            match (func_name.as_str(), args.as_slice()) {
                (
                    operators::ADD,
                    [IdedExpr { expr: Expr::Ident(name), .. }, IdedExpr { expr: Expr::List(list), .. }],
                ) if name == accu && list.elements.len() == 1 => list.elements.first(),
                _ => None,
            }
        }
        let Val::List(items) = accumulated else { return Ok(None) };
        let (test, element) = match (&c.loop_step.expr, appended(&c.loop_step, &c.accu_var)) {
            (_, Some(element)) => (None, element),
            (Expr::Call(CallExpr { func_name, args, .. }), None)
                if func_name == operators::CONDITIONAL && args.len() == 3 =>
            {
                match appended(&args[1], &c.accu_var) {
                    Some(element) => (Some(&args[0]), element),
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        self.charge(2)?;
        let mut items = std::mem::take(items);
        if test.map_or(Ok(true), |test| self.eval_bool(test, scope))? {
            let value = self.eval(element, scope)?;
            Rc::make_mut(&mut items).push(value);
        }
        Ok(Some(Val::List(items)))
    }

    /// Evaluates a two-variable macro, e.g. `all(k, v, …)` or `transformMap(k, v, …)`, over keys and values
    /// of a map or indexes and elements of a list.
    fn two_variable_macro(
        &self,
        name: &str,
        target: &'a IdedExpr,
        first: &'a str,
        second: &'a str,
        rest: &'a [IdedExpr],
        scope: &Activation<'_, 'a>,
    ) -> EvalResult<'a> {
        let range = self.eval(target, scope)?;
        let keys: Vec<Val<'a>> = match range.size() {
            Some(length) if range.is_list() => (0..length as i64).map(Val::Int).collect(),
            _ => range.keys().ok_or(EvalError::NoOverload)?,
        };
        let values: Vec<Val<'a>> = match range.items() {
            Some(items) => items,
            None => keys.iter().filter_map(|k| range.at_key(&k.as_key()?)).collect(),
        };
        let (test, body) = match rest {
            [body] => (None, body),
            [test, body] => (Some(test), body),
            _ => return Err(EvalError::NoOverload),
        };
        let (mut list, mut map, mut count) = (Vec::new(), BTreeMap::new(), 0);
        let mut deferred_error = None;
        for (key, value) in keys.into_iter().zip(values) {
            self.charge(3)?;
            let with_key = Activation::new(Some(scope), first, key.clone());
            let inner = Activation::new(Some(&with_key), second, value);
            if !test.map_or(Ok(true), |test| self.eval_bool(test, &inner))? {
                continue;
            }
            match name {
                "all" | "exists" => match self.eval_bool(body, &inner) {
                    // An element that determines the result overrides errors of other elements.
                    Ok(holds) if holds != (name == "all") => return Ok(Val::Bool(holds)),
                    Ok(_) => {}
                    Err(EvalError::TooCostly) => return Err(EvalError::TooCostly),
                    Err(error) => deferred_error = Some(error),
                },
                "existsOne" | "exists_one" => count += u64::from(self.eval_bool(body, &inner)?),
                "transformList" => list.push(self.eval(body, &inner)?),
                "transformMap" => {
                    drop(map.insert(key.as_key().ok_or(EvalError::NoOverload)?, self.eval(body, &inner)?))
                }
                _ => {
                    let entry = self.eval(body, &inner)?;
                    for key in entry.keys().ok_or(EvalError::NoOverload)?.iter().filter_map(Val::as_key) {
                        let value = entry.at_key(&key).ok_or(EvalError::NoOverload)?;
                        map.insert(key, value);
                    }
                }
            }
        }
        match (name, deferred_error) {
            (_, Some(error)) => Err(error),
            ("all", _) => Ok(Val::Bool(true)),
            ("exists", _) => Ok(Val::Bool(false)),
            ("existsOne" | "exists_one", _) => Ok(Val::Bool(count == 1)),
            ("transformList", _) => Ok(Val::list(list)),
            _ => Ok(Val::Map(Rc::new(map))),
        }
    }

    fn operate(&self, name: &str, target: Option<Val<'a>>, args: Vec<Val<'a>>) -> EvalResult<'a> {
        if let (None, [a, b]) = (&target, args.as_slice())
            && let Some(result) = self.binary(name, a, b)
        {
            return result;
        }
        match (name, &target, args.as_slice()) {
            (operators::LOGICAL_NOT, None, [Val::Bool(b)]) => Ok(Val::Bool(!b)),
            (operators::NEGATE, None, [Val::Int(i)]) => {
                i.checked_neg().map(Val::Int).ok_or_else(|| EvalError::Other("integer overflow".to_owned()))
            }
            (operators::NEGATE, None, [Val::Double(d)]) => Ok(Val::Double(-d)),
            ("size", Some(value), []) | ("size", None, [value]) => {
                value.size().map(|n| Val::Int(n as i64)).ok_or(EvalError::NoOverload)
            }
            ("contains" | "startsWith" | "endsWith", Some(Val::Text(text)), [Val::Text(part)]) => {
                self.charge(tenth(text.len()).saturating_mul(if name == "contains" {
                    tenth(part.len()).max(1)
                } else {
                    1
                }))?;
                Ok(Val::Bool(match name {
                    "contains" => text.contains(&**part),
                    "startsWith" => text.starts_with(&**part),
                    _ => text.ends_with(&**part),
                }))
            }
            ("matches", Some(Val::Text(text)), [Val::Text(regex)])
            | ("matches", None, [Val::Text(text), Val::Text(regex)]) => {
                self.charge(tenth(text.len() + 1).saturating_mul((regex.len() as u64).div_ceil(4).max(1)))?;
                matches(text, regex).map(Val::Bool)
            }
            ("dyn", None, [value]) => Ok(value.clone()),
            ("type", None, [value]) => Ok(Val::Type(value.type_name())),
            ("bool", None, [Val::Bool(b)]) => Ok(Val::Bool(*b)),
            ("bool", None, [Val::Text(text)]) => match &**text {
                "true" | "True" | "TRUE" | "t" | "1" => Ok(Val::Bool(true)),
                "false" | "False" | "FALSE" | "f" | "0" => Ok(Val::Bool(false)),
                _ => Err(EvalError::Other("type conversion error from 'string' to 'bool'".to_owned())),
            },
            ("string", None, [Val::Text(_)]) => Ok(args[0].clone()),
            ("string", None, [Val::Bool(b)]) => Ok(Val::text(b.to_string())),
            ("string", None, [Val::Int(i)]) => Ok(Val::text(i.to_string())),
            ("string", None, [Val::Double(d)]) => Ok(Val::text(crate::schema::error::float(*d))),
            ("int", None, [Val::Int(_)]) => Ok(args[0].clone()),
            ("hasValue", Some(Val::Optional(inner)), []) => Ok(Val::Bool(inner.is_some())),
            ("value", Some(Val::Optional(inner)), []) => inner
                .as_ref()
                .map(|v| (**v).clone())
                .ok_or_else(|| EvalError::Other("optional.none() dereference".to_owned())),
            _ => self.library(name, target.as_ref(), &args),
        }
    }

    fn library(&self, name: &str, target: Option<&Val<'a>>, args: &[Val<'a>]) -> EvalResult<'a> {
        match (name, args) {
            ("optional.of", [value]) => return Ok(Val::Optional(Some(Rc::new(value.clone())))),
            ("optional.none", []) => return Ok(Val::Optional(None)),
            ("optional.ofNonZeroValue", [value]) => {
                let zero = matches!(value, Val::Null | Val::Bool(false) | Val::Int(0) | Val::Uint(0))
                    || value.size() == Some(0)
                    || matches!(value, Val::Double(d) if *d == 0.0);
                return Ok(Val::Optional((!zero).then(|| Rc::new(value.clone()))));
            }
            _ => {}
        }
        let size: usize = target.iter().copied().chain(args).map(|v| v.size().unwrap_or(1)).sum();
        self.charge(tenth(size).max(1))?;
        library::call(name, target, args)
    }

    /// Evaluates a binary operator; `None` if the name is not a binary operator.
    fn binary(&self, name: &str, a: &Val<'a>, b: &Val<'a>) -> Option<EvalResult<'a>> {
        let overflow = || EvalError::Other("integer overflow".to_owned());
        let arithmetic = |int: fn(i64, i64) -> Option<i64>,
                          uint: fn(u64, u64) -> Option<u64>,
                          double: fn(f64, f64) -> f64| match (a, b) {
            (Val::Int(a), Val::Int(b)) => Some(int(*a, *b).map(Val::Int).ok_or_else(overflow)),
            (Val::Uint(a), Val::Uint(b)) => Some(uint(*a, *b).map(Val::Uint).ok_or_else(overflow)),
            (Val::Double(a), Val::Double(b)) => Some(Ok(Val::Double(double(*a, *b)))),
            _ => None,
        };
        let outcome = match name {
            operators::EQUALS | operators::NOT_EQUALS => {
                let size = a.size().unwrap_or(1).min(b.size().unwrap_or(1));
                Some(self.charge(tenth(size)).map(|()| Val::Bool(a.equals(b) == (name == operators::EQUALS))))
            }
            operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS => {
                Some(match a.compare(b) {
                    Some(order) => Ok(Val::Bool(match name {
                        operators::LESS => order.is_lt(),
                        operators::LESS_EQUALS => order.is_le(),
                        operators::GREATER => order.is_gt(),
                        _ => order.is_ge(),
                    })),
                    None if matches!((a, b), (Val::Double(_), _) | (_, Val::Double(_))) => {
                        Ok(Val::Bool(false))
                    }
                    None => Err(EvalError::NoOverload),
                })
            }
            operators::IN => Some(self.contained(a, b)),
            operators::INDEX => Some(index(a, b)),
            operators::OPT_INDEX => Some(match a {
                Val::Optional(None) => Ok(Val::Optional(None)),
                Val::Optional(Some(inner)) => Ok(Val::Optional(index(inner, b).ok().map(Rc::new))),
                a => Ok(Val::Optional(index(a, b).ok().map(Rc::new))),
            }),
            operators::OPT_SELECT => Some(match (a, b) {
                (Val::Optional(None), _) => Ok(Val::Optional(None)),
                (Val::Optional(Some(inner)), Val::Text(field)) => {
                    Ok(Val::Optional(inner.field(field).map(Rc::new)))
                }
                (a, Val::Text(field)) => Ok(Val::Optional(a.field(field).map(Rc::new))),
                _ => Err(EvalError::NoOverload),
            }),
            operators::ADD => match (a, b) {
                (Val::Text(a), Val::Text(b)) => Some(
                    self.charge(tenth(a.len() + b.len())).map(|()| Val::Text(Cow::Owned(format!("{a}{b}")))),
                ),
                (a, b) if a.is_list() && b.is_list() => Some(self.concatenate(a, b)),
                _ => arithmetic(i64::checked_add, u64::checked_add, |a, b| a + b),
            },
            operators::SUBSTRACT => arithmetic(i64::checked_sub, u64::checked_sub, |a, b| a - b),
            operators::MULTIPLY => arithmetic(i64::checked_mul, u64::checked_mul, |a, b| a * b),
            operators::DIVIDE | operators::MODULO if matches!(b, Val::Int(0) | Val::Uint(0)) => {
                Some(Err(EvalError::Other(
                    if name == operators::DIVIDE { "division by zero" } else { "modulus by zero" }.to_owned(),
                )))
            }
            operators::DIVIDE => arithmetic(i64::checked_div, u64::checked_div, |a, b| a / b),
            operators::MODULO => match (a, b) {
                (Val::Double(_), _) | (_, Val::Double(_)) => Some(Err(EvalError::NoOverload)),
                _ => arithmetic(i64::checked_rem, u64::checked_rem, |a, b| a % b),
            },
            _ => return None,
        };
        // The library implements the operators of timestamps and durations.
        let has_foreign = matches!(a, Val::Foreign(_)) || matches!(b, Val::Foreign(_));
        match outcome {
            Some(outcome) => Some(outcome),
            None if has_foreign => Some(self.library(name, None, &[a.clone(), b.clone()])),
            None => Some(Err(EvalError::NoOverload)),
        }
    }

    fn concatenate(&self, a: &Val<'a>, b: &Val<'a>) -> EvalResult<'a> {
        let mut items = a.items().ok_or(EvalError::NoOverload)?;
        items.extend(b.items().ok_or(EvalError::NoOverload)?);
        self.charge(tenth(items.len()))?;
        Ok(Val::list(items))
    }

    fn contained(&self, a: &Val<'a>, b: &Val<'a>) -> EvalResult<'a> {
        if let Some(items) = b.items() {
            self.charge(items.len() as u64)?;
            return Ok(Val::Bool(items.iter().any(|item| item.equals(a))));
        }
        if b.keys().is_some() {
            return Ok(Val::Bool(a.as_key().is_some_and(|k| b.at_key(&k).is_some())));
        }
        Err(EvalError::NoOverload)
    }
}

/// Two-variable macros, which the parser does not expand.
pub(crate) fn is_two_variable_macro(name: &str, args: usize) -> bool {
    match name {
        "all" | "exists" | "existsOne" | "exists_one" => args == 3,
        "transformList" | "transformMap" | "transformMapEntry" => args == 3 || args == 4,
        _ => false,
    }
}

fn index<'a>(container: &Val<'a>, key: &Val<'a>) -> EvalResult<'a> {
    if let Some(items) = container.items() {
        let at = match key {
            Val::Int(i) => *i,
            Val::Uint(u) => i64::try_from(*u).unwrap_or(i64::MAX),
            Val::Double(d) if d.fract() == 0.0 => *d as i64,
            _ => return Err(EvalError::NoOverload),
        };
        return usize::try_from(at)
            .ok()
            .and_then(|i| items.get(i).cloned())
            .ok_or_else(|| EvalError::Other(format!("index out of bounds: {at}")));
    }
    let key = key.as_key().ok_or(EvalError::NoOverload)?;
    match container.at_key(&key) {
        Some(value) => Ok(value),
        None if container.keys().is_some() => Err(EvalError::NoSuchKey(match key {
            Key::Bool(b) => b.to_string(),
            Key::Int(i) => i.to_string(),
            Key::Text(text) => text,
        })),
        None => Err(EvalError::NoOverload),
    }
}

fn literal_value(literal: &LiteralValue) -> Val<'_> {
    match literal {
        LiteralValue::Boolean(b) => Val::Bool(*b.inner()),
        LiteralValue::Bytes(b) => Val::Bytes(b.inner().into()),
        LiteralValue::Double(d) => Val::Double(*d.inner()),
        LiteralValue::Int(i) => Val::Int(*i.inner()),
        LiteralValue::Null => Val::Null,
        LiteralValue::String(s) => Val::Text(Cow::Borrowed(s.inner())),
        LiteralValue::UInt(u) => Val::Uint(*u.inner()),
    }
}

fn type_named<'a>(name: &str) -> Option<Val<'a>> {
    let known = ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"];
    known.into_iter().find(|k| *k == name).map(Val::Type)
}

fn matches(text: &str, regex: &str) -> Result<bool, EvalError> {
    /// Maximum number of cached compiled patterns: rules on list elements evaluate the same pattern
    /// repeatedly.
    const CACHED_MAX: usize = 256;
    thread_local! {
        static COMPILED: RefCell<HashMap<String, Result<regex::Regex, String>>> = RefCell::new(HashMap::new());
    }
    COMPILED.with_borrow_mut(|compiled| {
        if compiled.len() > CACHED_MAX {
            compiled.clear();
        }
        let compiled = compiled.entry(regex.to_owned()).or_insert_with(|| pattern::compile(regex));
        match compiled {
            Ok(compiled) => Ok(compiled.is_match(text)),
            Err(why) => Err(EvalError::Other(format!("error parsing regexp: {why}"))),
        }
    })
}
