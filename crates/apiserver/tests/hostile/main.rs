//! Hostile input: for every parser that the network reaches, inputs bred from good ones. No panic, no 5xx, and memory
//! stays bounded.
//!
//! The inputs follow from a seed, so a failure can be repeated. `POLIS_HOSTILE_INPUTS` is the number per parser (500
//! unless told otherwise), `POLIS_HOSTILE_SEED` another seed.

mod breed;
#[path = "../common/mod.rs"]
mod common;
mod targets;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use polis_apiserver::Service;
use rand::{SeedableRng, rngs::StdRng};

use breed::Breed;

/// Growth of the process that is taken for a leak: far above what the largest inputs need at once.
const GROWTH_MAX_KIB: u64 = 512 << 10;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Resident memory of this process; none where the system does not say.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Kubernetes itself answers 500 to three mistakes of clients, and so do we; every other 5xx is a fault.
fn is_as_in_kubernetes(body: &[u8]) -> bool {
    let status: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = status["message"].as_str().unwrap_or_default();
    message.starts_with("failed to create typed patch object")
        || message == "resourceVersion should not be set on objects to be created"
        || message.starts_with("resourceVersion: Invalid value: ")
}

/// A request with its whole body.
type Asked = Request<Full<Bytes>>;

/// One way into the server: good inputs, and how an input becomes a request.
struct Target {
    name: &'static str,
    good: Vec<Vec<u8>>,
    /// Pieces that mean something to the parser.
    words: &'static [&'static str],
    request: fn(&[u8], u64) -> Option<Asked>,
}

/// Breeds inputs for a target and sends them all.
async fn attack(service: &Service, target: Target) {
    let (count, seed) = (number("POLIS_HOSTILE_INPUTS", 500), number("POLIS_HOSTILE_SEED", 1));
    let mut breed = Breed::new(&target.good, target.words, StdRng::seed_from_u64(seed));
    let before = resident_kib();
    let (mut sent, mut taken) = (0_u64, 0_u64);
    for n in 0..count {
        let input = breed.next();
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
        taken += u64::from(code < 300);
    }
    println!("{}: {sent} inputs, {taken} of them good", target.name);
    assert!(taken > 0, "{}: no input was good, so nothing behind the parser was reached", target.name);
    assert!(sent * 2 > count, "{}: only {sent} of {count} inputs could be sent at all", target.name);
    if let (Some(before), Some(after)) = (before, resident_kib()) {
        assert!(after < before + GROWTH_MAX_KIB, "{}: memory grew from {before} to {after} KiB", target.name);
    }
}

macro_rules! hostile {
    ($($(#[$doc:meta])* $sentence:ident => $target:ident),* $(,)?) => {
        $( $(#[$doc])* #[tokio::test] async fn $sentence() {
            attack(&targets::mk_service().await, targets::$target()).await;
        } )*
    };
}

hostile! {
    bodies_of_objects_are_read_without_trust => bodies,
    protobuf_is_read_without_trust => protobuf,
    patches_are_read_without_trust => patches,
    selectors_are_read_without_trust => selectors,
    continue_tokens_are_read_without_trust => tokens,
    rules_are_read_without_trust => rules,
    schemas_are_read_without_trust => schemas,
    paths_are_read_without_trust => paths,
}
