//! Endpoint: the kind, version and scope that a resource path names, and which requests it accepts.
//!
//! Kubernetes serves built-in and custom resources with different handlers, which refuse a request with
//! different errors. Clients depend on them, so most checks distinguish the two.

use std::sync::Arc;

use http::{HeaderMap, header};

use crate::{
    http::{OFFERED, Output},
    kinds::{Kind, Kinds, Subresource, Version},
    route::{ResourcePath, Verb},
    status::StatusError,
    subresource::SubresourceHandler,
};

/// The kind and version of a request, and the namespace if the kind has one.
pub(crate) struct Endpoint {
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) kind: Arc<Kind>,
    pub(crate) version: Arc<Version>,
    pub(crate) namespace: Option<String>,
}

/// The error of a path whose remainder is not understood.
pub(crate) fn malformed(path: &ResourcePath<'_>) -> StatusError {
    match path.group {
        "" => StatusError::no_such_resource(),
        _ => StatusError::no_such_path(),
    }
}

/// The error of a method that is no verb on this path.
pub(crate) fn no_verb(kinds: &Kinds, path: &ResourcePath<'_>) -> StatusError {
    match kinds.find(path.group, path.resource).filter(|kind| kind.is_custom()) {
        Some(kind) => StatusError::not_supported(&kind.group_resource(), ""),
        None => StatusError::method_not_allowed(),
    }
}

impl Endpoint {
    /// The endpoint of a path, or the error of a path that is not served.
    pub(crate) fn find(kinds: Arc<Kinds>, path: &ResourcePath<'_>) -> Result<Self, StatusError> {
        let kind =
            kinds.find(path.group, path.resource).cloned().ok_or_else(|| unknown_kind(&kinds, path))?;
        let version = kind.version(path.version).cloned().ok_or_else(StatusError::no_such_path)?;
        if !path.fits(kind.namespaced) {
            return Err(match kind.is_custom() {
                true => StatusError::no_such_path(),
                false => StatusError::no_such_resource(),
            });
        }
        let namespace = path.namespace.filter(|_| kind.namespaced).map(str::to_owned);
        Ok(Self { kinds, kind, version, namespace })
    }

    /// The handler of the embedding program and the object name, if it serves the subresource of the path.
    pub(crate) fn handler<'a>(
        &self,
        path: &ResourcePath<'a>,
    ) -> Option<(Arc<dyn SubresourceHandler>, &'a str)> {
        let (subresource, name) = (path.subresource?, path.name?);
        Some((self.kinds.subresources.find(path.group, path.resource, subresource)?.clone(), name))
    }

    /// Checks that the endpoint accepts the verb, and returns the subresource of the path. `name` is that of
    /// the path or of the field selector.
    pub(crate) fn accept(
        &self,
        verb: Verb,
        path: &ResourcePath<'_>,
        name: Option<&str>,
    ) -> Result<Option<Subresource>, StatusError> {
        // Requests across all namespaces are read-only.
        if self.kind.namespaced && self.namespace.is_none() && !matches!(verb, Verb::List | Verb::Watch) {
            return Err(match self.kind.is_custom() {
                true => StatusError::no_such_path(),
                false => StatusError::method_not_allowed(),
            });
        }
        let subresource = path.subresource.map(|named| self.subresource(named, path)).transpose()?;
        if self.kind.rules().is_some_and(|rules| rules.ephemeral) && path.name.is_some() {
            return Err(StatusError::no_such_resource());
        }
        if subresource.is_none() && !self.kind.verbs().contains(&verb.as_str()) {
            return Err(StatusError::method_not_allowed());
        }
        if self.kind.is_custom() && name.is_none() && matches!(verb, Verb::Update | Verb::Patch) {
            return Err(StatusError::bad_request("name must be provided"));
        }
        Ok(subresource)
    }

    fn subresource(&self, named: &str, path: &ResourcePath<'_>) -> Result<Subresource, StatusError> {
        self.kind.subresource(&self.version, named).ok_or_else(|| match self.kind.is_custom() {
            true => StatusError::not_found(&self.kind.group_resource(), path.name.unwrap_or_default()),
            false => StatusError::no_such_resource(),
        })
    }

    /// The format of the response that the `Accept` header asks for.
    pub(crate) fn negotiate(&self, headers: &HeaderMap) -> Result<Output, StatusError> {
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        Output::negotiate(accept).ok_or_else(|| {
            let names_json = accept.is_some_and(|accept| accept.contains("application/json"));
            if self.kind.is_custom() || names_json {
                return StatusError::not_acceptable(OFFERED);
            }
            StatusError::bare(
                406,
                "NotAcceptable",
                format!("406: Not Acceptable\n\nAvailable representations: {OFFERED}"),
            )
        })
    }
}

/// The error of a resource that no kind has. A built-in group that is served in this version lacks only the
/// resource.
fn unknown_kind(kinds: &Kinds, path: &ResourcePath<'_>) -> StatusError {
    let built_in = path.group.is_empty() || path.group.ends_with(".k8s.io");
    let served = |kind: &Arc<Kind>| kind.group == path.group && kind.version(path.version).is_some();
    match built_in && kinds.iter().any(served) {
        true => StatusError::no_such_resource(),
        false => StatusError::no_such_path(),
    }
}
