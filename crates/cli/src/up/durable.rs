//! A provider that waits for fsync before it starts or stops processes.
//!
//! The controllers of this process read writes before they are fsynced: their own writes go to the same log,
//! so a crash loses both or neither. Processes of the host are not in the store. They are started and stopped
//! only for objects that survive a crash.

use polis_api::ObjectExt;
use polis_apiserver::Server;
use polis_runtime::Error;
use polis_runtime::provider::{
    ChangeCallback, ManagedInstance, Provider, RunReport, RunRequest, StopProgress,
};

/// A provider that waits until the store of the planes is durable.
pub struct DurableProvider<P> {
    /// The provider that runs the instances.
    pub provider: P,
    /// The API server with the store of the planes.
    pub server: Server,
}

impl<P: Provider> DurableProvider<P> {
    async fn wait(&self, uid: &str) -> Result<(), Error> {
        let durable = self.server.durable().await;
        durable.map_err(|error| Error::NotDurable { instance: uid.to_owned(), why: error.to_string() })
    }
}

impl<P: Provider> Provider for DurableProvider<P> {
    fn instances(&self) -> Vec<ManagedInstance> {
        self.provider.instances()
    }

    fn instance_uids(&self, namespace: &str, name: &str) -> Vec<String> {
        self.provider.instance_uids(namespace, name)
    }

    fn set_change_callback(&self, callback: ChangeCallback) {
        self.provider.set_change_callback(callback);
    }

    async fn run(&self, request: &RunRequest<'_>) -> Result<RunReport, Error> {
        self.wait(request.instance.uid()).await?;
        self.provider.run(request).await
    }

    async fn stop(&self, uid: &str) -> Result<StopProgress, Error> {
        self.wait(uid).await?;
        self.provider.stop(uid).await
    }

    async fn remove(&self, uid: &str) -> Result<StopProgress, Error> {
        self.wait(uid).await?;
        self.provider.remove(uid).await
    }
}
