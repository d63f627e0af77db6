//! The stages of the propagation, project → hub → cell → instances → project, and of a removal: the first one
//! that is missing.

use super::*;

/// The finding about a city without a deployment in the project.
pub(super) fn no_deployment(evidence: &Evidence, site: &(String, String), about: &str) -> Finding {
    if let Some(cities) = evidence.cities.as_ref().filter(|cities| !cities.allows(&site.1)) {
        let mut finding = from_reason(about, "project", ranking::NO_MATCHING_LOCATIONS);
        finding.message = cities.describe();
        finding.since =
            evidence.snapshot.workload.as_ref().and_then(|workload| spec_changed(&workload.metadata));
        return finding;
    }
    let state = crate::view::tree::missing(&evidence.snapshot, site);
    if !state.reason.is_empty() && reasons::severity(&state.reason) == Severity::Blocked {
        let mut finding = from_reason(about, "project", &state.reason);
        (finding.message, finding.since) = (state.message, state.since);
        return finding;
    }
    Finding {
        since: evidence.snapshot.workload.as_ref().and_then(|workload| spec_changed(&workload.metadata)),
        ..without_reason(
            about,
            "project",
            "The deployment for this city has not been created yet.",
            Actor::Polis,
            "Wait. If it does not change, the management controllers are not running: ask the platform operator.",
        )
    }
}

/// The finding about a deployment that has not reached its cell.
pub(super) fn not_in_cell(
    evidence: &Evidence,
    deployment: &WorkloadDeployment,
    about: &str,
) -> Option<Finding> {
    let (meta, name) = (&deployment.metadata, deployment.name());
    let made = meta.creation_timestamp.as_ref().map(|time| time.0);
    let waiting = |finding: Finding| Some(Finding { since: made, ..finding });
    // A deployment with a status from the cell has reached it.
    let reported = deployment.status.as_ref().is_some_and(|status| !status.conditions.is_empty());
    if !reported && deployment.annotation(annotations::FEDERATION_NAMESPACE).is_none() {
        return waiting(without_reason(
            about,
            "project",
            "The deployment has not been copied to the hub yet.",
            Actor::Polis,
            "Wait. If it does not change, the federator is not running or cannot reach the hub: ask the platform operator.",
        ));
    }
    if let Some(hub) = &evidence.hub {
        if !hub.deployments.iter().any(|copy| copy.name() == name) {
            return waiting(without_reason(
                about,
                "hub",
                "The hub has no copy of the deployment yet.",
                Actor::Polis,
                "Wait. If it does not change, the federator cannot write to the hub: ask the platform operator to read its log.",
            ));
        }
        if let Some(finding) = unbound(hub, name, about) {
            return Some(finding);
        }
    }
    let cell =
        evidence.cells.iter().find(|cell| cell.city.eq_ignore_ascii_case(&deployment.spec.city_code))?;
    if !cell.deployments.iter().any(|copy| copy.name() == name) {
        let bound = evidence.hub.iter().flat_map(|hub| hub.bindings.iter().flatten());
        let bound = bound.filter(|binding| binding.name() == names::binding("WorkloadDeployment", name));
        let scheduled =
            bound.filter_map(|binding| binding.status.as_ref()?.last_scheduled_time.clone()).next();
        let waiting =
            |finding: Finding| Some(Finding { since: scheduled.map(|time| time.0).or(made), ..finding });
        return waiting(without_reason(
            about,
            &cell.name,
            "The deployment is on the hub and not in the cell yet.",
            Actor::Federation,
            "Wait. If it does not change, the hub cannot reach the cell: ask the platform operator to check its Cluster on the hub.",
        ));
    }
    None
}

/// The finding about a deployment on the hub that is not scheduled to a cell.
pub(super) fn unbound(hub: &PlaneSnapshot, name: &str, about: &str) -> Option<Finding> {
    let bindings = hub.bindings.as_ref()?;
    let wanted = names::binding("WorkloadDeployment", name);
    let Some(binding) = bindings.iter().find(|binding| binding.name() == wanted) else {
        let copy = hub.deployments.iter().find(|copy| copy.name() == name);
        return Some(Finding {
            since: copy.and_then(|copy| copy.metadata.creation_timestamp.as_ref()).map(|time| time.0),
            ..without_reason(
                about,
                "hub",
                "The deployment on the hub has no ResourceBinding yet: no PropagationPolicy selects it.",
                Actor::Federation,
                "Wait. If it does not change, the PropagationPolicy of the city is missing on the hub: ask the platform operator.",
            )
        });
    };
    if !binding.spec.clusters.is_empty() {
        return None;
    }
    let status = binding.status.clone().unwrap_or_default();
    let scheduled = conditions::find(&status.conditions, SCHEDULED);
    Some(Finding {
        severity: Severity::Blocked,
        message: scheduled.map(|condition| condition.message.clone()).unwrap_or_default(),
        since: state::since(&binding.metadata, scheduled),
        ..without_reason(
            about,
            "hub",
            "No Cluster on the hub has the label of this city, so the deployment cannot be scheduled.",
            Actor::Operator,
            "Ask the platform operator to join a cell with the label of the city, or remove the city from the workload.",
        )
    })
}

/// The finding about a deployment that is being deleted, on the last plane that still has it.
pub(super) fn removal(evidence: &Evidence, deployment: &WorkloadDeployment) -> Finding {
    let name = deployment.name();
    let conditions = deployment.status.as_ref().map_or(&[][..], |status| &status.conditions);
    if let Some(withdrawn) = conditions::find(conditions, WITHDRAWN).filter(|c| c.status == "False") {
        let (city, meta) = (deployment.spec.city_code.as_str(), &deployment.metadata);
        return from_condition(city, "project", meta, withdrawn);
    }
    let holds = |plane: &&PlaneSnapshot| plane.deployments.iter().any(|copy| copy.name() == name);
    let since = deployment.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let city = deployment.spec.city_code.as_str();
    let finding = match (evidence.cells.iter().find(holds), evidence.hub.iter().find(holds)) {
        (Some(cell), _) => {
            let left = cell.instances.iter().filter(|i| snapshot::deployment_of(i) == name).count();
            without_reason(
                city,
                &cell.name,
                &format!("The deployment is being deleted; {left} instances are stopping in the cell."),
                Actor::Provider,
                "Wait for the grace period of the instances. If they do not stop, the provider in the cell does not respond: ask the platform operator.",
            )
        }
        (None, Some(_)) => without_reason(
            city,
            "hub",
            "The deployment is being deleted; it is gone from the cell and still on the hub.",
            Actor::Federation,
            "Wait. If it does not change, the hub cannot reach the cell: ask the platform operator.",
        ),
        (None, None) => without_reason(
            city,
            "project",
            "The deployment is being deleted.",
            Actor::Polis,
            "Wait until it is gone from the cell and the hub. If it does not change, the cell does not respond: ask the platform operator.",
        ),
    };
    Finding { since, ..finding }
}

/// The finding about a city with fewer instances than desired, all of them ready.
pub(super) fn missing_instances(
    evidence: &Evidence,
    deployment: &WorkloadDeployment,
    existing: &[&Instance],
    about: &str,
    plane: &str,
) -> Option<Finding> {
    let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
    let wanted = evidence.snapshot.wanted_at(&site) as usize;
    if existing.len() >= wanted {
        return None;
    }
    let status = deployment.status.clone().unwrap_or_default();
    let false_conditions = [AVAILABLE, REPLICAS_READY]
        .iter()
        .filter_map(|kind| conditions::find(&status.conditions, kind))
        .filter(|condition| condition.status != "True");
    if let Some(condition) = ranking::worst(false_conditions, |condition| condition.reason.as_str()) {
        return Some(from_condition(about, plane, &deployment.metadata, condition));
    }
    Some(Finding {
        since: last_progress(&deployment.metadata, existing),
        ..without_reason(
            about,
            plane,
            &format!(
                "{} of {wanted} instances exist. They are created one at a time, each after the previous one is ready.",
                existing.len()
            ),
            Actor::Polis,
            "Wait. If it does not change, the controllers of the cell are not running: ask the platform operator.",
        )
    })
}

/// When the spec of an object or one of its instances last changed: a rollout goes on from there.
pub(super) fn last_progress(meta: &ObjectMeta, existing: &[&Instance]) -> Option<Timestamp> {
    let created = existing.iter().filter_map(|instance| instance.metadata.creation_timestamp.as_ref());
    let ready = existing.iter().filter_map(|instance| {
        let ready = conditions::find(&instance.status.as_ref()?.conditions, READY)?;
        Some(ready.last_transition_time.0)
    });
    created.map(|time| time.0).chain(ready).chain(spec_changed(meta)).max()
}

/// The finding about an instance that is ready in the cell and not in the project.
pub(super) fn not_projected(
    evidence: &Evidence,
    deployment: &WorkloadDeployment,
    existing: &[&Instance],
    only: Option<&str>,
) -> Option<Finding> {
    let projected: Vec<&str> = evidence
        .snapshot
        .instances_of(deployment)
        .filter(|instance| instances::is_ready(instance))
        .map(|instance| instance.name())
        .collect();
    let missing = existing.iter().find(|instance| {
        let name = instance.name();
        only.is_none_or(|only| only == name) && !projected.contains(&name)
    })?;
    Some(Finding {
        since: last_progress(&ObjectMeta::default(), &[missing]),
        ..without_reason(
            missing.name(),
            "project",
            "The instance is ready in the cell, and its status has not been written back to the project yet.",
            Actor::Polis,
            "Wait. If it does not change, the write-back of the cell or the projector is not running: ask the platform operator.",
        )
    })
}

/// The finding about instances that are ready and have an older template.
pub(super) fn outdated(
    evidence: &Evidence,
    existing: &[&Instance],
    about: &str,
    plane: &str,
) -> Option<Finding> {
    let workload = evidence.snapshot.workload.as_ref()?;
    let hash = template::hash(&workload.spec.template);
    let old = existing
        .iter()
        .filter(|instance| !template::is_current(instance, &workload.spec.template, &hash))
        .count();
    (old > 0).then(|| Finding {
        since: last_progress(&workload.metadata, existing),
        ..without_reason(
            about,
            plane,
            &format!("{old} of {} instances still run the previous template.", existing.len()),
            Actor::Polis,
            "Wait: instances are replaced one at a time, the highest ordinal first. `polis rollout status NAME` shows the progress.",
        )
    })
}

/// When the spec was last written: the newest entry of `managedFields` that is not about the status.
pub(super) fn spec_changed(meta: &ObjectMeta) -> Option<Timestamp> {
    let written = meta.managed_fields.iter().flatten().filter(|entry| entry.subresource.is_none());
    let newest = written.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max();
    newest.or(meta.creation_timestamp.as_ref().map(|time| time.0))
}
