//! Response bodies of the fake server: a text, or a stream of lines.

use std::convert::Infallible;

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::mpsc::UnboundedReceiver;

pub type FakeBody = UnsyncBoxBody<Bytes, Infallible>;

pub fn full(text: String) -> FakeBody {
    Full::from(text).boxed_unsync()
}

pub fn streamed(lines: UnboundedReceiver<Bytes>) -> FakeBody {
    let next = async |mut lines: UnboundedReceiver<Bytes>| {
        lines.recv().await.map(|line| (Ok(Frame::data(line)), lines))
    };
    StreamBody::new(stream::unfold(lines, next)).boxed_unsync()
}
