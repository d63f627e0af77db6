//! Evaluates ValidatingAdmissionPolicies and their bindings.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use parking_lot::Mutex;
use polis_apimachinery::{
    admission_policy::{CompiledPolicy, Denial, PolicyInputs},
    object,
    selector::LabelSelector,
};
use serde_json::{Value, json};

use super::{
    Configuration, Request, configurations, matching,
    quarantine::{HardFailure, QUARANTINED, Subject},
};
use crate::{
    server::Core,
    status::{StatusCause, StatusError},
    store::{Revision, Stored},
};

/// A cache of compiled policies, by plane and name. An entry is valid for one revision.
#[derive(Default)]
pub(crate) struct Policies(Mutex<HashMap<PolicyKey, Compiled>>);

/// Plane and name of a policy.
type PolicyKey = (Arc<str>, Arc<str>);

/// A compiled policy and its revision, or why that revision does not compile.
type Compiled = (Revision, Result<Arc<CompiledPolicy>, Arc<str>>);

impl Policies {
    /// The compiled policy. Validation refuses a policy that does not compile; one that another version of
    /// the program stored, or that another limit applies to, may still fail.
    fn compiled(
        &self,
        plane: &Arc<str>,
        name: &Arc<str>,
        stored: &Stored,
    ) -> Result<Arc<CompiledPolicy>, Arc<str>> {
        let mut known = self.0.lock();
        match known.get(&(plane.clone(), name.clone())) {
            Some((revision, compiled)) if *revision == stored.revision() => compiled.clone(),
            _ => {
                let compiled = CompiledPolicy::compile(&stored.value())
                    .map(Arc::new)
                    .map_err(|errors| Arc::from(polis_apimachinery::aggregate(&errors)));
                if let Err(why) = &compiled {
                    tracing::error!(plane = &**plane, policy = &**name, %why, "failed to compile an admission policy; requests that it matches are handled by its failurePolicy; correct its expressions");
                }
                known.insert((plane.clone(), name.clone()), (stored.revision(), compiled.clone()));
                compiled
            }
        }
    }
}

/// Evaluates every bound policy that matches the request.
pub(super) fn evaluate(request: &Request<'_>) -> Result<(), StatusError> {
    let call = request.call;
    let policies = configurations(call, "validatingadmissionpolicies");
    if policies.is_empty() {
        return Ok(());
    }
    let bindings = configurations(call, "validatingadmissionpolicybindings");
    for Configuration { plane, name, stored, object: policy } in &policies {
        let spec = &policy["spec"];
        let Some(version) = matching::resources_cover(&spec["matchConstraints"], request) else { continue };
        if spec["matchConstraints"]["resourceRules"].as_array().is_none_or(Vec::is_empty) {
            continue;
        }
        let bound = bindings
            .iter()
            .filter(|binding| binding.plane == *plane && binding.object["spec"]["policyName"] == **name);
        for Configuration { object: binding, .. } in bound {
            let match_resources = &binding["spec"]["matchResources"];
            if match_resources.is_object() && matching::resources_cover(match_resources, request).is_none() {
                continue;
            }
            call.check_deadline()?;
            let subject = Subject::of(plane, "validatingadmissionpolicies", name, policy);
            let compiled = match usable(&call.core, (plane, name), stored, subject.as_ref()) {
                Ok(compiled) => compiled,
                Err(_) if spec["failurePolicy"] == "Ignore" => continue,
                Err(message) => {
                    let denial = Denial { validation: None, message, reason: "Invalid".into() };
                    enforce(request, name, binding, &denial)?;
                    continue;
                }
            };
            let described = request.describe(&version, "");
            let namespace = request.namespace().filter(|_| call.kind.namespaced).unwrap_or(Value::Null);
            for params in params(request, spec, binding, name)? {
                let inputs = PolicyInputs {
                    object: request.object.unwrap_or(&Value::Null),
                    old_object: request.old.unwrap_or(&Value::Null),
                    request: &described,
                    params: &params,
                    namespace_object: &namespace,
                };
                for denial in evaluate_guarded(request, &compiled, subject.as_ref(), spec, &inputs) {
                    enforce(request, name, binding, &denial)?;
                }
            }
        }
    }
    Ok(())
}

/// The compiled policy, or why it cannot be evaluated.
fn usable(
    core: &Core,
    (plane, name): (&Arc<str>, &Arc<str>),
    stored: &Stored,
    subject: Option<&Subject>,
) -> Result<Arc<CompiledPolicy>, String> {
    if core.quarantine.holds(subject, core.clock.now()) {
        return Err(QUARANTINED.to_owned());
    }
    core.policies.compiled(plane, name, stored).map_err(|why| format!("compilation failed: {why}"))
}

/// Evaluates a policy, and records whether it failed hard. A panic is handled like an evaluation error.
fn evaluate_guarded(
    request: &Request<'_>,
    policy: &CompiledPolicy,
    subject: Option<&Subject>,
    spec: &Value,
    inputs: &PolicyInputs<'_>,
) -> Vec<Denial> {
    let core = &request.call.core;
    let evaluated = catch_unwind(AssertUnwindSafe(|| policy.evaluate(inputs)));
    let failure = match &evaluated {
        Err(_) => Some(HardFailure::Panicked),
        Ok(decision) => decision.exhausted.then_some(HardFailure::Exhausted),
    };
    core.quarantine.record(subject, failure, core.clock.now());
    match evaluated {
        Ok(decision) => decision.denials,
        Err(_) if spec["failurePolicy"] == "Ignore" => Vec::new(),
        Err(_) => {
            let message = "its evaluation made the server panic; the log has the cause".to_owned();
            vec![Denial { validation: None, message, reason: "Invalid".into() }]
        }
    }
}

/// The parameter objects of a binding: the policy is evaluated once for each, and once with null if it has no
/// `paramKind`.
fn params(
    request: &Request<'_>,
    spec: &Value,
    binding: &Value,
    policy: &str,
) -> Result<Vec<Value>, StatusError> {
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
) -> Result<Vec<Value>, StatusError> {
    if binding["spec"]["paramRef"]["parameterNotFoundAction"] == "Allow" || spec["failurePolicy"] == "Ignore"
    {
        return Ok(Vec::new());
    }
    let denial = Denial {
        validation: None,
        message: format!("failed to configure binding: {why}"),
        reason: "Invalid".into(),
    };
    enforce(request, policy, binding, &denial)?;
    Ok(Vec::new())
}

/// Applies the `validationActions` of a binding to a denial.
fn enforce(request: &Request<'_>, policy: &str, binding: &Value, denial: &Denial) -> Result<(), StatusError> {
    let name = object::meta(binding, "name");
    let actions = object::strings(&binding["spec"]["validationActions"]);
    if actions.iter().any(|action| action == "Warn") {
        request.call.warn(format!(
            "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{name}': {}",
            denial.message
        ));
    }
    if actions.iter().any(|action| action == "Audit") {
        let note = json!({"policy": policy, "binding": name, "message": denial.message, "validation": denial.validation});
        tracing::info!(%note, "admission policy violation recorded by an Audit binding");
    }
    if !actions.iter().any(|action| action == "Deny") {
        return Ok(());
    }
    let why = format!(
        "ValidatingAdmissionPolicy '{policy}' with binding '{name}' denied request: {}",
        denial.message
    );
    let cause = StatusCause { reason: String::new(), message: why.clone(), field: String::new() };
    let failure = StatusError::forbidden(&request.call.kind.group_resource(), request.name(), &why)
        .with_causes([cause]);
    Err(failure.with_reason(denial.code(), denial.reason.clone()))
}
