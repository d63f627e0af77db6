//! A server's side of TLS, made of PEM.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("failed to read {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The certificate, or a part of it, is not where it should be.
    #[error("failed to find {what}")]
    Missing {
        /// What is not there.
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

/// PEM, and where it is from.
#[derive(Clone)]
pub struct Pem {
    place: String,
    text: Vec<u8>,
}

impl Pem {
    /// `place` is what errors call it; the text is in none of them.
    pub fn new(place: impl Into<String>, text: impl Into<Vec<u8>>) -> Self {
        Self { place: place.into(), text: text.into() }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let wrong = |source| TlsError::Pem { place: self.place.clone(), source };
        CertificateDer::pem_slice_iter(&self.text).collect::<Result<_, _>>().map_err(wrong)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.text)
            .map_err(|source| TlsError::Pem { place: self.place.clone(), source })
    }
}

/// What clients show of themselves.
#[derive(Clone, Copy)]
pub enum Clients<'a> {
    /// Nothing.
    Unasked,
    /// A certificate of this authority, if they have one.
    Welcome(&'a Pem),
    /// A certificate of this authority, or they are not let in.
    Required(&'a Pem),
}

/// A server with this certificate, over HTTP/2 and HTTP/1.1.
pub fn server(certificate: &Pem, key: &Pem, clients: Clients<'_>) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable = |source| TlsError::Unusable { place: certificate.place.clone(), source };
    let verifier: Arc<dyn ClientCertVerifier> = match clients {
        Clients::Unasked => WebPkiClientVerifier::no_client_auth(),
        Clients::Welcome(authority) | Clients::Required(authority) => {
            let wrong = |why: String| TlsError::Clients { place: authority.place.clone(), why };
            let mut roots = RootCertStore::empty();
            for root in authority.certificates()? {
                roots.add(root).map_err(|error| wrong(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let verifier = match clients {
                Clients::Required(_) => verifier,
                _ => verifier.allow_unauthenticated(),
            };
            verifier.build().map_err(|error| wrong(error.to_string()))?
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
