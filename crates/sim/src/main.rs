//! `polis-sim`: runs simulations. `cargo xtask sim` starts it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Parser;
use polis_sim::crash_points::{crash_points, run_with_crash, scenarios};
use polis_sim::journal::Entry;
use polis_sim::{Detail, Plan, Report, run, shrink};

/// Runs that the search for a smaller plan may take.
const SHRINK_RUNS: usize = 60;

/// Runs the whole federation in one deterministic thread, with faults and checks.
#[derive(Parser)]
#[command(name = "polis-sim")]
struct Cli {
    /// Run this seed and print its timeline.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: print every request, response and watch event.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// With --seed: print nothing after this step.
    #[arg(long, requires = "seed", value_name = "STEP")]
    until: Option<usize>,
    /// Search for failing seeds for this long.
    #[arg(long, conflicts_with = "seed")]
    minutes: Option<u64>,
    /// Search this many seeds.
    #[arg(long, conflicts_with = "seed")]
    seeds: Option<u64>,
    /// Run each scenario with a crash after each write of each process.
    #[arg(long, conflicts_with = "seed")]
    crash_points: bool,
    /// The first seed of the search.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Seeds that run at the same time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Run each seed twice and compare the digests.
    #[arg(long)]
    twice: bool,
    /// Do not search for a smaller plan of a failing seed.
    #[arg(long)]
    no_shrink: bool,
}

fn main() -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    if let Ok(filter) = filter {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let cli = Cli::parse();
    match cli.seed {
        Some(seed) => replay(&cli, seed),
        None if cli.crash_points => crash_everywhere(),
        None => search(&cli),
    }
}

fn replay(cli: &Cli, seed: u64) -> Result<()> {
    let plan = Plan::generate(seed);
    let report = run(&plan, if cli.trace { Detail::Trace } else { Detail::Write })?;
    if cli.twice {
        compare(&plan, &report)?;
    }
    print_timeline(&report.entries, cli.until);
    print_summary(&report);
    if report.violations.is_empty() {
        return Ok(());
    }
    if !cli.no_shrink && !cli.trace {
        tell_smallest(&plan, &report)?;
    }
    bail!("seed {seed} breaks {} invariants", report.violations.len())
}

/// Runs the plan again. On another digest, prints the first difference.
fn compare(plan: &Plan, first: &Report) -> Result<()> {
    let again = run(plan, Detail::Trace)?;
    if again.digest == first.digest {
        println!("the second run has the same digest");
        return Ok(());
    }
    let first = run(plan, Detail::Trace)?;
    let differs = |(a, b): &(&Entry, &Entry)| (a.at, &a.text) != (b.at, &b.text);
    let pair = first.entries.iter().zip(&again.entries).find(differs);
    if let Some((a, b)) = pair {
        let from = a.step.saturating_sub(15);
        for entry in first.entries.iter().filter(|entry| entry.step >= from && entry.step < a.step) {
            println!("{entry}");
        }
        println!("first:  {a}\nsecond: {b}");
    }
    bail!("seed {}: two runs differ", plan.seed)
}

fn tell_smallest(plan: &Plan, report: &Report) -> Result<()> {
    let (smallest, report) = shrink(plan, report, SHRINK_RUNS)?;
    println!("\nThe smallest plan that fails in the same way, of {} steps:", smallest.steps.len());
    println!("  cities {}, projects {}", smallest.cities.join(" "), smallest.projects.join(" "));
    println!("  quota {}, noise {:?}", smallest.quota, smallest.noise);
    for step in &smallest.steps {
        println!("  after {:?}: {}", step.after, step.action);
    }
    println!("\nIts timeline:");
    print_timeline(&report.entries, None);
    print_summary(&report);
    Ok(())
}

fn print_timeline(entries: &[Entry], until: Option<usize>) {
    for entry in entries.iter().take_while(|entry| until.is_none_or(|until| entry.step <= until)) {
        println!("{entry}");
    }
}

fn print_summary(report: &Report) {
    println!(
        "seed {}: {} requests, {} writes, {} s simulated, {} steps, digest {:016x}",
        report.seed,
        report.requests,
        report.writes,
        report.simulated.as_secs(),
        report.steps,
        report.digest
    );
    for violation in &report.violations {
        println!("BROKEN {violation}");
    }
}

/// Runs each scenario with a crash after each write of each process.
fn crash_everywhere() -> Result<()> {
    let mut broken = 0;
    for (name, plan) in scenarios() {
        let start = Instant::now();
        let points = crash_points(&plan)?;
        for point in &points {
            let report = run_with_crash(&plan, point)?;
            for violation in &report.violations {
                println!("{name}: {} crashes after write {}: {violation}", point.0, point.1);
            }
            broken += usize::from(!report.violations.is_empty());
        }
        println!("{name}: {} crash points in {:.1} s", points.len(), start.elapsed().as_secs_f64());
    }
    anyhow::ensure!(broken == 0, "{broken} crash points break an invariant");
    Ok(())
}

/// The figures of a search.
#[derive(Default)]
struct Totals {
    seeds: u64,
    requests: usize,
    simulated: Duration,
    failed: Vec<(u64, String)>,
}

fn search(cli: &Cli) -> Result<()> {
    let start = Instant::now();
    let deadline = cli.minutes.map(|minutes| start + Duration::from_secs(minutes * 60));
    let end = match (cli.seeds, deadline) {
        (Some(seeds), _) => cli.from + seeds,
        (None, Some(_)) => u64::MAX,
        (None, None) => cli.from + 100,
    };
    let (next, totals) = (AtomicU64::new(cli.from), Mutex::new(Totals::default()));
    std::thread::scope(|scope| {
        for _ in 0..cli.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return;
                    }
                    let outcome = run_seed(seed, cli.twice);
                    record(&mut totals.lock().expect("no panic while locked"), seed, outcome);
                }
            });
        }
    });
    let totals = totals.into_inner().expect("no panic while locked");
    let took = start.elapsed().as_secs_f64();
    println!(
        "{} seeds in {took:.1} s ({:.0} an hour), {} requests, {:.1} simulated hours ({:.0} simulated seconds per second), {} failed",
        totals.seeds,
        totals.seeds as f64 * 3600.0 / took,
        totals.requests,
        totals.simulated.as_secs_f64() / 3600.0,
        totals.simulated.as_secs_f64() / took,
        totals.failed.len()
    );
    match totals.failed.first() {
        None => Ok(()),
        Some((seed, _)) => bail!("replay one with `cargo xtask sim --seed {seed}`"),
    }
}

fn run_seed(seed: u64, twice: bool) -> Result<Report> {
    let plan = Plan::generate(seed);
    let report = run(&plan, Detail::Timeline)?;
    if twice {
        let again = run(&plan, Detail::Timeline)?;
        anyhow::ensure!(again.digest == report.digest, "two runs have different digests");
    }
    Ok(report)
}

fn record(totals: &mut Totals, seed: u64, outcome: Result<Report>) {
    totals.seeds += 1;
    let why = match outcome {
        Ok(report) => {
            totals.requests += report.requests;
            totals.simulated += report.simulated;
            let violations = report.violations.iter().map(ToString::to_string);
            violations.collect::<Vec<_>>().join("\n    ")
        }
        Err(error) => format!("{error:#}"),
    };
    if !why.is_empty() {
        println!("seed {seed} failed:\n    {why}");
        totals.failed.push((seed, why));
    }
}
