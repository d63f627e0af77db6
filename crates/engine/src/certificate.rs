//! [`CertificateSecret`]: a serving certificate from a watched Secret, for processes without a mounted
//! volume.

use std::fmt;

use polis_api::k8s_openapi::api::core::v1::Secret;
use polis_tls::{
    CertificateError, CertificateSource, ClientAuth, Pem, ReloadingCertificate, SourceVersion, server_config,
};
use rustls::ServerConfig;

use crate::{Engine, Error, Plane, Watch};

/// Keys of a Secret of type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// A Secret of type `kubernetes.io/tls` that contains a serving certificate. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CertificateSecret {
    plane: Plane,
    namespace: String,
    name: String,
    /// The key of the client CA, if clients must present a certificate.
    client_ca: Option<String>,
}

/// Why the certificate of a Secret cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The Secret cannot be read.
    #[error("failed to read {secret}: {source}")]
    Read {
        /// The Secret.
        secret: String,
        /// The reason.
        source: Error,
    },
    /// The Secret does not exist, or contains no valid certificate.
    #[error(transparent)]
    Tls(#[from] CertificateError),
}

impl CertificateSecret {
    /// Declares a watch of this one Secret on the engine, on every replica and as a plane with the given
    /// role. It needs the permissions get, list and watch for that Secret.
    pub fn watch(
        engine: &mut Engine,
        role: &'static str,
        plane: Plane,
        (namespace, name): (&str, &str),
        client_ca: Option<&str>,
    ) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let watch = Watch::of::<Secret>().within(namespace.clone()).fields(format!("metadata.name={name}"));
        let plane = engine.plane(role, plane, [watch]);
        Self { plane, namespace, name, client_ca: client_ca.map(str::to_owned) }
    }

    /// Loads the certificate, and reloads it when the Secret changes. The first read is uncached, because the
    /// watch may not have synced yet.
    pub async fn open(&self) -> Result<ReloadingCertificate, SecretError> {
        let result = self.plane.uncached().get::<Secret>((self.namespace.as_str(), self.name.as_str())).await;
        let found = result.map_err(|source| SecretError::Read { secret: self.to_string(), source })?;
        let secret = found.ok_or_else(|| CertificateError::Missing { what: self.to_string() })?;
        let config = self.load(&secret)?;
        Ok(ReloadingCertificate::new(self.clone(), version(&secret), config))
    }

    /// The cached certificate in PEM, without its private key.
    pub fn certificate(&self) -> Option<Vec<u8>> {
        self.cached()?.data?.remove(CERTIFICATE).map(|bytes| bytes.0)
    }

    /// The cached Secret. None before the watch has synced, and after the Secret is deleted.
    fn cached(&self) -> Option<Secret> {
        self.plane.get::<Secret>((self.namespace.as_str(), self.name.as_str())).ok().flatten()
    }

    fn load(&self, secret: &Secret) -> Result<ServerConfig, CertificateError> {
        let client_ca = self.client_ca.as_deref().map(|key| self.pem(secret, key)).transpose()?;
        let client_auth = client_ca.as_ref().map_or(ClientAuth::Disabled, ClientAuth::Required);
        server_config(&self.pem(secret, CERTIFICATE)?, &self.pem(secret, KEY)?, client_auth)
    }

    fn pem(&self, secret: &Secret, key: &str) -> Result<Pem, CertificateError> {
        let source = format!("{key} of {self}");
        match secret.data.as_ref().and_then(|data| data.get(key)) {
            Some(bytes) => Ok(Pem::new(source, bytes.0.clone())),
            None => Err(CertificateError::Missing { what: source }),
        }
    }
}

impl CertificateSource for CertificateSecret {
    fn renewed(
        &self,
        before: &SourceVersion,
    ) -> Option<(SourceVersion, Result<ServerConfig, CertificateError>)> {
        let seen = self.cached()?;
        let version = version(&seen);
        (version != *before).then(|| (version, self.load(&seen)))
    }
}

impl fmt::Display for CertificateSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret {}/{}", self.namespace, self.name)
    }
}

/// Identity and version of a Secret.
fn version(secret: &Secret) -> SourceVersion {
    SourceVersion(format!("{:?} {:?}", secret.metadata.uid, secret.metadata.resource_version))
}
