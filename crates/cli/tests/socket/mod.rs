//! An embedded API server over TLS on a free port, with its own certificate authority.

pub use polis_testing::TlsSocket as Socket;
