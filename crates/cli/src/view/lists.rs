//! Tables of the list commands: workloads, instances, cities, quota, projects.

use std::collections::BTreeMap;

use jiff::Timestamp;
use polis_api::ObjectExt;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::conditions::{AVAILABLE, READY};
use polis_api::labels::{TOPOLOGY_CITY_CODE, TOPOLOGY_REGION};
use polis_api::milo::Project;
use polis_api::networking::LocationBinding;
use polis_api::quota::{AllowanceBucket, ResourceRegistration};
use polis_core::conditions;
use serde::Serialize;

use super::snapshot::{address, city_of, workload_of};
use super::table::Table;
use super::{age, state};

/// The table of `polis workloads`. The state is the worst of the workload and its instances.
pub fn workloads(
    workloads: &[Workload],
    deployments: &[WorkloadDeployment],
    instances: &[Instance],
    now: Timestamp,
    wide: bool,
) -> Table {
    let mut heads = vec!["NAME", "READY", "CITIES", "STATE", "AGE"];
    if wide {
        heads.extend(["UP-TO-DATE", "IMAGE", "REASON", "MESSAGE"]);
    }
    let mut table =
        Table::new(&heads, "No workloads found. Create one with: polis deploy NAME --image I --city C");
    for workload in workloads {
        let status = workload.status.clone().unwrap_or_default();
        let state = state::of_workload(workload, deployments, instances);
        let made = workload.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let mut cells = vec![
            workload.name().to_owned(),
            format!("{}/{}", status.ready_replicas, status.desired_replicas),
            cities_of(workload),
            state.label(now),
            age::since_or_dash(made, now),
        ];
        if wide {
            cells.extend([
                status.current_replicas.to_string(),
                images_of(workload),
                state.reason,
                state.message,
            ]);
        }
        table.row(cells);
    }
    table
}

fn cities_of(workload: &Workload) -> String {
    let mut cities: Vec<&str> = Vec::new();
    for city in workload.spec.placements.iter().flat_map(|placement| &placement.city_codes) {
        if !cities.contains(&city.as_str()) {
            cities.push(city);
        }
    }
    cities.join(",")
}

fn images_of(workload: &Workload) -> String {
    let sandbox = workload.spec.template.spec.runtime.sandbox.as_ref();
    let images: Vec<&str> =
        sandbox.iter().flat_map(|sandbox| &sandbox.containers).map(|c| c.image.as_str()).collect();
    images.join(",")
}

/// The table of `polis instances`.
pub fn instances(
    instances: &[Instance],
    deployments: &[WorkloadDeployment],
    now: Timestamp,
    wide: bool,
) -> Table {
    let mut heads = vec!["NAME", "CITY", "STATE", "ADDRESS", "AGE"];
    if wide {
        heads.extend(["WORKLOAD", "REASON", "MESSAGE"]);
    }
    let mut table = Table::new(&heads, "No instances found.");
    for instance in instances {
        let state = state::of_known_instance(instance, deployments);
        let made = instance.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let mut cells = vec![
            instance.name().to_owned(),
            city_of(instance).to_owned(),
            state.label(now),
            address(instance),
            age::since_or_dash(made, now),
        ];
        if wide {
            cells.extend([workload_of(instance).to_owned(), state.reason, state.message]);
        }
        table.row(cells);
    }
    table
}

/// A city that the project may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CityLine {
    /// City code.
    pub name: String,
    /// Name of the Location.
    pub location: String,
    /// Display name.
    pub display_name: String,
    /// Region.
    pub region: String,
    /// Whether new instances may be created in the city.
    pub available: bool,
    /// Number of ready instances of the namespace in the city.
    pub ready: usize,
    /// Number of instances of the namespace in the city.
    pub instances: usize,
    /// The last word from the city's cell, if contact with it is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_word: Option<Timestamp>,
}

/// The cities of the LocationBindings, with the number of instances, and whether contact is lost with a cell
/// that runs a deployment of the namespace.
pub fn cities(
    bindings: &[LocationBinding],
    deployments: &[WorkloadDeployment],
    instances: &[Instance],
) -> Vec<CityLine> {
    let mut lines: Vec<CityLine> = bindings
        .iter()
        .map(|binding| {
            let spec = &binding.spec;
            let text = |key: &str| spec.topology.get(key).cloned().unwrap_or_default();
            let name = text(TOPOLOGY_CITY_CODE);
            let there: Vec<_> = instances.iter().filter(|instance| city_of(instance) == name).collect();
            let silent = deployments.iter().filter(|deployment| deployment.spec.city_code == name);
            let silent = silent.filter_map(state::of_lost_contact);
            let condition = binding.status.as_ref().and_then(|s| conditions::find(&s.conditions, AVAILABLE));
            CityLine {
                location: spec.location_ref.name.clone(),
                display_name: spec.display_name.clone().unwrap_or_default(),
                region: text(TOPOLOGY_REGION),
                // A binding permits the city unless its Available condition is not True.
                available: condition.is_none_or(|condition| condition.status == "True")
                    && !binding.is_deleting(),
                ready: there.iter().filter(|i| polis_core::instances::is_ready(i)).count(),
                instances: there.len(),
                last_word: silent.filter_map(|state| state.since).min(),
                name,
            }
        })
        .collect();
    lines.sort_by(|a, b| (&a.name, &a.location).cmp(&(&b.name, &b.location)));
    lines
}

/// The table of `polis cities`.
pub fn city_table(cities: &[CityLine], now: Timestamp, wide: bool) -> Table {
    let mut heads = vec!["CITY", "NAME", "AVAILABLE", "INSTANCES"];
    if wide {
        heads.extend(["REGION", "LOCATION"]);
    }
    let mut table =
        Table::new(&heads, "No city is bound to this project. Ask the platform operator to bind a location.");
    for city in cities {
        let mut cells = vec![
            city.name.clone(),
            city.display_name.clone(),
            match city.last_word {
                Some(last) => format!("unknown for {}", age::since(last, now)),
                None => if city.available { "yes" } else { "no" }.to_owned(),
            },
            match city.last_word {
                Some(_) => format!("?/{} ready", city.instances),
                None => format!("{}/{} ready", city.ready, city.instances),
            },
        ];
        if wide {
            cells.extend([city.region.clone(), city.location.clone()]);
        }
        table.row(cells);
    }
    table
}

/// The quota of one resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaLine {
    /// Resource type.
    pub name: String,
    /// Display unit.
    pub unit: String,
    /// Used amount in the display unit.
    pub used: f64,
    /// Granted amount.
    pub limit: f64,
    /// Available amount.
    pub left: f64,
    /// Number of claims that use it.
    pub claims: i32,
    /// Base units in one display unit.
    #[serde(skip)]
    pub factor: f64,
}

/// The quota of a project, in display units if the resource has a ResourceRegistration.
pub fn quota(buckets: &[AllowanceBucket], registrations: &[ResourceRegistration]) -> Vec<QuotaLine> {
    let units: BTreeMap<&str, (&str, f64)> = registrations
        .iter()
        .map(|registration| {
            let spec = &registration.spec;
            let factor = spec.unit_conversion_factor.filter(|factor| *factor > 0).unwrap_or(1);
            let unit = spec.display_unit.as_deref().or(spec.base_unit.as_deref()).unwrap_or_default();
            (spec.resource_type.as_str(), (unit, factor as f64))
        })
        .collect();
    let mut lines: Vec<QuotaLine> = buckets
        .iter()
        .map(|bucket| {
            let status = bucket.status.clone().unwrap_or_default();
            let name = bucket.spec.resource_type.clone();
            let (unit, factor) = units.get(name.as_str()).copied().unwrap_or(("", 1.0));
            QuotaLine {
                unit: unit.to_owned(),
                used: status.allocated as f64 / factor,
                limit: status.limit as f64 / factor,
                left: status.available as f64 / factor,
                claims: status.claim_count,
                factor,
                name,
            }
        })
        .collect();
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    lines
}

/// The table of `polis quota`.
pub fn quota_table(lines: &[QuotaLine], wide: bool) -> Table {
    let mut heads = vec!["RESOURCE", "USED", "LIMIT", "LEFT", "UNIT"];
    if wide {
        heads.push("CLAIMS");
    }
    let mut table = Table::new(&heads, "No quota is granted to this project, and none is used.");
    for line in lines {
        let number =
            |value: f64| if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
        let mut cells = vec![
            line.name.clone(),
            number(line.used),
            number(line.limit),
            number(line.left),
            line.unit.clone(),
        ];
        if wide {
            cells.push(line.claims.to_string());
        }
        table.row(cells);
    }
    table
}

/// A project that `--project` accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProjectLine {
    /// Its name.
    pub name: String,
    /// Whether commands without `--project` use it.
    pub current: bool,
    /// Whether the Project is Ready; `None` if it is known only from the kubeconfig.
    pub ready: Option<bool>,
    /// Its context in the kubeconfig, if it has one.
    pub context: Option<String>,
}

/// The projects of the server and of the kubeconfig, by name.
pub fn projects(
    served: &[Project],
    contexts: &[(String, String)],
    current: Option<&str>,
) -> Vec<ProjectLine> {
    let mut lines: BTreeMap<String, ProjectLine> = BTreeMap::new();
    let line = |name: &str| ProjectLine {
        name: name.to_owned(),
        current: current == Some(name),
        ready: None,
        context: None,
    };
    for project in served {
        let name = project.name();
        let ready = project.status.as_ref().is_some_and(|s| conditions::is_true(&s.conditions, READY));
        lines.entry(name.to_owned()).or_insert_with(|| line(name)).ready = Some(ready);
    }
    for (name, context) in contexts {
        let line = lines.entry(name.clone()).or_insert_with(|| line(name));
        line.context.get_or_insert_with(|| context.clone());
    }
    lines.into_values().collect()
}

/// The table of `polis projects`.
pub fn project_table(lines: &[ProjectLine], wide: bool) -> Table {
    let heads: &[&str] =
        if wide { &["CURRENT", "NAME", "READY", "CONTEXT"] } else { &["CURRENT", "NAME", "READY"] };
    let mut table = Table::new(heads, "No projects found.");
    for line in lines {
        let ready = match line.ready {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        };
        let mut cells =
            vec![if line.current { "*" } else { "" }.to_owned(), line.name.clone(), ready.to_owned()];
        if wide {
            cells.push(line.context.clone().unwrap_or_default());
        }
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::{
        mk_blocked, mk_condition, mk_instance, mk_ready, mk_silent, mk_snapshot, mk_workload, now,
    };
    use serde_json::json;

    fn mk_binding(city: &str, available: Option<&str>) -> LocationBinding {
        let mut binding: LocationBinding = serde_json::from_value(json!({
            "apiVersion": "networking.datumapis.com/v1alpha", "kind": "LocationBinding", "metadata": {"name": city},
            "spec": {
                "locationRef": {"name": format!("{city}-1")}, "displayName": "Somewhere",
                "topology": {TOPOLOGY_CITY_CODE: city, TOPOLOGY_REGION: "us"},
            },
        }))
        .unwrap();
        let conditions =
            available.iter().map(|status| mk_condition("Available", status, "x", "", 1)).collect();
        binding.status =
            Some(polis_api::networking::LocationBindingStatus { conditions, ..Default::default() });
        binding
    }

    #[test]
    fn workloads_with_their_cities() {
        let mut workload = mk_workload(&["dfw", "ord"], 2);
        let status = workload.status.as_mut().unwrap();
        (status.ready_replicas, status.desired_replicas, status.current_replicas) = (3, 4, 4);
        insta::assert_snapshot!(workloads(&[workload.clone()], &[], &[], now(600), false).draw(Some(80)));
        insta::assert_snapshot!(workloads(&[workload], &[], &[], now(600), true).draw(None));
    }

    #[test]
    fn instances_with_their_addresses() {
        let list =
            [mk_ready(mk_instance("dfw", 0)), mk_blocked(mk_instance("ord", 0), "PendingQuota", "full")];
        insta::assert_snapshot!(instances(&list, &[], now(600), false).draw(Some(80)));
        insta::assert_snapshot!(instances(&list, &[], now(600), true).draw(None));
    }

    #[test]
    fn a_city_is_available_unless_its_binding_is_not() {
        let bindings = [mk_binding("ord", Some("False")), mk_binding("dfw", None)];
        let lines = cities(&bindings, &[], &mk_snapshot(&["dfw"], 2).instances);
        insta::assert_snapshot!(city_table(&lines, now(600), true).draw(Some(80)));
    }

    #[test]
    fn lists_show_the_age_of_the_last_word_of_a_silent_cell() {
        let snapshot = mk_snapshot(&["dfw"], 2);
        let silent = [mk_silent(snapshot.deployments[0].clone(), 60)];
        let cities = cities(&[mk_binding("dfw", None)], &silent, &snapshot.instances);
        let row = |table: Table| table.draw(None).lines().nth(1).unwrap_or_default().to_owned();
        let workload = snapshot.workload.clone().unwrap();
        for (table, expected) in [
            (city_table(&cities, now(300), false), "unknown for 4m"),
            (city_table(&cities, now(300), false), "?/2 ready"),
            (instances(&snapshot.instances, &silent, now(300), false), "unknown for 4m"),
            (workloads(&[workload], &silent, &snapshot.instances, now(300), false), "unknown for 4m"),
        ] {
            let row = row(table);
            assert!(row.contains(expected), "{row}");
        }
        assert_eq!(serde_json::to_value(&cities[0]).unwrap()["lastWord"], now(60).to_string());
    }

    #[test]
    fn quota_is_shown_in_the_unit_of_the_resource() {
        let bucket: AllowanceBucket = serde_json::from_value(json!({
            "apiVersion": "quota.miloapis.com/v1alpha1", "kind": "AllowanceBucket", "metadata": {"name": "b"},
            "spec": {"consumerRef": {"kind": "Project", "name": "p"}, "resourceType": "compute.datumapis.com/vcpus"},
            "status": {"limit": 4000, "allocated": 1500, "available": 2500, "claimCount": 2},
        }))
        .unwrap();
        let registration: ResourceRegistration = serde_json::from_value(json!({
            "apiVersion": "quota.miloapis.com/v1alpha1", "kind": "ResourceRegistration", "metadata": {"name": "v"},
            "spec": {"consumerType": {"kind": "Project"}, "type": "Allocation", "resourceType": "compute.datumapis.com/vcpus",
                     "baseUnit": "millicore", "displayUnit": "core", "unitConversionFactor": 1000},
        }))
        .unwrap();
        insta::assert_snapshot!(quota_table(&quota(&[bucket], &[registration]), true).draw(Some(80)));
    }

    #[test]
    fn projects_of_the_server_and_of_the_kubeconfig_are_merged() {
        let mut shop = Project::new("shop", Default::default());
        shop.status = Some(polis_api::milo::ProjectStatus {
            conditions: vec![mk_condition("Ready", "True", "Ready", "", 1)],
            ..Default::default()
        });
        let contexts = [("default".to_owned(), "polis-default".to_owned())];
        insta::assert_snapshot!(
            project_table(&projects(&[shop], &contexts, Some("default")), true).draw(Some(80))
        );
    }
}
