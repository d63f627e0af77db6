//! Client sockets to API servers: TCP, and TLS for `https`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use polis_api::kube;
use polis_api::kube::client::ConfigExt;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::TransportError;

/// Timeout of the TCP connect and the TLS handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of a server and its TLS settings.
#[derive(Clone)]
pub(crate) struct Target {
    /// `host:port`, for messages and for the `:authority` header.
    pub(crate) authority: Arc<str>,
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
    pub(crate) tls: Option<Tls>,
}

#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientTlsConfig>,
    /// The name that the server's certificate must have.
    pub(crate) server_name: ServerName<'static>,
}

/// The CA and the client certificate of a kubeconfig. A client certificate in files is reloaded for the first
/// connection after the files have changed, because certificates are renewed in place.
pub(crate) struct ClientTlsConfig {
    kubeconfig: kube::Config,
    loaded: Mutex<(FileVersions, Arc<rustls::ClientConfig>)>,
}

/// Modification time and size of the certificate file and the key file.
type FileVersions = [Option<(SystemTime, u64)>; 2];

impl ClientTlsConfig {
    pub(crate) fn new(kubeconfig: &kube::Config) -> Result<Self, String> {
        let file_versions = file_versions(kubeconfig);
        let config = client_config(kubeconfig)?;
        Ok(Self { kubeconfig: kubeconfig.clone(), loaded: Mutex::new((file_versions, config)) })
    }

    /// The configuration for the next connection. If the files cannot be used, for example because they are
    /// half written, the previous configuration stays in use.
    fn current(&self) -> Arc<rustls::ClientConfig> {
        let mut loaded = self.loaded.lock();
        let file_versions = file_versions(&self.kubeconfig);
        if loaded.0 != file_versions {
            match client_config(&self.kubeconfig) {
                Ok(config) => *loaded = (file_versions, config),
                Err(why) => {
                    tracing::warn!(%why, "failed to load the renewed client certificate; using the previous one");
                }
            }
        }
        loaded.1.clone()
    }
}

fn client_config(kubeconfig: &kube::Config) -> Result<Arc<rustls::ClientConfig>, String> {
    let mut config = kubeconfig.rustls_client_config().map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn file_versions(kubeconfig: &kube::Config) -> FileVersions {
    [&kubeconfig.auth_info.client_certificate, &kubeconfig.auth_info.client_key].map(|path| {
        let file = std::fs::metadata(path.as_ref()?).ok()?;
        Some((file.modified().ok()?, file.len()))
    })
}

/// A socket, with or without TLS.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// A connected socket, by the HTTP version that the server chose.
pub(crate) enum Dialed {
    Http2(Box<dyn Socket>),
    Http1(Box<dyn Socket>),
}

impl Target {
    /// Another host with the same CA. A `tls-server-name` of the kubeconfig still applies.
    pub(crate) fn at_host(&self, host: &str, port: u16) -> Self {
        let name = |host: &str| ServerName::try_from(host.to_owned()).ok();
        let tls = self.tls.clone().map(|tls| Tls {
            server_name: match name(host) {
                Some(other) if name(&self.host).as_ref() == Some(&tls.server_name) => other,
                _ => tls.server_name,
            },
            config: tls.config,
        });
        Self { authority: format!("{host}:{port}").into(), host: host.into(), port, tls }
    }

    /// Opens a socket. The server chooses HTTP/2 or HTTP/1.1 by ALPN; without TLS it is HTTP/1.1.
    pub(crate) async fn dial(&self) -> Result<Dialed, TransportError> {
        match timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(dialed) => dialed,
            Err(_) => Err(TransportError::Timeout { after: CONNECT_TIMEOUT }),
        }
    }

    async fn connect(&self) -> Result<Dialed, TransportError> {
        let socket = TcpStream::connect((&*self.host, self.port))
            .await
            .map_err(|error| self.unreachable(&error.to_string()))?;
        // Requests are small, and Nagle's algorithm would delay them. The socket also works without this
        // option.
        let _ = socket.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return Ok(Dialed::Http1(Box::new(socket)));
        };
        let stream =
            TlsConnector::from(tls.config.current()).connect(tls.server_name.clone(), socket).await.map_err(
                |error| TransportError::Tls { host: self.authority.clone(), why: error.to_string().into() },
            )?;
        let chosen = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(if chosen { Dialed::Http2(Box::new(stream)) } else { Dialed::Http1(Box::new(stream)) })
    }

    fn unreachable(&self, why: &str) -> TransportError {
        TransportError::Connect { host: self.authority.clone(), why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_target(name: &str) -> Target {
        let roots = rustls::RootCertStore::empty();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let kubeconfig = kube::Config::new("https://milo.example".parse().unwrap());
        let config = ClientTlsConfig { kubeconfig, loaded: Mutex::new(([None, None], Arc::new(config))) };
        let server_name = ServerName::try_from(name.to_owned()).unwrap();
        let tls = Some(Tls { config: Arc::new(config), server_name });
        Target { authority: "milo.example:443".into(), host: "milo.example".into(), port: 443, tls }
    }

    #[test]
    fn another_host_must_have_its_own_name_in_its_certificate() {
        let other = mk_target("milo.example").at_host("shop.svc", 6443);
        assert_eq!((&*other.authority, &*other.host, other.port), ("shop.svc:6443", "shop.svc", 6443));
        assert_eq!(other.tls.unwrap().server_name, ServerName::try_from("shop.svc").unwrap());
    }

    #[test]
    fn the_tls_server_name_of_the_kubeconfig_applies_to_other_hosts() {
        let other = mk_target("planes.internal").at_host("shop.svc", 6443);
        assert_eq!(other.tls.unwrap().server_name, ServerName::try_from("planes.internal").unwrap());
    }
}
