//! Builders of test objects, as an API server would return them.

use polis_api::compute::{
    ContainerResources, Instance, InstanceController, InstanceControllerStatus, InstanceNetworkInterface,
    InstanceSpec, InstanceStatus, InstanceTemplateSpec, NetworkReference, SandboxContainer, SandboxRuntime,
    ScaleSettings, SchedulingGate, Workload, WorkloadDeployment, WorkloadDeploymentSpec, WorkloadPlacement,
    WorkloadReference,
};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::{ObjectExt, labels, names};

use crate::{Time, metadata, owner, template};

/// A timestamp, in seconds since the epoch.
pub(crate) fn at(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap())
}

/// A condition with transition time 1 and without generation.
pub(crate) fn mk_condition(kind: &str, status: &str, reason: &str) -> Condition {
    Condition {
        type_: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: at(1),
    }
}

/// Metadata of a stored object.
pub(crate) fn mk_meta(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(namespace.into()),
        uid: Some(format!("uid-{name}")),
        resource_version: Some("7".into()),
        generation: Some(1),
        creation_timestamp: Some(at(100)),
        ..Default::default()
    }
}

/// A template of one container on `test-network`.
pub(crate) fn mk_template(image: &str) -> InstanceTemplateSpec {
    let mut spec = InstanceSpec::default();
    spec.runtime.resources.instance_type = "datumcloud/d1-standard-2".into();
    spec.runtime.sandbox = Some(SandboxRuntime {
        containers: vec![SandboxContainer { name: "app".into(), image: image.into(), ..Default::default() }],
        ..Default::default()
    });
    spec.network_interfaces = vec![InstanceNetworkInterface {
        network: NetworkReference { name: "test-network".into(), namespace: None },
        network_policy: None,
    }];
    InstanceTemplateSpec { metadata: None, spec }
}

/// A workload with one placement `default` in the given cities.
pub(crate) fn mk_workload(name: &str, cities: &[&str]) -> Workload {
    let mut workload = Workload { metadata: mk_meta("shop", name), ..Default::default() };
    workload.spec.template = mk_template("app:1");
    workload.spec.placements = vec![mk_placement("default", cities)];
    workload
}

/// A placement of one replica per city.
pub(crate) fn mk_placement(name: &str, cities: &[&str]) -> WorkloadPlacement {
    WorkloadPlacement {
        name: name.into(),
        city_codes: cities.iter().map(|city| city.to_string()).collect(),
        scale_settings: ScaleSettings { min_replicas: 1, ..Default::default() },
    }
}

/// A deployment in `dfw` with one replica, as stored on any plane.
pub(crate) fn mk_deployment(name: &str) -> WorkloadDeployment {
    WorkloadDeployment {
        metadata: mk_meta("ns-1", name),
        spec: WorkloadDeploymentSpec {
            workload_ref: WorkloadReference { name: "shop".into(), uid: "uid-shop".into() },
            placement_name: "default".into(),
            city_code: "dfw".into(),
            template: mk_template("app:1"),
            scale_settings: ScaleSettings { min_replicas: 1, ..Default::default() },
            replicas: None,
        },
        status: None,
    }
}

/// A deployment with this number of replicas.
pub(crate) fn mk_deployment_of(name: &str, replicas: i32) -> WorkloadDeployment {
    let mut deployment = mk_deployment(name);
    deployment.spec.scale_settings.min_replicas = replicas;
    deployment
}

/// A new instance of the deployment: current template, both gates, no status.
pub(crate) fn mk_instance(deployment: &WorkloadDeployment, ordinal: u32) -> Instance {
    let mut metadata = mk_meta("ns-1", &names::instance(deployment.name(), ordinal));
    metadata.labels = Some(metadata::map([
        (labels::WORKLOAD_UID, deployment.spec.workload_ref.uid.as_str()),
        (labels::WORKLOAD_DEPLOYMENT_UID, deployment.uid()),
        (labels::WORKLOAD_DEPLOYMENT_NAME, deployment.name()),
        (labels::WORKLOAD_NAME, deployment.spec.workload_ref.name.as_str()),
        (labels::PLACEMENT_NAME, deployment.spec.placement_name.as_str()),
        (labels::CITY_CODE, deployment.spec.city_code.as_str()),
        (labels::INSTANCE_INDEX, ordinal.to_string().as_str()),
    ]));
    metadata.owner_references = Some(vec![owner::controller_reference(deployment)]);
    let mut spec = deployment.spec.template.spec.clone();
    spec.controller = Some(InstanceController {
        template_hash: template::hash(&deployment.spec.template),
        scheduling_gates: mk_gates(&["Network", "Quota"]),
    });
    Instance { metadata, spec, status: None }
}

/// Scheduling gates by name.
pub(crate) fn mk_gates(names: &[&str]) -> Vec<SchedulingGate> {
    names.iter().map(|name| SchedulingGate { name: name.to_string() }).collect()
}

/// The instance with these conditions.
pub(crate) fn with_conditions(mut instance: Instance, conditions: Vec<Condition>) -> Instance {
    instance.status.get_or_insert_default().conditions = conditions;
    instance
}

/// The instance, started and ready.
pub(crate) fn ready(mut instance: Instance) -> Instance {
    let controller = instance.spec.controller.get_or_insert_default();
    controller.scheduling_gates.clear();
    instance.status = Some(InstanceStatus {
        controller: Some(InstanceControllerStatus {
            observed_template_hash: controller.template_hash.clone(),
        }),
        conditions: vec![
            mk_condition("Programmed", "True", "Programmed"),
            mk_condition("Running", "True", "Running"),
            mk_condition("Ready", "True", "Running"),
            mk_condition("QuotaGranted", "True", "QuotaAvailable"),
        ],
        ..Default::default()
    });
    instance
}

/// The object with a deletion timestamp.
pub(crate) fn deleting<K: polis_api::kube::Resource>(mut object: K) -> K {
    object.meta_mut().deletion_timestamp = Some(at(500));
    object
}

/// The template with limits on its container.
pub(crate) fn with_limits(
    mut template: InstanceTemplateSpec,
    limits: &[(&str, &str)],
) -> InstanceTemplateSpec {
    use polis_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    let limits =
        limits.iter().map(|(name, amount)| (name.to_string(), Quantity(amount.to_string()))).collect();
    let container = &mut template.spec.runtime.sandbox.as_mut().unwrap().containers[0];
    container.resources = Some(ContainerResources { limits, ..Default::default() });
    template
}
