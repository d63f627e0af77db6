//! API errors (`metav1.Status`), worded as in Kubernetes: clients branch on `code`, `reason` and
//! `details.causes`.

use std::borrow::Cow;

use polis_apimachinery::{ValidationError, aggregate};
use serde_json::{Map, Value, json};

/// The resource that an error is about, for `details` and messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupResource {
    /// API group; empty for core.
    pub group: String,
    /// Plural resource name, or the kind in 422 errors.
    pub resource: String,
}

impl GroupResource {
    /// `resource` of `group`.
    pub(crate) fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
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
pub(crate) struct StatusCause {
    /// Machine-readable reason, e.g. `FieldValueRequired`.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// Path of the field.
    pub field: String,
}

/// The error of a request, encoded as a `Status` object.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusError {
    /// HTTP status.
    pub code: u16,
    /// Machine-readable reason; empty if Kubernetes gives none.
    pub reason: Cow<'static, str>,
    /// Human-readable message.
    pub message: String,
    details: Map<String, Value>,
    /// The body is plain text instead of a Status: a path that is not served.
    plain: bool,
    /// `details` is encoded even if it is empty.
    shows_details: bool,
    /// A continue token for the rest of the list, in `metadata.continue`.
    continues: Option<String>,
}

impl std::fmt::Display for StatusError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for StatusError {}

impl StatusError {
    /// An error without `details`.
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

    fn with_resource(mut self, resource: &GroupResource, name: &str) -> Self {
        if !name.is_empty() {
            self.details.insert("name".into(), name.into());
        }
        if !resource.group.is_empty() {
            self.details.insert("group".into(), resource.group.clone().into());
        }
        if !resource.resource.is_empty() {
            self.details.insert("kind".into(), resource.resource.clone().into());
        }
        self
    }

    /// Sets the code and reason that a policy or webhook returned.
    pub(crate) fn with_reason(mut self, code: u16, reason: String) -> Self {
        self.code = code;
        self.reason = reason.into();
        self
    }

    /// Adds the details that a webhook returned.
    pub(crate) fn with_details(mut self, details: &Value) -> Self {
        self.details.extend(details.as_object().cloned().unwrap_or_default());
        self
    }

    /// Sets `details.causes`.
    pub(crate) fn with_causes(self, causes: impl IntoIterator<Item = StatusCause>) -> Self {
        self.causes(causes)
    }

    fn causes(mut self, causes: impl IntoIterator<Item = StatusCause>) -> Self {
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

    /// 404 in plain text: the path is not served, e.g. an unknown kind.
    pub(crate) fn no_such_path() -> Self {
        Self { plain: true, ..Self::new(404, "", "404 page not found\n") }
    }

    /// 404: the object does not exist.
    pub(crate) fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", resource.qualified()))
            .with_resource(resource, name)
    }

    /// 409: the object exists already.
    pub(crate) fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", resource.qualified()))
            .with_resource(resource, name)
    }

    /// 409: generated names collided.
    pub(crate) fn generated_name_taken(resource: &GroupResource, name: &str) -> Self {
        let message = format!(
            "{} \"{name}\" already exists, the server was not able to generate a unique name for the object",
            resource.qualified()
        );
        let mut failure = Self::new(409, "AlreadyExists", message).with_resource(resource, name);
        failure.details.insert("retryAfterSeconds".into(), 1.into());
        failure
    }

    /// 409: the write conflicts with the current state; `why` is the reason.
    pub(crate) fn conflict(resource: &GroupResource, name: &str, why: &str) -> Self {
        Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified()),
        )
        .with_resource(resource, name)
    }

    /// 409: the resourceVersion of the write is out of date.
    pub(crate) fn modified(resource: &GroupResource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409 of a server-side apply, one cause per field that another manager owns.
    pub(crate) fn apply_conflict(message: String, causes: Vec<StatusCause>) -> Self {
        Self::new(409, "Conflict", message).causes(causes)
    }

    /// 422: validation errors. `resource` holds the kind here.
    pub(crate) fn invalid(resource: &GroupResource, name: &str, errors: &[ValidationError]) -> Self {
        let message = format!("{} \"{name}\" is invalid: {}", resource.qualified(), aggregate(errors));
        let causes = errors.iter().map(|error| StatusCause {
            reason: error.reason().to_owned(),
            message: error.message(),
            field: error.field.clone(),
        });
        Self::new(422, "Invalid", message).with_resource(resource, name).causes(causes)
    }

    /// 400.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401.
    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403; `why` is the reason.
    pub(crate) fn forbidden(resource: &GroupResource, name: &str, why: &str) -> Self {
        let message = match (resource.resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{} is forbidden: {why}", resource.qualified()),
            (false, false) => format!("{} \"{name}\" is forbidden: {why}", resource.qualified()),
        };
        Self::new(403, "Forbidden", message).with_resource(resource, name)
    }

    /// An error with empty `details`, as Kubernetes sends it where it derives the error from the code alone.
    pub(crate) fn bare(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { shows_details: true, ..Self::new(code, reason, message) }
    }

    /// 404 of a subresource that the kind does not have.
    pub(crate) fn no_such_resource() -> Self {
        Self::bare(404, "NotFound", "the server could not find the requested resource")
    }

    /// 405.
    pub(crate) fn method_not_allowed() -> Self {
        Self::bare(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    /// 405 of a custom kind; the message contains the verb.
    pub(crate) fn not_supported(resource: &GroupResource, verb: &str) -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            format!("{verb} is not supported on resources of kind \"{}\"", resource.qualified()),
        )
        .with_resource(resource, "")
    }

    /// 406: the server supports none of the media types that the client accepts.
    pub(crate) fn not_acceptable(offered: &str) -> Self {
        Self::new(406, "NotAcceptable", format!("only the following media types are accepted: {offered}"))
    }

    /// 415: unsupported media type of the body. Go clients then fall back from protobuf to JSON.
    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    /// 413.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 410: the client must restart the list or watch.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Sets a continue token at the current revision.
    pub(crate) fn with_continue(mut self, token: String) -> Self {
        self.continues = Some(token);
        self
    }

    /// 504: the requested resourceVersion is newer than the current one.
    pub(crate) fn too_new(asked: u64, current: u64) -> Self {
        let mut failure =
            Self::new(504, "Timeout", format!("Too large resource version: {asked}, current: {current}"))
                .causes([StatusCause {
                    reason: "ResourceVersionTooLarge".into(),
                    message: "Too large resource version".into(),
                    field: String::new(),
                }]);
        failure.details.insert("retryAfterSeconds".into(), 1.into());
        failure
    }

    /// 429 with `retryAfterSeconds`.
    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        let mut failure = Self::new(429, "TooManyRequests", message);
        failure.details.insert("retryAfterSeconds".into(), 1.into());
        failure
    }

    /// 507: the disk of the store is full.
    pub(crate) fn insufficient_storage() -> Self {
        let why = "the disk of the API server's store is full, so only writes that free space are possible: delete objects that are not needed, or ask the platform operator to free disk space";
        Self::new(507, "InsufficientStorage", why)
    }

    /// 504: the request was not answered in time.
    pub(crate) fn deadline_exceeded(deadline: std::time::Duration) -> Self {
        let why = format!("the request was not answered within {} s: send a smaller one", deadline.as_secs());
        Self::new(504, "Timeout", why)
    }

    /// 500; `why` is in the message and in the causes.
    pub(crate) fn internal(why: &str) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {why}")).causes([StatusCause {
            reason: String::new(),
            message: why.to_owned(),
            field: String::new(),
        }])
    }

    /// `retryAfterSeconds`, if set.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.details.get("retryAfterSeconds").and_then(Value::as_u64)
    }

    /// Whether the body is plain text instead of a Status.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// The Status object.
    pub(crate) fn status(&self) -> Value {
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

/// The Status of a success: the response to a delete that removed the object.
pub(crate) fn success(resource: &GroupResource, name: &str, uid: &str) -> Value {
    let mut details = Map::new();
    for (field, text) in
        [("name", name), ("group", &resource.group), ("kind", &resource.resource), ("uid", uid)]
    {
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
    fn not_found_names_the_object_and_its_group() {
        let failure = StatusError::not_found(&GroupResource::new("apps.example.com", "widgets"), "a");
        assert_eq!(
            failure.status(),
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "widgets.apps.example.com \"a\" not found",
                   "reason": "NotFound", "details": {"name": "a", "group": "apps.example.com", "kind": "widgets"}, "code": 404})
        );
    }

    #[test]
    fn validation_errors_become_causes() {
        let failure = StatusError::invalid(
            &GroupResource::new("", "ConfigMap"),
            "a",
            &[ValidationError::required("metadata.name", "name or generateName is required")],
        );
        assert_eq!(
            failure.message,
            "ConfigMap \"a\" is invalid: metadata.name: Required value: name or generateName is required"
        );
        assert_eq!(failure.status()["details"]["causes"][0]["reason"], "FieldValueRequired");
    }
}
