//! Fixture: serves an embedded API server over TLS on a free port, with its own certificate authority.

use polis_apiserver::{Authority, Server, ServerTls};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// The listener of an embedded API server. Dropping it stops the listener.
pub struct Socket {
    /// Signs the certificates of the server and of its clients.
    pub authority: Authority,
    /// Its URL.
    pub address: String,
    serving: AbortHandle,
}

impl Socket {
    /// Serves all planes of a server.
    pub async fn of(server: &Server) -> Self {
        let authority = Authority::new().expect("an authority");
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        let tls = ServerTls::new(&pair, Some(authority.pem())).expect("a TLS configuration");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("https://{}", listener.local_addr().expect("an address"));
        let server = server.clone();
        let serving = tokio::spawn(async move { server.serve(listener, tls).await }).abort_handle();
        Self { authority, address, serving }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
