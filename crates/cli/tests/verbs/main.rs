//! Tests of the user's verbs: the real binary against an API server over TLS. They compare output and exit
//! code.

mod completion;
mod fake_controllers;
mod installation;
mod log_server;
mod terminal;
mod why;

use installation::{Installation, hub_namespace};
use polis_api::compute::{Instance, Workload};
use polis_api::k8s_openapi::api::core::v1::ServiceAccount;
use polis_api::kube::Api;
use polis_api::kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const DEPLOY: &str = "deploy web --image polis.local/hello --city dfw --city ord --port http=8080";

const FILE: &str = "
apiVersion: compute.datumapis.com/v1alpha
kind: Workload
metadata: {name: web, labels: {tier: front}}
spec:
  template:
    spec:
      runtime:
        resources: {instanceType: datumcloud/d1-standard-2}
        sandbox: {containers: [{name: main, image: polis.local/hello}]}
      networkInterfaces: [{network: {name: default}}]
  placements: [{name: default, cityCodes: [dfw], scaleSettings: {minReplicas: 1}}]
";

async fn image_of(installation: &Installation) -> String {
    let workload =
        Api::<Workload>::default_namespaced(installation.project("default")).get("web").await.unwrap();
    workload.spec.template.spec.runtime.sandbox.unwrap().containers[0].image.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_is_deployed_and_waited_for_in_every_city() {
    let installation = Installation::new().await;
    let text = installation.polis(DEPLOY).await.ok();
    assert!(text.contains("workload web created in namespace default of project default"), "{text}");
    for city in ["dfw", "ord"] {
        assert!(text.lines().any(|line| line.starts_with(city) && line.contains("1/1 ready")), "{text}");
    }
    assert!(text.ends_with("web is ready: 2 instances in 2 cities\n"), "{text}");
    let again = installation.polis(DEPLOY).await.ok();
    assert!(again.contains("workload web unchanged"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_and_instances_are_listed_as_table_tree_json_yaml_and_names() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();

    let table = installation.polis("workloads").await.ok();
    assert!(table.starts_with("NAME  READY  CITIES   STATE  AGE\nweb "), "{table}");
    assert!(table.contains("dfw,ord"), "{table}");
    assert_eq!(installation.polis("workloads -o name").await.ok(), "workload/web\n");
    let list = installation.polis("workloads -o json").await.json();
    assert_eq!((&list["kind"], &list["items"][0]["metadata"]["name"]), (&json!("List"), &json!("web")));
    assert!(installation.polis("workloads -o yaml").await.ok().contains("name: web"));

    let tree = installation.polis("status web").await.ok();
    assert!(tree.contains("├─ dfw") && tree.contains("└─ ord"), "{tree}");
    assert!(tree.contains("1/1 ready") && tree.contains("127.1.0.1:8080"), "{tree}");
    let json = installation.polis("status web -o json").await.json();
    assert_eq!(
        (&json["metadata"]["name"], &json["deployments"][1]["spec"]["cityCode"]),
        (&json!("web"), &json!("ord"))
    );
    assert_eq!(json["deployments"][0]["instances"].as_array().map(Vec::len), Some(1));

    let instances = installation.polis("instances web --city ord").await.ok();
    assert!(instances.contains("web-ord-") && !instances.contains("web-dfw-"), "{instances}");
    let names = installation.polis("instances -o name").await.ok();
    assert_eq!(names.lines().filter(|name| name.starts_with("instance/web-")).count(), 2, "{names}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_printed_as_a_diff_and_applied() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    let text = installation.polis("deploy web --image polis.local/sleep --env A=1 --yes").await.ok();
    assert!(text.contains("image: polis.local/hello") && text.contains("image: polis.local/sleep"), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("- ")) && text.contains("workload web changed"),
        "{text}"
    );
    assert_eq!(image_of(&installation).await, "polis.local/sleep");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_applied_whole_or_not_at_all() {
    let installation = Installation::new().await;
    installation.write("web.yaml", FILE);
    let text = installation.polis("deploy -f web.yaml").await.ok();
    assert!(text.contains("workload web created"), "{text}");
    assert!(installation.polis("deploy -f web.yaml").await.ok().contains("unchanged"));
    let labels = installation.polis("status web -o json").await.json()["metadata"]["labels"].clone();
    assert_eq!(labels["tier"], "front");

    // The second workload is invalid: the dry run fails before the first is changed.
    let two = FILE.replace("polis.local/hello", "polis.local/sleep")
        + "---"
        + &FILE.replace("name: web", "name: api").replace("minReplicas: 1", "minReplicas: many");
    installation.write("two.yaml", &two);
    let error = installation.polis("deploy -f two.yaml").await.error(4);
    assert!(error.contains("failed to deploy workload api") && error.contains("minReplicas"), "{error}");
    assert_eq!(image_of(&installation).await, "polis.local/hello");

    installation.write("other.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\n");
    assert!(installation.polis("deploy -f other.yaml").await.error(2).contains("Secret"));
    assert!(installation.polis("deploy -f missing.yaml").await.error(2).contains("missing.yaml"));
    installation.write("elsewhere.yaml", &FILE.replace("name: web,", "name: web, namespace: other,"));
    assert!(installation.polis("deploy -f elsewhere.yaml -n default").await.error(2).contains("other"));
}

#[tokio::test(flavor = "multi_thread")]
async fn scale_and_restart_wait_until_the_new_instances_are_ready() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    let text = installation.polis("scale web 3").await.ok();
    assert!(text.ends_with("web is ready: 6 instances in 2 cities\n"), "{text}");
    let uids = |list: Value| -> Vec<Value> {
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["uid"].clone()).collect()
    };
    let before = uids(installation.polis("instances web -o json").await.json());
    installation.polis("restart web").await.ok();
    let after = uids(installation.polis("instances web -o json").await.json());
    assert_eq!(after.len(), 6);
    assert!(after.iter().all(|uid| !before.contains(uid)), "every instance was replaced");
    assert!(installation.polis("scale web 0").await.ok().contains("web is ready: 0 instances"));
    assert!(installation.polis("scale web 2 --placement west").await.error(4).contains("it has default"));
    assert!(installation.polis("scale web -1").await.error(2).contains("-1 is not in 0..=1000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scale_subresource_of_a_workload_sets_the_number_in_every_city() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    let workloads = Api::<Workload>::default_namespaced(installation.project("default"));
    // As `kubectl scale` sends it.
    let scale = async |replicas: i32| {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        workloads.patch_scale("web", &PatchParams::default(), &patch).await
    };
    assert_eq!(scale(3).await.unwrap().spec.unwrap().replicas, Some(3));
    let rollout = installation.polis("rollout status web").await.ok();
    assert!(rollout.contains("web is ready: 6 instances in 2 cities"), "{rollout}");

    // `polis scale` takes over; minReplicas holds again.
    installation.polis("scale web 2").await.ok();
    let web = workloads.get("web").await.unwrap();
    assert_eq!((web.spec.replicas, web.spec.placements[0].scale_settings.min_replicas), (None, 2));
    assert!(scale(0).await.unwrap_err().to_string().contains("spec.replicas"));

    let mut edge = web.spec.placements[0].clone();
    edge.name = "edge".into();
    edge.scale_settings.min_replicas = 1;
    let patch = Patch::Merge(json!({"spec": {"placements": [web.spec.placements[0], edge]}}));
    workloads.patch("web", &PatchParams::default(), &patch).await.unwrap();
    let refused = scale(4).await.unwrap_err().to_string();
    assert!(refused.contains("use `polis scale NAME N --placement PLACEMENT`"), "{refused}");
    assert_eq!(workloads.get("web").await.unwrap().spec.replicas, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_of_one_workload_both_succeed_and_none_is_lost() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    for attempt in 0..3 {
        // Changes of different fields are both kept. Of two changes of one field, the later one is kept.
        let scales = format!("scale web {} --no-wait", attempt + 2);
        let (one, two) =
            tokio::join!(installation.polis("restart web --no-wait"), installation.polis(&scales));
        one.ok();
        two.ok();
        let web = installation.polis("workloads -o json").await.json();
        let placement = &web["items"][0]["spec"]["placements"][0];
        assert_eq!(placement["scaleSettings"]["minReplicas"], attempt + 2, "{web}");
        let (one, two) = tokio::join!(
            installation.polis("scale web 5 --no-wait"),
            installation.polis("scale web 6 --no-wait")
        );
        one.ok();
        two.ok();
        let web = installation.polis("workloads -o json").await.json();
        let replicas = &web["items"][0]["spec"]["placements"][0]["scaleSettings"]["minReplicas"];
        assert!(*replicas == 5 || *replicas == 6, "{web}");
    }
    // Two concurrent creations: at least one succeeds, and a failed one prints an error.
    let new = "deploy twin --image polis.local/hello --city dfw --no-wait --yes";
    let (one, two) = tokio::join!(installation.polis(new), installation.polis(new));
    let codes = [one.code, two.code];
    assert!(codes.contains(&0), "{one:?}\n{two:?}");
    for result in [one, two] {
        assert!(
            result.code == 0 || (!result.stderr.is_empty() && !result.stderr.contains("panicked")),
            "{result:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_recorded_and_can_be_undone() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    installation.polis("deploy web --image polis.local/sleep").await.ok();
    installation.polis("restart web").await.ok();
    let history = installation.polis("rollout history web").await.ok();
    let causes: Vec<&str> =
        history.lines().skip(1).map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(causes, ["deploy", "deploy", "restart"], "{history}");

    installation.polis("rollout undo web --to-revision 1").await.ok();
    assert_eq!(image_of(&installation).await, "polis.local/hello");
    installation.polis("rollout undo web").await.ok();
    assert_eq!(image_of(&installation).await, "polis.local/sleep", "undo restores the previous revision");
    assert!(installation.polis("rollout status web").await.ok().contains("web is ready"));
    assert!(
        installation.polis("rollout undo web --to-revision 99").await.error(3).contains("no revision 99")
    );

    // A change by another tool is not a revision yet, and undo reverts it.
    let patch = json!([{"op": "replace", "path": "/spec/template/spec/runtime/sandbox/containers/0/image", "value": "other"}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    let workloads = Api::<Workload>::default_namespaced(installation.project("default"));
    workloads.patch("web", &PatchParams::default(), &patch).await.unwrap();
    let result = installation.polis("rollout history web").await;
    assert!(result.stderr.contains("changed by other means"), "{result:?}");
    installation.polis("rollout undo web").await.ok();
    assert_eq!(image_of(&installation).await, "polis.local/sleep");
    let causes = installation.polis("rollout history web -o json").await.json();
    let last = causes["items"].as_array().unwrap().iter().rev().map(|item| item["cause"].clone()).take(2);
    assert_eq!(last.collect::<Vec<_>>()[1], "changed by other means");
}

#[tokio::test(flavor = "multi_thread")]
async fn destroy_prints_what_it_deletes_and_waits_until_it_is_gone() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    let result = installation.polis("destroy web").await;
    assert!(result.stdout.contains("This deletes workload web of namespace default of project default, with its 2 instances in dfw and ord."), "{result:?}");
    assert!(result.error(2).contains("--yes"), "without a terminal there is no prompt");
    assert!(installation.polis("destroy web --yes").await.ok().ends_with("workload web is gone\n"));
    let left = Api::<Instance>::default_namespaced(installation.project("default"))
        .list(&Default::default())
        .await
        .unwrap();
    assert_eq!(left.items.len(), 0);
    assert!(installation.polis("destroy web --yes").await.error(3).contains("failed to find workload web"));
}

#[tokio::test(flavor = "multi_thread")]
async fn destroy_waits_for_hub_and_cells() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    let hub = installation.plane("hub");
    let name = create_copy(&installation, "hub").await;
    let result = installation.polis("destroy web --yes --timeout 2s --context polis-default").await;
    assert!(result.stdout.contains("left on: hub"), "{result:?}");
    assert!(result.error(5).contains("left on: hub"));
    let namespace = hub_namespace(&installation.project("default")).await;
    let copies = Api::<polis_api::compute::WorkloadDeployment>::namespaced(hub, &namespace);
    copies.delete(&name, &Default::default()).await.unwrap();
    installation.polis(DEPLOY).await.ok();
    installation.polis("destroy web --yes --context polis-default").await.ok();
}

/// Creates a copy of the deployment of dfw on another plane, as the federation does; returns its name.
async fn create_copy(installation: &Installation, plane: &str) -> String {
    let (project, client) = (installation.project("default"), installation.plane(plane));
    let namespace = hub_namespace(&project).await;
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let _ = Api::<polis_api::k8s_openapi::api::core::v1::Namespace>::all(client.clone())
        .create(&Default::default(), &serde_json::from_value(object).unwrap())
        .await;
    let deployments = Api::<polis_api::compute::WorkloadDeployment>::default_namespaced(project);
    let list = deployments.list(&Default::default()).await.unwrap();
    let original = list.items.into_iter().find(|d| d.spec.city_code == "dfw").unwrap();
    let name = original.metadata.name.clone().unwrap();
    let mut copy = polis_api::compute::WorkloadDeployment::new(&name, original.spec);
    copy.metadata.namespace = Some(namespace.clone());
    Api::namespaced(client, &namespace).create(&Default::default(), &copy).await.unwrap();
    name
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_early_if_a_cause_needs_an_action() {
    let installation = Installation::new().await;
    for command in [
        "deploy web --image nginx --city dfw --timeout 10m",
        "restart web --timeout 10m",
        "rollout status web --timeout 10m",
        "scale web 2 --timeout 10m",
    ] {
        let error = installation.polis(command).await.error(5);
        assert!(error.contains("web does not become ready by waiting"), "{command}: {error}");
        assert!(error.contains("dfw (ImageUnavailable): no registry has nginx"), "{command}: {error}");
        assert!(error.contains("polis deploy web --image I"), "{command}: {error}");
    }
    let error =
        installation.polis("deploy far --image polis.local/hello --city xyz --timeout 10m").await.error(5);
    assert!(error.contains("xyz (NoMatchingLocations)") && error.contains("polis cities"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_wanted_anyway_ends_with_its_timeout() {
    let installation = Installation::new().await;
    let deploy = "deploy web --image nginx --city dfw --timeout 3s --wait-anyway";
    let result = installation.polis(deploy).await;
    assert!(result.stdout.contains("dfw  0/1 ready (ImageUnavailable): no registry has nginx"), "{result:?}");
    let error = result.error(5);
    assert!(error.contains("web is not ready after 3s") && error.contains("polis why web"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_of_a_file_are_refused_with_their_lines() {
    let installation = Installation::new().await;
    let typo = FILE.replace("image: polis.local/hello", "imge: x, image: polis.local/hello")
        + "---"
        + &FILE.replace("name: web", "name: api").replace("minReplicas: 1", "minReplicas: many");
    installation.write("typo.yaml", &typo);
    let error = installation.polis("deploy -f typo.yaml").await.error(4);
    let line = typo.lines().position(|line| line.contains("imge")).unwrap() + 1;
    assert!(error.contains(&format!("line {line}: unknown field")), "{error}");
    assert!(error.contains("imge (did you mean image?)") && error.contains("typo.yaml"), "{error}");
    assert!(
        error.contains("workload api of typo.yaml") && error.contains("minReplicas"),
        "both errors: {error}"
    );
    assert_eq!(installation.polis("workloads -o name").await.ok(), "", "nothing was created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_beyond_the_quota_is_refused_before_it_is_made() {
    let installation = Installation::new().await;
    let error =
        installation.polis("deploy web --image polis.local/hello --city dfw --replicas 18").await.error(4);
    assert!(error.contains("it needs 18 more instances, and 17 of 20 are left"), "{error}");
    assert_eq!(installation.polis("workloads -o name").await.ok(), "");
    installation.polis(DEPLOY).await.ok();
    assert!(installation.polis("scale web 10").await.error(4).contains("18 more instances"));
    let noted = installation.polis("scale web 10 --no-wait").await;
    assert!(noted.stderr.contains("exceeds the quota of the project"), "{noted:?}");
    noted.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_workloads_shows_the_worst_state_of_their_instances() {
    let installation = Installation::new().await;
    installation.polis("deploy web --image nginx --city dfw --no-wait").await.ok();
    installation.polis("rollout status web").await.error(5);
    let table = installation.polis("workloads").await.ok();
    assert!(table.lines().any(|line| line.starts_with("web ") && line.contains(" blocked ")), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_workload_is_answered_with_the_nearest_one() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    for command in ["status wbe", "scale wbe 2", "restart wbe"] {
        let error = installation.polis(command).await.error(3);
        assert!(error.contains("did you mean web?"), "{command}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_the_wait_and_says_that_the_rollout_continues() {
    let installation = Installation::new().await;
    installation.polis("deploy web --image nginx --city dfw --no-wait").await.ok();
    let error = installation.interrupted("rollout status web --wait-anyway", "0/1 ready").await.error(130);
    assert!(error.contains("the rollout continues") && error.contains("polis rollout status web"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_prints_what_blocks_who_must_act_and_what_to_do() {
    let installation = Installation::new().await;
    installation.polis("deploy web --image nginx --city dfw --city xyz --no-wait").await.ok();
    installation.polis("status web").await.ok();
    // Wait until the fake controllers have written the status of the instance.
    installation.polis("rollout status web --timeout 1s").await.error(5);
    let result = installation.polis("why web").await;
    assert_eq!(result.code, 7, "{result:?}");
    for words in [
        "web: 0 of 2 instances are ready",
        "(ImageUnavailable)",
        "no registry has nginx",
        "action  you",
        "xyz: blocked",
        "cities bound to this project: dfw, ord",
    ] {
        assert!(result.stdout.contains(words), "{words} is missing:\n{}", result.stdout);
    }
    let instance = installation.polis("instances web -o name").await.ok();
    let instance = instance.trim().trim_start_matches("instance/").to_owned();
    let of_instance = installation.polis(&format!("why {instance} -o json")).await;
    let answer: Value = serde_json::from_str(&of_instance.stdout).unwrap();
    assert_eq!(answer["findings"][0]["reason"], "ImageUnavailable");
    assert!(installation.polis("why nothing").await.error(3).contains("neither a workload nor an instance"));
}

#[tokio::test(flavor = "multi_thread")]
async fn why_reads_hub_and_cells_if_the_kubeconfig_has_their_contexts() {
    let installation = Installation::new().await;
    installation.polis("deploy web --image polis.local/hello --city dfw").await.ok();
    assert!(installation.polis("why web").await.ok().contains("is healthy"));
    let text = installation.polis("why web --project default").await.ok();
    assert!(
        text.contains("The hub has no copy of the deployment")
            && text.contains("Planes read: project, hub, cell dfw."),
        "{text}"
    );
    create_copy(&installation, "hub").await;
    let text = installation.polis("why web --project default").await.ok();
    assert!(text.contains("no PropagationPolicy selects it"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_names_a_policy_that_is_suspended_and_what_is_left_of_a_workload_that_is_gone() {
    let installation = Installation::new().await;
    installation.polis("deploy web --image polis.local/hello --city dfw").await.ok();
    create_copy(&installation, "hub").await;
    let namespace = hub_namespace(&installation.project("default")).await;
    let mut policy = polis_core::policy::desired(&namespace, "dfw");
    policy.spec.suspension.get_or_insert_default().dispatching = Some(true);
    Api::namespaced(installation.plane("hub"), &namespace)
        .create(&Default::default(), &policy)
        .await
        .unwrap();
    let result = installation.polis("why web --project default").await;
    assert_eq!(result.code, 7, "{result:?}");
    assert!(result.stdout.contains("(SuspendDispatching)"), "{}", result.stdout);
    assert!(result.stdout.contains("action  platform operator"), "{}", result.stdout);

    let workloads = Api::<Workload>::default_namespaced(installation.project("default"));
    workloads.delete("web", &Default::default()).await.unwrap();
    installation.polis("destroy web --yes --timeout 1s").await;
    let result = installation.polis("why web --project default").await;
    assert_eq!(result.code, 7, "{result:?}");
    assert!(result.stdout.contains("web is gone from the project"), "{}", result.stdout);
    assert!(result.stdout.contains("hub still has 1 deployments"), "{}", result.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_workloads_instances_cities_and_projects_are_completed() {
    let installation = Installation::new().await;
    installation.polis("deploy web --image polis.local/hello --city dfw").await.ok();
    assert_eq!(installation.polis("complete -- status").await.ok(), "web\n");
    let both = installation.polis("complete -- logs").await.ok();
    assert!(both.starts_with("web\nweb-dfw-") && both.lines().count() == 2, "{both}");
    assert_eq!(installation.polis("complete -- deploy api --city").await.ok(), "dfw\nord\n");
    assert_eq!(installation.polis("complete -- status --project").await.ok(), "default\nshop\n");
    assert_eq!(installation.polis("complete -- status --project shop").await.ok(), "");
    assert_eq!(installation.polis("complete -- status --context nowhere").await.ok(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_printed_as_a_document_and_its_progress_goes_to_stderr() {
    let installation = Installation::new().await;
    let result = installation.polis("deploy web --image polis.local/hello --city dfw -o json").await;
    assert!(result.stderr.contains("web is ready"), "{result:?}");
    assert_eq!(result.json()["metadata"]["name"], "web");
    for (line, expected) in [
        ("scale web 2 -o name", "workload/web\n"),
        ("restart web -o name --no-wait", "workload/web\n"),
        ("rollout undo web -o name --no-wait", "workload/web\n"),
    ] {
        assert_eq!(installation.polis(line).await.ok(), expected, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_a_workload_are_merged_with_prefixes_and_those_of_an_instance_have_none() {
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    let text = installation.polis("logs web --context with-logs --since 10m --tail 5").await.ok();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0], "dfw-0 | asked follow=false&sinceSeconds=600&tailLines=5");
    assert!(lines[1].starts_with("dfw-0 | web-dfw-") && lines[3].starts_with("ord-0 | web-ord-"), "{text}");

    let instance = installation.polis("instances web --city dfw -o name").await.ok();
    let instance = instance.trim().trim_start_matches("instance/").to_owned();
    let text = installation.polis(&format!("logs {instance} --follow --context with-logs")).await.ok();
    assert_eq!(text, format!("{instance} listens\nasked follow=true\n"));

    let text = installation.polis("logs web --city ord --previous --context with-logs").await.ok();
    assert!(text.contains("ord-0 | asked follow=false&previous=true"), "{text}");

    let error = installation.polis("logs web").await.error(4);
    assert!(error.contains("the server does not serve logs of instances"), "{error}");
    assert!(installation.polis("logs nothing").await.error(3).contains("neither a workload nor an instance"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cities_quota_projects_and_versions_are_listed() {
    let installation = Installation::new().await;
    let cities = installation.polis("cities").await.ok();
    assert!(cities.contains("dfw   Dallas") && cities.contains("0/0 ready"), "{cities}");
    assert_eq!(installation.polis("cities -o name").await.ok(), "city/dfw\ncity/ord\n");
    let quota = installation.polis("quota").await.ok();
    assert!(quota.contains("compute.datumapis.com/instances  3     20     17"), "{quota}");
    let projects = installation.polis("projects").await.ok();
    assert!(
        projects.contains("*        default  yes") && projects.contains("-        shop     yes"),
        "{projects}"
    );
    let version = installation.polis("version -o json").await.json();
    assert!(version["server"].as_str().unwrap().starts_with('v'), "{version}");
    let alone = installation.polis("version --context nowhere").await.ok();
    assert!(alone.contains("server unknown"), "{alone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_is_selected_by_its_context_or_by_its_path() {
    let installation = Installation::new().await;
    for flags in ["--project shop", "--context root --project shop"] {
        let name = if flags.starts_with("--context") { "one" } else { "two" };
        let line = format!("deploy {name} --image polis.local/hello --city dfw --no-wait {flags}");
        assert!(installation.polis(&line).await.ok().contains("project shop"));
    }
    let names = installation.polis("workloads -o name --project shop").await.ok();
    assert_eq!(names, "workload/one\nworkload/two\n");
    assert_eq!(installation.polis("workloads -o name").await.ok(), "");
    // A missing project is an error and not an empty list.
    for verb in ["workloads", "cities", "quota", "status web"] {
        let error = installation.polis(&format!("{verb} --context root --project nothing")).await.error(3);
        assert!(
            error.contains("failed to find project nothing") && error.contains("polis projects"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_error_has_its_exit_code_and_an_action() {
    let installation = Installation::new().await;
    assert!(
        installation
            .polis("status nothing")
            .await
            .error(3)
            .contains("list the workloads with `polis workloads`")
    );
    assert!(
        installation
            .polis("workloads --context unprivileged")
            .await
            .error(4)
            .contains("you have no permission")
    );
    assert!(installation.polis("workloads --context nowhere").await.error(6).contains("polis doctor"));
    assert!(
        installation
            .polis("workloads --context nothing")
            .await
            .error(6)
            .contains("set --context to one of: local, polis-default")
    );
    assert!(installation.polis("workloads --kubeconfig missing").await.error(6).contains("missing"));
    assert!(installation.polis("deploy web --image x").await.error(2).contains("--city"));
    assert!(
        installation.polis("deploy Web --image x --city dfw").await.error(2).contains("is not a valid name")
    );
    assert!(installation.polis("frobnicate").await.error(2).contains("unrecognized subcommand"));
    let empty = tempfile::tempdir().unwrap();
    let elsewhere = empty.path().to_str().unwrap();
    let result =
        installation.polis_with(&["workloads"], &[("HOME", elsewhere), ("POLIS_DATA_DIR", elsewhere)]).await;
    assert!(result.error(6).contains("polis up"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubeconfig_of_the_environment_takes_precedence_over_the_data_directory() {
    let installation = Installation::new().await;
    let existing = std::fs::read_to_string(installation.dir().join("kubeconfig")).unwrap();
    let other =
        installation.write("other", &existing.replace("current-context: local", "current-context: nowhere"));
    let result = installation.polis_with(&["workloads"], &[("KUBECONFIG", other.to_str().unwrap())]).await;
    result.error(6);
    installation.polis("workloads").await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_passes_on_a_valid_setup_and_names_the_problem_of_an_invalid_one() {
    let installation = Installation::new().await;
    let text = installation.polis("doctor --context polis-default").await.ok();
    for check in [
        "kubeconfig",
        "context",
        "server",
        "kinds",
        "permission",
        "namespace",
        "cities",
        "network",
        "hub",
        "cell dfw",
    ] {
        let line = text.lines().find(|line| line.starts_with(check));
        assert!(line.is_some_and(|line| line.contains("  ok ")), "{check}:\n{text}");
    }
    for (flags, words) in [
        ("--context nowhere", "no answer from"),
        ("--context unprivileged", "you may not create workloads"),
        ("--context root", "is not served"),
        ("-n nothing", "nothing does not exist"),
        ("--kubeconfig missing", "missing"),
    ] {
        let result = installation.polis(&format!("doctor {flags}")).await;
        assert!(result.code == 7 && result.stdout.contains(words), "{flags}: {result:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_watch_works_in_a_pipe() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let installation = Installation::new().await;
    installation.polis(DEPLOY).await.ok();
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_polis"))
        .args(["status", "web", "--watch"])
        .env("POLIS_DATA_DIR", installation.dir())
        .env_remove("KUBECONFIG")
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut scaled = false;
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.starts_with("web") && !scaled {
            assert!(line.contains("2/2 ready"), "{line}");
            installation.polis("scale web 2 --no-wait").await.ok();
            scaled = true;
        }
        if line.starts_with("web") && line.contains("4/4 ready") {
            break;
        }
    }
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_is_not_an_error() {
    let installation = Installation::new().await;
    let line = format!("set -o pipefail; {} completion bash | head -1", env!("CARGO_BIN_EXE_polis"));
    let output = tokio::process::Command::new("bash")
        .args(["-c", &line])
        .current_dir(installation.dir())
        .output()
        .await
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// The user's verbs: all commands except the servers.
async fn verbs(installation: &Installation) -> Vec<String> {
    let help = installation.polis("--help").await.ok();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| !["federation", "help", "manager", "up"].contains(&name.as_str()))
        .collect()
}

async fn examples(installation: &Installation, verb: &str) -> Vec<String> {
    let help = installation.polis(&format!("{verb} --help")).await.ok();
    let examples = help.split("Examples:\n").nth(1).unwrap_or_default();
    examples.lines().filter_map(|line| line.strip_prefix("  polis ")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_listed_and_revoked() {
    let installation = Installation::new().await;
    let project = installation.project("default");
    let accounts: Api<ServiceAccount> = Api::default_namespaced(project);
    let account = ServiceAccount {
        metadata: ObjectMeta { name: Some("bot".to_owned()), ..ObjectMeta::default() },
        ..ServiceAccount::default()
    };
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let request = json!({"spec": {}});
    let _issued: Value =
        accounts.create_subresource("token", "bot", &PostParams::default(), &request).await.unwrap();

    let listed = installation.polis("credentials list -o json").await.json();
    let token = &listed["items"][0];
    assert_eq!((&token["kind"], &token["plane"]), (&json!("Token"), &json!("project:default")));
    let id = token["id"].as_str().unwrap();
    let table = installation.polis("credentials list").await.ok();
    assert!(table.contains("system:serviceaccount:default:bot  token") && table.contains(id), "{table}");
    let refused = installation.polis("credentials list --context unprivileged").await.error(4);
    assert!(refused.contains("/polis/credentials"), "{refused}");

    let revoked = installation.polis(&format!("credentials revoke {id}")).await.ok();
    assert!(
        revoked.contains(&format!("revoked token {id} of system:serviceaccount:default:bot")),
        "{revoked}"
    );
    assert_eq!(installation.polis("credentials list -o json").await.json()["items"], json!([]));
    installation.polis("credentials revoke").await.error(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_has_examples_and_every_example_runs() {
    let installation = Installation::new().await;
    installation.write("workload.yaml", FILE);
    installation.write("key.pem", "a private key");
    installation.write("app.conf", "mode = busy");
    let mut verbs = verbs(&installation).await;
    assert!(verbs.len() >= 16, "{verbs:?}");
    verbs.extend(["rollout status", "rollout history", "rollout undo"].map(str::to_owned));
    verbs.extend(["credentials list", "credentials revoke"].map(str::to_owned));
    for verb in verbs {
        if verb == "rollout undo" {
            // A history of exactly two revisions, independent of the verbs before.
            installation.polis("destroy web --yes").await.ok();
            installation.polis("deploy web --image polis.local/hello --city dfw").await.ok();
            installation.polis("restart web").await.ok();
        } else if verb != "deploy" {
            installation.polis("deploy web --image polis.local/hello --city dfw --yes").await.ok();
        }
        let examples = examples(&installation, &verb).await;
        assert!(!examples.is_empty(), "polis {verb} --help has no example");
        for example in examples {
            let shown = format!("  polis {example}");
            assert!(shown.len() <= 80, "longer than 80 columns: {shown}");
            // Only this context serves logs, as `polis up` does.
            let context = if verb == "logs" { " --context with-logs" } else { "" };
            if verb == "destroy" {
                installation.polis("deploy web --image polis.local/hello --city dfw --yes").await.ok();
            }
            installation.polis(&format!("{example}{context}")).await.ok();
        }
    }
}
