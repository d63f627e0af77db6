//! The webhooks with a real kube-apiserver, over TLS, with kubectl as the client.
//!
//! Every test has its own namespace, and webhooks for that namespace only.

mod env;
#[path = "../support/manifests.rs"]
mod manifests;
#[path = "../support/proxy.rs"]
mod proxy;
mod rows;

use std::collections::BTreeSet;

use polis_api::k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec};
use serde_json::{Value, json};

use env::{TestEnv, User};
use manifests::{mk_machine, mk_sandbox};
use proxy::Authorizer;
use rows::ROWS;

/// The rows as objects, each with its own name.
fn mk_objects(invalid: bool) -> Vec<(String, Value)> {
    let mk = |(index, (rule, base, invalidate, _)): (usize, &rows::Row)| {
        let name = format!("row-{index}-rule-{rule}");
        let mut object = base(&name);
        if invalid {
            invalidate(&mut object);
        }
        (name, object)
    };
    ROWS.iter().enumerate().map(mk).collect()
}

/// Asserts that the output denies every row, each on a line with its name and its field.
fn assert_denied(output: &str, objects: &[(String, Value)], when: &str) {
    for ((name, _), (rule, _, _, field)) in objects.iter().zip(ROWS) {
        let quoted = format!("\"{name}\"");
        let line = output.lines().find(|line| line.contains(&quoted) && line.contains("is invalid"));
        let line = line.unwrap_or_else(|| panic!("rule {rule} was not denied when {when}:\n{output}"));
        assert!(line.contains(field), "rule {rule} when {when}: {field} is not named in:\n{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_denies_through_kubectl_and_names_the_field() {
    let env = TestEnv::new("rules").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
    let invalid = mk_objects(true);
    let (admitted, output) = env.apply_all(&ada, &invalid).await;
    assert!(!admitted);
    assert_denied(&output, &invalid, "created");
    assert_eq!(env.workloads().await, BTreeSet::new(), "nothing was stored");

    let (admitted, output) = env.apply_all(&ada, &mk_objects(false)).await;
    assert!(admitted, "the base objects are valid: {output}");
    let (admitted, output) = env.apply_all(&ada, &invalid).await;
    assert!(!admitted);
    assert_denied(&output, &invalid, "updated");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_valid_workload_of_each_runtime_is_admitted_and_defaulted() {
    let env = TestEnv::new("good").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
    let mut incomplete = mk_sandbox("open", &["dfw"]);
    incomplete["spec"]["template"]["spec"]["runtime"]["resources"] = json!({});
    let objects =
        [("web", mk_sandbox("web", &["dfw", "ord"])), ("vm", mk_machine("vm")), ("open", incomplete)];
    for (name, object) in &objects {
        let (admitted, output) = env.apply(&ada, object).await;
        assert!(admitted, "{name}: {output}");
    }
    let defaulted = env
        .kubectl(
            &ada,
            &["get", "workload", "open", "-o=jsonpath={.spec.template.spec.runtime.resources.instanceType}"],
        )
        .await;
    assert_eq!(defaulted, (true, "datumcloud/d1-standard-2".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_errors_are_reported_at_once() {
    let env = TestEnv::new("person").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
    let mut object = mk_sandbox("web", &["lhr"]);
    object["spec"]["placements"][0]["scaleSettings"]["minReplicas"] = 0.into();
    let (admitted, output) = env.apply(&ada, &object).await;
    assert!(!admitted);
    for part in [
        "\"web\" is invalid",
        "spec.placements[0].cityCodes[0]: Unsupported value: \"lhr\": supported values: \"dfw\", \"ord\"",
        "spec.placements[0].scaleSettings.minReplicas: Invalid value: 0: must be between 1 and 1000",
    ] {
        assert!(output.contains(part), "{part} is not in:\n{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_review_contains_the_extras_that_the_authorizer_requires() {
    let env = TestEnv::new("extras").await;
    let ada = User { name: "ada", groups: &["builders", "system:masters"], project: "vault" };
    let (admitted, output) = env.apply(&ada, &mk_sandbox("web", &["dfw"])).await;
    assert!(admitted, "{output}");
    let reviews = env.vault.take_reviews();
    assert_eq!(reviews.len(), 1, "{reviews:?}");
    assert_eq!((&reviews[0]["user"], &reviews[0]["uid"]), (&json!("ada"), &json!("u-ada")));
    assert_eq!(
        reviews[0]["extra"],
        json!({
            "example.com/team": ["one", "two"],
            "iam.miloapis.com/parent-api-group": ["resourcemanager.miloapis.com"],
            "iam.miloapis.com/parent-name": ["vault"],
            "iam.miloapis.com/parent-type": ["Project"],
        })
    );
    assert!(
        reviews[0]["groups"].as_array().is_some_and(|groups| groups.contains(&json!("builders"))),
        "{reviews:?}"
    );

    let without_extras = SubjectAccessReview {
        spec: SubjectAccessReviewSpec { user: Some("ada".into()), ..Default::default() },
        ..Default::default()
    };
    let review = env.plane_of_vault.create(&without_extras).await.expect("a response");
    assert!(!review.status.expect("a decision").allowed, "denied without the extras");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_user_is_distinguished_from_a_failed_access_review() {
    let env = TestEnv::new("denied").await;
    let bob = User { name: "bob", groups: &["builders"], project: "shop" };
    env.grant_workload_access("builders").await;
    let (admitted, output) = env.apply(&bob, &mk_sandbox("web", &["dfw"])).await;
    assert!(!admitted);
    assert!(
        output.contains("networkInterfaces[0].network: Forbidden: you may not use network denied/blue"),
        "{output}"
    );
    env.vault.set_authorizer(Authorizer::Broken);
    let ada = User { name: "ada", groups: &["system:masters"], project: "vault" };
    let (admitted, output) = env.apply(&ada, &mk_sandbox("web", &["dfw"])).await;
    assert!(!admitted);
    assert!(output.contains("networkInterfaces[0].network: Internal error"), "{output}");
    assert!(output.contains("out of order"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_known_project_is_denied() {
    let env = TestEnv::new("unknown").await;
    for (project, why) in [("nowhere", "project \"nowhere\" is unknown"), ("", "not for a project")] {
        let ada = User { name: "ada", groups: &["system:masters"], project };
        let (admitted, output) = env.apply(&ada, &mk_sandbox("web", &["dfw"])).await;
        assert!(!admitted && output.contains(why), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_without_new_networks_needs_no_access_review() {
    let env = TestEnv::new("leaving").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "vault" };
    let (admitted, output) = env.apply(&ada, &mk_sandbox("web", &["dfw", "ord"])).await;
    assert!(admitted, "{output}");
    env.vault.set_authorizer(Authorizer::Broken);
    env.vault.take_reviews();
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
        let (succeeded, output) = env.kubectl(&ada, arguments).await;
        assert!(succeeded, "{arguments:?}: {output}");
    }
    assert_eq!(env.vault.take_reviews(), [Value::Null; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_admitted_while_the_webhooks_are_down() {
    let mut env = TestEnv::new("closed").await;
    let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
    env.stop_serving();
    let (admitted, output) = env.apply(&ada, &mk_sandbox("web", &["dfw"])).await;
    assert!(!admitted && output.contains("failed calling webhook"), "{output}");
}
