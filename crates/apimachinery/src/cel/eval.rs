//! CEL evaluator with a cost limit.
//!
//! Costs are those of Kubernetes: 1 for a variable, a field or a call, and a tenth of the size for strings
//! and lists. Evaluation stops at the limit, so a rule cannot block the server. What an expression computes
//! is charged before it is allocated, against the cost and against a limit of memory: see
//! [`cost`](super::cost). The parser bounds the nesting of an expression, and with it the recursion here.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};

use super::cost::{self, Budget, Extent};
use super::value::{Iter, Key, Text, Val};
use super::{Program, library, regexes};

/// An evaluation error, with the messages of cel-go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EvalError {
    NoSuchKey(String),
    NoOverload,
    /// The cost limit is exceeded.
    TooCostly,
    /// The memory limit is exceeded.
    TooLarge,
    Other(String),
}

impl EvalError {
    /// Whether a limit stopped the evaluation. No operator or macro may ignore such an error.
    pub(crate) fn is_limit(&self) -> bool {
        matches!(self, Self::TooCostly | Self::TooLarge)
    }
}

/// The start of a text, for messages: an error must not carry a value of megabytes.
pub(crate) fn shown(text: &str) -> &str {
    const SHOWN_MAX: usize = 1024;
    let end = (0..=SHOWN_MAX.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    &text[..end]
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchKey(key) => write!(f, "no such key: {key}"),
            Self::NoOverload => f.write_str("no such overload"),
            Self::TooCostly => f.write_str("operation cancelled: actual cost limit exceeded"),
            Self::TooLarge => write!(
                f,
                "operation cancelled: the values of the expression take more than {} MiB of memory; compute \
                 shorter strings and lists",
                cost::MEMORY_MAX >> 20
            ),
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
    /// The value of a variable and what its evaluation used; `None` if there is no such variable.
    fn get(&self, name: &str, limit: Budget) -> Option<(EvalResult<'a>, Budget)>;
}

/// One evaluation of a program, with what it used so far and its limit.
pub(crate) struct Evaluation<'v, 'a> {
    program: &'a Program,
    used: Cell<Budget>,
    limit: Budget,
    variables: Option<&'v dyn LazyVariables<'a>>,
    /// Compiled patterns that are not literals of the program.
    patterns: RefCell<HashMap<String, regexes::Compiled>>,
}

const TEXT_FACTOR: f64 = 0.1;

fn tenth(size: usize) -> u64 {
    (size as f64 * TEXT_FACTOR).ceil() as u64
}

impl<'v, 'a> Evaluation<'v, 'a> {
    /// An evaluation of a program. `variables.x` is looked up in `variables`, if any.
    pub(crate) fn new(
        program: &'a Program,
        limit: Budget,
        variables: Option<&'v dyn LazyVariables<'a>>,
    ) -> Self {
        Self { program, used: Cell::default(), limit, variables, patterns: RefCell::default() }
    }

    /// Evaluates the program.
    pub(crate) fn run(&self, scope: &Activation<'_, 'a>) -> EvalResult<'a> {
        self.eval(self.program.expr(), scope)
    }

    /// The cost and memory so far.
    pub(crate) fn used(&self) -> Budget {
        self.used.get()
    }

    fn left(&self) -> Budget {
        let used = self.used.get();
        Budget {
            cost: self.limit.cost.saturating_sub(used.cost),
            memory: self.limit.memory.saturating_sub(used.memory),
        }
    }

    fn charge(&self, cost: u64) -> Result<(), EvalError> {
        self.spend(Budget { cost, memory: 0 })
    }

    fn spend(&self, amount: Budget) -> Result<(), EvalError> {
        let used = self.used.get();
        let used = Budget {
            cost: used.cost.saturating_add(amount.cost),
            memory: used.memory.saturating_add(amount.memory),
        };
        self.used.set(used);
        if used.cost > self.limit.cost {
            return Err(EvalError::TooCostly);
        }
        if used.memory > self.limit.memory { Err(EvalError::TooLarge) } else { Ok(()) }
    }

    /// Takes the memory of values whose cost is charged otherwise.
    fn allocate(&self, extent: Extent) -> Result<(), EvalError> {
        self.spend(Budget { cost: 0, memory: extent.memory() })
    }

    /// Takes the cost and the memory of a result, before it is computed.
    fn produce(&self, extent: Extent) -> Result<(), EvalError> {
        self.spend(Budget { cost: extent.cost(), memory: extent.memory() })
    }

    /// A value that was read from the object. A string of format `byte`, `date-time` or `duration` is
    /// converted at every access.
    fn read(&self, value: Val<'a>) -> EvalResult<'a> {
        match &value {
            Val::Bytes(bytes) => self.produce(Extent::text(bytes.len() as u64))?,
            Val::Foreign(foreign) => self.charge(foreign.bytes.div_ceil(10))?,
            _ => {}
        }
        Ok(value)
    }

    fn optional(&self, found: Option<Val<'a>>) -> EvalResult<'a> {
        Ok(Val::Optional(found.map(|value| self.read(value)).transpose()?.map(Rc::new)))
    }

    fn eval(&self, expr: &'a IdedExpr, scope: &Activation<'_, 'a>) -> EvalResult<'a> {
        match &expr.expr {
            Expr::Literal(literal) => {
                let value = literal_value(literal);
                if let Val::Bytes(bytes) = &value {
                    self.allocate(Extent::text(bytes.len() as u64))?;
                }
                Ok(value)
            }
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
                    && let Some((outcome, used)) = variables.get(&select.field, self.left())
                {
                    self.spend(Budget { cost: used.cost.saturating_add(2), ..used })?;
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
                let found = operand.field(&select.field).map(|value| self.read(value)).transpose()?;
                match (select.test, found) {
                    (true, found) => Ok(Val::Bool(found.is_some())),
                    (false, found) if optional => Ok(Val::Optional(found.map(Rc::new))),
                    (false, Some(value)) => Ok(value),
                    (false, None) if operand.is_map() => {
                        Err(EvalError::NoSuchKey(shown(&select.field).to_owned()))
                    }
                    (false, None) => Err(EvalError::NoOverload),
                }
            }
            Expr::List(list) => {
                self.charge(10)?;
                self.allocate(Extent::values(1 + list.elements.len() as u64))?;
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
                self.allocate(Extent::values(1 + 2 * map.entries.len() as u64))?;
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
                    Err(error) if error.is_limit() => Err(error),
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
        if left.as_ref().is_err_and(EvalError::is_limit) {
            return left.map(Val::Bool);
        }
        if left == Ok(decides) {
            return Ok(Val::Bool(decides));
        }
        match (left, self.eval_bool(b, scope)) {
            (_, Ok(right)) if right == decides => Ok(Val::Bool(decides)),
            (_, Err(error)) if error.is_limit() => Err(error),
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
        let iterations = entries(&range, c.iter_var2.is_some()).ok_or(EvalError::NoOverload)?;
        let mut accumulated = self.eval(&c.accu_init, scope)?;
        for (first, second) in iterations {
            self.charge(1)?;
            let with_first = Activation::new(Some(scope), &c.iter_var, self.read(first)?);
            let with_second = match (&c.iter_var2, second) {
                (Some(name), Some(value)) => {
                    Some(Activation::new(Some(&with_first), name, self.read(value)?))
                }
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
            self.allocate(Extent::values(1))?;
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
        let iterations = entries(&range, true).ok_or(EvalError::NoOverload)?;
        let (test, body) = match rest {
            [body] => (None, body),
            [test, body] => (Some(test), body),
            _ => return Err(EvalError::NoOverload),
        };
        let (mut list, mut map, mut count) = (Vec::new(), BTreeMap::new(), 0);
        let mut deferred_error = None;
        for (key, value) in iterations {
            self.charge(3)?;
            let value = self.read(value.ok_or(EvalError::NoOverload)?)?;
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
                    Err(error) if error.is_limit() => return Err(error),
                    Err(error) => deferred_error = Some(error),
                },
                "existsOne" | "exists_one" => count += u64::from(self.eval_bool(body, &inner)?),
                "transformList" => {
                    self.allocate(Extent::values(1))?;
                    list.push(self.eval(body, &inner)?)
                }
                "transformMap" => {
                    self.allocate(Extent::values(2))?;
                    drop(map.insert(key.as_key().ok_or(EvalError::NoOverload)?, self.eval(body, &inner)?))
                }
                _ => {
                    let entry = self.eval(body, &inner)?;
                    for key in entry.keys().ok_or(EvalError::NoOverload)? {
                        self.produce(Extent::values(2))?;
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
                // Counting the characters of 1,000 bytes takes about as long as one operation.
                if let Val::Text(text) = value {
                    self.charge(text.len() as u64 / 1000)?;
                }
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
                self.search(text, regex).map(|regex| Val::Bool(regex.is_match(text)))
            }
            ("find", Some(Val::Text(text)), [Val::Text(regex)]) => {
                let found = self.search(text, regex)?.find(text).map_or("", |found| found.as_str());
                self.produce(Extent::text(found.len() as u64))?;
                Ok(Val::text(found))
            }
            ("findAll", Some(Val::Text(text)), [Val::Text(regex)]) => self.find_all(text, regex, None),
            ("findAll", Some(Val::Text(text)), [Val::Text(regex), Val::Int(limit)]) => {
                self.find_all(text, regex, usize::try_from(*limit).ok())
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
            ("string", None, [Val::Double(d)]) => Ok(Val::text(crate::go_format::float(*d))),
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
                    || value.cost_size() == 0
                    || matches!(value, Val::Double(d) if *d == 0.0);
                return Ok(Val::Optional((!zero).then(|| Rc::new(value.clone()))));
            }
            _ => {}
        }
        let inputs: Vec<&Val<'a>> = target.into_iter().chain(args).collect();
        let mut left = self.left().memory;
        let mut extents = Vec::with_capacity(inputs.len());
        // The call copies its arguments, so they must fit beside what the evaluation holds already.
        for input in &inputs {
            let extent = input.extent(left).ok_or(EvalError::TooLarge)?;
            self.charge(extent.cost())?;
            left = left.saturating_sub(extent.memory());
            extents.push(extent);
        }
        let output = cost::output_size(name, &inputs, &extents).ok_or(EvalError::NoOverload)?;
        self.charge(cost::work(name, &inputs, &extents))?;
        self.produce(output)?;
        library::call(name, target, args)
    }

    /// The compiled pattern for a search in a text, charged as in Kubernetes, or by the expanded size of the
    /// pattern if `{n,m}` makes it far larger than its text. A pattern that is not a literal is compiled here
    /// and charged for it.
    fn search(&self, text: &str, pattern: &str) -> Result<Arc<regex::Regex>, EvalError> {
        let weight = regexes::weight(pattern);
        let factor = (pattern.len() as u64).div_ceil(4).max(weight / 16).max(1);
        self.charge(tenth(text.len() + 1).saturating_mul(factor))?;
        let compiled = match self.program.literal_pattern(pattern) {
            Some(compiled) => compiled.clone(),
            None => self.compile(pattern, weight)?,
        };
        compiled.map_err(|why| EvalError::Other(format!("error parsing regexp: {}", shown(&why))))
    }

    fn compile(&self, pattern: &str, weight: u64) -> Result<regexes::Compiled, EvalError> {
        /// Patterns that are kept for the next use. A loop over more patterns compiles them again.
        const KEPT_MAX: usize = 8;
        if let Some(compiled) = self.patterns.borrow().get(pattern) {
            return Ok(compiled.clone());
        }
        self.charge(regexes::compile_cost(weight))?;
        let mut patterns = self.patterns.borrow_mut();
        if patterns.len() >= KEPT_MAX {
            patterns.clear();
        }
        let compiled = regexes::compile(pattern);
        patterns.insert(pattern.to_owned(), compiled.clone());
        Ok(compiled)
    }

    fn find_all(&self, text: &str, regex: &str, limit: Option<usize>) -> EvalResult<'a> {
        let regex = self.search(text, regex)?;
        let mut all = Vec::new();
        for found in regex.find_iter(text).take(limit.unwrap_or(usize::MAX)) {
            self.produce(Extent::text(found.len() as u64))?;
            // A search may read the rest of the text for every match, 300 bytes in about a microsecond.
            self.charge((text.len() - found.start()) as u64 / 300)?;
            all.push(Val::text(found.as_str()));
        }
        Ok(Val::list(all))
    }

    /// Whether two values are equal, and the cost of the comparison: a tenth per compared value and byte.
    fn compared(&self, a: &Val<'a>, b: &Val<'a>) -> Result<(bool, u64), EvalError> {
        let limit = self.left().cost.saturating_add(1).saturating_mul(10);
        let mut steps = limit;
        let equal = a.equals(b, &mut steps).ok_or(EvalError::TooCostly)?;
        Ok((equal, (limit - steps).div_ceil(10)))
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
                let least = tenth(a.cost_size().min(b.cost_size()));
                Some(self.compared(a, b).and_then(|(equal, cost)| {
                    self.charge(cost.max(least))?;
                    Ok(Val::Bool(equal == (name == operators::EQUALS)))
                }))
            }
            operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS => {
                if let Err(error) = self.charge(match (a, b) {
                    (Val::Text(_) | Val::Bytes(_), _) => tenth(a.cost_size().min(b.cost_size())),
                    _ => 0,
                }) {
                    return Some(Err(error));
                }
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
            operators::INDEX => Some(index(a, b).and_then(|value| self.read(value))),
            operators::OPT_INDEX => Some(match a {
                Val::Optional(None) => Ok(Val::Optional(None)),
                Val::Optional(Some(inner)) => self.optional(index(inner, b).ok()),
                a => self.optional(index(a, b).ok()),
            }),
            operators::OPT_SELECT => Some(match (a, b) {
                (Val::Optional(None), _) => Ok(Val::Optional(None)),
                (Val::Optional(Some(inner)), Val::Text(field)) => self.optional(inner.field(field)),
                (a, Val::Text(field)) => self.optional(a.field(field)),
                _ => Err(EvalError::NoOverload),
            }),
            operators::ADD => match (a, b) {
                (Val::Text(a), Val::Text(b)) => Some(
                    self.produce(Extent { nodes: 0, bytes: (a.len() + b.len()) as u64 })
                        .map(|()| Val::text([&**a, &**b].concat())),
                ),
                (Val::Bytes(a), Val::Bytes(b)) => Some(
                    self.produce(Extent { nodes: 0, bytes: (a.len() + b.len()) as u64 })
                        .map(|()| Val::Bytes([&**a, &**b].concat().into())),
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
        let size = a.cost_size() + b.cost_size();
        self.spend(Budget { cost: tenth(size), memory: Extent::values(size as u64).memory() })?;
        let mut items = Vec::with_capacity(size);
        items.extend(a.items().ok_or(EvalError::NoOverload)?);
        items.extend(b.items().ok_or(EvalError::NoOverload)?);
        Ok(Val::list(items))
    }

    fn contained(&self, a: &Val<'a>, b: &Val<'a>) -> EvalResult<'a> {
        if let Some(items) = b.items() {
            // As in Kubernetes 1 per element; large elements cost more.
            let mut least = b.cost_size() as u64;
            self.charge(least)?;
            for item in items {
                let (equal, cost) = self.compared(&item, a)?;
                self.charge(cost.saturating_sub(least))?;
                least = least.saturating_sub(cost);
                if equal {
                    return Ok(Val::Bool(true));
                }
            }
            return Ok(Val::Bool(false));
        }
        if b.is_map() {
            let found =
                a.as_key().and_then(|key| b.at_key(&key)).map(|value| self.read(value)).transpose()?;
            return Ok(Val::Bool(found.is_some()));
        }
        Err(EvalError::NoOverload)
    }
}

/// The iterations of a loop over a list or map: elements, keys, or with two variables indexes and elements or
/// keys and values. The values are not copied into a list first: a list of zeros takes twelve times its JSON.
fn entries<'v, 'a>(range: &'v Val<'a>, two: bool) -> Option<Iter<'v, (Val<'a>, Option<Val<'a>>)>> {
    if let Some(items) = range.items() {
        return Some(match two {
            true => Box::new(items.enumerate().map(|(i, v)| (Val::Int(i as i64), Some(v)))),
            false => Box::new(items.map(|v| (v, None))),
        });
    }
    let keys = range.keys()?;
    Some(Box::new(keys.map(move |k| (k.value(), if two { range.at_key(&k) } else { None }))))
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
    if container.is_list() {
        let at = match key {
            Val::Int(i) => *i,
            Val::Uint(u) => i64::try_from(*u).unwrap_or(i64::MAX),
            Val::Double(d) if d.fract() == 0.0 => *d as i64,
            _ => return Err(EvalError::NoOverload),
        };
        return usize::try_from(at)
            .ok()
            .and_then(|i| container.item(i))
            .ok_or_else(|| EvalError::Other(format!("index out of bounds: {at}")));
    }
    let key = key.as_key().ok_or(EvalError::NoOverload)?;
    match container.at_key(&key) {
        Some(value) => Ok(value),
        None if container.is_map() => Err(EvalError::NoSuchKey(match key {
            Key::Bool(b) => b.to_string(),
            Key::Int(i) => i.to_string(),
            Key::Text(text) => shown(&text).to_owned(),
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
        LiteralValue::String(s) => Val::Text(Text::Borrowed(s.inner())),
        LiteralValue::UInt(u) => Val::Uint(*u.inner()),
    }
}

fn type_named<'a>(name: &str) -> Option<Val<'a>> {
    let known = ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"];
    known.into_iter().find(|k| *k == name).map(Val::Type)
}
