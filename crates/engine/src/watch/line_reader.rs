//! [`LineReader`]: splits the body of a watch response into lines, one for each event.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Body as _;

use crate::transport::{Body, BoxError};

/// Longest accepted line. An object has at most 1.5 MiB in etcd, and slightly more as JSON.
const MAX_LINE_BYTES: usize = 32 * 1024 * 1024;

/// A response body and its current incomplete line. Allocates nothing between lines.
pub(super) struct LineReader {
    body: Body,
    partial: Vec<u8>,
}

impl LineReader {
    pub(super) fn new(body: Body) -> Self {
        Self { body, partial: Vec::new() }
    }

    /// Polls for the next chunk of the body.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        loop {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    /// Calls `take` with every line that the chunk completes, and buffers the rest.
    pub(super) fn split<E>(
        &mut self,
        data: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = data;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            if self.partial.is_empty() {
                take(line)?;
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                take(&whole)?;
            }
            rest = after;
        }
        self.partial.extend_from_slice(rest);
        Ok(())
    }

    /// True if the current line exceeds the limit.
    pub(super) fn is_too_long(&self) -> bool {
        self.partial.len() > MAX_LINE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn lines_are_complete_however_the_body_is_chunked(
            lines in proptest::collection::vec("[a-z]{0,12}", 0..12),
            cuts in proptest::collection::vec(1usize..9, 1..40),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut splitter = LineReader::new(Body::any(Full::new(Bytes::new())));
            let (mut rest, mut read) = (text.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                splitter.split(piece, |line| { read.push(String::from_utf8(line.to_vec()).unwrap()); Ok::<_, ()>(()) }).unwrap();
                rest = after;
            }
            prop_assert_eq!(read, lines);
            prop_assert_eq!(splitter.partial.capacity(), 0, "no buffer is allocated between lines");
        }
    }
}
