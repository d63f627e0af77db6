//! Injection points for time and randomness.
//!
//! Timestamps come from [`TimeSource`]; uids, name suffixes and watch timeouts come from [`RandomSource`], so
//! that a test can replay a run exactly. Timers use tokio's clock, which a test can pause.

use jiff::Timestamp;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// The wall clock of `creationTimestamp` and other timestamps in objects.
pub trait TimeSource: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// The clock of the operating system.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl TimeSource for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// The alphabet of name suffixes in Kubernetes: without vowels and look-alikes, so that no words result.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The only source of randomness: for uids, generated names and the spread of watch timeouts.
pub struct RandomSource {
    rng: Mutex<Box<dyn Rng + Send>>,
}

impl std::fmt::Debug for RandomSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RandomSource")
    }
}

impl Default for RandomSource {
    fn default() -> Self {
        Self::new(rand::make_rng::<StdRng>())
    }
}

impl RandomSource {
    /// Draws from `rng`.
    pub fn new(rng: impl Rng + Send + 'static) -> Self {
        Self { rng: Mutex::new(Box::new(rng)) }
    }

    /// A source that yields the same sequence for the same `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self::new(StdRng::seed_from_u64(seed))
    }

    /// A new version 4 UUID, as text.
    pub fn uid(&self) -> String {
        let mut bytes = [0u8; 16];
        self.rng.lock().fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    /// Five characters for `generateName`.
    pub fn suffix(&self) -> String {
        let mut bytes = [0u8; 5];
        self.rng.lock().fill_bytes(&mut bytes);
        bytes.iter().map(|b| char::from(SUFFIX_ALPHABET[usize::from(*b) % SUFFIX_ALPHABET.len()])).collect()
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.rng.lock().next_u64() % bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_uids_and_names() {
        let (a, b) = (RandomSource::seeded(7), RandomSource::seeded(7));
        assert_eq!(a.uid(), b.uid());
        assert_eq!(a.suffix(), b.suffix());
    }

    #[test]
    fn a_suffix_has_five_characters_that_are_valid_in_names() {
        let suffix = RandomSource::seeded(1).suffix();
        assert_eq!(suffix.len(), 5);
        assert!(suffix.bytes().all(|b| SUFFIX_ALPHABET.contains(&b)));
    }
}
