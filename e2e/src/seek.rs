//! Seek: what a scenario looks for, in words that also tell what was missing.

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
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A kind that can be looked for.
pub trait Kind:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static
{
}
impl<K> Kind for K where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static
{
}

type Test<K> = Arc<dyn Fn(&K) -> bool + Send + Sync>;

/// One object that is looked for, and what must be true of it.
#[derive(Clone)]
pub struct Seek<K> {
    /// Its name.
    pub name: String,
    wants: Vec<(String, Test<K>)>,
    kind: PhantomData<K>,
}

impl<K: Kind> Seek<K> {
    /// Looks for an object by its name alone.
    pub fn named(name: impl Into<String>) -> Self {
        Seek { name: name.into(), wants: Vec::new(), kind: PhantomData }
    }

    /// And something must be true of it, said in words that follow "that".
    pub fn that(
        mut self,
        words: impl Into<String>,
        test: impl Fn(&K) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.wants.push((words.into(), Arc::new(test)));
        self
    }

    /// And it has a label.
    pub fn labelled(self, key: &str, value: &str) -> Self {
        let (key, wanted) = (key.to_owned(), value.to_owned());
        self.that(format!("is labelled {key}={wanted}"), move |object| {
            object.labels().get(&key) == Some(&wanted)
        })
    }

    /// And it has an annotation.
    pub fn annotated(self, key: &str, value: &str) -> Self {
        let (key, wanted) = (key.to_owned(), value.to_owned());
        self.that(format!("is annotated {key}={wanted}"), move |object| {
            object.annotations().get(&key) == Some(&wanted)
        })
    }

    /// And it has a finalizer.
    pub fn held_by(self, finalizer: &str) -> Self {
        let wanted = finalizer.to_owned();
        self.that(format!("is held by {wanted}"), move |object| object.finalizers().contains(&wanted))
    }

    /// And an owner, with this uid.
    pub fn owned_by(self, kind: &str, name: &str, uid: &str) -> Self {
        let (kind, name, uid) = (kind.to_owned(), name.to_owned(), uid.to_owned());
        self.that(format!("is owned by {kind} {name} with uid {uid}"), move |object| {
            let is = |owner: &OwnerReference| owner.kind == kind && owner.name == name && owner.uid == uid;
            object.owner_references().iter().any(is)
        })
    }

    /// And it is not being deleted.
    pub fn staying(self) -> Self {
        self.that("is not being deleted", |object| object.meta().deletion_timestamp.is_none())
    }

    /// And it is this very object, and no other of its name.
    pub fn being(self, uid: &str) -> Self {
        let uid = uid.to_owned();
        self.that(format!("has the uid {uid}"), move |object| object.uid().as_deref() == Some(&*uid))
    }

    /// What is missing in this object; nothing when it is what is looked for.
    pub fn missing(&self, object: &Value) -> Vec<String> {
        match serde_json::from_value::<K>(object.clone()) {
            Err(err) => vec![format!("can be read: {err}")],
            Ok(object) => self.missing_in(&object),
        }
    }

    /// What is missing in this object, when it has been read.
    pub fn missing_in(&self, object: &K) -> Vec<String> {
        self.wants.iter().filter(|(_, test)| !test(object)).map(|(words, _)| words.clone()).collect()
    }
}

impl<K: Kind> fmt::Display for Seek<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", K::kind(&()), self.name)?;
        for (at, (words, _)) in self.wants.iter().enumerate() {
            write!(f, "{} {words}", if at == 0 { " that" } else { " and" })?;
        }
        Ok(())
    }
}

/// The condition of a type, as (status, reason).
pub fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<(&'a str, &'a str)> {
    conditions.iter().find(|condition| condition.type_ == kind).map(|found| (&*found.status, &*found.reason))
}

/// Looks for the propagation policy of that name.
pub fn policy(name: &str) -> Seek<PropagationPolicy> {
    Seek::named(name)
}

impl Seek<PropagationPolicy> {
    /// And it sends the deployments of a city, and nothing else, to the cluster of that city.
    pub fn of_city(self, city: &str) -> Self {
        let city = city.to_owned();
        self.that(
            format!("sends exactly the deployments of {city} to the clusters of {city}"),
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

/// Looks for a deployment.
pub fn deployed(name: &str) -> Seek<WorkloadDeployment> {
    Seek::named(name)
}

impl Seek<WorkloadDeployment> {
    /// And its status counts so many replicas, so many of them ready, of so many desired.
    pub fn counting(self, replicas: i32, ready: i32, desired: i32) -> Self {
        self.that(
            format!("counts {replicas} replicas, {ready} ready, {desired} desired"),
            move |deployment| {
                let Some(status) = &deployment.status else { return false };
                (status.replicas, status.ready_replicas, status.desired_replicas)
                    == (replicas, ready, desired)
            },
        )
    }

    /// And it is available, or not, for a reason.
    pub fn available(self, status: &str, reason: &str) -> Self {
        let (wanted, why) = (status.to_owned(), reason.to_owned());
        self.that(format!("has Available={wanted}/{why}"), move |deployment| {
            let conditions =
                deployment.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
            condition(conditions, "Available") == Some((&wanted, &why))
        })
    }

    /// And its instances are to run this image.
    pub fn with_image(self, image: &str) -> Self {
        let wanted = image.to_owned();
        self.that(format!("runs {wanted}"), move |deployment| {
            image_of(&deployment.spec.template.spec) == Some(&*wanted)
        })
    }

    /// And its status names the cell that runs it.
    pub fn in_cell(self, cell: &str) -> Self {
        let wanted = cell.to_owned();
        self.that(format!("says that it runs in {wanted}"), move |deployment| {
            deployment.status.as_ref().and_then(|status| status.cell.as_deref()) == Some(&*wanted)
        })
    }

    /// And it wants so many replicas.
    pub fn wanting(self, replicas: i32) -> Self {
        self.that(format!("wants {replicas} replicas"), move |d| {
            d.spec.scale_settings.min_replicas == replicas
        })
    }
}

/// Looks for an instance.
pub fn instance(name: &str) -> Seek<Instance> {
    Seek::named(name)
}

impl Seek<Instance> {
    /// And a condition has a status and, where one is given, a reason.
    pub fn with(self, kind: &str, status: &str, reason: &str) -> Self {
        let (kind, wanted, why) = (kind.to_owned(), status.to_owned(), reason.to_owned());
        self.that(format!("has {kind}={wanted}/{why}"), move |instance| {
            let conditions =
                instance.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
            condition(conditions, &kind)
                .is_some_and(|(status, reason)| status == wanted && (why.is_empty() || reason == why))
        })
    }

    /// And it is ready.
    pub fn ready(self) -> Self {
        self.with("Ready", "True", "")
    }

    /// And it runs this image.
    pub fn with_image(self, image: &str) -> Self {
        let wanted = image.to_owned();
        self.that(format!("runs {wanted}"), move |instance| image_of(&instance.spec) == Some(&*wanted))
    }
}

fn image_of(spec: &polis_api::compute::InstanceSpec) -> Option<&str> {
    Some(&spec.runtime.sandbox.as_ref()?.containers.first()?.image)
}

/// Looks for a workload.
pub fn worked(name: &str) -> Seek<Workload> {
    Seek::named(name)
}

impl Seek<Workload> {
    /// And it is available, or not, for a reason.
    pub fn available(self, status: &str, reason: &str) -> Self {
        let (wanted, why) = (status.to_owned(), reason.to_owned());
        self.that(format!("has Available={wanted}/{why}"), move |workload| {
            let conditions =
                workload.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
            condition(conditions, "Available")
                .is_some_and(|(s, r)| s == wanted && (why.is_empty() || r == why))
        })
    }

    /// And it counts so many deployments and replicas, so many of them ready.
    pub fn counting(self, deployments: i32, replicas: i32, ready: i32) -> Self {
        self.that(
            format!("counts {deployments} deployments, {replicas} replicas, {ready} ready"),
            move |workload| {
                let Some(status) = &workload.status else { return false };
                (status.deployments, status.replicas, status.ready_replicas) == (deployments, replicas, ready)
            },
        )
    }
}

/// Looks for a namespace.
pub fn namespace(name: &str) -> Seek<Namespace> {
    Seek::named(name)
}

/// Looks for the binding that Karmada makes for a deployment.
pub fn binding_of(deployment: &str) -> Seek<ResourceBinding> {
    Seek::named(polis_api::names::binding("WorkloadDeployment", deployment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_reads_like_a_sentence() {
        let sought = deployed("a").labelled("x", "y").wanting(3);
        assert_eq!(sought.to_string(), "WorkloadDeployment a that is labelled x=y and wants 3 replicas");
    }

    #[test]
    fn what_is_missing_is_told_in_the_same_words() {
        let found = WorkloadDeployment { spec: Default::default(), ..Default::default() };
        let missing = deployed("a").wanting(0).counting(1, 1, 1).missing_in(&found);
        assert_eq!(missing, ["counts 1 replicas, 1 ready, 1 desired"]);
    }

    #[test]
    fn a_policy_of_a_city_selects_deployments_of_the_city_and_nothing_else() {
        let good = serde_json::json!({
            "metadata": {"name": "city-dfw"},
            "spec": {
                "resourceSelectors": [{"apiVersion": "compute.datumapis.com/v1alpha", "kind": "WorkloadDeployment",
                    "labelSelector": {"matchLabels": {"topology.datum.net/city-code": "dfw"}}}],
                "placement": {"clusterAffinity": {"labelSelector": {"matchLabels": {"topology.datum.net/city-code": "dfw"}}}},
            },
        });
        assert!(policy("city-dfw").of_city("dfw").missing(&good).is_empty());
        assert_eq!(policy("city-dfw").of_city("ord").missing(&good).len(), 1);
        let mut more = good.clone();
        let again = more["spec"]["resourceSelectors"][0].clone();
        more["spec"]["resourceSelectors"].as_array_mut().unwrap().push(again);
        assert_eq!(
            policy("city-dfw").of_city("dfw").missing(&more).len(),
            1,
            "a second selector is too many"
        );
    }
}
