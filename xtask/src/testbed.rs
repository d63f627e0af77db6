//! `cargo xtask testbed`: starts and inspects a test cluster of real etcd, Kubernetes and Karmada processes.
//!
//! Each command is a few lines around `polis-testbed`, which tests use directly.

use std::{
    fs::File,
    io::{self, IsTerminal, Read, Seek, SeekFrom, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use polis_testbed::{
    Options, PlaneKind, ProgressFn, TestCluster, binaries::Binaries, process::ProcessState, state_dir,
};
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: TestbedCommand,
}

#[derive(Subcommand)]
enum TestbedCommand {
    /// Build the programs into the cache, unless they are cached.
    ///
    /// Needs: Go 1.25.10 or newer, 6 GB of disk. Takes: about 8 minutes on two cores, once; then nothing.
    Build,
    /// Start a test cluster that keeps running in the background.
    ///
    /// Needs: the programs (built first if they are missing), about 2 GB of memory.
    /// Takes: 10 to 30 seconds once the programs are built.
    Up {
        /// Number of project planes.
        #[arg(long, value_name = "N", default_value_t = 1)]
        projects: usize,
        /// City codes of the cells, separated by commas.
        #[arg(long, value_name = "CITIES", value_delimiter = ',', default_value = "dfw,ord")]
        cells: Vec<String>,
        /// Stay in the foreground, and stop the test cluster on Ctrl-C.
        #[arg(long)]
        foreground: bool,
        #[command(flatten)]
        location: Location,
    },
    /// Show every component: its state, process, ports and memory. Fails when one is dead.
    Status {
        #[command(flatten)]
        location: Location,
    },
    /// Print the log of a component.
    Logs {
        /// Its name, as `status` shows it.
        component: String,
        /// Keep printing new lines.
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        location: Location,
    },
    /// Run kubectl on a plane, as admin.
    Kubectl {
        #[command(flatten)]
        location: Location,
        /// `hub`, `project-1` and so on, or a city in lower case.
        plane: String,
        /// Arguments of kubectl.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Print a kubeconfig for a user on a plane, with a certificate of the test cluster's certificate
    /// authority.
    Kubeconfig {
        /// The user.
        #[arg(long, value_name = "U")]
        user: String,
        /// A group of the user; can be repeated.
        #[arg(long = "group", value_name = "G")]
        groups: Vec<String>,
        /// `hub`, `project-1` and so on, or a city in lower case.
        plane: String,
        #[command(flatten)]
        location: Location,
    },
    /// Stop the test cluster: every process that was started for it, and nothing else. Deletes its directory.
    Down {
        #[command(flatten)]
        location: Location,
    },
}

#[derive(clap::Args)]
struct Location {
    /// Directory of the test cluster with all its state. [default: a directory in the cache]
    #[arg(long, value_name = "D")]
    dir: Option<PathBuf>,
}

impl Location {
    fn dir(&self) -> Result<PathBuf> {
        Ok(match &self.dir {
            Some(dir) => dir.clone(),
            None => state_dir::default_dir()?,
        })
    }

    fn cluster(&self) -> Result<TestCluster> {
        Ok(TestCluster::attach(&self.dir()?)?)
    }
}

/// Prints an error as one sentence, without a backtrace: most errors are wrong input.
pub(crate) fn run(args: Args) -> Result<()> {
    if let Err(err) = run_command(args.command) {
        eprintln!("error: {err:#}");
        std::process::exit(1);
    }
    Ok(())
}

fn run_command(command: TestbedCommand) -> Result<()> {
    match command {
        TestbedCommand::Build => build(),
        TestbedCommand::Up { projects, cells, foreground, location } => {
            let options = Options {
                dir: Some(location.dir()?),
                progress: progress(),
                cells: cells.into_iter().filter(|city| !city.is_empty()).collect(),
                ..Options::federation([]).with_projects(projects)
            };
            tokio::runtime::Runtime::new()?.block_on(up(options, foreground))
        }
        TestbedCommand::Status { location } => status(&location.cluster()?),
        TestbedCommand::Logs { component, follow, location } => {
            logs(&location.cluster()?.component(&component)?.log, follow)
        }
        TestbedCommand::Kubectl { plane, args, location } => {
            Err(location.cluster()?.kubectl(&plane)?.args(args).exec()).context("failed to run kubectl")
        }
        TestbedCommand::Kubeconfig { user, groups, plane, location } => {
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            print!("{}", location.cluster()?.kubeconfig_for(&plane, &user, &groups)?);
            Ok(())
        }
        TestbedCommand::Down { location } => {
            let dir = location.dir()?;
            TestCluster::down(&dir)?;
            println!("the test cluster in {} is down", dir.display());
            Ok(())
        }
    }
}

fn progress() -> ProgressFn {
    Arc::new(|line| println!("{line}"))
}

fn build() -> Result<()> {
    let start = Instant::now();
    let binaries = Binaries::ensure(&progress())?;
    println!("the programs are in {} ({:.0} s)", binaries.dir().display(), start.elapsed().as_secs_f64());
    Ok(())
}

/// Starts the test cluster; a signal at any time stops it with all its processes.
async fn up(options: Options, foreground: bool) -> Result<()> {
    options.check()?;
    let mut stop_signal = Box::pin(stop_signal()?);
    // Before the timer starts, so that it measures only the start of the test cluster.
    let programs = options.progress.clone();
    tokio::task::spawn_blocking(move || Binaries::ensure(&programs)).await??;
    let start = Instant::now();
    println!("starting a test cluster: {}", options.planes().join(", "));
    let cluster = tokio::select! {
        cluster = TestCluster::up(options) => cluster?,
        signal = &mut stop_signal => bail!("{signal} before the test cluster was up: it was stopped again"),
    };
    println!("the test cluster is up after {:.1} s\n\n{}", start.elapsed().as_secs_f64(), usage(&cluster));
    if !foreground {
        cluster.release()?;
        return Ok(());
    }
    println!("\nCtrl-C stops the test cluster.");
    let signal = tokio::select! {
        exit = cluster.first_exit() => {
            println!("{exit}\nThe other components keep running until Ctrl-C.");
            stop_signal.await
        }
        signal = &mut stop_signal => signal,
    };
    println!("{signal}: stopping the test cluster");
    Ok(())
}

/// Resolves when the process receives SIGINT or SIGTERM.
fn stop_signal() -> io::Result<impl Future<Output = &'static str>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "interrupted",
            _ = terminate.recv() => "terminated",
        }
    })
}

fn usage(cluster: &TestCluster) -> String {
    let dir = cluster.dir();
    let at = match state_dir::default_dir().is_ok_and(|default| default == dir) {
        true => String::new(),
        false => format!(" --dir {}", dir.display()),
    };
    let mut lines = vec!["planes:".to_owned()];
    for plane in cluster.planes() {
        let kind = match &plane.kind {
            PlaneKind::Project => "project".to_owned(),
            PlaneKind::Hub => "federation hub".to_owned(),
            PlaneKind::Cell { city } => format!("cell of {city}"),
        };
        let kubeconfig = dir.join("kubeconfig").join(&plane.name);
        lines.push(format!("  {:<12} {kind:<16} {}  {}", plane.name, plane.server, kubeconfig.display()));
    }
    let first = cluster.planes().first().map(|plane| plane.name.clone()).unwrap_or_default();
    lines.push("usage:".to_owned());
    for example in [
        format!("kubectl{at} {first} get workloads -A"),
        format!("kubeconfig{at} --user alice --group developers {first}"),
        format!("status{at}"),
        format!("logs{at} etcd"),
        format!("down{at}"),
    ] {
        lines.push(format!("  cargo xtask testbed {example}"));
    }
    lines.push(format!(
        "  {}={} cargo test …   (tests then share this test cluster)",
        polis_testbed::suite::DIR,
        dir.display()
    ));
    lines.join("\n")
}

fn status(cluster: &TestCluster) -> Result<()> {
    let components = cluster.components()?;
    println!("{:<34} {:<8} {:>8} {:>9}  PORTS", "COMPONENT", "STATE", "PROCESS", "MEMORY");
    let mut total = 0;
    for component in &components {
        let spec = &component.record.spec;
        let state = match component.state {
            ProcessState::Running => "running",
            ProcessState::Paused => "paused",
            ProcessState::Dead => "dead",
        };
        let memory =
            component.resident_kib.filter(|_| component.state != ProcessState::Dead).unwrap_or_default();
        total += memory;
        let ports: Vec<String> = spec.ports.iter().map(u16::to_string).collect();
        let (pid, mib) = (component.record.process.pid, memory / 1024);
        println!("{:<34} {state:<8} {pid:>8} {mib:>5} MiB  {}", spec.name, ports.join(","));
    }
    println!("{} components, {} MiB", components.len(), total / 1024);
    let dead: Vec<_> = components.iter().filter(|component| component.state == ProcessState::Dead).collect();
    for component in &dead {
        println!(
            "\n{} is dead; the last lines of {}:\n{}",
            component.record.spec.name,
            component.log.display(),
            component.tail
        );
    }
    if !dead.is_empty() {
        bail!("{} of {} components are dead", dead.len(), components.len());
    }
    Ok(())
}

fn logs(path: &Path, follow: bool) -> Result<()> {
    let mut log = File::open(path).with_context(|| format!("failed to read {}", path.display()))?;
    let mut out = io::stdout().lock();
    loop {
        let mut text = Vec::new();
        log.read_to_end(&mut text)?;
        match out.write_all(&text).and_then(|()| out.flush()) {
            // The reader of a pipe such as `logs … | head` has closed it.
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            outcome => outcome?,
        }
        if !follow {
            if !out.is_terminal() || text.ends_with(b"\n") {
                return Ok(());
            }
            return Ok(writeln!(out)?);
        }
        let here = log.stream_position()?;
        log.seek(SeekFrom::Start(here))?;
        std::thread::sleep(Duration::from_millis(200));
    }
}
