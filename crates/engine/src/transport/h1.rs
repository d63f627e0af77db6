//! HTTP/1.1 connections, for servers without HTTP/2. A connection carries one request at a time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Body, BoxError, TransportError};

/// Maximum number of idle connections. More would be useful only during bursts.
const MAX_IDLE: usize = 8;

/// A connection without a running request.
pub(crate) struct Conn(SendRequest<Full<Bytes>>);

/// The idle connections of a host.
#[derive(Clone, Default)]
pub(crate) struct Idle(Arc<Mutex<Vec<Conn>>>);

impl Idle {
    /// An idle connection that is still open.
    pub(crate) fn take(&self) -> Option<Conn> {
        let mut idle = self.0.lock();
        idle.retain(|conn| !conn.0.is_closed());
        idle.pop()
    }

    fn put(&self, conn: Conn) {
        let mut idle = self.0.lock();
        if idle.len() < MAX_IDLE && !conn.0.is_closed() {
            idle.push(conn);
        }
    }
}

impl Conn {
    pub(crate) async fn establish<T>(io: T) -> Result<Self, TransportError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let broken = |why: hyper::Error| TransportError::Unsent { why: why.to_string().into() };
        let (send, connection) = handshake(TokioIo::new(io)).await.map_err(broken)?;
        tokio::spawn(async move {
            if let Err(why) = connection.await {
                tracing::debug!(%why, "connection ended");
            }
        });
        Ok(Self(send))
    }

    /// Sends a request whose URI is a path. The connection returns to `idle` when the response has been read
    /// to its end.
    pub(crate) async fn request(
        mut self,
        request: Request<Bytes>,
        idle: Idle,
    ) -> Result<Response<Body>, TransportError> {
        // The connection may still be finishing the previous response.
        self.0.ready().await.map_err(|error| TransportError::Unsent { why: error.to_string().into() })?;
        match self.0.try_send_request(request.map(Full::new)).await {
            Ok(response) => {
                Ok(response.map(|data| Body::http1(Stream { data, return_to: Some((self, idle)) })))
            }
            Err(mut error) => {
                let unsent = error.take_message().is_some();
                let why = error.into_error().to_string().into();
                Err(if unsent { TransportError::Unsent { why } } else { TransportError::Broken { why } })
            }
        }
    }
}

/// The body of one response.
pub(crate) struct Stream {
    data: Incoming,
    return_to: Option<(Conn, Idle)>,
}

impl Stream {
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        loop {
            match std::task::ready!(Pin::new(&mut self.data).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => {
                    self.return_to = None;
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    if let Some((conn, idle)) = self.return_to.take() {
                        idle.put(conn);
                    }
                    return Poll::Ready(None);
                }
            }
        }
    }
}
