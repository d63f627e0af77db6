//! Instance templates: their hash, and when an instance is outdated.
//!
//! The hash is SHA-256 over the canonical JSON of the template fields that an instance gets: labels,
//! annotations and spec. Its first 16 hex digits are stored. Field order, absent or empty members and new
//! optional fields in later versions of Polis do not change it; the tests pin known values.
//!
//! Instances of other implementations have hashes that Polis cannot compute. Those have at most ten
//! characters, so the two are never confused. Such an instance is compared with the template instead: it is
//! current while it has the spec, labels and annotations of the template. It keeps its foreign hash, so
//! taking over a cell restarts no instance. A key that was *removed* from the template's metadata cannot be
//! detected this way and does not replace such an instance.

use polis_api::compute::{EmbeddedMetadata, Instance, InstanceSpec, InstanceTemplateSpec};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{canonical, metadata::Map};

/// The number of hex digits of a hash: 64 bits, and longer than any foreign hash.
const DIGITS: usize = 16;

/// The hash of a template.
pub fn hash(template: &InstanceTemplateSpec) -> String {
    let metadata = template.metadata.clone().unwrap_or_default();
    let hashed = json!({
        "annotations": metadata.annotations,
        "labels": metadata.labels,
        "spec": canonical::value(&without_controller_fields(&template.spec)),
    });
    let digest = Sha256::digest(canonical::text(&hashed).as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..DIGITS].to_owned()
}

/// Whether an instance matches the template. `hash` is the hash of the template.
pub fn is_current(instance: &Instance, template: &InstanceTemplateSpec, hash: &str) -> bool {
    match instance_hash(instance) {
        Some(own) if own == hash => true,
        Some(own) if is_ours(own) => false,
        _ => matches_template(instance, template),
    }
}

/// The template hash of an instance.
pub fn instance_hash(instance: &Instance) -> Option<&str> {
    instance.spec.controller.as_ref().map(|controller| controller.template_hash.as_str())
}

/// Whether a hash has the form of the hashes of Polis.
fn is_ours(hash: &str) -> bool {
    hash.len() == DIGITS && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn matches_template(instance: &Instance, template: &InstanceTemplateSpec) -> bool {
    let none = EmbeddedMetadata::default();
    let desired = template.metadata.as_ref().unwrap_or(&none);
    canonical::same(&without_controller_fields(&instance.spec), &without_controller_fields(&template.spec))
        && contains(instance.metadata.labels.as_ref(), &desired.labels)
        && contains(instance.metadata.annotations.as_ref(), &desired.annotations)
}

fn contains(existing: Option<&Map>, desired: &Map) -> bool {
    desired.iter().all(|(key, value)| existing.is_some_and(|existing| existing.get(key) == Some(value)))
}

/// The spec without the fields that controllers set.
fn without_controller_fields(spec: &InstanceSpec) -> InstanceSpec {
    InstanceSpec { controller: None, location: None, ..spec.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::map;
    use crate::testing::{mk_deployment, mk_instance, mk_template};

    fn mk_labelled(key: &str, value: &str) -> InstanceTemplateSpec {
        let metadata = EmbeddedMetadata { labels: map([(key, value)]), ..Default::default() };
        InstanceTemplateSpec { metadata: Some(metadata), ..mk_template("app:1") }
    }

    fn mk_foreign(hash: &str) -> Instance {
        let mut instance = mk_instance(&mk_deployment("web"), 0);
        instance.spec.controller.as_mut().unwrap().template_hash = hash.into();
        instance
    }

    /// A change of one of these values replaces every running instance of every installation on upgrade.
    #[test]
    fn the_hash_never_changes_between_versions() {
        assert_eq!(hash(&mk_template("app:1")), "510723274aa9c440");
        assert_eq!(hash(&mk_labelled("tier", "front")), "d56abdece7aadd20");
    }

    #[test]
    fn only_the_fields_that_an_instance_gets_change_the_hash() {
        let plain = hash(&mk_template("app:1"));
        assert_ne!(plain, hash(&mk_template("app:2")));
        assert_ne!(plain, hash(&mk_labelled("tier", "front")));
        let ignored =
            EmbeddedMetadata { name: Some("x".into()), namespace: Some("y".into()), ..Default::default() };
        assert_eq!(plain, hash(&InstanceTemplateSpec { metadata: Some(ignored), ..mk_template("app:1") }));
    }

    #[test]
    fn an_instance_with_the_hash_of_the_template_is_current() {
        let template = mk_template("app:1");
        assert!(is_current(&mk_instance(&mk_deployment("web"), 0), &template, &hash(&template)));
    }

    #[test]
    fn an_instance_with_another_hash_of_polis_is_outdated_even_if_its_spec_is_the_same() {
        let template = mk_template("app:1");
        assert!(!is_current(&mk_foreign("0123456789abcdef"), &template, &hash(&template)));
    }

    #[test]
    fn an_instance_of_another_implementation_is_current_until_the_template_changes() {
        let (same, changed) = (mk_template("app:1"), mk_template("app:2"));
        let instance = mk_foreign("5d8fcb4b67");
        assert!(is_current(&instance, &same, &hash(&same)));
        assert!(!is_current(&instance, &changed, &hash(&changed)));
    }

    #[test]
    fn a_foreign_instance_without_the_templates_labels_is_outdated() {
        let template = mk_labelled("tier", "front");
        let mut instance = mk_foreign("5d8fcb4b67");
        assert!(!is_current(&instance, &template, &hash(&template)));
        instance.metadata.labels.as_mut().unwrap().insert("tier".into(), "front".into());
        assert!(is_current(&instance, &template, &hash(&template)));
    }

    #[test]
    fn an_instance_without_spec_controller_is_compared_by_its_spec() {
        let template = mk_template("app:1");
        let mut instance = mk_foreign("");
        instance.spec.controller = None;
        assert!(is_current(&instance, &template, &hash(&template)));
        assert!(!is_current(&instance, &mk_template("app:2"), &hash(&mk_template("app:2"))));
    }

    #[test]
    fn fields_that_controllers_set_do_not_change_the_hash() {
        let mut template = mk_template("app:1");
        let before = hash(&template);
        template.spec.controller = Some(Default::default());
        template.spec.location = Some(Default::default());
        assert_eq!(hash(&template), before);
    }
}
