//! [`Users`]: applies the operations of users to their projects.
//!
//! Operations on one workload happen one after another, as those of one user do; operations on different
//! workloads at the same time. A workload that is created again while its predecessor is still being deleted
//! is created when that is gone. Users reach their project without faults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use polis_api::ObjectExt as _;
use polis_api::compute::Workload;
use polis_engine::{Plane, Preconditions};
use polis_testing::PlaneExt as _;
use polis_testing::builders::{mk_template, workload};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::plan::{UserOperation, WorkloadName};
use crate::simulation::Simulation;

/// The namespace of the workloads.
pub const NAMESPACE: &str = "default";
/// Pause between two attempts to create a workload whose predecessor still exists.
const RETRY: Duration = Duration::from_secs(1);

/// The users of all projects.
#[derive(Default)]
pub struct Users {
    turns: BTreeMap<WorkloadName, Arc<Mutex<()>>>,
    acting: JoinSet<()>,
}

impl Users {
    /// Begins an operation. It happens after the earlier ones on the same workload.
    pub async fn act(&mut self, simulation: &Simulation, workload: &WorkloadName, operation: &UserOperation) {
        let turn = self.turns.entry(workload.clone()).or_default().clone();
        let (simulation, workload, operation) = (simulation.clone(), workload.clone(), operation.clone());
        // The lock is fair: operations happen in the order of their steps.
        self.acting.spawn(async move {
            let _turn = turn.lock().await;
            apply(&simulation, &workload, &operation).await;
        });
        // The task takes its place in the queue before the next operation can.
        tokio::task::yield_now().await;
    }

    /// Whether operations still wait for a predecessor to go.
    pub fn are_done(&mut self) -> bool {
        while self.acting.try_join_next().is_some() {}
        self.acting.is_empty()
    }
}

async fn apply(simulation: &Simulation, name: &WorkloadName, operation: &UserOperation) {
    let plane = simulation.plane(&name.project);
    match operation {
        UserOperation::Create { cities, replicas } => {
            create(simulation, name, &plane, cities, *replicas).await
        }
        UserOperation::Scale { replicas } => {
            change(&plane, name, |workload| {
                for placement in &mut workload.spec.placements {
                    placement.scale_settings.min_replicas = *replicas;
                }
            })
            .await;
        }
        UserOperation::Rollout { version } => {
            let template = mk_template(&format!("registry.test/app:{version}"));
            change(&plane, name, |workload| workload.spec.template = template.clone()).await;
        }
        UserOperation::Move { cities } => {
            change(&plane, name, |workload| {
                for placement in &mut workload.spec.placements {
                    placement.city_codes = cities.clone();
                }
            })
            .await;
        }
        UserOperation::Delete => {
            let found = plane.read::<Workload>((NAMESPACE, name.name.as_str())).await;
            if let Some(found) = found.filter(|found| !found.is_deleting()) {
                plane.delete(&found, Preconditions::Uid).await.expect("the project responds");
            }
        }
    }
}

async fn create(
    simulation: &Simulation,
    name: &WorkloadName,
    plane: &Plane,
    cities: &[String],
    replicas: i32,
) {
    let cities: Vec<&str> = cities.iter().map(String::as_str).collect();
    let mut created = workload(&name.name).placed("default", &cities, replicas).0;
    created.metadata.namespace = Some(NAMESPACE.to_owned());
    loop {
        match plane.create(&created).await {
            Ok(_) => return,
            Err(error) if error.is_already_exists() => sleep(RETRY).await,
            Err(error) => {
                simulation.journal().tell(format!("user cannot create {name}: {error}"));
                return;
            }
        }
    }
}

/// Changes a workload, if it exists and is not being deleted.
async fn change(plane: &Plane, name: &WorkloadName, change: impl Fn(&mut Workload)) {
    loop {
        let current = plane.read::<Workload>((NAMESPACE, name.name.as_str())).await;
        let Some(current) = current.filter(|current| !current.is_deleting()) else { return };
        let mut desired = current.clone();
        change(&mut desired);
        match plane.update(&current, &desired).await {
            Err(error) if error.is_conflict() => {}
            Err(error) if error.is_not_found() => return,
            other => {
                other.expect("the project responds");
                return;
            }
        }
    }
}
