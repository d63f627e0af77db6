//! CEL validation rules (`x-kubernetes-validations`): checked when the CRD is written, run when an object is
//! written.
//!
//! `kube-cel` provides the parser and the functions of the Kubernetes libraries. Type checking, cost
//! estimation and evaluation are implemented here: see [`check`], [`eval`], [`cost`] and [`library`].

use std::collections::HashMap;

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{EntryExpr, Expr};
use serde_json::Value;

pub(crate) mod check;
pub(crate) mod cost;
pub(crate) mod eval;
pub(crate) mod library;
mod regexes;
mod source;
pub(crate) mod types;
pub(crate) mod value;

use crate::error::{ValidationError, ValidationErrorKind};
use crate::go_format;
use crate::schema::ValuePath;
use crate::schema::field_path;
use crate::schema::node::{JsonType, Node, Rule};
use crate::schema::ratchet::{OldItems, unchanged};
use check::TypeEnv;
use cost::Budget;
use eval::{Activation, EvalError, Evaluation};
use types::Ty;
use value::{Val, ValueSchema};

/// Cost limit of one evaluation.
pub(crate) const CALL_MAX: u64 = 1_000_000;
/// Limits of one evaluation of a rule.
const EVALUATION_MAX: Budget = Budget { cost: CALL_MAX, memory: cost::MEMORY_MAX };
/// Cost limit of all rules of one request together.
pub(crate) const REQUEST_MAX: i64 = 10_000_000;
/// Limit of the estimated cost of one rule. A CRD with a more expensive rule is rejected.
const ESTIMATE_MAX: u64 = 10_000_000;
/// Limit of the estimated cost of all rules of a CRD.
const ESTIMATE_TOTAL_MAX: u64 = 100_000_000;
/// Maximum length of a message computed by `messageExpression`, in bytes.
const MESSAGE_MAX: usize = 5 << 10;

/// A parsed expression.
#[derive(Debug)]
pub(crate) struct Program {
    expr: IdedExpr,
    source: String,
    /// The patterns of the expression that are literals.
    patterns: HashMap<String, regexes::Compiled>,
    /// The expression references `oldSelf`.
    pub(crate) uses_old: bool,
}

impl Program {
    /// Parses an expression. The error has the wording of the CEL compiler in Kubernetes.
    pub(crate) fn parse(source: &str) -> Result<Self, String> {
        let expr = source::parse(source)?;
        let uses_old = references(&expr, "oldSelf");
        let patterns = regexes::literals(&expr);
        Ok(Self { expr, source: source.to_owned(), patterns, uses_old })
    }

    /// Type-checks the expression with the declared variables.
    pub(crate) fn check<'a>(&self, references: &TypeEnv<'_, 'a>) -> Result<check::CheckedExpr<'a>, String> {
        check::check(&self.expr, references).map_err(|diagnostic| {
            let (line, column) = locate(&self.source, &diagnostic.at);
            point_at(&self.source, line, column + diagnostic.offset, &diagnostic.message)
        })
    }

    fn literal_pattern(&self, pattern: &str) -> Option<&regexes::Compiled> {
        self.patterns.get(pattern)
    }

    /// The expression.
    pub(crate) fn expr(&self) -> &IdedExpr {
        &self.expr
    }

    /// The source of the expression, trimmed.
    pub(crate) fn source(&self) -> &str {
        self.source.trim()
    }

    /// Whether the expression is only a variable, a field selection or an index.
    pub(crate) fn is_reference(&self) -> bool {
        match &self.expr.expr {
            Expr::Ident(_) | Expr::Select(_) => true,
            Expr::Call(call) => call.func_name == "_[_]",
            _ => false,
        }
    }
}

/// Formats an error as `ERROR: <input>:1:5: undefined field 'b'`, followed by the source line and a caret.
fn point_at(source: &str, line: usize, column: usize, message: &str) -> String {
    let text = source.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let dots = ".".repeat(column.saturating_sub(1).min(text.len() + 1));
    format!("ERROR: <input>:{line}:{column}: {message}\n | {text}\n | {dots}^")
}

/// Line and column (from 1) of the first occurrence of `text` as a whole word in the source.
fn locate(source: &str, text: &str) -> (usize, usize) {
    let word = text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let ends_word = |rest: &str| !word || !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    for (i, line) in source.lines().enumerate() {
        let checked =
            line.match_indices(text).find(|(at, t)| !text.is_empty() && ends_word(&line[at + t.len()..]));
        if let Some((at, _)) = checked {
            return (i + 1, line[..at].chars().count() + 1);
        }
    }
    (1, 1)
}

/// Whether the expression references this variable.
pub(crate) fn references(expr: &IdedExpr, name: &str) -> bool {
    any(expr, &mut |expr| matches!(expr, Expr::Ident(ident) if ident == name))
}

/// Whether the test is true for the expression or a part of it.
fn any(expr: &IdedExpr, test: &mut dyn FnMut(&Expr) -> bool) -> bool {
    if test(&expr.expr) {
        return true;
    }
    match &expr.expr {
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => false,
        Expr::Select(select) => any(&select.operand, test),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).any(|e| any(e, test)),
        Expr::List(list) => list.elements.iter().any(|e| any(e, test)),
        Expr::Map(map) => map.entries.iter().any(|e| any_of_entry(&e.expr, test)),
        Expr::Struct(object) => object.entries.iter().any(|e| any_of_entry(&e.expr, test)),
        Expr::Comprehension(c) => [&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result]
            .into_iter()
            .any(|e| any(e, test)),
    }
}

fn any_of_entry(entry: &EntryExpr, test: &mut dyn FnMut(&Expr) -> bool) -> bool {
    match entry {
        EntryExpr::MapEntry(e) => any(&e.key, test) || any(&e.value, test),
        EntryExpr::StructField(f) => any(&f.value, test),
    }
}

/// A compiled rule.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    program: Result<Program, String>,
    message: Option<Program>,
    field_path: String,
}

impl CompiledRule {
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

/// Validates the rules of a schema that has no other errors.
pub(crate) fn check_definition(root: &Node, at: &str) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    if !root.has_rules {
        return errors;
    }
    let mut total = CostTotal::default();
    check_node(root, &ValuePath::At(at), true, Some(1), None, &mut total, &mut errors);
    if total.cost > ESTIMATE_TOTAL_MAX {
        total.most_expensive.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, field) in total.most_expensive.into_iter().take(4) {
            errors.push(ValidationError::forbidden(
                field,
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            ));
        }
        errors.push(ValidationError::forbidden(
            at,
            too_costly(
                "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema",
                total.cost,
                ESTIMATE_TOTAL_MAX,
            ),
        ));
    }
    errors
}

#[derive(Default)]
struct CostTotal {
    cost: u64,
    most_expensive: Vec<(u64, String)>,
}

impl CostTotal {
    fn add(&mut self, cost: u64, field: String) {
        self.cost = self.cost.saturating_add(cost);
        if cost > ESTIMATE_TOTAL_MAX / 100 {
            self.most_expensive.push((cost, field));
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

/// An error of a rule. The message shows the rule with its fields in the order of the Go struct.
fn rule_error(field: String, rule: &Rule, detail: &str) -> ValidationError {
    let text = |s: &str| go_format::json(&Value::from(s));
    let reason = rule.reason.as_deref().map_or_else(|| "null".to_owned(), text);
    let optional = rule.optional_old_self.map_or_else(|| "null".to_owned(), |b| b.to_string());
    let shown = format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{reason},\"FieldPath\":{},\"OptionalOldSelf\":{optional}}}",
        text(&rule.rule),
        text(&rule.message),
        text(&rule.message_expression),
        text(&rule.field_path),
    );
    ValidationError::new(ValidationErrorKind::Invalid, field, None, format!("{shown}: {detail}"))
}

fn check_node(
    node: &Node,
    at: &ValuePath<'_>,
    resource: bool,
    occurrences: Option<u64>,
    uncorrelated: Option<&str>,
    total: &mut CostTotal,
    errors: &mut Vec<ValidationError>,
) {
    if !node.has_rules {
        return;
    }
    let rules_at = at.child("x-kubernetes-validations");
    let times = occurrences.unwrap_or_else(|| types::occurrences(node));
    for (i, rule) in node.rules().iter().enumerate() {
        let here = rules_at.index(i);
        let field = |name: &str| here.child(name).to_string();
        check_rule(rule, node, resource, times, uncorrelated, &field, total, errors);
    }
    let below = occurrences.zip(types::children(node)).map(|(a, b)| a.saturating_mul(b));
    let properties_at = at.child("properties");
    for (name, child) in &node.properties {
        check_node(child, &properties_at.key(name), false, below, uncorrelated, total, errors);
    }
    if let Some(child) = node.additional_schema() {
        check_node(child, &at.child("additionalProperties"), false, below, uncorrelated, total, errors);
    }
    if let Some(child) = node.items.as_deref() {
        // Only elements of map lists can be correlated with an old value.
        let place = at.to_string();
        let lost =
            uncorrelated.or((node.list_type != crate::schema::ListType::Map).then_some(place.as_str()));
        check_node(child, &at.child("items"), false, below, lost, total, errors);
    }
}

#[allow(clippy::too_many_arguments, reason = "called once; a struct would only rename the arguments")]
fn check_rule(
    rule: &Rule,
    node: &Node,
    resource: bool,
    times: u64,
    uncorrelated: Option<&str>,
    field: &dyn Fn(&str) -> String,
    total: &mut CostTotal,
    errors: &mut Vec<ValidationError>,
) {
    let Some(ty) = Ty::of(node, resource) else { return };
    let old =
        if rule.optional_old_self == Some(true) { Ty::Optional(Box::new(ty.clone())) } else { ty.clone() };
    let with_self = TypeEnv::of_node(None, "self", ty, node);
    let references = TypeEnv::of_node(Some(&with_self), "oldSelf", old, node);
    let checked = Program::parse(&rule.rule).and_then(|program| Ok((program.check(&references)?, program)));
    match checked {
        Err(why) => errors.push(rule_error(field("rule"), rule, &format!("compilation failed: {why}"))),
        Ok((checked, program))
            if !(matches!(checked.ty, Ty::Bool)
                || (matches!(checked.ty, Ty::Dyn) && !program.is_reference())) =>
        {
            errors.push(rule_error(field("rule"), rule, "cel expression must evaluate to a bool"))
        }
        Ok((checked, program)) => {
            let cost = checked.cost.saturating_mul(times);
            if cost > ESTIMATE_MAX {
                errors.push(ValidationError::forbidden(
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
                    errors.push(ValidationError::invalid(field("rule"), rule.rule.as_str(), detail));
                }
                (false, _) => {
                    if let Some(optional) = rule.optional_old_self {
                        errors.push(ValidationError::invalid(
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
    match Program::parse(&rule.message_expression).and_then(|program| program.check(&references)) {
        Err(why) => errors.push(rule_error(
            field("messageExpression"),
            rule,
            &format!("messageExpression compilation failed: {why}"),
        )),
        Ok(checked) if !matches!(checked.ty, Ty::Text | Ty::Dyn) => errors.push(rule_error(
            field("messageExpression"),
            rule,
            "messageExpression must evaluate to a string",
        )),
        Ok(checked) => {
            if checked.cost > ESTIMATE_MAX {
                errors.push(ValidationError::forbidden(
                    field("messageExpression"),
                    too_costly("estimated messageExpression cost", checked.cost, ESTIMATE_MAX),
                ));
            }
            total.add(checked.cost, field("messageExpression"));
        }
    }
}

// --- When an object is written ---

/// Runs the rules on an object; `old` is the object before an update. A rule that fails on an unchanged value
/// is ignored, unless the rule references `oldSelf`.
pub(crate) fn validate(root: &Node, new: &Value, old: Option<&Value>) -> Vec<ValidationError> {
    let mut walk = Walk { budget: REQUEST_MAX, errors: Vec::new() };
    if root.has_rules {
        walk.node(root, new, old, Correlation { here: old, above: None }, &ValuePath::Root);
    }
    walk.errors
}

/// Runs the rules on the value at a path, e.g. a default, as if it were new.
pub(crate) fn validate_at(node: &Node, value: &Value, at: &ValuePath<'_>) -> Vec<ValidationError> {
    let mut walk = Walk { budget: REQUEST_MAX, errors: Vec::new() };
    walk.node(node, value, None, Correlation { here: None, above: None }, at);
    walk.errors
}

/// The old value for ratcheting: of this node, or of the nearest ancestor that has one.
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
    errors: Vec<ValidationError>,
}

impl Walk {
    fn node<'a>(
        &mut self,
        node: &'a Node,
        new: &'a Value,
        old: Option<&'a Value>,
        correlation: Correlation<'a>,
        at: &ValuePath<'_>,
    ) {
        if !node.has_rules
            || new.is_null()
            || self.budget < 0
            || self.errors.len() >= crate::error::ERRORS_MAX
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

    fn push_error(&mut self, node: &Node, at: &ValuePath<'_>, detail: String) {
        self.errors.push(ValidationError::invalid(at.field(), node.json_type.name(), detail));
    }

    fn rules<'a>(
        &mut self,
        node: &'a Node,
        new: &'a Value,
        old: Option<&'a Value>,
        correlation: Correlation<'a>,
        at: &ValuePath<'_>,
    ) {
        for (rule, compiled) in node.rules().iter().zip(node.compiled_rules()) {
            if self.budget <= 0 {
                self.push_error(node, at, "validation failed due to running out of cost budget, no further validation rules will be run".to_owned());
                self.budget = -1;
                return;
            }
            let program = match &compiled.program {
                Ok(program) => program,
                Err(why) => {
                    self.push_error(node, at, format!("rule compile error: compilation failed: {why}"));
                    continue;
                }
            };
            let optional = rule.optional_old_self == Some(true);
            if program.uses_old && old.is_none() && !optional {
                continue;
            }
            let schema = ValueSchema::Known(node);
            let with_self = Activation::new(None, "self", Val::of(new, schema));
            let old_value = old.map(|o| Val::of(o, schema));
            let old_value = if optional {
                Val::Optional(old_value.map(std::rc::Rc::new))
            } else {
                old_value.unwrap_or(Val::Null)
            };
            let scope = Activation::new(Some(&with_self), "oldSelf", old_value);
            let evaluation = Evaluation::new(program, EVALUATION_MAX, None);
            let result = evaluation.run(&scope);
            self.budget =
                self.budget.saturating_sub(i64::try_from(evaluation.used().cost).unwrap_or(i64::MAX));
            let shown_rule = if rule.message.is_empty() { rule.rule.trim() } else { rule.message.trim() };
            if self.budget < 0 {
                self.push_error(node, at, "validation failed due to running out of cost budget, no further validation rules will be run".to_owned());
                return;
            }
            match result {
                Ok(Val::Bool(true)) => {}
                Ok(_) => {
                    if program.uses_old || !correlation.unchanged(node, new) {
                        let detail = self.message(compiled, rule, &scope);
                        self.push_violation(node, new, rule, compiled, detail, at);
                    }
                }
                Err(EvalError::NoOverload) => {
                    self.push_error(node, at, format!("'{}': call arguments did not match a supported operator, function or macro signature for rule: {shown_rule}", EvalError::NoOverload));
                }
                Err(EvalError::TooCostly) => {
                    self.push_error(node, at, format!("'{}': no further validation rules will be run due to call cost exceeds limit for rule: {shown_rule}", EvalError::TooCostly));
                    self.budget = -1;
                    return;
                }
                Err(error) => self.push_error(node, at, format!("{error} evaluating rule: {shown_rule}")),
            }
        }
    }

    fn message<'a>(&mut self, compiled: &'a CompiledRule, rule: &Rule, scope: &Activation<'_, 'a>) -> String {
        if let Some(program) = &compiled.message {
            let evaluation = Evaluation::new(program, EVALUATION_MAX, None);
            let generated = evaluation.run(scope);
            self.budget =
                self.budget.saturating_sub(i64::try_from(evaluation.used().cost).unwrap_or(i64::MAX)).max(0);
            if let Ok(Val::Text(text)) = generated {
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

    fn push_violation(
        &mut self,
        node: &Node,
        new: &Value,
        rule: &Rule,
        compiled: &CompiledRule,
        detail: String,
        at: &ValuePath<'_>,
    ) {
        let field = match (compiled.field_path.as_str(), at.is_root()) {
            ("", _) => at.field(),
            (path, true) => path.trim_start_matches('.').to_owned(),
            (path, false) => format!("{at}.{}", path.trim_start_matches('.')),
        };
        let value = (!matches!(node.json_type, JsonType::Object | JsonType::Array)).then(|| new.clone());
        let kind = match rule.reason.as_deref() {
            Some("FieldValueRequired") => ValidationErrorKind::Required,
            Some("FieldValueForbidden") => ValidationErrorKind::Forbidden,
            Some("FieldValueDuplicate") => ValidationErrorKind::Duplicate,
            _ => ValidationErrorKind::Invalid,
        };
        self.errors.push(ValidationError::new(kind, field, value, detail));
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
