//! The images of a host's instances: pulls them in the background, and remembers failures for a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::compute::{InstanceSpec, SandboxContainer};
use tokio::time::Instant;

use super::host::Host;
use super::image;
use crate::Error;
use crate::oci::{Image, ImageError, ImageStore, Pulled};
use crate::provider::RunRequest;

/// How long a result is used without asking the store again: as long as it takes to start all containers.
const FRESH: Duration = Duration::from_secs(10);
/// Back-off after a failure; it doubles, as in Kubernetes.
const INITIAL_BACKOFF: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// The key of docker configurations in Secrets.
const DOCKER_CONFIG: &str = ".dockerconfigjson";

/// The state of an image that a container needs.
pub(super) enum ImageState {
    Ready(Image),
    Pulling,
    /// Failed, and when the next attempt is due.
    Failed(ImageError, Duration),
}

/// An image reference and the docker configurations that it is pulled with.
type PullKey = (String, Vec<Vec<u8>>);

/// Pulls by image and credentials.
pub(super) struct Images {
    pub(super) store: ImageStore,
    pulls: Mutex<BTreeMap<PullKey, Pull>>,
}

/// A pull, and its last result.
#[derive(Default)]
struct Pull {
    running: bool,
    /// Namespaces and names of the instances that wait for it.
    waiting: BTreeSet<(String, String)>,
    failures: u32,
    result: Option<(Pulled, Instant)>,
}

impl Images {
    pub(super) fn new(store: ImageStore) -> Self {
        Images { store, pulls: Mutex::default() }
    }

    /// The image of a container; `None` if it is a program of Polis or of the host. Starts a pull if the
    /// image is not ready.
    pub(super) fn of(
        host: &Arc<Host>,
        request: &RunRequest<'_>,
        container: &SandboxContainer,
    ) -> Result<Option<ImageState>, Error> {
        use polis_api::ObjectExt as _;
        if !image::is_pulled(&container.image) {
            return Ok(None);
        }
        let secrets = pull_secrets(request, &request.instance.spec)?;
        let waiting = (request.instance.namespace().to_owned(), request.instance.name().to_owned());
        Ok(Some(Images::get(host, container.image.clone(), secrets, waiting)))
    }

    fn get(host: &Arc<Host>, name: String, secrets: Vec<Vec<u8>>, waiting: (String, String)) -> ImageState {
        let key = (name, secrets);
        let mut pulls = host.images.pulls.lock();
        let pull = pulls.entry(key.clone()).or_default();
        if pull.running {
            pull.waiting.insert(waiting);
            return ImageState::Pulling;
        }
        match &pull.result {
            Some((Ok(image), at)) if at.elapsed() < FRESH => return ImageState::Ready(image.clone()),
            Some((Err(error), at)) => {
                let backoff =
                    (INITIAL_BACKOFF * (1 << pull.failures.saturating_sub(1).min(8))).min(MAX_BACKOFF);
                if let Some(left) = backoff.checked_sub(at.elapsed()).filter(|left| !left.is_zero()) {
                    return ImageState::Failed(error.clone(), left);
                }
            }
            _ => {}
        }
        pull.running = true;
        pull.waiting.insert(waiting);
        let host = host.clone();
        tokio::spawn(async move {
            let result = host.images.store.pull(&key.0, &key.1).await;
            if let Err(error) = &result {
                tracing::warn!(image = key.0, %error, "failed to pull an image");
            }
            host.images.finished(&host, &key, result);
        });
        ImageState::Pulling
    }

    fn finished(&self, host: &Host, key: &(String, Vec<Vec<u8>>), result: Pulled) {
        let waiting = {
            let mut pulls = self.pulls.lock();
            let pull = pulls.entry(key.clone()).or_default();
            pull.running = false;
            pull.failures = if result.is_ok() { 0 } else { pull.failures + 1 };
            pull.result = Some((result, Instant::now()));
            let waiting = std::mem::take(&mut pull.waiting);
            // Results that nothing has asked for in time.
            let old =
                |pull: &Pull| pull.result.as_ref().is_some_and(|(_, at)| at.elapsed() > 2 * MAX_BACKOFF);
            pulls.retain(|_, pull| pull.running || !old(pull));
            waiting
        };
        let on_change = host.on_change.lock().clone();
        for (namespace, name) in waiting {
            if let Some(on_change) = &on_change {
                on_change(&namespace, &name);
            }
        }
    }
}

/// The docker configurations in the pull secrets of an instance. Missing ones are left out, as in Kubernetes.
fn pull_secrets(request: &RunRequest<'_>, spec: &InstanceSpec) -> Result<Vec<Vec<u8>>, Error> {
    let mut configs = Vec::new();
    for reference in spec.runtime.sandbox.iter().flat_map(|sandbox| &sandbox.image_pull_secrets) {
        let secret = request.data.secret(&reference.name)?;
        configs.extend(secret.and_then(|secret| Some(secret.data?.get(DOCKER_CONFIG)?.0.clone())));
    }
    Ok(configs)
}
