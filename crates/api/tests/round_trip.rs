//! Objects keep their content when they are deserialized and serialized: zero counts, and fields that Polis
//! does not know.

use polis_api::compute::{Instance, Workload, WorkloadDeployment, WorkloadDeploymentStatus, WorkloadStatus};
use polis_api::{karmada, milo, networking, quota};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn round_trip<T: Serialize + DeserializeOwned>(object: &Value) -> Value {
    let read: T = serde_json::from_value(object.clone()).expect("the object is deserializable");
    serde_json::to_value(&read).expect("the object is serializable")
}

#[test]
fn a_status_serializes_zero_counts() {
    let deployment = serde_json::to_value(WorkloadDeploymentStatus::default()).unwrap();
    assert_eq!(
        deployment,
        json!({"replicas": 0, "currentReplicas": 0, "desiredReplicas": 0, "readyReplicas": 0})
    );
    let workload = serde_json::to_value(WorkloadStatus::default()).unwrap();
    assert_eq!(
        workload,
        json!({"deployments": 0, "replicas": 0, "currentReplicas": 0, "desiredReplicas": 0, "readyReplicas": 0})
    );
}

#[test]
fn missing_counts_of_a_status_are_zero() {
    let status: WorkloadDeploymentStatus = serde_json::from_value(json!({"replicas": 2})).unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (2, 0));
}

#[test]
fn a_full_workload_survives_a_round_trip() {
    let workload = json!({
        "apiVersion": "compute.datumapis.com/v1alpha",
        "kind": "Workload",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "template": {
                "metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}},
                "spec": {
                    "runtime": {
                        "resources": {"instanceType": "datumcloud/d1-standard-2", "requests": {"cpu": "500m"}},
                        "sandbox": {
                            "containers": [{
                                "name": "web",
                                "image": "nginx",
                                "command": ["nginx"],
                                "args": ["-g", "daemon off;"],
                                "env": [
                                    {"name": "A", "value": "1"},
                                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
                                ],
                                "resources": {"limits": {"memory": "1Gi"}},
                                "volumeAttachments": [{"name": "data", "mountPath": "/data"}],
                                "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]
                            }],
                            "imagePullSecrets": [{"name": "registry"}]
                        }
                    },
                    "networkInterfaces": [{
                        "network": {"name": "default"},
                        "networkPolicy": {"ingress": [{
                            "ports": [{"port": 80, "endPort": 90, "protocol": "TCP"}, {"port": "http"}],
                            "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]
                        }]}
                    }],
                    "volumes": [
                        {"name": "data", "disk": {"deviceName": "d", "template": {"spec": {
                            "type": "pd-standard",
                            "resources": {"requests": {"storage": "10Gi"}},
                            "populator": {"filesystem": {"type": "ext4"}}
                        }}}},
                        {"name": "conf", "configMap": {"name": "conf", "items": [{"key": "a", "path": "b"}]}},
                        {"name": "sec", "secret": {"secretName": "sec"}}
                    ]
                }
            },
            "placements": [{
                "name": "default",
                "cityCodes": ["DFW"],
                "scaleSettings": {
                    "minReplicas": 1,
                    "maxReplicas": 3,
                    "metrics": [{"resource": {"name": "cpu", "target": {"averageUtilization": 60}}}],
                    "instanceManagementPolicy": "OrderedReady"
                }
            }]
        }
    });
    assert_eq!(round_trip::<Workload>(&workload), workload);
}

#[test]
fn a_minimal_deployment_and_instance_are_deserialized() {
    let template = json!({
        "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}},
        "networkInterfaces": [{"network": {"name": "test-network"}}]
    });
    let deployment: WorkloadDeployment = serde_json::from_value(json!({
        "apiVersion": "compute.datumapis.com/v1alpha",
        "kind": "WorkloadDeployment",
        "metadata": {"name": "web"},
        "spec": {
            "workloadRef": {"name": "web", "uid": "u"},
            "placementName": "default",
            "cityCode": "dfw",
            "template": {"spec": template},
            "scaleSettings": {"minReplicas": 1}
        }
    }))
    .unwrap();
    assert_eq!(deployment.spec.scale_settings.instance_management_policy, "OrderedReady");
    let instance: Instance = serde_json::from_value(json!({
        "apiVersion": "compute.datumapis.com/v1alpha",
        "kind": "Instance",
        "metadata": {"name": "web-0"},
        "spec": template
    }))
    .unwrap();
    assert!(instance.spec.runtime.sandbox.is_none() && instance.spec.runtime.virtual_machine.is_none());
}

/// Adds an unknown field to every object of a tree, except to maps and to types of Kubernetes.
fn add_unknown_field(object: &mut Value, field: &str, unknown: &Value) {
    match object {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                // Plain maps, and types of Kubernetes itself, whose unknown fields its own API server would
                // prune.
                let closed =
                    ["topology", "metadata", "conditions", "labelSelector", "taints", "clusterTolerations"];
                if !closed.contains(&key.as_str()) {
                    add_unknown_field(value, field, unknown);
                }
            }
            map.insert(field.to_owned(), unknown.clone());
        }
        Value::Array(items) => items.iter_mut().for_each(|item| add_unknown_field(item, field, unknown)),
        _ => {}
    }
}

/// Deserializes an object to its type and serializes it again.
type RoundTrip = fn(&Value) -> Value;

/// One full object of each foreign kind, and its round trip.
fn foreign_objects() -> Vec<(&'static str, Value, RoundTrip)> {
    let reference = json!({"name": "dfw", "namespace": "infra"});
    let consumer = json!({"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "p"});
    let selector = json!({"matchLabels": {"a": "b"}});
    let policy = json!({
        "resourceSelectors": [{
            "apiVersion": "v1", "kind": "ConfigMap", "namespace": "n", "name": "x", "labelSelector": selector
        }],
        "placement": {
            "clusterAffinity": {
                "labelSelector": selector, "fieldSelector": {}, "clusterNames": ["a"], "exclude": ["b"]
            },
            "clusterAffinities": [{"affinityName": "near", "clusterNames": ["a"]}],
            "clusterTolerations": [{"key": "k", "operator": "Exists"}],
            "spreadConstraints": [{"spreadByField": "cluster", "maxGroups": 1, "minGroups": 1}],
            "replicaScheduling": {"replicaSchedulingType": "Duplicated"}
        },
        "priority": 0,
        "preemption": "Never",
        "propagateDeps": true,
        "conflictResolution": "Abort",
        "suspension": {"dispatching": false, "dispatchingOnClusters": {"clusterNames": ["a"]}}
    });
    let binding = json!({
        "resource": {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "n", "name": "x", "uid": "u"},
        "clusters": [{"name": "dfw", "replicas": 0}],
        "placement": policy["placement"],
        "requiredBy": [{"name": "b"}],
        "gracefulEvictionTasks": [{"fromCluster": "a"}]
    });
    let binding_status = json!({
        "schedulerObservedGeneration": 2,
        "aggregatedStatus": [{"clusterName": "dfw", "status": {"replicas": 1}, "applied": true, "health": "Healthy"}]
    });
    let lua = json!({"luaScript": "function Retain(d, o) return d end"});
    vec![
        (
            "Project",
            json!({"spec": {"ownerRef": {"kind": "Organization", "name": "o"}}, "status": {}}),
            round_trip::<milo::Project>,
        ),
        (
            "Location",
            json!({"spec": {"locationClassName": "datum-managed", "topology": {"a": "b"}, "provider": {"gcp": {}}}, "status": {}}),
            round_trip::<networking::Location>,
        ),
        (
            "LocationBinding",
            json!({"spec": {"locationRef": {"name": "dfw"}, "topology": {"a": "b"}}, "status": {}}),
            round_trip::<networking::LocationBinding>,
        ),
        (
            "Network",
            json!({"spec": {"ipam": {"mode": "Auto", "ipv4Range": "10.0.0.0/9"}, "ipFamilies": ["IPv4"], "mtu": 1460}, "status": {}}),
            round_trip::<networking::Network>,
        ),
        (
            "NetworkBinding",
            json!({"spec": {"network": {"name": "n"}, "location": reference}, "status": {"networkContextRef": {"name": "c"}}}),
            round_trip::<networking::NetworkBinding>,
        ),
        (
            "NetworkContext",
            json!({"spec": {"network": {"name": "n"}, "location": reference}, "status": {}}),
            round_trip::<networking::NetworkContext>,
        ),
        (
            "SubnetClaim",
            json!({
                "spec": {"subnetClass": "private", "networkContext": {"name": "c"}, "location": reference, "ipFamily": "IPv4"},
                "status": {"subnetRef": {"name": "s"}, "startAddress": "10.0.0.0", "prefixLength": 20}
            }),
            round_trip::<networking::SubnetClaim>,
        ),
        (
            "Subnet",
            json!({
                "spec": {"subnetClass": "private", "networkContext": {"name": "c"}, "location": reference, "ipFamily": "IPv4"},
                "status": {"prefixLength": 20}
            }),
            round_trip::<networking::Subnet>,
        ),
        (
            "ResourceClaim",
            json!({
                "spec": {
                    "consumerRef": consumer, "resourceRef": consumer,
                    "requests": [{"resourceType": "compute.datumapis.com/instances", "amount": 1}]
                },
                "status": {"allocations": [{"resourceType": "r", "status": "Granted", "allocatedAmount": 1}]}
            }),
            round_trip::<quota::ResourceClaim>,
        ),
        (
            "ResourceGrant",
            json!({"spec": {"consumerRef": consumer, "allowances": [{"resourceType": "r", "buckets": [{"amount": 0}]}]}, "status": {}}),
            round_trip::<quota::ResourceGrant>,
        ),
        (
            "ResourceRegistration",
            json!({
                "spec": {
                    "consumerType": {"apiGroup": "g", "kind": "Project"}, "type": "Entity", "resourceType": "r",
                    "claimingResources": [{"apiGroup": "g", "kind": "Project"}]
                },
                "status": {"observedGeneration": 1}
            }),
            round_trip::<quota::ResourceRegistration>,
        ),
        (
            "AllowanceBucket",
            json!({
                "spec": {"consumerRef": consumer, "resourceType": "r"},
                "status": {
                    "limit": 10, "allocated": 0, "available": 10, "claimCount": 0, "grantCount": 1,
                    "contributingGrantRefs": [{"name": "g"}]
                }
            }),
            round_trip::<quota::AllowanceBucket>,
        ),
        (
            "Cluster",
            json!({
                "spec": {
                    "syncMode": "Push", "secretRef": {"namespace": "n", "name": "s"}, "insecureSkipTLSVerification": true,
                    "taints": [{"key": "k", "effect": "NoSchedule"}], "zone": "z", "resourceModels": [{"grade": 0}]
                },
                "status": {
                    "apiEnablements": [{"groupVersion": "v1", "resources": [{"name": "pods", "kind": "Pod"}]}],
                    "nodeSummary": {"totalNum": 0, "readyNum": 0}, "resourceSummary": {"allocatable": {}}
                }
            }),
            round_trip::<karmada::Cluster>,
        ),
        ("PropagationPolicy", json!({"spec": policy}), round_trip::<karmada::PropagationPolicy>),
        (
            "ClusterPropagationPolicy",
            json!({"spec": policy}),
            round_trip::<karmada::ClusterPropagationPolicy>,
        ),
        (
            "ResourceBinding",
            json!({"spec": binding, "status": binding_status}),
            round_trip::<karmada::ResourceBinding>,
        ),
        (
            "ClusterResourceBinding",
            json!({"spec": binding, "status": binding_status}),
            round_trip::<karmada::ClusterResourceBinding>,
        ),
        (
            "Work",
            json!({
                "spec": {"workload": {"manifests": [{"apiVersion": "v1", "kind": "ConfigMap"}]}, "suspendDispatching": false},
                "status": {"manifestStatuses": [{
                    "identifier": {"ordinal": 0, "version": "v1", "kind": "ConfigMap", "resource": "configmaps", "name": "x"},
                    "status": {"a": 1}
                }]}
            }),
            round_trip::<karmada::Work>,
        ),
        (
            "ResourceInterpreterCustomization",
            json!({"spec": {"target": {"apiVersion": "v1", "kind": "K"}, "customizations": {
                "retention": lua, "replicaResource": lua, "componentResource": lua, "replicaRevision": lua,
                "statusReflection": lua, "statusAggregation": lua, "healthInterpretation": lua, "dependencyInterpretation": lua
            }}}),
            round_trip::<karmada::ResourceInterpreterCustomization>,
        ),
    ]
}

fn api_version(kind: &str) -> &'static str {
    match kind {
        "Project" => "resourcemanager.miloapis.com/v1alpha1",
        "Cluster" => "cluster.karmada.io/v1alpha1",
        "PropagationPolicy" | "ClusterPropagationPolicy" => "policy.karmada.io/v1alpha1",
        "ResourceBinding" | "ClusterResourceBinding" => "work.karmada.io/v1alpha2",
        "Work" => "work.karmada.io/v1alpha1",
        "ResourceInterpreterCustomization" => "config.karmada.io/v1alpha1",
        quota if quota.starts_with("Resource") || quota == "AllowanceBucket" => "quota.miloapis.com/v1alpha1",
        _ => "networking.datumapis.com/v1alpha",
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,6}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn unknown_fields_of_foreign_kinds_survive_a_round_trip(field in "later[A-Z][a-z]{1,8}", unknown in any_json()) {
        for (kind, mut object, round_trip) in foreign_objects() {
            for part in ["spec", "status"] {
                if let Some(part) = object.get_mut(part) {
                    add_unknown_field(part, &field, &unknown);
                }
            }
            object["apiVersion"] = json!(api_version(kind));
            object["kind"] = json!(kind);
            object["metadata"] = json!({"name": "x"});
            prop_assert_eq!(round_trip(&object), object, "{}", kind);
        }
    }
}
