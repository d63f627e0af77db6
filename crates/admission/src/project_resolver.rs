//! Project resolver: finds the project plane of an admission review.
//!
//! On a platform with many projects the API server sets extras of the user: `iam.miloapis.com/parent-type` is
//! `Project` and `iam.miloapis.com/parent-name` its name, one value each. The server takes them from the
//! request path, so a user cannot choose them. In single mode there is one plane.
//!
//! A user may create the first Workload of a project as soon as it is Ready, before this process has synced
//! its plane. Such a review waits for [`SYNC_TIMEOUT`].

use std::time::Duration;

use polis_api::k8s_openapi::api::authentication::v1::UserInfo;
use polis_api::milo::{EXTRA_PARENT_NAME, EXTRA_PARENT_TYPE, PROJECT_KIND};
use polis_api::networking::LocationBinding;
use polis_core::cities::{Cities, TenancyMode};
use polis_engine::{Error, Plane, PlaneSet};

use tokio::time::timeout;

use crate::error::AdmissionError;

/// How long a review waits until its project plane is synced. API servers wait ten seconds for a webhook, as
/// `deploy/` configures.
const SYNC_TIMEOUT: Duration = Duration::from_secs(2);

/// Finds the plane of a review. The planes must watch [`LocationBinding`]s.
#[derive(Clone, Debug)]
pub struct ProjectResolver {
    planes: PlaneSet,
    /// The plane of every review in single mode.
    single: Option<String>,
}

impl ProjectResolver {
    /// Resolves every review to the plane of this name.
    pub fn single(planes: PlaneSet, name: impl Into<String>) -> Self {
        Self { planes, single: Some(name.into()) }
    }

    /// Resolves a review to the project that the user's extras name.
    pub fn by_parent(planes: PlaneSet) -> Self {
        Self { planes, single: None }
    }

    /// The tenancy mode of the planes.
    fn tenancy(&self) -> TenancyMode {
        match self.single {
            Some(_) => TenancyMode::Single,
            None => TenancyMode::Milo,
        }
    }

    /// Returns the plane of a review, or an error if the project is unknown or not synced in time.
    pub(crate) async fn resolve(&self, user: &UserInfo) -> Result<Project, AdmissionError> {
        let name = match &self.single {
            Some(name) => name.as_str(),
            None => parent(user)?,
        };
        match timeout(SYNC_TIMEOUT, self.planes.wait_until_engaged(name)).await {
            Ok(plane) => Ok(Project { plane, tenancy: self.tenancy() }),
            Err(_) => Err(self.not_synced(name)),
        }
    }

    /// The error for a plane that is unknown or not synced yet.
    fn not_synced(&self, name: &str) -> AdmissionError {
        let readiness = self.planes.readiness();
        if !readiness.listed || readiness.engaging.iter().any(|plane| plane.as_str() == name) {
            return AdmissionError::unavailable(format!(
                "project {name:?} is not synced yet; retry in a moment"
            ));
        }
        AdmissionError::forbidden(format!("project {name:?} is unknown: it does not exist or is not Ready"))
    }
}

/// The project in the extras of a user.
fn parent(user: &UserInfo) -> Result<&str, AdmissionError> {
    let single_value = |key: &str| {
        let values = user.extra.as_ref().and_then(|extra| extra.get(key)).map_or(&[][..], Vec::as_slice);
        match values {
            [value] if !value.is_empty() => Ok(value.as_str()),
            [] | [_] => Err(AdmissionError::forbidden(format!(
                "the request is not for a project: the extra {key} of the user is missing; use the API address of a project"
            ))),
            several => Err(AdmissionError::forbidden(format!(
                "the extra {key} of the user has {} values; a request must be for one project",
                several.len()
            ))),
        }
    };
    let kind = single_value(EXTRA_PARENT_TYPE)?;
    if kind != PROJECT_KIND {
        return Err(AdmissionError::forbidden(format!(
            "the request is for a {kind}, not for a project; use the API address of a project"
        )));
    }
    single_value(EXTRA_PARENT_NAME)
}

/// The plane of a project.
pub(crate) struct Project {
    pub(crate) plane: Plane,
    tenancy: TenancyMode,
}

impl Project {
    /// The cities that the project may use.
    pub(crate) fn cities(&self) -> Result<Cities, Error> {
        let served = self.plane.serves::<LocationBinding>()?;
        let bindings = served.then(|| self.plane.list::<LocationBinding>()).transpose()?;
        Ok(Cities::of_project(self.tenancy, bindings.as_deref()).0)
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
    fn the_extras_of_the_user_name_the_project() {
        let user = mk_user(&[(EXTRA_PARENT_TYPE, &["Project"]), (EXTRA_PARENT_NAME, &["shop"])]);
        assert_eq!(parent(&user), Ok("shop"));
    }

    #[test]
    fn extras_without_a_valid_project_are_rejected_with_the_reason() {
        let wrong: [(Extras, &str); 7] = [
            (&[], "parent-type of the user is missing"),
            (&[(EXTRA_PARENT_NAME, &["shop"])], "parent-type of the user is missing"),
            (&[(EXTRA_PARENT_TYPE, &["Project"])], "parent-name of the user is missing"),
            (&[(EXTRA_PARENT_TYPE, &["Organization"]), (EXTRA_PARENT_NAME, &["shop"])], "for a Organization"),
            (
                &[(EXTRA_PARENT_TYPE, &["Project"]), (EXTRA_PARENT_NAME, &[""])],
                "parent-name of the user is missing",
            ),
            (&[(EXTRA_PARENT_TYPE, &["Project"]), (EXTRA_PARENT_NAME, &["a", "b"])], "has 2 values"),
            (&[(EXTRA_PARENT_TYPE, &["Project", "Project"]), (EXTRA_PARENT_NAME, &["a"])], "has 2 values"),
        ];
        for (extra, why) in wrong {
            let error = parent(&mk_user(extra)).unwrap_err();
            assert_eq!(error.code, 403);
            assert!(error.message.contains(why), "{}", error.message);
        }
        assert!(parent(&UserInfo::default()).is_err());
    }
}
