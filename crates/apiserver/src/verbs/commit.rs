//! The last steps of every write: into the stored version, within the size limit, into the store.

use http::Response;
use serde_json::Value;

use super::Call;
use crate::{
    builtins, events,
    http::{Body, DryRun},
    json,
    status::Failure,
    store::{CommitError, Draft, Expect, Stored, Write},
};

/// Largest object, as etcd's default.
const OBJECT_MAX: usize = 1536 << 10;

/// What became of a write.
pub(crate) enum Written {
    /// It is stored.
    Stored(Stored),
    /// Somebody else was faster.
    Conflict,
    /// It was only tried.
    Dry(Value),
}

impl Call {
    /// Writes `object` (in the version of the request) under `path`.
    pub(crate) async fn put(
        &self,
        path: &str,
        expect: Expect,
        mut object: Value,
    ) -> Result<Written, Failure> {
        let shown = (self.options.dry_run == DryRun::All).then(|| object.clone());
        if self.kind.is("events.k8s.io", "events") {
            events::to_core(&mut object);
        } else {
            object["apiVersion"] = self.kind.storage_version().api_version.clone().into();
        }
        builtins::complete(self, &mut object);
        let draft = Draft::encode(&object);
        if draft.len() > OBJECT_MAX {
            return Err(Failure::too_large(format!("Request entity too large: limit is {OBJECT_MAX}")));
        }
        if let Some(mut object) = shown {
            // A dry run shows the revision it looked at, or none for a new object.
            let revision = match expect {
                Expect::At(revision) => Some(revision.to_string().into()),
                Expect::Absent => None,
            };
            json::set_meta(&mut object, "resourceVersion", revision);
            return Ok(Written::Dry(object));
        }
        self.commit(path, expect, Some(draft)).await
    }

    /// Removes what is under `path`.
    pub(crate) async fn remove(&self, path: &str, current: &Stored) -> Result<Written, Failure> {
        if self.options.dry_run == DryRun::All {
            return Ok(Written::Dry(self.present_value(current)));
        }
        self.commit(path, Expect::At(current.revision()), None).await
    }

    async fn commit(&self, path: &str, expect: Expect, draft: Option<Draft>) -> Result<Written, Failure> {
        let write = Write { collection: self.collection(), path: path.to_owned(), expect, draft };
        match self.core.store.commit(write).await {
            Ok(stored) => Ok(Written::Stored(stored)),
            Err(CommitError::Conflict(_)) => Ok(Written::Conflict),
            Err(error @ CommitError::Failed(_)) => Err(Failure::internal(&error.to_string())),
        }
    }

    /// The answer to a write that went through.
    pub(crate) fn answer_written(&self, code: u16, written: &Written) -> Response<Body> {
        match written {
            Written::Stored(stored) => self.answer(code, stored),
            Written::Dry(object) => {
                let mut object = object.clone();
                builtins::complete(self, &mut object);
                self.answer_value(code, &object)
            }
            Written::Conflict => {
                crate::http::failure(&Failure::internal("a conflict was taken for a success"))
            }
        }
    }
}
