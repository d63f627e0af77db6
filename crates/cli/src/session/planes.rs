//! Clients of the planes that a command uses: the project's, and those of the hub and the cells if the
//! kubeconfig has contexts for them.

use std::time::Duration;

use polis_api::kube::config::KubeConfigOptions;
use polis_api::kube::{self, Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use super::ConnectionFlags;
use super::kubeconfig::{self, LoadedKubeconfig, Route};
use crate::exit::{CliError, Exit};

/// Timeout of a TCP and TLS connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of the project's plane, with the names that messages print.
#[derive(Clone)]
pub struct Session {
    /// Client of the project's plane.
    pub client: Client,
    /// Namespace of the requests.
    pub namespace: String,
    /// The project, if the server URL or a flag names one.
    pub project: Option<String>,
    /// The context.
    pub context: String,
    /// The server URL, including the path of the project.
    pub server: String,
    /// The kubeconfig.
    pub loaded: LoadedKubeconfig,
}

impl Session {
    /// Builds the client. Sends a request only if `--project` is set: then it checks that the project exists,
    /// because a server answers requests to an unknown project as if its kinds were not served.
    pub async fn new(connection: &ConnectionFlags) -> Result<Self, CliError> {
        let loaded = kubeconfig::find(connection.kubeconfig.as_deref())?;
        let route = kubeconfig::route(&loaded.kubeconfig, connection)?;
        let config = config(&loaded, &route).await?;
        let namespace = connection.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.to_string();
        let client = client(config, &route.context)?;
        if let Some(project) = &connection.project {
            let asked = client.apiserver_version().await;
            if let Err(kube::Error::Api(status)) = asked
                && status.code == 404
            {
                return Err(CliError::new(
                    Exit::NotFound,
                    format!("failed to find project {project}"),
                    format!("{} has no project with this name", kubeconfig::root_server(&server)),
                    "list the projects with `polis projects`",
                ));
            }
        }
        Ok(Session { client, namespace, project: route.project, context: route.context, server, loaded })
    }

    /// The server URL without the path of the project. Messages print the project separately.
    pub fn root_server(&self) -> &str {
        kubeconfig::root_server(&self.server)
    }

    /// Namespace and project for messages: `namespace default of project shop`.
    pub fn describe(&self) -> String {
        match &self.project {
            Some(project) => format!("namespace {} of project {project}", self.namespace),
            None => format!("namespace {} of context {}", self.namespace, self.context),
        }
    }

    /// API for the objects of a kind in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// API for the objects of a kind in the whole plane.
    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// A client of the hub; `None` if the kubeconfig has no context for it.
    pub async fn hub(&self) -> Option<Result<Client, CliError>> {
        self.sibling_contexts().find(|context| context == kubeconfig::HUB)?;
        Some(self.client_of_context(kubeconfig::HUB).await)
    }

    /// City and client of every cell that has a context in the kubeconfig.
    pub async fn cells(&self) -> Vec<(String, Result<Client, CliError>)> {
        let mut cells = Vec::new();
        for context in self.sibling_contexts() {
            if let Some(city) = context.strip_prefix(kubeconfig::CELL) {
                cells.push((city.to_owned(), self.client_of_context(&context).await));
            }
        }
        cells
    }

    /// The contexts of the same installation. Empty unless `polis up` wrote the context of this session.
    fn sibling_contexts(&self) -> impl Iterator<Item = String> {
        let local = kubeconfig::is_local_installation(&self.context);
        self.loaded.kubeconfig.contexts.iter().filter(move |_| local).map(|context| context.name.clone())
    }

    async fn client_of_context(&self, context: &str) -> Result<Client, CliError> {
        let route = Route { context: context.to_owned(), server: None, project: None };
        client(config(&self.loaded, &route).await?, context)
    }

    /// A client of the platform plane, which has the Project objects.
    pub async fn root(&self) -> Result<Client, CliError> {
        let server = kubeconfig::server_of(&self.loaded.kubeconfig, &self.context).unwrap_or_default();
        let server = Some(kubeconfig::root_server(&server).to_owned());
        let route = Route { context: self.context.clone(), server, project: None };
        client(config(&self.loaded, &route).await?, &self.context)
    }

    /// Name and context of every project that has its own context.
    pub fn project_contexts(&self) -> Vec<(String, String)> {
        kubeconfig::project_contexts(&self.loaded.kubeconfig)
    }
}

async fn config(loaded: &LoadedKubeconfig, route: &Route) -> Result<Config, CliError> {
    let options = KubeConfigOptions { context: Some(route.context.clone()), ..Default::default() };
    let unusable = |why: String| {
        CliError::new(
            Exit::Unreachable,
            format!("failed to use context {}", route.context),
            why,
            format!("check the kubeconfig {}", loaded.source.describe()),
        )
    };
    let read = Config::from_custom_kubeconfig(loaded.kubeconfig.clone(), &options).await;
    let mut config = read.map_err(|error| unusable(error.to_string()))?;
    if let Some(server) = &route.server {
        config.cluster_url = server.parse().map_err(|error| unusable(format!("{server}: {error}")))?;
    }
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    Ok(config)
}

fn client(config: Config, context: &str) -> Result<Client, CliError> {
    Client::try_from(config).map_err(|error| {
        CliError::new(
            Exit::Unreachable,
            format!("failed to use context {context}"),
            error.to_string(),
            "check the certificates and credentials of the context",
        )
    })
}

/// Lists all objects of a kind; `None` if the plane does not serve the kind.
pub async fn optional<K>(api: Api<K>, what: &str) -> Result<Option<Vec<K>>, CliError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.list(&Default::default()).await {
        Ok(list) => Ok(Some(list.items)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(CliError::request(format!("failed to list {what}"), &error)),
    }
}
