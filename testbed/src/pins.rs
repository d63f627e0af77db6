//! The pinned programs of the test bed, and their build flags.
//!
//! The versions are pinned by the Go modules beside this crate (`etcd/`, `kubernetes/`, `karmada/`: `go.mod`
//! and `go.sum`, no Go source). There are three modules because in a single one Go would raise the
//! dependencies of Kubernetes to those of Karmada, a combination that neither project tests.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A Go module that pins programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    /// The etcd server.
    Etcd,
    /// Kubernetes, with every staging module replaced by its published version.
    Kubernetes,
    /// Karmada.
    Karmada,
}

impl Module {
    /// All modules.
    pub const ALL: [Module; 3] = [Module::Etcd, Module::Kubernetes, Module::Karmada];

    /// The directory of the module in this crate.
    pub fn folder(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(match self {
            Module::Etcd => "etcd",
            Module::Kubernetes => "kubernetes",
            Module::Karmada => "karmada",
        })
    }

    /// The path of the pinned Go module.
    fn subject(self) -> &'static str {
        match self {
            Module::Etcd => "go.etcd.io/etcd/server/v3",
            Module::Kubernetes => "k8s.io/kubernetes",
            Module::Karmada => "github.com/karmada-io/karmada",
        }
    }

    fn go_mod(self) -> &'static str {
        match self {
            Module::Etcd => include_str!("../etcd/go.mod"),
            Module::Kubernetes => include_str!("../kubernetes/go.mod"),
            Module::Karmada => include_str!("../karmada/go.mod"),
        }
    }

    fn go_sum(self) -> &'static str {
        match self {
            Module::Etcd => include_str!("../etcd/go.sum"),
            Module::Kubernetes => include_str!("../kubernetes/go.sum"),
            Module::Karmada => include_str!("../karmada/go.sum"),
        }
    }

    /// The pinned version, such as `v1.35.4`.
    pub fn version(self) -> &'static str {
        required_version(self.go_mod(), self.subject())
            .expect("each go.mod requires its subject, which a unit test checks")
    }

    /// The lowest Go version that the module supports, from its `go` line.
    pub fn go_version(self) -> &'static str {
        self.go_mod()
            .lines()
            .find_map(|line| line.strip_prefix("go "))
            .expect("every go.mod has a go line")
            .trim()
    }

    /// Flags of `go build` between `build` and the package.
    pub fn build_flags(self) -> Vec<String> {
        let version = self.version();
        let mut flags = vec!["-trimpath".to_owned()];
        // -s -w: no symbol table and no debug information; halves the size of a program.
        let mut link = "-s -w".to_owned();
        match self {
            Module::Etcd => {}
            // Without these, /version returns v0.0.0-master.
            Module::Kubernetes => {
                let mut parts = version.trim_start_matches('v').split('.');
                let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                for (key, value) in [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor)] {
                    link += &format!(" -X k8s.io/component-base/version.{key}={value}");
                }
            }
            // Karmada 1.18 uses methods of API types that Kubernetes 0.35 has only with this build tag.
            Module::Karmada => {
                flags.extend(["-tags".to_owned(), "kubernetes_protomessage_one_more_release".to_owned()]);
                link += &format!(" -X github.com/karmada-io/karmada/pkg/version.gitVersion={version}");
            }
        }
        flags.extend(["-ldflags".to_owned(), link]);
        flags
    }
}

/// One program of the test bed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Its file name.
    pub name: &'static str,
    /// The module that pins it.
    pub module: Module,
    /// Its main package.
    pub package: &'static str,
}

const fn program(name: &'static str, module: Module, package: &'static str) -> Program {
    Program { name, module, package }
}

/// The store of all planes.
pub const ETCD: Program = program("etcd", Module::Etcd, "go.etcd.io/etcd/server/v3");
/// The API server of a plane.
pub const KUBE_APISERVER: Program =
    program("kube-apiserver", Module::Kubernetes, "k8s.io/kubernetes/cmd/kube-apiserver");
/// Namespace deletion, garbage collection and service accounts of a plane.
pub const KUBE_CONTROLLER_MANAGER: Program =
    program("kube-controller-manager", Module::Kubernetes, "k8s.io/kubernetes/cmd/kube-controller-manager");
/// The command-line client.
pub const KUBECTL: Program = program("kubectl", Module::Kubernetes, "k8s.io/kubernetes/cmd/kubectl");
/// Karmada's controllers.
pub const KARMADA_CONTROLLER_MANAGER: Program = program(
    "karmada-controller-manager",
    Module::Karmada,
    "github.com/karmada-io/karmada/cmd/controller-manager",
);
/// Karmada's scheduler: selects the members for an object.
pub const KARMADA_SCHEDULER: Program =
    program("karmada-scheduler", Module::Karmada, "github.com/karmada-io/karmada/cmd/scheduler");
/// Karmada's admission webhook: without it bindings have no permanent id and nothing is scheduled.
pub const KARMADA_WEBHOOK: Program =
    program("karmada-webhook", Module::Karmada, "github.com/karmada-io/karmada/cmd/webhook");
/// Serves the kind Cluster.
pub const KARMADA_AGGREGATED_APISERVER: Program = program(
    "karmada-aggregated-apiserver",
    Module::Karmada,
    "github.com/karmada-io/karmada/cmd/aggregated-apiserver",
);
/// The agent of a pull member.
pub const KARMADA_AGENT: Program =
    program("karmada-agent", Module::Karmada, "github.com/karmada-io/karmada/cmd/agent");

/// All programs in build order: programs of one module share most of their packages.
pub const PROGRAMS: [Program; 9] = [
    ETCD,
    KUBE_APISERVER,
    KUBE_CONTROLLER_MANAGER,
    KUBECTL,
    KARMADA_CONTROLLER_MANAGER,
    KARMADA_SCHEDULER,
    KARMADA_WEBHOOK,
    KARMADA_AGGREGATED_APISERVER,
    KARMADA_AGENT,
];

/// The environment of `go build`: the local toolchain only, no cgo, no flags of the user.
pub const BUILD_ENV: [(&str, &str); 4] =
    [("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "0"), ("GOFLAGS", "-mod=readonly"), ("GOWORK", "off")];

/// The cache key: a hash of all pins, flags and programs, so that a cached program is never stale.
pub fn key() -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    };
    for module in Module::ALL {
        add(module.go_mod());
        add(module.go_sum());
        module.build_flags().iter().for_each(|flag| add(flag));
    }
    for program in PROGRAMS {
        add(program.name);
        add(program.package);
    }
    for (name, value) in BUILD_ENV {
        add(name);
        add(value);
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn required_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("require ").strip_prefix(module)?.strip_prefix(' '))
        .find_map(|rest| rest.split_whitespace().next().filter(|version| version.starts_with('v')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pins_are_the_tested_versions() {
        assert_eq!(Module::Etcd.version(), "v3.6.6");
        assert_eq!(Module::Kubernetes.version(), "v1.35.4");
        assert_eq!(Module::Karmada.version(), "v1.18.2");
    }

    #[test]
    fn a_version_is_read_only_from_a_require_line() {
        let go_mod = "tool a.b/c\nreplace a.b/c => a.b/c v9.9.9\nrequire (\n\ta.b/cd v1.0.0\n\ta.b/c v2.0.0 // indirect\n)\n";
        assert_eq!(required_version(go_mod, "a.b/c"), Some("v2.0.0"));
        assert_eq!(required_version("require a.b/c v3.0.0\n", "a.b/c"), Some("v3.0.0"));
        assert_eq!(required_version(go_mod, "a.b/x"), None);
    }

    #[test]
    fn every_staging_module_of_kubernetes_is_replaced_by_the_pinned_version() {
        let staging_version = Module::Kubernetes.version().replacen("v1.", "v0.", 1);
        let replaced: Vec<&str> =
            Module::Kubernetes.go_mod().lines().filter(|line| line.contains("=> k8s.io/")).collect();
        assert_eq!(replaced.len(), 31);
        assert!(replaced.iter().all(|line| line.ends_with(&staging_version)), "{replaced:?}");
    }

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        for program in PROGRAMS {
            let tool = program.module.go_mod().lines().any(|line| line.trim().ends_with(program.package));
            assert!(tool, "{} is not a tool of {:?}", program.package, program.module);
        }
    }

    #[test]
    fn kubernetes_gets_its_version_and_karmada_its_build_tag() {
        let kubernetes = Module::Kubernetes.build_flags().join(" ");
        assert!(kubernetes.contains("version.gitVersion=v1.35.4"), "{kubernetes}");
        assert!(kubernetes.contains("version.gitMinor=35"), "{kubernetes}");
        assert!(
            Module::Karmada.build_flags().contains(&"kubernetes_protomessage_one_more_release".to_owned())
        );
    }

    #[test]
    fn the_key_is_short_stable_hex() {
        assert_eq!(key(), key());
        assert_eq!(key().len(), 16);
        assert!(key().chars().all(|c| c.is_ascii_hexdigit()));
    }
}
