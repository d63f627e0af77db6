//! Values against the schema: types, bounds, formats and branches, with the messages of kube-apiserver.
//!
//! An update is first judged as if it were new; only when something is wrong is it judged again beside the old object,
//! because then a field that was already wrong and has not changed passes (ratcheting). So the common case pays nothing
//! for the rule.
//!
//! Under `anyOf` and `oneOf` Kubernetes reports the branch that got furthest, counting passed checks. The count is kept
//! here in the same way, so that the same branch is reported.

use serde_json::{Map, Number, Value};

use super::error::{self, FieldError, FieldErrorKind};
use super::node::{Additional, Checks, Kind, Node};
use super::path::Path;
use super::ratchet::{OldItems, unchanged};

/// No more complaints than this are collected: one is enough to refuse, a thousand are enough to read.
pub const ERRORS_MAX: usize = 1024;

/// Judges a new value. `prefix` is where the value stands in its object; empty for the object itself.
pub fn create(node: &Node, value: &Value, prefix: &str) -> Vec<FieldError> {
    let mut walk = Walk { prefix, faults: Vec::new() };
    walk.check(node, value, None, &Path::Root);
    walk.faults
}

/// Judges a changed value: what was wrong before and did not change is not held against it.
pub fn update(node: &Node, value: &Value, old: &Value, prefix: &str) -> Vec<FieldError> {
    let faults = create(node, value, prefix);
    if faults.is_empty() {
        return faults;
    }
    let mut walk = Walk { prefix, faults: Vec::new() };
    walk.ratcheted(node, value, Some(old), &Path::Root);
    walk.faults
}

struct Walk<'p> {
    prefix: &'p str,
    faults: Vec<FieldError>,
}

impl Walk<'_> {
    fn full(&self) -> bool {
        self.faults.len() >= ERRORS_MAX
    }

    fn field(&self, at: &Path<'_>) -> String {
        match (self.prefix, at.is_root()) {
            ("", _) => at.field(),
            (prefix, true) => prefix.to_owned(),
            (prefix, false) => format!("{prefix}.{at}"),
        }
    }

    fn fault(&mut self, kind: FieldErrorKind, at: &Path<'_>, value: Value, detail: String) {
        let field = self.field(at);
        self.faults.push(FieldError::new(kind, field, Some(value), detail));
    }

    fn invalid(&mut self, at: &Path<'_>, value: Value, rest: String) {
        let detail = format!("{at} in body {rest}");
        self.fault(FieldErrorKind::Invalid, at, value, detail);
    }

    fn wrong_type(&mut self, at: &Path<'_>, wanted: &str, got: &str) {
        let detail = format!("{at} in body must be of type {wanted}: {}", error::quote(got));
        self.fault(FieldErrorKind::TypeInvalid, at, Value::from(got), detail);
    }

    /// A complaint about the branches of a node; it is laid on the whole object.
    fn branches(&mut self, at: &Path<'_>, rest: &str) {
        let detail = format!("{} {rest}", error::quote(&at.to_string()));
        let field = self.field(&Path::Root);
        self.merge([FieldError::new(FieldErrorKind::Invalid, field, Some(Value::from("")), detail)]);
    }

    /// Adds complaints of branches, where the same one may come from several.
    fn merge(&mut self, more: impl IntoIterator<Item = FieldError>) {
        for fault in more {
            if self.full() {
                return;
            }
            if !self.faults.contains(&fault) {
                self.faults.push(fault);
            }
        }
    }

    /// Checks a field or element; complaints about an unchanged one are dropped.
    fn ratcheted(&mut self, node: &Node, value: &Value, old: Option<&Value>, at: &Path<'_>) -> usize {
        let before = self.faults.len();
        let passed = self.check(node, value, old, at);
        if self.faults.len() > before && old.is_some_and(|old| unchanged(node, value, old)) {
            self.faults.truncate(before);
        }
        passed
    }

    /// Checks a value and returns how many checks it passed.
    fn check(&mut self, node: &Node, value: &Value, old: Option<&Value>, at: &Path<'_>) -> usize {
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
        // Three for branches, allowed values and the whole; the rest as they apply.
        let mut passed = 3;
        if node.kind != Kind::Any || node.int_or_string || format.is_some() {
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
        at: &Path<'_>,
    ) -> bool {
        let wanted = if node.int_or_string { "integer,string" } else { node.kind.name() };
        let is = |kind: Kind| {
            if node.int_or_string { matches!(kind, Kind::Integer | Kind::String) } else { node.kind == kind }
        };
        if value.is_null() {
            if !wanted.is_empty() && !node.nullable {
                self.wrong_type(at, wanted, "null");
                return false;
            }
            return true;
        }
        let (name, kind, own_format) = match value {
            Value::Bool(_) => ("boolean", Kind::Boolean, ""),
            Value::String(_) => ("string", Kind::String, ""),
            Value::Number(n) if n.is_i64() => ("integer", Kind::Integer, "int64"),
            Value::Number(_) => ("number", Kind::Number, "float64"),
            Value::Array(_) => ("array", Kind::Array, ""),
            _ => ("object", Kind::Object, ""),
        };
        let whole = matches!(value, Value::Number(n) if n.as_f64().is_some_and(is_whole));
        let fits = is(kind)
            || (kind == Kind::Number && whole && is(Kind::Integer))
            || (kind == Kind::Integer && is(Kind::Number));
        let text_or_list = matches!(kind, Kind::String | Kind::Array);
        if formatted && !text_or_list && !fits {
            self.wrong_type(at, format, own_format);
            return false;
        }
        // A format on something that is no number leaves strings and lists to the format alone.
        if formatted && text_or_list && !is(Kind::Number) && !is(Kind::Integer) {
            return true;
        }
        if !fits {
            self.wrong_type(at, wanted, name);
        }
        fits
    }

    fn check_text(&mut self, checks: &Checks, text: &str, at: &Path<'_>) {
        let length = || text.chars().count() as i64;
        if let Some(max) = checks.max_length.filter(|max| text.len() as i64 > *max && length() > *max) {
            let field = self.field(at);
            self.faults.push(FieldError::too_long(field, max));
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
            let detail = format!("{at} in body must be of type {name}: {}", error::quote(text));
            self.fault(FieldErrorKind::TypeInvalid, at, Value::from(text), detail);
        }
    }

    fn check_number(&mut self, checks: &Checks, number: &Number, at: &Path<'_>) {
        let value = || Value::Number(number.clone());
        // Integers are compared as integers, and the bound is cut to one, as Kubernetes does.
        let whole = number.as_i64();
        let float = number.as_f64().unwrap_or_default();
        if let Some(factor) = checks.multiple_of {
            match whole {
                Some(n) => match factor as i64 {
                    factor if factor <= 0 => {
                        let detail =
                            format!("factor MultipleOf declared for {at} must be positive: {factor}");
                        self.fault(FieldErrorKind::Invalid, at, Value::from(factor), detail);
                    }
                    factor if n % factor != 0 => {
                        self.invalid(at, value(), format!("should be a multiple of {factor}"))
                    }
                    _ => {}
                },
                None if factor <= 0.0 => {
                    let detail = format!(
                        "factor MultipleOf declared for {at} must be positive: {}",
                        error::float(factor)
                    );
                    self.fault(FieldErrorKind::Invalid, at, Value::from(factor), detail);
                }
                None => {
                    let times = if factor < 1.0 { 1.0 / factor * float } else { float / factor };
                    if !is_whole(times) {
                        self.invalid(
                            at,
                            value(),
                            format!("should be a multiple of {}", error::float(factor)),
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
                let limit = if whole.is_some() { (limit as i64).to_string() } else { error::float(limit) };
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

    fn check_allowed(&mut self, checks: Option<&Checks>, value: &Value, at: &Path<'_>) {
        let Some(checks) = checks.filter(|c| !c.allowed.is_empty()) else { return };
        if checks.allowed.iter().any(|allowed| same(value, allowed)) {
            return;
        }
        let listed = checks.allowed.iter().map(|v| match v {
            Value::String(s) => s.clone(),
            other => error::json(other),
        });
        let field = self.field(at);
        self.faults.push(FieldError::not_supported(field, value.clone(), listed));
    }

    fn check_list(
        &mut self,
        node: &Node,
        checks: Option<&Checks>,
        list: &Value,
        items: &[Value],
        old: Option<&Value>,
        at: &Path<'_>,
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
            self.faults.push(FieldError::too_many(field, items.len(), max));
        }
        if checks.unique_items && !super::lists::repeated(list).is_empty() {
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
        at: &Path<'_>,
    ) -> usize {
        let mut passed = 0;
        if let Some(checks) = checks {
            if let Some(min) = checks.min_properties.filter(|min| (map.len() as i64) < *min) {
                self.invalid(at, Value::from(map.len()), format!("should have at least {min} properties"));
            }
            if let Some(max) = checks.max_properties.filter(|max| map.len() as i64 > *max) {
                let field = self.field(at);
                self.faults.push(FieldError::too_many(field, map.len(), max));
            }
        }
        let old_map = old.and_then(Value::as_object);
        for (key, value) in map {
            let child = match (node.property(key), &node.additional) {
                (Some(child), _) => child,
                (None, Additional::Schema(child)) => child,
                (None, Additional::Nothing) => {
                    let detail = format!("{at}.{key} in body is a forbidden property");
                    self.fault(FieldErrorKind::Invalid, at, Value::from(key.as_str()), detail);
                    continue;
                }
                (None, _) => continue,
            };
            let here = at.child(key);
            // The version is converted before anyone sees it, so it cannot be called unchanged.
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
                self.faults.push(FieldError::required(field, ""));
            }
        }
        passed
    }

    fn check_branches(
        &mut self,
        checks: Option<&Checks>,
        value: &Value,
        old: Option<&Value>,
        at: &Path<'_>,
    ) -> usize {
        let Some(checks) = checks else { return 1 };
        let mut passed = 1;
        if !checks.any_of.is_empty() {
            match self.best(&checks.any_of, value, old, at, true) {
                (1.., best) => passed += best.passed,
                (_, best) => {
                    self.branches(at, "must validate at least one schema (anyOf)");
                    passed += best.passed;
                    self.merge(best.faults);
                }
            }
        }
        if !checks.one_of.is_empty() {
            match self.best(&checks.one_of, value, old, at, false) {
                (1, best) => passed += best.passed,
                (0, best) => {
                    self.branches(at, "must validate one and only one schema (oneOf). Found none valid");
                    passed += best.passed;
                    self.merge(best.faults);
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
                valid += usize::from(result.faults.is_empty());
                passed += result.passed;
                self.merge(result.faults);
            }
            if valid < checks.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                self.branches(at, &format!("must validate all the schemas (allOf){none}"));
            }
        }
        if let Some(not) = &checks.not
            && self.branch(not, value, old, at).faults.is_empty()
        {
            self.branches(at, "must not validate the schema (not)");
        }
        passed
    }

    fn branch(&self, node: &Node, value: &Value, old: Option<&Value>, at: &Path<'_>) -> Branch {
        let mut walk = Walk { prefix: self.prefix, faults: Vec::new() };
        let passed = walk.check(node, value, old, at);
        Branch { passed, faults: walk.faults }
    }

    /// How many branches fit, and the first that does or else the one that got furthest.
    fn best(
        &self,
        nodes: &[Node],
        value: &Value,
        old: Option<&Value>,
        at: &Path<'_>,
        stop_at_first: bool,
    ) -> (usize, Branch) {
        let mut fitting = 0;
        let mut best: Option<Branch> = None;
        for node in nodes {
            let result = self.branch(node, value, old, at);
            if result.faults.is_empty() {
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
    faults: Vec<FieldError>,
}

/// Equality of a value with an entry of `enum`: numbers are compared in the type of the entry, null equals nothing.
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

/// Is the float a whole number that JSON readers agree on, give or take rounding?
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
        // Kubernetes compares negative numbers through an unsigned conversion, where only exact ones hold.
        return false;
    }
    difference / (f.abs() + truncated.abs()) < EPSILON
}

#[cfg(test)]
mod tests;
