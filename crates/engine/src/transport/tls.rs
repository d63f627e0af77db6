//! Opening a socket, and TLS on it when the host asks for it.

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

/// Time for TCP and TLS together.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Where to connect to, and whom to expect there.
#[derive(Clone)]
pub(crate) struct Target {
    /// `host:port`, for messages and for the `:authority` of requests.
    pub(crate) authority: Arc<str>,
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
    pub(crate) tls: Option<Tls>,
}

#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) identity: Arc<Identity>,
    pub(crate) expect: ServerName<'static>,
}

/// Whom to trust and who we are, as a configuration says. A client certificate in files is read anew for the first
/// connection after they changed: short-lived certificates are renewed in place.
pub(crate) struct Identity {
    from: kube::Config,
    made: Mutex<(Stamps, Arc<rustls::ClientConfig>)>,
}

/// When the files of certificate and key were written, and how long they are.
type Stamps = [Option<(SystemTime, u64)>; 2];

impl Identity {
    pub(crate) fn new(from: &kube::Config) -> Result<Self, String> {
        let stamps = stamps(from);
        let config = client_config(from)?;
        Ok(Self { from: from.clone(), made: Mutex::new((stamps, config)) })
    }

    /// What the next connection is made with. Files that cannot be used leave it as it was: they may be half written.
    fn current(&self) -> Arc<rustls::ClientConfig> {
        let mut made = self.made.lock();
        let stamps = stamps(&self.from);
        if made.0 != stamps {
            match client_config(&self.from) {
                Ok(config) => *made = (stamps, config),
                Err(why) => {
                    tracing::warn!(%why, "the renewed client certificate cannot be used; going on with the last one");
                }
            }
        }
        made.1.clone()
    }
}

fn client_config(from: &kube::Config) -> Result<Arc<rustls::ClientConfig>, String> {
    let mut config = from.rustls_client_config().map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn stamps(from: &kube::Config) -> Stamps {
    [&from.auth_info.client_certificate, &from.auth_info.client_key].map(|path| {
        let file = std::fs::metadata(path.as_ref()?).ok()?;
        Some((file.modified().ok()?, file.len()))
    })
}

/// A socket, with or without TLS.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// What the host speaks on this socket.
pub(crate) enum Dialed {
    Http2(Box<dyn Socket>),
    Http1(Box<dyn Socket>),
}

impl Target {
    /// Another host of the same authority. A name that was asked for by the kubeconfig stays the one to expect.
    pub(crate) fn elsewhere(&self, host: &str, port: u16) -> Self {
        let name = |host: &str| ServerName::try_from(host.to_owned()).ok();
        let tls = self.tls.clone().map(|tls| Tls {
            expect: match name(host) {
                Some(other) if name(&self.host).as_ref() == Some(&tls.expect) => other,
                _ => tls.expect,
            },
            identity: tls.identity,
        });
        Self { authority: format!("{host}:{port}").into(), host: host.into(), port, tls }
    }

    /// Opens a socket. The host decides between HTTP/2 and HTTP/1.1 by ALPN; without TLS it is HTTP/1.1.
    pub(crate) async fn dial(&self) -> Result<Dialed, TransportError> {
        match timeout(CONNECT_WITHIN, self.connect()).await {
            Ok(dialed) => dialed,
            Err(_) => Err(TransportError::Timeout { after: CONNECT_WITHIN }),
        }
    }

    async fn connect(&self) -> Result<Dialed, TransportError> {
        let socket = TcpStream::connect((&*self.host, self.port))
            .await
            .map_err(|error| self.unreachable(&error.to_string()))?;
        // Requests are small and waited for; Nagle's algorithm would only hold them back. A socket that refuses still works.
        let _ = socket.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return Ok(Dialed::Http1(Box::new(socket)));
        };
        let stream =
            TlsConnector::from(tls.identity.current()).connect(tls.expect.clone(), socket).await.map_err(
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

    fn mk_target(expect: &str) -> Target {
        let roots = rustls::RootCertStore::empty();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let from = kube::Config::new("https://milo.example".parse().unwrap());
        let identity = Identity { from, made: Mutex::new(([None, None], Arc::new(config))) };
        let expect = ServerName::try_from(expect.to_owned()).unwrap();
        let tls = Some(Tls { identity: Arc::new(identity), expect });
        Target { authority: "milo.example:443".into(), host: "milo.example".into(), port: 443, tls }
    }

    #[test]
    fn another_host_is_expected_by_its_own_name() {
        let other = mk_target("milo.example").elsewhere("shop.svc", 6443);
        assert_eq!((&*other.authority, &*other.host, other.port), ("shop.svc:6443", "shop.svc", 6443));
        assert_eq!(other.tls.unwrap().expect, ServerName::try_from("shop.svc").unwrap());
    }

    #[test]
    fn a_name_that_the_kubeconfig_asks_for_stays() {
        let other = mk_target("planes.internal").elsewhere("shop.svc", 6443);
        assert_eq!(other.tls.unwrap().expect, ServerName::try_from("planes.internal").unwrap());
    }
}
