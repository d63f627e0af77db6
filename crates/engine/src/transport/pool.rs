//! The connection pool of one host, shared by all planes on it.
//!
//! API servers limit the streams of a connection (kube-apiserver: 100), and a watch holds its stream for
//! minutes. A request on a full connection waits without an error until a stream ends, possibly forever. The
//! pool therefore fills connections only to 90 % and then opens another one, and it uses separate connections
//! for unary calls, so that they never wait for a watch. Only one connection is dialed at a time for each
//! purpose; concurrent requests share the result of the dial.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use http::header::HOST;
use http::uri::{Parts, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use parking_lot::Mutex;

use super::auth::Credentials;
use super::tls::{Dialed, Target};
use super::{Body, Purpose, TransportError, h1, h2};

/// Maximum number of HTTP/2 connections for unary calls. When all are full, requests wait: their streams end
/// within seconds.
const UNARY_CONNECTIONS: usize = 4;
/// How often a request that was not sent is moved to another connection.
const MAX_RESENDS: usize = 3;
/// Polling interval while all connections for unary calls are full.
const FULL_POLL_INTERVAL: Duration = Duration::from_millis(5);

type Dial = Shared<BoxFuture<'static, Result<DialResult, TransportError>>>;

#[derive(Clone)]
enum DialResult {
    Http2,
    Http1(Arc<Mutex<Option<h1::Conn>>>),
}

/// The connection pool of one host. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    target: Target,
    credentials: Credentials,
    groups: [ConnectionGroup; 2],
    idle: h1::Idle,
}

/// The connections for one purpose.
#[derive(Default)]
struct ConnectionGroup(Mutex<ConnectionGroupState>);

#[derive(Default)]
struct ConnectionGroupState {
    connections: Vec<h2::Conn>,
    dialing: Option<Dial>,
}

/// The result of an attempt to reserve a stream.
enum Reservation {
    Reserved(ReservedStream),
    /// All connections are full of unary calls.
    Full,
    /// A connection is being dialed.
    Dialing(Dial),
}

enum ReservedStream {
    Http2(h2::Conn, h2::Slot),
    Http1(h1::Conn),
}

impl Pool {
    pub(crate) fn new(target: Target, credentials: Credentials) -> Self {
        Self(Arc::new(Inner { target, credentials, groups: Default::default(), idle: h1::Idle::default() }))
    }

    /// The pool of another host with the same credentials.
    pub(crate) fn at_host(&self, host: &str, port: u16) -> Self {
        Self::new(self.0.target.at_host(host, port), self.0.credentials.clone())
    }

    /// Sends a request with credentials. If the server rejects a cached token (401), reads the token again
    /// and retries once.
    pub(crate) async fn request(
        &self,
        request: Request<Bytes>,
        purpose: Purpose,
    ) -> Result<Response<Body>, TransportError> {
        let token_read_at = self.0.credentials.token_read_at();
        let first = self.0.credentials.sign(request.clone()).await?;
        let response = self.send_signed(first, purpose).await?;
        if response.status() != StatusCode::UNAUTHORIZED || !self.0.credentials.invalidate(token_read_at) {
            return Ok(response);
        }
        drop(response);
        let second = self.0.credentials.sign(request).await?;
        self.send_signed(second, purpose).await
    }

    async fn send_signed(
        &self,
        request: Request<Bytes>,
        purpose: Purpose,
    ) -> Result<Response<Body>, TransportError> {
        let mut resends = 0;
        loop {
            let result = match self.reserve(purpose).await? {
                ReservedStream::Http2(conn, slot) => {
                    conn.request(self.absolute(request.clone())?, slot).await
                }
                ReservedStream::Http1(conn) => {
                    conn.request(self.relative(request.clone()), self.0.idle.clone()).await
                }
            };
            match result {
                Err(TransportError::Unsent { .. }) if resends < MAX_RESENDS => resends += 1,
                result => return result,
            }
        }
    }

    /// Reserves a stream, and opens a connection if necessary.
    async fn reserve(&self, purpose: Purpose) -> Result<ReservedStream, TransportError> {
        loop {
            let dial = match self.try_reserve(purpose) {
                Reservation::Reserved(ready) => return Ok(ready),
                Reservation::Full => {
                    tokio::time::sleep(FULL_POLL_INTERVAL).await;
                    continue;
                }
                Reservation::Dialing(dial) => dial,
            };
            match dial.await? {
                DialResult::Http2 => {}
                // An HTTP/1.1 connection serves one request; the other waiting requests dial again.
                DialResult::Http1(conn) => {
                    if let Some(conn) = conn.lock().take() {
                        return Ok(ReservedStream::Http1(conn));
                    }
                }
            }
        }
    }

    fn try_reserve(&self, purpose: Purpose) -> Reservation {
        let mut group = self.group(purpose).0.lock();
        group.connections.retain(|conn| !conn.is_closed());
        for conn in &group.connections {
            if let Some(slot) = conn.try_reserve() {
                return Reservation::Reserved(ReservedStream::Http2(conn.clone(), slot));
            }
        }
        if let Some(conn) = self.0.idle.take() {
            return Reservation::Reserved(ReservedStream::Http1(conn));
        }
        if let Some(dial) = &group.dialing {
            return Reservation::Dialing(dial.clone());
        }
        if purpose == Purpose::Unary && group.connections.len() >= UNARY_CONNECTIONS {
            return Reservation::Full;
        }
        let dial = self.clone().dial(purpose).boxed().shared();
        group.dialing = Some(dial.clone());
        Reservation::Dialing(dial)
    }

    async fn dial(self, purpose: Purpose) -> Result<DialResult, TransportError> {
        let dialed = async {
            match self.0.target.dial().await? {
                Dialed::Http2(io) => Ok(Err(h2::Conn::establish(io).await?)),
                Dialed::Http1(io) => Ok(Ok(h1::Conn::establish(io).await?)),
            }
        }
        .await;
        let mut group = self.group(purpose).0.lock();
        group.dialing = None;
        match dialed {
            Ok(Err(conn)) => {
                group.connections.push(conn);
                Ok(DialResult::Http2)
            }
            Ok(Ok(conn)) => Ok(DialResult::Http1(Arc::new(Mutex::new(Some(conn))))),
            Err(error) => Err(error),
        }
    }

    fn group(&self, purpose: Purpose) -> &ConnectionGroup {
        &self.0.groups[match purpose {
            Purpose::Unary => 0,
            Purpose::Watch => 1,
        }]
    }

    fn absolute(&self, mut request: Request<Bytes>) -> Result<Request<Bytes>, TransportError> {
        let mut parts = Parts::default();
        parts.scheme = Some(if self.0.target.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = self.0.target.authority.parse().ok();
        parts.path_and_query = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from_parts(parts)
            .map_err(|error| TransportError::Unsent { why: error.to_string().into() })?;
        Ok(request)
    }

    fn relative(&self, mut request: Request<Bytes>) -> Request<Bytes> {
        if let Ok(host) = HeaderValue::from_str(&self.0.target.authority) {
            request.headers_mut().insert(HOST, host);
        }
        request
    }
}
