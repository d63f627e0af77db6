//! The injected wall clock.
//!
//! The wall clock is only for timestamps that are written into objects (creation, leases, events). It is
//! injected so that a test can reproduce a run to the byte. Timers use the clock of the async runtime.
//!
//! ```
//! use jiff::{SignedDuration, Timestamp};
//! use polis_apimachinery::clock::Clock;
//!
//! let clock = Clock::custom(|| Timestamp::UNIX_EPOCH);
//! assert_eq!(clock.skewed(SignedDuration::from_secs(5)).now().as_second(), 5);
//! ```

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// A source of wall-clock time. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    Custom(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

impl Clock {
    /// The system clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that calls `now`.
    pub fn custom(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Source::Custom(Arc::new(now)))
    }

    /// The same clock with a constant offset, to simulate a replica with clock skew.
    pub fn skewed(&self, by: SignedDuration) -> Self {
        let inner = self.clone();
        Self::custom(move || inner.now() + by)
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::now(),
            Source::Custom(now) => now(),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Source::System => "Clock(system)",
            Source::Custom(_) => "Clock(custom)",
        })
    }
}
