//! Client certificates: the user that one names, and until when it authenticates that user.

use rustls_pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{server::Core, user::UserInfo};

/// A client certificate that the TLS handshake has verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    /// The common name is the user name, the organizations are the groups.
    pub(crate) user: UserInfo,
    /// The serial number, in hexadecimal digits.
    pub(crate) serial: String,
    /// When it was issued, in seconds since 1970: the start of its validity.
    pub(crate) issued: i64,
    /// When it ends, in seconds since 1970.
    pub(crate) expires: i64,
}

impl ClientCertificate {
    pub(crate) fn from_der(leaf: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups: Vec<String> =
            subject.iter_organization().filter_map(|value| value.as_str().ok()).map(str::to_owned).collect();
        let mut user = UserInfo::new(name, groups);
        let hash: String = Sha256::digest(leaf).iter().map(|byte| format!("{byte:02x}")).collect();
        let id = "authentication.kubernetes.io/credential-id".to_owned();
        user.extra.insert(id, vec![format!("X509SHA256={hash}")]);
        Some(Self {
            user,
            serial: certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
            issued: certificate.validity().not_before.timestamp(),
            expires: certificate.validity().not_after.timestamp(),
        })
    }

    pub(crate) fn from_pem(pem: &str) -> Option<Self> {
        Self::from_der(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?)
    }

    /// The user, while the certificate is valid. The handshake verifies it once; a connection can outlive it.
    pub(crate) fn authenticate(&self, core: &Core) -> Option<UserInfo> {
        let expired = self.expires <= core.clock.now().as_second();
        let revoked = core.credentials.is_revoked(core, &self.serial, &self.user.name, self.issued);
        (!expired && !revoked).then(|| self.user.clone())
    }
}
