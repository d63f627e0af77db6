//! Servers with peers that are silent, slow or too many.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use polis_tls::{
    ClientAuth, ConnectionLimits, Pem, RequestBody, Timeouts, serve, serve_plain, server_config,
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Long enough for a slow machine.
const PATIENT: Duration = Duration::from_secs(20);
/// A peer that waits for nothing is closed after this time.
const SHORT: Duration = Duration::from_millis(300);
const QUICK: Timeouts = Timeouts { header: SHORT, idle: SHORT, body: SHORT, ..Timeouts::DEFAULT };

/// A body of one byte when the future is ready, as a watch with one event.
struct Watch(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Body for Watch {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(event) = &mut self.0 else { return Poll::Ready(None) };
        ready!(event.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"e")))))
    }
}

/// A server, and what its clients need.
struct Server {
    address: SocketAddr,
    /// Sends the event of every watch.
    event: watch::Sender<bool>,
    root: String,
    /// The certificate and key of a client.
    client: (String, String),
    serving: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// `/watch` is a watch, any other path reads the body and returns its length.
async fn respond(
    request: Request<RequestBody>,
    mut event: watch::Receiver<bool>,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    if request.uri().path() == "/watch" {
        let event = Box::pin(async move {
            if event.wait_for(|sent| *sent).await.is_err() {
                pending().await
            }
        });
        return Ok(Response::new(UnsyncBoxBody::new(Watch(Some(event)))));
    }
    let (code, text) = match request.into_body().collect().await {
        Ok(body) => (StatusCode::OK, body.to_bytes().len().to_string()),
        Err(error) => (StatusCode::REQUEST_TIMEOUT, error.to_string()),
    };
    let mut response = Response::new(UnsyncBoxBody::new(Full::from(text)));
    *response.status_mut() = code;
    Ok(response)
}

fn mk_pair(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

impl Server {
    async fn new(limits: ConnectionLimits) -> Self {
        let ((root, key), client) = (mk_pair("localhost"), mk_pair("client"));
        let clients = Pem::new("client", client.0.as_str());
        let config = server_config(
            &Pem::new("certificate", root.as_str()),
            &Pem::new("key", key),
            ClientAuth::Optional(&clients),
        );
        let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (event, events) = watch::channel(false);
        let serving = tokio::spawn(serve(listener, limits, acceptor, move |_| {
            let events = events.clone();
            service_fn(move |request| respond(request, events.clone()))
        }));
        Self { address, event, root, client, serving }
    }

    /// A connection after its handshake, with or without a client certificate.
    async fn connect(&self, certified: bool) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.root.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match certified {
            true => {
                let chain = vec![CertificateDer::from_pem_slice(self.client.0.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(self.client.1.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
            false => config.with_no_client_auth(),
        };
        let tcp = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await
    }

    /// One request over a new HTTP/1.1 connection.
    async fn get(&self, certified: bool) -> Result<StatusCode, String> {
        let exchange = async {
            let stream = self.connect(certified).await.map_err(|error| error.to_string())?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            let driver = tokio::spawn(connection);
            let request = Request::get("/").header("host", "localhost").body(Empty::<Bytes>::new()).unwrap();
            let response = sender.send_request(request).await.map_err(|error| error.to_string());
            driver.abort();
            Ok(response?.status())
        };
        timeout(PATIENT, exchange).await.map_err(|_| "no response".to_owned())?
    }
}

/// Waits until the server closes a connection.
async fn closed(mut stream: impl tokio::io::AsyncRead + Unpin) {
    let mut rest = Vec::new();
    // An error is an end, too: the server may end without a close_notify.
    let _ = timeout(PATIENT, stream.read_to_end(&mut rest)).await.expect("the server closes the connection");
}

#[tokio::test]
async fn a_connection_that_is_silent_after_its_handshake_is_closed() {
    let server = Server::new(ConnectionLimits { timeouts: QUICK, ..ConnectionLimits::new(64, 8) }).await;
    let started = Instant::now();
    closed(server.connect(false).await.unwrap()).await;
    assert!(started.elapsed() >= SHORT);
    // As is one that has sent a part of HTTP/2's preface.
    let mut half = server.connect(false).await.unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    closed(half).await;
}

#[tokio::test]
async fn silent_connections_do_not_keep_others_out() {
    // The timeouts are far longer than the test.
    let server =
        Server::new(ConnectionLimits { per_peer: 8, reserve: 0, ..ConnectionLimits::new(8, 8) }).await;
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    assert_eq!(server.get(false).await, Ok(StatusCode::OK), "among peers before their handshake");
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(server.connect(false).await.unwrap());
    }
    assert_eq!(server.get(false).await, Ok(StatusCode::OK), "among peers after their handshake");
    closed(silent.remove(0)).await;
}

#[tokio::test]
async fn requests_without_a_certificate_cannot_take_the_reserve() {
    let limits = ConnectionLimits { per_peer: 8, reserve: 1, ..ConnectionLimits::new(4, 8) };
    let server = Server::new(limits).await;
    let mut watches = Vec::new();
    for _ in 0..3 {
        let mut stream = server.connect(false).await.unwrap();
        stream.write_all(b"GET /watch HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'H', "the head of the response");
        watches.push(stream);
    }
    server.get(false).await.expect_err("no place without a certificate");
    assert_eq!(server.get(true).await, Ok(StatusCode::OK));
}

#[tokio::test]
async fn an_idle_http2_connection_is_closed_and_a_watch_is_not() {
    let server = Server::new(ConnectionLimits { timeouts: QUICK, ..ConnectionLimits::new(64, 8) }).await;
    let open = async || {
        let stream = TokioIo::new(server.connect(false).await.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        (sender, tokio::spawn(connection))
    };
    let request = |path: &str| Request::get(path).body(Empty::<Bytes>::new()).unwrap();
    let (mut watching, watch_connection) = open().await;
    let mut watch = watching.send_request(request("https://localhost/watch")).await.unwrap().into_body();
    let (mut idle, idle_connection) = open().await;
    assert_eq!(idle.send_request(request("https://localhost/")).await.unwrap().status(), StatusCode::OK);
    timeout(PATIENT, idle_connection).await.expect("the idle connection is closed").unwrap().unwrap();
    sleep(SHORT * 4).await;
    assert!(!watch_connection.is_finished());
    server.event.send(true).unwrap();
    let event = timeout(PATIENT, watch.frame()).await.expect("an event").unwrap().unwrap();
    assert_eq!(event.into_data().unwrap(), "e");
}

#[tokio::test]
async fn a_trickled_body_ends_with_an_error_and_the_connection() {
    let server = Server::new(ConnectionLimits { timeouts: QUICK, ..ConnectionLimits::new(64, 8) }).await;
    let stream = server.connect(false).await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = tokio::spawn(async move {
        write.write_all(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n").await.unwrap();
        while write.write_all(b"x").await.is_ok() && write.flush().await.is_ok() {
            sleep(SHORT / 10).await;
        }
    });
    let mut response = Vec::new();
    // The end may be a reset, because the peer still sends.
    let _ =
        timeout(PATIENT, read.read_to_end(&mut response)).await.expect("the server closes the connection");
    let response = String::from_utf8(response).unwrap();
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    sending.abort();
}

#[tokio::test]
async fn a_server_without_tls_closes_silent_connections() {
    let limits = ConnectionLimits { timeouts: QUICK, ..ConnectionLimits::new(4, 8) };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_event, events) = watch::channel(false);
    let serving = tokio::spawn(serve_plain(listener, limits, move |_| {
        let events = events.clone();
        service_fn(move |request| respond(request, events.clone()))
    }));
    closed(TcpStream::connect(address).await.unwrap()).await;
    serving.abort();
}
