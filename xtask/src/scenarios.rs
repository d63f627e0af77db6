//! Checks that the ids of scenarios in the tree are those of `docs/dev/scenarios.md`, in both directions.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, bail};

use crate::crds::root;
use crate::words;

const PAGE: &str = "docs/dev/scenarios.md";

/// Fails when a file names a scenario that the page does not have, or when no test names a scenario of the
/// page.
pub(crate) fn check() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE)).with_context(|| format!("failed to read {PAGE}"))?;
    let described = rows(&page);
    let mut tested = BTreeSet::new();
    let mut unknown = Vec::new();
    for path in words::files()?.into_iter().filter(|path| path != PAGE) {
        let in_tests = path.starts_with("e2e/") && path.ends_with(".rs");
        if !in_tests && !path.starts_with("xtask/src/e2e") && !path.starts_with("docs/") {
            continue;
        }
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for id in ids(&text) {
            if !described.contains(&id) {
                unknown.push(format!("{path} names {id}"));
            }
            if in_tests {
                tested.insert(id);
            }
        }
    }
    let untested =
        described.iter().filter(|id| !tested.contains(*id)).map(|id| format!("no test names {id}"));
    let mismatches: Vec<String> = unknown.into_iter().chain(untested).collect();
    if !mismatches.is_empty() {
        bail!("{PAGE} does not match the tests: {}", mismatches.join("; "));
    }
    Ok(())
}

/// The ids in the first column of the tables.
fn rows(page: &str) -> BTreeSet<String> {
    page.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()).flat_map(ids).collect()
}

/// Words that are the id of a scenario: F or O and a number.
fn ids(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_id = |word: &&str| {
        word.strip_prefix(['F', 'O']).is_some_and(|number| {
            (1..=2).contains(&number.len()) && number.bytes().all(|digit| digit.is_ascii_digit())
        })
    };
    words.filter(is_id).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_whole_words() {
        let found = ids("F1, O12: not F, OF1, F1a, F100 or F_1; (O3)");
        assert_eq!(found, ["F1", "O12", "O3"].map(str::to_owned).into());
    }

    #[test]
    fn the_first_column_of_a_table_has_the_ids() {
        assert_eq!(rows("| id | what |\n|---|---|\n| F1 | after O1 |\n"), ["F1".to_owned()].into());
    }
}
