//! Admission without a socket: the API server asks the webhooks in this process.
//!
//! The configurations that we ship name a service in a cluster. Here that service is a [`Doorway`]: calls to it are
//! answered by the webhooks, any other webhook that somebody configures is reached over TLS as usual.

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use bytes::Bytes;
use futures::future::BoxFuture;
use polis_admission::{Projects, Webhook};
use polis_api::kube::Client;
use polis_api::networking::LocationBinding;
use polis_apiserver::{TlsWebhooks, WebhookCall, WebhookTransport};
use polis_engine::{Engine, MiloProjects, Watch};
use serde_json::Value;

use super::furniture;
use super::planes::{PROJECT_KINDS, Planes};

/// The service that the configurations name.
const SERVICE: &str = "compute-webhook.compute-system.svc";
/// What is configured, as it is shipped.
const CONFIGURATIONS: [&str; 2] = [
    include_str!("../../../../deploy/base/webhook/mutating.yaml"),
    include_str!("../../../../deploy/base/webhook/validating.yaml"),
];

/// The way to the webhooks, which are there once the planes are. Cheap to clone.
#[derive(Clone, Default)]
pub struct Doorway {
    webhook: Arc<OnceLock<Webhook>>,
    others: TlsWebhooks,
}

impl Doorway {
    /// Puts the webhooks on an engine, and behind the door.
    pub fn open(&self, engine: &mut Engine, projects: MiloProjects) {
        let projects = engine.planes("project", projects, [Watch::of::<LocationBinding>()]);
        let webhook = Webhook::new(Projects::by_parent(projects), &engine.handle().registry());
        self.webhook.get_or_init(|| webhook);
    }
}

impl WebhookTransport for Doorway {
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
            webhook.answer(url.path(), &review).await.map_err(|refusal| refusal.message)
        })
    }
}

/// Has the planes of all projects ask the webhooks.
pub async fn configure(planes: &Planes) -> Result<()> {
    // What is written to the home of a shared catalogue holds on every plane that has its kinds.
    let service = planes.server.plane_service(&format!("@{PROJECT_KINDS}"));
    let client = Client::new(service, "default");
    for text in CONFIGURATIONS {
        for object in serde_saphyr::from_multiple::<Value>(text)? {
            furniture::apply(&client, &object).await?;
        }
    }
    Ok(())
}
