//! `cargo xtask e2e`: the scenarios over all planes, on real engines or on embedded ones.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::crds::root;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the planes are made of.
    #[arg(long, value_enum, default_value_t = On::Real)]
    on: On,
    /// Run only scenarios whose name holds this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Scenarios that run side by side. They wait most of the time: more than the machine has cores does no harm.
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    side_by_side: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum On {
    /// etcd, kube-apiserver and Karmada, as plain processes.
    Real,
    /// The API server and the federation of this repository.
    Embedded,
    /// The same, with a kube-apiserver as the first cell.
    RealCell,
    /// The same, with a kube-apiserver as the hub, under the federation of this repository.
    RealHub,
}

impl On {
    /// As the suite knows it, in `POLIS_E2E_ON`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            On::Real => "real",
            On::Embedded => "embedded",
            On::RealCell => "real-cell",
            On::RealHub => "real-hub",
        }
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    // The scenarios start the controllers as they are shipped: as the process `polis manager`.
    cargo(&["build", "--package", "polis"], args.on)?;
    let threads = format!("--test-threads={}", args.side_by_side);
    let mut suite = vec!["test", "--package", "polis-e2e", "--features", "engines", "--no-fail-fast", "--"];
    suite.push(&threads);
    suite.extend(args.filter.as_deref());
    cargo(&suite, args.on)
}

fn cargo(args: &[&str], on: On) -> Result<()> {
    let status = Command::new("cargo").args(args).current_dir(root()).env("POLIS_E2E_ON", on.word()).status();
    if !status.context("failed to start cargo")?.success() {
        bail!("cargo {} failed: see above", args.join(" "));
    }
    Ok(())
}
