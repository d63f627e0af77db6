//! [`shrink`]: finds the steps of a failing plan that are enough to fail.
//!
//! Removes steps and noise as long as the run still breaks one of the same invariants, first in halves, then
//! one by one.

use anyhow::Result;

use crate::journal::Detail;
use crate::plan::{Noise, Plan};
use crate::run::{Report, run};

/// A smaller plan that breaks one of the same invariants, and its report. Runs at most `runs` plans.
pub fn shrink(plan: &Plan, report: &Report, runs: usize) -> Result<(Plan, Report)> {
    let invariants: Vec<&str> = report.violations.iter().map(|violation| violation.invariant).collect();
    let mut left = runs;
    let mut fails = |candidate: &Plan| -> Result<Option<Report>> {
        if left == 0 {
            return Ok(None);
        }
        left -= 1;
        let report = run(candidate, Detail::Write)?;
        let same = report.violations.iter().any(|violation| invariants.contains(&violation.invariant));
        Ok(same.then_some(report))
    };
    let (mut smallest, mut last) = (plan.clone(), report.clone());
    let mut chunk = smallest.steps.len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        while from < smallest.steps.len() {
            let mut candidate = smallest.clone();
            let until = (from + chunk).min(candidate.steps.len());
            let removed: Vec<_> = candidate.steps.drain(from..until).collect();
            if let Some(next) = candidate.steps.get_mut(from) {
                next.after += removed.iter().map(|step| step.after).sum::<std::time::Duration>();
            }
            match fails(&candidate)? {
                Some(report) => (smallest, last) = (candidate, report),
                None => from = until,
            }
        }
        chunk /= 2;
    }
    for quieter in quieter(&smallest.noise) {
        let candidate = Plan { noise: quieter, ..smallest.clone() };
        if let Some(report) = fails(&candidate)? {
            (smallest, last) = (candidate, report);
        }
    }
    Ok((smallest, last))
}

/// The noise without one of its faults each, and without any.
fn quieter(noise: &Noise) -> Vec<Noise> {
    let n = || noise.clone();
    vec![
        Noise { latency: noise.latency, ..Noise::default() },
        Noise { refused: 0, ..n() },
        Noise { lost: 0, ..n() },
        Noise { response_lost: 0, ..n() },
        Noise { errors: 0, ..n() },
        Noise { watch_cut: 0, ..n() },
        Noise { watch_stall: 0, ..n() },
    ]
}
