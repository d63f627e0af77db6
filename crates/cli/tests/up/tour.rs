//! Runs every command of the README and the tour, and compares the output with the page.
//!
//! A step is an `sh` block followed directly by a `text` block. In the text, `…` matches any text, and on its
//! own line also no line; the width of columns is ignored. Exports of a step apply to the following steps.
//! Steps with `kubectl` are skipped with a message if it is not installed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::installation::Installation;

const README: &str = include_str!("../../../../README.md");
const TOUR: &str = include_str!("../../../../docs/guide/tour.md");
/// The first command of both pages. The test starts its own binary instead.
const START_COMMAND: &str = "cargo run --release -- up";
/// The export that adds the reader's build to the path. The test adds its own binary instead.
const PATH_EXPORT: &str = "export PATH=\"$PWD/target/release:$PATH\"";
/// Commands without side effects. They are repeated until the output matches, because the test is faster than
/// a reader.
const READ_ONLY_COMMANDS: [&str; 10] = [
    "polis cities",
    "polis status",
    "polis instances",
    "polis logs",
    "polis why",
    "polis rollout history",
    "polis workloads",
    "curl",
    "kubectl get",
    "kubectl --context",
];
/// How long read-only commands are repeated.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(120);

struct DocStep {
    command: String,
    shown: String,
}

fn steps(page: &str) -> Vec<DocStep> {
    let mut steps = Vec::new();
    let mut command = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            if !line.is_empty() {
                command = None; // text in between: the block before has no expected output
            }
            continue;
        };
        let block = lines.by_ref().take_while(|line| *line != "```").collect::<Vec<_>>().join("\n");
        match (language, command.take()) {
            ("sh", _) => command = Some(block),
            ("text", Some(command)) => steps.push(DocStep { command, shown: block }),
            _ => {}
        }
    }
    steps
}

fn normalised(text: &str) -> String {
    let lines = text.trim().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether the output matches the page.
fn matches(shown: &str, output: &str) -> bool {
    let (shown, output) = (normalised(shown).replace("…\n", "…"), normalised(output));
    let mut parts: Vec<&str> = shown.split('…').collect();
    let last = parts.pop().unwrap_or_default();
    if parts.is_empty() {
        return output == last;
    }
    let mut rest = output.as_str();
    for (index, part) in parts.into_iter().enumerate() {
        let found =
            if index == 0 { rest.strip_prefix(part) } else { rest.split_once(part).map(|(_, after)| after) };
        match found {
            Some(after) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// A shell with a home directory and the exports so far.
struct Shell<'a> {
    home: &'a Path,
    exports: String,
}

impl Shell<'_> {
    /// Runs a command in the repository, with `polis` on the path.
    fn run_command(&self, command: &str) -> String {
        let ours = Path::new(env!("CARGO_BIN_EXE_polis")).parent().expect("a folder").to_owned();
        let theirs = env::var_os("PATH").unwrap_or_default();
        let paths: Vec<PathBuf> = std::iter::once(ours).chain(env::split_paths(&theirs)).collect();
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1\n{}{command}", self.exports)])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
            .env("PATH", env::join_paths(paths).expect("a search path"))
            .env("HOME", self.home)
            .env_remove("KUBECONFIG")
            .env_remove("POLIS_DATA_DIR")
            .stdin(Stdio::null())
            .output()
            .expect("a shell");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs the steps. Read-only commands are repeated until the output matches.
    async fn run_steps(&mut self, steps: &[DocStep]) {
        let has_kubectl = self.run_command("command -v kubectl").contains("kubectl");
        for DocStep { command, shown } in steps {
            if command.contains("kubectl") && !has_kubectl {
                eprintln!("skipped, kubectl is not installed: {command}");
                continue;
            }
            let command = command.replace(PATH_EXPORT, "");
            let until = Instant::now() + OUTPUT_TIMEOUT;
            let is_read_only = |line: &str| READ_ONLY_COMMANDS.iter().any(|prefix| line.starts_with(prefix));
            let read_only = command.lines().all(is_read_only);
            let mut output = self.run_command(&command);
            while read_only && !matches(shown, &output) && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(200)).await;
                output = self.run_command(&command);
            }
            assert!(matches(shown, &output), "$ {command}\n{output}\nthe page shows:\n{shown}");
            for line in command.lines().filter(|line| line.starts_with("export ")) {
                self.exports += &format!("{line}\n");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_tour_has_the_output_of_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let steps = steps(TOUR);
    assert!(
        steps.len() > 10 && steps[0].command == START_COMMAND,
        "the tour does not begin with {START_COMMAND}"
    );
    let installation = Installation::start_at(folder.path(), &[]).await;
    assert!(matches(&steps[0].shown, &installation.summary), "{}", installation.summary);
    Shell { home: folder.path(), exports: String::new() }.run_steps(&steps[1..]).await;
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_readme_has_the_output_of_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, from_start) =
        README.split_once(&format!("```sh\n{START_COMMAND}\n```")).expect("the first command");
    let (section, _) = from_start.split_once("\n## ").expect("a section after the commands");
    let steps = steps(section);
    let blocks = section.matches("```sh").count();
    assert!(steps.len() == blocks && blocks >= 3, "{} of {blocks} sh blocks have their output", steps.len());
    let installation = Installation::start_at(folder.path(), &[]).await;
    Shell { home: folder.path(), exports: String::new() }.run_steps(&steps).await;
    installation.stop().await;
}

#[test]
fn an_ellipsis_matches_any_text_and_the_rest_must_match() {
    for (shown, output) in [
        ("a b", "a    b\n"),
        ("up after … ms\n…", "up after 12 ms\nand more\nlines"),
        ("made\n…\nready", "made\nready"),
        ("made\n…\nready", "made\n1/2\n2/2\nready"),
        ("…-0 ready …", "web-0 ready 3s"),
    ] {
        assert!(matches(shown, output), "{shown:?} {output:?}");
    }
    for (shown, output) in
        [("a b", "a"), ("made\n…\nready", "made\nlate"), ("a … a", "a"), ("…-0 …", "web-1 3s")]
    {
        assert!(!matches(shown, output), "{shown:?} {output:?}");
    }
}

#[test]
fn only_a_command_with_its_output_right_after_it_is_a_step() {
    let page = "```sh\nls\n```\n\nwords\n\n```text\na\n```\n\n```sh\npwd\n```\n\n```text\n/\n```\n";
    let found = steps(page);
    assert_eq!(found.iter().map(|step| (&*step.command, &*step.shown)).collect::<Vec<_>>(), [("pwd", "/")]);
}
