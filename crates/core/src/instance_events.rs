//! Events about an instance in its project: which change of its copy a user would ask about.
//!
//! An event has the reason of the condition `Ready`: it runs, it has stopped running and why, or waiting does
//! not start it. Steps on the way to a running instance are no events. A reason that stays the same with
//! another message, as with each restart of a crashing program, is the same event.

use polis_api::ObjectExt;
use polis_api::compute::Instance;
use polis_api::conditions::READY;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::rollout::StateEvent;
use crate::{conditions, ranking};

/// The event about a change of an instance; `before` is none for a new copy.
pub fn of_change(before: Option<&Instance>, after: &Instance) -> Option<StateEvent> {
    let was = before.and_then(ready);
    let is = ready(after).filter(|_| !after.is_deleting())?;
    let was_ready = was.is_some_and(|was| was.status == "True");
    let same = was.is_some_and(|was| (&was.status, &was.reason) == (&is.status, &is.reason));
    if same {
        return None;
    }
    let warning = is.status != "True";
    let reported = match warning {
        false => !was_ready,
        true => was_ready || ranking::needs_action(&is.reason),
    };
    let note = match is.message.as_str() {
        "" => format!("Ready is {} ({})", is.status, is.reason),
        message => message.to_owned(),
    };
    reported.then(|| StateEvent { warning, reason: is.reason.clone(), note })
}

fn ready(instance: &Instance) -> Option<&Condition> {
    conditions::find(&instance.status.as_ref()?.conditions, READY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{deleting, mk_condition, mk_deployment, mk_instance, with_conditions};

    fn mk(status: &str, reason: &str) -> Instance {
        with_conditions(mk_instance(&mk_deployment("web"), 0), vec![mk_condition("Ready", status, reason)])
    }

    #[test]
    fn starting_is_no_event_and_running_crashing_and_denials_are() {
        let (new, runs) = (mk("Unknown", "Pending"), mk("True", "Running"));
        let starts = mk("False", "Starting");
        let crashes = mk("False", "InstanceCrashing");
        let table = [
            ("created", None, &new, None),
            ("starts", Some(&new), &starts, None),
            ("runs", Some(&starts), &runs, Some((false, "Running"))),
            ("is shown when it runs", None, &runs, Some((false, "Running"))),
            ("runs on", Some(&runs), &runs, None),
            ("stops running", Some(&runs), &starts, Some((true, "Starting"))),
            ("crashes", Some(&starts), &crashes, Some((true, "InstanceCrashing"))),
            ("crashes again", Some(&crashes), &crashes, None),
            ("quota", Some(&new), &mk("False", "PendingQuota"), Some((true, "PendingQuota"))),
            ("image", Some(&new), &mk("False", "ImageUnavailable"), Some((true, "ImageUnavailable"))),
            (
                "network",
                Some(&new),
                &mk("False", "NetworkFailedToCreate"),
                Some((true, "NetworkFailedToCreate")),
            ),
            ("is deleted", Some(&runs), &deleting(mk("False", "Stopping")), None),
        ];
        for (case, before, after, expected) in table {
            let event = of_change(before, after);
            let event = event.as_ref().map(|event| (event.warning, event.reason.as_str()));
            assert_eq!(event, expected, "{case}");
        }
    }

    #[test]
    fn the_note_is_the_message_which_has_the_exit_code() {
        let mut crashes = mk("False", "InstanceCrashing");
        let message = "container app keeps exiting: restart 3; last exit: exit code 1";
        crashes.status.as_mut().unwrap().conditions[0].message = message.into();
        assert_eq!(of_change(None, &crashes).unwrap().note, message);
        assert_eq!(of_change(None, &mk("True", "Running")).unwrap().note, "Ready is True (Running)");
    }
}
