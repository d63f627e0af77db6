//! Templates: their fingerprint, and when an instance is out of date.
//!
//! The fingerprint is SHA-256 over the canonical JSON of what reaches an instance: labels, annotations and spec of the
//! template. Its first 16 hex digits are written. Field order, absent or empty members and new optional fields in
//! later versions of Polis leave it as it is; known values are pinned in the tests.
//!
//! Instances made by other implementations carry fingerprints that nobody else can compute; those have at most ten
//! characters, so the two are never confused. Such an instance is judged by what it is instead: it is up to date
//! while its spec, and the labels and annotations that the template asks for, are what the template would make. It
//! keeps its foreign fingerprint, so taking over a cell restarts nothing. A key that was *removed* from the template's
//! metadata cannot be seen that way and does not replace such an instance.

use polis_api::compute::{EmbeddedMetadata, Instance, InstanceSpec, InstanceTemplateSpec};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{canonical, metadata::Map};

/// Hex digits of a fingerprint: 64 bits, and longer than any foreign one.
const DIGITS: usize = 16;

/// The fingerprint of a template.
pub fn hash(template: &InstanceTemplateSpec) -> String {
    let metadata = template.metadata.clone().unwrap_or_default();
    let made = json!({
        "annotations": metadata.annotations,
        "labels": metadata.labels,
        "spec": canonical::value(&bare(&template.spec)),
    });
    let digest = Sha256::digest(canonical::text(&made).as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..DIGITS].to_owned()
}

/// Whether an instance is what the template would make. `hash` is the template's own.
pub fn is_current(instance: &Instance, template: &InstanceTemplateSpec, hash: &str) -> bool {
    match fingerprint(instance) {
        Some(own) if own == hash => true,
        Some(own) if is_ours(own) => false,
        _ => looks_as_made(instance, template),
    }
}

/// The fingerprint that an instance carries.
pub fn fingerprint(instance: &Instance) -> Option<&str> {
    instance.spec.controller.as_ref().map(|controller| controller.template_hash.as_str())
}

/// Whether a fingerprint is one of Polis.
fn is_ours(hash: &str) -> bool {
    hash.len() == DIGITS && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn looks_as_made(instance: &Instance, template: &InstanceTemplateSpec) -> bool {
    let none = EmbeddedMetadata::default();
    let wanted = template.metadata.as_ref().unwrap_or(&none);
    canonical::same(&bare(&instance.spec), &bare(&template.spec))
        && contains(instance.metadata.labels.as_ref(), &wanted.labels)
        && contains(instance.metadata.annotations.as_ref(), &wanted.annotations)
}

fn contains(have: Option<&Map>, wanted: &Map) -> bool {
    wanted.iter().all(|(key, value)| have.is_some_and(|have| have.get(key) == Some(value)))
}

/// The spec without what controllers write into it.
fn bare(spec: &InstanceSpec) -> InstanceSpec {
    InstanceSpec { controller: None, location: None, ..spec.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::map;
    use crate::testing::{mk_deployment, mk_instance, mk_template};

    fn labelled(key: &str, value: &str) -> InstanceTemplateSpec {
        let metadata = EmbeddedMetadata { labels: map([(key, value)]), ..Default::default() };
        InstanceTemplateSpec { metadata: Some(metadata), ..mk_template("app:1") }
    }

    fn foreign(hash: &str) -> Instance {
        let mut instance = mk_instance(&mk_deployment("web"), 0);
        instance.spec.controller.as_mut().unwrap().template_hash = hash.into();
        instance
    }

    /// A change of one of these values replaces every running instance of every installation on upgrade.
    #[test]
    fn the_fingerprint_never_changes_between_versions() {
        assert_eq!(hash(&mk_template("app:1")), "510723274aa9c440");
        assert_eq!(hash(&labelled("tier", "front")), "d56abdece7aadd20");
    }

    #[test]
    fn what_reaches_an_instance_counts_and_nothing_else() {
        let plain = hash(&mk_template("app:1"));
        assert_ne!(plain, hash(&mk_template("app:2")));
        assert_ne!(plain, hash(&labelled("tier", "front")));
        let ignored =
            EmbeddedMetadata { name: Some("x".into()), namespace: Some("y".into()), ..Default::default() };
        assert_eq!(plain, hash(&InstanceTemplateSpec { metadata: Some(ignored), ..mk_template("app:1") }));
    }

    #[test]
    fn an_instance_with_the_templates_fingerprint_is_current() {
        let template = mk_template("app:1");
        assert!(is_current(&mk_instance(&mk_deployment("web"), 0), &template, &hash(&template)));
    }

    #[test]
    fn an_instance_with_another_fingerprint_of_ours_is_outdated_even_when_it_looks_the_same() {
        let template = mk_template("app:1");
        assert!(!is_current(&foreign("0123456789abcdef"), &template, &hash(&template)));
    }

    #[test]
    fn an_instance_of_another_implementation_is_current_until_the_template_changes() {
        let (same, changed) = (mk_template("app:1"), mk_template("app:2"));
        let instance = foreign("5d8fcb4b67");
        assert!(is_current(&instance, &same, &hash(&same)));
        assert!(!is_current(&instance, &changed, &hash(&changed)));
    }

    #[test]
    fn a_foreign_instance_without_the_templates_labels_is_outdated() {
        let template = labelled("tier", "front");
        let mut instance = foreign("5d8fcb4b67");
        assert!(!is_current(&instance, &template, &hash(&template)));
        instance.metadata.labels.as_mut().unwrap().insert("tier".into(), "front".into());
        assert!(is_current(&instance, &template, &hash(&template)));
    }

    #[test]
    fn an_instance_without_controller_notes_is_judged_by_its_spec() {
        let template = mk_template("app:1");
        let mut instance = foreign("");
        instance.spec.controller = None;
        assert!(is_current(&instance, &template, &hash(&template)));
        assert!(!is_current(&instance, &mk_template("app:2"), &hash(&mk_template("app:2"))));
    }

    #[test]
    fn notes_of_controllers_do_not_count() {
        let mut template = mk_template("app:1");
        let before = hash(&template);
        template.spec.controller = Some(Default::default());
        template.spec.location = Some(Default::default());
        assert_eq!(hash(&template), before);
    }
}
