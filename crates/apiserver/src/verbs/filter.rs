//! The filter of lists, watches and collection deletes.

use polis_apimachinery::selector::{FieldSelector, LabelSelector, field_text};
use serde::Deserialize;
use std::{borrow::Cow, collections::BTreeMap};

use super::Call;
use crate::{status::StatusError, store::Stored};

/// A filter over a collection: namespace, name, labels, fields.
pub(crate) struct Filter {
    namespace: Option<String>,
    name: Option<String>,
    labels: Option<LabelSelector>,
    fields: Option<FieldSelector>,
    /// Field selectors use the fields of events.k8s.io; the stored objects are core events.
    new_events: bool,
}

/// The part of an object that a label selector needs.
#[derive(Deserialize)]
struct Labelled<'a> {
    #[serde(borrow, default)]
    metadata: Labels<'a>,
}

#[derive(Deserialize, Default)]
struct Labels<'a> {
    #[serde(borrow, default)]
    labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

impl Filter {
    /// The filter of a list, watch or collection delete.
    pub(crate) fn of(call: &Call) -> Result<Self, StatusError> {
        let mut filter = Self {
            namespace: call.namespace.clone().filter(|_| call.kind.namespaced),
            name: call.name.clone(),
            labels: call.options.labels.clone(),
            fields: None,
            new_events: call.kind.is("events.k8s.io", "events"),
        };
        if let Some(fields) = &call.options.fields {
            let offered = |field: &str| {
                field.is_empty()
                    || field == "metadata.name"
                    // Cluster-scoped built-in kinds accept metadata.namespace too; namespaces do not.
                    || (field == "metadata.namespace"
                        && (call.kind.namespaced
                            || !(call.kind.is_custom() || call.kind.plural == "namespaces")))
                    || call.version.selectable.iter().any(|known| known == field)
            };
            if let Some(unknown) =
                fields.terms().iter().map(|term| term.field.as_str()).find(|field| !offered(field))
            {
                // Kubernetes has a shorter message for kinds with selectable fields.
                return Err(StatusError::bad_request(
                    match call.kind.is_custom() || !call.version.selectable.is_empty() {
                        true => format!("field label not supported: {unknown}"),
                        false => format!(
                            "\"{unknown}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                        ),
                    },
                ));
            }
            if let Some(name) = fields.exact("metadata.name") {
                match &filter.name {
                    Some(known) if known != name => filter.name = Some("\0".into()),
                    _ => filter.name = Some(name.to_owned()),
                }
            }
            // The name is in the path; only further terms need the object.
            if fields.terms().iter().any(|term| !(term.equal && term.field == "metadata.name")) {
                filter.fields = Some(fields.clone());
            }
        }
        Ok(filter)
    }

    /// Whether the filter may exclude objects of the namespace.
    pub(crate) fn is_selective(&self) -> bool {
        self.name.is_some() || self.labels.is_some() || self.fields.is_some()
    }

    /// The common prefix of matching paths.
    pub(crate) fn prefix(&self) -> String {
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            (Some(namespace), None) => format!("{namespace}/"),
            (None, _) => String::new(),
        }
    }

    /// Whether a path matches the namespace and the name.
    pub(crate) fn covers(&self, path: &str) -> bool {
        let (namespace, name) = match path.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, path),
        };
        (self.namespace.is_none() || self.namespace.as_deref() == namespace)
            && self.name.as_deref().is_none_or(|wanted| wanted == name)
    }

    /// Whether an object matches.
    pub(crate) fn accepts(&self, path: &str, stored: &Stored) -> bool {
        self.covers(path) && self.selects(stored)
    }

    /// Whether the label and field selectors match.
    pub(crate) fn selects(&self, stored: &Stored) -> bool {
        if let Some(labels) = &self.labels {
            let Ok(object) = serde_json::from_slice::<Labelled<'_>>(stored.json()) else { return false };
            if !labels.matches(|key| object.metadata.labels.get(key).map(|value| &**value)) {
                return false;
            }
        }
        let Some(fields) = &self.fields else { return true };
        let mut object = stored.value();
        if self.new_events {
            crate::events::to_events_v1(&mut object);
        }
        fields.matches(|field| match field {
            "source" => field_text(&object, "source.component")
                .or_else(|| field_text(&object, "reportingComponent"))
                .map(|text| Cow::Owned(text.into_owned())),
            _ => Some(
                field_text(&object, field).map_or(Cow::Borrowed(""), |text| Cow::Owned(text.into_owned())),
            ),
        })
    }
}
