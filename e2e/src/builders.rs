//! Builders of the objects that scenarios apply, with defaults for everything that a scenario does not state.

use std::collections::BTreeMap;

use polis_api::{
    compute::{
        EmbeddedMetadata, InstanceNetworkInterface, InstanceRuntime, InstanceRuntimeResources, InstanceSpec,
        InstanceTemplateSpec, NetworkReference, SandboxContainer, SandboxRuntime, ScaleSettings, Workload,
        WorkloadDeployment, WorkloadDeploymentSpec, WorkloadPlacement, WorkloadReference, WorkloadSpec,
    },
    k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector,
    karmada::{ClusterAffinity, Placement, PropagationPolicy, PropagationSpec, ResourceSelector},
    kube::Resource,
    labels,
};

/// The only instance type that admission accepts.
pub const INSTANCE_TYPE: &str = "datumcloud/d1-standard-2";
/// The network in every project namespace.
pub const NETWORK: &str = "test-network";
/// The default image.
pub const IMAGE: &str = "registry.test/app:1";

/// The template of an instance with one container on the test network.
pub fn template(image: &str) -> InstanceTemplateSpec {
    InstanceTemplateSpec {
        metadata: None,
        spec: InstanceSpec {
            runtime: InstanceRuntime {
                resources: InstanceRuntimeResources {
                    instance_type: INSTANCE_TYPE.into(),
                    ..Default::default()
                },
                sandbox: Some(SandboxRuntime {
                    containers: vec![SandboxContainer {
                        name: "app".into(),
                        image: image.into(),
                        ..Default::default()
                    }],
                    ..Default::default()
                }),
                ..Default::default()
            },
            network_interfaces: vec![InstanceNetworkInterface {
                network: NetworkReference { name: NETWORK.into(), ..Default::default() },
                ..Default::default()
            }],
            ..Default::default()
        },
    }
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
            template: template(IMAGE),
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
        self.0.spec.template = template(image);
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
    WorkloadBuilder(Workload::new(name, WorkloadSpec { template: template(IMAGE), placements: Vec::new() }))
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
        self.0.spec.template = template(image);
        self
    }

    /// Sets the network.
    pub fn on_network(mut self, name: &str) -> Self {
        self.0.spec.template.spec.network_interfaces[0].network.name = name.into();
        self
    }
}

/// A policy as Polis writes it, for scenarios without Polis.
pub fn city_policy(city: &str) -> PropagationPolicy {
    let of_city = || LabelSelector {
        match_labels: Some(BTreeMap::from([(labels::TOPOLOGY_CITY_CODE.to_owned(), city.to_owned())])),
        ..Default::default()
    };
    let selector = ResourceSelector {
        api_version: polis_api::compute::API_VERSION.into(),
        kind: "WorkloadDeployment".into(),
        label_selector: Some(of_city()),
        ..Default::default()
    };
    let affinity = ClusterAffinity { label_selector: Some(of_city()), ..Default::default() };
    PropagationPolicy::new(
        &polis_api::names::policy(city),
        PropagationSpec {
            resource_selectors: vec![selector],
            placement: Placement { cluster_affinity: Some(affinity), ..Default::default() },
            ..Default::default()
        },
    )
}
