//! The corpus: seeds that cover much, and seeds that once failed. Each runs twice with the same digest.

use polis_sim::{Detail, Plan, Report, run};

/// Seeds of the gate: the first ones, and each seed that once found a defect, with what it found.
const CORPUS: &[(u64, &str)] = &[
    (1, "freezes, rollouts, re-creation under one name"),
    (2, "crashes after writes, links that fail"),
    (3, "crashes of both cells"),
    (4, "crashes of every process, a move"),
    (5, "links that fail during a move"),
    (6, "three cities, limits of quota, moves"),
    (8, "crashes of the federation and the platform"),
    (9, "crashes and freezes of two cells"),
    (21, "deletions by hand"),
    (27, "deletions by hand, of other objects"),
];

/// How many seeds run twice.
const TWICE: usize = 3;

fn run_seed(seed: u64) -> Report {
    run(&Plan::generate(seed), Detail::Timeline).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"))
}

#[test]
fn no_seed_of_the_corpus_breaks_an_invariant() {
    let broken: Vec<String> = CORPUS
        .iter()
        .flat_map(|(seed, about)| {
            let report = run_seed(*seed);
            let reported = move |violation| format!("seed {seed} ({about}): {violation}");
            report.violations.into_iter().map(reported).collect::<Vec<_>>()
        })
        .collect();
    assert!(broken.is_empty(), "replay with `cargo xtask sim --seed N`:\n{}", broken.join("\n"));
}

#[test]
fn the_same_seed_gives_the_same_requests_responses_and_times() {
    for (seed, _) in &CORPUS[..TWICE.min(CORPUS.len())] {
        let (first, second) = (run_seed(*seed), run_seed(*seed));
        assert_eq!(
            (first.digest, first.steps),
            (second.digest, second.steps),
            "two runs of seed {seed} differ: `cargo xtask sim --seed {seed} --twice` shows where"
        );
    }
}
