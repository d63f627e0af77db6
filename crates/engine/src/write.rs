//! Writes: each compares first, names exactly what it means, and never overwrites what it has not seen.
//!
//! An update carries the resource version of the object it was decided on. If someone was faster the server says conflict,
//! the error goes up, and the key is worked on again from what is there by then. Nothing here re-reads and tries again by
//! itself: a decision belongs to the state it was made on.

use bytes::Bytes;
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cache::decode;
use crate::kind::{describe, place_of};
use crate::plane::Call;
use crate::{Error, Kind, Object, Place, Plane};

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// What a write did.
#[derive(Clone, Debug, PartialEq)]
pub enum Written<K> {
    /// It was as wanted already; the server was not asked.
    Unchanged,
    /// It was not there and is now.
    Created(K),
    /// It was different and is now as wanted.
    Updated(K),
}

impl<K> Written<K> {
    /// True if the server was written to.
    pub fn changed(&self) -> bool {
        !matches!(self, Self::Unchanged)
    }

    /// The object as the server has it after a write.
    pub fn into_object(self) -> Option<K> {
        match self {
            Self::Unchanged => None,
            Self::Created(object) | Self::Updated(object) => Some(object),
        }
    }
}

/// How exactly a delete must hit. The UID is always part of it: a namesake made meanwhile is never deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactly {
    /// This object, in whatever state it is by now.
    Object,
    /// This object, and only if nobody has changed it since it was read.
    State,
}

impl Plane {
    /// Creates an object. Fails with [`crate::Class::AlreadyExists`] if one of that name is there.
    pub async fn create<K: Object>(&self, object: &K) -> Result<K, Error> {
        let kind = Kind::of::<K>();
        let path = kind.path(object.meta().namespace.as_deref());
        let value = value_of(object)?;
        self.send("create", Method::POST, path, JSON, value, false, object).await
    }

    /// Brings an object to what is wanted: creates it if `current` is none, and otherwise lays `wanted` over it and writes only
    /// if that changes something.
    ///
    /// Fields that `wanted` does not mention stay as they are: defaults of the server and what others wrote. To remove a
    /// field, use [`Plane::update`]. Status is never part of it.
    pub async fn create_or_update<K: Object>(
        &self,
        current: Option<&K>,
        wanted: &K,
    ) -> Result<Written<K>, Error> {
        let Some(current) = current else {
            return self.create(wanted).await.map(Written::Created);
        };
        let standing = value_of(current)?;
        let mut layer = value_of(wanted)?;
        if let Some(layer) = layer.as_object_mut() {
            layer.remove("status");
        }
        strip_server_fields(&mut layer);
        let mut merged = standing.clone();
        overlay(&mut merged, &layer);
        self.replace(current, standing, merged).await
    }

    /// Replaces `current` by `desired` if they differ in anything but status. `desired` is usually a changed copy of `current`.
    pub async fn update<K: Object>(&self, current: &K, desired: &K) -> Result<Written<K>, Error> {
        if same(current, desired)? {
            return Ok(Written::Unchanged);
        }
        self.replace(current, value_of(current)?, value_of(desired)?).await
    }

    /// Replaces the whole status if it differs, through the status subresource. Nothing else is touched.
    pub async fn update_status<K: Object>(&self, current: &K, desired: &K) -> Result<Written<K>, Error> {
        if same(current, desired)? {
            return Ok(Written::Unchanged);
        }
        let mut value = value_of(current)?;
        let mut wanted = value_of(desired)?;
        let status = wanted.get_mut("status").map_or(Value::Null, Value::take);
        if value.get("status").unwrap_or(&Value::Null) == &status {
            return Ok(Written::Unchanged);
        }
        self.identified(current, "update the status of")?;
        value["status"] = status;
        without_managed_fields(&mut value);
        let path = format!("{}/status", Kind::of::<K>().path_of(place_of(current)));
        self.send("update", Method::PUT, path, JSON, value, true, current).await.map(Written::Updated)
    }

    /// Adds a finalizer, if it is not there.
    pub async fn add_finalizer<K: Object>(&self, current: &K, finalizer: &str) -> Result<Written<K>, Error> {
        let mut finalizers = current.meta().finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|present| present == finalizer) {
            return Ok(Written::Unchanged);
        }
        finalizers.push(finalizer.to_owned());
        self.set_finalizers(current, finalizers, "add a finalizer to").await
    }

    /// Removes a finalizer, if it is there. An object that is gone by now counts as done.
    pub async fn remove_finalizer<K: Object>(
        &self,
        current: &K,
        finalizer: &str,
    ) -> Result<Written<K>, Error> {
        let mut finalizers = current.meta().finalizers.clone().unwrap_or_default();
        let before = finalizers.len();
        finalizers.retain(|present| present != finalizer);
        if finalizers.len() == before {
            return Ok(Written::Unchanged);
        }
        match self.set_finalizers(current, finalizers, "remove a finalizer from").await {
            Err(error) if error.is_not_found() => Ok(Written::Unchanged),
            outcome => outcome,
        }
    }

    async fn set_finalizers<K: Object>(
        &self,
        current: &K,
        finalizers: Vec<String>,
        action: &str,
    ) -> Result<Written<K>, Error> {
        let (uid, version) = self.identified(current, action)?;
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version, "finalizers": finalizers}});
        let path = Kind::of::<K>().path_of(place_of(current));
        self.send("patch", Method::PATCH, path, MERGE_PATCH, patch, true, current).await.map(Written::Updated)
    }

    /// Deletes exactly this object. One that is gone already counts as done (false); a namesake or, if asked for, a changed
    /// state is a conflict.
    pub async fn delete<K: Object>(&self, object: &K, exactly: Exactly) -> Result<bool, Error> {
        let version = object.meta().resource_version.clone().filter(|_| exactly == Exactly::State);
        if exactly == Exactly::State && version.is_none() {
            return Err(self.unidentified(object, "delete", "resourceVersion"));
        }
        let Some(uid) = object.meta().uid.clone() else {
            return Err(self.unidentified(object, "delete", "uid"));
        };
        self.delete_at::<K>(place_of(object), &uid, version.as_deref()).await
    }

    /// Deletes the object of this place, UID and, if given, resource version. False if nothing is there any more.
    pub async fn delete_at<'p, K: Object>(
        &self,
        place: impl Into<Place<'p>>,
        uid: &str,
        resource_version: Option<&str>,
    ) -> Result<bool, Error> {
        self.delete_value(&Kind::of::<K>(), place, uid, resource_version).await
    }

    /// As [`Plane::delete_at`], for a kind that is only known at run time.
    pub async fn delete_value<'p>(
        &self,
        kind: &Kind,
        place: impl Into<Place<'p>>,
        uid: &str,
        resource_version: Option<&str>,
    ) -> Result<bool, Error> {
        let place = place.into();
        let mut preconditions = json!({"uid": uid});
        if let Some(version) = resource_version {
            preconditions["resourceVersion"] = version.into();
        }
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background", "preconditions": preconditions});
        let about = crate::plane::about(kind, place);
        let call = Call {
            verb: "delete",
            method: Method::DELETE,
            path: kind.path_of(place),
            content_type: Some(JSON),
            content: Bytes::from(options.to_string()),
            guarded: true,
            about: &about,
        };
        match self.call(call).await {
            Ok(_) => {
                tracing::info!(plane = %self.name(), object = %about, "deleted");
                Ok(true)
            }
            Err(error) if error.code() == Some(404) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Applies fields on behalf of `manager` (server-side apply), taking them over from others if `force`.
    ///
    /// `fields` names the object and says exactly the fields that `manager` wants; what it said before and no longer says is
    /// removed by the server. The server is asked every time: compare first where that matters.
    pub async fn apply<K: Object>(&self, fields: &K, manager: &str, force: bool) -> Result<K, Error> {
        self.apply_value(&Kind::of::<K>(), value_of(fields)?, manager, force, "")
            .await
            .and_then(|content| decode(self, &Kind::of::<K>(), &place_of(fields).to_string(), &content))
    }

    /// As [`Plane::apply`], to the status.
    pub async fn apply_status<K: Object>(&self, fields: &K, manager: &str, force: bool) -> Result<K, Error> {
        self.apply_value(&Kind::of::<K>(), value_of(fields)?, manager, force, "/status")
            .await
            .and_then(|content| decode(self, &Kind::of::<K>(), &place_of(fields).to_string(), &content))
    }

    async fn apply_value(
        &self,
        kind: &Kind,
        mut fields: Value,
        manager: &str,
        force: bool,
        sub: &str,
    ) -> Result<Vec<u8>, Error> {
        strip_server_fields(&mut fields);
        fields["apiVersion"] = kind.api_version().into();
        fields["kind"] = kind.kind.as_ref().into();
        let meta = &fields["metadata"];
        let namespace = meta["namespace"].as_str().map(str::to_owned);
        let name = meta["name"].as_str().unwrap_or_default().to_owned();
        let place = Place { namespace: namespace.as_deref(), name: &name };
        let mut path = format!("{}{sub}?force={force}&fieldManager=", kind.path_of(place));
        crate::live::escape(manager, &mut path);
        let about = crate::plane::about(kind, place);
        let call = Call {
            verb: "apply",
            method: Method::PATCH,
            path,
            content_type: Some(APPLY_PATCH),
            content: Bytes::from(fields.to_string()),
            // Applying the same fields twice ends in the same state.
            guarded: true,
            about: &about,
        };
        self.call(call).await
    }

    async fn replace<K: Object>(
        &self,
        current: &K,
        mut standing: Value,
        mut desired: Value,
    ) -> Result<Written<K>, Error> {
        for value in [&mut standing, &mut desired] {
            without_managed_fields(value);
            if let Some(value) = value.as_object_mut() {
                value.remove("status");
            }
        }
        let (_, version) = self.identified(current, "update")?;
        desired["metadata"]["resourceVersion"] = version.into();
        if standing == desired {
            return Ok(Written::Unchanged);
        }
        let path = Kind::of::<K>().path_of(place_of(current));
        self.send("update", Method::PUT, path, JSON, desired, true, current).await.map(Written::Updated)
    }

    #[allow(clippy::too_many_arguments)] // the parts of one HTTP request, each said once
    async fn send<K: Object>(
        &self,
        verb: &'static str,
        method: Method,
        path: String,
        content_type: &'static str,
        content: Value,
        guarded: bool,
        object: &K,
    ) -> Result<K, Error> {
        let about = describe(object);
        let content = Bytes::from(content.to_string());
        let call =
            Call { verb, method, path, content_type: Some(content_type), content, guarded, about: &about };
        let answer = self.call(call).await?;
        // What is made without a name is a question, such as an access review: nothing is kept of it.
        match object.meta().name.is_some() || object.meta().generate_name.is_some() {
            true => tracing::info!(plane = %self.name(), object = %about, verb, "wrote"),
            false => tracing::debug!(plane = %self.name(), object = %about, verb, "asked"),
        }
        decode(self, &Kind::of::<K>(), &place_of(object).to_string(), &answer)
    }

    /// UID and resource version of an object that was read from a server.
    fn identified<K: Object>(&self, object: &K, action: &str) -> Result<(String, String), Error> {
        let meta = object.meta();
        match (&meta.uid, &meta.resource_version) {
            (Some(uid), Some(version)) => Ok((uid.clone(), version.clone())),
            (None, _) => Err(self.unidentified(object, action, "uid")),
            (_, None) => Err(self.unidentified(object, action, "resourceVersion")),
        }
    }

    fn unidentified<K: Object>(&self, object: &K, action: &str, missing: &'static str) -> Error {
        Error::Unidentified {
            plane: self.name().clone(),
            action: format!("{action} {}", describe(object)),
            missing,
        }
    }
}

pub(crate) fn value_of<K: Object + Serialize>(object: &K) -> Result<Value, Error> {
    let mut value =
        serde_json::to_value(object).map_err(|source| Error::Encode { object: describe(object), source })?;
    let kind = Kind::of::<K>();
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.kind.as_ref().into();
    Ok(value)
}

/// Whether two objects are the same to the letter: the usual case, found without building trees of them.
fn same<K: Object + Serialize>(current: &K, desired: &K) -> Result<bool, Error> {
    let bytes = |object: &K| {
        serde_json::to_vec(object).map_err(|source| Error::Encode { object: describe(object), source })
    };
    Ok(bytes(current)? == bytes(desired)?)
}

fn without_managed_fields(value: &mut Value) {
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
}

/// What only the server writes; present in an object that was built from one that was read.
fn strip_server_fields(value: &mut Value) {
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in
            ["managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink"]
        {
            meta.remove(field);
        }
    }
}

/// Lays `layer` over `value`: objects field by field, everything else as a whole. What the layer does not mention stays.
fn overlay(value: &mut Value, layer: &Value) {
    match (value, layer) {
        (Value::Object(value), Value::Object(layer)) => {
            for (name, part) in layer {
                match value.get_mut(name) {
                    Some(present) => overlay(present, part),
                    None if part.is_null() => {}
                    None => {
                        value.insert(name.clone(), part.clone());
                    }
                }
            }
        }
        (_, Value::Null) => {}
        (value, layer) => *value = layer.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_keeps_what_it_does_not_mention() {
        let mut value = json!({"spec": {"a": 1, "b": {"c": 2}, "list": [1, 2]}, "x": 1});
        overlay(&mut value, &json!({"spec": {"a": 3, "b": {"d": 4}, "list": [9]}, "y": null}));
        assert_eq!(value, json!({"spec": {"a": 3, "b": {"c": 2, "d": 4}, "list": [9]}, "x": 1}));
    }

    #[test]
    fn an_overlay_of_what_is_there_changes_nothing() {
        let value = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"n": [1, {"x": null}]}});
        let mut merged = value.clone();
        overlay(&mut merged, &value);
        assert_eq!(merged, value);
    }
}
