//! Exhaustive crash points: each scenario once for each write of each process, with a crash after that write.
//!
//! The scenarios have no noise, so a run without a crash counts the writes of each process.

use std::time::Duration;

use anyhow::Result;

use crate::journal::Detail;
use crate::plan::{Noise, Plan, PlanEvent, Teardown, TimedEvent, UserOperation, WorkloadName};
use crate::run::{Report, run};

/// Time between two steps: longer than a rollout.
const PAUSE: Duration = Duration::from_secs(120);
/// How long a crashed process is down.
const DOWN: Duration = Duration::from_secs(1);
/// Writes beyond the counted ones that are tried: a run with a crash has others.
const EXTRA: usize = 2;

/// A scenario: its name and its plan.
pub type Scenario = (&'static str, Plan);

/// All scenarios.
pub fn scenarios() -> Vec<Scenario> {
    use UserOperation::{Create, Delete, Move, Rollout, Scale};
    let cities = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let web = || WorkloadName { project: "tenant-alpha".to_owned(), name: "web".to_owned() };
    let api = || WorkloadName { name: "api".to_owned(), ..web() };
    let create = |replicas| Create { cities: cities(&["dfw"]), replicas };
    let user = |workload: WorkloadName, operation| PlanEvent::User(workload, operation);
    let quota = |instances| PlanEvent::Quota { project: "tenant-alpha".to_owned(), instances };
    let plan = |actions: Vec<PlanEvent>| Plan {
        seed: 1,
        cities: cities(&["dfw", "lhr"]),
        projects: cities(&["tenant-alpha"]),
        quota: 100,
        noise: Noise::default(),
        container_delay: Duration::from_millis(100),
        steps: actions
            .into_iter()
            .enumerate()
            .map(|(number, action)| TimedEvent {
                after: if number == 0 { Duration::ZERO } else { PAUSE },
                action,
            })
            .collect(),
        teardown: Teardown::Nothing,
        planted: None,
    };
    vec![
        ("create", plan(vec![user(web(), create(2))])),
        (
            "scale up and down",
            plan(vec![
                user(web(), create(1)),
                user(web(), Scale { replicas: 3 }),
                user(web(), Scale { replicas: 1 }),
            ]),
        ),
        ("rollout", plan(vec![user(web(), create(2)), user(web(), Rollout { version: 2 })])),
        (
            "delete and re-create",
            plan(vec![user(web(), create(1)), user(web(), Delete), user(web(), create(1))]),
        ),
        ("re-create at once", {
            let mut plan = plan(vec![user(web(), create(1)), user(web(), Delete), user(web(), create(2))]);
            plan.steps[2].after = Duration::ZERO;
            plan
        }),
        (
            "move to another city",
            plan(vec![user(web(), create(1)), user(web(), Move { cities: cities(&["lhr"]) })]),
        ),
        ("quota denied, then granted", plan(vec![quota(1), user(web(), create(2)), quota(2)])),
        (
            "two workloads of one city",
            plan(vec![user(web(), create(1)), user(api(), create(1)), user(web(), Delete)]),
        ),
    ]
}

/// A crash point: the process, and the number of its write.
pub type CrashPoint = (String, usize);

/// The crash points of a plan.
pub fn crash_points(plan: &Plan) -> Result<Vec<CrashPoint>> {
    let report = run(plan, Detail::Timeline)?;
    let violations = &report.violations;
    anyhow::ensure!(violations.is_empty(), "without a crash: {}", violations[0]);
    let of = |(process, writes): (&String, &usize)| -> Vec<CrashPoint> {
        (1..=writes + EXTRA).map(|write| (process.clone(), write)).collect()
    };
    Ok(report.writes_by_process.iter().flat_map(of).collect())
}

/// Runs a plan with a crash.
pub fn run_with_crash(plan: &Plan, (process, writes): &CrashPoint) -> Result<Report> {
    let crash = PlanEvent::CrashAfterWrites { process: process.clone(), writes: *writes, down: DOWN };
    let mut plan = plan.clone();
    plan.steps.insert(0, TimedEvent { after: Duration::ZERO, action: crash });
    run(&plan, Detail::Write)
}
