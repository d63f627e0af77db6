//! Fake controllers: they create the deployments and instances of every workload in the project at once,
//! ready and with an address. The image `nginx` is unavailable; the message for `nginx-hostile` has escape
//! sequences. They use neither a hub nor a cell.

use std::time::Duration;

use polis_api::compute::{
    Instance, InstanceNetworkInterfaceStatus, InstanceStatus, NetworkInterfaceAssignments, Workload,
    WorkloadDeployment, WorkloadDeploymentStatus, WorkloadPlacement, WorkloadPlacementStatus, WorkloadStatus,
};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::kube::api::{Patch, PatchParams};
use polis_api::kube::{Api, Client, Error};
use polis_api::{ObjectExt, annotations, labels, names};
use polis_core::instances::{self, InstanceDefaults};
use polis_core::{canonical, deployments as core_deployments, owner, template};
use serde_json::json;

/// Reconciles until it is dropped.
pub async fn run(client: Client) {
    loop {
        // The next iteration retries after a conflict or a concurrent deletion.
        let _ = reconcile_all(&client).await;
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

async fn reconcile_all(client: &Client) -> Result<(), Error> {
    let workloads: Api<Workload> = Api::default_namespaced(client.clone());
    for workload in workloads.list(&Default::default()).await? {
        if !workload.is_deleting() {
            reconcile_workload(client, &workload).await?;
        }
    }
    Ok(())
}

async fn reconcile_workload(client: &Client, workload: &Workload) -> Result<(), Error> {
    let deployments: Api<WorkloadDeployment> = Api::default_namespaced(client.clone());
    let (name, uid) = (workload.name(), workload.uid());
    let mut desired = Vec::new();
    for placement in &workload.spec.placements {
        for city in placement.city_codes.iter().filter(|city| ["dfw", "ord"].contains(&city.as_str())) {
            let own = names::deployment(name, uid, &placement.name, city);
            let mut deployment = match deployments.get_opt(&own).await? {
                Some(existing) => existing,
                None => {
                    let mut new = WorkloadDeployment::new(&own, Default::default());
                    new.metadata.labels = Some([(labels::WORKLOAD_UID.into(), uid.into())].into());
                    new.metadata.annotations =
                        Some([(annotations::FEDERATION_NAMESPACE.into(), "ns-1".into())].into());
                    new.metadata.owner_references = Some(vec![owner::controller_reference(workload)]);
                    new.spec.workload_ref.name = name.into();
                    new.spec.workload_ref.uid = uid.into();
                    new.spec.placement_name = placement.name.clone();
                    new.spec.city_code = city.clone();
                    new.spec.template = workload.spec.template.clone();
                    deployments.create(&Default::default(), &new).await?
                }
            };
            let scale = core_deployments::scale_settings(&workload.spec, placement);
            if !canonical::same(&deployment.spec.template, &workload.spec.template)
                || !canonical::same(&deployment.spec.scale_settings, &scale)
            {
                deployment.spec.template = workload.spec.template.clone();
                deployment.spec.scale_settings = scale;
                deployment = deployments.replace(&own, &Default::default(), &deployment).await?;
            }
            reconcile_instances(client, &deployment, uid).await?;
            desired.push(own);
        }
    }
    for deployment in deployments.list(&Default::default()).await? {
        let own = deployment.name();
        if deployment.spec.workload_ref.uid == uid && !desired.iter().any(|desired| desired == own) {
            deployments.delete(own, &Default::default()).await?;
        }
    }
    let status = WorkloadStatus {
        conditions: vec![mk_condition("Available", true, "AvailablePlacementFound", "")],
        observed_generation: workload.metadata.generation,
        deployments: i32::try_from(desired.len()).unwrap(),
        placements: workload.spec.placements.iter().map(placement_status).collect(),
        ..Default::default()
    };
    let observed = workload.status.as_ref().and_then(|status| status.observed_generation);
    if observed != workload.metadata.generation {
        let workloads: Api<Workload> = Api::default_namespaced(client.clone());
        workloads
            .patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status})))
            .await?;
    }
    Ok(())
}

/// The status of a placement: `NoMatchingLocations` if no city of it is bound.
fn placement_status(placement: &WorkloadPlacement) -> WorkloadPlacementStatus {
    let bound = placement.city_codes.iter().any(|city| ["dfw", "ord"].contains(&city.as_str()));
    let message = "cities bound to this project: dfw, ord";
    let available = match bound {
        true => mk_condition("Available", true, "AvailableDeploymentFound", ""),
        false => mk_condition("Available", false, "NoMatchingLocations", message),
    };
    WorkloadPlacementStatus {
        name: placement.name.clone(),
        conditions: vec![available],
        ..Default::default()
    }
}

async fn reconcile_instances(
    client: &Client,
    deployment: &WorkloadDeployment,
    workload_uid: &str,
) -> Result<(), Error> {
    let api: Api<Instance> = Api::default_namespaced(client.clone());
    let hash = template::hash(&deployment.spec.template);
    let desired = instances::desired(deployment);
    let defaults = InstanceDefaults { gates: vec![], finalizers: vec![], location: None };
    let template = serde_json::to_string(&deployment.spec.template).unwrap();
    let unavailable = match () {
        () if template.contains("nginx-hostile") => Some("\u{1b}[2J\u{1b}]0;title\u{7}no registry has nginx"),
        () => template.contains("nginx").then_some("no registry has nginx"),
    };
    for ordinal in 0..desired {
        let mut new = instances::new_instance(deployment, ordinal, &defaults);
        let labels = new.metadata.labels.get_or_insert_default();
        labels.insert(labels::WORKLOAD_UID.into(), workload_uid.into());
        let name = new.name().to_owned();
        let existing = match api.get_opt(&name).await? {
            Some(existing) if !template::is_current(&existing, &deployment.spec.template, &hash) => {
                api.delete(&name, &Default::default()).await?;
                None
            }
            existing => existing,
        };
        let instance = match existing {
            Some(existing) => existing,
            None => api.create(&Default::default(), &new).await?,
        };
        let has_status = instance.status.as_ref().is_some_and(|status| {
            status.conditions.iter().any(|c| c.type_ == "Ready" && c.reason != "Pending")
        });
        if !has_status {
            let status = json!({"status": status_of(ordinal, unavailable)});
            api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
        }
    }
    for instance in api.list(&Default::default()).await? {
        let extra = instances::belongs(&instance, deployment)
            && ordinal_of(&instance).is_none_or(|ordinal| ordinal >= desired);
        if extra {
            api.delete(instance.name(), &Default::default()).await?;
        }
    }
    if deployment.status.is_none() {
        let api: Api<WorkloadDeployment> = Api::default_namespaced(client.clone());
        let status = WorkloadDeploymentStatus {
            conditions: vec![mk_condition("Available", true, "StableInstanceFound", "")],
            cell: Some(deployment.spec.city_code.clone()),
            ..Default::default()
        };
        let name = deployment.name();
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
    }
    Ok(())
}

fn ordinal_of(instance: &Instance) -> Option<u32> {
    instance.metadata.labels.as_ref()?.get(labels::INSTANCE_INDEX)?.parse().ok()
}

fn status_of(ordinal: u32, unavailable: Option<&str>) -> InstanceStatus {
    if let Some(message) = unavailable {
        return InstanceStatus {
            conditions: vec![mk_condition("Ready", false, "ImageUnavailable", message)],
            ..Default::default()
        };
    }
    let address = format!("127.1.0.{}", ordinal + 1);
    let assigned = NetworkInterfaceAssignments { network_ip: Some(address), external_ip: None };
    InstanceStatus {
        conditions: vec![mk_condition("Ready", true, "Running", "")],
        network_interfaces: vec![InstanceNetworkInterfaceStatus { assignments: Some(assigned) }],
        ..Default::default()
    }
}

fn mk_condition(kind: &str, truth: bool, reason: &str, message: &str) -> Condition {
    Condition {
        type_: kind.into(),
        status: if truth { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: None,
        last_transition_time: Time(Timestamp::now()),
    }
}
