//! The two webhooks: defaulting and validation of Workloads.

use bytes::Bytes;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use polis_api::ObjectExt;
use polis_api::compute::Workload;
use polis_core::{admission, referenced_data};
use polis_engine::Metrics;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::access;
use crate::error::AdmissionError;
use crate::metrics::WebhookMetrics;
use crate::project_resolver::ProjectResolver;
use crate::review::{self, Request, Resource, ReviewError, plain};
use crate::service::{MUTATE_PATH, VALIDATE_PATH};

/// The admission webhooks. Cheap to clone.
#[derive(Clone)]
pub struct Webhook {
    projects: ProjectResolver,
    metrics: WebhookMetrics,
}

impl Webhook {
    /// Webhooks for the Workloads of these projects, with metrics in `metrics`.
    pub fn new(projects: ProjectResolver, metrics: &Metrics) -> Self {
        Self { projects, metrics: WebhookMetrics::register(metrics) }
    }

    /// Handles the AdmissionReview that was posted to a path, and returns an AdmissionReview. Returns an
    /// error if the path is unknown or the body is not an AdmissionReview.
    pub async fn review(&self, path: &str, body: &[u8]) -> Result<Bytes, AdmissionError> {
        let started = Instant::now();
        let webhook = match path {
            MUTATE_PATH => "mutate",
            VALIDATE_PATH => "validate",
            _ => {
                return Err(AdmissionError::not_found(format!(
                    "no webhook at {path}; use {MUTATE_PATH} or {VALIDATE_PATH}"
                )));
            }
        };
        let request = match Request::decode(body) {
            Ok(request) => request,
            Err(ReviewError { uid: Some(uid), error }) => {
                self.metrics.record(webhook, error.reason, started.elapsed());
                return Ok(review::denied(&uid, &error));
            }
            Err(ReviewError { uid: None, error }) => return Err(error),
        };
        let result = match path {
            MUTATE_PATH => mutate(&request),
            _ => self.validate(&request).await.map(|()| Patch::default()),
        };
        let response = match &result {
            Ok(patch) => review::allowed(&request.uid, patch),
            Err(error) => {
                tracing::debug!(user = ?request.user_info.username, namespace = request.namespace, why = error.message, "denied a request");
                review::denied(&request.uid, error)
            }
        };
        let outcome = result.as_ref().map_or_else(|error| error.reason, |_| "Allowed");
        self.metrics.record(webhook, outcome, started.elapsed());
        Ok(response)
    }

    async fn validate(&self, request: &Request) -> Result<(), AdmissionError> {
        let Scope::Checked { before } = scope(request)? else { return Ok(()) };
        let workload = workload(&request.object, request)?;
        // An old object that cannot be decoded was stored under another schema; then every field counts as
        // new.
        let before = before.and_then(|before| Workload::deserialize(before).ok());
        let project = self.projects.resolve(&request.user_info).await?;
        let cities = project.cities().map_err(|error| AdmissionError::unavailable(error.to_string()))?;
        let mut errors = admission::validate(&workload, before.as_ref(), &cities);
        let uses = admission::network_uses(&workload, before.as_ref());
        if !uses.is_empty() {
            let access = access::review_access(&project.plane, &request.user_info, uses).await;
            errors.extend(admission::access_errors(access));
        }
        let new = admission::new_references(&workload, before.as_ref());
        if !new.is_empty() {
            let all = referenced_data::references(&workload.spec.template.spec);
            let (user, namespace) = (&request.user_info, workload.namespace());
            let checked = access::check_references(&project.plane, user, namespace, all, &new).await;
            errors.extend(admission::reference_errors(&checked));
        }
        let name = Some(workload.name()).filter(|name| !name.is_empty()).unwrap_or(&request.name);
        AdmissionError::of(name, &errors).map_or(Ok(()), Err)
    }
}

/// Returns a patch with the missing defaults. Runs before schema validation, so the object may have any
/// shape.
fn mutate(request: &Request) -> Result<Patch, AdmissionError> {
    if let Scope::Exempt = scope(request)? {
        return Ok(Patch::default());
    }
    let add = |filled: admission::DefaultedField| {
        let path = PointerBuf::parse(filled.pointer).map_err(|error| {
            AdmissionError::unavailable(format!("failed to set a default: {error}")) // a bug in the webhook
        })?;
        Ok(PatchOperation::Add(AddOperation { path, value: filled.value }))
    };
    admission::defaults(&request.object).into_iter().map(add).collect::<Result<_, _>>().map(Patch)
}

/// Whether a request is checked.
#[derive(Debug, PartialEq)]
enum Scope<'a> {
    /// The request does not change a spec.
    Exempt,
    /// The request is checked, against the old object if there is one.
    Checked { before: Option<&'a Value> },
}

/// Decides whether a request is checked. Requests for other resources and operations are errors; requests
/// that do not change a spec are exempt.
fn scope(request: &Request) -> Result<Scope<'_>, AdmissionError> {
    let Resource { group, version, resource } = &request.resource;
    if (group.as_str(), version.as_str(), resource.as_str())
        != ("compute.datumapis.com", "v1alpha", "workloads")
    {
        return Err(AdmissionError::bad_request(format!(
            "this webhook does not handle {resource}.{group}/{version}; it handles workloads.compute.datumapis.com/v1alpha"
        )));
    }
    match (request.operation.as_str(), request.sub_resource.as_str()) {
        ("DELETE", "") | (_, "status") => Ok(Scope::Exempt),
        ("CREATE", "") => Ok(Scope::Checked { before: None }),
        ("UPDATE", "") => {
            let before = &request.old_object;
            if !before.is_object() {
                return Err(AdmissionError::bad_request("the AdmissionReview of an UPDATE has no oldObject"));
            }
            // Compared as JSON: an object that was stored under another schema must still be able to lose its
            // finalizers.
            let deleting = before.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null());
            let unchanged = before.get("spec") == request.object.get("spec");
            Ok(if deleting || unchanged { Scope::Exempt } else { Scope::Checked { before: Some(before) } })
        }
        (operation, subresource) => Err(AdmissionError::bad_request(format!(
            "this webhook does not handle {operation} of {:?}; it handles CREATE and UPDATE",
            format!("workloads/{subresource}").trim_end_matches('/')
        ))),
    }
}

/// Decodes the Workload of a review. The namespace of the request is authoritative.
fn workload(object: &Value, request: &Request) -> Result<Workload, AdmissionError> {
    let mut workload = Workload::deserialize(object).map_err(|error| {
        let text = object.to_string(); // one line, so that `decode` finds the field
        let message = review::decode::<Workload>(text.as_bytes()).err().unwrap_or_else(|| plain(&error));
        AdmissionError::bad_request(format!("failed to decode the workload: {message}"))
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
    fn a_request_that_does_not_change_the_spec_is_exempt() {
        let spec = json!({"anything": [1]});
        let old = json!({"spec": spec, "metadata": {"finalizers": ["f"]}});
        let request = mk_request("UPDATE", json!({"spec": spec, "metadata": {}}), old);
        assert_eq!(scope(&request), Ok(Scope::Exempt));
        let deleting = json!({"spec": 1, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(scope(&mk_request("UPDATE", json!({"spec": 2}), deleting)), Ok(Scope::Exempt));
        assert_eq!(scope(&mk_request("DELETE", Value::Null, json!({}))), Ok(Scope::Exempt));
    }

    #[test]
    fn a_changed_spec_is_checked_against_the_old_one() {
        let request = mk_request("UPDATE", json!({"spec": 1}), json!({"spec": 2}));
        assert_eq!(scope(&request), Ok(Scope::Checked { before: Some(&json!({"spec": 2})) }));
        assert_eq!(scope(&mk_request("CREATE", json!({}), Value::Null)), Ok(Scope::Checked { before: None }));
    }

    #[test]
    fn other_resources_and_operations_are_rejected() {
        let mut request = mk_request("CREATE", json!({}), Value::Null);
        request.resource.resource = "instances".into();
        assert!(
            scope(&request)
                .unwrap_err()
                .message
                .contains("does not handle instances.compute.datumapis.com/v1alpha")
        );
        for (operation, sub) in [("CONNECT", ""), ("", ""), ("UPDATE", "scale")] {
            let mut request = mk_request(operation, json!({}), json!({}));
            request.sub_resource = sub.into();
            assert_eq!(scope(&request).unwrap_err().code, 400, "{operation} {sub}");
        }
        assert!(scope(&mk_request("UPDATE", json!({}), Value::Null)).is_err());
    }

    #[test]
    fn an_object_that_is_not_a_workload_is_rejected_with_the_field() {
        let object = json!({"metadata": {"name": "web"}, "spec": {"placements": [], "template": {"spec": {"runtime": {"resources": {"instanceType": 7}}}}}});
        let error = workload(&object, &mk_request("CREATE", Value::Null, Value::Null)).unwrap_err();
        assert!(
            error.message.contains("spec.template.spec.runtime.resources.instanceType"),
            "{}",
            error.message
        );
        assert!(error.message.contains("expected a string"), "{}", error.message);
    }

    #[test]
    fn a_missing_instance_type_is_set_by_a_patch() {
        let object = json!({"spec": {"template": {"spec": {"runtime": {"resources": {}}}}}});
        let patch = mutate(&mk_request("CREATE", object.clone(), Value::Null)).unwrap();
        let mut patched = object;
        json_patch::patch(&mut patched, &patch).unwrap();
        let resources = &patched["spec"]["template"]["spec"]["runtime"]["resources"];
        assert_eq!(resources["instanceType"], "datumcloud/d1-standard-2");
        assert_eq!(mutate(&mk_request("CREATE", json!("x"), Value::Null)), Ok(Patch::default()));
    }
}
