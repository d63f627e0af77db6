//! [`run`]: runs a plan in a thread of its own, and returns a [`Report`].
//!
//! ```text
//!   start ─► ready ─► steps with noise ─► faults end, quota suffices ─► at rest: check ─► idle: check
//!                                                                          └─► delete all ─► nothing left
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use polis_api::milo::Project;
use polis_testing::PlaneExt as _;
use tokio::time::{Instant, sleep};

use crate::invariants::{self, rest};
use crate::journal::{Detail, Entry, Journal, Violation};
use crate::plan::{PLATFORM, Plan, PlanEvent, Teardown, UserOperation, WorkloadName};
use crate::simulation::Simulation;
use crate::users::Users;

/// Time without writes after which the system is at rest: longer than every back-off of a controller.
const QUIET: Duration = Duration::from_secs(11 * 60);
/// Longest time until the system is at rest: longer than several back-offs in a row.
const REST_TIMEOUT: Duration = Duration::from_secs(3 * 3600);
/// How long the system must stay silent then.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// Longest time until all processes are ready.
const READY_TIMEOUT: Duration = Duration::from_secs(600);
/// The quota at the end, which suffices for all instances of a plan.
const SUFFICIENT_QUOTA: i64 = 1_000;

/// What a run found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Digest of all requests, responses and times.
    pub digest: u64,
    /// The broken invariants.
    pub violations: Vec<Violation>,
    /// What happened, as detailed as asked.
    pub entries: Vec<Entry>,
    /// Number of entries of the journal.
    pub steps: usize,
    /// Requests of the processes.
    pub requests: usize,
    /// Writes of the processes.
    pub writes: usize,
    /// Writes of each process since the first step, without Events.
    pub writes_by_process: BTreeMap<String, usize>,
    /// Simulated time.
    pub simulated: Duration,
}

/// Runs a plan. The journal keeps entries up to `keep`.
pub fn run(plan: &Plan, keep: Detail) -> Result<Report> {
    let plan = plan.clone();
    in_simulated_time(format!("seed-{}", plan.seed), async move || run_here(&plan, keep).await)
}

/// Runs a scenario on a paused clock, in a thread of its own: what other runs leave in thread-local state
/// cannot affect the run.
pub(crate) fn in_simulated_time<T: Send + 'static>(
    name: String,
    running: impl AsyncFnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let thread = std::thread::Builder::new().name(name).stack_size(8 << 20);
    let running = thread.spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        runtime.block_on(running())
    });
    let joined = running.context("failed to start the thread of the run")?.join();
    joined.unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<String>().map(String::as_str);
        let why = why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(anyhow::anyhow!("the run panicked: {why}"))
    })
}

async fn run_here(plan: &Plan, keep: Detail) -> Result<Report> {
    let journal = Journal::new(keep);
    let simulation =
        Simulation::create(plan, journal.clone()).await.context("failed to create the simulation")?;
    simulation.start_all()?;
    until_ready(&simulation).await?;
    let mut users = Users::default();
    simulation.network().set_noisy(true);
    for step in &plan.steps {
        sleep(step.after).await;
        journal.tell(step.action.to_string());
        match &step.action {
            PlanEvent::User(workload, operation) => users.act(&simulation, workload, operation).await,
            PlanEvent::Quota { project, instances } => simulation.set_quota(project, *instances).await,
            PlanEvent::HandDeletion(what) => simulation.delete_by_hand(*what).await,
            fault => simulation.inject(fault),
        }
    }
    // Faults that last end by themselves, and a crash point is reached once: the wait for rest is longer.
    simulation.network().set_noisy(false);
    for project in &plan.projects {
        simulation.set_quota(project, SUFFICIENT_QUOTA).await;
    }
    journal.tell("no new faults from here on, and quota suffices");
    if until_rest(&simulation, &mut users).await {
        rest::check(&simulation).await;
        check_idle(&simulation).await;
        if plan.teardown != Teardown::Nothing {
            match plan.teardown {
                Teardown::Projects => delete_projects(&simulation).await,
                _ => delete_workloads(&simulation, &mut users).await,
            }
            if until_rest(&simulation, &mut users).await {
                rest::check(&simulation).await;
                rest::check_nothing_left(&simulation).await;
            }
        }
    }
    let (requests, writes) = journal.counts();
    Ok(Report {
        seed: plan.seed,
        digest: journal.digest(),
        violations: journal.violations(),
        entries: journal.entries(),
        steps: journal.steps(),
        requests,
        writes,
        writes_by_process: simulation.network().writes_by_process(),
        simulated: journal.elapsed(),
    })
}

pub(crate) async fn until_ready(simulation: &Simulation) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let mut projects = true;
        for project in &simulation.plan().projects {
            projects &= simulation.has_project(project) && rest::is_ready(simulation, project).await;
        }
        if projects && simulation.is_ready() {
            simulation.journal().tell("all processes are ready");
            return Ok(());
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "the processes did not become ready: {}",
            simulation.readiness()
        );
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until nothing was written for a long time. False if that never happens.
pub(crate) async fn until_rest(simulation: &Simulation, users: &mut Users) -> bool {
    let deadline = Instant::now() + REST_TIMEOUT;
    let begin = Instant::now();
    loop {
        sleep(Duration::from_secs(15)).await;
        let quiet = simulation.network().last_write().max(begin).elapsed();
        if quiet >= QUIET && users.are_done() && simulation.is_ready() {
            simulation.journal().tell(format!("at rest: nothing was written for {}s", quiet.as_secs()));
            return true;
        }
        if Instant::now() >= deadline {
            let found = match (users.are_done(), simulation.is_ready()) {
                (false, _) => "a workload cannot be created because its predecessor is never gone".to_owned(),
                (_, false) => format!("processes are not ready: {}", simulation.readiness()),
                _ => "writes never end".to_owned(),
            };
            simulation.journal().violate(invariants::RESTS, found);
            return false;
        }
    }
}

/// Checks that an idle system sends nothing but watches and health probes.
async fn check_idle(simulation: &Simulation) {
    simulation.network().begin_idle();
    sleep(IDLE).await;
    for request in simulation.network().end_idle() {
        simulation.journal().violate(invariants::SILENT, request);
    }
}

async fn delete_workloads(simulation: &Simulation, users: &mut Users) {
    simulation.journal().tell("users delete all workloads");
    for project in &simulation.plan().projects {
        for name in rest::workloads(simulation, project).await {
            let workload = WorkloadName { project: project.clone(), name };
            users.act(simulation, &workload, &UserOperation::Delete).await;
        }
    }
}

async fn delete_projects(simulation: &Simulation) {
    simulation.journal().tell("the operator deletes all projects");
    let root = simulation.plane(PLATFORM);
    for project in &simulation.plan().projects {
        root.remove::<Project>(project.as_str()).await;
    }
}
