//! The last steps of every write: converts to the storage version, checks the size and commits to the store.

use http::Response;
use polis_apimachinery::{object, storage_quota::StorageQuota};
use serde_json::Value;

use super::Call;
use crate::{
    builtins, events,
    http::{DryRun, ResponseBody},
    plane::is_project,
    route::Verb,
    status::StatusError,
    store::{Collection, CommitError, EncodedObject, Precondition, Stored, Write},
};

/// Largest object in bytes, as etcd's default.
const OBJECT_MAX: usize = 1536 << 10;

/// The result of a write.
pub(crate) enum WriteResult {
    /// The object is stored.
    Stored(Stored),
    /// A concurrent write came first.
    Conflict,
    /// A dry run: the object is not stored.
    DryRun(Value),
}

impl Call {
    /// Writes `object` (in the version of the request) under `path`.
    pub(crate) async fn put(
        &self,
        path: &str,
        precondition: Precondition,
        mut object: Value,
    ) -> Result<WriteResult, StatusError> {
        let shown = (self.options.dry_run == DryRun::All).then(|| object.clone());
        if self.kind.is("events.k8s.io", "events") {
            events::to_core(&mut object);
        } else {
            object["apiVersion"] = self.kind.storage_version().api_version.clone().into();
        }
        builtins::fill_empty_fields(self, &mut object);
        let encoded = EncodedObject::encode(&object);
        if encoded.len() > OBJECT_MAX {
            return Err(StatusError::too_large(format!("Request entity too large: limit is {OBJECT_MAX}")));
        }
        if let Some(mut object) = shown {
            // A dry run shows the current revision, or none for a new object.
            let revision = match precondition {
                Precondition::AtRevision(revision) => Some(revision.to_string().into()),
                Precondition::Absent => None,
            };
            object::set_meta(&mut object, "resourceVersion", revision);
            return Ok(WriteResult::DryRun(object));
        }
        self.commit(path, precondition, Some(encoded)).await
    }

    /// Deletes the object at `path`.
    pub(crate) async fn remove(&self, path: &str, current: &Stored) -> Result<WriteResult, StatusError> {
        if self.options.dry_run == DryRun::All {
            return Ok(WriteResult::DryRun(self.convert_value(current)));
        }
        self.commit(path, Precondition::AtRevision(current.revision()), None).await
    }

    async fn commit(
        &self,
        path: &str,
        precondition: Precondition,
        object: Option<EncodedObject>,
    ) -> Result<WriteResult, StatusError> {
        let collection = self.collection();
        if self.core.store.is_short_of_space() && self.needs_space(&collection, path, object.as_ref()) {
            return Err(StatusError::insufficient_storage());
        }
        let write = Write { collection, path: path.to_owned(), precondition, object };
        match self.core.store.commit_within(write, self.storage_quota()).await {
            Ok(stored) => Ok(WriteResult::Stored(stored)),
            Err(CommitError::Conflict(_)) => Ok(WriteResult::Conflict),
            Err(CommitError::OverQuota(exceeded)) => {
                self.core.metrics.quota_refused.inc();
                let name = path.rsplit('/').next().unwrap_or_default();
                Err(StatusError::forbidden(&self.kind.group_resource(), name, &exceeded.to_string()))
            }
            Err(error @ CommitError::Failed(_)) => Err(StatusError::internal(&error.to_string())),
        }
    }

    /// Whether a write needs more disk space, and is not one of the platform or a deletion.
    fn needs_space(&self, collection: &Collection, path: &str, object: Option<&EncodedObject>) -> bool {
        let current = || self.core.store.view().get(collection, path).map_or(0, |stored| stored.json().len());
        let grows = object.is_some_and(|object| object.len() > current());
        grows && !self.caller.platform && !self.deletes()
    }

    fn deletes(&self) -> bool {
        matches!(self.verb, Verb::Delete | Verb::DeleteCollection)
    }

    /// The storage quota that the write must keep. Deletion is free: an object with finalizers grows by its
    /// deletionTimestamp. The platform's writes count and are not refused, so that a full plane still works.
    fn storage_quota(&self) -> Option<StorageQuota> {
        let applies = is_project(&self.plane.name) && !self.caller.platform && !self.deletes();
        self.core.project_quota.filter(|_| applies)
    }

    /// The response to a successful write.
    pub(crate) fn respond_written(&self, code: u16, written: &WriteResult) -> Response<ResponseBody> {
        match written {
            WriteResult::Stored(stored) => self.respond(code, stored),
            WriteResult::DryRun(object) => {
                let mut object = object.clone();
                builtins::fill_empty_fields(self, &mut object);
                self.respond_value(code, &object)
            }
            WriteResult::Conflict => {
                crate::http::failure(&StatusError::internal("a conflict was taken for a success"))
            }
        }
    }
}
