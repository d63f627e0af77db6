//! The lines of a watch, as they come out of a body in pieces.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Body as _;

use crate::transport::{Body, BoxError};

/// Longest line of a watch; an object can have 1.5 MiB in etcd, a little more as JSON.
const LONGEST_LINE: usize = 32 * 1024 * 1024;

/// A body and the start of a line whose end has not come yet. Holds no memory while no line is under way.
pub(super) struct Lines {
    body: Body,
    partial: Vec<u8>,
}

impl Lines {
    pub(super) fn new(body: Body) -> Self {
        Self { body, partial: Vec::new() }
    }

    /// The next piece of the body.
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

    /// Gives every line that the piece completes to `take`, and keeps the rest.
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

    /// True if the line under way is longer than any can be.
    pub(super) fn is_endless(&self) -> bool {
        self.partial.len() > LONGEST_LINE
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
        fn lines_come_out_whole_however_they_are_cut(
            lines in proptest::collection::vec("[a-z]{0,12}", 0..12),
            cuts in proptest::collection::vec(1usize..9, 1..40),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut splitter = Lines::new(Body::any(Full::new(Bytes::new())));
            let (mut rest, mut seen) = (text.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                splitter.split(piece, |line| { seen.push(String::from_utf8(line.to_vec()).unwrap()); Ok::<_, ()>(()) }).unwrap();
                rest = after;
            }
            prop_assert_eq!(seen, lines);
            prop_assert_eq!(splitter.partial.capacity(), 0, "no memory is held between lines");
        }
    }
}
