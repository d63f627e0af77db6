//! A member: how it is reached, and the state of its health probes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use parking_lot::Mutex;
use polis_api::karmada::Cluster;
use polis_api::kube;
use polis_engine::Plane;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Concurrent writes to one member: a slow member must not occupy all workers.
const MAX_CONCURRENT_WRITES: usize = 8;

/// How a member is reached. A change replaces the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Connection {
    /// By a plane of the configuration.
    Provided,
    /// By the endpoint of its Cluster and the credentials of its Secret.
    FromCluster { endpoint: String, token: String, ca: Vec<u8>, insecure: bool },
}

/// A connected member.
pub(crate) struct Member {
    pub(crate) connection: Connection,
    pub(crate) write_permits: Semaphore,
    pub(crate) probes: Mutex<Probes>,
    apis_stale: AtomicBool,
}

impl Member {
    pub(crate) fn new(connection: Connection) -> Self {
        Member {
            connection,
            write_permits: Semaphore::new(MAX_CONCURRENT_WRITES),
            probes: Mutex::default(),
            apis_stale: AtomicBool::new(true),
        }
    }

    /// Marks the list of APIs as out of date.
    pub(crate) fn mark_apis_stale(&self) {
        self.apis_stale.store(true, Ordering::Release);
    }

    /// Whether the list of APIs must be read; clears the mark.
    pub(crate) fn take_apis_stale(&self) -> bool {
        self.apis_stale.swap(false, Ordering::AcqRel)
    }
}

/// The state of the health probes.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    failing_since: Option<Instant>,
}

impl Probes {
    /// Records a probe and returns whether the member is ready. Failures count only after `threshold`, unless
    /// the member was never ready; a success counts at once.
    pub(crate) fn observe(
        &mut self,
        succeeded: bool,
        was_ready: bool,
        threshold: Duration,
        now: Instant,
    ) -> bool {
        if succeeded {
            self.failing_since = None;
            return true;
        }
        let since = *self.failing_since.get_or_insert(now);
        was_ready && now.duration_since(since) < threshold
    }
}

/// Why a member cannot be connected.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub(crate) enum JoinError {
    #[error("spec.apiEndpoint is missing")]
    NoEndpoint,
    #[error("spec.apiEndpoint {0:?} is not a URL")]
    BadEndpoint(String),
    #[error("spec.secretRef is missing")]
    NoSecretRef,
    #[error("secret {0} does not exist")]
    NoSecret(String),
    #[error("secret {secret} lacks the key {key}")]
    NoKey { secret: String, key: &'static str },
    #[error("the caBundle of secret {0} holds no certificate")]
    BadBundle(String),
    #[error("{0}")]
    Client(String),
}

/// The connection of a Cluster; `secret` is the Secret of its `secretRef`.
pub(crate) fn connection_of(cluster: &Cluster, secret: Option<&Value>) -> Result<Connection, JoinError> {
    let endpoint = cluster
        .spec
        .api_endpoint
        .clone()
        .filter(|endpoint| !endpoint.is_empty())
        .ok_or(JoinError::NoEndpoint)?;
    let reference = cluster.spec.secret_ref.as_ref().ok_or(JoinError::NoSecretRef)?;
    let named = format!("{}/{}", reference.namespace, reference.name);
    let secret = secret.ok_or_else(|| JoinError::NoSecret(named.clone()))?;
    let data = |key: &'static str| {
        let text = secret["data"][key].as_str().filter(|text| !text.is_empty());
        let bytes = text.and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
        bytes.ok_or_else(|| JoinError::NoKey { secret: named.clone(), key })
    };
    let token = String::from_utf8_lossy(&data("token")?).trim().to_owned();
    let insecure = cluster.spec.insecure_skip_tls_verification;
    let ca = if insecure { Vec::new() } else { data("caBundle")? };
    if !insecure && CertificateDer::pem_slice_iter(&ca).next().is_none_or(|first| first.is_err()) {
        return Err(JoinError::BadBundle(named));
    }
    Ok(Connection::FromCluster { endpoint, token, ca, insecure })
}

/// Creates the plane of a member from its endpoint and Secret.
pub(crate) fn plane_of(name: &str, connection: &Connection) -> Result<Plane, JoinError> {
    let Connection::FromCluster { endpoint, token, ca, insecure } = connection else {
        return Err(JoinError::Client("the member has a plane from the configuration".to_owned()));
    };
    let url = endpoint.parse().map_err(|_| JoinError::BadEndpoint(endpoint.clone()))?;
    let mut config = kube::Config::new(url);
    config.auth_info.token = Some(token.clone().into());
    config.accept_invalid_certs = *insecure;
    if !insecure {
        config.root_cert =
            Some(CertificateDer::pem_slice_iter(ca).filter_map(|der| Some(der.ok()?.to_vec())).collect());
    }
    Plane::from_kube_config(name, &config).map_err(|error| JoinError::Client(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn readiness_is_lost_after_the_threshold_and_regained_at_once() {
        let threshold = Duration::from_secs(30);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut probes = Probes::default();
        assert!(probes.observe(false, true, threshold, at(0)));
        assert!(probes.observe(false, true, threshold, at(29)));
        assert!(!probes.observe(false, true, threshold, at(30)));
        assert!(probes.observe(true, false, threshold, at(31)));
        assert!(probes.observe(false, true, threshold, at(40)));
        assert!(
            !Probes::default().observe(false, false, threshold, at(0)),
            "a member that was never ready is not ready after its first failed probe"
        );
    }

    fn mk_cluster(spec: Value) -> Cluster {
        serde_json::from_value(json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"}, "spec": spec})).expect("a cluster")
    }

    #[test]
    fn the_join_error_names_what_is_missing() {
        let reference = json!({"namespace": "karmada-cluster", "name": "a"});
        let joined = json!({"syncMode": "Push", "apiEndpoint": "https://a", "secretRef": reference});
        let token = json!({"data": {"token": "dA=="}});
        for (spec, secret, expected) in [
            (json!({"syncMode": "Push"}), None, JoinError::NoEndpoint),
            (json!({"syncMode": "Push", "apiEndpoint": "https://a"}), None, JoinError::NoSecretRef),
            (joined.clone(), None, JoinError::NoSecret("karmada-cluster/a".to_owned())),
            (
                joined.clone(),
                Some(json!({"data": {}})),
                JoinError::NoKey { secret: "karmada-cluster/a".to_owned(), key: "token" },
            ),
            (
                joined.clone(),
                Some(token.clone()),
                JoinError::NoKey { secret: "karmada-cluster/a".to_owned(), key: "caBundle" },
            ),
            (
                joined,
                Some(json!({"data": {"token": "dA==", "caBundle": "bm9uc2Vuc2U="}})),
                JoinError::BadBundle("karmada-cluster/a".to_owned()),
            ),
        ] {
            assert_eq!(connection_of(&mk_cluster(spec), secret.as_ref()), Err(expected));
        }
        let insecure = json!({"syncMode": "Push", "apiEndpoint": "https://a", "secretRef": {"namespace": "n", "name": "a"}, "insecureSkipTLSVerification": true});
        assert!(connection_of(&mk_cluster(insecure), Some(&token)).is_ok());
    }
}
