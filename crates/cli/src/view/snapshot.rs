//! Snapshot of a workload in its project: the workload, its deployments and its instances.

use std::collections::BTreeSet;

use polis_api::ObjectExt;
use polis_api::compute::{Instance, NamedPort, Workload, WorkloadDeployment};
use polis_api::labels;
use polis_core::{contact, deployments, instances};
use serde::Serialize;
use serde_json::Value;

/// A workload, its deployments and its instances, read from the project's plane.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkloadSnapshot {
    /// The workload; `None` after it was deleted.
    pub workload: Option<Workload>,
    /// Its deployments, by placement and city.
    pub deployments: Vec<WorkloadDeployment>,
    /// Its instances, by name.
    pub instances: Vec<Instance>,
}

impl WorkloadSnapshot {
    /// Builds a snapshot with sorted deployments and instances.
    pub fn new(
        workload: Option<Workload>,
        mut deployments: Vec<WorkloadDeployment>,
        mut instances: Vec<Instance>,
    ) -> Self {
        deployments.sort_by(|a, b| site(a).cmp(&site(b)));
        instances.sort_by_key(|instance| (deployment_of(instance).to_owned(), ordinal(instance)));
        WorkloadSnapshot { workload, deployments, instances }
    }

    /// The workload as one JSON document, with its deployments and their instances below it.
    pub fn tree(&self) -> Value {
        let below = |deployment: &WorkloadDeployment| {
            let instances = self.instances_of(deployment).map(bare).collect();
            with_children(bare(deployment), "instances", instances)
        };
        let deployments = self.deployments.iter().map(below).collect();
        with_children(self.workload.as_ref().map(bare).unwrap_or_default(), "deployments", deployments)
    }

    /// The instances of a deployment, by its name, which is equal on every plane; the UID is not.
    pub fn instances_of(&self, deployment: &WorkloadDeployment) -> impl Iterator<Item = &Instance> {
        let name = deployment.name().to_owned();
        self.instances.iter().filter(move |instance| deployment_of(instance) == name)
    }

    /// Placement and city of every site in the spec of the workload, in its order and without duplicates.
    pub fn wanted_sites(&self) -> Vec<(String, String)> {
        let mut seen = BTreeSet::new();
        let placements = self.workload.iter().flat_map(|workload| &workload.spec.placements);
        placements
            .flat_map(|placement| {
                placement.city_codes.iter().map(|city| (placement.name.clone(), city.clone()))
            })
            .filter(|site| seen.insert(site.clone()))
            .collect()
    }

    /// The deployment of a placement and city.
    pub fn deployment_at(&self, (placement, city): &(String, String)) -> Option<&WorkloadDeployment> {
        self.deployments.iter().find(|deployment| {
            deployment.spec.placement_name == *placement && deployment.spec.city_code == *city
        })
    }

    /// Number of ready and of desired instances in all cities. Instances count as ready only where there is
    /// contact with the cell.
    pub fn ready_of_wanted(&self) -> (usize, u32) {
        let known = |instance: &&Instance| {
            let of = self.deployments.iter().find(|it| it.name() == deployment_of(instance));
            let conditions = of.and_then(|it| it.status.as_ref()).map(|status| &status.conditions);
            conditions.is_none_or(|conditions| contact::lost(conditions).is_none())
        };
        let ready =
            self.instances.iter().filter(known).filter(|instance| instances::is_ready(instance)).count();
        let wanted = self.wanted_sites().iter().map(|site| self.wanted_at(site)).sum();
        (ready, wanted)
    }

    /// Desired number of instances of a placement and city.
    pub fn wanted_at(&self, site: &(String, String)) -> u32 {
        if let Some(deployment) = self.deployment_at(site) {
            return instances::desired(deployment);
        }
        let Some(workload) = &self.workload else { return 0 };
        let placement = workload.spec.placements.iter().find(|placement| placement.name == site.0);
        let settings = placement.map(|placement| deployments::scale_settings(&workload.spec, placement));
        settings.and_then(|settings| u32::try_from(settings.min_replicas).ok()).unwrap_or(0)
    }
}

/// An object without `managedFields`.
fn bare<T: Serialize>(object: &T) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(meta) = value.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
    value
}

fn with_children(mut object: Value, key: &str, children: Vec<Value>) -> Value {
    object[key] = Value::Array(children);
    object
}

fn site(deployment: &WorkloadDeployment) -> (&str, &str, &str) {
    let spec = &deployment.spec;
    (&spec.placement_name, &spec.city_code, deployment.name())
}

/// Name of the deployment of an instance.
pub fn deployment_of(instance: &Instance) -> &str {
    instance.label(labels::WORKLOAD_DEPLOYMENT_NAME).unwrap_or_default()
}

/// Name of the workload of an instance.
pub fn workload_of(instance: &Instance) -> &str {
    instance.label(labels::WORKLOAD_NAME).unwrap_or_default()
}

/// City code of an instance.
pub fn city_of(instance: &Instance) -> &str {
    instance.label(labels::CITY_CODE).unwrap_or_default()
}

/// Ordinal of an instance in its deployment.
pub fn ordinal(instance: &Instance) -> Option<u32> {
    instance.label(labels::INSTANCE_INDEX)?.parse().ok()
}

/// Address of an instance: its external IP, otherwise its network IP, with its first port.
pub fn address(instance: &Instance) -> String {
    match endpoint(instance) {
        Some((address, _)) => address,
        None => host(instance).unwrap_or_default(),
    }
}

/// Address with the first port of an instance, and that port; `None` without an address or a port.
pub fn endpoint(instance: &Instance) -> Option<(String, &NamedPort)> {
    let (host, port) = (host(instance)?, first_port(instance)?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Some((format!("{host}:{}", port.port), port))
}

fn host(instance: &Instance) -> Option<String> {
    let interfaces = instance.status.iter().flat_map(|status| &status.network_interfaces);
    let assigned = interfaces.filter_map(|interface| interface.assignments.as_ref());
    assigned
        .filter_map(|assigned| assigned.external_ip.clone().or_else(|| assigned.network_ip.clone()))
        .find(|host| !host.is_empty())
}

fn first_port(instance: &Instance) -> Option<&NamedPort> {
    let runtime = &instance.spec.runtime;
    let sandbox = runtime.sandbox.iter().flat_map(|sandbox| &sandbox.containers).flat_map(|c| &c.ports);
    let machine = runtime.virtual_machine.iter().flat_map(|machine| &machine.ports);
    sandbox.chain(machine).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::{mk_instance, mk_ready, mk_snapshot};

    #[test]
    fn an_address_has_the_first_port() {
        let instance = mk_ready(mk_instance("dfw", 0));
        assert_eq!(address(&instance), "127.1.0.1:8080");
        assert_eq!(address(&mk_instance("dfw", 0)), "");
    }

    #[test]
    fn an_ipv6_address_is_in_brackets() {
        let mut instance = mk_ready(mk_instance("dfw", 0));
        let interface = &mut instance.status.as_mut().unwrap().network_interfaces[0];
        interface.assignments.as_mut().unwrap().external_ip = Some("2001:db8::1".into());
        assert_eq!(address(&instance), "[2001:db8::1]:8080");
    }

    #[test]
    fn the_json_of_a_workload_has_its_deployments_and_their_instances() {
        let tree = mk_snapshot(&["dfw", "ord"], 2).tree();
        assert_eq!(tree["metadata"]["name"], "web");
        let cities: Vec<&Value> =
            tree["deployments"].as_array().unwrap().iter().map(|d| &d["spec"]["cityCode"]).collect();
        assert_eq!(cities, ["dfw", "ord"]);
        assert_eq!(tree["deployments"][1]["instances"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_duplicate_city_counts_once() {
        let mut snapshot = mk_snapshot(&["dfw", "ord"], 2);
        snapshot.workload.as_mut().unwrap().spec.placements[0].city_codes.push("dfw".into());
        assert_eq!(snapshot.wanted_sites().len(), 2);
        assert_eq!(snapshot.ready_of_wanted(), (4, 4));
    }
}
