//! `metadata.managedFields`: who wrote which fields, read from an object and written back.

use serde_json::{Map, Value, json};

use super::set::FieldSet;

/// More entries from updates than this are merged into one of [`ANCIENT`].
const UPDATERS_MAX: usize = 10;
/// The manager that inherits the fields of the oldest updates.
const ANCIENT: &str = "ancient-changes";

/// How a manager came to its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Any other write.
    Update,
}

/// Who a manager is. Two writes with the same identity share one entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The name given by the client.
    pub manager: String,
    /// Apply or Update.
    pub operation: Operation,
    /// Updates in another version are another entry; applies are not.
    pub version: Option<String>,
    /// The subresource written through; empty for the main endpoint.
    pub subresource: String,
}

impl Identity {
    /// The identity of a write.
    pub fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        Self {
            manager: if manager.is_empty() { "unknown".to_owned() } else { manager.to_owned() },
            operation,
            version: (operation == Operation::Update).then(|| api_version.to_owned()),
            subresource: subresource.to_owned(),
        }
    }

    /// As it is named in a conflict: `"kubectl" using apps/v1`.
    pub fn describe(&self) -> String {
        let mut out = crate::schema::error::quote(&self.manager);
        if !self.subresource.is_empty() {
            out.push_str(&format!(" with subresource {}", crate::schema::error::quote(&self.subresource)));
        }
        if let Some(version) = &self.version {
            out.push_str(&format!(" using {version}"));
        }
        out
    }
}

/// One entry of `managedFields`.
#[derive(Debug, Clone, PartialEq)]
pub struct Owner {
    /// Who.
    pub identity: Identity,
    /// The version in which the fields are named.
    pub api_version: String,
    /// When the entry last changed, RFC 3339.
    pub time: Option<String>,
    /// What.
    pub fields: FieldSet,
}

/// All entries of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Owners {
    owners: Vec<Owner>,
}

impl Owners {
    /// True without any entry.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Owner> {
        self.owners.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Owner> {
        self.owners.iter_mut()
    }

    pub(crate) fn get(&self, identity: &Identity) -> Option<&Owner> {
        self.owners.iter().find(|o| &o.identity == identity)
    }

    /// Replaces or adds an entry; one without fields goes.
    pub(crate) fn set(&mut self, owner: Owner) {
        self.owners.retain(|o| o.identity != owner.identity);
        if !owner.fields.is_empty() {
            self.owners.push(owner);
        }
    }

    pub(crate) fn drop_empty(&mut self) {
        self.owners.retain(|o| !o.fields.is_empty());
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&Owner) -> bool) {
        self.owners.retain(keep);
    }

    /// Reads `managedFields`; the error says which entry is not one.
    pub fn decode(managed: Option<&Value>) -> Result<Self, String> {
        let mut owners = Self::default();
        for (i, entry) in managed.and_then(Value::as_array).into_iter().flatten().enumerate() {
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
                        crate::schema::error::quote(other)
                    ));
                }
            }
            let fields = match entry.get("fieldsV1") {
                Some(fields) if !fields.is_null() => FieldSet::decode(fields).map_err(|e| e.to_string())?,
                _ => FieldSet::default(),
            };
            let mut identity = Identity::new(text("manager"), operation, api_version, text("subresource"));
            identity.manager = text("manager").to_owned();
            let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
            owners.owners.retain(|o| o.identity != identity);
            owners.owners.push(Owner { identity, api_version: api_version.to_owned(), time, fields });
        }
        Ok(owners)
    }

    /// The wire form: applies before updates, then by time, manager, version and subresource. `None` without entries.
    pub fn encode(&self) -> Option<Value> {
        if self.owners.is_empty() {
            return None;
        }
        let mut sorted: Vec<&Owner> = self.owners.iter().collect();
        sorted.sort_by(|a, b| {
            let key = |o: &Owner| (o.identity.operation, seconds(o.time.as_deref()));
            key(a)
                .cmp(&key(b))
                .then_with(|| a.identity.manager.cmp(&b.identity.manager))
                .then_with(|| a.api_version.cmp(&b.api_version))
                .then_with(|| a.identity.subresource.cmp(&b.identity.subresource))
        });
        Some(Value::Array(sorted.into_iter().map(encode_owner).collect()))
    }

    /// Merges the oldest updates so that no more than ten remain.
    pub(crate) fn cap(&mut self) {
        let mut updaters: Vec<Owner> = Vec::new();
        let mut kept: Vec<Owner> = Vec::new();
        for owner in std::mem::take(&mut self.owners) {
            if owner.identity.operation == Operation::Update {
                updaters.push(owner)
            } else {
                kept.push(owner)
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
            let bucket = Identity::new(ANCIENT, Operation::Update, &version, "");
            let young = updaters.remove(at);
            count -= 1;
            // The oldest of a version becomes the bucket, unless there is one already.
            let into = updaters.iter().position(|o| o.identity == bucket).unwrap_or(first);
            let old = &mut updaters[into];
            old.fields = old.fields.union(&young.fields);
            old.identity = bucket;
            old.time = young.time;
        }
        kept.append(&mut updaters);
        self.owners = kept;
    }
}

fn seconds(time: Option<&str>) -> i64 {
    time.and_then(|t| t.parse::<jiff::Timestamp>().ok()).map_or(0, |t| t.as_second())
}

fn encode_owner(owner: &Owner) -> Value {
    let mut map = Map::new();
    map.insert("manager".to_owned(), json!(owner.identity.manager));
    map.insert(
        "operation".to_owned(),
        json!(if owner.identity.operation == Operation::Apply { "Apply" } else { "Update" }),
    );
    map.insert("apiVersion".to_owned(), json!(owner.api_version));
    map.insert("fieldsType".to_owned(), json!("FieldsV1"));
    map.insert("fieldsV1".to_owned(), owner.fields.encode());
    if let Some(time) = &owner.time {
        map.insert("time".to_owned(), json!(time));
    }
    if !owner.identity.subresource.is_empty() {
        map.insert("subresource".to_owned(), json!(owner.identity.subresource));
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updater(i: usize) -> Owner {
        Owner {
            identity: Identity::new(&format!("m{i:02}"), Operation::Update, "v1", ""),
            api_version: "v1".to_owned(),
            time: Some(format!("2024-01-01T00:00:{i:02}Z")),
            fields: FieldSet::of_fields(&[&["spec", &format!("f{i}")]]),
        }
    }

    #[test]
    fn the_oldest_updates_become_ancient_changes() {
        let mut owners = Owners { owners: (0..13).map(updater).collect() };
        owners.cap();
        assert_eq!(owners.owners.len(), UPDATERS_MAX);
        let ancient = owners.iter().find(|o| o.identity.manager == ANCIENT).unwrap();
        assert_eq!(
            ancient.fields,
            FieldSet::of_fields(&[&["spec", "f0"], &["spec", "f1"], &["spec", "f2"], &["spec", "f3"]])
        );
        assert_eq!(ancient.time.as_deref(), Some("2024-01-01T00:00:03Z"));
    }

    #[test]
    fn entries_are_sorted_by_operation_then_time() {
        let mut apply = updater(20);
        apply.identity = Identity::new("z", Operation::Apply, "v1", "status");
        let owners = Owners { owners: vec![updater(2), updater(1), apply] };
        let encoded = owners.encode().unwrap();
        let names: Vec<&str> =
            encoded.as_array().unwrap().iter().map(|e| e["manager"].as_str().unwrap()).collect();
        assert_eq!(names, ["z", "m01", "m02"]);
        assert_eq!(Owners::decode(Some(&encoded)).unwrap().encode().unwrap(), encoded);
        assert_eq!(encoded[0]["subresource"], "status");
    }

    #[test]
    fn entries_that_are_none_are_refused() {
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
            assert_eq!(Owners::decode(Some(&json!([entry]))).unwrap_err(), words);
        }
    }
}
