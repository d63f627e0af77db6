//! Response bodies of the fake server: a text, or a stream of lines.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc::UnboundedReceiver;

pub enum FakeBody {
    Full(Option<Bytes>),
    Stream(UnboundedReceiver<Bytes>),
}

impl FakeBody {
    pub fn full(text: String) -> Self {
        Self::Full(Some(Bytes::from(text)))
    }
}

impl http_body::Body for FakeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Full(content) => Poll::Ready(content.take().map(|content| Ok(Frame::data(content)))),
            Self::Stream(lines) => lines.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }
}
