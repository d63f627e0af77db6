//! [`Error`], the error of every engine call, and [`ErrorClass`], by which controllers and metrics tell
//! errors apart.

use polis_api::kube::core::Status;

use crate::PlaneName;
use crate::transport::TransportError;

/// The class of an error. Controllers branch on it, and metrics use it as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorClass {
    /// The object has changed, or a precondition does not hold. Read the object and decide again.
    Conflict,
    /// The object or the kind does not exist.
    NotFound,
    /// An object of that name exists.
    AlreadyExists,
    /// The server rejects the request as invalid. A retry without a change fails again.
    Invalid,
    /// The credentials are rejected or lack the permission.
    Forbidden,
    /// A retry may succeed: a network error, or an overloaded or restarting server.
    Transient,
    /// An object does not match its type.
    Decode,
    /// Any other error, such as a programming error.
    Other,
}

impl ErrorClass {
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

    /// The label value in metrics and logs.
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

    /// The class of the first [`Error`] in the chain of causes; [`ErrorClass::Other`] if there is none.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Error>() {
                return found.class();
            }
            next = error.source();
        }
        Self::Other
    }
}

/// The error of an engine call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plane is not an engaged member of its set.
    #[error("failed to find plane {plane}: it is not engaged")]
    NotEngaged {
        /// The requested plane.
        plane: PlaneName,
    },
    /// A cached read of a kind without a declared watch: a programming error.
    #[error(
        "failed to read {kind} of plane {plane} from the cache: no watch is declared for it; declare a watch or use an uncached read"
    )]
    NotWatched {
        /// The plane.
        plane: PlaneName,
        /// The kind.
        kind: String,
    },
    /// A cached read by an index that the watch does not declare: a programming error.
    #[error("failed to read {kind} by {index}: the watch declares no such index")]
    NoIndex {
        /// The kind.
        kind: String,
        /// The index.
        index: String,
    },
    /// An object does not match its type.
    #[error("failed to decode {object} of plane {plane} at {field}: {source}")]
    Decode {
        /// The plane.
        plane: PlaneName,
        /// Kind and name of the object.
        object: String,
        /// The path of the field, from the root of the object.
        field: String,
        /// The error of serde_json.
        source: serde_json::Error,
    },
    /// An object cannot be serialised as JSON.
    #[error("failed to encode {object}: {source}")]
    Encode {
        /// Kind and name of the object.
        object: String,
        /// The error of serde_json.
        source: serde_json::Error,
    },
    /// A write that needs UID and resource version was given an object that was not read from a server.
    #[error(
        "failed to {action} on plane {plane}: the object has no {missing}; pass the object as it was read"
    )]
    Unidentified {
        /// The plane.
        plane: PlaneName,
        /// The attempted action.
        action: String,
        /// The missing field.
        missing: &'static str,
    },
    /// The server responded with an error.
    #[error("failed to {action} on plane {plane}: {} ({})", status.message, status.reason)]
    Refused {
        /// The plane.
        plane: PlaneName,
        /// The attempted action.
        action: String,
        /// The `Status` object of the response.
        status: Box<Status>,
    },
    /// The server sent no response, or an invalid one.
    #[error("failed to {action} on plane {plane}: {source}")]
    Unreachable {
        /// The plane.
        plane: PlaneName,
        /// The attempted action.
        action: String,
        /// The transport error.
        source: TransportError,
    },
    /// A kubeconfig cannot be used.
    #[error("failed to load the kubeconfig {from}: {why}")]
    Kubeconfig {
        /// The file, or where the configuration comes from.
        from: String,
        /// The reason.
        why: String,
    },
    /// The admin server cannot listen.
    #[error("failed to serve health and metrics on {address}: {source}")]
    Admin {
        /// The listen address.
        address: std::net::SocketAddr,
        /// The I/O error.
        source: std::io::Error,
    },
}

impl Error {
    /// The class of the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Refused { status, .. } => class_of(status),
            Self::Unreachable { .. } | Self::NotEngaged { .. } => ErrorClass::Transient,
            Self::Decode { .. } => ErrorClass::Decode,
            _ => ErrorClass::Other,
        }
    }

    /// The HTTP status code, if the server responded with an error.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(status.code),
            _ => None,
        }
    }

    /// The class is [`ErrorClass::Conflict`].
    pub fn is_conflict(&self) -> bool {
        self.class() == ErrorClass::Conflict
    }

    /// The class is [`ErrorClass::NotFound`].
    pub fn is_not_found(&self) -> bool {
        self.class() == ErrorClass::NotFound
    }

    /// The class is [`ErrorClass::AlreadyExists`].
    pub fn is_already_exists(&self) -> bool {
        self.class() == ErrorClass::AlreadyExists
    }
}

fn class_of(status: &Status) -> ErrorClass {
    match (status.code, status.reason.as_str()) {
        (_, "AlreadyExists") => ErrorClass::AlreadyExists,
        (409, _) => ErrorClass::Conflict,
        (404 | 410, _) => ErrorClass::NotFound,
        (400 | 405 | 406 | 413 | 415 | 422, _) => ErrorClass::Invalid,
        (401 | 403, _) => ErrorClass::Forbidden,
        (408 | 429, _) | (500..=599, _) => ErrorClass::Transient,
        _ => ErrorClass::Other,
    }
}

/// The path of the field at a byte offset of a JSON document, e.g. `spec.template.containers[2].image`.
///
/// serde_json reports only line and column of an error, and users need the field. Compact JSON has one line,
/// so the column is the offset. Best effort: for invalid JSON the path ends where parsing fails.
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
            // serde_json reports a missing field after the closing bracket of its object: the path is still
            // that object.
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
        #[error("failed to reconcile")]
        struct Wrapped(#[source] Error);
        let status = Status { code: 409, reason: "Conflict".into(), ..Status::default() };
        let error =
            Wrapped(Error::Refused { plane: "p".into(), action: "update".into(), status: Box::new(status) });
        assert_eq!(ErrorClass::of(&error), ErrorClass::Conflict);
        assert_eq!(ErrorClass::of(&std::fmt::Error), ErrorClass::Other);
    }

    #[test]
    fn classes_follow_code_and_reason() {
        for (code, reason, class) in [
            (409, "AlreadyExists", ErrorClass::AlreadyExists),
            (409, "Conflict", ErrorClass::Conflict),
            (404, "NotFound", ErrorClass::NotFound),
            (422, "Invalid", ErrorClass::Invalid),
            (401, "Unauthorized", ErrorClass::Forbidden),
            (429, "TooManyRequests", ErrorClass::Transient),
            (503, "", ErrorClass::Transient),
        ] {
            let status = Status { code, reason: reason.into(), ..Status::default() };
            assert_eq!(class_of(&status), class, "{code} {reason}");
        }
    }
}
