//! Quota: what an instance claims in its project, and what the answer means.
//!
//! One ResourceClaim per instance, made once and never changed: always one instance, and processors (in thousandths)
//! and memory (in MiB) when its size is known. The size is the sum of the containers' limits when every container
//! states both, else what the instance itself requests, else what its type is known to have. Sizes are rounded up: a
//! claim never asks for less than is used.
//!
//! A denied claim stays denied for ever, whatever the project is allowed later; and a claim that is denied on one
//! resource goes on holding what it was granted of another. So a denied claim is given back and made anew: at once when
//! it holds anything or when the project has room for it, otherwise after a pause that doubles from one to ten minutes.
//! Those who wait stand in line, the oldest first. An instance that was let in stays in: a grant is a ticket, not a rent.

mod claim;
mod sizes;
mod turn;

pub use claim::{
    Answer, ClaimStep, Failure, ResourceRefKind, claim, claim_step, is_of, poll_after, retry_at, verdict,
    verdict_after,
};
pub use sizes::{SizeError, Sizes, instance_types, requests, sizes};
pub use turn::{Line, Place, Room, Turn, Waiter};
