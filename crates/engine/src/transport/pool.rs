//! The connections to one host, shared by every plane behind it.
//!
//! API servers allow a limited number of streams per connection (kube-apiserver: 100) and a watch holds its stream for
//! minutes. A client that puts one more stream on a full connection waits for ever, without an error. So watches fill
//! connections to nine tenths and then a further one is opened, while unary calls have connections of their own and never
//! stand behind a watch. One dial at a time: whoever needs a connection meanwhile shares its outcome, good or bad.

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

/// Connections for unary calls. Streams end within seconds, so a full one makes room soon; beyond this many, callers wait.
const UNARY_CONNECTIONS: usize = 4;
/// How often a request that was certainly not sent is given to another connection.
const HANDOVERS: usize = 3;
/// How long to wait for one of many short calls to end.
const SOON: Duration = Duration::from_millis(5);

type Dial = Shared<BoxFuture<'static, Result<Made, TransportError>>>;

#[derive(Clone)]
enum Made {
    Http2,
    Http1(Arc<Mutex<Option<h1::Conn>>>),
}

/// The pool of one host. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    target: Target,
    credentials: Credentials,
    lanes: [Lane; 2],
    idle: h1::Idle,
}

/// The connections for one purpose.
#[derive(Default)]
struct Lane(Mutex<LaneState>);

#[derive(Default)]
struct LaneState {
    connections: Vec<h2::Conn>,
    dialing: Option<Dial>,
}

/// Where there is room for one more stream.
enum Room {
    Here(Ready),
    /// Every connection is full of calls that end within moments.
    Soon,
    After(Dial),
}

enum Ready {
    Http2(h2::Conn, h2::Slot),
    Http1(h1::Conn),
}

impl Pool {
    pub(crate) fn new(target: Target, credentials: Credentials) -> Self {
        Self(Arc::new(Inner { target, credentials, lanes: Default::default(), idle: h1::Idle::default() }))
    }

    /// The pool of another host that takes the same credentials.
    pub(crate) fn elsewhere(&self, host: &str, port: u16) -> Self {
        Self::new(self.0.target.elsewhere(host, port), self.0.credentials.clone())
    }

    /// Sends a request, with credentials. A token that the server no longer takes is read anew once.
    pub(crate) async fn request(
        &self,
        request: Request<Bytes>,
        purpose: Purpose,
    ) -> Result<Response<Body>, TransportError> {
        let stamp = self.0.credentials.stamp();
        let first = self.0.credentials.sign(request.clone()).await?;
        let response = self.carry(first, purpose).await?;
        if response.status() != StatusCode::UNAUTHORIZED || !self.0.credentials.renew(stamp) {
            return Ok(response);
        }
        drop(response);
        let second = self.0.credentials.sign(request).await?;
        self.carry(second, purpose).await
    }

    async fn carry(
        &self,
        request: Request<Bytes>,
        purpose: Purpose,
    ) -> Result<Response<Body>, TransportError> {
        let mut handovers = 0;
        loop {
            let outcome = match self.reserve(purpose).await? {
                Ready::Http2(conn, slot) => conn.request(self.absolute(request.clone())?, slot).await,
                Ready::Http1(conn) => conn.request(self.relative(request.clone()), self.0.idle.clone()).await,
            };
            match outcome {
                Err(TransportError::Unsent { .. }) if handovers < HANDOVERS => handovers += 1,
                outcome => return outcome,
            }
        }
    }

    /// A connection with room for one more stream, opened if need be.
    async fn reserve(&self, purpose: Purpose) -> Result<Ready, TransportError> {
        loop {
            let dial = match self.try_reserve(purpose) {
                Room::Here(ready) => return Ok(ready),
                Room::Soon => {
                    tokio::time::sleep(SOON).await;
                    continue;
                }
                Room::After(dial) => dial,
            };
            match dial.await? {
                Made::Http2 => {}
                // HTTP/1.1 serves one caller; the others dial for themselves.
                Made::Http1(conn) => {
                    if let Some(conn) = conn.lock().take() {
                        return Ok(Ready::Http1(conn));
                    }
                }
            }
        }
    }

    fn try_reserve(&self, purpose: Purpose) -> Room {
        let mut lane = self.lane(purpose).0.lock();
        lane.connections.retain(|conn| !conn.is_closed());
        for conn in &lane.connections {
            if let Some(slot) = conn.try_reserve() {
                return Room::Here(Ready::Http2(conn.clone(), slot));
            }
        }
        if let Some(conn) = self.0.idle.take() {
            return Room::Here(Ready::Http1(conn));
        }
        if let Some(dial) = &lane.dialing {
            return Room::After(dial.clone());
        }
        if purpose == Purpose::Unary && lane.connections.len() >= UNARY_CONNECTIONS {
            return Room::Soon;
        }
        let dial = self.clone().dial(purpose).boxed().shared();
        lane.dialing = Some(dial.clone());
        Room::After(dial)
    }

    async fn dial(self, purpose: Purpose) -> Result<Made, TransportError> {
        let made = async {
            match self.0.target.dial().await? {
                Dialed::Http2(io) => Ok(Err(h2::Conn::establish(io).await?)),
                Dialed::Http1(io) => Ok(Ok(h1::Conn::establish(io).await?)),
            }
        }
        .await;
        let mut lane = self.lane(purpose).0.lock();
        lane.dialing = None;
        match made {
            Ok(Err(conn)) => {
                lane.connections.push(conn);
                Ok(Made::Http2)
            }
            Ok(Ok(conn)) => Ok(Made::Http1(Arc::new(Mutex::new(Some(conn))))),
            Err(error) => Err(error),
        }
    }

    fn lane(&self, purpose: Purpose) -> &Lane {
        &self.0.lanes[match purpose {
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
