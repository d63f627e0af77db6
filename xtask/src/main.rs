//! Tasks of this repository, run as `cargo xtask <task>`.
//!
//! One file per task. The `--help` of a task describes what it does, what it needs and how long it takes.

use clap::{Parser, Subcommand};

mod advisories;
mod alerts;
mod bench;
mod bundle;
mod chart;
mod crds;
mod dashboards;
mod e2e;
mod go_tool;
mod graph;
mod image;
mod oci;
mod outside;
mod release;
mod scenarios;
mod sign;
mod sim;
mod test;
mod testbed;
mod words;
mod workflows;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of this repository", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check: format, lints, unit and doc tests, generated files, suites on real engines.
    ///
    /// Needs: Rust and a C compiler. The suites on real engines also need Go 1.25 or newer; without it
    /// they are skipped, in one line, unless CI=true makes that an error.
    /// Takes, on two cores: about 18 minutes warm with --fast, 33 in full; up to 60 without any caches.
    Test(test::Args),
    /// Build, start, inspect and stop a test cluster of real etcd, Kubernetes and Karmada processes.
    ///
    /// Needs: Go 1.25 or newer, 6 GB of disk for Go's caches, 2 GB of memory while it runs.
    /// Takes: about 8 minutes on two cores to build once; 10 to 30 seconds to start.
    Testbed(testbed::Args),
    /// Run the scenarios over all planes: project, hub, cells, with the controllers as real processes.
    ///
    /// Needs: Rust alone for --on embedded, what `testbed` needs for --on real.
    /// Takes: on two cores, warm, under 3 minutes on embedded planes, about 8 on real engines.
    E2e(e2e::Args),
    /// Measure Polis beside its peers, print a table and write target/bench/<name>.json.
    ///
    /// Needs: what `testbed` needs where the peer is a real engine, and a quiet machine. Takes: minutes each.
    Bench(bench::Args),
    /// Write the CustomResourceDefinitions of `polis-api` to `deploy/` and `testbed/`.
    ///
    /// Needs: Rust. Takes: a second. `--check` writes nothing and fails when a file has drifted.
    Crds(crds::Args),
    /// Test the alert rules with promtool.
    ///
    /// Needs: promtool on the PATH, or Go 1.26 or newer to build it. Takes: seconds; about three minutes on
    /// two cores to build once.
    Alerts(alerts::Args),
    /// Write the JSON of the dashboards from their description.
    ///
    /// Needs: Rust. Takes: a second. `--check` writes nothing and fails when a file has drifted.
    Dashboards(dashboards::Args),
    /// Write the templates of the Helm chart in deploy/chart from the kustomizations.
    ///
    /// Needs: Rust and kubectl. Takes: seconds. `--check` writes nothing, fails when a file has drifted,
    /// and compares what the chart renders to with what kustomize renders; with Helm, if it is installed
    /// or built.
    Chart(chart::Args),
    /// Build `polis` as a static program and write its image as an OCI layout, without a daemon.
    ///
    /// Needs: Rust, a C compiler, and the static libraries of libc. Takes: as long as a release build.
    Image(image::Args),
    /// Write `deploy/` as an OCI artifact for GitOps tools.
    ///
    /// Needs: Rust. Takes: a second.
    Bundle(bundle::Args),
    /// Write the files of a release: program, image, manifests, Helm chart, SBOM and checksums.
    ///
    /// Needs: Rust, a C compiler, and the static libraries of libc. Takes: as long as a release build.
    Release(release::Args),
    /// Sign files with a local key, or check their signatures, in the bundle format of sigstore.
    ///
    /// Needs: Rust, and a P-256 key in PKCS#8. Takes: a second. `image` and `bundle` have --sign-key and
    /// --verify for their layouts.
    Sign(sign::Args),
    /// Run the whole federation in one deterministic thread, with faults and invariants, by seed.
    ///
    /// Needs: Rust. Takes: about a second per seed. `docs/dev/simulation.md` explains the output.
    Sim(sim::Args),
    /// Check names, comments and pages against the vocabulary of the project.
    ///
    /// Needs: Rust and git. Takes: a second.
    Words(words::Args),
    /// Write the dependency graph of the crates into docs/dev/architecture.md.
    ///
    /// Needs: Rust. Takes: a second.
    Graph(graph::Args),
    /// Check the workflows with actionlint.
    ///
    /// Needs: actionlint on the PATH, or Go 1.25 or newer to build it. Takes: a second; 20 to build once.
    Workflows(workflows::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Test(args) => test::run(args),
        Task::Testbed(args) => testbed::run(args),
        Task::E2e(args) => e2e::run(args),
        Task::Bench(args) => bench::run(args),
        Task::Crds(args) => crds::run(args),
        Task::Alerts(args) => alerts::run(args),
        Task::Dashboards(args) => dashboards::run(args),
        Task::Chart(args) => chart::run(args),
        Task::Image(args) => image::run(args),
        Task::Bundle(args) => bundle::run(args),
        Task::Release(args) => release::run(args),
        Task::Sign(args) => sign::run(args),
        Task::Sim(args) => sim::run(args),
        Task::Words(args) => words::run(args),
        Task::Graph(args) => graph::run(args),
        Task::Workflows(args) => workflows::run(args),
    }
}
