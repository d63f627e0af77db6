//! The client of a registry: manifests and blobs over the distribution API, with tokens, redirects, retries,
//! and limits of size and time.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, LOCATION, USER_AGENT, WWW_AUTHENTICATE};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::ImageError;
use super::manifest::ACCEPTED;
use super::reference::{Digest, Reference};

/// Attempts of a request that fails for a reason that may pass.
const ATTEMPTS: u32 = 3;
/// Time before the second attempt; it doubles.
const BACKOFF: Duration = Duration::from_millis(300);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the head of a response, and of each further part of its body.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Size of a manifest, a configuration or a token at most.
const MAX_DOCUMENT: usize = 4 << 20;
const MAX_REDIRECTS: u32 = 5;

/// How registries are reached.
#[derive(Clone, Debug, Default)]
pub struct RegistrySettings {
    /// Registries without TLS, by host or host and port. Those on loopback addresses never need an entry.
    pub plain_http: Vec<String>,
    /// A configuration of docker or podman whose credentials all tenants may use.
    pub docker_config: Option<PathBuf>,
}

/// Credentials by registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credentials(BTreeMap<String, String>);

impl Credentials {
    /// Adds the entries of a docker configuration, such as `.dockerconfigjson` of a Secret.
    pub(crate) fn add(&mut self, docker_config: &[u8]) {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Config {
            auths: BTreeMap<String, Entry>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Entry {
            auth: String,
            username: String,
            password: String,
        }
        let Ok(config) = serde_json::from_slice::<Config>(docker_config) else { return };
        for (registry, entry) in config.auths {
            let host = registry.trim_start_matches("https://").trim_start_matches("http://");
            let host = host.split('/').next().unwrap_or_default();
            let host = if host == "index.docker.io" { "docker.io" } else { host };
            let auth = match entry.auth.is_empty() {
                true => STANDARD.encode(format!("{}:{}", entry.username, entry.password)),
                false => entry.auth,
            };
            self.0.entry(host.to_owned()).or_insert(auth);
        }
    }

    fn of(&self, reference: &Reference) -> Option<&str> {
        self.0.get(&reference.registry).map(String::as_str)
    }

    /// A fingerprint of the credentials for a registry: who may read an image, others may not.
    pub(super) fn fingerprint(&self, reference: &Reference) -> String {
        Digest::of(self.of(reference).unwrap_or_default().as_bytes()).hex()[..16].to_owned()
    }
}

/// A session with the registry of one image.
pub(super) struct Registry<'a> {
    settings: &'a RegistrySettings,
    reference: &'a Reference,
    basic: Option<String>,
    /// The value of the `Authorization` header, once the registry has asked for one.
    authorization: Option<String>,
}

/// Why a request failed, and whether another attempt may help.
struct Failure {
    why: String,
    passing: bool,
}

impl Failure {
    fn passing(why: impl Into<String>) -> Self {
        Failure { why: why.into(), passing: true }
    }

    fn lasting(why: impl Into<String>) -> Self {
        Failure { why: why.into(), passing: false }
    }
}

impl<'a> Registry<'a> {
    pub(super) fn new(
        settings: &'a RegistrySettings,
        reference: &'a Reference,
        credentials: &Credentials,
    ) -> Self {
        let basic = credentials.of(reference).map(|auth| format!("Basic {auth}"));
        Registry { settings, reference, basic, authorization: None }
    }

    /// Fetches a manifest by tag or digest.
    pub(super) async fn manifest(&mut self, version: &str) -> Result<Bytes, ImageError> {
        let bytes = self.document("manifests", version).await?;
        match Digest::parse(version) {
            Some(digest) => verified(bytes, &digest),
            None => Ok(bytes),
        }
    }

    /// Fetches the configuration of an image.
    pub(super) async fn config(&mut self, digest: &Digest) -> Result<Bytes, ImageError> {
        verified(self.document("blobs", &digest.to_string()).await?, digest)
    }

    async fn document(&mut self, kind: &str, version: &str) -> Result<Bytes, ImageError> {
        let path = format!("/v2/{}/{kind}/{version}", self.reference.repository);
        let mut attempt = 1;
        loop {
            let failure = match self.get(&path).await {
                Ok(response) => {
                    let body = Limited::new(response.into_body(), MAX_DOCUMENT).collect();
                    match timeout(RESPONSE_TIMEOUT, body).await {
                        Ok(Ok(body)) => return Ok(body.to_bytes()),
                        Ok(Err(error)) => Failure::passing(error.to_string()),
                        Err(_) => Failure::passing("it stopped in the middle of a response"),
                    }
                }
                Err(failure) => failure,
            };
            self.retry(failure, &mut attempt).await?;
        }
    }

    /// Downloads a blob into an empty file, and verifies its size and digest.
    pub(super) async fn blob(
        &mut self,
        digest: &Digest,
        size: u64,
        file: &mut std::fs::File,
    ) -> Result<(), ImageError> {
        use std::io::prelude::*;
        let path = format!("/v2/{}/blobs/{digest}", self.reference.repository);
        let broken =
            |error: std::io::Error| ImageError::new(format!("it cannot be stored on this host: {error}"));
        let mut attempt = 1;
        loop {
            file.set_len(0).and_then(|()| file.rewind()).map_err(broken)?;
            let failure = match self.get(&path).await {
                Ok(response) => match copy(response.into_body(), size, file).await {
                    Ok(found) if found == *digest => return Ok(()),
                    Ok(found) => Failure::lasting(format!("it sent the content {found} for {digest}")),
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            self.retry(failure, &mut attempt).await?;
        }
    }

    /// Waits before the next attempt; an error if there is none.
    async fn retry(&self, failure: Failure, attempt: &mut u32) -> Result<(), ImageError> {
        if !failure.passing || *attempt == ATTEMPTS {
            let Failure { why, .. } = failure;
            return Err(ImageError::new(format!("the registry {}: {why}", self.reference.registry)));
        }
        sleep(BACKOFF * (1 << (*attempt - 1))).await;
        *attempt += 1;
        Ok(())
    }

    /// Sends a GET; answers a challenge and follows redirects.
    async fn get(&mut self, path: &str) -> Result<Response<Incoming>, Failure> {
        let scheme = if self.is_plain() { "http" } else { "https" };
        let own = format!("{scheme}://{}{path}", self.reference.address());
        let mut uri: Uri = own.parse().map_err(|error| Failure::lasting(format!("{own}: {error}")))?;
        let mut challenged = false;
        let mut redirects = 0;
        loop {
            let is_own =
                uri.authority().is_some_and(|authority| authority.as_str() == self.reference.address());
            let authorization = self.authorization.as_deref().filter(|_| is_own);
            let response = send(&uri, authorization).await?;
            match response.status() {
                status if status.is_success() => return Ok(response),
                StatusCode::UNAUTHORIZED if is_own && !challenged => {
                    challenged = true;
                    self.authorization = Some(self.answer(&response).await?);
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    let with = if self.basic.is_some() { "its credentials" } else { "no credentials" };
                    return Err(Failure::lasting(format!(
                        "access to {} is denied with {with}; add an image pull secret",
                        self.reference.repository
                    )));
                }
                StatusCode::NOT_FOUND => {
                    return Err(Failure::lasting(format!("there is no {}", self.reference)));
                }
                status if status.is_redirection() && redirects < MAX_REDIRECTS => {
                    redirects += 1;
                    uri = redirected(&uri, &response)?;
                }
                status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                    return Err(Failure::passing(format!("it responds with {status}")));
                }
                status => return Err(Failure::lasting(format!("it responds with {status}"))),
            }
        }
    }

    fn is_plain(&self) -> bool {
        let address = self.reference.address();
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let loopback = host == "localhost"
            || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        loopback || self.settings.plain_http.iter().any(|plain| plain == address || plain == host)
    }

    /// The `Authorization` header for a challenge: a token of the realm, or the credentials themselves.
    async fn answer(&self, response: &Response<Incoming>) -> Result<String, Failure> {
        #[derive(Deserialize)]
        struct Token {
            #[serde(alias = "access_token")]
            token: String,
        }
        let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let challenge = challenge.unwrap_or_default();
        let Some(parameters) = challenge.strip_prefix("Bearer ") else {
            return self.basic.clone().ok_or_else(|| {
                Failure::lasting(format!(
                    "access to {} is denied without credentials; add an image pull secret",
                    self.reference.repository
                ))
            });
        };
        let parameter = |name: &str| {
            let start = parameters.find(&format!("{name}=\""))? + name.len() + 2;
            parameters[start..].split('"').next()
        };
        let realm = parameter("realm").unwrap_or_default();
        let service = parameter("service").unwrap_or_default();
        let scope = format!("repository:{}:pull", self.reference.repository);
        let separator = if realm.contains('?') { '&' } else { '?' };
        let uri = format!("{realm}{separator}service={service}&scope={scope}");
        let uri: Uri = uri.parse().map_err(|_| Failure::lasting("it names an invalid address for tokens"))?;
        if uri.scheme_str() == Some("http") && !self.is_plain() {
            return Err(Failure::lasting("it asks to send credentials without TLS"));
        }
        let response = send(&uri, self.basic.as_deref()).await?;
        if !response.status().is_success() {
            let status = response.status();
            let denied = format!(
                "access to {} is denied ({status}); check the image pull secret",
                self.reference.repository
            );
            return Err(if status.is_server_error() {
                Failure::passing(denied)
            } else {
                Failure::lasting(denied)
            });
        }
        let body =
            timeout(RESPONSE_TIMEOUT, Limited::new(response.into_body(), MAX_DOCUMENT).collect()).await;
        let body =
            body.ok().and_then(Result::ok).ok_or_else(|| Failure::passing("it sent no token in time"))?;
        let token: Token = serde_json::from_slice(&body.to_bytes())
            .map_err(|_| Failure::lasting("it sent no valid token"))?;
        Ok(format!("Bearer {}", token.token))
    }
}

fn verified(bytes: Bytes, digest: &Digest) -> Result<Bytes, ImageError> {
    let found = Digest::of(&bytes);
    if found == *digest {
        return Ok(bytes);
    }
    Err(ImageError::new(format!("the registry sent the content {found} for {digest}")))
}

fn redirected(from: &Uri, response: &Response<Incoming>) -> Result<Uri, Failure> {
    let invalid = || Failure::lasting("it redirects to an invalid address");
    let location =
        response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).ok_or_else(invalid)?;
    let absolute = match location.starts_with('/') {
        true => format!(
            "{}://{}{location}",
            from.scheme_str().unwrap_or("https"),
            from.authority().map_or("", |authority| authority.as_str())
        ),
        false => location.to_owned(),
    };
    let to: Uri = absolute.parse().map_err(|_| invalid())?;
    if from.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
        return Err(Failure::lasting("it redirects to an address without TLS"));
    }
    Ok(to)
}

/// Copies a body of this size to a file; returns its digest.
async fn copy(mut body: Incoming, size: u64, file: &mut std::fs::File) -> Result<Digest, Failure> {
    let mut hash = Sha256::new();
    let mut left = size;
    loop {
        let frame = match timeout(RESPONSE_TIMEOUT, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                return Err(Failure::passing(format!("it broke the connection: {error}")));
            }
            Ok(None) if left == 0 => return Ok(Digest::from_hash(&hash.finalize())),
            Ok(None) => return Err(Failure::passing("it sent less than the manifest names")),
            Err(_) => return Err(Failure::passing("it stopped in the middle of a response")),
        };
        let Some(data) = frame.data_ref() else { continue };
        left = left
            .checked_sub(data.len() as u64)
            .ok_or_else(|| Failure::lasting("it sent more than the manifest names"))?;
        hash.update(data);
        // Pages of the file, not the disk: the write returns at once.
        file.write_all(data)
            .map_err(|error| Failure::lasting(format!("its content cannot be stored: {error}")))?;
    }
}

/// Sends a GET over a connection of its own.
async fn send(uri: &Uri, authorization: Option<&str>) -> Result<Response<Incoming>, Failure> {
    let host = uri.host().ok_or_else(|| Failure::lasting(format!("{uri} has no host")))?;
    let tls = uri.scheme_str() != Some("http");
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let failed = |why: &str| Failure::passing(format!("failed to connect to {host}:{port}: {why}"));
    let connecting = TcpStream::connect((host.trim_matches(['[', ']']), port));
    let stream = match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed(&error.to_string())),
        Err(_) => return Err(failed("no answer in time")),
    };
    let mut request = Request::get(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(HOST, uri.authority().map_or(host, |authority| authority.as_str()))
        .header(USER_AGENT, concat!("polis/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, ACCEPTED);
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    let request = request.body(Empty::new()).map_err(|error| Failure::lasting(error.to_string()))?;
    if !tls {
        return exchange(stream, request).await;
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|error| Failure::lasting(error.to_string()))?;
    match timeout(CONNECT_TIMEOUT, TlsConnector::from(tls_config()).connect(name, stream)).await {
        Ok(Ok(stream)) => exchange(stream, request).await,
        Ok(Err(error)) => Err(failed(&error.to_string())),
        Err(_) => Err(failed("no TLS answer in time")),
    }
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<Response<Incoming>, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let exchange = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        sender.send_request(request).await
    };
    match timeout(RESPONSE_TIMEOUT, exchange).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(Failure::passing(format!("it broke the connection: {error}"))),
        Err(_) => Err(Failure::passing("it does not respond")),
    }
}

/// TLS with the certificate authorities of this machine.
fn tls_config() -> Arc<ClientConfig> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let build = || {
        let mut roots = RootCertStore::empty();
        for certificate in rustls_native_certs::load_native_certs().certs {
            _ = roots.add(certificate);
        }
        Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
    };
    CONFIG.get_or_init(build).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_by_registry() {
        let mut credentials = Credentials::default();
        credentials.add(br#"{"auths": {"https://index.docker.io/v1/": {"auth": "YTpi"}, "ghcr.io": {"username": "u", "password": "p"}}}"#);
        credentials.add(b"not json");
        let of = |name: &str| credentials.of(&Reference::parse(name).unwrap()).map(str::to_owned);
        assert_eq!(of("nginx").as_deref(), Some("YTpi"));
        assert_eq!(of("ghcr.io/a/b").as_deref(), Some("dTpw"));
        assert_eq!(of("quay.io/a/b"), None);
    }

    #[test]
    fn loopback_and_configured_registries_have_no_tls() {
        let settings = RegistrySettings { plain_http: vec!["registry.lan".into()], docker_config: None };
        let plain = |name: &str| {
            let reference = Reference::parse(name).unwrap();
            Registry::new(&settings, &reference, &Credentials::default()).is_plain()
        };
        for name in ["localhost:5000/a", "127.0.0.1:5000/a", "registry.lan/a", "registry.lan:80/a"] {
            assert!(plain(name), "{name}");
        }
        assert!(!plain("nginx") && !plain("ghcr.io/a/b"));
    }
}
