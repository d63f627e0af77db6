//! Kubernetes events: what a controller tells the people who look at an object.
//!
//! `events.k8s.io/v1`. The same event again is not a second object but a count: the first is written at once, repetitions are
//! gathered and written as a series, at most twice a minute. Recording never waits and never fails a reconcile: events are hints,
//! and what cannot be written is dropped and counted.

use std::collections::BTreeMap;
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
                    Writer { reporter: self.reporter, env: self.env.clone(), open: BTreeMap::new() }
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

struct Writer {
    reporter: &'static str,
    env: Arc<Env>,
    open: BTreeMap<Subject, Series>,
}

impl Writer {
    async fn run(mut self, mut notes: mpsc::Receiver<Note>) {
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                note = notes.recv() => match note {
                    Some(note) => self.take(note).await,
                    None => break,
                },
                () = wait_until(due) => self.flush().await,
            }
        }
        for subject in self.open.keys().cloned().collect::<Vec<_>>() {
            self.write_series(&subject).await;
        }
    }

    /// When the next series must be written, or forgotten. None while there is none: an idle recorder has no timer.
    fn due(&self) -> Option<Instant> {
        self.open
            .values()
            .map(|series| {
                if series.count > series.written_count {
                    series.written + WRITE_EVERY
                } else {
                    series.last + SERIES
                }
            })
            .min()
    }

    async fn take(&mut self, note: Note) {
        let now = Instant::now();
        let wall = MicroTime(self.env.clock.now());
        if let Some(series) = self.open.get_mut(&note.subject)
            && now.duration_since(series.last) < SERIES
        {
            series.count += 1;
            series.last = now;
            series.last_wall = wall;
            return;
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
                self.open.insert(note.subject, series);
            }
            Err(error) => {
                self.env.metrics.event_dropped();
                tracing::debug!(%error, "event not recorded");
            }
        }
    }

    async fn flush(&mut self) {
        let now = Instant::now();
        for subject in self.open.keys().cloned().collect::<Vec<_>>() {
            let Some(series) = self.open.get(&subject) else { continue };
            if series.count > series.written_count && series.written + WRITE_EVERY <= now {
                self.write_series(&subject).await;
            } else if series.count == series.written_count && series.last + SERIES <= now {
                self.open.remove(&subject);
            }
        }
    }

    async fn write_series(&mut self, subject: &Subject) {
        let Some(series) = self.open.get_mut(subject) else { return };
        if series.count == series.written_count {
            return;
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
            }
            Err(error) => {
                // Expired on the server, most likely: the next repetition starts a new one.
                self.env.metrics.event_dropped();
                tracing::debug!(%error, "series of events not recorded");
                self.open.remove(subject);
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
    use super::*;

    #[test]
    fn a_long_note_is_cut_to_what_the_server_takes() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(2000);
        assert!((LONGEST_NOTE - 1..=LONGEST_NOTE).contains(&cut(&long).len()), "{}", cut(&long).len());
        assert!(cut(&long).ends_with('…'));
    }
}
