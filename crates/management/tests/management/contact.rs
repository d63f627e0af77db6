//! Contact: a deployment says that its cell is silent, or that the hub does not respond, and forgets it when
//! there is contact again. The test writes what cells and the federation write: heartbeats and Clusters.

use std::time::Duration;

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::coordination::v1::Lease;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use polis_api::karmada::Cluster;
use polis_api::{ObjectExt as _, names};
use polis_core::contact::RENEWAL_WINDOW;
use polis_core::heartbeat::{self, INTERVAL, SILENCE_LIMIT};
use polis_testing::builders::{condition, mk_condition, mk_namespace};
use polis_testing::{HUB, PlaneExt as _, RequestFault, consistently, eventually};

use crate::env::{LONG, NAMESPACE, TestEnv};

const CELL: &str = "dfw-1";
/// What a person may wait for.
const SECONDS: Duration = Duration::from_secs(5);

impl TestEnv {
    /// A deployment `web` in `dfw` whose cell reports two ready instances.
    async fn with_cell() -> Self {
        let env = TestEnv::running().await;
        env.hub().create(&mk_namespace(heartbeat::NAMESPACE)).await.unwrap();
        env.federate("web", "dfw").await;
        env.report_running("web").await;
        env
    }

    async fn report_running(&self, name: &str) {
        let now = self.cluster.now();
        let conditions: Vec<Condition> =
            ["Available", "Ready"].map(|kind| mk_condition(kind, "True", "RolloutComplete", &now)).into();
        self.report(name, |status| {
            status.cell = Some(CELL.to_owned());
            (status.replicas, status.desired_replicas, status.ready_replicas) = (2, 2, 2);
            status.conditions = conditions.clone();
        })
        .await;
        self.until_deployment(name, "True", "RolloutComplete").await;
    }

    /// Renews the Lease of the cell.
    async fn beat(&self) {
        let (hub, now) = (self.hub(), self.cluster.now());
        let name = names::heartbeat("dfw", CELL);
        let renew = |lease: &mut Lease| *lease = heartbeat::renewed(Some(lease), "dfw", CELL, &now);
        match hub.read::<Lease>((heartbeat::NAMESPACE, name.as_str())).await {
            Some(_) => hub.change::<Lease>((heartbeat::NAMESPACE, name.as_str()), renew).await,
            None => drop(hub.create(&heartbeat::renewed(None, "dfw", CELL, &now)).await.unwrap()),
        }
    }

    /// Renews the Lease once a minute for this time.
    async fn beat_for(&self, time: Duration) {
        for _ in 0..time.as_secs() / INTERVAL.as_secs() {
            self.idle(INTERVAL).await;
            self.beat().await;
        }
    }

    /// Waits until the deployment is `Ready` with this status and reason.
    async fn until_deployment(&self, name: &str, status: &str, reason: &str) -> WorkloadDeployment {
        eventually(&format!("{name}: {status} {reason}"), async || {
            let deployment: WorkloadDeployment = self.acme().read((NAMESPACE, name)).await?;
            let conditions = &deployment.status.as_ref()?.conditions;
            (condition(conditions, "Ready") == Some((status, reason))).then_some(deployment)
        })
        .await
    }

    async fn report_cluster(&self, status: &str) {
        let ready = mk_condition("Ready", status, "x", &self.cluster.now());
        let set =
            |cluster: &mut Cluster| cluster.status.get_or_insert_default().conditions = vec![ready.clone()];
        self.hub().change_status::<Cluster>("dfw", set).await;
    }

    /// The status of the deployment stays `Ready` with this reason.
    async fn stays_ready_as(&self, why: &str, reason: &str, time: Duration) {
        consistently(why, time, async || {
            let status = self.deployment("web").await.status.unwrap();
            condition(&status.conditions, "Ready").is_some_and(|(_, found)| found == reason)
        })
        .await;
    }

    /// The writes of the status of deployments since that number of writes.
    fn status_writes(&self, since: usize) -> usize {
        let writes = self.writes().split_off(since);
        let of_status = |write: &&String| {
            write.starts_with("acme: update workloaddeployments/") && write.ends_with("/status")
        };
        writes.iter().filter(of_status).count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_cell_without_heartbeats_is_silent_and_its_deployments_recover_within_seconds() {
    let env = TestEnv::with_cell().await;
    env.beat().await;
    let last = env.cluster.now();
    env.stays_ready_as("heartbeats may be missing", "RolloutComplete", SILENCE_LIMIT - SECONDS).await;
    let silent = env.until_deployment("web", "Unknown", "CellSilent").await;
    let status = silent.status.unwrap();
    assert_eq!(
        (status.ready_replicas, condition(&status.conditions, "Available")),
        (2, Some(("Unknown", "CellSilent")))
    );
    let ready = status.conditions.iter().find(|it| it.type_ == "Ready").unwrap();
    assert_eq!(ready.last_transition_time.0.as_second(), last.0.as_second(), "since the last word");
    assert!(ready.message.contains("cell dfw-1 since 2026-01-01T00:"), "{}", ready.message);

    let before = env.writes().len();
    env.idle(LONG).await;
    assert_eq!(env.writes().split_off(before), [""; 0], "nothing is written while nothing changes");
    env.beat().await;
    let since = tokio::time::Instant::now();
    env.until_deployment("web", "True", "RolloutComplete").await;
    assert!(since.elapsed() < SECONDS, "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_workload_counts_what_is_known_and_records_the_silence() {
    let env = TestEnv::running().await;
    env.hub().create(&mk_namespace(heartbeat::NAMESPACE)).await.unwrap();
    env.run("shop", &["dfw", "ord"]).await;
    for deployment in env.until_deployed(&["dfw", "ord"]).await {
        env.until_copied(deployment.name()).await;
        let dfw = deployment.spec.city_code == "dfw";
        let now = env.cluster.now();
        env.report(deployment.name(), |status| {
            status.cell = Some(if dfw { CELL } else { "ord-1" }.to_owned());
            (status.replicas, status.desired_replicas, status.ready_replicas) = (1, 1, 1);
            status.conditions =
                ["Available", "Ready"].map(|kind| mk_condition(kind, "True", "RolloutComplete", &now)).into();
        })
        .await;
    }
    env.beat().await;
    env.until_workload("shop", |it| it.status.as_ref().is_some_and(|status| status.ready_replicas == 2))
        .await;
    let is = |workload: &Workload, ready: i32, reason: &str| {
        let status = workload.status.as_ref().unwrap();
        status.ready_replicas == ready
            && condition(&status.conditions, "Ready").is_some_and(|(_, found)| found == reason)
    };
    let silent = env.until_workload("shop", |it| is(it, 1, "CellSilent")).await;
    let status = silent.status.unwrap();
    assert_eq!((status.replicas, status.placements[0].ready_replicas), (2, 1));
    assert_eq!(condition(&status.conditions, "Available"), Some(("True", "AvailablePlacementFound")));
    env.acme().eventually_event("shop", "CellSilent").await;
    env.beat().await;
    env.until_workload("shop", |it| is(it, 2, "RolloutComplete")).await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_the_hub_does_not_reach_is_silent_even_without_heartbeats() {
    let env = TestEnv::with_cell().await;
    for status in ["False", "Unknown"] {
        env.report_cluster(status).await;
        env.stays_ready_as("it may be a moment", "RolloutComplete", SILENCE_LIMIT - SECONDS).await;
        let silent = env.until_deployment("web", "Unknown", "CellSilent").await;
        let message = &silent.status.unwrap().conditions[0].message;
        assert!(message.contains("the hub has not reached cell dfw"), "{message}");
        env.report_cluster("True").await;
        env.until_deployment("web", "True", "RolloutComplete").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deployment_for_a_city_that_is_away_says_so_before_any_report() {
    let env = TestEnv::running().await;
    env.report_cluster("False").await;
    env.idle(SILENCE_LIMIT).await;
    env.federate("new", "dfw").await;
    env.until_deployment("new", "Unknown", "CellSilent").await;
    env.report_cluster("True").await;
    env.acme()
        .eventually_has((NAMESPACE, "new"), |it: &WorkloadDeployment| {
            it.status.as_ref().is_some_and(|status| status.conditions.is_empty())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_heartbeats_costs_no_request_of_the_management_plane() {
    let env = TestEnv::with_cell().await;
    env.beat().await;
    env.beat_for(Duration::from_secs(180)).await;
    for plane in ["acme", "globex", HUB] {
        env.requests_to(plane).clear();
    }
    env.beat_for(Duration::from_secs(3600)).await;
    for plane in ["acme", "globex", HUB] {
        let requests = env.requests_to(plane).log();
        assert_eq!(requests, [""; 0], "{plane}");
    }
    env.stays_ready_as("the cell is heard of", "RolloutComplete", Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_process_changes_nothing_about_a_silent_cell() {
    let mut env = TestEnv::with_cell().await;
    env.beat().await;
    env.until_deployment("web", "Unknown", "CellSilent").await;
    env.stop().await;
    let before = env.writes().len();
    env.start();
    env.stays_ready_as("the cell is silent", "CellSilent", LONG).await;
    assert_eq!(env.status_writes(before), 0);
    env.beat().await;
    env.until_deployment("web", "True", "RolloutComplete").await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_released_or_deleted_says_nothing() {
    let env = TestEnv::with_cell().await;
    env.beat().await;
    let name = names::heartbeat("dfw", CELL);
    let name = (heartbeat::NAMESPACE, name.as_str());
    env.hub().change::<Lease>(name, |lease| *lease = heartbeat::released(lease)).await;
    env.stays_ready_as("the cell has released its Lease", "RolloutComplete", LONG).await;
    env.beat().await;
    env.until_deployment("web", "Unknown", "CellSilent").await;
    env.hub().remove::<Lease>(name).await;
    env.until_deployment("web", "True", "RolloutComplete").await;
}

#[tokio::test(start_paused = true)]
async fn a_hub_that_is_away_costs_one_write_for_each_deployment_and_is_forgotten_within_seconds() {
    for outage in [RequestFault::Refuse, RequestFault::Hang] {
        let env = TestEnv::with_cell().await;
        for number in 0..5 {
            let name = format!("web-{number}");
            env.federate(&name, "dfw").await;
            env.report_running(&name).await;
        }
        env.beat().await;
        env.idle(SECONDS).await;
        let (hub, before) = (env.requests_to(HUB), env.writes().len());
        hub.fail(outage);
        // A watch that stays silent is noticed by the keep-alive of its connection, which a connection within
        // the process has not: a request of a user's change is.
        env.deploy("new", "dfw").await;
        let away = env.until_deployment("web", "Unknown", "HubUnreachable").await;
        assert_eq!(away.status.unwrap().ready_replicas, 2);
        for number in 0..5 {
            env.until_deployment(&format!("web-{number}"), "Unknown", "HubUnreachable").await;
        }
        env.until_deployment("new", "Unknown", "HubUnreachable").await;
        env.idle(LONG).await;
        assert_eq!(env.status_writes(before), 7, "{outage:?}: {:?}", env.writes().split_off(before));

        let before = env.writes().len();
        hub.restore();
        let since = tokio::time::Instant::now();
        env.until_deployment("web", "True", "RolloutComplete").await;
        assert!(since.elapsed() < 4 * SECONDS, "{outage:?}: {:?}", since.elapsed());
        // The cell could not renew its Lease meanwhile, and has time for it now.
        env.idle(SECONDS).await;
        env.beat().await;
        env.beat_for(2 * RENEWAL_WINDOW).await;
        env.stays_ready_as("the cell is heard of", "RolloutComplete", SECONDS).await;
        assert!(env.status_writes(before) <= 7, "{outage:?}: {:?}", env.writes().split_off(before));
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_while_the_hub_is_away_reports_it() {
    let mut env = TestEnv::with_cell().await;
    env.stop().await;
    let hub = env.requests_to(HUB);
    hub.fail(RequestFault::Refuse);
    env.start();
    env.until_deployment("web", "Unknown", "HubUnreachable").await;
    hub.restore();
    env.until_deployment("web", "True", "RolloutComplete").await;
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_of_the_hub_is_not_reported() {
    let env = TestEnv::with_cell().await;
    let hub = env.requests_to(HUB);
    hub.fail(RequestFault::Refuse);
    env.stays_ready_as("the hub restarts", "RolloutComplete", Duration::from_secs(20)).await;
    hub.restore();
    env.stays_ready_as("the hub is back", "RolloutComplete", LONG).await;
}

#[tokio::test(start_paused = true)]
async fn one_api_of_the_hub_that_is_away_is_not_the_hub() {
    let mut env = TestEnv::with_cell().await;
    env.stop().await;
    let hub = env.requests_to(HUB);
    // As Karmada's aggregated API server, which serves Clusters.
    hub.inject(RequestFault::Refuse, |request| request.resource == "clusters");
    env.start();
    env.stays_ready_as("the hub answers", "RolloutComplete", LONG).await;
}
