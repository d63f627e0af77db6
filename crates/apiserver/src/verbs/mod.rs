//! The verbs of the API on one kind of one plane.

mod change;
mod collection;
mod commit;
mod create;
mod filter;

mod present;
mod read;
mod remove;
mod scale;
mod watch;

pub(crate) use commit::Written;
pub(crate) use present::present_value;
pub(crate) use remove::{DeleteOptions, Propagation};
pub use watch::WatchBody;

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use parking_lot::Mutex;

use crate::{
    http::{Body, Content, Options, Output},
    identity::Identity,
    kinds::{Kind, Kinds, Subresource, Version},
    plane::Plane,
    route::Verb,
    server::Core,
    status::Failure,
    store::Collection,
};

/// One request for a resource, with everything looked up.
pub(crate) struct Call {
    pub(crate) core: Arc<Core>,
    pub(crate) plane: Arc<Plane>,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) kind: Arc<Kind>,
    pub(crate) version: Arc<Version>,
    pub(crate) verb: Verb,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<Subresource>,
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    pub(crate) output: Output,
    /// Whether the caller may see what is not durable yet.
    pub(crate) ahead: bool,
    /// Who writes, for `managedFields`, when the query does not say.
    pub(crate) agent: String,
    /// Warnings for the answer's headers.
    pub(crate) warnings: Mutex<Vec<String>>,
}

/// The body of a request and how it is written.
pub(crate) struct Payload {
    pub(crate) content: Option<Content>,
    pub(crate) bytes: Bytes,
}

impl Call {
    /// A call of the server on itself: the same kind and plane rules, no query.
    pub(crate) fn internal(
        core: &Arc<Core>,
        plane: &Arc<Plane>,
        kind: &Arc<Kind>,
        verb: Verb,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Self {
        Self {
            core: core.clone(),
            plane: plane.clone(),
            kinds: plane.catalogue.kinds(),
            version: kind.storage_version().clone(),
            kind: kind.clone(),
            verb,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            subresource: None,
            identity: Identity::admin(),
            options: Options::default(),
            output: Output::default(),
            ahead: true,
            agent: "polis".into(),
            warnings: Mutex::default(),
        }
    }

    /// Carries out the request.
    pub(crate) async fn run(&self, payload: Payload) -> Result<Response<Body>, Failure> {
        if let Some(deprecation) = &self.version.deprecation {
            self.warn(deprecation.clone());
        }
        match (self.verb, self.subresource) {
            (Verb::Get, Some(Subresource::Scale)) => self.get_scale(),
            (Verb::Update | Verb::Patch, Some(Subresource::Scale)) => self.change_scale(&payload).await,
            (Verb::Get, Some(Subresource::Finalize | Subresource::Token)) => {
                Err(Failure::method_not_allowed())
            }
            (Verb::Get, _) => self.get(),
            (Verb::List, None) => self.list(),
            (Verb::Watch, None) => self.watch(),
            (Verb::Create, None) => self.create(&payload).await,
            (Verb::Create, Some(Subresource::Token)) => self.create_token(&payload).await,
            (Verb::Update | Verb::Patch, Some(Subresource::Token)) => Err(Failure::method_not_allowed()),
            (Verb::Update, _) => self.update(&payload).await,
            (Verb::Patch, _) => self.patch(&payload).await,
            (Verb::Delete, None) => self.delete(&payload).await,
            (Verb::DeleteCollection, None) => self.delete_collection(&payload).await,
            _ => Err(Failure::method_not_allowed()),
        }
    }

    /// The collection that the call reads and writes. CRDs live where the catalogue is at home.
    pub(crate) fn collection(&self) -> Collection {
        if self.kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
            return self.kind.collection(&self.plane.catalogue.home);
        }
        self.kind.collection(&self.plane.name)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.kind.path(self.namespace.as_deref(), name)
    }

    /// The object named by the request's path.
    pub(crate) fn target(&self) -> Result<&str, Failure> {
        self.name.as_deref().ok_or_else(Failure::method_not_allowed)
    }

    pub(crate) fn not_found(&self, name: &str) -> Failure {
        Failure::not_found(&self.kind.about(), name)
    }

    pub(crate) fn warn(&self, text: impl Into<String>) {
        let mut warnings = self.warnings.lock();
        let text = text.into();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// The manager to record for a write.
    pub(crate) fn manager(&self) -> &str {
        if self.options.field_manager.is_empty() { &self.agent } else { &self.options.field_manager }
    }
}
