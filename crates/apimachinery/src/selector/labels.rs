//! Label selectors: equality, sets, existence and integer comparison.

use std::fmt;

use serde_json::{Map, Value};

use super::{SelectorError, parser::Parser, write_joined};
use crate::error::ValidationError;
use crate::names;

/// The operator of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `key in (a,b)`
    In,
    /// `key notin (a,b)`; also true without the key.
    NotIn,
    /// `key=a`
    Equals,
    /// `key==a`
    DoubleEquals,
    /// `key!=a`; also true without the key.
    NotEquals,
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key>1`
    GreaterThan,
    /// `key<1`
    LessThan,
}

/// One term of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    /// A requirement. Fails if the key or a value is not a valid label.
    pub fn new(
        key: impl Into<String>,
        operator: Operator,
        values: Vec<String>,
    ) -> Result<Self, SelectorError> {
        let key = key.into();
        let mut wrong = Vec::new();
        let messages = names::label_key(&key);
        if !messages.is_empty() {
            wrong.push(ValidationError::invalid("key", key.as_str(), messages.join("; ")));
        }
        let listed = || Value::from(values.clone());
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                wrong.push(ValidationError::invalid(
                    "values",
                    listed(),
                    "for 'in', 'notin' operators, values set can't be empty",
                ));
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                wrong.push(ValidationError::invalid(
                    "values",
                    listed(),
                    "exact-match compatibility requires one single value",
                ));
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                wrong.push(ValidationError::invalid(
                    "values",
                    listed(),
                    "values set must be empty for exists and does not exist",
                ));
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    wrong.push(ValidationError::invalid(
                        "values",
                        listed(),
                        "for 'Gt', 'Lt' operators, exactly one value is required",
                    ));
                }
                for (i, value) in values.iter().enumerate() {
                    if value.parse::<i64>().is_err() {
                        wrong.push(ValidationError::invalid(
                            format!("values[{i}]"),
                            value.as_str(),
                            "for 'Gt', 'Lt' operators, the value must be an integer",
                        ));
                    }
                }
            }
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            let messages = names::label_value(value);
            if !messages.is_empty() {
                wrong.push(ValidationError::invalid(
                    format!("values[{i}][{key}]"),
                    value.as_str(),
                    messages.join("; "),
                ));
            }
        }
        if wrong.is_empty() {
            Ok(Self { key, operator, values })
        } else {
            Err(SelectorError(crate::error::aggregate(&wrong)))
        }
    }

    /// Whether an object with the label value `value` satisfies the requirement.
    pub fn accepts(&self, value: Option<&str>) -> bool {
        match (self.operator, value) {
            (Operator::In | Operator::Equals | Operator::DoubleEquals, Some(v)) => {
                self.values.iter().any(|w| w == v)
            }
            (Operator::NotIn | Operator::NotEquals, Some(v)) => !self.values.iter().any(|w| w == v),
            (Operator::NotIn | Operator::NotEquals | Operator::DoesNotExist, None) => true,
            (Operator::Exists, v) => v.is_some(),
            (Operator::DoesNotExist, Some(_)) => false,
            (Operator::GreaterThan, Some(v)) => {
                self.bound().zip(v.parse::<i64>().ok()).is_some_and(|(b, v)| v > b)
            }
            (Operator::LessThan, Some(v)) => {
                self.bound().zip(v.parse::<i64>().ok()).is_some_and(|(b, v)| v < b)
            }
            (_, None) => false,
        }
    }

    fn bound(&self) -> Option<i64> {
        self.values.first()?.parse().ok()
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.join(",");
        let key = &self.key;
        match self.operator {
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// A `labelSelector`; an object must satisfy all requirements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    terms: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Selects no object.
    pub fn nothing() -> Self {
        Self { terms: Vec::new(), nothing: true }
    }

    /// Parses the query string form: `a=b,c in (d,e),!f`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Parser::new(text).selector()?;
        terms.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { terms, nothing: false })
    }

    /// Parses a `LabelSelector` object: `matchLabels` and `matchExpressions`. An empty selector selects
    /// everything.
    pub fn from_object(selector: &Value) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
            for (key, value) in labels {
                let value = value.as_str().unwrap_or_default().to_owned();
                terms.push(Requirement::new(key.as_str(), Operator::In, vec![value])?);
            }
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let text = |name: &str| expression.get(name).and_then(Value::as_str).unwrap_or_default();
            let operator = match text("operator") {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(SelectorError(format!(
                        "{} is not a valid label selector operator",
                        crate::go_format::quote(other)
                    )));
                }
            };
            let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
            let mut values: Vec<String> = values.filter_map(Value::as_str).map(str::to_owned).collect();
            values.sort();
            terms.push(Requirement::new(text("key"), operator, values)?);
        }
        terms.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { terms, nothing: false })
    }

    /// Whether the selector matches every object, so that matching can be skipped.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty() && !self.nothing
    }

    /// Does an object with these labels belong to the selection? `lookup` finds the value of a label.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.terms.iter().all(|term| term.accepts(lookup(&term.key)))
    }

    /// Does this object, with its labels at `metadata.labels`, belong to the selection?
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches_labels(object.get("metadata").and_then(|m| m.get("labels")).and_then(Value::as_object))
    }

    /// Does an object with this map of labels belong to the selection?
    pub fn matches_labels(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.matches(|key| labels.and_then(|l| l.get(key)).and_then(Value::as_str))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_joined(f, &self.terms)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labelled(labels: Value) -> Value {
        json!({"metadata": {"name": "a", "labels": labels}})
    }

    #[test]
    fn requirements_match_by_equality_sets_and_existence() {
        let cases = [
            ("", json!({}), true),
            ("x=a", json!({"x": "a"}), true),
            ("x==a", json!({"x": "b"}), false),
            ("x=", json!({"x": ""}), true),
            ("x!=a", json!({}), true),
            ("x!=a", json!({"x": "a"}), false),
            ("x in (a,b)", json!({"x": "b"}), true),
            ("x in (a,b)", json!({}), false),
            ("x notin (a, b)", json!({}), true),
            ("x notin (a,b)", json!({"x": "a"}), false),
            ("x in ()", json!({"x": ""}), true),
            ("x in (,a)", json!({"x": ""}), true),
            ("x in (in,notin)", json!({"x": "notin"}), true),
            ("x", json!({"x": "1"}), true),
            ("!x", json!({"x": "1"}), false),
            ("!x", json!({}), true),
            ("x>1", json!({"x": "2"}), true),
            ("x>1", json!({"x": "a"}), false),
            ("x<1", json!({"x": "0"}), true),
            ("x=a,y!=b", json!({"x": "a", "y": "c"}), true),
            ("example.com/x=a,!z", json!({"example.com/x": "a", "z": ""}), false),
        ];
        for (text, labels, expected) in cases {
            assert_eq!(
                LabelSelector::parse(text).unwrap().matches_object(&labelled(labels)),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn an_invalid_selector_has_the_message_of_kubernetes() {
        let cases = [
            (
                "x=a||y=b",
                "unable to parse requirement: values[0][x]: Invalid value: \"a||y\": a valid label must",
            ),
            ("x==a==b", "found '==', expected: ',' or 'end of string'"),
            ("!x=a", "found '=', expected: ',' or 'end of string'"),
            (
                "x<a",
                "unable to parse requirement: values[0]: Invalid value: \"a\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            ("x in a", "unable to parse requirement: found 'a' expected: '('"),
            ("x in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("x,", "found '', expected: identifier after ','"),
            (",x", "found ',', expected: !, identifier, or 'end of string'"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("x y", "unable to parse requirement: found 'y', expected: in, notin, =, ==, !=, gt, lt"),
            (
                "a/b/c=d",
                "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key must consist",
            ),
        ];
        for (text, words) in cases {
            let error = LabelSelector::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(words), "{text}: {error}");
        }
    }

    #[test]
    fn selector_objects_match_like_query_strings() {
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d"]}]});
        let selector = LabelSelector::from_object(&selector).unwrap();
        assert!(selector.matches_object(&labelled(json!({"a": "b"}))));
        assert!(!selector.matches_object(&labelled(json!({"a": "b", "c": "d"}))));
        assert!(LabelSelector::from_object(&json!({})).unwrap().is_everything());
        let odd = json!({"matchExpressions": [{"key": "c", "operator": "Near"}]});
        assert_eq!(
            LabelSelector::from_object(&odd).unwrap_err().to_string(),
            "\"Near\" is not a valid label selector operator"
        );
        assert!(!LabelSelector::nothing().matches_object(&labelled(json!({}))));
    }
}
