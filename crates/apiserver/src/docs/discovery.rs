//! Discovery documents: API groups, versions and resources, in the legacy and the aggregated format.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    kinds::{Kind, Kinds, Version},
    subresource::SubresourceHandlers,
};

/// The kinds of one version of a group.
type Members<'a> = (&'a str, Vec<(&'a Kind, &'a Version)>);

/// The served kinds by group and version. The preferred version comes first.
pub(crate) struct Discovery<'a> {
    groups: BTreeMap<&'a str, Vec<Members<'a>>>,
    handlers: &'a SubresourceHandlers,
}

/// The sort key of groups in kubectl: built-in groups first.
fn display_order(group: &str) -> (u8, &str) {
    (u8::from(!(group.ends_with(".k8s.io") || group.is_empty())), group)
}

impl<'a> Discovery<'a> {
    pub(crate) fn of(kinds: &'a Kinds) -> Self {
        let mut groups: BTreeMap<&str, Vec<Members>> = BTreeMap::new();
        for kind in kinds.iter().map(Arc::as_ref) {
            for version in kind.versions.iter().filter(|version| version.served).map(Arc::as_ref) {
                let versions = groups.entry(&kind.group).or_default();
                match versions.iter_mut().find(|(name, _)| *name == version.name) {
                    Some((_, members)) => members.push((kind, version)),
                    None => versions.push((&version.name, vec![(kind, version)])),
                }
            }
        }
        for versions in groups.values_mut() {
            versions.sort_by(|(a, _), (b, _)| {
                crate::kinds::precedence(b).cmp(&crate::kinds::precedence(a)).then_with(|| a.cmp(b))
            });
            for (_, members) in versions.iter_mut() {
                members.sort_by(|(a, _), (b, _)| a.plural.cmp(&b.plural));
            }
        }
        Self { groups, handlers: &kinds.subresources }
    }

    fn group_of(group: &str, versions: &[Members]) -> Value {
        let versions: Vec<Value> = versions
            .iter()
            .map(|(version, _)| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
            .collect();
        json!({"name": group, "versions": versions, "preferredVersion": versions[0]})
    }

    fn named(&self) -> Vec<(&'a str, &Vec<Members<'a>>)> {
        let mut named: Vec<_> = self
            .groups
            .iter()
            .filter(|(group, _)| !group.is_empty())
            .map(|(group, versions)| (*group, versions))
            .collect();
        named.sort_by_key(|(group, _)| display_order(group));
        named
    }

    /// `/apis`
    pub(crate) fn groups(&self) -> Value {
        let groups: Vec<Value> =
            self.named().into_iter().map(|(group, versions)| Self::group_of(group, versions)).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    /// `/apis/<group>`
    pub(crate) fn group(&self, group: &str) -> Option<Value> {
        let versions = self.groups.get(group).filter(|_| !group.is_empty())?;
        let mut doc = Self::group_of(group, versions);
        doc["kind"] = "APIGroup".into();
        doc["apiVersion"] = "v1".into();
        Some(doc)
    }

    /// `/api/v1` and `/apis/<group>/<version>`
    pub(crate) fn resources(&self, group: &str, version: &str) -> Option<Value> {
        let (_, members) = self.groups.get(group)?.iter().find(|(name, _)| *name == version)?;
        let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let resources: Vec<Value> = members
            .iter()
            .flat_map(|(kind, version)| resource_entries(kind, version, self.handlers))
            .collect();
        Some(
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}),
        )
    }

    /// `/`: the paths that the server serves.
    pub(crate) fn paths(&self) -> Value {
        let mut paths: Vec<String> = [
            "/.well-known/openid-configuration",
            "/api",
            "/api/v1",
            "/apis",
            "/healthz",
            "/livez",
            "/openapi/v2",
            "/openapi/v3",
            "/openid/v1/jwks",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned)
        .to_vec();
        for (group, versions) in self.named() {
            paths.push(format!("/apis/{group}"));
            paths.extend(versions.iter().map(|(version, _)| format!("/apis/{group}/{version}")));
        }
        paths.sort();
        json!({"paths": paths})
    }

    /// The aggregated format of `/api` (`core`) or `/apis`.
    pub(crate) fn aggregated(&self, core: bool) -> Value {
        let mut items: Vec<(&str, Value)> = Vec::new();
        for (group, versions) in self.groups.iter().filter(|(group, _)| group.is_empty() == core) {
            let versions: Vec<Value> = versions
                .iter()
                .map(|(version, members)| {
                    let resources: Vec<Value> = members
                        .iter()
                        .map(|(kind, version)| aggregated_entry(kind, version, self.handlers))
                        .collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if group.is_empty() {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": group, "creationTimestamp": null})
            };
            items.push((group, json!({"metadata": metadata, "versions": versions})));
        }
        items.sort_by_key(|(group, _)| display_order(group));
        let items: Vec<Value> = items.into_iter().map(|(_, item)| item).collect();
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
    }
}

/// Subresources of a version: name, response kind and verbs.
fn subresources<'a>(
    kind: &'a Kind,
    version: &Version,
    handlers: &'a SubresourceHandlers,
) -> Vec<(&'a str, Value, &'static [&'static str])> {
    let own = |kind: &Kind| json!({"group": kind.group, "version": version.name, "kind": kind.kind});
    let mut subresources: Vec<(&str, Value, &'static [&'static str])> = Vec::new();
    if kind.is("", "namespaces") {
        subresources.push(("finalize", own(kind), &["update"]));
    }
    if version.scale.is_some() {
        subresources.push((
            "scale",
            json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}),
            &["get", "patch", "update"],
        ));
    }
    if version.status {
        subresources.push(("status", own(kind), &["get", "patch", "update"]));
    }
    if kind.is("", "serviceaccounts") {
        subresources.push((
            "token",
            json!({"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}),
            &["create"],
        ));
    }
    for name in handlers.names(&kind.group, &kind.plural) {
        subresources.push((name, own(kind), &["get"]));
    }
    subresources.sort_by_key(|(name, ..)| *name);
    subresources
}

/// `storageVersionHash`, as Kubernetes computes it: a hash of group, storage version and kind.
fn storage_hash(kind: &Kind) -> String {
    use base64::Engine;
    // Events are stored in the core group. Kubernetes publishes the hash of v1beta1 for CRDs.
    let (group, version) = match (kind.group.as_str(), kind.plural.as_str()) {
        ("events.k8s.io", "events") if !kind.is_custom() => ("", "v1"),
        (group @ "apiextensions.k8s.io", "customresourcedefinitions") => (group, "v1beta1"),
        (group, _) => (group, kind.storage.as_str()),
    };
    let sum = Sha256::digest(format!("{group}/{version}/{}", kind.kind));
    base64::engine::general_purpose::STANDARD.encode(&sum[..8])
}

fn resource_entries(kind: &Kind, version: &Version, handlers: &SubresourceHandlers) -> Vec<Value> {
    let mut entry = json!({"name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": kind.verbs()});
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
    if kind.rules().is_none_or(|rules| !rules.ephemeral) {
        entry["storageVersionHash"] = storage_hash(kind).into();
    }
    let mut entries = vec![entry];
    for (name, response_kind, verbs) in subresources(kind, version, handlers) {
        let mut entry = json!({"name": format!("{}/{name}", kind.plural), "singularName": "", "namespaced": kind.namespaced, "kind": response_kind["kind"], "verbs": verbs});
        if response_kind["group"] != kind.group.as_str() {
            entry["group"] = response_kind["group"].clone();
            entry["version"] = response_kind["version"].clone();
        }
        entries.push(entry);
    }
    entries
}

fn aggregated_entry(kind: &Kind, version: &Version, handlers: &SubresourceHandlers) -> Value {
    let mut entry = json!({
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": version.name, "kind": kind.kind},
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.verbs(),
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
    let subresources: Vec<Value> = subresources(kind, version, handlers)
        .into_iter()
        .map(|(name, response_kind, verbs)| json!({"subresource": name, "responseKind": response_kind, "verbs": verbs}))
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}
