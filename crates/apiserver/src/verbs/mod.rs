//! The verbs of the API: get, list, watch, create, update, patch, delete, deletecollection.

mod commit;
mod convert;
mod create;
mod delete;
mod delete_collection;
mod filter;
mod read;
mod scale;
mod token;
mod update;
mod watch;

pub(crate) use commit::WriteResult;
pub(crate) use convert::convert_value;
pub(crate) use delete::{DeleteOptions, Propagation};
pub(crate) use watch::WatchBody;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use http::Response;
use parking_lot::Mutex;

use crate::{
    flow::{Caller, DEADLINE, Estimate},
    http::{Content, Options, Output, ResponseBody},
    kinds::{Kind, Kinds, Subresource, Version},
    plane::Plane,
    route::Verb,
    server::Core,
    status::StatusError,
    store::Collection,
    user::UserInfo,
};

/// A resource request after routing, authentication and authorization.
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
    pub(crate) user: UserInfo,
    /// The authenticated sender, whatever user it acts as.
    pub(crate) caller: Caller,
    pub(crate) options: Options,
    pub(crate) output: Output,
    /// Whether the caller sees writes that are not durable yet.
    pub(crate) read_uncommitted: bool,
    /// The field manager if the query names none.
    pub(crate) agent: String,
    /// When the request must be answered; `None` for requests of the platform.
    pub(crate) deadline: Option<Instant>,
    /// Warning headers of the response.
    pub(crate) warnings: Mutex<Vec<String>>,
}

/// The body of a request and its media type.
pub(crate) struct Payload {
    pub(crate) content: Option<Content>,
    pub(crate) bytes: Bytes,
}

impl Call {
    /// A request of the server itself, as [`UserInfo::admin`] and without query options.
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
            user: UserInfo::admin(),
            caller: Caller::internal(),
            options: Options::default(),
            output: Output::default(),
            read_uncommitted: true,
            agent: "polis".into(),
            deadline: None,
            warnings: Mutex::default(),
        }
    }

    /// Executes the request.
    pub(crate) async fn run(&self, payload: Payload) -> Result<Response<ResponseBody>, StatusError> {
        if let Some(deprecation) = &self.version.deprecation {
            self.warn(deprecation.clone());
        }
        match (self.verb, self.subresource) {
            (Verb::Get, Some(Subresource::Scale)) => self.get_scale(),
            (Verb::Update | Verb::Patch, Some(Subresource::Scale)) => self.change_scale(&payload).await,
            (Verb::Get, Some(Subresource::Finalize | Subresource::Token)) => {
                Err(StatusError::method_not_allowed())
            }
            (Verb::Get, _) => self.get(),
            (Verb::List, None) => self.list(),
            (Verb::Watch, None) => self.watch(),
            (Verb::Create, None) => self.create(&payload).await,
            (Verb::Create, Some(Subresource::Token)) => self.create_token(&payload).await,
            (Verb::Update | Verb::Patch, Some(Subresource::Token)) => Err(StatusError::method_not_allowed()),
            (Verb::Update, _) => self.update(&payload).await,
            (Verb::Patch, _) => self.patch(&payload).await,
            (Verb::Delete, None) => self.delete(&payload).await,
            (Verb::DeleteCollection, None) => self.delete_collection(&payload).await,
            _ => Err(StatusError::method_not_allowed()),
        }
    }

    /// Refuses to continue after the deadline. Long loops call it, which nothing else interrupts.
    pub(crate) fn check_deadline(&self) -> Result<(), StatusError> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(StatusError::deadline_exceeded(DEADLINE)),
            _ => Ok(()),
        }
    }

    /// What the request may compute, with a body of this many bytes.
    pub(crate) fn estimate(&self, body: usize) -> Estimate {
        let view = self.core.store.view();
        let named =
            self.name.as_deref().filter(|_| matches!(self.verb, Verb::Get | Verb::Update | Verb::Patch));
        let stored = named.and_then(|name| view.get(&self.collection(), &self.path(name)));
        let lists = matches!(self.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
        Estimate {
            verb: self.verb,
            body,
            stored: stored.map_or(0, |stored| stored.json().len()),
            listed: if lists { view.count(&self.collection()) } else { 0 },
        }
    }

    /// The store collection of the request. CRDs are in the plane of the catalogue.
    pub(crate) fn collection(&self) -> Collection {
        if self.kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
            return self.kind.collection(&self.plane.catalogue.plane);
        }
        self.kind.collection(&self.plane.name)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.kind.path(self.namespace.as_deref(), name)
    }

    /// The object name of the URL path.
    pub(crate) fn target(&self) -> Result<&str, StatusError> {
        self.name.as_deref().ok_or_else(StatusError::method_not_allowed)
    }

    pub(crate) fn not_found(&self, name: &str) -> StatusError {
        StatusError::not_found(&self.kind.group_resource(), name)
    }

    pub(crate) fn warn(&self, text: impl Into<String>) {
        let mut warnings = self.warnings.lock();
        let text = text.into();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// The field manager of a write.
    pub(crate) fn manager(&self) -> &str {
        if self.options.field_manager.is_empty() { &self.agent } else { &self.options.field_manager }
    }
}
