//! A member while it is connected: its API, what is mirrored of it, and what its probes said.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use parking_lot::{Mutex, RwLock};
use polis_api::karmada::Cluster;
use polis_api::kube::{self, Client};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::interpreter::Target;
use crate::planes::{Api, Change, Kind, Mirror};
use crate::world::{World, kinds};

/// Works written to one member at once: a slow member must not take all workers.
const AT_ONCE: usize = 8;

/// How a member is reached; another way means another connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a client that was given at the start.
    Given,
    /// By what its Cluster and Secret say.
    Joined { endpoint: String, token: String, ca: Vec<u8>, trusting: bool },
}

/// A member that can be talked to.
pub(crate) struct Member {
    pub(crate) api: Api,
    pub(crate) way: Way,
    pub(crate) gate: Semaphore,
    pub(crate) probes: Mutex<Probes>,
    mirrors: RwLock<BTreeMap<Target, Mirror>>,
    definitions: Mirror,
    apis_in_doubt: AtomicBool,
    world: Weak<World>,
    cluster: String,
}

impl Member {
    pub(crate) fn new(world: &Weak<World>, cluster: &str, client: Client, way: Way) -> Arc<Self> {
        let api = Api::new(&format!("member {cluster}"), client);
        Arc::new(Member {
            definitions: Self::definitions(world, cluster, &api),
            api,
            way,
            gate: Semaphore::new(AT_ONCE),
            probes: Mutex::default(),
            mirrors: RwLock::default(),
            apis_in_doubt: AtomicBool::new(true),
            world: world.clone(),
            cluster: cluster.to_owned(),
        })
    }

    /// Definitions tell when the member's APIs change, so that nobody has to ask again and again.
    fn definitions(world: &Weak<World>, cluster: &str, api: &Api) -> Mirror {
        let (world, cluster) = (world.clone(), cluster.to_owned());
        Mirror::told(api, kinds::CRD, move || {
            if let Some(world) = world.upgrade() {
                world.apis_changed(&cluster);
            }
        })
    }

    /// The mirror of a kind on the member; begun when first asked for.
    pub(crate) fn mirror(&self, kind: &Kind) -> Mirror {
        if let Some(mirror) = self.mirrors.read().get(&kind.target()) {
            return mirror.clone();
        }
        let (world, cluster) = (self.world.clone(), self.cluster.clone());
        let sink = Arc::new(move |_: &Kind, change: Change| {
            if let Some(world) = world.upgrade() {
                world.member_changed(&cluster, &change);
            }
        });
        let mut mirrors = self.mirrors.write();
        mirrors
            .entry(kind.target())
            .or_insert_with(|| Mirror::start(self.api.clone(), kind.clone(), sink))
            .clone()
    }

    /// Every mirror that paused after a failure tries again now.
    pub(crate) fn nudge(&self) {
        for mirror in self.mirrors.read().values().chain([&self.definitions]) {
            mirror.nudge();
        }
    }

    /// The list of APIs may be out of date.
    pub(crate) fn doubt_apis(&self) {
        self.apis_in_doubt.store(true, Ordering::Release);
    }

    /// Whether the list of APIs must be read; the doubt is over with the question.
    pub(crate) fn take_doubt(&self) -> bool {
        self.apis_in_doubt.swap(false, Ordering::AcqRel)
    }
}

/// What probes have said, and since when.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    failing_since: Option<Instant>,
}

impl Probes {
    /// Whether the member counts as ready after a probe. The first failures are held back for `threshold`, unless
    /// the member was never ready; a success counts at once.
    pub(crate) fn judge(
        &mut self,
        answered: bool,
        was_ready: bool,
        threshold: Duration,
        now: Instant,
    ) -> bool {
        if answered {
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
    #[error("spec.apiEndpoint {0:?} is no URL")]
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

/// How a Cluster says that it is reached; `secret` is what its reference led to.
pub(crate) fn way_of(cluster: &Cluster, secret: Option<&Value>) -> Result<Way, JoinError> {
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
    let trusting = cluster.spec.insecure_skip_tls_verification;
    let ca = if trusting { Vec::new() } else { data("caBundle")? };
    if !trusting && CertificateDer::pem_slice_iter(&ca).next().is_none_or(|first| first.is_err()) {
        return Err(JoinError::BadBundle(named));
    }
    Ok(Way::Joined { endpoint, token, ca, trusting })
}

/// A client for a member that is joined by endpoint and Secret.
pub(crate) fn client_of(way: &Way) -> Result<Client, JoinError> {
    let Way::Joined { endpoint, token, ca, trusting } = way else {
        return Err(JoinError::Client("the member was given a client".to_owned()));
    };
    let url = endpoint.parse().map_err(|_| JoinError::BadEndpoint(endpoint.clone()))?;
    let mut config = kube::Config::new(url);
    config.auth_info.token = Some(token.clone().into());
    config.accept_invalid_certs = *trusting;
    if !trusting {
        config.root_cert =
            Some(CertificateDer::pem_slice_iter(ca).filter_map(|der| Some(der.ok()?.to_vec())).collect());
    }
    Client::try_from(config).map_err(|error| JoinError::Client(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn readiness_is_lost_only_after_the_threshold_and_won_at_once() {
        let threshold = Duration::from_secs(30);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut probes = Probes::default();
        assert!(probes.judge(false, true, threshold, at(0)));
        assert!(probes.judge(false, true, threshold, at(29)));
        assert!(!probes.judge(false, true, threshold, at(30)));
        assert!(probes.judge(true, false, threshold, at(31)));
        assert!(probes.judge(false, true, threshold, at(40)));
        assert!(
            !Probes::default().judge(false, false, threshold, at(0)),
            "never seen ready: not ready from the first probe"
        );
    }

    fn mk_cluster(spec: Value) -> Cluster {
        serde_json::from_value(json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"}, "spec": spec})).expect("a cluster")
    }

    #[test]
    fn what_is_missing_to_join_is_named() {
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
            assert_eq!(way_of(&mk_cluster(spec), secret.as_ref()), Err(expected));
        }
        let trusting = json!({"syncMode": "Push", "apiEndpoint": "https://a", "secretRef": {"namespace": "n", "name": "a"}, "insecureSkipTLSVerification": true});
        assert!(way_of(&mk_cluster(trusting), Some(&token)).is_ok());
    }
}
