//! Write-back: shows the instances of a cell on the hub.
//!
//! Whether anything is to be written is decided from what the watch has seen, without asking the hub. A copy that stands
//! names its owner and origin, which were read from the hub when it was made; a copy that does not stand is made only
//! after a live look at the hub's deployment, so that what the hub has given up is never brought back. Origin is what the
//! labels of the hub namespace say and nothing else.

use std::sync::Arc;
use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_core::identity::Identity;
use polis_core::writeback::{self, Step};
use polis_core::{Changes, news, owner};
use polis_engine::{
    Class, Error as EngineError, Exactly, Key, Lag, Plane, PlaneName, PlaneSet, Recorder, Tone,
};

use crate::Error;
use crate::link::{Link, Trouble};
use crate::metrics::{Metrics, UNREACHABLE, Unknown};
use crate::newborns::Newborns;

/// After this time a state that only somebody on the hub can change is looked at again: those objects are not watched.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// After this time a hub that refuses to work for the moment is asked again.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The way from a cell to the hub.
pub(crate) struct WriteBack {
    /// The hub, as a set of one.
    hubs: PlaneSet,
    hub: PlaneName,
    /// Name of the cell.
    cell: String,
    link: Link,
    recorder: Recorder,
    metrics: Metrics,
    /// Instances that differ from their copies.
    lag: Lag,
    /// Copies that the watch has not shown yet: what is to be said of them waits until it has.
    newborns: Arc<Newborns>,
}

/// How an instance stands on the hub after a pass.
enum Shown {
    /// As it should, or as well as can be before the next event.
    Well,
    /// A little out of date, for so long: what has changed is no news.
    Soon(Duration),
    /// Not at all, and rightly so for now: the hub has no deployment for it, or another cell is shown.
    Withheld,
    /// Not at all, until somebody puts this right.
    Unresolved(Unknown, String),
}

/// Where a copy belongs on the hub.
struct Home {
    identity: Identity,
    owner: WorkloadDeployment,
}

impl WriteBack {
    pub(crate) fn new(
        hubs: PlaneSet,
        hub: PlaneName,
        cell: String,
        recorder: Recorder,
        metrics: Metrics,
        lag: Lag,
    ) -> Self {
        let newborns = Arc::default();
        Self { hubs, hub, cell, link: Link::default(), recorder, metrics, lag, newborns }
    }

    /// The copies that were made a moment ago, by the instance that each shows.
    pub(crate) fn newborns(&self) -> Arc<Newborns> {
        self.newborns.clone()
    }

    /// Brings the copy of an instance up to date. Says when to come back, if no event will say so.
    pub(crate) async fn show(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<Option<Duration>, Error> {
        match self.settle(key, instance).await {
            Ok(Shown::Well) => {
                self.in_order(key);
                Ok(None)
            }
            Ok(Shown::Soon(rest)) => Ok(Some(rest)),
            Ok(Shown::Withheld) => Ok(Some(LOOK_AGAIN)),
            Ok(Shown::Unresolved(what, why)) => {
                if self.metrics.unresolved(what, key) {
                    tracing::error!(%key, %why, "the instance stays invisible on the hub until this is put right");
                    self.recorder.record(cell, instance, Tone::Warning, "NotShownOnHub", "WriteBack", &why);
                }
                Ok(Some(LOOK_AGAIN))
            }
            Err(trouble) => {
                self.lag.behind(key);
                self.put_off(cell, key, instance, trouble)
            }
        }
    }

    /// Removes the copy of an instance. None once the hub has said that it is gone.
    pub(crate) async fn hide(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<Option<Duration>, Error> {
        let trouble = match self.remove(key, instance).await {
            Ok(gone) => return Ok((!gone).then_some(TRY_AGAIN)),
            Err(trouble) => trouble,
        };
        if let Trouble::Away { .. } = trouble {
            let note = "The instance is kept until its copy can be taken from the hub, which does not answer";
            self.recorder.record(cell, instance, Tone::Warning, "HubUnreachable", "Withdraw", note);
        }
        self.put_off(cell, key, instance, trouble)
    }

    /// The instance is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.newborns.forget(key);
        self.in_order(key);
    }

    /// Nothing about the instance is in question any more.
    fn in_order(&self, key: &Key) {
        self.lag.caught_up(key);
        self.metrics.resolved(Unknown::Origin, key);
        self.metrics.resolved(Unknown::Copy, key);
    }

    async fn settle(&self, key: &Key, instance: &Instance) -> Result<Shown, Trouble> {
        let deployment = match writeback::deployment_name(instance) {
            Ok(name) => name,
            Err(missing) => return Ok(Shown::Unresolved(Unknown::Origin, missing.to_string())),
        };
        let hub = self.hub().await?;
        let mut copy = hub.get::<Instance>(key).map_err(Trouble::Failed)?;
        if let Some(rest) = self.newborns.awaited(key, copy.as_slice()) {
            return Ok(Shown::Soon(rest));
        }
        let home = match copy.as_ref().and_then(|copy| Home::recorded_on(copy, deployment)) {
            Some(home) => home,
            None => match self.home(&hub, key, deployment).await? {
                Ok(home) => home,
                Err(shown) => return Ok(shown),
            },
        };
        loop {
            match writeback::step(instance, &home.identity, &self.cell, Some(&home.owner), copy.as_ref()) {
                Err(missing) => return Ok(Shown::Unresolved(Unknown::Origin, missing.to_string())),
                Ok(Step::Leave | Step::AwaitRemoval) => return Ok(Shown::Well),
                Ok(Step::NoOwner | Step::OtherCell { .. }) => return Ok(Shown::Withheld),
                Ok(Step::Foreign { controller }) => {
                    return Ok(foreign(&home, copy.as_ref(), controller.as_deref()));
                }
                Ok(Step::Create(wanted)) => match self.link.ask(hub.create(&*wanted)).await {
                    Ok(made) => {
                        self.newborns.made(key, &made);
                        let status = instance.status.clone().map(Box::new);
                        return self.write(&hub, key, &made, Changes { object: None, status }).await;
                    }
                    // One that our watch does not show: it names another cell, or none.
                    Err(Trouble::Failed(error)) if error.is_already_exists() && copy.is_none() => {
                        copy = self.link.ask(hub.live().get::<Instance>(key)).await?;
                        if copy.is_none() {
                            return Err(Trouble::Failed(error));
                        }
                    }
                    Err(trouble) => return Err(trouble),
                },
                Ok(Step::Update(changes)) => match &copy {
                    Some(copy) => return self.write(&hub, key, copy, changes).await,
                    None => return Ok(Shown::Well),
                },
            }
        }
    }

    /// Writes what differs, unless it is no news and may wait a moment for more.
    async fn write(
        &self,
        hub: &Plane,
        key: &Key,
        copy: &Instance,
        changes: Changes,
    ) -> Result<Shown, Trouble> {
        if changes.is_nothing() {
            return Ok(Shown::Well);
        }
        let news = |status| news::of_instance(copy.status.as_ref(), status);
        if let Some(rest) = self.lag.hold(key, changes.status.as_deref().is_some_and(news)) {
            return Ok(Shown::Soon(rest));
        }
        let mut current = copy.clone();
        if let Some(object) = changes.object {
            current = self.link.ask(hub.update(copy, &object)).await?.into_object().unwrap_or(current);
        }
        if let Some(status) = changes.status {
            let mut wanted = current.clone();
            wanted.status = Some(*status);
            self.link.ask(hub.update_status(&current, &wanted)).await?;
        }
        Ok(Shown::Well)
    }

    /// Where the copies of a deployment belong, asked of the hub now.
    async fn home(&self, hub: &Plane, key: &Key, deployment: &str) -> Result<Result<Home, Shown>, Trouble> {
        let owner =
            self.link.ask(hub.live().get::<WorkloadDeployment>((key.namespace(), deployment))).await?;
        let Some(owner) = owner.filter(|owner| !owner::is_deleting(&owner.metadata)) else {
            return Ok(Err(Shown::Withheld));
        };
        let Some(namespace) = self.link.ask(hub.live().get::<Namespace>(key.namespace())).await? else {
            return Ok(Err(Shown::Withheld));
        };
        let home = Identity::of(&namespace).map(|identity| Home { identity, owner });
        Ok(home.map_err(|error| Shown::Unresolved(Unknown::Origin, error.to_string())))
    }

    /// True once the copy is gone, or if it is none of ours.
    async fn remove(&self, key: &Key, instance: &Instance) -> Result<bool, Trouble> {
        let hub = self.hub().await?;
        let seen = hub.get::<Instance>(key).map_err(Trouble::Failed)?;
        let copy = match seen {
            Some(copy) => Some(copy),
            None => self.link.ask(hub.live().get::<Instance>(key)).await?,
        };
        let Some(copy) = copy.filter(|copy| writeback::is_copy_of(copy, instance, &self.cell)) else {
            return Ok(true);
        };
        if !owner::is_deleting(&copy.metadata) {
            self.link.ask(hub.delete(&copy, Exactly::Object)).await?;
        }
        Ok(copy.metadata.finalizers.is_none_or(|finalizers| finalizers.is_empty()))
    }

    /// The hub, once its copies have been listed.
    async fn hub(&self) -> Result<Plane, Trouble> {
        self.link.ask(async { self.hubs.named(self.hub.as_str()) }).await
    }

    /// What could not be done is done later: at once if somebody was faster, after a moment if the hub is away. The cell
    /// does not suffer either way.
    fn put_off(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
        trouble: Trouble,
    ) -> Result<Option<Duration>, Error> {
        let error = match trouble {
            Trouble::Away { again, why, .. } => {
                if let Some(why) = why {
                    self.metrics.hub_failed(UNREACHABLE);
                    tracing::warn!(%why, "the hub does not answer; the cell goes on without");
                }
                return Ok(Some(again));
            }
            Trouble::Failed(error) => error,
        };
        self.metrics.hub_failed(error.class().as_str());
        match error.class() {
            Class::Transient => {
                tracing::warn!(%key, %error, "the hub cannot be written to; will be tried again");
                return Ok(Some(TRY_AGAIN));
            }
            Class::Conflict | Class::AlreadyExists | Class::NotFound => {}
            _ => {
                let note = format!("The hub refuses the copy of this instance: {error}");
                self.recorder.record(cell, instance, Tone::Warning, "HubRefused", "WriteBack", &note);
            }
        }
        Err(refused(key, error))
    }
}

fn refused(key: &Key, source: EngineError) -> Error {
    Error::WriteBack { instance: key.to_string(), source }
}

/// The copy of an earlier deployment of the name is collected by the hub; anything else of the name is in our way.
fn foreign(home: &Home, copy: Option<&Instance>, controller: Option<&str>) -> Shown {
    let earlier = copy.and_then(|copy| owner::controller(&copy.metadata)).is_some_and(|owner| {
        owner.kind == "WorkloadDeployment" && owner.name == owner::name(&home.owner.metadata)
    });
    if earlier {
        return Shown::Withheld;
    }
    let whose = controller.map_or_else(
        || "an Instance that nobody controls and that was not made for this deployment".to_owned(),
        |controller| format!("an Instance of {controller}"),
    );
    let why = format!("failed to show the instance on the hub: its name is taken there by {whose}");
    Shown::Unresolved(Unknown::Copy, why)
}

impl Home {
    /// What a standing copy says of itself, if it says all of it.
    fn recorded_on(copy: &Instance, deployment: &str) -> Option<Self> {
        let meta = &copy.metadata;
        let controller = owner::controller(meta)
            .filter(|owner| owner.kind == "WorkloadDeployment" && owner.name == deployment)?;
        let owner = ObjectMeta {
            name: Some(controller.name.clone()),
            namespace: meta.namespace.clone(),
            uid: Some(controller.uid.clone()),
            ..ObjectMeta::default()
        };
        let labels =
            ObjectMeta { name: meta.namespace.clone(), labels: meta.labels.clone(), ..ObjectMeta::default() };
        let identity = Identity::of(&Namespace { metadata: labels, ..Namespace::default() }).ok()?;
        Some(Home {
            identity,
            owner: WorkloadDeployment { metadata: owner, ..WorkloadDeployment::default() },
        })
    }
}
