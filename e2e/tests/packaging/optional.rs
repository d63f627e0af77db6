//! Optional components on top of an overlay: they work with the permissions that they add, and need each of
//! them.

use std::sync::Arc;

use polis_api::kube::client::Body;
use polis_e2e::{
    identities::MANAGERS,
    planes::ClientIdentity,
    pod::webhook_client,
    proxy::{ProxyRoute, RequestLog, TlsProxy},
    rbac,
    rendered::{RenderedManifests, as_text, items},
};
use polis_testbed::{TestCluster, manifest, plane::SINGLE_PLANE};
use serde_json::{Value, json};

use crate::{
    MANAGER_LOCK, apply, bootstrap, check_output, cluster, kubectl,
    process::{Manager, TIMEOUT},
    until_serving, write_webhook_secret,
};

/// A manager whose requests are recorded.
struct RecordedManager {
    rendered: RenderedManifests,
    identity: ClientIdentity,
    manager: Manager,
    requests: Arc<RequestLog>,
    _proxy: TlsProxy,
}

impl RecordedManager {
    /// Applies an example and creates the files of its manager.
    async fn of(cluster: &TestCluster, example: &str) -> RecordedManager {
        bootstrap(cluster);
        let rendered = RenderedManifests::of(example);
        apply(cluster, &rendered);
        // The service account on its own cluster, and the group that other planes know the manager by.
        let identity = ClientIdentity { user: rendered.user(), groups: vec![MANAGERS.to_owned()] };
        let client = cluster.client_for(SINGLE_PLANE, &identity.user, &[MANAGERS]).await.expect("a client");
        let route = ProxyRoute {
            prefix: String::new(),
            plane: SINGLE_PLANE.to_owned(),
            identity: Arc::new(identity.clone()),
            client,
        };
        let requests = Arc::new(RequestLog::default());
        let proxy = TlsProxy::start(vec![route], requests.clone()).await.expect("a proxy");
        let own = proxy.kubeconfig();
        let manager = Manager::with(&rendered, &own, &|name| match name {
            "" => "the-proxy-has-the-identity".to_owned(),
            _ => own.clone(),
        });
        RecordedManager { rendered, identity, manager, requests, _proxy: proxy }
    }

    /// Asserts that a role grants exactly what was requested: each permission was needed, and no request for
    /// its resources was forbidden.
    fn assert_needs_each_permission_of(&self, role: &str) {
        let is_of_role = |object: &&Value| {
            let name = as_text(&object["metadata"]["name"]);
            name == role && as_text(&object["apiVersion"]).starts_with("rbac.authorization.k8s.io/")
        };
        let objects: Vec<Value> = self.rendered.0.iter().filter(is_of_role).cloned().collect();
        let granted = rbac::granted(&objects, &self.identity);
        assert!(!granted.is_empty(), "{role} grants nothing to {}", self.identity.user);
        // Another role grants requests in other namespaces.
        let is_relevant = |request: &&polis_e2e::proxy::RecordedRequest| {
            granted.iter().any(|it| {
                it.group == request.group
                    && it.resource == request.resource
                    && (it.namespace.is_none() || it.namespace == request.namespace)
            })
        };
        let recorded = self.requests.all();
        let requests = recorded.iter().filter(is_relevant).flat_map(rbac::requests).collect();
        assert_eq!(rbac::audit(&granted, &requests), rbac::RbacAudit::default(), "{role}");
    }
}

#[tokio::test]
async fn each_permission_on_the_webhook_secret_is_needed() {
    let (cluster, _lock) = (cluster().await, MANAGER_LOCK.lock().await);
    let mut recorded = RecordedManager::of(cluster, "docs/operations/examples/webhook-secret").await;
    let mut certificate = write_webhook_secret(cluster);
    recorded.manager.start();
    recorded.manager.until_leading().await;
    until_serving(&recorded.manager, &certificate).await;
    recorded.manager.stop();
    // Older API servers reject streaming lists.
    recorded.requests.list_in_pages();
    recorded.manager.start();
    recorded.manager.until_leading().await;
    certificate = write_webhook_secret(cluster);
    until_serving(&recorded.manager, &certificate).await;
    recorded.manager.stop();
    recorded.assert_needs_each_permission_of("compute-webhook-secret");
}

// Multi-threaded: the proxy must respond while the test waits for a process.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_over_tls_require_authorization_and_each_permission_for_it_is_needed() {
    let (cluster, _lock) = (cluster().await, MANAGER_LOCK.lock().await);
    let mut recorded = RecordedManager::of(cluster, "docs/operations/examples/secure-metrics").await;
    let monitor = recorded.rendered.find("ServiceMonitor", "compute-manager").expect("a ServiceMonitor");
    assert_eq!(monitor["spec"]["endpoints"][0]["scheme"], "https", "{monitor}");
    let service = recorded.rendered.find("Service", "compute-manager-metrics").expect("a Service");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], monitor["spec"]["endpoints"][0]["port"]);
    let policy = recorded.rendered.find("NetworkPolicy", "compute-manager").expect("a NetworkPolicy");
    let ports: Vec<&Value> =
        items(&policy["spec"]["ingress"]).flat_map(|rule| items(&rule["ports"])).collect();
    assert_eq!(ports, [&json!({"protocol": "TCP", "port": 8443})], "the health address serves no metrics");

    let pod = &mut recorded.manager;
    pod.start();
    let ready = manifest::until("pod", "the manager to be ready", TIMEOUT, async || {
        Ok(pod.http_get("/readyz").filter(|response| response.starts_with("HTTP/1.1 200")).map(drop))
    });
    ready.await.unwrap_or_else(|err| panic!("{err}\n{}", pod.log_text()));
    assert!(pod.http_get("/metrics").expect("a response").starts_with("HTTP/1.1 404"));
    let token = |account: &str| {
        for arguments in [
            vec!["create", "namespace", "monitoring"],
            vec!["-n", "monitoring", "create", "serviceaccount", account],
        ] {
            // They may exist from an earlier test.
            let _result = kubectl(cluster, &arguments, "");
        }
        let output = kubectl(cluster, &["-n", "monitoring", "create", "token", account], "");
        output.unwrap_or_else(|err| panic!("{err}")).trim().to_owned()
    };
    let certificate = pod.pod.certificate.clone().expect("a certificate");
    for (token, code) in [(Some(token("prometheus")), 200), (Some(token("other")), 403), (None, 401)] {
        let client = webhook_client(pod.pod.metrics, &certificate);
        let mut request = http::Request::get("/metrics");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response =
            client.send(request.body(Body::empty()).expect("a request")).await.expect("a response");
        assert_eq!(response.status().as_u16(), code, "{}", pod.log_text());
    }
    pod.stop();
    recorded.assert_needs_each_permission_of("compute-metrics-access");

    // Without the permissions, the check reports what grants them.
    let binding = ["delete", "clusterrolebinding", "compute-metrics-access"];
    kubectl(cluster, &binding, "").unwrap_or_else(|err| panic!("{err}"));
    let output = check_output(&recorded.manager);
    assert!(output.contains("deploy/components/secure-metrics/role.yaml grants it"), "{output}");
}
