//! The user's verbs: the real binary against an API server over TLS, judged by what it prints and how it ends.

mod completion;
mod front;
mod stand_in;
mod terminal;
mod world;

use polis_api::compute::{Instance, Workload};
use polis_api::kube::Api;
use polis_api::kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use world::{World, hub_namespace};

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

async fn image_of(world: &World) -> String {
    let workload = Api::<Workload>::default_namespaced(world.project("default")).get("web").await.unwrap();
    workload.spec.template.spec.runtime.sandbox.unwrap().containers[0].image.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_is_deployed_and_waited_for_in_every_city() {
    let world = World::new().await;
    let text = world.polis(DEPLOY).await.ok();
    assert!(text.contains("workload web created in namespace default of project default"), "{text}");
    for city in ["dfw", "ord"] {
        assert!(text.lines().any(|line| line.starts_with(city) && line.contains("1/1 ready")), "{text}");
    }
    assert!(text.ends_with("web is ready: 2 instances in 2 cities\n"), "{text}");
    let again = world.polis(DEPLOY).await.ok();
    assert!(again.contains("workload web unchanged"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_is_listed_as_a_table_a_tree_json_yaml_and_names() {
    let world = World::new().await;
    world.polis(DEPLOY).await.ok();

    let table = world.polis("workloads").await.ok();
    assert!(table.starts_with("NAME  READY  CITIES   STATE  AGE\nweb "), "{table}");
    assert!(table.contains("dfw,ord"), "{table}");
    assert_eq!(world.polis("workloads -o name").await.ok(), "workload/web\n");
    let list = world.polis("workloads -o json").await.json();
    assert_eq!((&list["kind"], &list["items"][0]["metadata"]["name"]), (&json!("List"), &json!("web")));
    assert!(world.polis("workloads -o yaml").await.ok().contains("name: web"));

    let tree = world.polis("status web").await.ok();
    assert!(tree.contains("├─ dfw") && tree.contains("└─ ord"), "{tree}");
    assert!(tree.contains("1/1 ready") && tree.contains("127.1.0.1:8080"), "{tree}");
    assert_eq!(world.polis("status web -o json").await.json()["metadata"]["name"], "web");

    let instances = world.polis("instances web --city ord").await.ok();
    assert!(instances.contains("web-ord-") && !instances.contains("web-dfw-"), "{instances}");
    let names = world.polis("instances -o name").await.ok();
    assert_eq!(names.lines().filter(|name| name.starts_with("instance/web-")).count(), 2, "{names}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_shown_before_it_is_made() {
    let world = World::new().await;
    world.polis(DEPLOY).await.ok();
    let text = world.polis("deploy web --image polis.local/sleep --env A=1 --yes").await.ok();
    assert!(text.contains("image: polis.local/hello") && text.contains("image: polis.local/sleep"), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("- ")) && text.contains("workload web changed"),
        "{text}"
    );
    assert_eq!(image_of(&world).await, "polis.local/sleep");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_applied_whole_or_not_at_all() {
    let world = World::new().await;
    world.write("web.yaml", FILE);
    let text = world.polis("deploy -f web.yaml").await.ok();
    assert!(text.contains("workload web created"), "{text}");
    assert!(world.polis("deploy -f web.yaml").await.ok().contains("unchanged"));
    let labels = world.polis("status web -o json").await.json()["metadata"]["labels"].clone();
    assert_eq!(labels["tier"], "front");

    // The second is wrong: the server says so before the first is changed.
    let two = FILE.replace("polis.local/hello", "polis.local/sleep")
        + "---"
        + &FILE.replace("name: web", "name: api").replace("minReplicas: 1", "minReplicas: many");
    world.write("two.yaml", &two);
    let fault = world.polis("deploy -f two.yaml").await.fault(4);
    assert!(fault.contains("failed to deploy workload api") && fault.contains("minReplicas"), "{fault}");
    assert_eq!(image_of(&world).await, "polis.local/hello");

    world.write("other.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\n");
    assert!(world.polis("deploy -f other.yaml").await.fault(2).contains("Secret"));
    assert!(world.polis("deploy -f missing.yaml").await.fault(2).contains("missing.yaml"));
    world.write("elsewhere.yaml", &FILE.replace("name: web,", "name: web, namespace: other,"));
    assert!(world.polis("deploy -f elsewhere.yaml -n default").await.fault(2).contains("other"));
}

#[tokio::test(flavor = "multi_thread")]
async fn scale_and_restart_wait_until_the_new_instances_are_ready() {
    let world = World::new().await;
    world.polis(DEPLOY).await.ok();
    let text = world.polis("scale web 3").await.ok();
    assert!(text.ends_with("web is ready: 6 instances in 2 cities\n"), "{text}");
    let uids = |list: Value| -> Vec<Value> {
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["uid"].clone()).collect()
    };
    let before = uids(world.polis("instances web -o json").await.json());
    world.polis("restart web").await.ok();
    let after = uids(world.polis("instances web -o json").await.json());
    assert_eq!(after.len(), 6);
    assert!(after.iter().all(|uid| !before.contains(uid)), "every instance was replaced");
    assert!(world.polis("scale web 0").await.ok().contains("web is ready: 0 instances"));
    assert!(world.polis("scale web 2 --placement west").await.fault(4).contains("it has default"));
    assert!(world.polis("scale web -1").await.fault(2).contains("-1 is not in 0..=1000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_change_one_workload_at_once_both_get_an_answer_and_neither_is_lost() {
    let world = World::new().await;
    world.polis(DEPLOY).await.ok();
    for round in 0..3 {
        // Of different things: both hold. Of the same: one is the last.
        let scales = format!("scale web {} --no-wait", round + 2);
        let (one, two) = tokio::join!(world.polis("restart web --no-wait"), world.polis(&scales));
        one.ok();
        two.ok();
        let web = world.polis("workloads -o json").await.json();
        let placement = &web["items"][0]["spec"]["placements"][0];
        assert_eq!(placement["scaleSettings"]["minReplicas"], round + 2, "{web}");
        let (one, two) =
            tokio::join!(world.polis("scale web 5 --no-wait"), world.polis("scale web 6 --no-wait"));
        one.ok();
        two.ok();
        let web = world.polis("workloads -o json").await.json();
        let replicas = &web["items"][0]["spec"]["placements"][0]["scaleSettings"]["minReplicas"];
        assert!(*replicas == 5 || *replicas == 6, "{web}");
    }
    // A new one twice: it is made once, and the other is told.
    let new = "deploy twin --image polis.local/hello --city dfw --no-wait --yes";
    let (one, two) = tokio::join!(world.polis(new), world.polis(new));
    let codes = [one.code, two.code];
    assert!(codes.contains(&0), "{one:?}\n{two:?}");
    for ended in [one, two] {
        assert!(
            ended.code == 0 || (!ended.stderr.is_empty() && !ended.stderr.contains("panicked")),
            "{ended:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_recorded_and_can_be_undone() {
    let world = World::new().await;
    world.polis(DEPLOY).await.ok();
    world.polis("deploy web --image polis.local/sleep").await.ok();
    world.polis("restart web").await.ok();
    let history = world.polis("rollout history web").await.ok();
    let causes: Vec<&str> =
        history.lines().skip(1).map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(causes, ["deploy", "deploy", "restart"], "{history}");

    world.polis("rollout undo web --to-revision 1").await.ok();
    assert_eq!(image_of(&world).await, "polis.local/hello");
    world.polis("rollout undo web").await.ok();
    assert_eq!(image_of(&world).await, "polis.local/sleep", "undo goes to the revision before");
    assert!(world.polis("rollout status web").await.ok().contains("web is ready"));
    assert!(world.polis("rollout undo web --to-revision 99").await.fault(3).contains("no revision 99"));

    // What another tool changed is no revision yet, and undo leads back from it.
    let patch = json!([{"op": "replace", "path": "/spec/template/spec/runtime/sandbox/containers/0/image", "value": "theirs"}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    let workloads = Api::<Workload>::default_namespaced(world.project("default"));
    workloads.patch("web", &PatchParams::default(), &patch).await.unwrap();
    let ended = world.polis("rollout history web").await;
    assert!(ended.stderr.contains("changed by other means"), "{ended:?}");
    world.polis("rollout undo web").await.ok();
    assert_eq!(image_of(&world).await, "polis.local/sleep");
    let causes = world.polis("rollout history web -o json").await.json();
    let last = causes["items"].as_array().unwrap().iter().rev().map(|item| item["cause"].clone()).take(2);
    assert_eq!(last.collect::<Vec<_>>()[1], "changed by other means");
}

#[tokio::test(flavor = "multi_thread")]
async fn destroy_says_what_goes_and_waits_until_it_is_gone() {
    let world = World::new().await;
    world.polis(DEPLOY).await.ok();
    let ended = world.polis("destroy web").await;
    assert!(ended.stdout.contains("This deletes workload web of namespace default of project default, with its 2 instances in dfw and ord."), "{ended:?}");
    assert!(ended.fault(2).contains("--yes"), "a pipe cannot say yes");
    assert!(world.polis("destroy web --yes").await.ok().ends_with("workload web is gone\n"));
    let left = Api::<Instance>::default_namespaced(world.project("default"))
        .list(&Default::default())
        .await
        .unwrap();
    assert_eq!(left.items.len(), 0);
    assert!(world.polis("destroy web --yes").await.fault(3).contains("failed to find workload web"));
}

#[tokio::test(flavor = "multi_thread")]
async fn destroy_waits_for_the_planes_beyond_the_project() {
    let world = World::new().await;
    world.polis(DEPLOY).await.ok();
    let hub = world.plane("hub");
    let name = leave_a_copy(&world, "hub").await;
    let ended = world.polis("destroy web --yes --timeout 2s --context polis-default").await;
    assert!(ended.stdout.contains("left on: hub"), "{ended:?}");
    assert!(ended.fault(5).contains("left on: hub"));
    let namespace = hub_namespace(&world.project("default")).await;
    let copies = Api::<polis_api::compute::WorkloadDeployment>::namespaced(hub, &namespace);
    copies.delete(&name, &Default::default()).await.unwrap();
    world.polis(DEPLOY).await.ok();
    world.polis("destroy web --yes --context polis-default").await.ok();
}

/// Puts a copy of the deployment in dfw on another plane, as the federation would; says what it is called.
async fn leave_a_copy(world: &World, plane: &str) -> String {
    let (project, client) = (world.project("default"), world.plane(plane));
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
async fn what_does_not_become_ready_in_time_is_told_with_its_reason() {
    let world = World::new().await;
    let ended = world.polis("deploy web --image nginx --city dfw --timeout 2s").await;
    assert!(ended.stdout.contains("dfw  0/1 ready (ImageUnavailable): no registry has nginx"), "{ended:?}");
    let fault = ended.fault(5);
    assert!(fault.contains("web is not ready after 2s") && fault.contains("polis why web"), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_says_what_blocks_whose_turn_it_is_and_what_to_do() {
    let world = World::new().await;
    world.polis("deploy web --image nginx --city dfw --city xyz --no-wait").await.ok();
    world.polis("status web").await.ok();
    // The stand-in has told the instance's state once a wait has seen it.
    world.polis("rollout status web --timeout 1s").await.fault(5);
    let ended = world.polis("why web").await;
    assert_eq!(ended.code, 7, "{ended:?}");
    for words in [
        "web: 0 of 2 instances are ready",
        "(ImageUnavailable)",
        "no registry has nginx",
        "turn  yours",
        "xyz: blocked",
        "cities bound to this project: dfw, ord",
    ] {
        assert!(ended.stdout.contains(words), "{words} is missing:\n{}", ended.stdout);
    }
    let instance = world.polis("instances web -o name").await.ok();
    let instance = instance.trim().trim_start_matches("instance/").to_owned();
    let of_instance = world.polis(&format!("why {instance} -o json")).await;
    let answer: Value = serde_json::from_str(&of_instance.stdout).unwrap();
    assert_eq!(answer["findings"][0]["reason"], "ImageUnavailable");
    assert!(world.polis("why nothing").await.fault(3).contains("neither a workload nor an instance"));
}

#[tokio::test(flavor = "multi_thread")]
async fn why_walks_hub_and_cells_where_the_kubeconfig_leads_there() {
    let world = World::new().await;
    world.polis("deploy web --image polis.local/hello --city dfw").await.ok();
    assert!(world.polis("why web").await.ok().contains("as it should be"));
    let text = world.polis("why web --project default").await.ok();
    assert!(
        text.contains("has not arrived on the hub") && text.contains("Looked at: project, hub, cell dfw."),
        "{text}"
    );
    leave_a_copy(&world, "hub").await;
    let text = world.polis("why web --project default").await.ok();
    assert!(text.contains("No propagation policy has claimed"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_a_workload_are_merged_and_prefixed_and_those_of_an_instance_are_bare() {
    let world = World::new().await;
    world.polis(DEPLOY).await.ok();
    let text = world.polis("logs web --context with-logs --since 10m --tail 5").await.ok();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0], "dfw-0 | asked follow=false&sinceSeconds=600&tailLines=5");
    assert!(lines[1].starts_with("dfw-0 | web-dfw-") && lines[3].starts_with("ord-0 | web-ord-"), "{text}");

    let instance = world.polis("instances web --city dfw -o name").await.ok();
    let instance = instance.trim().trim_start_matches("instance/").to_owned();
    let text = world.polis(&format!("logs {instance} --follow --context with-logs")).await.ok();
    assert_eq!(text, format!("{instance} listens\nasked follow=true\n"));

    let fault = world.polis("logs web").await.fault(4);
    assert!(fault.contains("this server does not offer logs of instances"), "{fault}");
    assert!(world.polis("logs nothing").await.fault(3).contains("neither a workload nor an instance"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_platform_is_shown_cities_quota_projects_and_versions() {
    let world = World::new().await;
    let cities = world.polis("cities").await.ok();
    assert!(cities.contains("dfw   Dallas") && cities.contains("0/0 ready"), "{cities}");
    assert_eq!(world.polis("cities -o name").await.ok(), "city/dfw\ncity/ord\n");
    let quota = world.polis("quota").await.ok();
    assert!(quota.contains("compute.datumapis.com/instances  3     20     17"), "{quota}");
    let projects = world.polis("projects").await.ok();
    assert!(
        projects.contains("*        default  yes") && projects.contains("-        shop     yes"),
        "{projects}"
    );
    let version = world.polis("version -o json").await.json();
    assert!(version["server"].as_str().unwrap().starts_with('v'), "{version}");
    let alone = world.polis("version --context nowhere").await.ok();
    assert!(alone.contains("server unknown"), "{alone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_is_chosen_by_its_context_or_by_its_path() {
    let world = World::new().await;
    for flags in ["--project shop", "--context root --project shop"] {
        let name = if flags.starts_with("--context") { "one" } else { "two" };
        let line = format!("deploy {name} --image polis.local/hello --city dfw --no-wait {flags}");
        assert!(world.polis(&line).await.ok().contains("project shop"));
    }
    let names = world.polis("workloads -o name --project shop").await.ok();
    assert_eq!(names, "workload/one\nworkload/two\n");
    assert_eq!(world.polis("workloads -o name").await.ok(), "");
    // Of a project that is not there nothing is said that would sound like one that has nothing.
    for verb in ["workloads", "cities", "quota", "status web"] {
        let fault = world.polis(&format!("{verb} --context root --project nothing")).await.fault(3);
        assert!(
            fault.contains("failed to find project nothing") && fault.contains("polis projects"),
            "{fault}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_fail_has_its_code_and_says_what_to_do() {
    let world = World::new().await;
    assert!(world.polis("status nothing").await.fault(3).contains("`polis workloads` lists"));
    assert!(world.polis("workloads --context nobody").await.fault(4).contains("you may not do this here"));
    assert!(world.polis("workloads --context nowhere").await.fault(6).contains("polis doctor"));
    assert!(
        world.polis("workloads --context nothing").await.fault(6).contains("it has: local, polis-default")
    );
    assert!(world.polis("workloads --kubeconfig missing").await.fault(6).contains("missing"));
    assert!(world.polis("deploy web --image x").await.fault(2).contains("--city"));
    assert!(world.polis("deploy Web --image x --city dfw").await.fault(2).contains("is no name"));
    assert!(world.polis("frobnicate").await.fault(2).contains("unrecognized subcommand"));
    let empty = tempfile::tempdir().unwrap();
    let elsewhere = empty.path().to_str().unwrap();
    let ended = world.polis_with(&["workloads"], &[("HOME", elsewhere), ("POLIS_DATA_DIR", elsewhere)]).await;
    assert!(ended.fault(6).contains("polis up"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubeconfig_of_the_environment_comes_before_that_of_the_data_directory() {
    let world = World::new().await;
    let standing = std::fs::read_to_string(world.dir().join("kubeconfig")).unwrap();
    let other = world.write("other", &standing.replace("current-context: local", "current-context: nowhere"));
    let ended = world.polis_with(&["workloads"], &[("KUBECONFIG", other.to_str().unwrap())]).await;
    ended.fault(6);
    world.polis("workloads").await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_nothing_wrong_in_a_good_set_up_and_names_what_is_wrong_in_a_bad_one() {
    let world = World::new().await;
    let text = world.polis("doctor --context polis-default").await.ok();
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
        ("--context nowhere", "does not answer"),
        ("--context nobody", "you may not create workloads"),
        ("--context root", "is not served"),
        ("-n nothing", "nothing does not exist"),
        ("--kubeconfig missing", "missing"),
    ] {
        let ended = world.polis(&format!("doctor {flags}")).await;
        assert!(ended.code == 7 && ended.stdout.contains(words), "{flags}: {ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_can_be_watched_in_a_pipe() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let world = World::new().await;
    world.polis(DEPLOY).await.ok();
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_polis"))
        .args(["status", "web", "--watch"])
        .env("POLIS_DATA_DIR", world.dir())
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
            world.polis("scale web 2 --no-wait").await.ok();
            scaled = true;
        }
        if line.starts_with("web") && line.contains("4/4 ready") {
            break;
        }
    }
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_is_no_fault() {
    let world = World::new().await;
    let line = format!("set -o pipefail; {} completion bash | head -1", env!("CARGO_BIN_EXE_polis"));
    let output = tokio::process::Command::new("bash")
        .args(["-c", &line])
        .current_dir(world.dir())
        .output()
        .await
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// The user's verbs: every one but the processes that serve.
async fn verbs(world: &World) -> Vec<String> {
    let help = world.polis("--help").await.ok();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| !["federation", "help", "manager", "up"].contains(&name.as_str()))
        .collect()
}

async fn examples(world: &World, verb: &str) -> Vec<String> {
    let help = world.polis(&format!("{verb} --help")).await.ok();
    let examples = help.split("Examples:\n").nth(1).unwrap_or_default();
    examples.lines().filter_map(|line| line.strip_prefix("  polis ")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_has_examples_and_every_example_runs() {
    let world = World::new().await;
    world.write("workload.yaml", FILE);
    let mut verbs = verbs(&world).await;
    assert!(verbs.len() >= 16, "{verbs:?}");
    verbs.extend(["rollout status", "rollout history", "rollout undo"].map(str::to_owned));
    for verb in verbs {
        if verb == "rollout undo" {
            // A history of two revisions, whatever the verbs before have left.
            world.polis("destroy web --yes").await.ok();
            world.polis("deploy web --image polis.local/hello --city dfw").await.ok();
            world.polis("restart web").await.ok();
        } else if verb != "deploy" {
            world.polis("deploy web --image polis.local/hello --city dfw --yes").await.ok();
        }
        let examples = examples(&world, &verb).await;
        assert!(!examples.is_empty(), "polis {verb} --help has no example");
        for example in examples {
            let shown = format!("  polis {example}");
            assert!(shown.len() <= 80, "it does not fit a terminal of 80 columns: {shown}");
            // Logs are served where `polis up` serves them.
            let place = if verb == "logs" { " --context with-logs" } else { "" };
            world.polis(&format!("{example}{place}")).await.ok();
        }
    }
}
