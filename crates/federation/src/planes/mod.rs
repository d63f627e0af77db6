//! Dynamic clients and informers of a plane, for kinds that are known only at run time.
//!
//! Policies name the propagated kinds while the federation runs. A kind is looked up in the discovery of the
//! hub when a policy first names it; from then on an informer watches it.

mod api;
mod informer;
mod resource_kind;

pub use api::{Api, ApiError, ApiErrorKind};
pub use informer::{Informer, InformerEvent};
pub use resource_kind::ResourceKind;
