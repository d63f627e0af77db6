//! Components that no overlay has, put on top of one by somebody who needs them: they work with the rights that they bring, and
//! each of these rights is needed.

use std::sync::Arc;

use polis_api::kube::client::Body;
use polis_e2e::{
    planes::Identity,
    pod::webhook_client,
    rendered::{Rendered, each, word},
    rights,
    wire::{Route, Tap, Wire},
};
use polis_testbed::{Bed, manifest, plane::LONE};
use serde_json::{Value, json};

use crate::{
    TURN, apply, bed, bring_secret, checked, furnish, kubectl,
    process::{Manager, WITHIN},
    serves,
};

/// A manager whose every request is written down.
struct Overheard {
    rendered: Rendered,
    who: Identity,
    manager: Manager,
    tap: Arc<Tap>,
    _wire: Wire,
}

impl Overheard {
    /// Applies an example, and lays out its manager.
    async fn of(bed: &Bed, example: &str) -> Overheard {
        furnish(bed);
        let rendered = Rendered::of(example);
        apply(bed, &rendered);
        let who = Identity { user: rendered.user(), groups: Vec::new() };
        let client = bed.client_for(LONE, &who.user, &[]).await.expect("a client");
        let route =
            Route { prefix: String::new(), plane: LONE.to_owned(), who: Arc::new(who.clone()), client };
        let tap = Arc::new(Tap::default());
        let wire = Wire::lay(vec![route], tap.clone()).await.expect("a wire");
        let own = wire.kubeconfig();
        let manager = Manager::with(&rendered, &own, &|name| match name {
            "" => "the-wire-has-the-identity".to_owned(),
            _ => own.clone(),
        });
        Overheard { rendered, who, manager, tap, _wire: wire }
    }

    /// Holds what was asked for to what a role of this name grants: each right was needed, and nothing about its kinds was
    /// asked for beyond it.
    fn needs_each_right_of(&self, role: &str) {
        let named = |object: &&Value| {
            let name = word(&object["metadata"]["name"]);
            name == role && word(&object["apiVersion"]).starts_with("rbac.authorization.k8s.io/")
        };
        let objects: Vec<Value> = self.rendered.0.iter().filter(named).cloned().collect();
        let granted = rights::granted(&objects, &self.who);
        assert!(!granted.is_empty(), "{role} grants nothing to {}", self.who.user);
        let about = |call: &&polis_e2e::wire::Call| {
            granted.iter().any(|right| right.group == call.group && right.resource == call.resource)
        };
        let calls = self.tap.calls();
        let requests = calls.iter().filter(about).flat_map(rights::requests).collect();
        assert_eq!(rights::audit(&granted, &requests), rights::Audit::default(), "{role}");
    }
}

#[tokio::test]
async fn each_right_to_the_secret_of_the_webhooks_is_needed() {
    let (bed, _turn) = (bed().await, TURN.lock().await);
    let mut overheard = Overheard::of(bed, "docs/operations/examples/webhook-secret").await;
    let mut certificate = bring_secret(bed);
    overheard.manager.start();
    overheard.manager.leads().await;
    serves(&overheard.manager, &certificate).await;
    overheard.manager.stop();
    // In front of a server that cannot stream lists, as older ones.
    overheard.tap.list_in_pages();
    overheard.manager.start();
    overheard.manager.leads().await;
    certificate = bring_secret(bed);
    serves(&overheard.manager, &certificate).await;
    overheard.manager.stop();
    overheard.needs_each_right_of("compute-webhook-secret");
}

#[tokio::test]
async fn metrics_over_tls_are_for_the_scraper_that_is_bound_and_each_right_to_ask_about_it_is_needed() {
    let (bed, _turn) = (bed().await, TURN.lock().await);
    let mut overheard = Overheard::of(bed, "docs/operations/examples/secure-metrics").await;
    let monitor = overheard.rendered.find("ServiceMonitor", "compute-manager").expect("what scrapes");
    assert_eq!(monitor["spec"]["endpoints"][0]["scheme"], "https", "{monitor}");
    let service = overheard.rendered.find("Service", "compute-manager-metrics").expect("what is scraped");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], monitor["spec"]["endpoints"][0]["port"]);
    let policy = overheard.rendered.find("NetworkPolicy", "compute-manager").expect("who is let in");
    let ports: Vec<&Value> = each(&policy["spec"]["ingress"]).flat_map(|rule| each(&rule["ports"])).collect();
    assert_eq!(
        ports,
        [&json!({"protocol": "TCP", "port": 8443})],
        "the health address has nothing to scrape any more"
    );

    let pod = &mut overheard.manager;
    pod.start();
    let ready = manifest::until("pod", "the manager to be ready", WITHIN, async || {
        Ok(pod.ask("/readyz").filter(|answer| answer.starts_with("HTTP/1.1 200")).map(drop))
    });
    ready.await.unwrap_or_else(|err| panic!("{err}\n{}", pod.said()));
    assert!(pod.ask("/metrics").expect("an answer").starts_with("HTTP/1.1 404"));
    let token = |account: &str| {
        for arguments in [
            vec!["create", "namespace", "monitoring"],
            vec!["-n", "monitoring", "create", "serviceaccount", account],
        ] {
            // It may be there from before.
            let _made = kubectl(bed, &arguments, "");
        }
        let said = kubectl(bed, &["-n", "monitoring", "create", "token", account], "");
        said.unwrap_or_else(|err| panic!("{err}")).trim().to_owned()
    };
    let certificate = pod.pod.certificate.clone().expect("a certificate");
    for (token, code) in [(Some(token("prometheus")), 200), (Some(token("other")), 403), (None, 401)] {
        let client = webhook_client(pod.pod.metrics, &certificate);
        let mut request = http::Request::get("/metrics");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = client.send(request.body(Body::empty()).expect("a request")).await.expect("an answer");
        assert_eq!(answer.status().as_u16(), code, "{}", pod.said());
    }
    pod.stop();
    overheard.needs_each_right_of("compute-metrics-access");

    // Without the rights: nobody is let in, and it is said what grants them.
    let binding = ["delete", "clusterrolebinding", "compute-metrics-access"];
    kubectl(bed, &binding, "").unwrap_or_else(|err| panic!("{err}"));
    let said = checked(&overheard.manager);
    assert!(said.contains("deploy/components/secure-metrics/role.yaml grants it"), "{said}");
}
