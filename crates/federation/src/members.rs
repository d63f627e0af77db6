//! [`Members`]: the planes of the members, one for each Cluster of the hub.
//!
//! A member joins with its Cluster and leaves with it. Its plane is registered even if it cannot be
//! connected: every request then fails with the reason, and its Works wait. Every replica registers the
//! Clusters that exist when it starts; the leader registers later ones.
//!
//! A plane has no declared watches. Works add a watch for each kind that they propagate, and a watch of
//! CustomResourceDefinitions tells when the APIs of the member change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::RwLock;
use polis_api::karmada::Cluster;
use polis_engine::{Plane, PlaneProvider, PlaneRegistry, Transport, Watch};
use serde_json::Value;

use crate::error::Error;
use crate::hub::Hub;
use crate::kinds;
use crate::member::{self, Connection, JoinError, Member};
use crate::object;

/// Name of the set of the members, and label of their requests in metrics.
pub(crate) const ROLE: &str = "member";
/// Timeout of a request to a member: a member that hangs must not occupy the workers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before the Secret of a Cluster is read again at the start, after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The members of the federation.
pub(crate) struct Members {
    hub: Arc<Hub>,
    /// Planes of members that do not use the endpoint and Secret of their Cluster.
    provided: BTreeMap<String, Plane>,
    /// None before the engine runs.
    registry: RwLock<Option<PlaneRegistry>>,
    known: RwLock<BTreeMap<String, Arc<Member>>>,
    /// Only one connection is made at a time.
    joining: tokio::sync::Mutex<()>,
}

impl Members {
    pub(crate) fn new(hub: Arc<Hub>, provided: BTreeMap<String, Plane>) -> Arc<Self> {
        let known = RwLock::default();
        Arc::new(Self { hub, provided, registry: RwLock::new(None), known, joining: Default::default() })
    }

    /// The provider of the planes.
    pub(crate) fn provider(self: &Arc<Self>) -> Provider {
        Provider(self.clone())
    }

    /// The connection of a member; none if it is not connected.
    pub(crate) fn get(&self, cluster: &str) -> Option<Arc<Member>> {
        self.known.read().get(cluster).cloned()
    }

    /// Marks the list of APIs of a member as out of date.
    pub(crate) fn mark_apis_stale(&self, cluster: &str) {
        if let Some(member) = self.get(cluster) {
            member.mark_apis_stale();
        }
    }

    /// Connects a member; keeps the existing connection unless the Cluster or its Secret changed.
    pub(crate) async fn connect(
        &self,
        name: &str,
        cluster: &Cluster,
    ) -> Result<Result<Arc<Member>, JoinError>, Error> {
        let _one = self.joining.lock().await;
        let connection = match self.connection_of(name, cluster).await? {
            Ok(connection) => connection,
            Err(why) => {
                self.register_unavailable(name, &why);
                return Ok(Err(why));
            }
        };
        if let Some(member) = self.get(name).filter(|member| member.connection == connection) {
            return Ok(Ok(member));
        }
        let plane = match (&connection, self.provided.get(name)) {
            (Connection::Provided, Some(plane)) => Ok(plane.clone()),
            _ => member::plane_of(name, &connection),
        };
        let plane = match plane {
            Ok(plane) => plane.with_request_timeout(REQUEST_TIMEOUT),
            Err(why) => {
                self.register_unavailable(name, &why);
                return Ok(Err(why));
            }
        };
        let member = Arc::new(Member::new(connection));
        self.known.write().insert(name.to_owned(), member.clone());
        self.register(name, &plane);
        Ok(Ok(member))
    }

    async fn connection_of(
        &self,
        name: &str,
        cluster: &Cluster,
    ) -> Result<Result<Connection, JoinError>, Error> {
        if let Some(duplicate) = self.duplicate_of(name, cluster)? {
            return Ok(Err(JoinError::Client(format!(
                "spec.id is the id of cluster {duplicate}: a member must not be joined twice"
            ))));
        }
        if self.provided.contains_key(name) {
            return Ok(Ok(Connection::Provided));
        }
        let secret = match &cluster.spec.secret_ref {
            Some(reference) => {
                let name = (reference.namespace.as_str(), reference.name.as_str());
                self.hub.of(&kinds::SECRET).read(name).await?
            }
            None => None,
        };
        Ok(member::connection_of(cluster, secret.as_ref()))
    }

    /// An older Cluster with the same `spec.id`.
    fn duplicate_of(&self, name: &str, cluster: &Cluster) -> Result<Option<String>, Error> {
        let Some(id) = cluster.spec.id.as_deref().filter(|id| !id.is_empty()) else { return Ok(None) };
        let created =
            cluster.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
        let older = |other: &&Arc<Value>| {
            object::meta(other, "name") != name
                && other["spec"]["id"] == id
                && (object::meta(other, "creationTimestamp"), object::meta(other, "name"))
                    < (created.as_str(), name)
        };
        let clusters = self.hub.of(&kinds::CLUSTER).list()?;
        Ok(clusters.iter().find(older).map(|other| object::meta(other, "name").to_owned()))
    }

    /// Drops the plane of a member with its caches and its queued keys.
    pub(crate) fn disconnect(&self, name: &str) {
        self.known.write().remove(name);
        if let Some(registry) = &*self.registry.read() {
            registry.disengage(name);
        }
    }

    fn register(&self, name: &str, plane: &Plane) {
        if let Some(registry) = &*self.registry.read() {
            registry.disengage(name);
            // A plane of the configuration may have another name.
            registry.engage(&plane.with_path_prefix(name, "").with_role(ROLE));
        }
    }

    /// Registers a plane that fails every request, unless the member has a plane. An existing connection is
    /// kept: the Secret of a member that leaves may be deleted before its Cluster.
    fn register_unavailable(&self, name: &str, why: &JoinError) {
        if let Some(registry) = &*self.registry.read() {
            let unavailable = Plane::new(name, Transport::unavailable(why.to_string()));
            registry.engage(&unavailable.with_role(ROLE));
        }
    }
}

/// The watch of the APIs of a member.
pub(crate) fn api_watch() -> Watch {
    Watch::kind(kinds::CRD.clone()).metadata_only()
}

/// Registers the Clusters that exist when the engine starts.
pub(crate) struct Provider(Arc<Members>);

impl PlaneProvider for Provider {
    fn run(self: Box<Self>, registry: PlaneRegistry) -> BoxFuture<'static, ()> {
        async move {
            let members = &self.0;
            *members.registry.write() = Some(registry.clone());
            members.hub.plane.wait_until_engaged().await;
            while let Err(error) = members.connect_all().await {
                tracing::warn!(%error, "failed to connect the members; will retry");
                registry.set_error(Some(error.to_string()));
                tokio::time::sleep(RETRY_DELAY).await;
            }
            registry.set_error(None);
            registry.set_listed();
            std::future::pending().await
        }
        .boxed()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // The registry refers to the engine, which refers to the controllers and thus to the members.
        self.0.registry.write().take();
    }
}

impl Members {
    async fn connect_all(&self) -> Result<(), Error> {
        for object in self.hub.of(&kinds::CLUSTER).list()? {
            match crate::object::typed::<Cluster>(&object) {
                // Why a member cannot be connected is reported on its Cluster.
                Ok(cluster) => drop(self.connect(object::meta(&object, "name"), &cluster).await?),
                Err(error) => tracing::warn!(%error, "skipped a Cluster"),
            }
        }
        Ok(())
    }
}
