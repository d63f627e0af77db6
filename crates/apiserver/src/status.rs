//! Refusals, in the shape and the words of Kubernetes: clients branch on `code`, `reason` and `details.causes`.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::schema::{FieldError, aggregate};

/// Which resource an answer is about, as it appears in `details` and in messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// API group; empty for core.
    pub group: String,
    /// Plural resource name (or kind, in validation errors).
    pub resource: String,
}

impl About {
    /// About `resource` of `group`.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }

    fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.resource.clone()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }
}

/// One entry of `details.causes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Machine readable, e.g. `FieldValueRequired`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Where.
    pub field: String,
}

/// A request that was not served as asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// HTTP status.
    pub code: u16,
    /// Machine readable reason; empty when Kubernetes gives none.
    pub reason: Cow<'static, str>,
    /// For people.
    pub message: String,
    details: Map<String, Value>,
    /// A body that is no Status: what a path that leads nowhere gets.
    plain: bool,
    /// `details` is there even when it says nothing.
    shows_details: bool,
    /// A token with which a list may go on after all.
    continues: Option<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A failure with neither name nor kind.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
            message: message.into(),
            details: Map::new(),
            plain: false,
            shows_details: false,
            continues: None,
        }
    }

    fn about(mut self, about: &About, name: &str) -> Self {
        if !name.is_empty() {
            self.details.insert("name".into(), name.into());
        }
        if !about.group.is_empty() {
            self.details.insert("group".into(), about.group.clone().into());
        }
        if !about.resource.is_empty() {
            self.details.insert("kind".into(), about.resource.clone().into());
        }
        self
    }

    /// With another code and reason: what a policy or webhook chose.
    pub fn with_reason(mut self, code: u16, reason: String) -> Self {
        self.code = code;
        self.reason = reason.into();
        self
    }

    /// With the details that a webhook gave.
    pub(crate) fn with_details(mut self, details: &Value) -> Self {
        self.details.extend(details.as_object().cloned().unwrap_or_default());
        self
    }

    /// With entries for `details.causes`.
    pub fn with_causes(self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.causes(causes)
    }

    fn causes(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        let causes: Vec<Value> = causes
            .into_iter()
            .map(|cause| {
                let mut entry = Map::new();
                for (name, text) in
                    [("reason", cause.reason), ("message", cause.message), ("field", cause.field)]
                {
                    if !text.is_empty() {
                        entry.insert(name.into(), text.into());
                    }
                }
                Value::Object(entry)
            })
            .collect();
        if !causes.is_empty() {
            self.details.insert("causes".into(), causes.into());
        }
        self
    }

    /// A path that leads nowhere: a plain 404, as for an unknown kind.
    pub fn no_such_path() -> Self {
        Self { plain: true, ..Self::new(404, "", "404 page not found\n") }
    }

    /// 404: the object is not there.
    pub fn not_found(about: &About, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", about.qualified())).about(about, name)
    }

    /// 409: the object is already there.
    pub fn already_exists(about: &About, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", about.qualified()))
            .about(about, name)
    }

    /// 409: generated names collided.
    pub fn generated_name_taken(about: &About, name: &str) -> Self {
        let message = format!(
            "{} \"{name}\" already exists, the server was not able to generate a unique name for the object",
            about.qualified()
        );
        let mut failure = Self::new(409, "AlreadyExists", message).about(about, name);
        failure.details.insert("retryAfterSeconds".into(), 1.into());
        failure
    }

    /// 409: `why` stands in the way of the write.
    pub fn conflict(about: &About, name: &str, why: &str) -> Self {
        Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", about.qualified()),
        )
        .about(about, name)
    }

    /// 409: the writer saw an older object.
    pub fn modified(about: &About, name: &str) -> Self {
        Self::conflict(
            about,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409 of a server-side apply, one cause per field that another manager owns.
    pub fn apply_conflict(message: String, causes: Vec<Cause>) -> Self {
        Self::new(409, "Conflict", message).causes(causes)
    }

    /// 422: fields are wrong. `about.resource` is the kind here.
    pub fn invalid(about: &About, name: &str, errors: &[FieldError]) -> Self {
        let message = format!("{} \"{name}\" is invalid: {}", about.qualified(), aggregate(errors));
        let causes = errors.iter().map(|error| Cause {
            reason: error.reason().to_owned(),
            message: error.message(),
            field: error.field.clone(),
        });
        Self::new(422, "Invalid", message).about(about, name).causes(causes)
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: `why` ends the sentence.
    pub fn forbidden(about: &About, name: &str, why: &str) -> Self {
        let message = match (about.resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{} is forbidden: {why}", about.qualified()),
            (false, false) => format!("{} \"{name}\" is forbidden: {why}", about.qualified()),
        };
        Self::new(403, "Forbidden", message).about(about, name)
    }

    /// A refusal without any detail, as Kubernetes makes it where it has only a code to go by.
    pub fn bare(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { shows_details: true, ..Self::new(code, reason, message) }
    }

    /// 404 of a subresource that the kind does not have.
    pub fn no_such_resource() -> Self {
        Self::bare(404, "NotFound", "the server could not find the requested resource")
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        Self::bare(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    /// 405 of a custom kind, which names the verb.
    pub fn not_supported(about: &About, verb: &str) -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            format!("{verb} is not supported on resources of kind \"{}\"", about.qualified()),
        )
        .about(about, "")
    }

    /// 406: no media type that the client accepts can be given.
    pub fn not_acceptable(offered: &str) -> Self {
        Self::new(406, "NotAcceptable", format!("only the following media types are accepted: {offered}"))
    }

    /// 415: the body's media type cannot be read. Go clients fall back from protobuf to JSON on this.
    pub fn unsupported_media_type(accepted: &str) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    /// 413.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 410: the list or watch must start anew.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// With a token that goes on in the present.
    pub fn with_continue(mut self, token: String) -> Self {
        self.continues = Some(token);
        self
    }

    /// 504: a revision from the future.
    pub fn too_new(asked: u64, current: u64) -> Self {
        let mut failure =
            Self::new(504, "Timeout", format!("Too large resource version: {asked}, current: {current}"))
                .causes([Cause {
                    reason: "ResourceVersionTooLarge".into(),
                    message: "Too large resource version".into(),
                    field: String::new(),
                }]);
        failure.details.insert("retryAfterSeconds".into(), 1.into());
        failure
    }

    /// 429 with the time to wait.
    pub fn too_many(message: impl Into<String>) -> Self {
        let mut failure = Self::new(429, "TooManyRequests", message);
        failure.details.insert("retryAfterSeconds".into(), 1.into());
        failure
    }

    /// 500. `why` is for the log and the caller.
    pub fn internal(why: &str) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {why}")).causes([Cause {
            reason: String::new(),
            message: why.to_owned(),
            field: String::new(),
        }])
    }

    /// Seconds a client should wait, if it should.
    pub fn retry_after(&self) -> Option<u64> {
        self.details.get("retryAfterSeconds").and_then(Value::as_u64)
    }

    /// True when the body is plain text instead of a Status.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The Status object.
    pub fn status(&self) -> Value {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message, "code": self.code});
        if let Some(token) = &self.continues {
            status["metadata"]["continue"] = token.clone().into();
        }
        if !self.reason.is_empty() {
            status["reason"] = self.reason.clone().into();
        }
        if !self.details.is_empty() || self.shows_details {
            status["details"] = Value::Object(self.details.clone());
        }
        status
    }
}

/// The Status of a success: what a delete that left nothing answers.
pub fn success(about: &About, name: &str, uid: &str) -> Value {
    let mut details = Map::new();
    for (field, text) in [("name", name), ("group", &about.group), ("kind", &about.resource), ("uid", uid)] {
        if !text.is_empty() {
            details.insert(field.into(), text.into());
        }
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_object_is_named_with_its_group() {
        let failure = Failure::not_found(&About::new("apps.example.com", "widgets"), "a");
        assert_eq!(
            failure.status(),
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "widgets.apps.example.com \"a\" not found",
                   "reason": "NotFound", "details": {"name": "a", "group": "apps.example.com", "kind": "widgets"}, "code": 404})
        );
    }

    #[test]
    fn field_errors_become_causes() {
        let failure = Failure::invalid(
            &About::new("", "ConfigMap"),
            "a",
            &[FieldError::required("metadata.name", "name or generateName is required")],
        );
        assert_eq!(
            failure.message,
            "ConfigMap \"a\" is invalid: metadata.name: Required value: name or generateName is required"
        );
        assert_eq!(failure.status()["details"]["causes"][0]["reason"], "FieldValueRequired");
    }
}
