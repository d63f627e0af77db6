//! `polis up`: the whole federation in one process.
//!
//! ```text
//!   data ─► planes (embedded API server) ─► furniture ─► staff ─► summary
//! ```
//!
//! The same controllers as anywhere else, on planes of its own: they cannot tell.

mod admission;
mod data;
mod flags;
mod furniture;
mod kept;
mod kubeconfig;
mod logs;
mod planes;
mod staff;
mod summary;

pub use data::usual as usual_data_dir;
pub use flags::Flags;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::FutureExt as _;
use indicatif::ProgressBar;
use polis_api::karmada::Cluster;
use polis_api::kube::api::ListParams;
use polis_api::kube::{Api, ResourceExt as _};
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_apiserver::{Access, Authority, Server, Storage, Tls};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use admission::Doorway;
use data::DataDir;
use planes::{Kinds, Planes, Reached};
use staff::Staff;
use summary::Summary;

/// Longest time until everything is ready; a machine that is asleep half of the time takes it.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// How often readiness is looked at while starting.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Runs until it is told to stop.
pub fn run(flags: Flags) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(flags))
}

async fn serve(flags: Flags) -> Result<()> {
    let start = Instant::now();
    let progress = progress();
    let kinds = tokio::task::spawn_blocking(Kinds::derive);
    let data = match (&flags.data_dir, flags.ephemeral) {
        (_, true) => DataDir::passing()?,
        (Some(path), false) => DataDir::open(path)?,
        (None, false) => {
            let usual = data::usual().context("no home directory is known: name a folder with --data-dir")?;
            DataDir::open(&usual)?
        }
    };
    let authority = data.authority()?;
    let listener = listen(flags.listen).await?;
    let address = listener.local_addr()?;

    progress.set_message("opening the store");
    let reader = logs::Reader::default();
    let doorway = Doorway::default();
    let server = server(&flags, &data, &authority, doorway.clone(), reader.clone()).await?;
    progress.set_message("making planes");
    let prepared = prepare(&server, &flags, &data, kinds.await?).await;
    let planes = prepared.map_err(|error| match server.failed().now_or_never() {
        Some(why) => full(&data, &why),
        None => error,
    })?;

    progress.set_message("putting controllers to work");
    let mut staff = Staff::hire(&planes, &data, &doorway)?;
    reader
        .learn(server.clone(), staff.runtimes.iter().map(|(city, run)| (city.clone(), run.logs())).collect());
    let tls = Tls::new(&authority.server(&[&address.ip().to_string(), "localhost"])?, Some(authority.pem()))?;
    let failed = server.failed();
    let serving = tokio::spawn(async move { server.serve(listener, tls).await });

    let told_to_stop = told_to_stop()?;
    tokio::pin!(told_to_stop, failed);
    // What runs is kept when the store fails: whoever starts again once there is room finds it running.
    let mut keep_instances = flags.keep_instances;
    let ready = tokio::time::timeout(READY_WITHIN, ready(&planes, &flags.projects, &staff, &progress));
    let outcome = tokio::select! {
        ready = ready => match ready {
            Ok(cities) => Ok(Some(cities)),
            Err(_) => {
                let within = READY_WITHIN.as_secs();
                Err(anyhow::anyhow!("Polis was not ready within {within} s: it was {}", progress.message()))
            }
        },
        () = &mut told_to_stop => Ok(None),
        why = &mut failed => {
            keep_instances = true;
            Err(full(&data, &why))
        }
    };
    progress.finish_and_clear();
    let outcome = match outcome {
        Ok(Some(served)) => {
            let summary = write_kubeconfig(&flags, &data, &authority, address, &planes)?;
            let waiting = summary.cities.iter().filter(|city| !served.contains(city)).cloned().collect();
            println!("{}", Summary { took: start.elapsed(), waiting, ..summary });
            tokio::select! {
                trouble = staff.trouble() => Err(trouble),
                () = &mut told_to_stop => Ok(()),
                why = &mut failed => {
                    keep_instances = true;
                    Err(full(&data, &why))
                }
            }
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if outcome.is_ok() {
        // At a terminal, over the `^C` that was typed; whoever started it may have gone, and that is no reason to stay.
        let begin = if std::io::stdout().is_terminal() { "\r" } else { "" };
        let _nobody_listens = writeln!(std::io::stdout(), "{begin}{}", summary::farewell(keep_instances));
    }
    let dismissed = staff.dismiss(keep_instances).await;
    serving.abort();
    outcome.and(dismissed)
}

/// The planes, with everything on them that an operator would put there.
async fn prepare(server: &Server, flags: &Flags, data: &DataDir, kinds: Kinds) -> Result<Planes> {
    let known = data.in_order(planes::known_cities(server));
    let planes = Planes::make(server.clone(), flags, &known, kinds).await?;
    furniture::place(&planes, &flags.projects).await?;
    admission::configure(&planes).await?;
    Ok(planes)
}

/// A store that cannot be written any more.
fn full(data: &DataDir, why: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "the data directory {} cannot be written any more: {why}; make room there if it is full, or see what the disk says. Nothing that was answered is lost, and instances run on",
        data.folder().display()
    )
}

/// Says what is going on, if there is somebody to see it.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message("starting");
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}: stop what uses it, or choose another with --listen (port 0 takes a free one)")
    })
}

async fn server(
    flags: &Flags,
    data: &DataDir,
    authority: &Authority,
    doorway: Doorway,
    logs: logs::Reader,
) -> Result<Server> {
    let storage = if flags.ephemeral { Storage::Memory } else { Storage::Redb(data.path("store.redb")) };
    let access = Access::default().authority(authority.pem()).signing_key(&data.token_key()?);
    let builder = Server::builder().storage(storage).access(access).webhooks(doorway);
    let builder = builder.subresource("compute.datumapis.com", "instances", "log", move |request| {
        logs.clone().answer(request)
    });
    // Its words have the cause in them; as a source it would be said twice.
    builder.build().await.map_err(|error| anyhow::anyhow!("{error}"))
}

/// Waits until every engine sees its planes, every cell is a member, and a workload would be taken in every city that the
/// hub has a member for: these are returned. An operator labels a member of a real hub last, when everything runs.
async fn ready(planes: &Planes, projects: &[String], staff: &Staff, progress: &ProgressBar) -> Vec<String> {
    while let Some(missing) = missing(staff) {
        progress.set_message(missing);
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let cities = loop {
        match members(planes).await {
            Ok(cities) => break cities,
            Err(why) => progress.set_message(format!("waiting for the members of the hub: {why}")),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    for project in projects.iter().filter(|_| !cities.is_empty()) {
        while let Err(why) = furniture::would_run(planes, project, &cities).await {
            progress.set_message(format!("waiting for project {project}: {why}"));
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    cities
}

/// The cities that the hub has a member for. Those of an embedded hub are all there once they are ready.
async fn members(planes: &Planes) -> Result<Vec<String>, String> {
    let clusters: Api<Cluster> = Api::all(planes.client(&planes.hub, "up"));
    let members = clusters.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
    let cities = planes.cells.iter().map(|(city, _)| city.clone());
    if matches!(planes.hub, Reached::There(_)) {
        let label = |cluster: &Cluster| cluster.labels().get(TOPOLOGY_CITY_CODE).cloned();
        let served: Vec<String> = members.iter().filter_map(label).collect();
        return Ok(cities.filter(|city| served.contains(city)).collect());
    }
    match members.iter().find(|cluster| !is_ready(cluster)) {
        Some(cluster) => Err(format!("{} is not ready", cluster.name_any())),
        None => Ok(cities.collect()),
    }
}

fn is_ready(cluster: &Cluster) -> bool {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What is not ready, in words.
fn missing(staff: &Staff) -> Option<String> {
    let waiting = staff.engines.iter().filter(|(_, engine)| !engine.is_ready());
    let words: Vec<String> =
        waiting.map(|(role, engine)| format!("{role}, for {:?}", engine.readiness())).collect();
    (!words.is_empty()).then(|| format!("waiting: {}", words.join("; ")))
}

fn write_kubeconfig(
    flags: &Flags,
    data: &DataDir,
    authority: &Authority,
    address: SocketAddr,
    planes: &Planes,
) -> Result<Summary> {
    let here = |reached: &Reached| matches!(reached, Reached::Here(_));
    let cells = planes.cells.iter().filter(|(_, reached)| here(reached)).map(|(city, _)| city.clone());
    let entries = kubeconfig::entries(&flags.projects, &cells.collect::<Vec<_>>(), here(&planes.hub));
    let host = if address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { address.ip().to_string() };
    let url = format!("https://{host}:{}", address.port());
    let client = authority.client("polis-admin", &[polis_apiserver::MASTERS])?;
    let text = kubeconfig::render(&url, authority.pem(), &client, &entries);
    let path = data.path("kubeconfig");
    data::write_private(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    if flags.merge_kubeconfig {
        let Some(own) = kubeconfig::own() else {
            bail!("no home directory is known, so your kubeconfig cannot be found: name it in $KUBECONFIG")
        };
        kubeconfig::merge(&text, &own)?;
    }
    Ok(Summary {
        url,
        projects: flags.projects.clone(),
        cities: planes.cells.iter().map(|(city, _)| city.clone()).collect(),
        data: (!flags.ephemeral).then(|| data.folder().to_owned()),
        waiting: Vec::new(),
        kubeconfig: path,
        took: Duration::ZERO,
    })
}

fn told_to_stop() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
