//! The end of a CRD: its objects go from every plane that serves it, then it goes itself.

use std::sync::Arc;

use super::delete_under;
use crate::{
    builtins::{CLEANUP, crd_collection, forget_crd},
    json,
    kinds::Origin,
    server::Core,
    status::Failure,
    store::Collection,
};

/// The CRD, if it is being deleted, whose objects are in a collection: its home and name.
pub(super) fn leaving(core: &Core, collection: &Collection) -> Option<(Arc<str>, Arc<str>)> {
    let plane = core.plane(&collection.plane)?;
    let kinds = plane.catalogue.kinds();
    let kind = kinds.find_resource(&collection.resource).filter(|kind| kind.terminating)?;
    match &kind.origin {
        Origin::Custom { crd } => Some((plane.catalogue.home.clone(), crd.as_str().into())),
        Origin::Builtin(_) => None,
    }
}

/// Deletes the objects of a CRD that is being deleted, and lets it go when none is left.
pub(super) async fn clean_up(core: &Arc<Core>, home: &Arc<str>, name: &str) -> Result<(), Failure> {
    let Some(plane) = core.plane(home) else { return Ok(()) };
    let catalogue = &plane.catalogue;
    let definitions = crd_collection(catalogue);
    let Some(stored) = core.store.view().get(&definitions, name) else { return Ok(()) };
    let crd = stored.value();
    if !json::is_deleting(&crd) || !json::finalizers(&crd).iter().any(|finalizer| finalizer == CLEANUP) {
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
    let now = json::timestamp(core.clock.now());
    core.rewrite_or_remove(&definitions, name, |crd| {
        let mut crd = crd.clone();
        json::set_condition(
            &mut crd,
            "Terminating",
            "False",
            "InstanceDeletionCompleted",
            "removed all instances",
            &now,
        );
        let finalizers: Vec<String> =
            json::finalizers(&crd).into_iter().filter(|finalizer| finalizer != CLEANUP).collect();
        if finalizers.is_empty() {
            return None;
        }
        json::set_meta(&mut crd, "finalizers", Some(finalizers.into()));
        Some(crd)
    })
    .await?;
    if core.store.view().get(&definitions, name).is_none() {
        forget_crd(core, catalogue, name).await;
    }
    Ok(())
}
