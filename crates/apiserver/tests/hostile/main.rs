//! Fuzz test of every parser that network input reaches: no panic, no 5xx, bounded memory.
//!
//! Inputs are mutations of valid ones, from a fixed seed, so a failure can be repeated.
//! `POLIS_HOSTILE_INPUTS` sets the number per parser (default 500), `POLIS_HOSTILE_SEED` the seed.

#[path = "../common/mod.rs"]
mod common;
mod mutator;
mod targets;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use polis_apiserver::Service;
use rand::{SeedableRng, rngs::StdRng};

use mutator::Mutator;

/// Growth of the process that counts as a leak: far above the size of the largest inputs.
const GROWTH_MAX_KIB: u64 = 512 << 10;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Resident memory of this process; `None` if the system does not report it.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Kubernetes returns 500 for three client errors, and this server does too. Every other 5xx is a bug.
fn is_as_in_kubernetes(body: &[u8]) -> bool {
    let status: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = status["message"].as_str().unwrap_or_default();
    message.starts_with("failed to create typed patch object")
        || message == "resourceVersion should not be set on objects to be created"
        || message.starts_with("resourceVersion: Invalid value: ")
}

/// A request with its whole body.
type TestRequest = Request<Full<Bytes>>;

/// A parser to test: valid inputs, and the request of an input.
struct FuzzTarget {
    name: &'static str,
    valid: Vec<Vec<u8>>,
    /// Tokens of the parser's grammar.
    tokens: &'static [&'static str],
    request: fn(&[u8], u64) -> Option<TestRequest>,
}

/// Sends mutated inputs to a target.
async fn fuzz(service: &Service, target: FuzzTarget) {
    let (count, seed) = (number("POLIS_HOSTILE_INPUTS", 500), number("POLIS_HOSTILE_SEED", 1));
    let mut mutator = Mutator::new(&target.valid, target.tokens, StdRng::seed_from_u64(seed));
    let before = resident_kib();
    let (mut sent, mut accepted) = (0_u64, 0_u64);
    for n in 0..count {
        let input = mutator.next();
        let Some(request) = (target.request)(&input, n) else { continue };
        let response = service.handle(request).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert!(
            code < 500 || is_as_in_kubernetes(&body),
            "{} input {n} of seed {seed} got {code}: {}\n{}",
            target.name,
            String::from_utf8_lossy(&body),
            String::from_utf8_lossy(&input)
        );
        sent += 1;
        accepted += u64::from(code < 300);
    }
    println!("{}: {sent} inputs, {accepted} accepted", target.name);
    assert!(
        accepted > 0,
        "{}: no input was accepted, so the code behind the parser was not reached",
        target.name
    );
    assert!(sent * 2 > count, "{}: only {sent} of {count} inputs could be sent", target.name);
    if let (Some(before), Some(after)) = (before, resident_kib()) {
        assert!(after < before + GROWTH_MAX_KIB, "{}: memory grew from {before} to {after} KiB", target.name);
    }
}

macro_rules! hostile {
    ($($(#[$doc:meta])* $sentence:ident => $target:ident),* $(,)?) => {
        $( $(#[$doc])* #[tokio::test] async fn $sentence() {
            fuzz(&targets::mk_service().await, targets::$target()).await;
        } )*
    };
}

hostile! {
    bodies_of_objects_from_hostile_input_are_handled => bodies,
    protobuf_from_hostile_input_is_handled => protobuf,
    patches_from_hostile_input_are_handled => patches,
    selectors_from_hostile_input_are_handled => selectors,
    continue_tokens_from_hostile_input_are_handled => tokens,
    rules_from_hostile_input_are_handled => rules,
    schemas_from_hostile_input_are_handled => schemas,
    paths_from_hostile_input_are_handled => paths,
}
