//! `cargo xtask words`: holds the tree to the vocabulary of the field.
//!
//! Four checks over the files that git knows:
//!
//! - words that the project does not use, with the word to use instead, in prose, identifiers, type names and
//!   file names (`docs/dev/glossary.md` has the words that it does use);
//! - public types of one name in two crates;
//! - comments wider than rustfmt's `max_width`, which rustfmt itself does not wrap;
//! - doc lines that say nothing by themselves.
//!
//! An exception is an entry of [`ALLOWED`] or [`SHARED_TYPES`], with its reason. An entry that excuses
//! nothing is an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context, Result, bail};

use crate::crds::root;
use crate::outside;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only files whose path begins with one of these.
    paths: Vec<String>,
}

/// Words to avoid in prose and as part of an identifier, whatever their case, with what to write instead.
const WORDS: &[(&str, &str)] = &[
    ("whoever", "name the program or the object"),
    ("nobody", "name the program or the object"),
    ("somebody", "name the program or the object"),
    ("everybody", "name the program or the object"),
    ("anybody", "name the program or the object"),
    ("he", "name the program or the object"),
    ("him", "name the program or the object"),
    ("his", "name the program or the object"),
    ("newborn", "expectations"),
    ("newborns", "expectations"),
    ("treasury", "quota enforcement"),
    ("treasurer", "quota controller"),
    ("registrar", "registration controller"),
    ("stranger", "unresolved object, unauthenticated peer"),
    ("strangers", "unresolved objects, unauthenticated peers"),
    ("journey", "propagation latency"),
    ("journeys", "propagation latency"),
    ("staff", "components, supervisor, deployment mode"),
    ("hire", "spawn"),
    ("hired", "spawned"),
    ("hires", "spawns"),
    ("dismiss", "shut down"),
    ("dismissed", "shut down"),
    ("furniture", "bootstrap manifests"),
    ("mood", "severity"),
    ("eye", "recorder"),
    ("eyes", "recorder"),
    ("seat", "instance directory, slot, permit"),
    ("seats", "instance directories, slots, permits"),
    ("doorway", "in-process webhook transport"),
    ("farewell", "delete reason"),
    ("muster", "classify"),
    ("crew", "slots"),
    ("vacancy", "missing slot"),
    ("birth", "initial metadata, creation"),
    ("withdrawal", "deletion plan, finalize"),
    ("standing", "existing, observed, current"),
    ("stands", "is, exists"),
    ("stood", "was, existed"),
    ("settle", "ensure, reconcile"),
    ("settled", "reconciled, ensured"),
    ("settles", "reconciles, ensures"),
    ("settling", "reconciling, ensuring"),
    ("occupant", "container state, running instance"),
    ("occupants", "container states, running instances"),
    ("fence", "sandbox"),
    ("fenced", "sandboxed"),
    ("fences", "sandboxes"),
    ("recipe", "launch spec"),
    ("recipes", "launch specs"),
    ("manning", "deployment mode"),
    ("thrift", "request budget"),
    ("stray", "leak"),
    ("strays", "leaks"),
    ("fuse", "crash point"),
    ("tempo", "timing profile"),
    ("unwell", "unhealthy"),
    ("rehearse", "dry run"),
    ("rehearsed", "dry run"),
    ("roster", "registry"),
    ("outlook", "cached status"),
    ("fight", "drift conflict"),
    ("fights", "drift conflicts"),
    ("absorb", "write through"),
    ("absorbs", "writes through"),
    ("nudge", "retry now"),
    ("nudged", "retried"),
    ("intake", "decoded event"),
    ("patience", "timeout"),
    ("horizon", "hub and cell reader"),
    ("picture", "snapshot, diagram"),
    ("pictures", "snapshots, diagrams"),
    ("ration", "write budget"),
    ("rations", "write budgets"),
    ("office", "worker pool"),
    ("told", "reported, notified"),
    ("bed", "test cluster, test bed"),
    ("beds", "test clusters, test beds"),
    ("room", "crate, headroom, space"),
    ("rooms", "crates"),
    ("complaint", "diagnostic"),
    ("complaints", "diagnostics"),
    ("news", "significant change"),
    ("hears", "watches, external source"),
    ("deed", "action"),
    ("deeds", "actions"),
    ("books", "ledger"),
    ("homes", "namespace cleanup, hub namespaces"),
    ("said", "reported, stated"),
    ("scissors", "fault"),
    ("doomed", "being deleted"),
    ("lived", "used"),
    ("seam", "injection point"),
    ("seams", "injection points"),
    ("judge", "validate, review"),
    ("judges", "validates, reviews"),
    ("judged", "validated, reviewed"),
    ("verdict", "decision, result"),
    ("story", "scenario"),
    ("stories", "scenarios"),
    ("wish", "request, desired state"),
];

/// Type names to avoid, with what to write instead. As plain words they are common English.
const TYPES: &[(&str, &str)] = &[
    ("Seen", "informer store, cached"),
    ("Follow", "reflector"),
    ("Lines", "line reader"),
    ("Kept", "stored object; durable provider"),
    ("Exactly", "Preconditions"),
    ("Exact", "ObjectRef with preconditions"),
    ("Lag", "status coalescer"),
    ("Ground", "TenancyMode"),
    ("Trouble", "circuit breaker state, error"),
    ("Links", "circuit breakers"),
    ("Turn", "admission decision; actor"),
    ("Waiter", "pending request"),
    ("Room", "headroom"),
    ("Home", "hub namespace; namespace cleanup; state directory"),
    ("Homes", "namespace cleanup"),
    ("Hop", "stage"),
    ("OpenCities", "diagnostics of open cities"),
    ("UnknownProjects", "diagnostics of unknown projects"),
    ("Reached", "Embedded / External"),
    ("Reach", "client session"),
    ("Beyond", "hub and cell reader"),
    ("Fault", "CliError, ApiError, FieldErrorKind"),
    ("Scrapes", "metrics server"),
    ("Form", "versioned schema"),
    ("Chance", "random source"),
    ("Extended", "subresource handler"),
    ("Extending", "subresource handler"),
    ("Shows", "revision shown"),
    ("Told", "callback"),
    ("Keep", "log retention"),
    ("Step", "<Noun>Action"),
    ("Answer", "decision, response, result (with its noun)"),
    ("Standing", "existing (with its noun)"),
    ("Manner", "options"),
    ("Terms", "options"),
    ("Post", "process"),
    ("Seek", "matcher"),
    ("Tap", "request log"),
    ("Wire", "proxy, wire format"),
    ("Say", "progress callback"),
    ("Sight", "observation"),
    ("Outcome", "Action, result (with its noun)"),
];

/// Names of files and folders to avoid, with what to write instead.
const PATHS: &[(&str, &str)] = &[
    ("wire", "proxy"),
    ("tap", "request_log"),
    ("place", "view"),
    ("draft", "manifest, builders"),
    ("reach", "session"),
    ("beyond", "hub and cell reader"),
    ("scrapes", "metrics_server"),
    ("lag", "coalesce"),
    ("live", "uncached"),
    ("seek", "matchers"),
    ("moments", "micro_time"),
    ("form", "versioned_schema"),
    ("shape", "prune_and_default"),
    ("kept", "durable"),
    ("turn", "queue"),
    ("home", "state_dir"),
];

/// Where a word is right all the same: path prefix, word, reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("CHANGELOG.md", "withdrawal", "the former name of an event reason"),
    ("CHANGELOG.md", "fight", "the former name of an event reason"),
    ("CHANGELOG.md", "mood", "the former name of a field of -o json"),
    ("CHANGELOG.md", "nobody", "the former value of a field of -o json"),
    (
        "crates/runtime/",
        "seat",
        "the file seat.json and the variable POLIS_SEAT, which running instances have",
    ),
    ("crates/cli/tests/up/killed.rs", "seat", "the variable POLIS_SEAT of running instances"),
    ("crates/runtime/", "fence", "a field of the shim's request file, which the next version reads"),
    ("crates/runtime/src/logs.rs", "Seek", "the trait of the standard library"),
    ("testbed/src/process.rs", "Seek", "the trait of the standard library"),
    ("xtask/src/testbed.rs", "Seek", "the trait of the standard library"),
];

/// Public type names that several crates may use, each with its reason.
const SHARED_TYPES: &[(&str, &str)] =
    &[("Error", "the error of its crate"), ("BoxError", "the usual name of a boxed error")];

/// What is not ours to word: recorded data, licences, generated files, and this table.
const SKIPPED: &[&str] =
    &["Cargo.lock", "LICENSE", "xtask/src/words.rs", "deploy/base/crds/", "testbed/crds/"];

pub(crate) fn run(args: Args) -> Result<()> {
    report(&findings(&args.paths)?)
}

/// Fails when any file of the tree breaks a rule of this module.
pub(crate) fn check() -> Result<()> {
    report(&findings(&[])?)
}

fn report(findings: &[String]) -> Result<()> {
    for finding in findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => bail!("{count} findings; see docs/dev/glossary.md for the words that this project uses"),
    }
}

fn findings(prefixes: &[String]) -> Result<Vec<String>> {
    let width = max_width()?;
    let mut checker = Checker::default();
    for path in files()? {
        let chosen = prefixes.is_empty() || prefixes.iter().any(|prefix| path.starts_with(prefix.as_str()));
        let file = root().join(&path);
        // A file that git knows and that is deleted in the work tree, or that is not text.
        let Ok(text) = fs::read_to_string(&file) else { continue };
        checker.types(&path, &text);
        if chosen {
            checker.words(&path, &text);
            checker.comments(&path, &text, width);
        }
    }
    checker.shared_types();
    if prefixes.is_empty() {
        checker.unused_exceptions();
    }
    Ok(checker.findings)
}

/// The files that git tracks or would track.
pub(crate) fn files() -> Result<Vec<String>> {
    let output = outside::command("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("failed to start git, which lists the files to check")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let listed = String::from_utf8(output.stdout).context("git listed a path that is not UTF-8")?;
    let checked = |path: &&str| {
        [".rs", ".md", ".yaml", ".yml", ".toml", ".lua", ".snap"].iter().any(|suffix| path.ends_with(suffix))
            && !path.contains("/released/")
            && !SKIPPED.iter().any(|skipped| path.starts_with(skipped))
    };
    Ok(listed.lines().filter(checked).map(str::to_owned).collect())
}

/// The width that `rustfmt.toml` sets.
fn max_width() -> Result<usize> {
    let settings = fs::read_to_string(root().join("rustfmt.toml")).context("failed to read rustfmt.toml")?;
    let width = settings.lines().find_map(|line| line.strip_prefix("max_width = "));
    width.context("rustfmt.toml sets no max_width")?.trim().parse().context("max_width is not a number")
}

#[derive(Default)]
struct Checker {
    findings: Vec<String>,
    /// Entries of [`ALLOWED`] that have excused something.
    used: BTreeSet<usize>,
    /// Public types: name → crate → file.
    types: BTreeMap<String, BTreeMap<String, String>>,
}

impl Checker {
    fn words(&mut self, path: &str, text: &str) {
        for part in path.split(['/', '.', '_', '-']) {
            if let Some(instead) = lookup(PATHS, part).or_else(|| lookup(WORDS, part)) {
                self.found(path, None, part, instead);
            }
        }
        for (number, line) in (1..).zip(text.lines()) {
            let words = split(line);
            for (index, word) in words.iter().enumerate() {
                let before = index.checked_sub(1).map(|before| words[before].as_str());
                if let Some(instead) = lookup(WORDS, word)
                    && !matches!(
                        (before, word.as_str()),
                        (Some("test"), "bed" | "beds") | (Some("long"), "standing")
                    )
                {
                    self.found(path, Some(number), word, instead);
                }
            }
            if path.ends_with(".rs") {
                for identifier in identifiers(line) {
                    if let Some(instead) = lookup(TYPES, identifier) {
                        self.found(path, Some(number), identifier, instead);
                    }
                }
            }
        }
    }

    fn found(&mut self, path: &str, line: Option<usize>, word: &str, instead: &str) {
        let excuse =
            ALLOWED.iter().position(|(prefix, allowed, _)| path.starts_with(prefix) && *allowed == word);
        if let Some(excuse) = excuse {
            self.used.insert(excuse);
            return;
        }
        let place = line.map_or_else(|| format!("{path}: its name"), |line| format!("{path}:{line}"));
        self.findings.push(format!("{place}: `{word}`; use: {instead}"));
    }

    fn comments(&mut self, path: &str, text: &str, width: usize) {
        if !path.ends_with(".rs") {
            return;
        }
        for (number, line) in (1..).zip(text.lines()) {
            let comment = line.trim_start();
            if !comment.starts_with("//") {
                continue;
            }
            // A link or a row of a table cannot be wrapped.
            let rigid =
                comment.contains("://") || comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
            if line.chars().count() > width && !rigid {
                self.findings.push(format!("{path}:{number}: comment wider than {width} columns"));
            }
            if comment.contains("See the head of this file") {
                self.findings.push(format!("{path}:{number}: say in this line what the type is for"));
            }
        }
    }

    /// Notes the public types of a library or program; those of tests have no users elsewhere.
    fn types(&mut self, path: &str, text: &str) {
        let Some((of, file)) = path.split_once("/src/") else { return };
        if file.contains("tests/") || file.ends_with("tests.rs") {
            return;
        }
        for line in text.lines() {
            let Some(item) = line.trim_start().strip_prefix("pub ") else { continue };
            let item =
                ["struct ", "enum ", "trait ", "type "].iter().find_map(|word| item.strip_prefix(word));
            if let Some(item) = item {
                let name: String = item.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                self.types.entry(name).or_default().insert(of.to_owned(), path.to_owned());
            }
        }
    }

    fn shared_types(&mut self) {
        for (name, crates) in &self.types {
            if crates.len() > 1 && lookup(SHARED_TYPES, name).is_none() {
                let files: Vec<&str> = crates.values().map(String::as_str).collect();
                self.findings.push(format!("public type `{name}` in several crates: {}", files.join(", ")));
            }
        }
    }

    fn unused_exceptions(&mut self) {
        for (index, (prefix, word, _)) in ALLOWED.iter().enumerate() {
            if !self.used.contains(&index) {
                self.findings
                    .push(format!("the exception for `{word}` in {prefix} excuses nothing: remove it"));
            }
        }
        for (name, _) in SHARED_TYPES {
            if self.types.get(*name).is_none_or(|crates| crates.len() < 2) {
                self.findings.push(format!("the exception for the type `{name}` excuses nothing: remove it"));
            }
        }
    }
}

fn lookup(table: &[(&str, &'static str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(avoided, _)| *avoided == word).map(|(_, instead)| *instead)
}

/// The identifiers of a line of code, without those in its string literals and comments.
fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    let outside_strings = code.split('"').step_by(2);
    outside_strings.flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_'))
}

/// The words of a line in lower case: `NewClient::read_all` is new, client, read, all.
fn split(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = ' ';
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter.is_ascii_alphabetic() {
            let after = letters.peek().copied().unwrap_or(' ');
            let begins = !before.is_ascii_alphabetic()
                || letter.is_ascii_uppercase() && (before.is_ascii_lowercase() || after.is_ascii_lowercase());
            match words.last_mut() {
                Some(word) if !begins => word.push(letter.to_ascii_lowercase()),
                _ => words.push(letter.to_ascii_lowercase().to_string()),
            }
        }
        before = letter;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_in(path: &str, text: &str) -> Vec<String> {
        let mut checker = Checker::default();
        checker.words(path, text);
        checker.findings
    }

    #[test]
    fn identifiers_are_split_into_words() {
        assert_eq!(
            split("fn read_allHTTPBodies(x: Vec<u8>)"),
            ["fn", "read", "all", "http", "bodies", "x", "vec", "u"]
        );
    }

    #[test]
    fn a_word_is_found_in_prose_and_in_identifiers_with_file_line_and_replacement() {
        let found = words_in("crates/core/src/a.rs", "// fine\nlet newborn_count = 1; // whoever asks\n");
        assert_eq!(
            found,
            [
                "crates/core/src/a.rs:2: `newborn`; use: expectations",
                "crates/core/src/a.rs:2: `whoever`; use: name the program or the object",
            ]
        );
    }

    #[test]
    fn a_type_name_is_found_in_code_and_the_same_word_in_a_comment_is_not() {
        assert_eq!(words_in("crates/core/src/a.rs", "// Keep it short. Follow the link.\n"), [] as [&str; 0]);
        assert_eq!(words_in("crates/core/src/a.rs", "struct Follow;\n").len(), 1);
        assert_eq!(words_in("crates/core/src/a.rs", "read(\"Last Seen\", seen);\n"), [] as [&str; 0]);
    }

    #[test]
    fn a_file_name_is_checked_too() {
        assert_eq!(
            words_in("crates/cell/src/newborns.rs", ""),
            ["crates/cell/src/newborns.rs: its name: `newborns`; use: expectations"]
        );
    }

    #[test]
    fn a_public_type_in_two_crates_is_found() {
        let mut checker = Checker::default();
        checker.types("crates/core/src/a.rs", "pub struct Thing;\n");
        checker.types("crates/cell/src/b.rs", "    pub enum Thing {\n");
        checker.types("crates/cell/src/c.rs", "pub(crate) struct Other;\nstruct Thing;\n");
        checker.shared_types();
        assert_eq!(
            checker.findings,
            ["public type `Thing` in several crates: crates/cell/src/b.rs, crates/core/src/a.rs"]
        );
    }

    #[test]
    fn a_wide_comment_is_found_unless_it_cannot_be_wrapped() {
        let mut checker = Checker::default();
        let wide = format!(
            "// {}\n// https://example.com/{}\n//! | {} |\n",
            "x ".repeat(60),
            "x".repeat(120),
            "x ".repeat(60)
        );
        checker.comments("crates/core/src/a.rs", &wide, 110);
        assert_eq!(checker.findings, ["crates/core/src/a.rs:1: comment wider than 110 columns"]);
    }
}
