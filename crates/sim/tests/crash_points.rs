//! A crash after some writes of each scenario. `cargo xtask sim --crash-points` tries every one.

use polis_sim::crash_points::{crash_points, run_with_crash, scenarios};

/// One of so many crash points is tried in the gate, another one in each scenario.
const SHARE: usize = 40;

#[test]
fn a_crash_after_a_write_breaks_no_invariant() {
    let mut broken = Vec::new();
    for (number, (name, plan)) in scenarios().iter().enumerate() {
        let points = crash_points(plan).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert!(points.len() > 20, "{name}: {} writes are too few", points.len());
        for point in points.iter().skip(number).step_by(SHARE) {
            let report = run_with_crash(plan, point).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            let reported =
                report.violations.iter().map(|violation| format!("{name}, {point:?}: {violation}"));
            broken.extend(reported);
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
