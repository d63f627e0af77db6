//! Refusals, as a Kubernetes status.

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use polis_core::admission::{Fault, FieldError};

/// Errors that are spelled out; of more only the number is told. A message is read by people.
const SPELLED_OUT: usize = 64;

/// Why something is not taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// The word for it that programs understand.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    details: Option<Box<StatusDetails>>,
}

impl Refusal {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    /// The request makes no sense.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// The request makes sense and will not be granted.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// There is nothing here.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, "NotFound", message)
    }

    /// Only posts are answered.
    pub(crate) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "reviews are posted")
    }

    /// More than is read.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!(
            "the review is too large: less than {} MiB is read; make the object smaller",
            limit >> 20
        );
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// Not now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// What is wrong with a workload. None for nothing.
    ///
    /// Where nothing is wrong but that something could not be found out, it is the server's fault and worth another try:
    /// the code says so.
    pub(crate) fn of(name: &str, errors: &[FieldError]) -> Option<Self> {
        if errors.is_empty() {
            return None;
        }
        let spelled = &errors[..errors.len().min(SPELLED_OUT)];
        let mut told: Vec<String> = spelled.iter().map(ToString::to_string).collect();
        if errors.len() > spelled.len() {
            told.push(format!("and {} more", errors.len() - spelled.len()));
        }
        let list = match told.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let (code, reason) = match errors.iter().all(|error| error.fault == Fault::Internal) {
            true => (500, "InternalError"),
            false => (422, "Invalid"),
        };
        let cause = |error: &FieldError| StatusCause {
            field: Some(error.path.to_string()),
            message: Some(error.message()),
            reason: Some(error.fault.reason().to_owned()),
        };
        let details = StatusDetails {
            name: Some(name.to_owned()),
            group: Some("compute.datumapis.com".to_owned()),
            kind: Some("Workload".to_owned()),
            causes: Some(spelled.iter().map(cause).collect()),
            ..StatusDetails::default()
        };
        let message = format!("Workload.compute.datumapis.com {name:?} is invalid: {list}");
        Some(Self { details: Some(Box::new(details)), ..Self::new(code, reason, message) })
    }

    /// The status that an API server passes on.
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
    fn one_error_is_told_plainly_and_several_as_a_list() {
        let at = Path::new("spec.placements");
        let one = Refusal::of("web", &[at.required("")]).unwrap();
        assert_eq!((one.code, one.reason), (422, "Invalid"));
        assert_eq!(
            one.message,
            "Workload.compute.datumapis.com \"web\" is invalid: spec.placements: Required value"
        );
        let two = Refusal::of("web", &[at.required(""), at.index(1).duplicate("a")]).unwrap();
        assert!(
            two.message
                .ends_with("[spec.placements: Required value, spec.placements[1]: Duplicate value: \"a\"]")
        );
        let causes = two.status().details.unwrap().causes.unwrap();
        assert_eq!(causes[1].field.as_deref(), Some("spec.placements[1]"));
        assert_eq!(causes[1].reason.as_deref(), Some("FieldValueDuplicate"));
    }

    #[test]
    fn nothing_wrong_is_no_refusal() {
        assert_eq!(Refusal::of("web", &[]), None);
    }

    #[test]
    fn what_could_not_be_found_out_is_the_servers_fault_unless_something_is_wrong_besides() {
        let at = Path::new("spec");
        assert_eq!(Refusal::of("web", &[at.internal("away")]).unwrap().code, 500);
        assert_eq!(Refusal::of("web", &[at.internal("away"), at.required("")]).unwrap().code, 422);
    }

    #[test]
    fn a_thousand_errors_are_told_in_a_few_words() {
        let errors: Vec<_> = (0..1000).map(|index| Path::new("spec").index(index).required("")).collect();
        let refusal = Refusal::of("web", &errors).unwrap();
        assert!(refusal.message.ends_with("and 936 more]"), "{}", refusal.message);
        assert_eq!(refusal.status().details.unwrap().causes.unwrap().len(), SPELLED_OUT);
    }
}
