//! Watch: streams the history of a collection as lines of JSON.
//!
//! The stream holds only a position in the history of the store; stored objects are copied into the event
//! lines without decoding. A client that reads too slowly falls behind the history and gets a 410 event, like
//! one that resumes too late.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use http::Response;
use polis_apimachinery::{ValidationError, table::IncludeObject};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use super::{
    Call,
    convert::{self, metadata_only},
    filter::Filter,
    read::parse_version,
};
use crate::{
    http::{Projection, ResponseBody},
    kinds::{Kind, Version},
    plane::Plane,
    server::{Core, WatchQuotaGuard},
    status::{GroupResource, StatusError},
    store::{
        ChangeType, CommitError, Compacted, Event, RangeOptions, Revision, StoreWatch, Stored, WatchItem,
    },
};

/// Interval of bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Shortest duration of a watch without `timeoutSeconds`. The longest is twice as long; the spread keeps
/// clients from reconnecting at the same time.
const LIFE: Duration = Duration::from_secs(1800);
/// Bytes after which a frame of the stream is sent.
const FRAME_MAX: usize = 64 << 10;

/// The request of a watch.
struct WatchOptions {
    core: Arc<Core>,
    plane: Arc<Plane>,
    kind: Arc<Kind>,
    version: Arc<Version>,
    filter: Filter,
    projection: Projection,
    include_object: IncludeObject,
    bookmarks: bool,
    /// The client sees writes that are not durable yet.
    read_uncommitted: bool,
}

/// The response body of a watch.
pub(crate) struct WatchBody {
    options: WatchOptions,
    watch: Option<StoreWatch>,
    /// The latest revision that the stream shows. A frame is sent once this revision is durable; later writes
    /// need not be.
    shown: Revision,
    /// A frame that waits for durability.
    held: Option<(Bytes, BoxFuture<'static, Result<(), CommitError>>)>,
    initial: std::vec::IntoIter<(Arc<str>, Stored)>,
    /// The revision of the bookmark that ends the initial events, if it is still to be sent.
    initial_end: Option<Revision>,
    bookmarked: Revision,
    ends: Instant,
    timer: Pin<Box<Sleep>>,
    columns_sent: bool,
    _quota: WatchQuotaGuard,
}

/// The start of a watch.
struct WatchStart {
    /// The revision after which events follow.
    from: Revision,
    /// The revision that the initial objects show. They also show deletions, by the absence of objects.
    shown: Revision,
    initial: Vec<(Arc<str>, Stored)>,
    /// The revision of the bookmark that ends the initial objects, if the client asked for it.
    initial_end: Option<Revision>,
}

/// The stream of a watch from a revision that is no longer in the history: one error.
fn too_old(compacted: Compacted) -> Response<ResponseBody> {
    let failure = StatusError::expired(format!(
        "too old resource version: {} ({})",
        compacted.requested, compacted.oldest
    ));
    let error = line("ERROR", failure.status().to_string().as_bytes());
    crate::http::respond_json(200, ResponseBody::full(error))
}

impl Call {
    pub(crate) fn watch(&self) -> Result<Response<ResponseBody>, StatusError> {
        let filter = Filter::of(self)?;
        let requested =
            parse_version(&self.options.resource_version).map_err(|why| StatusError::new(500, "", why))?;
        self.check_watch_options()?;
        let quota = self.core.acquire_watch(&self.caller, &self.plane.name)?;
        let start = self.watch_start(&filter, requested)?;
        let watch = match self.core.store.view().watch(&self.collection(), start.from) {
            Ok(watch) => watch,
            Err(compacted) => return Ok(too_old(compacted)),
        };
        let life = self.options.timeout_seconds.map_or_else(
            || LIFE + Duration::from_secs(self.core.random.below(LIFE.as_secs())),
            Duration::from_secs,
        );
        let ends = Instant::now() + life;
        let first = if self.options.bookmarks { ends.min(Instant::now() + BOOKMARK_EVERY) } else { ends };
        let body = WatchBody {
            options: WatchOptions {
                core: self.core.clone(),
                plane: self.plane.clone(),
                kind: self.kind.clone(),
                version: self.version.clone(),
                filter,
                projection: self.output.projection,
                include_object: self.options.include_object,
                bookmarks: self.options.bookmarks,
                read_uncommitted: self.read_uncommitted,
            },
            watch: Some(watch),
            shown: start.shown,
            held: None,
            initial: start.initial.into_iter(),
            initial_end: start.initial_end,
            bookmarked: start.from,
            ends,
            timer: Box::pin(tokio::time::sleep_until(first)),
            columns_sent: false,
            _quota: quota,
        };
        Ok(crate::http::respond_json(200, ResponseBody::watch(body)))
    }

    /// Where the watch starts. Without a revision, or from 0, it starts with the current objects.
    fn watch_start(&self, filter: &Filter, requested: Option<Revision>) -> Result<WatchStart, StatusError> {
        let view = self.core.store.view();
        let wants_state = match self.options.send_initial_events {
            Some(wanted) => wanted,
            None => requested.is_none_or(|requested| requested == 0),
        };
        if !wants_state {
            let from = requested.filter(|requested| *requested > 0).unwrap_or_else(|| view.revision());
            return Ok(WatchStart { from, shown: 0, initial: Vec::new(), initial_end: None });
        }
        let current = view.revision();
        if let Some(requested) = requested.filter(|requested| *requested > current) {
            return Err(StatusError::too_new(requested, current));
        }
        let prefix = filter.prefix();
        let page = view
            .range(&self.collection(), &RangeOptions { prefix: &prefix, ..RangeOptions::default() })
            .map_err(|compacted| StatusError::expired(compacted.to_string()))?;
        Ok(WatchStart {
            from: page.revision,
            shown: page.revision,
            initial: page.items.into_iter().filter(|(path, stored)| filter.accepts(path, stored)).collect(),
            initial_end: (self.options.send_initial_events == Some(true) && self.options.bookmarks)
                .then_some(page.revision),
        })
    }

    fn check_watch_options(&self) -> Result<(), StatusError> {
        let options = &self.options;
        let mut errors = Vec::new();
        let matching = options.resource_version_match.as_str();
        match options.send_initial_events {
            Some(_) if matching != "NotOlderThan" => {
                errors.push(ValidationError::forbidden(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            None if !matching.is_empty() => {
                errors.push(ValidationError::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            _ => {}
        }
        if !options.continue_token.is_empty() {
            errors.push(ValidationError::forbidden("continue", "continue is forbidden for watch"));
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(StatusError::invalid(&GroupResource::new("meta.k8s.io", "ListOptions"), "", &errors))
        }
    }
}

fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(object.len() + 40);
    write_line(&mut line, kind, object);
    line.freeze()
}

fn write_line(frame: &mut BytesMut, kind: &str, object: &[u8]) {
    frame.put_slice(b"{\"type\":\"");
    frame.put_slice(kind.as_bytes());
    frame.put_slice(b"\",\"object\":");
    frame.put_slice(object);
    frame.put_slice(b"}\n");
}

impl WatchBody {
    /// The next frame of the stream, or its end. It also ends if the store fails before the frame is durable.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.held.is_none() {
            let Some(frame) = ready!(self.next(context)) else { return Poll::Ready(None) };
            let durable =
                self.options.core.store.durable(self.shown).filter(|_| !self.options.read_uncommitted);
            let Some(durable) = durable else { return Poll::Ready(Some(frame)) };
            self.held = Some((frame, durable));
        }
        let Some((_, durable)) = &mut self.held else { return Poll::Pending };
        let durable = ready!(durable.as_mut().poll(context));
        let held = self.held.take().map(|(frame, _)| frame);
        Poll::Ready(held.filter(|_| durable.is_ok()))
    }

    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut frame = BytesMut::new();
        while let Some((_, stored)) = self.initial.next() {
            self.write(&mut frame, "ADDED", &stored);
            if frame.len() >= FRAME_MAX {
                return Poll::Ready(Some(frame.freeze()));
            }
        }
        if let Some(revision) = self.initial_end.take() {
            self.write_bookmark(&mut frame, revision, true);
        }
        // Read before the events: when no event is left, the stream has all writes up to this revision.
        let revision = self.options.core.store.view().revision();
        loop {
            let Some(watch) = &mut self.watch else { return Poll::Ready(None) };
            if frame.len() >= FRAME_MAX {
                return Poll::Ready(Some(frame.freeze()));
            }
            match watch.poll_next(context) {
                Poll::Pending => break,
                Poll::Ready(WatchItem::Event(event)) => self.write_event(&mut frame, &event),
                Poll::Ready(WatchItem::Compacted(compacted)) => {
                    let failure = StatusError::expired(format!(
                        "too old resource version: {} ({})",
                        compacted.requested, compacted.oldest
                    ));
                    write_line(&mut frame, "ERROR", failure.status().to_string().as_bytes());
                    self.watch = None;
                    return Poll::Ready(Some(frame.freeze()));
                }
            }
        }
        if !frame.is_empty() {
            return Poll::Ready(Some(frame.freeze()));
        }
        if !self.still_served() {
            self.watch = None;
            return Poll::Ready(None);
        }
        while self.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            if now >= self.ends {
                self.watch = None;
                return Poll::Ready(None);
            }
            self.timer.as_mut().reset(self.ends.min(now + BOOKMARK_EVERY));
            if self.options.bookmarks && revision > self.bookmarked {
                self.write_bookmark(&mut frame, revision, false);
                return Poll::Ready(Some(frame.freeze()));
            }
        }
        Poll::Pending
    }

    /// Whether the kind is still served. The deletion of the plane or the CRD, or a version that is no longer
    /// served, ends the watch.
    fn still_served(&mut self) -> bool {
        let options = &mut self.options;
        if options.plane.is_deleted() {
            return false;
        }
        if !options.kind.is_custom() {
            return true;
        }
        let kinds = options.plane.catalogue.kinds();
        let Some(kind) = kinds.find(&options.kind.group, &options.kind.plural) else { return false };
        if Arc::ptr_eq(kind, &options.kind) {
            return true;
        }
        // The CRD has changed: continue with its new schema.
        let Some(version) = kind.version(&options.version.name) else { return false };
        options.version = version.clone();
        options.kind = kind.clone();
        true
    }

    fn write_event(&mut self, frame: &mut BytesMut, event: &Event) {
        let filter = &self.options.filter;
        if !filter.covers(&event.path) {
            return;
        }
        let was = event.before.as_ref().filter(|before| filter.selects(before));
        let is = event.change == ChangeType::Put && filter.selects(&event.object);
        if was.is_some() || is {
            self.shown = self.shown.max(event.revision());
        }
        match (was, is) {
            (None, true) => self.write(frame, "ADDED", &event.object),
            (Some(_), true) => self.write(frame, "MODIFIED", &event.object),
            // Deleted, or no longer selected: the event carries the previous state with the revision of this
            // write.
            (Some(before), false) => self.write(frame, "DELETED", &before.with_revision(event.revision())),
            (None, false) => {}
        }
    }

    fn write(&mut self, frame: &mut BytesMut, kind: &str, stored: &Stored) {
        let options = &self.options;
        if options.projection == Projection::Full {
            write_line(frame, kind, convert::convert(&options.kind, &options.version, stored).json());
            return;
        }
        let object = convert::convert_value(&options.kind, &options.version, stored);
        let shown = match options.projection {
            Projection::Metadata => metadata_only(&object),
            _ => self.table_of(&object),
        };
        write_line(frame, kind, shown.to_string().as_bytes());
    }

    /// One object as a `Table`. Only the first table of the stream has the column definitions.
    fn table_of(&mut self, object: &Value) -> Value {
        let options = &self.options;
        let first = !std::mem::replace(&mut self.columns_sent, true);
        options.version.columns.table(object, options.include_object, first, options.core.clock.now())
    }

    fn write_bookmark(&mut self, frame: &mut BytesMut, revision: Revision, ends_initial: bool) {
        self.bookmarked = revision;
        self.shown = self.shown.max(revision);
        let options = &self.options;
        let (kind, version) = match options.projection {
            Projection::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1"),
            _ => (options.kind.kind.as_str(), options.version.api_version.as_str()),
        };
        let mut bookmark = json!({"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": revision.to_string()}});
        if ends_initial {
            bookmark["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        if options.projection == Projection::Table {
            bookmark = options.version.columns.table(
                &bookmark,
                options.include_object,
                false,
                options.core.clock.now(),
            );
        }
        write_line(frame, "BOOKMARK", bookmark.to_string().as_bytes());
    }
}
