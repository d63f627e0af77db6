//! How requests reach a plane.
//!
//! A [`Transport`] takes a whole request and gives back a response whose body may stream. Two kinds: a pool of connections to
//! a host ([`pool`]), and a tower service in this very process. Planes that share a host share its transport.

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

/// An error of unknown type, as tower services have it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a request is for; decides which connection carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A question with one answer, soon.
    Unary,
    /// A stream that stays open for minutes.
    Watch,
}

/// Why a request got no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TransportError {
    /// No connection.
    #[error("no connection to {host}: {why}")]
    Connect {
        /// The host.
        host: Arc<str>,
        /// Why.
        why: Arc<str>,
    },
    /// The peer is not who it should be, or does not accept who we are.
    #[error("no trusted connection to {host}: {why}")]
    Tls {
        /// The host.
        host: Arc<str>,
        /// Why.
        why: Arc<str>,
    },
    /// No credentials could be had.
    #[error("no credentials: {why}")]
    Credentials {
        /// Why.
        why: Arc<str>,
    },
    /// The request was not sent: the connection ended first.
    #[error("connection ended before the request was sent: {why}")]
    Unsent {
        /// Why.
        why: Arc<str>,
    },
    /// The connection ended after the request was sent: whether it was carried out is unknown.
    #[error("connection ended before the answer came: {why}")]
    Broken {
        /// Why.
        why: Arc<str>,
    },
    /// No answer within the time given: whether it was carried out is unknown.
    #[error("no answer within {after:?}")]
    Timeout {
        /// The time given.
        after: Duration,
    },
    /// An answer that is not one of an API server.
    #[error("answer makes no sense: {why}")]
    Garbage {
        /// What is wrong with it.
        why: Arc<str>,
    },
}

impl TransportError {
    /// True if the server certainly did nothing.
    pub fn certainly_not_done(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::Tls { .. } | Self::Credentials { .. } | Self::Unsent { .. }
        )
    }

    /// One word for metrics and readiness.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Tls { .. } => "tls",
            Self::Credentials { .. } => "credentials",
            Self::Unsent { .. } | Self::Broken { .. } => "broken",
            Self::Timeout { .. } => "timeout",
            Self::Garbage { .. } => "garbage",
        }
    }
}

trait Wire: Send + Sync + 'static {
    fn send(
        &self,
        request: Request<Bytes>,
        purpose: Purpose,
    ) -> BoxFuture<'static, Result<Response<Body>, TransportError>>;

    /// The way to another address with the same credentials; none where there are no addresses.
    fn elsewhere(&self, _host: &str, _port: u16) -> Option<Transport> {
        None
    }
}

/// A way to a host, or to a service in this process. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Transport(Arc<dyn Wire>);

impl Transport {
    /// Carries requests to a tower service in this process, such as the embedded API server or a stand-in of a test.
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

    pub(crate) fn pooled(pool: pool::Pool) -> Self {
        Self(Arc::new(pool))
    }

    /// The way to another host with the credentials and the authority of this one. A service in this process has no host: it
    /// stays what it is.
    pub(crate) fn elsewhere(&self, host: &str, port: u16) -> Self {
        self.0.elsewhere(host, port).unwrap_or_else(|| self.clone())
    }

    /// Sends a request whose URI is a path; the answer's body may stream.
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

impl Wire for pool::Pool {
    fn send(
        &self,
        request: Request<Bytes>,
        purpose: Purpose,
    ) -> BoxFuture<'static, Result<Response<Body>, TransportError>> {
        let pool = self.clone();
        Box::pin(async move { pool.request(request, purpose).await })
    }

    fn elsewhere(&self, host: &str, port: u16) -> Option<Transport> {
        Some(Transport::pooled(pool::Pool::elsewhere(self, host, port)))
    }
}

struct InProcess<S, B>(S, std::marker::PhantomData<fn(B)>);

impl<S, B, R> Wire for InProcess<S, B>
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
            // A request over a network suspends whoever makes it. So does this one: a service that always answers at once would
            // otherwise let a single task make its thousand writes in one go, while all others on its thread stand still.
            tokio::task::yield_now().await;
            let answer = service.oneshot(request.map(B::from)).await;
            match answer {
                Ok(response) => Ok(response.map(Body::any)),
                Err(error) => {
                    let error: BoxError = error.into();
                    // A service may say exactly what broke (a simulation does); otherwise the outcome is unknown.
                    Err(match error.downcast::<TransportError>() {
                        Ok(exact) => *exact,
                        Err(other) => TransportError::Broken { why: other.to_string().into() },
                    })
                }
            }
        })
    }
}
