//! Planes of real engines: etcd, kube-apiserver and Karmada, from the test bed.

use std::{sync::Arc, time::Duration};

use polis_api::kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use polis_testbed::{Options, TestCluster, hub, options::CellCrds, suite};

use crate::{
    Error,
    overlays::DeploymentMode,
    planes::{ClientIdentity, PlaneComponent, PlaneFuture, PlaneLayout, TestPlanes},
};

/// Options of the suite's test cluster.
pub fn options() -> Options {
    let mut options = Options::federation(CITIES);
    options.projects = [PLATFORM, PROJECTS[0], PROJECTS[1]].map(str::to_owned).to_vec();
    options
}

/// The cities of the suite.
pub const CITIES: [&str; 2] = ["dfw", "ord"];
/// The platform's plane.
pub(crate) const PLATFORM: &str = "platform";
/// The projects of the suite.
pub(crate) const PROJECTS: [&str; 2] = ["project-1", "project-2"];

/// Planes of a test cluster.
pub struct RealPlanes {
    cluster: &'static TestCluster,
    layout: PlaneLayout,
}

impl RealPlanes {
    /// The test cluster in `POLIS_TESTBED_DIR`, or a new one that ends with this process.
    pub async fn up(deployment_mode: DeploymentMode) -> Result<Arc<dyn TestPlanes>, Error> {
        let mut options = options();
        if deployment_mode != DeploymentMode::Plain {
            // The CRDs are applied to the hub and propagate to the cells.
            options.cell_crds = CellCrds::Propagated;
            // Tests that the shipped roles suffice with OwnerReferencesPermissionEnforcement.
            options.enforce_owner_references = true;
        }
        let cluster = Box::pin(suite::shared_cluster(options)).await?;
        let layout = PlaneLayout {
            platform: PLATFORM.to_owned(),
            projects: PROJECTS.map(str::to_owned).to_vec(),
            hub: polis_testbed::plane::HUB.to_owned(),
            cells: CITIES.map(str::to_owned).to_vec(),
        };
        Ok(Arc::new(RealPlanes { cluster, layout }))
    }

    fn component(&self, component: PlaneComponent) -> Result<String, Error> {
        Ok(match component {
            PlaneComponent::ApiServer(plane) => self.cluster.plane(&plane)?.apiserver(),
            PlaneComponent::Federation(component) => component,
        })
    }
}

/// A client for a plane of a test cluster with this identity.
pub(crate) fn client_of(
    cluster: &TestCluster,
    plane: String,
    identity: ClientIdentity,
) -> PlaneFuture<'_, Client> {
    Box::pin(async move {
        let groups: Vec<&str> = identity.groups.iter().map(String::as_str).collect();
        let kubeconfig = cluster.kubeconfig_for(&plane, &identity.user, &groups)?;
        let unusable = |why: String| {
            Error::Unavailable(format!("failed to connect as {} to plane {plane}: {why}", identity.user))
        };
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).map_err(|err| unusable(err.to_string()))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let mut config = config.map_err(|err| unusable(err.to_string()))?;
        // Responses reach the controllers unchanged: without retries and without a read timeout.
        config.default_retry = false;
        config.read_timeout = None;
        Client::try_from(config).map_err(|err| unusable(err.to_string()))
    })
}

impl TestPlanes for RealPlanes {
    fn layout(&self) -> &PlaneLayout {
        &self.layout
    }

    /// Karmada retries failed scheduling within seconds.
    fn quiet_period(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn admin(&self, plane: &str) -> PlaneFuture<'_, Client> {
        let plane = plane.to_owned();
        Box::pin(async move { Ok(self.cluster.client(&plane).await?) })
    }

    fn client(&self, plane: &str, identity: ClientIdentity) -> PlaneFuture<'_, Client> {
        client_of(self.cluster, plane.to_owned(), identity)
    }

    fn federation_components(&self) -> Vec<String> {
        [hub::CONTROLLER_MANAGER, hub::SCHEDULER, hub::WEBHOOK, hub::AGGREGATED_APISERVER]
            .map(str::to_owned)
            .to_vec()
    }

    fn kill(&self, component: PlaneComponent) -> PlaneFuture<'_, ()> {
        Box::pin(async move { Ok(self.cluster.kill(&self.component(component)?)?) })
    }

    fn restore(&self, component: PlaneComponent) -> PlaneFuture<'_, ()> {
        Box::pin(async move { Ok(self.cluster.start(&self.component(component)?).await?) })
    }
}
