//! Requests about workloads: reading all that belongs to one, waiting for a change of it, and changing it.

use std::time::Duration;

use futures::{Stream, StreamExt, future, pin_mut};
use jiff::Timestamp;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::kube::api::{ApiResource, DynamicObject, ListParams, PostParams, WatchParams};
use polis_api::kube::{self, Api, Resource};
use polis_api::labels;
use polis_core::owner;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Reach;
use crate::exit::{Exit, Fault};
use crate::view::picture::Picture;
use crate::view::{draft, history};

/// Writers that lose the race try again so often; each loss means that somebody else has won.
const ATTEMPTS: usize = 5;
/// A picture is drawn at most so often.
const PACE: Duration = Duration::from_millis(50);
/// Without watches (a proxy may cut them) things are looked at again after this time.
const UNWATCHED: Duration = Duration::from_secs(1);
/// Name under which the server keeps what verbs write.
const MANAGER: &str = "polis-cli";

/// From where to watch what a picture shows: one version per list.
#[derive(Clone, Debug, Default)]
pub struct Versions([String; 3]);

impl Reach {
    /// A workload with all that belongs to it; a fault when it does not exist.
    pub async fn picture(&self, name: &str) -> Result<(Picture, Versions), Fault> {
        let (picture, versions) = self.picture_if_any(name).await?;
        match picture.workload {
            Some(_) => Ok((picture, versions)),
            None => Err(self.no_workload(name)),
        }
    }

    /// A workload with all that belongs to it, as far as there is something left of it.
    pub async fn picture_if_any(&self, name: &str) -> Result<(Picture, Versions), Fault> {
        let what = format!("failed to read workload {name}");
        let fault = |error: kube::Error| Fault::request(what.clone(), &error);
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let workloads = self.api::<Workload>().list(&named).await.map_err(fault)?;
        let workload = workloads.items.into_iter().next();
        let uid = workload.as_ref().map(|workload| owner::uid(&workload.metadata).to_owned());
        let mine = match &uid {
            Some(uid) => ListParams::default().labels(&format!("{}={uid}", labels::WORKLOAD_UID)),
            None => ListParams::default(),
        };
        let (deployments, instances) = (self.api::<WorkloadDeployment>(), self.api::<Instance>());
        let (deployments, instances) = future::join(deployments.list(&mine), instances.list(&mine)).await;
        let (deployments, instances) = (deployments.map_err(fault)?, instances.map_err(fault)?);
        let version = |meta: &polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta| {
            meta.resource_version.clone().unwrap_or_default()
        };
        let versions =
            [version(&workloads.metadata), version(&deployments.metadata), version(&instances.metadata)];
        let (mut deployments, mut instances) = (deployments.items, instances.items);
        if uid.is_none() {
            deployments.retain(|deployment| deployment.spec.workload_ref.name == name);
            instances.retain(|instance| crate::view::picture::workload_of(instance) == name);
        }
        Ok((Picture::new(workload, deployments, instances), Versions(versions)))
    }

    fn no_workload(&self, name: &str) -> Fault {
        Fault::new(
            Exit::NotFound,
            format!("failed to find workload {name}"),
            format!("there is none in {}", self.in_words()),
            "`polis workloads` lists those that are there; --namespace and --project choose another place",
        )
    }

    /// Waits until something of a picture may have changed, or for `at_most`.
    pub async fn changed(&self, name: &str, versions: &Versions, at_most: Duration) {
        let named = WatchParams::default().fields(&format!("metadata.name={name}"));
        let all = WatchParams::default();
        let Versions([workloads, deployments, instances]) = versions;
        let nudge = async {
            let (one, two, three) = (
                next(self.api::<Workload>(), named, workloads),
                next(self.api::<WorkloadDeployment>(), all.clone(), deployments),
                next(self.api::<Instance>(), all, instances),
            );
            pin_mut!(one, two, three);
            future::select(one, future::select(two, three)).await;
        };
        let _ = tokio::time::timeout(at_most, nudge).await;
        tokio::time::sleep(PACE.min(at_most)).await;
    }

    /// A workload as plain JSON; none when it does not exist.
    pub async fn draft_of(&self, name: &str) -> Result<Option<Value>, Fault> {
        let found = self.drafts().get_opt(name).await;
        let found =
            found.map_err(|error| Fault::request(format!("failed to read workload {name}"), &error))?;
        Ok(found.map(|object| serde_json::to_value(object).unwrap_or_default()))
    }

    /// What the server would make of a draft, defaults and checks included; nothing is changed.
    pub async fn rehearse(&self, standing: Option<&Value>, draft: &Value) -> Result<Value, Fault> {
        self.on_top(standing, draft, async |draft: &Value| self.write(draft, true).await).await
    }

    /// Creates or replaces a workload and writes the revision down.
    pub async fn commit(&self, standing: Option<&Value>, draft: &Value, cause: &str) -> Result<Value, Fault> {
        self.on_top(standing, draft, async |draft: &Value| self.record(standing, draft, cause).await).await
    }

    /// Writes a draft over what stood when it was made. Controllers write the status at any time: while nothing else has
    /// moved on, the draft still says what its author saw, and goes on top of the newest.
    async fn on_top(
        &self,
        standing: Option<&Value>,
        draft: &Value,
        write: impl AsyncFn(&Value) -> Result<Value, kube::Error>,
    ) -> Result<Value, Fault> {
        let mut draft = draft.clone();
        let mut attempt = 1;
        loop {
            let error = match write(&draft).await {
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            let lost = matches!(&error, kube::Error::Api(status) if status.code == 409);
            let name = draft["metadata"]["name"].as_str().unwrap_or_default();
            let newest = if lost && attempt < ATTEMPTS { self.draft_of(name).await? } else { None };
            match (standing, newest) {
                (Some(standing), Some(newest)) if draft::same_but_status(standing, &newest) => {
                    draft["metadata"]["resourceVersion"] = newest["metadata"]["resourceVersion"].clone();
                    attempt += 1;
                }
                _ => return Err(Fault::request(failed(&draft), &error)),
            }
        }
    }

    /// Changes a workload that exists. `edit` runs again when somebody else was faster.
    pub async fn change(
        &self,
        name: &str,
        cause: &str,
        edit: impl Fn(&mut Value) -> Result<(), String>,
    ) -> Result<Value, Fault> {
        let what = format!("failed to change workload {name}");
        let mut attempt = 1;
        loop {
            let Some(standing) = self.draft_of(name).await? else { return Err(self.no_workload(name)) };
            let mut draft = standing.clone();
            edit(&mut draft).map_err(|why| Fault::new(Exit::Refused, what.as_str(), why, ""))?;
            match self.record(Some(&standing), &draft, cause).await {
                Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
                outcome => return outcome.map_err(|error| Fault::request(what, &error)),
            }
        }
    }

    async fn record(
        &self,
        standing: Option<&Value>,
        draft: &Value,
        cause: &str,
    ) -> Result<Value, kube::Error> {
        // With the server's defaults in it, what is written down is what will stand.
        let rehearsed = self.write(draft, true).await?;
        let mut whole = draft.clone();
        whole["spec"] = rehearsed["spec"].clone();
        history::record(standing, &mut whole, cause, &Timestamp::now().to_string());
        self.write(&whole, false).await
    }

    async fn write(&self, draft: &Value, rehearsal: bool) -> Result<Value, kube::Error> {
        let object: DynamicObject = serde_json::from_value(draft.clone()).map_err(kube::Error::SerdeError)?;
        let params = PostParams { dry_run: rehearsal, field_manager: Some(MANAGER.to_owned()) };
        let name = object.metadata.name.clone().unwrap_or_default();
        let written = match object.metadata.resource_version {
            Some(_) => self.drafts().replace(&name, &params, &object).await,
            None => self.drafts().create(&params, &object).await,
        };
        Ok(serde_json::to_value(written?).unwrap_or_default())
    }

    fn drafts(&self) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<Workload>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind)
    }

    /// An instance by its name; none when there is none.
    pub async fn instance(&self, name: &str) -> Result<Option<Instance>, Fault> {
        let found = self.api::<Instance>().get_opt(name).await;
        found.map_err(|error| Fault::request(format!("failed to read instance {name}"), &error))
    }

    /// Whether there is a workload of this name.
    pub async fn has_workload(&self, name: &str) -> Result<bool, Fault> {
        let found = self.api::<Workload>().get_opt(name).await;
        let found =
            found.map_err(|error| Fault::request(format!("failed to read workload {name}"), &error))?;
        Ok(found.is_some())
    }

    /// The fault for a name that is neither a workload nor an instance.
    pub fn nothing_called(&self, name: &str) -> Fault {
        Fault::new(
            Exit::NotFound,
            format!("failed to find {name}"),
            format!("there is neither a workload nor an instance of that name in {}", self.in_words()),
            "`polis workloads` and `polis instances` list those that are there",
        )
    }
}

fn failed(draft: &Value) -> String {
    format!("failed to deploy workload {}", draft["metadata"]["name"].as_str().unwrap_or_default())
}

/// Waits for the next event of a watch; a watch that cannot be had or ends is looked at again soon.
async fn next<K>(api: Api<K>, params: WatchParams, version: &str)
where
    K: Clone + DeserializeOwned + std::fmt::Debug + Resource<DynamicType = ()>,
{
    if let Ok(events) = api.watch(&params, version).await {
        let events: std::pin::Pin<Box<dyn Stream<Item = _> + Send>> = events.boxed();
        pin_mut!(events);
        if let Some(Ok(_)) = events.next().await {
            return;
        }
    }
    tokio::time::sleep(UNWATCHED).await;
}
