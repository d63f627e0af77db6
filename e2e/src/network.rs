//! Network: plays the network service of a cell, as far as Polis asks it for anything.
//!
//! A binding gets a context for its network and location; a context that nobody is bound to any more goes; a claim gets
//! a subnet. Everything is ready at once.

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
    eye::{Eye, Key},
};

const GROUP: &str = "networking.datumapis.com";

/// The network service of one cell. It leaves when it is dropped.
pub struct NetworkService {
    _work: JoinSet<()>,
}

impl NetworkService {
    /// Puts the service to work in the cell of a city, and gives the cell its location.
    pub async fn at_work(eye: Arc<Eye>, city: &str) -> Result<NetworkService, Error> {
        let location = json!({
            "apiVersion": "networking.datumapis.com/v1alpha", "kind": "Location", "metadata": {"name": city},
            "spec": {"locationClassName": "datum-managed", "topology": {labels::TOPOLOGY_CITY_CODE: city}},
        });
        let params = PatchParams::apply("polis-e2e").force();
        let applied = api(&eye, "Location", "").patch(city, &params, &Patch::Apply(&location)).await;
        applied.map_err(Error::plane("apply the location", &eye.plane))?;
        let mut work = JoinSet::new();
        work.spawn(work_on(eye));
        Ok(NetworkService { _work: work })
    }
}

/// One thing that the service does.
#[derive(Debug, PartialEq)]
enum Deed {
    Make(Key, Value),
    Say(Key, Value),
    End(Key),
}

/// What is to be done, by what is there.
fn deeds(objects: &[(Key, Arc<Value>)]) -> Vec<Deed> {
    let of = |kind: &'static str| objects.iter().filter(move |(key, _)| key.kind == kind);
    let there = |key: &Key| of_key(objects, key);
    let mut deeds = Vec::new();
    let mut used = Vec::new();
    for (key, binding) in of("NetworkBinding").filter(|(_, binding)| !leaving(binding)) {
        let text = |pointer: &str| binding.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = format!("{}-{}", text("/spec/network/name"), text("/spec/location/name"));
        let context = Key { kind: "NetworkContext".to_owned(), name: name.clone(), ..key.clone() };
        match there(&context) {
            None => deeds.push(Deed::Make(
                context.clone(),
                json!({"spec": {"network": binding["spec"]["network"], "location": binding["spec"]["location"]}}),
            )),
            Some(made) if !ready(made) => deeds.push(Deed::Say(context.clone(), json!({}))),
            Some(_) if !ready(binding) => {
                let context = json!({"networkContextRef": {"name": name, "namespace": key.namespace}});
                deeds.push(Deed::Say(key.clone(), context));
            }
            Some(_) => {}
        }
        used.push(context);
    }
    for (key, claim) in of("SubnetClaim").filter(|(_, claim)| !leaving(claim)) {
        let subnet = Key { kind: "Subnet".to_owned(), ..key.clone() };
        let owner = json!({"apiVersion": "networking.datumapis.com/v1alpha", "kind": "SubnetClaim",
            "name": key.name, "uid": claim["metadata"]["uid"]});
        match there(&subnet) {
            None => {
                deeds.push(Deed::Make(
                    subnet,
                    json!({"metadata": {"ownerReferences": [owner]}, "spec": claim["spec"]}),
                ));
            }
            Some(made) if !ready(made) => {
                deeds.push(Deed::Say(subnet, json!({"startAddress": "10.0.0.0", "prefixLength": 24})))
            }
            Some(_) if !ready(claim) => {
                deeds.push(Deed::Say(key.clone(), json!({"subnetRef": {"name": key.name}})))
            }
            Some(_) => {}
        }
    }
    let unused = of("NetworkContext").filter(|(key, context)| !used.contains(key) && !leaving(context));
    deeds.extend(unused.map(|(key, _)| Deed::End(key.clone())));
    deeds
}

fn of_key<'a>(objects: &'a [(Key, Arc<Value>)], key: &Key) -> Option<&'a Value> {
    objects.iter().find(|(there, _)| there == key).map(|(_, object)| &**object)
}

fn leaving(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn ready(object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

async fn work_on(eye: Arc<Eye>) {
    let mut changes = eye.changes();
    loop {
        changes.mark_unchanged();
        let kinds = ["NetworkBinding", "NetworkContext", "SubnetClaim", "Subnet"];
        let objects: Vec<(Key, Arc<Value>)> = kinds.iter().flat_map(|kind| eye.all(kind)).collect();
        // What is refused here is seen as something else the next time: a mirror is always a little late.
        let done =
            futures::future::join_all(deeds(&objects).into_iter().map(|deed| carry_out(&eye, deed))).await;
        if done.contains(&false) {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        } else if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn carry_out(eye: &Eye, deed: Deed) -> bool {
    match deed {
        Deed::Make(key, body) => {
            let mut object =
                DynamicObject::new(&key.name, &resource(&key.kind)).data(json!({"spec": body["spec"]}));
            object.metadata.owner_references =
                serde_json::from_value(body["metadata"]["ownerReferences"].clone()).unwrap_or_default();
            api(eye, &key.kind, &key.namespace).create(&PostParams::default(), &object).await.is_ok()
        }
        Deed::Say(key, mut status) => {
            status["conditions"] = json!([{
                "type": "Ready", "status": "True", "reason": "Ready", "message": "said by the network service of the suite",
                "lastTransitionTime": jiff::Timestamp::now().to_string(),
            }]);
            let patch = Patch::Merge(json!({"status": status}));
            api(eye, &key.kind, &key.namespace)
                .patch_status(&key.name, &PatchParams::default(), &patch)
                .await
                .is_ok()
        }
        Deed::End(key) => {
            api(eye, &key.kind, &key.namespace).delete(&key.name, &DeleteParams::default()).await.is_ok()
        }
    }
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1alpha", kind))
}

fn api(eye: &Eye, kind: &str, namespace: &str) -> Api<DynamicObject> {
    match namespace {
        "" => Api::all_with(eye.client().clone(), &resource(kind)),
        namespace => Api::namespaced_with(eye.client().clone(), namespace, &resource(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_object(kind: &str, name: &str, body: Value) -> (Key, Arc<Value>) {
        (Key { namespace: "ns-1".into(), kind: kind.into(), name: name.into() }, Arc::new(body))
    }

    fn mk_binding(status: Value) -> (Key, Arc<Value>) {
        let spec = json!({"network": {"name": "net"}, "location": {"name": "dfw"}});
        mk_object("NetworkBinding", "a-net-0", json!({"spec": spec, "status": status}))
    }

    fn mk_ready() -> Value {
        json!({"conditions": [{"type": "Ready", "status": "True"}]})
    }

    #[test]
    fn a_binding_gets_a_context_and_then_the_word_that_it_is_ready() {
        let made = deeds(&[mk_binding(json!({}))]);
        assert!(
            matches!(&made[..], [Deed::Make(key, _)] if key.name == "net-dfw" && key.kind == "NetworkContext")
        );
        let fresh = mk_object("NetworkContext", "net-dfw", json!({}));
        assert!(
            matches!(&deeds(&[mk_binding(json!({})), fresh])[..], [Deed::Say(key, _)] if key.name == "net-dfw")
        );
        let context = mk_object("NetworkContext", "net-dfw", json!({"status": mk_ready()}));
        let said = deeds(&[mk_binding(json!({})), context.clone()]);
        assert!(
            matches!(&said[..], [Deed::Say(key, status)] if key.name == "a-net-0" && status["networkContextRef"]["name"] == "net-dfw")
        );
        assert_eq!(deeds(&[mk_binding(mk_ready()), context]), []);
    }

    #[test]
    fn a_context_that_nobody_is_bound_to_goes() {
        let context = mk_object("NetworkContext", "net-dfw", json!({"status": mk_ready()}));
        assert!(matches!(&deeds(&[context])[..], [Deed::End(key)] if key.name == "net-dfw"));
    }
}
