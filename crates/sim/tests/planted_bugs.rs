//! The simulation finds every planted bug within a few seeds.

use polis_sim::{Detail, Plan, planted_bugs, run};

/// Seeds that are tried for each bug.
const SEEDS: u64 = 16;

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in planted_bugs::ALL {
        let found = (1..=SEEDS).find_map(|seed| {
            let plan = Plan { planted: Some(bug), ..Plan::generate(seed) };
            let report = run(&plan, Detail::Timeline);
            // A run that cannot begin finds the bug as well.
            match report {
                Ok(report) => report.violations.first().map(|found| (seed, found.invariant.to_owned())),
                Err(error) => Some((seed, format!("{error:#}"))),
            }
        });
        match found {
            Some((seed, invariant)) => {
                println!("| `{}` | {} | `{invariant}` | {seed} |", bug.name, bug.about)
            }
            None => missed.push(bug.name),
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
