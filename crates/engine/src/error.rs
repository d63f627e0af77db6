//! What can go wrong, and what kind of wrong it is.

use polis_api::kube::core::Status;

use crate::PlaneName;
use crate::transport::TransportError;

/// The kind of a failure: what a controller branches on and what metrics are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Someone else changed the object meanwhile, or a precondition no longer holds: read again and decide again.
    Conflict,
    /// The object, or the kind, is not there.
    NotFound,
    /// An object of that name is there already.
    AlreadyExists,
    /// The server understood and will never agree: the object must change.
    Invalid,
    /// We are not (or no longer) who may do this.
    Forbidden,
    /// Worth trying again as it is: the network, an overloaded or restarting server.
    Transient,
    /// Bytes that do not fit the type.
    Decode,
    /// Anything else, such as a mistake in our own set-up.
    Other,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 8] = [
        Self::Conflict,
        Self::NotFound,
        Self::AlreadyExists,
        Self::Invalid,
        Self::Forbidden,
        Self::Transient,
        Self::Decode,
        Self::Other,
    ];

    /// The word for it in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Invalid => "invalid",
            Self::Forbidden => "forbidden",
            Self::Transient => "transient",
            Self::Decode => "decode",
            Self::Other => "other",
        }
    }

    /// The class of any error that has one of ours among its causes.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(ours) = error.downcast_ref::<Error>() {
                return ours.class();
            }
            next = error.source();
        }
        Self::Other
    }
}

/// A failure of the engine on behalf of a controller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plane is not (or no longer) one of the set.
    #[error("failed to find plane {plane}: it is not engaged")]
    NotEngaged {
        /// The plane that was asked for.
        plane: PlaneName,
    },
    /// The cache was asked for a kind that nobody declared a watch for. A mistake in the set-up.
    #[error(
        "failed to read {kind} of plane {plane} from the cache: no watch is declared for it; declare one or read it live"
    )]
    NotWatched {
        /// The plane.
        plane: PlaneName,
        /// The kind.
        kind: String,
    },
    /// The cache was asked by an index that nobody declared. A mistake in the set-up.
    #[error("failed to read {kind} by {index}: the watch declares no such index")]
    NoIndex {
        /// The kind.
        kind: String,
        /// The index.
        index: String,
    },
    /// An object does not fit its type.
    #[error("failed to decode {object} of plane {plane} at {field}: {source}")]
    Decode {
        /// The plane.
        plane: PlaneName,
        /// Kind and name of the object.
        object: String,
        /// The field, as a path from the root of the object.
        field: String,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// An object cannot be written as JSON.
    #[error("failed to encode {object}: {source}")]
    Encode {
        /// Kind and name of the object.
        object: String,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// A write that must name the exact object it means was given one that was never read from a server.
    #[error(
        "failed to {action} on plane {plane}: the object has no {missing}; pass the object as it was read"
    )]
    Unidentified {
        /// The plane.
        plane: PlaneName,
        /// What was attempted.
        action: String,
        /// The field that is missing.
        missing: &'static str,
    },
    /// The server answered, with a refusal.
    #[error("failed to {action} on plane {plane}: {} ({})", status.message, status.reason)]
    Refused {
        /// The plane.
        plane: PlaneName,
        /// What was attempted.
        action: String,
        /// The answer.
        status: Box<Status>,
    },
    /// No answer was had, or none that makes sense.
    #[error("failed to {action} on plane {plane}: {source}")]
    Unreachable {
        /// The plane.
        plane: PlaneName,
        /// What was attempted.
        action: String,
        /// Why.
        source: TransportError,
    },
    /// A kubeconfig that cannot be used.
    #[error("failed to load the kubeconfig {from}: {why}")]
    Kubeconfig {
        /// The file, or how it was found.
        from: String,
        /// What is wrong with it.
        why: String,
    },
    /// The admin server cannot be started.
    #[error("failed to serve health and metrics on {address}: {source}")]
    Admin {
        /// The address that was asked for.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

impl Error {
    /// The kind of failure.
    pub fn class(&self) -> Class {
        match self {
            Self::Refused { status, .. } => class_of(status),
            Self::Unreachable { .. } | Self::NotEngaged { .. } => Class::Transient,
            Self::Decode { .. } => Class::Decode,
            _ => Class::Other,
        }
    }

    /// The HTTP code of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(status.code),
            _ => None,
        }
    }

    /// Someone else was faster.
    pub fn is_conflict(&self) -> bool {
        self.class() == Class::Conflict
    }

    /// The object is not there.
    pub fn is_not_found(&self) -> bool {
        self.class() == Class::NotFound
    }

    /// An object of that name is there already.
    pub fn is_already_exists(&self) -> bool {
        self.class() == Class::AlreadyExists
    }
}

fn class_of(status: &Status) -> Class {
    match (status.code, status.reason.as_str()) {
        (_, "AlreadyExists") => Class::AlreadyExists,
        (409, _) => Class::Conflict,
        (404 | 410, _) => Class::NotFound,
        (400 | 405 | 406 | 413 | 415 | 422, _) => Class::Invalid,
        (401 | 403, _) => Class::Forbidden,
        (408 | 429, _) | (500..=599, _) => Class::Transient,
        _ => Class::Other,
    }
}

/// The path of the field at a byte offset of a JSON document, e.g. `spec.template.containers[2].image`.
///
/// serde_json reports where a value did not fit as line and column only; a person needs the field. Compact JSON has one line,
/// so the column is the offset. Best effort: for text that is not JSON it answers with as much as it understood.
pub fn field_at(json: &[u8], offset: usize) -> String {
    enum Level {
        Object(String),
        Array(usize),
    }
    let mut levels: Vec<Level> = Vec::new();
    let mut at = 0;
    let end = offset.min(json.len());
    let mut expects_name = false;
    while at < end {
        match json[at] {
            b'{' => {
                levels.push(Level::Object(String::new()));
                expects_name = true;
            }
            b'[' => {
                levels.push(Level::Array(0));
                expects_name = false;
            }
            // The error is reported after the closing bracket of a value that lacks something: still about that value.
            b'}' | b']' if at + 1 < end => {
                levels.pop();
                expects_name = false;
            }
            b',' => match levels.last_mut() {
                Some(Level::Array(index)) => *index += 1,
                Some(Level::Object(_)) => expects_name = true,
                None => {}
            },
            b'"' => {
                let start = at + 1;
                at += 1;
                while at < json.len() && json[at] != b'"' {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
                if expects_name && let Some(Level::Object(name)) = levels.last_mut() {
                    *name = String::from_utf8_lossy(&json[start..at.min(json.len())]).into_owned();
                    expects_name = false;
                }
            }
            _ => {}
        }
        at += 1;
    }
    let mut path = String::new();
    for level in levels {
        match level {
            Level::Object(name) if name.is_empty() => {}
            Level::Object(name) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&name);
            }
            Level::Array(index) => path.push_str(&format!("[{index}]")),
        }
    }
    if path.is_empty() { "its root".to_owned() } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, Debug)]
    struct Outer {
        #[allow(dead_code)]
        spec: Spec,
    }
    #[derive(Deserialize, Debug)]
    struct Spec {
        #[allow(dead_code)]
        ports: Vec<Port>,
    }
    #[derive(Deserialize, Debug)]
    struct Port {
        #[allow(dead_code)]
        number: u16,
    }

    fn field_of(json: &str) -> String {
        let error = serde_json::from_str::<Outer>(json).unwrap_err();
        field_at(json.as_bytes(), error.column())
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named_by_its_path() {
        assert_eq!(
            field_of(r#"{"a":"}{","spec":{"ports":[{"number":1},{"number":"x"}]}}"#),
            "spec.ports[1].number"
        );
        assert_eq!(field_of(r#"{"spec":7}"#), "spec");
    }

    #[test]
    fn a_missing_field_is_reported_at_the_object_that_lacks_it() {
        let path = field_of(r#"{"spec":{"ports":[{"number":1},{"other":2}]}}"#);
        assert!(path.starts_with("spec.ports[1]"), "{path}");
    }

    #[test]
    fn the_class_is_found_through_wrapping_errors() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to settle")]
        struct Wrapped(#[source] Error);
        let status = Status { code: 409, reason: "Conflict".into(), ..Status::default() };
        let error =
            Wrapped(Error::Refused { plane: "p".into(), action: "update".into(), status: Box::new(status) });
        assert_eq!(Class::of(&error), Class::Conflict);
        assert_eq!(Class::of(&std::fmt::Error), Class::Other);
    }

    #[test]
    fn classes_follow_code_and_reason() {
        for (code, reason, class) in [
            (409, "AlreadyExists", Class::AlreadyExists),
            (409, "Conflict", Class::Conflict),
            (404, "NotFound", Class::NotFound),
            (422, "Invalid", Class::Invalid),
            (401, "Unauthorized", Class::Forbidden),
            (429, "TooManyRequests", Class::Transient),
            (503, "", Class::Transient),
        ] {
            let status = Status { code, reason: reason.into(), ..Status::default() };
            assert_eq!(class_of(&status), class, "{code} {reason}");
        }
    }
}
