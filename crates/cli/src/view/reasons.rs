//! The table of condition reasons: what each means, who must act, and what to do.
//!
//! `polis why` reads it, and the page `docs/reference/reasons.md` is generated from it. A test compares it
//! with the reasons in `polis-api`, so that a new reason needs an entry.

use super::Severity;

/// Who must act next. The serialised names are part of the `-o json` output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Actor {
    /// No action is needed: this is the desired state.
    #[default]
    None,
    /// The owner of the workload.
    You,
    /// The controllers of Polis, without user action.
    Polis,
    /// The federation between hub and cells, without user action.
    Federation,
    /// The provider that runs instances in the cell, without user action.
    Provider,
    /// The platform operator.
    Operator,
}

impl Actor {
    /// The required action in the output of `polis why`.
    pub fn describe(self) -> &'static str {
        match self {
            Actor::None => "none",
            Actor::You => "you",
            Actor::Polis => "none (the controllers of Polis are working on it)",
            Actor::Federation => "none (the federation is working on it)",
            Actor::Provider => "none (the provider in the cell is working on it)",
            Actor::Operator => "platform operator",
        }
    }

    /// The required action on the reference page.
    #[cfg(test)]
    fn action(self) -> &'static str {
        match self {
            Actor::None | Actor::Polis | Actor::Federation | Actor::Provider => "none",
            Actor::You => "you",
            Actor::Operator => "platform operator",
        }
    }
}

/// The entry of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonEntry {
    /// The reason of a condition.
    pub reason: &'static str,
    /// Kinds and conditions that have it.
    pub seen: &'static str,
    /// How severe it is.
    pub severity: Severity,
    /// What it means and why it occurs.
    pub meaning: &'static str,
    /// Who must act.
    pub actor: Actor,
    /// What to do.
    pub advice: &'static str,
}

/// Finds the entry of a reason.
pub fn entry(reason: &str) -> Option<&'static ReasonEntry> {
    TABLE.iter().find(|entry| entry.reason == reason)
}

/// The severity of a reason. An unknown reason counts as progressing.
pub fn severity(reason: &str) -> Severity {
    entry(reason).map_or(Severity::Progressing, |entry| entry.severity)
}

const fn ok(reason: &'static str, seen: &'static str, meaning: &'static str) -> ReasonEntry {
    ReasonEntry {
        reason,
        seen,
        severity: Severity::Ok,
        meaning,
        actor: Actor::None,
        advice: "No action is needed.",
    }
}

const fn progressing(
    reason: &'static str,
    seen: &'static str,
    meaning: &'static str,
    actor: Actor,
    advice: &'static str,
) -> ReasonEntry {
    ReasonEntry { reason, seen, severity: Severity::Progressing, meaning, actor, advice }
}

const fn blocked(
    reason: &'static str,
    seen: &'static str,
    meaning: &'static str,
    actor: Actor,
    advice: &'static str,
) -> ReasonEntry {
    ReasonEntry { reason, seen, severity: Severity::Blocked, meaning, actor, advice }
}

/// Every reason, in the order of the reference page: by the kind that has it first.
pub const TABLE: &[ReasonEntry] = &[
    // === Workload ===
    ok(
        "AvailablePlacementFound",
        "Workload Available",
        "At least one placement of the workload is available.",
    ),
    ok(
        "AvailableDeploymentFound",
        "Workload placement Available",
        "At least one city of the placement is available.",
    ),
    progressing(
        "NoAvailablePlacements",
        "Workload Available",
        "No placement is available yet, and no placement reports a cause.",
        Actor::Polis,
        "See the cities with `polis status NAME`. If nothing changes for some minutes, the management controllers are not running: ask the platform operator.",
    ),
    progressing(
        "NoAvailableDeployments",
        "Workload placement Available",
        "No city of the placement is available yet, and no city reports a cause.",
        Actor::Polis,
        "See the cities with `polis status NAME`.",
    ),
    blocked(
        "NetworkNotFound",
        "Workload Available",
        "The template names a network that does not exist in the project.",
        Actor::You,
        "Create the network, or use an existing one with `polis deploy NAME --network N`.",
    ),
    blocked(
        "NoMatchingLocations",
        "Workload placement Available, LocationsBound",
        "The placement names a city that the project may not use. City codes are case-sensitive: DFW and dfw are two cities.",
        Actor::You,
        "Use a city from `polis cities`, or ask the platform operator to bind the location to the project.",
    ),
    ok(
        "EveryLocationBound",
        "Workload placement LocationsBound",
        "The project may use every city of the placement again.",
    ),
    blocked(
        "LocationLost",
        "Workload placement LocationsBound",
        "The project may no longer use a city of the placement. Existing instances keep running; no new ones are created.",
        Actor::You,
        "Remove the city from the placement to stop its instances, or ask the platform operator to bind the location again.",
    ),
    // === WorkloadDeployment ===
    ok("StableInstanceFound", "WorkloadDeployment Available", "At least one instance in the city is ready."),
    ok(
        "ReplicasAvailable",
        "WorkloadDeployment ReplicasReady",
        "No external cause, such as quota, holds back instances.",
    ),
    ok(
        "RolloutComplete",
        "Workload, WorkloadDeployment Progressing, Ready",
        "Every instance has the newest spec and is ready.",
    ),
    progressing(
        "RolloutInProgress",
        "Workload, WorkloadDeployment Progressing, Ready, Reconciling",
        "Instances are created or replaced, one at a time in each city.",
        Actor::Polis,
        "Wait: `polis rollout status NAME` shows the progress.",
    ),
    blocked(
        "ProgressDeadlineExceeded",
        "Workload, WorkloadDeployment Progressing, Degraded, Ready, Stalled",
        "The rollout has made no progress for as long as its state may last. The message has the state.",
        Actor::You,
        "See the state in the message. If an instance does not start, read `polis logs NAME`; otherwise ask the platform operator.",
    ),
    ok("AsExpected", "Workload, WorkloadDeployment Degraded", "Nothing is degraded."),
    blocked(
        "HubNamespaceTaken",
        "WorkloadDeployment Federated",
        "The hub namespace of the deployment has the labels of another project, so nothing of this project reaches its cells.",
        Actor::Operator,
        "Ask the platform operator to find out which client wrote the label of the namespace on the hub, and to correct it.",
    ),
    blocked(
        "HubNamespaceTerminating",
        "WorkloadDeployment Federated",
        "The hub namespace of the deployment is being deleted, and its copies with it. Polis creates it again when it is gone.",
        Actor::Operator,
        "Ask the platform operator to find out who deleted the namespace on the hub, and what holds it: objects with finalizers, or a cell that does not respond.",
    ),
    blocked(
        "HubRefused",
        "WorkloadDeployment Federated",
        "The hub refuses a request of the controllers, so a change of the workload does not reach its cells. The message has the request.",
        Actor::Operator,
        "Ask the platform operator to check the rights of the management plane on the hub (`polis manager --check-config=planes`), and the admission policies there.",
    ),
    progressing(
        "InstancesEnding",
        "WorkloadDeployment, Workload Withdrawn",
        "The workload is being deleted, and its cell is stopping the instances. The message counts them.",
        Actor::Provider,
        "Wait until the programs have stopped. After 5 minutes the deletion continues without the cell.",
    ),
    ok(
        "InstancesEnded",
        "WorkloadDeployment Withdrawn",
        "The workload is being deleted, and all instances of the deployment have ended.",
    ),
    progressing(
        "AwaitingCell",
        "WorkloadDeployment, Workload Withdrawn",
        "The workload is being deleted, and the cell has not confirmed that yet.",
        Actor::Federation,
        "If this lasts longer than a minute, ask the platform operator to check the controllers of the cell.",
    ),
    progressing(
        "AwaitingHub",
        "WorkloadDeployment, Workload Withdrawn",
        "The workload is being deleted, and the federation has not deleted all of it on the hub yet.",
        Actor::Federation,
        "If this lasts longer than a minute, ask the platform operator to check the federation on the hub.",
    ),
    blocked(
        "CellUnreachable",
        "WorkloadDeployment, Workload Withdrawn",
        "The workload is being deleted, and the API server of a cell does not respond to the hub. Its instances may still run, so the deletion waits.",
        Actor::Operator,
        "Ask the platform operator to restore the cell. If it never returns, let it go with `polis destroy NAME --abandon CITY` or the annotation `compute.datumapis.com/abandon: CITY` on the workload.",
    ),
    blocked(
        "HubUnreachable",
        "WorkloadDeployment, Workload Ready, Withdrawn",
        "The hub does not respond. Instances keep running, but no change and no deletion reaches the cities, and what the project shows of them is as old as the last word from the hub.",
        Actor::Operator,
        "Ask the platform operator to restore the hub.",
    ),
    blocked(
        "CellSilent",
        "WorkloadDeployment, Workload Ready",
        "Nothing has been heard of the cell for 150 seconds: its controllers do not report to the hub, or the hub does not reach its API server. Its instances may keep running, but what the project shows of them is as old as the last word.",
        Actor::Operator,
        "Ask the platform operator to check the cell: that its manager runs and reaches the hub, and that its Cluster on the hub is ready. To serve elsewhere meanwhile, add a city to the workload.",
    ),
    progressing(
        "ProvisioningInstances",
        "WorkloadDeployment Available",
        "Instances exist, but none is ready yet.",
        Actor::Provider,
        "See the conditions of the instances with `polis instances NAME -o wide`, and their output with `polis logs NAME`.",
    ),
    progressing(
        "ProvisioningNetwork",
        "WorkloadDeployment Available",
        "The network is not ready in the city yet. Instances start after it is.",
        Actor::Operator,
        "Wait. If it does not become ready, the network service of the cell does not respond: ask the platform operator to check the NetworkBinding in the cell.",
    ),
    blocked(
        "QuotaNotGranted",
        "WorkloadDeployment Available",
        "The quota of the project does not allow some instances of the city.",
        Actor::You,
        "See the usage with `polis quota`. Scale a workload down, or ask for more quota.",
    ),
    blocked(
        "CityCodeMismatch",
        "WorkloadDeployment Available",
        "The deployment reached a cell of another city, and the cell does not run it. The city label of the Cluster on the hub differs from the configuration of the cell.",
        Actor::Operator,
        "Ask the platform operator to correct the label or the configuration.",
    ),
    blocked(
        "NoMatchingLocation",
        "WorkloadDeployment Available",
        "No location serves the city.",
        Actor::You,
        "Use a city from `polis cities`, or ask the platform operator to add the city.",
    ),
    progressing(
        "ReferencedDataNotReady",
        "WorkloadDeployment Available",
        "ConfigMaps or Secrets that the template names are not in the city yet.",
        Actor::Polis,
        "Wait. If it does not change, check that they exist in the namespace of the workload.",
    ),
    blocked(
        "QuotaExceeded",
        "WorkloadDeployment ReplicasReady · Instance QuotaGranted · ResourceClaim Granted",
        "The quota of the project is used up.",
        Actor::You,
        "See the usage with `polis quota`. Scale a workload down, or ask for more quota.",
    ),
    progressing(
        "AwaitingPropagation",
        "WorkloadDeployment ReplicasReady",
        "The hub is copying ConfigMaps or Secrets to the city.",
        Actor::Federation,
        "Wait. If it does not change, ask the platform operator to check the ResourceBindings on the hub.",
    ),
    // === Instance ===
    progressing(
        "Pending",
        "Instance Programmed, Running, Ready",
        "The provider in the cell has not processed the instance yet.",
        Actor::Provider,
        "Wait. If it does not change, the cell has no running provider: ask the platform operator.",
    ),
    progressing(
        "PendingProgramming",
        "Instance Programmed",
        "The provider has accepted the instance and has not started to set it up.",
        Actor::Provider,
        "Wait. If it does not change, ask the platform operator to check the provider in the cell.",
    ),
    progressing(
        "ProgrammingInProgress",
        "Instance Programmed",
        "The provider is setting the instance up.",
        Actor::Provider,
        "Wait. Pulling an image may take some minutes.",
    ),
    ok("Programmed", "Instance Programmed · networking kinds", "The provider has set the object up."),
    blocked(
        "PendingQuota",
        "Instance Programmed, Running, Ready",
        "The instance is not started, because the quota of the project does not allow it.",
        Actor::You,
        "See the usage with `polis quota`. Scale a workload down, or ask for more quota. The instance starts when quota is available.",
    ),
    blocked(
        "ImageUnavailable",
        "Instance Programmed",
        "The image cannot be pulled.",
        Actor::You,
        "Check the name of the image and the credentials of its registry, then run `polis deploy NAME --image I`. `polis up` supports polis.local/hello and, with --allow-host-processes, process:PROGRAM.",
    ),
    blocked(
        "InstanceCrashing",
        "Instance Running",
        "A container of the instance exits repeatedly.",
        Actor::You,
        "Read `polis logs INSTANCE`. Correct the program and deploy it, or restore the previous template with `polis rollout undo NAME`.",
    ),
    blocked(
        "ConfigurationError",
        "Instance Programmed",
        "The provider cannot run the spec.",
        Actor::You,
        "Correct the field that the message names and deploy again.",
    ),
    blocked(
        "InsufficientCapacity",
        "Instance Programmed",
        "The cell has no machine with enough free capacity. The instance starts when there is one.",
        Actor::Operator,
        "Ask the platform operator for more capacity in the city, or place the workload in another city.",
    ),
    ok("ContainersReady", "Instance ContainersReady", "Every readiness probe of the instance succeeds."),
    progressing(
        "ContainersNotReady",
        "Instance ContainersReady, Ready",
        "The instance runs, and a readiness probe has not succeeded yet or fails. The message has the probe and its last failure.",
        Actor::You,
        "Wait, or read `polis logs INSTANCE` and correct the program or the probe.",
    ),
    ok("Running", "Instance Running, Ready", "The instance runs."),
    ok(
        "Available",
        "Instance Available",
        "The instance runs. Providers other than Polis' own report this reason.",
    ),
    progressing(
        "Starting",
        "Instance Running",
        "The instance is starting. An instance with ports is ready when its first port accepts connections.",
        Actor::Provider,
        "Wait. If it does not become ready, the program does not listen on its first port: read `polis logs INSTANCE`.",
    ),
    progressing(
        "Stopping",
        "Instance Running",
        "The instance is stopping.",
        Actor::Provider,
        "Wait for the grace period of its containers.",
    ),
    progressing(
        "Stopped",
        "Instance Running",
        "The instance is stopped.",
        Actor::Provider,
        "Wait. The provider restarts it, or Polis deletes it.",
    ),
    progressing(
        "Suspended",
        "Instance Running",
        "The instance exists and does not run, because its deployment is suspended.",
        Actor::Operator,
        "The platform operator resumes the deployment.",
    ),
    progressing(
        "SchedulingGatesPresent",
        "Instance Ready",
        "The instance has scheduling gates, because its network or its quota is not decided yet.",
        Actor::Polis,
        "Wait. If it does not start, see the remaining gates in the message.",
    ),
    blocked(
        "NetworkFailedToCreate",
        "Instance Ready · WorkloadDeployment Available",
        "The network service refused the network of the instance.",
        Actor::You,
        "See the cause in the message. Check the network of the template, and that the project may use it in this city.",
    ),
    // === Quota ===
    progressing(
        "PendingEvaluation",
        "Instance QuotaGranted · ResourceClaim Granted",
        "The quota service has not decided the claim yet.",
        Actor::Operator,
        "Wait. If it does not change, the quota service does not respond: ask the platform operator.",
    ),
    ok("QuotaAvailable", "Instance QuotaGranted · ResourceClaim Granted", "The quota is granted."),
    ok("QuotaDisabled", "Instance QuotaGranted", "This installation has no quota."),
    blocked(
        "ValidationFailed",
        "Instance QuotaGranted · ResourceClaim Granted · ResourceGrant Active",
        "The quota service rejected the claim or the grant, because it does not match the registration of the resource.",
        Actor::Operator,
        "Ask the platform operator to correct the registration; the message has the cause.",
    ),
    blocked(
        "QuotaNoBudget",
        "Instance QuotaGranted",
        "The project has no grant for this resource.",
        Actor::Operator,
        "Ask the platform operator for a ResourceGrant. `polis quota` lists it then.",
    ),
    progressing(
        "QuotaBackendUnavailable",
        "Instance QuotaGranted",
        "The cell cannot reach the project's plane to claim quota.",
        Actor::Operator,
        "Wait: the cell retries. If it does not change, ask the platform operator to check the connection from the cell to the project.",
    ),
    blocked(
        "QuotaProjectNotFound",
        "Instance QuotaGranted",
        "The project of the instance does not exist.",
        Actor::Operator,
        "If the project was deleted, the instance is deleted with its hub namespace. Otherwise ask the platform operator to restore the project.",
    ),
    blocked(
        "QuotaNamespaceNotFound",
        "Instance QuotaGranted",
        "The namespace of the workload does not exist in the project.",
        Actor::Operator,
        "If the namespace was deleted, the instance is deleted with it. Otherwise ask the platform operator to create it again.",
    ),
    blocked(
        "QuotaMisconfigured",
        "Instance QuotaGranted",
        "The registration of the resource does not allow claims for instances.",
        Actor::Operator,
        "Ask the platform operator to correct the ResourceRegistration.",
    ),
    blocked(
        "QuotaProjectIDUnresolvable",
        "Instance QuotaGranted",
        "The namespace of the instance does not name its project: labels of the hub namespace are missing or wrong.",
        Actor::Operator,
        "Ask the platform operator to check the labels. Only the federator may write them.",
    ),
    // === Referenced data ===
    progressing(
        "Resolving",
        "ReferencedDataReady",
        "Polis is reading the ConfigMaps and Secrets that the template names.",
        Actor::Polis,
        "Wait. If it does not change, check that they exist in the namespace of the workload.",
    ),
    blocked(
        "SourceNotFound",
        "ReferencedDataReady",
        "The template names a ConfigMap or Secret that does not exist.",
        Actor::You,
        "Create the object that the message names, in the namespace of the workload.",
    ),
    blocked(
        "KeyNotFound",
        "ReferencedDataReady",
        "A ConfigMap or Secret lacks a key that the template names.",
        Actor::You,
        "Add the key that the message names (`polis secrets set`, `polis config set`), or correct the template.",
    ),
    blocked(
        "SourceTooLarge",
        "ReferencedDataReady",
        "A ConfigMap or Secret is too large to be copied to the cities.",
        Actor::You,
        "Make it smaller, or split it.",
    ),
    blocked(
        "SourceUnauthorized",
        "ReferencedDataReady",
        "Polis has no permission to read a ConfigMap or Secret that the template names.",
        Actor::Operator,
        "Ask the platform operator to grant the permission to the controllers.",
    ),
    blocked(
        "SourceNameTooLong",
        "ReferencedDataReady",
        "The name of a ConfigMap or Secret is too long to be copied to the cities.",
        Actor::You,
        "Use a shorter name.",
    ),
    ok("Ready", "ReferencedDataReady · networking kinds", "The object is ready."),
    // === Networking kinds, in the cell ===
    ok("NetworkContextReady", "NetworkBinding Ready", "The network is ready in the location."),
    progressing(
        "NetworkContextNotReady",
        "NetworkBinding Ready",
        "The network is not ready in the location yet.",
        Actor::Operator,
        "Wait. If it does not become ready, ask the platform operator to check the network service.",
    ),
    blocked(
        "LocationNotAvailable",
        "NetworkBinding Ready",
        "The project may not use the location.",
        Actor::Operator,
        "Ask the platform operator to bind the location to the project, or remove the city from the workload.",
    ),
    blocked(
        "ProjectUnresolved",
        "NetworkBinding Ready",
        "The network service cannot find the project of the namespace: labels of the namespace in the cell are missing or wrong.",
        Actor::Operator,
        "Ask the platform operator to check the labels.",
    ),
    ok("SubnetReady", "SubnetClaim Ready", "The addresses of the subnet are assigned."),
    // === Grants and registrations ===
    ok("GrantActive", "ResourceGrant Active", "The grant is part of the limit."),
    progressing(
        "GrantPending",
        "ResourceGrant Active",
        "The grant is not part of the limit yet.",
        Actor::Operator,
        "Wait. If it does not change, the quota service does not respond: ask the platform operator.",
    ),
    ok(
        "RegistrationActive",
        "ResourceRegistration Active",
        "The quota service accepts claims for the resource.",
    ),
    progressing(
        "RegistrationPending",
        "ResourceRegistration Active",
        "The quota service does not accept claims for the resource yet.",
        Actor::Operator,
        "Wait. If it does not change, the quota service does not respond: ask the platform operator.",
    ),
    // === Projects and locations ===
    progressing(
        "CleanupStarted",
        "Project ResourceCleanup",
        "The project is being deleted, and the objects of its plane are being deleted first.",
        Actor::Polis,
        "Wait until its instances have stopped.",
    ),
    progressing(
        "CleanupAwaitingCompletion",
        "Project ResourceCleanup",
        "The project is being deleted, and objects of its plane still have finalizers.",
        Actor::Polis,
        "Wait. If it does not change, run `polis why NAME` for a remaining workload to see which plane blocks it.",
    ),
    ok("CleanupComplete", "Project ResourceCleanup", "The plane of the deleted project has no objects left."),
    ok("CellFound", "Location Ready · LocationBinding Available", "A cell serves the city."),
    // === Karmada, on the hub ===
    ok("ClusterReady", "Cluster Ready", "The API server of the cell is healthy."),
    blocked(
        "ClusterNotReady",
        "Cluster Ready",
        "The API server of the cell responds and is not healthy. Its instances keep running; changes are applied later.",
        Actor::Operator,
        "Ask the platform operator to check the cell.",
    ),
    blocked(
        "ClusterNotReachable",
        "Cluster Ready",
        "The hub cannot reach the API server of the cell. Its instances keep running; changes are applied later.",
        Actor::Operator,
        "Ask the platform operator to check the connection from the hub to the cell.",
    ),
    blocked(
        "ClusterStatusUnknown",
        "Cluster Ready",
        "The agent of the cell does not report its status. Its instances keep running; changes are applied later.",
        Actor::Operator,
        "Ask the platform operator to check the agent in the cell.",
    ),
    blocked(
        "StatusCollectionFailed",
        "Cluster Ready",
        "The hub reaches the cell and cannot read its status.",
        Actor::Operator,
        "Ask the platform operator to check the permissions of the hub in the cell.",
    ),
    ok("AppliedSuccessful", "Work Applied", "The object is applied in the cell."),
    blocked(
        "AppliedFailed",
        "Work Applied",
        "The cell refused the object. The message has the cause: a missing CRD, a conflict, or a permission.",
        Actor::Operator,
        "Ask the platform operator to remove the cause.",
    ),
    blocked(
        "SuspendDispatching",
        "Work Dispatching",
        "A propagation policy on the hub suspends the dispatch of changes.",
        Actor::Operator,
        "Ask the platform operator to resume it in the propagation policy.",
    ),
];

/// The page `docs/reference/reasons.md`.
#[cfg(test)]
pub fn page() -> String {
    let mut page = String::from(
        "# Reasons\n\n<!-- Generated from crates/cli/src/view/reasons.rs; update with `POLIS_WRITE_DOCS=1 cargo test --bin polis`. -->\n\n\
         Every condition has a reason. This page lists what each reason means, who must act, and what to do; `polis why NAME`\n\
         prints the same for the reasons of a workload. *Action: none* means that no user action is needed. A reason is *ok*,\n\
         *progressing* (it is expected to change without action) or *blocked* (it does not change without action).\n\n\
         | reason | seen on | state |\n|---|---|---|\n",
    );
    let state = |severity| match severity {
        Severity::Ok => "ok",
        Severity::Progressing => "progressing",
        Severity::Blocked => "blocked",
    };
    for entry in TABLE {
        let anchor = entry.reason.to_lowercase();
        page.push_str(&format!(
            "| [{}](#{anchor}) | {} | {} |\n",
            entry.reason,
            entry.seen,
            state(entry.severity)
        ));
    }
    for entry in TABLE {
        page.push_str(&format!(
            "\n## {}\n\nSeen on: {}\n\nAction: {}\n\n{} {}\n",
            entry.reason,
            entry.seen,
            entry.actor.action(),
            entry.meaning,
            entry.advice
        ));
    }
    page
}

/// Every `pub const NAME: &str = "Reason";` in a source file of `polis-api`. A second list would have to be
/// kept up to date by hand.
#[cfg(test)]
pub fn constants(source: &'static str) -> std::collections::BTreeSet<&'static str> {
    let values = source.lines().filter_map(|line| {
        let (_, value) = line.trim().strip_prefix("pub const ")?.split_once(": &str = \"")?;
        value.strip_suffix("\";")
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn known_reasons() -> BTreeSet<&'static str> {
        let mut reasons = constants(include_str!("../../../api/src/reasons.rs"));
        reasons.insert(polis_core::ranking::NO_MATCHING_LOCATIONS);
        reasons
    }

    #[test]
    fn every_reason_has_exactly_one_entry() {
        let entries: BTreeSet<&str> = TABLE.iter().map(|entry| entry.reason).collect();
        assert_eq!(entries.len(), TABLE.len(), "a reason has two entries");
        assert!(known_reasons().len() > 60, "the format of crates/api/src/reasons.rs has changed");
        assert_eq!(known_reasons(), entries);
    }

    #[test]
    fn a_blocked_reason_names_who_must_act_and_an_ok_reason_needs_no_action() {
        for entry in TABLE {
            assert_eq!(entry.severity == Severity::Ok, entry.actor == Actor::None, "{}", entry.reason);
            let automatic = matches!(entry.actor, Actor::Polis | Actor::Federation | Actor::Provider);
            assert!(entry.severity != Severity::Blocked || !automatic, "{} names no actor", entry.reason);
            assert!(entry.meaning.ends_with('.') && entry.advice.ends_with('.'), "{}", entry.reason);
        }
    }

    #[test]
    fn blocked_reasons_are_those_that_stop_a_rollout() {
        for entry in TABLE {
            let blocked = entry.severity == Severity::Blocked;
            assert_eq!(polis_core::ranking::needs_action(entry.reason), blocked, "{}", entry.reason);
        }
    }

    #[test]
    fn an_unknown_reason_is_progressing() {
        assert_eq!((entry("OfAnotherVersion"), severity("OfAnotherVersion")), (None, Severity::Progressing));
    }
}
