//! [`Network`]: the requests between processes and API servers, and their faults.
//!
//! A message takes its time in each direction, may be lost, refused or answered with an error, and a link may
//! fail for a time in one direction or both. A server processes a request to its end even if its client
//! crashes or disconnects. Watch events are delayed, stalled and cut one by one, so caches of different
//! processes and of different kinds are stale by different times. All draws come from a stream of the link.
//!
//! A process that crashed sends nothing more: its requests never end. A crash after a write happens between
//! the write and its response.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use parking_lot::Mutex;
use polis_apiserver::Service;
use polis_engine::transport::{BoxError, TransportError};
use polis_engine::{Plane, Random};
use polis_testing::{RecordedRequest, RequestVerb, split_project_path};
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};
use tower::ServiceExt as _;

use crate::invariants::requests::RequestInvariants;
use crate::journal::{Detail, Journal};
use crate::plan::{LinkFault, Noise, Plan};
use crate::planted_bugs::{PlantedBug, Tampering};

/// Longest pause of a watch by noise.
const STALL: Duration = Duration::from_secs(60);

type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The requests between processes and API servers. Cheap to clone.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    journal: Journal,
    random: Random,
    noise: Noise,
    planted: Option<&'static PlantedBug>,
    invariants: RequestInvariants,
    state: Mutex<State>,
    /// Notified when a fault begins or ends.
    changed: Notify,
    crashes: mpsc::UnboundedSender<(String, Duration)>,
}

struct State {
    noisy: bool,
    links: BTreeMap<(String, String), Link>,
    /// The number of starts of each process; 0 while it is down.
    running: BTreeMap<String, u64>,
    /// Writes until a process crashes, and how long it is down then.
    crash_points: BTreeMap<String, (usize, Duration)>,
    /// Writes since the network became noisy.
    writes: BTreeMap<String, usize>,
    last_write: Instant,
    /// The requests of an idle period other than watches, health probes and heartbeats.
    idle: Option<Vec<String>>,
    next_fault: u64,
}

#[derive(Default)]
struct Link {
    random: Option<Random>,
    faults: Vec<(u64, LinkFault)>,
}

impl Link {
    fn blocks(&self) -> Option<LinkFault> {
        let blocking = |fault: &LinkFault| !matches!(fault, LinkFault::Slow(_));
        self.faults.iter().map(|(_, fault)| *fault).find(blocking)
    }

    fn slowness(&self) -> Duration {
        let slow = self.faults.iter().filter_map(|(_, fault)| match fault {
            LinkFault::Slow(by) => Some(*by),
            _ => None,
        });
        slow.max().unwrap_or_default()
    }
}

/// What noise does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Delivered,
    Refused,
    Lost,
    ResponseLost,
    Error(StatusCode),
}

/// What noise does to a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventFate {
    Delivered,
    Cut,
    Stalled(Duration),
}

impl Network {
    /// A quiet network. Crashes after a write are sent to `crashes`.
    pub fn new(
        journal: Journal,
        plan: &Plan,
        random: Random,
        crashes: mpsc::UnboundedSender<(String, Duration)>,
    ) -> Self {
        let state = State {
            noisy: false,
            links: BTreeMap::new(),
            running: BTreeMap::new(),
            crash_points: BTreeMap::new(),
            writes: BTreeMap::new(),
            last_write: Instant::now(),
            idle: None,
            next_fault: 0,
        };
        let invariants = RequestInvariants::new(journal.clone());
        Self(Arc::new(Inner {
            journal,
            random,
            noise: plan.noise.clone(),
            planted: plan.planted,
            invariants,
            state: Mutex::new(state),
            changed: Notify::new(),
            crashes,
        }))
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.0.journal
    }

    /// Whether noise affects requests; latency always does.
    pub fn set_noisy(&self, noisy: bool) {
        let mut state = self.0.state.lock();
        state.noisy = noisy;
        if noisy {
            state.writes.clear();
        }
    }

    /// Connects a new run of a process. Requests of earlier runs never end.
    pub fn connect(&self, process: &str, run: u64) {
        self.0.state.lock().running.insert(process.to_owned(), run);
    }

    /// Ends all requests of a process: it has crashed.
    pub fn disconnect(&self, process: &str) {
        let mut state = self.0.state.lock();
        state.running.insert(process.to_owned(), 0);
        state.crash_points.remove(process);
    }

    /// Crashes a process directly after its n-th write from now.
    pub fn crash_after_writes(&self, process: &str, writes: usize, down: Duration) {
        self.0.state.lock().crash_points.insert(process.to_owned(), (writes.max(1), down));
    }

    /// The writes of each process since the network became noisy, without Events.
    pub fn writes_by_process(&self) -> BTreeMap<String, usize> {
        self.0.state.lock().writes.clone()
    }

    /// Makes a link fail until [`Network::mend`].
    pub fn fail(&self, process: &str, host: &str, fault: LinkFault) -> u64 {
        let mut state = self.0.state.lock();
        state.next_fault += 1;
        let id = state.next_fault;
        state.links.entry((process.to_owned(), host.to_owned())).or_default().faults.push((id, fault));
        drop(state);
        self.0.changed.notify_waiters();
        id
    }

    /// Ends a failure.
    pub fn mend(&self, fault: u64) {
        for link in self.0.state.lock().links.values_mut() {
            link.faults.retain(|(id, _)| *id != fault);
        }
        self.0.changed.notify_waiters();
    }

    /// The time of the last write of a process.
    pub fn last_write(&self) -> Instant {
        self.0.state.lock().last_write
    }

    /// Collects requests other than watches, health probes and heartbeats from now on.
    pub fn begin_idle(&self) {
        self.0.state.lock().idle = Some(Vec::new());
    }

    /// The requests since [`Network::begin_idle`].
    pub fn end_idle(&self) -> Vec<String> {
        self.0.state.lock().idle.take().unwrap_or_default()
    }

    /// A plane of an API server as a process reaches it. `name` is the name of the plane.
    pub fn plane(&self, process: &str, run: u64, host: &str, name: &str, service: Service) -> Plane {
        let client =
            NetworkClient { network: self.clone(), process: process.into(), run, host: host.into(), service };
        Plane::in_process::<_, Full<Bytes>, _>(name, client)
    }

    fn with_link<T>(&self, process: &str, host: &str, read: impl FnOnce(&mut Link, bool) -> T) -> T {
        let mut state = self.0.state.lock();
        let noisy = state.noisy;
        let link = state.links.entry((process.to_owned(), host.to_owned())).or_default();
        if link.random.is_none() {
            link.random = Some(self.0.random.split(&format!("{process} {host}")));
        }
        read(link, noisy)
    }
}

/// A draw of `per_mille` in 1,000.
fn happens(random: &Random, per_mille: u64) -> bool {
    random.below(1000) < per_mille
}

fn up_to(random: &Random, longest: Duration) -> Duration {
    Duration::from_micros(random.below(longest.as_micros() as u64 + 1))
}

/// The requests of one run of a process to one API server.
#[derive(Clone)]
struct NetworkClient {
    network: Network,
    process: Arc<str>,
    run: u64,
    host: Arc<str>,
    service: Service,
}

impl NetworkClient {
    /// Never ends once the process has crashed.
    async fn while_running(&self) {
        let running = self.network.0.state.lock().running.get(&*self.process) == Some(&self.run);
        if !running {
            std::future::pending().await
        }
    }

    fn link<T>(&self, read: impl FnOnce(&mut Link, &Random, bool) -> T) -> T {
        self.network.with_link(&self.process, &self.host, |link, noisy| {
            let random = link.random.clone().expect("set by with_link");
            read(link, &random, noisy)
        })
    }

    /// The time of one message.
    fn delay(&self) -> Duration {
        let longest = self.network.0.noise.latency;
        self.link(|link, random, _| up_to(random, longest) + link.slowness())
    }

    fn is_noisy(&self) -> bool {
        self.network.0.state.lock().noisy
    }

    fn fate(&self) -> Fate {
        let noise = &self.network.0.noise;
        self.link(|_, random, noisy| match noisy {
            false => Fate::Delivered,
            true if happens(random, noise.refused) => Fate::Refused,
            true if happens(random, noise.lost) => Fate::Lost,
            true if happens(random, noise.response_lost) => Fate::ResponseLost,
            true if happens(random, noise.errors) => {
                let codes = [429, 500, 503, 504];
                let code = codes[random.below(codes.len() as u64) as usize];
                Fate::Error(StatusCode::from_u16(code).expect("a valid code"))
            }
            true => Fate::Delivered,
        })
    }

    fn event_fate(&self) -> EventFate {
        let noise = &self.network.0.noise;
        self.link(|_, random, noisy| match noisy {
            false => EventFate::Delivered,
            true if happens(random, noise.watch_cut) => EventFate::Cut,
            true if happens(random, noise.watch_stall) => EventFate::Stalled(up_to(random, STALL)),
            true => EventFate::Delivered,
        })
    }

    /// Waits until a message can pass; an error if connections are refused, or were reset while it waited.
    async fn pass(&self, response: bool) -> Result<(), BoxError> {
        let mut waited = false;
        loop {
            let changed = self.network.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            match self.link(|link, _, _| link.blocks()) {
                None if waited && self.link(|_, random, _| happens(random, 500)) => {
                    return Err(self.broken("connection reset when the link came back"));
                }
                None => return Ok(()),
                Some(LinkFault::OneWay) if !response => return Ok(()),
                Some(LinkFault::Refuse) if response => return Err(self.broken("connection reset")),
                Some(LinkFault::Refuse) => return Err(self.refused()),
                Some(_) => {
                    waited = true;
                    changed.await;
                }
            }
        }
    }

    fn refused(&self) -> BoxError {
        Box::new(TransportError::Connect { host: self.host.clone(), why: "connection refused".into() })
    }

    fn broken(&self, why: &str) -> BoxError {
        Box::new(TransportError::Broken { why: why.into() })
    }

    fn parse(&self, request: &Request<Bytes>) -> RecordedRequest {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let (plane, rest) = split_project_path(path).unwrap_or((&self.host, path));
        RecordedRequest::parse(plane, request.method(), rest, query, request.body())
    }

    async fn exchange(self, mut request: Request<Bytes>) -> Result<Response<Body>, BoxError> {
        self.while_running().await;
        let journal = self.network.journal().clone();
        let sent = self.parse(&request);
        let what = describe(&self.process, &sent);
        let planted = self.network.0.planted;
        let tampering = planted.and_then(|bug| bug.tamper(&self.process, &sent, request.body()));
        match &tampering {
            Some(Tampering::Forgotten) => {
                journal.tell(format!("planted bug: {what} is forgotten"));
                return Ok(pretend(&request));
            }
            Some(Tampering::Changed(body)) => *request.body_mut() = body.clone().into(),
            Some(Tampering::EventsLost) | None => {}
        }
        let loses_events = tampering == Some(Tampering::EventsLost);
        journal.count(sent.verb.is_write());
        if sent.verb != RequestVerb::Watch && sent.resource != "/readyz" && !sent.is_heartbeat() {
            let mut state = self.network.0.state.lock();
            state.idle.iter_mut().for_each(|requests| requests.push(what.clone()));
        }
        journal.add(Detail::Trace, format!("{what} sent"), request.body());
        self.network.0.invariants.sent(&self.process, &sent, request.body());
        let fate = self.fate();
        sleep(self.delay()).await;
        self.while_running().await;
        match fate {
            Fate::Refused => {
                journal.add(Detail::Trace, format!("{what} refused"), b"");
                return Err(self.refused());
            }
            Fate::Lost => {
                journal.add(Detail::Trace, format!("{what} lost"), b"");
                return std::future::pending().await;
            }
            Fate::Error(code) => {
                journal.add(Detail::Trace, format!("{what} answered with {code} by a fault"), b"");
                sleep(self.delay()).await;
                return Ok(respond(code));
            }
            Fate::Delivered | Fate::ResponseLost => {}
        }
        self.pass(false).await?;
        self.while_running().await;
        // The server does not notice when its client crashes or disconnects.
        let service = self.service.clone();
        let watch = sent.verb == RequestVerb::Watch;
        let served = tokio::spawn(async move {
            let served = service.oneshot(request.map(Full::new)).await.unwrap_or_else(|never| match never {});
            let (head, body) = served.into_parts();
            let body = body.map_err(BoxError::from).boxed_unsync();
            if watch {
                return (head, Bytes::new(), Some(body));
            }
            let content = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            (head, content, None)
        });
        let (head, content, stream) = served.await.map_err(|error| self.broken(&error.to_string()))?;
        let changed = sent.is_counted_write() && head.status.is_success();
        let detail = if changed { Detail::Write } else { Detail::Trace };
        journal.add(detail, format!("{what} {}", head.status.as_u16()), &content);
        if sent.verb.is_write() && !sent.is_heartbeat() && head.status.is_success() {
            self.network.0.state.lock().last_write = Instant::now();
            self.network.0.invariants.written(&self.process, &sent, &content);
        }
        if changed && self.reaches_crash_point() {
            journal.tell(format!("{} crashes after: {what}", self.process));
            return std::future::pending().await;
        }
        if fate == Fate::ResponseLost {
            journal.add(Detail::Trace, format!("{what} response lost"), b"");
            return Err(self.broken("connection reset before the response"));
        }
        self.pass(true).await?;
        sleep(self.delay()).await;
        self.while_running().await;
        let body = match stream {
            Some(stream) => self.events(stream, what, loses_events),
            None => Full::new(content).map_err(|never| match never {}).boxed_unsync(),
        };
        Ok(Response::from_parts(head, body))
    }

    /// Counts a write. True if the process crashes with it.
    fn reaches_crash_point(&self) -> bool {
        let mut state = self.network.0.state.lock();
        *state.writes.entry(self.process.to_string()).or_default() += 1;
        let Some((left, down)) = state.crash_points.get_mut(&*self.process) else { return false };
        *left -= 1;
        if *left > 0 {
            return false;
        }
        let down = *down;
        state.crash_points.remove(&*self.process);
        state.running.insert(self.process.to_string(), 0);
        // The simulation receives until the run ends.
        _ = self.network.0.crashes.send((self.process.to_string(), down));
        true
    }

    /// The events of a watch with their delays and faults.
    fn events(self, body: Body, what: String, loses_events: bool) -> Body {
        let frames = stream::unfold(Some((self, body)), move |rest| {
            let what = what.clone();
            async move {
                let (client, mut body) = rest?;
                let frame = loop {
                    let frame = tokio::select! {
                        biased;
                        error = client.reset() => return Some((Err(error), None)),
                        frame = body.frame() => frame?,
                    };
                    if !(loses_events && client.is_noisy()) {
                        break frame;
                    }
                };
                client.while_running().await;
                match client.event_fate() {
                    EventFate::Delivered => {}
                    EventFate::Stalled(pause) => sleep(pause).await,
                    EventFate::Cut => {
                        client.network.journal().add(Detail::Trace, format!("{what} cut"), b"");
                        return Some((Err(client.broken("connection reset")), None));
                    }
                }
                if let Err(error) = client.pass(true).await {
                    return Some((Err(error), None));
                }
                sleep(client.delay()).await;
                client.while_running().await;
                if let Ok(Some(content)) = frame.as_ref().map(|frame| frame.data_ref()) {
                    client.network.journal().add(Detail::Trace, format!("{what} event"), content);
                }
                Some((frame, Some((client, body))))
            }
        });
        StreamBody::new(frames.boxed()).boxed_unsync()
    }

    /// Completes when open connections of the link are reset.
    async fn reset(&self) -> BoxError {
        loop {
            let changed = self.network.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.link(|link, _, _| link.blocks()) == Some(LinkFault::Refuse) {
                return self.broken("connection reset");
            }
            changed.await;
        }
    }
}

fn describe(process: &str, request: &RecordedRequest) -> String {
    let namespace = request.namespace.as_deref().map(|name| format!(" in {name}")).unwrap_or_default();
    format!("{process} -> {}: {request}{namespace}", request.plane)
}

/// The response that a controller believes to have received for a request that it never sent.
fn pretend(request: &Request<Bytes>) -> Response<Body> {
    let content = match *request.method() {
        http::Method::DELETE => {
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string().into()
        }
        _ => request.body().clone(),
    };
    json_response(StatusCode::OK, content)
}

/// The error of an API server that does not process a request.
fn respond(code: StatusCode) -> Response<Body> {
    let reason = match code {
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::GATEWAY_TIMEOUT => "Timeout",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "code": code.as_u16(), "message": "a fault of the simulation"});
    json_response(code, status.to_string().into())
}

fn json_response(code: StatusCode, content: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(content).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl tower::Service<Request<Full<Bytes>>> for NetworkClient {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let client = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let content = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            client.exchange(Request::from_parts(head, content)).await
        })
    }
}
