//! The [`Reconciler`] trait, which every controller implements, and the [`Action`] that a reconcile returns.

use std::future::Future;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::Key;
use crate::transport::BoxError;

/// When a successful reconcile wants the key to be queued again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// When an object that maps to the key changes.
    AwaitChange,
    /// When an object that maps to the key changes, or after this time, whichever comes first.
    RequeueAfter(Duration),
}

/// A level-triggered reconciler.
///
/// `reconcile` receives the key of an object and not the event: it reads the current state, and must expect
/// that the object does not exist. It never runs twice at the same time for one key. After an error the key
/// is queued again with exponential back-off, and the error is counted by its class (see
/// [`crate::ErrorClass::of`]).
pub trait Reconciler: Send + Sync + 'static {
    /// The error of a failed reconcile.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Moves the actual state of the key's object towards the desired state.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Result<Action, Self::Error>> + Send;
}

impl<R: Reconciler> Reconciler for std::sync::Arc<R> {
    type Error = R::Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, R::Error> {
        R::reconcile(self, key).await
    }
}

/// A type-erased [`Reconciler`].
pub(crate) trait AnyReconciler: Send + Sync {
    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Action, BoxError>>;
}

impl<R: Reconciler> AnyReconciler for R {
    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Action, BoxError>> {
        Box::pin(async move {
            Reconciler::reconcile(self, key).await.map_err(|error| Box::new(error) as BoxError)
        })
    }
}
