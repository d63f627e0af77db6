//! HTTP servers: certificate reloading, client certificates, and an accept loop for HTTP/1.1 and HTTP/2 that
//! expects hostile peers.
//!
//! The embedded API server, the webhooks and the metrics server use this crate, and the admin server does
//! without TLS ([`serve_plain`]). [`serve()`] accepts
//! connections, performs the TLS handshake with the current acceptor of an [`AcceptorProvider`], and runs one
//! service for each connection. For a certificate that never changes, the provider is a
//! [`TlsAcceptor`](tokio_rustls::TlsAcceptor) made of [`server_config`]; for files that are renewed it is a
//! [`ReloadingCertificate`]; for certificates that an own [`Authority`] issues it is a [`ServerTls`].
//!
//! ```text
//! CertificateFiles (a CertificateSource) ─▶ ReloadingCertificate (an AcceptorProvider) ─▶ serve()
//! serve(), serve_plain() ─▶ slots (who may connect) ─▶ activity (idle or not) ─▶ RequestBody ─▶ the service
//! ```
//!
//! The crate has no dependency on other crates of the workspace, and every crate may depend on it.

mod activity;
mod authority;
mod body;
mod certificates;
mod files;
mod limits;
mod pem;
mod serve;
mod server_tls;
mod slots;

pub use authority::{Authority, Certificate, ServerTlsError};
pub use body::{RequestBody, RequestBodyError};
pub use certificates::{CertificateSource, ReloadingCertificate, SourceVersion};
pub use files::CertificateFiles;
pub use limits::{ConnectionLimits, Timeouts};
pub use pem::{CertificateError, ClientAuth, Pem, server_config};
pub use serve::{AcceptorProvider, ConnectionBody, ConnectionService, Peer, serve, serve_plain};
pub use server_tls::ServerTls;
