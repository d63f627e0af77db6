//! The objects of one plane of the fake server, with revisions and a history.

use std::collections::BTreeMap;

use bytes::Bytes;
use polis_apimachinery::patch::merge;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::QueryParams;
use super::body::{self, FakeBody};

/// The collection of a kind: `group/version` and plural.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Collection {
    pub api: String,
    pub plural: String,
}

impl Collection {
    pub fn new(api: &str, plural: &str) -> Self {
        Self { api: api.to_owned(), plural: plural.to_owned() }
    }
}

/// The state of a store at one revision, as a backup has it.
pub struct Backup {
    revision: u64,
    objects: BTreeMap<Collection, BTreeMap<String, Value>>,
}

pub struct StatusError {
    pub code: u16,
    reason: String,
    message: String,
}

impl StatusError {
    pub fn new(code: u16, reason: &str, message: &str) -> Self {
        Self { code, reason: reason.to_owned(), message: message.to_owned() }
    }

    pub fn status(&self) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code, "reason": self.reason, "message": self.message})
    }
}

struct HistoryEvent {
    revision: u64,
    event_type: &'static str,
    collection: Collection,
    object: Value,
}

struct Watcher {
    collection: Collection,
    namespace: Option<String>,
    label: Option<(String, String)>,
    lines: UnboundedSender<Bytes>,
    /// The watch has sent the events up to this revision.
    sent: u64,
}

#[derive(Default)]
pub struct Store {
    revision: u64,
    objects: BTreeMap<Collection, BTreeMap<String, Value>>,
    history: Vec<HistoryEvent>,
    compacted: u64,
    watchers: Vec<Watcher>,
    /// Open watches send no events.
    late: bool,
    /// Resource versions are not decimal integers.
    opaque_versions: bool,
}

type StoreResult = Result<Value, StatusError>;

fn id(namespace: Option<&str>, name: &str) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

fn id_of(object: &Value) -> String {
    let meta = &object["metadata"];
    id(meta["namespace"].as_str(), meta["name"].as_str().unwrap_or_default())
}

fn not_found() -> StatusError {
    StatusError::new(404, "NotFound", "not found")
}

fn selects(namespace: Option<&str>, label: Option<&(String, String)>, object: &Value) -> bool {
    namespace.is_none_or(|namespace| object["metadata"]["namespace"] == namespace)
        && label.is_none_or(|(name, value)| object["metadata"]["labels"][name] == value.as_str())
}

fn line(event_type: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": event_type, "object": object})))
}

fn label_of(query: &QueryParams) -> Option<(String, String)> {
    let (name, value) = query.get("labelSelector")?.split_once('=')?;
    Some((name.to_owned(), value.to_owned()))
}

impl Store {
    pub fn objects(&self, collection: &Collection) -> BTreeMap<String, Value> {
        self.objects.get(collection).cloned().unwrap_or_default()
    }

    pub fn end_watches(&mut self) {
        self.watchers.clear();
    }

    pub fn set_late(&mut self, late: bool) {
        self.late = late;
        self.send_events();
    }

    pub fn set_opaque_versions(&mut self) {
        self.opaque_versions = true;
    }

    fn version(&self, revision: u64) -> String {
        if self.opaque_versions { format!("r{revision}") } else { revision.to_string() }
    }

    pub fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.revision;
        // The compacted revision must be newer than any that a watcher has received, or resuming would still
        // succeed.
        self.revision += 1;
        self.compacted = self.revision;
    }

    pub fn backup(&self) -> Backup {
        Backup { revision: self.revision, objects: self.objects.clone() }
    }

    /// Replaces the state by an earlier one, as a restored etcd has it: watches end, and revisions continue
    /// from that of the backup.
    pub fn restore(&mut self, backup: &Backup) {
        self.end_watches();
        (self.revision, self.objects) = (backup.revision, backup.objects.clone());
        self.history.retain(|event| event.revision <= backup.revision);
    }

    pub fn watches(&mut self) -> usize {
        self.watchers.retain(|watcher| !watcher.lines.is_closed());
        self.watchers.len()
    }

    /// Creates or replaces an object without preconditions.
    pub fn put(&mut self, collection: &Collection, kind: &str, mut object: Value) -> Value {
        let id = id_of(&object);
        match self.objects.get(collection).and_then(|objects| objects.get(&id)) {
            Some(existing) => {
                object["metadata"]["uid"] = existing["metadata"]["uid"].clone();
                object["metadata"]["creationTimestamp"] = existing["metadata"]["creationTimestamp"].clone();
                object["apiVersion"] = existing["apiVersion"].clone();
                object["kind"] = existing["kind"].clone();
                self.record("MODIFIED", collection, object)
            }
            None => {
                self.set_initial_metadata(collection, kind, &mut object);
                self.record("ADDED", collection, object)
            }
        }
    }

    pub fn remove(&mut self, collection: &Collection, id: &str) {
        if let Some(object) = self.objects.get_mut(collection).and_then(|objects| objects.remove(id)) {
            self.record("DELETED", collection, object);
        }
    }

    pub fn get(&self, collection: &Collection, namespace: Option<&str>, name: &str) -> StoreResult {
        let objects = self.objects.get(collection).ok_or_else(not_found)?;
        objects.get(&id(namespace, name)).cloned().ok_or_else(not_found)
    }

    pub fn list(
        &self,
        collection: &Collection,
        kind: &str,
        namespace: Option<&str>,
        query: &QueryParams,
        page: usize,
    ) -> StoreResult {
        let after = query.get("continue").unwrap_or_default();
        let limit = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX).min(page);
        let label = label_of(query);
        let all = self.objects(collection);
        let mut rest = all
            .iter()
            .filter(|(id, object)| id.as_str() > after && selects(namespace, label.as_ref(), object))
            .map(|(id, object)| {
                // As with built-in kinds, items of a list have no apiVersion and kind.
                let mut item = object.clone();
                item.as_object_mut().unwrap().retain(|field, _| field != "apiVersion" && field != "kind");
                (id, item)
            });
        let items: Vec<(&String, Value)> = rest.by_ref().take(limit).collect();
        let next = if rest.next().is_some() { items.last().map_or("", |(id, _)| id.as_str()) } else { "" };
        let items: Vec<&Value> = items.iter().map(|(_, item)| item).collect();
        let meta = json!({"resourceVersion": self.version(self.revision), "continue": next});
        Ok(
            json!({"kind": format!("{kind}List"), "apiVersion": collection.api, "metadata": meta, "items": items}),
        )
    }

    pub fn watch(
        &mut self,
        collection: &Collection,
        namespace: Option<&str>,
        query: &QueryParams,
    ) -> Result<FakeBody, StatusError> {
        let (lines, body) = unbounded_channel();
        let label = label_of(query);
        let mut sent = self.revision;
        if query.get("sendInitialEvents") == Some("true") {
            let send = |bytes| {
                let _ = lines.send(bytes);
            };
            for object in
                self.objects(collection).values().filter(|object| selects(namespace, label.as_ref(), object))
            {
                send(line("ADDED", object));
            }
            let meta = json!({"resourceVersion": self.version(self.revision), "annotations": {"k8s.io/initial-events-end": "true"}});
            send(line("BOOKMARK", &json!({"metadata": meta})));
        } else {
            let from = query.get("resourceVersion").unwrap_or_default();
            sent = from.trim_start_matches('r').parse().unwrap_or(0);
            if sent < self.compacted {
                return Err(StatusError::new(410, "Expired", "too old resource version"));
            }
        }
        let namespace = namespace.map(str::to_owned);
        self.watchers.push(Watcher { collection: collection.clone(), namespace, label, lines, sent });
        self.send_events();
        Ok(body::streamed(body))
    }

    /// Sends the events that open watches have not sent yet.
    fn send_events(&mut self) {
        if self.late {
            return;
        }
        let (history, revision) = (&self.history, self.revision);
        self.watchers.retain_mut(|watcher| {
            let unsent = history.iter().filter(|event| {
                event.revision > watcher.sent
                    && event.collection == watcher.collection
                    && selects(watcher.namespace.as_deref(), watcher.label.as_ref(), &event.object)
            });
            let open = unsent
                .map(|event| line(event.event_type, &event.object))
                .all(|line| watcher.lines.send(line).is_ok());
            // A watch from a future revision stays silent until the store reaches it.
            watcher.sent = watcher.sent.max(revision);
            open
        });
    }

    pub fn create(
        &mut self,
        collection: &Collection,
        kind: &str,
        namespace: Option<&str>,
        mut object: Value,
    ) -> StoreResult {
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = namespace.into();
        }
        let id = id_of(&object);
        if self.objects.get(collection).is_some_and(|objects| objects.contains_key(&id)) {
            return Err(StatusError::new(409, "AlreadyExists", "already exists"));
        }
        object.as_object_mut().unwrap().remove("status");
        self.set_initial_metadata(collection, kind, &mut object);
        Ok(self.record("ADDED", collection, object))
    }

    pub fn update(
        &mut self,
        collection: &Collection,
        namespace: Option<&str>,
        name: &str,
        mut object: Value,
        status: bool,
    ) -> StoreResult {
        let existing = self.get(collection, namespace, name)?;
        self.check_preconditions(&existing, &object["metadata"])?;
        if status {
            let status = object["status"].take();
            object = existing.clone();
            object["status"] = status;
        } else if let Some(status) = existing.get("status") {
            object["status"] = status.clone();
        }
        if object == existing {
            return Ok(existing);
        }
        Ok(self.update_or_remove(collection, object))
    }

    pub fn patch(
        &mut self,
        collection: &Collection,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        patch: &Value,
    ) -> StoreResult {
        let existing = match self.get(collection, namespace, name) {
            Ok(existing) => existing,
            // Server-side apply creates a missing object.
            Err(_) if patch.get("apiVersion").is_some() => {
                return self.create(collection, kind, namespace, patch.clone());
            }
            Err(refused) => return Err(refused),
        };
        self.check_preconditions(&existing, &patch["metadata"])?;
        let mut object = merge::patch(&existing, patch).expect("a merge patch of an object");
        object["metadata"]["resourceVersion"] = existing["metadata"]["resourceVersion"].clone();
        if object == existing {
            return Ok(existing);
        }
        Ok(self.update_or_remove(collection, object))
    }

    pub fn delete(
        &mut self,
        collection: &Collection,
        namespace: Option<&str>,
        name: &str,
        options: &Value,
    ) -> StoreResult {
        let mut object = self.get(collection, namespace, name)?;
        self.check_preconditions(&object, &options["preconditions"])?;
        if object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty()) {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            return Ok(self.record("MODIFIED", collection, object));
        }
        self.remove(collection, &id(namespace, name));
        Ok(json!({"kind": "Status", "status": "Success"}))
    }

    /// Stores the object, or removes it if it is being deleted and has no finalizer left.
    fn update_or_remove(&mut self, collection: &Collection, object: Value) -> Value {
        let deleting = object["metadata"].get("deletionTimestamp").is_some();
        let has_finalizers =
            object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        if deleting && !has_finalizers {
            self.remove(collection, &id_of(&object));
            return object;
        }
        self.record("MODIFIED", collection, object)
    }

    fn check_preconditions(&self, existing: &Value, conditions: &Value) -> Result<(), StatusError> {
        for field in ["uid", "resourceVersion"] {
            let expected = &conditions[field];
            if !expected.is_null() && *expected != existing["metadata"][field] {
                return Err(StatusError::new(409, "Conflict", &format!("{field} is no longer {expected}")));
            }
        }
        Ok(())
    }

    fn set_initial_metadata(&self, collection: &Collection, kind: &str, object: &mut Value) {
        object["apiVersion"] = collection.api.clone().into();
        object["kind"] = kind.into();
        object["metadata"]["uid"] = format!("uid-{}", self.revision + 1).into();
        object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["managedFields"] = json!([{"manager": "fake", "fieldsV1": {"f:data": {}}}]);
    }

    fn record(&mut self, event_type: &'static str, collection: &Collection, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.version(self.revision).into();
        if event_type != "DELETED" {
            self.objects.entry(collection.clone()).or_default().insert(id_of(&object), object.clone());
        }
        self.history.push(HistoryEvent {
            revision: self.revision,
            event_type,
            collection: collection.clone(),
            object: object.clone(),
        });
        self.send_events();
        object
    }
}
