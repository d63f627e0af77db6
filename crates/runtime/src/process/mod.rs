//! Instances as processes of the host: each container is a program with a shim beside it.
//!
//! - [`image`]: what an image means here;
//! - `environment`: what a program is told;
//! - [`address`]: where it can be reached;
//! - [`restart`]: when it is started again;
//! - `fence`: what it may touch;
//! - `recipe`: all of these, put together;
//! - `seat`: the folder of an instance;
//! - `occupant`, `watch`: a container on the host, and its shim;
//! - `host`: everybody.

pub mod address;
mod environment;
mod fence;
mod host;
pub mod image;
mod occupant;
mod recipe;
pub mod restart;
pub(crate) mod seat;
mod settings;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use polis_core::{owner, template};

pub use address::{Addresses, Pool};
pub use restart::Restarts;
pub use settings::Settings;

use crate::Error;
use crate::logs::Logs;
use crate::provider::{self, Phase, Progress, Provider, Report, Standing, Told};
use crate::shim::{Order, State};
use environment::Trouble;
use host::{Host, soonest};
use occupant::MOMENT;
use recipe::recipe;
use restart::Step;
use seat::Facts;

/// Runs instances as processes of this host. Cheap to clone.
#[derive(Clone)]
pub struct Process(Arc<Host>);

impl Process {
    /// Opens the directory, and finds what runs from before.
    pub fn open(settings: Settings) -> Result<Self, Error> {
        let dir = &settings.dir;
        fs::create_dir_all(dir).map_err(Error::directory(dir))?;
        seat::tidy(dir)?;
        let facts = Facts::all(dir).map_err(Error::directory(dir))?;
        Ok(Process(Arc::new(Host::new(settings, facts))))
    }

    /// The output of the instances.
    pub fn logs(&self) -> Logs {
        Logs::of(&self.0.settings.dir)
    }

    /// What runs or ran last for each container of an instance.
    pub fn states(&self, uid: &str) -> Result<BTreeMap<String, State>, Error> {
        let Some(seat) = seat::folder(&self.0.settings.dir, uid) else { return Ok(BTreeMap::new()) };
        let mut states = BTreeMap::new();
        for container in seat::containers(&seat)? {
            let folder = seat.join(&container);
            if let Some(state) = State::read(&folder).map_err(Error::directory(folder))? {
                states.insert(container, state);
            }
        }
        Ok(states)
    }

    /// Stops everything that runs, and waits for it: Polis goes home and takes its instances along. The instances are as they
    /// were; the next runtime in this directory starts them again.
    pub async fn stop_all(&self) -> Result<(), Error> {
        let uids: Vec<String> = self.0.seats.lock().keys().cloned().collect();
        let mut waiting = uids;
        while !waiting.is_empty() {
            let mut left = Vec::new();
            for uid in waiting {
                if self.rest(&uid).await? != Progress::Done {
                    left.push(uid);
                }
            }
            waiting = left;
            if !waiting.is_empty() {
                tokio::time::sleep(MOMENT).await;
            }
        }
        Ok(())
    }
}

impl Provider for Process {
    fn standing(&self) -> Vec<Standing> {
        let seats = self.0.seats.lock();
        let standing = |facts: &Facts| Standing {
            uid: facts.uid.clone(),
            namespace: facts.namespace.clone(),
            name: facts.name.clone(),
        };
        seats.values().map(|seat| standing(&seat.facts)).collect()
    }

    fn standing_at(&self, namespace: &str, name: &str) -> Vec<String> {
        self.0.uids(namespace, name)
    }

    fn report_to(&self, told: Told) {
        *self.0.told.lock() = Some(told);
    }

    async fn run(&self, order: &provider::Order<'_>) -> Result<Report, Error> {
        let instance = order.instance;
        let containers = match image::containers(&instance.spec) {
            Ok(containers) => containers,
            Err(refusal) => return Ok(Report::refused(refusal)),
        };
        let uid = owner::uid(&instance.metadata);
        let facts = self.0.seat(order, containers).await?;
        let (mut again, mut replacing) = (None, false);

        // First everything is decided and made ready, then started: a container that cannot run holds up the others.
        let mut starts = Vec::new();
        for container in containers {
            match self.0.next(uid, &container.name, template::fingerprint(instance).unwrap_or_default())? {
                None => again = soonest(again, MOMENT),
                Some(Step::Leave) => {}
                Some(Step::Wait(time)) => again = soonest(again, time),
                Some(Step::Stop) => {
                    replacing = true;
                    if let Progress::Underway(time) = self.0.stop(uid, &container.name) {
                        again = soonest(again, time);
                    }
                }
                Some(Step::Start { restarts, streak, before }) => {
                    match recipe(&self.0.settings, order, container, &facts, restarts) {
                        Ok(launch) => starts.push((
                            container,
                            Order {
                                restarts,
                                streak,
                                before,
                                template: template::fingerprint(instance).unwrap_or_default().to_owned(),
                                grace: self.0.settings.grace,
                                keep: self.0.settings.keep,
                                launch,
                            },
                        )),
                        Err(Trouble::Refused(refusal)) => return Ok(Report::refused(refusal)),
                        Err(Trouble::Failed(error)) => return Err(error),
                    }
                }
            }
        }
        for (container, order) in starts {
            self.0.start(uid, &container.name, order).await?;
        }
        let (phase, later) = self.0.phase(uid, containers, &facts).await;
        let phase = if replacing { Phase::Stopping } else { phase };
        let again = later.into_iter().chain(again).min();
        Ok(Report { programmed: Ok(()), phase, address: Some(facts.address.to_string()), again })
    }

    async fn rest(&self, uid: &str) -> Result<Progress, Error> {
        let Some(folder) = seat::folder(&self.0.settings.dir, uid) else { return Ok(Progress::Done) };
        let mut again = None;
        for container in seat::containers(&folder)? {
            self.0.look(uid, &container)?;
            if let Progress::Underway(time) = self.0.stop(uid, &container) {
                again = soonest(again, time);
            }
        }
        Ok(again.map_or(Progress::Done, Progress::Underway))
    }

    async fn end(&self, uid: &str) -> Result<Progress, Error> {
        let progress = self.rest(uid).await?;
        let Some(folder) = seat::folder(&self.0.settings.dir, uid) else { return Ok(Progress::Done) };
        if progress != Progress::Done {
            return Ok(progress);
        }
        if !seat::remove(&folder)? {
            return Ok(Progress::Underway(MOMENT));
        }
        self.0.leave(uid);
        Ok(Progress::Done)
    }
}
