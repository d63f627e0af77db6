//! A running engine, and planes for it.

use http::Request;
use polis_api::kube::Client;
use polis_api::kube::client::Body;
use polis_engine::{Engine, Handle, Plane};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::eventually;

/// A running engine. Dropping it cancels its reconciles.
pub struct RunningEngine {
    /// Readiness and metrics.
    pub handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl RunningEngine {
    /// Runs an engine on the current runtime.
    pub fn spawn(engine: Engine) -> Self {
        let handle = engine.handle();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            engine.run(async { _ = stopped.await }).await.expect("the engine runs");
        });
        Self { handle, stop: Some(stop), task }
    }

    /// Waits until every plane is engaged.
    pub async fn ready(&self) {
        eventually("every plane is engaged", async || self.handle.is_ready().then_some(())).await;
    }

    /// Stops the engine and waits until its reconciles end.
    pub async fn stop(mut self) {
        self.stop = None; // the receiver completes
        (&mut self.task).await.expect("the engine ends without a panic");
    }
}

impl Drop for RunningEngine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The plane that a client reaches, for engines.
pub fn plane_of(name: &str, client: Client) -> Plane {
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move { client.send(request).await }
    });
    Plane::in_process(name, service)
}
