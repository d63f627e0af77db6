//! Object builders for the tests of `view`.

use jiff::Timestamp;
use polis_api::compute::{
    Instance, InstanceControllerStatus, InstanceNetworkInterfaceStatus, InstanceStatus, NamedPort,
    NetworkInterfaceAssignments, Workload, WorkloadDeployment, WorkloadDeploymentStatus, WorkloadStatus,
};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use polis_api::{labels, names};
use polis_core::{instances, template};
use serde_json::json;

use super::snapshot::WorkloadSnapshot;

/// Creation time of all objects.
const START: i64 = 1_800_000_000;

/// A Kubernetes time, in seconds after the start.
pub fn at(seconds: i64) -> Time {
    Time(now(seconds))
}

/// A timestamp, in seconds after the start.
pub fn now(seconds: i64) -> Timestamp {
    Timestamp::from_second(START + seconds).unwrap()
}

/// A condition with its transition time.
pub fn mk_condition(kind: &str, status: &str, reason: &str, message: &str, when: i64) -> Condition {
    Condition {
        type_: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: None,
        last_transition_time: at(when),
    }
}

fn mk_meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some("default".into()),
        uid: Some(format!("uid-{name}")),
        generation: Some(1),
        creation_timestamp: Some(at(0)),
        ..Default::default()
    }
}

/// The workload `web` in the given cities.
pub fn mk_workload(cities: &[&str], replicas: i32) -> Workload {
    let mut workload: Workload = serde_json::from_value(json!({
        "apiVersion": "compute.datumapis.com/v1alpha", "kind": "Workload", "metadata": {"name": "web"},
        "spec": {
            "template": {"spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2"},
                    "sandbox": {"containers": [{"name": "web", "image": "polis.local/hello"}]},
                },
                "networkInterfaces": [{"network": {"name": "default"}}],
            }},
            "placements": [{"name": "default", "cityCodes": cities, "scaleSettings": {"minReplicas": replicas}}],
        },
    }))
    .unwrap();
    workload.metadata = mk_meta("web");
    let container = &mut workload.spec.template.spec.runtime.sandbox.as_mut().unwrap().containers[0];
    container.ports = vec![NamedPort { name: "http".into(), port: 8080, protocol: None }];
    let available = mk_condition("Available", "True", "AvailablePlacementFound", "", 5);
    workload.status = Some(WorkloadStatus {
        conditions: vec![available],
        observed_generation: Some(1),
        ..Default::default()
    });
    workload
}

/// The deployment of `web` in one city.
pub fn mk_deployment(city: &str, replicas: i32) -> WorkloadDeployment {
    let workload = mk_workload(&[city], replicas);
    let mut deployment = WorkloadDeployment {
        metadata: mk_meta(&names::deployment("web", "uid-web", "default", city)),
        ..Default::default()
    };
    deployment.spec.workload_ref.name = "web".into();
    deployment.spec.workload_ref.uid = "uid-web".into();
    deployment.spec.placement_name = "default".into();
    deployment.spec.city_code = city.into();
    deployment.spec.template = workload.spec.template;
    deployment.spec.scale_settings = workload.spec.placements[0].scale_settings.clone();
    deployment.status = Some(WorkloadDeploymentStatus {
        conditions: vec![mk_condition(
            "Available",
            "True",
            "StableInstanceFound",
            "1 of 1 instances are ready",
            5,
        )],
        cell: Some(city.into()),
        ..Default::default()
    });
    deployment
}

/// The deployment with a cell that was heard of last at this second.
pub fn mk_silent(mut deployment: WorkloadDeployment, last_word: i64) -> WorkloadDeployment {
    let conditions = &mut deployment.status.get_or_insert_default().conditions;
    *conditions = ["Available", "Ready"]
        .map(|kind| {
            mk_condition(kind, "Unknown", "CellSilent", "nothing has been heard of cell dfw", last_word)
        })
        .into();
    deployment
}

/// An instance of `web` without a status.
pub fn mk_instance(city: &str, ordinal: u32) -> Instance {
    let deployment = mk_deployment(city, 1);
    let metadata = instances::InstanceDefaults::default();
    let mut instance = instances::new_instance(&deployment, ordinal, &metadata);
    let made = mk_meta(instance.metadata.name.as_deref().unwrap());
    instance.metadata = ObjectMeta { labels: instance.metadata.labels, ..made };
    let labels = instance.metadata.labels.get_or_insert_default();
    labels.insert(labels::WORKLOAD_UID.into(), "uid-web".into());
    instance.status = None;
    instance
}

/// The instance with the status of a starting one.
pub fn mk_starting(mut instance: Instance) -> Instance {
    instance.status = Some(InstanceStatus {
        conditions: vec![mk_condition("Ready", "False", "ProgrammingInProgress", "", 2)],
        ..Default::default()
    });
    instance
}

/// The instance with the status of a ready one and an address.
pub fn mk_ready(mut instance: Instance) -> Instance {
    let assigned = NetworkInterfaceAssignments { network_ip: Some("127.1.0.1".into()), external_ip: None };
    let hash = template::instance_hash(&instance).unwrap_or_default().to_owned();
    instance.status = Some(InstanceStatus {
        conditions: vec![mk_condition("Ready", "True", "Running", "", 5)],
        network_interfaces: vec![InstanceNetworkInterfaceStatus { assignments: Some(assigned) }],
        controller: Some(InstanceControllerStatus { observed_template_hash: hash }),
        ..Default::default()
    });
    instance
}

/// The instance with the status of a blocked one.
pub fn mk_blocked(mut instance: Instance, reason: &str, message: &str) -> Instance {
    instance.status = Some(InstanceStatus {
        conditions: vec![mk_condition("Ready", "False", reason, message, 10)],
        ..Default::default()
    });
    instance
}

/// The workload `web`, ready in all its cities.
pub fn mk_snapshot(cities: &[&str], replicas: i32) -> WorkloadSnapshot {
    let deployments: Vec<_> = cities.iter().map(|city| mk_deployment(city, replicas)).collect();
    let ordinals = 0..u32::try_from(replicas).unwrap();
    let instances = cities
        .iter()
        .flat_map(|city| ordinals.clone().map(|ordinal| mk_ready(mk_instance(city, ordinal))))
        .collect();
    WorkloadSnapshot::new(Some(mk_workload(cities, replicas)), deployments, instances)
}
