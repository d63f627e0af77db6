//! Reads request bodies up to a size limit, and streams response bodies.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream::BoxStream};
use http::HeaderMap;
use http_body::Frame;
use http_body_util::BodyExt;
use polis_apimachinery::{
    decode::Decoded,
    protobuf::{self, ProtobufError},
};

use crate::{
    access::{Completion, SessionEnd},
    status::StatusError,
    store::Stored,
    strict,
    verbs::WatchBody,
};

/// Largest body of a request, in bytes. As kube-apiserver.
pub(crate) const BODY_MAX: usize = 3 << 20;
/// Bytes of a list per frame.
const CHUNK: usize = 64 << 10;

/// The body of a response: one piece of bytes, a list, a watch or a stream.
pub struct ResponseBody {
    kind: Kind,
    /// Records the end of a stream in the audit log.
    _completion: Option<Box<Completion>>,
    /// Ends a stream with the credential of its client.
    session: Option<Box<SessionEnd>>,
}

enum Kind {
    Full(Option<Bytes>),
    List(ListBody),
    Watch(Box<WatchBody>),
    Stream(BoxStream<'static, Bytes>),
}

/// A list that is encoded as the client reads it, never held in memory as a whole.
#[derive(Clone)]
struct ListBody {
    head: Option<Bytes>,
    items: std::vec::IntoIter<Stored>,
    /// Bytes at the start of each item to replace by `{`: apiVersion and kind.
    lead: usize,
    first: bool,
    tail: Option<Bytes>,
}

impl From<Kind> for ResponseBody {
    fn from(kind: Kind) -> Self {
        Self { kind, _completion: None, session: None }
    }
}

impl ResponseBody {
    /// A body of one piece.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Kind::Full(Some(bytes.into())).into()
    }

    /// A streamed body, with backpressure from the client. It ends with the stream.
    pub fn stream(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Kind::Stream(chunks.boxed()).into()
    }

    pub(crate) fn list(head: Bytes, items: Vec<Stored>, lead: usize, tail: Bytes) -> Self {
        let items = items.into_iter();
        Kind::List(ListBody { head: Some(head), items, lead, first: true, tail: Some(tail) }).into()
    }

    pub(crate) fn watch(watch: WatchBody) -> Self {
        Kind::Watch(Box::new(watch)).into()
    }

    /// Whether the body has no end of its own: a watch or a stream.
    pub(crate) fn is_streamed(&self) -> bool {
        matches!(self.kind, Kind::Watch(_) | Kind::Stream(_))
    }

    /// Drops `completion` with the body.
    pub(crate) fn set_completion(&mut self, completion: Completion) {
        self._completion = Some(Box::new(completion));
    }

    /// Ends a stream when the credential of its client does.
    pub(crate) fn set_session(&mut self, session: SessionEnd) {
        self.session = Some(Box::new(session));
    }

    /// The same body again, which shares its bytes; `None` for a watch or a stream.
    pub(crate) fn copy(&self) -> Option<Self> {
        match &self.kind {
            Kind::Full(bytes) => Some(Kind::Full(bytes.clone()).into()),
            Kind::List(list) => Some(Kind::List(list.clone()).into()),
            Kind::Watch(_) | Kind::Stream(_) => None,
        }
    }

    /// Bytes that a body holds which is not streamed.
    pub(crate) fn held(&self) -> usize {
        match &self.kind {
            Kind::Full(bytes) => bytes.as_ref().map_or(0, Bytes::len),
            Kind::List(list) => list.items.as_slice().iter().map(|item| item.json().len()).sum(),
            Kind::Watch(_) | Kind::Stream(_) => 0,
        }
    }

    /// The bytes of a body that is not streamed; `None` if they are more than `max`.
    pub(crate) fn collect(self, max: usize) -> Option<Bytes> {
        if self.held() > max {
            return None;
        }
        match self.kind {
            Kind::Full(bytes) => bytes,
            Kind::List(mut list) => {
                let chunks: Vec<Bytes> = std::iter::from_fn(|| list.next()).collect();
                Some(chunks.concat().into())
            }
            Kind::Watch(_) | Kind::Stream(_) => None,
        }
    }
}

impl ListBody {
    fn next(&mut self) -> Option<Bytes> {
        self.tail.as_ref()?;
        let mut chunk = BytesMut::new();
        if let Some(head) = self.head.take() {
            chunk.extend_from_slice(&head);
        }
        while chunk.len() < CHUNK {
            match self.items.next() {
                Some(item) => {
                    if !std::mem::take(&mut self.first) {
                        chunk.extend_from_slice(b",");
                    }
                    match item.json().get(self.lead..).filter(|_| self.lead > 0) {
                        Some(rest) => {
                            chunk.extend_from_slice(b"{");
                            chunk.extend_from_slice(rest);
                        }
                        None => chunk.extend_from_slice(item.json()),
                    }
                }
                None => {
                    if let Some(tail) = self.tail.take() {
                        chunk.extend_from_slice(&tail);
                    }
                    break;
                }
            }
        }
        Some(chunk.freeze())
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        if body.session.as_mut().is_some_and(|session| session.poll(context).is_ready()) {
            body.session = None;
            body.kind = Kind::Full(None);
        }
        match &mut body.kind {
            Kind::Full(bytes) => Poll::Ready(
                bytes.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))),
            ),
            Kind::List(list) => Poll::Ready(list.next().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Watch(watch) => watch.poll(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Stream(chunks) => {
                chunks.poll_next_unpin(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.kind, Kind::Full(None))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match &self.kind {
            Kind::Full(bytes) => {
                http_body::SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            _ => http_body::SizeHint::default(),
        }
    }
}

/// Reads the body of a request. Refuses more than [`BODY_MAX`] bytes with 413.
pub(crate) async fn read<B>(body: B) -> Result<Bytes, StatusError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    let too_large = || StatusError::too_large(format!("Request entity too large: limit is {BODY_MAX}"));
    if body.size_hint().lower() > BODY_MAX as u64 {
        return Err(too_large());
    }
    let mut body = std::pin::pin!(body);
    let mut first = Bytes::new();
    let mut collected = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            StatusError::bad_request(format!("failed to read the body of the request: {error}"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + collected.len() + data.len() > BODY_MAX {
            return Err(too_large());
        }
        // Most bodies are one frame, which needs no copy.
        if first.is_empty() && collected.is_empty() {
            first = data;
        } else {
            if collected.is_empty() {
                collected.extend_from_slice(&std::mem::take(&mut first));
            }
            collected.extend_from_slice(&data);
        }
    }
    Ok(if collected.is_empty() { first } else { collected.freeze() })
}

/// The media type of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Json,
    Yaml,
    Protobuf,
    JsonPatch,
    MergePatch,
    StrategicPatch,
    ApplyPatch,
    ApplyPatchCbor,
}

impl Content {
    /// The media type of the `Content-Type` header; JSON without the header, `None` if unsupported.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let Some(value) = headers.get(http::header::CONTENT_TYPE) else { return Some(Self::Json) };
        let media = value.to_str().ok()?.split(';').next()?.trim().to_ascii_lowercase();
        Some(match media.as_str() {
            "" | "application/json" | "*/*" => Self::Json,
            "application/yaml" | "application/x-yaml" | "text/yaml" => Self::Yaml,
            "application/vnd.kubernetes.protobuf" => Self::Protobuf,
            "application/json-patch+json" => Self::JsonPatch,
            "application/merge-patch+json" => Self::MergePatch,
            "application/strategic-merge-patch+json" => Self::StrategicPatch,
            "application/apply-patch+yaml" => Self::ApplyPatch,
            "application/apply-patch+cbor" => Self::ApplyPatchCbor,
            _ => return None,
        })
    }
}

/// Decodes an object from a request body.
pub(crate) fn decode_object(content: Option<Content>, bytes: &[u8]) -> Result<Decoded, StatusError> {
    match content {
        Some(Content::Json) => strict::json(bytes),
        Some(Content::Yaml | Content::ApplyPatch) => strict::yaml(bytes),
        Some(Content::Protobuf) => match protobuf::decode(bytes) {
            Ok(value) => Ok(Decoded { value, duplicates: Vec::new() }),
            Err(error @ ProtobufError::Malformed) => Err(StatusError::bad_request(error.to_string())),
            Err(ProtobufError::UnknownKind) => {
                Err(StatusError::unsupported_media_type("application/json, application/yaml"))
            }
        },
        _ => Err(StatusError::unsupported_media_type(
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}
