//! Namespace controller: deletes the content of a terminating namespace, then removes its finalizer.
//!
//! Reads   Namespace and all namespaced objects
//! Writes  deletes of the content; Namespace (conditions, `spec.finalizers`)

use std::{collections::BTreeMap, sync::Arc};

use polis_apimachinery::{object, time};
use serde_json::{Value, json};

use super::delete_under;
use crate::{
    builtins::NAMESPACE_FINALIZER,
    server::Core,
    status::StatusError,
    store::{Collection, RangeOptions},
};

/// Whether a namespace is being deleted.
pub(super) fn is_terminating(core: &Core, plane: &Arc<str>, name: &str) -> bool {
    let namespaces = Collection::new(plane.clone(), "namespaces");
    core.store.view().get(&namespaces, name).is_some_and(|stored| stored.partial_meta().is_deleting())
}

/// Deletes the content of a terminating namespace, reports what remains in its conditions, and removes the
/// finalizer when nothing remains.
pub(super) async fn terminate(core: &Arc<Core>, plane: &Arc<str>, name: &str) -> Result<(), StatusError> {
    let Some(plane) = core.plane(plane) else { return Ok(()) };
    let namespaces = Collection::new(plane.name.clone(), "namespaces");
    let Some(stored) = core.store.view().get(&namespaces, name) else { return Ok(()) };
    let namespace = stored.value();
    if !object::is_deleting(&namespace)
        || !object::strings(&namespace["spec"]["finalizers"])
            .iter()
            .any(|finalizer| finalizer == NAMESPACE_FINALIZER)
    {
        return Ok(());
    }
    let prefix = format!("{name}/");
    for collection in core.store.view().collections(&plane.name) {
        delete_under(core, &plane, &collection, &prefix).await?;
    }
    let left = Remaining::in_namespace(core, &plane.name, &prefix);
    let now = time::timestamp(core.clock.now());
    core.rewrite_or_remove(&namespaces, name, |namespace| {
        let mut namespace = namespace.clone();
        if left.is_empty() {
            let finalizers: Vec<String> = object::strings(&namespace["spec"]["finalizers"])
                .into_iter()
                .filter(|finalizer| finalizer != NAMESPACE_FINALIZER)
                .collect();
            if finalizers.is_empty() && object::finalizers(&namespace).is_empty() {
                return None;
            }
            namespace["spec"] =
                if finalizers.is_empty() { json!({}) } else { json!({"finalizers": finalizers}) };
        }
        left.report(&mut namespace, &now);
        Some(namespace)
    })
    .await
    .map(drop)
}

/// Number of objects per resource and per finalizer that remain in a namespace.
#[derive(Default)]
struct Remaining {
    resources: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
}

impl Remaining {
    fn in_namespace(core: &Core, plane: &Arc<str>, prefix: &str) -> Self {
        let mut left = Self::default();
        for collection in core.store.view().collections(plane) {
            let Ok(page) =
                core.store.view().range(&collection, &RangeOptions { prefix, ..RangeOptions::default() })
            else {
                continue;
            };
            for (_, stored) in &page.items {
                *left.resources.entry(collection.resource.to_string()).or_default() += 1;
                for finalizer in object::finalizers(&stored.value()) {
                    *left.finalizers.entry(finalizer).or_default() += 1;
                }
            }
        }
        left
    }

    fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// The conditions that Kubernetes' namespace controller sets.
    fn report(&self, namespace: &mut Value, now: &str) {
        let list = |entries: &BTreeMap<String, usize>, joint: &str| {
            let entries =
                entries.iter().map(|(name, count)| format!("{name} {joint} {count} resource instances"));
            entries.collect::<Vec<_>>().join(", ")
        };
        let qualified = |name: &String| if name.contains('.') { name.clone() } else { format!("{name}.") };
        let resources = self.resources.iter().map(|(name, count)| (qualified(name), *count)).collect();
        let remaining = format!("Some resources are remaining: {}", list(&resources, "has"));
        let finalizers = format!(
            "Some content in the namespace has finalizers remaining: {}",
            list(&self.finalizers, "in")
        );
        for (condition, status, reason, message) in [
            (
                "NamespaceDeletionDiscoveryFailure",
                "False",
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                "False",
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            (
                "NamespaceDeletionContentFailure",
                "False",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            match self.resources.is_empty() {
                true => (
                    "NamespaceContentRemaining",
                    "False",
                    "ContentRemoved",
                    "All content successfully removed",
                ),
                false => ("NamespaceContentRemaining", "True", "SomeResourcesRemain", &remaining),
            },
            match self.finalizers.is_empty() {
                true => (
                    "NamespaceFinalizersRemaining",
                    "False",
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                ),
                false => ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", &finalizers),
            },
        ] {
            object::set_condition(namespace, condition, status, reason, message, now);
        }
    }
}
