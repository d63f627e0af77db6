//! Invariants of single requests, checked when a process sends a request and when a server has processed it.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use polis_testing::{RecordedRequest, RequestVerb};
use serde_json::Value;

use super::{DELETES_NAME_UID, OBSERVED, TENANTS};
use crate::journal::Journal;
use crate::plan::{HUB, PLATFORM};

/// Prefix of the names of projects, so that a name in a body is found.
const TENANT: &str = "tenant-";

/// Checks requests.
pub struct RequestInvariants {
    journal: Journal,
    /// `observedGeneration` by plane and UID.
    observed: Mutex<BTreeMap<(String, String), i64>>,
}

impl RequestInvariants {
    /// Reports to this journal.
    pub fn new(journal: Journal) -> Self {
        Self { journal, observed: Mutex::default() }
    }

    /// Checks a request that a process sends.
    pub fn sent(&self, process: &str, request: &RecordedRequest, body: &[u8]) {
        if request.verb == RequestVerb::Delete && !has_preconditions(body) {
            let found = format!("{process} sends to {}: {request} without a precondition", request.plane);
            self.journal.violate(DELETES_NAME_UID, found);
        }
        if request.verb.is_write()
            && let Some(other) = foreign_project(&request.plane, &String::from_utf8_lossy(body))
        {
            let found = format!("{process} sends to {}: {request} names project {other}", request.plane);
            self.journal.violate(TENANTS, found);
        }
    }

    /// Checks the object that a successful write returned.
    pub fn written(&self, process: &str, request: &RecordedRequest, content: &[u8]) {
        // On the hub the generation is that of the copy, and the status that of the cell.
        let resource = request.resource.split('/').next().unwrap_or_default();
        let compared = request.plane != HUB && matches!(resource, "workloads" | "workloaddeployments");
        if !compared {
            return;
        }
        let Ok(object) = serde_json::from_slice::<Value>(content) else { return };
        let Some(observed) = object["status"]["observedGeneration"].as_i64() else { return };
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let place = format!("{process} on {}: {request}", request.plane);
        if observed > generation {
            let found = format!("{place} observed generation {observed} of {generation}");
            self.journal.violate(OBSERVED, found);
        }
        let before = self.observed.lock().insert((request.plane.clone(), uid), observed);
        if let Some(before) = before.filter(|before| *before > observed) {
            self.journal
                .violate(OBSERVED, format!("{place} went from generation {before} back to {observed}"));
        }
    }
}

fn has_preconditions(body: &[u8]) -> bool {
    let options: Value = serde_json::from_slice(body).unwrap_or_default();
    let preconditions = &options["preconditions"];
    preconditions["uid"].is_string() || preconditions["resourceVersion"].is_string()
}

/// The project that a text names and that is not that of the plane.
fn foreign_project(plane: &str, text: &str) -> Option<String> {
    if plane == HUB || plane == PLATFORM || !plane.starts_with(TENANT) {
        return None;
    }
    let named = text.match_indices(TENANT).map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
        &rest[..end]
    });
    named.into_iter().find(|name| *name != plane).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Detail;
    use http::Method;

    fn mk_request(plane: &str, method: Method, path: &str) -> RecordedRequest {
        let path = format!("/apis/compute.datumapis.com/v1alpha/namespaces/default/{path}");
        RecordedRequest::parse(plane, &method, &path, "", b"")
    }

    fn broken(check: impl FnOnce(&RequestInvariants)) -> Vec<&'static str> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let _inside = runtime.enter();
        let journal = Journal::new(Detail::Timeline);
        check(&RequestInvariants::new(journal.clone()));
        journal.violations().iter().map(|violation| violation.invariant).collect()
    }

    #[test]
    fn a_deletion_needs_a_precondition() {
        let request = mk_request("hub", Method::DELETE, "instances/a");
        assert_eq!(broken(|check| check.sent("management", &request, b"{}")), [DELETES_NAME_UID]);
        let exact = br#"{"preconditions":{"uid":"1"}}"#;
        assert_eq!(broken(|check| check.sent("management", &request, exact)), [""; 0]);
    }

    #[test]
    fn a_write_to_a_project_names_no_other_project() {
        let request = mk_request("tenant-alpha", Method::PUT, "instances/a");
        assert_eq!(broken(|check| check.sent("x", &request, br#"{"a":"tenant-beta"}"#)), [TENANTS]);
        assert_eq!(broken(|check| check.sent("x", &request, br#"{"a":"tenant-alpha"}"#)), [""; 0]);
    }

    #[test]
    fn the_observed_generation_only_grows_up_to_the_generation() {
        let request = mk_request("dfw", Method::PUT, "workloaddeployments/a/status");
        let object = |observed: i64| {
            let object = serde_json::json!({"metadata": {"uid": "1", "generation": 3},
                "status": {"observedGeneration": observed}});
            object.to_string().into_bytes()
        };
        let written = |all: &[i64]| {
            broken(|check| all.iter().for_each(|observed| check.written("x", &request, &object(*observed))))
        };
        assert_eq!(written(&[1, 2, 3]), [""; 0]);
        assert_eq!(written(&[2, 1]), [OBSERVED]);
        assert_eq!(written(&[4]), [OBSERVED]);
    }
}
