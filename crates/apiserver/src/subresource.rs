//! Subresource handlers of the embedding program, for example the log of an instance.
//!
//! The server finds the plane and the kind, checks RBAC for `get` on `<plural>/<subresource>`, and returns
//! 404 if the object does not exist. Then it calls the handler. These subresources are read-only: every other
//! verb returns 405.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use http::Response;
use serde_json::Value;

use crate::{
    http::{ResponseBody, pairs},
    status::StatusError,
    user::UserInfo,
};

/// An authorized request for a subresource of one object.
#[derive(Clone, Debug)]
pub struct SubresourceRequest {
    /// Name of the plane; empty for the root plane.
    pub plane: String,
    /// Namespace of the object, if its kind has one.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
    /// The current object, in the version of the request.
    pub object: Value,
    /// The caller.
    pub user: UserInfo,
    /// The query string, not decoded.
    pub query: String,
}

impl SubresourceRequest {
    /// The first value of a query parameter, decoded.
    pub fn parameter(&self, name: &str) -> Option<String> {
        pairs(&self.query).find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

/// The future that a [`SubresourceHandler`] returns.
pub type SubresourceFuture =
    Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, StatusError>> + Send>>;

/// Serves one subresource. Implemented by every async function from [`SubresourceRequest`] to a response.
pub trait SubresourceHandler: Send + Sync + 'static {
    /// Handles one request.
    fn handle(&self, request: SubresourceRequest) -> SubresourceFuture;
}

impl<F, A> SubresourceHandler for F
where
    F: Fn(SubresourceRequest) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Response<ResponseBody>, StatusError>> + Send + 'static,
{
    fn handle(&self, request: SubresourceRequest) -> SubresourceFuture {
        Box::pin(self(request))
    }
}

/// The subresource handlers of the embedding program, by group, plural and subresource name.
#[derive(Clone, Default)]
pub(crate) struct SubresourceHandlers(BTreeMap<(String, String, String), Arc<dyn SubresourceHandler>>);

impl SubresourceHandlers {
    pub(crate) fn add(&mut self, group: &str, plural: &str, name: &str, handler: impl SubresourceHandler) {
        self.0.insert((group.to_owned(), plural.to_owned(), name.to_owned()), Arc::new(handler));
    }

    pub(crate) fn find(&self, group: &str, plural: &str, name: &str) -> Option<&Arc<dyn SubresourceHandler>> {
        if self.0.is_empty() {
            return None; // most servers have no handlers: do not allocate the key
        }
        self.0.get(&(group.to_owned(), plural.to_owned(), name.to_owned()))
    }

    /// Names of the subresources of a kind.
    pub(crate) fn names<'a>(&'a self, group: &'a str, plural: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.keys().filter(move |(g, p, _)| g == group && p == plural).map(|(_, _, name)| name.as_str())
    }
}
