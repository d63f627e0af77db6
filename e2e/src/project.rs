//! A namespace of a project, and the actions of its user.

use std::{future::Future, sync::Arc};

use polis_api::{
    compute::{Workload, WorkloadDeployment, WorkloadSpec},
    kube::{
        self, Api, ResourceExt as _,
        api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    },
    labels, names,
};
use serde_json::json;

use crate::{
    builders::{DeploymentBuilder, WorkloadBuilder, mk_template},
    recorder::PlaneRecorder,
    view::NamespaceView,
};

/// A namespace of a project.
#[derive(Clone)]
pub struct Project {
    /// Records the project's plane.
    pub recorder: Arc<PlaneRecorder>,
    /// The namespace.
    pub namespace: String,
    /// UID of the namespace; its name on hub and cells is derived from it.
    pub uid: String,
}

impl Project {
    /// The name of the project and of its plane.
    pub fn name(&self) -> &str {
        &self.recorder.plane
    }

    /// A view of the namespace.
    pub fn view(&self) -> NamespaceView {
        NamespaceView { recorder: self.recorder.clone(), namespace: self.namespace.clone() }
    }

    /// The name of the namespace on hub and cells.
    pub fn hub_namespace(&self) -> String {
        names::hub_namespace(&self.uid)
    }

    /// The names of the namespace on all planes.
    pub fn namespaces(&self) -> Vec<String> {
        vec![self.namespace.clone(), self.hub_namespace()]
    }

    /// Creates a deployment directly, without a workload.
    pub async fn deploy(&self, builder: DeploymentBuilder) -> AppliedDeployment {
        let name = builder.0.name_any();
        let api = self.view().api::<WorkloadDeployment>();
        retry("create the deployment", async || api.create(&PostParams::default(), &builder.0).await).await;
        AppliedDeployment { project: self.clone(), name }
    }

    /// Creates a workload.
    pub async fn run(&self, builder: WorkloadBuilder) -> AppliedWorkload {
        let name = builder.0.name_any();
        let api = self.view().api::<Workload>();
        let created =
            retry("create the workload", async || api.create(&PostParams::default(), &builder.0).await).await;
        AppliedWorkload { project: self.clone(), name, uid: created.uid().unwrap_or_default() }
    }
}

/// A deployment that was created directly.
#[derive(Clone)]
pub struct AppliedDeployment {
    /// The project.
    pub project: Project,
    /// Its name.
    pub name: String,
}

impl AppliedDeployment {
    /// The name of one of its instances.
    pub fn instance(&self, ordinal: u32) -> String {
        names::instance(&self.name, ordinal)
    }

    /// Deletes it without waiting.
    pub async fn delete(&self) {
        let api = self.api();
        drop(
            retry("delete the deployment", async || api.delete(&self.name, &DeleteParams::default()).await)
                .await,
        );
    }

    /// Sets `minReplicas`.
    pub async fn scale(&self, replicas: i32) {
        self.merge(json!({"spec": {"scaleSettings": {"minReplicas": replicas}}})).await;
    }

    /// Sets the image.
    pub async fn run_image(&self, image: &str) {
        self.merge(json!({"spec": {"template": mk_template(image)}})).await;
    }

    /// Applies a merge patch.
    pub async fn merge(&self, patch: serde_json::Value) {
        let api = self.api();
        let change = async || api.patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        retry("change the deployment", change).await;
    }

    fn api(&self) -> Api<WorkloadDeployment> {
        self.project.view().api()
    }
}

/// A workload that was created.
#[derive(Clone)]
pub struct AppliedWorkload {
    /// The project.
    pub project: Project,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl AppliedWorkload {
    /// Deletes it without waiting.
    pub async fn delete(&self) {
        let api = self.api();
        let preconditions = Preconditions { uid: Some(self.uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        drop(retry("delete the workload", async || api.delete(&self.name, &params).await).await);
    }

    /// Changes the spec.
    pub async fn edit(&self, change: impl Fn(&mut WorkloadSpec)) {
        let api = self.api();
        retry("change the workload", async || {
            let mut workload = api.get(&self.name).await?;
            change(&mut workload.spec);
            api.replace(&self.name, &PostParams::default(), &workload).await
        })
        .await;
    }

    /// Its deployments in the project.
    pub fn deployments(&self) -> Vec<WorkloadDeployment> {
        let is_own = |d: &WorkloadDeployment| d.labels().get(labels::WORKLOAD_UID) == Some(&self.uid);
        self.project.view().all::<WorkloadDeployment>().into_iter().filter(is_own).collect()
    }

    /// Waits until it has one deployment in each of these cities and no others; returns their names in that
    /// order.
    pub async fn until_deployed_to(&self, cities: &[&str]) -> Vec<String> {
        let uid = self.uid.clone();
        let mut wanted: Vec<&str> = cities.to_vec();
        wanted.sort_unstable();
        let what = format!("a deployment of {} in each of {cities:?}", self.name);
        let found = self
            .project
            .view()
            .eventually::<WorkloadDeployment, _>(&what, |all| {
                let own: Vec<_> =
                    all.into_iter().filter(|d| d.labels().get(labels::WORKLOAD_UID) == Some(&uid)).collect();
                let mut found_cities: Vec<&str> = own.iter().map(|d| &*d.spec.city_code).collect();
                found_cities.sort_unstable();
                (found_cities == wanted).then(|| own.clone())
            })
            .await;
        let of = |city: &&str| found.iter().find(|d| d.spec.city_code == **city).map(|d| d.name_any());
        cities.iter().filter_map(of).collect()
    }

    fn api(&self) -> Api<Workload> {
        self.project.view().api()
    }
}

/// Attempts of a user action: a plane that was just restored may reject the first ones.
const ATTEMPTS: usize = 20;

/// Retries a user action when the plane does not respond or reports a conflict.
pub async fn retry<T, F>(what: &str, mut action: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut attempts = 0;
    loop {
        attempts += 1;
        match action().await {
            Ok(result) => return result,
            Err(kube::Error::Api(refusal))
                if !matches!(refusal.code, 409 | 429 | 500..) || refusal.reason == "AlreadyExists" =>
            {
                panic!("failed to {what}: {refusal}")
            }
            Err(err) if attempts == ATTEMPTS => panic!("failed to {what} in {ATTEMPTS} attempts: {err}"),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
        }
    }
}
