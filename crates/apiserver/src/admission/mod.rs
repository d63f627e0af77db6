//! Admission control: namespace lifecycle, webhooks and ValidatingAdmissionPolicies.
//!
//! Policies and webhook configurations apply to the plane that holds them. Those in the plane of a shared
//! catalogue apply to every plane that shares it. A plane without any pays only the lookup in empty
//! collections.

mod configuration;
mod matching;
mod policy;
mod quarantine;
#[cfg(test)]
mod stored_tests;
mod webhook;

pub(crate) use configuration::{configuration_errors, prepare};
pub(crate) use policy::Policies;
pub(crate) use quarantine::Quarantine;
pub use webhook::{TlsWebhooks, WebhookCall, WebhookTransport};

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use polis_apimachinery::object;
use serde_json::{Value, json};

use crate::{
    access::user_info,
    http::DryRun,
    kinds::{Subresource, Version},
    plane::is_project,
    route::Verb,
    status::{StatusCause, StatusError},
    store::{Collection, Revision, Stored},
    verbs::Call,
};

/// Refuses a new object whose namespace does not exist or is being deleted.
pub(crate) fn namespace_accepts(call: &Call, object: &Value) -> Result<(), StatusError> {
    let Some(namespace) = call.namespace.as_deref().filter(|_| call.kind.namespaced) else { return Ok(()) };
    let Some(namespaces) = call.kinds.find("", "namespaces") else { return Ok(()) };
    let Some(stored) = call.core.store.view().get(&namespaces.collection(&call.plane.name), namespace) else {
        return Err(StatusError::not_found(&namespaces.group_resource(), namespace));
    };
    if stored.partial_meta().is_deleting() {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = StatusCause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".into(),
        };
        return Err(StatusError::forbidden(&call.kind.group_resource(), object::meta(object, "name"), &why)
            .with_causes([cause]));
    }
    Ok(())
}

/// A write request, as webhooks and policies see it.
pub(crate) struct Request<'a> {
    call: &'a Call,
    operation: &'static str,
    object: Option<&'a Value>,
    old: Option<&'a Value>,
}

impl<'a> Request<'a> {
    fn new(call: &'a Call, object: Option<&'a Value>, old: Option<&'a Value>) -> Self {
        let operation = match (object, old) {
            (None, _) => "DELETE",
            (Some(_), None) => "CREATE",
            (Some(_), Some(_)) => "UPDATE",
        };
        Self { call, operation, object, old }
    }

    fn subresource(&self) -> &'static str {
        match self.call.subresource {
            Some(Subresource::Status) => "status",
            Some(Subresource::Scale) => "scale",
            Some(Subresource::Finalize) => "finalize",
            Some(Subresource::Token) => "token",
            None => "",
        }
    }

    fn name(&self) -> &str {
        if self.call.subresource == Some(Subresource::Token) {
            return self.call.name.as_deref().unwrap_or_default();
        }
        self.object.or(self.old).map(|object| object::meta(object, "name")).unwrap_or_default()
    }

    /// The namespace object, where the request has one.
    fn namespace(&self) -> Option<Value> {
        let call = self.call;
        if call.kind.is("", "namespaces") {
            return self.object.or(self.old).cloned();
        }
        let name = call.namespace.as_deref()?;
        call.core
            .store
            .view()
            .get(&Collection::new(call.plane.name.clone(), "namespaces"), name)
            .map(|stored| stored.value())
    }

    /// The AdmissionRequest in `version`, without its objects.
    fn describe(&self, version: &Version, uid: &str) -> Value {
        let call = self.call;
        // The group of a TokenRequest is not that of its resource, service accounts.
        let group =
            |version: &Version| version.api_version.split_once('/').map_or("", |(group, _)| group).to_owned();
        let kind = |version: &Version| json!({"group": group(version), "version": version.name, "kind": call.kind.kind});
        let resource = |version: &Version| json!({"group": call.kind.group, "version": version.name, "resource": call.kind.plural});
        let options = match call.verb {
            Verb::Create => "CreateOptions",
            Verb::Delete | Verb::DeleteCollection => "DeleteOptions",
            Verb::Patch => "PatchOptions",
            _ => "UpdateOptions",
        };
        let mut request = json!({
            "uid": uid,
            "kind": kind(version),
            "resource": resource(version),
            "requestKind": kind(&call.version),
            "requestResource": resource(&call.version),
            "name": self.name(),
            "operation": self.operation,
            "userInfo": user_info(&call.user),
            "dryRun": call.options.dry_run == DryRun::All,
            "options": {"kind": options, "apiVersion": "meta.k8s.io/v1"},
        });
        if let Some(namespace) = &call.namespace {
            request["namespace"] = namespace.clone().into();
        }
        if call.kind.is("", "namespaces") {
            request["namespace"] = self.name().into();
        }
        let subresource = self.subresource();
        if !subresource.is_empty() {
            request["subResource"] = subresource.into();
            request["requestSubResource"] = subresource.into();
        }
        if !call.options.field_manager.is_empty() {
            request["options"]["fieldManager"] = call.options.field_manager.clone().into();
        }
        request
    }
}

/// A webhook configuration, policy or binding that applies to a request.
struct Configuration {
    /// The plane that holds it.
    plane: Arc<str>,
    name: Arc<str>,
    stored: Stored,
    object: Arc<Value>,
}

/// A cache of parsed configurations, by collection and name. An entry is valid for one revision.
#[derive(Default)]
pub(crate) struct Configurations(Mutex<HashMap<(Collection, Arc<str>), Read>>);

/// A parsed configuration and its revision.
type Read = (Revision, Arc<Value>);

impl Configurations {
    fn read(&self, collection: &Collection, name: &Arc<str>, stored: &Stored) -> Arc<Value> {
        let mut known = self.0.lock();
        match known.get(&(collection.clone(), name.clone())) {
            Some((revision, object)) if *revision == stored.revision() => object.clone(),
            _ => {
                let object = Arc::new(stored.value());
                known.insert((collection.clone(), name.clone()), (stored.revision(), object.clone()));
                object
            }
        }
    }
}

/// All configurations of a kind that apply to a request.
fn configurations(call: &Call, plural: &str) -> Vec<Configuration> {
    let mut planes = Vec::new();
    if applies_own(call) {
        planes.push(call.plane.name.clone());
    }
    if call.plane.catalogue.plane != call.plane.name {
        planes.push(call.plane.catalogue.plane.clone());
    }
    let view = call.core.store.view();
    let mut found = Vec::new();
    for plane in planes {
        let collection = Collection::new(plane.clone(), format!("{plural}.admissionregistration.k8s.io"));
        if view.count(&collection) > 0 {
            found.extend(view.all(&collection).into_iter().map(|(name, stored)| {
                let object = call.core.configurations.read(&collection, &name, &stored);
                Configuration { plane: plane.clone(), name, stored, object }
            }));
        }
    }
    found
}

/// Whether the configurations that the plane itself holds apply to a request. Those of a project are written
/// by a tenant: they never apply to the platform. An operator can suspend those of any plane.
fn applies_own(call: &Call) -> bool {
    let exempt = call.caller.platform && is_project(&call.plane.name);
    !exempt && !call.core.suspended.contains(&*call.plane.name)
}

/// Admission never applies to its own configurations: otherwise a broken one could not be repaired.
fn is_exempt(call: &Call) -> bool {
    call.kind.group == "admissionregistration.k8s.io"
        || call.kind.rules().is_some_and(|rules| rules.ephemeral)
}

/// Calls the mutating webhooks. `old` is the existing object.
pub(crate) async fn mutate(call: &Call, object: &mut Value, old: Option<&Value>) -> Result<(), StatusError> {
    if is_exempt(call) {
        return Ok(());
    }
    let mutated = webhook::mutate(call, object, old).await;
    if let Some(report) = call.core.quarantine.report(call) {
        report.await;
    }
    mutated
}

/// Evaluates the policies and calls the validating webhooks. `new` is `None` for a delete.
pub(crate) async fn validate(
    call: &Call,
    new: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), StatusError> {
    if is_exempt(call) {
        return Ok(());
    }
    let request = Request::new(call, new, old);
    let mut admitted = policy::evaluate(&request);
    if admitted.is_ok() {
        admitted = webhook::validate(&request).await;
    }
    if let Some(report) = call.core.quarantine.report(call) {
        report.await;
    }
    admitted
}
