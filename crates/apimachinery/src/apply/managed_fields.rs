//! Decoding and encoding of `metadata.managedFields`.

use serde_json::{Map, Value, json};

use super::field_set::FieldSet;

/// Maximum number of `Update` entries. Older ones are merged into an entry of [`ANCIENT`].
const UPDATERS_MAX: usize = 10;
/// The manager of the merged entries of the oldest updates.
const ANCIENT: &str = "ancient-changes";

/// The operation that created an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Any other write.
    Update,
}

/// The identity of a manager. Writes with the same identity share one entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerIdentity {
    /// The field manager of the request.
    pub manager: String,
    /// Apply or Update.
    pub operation: Operation,
    /// The version, for updates only: updates in different versions have separate entries, applies do not.
    pub version: Option<String>,
    /// The subresource; empty for the main endpoint.
    pub subresource: String,
}

impl ManagerIdentity {
    /// The identity of a write.
    pub fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        Self {
            manager: if manager.is_empty() { "unknown".to_owned() } else { manager.to_owned() },
            operation,
            version: (operation == Operation::Update).then(|| api_version.to_owned()),
            subresource: subresource.to_owned(),
        }
    }

    /// The description in a conflict: `"kubectl" using apps/v1`.
    pub fn describe(&self) -> String {
        let mut out = crate::go_format::quote(&self.manager);
        if !self.subresource.is_empty() {
            out.push_str(&format!(" with subresource {}", crate::go_format::quote(&self.subresource)));
        }
        if let Some(version) = &self.version {
            out.push_str(&format!(" using {version}"));
        }
        out
    }
}

/// One entry of `managedFields`.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagedFieldsEntry {
    /// The manager.
    pub identity: ManagerIdentity,
    /// The version of the fields.
    pub api_version: String,
    /// The time of the last change, RFC 3339.
    pub time: Option<String>,
    /// The owned fields.
    pub fields: FieldSet,
}

/// The `managedFields` of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ManagedFields {
    entries: Vec<ManagedFieldsEntry>,
}

impl ManagedFields {
    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &ManagedFieldsEntry> {
        self.entries.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ManagedFieldsEntry> {
        self.entries.iter_mut()
    }

    pub(crate) fn get(&self, identity: &ManagerIdentity) -> Option<&ManagedFieldsEntry> {
        self.entries.iter().find(|o| &o.identity == identity)
    }

    /// Adds or replaces an entry; an entry without fields is removed.
    pub(crate) fn set(&mut self, entry: ManagedFieldsEntry) {
        self.entries.retain(|o| o.identity != entry.identity);
        if !entry.fields.is_empty() {
            self.entries.push(entry);
        }
    }

    pub(crate) fn drop_empty(&mut self) {
        self.entries.retain(|o| !o.fields.is_empty());
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&ManagedFieldsEntry) -> bool) {
        self.entries.retain(keep);
    }

    /// Decodes `managedFields`. The error names the invalid entry.
    pub fn decode(value: Option<&Value>) -> Result<Self, String> {
        let mut managed = Self::default();
        for (i, entry) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err("operation must be `Apply` or `Update`".to_owned()),
            };
            let api_version = text("apiVersion");
            if api_version.is_empty() {
                return Err("apiVersion must not be empty".to_owned());
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(format!("missing fieldsType in managed fields entry {i}")),
                other => {
                    return Err(format!(
                        "invalid fieldsType {} in managed fields entry {i}",
                        crate::go_format::quote(other)
                    ));
                }
            }
            let fields = match entry.get("fieldsV1") {
                Some(fields) if !fields.is_null() => FieldSet::decode(fields).map_err(|e| e.to_string())?,
                _ => FieldSet::default(),
            };
            let mut identity =
                ManagerIdentity::new(text("manager"), operation, api_version, text("subresource"));
            identity.manager = text("manager").to_owned();
            let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
            managed.entries.retain(|o| o.identity != identity);
            managed.entries.push(ManagedFieldsEntry {
                identity,
                api_version: api_version.to_owned(),
                time,
                fields,
            });
        }
        Ok(managed)
    }

    /// Encodes the entries: applies before updates, then by time, manager, version and subresource. `None`
    /// without entries.
    pub fn encode(&self) -> Option<Value> {
        if self.entries.is_empty() {
            return None;
        }
        let mut sorted: Vec<&ManagedFieldsEntry> = self.entries.iter().collect();
        sorted.sort_by(|a, b| {
            let key = |o: &ManagedFieldsEntry| (o.identity.operation, seconds(o.time.as_deref()));
            key(a)
                .cmp(&key(b))
                .then_with(|| a.identity.manager.cmp(&b.identity.manager))
                .then_with(|| a.api_version.cmp(&b.api_version))
                .then_with(|| a.identity.subresource.cmp(&b.identity.subresource))
        });
        Some(Value::Array(sorted.into_iter().map(encode_entry).collect()))
    }

    /// Merges the oldest update entries until [`UPDATERS_MAX`] remain.
    pub(crate) fn cap_update_entries(&mut self) {
        let mut updaters: Vec<ManagedFieldsEntry> = Vec::new();
        let mut kept: Vec<ManagedFieldsEntry> = Vec::new();
        for entry in std::mem::take(&mut self.entries) {
            if entry.identity.operation == Operation::Update {
                updaters.push(entry)
            } else {
                kept.push(entry)
            }
        }
        updaters.sort_by(|a, b| {
            (seconds(a.time.as_deref()), &a.identity).cmp(&(seconds(b.time.as_deref()), &b.identity))
        });
        let mut count = updaters.len();
        let mut at = 0;
        while at < updaters.len() && count > UPDATERS_MAX {
            let version = updaters[at].api_version.clone();
            let Some(first) = updaters[..at].iter().position(|o| o.api_version == version) else {
                at += 1;
                continue;
            };
            let bucket = ManagerIdentity::new(ANCIENT, Operation::Update, &version, "");
            let young = updaters.remove(at);
            count -= 1;
            // The oldest entry of a version becomes the bucket, unless a bucket exists.
            let into = updaters.iter().position(|o| o.identity == bucket).unwrap_or(first);
            let old = &mut updaters[into];
            old.fields = old.fields.union(&young.fields);
            old.identity = bucket;
            old.time = young.time;
        }
        kept.append(&mut updaters);
        self.entries = kept;
    }
}

fn seconds(time: Option<&str>) -> i64 {
    time.and_then(|t| t.parse::<jiff::Timestamp>().ok()).map_or(0, |t| t.as_second())
}

fn encode_entry(entry: &ManagedFieldsEntry) -> Value {
    let mut map = Map::new();
    map.insert("manager".to_owned(), json!(entry.identity.manager));
    map.insert(
        "operation".to_owned(),
        json!(if entry.identity.operation == Operation::Apply { "Apply" } else { "Update" }),
    );
    map.insert("apiVersion".to_owned(), json!(entry.api_version));
    map.insert("fieldsType".to_owned(), json!("FieldsV1"));
    map.insert("fieldsV1".to_owned(), entry.fields.encode());
    if let Some(time) = &entry.time {
        map.insert("time".to_owned(), json!(time));
    }
    if !entry.identity.subresource.is_empty() {
        map.insert("subresource".to_owned(), json!(entry.identity.subresource));
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updater(i: usize) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            identity: ManagerIdentity::new(&format!("m{i:02}"), Operation::Update, "v1", ""),
            api_version: "v1".to_owned(),
            time: Some(format!("2024-01-01T00:00:{i:02}Z")),
            fields: FieldSet::of_fields(&[&["spec", &format!("f{i}")]]),
        }
    }

    #[test]
    fn the_oldest_updates_become_ancient_changes() {
        let mut managed = ManagedFields { entries: (0..13).map(updater).collect() };
        managed.cap_update_entries();
        assert_eq!(managed.entries.len(), UPDATERS_MAX);
        let ancient = managed.iter().find(|o| o.identity.manager == ANCIENT).unwrap();
        assert_eq!(
            ancient.fields,
            FieldSet::of_fields(&[&["spec", "f0"], &["spec", "f1"], &["spec", "f2"], &["spec", "f3"]])
        );
        assert_eq!(ancient.time.as_deref(), Some("2024-01-01T00:00:03Z"));
    }

    #[test]
    fn entries_are_sorted_by_operation_then_time() {
        let mut apply = updater(20);
        apply.identity = ManagerIdentity::new("z", Operation::Apply, "v1", "status");
        let managed = ManagedFields { entries: vec![updater(2), updater(1), apply] };
        let encoded = managed.encode().unwrap();
        let names: Vec<&str> =
            encoded.as_array().unwrap().iter().map(|e| e["manager"].as_str().unwrap()).collect();
        assert_eq!(names, ["z", "m01", "m02"]);
        assert_eq!(ManagedFields::decode(Some(&encoded)).unwrap().encode().unwrap(), encoded);
        assert_eq!(encoded[0]["subresource"], "status");
    }

    #[test]
    fn invalid_entries_are_rejected() {
        for (entry, words) in [
            (json!({"operation": "Guess"}), "operation must be `Apply` or `Update`"),
            (json!({"operation": "Apply"}), "apiVersion must not be empty"),
            (
                json!({"operation": "Apply", "apiVersion": "v1"}),
                "missing fieldsType in managed fields entry 0",
            ),
            (
                json!({"operation": "Apply", "apiVersion": "v1", "fieldsType": "X"}),
                "invalid fieldsType \"X\" in managed fields entry 0",
            ),
        ] {
            assert_eq!(ManagedFields::decode(Some(&json!([entry]))).unwrap_err(), words);
        }
    }
}
