//! Create, and the reading of objects that every write begins with.

use http::Response;
use serde_json::{Value, json};

use super::{Call, Payload, commit::Written};
use crate::{
    access, admission, builtins,
    http::{Body, DryRun, FieldValidation, decode_object},
    json, ownership,
    schema::{
        FieldError, Scope,
        meta::{self, NameRule},
    },
    status::{About, Failure},
    store::Expect,
};

/// Attempts at a free generated name before giving up, as Kubernetes.
const NAME_ATTEMPTS: usize = 8;

impl Call {
    pub(crate) async fn create(&self, payload: &Payload) -> Result<Response<Body>, Failure> {
        if (self.name.is_some() && !self.kind.is_custom())
            || (self.kind.namespaced && self.namespace.is_none())
        {
            return Err(Failure::method_not_allowed());
        }
        if self.kind.terminating {
            return Err(Failure::method_not_allowed());
        }
        let object = self.read_object(payload)?;
        if self.kind.rules().is_some_and(|rules| rules.ephemeral) {
            return access::review(self, object);
        }
        let written = self.create_object(object, false).await?;
        Ok(self.answer_written(201, &written))
    }

    /// An object from the body: of the right kind, in form, in the right namespace.
    pub(crate) fn read_object(&self, payload: &Payload) -> Result<Value, Failure> {
        let unrecognized = |failure: Failure| match failure.code {
            400 => Failure::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): {}",
                self.kind.kind, failure.message
            )),
            _ => failure,
        };
        let (mut object, complaints) =
            decode_object(payload.content, &payload.bytes).map_err(unrecognized)?;
        self.check_type(&mut object)?;
        self.shape(&mut object, complaints, false)?;
        self.settle_namespace(&mut object)?;
        Ok(object)
    }

    /// The body must be of the kind and version that the path names. Built-in kinds may leave both out.
    fn check_type(&self, object: &mut Value) -> Result<(), Failure> {
        if object.is_null() && !self.kind.is_custom() {
            *object = json!({});
        }
        let Some(fields) = object.as_object_mut() else {
            let why = if object.is_null() {
                "Object 'Kind' is missing in 'null'"
            } else {
                "couldn't get version/kind; json parse error: it is not an object"
            };
            return Err(Failure::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): {why}",
                self.kind.kind
            )));
        };
        if let Some(field) = ["kind", "apiVersion"]
            .into_iter()
            .find(|field| fields.get(*field).is_some_and(|value| !value.is_string() && !value.is_null()))
        {
            return Err(Failure::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: {field} is not a text",
                self.kind.kind
            )));
        }
        let kind = fields.get("kind").and_then(Value::as_str).unwrap_or_default();
        let version = fields.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        if self.kind.is_custom() && kind.is_empty() {
            return Err(Failure::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{}'",
                self.kind.kind,
                Value::Object(fields.clone())
            )));
        }
        let unregistered = |kind: &str, version: &str| {
            let short = version.rsplit('/').next().unwrap_or_default();
            let why = format!(
                "no kind \"{kind}\" is registered for version \"{version}\" in scheme \"pkg/runtime/scheme.go:111\""
            );
            Failure::bad_request(format!(
                "{kind} in version \"{short}\" cannot be handled as a {}: {why}",
                self.kind.kind
            ))
        };
        if !self.kind.is_custom() && !version.is_empty() && version != self.version.api_version {
            return Err(unregistered(if kind.is_empty() { &self.kind.kind } else { kind }, version));
        }
        if version != self.version.api_version && (self.kind.is_custom() || !version.is_empty()) {
            return Err(Failure::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version ({})",
                self.version.api_version
            )));
        }
        if !kind.is_empty() && kind != self.kind.kind {
            if self.kind.is_custom() {
                let error = FieldError::invalid("kind", kind, format!("must be {}", self.kind.kind));
                return Err(Failure::invalid(
                    &About::new(&self.kind.group, kind),
                    json::meta(&Value::Object(fields.clone()), "name"),
                    &[error],
                ));
            }
            return Err(unregistered(kind, &self.version.api_version));
        }
        fields.insert("apiVersion".into(), self.version.api_version.clone().into());
        fields.insert("kind".into(), self.kind.kind.clone().into());
        Ok(())
    }

    /// Brings an object into form; unknown and repeated fields are refused, warned about or passed over.
    pub(crate) fn shape(
        &self,
        object: &mut Value,
        mut complaints: Vec<String>,
        applied: bool,
    ) -> Result<(), Failure> {
        if let Some(why) = builtins::unreadable(self, object) {
            return Err(Failure::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: {why}",
                self.kind.kind, self.version.name, self.kind.kind
            )));
        }
        let unknown = self.version.form.shape(object, applied).map_err(|failure| {
            let why = match self.kind.is_custom() {
                true => failure
                    .message
                    .rsplit_once(": json: ")
                    .map_or(failure.message.clone(), |(_, why)| format!("json: {why}")),
                false => failure
                    .message
                    .replace("Go struct field ObjectMeta.", "Go struct field ObjectMeta.metadata."),
            };
            Failure::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: {why}",
                self.kind.kind, self.version.name, self.kind.kind
            ))
        })?;
        complaints.extend(unknown.into_iter().map(|place| format!("unknown field \"{place}\"")));
        match self.options.field_validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => complaints.into_iter().for_each(|complaint| self.warn(complaint)),
            FieldValidation::Strict if complaints.is_empty() => {}
            FieldValidation::Strict => {
                let error = format!("strict decoding error: {}", complaints.join(", "));
                return Err(Failure::bad_request(format!(
                    "{} in version \"{}\" cannot be handled as a {}: {error}",
                    self.kind.kind, self.version.name, self.kind.kind
                )));
            }
        }
        Ok(())
    }

    fn settle_namespace(&self, object: &mut Value) -> Result<(), Failure> {
        let wanted = self.namespace.as_deref().filter(|_| self.kind.namespaced);
        let given = json::meta(object, "namespace");
        match wanted {
            None => json::set_meta(object, "namespace", None),
            Some(wanted) if given.is_empty() => json::set_meta(object, "namespace", Some(wanted.into())),
            Some(wanted) if given != wanted => {
                return Err(Failure::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Makes the object. Everything but its identity has been given; if it was `applied`, its owners too.
    pub(crate) async fn create_object(&self, mut object: Value, applied: bool) -> Result<Written, Failure> {
        if !json::meta(&object, "resourceVersion").is_empty() {
            return Err(Failure::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        let generated =
            json::meta(&object, "name").is_empty() && !json::meta(&object, "generateName").is_empty();
        let mut attempts = if generated { NAME_ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            let mut candidate = object.clone();
            if generated {
                json::set_meta(&mut candidate, "name", Some(self.generate_name(&object).into()));
            }
            let candidate = self.prepare_new(candidate, applied).await?;
            let name = json::meta(&candidate, "name").to_owned();
            let path = self.path(&name);
            if self.options.dry_run == DryRun::All
                && self.core.store.view().get(&self.collection(), &path).is_some()
            {
                return Err(Failure::already_exists(&self.kind.about(), &name));
            }
            match self.put(&path, Expect::Absent, candidate).await? {
                Written::Conflict if attempts > 0 => {
                    object = {
                        json::set_meta(&mut object, "name", None);
                        object
                    }
                }
                Written::Conflict if generated => {
                    return Err(Failure::generated_name_taken(&self.kind.about(), &name));
                }
                Written::Conflict => return Err(Failure::already_exists(&self.kind.about(), &name)),
                written => {
                    builtins::after_write(self, &written).await;
                    return Ok(written);
                }
            }
        }
    }

    fn generate_name(&self, object: &Value) -> String {
        // 63 less five letters: what a label can hold.
        const STEM_MAX: usize = 58;
        let stem = json::meta(object, "generateName");
        let stem = stem.get(..STEM_MAX.min(stem.len())).unwrap_or(stem);
        format!("{stem}{}", self.core.chance.suffix())
    }

    /// Everything between reading a new object and writing it.
    async fn prepare_new(&self, mut object: Value, applied: bool) -> Result<Value, Failure> {
        admission::namespace_accepts(self, &object)?;
        self.stamp(&mut object);
        builtins::fill_in(self, &mut object)?;
        // Owned is what the writer said, before the server adds what is its own.
        if !applied {
            ownership::on_write(self, None, &mut object);
        }
        builtins::prepare_create(self, &mut object)?;
        self.default_status(&mut object);
        admission::mutate(self, &mut object, None).await?;
        self.check_new(&object)?;
        admission::validate(self, Some(&object), None).await?;
        Ok(object)
    }

    fn stamp(&self, object: &mut Value) {
        let counted = self.kind.rules().is_none_or(|rules| rules.generation);
        let metadata = json::meta_mut(object);
        for field in
            ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation", "resourceVersion"]
        {
            metadata.remove(field);
        }
        metadata.insert("uid".into(), self.core.chance.uid().into());
        metadata.insert("creationTimestamp".into(), json::timestamp(self.core.clock.now()).into());
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

    /// A status that nobody may give at creation still begins with the defaults of its schema. They are nobody's: this is
    /// done after ownership is written down.
    fn default_status(&self, object: &mut Value) {
        let form = &self.version.form;
        let begins = || form.node().property("status").is_some_and(|status| status.has_defaults);
        if self.version.status && self.kind.is_custom() && begins() {
            form.fill_in(object);
        }
    }

    fn check_new(&self, object: &Value) -> Result<(), Failure> {
        if self.kind.is("", "events") {
            // Of an old event Kubernetes judges the content first, and says no more when that is wrong.
            let faults = builtins::faults(self, object, None);
            if !faults.is_empty() {
                return Err(self.invalid(object, &faults));
            }
        }
        let rule = self.kind.rules().map_or(NameRule::SUBDOMAIN, |rules| rules.name_rule);
        let mut faults = meta::check_create(&object["metadata"], self.kind.namespaced, rule, "metadata");
        faults.extend(builtins::metadata_faults(self, object));
        faults.extend(self.version.form.faults(object, None, Scope::Whole));
        faults.extend(self.scale_faults(object));
        faults.extend(builtins::faults(self, object, None));
        if faults.is_empty() { Ok(()) } else { Err(self.invalid(object, &faults)) }
    }

    pub(crate) fn invalid(&self, object: &Value, faults: &[crate::schema::FieldError]) -> Failure {
        let name = match (json::meta(object, "name"), json::meta(object, "generateName")) {
            ("", generate) => generate,
            (name, _) => name,
        };
        let about = match self.kind.is("events.k8s.io", "events") {
            true => About::new("", "Event"), // judged as the one of core that it becomes
            false => self.kind.about_kind(),
        };
        Failure::invalid(&about, name, faults)
    }

    pub(crate) async fn create_token(&self, payload: &Payload) -> Result<Response<Body>, Failure> {
        let (request, _) = decode_object(payload.content, &payload.bytes)?;
        let account = self.present_value(&self.current()?);
        let issued = access::issue_token(self, &account, &request)?;
        Ok(crate::http::object(201, &json!(issued), self.output))
    }
}
