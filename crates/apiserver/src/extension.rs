//! Subresources that the embedding program serves: the log of an instance, for example.
//!
//! The server does what it does for its own: it finds the plane and the kind, lets the caller in as verb `get` on
//! `<plural>/<subresource>`, and answers 404 for an object that is not there. Only then is the program asked. They are
//! read-only: every other verb is a 405.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use http::Response;
use serde_json::Value;

use crate::{
    http::{Body, pairs},
    identity::Identity,
    status::Failure,
};

/// A request for a subresource of one object, from a caller who may make it.
#[derive(Clone, Debug)]
pub struct Extended {
    /// Name of the plane; empty for the root plane.
    pub plane: String,
    /// Namespace of the object, if its kind has one.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
    /// The object as it is now, in the version of the request.
    pub object: Value,
    /// Who asks.
    pub identity: Identity,
    /// The query as it came.
    pub query: String,
}

impl Extended {
    /// The first value of a parameter of the query, with its escapes resolved.
    pub fn parameter(&self, name: &str) -> Option<String> {
        pairs(&self.query).find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

/// What an [`Extension`] answers, in time.
pub type Extending = Pin<Box<dyn Future<Output = Result<Response<Body>, Failure>> + Send>>;

/// Serves one subresource. Any function from [`Extended`] to a future of an answer does.
pub trait Extension: Send + Sync + 'static {
    /// Answers one request.
    fn answer(&self, request: Extended) -> Extending;
}

impl<F, A> Extension for F
where
    F: Fn(Extended) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Response<Body>, Failure>> + Send + 'static,
{
    fn answer(&self, request: Extended) -> Extending {
        Box::pin(self(request))
    }
}

/// All subresources of the embedding program, by group, plural and name.
#[derive(Clone, Default)]
pub(crate) struct Extensions(BTreeMap<(String, String, String), Arc<dyn Extension>>);

impl Extensions {
    pub(crate) fn add(&mut self, group: &str, plural: &str, name: &str, extension: impl Extension) {
        self.0.insert((group.to_owned(), plural.to_owned(), name.to_owned()), Arc::new(extension));
    }

    pub(crate) fn find(&self, group: &str, plural: &str, name: &str) -> Option<&Arc<dyn Extension>> {
        if self.0.is_empty() {
            return None; // spares most servers the key
        }
        self.0.get(&(group.to_owned(), plural.to_owned(), name.to_owned()))
    }

    /// Names of the subresources of a kind.
    pub(crate) fn names<'a>(&'a self, group: &'a str, plural: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.keys().filter(move |(g, p, _)| g == group && p == plural).map(|(_, _, name)| name.as_str())
    }
}
