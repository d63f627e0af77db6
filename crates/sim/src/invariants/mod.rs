//! The invariants: what must hold all along ([`requests`], [`crate::machines`]), and what must hold at rest
//! ([`rest`]). `docs/dev/invariants.md` lists them; a test checks that it lists each.

pub mod requests;
pub mod rest;

/// At most one container runs for a slot: a namespace and a name of an instance.
pub const ONE_PER_SLOT: &str = "one-per-slot";
/// A container starts only with its quota granted and without scheduling gates.
pub const GRANTED: &str = "granted-before-run";
/// A controller deletes an object only with the UID or the version that it decided on.
pub const DELETES_NAME_UID: &str = "deletes-name-uid";
/// No request to a project's plane names another project.
pub const TENANTS: &str = "tenants-never-meet";
/// `observedGeneration` never exceeds `generation`, and never decreases.
pub const OBSERVED: &str = "observed-generation";
/// After the last fault the system comes to rest.
pub const RESTS: &str = "comes-to-rest";
/// At rest no process reads objects, lists or writes, apart from the heartbeats of the cells.
pub const SILENT: &str = "idle-is-silent";
/// At rest a workload has one deployment for each placement and city.
pub const DEPLOYMENTS: &str = "deployments-match-placements";
/// At rest each deployment has one copy on the hub and one in the cell of its city, with its content.
pub const COPIES: &str = "copies-match-deployments";
/// At rest a deployment has as many instances as it should, and its cell alone has them.
pub const INSTANCES: &str = "instances-match-replicas";
/// At rest the instances of the cell, their copies on the hub and their projections are the same.
pub const PROJECTIONS: &str = "projections-match-instances";
/// At rest an instance runs if and only if its quota is granted.
pub const RUNS_IF_GRANTED: &str = "granted-equals-running";
/// At rest the containers are those of the instances without gates.
pub const CONTAINERS: &str = "containers-match-instances";
/// At rest a city has a policy and a binding of rights in a hub namespace if and only if it has deployments.
pub const POLICIES: &str = "policies-match-deployments";
/// At rest every object that belongs to another one has it.
pub const NO_ORPHANS: &str = "no-orphans";
/// At rest no object is being deleted.
pub const NOTHING_STUCK: &str = "nothing-stuck";
/// At rest the counts in a status are those of the objects.
pub const COUNTS: &str = "counts-add-up";
/// At rest a bucket of quota has as much allocated as its claims hold, and never more than its limit was.
pub const BUCKETS: &str = "buckets-match-claims";
/// After everything is deleted nothing is left.
pub const NOTHING_LEFT: &str = "nothing-left";

/// A container runs only while its project shows the workload, unless an event says that it may be left.
pub const NOTHING_UNSEEN: &str = "nothing-runs-unseen";

/// All ids.
pub const ALL: &[&str] = &[
    ONE_PER_SLOT,
    GRANTED,
    DELETES_NAME_UID,
    TENANTS,
    OBSERVED,
    RESTS,
    SILENT,
    DEPLOYMENTS,
    COPIES,
    INSTANCES,
    PROJECTIONS,
    RUNS_IF_GRANTED,
    CONTAINERS,
    POLICIES,
    NO_ORPHANS,
    NOTHING_STUCK,
    COUNTS,
    BUCKETS,
    NOTHING_LEFT,
    NOTHING_UNSEEN,
];
