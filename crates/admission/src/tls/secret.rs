//! A certificate in a Secret that is watched.

use std::fmt;

use polis_api::k8s_openapi::api::core::v1::Secret;
use polis_engine::{Engine, Plane, Watch};
use rustls::ServerConfig;

use super::{Pem, Stamp, TlsError, server};

/// Keys of a Secret of type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Which Secret a certificate is in. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CertificateSecret {
    plane: Plane,
    namespace: String,
    name: String,
    /// The key with the authority of clients, where they must show a certificate.
    clients: Option<String>,
}

impl CertificateSecret {
    /// The Secret of that name and no other is watched by the engine, on every replica. It takes the rights to get, list
    /// and watch that one Secret.
    pub fn watched(
        engine: &mut Engine,
        plane: Plane,
        namespace: &str,
        name: &str,
        clients: Option<&str>,
    ) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let watch = Watch::of::<Secret>().within(namespace.clone()).fields(format!("metadata.name={name}"));
        let plane = engine.plane("certificate", plane, [watch]);
        Self { plane, namespace, name, clients: clients.map(str::to_owned) }
    }

    /// The Secret as its server has it.
    pub(super) async fn ask(&self) -> Result<Secret, TlsError> {
        let asked = self.plane.live().get::<Secret>((self.namespace.as_str(), self.name.as_str())).await;
        let found = asked.map_err(|source| TlsError::Ask { secret: self.to_string(), source })?;
        found.ok_or_else(|| TlsError::Missing { what: self.to_string() })
    }

    /// The Secret as the watch has seen it. None before the first sight, and once it is deleted.
    pub(super) fn seen(&self) -> Option<Secret> {
        self.plane.get::<Secret>((self.namespace.as_str(), self.name.as_str())).ok().flatten()
    }

    /// The certificate as the watch has seen it, in PEM; its key is not told.
    pub fn certificate(&self) -> Option<Vec<u8>> {
        self.pem(&self.seen()?, CERTIFICATE).ok().map(|pem| pem.text)
    }

    pub(super) fn load(&self, secret: &Secret) -> Result<ServerConfig, TlsError> {
        let clients = self.clients.as_deref().map(|key| self.pem(secret, key)).transpose()?;
        server(&self.pem(secret, CERTIFICATE)?, &self.pem(secret, KEY)?, clients.as_ref())
    }

    fn pem(&self, secret: &Secret, key: &str) -> Result<Pem, TlsError> {
        let place = format!("{key} of {self}");
        match secret.data.as_ref().and_then(|data| data.get(key)) {
            Some(bytes) => Ok(Pem { place, text: bytes.0.clone() }),
            None => Err(TlsError::Missing { what: place }),
        }
    }
}

impl fmt::Display for CertificateSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret {}/{}", self.namespace, self.name)
    }
}

/// What tells one state of a Secret from another.
pub(super) fn stamp(secret: &Secret) -> Stamp {
    Stamp::Secret(secret.metadata.uid.clone(), secret.metadata.resource_version.clone())
}
