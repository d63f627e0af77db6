//! What a plane serves: kinds, their versions and schemas.
//!
//! A [`Kind`] is one resource of one group with all its versions, built in or defined by a CRD. A [`Catalogue`] is the
//! set of kinds that one or many planes share; it exists once however many planes use it.

mod builtin;
mod catalogue;
mod custom;
mod kind;
mod schemas;
mod shared;

pub(crate) use builtin::builtins;
pub(crate) use catalogue::{Catalogue, Kinds};
pub(crate) use custom::{accepted_names, from_crd, precedence};
pub(crate) use kind::{Kind, Origin, Scale, Subresource, Version};
pub(crate) use schemas::{definitions, root_definition};
