//! Which programs the bed is made of, and how they are built.
//!
//! The versions are pinned by the Go modules beside this crate (`etcd/`, `kubernetes/`, `karmada/`: `go.mod`
//! and `go.sum`, no Go source). They are three modules and not one, because in one module Go would lift the
//! dependencies of Kubernetes to those of Karmada: it might compile, but it is what neither project tests.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// One Go module of pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    /// etcd's server.
    Etcd,
    /// Kubernetes, with every staging module replaced by its published twin.
    Kubernetes,
    /// Karmada.
    Karmada,
}

impl Module {
    /// All three.
    pub const ALL: [Module; 3] = [Module::Etcd, Module::Kubernetes, Module::Karmada];

    /// The folder of the module in this crate.
    pub fn folder(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(match self {
            Module::Etcd => "etcd",
            Module::Kubernetes => "kubernetes",
            Module::Karmada => "karmada",
        })
    }

    /// The module that the pin is about.
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
            .expect("each go.mod requires its subject; a test holds it")
    }

    /// The lowest Go that the module accepts, from its `go` line.
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
        // -s -w: no symbol table and no debug information, which halves the size of a program.
        let mut link = "-s -w".to_owned();
        match self {
            Module::Etcd => {}
            // Without these /version says v0.0.0-master.
            Module::Kubernetes => {
                let mut parts = version.trim_start_matches('v').split('.');
                let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                for (key, value) in [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor)] {
                    link += &format!(" -X k8s.io/component-base/version.{key}={value}");
                }
            }
            // Karmada 1.18 still asks its API types for methods that Kubernetes 0.35 hides behind this tag.
            Module::Karmada => {
                flags.extend(["-tags".to_owned(), "kubernetes_protomessage_one_more_release".to_owned()]);
                link += &format!(" -X github.com/karmada-io/karmada/pkg/version.gitVersion={version}");
            }
        }
        flags.extend(["-ldflags".to_owned(), link]);
        flags
    }
}

/// One program of the bed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// The name of its file.
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
/// The user's tool.
pub const KUBECTL: Program = program("kubectl", Module::Kubernetes, "k8s.io/kubernetes/cmd/kubectl");
/// Karmada's controllers.
pub const KARMADA_CONTROLLER_MANAGER: Program = program(
    "karmada-controller-manager",
    Module::Karmada,
    "github.com/karmada-io/karmada/cmd/controller-manager",
);
/// Karmada's scheduler: which member an object goes to.
pub const KARMADA_SCHEDULER: Program =
    program("karmada-scheduler", Module::Karmada, "github.com/karmada-io/karmada/cmd/scheduler");
/// Karmada's admission: without it bindings have no identity and nothing is scheduled.
pub const KARMADA_WEBHOOK: Program =
    program("karmada-webhook", Module::Karmada, "github.com/karmada-io/karmada/cmd/webhook");
/// Serves the kind Cluster.
pub const KARMADA_AGGREGATED_APISERVER: Program = program(
    "karmada-aggregated-apiserver",
    Module::Karmada,
    "github.com/karmada-io/karmada/cmd/aggregated-apiserver",
);
/// The agent of a member that pulls.
pub const KARMADA_AGENT: Program =
    program("karmada-agent", Module::Karmada, "github.com/karmada-io/karmada/cmd/agent");

/// All programs, in the order in which they are built: those of one module share most of their packages.
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

/// The environment in which Go builds: the Go that is there and no other, no C, nothing from the user's flags.
pub const BUILD_ENV: [(&str, &str); 4] =
    [("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "0"), ("GOFLAGS", "-mod=readonly"), ("GOWORK", "off")];

/// The key of the cache: another pin, flag or program is another key, so that a cache can never be stale.
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
    fn the_pins_are_the_versions_that_were_tried_together() {
        assert_eq!(Module::Etcd.version(), "v3.6.6");
        assert_eq!(Module::Kubernetes.version(), "v1.35.4");
        assert_eq!(Module::Karmada.version(), "v1.18.2");
    }

    #[test]
    fn a_version_is_read_from_the_require_line_and_from_no_other() {
        let go_mod = "tool a.b/c\nreplace a.b/c => a.b/c v9.9.9\nrequire (\n\ta.b/cd v1.0.0\n\ta.b/c v2.0.0 // indirect\n)\n";
        assert_eq!(required_version(go_mod, "a.b/c"), Some("v2.0.0"));
        assert_eq!(required_version("require a.b/c v3.0.0\n", "a.b/c"), Some("v3.0.0"));
        assert_eq!(required_version(go_mod, "a.b/x"), None);
    }

    #[test]
    fn every_staging_module_of_kubernetes_is_replaced_by_the_twin_of_the_pinned_version() {
        let twin = Module::Kubernetes.version().replacen("v1.", "v0.", 1);
        let replaced: Vec<&str> =
            Module::Kubernetes.go_mod().lines().filter(|line| line.contains("=> k8s.io/")).collect();
        assert_eq!(replaced.len(), 31);
        assert!(replaced.iter().all(|line| line.ends_with(&twin)), "{replaced:?}");
    }

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        for program in PROGRAMS {
            let tool = program.module.go_mod().lines().any(|line| line.trim().ends_with(program.package));
            assert!(tool, "{} is no tool of {:?}", program.package, program.module);
        }
    }

    #[test]
    fn kubernetes_is_told_its_version_and_karmada_gets_its_tag() {
        let kubernetes = Module::Kubernetes.build_flags().join(" ");
        assert!(kubernetes.contains("version.gitVersion=v1.35.4"), "{kubernetes}");
        assert!(kubernetes.contains("version.gitMinor=35"), "{kubernetes}");
        assert!(
            Module::Karmada.build_flags().contains(&"kubernetes_protomessage_one_more_release".to_owned())
        );
    }

    #[test]
    fn the_key_is_short_hex_and_the_same_each_time() {
        assert_eq!(key(), key());
        assert_eq!(key().len(), 16);
        assert!(key().chars().all(|c| c.is_ascii_hexdigit()));
    }
}
