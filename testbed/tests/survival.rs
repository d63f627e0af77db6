//! Resilience of a test cluster: component outages, an interrupted start, parallel clusters, and ports that
//! are taken by other processes.

use std::{
    env,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use federation::{Federation, mk_deployment, mk_status};
use kube::Client;
use polis_testbed::{
    Error, Options, TestCluster, hub,
    plane::{HUB, SINGLE_PLANE},
    port::Ports,
    process::{ProcessId, ProcessState},
};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

mod federation;

/// A test cluster whose components these tests kill and pause, one test at a time. Components that a failed
/// test left paused or killed are restarted for the next test.
async fn cluster() -> (&'static TestCluster, MutexGuard<'static, ()>) {
    static CLUSTER: OnceCell<TestCluster> = OnceCell::const_new();
    static LOCK: Mutex<()> = Mutex::const_new(());
    let lock = LOCK.lock().await;
    let up = async || Box::pin(TestCluster::up(Options::federation(["dfw"]).with_projects(0))).await;
    let cluster = CLUSTER
        .get_or_try_init(up)
        .await
        .unwrap_or_else(|err| panic!("failed to start the test cluster: {err}"));
    for component in cluster.components().unwrap() {
        let name = &component.record.spec.name;
        match component.state {
            ProcessState::Running => {}
            ProcessState::Paused => cluster.resume(name).unwrap(),
            ProcessState::Dead => cluster.start(name).await.unwrap(),
        }
    }
    (cluster, lock)
}

async fn responds(client: &Client) -> bool {
    let request = tokio::time::timeout(Duration::from_secs(3), client.apiserver_version());
    matches!(request.await, Ok(Ok(_)))
}

async fn await_response(client: &Client) {
    eventually("the plane responds", async || responds(client).await).await;
}

async fn eventually(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is().await {
        assert!(Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn running(cluster: &TestCluster) -> bool {
    cluster.components().unwrap().iter().all(|component| component.state == ProcessState::Running)
}

fn processes_of(cluster: &TestCluster) -> Vec<ProcessId> {
    cluster.components().unwrap().into_iter().map(|component| component.record.process).collect()
}

#[tokio::test]
async fn changes_during_a_member_outage_are_propagated_after_it() {
    let (cluster, _lock) = cluster().await;
    let ns = Federation::new(cluster, "member-dead", &["dfw"]).await;
    ns.create(&mk_deployment("before", "dfw")).await;
    ns.reaches("dfw", "before").await;
    let member = cluster.plane("dfw").unwrap().apiserver();

    cluster.kill(&member).unwrap();
    ns.delete("before").await;
    ns.create(&mk_deployment("meanwhile", "dfw")).await;
    cluster.start(&member).await.unwrap();

    ns.reaches("dfw", "meanwhile").await;
    ns.leaves("dfw", "before").await;
    ns.report("dfw", "meanwhile", &mk_status(1)).await;
    ns.becomes(HUB, "meanwhile", "to have a status", |it| it.status == Some(mk_status(1))).await;
}

#[tokio::test]
async fn changes_during_a_karmada_outage_are_propagated_after_it() {
    let (cluster, _lock) = cluster().await;
    let ns = Federation::new(cluster, "controllers-dead", &["dfw"]).await;
    ns.create(&mk_deployment("before", "dfw")).await;
    ns.reaches("dfw", "before").await;

    cluster.kill(hub::CONTROLLER_MANAGER).unwrap();
    ns.create(&mk_deployment("meanwhile", "dfw")).await;
    ns.report("dfw", "before", &mk_status(1)).await;
    assert!(
        ns.cell("dfw").await.get_opt("meanwhile").await.unwrap().is_none(),
        "the deployment was propagated without the controllers"
    );
    cluster.start(hub::CONTROLLER_MANAGER).await.unwrap();

    ns.reaches("dfw", "meanwhile").await;
    ns.becomes(HUB, "before", "to have a status", |it| it.status == Some(mk_status(1))).await;
}

#[tokio::test]
async fn planes_keep_their_objects_when_etcd_is_killed_and_restarted() {
    let (cluster, _lock) = cluster().await;
    let ns = Federation::new(cluster, "etcd-dead", &["dfw"]).await;
    ns.create(&mk_deployment("before", "dfw")).await;
    ns.reaches("dfw", "before").await;

    cluster.restart("etcd").await.unwrap();

    let hub = ns.hub();
    eventually("the hub responds again", async || hub.get("before").await.is_ok()).await;
    let after = mk_deployment("after", "dfw");
    eventually("the hub accepts writes again", async || {
        hub.create(&Default::default(), &after).await.is_ok()
    })
    .await;
    ns.reaches("dfw", "after").await;
    assert!(running(cluster), "a component exited with etcd");
}

#[tokio::test]
async fn a_paused_plane_does_not_respond_until_it_is_resumed() {
    let (cluster, _lock) = cluster().await;
    let (cell, client) = (cluster.plane("dfw").unwrap().apiserver(), cluster.client("dfw").await.unwrap());
    await_response(&client).await;

    cluster.pause(&cell).unwrap();
    eventually("the plane is paused", async || {
        cluster.component(&cell).unwrap().state == ProcessState::Paused
    })
    .await;
    assert!(!responds(&client).await);
    cluster.resume(&cell).unwrap();

    await_response(&client).await;
}

#[tokio::test]
async fn parallel_test_clusters_do_not_affect_each_other() {
    let (existing, _lock) = cluster().await;
    let (first, second) =
        tokio::join!(Box::pin(TestCluster::single_plane()), Box::pin(TestCluster::single_plane()));
    let (first, second) = (first.unwrap(), second.unwrap());
    let mine = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}});
    let (one, two) = (first.client(SINGLE_PLANE).await.unwrap(), second.client(SINGLE_PLANE).await.unwrap());
    polis_testbed::manifest::apply(&one, SINGLE_PLANE, &mine).await.unwrap();

    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(two.clone());
    assert!(namespaces.get_opt("mine").await.unwrap().is_none(), "the test clusters share a plane");

    let (ended, dir) = (processes_of(&first), first.dir().to_owned());
    drop(first);
    assert!(ended.iter().all(|process| process.state() == ProcessState::Dead));
    assert!(!dir.exists());
    await_response(&two).await;
    assert!(running(&second) && running(existing));
}

#[tokio::test]
async fn a_port_that_is_taken_after_the_check_is_replaced() {
    let others: Vec<TcpListener> =
        (0..2).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let taken: Vec<u16> = others.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    let free = Ports::default();
    // etcd gets a taken and a free port, then two free ports. The port of the plane is taken again.
    let offered =
        [taken[0], free.choose().unwrap(), free.choose().unwrap(), free.choose().unwrap(), taken[1]];
    let messages = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = messages.clone();
    let options = Options {
        ports: Ports::beginning_with(offered),
        progress: Arc::new(move |line| sink.lock().unwrap().push(line.to_owned())),
        ..Options::single_plane()
    };

    let cluster = Box::pin(TestCluster::up(options)).await.unwrap();

    await_response(&cluster.client(SINGLE_PLANE).await.unwrap()).await;
    let used: Vec<u16> =
        cluster.components().unwrap().into_iter().flat_map(|component| component.record.spec.ports).collect();
    assert!(used.iter().all(|port| !taken.contains(port)), "{used:?} {taken:?}");
    let retries =
        messages.lock().unwrap().iter().filter(|line| line.contains("was taken by another process")).count();
    assert_eq!(retries, 2, "{messages:?}");
}

/// The test runs itself in a second process, as the owner that is killed.
#[tokio::test]
async fn a_start_that_is_killed_does_not_block_the_next() {
    const DIR: &str = "POLIS_TESTBED_SURVIVAL_DIR";
    let options = |dir: &Path, options: Options| Options { dir: Some(dir.to_owned()), ..options };
    if let Some(dir) = env::var_os(DIR) {
        let progress = Arc::new(|line: &str| println!("\nprogress {line}"));
        let wanted = options(dir.as_ref(), Options { progress, ..Options::federation(["dfw"]) });
        let result = Box::pin(TestCluster::up(wanted)).await;
        unreachable!("the process is killed before the start is complete: {result:?}");
    }
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("cluster");
    let mut starter = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_start_that_is_killed_does_not_block_the_next", "--nocapture"])
        .env(DIR, &dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(starter.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines
        .find(|line| line.starts_with("progress") && line.contains("kube-apiserver"))
        .expect("a plane is ready");
    let started = started_in(&dir);
    assert!(started.len() >= 4, "{started:?}");

    starter.kill().unwrap();
    starter.wait().unwrap();

    let gone = async || started.iter().all(|process| process.state() == ProcessState::Dead);
    eventually("all started processes have exited", gone).await;
    assert!(
        matches!(TestCluster::attach(&dir), Err(Error::Incomplete(_))),
        "an incomplete test cluster must not be attached to"
    );
    let cluster = Box::pin(TestCluster::up(options(&dir, Options::single_plane()))).await.unwrap();
    await_response(&cluster.client(SINGLE_PLANE).await.unwrap()).await;
}

fn started_in(dir: &Path) -> Vec<ProcessId> {
    let records = std::fs::read_dir(dir.join("run")).unwrap().flatten().map(|entry| entry.path());
    let whole = records.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'));
    let record = |path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    whole.map(record).map(|record: polis_testbed::process::ComponentRecord| record.process).collect()
}

/// Stops a released test cluster if the test fails before it does.
struct StopOnDrop<'a>(&'a Path);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        let _already_down = TestCluster::down(self.0);
    }
}

/// A process outside any test cluster; it ends with the test.
struct UnrelatedProcess(Child);

impl Drop for UnrelatedProcess {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("a child process can be killed");
    }
}

#[tokio::test]
async fn a_released_cluster_keeps_running_until_it_is_stopped_by_its_directory() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("cluster");
    let options = || Options { dir: Some(dir.clone()), ..Options::single_plane() };
    Box::pin(TestCluster::up(options())).await.unwrap().release().unwrap();
    let _stop = StopOnDrop(&dir);
    let mut unrelated = UnrelatedProcess(Command::new("sleep").arg("600").spawn().unwrap());

    let found = TestCluster::attach(&dir).unwrap();
    await_response(&found.client(SINGLE_PLANE).await.unwrap()).await;
    found.restart(&found.plane(SINGLE_PLANE).unwrap().apiserver()).await.unwrap();
    await_response(&found.client(SINGLE_PLANE).await.unwrap()).await;
    let second = Box::pin(TestCluster::up(options())).await.unwrap_err().to_string();
    assert!(second.starts_with("a test cluster already runs in "), "{second}");
    let started = processes_of(&found);
    drop(found);
    assert!(
        started.iter().all(|process| process.state() == ProcessState::Running),
        "detaching stopped the test cluster"
    );

    TestCluster::down(&dir).unwrap();

    assert!(started.iter().all(|process| process.state() == ProcessState::Dead));
    assert!(!dir.exists());
    assert!(unrelated.0.try_wait().unwrap().is_none(), "an unrelated process was killed");
    assert!(matches!(TestCluster::down(&dir), Err(Error::NoTestCluster(_))));
}

#[tokio::test]
async fn the_error_for_an_exited_component_holds_its_last_lines() {
    let cluster = Box::pin(TestCluster::single_plane()).await.unwrap();
    let plane = cluster.plane(SINGLE_PLANE).unwrap().apiserver();
    cluster.kill(&plane).unwrap();

    let error = cluster.first_exit().await.to_string();

    assert!(error.starts_with(&format!("{plane} exited; the last lines of ")), "{error}");
    assert!(error.lines().count() > 3, "{error}");
}
