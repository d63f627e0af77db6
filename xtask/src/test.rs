//! `cargo xtask test`: every check of this repository, cheapest first.
//!
//! Each check is a command. Its output is printed, and the summary lines of the test runners in it are added
//! up. A check without tests (format, lints, drift) counts as one. All checks run, even after a failure, so
//! that one run covers all problems.
//!
//! Suites mostly wait, for processes to start and for quiet periods to pass, so those on embedded planes and
//! those on real engines run in parallel, in two lanes; a lane prints the output of a command when it has
//! ended.
//!
//! A test that fails among others runs once more by itself. If it passes then, it lacked CPU or shares state
//! with other tests: that is a defect, and it is listed at the end, but the run does not fail.

use std::{
    env,
    io::{BufRead, BufReader},
    process::Stdio,
    sync::Mutex,
    thread,
    time::Instant,
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::advisories::{self, Advisories};
use crate::crds::{self, root};
use crate::e2e::{CrdVersion, DeploymentMode, PlaneBackend, RENDERED_SCENARIOS, SuiteConfig};
use crate::go_tool::GoTool;
use crate::{alerts, chart, dashboards, graph, outside, scenarios, words, workflows};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out the suites on real engines.
    #[arg(long)]
    fast: bool,
}

/// Suites on real etcd, kube-apiserver and Karmada: test target, filters (none for all tests), and what it
/// covers. They require the feature `engines` of their crates.
///
/// The other groups of `scenarios` take too many minutes (most outages, crash points, replicas, quiescence);
/// run those with `cargo xtask e2e`.
const ENGINE_SUITES: &[(&str, &[&str], &str)] = &[
    ("kinds", &[], "our CRDs on kube-apiserver, and a table of manifests"),
    ("kstatus", &[], "how Flux and Argo CD see each state of a rollout, with the library kstatus"),
    ("packaging", &[], "every overlay applied, and the manager run as in its Deployment"),
    ("propagation", &[], "deployments through Karmada and back"),
    ("survival", &[], "the test bed itself: kills, restarts, two at once"),
    ("real", &[], "the engine's lists and watches against kube-apiserver"),
    ("admitted", &[], "every admission rule through kubectl, with the webhooks behind kube-apiserver"),
    ("quota_on_real", &[], "quota, with a kube-apiserver as the project's plane"),
    ("karmada", &[], "the suite of the embedded federation, on Karmada"),
    ("joined", &[], "a real API server as a member of the embedded federation"),
    ("planes", &[], "what the scenarios require of Karmada"),
    ("differential", &[], "the embedded API server and kube-apiserver, response by response"),
    ("kubectl", &[], "an unmodified kubectl on the embedded API server"),
    ("go_controllers", &[], "Karmada and kube-controller-manager on an embedded plane"),
    ("laptop", &[], "polis up with a real Karmada, and with a real cell behind its own hub"),
    (
        "scenarios",
        &[
            "compatibility::",
            "federation::",
            "ownership::",
            "bad_input::",
            "confinement::",
            "rbac::",
            "city_guard::",
            "cells_of_a_city::",
            "upgrade::",
            "outages::nothing_is_lost_when_the_hub_is_down",
            "outages::nothing_is_lost_when_the_management_process_is_killed",
        ],
        "the whole pipeline over project, hub and cells",
    ),
];

/// The groups of `scenarios` on embedded planes. Crash points, replicas and quiescence take too many minutes,
/// and a busy machine exceeds the request budgets; run those with `cargo xtask e2e --on embedded`.
const EMBEDDED_SCENARIOS: &[&str] = &[
    "compatibility::",
    "federation::",
    "ownership::",
    "bad_input::",
    "confinement::",
    "outages::",
    "rbac::",
    "city_guard::",
    "cells_of_a_city::",
    "upgrade::",
];

/// The groups of `scenarios` with the current manager on planes with the CRDs of the last release.
const SKEWED_SCENARIOS: &[&str] = &["federation::", "upgrade::"];

/// Deployment modes of the suite besides the default: with the Deployments, permissions and files of the
/// overlays, on real engines.
const RENDERED: &[DeploymentMode] = &[DeploymentMode::Overlays, DeploymentMode::SingleCluster];

/// Sets of planes of which some are real.
const MIXED: &[PlaneBackend] = &[PlaneBackend::RealCell, PlaneBackend::RealHub];

/// The groups of `scenarios` that run there: those that cross planes.
const MIXED_SCENARIOS: &[&str] = &["federation::"];

pub(crate) fn run(args: Args) -> Result<()> {
    let mut tally = Tally::default();
    let nextest = succeeds("cargo", &["nextest", "--version"]);
    let runner: &[&str] = if nextest { &["nextest", "run", "--retries=1"] } else { &["test"] };

    tally.command("format", &["fmt", "--all", "--check"]);
    tally.command(
        "lints",
        &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"],
    );
    tally.outcome("generated files", crds::check());
    tally.outcome("dashboards", dashboards::check());
    tally.outcome("words", words::check());
    tally.outcome("scenario ids", scenarios::check());
    tally.outcome("crate graph", graph::check());
    dependencies(&mut tally);
    match metadata() {
        Err(err) => tally.outcome("unit tests", Err(err)),
        Ok(metadata) => {
            tally.outcome("cargo run is polis", only_program(&metadata));
            let targets = targets_without_features(&metadata);
            // All features in every step, so that nothing is compiled twice.
            let chosen = targets.iter().flat_map(|target| ["--test", target.as_str()]);
            let chosen: Vec<&str> = ["--lib", "--bins"].into_iter().chain(chosen).collect();
            let all = ["--workspace", "--all-features", "--no-fail-fast"];
            tally.command("unit tests", &[runner, &all, &chosen].concat());
        }
    }
    tally.command("doc tests", &["test", "--workspace", "--all-features", "--doc"]);
    let lanes: [fn(&mut Tally, bool); 2] = [embedded, engines];
    let lanes = lanes.map(|lane| {
        thread::spawn(move || {
            let mut tally = Tally { in_lane: true, ..Tally::default() };
            lane(&mut tally, args.fast);
            tally
        })
    });
    for lane in lanes {
        tally.add(lane.join().expect("a lane ends with its commands"));
    }

    for test in &tally.unsteady {
        println!("unsteady: {test} failed among others and passed by itself");
    }
    for failure in &tally.failures {
        println!("failed: {failure}");
    }
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    if tally.failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

/// Licences, sources and advisories of the dependencies, with cargo-deny.
fn dependencies(tally: &mut Tally) {
    if !succeeds("cargo", &["deny", "--version"]) {
        let why = "cargo-deny is not installed: cargo install --locked cargo-deny";
        return tally.skip("checks of dependencies (licences, advisories)", 2, why);
    }
    tally.command("licences", &["deny", "check", "licenses", "bans", "sources"]);
    let fetched = succeeds("cargo", &["deny", "fetch", "db"]);
    match Advisories::choose(fetched, advisories::has_copy()) {
        Advisories::Current => tally.command("advisories", &["deny", "check", "advisories"]),
        Advisories::Copy => {
            println!(
                "\nadvisories: offline, so the copy of an earlier run is used; newer advisories are not in it"
            );
            tally.command("advisories", &["deny", "--offline", "check", "advisories"]);
        }
        Advisories::Unavailable(why) if in_ci() => tally.outcome("advisories", Err(anyhow!(why))),
        Advisories::Unavailable(why) => tally.skip("check of advisories", 1, why),
    }
}

/// The metadata of the workspace.
pub(crate) fn metadata() -> Result<Value> {
    let metadata = outside::command("cargo")
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(root())
        .output()
        .context("failed to start cargo")?;
    serde_json::from_slice(&metadata.stdout).context("failed to parse the output of cargo metadata")
}

fn targets<'a>(packages: impl IntoIterator<Item = &'a Value>, kind: &str) -> Vec<&'a Value> {
    let each = |value: &'a Value| value.as_array().into_iter().flatten();
    let targets = packages.into_iter().flat_map(|package| each(&package["targets"]));
    targets.filter(|target| each(&target["kind"]).any(|known| known == kind)).collect()
}

/// Checks that `cargo run`, the first command of the README, has only one binary to run.
fn only_program(metadata: &Value) -> Result<()> {
    let each = |value: &'static str| metadata[value].as_array().into_iter().flatten();
    let defaults: Vec<&Value> = each("workspace_default_members").collect();
    let packages = each("packages").filter(|package| defaults.contains(&&package["id"]));
    let names: Vec<&str> = targets(packages, "bin").iter().filter_map(|bin| bin["name"].as_str()).collect();
    if names == ["polis"] {
        return Ok(());
    }
    bail!(
        "`cargo run` must run polis, but the default members have the binaries {names:?}: see default-members in Cargo.toml"
    )
}

/// Test targets without required features.
fn targets_without_features(metadata: &Value) -> Vec<String> {
    let tests = targets(metadata["packages"].as_array().into_iter().flatten(), "test");
    let needs =
        |target: &&&Value| target["required-features"].as_array().is_some_and(|needs| !needs.is_empty());
    let plain = tests.iter().filter(|target| !needs(target));
    plain.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect()
}

/// The suites on embedded planes. The scenarios start the `polis` binary, which the unit tests have built.
fn embedded(tally: &mut Tally, _fast: bool) {
    let embedded = SuiteConfig::on(PlaneBackend::Embedded);
    suite(tally, "planes", &[], "what the scenarios require of the federation", embedded);
    let covers = "the whole pipeline over project, hub and cells";
    suite(tally, "scenarios", EMBEDDED_SCENARIOS, covers, embedded);
    let skewed = SuiteConfig { kinds: CrdVersion::Released, ..embedded };
    suite(
        tally,
        "scenarios",
        SKEWED_SCENARIOS,
        "the current manager and the CRDs of the last release",
        skewed,
    );
}

/// The checks that need Go programs: alerts with promtool, workflows with actionlint, and the suites on real
/// engines. Prints why it skips them.
fn engines(tally: &mut Tally, fast: bool) {
    let suites = ENGINE_SUITES.len() + RENDERED.len() + MIXED.len();
    let go = polis_testbed::go::find().map(drop);
    let can_build = !fast && go.is_ok();
    tools(tally, "alerts", &alerts::PROMTOOL, can_build, alerts::check);
    tools(tally, "chart", &chart::HELM, can_build, chart::check);
    tools(tally, "workflows", &workflows::ACTIONLINT, can_build, workflows::check);
    const REAL: &str = "suites on real engines";
    if fast {
        return tally.skip(REAL, suites, "--fast was given");
    }
    if let Err(missing) = go {
        if in_ci() {
            return tally.outcome(REAL, Err(missing.into()));
        }
        return tally.skip(REAL, suites, &missing.to_string());
    }
    tally.command("real engines", &["xtask", "testbed", "build"]);
    for (target, parts, covers) in ENGINE_SUITES {
        suite(tally, target, parts, covers, SuiteConfig::on(PlaneBackend::Real));
    }
    for deployment in RENDERED {
        let config = SuiteConfig { deployment: *deployment, ..SuiteConfig::on(PlaneBackend::Real) };
        suite(tally, "scenarios", RENDERED_SCENARIOS, "the pipeline as deploy/ renders it", config);
    }
    for on in MIXED {
        let covers = "propagation between embedded and real planes";
        suite(tally, "scenarios", MIXED_SCENARIOS, covers, SuiteConfig::on(*on));
    }
}

/// A check with a tool that is a Go program. Without the tool, and without Go to build it, it is skipped, or
/// fails in CI.
fn tools(tally: &mut Tally, title: &str, tool: &GoTool, can_build: bool, check: fn() -> Result<()>) {
    match tool.find() {
        Err(err) => tally.outcome(title, Err(err)),
        Ok(None) if !can_build && in_ci() => {
            tally.outcome(title, Err(anyhow!("there is no {} and no Go to build it", tool.name)));
        }
        Ok(None) if !can_build => {
            tally.skip(title, 1, &format!("there is no {}: `cargo xtask {title}`", tool.name))
        }
        Ok(_) => tally.outcome(title, check()),
    }
}

/// Whether a check that cannot run is a failure.
fn in_ci() -> bool {
    env::var("CI").is_ok_and(|ci| ci == "true")
}

/// Runs a suite whose tests share their planes, and so need one process: nextest cannot run it.
fn suite(tally: &mut Tally, target: &str, parts: &[&str], covers: &str, config: SuiteConfig) {
    let args = ["test", "--workspace", "--all-features", "--no-fail-fast", "--test", target, "--"];
    let title = match config.on {
        PlaneBackend::Real if config.deployment == DeploymentMode::Overlays => {
            format!("{target} under the overlays: {covers}")
        }
        PlaneBackend::Real if config.deployment == DeploymentMode::SingleCluster => {
            format!("{target} under the overlay of a single cluster: {covers}")
        }
        PlaneBackend::Embedded if config.kinds == CrdVersion::Released => {
            format!("{target} with the CRDs of the last release: {covers}")
        }
        PlaneBackend::Real => format!("{target} on real engines: {covers}"),
        PlaneBackend::Embedded => format!("{target} on embedded planes: {covers}"),
        PlaneBackend::RealCell => format!("{target} on embedded planes with a real cell: {covers}"),
        PlaneBackend::RealHub => format!("{target} on embedded planes with a real hub: {covers}"),
    };
    // Scenarios mostly wait, so more of them than cores run in parallel.
    let threads = if target == "scenarios" { vec!["--test-threads=8"] } else { Vec::new() };
    tally.command_in(&title, &[&args[..], &threads, parts].concat(), config);
}

/// The results so far.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
    failures: Vec<String>,
    /// Tests that passed only by themselves.
    unsteady: Vec<String>,
    /// Whether another lane prints at the same time: the output of a command is then buffered until it ends.
    in_lane: bool,
}

impl Tally {
    fn add(&mut self, lane: Tally) {
        self.passed += lane.passed;
        self.failed += lane.failed;
        self.skipped += lane.skipped;
        self.failures.extend(lane.failures);
        self.unsteady.extend(lane.unsteady);
    }

    /// Runs `cargo <args>` and adds up the tests that it reports.
    fn command(&mut self, title: &str, args: &[&str]) {
        self.command_in(title, args, SuiteConfig::on(PlaneBackend::Real));
    }

    /// As [`Tally::command`], for suites with a configuration.
    fn command_in(&mut self, title: &str, args: &[&str], config: SuiteConfig) {
        println!("\n== {title}: cargo {}", args.join(" "));
        let start = Instant::now();
        match stream("cargo", args, config, self.in_lane) {
            Err(err) => self.fail(title, &format!("failed to start cargo: {err}")),
            Ok((mut success, output)) => {
                let mut counts = output.counts;
                if !success && self.pass_one_by_one(args, &output, config) {
                    success = true;
                    counts.passed += counts.failed;
                    counts.failed = 0;
                }
                self.passed += counts.passed;
                self.skipped += counts.skipped;
                // A compile error ends a run before any test is counted.
                self.failed += counts.failed.max(usize::from(!success));
                if !success {
                    self.failures.push(title.to_owned());
                } else if counts == Counts::default() {
                    self.passed += 1;
                }
            }
        }
        println!("   {title}: {:.0?}", start.elapsed());
    }

    /// Runs the failed tests once more, one by one; returns whether they all passed.
    fn pass_one_by_one(&mut self, args: &[&str], first: &RunOutput, config: SuiteConfig) -> bool {
        let Some(again) = again(args, first) else { return false };
        println!("\n== once more, by themselves: cargo {}", again.join(" "));
        let passed = match stream("cargo", &again, config, self.in_lane) {
            Ok((success, second)) => success && second.counts.passed >= first.failed.len(),
            Err(_) => false,
        };
        if passed {
            self.unsteady.extend(first.failed.iter().cloned());
        }
        passed
    }

    /// Records a check that is not a command.
    fn outcome(&mut self, title: &str, outcome: Result<()>) {
        println!("\n== {title}");
        match outcome {
            Ok(()) => self.passed += 1,
            Err(err) => self.fail(title, &format!("{err:#}")),
        }
    }

    fn fail(&mut self, title: &str, why: &str) {
        println!("{why}");
        self.failed += 1;
        self.failures.push(format!("{title}: {why}"));
    }

    fn skip(&mut self, what: &str, count: usize, why: &str) {
        println!("\nskipped: {count} {what}, because {why}");
        self.skipped += count;
    }
}

/// The output of one command.
#[derive(Default)]
struct RunOutput {
    counts: Counts,
    /// Tests that `cargo test` reported as failed; nextest retries by itself.
    failed: Vec<String>,
}

impl RunOutput {
    fn read(&mut self, line: &str) {
        self.counts.read(line);
        let failed = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"));
        self.failed.extend(failed.map(str::to_owned));
    }
}

/// The command that runs only the failed tests; `None` if something else failed too: a compilation, or a doc
/// test, which cannot be selected by name.
fn again<'a>(args: &[&'a str], first: &'a RunOutput) -> Option<Vec<&'a str>> {
    let all_named = !first.failed.is_empty() && first.failed.len() == first.counts.failed;
    if !all_named || first.failed.iter().any(|name| name.contains(' ')) {
        return None;
    }
    let mut again: Vec<&str> = args.iter().copied().take_while(|arg| *arg != "--").collect();
    again.extend(["--", "--test-threads=1", "--exact"]);
    again.extend(first.failed.iter().map(String::as_str));
    Some(again)
}

/// The counts in the summary of a test runner.
#[derive(Default, PartialEq, Eq, Debug, Clone, Copy)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Counts {
    /// Adds the summary of `cargo test` ("test result: ok. 3 passed; 0 failed; 1 ignored; …") or of nextest
    /// ("Summary [ 1.2s] 4 tests run: 3 passed, 1 failed, 2 skipped"); ignores other lines.
    fn read(&mut self, line: &str) {
        let Some((_, tail)) = line.split_once("test result: ").or_else(|| line.split_once(" tests run: "))
        else {
            return;
        };
        let words: Vec<&str> = tail.split([' ', ';', ',', '.']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse::<usize>() else { continue };
            match pair[1] {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" | "skipped" => self.skipped += number,
                _ => {}
            }
        }
    }
}

/// Runs a command in the root of the repository and parses the counts in its output. Prints each line as it
/// arrives, or all lines at the end.
fn stream(program: &str, args: &[&str], config: SuiteConfig, at_the_end: bool) -> Result<(bool, RunOutput)> {
    let mut child = outside::command(program)
        .args(args)
        .current_dir(root())
        .envs(config.variables())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let buffered = Mutex::new(String::new());
    let print_line = |line: &str| match at_the_end {
        true => buffered.lock().expect("no reader panics").extend([line, "\n"]),
        false => println!("{line}"),
    };
    // nextest prints to stderr, cargo test to stdout.
    let (mut output, errors) = thread::scope(|scope| {
        let errors = scope.spawn(|| read(err, print_line));
        (read(out, print_line), errors.join().expect("reading lines does not panic"))
    });
    print!("{}", buffered.into_inner().expect("no reader panics"));
    output.counts.passed += errors.counts.passed;
    output.counts.failed += errors.counts.failed;
    output.counts.skipped += errors.counts.skipped;
    Ok((child.wait()?.success(), output))
}

fn read(from: impl std::io::Read, print_line: impl Fn(&str)) -> RunOutput {
    let mut output = RunOutput::default();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        print_line(&line);
        output.read(&line);
    }
    output
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    outside::command(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counts(lines: &[&str]) -> Counts {
        let mut counts = Counts::default();
        lines.iter().for_each(|line| counts.read(line));
        counts
    }

    #[test]
    fn cargo_run_must_have_exactly_one_binary() {
        let package = |id: &str, bin: &str| json!({"id": id, "targets": [{"name": bin, "kind": ["bin"]}]});
        let packages = json!([package("cli", "polis"), package("runtime", "polis-shim")]);
        let metadata = |defaults: Value| json!({"packages": packages, "workspace_default_members": defaults});
        assert!(only_program(&metadata(json!(["cli"]))).is_ok());
        assert!(only_program(&metadata(json!(["cli", "runtime"]))).is_err());
        assert!(only_program(&metadata(json!([]))).is_err());
    }

    #[test]
    fn a_target_with_required_features_is_not_a_plain_test() {
        let target = |name: &str, kind: &str, needs: &[&str]| json!({"name": name, "kind": [kind], "required-features": needs});
        let metadata = json!({"packages": [
            {"targets": [target("api", "lib", &[]), target("plain", "test", &[]), target("real", "test", &["engines"])]},
            {"targets": [{"name": "bare", "kind": ["test"]}]},
        ]});
        assert_eq!(targets_without_features(&metadata), ["plain", "bare"]);
    }

    #[test]
    fn summaries_of_cargo_test_add_up() {
        let counts = counts(&[
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out",
        ]);
        assert_eq!(counts, Counts { passed: 4, failed: 2, skipped: 1 });
    }

    #[test]
    fn only_failed_tests_run_once_more() {
        let args = ["test", "--test", "scenarios", "--", "--test-threads=8", "outages::"];
        let mut output = RunOutput::default();
        for line in [
            "test outages::hub ... ok",
            "test outages::cell ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured",
        ] {
            output.read(line);
        }
        let expected = ["test", "--test", "scenarios", "--", "--test-threads=1", "--exact", "outages::cell"];
        assert_eq!(again(&args, &output), Some(expected.to_vec()));
    }

    #[test]
    fn failures_that_cannot_be_selected_by_name_do_not_run_once_more() {
        let failed = |names: &[&str], count: usize| RunOutput {
            counts: Counts { failed: count, ..Counts::default() },
            failed: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let args = ["test", "--workspace"];
        assert_eq!(again(&args, &failed(&[], 0)), None, "it did not compile");
        assert_eq!(again(&args, &failed(&["a"], 2)), None, "one failed test has no name");
        assert_eq!(again(&args, &failed(&["src/lib.rs - Queue (line 3)"], 1)), None);
    }

    #[test]
    fn the_summary_of_nextest_is_parsed() {
        let counts = counts(&["     Summary [   1.2s] 6 tests run: 5 passed (1 slow), 1 failed, 2 skipped"]);
        assert_eq!(counts, Counts { passed: 5, failed: 1, skipped: 2 });
    }

    #[test]
    fn both_output_streams_are_counted_in_a_lane_and_outside() {
        let script =
            "echo 'test result: ok. 2 passed; 0 failed; 1 ignored'; echo '3 tests run: 3 passed' >&2";
        for in_lane in [false, true] {
            let (success, output) =
                stream("sh", &["-c", script], SuiteConfig::on(PlaneBackend::Embedded), in_lane).unwrap();
            assert!(success);
            assert_eq!(output.counts, Counts { passed: 5, failed: 0, skipped: 1 });
        }
    }

    #[test]
    fn other_lines_are_not_counted() {
        assert_eq!(counts(&["3 passed, 0 failed", "test foo ... ok"]), Counts::default());
    }
}
