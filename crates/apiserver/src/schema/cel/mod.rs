//! `x-kubernetes-validations`: rules of a schema, compiled when the CRD is written and run when an object is.
//!
//! Parsing is `kube-cel`'s, and so are the functions of the Kubernetes libraries. Checking against the schema, counting
//! the cost and evaluating are ours: see [`check`], [`eval`] and [`library`].

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{EntryExpr, Expr};
use serde_json::Value;

pub(crate) mod check;
pub(crate) mod eval;
pub(crate) mod library;
mod source;
pub(crate) mod types;
pub(crate) mod value;

use super::error::{self, FieldError, FieldErrorKind};
use super::field_path;
use super::node::{Kind, Node, Rule};
use super::path::Path;
use super::ratchet::{OldItems, unchanged};
use check::Names;
use eval::{EvalError, Run, Scope};
use types::Ty;
use value::{Shape, Val};

/// One evaluation may cost this much.
pub(crate) const CALL_MAX: u64 = 1_000_000;
/// All rules of one request together may cost this much.
pub const REQUEST_MAX: i64 = 10_000_000;
/// A rule whose worst cost is above this is refused with its CRD.
const ESTIMATE_MAX: u64 = 10_000_000;
/// A CRD whose rules together cost more than this at worst is refused.
const ESTIMATE_TOTAL_MAX: u64 = 100_000_000;
/// Longest message that an expression may make.
const MESSAGE_MAX: usize = 5 << 10;

/// A parsed expression.
#[derive(Debug)]
pub(crate) struct Program {
    expr: IdedExpr,
    source: String,
    /// It names `oldSelf`.
    pub(crate) uses_old: bool,
}

impl Program {
    /// Parses an expression; the error is worded as the compiler of Kubernetes words it.
    pub(crate) fn parse(source: &str) -> Result<Self, String> {
        let expr = source::parse(source)?;
        let uses_old = names(&expr, "oldSelf");
        Ok(Self { expr, source: source.to_owned(), uses_old })
    }

    /// Checks the expression against the names it may use.
    pub(crate) fn check<'a>(&self, names: &Names<'_, 'a>) -> Result<check::Found<'a>, String> {
        check::check(&self.expr, names).map_err(|complaint| {
            let (line, column) = locate(&self.source, &complaint.at);
            point_at(&self.source, line, column + complaint.offset, &complaint.message)
        })
    }

    /// The expression.
    pub(crate) fn expr(&self) -> &IdedExpr {
        &self.expr
    }

    /// The expression as written, without blanks around it.
    pub(crate) fn source(&self) -> &str {
        self.source.trim()
    }

    /// Is it only a name, a field or an element, and no question about one?
    pub(crate) fn is_plain_look(&self) -> bool {
        match &self.expr.expr {
            Expr::Ident(_) | Expr::Select(_) => true,
            Expr::Call(call) => call.func_name == "_[_]",
            _ => false,
        }
    }
}

/// `ERROR: <input>:1:5: undefined field 'b'` with the line and a mark under the place.
fn point_at(source: &str, line: usize, column: usize, message: &str) -> String {
    let text = source.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let dots = ".".repeat(column.saturating_sub(1).min(text.len() + 1));
    format!("ERROR: <input>:{line}:{column}: {message}\n | {text}\n | {dots}^")
}

/// Where a text first stands on its own in the source, as line and column from 1.
fn locate(source: &str, text: &str) -> (usize, usize) {
    let word = text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let ends_word = |rest: &str| !word || !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    for (i, line) in source.lines().enumerate() {
        let found =
            line.match_indices(text).find(|(at, t)| !text.is_empty() && ends_word(&line[at + t.len()..]));
        if let Some((at, _)) = found {
            return (i + 1, line[..at].chars().count() + 1);
        }
    }
    (1, 1)
}

/// Does the expression name this variable?
pub(crate) fn names(expr: &IdedExpr, name: &str) -> bool {
    match &expr.expr {
        Expr::Ident(ident) => ident == name,
        Expr::Literal(_) | Expr::Unspecified => false,
        Expr::Select(select) => names(&select.operand, name),
        Expr::Call(call) => {
            call.target.as_deref().is_some_and(|t| names(t, name)) || call.args.iter().any(|a| names(a, name))
        }
        Expr::List(list) => list.elements.iter().any(|e| names(e, name)),
        Expr::Map(map) => map.entries.iter().any(|e| entry_names(&e.expr, name)),
        Expr::Struct(object) => object.entries.iter().any(|e| entry_names(&e.expr, name)),
        Expr::Comprehension(c) => [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result]
            .into_iter()
            .any(|e| names(e, name)),
    }
}

fn entry_names(entry: &EntryExpr, name: &str) -> bool {
    match entry {
        EntryExpr::MapEntry(e) => names(&e.key, name) || names(&e.value, name),
        EntryExpr::StructField(f) => names(&f.value, name),
    }
}

/// A rule ready to run.
#[derive(Debug)]
pub struct Compiled {
    program: Result<Program, String>,
    message: Option<Program>,
    field_path: String,
}

impl Compiled {
    /// Compiles a rule of a node.
    pub(crate) fn of(rule: &Rule, node: &Node) -> Self {
        let message = Some(&rule.message_expression)
            .filter(|m| !m.trim().is_empty())
            .and_then(|m| Program::parse(m).ok());
        let field_path = field_path::parse(&rule.field_path, node).map(|p| p.text).unwrap_or_default();
        Self { program: Program::parse(&rule.rule), message, field_path }
    }
}

// --- When a CRD is written ---

/// Complaints about the rules of a schema that is otherwise fine.
pub fn check_definition(root: &Node, at: &str) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    if !root.has_rules {
        return wrong;
    }
    let mut total = Total::default();
    check_node(root, &Path::At(at), true, Some(1), None, &mut total, &mut wrong);
    if total.cost > ESTIMATE_TOTAL_MAX {
        total.dearest.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, field) in total.dearest.into_iter().take(4) {
            wrong.push(FieldError::forbidden(
                field,
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            ));
        }
        wrong.push(FieldError::forbidden(
            at,
            too_costly(
                "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema",
                total.cost,
                ESTIMATE_TOTAL_MAX,
            ),
        ));
    }
    wrong
}

#[derive(Default)]
struct Total {
    cost: u64,
    dearest: Vec<(u64, String)>,
}

impl Total {
    fn add(&mut self, cost: u64, field: String) {
        self.cost = self.cost.saturating_add(cost);
        if cost > ESTIMATE_TOTAL_MAX / 100 {
            self.dearest.push((cost, field));
        }
    }
}

fn too_costly(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        f if f > 100.0 => "more than 100x".to_owned(),
        f if f < 1.5 => format!("{f:.6}x"),
        f => format!("{f:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// A complaint about a rule, which is shown with its fields in the order of their declaration.
fn about(field: String, rule: &Rule, detail: &str) -> FieldError {
    let text = |s: &str| error::json(&Value::from(s));
    let reason = rule.reason.as_deref().map_or_else(|| "null".to_owned(), text);
    let optional = rule.optional_old_self.map_or_else(|| "null".to_owned(), |b| b.to_string());
    let shown = format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{reason},\"FieldPath\":{},\"OptionalOldSelf\":{optional}}}",
        text(&rule.rule),
        text(&rule.message),
        text(&rule.message_expression),
        text(&rule.field_path),
    );
    FieldError::new(FieldErrorKind::Invalid, field, None, format!("{shown}: {detail}"))
}

fn check_node(
    node: &Node,
    at: &Path<'_>,
    resource: bool,
    occurrences: Option<u64>,
    uncorrelated: Option<&str>,
    total: &mut Total,
    wrong: &mut Vec<FieldError>,
) {
    if !node.has_rules {
        return;
    }
    let rules_at = at.child("x-kubernetes-validations");
    let times = occurrences.unwrap_or_else(|| types::occurrences(node));
    for (i, rule) in node.rules().iter().enumerate() {
        let here = rules_at.index(i);
        let field = |name: &str| here.child(name).to_string();
        check_rule(rule, node, resource, times, uncorrelated, &field, total, wrong);
    }
    let below = occurrences.zip(types::children(node)).map(|(a, b)| a.saturating_mul(b));
    let properties_at = at.child("properties");
    for (name, child) in &node.properties {
        check_node(child, &properties_at.key(name), false, below, uncorrelated, total, wrong);
    }
    if let Some(child) = node.additional_schema() {
        check_node(child, &at.child("additionalProperties"), false, below, uncorrelated, total, wrong);
    }
    if let Some(child) = node.items.as_deref() {
        // Only elements of map lists have an old self.
        let place = at.to_string();
        let lost = uncorrelated.or((node.list_type != super::node::ListType::Map).then_some(place.as_str()));
        check_node(child, &at.child("items"), false, below, lost, total, wrong);
    }
}

#[allow(
    clippy::too_many_arguments,
    reason = "one place, called once; a struct would only rename the arguments"
)]
fn check_rule(
    rule: &Rule,
    node: &Node,
    resource: bool,
    times: u64,
    uncorrelated: Option<&str>,
    field: &dyn Fn(&str) -> String,
    total: &mut Total,
    wrong: &mut Vec<FieldError>,
) {
    let Some(ty) = Ty::of(node, resource) else { return };
    let old =
        if rule.optional_old_self == Some(true) { Ty::Optional(Box::new(ty.clone())) } else { ty.clone() };
    let with_self = Names::of_node(None, "self", ty, node);
    let names = Names::of_node(Some(&with_self), "oldSelf", old, node);
    let checked = Program::parse(&rule.rule).and_then(|program| Ok((program.check(&names)?, program)));
    match checked {
        Err(why) => wrong.push(about(field("rule"), rule, &format!("compilation failed: {why}"))),
        Ok((found, program))
            if !(matches!(found.ty, Ty::Bool)
                || (matches!(found.ty, Ty::Dyn) && !program.is_plain_look())) =>
        {
            wrong.push(about(field("rule"), rule, "cel expression must evaluate to a bool"))
        }
        Ok((found, program)) => {
            let cost = found.cost.saturating_mul(times);
            if cost > ESTIMATE_MAX {
                wrong.push(FieldError::forbidden(
                    field("rule"),
                    too_costly("estimated rule cost", cost, ESTIMATE_MAX),
                ));
            }
            total.add(cost, field("rule"));
            match (program.uses_old, uncorrelated) {
                (true, Some(place)) => {
                    let detail = format!(
                        "oldSelf cannot be used on the uncorrelatable portion of the schema within {place}"
                    );
                    wrong.push(FieldError::invalid(field("rule"), rule.rule.as_str(), detail));
                }
                (false, _) => {
                    if let Some(optional) = rule.optional_old_self {
                        wrong.push(FieldError::invalid(
                            field("optionalOldSelf"),
                            optional,
                            "may not be set if oldSelf is not used in rule",
                        ));
                    }
                }
                _ => {}
            }
        }
    }
    if rule.message_expression.trim().is_empty() {
        return;
    }
    match Program::parse(&rule.message_expression).and_then(|program| program.check(&names)) {
        Err(why) => wrong.push(about(
            field("messageExpression"),
            rule,
            &format!("messageExpression compilation failed: {why}"),
        )),
        Ok(found) if !matches!(found.ty, Ty::Text | Ty::Dyn) => {
            wrong.push(about(field("messageExpression"), rule, "messageExpression must evaluate to a string"))
        }
        Ok(found) => {
            if found.cost > ESTIMATE_MAX {
                wrong.push(FieldError::forbidden(
                    field("messageExpression"),
                    too_costly("estimated messageExpression cost", found.cost, ESTIMATE_MAX),
                ));
            }
            total.add(found.cost, field("messageExpression"));
        }
    }
}

// --- When an object is written ---

/// Complaints of the rules about an object; `old` is the object before an update. Rules about parts that did not change
/// do not complain again, unless they compare with the old part.
pub fn validate(root: &Node, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut walk = Walk { budget: REQUEST_MAX, wrong: Vec::new() };
    if root.has_rules {
        walk.node(root, new, old, Correlation { here: old, above: None }, &Path::Root);
    }
    walk.wrong
}

/// Complaints of the rules about a value at a place, e.g. a default, as if it were new.
pub(crate) fn validate_at(node: &Node, value: &Value, at: &Path<'_>) -> Vec<FieldError> {
    let mut walk = Walk { budget: REQUEST_MAX, wrong: Vec::new() };
    walk.node(node, value, None, Correlation { here: None, above: None }, at);
    walk.wrong
}

/// The old value for ratcheting: of this place, or of the nearest place above that has one.
#[derive(Clone, Copy)]
struct Correlation<'a> {
    here: Option<&'a Value>,
    above: Option<(&'a Node, &'a Value, &'a Value)>,
}

impl<'a> Correlation<'a> {
    fn unchanged(&self, node: &Node, new: &Value) -> bool {
        match (self.here, self.above) {
            (Some(old), _) => unchanged(node, new, old),
            (None, Some((node, new, old))) => unchanged(node, new, old),
            (None, None) => false,
        }
    }

    fn below(&self, node: &'a Node, new: &'a Value, old: Option<&'a Value>) -> Self {
        match self.here {
            Some(here) => Self { here: old, above: Some((node, new, here)) },
            None => *self,
        }
    }
}

struct Walk {
    budget: i64,
    wrong: Vec<FieldError>,
}

impl Walk {
    fn node<'a>(
        &mut self,
        node: &'a Node,
        new: &'a Value,
        old: Option<&'a Value>,
        correlation: Correlation<'a>,
        at: &Path<'_>,
    ) {
        if !node.has_rules
            || new.is_null()
            || self.budget < 0
            || self.wrong.len() >= super::validate::ERRORS_MAX
        {
            return;
        }
        self.rules(node, new, old.filter(|o| !o.is_null()), correlation, at);
        match new {
            Value::Object(map) => {
                for (key, value) in map {
                    let old_value = old.and_then(|o| o.get(key));
                    let below = correlation.below(node, new, correlation.here.and_then(|o| o.get(key)));
                    match (node.property(key), node.additional_schema()) {
                        (Some(child), _) => self.node(child, value, old_value, below, &at.child(key)),
                        (None, Some(child)) => self.node(child, value, old_value, below, &at.key(key)),
                        _ => {}
                    }
                }
            }
            Value::Array(items) => {
                let Some(child) = node.items.as_deref() else { return };
                let old_items = OldItems::of(node, old);
                for (i, item) in items.iter().enumerate() {
                    let old_item = old_items.as_ref().and_then(|o| o.get(item));
                    let below = correlation.below(node, new, old_item);
                    self.node(child, item, old_item, below, &at.index(i));
                }
            }
            _ => {}
        }
    }

    fn complain(&mut self, node: &Node, at: &Path<'_>, detail: String) {
        self.wrong.push(FieldError::invalid(at.field(), node.kind.name(), detail));
    }

    fn rules<'a>(
        &mut self,
        node: &'a Node,
        new: &'a Value,
        old: Option<&'a Value>,
        correlation: Correlation<'a>,
        at: &Path<'_>,
    ) {
        for (rule, compiled) in node.rules().iter().zip(node.compiled_rules()) {
            if self.budget <= 0 {
                self.complain(node, at, "validation failed due to running out of cost budget, no further validation rules will be run".to_owned());
                self.budget = -1;
                return;
            }
            let program = match &compiled.program {
                Ok(program) => program,
                Err(why) => {
                    self.complain(node, at, format!("rule compile error: compilation failed: {why}"));
                    continue;
                }
            };
            let optional = rule.optional_old_self == Some(true);
            if program.uses_old && old.is_none() && !optional {
                continue;
            }
            let shape = Shape::Known(node);
            let with_self = Scope::new(None, "self", Val::of(new, shape));
            let old_value = old.map(|o| Val::of(o, shape));
            let old_value = if optional {
                Val::Optional(old_value.map(std::rc::Rc::new))
            } else {
                old_value.unwrap_or(Val::Null)
            };
            let scope = Scope::new(Some(&with_self), "oldSelf", old_value);
            let run = Run::new(CALL_MAX);
            let outcome = run.eval(program.expr(), &scope);
            self.budget -= i64::try_from(run.spent()).unwrap_or(i64::MAX);
            let said = if rule.message.is_empty() { rule.rule.trim() } else { rule.message.trim() };
            if self.budget < 0 {
                self.complain(node, at, "validation failed due to running out of cost budget, no further validation rules will be run".to_owned());
                return;
            }
            match outcome {
                Ok(Val::Bool(true)) => {}
                Ok(_) => {
                    if program.uses_old || !correlation.unchanged(node, new) {
                        let detail = self.message(compiled, rule, &scope);
                        self.broken(node, new, rule, compiled, detail, at);
                    }
                }
                Err(EvalError::NoOverload) => {
                    self.complain(node, at, format!("'{}': call arguments did not match a supported operator, function or macro signature for rule: {said}", EvalError::NoOverload));
                }
                Err(EvalError::TooCostly) => {
                    self.complain(node, at, format!("'{}': no further validation rules will be run due to call cost exceeds limit for rule: {said}", EvalError::TooCostly));
                    self.budget = -1;
                    return;
                }
                Err(error) => self.complain(node, at, format!("{error} evaluating rule: {said}")),
            }
        }
    }

    fn message<'a>(&mut self, compiled: &'a Compiled, rule: &Rule, scope: &Scope<'_, 'a>) -> String {
        if let Some(program) = &compiled.message {
            let run = Run::new(CALL_MAX);
            let made = run.eval(program.expr(), scope);
            self.budget = self.budget.saturating_sub(i64::try_from(run.spent()).unwrap_or(i64::MAX)).max(0);
            if let Ok(Val::Text(text)) = made {
                let text = text.trim();
                if !text.is_empty() && !text.contains('\n') && text.len() <= MESSAGE_MAX {
                    return text.to_owned();
                }
            }
        }
        if rule.message.is_empty() {
            format!("failed rule: {}", rule.rule.trim())
        } else {
            rule.message.trim().to_owned()
        }
    }

    fn broken(
        &mut self,
        node: &Node,
        new: &Value,
        rule: &Rule,
        compiled: &Compiled,
        detail: String,
        at: &Path<'_>,
    ) {
        let field = match (compiled.field_path.as_str(), at.is_root()) {
            ("", _) => at.field(),
            (path, true) => path.trim_start_matches('.').to_owned(),
            (path, false) => format!("{at}.{}", path.trim_start_matches('.')),
        };
        let value = (!matches!(node.kind, Kind::Object | Kind::Array)).then(|| new.clone());
        let kind = match rule.reason.as_deref() {
            Some("FieldValueRequired") => FieldErrorKind::Required,
            Some("FieldValueForbidden") => FieldErrorKind::Forbidden,
            Some("FieldValueDuplicate") => FieldErrorKind::Duplicate,
            _ => FieldErrorKind::Invalid,
        };
        self.wrong.push(FieldError::new(kind, field, value, detail));
    }
}

#[cfg(test)]
mod tests;
