//! Serves the API over TLS with client certificates, HTTP/1.1 and HTTP/2, and issues the certificates for it.

use std::sync::Arc;

use polis_tls::{ClientAuth, ConnectionLimits, Pem, RequestBody};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{access::Peer, server::Server, user::UserInfo};

/// 250 streams per connection is the default of kube-apiserver. Each watch of an HTTP/1.1 client holds a
/// connection.
const LIMITS: ConnectionLimits = ConnectionLimits::new(8192, 250);
/// Validity of the certificates issued here, in days.
const VALIDITY_DAYS: i64 = 3650;

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
        set_validity(&mut params);
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

    /// Issues a server certificate for `hosts`: DNS names or IP addresses.
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
        self.sign(params)
    }

    /// Issues a client certificate for `user` in `groups`.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Certificate, ServerTlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(user, groups);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Certificate, ServerTlsError> {
        set_validity(&mut params);
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

fn set_validity(params: &mut CertificateParams) {
    let day = |offset: i64| {
        let date = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * offset))
            .to_zoned(jiff::tz::TimeZone::UTC)
            .date();
        rcgen::date_time_ymd(
            i32::from(date.year()),
            u8::try_from(date.month()).unwrap_or(1),
            u8::try_from(date.day()).unwrap_or(1),
        )
    };
    params.not_before = day(-1);
    params.not_after = day(VALIDITY_DAYS);
}

/// The TLS configuration of a server: its certificate, and the authority of client certificates.
#[derive(Clone)]
pub struct ServerTls {
    acceptor: TlsAcceptor,
}

impl ServerTls {
    /// `server` is the server's certificate; `clients` is the authority (PEM) of client certificates.
    pub fn new(server: &Certificate, clients: Option<&str>) -> Result<Self, ServerTlsError> {
        let (shown, key) =
            (Pem::new("of the server", server.cert.as_str()), Pem::new("key", server.key.as_str()));
        let clients = clients.map(|pem| Pem::new("of clients", pem));
        // A client certificate is optional: clients can authenticate with a token instead.
        let clients = clients.as_ref().map_or(ClientAuth::Disabled, ClientAuth::Optional);
        let config = polis_tls::server_config(&shown, &key, clients)?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

impl Server {
    /// Serves all planes on `listener` until the future is dropped, which closes every connection.
    pub async fn serve(&self, listener: TcpListener, tls: ServerTls) {
        let service = self.service();
        polis_tls::serve(listener, LIMITS, tls.acceptor, move |peer| {
            let service = service.clone();
            let proved = Peer { certified: peer.certificate.as_ref().and_then(user_of) };
            hyper::service::service_fn(move |mut request: http::Request<RequestBody>| {
                let service = service.clone();
                request.extensions_mut().insert(proved.clone());
                async move { Ok::<_, std::convert::Infallible>(service.handle(request).await) }
            })
        })
        .await;
    }
}

/// The user of a client certificate: the common name is the user name, the organizations are the groups.
fn user_of(leaf: &CertificateDer<'_>) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups: Vec<String> =
        subject.iter_organization().filter_map(|value| value.as_str().ok()).map(str::to_owned).collect();
    Some(UserInfo::new(name, groups))
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
