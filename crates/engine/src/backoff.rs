//! Exponential back-off with jitter.

use std::time::Duration;

use crate::Random;

/// Exponential back-off: the delay doubles with each failure up to `cap`, and jitter keeps clients from
/// retrying at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    /// The longest delay, before jitter.
    pub cap: Duration,
}

impl Backoff {
    /// The delay after `failures` failures in a row: the nominal delay plus up to 50 % of jitter.
    pub fn delay(&self, failures: u32, random: &Random) -> Duration {
        random.jitter(self.nominal(failures), 0.5)
    }

    /// The delay before jitter.
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
    fn the_delay_doubles_up_to_the_cap() {
        let nominal = |failures| BACKOFF.nominal(failures).as_millis();
        assert_eq!([1, 2, 3, 10, 17, 1000].map(nominal), [5, 10, 20, 2560, 300_000, 300_000]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn the_delay_is_between_nominal_and_one_and_a_half_times_nominal(failures in 1u32.., seed: u64) {
            let delay = BACKOFF.delay(failures, &Random::from_seed(seed));
            prop_assert!(delay >= BACKOFF.nominal(failures) && delay <= BACKOFF.nominal(failures).mul_f64(1.5));
        }
    }
}
