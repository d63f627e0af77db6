//! The event recorder: writes `events.k8s.io/v1` Events about objects.
//!
//! The first event is written at once. Repetitions of the same event do not create further objects: they are
//! counted in the `series` of the first, which is updated at most twice a minute. Recording never blocks and
//! never fails a reconcile: an event that cannot be written is dropped and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::ObjectReference;
use polis_api::k8s_openapi::api::events::v1::{Event, EventSeries};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::plane::Env;
use crate::{Object, Plane};

/// Largest note that API servers accept, in bytes.
const MAX_NOTE_BYTES: usize = 1024;
/// A repetition within this time after the last one belongs to the same series.
const SERIES_WINDOW: Duration = Duration::from_secs(6 * 60);
/// Minimum time between two updates of a series.
const UPDATE_INTERVAL: Duration = Duration::from_secs(30);
/// Capacity of the channel to the writer task. Further events are dropped.
const CHANNEL_CAPACITY: usize = 1024;
/// Maximum number of open series, at about 2 KiB each. Beyond it the series that would expire first is
/// dropped, and a further repetition of it creates a new Event. A busy project can cause events about ten
/// thousand objects.
const MAX_OPEN_SERIES: usize = 4096;

/// The `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventType {
    Normal,
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Records events of one controller. Cheap to clone.
#[derive(Clone)]
pub struct EventRecorder {
    reporter: &'static str,
    env: Arc<Env>,
    sender: Arc<Mutex<Option<mpsc::Sender<QueuedEvent>>>>,
}

/// An event on its way to the writer task.
struct QueuedEvent {
    plane: Plane,
    key: EventKey,
}

/// The identity of an event. Events with equal keys form a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EventKey {
    plane: String,
    namespace: String,
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    event_type: EventType,
    reason: String,
    action: String,
    note: String,
}

impl EventRecorder {
    pub(crate) fn new(reporter: &'static str, env: Arc<Env>) -> Self {
        Self { reporter, env, sender: Arc::default() }
    }

    /// Records an expected change of an object, on the object's plane. `reason` and `action` are CamelCase
    /// words: why, and what the controller did. `note` is the message for users and is truncated to 1,024
    /// bytes.
    pub fn normal<K: Object>(&self, plane: &Plane, about: &K, reason: &str, action: &str, note: &str) {
        self.record(plane, about.object_ref(&()), EventType::Normal, reason, action, note);
    }

    /// Records a problem of an object that a user or operator should look at. The arguments are those of
    /// [`EventRecorder::normal`].
    pub fn warn<K: Object>(&self, plane: &Plane, about: &K, reason: &str, action: &str, note: &str) {
        self.record(plane, about.object_ref(&()), EventType::Warning, reason, action, note);
    }

    /// Like [`EventRecorder::warn`], for an object whose kind is only known at run time.
    pub fn warn_untyped(&self, plane: &Plane, about: &Value, reason: &str, action: &str, note: &str) {
        let (text, metadata) = (|value: &Value| value.as_str().map(str::to_owned), &about["metadata"]);
        let reference = ObjectReference {
            api_version: text(&about["apiVersion"]),
            kind: text(&about["kind"]),
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            ..ObjectReference::default()
        };
        self.record(plane, reference, EventType::Warning, reason, action, note);
    }

    fn record(
        &self,
        plane: &Plane,
        about: ObjectReference,
        event_type: EventType,
        reason: &str,
        action: &str,
        note: &str,
    ) {
        let ObjectReference { api_version, kind, name, namespace, uid, .. } = about;
        let key = EventKey {
            plane: plane.name().to_string(),
            namespace: namespace.unwrap_or_default(),
            api_version: api_version.unwrap_or_default(),
            kind: kind.unwrap_or_default(),
            name: name.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            event_type,
            reason: reason.to_owned(),
            action: action.to_owned(),
            note: truncate(note),
        };
        if self.sender().try_send(QueuedEvent { plane: plane.clone(), key }).is_err() {
            self.env.metrics.event_dropped();
        }
    }

    /// The channel to the writer task, which starts with the first event and ends when the last recorder is
    /// dropped.
    fn sender(&self) -> mpsc::Sender<QueuedEvent> {
        let mut current = self.sender.lock();
        match &*current {
            Some(sender) if !sender.is_closed() => sender.clone(),
            _ => {
                let (sender, events) = mpsc::channel(CHANNEL_CAPACITY);
                tokio::spawn(
                    Writer {
                        reporter: self.reporter,
                        env: self.env.clone(),
                        open: BTreeMap::new(),
                        due: BTreeSet::new(),
                    }
                    .run(events),
                );
                *current = Some(sender.clone());
                sender
            }
        }
    }
}

impl std::fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EventRecorder({})", self.reporter)
    }
}

/// Truncates a note to the server's limit, which is in bytes although its error message says characters.
fn truncate(note: &str) -> String {
    if note.len() <= MAX_NOTE_BYTES {
        return note.to_owned();
    }
    const ELLIPSIS: &str = "…";
    let mut end = MAX_NOTE_BYTES - ELLIPSIS.len();
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{ELLIPSIS}", &note[..end])
}

/// An event whose next repetition joins its series.
struct Series {
    plane: Plane,
    event: Event,
    count: i32,
    last: Instant,
    last_wall: MicroTime,
    written_count: i32,
    written: Instant,
}

impl Series {
    /// When the series must be written, or, if it has no unwritten repetition, dropped.
    fn due(&self) -> Instant {
        if self.has_unwritten() { self.written + UPDATE_INTERVAL } else { self.last + SERIES_WINDOW }
    }

    /// True if repetitions have not been written to the server.
    fn has_unwritten(&self) -> bool {
        self.count > self.written_count
    }
}

struct Writer {
    reporter: &'static str,
    env: Arc<Env>,
    open: BTreeMap<Arc<EventKey>, Series>,
    /// The open series ordered by due time, so that finding the next one needs no scan.
    due: BTreeSet<(Instant, Arc<EventKey>)>,
}

impl Writer {
    async fn run(mut self, mut events: mpsc::Receiver<QueuedEvent>) {
        loop {
            // None without an open series: an idle recorder has no timer.
            let due = self.due.first().map(|(due, _)| *due);
            tokio::select! {
                biased;
                note = events.recv() => match note {
                    Some(note) => self.take(note).await,
                    None => break,
                },
                () = wait_until(due) => self.flush().await,
            }
        }
        while let Some((key, series)) = self.open.pop_first() {
            self.write(&key, series).await;
        }
    }

    async fn take(&mut self, note: QueuedEvent) {
        let now = Instant::now();
        let wall = MicroTime(self.env.clock.now());
        if let Some((key, mut series)) = self.remove(&note.key)
            && now.duration_since(series.last) < SERIES_WINDOW
        {
            series.count += 1;
            series.last = now;
            series.last_wall = wall;
            return self.insert(key, series);
        }
        let event = self.event(&note.key, wall.clone());
        match note.plane.create(&event).await {
            Ok(event) => {
                let series = Series {
                    plane: note.plane,
                    event,
                    count: 1,
                    last: now,
                    last_wall: wall,
                    written_count: 1,
                    written: now,
                };
                self.insert(Arc::new(note.key), series);
            }
            Err(error) => {
                self.env.metrics.event_dropped();
                tracing::debug!(%error, "failed to create an event; dropped");
            }
        }
    }

    /// Writes the due series that have unwritten repetitions, and drops the others.
    async fn flush(&mut self) {
        let now = Instant::now();
        while self.due.first().is_some_and(|(due, _)| *due <= now) {
            let Some((_, key)) = self.due.pop_first() else { break };
            let Some(series) = self.open.remove(&key) else { continue };
            if series.has_unwritten()
                && let Some(series) = self.write(&key, series).await
            {
                self.insert(key, series);
            }
        }
    }

    /// Adds an open series. If there are too many, drops the one that is due first.
    fn insert(&mut self, key: Arc<EventKey>, series: Series) {
        if self.open.len() >= MAX_OPEN_SERIES
            && let Some((_, first)) = self.due.pop_first()
        {
            self.open.remove(&first);
        }
        self.due.insert((series.due(), key.clone()));
        self.open.insert(key, series);
    }

    fn remove(&mut self, key: &EventKey) -> Option<(Arc<EventKey>, Series)> {
        let (key, series) = self.open.remove_entry(key)?;
        self.due.remove(&(series.due(), key.clone()));
        Some((key, series))
    }

    /// Writes the count of a series to the server. None if that fails: the next repetition then starts a new
    /// series.
    async fn write(&self, key: &EventKey, mut series: Series) -> Option<Series> {
        if !series.has_unwritten() {
            return Some(series);
        }
        let mut event = series.event.clone();
        event.series =
            Some(EventSeries { count: series.count, last_observed_time: series.last_wall.clone() });
        series.written = Instant::now();
        match series.plane.update(&series.event, &event).await {
            Ok(written) => {
                series.written_count = series.count;
                if let Some(event) = written.into_object() {
                    series.event = event;
                }
                Some(series)
            }
            Err(error) => {
                // Most likely the Event has expired on the server.
                self.env.metrics.event_dropped();
                tracing::debug!(%error, reason = key.reason, "failed to update the series of an event; dropped");
                None
            }
        }
    }

    fn event(&self, key: &EventKey, now: MicroTime) -> Event {
        let namespace = if key.namespace.is_empty() { "default".to_owned() } else { key.namespace.clone() };
        Event {
            metadata: ObjectMeta {
                name: Some(format!(
                    "{}.{:016x}",
                    key.name.chars().take(200).collect::<String>(),
                    self.env.random.next()
                )),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            action: Some(key.action.clone()),
            event_time: Some(now),
            note: Some(key.note.clone()),
            reason: Some(key.reason.clone()),
            regarding: Some(ObjectReference {
                api_version: Some(key.api_version.clone()),
                kind: Some(key.kind.clone()),
                name: Some(key.name.clone()),
                namespace: Some(key.namespace.clone()).filter(|namespace| !namespace.is_empty()),
                uid: Some(key.uid.clone()).filter(|uid| !uid.is_empty()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(format!("polis/{}", self.reporter)),
            reporting_instance: Some(self.reporter.to_owned()),
            type_: Some(key.event_type.as_str().to_owned()),
            ..Event::default()
        }
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};

    use super::*;

    /// A plane that accepts every object.
    fn mk_plane() -> Plane {
        let accept = |request: Request<Full<Bytes>>| async {
            let content = request.into_body().collect().await?.to_bytes();
            let mut object: serde_json::Value = serde_json::from_slice(&content).expect("JSON");
            for field in ["uid", "resourceVersion"] {
                object["metadata"][field] = "1".into();
            }
            Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from(object.to_string())))
        };
        Plane::in_process("acme", tower::service_fn(accept))
    }

    fn mk_writer() -> Writer {
        Writer { reporter: "tests", env: Arc::default(), open: BTreeMap::new(), due: BTreeSet::new() }
    }

    fn mk_event(plane: &Plane, number: usize) -> QueuedEvent {
        let key = EventKey {
            plane: plane.name().to_string(),
            namespace: "default".into(),
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: format!("object-{number}"),
            uid: String::new(),
            event_type: EventType::Normal,
            reason: "Synced".into(),
            action: "Look".into(),
            note: String::new(),
        };
        QueuedEvent { plane: plane.clone(), key }
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_open_series_is_bounded_and_each_series_expires() {
        let (plane, mut writer) = (mk_plane(), mk_writer());
        for number in 0..MAX_OPEN_SERIES + 100 {
            writer.take(mk_event(&plane, number)).await;
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!((writer.open.len(), writer.due.len()), (MAX_OPEN_SERIES, MAX_OPEN_SERIES));
        writer.take(mk_event(&plane, MAX_OPEN_SERIES)).await;
        let repeated = &writer.open[&mk_event(&plane, MAX_OPEN_SERIES).key];
        assert_eq!((repeated.count, repeated.written_count), (2, 1), "the latest series were kept");
        tokio::time::advance(UPDATE_INTERVAL).await;
        writer.flush().await;
        assert_eq!(writer.open[&mk_event(&plane, MAX_OPEN_SERIES).key].written_count, 2);
        assert_eq!((writer.open.len(), writer.due.len()), (MAX_OPEN_SERIES, MAX_OPEN_SERIES));
        tokio::time::advance(SERIES_WINDOW).await;
        writer.flush().await;
        assert_eq!((writer.open.len(), writer.due.len()), (0, 0));
    }

    #[test]
    fn a_long_note_is_truncated_to_the_limit_of_the_server() {
        assert_eq!(truncate("short"), "short");
        let long = "ä".repeat(2000);
        assert!(
            (MAX_NOTE_BYTES - 1..=MAX_NOTE_BYTES).contains(&truncate(&long).len()),
            "{}",
            truncate(&long).len()
        );
        assert!(truncate(&long).ends_with('…'));
    }
}
