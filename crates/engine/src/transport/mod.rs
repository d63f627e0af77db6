//! HTTP transport to API servers.
//!
//! A [`Transport`] sends a request and returns a response whose body may stream. There are two
//! implementations: a connection pool for a host ([`pool`]), and a tower service in the same process. Planes
//! on the same host share its transport.

pub(crate) mod auth;
mod body;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod pool;
pub(crate) mod retry;
pub(crate) mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use tower::{Service, ServiceExt};

pub use body::Body;

/// A boxed error, as tower services return it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The type of a request, which determines the connection that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A request with a short response.
    Unary,
    /// A watch, whose stream stays open for minutes.
    Watch,
}

/// Why a request received no usable response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TransportError {
    /// The connection cannot be opened.
    #[error("failed to connect to {host}: {why}")]
    Connect {
        /// Host and port.
        host: Arc<str>,
        /// The reason.
        why: Arc<str>,
    },
    /// The TLS handshake failed: the server's certificate is not trusted, or the server rejects the client's.
    #[error("TLS handshake with {host} failed: {why}")]
    Tls {
        /// Host and port.
        host: Arc<str>,
        /// The reason.
        why: Arc<str>,
    },
    /// The credentials cannot be loaded.
    #[error("failed to load credentials: {why}")]
    Credentials {
        /// The reason.
        why: Arc<str>,
    },
    /// The connection ended before the request was sent.
    #[error("connection ended before the request was sent: {why}")]
    Unsent {
        /// The reason.
        why: Arc<str>,
    },
    /// The connection ended after the request was sent. The server may have processed it.
    #[error("connection ended before the response was complete: {why}")]
    Broken {
        /// The reason.
        why: Arc<str>,
    },
    /// The response did not arrive in time. The server may have processed the request.
    #[error("no response within {after:?}")]
    Timeout {
        /// The timeout.
        after: Duration,
    },
    /// The response is not that of an API server.
    #[error("invalid response: {why}")]
    InvalidResponse {
        /// The reason.
        why: Arc<str>,
    },
}

impl TransportError {
    /// True if the server has certainly not processed the request.
    pub fn was_not_processed(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::Tls { .. } | Self::Credentials { .. } | Self::Unsent { .. }
        )
    }

    /// The reason as a metric label, also shown in `/readyz`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Tls { .. } => "tls",
            Self::Credentials { .. } => "credentials",
            Self::Unsent { .. } | Self::Broken { .. } => "broken",
            Self::Timeout { .. } => "timeout",
            Self::InvalidResponse { .. } => "garbage",
        }
    }
}

/// An implementation of [`Transport`].
trait RequestSender: Send + Sync + 'static {
    fn send(
        &self,
        request: Request<Bytes>,
        purpose: Purpose,
    ) -> BoxFuture<'static, Result<Response<Body>, TransportError>>;

    /// The transport to another address with the same credentials; none for an in-process service.
    fn at_host(&self, _host: &str, _port: u16) -> Option<Transport> {
        None
    }
}

/// A transport without a server.
struct Unavailable(Arc<str>);

impl RequestSender for Unavailable {
    fn send(
        &self,
        _: Request<Bytes>,
        _: Purpose,
    ) -> BoxFuture<'static, Result<Response<Body>, TransportError>> {
        let why = self.0.clone();
        Box::pin(async move { Err(TransportError::Credentials { why }) })
    }
}

/// Sends requests to a host or to a service in this process. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Transport(Arc<dyn RequestSender>);

impl Transport {
    /// A transport to a tower service in this process, such as the embedded API server or the fake server of
    /// a test.
    pub fn in_process<S, B, R>(service: S) -> Self
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: From<Bytes> + Send + 'static,
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        Self(Arc::new(InProcess(service, std::marker::PhantomData)))
    }

    /// A transport that fails every request: for a plane whose endpoint or credentials are unusable.
    pub fn unavailable(why: impl Into<Arc<str>>) -> Self {
        Self(Arc::new(Unavailable(why.into())))
    }

    pub(crate) fn pooled(pool: pool::Pool) -> Self {
        Self(Arc::new(pool))
    }

    /// The transport to another host with the same credentials and CA. An in-process service has no host and
    /// is returned unchanged.
    pub(crate) fn at_host(&self, host: &str, port: u16) -> Self {
        self.0.at_host(host, port).unwrap_or_else(|| self.clone())
    }

    /// Sends a request whose URI is a path. The body of the response may stream.
    pub fn send(
        &self,
        request: Request<Bytes>,
        purpose: Purpose,
    ) -> BoxFuture<'static, Result<Response<Body>, TransportError>> {
        self.0.send(request, purpose)
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

impl RequestSender for pool::Pool {
    fn send(
        &self,
        request: Request<Bytes>,
        purpose: Purpose,
    ) -> BoxFuture<'static, Result<Response<Body>, TransportError>> {
        let pool = self.clone();
        Box::pin(async move { pool.request(request, purpose).await })
    }

    fn at_host(&self, host: &str, port: u16) -> Option<Transport> {
        Some(Transport::pooled(pool::Pool::at_host(self, host, port)))
    }
}

struct InProcess<S, B>(S, std::marker::PhantomData<fn(B)>);

impl<S, B, R> RequestSender for InProcess<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: From<Bytes> + Send + 'static,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    fn send(
        &self,
        request: Request<Bytes>,
        _: Purpose,
    ) -> BoxFuture<'static, Result<Response<Body>, TransportError>> {
        let service = self.0.clone();
        Box::pin(async move {
            // A network request suspends the calling task, and so does this one. Otherwise a service that
            // always responds at once would let one task send a thousand writes while all other tasks on the
            // thread are blocked.
            tokio::task::yield_now().await;
            let response = service.oneshot(request.map(B::from)).await;
            match response {
                Ok(response) => Ok(response.map(Body::any)),
                Err(error) => {
                    let error: BoxError = error.into();
                    // An in-process plane may return a `TransportError`. For other errors it is unknown
                    // whether the request was processed.
                    Err(match error.downcast::<TransportError>() {
                        Ok(exact) => *exact,
                        Err(other) => TransportError::Broken { why: other.to_string().into() },
                    })
                }
            }
        })
    }
}
