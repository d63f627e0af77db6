//! How long to wait after failures: twice as long each time, up to a cap, never in step with others.

use std::time::Duration;

use crate::Random;

/// Exponential back-off with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest wait, before jitter.
    pub cap: Duration,
}

impl Backoff {
    /// The wait after `failures` failures in a row: between the nominal time and one and a half of it.
    pub fn pause(&self, failures: u32, random: &Random) -> Duration {
        random.jitter(self.nominal(failures), 0.5)
    }

    /// The wait before jitter.
    pub fn nominal(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        self.first.saturating_mul(1 << doublings).min(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BACKOFF: Backoff = Backoff { first: Duration::from_millis(5), cap: Duration::from_secs(300) };

    #[test]
    fn it_doubles_up_to_the_cap() {
        let nominal = |failures| BACKOFF.nominal(failures).as_millis();
        assert_eq!([1, 2, 3, 10, 17, 1000].map(nominal), [5, 10, 20, 2560, 300_000, 300_000]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn it_stays_within_its_bounds(failures in 1u32.., seed: u64) {
            let pause = BACKOFF.pause(failures, &Random::from_seed(seed));
            prop_assert!(pause >= BACKOFF.nominal(failures) && pause <= BACKOFF.nominal(failures).mul_f64(1.5));
        }
    }
}
