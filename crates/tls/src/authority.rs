//! A certificate authority for a server and its clients.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};

use crate::CertificateError;

/// Validity of an authority: ten years. Its clients would have to be given a new one.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(3650 * 24 * 3600);
/// How far the clock of a client may be behind that of the server. Client certificates start when they are
/// issued: the server that issues them also checks them.
const BACKDATE: Duration = Duration::from_secs(3600);
/// Validity of the certificates of servers and clients: a day.
pub(crate) const VALIDITY: Duration = Duration::from_secs(24 * 3600);

/// Why a server cannot serve TLS.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Unusable(#[from] CertificateError),
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
