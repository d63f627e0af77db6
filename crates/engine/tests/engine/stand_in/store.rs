//! The objects of one plane of the stand-in, with revisions and a history.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::Query;
use super::body::StandInBody;

/// Objects of one kind: `group/version` and plural.
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

pub struct Refusal {
    pub code: u16,
    reason: String,
    message: String,
}

impl Refusal {
    pub fn new(code: u16, reason: &str, message: &str) -> Self {
        Self { code, reason: reason.to_owned(), message: message.to_owned() }
    }

    pub fn status(&self) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code, "reason": self.reason, "message": self.message})
    }
}

struct Past {
    revision: u64,
    what: &'static str,
    collection: Collection,
    object: Value,
}

struct Watcher {
    collection: Collection,
    namespace: Option<String>,
    label: Option<(String, String)>,
    lines: UnboundedSender<Bytes>,
}

#[derive(Default)]
pub struct Store {
    revision: u64,
    objects: BTreeMap<Collection, BTreeMap<String, Value>>,
    history: Vec<Past>,
    forgotten: u64,
    watchers: Vec<Watcher>,
}

type Outcome = Result<Value, Refusal>;

fn id(namespace: Option<&str>, name: &str) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

fn id_of(object: &Value) -> String {
    let meta = &object["metadata"];
    id(meta["namespace"].as_str(), meta["name"].as_str().unwrap_or_default())
}

fn not_found() -> Refusal {
    Refusal::new(404, "NotFound", "not found")
}

fn selects(namespace: Option<&str>, label: Option<&(String, String)>, object: &Value) -> bool {
    namespace.is_none_or(|namespace| object["metadata"]["namespace"] == namespace)
        && label.is_none_or(|(name, value)| object["metadata"]["labels"][name] == value.as_str())
}

fn line(what: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": what, "object": object})))
}

fn label_of(query: &Query) -> Option<(String, String)> {
    let (name, value) = query.get("labelSelector")?.split_once('=')?;
    Some((name.to_owned(), value.to_owned()))
}

impl Store {
    pub fn objects(&self, collection: &Collection) -> BTreeMap<String, Value> {
        self.objects.get(collection).cloned().unwrap_or_default()
    }

    pub fn cut_watches(&mut self) {
        self.watchers.clear();
    }

    pub fn forget_history(&mut self) {
        self.history.clear();
        self.forgotten = self.revision;
        // Something must be newer than what watchers know, or resuming from "now" would still be fine.
        self.revision += 1;
        self.forgotten = self.revision;
    }

    pub fn watches(&mut self) -> usize {
        self.watchers.retain(|watcher| !watcher.lines.is_closed());
        self.watchers.len()
    }

    /// Creates or replaces, whatever is there.
    pub fn put(&mut self, collection: &Collection, kind: &str, mut object: Value) -> Value {
        let id = id_of(&object);
        match self.objects.get(collection).and_then(|objects| objects.get(&id)) {
            Some(standing) => {
                object["metadata"]["uid"] = standing["metadata"]["uid"].clone();
                object["metadata"]["creationTimestamp"] = standing["metadata"]["creationTimestamp"].clone();
                object["apiVersion"] = standing["apiVersion"].clone();
                object["kind"] = standing["kind"].clone();
                self.record("MODIFIED", collection, object)
            }
            None => {
                self.christen(collection, kind, &mut object);
                self.record("ADDED", collection, object)
            }
        }
    }

    pub fn remove(&mut self, collection: &Collection, id: &str) {
        if let Some(object) = self.objects.get_mut(collection).and_then(|objects| objects.remove(id)) {
            self.record("DELETED", collection, object);
        }
    }

    pub fn get(&self, collection: &Collection, namespace: Option<&str>, name: &str) -> Outcome {
        let objects = self.objects.get(collection).ok_or_else(not_found)?;
        objects.get(&id(namespace, name)).cloned().ok_or_else(not_found)
    }

    pub fn list(
        &self,
        collection: &Collection,
        kind: &str,
        namespace: Option<&str>,
        query: &Query,
        page: usize,
    ) -> Outcome {
        let after = query.get("continue").unwrap_or_default();
        let limit = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX).min(page);
        let label = label_of(query);
        let all = self.objects(collection);
        let mut rest = all
            .iter()
            .filter(|(id, object)| id.as_str() > after && selects(namespace, label.as_ref(), object))
            .map(|(id, object)| {
                // As for built-in kinds: items of a list do not say what they are.
                let mut item = object.clone();
                item.as_object_mut().unwrap().retain(|field, _| field != "apiVersion" && field != "kind");
                (id, item)
            });
        let items: Vec<(&String, Value)> = rest.by_ref().take(limit).collect();
        let next = if rest.next().is_some() { items.last().map_or("", |(id, _)| id.as_str()) } else { "" };
        let items: Vec<&Value> = items.iter().map(|(_, item)| item).collect();
        let meta = json!({"resourceVersion": self.revision.to_string(), "continue": next});
        Ok(
            json!({"kind": format!("{kind}List"), "apiVersion": collection.api, "metadata": meta, "items": items}),
        )
    }

    pub fn watch(
        &mut self,
        collection: &Collection,
        namespace: Option<&str>,
        query: &Query,
    ) -> Result<StandInBody, Refusal> {
        let (lines, body) = unbounded_channel();
        let label = label_of(query);
        let send = |bytes| {
            let _ = lines.send(bytes);
        };
        if query.get("sendInitialEvents") == Some("true") {
            for object in
                self.objects(collection).values().filter(|object| selects(namespace, label.as_ref(), object))
            {
                send(line("ADDED", object));
            }
            let meta = json!({"resourceVersion": self.revision.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}});
            send(line("BOOKMARK", &json!({"metadata": meta})));
        } else {
            let from: u64 =
                query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
            if from < self.forgotten {
                return Err(Refusal::new(410, "Expired", "too old resource version"));
            }
            for past in
                self.history.iter().filter(|past| past.revision > from && past.collection == *collection)
            {
                if selects(namespace, label.as_ref(), &past.object) {
                    send(line(past.what, &past.object));
                }
            }
        }
        self.watchers.push(Watcher {
            collection: collection.clone(),
            namespace: namespace.map(str::to_owned),
            label,
            lines,
        });
        Ok(StandInBody::Lines(body))
    }

    pub fn create(
        &mut self,
        collection: &Collection,
        kind: &str,
        namespace: Option<&str>,
        mut object: Value,
    ) -> Outcome {
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = namespace.into();
        }
        let id = id_of(&object);
        if self.objects.get(collection).is_some_and(|objects| objects.contains_key(&id)) {
            return Err(Refusal::new(409, "AlreadyExists", "already exists"));
        }
        object.as_object_mut().unwrap().remove("status");
        self.christen(collection, kind, &mut object);
        Ok(self.record("ADDED", collection, object))
    }

    pub fn update(
        &mut self,
        collection: &Collection,
        namespace: Option<&str>,
        name: &str,
        mut object: Value,
        status: bool,
    ) -> Outcome {
        let standing = self.get(collection, namespace, name)?;
        self.guard(&standing, &object["metadata"])?;
        if status {
            let status = object["status"].take();
            object = standing.clone();
            object["status"] = status;
        } else if let Some(status) = standing.get("status") {
            object["status"] = status.clone();
        }
        if object == standing {
            return Ok(standing);
        }
        Ok(self.settle(collection, object))
    }

    pub fn patch(
        &mut self,
        collection: &Collection,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        patch: &Value,
    ) -> Outcome {
        let standing = match self.get(collection, namespace, name) {
            Ok(standing) => standing,
            // Server-side apply creates.
            Err(_) if patch.get("apiVersion").is_some() => {
                return self.create(collection, kind, namespace, patch.clone());
            }
            Err(refused) => return Err(refused),
        };
        self.guard(&standing, &patch["metadata"])?;
        let mut object = standing.clone();
        merge(&mut object, patch);
        object["metadata"]["resourceVersion"] = standing["metadata"]["resourceVersion"].clone();
        if object == standing {
            return Ok(standing);
        }
        Ok(self.settle(collection, object))
    }

    pub fn delete(
        &mut self,
        collection: &Collection,
        namespace: Option<&str>,
        name: &str,
        options: &Value,
    ) -> Outcome {
        let mut object = self.get(collection, namespace, name)?;
        self.guard(&object, &options["preconditions"])?;
        if object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty()) {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            return Ok(self.record("MODIFIED", collection, object));
        }
        self.remove(collection, &id(namespace, name));
        Ok(json!({"kind": "Status", "status": "Success"}))
    }

    /// Goes on with an object unless its last finalizer has just gone.
    fn settle(&mut self, collection: &Collection, object: Value) -> Value {
        let leaving = object["metadata"].get("deletionTimestamp").is_some();
        let held =
            object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        if leaving && !held {
            self.remove(collection, &id_of(&object));
            return object;
        }
        self.record("MODIFIED", collection, object)
    }

    fn guard(&self, standing: &Value, conditions: &Value) -> Result<(), Refusal> {
        for field in ["uid", "resourceVersion"] {
            let wanted = &conditions[field];
            if !wanted.is_null() && *wanted != standing["metadata"][field] {
                return Err(Refusal::new(409, "Conflict", &format!("{field} is no longer {wanted}")));
            }
        }
        Ok(())
    }

    fn christen(&self, collection: &Collection, kind: &str, object: &mut Value) {
        object["apiVersion"] = collection.api.clone().into();
        object["kind"] = kind.into();
        object["metadata"]["uid"] = format!("uid-{}", self.revision + 1).into();
        object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["managedFields"] = json!([{"manager": "stand-in", "fieldsV1": {"f:data": {}}}]);
    }

    fn record(&mut self, what: &'static str, collection: &Collection, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        if what != "DELETED" {
            self.objects.entry(collection.clone()).or_default().insert(id_of(&object), object.clone());
        }
        let news = line(what, &object);
        self.watchers.retain(|watcher| {
            watcher.collection != *collection
                || !selects(watcher.namespace.as_deref(), watcher.label.as_ref(), &object)
                || watcher.lines.send(news.clone()).is_ok()
        });
        self.history.push(Past {
            revision: self.revision,
            what,
            collection: collection.clone(),
            object: object.clone(),
        });
        object
    }
}

fn merge(value: &mut Value, patch: &Value) {
    match (value, patch) {
        (Value::Object(value), Value::Object(patch)) => {
            for (name, part) in patch {
                if part.is_null() {
                    value.remove(name);
                } else {
                    merge(value.entry(name.clone()).or_insert(Value::Null), part);
                }
            }
        }
        (value, patch) => *value = patch.clone(),
    }
}
