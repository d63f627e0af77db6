//! Deletions with a part of the installation away: nothing runs that is not shown, and nothing is shown that
//! is gone.

use polis_sim::deletion::{CaseReport, Moment, Outage, WEEK, abandon, delete_with_outage, return_of_a_cell};

/// The broken invariants of a case, with the writes before.
fn broken(what: &str, found: anyhow::Result<CaseReport>) -> Option<String> {
    let CaseReport { violations, entries } = found.unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let lines: Vec<String> = violations.iter().map(|violation| format!("{what}: {violation}")).collect();
    let last = violations.iter().map(|violation| violation.step).max()?;
    let before = entries.iter().filter(|entry| entry.step <= last);
    let writes: Vec<String> = before.map(ToString::to_string).collect();
    let writes = &writes[writes.len().saturating_sub(80)..];
    Some(format!("{}\n{}", writes.join("\n"), lines.join("\n")))
}

fn assert_holds(what: &str, found: anyhow::Result<CaseReport>) {
    if let Some(broken) = broken(what, found) {
        panic!("{broken}");
    }
}

#[test]
fn a_deletion_with_one_part_away_leaves_nothing_and_nothing_runs_unseen() {
    let cases = Outage::ALL.into_iter().flat_map(|outage| Moment::ALL.map(|moment| (outage, moment)));
    let run =
        |(outage, moment)| broken(&format!("{outage:?} {moment:?}"), delete_with_outage(outage, moment));
    let found: Vec<String> = cases.filter_map(run).collect();
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

#[test]
fn an_abandoned_cell_is_cleaned_up_when_it_returns() {
    assert_holds("abandon", abandon());
}

#[test]
fn a_cell_that_returns_after_a_week_ends_what_was_deleted_meanwhile() {
    assert_holds("a week", return_of_a_cell(WEEK));
}
