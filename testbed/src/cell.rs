//! A cell: a plane that is joined to the federation as a push member.

use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use polis_api::labels::TOPOLOGY_CITY_CODE;
use serde_json::{Value, json};

use crate::{
    Error, TestPlane,
    hub::CLUSTERS,
    manifest::{self, DEFAULT_TIMEOUT},
    pki::Pki,
    plane::HUB,
};

/// The kinds that a cell must serve before it gets its city label.
const WANTED_KINDS: [&str; 2] = ["WorkloadDeployment", "Instance"];

/// The Clusters of the federation, on the hub.
pub fn clusters(hub: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("cluster.karmada.io", "v1alpha1", "Cluster");
    Api::all_with(hub.clone(), &ApiResource::from_gvk(&kind))
}

/// Joins the plane to the federation as a push member.
pub async fn join(hub: &Client, pki: &Pki, cell: &TestPlane) -> Result<(), Error> {
    let (token, _) = pki.token(&cell.name)?;
    for object in membership(cell, &token, &pki.ca_bundle()) {
        manifest::apply(hub, HUB, &object).await?;
    }
    Ok(())
}

fn membership(cell: &TestPlane, token: &str, ca_bundle: &str) -> [Value; 2] {
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": cell.name, "namespace": CLUSTERS},
        "data": {"token": BASE64_STANDARD.encode(token), "caBundle": ca_bundle},
    });
    let cluster = json!({
        "apiVersion": "cluster.karmada.io/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": cell.name},
        "spec": {
            "syncMode": "Push",
            "apiEndpoint": cell.server,
            "secretRef": {"namespace": CLUSTERS, "name": cell.name},
        },
    });
    [secret, cluster]
}

/// Waits until the member is Ready and, with `kinds`, its status lists the compute kinds.
pub async fn await_member(hub: &Client, cell: &TestPlane, kinds: bool) -> Result<(), Error> {
    let what = format!("member {} to be ready", cell.name);
    manifest::until(HUB, &what, DEFAULT_TIMEOUT, async || {
        let cluster = manifest::retryable(clusters(hub).get(&cell.name).await)?;
        match missing(&cluster.data["status"], kinds) {
            None => Ok(Some(())),
            Some(reason) => Err(reason),
        }
    })
    .await
}

/// The missing condition of a member, from its status; `None` when it can be used.
fn missing(status: &Value, kinds: bool) -> Option<String> {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    match ready {
        None => return Some("it has no condition Ready yet".to_owned()),
        Some(ready) if ready["status"] != "True" => {
            return Some(format!("Ready is {}: {}", ready["status"], ready["message"]));
        }
        Some(_) => {}
    }
    let apis = status["apiEnablements"].as_array().map(Vec::as_slice).unwrap_or_default();
    let serves = |kind: &str| {
        apis.iter()
            .flat_map(|api| api["resources"].as_array().into_iter().flatten())
            .any(|resource| resource["kind"] == kind)
    };
    WANTED_KINDS
        .iter()
        .find(|kind| kinds && !serves(kind))
        .map(|kind| format!("its status does not list {kind} yet"))
}

/// Labels the member with its city; from then on deployments of the city are scheduled to it. It must serve
/// the compute kinds before: the scheduler reconsiders a member when its labels change, not when its APIs do.
pub async fn label(hub: &Client, cell: &TestPlane, city: &str) -> Result<(), Error> {
    let labels = json!({"metadata": {"labels": {TOPOLOGY_CITY_CODE: city}}});
    let patched = clusters(hub).patch(&cell.name, &PatchParams::default(), &Patch::Merge(&labels)).await;
    patched.map(|_| ()).map_err(Error::plane(format!("label member {}", cell.name), HUB))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlaneKind;

    fn mk_status(ready: &str, kinds: &[&str]) -> Value {
        let resources: Vec<Value> = kinds.iter().map(|kind| json!({"kind": kind})).collect();
        json!({
            "conditions": [{"type": "Ready", "status": ready, "message": "probe failed"}],
            "apiEnablements": [{"groupVersion": "v1", "resources": []}, {"resources": resources}],
        })
    }

    #[test]
    fn a_member_can_be_used_when_it_is_ready_and_lists_the_kinds() {
        assert_eq!(missing(&mk_status("True", &["WorkloadDeployment", "Instance"]), true), None);
        assert_eq!(missing(&mk_status("True", &[]), false), None);
        assert!(missing(&mk_status("True", &["Instance"]), true).unwrap().contains("WorkloadDeployment"));
        assert!(
            missing(&mk_status("False", &["WorkloadDeployment", "Instance"]), true)
                .unwrap()
                .contains("probe failed")
        );
        assert!(missing(&json!({}), false).is_some());
    }

    #[test]
    fn a_member_is_an_address_and_a_token() {
        let cell = TestPlane {
            name: "dfw".to_owned(),
            kind: PlaneKind::Cell { city: "DFW".to_owned() },
            server: "https://127.0.0.1:20001".to_owned(),
        };
        let [secret, cluster] = membership(&cell, "secret", "Q0E=");
        assert_eq!(secret["data"]["token"], "c2VjcmV0");
        assert_eq!(cluster["spec"]["apiEndpoint"], "https://127.0.0.1:20001");
        assert_eq!(cluster["metadata"].get("labels"), None);
    }
}
