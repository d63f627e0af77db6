//! Shared fixtures: a server with one custom kind, and clients.

#![allow(dead_code, reason = "each test file uses a part")]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use polis_apiserver::{PlaneSpec, Server};
#[allow(unused_imports, reason = "each test file uses a part")]
pub(crate) use polis_testing::eventually;
use serde_json::{Value, json};

/// A namespaced kind with a status, a scale, a default, a bound and a column.
pub(crate) fn mk_widgets_crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wd"]},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer", "minimum": 0, "default": 1},
                        "color": {"type": "string"},
                        "replicas": {"type": "integer"},
                        "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "value": {"type": "string"}}}}
                    }},
                    "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}}
                }}}
            }]
        }
    })
}

/// A server in memory with a plane `cell` that serves widgets.
pub(crate) async fn mk_server() -> Server {
    let server = Server::builder().build().await.expect("a server in memory");
    server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
    server.install_crd_in("cell", &mk_widgets_crd()).await.expect("a definition");
    server
}

/// A client of a plane, without a socket.
pub(crate) fn mk_client(server: &Server, plane: &str) -> Client {
    Client::new(server.plane_service(plane), "default")
}

/// The API of widgets in `default`.
pub(crate) fn widgets(client: &Client) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Widget"), "widgets");
    Api::namespaced_with(client.clone(), "default", &resource)
}

/// A widget named `name`.
pub(crate) fn mk_widget(name: &str, spec: Value) -> DynamicObject {
    serde_json::from_value(
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}),
    )
    .expect("a widget")
}

/// The CRD of widgets, typed.
pub(crate) fn mk_typed_crd() -> CustomResourceDefinition {
    serde_json::from_value(mk_widgets_crd()).expect("a definition")
}
