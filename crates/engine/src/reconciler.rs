//! What a controller is: something that, given a key, looks at the world and brings it one step closer to what it should be.

use std::future::Future;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::Key;
use crate::transport::BoxError;

/// How a reconcile ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something changes.
    Settled,
    /// Nothing to do until something changes, or this much time has passed.
    After(Duration),
}

/// Level-triggered work on keys.
///
/// `reconcile` is told which object to look at, never what happened to it: it reads the state as it is now, and an object that
/// is not there is an ordinary case. It is never called twice at once for one key. An error puts the key back with a growing
/// pause; the error's class (see [`crate::Class::of`]) is found among its causes and counted.
pub trait Reconciler: Send + Sync + 'static {
    /// What can go wrong.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Brings the world one step closer to what it should be for this key.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Result<Outcome, Self::Error>> + Send;
}

impl<R: Reconciler> Reconciler for std::sync::Arc<R> {
    type Error = R::Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, R::Error> {
        R::reconcile(self, key).await
    }
}

/// A reconciler of any type.
pub(crate) trait AnyReconciler: Send + Sync {
    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, BoxError>>;
}

impl<R: Reconciler> AnyReconciler for R {
    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, BoxError>> {
        Box::pin(async move {
            Reconciler::reconcile(self, key).await.map_err(|error| Box::new(error) as BoxError)
        })
    }
}
