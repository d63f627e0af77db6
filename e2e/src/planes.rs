//! The interface between the suite and the planes that it runs on.
//!
//! Scenarios and harness use planes only through [`TestPlanes`], by name. A scenario that depends on the
//! engine below it belongs to the crate of that engine.

use std::time::Duration;

use futures::future::BoxFuture;
use polis_api::kube::Client;
pub use polis_testing::ClientIdentity;

use crate::Error;

/// The names of all planes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaneLayout {
    /// The platform: Projects, and the leases of the management role.
    pub platform: String,
    /// The plane of each project, named like the project.
    pub projects: Vec<String>,
    /// The federation hub.
    pub hub: String,
    /// The plane of each cell, named like its city.
    pub cells: Vec<String>,
}

impl PlaneLayout {
    /// All planes, in the order in which data flows.
    pub fn all(&self) -> Vec<&str> {
        let ends = [&self.platform].into_iter().chain(&self.projects);
        ends.chain([&self.hub]).chain(&self.cells).map(String::as_str).collect()
    }
}

/// A component that can fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaneComponent {
    /// The API server of a plane.
    ApiServer(String),
    /// One of [`TestPlanes::federation_components`].
    Federation(String),
}

/// The future of an operation on planes.
pub type PlaneFuture<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// The planes of a suite. All of them serve the kinds of Polis.
pub trait TestPlanes: Send + Sync {
    /// The names of the planes.
    fn layout(&self) -> &PlaneLayout;

    /// How long a negative assertion observes the planes: several times the latency of a change.
    fn quiet_period(&self) -> Duration;

    /// A client with full access, for the harness.
    fn admin(&self, plane: &str) -> PlaneFuture<'_, Client>;

    /// A client with this identity.
    fn client(&self, plane: &str, identity: ClientIdentity) -> PlaneFuture<'_, Client>;

    /// The components of the federation that can fail separately.
    fn federation_components(&self) -> Vec<String>;

    /// Kills a component.
    fn kill(&self, component: PlaneComponent) -> PlaneFuture<'_, ()>;

    /// Restarts a component and waits until it serves.
    fn restore(&self, component: PlaneComponent) -> PlaneFuture<'_, ()>;
}
