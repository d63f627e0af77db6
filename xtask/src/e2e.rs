//! `cargo xtask e2e`: the scenarios over all planes, on real engines or on embedded planes.

use std::{thread, time::Instant};

use anyhow::{Context, Result, bail};

use crate::{crds::root, outside};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the planes run on.
    #[arg(long, value_enum, default_value_t = PlaneBackend::Real)]
    on: PlaneBackend,
    /// Where the processes and their permissions come from.
    #[arg(long, value_enum, default_value_t = DeploymentMode::Plain)]
    deployment: DeploymentMode,
    /// Which CRDs the planes serve.
    #[arg(long, value_enum, default_value_t = CrdVersion::Current)]
    kinds: CrdVersion,
    /// Run only scenarios whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Number of scenarios that run in parallel. They mostly wait, so it may exceed the number of cores.
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    side_by_side: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlaneBackend {
    /// etcd, kube-apiserver and Karmada, as plain processes.
    Real,
    /// The API server and the federation of this repository.
    Embedded,
    /// Embedded, with a kube-apiserver as the first cell.
    RealCell,
    /// Embedded, with a kube-apiserver as the hub.
    RealHub,
}

/// The configuration of a suite.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SuiteConfig {
    pub(crate) on: PlaneBackend,
    pub(crate) deployment: DeploymentMode,
    pub(crate) kinds: CrdVersion,
}

impl SuiteConfig {
    /// The default configuration: the roles in `deploy/` and the current CRDs.
    pub(crate) fn on(on: PlaneBackend) -> Self {
        SuiteConfig { on, deployment: DeploymentMode::Plain, kinds: CrdVersion::Current }
    }

    /// The environment variables that the suite reads.
    pub(crate) fn variables(self) -> [(&'static str, &'static str); 3] {
        [
            ("POLIS_E2E_ON", self.on.value()),
            ("POLIS_E2E_DEPLOYMENT", self.deployment.value()),
            ("POLIS_E2E_KINDS", self.kinds.value()),
        ]
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeploymentMode {
    /// The roles in `deploy/`, and flags of the harness.
    Plain,
    /// As `overlays/management-plane` and `overlays/cell` render.
    Overlays,
    /// As `overlays/single-cluster` renders, and `overlays/cell` for the second city.
    SingleCluster,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CrdVersion {
    /// The CRDs of this tree.
    Current,
    /// The CRDs of the last release.
    Released,
}

impl CrdVersion {
    fn value(self) -> &'static str {
        match self {
            CrdVersion::Current => "current",
            CrdVersion::Released => "released",
        }
    }
}

impl DeploymentMode {
    fn value(self) -> &'static str {
        match self {
            DeploymentMode::Plain => "plain",
            DeploymentMode::Overlays => "overlays",
            DeploymentMode::SingleCluster => "single-cluster",
        }
    }

    /// The groups that run with rendered processes. Other groups start processes that no overlay renders.
    fn scenarios(self) -> &'static [&'static str] {
        match self {
            DeploymentMode::Plain => &[],
            DeploymentMode::Overlays | DeploymentMode::SingleCluster => {
                &["federation::", "ownership::", "rbac::"]
            }
        }
    }
}

/// The scenarios that `cargo xtask test` runs with rendered processes: federation (F1 to F3), ownership (O1
/// to O4) and RBAC. The others take too many minutes.
pub(crate) const RENDERED_SCENARIOS: &[&str] = &[
    "federation::a_deployment_is_copied_to_the_hub_with_its_city_policy_and_namespace_labels",
    "federation::a_city_policy_exists_as_long_as_its_last_deployment",
    "federation::deleting_a_deployment_keeps_the_policy_for_one_being_created",
    "federation::a_terminating_policy_is_recreated_for_the_next_deployment",
    "federation::a_deployment_runs_in_the_cell_of_its_city_and_in_no_other",
    "federation::a_workload_runs_in_every_city_that_it_names",
    "ownership::the_hub_namespace_is_recorded_on_the_deployment_before_anything_is_on_the_hub",
    "ownership::a_hub_copy_is_owned_by_the_hub_deployment_and_has_the_labels_of_its_namespace",
    "ownership::a_projection_is_owned_by_the_deployment_on_its_plane",
    "ownership::hub_copies_are_deleted_with_the_hub_deployment_and_stay_deleted_while_the_cell_runs",
    "ownership::a_deletion_completes_without_the_cell_and_the_cell_cleans_up_when_it_returns",
    "rbac::every_permission_of_the_shipped_roles_is_needed_and_sufficient",
];

impl PlaneBackend {
    fn value(self) -> &'static str {
        match self {
            PlaneBackend::Real => "real",
            PlaneBackend::Embedded => "embedded",
            PlaneBackend::RealCell => "real-cell",
            PlaneBackend::RealHub => "real-hub",
        }
    }
}

/// The integration tests of the platform and of admission, on embedded planes. Those of quota and admission
/// also run on real engines, in `cargo xtask test`.
const INTEGRATION_TESTS: &[&str] = &["--test", "platform", "--test", "webhooks"];
/// A test target that makes cargo build the `polis` binary with the features of the suites: the scenarios
/// start it.
const BINARY: &[&str] = &["--test", "quota_credential"];
/// Groups that wait for minutes and need little CPU: on embedded planes they run in parallel with everything
/// else.
const SLOW: &[&str] = &["quiescence::", "replicas::"];
/// Groups that count requests, of which a busy machine makes more: they run after everything else.
const COUNTING: &[&str] = &["request_budget::"];

pub(crate) fn run(args: Args) -> Result<()> {
    let config = SuiteConfig { on: args.on, deployment: args.deployment, kinds: args.kinds };
    // All features in every step, as in `cargo xtask test`, so that nothing is compiled twice.
    let suite = ["test", "--workspace", "--all-features", "--no-fail-fast"];
    let threads = format!("--test-threads={}", args.side_by_side);
    let targets: &[&str] = match (args.deployment, args.on) {
        // The packaging suite needs a real API server.
        (DeploymentMode::Plain, PlaneBackend::Real) => {
            &["--test", "packaging", "--test", "planes", "--test", "scenarios"]
        }
        (DeploymentMode::Plain, _) => &["--test", "planes", "--test", "scenarios"],
        _ => &["--test", "scenarios"],
    };
    let named: Vec<&str> = match args.filter.as_deref() {
        Some(filter) => vec![filter],
        None => args.deployment.scenarios().to_vec(),
    };
    let whole = args.on == PlaneBackend::Embedded && named.is_empty();
    let integration = if whole { INTEGRATION_TESTS } else { &[] };
    cargo(&[&suite[..], targets, integration, BINARY, &["--no-run"]].concat(), config)?;
    let all = [&suite, targets, &["--", &threads], &named].concat();
    if !whole {
        return cargo(&all, config);
    }
    let separate = SLOW.iter().chain(COUNTING);
    let skipped: Vec<&str> = separate.flat_map(|group| ["--skip", group]).collect();
    let main = [&all[..], &skipped].concat();
    let groups = |named: &[&'static str]| [&suite[..], &["--test", "scenarios", "--"], named].concat();
    let (slow, counting) = (groups(SLOW), groups(COUNTING));
    let start = Instant::now();
    let mut results = thread::scope(|scope| {
        let slow = scope.spawn(|| cargo(&slow, config));
        let main = [cargo(&main, config), cargo(&[&suite[..], integration].concat(), config)];
        let mut results = Vec::from(main);
        results.push(slow.join().expect("waiting for cargo does not panic"));
        results
    });
    results.push(cargo(&[&counting[..], &["--test-threads=1"]].concat(), config));
    println!("scenarios on embedded planes: {:.0?}", start.elapsed());
    results.into_iter().collect()
}

fn cargo(args: &[&str], config: SuiteConfig) -> Result<()> {
    let status = outside::command("cargo").args(args).current_dir(root()).envs(config.variables()).status();
    if !status.context("failed to start cargo")?.success() {
        bail!("cargo {} failed: see above", args.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_rendered_suite_exists() {
        for name in RENDERED_SCENARIOS {
            let (group, scenario) = name.split_once("::").unwrap();
            let source = root().join("e2e/tests/scenarios").join(format!("{group}.rs"));
            let source = std::fs::read_to_string(source).unwrap();
            assert!(source.contains(&format!("#[test]\nfn {scenario}()")), "{name}");
        }
    }
}
