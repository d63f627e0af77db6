//! `cargo xtask e2e`: the scenarios over all planes, on real engines or on embedded ones.

use std::{thread, time::Instant};

use anyhow::{Context, Result, bail};

use crate::{crds::root, outside};

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

/// In what the scenarios run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) on: On,
    pub(crate) staff: Staff,
    pub(crate) kinds: Kinds,
}

impl Setting {
    /// The setting of most suites: the roles of `deploy/` and the kinds of this tree.
    pub(crate) fn on(on: On) -> Self {
        Setting { on, staff: Staff::Plain, kinds: Kinds::Current }
    }

    /// As the suite reads it.
    pub(crate) fn variables(self) -> [(&'static str, &'static str); 3] {
        [
            ("POLIS_E2E_ON", self.on.word()),
            ("POLIS_E2E_STAFF", self.staff.word()),
            ("POLIS_E2E_KINDS", self.kinds.word()),
        ]
    }
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
    fn word(self) -> &'static str {
        match self {
            Kinds::Current => "current",
            Kinds::Released => "released",
        }
    }
}

impl Staff {
    fn word(self) -> &'static str {
        match self {
            Staff::Plain => "plain",
            Staff::Overlays => "overlays",
            Staff::SingleCluster => "single-cluster",
        }
    }

    /// What is shown with rendered staff: the way there and back, who owns what, and that every right is needed. Other groups
    /// hire processes of their own making, which no overlay renders.
    fn scenarios(self) -> &'static [&'static str] {
        match self {
            Staff::Plain => &[],
            Staff::Overlays | Staff::SingleCluster => &["federation::", "ownership::", "rights::"],
        }
    }
}

/// What of that `cargo xtask test` runs: the way of a deployment there and back (F1 to F3 of the scenarios) and who owns what
/// on it (O1 to O4), and every right. Not the rest, because of the minutes it takes.
pub(crate) const IN_THE_GATE: &[&str] = &[
    "federation::a_deployment_is_carried_to_the_hub_with_its_city_its_policy_and_its_identity",
    "federation::a_city_policy_lives_as_long_as_its_last_deployment",
    "federation::a_deployment_that_leaves_does_not_take_the_policy_from_one_that_comes",
    "federation::a_policy_on_its_way_out_is_made_anew_for_the_next_deployment",
    "federation::a_deployment_runs_in_the_cell_of_its_city_and_in_no_other",
    "federation::a_workload_runs_in_every_city_that_it_names",
    "ownership::the_hub_namespace_is_recorded_on_the_deployment_before_anything_is_on_the_hub",
    "ownership::a_hub_copy_belongs_to_the_hub_deployment_and_bears_the_identity_of_its_namespace",
    "ownership::a_projection_belongs_to_the_deployment_of_its_own_plane",
    "ownership::copies_go_with_the_hub_deployment_and_do_not_come_back_while_the_cell_goes_on",
    "ownership::a_deletion_completes_without_the_cell_and_the_cell_follows_when_it_returns",
    "rights::every_right_of_the_shipped_roles_is_used_and_no_other_is_asked_for",
];

impl On {
    fn word(self) -> &'static str {
        match self {
            On::Real => "real",
            On::Embedded => "embedded",
            On::RealCell => "real-cell",
            On::RealHub => "real-hub",
        }
    }
}

/// The stories of projects, cities, quota and networks, and of admission: each crate has its own, on embedded planes. Those of
/// quota and admission run on real ones too, in `cargo xtask test`.
const STORIES: &[&str] = &["--test", "platform", "--test", "webhooks"];
/// A test of the program, which has it built, with the features that the suites are built with: the scenarios start the
/// controllers as they are shipped, as the process `polis manager`.
const PROGRAM: &[&str] = &["--test", "quota_credential"];
/// What waits for minutes and does little: where planes cost little, it runs beside everything else, from the start.
const PATIENT: &[&str] = &["silence::", "replicas::"];
/// What counts requests, of which a busy machine makes more: it runs when everything else has ended.
const COUNTING: &[&str] = &["thrift::"];

pub(crate) fn run(args: Args) -> Result<()> {
    let setting = Setting { on: args.on, staff: args.staff, kinds: args.kinds };
    // All features in every step, as in `cargo xtask test`, so that nothing is compiled twice.
    let suite = ["test", "--workspace", "--all-features", "--no-fail-fast"];
    let threads = format!("--test-threads={}", args.side_by_side);
    let targets: &[&str] = match (args.staff, args.on) {
        // What operators apply is held to a real API server, in a suite of its own.
        (Staff::Plain, On::Real) => &["--test", "packaging", "--test", "planes", "--test", "scenarios"],
        (Staff::Plain, _) => &["--test", "planes", "--test", "scenarios"],
        _ => &["--test", "scenarios"],
    };
    let named: Vec<&str> = match args.filter.as_deref() {
        Some(filter) => vec![filter],
        None => args.staff.scenarios().to_vec(),
    };
    let whole = args.on == On::Embedded && named.is_empty();
    let stories = if whole { STORIES } else { &[] };
    cargo(&[&suite[..], targets, stories, PROGRAM, &["--no-run"]].concat(), setting)?;
    let alone = [&suite, targets, &["--", &threads], &named].concat();
    if !whole {
        return cargo(&alone, setting);
    }
    let apart = PATIENT.iter().chain(COUNTING);
    let skipped: Vec<&str> = apart.flat_map(|group| ["--skip", group]).collect();
    let busy = [&alone[..], &skipped].concat();
    let groups = |named: &[&'static str]| [&suite[..], &["--test", "scenarios", "--"], named].concat();
    let (patient, counting) = (groups(PATIENT), groups(COUNTING));
    let start = Instant::now();
    let mut outcomes = thread::scope(|scope| {
        let patient = scope.spawn(|| cargo(&patient, setting));
        let busy = [cargo(&busy, setting), cargo(&[&suite[..], stories].concat(), setting)];
        let mut outcomes = Vec::from(busy);
        outcomes.push(patient.join().expect("waiting for cargo does not panic"));
        outcomes
    });
    outcomes.push(cargo(&[&counting[..], &["--test-threads=1"]].concat(), setting));
    println!("scenarios on embedded planes: {:.0?}", start.elapsed());
    outcomes.into_iter().collect()
}

fn cargo(words: &[&str], setting: Setting) -> Result<()> {
    let status = outside::command("cargo").args(words).current_dir(root()).envs(setting.variables()).status();
    if !status.context("failed to start cargo")?.success() {
        bail!("cargo {} failed: see above", words.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_that_is_named_for_the_gate_exists() {
        for name in IN_THE_GATE {
            let (group, scenario) = name.split_once("::").unwrap();
            let source = root().join("e2e/tests/scenarios").join(format!("{group}.rs"));
            let source = std::fs::read_to_string(source).unwrap();
            assert!(source.contains(&format!("#[test]\nfn {scenario}()")), "{name}");
        }
    }
}
