//! Discovery: which groups, versions and resources there are, in the old form and in the aggregated one.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    extension::Extensions,
    kinds::{Kind, Kinds, Version},
};

/// The kinds of one version of a group.
type Members<'a> = (&'a str, Vec<(&'a Kind, &'a Version)>);

/// Kinds by group, then by version, versions in the order of preference.
pub(crate) struct Discovery<'a> {
    groups: BTreeMap<&'a str, Vec<Members<'a>>>,
    extensions: &'a Extensions,
}

/// Groups in the order kubectl shows them: built in first, then the others.
fn rank(group: &str) -> (u8, &str) {
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
        Self { groups, extensions: &kinds.extensions }
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
        named.sort_by_key(|(group, _)| rank(group));
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
        let resources: Vec<Value> =
            members.iter().flat_map(|(kind, version)| old_entries(kind, version, self.extensions)).collect();
        Some(
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}),
        )
    }

    /// `/`: the paths that lead somewhere.
    pub(crate) fn paths(&self) -> Value {
        let mut paths: Vec<String> = [
            "/api",
            "/api/v1",
            "/apis",
            "/healthz",
            "/livez",
            "/openapi/v2",
            "/openapi/v3",
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

    /// The aggregated form of `/api` (`core`) or `/apis`.
    pub(crate) fn aggregated(&self, core: bool) -> Value {
        let mut items: Vec<(&str, Value)> = Vec::new();
        for (group, versions) in self.groups.iter().filter(|(group, _)| group.is_empty() == core) {
            let versions: Vec<Value> = versions
                .iter()
                .map(|(version, members)| {
                    let resources: Vec<Value> = members
                        .iter()
                        .map(|(kind, version)| new_entry(kind, version, self.extensions))
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
        items.sort_by_key(|(group, _)| rank(group));
        let items: Vec<Value> = items.into_iter().map(|(_, item)| item).collect();
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
    }
}

/// Subresources of a version with the kind they speak and their verbs.
fn subresources<'a>(
    kind: &'a Kind,
    version: &Version,
    extensions: &'a Extensions,
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
    for name in extensions.names(&kind.group, &kind.plural) {
        subresources.push((name, own(kind), &["get"]));
    }
    subresources.sort_by_key(|(name, ..)| *name);
    subresources
}

/// A short mark of where objects are stored, as Kubernetes computes it: group, version and kind, hashed.
fn storage_hash(kind: &Kind) -> String {
    use base64::Engine;
    // Events are stored as those of core; definitions carry the mark of the version they were first stored in.
    let (group, version) = match (kind.group.as_str(), kind.plural.as_str()) {
        ("events.k8s.io", "events") if !kind.is_custom() => ("", "v1"),
        (group @ "apiextensions.k8s.io", "customresourcedefinitions") => (group, "v1beta1"),
        (group, _) => (group, kind.storage.as_str()),
    };
    let sum = Sha256::digest(format!("{group}/{version}/{}", kind.kind));
    base64::engine::general_purpose::STANDARD.encode(&sum[..8])
}

fn old_entries(kind: &Kind, version: &Version, extensions: &Extensions) -> Vec<Value> {
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
    for (name, speaks, verbs) in subresources(kind, version, extensions) {
        let mut entry = json!({"name": format!("{}/{name}", kind.plural), "singularName": "", "namespaced": kind.namespaced, "kind": speaks["kind"], "verbs": verbs});
        if speaks["group"] != kind.group.as_str() {
            entry["group"] = speaks["group"].clone();
            entry["version"] = speaks["version"].clone();
        }
        entries.push(entry);
    }
    entries
}

fn new_entry(kind: &Kind, version: &Version, extensions: &Extensions) -> Value {
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
    let subresources: Vec<Value> = subresources(kind, version, extensions)
        .into_iter()
        .map(|(name, speaks, verbs)| json!({"subresource": name, "responseKind": speaks, "verbs": verbs}))
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}
