//! An embedded API server on a socket, with an authority of its own.

use polis_apiserver::{Authority, Server, Tls};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// A server over TLS on a free port. It stops with the value.
pub struct Socket {
    /// Signs the certificates of the server and of its clients.
    pub authority: Authority,
    /// Where it is.
    pub address: String,
    serving: AbortHandle,
}

impl Socket {
    /// Serves every plane of a server.
    pub async fn of(server: &Server) -> Self {
        let authority = Authority::new().expect("an authority");
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        let tls = Tls::new(&pair, Some(authority.pem())).expect("usable");
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
