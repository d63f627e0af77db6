//! Matchers: an object by name, with predicates that describe themselves in assertion messages.

use std::{fmt, marker::PhantomData, sync::Arc};

use polis_api::{
    compute::{Instance, Workload, WorkloadDeployment},
    k8s_openapi::{
        api::core::v1::Namespace,
        apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference},
    },
    karmada::{PropagationPolicy, ResourceBinding},
    kube::{Resource, ResourceExt as _},
    labels,
};
pub use polis_testing::builders::condition;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A kind that matchers support.
pub trait Matchable:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static
{
}
impl<K> Matchable for K where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static
{
}

type Predicate<K> = Arc<dyn Fn(&K) -> bool + Send + Sync>;

/// Matches one object by name and predicates.
#[derive(Clone)]
pub struct Matcher<K> {
    /// The name of the object.
    pub name: String,
    predicates: Vec<(String, Predicate<K>)>,
    kind: PhantomData<K>,
}

impl<K: Matchable> Matcher<K> {
    /// Matches an object by its name alone.
    pub fn named(name: impl Into<String>) -> Self {
        Matcher { name: name.into(), predicates: Vec::new(), kind: PhantomData }
    }

    /// Adds a predicate. The description completes the sentence "an object that …".
    pub fn that(
        mut self,
        description: impl Into<String>,
        test: impl Fn(&K) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.predicates.push((description.into(), Arc::new(test)));
        self
    }

    /// Requires a label.
    pub fn labelled(self, key: &str, value: &str) -> Self {
        let (key, wanted) = (key.to_owned(), value.to_owned());
        self.that(format!("is labelled {key}={wanted}"), move |object| {
            object.labels().get(&key) == Some(&wanted)
        })
    }

    /// Requires an annotation.
    pub fn annotated(self, key: &str, value: &str) -> Self {
        let (key, wanted) = (key.to_owned(), value.to_owned());
        self.that(format!("is annotated {key}={wanted}"), move |object| {
            object.annotations().get(&key) == Some(&wanted)
        })
    }

    /// Requires a finalizer.
    pub fn with_finalizer(self, finalizer: &str) -> Self {
        let wanted = finalizer.to_owned();
        self.that(format!("has the finalizer {wanted}"), move |object| object.finalizers().contains(&wanted))
    }

    /// Requires an owner reference with this uid.
    pub fn owned_by(self, kind: &str, name: &str, uid: &str) -> Self {
        let (kind, name, uid) = (kind.to_owned(), name.to_owned(), uid.to_owned());
        self.that(format!("is owned by {kind} {name} with uid {uid}"), move |object| {
            let matches =
                |owner: &OwnerReference| owner.kind == kind && owner.name == name && owner.uid == uid;
            object.owner_references().iter().any(matches)
        })
    }

    /// Requires that the object is not being deleted.
    pub fn not_deleting(self) -> Self {
        self.that("is not being deleted", |object| object.meta().deletion_timestamp.is_none())
    }

    /// Requires this uid.
    pub fn with_uid(self, uid: &str) -> Self {
        let uid = uid.to_owned();
        self.that(format!("has the uid {uid}"), move |object| object.uid().as_deref() == Some(&*uid))
    }

    fn conditioned(
        self,
        kind: &str,
        status: &str,
        reason: &str,
        conditions: impl Fn(&K) -> Option<&Vec<Condition>> + Send + Sync + 'static,
    ) -> Self {
        let (kind, wanted, why) = (kind.to_owned(), status.to_owned(), reason.to_owned());
        self.that(format!("has {kind}={wanted}/{why}"), move |object| {
            let found = conditions(object).and_then(|conditions| condition(conditions, &kind));
            found.is_some_and(|(status, reason)| status == wanted && (why.is_empty() || reason == why))
        })
    }

    /// The predicates that do not hold for the object; empty if it matches.
    pub fn mismatches(&self, object: &Value) -> Vec<String> {
        match serde_json::from_value::<K>(object.clone()) {
            Err(err) => vec![format!("can be parsed: {err}")],
            Ok(object) => self.mismatches_in(&object),
        }
    }

    /// The predicates that do not hold for the parsed object.
    pub fn mismatches_in(&self, object: &K) -> Vec<String> {
        self.predicates
            .iter()
            .filter(|(_, test)| !test(object))
            .map(|(description, _)| description.clone())
            .collect()
    }
}

impl<K: Matchable> fmt::Display for Matcher<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", K::kind(&()), self.name)?;
        for (at, (description, _)) in self.predicates.iter().enumerate() {
            write!(f, "{} {description}", if at == 0 { " that" } else { " and" })?;
        }
        Ok(())
    }
}

/// Matches the propagation policy of this name.
pub fn policy(name: &str) -> Matcher<PropagationPolicy> {
    Matcher::named(name)
}

impl Matcher<PropagationPolicy> {
    /// Requires that the policy propagates exactly the deployments of a city to the clusters of the city.
    pub fn of_city(self, city: &str) -> Self {
        let city = city.to_owned();
        self.that(
            format!("propagates exactly the deployments of {city} to the clusters of {city}"),
            move |policy| {
                let only_label = |selector: Option<
                    &polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector,
                >| {
                    let Some(selector) = selector else { return false };
                    let labels = selector.match_labels.clone().unwrap_or_default();
                    labels.len() == 1
                        && labels.get(labels::TOPOLOGY_CITY_CODE) == Some(&city)
                        && selector.match_expressions.as_ref().is_none_or(|more| more.is_empty())
                };
                let affinity = policy.spec.placement.cluster_affinity.as_ref();
                matches!(&policy.spec.resource_selectors[..], [one]
                if one.kind == "WorkloadDeployment"
                    && one.api_version == polis_api::compute::API_VERSION
                    && one.name.as_deref().unwrap_or("").is_empty()
                    && only_label(one.label_selector.as_ref()))
                    && affinity.is_some_and(|affinity| only_label(affinity.label_selector.as_ref()))
            },
        )
    }
}

/// Matches the deployment of this name.
pub fn deployment_named(name: &str) -> Matcher<WorkloadDeployment> {
    Matcher::named(name)
}

impl Matcher<WorkloadDeployment> {
    /// Requires these replica counts in the status.
    pub fn with_counts(self, replicas: i32, ready: i32, desired: i32) -> Self {
        self.that(format!("has {replicas} replicas, {ready} ready, {desired} desired"), move |deployment| {
            let Some(status) = &deployment.status else { return false };
            (status.replicas, status.ready_replicas, status.desired_replicas) == (replicas, ready, desired)
        })
    }

    /// Requires the condition `Available` with this status and, unless it is empty, this reason.
    pub fn available(self, status: &str, reason: &str) -> Self {
        self.conditioned("Available", status, reason, |deployment| {
            Some(&deployment.status.as_ref()?.conditions)
        })
    }

    /// Requires this image.
    pub fn with_image(self, image: &str) -> Self {
        let wanted = image.to_owned();
        self.that(format!("runs {wanted}"), move |deployment| {
            image_of(&deployment.spec.template.spec) == Some(&*wanted)
        })
    }

    /// Requires this cell in the status.
    pub fn in_cell(self, cell: &str) -> Self {
        let wanted = cell.to_owned();
        self.that(format!("has status.cell {wanted}"), move |deployment| {
            deployment.status.as_ref().and_then(|status| status.cell.as_deref()) == Some(&*wanted)
        })
    }

    /// Requires `minReplicas`.
    pub fn with_min_replicas(self, replicas: i32) -> Self {
        self.that(format!("has minReplicas {replicas}"), move |d| {
            d.spec.scale_settings.min_replicas == replicas
        })
    }
}

/// Matches the instance of this name.
pub fn instance(name: &str) -> Matcher<Instance> {
    Matcher::named(name)
}

impl Matcher<Instance> {
    /// Requires a condition with this status and, unless it is empty, this reason.
    pub fn with_condition(self, kind: &str, status: &str, reason: &str) -> Self {
        self.conditioned(kind, status, reason, |instance| Some(&instance.status.as_ref()?.conditions))
    }

    /// Requires that the instance is ready.
    pub fn ready(self) -> Self {
        self.with_condition("Ready", "True", "")
    }

    /// Requires this image.
    pub fn with_image(self, image: &str) -> Self {
        let wanted = image.to_owned();
        self.that(format!("runs {wanted}"), move |instance| image_of(&instance.spec) == Some(&*wanted))
    }
}

fn image_of(spec: &polis_api::compute::InstanceSpec) -> Option<&str> {
    Some(&spec.runtime.sandbox.as_ref()?.containers.first()?.image)
}

/// Matches the workload of this name.
pub fn workload_named(name: &str) -> Matcher<Workload> {
    Matcher::named(name)
}

impl Matcher<Workload> {
    /// Requires the condition `Available` with this status and, unless it is empty, this reason.
    pub fn available(self, status: &str, reason: &str) -> Self {
        self.conditioned("Available", status, reason, |workload| Some(&workload.status.as_ref()?.conditions))
    }

    /// Requires these counts in the status.
    pub fn with_counts(self, deployments: i32, replicas: i32, ready: i32) -> Self {
        self.that(
            format!("has {deployments} deployments, {replicas} replicas, {ready} ready"),
            move |workload| {
                let Some(status) = &workload.status else { return false };
                (status.deployments, status.replicas, status.ready_replicas) == (deployments, replicas, ready)
            },
        )
    }
}

/// Matches the namespace of this name.
pub fn namespace(name: &str) -> Matcher<Namespace> {
    Matcher::named(name)
}

/// Matches Karmada's ResourceBinding of a deployment.
pub fn binding_of(deployment: &str) -> Matcher<ResourceBinding> {
    Matcher::named(polis_api::names::binding("WorkloadDeployment", deployment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matcher_describes_itself() {
        let matcher = deployment_named("a").labelled("x", "y").with_min_replicas(3);
        assert_eq!(matcher.to_string(), "WorkloadDeployment a that is labelled x=y and has minReplicas 3");
    }

    #[test]
    fn mismatches_are_described_in_the_same_words() {
        let found = WorkloadDeployment { spec: Default::default(), ..Default::default() };
        let mismatches =
            deployment_named("a").with_min_replicas(0).with_counts(1, 1, 1).mismatches_in(&found);
        assert_eq!(mismatches, ["has 1 replicas, 1 ready, 1 desired"]);
    }

    #[test]
    fn a_city_policy_selects_only_deployments_of_the_city() {
        let good = serde_json::json!({
            "metadata": {"name": "city-dfw"},
            "spec": {
                "resourceSelectors": [{"apiVersion": "compute.datumapis.com/v1alpha", "kind": "WorkloadDeployment",
                    "labelSelector": {"matchLabels": {"topology.datum.net/city-code": "dfw"}}}],
                "placement": {"clusterAffinity": {"labelSelector": {"matchLabels": {"topology.datum.net/city-code": "dfw"}}}},
            },
        });
        assert!(policy("city-dfw").of_city("dfw").mismatches(&good).is_empty());
        assert_eq!(policy("city-dfw").of_city("ord").mismatches(&good).len(), 1);
        let mut more = good.clone();
        let again = more["spec"]["resourceSelectors"][0].clone();
        more["spec"]["resourceSelectors"].as_array_mut().unwrap().push(again);
        assert_eq!(
            policy("city-dfw").of_city("dfw").mismatches(&more).len(),
            1,
            "a second selector is too many"
        );
    }
}
