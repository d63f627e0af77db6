//! Bodies of the stand-in: a text, or lines that keep coming until someone cuts them off.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc::UnboundedReceiver;

pub enum StandInBody {
    Full(Option<Bytes>),
    Lines(UnboundedReceiver<Bytes>),
}

impl StandInBody {
    pub fn full(text: String) -> Self {
        Self::Full(Some(Bytes::from(text)))
    }
}

impl http_body::Body for StandInBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Full(content) => Poll::Ready(content.take().map(|content| Ok(Frame::data(content)))),
            Self::Lines(lines) => lines.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }
}
