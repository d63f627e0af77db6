//! Watch: the history of a collection as a stream of lines.
//!
//! The stream holds a place in the store's history and nothing else; events are encoded objects wrapped in two strings.
//! A client that reads too slowly falls behind that history and is told so with a 410, as one that resumes too late.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use http::Response;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use super::{
    Call,
    filter::Filter,
    present::{self, metadata_only},
    read::parse_version,
};
use crate::{
    http::{Body, Projection},
    kinds::{Kind, Version},
    plane::Plane,
    schema::FieldError,
    server::{Core, WatchSeat},
    status::{About, Failure},
    store::{Change, CommitError, Event, Next, Range, Revision, Stored, Watch},
    table::IncludeObject,
};

/// Pause between bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Shortest life of a watch that names no timeout; the longest is twice that, spread so that clients do not return
/// together.
const LIFE: Duration = Duration::from_secs(1800);
/// Events put into one frame of the stream at most, and bytes.
const FRAME_MAX: usize = 64 << 10;

/// The fixed part of a watch, shared by nobody but small enough to be boxed once.
struct Terms {
    core: Arc<Core>,
    plane: Arc<Plane>,
    kind: Arc<Kind>,
    version: Arc<Version>,
    filter: Filter,
    projection: Projection,
    include_object: IncludeObject,
    bookmarks: bool,
    /// The client may see what is not durable yet.
    ahead: bool,
}

/// The body of a watch.
pub struct WatchBody {
    terms: Terms,
    watch: Option<Watch>,
    /// What has been written into the stream was so at this revision. It is shown once that is durable; what others have
    /// written since need not be.
    shown: Revision,
    /// A part of the stream that is shown when it is durable.
    held: Option<(Bytes, BoxFuture<'static, Result<(), CommitError>>)>,
    initial: std::vec::IntoIter<(Arc<str>, Stored)>,
    /// The revision of the bookmark that ends the initial events, if one is due.
    initial_end: Option<Revision>,
    bookmarked: Revision,
    ends: Instant,
    timer: Pin<Box<Sleep>>,
    columns_sent: bool,
    _seat: WatchSeat,
}

impl Call {
    pub(crate) fn watch(&self) -> Result<Response<Body>, Failure> {
        let filter = Filter::of(self)?;
        let asked =
            parse_version(&self.options.resource_version).map_err(|why| Failure::new(500, "", why))?;
        self.check_watch_options()?;
        let seat = self.core.seat(&self.identity)?;
        let collection = self.collection();
        let view = self.core.store.view();
        // Without a revision, or from "any", the present state comes first.
        let wants_state = match self.options.send_initial_events {
            Some(wanted) => wanted,
            None => asked.is_none_or(|asked| asked == 0),
        };
        let mut initial = Vec::new();
        let mut initial_end = None;
        let mut lost = None;
        let from = if wants_state {
            let current = view.revision();
            if let Some(asked) = asked.filter(|asked| *asked > current) {
                return Err(Failure::too_new(asked, current));
            }
            let prefix = filter.prefix();
            let page = view
                .range(&collection, &Range { prefix: &prefix, ..Range::default() })
                .map_err(|gone| Failure::expired(gone.to_string()))?;
            initial = page.items.into_iter().filter(|(path, stored)| filter.accepts(path, stored)).collect();
            initial_end = (self.options.send_initial_events == Some(true) && self.options.bookmarks)
                .then_some(page.revision);
            page.revision
        } else {
            asked.filter(|asked| *asked > 0).unwrap_or_else(|| view.revision())
        };
        let watch = match view.watch(&collection, from) {
            Ok(watch) => Some(watch),
            Err(gone) => {
                lost = Some(gone);
                None
            }
        };
        if let Some(gone) = lost {
            let failure =
                Failure::expired(format!("too old resource version: {} ({})", gone.asked, gone.kept));
            return Ok(crate::http::respond_json(
                200,
                Body::full(line("ERROR", failure.status().to_string().as_bytes())),
            ));
        }
        let life = self.options.timeout_seconds.map_or_else(
            || LIFE + Duration::from_secs(self.core.chance.below(LIFE.as_secs())),
            Duration::from_secs,
        );
        let ends = Instant::now() + life;
        let first = if self.options.bookmarks { ends.min(Instant::now() + BOOKMARK_EVERY) } else { ends };
        let body = WatchBody {
            terms: Terms {
                core: self.core.clone(),
                plane: self.plane.clone(),
                kind: self.kind.clone(),
                version: self.version.clone(),
                filter,
                projection: self.output.projection,
                include_object: self.options.include_object,
                bookmarks: self.options.bookmarks,
                ahead: self.ahead,
            },
            watch,
            // What is not among the first objects says something too: they are gone.
            shown: if wants_state { from } else { 0 },
            held: None,
            initial: initial.into_iter(),
            initial_end,
            bookmarked: from,
            ends,
            timer: Box::pin(tokio::time::sleep_until(first)),
            columns_sent: false,
            _seat: seat,
        };
        Ok(crate::http::respond_json(200, Body::watch(body)))
    }

    fn check_watch_options(&self) -> Result<(), Failure> {
        let options = &self.options;
        let mut errors = Vec::new();
        let matching = options.resource_version_match.as_str();
        match options.send_initial_events {
            Some(_) if matching != "NotOlderThan" => {
                errors.push(FieldError::forbidden(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            None if !matching.is_empty() => {
                errors.push(FieldError::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            _ => {}
        }
        if !options.continue_token.is_empty() {
            errors.push(FieldError::forbidden("continue", "continue is forbidden for watch"));
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Failure::invalid(&About::new("meta.k8s.io", "ListOptions"), "", &errors))
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
    /// The next part of the stream, or its end. It ends too when what it would show can never be durable.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.held.is_none() {
            let Some(frame) = ready!(self.next(context)) else { return Poll::Ready(None) };
            let durable = self.terms.core.store.durable(self.shown).filter(|_| !self.terms.ahead);
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
        // Read before the events: once none is left, everything up to here has been seen.
        let revision = self.terms.core.store.view().revision();
        loop {
            let Some(watch) = &mut self.watch else { return Poll::Ready(None) };
            if frame.len() >= FRAME_MAX {
                return Poll::Ready(Some(frame.freeze()));
            }
            match watch.poll_next(context) {
                Poll::Pending => break,
                Poll::Ready(Next::Event(event)) => self.write_event(&mut frame, &event),
                Poll::Ready(Next::Compacted(gone)) => {
                    let failure =
                        Failure::expired(format!("too old resource version: {} ({})", gone.asked, gone.kept));
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
            if self.terms.bookmarks && revision > self.bookmarked {
                self.write_bookmark(&mut frame, revision, false);
                return Poll::Ready(Some(frame.freeze()));
            }
        }
        Poll::Pending
    }

    /// A CRD that went, or a version of it that is no longer served, ends its watches; a plane that went, all of them.
    fn still_served(&mut self) -> bool {
        let terms = &mut self.terms;
        if terms.plane.is_gone() {
            return false;
        }
        if !terms.kind.is_custom() {
            return true;
        }
        let kinds = terms.plane.catalogue.kinds();
        let Some(kind) = kinds.find(&terms.kind.group, &terms.kind.plural) else { return false };
        if Arc::ptr_eq(kind, &terms.kind) {
            return true;
        }
        // Another schema: go on with it.
        let Some(version) = kind.version(&terms.version.name) else { return false };
        terms.version = version.clone();
        terms.kind = kind.clone();
        true
    }

    fn write_event(&mut self, frame: &mut BytesMut, event: &Event) {
        let filter = &self.terms.filter;
        if !filter.covers(&event.path) {
            return;
        }
        let was = event.before.as_ref().filter(|before| filter.selects(before));
        let is = event.change == Change::Put && filter.selects(&event.object);
        if was.is_some() || is {
            self.shown = self.shown.max(event.revision());
        }
        match (was, is) {
            (None, true) => self.write(frame, "ADDED", &event.object),
            (Some(_), true) => self.write(frame, "MODIFIED", &event.object),
            // It left the selection: what is gone for the client is the object it knew, at the revision it left.
            (Some(before), false) => self.write(frame, "DELETED", &before.at(event.revision())),
            (None, false) => {}
        }
    }

    fn write(&mut self, frame: &mut BytesMut, kind: &str, stored: &Stored) {
        let terms = &self.terms;
        if terms.projection == Projection::Full {
            write_line(frame, kind, present::present(&terms.kind, &terms.version, stored).json());
            return;
        }
        let object = present::present_value(&terms.kind, &terms.version, stored);
        let shown = match terms.projection {
            Projection::Metadata => metadata_only(&object),
            _ => self.table_of(&object),
        };
        write_line(frame, kind, shown.to_string().as_bytes());
    }

    /// One object as a table; the columns are named once per stream.
    fn table_of(&mut self, object: &Value) -> Value {
        let terms = &self.terms;
        let first = !std::mem::replace(&mut self.columns_sent, true);
        terms.version.columns.table(object, terms.include_object, first, terms.core.clock.now())
    }

    fn write_bookmark(&mut self, frame: &mut BytesMut, revision: Revision, ends_initial: bool) {
        self.bookmarked = revision;
        self.shown = self.shown.max(revision);
        let terms = &self.terms;
        let (kind, version) = match terms.projection {
            Projection::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1"),
            _ => (terms.kind.kind.as_str(), terms.version.api_version.as_str()),
        };
        let mut bookmark = json!({"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": revision.to_string()}});
        if ends_initial {
            bookmark["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        if terms.projection == Projection::Table {
            bookmark =
                terms.version.columns.table(&bookmark, terms.include_object, false, terms.core.clock.now());
        }
        write_line(frame, "BOOKMARK", bookmark.to_string().as_bytes());
    }
}
