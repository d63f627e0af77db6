//! Quota: counts what a project was granted and decides on what it claims, by Milo's rules.
//!
//! Reads   platform: ResourceRegistration, Project · project: ResourceGrant, ResourceClaim, AllowanceBucket
//! Writes  platform: ResourceRegistration · project: Namespace `milo-system`, ResourceGrant (the default one, once; status
//!         of all), AllowanceBucket, ResourceClaim (status)
//! Order   grants → buckets, with what is being granted already counted → claims
//!
//! A project's quota is one set of books ([`books`]), balanced by one worker at a time. What was granted a moment ago
//! must count, so nothing is decided before the watch has shown what was written last ([`recent`]). After a crash between
//! bucket and claim the same decision is made again.
//!
//! Milo's rules, sharp edges included: every resource of a claim is decided by itself; **denied is final**, whatever is
//! granted later; a claim that is denied on one resource goes on holding what it was granted of another, until it is
//! deleted; without a grant the limit is zero.

mod books;
mod recent;

use futures::{StreamExt, TryStreamExt, stream};
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
use polis_api::{compute, reasons};
use polis_core::conditions::{self, Verdict};
use polis_core::{Time, metadata, owner};
use polis_engine::{
    Clock, Engine, Error as EngineError, Key, Outcome, Plane, PlaneSet, Provider, Query, Reconciler, Watch,
};

use crate::{Error, key_of_project, made_here, stays};
use books::{Balance, Books};
use recent::Recent;

/// Where the grants and buckets of a project are.
pub const NAMESPACE: &str = "milo-system";
/// Name of the grant that every project begins with.
pub const DEFAULT_GRANT: &str = "compute-default";

/// Claims that are told at once what was decided.
const AT_ONCE: usize = 16;

/// What a project begins with. The grant is made once and then belongs to whoever edits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Instances.
    pub instances: i64,
    /// Processors, in thousandths.
    pub millicores: i64,
    /// Memory, in MiB.
    pub mebibytes: i64,
}

impl Default for Allowance {
    /// Ten instances of four processors and 8 GiB.
    fn default() -> Self {
        Self { instances: 10, millicores: 40_000, mebibytes: 81_920 }
    }
}

/// Declares the stand-in on an engine: the resources of compute on `root`, and the books of every project that is
/// provided. Without an allowance no project gets a grant by itself.
pub fn declare(
    engine: &mut Engine,
    clock: Clock,
    root: Plane,
    projects: impl Provider,
    allowance: Option<Allowance>,
) {
    let root = engine.plane("platform", root, [Watch::of::<Project>(), Watch::of::<ResourceRegistration>()]);
    let watches =
        [Watch::of::<ResourceGrant>(), Watch::of::<ResourceClaim>(), Watch::of::<AllowanceBucket>()];
    let projects = engine.planes("project", projects, watches);

    let here = root.name().clone();
    let registrar = Registrar { root: root.clone(), clock: clock.clone() };
    engine.controller("registrations", &root, registrar).on::<ResourceRegistration>().maps::<Project>(
        &root,
        move |_, _| {
            Ok(registrations().iter().map(|r| Key::cluster(here.clone(), owner::name(&r.metadata))).collect())
        },
    );

    let known = projects.clone();
    let recent = Recent::default();
    let treasurer = Treasurer { root: root.clone(), projects: projects.clone(), clock, allowance, recent };
    engine
        .controller("quota", &projects, treasurer)
        .maps::<ResourceGrant>(&projects, |project, _| Ok(vec![key_of_project(project.name())]))
        .maps::<ResourceClaim>(&projects, |project, _| Ok(vec![key_of_project(project.name())]))
        .maps::<AllowanceBucket>(&projects, |project, _| Ok(vec![key_of_project(project.name())]))
        .maps::<Project>(&root, |_, project| Ok(vec![key_of_project(&owner::name(&project.metadata).into())]))
        .maps::<ResourceRegistration>(&root, move |_, _| {
            Ok(known.engaged().iter().map(|project| key_of_project(project.name())).collect())
        });
}

/// Makes the resources of compute known, and says of every registration that it counts.
struct Registrar {
    root: Plane,
    clock: Clock,
}

impl Reconciler for Registrar {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let registration = match self.root.get::<ResourceRegistration>(key)? {
            Some(registration) if owner::is_deleting(&registration.metadata) => return Ok(Outcome::Settled),
            Some(registration) => registration,
            None => {
                let ours = registrations().into_iter().find(|r| *owner::name(&r.metadata) == *key.name);
                let Some(ours) = ours else { return Ok(Outcome::Settled) };
                self.root.create(&ours).await?
            }
        };
        let mut said = registration.clone();
        let active =
            Verdict::yes(ACTIVE, reasons::REGISTRATION_ACTIVE, "claims for this resource are decided");
        let status = said.status.get_or_insert_default();
        let generation = registration.metadata.generation;
        conditions::set(&mut status.conditions, &active, generation, &Time(self.clock.now()));
        self.root.update_status(&registration, &said).await?;
        Ok(Outcome::Settled)
    }
}

/// Keeps the books of projects.
struct Treasurer {
    root: Plane,
    projects: PlaneSet,
    clock: Clock,
    allowance: Option<Allowance>,
    /// What was written and is not seen yet.
    recent: Recent,
}

impl Reconciler for Treasurer {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let project = self.projects.plane(key)?;
        let served = project.serves::<ResourceGrant>()?
            && project.serves::<ResourceClaim>()?
            && project.serves::<AllowanceBucket>()?;
        if !served || !stays(&self.root, &key.plane)? {
            self.recent.forget(project.name());
            return Ok(Outcome::Settled);
        }
        if !self.is_founded(&project).await? {
            return Ok(Outcome::Settled); // nothing is denied for want of a grant that is on its way: it is an event
        }
        let registrations = self.root.list::<ResourceRegistration>()?;
        if !opened(&registrations) {
            return Ok(Outcome::Settled); // the registrar is about to write them, and each is an event
        }
        let grants = project.list::<ResourceGrant>()?;
        let mut live = self.recent.is_doubted(project.name());
        loop {
            let (claims, buckets) = match live {
                false => (project.list::<ResourceClaim>()?, project.list::<AllowanceBucket>()?),
                true => {
                    let (live, all) = (project.live(), Query::all());
                    (live.list::<ResourceClaim>(&all).await?, live.list::<AllowanceBucket>(&all).await?)
                }
            };
            let seen = claims.iter().map(|claim| &claim.metadata);
            let seen = seen.chain(buckets.iter().map(|bucket| &bucket.metadata));
            if !live && self.recent.is_awaited(project.name(), seen) {
                return Ok(Outcome::Settled); // the event of what was written brings the key back
            }
            let books = Books {
                project: project.name().as_str(),
                registrations: &registrations,
                grants: &grants,
                claims: &claims,
                buckets: &buckets,
            };
            let balance = books.balance(&Time(self.clock.now()));
            // A bucket is made once, and that it is missing has to be certain.
            if !live && balance.buckets.iter().any(|(standing, _)| standing.is_none()) {
                live = true;
                continue;
            }
            let written = self.write(&project, balance).await;
            self.recent.doubt(project.name(), written.is_err());
            return written.map(|()| Outcome::Settled);
        }
    }
}

impl Treasurer {
    /// Whether the default grant is seen. It is made if it is not there, with the namespace that it is in.
    async fn is_founded(&self, project: &Plane) -> Result<bool, Error> {
        let Some(allowance) = &self.allowance else { return Ok(true) };
        if project.get::<ResourceGrant>((NAMESPACE, DEFAULT_GRANT))?.is_some() {
            return Ok(true);
        }
        self.settle_namespace(project).await?;
        ignore_existing(project.create(&mk_default_grant(project.name().as_str(), allowance)).await)?;
        Ok(false)
    }

    async fn settle_namespace(&self, project: &Plane) -> Result<(), Error> {
        if project.live().get::<Namespace>(NAMESPACE).await?.is_some() {
            return Ok(());
        }
        let metadata = ObjectMeta {
            name: Some(NAMESPACE.into()),
            labels: Some(metadata::map([(MILO_SYSTEM, "true")])),
            ..Default::default()
        };
        ignore_existing(project.create(&Namespace { metadata, ..Default::default() }).await)
    }

    /// Writes down what the books come to. A claim that is gone or changed meanwhile ends the pass; the next one reads
    /// everything anew.
    async fn write(&self, project: &Plane, balance: Balance<'_>) -> Result<(), Error> {
        for (standing, wanted) in balance.grants {
            project.update_status(standing, &wanted).await?;
        }
        for (standing, wanted) in balance.buckets {
            let standing = match standing {
                Some(standing) => standing.clone(),
                None => {
                    self.settle_namespace(project).await?;
                    project.create(&wanted).await?
                }
            };
            let said = AllowanceBucket { status: wanted.status, ..standing.clone() };
            if project.update_status(&standing, &said).await?.changed() {
                self.recent.written(project.name(), &standing.metadata);
            }
        }
        // What they hold is in the buckets by now, so it does not matter in which order they hear of it.
        let told = stream::iter(balance.claims).map(Ok::<_, Error>);
        told.try_for_each_concurrent(AT_ONCE, async |(standing, wanted)| {
            if project.update_status(standing, &wanted).await?.changed() {
                self.recent.written(project.name(), &standing.metadata);
            }
            Ok(())
        })
        .await
    }
}

fn ignore_existing<T>(made: Result<T, EngineError>) -> Result<(), Error> {
    match made {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether the resources of compute are registered. Before that nothing is said about any claim: a thousand that wait would
/// be told so one by one, and again a moment later what becomes of them.
fn opened(known: &[ResourceRegistration]) -> bool {
    let is_known = |ours: &ResourceRegistration| {
        known.iter().any(|registration| registration.spec.resource_type == ours.spec.resource_type)
    };
    registrations().iter().all(is_known)
}

/// The resources of compute, as an installation registers them.
fn registrations() -> [ResourceRegistration; 3] {
    let kind = |group: &str, kind: &str| KindReference {
        api_group: Some(group.into()),
        kind: kind.into(),
        ..Default::default()
    };
    let mk =
        |name: &str, resource: &str, type_: &str, unit: &str, display: &str, factor: i64, words: &str| {
            let spec = ResourceRegistrationSpec {
                consumer_type: kind(milo::GROUP, milo::PROJECT_KIND),
                type_: type_.into(),
                resource_type: resource.into(),
                description: Some(words.into()),
                base_unit: Some(unit.into()),
                display_unit: Some(display.into()),
                unit_conversion_factor: Some(factor),
                claiming_resources: vec![
                    kind(milo::GROUP, milo::PROJECT_KIND),
                    kind(compute::GROUP, "Instance"),
                ],
                ..Default::default()
            };
            ResourceRegistration { metadata: made_here(None, name), spec, status: None }
        };
    [
        mk("compute-instances", RESOURCE_INSTANCES, "Entity", "instance", "instance", 1, "Instances"),
        mk("compute-vcpus", RESOURCE_VCPUS, "Allocation", "millicore", "vCPU", 1000, "Processors"),
        mk("compute-memory", RESOURCE_MEMORY, "Allocation", "MiB", "GiB", 1024, "Memory"),
    ]
}

fn mk_default_grant(project: &str, allowance: &Allowance) -> ResourceGrant {
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
    ResourceGrant { metadata: made_here(Some(NAMESPACE), DEFAULT_GRANT), spec, status: None }
}

/// A project, as a consumer of quota.
fn consumer(project: &str) -> ConsumerReference {
    ConsumerReference {
        api_group: Some(milo::GROUP.into()),
        kind: milo::PROJECT_KIND.into(),
        name: project.to_owned(),
        ..Default::default()
    }
}
