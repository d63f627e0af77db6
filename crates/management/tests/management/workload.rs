//! Workload controller: deployments, their names and metadata, the status, and its events.

use std::time::Duration;

use polis_api::ObjectExt as _;
use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::networking::{LocationBinding, Network};
use polis_api::{annotations, finalizers, labels, names};
use polis_core::owner;
use polis_testing::builders::{NETWORK, condition, mk_condition, mk_deployment, mk_network, mk_template};
use polis_testing::{PlaneExt as _, consistently};

use crate::env::{LONG, NAMESPACE, TestEnv};

fn available(workload: &Workload) -> Option<(&str, &str)> {
    condition(&workload.status.as_ref()?.conditions, "Available")
}

#[tokio::test(start_paused = true)]
async fn a_workload_gets_a_deployment_in_each_of_its_cities() {
    let env = TestEnv::running().await;
    let workload = env.run("web", &["ord", "dfw"]).await;
    let uid = workload.uid();
    for deployment in env.until_deployed(&["dfw", "ord"]).await {
        let name = names::deployment("web", uid, "default", &deployment.spec.city_code);
        assert_eq!(deployment.name(), name);
        assert_eq!(deployment.label(labels::WORKLOAD_UID), Some(uid));
        assert!(owner::is_controlled_by(&deployment.metadata, uid));
        assert_eq!(deployment.spec.template, workload.spec.template);
        assert_eq!(deployment.spec.scale_settings, workload.spec.placements[0].scale_settings);
    }
    let note = env.acme().eventually_event("web", "DeploymentCreated").await;
    assert!(note.contains("for city"), "{note}");
}

#[tokio::test(start_paused = true)]
async fn a_deployment_is_created_with_the_federators_finalizer_and_record() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw"]).await;
    let deployment = env.until_deployed(&["dfw"]).await.remove(0);
    env.until_copied(deployment.name()).await;
    let name = deployment.name();
    let writes = env.requests_to("acme").logged("update workloaddeployments");
    let of_metadata: Vec<_> = writes.iter().filter(|write| !write.ends_with("/status")).collect();
    assert_eq!(of_metadata, [""; 0], "the creation of {name} has the finalizer and the annotation");
    assert!(deployment.has_finalizer(finalizers::FEDERATOR));
    let recorded = deployment.annotation(annotations::FEDERATION_NAMESPACE);
    assert_eq!(recorded, Some(env.hub_namespace.as_str()));
}

#[tokio::test(start_paused = true)]
async fn the_finalizer_is_written_before_the_first_deployment() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw"]).await;
    env.until_deployed(&["dfw"]).await;
    let writes = env.requests_to("acme").log();
    let finalizer = writes.iter().position(|write| write.ends_with("workloads/web")).unwrap();
    let created = writes.iter().position(|write| write == "create workloaddeployments").unwrap();
    assert!(finalizer < created, "{writes:?}");
    let workload: Workload = env.acme().read((NAMESPACE, "web")).await.unwrap();
    assert!(workload.has_finalizer(finalizers::WORKLOAD));
}

#[tokio::test(start_paused = true)]
async fn the_status_sums_up_the_deployments() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw", "ord"]).await;
    let deployments = env.until_deployed(&["dfw", "ord"]).await;
    for (deployment, ready) in deployments.iter().zip([1, 2]) {
        let name = deployment.name();
        env.until_copied(name).await;
        env.report_ready(name, ready).await;
    }
    let workload = env
        .until_workload("web", |workload| {
            workload.status.as_ref().is_some_and(|status| status.ready_replicas == 3)
        })
        .await;
    assert_eq!(available(&workload), Some(("True", "AvailablePlacementFound")));
    let status = workload.status.unwrap();
    assert_eq!((status.deployments, status.replicas, status.desired_replicas), (2, 3, 3));
    assert_eq!(status.placements[0].ready_replicas, 3);
    env.acme().eventually_event("web", "AvailablePlacementFound").await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_becomes_unavailable_makes_the_workload_unavailable() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw"]).await;
    let name = env.until_deployed(&["dfw"]).await[0].name().to_owned();
    env.until_copied(&name).await;
    env.report_ready(&name, 1).await;
    env.until_workload("web", |workload| available(workload).is_some_and(|(status, _)| status == "True"))
        .await;
    env.report(&name, |status| {
        status.ready_replicas = 0;
        let available = &mut status.conditions[0];
        (available.status, available.reason) = ("False".into(), "ImageUnavailable".into());
    })
    .await;
    let lost =
        env.until_workload("web", |workload| available(workload).is_some_and(|(is, _)| is == "False")).await;
    assert_eq!(available(&lost), Some(("False", "ImageUnavailable")));
    let events = {
        env.acme().eventually_event("web", "ImageUnavailable").await;
        env.acme().events_of("web").await
    };
    let warning = events.iter().find(|event| event.reason.as_deref() == Some("ImageUnavailable")).unwrap();
    assert_eq!(warning.type_.as_deref(), Some("Warning"));
}

#[tokio::test(start_paused = true)]
async fn the_observed_generation_follows_the_spec() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw"]).await;
    let observed =
        |workload: &Workload| workload.status.as_ref().and_then(|status| status.observed_generation);
    env.until_workload("web", |workload| observed(workload) == Some(1)).await;
    let edit = |workload: &mut Workload| workload.spec.template = mk_template("app:2");
    env.acme().change((NAMESPACE, "web"), edit).await;
    let workload = env.until_workload("web", |workload| observed(workload) == Some(2)).await;
    assert_eq!(workload.metadata.generation, Some(2));
    let deployment = env.until_deployed(&["dfw"]).await.remove(0);
    assert_eq!(
        deployment.spec.template,
        mk_template("app:2"),
        "the deployment was updated before the status"
    );
}

#[tokio::test(start_paused = true)]
async fn the_replicas_that_an_autoscaler_writes_stay() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw"]).await;
    let name = env.until_deployed(&["dfw"]).await[0].name().to_owned();
    let scale = |deployment: &mut WorkloadDeployment| deployment.spec.replicas = Some(7);
    env.acme().change((NAMESPACE, name.as_str()), scale).await;
    let edit = |workload: &mut Workload| workload.spec.template = mk_template("app:2");
    env.acme().change((NAMESPACE, "web"), edit).await;
    let updated: WorkloadDeployment = env
        .acme()
        .eventually_has((NAMESPACE, name.as_str()), |d: &WorkloadDeployment| {
            d.spec.template == mk_template("app:2")
        })
        .await;
    assert_eq!(updated.spec.replicas, Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_missing_network_stops_new_deployments_until_it_exists() {
    let env = TestEnv::new().await;
    env.acme().remove::<Network>((NAMESPACE, NETWORK)).await;
    let mut env = env;
    env.start();
    env.run("web", &["dfw"]).await;
    let waiting = env.until_workload("web", |workload| available(workload).is_some()).await;
    assert_eq!(available(&waiting), Some(("False", "NetworkNotFound")));
    let note = env.acme().eventually_event("web", "NetworkNotFound").await;
    assert!(note.contains("default/test-network"), "{note}");
    env.idle(LONG).await;
    env.until_deployed(&[]).await;

    env.acme().create(&mk_network(NAMESPACE, NETWORK)).await.unwrap();
    env.until_deployed(&["dfw"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_city_that_is_not_bound_gets_no_deployment_until_it_is() {
    let env = TestEnv::new().await;
    env.acme().remove::<LocationBinding>("ord").await;
    let mut env = env;
    env.start();
    env.run("web", &["ord"]).await;
    let waiting = env.until_workload("web", |workload| available(workload).is_some()).await;
    assert_eq!(available(&waiting), Some(("False", "NoMatchingLocations")));
    env.acme().eventually_event("web", "NoMatchingLocations").await;
    env.until_deployed(&[]).await;

    env.acme().create(&polis_testing::builders::mk_location_binding("ord")).await.unwrap();
    env.until_deployed(&["ord"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_city_that_is_no_longer_bound_keeps_its_deployment() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw", "ord"]).await;
    env.until_deployed(&["dfw", "ord"]).await;
    env.acme().remove::<LocationBinding>("ord").await;
    let note = env.acme().eventually_event("web", "LocationLost").await;
    assert!(note.contains("City ord"), "{note}");
    consistently("both deployments stay", LONG, async || {
        env.acme().all::<WorkloadDeployment>().await.iter().all(|d| !d.is_deleting())
    })
    .await;
    env.until_deployed(&["dfw", "ord"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_city_that_is_removed_from_the_spec_loses_its_deployment() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw", "ord"]).await;
    env.until_deployed(&["dfw", "ord"]).await;
    let edit = |workload: &mut Workload| workload.spec.placements[0].city_codes = vec!["dfw".into()];
    env.acme().change((NAMESPACE, "web"), edit).await;
    env.until_deployed(&["dfw"]).await;
    env.acme().eventually_event("web", "DeploymentRemoved").await;
    env.until_workload("web", |workload| workload.status.as_ref().is_some_and(|s| s.deployments == 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_of_another_workload_is_left_unchanged() {
    let mut env = TestEnv::new().await;
    let workload = env.run("web", &["dfw"]).await;
    let name = names::deployment("web", workload.uid(), "default", "dfw");
    let foreign = env.acme().create(&mk_deployment(NAMESPACE, &name, "ord", 3)).await.unwrap();
    env.start();
    let note = env.acme().eventually_event("web", "DeploymentNotOurs").await;
    assert!(note.contains(&foreign.spec.workload_ref.uid), "{note}");
    env.idle(LONG).await;
    assert_eq!(env.deployment(&name).await.spec, foreign.spec);
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_a_user_deletes_is_created_again() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw"]).await;
    let first = env.until_deployed(&["dfw"]).await.remove(0);
    let name = (NAMESPACE, first.name());
    env.acme().remove::<WorkloadDeployment>(name).await;
    let second: WorkloadDeployment =
        env.acme().eventually_has(name, |d: &WorkloadDeployment| d.metadata.uid != first.metadata.uid).await;
    assert_eq!(second.spec, first.spec);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_workload_goes_after_its_deployments_and_their_copies() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw", "ord"]).await;
    for deployment in env.until_deployed(&["dfw", "ord"]).await {
        env.until_copied(deployment.name()).await;
    }
    env.acme().remove::<Workload>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<Workload>((NAMESPACE, "web")).await;
    assert_eq!(env.acme().all::<WorkloadDeployment>().await, []);
    assert_eq!(env.hub().all::<WorkloadDeployment>().await, []);
    let writes = env.requests_to("acme").log();
    let last = writes.iter().rposition(|write| write.contains("workloaddeployments/")).unwrap();
    assert!(writes[last..].iter().any(|write| write.ends_with("workloads/web")), "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_installation_makes_no_requests() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw", "ord"]).await;
    for deployment in env.until_deployed(&["dfw", "ord"]).await {
        let copy = env.until_copied(deployment.name()).await;
        env.write_back(&copy, 0).await;
        env.report_ready(copy.name(), 1).await;
    }
    env.until_workload("web", |w| w.status.as_ref().is_some_and(|s| s.ready_replicas == 2)).await;
    env.idle(Duration::from_secs(600)).await;
    let planes = ["acme", "globex", "hub"].map(|plane| env.requests_to(plane));
    planes.iter().for_each(|requests| requests.clear());
    env.idle(LONG).await;
    for requests in &planes {
        assert_eq!(requests.log(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_rollout_is_stalled_on_the_workload_with_one_warning_and_its_end_is_an_event() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw"]).await;
    let name = env.until_deployed(&["dfw"]).await[0].name().to_owned();
    env.until_copied(&name).await;
    env.report_ready(&name, 1).await;
    let rollout = |workload: &Workload, kind: &str| {
        let (status, reason) = condition(&workload.status.as_ref()?.conditions, kind)?;
        Some((status.to_owned(), reason.to_owned()))
    };
    let now = env.cluster.now();
    env.report(&name, |status| {
        status.conditions.push(mk_condition("Stalled", "True", "ImageUnavailable", &now))
    })
    .await;
    let stuck = env.until_workload("web", |workload| rollout(workload, "Stalled").is_some()).await;
    assert_eq!(available(&stuck), Some(("True", "AvailablePlacementFound")));
    assert_eq!(rollout(&stuck, "Degraded"), Some(("True".into(), "ImageUnavailable".into())));
    env.acme().eventually_event("web", "ImageUnavailable").await;
    env.report(&name, |status| {
        status.conditions.retain(|condition| condition.type_ != "Stalled");
        status.conditions.push(mk_condition("Ready", "True", "RolloutComplete", &now));
    })
    .await;
    let complete = Some(("True".to_owned(), "RolloutComplete".to_owned()));
    env.until_workload("web", |workload| rollout(workload, "Ready") == complete).await;
    env.acme().eventually_event("web", "RolloutComplete").await;
    env.acme().eventually_event("web", "AsExpected").await;
    let warnings = env.acme().events_of("web").await;
    let warnings = warnings.iter().filter(|event| event.reason.as_deref() == Some("ImageUnavailable"));
    assert_eq!(warnings.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_no_cell_reports_on_is_stuck_after_two_minutes() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw"]).await;
    let reconciling =
        |workload: &Workload| condition(&workload.status.as_ref()?.conditions, "Reconciling").map(|_| ());
    env.until_workload("web", |workload| reconciling(workload).is_some()).await;
    env.idle(Duration::from_secs(130)).await;
    let stuck = env
        .until_workload("web", |workload| {
            workload.status.as_ref().is_some_and(|status| {
                condition(&status.conditions, "Stalled") == Some(("True", "ProgressDeadlineExceeded"))
            })
        })
        .await;
    let stalled = stuck.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Stalled").unwrap();
    assert!(stalled.message.contains("dfw: no cell has reported"), "{}", stalled.message);
}
