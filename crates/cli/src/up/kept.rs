//! A runtime that acts only on what is kept.
//!
//! Controllers run ahead of the disk, because a crash takes what they saw together with what they made of it. A process
//! of the host is not in the store: it is started, and ended, only because of what a crash leaves as it is.

use polis_apiserver::Server;
use polis_runtime::Error;
use polis_runtime::provider::{Order, Progress, Provider, Report, Standing, Told};

/// A provider behind the store of the planes.
pub struct Kept<P> {
    /// Runs the instances.
    pub provider: P,
    /// Keeps the planes.
    pub server: Server,
}

impl<P: Provider> Kept<P> {
    async fn wait(&self, uid: &str) -> Result<(), Error> {
        let kept = self.server.durable().await;
        kept.map_err(|error| Error::NotKept { instance: uid.to_owned(), why: error.to_string() })
    }
}

impl<P: Provider> Provider for Kept<P> {
    fn standing(&self) -> Vec<Standing> {
        self.provider.standing()
    }

    fn standing_at(&self, namespace: &str, name: &str) -> Vec<String> {
        self.provider.standing_at(namespace, name)
    }

    fn report_to(&self, told: Told) {
        self.provider.report_to(told);
    }

    async fn run(&self, order: &Order<'_>) -> Result<Report, Error> {
        self.wait(order.instance.metadata.uid.as_deref().unwrap_or_default()).await?;
        self.provider.run(order).await
    }

    async fn rest(&self, uid: &str) -> Result<Progress, Error> {
        self.wait(uid).await?;
        self.provider.rest(uid).await
    }

    async fn end(&self, uid: &str) -> Result<Progress, Error> {
        self.wait(uid).await?;
        self.provider.end(uid).await
    }
}
