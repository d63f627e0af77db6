//! Generates the pages of `docs/reference/` and tests that they are up to date.
//!
//! `POLIS_WRITE_DOCS=1 cargo test --bin polis` writes them.

mod events;
mod kinds;

use std::path::{Path, PathBuf};

use clap::Command;

/// Columns of the help texts in the reference.
const WIDTH: usize = 100;

/// The page `docs/reference/cli.md`.
fn cli_page() -> String {
    let mut page = String::from(
        "# Command line\n\n<!-- Generated from the command line of `polis`; update with `POLIS_WRITE_DOCS=1 cargo test --bin polis`. -->\n",
    );
    describe(&crate::command().term_width(WIDTH), "polis", &mut page);
    page
}

fn describe(command: &Command, path: &str, page: &mut String) {
    let help = command.clone().bin_name(path).term_width(WIDTH).render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    page.push_str(&format!("\n## {path}\n\n```text\n{}\n```\n", lines.join("\n").trim_end()));
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help" && !verb.is_hide_set()) {
        describe(verb, &format!("{path} {}", verb.get_name()), page);
    }
}

fn check(name: &str, text: &str) {
    check_page(&format!("docs/reference/{name}"), text);
}

/// Compares a generated page with the file at this path of the repository.
pub fn check_page(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    if std::env::var_os("POLIS_WRITE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let existing = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        existing == text,
        "{name} is out of date; update it with POLIS_WRITE_DOCS=1 cargo test --bin polis"
    );
}

#[test]
fn the_command_line_page_is_up_to_date() {
    check("cli.md", &cli_page());
}

#[test]
fn the_reasons_page_is_up_to_date() {
    check("reasons.md", &(crate::view::reasons::page() + &events::section()));
}

#[test]
fn the_clap_command_is_valid() {
    crate::command().debug_assert();
}

#[test]
fn the_kinds_page_is_up_to_date() {
    check("kinds.md", &kinds::page());
}

/// The anchor of a heading as GitHub generates it: lower case, spaces as dashes, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

fn pages_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let pages = entries.flat_map(|path| match path.is_dir() {
        true => pages_below(&path),
        false => vec![path],
    });
    pages.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
}

#[test]
fn every_link_of_the_documentation_has_a_target() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let own = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name));
    let mut lost = Vec::new();
    for page in own.into_iter().chain(pages_below(&root.join("docs"))) {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, part) = link.split_once('#').unwrap_or((link, ""));
            if link.contains("://") {
                continue;
            }
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let there = match (target.exists(), part) {
                (there, "") => there,
                (false, _) => false,
                (true, part) => {
                    let text = std::fs::read_to_string(&target).unwrap();
                    let mut heads = text.lines().filter(|line| line.starts_with('#'));
                    heads.any(|head| anchor(head.trim_start_matches('#')) == part)
                }
            };
            if !there {
                lost.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}
