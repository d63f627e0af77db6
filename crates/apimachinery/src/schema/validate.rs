//! Validation of values against the schema: types, bounds, formats and branches, with kube-apiserver's
//! messages.
//!
//! An update is first validated like a new object. Only if that fails, it is validated again with the old
//! object, and errors of unchanged fields are ignored (ratcheting). So valid updates do not pay for
//! ratcheting.
//!
//! For `anyOf` and `oneOf`, Kubernetes reports the branch with the most passed checks. The count here follows
//! the same rules, so the same branch is reported.

use serde_json::{Map, Number, Value};

use super::node::{AdditionalProperties, Checks, JsonType, Node};
use super::ratchet::{OldItems, unchanged};
use super::value_path::ValuePath;
use crate::error::{ERRORS_MAX, ValidationError, ValidationErrorKind};
use crate::go_format;

/// Validates a new value. `prefix` is the path of the value in its object; empty for the object itself.
pub(super) fn create(node: &Node, value: &Value, prefix: &str) -> Vec<ValidationError> {
    let mut walk = Walk { prefix, errors: Vec::new() };
    walk.check(node, value, None, &ValuePath::Root);
    walk.errors
}

/// Validates a changed value. Errors of unchanged fields are ignored.
pub(super) fn update(node: &Node, value: &Value, old: &Value, prefix: &str) -> Vec<ValidationError> {
    let errors = create(node, value, prefix);
    if errors.is_empty() {
        return errors;
    }
    let mut walk = Walk { prefix, errors: Vec::new() };
    walk.ratcheted(node, value, Some(old), &ValuePath::Root);
    walk.errors
}

struct Walk<'p> {
    prefix: &'p str,
    errors: Vec<ValidationError>,
}

impl Walk<'_> {
    fn full(&self) -> bool {
        self.errors.len() >= ERRORS_MAX
    }

    fn field(&self, at: &ValuePath<'_>) -> String {
        match (self.prefix, at.is_root()) {
            ("", _) => at.field(),
            (prefix, true) => prefix.to_owned(),
            (prefix, false) => format!("{prefix}.{at}"),
        }
    }

    fn push_error(&mut self, kind: ValidationErrorKind, at: &ValuePath<'_>, value: Value, detail: String) {
        let field = self.field(at);
        self.errors.push(ValidationError::new(kind, field, Some(value), detail));
    }

    fn invalid(&mut self, at: &ValuePath<'_>, value: Value, rest: String) {
        let detail = format!("{at} in body {rest}");
        self.push_error(ValidationErrorKind::Invalid, at, value, detail);
    }

    fn wrong_type(&mut self, at: &ValuePath<'_>, wanted: &str, got: &str) {
        let detail = format!("{at} in body must be of type {wanted}: {}", go_format::quote(got));
        self.push_error(ValidationErrorKind::TypeInvalid, at, Value::from(got), detail);
    }

    /// Reports an error of the branches of a node. As in Kubernetes, its field is the whole object.
    fn branches(&mut self, at: &ValuePath<'_>, rest: &str) {
        let detail = format!("{} {rest}", go_format::quote(&at.to_string()));
        let field = self.field(&ValuePath::Root);
        self.merge([ValidationError::new(
            ValidationErrorKind::Invalid,
            field,
            Some(Value::from("")),
            detail,
        )]);
    }

    /// Adds errors of branches without duplicates.
    fn merge(&mut self, more: impl IntoIterator<Item = ValidationError>) {
        for push_error in more {
            if self.full() {
                return;
            }
            if !self.errors.contains(&push_error) {
                self.errors.push(push_error);
            }
        }
    }

    /// Checks a field or element; drops its errors if it is unchanged.
    fn ratcheted(&mut self, node: &Node, value: &Value, old: Option<&Value>, at: &ValuePath<'_>) -> usize {
        let before = self.errors.len();
        let passed = self.check(node, value, old, at);
        if self.errors.len() > before && old.is_some_and(|old| unchanged(node, value, old)) {
            self.errors.truncate(before);
        }
        passed
    }

    /// Checks a value and returns the number of passed checks.
    fn check(&mut self, node: &Node, value: &Value, old: Option<&Value>, at: &ValuePath<'_>) -> usize {
        if self.full() {
            return 0;
        }
        let checks = node.checks.as_deref();
        let format = checks.and_then(|c| c.format.as_ref());
        if value.is_null() {
            let typed = self.check_type(node, value, format.is_some(), format.map_or("", |f| &f.1), at);
            self.check_allowed(checks, value, at);
            return usize::from(typed);
        }
        // Branches, enum and the value itself count three; the other checks count where they apply.
        let mut passed = 3;
        if node.json_type != JsonType::Any || node.int_or_string || format.is_some() {
            passed += 1 + usize::from(self.check_type(
                node,
                value,
                format.is_some(),
                format.map_or("", |f| &f.1),
                at,
            ));
        }
        passed += self.check_branches(checks, value, old, at);
        match value {
            Value::String(text) => {
                passed += 1 + usize::from(format.is_some());
                if let Some(checks) = checks {
                    self.check_text(checks, text, at);
                }
            }
            Value::Number(number) => {
                passed += 2;
                if let Some(checks) = checks {
                    self.check_number(checks, number, at);
                }
            }
            Value::Array(items) => passed += 2 + self.check_list(node, checks, value, items, old, at),
            _ => {}
        }
        self.check_allowed(checks, value, at);
        if let Value::Object(map) = value {
            passed += 1 + self.check_object(node, checks, map, old, at);
        }
        passed
    }

    fn check_type(
        &mut self,
        node: &Node,
        value: &Value,
        formatted: bool,
        format: &str,
        at: &ValuePath<'_>,
    ) -> bool {
        let wanted = if node.int_or_string { "integer,string" } else { node.json_type.name() };
        let is = |kind: JsonType| {
            if node.int_or_string {
                matches!(kind, JsonType::Integer | JsonType::String)
            } else {
                node.json_type == kind
            }
        };
        if value.is_null() {
            if !wanted.is_empty() && !node.nullable {
                self.wrong_type(at, wanted, "null");
                return false;
            }
            return true;
        }
        let (name, kind, own_format) = match value {
            Value::Bool(_) => ("boolean", JsonType::Boolean, ""),
            Value::String(_) => ("string", JsonType::String, ""),
            Value::Number(n) if n.is_i64() => ("integer", JsonType::Integer, "int64"),
            Value::Number(_) => ("number", JsonType::Number, "float64"),
            Value::Array(_) => ("array", JsonType::Array, ""),
            _ => ("object", JsonType::Object, ""),
        };
        let whole = matches!(value, Value::Number(n) if n.as_f64().is_some_and(is_whole));
        let fits = is(kind)
            || (kind == JsonType::Number && whole && is(JsonType::Integer))
            || (kind == JsonType::Integer && is(JsonType::Number));
        let text_or_list = matches!(kind, JsonType::String | JsonType::Array);
        if formatted && !text_or_list && !fits {
            self.wrong_type(at, format, own_format);
            return false;
        }
        // With a format and a type other than number, strings and lists are checked by the format only.
        if formatted && text_or_list && !is(JsonType::Number) && !is(JsonType::Integer) {
            return true;
        }
        if !fits {
            self.wrong_type(at, wanted, name);
        }
        fits
    }

    fn check_text(&mut self, checks: &Checks, text: &str, at: &ValuePath<'_>) {
        let length = || text.chars().count() as i64;
        if let Some(max) = checks.max_length.filter(|max| text.len() as i64 > *max && length() > *max) {
            let field = self.field(at);
            self.errors.push(ValidationError::too_long(field, max));
        } else if let Some(min) = checks.min_length.filter(|min| length() < *min) {
            self.invalid(at, Value::from(text), format!("should be at least {min} chars long"));
        } else if let Some(pattern) = &checks.pattern {
            match &pattern.regex {
                Some(regex) if regex.is_match(text) => {}
                Some(_) => self.invalid(at, Value::from(text), format!("should match '{}'", pattern.source)),
                None => self.invalid(
                    at,
                    Value::from(text),
                    format!("should match '{}, but pattern is invalid'", pattern.source),
                ),
            }
        }
        if let Some((format, name)) = &checks.format
            && !format.accepts(text)
        {
            let detail = format!("{at} in body must be of type {name}: {}", go_format::quote(text));
            self.push_error(ValidationErrorKind::TypeInvalid, at, Value::from(text), detail);
        }
    }

    fn check_number(&mut self, checks: &Checks, number: &Number, at: &ValuePath<'_>) {
        let value = || Value::Number(number.clone());
        // As in Kubernetes, integers are compared as integers, with the bound truncated.
        let whole = number.as_i64();
        let float = number.as_f64().unwrap_or_default();
        if let Some(factor) = checks.multiple_of {
            match whole {
                Some(n) => match factor as i64 {
                    factor if factor <= 0 => {
                        let detail =
                            format!("factor MultipleOf declared for {at} must be positive: {factor}");
                        self.push_error(ValidationErrorKind::Invalid, at, Value::from(factor), detail);
                    }
                    factor if n % factor != 0 => {
                        self.invalid(at, value(), format!("should be a multiple of {factor}"))
                    }
                    _ => {}
                },
                None if factor <= 0.0 => {
                    let detail = format!(
                        "factor MultipleOf declared for {at} must be positive: {}",
                        go_format::float(factor)
                    );
                    self.push_error(ValidationErrorKind::Invalid, at, Value::from(factor), detail);
                }
                None => {
                    let times = if factor < 1.0 { 1.0 / factor * float } else { float / factor };
                    if !is_whole(times) {
                        self.invalid(
                            at,
                            value(),
                            format!("should be a multiple of {}", go_format::float(factor)),
                        );
                    }
                }
            }
        }
        let mut bound = |limit: f64, exclusive: bool, upper: bool| {
            let beyond = match whole {
                Some(n) => {
                    let limit = limit as i64;
                    let (a, b) = if upper { (n, limit) } else { (limit, n) };
                    a > b || (exclusive && a == b)
                }
                None => {
                    let (a, b) = if upper { (float, limit) } else { (limit, float) };
                    a > b || (exclusive && a == b)
                }
            };
            if beyond {
                let words = match (upper, exclusive) {
                    (true, false) => "less than or equal to",
                    (true, true) => "less than",
                    (false, false) => "greater than or equal to",
                    (false, true) => "greater than",
                };
                let limit =
                    if whole.is_some() { (limit as i64).to_string() } else { go_format::float(limit) };
                self.invalid(at, value(), format!("should be {words} {limit}"));
            }
        };
        if let Some((limit, exclusive)) = checks.minimum {
            bound(limit, exclusive, false);
        }
        if let Some((limit, exclusive)) = checks.maximum {
            bound(limit, exclusive, true);
        }
    }

    fn check_allowed(&mut self, checks: Option<&Checks>, value: &Value, at: &ValuePath<'_>) {
        let Some(checks) = checks.filter(|c| !c.allowed.is_empty()) else { return };
        if checks.allowed.iter().any(|allowed| same(value, allowed)) {
            return;
        }
        let listed = checks.allowed.iter().map(|v| match v {
            Value::String(s) => s.clone(),
            other => go_format::json(other),
        });
        let field = self.field(at);
        self.errors.push(ValidationError::not_supported(field, value.clone(), listed));
    }

    fn check_list(
        &mut self,
        node: &Node,
        checks: Option<&Checks>,
        list: &Value,
        items: &[Value],
        old: Option<&Value>,
        at: &ValuePath<'_>,
    ) -> usize {
        let mut passed = 0;
        if let Some(item_node) = node.items.as_deref() {
            let old_items = old.and_then(|_| OldItems::of(node, old));
            for (i, item) in items.iter().enumerate() {
                let here = at.index(i);
                passed += match old_items.as_ref().and_then(|o| o.get(item)) {
                    Some(old) => self.ratcheted(item_node, item, Some(old), &here),
                    None => self.check(item_node, item, None, &here),
                };
                if self.full() {
                    return passed;
                }
            }
        }
        let Some(checks) = checks else { return passed };
        if let Some(min) = checks.min_items.filter(|min| (items.len() as i64) < *min) {
            self.invalid(at, Value::from(items.len()), format!("should have at least {min} items"));
        }
        if let Some(max) = checks.max_items.filter(|max| items.len() as i64 > *max) {
            let field = self.field(at);
            self.errors.push(ValidationError::too_many(field, items.len(), max));
        }
        if checks.unique_items && !super::lists::duplicate_indexes(list).is_empty() {
            self.invalid(at, Value::from(""), "shouldn't contain duplicates".to_owned());
        }
        passed
    }

    fn check_object(
        &mut self,
        node: &Node,
        checks: Option<&Checks>,
        map: &Map<String, Value>,
        old: Option<&Value>,
        at: &ValuePath<'_>,
    ) -> usize {
        let mut passed = 0;
        if let Some(checks) = checks {
            if let Some(min) = checks.min_properties.filter(|min| (map.len() as i64) < *min) {
                self.invalid(at, Value::from(map.len()), format!("should have at least {min} properties"));
            }
            if let Some(max) = checks.max_properties.filter(|max| map.len() as i64 > *max) {
                let field = self.field(at);
                self.errors.push(ValidationError::too_many(field, map.len(), max));
            }
        }
        let old_map = old.and_then(Value::as_object);
        for (key, value) in map {
            let child = match (node.property(key), &node.additional) {
                (Some(child), _) => child,
                (None, AdditionalProperties::Schema(child)) => child,
                (None, AdditionalProperties::Nothing) => {
                    let detail = format!("{at}.{key} in body is a forbidden property");
                    self.push_error(ValidationErrorKind::Invalid, at, Value::from(key.as_str()), detail);
                    continue;
                }
                (None, _) => continue,
            };
            let here = at.child(key);
            // The version is converted before validation, so these fields never count as unchanged.
            let type_meta = at.is_root() && matches!(key.as_str(), "kind" | "apiVersion");
            passed += match old_map.and_then(|o| o.get(key)).filter(|_| !type_meta) {
                Some(old) => self.ratcheted(child, value, Some(old), &here),
                None => self.check(child, value, None, &here),
            };
            if self.full() {
                return passed;
            }
        }
        for name in checks.map_or(&[][..], |c| &c.required) {
            if !map.contains_key(&**name) {
                let field = self.field(&at.child(name));
                self.errors.push(ValidationError::required(field, ""));
            }
        }
        passed
    }

    fn check_branches(
        &mut self,
        checks: Option<&Checks>,
        value: &Value,
        old: Option<&Value>,
        at: &ValuePath<'_>,
    ) -> usize {
        let Some(checks) = checks else { return 1 };
        let mut passed = 1;
        if !checks.any_of.is_empty() {
            match self.best(&checks.any_of, value, old, at, true) {
                (1.., best) => passed += best.passed,
                (_, best) => {
                    self.branches(at, "must validate at least one schema (anyOf)");
                    passed += best.passed;
                    self.merge(best.errors);
                }
            }
        }
        if !checks.one_of.is_empty() {
            match self.best(&checks.one_of, value, old, at, false) {
                (1, best) => passed += best.passed,
                (0, best) => {
                    self.branches(at, "must validate one and only one schema (oneOf). Found none valid");
                    passed += best.passed;
                    self.merge(best.errors);
                }
                (many, _) => self.branches(
                    at,
                    &format!(
                        "must validate one and only one schema (oneOf). Found {many} valid alternatives"
                    ),
                ),
            }
        }
        if !checks.all_of.is_empty() {
            let mut valid = 0;
            for branch in &checks.all_of {
                let result = self.branch(branch, value, old, at);
                valid += usize::from(result.errors.is_empty());
                passed += result.passed;
                self.merge(result.errors);
            }
            if valid < checks.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                self.branches(at, &format!("must validate all the schemas (allOf){none}"));
            }
        }
        if let Some(not) = &checks.not
            && self.branch(not, value, old, at).errors.is_empty()
        {
            self.branches(at, "must not validate the schema (not)");
        }
        passed
    }

    fn branch(&self, node: &Node, value: &Value, old: Option<&Value>, at: &ValuePath<'_>) -> Branch {
        let mut walk = Walk { prefix: self.prefix, errors: Vec::new() };
        let passed = walk.check(node, value, old, at);
        Branch { passed, errors: walk.errors }
    }

    /// The number of matching branches, and the first match, or else the branch with the most passed checks.
    fn best(
        &self,
        nodes: &[Node],
        value: &Value,
        old: Option<&Value>,
        at: &ValuePath<'_>,
        stop_at_first: bool,
    ) -> (usize, Branch) {
        let mut fitting = 0;
        let mut best: Option<Branch> = None;
        for node in nodes {
            let result = self.branch(node, value, old, at);
            if result.errors.is_empty() {
                fitting += 1;
                if fitting == 1 {
                    best = Some(result);
                }
                if stop_at_first {
                    break;
                }
            } else if fitting == 0 && best.as_ref().is_none_or(|b| result.passed > b.passed) {
                best = Some(result);
            }
        }
        (fitting, best.unwrap_or_default())
    }
}

#[derive(Default)]
struct Branch {
    passed: usize,
    errors: Vec<ValidationError>,
}

/// Whether a value equals an entry of `enum`. Numbers are compared in the type of the entry; null equals
/// nothing.
fn same(value: &Value, allowed: &Value) -> bool {
    match (value, allowed) {
        (_, Value::Null) => false,
        (Value::Number(v), Value::Number(a)) => match (v.as_i64(), a.as_i64()) {
            (Some(v), Some(a)) => v == a,
            (None, Some(a)) => v.as_f64().is_some_and(|v| v as i64 == a),
            _ => v.as_f64() == a.as_f64(),
        },
        _ => value == allowed,
    }
}

/// Whether the float is a whole number within the safe integer range, up to a rounding error of 1e-9.
fn is_whole(f: f64) -> bool {
    const LIMIT: f64 = 9_007_199_254_740_991.0;
    const EPSILON: f64 = 1e-9;
    if !f.is_finite() || f.abs() > LIMIT {
        return false;
    }
    let truncated = f.trunc();
    let difference = (f - truncated).abs();
    if difference == 0.0 {
        return true;
    }
    if f < 0.0 || truncated == 0.0 {
        // Kubernetes compares negative numbers through an unsigned conversion, where only exact values are
        // equal.
        return false;
    }
    difference / (f.abs() + truncated.abs()) < EPSILON
}

#[cfg(test)]
mod tests;
