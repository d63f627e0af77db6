//! CustomResourceDefinitions: checked, named, established, and taken away with their objects.
//!
//! Establishment happens within the write that asks for it: when a CRD has been created, its kind is served.

mod faults;
mod tidy;

pub(super) use faults::faults;

use serde_json::{Value, json};

use crate::{
    json,
    kinds::{self, Catalogue, Subresource, accepted_names, builtins},
    server::Core,
    status::Failure,
    store::{Collection, Stored},
    verbs::Call,
};

/// Holds a CRD until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const RESOURCE: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// Where the CRDs of a catalogue are.
pub(crate) fn collection(catalogue: &Catalogue) -> Collection {
    Collection::new(catalogue.home.clone(), RESOURCE)
}

/// The CRDs of a shared catalogue are not for one of its planes to change.
pub(super) fn may_write(call: &Call) -> Result<(), Failure> {
    if call.plane.catalogue.home == call.plane.name {
        return Ok(());
    }
    let why = format!(
        "the kinds of this plane come from the shared catalogue \"{}\"; change them there",
        call.plane.catalogue.name
    );
    Err(Failure::forbidden(&call.kind.about(), call.name.as_deref().unwrap_or_default(), &why))
}

pub(super) fn prepare_create(call: &Call, object: &mut Value) -> Result<(), Failure> {
    may_write(call)?;
    warn_of_formats(call, object, None);
    object["status"] = json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": storage_version(object).map_or(json!([]), |version| json!([version]))});
    Ok(())
}

pub(super) fn prepare_update(call: &Call, old: &Value, new: &mut Value) -> Result<(), Failure> {
    may_write(call)?;
    if call.subresource == Some(Subresource::Status) {
        return Ok(());
    }
    warn_of_formats(call, new, Some(old));
    let mut stored = json::texts(&old["status"]["storedVersions"]);
    if let Some(version) = storage_version(new).filter(|version| !stored.contains(version)) {
        stored.push(version);
    }
    new["status"]["storedVersions"] = json!(stored);
    Ok(())
}

/// Warns of formats that nobody enforces, once per change that brings them in.
fn warn_of_formats(call: &Call, new: &Value, old: Option<&Value>) {
    let known = old.map(tidy::unknown_formats).unwrap_or_default();
    for format in tidy::unknown_formats(new).into_iter().filter(|format| !known.contains(format)) {
        call.warn(format!("unrecognized format {format:?}"));
    }
}

/// Names and settings that may be left out.
pub(super) fn fill_in(object: &mut Value) {
    let kind = object["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return;
    }
    for (field, value) in [("singular", kind.to_lowercase()), ("listKind", format!("{kind}List"))] {
        if spec["names"][field].as_str().unwrap_or_default().is_empty() && !kind.is_empty() {
            spec["names"][field] = value.into();
        }
    }
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        version.pointer_mut("/schema/openAPIV3Schema").into_iter().for_each(tidy::tidy);
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({"strategy": "None"});
    }
}

fn storage_version(object: &Value) -> Option<String> {
    object["spec"]["versions"].as_array()?.iter().find(|version| version["storage"] == true)?["name"]
        .as_str()
        .map(str::to_owned)
}

/// Marks a CRD for deletion; it always waits until its objects have been seen to.
pub(super) fn mark(call: &Call, object: &mut Value) -> bool {
    let now = json::timestamp(call.core.clock.now());
    let mut finalizers = json::finalizers(object);
    if !json::is_deleting(object) && !finalizers.iter().any(|name| name == CLEANUP) {
        finalizers.push(CLEANUP.into());
        json::set_meta(object, "finalizers", Some(json!(finalizers)));
        json::set_condition(
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

/// Names, establishes and serves what a CRD defines.
pub(super) async fn after_write(call: &Call, stored: &Stored) {
    settle(&call.core, &call.plane.catalogue, json::meta(&stored.value(), "name")).await;
}

pub(super) async fn after_removal(call: &Call, last: &Value) {
    forget(&call.core, &call.plane.catalogue, json::meta(last, "name")).await;
}

/// Takes the kind of a CRD that is gone out of the catalogue. Its names are free for those that waited for them.
pub(crate) async fn forget(core: &Core, catalogue: &Catalogue, name: &str) {
    if let Some(kind) = catalogue.remove(name) {
        for plane in core.planes_of(catalogue) {
            core.store.view().wake(&kind.collection(&plane.name));
        }
    }
    for (other, stored) in core.store.view().all(&collection(catalogue)) {
        if json::condition_is(&stored.value(), "NamesAccepted", "False") {
            settle(core, catalogue, &other).await;
        }
    }
}

/// Brings the conditions of one CRD up to date and serves it if they allow.
pub(crate) async fn settle(core: &Core, catalogue: &Catalogue, name: &str) {
    let _one_at_a_time = catalogue.changing.lock().await;
    let home = collection(catalogue);
    let others: Vec<Value> = core
        .store
        .view()
        .all(&home)
        .iter()
        .map(|(_, stored)| stored.value())
        .filter(|other| json::meta(other, "name") != name)
        .collect();
    let now = json::timestamp(core.clock.now());
    let written = core.rewrite(&home, name, |crd| name_and_establish(crd, &others, &now)).await;
    let Ok(Some(stored)) = written else { return };
    if let Some(kind) = kinds::from_crd(&stored.value(), stored.revision()) {
        let resource = kind.resource.clone();
        catalogue.install(kind);
        for plane in core.planes_of(catalogue) {
            core.store.view().wake(&Collection { plane: plane.name.clone(), resource: resource.clone() });
        }
    }
}

/// Decides `acceptedNames` and the conditions that follow from them.
fn name_and_establish(crd: &mut Value, others: &[Value], now: &str) {
    let group = crd["spec"]["group"].as_str().unwrap_or_default().to_owned();
    let wanted = crd["spec"]["names"].clone();
    let neighbours: Vec<&Value> =
        others.iter().filter(|other| other["spec"]["group"] == group.as_str()).map(accepted_names).collect();
    match conflict(&group, &wanted, &neighbours) {
        None => {
            if crd["status"]["acceptedNames"] != wanted {
                crd["status"]["acceptedNames"] = wanted;
            }
            json::set_condition(crd, "NamesAccepted", "True", "NoConflicts", "no conflicts found", now);
            if !json::condition_is(crd, "Established", "True") {
                json::set_condition(
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
            json::set_condition(crd, "NamesAccepted", "False", reason, &message, now);
            if !json::condition_is(crd, "Established", "True") {
                json::set_condition(
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

/// The first name that another kind of the group already has.
fn conflict(group: &str, wanted: &Value, neighbours: &[&Value]) -> Option<(&'static str, String)> {
    let mut resources: Vec<String> = Vec::new();
    let mut kinds: Vec<String> = Vec::new();
    for known in neighbours {
        resources.extend(
            ["plural", "singular"].iter().filter_map(|field| known[*field].as_str()).map(str::to_owned),
        );
        resources.extend(json::texts(&known["shortNames"]));
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
    let said = |name: &str| format!("\"{name}\" is already in use");
    if taken(&resources, text("plural")) {
        return Some(("PluralConflict", said(text("plural"))));
    }
    if taken(&resources, text("singular")) {
        return Some(("SingularConflict", said(text("singular"))));
    }
    if let Some(short) = json::texts(&wanted["shortNames"]).into_iter().find(|short| taken(&resources, short))
    {
        return Some(("ShortNamesConflict", said(&short)));
    }
    if taken(&kinds, text("kind")) {
        return Some(("KindConflict", said(text("kind"))));
    }
    if taken(&kinds, text("listKind")) {
        return Some(("ListKindConflict", said(text("listKind"))));
    }
    None
}

/// Serves every established CRD of a catalogue: after a start.
pub(crate) fn load(core: &Core, catalogue: &Catalogue) {
    for (_, stored) in core.store.view().all(&collection(catalogue)) {
        if let Some(kind) = kinds::from_crd(&stored.value(), stored.revision()) {
            catalogue.install(kind);
        }
    }
}
