//! Options in the query string of a request.

use percent_encoding::percent_decode_str;
use polis_apimachinery::{
    ValidationError,
    selector::{FieldSelector, LabelSelector},
    table::IncludeObject,
};

use crate::status::{GroupResource, StatusError};

/// The `dryRun` option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DryRun {
    /// The write is stored.
    #[default]
    No,
    /// The write is validated and admitted, but not stored.
    All,
}

/// The `fieldValidation` option: how unknown and duplicate fields are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// Dropped silently.
    Ignore,
    /// Dropped with a warning.
    #[default]
    Warn,
    /// Refused.
    Strict,
}

/// The options of all verbs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) dry_run: DryRun,
    pub(crate) field_manager: String,
    pub(crate) field_validation: FieldValidation,
    pub(crate) force: Option<bool>,
    pub(crate) limit: usize,
    pub(crate) continue_token: String,
    pub(crate) resource_version: String,
    pub(crate) resource_version_match: String,
    pub(crate) labels: Option<LabelSelector>,
    pub(crate) fields: Option<FieldSelector>,
    pub(crate) timeout_seconds: Option<u64>,
    pub(crate) watch: bool,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
    /// Delete options of the query; those of the body take precedence.
    pub(crate) propagation: Option<String>,
    pub(crate) orphan_dependents: Option<bool>,
    pub(crate) include_object: IncludeObject,
}

/// Longest field manager name, in bytes.
const MANAGER_MAX: usize = 128;

impl Options {
    /// Parses a query string.
    pub(crate) fn parse(query: &str) -> Result<Self, StatusError> {
        let mut options = Self::default();
        for (name, value) in pairs(query) {
            match name.as_str() {
                "dryRun" => options.dry_run = dry_run(&value)?,
                "fieldManager" => options.field_manager = field_manager(value)?,
                "fieldValidation" => options.field_validation = field_validation(&value)?,
                "force" => options.force = Some(boolean(&name, &value)?),
                "limit" => options.limit = usize::try_from(integer(&value)?).unwrap_or(0),
                "continue" => options.continue_token = value,
                "resourceVersion" => options.resource_version = value,
                "resourceVersionMatch" => options.resource_version_match = value,
                "labelSelector" => {
                    options.labels = Some(
                        LabelSelector::parse(&value)
                            .map_err(|error| StatusError::bad_request(error.to_string()))?,
                    )
                    .filter(|selector| !selector.is_everything())
                }
                "fieldSelector" => {
                    options.fields = Some(
                        FieldSelector::parse(&value)
                            .map_err(|error| StatusError::bad_request(error.to_string()))?,
                    )
                    .filter(|selector| !selector.is_everything())
                }
                "timeoutSeconds" => {
                    options.timeout_seconds =
                        u64::try_from(integer(&value)?).ok().filter(|seconds| *seconds > 0)
                }
                "watch" => options.watch = value.is_empty() || boolean(&name, &value)?,
                "allowWatchBookmarks" => options.bookmarks = boolean(&name, &value)?,
                "sendInitialEvents" => options.send_initial_events = Some(boolean(&name, &value)?),
                "propagationPolicy" => options.propagation = Some(value),
                "orphanDependents" => options.orphan_dependents = Some(boolean(&name, &value)?),
                // No kind has graceful deletion: the option is validated and ignored.
                "gracePeriodSeconds" => drop(integer(&value)?),
                "includeObject" => options.include_object = include_object(&value)?,
                _ => {}
            }
        }
        Ok(options)
    }
}

pub(crate) fn dry_run(value: &str) -> Result<DryRun, StatusError> {
    match value {
        "" => Ok(DryRun::No),
        "All" => Ok(DryRun::All),
        _ => {
            let error = ValidationError::not_supported("dryRun", serde_json::json!([value]), ["All"]);
            Err(StatusError::invalid(&GroupResource::new("meta.k8s.io", "CreateOptions"), "", &[error]))
        }
    }
}

fn field_validation(value: &str) -> Result<FieldValidation, StatusError> {
    match value {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        _ => {
            let error =
                ValidationError::not_supported("fieldValidation", value, ["", "Ignore", "Strict", "Warn"]);
            Err(StatusError::invalid(&GroupResource::new("meta.k8s.io", "CreateOptions"), "", &[error]))
        }
    }
}

fn include_object(value: &str) -> Result<IncludeObject, StatusError> {
    match value {
        "" | "Metadata" => Ok(IncludeObject::Metadata),
        "None" => Ok(IncludeObject::None),
        "Object" => Ok(IncludeObject::Object),
        other => Err(StatusError::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
        ))),
    }
}

fn field_manager(value: String) -> Result<String, StatusError> {
    let about = GroupResource::new("meta.k8s.io", "CreateOptions");
    if value.len() > MANAGER_MAX {
        return Err(StatusError::invalid(&about, "", &[ValidationError::too_long("fieldManager", 128)]));
    }
    if let Some(at) = value.chars().position(|c| c.is_control()) {
        let error = ValidationError::invalid(
            "fieldManager",
            value.clone(),
            format!("invalid character at position {at}; should only contain printable characters"),
        );
        return Err(StatusError::invalid(&about, "", &[error]));
    }
    Ok(value)
}

fn boolean(name: &str, value: &str) -> Result<bool, StatusError> {
    match value {
        "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(StatusError::bad_request(format!(
            "invalid value \"{value}\" for {name}: it is neither true nor false"
        ))),
    }
}

fn integer(value: &str) -> Result<i64, StatusError> {
    value
        .parse()
        .map_err(|_| StatusError::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax")))
}

/// The decoded names and values of a query string.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    query.split('&').filter(|part| !part.is_empty()).map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (decode(name), decode(value))
    })
}

/// Decodes `%41+b` to `A b`. An invalid escape stays as it is.
fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded_and_parsed() {
        let options = Options::parse(
            "labelSelector=app%3Dx%2Ctier+in+(a)&limit=5&watch&dryRun=All&force=true&fieldManager=me",
        )
        .expect("reads");
        assert_eq!(options.limit, 5);
        assert!(options.watch);
        assert_eq!(options.dry_run, DryRun::All);
        assert_eq!(options.force, Some(true));
        assert_eq!(options.field_manager, "me");
        assert!(options.labels.is_some());
    }

    #[test]
    fn an_invalid_option_is_refused_with_a_4xx() {
        for query in [
            "limit=x",
            "dryRun=Some",
            "fieldValidation=Maybe",
            "watch=perhaps",
            "labelSelector=a%20b%20c",
            "fieldManager=a%00b",
        ] {
            let failure = Options::parse(query).expect_err(query);
            assert!((400..500).contains(&failure.code), "{query}: {failure}");
        }
    }
}
