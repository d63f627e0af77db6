//! Listening with TLS: certificates that are renewed under a server, and the connections that it takes.
//!
//! Whoever serves over TLS does it from here: the embedded API server, the webhooks, the metrics. [`serve()`] takes
//! connections, shakes hands with what a [`Handshake`] has at that moment, and gives each connection a service. A
//! certificate that never changes is a [`TlsAcceptor`](tokio_rustls::TlsAcceptor) made of [`server`]; one that somebody
//! renews is [`Certificates`].
//!
//! Who may enter: everybody. It knows sockets and certificates, and nothing of planes.

mod certificates;
mod files;
mod pem;
mod serve;

pub use certificates::{Certificates, Source, Stamp};
pub use files::CertificateFiles;
pub use pem::{Clients, Pem, TlsError, server};
pub use serve::{Handshake, Limits, Peer, serve};
