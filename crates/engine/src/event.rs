//! Kubernetes events: what a controller tells the people who look at an object.
//!
//! `events.k8s.io/v1`. The same event again is not a second object but a count: the first is written at once, repetitions are
//! gathered and written as a series, at most twice a minute. Recording never waits and never fails a reconcile: events are hints,
//! and what cannot be written is dropped and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::ObjectReference;
use polis_api::k8s_openapi::api::events::v1::{Event, EventSeries};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::plane::Env;
use crate::{Object, Plane};

/// Longest note that API servers take, in bytes.
const LONGEST_NOTE: usize = 1024;
/// Repetitions within this time belong to the same series.
const SERIES: Duration = Duration::from_secs(6 * 60);
/// A series is written at most this often.
const WRITE_EVERY: Duration = Duration::from_secs(30);
/// Events waiting to be written; beyond it they are dropped.
const WAITING: usize = 1024;
/// Series that may go on at the same time. Beyond it the one that would end first is forgotten, and costs another object
/// if it does go on: a project that floods has something to say of each of ten thousand objects, at 2 KiB each.
const OPEN: usize = 4096;

/// Whether an event is good news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tone {
    /// As it should be.
    Normal,
    /// Something a person should look at.
    Warning,
}

impl Tone {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Records events of one controller. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    reporter: &'static str,
    env: Arc<Env>,
    line: Arc<Mutex<Option<mpsc::Sender<Note>>>>,
}

/// One thing said about one object.
struct Note {
    plane: Plane,
    subject: Subject,
}

/// What makes two events the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    plane: String,
    namespace: String,
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    tone: Tone,
    reason: String,
    action: String,
    note: String,
}

impl Recorder {
    pub(crate) fn new(reporter: &'static str, env: Arc<Env>) -> Self {
        Self { reporter, env, line: Arc::default() }
    }

    /// Says something about an object, on the plane that the object is on. `reason` and `action` are single words in CamelCase,
    /// why and what was done; `note` is for people and is cut to 1,024 bytes.
    pub fn record<K: Object>(
        &self,
        plane: &Plane,
        about: &K,
        tone: Tone,
        reason: &str,
        action: &str,
        note: &str,
    ) {
        let ObjectReference { api_version, kind, name, namespace, uid, .. } = about.object_ref(&());
        let subject = Subject {
            plane: plane.name().to_string(),
            namespace: namespace.unwrap_or_default(),
            api_version: api_version.unwrap_or_default(),
            kind: kind.unwrap_or_default(),
            name: name.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            tone,
            reason: reason.to_owned(),
            action: action.to_owned(),
            note: cut(note),
        };
        if self.sender().try_send(Note { plane: plane.clone(), subject }).is_err() {
            self.env.metrics.event_dropped();
        }
    }

    /// The line to the writer, which is started with the first event and ends with the last recorder.
    fn sender(&self) -> mpsc::Sender<Note> {
        let mut line = self.line.lock();
        match &*line {
            Some(sender) if !sender.is_closed() => sender.clone(),
            _ => {
                let (sender, notes) = mpsc::channel(WAITING);
                tokio::spawn(
                    Writer {
                        reporter: self.reporter,
                        env: self.env.clone(),
                        open: BTreeMap::new(),
                        due: BTreeSet::new(),
                    }
                    .run(notes),
                );
                *line = Some(sender.clone());
                sender
            }
        }
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({})", self.reporter)
    }
}

/// At most as much as the server takes. It counts bytes, whatever its messages say.
fn cut(note: &str) -> String {
    if note.len() <= LONGEST_NOTE {
        return note.to_owned();
    }
    const MORE: &str = "…";
    let mut end = LONGEST_NOTE - MORE.len();
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MORE}", &note[..end])
}

/// A series that may still go on.
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
    /// When it must be written, or forgotten.
    fn due(&self) -> Instant {
        if self.is_behind() { self.written + WRITE_EVERY } else { self.last + SERIES }
    }

    /// Whether the server has not been told of all repetitions.
    fn is_behind(&self) -> bool {
        self.count > self.written_count
    }
}

struct Writer {
    reporter: &'static str,
    env: Arc<Env>,
    open: BTreeMap<Arc<Subject>, Series>,
    /// The open series by what is due next, so that nobody looks at all of them to find the one.
    due: BTreeSet<(Instant, Arc<Subject>)>,
}

impl Writer {
    async fn run(mut self, mut notes: mpsc::Receiver<Note>) {
        loop {
            // None while there is no series: an idle recorder has no timer.
            let due = self.due.first().map(|(due, _)| *due);
            tokio::select! {
                biased;
                note = notes.recv() => match note {
                    Some(note) => self.take(note).await,
                    None => break,
                },
                () = wait_until(due) => self.flush().await,
            }
        }
        while let Some((subject, series)) = self.open.pop_first() {
            self.write(&subject, series).await;
        }
    }

    async fn take(&mut self, note: Note) {
        let now = Instant::now();
        let wall = MicroTime(self.env.clock.now());
        if let Some((subject, mut series)) = self.close(&note.subject)
            && now.duration_since(series.last) < SERIES
        {
            series.count += 1;
            series.last = now;
            series.last_wall = wall;
            return self.keep(subject, series);
        }
        let event = self.event(&note.subject, wall.clone());
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
                self.keep(Arc::new(note.subject), series);
            }
            Err(error) => {
                self.env.metrics.event_dropped();
                tracing::debug!(%error, "event not recorded");
            }
        }
    }

    /// Writes the series that are due, and forgets those that did not go on.
    async fn flush(&mut self) {
        let now = Instant::now();
        while self.due.first().is_some_and(|(due, _)| *due <= now) {
            let Some((_, subject)) = self.due.pop_first() else { break };
            let Some(series) = self.open.remove(&subject) else { continue };
            if series.is_behind()
                && let Some(series) = self.write(&subject, series).await
            {
                self.keep(subject, series);
            }
        }
    }

    /// A series may go on, in place of the one that would end first if there are too many.
    fn keep(&mut self, subject: Arc<Subject>, series: Series) {
        if self.open.len() >= OPEN
            && let Some((_, first)) = self.due.pop_first()
        {
            self.open.remove(&first);
        }
        self.due.insert((series.due(), subject.clone()));
        self.open.insert(subject, series);
    }

    fn close(&mut self, subject: &Subject) -> Option<(Arc<Subject>, Series)> {
        let (subject, series) = self.open.remove_entry(subject)?;
        self.due.remove(&(series.due(), subject.clone()));
        Some((subject, series))
    }

    /// Tells the server how far a series has come. None if it cannot be told: the next repetition starts a new one.
    async fn write(&self, subject: &Subject, mut series: Series) -> Option<Series> {
        if !series.is_behind() {
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
                // Expired on the server, most likely.
                self.env.metrics.event_dropped();
                tracing::debug!(%error, reason = subject.reason, "series of events not recorded");
                None
            }
        }
    }

    fn event(&self, subject: &Subject, now: MicroTime) -> Event {
        let namespace =
            if subject.namespace.is_empty() { "default".to_owned() } else { subject.namespace.clone() };
        Event {
            metadata: ObjectMeta {
                name: Some(format!(
                    "{}.{:016x}",
                    subject.name.chars().take(200).collect::<String>(),
                    self.env.random.next()
                )),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            action: Some(subject.action.clone()),
            event_time: Some(now),
            note: Some(subject.note.clone()),
            reason: Some(subject.reason.clone()),
            regarding: Some(ObjectReference {
                api_version: Some(subject.api_version.clone()),
                kind: Some(subject.kind.clone()),
                name: Some(subject.name.clone()),
                namespace: Some(subject.namespace.clone()).filter(|namespace| !namespace.is_empty()),
                uid: Some(subject.uid.clone()).filter(|uid| !uid.is_empty()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(format!("polis/{}", self.reporter)),
            reporting_instance: Some(self.reporter.to_owned()),
            type_: Some(subject.tone.as_str().to_owned()),
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

    /// A plane that takes everything as it is.
    fn mk_plane() -> Plane {
        let takes = |request: Request<Full<Bytes>>| async {
            let content = request.into_body().collect().await?.to_bytes();
            let mut object: serde_json::Value = serde_json::from_slice(&content).expect("JSON");
            for field in ["uid", "resourceVersion"] {
                object["metadata"][field] = "1".into();
            }
            Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from(object.to_string())))
        };
        Plane::in_process("acme", tower::service_fn(takes))
    }

    fn mk_writer() -> Writer {
        Writer { reporter: "tests", env: Arc::default(), open: BTreeMap::new(), due: BTreeSet::new() }
    }

    fn mk_note(plane: &Plane, number: usize) -> Note {
        let subject = Subject {
            plane: plane.name().to_string(),
            namespace: "default".into(),
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: format!("object-{number}"),
            uid: String::new(),
            tone: Tone::Normal,
            reason: "Seen".into(),
            action: "Look".into(),
            note: String::new(),
        };
        Note { plane: plane.clone(), subject }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_keeps_as_many_series_open_as_may_go_on_and_each_ends() {
        let (plane, mut writer) = (mk_plane(), mk_writer());
        for number in 0..OPEN + 100 {
            writer.take(mk_note(&plane, number)).await;
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!((writer.open.len(), writer.due.len()), (OPEN, OPEN));
        writer.take(mk_note(&plane, OPEN)).await;
        let repeated = &writer.open[&mk_note(&plane, OPEN).subject];
        assert_eq!((repeated.count, repeated.written_count), (2, 1), "the youngest were kept");
        tokio::time::advance(WRITE_EVERY).await;
        writer.flush().await;
        assert_eq!(writer.open[&mk_note(&plane, OPEN).subject].written_count, 2);
        assert_eq!((writer.open.len(), writer.due.len()), (OPEN, OPEN));
        tokio::time::advance(SERIES).await;
        writer.flush().await;
        assert_eq!((writer.open.len(), writer.due.len()), (0, 0));
    }

    #[test]
    fn a_long_note_is_cut_to_what_the_server_takes() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(2000);
        assert!((LONGEST_NOTE - 1..=LONGEST_NOTE).contains(&cut(&long).len()), "{}", cut(&long).len());
        assert!(cut(&long).ends_with('…'));
    }
}
