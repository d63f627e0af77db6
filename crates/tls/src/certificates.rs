//! A certificate that follows its source.
//!
//! The source is looked at before each handshake: nothing runs in between, and the handshake after a renewal has the new
//! certificate. What cannot be used, half of a renewal perhaps, leaves the certificate from before in force.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use crate::{Handshake, TlsError};

/// What tells one state of a source from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp(pub String);

/// Where a certificate comes from; shown, it says where.
pub trait Source: fmt::Display + Send + Sync + 'static {
    /// What is there, if it is another state than this. Called before every handshake: it must be cheap where nothing has
    /// changed, and wait for nobody.
    fn renewed(&self, before: &Stamp) -> Option<(Stamp, Result<ServerConfig, TlsError>)>;
}

/// A certificate that follows its source. Cheap to clone.
#[derive(Clone)]
pub struct Certificates {
    source: Arc<dyn Source>,
    current: Arc<Mutex<Current>>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// The state that `config` is from, or that could not be used.
    stamp: Stamp,
}

impl Certificates {
    /// Begins with what the source had in the state of this stamp.
    pub fn new(source: impl Source, stamp: Stamp, config: ServerConfig) -> Self {
        let current = Current { config: Arc::new(config), stamp };
        Self { source: Arc::new(source), current: Arc::new(Mutex::new(current)) }
    }
}

impl Handshake for Certificates {
    /// With the newest certificate that could be read.
    fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        if let Some((stamp, loaded)) = self.source.renewed(&current.stamp) {
            match loaded {
                Ok(config) => {
                    current.config = Arc::new(config);
                    tracing::info!(source = %self.source, "certificate renewed");
                }
                // Said once for each state.
                Err(error) => tracing::warn!(%error, "going on with the certificate from before"),
            }
            current.stamp = stamp;
        }
        TlsAcceptor::from(current.config.clone())
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificates({})", self.source)
    }
}
