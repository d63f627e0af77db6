//! Quota: the ResourceClaim of an instance, and the `QuotaGranted` condition that follows from it.
//!
//! Each instance has one ResourceClaim, which is created once and never updated. It requests one instance,
//! and CPU (in millicores) and memory (in MiB) if the size is known. The size is the sum of the containers'
//! limits if every container sets both, else the requests of the instance, else the size of its instance
//! type. Sizes are rounded up: a claim never requests less than the instance uses.
//!
//! The platform never revisits a denied claim, and a claim that is denied on one resource keeps its
//! allocation of another. So a denied claim is deleted and created again: at once if it holds an allocation,
//! after two seconds if the project has headroom by now, otherwise after a back-off that doubles from one to
//! ten minutes. Waiting instances form a queue, oldest first. Quota is checked once, before an instance
//! starts; lowering it later stops no running instance.

mod claim;
mod queue;
mod size;

pub use claim::{
    ClaimAction, ClaimError, ClaimState, ResourceRefKind, condition, condition_after, desired_claim,
    is_from_same_cell, plan_claim, poll_interval, retry_at,
};
pub use queue::{Headroom, PendingClaim, QueueDecision, QueuePosition, QuotaQueue};
pub use size::{InstanceSize, SizeError, instance_size, instance_types, requests};
