//! The queue of the audit log, and the thread that writes it.
//!
//! The queue is bounded by [`EVENTS_MAX`] and [`BYTES_MAX`]. A full queue never blocks a request, because
//! health checks and leases are requests too: the event is lost, and counted. Lost events are reported in
//! `apiserver_audit_error_total` and in the process log. Bodies are left out before events are lost.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    thread::JoinHandle,
};

use super::event::Event;

/// Most events in the queue. At 100,000 writes per second they last 80 ms, longer than one write to a disk.
const EVENTS_MAX: usize = 8192;
/// Most bytes of bodies and of URIs in the queue.
const BYTES_MAX: usize = 32 << 20;
/// Bytes after which lines are written, although further events are queued.
const BATCH_BYTES: usize = 1 << 20;

#[derive(Default)]
struct Counters {
    written: AtomicU64,
    lost: AtomicU64,
    /// Bytes in the queue.
    queued: AtomicUsize,
}

/// The queue; dropping it writes the queued events and ends the thread.
pub(super) struct Writer {
    queue: Option<SyncSender<Event>>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(append: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> io::Result<Self> {
        let (queue, events) = mpsc::sync_channel(EVENTS_MAX);
        let counters = Arc::<Counters>::default();
        let counted = counters.clone();
        let thread = std::thread::Builder::new()
            .name("polis-audit".into())
            .spawn(move || run(&events, &counted, append))?;
        Ok(Self { queue: Some(queue), counters, thread: Some(thread) })
    }

    /// Queues an event, or counts it as lost. Never blocks.
    pub(super) fn send(&self, mut event: Event) {
        let held = self.counters.queued.load(Ordering::Relaxed);
        if held + event.weight() > BYTES_MAX {
            event.drop_bodies();
        }
        let weight = event.weight();
        self.counters.queued.fetch_add(weight, Ordering::Relaxed);
        let queued = held + weight <= BYTES_MAX
            && self.queue.as_ref().is_some_and(|queue| queue.try_send(event).is_ok());
        if !queued {
            self.counters.queued.fetch_sub(weight, Ordering::Relaxed);
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.counters.written.load(Ordering::Relaxed), self.counters.lost.load(Ordering::Relaxed))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(events: &Receiver<Event>, counters: &Counters, mut append: impl FnMut(&[u8]) -> io::Result<()>) {
    let mut lines = Vec::new();
    let mut reported = 0;
    while let Ok(first) = events.recv() {
        let (mut batch, mut next) = (0, Some(first));
        while let Some(event) = next {
            counters.queued.fetch_sub(event.weight(), Ordering::Relaxed);
            event.append_to(&mut lines);
            batch += 1;
            next = if lines.len() < BATCH_BYTES { events.try_recv().ok() } else { None };
        }
        match append(&lines) {
            Ok(()) => drop(counters.written.fetch_add(batch, Ordering::Relaxed)),
            Err(error) => {
                counters.lost.fetch_add(batch, Ordering::Relaxed);
                tracing::error!(%error, events = batch, "failed to write the audit log: free disk space or check its directory");
            }
        }
        lines.clear();
        let lost = counters.lost.load(Ordering::Relaxed);
        if lost > reported {
            tracing::error!(
                events = lost - reported,
                "audit events were lost, because the queue was full or the audit log could not be written"
            );
            reported = lost;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::access::audit::event::tests::mk_event;

    #[test]
    fn queued_events_are_written_before_the_writer_ends() {
        let lines: Arc<Mutex<Vec<u8>>> = Arc::default();
        let sink = lines.clone();
        let writer = Writer::start(move |text| {
            sink.lock().unwrap().extend_from_slice(text);
            Ok(())
        })
        .unwrap();
        for _ in 0..1000 {
            writer.send(mk_event("/api/v1/namespaces/n/configmaps/a"));
        }
        let counters = writer.counters.clone();
        drop(writer);
        assert_eq!(lines.lock().unwrap().iter().filter(|byte| **byte == b'\n').count(), 1000);
        assert_eq!(counters.written.load(Ordering::Relaxed), 1000);
        assert_eq!(counters.queued.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_full_queue_loses_events_without_blocking_and_counts_them() {
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.clone();
        let closed = gate.lock().unwrap();
        let writer = Writer::start(move |_| {
            drop(shut.lock());
            Ok(())
        })
        .unwrap();
        // The thread holds one batch, the queue the rest.
        let sent = 2 * EVENTS_MAX;
        for _ in 0..sent {
            writer.send(mk_event("/healthz"));
        }
        let (_, lost) = writer.counts();
        assert!(lost > 0);
        drop(closed);
        let counters = writer.counters.clone();
        drop(writer);
        let written = counters.written.load(Ordering::Relaxed);
        assert_eq!(written + lost, sent as u64);
    }

    #[test]
    fn bodies_are_left_out_before_events_are_lost() {
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.clone();
        let closed = gate.lock().unwrap();
        let lines: Arc<Mutex<Vec<u8>>> = Arc::default();
        let sink = lines.clone();
        let writer = Writer::start(move |text| {
            drop(shut.lock());
            sink.lock().unwrap().extend_from_slice(text);
            Ok(())
        })
        .unwrap();
        let body = format!("\"{}\"", "x".repeat(400 << 10));
        for _ in 0..200 {
            writer.send(mk_event("/api/v1").with_request_body(body.clone()));
        }
        assert!(writer.counters.queued.load(Ordering::Relaxed) <= BYTES_MAX);
        drop(closed);
        let counters = writer.counters.clone();
        drop(writer);
        assert_eq!(counters.lost.load(Ordering::Relaxed), 0);
        let text = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
        let truncated = text.lines().filter(|line| line.contains("audit.k8s.io/truncated")).count();
        assert_eq!(text.lines().count(), 200);
        assert!((1..200).contains(&truncated), "{truncated}");
    }

    #[test]
    fn events_that_cannot_be_written_count_as_lost() {
        let writer = Writer::start(|_| Err(io::Error::other("the disk is full"))).unwrap();
        writer.send(mk_event("/api/v1"));
        let counters = writer.counters.clone();
        drop(writer);
        assert_eq!(counters.lost.load(Ordering::Relaxed), 1);
        assert_eq!(counters.written.load(Ordering::Relaxed), 0);
    }
}
