//! Who we are to a host.
//!
//! Client certificates are part of TLS. This is about what goes into the `Authorization` header: nothing, a token in a
//! file that someone rotates, or whatever kube's own loader makes of a fixed token, an exec plugin or a user name.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use polis_api::kube;
use polis_api::kube::client::ConfigExt;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};

use super::{BoxError, TransportError};

/// A token file is looked at again after this time. Kubernetes rotates projected tokens at 80 % of at least ten minutes.
const FRESH_FOR: Duration = Duration::from_secs(60);

/// The credentials of a host. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Credentials {
    source: Arc<Source>,
    headers: Arc<HeaderMap>,
}

enum Source {
    None,
    File { path: PathBuf, read: Mutex<Option<(HeaderValue, Instant)>> },
    Kube(Box<dyn Signer>),
}

impl Credentials {
    /// What a kubeconfig says.
    pub(crate) fn from_config(config: &kube::Config) -> Result<Self, TransportError> {
        let auth = &config.auth_info;
        let source = match &auth.token_file {
            Some(path) => Source::File { path: path.into(), read: Mutex::new(None) },
            None => from_kube(config)?,
        };
        Ok(Self { source: Arc::new(source), headers: Arc::new(config.headers.iter().cloned().collect()) })
    }

    /// Adds what the host needs to know us by.
    pub(crate) async fn sign(&self, mut request: Request<Bytes>) -> Result<Request<Bytes>, TransportError> {
        for (name, value) in self.headers.iter() {
            request.headers_mut().insert(name, value.clone());
        }
        match &*self.source {
            Source::None => Ok(request),
            Source::File { path, read } => {
                let value = current(path, &mut read.lock())?;
                request.headers_mut().insert(AUTHORIZATION, value);
                Ok(request)
            }
            Source::Kube(signer) => signer
                .sign(request)
                .await
                .map_err(|why| TransportError::Credentials { why: why.to_string().into() }),
        }
    }

    /// When the token in use was read.
    pub(crate) fn stamp(&self) -> Option<Instant> {
        match &*self.source {
            Source::File { read, .. } => read.lock().as_ref().map(|(_, at)| *at),
            _ => None,
        }
    }

    /// Forgets a token that the server refused, so that the next request reads the file. True if that may change anything:
    /// the refused token was one read earlier (`stamp`), not just now.
    pub(crate) fn renew(&self, stamp: Option<Instant>) -> bool {
        match &*self.source {
            Source::File { read, .. } => {
                let mut read = read.lock();
                let stale = stamp.is_some() && read.as_ref().map(|(_, at)| *at) == stamp;
                if stale {
                    *read = None;
                }
                stamp.is_some()
            }
            _ => false,
        }
    }
}

/// The token in the file, read at most once a minute. A file that cannot be read keeps the last token: some platforms remove
/// it for a moment while they rotate it.
fn current(path: &PathBuf, read: &mut Option<(HeaderValue, Instant)>) -> Result<HeaderValue, TransportError> {
    if let Some((value, at)) = read
        && at.elapsed() < FRESH_FOR
    {
        return Ok(value.clone());
    }
    let fail = |why: String| TransportError::Credentials {
        why: format!("token file {}: {why}", path.display()).into(),
    };
    let token = match std::fs::read_to_string(path) {
        Ok(token) => token,
        Err(error) => {
            return read.as_ref().map(|(value, _)| value.clone()).ok_or_else(|| fail(error.to_string()));
        }
    };
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
        .map_err(|error| fail(error.to_string()))?;
    value.set_sensitive(true);
    *read = Some((value.clone(), Instant::now()));
    Ok(value)
}

/// Signs a request by kube's own auth layer, laid over a service that just hands the signed headers back.
trait Signer: Send + Sync {
    fn sign(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Request<Bytes>, BoxError>>;
}

type Bare = Full<Bytes>;

impl<S> Signer for S
where
    S: Service<Request<Bare>, Response = Response<Bare>, Error = BoxError> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    fn sign(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Request<Bytes>, BoxError>> {
        let service = self.clone();
        let (mut parts, content) = request.into_parts();
        Box::pin(async move {
            let mut bare = Request::new(Bare::default());
            *bare.headers_mut() = std::mem::take(&mut parts.headers);
            let signed = service.oneshot(bare).await?;
            parts.headers = signed.into_parts().0.headers;
            Ok(Request::from_parts(parts, content))
        })
    }
}

fn from_kube(config: &kube::Config) -> Result<Source, TransportError> {
    let fail = |why: String| TransportError::Credentials { why: why.into() };
    match config.auth_layer().map_err(|error| fail(error.to_string()))? {
        None => Ok(Source::None),
        Some(layer) => {
            let echo = tower::service_fn(|request: Request<Bare>| {
                let mut signed = Response::new(Bare::default());
                *signed.headers_mut() = request.into_parts().0.headers;
                std::future::ready(Ok::<_, BoxError>(signed))
            });
            Ok(Source::Kube(Box::new(layer.layer(echo))))
        }
    }
}
