//! The injected random source: one seed, and a separate stream for each component.
//!
//! Components must not share a stream. If they did, the numbers of each would depend on the order in which
//! tasks run, and one more draw in one component would change the numbers of all others.
//!
//! ```
//! use polis_apimachinery::random::Random;
//!
//! let random = Random::from_seed(7);
//! assert_eq!(random.split("watch").next(), Random::from_seed(7).split("watch").next());
//! assert_eq!(random.uid().len(), 36);
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

/// The alphabet of name suffixes in Kubernetes: without vowels and look-alikes, so that no words result.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A stream of random numbers. Cheap to clone; clones share the stream.
#[derive(Clone)]
pub struct Random {
    seed: u64,
    stream: Arc<Mutex<StdRng>>,
}

impl Random {
    /// A stream with a fixed seed, which always yields the same numbers.
    pub fn from_seed(seed: u64) -> Self {
        Self { seed, stream: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))) }
    }

    /// A stream with a seed from the operating system.
    pub fn from_entropy() -> Self {
        Self::from_seed(rand::rng().next_u64())
    }

    /// A separate stream for the component `label`. It depends only on the seed and the label, not on earlier
    /// draws.
    pub fn split(&self, label: &str) -> Self {
        // FNV-1a: stable across platforms and releases, which std's hashers are not.
        let hash = label.bytes().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self::from_seed(hash)
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        self.stream.lock().next_u64()
    }

    /// A number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// A new version 4 UUID as text, for `metadata.uid`.
    pub fn uid(&self) -> String {
        let mut bytes = [0u8; 16];
        self.stream.lock().fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    /// Five characters for `metadata.generateName`.
    pub fn suffix(&self) -> String {
        let mut bytes = [0u8; 5];
        self.stream.lock().fill_bytes(&mut bytes);
        bytes.iter().map(|b| char::from(SUFFIX_ALPHABET[usize::from(*b) % SUFFIX_ALPHABET.len()])).collect()
    }

    /// A number from 0 (inclusive) to 1 (exclusive).
    pub fn fraction(&self) -> f64 {
        self.stream.lock().random::<f64>()
    }

    /// `base` plus a random part of up to `share` × `base`.
    pub fn jitter(&self, base: Duration, share: f64) -> Duration {
        base.mul_f64(1.0 + share * self.fraction())
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::from_entropy()
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Random({:#018x})", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_stream_does_not_depend_on_draws_from_other_streams() {
        let first = Random::from_seed(7);
        let quiet = first.split("watch").next();
        let second = Random::from_seed(7);
        second.next();
        second.split("queue").next();
        assert_eq!(second.split("watch").next(), quiet);
        assert_ne!(second.split("queue").next(), quiet);
    }

    #[test]
    fn the_same_seed_gives_the_same_uids_and_names() {
        let (a, b) = (Random::from_seed(7), Random::from_seed(7));
        assert_eq!(a.uid(), b.uid());
        assert_eq!(a.suffix(), b.suffix());
    }

    #[test]
    fn a_suffix_has_five_characters_that_are_valid_in_names() {
        let suffix = Random::from_seed(1).suffix();
        assert_eq!(suffix.len(), 5);
        assert!(suffix.bytes().all(|b| SUFFIX_ALPHABET.contains(&b)));
    }

    #[test]
    fn jitter_adds_at_most_the_given_share() {
        let random = Random::from_seed(1);
        for _ in 0..1000 {
            let drawn = random.jitter(Duration::from_secs(10), 0.5);
            assert!(drawn >= Duration::from_secs(10) && drawn < Duration::from_secs(15));
        }
    }
}
