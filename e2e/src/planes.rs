//! Planes: what the suite needs of whatever it runs on.
//!
//! Scenarios and the rest of the harness know planes only through [`Planes`]. They are told apart by name, never by
//! what they are made of: a scenario that asks which engine is below it is a scenario about that engine, and belongs
//! in the room of that engine.

use std::time::Duration;

use futures::future::BoxFuture;
use polis_api::kube::Client;

use crate::Error;

/// The names of all planes of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The plane of the platform: its Projects, and the leases of the management role.
    pub platform: String,
    /// The plane of each project. The name of the plane is the name of the project.
    pub projects: Vec<String>,
    /// The federation hub.
    pub hub: String,
    /// The plane of each cell. The name of the plane is the city.
    pub cells: Vec<String>,
}

impl Layout {
    /// All planes, in the order in which data flows.
    pub fn all(&self) -> Vec<&str> {
        let ends = [&self.platform].into_iter().chain(&self.projects);
        ends.chain([&self.hub]).chain(&self.cells).map(String::as_str).collect()
    }
}

/// Who speaks to a plane.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The user.
    pub user: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// What can break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The API server of a plane.
    Plane(String),
    /// One of [`Planes::federation_parts`].
    Federation(String),
}

/// What comes of something that planes are asked for.
pub type Outcome<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// Planes to run scenarios on. On every one of them the kinds of Polis are served.
pub trait Planes: Send + Sync {
    /// What there is.
    fn layout(&self) -> &Layout;

    /// How long nothing must happen until it is sure that nothing will: several times what one thing takes.
    fn quiet(&self) -> Duration;

    /// A client that may do everything, for the eyes and hands of the harness.
    fn admin(&self, plane: &str) -> Outcome<'_, Client>;

    /// A client that may do what the plane lets this identity do.
    fn client(&self, plane: &str, who: Identity) -> Outcome<'_, Client>;

    /// The parts of the federation that can break on their own.
    fn federation_parts(&self) -> Vec<String>;

    /// Ends a part, at once and without notice.
    fn kill(&self, part: Part) -> Outcome<'_, ()>;

    /// Brings a part back and waits until it serves.
    fn restore(&self, part: Part) -> Outcome<'_, ()>;
}
