//! Builders of objects, with defaults for everything that a test does not state.
//!
//! `mk_*` returns an object; [`deployment`] and [`workload`] return a builder for what a test does state.

use polis_api::ObjectExt as _;
use polis_api::compute::{
    EmbeddedMetadata, Instance, InstanceController, InstanceNetworkInterface, InstanceSpec,
    InstanceTemplateSpec, NetworkReference, SandboxContainer, SandboxRuntime, ScaleSettings, Workload,
    WorkloadDeployment, WorkloadDeploymentSpec, WorkloadPlacement, WorkloadReference, WorkloadSpec,
};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::karmada::{Cluster as Member, PropagationPolicy};
use polis_api::kube::Resource;
use polis_api::milo::Project;
use polis_api::networking::{LocationBinding, Network};
use polis_api::{labels, names};
use polis_core::{Time, conditions, metadata, policy, template};

/// The only instance type that admission accepts.
pub const INSTANCE_TYPE: &str = "datumcloud/d1-standard-2";
/// The network of [`mk_template`].
pub const NETWORK: &str = "test-network";
/// The default image.
pub const IMAGE: &str = "registry.test/app:1";

/// The name and namespace of an object.
pub fn mk_meta(namespace: Option<&str>, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), namespace: namespace.map(str::to_owned), ..ObjectMeta::default() }
}

/// A namespace.
pub fn mk_namespace(name: &str) -> Namespace {
    Namespace { metadata: mk_meta(None, name), ..Namespace::default() }
}

/// The namespace on hub and cells of a project's namespace, as the federator labels it.
pub fn mk_hub_namespace(name: &str, project: &str, namespace: &str) -> Namespace {
    let mut hub_namespace = mk_namespace(name);
    let project = names::cluster_label(project).expect("the name of a project fits into a label");
    hub_namespace.metadata.labels = Some(metadata::map([
        (labels::UPSTREAM_CLUSTER_NAME, project.as_str()),
        (labels::UPSTREAM_NAMESPACE, namespace),
    ]));
    hub_namespace
}

/// A project on the platform.
pub fn mk_project(name: &str) -> Project {
    Project { metadata: mk_meta(None, name), ..Project::default() }
}

/// A member cluster of the hub.
pub fn mk_member(name: &str, city: Option<&str>) -> Member {
    let mut member = Member { metadata: mk_meta(None, name), ..Member::default() };
    member.metadata.labels = city.map(|city| metadata::map([(labels::TOPOLOGY_CITY_CODE, city)]));
    member.spec.sync_mode = "Push".into();
    member
}

/// The binding of a city to a project.
pub fn mk_location_binding(city: &str) -> LocationBinding {
    let mut binding = LocationBinding { metadata: mk_meta(None, city), ..LocationBinding::default() };
    binding.spec.location_ref.name = city.into();
    binding.spec.topology.insert(labels::TOPOLOGY_CITY_CODE.into(), city.into());
    binding
}

/// A network.
pub fn mk_network(namespace: &str, name: &str) -> Network {
    Network { metadata: mk_meta(Some(namespace), name), ..Network::default() }
}

/// A condition without message and generation.
pub fn mk_condition(kind: &str, status: &str, reason: &str, now: &Time) -> Condition {
    Condition {
        type_: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: now.clone(),
    }
}

/// Status and reason of a condition.
pub fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<(&'a str, &'a str)> {
    conditions::find(conditions, kind).map(|found| (&*found.status, &*found.reason))
}

/// The template of an instance with one container on the test network.
pub fn mk_template(image: &str) -> InstanceTemplateSpec {
    let mut spec = InstanceSpec::default();
    spec.runtime.resources.instance_type = INSTANCE_TYPE.into();
    let container =
        SandboxContainer { name: "app".into(), image: image.into(), ..SandboxContainer::default() };
    spec.runtime.sandbox = Some(SandboxRuntime { containers: vec![container], ..SandboxRuntime::default() });
    let network = NetworkReference { name: NETWORK.into(), namespace: None };
    spec.network_interfaces = vec![InstanceNetworkInterface { network, network_policy: None }];
    InstanceTemplateSpec { metadata: None, spec }
}

/// A workload with one replica in each city.
pub fn mk_workload(namespace: &str, name: &str, cities: &[&str]) -> Workload {
    let mut workload = workload(name).placed("default", cities, 1).0;
    workload.metadata.namespace = Some(namespace.into());
    workload
}

/// A deployment without a workload.
pub fn mk_deployment(namespace: &str, name: &str, city: &str, replicas: i32) -> WorkloadDeployment {
    let mut deployment = deployment(name).to(city).replicas(replicas).0;
    deployment.metadata.namespace = Some(namespace.into());
    deployment
}

/// An instance of a deployment, without gates, as a cell labels it.
pub fn mk_instance(deployment: &WorkloadDeployment, ordinal: u32) -> Instance {
    let (meta, spec) = (&deployment.metadata, &deployment.spec);
    let name = names::instance(deployment.name(), ordinal);
    let mut instance = Instance::new(&name, spec.template.spec.clone());
    instance.metadata.namespace = meta.namespace.clone();
    instance.metadata.labels = Some(metadata::map([
        (labels::WORKLOAD_UID, spec.workload_ref.uid.as_str()),
        (labels::WORKLOAD_NAME, spec.workload_ref.name.as_str()),
        (labels::WORKLOAD_DEPLOYMENT_UID, deployment.uid()),
        (labels::WORKLOAD_DEPLOYMENT_NAME, deployment.name()),
        (labels::PLACEMENT_NAME, spec.placement_name.as_str()),
        (labels::CITY_CODE, spec.city_code.as_str()),
        (labels::INSTANCE_INDEX, ordinal.to_string().as_str()),
    ]));
    let template_hash = template::hash(&spec.template);
    instance.spec.controller = Some(InstanceController { template_hash, scheduling_gates: Vec::new() });
    instance
}

/// The policy of a city as Polis writes it, for tests without the federator.
pub fn mk_policy(city: &str) -> PropagationPolicy {
    let mut policy = policy::desired("", city);
    policy.metadata.namespace = None;
    policy
}

/// A deployment without a workload.
pub fn deployment(name: &str) -> DeploymentBuilder {
    DeploymentBuilder(WorkloadDeployment::new(
        name,
        WorkloadDeploymentSpec {
            workload_ref: WorkloadReference {
                name: "made-up".into(),
                uid: "0f0f0f0f-0000-4000-8000-000000000001".into(),
            },
            placement_name: "default".into(),
            city_code: "dfw".into(),
            template: mk_template(IMAGE),
            scale_settings: ScaleSettings { min_replicas: 1, ..Default::default() },
            replicas: None,
        },
    ))
}

/// Builds a deployment.
#[derive(Debug, Clone)]
pub struct DeploymentBuilder(pub WorkloadDeployment);

impl DeploymentBuilder {
    /// Sets the city.
    pub fn to(mut self, city: &str) -> Self {
        self.0.spec.city_code = city.into();
        self
    }

    /// Sets `minReplicas`.
    pub fn replicas(mut self, count: i32) -> Self {
        self.0.spec.scale_settings.min_replicas = count;
        self
    }

    /// Sets the image.
    pub fn image(mut self, image: &str) -> Self {
        self.0.spec.template = mk_template(image);
        self
    }

    /// Sets a label of the deployment.
    pub fn labelled(mut self, key: &str, value: &str) -> Self {
        self.0.meta_mut().labels.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// Sets a label of every instance.
    pub fn instances_labelled(mut self, key: &str, value: &str) -> Self {
        let metadata = self.0.spec.template.metadata.get_or_insert_with(EmbeddedMetadata::default);
        metadata.labels.insert(key.into(), value.into());
        self
    }
}

/// A workload without placements.
pub fn workload(name: &str) -> WorkloadBuilder {
    WorkloadBuilder(Workload::new(name, WorkloadSpec { template: mk_template(IMAGE), ..Default::default() }))
}

/// Builds a workload.
#[derive(Debug, Clone)]
pub struct WorkloadBuilder(pub Workload);

impl WorkloadBuilder {
    /// Adds a placement with `minReplicas` in each of these cities.
    pub fn placed(mut self, placement: &str, cities: &[&str], replicas: i32) -> Self {
        self.0.spec.placements.push(WorkloadPlacement {
            name: placement.into(),
            city_codes: cities.iter().map(|&city| city.to_owned()).collect(),
            scale_settings: ScaleSettings { min_replicas: replicas, ..Default::default() },
        });
        self
    }

    /// Sets the image.
    pub fn image(mut self, image: &str) -> Self {
        self.0.spec.template = mk_template(image);
        self
    }

    /// Sets the network.
    pub fn on_network(mut self, name: &str) -> Self {
        self.0.spec.template.spec.network_interfaces[0].network.name = name.into();
        self
    }
}
