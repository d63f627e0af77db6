//! Client credentials in the `Authorization` header.
//!
//! The header is absent, or contains a token from a rotated file, or comes from kube's auth layer (static
//! token, exec plugin, user name). Client certificates are part of TLS and not handled here.

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

/// How long the token of a file is cached. Kubernetes rotates projected tokens at 80 % of at least ten
/// minutes.
const TOKEN_CACHE_TTL: Duration = Duration::from_secs(60);

/// The credentials for a host. Cheap to clone.
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
    /// The credentials of a kubeconfig.
    pub(crate) fn from_config(config: &kube::Config) -> Result<Self, TransportError> {
        let auth = &config.auth_info;
        let source = match &auth.token_file {
            Some(path) => Source::File { path: path.into(), read: Mutex::new(None) },
            None => from_kube(config)?,
        };
        Ok(Self { source: Arc::new(source), headers: Arc::new(config.headers.iter().cloned().collect()) })
    }

    /// Adds the credentials to a request.
    pub(crate) async fn sign(&self, mut request: Request<Bytes>) -> Result<Request<Bytes>, TransportError> {
        for (name, value) in self.headers.iter() {
            request.headers_mut().insert(name, value.clone());
        }
        match &*self.source {
            Source::None => Ok(request),
            Source::File { path, read } => {
                let value = current_token(path, &mut read.lock())?;
                request.headers_mut().insert(AUTHORIZATION, value);
                Ok(request)
            }
            Source::Kube(signer) => signer
                .sign(request)
                .await
                .map_err(|why| TransportError::Credentials { why: why.to_string().into() }),
        }
    }

    /// When the cached token was read.
    pub(crate) fn token_read_at(&self) -> Option<Instant> {
        match &*self.source {
            Source::File { read, .. } => read.lock().as_ref().map(|(_, at)| *at),
            _ => None,
        }
    }

    /// Drops a cached token that the server rejected, so that the next request reads the file. True if a
    /// retry is useful: the request used a token that was cached before it (`read_at`).
    pub(crate) fn invalidate(&self, read_at: Option<Instant>) -> bool {
        match &*self.source {
            Source::File { read, .. } => {
                let mut read = read.lock();
                let stale = read_at.is_some() && read.as_ref().map(|(_, at)| *at) == read_at;
                if stale {
                    *read = None;
                }
                read_at.is_some()
            }
            _ => false,
        }
    }
}

/// The token of the file, read at most once a minute. If the file cannot be read, the last token stays in
/// use: some platforms remove the file for a moment during rotation.
fn current_token(
    path: &PathBuf,
    read: &mut Option<(HeaderValue, Instant)>,
) -> Result<HeaderValue, TransportError> {
    if let Some((value, at)) = read
        && at.elapsed() < TOKEN_CACHE_TTL
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

/// Adds the headers of kube's auth layer to a request. The layer wraps a service that returns the headers it
/// receives.
trait Signer: Send + Sync {
    fn sign(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Request<Bytes>, BoxError>>;
}

type EmptyBody = Full<Bytes>;

impl<S> Signer for S
where
    S: Service<Request<EmptyBody>, Response = Response<EmptyBody>, Error = BoxError>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    fn sign(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Request<Bytes>, BoxError>> {
        let service = self.clone();
        let (mut parts, content) = request.into_parts();
        Box::pin(async move {
            let mut empty = Request::new(EmptyBody::default());
            *empty.headers_mut() = std::mem::take(&mut parts.headers);
            let signed = service.oneshot(empty).await?;
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
            let echo = tower::service_fn(|request: Request<EmptyBody>| {
                let mut signed = Response::new(EmptyBody::default());
                *signed.headers_mut() = request.into_parts().0.headers;
                std::future::ready(Ok::<_, BoxError>(signed))
            });
            Ok(Source::Kube(Box::new(layer.layer(echo))))
        }
    }
}
