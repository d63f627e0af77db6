//! One bed for all tests of a suite.
//!
//! Tests are threads of one process under `cargo test`, and processes of their own under nextest. Both share
//! one bed when its directory is in `POLIS_TESTBED_DIR`: start it with `cargo xtask testbed up`. Without it
//! each process starts a bed of its own and owns it; the guard ends it when the process ends.
//!
//! A test that shares keeps to a namespace or a project plane of its own. One that breaks things (kills a
//! component, pauses etcd) breaks them for everyone: it starts a bed of its own with [`Bed::up`].

use std::{env, path::PathBuf};

use tokio::sync::OnceCell;

use crate::{Bed, Error, Options, Plane};

/// Names the directory of a bed that is up.
pub const DIR: &str = "POLIS_TESTBED_DIR";

static SHARED: OnceCell<Bed> = OnceCell::const_new();

/// The bed that all tests of this suite share. The first to ask says what it must have.
pub async fn bed(options: Options) -> Result<&'static Bed, Error> {
    let wanted = options.planes();
    let bed = SHARED
        .get_or_try_init(async || match env::var_os(DIR).filter(|dir| !dir.is_empty()).map(PathBuf::from) {
            Some(dir) => Bed::attach(&dir),
            None => Box::pin(Bed::up(options)).await,
        })
        .await?;
    match lacks(&wanted, &bed.planes()) {
        None => Ok(bed),
        Some(what) => Err(Error::NotTheWantedBed { dir: bed.dir().to_owned(), what }),
    }
}

fn lacks(wanted: &[String], there: &[Plane]) -> Option<String> {
    let missing = wanted.iter().find(|name| there.iter().all(|plane| plane.name != **name));
    missing.map(|name| format!("plane {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn a_bed_with_more_than_was_wanted_will_do_and_one_with_less_will_not() {
        let there = ["project-1", "hub", "dfw"].map(|name| Plane {
            name: name.to_owned(),
            kind: Kind::Project,
            server: String::new(),
        });
        assert_eq!(lacks(&["hub".to_owned()], &there), None);
        assert_eq!(lacks(&["hub".to_owned(), "ord".to_owned()], &there), Some("plane \"ord\"".to_owned()));
    }
}
