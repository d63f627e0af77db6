//! In-process webhook transport: the embedded API server calls the admission webhooks without a socket.
//!
//! The shipped webhook configurations name a Service of a cluster. [`InProcessWebhooks`] handles the calls to
//! this Service. Calls to any other webhook go over TLS.

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use bytes::Bytes;
use futures::future::BoxFuture;
use polis_admission::{ProjectResolver, Webhook};
use polis_api::kube::Client;
use polis_api::networking::LocationBinding;
use polis_apiserver::{TlsWebhooks, WebhookCall, WebhookTransport};
use polis_engine::{Engine, MiloProjects, Watch};
use serde_json::Value;

use super::bootstrap;
use super::planes::{PROJECT_KINDS, Planes};

/// Host name of the Service in the shipped configurations.
const SERVICE: &str = "compute-webhook.compute-system.svc";
/// The shipped admission of projects: the webhook configurations, and the policy that the manager alone
/// writes deployments and instances.
const CONFIGURATIONS: [&str; 3] = [
    include_str!("../../../../deploy/base/webhook/mutating.yaml"),
    include_str!("../../../../deploy/base/webhook/validating.yaml"),
    include_str!("../../../../deploy/components/rbac/project/managed-kinds.yaml"),
];

/// A webhook transport that calls the webhooks of this process. It exists before the webhooks, which need the
/// planes; until then calls fail. Cheap to clone.
#[derive(Clone, Default)]
pub struct InProcessWebhooks {
    webhook: Arc<OnceLock<Webhook>>,
    others: TlsWebhooks,
}

impl InProcessWebhooks {
    /// Declares the webhooks on an engine and connects the transport to them.
    pub fn connect(&self, engine: &mut Engine, projects: MiloProjects) {
        let projects = engine.planes("project", projects, [Watch::of::<LocationBinding>()]);
        let webhook = Webhook::new(ProjectResolver::by_parent(projects), &engine.handle().registry());
        self.webhook.get_or_init(|| webhook);
    }
}

impl WebhookTransport for InProcessWebhooks {
    fn post(&self, call: WebhookCall, review: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        let url: http::Uri = match call.url.parse() {
            Ok(url) => url,
            Err(error) => return Box::pin(async move { Err(format!("{}: {error}", call.url)) }),
        };
        if url.host() != Some(SERVICE) {
            return self.others.post(call, review);
        }
        let webhook = self.webhook.clone();
        Box::pin(async move {
            let webhook = webhook.get().ok_or("Polis is still starting: try again")?;
            webhook.review(url.path(), &review).await.map_err(|refusal| refusal.message)
        })
    }
}

/// Applies the shipped admission to the planes of all projects. Tenants can neither see nor change it.
pub async fn configure(planes: &Planes) -> Result<()> {
    // Objects of the plane `@<catalogue>` apply to every plane with the kinds of that catalogue.
    let service = planes.server.plane_service(&format!("@{PROJECT_KINDS}"));
    let client = Client::new(service, "default");
    for text in CONFIGURATIONS {
        for object in serde_saphyr::from_multiple::<Value>(text)? {
            bootstrap::apply(&client, &object).await?;
        }
    }
    Ok(())
}
