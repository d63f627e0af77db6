//! The subresource `instances/log` on the planes of projects and cells: the output of an instance.
//!
//! The API server authorises the request before this handler runs: a user with `get` on `instances/log` in a
//! project reads the output of the instances of that project in every cell.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use http::Response;
use jiff::Timestamp;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::kube::{Api, Client, ResourceExt as _};
use polis_api::{labels, names};
use polis_apiserver::{ResponseBody, Server, Service, StatusError, SubresourceRequest};
use polis_runtime::logs::{LogError, LogReader, LogRequest};

use super::planes::cell_plane;
use crate::session::{NO_PREVIOUS_RUN, NOT_STARTED};

/// The handler of the subresource. It exists before the runtimes; until [`Reader::init`] it answers 503.
/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Reader(Arc<OnceLock<LogSources>>);

struct LogSources {
    server: Server,
    logs: BTreeMap<String, LogReader>,
}

impl Reader {
    /// Sets the logs of each city.
    pub fn init(&self, server: Server, logs: BTreeMap<String, LogReader>) {
        self.0.get_or_init(|| LogSources { server, logs });
    }

    /// Handles one request.
    pub async fn answer(self, request: SubresourceRequest) -> Result<Response<ResponseBody>, StatusError> {
        let sources = self.0.get().ok_or_else(|| unavailable("Polis is starting: repeat the request"))?;
        let (logs, namespace) = sources.find(&request).await?;
        let refused = |error| refused(&request.name, error);
        let nothing = || LogError::NoInstance { instance: request.name.clone() };
        let uid = logs.uid_of(&namespace, &request.name).ok_or_else(nothing).map_err(refused)?;
        let ask = LogRequest::from_parameters(|name| request.parameter(name), Timestamp::now())
            .map_err(|why| bad(&why))?;
        let body = ResponseBody::stream(logs.respond(&uid, &ask).await.map_err(refused)?);
        let answer = Response::builder().header("content-type", "text/plain; charset=utf-8").body(body);
        answer.map_err(|error| unavailable(&error.to_string()))
    }
}

impl LogSources {
    /// The logs of the instance's cell, and the namespace of the instance in the cell.
    async fn find(&self, request: &SubresourceRequest) -> Result<(&LogReader, String), StatusError> {
        let namespace = request.namespace.clone().unwrap_or_default();
        if let Some((_, logs)) = self.logs.iter().find(|(city, _)| cell_plane(city) == request.plane) {
            return Ok((logs, namespace));
        }
        let city = request.object["metadata"]["labels"][labels::CITY_CODE].as_str().unwrap_or_default();
        let logs = self.logs.get(city).ok_or_else(|| {
            unavailable(&format!(
                "failed to read the log of instance {}: this process has no logs of city {city:?}",
                request.name
            ))
        })?;
        let service: Service = self.server.plane_service(&request.plane);
        let api: Api<Namespace> = Api::all(Client::new(service, "default"));
        let home = api.get(&namespace).await.map_err(|error| unavailable(&error.to_string()))?;
        Ok((logs, names::hub_namespace(&home.uid().unwrap_or_default())))
    }
}

/// The API error of a failed read. The instance exists, because the API server has looked it up; only its log
/// is missing. Kubernetes also answers 400 for a container that waits to start.
fn refused(name: &str, error: LogError) -> StatusError {
    match error {
        LogError::NoInstance { .. } => {
            StatusError::new(400, NOT_STARTED, format!("instance {name} has no output: it has not started"))
        }
        LogError::NoContainer { container, available, .. } => {
            let instance = name.to_owned();
            bad(&LogError::NoContainer { instance, container, available }.to_string())
        }
        LogError::NoPreviousRun { container, .. } => {
            let instance = name.to_owned();
            let why = LogError::NoPreviousRun { instance, container }.to_string();
            StatusError::new(400, NO_PREVIOUS_RUN, why)
        }
        LogError::Read { .. } => StatusError::new(500, "InternalError", error.to_string()),
    }
}

fn bad(why: &str) -> StatusError {
    StatusError::new(400, "BadRequest", why.to_owned())
}

fn unavailable(why: &str) -> StatusError {
    StatusError::new(503, "ServiceUnavailable", why.to_owned())
}
