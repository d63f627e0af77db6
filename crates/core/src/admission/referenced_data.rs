//! Validation of references to config maps and secrets, and those whose access must be checked.
//!
//! The management role copies the objects with its own rights, so the author of a workload must have the
//! right to read each of them. A reference that an update does not add is not checked again.

use std::collections::BTreeSet;

use polis_api::compute::{SandboxContainer, Workload};

use super::{AccessDecision, FieldError, Path};
use crate::referenced_data::{OBJECT_LIMIT, Reference, TOTAL_LIMIT, references};

/// Maximum number of config maps and secrets of a workload. A new one costs the project's plane an access
/// review.
pub const MAX_SOURCES: usize = 64;

/// The longest name of a config map or secret.
const MAX_NAME: usize = 253;

/// Checks that each reference names one source, and that there are not too many.
pub(super) fn check(workload: &Workload, at: &Path, errors: &mut Vec<FieldError>) {
    let spec = &workload.spec.template.spec;
    let containers = spec.runtime.sandbox.iter().flat_map(|sandbox| &sandbox.containers);
    let at_containers = at.at("runtime.sandbox.containers");
    for (index, container) in containers.enumerate() {
        check_container(container, &at_containers.index(index), errors);
    }
    let found = references(spec);
    if found.len() > MAX_SOURCES {
        let detail =
            format!("refers to {} config maps and secrets; may refer to at most {MAX_SOURCES}", found.len());
        errors.push(at.forbidden(detail));
    }
    for reference in found.iter().filter(|reference| !is_object_name(&reference.name)) {
        let invalid = |field: &String| {
            at.at(field).invalid(reference.name.as_str(), "must be the name of an object: lower-case letters, digits, '-' and '.', with a letter or digit at both ends")
        };
        errors.extend(reference.fields.iter().map(invalid));
    }
}

fn check_container(container: &SandboxContainer, at: &Path, errors: &mut Vec<FieldError>) {
    for (index, source) in container.env_from.iter().enumerate() {
        let at = at.at("envFrom").index(index);
        match (&source.config_map_ref, &source.secret_ref) {
            (None, None) => errors.push(at.required("one of configMapRef and secretRef must be set")),
            (Some(_), Some(_)) => {
                errors.push(at.forbidden("a source is configMapRef or secretRef, not both"));
            }
            (Some(map), None) if map.name.is_empty() => errors.push(at.at("configMapRef.name").required("")),
            (None, Some(secret)) if secret.name.is_empty() => {
                errors.push(at.at("secretRef.name").required(""))
            }
            _ => {}
        }
    }
}

/// Whether a text is a DNS subdomain.
fn is_object_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    name.len() <= MAX_NAME && name.split('.').all(part)
}

/// The sources that a workload refers to and that its earlier state did not: the author must have the right
/// to read them. None if there are too many: [`super::validate`] reports that.
pub fn new_references(workload: &Workload, before: Option<&Workload>) -> Vec<Reference> {
    let of = |workload: &Workload| references(&workload.spec.template.spec);
    let known: BTreeSet<_> = before.map(of).unwrap_or_default().into_iter().map(id).collect();
    let mut found = of(workload);
    if found.len() > MAX_SOURCES {
        return Vec::new();
    }
    found.retain(|reference| is_object_name(&reference.name) && !known.contains(&id(reference.clone())));
    found
}

fn id(reference: Reference) -> (crate::referenced_data::DataKind, String) {
    (reference.kind, reference.name)
}

/// The result of the checks of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedReference {
    /// The source.
    pub reference: Reference,
    /// Whether the author may read it; none if it is not new.
    pub access: Option<AccessDecision>,
    /// Its bytes; none if it does not exist or cannot be read.
    pub size: Option<usize>,
}

/// The errors that follow from the checks of all sources of a workload.
pub fn reference_errors(checked: &[CheckedReference]) -> Vec<FieldError> {
    let spec = Path::new("spec.template.spec");
    let mut errors = Vec::new();
    for CheckedReference { reference, access, size } in checked {
        let at = || reference.fields.iter().map(|field| spec.at(field));
        match access {
            None | Some(AccessDecision::Allowed) => {}
            Some(AccessDecision::Denied(reason)) => {
                let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
                errors.extend(at().map(|at| at.forbidden(format!("you may not read {reference}{because}"))));
                continue; // its size is not for this user
            }
            Some(AccessDecision::Failed(why)) => {
                let detail = format!("failed to check access to {reference}: {why}; try again");
                errors.extend(at().map(|at| at.internal(detail.as_str())));
                continue;
            }
        }
        if let Some(size) = size.filter(|size| *size > OBJECT_LIMIT) {
            let detail = format!("{reference} has {size} bytes; one may have at most {OBJECT_LIMIT}");
            errors.extend(at().map(|at| at.forbidden(detail.as_str())));
        }
    }
    let total: usize = checked.iter().filter_map(|checked| checked.size).sum();
    if errors.is_empty() && total > TOTAL_LIMIT {
        let detail = format!(
            "the config maps and secrets have {total} bytes; all together may have at most {TOTAL_LIMIT}"
        );
        errors.push(spec.forbidden(detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mk_workload;
    use serde_json::{Value, json};

    fn mk(env_from: Value) -> Workload {
        let mut workload = mk_workload("web", &["dfw"]);
        let sandbox = workload.spec.template.spec.runtime.sandbox.as_mut().unwrap();
        sandbox.containers[0].env_from = serde_json::from_value(env_from).unwrap();
        workload
    }

    fn secret(name: &str) -> Value {
        json!({"secretRef": {"name": name}})
    }

    fn named(references: &[Reference]) -> Vec<&str> {
        references.iter().map(|reference| reference.name.as_str()).collect()
    }

    fn errors(workload: &Workload) -> Vec<String> {
        let mut errors = Vec::new();
        check(workload, &Path::new("spec.template.spec"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_new_references_are_checked() {
        let before = mk(json!([secret("a")]));
        let both = mk(json!([secret("a"), secret("b"), {"configMapRef": {"name": "a"}}]));
        assert_eq!(named(&new_references(&both, Some(&before))), ["a", "b"], "a config map, then a secret");
        assert_eq!(named(&new_references(&both, None)), ["a", "a", "b"]);
        assert_eq!(new_references(&before, Some(&both)), []);
        let mut optional = before.clone();
        let sandbox = optional.spec.template.spec.runtime.sandbox.as_mut().unwrap();
        sandbox.containers[0].env_from[0].secret_ref.as_mut().unwrap().optional = Some(true);
        assert_eq!(new_references(&optional, Some(&before)), []);
    }

    #[test]
    fn a_source_of_an_environment_names_one_object() {
        let at = "spec.template.spec.runtime.sandbox.containers[0].envFrom[0]";
        for (source, expected) in [
            (json!({}), format!("{at}: Required value: one of configMapRef and secretRef must be set")),
            (
                json!({"secretRef": {"name": "a"}, "configMapRef": {"name": "a"}}),
                format!("{at}: Forbidden: a source is configMapRef or secretRef, not both"),
            ),
            (json!({"secretRef": {"name": ""}}), format!("{at}.secretRef.name: Required value")),
        ] {
            assert_eq!(errors(&mk(json!([source]))), [expected]);
        }
        for invalid in ["Big", "../x", "a..b", "-a", &"a".repeat(254)] {
            let found = errors(&mk(json!([secret(invalid)])));
            assert!(
                found.len() == 1 && found[0].starts_with(&format!("{at}.secretRef: Invalid value")),
                "{found:?}"
            );
        }
        assert_eq!(errors(&mk(json!([secret("db.shop-1")]))), [""; 0]);
    }

    #[test]
    fn the_number_of_sources_is_limited() {
        let of = |count: usize| mk((0..count).map(|number| secret(&format!("s{number}"))).collect());
        assert_eq!(errors(&of(MAX_SOURCES)), [""; 0]);
        assert_eq!(
            errors(&of(MAX_SOURCES + 1)),
            ["spec.template.spec: Forbidden: refers to 65 config maps and secrets; may refer to at most 64"]
        );
        assert_eq!(new_references(&of(MAX_SOURCES + 1), None), []);
    }

    #[test]
    fn denials_and_sizes_are_errors_of_each_field() {
        let reference = new_references(&mk(json!([secret("db")])), None).remove(0);
        let of = |access: Option<AccessDecision>, size: Option<usize>| {
            let checked = CheckedReference { reference: reference.clone(), access, size };
            reference_errors(&[checked]).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let at = "spec.template.spec.runtime.sandbox.containers[0].envFrom[0].secretRef";
        let allowed = Some(AccessDecision::Allowed);
        assert_eq!(of(allowed.clone(), Some(OBJECT_LIMIT)), [""; 0]);
        assert_eq!(of(None, None), [""; 0]);
        assert_eq!(
            of(allowed, Some(OBJECT_LIMIT + 1)),
            [format!("{at}: Forbidden: secret db has 262145 bytes; one may have at most 262144")]
        );
        assert_eq!(
            of(Some(AccessDecision::Denied("no".into())), Some(OBJECT_LIMIT + 1)),
            [format!("{at}: Forbidden: you may not read secret db: no")]
        );
        assert_eq!(
            of(Some(AccessDecision::Failed("down".into())), None),
            [format!("{at}: Internal error: failed to check access to secret db: down; try again")]
        );
        let five: Vec<_> = (0..5)
            .map(|_| CheckedReference {
                reference: reference.clone(),
                access: None,
                size: Some(OBJECT_LIMIT),
            })
            .collect();
        assert_eq!(
            reference_errors(&five).iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "spec.template.spec: Forbidden: the config maps and secrets have 1310720 bytes; all together may have at most 1048576"
            ]
        );
    }
}
