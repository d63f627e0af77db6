//! Object names. Pure functions that compute every name that Polis gives to an object.
//!
//! A DNS label has at most 63 characters of `a-z`, `0-9` and `-`, and neither starts nor ends with `-`. Names
//! are for people and for addressing; controllers read relations between objects from labels and specs, never
//! from a name.

use sha2::{Digest, Sha256};

/// Longest DNS label, and longest label value.
pub const MAX_LABEL: usize = 63;
/// Largest ordinal that fits behind a deployment name; admission allows 1000 replicas, 0 to 999.
pub const MAX_ORDINAL: u32 = 999;

/// Maximum length of the workload's part of a deployment name.
const WORKLOAD_PART: usize = 30;
/// Hex digits of the fingerprint in a name: 40 bits. The chance of a collision among a million deployments of
/// one namespace is below one in two; a collision shows only as a rejected create.
const FINGERPRINT: usize = 10;
/// Maximum length of the city: 63 minus workload, fingerprint, two dashes, and `-999` of the instance.
const CITY_PART: usize = MAX_LABEL - WORKLOAD_PART - FINGERPRINT - 2 - 4;
/// Maximum length of the source's part of the name of a companion.
const COMPANION_PART: usize = 22;
/// Hex digits of the digest in the name of a companion.
const COMPANION_DIGEST: usize = 32;
/// Prefix of a project's name in a label value.
const CLUSTER_PREFIX: &str = "cluster-";

/// A project name that cannot be encoded, or a label value that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The project's name cannot be encoded as a label value.
    #[error(
        "failed to encode project name {0:?} as a label: it must be at most 55 letters, digits, '-', '.' and '/', and end with a letter or digit"
    )]
    ProjectName(String),
    /// The label value is not an encoded project name.
    #[error("failed to read a project name from label value {0:?}: expected \"cluster-\" and a name")]
    ClusterLabel(String),
}

/// Name of the deployment of one placement of a workload in one city.
///
/// Two deployments share a name only if uid, placement and city are all the same, regardless of the names.
pub fn deployment(workload: &str, workload_uid: &str, placement: &str, city: &str) -> String {
    let fingerprint = fingerprint([workload_uid, placement, city]);
    let parts = [dns_part(workload, WORKLOAD_PART), dns_part(city, CITY_PART), fingerprint];
    join(parts)
}

/// Name of an instance of a deployment.
pub fn instance(deployment: &str, ordinal: u32) -> String {
    format!("{deployment}-{ordinal}")
}

/// Name, on the hub and in cells, of the namespace for a project's namespace.
pub fn hub_namespace(namespace_uid: &str) -> String {
    format!("ns-{namespace_uid}")
}

/// Value of [`crate::labels::UPSTREAM_CLUSTER_NAME`] for a project.
///
/// Slashes become underscores, so a name with an underscore could not be decoded: it is an error, as is a
/// name that is too long. There is no lossy encoding: Polis finds the project of a hub object only by this
/// label.
pub fn cluster_label(project: &str) -> Result<String, NameError> {
    let fits = !project.is_empty()
        && CLUSTER_PREFIX.len() + project.len() <= MAX_LABEL
        && project.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'/'))
        && project.bytes().next_back().is_some_and(|b| b.is_ascii_alphanumeric());
    if !fits {
        return Err(NameError::ProjectName(project.to_owned()));
    }
    Ok(format!("{CLUSTER_PREFIX}{}", project.replace('/', "_")))
}

/// The project that [`cluster_label`] encoded.
pub fn project_of_label(label: &str) -> Result<String, NameError> {
    match label.strip_prefix(CLUSTER_PREFIX) {
        Some(name) if !name.is_empty() => Ok(name.replace('_', "/")),
        _ => Err(NameError::ClusterLabel(label.to_owned())),
    }
}

/// The key of a label's project in project discovery: the last segment of its name.
pub fn project_key_of_label(label: &str) -> Result<String, NameError> {
    let project = project_of_label(label)?;
    match project.rsplit('/').next() {
        Some(key) if !key.is_empty() => Ok(key.to_owned()),
        _ => Err(NameError::ClusterLabel(label.to_owned())),
    }
}

/// Name of the propagation policy of a city.
///
/// `city-` and the city in lower case, with dashes for spaces. Other programs look the policy up by this
/// rule, so cities that differ only in case or in spaces share a policy. If the result is not a DNS label,
/// the name has a fingerprint.
pub fn policy(city: &str) -> String {
    let plain = format!("city-{}", city.to_lowercase().replace(' ', "-"));
    if is_dns_label(&plain) {
        return plain;
    }
    let city_length = MAX_LABEL - "city-".len() - 1 - FINGERPRINT;
    join(["city".to_owned(), dns_part(city, city_length), fingerprint([city])])
}

/// Name of the Lease by which a cell shows the hub that its controllers run: city and cell, each in lower
/// case and with dashes for all that is neither a letter nor a digit. Admission on the hub uses the same
/// rule.
pub fn heartbeat(city: &str, cell: &str) -> String {
    let part = |name: &str| -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        name.chars().map(plain).collect()
    };
    format!("{}.{}", part(city), part(cell))
}

/// Name of the location of a city: the city itself if it is a DNS label, else its usable characters and a
/// fingerprint, so that cities that differ only in case are two locations.
pub fn location(city: &str) -> String {
    if is_dns_label(city) {
        return city.to_owned();
    }
    join([dns_part(city, CITY_PART), fingerprint([city])])
}

/// Name of the network context of a network in a location. `namespace` is that of the network reference, if
/// the reference has one.
pub fn network_context(network: &str, namespace: Option<&str>, location: &str) -> String {
    let plain = format!("{network}-{location}");
    if namespace.is_none() && is_dns_label(&plain) {
        return plain;
    }
    let fingerprint = fingerprint([namespace.unwrap_or_default(), network, location]);
    join([dns_part(network, WORKLOAD_PART), dns_part(location, CITY_PART), fingerprint])
}

/// Name of the network binding of one interface of a deployment.
pub fn network_binding(deployment: &str, interface: usize) -> String {
    format!("{deployment}-net-{interface}")
}

/// Name of the subnet claim that the instances of a network context share.
pub fn subnet_claim(network_context: &str) -> String {
    format!("{network_context}-0")
}

/// Name of the companion of a config map or secret, on the hub and in cells.
///
/// The prefix keeps it apart from objects that clusters create themselves, such as `kube-root-ca.crt`. The
/// digest has 128 bits, so that no source can be given a name whose companion is that of another source.
pub fn companion(kind: &str, source: &str) -> String {
    let digest = digest(&[kind, source]);
    join(["data".to_owned(), dns_part(source, COMPANION_PART), digest[..COMPANION_DIGEST].to_owned()])
}

/// Name of the quota claim of an instance, in the project.
pub fn resource_claim(instance: &str) -> String {
    format!("instance-{instance}")
}

/// Namespace on the hub that holds the works of a member cluster.
pub fn execution_namespace(cluster: &str) -> String {
    format!("karmada-es-{cluster}")
}

/// Name of the binding of a propagated object. As in Karmada, it does not contain the API group.
pub fn binding(kind: &str, name: &str) -> String {
    format!("{name}-{kind}").to_lowercase().replace(':', ".")
}

/// Whether a text is a DNS label.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty()
        && text.len() <= MAX_LABEL
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The part of a text that a DNS label can hold: lower case, other characters as single dashes, truncated.
fn dns_part(text: &str, max: usize) -> String {
    let mut part = String::with_capacity(max);
    for c in text.chars().map(|c| c.to_ascii_lowercase()) {
        if part.len() == max {
            break;
        }
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            part.push(c);
        } else if !part.is_empty() && !part.ends_with('-') {
            part.push('-');
        }
    }
    part.truncate(part.trim_end_matches('-').len());
    part
}

/// Joins the non-empty parts with dashes.
fn join<const N: usize>(parts: [String; N]) -> String {
    let parts: Vec<String> = parts.into_iter().filter(|p| !p.is_empty()).collect();
    parts.join("-")
}

/// The first digits of SHA-256 over the parts, NUL between them.
fn fingerprint<const N: usize>(parts: [&str; N]) -> String {
    digest(&parts)[..FINGERPRINT].to_owned()
}

/// SHA-256 over the parts, NUL between them, in hex.
fn digest(parts: &[&str]) -> String {
    let digest = Sha256::digest(parts.join("\0").as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "0b7e8a64-3c1f-4a57-9d0e-2f5f6f0f6a11";

    #[test]
    fn a_deployment_is_named_after_its_workload_and_city() {
        let name = deployment("web", UID, "default", "DFW");
        assert!(name.starts_with("web-dfw-"), "{name}");
        assert_eq!(name.len(), "web-dfw-".len() + 10);
        assert_eq!(name, deployment("web", UID, "default", "DFW"), "the same input gives the same name");
    }

    #[test]
    fn cities_that_differ_only_in_case_are_two_deployments() {
        assert_ne!(deployment("web", UID, "default", "DFW"), deployment("web", UID, "default", "dfw"));
    }

    #[test]
    fn moving_a_dash_between_placement_and_city_makes_another_name() {
        assert_ne!(deployment("web", UID, "a-b", "c"), deployment("web", UID, "a", "b-c"));
    }

    #[test]
    fn a_truncated_part_does_not_end_with_a_dash() {
        let name = deployment("a-workload-name-of-29-letters-and-more", UID, "default", "dfw");
        assert!(name.starts_with("a-workload-name-of-29-letters-dfw-"), "{name}");
    }

    #[test]
    fn a_city_without_a_usable_character_is_left_out_of_the_name() {
        let name = deployment("web", UID, "default", "東京");
        assert_eq!(name.len(), "web-".len() + 10);
        assert!(is_dns_label(&name));
    }

    #[test]
    fn a_policy_is_named_after_its_city() {
        assert_eq!(policy("DFW"), "city-dfw");
        assert_eq!(policy("New York"), "city-new-york");
    }

    #[test]
    fn names_that_other_programs_rely_on() {
        assert_eq!(instance("web-dfw-0123456789", 7), "web-dfw-0123456789-7");
        assert_eq!(hub_namespace(UID), format!("ns-{UID}"));
        assert_eq!(network_binding("web", 0), "web-net-0");
        assert_eq!(subnet_claim("default-dfw"), "default-dfw-0");
        assert_eq!(resource_claim("web-0"), "instance-web-0");
        assert_eq!(execution_namespace("dfw"), "karmada-es-dfw");
        assert_eq!(binding("WorkloadDeployment", "web"), "web-workloaddeployment");
    }

    #[test]
    fn a_location_is_named_after_its_city_and_no_two_cities_share_one() {
        assert_eq!(location("dfw"), "dfw");
        assert!(location("DFW").starts_with("dfw-"));
        assert!(is_dns_label(&location("New York")) && location("New York") != location("new york"));
    }

    #[test]
    fn a_network_context_is_named_after_network_and_location() {
        assert_eq!(network_context("default", None, "dfw"), "default-dfw");
        assert_ne!(network_context("default", Some("other"), "dfw"), "default-dfw");
        assert!(is_dns_label(&network_context(&"n".repeat(63), None, &"l".repeat(63))));
    }

    #[test]
    fn a_companion_is_never_named_like_its_source() {
        let name = companion("ConfigMap", "kube-root-ca.crt");
        assert!(name.starts_with("data-kube-root-ca-crt-") && is_dns_label(&name), "{name}");
        assert_ne!(name, companion("Secret", "kube-root-ca.crt"));
        assert_ne!(companion("Secret", "a.b"), companion("Secret", "a-b"));
        assert!(is_dns_label(&companion("Secret", &"a".repeat(253))));
    }

    #[test]
    fn a_project_name_is_decoded_from_its_label() {
        assert_eq!(cluster_label("datum-cloud").unwrap(), "cluster-datum-cloud");
        assert_eq!(project_key_of_label("cluster-datum-cloud").unwrap(), "datum-cloud");
        assert_eq!(cluster_label("/test-project-abc").unwrap(), "cluster-_test-project-abc");
        assert_eq!(project_key_of_label("cluster-_test-project-abc").unwrap(), "test-project-abc");
    }

    #[test]
    fn names_and_labels_that_cannot_be_converted_are_errors() {
        for name in ["", "a_b", "ends-with-", "ends/", "ümlaut", "a b", &"x".repeat(56)] {
            assert_eq!(cluster_label(name), Err(NameError::ProjectName(name.to_owned())));
        }
        for label in ["", "cluster-", "datum-cloud", "cluster-a_"] {
            assert!(project_key_of_label(label).is_err(), "{label:?}");
        }
    }

    fn project() -> impl Strategy<Value = String> {
        "[a-z0-9/]([a-z0-9./-]{0,40}[a-z0-9])?".prop_filter("no trailing slash", |name| !name.ends_with('/'))
    }

    /// Any text of fewer characters than this.
    fn text(characters: usize) -> impl Strategy<Value = String> {
        prop::collection::vec(any::<char>(), 0..characters).prop_map(String::from_iter)
    }

    proptest! {
        #[test]
        fn deployment_names_and_instance_names_are_dns_labels(
            workload in text(80), uid in "[0-9a-f-]{36}", placement in text(70), city in text(40),
        ) {
            let name = deployment(&workload, &uid, &placement, &city);
            prop_assert!(is_dns_label(&name), "{}", name);
            prop_assert!(is_dns_label(&instance(&name, MAX_ORDINAL)), "{}", name);
        }

        #[test]
        fn two_deployments_share_a_name_only_if_all_inputs_are_equal(
            workload in "[a-z][a-z0-9-]{0,40}",
            one in ("[0-9a-f]{4}", "[a-z-]{1,6}", "[a-zA-Z -]{1,6}"),
            other in ("[0-9a-f]{4}", "[a-z-]{1,6}", "[a-zA-Z -]{1,6}"),
        ) {
            let named = |(uid, placement, city): &(String, String, String)| deployment(&workload, uid, placement, city);
            prop_assert_eq!(one == other, named(&one) == named(&other));
        }

        #[test]
        fn a_policy_name_is_a_dns_label(city in text(90)) {
            let name = policy(&city);
            prop_assert!(is_dns_label(&name), "{}", name);
            prop_assert!(name.starts_with("city-"), "{}", name);
        }

        #[test]
        fn an_encoded_project_name_is_decoded_unchanged(project in project()) {
            let label = cluster_label(&project).unwrap();
            prop_assert!(label.len() <= MAX_LABEL);
            prop_assert_eq!(project_of_label(&label).unwrap(), project.clone());
            prop_assert_eq!(project_key_of_label(&label).unwrap(), project.rsplit('/').next().unwrap());
        }

        #[test]
        fn every_accepted_project_name_is_decoded_unchanged(project in text(70)) {
            if let Ok(label) = cluster_label(&project) {
                prop_assert_eq!(project_of_label(&label).unwrap(), project);
            }
        }
    }
}
