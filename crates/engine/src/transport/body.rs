//! [`Body`]: a response body from HTTP/2, HTTP/1.1 or an in-process service.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;

use super::{BoxError, h1, h2};

/// A response body. Dropping it ends the stream and releases its slot on the connection.
pub struct Body(Inner);

enum Inner {
    Http2(h2::Stream),
    /// Boxed: rare, and larger than the others.
    Http1(Box<h1::Stream>),
    Any(Pin<Box<dyn http_body::Body<Data = Bytes, Error = BoxError> + Send>>),
}

impl Body {
    pub(super) fn http2(stream: h2::Stream) -> Self {
        Self(Inner::Http2(stream))
    }

    pub(super) fn http1(stream: h1::Stream) -> Self {
        Self(Inner::Http1(Box::new(stream)))
    }

    pub(crate) fn any<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Inner::Any(Box::pin(body.map_err(Into::into))))
    }

    /// Reads the whole body, up to `limit` bytes.
    pub(crate) async fn read_all(mut self, limit: usize) -> Result<Vec<u8>, BoxError> {
        let mut all = Vec::new();
        while let Some(frame) = self.frame().await {
            if let Ok(data) = frame?.into_data() {
                if all.len() + data.len() > limit {
                    return Err(format!("response is longer than {limit} bytes").into());
                }
                all.extend_from_slice(&data);
            }
        }
        Ok(all)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().0 {
            Inner::Http2(stream) => stream.poll_data(cx).map(|data| data.map(|data| data.map(Frame::data))),
            Inner::Http1(stream) => stream.poll_data(cx).map(|data| data.map(|data| data.map(Frame::data))),
            Inner::Any(body) => body.as_mut().poll_frame(cx),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Inner::Http2(_) => "Body(http2)",
            Inner::Http1(_) => "Body(http1)",
            Inner::Any(_) => "Body(in process)",
        })
    }
}
