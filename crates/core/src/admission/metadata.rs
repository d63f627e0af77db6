//! Validation of the workload's name, and of the labels and annotations of its template.

use polis_api::annotations::SSH_KEYS;
use polis_api::compute::{EmbeddedMetadata, InstanceTemplateSpec};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::names;

use super::{DNS_LABEL, FieldError, Path, ssh};
use crate::metadata::{is_key, is_label_value};

/// The total size that Kubernetes allows for the annotations of an object, in bytes.
const ANNOTATIONS_MAX: usize = 256 << 10;

/// Checks the name, which is part of labels and of the names of deployments. A missing name is generated
/// later.
pub(super) fn check_name(meta: &ObjectMeta, errors: &mut Vec<FieldError>) {
    let name = meta.name.as_deref().unwrap_or_default();
    if !name.is_empty() && !names::is_dns_label(name) {
        errors.push(Path::new("metadata.name").invalid(name, DNS_LABEL));
    }
}

/// Checks the labels and annotations of the template. Every instance gets them, and an API server rejects an
/// instance with an invalid one.
pub(super) fn check_template(template: &InstanceTemplateSpec, at: &Path, errors: &mut Vec<FieldError>) {
    let none = EmbeddedMetadata::default();
    let metadata = template.metadata.as_ref().unwrap_or(&none);
    let labels = at.at("labels");
    for (key, value) in &metadata.labels {
        if !is_key(key) {
            errors.push(labels.invalid(key.as_str(), KEY));
        }
        if !value.is_empty() && !is_label_value(value) {
            errors.push(labels.key(key).invalid(value.as_str(), VALUE));
        }
    }
    let annotations = at.at("annotations");
    for key in metadata.annotations.keys() {
        if !is_key(&key.to_lowercase()) {
            errors.push(annotations.invalid(key.as_str(), KEY));
        }
    }
    let size: usize = metadata.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > ANNOTATIONS_MAX {
        errors.push(annotations.invalid(size, format!("must be at most {ANNOTATIONS_MAX} bytes in total")));
    }
    if template.spec.runtime.virtual_machine.is_some() {
        let at = annotations.key(SSH_KEYS);
        match metadata.annotations.get(SSH_KEYS) {
            None => errors
                .push(at.required("users log in to a virtual machine with the SSH keys in this annotation")),
            Some(keys) => ssh::check(keys, &at, errors),
        }
    }
}

const KEY: &str = "must be a key such as example.com/name: the name at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit";
const VALUE: &str =
    "must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit";
