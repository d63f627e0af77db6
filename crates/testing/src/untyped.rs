//! Objects of any kind as JSON, for tests that write what a user or another program would write.

use polis_api::kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams, TypeMeta};
use polis_api::kube::{Api, Client};
use serde_json::{Value, json};

/// The API of an object's kind, in the namespace of the object or in the cluster scope.
pub fn untyped_api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let field = |name: &str| object[name].as_str().expect("apiVersion and kind").to_owned();
    let types = TypeMeta { api_version: field("apiVersion"), kind: field("kind") };
    let resource = ApiResource::from_gvk(&types.try_into().expect("a kind"));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Creates an object, and writes its status if it has one.
pub async fn create_untyped(client: &Client, object: &Value) {
    let (api, name) = (untyped_api(client, object), object["metadata"]["name"].as_str().expect("a name"));
    let typed: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
    let created = api.create(&PostParams::default(), &typed).await;
    created.unwrap_or_else(|error| panic!("failed to create {} {name}: {error}", object["kind"]));
    if !object["status"].is_null() {
        let patch = Patch::Merge(json!({"status": object["status"]}));
        api.patch_status(name, &PatchParams::default(), &patch).await.expect("the status is written");
    }
}
