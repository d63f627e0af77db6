//! Names of bindings, Works and execution namespaces, equal to Karmada's.
//!
//! The names are part of the API: tools find bindings and Works by them, and an agent derives the name of a
//! Work from a deleted member object. The hash is 32-bit FNV-1a in Kubernetes' safe encoding. It does not
//! include the API group, so two kinds with the same name in different groups share a binding.

/// Prefix of the namespaces that hold the Works of one member.
pub const EXECUTION_PREFIX: &str = "karmada-es-";
/// Namespace of the Secrets with the members' credentials.
pub const CLUSTER_NAMESPACE: &str = "karmada-cluster";
/// Namespace of Karmada's own objects.
pub const SYSTEM_NAMESPACE: &str = "karmada-system";

/// The namespace on the hub that holds the Works of `cluster`.
pub fn execution_namespace(cluster: &str) -> String {
    format!("{EXECUTION_PREFIX}{cluster}")
}

/// The member of an execution namespace; `None` for other namespaces.
pub fn cluster_of_execution_namespace(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(EXECUTION_PREFIX).filter(|cluster| !cluster.is_empty())
}

/// Whether a namespace belongs to the federation and is never propagated.
pub fn is_reserved_namespace(namespace: &str) -> bool {
    namespace == SYSTEM_NAMESPACE || namespace == CLUSTER_NAMESPACE || namespace.starts_with(EXECUTION_PREFIX)
}

/// The name of the binding of a resource template.
pub fn binding(kind: &str, name: &str) -> String {
    format!("{name}-{kind}").replace(':', ".").to_lowercase()
}

/// The name of the Work of an object; the namespace is empty for a cluster-scoped object.
pub fn work(kind: &str, namespace: &str, name: &str) -> String {
    let name = name.replace(':', ".").to_lowercase();
    let text =
        if namespace.is_empty() { format!("{name}-{kind}") } else { format!("{namespace}-{name}-{kind}") };
    format!("{name}-{}", digest(&text.to_lowercase()))
}

/// The hash of a dependent binding in a `depended-by-…` label.
pub fn binding_reference(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { digest(name) } else { digest(&format!("{namespace}/{name}")) }
}

fn digest(text: &str) -> String {
    fnv1a(text.as_bytes()).to_string().bytes().map(safe_char).collect()
}

/// FNV-1a over 32 bits.
pub fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Encodes a byte as a character of the alphabet without vowels that Kubernetes uses for generated names.
fn safe_char(byte: u8) -> char {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    char::from(ALPHABET[usize::from(byte) % ALPHABET.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference values from Karmada v1.18.2 (`pkg/util/names`).
    #[test]
    fn work_names_equal_those_of_karmada() {
        for (kind, namespace, name, expected) in [
            ("WorkloadDeployment", "ns-1111", "web-dfw-0123456789", "web-dfw-0123456789-754cbffd45"),
            ("ClusterRole", "", "system:admin", "system.admin-7c7568b598"),
            ("Namespace", "", "ns-5f0c", "ns-5f0c-979cfd757"),
            ("Deployment", "default", "Nginx", "nginx-687f7fb96f"),
            ("ConfigMap", "x", "ü", "ü-757d6d48f6"),
        ] {
            assert_eq!(work(kind, namespace, name), expected, "{kind} {namespace}/{name}");
        }
    }

    #[test]
    fn binding_names_equal_those_of_karmada() {
        assert_eq!(
            binding("WorkloadDeployment", "web-dfw-0123456789"),
            "web-dfw-0123456789-workloaddeployment"
        );
        assert_eq!(binding("ClusterRole", "system:admin"), "system.admin-clusterrole");
        assert_eq!(binding_reference("ns", "name"), "57ddf6f868");
        assert_eq!(binding_reference("", "name"), "67bf7c5b66");
    }

    #[test]
    fn an_execution_namespace_names_its_member() {
        assert_eq!(cluster_of_execution_namespace(&execution_namespace("dfw")), Some("dfw"));
        assert_eq!(cluster_of_execution_namespace("default"), None);
        assert_eq!(cluster_of_execution_namespace(EXECUTION_PREFIX), None);
    }

    #[test]
    fn namespaces_of_the_federation_are_reserved() {
        assert!(
            ["karmada-system", "karmada-cluster", "karmada-es-dfw"].into_iter().all(is_reserved_namespace)
        );
        assert!(!is_reserved_namespace("karmada"));
    }
}
