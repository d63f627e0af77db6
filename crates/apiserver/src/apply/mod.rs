//! Server-side apply and field ownership.
//!
//! Every write is attributed: an apply owns what its configuration says, any other write owns what it changed. An apply
//! takes away what its manager applied before and no longer says, unless someone else owns it; it is refused when it
//! would change a field of another manager, unless forced. All of it works on plain values and [`Types`], which say how
//! lists and maps of the kind merge.

use serde_json::{Map, Value};

pub mod managers;
pub mod set;
pub mod step;
pub mod types;
mod walk;

pub use managers::{Identity, Operation, Owner, Owners};
pub use set::FieldSet;
pub use types::Types;

use set::show_path;
use step::Step;
use walk::Difference;

/// The annotation in which client-side `kubectl apply` keeps its last configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// An annotation larger than this is dropped rather than kept up to date.
const LAST_APPLIED_MAX: usize = 256 << 10;

/// How a write happens: everything that is not the object.
#[derive(Clone, Copy)]
pub struct Writing<'a> {
    /// The types of each served version, the version of this write among them. A manager whose version is no longer
    /// served loses its entry.
    pub versions: &'a [(&'a str, &'a Types)],
    /// `apiVersion` of this write.
    pub api_version: &'a str,
    /// The kind, for messages.
    pub kind: &'a str,
    /// The subresource; empty for the main endpoint.
    pub subresource: &'a str,
    /// Fields that this endpoint throws away (`status` on the main endpoint, `spec` on the status endpoint); they are
    /// never owned through it.
    pub reset: &'a FieldSet,
    /// The time of the write, RFC 3339 in whole seconds.
    pub now: &'a str,
}

/// One field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The manager, described: `"kubectl" using v1`.
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

/// An apply that cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Other managers own fields that would change: 409 with one cause per conflict.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// The request contradicts itself: 400.
    #[error("{0}")]
    BadRequest(String),
    /// The configuration does not fit the type. Kubernetes answers 500 without a reason.
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

/// Fields that nobody owns: identity and what the server itself writes.
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
            set.insert(&[Step::field("metadata"), Step::field(field)]);
        }
        set
    })
}

impl<'a> Writing<'a> {
    fn types(&self, version: &str) -> Option<&'a Types> {
        self.versions.iter().find(|(v, _)| *v == version).map(|(_, t)| *t)
    }

    fn own_types(&self) -> Result<&'a Types, ApplyError> {
        self.types(self.api_version)
            .ok_or_else(|| ApplyError::BadRequest(format!("no types for version {}", self.api_version)))
    }

    fn identity(&self, manager: &str, operation: Operation) -> Identity {
        Identity::new(manager, operation, self.api_version, self.subresource)
    }

    /// Drops entries of versions that are gone, and aligns the others with types that became atomic.
    fn reconcile(&self, owners: &mut Owners) {
        owners.retain(|o| self.types(&o.api_version).is_some());
        for owner in owners.iter_mut() {
            if let Some(aligned) =
                self.types(&owner.api_version).and_then(|t| walk::reconcile(t, &owner.fields))
            {
                owner.fields = aligned;
            }
        }
    }

    /// Takes from all managers but `own` what the write changed and removed. Without force, what it would change is a
    /// conflict.
    fn settle(
        &self,
        live: &Value,
        new: &Value,
        owners: &mut Owners,
        own: Option<&Identity>,
        force: bool,
    ) -> Result<Difference, ApplyError> {
        let types = self.own_types()?;
        let difference = walk::compare(types, live, new).without(self.reset);
        let mut others: Vec<(&str, Difference)> = Vec::new();
        let mut conflicts = Vec::new();
        let mut losses = Vec::new();
        for owner in owners.iter().filter(|o| Some(&o.identity) != own) {
            let changed = if owner.api_version == self.api_version {
                &difference
            } else {
                if !others.iter().any(|(v, _)| *v == owner.api_version) {
                    let Some(types) = self.types(&owner.api_version) else { continue };
                    others.push((owner.api_version.as_str(), walk::compare(types, live, new)));
                }
                match others.iter().find(|(v, _)| *v == owner.api_version) {
                    Some((_, difference)) => difference,
                    None => continue,
                }
            };
            let lost = owner.fields.intersection(&changed.modified.union(&changed.added));
            if !lost.is_empty() {
                conflicts.extend(
                    lost.paths()
                        .iter()
                        .map(|p| Conflict { manager: owner.identity.describe(), field: show_path(p) }),
                );
            }
            let kept = owner.fields.difference(&lost).difference(&changed.removed);
            losses.push((owner.identity.clone(), kept));
        }
        if !force && !conflicts.is_empty() {
            conflicts.sort_by(|a, b| a.manager.cmp(&b.manager));
            return Err(ApplyError::Conflicts(conflicts));
        }
        for (identity, kept) in losses {
            if let Some(owner) = owners.iter_mut().find(|o| o.identity == identity) {
                owner.fields = kept;
            }
        }
        owners.drop_empty();
        Ok(difference)
    }

    /// Records an update of `live` to `new` for `manager`.
    fn record(
        &self,
        live: &Value,
        new: &Value,
        owners: &mut Owners,
        manager: &str,
    ) -> Result<(), ApplyError> {
        self.reconcile(owners);
        let difference = self.settle(live, new, owners, None, true)?;
        let taken = difference
            .modified
            .union(&difference.added)
            .recursive_difference(self.reset)
            .difference(never_owned());
        if !taken.is_empty() {
            let identity = self.identity(manager, Operation::Update);
            let fields = match owners.get(&identity) {
                Some(before) => before.fields.union(&taken),
                None => taken,
            };
            owners.set(Owner {
                identity,
                api_version: self.api_version.to_owned(),
                time: Some(self.now.to_owned()),
                fields,
            });
        }
        owners.cap();
        Ok(())
    }
}

fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata").and_then(Value::as_object)
}

fn managed_of(object: &Value) -> Option<&Value> {
    metadata(object)?.get("managedFields")
}

fn set_managed(object: &mut Value, owners: &Owners) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match owners.encode() {
        Some(managed) => drop(metadata.insert("managedFields".to_owned(), managed)),
        None => drop(metadata.remove("managedFields")),
    }
}

fn blank(writing: &Writing<'_>) -> Value {
    serde_json::json!({"apiVersion": writing.api_version, "kind": writing.kind, "metadata": {}})
}

/// Attributes a write that is no apply: a create (`live` is `None`), an update or a patch. `new` is the object about to be
/// stored; its `managedFields` are replaced. Never fails: what cannot be read is forgotten, as Kubernetes does.
pub fn update(writing: &Writing<'_>, live: Option<&Value>, new: &mut Value, manager: &str) {
    let live_managed = live.and_then(managed_of);
    let mut owners = if !writing.subresource.is_empty() {
        Owners::decode(live_managed).unwrap_or_default()
    } else {
        let given = managed_of(new);
        let entries = given.and_then(Value::as_array).map(Vec::as_slice);
        match entries {
            // An empty list, or one empty entry, asks to forget all owners.
            Some([]) => Owners::default(),
            Some([Value::Object(only)]) if only.is_empty() => Owners::default(),
            _ => match Owners::decode(given) {
                Ok(owners) if !owners.is_empty() => owners,
                _ => Owners::decode(live_managed).unwrap_or_default(),
            },
        }
    };
    if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    // An existing object without owners stays without: it is not tracked.
    if owners.is_empty() && live.is_some() {
        return;
    }
    let empty = blank(writing);
    if writing.record(live.unwrap_or(&empty), new, &mut owners, manager).is_ok() {
        set_managed(new, &owners);
    }
}

/// Applies a configuration. `live` is `None` when the object does not exist yet. Returns the object to be stored, with its
/// owners; defaults and validation are still to come.
pub fn apply(
    writing: &Writing<'_>,
    live: Option<&Value>,
    config: &Value,
    manager: &str,
    force: bool,
) -> Result<Value, ApplyError> {
    check_request(writing, config)?;
    let types = writing.own_types()?;
    let complaints = walk::check(types, config);
    if !complaints.is_empty() {
        return Err(ApplyError::Untyped(untyped(writing, config, &complaints)));
    }
    let empty = blank(writing);
    let exists = live.is_some();
    let live = live.unwrap_or(&empty);
    let mut owners = Owners::decode(managed_of(live))
        .map_err(|e| ApplyError::Untyped(format!("failed to decode managed fields: {e}")))?;
    if owners.is_empty() && exists {
        writing.record(&empty, live, &mut owners, "before-first-apply")?;
    }
    let attempt = attempt(writing, types, live, config, owners.clone(), manager, force);
    let mut object = match attempt {
        Err(ApplyError::Conflicts(conflicts)) if manager == "kubectl" => {
            // A change from client-side to server-side apply is no conflict of kubectl with itself.
            let allowed = last_applied_fields(writing, types, live).unwrap_or_default();
            let left: Vec<Conflict> = conflicts.into_iter().filter(|c| !allowed.contains(&c.field)).collect();
            if !left.is_empty() {
                return Err(ApplyError::Conflicts(left));
            }
            self::attempt(writing, types, live, config, owners, manager, true)?
        }
        other => other?,
    };
    if manager == "kubectl" {
        refresh_last_applied(&mut object, config);
    }
    Ok(object)
}

fn check_request(writing: &Writing<'_>, config: &Value) -> Result<(), ApplyError> {
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion") != writing.api_version || text("kind") != writing.kind {
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

/// `v1` is written `/v1` where Go prints a group and version.
fn slashed(api_version: &str) -> String {
    if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") }
}

fn untyped(writing: &Writing<'_>, config: &Value, complaints: &[String]) -> String {
    let text =
        |key: &str| metadata(config).and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or_default();
    let said = match complaints {
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    };
    format!(
        "failed to create typed patch object ({}/{}; {}, Kind={}): {said}",
        text("namespace"),
        text("name"),
        slashed(writing.api_version),
        writing.kind
    )
}

fn attempt(
    writing: &Writing<'_>,
    types: &Types,
    live: &Value,
    config: &Value,
    mut owners: Owners,
    manager: &str,
    force: bool,
) -> Result<Value, ApplyError> {
    writing.reconcile(&mut owners);
    let identity = writing.identity(manager, Operation::Apply);
    let merged = walk::merge(types, live, config)
        .map_err(|e| ApplyError::Untyped(format!("failed to merge config: {e}")))?;
    let last = owners.get(&identity).cloned();
    let fields = walk::fields_of(types, config).recursive_difference(writing.reset);
    let time = last.as_ref().and_then(|l| l.time.clone());
    owners.set(Owner {
        identity: identity.clone(),
        api_version: writing.api_version.to_owned(),
        time,
        fields,
    });
    let mut object = match &last {
        Some(last) if !last.fields.is_empty() => prune(writing, &merged, &owners, last),
        _ => merged,
    };
    writing.settle(live, &object, &mut owners, Some(&identity), force)?;
    let changed = &object != live;
    if let Some(owner) = owners.iter_mut().find(|o| o.identity == identity) {
        owner.fields = owner.fields.difference(never_owned());
        if changed {
            owner.time = Some(writing.now.to_owned());
        }
    }
    owners.drop_empty();
    if !object.get("metadata").is_some_and(Value::is_object) {
        object["metadata"] = Value::Object(Map::new());
    }
    set_managed(&mut object, &owners);
    Ok(object)
}

/// Takes away what the manager applied before, does not apply now, and nobody else owns.
fn prune(writing: &Writing<'_>, merged: &Value, owners: &Owners, last: &Owner) -> Value {
    let Some(types) = writing.types(&last.api_version) else { return merged.clone() };
    let last_fields = walk::with_named_fields(types, &last.fields);
    let mut pruned = walk::remove(types, merged, &last_fields);
    // What someone still owns comes back, version by version.
    let mut versions: Vec<&str> = vec![&last.api_version];
    for owner in owners.iter() {
        if !versions.contains(&owner.api_version.as_str()) {
            versions.push(&owner.api_version);
        }
    }
    for version in versions {
        let Some(types) = writing.types(version) else { continue };
        let mut owned = FieldSet::default();
        let mut any = false;
        for owner in owners.iter().filter(|o| o.api_version == version) {
            owned = owned.union(&owner.fields);
            any = true;
        }
        if !any {
            continue;
        }
        let before = walk::with_named_fields(types, &walk::fields_of(types, merged));
        let after = walk::with_named_fields(types, &walk::fields_of(types, &pruned));
        let gone = before.difference(&after.union(&walk::with_named_fields(types, &owned)));
        pruned = walk::remove(types, merged, &gone);
    }
    // What was never this manager's to take comes back as well.
    let before = walk::with_named_fields(types, &walk::fields_of(types, merged));
    let after = walk::with_named_fields(types, &walk::fields_of(types, &pruned));
    walk::remove(types, merged, &before.difference(&after).intersection(&last_fields))
}

/// The fields that client-side apply set last and that still have those values, as conflict paths.
fn last_applied_fields(writing: &Writing<'_>, types: &Types, live: &Value) -> Option<Vec<String>> {
    let text = metadata(live)?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
    let last = crate::schema::decode::decode(text.as_bytes()).ok()?.value;
    if last.get("apiVersion")?.as_str()? != writing.api_version || !walk::check(types, &last).is_empty() {
        return None;
    }
    let difference = walk::compare(types, &last, live);
    let same = walk::fields_of(types, &last)
        .difference(&difference.modified)
        .difference(&difference.added)
        .difference(&difference.removed);
    Some(same.paths().iter().map(|p| show_path(p)).collect())
}

/// Keeps the annotation of client-side apply true, where there is one.
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
