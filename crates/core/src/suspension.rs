//! Suspension: an instance exists and does not run.
//!
//! The wish travels as an annotation from the project's deployment over the hub to the cell, because status never goes
//! that way. In the cell it becomes a flag in the status of each instance, which its provider obeys. Nothing is deleted;
//! quota and place are kept.

use polis_api::annotations::SUSPENDED;
use polis_api::compute::{Instance, InstanceStatus, WorkloadDeployment};

use crate::metadata;

/// Whether a deployment is to be suspended; `None` when nobody ever said.
pub fn wish(deployment: &WorkloadDeployment) -> Option<bool> {
    metadata::annotation(&deployment.metadata, SUSPENDED).map(|value| value == "true")
}

/// The status of an instance that follows the wish, or `None` when it does already.
pub fn status(instance: &Instance, deployment: &WorkloadDeployment) -> Option<InstanceStatus> {
    let wanted = wish(deployment) == Some(true);
    let standing = instance.status.as_ref().and_then(|status| status.suspended).unwrap_or(false);
    if standing == wanted {
        return None;
    }
    let mut status = instance.status.clone().unwrap_or_default();
    status.suspended = Some(wanted);
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mk_deployment, mk_instance, ready};

    fn wishing(value: Option<&str>) -> WorkloadDeployment {
        let mut deployment = mk_deployment("web");
        deployment.metadata.annotations = value.map(|value| metadata::map([(SUSPENDED, value)]));
        deployment
    }

    #[test]
    fn the_wish_becomes_a_flag_and_is_taken_back_when_it_ends() {
        let mut instance = ready(mk_instance(&mk_deployment("web"), 0));
        let before = instance.status.clone();
        instance.status = status(&instance, &wishing(Some("true")));
        assert_eq!(instance.status.as_ref().unwrap().suspended, Some(true));
        assert_eq!(instance.status.as_ref().unwrap().conditions, before.unwrap().conditions);
        assert_eq!(status(&instance, &wishing(Some("true"))), None);
        for ended in [None, Some("false"), Some("")] {
            assert_eq!(status(&instance, &wishing(ended)).unwrap().suspended, Some(false), "{ended:?}");
        }
    }

    #[test]
    fn without_a_wish_nothing_is_written() {
        assert_eq!(status(&mk_instance(&mk_deployment("web"), 0), &wishing(None)), None);
        assert_eq!(status(&mk_instance(&mk_deployment("web"), 0), &wishing(Some("false"))), None);
    }
}
