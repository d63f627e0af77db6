//! CRD finalizer controller: deletes the objects of a terminating CRD from every plane of its catalogue, then
//! removes the CRD's finalizer.

use polis_apimachinery::{object, time};
use std::sync::Arc;

use super::delete_under;
use crate::{
    builtins::{CRD_FINALIZER, crd_collection, unregister_crd},
    kinds::Origin,
    server::Core,
    status::StatusError,
    store::Collection,
};

/// The terminating CRD of the objects in a collection: its plane and name.
pub(super) fn terminating_crd(core: &Core, collection: &Collection) -> Option<(Arc<str>, Arc<str>)> {
    let plane = core.plane(&collection.plane)?;
    let kinds = plane.catalogue.kinds();
    let kind = kinds.find_resource(&collection.resource).filter(|kind| kind.terminating)?;
    match &kind.origin {
        Origin::Custom { crd } => Some((plane.catalogue.plane.clone(), crd.as_str().into())),
        Origin::Builtin(_) => None,
    }
}

/// Deletes the objects of a terminating CRD, and removes its finalizer when none is left.
pub(super) async fn clean_up(core: &Arc<Core>, plane_name: &Arc<str>, name: &str) -> Result<(), StatusError> {
    let Some(plane) = core.plane(plane_name) else { return Ok(()) };
    let catalogue = &plane.catalogue;
    let definitions = crd_collection(catalogue);
    let Some(stored) = core.store.view().get(&definitions, name) else { return Ok(()) };
    let crd = stored.value();
    if !object::is_deleting(&crd)
        || !object::finalizers(&crd).iter().any(|finalizer| finalizer == CRD_FINALIZER)
    {
        return Ok(());
    }
    let resource: Arc<str> = name.into();
    let mut left = 0;
    for member in core.planes_of(catalogue) {
        let collection = Collection { plane: member.name.clone(), resource: resource.clone() };
        delete_under(core, &member, &collection, "").await?;
        left += core.store.view().count(&collection);
    }
    if left > 0 {
        return Ok(());
    }
    let now = time::timestamp(core.clock.now());
    core.rewrite_or_remove(&definitions, name, |crd| {
        let mut crd = crd.clone();
        object::set_condition(
            &mut crd,
            "Terminating",
            "False",
            "InstanceDeletionCompleted",
            "removed all instances",
            &now,
        );
        let finalizers: Vec<String> =
            object::finalizers(&crd).into_iter().filter(|finalizer| finalizer != CRD_FINALIZER).collect();
        if finalizers.is_empty() {
            return None;
        }
        object::set_meta(&mut crd, "finalizers", Some(finalizers.into()));
        Some(crd)
    })
    .await?;
    if core.store.view().get(&definitions, name).is_none() {
        unregister_crd(core, catalogue, name).await;
    }
    Ok(())
}
