//! Suspension: the instances of a suspended deployment exist and do not run.
//!
//! The request is an annotation that is copied from the project's deployment to the hub and from there to the
//! cell, because status is never copied in that direction. The cell sets `status.suspended` of each instance,
//! and the provider stops the instance. Nothing is deleted: the instance keeps its quota and its slot.

use polis_api::ObjectExt;
use polis_api::annotations::SUSPENDED;
use polis_api::compute::{Instance, InstanceStatus, WorkloadDeployment};

/// Whether the annotation requests suspension; `None` without the annotation.
pub fn requested(deployment: &WorkloadDeployment) -> Option<bool> {
    deployment.annotation(SUSPENDED).map(|value| value == "true")
}

/// The status of an instance that matches the requested suspension, or `None` when it matches already.
pub fn status(instance: &Instance, deployment: &WorkloadDeployment) -> Option<InstanceStatus> {
    let desired = requested(deployment) == Some(true);
    let existing = instance.status.as_ref().and_then(|status| status.suspended).unwrap_or(false);
    if existing == desired {
        return None;
    }
    let mut status = instance.status.clone().unwrap_or_default();
    status.suspended = Some(desired);
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata;
    use crate::testing::{mk_deployment, mk_instance, ready};

    fn mk_annotated(value: Option<&str>) -> WorkloadDeployment {
        let mut deployment = mk_deployment("web");
        deployment.metadata.annotations = value.map(|value| metadata::map([(SUSPENDED, value)]));
        deployment
    }

    #[test]
    fn the_annotation_sets_the_status_flag_and_its_removal_clears_it() {
        let mut instance = ready(mk_instance(&mk_deployment("web"), 0));
        let before = instance.status.clone();
        instance.status = status(&instance, &mk_annotated(Some("true")));
        assert_eq!(instance.status.as_ref().unwrap().suspended, Some(true));
        assert_eq!(instance.status.as_ref().unwrap().conditions, before.unwrap().conditions);
        assert_eq!(status(&instance, &mk_annotated(Some("true"))), None);
        for ended in [None, Some("false"), Some("")] {
            assert_eq!(status(&instance, &mk_annotated(ended)).unwrap().suspended, Some(false), "{ended:?}");
        }
    }

    #[test]
    fn without_the_annotation_nothing_is_written() {
        assert_eq!(status(&mk_instance(&mk_deployment("web"), 0), &mk_annotated(None)), None);
        assert_eq!(status(&mk_instance(&mk_deployment("web"), 0), &mk_annotated(Some("false"))), None);
    }
}
