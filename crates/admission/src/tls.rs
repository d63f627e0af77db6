//! The certificate of the webhook server, from files or a Secret that change under it.
//!
//! A Secret that is mounted into a pod is renewed by swapping a link, at any time. The files are looked at before each
//! handshake (three `stat` calls) and read when they have changed: nothing runs in between, and the handshake after a
//! renewal has the new certificate. A Secret that is not mounted is watched, and what the watch has seen is looked at in
//! the same way. What cannot be used, half of a renewal perhaps, leaves the certificate from before in force.

mod secret;

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

pub use secret::CertificateSecret;

/// Where a certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, with what links it to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority of clients, where they must show a certificate.
    pub clients: Option<PathBuf>,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("failed to read {}: {source}; the certificate is expected in the folder webhookServer.tls.certDir", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The Secret cannot be read.
    #[error(
        "failed to read {secret}, which webhookServer.tls.secretRef names: {source}; deploy/components/secret-webhook-cert grants it"
    )]
    Ask {
        /// The Secret.
        secret: String,
        /// Why.
        source: polis_engine::Error,
    },
    /// The Secret is not there, or lacks a key.
    #[error("failed to find {what}; webhookServer.tls.secretRef names the Secret of the certificate")]
    Missing {
        /// The Secret, or its key.
        what: String,
    },
    /// It is not PEM.
    #[error("failed to read {place} as PEM: {source}")]
    Pem {
        /// Where it is.
        place: String,
        /// Why.
        source: rustls_pki_types::pem::Error,
    },
    /// Certificate and key do not make a server.
    #[error("failed to use the certificate {place}: {source}")]
    Unusable {
        /// Where the certificate is.
        place: String,
        /// Why.
        source: rustls::Error,
    },
    /// The authority of clients cannot be used.
    #[error("failed to use the client authority {place}: {why}")]
    Clients {
        /// Where the authority is.
        place: String,
        /// Why.
        why: String,
    },
}

/// What tells one state of a certificate from another.
#[derive(Debug, PartialEq, Eq)]
enum Stamp {
    Files(Vec<Option<(u64, i64, i64, u64)>>),
    /// Identity and version of a Secret.
    Secret(Option<String>, Option<String>),
}

/// A certificate that follows its source.
#[derive(Debug)]
pub struct Certificates {
    source: Source,
    current: Mutex<Current>,
}

#[derive(Debug)]
enum Source {
    Files(CertificateFiles),
    Secret(CertificateSecret),
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// The state that `config` is from, or that could not be used.
    stamp: Stamp,
}

impl Certificates {
    /// The certificate that is in the files now.
    pub fn open(files: CertificateFiles) -> Result<Self, TlsError> {
        let stamp = files.stamp();
        let config = Arc::new(files.load()?);
        Ok(Self { source: Source::Files(files), current: Mutex::new(Current { config, stamp }) })
    }

    /// The certificate that is in the Secret now. Asks for it: the watch may not have seen anything yet.
    pub async fn of_secret(secret: CertificateSecret) -> Result<Self, TlsError> {
        let standing = secret.ask().await?;
        let stamp = secret::stamp(&standing);
        let config = Arc::new(secret.load(&standing)?);
        Ok(Self { source: Source::Secret(secret), current: Mutex::new(Current { config, stamp }) })
    }

    /// Shakes hands with the newest certificate that could be read.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
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

impl Source {
    /// What is there, if it is another state than this.
    fn renewed(&self, before: &Stamp) -> Option<(Stamp, Result<ServerConfig, TlsError>)> {
        match self {
            Self::Files(files) => {
                let stamp = files.stamp();
                (stamp != *before).then(|| (stamp, files.load()))
            }
            Self::Secret(secret) => {
                let seen = secret.seen()?;
                let stamp = secret::stamp(&seen);
                (stamp != *before).then(|| (stamp, secret.load(&seen)))
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(files) => write!(f, "{}", files.certificate.display()),
            Self::Secret(secret) => write!(f, "{secret}"),
        }
    }
}

/// PEM, and where it is from.
struct Pem {
    place: String,
    text: Vec<u8>,
}

impl Pem {
    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let wrong = |source| TlsError::Pem { place: self.place.clone(), source };
        CertificateDer::pem_slice_iter(&self.text).collect::<Result<_, _>>().map_err(wrong)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.text)
            .map_err(|source| TlsError::Pem { place: self.place.clone(), source })
    }
}

/// A server with this certificate, for clients of that authority where one is given.
fn server(certificate: &Pem, key: &Pem, clients: Option<&Pem>) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |source| TlsError::Unusable { place: certificate.place.clone(), source };
    let verifier = match clients {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(authority) => {
            let wrong = |why: String| TlsError::Clients { place: authority.place.clone(), why };
            let mut roots = RootCertStore::empty();
            for root in authority.certificates()? {
                roots.add(root).map_err(|error| wrong(error.to_string()))?;
            }
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| wrong(error.to_string()))?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificate.certificates()?, key.key()?)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

impl CertificateFiles {
    /// `tls.crt` and `tls.key` in a folder, as a mounted Secret has them.
    pub fn within(folder: &Path) -> Self {
        Self { certificate: folder.join("tls.crt"), key: folder.join("tls.key"), clients: None }
    }

    fn stamp(&self) -> Stamp {
        let files = [Some(&self.certificate), Some(&self.key), self.clients.as_ref()];
        let stat = |file: &PathBuf| {
            let meta = fs::metadata(file).ok()?;
            Some((meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()))
        };
        Stamp::Files(files.into_iter().flatten().map(stat).collect())
    }

    fn load(&self) -> Result<ServerConfig, TlsError> {
        let clients = self.clients.as_deref().map(read).transpose()?;
        server(&read(&self.certificate)?, &read(&self.key)?, clients.as_ref())
    }
}

fn read(file: &Path) -> Result<Pem, TlsError> {
    let text = fs::read(file).map_err(|source| TlsError::Read { file: file.to_owned(), source })?;
    Ok(Pem { place: file.display().to_string(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair in a folder of its own, as the kubelet writes each state of a Secret.
    fn put(folder: &Path, name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("tls.crt"), &certificate).unwrap();
        fs::write(folder.join("tls.key"), &key).unwrap();
        (certificate, key)
    }

    fn link(home: &Path, state: &str) {
        let _ = fs::remove_file(home.join("new"));
        std::os::unix::fs::symlink(state, home.join("new")).unwrap();
        fs::rename(home.join("new"), home.join("..data")).unwrap();
    }

    fn config(certificates: &Certificates) -> Arc<ServerConfig> {
        certificates.acceptor().config().clone()
    }

    #[test]
    fn a_renewed_secret_is_seen_by_the_next_handshake_and_no_sooner() {
        let home = tempfile::tempdir().unwrap();
        put(&home.path().join("one"), "a.example");
        put(&home.path().join("two"), "b.example");
        link(home.path(), "one");
        let certificates = Certificates::open(CertificateFiles::within(&home.path().join("..data"))).unwrap();
        let first = config(&certificates);
        assert!(Arc::ptr_eq(&first, &config(&certificates)), "read once");
        link(home.path(), "two");
        assert!(!Arc::ptr_eq(&first, &config(&certificates)));
    }

    #[test]
    fn half_of_a_renewal_leaves_the_old_certificate_in_force() {
        let home = tempfile::tempdir().unwrap();
        put(home.path(), "a.example");
        let certificates = Certificates::open(CertificateFiles::within(home.path())).unwrap();
        let first = config(&certificates);
        let (_, other_key) = put(&home.path().join("other"), "b.example");
        fs::write(home.path().join("tls.key"), &other_key).unwrap();
        assert!(Arc::ptr_eq(&first, &config(&certificates)), "the key is of another certificate");
        fs::remove_file(home.path().join("tls.crt")).unwrap();
        assert!(Arc::ptr_eq(&first, &config(&certificates)));
        fs::copy(home.path().join("other/tls.crt"), home.path().join("tls.crt")).unwrap();
        assert!(!Arc::ptr_eq(&first, &config(&certificates)), "now they fit");
    }

    #[test]
    fn a_missing_certificate_is_an_error_that_says_where_it_should_be() {
        let error =
            Certificates::open(CertificateFiles::within(Path::new("/nowhere"))).unwrap_err().to_string();
        assert!(error.contains("/nowhere/tls.crt") && error.contains("webhookServer.tls.certDir"), "{error}");
    }
}
