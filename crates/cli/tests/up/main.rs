//! Tests of `polis up` as a process, with planes over TLS and processes as instances.

mod bad_input;
mod installation;
mod killed;
mod referenced_data;
mod request_budget;
mod rolling;
mod secrets;
mod tenants;
mod terminal;
mod tour;

use installation::{Installation, eventually, mk_workload};
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use polis_api::kube::{Api, ResourceExt as _};
use serde_json::json;

/// The instances of the default project.
async fn instances(installation: &Installation) -> Vec<Instance> {
    let api: Api<Instance> = Api::namespaced(installation.client("polis-default").await, "default");
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

async fn run(installation: &Installation, workload: &Workload) {
    let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
    api.create(&PostParams::default(), workload).await.expect("creates the workload");
}

async fn wait_until_ready(installation: &Installation, count: usize) -> Vec<Instance> {
    eventually("every instance is ready", async || {
        let all = instances(installation).await;
        (all.len() == count && all.iter().all(is_ready)).then_some(all)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_in_two_cities_serves_requests_logs_and_is_deleted_completely() {
    let installation = Installation::start(&["--ephemeral", "--cities", "dfw,ord"]).await;
    run(&installation, &mk_workload("hello", &["dfw", "ord"], 1)).await;
    let running = wait_until_ready(&installation, 2).await;

    for instance in &running {
        let url = format!("http://{}:8080/", address(instance).expect("an address"));
        let output = installation::get(&url).await;
        assert!(output.contains("workload: hello") && output.contains(&instance.name_any()), "{output}");
    }
    let log = installation.log_of("polis-default", "default", &running[0].name_any()).await;
    assert!(!log.is_empty(), "the instance has a log");

    let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
    api.delete("hello", &DeleteParams::foreground()).await.expect("deletes the workload");
    for context in ["polis-default", "polis-hub", "polis-cell-dfw", "polis-cell-ord"] {
        let client = installation.client(context).await;
        eventually(&format!("{context} is clean"), async || {
            let instances = Api::<Instance>::all(client.clone()).list(&Default::default()).await.ok()?;
            let deployments =
                Api::<WorkloadDeployment>::all(client.clone()).list(&Default::default()).await.ok()?;
            (instances.items.is_empty() && deployments.items.is_empty()).then_some(())
        })
        .await;
    }
    eventually("no process is left", async || installation.shims().is_empty().then_some(())).await;
    installation.stop().await;
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
        // The comment of an example follows after two spaces.
        let flags = example.split("  ").next().unwrap_or_default();
        let installation =
            Installation::start_at(home.path(), &flags.split_whitespace().collect::<Vec<_>>()).await;
        assert!(installation.summary.starts_with("Polis is up"), "{}", installation.summary);
        installation.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_project_has_a_context_and_is_served_on_loopback() {
    let installation =
        Installation::start(&["--ephemeral", "--cities", "dfw", "--projects", "shop,blog"]).await;
    assert!(installation.summary.contains("projects    shop, blog"), "{}", installation.summary);
    assert!(installation.summary.contains("planes      https://127.0.0.1:"), "{}", installation.summary);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    for context in ["polis-shop", "polis-blog"] {
        let api: Api<Workload> = Api::namespaced(installation.client(context).await, "default");
        api.create(&dry_run, &mk_workload("web", &["dfw"], 1)).await.expect("the dry run succeeds");
    }
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubeconfig_of_the_user_changes_only_with_merge_kubeconfig() {
    let home = tempfile::tempdir().expect("a folder");
    let elsewhere = home.path().join("kept-elsewhere");
    let own = home.path().join(".kube/config");
    std::fs::create_dir(own.parent().expect("a folder")).expect("creates the directory");
    let original = "apiVersion: v1\nkind: Config\ncurrent-context: work\ncontexts:\n- {name: work, context: {cluster: work, user: me}}\n";
    std::fs::write(&elsewhere, original).expect("written");
    std::os::unix::fs::symlink(&elsewhere, &own).expect("linked");
    let read = || std::fs::read_to_string(&own).expect("a kubeconfig");

    Installation::start_at(home.path(), &["--cities", "dfw"]).await.stop().await;
    assert_eq!(read(), original);
    let installation = Installation::start_at(home.path(), &["--merge-kubeconfig"]).await;
    let merged = polis_api::kube::config::Kubeconfig::from_yaml(&read()).expect("a kubeconfig");
    let names: Vec<&str> = merged.contexts.iter().map(|context| context.name.as_str()).collect();
    assert_eq!(names, ["work", "polis-default", "polis-hub", "polis-cell-dfw", "polis-platform"]);
    assert_eq!(merged.current_context.as_deref(), Some("work"));
    assert!(own.is_symlink(), "the symlink is kept");
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_read_from_started_instances_and_the_others_are_named() {
    let installation = Installation::start(&["--ephemeral", "--cities", "dfw"]).await;
    run(&installation, &mk_workload("web", &["dfw"], 2)).await;
    wait_until_ready(&installation, 2).await;
    let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
    let image = json!([{"op": "replace", "path": "/spec/template/spec/runtime/sandbox/containers/0/image", "value": "nginx"}]);
    let image: Patch<()> = Patch::Json(serde_json::from_value(image).expect("a patch"));
    api.patch("web", &PatchParams::default(), &image).await.expect("changes the workload");
    eventually("an instance waits for its image", async || {
        let mut conditions =
            instances(&installation).await.into_iter().filter_map(|instance| instance.status);
        conditions
            .any(|status| status.conditions.iter().any(|c| c.reason == "ImageUnavailable"))
            .then_some(())
    })
    .await;
    let output = installation.verb("logs web").output().await.expect("polis starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.lines().all(|line| line.starts_with("dfw-0 | ")), "{output:?}");
    assert!(out.contains("listening"), "{output:?}");
    assert!(err.contains("-1 has no output: it has not started") && err.lines().count() == 1, "{output:?}");

    // --follow prints the note once, reads new instances, and exits when the workload is gone.
    let following = installation.verb("logs web --follow").stderr(std::process::Stdio::piped()).output();
    let following = tokio::spawn(following);
    let image = json!([{"op": "replace", "path": "/spec/template/spec/runtime/sandbox/containers/0/image", "value": "polis.local/hello"}]);
    let image: Patch<()> = Patch::Json(serde_json::from_value(image).expect("a patch"));
    api.patch("web", &PatchParams::default(), &image).await.expect("changes the workload");
    wait_until_ready(&installation, 2).await;
    api.delete("web", &DeleteParams::default()).await.expect("deletes the workload");
    let output = following.await.expect("a task").expect("polis starts");
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stderr).ends_with("web is gone.\n"),
        "{output:?}"
    );
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_the_previous_run_is_read_and_its_absence_has_an_exit_code() {
    let installation = Installation::start(&["--ephemeral", "--cities", "dfw"]).await;
    run(&installation, &mk_workload("web", &["dfw"], 1)).await;
    wait_until_ready(&installation, 1).await;
    let result = installation.verb("logs web --previous").output().await.expect("polis starts");
    let message = String::from_utf8_lossy(&result.stderr).into_owned();
    assert_eq!(result.status.code(), Some(3), "{result:?}");
    assert!(message.contains("none of its instances has been restarted"), "{message}");

    let mut flaky = mk_workload("flaky", &["dfw"], 1);
    let sandbox = flaky.spec.template.spec.runtime.sandbox.as_mut().expect("a sandbox");
    sandbox.containers[0].image = "polis.local/flaky".into();
    sandbox.containers[0].args = vec!["1".into()];
    sandbox.containers[0].ports.clear();
    run(&installation, &flaky).await;
    wait_until_ready(&installation, 2).await;
    let result = installation.verb("logs flaky --previous").output().await.expect("polis starts");
    assert_eq!(String::from_utf8_lossy(&result.stdout), "dfw-0 | flaky: failure 1 of 1\n", "{result:?}");
    let result = installation.verb("logs flaky --tail 1").output().await.expect("polis starts");
    assert_eq!(String::from_utf8_lossy(&result.stdout), "dfw-0 | flaky: up after 1 restarts\n", "{result:?}");
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_city_is_refused_with_the_field_and_the_known_cities() {
    let installation = Installation::start(&["--ephemeral", "--cities", "dfw"]).await;
    let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
    let refused =
        api.create(&PostParams::default(), &mk_workload("far", &["syd"], 1)).await.unwrap_err().to_string();
    assert!(refused.contains("spec.placements[0].cityCodes[0]") && refused.contains("dfw"), "{refused}");
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_after_a_kill_adopts_the_running_instances() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let mut installation = Installation::start(&["--data-dir", &data, "--cities", "dfw"]).await;
    run(&installation, &mk_workload("web", &["dfw"], 2)).await;
    let before = wait_until_ready(&installation, 2).await;
    let running = installation.shims();
    assert_eq!(running.len(), 2);

    let second = Installation::start_error(&["--data-dir", &data]).await;
    assert!(second.contains(&format!("in use by process {}", installation.pid())), "{second}");

    installation.kill();
    assert_eq!(installation.shims(), running, "instances outlive the process that started them");
    let installation = Installation::start(&["--data-dir", &data, "--keep-instances"]).await;
    let after = wait_until_ready(&installation, 2).await;
    let uids = |all: &[Instance]| all.iter().map(|instance| instance.uid()).collect::<Vec<_>>();
    assert_eq!(uids(&after), uids(&before));
    assert_eq!(installation.shims(), running, "adopted, not started again");

    let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
    let scale = json!({"spec": {"placements": [{"name": "main", "cityCodes": ["dfw"], "scaleSettings": {"minReplicas": 1}}]}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(scale)).await.expect("scales the workload");
    eventually("one process is left", async || (installation.shims().len() == 1).then_some(())).await;
    installation.stop().await;
    assert_eq!(Installation::shims_in(folder.path()).len(), 1, "kept by --keep-instances");

    // Without --keep-instances they are stopped.
    let installation = Installation::start(&["--data-dir", &data]).await;
    wait_until_ready(&installation, 1).await;
    installation.stop().await;
    eventually("nothing is left", async || Installation::shims_in(folder.path()).is_empty().then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_that_is_created_later_works_and_is_deleted_completely() {
    let installation = Installation::start(&["--ephemeral", "--cities", "dfw"]).await;
    let platform = installation.client("polis-platform").await;
    let api: Api<polis_api::milo::Project> = Api::all(platform);
    let project = serde_json::from_value(json!({
        "apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project", "metadata": {"name": "shop"},
        "spec": {"ownerRef": {"kind": "Organization", "name": "local"}},
    }))
    .expect("a project");
    api.create(&PostParams::default(), &project).await.expect("creates the project");
    eventually("the project is ready", async || {
        let conditions = api.get("shop").await.ok()?.status?.conditions;
        conditions.iter().any(|found| found.type_ == "Ready" && found.status == "True").then_some(())
    })
    .await;
    let client = installation.project("shop").await;
    let workloads: Api<Workload> = Api::namespaced(client.clone(), "default");
    let created = workloads.create(&PostParams::default(), &mk_workload("web", &["dfw"], 1)).await;
    created.expect("a Ready project accepts a workload at once");
    let shown: Api<Instance> = Api::namespaced(client, "default");
    eventually("its instance is ready", async || {
        let all = shown.list(&Default::default()).await.ok()?.items;
        (all.len() == 1 && all.iter().all(is_ready)).then_some(())
    })
    .await;
    assert!(instances(&installation).await.is_empty(), "the other project has no instances");

    api.delete("shop", &DeleteParams::default()).await.expect("deletes the project");
    eventually("the project is gone", async || api.get_opt("shop").await.ok()?.is_none().then_some(())).await;
    eventually("its processes are gone", async || installation.shims().is_empty().then_some(())).await;
    installation.stop().await;
}
