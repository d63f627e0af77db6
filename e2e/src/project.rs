//! Project: a namespace of a project, and what its user does there.

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
    draft::{DeploymentDraft, WorkloadDraft, template},
    eye::Eye,
    place::Place,
};

/// A namespace of a project.
#[derive(Clone)]
pub struct Project {
    /// Looks at the project's plane.
    pub eye: Arc<Eye>,
    /// The namespace.
    pub namespace: String,
    /// The uid of the namespace: what its name on hub and cells is made of.
    pub uid: String,
}

impl Project {
    /// The name of the project, which is that of its plane.
    pub fn name(&self) -> &str {
        &self.eye.plane
    }

    /// The namespace, as a place to look at.
    pub fn here(&self) -> Place {
        Place { eye: self.eye.clone(), namespace: self.namespace.clone() }
    }

    /// The name of the namespace on hub and cells.
    pub fn hub_namespace(&self) -> String {
        names::hub_namespace(&self.uid)
    }

    /// The names that the namespace has on all planes.
    pub fn namespaces(&self) -> Vec<String> {
        vec![self.namespace.clone(), self.hub_namespace()]
    }

    /// Applies a deployment by hand.
    pub async fn deploy(&self, draft: DeploymentDraft) -> Deployed {
        let name = draft.0.name_any();
        let api = self.here().api::<WorkloadDeployment>();
        insist("create the deployment", async || api.create(&PostParams::default(), &draft.0).await).await;
        Deployed { project: self.clone(), name }
    }

    /// Applies a workload.
    pub async fn run(&self, draft: WorkloadDraft) -> Running {
        let name = draft.0.name_any();
        let api = self.here().api::<Workload>();
        let made =
            insist("create the workload", async || api.create(&PostParams::default(), &draft.0).await).await;
        Running { project: self.clone(), name, uid: made.uid().unwrap_or_default() }
    }
}

/// A deployment that was applied by hand.
#[derive(Clone)]
pub struct Deployed {
    /// Where.
    pub project: Project,
    /// Its name.
    pub name: String,
}

impl Deployed {
    /// The name of one of its instances.
    pub fn instance(&self, ordinal: u32) -> String {
        names::instance(&self.name, ordinal)
    }

    /// Deletes it, and does not wait.
    pub async fn delete(&self) {
        let api = self.api();
        drop(
            insist("delete the deployment", async || api.delete(&self.name, &DeleteParams::default()).await)
                .await,
        );
    }

    /// Wants so many instances from now on.
    pub async fn scale(&self, replicas: i32) {
        self.merge(json!({"spec": {"scaleSettings": {"minReplicas": replicas}}})).await;
    }

    /// Wants its instances to run this image from now on.
    pub async fn run_image(&self, image: &str) {
        self.merge(json!({"spec": {"template": template(image)}})).await;
    }

    /// Changes it.
    pub async fn merge(&self, patch: serde_json::Value) {
        let api = self.api();
        let change = async || api.patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        insist("change the deployment", change).await;
    }

    fn api(&self) -> Api<WorkloadDeployment> {
        self.project.here().api()
    }
}

/// A workload that was applied.
#[derive(Clone)]
pub struct Running {
    /// Where.
    pub project: Project,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

impl Running {
    /// Deletes it, and does not wait.
    pub async fn delete(&self) {
        let api = self.api();
        let exactly = Preconditions { uid: Some(self.uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(exactly), ..DeleteParams::default() };
        drop(insist("delete the workload", async || api.delete(&self.name, &params).await).await);
    }

    /// Changes what it wants.
    pub async fn edit(&self, change: impl Fn(&mut WorkloadSpec)) {
        let api = self.api();
        insist("change the workload", async || {
            let mut workload = api.get(&self.name).await?;
            change(&mut workload.spec);
            api.replace(&self.name, &PostParams::default(), &workload).await
        })
        .await;
    }

    /// The deployments that it has in the project now.
    pub fn deployments(&self) -> Vec<WorkloadDeployment> {
        let of_mine = |d: &WorkloadDeployment| d.labels().get(labels::WORKLOAD_UID) == Some(&self.uid);
        self.project.here().all::<WorkloadDeployment>().into_iter().filter(of_mine).collect()
    }

    /// Waits until it has a deployment in each of these cities and in no other, and returns their names in that order.
    pub async fn spreads_to(&self, cities: &[&str]) -> Vec<String> {
        let uid = self.uid.clone();
        let mut wanted: Vec<&str> = cities.to_vec();
        wanted.sort_unstable();
        let words = format!("a deployment of {} in each of {cities:?}", self.name);
        let found = self
            .project
            .here()
            .settles::<WorkloadDeployment, _>(&words, |all| {
                let mine: Vec<_> =
                    all.into_iter().filter(|d| d.labels().get(labels::WORKLOAD_UID) == Some(&uid)).collect();
                let mut there: Vec<&str> = mine.iter().map(|d| &*d.spec.city_code).collect();
                there.sort_unstable();
                (there == wanted).then(|| mine.clone())
            })
            .await;
        let of = |city: &&str| found.iter().find(|d| d.spec.city_code == **city).map(|d| d.name_any());
        cities.iter().filter_map(of).collect()
    }

    fn api(&self) -> Api<Workload> {
        self.project.here().api()
    }
}

/// How often an act of a user is tried: a plane that was just restored may refuse the first one.
const TRIES: usize = 20;

/// Does what a user does: again, when the plane did not answer or somebody else wrote in between.
pub async fn insist<T, F>(what: &str, mut act: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut tries = 0;
    loop {
        tries += 1;
        match act().await {
            Ok(done) => return done,
            Err(kube::Error::Api(refusal))
                if !matches!(refusal.code, 409 | 429 | 500..) || refusal.reason == "AlreadyExists" =>
            {
                panic!("failed to {what}: {refusal}")
            }
            Err(err) if tries == TRIES => panic!("failed to {what} in {TRIES} tries: {err}"),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
        }
    }
}
