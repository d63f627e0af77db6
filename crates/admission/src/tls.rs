//! The certificate of the webhook server, from files that change under it.
//!
//! A Secret that is mounted into a pod is renewed by swapping a link, at any time. The files are looked at before each
//! handshake (three `stat` calls) and read when they have changed: nothing runs in between, and the handshake after a
//! renewal has the new certificate. Files that cannot be used, half of a renewal perhaps, leave the old ones in force.

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
    /// A file is not PEM.
    #[error("failed to read {} as PEM: {source}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// Why.
        source: rustls_pki_types::pem::Error,
    },
    /// Certificate and key do not make a server.
    #[error("failed to use the certificate {}: {source}", file.display())]
    Unusable {
        /// The certificate.
        file: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The authority of clients cannot be used.
    #[error("failed to use the client authority {}: {why}", file.display())]
    Clients {
        /// The authority.
        file: PathBuf,
        /// Why.
        why: String,
    },
}

/// What tells one state of the files from another.
type Stamp = Vec<Option<(u64, i64, i64, u64)>>;

/// A certificate that follows its files.
#[derive(Debug)]
pub struct Certificates {
    files: CertificateFiles,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// The state of the files that `config` is from, or that could not be used.
    stamp: Stamp,
}

impl Certificates {
    /// The certificate that is in the files now.
    pub fn open(files: CertificateFiles) -> Result<Self, TlsError> {
        let stamp = files.stamp();
        let config = Arc::new(files.load()?);
        Ok(Self { files, current: Mutex::new(Current { config, stamp }) })
    }

    /// Shakes hands with the newest certificate that could be read.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        let stamp = self.files.stamp();
        if stamp != current.stamp {
            match self.files.load() {
                Ok(config) => {
                    current.config = Arc::new(config);
                    tracing::info!(file = %self.files.certificate.display(), "certificate renewed");
                }
                // Said once for each state of the files.
                Err(error) => tracing::warn!(%error, "going on with the certificate from before"),
            }
            current.stamp = stamp;
        }
        TlsAcceptor::from(current.config.clone())
    }
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
        files.into_iter().flatten().map(stat).collect()
    }

    fn load(&self) -> Result<ServerConfig, TlsError> {
        let chain = certificates(&self.certificate)?;
        let pem = |source| TlsError::Pem { file: self.key.clone(), source };
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(pem)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unusable = |source| TlsError::Unusable { file: self.certificate.clone(), source };
        let verifier = match &self.clients {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(file) => {
                let wrong = |why: String| TlsError::Clients { file: file.clone(), why };
                let mut roots = RootCertStore::empty();
                for root in certificates(file)? {
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
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(file).map_err(|source| TlsError::Read { file: file.to_owned(), source })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = |source| TlsError::Pem { file: file.to_owned(), source };
    CertificateDer::pem_slice_iter(&read(file)?).collect::<Result<_, _>>().map_err(pem)
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
