//! Whether a watch selects an object: evaluates the namespace and the selectors of a [`Watch`] on metadata.

use std::collections::BTreeSet;

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::kube::core::{Expression, Selector, SelectorExt as _};

use super::Watch;

impl Watch {
    /// Whether the watch has no selector.
    pub(crate) fn selects_all(&self) -> bool {
        self.namespace.is_none() && self.labels.is_none() && self.fields.is_none()
    }

    /// Whether the watch selects an object with this metadata; none if that is unknown: the field
    /// selector names a field outside the metadata, or the label selector compares numbers.
    pub(crate) fn selects(&self, metadata: &ObjectMeta) -> Option<bool> {
        let namespace = self.namespace.as_deref();
        let within = Some(namespace.is_none_or(|namespace| metadata.namespace.as_deref() == Some(namespace)));
        let labels = self.labels.as_deref().map_or(Some(true), |selector| {
            let labels = metadata.labels.as_ref();
            parse_labels(selector).map(|selector| match labels {
                Some(labels) => selector.matches(labels),
                None => selector.matches(&Default::default()),
            })
        });
        let fields = self.fields.as_deref().map_or(Some(true), |selector| matches_fields(selector, metadata));
        let parts = [within, labels, fields];
        if parts.contains(&Some(false)) {
            Some(false)
        } else {
            parts.into_iter().collect::<Option<Vec<_>>>().map(|_| true)
        }
    }
}

fn matches_fields(selector: &str, metadata: &ObjectMeta) -> Option<bool> {
    let mut matches = true;
    for term in selector.split(',').filter(|term| !term.is_empty()) {
        let (field, equal, value) = comparison(term)?;
        let actual = match field {
            "metadata.name" => metadata.name.as_deref(),
            "metadata.namespace" => metadata.namespace.as_deref(),
            _ => return None,
        };
        matches &= (actual.unwrap_or_default() == value) == equal;
    }
    Some(matches)
}

/// Parses a label selector; none if it has an operator other than those of [`Expression`].
fn parse_labels(selector: &str) -> Option<Selector> {
    terms(selector).map(|term| parse_term(term.trim())).collect()
}

/// The terms of a selector, which commas separate. Commas within parentheses separate values.
fn terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let separates = move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    selector.split(separates).filter(|term| !term.trim().is_empty())
}

fn parse_term(term: &str) -> Option<Expression> {
    if let Some((left, values)) = term.strip_suffix(')').and_then(|term| term.split_once('(')) {
        let values: BTreeSet<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        return match left.split_whitespace().collect::<Vec<_>>()[..] {
            [label, "in"] => Some(Expression::In(label.to_owned(), values)),
            [label, "notin"] => Some(Expression::NotIn(label.to_owned(), values)),
            _ => None,
        };
    }
    if let Some((label, equal, value)) = comparison(term) {
        let (label, value) = (label.to_owned(), value.to_owned());
        return Some(if equal {
            Expression::Equal(label, value)
        } else {
            Expression::NotEqual(label, value)
        });
    }
    match term.strip_prefix('!') {
        _ if term.contains(['<', '>', '(']) => None,
        Some(label) => Some(Expression::DoesNotExist(label.trim().to_owned())),
        None => Some(Expression::Exists(term.to_owned())),
    }
}

/// The name, operator (true if it is equality) and value of `name=value`, `name==value` or `name!=value`.
fn comparison(term: &str) -> Option<(&str, bool, &str)> {
    let (name, value) = term.split_once('=')?;
    let (name, equal) = name.strip_suffix('!').map_or((name, true), |name| (name, false));
    Some((name.trim(), equal, value.strip_prefix('=').unwrap_or(value).trim()))
}

#[cfg(test)]
mod tests {
    use polis_api::k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn mk_metadata() -> ObjectMeta {
        ObjectMeta {
            name: Some("web-0".into()),
            namespace: Some("shop".into()),
            labels: Some(
                [("app".to_owned(), "web".to_owned()), ("tier".to_owned(), "front".to_owned())].into(),
            ),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn label_selectors_are_evaluated() {
        for (selector, selected) in [
            ("app=web", Some(true)),
            ("app==web,tier=front", Some(true)),
            ("app = web , tier != back", Some(true)),
            ("app=web,tier=back", Some(false)),
            ("app!=web", Some(false)),
            ("missing!=x", Some(true)),
            ("app in (web, api)", Some(true)),
            ("app in (api),tier", Some(false)),
            ("app notin (api,db),tier in (front)", Some(true)),
            ("tier", Some(true)),
            ("!tier", Some(false)),
            ("!missing", Some(true)),
            ("missing", Some(false)),
            ("", Some(true)),
            ("size>3", None),
        ] {
            assert_eq!(Watch::of::<Pod>().labels(selector).selects(&mk_metadata()), selected, "{selector}");
        }
        assert_eq!(Watch::of::<Pod>().labels("app=web").selects(&ObjectMeta::default()), Some(false));
    }

    #[test]
    fn the_namespace_and_the_fields_of_the_metadata_are_evaluated() {
        for (selector, selected) in [
            ("metadata.name=web-0", Some(true)),
            ("metadata.name=web-1", Some(false)),
            ("metadata.name!=web-1,metadata.namespace==shop", Some(true)),
            ("spec.nodeName=a", None),
        ] {
            assert_eq!(Watch::of::<Pod>().fields(selector).selects(&mk_metadata()), selected, "{selector}");
        }
        assert_eq!(Watch::of::<Pod>().within("shop").selects(&mk_metadata()), Some(true));
        assert_eq!(Watch::of::<Pod>().within("other").selects(&mk_metadata()), Some(false));
        let unknown = Watch::of::<Pod>().within("other").fields("spec.nodeName=a");
        assert_eq!(unknown.selects(&mk_metadata()), Some(false), "one false part decides");
    }
}
