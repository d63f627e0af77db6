//! Planted bugs: does the simulation find them?
//!
//! A planted bug changes what a controller sends, or what it receives, as a defect in its code would: a
//! deletion that is forgotten, a precondition that is missing, a gate that is not set, a watch that loses its
//! events. So the product needs no patches, and no test-only feature.

use polis_testing::{RecordedRequest, RequestVerb};
use serde_json::{Value, json};

use crate::plan::{HUB, MANAGEMENT, PLATFORM};

/// What a planted bug does to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Tampering {
    /// The request is never sent; its sender continues as if it had been processed.
    Forgotten,
    /// The request is sent with this body.
    Changed(Vec<u8>),
    /// Events of the watch are lost while the network is noisy; later ones arrive.
    EventsLost,
}

/// A planted bug.
#[derive(Debug)]
pub struct PlantedBug {
    /// Its name.
    pub name: &'static str,
    /// What the controller does wrong.
    pub about: &'static str,
    tamper: fn(&Sent<'_>) -> Option<Tampering>,
}

impl PartialEq for PlantedBug {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A request that a process is about to send.
struct Sent<'a> {
    process: &'a str,
    request: &'a RecordedRequest,
    body: &'a [u8],
}

impl Sent<'_> {
    fn is(&self, verb: RequestVerb, resource: &str) -> bool {
        self.request.verb == verb && self.request.resource == resource
    }

    fn is_in_cell(&self) -> bool {
        !self.is_in_project() && self.request.plane != HUB && self.request.plane != PLATFORM
    }

    fn is_in_project(&self) -> bool {
        self.request.plane.starts_with("tenant-")
    }

    /// A deletion of this resource that is forgotten.
    fn forgets(&self, resource: &str) -> Option<Tampering> {
        self.is(RequestVerb::Delete, resource).then_some(Tampering::Forgotten)
    }

    /// The body with a change.
    fn changed(&self, change: impl FnOnce(&mut Value)) -> Option<Tampering> {
        let mut body: Value = serde_json::from_slice(self.body).ok()?;
        change(&mut body);
        Some(Tampering::Changed(body.to_string().into_bytes()))
    }
}

impl PlantedBug {
    /// What the bug does to a request.
    pub fn tamper(&self, process: &str, request: &RecordedRequest, body: &[u8]) -> Option<Tampering> {
        (self.tamper)(&Sent { process, request, body })
    }
}

/// All planted bugs.
pub static ALL: &[PlantedBug] = &[
    PlantedBug {
        name: "policy-kept",
        about: "the federator does not delete the policy of a city without deployments",
        tamper: |sent| sent.forgets("propagationpolicies"),
    },
    PlantedBug {
        name: "rights-kept",
        about: "the rights of the cells of a city without deployments are not withdrawn",
        tamper: |sent| sent.forgets("rolebindings"),
    },
    PlantedBug {
        name: "hub-copy-kept",
        about: "the federator does not delete the hub copy of a deleted deployment",
        tamper: |sent| sent.forgets("workloaddeployments").filter(|_| sent.request.plane == HUB),
    },
    PlantedBug {
        name: "deployment-kept",
        about: "the workload controller does not delete the deployment of a city that was removed",
        tamper: |sent| sent.forgets("workloaddeployments").filter(|_| sent.is_in_project()),
    },
    PlantedBug {
        name: "member-copy-kept",
        about: "the federation does not delete the object on the member",
        tamper: |sent| sent.forgets("workloaddeployments").filter(|_| sent.is_in_cell()),
    },
    PlantedBug {
        name: "instance-kept",
        about: "the cell does not delete surplus instances",
        tamper: |sent| sent.forgets("instances").filter(|_| sent.is_in_cell()),
    },
    PlantedBug {
        name: "write-back-kept",
        about: "the cell does not delete the hub copy of an instance that is gone",
        tamper: |sent| sent.forgets("instances").filter(|_| sent.request.plane == HUB),
    },
    PlantedBug {
        name: "projection-kept",
        about: "the projector does not delete the projection of an instance that is gone",
        tamper: |sent| sent.forgets("instances").filter(|_| sent.is_in_project()),
    },
    PlantedBug {
        name: "claim-kept",
        about: "the cell does not delete the quota claim of an instance that is gone",
        tamper: |sent| sent.forgets("resourceclaims"),
    },
    PlantedBug {
        name: "work-kept",
        about: "the federation does not delete the Work of an object that is gone",
        tamper: |sent| sent.forgets("works"),
    },
    PlantedBug {
        name: "uid-not-compared",
        about: "deletions have no preconditions",
        tamper: |sent| {
            let deletes = sent.request.verb == RequestVerb::Delete;
            deletes
                .then(|| Tampering::Changed(b"{\"kind\":\"DeleteOptions\",\"apiVersion\":\"v1\"}".to_vec()))
        },
    },
    PlantedBug {
        name: "gates-missing",
        about: "the cell creates instances without scheduling gates",
        tamper: |sent| {
            let creates = sent.is(RequestVerb::Create, "instances") && sent.is_in_cell();
            creates.then(|| sent.changed(|body| body["spec"]["controller"]["schedulingGates"] = json!([])))?
        },
    },
    PlantedBug {
        name: "template-hash-wrong",
        about: "the cell records the hash of another template",
        tamper: |sent| {
            let creates = sent.is(RequestVerb::Create, "instances") && sent.is_in_cell();
            creates
                .then(|| sent.changed(|body| body["spec"]["controller"]["templateHash"] = json!("0000")))?
        },
    },
    PlantedBug {
        name: "workload-status-lost",
        about: "the workload controller does not write the status of workloads",
        tamper: |sent| sent.is(RequestVerb::Update, "workloads/status").then_some(Tampering::Forgotten),
    },
    PlantedBug {
        name: "generation-ahead",
        about: "the workload controller reports a generation that does not exist yet",
        tamper: |sent| {
            let reports = sent.is(RequestVerb::Update, "workloads/status");
            reports.then(|| sent.changed(|body| body["status"]["observedGeneration"] = json!(99)))?
        },
    },
    PlantedBug {
        name: "projection-status-lost",
        about: "the projector does not copy the status of instances",
        tamper: |sent| {
            let lost = sent.is(RequestVerb::Update, "instances/status") && sent.is_in_project();
            lost.then_some(Tampering::Forgotten)
        },
    },
    PlantedBug {
        name: "wrong-tenant",
        about: "the projector names another project in a projection",
        tamper: |sent| {
            let creates = sent.is(RequestVerb::Create, "instances") && sent.is_in_project();
            creates.then(|| {
                sent.changed(|body| {
                    body["metadata"]["annotations"]["example.com/from"] = json!("tenant-other")
                })
            })?
        },
    },
    PlantedBug {
        name: "projector-misses-events",
        about: "the watch of the management plane on the hub copies of instances loses its events",
        tamper: |sent| {
            let watches = sent.is(RequestVerb::Watch, "instances") && sent.process == MANAGEMENT;
            (watches && sent.request.plane == HUB).then_some(Tampering::EventsLost)
        },
    },
    PlantedBug {
        name: "cell-misses-events",
        about: "the watch of a cell on its deployments loses its events",
        tamper: |sent| {
            let watches = sent.is(RequestVerb::Watch, "workloaddeployments") && sent.is_in_cell();
            (watches && sent.process.starts_with("cell-")).then_some(Tampering::EventsLost)
        },
    },
];
