//! Tables of the mapping between Instances and Pods, field by field.

use polis_api::compute::{InstanceController, InstanceStatus};
use polis_api::names::companion;
use serde_json::{Value, json};

use super::*;
use crate::conditions;
use crate::tenant::Tenant;
use crate::testing::{at, mk_deployment, mk_instance};

/// An Instance with these fields of its spec.
fn mk(spec: Value) -> Instance {
    let mut instance = mk_instance(&mk_deployment("web"), 0);
    let mut value = serde_json::to_value(&instance.spec).unwrap();
    for (name, field) in spec.as_object().unwrap() {
        value[name] = field.clone();
    }
    instance.spec = serde_json::from_value(value).unwrap();
    instance.spec.controller =
        Some(InstanceController { template_hash: "h1".into(), scheduling_gates: Vec::new() });
    instance
}

/// An Instance with these containers.
fn with_containers(containers: Value) -> Instance {
    mk(json!({"runtime": {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "sandbox": {"containers": containers},
    }}))
}

fn one(fields: Value) -> Instance {
    let mut container = json!({"name": "app", "image": "shop:1"});
    for (name, field) in fields.as_object().unwrap() {
        container[name] = field.clone();
    }
    with_containers(json!([container]))
}

fn pod_of(instance: &Instance) -> Value {
    let origin = Tenant::new("acme", "shop").unwrap();
    let pod = pod(instance, Some(&origin), &PodOptions::default()).expect("a Pod");
    serde_json::to_value(pod).unwrap()
}

fn refused(instance: &Instance) -> Vec<String> {
    let refused = pod(instance, None, &PodOptions::default()).unwrap_err();
    refused.iter().map(|field| format!("{}: {}", field.path, field.why)).collect()
}

#[test]
fn a_pod_has_the_name_of_its_instance_and_only_the_labels_of_polis() {
    let mut instance = one(json!({}));
    let labels = instance.metadata.labels.get_or_insert_default();
    labels.insert("sidecar.istio.io/inject".into(), "false".into());
    instance.metadata.annotations =
        Some([("container.apparmor.security.beta.kubernetes.io/app".into(), "unconfined".into())].into());
    let meta = &pod_of(&instance)["metadata"];
    assert_eq!((&meta["name"], &meta["namespace"]), (&json!("web-0"), &json!("ns-1")));
    assert_eq!(meta["labels"]["compute.datumapis.com/instance-uid"], instance.uid());
    assert_eq!(meta["labels"]["compute.datumapis.com/instance-index"], "0");
    assert!(meta["labels"].as_object().unwrap().keys().all(|key| key.starts_with("compute.datumapis.com/")));
    assert_eq!(meta["annotations"], json!({"compute.datumapis.com/template-hash": "h1"}));
}

#[test]
fn a_pod_has_no_privileges_and_no_token() {
    let spec = &pod_of(&one(json!({})))["spec"];
    for (field, value) in [
        ("/automountServiceAccountToken", json!(false)),
        ("/enableServiceLinks", json!(false)),
        ("/restartPolicy", json!("Always")),
        ("/hostname", json!("web-0")),
        ("/securityContext", json!({"seccompProfile": {"type": "RuntimeDefault"}})),
        ("/containers/0/securityContext", json!({"allowPrivilegeEscalation": false})),
    ] {
        assert_eq!(spec.pointer(field), Some(&value), "{field}");
    }
    for absent in ["hostNetwork", "hostPID", "serviceAccountName", "nodeName", "tolerations", "nodeSelector"]
    {
        assert_eq!(spec.get(absent), None, "{absent}");
    }
}

#[test]
fn the_operator_chooses_runtime_class_and_nodes() {
    let options = PodOptions {
        runtime_class: Some("gvisor".into()),
        node_selector: [("pool".to_owned(), "tenants".to_owned())].into(),
    };
    let spec = pod(&one(json!({})), None, &options).unwrap().spec.unwrap();
    assert_eq!(spec.runtime_class_name.as_deref(), Some("gvisor"));
    assert_eq!(spec.node_selector.unwrap()["pool"], "tenants");
}

#[test]
fn every_field_of_a_container_is_mapped() {
    let table = [
        (json!({"command": ["a"], "args": ["b"]}), "/command", json!(["a"])),
        (json!({"command": ["a"], "args": ["b"]}), "/args", json!(["b"])),
        (json!({}), "/image", json!("shop:1")),
        (
            json!({"ports": [{"name": "http", "port": 80, "protocol": "tcp"}]}),
            "/ports",
            json!([{"name": "http", "containerPort": 80, "protocol": "TCP"}]),
        ),
        (json!({}), "/resources/limits", json!({"cpu": "1000m", "memory": "2048Mi"})),
        (json!({}), "/resources/requests", json!({"cpu": "1000m", "memory": "2048Mi"})),
        (
            json!({"resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}}),
            "/resources",
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}}),
        ),
        (
            json!({
                "ports": [{"name": "http", "port": 80}],
                "livenessProbe": {"httpGet": {"port": "http", "path": "/x", "host": "10.0.0.1", "scheme": "HTTPS"}, "periodSeconds": 3, "terminationGracePeriodSeconds": 4},
            }),
            "/livenessProbe",
            json!({"httpGet": {"port": 80, "path": "/x", "scheme": "HTTPS"}, "periodSeconds": 3, "terminationGracePeriodSeconds": 4}),
        ),
        (
            json!({"readinessProbe": {"grpc": {"port": 9, "service": "s"}, "successThreshold": 2}}),
            "/readinessProbe",
            json!({"grpc": {"port": 9, "service": "s"}, "successThreshold": 2}),
        ),
        (
            json!({"startupProbe": {"exec": {"command": ["x"]}, "failureThreshold": 5, "initialDelaySeconds": 1, "timeoutSeconds": 2}}),
            "/startupProbe",
            json!({"exec": {"command": ["x"]}, "failureThreshold": 5, "initialDelaySeconds": 1, "timeoutSeconds": 2}),
        ),
        (
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 3}}}}),
            "/lifecycle",
            json!({"preStop": {"sleep": {"seconds": 3}}}),
        ),
    ];
    for (fields, pointer, value) in table {
        let pod = pod_of(&one(fields.clone()));
        assert_eq!(pod["spec"]["containers"][0].pointer(pointer), Some(&value), "{fields}");
    }
}

#[test]
fn without_a_readiness_probe_the_first_tcp_port_gates_the_start() {
    let startup = |instance: &Instance, place: usize| {
        pod_of(instance)["spec"]["containers"][place].get("startupProbe").cloned()
    };
    let first = json!({"tcpSocket": {"port": 81}, "periodSeconds": 1, "failureThreshold": i32::MAX});
    let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "http", "port": 81}]);
    assert_eq!(startup(&one(json!({"ports": ports})), 0), Some(first));
    assert_eq!(
        startup(&one(json!({"ports": ports, "readinessProbe": {"tcpSocket": {"port": 81}}})), 0),
        None
    );
    assert_eq!(startup(&one(json!({})), 0), None);
    let two = json!([
        {"name": "app", "image": "a", "ports": [{"name": "a", "port": 1}]},
        {"name": "side", "image": "b", "ports": [{"name": "b", "port": 2}]},
    ]);
    assert_eq!(startup(&with_containers(two), 1), None);
}

#[test]
fn containers_without_limits_share_the_size_of_the_instance() {
    let two = json!([{"name": "app", "image": "a"}, {"name": "side", "image": "b"}]);
    let pod = pod_of(&with_containers(two));
    for place in [0, 1] {
        let limits = &pod["spec"]["containers"][place]["resources"]["limits"];
        assert_eq!(*limits, json!({"cpu": "500m", "memory": "1024Mi"}));
    }
}

#[test]
fn variables_of_the_instance_become_values_or_fields_of_the_pod() {
    let instance = one(json!({
        "ports": [{"name": "http-alt", "port": 8080}],
        "env": [
            {"name": "PLAIN", "value": "$(PORT)"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['compute.datumapis.com/instance-index']"}}},
            {"name": "NONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['none']"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.networkInterfaces[0].assignments.networkIP"}}},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "POLIS_CITY", "value": "mine"},
        ],
    }));
    let pod = pod_of(&instance);
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| {
        let mut found = env.iter().filter(|variable| variable["name"] == name);
        let variable = found.next().unwrap_or_else(|| panic!("no {name}")).clone();
        assert_eq!(found.next(), None, "{name} twice");
        variable.get("value").or_else(|| variable.get("valueFrom")).cloned().unwrap_or_default()
    };
    let address = json!({"fieldRef": {"fieldPath": "status.podIP"}});
    for (name, expected) in [
        ("PLAIN", json!("$(PORT)")),
        ("NAME", json!("web-0")),
        ("INDEX", json!("0")),
        ("NONE", json!("")),
        ("IP", address.clone()),
        ("SECRET", json!({"secretKeyRef": {"name": companion("Secret", "s"), "key": "k"}})),
        ("POLIS_CITY", json!("mine")),
        ("POLIS_INSTANCE", json!("web-0")),
        ("POLIS_CONTAINER", json!("app")),
        ("POLIS_PROJECT", json!("acme")),
        ("POLIS_NAMESPACE", json!("shop")),
        ("POLIS_ADDRESS", address),
        ("PORT", json!("8080")),
        ("PORT_HTTP_ALT", json!("8080")),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
}

#[test]
fn whole_environments_come_from_the_companions_of_their_sources() {
    let instance = one(json!({"envFrom": [
        {"prefix": "A_", "configMapRef": {"name": "settings"}},
        {"secretRef": {"name": "db", "optional": true}},
    ]}));
    assert_eq!(
        pod_of(&instance)["spec"]["containers"][0]["envFrom"],
        json!([
            {"prefix": "A_", "configMapRef": {"name": companion("ConfigMap", "settings")}},
            {"secretRef": {"name": companion("Secret", "db"), "optional": true}},
        ])
    );
}

#[test]
fn volumes_pull_secrets_and_the_grace_period_are_mapped() {
    let instance = mk(json!({
        "runtime": {
            "resources": {"instanceType": "datumcloud/d1-standard-2"},
            "sandbox": {
                "containers": [{"name": "app", "image": "a", "volumeAttachments": [
                    {"name": "settings", "mountPath": "/etc/app"}, {"name": "keys", "mountPath": "/keys"},
                ]}],
                "imagePullSecrets": [{"name": "pull"}],
                "terminationGracePeriodSeconds": 7,
            },
        },
        "volumes": [
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "keys", "secret": {"secretName": "keys", "optional": true}},
        ],
    }));
    let spec = &pod_of(&instance)["spec"];
    assert_eq!(spec["imagePullSecrets"], json!([{"name": companion("Secret", "pull")}]));
    assert_eq!(spec["terminationGracePeriodSeconds"], 7);
    assert_eq!(
        spec["volumes"],
        json!([
            {"name": "settings", "configMap": {"name": companion("ConfigMap", "settings")}},
            {"name": "keys", "secret": {"secretName": companion("Secret", "keys"), "optional": true}},
        ])
    );
    assert_eq!(
        spec["containers"][0]["volumeMounts"],
        json!([{"name": "settings", "mountPath": "/etc/app"}, {"name": "keys", "mountPath": "/keys"}])
    );
}

#[test]
fn a_field_that_a_pod_cannot_have_is_named() {
    let runtime = |sandbox: Value| json!({"resources": {"instanceType": "x"}, "sandbox": sandbox});
    let app = json!({"containers": [{"name": "app", "image": "a"}]});
    let table = [
        (
            mk(
                json!({"runtime": {"resources": {"instanceType": "x"}, "virtualMachine": {"volumeAttachments": []}}}),
            ),
            "spec.runtime.virtualMachine: this cell runs containers only",
        ),
        (
            mk(json!({"networkInterfaces": [{"network": {"name": "a"}}, {"network": {"name": "b"}}]})),
            "spec.networkInterfaces[1]: a Pod has one network; keep one interface",
        ),
        (
            mk(
                json!({"runtime": runtime(app.clone()), "volumes": [{"name": "d", "disk": {"template": {"spec": {"type": "x"}}}}]}),
            ),
            "spec.volumes[0].disk: this cell has no disks; remove the volume",
        ),
        (
            mk(json!({"runtime": runtime(app), "volumes": [{"name": "d"}]})),
            "spec.volumes[0]: the volume has no source that this cell supports; use configMap or secret",
        ),
        (
            one(json!({"volumeAttachments": [{"name": "d"}]})),
            "spec.runtime.sandbox.containers[0].volumeAttachments[0].mountPath: a Pod attaches no volume without mounting it; set a path",
        ),
        (
            one(json!({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.location"}}}]})),
            "spec.runtime.sandbox.containers[0].env[0].valueFrom: field spec.location is not known in a Pod; use a field of metadata, or status.networkInterfaces[0].assignments.networkIP",
        ),
        (
            one(json!({"env": [{"name": "X", "valueFrom": {}}]})),
            "spec.runtime.sandbox.containers[0].env[0].valueFrom: use configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef",
        ),
    ];
    for (instance, message) in table {
        assert!(
            refused(&instance).iter().any(|refused| refused == message),
            "{message}: {:?}",
            refused(&instance)
        );
    }
    let many: Vec<_> = (0..7).map(|n| RefusedField { path: format!("f{n}"), why: "no".into() }).collect();
    assert!(refusal_message(&many).ends_with("f4: no; and 2 more fields"), "{}", refusal_message(&many));
}

#[test]
fn the_network_policy_of_the_interface_selects_the_pod_of_the_instance() {
    assert_eq!(network_policy(&one(json!({}))), None);
    let instance = mk(json!({"networkInterfaces": [{"network": {"name": "a"}, "networkPolicy": {"ingress": [
        {"ports": [{"port": "http"}, {"port": 1000, "endPort": 2000, "protocol": "UDP"}],
         "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]},
        {},
    ]}}]}));
    let policy = serde_json::to_value(network_policy(&instance).unwrap()).unwrap();
    let uid = json!({"compute.datumapis.com/instance-uid": instance.uid()});
    assert_eq!((&policy["metadata"]["name"], &policy["metadata"]["labels"]), (&json!("web-0"), &uid));
    assert_eq!(
        policy["spec"],
        json!({
            "podSelector": {"matchLabels": uid},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"port": "http"}, {"port": 1000, "endPort": 2000, "protocol": "UDP"}],
                 "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]},
                {},
            ],
        })
    );
    let closed = mk(json!({"networkInterfaces": [{"network": {"name": "a"}, "networkPolicy": {}}]}));
    let policy = serde_json::to_value(network_policy(&closed).unwrap()).unwrap();
    assert_eq!(policy["spec"]["ingress"], json!([]), "nothing is allowed");
}

/// The Pod of an Instance with this status.
fn with_status(instance: &Instance, status: Value) -> Pod {
    let mut pod = pod(instance, None, &PodOptions::default()).unwrap();
    pod.metadata.uid = Some("pod-1".into());
    pod.spec.as_mut().unwrap().node_name = Some("node-a".into());
    pod.status = Some(serde_json::from_value(status).unwrap());
    pod
}

/// The conditions of an observation: type, status, reason and message.
fn observed(instance: &Instance, status: Value) -> Vec<(String, String)> {
    let observation = observe(instance, &with_status(instance, status), &at(100));
    observation
        .conditions
        .iter()
        .map(|c| (format!("{}={}/{}", c.kind, c.status.as_str(), c.reason), c.message.clone()))
        .collect()
}

fn container(state: Value, more: Value) -> Value {
    let mut status = json!({
        "phase": "Running", "podIP": "10.1.2.3",
        "containerStatuses": [{"name": "app", "image": "a", "imageID": "", "ready": false, "restartCount": 0, "state": state}],
    });
    for (name, field) in more.as_object().unwrap() {
        status["containerStatuses"][0][name] = field.clone();
    }
    status
}

#[test]
fn the_status_of_a_pod_becomes_conditions() {
    let waiting = |reason: &str, message: &str| {
        container(json!({"waiting": {"reason": reason, "message": message}}), json!({}))
    };
    let running = |since: &str| json!({"running": {"startedAt": since}});
    let failed = |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
    let (long, short) = ("1970-01-01T00:00:10Z", "1970-01-01T00:01:36Z");
    let table = [
        (json!({}), "Programmed=True/Programmed", "Running=False/Starting", "container app is being started"),
        (
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}]}),
            "Programmed=False/InsufficientCapacity",
            "Running=False/Stopped",
            "no container runs",
        ),
        (
            waiting("ContainerCreating", ""),
            "Programmed=True/Programmed",
            "Running=False/Starting",
            "container app is being started",
        ),
        (
            waiting("PodInitializing", ""),
            "Programmed=True/Programmed",
            "Running=False/Starting",
            "container app is being started (PodInitializing)",
        ),
        (
            waiting("ImagePullBackOff", "Back-off pulling image"),
            "Programmed=False/ImageUnavailable",
            "Running=False/Stopped",
            "no container runs",
        ),
        (
            waiting("InvalidImageName", ""),
            "Programmed=False/ImageUnavailable",
            "Running=False/Stopped",
            "no container runs",
        ),
        (
            waiting("CreateContainerConfigError", "secret \"s\" not found"),
            "Programmed=False/ConfigurationError",
            "Running=False/Stopped",
            "no container runs",
        ),
        (
            container(
                json!({"waiting": {"reason": "CrashLoopBackOff"}}),
                json!({"restartCount": 3, "lastState": failed(7, "Error")}),
            ),
            "Programmed=True/Programmed",
            "Running=False/InstanceCrashing",
            "container app keeps exiting: restart 3; last exit: exit code 7",
        ),
        (
            container(failed(137, "OOMKilled"), json!({})),
            "Programmed=True/Programmed",
            "Running=False/InstanceCrashing",
            "container app keeps exiting: restart 1; last exit: out of memory",
        ),
        (
            container(
                running(short),
                json!({"started": true, "restartCount": 2, "lastState": failed(1, "Error")}),
            ),
            "Programmed=True/Programmed",
            "Running=False/InstanceCrashing",
            "container app keeps exiting: restart 2; last exit: exit code 1",
        ),
        (
            container(
                running(long),
                json!({"started": true, "restartCount": 2, "lastState": failed(1, "Error")}),
            ),
            "Programmed=True/Programmed",
            "Running=True/Running",
            "running at 10.1.2.3 on node node-a, 2 restarts",
        ),
        (
            container(running(short), json!({"started": true})),
            "Programmed=True/Programmed",
            "Running=True/Running",
            "running at 10.1.2.3 on node node-a",
        ),
        (
            container(running(long), json!({"started": false})),
            "Programmed=True/Programmed",
            "Running=False/Starting",
            "waiting until container app accepts connections",
        ),
        (
            json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
            "Programmed=True/Programmed",
            "Running=False/Stopped",
            "the Pod is replaced: Evicted: The node was low on resource: memory.",
        ),
        (
            json!({"phase": "Unknown"}),
            "Programmed=True/Programmed",
            "Running=False/Starting",
            "the state of the Pod is not known: its node does not report",
        ),
    ];
    for (status, programmed, running, message) in table {
        let found = observed(&one(json!({})), status.clone());
        assert_eq!(found[0].0, programmed, "{status}");
        assert_eq!((found[1].0.as_str(), found[1].1.as_str()), (running, message), "{status}");
    }
    let image = observed(&one(json!({})), waiting("ErrImagePull", "not found"));
    assert_eq!(image[0].1, "container app: not found");
}

#[test]
fn a_short_run_after_a_failure_is_looked_at_again() {
    let instance = one(json!({}));
    let state = json!({"running": {"startedAt": "1970-01-01T00:01:36Z"}});
    let last = json!({"started": true, "restartCount": 1, "lastState": {"terminated": {"exitCode": 1}}});
    let observation = observe(&instance, &with_status(&instance, container(state, last)), &at(100));
    assert_eq!(observation.again_after, Some(std::time::Duration::from_secs(6)));
}

#[test]
fn readiness_is_reported_where_a_probe_exists() {
    let probed = one(json!({"readinessProbe": {"tcpSocket": {"port": 1}}}));
    let running = json!({"running": {"startedAt": "1970-01-01T00:00:10Z"}});
    let ready = |ready: bool| container(running.clone(), json!({"started": true, "ready": ready}));
    assert_eq!(observed(&probed, ready(true))[2].0, "ContainersReady=True/ContainersReady");
    assert_eq!(observed(&probed, ready(false))[2].0, "ContainersReady=False/ContainersNotReady");
    assert_eq!(observed(&one(json!({})), ready(true)).len(), 2);
}

#[test]
fn a_pod_that_is_being_deleted_is_stopping_on_its_node() {
    let instance = one(json!({}));
    let mut pod = with_status(&instance, json!({"phase": "Running"}));
    pod.metadata.deletion_timestamp = Some(at(90));
    let observation = observe(&instance, &pod, &at(100));
    assert_eq!(observation.conditions[1].reason, "Stopping");
    assert_eq!(observation.conditions[1].message, "the Pod is being ended on node node-a");
}

#[test]
fn the_status_of_the_instance_has_address_and_hash() {
    let instance = one(json!({}));
    let state = json!({"running": {"startedAt": "1970-01-01T00:00:10Z"}});
    let pod = with_status(&instance, container(state, json!({"started": true})));
    let observation = observe(&instance, &pod, &at(100));
    let status: InstanceStatus = instance_status(&instance, &observation, true, &at(100));
    assert!(conditions::is_true(&status.conditions, "Running"));
    assert_eq!(status.controller.as_ref().unwrap().observed_template_hash, "h1");
    let address = status.network_interfaces[0].assignments.as_ref().unwrap().network_ip.as_deref();
    assert_eq!(address, Some("10.1.2.3"));
    let mut again = instance.clone();
    again.status = Some(status.clone());
    assert_eq!(
        instance_status(&again, &observation, true, &at(200)),
        status,
        "a second reconcile writes nothing"
    );
}

#[test]
fn a_pod_is_created_kept_replaced_or_deleted() {
    let instance = one(json!({}));
    let own = with_status(&instance, json!({"phase": "Running"}));
    let change = |change: fn(&mut Pod)| {
        let mut pod = own.clone();
        change(&mut pod);
        pod
    };
    let deleting = change(|pod| pod.metadata.deletion_timestamp = Some(at(1)));
    let evicted = change(|pod| pod.status.as_mut().unwrap().phase = Some("Failed".into()));
    let ended = change(|pod| pod.status.as_mut().unwrap().phase = Some("Succeeded".into()));
    let outdated = change(|pod| _ = pod.metadata.annotations.take());
    let earlier = change(|pod| {
        let labels = pod.metadata.labels.as_mut().unwrap();
        labels.insert("compute.datumapis.com/instance-uid".into(), "earlier".into());
    });
    let earlier_deleting = {
        let mut pod = earlier.clone();
        pod.metadata.deletion_timestamp = Some(at(1));
        pod
    };
    let foreign = change(|pod| _ = pod.metadata.labels.take());
    let table = [
        (None, PodAction::Create, PodAction::None),
        (Some(&own), PodAction::Unchanged, PodAction::Delete(PodDeletion::NotDesired)),
        (Some(&deleting), PodAction::AwaitDeletion, PodAction::AwaitDeletion),
        (Some(&evicted), PodAction::Delete(PodDeletion::Ended), PodAction::Delete(PodDeletion::NotDesired)),
        (Some(&ended), PodAction::Delete(PodDeletion::Ended), PodAction::Delete(PodDeletion::NotDesired)),
        (
            Some(&outdated),
            PodAction::Delete(PodDeletion::Outdated),
            PodAction::Delete(PodDeletion::NotDesired),
        ),
        (Some(&earlier), PodAction::Delete(PodDeletion::EarlierInstance), PodAction::None),
        (Some(&earlier_deleting), PodAction::AwaitDeletion, PodAction::None),
        (Some(&foreign), PodAction::NameTaken, PodAction::None),
    ];
    for (pod, running, absent) in table {
        assert_eq!(plan(&instance, DesiredPod::Running, pod), running, "{pod:?}");
        assert_eq!(plan(&instance, DesiredPod::Absent, pod), absent, "{pod:?}");
    }
}
