//! Cell access: the cells of a city have rights where the city has deployments.

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::api::rbac::v1::RoleBinding;
use polis_api::{ObjectExt as _, labels};
use polis_core::{cell_access, owner};
use polis_engine::Preconditions;
use polis_testing::builders::mk_instance;
use polis_testing::{PlaneExt as _, eventually};

use crate::env::{LONG, NAMESPACE, TestEnv};

async fn until_granted(env: &TestEnv, expected: &[&str]) -> Vec<RoleBinding> {
    eventually(&format!("rights of {expected:?}"), async || {
        let bindings = env.hub().all::<RoleBinding>().await;
        let cities: Vec<_> = bindings.iter().filter_map(cell_access::city_of).collect();
        (cities == expected).then_some(bindings)
    })
    .await
}

async fn has_presence(env: &TestEnv, city: &str) -> bool {
    let namespace: Namespace = env.hub().read(&env.hub_namespace).await.unwrap();
    namespace.label(&labels::city_presence(city)).is_some()
}

#[tokio::test(start_paused = true)]
async fn the_cells_of_a_city_have_rights_from_its_first_to_its_last_deployment() {
    let env = TestEnv::running().await;
    env.federate("first", "dfw").await;
    env.federate("second", "dfw").await;
    env.federate("other", "ord").await;
    let granted = until_granted(&env, &["dfw", "ord"]).await;
    assert!(granted.iter().all(|binding| binding.namespace() == env.hub_namespace));
    assert_eq!(granted[0].subjects.as_ref().unwrap()[0].name, "compute.datumapis.com:city:dfw");

    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "first")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "first")).await;
    env.idle(LONG).await;
    assert_eq!(until_granted(&env, &["dfw", "ord"]).await, granted);

    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "second")).await;
    until_granted(&env, &["ord"]).await;
    assert!(!has_presence(&env, "dfw").await);
    assert!(has_presence(&env, "ord").await);
}

#[tokio::test(start_paused = true)]
async fn rights_stay_until_the_last_copy_of_the_city_is_gone() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let hub_owner: WorkloadDeployment = env.hub().read((env.hub_namespace.as_str(), "web")).await.unwrap();
    let mut copy: Instance = mk_instance(&hub_owner, 0);
    copy.metadata.owner_references = Some(vec![owner::controller_reference(&hub_owner)]);
    copy.metadata.labels.get_or_insert_default().insert(labels::CITY_CODE.into(), "dfw".into());
    let copy = env.hub().create(&copy).await.unwrap();
    // The deployment moves to another city. The cell in dfw still has to delete its copy.
    let to_ord = |deployment: &mut WorkloadDeployment| deployment.spec.city_code = "ord".into();
    env.acme().change((NAMESPACE, "web"), to_ord).await;
    until_granted(&env, &["dfw", "ord"]).await;
    env.idle(LONG).await;
    until_granted(&env, &["dfw", "ord"]).await;
    assert!(has_presence(&env, "dfw").await);
    env.hub().delete(&copy, Preconditions::Uid).await.unwrap();
    until_granted(&env, &["ord"]).await;
    assert!(!has_presence(&env, "dfw").await);
}

#[tokio::test(start_paused = true)]
async fn a_binding_that_was_deleted_or_changed_is_restored() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let [binding] = &until_granted(&env, &["dfw"]).await[..] else { panic!() };
    env.hub().delete(binding, Preconditions::Uid).await.unwrap();
    let restored = eventually("another binding", async || {
        let bindings = env.hub().all::<RoleBinding>().await;
        bindings.into_iter().find(|found| found.uid() != binding.uid())
    })
    .await;
    let name = (env.hub_namespace.as_str(), "city-dfw");
    env.hub().change::<RoleBinding>(name, |binding| binding.subjects = None).await;
    env.hub().eventually_has(name, |found: &RoleBinding| found.subjects == restored.subjects).await;
    env.idle(LONG).await;
    let writes = env.requests_to("hub").logged("rolebindings").len();
    env.idle(LONG).await;
    assert_eq!(env.requests_to("hub").logged("rolebindings").len(), writes, "it is idle again");
}

#[tokio::test(start_paused = true)]
async fn rights_that_end_while_no_manager_runs_are_withdrawn_at_the_next_start() {
    let mut env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    until_granted(&env, &["dfw"]).await;
    env.stop().await;
    let hub_owner: WorkloadDeployment = env.hub().read((env.hub_namespace.as_str(), "web")).await.unwrap();
    env.hub().delete(&hub_owner, Preconditions::Uid).await.unwrap();
    let orphan = |deployment: &mut WorkloadDeployment| deployment.metadata.finalizers = None;
    env.acme().change((NAMESPACE, "web"), orphan).await;
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.start();
    until_granted(&env, &[]).await;
    assert!(!has_presence(&env, "dfw").await);
}
