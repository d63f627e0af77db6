//! The table of event reasons on the reasons page. A test compares it with the reasons in `polis-api`.

/// The entry of an event reason.
struct EventEntry {
    reason: &'static str,
    /// The kind of the object that the event is about, and its plane.
    about: &'static str,
    /// Who must act: `none`, `you` or `platform operator`.
    action: &'static str,
    /// What has happened and what to do.
    meaning: &'static str,
}

const fn event(
    reason: &'static str,
    about: &'static str,
    action: &'static str,
    meaning: &'static str,
) -> EventEntry {
    EventEntry { reason, about, action, meaning }
}

const TABLE: &[EventEntry] = &[
    event("DeploymentCreated", "Workload", "none", "A deployment was created for a city."),
    event(
        "DeploymentRemoved",
        "Workload",
        "none",
        "A deployment was deleted, because no placement names its city any more.",
    ),
    event(
        "DeploymentNotOurs",
        "Workload",
        "you",
        "A deployment of another owner has the name that the workload needs. Delete that deployment, or rename the workload.",
    ),
    event(
        "CityInvalid",
        "WorkloadDeployment (project)",
        "you",
        "The city code is empty or not a valid label value. Use a city from `polis cities`.",
    ),
    event(
        "DeploymentMoved",
        "WorkloadDeployment (project)",
        "none",
        "Another cell of the city runs the deployment now.",
    ),
    event(
        "CityContested",
        "WorkloadDeployment (project)",
        "platform operator",
        "Two cities share the name of a propagation policy. Rename one of them.",
    ),
    event(
        "RecordContradicted",
        "WorkloadDeployment (project)",
        "platform operator",
        "The annotation of the deployment names the hub namespace of another tenant; nothing in it is changed. Check the objects in that namespace, then remove the annotation.",
    ),
    event(
        "HubNamespaceRelabelled",
        "WorkloadDeployment (project)",
        "platform operator",
        "The hub namespace of the deployment existed without the labels of its project, and the federator has written them. Find out which client created the namespace or removed the labels.",
    ),
    event(
        "HubCleanupFailed",
        "WorkloadDeployment (project)",
        "none",
        "The hub copy of a deleted deployment cannot be deleted yet. The federator retries; if it does not succeed, the hub does not respond: ask the platform operator.",
    ),
    event(
        "CellAbandoned",
        "WorkloadDeployment (project)",
        "none",
        "The deletion no longer waits for a cell: its city was abandoned, or the cell has left the federation. Instances may still run there; the federation deletes them when an abandoned cell returns.",
    ),
    event(
        "TeardownUnconfirmed",
        "WorkloadDeployment (project)",
        "platform operator",
        "The cell did not report in time that the instances of a deleted deployment have ended, and the deletion continues. Check the controllers of the cell.",
    ),
    event(
        "ProjectionBlocked",
        "Instance (project)",
        "you",
        "An Instance of this name runs for the project and cannot be shown, because this object has its name. Rename or delete this object.",
    ),
    event(
        "CityLabelLost",
        "Cluster (hub)",
        "platform operator",
        "The city label of the cluster was removed or changed, and every deployment of that city is deleted there. Restore the label if the change was a mistake.",
    ),
    event(
        "ProjectUnknown",
        "Namespace, WorkloadDeployment, Instance, PropagationPolicy (hub)",
        "platform operator",
        "The project of the object cannot be determined, so the object is not projected. Correct the labels of its namespace.",
    ),
    event("InstanceCreated", "WorkloadDeployment (cell)", "none", "An instance was created."),
    event(
        "InstanceNotCreated",
        "WorkloadDeployment (cell)",
        "none",
        "An instance could not be created. The controller retries; if it does not succeed, ask the platform operator.",
    ),
    event(
        "InstanceDeleted",
        "WorkloadDeployment (cell)",
        "none",
        "An instance was deleted: fewer are desired, the template has changed, or its name is not a slot of the deployment.",
    ),
    event(
        "InstanceNotOurs",
        "WorkloadDeployment (cell)",
        "platform operator",
        "An Instance of another owner has the name that the deployment needs. Delete or rename it.",
    ),
    event(
        "NameTooLong",
        "WorkloadDeployment (cell)",
        "you",
        "The name of an instance would have more than 63 characters. Use a shorter name for the workload.",
    ),
    event(
        "SourceGone",
        "WorkloadDeployment (hub)",
        "none",
        "The project has no deployment of this name, for example after the hub was restored from a backup. The hub copy is withdrawn.",
    ),
    event(
        "SpecOutdated",
        "WorkloadDeployment (cell)",
        "none",
        "The hub shows an older spec than the cell has acted on, for example after it was restored from a backup. The cell keeps its instances until the federator has written the newer spec.",
    ),
    event(
        "NotShownOnHub",
        "Instance (cell)",
        "platform operator",
        "The instance is not visible in its project: a label is missing, the project of the hub namespace cannot be determined, or another Instance on the hub has the name.",
    ),
    event(
        "UnknownOnHub",
        "Instance (cell)",
        "platform operator",
        "The hub has had no deployment for this instance for a minute. The instance keeps running and is not visible in its project. If the project has deleted it, delete the deployment in the cell.",
    ),
    event(
        "HubRefused",
        "Instance (cell)",
        "platform operator",
        "The hub rejects the copy of the instance. Check the permissions of the cell on the hub.",
    ),
    event(
        "HubUnreachable",
        "Instance (cell)",
        "none",
        "The deletion of the instance waits until its copy on the hub can be deleted; the hub does not respond.",
    ),
    event(
        "QuotaUnreachable",
        "Instance (cell)",
        "none",
        "The deletion of the instance waits until its quota claim in the project can be deleted.",
    ),
    event(
        "QuotaClaimOrphaned",
        "Instance (cell)",
        "platform operator",
        "The instance was deleted without its quota claim. Delete the claim in the project if it exists.",
    ),
];

/// The section about events of the page `docs/reference/reasons.md`.
pub(super) fn section() -> String {
    let mut section = String::from(
        "\n# Events\n\nEvents have the reason of a condition when they report its change. These reasons are of events only.\n\n\
         | reason | about | action | meaning |\n|---|---|---|---|\n",
    );
    for EventEntry { reason, about, action, meaning } in TABLE {
        section.push_str(&format!("| {reason} | {about} | {action} | {meaning} |\n"));
    }
    section
}

#[test]
fn every_event_reason_has_exactly_one_entry() {
    let known = crate::view::reasons::constants(include_str!("../../../api/src/events.rs"));
    let entries: std::collections::BTreeSet<&str> = TABLE.iter().map(|entry| entry.reason).collect();
    assert_eq!(entries.len(), TABLE.len(), "a reason has two entries");
    assert!(known.len() > 20, "the format of crates/api/src/events.rs has changed");
    assert_eq!(known, entries);
}
