//! What every reason means, whose turn it is, and what to do: the table behind `polis why`.
//!
//! The same table makes the page `docs/reference/reasons.md`, and a test holds it against every reason in `polis-api`, so
//! that a new reason without an entry does not pass.

use super::Mood;

/// Who has to act next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Turn {
    /// Nobody: this is how it should be.
    Nobody,
    /// The owner of the workload.
    You,
    /// Polis: its controllers, by themselves.
    Polis,
    /// The federation between hub and cells.
    Federation,
    /// What runs instances in the cell.
    Provider,
    /// Those who run the platform.
    Operator,
}

impl Turn {
    /// For people.
    pub fn in_words(self) -> &'static str {
        match self {
            Turn::Nobody => "nobody's: this is how it should be",
            Turn::You => "yours",
            Turn::Polis => "Polis' own, no action is needed",
            Turn::Federation => "the federation's (hub to cell), no action of yours is needed",
            Turn::Provider => "the provider's in the cell, no action of yours is needed",
            Turn::Operator => "the platform operator's",
        }
    }
}

/// What is known about a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The reason, as it stands in conditions.
    pub reason: &'static str,
    /// Where it is seen: kind and condition.
    pub seen: &'static str,
    /// How well that is.
    pub mood: Mood,
    /// What it means.
    pub means: &'static str,
    /// Who has to act.
    pub turn: Turn,
    /// What to do.
    pub advice: &'static str,
}

/// The entry of a reason.
pub fn entry(reason: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.reason == reason)
}

/// How well a reason is. One that nobody knows may pass by itself.
pub fn mood(reason: &str) -> Mood {
    entry(reason).map_or(Mood::Moving, |entry| entry.mood)
}

const fn good(reason: &'static str, seen: &'static str, means: &'static str) -> Entry {
    Entry { reason, seen, mood: Mood::Good, means, turn: Turn::Nobody, advice: "Nothing to do." }
}

const fn moving(
    reason: &'static str,
    seen: &'static str,
    means: &'static str,
    turn: Turn,
    advice: &'static str,
) -> Entry {
    Entry { reason, seen, mood: Mood::Moving, means, turn, advice }
}

const fn stuck(
    reason: &'static str,
    seen: &'static str,
    means: &'static str,
    turn: Turn,
    advice: &'static str,
) -> Entry {
    Entry { reason, seen, mood: Mood::Stuck, means, turn, advice }
}

/// Every reason, by the object that it is seen on first.
pub const TABLE: &[Entry] = &[
    // === Workload ===
    good(
        "AvailablePlacementFound",
        "Workload Available",
        "At least one placement of the workload is available.",
    ),
    good(
        "AvailableDeploymentFound",
        "Workload placement Available",
        "At least one city of the placement is available.",
    ),
    moving(
        "NoAvailablePlacements",
        "Workload Available",
        "No placement is available yet, and none names a cause.",
        Turn::Polis,
        "Look at the cities with `polis status NAME`; if nothing moves for minutes, the controllers of the project are not running.",
    ),
    moving(
        "NoAvailableDeployments",
        "Workload placement Available",
        "No city of the placement is available yet, and none names a cause.",
        Turn::Polis,
        "Look at the cities with `polis status NAME`.",
    ),
    stuck(
        "NetworkNotFound",
        "Workload Available",
        "A network that the template names does not exist in the project.",
        Turn::You,
        "Create the network, or name one that exists with `polis deploy NAME --network N`.",
    ),
    stuck(
        "NoMatchingLocations",
        "Workload placement Available, LocationsBound",
        "The project may not use a city that the placement names. Codes are compared letter by letter: DFW and dfw are two cities.",
        Turn::You,
        "Choose from `polis cities`, or ask the operator to bind the location to the project.",
    ),
    good(
        "EveryLocationBound",
        "Workload placement LocationsBound",
        "The project may use every city of the placement again.",
    ),
    stuck(
        "LocationLost",
        "Workload placement LocationsBound",
        "The project may no longer use a city of the placement. What runs there goes on; nothing new is made.",
        Turn::You,
        "Take the city out of the placement to end what runs there, or ask the operator to bind the location again.",
    ),
    // === WorkloadDeployment ===
    good(
        "StableInstanceFound",
        "WorkloadDeployment Available",
        "At least one instance in the city is ready.",
    ),
    good(
        "ReplicasAvailable",
        "WorkloadDeployment ReplicasReady",
        "Nothing from outside holds the instances back.",
    ),
    moving(
        "ProvisioningInstances",
        "WorkloadDeployment Available",
        "Instances exist and none is ready yet.",
        Turn::Provider,
        "Look at the instances: each says what it waits for. `polis logs NAME` shows what they print.",
    ),
    moving(
        "ProvisioningNetwork",
        "WorkloadDeployment Available",
        "The network is being made ready in the city; instances wait for it.",
        Turn::Operator,
        "Wait a little. If it stays, the network service of the cell does not answer: the operator looks at its NetworkBinding.",
    ),
    stuck(
        "QuotaNotGranted",
        "WorkloadDeployment Available",
        "The project's quota refused some instances of the city.",
        Turn::You,
        "See what is used with `polis quota`; scale something down, or ask for more.",
    ),
    stuck(
        "CityCodeMismatch",
        "WorkloadDeployment Available",
        "The deployment reached a cell that serves another city, which refuses to run it.",
        Turn::Operator,
        "The city label of the cluster on the hub does not fit the cell's configuration; the operator corrects one of them.",
    ),
    stuck(
        "NoMatchingLocation",
        "WorkloadDeployment Available",
        "No location serves the city.",
        Turn::You,
        "Choose from `polis cities`, or ask the operator to offer the city.",
    ),
    moving(
        "ReferencedDataNotReady",
        "WorkloadDeployment Available",
        "Config maps or secrets that the template names have not arrived in the city.",
        Turn::Polis,
        "Wait a little. If it stays, check that they exist in the namespace of the workload.",
    ),
    stuck(
        "QuotaExceeded",
        "WorkloadDeployment ReplicasReady · Instance QuotaGranted · ResourceClaim Granted",
        "The project has used up its quota.",
        Turn::You,
        "See what is used with `polis quota`; scale something down, or ask for more.",
    ),
    moving(
        "AwaitingPropagation",
        "WorkloadDeployment ReplicasReady",
        "Config maps or secrets are on their way to the city.",
        Turn::Federation,
        "Wait a little. If it stays, the operator looks at the bindings on the hub.",
    ),
    // === Instance ===
    moving(
        "Pending",
        "Instance Programmed, Running, Ready",
        "Nothing has happened to the instance yet.",
        Turn::Provider,
        "Wait a little. If it stays, nothing in the cell runs instances: the operator looks at the runtime there.",
    ),
    moving(
        "PendingProgramming",
        "Instance Programmed",
        "The provider has seen the instance and not begun.",
        Turn::Provider,
        "Wait a little. If it stays, the operator looks at the provider in the cell.",
    ),
    moving(
        "ProgrammingInProgress",
        "Instance Programmed",
        "The provider is setting the instance up.",
        Turn::Provider,
        "Wait; pulling an image may take a while.",
    ),
    good("Programmed", "Instance Programmed · networking kinds", "The provider has taken the spec over."),
    stuck(
        "PendingQuota",
        "Instance Programmed, Running, Ready",
        "The project's quota refused the instance, so it is not started.",
        Turn::You,
        "See what is used with `polis quota`; scale something down, or ask for more. It starts by itself when there is room.",
    ),
    stuck(
        "ImageUnavailable",
        "Instance Programmed",
        "The image cannot be had.",
        Turn::You,
        "Check the spelling of the image and the credentials to pull it, then `polis deploy NAME --image I`. On `polis up`, use polis.local/hello or process:PROGRAM.",
    ),
    stuck(
        "InstanceCrashing",
        "Instance Running",
        "What the instance runs ends again and again.",
        Turn::You,
        "Read `polis logs INSTANCE`, repair it and deploy again, or go back with `polis rollout undo NAME`.",
    ),
    stuck(
        "ConfigurationError",
        "Instance Programmed",
        "The spec cannot be run here as it is written.",
        Turn::You,
        "The message names what is wrong; change it and deploy again.",
    ),
    good("Running", "Instance Running, Ready", "It runs."),
    good("Available", "Instance Available", "It runs, in the words of other providers."),
    moving(
        "Starting",
        "Instance Running",
        "It is being started; with ports, it is ready when the first one accepts.",
        Turn::Provider,
        "Wait. If it stays, the program does not listen on its first port: `polis logs INSTANCE`.",
    ),
    moving(
        "Stopping",
        "Instance Running",
        "It is being stopped.",
        Turn::Provider,
        "Wait; it is given time to end by itself.",
    ),
    moving(
        "Stopped",
        "Instance Running",
        "It is stopped.",
        Turn::Provider,
        "Wait: it is started again, or removed, by whoever stopped it.",
    ),
    moving(
        "Suspended",
        "Instance Running",
        "It is suspended: it exists and does not run.",
        Turn::Operator,
        "Whoever suspended the deployment resumes it.",
    ),
    moving(
        "SchedulingGatesPresent",
        "Instance Ready",
        "The instance may not start: its network or its quota is not settled yet.",
        Turn::Polis,
        "Wait a little. If it stays, the conditions of the instance say which gate is left.",
    ),
    stuck(
        "NetworkFailedToCreate",
        "Instance Ready · WorkloadDeployment Available",
        "The network service refused to give the instance a network.",
        Turn::You,
        "The message says why. Check the network of the template and that the project may use it in this city.",
    ),
    // === Quota ===
    moving(
        "PendingEvaluation",
        "Instance QuotaGranted · ResourceClaim Granted",
        "Quota has been asked for and is not decided.",
        Turn::Operator,
        "Wait a little. If it stays, the quota service does not answer.",
    ),
    good("QuotaAvailable", "Instance QuotaGranted · ResourceClaim Granted", "Quota is granted."),
    good("QuotaDisabled", "Instance QuotaGranted", "No quota is kept in this installation."),
    stuck(
        "ValidationFailed",
        "Instance QuotaGranted · ResourceClaim Granted · ResourceGrant Active",
        "The quota service finds the claim or grant wrong.",
        Turn::Operator,
        "The message says why; the registration of the resource and the claim do not fit together.",
    ),
    stuck(
        "QuotaNoBudget",
        "Instance QuotaGranted",
        "Nobody has given the project a budget for this resource.",
        Turn::Operator,
        "The operator grants one; `polis quota` shows it then.",
    ),
    moving(
        "QuotaBackendUnavailable",
        "Instance QuotaGranted",
        "The cell cannot reach the project's plane to ask for quota.",
        Turn::Operator,
        "It is tried again by itself. If it stays, the way from the cell to the project is broken.",
    ),
    stuck(
        "QuotaProjectNotFound",
        "Instance QuotaGranted",
        "The project that the instance belongs to does not exist any more.",
        Turn::Operator,
        "If the project was deleted, the instance goes with its hub namespace; else the operator restores the project.",
    ),
    stuck(
        "QuotaNamespaceNotFound",
        "Instance QuotaGranted",
        "The namespace of the workload does not exist in the project any more.",
        Turn::Operator,
        "If the namespace was deleted, the instance goes with it; else it is created again.",
    ),
    stuck(
        "QuotaMisconfigured",
        "Instance QuotaGranted",
        "The registration of the resource does not allow claims of instances.",
        Turn::Operator,
        "The operator corrects the ResourceRegistration.",
    ),
    stuck(
        "QuotaProjectIDUnresolvable",
        "Instance QuotaGranted",
        "The namespace of the instance does not say which project it belongs to.",
        Turn::Operator,
        "The labels of the hub namespace are missing or wrong; only the federator may write them.",
    ),
    // === Referenced data ===
    moving(
        "Resolving",
        "ReferencedDataReady",
        "The config maps and secrets that the template names are being looked up.",
        Turn::Polis,
        "Wait a little.",
    ),
    stuck(
        "SourceNotFound",
        "ReferencedDataReady",
        "A config map or secret that the template names does not exist.",
        Turn::You,
        "Create it in the namespace of the workload; the message names it.",
    ),
    stuck(
        "SourceTooLarge",
        "ReferencedDataReady",
        "A config map or secret is too large to travel to the cities.",
        Turn::You,
        "Make it smaller or split it.",
    ),
    stuck(
        "SourceUnauthorized",
        "ReferencedDataReady",
        "Polis may not read a config map or secret that the template names.",
        Turn::Operator,
        "The operator lets the controllers read it.",
    ),
    stuck(
        "SourceNameTooLong",
        "ReferencedDataReady",
        "A config map or secret has a name too long to travel to the cities.",
        Turn::You,
        "Give it a shorter name.",
    ),
    good("Ready", "ReferencedDataReady · networking kinds", "Done."),
    // === Networking kinds, in the cell ===
    good("NetworkContextReady", "NetworkBinding Ready", "The network is ready in the location."),
    moving(
        "NetworkContextNotReady",
        "NetworkBinding Ready",
        "The network is being made ready in the location.",
        Turn::Operator,
        "Wait a little. If it stays, the operator looks at the network service.",
    ),
    stuck(
        "LocationNotAvailable",
        "NetworkBinding Ready",
        "The location is not offered to the project.",
        Turn::Operator,
        "The operator binds the location to the project, or the workload leaves the city.",
    ),
    stuck(
        "ProjectUnresolved",
        "NetworkBinding Ready",
        "The network service does not know the project of the namespace.",
        Turn::Operator,
        "The labels of the namespace in the cell are missing or wrong.",
    ),
    good("SubnetReady", "SubnetClaim Ready", "Addresses are there."),
    // === Grants and registrations ===
    good("GrantActive", "ResourceGrant Active", "The grant counts."),
    moving(
        "GrantPending",
        "ResourceGrant Active",
        "The grant does not count yet.",
        Turn::Operator,
        "Wait a little. If it stays, the quota service does not answer.",
    ),
    good("RegistrationActive", "ResourceRegistration Active", "The resource is known to the quota service."),
    moving(
        "RegistrationPending",
        "ResourceRegistration Active",
        "The resource is not known to the quota service yet.",
        Turn::Operator,
        "Wait a little. If it stays, the quota service does not answer.",
    ),
    // === Projects and locations ===
    moving(
        "CleanupStarted",
        "Project ResourceCleanup",
        "The project is being deleted; what is on its plane has been told to go.",
        Turn::Polis,
        "Wait: everything that runs is ended first.",
    ),
    moving(
        "CleanupAwaitingCompletion",
        "Project ResourceCleanup",
        "The project is being deleted, and something on its plane is kept by its finalizers.",
        Turn::Polis,
        "Wait. If it stays, `polis why NAME` of what is left says which plane holds it.",
    ),
    good("CleanupComplete", "Project ResourceCleanup", "The plane of the deleted project is empty."),
    good("CellFound", "Location Ready · LocationBinding Available", "A cell serves the city."),
    // === Karmada, on the hub ===
    good("ClusterReady", "Cluster Ready", "The cell answers and is well."),
    stuck(
        "ClusterNotReady",
        "Cluster Ready",
        "The cell answers and is not well.",
        Turn::Operator,
        "What runs there goes on; changes wait. The operator looks at the cell.",
    ),
    stuck(
        "ClusterNotReachable",
        "Cluster Ready",
        "The cell does not answer the hub.",
        Turn::Operator,
        "What runs there goes on; changes wait until it answers again.",
    ),
    stuck(
        "ClusterStatusUnknown",
        "Cluster Ready",
        "Nothing has been heard of the cell's agent.",
        Turn::Operator,
        "What runs there goes on; changes wait until it is heard of again.",
    ),
    stuck(
        "StatusCollectionFailed",
        "Cluster Ready",
        "The cell answers and its state cannot be read.",
        Turn::Operator,
        "The operator checks the permissions of the hub in the cell.",
    ),
    good("AppliedSuccessful", "Work Applied", "The cell has the object."),
    stuck(
        "AppliedFailed",
        "Work Applied",
        "The cell refused the object.",
        Turn::Operator,
        "The message holds the cell's answer: a missing CRD, a conflict, or a permission.",
    ),
    stuck(
        "SuspendDispatching",
        "Work Dispatching",
        "A policy on the hub holds changes back.",
        Turn::Operator,
        "The operator lifts the suspension in the propagation policy.",
    ),
];

/// The page `docs/reference/reasons.md`.
#[cfg(test)]
pub fn page() -> String {
    let mut page = String::from(
        "# Reasons\n\n<!-- Generated from crates/cli/src/view/reasons.rs; `POLIS_WRITE_DOCS=1 cargo test --bin polis` writes it anew. -->\n\n\
         Every condition carries a reason: one word for programs. This page says what each means, whose turn it is, and what\n\
         to do. `polis why NAME` finds the ones that matter and says the same. A reason that waiting cures is *on the way*;\n\
         one that it does not cure is *blocked*.\n\n| reason | seen on | state |\n|---|---|---|\n",
    );
    let state = |mood| match mood {
        Mood::Good => "as wanted",
        Mood::Moving => "on the way",
        Mood::Stuck => "blocked",
    };
    for entry in TABLE {
        let anchor = entry.reason.to_lowercase();
        page.push_str(&format!(
            "| [{}](#{anchor}) | {} | {} |\n",
            entry.reason,
            entry.seen,
            state(entry.mood)
        ));
    }
    for entry in TABLE {
        page.push_str(&format!(
            "\n## {}\n\nSeen on: {}\n\n{} The turn is {}.\n\n{}\n",
            entry.reason,
            entry.seen,
            entry.means,
            entry.turn.in_words(),
            entry.advice
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every `pub const NAME: &str = "Reason";` of the room that holds reasons, read from its source: a list kept by hand
    /// would be forgotten together with the entry.
    fn known_reasons() -> BTreeSet<&'static str> {
        let source = include_str!("../../../api/src/reasons.rs");
        let values = source.lines().filter_map(|line| {
            let (_, value) = line.trim().strip_prefix("pub const ")?.split_once(": &str = \"")?;
            value.strip_suffix("\";")
        });
        values.chain([polis_core::ranking::NO_MATCHING_LOCATIONS]).collect()
    }

    #[test]
    fn every_reason_has_its_entry_and_no_entry_is_without_a_reason() {
        let entries: BTreeSet<&str> = TABLE.iter().map(|entry| entry.reason).collect();
        assert_eq!(entries.len(), TABLE.len(), "a reason stands twice");
        assert!(known_reasons().len() > 60, "the source of reasons is written in another way now");
        assert_eq!(known_reasons(), entries);
    }

    #[test]
    fn what_is_blocked_has_somebody_who_can_act_and_what_is_good_has_nobody() {
        for entry in TABLE {
            assert_eq!(entry.mood == Mood::Good, entry.turn == Turn::Nobody, "{}", entry.reason);
            let by_itself = matches!(entry.turn, Turn::Polis | Turn::Federation | Turn::Provider);
            assert!(entry.mood != Mood::Stuck || !by_itself, "{} is cured by nobody", entry.reason);
            assert!(entry.means.ends_with('.') && entry.advice.ends_with('.'), "{}", entry.reason);
        }
    }

    #[test]
    fn an_unknown_reason_may_pass_by_itself() {
        assert_eq!((entry("OfAnotherVersion"), mood("OfAnotherVersion")), (None, Mood::Moving));
    }
}
