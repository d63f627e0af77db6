//! The seams through which time and chance enter the server.
//!
//! Timestamps come from [`Clock`] and uids, name suffixes and timeouts from [`Chance`], so that a simulation can
//! replay a run bit for bit. Waiting goes through tokio's clock, which a simulation pauses.

use jiff::Timestamp;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// The wall clock of the server: what `creationTimestamp` and its like are read from.
pub trait Clock: Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// The letters Kubernetes makes name suffixes of: no vowels and no look-alikes, so that no word appears by accident.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The one source of randomness: uids, generated names, spread of timeouts.
pub struct Chance {
    rng: Mutex<Box<dyn Rng + Send>>,
}

impl std::fmt::Debug for Chance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chance")
    }
}

impl Default for Chance {
    fn default() -> Self {
        Self::new(rand::make_rng::<StdRng>())
    }
}

impl Chance {
    /// Chance drawn from `rng`.
    pub fn new(rng: impl Rng + Send + 'static) -> Self {
        Self { rng: Mutex::new(Box::new(rng)) }
    }

    /// Chance that repeats itself exactly for the same `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self::new(StdRng::seed_from_u64(seed))
    }

    /// A fresh random (version 4) uid in its text form.
    pub fn uid(&self) -> String {
        let mut bytes = [0u8; 16];
        self.rng.lock().fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    /// Five letters for `generateName`.
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
        let (a, b) = (Chance::seeded(7), Chance::seeded(7));
        assert_eq!(a.uid(), b.uid());
        assert_eq!(a.suffix(), b.suffix());
    }

    #[test]
    fn a_suffix_has_five_letters_a_name_may_hold() {
        let suffix = Chance::seeded(1).suffix();
        assert_eq!(suffix.len(), 5);
        assert!(suffix.bytes().all(|b| SUFFIX_ALPHABET.contains(&b)));
    }
}
