//! The pages that a newcomer types from, the README and the tour: every command is run and says what the page says.
//!
//! A step is a block of `sh` with a block of `text` right after it. In the text `…` stands for anything, on a line of its
//! own also for no line at all; how wide the columns are does not count. What a step exports holds for those after it, as
//! in a terminal. Steps with `kubectl` are left out, and that is said, where there is none.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::site::Site;

const README: &str = include_str!("../../../../README.md");
const TOUR: &str = include_str!("../../../../docs/guide/tour.md");
/// The first command of both. The test starts the binary that it was built with, in the same way.
const START: &str = "cargo run --release -- up";
/// What puts the program of the newcomer's build on the path. The test has its own there.
const OWN_BUILD: &str = "export PATH=\"$PWD/target/release:$PATH\"";
/// Commands that only look: a newcomer types slower than a test, so they are repeated until they say what the page says.
const LOOKS: [&str; 10] = [
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
/// How long they are repeated.
const PATIENCE: Duration = Duration::from_secs(120);

struct Step {
    command: String,
    shown: String,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut command = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            if !line.is_empty() {
                command = None; // words between: what came before is for the reader alone
            }
            continue;
        };
        let block = lines.by_ref().take_while(|line| *line != "```").collect::<Vec<_>>().join("\n");
        match (language, command.take()) {
            ("sh", _) => command = Some(block),
            ("text", Some(command)) => steps.push(Step { command, shown: block }),
            _ => {}
        }
    }
    steps
}

fn even(text: &str) -> String {
    let lines = text.trim().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether what was said is what the page shows.
fn fits(shown: &str, said: &str) -> bool {
    let (shown, said) = (even(shown).replace("…\n", "…"), even(said));
    let mut parts: Vec<&str> = shown.split('…').collect();
    let last = parts.pop().unwrap_or_default();
    if parts.is_empty() {
        return said == last;
    }
    let mut rest = said.as_str();
    for (place, part) in parts.into_iter().enumerate() {
        let found =
            if place == 0 { rest.strip_prefix(part) } else { rest.split_once(part).map(|(_, after)| after) };
        match found {
            Some(after) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// A newcomer: a home, and what was exported in the terminal so far.
struct Newcomer<'a> {
    home: &'a Path,
    exports: String,
}

impl Newcomer<'_> {
    /// Types a command in a checkout, with `polis` on the path.
    fn types(&self, command: &str) -> String {
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

    /// Goes through the steps; commands that only look are repeated until they show it.
    async fn follows(&mut self, steps: &[Step]) {
        let has_kubectl = self.types("command -v kubectl").contains("kubectl");
        for Step { command, shown } in steps {
            if command.contains("kubectl") && !has_kubectl {
                eprintln!("skipped, there is no kubectl: {command}");
                continue;
            }
            let command = command.replace(OWN_BUILD, "");
            let until = Instant::now() + PATIENCE;
            let looks = |line: &str| LOOKS.iter().any(|look| line.starts_with(look));
            let only_looks = command.lines().all(looks);
            let mut said = self.types(&command);
            while only_looks && !fits(shown, &said) && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(200)).await;
                said = self.types(&command);
            }
            assert!(fits(shown, &said), "$ {command}\n{said}\nthe page shows:\n{shown}");
            for line in command.lines().filter(|line| line.starts_with("export ")) {
                self.exports += &format!("{line}\n");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_tour_says_what_the_page_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let steps = steps(TOUR);
    assert!(steps.len() > 10 && steps[0].command == START, "a tour that begins with {START}");
    let site = Site::start_at(folder.path(), &[]).await;
    assert!(fits(&steps[0].shown, &site.summary), "{}", site.summary);
    Newcomer { home: folder.path(), exports: String::new() }.follows(&steps[1..]).await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_readme_says_what_the_page_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, from_start) = README.split_once(&format!("```sh\n{START}\n```")).expect("the first command");
    let (tried, _) = from_start.split_once("\n## ").expect("a chapter that ends");
    let steps = steps(tried);
    let blocks = tried.matches("```sh").count();
    assert!(steps.len() == blocks && blocks >= 3, "{} of {blocks} blocks show what they say", steps.len());
    let site = Site::start_at(folder.path(), &[]).await;
    Newcomer { home: folder.path(), exports: String::new() }.follows(&steps).await;
    site.stop().await;
}

#[test]
fn dots_stand_for_anything_and_the_rest_must_be_there() {
    for (shown, said) in [
        ("a b", "a    b\n"),
        ("up after … ms\n…", "up after 12 ms\nand more\nlines"),
        ("made\n…\nready", "made\nready"),
        ("made\n…\nready", "made\n1/2\n2/2\nready"),
        ("…-0 ready …", "web-0 ready 3s"),
    ] {
        assert!(fits(shown, said), "{shown:?} {said:?}");
    }
    for (shown, said) in
        [("a b", "a"), ("made\n…\nready", "made\nlate"), ("a … a", "a"), ("…-0 …", "web-1 3s")]
    {
        assert!(!fits(shown, said), "{shown:?} {said:?}");
    }
}

#[test]
fn only_a_command_with_its_output_right_after_it_is_a_step() {
    let page = "```sh\nls\n```\n\nwords\n\n```text\na\n```\n\n```sh\npwd\n```\n\n```text\n/\n```\n";
    let found = steps(page);
    assert_eq!(found.iter().map(|step| (&*step.command, &*step.shown)).collect::<Vec<_>>(), [("pwd", "/")]);
}
