//! ValidatingAdmissionPolicies and their bindings.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Configuration, Request, configurations, matching};
use crate::{
    admission_cel::{Denial, Inputs, Policy},
    json,
    selector::LabelSelector,
    status::{Cause, Failure},
    store::{Revision, Stored},
};

/// Policies as compiled, by home and name; the revision says whether they are still the ones written.
#[derive(Default)]
pub(crate) struct Policies(Mutex<HashMap<Place, Compiled>>);

/// Home and name of a policy.
type Place = (Arc<str>, Arc<str>);

/// A policy of a revision; none if that revision does not compile.
type Compiled = (Revision, Option<Arc<Policy>>);

impl Policies {
    fn compiled(&self, home: &Arc<str>, name: &Arc<str>, stored: &Stored) -> Option<Arc<Policy>> {
        let mut known = self.0.lock();
        let entry = known.entry((home.clone(), name.clone())).or_insert((0, None));
        if entry.0 != stored.revision() {
            // What does not compile was refused when it was written; one that slipped through judges nothing.
            *entry = (stored.revision(), Policy::compile(&stored.value()).ok().map(Arc::new));
        }
        entry.1.clone()
    }
}

/// Asks every policy that is bound and covers the request.
pub(super) fn judge(request: &Request<'_>) -> Result<(), Failure> {
    let call = request.call;
    let policies = configurations(call, "validatingadmissionpolicies");
    if policies.is_empty() {
        return Ok(());
    }
    let bindings = configurations(call, "validatingadmissionpolicybindings");
    for Configuration { home, name, stored, object: policy } in &policies {
        let spec = &policy["spec"];
        let Some(version) = matching::resources_cover(&spec["matchConstraints"], request) else { continue };
        if spec["matchConstraints"]["resourceRules"].as_array().is_none_or(Vec::is_empty) {
            continue;
        }
        let bound = bindings
            .iter()
            .filter(|binding| binding.home == *home && binding.object["spec"]["policyName"] == **name);
        for Configuration { object: binding, .. } in bound {
            let reach = &binding["spec"]["matchResources"];
            if reach.is_object() && matching::resources_cover(reach, request).is_none() {
                continue;
            }
            let Some(compiled) = call.core.policies.compiled(home, name, stored) else { continue };
            let described = request.describe(&version, "");
            let namespace = request.namespace().filter(|_| call.kind.namespaced).unwrap_or(Value::Null);
            for params in params(request, spec, binding, name)? {
                let inputs = Inputs {
                    object: request.object.unwrap_or(&Value::Null),
                    old_object: request.old.unwrap_or(&Value::Null),
                    request: &described,
                    params: &params,
                    namespace_object: &namespace,
                };
                for denial in compiled.judge(&inputs).denials {
                    act(request, name, binding, &denial)?;
                }
            }
        }
    }
    Ok(())
}

/// The parameters that a binding names: one evaluation each, one without where the policy takes none.
fn params(request: &Request<'_>, spec: &Value, binding: &Value, policy: &str) -> Result<Vec<Value>, Failure> {
    let call = request.call;
    let (kind, reference) = (&spec["paramKind"], &binding["spec"]["paramRef"]);
    if !kind.is_object() || !reference.is_object() {
        return Ok(vec![Value::Null]);
    }
    let group = kind["apiVersion"]
        .as_str()
        .and_then(|version| version.split_once('/'))
        .map_or("", |(group, _)| group);
    let Some(found) = call.kinds.find_kind(group, kind["kind"].as_str().unwrap_or_default()) else {
        return missing(request, spec, binding, policy, "its parameter kind is not served");
    };
    let collection = found.collection(&call.plane.name);
    let namespace =
        reference["namespace"].as_str().or(call.namespace.as_deref()).filter(|_| found.namespaced);
    let view = call.core.store.view();
    let params: Vec<Value> = match reference["name"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => view
            .get(&collection, &found.path(namespace, name))
            .map(|stored| stored.value())
            .into_iter()
            .collect(),
        None => {
            let selector = LabelSelector::from_object(&reference["selector"])
                .unwrap_or_else(|_| LabelSelector::nothing());
            let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
            view.all(&collection)
                .into_iter()
                .filter(|(path, _)| path.starts_with(&prefix))
                .map(|(_, stored)| stored.value())
                .filter(|object| selector.matches_object(object))
                .collect()
        }
    };
    if params.is_empty() {
        return missing(
            request,
            spec,
            binding,
            policy,
            "no params found for policy binding with `Deny` parameterNotFoundAction",
        );
    }
    Ok(params)
}

fn missing(
    request: &Request<'_>,
    spec: &Value,
    binding: &Value,
    policy: &str,
    why: &str,
) -> Result<Vec<Value>, Failure> {
    if binding["spec"]["paramRef"]["parameterNotFoundAction"] == "Allow" || spec["failurePolicy"] == "Ignore"
    {
        return Ok(Vec::new());
    }
    let denial = Denial {
        validation: None,
        message: format!("failed to configure binding: {why}"),
        reason: "Invalid".into(),
    };
    act(request, policy, binding, &denial)?;
    Ok(Vec::new())
}

/// Does what the binding says about a denial.
fn act(request: &Request<'_>, policy: &str, binding: &Value, denial: &Denial) -> Result<(), Failure> {
    let name = json::meta(binding, "name");
    let actions = json::texts(&binding["spec"]["validationActions"]);
    if actions.iter().any(|action| action == "Warn") {
        request.call.warn(format!(
            "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{name}': {}",
            denial.message
        ));
    }
    if actions.iter().any(|action| action == "Audit") {
        let note = json!({"policy": policy, "binding": name, "message": denial.message, "validation": denial.validation});
        tracing::info!(%note, "a policy would have refused a request");
    }
    if !actions.iter().any(|action| action == "Deny") {
        return Ok(());
    }
    let why = format!(
        "ValidatingAdmissionPolicy '{policy}' with binding '{name}' denied request: {}",
        denial.message
    );
    let cause = Cause { reason: String::new(), message: why.clone(), field: String::new() };
    let failure = Failure::forbidden(&request.call.kind.about(), request.name(), &why).with_causes([cause]);
    Err(failure.with_reason(denial.code(), denial.reason.clone()))
}
