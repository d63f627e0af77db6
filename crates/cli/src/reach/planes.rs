//! The planes that a verb can reach: the project, and hub and cells where the kubeconfig has them.

use std::time::Duration;

use polis_api::kube::config::KubeConfigOptions;
use polis_api::kube::{self, Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use super::Place;
use super::kubeconfig::{self, Found, Route};
use crate::exit::{Exit, Fault};

/// A server that does not answer the telephone within this time is away.
const CONNECT: Duration = Duration::from_secs(10);

/// The project's plane and what is needed to speak about it.
#[derive(Clone)]
pub struct Reach {
    /// Speaks to the project's plane.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
    /// The project, where one is known.
    pub project: Option<String>,
    /// The context.
    pub context: String,
    /// The server.
    pub server: String,
    /// The kubeconfig.
    pub found: Found,
}

impl Reach {
    /// Reaches the project of a place. Nothing is sent yet, unless a project is named: whether there is one is asked, or every
    /// kind of it would just not be served.
    pub async fn new(place: &Place) -> Result<Self, Fault> {
        let found = kubeconfig::find(place.kubeconfig.as_deref())?;
        let route = kubeconfig::route(&found.kubeconfig, place)?;
        let config = config(&found, &route).await?;
        let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.to_string();
        let client = client(config, &route.context)?;
        if let Some(project) = &place.project {
            let asked = client.apiserver_version().await;
            if let Err(kube::Error::Api(status)) = asked
                && status.code == 404
            {
                return Err(Fault::new(
                    Exit::NotFound,
                    format!("failed to find project {project}"),
                    format!("{} has none of that name", kubeconfig::root_server(&server)),
                    "`polis projects` lists those that are there",
                ));
            }
        }
        Ok(Reach { client, namespace, project: route.project, context: route.context, server, found })
    }

    /// The server without the path of the project, for people: the project is told beside it.
    pub fn root_server(&self) -> &str {
        kubeconfig::root_server(&self.server)
    }

    /// Where this is, for messages: `namespace default of project shop`.
    pub fn in_words(&self) -> String {
        match &self.project {
            Some(project) => format!("namespace {} of project {project}", self.namespace),
            None => format!("namespace {} of context {}", self.namespace, self.context),
        }
    }

    /// Objects of the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Objects of the whole plane.
    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// The hub, where the kubeconfig of `polis up` has it.
    pub async fn hub(&self) -> Option<Result<Client, Fault>> {
        self.installation().find(|context| context == kubeconfig::HUB)?;
        Some(self.at(kubeconfig::HUB).await)
    }

    /// City and client of every cell that the kubeconfig of `polis up` has.
    pub async fn cells(&self) -> Vec<(String, Result<Client, Fault>)> {
        let mut cells = Vec::new();
        for context in self.installation() {
            if let Some(city) = context.strip_prefix(kubeconfig::CELL) {
                cells.push((city.to_owned(), self.at(&context).await));
            }
        }
        cells
    }

    /// Contexts that belong to the same installation: known only of files that `polis up` wrote.
    fn installation(&self) -> impl Iterator<Item = String> {
        let ours = kubeconfig::is_ours(&self.context);
        self.found.kubeconfig.contexts.iter().filter(move |_| ours).map(|context| context.name.clone())
    }

    async fn at(&self, context: &str) -> Result<Client, Fault> {
        let route = Route { context: context.to_owned(), server: None, project: None };
        client(config(&self.found, &route).await?, context)
    }

    /// The plane that holds the projects.
    pub async fn root(&self) -> Result<Client, Fault> {
        let server = kubeconfig::server_of(&self.found.kubeconfig, &self.context).unwrap_or_default();
        let server = Some(kubeconfig::root_server(&server).to_owned());
        let route = Route { context: self.context.clone(), server, project: None };
        client(config(&self.found, &route).await?, &self.context)
    }

    /// Projects that have a context of their own.
    pub fn project_contexts(&self) -> Vec<(String, String)> {
        kubeconfig::project_contexts(&self.found.kubeconfig)
    }
}

async fn config(found: &Found, route: &Route) -> Result<Config, Fault> {
    let options = KubeConfigOptions { context: Some(route.context.clone()), ..Default::default() };
    let unusable = |why: String| {
        Fault::new(
            Exit::Unreachable,
            format!("failed to use context {}", route.context),
            why,
            format!("check the kubeconfig {}", found.source.in_words()),
        )
    };
    let read = Config::from_custom_kubeconfig(found.kubeconfig.clone(), &options).await;
    let mut config = read.map_err(|error| unusable(error.to_string()))?;
    if let Some(server) = &route.server {
        config.cluster_url = server.parse().map_err(|error| unusable(format!("{server}: {error}")))?;
    }
    config.connect_timeout = Some(CONNECT);
    Ok(config)
}

fn client(config: Config, context: &str) -> Result<Client, Fault> {
    Client::try_from(config).map_err(|error| {
        Fault::new(
            Exit::Unreachable,
            format!("failed to use context {context}"),
            error.to_string(),
            "check its certificates and credentials",
        )
    })
}

/// All objects of a kind; none when the plane does not serve it.
pub async fn optional<K>(api: Api<K>, what: &str) -> Result<Option<Vec<K>>, Fault>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.list(&Default::default()).await {
        Ok(list) => Ok(Some(list.items)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(Fault::request(format!("failed to list {what}"), &error)),
    }
}
