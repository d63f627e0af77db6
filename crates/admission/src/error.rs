//! Errors of the webhooks, as a Kubernetes Status.

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use polis_core::admission::{FieldError, FieldErrorKind};

/// The maximum number of field errors in a message; further ones are only counted.
const MAX_FIELD_ERRORS: usize = 64;

/// Why a request is denied or a review cannot be handled.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason of the Status.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
    details: Option<Box<StatusDetails>>,
}

impl AdmissionError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    /// The request is malformed.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// The request is not permitted.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// The path does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, "NotFound", message)
    }

    /// The HTTP method is not POST.
    pub(crate) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "method not allowed: send the AdmissionReview with POST")
    }

    /// The request body is too large.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!(
            "the AdmissionReview is too large: the limit is {} MiB; make the object smaller",
            limit >> 20
        );
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// The request cannot be handled now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// The error for an invalid Workload; none if there are no field errors.
    ///
    /// The code is 500 if every field error is an internal one, for example a failed access review: then a
    /// retry can help.
    pub(crate) fn of(name: &str, errors: &[FieldError]) -> Option<Self> {
        if errors.is_empty() {
            return None;
        }
        let listed = &errors[..errors.len().min(MAX_FIELD_ERRORS)];
        let mut messages: Vec<String> = listed.iter().map(ToString::to_string).collect();
        if errors.len() > listed.len() {
            messages.push(format!("and {} more", errors.len() - listed.len()));
        }
        let list = match messages.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let (code, reason) = match errors.iter().all(|error| error.kind == FieldErrorKind::Internal) {
            true => (500, "InternalError"),
            false => (422, "Invalid"),
        };
        let cause = |error: &FieldError| StatusCause {
            field: Some(error.path.to_string()),
            message: Some(error.message()),
            reason: Some(error.kind.reason().to_owned()),
        };
        let details = StatusDetails {
            name: Some(name.to_owned()),
            group: Some("compute.datumapis.com".to_owned()),
            kind: Some("Workload".to_owned()),
            causes: Some(listed.iter().map(cause).collect()),
            ..StatusDetails::default()
        };
        let message = format!("Workload.compute.datumapis.com {name:?} is invalid: {list}");
        Some(Self { details: Some(Box::new(details)), ..Self::new(code, reason, message) })
    }

    /// The Status that the API server returns to its client.
    pub(crate) fn status(&self) -> Status {
        Status {
            code: Some(i32::from(self.code)),
            reason: Some(self.reason.to_owned()),
            message: Some(self.message.clone()),
            status: Some("Failure".to_owned()),
            details: self.details.as_deref().cloned(),
            ..Status::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use polis_core::admission::Path;

    use super::*;

    #[test]
    fn one_field_error_is_inline_and_several_are_a_list() {
        let at = Path::new("spec.placements");
        let one = AdmissionError::of("web", &[at.required("")]).unwrap();
        assert_eq!((one.code, one.reason), (422, "Invalid"));
        assert_eq!(
            one.message,
            "Workload.compute.datumapis.com \"web\" is invalid: spec.placements: Required value"
        );
        let two = AdmissionError::of("web", &[at.required(""), at.index(1).duplicate("a")]).unwrap();
        assert!(
            two.message
                .ends_with("[spec.placements: Required value, spec.placements[1]: Duplicate value: \"a\"]")
        );
        let causes = two.status().details.unwrap().causes.unwrap();
        assert_eq!(causes[1].field.as_deref(), Some("spec.placements[1]"));
        assert_eq!(causes[1].reason.as_deref(), Some("FieldValueDuplicate"));
    }

    #[test]
    fn no_field_errors_give_no_error() {
        assert_eq!(AdmissionError::of("web", &[]), None);
    }

    #[test]
    fn internal_errors_alone_give_code_500() {
        let at = Path::new("spec");
        assert_eq!(AdmissionError::of("web", &[at.internal("unreachable")]).unwrap().code, 500);
        assert_eq!(
            AdmissionError::of("web", &[at.internal("unreachable"), at.required("")]).unwrap().code,
            422
        );
    }

    #[test]
    fn further_field_errors_are_only_counted() {
        let errors: Vec<_> = (0..1000).map(|index| Path::new("spec").index(index).required("")).collect();
        let error = AdmissionError::of("web", &errors).unwrap();
        assert!(error.message.ends_with("and 936 more]"), "{}", error.message);
        assert_eq!(error.status().details.unwrap().causes.unwrap().len(), MAX_FIELD_ERRORS);
    }
}
