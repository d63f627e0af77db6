//! Planes that are known from the start and stay.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Provider, Roster};
use crate::Plane;

/// A given list of planes.
#[derive(Debug)]
pub struct Fixed(Vec<Plane>);

impl Fixed {
    /// The planes of the list.
    pub fn new(planes: impl IntoIterator<Item = Plane>) -> Self {
        Self(planes.into_iter().collect())
    }
}

impl Provider for Fixed {
    fn run(self: Box<Self>, roster: Roster) -> BoxFuture<'static, ()> {
        async move {
            for plane in &self.0 {
                roster.engage(plane);
            }
            roster.listed();
        }
        .boxed()
    }
}
