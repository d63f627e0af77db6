//! [`ReloadingCertificate`]: a serving certificate that is reloaded when its source changes.
//!
//! The source is checked before each handshake, so no background task is needed and the first handshake after
//! a renewal uses the new certificate. If the new state cannot be loaded, for example in the middle of a
//! renewal, the previous certificate stays in use.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use crate::{AcceptorProvider, CertificateError};

/// The version of a source's content. A different version means that the content has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceVersion(pub String);

/// Where a certificate is loaded from. `Display` names the place, for messages.
pub trait CertificateSource: fmt::Display + Send + Sync + 'static {
    /// The current version and configuration, if the version differs from `before`. Called before every
    /// handshake: it must not block, and must be cheap if nothing has changed.
    fn renewed(
        &self,
        before: &SourceVersion,
    ) -> Option<(SourceVersion, Result<ServerConfig, CertificateError>)>;
}

/// A serving certificate that is reloaded when its source changes. Cheap to clone.
#[derive(Clone)]
pub struct ReloadingCertificate {
    source: Arc<dyn CertificateSource>,
    current: Arc<Mutex<Current>>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// The last checked version: that of `config`, or a newer one that could not be loaded.
    version: SourceVersion,
}

impl ReloadingCertificate {
    /// Starts with the configuration that was loaded from this version of the source.
    pub fn new(source: impl CertificateSource, version: SourceVersion, config: ServerConfig) -> Self {
        let current = Current { config: Arc::new(config), version };
        Self { source: Arc::new(source), current: Arc::new(Mutex::new(current)) }
    }
}

impl AcceptorProvider for ReloadingCertificate {
    /// An acceptor with the newest certificate that could be loaded.
    fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        if let Some((version, loaded)) = self.source.renewed(&current.version) {
            match loaded {
                Ok(config) => {
                    current.config = Arc::new(config);
                    tracing::info!(source = %self.source, "reloaded the certificate");
                }
                // Logged once for each version.
                Err(error) => {
                    tracing::warn!(%error, "failed to reload the certificate; using the previous one")
                }
            }
            current.version = version;
        }
        TlsAcceptor::from(current.config.clone())
    }
}

impl fmt::Debug for ReloadingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReloadingCertificate({})", self.source)
    }
}
