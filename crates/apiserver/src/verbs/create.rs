//! Create, and the decoding of objects from request bodies.

use http::Response;
use polis_apimachinery::{
    ValidationError,
    decode::Decoded,
    meta::{self, NameRule},
    object,
    schema::ValidationScope,
    time,
};
use serde_json::{Map, Value, json};

use super::{Call, Payload, commit::WriteResult};
use crate::{
    access::{self, Attributes},
    admission, builtins,
    http::{DryRun, FieldValidation, ResponseBody, decode_object},
    ownership,
    route::Verb,
    status::{GroupResource, StatusError},
    store::Precondition,
};

/// Attempts to find an unused generated name, as in Kubernetes.
const NAME_ATTEMPTS: usize = 8;

impl Call {
    pub(crate) async fn create(&self, payload: &Payload) -> Result<Response<ResponseBody>, StatusError> {
        if (self.name.is_some() && !self.kind.is_custom())
            || (self.kind.namespaced && self.namespace.is_none())
        {
            return Err(StatusError::method_not_allowed());
        }
        if self.kind.terminating {
            return Err(StatusError::method_not_allowed());
        }
        let object = self.read_object(payload)?;
        if self.kind.rules().is_some_and(|rules| rules.ephemeral) {
            return access::review(self, object);
        }
        let written = self.create_object(object, false).await?;
        Ok(self.respond_written(201, &written))
    }

    /// Decodes the object of a request body, checks its type and namespace, prunes and defaults it.
    pub(crate) fn read_object(&self, payload: &Payload) -> Result<Value, StatusError> {
        let unrecognized = |failure: StatusError| match failure.code {
            400 => self.unrecognized(&failure.message),
            _ => failure,
        };
        let Decoded { value: mut object, duplicates } =
            decode_object(payload.content, &payload.bytes).map_err(unrecognized)?;
        self.check_type(&mut object)?;
        self.shape(&mut object, duplicates, false)?;
        self.ensure_namespace(&mut object)?;
        Ok(object)
    }

    /// The body must have the kind and version of the URL path. For built-in kinds both are optional.
    fn check_type(&self, object: &mut Value) -> Result<(), StatusError> {
        if object.is_null() && !self.kind.is_custom() {
            *object = json!({});
        }
        let Some(fields) = object.as_object_mut() else {
            return Err(self.unrecognized(if object.is_null() {
                "Object 'Kind' is missing in 'null'"
            } else {
                "couldn't get version/kind; json parse error: it is not an object"
            }));
        };
        if let Some(field) = ["kind", "apiVersion"]
            .into_iter()
            .find(|field| fields.get(*field).is_some_and(|value| !value.is_string() && !value.is_null()))
        {
            let why = format!("couldn't get version/kind; json parse error: {field} is not a text");
            return Err(self.unrecognized(&why));
        }
        let text = |field: &str| fields.get(field).and_then(Value::as_str).unwrap_or_default();
        let checked = match self.kind.is_custom() {
            true => self.check_custom_type(text("kind"), text("apiVersion"), fields),
            false => self.check_builtin_type(text("kind"), text("apiVersion")),
        };
        checked?;
        fields.insert("apiVersion".into(), self.version.api_version.clone().into());
        fields.insert("kind".into(), self.kind.kind.clone().into());
        Ok(())
    }

    fn check_custom_type(
        &self,
        kind: &str,
        version: &str,
        fields: &Map<String, Value>,
    ) -> Result<(), StatusError> {
        if kind.is_empty() {
            let object = Value::Object(fields.clone());
            return Err(self.unrecognized(&format!("Object 'Kind' is missing in '{object}'")));
        }
        if version != self.version.api_version {
            return Err(StatusError::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version ({})",
                self.version.api_version
            )));
        }
        if kind != self.kind.kind {
            let error = ValidationError::invalid("kind", kind, format!("must be {}", self.kind.kind));
            return Err(StatusError::invalid(
                &GroupResource::new(&self.kind.group, kind),
                object::meta(&Value::Object(fields.clone()), "name"),
                &[error],
            ));
        }
        Ok(())
    }

    fn check_builtin_type(&self, kind: &str, version: &str) -> Result<(), StatusError> {
        if !version.is_empty() && version != self.version.api_version {
            return Err(self.unregistered(if kind.is_empty() { &self.kind.kind } else { kind }, version));
        }
        if !kind.is_empty() && kind != self.kind.kind {
            return Err(self.unregistered(kind, &self.version.api_version));
        }
        Ok(())
    }

    fn unrecognized(&self, why: &str) -> StatusError {
        let kind = &self.kind.kind;
        StatusError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {why}"
        ))
    }

    fn unregistered(&self, kind: &str, version: &str) -> StatusError {
        let short = version.rsplit('/').next().unwrap_or_default();
        let why = format!(
            "no kind \"{kind}\" is registered for version \"{version}\" in scheme \"pkg/runtime/scheme.go:111\""
        );
        StatusError::bad_request(format!(
            "{kind} in version \"{short}\" cannot be handled as a {}: {why}",
            self.kind.kind
        ))
    }

    /// Prunes and defaults an object. Unknown and duplicate fields are refused, reported as warnings or
    /// ignored, as the `fieldValidation` option requires.
    pub(crate) fn shape(
        &self,
        object: &mut Value,
        mut strict_errors: Vec<String>,
        applied: bool,
    ) -> Result<(), StatusError> {
        if let Some(why) = builtins::decode_error(self, object) {
            return Err(StatusError::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: {why}",
                self.kind.kind, self.version.name, self.kind.kind
            )));
        }
        let unknown =
            self.version.versioned_schema.prune_and_default(object, applied).map_err(|failure| {
                let why = match self.kind.is_custom() {
                    true => failure
                        .message
                        .rsplit_once(": json: ")
                        .map_or(failure.message.clone(), |(_, why)| format!("json: {why}")),
                    false => failure
                        .message
                        .replace("Go struct field ObjectMeta.", "Go struct field ObjectMeta.metadata."),
                };
                StatusError::bad_request(format!(
                    "{} in version \"{}\" cannot be handled as a {}: {why}",
                    self.kind.kind, self.version.name, self.kind.kind
                ))
            })?;
        strict_errors.extend(unknown.into_iter().map(|place| format!("unknown field \"{place}\"")));
        match self.options.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => strict_errors.into_iter().for_each(|error| self.warn(error)),
            FieldValidation::Strict if strict_errors.is_empty() => {}
            FieldValidation::Strict => {
                let error = format!("strict decoding error: {}", strict_errors.join(", "));
                return Err(StatusError::bad_request(format!(
                    "{} in version \"{}\" cannot be handled as a {}: {error}",
                    self.kind.kind, self.version.name, self.kind.kind
                )));
            }
        }
        Ok(())
    }

    fn ensure_namespace(&self, object: &mut Value) -> Result<(), StatusError> {
        let wanted = self.namespace.as_deref().filter(|_| self.kind.namespaced);
        let given = object::meta(object, "namespace");
        match wanted {
            None => object::set_meta(object, "namespace", None),
            Some(wanted) if given.is_empty() => object::set_meta(object, "namespace", Some(wanted.into())),
            Some(wanted) if given != wanted => {
                return Err(StatusError::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Creates the object. `applied` means that it comes from server-side apply and already has
    /// `managedFields`.
    pub(crate) async fn create_object(
        &self,
        mut object: Value,
        applied: bool,
    ) -> Result<WriteResult, StatusError> {
        if !object::meta(&object, "resourceVersion").is_empty() {
            return Err(StatusError::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let generated =
            object::meta(&object, "name").is_empty() && !object::meta(&object, "generateName").is_empty();
        let mut attempts = if generated { NAME_ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            let mut candidate = object.clone();
            if generated {
                object::set_meta(&mut candidate, "name", Some(self.generate_name(&object).into()));
            }
            let candidate = self.prepare_new(candidate, applied).await?;
            let name = object::meta(&candidate, "name").to_owned();
            let path = self.path(&name);
            if self.options.dry_run == DryRun::All
                && self.core.store.view().get(&self.collection(), &path).is_some()
            {
                return Err(StatusError::already_exists(&self.kind.group_resource(), &name));
            }
            match self.put(&path, Precondition::Absent, candidate).await? {
                WriteResult::Conflict if attempts > 0 => {
                    object = {
                        object::set_meta(&mut object, "name", None);
                        object
                    }
                }
                WriteResult::Conflict if generated => {
                    return Err(StatusError::generated_name_taken(&self.kind.group_resource(), &name));
                }
                WriteResult::Conflict => {
                    return Err(StatusError::already_exists(&self.kind.group_resource(), &name));
                }
                written => {
                    builtins::after_write(self, &written).await;
                    return Ok(written);
                }
            }
        }
    }

    fn generate_name(&self, object: &Value) -> String {
        // The length limit of a label, 63, less the five characters of the suffix.
        const STEM_MAX: usize = 58;
        let stem = object::meta(object, "generateName");
        let stem = stem.get(..STEM_MAX.min(stem.len())).unwrap_or(stem);
        format!("{stem}{}", self.core.random.suffix())
    }

    /// Runs admission, defaulting and validation of a new object.
    async fn prepare_new(&self, mut object: Value, applied: bool) -> Result<Value, StatusError> {
        admission::namespace_accepts(self, &object)?;
        self.set_system_metadata(&mut object);
        builtins::apply_defaults(self, &mut object)?;
        // The field manager owns the fields of the request, not those that the server sets below.
        if !applied {
            ownership::on_write(self, None, &mut object);
        }
        builtins::prepare_create(self, &mut object)?;
        self.default_status(&mut object);
        admission::mutate(self, &mut object, None).await?;
        builtins::check_escalation(self, &object, None)?;
        self.validate_create(&object)?;
        self.authorize_create(&object)?;
        admission::validate(self, Some(&object), None).await?;
        Ok(object)
    }

    /// A PUT or an apply that creates its object needs the verb `create` too. As in Kubernetes the check
    /// comes between validation and validating admission.
    fn authorize_create(&self, object: &Value) -> Result<(), StatusError> {
        if self.verb == Verb::Create {
            return Ok(()); // authorized before the call
        }
        let attributes = Attributes {
            verb: Verb::Create.as_str().into(),
            about: self.kind.group_resource(),
            subresource: String::new(),
            name: object::meta(object, "name").to_owned(),
            namespace: self.namespace.clone().unwrap_or_default(),
            path: None,
        };
        access::authorize(&self.core, Some(&self.plane), &self.user, &attributes).map(drop)
    }

    fn set_system_metadata(&self, object: &mut Value) {
        let counted = self.kind.rules().is_none_or(|rules| rules.generation);
        let metadata = object::meta_mut(object);
        for field in
            ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation", "resourceVersion"]
        {
            metadata.remove(field);
        }
        metadata.insert("uid".into(), self.core.random.uid().into());
        metadata.insert("creationTimestamp".into(), time::timestamp(self.core.clock.now()).into());
        if counted {
            metadata.insert("generation".into(), 1.into());
        }
        if self.version.status
            && self.kind.is_custom()
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
    }

    /// Sets the status defaults of the schema. A create request cannot set the status, but its defaults
    /// apply. Called after `managedFields` is recorded, so that no manager owns them.
    fn default_status(&self, object: &mut Value) {
        let schema = &self.version.versioned_schema;
        let has_defaults = || schema.node().property("status").is_some_and(|status| status.has_defaults);
        if self.version.status && self.kind.is_custom() && has_defaults() {
            schema.apply_defaults(object);
        }
    }

    fn validate_create(&self, object: &Value) -> Result<(), StatusError> {
        if self.kind.is("", "events") {
            // For core events Kubernetes validates the content first and reports only those errors.
            let errors = builtins::validate(self, object, None);
            if !errors.is_empty() {
                return Err(self.invalid(object, &errors));
            }
        }
        let rule = self.kind.rules().map_or(NameRule::SUBDOMAIN, |rules| rules.name_rule);
        let mut errors = meta::check_create(&object["metadata"], self.kind.namespaced, rule, "metadata");
        errors.extend(builtins::validate_metadata(self, object));
        errors.extend(self.version.versioned_schema.validate(object, None, ValidationScope::Whole));
        errors.extend(self.scale_errors(object));
        errors.extend(builtins::validate(self, object, None));
        if errors.is_empty() { Ok(()) } else { Err(self.invalid(object, &errors)) }
    }

    pub(crate) fn invalid(
        &self,
        object: &Value,
        errors: &[polis_apimachinery::ValidationError],
    ) -> StatusError {
        let name = match (object::meta(object, "name"), object::meta(object, "generateName")) {
            ("", generate) => generate,
            (name, _) => name,
        };
        let about = match self.kind.is("events.k8s.io", "events") {
            true => GroupResource::new("", "Event"), // validated as the core Event that is stored
            false => self.kind.group_kind(),
        };
        StatusError::invalid(&about, name, errors)
    }
}
