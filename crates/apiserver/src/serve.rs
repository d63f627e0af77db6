//! Serves the API over TLS with client certificates, HTTP/1.1 and HTTP/2, and issues the certificates for it.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use polis_tls::{
    AcceptorProvider, CertificateSource, ClientAuth, ConnectionLimits, Pem, ReloadingCertificate,
    RequestBody, SourceVersion,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{
    access::{Peer, certificates::ClientCertificate},
    server::Server,
};

/// 250 streams per connection is the default of kube-apiserver. Each watch of an HTTP/1.1 client holds a
/// connection.
const LIMITS: ConnectionLimits = ConnectionLimits::new(8192, 250);
/// Validity of an authority: ten years. Its clients would have to be given a new one.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(3650 * 24 * 3600);
/// How far the clock of a client may be behind that of the server. Client certificates start when they are
/// issued: the server that issues them also checks them.
const BACKDATE: Duration = Duration::from_secs(3600);
/// Validity of the certificates of servers and clients: a day.
const VALIDITY: Duration = Duration::from_secs(24 * 3600);

/// Why the server cannot serve TLS.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Unusable(#[from] polis_tls::CertificateError),
    /// A certificate cannot be issued.
    #[error("failed to issue a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub cert: String,
    /// Its private key.
    pub key: String,
}

/// A certificate authority that issues the certificates of a server and its clients.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// Creates an authority with a new key.
    pub fn new() -> Result<Self, ServerTlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("polis", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, AUTHORITY_VALIDITY);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Loads an existing authority from its certificate and its private key, in PEM.
    pub fn load(pem: &str, key: &str) -> Result<Self, ServerTlsError> {
        let issuer = Issuer::from_ca_cert_pem(pem, KeyPair::from_pem(key)?)?;
        Ok(Self { issuer, pem: pem.to_owned() })
    }

    /// The private key, in PEM. It can sign a certificate for any user, so keep it secret.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// The certificate, in PEM, which clients trust.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a server certificate for `hosts`: DNS names or IP addresses. It is valid for a day.
    pub fn server(&self, hosts: &[&str]) -> Result<Certificate, ServerTlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("polis-apiserver", &[]);
        for host in hosts {
            params.subject_alt_names.push(match host.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*host).try_into()?),
            });
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        set_validity(&mut params, VALIDITY);
        self.sign(params)
    }

    /// Issues a client certificate for `user` in `groups`. It is valid for a day.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Certificate, ServerTlsError> {
        self.client_for(user, groups, VALIDITY)
    }

    /// Issues a client certificate that is valid for the given time.
    pub fn client_for(
        &self,
        user: &str,
        groups: &[&str],
        validity: Duration,
    ) -> Result<Certificate, ServerTlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(user, groups);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let now = SystemTime::now();
        params.not_before = now.into();
        params.not_after = (now + validity).into();
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Result<Certificate, ServerTlsError> {
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok(Certificate { cert: cert.pem(), key: key.serialize_pem() })
    }
}

fn name(common: &str, organizations: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    // rcgen keeps one entry per type, so only the last group counts. Tokens can name several groups.
    for organization in organizations {
        name.push(DnType::OrganizationName, *organization);
    }
    name.push(DnType::CommonName, common);
    name
}

fn set_validity(params: &mut CertificateParams, validity: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + validity).into();
}

/// The TLS configuration of a server: its certificate, and the authority of client certificates.
#[derive(Clone)]
pub struct ServerTls(Acceptors);

#[derive(Clone)]
enum Acceptors {
    Fixed(TlsAcceptor),
    Renewed(ReloadingCertificate),
}

impl ServerTls {
    /// `server` is the server's certificate; `clients` is the authority (PEM) of client certificates.
    pub fn new(server: &Certificate, clients: Option<&str>) -> Result<Self, ServerTlsError> {
        let config = server_config(server, clients)?;
        Ok(Self(Acceptors::Fixed(TlsAcceptor::from(Arc::new(config)))))
    }

    /// A server certificate for `hosts` that is renewed while it is used, and client certificates of the same
    /// authority.
    pub fn renewing(
        authority: Arc<Authority>,
        hosts: impl IntoIterator<Item = String>,
    ) -> Result<Self, ServerTlsError> {
        Self::of_source(AuthoritySource { authority, hosts: hosts.into_iter().collect(), clients: true })
    }

    /// A server certificate of an authority that nothing trusts, renewed while it is used, and no client
    /// certificates.
    pub fn self_signed(hosts: impl IntoIterator<Item = String>) -> Result<Self, ServerTlsError> {
        let authority = Arc::new(Authority::new()?);
        Self::of_source(AuthoritySource { authority, hosts: hosts.into_iter().collect(), clients: false })
    }

    fn of_source(source: AuthoritySource) -> Result<Self, ServerTlsError> {
        let config = source.issue()?;
        let certificate = ReloadingCertificate::new(source, version(jiff::Timestamp::now()), config);
        Ok(Self(Acceptors::Renewed(certificate)))
    }
}

impl AcceptorProvider for ServerTls {
    fn acceptor(&self) -> TlsAcceptor {
        match &self.0 {
            Acceptors::Fixed(acceptor) => acceptor.clone(),
            Acceptors::Renewed(certificate) => certificate.acceptor(),
        }
    }
}

fn server_config(
    server: &Certificate,
    clients: Option<&str>,
) -> Result<rustls::ServerConfig, polis_tls::CertificateError> {
    let (shown, key) =
        (Pem::new("of the server", server.cert.as_str()), Pem::new("key", server.key.as_str()));
    let clients = clients.map(|pem| Pem::new("of clients", pem));
    // A client certificate is optional: clients can authenticate with a token instead.
    let clients = clients.as_ref().map_or(ClientAuth::Disabled, ClientAuth::Optional);
    polis_tls::server_config(&shown, &key, clients)
}

/// Issues server certificates, each for two thirds of its validity.
struct AuthoritySource {
    authority: Arc<Authority>,
    hosts: Vec<String>,
    /// Whether clients authenticate with certificates of the authority.
    clients: bool,
}

/// The number of the certificate that is used at a time.
fn version(now: jiff::Timestamp) -> SourceVersion {
    let every = VALIDITY.as_secs() as i64 * 2 / 3;
    SourceVersion((now.as_second() / every).to_string())
}

impl AuthoritySource {
    fn issue(&self) -> Result<rustls::ServerConfig, ServerTlsError> {
        let hosts: Vec<&str> = self.hosts.iter().map(String::as_str).collect();
        let certificate = self.authority.server(&hosts)?;
        Ok(server_config(&certificate, self.clients.then(|| self.authority.pem()))?)
    }
}

fn unusable(error: ServerTlsError) -> polis_tls::CertificateError {
    match error {
        ServerTlsError::Unusable(error) => error,
        ServerTlsError::Make(error) => polis_tls::CertificateError::Unusable {
            source_name: "of the server".to_owned(),
            source: rustls::Error::General(format!("failed to issue it: {error}")),
        },
    }
}

impl fmt::Display for AuthoritySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the authority of the server")
    }
}

impl CertificateSource for AuthoritySource {
    fn renewed(
        &self,
        before: &SourceVersion,
    ) -> Option<(SourceVersion, Result<rustls::ServerConfig, polis_tls::CertificateError>)> {
        let now = version(jiff::Timestamp::now());
        (now != *before).then(|| (now, self.issue().map_err(unusable)))
    }
}

impl Server {
    /// Serves all planes on `listener` until the future is dropped, which closes every connection.
    pub async fn serve(&self, listener: TcpListener, tls: ServerTls) {
        let service = self.service();
        polis_tls::serve(listener, LIMITS, tls, move |peer| {
            let service = service.clone();
            let certificate = peer.certificate.as_ref().and_then(ClientCertificate::from_der);
            let proved = Peer { certificate: certificate.map(Arc::new), address: Some(peer.address.ip()) };
            hyper::service::service_fn(move |mut request: http::Request<RequestBody>| {
                let service = service.clone();
                request.extensions_mut().insert(proved.clone());
                async move { Ok::<_, std::convert::Infallible>(service.handle(request).await) }
            })
        })
        .await;
    }
}

/// A kubeconfig for one plane. `prefix` is the plane's URL path, empty for the root plane.
pub fn kubeconfig(server: &str, prefix: &str, authority: &str, client: &Certificate) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: polis\nclusters:\n- name: polis\n  cluster:\n    server: {server}{prefix}\n    certificate-authority-data: {}\nusers:\n- name: admin\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\ncontexts:\n- name: polis\n  context:\n    cluster: polis\n    user: admin\n",
        STANDARD.encode(authority),
        STANDARD.encode(&client.cert),
        STANDARD.encode(&client.key)
    )
}
