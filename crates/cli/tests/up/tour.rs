//! The tour of the documentation, typed as a newcomer would: every command is run and says what the page says.
//!
//! A step is a block of `sh` with a block of `text` right after it. In the text `…` stands for anything, on a line of its
//! own also for no line at all; how wide the columns are does not count.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::site::Site;

const TOUR: &str = include_str!("../../../../docs/guide/tour.md");
/// The first step. The test starts the binary that it was built with, in the same way.
const START: &str = "cargo run --release -- up";
/// Commands that only look: a newcomer types slower than a test, so they are repeated until they say what the page says.
const LOOKS: [&str; 8] = [
    "polis cities",
    "polis status",
    "polis instances",
    "polis logs",
    "polis why",
    "polis rollout history",
    "polis workloads",
    "curl",
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

/// Runs a command in a shell of a user with this home, who has `polis` on the path.
fn shell(home: &Path, command: &str) -> String {
    let ours = Path::new(env!("CARGO_BIN_EXE_polis")).parent().expect("a folder").to_owned();
    let theirs = env::var_os("PATH").unwrap_or_default();
    let paths: Vec<PathBuf> = std::iter::once(ours).chain(env::split_paths(&theirs)).collect();
    let output = Command::new("sh")
        .args(["-c", &format!("exec 2>&1\n{command}")])
        .env("PATH", env::join_paths(paths).expect("a search path"))
        .env("HOME", home)
        .env_remove("KUBECONFIG")
        .env_remove("POLIS_DATA_DIR")
        .stdin(Stdio::null())
        .output()
        .expect("a shell");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_tour_says_what_the_page_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path();
    let steps = steps(TOUR);
    assert!(steps.len() > 10 && steps[0].command == START, "a tour that begins with {START}");
    let site = Site::start_at(home).await;
    assert!(fits(&steps[0].shown, &site.summary), "{}", site.summary);

    for Step { command, shown } in &steps[1..] {
        let until = Instant::now() + PATIENCE;
        let only_looks = LOOKS.iter().any(|look| command.starts_with(look));
        let mut said = shell(home, command);
        while only_looks && !fits(shown, &said) && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(200)).await;
            said = shell(home, command);
        }
        assert!(fits(shown, &said), "$ {command}\n{said}\nthe page shows:\n{shown}");
    }
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
