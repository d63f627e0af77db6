//! The output of instances, as the subresource `log` of an Instance on the planes of projects and of cells.
//!
//! The server has let the caller in before this is asked: who may `get instances/log` in a project sees the output of
//! the instances of that project, wherever they run.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use http::Response;
use jiff::Timestamp;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::kube::{Api, Client, ResourceExt as _};
use polis_api::{labels, names};
use polis_apiserver::{Body, Extended, Failure, Server, Service};
use polis_runtime::logs::{Ask, LogError, Logs};

use super::planes::cell_plane;
use crate::reach::NOT_STARTED;

/// Reads logs once it is told where they are. Cheap to clone.
#[derive(Clone, Default)]
pub struct Reader(Arc<OnceLock<Known>>);

struct Known {
    server: Server,
    logs: BTreeMap<String, Logs>,
}

impl Reader {
    /// Says where the instances of each city write.
    pub fn learn(&self, server: Server, logs: BTreeMap<String, Logs>) {
        self.0.get_or_init(|| Known { server, logs });
    }

    /// Answers one request.
    pub async fn answer(self, request: Extended) -> Result<Response<Body>, Failure> {
        let known = self.0.get().ok_or_else(|| unavailable("Polis is still starting: ask again"))?;
        let (logs, namespace) = known.find(&request).await?;
        let refused = |error| refused(&request.name, error);
        let nothing = || LogError::NoInstance { instance: request.name.clone() };
        let uid = logs.uid_of(&namespace, &request.name).ok_or_else(nothing).map_err(refused)?;
        let ask = Ask::read(|name| request.parameter(name), Timestamp::now()).map_err(|why| bad(&why))?;
        let body = Body::stream(logs.answer(&uid, &ask).await.map_err(refused)?);
        let answer = Response::builder().header("content-type", "text/plain; charset=utf-8").body(body);
        answer.map_err(|error| unavailable(&error.to_string()))
    }
}

impl Known {
    /// Where an instance writes: the logs of its cell, and its namespace there.
    async fn find(&self, request: &Extended) -> Result<(&Logs, String), Failure> {
        let namespace = request.namespace.clone().unwrap_or_default();
        if let Some((_, logs)) = self.logs.iter().find(|(city, _)| cell_plane(city) == request.plane) {
            return Ok((logs, namespace));
        }
        let city = request.object["metadata"]["labels"][labels::CITY_CODE].as_str().unwrap_or_default();
        let logs = self.logs.get(city).ok_or_else(|| {
            unavailable(&format!(
                "instance {} runs in {city:?}, and Polis has no logs of that city here",
                request.name
            ))
        })?;
        let service: Service = self.server.plane_service(&request.plane);
        let api: Api<Namespace> = Api::all(Client::new(service, "default"));
        let home = api.get(&namespace).await.map_err(|error| unavailable(&error.to_string()))?;
        Ok((logs, names::hub_namespace(&home.uid().unwrap_or_default())))
    }
}

/// The instance is there, or nobody would have asked here: what is missing is what it prints. Kubernetes says of a container
/// that waits to start that the request was a bad one, too.
fn refused(name: &str, error: LogError) -> Failure {
    match error {
        LogError::NoInstance { .. } => {
            Failure::new(400, NOT_STARTED, format!("instance {name} has printed nothing: it has not started"))
        }
        LogError::NoContainer { container, there, .. } => {
            let instance = name.to_owned();
            bad(&LogError::NoContainer { instance, container, there }.to_string())
        }
        LogError::Read { .. } => Failure::new(500, "InternalError", error.to_string()),
    }
}

fn bad(why: &str) -> Failure {
    Failure::new(400, "BadRequest", why.to_owned())
}

fn unavailable(why: &str) -> Failure {
    Failure::new(503, "ServiceUnavailable", why.to_owned())
}
