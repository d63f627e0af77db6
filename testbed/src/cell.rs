//! A cell: a plane that is a member of the federation.

use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use polis_api::labels::TOPOLOGY_CITY_CODE;
use serde_json::{Value, json};

use crate::{
    Error, Plane,
    hub::CLUSTERS,
    manifest::{self, WITHIN},
    pki::Pki,
    plane::HUB,
};

/// The kinds that must be among a cell's APIs before it gets the label of its city.
const WANTED_KINDS: [&str; 2] = ["WorkloadDeployment", "Instance"];

/// Clusters of the federation, on its hub.
pub fn clusters(hub: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("cluster.karmada.io", "v1alpha1", "Cluster");
    Api::all_with(hub.clone(), &ApiResource::from_gvk(&kind))
}

/// Makes the plane a member that the federation writes to.
pub async fn join(hub: &Client, pki: &Pki, cell: &Plane) -> Result<(), Error> {
    let (token, _) = pki.token(&cell.name)?;
    for object in membership(cell, &token, &pki.ca_bundle()) {
        manifest::apply(hub, HUB, &object).await?;
    }
    Ok(())
}

fn membership(cell: &Plane, token: &str, ca_bundle: &str) -> [Value; 2] {
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

/// Waits until the federation reaches the cell and, with `kinds`, has seen our kinds among its APIs.
pub async fn await_member(hub: &Client, cell: &Plane, kinds: bool) -> Result<(), Error> {
    let what = format!("member {} to be ready", cell.name);
    manifest::until(HUB, &what, WITHIN, async || {
        let cluster = manifest::seen(clusters(hub).get(&cell.name).await)?;
        match lacks(&cluster.data["status"], kinds) {
            None => Ok(Some(())),
            Some(missing) => Err(missing),
        }
    })
    .await
}

/// What a member lacks, by its status; none when it can be used.
fn lacks(status: &Value, kinds: bool) -> Option<String> {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    match ready {
        None => return Some("its condition Ready is not there yet".to_owned()),
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
        .map(|kind| format!("its APIs do not show {kind} yet"))
}

/// Labels the member with its city. From then on deployments of the city go there. Only after our kinds are
/// among its APIs: the scheduler looks at a member again when its labels change, never when its APIs do.
pub async fn label(hub: &Client, cell: &Plane, city: &str) -> Result<(), Error> {
    let labels = json!({"metadata": {"labels": {TOPOLOGY_CITY_CODE: city}}});
    let patched = clusters(hub).patch(&cell.name, &PatchParams::default(), &Patch::Merge(&labels)).await;
    patched.map(|_| ()).map_err(Error::plane(format!("label member {}", cell.name), HUB))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn mk_status(ready: &str, kinds: &[&str]) -> Value {
        let resources: Vec<Value> = kinds.iter().map(|kind| json!({"kind": kind})).collect();
        json!({
            "conditions": [{"type": "Ready", "status": ready, "message": "as asked"}],
            "apiEnablements": [{"groupVersion": "v1", "resources": []}, {"resources": resources}],
        })
    }

    #[test]
    fn a_member_can_be_used_once_it_is_ready_and_shows_our_kinds() {
        assert_eq!(lacks(&mk_status("True", &["WorkloadDeployment", "Instance"]), true), None);
        assert_eq!(lacks(&mk_status("True", &[]), false), None);
        assert!(lacks(&mk_status("True", &["Instance"]), true).unwrap().contains("WorkloadDeployment"));
        assert!(
            lacks(&mk_status("False", &["WorkloadDeployment", "Instance"]), true)
                .unwrap()
                .contains("as asked")
        );
        assert!(lacks(&json!({}), false).is_some());
    }

    #[test]
    fn a_member_is_an_address_and_a_token() {
        let cell = Plane {
            name: "dfw".to_owned(),
            kind: Kind::Cell { city: "DFW".to_owned() },
            server: "https://127.0.0.1:20001".to_owned(),
        };
        let [secret, cluster] = membership(&cell, "secret", "Q0E=");
        assert_eq!(secret["data"]["token"], "c2VjcmV0");
        assert_eq!(cluster["spec"]["apiEndpoint"], "https://127.0.0.1:20001");
        assert_eq!(cluster["metadata"].get("labels"), None);
    }
}
