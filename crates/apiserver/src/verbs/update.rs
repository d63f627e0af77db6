//! Update, patch and server-side apply. All compute the new object and share the steps from there to the
//! store.

use http::Response;
use polis_apimachinery::{
    ValidationError,
    decode::{self, Decoded},
    meta, object,
    patch::{self, PatchError},
    schema::ValidationScope,
};
use serde_json::{Value, json};

use super::{Call, Payload, commit::WriteResult};
use crate::{
    admission, builtins,
    http::{Content, FieldValidation, ResponseBody, decode_object},
    kinds::Subresource,
    ownership,
    status::StatusError,
    store::{Precondition, Stored},
    strict,
};

/// Attempts of a write that loses to concurrent writes. Kubernetes tries five times.
const ATTEMPTS: usize = 16;

/// The modification of an object that a request asks for.
pub(crate) enum Modification {
    /// PUT.
    Replace(Value),
    /// JSON patch, RFC 6902.
    Json(Value),
    /// JSON merge patch, RFC 7396.
    Merge(Value),
    /// Strategic merge patch, for built-in kinds.
    Strategic(Value),
    /// Server-side apply.
    Apply(Value),
}

/// The error of a patch that cannot be applied, as in Kubernetes.
pub(super) fn patch_failed(error: &PatchError) -> StatusError {
    if error.code() == 422 {
        StatusError::bare(422, error.reason(), error.message())
    } else {
        StatusError::new(error.code(), error.reason(), error.message())
    }
}

/// The error of a patch whose result is not a valid object of the kind.
fn invalid_patch_result(patched: &str, why: &str) -> StatusError {
    StatusError::invalid(
        &crate::status::GroupResource::default(),
        "",
        &[ValidationError::invalid("patch", patched, why)],
    )
}

fn object_text(object: &Value) -> String {
    polis_apimachinery::go_format::json(object)
}

impl Call {
    pub(crate) async fn update(&self, payload: &Payload) -> Result<Response<ResponseBody>, StatusError> {
        let name = self.target()?;
        let object = self.read_object(payload)?;
        let given = object::meta(&object, "name");
        if given.is_empty() {
            return Err(
                self.invalid(&object, &[ValidationError::required("metadata.name", "name must be provided")])
            );
        }
        if given != name {
            return Err(StatusError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        self.change(&Modification::Replace(object)).await
    }

    pub(crate) async fn patch(&self, payload: &Payload) -> Result<Response<ResponseBody>, StatusError> {
        let body = || {
            let decoded = strict::json(&payload.bytes).map_err(|failure| {
                StatusError::bad_request(format!("error decoding patch: {}", failure.message))
            })?;
            self.report_strict_errors(decoded.duplicates)?;
            Ok::<_, StatusError>(decoded.value)
        };
        let change = match payload.content {
            Some(Content::JsonPatch) => {
                let operations = body()?;
                self.report_strict_errors(patch::json::unknown_fields(&operations))?;
                Modification::Json(operations)
            }
            Some(Content::MergePatch) => Modification::Merge(body()?),
            Some(Content::StrategicPatch) if !self.kind.is_custom() => Modification::Strategic(body()?),
            Some(Content::ApplyPatch) => {
                if self.options.field_manager.is_empty() {
                    let error = ValidationError::required("fieldManager", "is required for apply patch");
                    return Err(StatusError::invalid(
                        &crate::status::GroupResource::new("meta.k8s.io", "PatchOptions"),
                        "",
                        &[error],
                    ));
                }
                let Decoded { value: object, duplicates } = decode_object(payload.content, &payload.bytes)?;
                if !object.is_object() && !object.is_null() {
                    return Err(StatusError::bad_request("error decoding YAML: it is not a map of fields"));
                }
                self.report_strict_errors(duplicates)?;
                Modification::Apply(object)
            }
            _ if self.kind.is_custom() => {
                return Err(StatusError::unsupported_media_type(
                    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                ));
            }
            _ => return Err(StatusError::bare(415, "UnsupportedMediaType", "415: Unsupported Media Type")),
        };
        if self.options.force.is_some() && !matches!(change, Modification::Apply(_)) {
            let error = ValidationError::forbidden("force", "may not be specified for non-apply patch");
            return Err(StatusError::invalid(
                &crate::status::GroupResource::new("meta.k8s.io", "PatchOptions"),
                "",
                &[error],
            ));
        }
        self.change(&change).await
    }

    fn report_strict_errors(&self, strict_errors: Vec<String>) -> Result<(), StatusError> {
        match self.options.field_validation {
            FieldValidation::Strict if !strict_errors.is_empty() => {
                Err(StatusError::bad_request(format!("strict decoding error: {}", strict_errors.join(", "))))
            }
            FieldValidation::Warn => {
                strict_errors.into_iter().for_each(|error| self.warn(error));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn change(&self, change: &Modification) -> Result<Response<ResponseBody>, StatusError> {
        let name = self.target()?;
        let path = self.path(name);
        for _ in 0..ATTEMPTS {
            let Some(stored) = self.core.store.view().get(&self.collection(), &path) else {
                match self.create_missing(change, name).await {
                    // Created concurrently: retry as a change of the existing object.
                    Err(failure) if failure.reason == "AlreadyExists" => continue,
                    created => return Ok(self.respond_written(201, &created?)),
                }
            };
            let old = self.convert_value(&stored);
            let new = self.modified(&old, change)?;
            match self
                .store_update(&path, &stored, &old, new, matches!(change, Modification::Apply(_)))
                .await?
            {
                WriteResult::Conflict => {}
                written => return Ok(self.respond_written(200, &written)),
            }
        }
        Err(StatusError::modified(&self.kind.group_resource(), name))
    }

    /// Handles a change of an object that does not exist: apply creates it, and so does PUT for some built-in
    /// kinds.
    async fn create_missing(&self, change: &Modification, name: &str) -> Result<WriteResult, StatusError> {
        if self.subresource.is_some() {
            return Err(self.not_found(name));
        }
        match change {
            Modification::Replace(object)
                if self.kind.rules().is_some_and(|rules| rules.create_on_update) =>
            {
                let mut object = object.clone();
                object::set_meta(&mut object, "resourceVersion", None);
                self.create_object(object, false).await
            }
            Modification::Apply(applied) => {
                if !object::meta(applied, "uid").is_empty() {
                    let why = format!(
                        "uid mismatch: the provided object specified uid {}, and no existing object was found",
                        object::meta(applied, "uid")
                    );
                    return Err(StatusError::conflict(&self.kind.group_resource(), name, &why));
                }
                let new = ownership::apply(self, None, applied)?;
                let new = self.accept_patched(new, true)?;
                self.create_object(new, true).await
            }
            _ => Err(self.not_found(name)),
        }
    }

    /// The object after the modification, in the version of the request.
    fn modified(&self, old: &Value, change: &Modification) -> Result<Value, StatusError> {
        let patched = match change {
            Modification::Replace(object) => return Ok(object.clone()),
            Modification::Apply(applied) => ownership::apply(self, Some(old), applied)?,
            Modification::Json(operations) => {
                patch::json::patch(old, operations).map_err(|error| patch_failed(&error))?
            }
            Modification::Merge(part) => {
                patch::merge::patch(old, part).map_err(|error| patch_failed(&error))?
            }
            Modification::Strategic(part) => {
                patch::strategic::patch(old, part, self.version.versioned_schema.types())
                    .map_err(|error| patch_failed(&error))?
            }
        };
        self.accept_patched(patched, matches!(change, Modification::Apply(_)))
    }

    /// Checks, prunes and defaults a patched object like one from a request body.
    fn accept_patched(&self, mut object: Value, applied: bool) -> Result<Value, StatusError> {
        let patched_before = object.clone();
        if !decode::shallow(&object) {
            return Err(StatusError::bad_request("the patched object is nested too deeply"));
        }
        let name = self.target()?;
        self.check_patched_type(&object)?;
        self.shape(&mut object, Vec::new(), applied).map_err(|failure| {
            let why = match failure.message.find("strict decoding error") {
                Some(at) => failure.message[at..].to_owned(),
                None => failure
                    .message
                    .rsplit_once(": json: ")
                    .map_or(failure.message.clone(), |(_, why)| format!("json: {why}")),
            };
            invalid_patch_result(&object_text(&patched_before), &why)
        })?;
        let given = object::meta(&object, "name");
        if given.is_empty() {
            return Err(StatusError::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            )));
        }
        if given != name {
            return Err(StatusError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        if !self.kind.namespaced {
            object::set_meta(&mut object, "namespace", None);
        }
        if self.kind.namespaced
            && !object::meta(&object, "namespace").is_empty()
            && Some(object::meta(&object, "namespace")) != self.namespace.as_deref()
        {
            return Err(StatusError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if self.kind.namespaced && object::meta(&object, "namespace").is_empty() {
            object::set_meta(&mut object, "namespace", self.namespace.clone().map(Into::into));
        }
        Ok(object)
    }

    fn check_patched_type(&self, object: &Value) -> Result<(), StatusError> {
        let (kind, version) =
            (object["kind"].as_str().unwrap_or_default(), object["apiVersion"].as_str().unwrap_or_default());
        if kind == self.kind.kind && version == self.version.api_version {
            return Ok(());
        }
        if !self.kind.is_custom() {
            return Err(invalid_patch_result(
                &object_text(object),
                &format!(
                    "no kind \"{kind}\" is registered for version \"{version}\" in scheme \"pkg/runtime/scheme.go:111\""
                ),
            ));
        }
        let (group, _) = version.split_once('/').unwrap_or_default();
        let mut errors = Vec::new();
        if kind != self.kind.kind {
            errors.push(ValidationError::invalid("kind", kind, format!("must be {}", self.kind.kind)));
        }
        if version != self.version.api_version {
            errors.push(ValidationError::invalid(
                "apiVersion",
                version,
                format!("must be {}", self.version.api_version),
            ));
        }
        Err(StatusError::invalid(
            &crate::status::GroupResource::new(group, kind),
            object::meta(object, "name"),
            &errors,
        ))
    }

    /// Removes a finalizer from the object. The object is deleted if it was the last one.
    pub(crate) async fn remove_finalizer(&self, finalizer: &str) -> Result<(), StatusError> {
        let path = self.path(self.target()?);
        for _ in 0..ATTEMPTS {
            let Some(stored) = self.core.store.view().get(&self.collection(), &path) else { return Ok(()) };
            let old = self.convert_value(&stored);
            let left: Vec<String> =
                object::finalizers(&old).into_iter().filter(|name| name != finalizer).collect();
            let mut new = old.clone();
            object::set_meta(&mut new, "finalizers", (!left.is_empty()).then(|| left.into()));
            if !matches!(self.store_update(&path, &stored, &old, new, false).await?, WriteResult::Conflict) {
                return Ok(());
            }
        }
        Err(StatusError::modified(&self.kind.group_resource(), self.target()?))
    }

    /// Runs admission, defaulting and validation of an updated object, and stores it.
    pub(crate) async fn store_update(
        &self,
        path: &str,
        stored: &Stored,
        old: &Value,
        mut new: Value,
        applied: bool,
    ) -> Result<WriteResult, StatusError> {
        let name = self.target()?;
        self.check_preconditions(old, &mut new, name)?;
        self.restore_system_fields(old, &mut new);
        builtins::apply_defaults(self, &mut new)?;
        // The field manager owns the fields of the request. `restore_ignored_fields` then reverts those that
        // the endpoint ignores.
        if !applied {
            ownership::on_write(self, Some(old), &mut new);
        }
        self.restore_ignored_fields(old, &mut new);
        builtins::prepare_update(self, old, &mut new)?;
        admission::mutate(self, &mut new, Some(old)).await?;
        builtins::check_escalation(self, &new, Some(old))?;
        self.increment_generation(old, &mut new);
        self.validate_update(&new, old)?;
        admission::validate(self, Some(&new), Some(old)).await?;

        if object::is_deleting(&new)
            && object::finalizers(&new).is_empty()
            && builtins::can_remove(self, &new)
        {
            return match self.remove(path, stored).await? {
                // The response is the last state of the object, as the request left it.
                WriteResult::Stored(gone) => {
                    builtins::after_removal(self, &new).await;
                    let mut last = new;
                    object::set_meta(&mut last, "resourceVersion", Some(gone.revision().to_string().into()));
                    Ok(WriteResult::DryRun(last))
                }
                written => Ok(written),
            };
        }
        object::set_meta(&mut new, "resourceVersion", Some(stored.revision().to_string().into()));
        if ownership::equal_except_times(&new, old) {
            return Ok(WriteResult::Stored(stored.clone()));
        }
        let written = self.put(path, Precondition::AtRevision(stored.revision()), new).await?;
        if matches!(written, WriteResult::Stored(_)) {
            builtins::after_write(self, &written).await;
        }
        Ok(written)
    }

    fn check_preconditions(&self, old: &Value, new: &mut Value, name: &str) -> Result<(), StatusError> {
        let (given, current) = (object::meta(new, "uid"), object::meta(old, "uid"));
        // In a PUT the uid is a precondition. In a patch a different uid is a change of an immutable field.
        if !given.is_empty() && given != current && self.verb == crate::route::Verb::Update {
            let why =
                format!("Precondition failed: UID in precondition: {given}, UID in object meta: {current}");
            return Err(StatusError::conflict(&self.kind.group_resource(), name, &why));
        }
        let given = object::meta(new, "resourceVersion");
        if given.is_empty() {
            if self.kind.rules().is_none_or(|rules| !rules.unconditional_update) {
                let error = ValidationError::invalid(
                    "metadata.resourceVersion",
                    0,
                    "must be specified for an update",
                );
                return Err(StatusError::invalid(&self.kind.group_resource(), name, &[error]));
            }
            object::set_meta(new, "resourceVersion", old["metadata"].get("resourceVersion").cloned());
        } else if given != object::meta(old, "resourceVersion") {
            return Err(StatusError::modified(&self.kind.group_resource(), name));
        }
        Ok(())
    }

    /// Restores the metadata that only the server sets.
    fn restore_system_fields(&self, old: &Value, new: &mut Value) {
        if object::meta(new, "uid").is_empty() {
            object::set_meta(new, "uid", old["metadata"].get("uid").cloned());
        }
        for field in
            ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"]
        {
            object::set_meta(new, field, old["metadata"].get(field).cloned());
        }
    }

    /// Restores the fields that the endpoint ignores: the status on the main resource, all others on
    /// `/status`.
    fn restore_ignored_fields(&self, old: &Value, new: &mut Value) {
        match self.subresource {
            Some(Subresource::Status) => {
                object::restore_fields(old, new, |name| name != "metadata" && name != "status");
                // Built-in kinds accept metadata changes through /status too.
                if self.kind.is_custom() {
                    let managed = new["metadata"].get_mut("managedFields").map(Value::take);
                    new["metadata"] = old["metadata"].clone();
                    object::set_meta(new, "managedFields", managed);
                }
            }
            None if self.version.status => match old.get("status") {
                Some(status) => new["status"] = status.clone(),
                None => drop(new.as_object_mut().and_then(|fields| fields.remove("status"))),
            },
            _ => {}
        }
    }

    /// Increments `generation` if any field but metadata and (with a status subresource) status has changed.
    fn increment_generation(&self, old: &Value, new: &mut Value) {
        if self.kind.rules().is_some_and(|rules| !rules.generation) {
            return;
        }
        let is_spec = |name: &str| name != "metadata" && (name != "status" || !self.version.status);
        if !object::fields_where(old, is_spec).eq(object::fields_where(new, is_spec)) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            object::set_meta(new, "generation", Some(json!(generation)));
        }
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Result<(), StatusError> {
        let mut errors = meta::check_update(&new["metadata"], &old["metadata"], "metadata");
        errors.extend(builtins::validate_metadata(self, new));
        let scope = if self.subresource == Some(Subresource::Status) {
            ValidationScope::Status
        } else {
            ValidationScope::Whole
        };
        errors.extend(self.version.versioned_schema.validate(new, Some(old), scope));
        errors.extend(self.scale_errors(new));
        errors.extend(builtins::validate(self, new, Some(old)));
        if errors.is_empty() { Ok(()) } else { Err(self.invalid(new, &errors)) }
    }
}
