//! Names, labels and annotations that a workload brings along: they become those of deployments and instances.

use polis_api::annotations::SSH_KEYS;
use polis_api::compute::{EmbeddedMetadata, InstanceTemplateSpec};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::names;

use super::{DNS_LABEL, FieldError, Path, ssh};
use crate::metadata::{is_key, is_label_value};
use crate::owner;

/// What Kubernetes allows all annotations of an object to weigh together.
const ANNOTATIONS_MAX: usize = 256 << 10;

/// The name stands in labels and in the names of deployments. One without a name yet will be given one.
pub(super) fn check_name(meta: &ObjectMeta, errors: &mut Vec<FieldError>) {
    let name = owner::name(meta);
    if !name.is_empty() && !names::is_dns_label(name) {
        errors.push(Path::new("metadata.name").invalid(name, DNS_LABEL));
    }
}

/// Labels and annotations that every instance gets: an API server would refuse the instance for a bad one.
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
    let weight: usize = metadata.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if weight > ANNOTATIONS_MAX {
        errors.push(annotations.invalid(weight, format!("must be at most {ANNOTATIONS_MAX} bytes together")));
    }
    if template.spec.runtime.virtual_machine.is_some() {
        let at = annotations.key(SSH_KEYS);
        match metadata.annotations.get(SSH_KEYS) {
            None => errors.push(at.required("a virtual machine is reached by the keys named here")),
            Some(keys) => ssh::check(keys, &at, errors),
        }
    }
}

const KEY: &str = "must be a key such as example.com/name: the name at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit";
const VALUE: &str =
    "must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit";
