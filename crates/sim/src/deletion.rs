//! Deletion matrix: a workload is deleted while one part of the installation is away, before, during and
//! after the deletion; an abandoned cell; and a cell that returns after a week.
//!
//! An observer checks all along that a container runs only while its project shows the workload or a
//! deployment of it. Two exceptions are by design, and both are recorded in an event: a cell whose
//! controllers are stopped but whose API server answers does not hold a deletion, and an abandoned cell
//! does not either. In the end nothing may be left on any plane or machine.

use std::time::Duration;

use anyhow::Result;
use polis_api::ObjectExt as _;
use polis_api::annotations::ABANDON;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::events::{CELL_ABANDONED, TEARDOWN_UNCONFIRMED};
use polis_core::{instances, metadata};
use polis_testing::PlaneExt as _;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::invariants::{self, rest};
use crate::journal::{Detail, Entry, Journal, Violation};
use crate::machines::Phase;
use crate::plan::{
    FEDERATION, HUB, LinkFault, MANAGEMENT, Noise, PLATFORM, Plan, PlanEvent, Teardown, UserOperation,
    WorkloadName, cell_process,
};
use crate::run::{in_simulated_time, until_ready, until_rest};
use crate::simulation::Simulation;
use crate::users::{NAMESPACE, Users};

const CITY: &str = "dfw";
const PROJECT: &str = "tenant-alpha";
const WORKLOAD: &str = "web";
/// A week.
pub const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a part is away: longer than every limit of a teardown but that for ending instances.
const OUTAGE: Duration = Duration::from_secs(240);
/// Time in which the outage is noticed before the deletion. Also longer than a deployment counts as young.
const NOTICED: Duration = Duration::from_secs(60);
/// Within the time that a container takes to stop.
const AMID: Duration = Duration::from_secs(2);
/// How often the observer looks.
const OBSERVED_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a state before and after an outage.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// The part of the installation that is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The API server of the cell.
    CellApi,
    /// The controllers of the cell.
    CellController,
    /// The API server of the hub.
    Hub,
    /// The controllers of the federation.
    Federation,
    /// The management controllers.
    Management,
    /// The API server of the projects, for all controllers.
    Project,
}

impl Outage {
    /// All parts.
    pub const ALL: [Outage; 6] = [
        Outage::CellApi,
        Outage::CellController,
        Outage::Hub,
        Outage::Federation,
        Outage::Management,
        Outage::Project,
    ];

    /// Begins the outage, which ends by itself.
    fn begin(self, simulation: &Simulation, lasts: Duration) {
        let process = match self {
            Outage::CellApi => return refuse_all(simulation, CITY, lasts),
            Outage::Hub => return refuse_all(simulation, HUB, lasts),
            Outage::Project => return refuse_all(simulation, PLATFORM, lasts),
            Outage::CellController => cell_process(CITY),
            Outage::Federation => FEDERATION.to_owned(),
            Outage::Management => MANAGEMENT.to_owned(),
        };
        simulation.crash(&process, lasts);
    }

    /// Whether containers may run after the deployment is gone, as an event tells.
    fn releases_unconfirmed(self) -> bool {
        self == Outage::CellController
    }
}

/// When the outage begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the deletion.
    Before,
    /// While the instances are ending.
    During,
    /// When the project has released the workload.
    After,
}

impl Moment {
    /// All moments.
    pub const ALL: [Moment; 3] = [Moment::Before, Moment::During, Moment::After];
}

/// No process reaches an API server.
fn refuse_all(simulation: &Simulation, host: &str, lasts: Duration) {
    for process in simulation.plan().processes() {
        let (host, fault) = (host.to_owned(), LinkFault::Refuse);
        simulation.inject(&PlanEvent::LinkFailure { process, host, fault, lasts });
    }
}

/// What a case found.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// The broken invariants.
    pub violations: Vec<Violation>,
    /// The writes of all processes.
    pub entries: Vec<Entry>,
}

/// Deletes a workload with an outage.
pub fn delete_with_outage(outage: Outage, moment: Moment) -> Result<CaseReport> {
    in_simulated_time(format!("{outage:?} {moment:?}"), async move || {
        let mut scenario = Scenario::start().await?;
        let observer = scenario.observe(outage.releases_unconfirmed().then_some(TEARDOWN_UNCONFIRMED));
        if moment == Moment::Before {
            outage.begin(&scenario.simulation, NOTICED + OUTAGE);
            sleep(NOTICED).await;
        }
        scenario.user(UserOperation::Delete).await;
        match moment {
            Moment::Before => {}
            Moment::During => sleep(AMID).await,
            Moment::After => scenario.until("the workload is gone", async |it| it.is_gone().await).await?,
        }
        if moment != Moment::Before {
            outage.begin(&scenario.simulation, OUTAGE);
        }
        sleep(OUTAGE).await;
        scenario.end(observer).await
    })
}

/// An operator abandons the city of a cell that is away. The cell returns with the instances that it had.
pub fn abandon() -> Result<CaseReport> {
    in_simulated_time("abandon".to_owned(), async || {
        let mut scenario = Scenario::start().await?;
        let observer = scenario.observe(Some(CELL_ABANDONED));
        Outage::CellApi.begin(&scenario.simulation, NOTICED + 2 * OUTAGE);
        sleep(NOTICED).await;
        scenario.user(UserOperation::Delete).await;
        sleep(OUTAGE).await;
        scenario.expect(!scenario.is_gone().await, "the deletion waits for the cell");
        scenario.abandon().await;
        scenario.until("the workload is gone", async |it| it.is_gone().await).await?;
        scenario.expect(!scenario.running().is_empty(), "the cell that is away runs its containers on");
        sleep(OUTAGE).await;
        scenario.end(observer).await
    })
}

/// A cell is away for this long, with its controllers and its API server. Meanwhile its workload is deleted;
/// after half of the time an operator abandons the city, and a user creates a workload of the same name. The
/// cell returns with the old instances, and must end with the new ones alone.
pub fn return_of_a_cell(after: Duration) -> Result<CaseReport> {
    in_simulated_time("return of a cell".to_owned(), async move || {
        let mut scenario = Scenario::start().await?;
        let before: Vec<String> = scenario.running();
        scenario.simulation.crash(&cell_process(CITY), after);
        Outage::CellApi.begin(&scenario.simulation, after);
        sleep(NOTICED).await;
        scenario.user(UserOperation::Delete).await;
        sleep(after / 2).await;
        scenario.expect(!scenario.is_gone().await, "the deletion waits for the cell");
        scenario.expect(scenario.running() == before, "the containers run on");
        scenario.abandon().await;
        scenario.until("the workload is gone", async |it| it.is_gone().await).await?;
        scenario.create().await;
        sleep(after / 2).await;
        scenario.until("the new instances run alone", async |it| it.runs_other_than(&before).await).await?;
        scenario.user(UserOperation::Delete).await;
        let observer = scenario.observe(None);
        scenario.end(observer).await
    })
}

/// A workload with two instances, which run.
struct Scenario {
    simulation: Simulation,
    users: Users,
}

impl Scenario {
    async fn start() -> Result<Self> {
        let plan = Plan {
            seed: 1,
            cities: vec![CITY.to_owned()],
            projects: vec![PROJECT.to_owned()],
            quota: 10,
            noise: Noise::default(),
            container_delay: 10 * AMID,
            steps: Vec::new(),
            teardown: Teardown::Nothing,
            planted: None,
        };
        let simulation = Simulation::create(&plan, Journal::new(Detail::Write)).await?;
        simulation.start_all()?;
        until_ready(&simulation).await?;
        let mut scenario = Self { simulation, users: Users::default() };
        scenario.create().await;
        scenario.until("two instances run", async |it| it.runs_other_than(&[]).await).await?;
        sleep(NOTICED).await;
        Ok(scenario)
    }

    async fn create(&mut self) {
        self.user(UserOperation::Create { cities: vec![CITY.to_owned()], replicas: 2 }).await;
    }

    async fn user(&mut self, operation: UserOperation) {
        let name = WorkloadName { project: PROJECT.to_owned(), name: WORKLOAD.to_owned() };
        self.simulation.journal().tell(format!("user: {operation:?}"));
        self.users.act(&self.simulation, &name, &operation).await;
    }

    async fn abandon(&self) {
        let abandon = |workload: &mut Workload| {
            metadata::merge_annotations(&mut workload.metadata, &metadata::map([(ABANDON, CITY)]), &[]);
        };
        self.simulation.plane(PROJECT).change((NAMESPACE, WORKLOAD), abandon).await;
    }

    /// The UIDs of the instances with containers.
    fn running(&self) -> Vec<String> {
        running(&self.simulation)
    }

    /// Whether the project shows nothing of the workload.
    async fn is_gone(&self) -> bool {
        !is_shown(&self.simulation).await
    }

    /// Whether two instances other than these have containers, and the project shows them as ready.
    async fn runs_other_than(&self, before: &[String]) -> bool {
        let running = self.running();
        let shown = self.simulation.plane(PROJECT).all::<Instance>().await;
        running.len() == 2
            && !running.iter().any(|uid| before.contains(uid))
            && shown.len() == 2
            && shown.iter().all(|instance| !instance.is_deleting() && instances::is_ready(instance))
    }

    async fn until(&self, what: &str, check: impl AsyncFn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !check(self).await {
            anyhow::ensure!(Instant::now() < deadline, "timed out waiting until {what}");
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn expect(&self, holds: bool, what: &str) {
        if !holds {
            self.simulation.journal().violate(invariants::NOTHING_UNSEEN, format!("expected: {what}"));
        }
    }

    /// Checks until the end that no container runs unseen. With `permitted`, an event of this reason
    /// permits it.
    fn observe(&self, permitted: Option<&'static str>) -> JoinHandle<()> {
        let simulation = self.simulation.clone();
        tokio::spawn(async move {
            loop {
                let running = running(&simulation);
                if !running.is_empty() && !is_shown(&simulation).await {
                    let permits = match permitted {
                        Some(reason) => was_recorded(&simulation, reason).await,
                        None => false,
                    };
                    if !permits {
                        let found = format!("the containers of {} run unseen", running.join(", "));
                        return simulation.journal().violate(invariants::NOTHING_UNSEEN, found);
                    }
                }
                sleep(OBSERVED_EVERY).await;
            }
        })
    }

    /// Waits for rest, and checks that nothing is left.
    async fn end(mut self, observer: JoinHandle<()>) -> Result<CaseReport> {
        if until_rest(&self.simulation, &mut self.users).await {
            rest::check(&self.simulation).await;
            rest::check_nothing_left(&self.simulation).await;
        }
        observer.abort();
        let journal = self.simulation.journal();
        Ok(CaseReport { violations: journal.violations(), entries: journal.entries() })
    }
}

fn running(simulation: &Simulation) -> Vec<String> {
    let machines = simulation.machines(CITY).all();
    machines.into_iter().filter(|(_, machine)| machine.phase != Phase::Stopped).map(|(uid, _)| uid).collect()
}

async fn is_shown(simulation: &Simulation) -> bool {
    let project = simulation.plane(PROJECT);
    !project.all::<Workload>().await.is_empty() || !project.all::<WorkloadDeployment>().await.is_empty()
}

async fn was_recorded(simulation: &Simulation, reason: &str) -> bool {
    use polis_api::k8s_openapi::api::events::v1::Event;
    let events = simulation.plane(PROJECT).all::<Event>().await;
    events.iter().any(|event| event.reason.as_deref() == Some(reason))
}
