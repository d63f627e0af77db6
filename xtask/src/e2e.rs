//! `cargo xtask e2e`: the scenarios over all planes, on real engines or on embedded ones.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::crds::root;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the planes are made of.
    #[arg(long, value_enum, default_value_t = On::Real)]
    on: On,
    /// Where the processes and their rights come from.
    #[arg(long, value_enum, default_value_t = Staff::Plain)]
    staff: Staff,
    /// Which kinds the planes serve.
    #[arg(long, value_enum, default_value_t = Kinds::Current)]
    kinds: Kinds,
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

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Staff {
    /// The roles of `deploy/`, and flags of the harness.
    Plain,
    /// As `overlays/management-plane` and `overlays/cell` render.
    Overlays,
    /// As `overlays/single-cluster` renders, and `overlays/cell` for the second city.
    SingleCluster,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kinds {
    /// Those of this tree.
    Current,
    /// Those of the last release.
    Released,
}

impl Kinds {
    /// As the suite knows it, in `POLIS_E2E_KINDS`.
    fn word(self) -> &'static str {
        match self {
            Kinds::Current => "current",
            Kinds::Released => "released",
        }
    }
}

impl Staff {
    /// As the suite knows it, in `POLIS_E2E_STAFF`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Staff::Plain => "plain",
            Staff::Overlays => "overlays",
            Staff::SingleCluster => "single-cluster",
        }
    }

    /// What is shown with rendered staff: the way there and back, and who owns what. Other groups hire processes of their
    /// own making, which no overlay renders.
    fn scenarios(self) -> &'static [&'static str] {
        match self {
            Staff::Plain => &[],
            Staff::Overlays | Staff::SingleCluster => &["federation::", "ownership::"],
        }
    }
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
    cargo(&["build", "--package", "polis"], &args)?;
    let threads = format!("--test-threads={}", args.side_by_side);
    let mut suite = vec!["test", "--package", "polis-e2e", "--features", "engines", "--no-fail-fast"];
    if args.staff != Staff::Plain {
        suite.extend(["--test", "scenarios"]);
    }
    suite.extend(["--", &threads]);
    match args.filter.as_deref() {
        Some(filter) => suite.push(filter),
        None => suite.extend(args.staff.scenarios()),
    }
    cargo(&suite, &args)
}

fn cargo(words: &[&str], args: &Args) -> Result<()> {
    let status = Command::new("cargo")
        .args(words)
        .current_dir(root())
        .env("POLIS_E2E_ON", args.on.word())
        .env("POLIS_E2E_STAFF", args.staff.word())
        .env("POLIS_E2E_KINDS", args.kinds.word())
        .status();
    if !status.context("failed to start cargo")?.success() {
        bail!("cargo {} failed: see above", words.join(" "));
    }
    Ok(())
}
