//! The two webhooks: one fills in, one judges.

use bytes::Bytes;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use polis_api::compute::Workload;
use polis_core::admission;
use polis_core::owner;
use polis_engine::Metrics;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::access;
use crate::metrics::Counts;
use crate::project::Projects;
use crate::review::{self, Request, Resource, Unreadable, plain};
use crate::service::{MUTATE, VALIDATE};
use crate::verdict::Refusal;

/// The admission webhooks. Cheap to clone.
#[derive(Clone)]
pub struct Webhook {
    projects: Projects,
    counts: Counts,
}

impl Webhook {
    /// Webhooks for the workloads of these projects, counted in `metrics`.
    pub fn new(projects: Projects, metrics: &Metrics) -> Self {
        Self { projects, counts: Counts::register(metrics) }
    }

    /// Answers a review that was posted to a path, with a review. The error is for what is no review at all.
    pub async fn answer(&self, path: &str, body: &[u8]) -> Result<Bytes, Refusal> {
        let started = Instant::now();
        let webhook = match path {
            MUTATE => "mutate",
            VALIDATE => "validate",
            _ => {
                return Err(Refusal::not_found(format!(
                    "no webhook is at {path}; try {MUTATE} or {VALIDATE}"
                )));
            }
        };
        let request = match Request::read(body) {
            Ok(request) => request,
            Err(Unreadable { uid: Some(uid), refusal }) => {
                self.counts.answered(webhook, refusal.reason, started.elapsed());
                return Ok(review::refused(&uid, &refusal));
            }
            Err(Unreadable { uid: None, refusal }) => return Err(refusal),
        };
        let verdict = match path {
            MUTATE => mutate(&request),
            _ => self.validate(&request).await.map(|()| Patch::default()),
        };
        let answer = match &verdict {
            Ok(patch) => review::allowed(&request.uid, patch),
            Err(refusal) => {
                tracing::debug!(user = ?request.user_info.username, namespace = request.namespace, why = refusal.message, "refused");
                review::refused(&request.uid, refusal)
            }
        };
        let outcome = verdict.as_ref().map_or_else(|refusal| refusal.reason, |_| "Allowed");
        self.counts.answered(webhook, outcome, started.elapsed());
        Ok(answer)
    }

    async fn validate(&self, request: &Request) -> Result<(), Refusal> {
        let Subject::Judged { before } = subject(request)? else { return Ok(()) };
        let workload = workload(&request.object, request)?;
        // One that cannot be read was stored by another rule; against it, everything is new.
        let before = before.and_then(|before| Workload::deserialize(before).ok());
        let project = self.projects.of(&request.user_info).await?;
        let cities = project.cities().map_err(|error| Refusal::unavailable(error.to_string()))?;
        let mut errors = admission::errors(&workload, before.as_ref(), &cities);
        let uses = admission::uses(&workload, before.as_ref());
        if !uses.is_empty() {
            let answers = access::ask(&project.plane, &request.user_info, uses).await;
            errors.extend(admission::access_errors(answers));
        }
        let name =
            Some(owner::name(&workload.metadata)).filter(|name| !name.is_empty()).unwrap_or(&request.name);
        Refusal::of(name, &errors).map_or(Ok(()), Err)
    }
}

/// Fills in what the object leaves open. Runs before the schema is looked at, so the object may be anything.
fn mutate(request: &Request) -> Result<Patch, Refusal> {
    if let Subject::Exempt = subject(request)? {
        return Ok(Patch::default());
    }
    let put = |filled: admission::Filled| {
        let path = PointerBuf::parse(filled.pointer).map_err(|error| {
            Refusal::unavailable(format!("a default could not be written: {error}")) // a mistake of ours
        })?;
        Ok(PatchOperation::Add(AddOperation { path, value: filled.value }))
    };
    admission::defaults(&request.object).into_iter().map(put).collect::<Result<_, _>>().map(Patch)
}

/// What is to be done with a request.
#[derive(Debug, PartialEq)]
enum Subject<'a> {
    /// It changes nothing that is judged.
    Exempt,
    /// It is judged, against what was there before.
    Judged { before: Option<&'a Value> },
}

/// Sorts requests: what is no business of ours is refused, what changes no spec passes.
fn subject(request: &Request) -> Result<Subject<'_>, Refusal> {
    let Resource { group, version, resource } = &request.resource;
    if (group.as_str(), version.as_str(), resource.as_str())
        != ("compute.datumapis.com", "v1alpha", "workloads")
    {
        return Err(Refusal::bad_request(format!(
            "{resource}.{group}/{version} is not judged here; this webhook is for workloads.compute.datumapis.com/v1alpha"
        )));
    }
    match (request.operation.as_str(), request.sub_resource.as_str()) {
        ("DELETE", "") | (_, "status") => Ok(Subject::Exempt),
        ("CREATE", "") => Ok(Subject::Judged { before: None }),
        ("UPDATE", "") => {
            let before = &request.old_object;
            if !before.is_object() {
                return Err(Refusal::bad_request("the review of an UPDATE has no oldObject"));
            }
            // Compared as they are: an object that was stored by another rule must still be able to lose its finalizers.
            let leaving = before.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null());
            let same = before.get("spec") == request.object.get("spec");
            Ok(if leaving || same { Subject::Exempt } else { Subject::Judged { before: Some(before) } })
        }
        (operation, sub) => Err(Refusal::bad_request(format!(
            "{operation} of {:?} is not judged here; this webhook is for CREATE and UPDATE",
            format!("workloads/{sub}").trim_end_matches('/')
        ))),
    }
}

/// The workload of a review. Its namespace is the one that the API server says.
fn workload(object: &Value, request: &Request) -> Result<Workload, Refusal> {
    let mut workload = Workload::deserialize(object).map_err(|error| {
        let text = object.to_string(); // one line, in which the field can be found
        let told = review::decode::<Workload>(text.as_bytes()).err().unwrap_or_else(|| plain(&error));
        Refusal::bad_request(format!("the workload cannot be read: {told}"))
    })?;
    workload.metadata.namespace = Some(request.namespace.clone());
    Ok(workload)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_request(operation: &str, object: Value, old: Value) -> Request {
        let request = json!({
            "uid": "7", "operation": operation, "namespace": "shop", "object": object, "oldObject": old,
            "resource": {"group": "compute.datumapis.com", "version": "v1alpha", "resource": "workloads"},
        });
        serde_json::from_value(request).unwrap()
    }

    #[test]
    fn what_changes_no_spec_passes_whatever_it_is() {
        let spec = json!({"anything": [1]});
        let old = json!({"spec": spec, "metadata": {"finalizers": ["f"]}});
        let request = mk_request("UPDATE", json!({"spec": spec, "metadata": {}}), old);
        assert_eq!(subject(&request), Ok(Subject::Exempt));
        let leaving = json!({"spec": 1, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(subject(&mk_request("UPDATE", json!({"spec": 2}), leaving)), Ok(Subject::Exempt));
        assert_eq!(subject(&mk_request("DELETE", Value::Null, json!({}))), Ok(Subject::Exempt));
    }

    #[test]
    fn a_changed_spec_is_judged_against_the_old_one() {
        let request = mk_request("UPDATE", json!({"spec": 1}), json!({"spec": 2}));
        assert_eq!(subject(&request), Ok(Subject::Judged { before: Some(&json!({"spec": 2})) }));
        assert_eq!(
            subject(&mk_request("CREATE", json!({}), Value::Null)),
            Ok(Subject::Judged { before: None })
        );
    }

    #[test]
    fn what_is_no_business_of_ours_is_refused_with_what_is() {
        let mut request = mk_request("CREATE", json!({}), Value::Null);
        request.resource.resource = "instances".into();
        assert!(
            subject(&request)
                .unwrap_err()
                .message
                .contains("instances.compute.datumapis.com/v1alpha is not judged")
        );
        for (operation, sub) in [("CONNECT", ""), ("", ""), ("UPDATE", "scale")] {
            let mut request = mk_request(operation, json!({}), json!({}));
            request.sub_resource = sub.into();
            assert_eq!(subject(&request).unwrap_err().code, 400, "{operation} {sub}");
        }
        assert!(subject(&mk_request("UPDATE", json!({}), Value::Null)).is_err());
    }

    #[test]
    fn an_object_that_is_no_workload_is_refused_with_the_field() {
        let object = json!({"metadata": {"name": "web"}, "spec": {"placements": [], "template": {"spec": {"runtime": {"resources": {"instanceType": 7}}}}}});
        let refusal = workload(&object, &mk_request("CREATE", Value::Null, Value::Null)).unwrap_err();
        assert!(
            refusal.message.contains("spec.template.spec.runtime.resources.instanceType"),
            "{}",
            refusal.message
        );
        assert!(refusal.message.contains("expected a string"), "{}", refusal.message);
    }

    #[test]
    fn an_open_instance_type_is_filled_in_by_a_patch() {
        let object = json!({"spec": {"template": {"spec": {"runtime": {"resources": {}}}}}});
        let patch = mutate(&mk_request("CREATE", object.clone(), Value::Null)).unwrap();
        let mut patched = object;
        json_patch::patch(&mut patched, &patch).unwrap();
        let resources = &patched["spec"]["template"]["spec"]["runtime"]["resources"];
        assert_eq!(resources["instanceType"], "datumcloud/d1-standard-2");
        assert_eq!(mutate(&mk_request("CREATE", json!("x"), Value::Null)), Ok(Patch::default()));
    }
}
