//! The webhooks in front of a real kube-apiserver, reached over TLS, with kubectl as the user.
//!
//! Every test has a namespace of its own, and webhooks that are about that namespace alone.

#[path = "../support/line.rs"]
mod line;
#[path = "../support/manifests.rs"]
mod manifests;
mod rows;
mod world;

use std::collections::BTreeSet;

use polis_api::k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec};
use serde_json::{Value, json};

use line::Authoriser;
use manifests::{mk_machine, mk_sandbox};
use rows::ROWS;
use world::{User, World};

/// The rows as objects, each under a name of its own.
fn mk_objects(spoiled: bool) -> Vec<(String, Value)> {
    let mk = |(index, (rule, base, spoil, _)): (usize, &rows::Row)| {
        let name = format!("row-{index}-rule-{rule}");
        let mut object = base(&name);
        if spoiled {
            spoil(&mut object);
        }
        (name, object)
    };
    ROWS.iter().enumerate().map(mk).collect()
}

/// That every row is refused in this text, each in a line of its own with its name and its field.
fn assert_refused(said: &str, objects: &[(String, Value)], when: &str) {
    for ((name, _), (rule, _, _, field)) in objects.iter().zip(ROWS) {
        let quoted = format!("\"{name}\"");
        let line = said.lines().find(|line| line.contains(&quoted) && line.contains("is invalid"));
        let line = line.unwrap_or_else(|| panic!("rule {rule} was not refused when {when}:\n{said}"));
        assert!(line.contains(field), "rule {rule} when {when}: {field} is not named in:\n{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_is_refused_through_kubectl_with_the_field_named() {
    let world = World::new("rules").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
    let spoiled = mk_objects(true);
    let (taken, said) = world.apply_all(&ada, &spoiled).await;
    assert!(!taken);
    assert_refused(&said, &spoiled, "made");
    assert_eq!(world.workloads().await, BTreeSet::new(), "nothing was stored");

    let (taken, said) = world.apply_all(&ada, &mk_objects(false)).await;
    assert!(taken, "what the rows are made from is good: {said}");
    let (taken, said) = world.apply_all(&ada, &spoiled).await;
    assert!(!taken);
    assert_refused(&said, &spoiled, "changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_workload_of_each_runtime_is_taken_and_filled_in() {
    let world = World::new("good").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
    let mut open = mk_sandbox("open", &["dfw"]);
    open["spec"]["template"]["spec"]["runtime"]["resources"] = json!({});
    let objects = [("web", mk_sandbox("web", &["dfw", "ord"])), ("vm", mk_machine("vm")), ("open", open)];
    for (name, object) in &objects {
        let (taken, said) = world.apply(&ada, object).await;
        assert!(taken, "{name}: {said}");
    }
    let filled = world
        .kubectl(
            &ada,
            &["get", "workload", "open", "-o=jsonpath={.spec.template.spec.runtime.resources.instanceType}"],
        )
        .await;
    assert_eq!(filled, (true, "datumcloud/d1-standard-2".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_told_everything_at_once() {
    let world = World::new("person").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
    let mut object = mk_sandbox("web", &["lhr"]);
    object["spec"]["placements"][0]["scaleSettings"]["minReplicas"] = 0.into();
    let (taken, said) = world.apply(&ada, &object).await;
    assert!(!taken);
    for part in [
        "\"web\" is invalid",
        "spec.placements[0].cityCodes[0]: Unsupported value: \"lhr\": supported values: \"dfw\", \"ord\"",
        "spec.placements[0].scaleSettings.minReplicas: Invalid value: 0: must be between 1 and 1000",
    ] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extras_arrive_in_the_access_review_at_an_authoriser_that_denies_without_them() {
    let world = World::new("extras").await;
    let ada = User { name: "ada", groups: &["builders", "system:masters"], project: "vault" };
    let (taken, said) = world.apply(&ada, &mk_sandbox("web", &["dfw"])).await;
    assert!(taken, "{said}");
    let asked = world.vault.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!((&asked[0]["user"], &asked[0]["uid"]), (&json!("ada"), &json!("u-ada")));
    assert_eq!(
        asked[0]["extra"],
        json!({
            "example.com/team": ["one", "two"],
            "iam.miloapis.com/parent-api-group": ["resourcemanager.miloapis.com"],
            "iam.miloapis.com/parent-name": ["vault"],
            "iam.miloapis.com/parent-type": ["Project"],
        })
    );
    assert!(
        asked[0]["groups"].as_array().is_some_and(|groups| groups.contains(&json!("builders"))),
        "{asked:?}"
    );

    let bare = SubjectAccessReview {
        spec: SubjectAccessReviewSpec { user: Some("ada".into()), ..Default::default() },
        ..Default::default()
    };
    let answer = world.plane_of_vault.create(&bare).await.expect("an answer");
    assert!(!answer.status.expect("a decision").allowed, "without the extras it says no");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_is_told_from_an_authoriser_that_does_not_answer() {
    let world = World::new("denied").await;
    let bob = User { name: "bob", groups: &["builders"], project: "shop" };
    world.let_write_workloads("builders").await;
    let (taken, said) = world.apply(&bob, &mk_sandbox("web", &["dfw"])).await;
    assert!(!taken);
    assert!(
        said.contains("networkInterfaces[0].network: Forbidden: you may not use network denied/blue"),
        "{said}"
    );
    *world.vault.authoriser.lock() = Authoriser::Broken;
    let ada = User { name: "ada", groups: &["system:masters"], project: "vault" };
    let (taken, said) = world.apply(&ada, &mk_sandbox("web", &["dfw"])).await;
    assert!(!taken);
    assert!(said.contains("networkInterfaces[0].network: Internal error"), "{said}");
    assert!(said.contains("out of order"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_from_no_project_or_from_one_that_is_not_known_is_refused() {
    let world = World::new("strangers").await;
    for (project, why) in [("nowhere", "project \"nowhere\" is not known here"), ("", "made in no project")] {
        let ada = User { name: "ada", groups: &["system:masters"], project };
        let (taken, said) = world.apply(&ada, &mk_sandbox("web", &["dfw"])).await;
        assert!(!taken && said.contains(why), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_attaches_nothing_new_works_while_no_authoriser_answers() {
    let world = World::new("leaving").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "vault" };
    let (taken, said) = world.apply(&ada, &mk_sandbox("web", &["dfw", "ord"])).await;
    assert!(taken, "{said}");
    *world.vault.authoriser.lock() = Authoriser::Broken;
    world.vault.asked();
    for arguments in [
        &["label", "workload", "web", "tier=front"][..],
        &[
            "patch",
            "workload",
            "web",
            "--type=json",
            r#"-p=[{"op":"remove","path":"/spec/placements/0/cityCodes/0"},{"op":"replace","path":"/spec/placements/0/scaleSettings/minReplicas","value":5}]"#,
        ],
        &[
            "patch",
            "workload",
            "web",
            "--subresource=status",
            "--type=merge",
            r#"-p={"status":{"deployments":1,"replicas":0,"currentReplicas":0,"desiredReplicas":0,"readyReplicas":0}}"#,
        ],
        &["delete", "workload", "web"],
    ] {
        let (done, said) = world.kubectl(&ada, arguments).await;
        assert!(done, "{arguments:?}: {said}");
    }
    assert_eq!(world.vault.asked(), [Value::Null; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_no_webhook_answers_nothing_is_taken() {
    let mut world = World::new("closed").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
    world.stop_serving();
    let (taken, said) = world.apply(&ada, &mk_sandbox("web", &["dfw"])).await;
    assert!(!taken && said.contains("failed calling webhook"), "{said}");
}
