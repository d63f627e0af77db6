//! OCI images without a daemon: pulls an image from its registry, and unpacks it into layers that containers
//! share.
//!
//! - [`reference`]: the name of an image;
//! - [`manifest`]: indexes, manifests and configurations;
//! - [`registry`]: the client of a registry;
//! - [`layer`]: unpacks a layer, which is hostile input;
//! - [`store`]: images and layers on this host, by digest;
//! - [`user`]: the user of an image.
//!
//! Docker's formats are the same up to their media types, and are accepted.

mod layer;
mod manifest;
mod reference;
mod registry;
mod store;
mod user;

pub use registry::RegistrySettings;
pub(crate) use store::{Image, ImageStore, Pulled};
pub(crate) use user::identity;

/// Why an image cannot run, for the owner of the instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ImageError(pub(crate) String);

impl ImageError {
    fn new(why: impl Into<String>) -> Self {
        ImageError(why.into())
    }
}
