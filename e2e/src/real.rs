//! Real engines: the planes of the test bed.

use std::{sync::Arc, time::Duration};

use polis_api::kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use polis_testbed::{Bed, Options, hub, options::CellCrds, suite};

use crate::{
    Error,
    overlays::Manning,
    planes::{Identity, Layout, Outcome, Part, Planes},
};

/// The bed that the suite needs.
pub fn options() -> Options {
    let mut options = Options::federation(CITIES);
    options.projects = [PLATFORM, PROJECTS[0], PROJECTS[1]].map(str::to_owned).to_vec();
    options
}

/// The cities of the suite.
pub const CITIES: [&str; 2] = ["dfw", "ord"];
/// The plane of the platform.
pub(crate) const PLATFORM: &str = "platform";
/// The projects of the suite.
pub(crate) const PROJECTS: [&str; 2] = ["project-1", "project-2"];

/// A bed of real engines.
pub struct Real {
    bed: &'static Bed,
    layout: Layout,
}

impl Real {
    /// The bed named by `POLIS_TESTBED_DIR`, or a new one that ends with this process.
    pub async fn up(manning: Manning) -> Result<Arc<dyn Planes>, Error> {
        let mut options = options();
        if manning != Manning::Plain {
            // What is applied to the hub takes the kinds to the cells.
            options.cell_crds = CellCrds::ByPolicy;
            // The roles of `deploy/` are enough there, too.
            options.owners_guarded = true;
        }
        let bed = Box::pin(suite::bed(options)).await?;
        let layout = Layout {
            platform: PLATFORM.to_owned(),
            projects: PROJECTS.map(str::to_owned).to_vec(),
            hub: polis_testbed::plane::HUB.to_owned(),
            cells: CITIES.map(str::to_owned).to_vec(),
        };
        Ok(Arc::new(Real { bed, layout }))
    }

    fn component(&self, part: Part) -> Result<String, Error> {
        Ok(match part {
            Part::Plane(plane) => self.bed.plane(&plane)?.apiserver(),
            Part::Federation(part) => part,
        })
    }
}

/// A client of a plane of a bed, that may do what the plane lets this identity do.
pub(crate) fn client_of(bed: &Bed, plane: String, who: Identity) -> Outcome<'_, Client> {
    Box::pin(async move {
        let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
        let kubeconfig = bed.kubeconfig_for(&plane, &who.user, &groups)?;
        let unusable =
            |why: String| Error::Unavailable(format!("failed to be {} on plane {plane}: {why}", who.user));
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).map_err(|err| unusable(err.to_string()))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let mut config = config.map_err(|err| unusable(err.to_string()))?;
        // What the plane says is what the controllers hear: no second try on their behalf, no time limit.
        config.default_retry = false;
        config.read_timeout = None;
        Client::try_from(config).map_err(|err| unusable(err.to_string()))
    })
}

impl Planes for Real {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Karmada looks again at what it could not place within seconds.
    fn quiet(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn admin(&self, plane: &str) -> Outcome<'_, Client> {
        let plane = plane.to_owned();
        Box::pin(async move { Ok(self.bed.client(&plane).await?) })
    }

    fn client(&self, plane: &str, who: Identity) -> Outcome<'_, Client> {
        client_of(self.bed, plane.to_owned(), who)
    }

    fn federation_parts(&self) -> Vec<String> {
        [hub::CONTROLLER_MANAGER, hub::SCHEDULER, hub::WEBHOOK, hub::AGGREGATED_APISERVER]
            .map(str::to_owned)
            .to_vec()
    }

    fn kill(&self, part: Part) -> Outcome<'_, ()> {
        Box::pin(async move { Ok(self.bed.kill(&self.component(part)?)?) })
    }

    fn restore(&self, part: Part) -> Outcome<'_, ()> {
        Box::pin(async move { Ok(self.bed.start(&self.component(part)?).await?) })
    }
}
