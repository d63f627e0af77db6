//! Which project a review is about.
//!
//! On a platform of many projects the API server says so in the extras of the user: `iam.miloapis.com/parent-type` is
//! `Project` and `iam.miloapis.com/parent-name` its name, one value each. The server sets them from the path of the
//! request, so a user cannot choose them. With one plane for all there is nothing to choose.
//!
//! A project that has just become Ready is known to its user as soon as to us, and its first workload may be here before
//! we have looked into it. Such a review waits for a moment.

use std::time::Duration;

use polis_api::k8s_openapi::api::authentication::v1::UserInfo;
use polis_api::milo::{EXTRA_PARENT_NAME, EXTRA_PARENT_TYPE, PROJECT_KIND};
use polis_api::networking::LocationBinding;
use polis_core::cities::{Cities, Ground};
use polis_engine::{Error, Plane, PlaneSet};

use tokio::time::timeout;

use crate::verdict::Refusal;

/// How long a review waits for its project. API servers wait for us for ten seconds, as `deploy/` asks them to.
const PATIENCE: Duration = Duration::from_secs(2);

/// The planes of the projects, and how a review's is found. The planes are watched for [`LocationBinding`]s.
#[derive(Clone, Debug)]
pub struct Projects {
    planes: PlaneSet,
    /// The one plane that every review is about.
    only: Option<String>,
}

impl Projects {
    /// Every review is about the plane of this name.
    pub fn single(planes: PlaneSet, name: impl Into<String>) -> Self {
        Self { planes, only: Some(name.into()) }
    }

    /// A review is about the project that the extras of its user name.
    pub fn by_parent(planes: PlaneSet) -> Self {
        Self { planes, only: None }
    }

    /// One plane for all is a cluster of its own; planes by parent are those of a platform.
    fn ground(&self) -> Ground {
        match self.only {
            Some(_) => Ground::Bare,
            None => Ground::Platform,
        }
    }

    /// The plane that a review is about.
    pub(crate) async fn of(&self, user: &UserInfo) -> Result<Project, Refusal> {
        let name = match &self.only {
            Some(name) => name.as_str(),
            None => parent(user)?,
        };
        match timeout(PATIENCE, self.planes.until_engaged(name)).await {
            Ok(plane) => Ok(Project { plane, ground: self.ground() }),
            Err(_) => Err(self.unknown(name)),
        }
    }

    /// Why a plane is not to be had: it is not there, or not there yet.
    fn unknown(&self, name: &str) -> Refusal {
        let readiness = self.planes.readiness();
        if !readiness.listed || readiness.engaging.iter().any(|plane| plane.as_str() == name) {
            return Refusal::unavailable(format!(
                "project {name:?} is not looked into yet; try again in a moment"
            ));
        }
        Refusal::forbidden(format!("project {name:?} is not known here: it does not exist, or is not ready"))
    }
}

/// The project that a user came through.
fn parent(user: &UserInfo) -> Result<&str, Refusal> {
    let only = |key: &str| {
        let values = user.extra.as_ref().and_then(|extra| extra.get(key)).map_or(&[][..], Vec::as_slice);
        match values {
            [value] if !value.is_empty() => Ok(value.as_str()),
            [] | [_] => Err(Refusal::forbidden(format!(
                "the request was made in no project: the extra {key} of the user is missing; use the address of a project"
            ))),
            several => Err(Refusal::forbidden(format!(
                "the extra {key} of the user has {} values; a request is made in one project",
                several.len()
            ))),
        }
    };
    let kind = only(EXTRA_PARENT_TYPE)?;
    if kind != PROJECT_KIND {
        return Err(Refusal::forbidden(format!(
            "the request was made in a {kind}, not in a project; use the address of a project"
        )));
    }
    only(EXTRA_PARENT_NAME)
}

/// The plane of a project.
pub(crate) struct Project {
    pub(crate) plane: Plane,
    ground: Ground,
}

impl Project {
    /// The cities that the project may use.
    pub(crate) fn cities(&self) -> Result<Cities, Error> {
        let served = self.plane.serves::<LocationBinding>()?;
        let bindings = served.then(|| self.plane.list::<LocationBinding>()).transpose()?;
        Ok(Cities::of_project(self.ground, bindings.as_deref()).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Extras = &'static [(&'static str, &'static [&'static str])];

    fn mk_user(extra: Extras) -> UserInfo {
        let list = |values: &[&str]| values.iter().map(ToString::to_string).collect();
        let extra = extra.iter().map(|(key, values)| (key.to_string(), list(values))).collect();
        UserInfo { extra: Some(extra), ..UserInfo::default() }
    }

    #[test]
    fn the_project_is_the_one_that_the_request_came_through() {
        let user = mk_user(&[(EXTRA_PARENT_TYPE, &["Project"]), (EXTRA_PARENT_NAME, &["shop"])]);
        assert_eq!(parent(&user), Ok("shop"));
    }

    #[test]
    fn extras_that_name_no_project_are_refused_with_what_is_wrong() {
        let wrong: [(Extras, &str); 7] = [
            (&[], "parent-type of the user is missing"),
            (&[(EXTRA_PARENT_NAME, &["shop"])], "parent-type of the user is missing"),
            (&[(EXTRA_PARENT_TYPE, &["Project"])], "parent-name of the user is missing"),
            (&[(EXTRA_PARENT_TYPE, &["Organization"]), (EXTRA_PARENT_NAME, &["shop"])], "in a Organization"),
            (
                &[(EXTRA_PARENT_TYPE, &["Project"]), (EXTRA_PARENT_NAME, &[""])],
                "parent-name of the user is missing",
            ),
            (&[(EXTRA_PARENT_TYPE, &["Project"]), (EXTRA_PARENT_NAME, &["a", "b"])], "has 2 values"),
            (&[(EXTRA_PARENT_TYPE, &["Project", "Project"]), (EXTRA_PARENT_NAME, &["a"])], "has 2 values"),
        ];
        for (extra, why) in wrong {
            let refusal = parent(&mk_user(extra)).unwrap_err();
            assert_eq!(refusal.code, 403);
            assert!(refusal.message.contains(why), "{}", refusal.message);
        }
        assert!(parent(&UserInfo::default()).is_err());
    }
}
