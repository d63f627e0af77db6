//! One test cluster that all tests of a suite share.
//!
//! Tests are threads of one process under `cargo test`, and separate processes under nextest. Both share one
//! test cluster if `POLIS_TESTBED_DIR` names its directory: start it with `cargo xtask testbed up`. Without
//! the variable each process starts and owns a test cluster; the guard stops it when the process ends.
//!
//! A test on the shared cluster uses its own namespace or project plane. A test that kills or pauses
//! components starts its own cluster with [`TestCluster::up`].

use std::{env, path::PathBuf};

use tokio::sync::OnceCell;

use crate::{Error, Options, TestCluster, TestPlane};

/// The environment variable with the directory of a running test cluster.
pub const DIR: &str = "POLIS_TESTBED_DIR";

static SHARED: OnceCell<TestCluster> = OnceCell::const_new();

/// The test cluster that all tests of this process share. The options of the first call start it; later calls
/// only check that their planes exist.
pub async fn shared_cluster(options: Options) -> Result<&'static TestCluster, Error> {
    let wanted = options.planes();
    let cluster = SHARED
        .get_or_try_init(async || match env::var_os(DIR).filter(|dir| !dir.is_empty()).map(PathBuf::from) {
            Some(dir) => TestCluster::attach(&dir),
            None => Box::pin(TestCluster::up(options)).await,
        })
        .await?;
    match missing(&wanted, &cluster.planes()) {
        None => Ok(cluster),
        Some(what) => Err(Error::MissingPlane { dir: cluster.dir().to_owned(), what }),
    }
}

fn missing(wanted: &[String], existing: &[TestPlane]) -> Option<String> {
    let name = wanted.iter().find(|name| existing.iter().all(|plane| plane.name != **name));
    name.map(|name| format!("plane {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlaneKind;

    #[test]
    fn a_shared_cluster_must_have_all_wanted_planes() {
        let existing = ["project-1", "hub", "dfw"].map(|name| TestPlane {
            name: name.to_owned(),
            kind: PlaneKind::Project,
            server: String::new(),
        });
        assert_eq!(missing(&["hub".to_owned()], &existing), None);
        assert_eq!(
            missing(&["hub".to_owned(), "ord".to_owned()], &existing),
            Some("plane \"ord\"".to_owned())
        );
    }
}
