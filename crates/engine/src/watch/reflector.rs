//! The reflector: lists and watches one kind on one plane, and writes the objects to the cache.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::line_reader::LineReader;
use super::{ListLimiter, Observer, Watch};
use crate::backoff::Backoff;
use crate::cache::{InformerStore, WatchError, parse_object};
use crate::metrics::{EXPIRED, RESTORED};
use crate::resource_version::ResourceVersion;
use crate::transport::{BoxError, TransportError};
use crate::uncached::{Page, one, page};
use crate::{Error, Plane};

/// `timeoutSeconds` of a watch, plus up to 100 % of jitter so that reflectors that start together do not
/// reconnect together. These are kube-apiserver's defaults. Dead connections are found by HTTP/2 PING, not by
/// this timeout.
const WATCH_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// A watch that the server does not end within this time after its timeout counts as broken.
const WATCH_TIMEOUT_MARGIN: Duration = Duration::from_secs(60);
/// Longest time without data while a streaming list is incomplete.
const LIST_DATA_TIMEOUT: Duration = Duration::from_secs(30);
/// A watch that ends without an error before this time counts as failed. Otherwise a server that closes every
/// watch at once would cause a tight loop.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);
/// A watch that lasted this long resets the back-off.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(30);
/// Timeout of a discovery request. A plane that does not respond delays only itself.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Back-off after failures. It ends early when the plane answers another request (see [`crate::health`]).
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(10) };
/// Back-off of an optional watch that is forbidden. Nothing is wrong with the plane.
const FORBIDDEN_BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(60) };

/// How a watch ended.
enum WatchEnd {
    /// At its timeout, or closed by the server: resume.
    TimedOut,
    /// The resource version has expired (410): list again.
    Expired,
    /// The kind was not served, and discovery must be repeated.
    NotServed,
    Failed(Box<Error>),
}

/// Lists and watches one kind on one plane.
pub(crate) struct Reflector {
    pub(crate) plane: Plane,
    pub(crate) informers: Arc<InformerStore>,
    pub(crate) watch: usize,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) limiter: Arc<ListLimiter>,
}

/// The state of a reflector between and during watches.
#[derive(Default)]
struct ReflectorState {
    /// The last received resource version; none before the first complete list.
    version: Option<String>,
    /// The ids of the objects that the running list has returned so far; none while no list is running.
    listed: Option<BTreeSet<Arc<str>>>,
    failures: u32,
    /// The last watch did not end at its timeout: the server may be another one now.
    interrupted: bool,
    /// When the current watch stream was opened; none before that.
    watching_since: Option<Instant>,
}

impl Reflector {
    /// Lists and watches until the future is dropped.
    ///
    /// This future exists for every kind of every project and is idle most of the time. Its rare parts are
    /// boxed, so that they use memory only while they run; the idle part is [`OpenWatch`].
    pub(crate) async fn run(self) {
        let mut state = ReflectorState::default();
        loop {
            let ended = match Box::pin(self.next_watch(&mut state)).await {
                Ok((lines, until)) => OpenWatch { reflector: &self, state: &mut state, lines, until }.await,
                Err(ended) => ended,
            };
            Box::pin(self.handle_end(&mut state, ended)).await;
        }
    }

    /// Opens the next watch. If a list is needed, first waits for the [`ListLimiter`], at which thousands of
    /// reflectors may wait, and therefore allocates little before.
    async fn next_watch(
        &self,
        state: &mut ReflectorState,
    ) -> Result<(LineReader, Pin<Box<Sleep>>), WatchEnd> {
        state.watching_since = None;
        if state.interrupted {
            Box::pin(self.check_not_restored(state)).await?;
        }
        let mut permit = None;
        if state.version.is_none() {
            permit = self.acquire_list_permit(state).await;
            match Box::pin(self.is_served()).await {
                Ok(true) => {}
                Ok(false) => {
                    drop(permit);
                    Box::pin(self.await_served()).await;
                    return Err(WatchEnd::NotServed);
                }
                Err(error) => return Err(WatchEnd::Failed(Box::new(error))),
            }
        }
        Box::pin(self.open(state, permit)).await
    }

    /// Handles the end of a watch: updates the state and waits if necessary.
    async fn handle_end(&self, state: &mut ReflectorState, ended: WatchEnd) {
        let lasted = state.watching_since.map_or(Duration::ZERO, |since| since.elapsed());
        state.listed = None;
        if lasted >= BACKOFF_RESET_AFTER {
            state.failures = 0;
        }
        state.interrupted |= match ended {
            WatchEnd::TimedOut => lasted < WATCH_TIMEOUT,
            WatchEnd::Expired | WatchEnd::Failed(_) => true,
            WatchEnd::NotServed => false,
        };
        match ended {
            WatchEnd::TimedOut if lasted < MIN_WATCH_DURATION => {
                self.failed(state, self.broken("the stream ended at once")).await
            }
            WatchEnd::TimedOut | WatchEnd::NotServed => {}
            WatchEnd::Expired => self.expired(state).await,
            WatchEnd::Failed(error) if self.declared().if_allowed && error.code() == Some(403) => {
                self.forbidden(state).await
            }
            WatchEnd::Failed(error) => self.failed(state, *error).await,
        }
    }

    /// Forgets the expired resource version. The first time the reflector lists again at once; if the version
    /// expires again before the watch works, it waits with back-off.
    async fn expired(&self, state: &mut ReflectorState) {
        let env = self.plane.env();
        state.version = None;
        env.metrics.watch_restarted(&self.declared().kind, EXPIRED);
        if state.failures > 0 {
            self.plane.health().pause(BACKOFF.delay(state.failures, &env.random)).await;
        }
        state.failures = state.failures.saturating_add(1);
    }

    fn declared(&self) -> &Watch {
        &self.informers.watches[self.watch]
    }

    /// After an interruption: finds out whether the server was restored from a backup, with one list of one
    /// object. Such a server has older resource versions than the watch has shown. It would accept the watch
    /// and stay silent until its versions catch up, so the kind is listed again.
    ///
    /// A server that has caught up already is not recognised: restore etcd with a higher revision
    /// (`--bump-revision`, `--mark-compacted`).
    async fn check_not_restored(&self, state: &mut ReflectorState) -> Result<(), WatchEnd> {
        let store = self.informers.store(self.watch);
        let newest = store.lock().newest();
        if let Some(newest) = newest {
            let kind = &self.declared().kind;
            let path = format!("{}limit=1", self.declared().path(&self.plane));
            let (list, _) = self.declared().accept();
            let content = one(&self.plane, kind, path, list).await.map_err(|error| self.ended(error))?;
            let page = Page::parse(&self.plane, kind, &content).map_err(|error| self.ended(error))?;
            let current = ResourceVersion::parse(&page.metadata.resource_version);
            if current.is_some_and(|current| current < newest) {
                tracing::warn!(plane = %self.plane.name(), %kind, "the server has an older state than before: it was restored; listing again");
                self.plane.env().metrics.watch_restarted(kind, RESTORED);
                store.lock().restored();
                self.informers.set_restored();
                state.version = None;
            }
        }
        state.interrupted = false;
        Ok(())
    }

    /// Whether the plane serves the kind.
    async fn is_served(&self) -> Result<bool, Error> {
        let kind = &self.declared().kind;
        let result = timeout(DISCOVERY_TIMEOUT, self.plane.discovery().serves(&self.plane, kind)).await;
        result.unwrap_or_else(|_| {
            let source = TransportError::Timeout { after: DISCOVERY_TIMEOUT };
            Err(self.plane.unreachable(format!("discover {kind}"), source))
        })
    }

    /// The kind is not served: waits until discovery must be repeated.
    async fn await_served(&self) {
        let discovery = self.plane.discovery();
        let mut invalidations = discovery.invalidations();
        self.mark_absent("kind is not served; the watch starts when it is");
        let delay = self.plane.env().random.jitter(discovery.retry_after(), 0.5);
        tokio::select! {
            biased;
            () = invalidations.changed() => {}
            () = tokio::time::sleep(delay) => {}
        }
    }

    /// An optional watch is forbidden: waits with back-off.
    async fn forbidden(&self, state: &mut ReflectorState) {
        self.mark_absent("watch is forbidden; it starts when it is allowed");
        self.plane.health().expected("watch");
        state.version = None;
        state.failures = state.failures.saturating_add(1);
        tokio::time::sleep(FORBIDDEN_BACKOFF.delay(state.failures, &self.plane.env().random)).await;
    }

    /// Marks the kind as absent, and logs that once.
    fn mark_absent(&self, why: &'static str) {
        let first = {
            let mut store = self.informers.store(self.watch).lock();
            let first = !store.is_absent();
            store.set_absent();
            first
        };
        if first {
            tracing::info!(plane = %self.plane.name(), kind = %self.declared().kind, "{why}");
            self.observer.synced(&self.plane, self.watch);
            self.observer.error_changed(&self.plane, self.watch);
        }
    }

    async fn acquire_list_permit(&self, state: &ReflectorState) -> Option<SemaphorePermit<'_>> {
        let semaphore =
            if state.failures == 0 { &self.limiter.first_attempts } else { &self.limiter.retries };
        semaphore.acquire().await.ok() // never closed
    }

    /// Lists if necessary and opens the watch stream. Also returns a timer that fires when the stream must
    /// have ended.
    async fn open(
        &self,
        state: &mut ReflectorState,
        permit: Option<SemaphorePermit<'_>>,
    ) -> Result<(LineReader, Pin<Box<Sleep>>), WatchEnd> {
        let length = self.plane.env().random.jitter(WATCH_TIMEOUT, 1.0);
        let until = Instant::now() + length + WATCH_TIMEOUT_MARGIN;
        let common = format!(
            "{}watch=true&allowWatchBookmarks=true&timeoutSeconds={}",
            self.declared().path(&self.plane),
            length.as_secs()
        );
        let mut streamed = None;
        if state.version.is_none() && self.plane.discovery().can_stream_lists() {
            streamed = self.stream_list(state, &common).await?;
        }
        if state.version.is_none() {
            self.list_pages(state).await.map_err(|error| self.ended(error))?;
        }
        drop(permit);
        let lines = match streamed {
            Some(lines) => lines,
            None => {
                let version = state.version.as_deref().unwrap_or_default();
                let path = format!("{common}&resourceVersion={version}");
                let opened = self.plane.open(&path, self.declared().accept().1).await;
                let response = opened.map_err(|error| self.ended(error))?;
                LineReader::new(response.into_body())
            }
        };
        self.clear_error();
        state.watching_since = Some(Instant::now());
        Ok((lines, Box::pin(sleep_until(until))))
    }

    /// Reads a streaming list up to the bookmark that ends it, and returns the stream, which continues with
    /// events. None if the server does not support streaming lists.
    async fn stream_list(
        &self,
        state: &mut ReflectorState,
        common: &str,
    ) -> Result<Option<LineReader>, WatchEnd> {
        let path = format!("{common}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        let response = match self.plane.open(&path, self.declared().accept().1).await {
            Ok(response) => response,
            // The server does not know the parameters.
            Err(error) if matches!(error.code(), Some(400 | 422)) => {
                tracing::debug!(plane = %self.plane.name(), %error, "server does not support streaming lists; listing in pages");
                self.plane.discovery().disable_streaming_lists();
                return Ok(None);
            }
            Err(error) => return Err(self.ended(error)),
        };
        state.listed = Some(BTreeSet::new());
        let mut lines = LineReader::new(response.into_body());
        while state.listed.is_some() {
            let Ok(data) = timeout(LIST_DATA_TIMEOUT, poll_fn(|cx| lines.poll_data(cx))).await else {
                // The server ignored the parameters and will never send the bookmark that ends the list.
                tracing::debug!(plane = %self.plane.name(), "streaming list sent no data in time; listing in pages");
                self.plane.discovery().disable_streaming_lists();
                return Ok(None);
            };
            self.handle_data(data, &mut lines, state)?;
        }
        Ok(Some(lines))
    }

    fn ended(&self, error: Error) -> WatchEnd {
        match error.code() {
            Some(410) => WatchEnd::Expired,
            Some(404) => {
                self.plane.discovery().invalidate_kind(&self.declared().kind);
                WatchEnd::Failed(Box::new(error))
            }
            _ => WatchEnd::Failed(Box::new(error)),
        }
    }

    async fn list_pages(&self, state: &mut ReflectorState) -> Result<(), Error> {
        let (kind, path) = (&self.declared().kind, self.declared().path(&self.plane));
        state.listed = Some(BTreeSet::new());
        let mut next = None;
        loop {
            let content = page(&self.plane, kind, &path, self.declared().accept().0, next.as_deref()).await?;
            let page = Page::parse(&self.plane, kind, &content)?;
            for item in &page.items {
                self.store_object(item.get().as_bytes(), state, false);
            }
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(token) => next = Some(token),
                None => {
                    self.list_complete(state, page.metadata.resource_version);
                    return Ok(());
                }
            }
        }
    }

    /// Processes a chunk of the stream, or its end.
    fn handle_data(
        &self,
        data: Option<Result<Bytes, BoxError>>,
        lines: &mut LineReader,
        state: &mut ReflectorState,
    ) -> Result<(), WatchEnd> {
        match data {
            None if state.listed.is_some() => {
                Err(self.failure("the stream ended before the list was complete"))
            }
            None => Err(WatchEnd::TimedOut),
            Some(Err(error)) => Err(self.failure(&error.to_string())),
            Some(Ok(data)) => {
                lines.split(&data, |line| self.handle_line(line, state))?;
                if lines.is_too_long() { Err(self.invalid("a line exceeds the size limit")) } else { Ok(()) }
            }
        }
    }

    fn handle_line(&self, line: &[u8], state: &mut ReflectorState) -> Result<(), WatchEnd> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let event: Event<'_> =
            serde_json::from_slice(line).map_err(|error| self.invalid(&error.to_string()))?;
        let object = event.object.get().as_bytes();
        match &*event.type_ {
            "ADDED" => self.store_object(object, state, true),
            "MODIFIED" => self.store_object(object, state, false),
            "DELETED" => self.remove_object(object, state),
            "BOOKMARK" => {
                let mark: Bookmark =
                    serde_json::from_slice(object).map_err(|error| self.invalid(&error.to_string()))?;
                if mark.metadata.annotations.initial_events_end.as_deref() == Some("true") {
                    self.list_complete(state, mark.metadata.resource_version);
                } else if state.listed.is_none() {
                    self.informers.store(self.watch).lock().set_shown(&mark.metadata.resource_version);
                    state.version = Some(mark.metadata.resource_version);
                }
            }
            "ERROR" => {
                let status = serde_json::from_slice(object).unwrap_or_default();
                let error = self.plane.refused(format!("watch {}", self.declared().kind), status);
                return Err(self.ended(error));
            }
            other => return Err(self.invalid(&format!("event of type {other}"))),
        }
        Ok(())
    }

    fn store_object(&self, object: &[u8], state: &mut ReflectorState, added: bool) {
        let declared = self.declared();
        let parsed = match parse_object(object) {
            Ok(parsed) => parsed,
            Err(error) => return self.skip_undecodable(&error),
        };
        let mut store = self.informers.store(self.watch).lock();
        let change = store.observe(&declared.indexes, &parsed);
        if let Some(listed) = &mut state.listed {
            listed.insert(parsed.id);
        } else {
            store.set_shown(&parsed.version);
            state.version = Some(parsed.version);
        }
        drop(store);
        if added && state.listed.is_none() {
            let env = self.plane.env();
            env.metrics.observe_watch_lag(&declared.kind, parsed.created.as_deref(), &env.clock);
        }
        if let Some(change) = change {
            self.observer.changed(&self.plane, self.watch, change);
        }
    }

    fn remove_object(&self, object: &[u8], state: &mut ReflectorState) {
        let parsed = match parse_object(object) {
            Ok(parsed) => parsed,
            Err(error) => return self.skip_undecodable(&error),
        };
        let mut store = self.informers.store(self.watch).lock();
        let change = store.observe_deletion(&self.declared().indexes, &parsed);
        if let Some(listed) = &mut state.listed {
            listed.remove(&parsed.id);
        } else {
            store.set_shown(&parsed.version);
            state.version = Some(parsed.version);
        }
        drop(store);
        if let Some(change) = change {
            self.observer.changed(&self.plane, self.watch, change);
        }
    }

    /// Completes a list: removes cached objects that it does not contain, because they were deleted in the
    /// meantime.
    fn list_complete(&self, state: &mut ReflectorState, version: String) {
        let Some(listed) = state.listed.take() else {
            return;
        };
        let store = self.informers.store(self.watch);
        let deleted = store.lock().complete_list(&self.declared().indexes, &listed, &version);
        state.version = Some(version);
        for change in deleted {
            self.observer.changed(&self.plane, self.watch, change);
        }
        self.observer.synced(&self.plane, self.watch);
    }

    fn skip_undecodable(&self, error: &serde_json::Error) {
        let kind = &self.declared().kind;
        self.plane.env().metrics.decode_failed(kind);
        tracing::warn!(plane = %self.plane.name(), %kind, %error, "failed to decode an object of a watch; skipped");
    }

    fn clear_error(&self) {
        let mut store = self.informers.store(self.watch).lock();
        if store.error().is_some() {
            store.set_error(None);
            drop(store);
            tracing::info!(plane = %self.plane.name(), kind = %self.declared().kind, "watch works again");
            self.observer.error_changed(&self.plane, self.watch);
        }
    }

    /// Records the error, logs it if the reason is new, and waits with back-off.
    async fn failed(&self, state: &mut ReflectorState, error: Error) {
        let (kind, plane) = (&self.declared().kind, &self.plane);
        let reason = reason_of(&error);
        plane.env().metrics.watch_restarted(kind, reason);
        let watch_error = WatchError { reason, message: error.to_string() };
        state.failures = state.failures.saturating_add(1);
        if error.code() == Some(404) {
            state.version = None; // repeat discovery, then list again
            state.interrupted = false;
        }
        // A single broken connection is normal. It is reported from the second failure in a row, or at once
        // before the first complete list.
        if state.failures > 1 || state.version.is_none() {
            let changed = {
                let mut store = self.informers.store(self.watch).lock();
                let changed = store.error().is_none_or(|known| known.reason != reason);
                store.set_error(Some(watch_error));
                changed
            };
            if changed {
                tracing::warn!(plane = %plane.name(), %kind, %error, "watch failed; will retry");
                self.observer.error_changed(plane, self.watch);
            }
        }
        tokio::select! {
            biased;
            () = self.informers.retry() => {}
            () = plane.health().pause(BACKOFF.delay(state.failures, &plane.env().random)) => {}
        }
    }

    fn broken(&self, why: &str) -> Error {
        self.plane.unreachable(self.action(), TransportError::Broken { why: why.into() })
    }

    fn failure(&self, why: &str) -> WatchEnd {
        WatchEnd::Failed(Box::new(self.broken(why)))
    }

    fn invalid(&self, why: &str) -> WatchEnd {
        let source = TransportError::InvalidResponse { why: why.into() };
        WatchEnd::Failed(Box::new(self.plane.unreachable(self.action(), source)))
    }

    fn action(&self) -> String {
        format!("watch {}", self.declared().kind)
    }
}

/// An open watch stream: the idle part of a reflector.
struct OpenWatch<'a> {
    reflector: &'a Reflector,
    state: &'a mut ReflectorState,
    lines: LineReader,
    until: Pin<Box<Sleep>>,
}

impl Future for OpenWatch<'_> {
    type Output = WatchEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WatchEnd> {
        let this = self.get_mut();
        while let Poll::Ready(data) = this.lines.poll_data(cx) {
            if let Err(ended) = this.reflector.handle_data(data, &mut this.lines, this.state) {
                return Poll::Ready(ended);
            }
        }
        this.until.as_mut().poll(cx).map(|()| this.reflector.failure("the stream did not end at its timeout"))
    }
}

/// The reason of a watch error, as a metric label.
fn reason_of(error: &Error) -> &'static str {
    match error {
        Error::Unreachable { source, .. } => source.reason(),
        Error::Refused { status, .. } => match status.code {
            401 => "unauthorized",
            403 => "forbidden",
            404 => "not_served",
            429 | 503 => "overloaded",
            _ => "refused",
        },
        _ => "other",
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    type_: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BookmarkAnnotations,
}

#[derive(Deserialize, Default)]
struct BookmarkAnnotations {
    #[serde(default, rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::ObjectChange;

    struct IgnoreEvents;
    impl Observer for IgnoreEvents {
        fn changed(&self, _: &Plane, _: usize, _: ObjectChange) {}
        fn synced(&self, _: &Plane, _: usize) {}
        fn error_changed(&self, _: &Plane, _: usize) {}
    }

    /// A reflector exists for every kind of every project, so its size matters.
    #[tokio::test]
    async fn a_reflector_is_small() {
        let service = tower::service_fn(|_: http::Request<bytes::Bytes>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(
                http_body_util::Full::<bytes::Bytes>::default(),
            ))
        });
        let plane = Plane::in_process("p", service);
        let informers = Arc::new(InformerStore::new(0, Arc::from([])));
        let follow = Reflector {
            plane,
            informers,
            watch: 0,
            observer: Arc::new(IgnoreEvents),
            limiter: Arc::new(ListLimiter::new(1)),
        };
        let size = std::mem::size_of_val(&follow.run());
        assert!(size <= 400, "{size} bytes");
    }
}
