//! Invariants at rest: the objects of all planes agree.
//!
//! The checks read the API servers directly. Nothing changes while they do, because the system is at rest.

use std::collections::{BTreeMap, BTreeSet};

use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::conditions::{READY, RUNNING};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::api::rbac::v1::RoleBinding;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::karmada::{PropagationPolicy, ResourceBinding, Work};
use polis_api::milo::Project;
use polis_api::networking::{NetworkBinding, NetworkContext, Subnet, SubnetClaim};
use polis_api::quota::{AllowanceBucket, RESOURCE_INSTANCES, ResourceClaim};
use polis_api::{ObjectExt as _, labels, names};
use polis_core::{conditions, gates, template};
use polis_testing::PlaneExt as _;

use super::*;
use crate::machines::Phase;
use crate::plan::{HUB, PLATFORM};
use crate::simulation::Simulation;
use crate::users::NAMESPACE;

/// Whether a project is ready, with all its cities bound.
pub async fn is_ready(simulation: &Simulation, project: &str) -> bool {
    let found = simulation.plane(PLATFORM).read::<Project>(project).await;
    let status = found.and_then(|found| found.status);
    if !status.is_some_and(|status| conditions::is_true(&status.conditions, READY)) {
        return false;
    }
    let bound = simulation.plane(project).all::<polis_api::networking::LocationBinding>().await.len();
    let grants = simulation.plane(project).all::<polis_api::quota::ResourceGrant>().await.len();
    bound == simulation.plan().cities.len() && grants > 0
}

/// The names of the workloads of a project.
pub async fn workloads(simulation: &Simulation, project: &str) -> Vec<String> {
    let all = simulation.plane(project).all::<Workload>().await;
    all.iter().map(|workload| workload.name().to_owned()).collect()
}

/// The objects of a project on its own plane.
struct ProjectObjects {
    name: String,
    hub_namespace: String,
    workloads: Vec<Workload>,
    deployments: Vec<WorkloadDeployment>,
    projections: Vec<Instance>,
    claims: Vec<ResourceClaim>,
    buckets: Vec<AllowanceBucket>,
}

/// The objects of the hub.
struct HubObjects {
    namespaces: Vec<Namespace>,
    deployments: Vec<WorkloadDeployment>,
    instances: Vec<Instance>,
    policies: Vec<PropagationPolicy>,
    rights: Vec<RoleBinding>,
    bindings: Vec<ResourceBinding>,
    works: Vec<Work>,
}

/// The objects of a cell.
struct CellObjects {
    city: String,
    namespaces: Vec<Namespace>,
    deployments: Vec<WorkloadDeployment>,
    instances: Vec<Instance>,
    network_bindings: Vec<NetworkBinding>,
    network_contexts: Vec<NetworkContext>,
    subnet_claims: Vec<SubnetClaim>,
    subnets: Vec<Subnet>,
}

/// All objects of interest.
struct Objects {
    projects: Vec<ProjectObjects>,
    hub: HubObjects,
    cells: Vec<CellObjects>,
}

impl Objects {
    async fn read(simulation: &Simulation) -> Self {
        let mut projects = Vec::new();
        for name in simulation.plan().projects.iter().filter(|project| simulation.has_project(project)) {
            let plane = simulation.plane(name);
            let namespace = plane.read::<Namespace>(NAMESPACE).await;
            projects.push(ProjectObjects {
                name: name.clone(),
                hub_namespace: names::hub_namespace(namespace.as_ref().map_or("", |found| found.uid())),
                workloads: plane.all().await,
                deployments: plane.all().await,
                projections: plane.all().await,
                claims: plane.all().await,
                buckets: plane.all().await,
            });
        }
        let plane = simulation.plane(HUB);
        let hub = HubObjects {
            namespaces: plane.all().await,
            deployments: plane.all().await,
            instances: plane.all().await,
            policies: plane.all().await,
            rights: plane.all().await,
            bindings: plane.all().await,
            works: plane.all().await,
        };
        let mut cells = Vec::new();
        for city in &simulation.plan().cities {
            let plane = simulation.plane(city);
            cells.push(CellObjects {
                city: city.clone(),
                namespaces: plane.all().await,
                deployments: plane.all().await,
                instances: plane.all().await,
                network_bindings: plane.all().await,
                network_contexts: plane.all().await,
                subnet_claims: plane.all().await,
                subnets: plane.all().await,
            });
        }
        Self { projects, hub, cells }
    }
}

/// Checks all invariants at rest.
pub async fn check(simulation: &Simulation) {
    let objects = Objects::read(simulation).await;
    let check = Check { simulation, objects: &objects };
    for project in &objects.projects {
        check.deployments(project);
        check.copies(project);
        check.instances(project);
        check.quota(project);
        check.counts(project);
        check.policies(project);
    }
    check.containers();
    check.orphans();
    check.nothing_stuck();
}

/// Checks that nothing is left of the workloads of all projects.
pub async fn check_nothing_left(simulation: &Simulation) {
    let objects = Objects::read(simulation).await;
    let mut left = Vec::new();
    for project in &objects.projects {
        left.extend(named(&project.name, "Workload", &project.workloads));
        left.extend(named(&project.name, "WorkloadDeployment", &project.deployments));
        left.extend(named(&project.name, "Instance", &project.projections));
        left.extend(named(&project.name, "ResourceClaim", &project.claims));
    }
    let hub = &objects.hub;
    left.extend(named(HUB, "WorkloadDeployment", &hub.deployments));
    left.extend(named(HUB, "Instance", &hub.instances));
    left.extend(named(HUB, "PropagationPolicy", &hub.policies));
    left.extend(named(HUB, "RoleBinding", &hub.rights));
    left.extend(named(HUB, "ResourceBinding", &hub.bindings));
    let of_deployments = |work: &&Work| {
        work.spec.workload.manifests.iter().any(|manifest| manifest["kind"] == "WorkloadDeployment")
    };
    left.extend(named(HUB, "Work", hub.works.iter().filter(of_deployments)));
    for cell in &objects.cells {
        left.extend(named(&cell.city, "WorkloadDeployment", &cell.deployments));
        left.extend(named(&cell.city, "Instance", &cell.instances));
        left.extend(named(&cell.city, "NetworkBinding", &cell.network_bindings));
        left.extend(named(&cell.city, "NetworkContext", &cell.network_contexts));
        left.extend(named(&cell.city, "SubnetClaim", &cell.subnet_claims));
        left.extend(named(&cell.city, "Subnet", &cell.subnets));
        let machines = simulation.machines(&cell.city).all();
        left.extend(
            machines.values().map(|machine| format!("container of {} in {}", machine.name, cell.city)),
        );
    }
    for found in left {
        simulation.journal().violate(NOTHING_LEFT, found);
    }
}

fn named<'a, K: polis_api::kube::Resource + 'a>(
    plane: &str,
    kind: &str,
    objects: impl IntoIterator<Item = &'a K>,
) -> Vec<String> {
    objects.into_iter().map(|object| format!("{kind} {} on {plane}", object.name())).collect()
}

struct Check<'a> {
    simulation: &'a Simulation,
    objects: &'a Objects,
}

impl Check<'_> {
    fn violate(&self, invariant: &'static str, found: String) {
        self.simulation.journal().violate(invariant, found);
    }

    fn cell(&self, city: &str) -> Option<&CellObjects> {
        self.objects.cells.iter().find(|cell| cell.city == city)
    }

    /// One deployment for each placement and city of a workload.
    fn deployments(&self, project: &ProjectObjects) {
        let mut desired = BTreeMap::new();
        for workload in &project.workloads {
            for placement in &workload.spec.placements {
                for city in &placement.city_codes {
                    let name = names::deployment(workload.name(), workload.uid(), &placement.name, city);
                    desired.insert(name, (workload, placement, city));
                }
            }
        }
        for deployment in &project.deployments {
            let place = format!("deployment {} of {}", deployment.name(), project.name);
            let Some((workload, placement, city)) = desired.remove(deployment.name()) else {
                self.violate(DEPLOYMENTS, format!("{place} belongs to no placement"));
                continue;
            };
            let spec = &deployment.spec;
            let same = spec.city_code == *city
                && spec.scale_settings == placement.scale_settings
                && spec.template == workload.spec.template
                && spec.workload_ref.uid == workload.uid();
            if !same {
                self.violate(DEPLOYMENTS, format!("{place} is not as its workload says"));
            }
        }
        for name in desired.keys() {
            self.violate(DEPLOYMENTS, format!("deployment {name} of {} is missing", project.name));
        }
    }

    /// One copy of each deployment on the hub and in its cell.
    fn copies(&self, project: &ProjectObjects) {
        let of_project = |copy: &&WorkloadDeployment| copy.namespace() == project.hub_namespace;
        let expected: BTreeSet<(&str, &str)> =
            project.deployments.iter().map(|d| (d.spec.city_code.as_str(), d.name())).collect();
        let hub = &self.objects.hub.deployments;
        let on_hub: BTreeSet<(&str, &str)> =
            hub.iter().filter(of_project).map(|copy| (copy.spec.city_code.as_str(), copy.name())).collect();
        let in_cells: BTreeSet<(&str, &str)> = self
            .objects
            .cells
            .iter()
            .flat_map(|cell| {
                cell.deployments.iter().filter(of_project).map(|copy| (cell.city.as_str(), copy.name()))
            })
            .collect();
        for (what, found) in [("the hub", &on_hub), ("the cells", &in_cells)] {
            for (city, name) in expected.difference(found) {
                self.violate(
                    COPIES,
                    format!("deployment {name} of {} is not on {what} for {city}", project.name),
                );
            }
            for (city, name) in found.difference(&expected) {
                self.violate(
                    COPIES,
                    format!("{what} have for {city} the unknown deployment {name} of {}", project.name),
                );
            }
        }
        for deployment in &project.deployments {
            let place = format!("deployment {} of {}", deployment.name(), project.name);
            let in_cell = self.cell(&deployment.spec.city_code).map(|cell| &cell.deployments);
            for (what, copies) in [("hub", Some(hub)), ("cell", in_cell)] {
                let copies = copies.into_iter().flatten().filter(of_project);
                for copy in copies.filter(|copy| copy.name() == deployment.name()) {
                    let same = copy.spec.template == deployment.spec.template
                        && copy.spec.scale_settings == deployment.spec.scale_settings
                        && copy.spec.city_code == deployment.spec.city_code
                        && copy.spec.workload_ref == deployment.spec.workload_ref;
                    if !same {
                        self.violate(COPIES, format!("{place} differs from its copy in the {what}"));
                    }
                }
            }
        }
    }

    /// The instances of a deployment: as many as desired, with the current template, and shown everywhere.
    fn instances(&self, project: &ProjectObjects) {
        let of_project = |copy: &&Instance| copy.namespace() == project.hub_namespace;
        let mut in_cells: BTreeMap<&str, &Instance> = BTreeMap::new();
        for cell in &self.objects.cells {
            for instance in cell.instances.iter().filter(of_project) {
                if in_cells.insert(instance.name(), instance).is_some() {
                    self.violate(INSTANCES, format!("instance {} is in two cells", instance.name()));
                }
            }
        }
        let mut expected = BTreeSet::new();
        for deployment in &project.deployments {
            let replicas = u32::try_from(deployment.spec.scale_settings.min_replicas).unwrap_or_default();
            let hash = template::hash(&deployment.spec.template);
            for ordinal in 0..replicas {
                let name = names::instance(deployment.name(), ordinal);
                match in_cells.get(name.as_str()) {
                    None => {
                        self.violate(INSTANCES, format!("instance {name} of {} is missing", project.name));
                    }
                    Some(instance) if template::instance_hash(instance) != Some(&hash) => {
                        let found = format!("instance {name} of {} has an old template", project.name);
                        self.violate(INSTANCES, found);
                    }
                    Some(_) => {}
                }
                expected.insert(name);
            }
        }
        for name in in_cells.keys().filter(|name| !expected.contains(**name)) {
            self.violate(INSTANCES, format!("instance {name} of {} should not exist", project.name));
        }
        let copies: BTreeMap<&str, &Instance> =
            self.objects.hub.instances.iter().filter(of_project).map(|copy| (copy.name(), copy)).collect();
        let projections: BTreeMap<&str, &Instance> =
            project.projections.iter().map(|projection| (projection.name(), projection)).collect();
        for (what, shown) in [("copy on the hub", &copies), ("projection", &projections)] {
            for (name, instance) in &in_cells {
                match shown.get(name) {
                    None => {
                        self.violate(
                            PROJECTIONS,
                            format!("instance {name} of {} has no {what}", project.name),
                        );
                    }
                    Some(copy) if summary(copy) != summary(instance) => {
                        let found = format!(
                            "the {what} of instance {name} of {} shows {:?}, and the cell {:?}",
                            project.name,
                            summary(copy),
                            summary(instance)
                        );
                        self.violate(PROJECTIONS, found);
                    }
                    Some(_) => {}
                }
            }
            for name in shown.keys().filter(|name| !in_cells.contains_key(**name)) {
                let found = format!("the {what} of instance {name} of {} has no instance", project.name);
                self.violate(PROJECTIONS, found);
            }
        }
    }

    /// An instance runs if and only if its quota is granted; each claim has an instance.
    fn quota(&self, project: &ProjectObjects) {
        let instances = self.objects.cells.iter().flat_map(|cell| &cell.instances);
        let instances: Vec<&Instance> =
            instances.filter(|instance| instance.namespace() == project.hub_namespace).collect();
        let mut granted = 0;
        for claim in &project.claims {
            let status = claim.status.as_ref();
            let is_granted = status.is_some_and(|status| conditions::is_true(&status.conditions, "Granted"));
            granted += i64::from(is_granted);
            if !instances.iter().any(|instance| names::resource_claim(instance.name()) == claim.name()) {
                self.violate(
                    NO_ORPHANS,
                    format!("claim {} of {} has no instance", claim.name(), project.name),
                );
            }
        }
        for instance in &instances {
            let claim = names::resource_claim(instance.name());
            let claim = project.claims.iter().find(|found| found.name() == claim);
            let status = claim.and_then(|claim| claim.status.as_ref());
            let is_granted = status.is_some_and(|status| conditions::is_true(&status.conditions, "Granted"));
            let status = instance.status.as_ref();
            let runs = status.is_some_and(|status| conditions::is_true(&status.conditions, RUNNING));
            if runs != is_granted {
                let gates: Vec<&str> = gates::of(instance).iter().map(|gate| gate.name.as_str()).collect();
                let found = format!(
                    "instance {} of {}: granted {is_granted}, runs {runs}, gates {gates:?}, claim {}",
                    instance.name(),
                    project.name,
                    if claim.is_some() { "exists" } else { "is missing" }
                );
                self.violate(RUNS_IF_GRANTED, found);
            }
        }
        for bucket in &project.buckets {
            let Some(status) = bucket.status.as_ref() else { continue };
            if bucket.spec.resource_type == RESOURCE_INSTANCES && status.allocated != granted {
                let found = format!(
                    "{} claims of {} are granted, the bucket has {}",
                    granted, project.name, status.allocated
                );
                self.violate(BUCKETS, found);
            }
        }
    }

    /// The counts of deployments and workloads.
    fn counts(&self, project: &ProjectObjects) {
        let instances: Vec<&Instance> = self.objects.cells.iter().flat_map(|cell| &cell.instances).collect();
        for deployment in &project.deployments {
            let of_deployment = instances.iter().filter(|instance| {
                instance.namespace() == project.hub_namespace
                    && instance.label(labels::WORKLOAD_DEPLOYMENT_NAME) == Some(deployment.name())
            });
            let ready = |instance: &&&&Instance| {
                let status = instance.status.as_ref();
                status.is_some_and(|status| conditions::is_true(&status.conditions, READY))
            };
            let (exist, ready) = (
                of_deployment.clone().count(),
                of_deployment.collect::<Vec<_>>().iter().filter(ready).count(),
            );
            let status = deployment.status.clone().unwrap_or_default();
            let counted = (status.replicas, status.ready_replicas, status.desired_replicas);
            let real = (exist as i32, ready as i32, deployment.spec.scale_settings.min_replicas);
            if counted != real {
                let found = format!(
                    "deployment {} of {}: status says (replicas, ready, desired) {counted:?}, there are {real:?}",
                    deployment.name(),
                    project.name
                );
                self.violate(COUNTS, found);
            }
        }
        for workload in &project.workloads {
            let of_workload =
                || project.deployments.iter().filter(|d| d.spec.workload_ref.uid == workload.uid());
            let sum = |field: fn(&polis_api::compute::WorkloadDeploymentStatus) -> i32| -> i32 {
                of_workload().filter_map(|deployment| deployment.status.as_ref()).map(field).sum()
            };
            let real = (of_workload().count() as i32, sum(|s| s.replicas), sum(|s| s.ready_replicas));
            let status = workload.status.clone().unwrap_or_default();
            let counted = (status.deployments, status.replicas, status.ready_replicas);
            if counted != real || status.observed_generation != workload.metadata.generation {
                let found = format!(
                    "workload {} of {}: status says (deployments, replicas, ready) {counted:?}, there are {real:?}; generation {:?} of {:?}",
                    workload.name(),
                    project.name,
                    status.observed_generation,
                    workload.metadata.generation
                );
                self.violate(COUNTS, found);
            }
        }
    }

    /// Policies and rights in the hub namespace of a project.
    fn policies(&self, project: &ProjectObjects) {
        let cities = project.deployments.iter().map(|deployment| names::policy(&deployment.spec.city_code));
        let expected: BTreeSet<String> = cities.collect();
        let here = |meta: &ObjectMeta| meta.namespace.as_deref() == Some(&project.hub_namespace);
        let hub = &self.objects.hub;
        let policies = hub.policies.iter().filter(|policy| here(&policy.metadata));
        let policies: BTreeSet<String> = policies.map(|policy| policy.name().to_owned()).collect();
        let rights = hub.rights.iter().filter(|binding| here(&binding.metadata));
        let rights: BTreeSet<String> = rights.map(|binding| binding.name().to_owned()).collect();
        for (what, found) in [("policies", policies), ("bindings of rights", rights)] {
            if found != expected {
                self.violate(POLICIES, format!("{what} of {} are {found:?}, not {expected:?}", project.name));
            }
        }
    }

    /// The containers are those of the instances without gates.
    fn containers(&self) {
        for cell in &self.objects.cells {
            let machines = self.simulation.machines(&cell.city).all();
            for (uid, machine) in &machines {
                let instance = cell.instances.iter().find(|instance| instance.uid() == uid);
                match instance {
                    None => {
                        let found = format!("container of {} in {} has no instance", machine.name, cell.city);
                        self.violate(CONTAINERS, found);
                    }
                    Some(_) if machine.phase != Phase::Up => {
                        let found =
                            format!("container of {} in {} is {:?}", machine.name, cell.city, machine.phase);
                        self.violate(CONTAINERS, found);
                    }
                    Some(_) => {}
                }
            }
            for instance in cell.instances.iter().filter(|instance| gates::of(instance).is_empty()) {
                if !machines.contains_key(instance.uid()) {
                    let found = format!("instance {} in {} has no container", instance.name(), cell.city);
                    self.violate(CONTAINERS, found);
                }
            }
        }
    }

    /// Bindings, Works, hub namespaces and objects of the network have what they belong to.
    fn orphans(&self) {
        let hub = &self.objects.hub;
        for binding in &hub.bindings {
            let resource = &binding.spec.resource;
            let exists = resource.kind != "WorkloadDeployment"
                || hub.deployments.iter().any(|deployment| {
                    deployment.name() == resource.name && deployment.namespace() == binding.namespace()
                });
            if !exists {
                self.violate(NO_ORPHANS, format!("binding {} on the hub has no deployment", binding.name()));
            }
        }
        for work in &hub.works {
            for manifest in &work.spec.workload.manifests {
                let (name, namespace) =
                    (manifest["metadata"]["name"].as_str(), manifest["metadata"]["namespace"].as_str());
                let exists = match manifest["kind"].as_str() {
                    Some("WorkloadDeployment") => hub.deployments.iter().any(|deployment| {
                        Some(deployment.name()) == name && Some(deployment.namespace()) == namespace
                    }),
                    Some("Namespace") => {
                        hub.namespaces.iter().any(|namespace| Some(namespace.name()) == name)
                    }
                    _ => true,
                };
                if !exists {
                    let found =
                        format!("work {} in {} is for an object that is gone", work.name(), work.namespace());
                    self.violate(NO_ORPHANS, found);
                }
            }
        }
        for namespace in hub.namespaces.iter().filter(|namespace| namespace.name().starts_with("ns-")) {
            if !self.objects.projects.iter().any(|project| project.hub_namespace == namespace.name()) {
                self.violate(NO_ORPHANS, format!("namespace {} on the hub has no project", namespace.name()));
            }
        }
        for cell in &self.objects.cells {
            for namespace in cell.namespaces.iter().filter(|namespace| namespace.name().starts_with("ns-")) {
                if !self.objects.projects.iter().any(|project| project.hub_namespace == namespace.name()) {
                    let found = format!("namespace {} in {} has no project", namespace.name(), cell.city);
                    self.violate(NO_ORPHANS, found);
                }
            }
            for binding in &cell.network_bindings {
                let owners = binding.metadata.owner_references.iter().flatten();
                for owner in owners.filter(|owner| owner.kind == "WorkloadDeployment") {
                    if !cell.deployments.iter().any(|deployment| deployment.uid() == owner.uid) {
                        let found =
                            format!("network binding {} in {} has no deployment", binding.name(), cell.city);
                        self.violate(NO_ORPHANS, found);
                    }
                }
            }
            if cell.network_bindings.is_empty() && !cell.network_contexts.is_empty() {
                self.violate(NO_ORPHANS, format!("network contexts in {} have no binding", cell.city));
            }
        }
    }

    /// No object waits for a finalizer.
    fn nothing_stuck(&self) {
        let mut deleting = Vec::new();
        for project in &self.objects.projects {
            deleting.extend(terminating(&project.name, "Workload", &project.workloads));
            deleting.extend(terminating(&project.name, "WorkloadDeployment", &project.deployments));
            deleting.extend(terminating(&project.name, "Instance", &project.projections));
            deleting.extend(terminating(&project.name, "ResourceClaim", &project.claims));
        }
        let hub = &self.objects.hub;
        deleting.extend(terminating(HUB, "WorkloadDeployment", &hub.deployments));
        deleting.extend(terminating(HUB, "Instance", &hub.instances));
        deleting.extend(terminating(HUB, "Namespace", &hub.namespaces));
        deleting.extend(terminating(HUB, "PropagationPolicy", &hub.policies));
        deleting.extend(terminating(HUB, "ResourceBinding", &hub.bindings));
        deleting.extend(terminating(HUB, "Work", &hub.works));
        for cell in &self.objects.cells {
            deleting.extend(terminating(&cell.city, "WorkloadDeployment", &cell.deployments));
            deleting.extend(terminating(&cell.city, "Instance", &cell.instances));
            deleting.extend(terminating(&cell.city, "Namespace", &cell.namespaces));
            deleting.extend(terminating(&cell.city, "NetworkBinding", &cell.network_bindings));
        }
        for found in deleting {
            self.violate(NOTHING_STUCK, found);
        }
    }
}

fn terminating<K: polis_api::kube::Resource>(plane: &str, kind: &str, objects: &[K]) -> Vec<String> {
    let deleting = objects.iter().filter(|object| object.meta().deletion_timestamp.is_some());
    deleting
        .map(|object| {
            let finalizers = object.meta().finalizers.clone().unwrap_or_default();
            format!("{kind} {} on {plane} waits for the finalizers {finalizers:?}", object.name())
        })
        .collect()
}

/// What an instance shows on every plane: its conditions without times and generations, its template and its
/// addresses.
fn summary(instance: &Instance) -> (BTreeMap<String, (String, String)>, String, Vec<String>) {
    let status = instance.status.clone().unwrap_or_default();
    let conditions = status
        .conditions
        .iter()
        .map(|found| (found.type_.clone(), (found.status.clone(), found.reason.clone())));
    let hash = template::instance_hash(instance).unwrap_or_default().to_owned();
    let addresses = status
        .network_interfaces
        .iter()
        .filter_map(|interface| interface.assignments.as_ref().and_then(|given| given.network_ip.clone()));
    (conditions.collect(), hash, addresses.collect())
}
