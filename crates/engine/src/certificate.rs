//! A certificate in a Secret that is watched: where no volume brings it into files.

use std::fmt;

use polis_api::k8s_openapi::api::core::v1::Secret;
use polis_tls::{Certificates, Clients, Pem, Source, Stamp, TlsError, server};
use rustls::ServerConfig;

use crate::{Engine, Error, Plane, Watch};

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

/// Why there is no certificate from a Secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Its server does not give it.
    #[error("failed to read {secret}: {source}")]
    Ask {
        /// The Secret.
        secret: String,
        /// Why.
        source: Error,
    },
    /// It is not there, or not a certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl CertificateSecret {
    /// The Secret of that name and no other is watched by the engine, on every replica, under a role of its own. It takes
    /// the rights to get, list and watch that one Secret.
    pub fn watched(
        engine: &mut Engine,
        role: &'static str,
        plane: Plane,
        (namespace, name): (&str, &str),
        clients: Option<&str>,
    ) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let watch = Watch::of::<Secret>().within(namespace.clone()).fields(format!("metadata.name={name}"));
        let plane = engine.plane(role, plane, [watch]);
        Self { plane, namespace, name, clients: clients.map(str::to_owned) }
    }

    /// The certificate that is in the Secret now, and follows it. Asks for it: the watch may not have seen anything yet.
    pub async fn open(&self) -> Result<Certificates, SecretError> {
        let asked = self.plane.live().get::<Secret>((self.namespace.as_str(), self.name.as_str())).await;
        let found = asked.map_err(|source| SecretError::Ask { secret: self.to_string(), source })?;
        let standing = found.ok_or_else(|| TlsError::Missing { what: self.to_string() })?;
        let config = self.load(&standing)?;
        Ok(Certificates::new(self.clone(), stamp(&standing), config))
    }

    /// The certificate as the watch has seen it, in PEM; its key is not told.
    pub fn certificate(&self) -> Option<Vec<u8>> {
        self.seen()?.data?.remove(CERTIFICATE).map(|bytes| bytes.0)
    }

    /// The Secret as the watch has seen it. None before the first sight, and once it is deleted.
    fn seen(&self) -> Option<Secret> {
        self.plane.get::<Secret>((self.namespace.as_str(), self.name.as_str())).ok().flatten()
    }

    fn load(&self, secret: &Secret) -> Result<ServerConfig, TlsError> {
        let clients = self.clients.as_deref().map(|key| self.pem(secret, key)).transpose()?;
        let clients = clients.as_ref().map_or(Clients::Unasked, Clients::Required);
        server(&self.pem(secret, CERTIFICATE)?, &self.pem(secret, KEY)?, clients)
    }

    fn pem(&self, secret: &Secret, key: &str) -> Result<Pem, TlsError> {
        let place = format!("{key} of {self}");
        match secret.data.as_ref().and_then(|data| data.get(key)) {
            Some(bytes) => Ok(Pem::new(place, bytes.0.clone())),
            None => Err(TlsError::Missing { what: place }),
        }
    }
}

impl Source for CertificateSecret {
    fn renewed(&self, before: &Stamp) -> Option<(Stamp, Result<ServerConfig, TlsError>)> {
        let seen = self.seen()?;
        let stamp = stamp(&seen);
        (stamp != *before).then(|| (stamp, self.load(&seen)))
    }
}

impl fmt::Display for CertificateSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret {}/{}", self.namespace, self.name)
    }
}

/// Identity and version of a Secret.
fn stamp(secret: &Secret) -> Stamp {
    Stamp(format!("{:?} {:?}", secret.metadata.uid, secret.metadata.resource_version))
}
