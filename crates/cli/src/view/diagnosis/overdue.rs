//! A state that lasts longer than its deadline is stuck: the finding names who must act.

use std::time::Duration;

use jiff::Timestamp;
use polis_api::reasons;
use polis_core::deadlines;

use super::Finding;
use crate::view::Severity;
use crate::view::reasons::Actor;

/// The finding as it is at a time.
pub fn reviewed(mut finding: Finding, now: Timestamp) -> Finding {
    let Some(limit) = deadline(&finding.reason).filter(|_| finding.severity == Severity::Progressing) else {
        return finding;
    };
    let elapsed = finding.since.and_then(|since| Duration::try_from(now.duration_since(since)).ok());
    if elapsed.is_some_and(|elapsed| elapsed >= limit) {
        finding.severity = Severity::Blocked;
        finding.meaning =
            format!("{} This should not last longer than {} minutes.", finding.meaning, limit.as_secs() / 60);
        finding.actor = actor(&finding);
    }
    finding
}

/// How long a state may last; none for the two that have no deadline of their own. A suspension lasts as long
/// as its operator wants. A rollout may take hours; what reports it says itself when it makes no progress
/// (`ProgressDeadlineExceeded`).
pub fn deadline(reason: &str) -> Option<Duration> {
    (![reasons::SUSPENDED, reasons::ROLLOUT_IN_PROGRESS].contains(&reason)).then(|| deadlines::of(reason))
}

/// Who must act when the deadline is over.
fn actor(finding: &Finding) -> Actor {
    match finding.reason.as_str() {
        // The program does not open its port, or the data does not exist: the owner of the workload can look.
        reasons::STARTING
        | reasons::PROGRAMMING_IN_PROGRESS
        | reasons::PROVISIONING_INSTANCES
        | reasons::REFERENCED_DATA_NOT_READY
        | reasons::RESOLVING => Actor::You,
        _ => match finding.actor {
            Actor::You => Actor::You,
            _ => Actor::Operator,
        },
    }
}
