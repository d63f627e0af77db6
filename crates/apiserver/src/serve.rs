//! The service on a socket: TLS with client certificates, HTTP/1.1 and HTTP/2.

use std::sync::Arc;

use polis_tls::{Clients, Limits, Pem};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{access::Peer, identity::Identity, server::Server};

/// Watches hold their connections; streams are as many as of kube-apiserver.
const LIMITS: Limits = Limits { connections: 8192, streams: 250 };
/// Life of the certificates made here.
const LIFE_DAYS: i64 = 3650;

/// Why the server cannot be reached over TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Unusable(#[from] polis_tls::TlsError),
    /// A certificate cannot be made.
    #[error("failed to make a certificate: {0}")]
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

/// A certificate authority made at first start, for a server and its clients.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// A new authority.
    pub fn new() -> Result<Self, TlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("polis", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        lasting(&mut params);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// An authority that was made before, from its certificate and its key, in PEM.
    pub fn load(pem: &str, key: &str) -> Result<Self, TlsError> {
        let issuer = Issuer::from_ca_cert_pem(pem, KeyPair::from_pem(key)?)?;
        Ok(Self { issuer, pem: pem.to_owned() })
    }

    /// Its private key, in PEM: whoever has it may be anybody.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Its certificate: what clients trust.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for a server that is reached under `hosts`, names or addresses.
    pub fn server(&self, hosts: &[&str]) -> Result<Certificate, TlsError> {
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

    /// A certificate for a client: `user` in `groups`.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Certificate, TlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(user, groups);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Certificate, TlsError> {
        lasting(&mut params);
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok(Certificate { cert: cert.pem(), key: key.serialize_pem() })
    }
}

fn name(common: &str, organizations: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    // One entry per kind is kept; several groups go through `Identity` in tests and tokens.
    for organization in organizations {
        name.push(DnType::OrganizationName, *organization);
    }
    name.push(DnType::CommonName, common);
    name
}

fn lasting(params: &mut CertificateParams) {
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
    params.not_after = day(LIFE_DAYS);
}

/// How the server proves itself, and whose clients it believes.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
}

impl Tls {
    /// `server` is shown to clients; certificates signed by `clients` (PEM) name their holders.
    pub fn new(server: &Certificate, clients: Option<&str>) -> Result<Self, TlsError> {
        let (shown, key) =
            (Pem::new("of the server", server.cert.as_str()), Pem::new("key", server.key.as_str()));
        let clients = clients.map(|pem| Pem::new("of clients", pem));
        // Whoever shows none may have a token.
        let clients = clients.as_ref().map_or(Clients::Unasked, Clients::Welcome);
        let config = polis_tls::server(&shown, &key, clients)?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

impl Server {
    /// Serves all planes on a socket until the future is dropped, which ends every connection.
    pub async fn serve(&self, listener: TcpListener, tls: Tls) {
        let service = self.service();
        polis_tls::serve(listener, LIMITS, tls.acceptor, move |peer| {
            let service = service.clone();
            let proved = Peer { certified: peer.certificate.as_ref().and_then(identity_of) };
            hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
                let service = service.clone();
                request.extensions_mut().insert(proved.clone());
                async move { Ok::<_, std::convert::Infallible>(service.handle(request).await) }
            })
        })
        .await;
    }
}

/// Common name and organizations of a client certificate: user and groups.
fn identity_of(leaf: &CertificateDer<'_>) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups: Vec<String> =
        subject.iter_organization().filter_map(|value| value.as_str().ok()).map(str::to_owned).collect();
    Some(Identity::new(user, groups))
}

/// A kubeconfig for one plane. `prefix` is its path, empty for the root plane.
pub fn kubeconfig(server: &str, prefix: &str, authority: &str, client: &Certificate) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: polis\nclusters:\n- name: polis\n  cluster:\n    server: {server}{prefix}\n    certificate-authority-data: {}\nusers:\n- name: admin\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\ncontexts:\n- name: polis\n  context:\n    cluster: polis\n    user: admin\n",
        STANDARD.encode(authority),
        STANDARD.encode(&client.cert),
        STANDARD.encode(&client.key)
    )
}
