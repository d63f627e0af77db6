//! `cargo xtask test`: every check of this repository, in the order in which a failure is cheapest.
//!
//! Each check is a command; its output is passed through as it comes, and the closing lines of the test
//! runners in it are added up. A check that runs no tests of its own (format, lints, drift) counts as one.
//! All checks run, also after a failure, so that one run tells everything that is wrong.
//!
//! Suites wait most of the time, for processes to start and for windows of quiet to pass, so those on embedded planes and
//! those on real engines run side by side, in two lanes; a lane says what a command said when that command has ended.
//!
//! A test that fails among others is run once more by itself. If it passes then, it was starved or shares something with
//! its neighbours: that is a defect to look at, and it is named at the end, but it does not fail the whole.

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

use crate::crds::{self, root};
use crate::e2e::{IN_THE_GATE, Kinds, On, Setting, Staff};
use crate::{alerts, dashboards, outside};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out the suites on real engines.
    #[arg(long)]
    fast: bool,
}

/// Suites that run against real etcd, kube-apiserver and Karmada: test target, the parts of it that run here (all when
/// none is named), and what it shows. They are behind the feature `engines` of their crates.
///
/// Not here, because of the minutes they take: the other groups of `scenarios` (most outages, crash points, replicas,
/// silence); run those with `cargo xtask e2e`.
const ENGINE_SUITES: &[(&str, &[&str], &str)] = &[
    ("kinds", &[], "our CRDs on kube-apiserver, and a table of manifests"),
    ("packaging", &[], "every overlay applied, and the manager run as its Deployment says"),
    ("propagation", &[], "deployments through Karmada and back"),
    ("survival", &[], "the bed itself: kills, restarts, two at once"),
    ("real", &[], "the engine's lists and watches against kube-apiserver"),
    ("admitted", &[], "every rule of admission through kubectl, with the webhooks behind kube-apiserver"),
    ("quota_on_real", &[], "the stories of quota, with a kube-apiserver as the project's plane"),
    ("karmada", &[], "the suite of the embedded federation, on Karmada"),
    ("joined", &[], "a real API server as a member of the embedded federation"),
    ("planes", &[], "what the scenarios rely on, of Karmada itself"),
    ("differential", &[], "the embedded API server beside kube-apiserver, answer by answer"),
    ("kubectl", &[], "an unmodified kubectl in front of the embedded API server"),
    ("go_controllers", &[], "Karmada and kube-controller-manager at work on an embedded plane"),
    ("laptop", &[], "polis up in front of a real Karmada, and with a real cell behind its own hub"),
    (
        "scenarios",
        &[
            "compatibility::",
            "federation::",
            "ownership::",
            "bad_input::",
            "confinement::",
            "rights::",
            "city_guard::",
            "neighbours::",
            "upgrade::",
            "outages::nothing_is_lost_when_the_hub_goes_away",
            "outages::nothing_is_lost_when_the_management_process_dies",
        ],
        "the whole pipeline over project, hub and cells",
    ),
];

/// The groups of `scenarios` that run on embedded planes. Not here, because of the minutes they take: crash points,
/// replicas and silence; and thrift, which counts what a busy machine makes more of. Run those with
/// `cargo xtask e2e --on embedded`.
const EMBEDDED_SCENARIOS: &[&str] = &[
    "compatibility::",
    "federation::",
    "ownership::",
    "bad_input::",
    "confinement::",
    "outages::",
    "rights::",
    "city_guard::",
    "neighbours::",
    "upgrade::",
];

/// The groups of `scenarios` that run with the manager of today on planes that serve the kinds of the last release.
const SKEWED_SCENARIOS: &[&str] = &["federation::", "upgrade::"];

/// Whose Deployments, rights and files the processes run with, besides those of the harness: those of the overlays. Real
/// planes, to which what an operator applies is applied.
const RENDERED: &[Staff] = &[Staff::Overlays, Staff::SingleCluster];

/// Where some planes are real and some are not.
const MIXED: &[On] = &[On::RealCell, On::RealHub];

/// The groups of `scenarios` that run there: what goes from plane to plane.
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
    if succeeds("cargo", &["deny", "--version"]) {
        tally.command("licences", &["deny", "check", "licenses", "bans", "sources"]);
    }
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

/// What cargo knows of the workspace.
fn metadata() -> Result<Value> {
    let metadata = outside::command("cargo")
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(root())
        .output()
        .context("failed to start cargo")?;
    serde_json::from_slice(&metadata.stdout).context("failed to read what cargo metadata says")
}

fn targets<'a>(packages: impl IntoIterator<Item = &'a Value>, kind: &str) -> Vec<&'a Value> {
    let each = |value: &'a Value| value.as_array().into_iter().flatten();
    let targets = packages.into_iter().flat_map(|package| each(&package["targets"]));
    targets.filter(|target| each(&target["kind"]).any(|known| known == kind)).collect()
}

/// The README's first command names no binary, so there may be only one to run.
fn only_program(metadata: &Value) -> Result<()> {
    let each = |value: &'static str| metadata[value].as_array().into_iter().flatten();
    let defaults: Vec<&Value> = each("workspace_default_members").collect();
    let packages = each("packages").filter(|package| defaults.contains(&&package["id"]));
    let names: Vec<&str> = targets(packages, "bin").iter().filter_map(|bin| bin["name"].as_str()).collect();
    if names == ["polis"] {
        return Ok(());
    }
    bail!("`cargo run` must run polis, and would choose among {names:?}: see default-members in Cargo.toml")
}

/// Test targets that need nothing but Rust: those that no feature is required for.
fn targets_without_features(metadata: &Value) -> Vec<String> {
    let tests = targets(metadata["packages"].as_array().into_iter().flatten(), "test");
    let needs =
        |target: &&&Value| target["required-features"].as_array().is_some_and(|needs| !needs.is_empty());
    let plain = tests.iter().filter(|target| !needs(target));
    plain.filter_map(|target| target["name"].as_str().map(str::to_owned)).collect()
}

/// The suites on embedded planes. The scenarios start the controllers as they are shipped, as the process `polis manager`:
/// the unit tests, which have tests of that program among them, have built it.
fn embedded(tally: &mut Tally, _fast: bool) {
    let embedded = Setting::on(On::Embedded);
    suite(tally, "planes", &[], "what the scenarios rely on", embedded);
    let shows = "the whole pipeline over project, hub and cells";
    suite(tally, "scenarios", EMBEDDED_SCENARIOS, shows, embedded);
    let skewed = Setting { kinds: Kinds::Released, ..embedded };
    suite(tally, "scenarios", SKEWED_SCENARIOS, "today's manager and the kinds of the last release", skewed);
}

/// What needs programs that are built with Go: the alerts, held to their cases by promtool, and the suites on real engines.
/// Or one line that says why they were left out.
fn engines(tally: &mut Tally, fast: bool) {
    let suites = ENGINE_SUITES.len() + RENDERED.len() + MIXED.len();
    let go = polis_testbed::go::find().map(drop);
    match alerts::find() {
        Err(err) => tally.outcome("alerts", Err(err)),
        Ok(Some(promtool)) => tally.outcome("alerts", alerts::check(&promtool)),
        Ok(None) if !fast && go.is_ok() => {
            tally.outcome("alerts", alerts::build().and_then(|promtool| alerts::check(&promtool)));
        }
        Ok(None) if !fast && in_ci() => tally.outcome("alerts", Err(anyhow!("no promtool, and no Go"))),
        Ok(None) => tally.skip("the cases of the alerts", 1, "there is no promtool: `cargo xtask alerts`"),
    }
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
    for (target, parts, shows) in ENGINE_SUITES {
        suite(tally, target, parts, shows, Setting::on(On::Real));
    }
    for staff in RENDERED {
        let setting = Setting { staff: *staff, ..Setting::on(On::Real) };
        suite(tally, "scenarios", IN_THE_GATE, "the pipeline as deploy/ renders it", setting);
    }
    for on in MIXED {
        let shows = "what travels between planes of both sorts";
        suite(tally, "scenarios", MIXED_SCENARIOS, shows, Setting::on(*on));
    }
}

/// Whether everything has to run: what cannot is then a failure.
fn in_ci() -> bool {
    env::var("CI").is_ok_and(|ci| ci == "true")
}

/// One suite of which all tests share their planes, and so one process: not for nextest.
fn suite(tally: &mut Tally, target: &str, parts: &[&str], shows: &str, setting: Setting) {
    let args = ["test", "--workspace", "--all-features", "--no-fail-fast", "--test", target, "--"];
    let title = match setting.on {
        On::Real if setting.staff == Staff::Overlays => format!("{target} under the overlays: {shows}"),
        On::Real if setting.staff == Staff::SingleCluster => {
            format!("{target} under the overlay of a single cluster: {shows}")
        }
        On::Embedded if setting.kinds == Kinds::Released => format!("{target} with older kinds: {shows}"),
        On::Real => format!("{target} on real engines: {shows}"),
        On::Embedded => format!("{target} on embedded planes: {shows}"),
        On::RealCell => format!("{target} on embedded planes with a real cell: {shows}"),
        On::RealHub => format!("{target} on embedded planes with a real hub: {shows}"),
    };
    // Scenarios wait most of the time: more of them than cores do no harm.
    let side_by_side = if target == "scenarios" { vec!["--test-threads=8"] } else { Vec::new() };
    tally.command_in(&title, &[&args[..], &side_by_side, parts].concat(), setting);
}

/// What has passed, failed and been skipped so far.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
    failures: Vec<String>,
    /// Tests that passed only by themselves.
    unsteady: Vec<String>,
    /// Another tally speaks at the same time, so what a command says is kept until it ends.
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
        self.command_in(title, args, Setting::on(On::Real));
    }

    /// The same, for scenarios, which run in several settings.
    fn command_in(&mut self, title: &str, args: &[&str], setting: Setting) {
        println!("\n== {title}: cargo {}", args.join(" "));
        let start = Instant::now();
        match stream("cargo", args, setting, self.in_lane) {
            Err(err) => self.fail(title, &format!("cargo did not start: {err}")),
            Ok((mut success, said)) => {
                let mut counts = said.counts;
                if !success && self.pass_by_themselves(args, &said, setting) {
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

    /// Runs the tests that failed once more, one after the other, and says whether they all passed.
    fn pass_by_themselves(&mut self, args: &[&str], first: &Said, setting: Setting) -> bool {
        let Some(again) = again(args, first) else { return false };
        println!("\n== once more, by themselves: cargo {}", again.join(" "));
        let passed = match stream("cargo", &again, setting, self.in_lane) {
            Ok((success, second)) => success && second.counts.passed >= first.failed.len(),
            Err(_) => false,
        };
        if passed {
            self.unsteady.extend(first.failed.iter().cloned());
        }
        passed
    }

    /// Counts one check that is not a command.
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

/// What one command said.
#[derive(Default)]
struct Said {
    counts: Counts,
    /// Tests that `cargo test` reported as failed; nextest is asked to try again by itself.
    failed: Vec<String>,
}

impl Said {
    fn read(&mut self, line: &str) {
        self.counts.read(line);
        let failed = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"));
        self.failed.extend(failed.map(str::to_owned));
    }
}

/// The command that runs only what failed, unless something else failed too: a compilation, or a test in documentation,
/// whose name cannot be asked for.
fn again<'a>(args: &[&'a str], first: &'a Said) -> Option<Vec<&'a str>> {
    let all_named = !first.failed.is_empty() && first.failed.len() == first.counts.failed;
    if !all_named || first.failed.iter().any(|name| name.contains(' ')) {
        return None;
    }
    let mut again: Vec<&str> = args.iter().copied().take_while(|arg| *arg != "--").collect();
    again.extend(["--", "--test-threads=1", "--exact"]);
    again.extend(first.failed.iter().map(String::as_str));
    Some(again)
}

/// What one runner said at its end.
#[derive(Default, PartialEq, Eq, Debug, Clone, Copy)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Counts {
    /// Adds the closing line of `cargo test` ("test result: ok. 3 passed; 0 failed; 1 ignored; …") or of
    /// nextest ("Summary [ 1.2s] 4 tests run: 3 passed, 1 failed, 2 skipped"); any other line adds nothing.
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

/// Runs a command in the root of the repository and reads the counts from what it says, which is passed through as it
/// comes, or in one piece at its end.
fn stream(program: &str, args: &[&str], setting: Setting, at_the_end: bool) -> Result<(bool, Said)> {
    let mut child = outside::command(program)
        .args(args)
        .current_dir(root())
        .envs(setting.variables())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let kept = Mutex::new(String::new());
    let say = |line: &str| match at_the_end {
        true => kept.lock().expect("no reader panics").extend([line, "\n"]),
        false => println!("{line}"),
    };
    // nextest reports on stderr, cargo test on stdout: both are read.
    let (mut said, errors) = thread::scope(|scope| {
        let errors = scope.spawn(|| read(err, say));
        (read(out, say), errors.join().expect("reading lines does not panic"))
    });
    print!("{}", kept.into_inner().expect("no reader panics"));
    said.counts.passed += errors.counts.passed;
    said.counts.failed += errors.counts.failed;
    said.counts.skipped += errors.counts.skipped;
    Ok((child.wait()?.success(), said))
}

fn read(from: impl std::io::Read, say: impl Fn(&str)) -> Said {
    let mut said = Said::default();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        say(&line);
        said.read(&line);
    }
    said
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
    fn cargo_run_must_have_one_program_to_run() {
        let package = |id: &str, bin: &str| json!({"id": id, "targets": [{"name": bin, "kind": ["bin"]}]});
        let packages = json!([package("cli", "polis"), package("runtime", "polis-shim")]);
        let metadata = |defaults: Value| json!({"packages": packages, "workspace_default_members": defaults});
        assert!(only_program(&metadata(json!(["cli"]))).is_ok());
        assert!(only_program(&metadata(json!(["cli", "runtime"]))).is_err());
        assert!(only_program(&metadata(json!([]))).is_err());
    }

    #[test]
    fn a_test_that_needs_a_feature_is_no_plain_one() {
        let target = |name: &str, kind: &str, needs: &[&str]| json!({"name": name, "kind": [kind], "required-features": needs});
        let metadata = json!({"packages": [
            {"targets": [target("api", "lib", &[]), target("plain", "test", &[]), target("real", "test", &["engines"])]},
            {"targets": [{"name": "bare", "kind": ["test"]}]},
        ]});
        assert_eq!(targets_without_features(&metadata), ["plain", "bare"]);
    }

    #[test]
    fn closing_lines_of_cargo_test_add_up() {
        let counts = counts(&[
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out",
        ]);
        assert_eq!(counts, Counts { passed: 4, failed: 2, skipped: 1 });
    }

    #[test]
    fn only_what_failed_is_run_once_more() {
        let args = ["test", "--test", "scenarios", "--", "--test-threads=8", "outages::"];
        let mut said = Said::default();
        for line in [
            "test outages::hub ... ok",
            "test outages::cell ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured",
        ] {
            said.read(line);
        }
        let expected = ["test", "--test", "scenarios", "--", "--test-threads=1", "--exact", "outages::cell"];
        assert_eq!(again(&args, &said), Some(expected.to_vec()));
    }

    #[test]
    fn what_cannot_be_asked_for_by_name_is_not_run_once_more() {
        let failed = |names: &[&str], count: usize| Said {
            counts: Counts { failed: count, ..Counts::default() },
            failed: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let args = ["test", "--workspace"];
        assert_eq!(again(&args, &failed(&[], 0)), None, "it did not compile");
        assert_eq!(again(&args, &failed(&["a"], 2)), None, "one that failed was not named");
        assert_eq!(again(&args, &failed(&["src/lib.rs - Queue (line 3)"], 1)), None);
    }

    #[test]
    fn the_summary_of_nextest_is_understood() {
        let counts = counts(&["     Summary [   1.2s] 6 tests run: 5 passed (1 slow), 1 failed, 2 skipped"]);
        assert_eq!(counts, Counts { passed: 5, failed: 1, skipped: 2 });
    }

    #[test]
    fn what_a_command_says_is_counted_on_both_of_its_streams_in_a_lane_and_outside() {
        let script =
            "echo 'test result: ok. 2 passed; 0 failed; 1 ignored'; echo '3 tests run: 3 passed' >&2";
        for in_lane in [false, true] {
            let (success, said) = stream("sh", &["-c", script], Setting::on(On::Embedded), in_lane).unwrap();
            assert!(success);
            assert_eq!(said.counts, Counts { passed: 5, failed: 0, skipped: 1 });
        }
    }

    #[test]
    fn a_line_that_only_speaks_of_tests_counts_nothing() {
        assert_eq!(counts(&["3 passed, 0 failed", "test foo ... ok"]), Counts::default());
    }
}
