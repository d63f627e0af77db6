//! The rustls server configuration from PEM.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("failed to read {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The certificate or a part of it does not exist.
    #[error("failed to find {what}")]
    Missing {
        /// What is missing.
        what: String,
    },
    /// The text is not valid PEM.
    #[error("failed to read {source_name} as PEM: {source}")]
    Pem {
        /// The file or Secret.
        source_name: String,
        /// The reason.
        source: rustls_pki_types::pem::Error,
    },
    /// Certificate and key cannot be used for a server.
    #[error("failed to use the certificate {source_name}: {source}")]
    Unusable {
        /// The file or Secret of the certificate.
        source_name: String,
        /// The reason.
        source: rustls::Error,
    },
    /// The client CA cannot be used.
    #[error("failed to use the client CA {source_name}: {why}")]
    ClientCa {
        /// The file or Secret of the client CA.
        source_name: String,
        /// The reason.
        why: String,
    },
}

/// PEM text, and where it comes from.
#[derive(Clone)]
pub struct Pem {
    source_name: String,
    text: Vec<u8>,
}

impl Pem {
    /// `source_name` is the file or Secret, for error messages. Errors never contain the text.
    pub fn new(source_name: impl Into<String>, text: impl Into<Vec<u8>>) -> Self {
        Self { source_name: source_name.into(), text: text.into() }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
        let wrong = |source| CertificateError::Pem { source_name: self.source_name.clone(), source };
        CertificateDer::pem_slice_iter(&self.text).collect::<Result<_, _>>().map_err(wrong)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, CertificateError> {
        PrivateKeyDer::from_pem_slice(&self.text)
            .map_err(|source| CertificateError::Pem { source_name: self.source_name.clone(), source })
    }
}

/// Whether clients present a certificate.
#[derive(Clone, Copy)]
pub enum ClientAuth<'a> {
    /// Clients are not asked for a certificate.
    Disabled,
    /// Clients may present a certificate of this CA.
    Optional(&'a Pem),
    /// Clients must present a certificate of this CA.
    Required(&'a Pem),
}

/// The configuration of a server with this certificate, for HTTP/2 and HTTP/1.1.
pub fn server_config(
    certificate: &Pem,
    key: &Pem,
    client_auth: ClientAuth<'_>,
) -> Result<ServerConfig, CertificateError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unusable =
        |source| CertificateError::Unusable { source_name: certificate.source_name.clone(), source };
    let verifier: Arc<dyn ClientCertVerifier> = match client_auth {
        ClientAuth::Disabled => WebPkiClientVerifier::no_client_auth(),
        ClientAuth::Optional(ca) | ClientAuth::Required(ca) => {
            let wrong = |why: String| CertificateError::ClientCa { source_name: ca.source_name.clone(), why };
            let mut roots = RootCertStore::empty();
            for root in ca.certificates()? {
                roots.add(root).map_err(|error| wrong(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let verifier = match client_auth {
                ClientAuth::Required(_) => verifier,
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
