//! Stored policies, schemas and rules that do not compile: written by an earlier version of the program.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    Server,
    common::*,
    store::{Collection, EncodedObject, Precondition, Write},
};

fn mk<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

/// Writes an object to the store of plane `cell` as an earlier version of the program left it there.
async fn store(server: &Server, resource: &str, name: &str, object: &Value) {
    let collection = Collection::new("cell", resource);
    let precondition = server
        .core
        .store
        .view()
        .get(&collection, name)
        .map_or(Precondition::Absent, |stored| Precondition::AtRevision(stored.revision()));
    let object = Some(EncodedObject::encode(object));
    server
        .core
        .store
        .commit(Write { collection, path: name.into(), precondition, object })
        .await
        .expect("a write");
}

#[tokio::test]
async fn a_stored_policy_that_does_not_compile_denies_unless_its_failures_are_ignored() {
    let server = mk_server().await;
    let client = mk_client(&server, "cell");
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let rule = json!({"operations": ["CREATE"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["widgets"]});
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]}});
    policies.create(&PostParams::default(), &mk(policy)).await.expect("a policy");
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let binding =
        json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    bindings.create(&PostParams::default(), &mk(binding)).await.expect("a binding");
    let api = widgets(&client);
    for (expression, policy, denied) in [
        ("object.spec.size < 5", "Fail", false),
        ("no_such_function(object)", "Fail", true),
        ("no_such_function(object)", "Ignore", false),
        ("object.spec.size <", "Fail", true),
    ] {
        let mut stored = serde_json::to_value(policies.get("p").await.expect("a policy")).expect("JSON");
        stored["spec"]["validations"] = json!([{"expression": expression}]);
        stored["spec"]["failurePolicy"] = policy.into();
        store(&server, "validatingadmissionpolicies.admissionregistration.k8s.io", "p", &stored).await;
        match api.create(&PostParams::default(), &mk_widget("a", json!({}))).await {
            Ok(_) => {
                assert!(!denied, "{expression} {policy}");
                api.delete("a", &DeleteParams::default()).await.expect("deletes");
            }
            Err(kube::Error::Api(status)) => {
                assert!(denied && status.code == 422, "{expression} {policy}: {status:?}");
                assert!(
                    status.message.contains("'p' with binding 'b' denied request: compilation failed: "),
                    "{}",
                    status.message
                );
            }
            Err(other) => panic!("{other}"),
        }
    }
    policies.delete("p", &DeleteParams::default()).await.expect("a broken policy can be deleted");
}

#[tokio::test]
async fn a_stored_schema_or_rule_that_does_not_compile_refuses_writes_and_not_reads() {
    for (pointer, broken) in [
        ("/properties/spec/x-kubernetes-validations", json!([{"rule": "self.size <"}])),
        ("/properties/spec/properties", json!("no map of properties")),
    ] {
        let before = mk_server().await;
        widgets(&mk_client(&before, "cell"))
            .create(&PostParams::default(), &mk_widget("a", json!({})))
            .await
            .expect("creates");
        let crds = Collection::new("cell", "customresourcedefinitions.apiextensions.k8s.io");
        let mut crd = before.core.store.view().get(&crds, "widgets.example.com").expect("a CRD").value();
        let schema = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").expect("a schema");
        let (parent, field) = pointer.rsplit_once('/').expect("a parent");
        schema.pointer_mut(parent).expect("a field")[field] = broken;
        store(&before, &crds.resource, "widgets.example.com", &crd).await;
        let server =
            Server::builder().store(before.core.store.clone()).build().await.expect("a restarted server");
        let api = widgets(&mk_client(&server, "cell"));
        api.get("a").await.expect("existing objects stay readable");
        let refused =
            api.create(&PostParams::default(), &mk_widget("b", json!({}))).await.expect_err("no rules");
        let kube::Error::Api(status) = refused else { panic!("{refused}") };
        assert_eq!(status.code, 422, "{pointer}: {}", status.message);
    }
}
