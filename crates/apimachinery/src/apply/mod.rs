//! Server-side apply and field ownership (`managedFields`).
//!
//! An apply owns the fields of its configuration; any other write owns the fields that it changed. An apply
//! removes fields that its manager applied before and no longer applies, unless another manager owns them. It
//! fails with a conflict if it changes a field of another manager, unless forced. The functions work on plain
//! values and [`Types`], which define how the lists and maps of the kind merge.

use serde_json::{Map, Value};

pub(crate) mod field_set;
pub(crate) mod managed_fields;
pub(crate) mod path_element;
mod typed;
pub(crate) mod types;

pub use field_set::{FieldSet, FieldSetEntry, FieldsError};
pub use managed_fields::{ManagedFields, ManagedFieldsEntry, ManagerIdentity, Operation};
pub use path_element::PathElement;
pub use types::Types;

use field_set::show_path;
use typed::Difference;

/// The annotation in which client-side `kubectl apply` stores its last configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Maximum size of that annotation in bytes. A larger annotation is removed instead of updated.
const LAST_APPLIED_MAX: usize = 256 << 10;

/// The parameters of a write besides the objects.
#[derive(Clone, Copy)]
pub struct WriteContext<'a> {
    /// The types of each served version, including the version of this write. Entries of versions that are no
    /// longer served are dropped.
    pub versions: &'a [(&'a str, &'a Types)],
    /// `apiVersion` of this write.
    pub api_version: &'a str,
    /// The kind, for messages.
    pub kind: &'a str,
    /// The subresource; empty for the main endpoint.
    pub subresource: &'a str,
    /// Fields that this endpoint ignores (`status` on the main endpoint, `spec` on the status endpoint).
    /// Writes through this endpoint do not own them.
    pub reset: &'a FieldSet,
    /// The time of the write, RFC 3339 in whole seconds.
    pub now: &'a str,
}

/// A conflict: a field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The description of the manager: `"kubectl" using v1`.
    pub manager: String,
    /// The field: `.spec.size`.
    pub field: String,
}

impl Conflict {
    /// The message of the cause; its reason is `FieldManagerConflict`.
    pub fn message(&self) -> String {
        format!("conflict with {}", self.manager)
    }
}

/// A failed apply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The apply changes fields of other managers: 409 with one cause per conflict.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// The request is inconsistent: 400.
    #[error("{0}")]
    BadRequest(String),
    /// The configuration does not match the type. Kubernetes answers 500 without a reason.
    #[error("{0}")]
    Untyped(String),
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.field);
    }
    let mut lines: Vec<String> = Vec::new();
    let mut last = "";
    for conflict in conflicts {
        if conflict.manager != last {
            lines.push(format!("conflicts with {}:", conflict.manager));
            last = &conflict.manager;
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Fields without an owner: identity and fields that the server sets.
fn never_owned() -> &'static FieldSet {
    static SET: std::sync::OnceLock<FieldSet> = std::sync::OnceLock::new();
    SET.get_or_init(|| {
        let fields = [
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
        ];
        let mut set = FieldSet::of_fields(&[&["apiVersion"], &["kind"], &["metadata"]]);
        for field in fields {
            set.insert(&[PathElement::field("metadata"), PathElement::field(field)]);
        }
        set
    })
}

impl<'a> WriteContext<'a> {
    fn types(&self, version: &str) -> Option<&'a Types> {
        self.versions.iter().find(|(v, _)| *v == version).map(|(_, t)| *t)
    }

    fn own_types(&self) -> Result<&'a Types, ApplyError> {
        self.types(self.api_version)
            .ok_or_else(|| ApplyError::BadRequest(format!("no types for version {}", self.api_version)))
    }

    fn identity(&self, manager: &str, operation: Operation) -> ManagerIdentity {
        ManagerIdentity::new(manager, operation, self.api_version, self.subresource)
    }

    /// Drops entries of versions that are no longer served, and adapts the others to types that became
    /// atomic.
    fn reconcile(&self, managed: &mut ManagedFields) {
        managed.retain(|o| self.types(&o.api_version).is_some());
        for entry in managed.iter_mut() {
            if let Some(aligned) =
                self.types(&entry.api_version).and_then(|t| typed::reconcile(t, &entry.fields))
            {
                entry.fields = aligned;
            }
        }
    }

    /// Removes changed and removed fields from the entries of all managers except `own`. Without `force`, a
    /// changed field of another manager is a conflict.
    fn take_ownership(
        &self,
        live: &Value,
        new: &Value,
        managed: &mut ManagedFields,
        own: Option<&ManagerIdentity>,
        force: bool,
    ) -> Result<Difference, ApplyError> {
        let types = self.own_types()?;
        let difference = typed::compare(types, live, new).without(self.reset);
        let mut others: Vec<(&str, Difference)> = Vec::new();
        let mut conflicts = Vec::new();
        let mut remaining = Vec::new();
        for entry in managed.iter().filter(|o| Some(&o.identity) != own) {
            let changed = if entry.api_version == self.api_version {
                &difference
            } else {
                if !others.iter().any(|(v, _)| *v == entry.api_version) {
                    let Some(types) = self.types(&entry.api_version) else { continue };
                    others.push((entry.api_version.as_str(), typed::compare(types, live, new)));
                }
                match others.iter().find(|(v, _)| *v == entry.api_version) {
                    Some((_, difference)) => difference,
                    None => continue,
                }
            };
            let lost = entry.fields.intersection(&changed.modified.union(&changed.added));
            if !lost.is_empty() {
                conflicts.extend(
                    lost.paths()
                        .iter()
                        .map(|p| Conflict { manager: entry.identity.describe(), field: show_path(p) }),
                );
            }
            let kept = entry.fields.difference(&lost).difference(&changed.removed);
            remaining.push((entry.identity.clone(), kept));
        }
        if !force && !conflicts.is_empty() {
            conflicts.sort_by(|a, b| a.manager.cmp(&b.manager));
            return Err(ApplyError::Conflicts(conflicts));
        }
        for (identity, kept) in remaining {
            if let Some(entry) = managed.iter_mut().find(|o| o.identity == identity) {
                entry.fields = kept;
            }
        }
        managed.drop_empty();
        Ok(difference)
    }

    /// Records an update of `live` to `new` for `manager`.
    fn record_update(
        &self,
        live: &Value,
        new: &Value,
        managed: &mut ManagedFields,
        manager: &str,
    ) -> Result<(), ApplyError> {
        self.reconcile(managed);
        let difference = self.take_ownership(live, new, managed, None, true)?;
        let taken = difference
            .modified
            .union(&difference.added)
            .recursive_difference(self.reset)
            .difference(never_owned());
        if !taken.is_empty() {
            let identity = self.identity(manager, Operation::Update);
            let fields = match managed.get(&identity) {
                Some(before) => before.fields.union(&taken),
                None => taken,
            };
            managed.set(ManagedFieldsEntry {
                identity,
                api_version: self.api_version.to_owned(),
                time: Some(self.now.to_owned()),
                fields,
            });
        }
        managed.cap_update_entries();
        Ok(())
    }
}

fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata").and_then(Value::as_object)
}

fn managed_of(object: &Value) -> Option<&Value> {
    metadata(object)?.get("managedFields")
}

fn set_managed(object: &mut Value, managed: &ManagedFields) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match managed.encode() {
        Some(managed) => drop(metadata.insert("managedFields".to_owned(), managed)),
        None => drop(metadata.remove("managedFields")),
    }
}

fn empty_object(context: &WriteContext<'_>) -> Value {
    serde_json::json!({"apiVersion": context.api_version, "kind": context.kind, "metadata": {}})
}

/// Updates the ownership for a write other than apply: a create (`live` is `None`), an update or a patch.
/// `new` is the object to store; its `managedFields` are replaced. Never fails: as in Kubernetes, invalid
/// `managedFields` are dropped.
pub fn update(context: &WriteContext<'_>, live: Option<&Value>, new: &mut Value, manager: &str) {
    let live_managed = live.and_then(managed_of);
    let mut managed = if !context.subresource.is_empty() {
        ManagedFields::decode(live_managed).unwrap_or_default()
    } else {
        let given = managed_of(new);
        let entries = given.and_then(Value::as_array).map(Vec::as_slice);
        match entries {
            // An empty list, or one empty entry, resets the ownership.
            Some([]) => ManagedFields::default(),
            Some([Value::Object(only)]) if only.is_empty() => ManagedFields::default(),
            _ => match ManagedFields::decode(given) {
                Ok(managed) if !managed.is_empty() => managed,
                _ => ManagedFields::decode(live_managed).unwrap_or_default(),
            },
        }
    };
    if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    // An existing object without `managedFields` is not tracked.
    if managed.is_empty() && live.is_some() {
        return;
    }
    let empty = empty_object(context);
    if context.record_update(live.unwrap_or(&empty), new, &mut managed, manager).is_ok() {
        set_managed(new, &managed);
    }
}

/// Applies a configuration. `live` is `None` if the object does not exist. Returns the object with its
/// `managedFields`; the caller defaults and validates it.
pub fn apply(
    context: &WriteContext<'_>,
    live: Option<&Value>,
    config: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, ApplyError> {
    check_request(context, config)?;
    let types = context.own_types()?;
    let errors = typed::check(types, config);
    if !errors.is_empty() {
        return Err(ApplyError::Untyped(untyped(context, config, &errors)));
    }
    let empty = empty_object(context);
    let exists = live.is_some();
    let live = live.unwrap_or(&empty);
    let mut managed = ManagedFields::decode(managed_of(live))
        .map_err(|e| ApplyError::Untyped(format!("failed to decode managed fields: {e}")))?;
    if managed.is_empty() && exists {
        context.record_update(&empty, live, &mut managed, "before-first-apply")?;
    }
    let result = apply_once(context, types, live, config, managed.clone(), manager, force);
    let mut object = match result {
        Err(ApplyError::Conflicts(conflicts)) if manager == "kubectl" => {
            // The change from client-side to server-side apply is not a conflict of kubectl with itself.
            let allowed = last_applied_fields(context, types, live).unwrap_or_default();
            let left: Vec<Conflict> = conflicts.into_iter().filter(|c| !allowed.contains(&c.field)).collect();
            if !left.is_empty() {
                return Err(ApplyError::Conflicts(left));
            }
            apply_once(context, types, live, config, managed, manager, true)?
        }
        other => other?,
    };
    if manager == "kubectl" {
        refresh_last_applied(&mut object, config);
    }
    Ok(object)
}

fn check_request(context: &WriteContext<'_>, config: &Value) -> Result<(), ApplyError> {
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion") != context.api_version || text("kind") != context.kind {
        return Err(ApplyError::BadRequest(format!(
            "invalid object type: {}, Kind={}",
            slashed(text("apiVersion")),
            text("kind")
        )));
    }
    if managed_of(config).is_some_and(|m| !m.is_null()) {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()));
    }
    Ok(())
}

/// Go prints the core group version `v1` as `/v1`.
fn slashed(api_version: &str) -> String {
    if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") }
}

fn untyped(context: &WriteContext<'_>, config: &Value, errors: &[String]) -> String {
    let text =
        |key: &str| metadata(config).and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or_default();
    let detail = match errors {
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    };
    format!(
        "failed to create typed patch object ({}/{}; {}, Kind={}): {detail}",
        text("namespace"),
        text("name"),
        slashed(context.api_version),
        context.kind
    )
}

fn apply_once(
    context: &WriteContext<'_>,
    types: &Types,
    live: &Value,
    config: &Value,
    mut managed: ManagedFields,
    manager: &str,
    force: bool,
) -> Result<Value, ApplyError> {
    context.reconcile(&mut managed);
    let identity = context.identity(manager, Operation::Apply);
    let merged = typed::merge(types, live, config)
        .map_err(|e| ApplyError::Untyped(format!("failed to merge config: {e}")))?;
    let last = managed.get(&identity).cloned();
    let fields = typed::fields_of(types, config).recursive_difference(context.reset);
    let time = last.as_ref().and_then(|l| l.time.clone());
    managed.set(ManagedFieldsEntry {
        identity: identity.clone(),
        api_version: context.api_version.to_owned(),
        time,
        fields,
    });
    let mut object = match &last {
        Some(last) if !last.fields.is_empty() => prune(context, &merged, &managed, last),
        _ => merged,
    };
    context.take_ownership(live, &object, &mut managed, Some(&identity), force)?;
    let changed = &object != live;
    if let Some(entry) = managed.iter_mut().find(|o| o.identity == identity) {
        entry.fields = entry.fields.difference(never_owned());
        if changed {
            entry.time = Some(context.now.to_owned());
        }
    }
    managed.drop_empty();
    if !object.get("metadata").is_some_and(Value::is_object) {
        object["metadata"] = Value::Object(Map::new());
    }
    set_managed(&mut object, &managed);
    Ok(object)
}

/// Removes fields that the manager applied before, does not apply now, and that no other manager owns.
fn prune(
    context: &WriteContext<'_>,
    merged: &Value,
    managed: &ManagedFields,
    last: &ManagedFieldsEntry,
) -> Value {
    let Some(types) = context.types(&last.api_version) else { return merged.clone() };
    let last_fields = typed::with_named_fields(types, &last.fields);
    let mut pruned = typed::remove(types, merged, &last_fields);
    // Add back the fields that a manager still owns, version by version.
    let mut versions: Vec<&str> = vec![&last.api_version];
    for entry in managed.iter() {
        if !versions.contains(&entry.api_version.as_str()) {
            versions.push(&entry.api_version);
        }
    }
    for version in versions {
        let Some(types) = context.types(version) else { continue };
        let mut owned = FieldSet::default();
        let mut found = false;
        for entry in managed.iter().filter(|o| o.api_version == version) {
            owned = owned.union(&entry.fields);
            found = true;
        }
        if !found {
            continue;
        }
        let before = typed::with_named_fields(types, &typed::fields_of(types, merged));
        let after = typed::with_named_fields(types, &typed::fields_of(types, &pruned));
        let removed_fields = before.difference(&after.union(&typed::with_named_fields(types, &owned)));
        pruned = typed::remove(types, merged, &removed_fields);
    }
    // Add back the fields that this manager did not own.
    let before = typed::with_named_fields(types, &typed::fields_of(types, merged));
    let after = typed::with_named_fields(types, &typed::fields_of(types, &pruned));
    typed::remove(types, merged, &before.difference(&after).intersection(&last_fields))
}

/// The paths of the fields that client-side apply set last and that still have those values.
fn last_applied_fields(context: &WriteContext<'_>, types: &Types, live: &Value) -> Option<Vec<String>> {
    let text = metadata(live)?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
    let last = crate::decode::json(text.as_bytes()).ok()?.value;
    if last.get("apiVersion")?.as_str()? != context.api_version || !typed::check(types, &last).is_empty() {
        return None;
    }
    let difference = typed::compare(types, &last, live);
    let same = typed::fields_of(types, &last)
        .difference(&difference.modified)
        .difference(&difference.added)
        .difference(&difference.removed);
    Some(same.paths().iter().map(|p| show_path(p)).collect())
}

/// Updates the annotation of client-side apply, if there is one.
fn refresh_last_applied(object: &mut Value, config: &Value) {
    let annotations =
        object.get_mut("metadata").and_then(|m| m.get_mut("annotations")).and_then(Value::as_object_mut);
    let Some(annotations) =
        annotations.filter(|a| a.get(LAST_APPLIED).and_then(Value::as_str).is_some_and(|s| !s.is_empty()))
    else {
        return;
    };
    let mut config = config.clone();
    if let Some(given) =
        config.get_mut("metadata").and_then(|m| m.get_mut("annotations")).and_then(Value::as_object_mut)
    {
        given.remove(LAST_APPLIED);
    }
    let text = format!("{config}\n");
    if text.len() > LAST_APPLIED_MAX {
        annotations.remove(LAST_APPLIED);
    } else {
        annotations.insert(LAST_APPLIED.to_owned(), Value::from(text));
    }
}

#[cfg(test)]
mod tests;
