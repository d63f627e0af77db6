//! The resource kinds that planes serve, with their versions and schemas.
//!
//! A [`Kind`] is one resource of one group with all its versions, built in or defined by a CRD. A
//! [`Catalogue`] is a set of kinds; one plane owns it or many planes share it.

mod builtin;
mod catalogue;
mod custom;
mod kind;
mod schema_cache;
mod schemas;

pub(crate) use builtin::{builtins, token_request};
pub(crate) use catalogue::{Catalogue, Kinds};
pub(crate) use custom::{accepted_names, from_crd, precedence, stored_pods};
pub(crate) use kind::{Kind, Origin, Scale, Subresource, Version};
pub(crate) use schemas::{definitions, root_definition};
