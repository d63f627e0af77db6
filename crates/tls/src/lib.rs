//! TLS servers: certificate reloading, client certificates, and an accept loop for HTTP/1.1 and HTTP/2.
//!
//! The embedded API server, the webhooks and the metrics server use this crate. [`serve()`] accepts
//! connections, performs the TLS handshake with the current acceptor of an [`AcceptorProvider`], and runs one
//! service for each connection. For a certificate that never changes, the provider is a
//! [`TlsAcceptor`](tokio_rustls::TlsAcceptor) made of [`server_config`]; for a certificate that is renewed it
//! is a [`ReloadingCertificate`].
//!
//! ```text
//! CertificateFiles (a CertificateSource) ─▶ ReloadingCertificate (an AcceptorProvider) ─▶ serve()
//! ```
//!
//! The crate has no dependency on other crates of the workspace, and every crate may depend on it.

mod certificates;
mod files;
mod pem;
mod serve;

pub use certificates::{CertificateSource, ReloadingCertificate, SourceVersion};
pub use files::CertificateFiles;
pub use pem::{CertificateError, ClientAuth, Pem, server_config};
pub use serve::{AcceptorProvider, ConnectionLimits, Peer, serve};
