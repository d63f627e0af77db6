//! Quota controller: sums up the grants of a project and decides on its claims, by Milo's rules.
//!
//! Reads   platform: ResourceRegistration, Project · project: ResourceGrant, ResourceClaim, AllowanceBucket
//! Writes  platform: ResourceRegistration · project: Namespace `milo-system`, ResourceGrant (the default
//!         grant, once; status of all), AllowanceBucket, ResourceClaim (status)
//! Order   grants → buckets, which already include the amounts being granted → claims
//!
//! The quota of a project is one ledger ([`ledger`]), which one worker at a time reconciles. Recent grants
//! must count: the cache includes the last writes, and after a failed write, whose effect is unknown, the
//! ledger is read uncached. After a crash between the bucket and the claim, the same decision is made again.
//!
//! Milo's rules: each resource of a claim is decided on its own. **Denied is final**, even if more is granted
//! later. A claim that is denied one resource keeps what it was granted of another until it is deleted.
//! Without a grant the limit is zero.

mod ledger;

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use polis_api::conditions::ACTIVE;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::labels::MILO_SYSTEM;
use polis_api::milo::{self, Project};
use polis_api::quota::{
    Allowance as GrantedAllowance, AllowanceAmount, AllowanceBucket, ConsumerReference, KindReference,
    RESOURCE_INSTANCES, RESOURCE_MEMORY, RESOURCE_VCPUS, ResourceClaim, ResourceGrant, ResourceGrantSpec,
    ResourceRegistration, ResourceRegistrationSpec,
};
use polis_api::{ObjectExt, compute, reasons};
use polis_core::conditions::{self, DesiredCondition};
use polis_core::{Time, metadata};
use polis_engine::{
    Action, Clock, Engine, Error as EngineError, Key, ListOptions, Plane, PlaneName, PlaneProvider, PlaneSet,
    Reconciler, Watch,
};

use crate::{Error, is_active, key_of_project, managed_metadata};
use ledger::{Ledger, LedgerChanges};

/// Namespace of a project's grants and buckets.
pub const NAMESPACE: &str = "milo-system";
/// Name of the default grant of every project.
pub const DEFAULT_GRANT: &str = "compute-default";

/// Status updates of claims that run concurrently.
const CONCURRENT_CLAIM_UPDATES: usize = 16;

/// The amounts of a project's default grant. The controller creates the grant once and never changes its
/// spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultAllowance {
    /// Number of instances.
    pub instances: i64,
    /// CPU, in millicores.
    pub millicores: i64,
    /// Memory, in MiB.
    pub mebibytes: i64,
}

impl Default for DefaultAllowance {
    /// Ten instances with 4 CPUs and 8 GiB each.
    fn default() -> Self {
        Self { instances: 10, millicores: 40_000, mebibytes: 81_920 }
    }
}

/// Registers the controllers with an engine: the compute resource registrations on `root`, and the quota of
/// every project that `projects` provides. Without an allowance no project gets a default grant.
pub fn declare(
    engine: &mut Engine,
    clock: Clock,
    root: Plane,
    projects: impl PlaneProvider,
    allowance: Option<DefaultAllowance>,
) {
    let root = engine.plane("platform", root, [Watch::of::<Project>(), Watch::of::<ResourceRegistration>()]);
    let watches =
        [Watch::of::<ResourceGrant>(), Watch::of::<ResourceClaim>(), Watch::of::<AllowanceBucket>()];
    let projects = engine.planes("project", projects, watches);

    let here = root.name().clone();
    let registration = RegistrationController { root: root.clone(), clock: clock.clone() };
    engine
        .controller("registrations", &root, registration)
        .for_kind::<ResourceRegistration>()
        .watches::<Project>(&root, move |_, _| {
            Ok(registrations().iter().map(|r| Key::cluster(here.clone(), r.name())).collect())
        });

    let project_planes = projects.clone();
    let quota = QuotaController {
        root: root.clone(),
        projects: projects.clone(),
        clock,
        allowance,
        failed_writes: Mutex::default(),
    };
    engine
        .controller("quota", &projects, quota)
        .watches::<ResourceGrant>(&projects, |project, _| Ok(vec![key_of_project(project.name())]))
        .watches::<ResourceClaim>(&projects, |project, _| Ok(vec![key_of_project(project.name())]))
        .watches::<AllowanceBucket>(&projects, |project, _| Ok(vec![key_of_project(project.name())]))
        .watches::<Project>(&root, |_, project| Ok(vec![key_of_project(&project.name().into())]))
        .watches::<ResourceRegistration>(&root, move |_, _| {
            Ok(project_planes.engaged().iter().map(|project| key_of_project(project.name())).collect())
        });
}

/// Creates the registrations of the compute resources, and marks every registration as active.
struct RegistrationController {
    root: Plane,
    clock: Clock,
}

impl Reconciler for RegistrationController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let registration = match self.root.get::<ResourceRegistration>(key)? {
            Some(registration) if registration.is_deleting() => {
                return Ok(Action::AwaitChange);
            }
            Some(registration) => registration,
            None => {
                let own = registrations().into_iter().find(|r| *r.name() == *key.name);
                let Some(own) = own else { return Ok(Action::AwaitChange) };
                self.root.create(&own).await?
            }
        };
        let active = DesiredCondition::new_true(
            ACTIVE,
            reasons::REGISTRATION_ACTIVE,
            "claims for this resource are decided",
        );
        let (mut status, now) = (registration.status.clone().unwrap_or_default(), Time(self.clock.now()));
        conditions::set(&mut status.conditions, &active, registration.metadata.generation, &now);
        self.root.write_status(&registration, status).await?;
        Ok(Action::AwaitChange)
    }
}

/// Reconciles the quota of each project as a whole.
struct QuotaController {
    root: Plane,
    projects: PlaneSet,
    clock: Clock,
    allowance: Option<DefaultAllowance>,
    /// Projects whose last write failed. It may have taken effect.
    failed_writes: Mutex<BTreeSet<PlaneName>>,
}

impl Reconciler for QuotaController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let project = self.projects.plane(key)?;
        let served = project.serves::<ResourceGrant>()?
            && project.serves::<ResourceClaim>()?
            && project.serves::<AllowanceBucket>()?;
        if !served || !is_active(&self.root, &key.plane)? {
            self.failed_writes.lock().remove(project.name());
            return Ok(Action::AwaitChange);
        }
        if !self.is_initialised(&project).await? {
            return Ok(Action::AwaitChange); // the event of the default grant requeues the key
        }
        let registrations = self.root.list::<ResourceRegistration>()?;
        if !all_registered(&registrations) {
            return Ok(Action::AwaitChange); // the event of each registration requeues the key
        }
        let grants = project.list::<ResourceGrant>()?;
        let uncached = self.failed_writes.lock().contains(project.name());
        let (claims, buckets) = match uncached {
            false => (project.list::<ResourceClaim>()?, project.list::<AllowanceBucket>()?),
            true => {
                let (reader, all) = (project.uncached(), ListOptions::all());
                (reader.list::<ResourceClaim>(&all).await?, reader.list::<AllowanceBucket>(&all).await?)
            }
        };
        let ledger = Ledger {
            project: project.name().as_str(),
            registrations: &registrations,
            grants: &grants,
            claims: &claims,
            buckets: &buckets,
        };
        self.write(&project, ledger.reconcile(&Time(self.clock.now()))).await?;
        Ok(Action::AwaitChange)
    }
}

impl QuotaController {
    /// Whether the default grant is in the cache. Creates the grant and its namespace if they are missing.
    async fn is_initialised(&self, project: &Plane) -> Result<bool, Error> {
        let Some(allowance) = &self.allowance else { return Ok(true) };
        if project.get::<ResourceGrant>((NAMESPACE, DEFAULT_GRANT))?.is_some() {
            return Ok(true);
        }
        self.ensure_namespace(project).await?;
        ignore_existing(project.create(&mk_default_grant(project.name().as_str(), allowance)).await)?;
        Ok(false)
    }

    async fn ensure_namespace(&self, project: &Plane) -> Result<(), Error> {
        if project.uncached().get::<Namespace>(NAMESPACE).await?.is_some() {
            return Ok(());
        }
        let metadata = ObjectMeta {
            name: Some(NAMESPACE.into()),
            labels: Some(metadata::map([(MILO_SYSTEM, "true")])),
            ..Default::default()
        };
        ignore_existing(project.create(&Namespace { metadata, ..Default::default() }).await)
    }

    /// Writes the changes. A conflict or a deleted claim ends the reconcile; the next one reads everything
    /// again.
    async fn write(&self, project: &Plane, changes: LedgerChanges<'_>) -> Result<(), Error> {
        // Until the last write has succeeded, also if the reconcile is cancelled.
        self.failed_writes.lock().insert(project.name().clone());
        self.try_write(project, changes).await?;
        self.failed_writes.lock().remove(project.name());
        Ok(())
    }

    async fn try_write(&self, project: &Plane, changes: LedgerChanges<'_>) -> Result<(), Error> {
        for (existing, desired) in changes.grants {
            project.update_status(existing, &desired).await?;
        }
        for (existing, desired) in changes.buckets {
            let existing = match existing {
                Some(existing) => existing.clone(),
                None => {
                    self.ensure_namespace(project).await?;
                    project.create(&desired).await?
                }
            };
            let updated = AllowanceBucket { status: desired.status, ..existing.clone() };
            project.update_status(&existing, &updated).await?;
        }
        // The buckets already include these amounts, so the claims can be written in any order.
        let claims = stream::iter(changes.claims).map(Ok::<_, Error>);
        claims
            .try_for_each_concurrent(CONCURRENT_CLAIM_UPDATES, async |(existing, desired)| {
                project.update_status(existing, &desired).await?;
                Ok(())
            })
            .await
    }
}

fn ignore_existing<T>(created: Result<T, EngineError>) -> Result<(), Error> {
    match created {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether the compute resources are registered. Before that no claim status is written: each pending claim
/// would be written twice within a moment.
fn all_registered(known: &[ResourceRegistration]) -> bool {
    let is_registered = |own: &ResourceRegistration| {
        known.iter().any(|registration| registration.spec.resource_type == own.spec.resource_type)
    };
    registrations().iter().all(is_registered)
}

/// The registrations of the compute resources, as in a Milo installation.
fn registrations() -> [ResourceRegistration; 3] {
    let kind = |group: &str, kind: &str| KindReference {
        api_group: Some(group.into()),
        kind: kind.into(),
        ..Default::default()
    };
    let mk = |name: &str,
              resource: &str,
              type_: &str,
              unit: &str,
              display: &str,
              factor: i64,
              description: &str| {
        let spec = ResourceRegistrationSpec {
            consumer_type: kind(milo::GROUP, milo::PROJECT_KIND),
            type_: type_.into(),
            resource_type: resource.into(),
            description: Some(description.into()),
            base_unit: Some(unit.into()),
            display_unit: Some(display.into()),
            unit_conversion_factor: Some(factor),
            claiming_resources: vec![kind(milo::GROUP, milo::PROJECT_KIND), kind(compute::GROUP, "Instance")],
            ..Default::default()
        };
        ResourceRegistration { metadata: managed_metadata(None, name), spec, status: None }
    };
    [
        mk("compute-instances", RESOURCE_INSTANCES, "Entity", "instance", "instance", 1, "Instances"),
        mk("compute-vcpus", RESOURCE_VCPUS, "Allocation", "millicore", "vCPU", 1000, "Processors"),
        mk("compute-memory", RESOURCE_MEMORY, "Allocation", "MiB", "GiB", 1024, "Memory"),
    ]
}

fn mk_default_grant(project: &str, allowance: &DefaultAllowance) -> ResourceGrant {
    let of = |resource: &str, amount: i64| GrantedAllowance {
        resource_type: resource.into(),
        buckets: vec![AllowanceAmount { amount, ..Default::default() }],
        ..Default::default()
    };
    let spec = ResourceGrantSpec {
        consumer_ref: consumer(project),
        allowances: vec![
            of(RESOURCE_INSTANCES, allowance.instances),
            of(RESOURCE_VCPUS, allowance.millicores),
            of(RESOURCE_MEMORY, allowance.mebibytes),
        ],
        ..Default::default()
    };
    ResourceGrant { metadata: managed_metadata(Some(NAMESPACE), DEFAULT_GRANT), spec, status: None }
}

/// The consumer reference of a project.
fn consumer(project: &str) -> ConsumerReference {
    ConsumerReference {
        api_group: Some(milo::GROUP.into()),
        kind: milo::PROJECT_KIND.into(),
        name: project.to_owned(),
        ..Default::default()
    }
}
