//! Update and patch: one path for both, from the object that is there to the one that should be.

use http::Response;
use serde_json::{Value, json};

use super::{Call, Payload, commit::Written};
use crate::{
    admission, builtins,
    http::{Body, Content, FieldValidation, decode_object},
    json,
    kinds::Subresource,
    ownership,
    patch::{self, PatchError},
    schema::{FieldError, Scope, decode, meta},
    status::Failure,
    store::{Expect, Stored},
    strict,
};

/// A change that lost the race this often gives up. Kubernetes tries five times.
const ATTEMPTS: usize = 16;

/// What a request wants done to an object.
pub(crate) enum Change {
    /// Replace it.
    Replace(Value),
    /// RFC 6902.
    Json(Value),
    /// RFC 7396.
    Merge(Value),
    /// Kubernetes' merge for built-in kinds.
    Strategic(Value),
    /// Server-side apply.
    Apply(Value),
}

/// A patch that has no result, as Kubernetes words it.
pub(super) fn patch_failed(error: &PatchError) -> Failure {
    if error.code() == 422 {
        Failure::bare(422, error.reason(), error.message())
    } else {
        Failure::new(error.code(), error.reason(), error.message())
    }
}

/// A patch whose result is no object of the kind.
fn unfit_patch(patched: &str, why: &str) -> Failure {
    Failure::invalid(&crate::status::About::default(), "", &[FieldError::invalid("patch", patched, why)])
}

fn object_text(object: &Value) -> String {
    crate::schema::error::json(object)
}

impl Call {
    pub(crate) async fn update(&self, payload: &Payload) -> Result<Response<Body>, Failure> {
        let name = self.target()?;
        let object = self.read_object(payload)?;
        let given = json::meta(&object, "name");
        if given.is_empty() {
            return Err(
                self.invalid(&object, &[FieldError::required("metadata.name", "name must be provided")])
            );
        }
        if given != name {
            return Err(Failure::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        self.change(&Change::Replace(object)).await
    }

    pub(crate) async fn patch(&self, payload: &Payload) -> Result<Response<Body>, Failure> {
        let body = || {
            let (value, complaints) = strict::json(&payload.bytes).map_err(|failure| {
                Failure::bad_request(format!("error decoding patch: {}", failure.message))
            })?;
            self.complain(complaints)?;
            Ok::<_, Failure>(value)
        };
        let change = match payload.content {
            Some(Content::JsonPatch) => {
                let operations = body()?;
                self.complain(patch::json::unknown_fields(&operations))?;
                Change::Json(operations)
            }
            Some(Content::MergePatch) => Change::Merge(body()?),
            Some(Content::StrategicPatch) if !self.kind.is_custom() => Change::Strategic(body()?),
            Some(Content::ApplyPatch) => {
                if self.options.field_manager.is_empty() {
                    let error = FieldError::required("fieldManager", "is required for apply patch");
                    return Err(Failure::invalid(
                        &crate::status::About::new("meta.k8s.io", "PatchOptions"),
                        "",
                        &[error],
                    ));
                }
                let (object, complaints) = decode_object(payload.content, &payload.bytes)?;
                if !object.is_object() && !object.is_null() {
                    return Err(Failure::bad_request("error decoding YAML: it is not a map of fields"));
                }
                self.complain(complaints)?;
                Change::Apply(object)
            }
            _ if self.kind.is_custom() => {
                return Err(Failure::unsupported_media_type(
                    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                ));
            }
            _ => return Err(Failure::bare(415, "UnsupportedMediaType", "415: Unsupported Media Type")),
        };
        if self.options.force.is_some() && !matches!(change, Change::Apply(_)) {
            let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
            return Err(Failure::invalid(
                &crate::status::About::new("meta.k8s.io", "PatchOptions"),
                "",
                &[error],
            ));
        }
        self.change(&change).await
    }

    fn complain(&self, complaints: Vec<String>) -> Result<(), Failure> {
        match self.options.field_validation {
            FieldValidation::Strict if !complaints.is_empty() => {
                Err(Failure::bad_request(format!("strict decoding error: {}", complaints.join(", "))))
            }
            FieldValidation::Warn => {
                complaints.into_iter().for_each(|complaint| self.warn(complaint));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn change(&self, change: &Change) -> Result<Response<Body>, Failure> {
        let name = self.target()?;
        let path = self.path(name);
        for _ in 0..ATTEMPTS {
            let Some(stored) = self.core.store.view().get(&self.collection(), &path) else {
                match self.create_by_change(change, name).await {
                    // Somebody has made it meanwhile: it is a change of what is there.
                    Err(failure) if failure.reason == "AlreadyExists" => continue,
                    made => return Ok(self.answer_written(201, &made?)),
                }
            };
            let old = self.present_value(&stored);
            let new = self.propose(&old, change)?;
            match self.settle(&path, &stored, &old, new, matches!(change, Change::Apply(_))).await? {
                Written::Conflict => {}
                written => return Ok(self.answer_written(200, &written)),
            }
        }
        Err(Failure::modified(&self.kind.about(), name))
    }

    /// A change of something that is not there: an apply makes it, and so does a PUT of the kinds that allow it.
    async fn create_by_change(&self, change: &Change, name: &str) -> Result<Written, Failure> {
        if self.subresource.is_some() {
            return Err(self.not_found(name));
        }
        match change {
            Change::Replace(object) if self.kind.rules().is_some_and(|rules| rules.create_on_update) => {
                let mut object = object.clone();
                json::set_meta(&mut object, "resourceVersion", None);
                self.create_object(object, false).await
            }
            Change::Apply(applied) => {
                if !json::meta(applied, "uid").is_empty() {
                    let why = format!(
                        "uid mismatch: the provided object specified uid {}, and no existing object was found",
                        json::meta(applied, "uid")
                    );
                    return Err(Failure::conflict(&self.kind.about(), name, &why));
                }
                let new = ownership::apply(self, None, applied)?;
                let new = self.accept_patched(new, true)?;
                self.create_object(new, true).await
            }
            _ => Err(self.not_found(name)),
        }
    }

    /// The object as the change would have it, in the version of the request.
    fn propose(&self, old: &Value, change: &Change) -> Result<Value, Failure> {
        let patched = match change {
            Change::Replace(object) => return Ok(object.clone()),
            Change::Apply(applied) => ownership::apply(self, Some(old), applied)?,
            Change::Json(operations) => {
                patch::json::patch(old, operations).map_err(|error| patch_failed(&error))?
            }
            Change::Merge(part) => patch::merge::patch(old, part).map_err(|error| patch_failed(&error))?,
            Change::Strategic(part) => patch::strategic::patch(old, part, self.version.form.types())
                .map_err(|error| patch_failed(&error))?,
        };
        self.accept_patched(patched, matches!(change, Change::Apply(_)))
    }

    /// A patched object must still be one of this kind, by the same rules as one that was sent whole.
    fn accept_patched(&self, mut object: Value, applied: bool) -> Result<Value, Failure> {
        let patched_before = object.clone();
        if !decode::shallow(&object) {
            return Err(Failure::bad_request("the patched object is nested too deeply"));
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
            unfit_patch(&object_text(&patched_before), &why)
        })?;
        let given = json::meta(&object, "name");
        if given.is_empty() {
            return Err(Failure::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            )));
        }
        if given != name {
            return Err(Failure::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        if !self.kind.namespaced {
            json::set_meta(&mut object, "namespace", None);
        }
        if self.kind.namespaced
            && !json::meta(&object, "namespace").is_empty()
            && Some(json::meta(&object, "namespace")) != self.namespace.as_deref()
        {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if self.kind.namespaced && json::meta(&object, "namespace").is_empty() {
            json::set_meta(&mut object, "namespace", self.namespace.clone().map(Into::into));
        }
        Ok(object)
    }

    fn check_patched_type(&self, object: &Value) -> Result<(), Failure> {
        let (kind, version) =
            (object["kind"].as_str().unwrap_or_default(), object["apiVersion"].as_str().unwrap_or_default());
        if kind == self.kind.kind && version == self.version.api_version {
            return Ok(());
        }
        if !self.kind.is_custom() {
            return Err(unfit_patch(
                &object_text(object),
                &format!(
                    "no kind \"{kind}\" is registered for version \"{version}\" in scheme \"pkg/runtime/scheme.go:111\""
                ),
            ));
        }
        let (group, _) = version.split_once('/').unwrap_or_default();
        let mut errors = Vec::new();
        if kind != self.kind.kind {
            errors.push(FieldError::invalid("kind", kind, format!("must be {}", self.kind.kind)));
        }
        if version != self.version.api_version {
            errors.push(FieldError::invalid(
                "apiVersion",
                version,
                format!("must be {}", self.version.api_version),
            ));
        }
        Err(Failure::invalid(&crate::status::About::new(group, kind), json::meta(object, "name"), &errors))
    }

    /// Takes a finalizer off the object, which goes if it was the last.
    pub(crate) async fn drop_finalizer(&self, finalizer: &str) -> Result<(), Failure> {
        let path = self.path(self.target()?);
        for _ in 0..ATTEMPTS {
            let Some(stored) = self.core.store.view().get(&self.collection(), &path) else { return Ok(()) };
            let old = self.present_value(&stored);
            let left: Vec<String> =
                json::finalizers(&old).into_iter().filter(|name| name != finalizer).collect();
            let mut new = old.clone();
            json::set_meta(&mut new, "finalizers", (!left.is_empty()).then(|| left.into()));
            if !matches!(self.settle(&path, &stored, &old, new, false).await?, Written::Conflict) {
                return Ok(());
            }
        }
        Err(Failure::modified(&self.kind.about(), self.target()?))
    }

    /// Everything between the object as it should be and the store.
    pub(crate) async fn settle(
        &self,
        path: &str,
        stored: &Stored,
        old: &Value,
        mut new: Value,
        applied: bool,
    ) -> Result<Written, Failure> {
        let name = self.target()?;
        self.check_preconditions(old, &mut new, name)?;
        self.keep_system_fields(old, &mut new);
        builtins::fill_in(self, &mut new)?;
        // Owned is what the writer said, before the server takes back what he may not say here.
        if !applied {
            ownership::on_write(self, Some(old), &mut new);
        }
        self.keep_other_half(old, &mut new);
        builtins::prepare_update(self, old, &mut new)?;
        admission::mutate(self, &mut new, Some(old)).await?;
        self.count_generation(old, &mut new);
        self.check_changed(&new, old)?;
        admission::validate(self, Some(&new), Some(old)).await?;

        if json::is_deleting(&new) && json::finalizers(&new).is_empty() && builtins::may_go(self, &new) {
            return match self.remove(path, stored).await? {
                // The last state, as the writer left it.
                Written::Stored(gone) => {
                    builtins::after_removal(self, &new).await;
                    let mut last = new;
                    json::set_meta(&mut last, "resourceVersion", Some(gone.revision().to_string().into()));
                    Ok(Written::Dry(last))
                }
                written => Ok(written),
            };
        }
        json::set_meta(&mut new, "resourceVersion", Some(stored.revision().to_string().into()));
        if ownership::same_but_for_times(&new, old) {
            return Ok(Written::Stored(stored.clone()));
        }
        let written = self.put(path, Expect::At(stored.revision()), new).await?;
        if matches!(written, Written::Stored(_)) {
            builtins::after_write(self, &written).await;
        }
        Ok(written)
    }

    fn check_preconditions(&self, old: &Value, new: &mut Value, name: &str) -> Result<(), Failure> {
        let (given, current) = (json::meta(new, "uid"), json::meta(old, "uid"));
        // A whole object names the one it means; a patch that changes the uid changes what may not be changed.
        if !given.is_empty() && given != current && self.verb == crate::route::Verb::Update {
            let why =
                format!("Precondition failed: UID in precondition: {given}, UID in object meta: {current}");
            return Err(Failure::conflict(&self.kind.about(), name, &why));
        }
        let given = json::meta(new, "resourceVersion");
        if given.is_empty() {
            if self.kind.rules().is_none_or(|rules| !rules.unconditional_update) {
                let error =
                    FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
                return Err(Failure::invalid(&self.kind.about(), name, &[error]));
            }
            json::set_meta(new, "resourceVersion", old["metadata"].get("resourceVersion").cloned());
        } else if given != json::meta(old, "resourceVersion") {
            return Err(Failure::modified(&self.kind.about(), name));
        }
        Ok(())
    }

    /// What only the server sets stays as it is.
    fn keep_system_fields(&self, old: &Value, new: &mut Value) {
        if json::meta(new, "uid").is_empty() {
            json::set_meta(new, "uid", old["metadata"].get("uid").cloned());
        }
        for field in
            ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"]
        {
            json::set_meta(new, field, old["metadata"].get(field).cloned());
        }
    }

    /// The main resource leaves the status alone, the status subresource everything else.
    fn keep_other_half(&self, old: &Value, new: &mut Value) {
        match self.subresource {
            Some(Subresource::Status) => {
                json::keep_where(old, new, |name| name != "metadata" && name != "status");
                // Built-in kinds take metadata through their status too.
                if self.kind.is_custom() {
                    let managed = new["metadata"].get_mut("managedFields").map(Value::take);
                    new["metadata"] = old["metadata"].clone();
                    json::set_meta(new, "managedFields", managed);
                }
            }
            None if self.version.status => match old.get("status") {
                Some(status) => new["status"] = status.clone(),
                None => drop(new.as_object_mut().and_then(|fields| fields.remove("status"))),
            },
            _ => {}
        }
    }

    /// `generation` counts changes of what the user wants: everything but metadata and, where split off, status.
    fn count_generation(&self, old: &Value, new: &mut Value) {
        if self.kind.rules().is_some_and(|rules| !rules.generation) {
            return;
        }
        let is_wish = |name: &str| name != "metadata" && (name != "status" || !self.version.status);
        if !json::fields_where(old, is_wish).eq(json::fields_where(new, is_wish)) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            json::set_meta(new, "generation", Some(json!(generation)));
        }
    }

    fn check_changed(&self, new: &Value, old: &Value) -> Result<(), Failure> {
        let mut faults = meta::check_update(&new["metadata"], &old["metadata"], "metadata");
        faults.extend(builtins::metadata_faults(self, new));
        let scope = if self.subresource == Some(Subresource::Status) { Scope::Status } else { Scope::Whole };
        faults.extend(self.version.form.faults(new, Some(old), scope));
        faults.extend(self.scale_faults(new));
        faults.extend(builtins::faults(self, new, Some(old)));
        if faults.is_empty() { Ok(()) } else { Err(self.invalid(new, &faults)) }
    }
}
