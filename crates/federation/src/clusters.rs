//! [`Clusters`] and [`Policies`]: typed objects of the hub that are read for every binding or object. Each
//! version is decoded once.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use polis_api::conditions;
use polis_api::karmada::{Cluster, ClusterPropagationPolicy, PropagationPolicy};
use polis_engine::{Index, Kind};
use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;
use crate::hub::Hub;
use crate::interpreter::TypeMeta;
use crate::kinds;
use crate::matching::AnyPolicy;
use crate::object;
use crate::placement::Candidate;

/// The last two versions of an object with their decoded forms, the newest first.
type Versions<T> = [Option<(Arc<Value>, T)>; 2];

/// The decoded forms of the last two versions of each object: an event has the state before and after.
struct Decoded<T>(Mutex<BTreeMap<(String, String), Versions<T>>>);

impl<T: Clone> Decoded<T> {
    fn get(&self, object: &Arc<Value>, decode: impl FnOnce(&Value) -> T) -> T {
        let key = (object::meta(object, "namespace").to_owned(), object::meta(object, "name").to_owned());
        let mut all = self.0.lock();
        let versions = all.entry(key).or_default();
        if let Some((_, decoded)) =
            versions.iter().flatten().find(|(version, _)| Arc::ptr_eq(version, object))
        {
            return decoded.clone();
        }
        let decoded = decode(object);
        versions.rotate_right(1);
        versions[0] = Some((object.clone(), decoded.clone()));
        decoded
    }

    fn forget(&self, namespace: &str, name: &str) {
        self.0.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }
}

impl<T> Default for Decoded<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// What placement and dispatch need of a Cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClusterInfo {
    pub(crate) candidate: Arc<Candidate>,
    pub(crate) ready: bool,
}

/// The Clusters of the hub.
pub(crate) struct Clusters {
    hub: Arc<Hub>,
    decoded: Decoded<Option<Arc<ClusterInfo>>>,
}

impl Clusters {
    pub(crate) fn new(hub: Arc<Hub>) -> Self {
        Self { hub, decoded: Decoded::default() }
    }

    /// The Cluster with this name; none if it does not exist or is malformed.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Arc<ClusterInfo>>, Error> {
        let Some(object) = self.hub.get(&kinds::CLUSTER, "", name)? else {
            self.decoded.forget("", name);
            return Ok(None);
        };
        Ok(self.info(Some(&object)))
    }

    /// The decoded form of a version of a Cluster.
    pub(crate) fn info(&self, object: Option<&Arc<Value>>) -> Option<Arc<ClusterInfo>> {
        self.decoded.get(object?, |object| {
            let cluster = Cluster::deserialize(object).ok()?;
            let existing = cluster.status.as_ref().map(|status| status.conditions.as_slice());
            let ready = crate::conditions::status(existing.unwrap_or_default(), conditions::READY);
            let ready = ready == Some("True");
            Some(Arc::new(ClusterInfo { candidate: Arc::new(Candidate::from(&cluster)), ready }))
        })
    }

    /// All Clusters, as candidates for a placement.
    pub(crate) fn candidates(&self) -> Result<Vec<Arc<Candidate>>, Error> {
        let all = self.hub.of(&kinds::CLUSTER).list()?;
        Ok(all.iter().filter_map(|object| Some(self.info(Some(object))?.candidate.clone())).collect())
    }

    /// The names of all Clusters.
    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        Ok(self.hub.of(&kinds::CLUSTER).names()?.into_iter().map(|(_, name)| name).collect())
    }

    /// Whether a Cluster exists and is not being deleted.
    pub(crate) fn stays(&self, name: &str) -> Result<bool, Error> {
        Ok(self.get(name)?.is_some_and(|info| !info.candidate.deleting))
    }
}

/// Policies by the names of the kinds in their selectors.
pub(crate) fn by_selected_kind() -> Index {
    Index::field("spec.resourceSelectors.kind")
}

/// The policies of the hub.
pub(crate) struct Policies {
    hub: Arc<Hub>,
    decoded: Decoded<Option<Arc<AnyPolicy>>>,
}

impl Policies {
    pub(crate) fn new(hub: Arc<Hub>) -> Self {
        Self { hub, decoded: Decoded::default() }
    }

    /// The decoded form of a version of a policy; none if it is malformed.
    pub(crate) fn decoded(&self, object: Option<&Arc<Value>>) -> Option<Arc<AnyPolicy>> {
        self.decoded.get(object?, |object| read_policy(object).map(Arc::new))
    }

    /// Forgets a deleted policy.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        self.decoded.forget(namespace, name);
    }

    /// The policies whose selectors name the kind of an object, from its namespace and from the whole hub.
    pub(crate) fn for_kind_of(&self, template: &Value) -> Result<Vec<Arc<AnyPolicy>>, Error> {
        let type_meta = TypeMeta::of(template);
        let namespace = object::meta(template, "namespace");
        let mut found = Vec::new();
        if !namespace.is_empty() {
            let of_kind = self.hub.of(&kinds::POLICY);
            for name in of_kind.names_within(namespace, &by_selected_kind(), &type_meta.kind)? {
                found.extend(self.decoded(of_kind.get((namespace, name.as_str()))?.as_ref()));
            }
        }
        found.extend(self.of_kind(&kinds::CLUSTER_POLICY, &type_meta)?);
        found.retain(|policy| policy.mentions(&type_meta.api_version, &type_meta.kind));
        Ok(found)
    }

    fn of_kind(&self, kind: &Kind, type_meta: &TypeMeta) -> Result<Vec<Arc<AnyPolicy>>, Error> {
        let found = self.hub.of(kind).find(&by_selected_kind(), &type_meta.kind)?;
        let decoded = found.iter().filter_map(|object| self.decoded(Some(object)));
        Ok(decoded.filter(|policy| policy.mentions(&type_meta.api_version, &type_meta.kind)).collect())
    }

    /// Whether the selectors of any policy name a kind.
    pub(crate) fn select(&self, type_meta: &TypeMeta) -> Result<bool, Error> {
        Ok(!self.of_kind(&kinds::POLICY, type_meta)?.is_empty()
            || !self.of_kind(&kinds::CLUSTER_POLICY, type_meta)?.is_empty())
    }

    /// All kinds in selectors of policies.
    pub(crate) fn kinds(&self) -> Result<std::collections::BTreeSet<TypeMeta>, Error> {
        let mut all = self.hub.of(&kinds::POLICY).list()?;
        all.extend(self.hub.of(&kinds::CLUSTER_POLICY).list()?);
        let policies = all.iter().filter_map(|object| self.decoded(Some(object)));
        Ok(policies.flat_map(|policy| selected_kinds(&policy)).collect())
    }
}

/// The kinds in the selectors of a policy.
pub(crate) fn selected_kinds(policy: &AnyPolicy) -> Vec<TypeMeta> {
    let selectors = policy.spec.resource_selectors.iter();
    let kind = |selector: &polis_api::karmada::ResourceSelector| TypeMeta {
        api_version: selector.api_version.clone(),
        kind: selector.kind.clone(),
    };
    selectors.map(kind).collect()
}

/// Decodes a policy of either kind; `None` if the object is malformed.
pub(crate) fn read_policy(object: &Value) -> Option<AnyPolicy> {
    if object["kind"] == "PropagationPolicy" {
        PropagationPolicy::deserialize(object).ok().map(AnyPolicy::from)
    } else {
        ClusterPropagationPolicy::deserialize(object).ok().map(AnyPolicy::from)
    }
}
