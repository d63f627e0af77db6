//! Delete of a collection.

use http::Response;
use polis_apimachinery::object;
use serde_json::{Value, json};

use super::{Call, DeleteOptions, delete::DeleteResult, filter::Filter};
use crate::{http::ResponseBody, status::StatusError, store::RangeOptions};

impl Call {
    /// Deletes every object that matches the filter, and returns their last states.
    pub(crate) async fn delete_all(
        &self,
        each: &Self,
        options: &DeleteOptions,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let filter = Filter::of(self)?;
        let prefix = filter.prefix();
        let page = self
            .core
            .store
            .view()
            .range(&self.collection(), &RangeOptions { prefix: &prefix, ..RangeOptions::default() })
            .map_err(|compacted| StatusError::expired(compacted.to_string()))?;
        let mut items: Vec<Value> = Vec::new();
        for (path, stored) in page.items.iter().filter(|(path, stored)| filter.accepts(path, stored)) {
            let (namespace, name) =
                path.split_once('/').map_or((None, &**path), |(namespace, name)| (Some(namespace), name));
            self.check_deadline()?;
            let mut one =
                Self::internal(&self.core, &self.plane, &self.kind, self.verb, namespace, Some(name));
            one.version = self.version.clone();
            one.user = self.user.clone();
            one.caller = self.caller.clone();
            one.options.dry_run = each.options.dry_run;
            let exact = DeleteOptions {
                uid: options.uid.clone().or_else(|| Some(object::meta(&stored.value(), "uid").to_owned())),
                ..options.clone()
            };
            match one.delete_object(name, &exact).await {
                Ok(DeleteResult::Deleted(last)) => items.push(last),
                Ok(DeleteResult::Terminating(_)) => items.push(self.convert_value(stored)),
                // Deleted or replaced concurrently.
                Err(failure) if matches!(failure.code, 404 | 409) => {}
                Err(failure) => return Err(failure),
            }
        }
        if !self.kind.is_custom() {
            for item in items.iter_mut().filter_map(Value::as_object_mut) {
                item.remove("apiVersion");
                item.remove("kind");
            }
        }
        let list = json!({"kind": self.kind.list_kind, "apiVersion": self.version.api_version, "metadata": {"resourceVersion": page.revision.to_string()}, "items": items});
        let mut list = list;
        if self.kind.is_custom() {
            list["metadata"]["continue"] = "".into();
        }
        Ok(crate::http::object(200, &list, self.output))
    }
}
