//! `cargo xtask bench`: Polis beside its peers, in one run on one machine.
//!
//! A benchmark is a bench target of the crate that it measures. It prints a table and writes
//! `target/bench/<name>.json`; it judges nothing, so it is no part of `cargo xtask test`.

use anyhow::{Context, Result, bail};

use crate::crds::root;
use crate::e2e::{On, Setting};
use crate::outside;

/// The benchmarks: name of the bench target, and what it compares.
const BENCHES: &[(&str, &str)] = &[
    ("engine", "idle and busy watches of thousands of projects, beside stock kube"),
    ("apiserver", "the embedded API server beside kube-apiserver and etcd, and what a plane costs"),
    ("federation", "the embedded federation beside Karmada, and how it is with a thousand members"),
    ("pipeline", "from a workload to its instance and back, and what that costs in requests"),
    ("admission", "answers of the webhooks that ask nobody for access"),
    ("projects", "a thousand projects that come and go: engaged, served, flooded, and gone without a trace"),
    ("quota", "how long an instance waits for its grant, beside a cell that looks every second"),
    ("up", "start, memory, latency and throughput of `polis up`, beside a real Karmada"),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which benchmarks; all of them when none is named.
    #[arg(value_name = "NAME", value_parser = known)]
    names: Vec<String>,
    /// What the planes of `pipeline` are made of.
    #[arg(long, value_enum, default_value_t = On::Embedded)]
    on: On,
    /// Says what there is and runs nothing.
    #[arg(long)]
    list: bool,
}

fn known(name: &str) -> Result<String, String> {
    match BENCHES.iter().any(|(bench, _)| *bench == name) {
        true => Ok(name.to_owned()),
        false => {
            let names: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
            Err(format!("there is no such benchmark; there are: {}", names.join(", ")))
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
            // It measures the controllers as they are shipped: as the process `polis manager`.
            cargo(&["build", "--release", "--workspace", "--all-features", "--bin", "polis"], args.on)?;
        }
        cargo(&["bench", "--workspace", "--all-features", "--bench", name], args.on)
            .with_context(|| format!("benchmark {name} failed"))?;
    }
    Ok(())
}

fn cargo(args: &[&str], on: On) -> Result<()> {
    let status =
        outside::command("cargo").args(args).current_dir(root()).envs(Setting::on(on).variables()).status();
    if !status.context("failed to start cargo")?.success() {
        bail!("cargo {} failed: see above", args.join(" "));
    }
    Ok(())
}
