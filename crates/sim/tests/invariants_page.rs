//! The page of the invariants lists each of them, and no other.

use std::collections::BTreeSet;

use polis_sim::invariants;

#[test]
fn the_page_lists_every_invariant() {
    let page = include_str!("../../../docs/dev/invariants.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let listed: BTreeSet<&str> = rows.map(|(id, _)| id).collect();
    assert_eq!(listed, invariants::ALL.iter().copied().collect::<BTreeSet<_>>());
}
