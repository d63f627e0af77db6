//! [`Signal`]: tells waiting tasks that something has changed, in the order in which they began to wait.
//!
//! `tokio::sync::watch` does the same, but wakes its receivers in a random order, so a run with a fixed seed
//! would not be reproducible.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Tells waiting tasks about changes.
#[derive(Debug, Default)]
pub(crate) struct Signal(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    changes: AtomicU64,
    notify: Notify,
}

/// Waits for the changes of a [`Signal`] since its creation.
pub(crate) struct Subscription {
    signal: Arc<Inner>,
    seen: u64,
}

impl Signal {
    /// Reports a change.
    pub(crate) fn send(&self) {
        self.0.changes.fetch_add(1, Ordering::AcqRel);
        self.0.notify.notify_waiters();
    }

    /// Subscribes to changes from now on.
    pub(crate) fn subscribe(&self) -> Subscription {
        Subscription { signal: self.0.clone(), seen: self.0.changes.load(Ordering::Acquire) }
    }
}

impl Subscription {
    /// Waits for a change since the last call.
    pub(crate) async fn changed(&mut self) {
        loop {
            let notified = self.signal.notify.notified();
            let mut notified = std::pin::pin!(notified);
            notified.as_mut().enable();
            let changes = self.signal.changes.load(Ordering::Acquire);
            if changes != self.seen {
                self.seen = changes;
                return;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[tokio::test]
    async fn tasks_wake_in_the_order_in_which_they_wait() {
        let (signal, woken) = (Signal::default(), Arc::<Mutex<Vec<usize>>>::default());
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..50 {
            let (mut changes, woken) = (signal.subscribe(), woken.clone());
            tasks.spawn(async move {
                changes.changed().await;
                woken.lock().push(number);
            });
        }
        tokio::task::yield_now().await;
        signal.send();
        while tasks.join_next().await.is_some() {}
        assert_eq!(*woken.lock(), (0..50).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_change_before_the_wait_is_not_lost() {
        let signal = Signal::default();
        let mut changes = signal.subscribe();
        signal.send();
        signal.send();
        changes.changed().await;
        let waits = tokio::time::timeout(std::time::Duration::from_millis(1), changes.changed()).await;
        assert!(waits.is_err(), "both changes were reported at once");
    }
}
