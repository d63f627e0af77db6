//! [`Plan`]: what happens in a run, generated from a seed.
//!
//! A plan is plain data: a topology, the limits of quota, the noise of the network, and a list of steps. Each
//! seed enables a random subset of the faults (swarm testing): a run with all faults at once hides what one
//! of them breaks alone.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use polis_engine::Random;

use crate::planted_bugs::PlantedBug;

/// The names of the processes besides the cells.
pub const PLATFORM: &str = "platform";
/// The process of the embedded federation.
pub const FEDERATION: &str = "federation";
/// The process of the management controllers.
pub const MANAGEMENT: &str = "management";
/// The API server of the federation.
pub const HUB: &str = "hub";

const CITIES: [&str; 3] = ["dfw", "lhr", "ord"];
const PROJECTS: [&str; 2] = ["tenant-alpha", "tenant-beta"];
const WORKLOADS: [&str; 3] = ["web", "api", "db"];

/// The name of the process of a cell.
pub fn cell_process(city: &str) -> String {
    format!("cell-{city}")
}

/// What happens in a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The seed; also that of the network and of all processes.
    pub seed: u64,
    /// The cities, each with one cell.
    pub cities: Vec<String>,
    /// The projects.
    pub projects: Vec<String>,
    /// The instances that each project may run.
    pub quota: i64,
    /// The noise of every link while the steps run.
    pub noise: Noise,
    /// How long a container takes to start and to stop, at most.
    pub container_delay: Duration,
    /// The steps, in order.
    pub steps: Vec<TimedEvent>,
    /// What is deleted at the end.
    pub teardown: Teardown,
    /// A defect that the run must find.
    pub planted: Option<&'static PlantedBug>,
}

/// What is deleted at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Nothing.
    Nothing,
    /// All workloads.
    Workloads,
    /// All projects, with what they contain.
    Projects,
}

/// The random faults of a link, per 1,000 requests or watch events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Noise {
    /// Longest delay of a message.
    pub latency: Duration,
    /// The connection is refused.
    pub refused: u64,
    /// The request is lost, and its sender waits for its timeout.
    pub lost: u64,
    /// The request is processed, and the connection ends before the response.
    pub response_lost: u64,
    /// The server answers 429, 500, 503 or 504 and does not process the request.
    pub errors: u64,
    /// A watch ends with an error before an event.
    pub watch_cut: u64,
    /// A watch pauses for up to a minute before an event.
    pub watch_stall: u64,
}

/// A step of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedEvent {
    /// Time since the previous step.
    pub after: Duration,
    /// What happens.
    pub action: PlanEvent,
}

/// A workload of a project.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkloadName {
    /// The project.
    pub project: String,
    /// The workload.
    pub name: String,
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.project, self.name)
    }
}

/// What a user asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum UserOperation {
    /// Creates a workload.
    Create {
        /// The cities.
        cities: Vec<String>,
        /// Replicas in each city.
        replicas: i32,
    },
    /// Changes the replicas of every city.
    Scale {
        /// Replicas in each city.
        replicas: i32,
    },
    /// Changes the image.
    Rollout {
        /// The new version.
        version: u32,
    },
    /// Changes the cities.
    Move {
        /// The cities.
        cities: Vec<String>,
    },
    /// Deletes the workload.
    Delete,
}

/// An object that a user or an operator deletes by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandDeleted {
    /// A deployment of a project.
    Deployment,
    /// A projection in a project.
    Projection,
    /// The hub copy of a deployment.
    HubCopy,
    /// The hub copy of an instance.
    WriteBack,
    /// A policy on the hub.
    Policy,
    /// A binding of rights on the hub.
    Rights,
    /// A deployment in a cell.
    CellCopy,
    /// An instance in a cell.
    Instance,
}

impl HandDeleted {
    const ALL: [Self; 8] = [
        Self::Deployment,
        Self::Projection,
        Self::HubCopy,
        Self::WriteBack,
        Self::Policy,
        Self::Rights,
        Self::CellCopy,
        Self::Instance,
    ];
}

/// How a link fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFault {
    /// Connections are refused and open ones end.
    Refuse,
    /// Nothing arrives, in neither direction.
    Silent,
    /// Requests arrive and are processed, and no response comes back.
    OneWay,
    /// Every message takes this much longer.
    Slow(Duration),
}

/// What happens in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanEvent {
    /// A user acts.
    User(WorkloadName, UserOperation),
    /// An operator changes the instances that a project may run.
    Quota {
        /// The project.
        project: String,
        /// The new limit.
        instances: i64,
    },
    /// A process ends and starts again.
    Crash {
        /// The process.
        process: String,
        /// Time until it starts again.
        down: Duration,
    },
    /// A process ends directly after a write, before it learns the response.
    CrashAfterWrites {
        /// The process.
        process: String,
        /// The number of the write, from now on.
        writes: usize,
        /// Time until it starts again.
        down: Duration,
    },
    /// The link between a process and an API server fails for a time.
    LinkFailure {
        /// The process.
        process: String,
        /// The API server.
        host: String,
        /// How.
        fault: LinkFault,
        /// How long.
        lasts: Duration,
    },
    /// All links of a process are silent for a time, as if it were frozen.
    Freeze {
        /// The process.
        process: String,
        /// How long.
        lasts: Duration,
    },
    /// An object is deleted by hand; the controllers restore it.
    HandDeletion(HandDeleted),
    /// A container of a cell ends and is restarted by its runtime.
    ContainerCrash {
        /// The city of the cell.
        city: String,
    },
}

impl fmt::Display for PlanEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanEvent::User(workload, operation) => match operation {
                UserOperation::Create { cities, replicas } => {
                    write!(f, "user creates {workload} in {} with {replicas} replicas", cities.join(", "))
                }
                UserOperation::Scale { replicas } => write!(f, "user scales {workload} to {replicas}"),
                UserOperation::Rollout { version } => {
                    write!(f, "user rolls {workload} out to version {version}")
                }
                UserOperation::Move { cities } => write!(f, "user moves {workload} to {}", cities.join(", ")),
                UserOperation::Delete => write!(f, "user deletes {workload}"),
            },
            PlanEvent::Quota { project, instances } => {
                write!(f, "operator limits {project} to {instances} instances")
            }
            PlanEvent::Crash { process, down } => write!(f, "{process} crashes for {down:?}"),
            PlanEvent::CrashAfterWrites { process, writes, down } => {
                write!(f, "{process} will crash after {writes} more writes, for {down:?}")
            }
            PlanEvent::LinkFailure { process, host, fault, lasts } => {
                write!(f, "link {process} to {host} fails for {lasts:?}: {fault:?}")
            }
            PlanEvent::Freeze { process, lasts } => write!(f, "{process} freezes for {lasts:?}"),
            PlanEvent::ContainerCrash { city } => write!(f, "a container in {city} crashes"),
            PlanEvent::HandDeletion(what) => write!(f, "deletion by hand: {what:?}"),
        }
    }
}

/// A choice of one element.
fn pick<'a, T>(random: &Random, among: &'a [T]) -> &'a T {
    &among[random.below(among.len() as u64) as usize]
}

fn between(random: &Random, low: u64, high: u64) -> u64 {
    low + random.below(high - low + 1)
}

/// The faults that a seed enables.
struct Swarm {
    crashes: bool,
    write_crashes: bool,
    partitions: bool,
    freezes: bool,
    container_crashes: bool,
    hand_deletions: bool,
    quota: bool,
    projects: usize,
}

impl Plan {
    /// The plan of a seed.
    pub fn generate(seed: u64) -> Self {
        let random = Random::from_seed(seed).split("plan");
        let coin = |percent: u64| random.below(100) < percent;
        let noise_on = coin(70);
        let per_mille = |on: bool, most: u64| if on && noise_on { between(&random, 1, most) } else { 0 };
        let noise = Noise {
            latency: Duration::from_millis(*pick(&random, &[0, 5, 50, 500])),
            refused: per_mille(coin(50), 50),
            lost: per_mille(coin(40), 20),
            response_lost: per_mille(coin(50), 50),
            errors: per_mille(coin(50), 50),
            watch_cut: per_mille(coin(50), 50),
            watch_stall: per_mille(coin(40), 30),
        };
        let swarm = Swarm {
            crashes: coin(50),
            write_crashes: coin(60),
            partitions: coin(60),
            freezes: coin(30),
            container_crashes: coin(30),
            hand_deletions: coin(40),
            quota: coin(40),
            projects: if coin(50) { 1 } else { 2 },
        };
        let cities: Vec<String> =
            CITIES[..between(&random, 1, 3) as usize].iter().map(|&city| city.to_owned()).collect();
        let projects: Vec<String> = PROJECTS[..swarm.projects].iter().map(|&name| name.to_owned()).collect();
        let quota = if swarm.quota { between(&random, 1, 8) as i64 } else { 100 };
        let mut plan = Plan {
            seed,
            cities,
            projects,
            quota,
            noise,
            container_delay: Duration::from_millis(*pick(&random, &[0, 100, 3_000, 20_000])),
            steps: Vec::new(),
            teardown: *pick(&random, &[Teardown::Nothing, Teardown::Workloads, Teardown::Projects]),
            planted: None,
        };
        let count = between(&random, 4, 24);
        let pace = *pick(&random, &[500, 5_000, 30_000]);
        let mut workloads = BTreeMap::new();
        for number in 0..count {
            let action = match random.below(10) {
                0..6 => plan.user_action(&random, &mut workloads, number as u32),
                _ => plan.fault_action(&random, &swarm),
            };
            let action = match action {
                Some(action) => action,
                None => match plan.user_action(&random, &mut workloads, number as u32) {
                    Some(action) => action,
                    None => continue,
                },
            };
            plan.steps.push(TimedEvent { after: Duration::from_millis(random.below(pace)), action });
        }
        plan
    }

    /// All processes of the plan.
    pub fn processes(&self) -> Vec<String> {
        let roles = [PLATFORM, FEDERATION, MANAGEMENT].map(str::to_owned);
        roles.into_iter().chain(self.cities.iter().map(|city| cell_process(city))).collect()
    }

    /// The API servers that a process uses.
    fn hosts_of(&self, process: &str) -> Vec<String> {
        match process {
            PLATFORM | MANAGEMENT => vec![PLATFORM.to_owned(), HUB.to_owned()],
            FEDERATION => [HUB.to_owned()].into_iter().chain(self.cities.iter().cloned()).collect(),
            cell => {
                let city = cell.strip_prefix("cell-").unwrap_or(cell);
                vec![PLATFORM.to_owned(), HUB.to_owned(), city.to_owned()]
            }
        }
    }

    fn some_cities(&self, random: &Random) -> Vec<String> {
        let chosen: Vec<String> = self.cities.iter().filter(|_| random.below(2) == 0).cloned().collect();
        if chosen.is_empty() { vec![pick(random, &self.cities).clone()] } else { chosen }
    }

    /// An operation that fits what exists after the earlier ones.
    fn user_action(
        &self,
        random: &Random,
        workloads: &mut BTreeMap<WorkloadName, bool>,
        number: u32,
    ) -> Option<PlanEvent> {
        let project = pick(random, &self.projects).clone();
        if self.quota < 100 && random.below(8) == 0 {
            return Some(PlanEvent::Quota { project, instances: between(random, 0, 10) as i64 });
        }
        let workload = WorkloadName { project, name: (*pick(random, &WORKLOADS)).to_owned() };
        let exists = workloads.get(&workload).copied().unwrap_or_default();
        let operation = match random.below(10) {
            _ if !exists => UserOperation::Create {
                cities: self.some_cities(random),
                replicas: between(random, 0, 3) as i32,
            },
            0..3 => UserOperation::Scale { replicas: between(random, 0, 4) as i32 },
            3..6 => UserOperation::Rollout { version: number + 2 },
            6..8 => UserOperation::Move { cities: self.some_cities(random) },
            _ => UserOperation::Delete,
        };
        workloads.insert(workload.clone(), operation != UserOperation::Delete);
        Some(PlanEvent::User(workload, operation))
    }

    fn fault_action(&self, random: &Random, swarm: &Swarm) -> Option<PlanEvent> {
        let process = pick(random, &self.processes()).clone();
        let span = Duration::from_secs(*pick(random, &[1, 10, 60, 400]));
        let kinds = [
            swarm.crashes,
            swarm.write_crashes,
            swarm.partitions,
            swarm.freezes,
            swarm.container_crashes,
            swarm.hand_deletions,
        ];
        let enabled: Vec<usize> = (0..kinds.len()).filter(|kind| kinds[*kind]).collect();
        if enabled.is_empty() {
            return None;
        }
        Some(match pick(random, &enabled) {
            0 => PlanEvent::Crash { process, down: span },
            1 => {
                let writes = between(random, 1, 12) as usize;
                PlanEvent::CrashAfterWrites {
                    process,
                    writes,
                    down: Duration::from_secs(between(random, 0, 20)),
                }
            }
            2 => {
                let host = pick(random, &self.hosts_of(&process)).clone();
                let slow = LinkFault::Slow(Duration::from_secs(between(random, 1, 20)));
                let kinds = [LinkFault::Refuse, LinkFault::Silent, LinkFault::OneWay, slow];
                PlanEvent::LinkFailure { process, host, fault: *pick(random, &kinds), lasts: span }
            }
            3 => PlanEvent::Freeze { process, lasts: span },
            5 => PlanEvent::HandDeletion(*pick(random, &HandDeleted::ALL)),
            _ => PlanEvent::ContainerCrash { city: pick(random, &self.cities).clone() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_plan() {
        for seed in 0..50 {
            assert_eq!(Plan::generate(seed), Plan::generate(seed));
        }
        assert_ne!(Plan::generate(1).steps, Plan::generate(2).steps);
    }

    #[test]
    fn the_first_operation_on_a_workload_creates_it() {
        for seed in 0..200 {
            let mut exists = BTreeMap::new();
            for step in Plan::generate(seed).steps {
                let PlanEvent::User(workload, operation) = step.action else { continue };
                let existed = exists.insert(workload, operation != UserOperation::Delete).unwrap_or_default();
                assert_eq!(matches!(operation, UserOperation::Create { .. }), !existed, "seed {seed}");
            }
        }
    }

    #[test]
    fn the_seeds_cover_every_kind_of_step() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..200 {
            for step in Plan::generate(seed).steps {
                let text = match step.action {
                    PlanEvent::User(_, operation) => format!("{operation:?}"),
                    PlanEvent::LinkFailure { fault, .. } => format!("{fault:?}"),
                    other => format!("{other:?}"),
                };
                kinds.insert(text.split([' ', '(']).next().unwrap_or_default().to_owned());
            }
        }
        let expected = [
            "ContainerCrash",
            "Crash",
            "CrashAfterWrites",
            "Create",
            "Delete",
            "Freeze",
            "HandDeletion",
            "Move",
            "OneWay",
            "Quota",
            "Refuse",
            "Rollout",
            "Scale",
            "Silent",
            "Slow",
        ];
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), expected);
    }
}
