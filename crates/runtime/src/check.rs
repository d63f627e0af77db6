//! Checks of an instance over its network, for probes and hooks: HTTP, gRPC, TCP.
//!
//! A check reaches the address of the instance only. In namespaces, the shim listens there and forwards; it
//! resets a connection that the program does not accept, which counts as refused.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{Request, Uri, header};
use http_body_util::{BodyExt as _, Empty, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

/// Time for the reset of a connection that the program does not accept: the shim is on the same host.
const RESET_TIMEOUT: Duration = Duration::from_millis(200);
/// The longest answer of a health service.
const MAX_ANSWER: usize = 4096;
/// `SERVING` in the answer of a gRPC health service.
const SERVING: u64 = 1;

/// A check of an instance over its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum NetworkCheck {
    /// A status from 200 to 399 is a success.
    Http { endpoint: SocketAddr, tls: bool, path: String, headers: Vec<(String, String)> },
    /// The answer `SERVING` is a success.
    Grpc { endpoint: SocketAddr, service: String },
    /// An accepted connection is a success.
    Tcp { endpoint: SocketAddr },
}

impl NetworkCheck {
    /// Makes the check; what was wrong if it fails.
    pub(crate) async fn run(&self, limit: Duration) -> Result<(), String> {
        let check = async {
            match self {
                NetworkCheck::Http { endpoint, tls, path, headers } => {
                    get(*endpoint, *tls, path, headers).await
                }
                NetworkCheck::Grpc { endpoint, service } => call(*endpoint, service).await,
                NetworkCheck::Tcp { endpoint } => accepts(*endpoint, limit).await,
            }
        };
        timeout(limit, check).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
    }
}

async fn connect(endpoint: SocketAddr) -> Result<TcpStream, String> {
    TcpStream::connect(endpoint).await.map_err(|error| format!("failed to connect to {endpoint}: {error}"))
}

async fn accepts(endpoint: SocketAddr, limit: Duration) -> Result<(), String> {
    let mut stream = connect(endpoint).await?;
    // A program that waits for the client sends nothing, and one that closes the connection has accepted it.
    match timeout(RESET_TIMEOUT.min(limit / 2), stream.read_u8()).await {
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionReset => {
            Err(format!("failed to connect to {endpoint}: connection refused"))
        }
        _ => Ok(()),
    }
}

async fn get(
    endpoint: SocketAddr,
    tls: bool,
    path: &str,
    headers: &[(String, String)],
) -> Result<(), String> {
    let stream = connect(endpoint).await?;
    if !tls {
        return request(stream, endpoint, path, headers).await;
    }
    let name = ServerName::from(endpoint.ip());
    let failed = |error| format!("failed to connect to {endpoint} with TLS: {error}");
    let stream = TlsConnector::from(unverified()).connect(name, stream).await.map_err(failed)?;
    request(stream, endpoint, path, headers).await
}

async fn request<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    endpoint: SocketAddr,
    path: &str,
    headers: &[(String, String)],
) -> Result<(), String> {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let path = format!("{slash}{path}");
    let mut request = Request::get(&path).header(header::CONNECTION, "close");
    let is_set = |name: &str| headers.iter().any(|(set, _)| set.eq_ignore_ascii_case(name));
    for (name, value) in [("host", endpoint.to_string()), ("user-agent", "polis-probe".to_owned())] {
        if !is_set(name) {
            request = request.header(name, value);
        }
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let failed = |error: &dyn std::fmt::Display| format!("GET {path} of {endpoint} failed: {error}");
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| failed(&error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
    drop(connection); // the body is not read
    match response.status().as_u16() {
        200..400 => Ok(()),
        status => Err(format!("GET {path} was answered with status {status}")),
    }
}

/// Calls `grpc.health.v1.Health/Check`.
async fn call(endpoint: SocketAddr, service: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("gRPC health check of {endpoint} failed: {error}");
    let stream = connect(endpoint).await?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|error| failed(&error))?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    let uri = Uri::builder().scheme("http").authority(endpoint.to_string());
    let uri = uri.path_and_query("/grpc.health.v1.Health/Check").build().map_err(|error| failed(&error))?;
    let request = Request::post(uri)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .body(Full::new(health_request(service)))
        .map_err(|error| failed(&error))?;
    let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
    let code = |headers: &http::HeaderMap| {
        headers.get("grpc-status").map(|code| String::from_utf8_lossy(code.as_bytes()).into_owned())
    };
    let (status, early) = (response.status(), code(response.headers()));
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|error| failed(&error))?;
    let code = body.trailers().and_then(code).or(early);
    drop(connection);
    match code.as_deref() {
        Some("0") => {}
        Some(code) => return Err(failed(&format!("grpc-status {code}"))),
        None => return Err(failed(&format!("HTTP status {status} without grpc-status"))),
    }
    match health_status(&body.to_bytes()) {
        Some(SERVING) => Ok(()),
        status => Err(failed(&format!("its status is {}, not SERVING (1)", status.unwrap_or_default()))),
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A `HealthCheckRequest`: field 1 is the service. The frame of gRPC before it is a flag and the length.
fn health_request(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        message.put_u8(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.put_u8((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.put_u8(length as u8);
        message.put_slice(service.as_bytes());
    }
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put(message);
    frame.freeze()
}

/// Field 1 of a `HealthCheckResponse`; zero, `UNKNOWN`, if it is absent.
fn health_status(frame: &[u8]) -> Option<u64> {
    let message = frame.get(5..)?;
    let [0x08, number @ ..] = message else { return message.is_empty().then_some(0) };
    let mut value = 0;
    for (place, byte) in number.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// TLS without verification: a probe asks whether the program serves, and the certificate of an instance
/// names none of its addresses.
fn unverified() -> Arc<ClientConfig> {
    #[derive(Debug)]
    struct AnyCertificate(Vec<SignatureScheme>);

    impl ServerCertVerifier for AnyCertificate {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, tokio_rustls::rustls::Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.clone()
        }
    }

    static CONFIG: std::sync::OnceLock<Arc<ClientConfig>> = std::sync::OnceLock::new();
    let build = || {
        let builder = ClientConfig::builder();
        let schemes = builder.crypto_provider().signature_verification_algorithms.supported_schemes();
        let verifier = Arc::new(AnyCertificate(schemes));
        Arc::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    };
    CONFIG.get_or_init(build).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(5);

    /// A server that sends this text to each client, and closes the connection.
    async fn mk_server(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                _ = stream.read(&mut [0; 1024]).await;
                _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        endpoint
    }

    fn http(endpoint: SocketAddr, path: &str) -> NetworkCheck {
        NetworkCheck::Http { endpoint, tls: false, path: path.into(), headers: Vec::new() }
    }

    #[tokio::test]
    async fn a_status_from_200_to_399_is_a_success() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Ok(())),
            ("HTTP/1.1 302 Found\r\nlocation: http://other/\r\n\r\n", Ok(())),
            ("HTTP/1.1 204 No Content\r\n\r\n", Ok(())),
            ("HTTP/1.1 503 No\r\n\r\nbody", Err("GET /ready was answered with status 503")),
            ("HTTP/1.1 404 No\r\n\r\n", Err("GET /ready was answered with status 404")),
        ] {
            let check = http(mk_server(answer).await, "ready");
            assert_eq!(check.run(LIMIT).await, expected.map_err(str::to_owned), "{answer}");
        }
        let error = http(mk_server("nonsense").await, "/").run(LIMIT).await.unwrap_err();
        assert!(error.starts_with("GET / of 127.0.0.1:"), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_never_answers_fails_after_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let check = http(listener.local_addr().unwrap(), "/");
        assert_eq!(check.run(Duration::from_millis(50)).await.unwrap_err(), "no answer within 50ms");
    }

    #[tokio::test]
    async fn a_connection_that_is_refused_or_reset_is_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap();
        let tcp = NetworkCheck::Tcp { endpoint };
        assert_eq!(tcp.run(LIMIT).await, Ok(()), "connections wait in the backlog");
        let resets = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_zero_linger().unwrap();
            }
        });
        let error = tcp.run(LIMIT).await.unwrap_err();
        assert!(error.starts_with("failed to connect to 127.0.0.1:"), "{error}"); // refused or reset
        resets.abort();
        _ = resets.await;
        assert!(tcp.run(LIMIT).await.unwrap_err().starts_with("failed to connect to 127.0.0.1:"));
    }

    #[test]
    fn grpc_messages_are_encoded_as_protocol_buffers() {
        assert_eq!(&health_request("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&health_request("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(health_request(&"x".repeat(200))[5..8], [0x0a, 0xc8, 1]);
        for (message, status) in [
            (&[0u8, 0, 0, 0, 2, 8, 1][..], Some(1)),
            (&[0, 0, 0, 0, 0], Some(0)),
            (&[0, 0, 0, 0, 3, 8, 0x80, 1], Some(128)),
            (&[0, 0, 0, 0, 2, 8, 0x80], None),
            (&[0, 0], None),
            (&[0, 0, 0, 0, 1, 9], None),
        ] {
            assert_eq!(health_status(message), status, "{message:?}");
        }
    }
}
