//! [`FixedPlanes`]: a provider with a fixed list of planes.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{PlaneProvider, PlaneRegistry};
use crate::Plane;

/// A provider that engages a fixed list of planes at start-up.
#[derive(Debug)]
pub struct FixedPlanes(Vec<Plane>);

impl FixedPlanes {
    /// A provider of these planes.
    pub fn new(planes: impl IntoIterator<Item = Plane>) -> Self {
        Self(planes.into_iter().collect())
    }
}

impl PlaneProvider for FixedPlanes {
    fn run(self: Box<Self>, registry: PlaneRegistry) -> BoxFuture<'static, ()> {
        async move {
            for plane in &self.0 {
                registry.engage(plane);
            }
            registry.set_listed();
        }
        .boxed()
    }
}
