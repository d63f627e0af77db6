//! `polis up` as a user runs it: one process, real planes over TLS, real processes as instances.

mod bad_input;
mod killed;
mod rolling;
mod site;
mod terminal;
mod tour;

use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use polis_api::karmada::PropagationPolicy;
use polis_api::kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use polis_api::kube::{Api, ResourceExt as _};
use serde_json::json;
use site::{Site, eventually, mk_workload};

/// The city, the address and whether it is ready, of every instance of the project.
async fn instances(site: &Site) -> Vec<Instance> {
    let api: Api<Instance> = Api::namespaced(site.client("polis-default").await, "default");
    api.list(&Default::default()).await.map(|list| list.items).unwrap_or_default()
}

fn is_ready(instance: &Instance) -> bool {
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn address(instance: &Instance) -> Option<String> {
    let status = serde_json::to_value(instance.status.as_ref()?).ok()?;
    let found = status["networkInterfaces"][0]["assignments"]["networkIP"].as_str()?;
    Some(found.to_owned())
}

async fn run(site: &Site, workload: &Workload) {
    let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
    api.create(&PostParams::default(), workload).await.expect("a workload that is taken");
}

async fn all_ready(site: &Site, count: usize) -> Vec<Instance> {
    eventually("every instance is ready", async || {
        let all = instances(site).await;
        (all.len() == count && all.iter().all(is_ready)).then_some(all)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_runs_in_two_cities_answers_speaks_and_leaves_nothing_behind() {
    let site = Site::start(&["--ephemeral", "--cities", "dfw,ord"]).await;
    run(&site, &mk_workload("hello", &["dfw", "ord"], 1)).await;
    let running = all_ready(&site, 2).await;

    for instance in &running {
        let url = format!("http://{}:8080/", address(instance).expect("an address"));
        let said = site::get(&url).await;
        assert!(said.contains("workload: hello") && said.contains(&instance.name_any()), "{said}");
    }
    let log = site.log_of("polis-default", "default", &running[0].name_any()).await;
    assert!(!log.is_empty(), "the instance says something when it is asked");

    let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
    api.delete("hello", &DeleteParams::foreground()).await.expect("a workload that goes");
    for context in ["polis-default", "polis-hub", "polis-cell-dfw", "polis-cell-ord"] {
        let client = site.client(context).await;
        eventually(&format!("{context} is clean"), async || {
            let instances = Api::<Instance>::all(client.clone()).list(&Default::default()).await.ok()?;
            let deployments =
                Api::<WorkloadDeployment>::all(client.clone()).list(&Default::default()).await.ok()?;
            (instances.items.is_empty() && deployments.items.is_empty()).then_some(())
        })
        .await;
    }
    eventually("no process is left", async || site.shims().is_empty().then_some(())).await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_of_its_help_starts() {
    let home = tempfile::tempdir().expect("a folder");
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_polis")).args(["up", "--help"]).output();
    let help = String::from_utf8(help.expect("polis starts").stdout).expect("a text");
    let (_, examples) = help.split_once("Examples:\n").expect("examples");
    let examples: Vec<&str> =
        examples.lines().filter_map(|line| line.trim().strip_prefix("polis up")).collect();
    assert!(examples.len() >= 3, "{help}");
    for example in examples {
        // What it is for stands behind it, two spaces away.
        let flags = example.split("  ").next().unwrap_or_default();
        let site = Site::start_at(home.path(), &flags.split_whitespace().collect::<Vec<_>>()).await;
        assert!(site.summary.starts_with("Polis is up"), "{}", site.summary);
        site.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_project_that_is_named_has_a_context_and_is_served_on_loopback() {
    let site = Site::start(&["--ephemeral", "--cities", "dfw", "--projects", "shop,blog"]).await;
    assert!(site.summary.contains("projects    shop, blog"), "{}", site.summary);
    assert!(site.summary.contains("planes      https://127.0.0.1:"), "{}", site.summary);
    let asked = PostParams { dry_run: true, ..PostParams::default() };
    for context in ["polis-shop", "polis-blog"] {
        let api: Api<Workload> = Api::namespaced(site.client(context).await, "default");
        api.create(&asked, &mk_workload("web", &["dfw"], 1)).await.expect("a workload that would be taken");
    }
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_users_own_kubeconfig_is_left_alone_unless_it_is_to_be_merged() {
    let home = tempfile::tempdir().expect("a folder");
    let elsewhere = home.path().join("kept-elsewhere");
    let own = home.path().join(".kube/config");
    std::fs::create_dir(own.parent().expect("a folder")).expect("made");
    let standing = "apiVersion: v1\nkind: Config\ncurrent-context: work\ncontexts:\n- {name: work, context: {cluster: work, user: me}}\n";
    std::fs::write(&elsewhere, standing).expect("written");
    std::os::unix::fs::symlink(&elsewhere, &own).expect("linked");
    let read = || std::fs::read_to_string(&own).expect("a kubeconfig");

    Site::start_at(home.path(), &["--cities", "dfw"]).await.stop().await;
    assert_eq!(read(), standing);
    let site = Site::start_at(home.path(), &["--merge-kubeconfig"]).await;
    let merged = polis_api::kube::config::Kubeconfig::from_yaml(&read()).expect("a kubeconfig");
    let names: Vec<&str> = merged.contexts.iter().map(|context| context.name.as_str()).collect();
    assert_eq!(names, ["work", "polis-default", "polis-hub", "polis-cell-dfw", "polis-platform"]);
    assert_eq!(merged.current_context.as_deref(), Some("work"));
    assert!(own.is_symlink(), "what was linked is still linked");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_come_from_those_that_have_started_and_the_others_are_named() {
    let site = Site::start(&["--ephemeral", "--cities", "dfw"]).await;
    run(&site, &mk_workload("web", &["dfw"], 2)).await;
    all_ready(&site, 2).await;
    let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
    let image = json!([{"op": "replace", "path": "/spec/template/spec/runtime/sandbox/containers/0/image", "value": "nginx"}]);
    let image: Patch<()> = Patch::Json(serde_json::from_value(image).expect("a patch"));
    api.patch("web", &PatchParams::default(), &image).await.expect("a workload that changes");
    eventually("an instance waits for its image", async || {
        let mut conditions = instances(&site).await.into_iter().filter_map(|instance| instance.status);
        conditions
            .any(|status| status.conditions.iter().any(|c| c.reason == "ImageUnavailable"))
            .then_some(())
    })
    .await;
    let said = site.verb("logs web").output().await.expect("polis starts");
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.lines().all(|line| line.starts_with("dfw-0 | ")), "{said:?}");
    assert!(out.contains("listening"), "{said:?}");
    assert!(
        err.contains("-1 has printed nothing: it has not started") && err.lines().count() == 1,
        "{said:?}"
    );

    // Whoever follows is told once, sees those that come, and is told when nothing is left to come.
    let following = site.verb("logs web --follow").stderr(std::process::Stdio::piped()).output();
    let following = tokio::spawn(following);
    let image = json!([{"op": "replace", "path": "/spec/template/spec/runtime/sandbox/containers/0/image", "value": "polis.local/hello"}]);
    let image: Patch<()> = Patch::Json(serde_json::from_value(image).expect("a patch"));
    api.patch("web", &PatchParams::default(), &image).await.expect("a workload that changes");
    all_ready(&site, 2).await;
    api.delete("web", &DeleteParams::default()).await.expect("a workload that goes");
    let said = following.await.expect("a task").expect("polis starts");
    assert!(
        said.status.success() && String::from_utf8_lossy(&said.stderr).ends_with("web is gone.\n"),
        "{said:?}"
    );
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_city_that_is_not_there_is_refused_with_the_field_and_the_cities_that_are() {
    let site = Site::start(&["--ephemeral", "--cities", "dfw"]).await;
    let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
    let refused =
        api.create(&PostParams::default(), &mk_workload("far", &["syd"], 1)).await.unwrap_err().to_string();
    assert!(refused.contains("spec.placements[0].cityCodes[0]") && refused.contains("dfw"), "{refused}");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_killed_goes_on_where_it_was_and_its_instances_never_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let mut site = Site::start(&["--data-dir", &data, "--cities", "dfw"]).await;
    run(&site, &mk_workload("web", &["dfw"], 2)).await;
    let before = all_ready(&site, 2).await;
    let running = site.shims();
    assert_eq!(running.len(), 2);

    let second = Site::refused(&["--data-dir", &data]).await;
    assert!(second.contains(&format!("in use by process {}", site.pid())), "{second}");

    site.kill();
    assert_eq!(site.shims(), running, "instances outlive the process that started them");
    let site = Site::start(&["--data-dir", &data, "--keep-instances"]).await;
    let after = all_ready(&site, 2).await;
    let uids = |all: &[Instance]| all.iter().map(|instance| instance.uid()).collect::<Vec<_>>();
    assert_eq!(uids(&after), uids(&before));
    assert_eq!(site.shims(), running, "adopted, not started again");

    let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
    let scale = json!({"spec": {"placements": [{"name": "main", "cityCodes": ["dfw"], "scaleSettings": {"minReplicas": 1}}]}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(scale)).await.expect("a workload that is scaled");
    eventually("one process is left", async || (site.shims().len() == 1).then_some(())).await;
    site.stop().await;
    assert_eq!(Site::shims_in(folder.path()).len(), 1, "kept, as asked");

    // The next one is not told to keep them.
    let site = Site::start(&["--data-dir", &data]).await;
    all_ready(&site, 1).await;
    site.stop().await;
    eventually("nothing is left", async || Site::shims_in(folder.path()).is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_made_later_is_as_good_as_the_first_and_goes_when_it_is_deleted() {
    let site = Site::start(&["--ephemeral", "--cities", "dfw"]).await;
    let platform = site.client("polis-platform").await;
    let api: Api<polis_api::milo::Project> = Api::all(platform);
    let project = serde_json::from_value(json!({
        "apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project", "metadata": {"name": "shop"},
        "spec": {"ownerRef": {"kind": "Organization", "name": "local"}},
    }))
    .expect("a project");
    api.create(&PostParams::default(), &project).await.expect("a project that is taken");
    eventually("it is ready", async || {
        let conditions = api.get("shop").await.ok()?.status?.conditions;
        conditions.iter().any(|found| found.type_ == "Ready" && found.status == "True").then_some(())
    })
    .await;
    let client = site.project("shop").await;
    let workloads: Api<Workload> = Api::namespaced(client.clone(), "default");
    let taken = workloads.create(&PostParams::default(), &mk_workload("web", &["dfw"], 1)).await;
    taken.expect("ready means that a workload is taken, at the first try");
    let shown: Api<Instance> = Api::namespaced(client, "default");
    eventually("its instance is ready", async || {
        let all = shown.list(&Default::default()).await.ok()?.items;
        (all.len() == 1 && all.iter().all(is_ready)).then_some(())
    })
    .await;
    assert!(instances(&site).await.is_empty(), "the other project sees nothing of it");

    api.delete("shop", &DeleteParams::default()).await.expect("a project that goes");
    eventually("the project is gone", async || api.get_opt("shop").await.ok()?.is_none().then_some(())).await;
    eventually("its processes too", async || site.shims().is_empty().then_some(())).await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_on_the_hub_with_a_policy_reaches_the_instances_that_wait_for_it() {
    let site = Site::start(&["--ephemeral", "--cities", "dfw,ord"]).await;
    let mut workload = serde_json::to_value(mk_workload("web", &["dfw", "ord"], 1)).expect("a workload");
    workload["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"][0]["env"] =
        json!([{"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}}]);
    run(&site, &serde_json::from_value(workload).expect("a workload")).await;
    eventually("both instances say what they wait for", async || {
        let all = instances(&site).await;
        let told = |instance: &Instance| {
            let mut conditions = instance.status.iter().flat_map(|status| &status.conditions);
            conditions.any(|found| found.reason == "ConfigurationError" && found.message.contains("settings"))
        };
        (all.len() == 2 && all.iter().all(told)).then_some(())
    })
    .await;

    let namespaces: Api<Namespace> = Api::all(site.client("polis-default").await);
    let home = namespaces.get("default").await.expect("a namespace").uid().unwrap_or_default();
    let hub = site.client("polis-hub").await;
    let home = format!("ns-{home}");
    let maps: Api<ConfigMap> = Api::namespaced(hub.clone(), &home);
    let map = serde_json::from_value(json!({"metadata": {"name": "settings"}, "data": {"mode": "busy"}}));
    maps.create(&PostParams::default(), &map.expect("a config map")).await.expect("a map that is taken");
    let policies: Api<PropagationPolicy> = Api::namespaced(hub, &home);
    let policy = serde_json::from_value(json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "settings"},
        "spec": {
            "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}],
            "placement": {"clusterAffinity": {"clusterNames": ["dfw", "ord"]}},
        },
    }));
    policies
        .create(&PostParams::default(), &policy.expect("a policy"))
        .await
        .expect("a policy that is taken");
    all_ready(&site, 2).await;
    site.stop().await;
}
