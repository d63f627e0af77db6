//! `polis up`: a complete installation in one process.
//!
//! ```text
//!   data ─► planes (embedded API server) ─► bootstrap ─► supervisor ─► admin's kubeconfig ─► summary
//! ```
//!
//! It runs the same controllers as a production installation, on embedded planes.

mod admin;
mod admission;
mod audit;
mod bootstrap;
mod data;
mod durable;
mod encryption;
mod flags;
mod kubeconfig;
mod logs;
mod planes;
mod summary;
mod supervisor;

pub use data::default_path as default_data_dir;
pub use flags::Flags;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::FutureExt as _;
use indicatif::ProgressBar;
use polis_api::groups;
use polis_api::karmada::Cluster;
use polis_api::kube::api::ListParams;
use polis_api::kube::{Api, ResourceExt as _};
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_apiserver::{Access, Server, Storage};
use polis_runtime::Isolation;
use polis_tls::{Authority, ServerTls};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use admin::AdminKubeconfig;
use admission::InProcessWebhooks;
use data::DataDir;
use planes::{PlaneBackend, PlaneCrds, Planes};
use summary::Summary;
use supervisor::Supervisor;

/// Timeout of the start. Generous, because a laptop may be suspended in between.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Interval of the readiness checks during the start.
const READINESS_INTERVAL: Duration = Duration::from_millis(5);

/// Runs until SIGINT or SIGTERM.
pub fn run(flags: Flags) -> Result<()> {
    let binary = std::env::current_exe().context("failed to find the path of this program")?;
    if let Some(gap) = flags.check_isolation(&Isolation::of_host(&binary))? {
        tracing::warn!("{gap}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(flags))
}

async fn serve(flags: Flags) -> Result<()> {
    let start = Instant::now();
    let progress = progress();
    let crds = tokio::task::spawn_blocking(PlaneCrds::generate);
    let data = match (&flags.data_dir, flags.ephemeral) {
        (_, true) => DataDir::ephemeral()?,
        (Some(path), false) => DataDir::open(path)?,
        (None, false) => {
            let default_path =
                data::default_path().context("the home directory is unknown: set --data-dir")?;
            DataDir::open(&default_path)?
        }
    };
    flags.check_readable(data.folder())?;
    let authority = Arc::new(data.authority()?);
    let listener = listen(flags.listen).await?;
    let address = listener.local_addr()?;

    progress.set_message("opening the store");
    let reader = logs::Reader::default();
    let webhooks = InProcessWebhooks::default();
    let server = server(&flags, &data, &authority, webhooks.clone(), reader.clone()).await?;
    progress.set_message("creating planes");
    let prepared = prepare(&server, &flags, &data, crds.await?).await;
    let planes = prepared.map_err(|error| match server.failed().now_or_never() {
        Some(why) => store_failed(&data, &why),
        None => error,
    })?;

    report_suspended(&server, &flags)?;

    progress.set_message("starting controllers");
    let mut supervisor = Supervisor::start(&planes, &flags, &data, &webhooks)?;
    reader.init(
        server.clone(),
        supervisor.runtimes.iter().map(|(city, run)| (city.clone(), run.logs())).collect(),
    );
    let tls = ServerTls::renewing(authority.clone(), [address.ip().to_string(), "localhost".to_owned()])?;
    let failed = server.failed();
    let serving = tokio::spawn(async move { server.serve(listener, tls).await });
    let mut renewing = None;

    let shutdown_signal = shutdown_signal()?;
    tokio::pin!(shutdown_signal, failed);
    // When the store fails, instances are kept: the next start adopts them.
    let mut keep_instances = flags.keep_instances;
    let ready = tokio::time::timeout(
        READY_WITHIN,
        wait_until_ready(&planes, &flags.projects, &supervisor, &progress),
    );
    let outcome = tokio::select! {
        ready = ready => match ready {
            Ok(cities) => Ok(Some(cities)),
            Err(_) => {
                let within = READY_WITHIN.as_secs();
                Err(anyhow::anyhow!("Polis is not ready after {within} s; the last step was: {}", progress.message()))
            }
        },
        () = &mut shutdown_signal => Ok(None),
        why = &mut failed => {
            keep_instances = true;
            Err(store_failed(&data, &why))
        }
    };
    progress.finish_and_clear();
    let outcome = match outcome {
        Ok(Some(served)) => {
            let kubeconfig = admin_kubeconfig(&flags, &data, authority, address, &planes)?;
            let client = kubeconfig.write().await?;
            let summary = summary(&flags, &data, &kubeconfig, &planes);
            renewing = Some(tokio::spawn(kubeconfig.keep_valid(client)));
            let waiting = summary.cities.iter().filter(|city| !served.contains(city)).cloned().collect();
            println!("{}", Summary { took: start.elapsed(), waiting, ..summary });
            tokio::select! {
                failure = supervisor.failure() => Err(failure),
                () = &mut shutdown_signal => Ok(()),
                why = &mut failed => {
                    keep_instances = true;
                    Err(store_failed(&data, &why))
                }
            }
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if outcome.is_ok() {
        // `\r` overwrites the `^C` of a terminal. A closed stdout is ignored.
        let begin = if std::io::stdout().is_terminal() { "\r" } else { "" };
        let _closed = writeln!(std::io::stdout(), "{begin}{}", summary::stopping_message(keep_instances));
    }
    let shut_down = supervisor.shut_down(keep_instances).await;
    serving.abort();
    if let Some(renewing) = renewing {
        renewing.abort();
    }
    outcome.and(shut_down)
}

/// Creates the planes and applies the bootstrap manifests.
async fn prepare(server: &Server, flags: &Flags, data: &DataDir, crds: PlaneCrds) -> Result<Planes> {
    let known = data.in_creation_order(planes::known_cities(server));
    let planes = Planes::create(server.clone(), flags, &known, crds).await?;
    bootstrap::apply_all(&planes, &flags.projects).await?;
    admission::configure(&planes).await?;
    Ok(planes)
}

/// Says which planes have no admission of their own. A plane that does not exist is an error.
fn report_suspended(server: &Server, flags: &Flags) -> Result<()> {
    for (name, plane) in flags.suspend_admission.iter().zip(flags.suspended_planes()) {
        if !server.has_plane(&plane) {
            bail!(
                "--suspend-admission {name}: there is no such plane. Use the name of a project, hub, cell-<CITY> or platform"
            );
        }
        tracing::error!(
            plane = name,
            "the admission policies and webhooks that this plane holds are switched off by --suspend-admission; repair them, then start without it"
        );
    }
    Ok(())
}

/// The error of a store that can no longer be written.
fn store_failed(data: &DataDir, why: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "failed to write to the data directory {}: {why}; free disk space or check the disk, then start again. Acknowledged writes are not lost, and instances keep running",
        data.folder().display()
    )
}

/// A spinner with the current step; hidden if stderr is not a terminal.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message("starting");
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("failed to listen on {address}: stop the program that uses it, or set another address with --listen (port 0 selects a free port)")
    })
}

async fn server(
    flags: &Flags,
    data: &DataDir,
    authority: &Authority,
    webhooks: InProcessWebhooks,
    logs: logs::Reader,
) -> Result<Server> {
    let storage = if flags.ephemeral { Storage::Memory } else { Storage::Redb(data.path("store.redb")) };
    // A tenant with every right on its plane must not act as the platform there.
    let reserved_groups = [polis_apiserver::MASTERS, polis_apiserver::CONTROLLERS, groups::PREFIX];
    let mut access = Access::default().authority(authority.pem());
    access.reserved_groups = reserved_groups.map(str::to_owned).to_vec();
    access.token_keys = data.token_keys(flags.rotate_token_key)?;
    if let Some(audit) = flags.audit.open(data.folder())? {
        access = access.audit(audit);
    }
    let mut rotated = None;
    let mut builder = Server::builder()
        .storage(storage)
        .access(access)
        .webhooks(webhooks)
        .project_quota(flags.project_quota())
        .suspend_admission(flags.suspended_planes());
    if !flags.ephemeral {
        let keys = flags.encryption.keys(data.folder())?;
        rotated = flags.encryption.rotate_encryption_key.then(|| keys.current().to_owned());
        builder = builder.encryption(keys);
    }
    let builder = builder.subresource("compute.datumapis.com", "instances", "log", move |request| {
        logs.clone().answer(request)
    });
    // The message already contains the cause, which `{error:#}` would print a second time.
    let server = builder.build().await.map_err(|error| anyhow::anyhow!("{error}"))?;
    if let Some(id) = rotated {
        println!("{}", summary::rotated_message(&id));
    }
    Ok(server)
}

/// Waits until every engine is synced, every embedded Cluster is Ready, and every project accepts a workload
/// in the cities that have a Cluster on the hub. Returns these cities. The Clusters of an external hub may
/// get their city label later.
async fn wait_until_ready(
    planes: &Planes,
    projects: &[String],
    supervisor: &Supervisor,
    progress: &ProgressBar,
) -> Vec<String> {
    while let Some(waiting) = engines_not_ready(supervisor) {
        progress.set_message(waiting);
        tokio::time::sleep(READINESS_INTERVAL).await;
    }
    let cities = loop {
        match members(planes).await {
            Ok(cities) => break cities,
            Err(why) => progress.set_message(format!("waiting for the Clusters of the hub: {why}")),
        }
        tokio::time::sleep(READINESS_INTERVAL).await;
    };
    for project in projects.iter().filter(|_| !cities.is_empty()) {
        while let Err(why) = bootstrap::dry_run_workload(planes, project, &cities).await {
            progress.set_message(format!("waiting for project {project}: {why}"));
            tokio::time::sleep(READINESS_INTERVAL).await;
        }
    }
    cities
}

/// The cities that have a Cluster on the hub. For an embedded hub, all cities, once their Clusters are Ready.
async fn members(planes: &Planes) -> Result<Vec<String>, String> {
    let clusters: Api<Cluster> = Api::all(planes.client(&planes.hub, "up"));
    let members = clusters.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
    let cities = planes.cells.iter().map(|(city, _)| city.clone());
    if matches!(planes.hub, PlaneBackend::External(_)) {
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

/// The engines that are not ready, for the spinner.
fn engines_not_ready(supervisor: &Supervisor) -> Option<String> {
    let waiting = supervisor.engines.iter().filter(|(_, engine)| !engine.is_ready());
    let roles: Vec<&str> = waiting.map(|(role, _)| role.as_str()).collect();
    (!roles.is_empty()).then(|| format!("waiting for the controllers of {}", roles.join(", ")))
}

/// The kubeconfig of the administrator, with a context for each embedded plane.
fn admin_kubeconfig(
    flags: &Flags,
    data: &DataDir,
    authority: Arc<Authority>,
    address: SocketAddr,
    planes: &Planes,
) -> Result<AdminKubeconfig> {
    let is_embedded = |backend: &PlaneBackend| matches!(backend, PlaneBackend::Embedded(_));
    let cells = planes.cells.iter().filter(|(_, backend)| is_embedded(backend)).map(|(city, _)| city.clone());
    let entries = kubeconfig::entries(&flags.projects, &cells.collect::<Vec<_>>(), is_embedded(&planes.hub));
    let host = if address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { address.ip().to_string() };
    let merge_into = match flags.merge_kubeconfig {
        true => Some(
            kubeconfig::user_kubeconfig()
                .context("failed to find your kubeconfig: the home directory is unknown. Set $KUBECONFIG")?,
        ),
        false => None,
    };
    Ok(AdminKubeconfig {
        server: planes.server.clone(),
        authority,
        url: format!("https://{host}:{}", address.port()),
        entries,
        path: data.path("kubeconfig"),
        merge_into,
        validity: admin::VALIDITY,
    })
}

fn summary(flags: &Flags, data: &DataDir, kubeconfig: &AdminKubeconfig, planes: &Planes) -> Summary {
    Summary {
        url: kubeconfig.url.clone(),
        projects: flags.projects.clone(),
        cities: planes.cells.iter().map(|(city, _)| city.clone()).collect(),
        data: (!flags.ephemeral).then(|| data.folder().to_owned()),
        waiting: Vec::new(),
        suspended: flags.suspend_admission.clone(),
        kubeconfig: kubeconfig.path.clone(),
        took: Duration::ZERO,
    }
}

fn shutdown_signal() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
