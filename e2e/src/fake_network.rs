//! A fake network service of a cell.
//!
//! It creates a NetworkContext per network and location of the bindings, deletes contexts without bindings,
//! and creates a Subnet per SubnetClaim. Everything is ready at once.

use std::sync::Arc;

use polis_api::{
    kube::{
        Api,
        api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    },
    labels,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    Error,
    recorder::{ObjectId, PlaneRecorder},
};

const GROUP: &str = "networking.datumapis.com";

/// The fake network service of one cell. It stops when it is dropped.
pub struct FakeNetworkService {
    _task: JoinSet<()>,
}

impl FakeNetworkService {
    /// Creates the cell's Location and starts the service.
    pub async fn start(recorder: Arc<PlaneRecorder>, city: &str) -> Result<FakeNetworkService, Error> {
        let location = json!({
            "apiVersion": "networking.datumapis.com/v1alpha", "kind": "Location", "metadata": {"name": city},
            "spec": {"locationClassName": "datum-managed", "topology": {labels::TOPOLOGY_CITY_CODE: city}},
        });
        let params = PatchParams::apply("polis-e2e").force();
        let applied = api(&recorder, "Location", "").patch(city, &params, &Patch::Apply(&location)).await;
        applied.map_err(Error::plane("apply the location", &recorder.plane))?;
        let mut work = JoinSet::new();
        work.spawn(run(recorder));
        Ok(FakeNetworkService { _task: work })
    }
}

/// An action of the service.
#[derive(Debug, PartialEq)]
enum ServiceAction {
    Create(ObjectId, Value),
    SetReady(ObjectId, Value),
    Delete(ObjectId),
}

/// Decides what to do about the existing objects.
fn plan(objects: &[(ObjectId, Arc<Value>)]) -> Vec<ServiceAction> {
    let of = |kind: &'static str| objects.iter().filter(move |(key, _)| key.kind == kind);
    let find = |key: &ObjectId| of_key(objects, key);
    let mut actions = Vec::new();
    let mut bound = Vec::new();
    for (key, binding) in of("NetworkBinding").filter(|(_, binding)| !deleting(binding)) {
        let text = |pointer: &str| binding.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = format!("{}-{}", text("/spec/network/name"), text("/spec/location/name"));
        let context = ObjectId { kind: "NetworkContext".to_owned(), name: name.clone(), ..key.clone() };
        match find(&context) {
            None => actions.push(ServiceAction::Create(
                context.clone(),
                json!({"spec": {"network": binding["spec"]["network"], "location": binding["spec"]["location"]}}),
            )),
            Some(created) if !ready(created) => actions.push(ServiceAction::SetReady(context.clone(), json!({}))),
            Some(_) if !ready(binding) => {
                let context = json!({"networkContextRef": {"name": name, "namespace": key.namespace}});
                actions.push(ServiceAction::SetReady(key.clone(), context));
            }
            Some(_) => {}
        }
        bound.push(context);
    }
    for (key, claim) in of("SubnetClaim").filter(|(_, claim)| !deleting(claim)) {
        let subnet = ObjectId { kind: "Subnet".to_owned(), ..key.clone() };
        let owner = json!({"apiVersion": "networking.datumapis.com/v1alpha", "kind": "SubnetClaim",
            "name": key.name, "uid": claim["metadata"]["uid"]});
        match find(&subnet) {
            None => {
                actions.push(ServiceAction::Create(
                    subnet,
                    json!({"metadata": {"ownerReferences": [owner]}, "spec": claim["spec"]}),
                ));
            }
            Some(created) if !ready(created) => actions.push(ServiceAction::SetReady(
                subnet,
                json!({"startAddress": "10.0.0.0", "prefixLength": 24}),
            )),
            Some(_) if !ready(claim) => {
                actions.push(ServiceAction::SetReady(key.clone(), json!({"subnetRef": {"name": key.name}})))
            }
            Some(_) => {}
        }
    }
    let unused = of("NetworkContext").filter(|(key, context)| !bound.contains(key) && !deleting(context));
    actions.extend(unused.map(|(key, _)| ServiceAction::Delete(key.clone())));
    actions
}

fn of_key<'a>(objects: &'a [(ObjectId, Arc<Value>)], key: &ObjectId) -> Option<&'a Value> {
    objects.iter().find(|(existing, _)| existing == key).map(|(_, object)| &**object)
}

fn deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn ready(object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

async fn run(recorder: Arc<PlaneRecorder>) {
    let mut changes = recorder.changes();
    loop {
        changes.mark_unchanged();
        let kinds = ["NetworkBinding", "NetworkContext", "SubnetClaim", "Subnet"];
        let objects: Vec<(ObjectId, Arc<Value>)> = kinds.iter().flat_map(|kind| recorder.all(kind)).collect();
        // The recorder lags behind the plane: a failed action is decided again.
        let done =
            futures::future::join_all(plan(&objects).into_iter().map(|action| execute(&recorder, action)))
                .await;
        if done.contains(&false) {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        } else if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn execute(recorder: &PlaneRecorder, action: ServiceAction) -> bool {
    match action {
        ServiceAction::Create(key, body) => {
            let mut object =
                DynamicObject::new(&key.name, &resource(&key.kind)).data(json!({"spec": body["spec"]}));
            object.metadata.owner_references =
                serde_json::from_value(body["metadata"]["ownerReferences"].clone()).unwrap_or_default();
            api(recorder, &key.kind, &key.namespace).create(&PostParams::default(), &object).await.is_ok()
        }
        ServiceAction::SetReady(key, mut status) => {
            status["conditions"] = json!([{
                "type": "Ready", "status": "True", "reason": "Ready", "message": "set by the fake network service",
                "lastTransitionTime": jiff::Timestamp::now().to_string(),
            }]);
            let patch = Patch::Merge(json!({"status": status}));
            api(recorder, &key.kind, &key.namespace)
                .patch_status(&key.name, &PatchParams::default(), &patch)
                .await
                .is_ok()
        }
        ServiceAction::Delete(key) => {
            api(recorder, &key.kind, &key.namespace).delete(&key.name, &DeleteParams::default()).await.is_ok()
        }
    }
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1alpha", kind))
}

fn api(recorder: &PlaneRecorder, kind: &str, namespace: &str) -> Api<DynamicObject> {
    match namespace {
        "" => Api::all_with(recorder.client().clone(), &resource(kind)),
        namespace => Api::namespaced_with(recorder.client().clone(), namespace, &resource(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_object(kind: &str, name: &str, body: Value) -> (ObjectId, Arc<Value>) {
        (ObjectId { namespace: "ns-1".into(), kind: kind.into(), name: name.into() }, Arc::new(body))
    }

    fn mk_binding(status: Value) -> (ObjectId, Arc<Value>) {
        let spec = json!({"network": {"name": "net"}, "location": {"name": "dfw"}});
        mk_object("NetworkBinding", "a-net-0", json!({"spec": spec, "status": status}))
    }

    fn mk_ready() -> Value {
        json!({"conditions": [{"type": "Ready", "status": "True"}]})
    }

    #[test]
    fn a_binding_gets_a_context_and_then_becomes_ready() {
        let created = plan(&[mk_binding(json!({}))]);
        assert!(
            matches!(&created[..], [ServiceAction::Create(key, _)] if key.name == "net-dfw" && key.kind == "NetworkContext")
        );
        let fresh = mk_object("NetworkContext", "net-dfw", json!({}));
        assert!(
            matches!(&plan(&[mk_binding(json!({})), fresh])[..], [ServiceAction::SetReady(key, _)] if key.name == "net-dfw")
        );
        let context = mk_object("NetworkContext", "net-dfw", json!({"status": mk_ready()}));
        let planned = plan(&[mk_binding(json!({})), context.clone()]);
        assert!(
            matches!(&planned[..], [ServiceAction::SetReady(key, status)] if key.name == "a-net-0" && status["networkContextRef"]["name"] == "net-dfw")
        );
        assert_eq!(plan(&[mk_binding(mk_ready()), context]), []);
    }

    #[test]
    fn a_context_without_bindings_is_deleted() {
        let context = mk_object("NetworkContext", "net-dfw", json!({"status": mk_ready()}));
        assert!(matches!(&plan(&[context])[..], [ServiceAction::Delete(key)] if key.name == "net-dfw"));
    }
}
