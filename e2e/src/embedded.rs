//! Embedded planes: the API server and the federation of this repository, in the process of the suite.
//!
//! Every plane is reached over a line that can be cut, as the API server of a real plane can be killed: requests in
//! flight are lost, watches end in the middle of an event, what was written is there when the line is mended.
//!
//! Some of the planes may be real API servers of the test bed, as in production some are and some are not.

use std::{
    collections::BTreeMap,
    future::pending,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use polis_api::{
    crds::{self, CrdFile},
    kube::{Client, client::Body},
    labels,
};
use polis_apiserver::{Identity as Caller, PlaneSpec, Server, Service};
use polis_federation::Federation;
use polis_testbed::{Bed, Options, hub, manifest, plane::HUB};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};
use tower::ServiceExt as _;

use crate::{
    Error,
    planes::{Identity, Layout, Outcome, Part, Planes},
    real::{CITIES, PLATFORM, PROJECTS, client_of},
};

/// The one part of the federation.
const FEDERATION: &str = "federation";
/// As brisk as the bed of real engines: an outage is noticed within seconds.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const FAILURE_THRESHOLD: Duration = Duration::from_secs(2);

/// Planes of one embedded API server.
pub struct Embedded {
    server: Server,
    layout: Layout,
    lines: BTreeMap<String, watch::Sender<bool>>,
    outside: BTreeMap<String, Client>,
    bed: Option<Bed>,
    federation: Mutex<Option<JoinHandle<()>>>,
}

impl Embedded {
    /// Makes the planes with their kinds, starts the federation, and makes the cells members of it.
    pub async fn up() -> Result<Arc<dyn Planes>, Error> {
        Self::beside(&[]).await
    }

    /// The same, with these planes on a kube-apiserver each.
    pub async fn beside(real: &[&str]) -> Result<Arc<dyn Planes>, Error> {
        let unavailable = |err: polis_apiserver::Error| Error::Unavailable(err.to_string());
        let server = Server::builder().build().await.map_err(unavailable)?;
        let layout = Layout {
            platform: PLATFORM.to_owned(),
            projects: PROJECTS.map(str::to_owned).to_vec(),
            hub: HUB.to_owned(),
            cells: CITIES.map(str::to_owned).to_vec(),
        };
        let (bed, outside) = raise(&layout, real).await?;
        for plane in layout.all().into_iter().filter(|plane| !real.contains(plane)) {
            server.create_plane(PlaneSpec::own(plane)).await.map_err(unavailable)?;
            for CrdFile { crd, .. } in kinds_of(&layout, plane) {
                server.install_crd_in(plane, &crd).await.map_err(unavailable)?;
            }
        }
        let lines = layout.all().into_iter().map(|plane| (plane.to_owned(), watch::Sender::new(true)));
        let lines = lines.collect();
        let planes = Embedded { server, lines, layout, outside, bed, federation: Mutex::default() };
        planes.federate().await?;
        Ok(Arc::new(planes))
    }

    async fn federate(&self) -> Result<(), Error> {
        let client = self.reach(HUB, Caller::admin());
        hub::make_namespaces(&client).await?;
        hub::install_interpreter(&client).await?;
        self.start_federation();
        for city in &self.layout.cells {
            let cluster = json!({
                "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
                "metadata": {"name": city, "labels": {labels::TOPOLOGY_CITY_CODE: city}},
                "spec": {"syncMode": "Push"},
            });
            manifest::apply(&client, HUB, &cluster).await?;
        }
        Ok(())
    }

    fn start_federation(&self) {
        let mut federation = Federation::builder(self.reach(HUB, Caller::admin()))
            .probe_every(PROBE_EVERY)
            .failure_threshold(FAILURE_THRESHOLD);
        for city in &self.layout.cells {
            federation = federation.member(city, self.reach(city, Caller::admin()));
        }
        let running = tokio::spawn(federation.build().run(pending()));
        *self.federation.lock().expect("nobody panics here") = Some(running);
    }

    /// A client of a plane, for as long as its line holds.
    fn reach(&self, plane: &str, caller: Caller) -> Client {
        if let Some(client) = self.outside.get(plane) {
            return client.clone();
        }
        let (service, line) = (self.server.plane_service(plane), self.lines[plane].subscribe());
        let carry = move |request| carry(service.clone(), caller.clone(), line.clone(), request);
        Client::new(tower::service_fn(carry), "default")
    }

    /// The process that a part is, where it is one.
    fn process(&self, part: &Part) -> Result<Option<(&Bed, String)>, Error> {
        match (part, &self.bed) {
            (Part::Plane(plane), Some(bed)) if self.outside.contains_key(plane) => {
                Ok(Some((bed, bed.plane(plane)?.apiserver())))
            }
            _ => Ok(None),
        }
    }

    fn cut(&self, part: &Part) {
        match part {
            Part::Plane(plane) => drop(self.lines[plane].send_replace(false)),
            Part::Federation(_) => {
                if let Some(running) = self.federation.lock().expect("nobody panics here").take() {
                    running.abort();
                }
            }
        }
    }

    fn mend(&self, part: &Part) {
        match part {
            Part::Plane(plane) => drop(self.lines[plane].send_replace(true)),
            Part::Federation(_) => {
                let gone = self.federation.lock().expect("nobody panics here").is_none();
                if gone {
                    self.start_federation();
                }
            }
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.cut(&Part::Federation(FEDERATION.to_owned()));
    }
}

/// Raises the planes that are to be real, with their kinds, and what an operator's client of each is.
async fn raise(layout: &Layout, real: &[&str]) -> Result<(Option<Bed>, BTreeMap<String, Client>), Error> {
    let mut outside = BTreeMap::new();
    if real.is_empty() {
        return Ok((None, outside));
    }
    let planes = real.iter().map(|plane| (*plane).to_owned()).collect();
    let options = Options { projects: planes, controllers: true, ..Options::single_plane() };
    let bed = Box::pin(Bed::up(options)).await?;
    for plane in real {
        let client = bed.client(plane).await?;
        let kinds: Vec<_> = kinds_of(layout, plane).into_iter().map(|file| file.crd).collect();
        manifest::apply_crds(&client, plane, &kinds).await?;
        outside.insert((*plane).to_owned(), client);
    }
    Ok((Some(bed), outside))
}

fn kinds_of(layout: &Layout, plane: &str) -> Vec<CrdFile> {
    match plane {
        plane if plane == layout.hub => crds::of_hub(),
        plane if layout.cells.iter().any(|cell| cell == plane) => crds::of_cell(),
        _ => crds::of_project(),
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the plane is down")
}

/// Takes a request to the plane. What is under way when the line is cut is lost.
async fn carry(
    service: Service,
    caller: Caller,
    mut line: watch::Receiver<bool>,
    mut request: Request<Body>,
) -> Result<Response<impl http_body::Body<Data = bytes::Bytes, Error = io::Error>>, io::Error> {
    if !*line.borrow_and_update() {
        return Err(broken());
    }
    request.extensions_mut().insert(caller);
    let answer = tokio::select! {
        biased;
        _ = line.changed() => return Err(broken()),
        answer = service.oneshot(request) => answer.unwrap_or_else(|never| match never {}),
    };
    let (head, body) = answer.into_parts();
    let frames = stream::unfold(Some((Box::pin(body), line)), async |rest| {
        let (mut body, mut line) = rest?;
        tokio::select! {
            biased;
            _ = line.changed() => Some((Err(broken()), None)),
            frame = body.frame() => {
                let frame = frame?.map_err(io::Error::other);
                Some((frame, Some((body, line))))
            }
        }
    });
    Ok(Response::from_parts(head, StreamBody::new(frames.boxed())))
}

impl Planes for Embedded {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A change is through all planes within milliseconds, or within a second on a busy machine; a real one takes longer.
    fn quiet(&self) -> Duration {
        Duration::from_secs(if self.bed.is_none() { 2 } else { 4 })
    }

    fn admin(&self, plane: &str) -> Outcome<'_, Client> {
        let client = self.reach(plane, Caller::admin());
        Box::pin(async move { Ok(client) })
    }

    fn client(&self, plane: &str, who: Identity) -> Outcome<'_, Client> {
        if let Some(bed) = self.bed.as_ref().filter(|_| self.outside.contains_key(plane)) {
            return client_of(bed, plane.to_owned(), who);
        }
        let client = self.reach(plane, Caller::new(who.user, who.groups));
        Box::pin(async move { Ok(client) })
    }

    fn federation_parts(&self) -> Vec<String> {
        vec![FEDERATION.to_owned()]
    }

    fn kill(&self, part: Part) -> Outcome<'_, ()> {
        Box::pin(async move {
            match self.process(&part)? {
                Some((bed, process)) => Ok(bed.kill(&process)?),
                None => {
                    self.cut(&part);
                    Ok(())
                }
            }
        })
    }

    fn restore(&self, part: Part) -> Outcome<'_, ()> {
        Box::pin(async move {
            match self.process(&part)? {
                Some((bed, process)) => Ok(bed.start(&process).await?),
                None => {
                    self.mend(&part);
                    Ok(())
                }
            }
        })
    }
}
