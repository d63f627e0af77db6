//! The bed survives: outages of its components, an `up` that is cut off, a second bed, a port that is taken.

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
    Bed, Error, Options, hub,
    plane::{HUB, LONE},
    port::Ports,
    process::{Condition, Identity},
};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

mod federation;

/// A bed that these tests may break, one after the other. What one left broken because it failed is mended for the next.
async fn bed() -> (&'static Bed, MutexGuard<'static, ()>) {
    static BED: OnceCell<Bed> = OnceCell::const_new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let up = async || Box::pin(Bed::up(Options::federation(["dfw"]).with_projects(0))).await;
    let bed = BED.get_or_try_init(up).await.unwrap_or_else(|err| panic!("no bed: {err}"));
    for component in bed.components().unwrap() {
        let name = &component.record.spec.name;
        match component.condition {
            Condition::Running => {}
            Condition::Paused => bed.resume(name).unwrap(),
            Condition::Dead => bed.start(name).await.unwrap(),
        }
    }
    (bed, turn)
}

async fn answers(client: &Client) -> bool {
    let asked = tokio::time::timeout(Duration::from_secs(3), client.apiserver_version());
    matches!(asked.await, Ok(Ok(_)))
}

async fn comes_to_answer(client: &Client) {
    eventually("the plane answers", async || answers(client).await).await;
}

async fn eventually(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is().await {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn running(bed: &Bed) -> bool {
    bed.components().unwrap().iter().all(|component| component.condition == Condition::Running)
}

fn identities(bed: &Bed) -> Vec<Identity> {
    bed.components().unwrap().into_iter().map(|component| component.record.identity).collect()
}

#[tokio::test]
async fn what_happened_while_a_member_was_dead_is_made_good_when_it_is_back() {
    let (bed, _turn) = bed().await;
    let ns = Federation::new(bed, "member-dead", &["dfw"]).await;
    ns.create(&mk_deployment("before", "dfw")).await;
    ns.reaches("dfw", "before").await;
    let member = bed.plane("dfw").unwrap().apiserver();

    bed.kill(&member).unwrap();
    ns.delete("before").await;
    ns.create(&mk_deployment("meanwhile", "dfw")).await;
    bed.start(&member).await.unwrap();

    ns.reaches("dfw", "meanwhile").await;
    ns.leaves("dfw", "before").await;
    ns.report("dfw", "meanwhile", &mk_status(1)).await;
    ns.becomes(HUB, "meanwhile", "to have a status", |it| it.status == Some(mk_status(1))).await;
}

#[tokio::test]
async fn what_happened_while_karmadas_controllers_were_dead_is_made_good_when_they_are_back() {
    let (bed, _turn) = bed().await;
    let ns = Federation::new(bed, "controllers-dead", &["dfw"]).await;
    ns.create(&mk_deployment("before", "dfw")).await;
    ns.reaches("dfw", "before").await;

    bed.kill(hub::CONTROLLER_MANAGER).unwrap();
    ns.create(&mk_deployment("meanwhile", "dfw")).await;
    ns.report("dfw", "before", &mk_status(1)).await;
    assert!(ns.cell("dfw").await.get_opt("meanwhile").await.unwrap().is_none(), "somebody else propagates");
    bed.start(hub::CONTROLLER_MANAGER).await.unwrap();

    ns.reaches("dfw", "meanwhile").await;
    ns.becomes(HUB, "before", "to have a status", |it| it.status == Some(mk_status(1))).await;
}

#[tokio::test]
async fn planes_keep_what_they_had_when_etcd_is_killed_and_restarted() {
    let (bed, _turn) = bed().await;
    let ns = Federation::new(bed, "etcd-dead", &["dfw"]).await;
    ns.create(&mk_deployment("before", "dfw")).await;
    ns.reaches("dfw", "before").await;

    bed.restart("etcd").await.unwrap();

    let hub = ns.hub();
    eventually("the hub answers again", async || hub.get("before").await.is_ok()).await;
    let after = mk_deployment("after", "dfw");
    eventually("the hub takes writes again", async || hub.create(&Default::default(), &after).await.is_ok())
        .await;
    ns.reaches("dfw", "after").await;
    assert!(running(bed), "a component died with etcd");
}

#[tokio::test]
async fn a_paused_plane_is_silent_and_goes_on_when_it_is_resumed() {
    let (bed, _turn) = bed().await;
    let (cell, client) = (bed.plane("dfw").unwrap().apiserver(), bed.client("dfw").await.unwrap());
    comes_to_answer(&client).await;

    bed.pause(&cell).unwrap();
    eventually("the plane is seen as paused", async || {
        bed.component(&cell).unwrap().condition == Condition::Paused
    })
    .await;
    assert!(!answers(&client).await);
    bed.resume(&cell).unwrap();

    comes_to_answer(&client).await;
}

#[tokio::test]
async fn beds_that_start_at_once_do_not_touch_each_other_or_the_one_that_stands() {
    let (standing, _turn) = bed().await;
    let (first, second) = tokio::join!(Box::pin(Bed::single_plane()), Box::pin(Bed::single_plane()));
    let (first, second) = (first.unwrap(), second.unwrap());
    let mine = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}});
    let (one, two) = (first.client(LONE).await.unwrap(), second.client(LONE).await.unwrap());
    polis_testbed::manifest::apply(&one, LONE, &mine).await.unwrap();

    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(two.clone());
    assert!(namespaces.get_opt("mine").await.unwrap().is_none(), "the beds share a plane");

    let (ended, dir) = (identities(&first), first.dir().to_owned());
    drop(first);
    assert!(ended.iter().all(|identity| identity.condition() == Condition::Dead));
    assert!(!dir.exists());
    comes_to_answer(&two).await;
    assert!(running(&second) && running(standing));
}

#[tokio::test]
async fn a_port_that_is_taken_after_it_was_chosen_is_given_up_for_another() {
    let others: Vec<TcpListener> =
        (0..2).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let taken: Vec<u16> = others.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    let free = Ports::default();
    // etcd asks for two ports and gets one that is taken; then two that are free. The plane's is taken again.
    let offered =
        [taken[0], free.choose().unwrap(), free.choose().unwrap(), free.choose().unwrap(), taken[1]];
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    let listener = said.clone();
    let options = Options {
        ports: Ports::beginning_with(offered),
        say: Arc::new(move |line| listener.lock().unwrap().push(line.to_owned())),
        ..Options::single_plane()
    };

    let bed = Box::pin(Bed::up(options)).await.unwrap();

    comes_to_answer(&bed.client(LONE).await.unwrap()).await;
    let used: Vec<u16> =
        bed.components().unwrap().into_iter().flat_map(|component| component.record.spec.ports).collect();
    assert!(used.iter().all(|port| !taken.contains(port)), "{used:?} {taken:?}");
    let told =
        said.lock().unwrap().iter().filter(|line| line.contains("was taken by another process")).count();
    assert_eq!(told, 2, "{said:?}");
}

/// Runs itself as the one who starts the bed, in a second process that can be killed.
#[tokio::test]
async fn an_up_that_is_killed_half_way_leaves_nothing_that_blocks_the_next() {
    const DIR: &str = "POLIS_TESTBED_SURVIVAL_DIR";
    let options = |dir: &Path, options: Options| Options { dir: Some(dir.to_owned()), ..options };
    if let Some(dir) = env::var_os(DIR) {
        let say = Arc::new(|line: &str| println!("\nsaid {line}"));
        let wanted = options(dir.as_ref(), Options { say, ..Options::federation(["dfw"]) });
        let outcome = Box::pin(Bed::up(wanted)).await;
        unreachable!("it is killed before the bed is up: {outcome:?}");
    }
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("bed");
    let mut starter = Command::new(env::current_exe().unwrap())
        .args(["--exact", "an_up_that_is_killed_half_way_leaves_nothing_that_blocks_the_next", "--nocapture"])
        .env(DIR, &dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(starter.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.starts_with("said") && line.contains("kube-apiserver")).expect("a plane stands");
    let started = started_in(&dir);
    assert!(started.len() >= 4, "{started:?}");

    starter.kill().unwrap();
    starter.wait().unwrap();

    let gone = async || started.iter().all(|identity| identity.condition() == Condition::Dead);
    eventually("all that was started is gone", gone).await;
    assert!(matches!(Bed::attach(&dir), Err(Error::CutOff(_))), "half a bed is no bed");
    let bed = Box::pin(Bed::up(options(&dir, Options::single_plane()))).await.unwrap();
    comes_to_answer(&bed.client(LONE).await.unwrap()).await;
}

fn started_in(dir: &Path) -> Vec<Identity> {
    let records = std::fs::read_dir(dir.join("run")).unwrap().flatten().map(|entry| entry.path());
    let whole = records.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'));
    let record = |path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    whole.map(record).map(|record: polis_testbed::process::Record| record.identity).collect()
}

/// Ends a bed that nobody owns, if the test did not come to it.
struct Downed<'a>(&'a Path);

impl Drop for Downed<'_> {
    fn drop(&mut self) {
        let _already_down = Bed::down(self.0);
    }
}

/// A process that has nothing to do with any bed, and ends with the test.
struct Bystander(Child);

impl Drop for Bystander {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("a process of ours can be ended");
    }
}

#[tokio::test]
async fn a_released_bed_lives_on_is_found_again_and_ends_with_all_that_was_started_for_it() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("bed");
    let options = || Options { dir: Some(dir.clone()), ..Options::single_plane() };
    Box::pin(Bed::up(options())).await.unwrap().release().unwrap();
    let _in_any_case = Downed(&dir);
    let mut bystander = Bystander(Command::new("sleep").arg("600").spawn().unwrap());

    let found = Bed::attach(&dir).unwrap();
    comes_to_answer(&found.client(LONE).await.unwrap()).await;
    found.restart(&found.plane(LONE).unwrap().apiserver()).await.unwrap();
    comes_to_answer(&found.client(LONE).await.unwrap()).await;
    let second = Box::pin(Bed::up(options())).await.unwrap_err().to_string();
    assert!(second.starts_with("a bed is already up in "), "{second}");
    let started = identities(&found);
    drop(found);
    assert!(
        started.iter().all(|identity| identity.condition() == Condition::Running),
        "a guest ended the bed"
    );

    Bed::down(&dir).unwrap();

    assert!(started.iter().all(|identity| identity.condition() == Condition::Dead));
    assert!(!dir.exists());
    assert!(bystander.0.try_wait().unwrap().is_none(), "somebody else's process was ended");
    assert!(matches!(Bed::down(&dir), Err(Error::NoBed(_))));
}

#[tokio::test]
async fn a_component_that_dies_is_named_with_its_last_lines() {
    let bed = Box::pin(Bed::single_plane()).await.unwrap();
    let plane = bed.plane(LONE).unwrap().apiserver();
    bed.kill(&plane).unwrap();

    let death = bed.first_death().await.to_string();

    assert!(death.starts_with(&format!("{plane} died; the last lines of ")), "{death}");
    assert!(death.lines().count() > 3, "{death}");
}
