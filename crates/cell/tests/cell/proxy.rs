//! A proxy in front of a plane that logs requests and can refuse, hang, delay watches or crash the process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::Full;
use parking_lot::Mutex;
use polis_apiserver::Service;
use polis_engine::transport::{BoxError, TransportError};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

/// How the proxy handles requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connectivity {
    /// Requests are forwarded.
    Up,
    /// Every request fails at once, and streams end.
    Refused,
    /// Requests and streams hang.
    Hanging,
}

/// The proxy of one plane. Clones share their state.
#[derive(Clone)]
pub struct PlaneProxy {
    service: Service,
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    state: watch::Sender<Connectivity>,
    log: Mutex<Vec<String>>,
    crash_point: CrashPoint,
    /// Collections of this plural cannot be listed or watched across namespaces.
    unlistable: Mutex<Option<&'static str>>,
    watch_delay: Mutex<Option<(&'static str, Duration)>>,
}

/// Fails all requests after a number of writes over all proxies, like a crash of the process.
#[derive(Clone, Default)]
pub struct CrashPoint(Arc<Mutex<Option<u32>>>);

impl CrashPoint {
    /// Permits this many more writes.
    pub fn arm(&self, writes: u32) {
        *self.0.lock() = Some(writes);
    }

    /// Permits all requests.
    pub fn disarm(&self) {
        *self.0.lock() = None;
    }

    /// Whether the number of writes is used up.
    pub fn has_fired(&self) -> bool {
        *self.0.lock() == Some(0)
    }

    /// Whether a request is permitted. Counts writes.
    fn permits(&self, write: bool) -> bool {
        let mut left = self.0.lock();
        match &mut *left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= u32::from(write);
                true
            }
        }
    }
}

impl PlaneProxy {
    pub fn new(name: &'static str, service: Service, crash_point: &CrashPoint) -> Self {
        let shared = Shared {
            name,
            state: watch::Sender::new(Connectivity::Up),
            log: Mutex::default(),
            crash_point: crash_point.clone(),
            unlistable: Mutex::default(),
            watch_delay: Mutex::default(),
        };
        Self { service, shared: Arc::new(shared) }
    }

    pub fn set(&self, state: Connectivity) {
        self.shared.state.send_replace(state);
    }

    /// From now on objects of this plural can only be read by name.
    pub fn deny_list(&self, plural: &'static str) {
        *self.shared.unlistable.lock() = Some(plural);
    }

    /// Delays the events of watches of this plural that start after this call.
    pub fn delay_watch(&self, plural: &'static str, by: Duration) {
        *self.shared.watch_delay.lock() = Some((plural, by));
    }

    /// The requests so far, as `METHOD path-after-the-namespace`, without watches.
    pub fn log(&self) -> Vec<String> {
        self.shared.log.lock().clone()
    }

    /// The requests so far with this prefix.
    pub fn logged(&self, start: &str) -> Vec<String> {
        self.log().into_iter().filter(|entry| entry.starts_with(start)).collect()
    }

    /// Clears the request log.
    pub fn clear(&self) {
        self.shared.log.lock().clear();
    }

    /// The number of each request, for failure messages.
    pub fn request_counts(&self) -> BTreeMap<String, usize> {
        let mut request_counts = BTreeMap::new();
        for entry in self.log() {
            *request_counts.entry(entry).or_default() += 1;
        }
        request_counts
    }

    fn log_request(&self, request: &Request<Full<Bytes>>) {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if query.contains("watch=") || !path.contains("/namespaces/") && request.method() == Method::GET {
            return; // watches, and the lists and discovery before them
        }
        let short = match path.rsplit_once("/namespaces/") {
            Some((_, rest)) => rest.split_once('/').map_or("namespace", |(_, rest)| rest),
            None => path,
        };
        self.shared.log.lock().push(format!("{} {short}", request.method()));
    }

    fn watch_delay(&self, request: &Request<Full<Bytes>>) -> Duration {
        let watches = request.uri().query().is_some_and(|query| query.contains("watch="));
        let delay = *self.shared.watch_delay.lock();
        let matching = delay.filter(|(plural, _)| watches && request.uri().path().ends_with(plural));
        matching.map_or(Duration::ZERO, |(_, by)| by)
    }

    fn connection_error(&self) -> BoxError {
        let (host, why) = (self.shared.name.into(), "connection refused by the proxy".into());
        Box::new(TransportError::Connect { host, why })
    }
}

impl tower::Service<Request<Full<Bytes>>> for PlaneProxy {
    type Response = Response<ProxiedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ProxiedBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Full<Bytes>>) -> Self::Future {
        let proxy = self.clone();
        Box::pin(async move {
            let state = *proxy.shared.state.borrow();
            match state {
                Connectivity::Up => {}
                Connectivity::Refused => return Err(proxy.connection_error()),
                Connectivity::Hanging => return std::future::pending().await,
            }
            if !proxy.shared.crash_point.permits(request.method() != Method::GET) {
                return Err(proxy.connection_error());
            }
            proxy.log_request(&request);
            let delay = proxy.watch_delay(&request);
            let unlistable = *proxy.shared.unlistable.lock();
            if unlistable.is_some_and(|plural| request.uri().path().ends_with(&format!("/{plural}")))
                && request.method() == Method::GET
            {
                *request.uri_mut() = "/apis/not.served/v1/nothings".parse()?;
            }
            let response = proxy.service.handle(request).await;
            Ok(response.map(|body| ProxiedBody {
                body: Box::pin(body),
                interrupted: proxy.interruption(),
                delay,
                held: None,
            }))
        })
    }
}

impl PlaneProxy {
    /// Completes when the proxy stops forwarding.
    fn interruption(&self) -> Pin<Box<dyn Future<Output = Connectivity> + Send>> {
        let mut state = self.shared.state.subscribe();
        Box::pin(async move {
            let changed = state.wait_for(|state| *state != Connectivity::Up).await;
            changed.map_or(Connectivity::Refused, |state| *state)
        })
    }
}

/// A response body that ends or hangs when the proxy does.
pub struct ProxiedBody {
    body: Pin<Box<polis_apiserver::ResponseBody>>,
    interrupted: Pin<Box<dyn Future<Output = Connectivity> + Send>>,
    /// The delay of each frame.
    delay: Duration,
    held: Option<(Pin<Box<Sleep>>, Frame<Bytes>)>,
}

impl Body for ProxiedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(state) = self.interrupted.as_mut().poll(context) {
            self.interrupted = Box::pin(std::future::ready(state));
            return match state {
                Connectivity::Hanging => Poll::Pending,
                _ => Poll::Ready(Some(Err("connection refused by the proxy".into()))),
            };
        }
        if self.held.is_none() {
            let frame = match ready!(self.body.as_mut().poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(frame) => frame.map_err(never)?,
            };
            if self.delay.is_zero() {
                return Poll::Ready(Some(Ok(frame)));
            }
            self.held = Some((Box::pin(sleep(self.delay)), frame));
        }
        if let Some((delay, _)) = &mut self.held {
            ready!(delay.as_mut().poll(context));
        }
        Poll::Ready(self.held.take().map(|(_, frame)| Ok(frame)))
    }
}

fn never(never: Infallible) -> BoxError {
    match never {}
}
