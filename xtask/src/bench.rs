//! `cargo xtask bench`: runs the benchmarks, with Polis and its peers on one machine in one run.
//!
//! A benchmark is a bench target of the crate that it measures. It prints a table and writes
//! `target/bench/<name>.json`. It has no pass or fail, so `cargo xtask test` does not run it.

use anyhow::{Context, Result, bail};

use crate::crds::root;
use crate::e2e::{PlaneBackend, SuiteConfig};
use crate::outside;

/// The benchmarks: name of the bench target, and what it compares.
const BENCHES: &[(&str, &str)] = &[
    ("engine", "idle and busy watches of thousands of projects, compared with kube-rs"),
    ("apiserver", "the embedded API server compared with kube-apiserver and etcd, and the cost of a plane"),
    ("federation", "the embedded federation compared with Karmada, and with a thousand members"),
    ("pipeline", "latency from a workload to its projected instance, and requests per workload"),
    ("admission", "responses of the webhooks without access reviews"),
    ("projects", "a thousand projects: opened, served, flooded and deleted"),
    ("quota", "how long an instance waits for its grant, compared with polling every second"),
    ("up", "start, memory, latency and throughput of `polis up`, compared with Karmada"),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which benchmarks to run; all if none is named.
    #[arg(value_name = "NAME", value_parser = known)]
    names: Vec<String>,
    /// What the planes of `pipeline` run on.
    #[arg(long, value_enum, default_value_t = PlaneBackend::Embedded)]
    on: PlaneBackend,
    /// List the benchmarks without running them.
    #[arg(long)]
    list: bool,
}

fn known(name: &str) -> Result<String, String> {
    match BENCHES.iter().any(|(bench, _)| *bench == name) {
        true => Ok(name.to_owned()),
        false => {
            let names: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
            Err(format!("there is no such benchmark; use one of: {}", names.join(", ")))
        }
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.list {
        for (name, about) in BENCHES {
            println!("{name:12} {about}");
        }
        return Ok(());
    }
    let wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|wanted| wanted == name);
    for (name, about) in BENCHES.iter().filter(|(name, _)| wanted(name)) {
        println!("== {name}: {about}");
        if *name == "pipeline" {
            // The benchmark starts the `polis` binary.
            cargo(&["build", "--release", "--workspace", "--all-features", "--bin", "polis"], args.on)?;
        }
        cargo(&["bench", "--workspace", "--all-features", "--bench", name], args.on)
            .with_context(|| format!("benchmark {name} failed"))?;
    }
    Ok(())
}

fn cargo(args: &[&str], on: PlaneBackend) -> Result<()> {
    let status = outside::command("cargo")
        .args(args)
        .current_dir(root())
        .envs(SuiteConfig::on(on).variables())
        .status();
    if !status.context("failed to start cargo")?.success() {
        bail!("cargo {} failed: see above", args.join(" "));
    }
    Ok(())
}
