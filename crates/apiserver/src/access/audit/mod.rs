//! Audit log: who asked for what, and what the server answered, as events of `audit.k8s.io/v1`.
//!
//! ```text
//!   request ─► Trail: user, decision, bodies ─► policy ─► queue ─► thread: event as JSON ─► file
//! ```
//!
//! A [`Trail`] follows one request from its arrival. It records an event when the response is complete, and
//! also when the client leaves before or the handler panics: the write may have been done. Everything that
//! costs time (the JSON, the disk) is done by one thread, so a request waits for neither.

mod event;
mod file;
mod trail;
mod writer;

pub use file::{AuditFile, AuditFileError};
pub(crate) use trail::{Completion, Trail};

use std::io;

use polis_apimachinery::{audit::AuditPolicy, random::Random};

use writer::Writer;

/// The group of the controllers that run in the process of the server. The default policy does not record
/// their routine writes.
pub const CONTROLLERS: &str = "polis:controllers";

/// An audit policy, and the log that it fills.
pub struct Audit {
    policy: AuditPolicy,
    writer: Writer,
    ids: Random,
}

impl Audit {
    /// Appends events to a file.
    pub fn to_file(policy: AuditPolicy, file: AuditFile) -> Result<Self, AuditFileError> {
        let mut log = file.open()?;
        let failed = |source| AuditFileError::new(file.path.clone(), source);
        Self::to_sink(policy, move |lines| log.append(lines)).map_err(failed)
    }

    /// Passes events to `append`, which a thread of its own calls with whole lines. After an error the lines
    /// count as lost.
    pub fn to_sink(
        policy: AuditPolicy,
        append: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        Ok(Self { policy, writer: Writer::start(append)?, ids: Random::from_entropy() })
    }

    /// Events written, and events lost because the queue was full or the file could not be written.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.writer.counts()
    }
}
