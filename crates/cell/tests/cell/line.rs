//! A line to a plane that can be cut, and that remembers what went over it.

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

/// How a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Answers come.
    Up,
    /// Nobody is there: every request fails at once, and streams end.
    Cut,
    /// Requests are swallowed, and streams go silent.
    Silent,
}

/// Cheap to clone; all clones are one line.
#[derive(Clone)]
pub struct Line {
    service: Service,
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    state: watch::Sender<State>,
    log: Mutex<Vec<String>>,
    fuse: Fuse,
    /// Collections of this plural are not to be had over all namespaces, neither listed nor watched.
    blind: Mutex<Option<&'static str>>,
    late: Mutex<Option<(&'static str, Duration)>>,
}

/// Burns through after a number of writes, over all lines that it is in: the end of a process.
#[derive(Clone, Default)]
pub struct Fuse(Arc<Mutex<Option<u32>>>);

impl Fuse {
    /// Lets this many more writes through.
    pub fn after(&self, writes: u32) {
        *self.0.lock() = Some(writes);
    }

    /// Holds for ever.
    pub fn mend(&self) {
        *self.0.lock() = None;
    }

    /// Whether it has burnt through.
    pub fn is_burnt(&self) -> bool {
        *self.0.lock() == Some(0)
    }

    /// True if a request may pass; a write is counted.
    fn pass(&self, write: bool) -> bool {
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

impl Line {
    pub fn new(name: &'static str, service: Service, fuse: &Fuse) -> Self {
        let shared = Shared {
            name,
            state: watch::Sender::new(State::Up),
            log: Mutex::default(),
            fuse: fuse.clone(),
            blind: Mutex::default(),
            late: Mutex::default(),
        };
        Self { service, shared: Arc::new(shared) }
    }

    pub fn set(&self, state: State) {
        self.shared.state.send_replace(state);
    }

    /// From now on objects of this plural can be got by their names alone.
    pub fn blind_for(&self, plural: &'static str) {
        *self.shared.blind.lock() = Some(plural);
    }

    /// Lets what is watched of a kind arrive late from now on: on watches that begin after this.
    pub fn watch_late(&self, plural: &'static str, by: Duration) {
        *self.shared.late.lock() = Some((plural, by));
    }

    /// What went over the line so far, as `METHOD path-behind-the-namespace`, watches left out.
    pub fn log(&self) -> Vec<String> {
        self.shared.log.lock().clone()
    }

    /// What went over the line so far and begins like this.
    pub fn logged(&self, start: &str) -> Vec<String> {
        self.log().into_iter().filter(|entry| entry.starts_with(start)).collect()
    }

    /// Forgets what went over the line.
    pub fn clear(&self) {
        self.shared.log.lock().clear();
    }

    /// How often each verb was used, for people.
    pub fn census(&self) -> BTreeMap<String, usize> {
        let mut census = BTreeMap::new();
        for entry in self.log() {
            *census.entry(entry).or_default() += 1;
        }
        census
    }

    fn note(&self, request: &Request<Full<Bytes>>) {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        if query.contains("watch=") || !path.contains("/namespaces/") && request.method() == Method::GET {
            return; // watches, and the lists and discovery that lead to them
        }
        let short = match path.rsplit_once("/namespaces/") {
            Some((_, rest)) => rest.split_once('/').map_or("namespace", |(_, rest)| rest),
            None => path,
        };
        self.shared.log.lock().push(format!("{} {short}", request.method()));
    }

    fn late(&self, request: &Request<Full<Bytes>>) -> Duration {
        let watches = request.uri().query().is_some_and(|query| query.contains("watch="));
        let late = *self.shared.late.lock();
        let about = late.filter(|(plural, _)| watches && request.uri().path().ends_with(plural));
        about.map_or(Duration::ZERO, |(_, by)| by)
    }

    fn lost(&self) -> BoxError {
        let (host, why) = (self.shared.name.into(), "the line is cut".into());
        Box::new(TransportError::Connect { host, why })
    }
}

impl tower::Service<Request<Full<Bytes>>> for Line {
    type Response = Response<Answer>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Full<Bytes>>) -> Self::Future {
        let line = self.clone();
        Box::pin(async move {
            let state = *line.shared.state.borrow();
            match state {
                State::Up => {}
                State::Cut => return Err(line.lost()),
                State::Silent => return std::future::pending().await,
            }
            if !line.shared.fuse.pass(request.method() != Method::GET) {
                return Err(line.lost());
            }
            line.note(&request);
            let late = line.late(&request);
            let blind = *line.shared.blind.lock();
            if blind.is_some_and(|plural| request.uri().path().ends_with(&format!("/{plural}")))
                && request.method() == Method::GET
            {
                *request.uri_mut() = "/apis/not.served/v1/nothings".parse()?;
            }
            let response = line.service.handle(request).await;
            Ok(response.map(|body| Answer { body: Box::pin(body), line: line.watch(), late, held: None }))
        })
    }
}

impl Line {
    /// Ends, or never does, when the line does.
    fn watch(&self) -> Pin<Box<dyn Future<Output = State> + Send>> {
        let mut state = self.shared.state.subscribe();
        Box::pin(async move {
            let broken = state.wait_for(|state| *state != State::Up).await;
            broken.map_or(State::Cut, |state| *state)
        })
    }
}

/// The body of an answer, for as long as the line holds.
pub struct Answer {
    body: Pin<Box<polis_apiserver::Body>>,
    line: Pin<Box<dyn Future<Output = State> + Send>>,
    /// How late each part of it arrives.
    late: Duration,
    held: Option<(Pin<Box<Sleep>>, Frame<Bytes>)>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(state) = self.line.as_mut().poll(context) {
            self.line = Box::pin(std::future::ready(state));
            return match state {
                State::Silent => Poll::Pending,
                _ => Poll::Ready(Some(Err("the line is cut".into()))),
            };
        }
        if self.held.is_none() {
            let frame = match ready!(self.body.as_mut().poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(frame) => frame.map_err(never)?,
            };
            if self.late.is_zero() {
                return Poll::Ready(Some(Ok(frame)));
            }
            self.held = Some((Box::pin(sleep(self.late)), frame));
        }
        if let Some((arrives, _)) = &mut self.held {
            ready!(arrives.as_mut().poll(context));
        }
        Poll::Ready(self.held.take().map(|(_, frame)| Ok(frame)))
    }
}

fn never(never: Infallible) -> BoxError {
    match never {}
}
