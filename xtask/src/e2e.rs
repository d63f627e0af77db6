//! `cargo xtask e2e`: the scenarios over all planes, on real engines or on embedded ones.

use std::{process::Command, thread, time::Instant};

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

/// What waits for minutes and does little: where planes cost little, it runs beside everything else, from the start.
const PATIENT: &[&str] = &["silence::", "replicas::"];
/// What counts requests, of which a busy machine makes more: it runs when everything else has ended.
const COUNTING: &[&str] = &["thrift::"];

pub(crate) fn run(args: Args) -> Result<()> {
    // The scenarios start the controllers as they are shipped: as the process `polis manager`.
    cargo(&["build", "--package", "polis"], &args)?;
    let threads = format!("--test-threads={}", args.side_by_side);
    let suite = ["test", "--package", "polis-e2e", "--features", "engines", "--no-fail-fast"];
    let targets: &[&str] = match (args.staff, args.on) {
        // What operators apply is held to a real API server, in a suite of its own.
        (Staff::Plain, On::Real) => &[],
        (Staff::Plain, _) => &["--lib", "--test", "planes", "--test", "scenarios"],
        _ => &["--test", "scenarios"],
    };
    let named: Vec<&str> = match args.filter.as_deref() {
        Some(filter) => vec![filter],
        None => args.staff.scenarios().to_vec(),
    };
    let alone = [&suite, targets, &["--", &threads], &named].concat();
    if args.on != On::Embedded || !named.is_empty() {
        return cargo(&alone, &args);
    }
    cargo(&[&suite[..], targets, &["--no-run"]].concat(), &args)?;
    let apart = PATIENT.iter().chain(COUNTING);
    let skipped: Vec<&str> = apart.flat_map(|group| ["--skip", group]).collect();
    let busy = [&alone[..], &skipped].concat();
    let groups = |named: &[&'static str]| [&suite[..], &["--test", "scenarios", "--"], named].concat();
    let (patient, counting) = (groups(PATIENT), groups(COUNTING));
    let start = Instant::now();
    let both = thread::scope(|scope| {
        let patient = scope.spawn(|| cargo(&patient, &args));
        [cargo(&busy, &args), patient.join().expect("waiting for cargo does not panic")]
    });
    let counted = cargo(&[&counting[..], &["--test-threads=1"]].concat(), &args);
    println!("scenarios on embedded planes: {:.0?}", start.elapsed());
    both.into_iter().chain([counted]).collect()
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
