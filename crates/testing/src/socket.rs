//! Servers on a socket: an embedded API server over TLS, free addresses, and plain HTTP requests.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use polis_apiserver::Server;
use polis_tls::{Authority, ServerTls};
use tokio::task::AbortHandle;

/// Timeout of a connection, and of each read from it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An embedded API server over TLS on a free port. Dropping it stops the listener.
pub struct TlsSocket {
    /// Signs the certificates of the server and of its clients.
    pub authority: Authority,
    /// Its URL.
    pub address: String,
    serving: AbortHandle,
}

impl TlsSocket {
    /// Serves all planes of a server, with an authority of its own.
    pub async fn of(server: &Server) -> Self {
        Self::with_authority(server, Authority::new().expect("an authority")).await
    }

    /// Serves all planes of a server, with a certificate of this authority.
    pub async fn with_authority(server: &Server, authority: Authority) -> Self {
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        let tls = ServerTls::new(&pair, Some(authority.pem())).expect("a TLS configuration");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("https://{}", listener.local_addr().expect("an address"));
        let server = server.clone();
        let serving = tokio::spawn(async move { server.serve(listener, tls).await }).abort_handle();
        Self { authority, address, serving }
    }
}

impl Drop for TlsSocket {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A free address. If another process takes it before it is used, the program under test fails to start.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("it has an address")
}

/// Sends a GET request without TLS on a new connection; returns the response with its headers, or none if the
/// server does not respond. Blocks the thread.
pub fn http_get_blocking(server: impl ToSocketAddrs, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&server.to_socket_addrs().ok()?.next()?, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut response = Vec::new();
    // An incomplete response does not match any assertion.
    let _ = stream.read_to_end(&mut response);
    Some(String::from_utf8_lossy(&response).into_owned())
}

/// As [`http_get_blocking`], on another thread.
pub async fn http_get(server: impl ToSocketAddrs + Send + 'static, path: &str) -> Option<String> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || http_get_blocking(server, &path)).await.expect("no panic")
}
