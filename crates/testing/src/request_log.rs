//! The requests of one process, and the faults to inject into them.
//!
//! All proxies of a process share one log, so that the order of writes on different planes is known, and a
//! crash point counts the writes on all planes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{RecordedRequest, RequestVerb};

/// What happens to a request instead of, or before, its normal response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestFault {
    /// The connection fails at once, and open streams end.
    Refuse,
    /// There is never a response, and open streams stay silent, also after the fault is removed.
    Hang,
    /// The plane returns this error.
    Status(StatusCode),
    /// The response, or each event of a stream, arrives later.
    Delay(Duration),
}

type RequestFilter = Arc<dyn Fn(&RecordedRequest) -> bool + Send + Sync>;

/// A fault that was injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

#[derive(Clone)]
struct InjectedFault {
    id: u64,
    filter: RequestFilter,
    fault: RequestFault,
    /// Counted writes that still pass before the fault becomes active.
    writes_left: Option<usize>,
    triggered: bool,
}

impl InjectedFault {
    /// The fault of a request, if it is active. Counts writes.
    fn affects(&mut self, request: &RecordedRequest) -> bool {
        if !(self.filter)(request) {
            return false;
        }
        match &mut self.writes_left {
            Some(0) if request.is_counted_write() => self.writes_left = None,
            Some(left) => *left -= usize::from(request.is_counted_write()),
            None => {}
        }
        self.triggered |= self.writes_left.is_none();
        self.writes_left.is_none()
    }
}

/// The requests of one process, and the faults to inject into them.
#[derive(Default)]
pub struct RequestLog {
    requests: Mutex<BTreeMap<u64, RecordedRequest>>,
    faults: watch::Sender<Vec<InjectedFault>>,
    next: Mutex<u64>,
    without_history: bool,
}

impl RequestLog {
    /// A log that injects faults and keeps no requests, for the clients of a test itself.
    pub fn without_history() -> Self {
        Self { without_history: true, ..Self::default() }
    }

    /// All requests.
    pub fn all(&self) -> Vec<RecordedRequest> {
        self.requests.lock().values().cloned().collect()
    }

    /// Takes all requests out of the log.
    pub fn take(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut *self.requests.lock()).into_values().collect()
    }

    /// Requests since `since`.
    pub fn since(&self, since: Instant) -> Vec<RecordedRequest> {
        self.requests.lock().values().filter(|request| request.at >= since).cloned().collect()
    }

    /// Forwarded writes in these namespaces, without Events.
    pub fn writes_in(&self, namespaces: &[String]) -> Vec<RecordedRequest> {
        let counted = |request: &&RecordedRequest| {
            is_in(request, namespaces) && request.is_counted_write() && !request.dropped
        };
        self.requests.lock().values().filter(counted).cloned().collect()
    }

    /// Forwarded writes without Events, in order, as `<plane>: <verb> <resource>/<name>`.
    pub fn writes(&self) -> Vec<String> {
        let requests = self.requests.lock();
        let writes = requests.values().filter(|request| request.is_counted_write() && !request.dropped);
        writes.map(|request| format!("{}: {request}", request.plane)).collect()
    }

    /// Injects a fault into all matching requests, until it is removed.
    pub fn inject(
        &self,
        fault: RequestFault,
        filter: impl Fn(&RecordedRequest) -> bool + Send + Sync + 'static,
    ) -> FaultId {
        self.add(fault, Arc::new(filter), None)
    }

    /// Refuses every matching request from the one that would be write number `writes` + 1, as if the process
    /// had crashed after write number `writes`.
    pub fn crash_after_writes(
        &self,
        writes: usize,
        filter: impl Fn(&RecordedRequest) -> bool + Send + Sync + 'static,
    ) -> FaultId {
        self.add(RequestFault::Refuse, Arc::new(filter), Some(writes))
    }

    /// As [`RequestLog::crash_after_writes`], for the requests in these namespaces.
    pub fn crash_after_writes_in(&self, writes: usize, namespaces: &[String]) -> FaultId {
        let namespaces = namespaces.to_vec();
        self.crash_after_writes(writes, move |request| is_in(request, &namespaces))
    }

    fn add(&self, fault: RequestFault, filter: RequestFilter, writes_left: Option<usize>) -> FaultId {
        let id = self.next_id();
        let fault = InjectedFault { id, filter, fault, writes_left, triggered: false };
        self.faults.send_modify(|faults| faults.push(fault));
        FaultId(id)
    }

    /// Whether the fault has affected a request.
    pub fn is_triggered(&self, fault: FaultId) -> bool {
        self.faults.borrow().iter().any(|injected| injected.id == fault.0 && injected.triggered)
    }

    /// Completes when the fault has affected a request; never if it is removed before.
    pub async fn triggered(&self, fault: FaultId) {
        let is_triggered = |faults: &Vec<InjectedFault>| {
            faults.iter().any(|injected| injected.id == fault.0 && injected.triggered)
        };
        // Cannot fail: the log owns the sender.
        drop(self.faults.subscribe().wait_for(is_triggered).await);
    }

    /// Removes a fault.
    pub fn remove_fault(&self, fault: FaultId) {
        self.faults.send_modify(|faults| faults.retain(|injected| injected.id != fault.0));
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.faults.send_modify(Vec::clear);
    }

    /// Rejects streaming lists until [`RequestLog::clear_faults`], as older API servers do. Clients then list
    /// in pages.
    pub fn list_in_pages(&self) {
        self.inject(RequestFault::Status(StatusCode::UNPROCESSABLE_ENTITY), |request| request.initial_events);
    }

    /// Records a request. Returns its number, and the fault that affects it.
    pub fn record(&self, mut request: RecordedRequest) -> (u64, Option<RequestFault>) {
        let mut fault = None;
        self.faults.send_if_modified(|faults| {
            let active = |faults: &[InjectedFault]| faults.iter().filter(|f| f.writes_left.is_none()).count();
            let before = active(faults);
            let affecting = faults.iter_mut().filter_map(|f| f.affects(&request).then_some(f.fault));
            fault = affecting.last();
            active(faults) != before
        });
        request.dropped = !matches!(fault, None | Some(RequestFault::Delay(_)));
        let number = self.next_id();
        if !self.without_history {
            self.requests.lock().insert(number, request);
        }
        (number, fault)
    }

    /// Records the status of a response.
    pub fn record_status(&self, number: u64, status: StatusCode) {
        if let Some(request) = self.requests.lock().get_mut(&number) {
            request.conflicted = status == StatusCode::CONFLICT;
        }
    }

    /// The faults of a stream that the request opened.
    pub(crate) fn stream_faults(&self, request: RecordedRequest) -> StreamFaults {
        StreamFaults { request, faults: self.faults.subscribe() }
    }

    fn next_id(&self) -> u64 {
        let mut next = self.next.lock();
        *next += 1;
        *next
    }
}

fn is_in(request: &RecordedRequest, namespaces: &[String]) -> bool {
    request.namespace.as_ref().is_some_and(|namespace| namespaces.contains(namespace))
}

/// The faults of an open stream.
pub(crate) struct StreamFaults {
    request: RecordedRequest,
    faults: watch::Receiver<Vec<InjectedFault>>,
}

impl StreamFaults {
    pub(crate) fn current(&mut self) -> Option<RequestFault> {
        let faults = self.faults.borrow_and_update();
        let active = faults.iter().filter(|f| f.writes_left.is_none() && (f.filter)(&self.request));
        active.map(|injected| injected.fault).next_back()
    }

    /// Completes when a fault is injected or removed; never after the log is gone.
    pub(crate) async fn changed(&mut self) {
        if self.faults.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// The requests of one process to one plane, and the faults between them. Clones share the log.
#[derive(Clone)]
pub struct PlaneRequests {
    log: Arc<RequestLog>,
    plane: String,
    faults: Arc<Mutex<Vec<FaultId>>>,
}

impl PlaneRequests {
    pub(crate) fn new(log: Arc<RequestLog>, plane: &str) -> Self {
        Self { log, plane: plane.to_owned(), faults: Arc::default() }
    }

    /// The requests so far, as `<verb> <resource>/<name>`, without those of informers and heartbeats.
    pub fn log(&self) -> Vec<String> {
        self.select(|request| !request.is_informer() && !request.is_heartbeat())
    }

    /// The requests for heartbeats so far, as [`PlaneRequests::log`] returns them.
    pub fn heartbeats(&self) -> Vec<String> {
        self.select(|request| !request.is_informer() && request.is_heartbeat())
    }

    fn select(&self, selects: impl Fn(&RecordedRequest) -> bool) -> Vec<String> {
        let requests = self.log.requests.lock();
        let own = requests.values().filter(|request| request.plane == self.plane && selects(request));
        own.map(ToString::to_string).collect()
    }

    /// The requests so far that begin with this text.
    pub fn logged(&self, start: &str) -> Vec<String> {
        self.log().into_iter().filter(|entry| entry.starts_with(start)).collect()
    }

    /// Forgets the requests so far.
    pub fn clear(&self) {
        self.log.requests.lock().retain(|_, request| request.plane != self.plane);
    }

    /// Injects a fault into all requests to the plane, until [`PlaneRequests::restore`].
    pub fn fail(&self, fault: RequestFault) {
        self.inject(fault, |_| true);
    }

    /// Injects a fault into all matching requests to the plane, until [`PlaneRequests::restore`].
    pub fn inject(
        &self,
        fault: RequestFault,
        filter: impl Fn(&RecordedRequest) -> bool + Send + Sync + 'static,
    ) {
        let plane = self.plane.clone();
        let id = self.log.inject(fault, move |request| request.plane == plane && filter(request));
        self.faults.lock().push(id);
    }

    /// Delays every event of the watches of a resource.
    pub fn delay_watches(&self, resource: &'static str, by: Duration) {
        let filter = move |r: &RecordedRequest| r.verb == RequestVerb::Watch && r.resource == resource;
        self.inject(RequestFault::Delay(by), filter);
    }

    /// Removes the faults of the plane.
    pub fn restore(&self) {
        self.faults.lock().drain(..).for_each(|fault| self.log.remove_fault(fault));
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn mk_request(method: Method, namespace: &str, resource: &str) -> RecordedRequest {
        let path = format!("/apis/g/v/namespaces/{namespace}/{resource}/x");
        RecordedRequest::parse("hub", &method, &path, "", b"")
    }

    fn passes(log: &RequestLog, method: Method, namespace: &str) -> bool {
        log.record(mk_request(method, namespace, "widgets")).1.is_none()
    }

    #[test]
    fn a_crash_point_forwards_n_writes_and_then_refuses_every_request_of_the_namespaces() {
        let log = RequestLog::default();
        let fault = log.crash_after_writes_in(2, &["shop".to_owned(), "ns-1".to_owned()]);
        for (method, namespace) in
            [(Method::PUT, "shop"), (Method::GET, "shop"), (Method::PUT, "ns-1"), (Method::GET, "ns-1")]
        {
            assert!(passes(&log, method, namespace));
        }
        assert!(!log.is_triggered(fault));
        assert!(!passes(&log, Method::PUT, "shop"));
        assert!(log.is_triggered(fault));
        assert!(!passes(&log, Method::GET, "ns-1"), "reads are refused too");
        assert!(passes(&log, Method::PUT, "other"), "other namespaces are not affected");
        assert_eq!(log.writes_in(&["shop".to_owned(), "ns-1".to_owned()]).len(), 2);
        log.clear_faults();
        assert!(passes(&log, Method::PUT, "shop"));
    }

    #[test]
    fn events_do_not_count_as_crash_points() {
        let log = RequestLog::default();
        log.crash_after_writes(0, |_| true);
        assert_eq!(log.record(mk_request(Method::POST, "shop", "events")).1, None);
        assert_eq!(log.writes(), [""; 0]);
    }

    #[test]
    fn a_fault_affects_the_requests_of_its_plane_until_it_is_restored() {
        let log = Arc::new(RequestLog::default());
        let (hub, cell) = (PlaneRequests::new(log.clone(), "hub"), PlaneRequests::new(log.clone(), "dfw"));
        cell.fail(RequestFault::Refuse);
        assert!(passes(&log, Method::PUT, "shop"));
        hub.inject(RequestFault::Hang, |request| request.resource == "widgets");
        assert!(!passes(&log, Method::PUT, "shop"));
        assert_eq!(log.record(mk_request(Method::PUT, "shop", "gadgets")).1, None);
        hub.restore();
        assert!(passes(&log, Method::GET, "shop"));
        assert_eq!(hub.log(), ["update widgets/x", "update widgets/x", "update gadgets/x", "get widgets/x"]);
        assert_eq!(log.writes(), ["hub: update widgets/x", "hub: update gadgets/x"]);
        hub.clear();
        assert_eq!(hub.logged("update"), [""; 0]);
    }
}
