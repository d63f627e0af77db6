//! Writes of copies: objects that a controller mirrors from another plane.

use polis_api::ObjectExt;
use polis_api::kube::core::object::HasStatus;

use crate::{Error, Object, Plane, Preconditions};

impl Plane {
    /// Writes a copy and then its status, each if it is given. Creates the copy if `existing` is none.
    /// Returns the copy as the server has it now; none if there is none.
    pub async fn write_copy<K: Object + HasStatus>(
        &self,
        existing: Option<&K>,
        object: Option<&K>,
        status: Option<K::Status>,
    ) -> Result<Option<K>, Error> {
        let written = match (existing, object) {
            (Some(existing), Some(object)) => self.update(existing, object).await?.into_object(),
            (None, Some(object)) => Some(self.create(object).await?),
            (_, None) => None,
        };
        let Some(copy) = written.or_else(|| existing.cloned()) else { return Ok(None) };
        let Some(status) = status else { return Ok(Some(copy)) };
        Ok(Some(self.write_status(&copy, status).await?.into_object().unwrap_or(copy)))
    }

    /// Deletes a copy unless it is being deleted. Returns true if it is gone. With finalizers the deletion
    /// continues on the server, and the event of the deletion follows.
    pub async fn delete_copy<K: Object>(&self, copy: &K) -> Result<bool, Error> {
        if !copy.is_deleting() {
            self.delete(copy, Preconditions::Uid).await?;
        }
        Ok(copy.meta().finalizers.as_ref().is_none_or(Vec::is_empty))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use parking_lot::Mutex;
    use polis_api::compute::{Instance, InstanceStatus};
    use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    type Log = Arc<Mutex<Vec<String>>>;

    /// A plane that accepts every object, and the log of its requests.
    fn mk_plane() -> (Plane, Log) {
        let log = Log::default();
        let requests = log.clone();
        let accept = move |request: Request<Full<Bytes>>| {
            let path = request.uri().path().rsplit_once("/namespaces/shop/").map_or("", |(_, path)| path);
            requests.lock().push(format!("{} {path}", request.method()));
            async move {
                let content = request.into_body().collect().await?.to_bytes();
                let mut object: serde_json::Value = serde_json::from_slice(&content).expect("JSON");
                for field in ["uid", "resourceVersion"] {
                    object["metadata"][field] = "1".into();
                }
                Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from(object.to_string())))
            }
        };
        (Plane::in_process("acme", tower::service_fn(accept)), log)
    }

    fn mk_copy() -> Instance {
        let mut copy = Instance::new("web-0", Default::default());
        copy.metadata.namespace = Some("shop".into());
        copy
    }

    fn mk_status(suspended: bool) -> InstanceStatus {
        InstanceStatus { suspended: Some(suspended), ..InstanceStatus::default() }
    }

    #[tokio::test]
    async fn a_copy_is_created_with_its_status_and_written_again_only_where_it_differs() {
        let (plane, log) = mk_plane();
        let created =
            plane.write_copy(None, Some(&mk_copy()), Some(mk_status(false))).await.unwrap().unwrap();
        assert_eq!(*log.lock(), ["POST instances", "PUT instances/web-0/status"]);
        assert_eq!(created.status, Some(mk_status(false)));
        log.lock().clear();
        plane.write_copy(Some(&created), Some(&created), Some(mk_status(false))).await.unwrap();
        plane.write_status(&created, mk_status(false)).await.unwrap();
        assert!(log.lock().is_empty(), "{log:?}");
        plane.write_copy(Some(&created), None, Some(mk_status(true))).await.unwrap();
        assert_eq!(*log.lock(), ["PUT instances/web-0/status"]);
    }

    #[tokio::test]
    async fn a_copy_is_deleted_once_and_is_gone_when_it_has_no_finalizer() {
        let (plane, log) = mk_plane();
        let mut copy = mk_copy();
        copy.metadata.uid = Some("1".into());
        assert!(plane.delete_copy(&copy).await.unwrap());
        copy.metadata.finalizers = Some(vec!["example.com/hold".into()]);
        assert!(!plane.delete_copy(&copy).await.unwrap());
        assert_eq!(*log.lock(), ["DELETE instances/web-0", "DELETE instances/web-0"]);
        copy.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
        assert!(!plane.delete_copy(&copy).await.unwrap());
        assert_eq!(log.lock().len(), 2, "a terminating copy is not deleted again");
    }
}
