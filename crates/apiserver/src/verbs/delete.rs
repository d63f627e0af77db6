//! Delete of one object.
//!
//! An object without finalizers is deleted at once. One with finalizers gets a `deletionTimestamp` and is
//! deleted with its last finalizer. The propagation policy is recorded as a finalizer, on which the garbage
//! collector acts.

use http::Response;
use polis_apimachinery::{ValidationError, object, time};
use serde_json::{Value, json};

use super::{Call, Payload, commit::WriteResult};
use crate::{
    admission, builtins,
    http::{DryRun, ResponseBody, decode_object},
    status::{GroupResource, StatusError, success},
    store::{Precondition, Stored},
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
/// Attempts of a delete that loses to concurrent writes.
const ATTEMPTS: usize = 16;

/// The propagation policy: how dependents are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// Dependents lose the owner reference and stay.
    Orphan,
    /// Dependents are deleted after the owner.
    Background,
    /// Dependents are deleted before the owner.
    Foreground,
}

/// Preconditions and propagation policy of a delete.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) propagation: Option<Propagation>,
}

/// The result of a delete.
pub(crate) enum DeleteResult {
    /// The object is deleted; carries its last state.
    Deleted(Value),
    /// The object has a `deletionTimestamp` and waits for its finalizers.
    Terminating(WriteResult),
}

impl DeleteOptions {
    /// Reads the options and the dry-run flag of a request. The body takes precedence over the query.
    fn read(call: &Call, payload: &Payload) -> Result<(Self, bool), StatusError> {
        let body = if payload.bytes.iter().all(u8::is_ascii_whitespace) {
            json!({})
        } else {
            decode_object(payload.content, &payload.bytes)?.value
        };
        if let Some(kind) = body["kind"].as_str().filter(|kind| !kind.is_empty() && *kind != "DeleteOptions")
        {
            return Err(StatusError::bad_request(format!(
                "no kind \"{kind}\" is registered for version \"{}\" in scheme \"pkg/runtime/scheme.go:111\"",
                body["apiVersion"].as_str().unwrap_or_default()
            )));
        }
        let invalid =
            |error| StatusError::invalid(&GroupResource::new("meta.k8s.io", "DeleteOptions"), "", &[error]);
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let policy = text(&body["propagationPolicy"]).or_else(|| call.options.propagation.clone());
        let orphan = body["orphanDependents"].as_bool().or(call.options.orphan_dependents);
        let propagation = match (policy.as_deref(), orphan) {
            (Some(_), Some(_)) => {
                return Err(invalid(ValidationError::invalid(
                    "propagationPolicy",
                    policy.unwrap_or_default(),
                    "orphanDependents and deletionPropagation cannot be both set",
                )));
            }
            (Some("Orphan"), None) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), None) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), None) => Some(Propagation::Foreground),
            (Some(other), None) => {
                return Err(invalid(ValidationError::not_supported(
                    "propagationPolicy",
                    other,
                    ["Foreground", "Background", "Orphan", "nil"],
                )));
            }
            (None, None) => None,
        };
        let dry = match body["dryRun"].as_array().and_then(|list| list.first()).and_then(Value::as_str) {
            Some("All") => true,
            Some(other) => {
                return Err(invalid(ValidationError::not_supported("dryRun", json!([other]), ["All"])));
            }
            None => call.options.dry_run == DryRun::All,
        };
        let preconditions = &body["preconditions"];
        Ok((
            Self {
                uid: text(&preconditions["uid"]),
                resource_version: text(&preconditions["resourceVersion"]),
                propagation,
            },
            dry,
        ))
    }
}

impl Call {
    pub(crate) async fn delete(&self, payload: &Payload) -> Result<Response<ResponseBody>, StatusError> {
        let (options, dry) = DeleteOptions::read(self, payload)?;
        let name = self.target()?;
        let removed = self.with_dry_run(dry).delete_object(name, &options).await?;
        Ok(match removed {
            DeleteResult::Deleted(last) if self.kind.rules().is_some_and(|rules| rules.returns_deleted) => {
                self.respond_value(200, &last)
            }
            DeleteResult::Deleted(last) => crate::http::object(
                200,
                &success(&self.kind.group_resource(), name, object::meta(&last, "uid")),
                self.output,
            ),
            DeleteResult::Terminating(written) => self.respond_written(200, &written),
        })
    }

    pub(crate) async fn delete_collection(
        &self,
        payload: &Payload,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let (options, dry) = DeleteOptions::read(self, payload)?;
        self.delete_all(&self.with_dry_run(dry), &options).await
    }

    /// A copy of the call with the given dry-run option.
    fn with_dry_run(&self, dry: bool) -> Self {
        let mut options = self.options.clone();
        options.dry_run = if dry { DryRun::All } else { DryRun::No };
        Self {
            core: self.core.clone(),
            plane: self.plane.clone(),
            kinds: self.kinds.clone(),
            kind: self.kind.clone(),
            version: self.version.clone(),
            verb: self.verb,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            subresource: self.subresource,
            user: self.user.clone(),
            caller: self.caller.clone(),
            options,
            output: self.output,
            read_uncommitted: self.read_uncommitted,
            agent: self.agent.clone(),
            deadline: self.deadline,
            warnings: parking_lot::Mutex::default(),
        }
    }

    /// Deletes one object of the call's namespace.
    pub(crate) async fn delete_object(
        &self,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<DeleteResult, StatusError> {
        let path = self.path(name);
        for _ in 0..ATTEMPTS {
            let Some(stored) = self.core.store.view().get(&self.collection(), &path) else {
                return Err(self.not_found(name));
            };
            let old = self.convert_value(&stored);
            self.check_delete(&old, name, options)?;
            builtins::check_delete(self, &old)?;
            admission::validate(self, None, Some(&old)).await?;
            if let Some(removed) = self.try_delete(&path, &stored, &old, options).await? {
                return Ok(removed);
            }
        }
        Err(StatusError::modified(&self.kind.group_resource(), name))
    }

    fn check_delete(&self, old: &Value, name: &str, options: &DeleteOptions) -> Result<(), StatusError> {
        let about = self.kind.group_kind();
        if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != object::meta(old, "uid")) {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
                object::meta(old, "uid")
            );
            return Err(StatusError::conflict(&about, name, &why));
        }
        if let Some(version) = options
            .resource_version
            .as_deref()
            .filter(|version| *version != object::meta(old, "resourceVersion"))
        {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
                object::meta(old, "resourceVersion")
            );
            return Err(StatusError::conflict(&about, name, &why));
        }
        Ok(())
    }

    /// One attempt; `None` if a concurrent write came first.
    async fn try_delete(
        &self,
        path: &str,
        stored: &Stored,
        old: &Value,
        options: &DeleteOptions,
    ) -> Result<Option<DeleteResult>, StatusError> {
        let mut marked = old.clone();
        // Events have no dependents, so they get no propagation finalizers.
        let held = if self.kind.plural == "events" {
            object::finalizers(old)
        } else {
            finalizers_after(&object::finalizers(old), options.propagation)
        };
        object::set_meta(&mut marked, "finalizers", (!held.is_empty()).then(|| json!(held)));
        let waits = builtins::begin_deletion(self, &mut marked) || !held.is_empty();
        if !waits {
            return Ok(match self.remove(path, stored).await? {
                WriteResult::Conflict => None,
                _ => {
                    builtins::after_removal(self, old).await;
                    Some(DeleteResult::Deleted(old.clone()))
                }
            });
        }
        if !object::is_deleting(old) {
            object::set_meta(
                &mut marked,
                "deletionTimestamp",
                Some(time::timestamp(self.core.clock.now()).into()),
            );
            // Kubernetes sets only the deletionTimestamp of CRDs.
            let definition = self.kind.is("apiextensions.k8s.io", "customresourcedefinitions");
            if !self.kind.is("", "namespaces") && !definition {
                object::set_meta(&mut marked, "deletionGracePeriodSeconds", Some(0.into()));
            }
            if let Some(generation) = old["metadata"]["generation"].as_i64().filter(|_| !definition) {
                object::set_meta(&mut marked, "generation", Some((generation + 1).into()));
            }
        }
        if marked == *old {
            return Ok(Some(DeleteResult::Terminating(WriteResult::Stored(stored.clone()))));
        }
        Ok(match self.put(path, Precondition::AtRevision(stored.revision()), marked).await? {
            WriteResult::Conflict => None,
            written => {
                builtins::after_write(self, &written).await;
                Some(DeleteResult::Terminating(written))
            }
        })
    }
}

/// The finalizers of an object after a delete request.
fn finalizers_after(finalizers: &[String], propagation: Option<Propagation>) -> Vec<String> {
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    let (orphan, foreground) = match propagation {
        Some(Propagation::Orphan) => (true, false),
        Some(Propagation::Foreground) => (false, true),
        Some(Propagation::Background) => (false, false),
        // Without a policy an earlier one stays.
        None => (has(ORPHAN), has(FOREGROUND)),
    };
    let mut after: Vec<String> = finalizers
        .iter()
        .filter(|name| (*name != ORPHAN || orphan) && (*name != FOREGROUND || foreground))
        .cloned()
        .collect();
    for (wanted, name) in [(orphan, ORPHAN), (foreground, FOREGROUND)] {
        if wanted && !has(name) {
            after.push(name.to_owned());
        }
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_propagation_policy_is_recorded_in_the_finalizers() {
        let after = |finalizers: &[&str], policy| {
            finalizers_after(&finalizers.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>(), policy)
        };
        assert_eq!(after(&[], None), Vec::<String>::new());
        assert_eq!(after(&["a"], Some(Propagation::Foreground)), ["a", "foregroundDeletion"]);
        assert_eq!(after(&["orphan", "a"], Some(Propagation::Background)), ["a"]);
        assert_eq!(after(&["orphan"], None), ["orphan"]);
        assert_eq!(after(&["foregroundDeletion"], Some(Propagation::Orphan)), ["orphan"]);
    }
}
