//! Requests about workloads: read a workload with its deployments and instances, wait for a change, write it.

use std::time::Duration;

use futures::{Stream, StreamExt, future, pin_mut};
use jiff::Timestamp;
use polis_api::ObjectExt;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::kube::api::{ApiResource, DynamicObject, ListParams, WatchParams};
use polis_api::kube::{self, Api, Resource};
use polis_api::labels;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Session;
use crate::exit::{CliError, Exit};
use crate::output::OutputFlag;
use crate::view::snapshot::WorkloadSnapshot;
use crate::view::{history, manifest, nearest};

/// Attempts of a write that ends in a conflict. Every conflict means that another client's write succeeded.
const ATTEMPTS: usize = 5;
/// Shortest time between two reads of a snapshot.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
/// Time until the next read when a watch cannot be opened or ends (a proxy may close watches).
const WATCH_RETRY: Duration = Duration::from_secs(1);
/// Field manager of the writes of all commands.
const FIELD_MANAGER: &str = "polis-cli";

/// The resource versions of the three lists of a snapshot: workloads, deployments, instances. Watches start
/// there.
#[derive(Clone, Debug, Default)]
pub struct ListVersions([String; 3]);

impl Session {
    /// Reads a workload with its deployments and instances. A workload that does not exist is an error.
    pub async fn snapshot(&self, name: &str) -> Result<(WorkloadSnapshot, ListVersions), CliError> {
        let (snapshot, versions) = self.snapshot_if_any(name).await?;
        match snapshot.workload {
            Some(_) => Ok((snapshot, versions)),
            None => Err(self.workload_not_found(name).await),
        }
    }

    /// Reads a workload with its deployments and instances, or those that are left after the workload is
    /// deleted.
    pub async fn snapshot_if_any(&self, name: &str) -> Result<(WorkloadSnapshot, ListVersions), CliError> {
        let what = format!("failed to read workload {name}");
        let read_error = |error: kube::Error| CliError::request(what.clone(), &error);
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let workloads = self.api::<Workload>().list(&named).await.map_err(read_error)?;
        let workload = workloads.items.into_iter().next();
        let uid = workload.as_ref().map(|workload| workload.uid().to_owned());
        let mine = match &uid {
            Some(uid) => ListParams::default().labels(&format!("{}={uid}", labels::WORKLOAD_UID)),
            None => ListParams::default(),
        };
        let (deployments, instances) = (self.api::<WorkloadDeployment>(), self.api::<Instance>());
        let (deployments, instances) = future::join(deployments.list(&mine), instances.list(&mine)).await;
        let (deployments, instances) = (deployments.map_err(read_error)?, instances.map_err(read_error)?);
        let version = |meta: &polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta| {
            meta.resource_version.clone().unwrap_or_default()
        };
        let versions =
            [version(&workloads.metadata), version(&deployments.metadata), version(&instances.metadata)];
        let (mut deployments, mut instances) = (deployments.items, instances.items);
        if uid.is_none() {
            deployments.retain(|deployment| deployment.spec.workload_ref.name == name);
            instances.retain(|instance| crate::view::snapshot::workload_of(instance) == name);
        }
        Ok((WorkloadSnapshot::new(workload, deployments, instances), ListVersions(versions)))
    }

    async fn workload_not_found(&self, name: &str) -> CliError {
        let known = self.api::<Workload>().list(&ListParams::default()).await;
        let known = known.map(|list| list.items).unwrap_or_default();
        let hint = nearest::hint(name, known.iter().map(ObjectExt::name));
        CliError::new(
            Exit::NotFound,
            format!("failed to find workload {name}"),
            format!("{} has no workload with this name{hint}", self.describe()),
            "list the workloads with `polis workloads`; set --namespace or --project to look elsewhere",
        )
    }

    /// Waits until an object of a snapshot may have changed, at most for `at_most`.
    pub async fn wait_for_change(&self, name: &str, versions: &ListVersions, at_most: Duration) {
        let named = WatchParams::default().fields(&format!("metadata.name={name}"));
        let all = WatchParams::default();
        let ListVersions([workloads, deployments, instances]) = versions;
        let event = async {
            let (one, two, three) = (
                next_event(self.api::<Workload>(), named, workloads),
                next_event(self.api::<WorkloadDeployment>(), all.clone(), deployments),
                next_event(self.api::<Instance>(), all, instances),
            );
            pin_mut!(one, two, three);
            future::select(one, future::select(two, three)).await;
        };
        let _ = tokio::time::timeout(at_most, event).await;
        tokio::time::sleep(MIN_INTERVAL.min(at_most)).await;
    }

    /// Reads a workload as plain JSON; `None` if it does not exist.
    pub async fn manifest_of(&self, name: &str) -> Result<Option<Value>, CliError> {
        let found = self.manifests().get_opt(name).await;
        let found =
            found.map_err(|error| CliError::request(format!("failed to read workload {name}"), &error))?;
        Ok(found.map(|object| serde_json::to_value(object).unwrap_or_default()))
    }

    /// Prints a workload that a command has changed, if its output is meant for scripts.
    pub async fn print_changed(&self, output: OutputFlag, name: &str) -> Result<(), CliError> {
        match output.is_machine_readable() {
            true => output.changed("workload", self.manifest_of(name).await?.as_slice()),
            false => Ok(()),
        }
    }

    /// Sends the manifest as a server-side dry run. Returns the workload with defaults, or the error of
    /// validation and admission.
    pub async fn dry_run(&self, existing: Option<&Value>, manifest: &Value) -> Result<Value, CliError> {
        self.write_with_retry(existing, manifest, async |manifest: &Value| self.write(manifest, true).await)
            .await
    }

    /// Creates or replaces a workload and records the revision.
    pub async fn apply(
        &self,
        existing: Option<&Value>,
        manifest: &Value,
        cause: &str,
    ) -> Result<Value, CliError> {
        self.write_with_retry(existing, manifest, async |manifest: &Value| {
            self.write_with_revision(existing, manifest, cause).await
        })
        .await
    }

    /// Writes a manifest that was made from `existing`. Controllers write the status at any time, which makes
    /// the write conflict. If only the status has changed since, the write is repeated with the newest
    /// resource version.
    async fn write_with_retry(
        &self,
        existing: Option<&Value>,
        manifest: &Value,
        write: impl AsyncFn(&Value) -> Result<Value, kube::Error>,
    ) -> Result<Value, CliError> {
        let mut manifest = manifest.clone();
        let mut attempt = 1;
        loop {
            let error = match write(&manifest).await {
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            let lost = matches!(&error, kube::Error::Api(status) if status.code == 409);
            let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
            let newest = if lost && attempt < ATTEMPTS { self.manifest_of(name).await? } else { None };
            match (existing, newest) {
                (Some(existing), Some(newest)) if manifest::same_but_status(existing, &newest) => {
                    manifest["metadata"]["resourceVersion"] = newest["metadata"]["resourceVersion"].clone();
                    attempt += 1;
                }
                _ => return Err(CliError::request(deploy_failed(&manifest), &error)),
            }
        }
    }

    /// Changes an existing workload. `edit` runs again after a conflict, on the newest version.
    pub async fn edit_workload(
        &self,
        name: &str,
        cause: &str,
        edit: impl Fn(&mut Value) -> Result<(), String>,
    ) -> Result<Value, CliError> {
        let what = format!("failed to change workload {name}");
        let mut attempt = 1;
        loop {
            let Some(existing) = self.manifest_of(name).await? else {
                return Err(self.workload_not_found(name).await);
            };
            let mut manifest = existing.clone();
            edit(&mut manifest).map_err(|why| CliError::new(Exit::Refused, what.as_str(), why, ""))?;
            match self.write_with_revision(Some(&existing), &manifest, cause).await {
                Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
                result => return result.map_err(|error| CliError::request(what, &error)),
            }
        }
    }

    async fn write_with_revision(
        &self,
        existing: Option<&Value>,
        manifest: &Value,
        cause: &str,
    ) -> Result<Value, kube::Error> {
        // The dry run adds the server's defaults, so that the recorded revision equals the stored template.
        let defaulted = self.write(manifest, true).await?;
        let mut whole = manifest.clone();
        whole["spec"] = defaulted["spec"].clone();
        history::record(existing, &mut whole, cause, &Timestamp::now().to_string());
        self.write(&whole, false).await
    }

    /// Creates or replaces a workload. Unknown fields are errors: the server would drop them without a word.
    async fn write(&self, manifest: &Value, dry_run: bool) -> Result<Value, kube::Error> {
        let path = Workload::url_path(&(), Some(&self.namespace));
        let query = format!(
            "fieldManager={FIELD_MANAGER}&fieldValidation=Strict{}",
            if dry_run { "&dryRun=All" } else { "" }
        );
        let request = match manifest["metadata"]["resourceVersion"].as_str() {
            Some(_) => {
                let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
                http::Request::put(format!("{path}/{name}?{query}"))
            }
            None => http::Request::post(format!("{path}?{query}")),
        };
        let body = serde_json::to_vec(manifest).map_err(kube::Error::SerdeError)?;
        let request = request.header(http::header::CONTENT_TYPE, "application/json").body(body);
        self.client.request(request.map_err(kube::Error::HttpError)?).await
    }

    fn manifests(&self) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<Workload>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind)
    }

    /// Reads an instance; `None` if it does not exist.
    pub async fn instance(&self, name: &str) -> Result<Option<Instance>, CliError> {
        let found = self.api::<Instance>().get_opt(name).await;
        found.map_err(|error| CliError::request(format!("failed to read instance {name}"), &error))
    }

    /// Whether the workload exists.
    pub async fn has_workload(&self, name: &str) -> Result<bool, CliError> {
        let found = self.api::<Workload>().get_opt(name).await;
        let found =
            found.map_err(|error| CliError::request(format!("failed to read workload {name}"), &error))?;
        Ok(found.is_some())
    }

    /// The error for a name that is neither a workload nor an instance.
    pub fn not_found(&self, name: &str) -> CliError {
        CliError::new(
            Exit::NotFound,
            format!("failed to find {name}"),
            format!("{} has neither a workload nor an instance with this name", self.describe()),
            "list them with `polis workloads` and `polis instances`",
        )
    }
}

fn deploy_failed(manifest: &Value) -> String {
    format!("failed to deploy workload {}", manifest["metadata"]["name"].as_str().unwrap_or_default())
}

/// Waits for the next event of a watch. If the watch cannot be opened or ends, waits `WATCH_RETRY` instead.
async fn next_event<K>(api: Api<K>, params: WatchParams, version: &str)
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
    tokio::time::sleep(WATCH_RETRY).await;
}
