//! Works: creation, update, deletion and release, for the controllers that own them.

use std::sync::Arc;

use polis_api::finalizers;
use polis_engine::Deletion;
use serde_json::{Value, json};

use crate::error::Error;
use crate::finalizers::{add_finalizer, has_finalizer, without_finalizer};
use crate::hub::Hub;
use crate::kinds;
use crate::object;

/// The Works of a binding.
pub(crate) fn of_binding(hub: &Hub, binding_id: &str) -> Result<Vec<Arc<Value>>, Error> {
    let mut found = Vec::new();
    for index in &kinds::BINDING_IDS {
        found.extend(hub.of(&kinds::WORK).find(index, binding_id)?);
    }
    Ok(found)
}

/// The number of Works of a binding.
pub(crate) fn count_of_binding(hub: &Hub, binding_id: &str) -> Result<usize, Error> {
    let mut count = 0;
    for index in &kinds::BINDING_IDS {
        count += hub.of(&kinds::WORK).count(index, binding_id)?;
    }
    Ok(count)
}

/// Creates or updates one Work; at most one write.
pub(crate) async fn ensure(hub: &Hub, existing: Option<&Value>, wanted: Value) -> Result<(), Error> {
    let works = hub.of(&kinds::WORK);
    let Some(existing) = existing else {
        let (namespace, name) = (object::meta(&wanted, "namespace"), object::meta(&wanted, "name"));
        if works.get((namespace, name))?.is_some() {
            return Err(Error::Waiting(format!(
                "the Work with this name in {namespace} belongs to another binding"
            )));
        }
        works.create(&wanted).await?;
        return Ok(());
    };
    if object::is_deleting(existing) {
        return Ok(()); // its deletion requeues the binding
    }
    let mut merged = existing.clone();
    merged["spec"] = wanted["spec"].clone();
    for (key, value) in object::string_map(&wanted["metadata"]["labels"]) {
        object::set_label(&mut merged, &key, &value);
    }
    for (key, value) in object::string_map(&wanted["metadata"]["annotations"]) {
        object::set_annotation(&mut merged, &key, &value);
    }
    add_finalizer(&mut merged, finalizers::karmada::WORK);
    if merged != *existing {
        works.update(&merged).await?;
    }
    Ok(())
}

/// Deletes a Work unless it is being deleted. It is terminating until its member confirms the deletion.
pub(crate) async fn delete(hub: &Hub, work: &Value) -> Result<(), Error> {
    if !object::is_deleting(work) {
        delete_unless_replaced(hub, &kinds::WORK, work).await?;
    }
    Ok(())
}

/// Deletes an object. Another object of that name is left alone, and counts as pending.
pub(crate) async fn delete_unless_replaced(
    hub: &Hub,
    kind: &polis_engine::Kind,
    object: &Value,
) -> Result<Deletion, Error> {
    let name = (object::meta(object, "namespace"), object::meta(object, "name"));
    match hub.of(kind).delete(name, object::meta(object, "uid")).await {
        Err(error) if error.is_conflict() => Ok(Deletion::Pending),
        result => Ok(result?),
    }
}

/// Removes the finalizer from a Work whose member no longer has its object.
pub(crate) async fn release(hub: &Hub, work: &Value) -> Result<(), Error> {
    remove_finalizer(hub, &kinds::WORK, work, finalizers::karmada::WORK).await
}

/// Removes a finalizer. An object that no longer exists counts as done.
pub(crate) async fn remove_finalizer(
    hub: &Hub,
    kind: &polis_engine::Kind,
    object: &Value,
    finalizer: &str,
) -> Result<(), Error> {
    if !has_finalizer(object, finalizer) {
        return Ok(());
    }
    let patch = json!({"metadata": {
        "uid": object::meta(object, "uid"),
        "resourceVersion": object::meta(object, "resourceVersion"),
        "finalizers": without_finalizer(object, finalizer),
    }});
    let name = (object::meta(object, "namespace"), object::meta(object, "name"));
    match hub.of(kind).patch(name, &patch).await {
        Err(error) if error.is_not_found() => Ok(()),
        result => Ok(result.map(drop)?),
    }
}
