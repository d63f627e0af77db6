//! Calls admission webhooks, over TLS or through a transport of the embedding program.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use polis_apimachinery::{
    admission_policy::{MatchResult, PolicyInputs, compile_match_conditions},
    object, patch,
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{
    Request, configurations, matching,
    quarantine::{HardFailure, QUARANTINED, Subject},
};
use crate::{kinds::Version, status::StatusError, verbs::Call};

/// Largest response body of a webhook, in bytes.
const RESPONSE_MAX: usize = 3 << 20;

/// The address of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCall {
    /// `https://host:port/path`; for a service `https://name.namespace.svc:port/path`.
    pub url: String,
    /// The trusted authorities of its certificate (`caBundle`), in PEM.
    pub authorities: Vec<u8>,
}

/// Sends AdmissionReviews to webhooks. Tests and `polis up` implement it in process.
pub trait WebhookTransport: Send + Sync + 'static {
    /// Posts a review and returns the response body, or the reason why there is none.
    fn post(&self, call: WebhookCall, review: Bytes) -> BoxFuture<'static, Result<Bytes, String>>;
}

/// Calls webhooks over TLS. There is no cluster DNS, so the addresses of services are configured.
#[derive(Clone, Debug, Default)]
pub struct TlsWebhooks {
    /// Host in the URL (`name.namespace.svc`) → `address:port` to connect to.
    services: Arc<BTreeMap<String, String>>,
}

impl TlsWebhooks {
    /// With the addresses of services, by `name.namespace.svc`.
    pub fn new(services: BTreeMap<String, String>) -> Self {
        Self { services: Arc::new(services) }
    }
}

impl WebhookTransport for TlsWebhooks {
    fn post(&self, call: WebhookCall, review: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        let services = self.services.clone();
        Box::pin(async move {
            let uri: http::Uri = call.url.parse().map_err(|error| format!("{}: {error}", call.url))?;
            let host = uri.host().ok_or("the URL names no host")?.to_owned();
            let address = services
                .get(&host)
                .cloned()
                .unwrap_or_else(|| format!("{host}:{}", uri.port_u16().unwrap_or(443)));
            let mut roots = RootCertStore::empty();
            for root in CertificateDer::pem_slice_iter(&call.authorities) {
                roots.add(root.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
            }
            let config =
                ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                    .with_safe_default_protocol_versions()
                    .map_err(|error| error.to_string())?
                    .with_root_certificates(roots)
                    .with_no_client_auth();
            let tcp =
                TcpStream::connect(&address).await.map_err(|error| format!("dial {address}: {error}"))?;
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                .map_err(|error| error.to_string())?;
            let tls = TlsConnector::from(Arc::new(config))
                .connect(name, tcp)
                .await
                .map_err(|error| format!("tls: {error}"))?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls))
                .await
                .map_err(|error| error.to_string())?;
            let driver = tokio::spawn(connection);
            let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
            let request = http::Request::post(path)
                .header(
                    http::header::HOST,
                    uri.authority().map_or(host.as_str(), |authority| authority.as_str()),
                )
                .header(http::header::CONTENT_TYPE, "application/json")
                .header(http::header::ACCEPT, "application/json")
                .body(Full::new(review))
                .map_err(|error| error.to_string())?;
            let response = async {
                let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
                let status = response.status();
                let body = Limited::new(response.into_body(), RESPONSE_MAX)
                    .collect()
                    .await
                    .map_err(|error| error.to_string())?
                    .to_bytes();
                if status.is_success() { Ok(body) } else { Err(format!("the server returned {status}")) }
            }
            .await;
            driver.abort();
            response
        })
    }
}

/// Why a webhook gave no response.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("failed to call webhook: no response within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("{0}")]
    Failed(String),
}

impl From<String> for CallError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<&str> for CallError {
    fn from(why: &str) -> Self {
        Self::Failed(why.to_owned())
    }
}

/// A webhook that matches the request.
struct Webhook {
    name: String,
    /// Its configuration, if that can be quarantined.
    subject: Option<Subject>,
    spec: Value,
    version: Arc<Version>,
}

/// The webhooks of a configuration kind that match the request.
fn hooks(request: &Request<'_>, plural: &'static str) -> Result<Vec<Webhook>, StatusError> {
    let mut found = Vec::new();
    for configuration in configurations(request.call, plural) {
        for spec in configuration.object["webhooks"].as_array().into_iter().flatten() {
            let equivalent = spec["matchPolicy"] != "Exact";
            let Some(version) = matching::covered_version(&spec["rules"], equivalent, request) else {
                continue;
            };
            if !matching::selected(spec, request) {
                continue;
            }
            let hook = Webhook {
                name: spec["name"].as_str().unwrap_or_default().to_owned(),
                subject: Subject::of(
                    &configuration.plane,
                    plural,
                    &configuration.name,
                    &configuration.object,
                ),
                spec: spec.clone(),
                version,
            };
            if conditions_hold(&hook, request)? {
                found.push(hook);
            }
        }
    }
    Ok(found)
}

fn conditions_hold(hook: &Webhook, request: &Request<'_>) -> Result<bool, StatusError> {
    if hook.spec["matchConditions"].as_array().is_none_or(Vec::is_empty) {
        return Ok(true);
    }
    let described = request.describe(&hook.version, "");
    let namespace = request.namespace().unwrap_or(Value::Null);
    let inputs = PolicyInputs {
        object: request.object.unwrap_or(&Value::Null),
        old_object: request.old.unwrap_or(&Value::Null),
        request: &described,
        params: &Value::Null,
        namespace_object: &namespace,
    };
    let failed = match compile_match_conditions(&hook.spec["matchConditions"], "matchConditions") {
        Ok(conditions) => match conditions.matches(&inputs) {
            MatchResult::Yes => return Ok(true),
            MatchResult::No => return Ok(false),
            MatchResult::Failed(why) => why,
        },
        Err(errors) => polis_apimachinery::aggregate(&errors),
    };
    if hook.spec["failurePolicy"] == "Ignore" {
        return Ok(false);
    }
    Err(StatusError::forbidden(
        &request.call.kind.group_resource(),
        request.name(),
        &format!("webhook \"{}\": {failed}", hook.name),
    ))
}

/// The object in the version that the rules of a webhook name.
fn in_version(object: Option<&Value>, version: &Version) -> Value {
    let mut shown = object.cloned().unwrap_or(Value::Null);
    if shown.is_object() {
        shown["apiVersion"] = version.api_version.clone().into();
    }
    shown
}

impl Webhook {
    /// Calls the webhook. Returns `None` if the call failed and the failure policy is `Ignore`.
    async fn call(&self, request: &Request<'_>) -> Result<Option<Value>, StatusError> {
        let call = request.call;
        if call.options.dry_run == crate::http::DryRun::All
            && !matches!(self.spec["sideEffects"].as_str(), Some("None" | "NoneOnDryRun"))
        {
            return Err(StatusError::bad_request(format!(
                "admission webhook \"{}\" does not support dry run",
                self.name
            )));
        }
        let (core, subject) = (&call.core, self.subject.as_ref());
        let answer = match core.quarantine.holds(subject, core.clock.now()) {
            true => Err(CallError::Failed(QUARANTINED.to_owned())),
            false => {
                let answer = self.try_call(request).await;
                let timed_out = matches!(answer, Err(CallError::TimedOut(_)));
                let failure = timed_out.then_some(HardFailure::TimedOut);
                core.quarantine.record(subject, failure, core.clock.now());
                answer
            }
        };
        match answer {
            Ok(response) => Ok(Some(response)),
            Err(why) if self.spec["failurePolicy"] == "Ignore" => {
                tracing::warn!(webhook = self.name, %why, "failed to call webhook; ignored because failurePolicy is Ignore");
                Ok(None)
            }
            Err(why) => {
                Err(StatusError::internal(&format!("failed calling webhook \"{}\": {why}", self.name)))
            }
        }
    }

    async fn try_call(&self, request: &Request<'_>) -> Result<Value, CallError> {
        let call = request.call;
        let uid = call.core.random.uid();
        let mut admission_request = request.describe(&self.version, &uid);
        admission_request["object"] = in_version(request.object, &self.version);
        admission_request["oldObject"] = in_version(request.old, &self.version);
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": admission_request});
        let timeout = Duration::from_secs(self.spec["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30));
        let post = call.core.webhooks.post(self.target()?, review.to_string().into());
        let response = tokio::time::timeout(timeout, post)
            .await
            .map_err(|_| CallError::TimedOut(timeout))?
            .map_err(|why| format!("failed to call webhook: {why}"))?;
        let review: Value = serde_json::from_slice(&response)
            .map_err(|error| format!("received invalid webhook response: {error}"))?;
        let response = &review["response"];
        if response["uid"] != uid.as_str() {
            return Err(format!("received invalid webhook response: expected response.uid={uid:?}").into());
        }
        if !response["allowed"].is_boolean() {
            return Err("received invalid webhook response: response.allowed is missing".into());
        }
        Ok(response.clone())
    }

    fn target(&self) -> Result<WebhookCall, String> {
        let client = &self.spec["clientConfig"];
        let authorities = STANDARD
            .decode(client["caBundle"].as_str().unwrap_or_default())
            .map_err(|error| format!("caBundle: {error}"))?;
        let url = match client["url"].as_str() {
            Some(url) => url.to_owned(),
            None => {
                let service = &client["service"];
                let text = |field: &str| service[field].as_str().unwrap_or_default();
                let path = text("path").trim_start_matches('/');
                format!(
                    "https://{}.{}.svc:{}/{path}",
                    text("name"),
                    text("namespace"),
                    service["port"].as_u64().unwrap_or(443)
                )
            }
        };
        Ok(WebhookCall { url, authorities })
    }

    /// Records the warnings of a response, and returns its denial as an error.
    fn check_response(&self, call: &Call, response: &Value) -> Result<(), StatusError> {
        object::strings(&response["warnings"]).into_iter().for_each(|warning| call.warn(warning));
        if response["allowed"] == true {
            return Ok(());
        }
        let status = &response["status"];
        let code = status["code"]
            .as_u64()
            .and_then(|code| u16::try_from(code).ok())
            .filter(|code| (400..600).contains(code))
            .unwrap_or(400);
        let denied = format!("admission webhook \"{}\" denied the request", self.name);
        let message = match (
            status["message"].as_str().unwrap_or_default(),
            status["reason"].as_str().unwrap_or_default(),
        ) {
            ("", "") => format!("{denied} without explanation"),
            ("", reason) => format!("{denied}: {reason}"),
            (message, _) => format!("{denied}: {message}"),
        };
        Err(StatusError::new(code, "", message)
            .with_reason(code, status["reason"].as_str().unwrap_or_default().to_owned())
            .with_details(&status["details"]))
    }
}

/// Calls the mutating webhooks in order. If a later webhook changed the object, the earlier webhooks with
/// `reinvocationPolicy: IfNeeded` are called once more.
pub(super) async fn mutate(call: &Call, object: &mut Value, old: Option<&Value>) -> Result<(), StatusError> {
    let first = hooks(&Request::new(call, Some(object), old), "mutatingwebhookconfigurations")?;
    let mut changed_by = None;
    for (n, hook) in first.iter().enumerate() {
        if apply(call, hook, object, old).await? {
            changed_by = Some(n);
        }
    }
    let Some(last) = changed_by else { return Ok(()) };
    for hook in first[..last].iter().filter(|hook| hook.spec["reinvocationPolicy"] == "IfNeeded") {
        apply(call, hook, object, old).await?;
    }
    let mut defaulted = object.clone();
    call.version.versioned_schema.prune_and_default(&mut defaulted, false)?;
    *object = defaulted;
    Ok(())
}

/// Calls a mutating webhook and applies its patch. Returns whether the object changed.
async fn apply(
    call: &Call,
    hook: &Webhook,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<bool, StatusError> {
    let response = hook.call(&Request::new(call, Some(object), old)).await?;
    let Some(response) = response else { return Ok(false) };
    hook.check_response(call, &response)?;
    let Some(encoded) = response["patch"].as_str().filter(|patch| !patch.is_empty()) else {
        return Ok(false);
    };
    let broken = |why: &str| {
        StatusError::internal(&format!(
            "failed calling webhook \"{}\": its patch cannot be applied: {why}",
            hook.name
        ))
    };
    let bytes = STANDARD.decode(encoded).map_err(|error| broken(&error.to_string()))?;
    let operations: Value = serde_json::from_slice(&bytes).map_err(|error| broken(&error.to_string()))?;
    let mut patched = patch::json::patch(&in_version(Some(object), &hook.version), &operations)
        .map_err(|error| broken(&error.to_string()))?;
    patched["apiVersion"] = call.version.api_version.clone().into();
    let changed = patched != *object;
    *object = patched;
    Ok(changed)
}

/// Calls the validating webhooks concurrently.
pub(super) async fn validate(request: &Request<'_>) -> Result<(), StatusError> {
    let hooks = hooks(request, "validatingwebhookconfigurations")?;
    let responses = join_all(hooks.iter().map(|hook| hook.call(request))).await;
    for (hook, response) in hooks.iter().zip(responses) {
        if let Some(response) = response? {
            hook.check_response(request.call, &response)?;
        }
    }
    Ok(())
}
