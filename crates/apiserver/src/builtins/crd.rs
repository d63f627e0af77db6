//! CustomResourceDefinitions: acceptance of names, establishment, and deletion together with their objects.
//!
//! A CRD is established within the write that creates it: when the response is sent, the kind is served.

use polis_apimachinery::{crd::unknown_formats, object, time};
use serde_json::{Value, json};

use crate::{
    kinds::{self, Catalogue, Subresource, accepted_names, builtins},
    server::Core,
    status::StatusError,
    store::{Collection, Stored},
    verbs::Call,
};

/// The finalizer that holds a CRD until its objects are deleted.
pub(crate) const CRD_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
const RESOURCE: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// The collection that stores the CRDs of a catalogue.
pub(crate) fn collection(catalogue: &Catalogue) -> Collection {
    Collection::new(catalogue.plane.clone(), RESOURCE)
}

/// Rejects writes to the CRDs of a shared catalogue through one of its planes.
pub(super) fn check_writable(call: &Call) -> Result<(), StatusError> {
    if call.plane.catalogue.plane == call.plane.name {
        return Ok(());
    }
    let why = format!(
        "the kinds of this plane come from the shared catalogue \"{}\"; change them there",
        call.plane.catalogue.name
    );
    Err(StatusError::forbidden(&call.kind.group_resource(), call.name.as_deref().unwrap_or_default(), &why))
}

pub(super) fn prepare_create(call: &Call, object: &mut Value) -> Result<(), StatusError> {
    check_writable(call)?;
    warn_unknown_formats(call, object, None);
    object["status"] = json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": storage_version(object).map_or(json!([]), |version| json!([version]))});
    Ok(())
}

pub(super) fn prepare_update(call: &Call, old: &Value, new: &mut Value) -> Result<(), StatusError> {
    check_writable(call)?;
    if call.subresource == Some(Subresource::Status) {
        return Ok(());
    }
    warn_unknown_formats(call, new, Some(old));
    let mut stored = object::strings(&old["status"]["storedVersions"]);
    if let Some(version) = storage_version(new).filter(|version| !stored.contains(version)) {
        stored.push(version);
    }
    new["status"]["storedVersions"] = json!(stored);
    Ok(())
}

/// Warns about string formats that are not enforced, if this write introduces them.
fn warn_unknown_formats(call: &Call, new: &Value, old: Option<&Value>) {
    let known = old.map(unknown_formats).unwrap_or_default();
    for format in unknown_formats(new).into_iter().filter(|format| !known.contains(format)) {
        call.warn(format!("unrecognized format {format:?}"));
    }
}

fn storage_version(object: &Value) -> Option<String> {
    object["spec"]["versions"].as_array()?.iter().find(|version| version["storage"] == true)?["name"]
        .as_str()
        .map(str::to_owned)
}

/// Adds the finalizer and the condition `Terminating`. The CRD then waits until its objects are deleted.
pub(super) fn begin_deletion(call: &Call, object: &mut Value) -> bool {
    let now = time::timestamp(call.core.clock.now());
    let mut finalizers = object::finalizers(object);
    if !object::is_deleting(object) && !finalizers.iter().any(|name| name == CRD_FINALIZER) {
        finalizers.push(CRD_FINALIZER.into());
        object::set_meta(object, "finalizers", Some(json!(finalizers)));
        object::set_condition(
            object,
            "Terminating",
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
            &now,
        );
    }
    !finalizers.is_empty()
}

/// Establishes the CRD and serves its kind.
pub(super) async fn after_write(call: &Call, stored: &Stored) {
    reconcile(&call.core, &call.plane.catalogue, object::meta(&stored.value(), "name")).await;
}

pub(super) async fn after_removal(call: &Call, last: &Value) {
    unregister(&call.core, &call.plane.catalogue, object::meta(last, "name")).await;
}

/// Removes the kind of a deleted CRD from the catalogue. CRDs with rejected names are reconciled, because its
/// names are free now.
pub(crate) async fn unregister(core: &Core, catalogue: &Catalogue, name: &str) {
    if let Some(kind) = catalogue.remove(name) {
        for plane in core.planes_of(catalogue) {
            core.store.view().wake(&kind.collection(&plane.name));
        }
    }
    for (other, stored) in core.store.view().all(&collection(catalogue)) {
        if object::condition_is(&stored.value(), "NamesAccepted", "False") {
            reconcile(core, catalogue, &other).await;
        }
    }
}

/// Updates the conditions of one CRD and serves its kind if it is established.
pub(crate) async fn reconcile(core: &Core, catalogue: &Catalogue, name: &str) {
    let _one_at_a_time = catalogue.changing.lock().await;
    let home = collection(catalogue);
    let others: Vec<Value> = core
        .store
        .view()
        .all(&home)
        .iter()
        .map(|(_, stored)| stored.value())
        .filter(|other| object::meta(other, "name") != name)
        .collect();
    let now = time::timestamp(core.clock.now());
    let written = core.rewrite(&home, name, |crd| update_conditions(crd, &others, &now)).await;
    let Ok(Some(stored)) = written else { return };
    if let Some(kind) = kinds::from_crd(&stored.value(), stored.revision()) {
        let resource = kind.resource.clone();
        catalogue.install(kind);
        for plane in core.planes_of(catalogue) {
            core.store.view().wake(&Collection { plane: plane.name.clone(), resource: resource.clone() });
        }
    }
}

/// Sets `acceptedNames` and the conditions `NamesAccepted` and `Established`.
fn update_conditions(crd: &mut Value, others: &[Value], now: &str) {
    let group = crd["spec"]["group"].as_str().unwrap_or_default().to_owned();
    let wanted = crd["spec"]["names"].clone();
    let same_group: Vec<&Value> =
        others.iter().filter(|other| other["spec"]["group"] == group.as_str()).map(accepted_names).collect();
    match conflict(&group, &wanted, &same_group) {
        None => {
            if crd["status"]["acceptedNames"] != wanted {
                crd["status"]["acceptedNames"] = wanted;
            }
            object::set_condition(crd, "NamesAccepted", "True", "NoConflicts", "no conflicts found", now);
            if !object::condition_is(crd, "Established", "True") {
                object::set_condition(
                    crd,
                    "Established",
                    "True",
                    "InitialNamesAccepted",
                    "the initial names have been accepted",
                    now,
                );
            }
        }
        Some((reason, message)) => {
            object::set_condition(crd, "NamesAccepted", "False", reason, &message, now);
            if !object::condition_is(crd, "Established", "True") {
                object::set_condition(
                    crd,
                    "Established",
                    "False",
                    "NotAccepted",
                    "not all names are accepted",
                    now,
                );
            }
        }
    }
}

/// The first name that another kind of the group uses: reason and message of the condition.
fn conflict(group: &str, wanted: &Value, same_group: &[&Value]) -> Option<(&'static str, String)> {
    let mut resources: Vec<String> = Vec::new();
    let mut kinds: Vec<String> = Vec::new();
    for known in same_group {
        resources.extend(
            ["plural", "singular"].iter().filter_map(|field| known[*field].as_str()).map(str::to_owned),
        );
        resources.extend(object::strings(&known["shortNames"]));
        kinds.extend(
            ["kind", "listKind"].iter().filter_map(|field| known[*field].as_str()).map(str::to_owned),
        );
    }
    for known in builtins().iter().filter(|known| known.group == group) {
        resources.extend([known.plural.clone(), known.singular.clone()]);
        kinds.extend([known.kind.clone(), known.list_kind.clone()]);
    }
    let taken = |list: &[String], name: &str| !name.is_empty() && list.iter().any(|known| known == name);
    let text = |field: &str| wanted[field].as_str().unwrap_or_default();
    let conflict_message = |name: &str| format!("\"{name}\" is already in use");
    if taken(&resources, text("plural")) {
        return Some(("PluralConflict", conflict_message(text("plural"))));
    }
    if taken(&resources, text("singular")) {
        return Some(("SingularConflict", conflict_message(text("singular"))));
    }
    if let Some(short) =
        object::strings(&wanted["shortNames"]).into_iter().find(|short| taken(&resources, short))
    {
        return Some(("ShortNamesConflict", conflict_message(&short)));
    }
    if taken(&kinds, text("kind")) {
        return Some(("KindConflict", conflict_message(text("kind"))));
    }
    if taken(&kinds, text("listKind")) {
        return Some(("ListKindConflict", conflict_message(text("listKind"))));
    }
    None
}

/// Serves every established CRD of a catalogue, at startup.
pub(crate) fn load(core: &Core, catalogue: &Catalogue) {
    for (_, stored) in core.store.view().all(&collection(catalogue)) {
        if let Some(kind) = kinds::from_crd(&stored.value(), stored.revision()) {
            catalogue.install(kind);
        }
    }
}
