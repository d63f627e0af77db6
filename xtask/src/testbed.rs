//! `cargo xtask testbed`: a bed of real etcd, Kubernetes and Karmada processes, by hand.
//!
//! Each verb is a few lines around `polis-testbed`, which tests use directly.

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
use polis_testbed::{Bed, Kind, Options, Say, binaries::Binaries, home, process::Condition};
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build the programs into the cache, unless they are there.
    ///
    /// Needs: Go 1.25.10 or newer, 6 GB of disk. Takes: about 8 minutes on two cores, once; then nothing.
    Build,
    /// Start a bed and return while it runs on.
    ///
    /// Needs: the programs (built first where they are missing), about 2 GB of memory.
    /// Takes: 10 to 30 seconds once the programs are there.
    Up {
        /// Number of project planes.
        #[arg(long, value_name = "N", default_value_t = 1)]
        projects: usize,
        /// City codes of the cells, separated by commas.
        #[arg(long, value_name = "CITIES", value_delimiter = ',', default_value = "dfw,ord")]
        cells: Vec<String>,
        /// Stay, and end the bed on Ctrl-C.
        #[arg(long)]
        foreground: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Show every component: whether it runs, its process, ports and memory. Fails when one is dead.
    Status {
        #[command(flatten)]
        place: Place,
    },
    /// Print the log of a component.
    Logs {
        /// Its name, as `status` shows it.
        component: String,
        /// Go on printing what it says.
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Run kubectl on a plane, as admin.
    Kubectl {
        #[command(flatten)]
        place: Place,
        /// `hub`, `project-1` and so on, or a city in lower case.
        plane: String,
        /// What kubectl is told.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Print a kubeconfig with which to be a user on a plane, by a certificate of the bed's authority.
    Kubeconfig {
        /// The user.
        #[arg(long, value_name = "U")]
        user: String,
        /// A group of the user; can be given twice.
        #[arg(long = "group", value_name = "G")]
        groups: Vec<String>,
        /// `hub`, `project-1` and so on, or a city in lower case.
        plane: String,
        #[command(flatten)]
        place: Place,
    },
    /// End the bed: every process that was started for it, and nothing else. Removes its directory.
    Down {
        #[command(flatten)]
        place: Place,
    },
}

#[derive(clap::Args)]
struct Place {
    /// Directory of the bed; all its state is there. [default: a directory in the cache]
    #[arg(long, value_name = "D")]
    dir: Option<PathBuf>,
}

impl Place {
    fn dir(&self) -> Result<PathBuf> {
        Ok(match &self.dir {
            Some(dir) => dir.clone(),
            None => home::default_dir()?,
        })
    }

    fn bed(&self) -> Result<Bed> {
        Ok(Bed::attach(&self.dir()?)?)
    }
}

/// A failure is one sentence on stderr, whatever RUST_BACKTRACE says: most are wrong input, none is a mystery.
pub(crate) fn run(args: Args) -> Result<()> {
    if let Err(err) = perform(args.verb) {
        eprintln!("error: {err:#}");
        std::process::exit(1);
    }
    Ok(())
}

fn perform(verb: Verb) -> Result<()> {
    match verb {
        Verb::Build => build(),
        Verb::Up { projects, cells, foreground, place } => {
            let options = Options {
                dir: Some(place.dir()?),
                say: say(),
                cells: cells.into_iter().filter(|city| !city.is_empty()).collect(),
                ..Options::federation([]).with_projects(projects)
            };
            tokio::runtime::Runtime::new()?.block_on(up(options, foreground))
        }
        Verb::Status { place } => status(&place.bed()?),
        Verb::Logs { component, follow, place } => logs(&place.bed()?.component(&component)?.log, follow),
        Verb::Kubectl { plane, args, place } => {
            Err(place.bed()?.kubectl(&plane)?.args(args).exec()).context("failed to run kubectl")
        }
        Verb::Kubeconfig { user, groups, plane, place } => {
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            print!("{}", place.bed()?.kubeconfig_for(&plane, &user, &groups)?);
            Ok(())
        }
        Verb::Down { place } => {
            let dir = place.dir()?;
            Bed::down(&dir)?;
            println!("the bed in {} is down", dir.display());
            Ok(())
        }
    }
}

fn say() -> Say {
    Arc::new(|line| println!("{line}"))
}

fn build() -> Result<()> {
    let start = Instant::now();
    let binaries = Binaries::ensure(&say())?;
    println!("the programs are in {} ({:.0} s)", binaries.dir().display(), start.elapsed().as_secs_f64());
    Ok(())
}

/// Starts the bed; a signal at any moment ends it again, with everything that was started.
async fn up(options: Options, foreground: bool) -> Result<()> {
    options.check()?;
    let mut ended = Box::pin(ending()?);
    // First, so that the seconds shown are those of the bed.
    let programs = options.say.clone();
    tokio::task::spawn_blocking(move || Binaries::ensure(&programs)).await??;
    let start = Instant::now();
    println!("starting a bed: {}", options.planes().join(", "));
    let bed = tokio::select! {
        bed = Bed::up(options) => bed?,
        signal = &mut ended => bail!("{signal} before the bed was up: it was ended again"),
    };
    println!("the bed is up after {:.1} s\n\n{}", start.elapsed().as_secs_f64(), usage(&bed));
    if !foreground {
        bed.release()?;
        return Ok(());
    }
    println!("\nCtrl-C ends the bed.");
    let signal = tokio::select! {
        death = bed.first_death() => {
            println!("{death}\nThe other components go on until Ctrl-C.");
            ended.await
        }
        signal = &mut ended => signal,
    };
    println!("{signal}: ending the bed");
    Ok(())
}

/// Completes when the process is asked to end.
fn ending() -> io::Result<impl Future<Output = &'static str>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "interrupted",
            _ = terminate.recv() => "terminated",
        }
    })
}

fn usage(bed: &Bed) -> String {
    let dir = bed.dir();
    let at = match home::default_dir().is_ok_and(|default| default == dir) {
        true => String::new(),
        false => format!(" --dir {}", dir.display()),
    };
    let mut lines = vec!["planes:".to_owned()];
    for plane in bed.planes() {
        let kind = match &plane.kind {
            Kind::Project => "project".to_owned(),
            Kind::Hub => "federation hub".to_owned(),
            Kind::Cell { city } => format!("cell of {city}"),
        };
        let kubeconfig = dir.join("kubeconfig").join(&plane.name);
        lines.push(format!("  {:<12} {kind:<16} {}  {}", plane.name, plane.server, kubeconfig.display()));
    }
    let first = bed.planes().first().map(|plane| plane.name.clone()).unwrap_or_default();
    lines.push("use it:".to_owned());
    for example in [
        format!("kubectl{at} {first} get workloads -A"),
        format!("kubeconfig{at} --user alice --group staff {first}"),
        format!("status{at}"),
        format!("logs{at} etcd"),
        format!("down{at}"),
    ] {
        lines.push(format!("  cargo xtask testbed {example}"));
    }
    lines.push(format!(
        "  {}={} cargo test …   (tests then share this bed)",
        polis_testbed::suite::DIR,
        dir.display()
    ));
    lines.join("\n")
}

fn status(bed: &Bed) -> Result<()> {
    let components = bed.components()?;
    println!("{:<34} {:<8} {:>8} {:>9}  PORTS", "COMPONENT", "STATE", "PROCESS", "MEMORY");
    let mut total = 0;
    for component in &components {
        let spec = &component.record.spec;
        let state = match component.condition {
            Condition::Running => "running",
            Condition::Paused => "paused",
            Condition::Dead => "dead",
        };
        let memory =
            component.resident_kib.filter(|_| component.condition != Condition::Dead).unwrap_or_default();
        total += memory;
        let ports: Vec<String> = spec.ports.iter().map(u16::to_string).collect();
        let (pid, mib) = (component.record.identity.pid, memory / 1024);
        println!("{:<34} {state:<8} {pid:>8} {mib:>5} MiB  {}", spec.name, ports.join(","));
    }
    println!("{} components, {} MiB", components.len(), total / 1024);
    let dead: Vec<_> = components.iter().filter(|component| component.condition == Condition::Dead).collect();
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
            // `logs … | head` has read enough.
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
