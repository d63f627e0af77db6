//! Deletions with a part of the installation away: nothing runs that is not shown, and nothing is shown that
//! is gone.

use polis_sim::Violation;
use polis_sim::deletion::{Moment, Outage, WEEK, abandon, delete_with_outage, return_of_a_cell};

fn assert_holds(what: &str, found: anyhow::Result<Vec<Violation>>) {
    let violations = found.unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{what}:\n{}", lines.join("\n"));
}

#[test]
fn a_deletion_with_one_part_away_leaves_nothing_and_nothing_runs_unseen() {
    for outage in Outage::ALL {
        for moment in Moment::ALL {
            assert_holds(&format!("{outage:?} {moment:?}"), delete_with_outage(outage, moment));
        }
    }
}

#[test]
fn an_abandoned_cell_is_cleaned_up_when_it_returns() {
    assert_holds("abandon", abandon());
}

#[test]
fn a_cell_that_returns_after_a_week_ends_what_was_deleted_meanwhile() {
    assert_holds("a week", return_of_a_cell(WEEK));
}
