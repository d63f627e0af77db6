//! Teardown: a deleted deployment is released when its cell has ended the instances and the federation has
//! nothing of it left. The test writes what Karmada and the cell write: the Work, and the status of the copy.

use std::time::Duration;

use polis_api::ObjectExt as _;
use polis_api::annotations::{self, ABANDON, WITHDRAWN_AT};
use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::conditions::WITHDRAWN;
use polis_api::karmada::{Cluster, Work, names};
use polis_core::{metadata, teardown};
use polis_testing::builders::{condition, mk_condition, mk_meta, mk_namespace};
use polis_testing::{PlaneExt as _, RequestFault, consistently, eventually};

use crate::env::{LONG, NAMESPACE, TestEnv};

const EXECUTION: &str = "karmada-es-dfw";
/// Older than a deployment that the federation may have overlooked.
const OLD_ENOUGH: Duration = Duration::from_secs(60);

impl TestEnv {
    /// A federated deployment `web` in `dfw` with a Work, as the federation creates it.
    async fn with_work() -> Self {
        let env = TestEnv::running().await;
        env.hub().create(&mk_namespace(EXECUTION)).await.unwrap();
        env.federate("web", "dfw").await;
        env.create_work("web").await;
        env.set_reachable(true).await;
        env.idle(OLD_ENOUGH).await;
        env
    }

    fn work_name(&self, deployment: &str) -> String {
        names::work("WorkloadDeployment", &self.hub_namespace, deployment)
    }

    /// Creates the Work of a copy. It is terminating until the member confirms its deletion.
    async fn create_work(&self, deployment: &str) {
        let mut work =
            Work { metadata: mk_meta(Some(EXECUTION), &self.work_name(deployment)), ..Work::default() };
        let binding = metadata::map([(annotations::karmada::BINDING_NAMESPACE, &*self.hub_namespace)]);
        metadata::merge_annotations(&mut work.metadata, &binding, &[]);
        metadata::add_finalizer(&mut work.metadata, "karmada.io/execution-controller");
        self.hub().create(&work).await.unwrap();
    }

    async fn work(&self) -> Option<Work> {
        self.hub().read((EXECUTION, self.work_name("web").as_str())).await
    }

    /// Reports the readiness of the member, as the federation does.
    async fn set_reachable(&self, reachable: bool) {
        let (status, reason) = match reachable {
            true => ("True", "ClusterReady"),
            false => ("False", "ClusterNotReachable"),
        };
        let ready = mk_condition("Ready", status, reason, &self.cluster.now());
        let set =
            |cluster: &mut Cluster| cluster.status.get_or_insert_default().conditions = vec![ready.clone()];
        self.hub().change_status::<Cluster>("dfw", set).await;
    }

    /// The member confirms the deletion of its copy, so the federation releases the Work.
    async fn confirm_work(&self) {
        let name = self.work_name("web");
        let release = |work: &mut Work| work.metadata.finalizers = None;
        self.hub().change::<Work>((EXECUTION, name.as_str()), release).await;
    }

    /// Reports on a marked copy, as its cell does.
    async fn report_instances(&self, left: usize) {
        let (status, reason) =
            if left == 0 { ("True", "InstancesEnded") } else { ("False", "InstancesEnding") };
        let mut report = mk_condition(WITHDRAWN, status, reason, &self.cluster.now());
        report.message = format!("{left} instances are ending");
        self.report("web", |status| {
            status.replicas = i32::try_from(left).unwrap();
            status.conditions = vec![report.clone()];
        })
        .await;
    }

    async fn delete_web(&self) {
        self.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    }

    async fn until_marked(&self) {
        let name = (self.hub_namespace.as_str(), "web");
        self.hub().eventually_has(name, teardown::requested).await;
    }

    /// Waits until the deployment says what its deletion waits for.
    async fn until_waiting(&self, reason: &str) -> String {
        eventually(&format!("the deletion waits: {reason}"), async || {
            let deployment: WorkloadDeployment = self.acme().read((NAMESPACE, "web")).await?;
            let conditions = deployment.status?.conditions;
            let found = conditions.iter().find(|it| it.type_ == WITHDRAWN && it.reason == reason)?;
            Some(found.message.clone())
        })
        .await
    }

    async fn stays(&self, why: &str, time: Duration) {
        consistently(why, time, async || {
            self.acme().read::<WorkloadDeployment>((NAMESPACE, "web")).await.is_some()
        })
        .await;
    }

    async fn until_released(&self) {
        self.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_waits_for_the_instances_and_then_for_the_work() {
    let env = TestEnv::with_work().await;
    env.delete_web().await;
    env.until_marked().await;
    env.report_instances(2).await;
    let message = env.until_waiting("InstancesEnding").await;
    assert_eq!(message, "dfw: 2 instances are ending");
    assert_eq!(env.deployment("web").await.status.unwrap().replicas, 2);
    env.stays("instances are ending", Duration::from_secs(60)).await;
    assert!(env.copy("web").await.is_some());

    env.report_instances(0).await;
    env.hub().eventually_lacks::<WorkloadDeployment>((env.hub_namespace.as_str(), "web")).await;
    env.until_waiting("AwaitingCell").await;
    env.stays("the Work is left", LONG).await;
    env.confirm_work().await;
    env.until_released().await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_goes_through_at_once_writes_no_condition() {
    let env = TestEnv::with_work().await;
    let before = env.writes().len();
    env.delete_web().await;
    env.until_marked().await;
    env.report_instances(0).await;
    env.hub().eventually_lacks::<WorkloadDeployment>((env.hub_namespace.as_str(), "web")).await;
    env.confirm_work().await;
    env.until_released().await;
    // The rights of the city's cells are withdrawn at the same time.
    let of_access = |write: &String| write.contains("rolebindings") || write.contains("namespaces");
    let writes: Vec<_> =
        env.writes().split_off(before).into_iter().filter(|write| !of_access(write)).collect();
    let expected = [
        "hub: update workloaddeployments/web",
        "hub: delete workloaddeployments/web",
        "hub: delete works/",
        "hub: delete propagationpolicies/city-dfw",
        "acme: patch workloaddeployments/web",
    ];
    assert_eq!(writes.len(), expected.len(), "{writes:?}");
    assert!(writes.iter().zip(expected).all(|(write, expected)| write.starts_with(expected)), "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_cell_holds_a_deletion_until_it_has_ended_its_instances() {
    let env = TestEnv::with_work().await;
    env.set_reachable(false).await;
    env.delete_web().await;
    let message = env.until_waiting("CellUnreachable").await;
    assert!(message.contains("cell dfw"), "{message}");
    // Longer than every timer. A week would cost ten seconds of lists.
    env.stays("the cell is away", Duration::from_secs(12 * 3600)).await;
    assert!(env.copy("web").await.is_some(), "the mark is still on its way to the cell");
    let since = |d: &WorkloadDeployment| {
        let conditions = d.status.as_ref().unwrap().conditions.clone();
        conditions.into_iter().find(|it| it.type_ == WITHDRAWN).unwrap().last_transition_time
    };
    let away = since(&env.deployment("web").await);

    env.set_reachable(true).await;
    env.until_waiting("AwaitingCell").await;
    assert_eq!(since(&env.deployment("web").await), away, "the wait began with the deletion");
    env.report_instances(0).await;
    env.hub().eventually_lacks::<WorkloadDeployment>((env.hub_namespace.as_str(), "web")).await;
    env.confirm_work().await;
    env.until_released().await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_fails_after_its_instances_have_ended_holds_the_deletion() {
    let env = TestEnv::with_work().await;
    env.delete_web().await;
    env.until_marked().await;
    env.set_reachable(false).await;
    env.report_instances(0).await;
    env.hub().eventually_lacks::<WorkloadDeployment>((env.hub_namespace.as_str(), "web")).await;
    env.until_waiting("CellUnreachable").await;
    env.stays("the Work is left", LONG).await;
    env.set_reachable(true).await;
    env.confirm_work().await;
    env.until_released().await;
}

#[tokio::test(start_paused = true)]
async fn stopped_controllers_of_a_reachable_cell_do_not_hold_a_deletion() {
    let env = TestEnv::with_work().await;
    env.delete_web().await;
    env.until_marked().await;
    env.until_waiting("AwaitingCell").await;
    env.hub().eventually_lacks::<WorkloadDeployment>((env.hub_namespace.as_str(), "web")).await;
    env.acme().eventually_event("web", "TeardownUnconfirmed").await;
    env.confirm_work().await;
    env.until_released().await;
}

#[tokio::test(start_paused = true)]
async fn a_work_without_a_binding_is_deleted() {
    let env = TestEnv::with_work().await;
    // Karmada has lost the copy and left its Work.
    env.stop_and_remove_copy().await;
    eventually("the Work is deleted", async || env.work().await.filter(|work| work.is_deleting())).await;
    env.confirm_work().await;
    env.until_released().await;
}

impl TestEnv {
    /// Deletes the project's deployment and its hub copy at once: nothing is left on the hub but the Work.
    async fn stop_and_remove_copy(&self) {
        let hub = self.requests_to("hub");
        hub.fail(RequestFault::Refuse);
        self.delete_web().await;
        self.hub().remove::<WorkloadDeployment>((self.hub_namespace.as_str(), "web")).await;
        hub.restore();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hub_that_is_away_is_reported_on_the_deployment() {
    let env = TestEnv::with_work().await;
    let hub = env.requests_to("hub");
    hub.fail(RequestFault::Refuse);
    env.delete_web().await;
    let message = env.until_waiting("HubUnreachable").await;
    assert!(message.contains("the hub does not respond"), "{message}");
    env.stays("the hub is away", LONG).await;
    hub.restore();
    env.until_marked().await;
    env.report_instances(0).await;
    env.hub().eventually_lacks::<WorkloadDeployment>((env.hub_namespace.as_str(), "web")).await;
    env.confirm_work().await;
    env.until_released().await;
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_cell_lets_the_deployment_go_and_its_work_stays() {
    let env = TestEnv::with_work().await;
    env.set_reachable(false).await;
    env.delete_web().await;
    env.until_waiting("CellUnreachable").await;
    let abandon = |deployment: &mut WorkloadDeployment| {
        metadata::merge_annotations(&mut deployment.metadata, &metadata::map([(ABANDON, "dfw")]), &[]);
    };
    env.acme().change((NAMESPACE, "web"), abandon).await;
    env.until_released().await;
    let note = env.acme().eventually_event("web", "CellAbandoned").await;
    assert!(note.contains("cell dfw"), "{note}");
    assert_eq!(env.copy("web").await, None);
    assert!(env.work().await.is_some(), "the federation deletes the copy in the cell when it returns");
}

#[tokio::test(start_paused = true)]
async fn a_workload_says_what_its_deletion_waits_for_and_abandons_a_city() {
    let env = TestEnv::running().await;
    env.hub().create(&mk_namespace(EXECUTION)).await.unwrap();
    env.run("shop", &["dfw", "ord"]).await;
    let deployments = env.until_deployed(&["dfw", "ord"]).await;
    for deployment in &deployments {
        env.until_copied(deployment.name()).await;
    }
    env.create_work(deployments[0].name()).await;
    env.set_reachable(false).await;
    env.idle(OLD_ENOUGH).await;
    env.acme().remove::<Workload>((NAMESPACE, "shop")).await;
    let waiting = env
        .until_workload("shop", |workload| {
            let conditions = workload.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
            condition(conditions, WITHDRAWN) == Some(("False", "CellUnreachable"))
        })
        .await;
    assert!(waiting.is_deleting());
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, deployments[1].name())).await;
    consistently("the workload waits", LONG, async || {
        env.acme().read::<Workload>((NAMESPACE, "shop")).await.is_some()
    })
    .await;
    let abandon = |workload: &mut Workload| {
        metadata::merge_annotations(&mut workload.metadata, &metadata::map([(ABANDON, "dfw")]), &[]);
    };
    env.acme().change((NAMESPACE, "shop"), abandon).await;
    env.acme().eventually_lacks::<Workload>((NAMESPACE, "shop")).await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_whose_record_was_edited_is_withdrawn_from_its_true_hub_namespace() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let edit = |deployment: &mut WorkloadDeployment| {
        let record = metadata::map([(annotations::FEDERATION_NAMESPACE, "ns-forged")]);
        metadata::merge_annotations(&mut deployment.metadata, &record, &[]);
    };
    env.acme().change((NAMESPACE, "web"), edit).await;
    env.delete_web().await;
    env.until_released().await;
    assert_eq!(env.copy("web").await, None);
}

#[tokio::test(start_paused = true)]
async fn the_mark_of_a_restored_copy_is_removed_while_its_deployment_lives() {
    let env = TestEnv::with_work().await;
    let mark = |copy: &mut WorkloadDeployment| {
        let at = metadata::map([(WITHDRAWN_AT, "2026-01-01T00:00:00Z")]);
        metadata::merge_annotations(&mut copy.metadata, &at, &[]);
    };
    let name = (env.hub_namespace.as_str(), "web");
    env.hub().change(name, mark).await;
    env.hub().eventually_has(name, |copy: &WorkloadDeployment| !teardown::requested(copy)).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_whose_project_has_no_deployment_is_withdrawn() {
    let mut env = TestEnv::with_work().await;
    env.stop().await;
    // As a hub that is restored from a backup which is older than the deletion.
    env.delete_web().await;
    let release = |deployment: &mut WorkloadDeployment| deployment.metadata.finalizers = None;
    env.acme().change((NAMESPACE, "web"), release).await;
    env.start();
    env.until_marked().await;
    env.report_instances(0).await;
    env.hub().eventually_lacks::<WorkloadDeployment>((env.hub_namespace.as_str(), "web")).await;
    env.hub().eventually_event("web", "SourceGone").await;
}
